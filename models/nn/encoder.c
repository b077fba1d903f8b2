/* The encoder's object; its ways are encoder_forward.c and encoder_backward.c. */
#include "models/nn/encoder.h"

#include <math.h>
#include <stdio.h>

#include "models/nn/encoder_layout.h"
#include "models/nn/rows.h"

int64_t sh_encoder_model(const encoder_shape *shape) {
    return shape->heads * shape->head_dim;
}

bool sh_encoder_shares_keys(const encoder_shape *shape) {
    return shape->shared_qk || sh_keys_are_queries(shape);
}

/* ---- Weights in an arena ---------------------------------------------------------- */

static void describe_linear(parameters *into, int64_t outputs, int64_t inputs,
                            bool joined, int64_t layer, const char *name) {
    sh_parameters_add(into,
                      (parameter_shape){.start = START_XAVIER,
                                        .joined = joined,
                                        .rank = 2,
                                        .shape = {outputs, inputs}},
                      "encoder.layers.%lld.%s.weight", (long long)layer, name);
}

static void describe_bias(parameters *into, int64_t outputs, bool joined, int64_t layer,
                          const char *name) {
    sh_parameters_add(into,
                      (parameter_shape){.joined = joined, .rank = 1, .shape = {outputs}},
                      "encoder.layers.%lld.%s.bias", (long long)layer, name);
}

static void describe_norm(parameters *into, int64_t size, const char *prefix) {
    sh_parameters_add(into,
                      (parameter_shape){.start = START_ONE, .rank = 1, .shape = {size}},
                      "encoder.%s.scale", prefix);
    sh_parameters_add(into, (parameter_shape){.rank = 1, .shape = {size}},
                      "encoder.%s.shift", prefix);
}

static const char *const projection_names[] = {"attention.query", "attention.key",
                                               "attention.value"};

void sh_encoder_describe(parameters *into, const encoder_shape *shape) {
    const int64_t model = sh_encoder_model(shape), wide = shape->feed_forward;
    const bool shared = sh_encoder_shares_keys(shape);
    char prefix[64];
    for (int64_t l = 0; l < shape->layers; l++) {
        /* Query, key and value lie together, so that they are one product. */
        for (int i = 0; i < PROJECTIONS; i++)
            if (!(shared && i == 1))
                describe_linear(into, model, model, i > 0, l, projection_names[i]);
        for (int i = 0; i < PROJECTIONS; i++)
            if (!(shared && i == 1))
                describe_bias(into, model, i > 0, l, projection_names[i]);
        describe_linear(into, model, model, false, l, "attention.output");
        describe_bias(into, model, false, l, "attention.output");
        describe_linear(into, wide, model, false, l, "feed_forward.widen");
        describe_bias(into, wide, false, l, "feed_forward.widen");
        describe_linear(into, model, wide, false, l, "feed_forward.narrow");
        describe_bias(into, model, false, l, "feed_forward.narrow");
        snprintf(prefix, sizeof prefix, "layers.%lld.attention_norm", (long long)l);
        describe_norm(into, model, prefix);
        snprintf(prefix, sizeof prefix, "layers.%lld.forward_norm", (long long)l);
        describe_norm(into, model, prefix);
    }
    if (sh_ends_in_norm(shape))
        describe_norm(into, model, "final_norm");
}

void sh_encoder_bind(const parameters *arena, const encoder_shape *shape,
                     encoder_layer *layers, encoder_weights *weights) {
    for (int64_t l = 0; l < shape->layers; l++) {
        encoder_layer *layer = &layers[l];
        const struct {
            nn_tensor *tensor;
            const char *name;
        } names[] = {
            {&layer->query, "attention.query.weight"},
            {&layer->query_bias, "attention.query.bias"},
            {&layer->key, "attention.key.weight"},
            {&layer->key_bias, "attention.key.bias"},
            {&layer->value, "attention.value.weight"},
            {&layer->value_bias, "attention.value.bias"},
            {&layer->output, "attention.output.weight"},
            {&layer->output_bias, "attention.output.bias"},
            {&layer->widen, "feed_forward.widen.weight"},
            {&layer->widen_bias, "feed_forward.widen.bias"},
            {&layer->narrow, "feed_forward.narrow.weight"},
            {&layer->narrow_bias, "feed_forward.narrow.bias"},
            {&layer->attention_scale, "attention_norm.scale"},
            {&layer->attention_shift, "attention_norm.shift"},
            {&layer->forward_scale, "forward_norm.scale"},
            {&layer->forward_shift, "forward_norm.shift"},
        };
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            *names[i].tensor = sh_parameters_tensor(arena, "encoder.layers.%lld.%s",
                                                    (long long)l, names[i].name);
    }
    weights->layers = layers;
    weights->final_scale = sh_parameters_tensor(arena, "encoder.final_norm.scale");
    weights->final_shift = sh_parameters_tensor(arena, "encoder.final_norm.shift");
}

/* ---- The object -------------------------------------------------------------------- */

static shoal_status check_shape(shoal_context *context, const encoder_shape *shape,
                                const encoder_limits *limits) {
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = {
        {"layers", shape->layers, 0, 4096},
        {"heads", shape->heads, 1, 65536},
        {"head_dim", shape->head_dim, 1, 65536},
        {"feed_forward", shape->feed_forward, 1, INT32_MAX / 4},
        {"batch", limits->batch, 0, INT32_MAX / 2},
        {"rows", limits->rows, 0, INT32_MAX / 2},
        {"length", limits->length, 0, INT32_MAX / 2},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return sh_fail(context, SHOAL_INVALID,
                           "encoder: %s is %lld: it must be from %lld to %lld",
                           sizes[i].name, (long long)sizes[i].value,
                           (long long)sizes[i].least, (long long)sizes[i].most);
    if (sh_encoder_model(shape) > INT32_MAX / 16)
        return sh_fail(context, SHOAL_INVALID, "encoder: heads x head_dim is too large");
    if (!(shape->dropout >= 0 && shape->dropout < 1))
        return sh_fail(context, SHOAL_INVALID,
                       "encoder: dropout is %g: it must be at least 0 and below 1",
                       (double)shape->dropout);
    if (!(shape->epsilon >= 0 && isfinite(shape->epsilon)))
        return sh_fail(context, SHOAL_INVALID, "encoder: epsilon must not be negative");
    if (limits->training && limits->half_weights)
        return sh_fail(context, SHOAL_INVALID, "encoder: half weights cannot be trained");
    return SHOAL_OK;
}

static shoal_status plan_attention(encoder *stack) {
    const encoder_shape *shape = &stack->shape;
    const shoal_strides strides = {.head = shape->head_dim, .position = stack->width};
    shoal_problem problem = {.batch = stack->limits.batch,
                             .heads = shape->heads,
                             .queries = stack->limits.length,
                             .keys = stack->limits.length,
                             .dim = shape->head_dim,
                             .value_dim = shape->head_dim,
                             .packed = 1,
                             .q = strides,
                             .k = strides,
                             .v = strides};
    unsigned flags = stack->limits.training ? SHOAL_WITH_BACKWARD : 0;
    return shoal_plan_create(stack->context, &problem, &shape->attention, flags,
                             &stack->plan);
}

shoal_status sh_encoder_create(shoal_context *context, const encoder_shape *shape,
                               const encoder_limits *limits, encoder **made) {
    *made = NULL;
    shoal_status status = check_shape(context, shape, limits);
    if (status != SHOAL_OK)
        return status;
    encoder stack = {.context = context, .shape = *shape, .limits = *limits};
    stack.by = sh_crew_of(context);
    stack.model = sh_encoder_model(shape);
    stack.width = (sh_encoder_shares_keys(shape) ? 2 : 3) * stack.model;
    if (stack.shape.epsilon == 0)
        stack.shape.epsilon = 1e-5f;
    status = plan_attention(&stack);
    if (status != SHOAL_OK)
        return status;
    encoder *kept = sh_allocate_parts(context, sh_encoder_place, &stack, &stack.bytes);
    if (!kept) {
        shoal_plan_destroy(stack.plan);
        return SHOAL_NO_MEMORY;
    }
    *kept = stack;
    *made = kept;
    return SHOAL_OK;
}

void sh_encoder_destroy(encoder *stack) {
    if (!stack)
        return;
    shoal_plan_destroy(stack->plan);
    sh_release(stack->context, stack);
}

size_t sh_encoder_memory(const encoder *stack) {
    return stack->bytes + shoal_plan_workspace(stack->plan);
}

void sh_encoder_ask(encoder *stack, const int32_t *rows, int64_t count) {
    stack->asked = rows;
    stack->asked_count = count;
}

const shoal_plan *sh_encoder_plan(const encoder *stack) {
    return stack->plan;
}

const void *sh_encoder_state(const encoder *stack, int64_t layer) {
    return stack->layers[layer].state;
}
