/* An encoder's weights in an arena. */
#include <stdio.h>

#include "models/nn/encoder.h"

static void describe_linear(parameters *into, int64_t outputs, int64_t inputs,
                            int64_t layer, const char *name) {
    sh_parameters_add(into, matrix_shape(START_XAVIER, outputs, inputs),
                      "encoder.layers.%lld.%s.weight", (long long)layer, name);
    sh_parameters_add(into, vector_shape(START_ZERO, outputs),
                      "encoder.layers.%lld.%s.bias", (long long)layer, name);
}

static void describe_norm(parameters *into, int64_t size, const char *prefix) {
    sh_parameters_add(into, vector_shape(START_ONE, size), "encoder.%s.scale", prefix);
    sh_parameters_add(into, vector_shape(START_ZERO, size), "encoder.%s.shift", prefix);
}

enum { PROJECTIONS = 3 };
static const char *const projection_names[PROJECTIONS] = {"attention.query",
                                                          "attention.key",
                                                          "attention.value"};

void sh_encoder_describe(parameters *into, const encoder_shape *shape) {
    const int64_t model = encoder_model(shape), wide = shape->feed_forward;
    const bool shared = encoder_shares_keys(shape);
    char prefix[64];
    for (int64_t l = 0; l < shape->layers; l++) {
        /* Query, key and value lie together, so that they are one product. */
        for (int bias = 0; bias < 2; bias++)
            for (int i = 0; i < PROJECTIONS; i++) {
                parameter_shape of = bias ? vector_shape(START_ZERO, model)
                                          : matrix_shape(START_XAVIER, model, model);
                of.joined = i > 0;
                if (!(shared && i == 1))
                    sh_parameters_add(into, of, "encoder.layers.%lld.%s.%s", (long long)l,
                                      projection_names[i], bias ? "bias" : "weight");
            }
        describe_linear(into, model, model, l, "attention.output");
        describe_linear(into, wide, model, l, "feed_forward.widen");
        describe_linear(into, model, wide, l, "feed_forward.narrow");
        snprintf(prefix, sizeof prefix, "layers.%lld.attention_norm", (long long)l);
        describe_norm(into, model, prefix);
        snprintf(prefix, sizeof prefix, "layers.%lld.forward_norm", (long long)l);
        describe_norm(into, model, prefix);
    }
    if (!shape->post_norm)
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
