/* What stands between the two products of a feed-forward. */
#ifndef SHOAL_MODELS_NN_ACTIVATION_H
#define SHOAL_MODELS_NN_ACTIVATION_H

#include "base/export.h"
#include "models/nn/crew.h"

typedef enum {
    ACTIVATION_GELU, /* x Phi(x), exact: Phi by erf, not by tanh */
    ACTIVATION_RELU
} activation;

/* out[i] = f(x[i]); out may be x. */
SHOAL_PRIVATE void sh_activation_forward(const crew *by, activation kind, int64_t count,
                                         const float *x, float *out);
/* dx[i] = dy[i] f'(x[i]); dx may be dy. */
void sh_activation_backward(const crew *by, activation kind, int64_t count,
                            const float *x, const float *dy, float *dx);

#endif
