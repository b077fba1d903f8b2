/* A model: a configuration, its parameters and the network (or the bare layers) that runs
   them. */
#ifndef SHOAL_MODELS_TRAINING_MODEL_H
#define SHOAL_MODELS_TRAINING_MODEL_H

#include "models/nn/network.h"
#include "shoal_models.h"

struct shoal_model {
    shoal_context *context;
    network_shape shape; /* of bare layers only the encoder's part */
    encoder_limits limits;
    uint64_t seed; /* of the first values and of dropout */
    parameters *arena;
    network *net;            /* NULL: bare layers */
    encoder *stack;          /* NULL: network */
    encoder_weights weights; /* of bare layers; its list lies behind this structure */
    int64_t rows;            /* of the last forward; -1: there was none, or it failed */
    size_t own_bytes;
};

/* The layers' shape with another kind of attention, for weights that were made for this
   one: refused where the kind has no use for the projections that there are. */
shoal_status sh_model_other_kind(const shoal_model *model,
                                 const shoal_attention *attention, network_shape *shape);

#endif
