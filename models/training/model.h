/* The inside of models and optimizers. */
#ifndef SHOAL_MODELS_TRAINING_MODEL_H
#define SHOAL_MODELS_TRAINING_MODEL_H

#include "models/nn/encoder.h"
#include "shoal_models.h"

/* A configuration, its parameters and what runs them. R: rows of a batch, M: features of
   a row inside the model. Of layers alone everything around the encoder is absent. */
struct shoal_model {
    shoal_context *context;
    shoal_model_config config;
    uint64_t seed; /* of the first values and of dropout */
    encoder_limits limits;
    const shoal_model *owner; /* of the parameters; NULL: they are the model's own */
    parameters *arena;
    encoder *stack;
    encoder_weights weights;
    nn_tensor embedding; /* "embedding.weight" [vocabulary][M] */
    linear input;        /* "input.weight" [M][features], "input.bias" [M] */
    nn_tensor learned;   /* positions, "positions.weight" [max_length][M] */
    linear output;       /* "output.weight" [outputs][M], "output.bias" [outputs] */
    float *sinusoids;    /* [max_length][M] */
    float *x;            /* [R][M], what the encoder is given */
    float *pooled, *pooled_gradient; /* [batch][M] */
    float *logits;                   /* [R or batch][outputs] */
    float *gradient;                 /* [R][M], training only */
    const float *encoded;            /* [R][M], what the encoder gave */
    float *out;                      /* what the last forward gave */
    shoal_gradient_callback watcher; /* told of gradients that are there; may be NULL */
    void *watcher_shared;
    int64_t untold;   /* how many gradients, from the first on, it was not told of */
    int64_t out_rows; /* how many of them; -1: there was none, or it failed */
    size_t bytes;     /* of this structure and the arrays behind it */
};

/* The parameters that a model with this configuration has: names and shapes, no values.
   The caller destroys the list. */
shoal_status sh_model_list(shoal_context *context, const shoal_model_config *config,
                           parameters **list);

struct shoal_optimizer {
    shoal_model *model;
    shoal_optimizer_config config;
    float *first, *second; /* [arena size]: means of the gradient and of its square */
    float *averaged;  /* [arena size]: the averaged weights, or the others while those
                              are in use; NULL: none wanted */
    int64_t steps;    /* taken */
    int64_t averages; /* sets of weights in the average */
    bool using_average;
    size_t bytes;
};

#endif
