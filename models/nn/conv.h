/* Convolution over time, kernel 3, stride 1 or 2, padding 1, of one sequence in
 * time-major rows, and an activation after it.
 *
 *     out[t][o] = bias[o] + sum over j, i of weight[j][o][i] x[stride t + j - 1][i]
 *
 * with rows outside the sequence taken as 0. */
#ifndef SHOAL_MODELS_NN_CONV_H
#define SHOAL_MODELS_NN_CONV_H

#include "base/export.h"
#include "models/nn/activation.h"
#include "models/nn/matmul.h"

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
SHOAL_PRIVATE void sh_conv_forward(const crew *by, const conv1d *layer, int64_t length,
                                   const float *x, float *before, float *out);

/* Adds to the gradients of weight and bias. dout [conv_length][outputs] is overwritten by
   the gradient before the activation; dx [length][inputs] is overwritten, or NULL. */
void sh_conv_backward(const crew *by, const conv1d *layer, int64_t length, const float *x,
                      const float *before, float *dout, float *dx);

#endif
