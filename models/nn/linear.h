/* y = x W' + b, alone or with what follows it done while the block is in cache. */
#ifndef SHOAL_MODELS_NN_LINEAR_H
#define SHOAL_MODELS_NN_LINEAR_H

#include "base/export.h"
#include "models/nn/matmul.h"

typedef struct {
    int64_t inputs, outputs;
    nn_tensor weight; /* [outputs][inputs] */
    nn_tensor bias;   /* [outputs]; data NULL: none */
} linear;

/* Floats of scratch that a forward with `rows` rows needs: a copy of a half weight, or 0.
   */
SHOAL_PRIVATE int64_t sh_linear_scratch(const linear *layer, int64_t rows);

/* y [rows][outputs]; scratch [linear_scratch] (NULL where that is 0). Up to FEW_ROWS rows
   read a half weight directly. */
SHOAL_PRIVATE void sh_linear_forward(const crew *by, const linear *layer, int64_t rows,
                                     const_matrix x, matrix y, float *scratch);

/* The same without the bias and with an epilogue, which may add it. */
void sh_linear_forward_then(const crew *by, const linear *layer, int64_t rows,
                            const_matrix x, matrix y, epilogue then, float *scratch);

/* Adds to the gradients of weight and bias; dx [rows][inputs] is overwritten, unless its
   data is NULL. Float weights only. */
void sh_linear_backward(const crew *by, const linear *layer, int64_t rows, const_matrix x,
                        const_matrix dy, matrix dx);

#endif
