/* Inside of the encoder: what it keeps, and its parts that forward and backward share.
 *
 * One layer's activations, in the order they come to be (R rows, M model, F forward):
 *
 *                     pre-norm                        post-norm
 *     stream          what the layer is given (the layer before it keeps it)
 *     attention_in    norm(stream)                    stream itself
 *     projected       queries, keys and values, [R][3 M], or [R][2 M] without keys
 *     attended        what the attention gives
 *     middle          stream + attention              stream + attention
 *     forward_in      norm(middle)                    norm(middle)
 *     hidden          before the activation, [R][F]
 *     sum             middle + forward                forward_in + forward
 *     out             sum itself                      norm(sum)
 *
 * For training every layer has its own; for inference all layers share one set, in which
 * arrays that are not needed at the same time are one. */
#ifndef SHOAL_MODELS_NN_ENCODER_LAYOUT_H
#define SHOAL_MODELS_NN_ENCODER_LAYOUT_H

#include "base/memory.h"
#include "models/nn/dropout.h"
#include "models/nn/encoder.h"
#include "models/nn/linear.h"
#include "models/nn/norm.h"

typedef struct {
    float *attention_in, *projected, *attended, *middle, *forward_in, *hidden, *sum, *out;
    float *attention_statistics, *forward_statistics; /* [R][2] each, of the two norms */
    void *state; /* the attention's; NULL in inference: the plan's own */
} layer_memory;

struct encoder {
    shoal_context *context;
    crew by;
    encoder_shape shape;
    encoder_limits limits;
    int64_t model, width; /* M; columns of projected */
    shoal_plan *plan;
    size_t bytes;         /* of this object's own block */
    int64_t *offsets;     /* [limits.batch + 1], what the attention is given */
    const int32_t *asked; /* [asked_count], rows whose output is asked for; NULL: all */
    int64_t asked_count;
    layer_memory *layers; /* [layers] */
    float *finished;      /* [R][M], after the final norm */
    float *final_statistics;
    float *activated; /* [R][F], f(hidden) of the layer at work */
    float *scratch;   /* a half weight as floats */
    /* Training only: gradients of the layer at work. */
    float *grad_hidden;    /* [R][F] */
    float *grad_projected; /* like projected */
    float *grad_keys;      /* like projected, where keys share the queries' projection */
    float *grad_rows;      /* [R][M] */
    float *grad_dropped;   /* [R][M], gradient behind a dropout */
    float *norm_parts;
};

/* The linear layers and norms of one layer's weights. */
layer_norm sh_attention_norm(const encoder *stack, const encoder_layer *weights);
layer_norm sh_forward_norm(const encoder *stack, const encoder_layer *weights);
layer_norm sh_final_norm(const encoder *stack, const encoder_weights *weights);
linear sh_output_linear(const encoder *stack, const encoder_layer *weights);
linear sh_widen_linear(const encoder *stack, const encoder_layer *weights);
linear sh_narrow_linear(const encoder *stack, const encoder_layer *weights);

/* The projections as few linear layers as the weights' places allow: *count of them, part
   i giving the columns from columns[i]. */
enum { PROJECTIONS = 3 };
typedef struct {
    int count;
    linear parts[PROJECTIONS];
    int64_t columns[PROJECTIONS];
} projections;
projections sh_projections_of(const encoder *stack, const encoder_layer *weights);

/* Which dropout of the model: three per layer, behind the network's own at 0. */
enum { SITE_ATTENTION, SITE_ACTIVATION, SITE_FORWARD, SITES };
dropout sh_dropout_at(const encoder *stack, encoder_moment moment, int64_t layer,
                      int site);

/* What the attention is given: q, k and v inside projected. */
shoal_inputs sh_attention_inputs(const encoder *stack, const layer_memory *layer);
/* Whether the layer goes on with fewer rows behind its attention; how many it has there;
   and where their attended rows are kept, [asked_count][M], from forward until the output
   product's way back: nothing else needs the place in between. */
bool sh_layer_is_asked(const encoder *stack, int64_t layer);
int64_t sh_asked_rows(const encoder *stack, int64_t layer, int64_t rows);
float *sh_asked_attended(const encoder *stack, int64_t layer);
bool sh_keys_are_queries(const encoder_shape *shape);
bool sh_ends_in_norm(const encoder_shape *shape);

place_function sh_encoder_place; /* of an encoder */

#endif
