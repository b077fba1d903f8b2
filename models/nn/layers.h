/* Layers, each forward beside its backward, and how their numbers are named.
 *
 * Activations are packed: [rows][features], sequences one after another, and offsets
 * [batch + 1] say where each begins. Padding does not exist, so it costs nothing.
 *
 * Work is cut into tasks whose bounds depend on the problem only; every sum has one
 * order. So the same input gives the same bits on any number of threads. */
#ifndef SHOAL_MODELS_NN_LAYERS_H
#define SHOAL_MODELS_NN_LAYERS_H

#include <stdbool.h>

#include "base/context.h"
#include "base/export.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "kernels/kernels.h"
#include "models/kernels/kernels.h"
#include "models/nn/products.h"

/* Numbers of a layer that learns, or that came from a file. Shapes stand where it is
   used. Weights [outputs][inputs] may be IEEE half precision in memory (arithmetic is
   float); biases and norms are float. */
typedef struct {
    const void *data; /* float, or uint16_t where half is set; NULL: absent (a bias) */
    float *gradient;  /* the same shape, added to by backward; NULL: inference only */
    bool half;
    bool bf16; /* bfloat16 pairs, packed: sh_bf16_put; a multiple of 32 outputs, and
                    inputs are even. What is multiplied with it is rounded so too */
    /* Floats in blocks, as sh_packed_put puts them; a multiple of 32 outputs; inference
       only. */
    bool packed;
    /* Bytes in blocks, as sh_int8_put puts them (models/nn/quantised.h), and the factors
       of the inputs; inference only. */
    bool int8;
    const float *factors; /* [inputs] */
} nn_tensor;

/* One batch of sequences: sequence b has rows offsets[b] .. offsets[b + 1] - 1, and
   offsets[0] is 0. */
typedef struct {
    int64_t batch;
    const int64_t *offsets; /* [batch + 1] */
} packing;

static inline int64_t packing_rows(const packing *sequences) {
    return sequences->batch ? sequences->offsets[sequences->batch] : 0;
}

/* out[count] = the floats of `count` halves, in tasks. */
void sh_widen_halves(const shoal_context *context, int64_t count, const uint16_t *halves,
                     float *out);

/* ---- Linear: y = x W' + b --------------------------------------------------------- */

typedef struct {
    int64_t inputs, outputs;
    nn_tensor weight; /* [outputs][inputs] */
    nn_tensor bias;   /* [outputs]; data NULL: none */
} linear;

/* Writes row `output` [inputs] of a weight of bfloat16 pairs. */
SHOAL_PRIVATE void sh_bf16_put(int64_t inputs, int64_t output, const float *row,
                               uint32_t *pairs);

/* Floats of scratch that a forward with `rows` rows needs: a copy of a half weight, the
   input beside bfloat16, or 0; and what a packed weight with so many inputs needs. */
int64_t sh_linear_scratch(const linear *layer, int64_t rows);
int64_t sh_panel_scratch(const shoal_context *context, int64_t inputs);

/* y [rows][outputs]; scratch [linear_scratch] (NULL where that is 0). Up to FEW_ROWS rows
   read a half weight directly. */
enum { FEW_ROWS = 8 };
void sh_linear_forward(const shoal_context *context, const linear *layer, int64_t rows,
                       const_matrix x, matrix y, float *scratch);

/* The same without the bias and with an epilogue, which may add it. */
void sh_linear_forward_then(const shoal_context *context, const linear *layer,
                            int64_t rows, const_matrix x, matrix y, epilogue then,
                            float *scratch);

/* Adds to the gradients of weight and bias; dx [rows][inputs] is overwritten, unless its
   data is NULL. Float weights only. */
void sh_linear_backward(const shoal_context *context, const linear *layer, int64_t rows,
                        const_matrix x, const_matrix dy, matrix dx);

/* ---- Activations ------------------------------------------------------------------ */

typedef enum {
    ACTIVATION_GELU, /* x Phi(x), exact: Phi by erf, not by tanh */
    ACTIVATION_RELU
} activation;

/* In the calling thread: out[i] = f(x[i]); out may be x. */
static inline void activate(const shoal_context *context, activation kind, int64_t count,
                            const float *x, float *out) {
    const model_kernels *kernels = sh_model_kernels(context);
    (kind == ACTIVATION_RELU ? kernels->relu : kernels->gelu)(count, x, out);
}

/* dx[i] = dy[i] f'(x[i]), and out[i] = f(x[i]) unless out is NULL; dx may be dy. */
static inline void activation_slope(const shoal_context *context, activation kind,
                                    int64_t count, const float *x, const float *dy,
                                    float *dx, float *out) {
    const model_kernels *kernels = sh_model_kernels(context);
    (kind == ACTIVATION_RELU ? kernels->relu_slope : kernels->gelu_slope)(count, x, dy,
                                                                          dx, out);
}

/* The same by all threads of the context. */
void sh_activation_backward(const shoal_context *context, activation kind, int64_t count,
                            const float *x, const float *dy, float *dx);

/* ---- Dropout -------------------------------------------------------------------------
 * The mask is a pure function of (seed, step, site, element): nothing is stored, backward
 * computes it again. What is kept is multiplied by 1 / (1 - rate). */

typedef struct {
    float rate; /* 0 .. 1: 0 does nothing; resolution 1/65536 */
    uint64_t seed;
    uint64_t step; /* of the training */
    uint64_t site; /* which dropout of the model */
    int64_t first; /* number of row 0: the share of a batch counts as the batch does */
} dropout_mask;

/* Elements of a row that get their factors together. */
enum { DROPOUT_PIECE = 256 };

/* factors[i] = 0 or 1 / (1 - rate) for elements left .. left + count - 1 of row `row`. */
void sh_dropout_factors(const dropout_mask *mask, int64_t row, int64_t left,
                        int64_t count, float *factors);

/* x[i] times their factors, in the calling thread; nothing where the rate is 0. */
void sh_dropout_row(const shoal_context *context, const dropout_mask *mask, int64_t row,
                    int64_t left, int64_t count, float *x);

/* y = x times the mask; [rows][size], y may be x. Forward and backward are the same. */
void sh_dropout_apply(const shoal_context *context, const dropout_mask *mask,
                      int64_t rows, int64_t size, const float *x, float *y);

/* ---- Layer norm, row by row: y = scale (x - mean) / sqrt(variance + epsilon) + shift */

typedef struct {
    int64_t size;
    nn_tensor scale, shift; /* [size] each */
    float epsilon;
} layer_norm;

/* x, y: [rows][size], which may be the same. statistics [rows][2], mean and 1/deviation,
   is what backward needs; NULL: not wanted. */
void sh_norm_forward(const shoal_context *context, const layer_norm *norm, int64_t rows,
                     const float *x, float *y, float *statistics);

/* Floats of scratch that a backward needs. */
int64_t sh_norm_scratch(int64_t size, int64_t rows);

/* dx = (base + ) the gradient at x; dx may be dy or base. base [rows][size] or NULL. Adds
   to the gradients of scale and shift. */
void sh_norm_backward(const shoal_context *context, const layer_norm *norm, int64_t rows,
                      const float *x, const float *statistics, const float *dy,
                      const float *base, float *dx, float *scratch);

/* ---- From tokens to rows, and positions ------------------------------------------- */

/* out[row] = factor table[tokens[row]]; tokens [rows], each in 0 .. vocabulary - 1 (the
   caller has checked), table [vocabulary][size] float, out [rows][size]. */
void sh_embedding_forward(const shoal_context *context, int64_t rows, int64_t size,
                          const int32_t *tokens, const float *table, float factor,
                          float *out);
/* out[row] += table[tokens[row]]; tokens NULL: all 0. */
void sh_embedding_add(const shoal_context *context, int64_t rows, int64_t size,
                      const int32_t *tokens, const float *table, float *out);
/* gradient[tokens[row]] += factor dout[row], rows in order; tokens NULL: all 0. */
void sh_embedding_backward(const shoal_context *context, int64_t rows, int64_t size,
                           const int32_t *tokens, const float *dout, float factor,
                           float *gradient);

/* Fixed positions of the original transformer, sine and cosine side by side:
       table[p][2 i]     = sin(p / 10000^(2 i / size))
       table[p][2 i + 1] = cos(p / 10000^(2 i / size))
   table: [length][size]. */
void sh_sinusoidal_positions(int64_t length, int64_t size, float *table);

/* x[row] += table[position of the row in its sequence]; table [longest][size]. */
SHOAL_PRIVATE void sh_positions_forward(const shoal_context *context,
                                        const packing *sequences, int64_t size,
                                        const float *table, float *x);
/* gradient[position] += dout[row], sequences in order. longest: of this batch. */
void sh_positions_backward(const shoal_context *context, const packing *sequences,
                           int64_t size, int64_t longest, const float *dout,
                           float *gradient);

/* ---- Convolution over time -----------------------------------------------------------
 * Kernel 3, stride 1 or 2, padding 1, of one sequence in time-major rows, and an
 * activation after it:
 *
 *     out[t][o] = bias[o] + sum over j, i of weight[j][o][i] x[stride t + j - 1][i]
 *
 * with rows outside the sequence taken as 0. */

enum { CONV_TAPS = 3 };

typedef struct {
    int64_t inputs, outputs;
    int stride;       /* 1 or 2 */
    nn_tensor weight; /* float [CONV_TAPS][outputs][inputs]: conv_arrange makes it */
    nn_tensor bias;   /* [outputs] */
    bool active;      /* the activation follows */
    activation kind;
} conv1d;

/* Rows of the output of `length` rows: length for stride 1, half of it rounded up for 2.
   */
int64_t sh_conv_length(const conv1d *layer, int64_t length);

/* From the order of model files, [outputs][inputs][CONV_TAPS] float or half, to ours. */
SHOAL_PRIVATE void sh_conv_arrange(int64_t inputs, int64_t outputs, const void *weight,
                                   bool half, float *arranged);

/* x [length][inputs]; out [conv_length][outputs]. before [conv_length][outputs], the sums
   before the activation, is what backward needs; NULL: not wanted. */
SHOAL_PRIVATE void sh_conv_forward(const shoal_context *context, const conv1d *layer,
                                   int64_t length, const float *x, float *before,
                                   float *out);

/* Adds to the gradients of weight and bias. dout [conv_length][outputs] is overwritten by
   the gradient before the activation; dx [length][inputs] is overwritten, or NULL. */
void sh_conv_backward(const shoal_context *context, const conv1d *layer, int64_t length,
                      const float *x, const float *before, float *dout, float *dx);

#endif
