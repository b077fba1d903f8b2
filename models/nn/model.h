/* The inside of models and optimizers. */
#ifndef SHOAL_MODELS_NN_MODEL_H
#define SHOAL_MODELS_NN_MODEL_H

#include "base/memory.h"
#include "models/nn/encoder.h"
#include "shoal_models.h"

/* What BERT and RoBERTa have around their layers (frame.c). */
typedef struct {
    nn_tensor types;      /* "types.weight" [types][M] */
    layer_norm norm;      /* "input_norm.scale", "input_norm.shift" [M] */
    linear head;          /* "head.weight" [M][M], "head.bias" [M] */
    float *summed;        /* [R][M], before the norm; in inference x itself */
    float *statistics;    /* [R][2], training only */
    float *norm_parts;    /* training only */
    int32_t *firsts;      /* [batch]: the row that a sequence begins with */
    const float *head_in; /* [batch][M], what the head was given, */
    float *head_dropped;  /* or that after dropout */
    float *head_out;      /* [batch][M], tanh of the head's product */
    float *output_in;     /* [batch][M], that after dropout */
    float *head_gradient; /* [batch][M] */
} text_frame;

/* A convolution with its norm in front, and what its backward needs of a forward (stem.c;
   P: rows with gaps). */
typedef struct {
    layer_norm norm;   /* "stem.0.norm.scale", "stem.0.norm.shift" [M] */
    conv1d conv;       /* "stem.0.weight" [CONV_TAPS][M][M], "stem.0.bias" [M] */
    float *x;          /* [P][M], what it is given */
    float *statistics; /* [P][2], training only */
    float *normed;     /* [P][M] */
    float *sums;       /* [P][M], before the activation; training only */
} stem_block;

typedef struct {
    stem_block *blocks; /* [convolutions] */
    float *made;        /* [P][M], what a block adds to x */
    float *gradient;    /* [P][M] at x, and inside a block; training only */
    float *inner;
    float *norm_parts;
} conv_stem;

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
    text_frame frame;
    conv_stem stem;
    float *x;                        /* [R][M], what the encoder is given */
    float *pooled, *pooled_gradient; /* [batch][M] */
    float *logits;                   /* [R or batch][outputs] */
    float *gradient;                 /* [R][M], training only */
    const float *encoded;            /* [R][M], what the encoder gave */
    const float *output_in;          /* what the output's product was given */
    float *out;                      /* what the last forward gave */
    shoal_gradient_callback watcher; /* told of gradients that are there; may be NULL */
    void *watcher_shared;
    int64_t untold;   /* how many gradients, from the first on, it was not told of */
    int64_t out_rows; /* how many of them; -1: there was none, or it failed */
    size_t bytes;     /* of this structure and the arrays behind it */
};

/* M. */
static inline int64_t width_of(const shoal_model_config *config) {
    return config->heads * config->head_dim;
}

static inline activation activation_of(const shoal_model_config *config) {
    return config->activation == SHOAL_ACTIVATION_GELU ? ACTIVATION_GELU
                                                       : ACTIVATION_RELU;
}

/* A norm of the model around its layers; the names as by printf, without .scale. */
layer_norm sh_model_norm(const shoal_model *model, const char *name);

/* A dropout around the layers: site 0 is the input's, three follow for each layer, and
   those behind these are counted from `behind` = 0; -1: the input's. `first`: the number
   of the batch's first row. */
dropout_mask sh_model_dropout(const shoal_model *model, const shoal_model_inputs *inputs,
                              int64_t behind, int64_t first);

/* Whether the last layer goes on with sequences' first rows alone. */
bool sh_frame_narrows(const shoal_model_config *config);
shoal_status sh_frame_check(shoal_context *context, const shoal_model_config *config);
shoal_status sh_frame_check_inputs(const shoal_model *model,
                                   const shoal_model_inputs *inputs);
void sh_frame_describe(parameters *into, const shoal_model_config *config);
void sh_frame_bind(shoal_model *model);
void sh_frame_place(shoal_model *model, block_layout *block);
/* From the sum of tokens and positions, at frame.summed, to what the layers are given, at
   model->x; and from the gradient there, in place, to that at the sum. */
void sh_frame_input(shoal_model *model, const shoal_model_inputs *inputs);
void sh_frame_input_back(shoal_model *model, const shoal_model_inputs *inputs,
                         float *gradient);
/* Pooled rows [batch][M] through the head, and the gradient back, in place. Without a
   head they stay as they are. */
const float *sh_frame_head(shoal_model *model, const shoal_model_inputs *inputs,
                           const float *rows);
void sh_frame_head_back(shoal_model *model, const shoal_model_inputs *inputs,
                        float *gradient);

void sh_stem_describe(parameters *into, const shoal_model_config *config);
void sh_stem_bind(shoal_model *model);
void sh_stem_place(shoal_model *model, block_layout *block);
/* Rows [R][M], and the gradient back, in place. Without convolutions they stay as they
   are. */
void sh_stem_forward(shoal_model *model, const shoal_model_inputs *inputs, float *x);
void sh_stem_backward(shoal_model *model, const shoal_model_inputs *inputs,
                      float *gradient);

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
