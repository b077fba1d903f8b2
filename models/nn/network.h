/* A whole model: tokens or features in, positions, encoder, output head. Parameters
 * are an arena beside it, so that one model can be run by several networks (another kind
 * of attention, another batch size, with or without training).
 *
 *     sh_parameters_create(context, network_describe, &shape, true, &arena);
 *     sh_parameters_start(arena, seed);
 *     sh_network_create(context, &shape, &limits, arena, &net);
 *     each step:
 *         sh_parameters_clear_gradients(...);
 *         sh_network_forward(net, &batch);
 *         // sh_network_logits(net) become the loss's gradient, in place
 *         sh_network_backward(net, &batch);       // adds to the gradients
 */
#ifndef SHOAL_MODELS_NN_NETWORK_H
#define SHOAL_MODELS_NN_NETWORK_H

#include "models/nn/encoder.h"

typedef enum {
    INPUT_TOKENS,  /* "embedding.weight" [vocabulary][M] */
    INPUT_FEATURES /* "input.weight" [M][features], "input.bias" [M] */
} network_input;

typedef enum {
    POSITIONS_SINUSOIDAL,
    POSITIONS_LEARNED, /* "positions.weight" [max_length][M] */
    POSITIONS_NONE
} network_positions;

typedef enum {
    HEAD_POSITIONS, /* logits for every row */
    HEAD_MEAN,      /* logits for every sequence, from the mean of its rows */
    HEAD_FIRST      /* logits for every sequence, from its first row */
} network_head;

typedef struct {
    encoder_shape encoder;
    network_input input;
    int64_t vocabulary; /* of tokens */
    int64_t features;
    /* Embeddings are multiplied by it; 0: sqrt(M) as in the original transformer: they
       begin with deviation 1/sqrt(M), so that they and the sinusoids that are added to
       them are about as large. */
    float embedding_scale;
    network_positions positions;
    int64_t max_length; /* of a sequence; learned positions have so many rows */
    network_head head;  /* "output.weight" [outputs][M], "output.bias" [outputs] */
    int64_t outputs;    /* classes */
} network_shape;

/* Says in the message what is wrong with a shape. */
shoal_status sh_network_check(shoal_context *context, const network_shape *shape);
/* A describe_function: model is a network_shape. */
void sh_network_describe(parameters *into, const void *shape);

typedef struct network network;

/* limits.half_weights is not used. The arena stays the caller's and must outlive the
   network; training needs one with gradients. */
shoal_status sh_network_create(shoal_context *context, const network_shape *shape,
                               const encoder_limits *limits, const parameters *arena,
                               network **made);
void sh_network_destroy(network *net); /* NULL is legal */
size_t sh_network_memory(const network *net);

typedef struct {
    packing sequences;
    const int32_t *tokens; /* [rows] */
    const float *features; /* [rows][features] */
    row_subset wanted;     /* rows that have logits: all, or some of a head of positions
                              without dropout */
    dropout_key random;
} network_batch;

/* Refuses tokens and lengths that are out of range before anything is computed. */
shoal_status sh_network_forward(network *net, const network_batch *batch);

/* Rows of logits: those of the batch, the wanted ones, or its sequences. logits
   [count][outputs]: what the last forward gave; the caller puts the gradient of the loss in
   their place before backward. */
int64_t sh_network_logit_rows(const network *net, const network_batch *batch);
float *sh_network_logits(const network *net);

/* After forward of the same. Adds to the arena's gradients. */
shoal_status sh_network_backward(network *net, const network_batch *batch);

const encoder *sh_network_encoder(const network *net);

#endif
