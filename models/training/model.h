/* The inside of models and optimizers. */
#ifndef SHOAL_MODELS_TRAINING_MODEL_H
#define SHOAL_MODELS_TRAINING_MODEL_H

#include "models/nn/network.h"
#include "shoal_models.h"

/* A configuration, its parameters and the network (or the bare layers) that runs them. */
struct shoal_model {
    shoal_context *context;
    shoal_model_config config;
    uint64_t seed; /* of the first values and of dropout */
    encoder_limits limits;
    const shoal_model *owner; /* of the parameters; NULL: they are the model's own */
    parameters *arena;
    network *net;            /* NULL: layers alone */
    encoder *stack;          /* NULL: network */
    encoder_weights weights; /* of layers alone; its list lies behind this structure */
    float *out;              /* what the last forward gave */
    int64_t out_rows;        /* how many of them; -1: there was none, or it failed */
    size_t bytes;            /* of this structure and the list */
};

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
