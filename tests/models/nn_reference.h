/* A whole model in double precision by the plainest loops, forward only: gradients are
   compared with central differences of its loss. Attention is reference.c's, with the
   groups and top keys that the library used, since they are constants. */
#ifndef SHOAL_TESTS_NN_REFERENCE_H
#define SHOAL_TESTS_NN_REFERENCE_H

#include "models/nn/network.h"

typedef struct {
    const network_shape *shape;
    const parameters *arena; /* for names and offsets; the values are given apart */
    const network_batch *batch;
    const int32_t *targets;
    int64_t longest;       /* positions of a sequence that the network was made for */
    const network *source; /* whose groups and top keys are used; a training network */
} model_reference;

/* values: [arena->size]. logits [rows][outputs] unless NULL. */
double model_reference_loss(const model_reference *model, const double *values,
                            double *logits);

/* (loss(values + step) - loss(values - step)) / (2 step), one element moved. */
double model_reference_slope(const model_reference *model, double *values,
                             int64_t element);

#endif
