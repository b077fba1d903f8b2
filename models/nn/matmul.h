/* Products on OpenBLAS. A product is cut into blocks by its sizes alone; each block is
 * one single-threaded call inside a task, so threads change nothing in the result.
 *
 *     forward     y[rows][outputs]  = x W'       x [rows][inputs], W [outputs][inputs]
 *     data        dx[rows][inputs]  = dy W       dy [rows][outputs]
 *     weights     dW[outputs][inputs] += dy' x
 *
 * Strides are in elements, from row to row. */
#ifndef SHOAL_MODELS_NN_MATMUL_H
#define SHOAL_MODELS_NN_MATMUL_H

#include "base/export.h"
#include "models/nn/crew.h"

typedef struct {
    float *data;
    int64_t stride;
} matrix;

typedef struct {
    const float *data;
    int64_t stride;
} const_matrix;

/* Called on a block of the result while it is in cache: rows first .. first + count - 1,
   columns left .. left + width - 1 of the whole matrix. NULL run: nothing. */
typedef struct {
    void (*run)(const void *shared, const crew *by, int64_t first, int64_t count,
                int64_t left, int64_t width);
    const void *shared;
    bool whole_rows; /* a block must hold whole rows (a norm follows) */
} epilogue;

/* y = x W' (onto: added to y instead). W is float. */
void sh_matmul_forward(const crew *by, int64_t rows, int64_t inputs, int64_t outputs,
                       const_matrix x, const_matrix w, bool onto, matrix y,
                       epilogue then);

/* dx = dy W (onto: added to dx). */
void sh_matmul_data(const crew *by, int64_t rows, int64_t inputs, int64_t outputs,
                    const_matrix dy, const_matrix w, bool onto, matrix dx, epilogue then);

/* dW += dy' x; bias_gradient [outputs] += the sums of dy's columns, unless it is NULL. */
void sh_matmul_weights(const crew *by, int64_t rows, int64_t inputs, int64_t outputs,
                       const_matrix dy, const_matrix x, matrix dw, float *bias_gradient);

/* For few rows (a decoder's step): y = x W' with W read where it lies, half or float. */
enum { FEW_ROWS = 8 };
SHOAL_PRIVATE void sh_matmul_few(const crew *by, int64_t rows, int64_t inputs,
                                 int64_t outputs, const_matrix x, const void *w,
                                 bool half, const float *bias, matrix y);

/* out[count] = the floats of `count` halves, in tasks. */
void sh_widen_halves(const crew *by, int64_t count, const uint16_t *halves, float *out);

#endif
