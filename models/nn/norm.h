/* Layer norm: y = scale (x - mean) / sqrt(variance + epsilon) + shift, row by row. */
#ifndef SHOAL_MODELS_NN_NORM_H
#define SHOAL_MODELS_NN_NORM_H

#include "base/export.h"
#include "models/nn/crew.h"

typedef struct {
    int64_t size;
    nn_tensor scale, shift; /* [size] each */
    float epsilon;
} layer_norm;

/* x, y: [rows][size], which may be the same. statistics [rows][2], mean and 1/deviation,
   is what backward needs; NULL: not wanted. */
SHOAL_PRIVATE void sh_norm_forward(const crew *by, const layer_norm *norm, int64_t rows,
                                   const float *x, float *y, float *statistics);

/* Floats of scratch that a backward needs. */
int64_t sh_norm_scratch(const layer_norm *norm, int64_t rows);

/* dx = (base + ) the gradient at x; dx may be dy or base. base [rows][size] or NULL. Adds
   to the gradients of scale and shift. */
void sh_norm_backward(const crew *by, const layer_norm *norm, int64_t rows,
                      const float *x, const float *statistics, const float *dy,
                      const float *base, float *dx, float *scratch);

#endif
