#include "models/nn/encoder_layout.h"

#include <string.h>

static layer_norm norm_with(const encoder *stack, nn_tensor scale, nn_tensor shift) {
    return (layer_norm){stack->model, scale, shift, stack->shape.epsilon};
}

layer_norm sh_attention_norm(const encoder *stack, const encoder_layer *weights) {
    return norm_with(stack, weights->attention_scale, weights->attention_shift);
}

layer_norm sh_forward_norm(const encoder *stack, const encoder_layer *weights) {
    return norm_with(stack, weights->forward_scale, weights->forward_shift);
}

layer_norm sh_final_norm(const encoder *stack, const encoder_weights *weights) {
    return norm_with(stack, weights->final_scale, weights->final_shift);
}

linear sh_output_linear(const encoder *stack, const encoder_layer *weights) {
    return (linear){stack->model, stack->model, weights->output, weights->output_bias};
}

linear sh_widen_linear(const encoder *stack, const encoder_layer *weights) {
    return (linear){stack->model, stack->shape.feed_forward, weights->widen,
                    weights->widen_bias};
}

linear sh_narrow_linear(const encoder *stack, const encoder_layer *weights) {
    return (linear){stack->shape.feed_forward, stack->model, weights->narrow,
                    weights->narrow_bias};
}

/* Whether b lies directly behind a, of `count` elements, in values and in gradients; two
   that are absent do. */
static bool behind(nn_tensor a, nn_tensor b, int64_t count) {
    if (!a.data || !b.data)
        return !a.data && !b.data;
    size_t bytes = (size_t)count * (a.half ? sizeof(uint16_t) : sizeof(float));
    return a.half == b.half && (const char *)a.data + bytes == (const char *)b.data &&
           (a.gradient ? a.gradient + count == b.gradient : !b.gradient);
}

projections sh_projections_of(const encoder *stack, const encoder_layer *weights) {
    const int64_t model = stack->model;
    const bool shared = sh_encoder_shares_keys(&stack->shape);
    const linear all[PROJECTIONS] = {
        {model, model, weights->query, weights->query_bias},
        {model, model, weights->key, weights->key_bias},
        {model, model, weights->value, weights->value_bias},
    };
    projections made = {0};
    int64_t column = 0;
    for (int i = 0; i < PROJECTIONS; i++) {
        if (shared && i == 1)
            continue;
        linear *last = made.count ? &made.parts[made.count - 1] : NULL;
        if (last && behind(last->weight, all[i].weight, last->outputs * model) &&
            behind(last->bias, all[i].bias, last->outputs)) {
            last->outputs += model;
        } else {
            made.parts[made.count] = all[i];
            made.columns[made.count++] = column;
        }
        column += model;
    }
    return made;
}

dropout sh_dropout_at(const encoder *stack, encoder_moment moment, int64_t layer,
                      int site) {
    return (dropout){.rate = moment.dropout ? stack->shape.dropout : 0,
                     .seed = moment.seed,
                     .step = moment.step,
                     .site = 1 + (uint64_t)(layer * SITES + site)};
}

bool sh_layer_is_asked(const encoder *stack, int64_t layer) {
    return stack->asked && layer + 1 == stack->shape.layers;
}

int64_t sh_asked_rows(const encoder *stack, int64_t layer, int64_t rows) {
    return sh_layer_is_asked(stack, layer) ? stack->asked_count : rows;
}

float *sh_asked_attended(const encoder *stack, int64_t layer) {
    return stack->limits.training ? stack->grad_projected
                                  : stack->layers[layer].projected;
}

bool sh_keys_are_queries(const encoder_shape *shape) {
    return shape->attention.kind == SHOAL_SHARED_FULL ||
           shape->attention.kind == SHOAL_LSH;
}

bool sh_ends_in_norm(const encoder_shape *shape) {
    return !shape->post_norm && !shape->no_final_norm;
}

shoal_inputs sh_attention_inputs(const encoder *stack, const layer_memory *layer) {
    const int64_t model = stack->model;
    const bool shared = sh_encoder_shares_keys(&stack->shape);
    shoal_inputs inputs = {.q = layer->projected,
                           .k = layer->projected + (shared ? 0 : model),
                           .v = layer->projected + (shared ? model : 2 * model),
                           .query_offsets = stack->offsets,
                           .key_offsets = stack->offsets,
                           .state = layer->state};
    if (sh_keys_are_queries(&stack->shape))
        inputs.k = NULL;
    return inputs;
}

static void place_for_training(encoder *stack, block_layout *block) {
    const size_t state_size = shoal_plan_state_size(stack->plan);
    const int64_t rows = stack->limits.rows, model = stack->model;
    const int64_t row_floats = sh_mul_checked(rows, model);
    const int64_t hidden = sh_mul_checked(rows, stack->shape.feed_forward);
    for (int64_t l = 0; l < stack->shape.layers; l++) {
        layer_memory made = {0};
        made.attention_in =
            stack->shape.post_norm ? NULL : sh_reserve(block, row_floats, sizeof(float));
        made.projected =
            sh_reserve(block, sh_mul_checked(rows, stack->width), sizeof(float));
        made.attended = sh_reserve(block, row_floats, sizeof(float));
        made.middle = sh_reserve(block, row_floats, sizeof(float));
        made.forward_in = sh_reserve(block, row_floats, sizeof(float));
        made.hidden = sh_reserve(block, hidden, sizeof(float));
        made.sum = sh_reserve(block, row_floats, sizeof(float));
        made.out = stack->shape.post_norm ? sh_reserve(block, row_floats, sizeof(float))
                                          : made.sum;
        made.attention_statistics =
            sh_reserve(block, sh_mul_checked(rows, 2), sizeof(float));
        made.forward_statistics =
            sh_reserve(block, sh_mul_checked(rows, 2), sizeof(float));
        made.state = sh_reserve(block, 1, state_size);
        if (block->base)
            stack->layers[l] = made;
    }
    layer_norm norm = {.size = model};
    stack->activated = sh_reserve(block, hidden, sizeof(float));
    stack->final_statistics = sh_reserve(block, sh_mul_checked(rows, 2), sizeof(float));
    stack->grad_hidden = sh_reserve(block, hidden, sizeof(float));
    stack->grad_projected =
        sh_reserve(block, sh_mul_checked(rows, stack->width), sizeof(float));
    bool two = sh_encoder_shares_keys(&stack->shape) &&
               !sh_keys_are_queries(&stack->shape);
    stack->grad_keys =
        two ? sh_reserve(block, sh_mul_checked(rows, stack->width), sizeof(float)) : NULL;
    stack->grad_rows = sh_reserve(block, row_floats, sizeof(float));
    stack->grad_dropped =
        stack->shape.dropout > 0 ? sh_reserve(block, row_floats, sizeof(float)) : NULL;
    stack->norm_parts = sh_reserve(block, sh_norm_scratch(&norm, rows), sizeof(float));
}

/* Arrays that are not alive together share: a norm's output is used up by the product
   that follows it; the sum of post-norm takes the place of middle. */
static void place_for_inference(encoder *stack, block_layout *block) {
    const int64_t rows = stack->limits.rows, model = stack->model;
    const int64_t row_floats = sh_mul_checked(rows, model);
    layer_memory made = {0};
    float *normed = sh_reserve(block, row_floats, sizeof(float));
    made.attention_in = stack->shape.post_norm ? NULL : normed;
    made.forward_in = normed;
    made.projected = sh_reserve(block, sh_mul_checked(rows, stack->width), sizeof(float));
    made.attended = sh_reserve(block, row_floats, sizeof(float));
    made.middle = sh_reserve(block, row_floats, sizeof(float));
    made.hidden =
        sh_reserve(block, sh_mul_checked(rows, stack->shape.feed_forward), sizeof(float));
    made.out = sh_reserve(block, row_floats, sizeof(float));
    made.sum = stack->shape.post_norm ? made.middle : made.out;
    for (int64_t l = 0; block->base && l < stack->shape.layers; l++)
        stack->layers[l] = made;
    stack->activated = made.hidden;
}

void sh_encoder_place(void *argument, block_layout *block) {
    encoder *stack = argument;
    const int64_t model = stack->model;
    sh_reserve(block, 1, sizeof *stack);
    stack->layers = sh_reserve(block, stack->shape.layers, sizeof(layer_memory));
    stack->offsets = sh_reserve(block, stack->limits.batch + 1, sizeof(int64_t));
    if (stack->limits.training)
        place_for_training(stack, block);
    else
        place_for_inference(stack, block);
    if (sh_ends_in_norm(&stack->shape))
        stack->finished =
            sh_reserve(block, sh_mul_checked(stack->limits.rows, model), sizeof(float));
    if (stack->limits.half_weights) {
        int64_t most = stack->shape.feed_forward > stack->width
                           ? stack->shape.feed_forward
                           : stack->width;
        stack->scratch = sh_reserve(block, sh_mul_checked(model, most), sizeof(float));
    }
}
