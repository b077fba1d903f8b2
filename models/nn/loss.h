/* Pooling of rows into sequences, and cross-entropy. */
#ifndef SHOAL_MODELS_NN_LOSS_H
#define SHOAL_MODELS_NN_LOSS_H

#include "models/nn/embedding.h"

typedef enum { POOL_MEAN, POOL_FIRST } pooling;

/* out [batch][size]: the mean of a sequence's rows, or its first row; 0 for an empty one.
   */
void sh_pool_forward(const crew *by, pooling how, const packing *sequences, int64_t size,
                     const float *x, float *out);
/* dx [rows][size] is overwritten. */
void sh_pool_backward(const crew *by, pooling how, const packing *sequences, int64_t size,
                      const float *dout, float *dx);

enum { IGNORED_TARGET = -1 };

typedef struct {
    double loss; /* mean of -log softmax(logits)[target] over what counts; 0 if nothing */
    int64_t counted; /* rows whose target is not IGNORED_TARGET */
    int64_t
        correct; /* of them, those whose largest logit (the first of equals) is right */
} loss_result;

/* logits [rows][classes]; targets [rows], each IGNORED_TARGET or 0 .. classes - 1 (the
   caller has checked). gradient [rows][classes], which may be logits: of the mean loss;
   NULL: not wanted. row_losses [rows] is scratch. */
loss_result sh_cross_entropy(const crew *by, int64_t rows, int64_t classes,
                             const float *logits, const int32_t *targets, float *gradient,
                             float *row_losses);

#endif
