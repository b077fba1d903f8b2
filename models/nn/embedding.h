/* From tokens to rows, and positions. */
#ifndef SHOAL_MODELS_NN_EMBEDDING_H
#define SHOAL_MODELS_NN_EMBEDDING_H

#include "base/export.h"
#include "models/nn/crew.h"

/* Fixed positions of the original transformer, sine and cosine side by side:
       table[p][2 i]     = sin(p / 10000^(2 i / size))
       table[p][2 i + 1] = cos(p / 10000^(2 i / size))
   table: [length][size]. */
void sh_sinusoidal_positions(int64_t length, int64_t size, float *table);

/* One batch of sequences: sequence b has rows offsets[b] .. offsets[b + 1] - 1, and
   offsets[0] is 0. */
typedef struct {
    int64_t batch;
    const int64_t *offsets; /* [batch + 1] */
} packing;

static inline int64_t packing_rows(const packing *sequences) {
    return sequences->batch ? sequences->offsets[sequences->batch] : 0;
}

/* The sequence that a row belongs to, by bisection. */
int64_t sh_packing_sequence(const packing *sequences, int64_t row);

/* out[row] = factor table[tokens[row]]; tokens [rows], each in 0 .. vocabulary - 1 (the
   caller has checked), table [vocabulary][size] float, out [rows][size]. */
void sh_embedding_forward(const crew *by, int64_t rows, int64_t size,
                          const int32_t *tokens, const float *table, float factor,
                          float *out);
/* gradient[tokens[row]] += factor dout[row], rows in order. */
void sh_embedding_backward(const crew *by, int64_t rows, int64_t size,
                           const int32_t *tokens, const float *dout, float factor,
                           float *gradient);

/* x[row] += table[position of the row in its sequence]; table [longest][size]. */
SHOAL_PRIVATE void sh_positions_forward(const crew *by, const packing *sequences,
                                        int64_t size, const float *table, float *x);
/* gradient[position] += dout[row], sequences in order. longest: of this batch. */
void sh_positions_backward(const crew *by, const packing *sequences, int64_t size,
                           int64_t longest, const float *dout, float *gradient);

#endif
