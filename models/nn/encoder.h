/* The transformer encoder: a stack of layers, each self-attention of any kind and a
 * feed-forward, over packed sequences. One object for training (keeps what backward
 * needs) and for inference (keeps one layer's worth); weights are the caller's and may be
 * anywhere, for example in a mapped file.
 *
 *     pre-norm    x += attention(norm(x)); x += forward(norm(x)); at the end x = norm(x)
 *     post-norm   x = norm(x + attention(x)); x = norm(x + forward(x))
 *
 * R: rows of a batch, M: model size, F: feed-forward size. */
#ifndef SHOAL_MODELS_NN_ENCODER_H
#define SHOAL_MODELS_NN_ENCODER_H

#include "shoal_transport.h"

#include "base/export.h"
#include "models/nn/layers.h"
#include "models/nn/parameters.h"

typedef struct {
    int64_t layers, heads;
    int64_t head_dim;     /* model size M = heads * head_dim */
    int64_t feed_forward; /* F */
    shoal_attention attention;
    bool shared_qk; /* one projection for queries and keys; so for some kinds anyway */
    bool post_norm; /* otherwise pre-norm, whose stack ends in a norm of its own */
    activation activation;
    float dropout; /* after attention, after the activation and after the feed-forward */
    bool whole_inside; /* not after the activation */
    float epsilon;     /* of the norms; 0: 1e-5 */
} encoder_shape;

/* M. */
static inline int64_t encoder_model(const encoder_shape *shape) {
    return shape->heads * shape->head_dim;
}

/* Whether the attention takes its queries as keys. */
static inline bool encoder_keys_are_queries(const encoder_shape *shape) {
    const shoal_kind_info *kind = shoal_kind_describe((int)shape->attention.kind);
    return kind && kind->keys_are_queries;
}

/* Whether a layer has no projection of keys. */
static inline bool encoder_shares_keys(const encoder_shape *shape) {
    return shape->shared_qk || encoder_keys_are_queries(shape);
}

/* One layer's numbers. Any bias may be absent. Where query, key and value (or query and
   value, when the keys are shared) follow each other in memory, they are one product. */
typedef struct {
    nn_tensor query, key, value, output;                     /* [M][M] each */
    nn_tensor query_bias, key_bias, value_bias, output_bias; /* [M] */
    nn_tensor widen, narrow;                                 /* [F][M], [M][F] */
    nn_tensor widen_bias, narrow_bias;                       /* [F], [M] */
    nn_tensor attention_scale, attention_shift; /* [M], norm beside the attention */
    nn_tensor forward_scale, forward_shift;     /* [M], norm beside the feed-forward */
} encoder_layer;

typedef struct {
    encoder_layer *layers;              /* [layers] */
    nn_tensor final_scale, final_shift; /* [M], pre-norm only */
} encoder_weights;

/* For weights in an arena: describes them under "encoder." ("encoder.layers.0.attention.
   query.weight", ".attention.query.bias", key, value, output; "...feed_forward.widen",
   "narrow"; "...attention_norm.scale", ".shift", "forward_norm"; "encoder.final_norm"),
   and finds them again. layers: [shape->layers], filled here. */
void sh_encoder_describe(parameters *into, const encoder_shape *shape);
void sh_encoder_bind(const parameters *arena, const encoder_shape *shape,
                     encoder_layer *layers, encoder_weights *weights);

/* What one object can take. */
typedef struct {
    int64_t batch, rows, length; /* sequences; rows of all of them; rows of one */
    bool training;               /* backward will be asked for */
    bool half_weights;           /* some weights are halves (inference only) */
    bool bf16_weights;           /* all are bfloat16 pairs (inference only) */
    bool packed_weights;         /* all matrices are packed (inference only) */
    bool int8_weights;           /* some are bytes (inference only), */
    bool other_weights;          /* and some matrices of the feed-forwards are not */
    shoal_transport *over;       /* ranks that hold a run of each sequence; NULL: none */
} encoder_limits;

typedef struct encoder encoder;

/* Checks everything; two allocations (the attention's plan is one) and none afterwards.
   */
SHOAL_PRIVATE shoal_status sh_encoder_create(shoal_context *context,
                                             const encoder_shape *shape,
                                             const encoder_limits *limits,
                                             encoder **made);
SHOAL_PRIVATE void sh_encoder_destroy(encoder *stack);        /* NULL is legal */
SHOAL_PRIVATE size_t sh_encoder_memory(const encoder *stack); /* bytes, all told */

/* What dropout draws from: a mask is a function of it, the place in the model and the
   element. */
typedef struct {
    uint64_t seed, step;             /* of the training */
    bool dropout;                    /* false: none, as in validation */
    int64_t first_row, first_wanted; /* numbers of the first row, and of the first that
                                        is wanted, where others have those before */
} dropout_key;

/* Rows of a batch, increasing; rows NULL: all. */
typedef struct {
    const int32_t *rows; /* [count] */
    int64_t count;
} row_subset;

/* x: [R][M], which must stay as it is until backward. *out: [R][M] inside the object,
   valid until the next forward. Of a subset of the rows, *out is [count][M]: what the
   last layer does after its attention is done for these rows alone, and its dropout
   counts them. A subset needs a layer. */
SHOAL_PRIVATE shoal_status sh_encoder_forward(encoder *stack,
                                              const encoder_weights *weights,
                                              const packing *sequences, row_subset wanted,
                                              dropout_key random, const float *x,
                                              const float **out);

/* After forward of the same. gradient [R][M]: with respect to *out on entry (of a subset,
   the first [count][M] of it), with respect to x on return. Adds to the weights'
   gradients. */
shoal_status sh_encoder_backward(encoder *stack, const encoder_weights *weights,
                                 const packing *sequences, row_subset wanted,
                                 dropout_key random, const float *x, float *gradient);

/* Called by backward, in its thread, when all gradients of a layer are there. NULL: no
   longer. */
typedef void layer_callback(void *shared, int64_t layer);
void sh_encoder_watch(encoder *stack, layer_callback *callback, void *shared);

/* The attention's plan, and a layer's state in it (NULL in inference): for the groups and
   top keys that were used. */
const shoal_plan *sh_encoder_plan(const encoder *stack);
const void *sh_encoder_state(const encoder *stack, int64_t layer);

/* While errors is not NULL, forward writes the estimated relative error of each layer's
   attention to it, [layers], from `samples` queries. Not with dropout. */
SHOAL_PRIVATE void sh_encoder_measure(encoder *stack, int64_t samples, double *errors);

#endif
