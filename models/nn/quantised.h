/* Linear layers of bytes, for inference. A weight is a byte times a scale per output; the
 * rows that it is multiplied with are quantised at run time, each with its own scale and
 * zero point. The sums are exact integers: a row's result does not depend on the rows
 * beside it, the threads or the instruction set.
 *
 * Each input has a factor: rows are multiplied by it and weights divided. It is the
 * square root of the root mean square of the input's weights, so inputs that count for
 * much are quantised more finely. It is known without data.
 *
 * docs/notebook/precision.md has the alternatives and their errors. */
#ifndef SHOAL_MODELS_NN_QUANTISED_H
#define SHOAL_MODELS_NN_QUANTISED_H

#include "models/kernels/kernels.h"
#include "models/nn/layers.h"

/* Inputs that a matrix may have: sums must fit 32 bits. */
enum { INT8_INPUTS_LEAST = 32, INT8_INPUTS_MOST = 65536 };
/* Rows that are not cut into tasks; outputs are. */
enum { INT8_FEW_ROWS = 2 * PACKED_ROWS };

/* Bytes of a block of PACKED_OUTPUTS outputs, and of a matrix. */
int64_t sh_int8_block(int64_t inputs);
SHOAL_PRIVATE int64_t sh_int8_bytes(int64_t inputs, int64_t outputs);

/* A matrix that is to be converted, row by row: row(shared, output) is [inputs], valid
   until the next call; NULL where it cannot be read. */
typedef struct {
    int64_t inputs, outputs;
    const float *(*row)(void *shared, int64_t output);
    void *shared;
} int8_source;

typedef enum {
    INT8_FINE,
    INT8_UNREADABLE, /* a row was NULL */
    INT8_NOT_FINITE, /* NaN or infinity: nothing could stand for it */
    INT8_OUTLIER /* one weight is so large that others of its row would all but vanish */
} int8_verdict;
SHOAL_PRIVATE int8_verdict sh_int8_judge(const int8_source *from);

/* Of a matrix that is INT8_FINE. factors: [inputs]; squares: scratch, [inputs]; blocks:
   [sh_int8_bytes]. false: a row could not be read. */
SHOAL_PRIVATE bool sh_int8_convert(const int8_source *from, double *squares,
                                   float *factors, void *blocks);
/* Row `output` as floats [inputs]. */
void sh_int8_get(int64_t inputs, const void *blocks, int64_t output, const float *factors,
                 float *row);

/* Bytes from one quantised row to the next. */
static inline int64_t int8_stride(int64_t inputs) {
    /* An odd number of lines: rows of 4096 bytes would all fall into one set of the
       cache. */
    return (ceil_divide(inputs, 64) | 1) * 64;
}

/* The product of some rows with a block: the quickest that the context has. */
int8_product_kernel *sh_int8_product(const shoal_context *context);

/* Floats of scratch for layers with at most `inputs` inputs, and for feed-forwards with
   at most `hidden` hidden units, 0 if there are none. */
int64_t sh_int8_scratch(const shoal_context *context, int64_t inputs, int64_t hidden);

/* What sh_linear_forward_then does for a weight of bytes. */
void sh_int8_forward(const shoal_context *context, const linear *layer, int64_t rows,
                     const_matrix x, matrix y, epilogue then, float *scratch);

/* y = narrow(f(widen(x))) without narrow's bias, both weights bytes; a row's hidden
   numbers stay with the thread that made them. gated: f(a) b, a and b the halves of
   widen's outputs. y may be x. */
typedef struct {
    const linear *widen, *narrow;
    activation kind;
    bool gated;
} int8_branch;
void sh_int8_feed_forward(const shoal_context *context, const int8_branch *branch,
                          int64_t rows, const_matrix x, matrix y, epilogue then,
                          float *scratch);

#endif
