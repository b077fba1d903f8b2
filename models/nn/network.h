/* A whole model: tokens or features in, positions, encoder, output head, loss. Parameters
 * are an arena beside it, so that one model can be run by several networks (another kind
 * of attention, another batch size, with or without training).
 *
 *     sh_parameters_create(context, network_describe, &shape, true, &arena);
 *     sh_parameters_start(arena, seed);
 *     sh_network_create(context, &shape, &limits, arena, &net);
 *     each step:
 *         sh_parameters_clear_gradients(...);
 *         sh_network_forward(net, &batch);
 *         sh_network_loss(net, &batch, targets, false, &result); // and its gradient
 *         sh_network_backward(net, &batch);                     // adds to the gradients
 *         sh_gradients_clip(...); sh_optimizer_step(...);          // nn/optimizer.h
 */
#ifndef SHOAL_MODELS_NN_NETWORK_H
#define SHOAL_MODELS_NN_NETWORK_H

#include "models/nn/encoder.h"
#include "models/nn/loss.h"

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
    float
        embedding_scale; /* embeddings are multiplied by it; 0: sqrt(M) as in the original
                              transformer: they begin with deviation 1/sqrt(M), so that
                              their sum with the sinusoids has two parts of a size */
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
    const int32_t *tokens;  /* [rows] */
    const float *features;  /* [rows][features] */
    const int32_t *targets; /* [rows], or NULL. Where it is IGNORED_TARGET nobody looks at
                               the logits of the row, and in a head of positions without
                               dropout they are not computed */
    encoder_moment moment;
} network_batch;

/* Refuses tokens and lengths that are out of range before anything is computed. */
shoal_status sh_network_forward(network *net, const network_batch *batch);

/* Rows of logits of the last forward: rows of the batch, those among them that have a
   target, or its sequences. logits [count][outputs], valid until network_loss with
   gradient, which overwrites them. */
int64_t sh_network_logit_rows(const network *net, const network_batch *batch);
const float *sh_network_logits(const network *net);

/* targets: one per row of the batch, or per sequence. In a training network the gradient is left for backward
   unless only_look is set, which keeps the logits. */
shoal_status sh_network_loss(network *net, const network_batch *batch,
                             const int32_t *targets, bool only_look, loss_result *result);

/* Instead of network_loss, for losses of the caller's own: gradient [logit
   rows][outputs], to be filled before backward. It is where the logits lie. */
float *sh_network_logit_gradient(network *net);

/* After forward and loss. Adds to the arena's gradients. */
shoal_status sh_network_backward(network *net, const network_batch *batch);

const encoder *sh_network_encoder(const network *net);

#endif
