/* Products of float matrices.
 *
 *     forward     y[rows][outputs]  = x W'       x [rows][inputs], W [outputs][inputs]
 *     data        dx[rows][inputs]  = dy W       dy [rows][outputs]
 *     weights     dW[outputs][inputs] += dy' x
 *
 * An element of a result is the sum of blocks of PRODUCT_DEPTH products, in order, each
 * block summed in order by fused multiply-add: neither threads nor tiles nor the
 * instruction set change its bits. Strides are in elements, from row to row. */
#ifndef SHOAL_MODELS_NN_PRODUCTS_H
#define SHOAL_MODELS_NN_PRODUCTS_H

#include <stdbool.h>

#include "base/context.h"
#include "models/kernels/kernels.h"

enum { PRODUCT_DEPTH = 384 };

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
    void (*run)(const void *shared, const shoal_context *context, int64_t first,
                int64_t count, int64_t left, int64_t width);
    const void *shared;
    bool whole_rows; /* a block must hold whole rows (a norm follows) */
} epilogue;

/* Room for packed factors, one per thread, that all products of a context share: whoever
   creates something that multiplies holds it, and drops it in the end. */
shoal_status sh_products_hold(shoal_context *context);
void sh_products_drop(shoal_context *context);

/* y = x W'. */
void sh_matmul_forward(const shoal_context *context, int64_t rows, int64_t inputs,
                       int64_t outputs, const_matrix x, const_matrix w, bool onto,
                       matrix y, epilogue then);

/* dx = dy W. */
void sh_matmul_data(const shoal_context *context, int64_t rows, int64_t inputs,
                    int64_t outputs, const_matrix dy, const_matrix w, bool onto,
                    matrix dx, epilogue then);

/* dW += dy' x; bias_gradient [outputs] += the sums of dy's columns, unless it is NULL. */
void sh_matmul_weights(const shoal_context *context, int64_t rows, int64_t inputs,
                       int64_t outputs, const_matrix dy, const_matrix x, matrix dw,
                       float *bias_gradient);

/* The length of equal blocks of at most `most`, in a number that is a multiple of `even`
   (so that two or four threads finish together), rounded up to a multiple of `grain`. */
int64_t sh_even_blocks(int64_t count, int64_t most, int64_t even, int64_t grain);

#endif
