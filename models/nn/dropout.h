/* Dropout whose mask is a pure function of (seed, step, site, element): nothing is
   stored, backward computes it again. What is kept is multiplied by 1 / (1 - rate). */
#ifndef SHOAL_MODELS_NN_DROPOUT_H
#define SHOAL_MODELS_NN_DROPOUT_H

#include "models/nn/crew.h"

typedef struct {
    float rate; /* 0 .. 1: 0 does nothing; resolution 1/65536 */
    uint64_t seed;
    uint64_t step; /* of the training */
    uint64_t site; /* which dropout of the model */
} dropout;

/* factors[i] = 0 or 1 / (1 - rate) for elements left .. left + count - 1 of row `row`. */
void sh_dropout_factors(const dropout *mask, int64_t row, int64_t left, int64_t count,
                        float *factors);

/* y = x times the mask; [rows][size], y may be x. Forward and backward are the same. */
void sh_dropout_apply(const crew *by, const dropout *mask, int64_t rows, int64_t size,
                      const float *x, float *y);

#endif
