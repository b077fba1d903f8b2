#include "attention_maps.h"

#include "command.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Projections of a layer ------------------------------------------------------- */

static bool find_parameter(shoal_model *model, const char *name, shoal_parameter *found) {
    for (int i = 0; shoal_model_parameter(model, i, found); i++)
        if (strcmp(found->name, name) == 0)
            return true;
    *found = (shoal_parameter){0};
    return false;
}

static int64_t elements_of(const shoal_parameter *parameter) {
    int64_t count = 1;
    for (int i = 0; i < parameter->dimensions; i++)
        count *= parameter->shape[i];
    return count;
}

/* Concatenates the layer's three projections: [3 M][M] and [3 M]; false if the model
   has other shapes. */
static bool copy_projections(shoal_model *model, int64_t layer, int64_t width,
                             const char *part, float *to) {
    static const char *const names[] = {"query", "key", "value"};
    const int64_t count = strcmp(part, "bias") == 0 ? width : width * width;
    for (int i = 0; i < 3; i++) {
        char name[96];
        shoal_parameter from;
        snprintf(name, sizeof name, "encoder.layers.%" PRId64 ".attention.%s.%s", layer,
                 names[i], part);
        if (!find_parameter(model, name, &from) || elements_of(&from) != count)
            return false;
        memcpy(to + i * count, from.values, (size_t)count * sizeof *to);
    }
    return true;
}

/* Copies the weights of the layers before, and the projections as the output layer. */
static bool copy_weights(shoal_model *model, int64_t layer, int64_t width,
                         shoal_model *cut) {
    shoal_parameter to, from;
    for (int i = 0; shoal_model_parameter(cut, i, &to); i++) {
        if (strncmp(to.name, "output.", 7) == 0) {
            if (!copy_projections(model, layer, width, to.name + 7, to.values))
                return false;
            continue;
        }
        if (!find_parameter(model, to.name, &from) ||
            elements_of(&from) != elements_of(&to))
            return false;
        memcpy(to.values, from.values, (size_t)elements_of(&to) * sizeof *to.values);
    }
    return true;
}

/* Builds a model that ends before the layer and whose outputs are the layer's
   projections. */
static void project_by_layers(shoal_context *context, shoal_model *model,
                              const shoal_attention *kind, int64_t layer,
                              const map_tokens *tokens, float *projected) {
    shoal_model_config config = *shoal_model_settings(model);
    const int64_t width = config.heads * config.head_dim;
    const int64_t offsets[2] = {0, tokens->count};
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = 1,
                                       .offsets = offsets,
                                       .tokens = tokens->ids,
                                       .types = tokens->types};
    shoal_model *cut;
    float *out;
    config.layers = layer;
    config.attention = *kind;
    config.outputs = 3 * width;
    config.pooling = SHOAL_POOLING_NONE;
    demand(shoal_model_create(context, &config, 1, 1, tokens->count, 0, &cut),
           EXIT_BAD_INPUT);
    if (!copy_weights(model, layer, width, cut))
        demand(SHOAL_INVALID, EXIT_BAD_INPUT);
    demand(shoal_model_forward(cut, &inputs, &out), EXIT_BAD_INPUT);
    memcpy(projected, out, (size_t)(tokens->count * 3 * width) * sizeof *out);
    shoal_model_destroy(cut);
}

/* The same for the first layer: a model needs at least one layer before its outputs. */
static void project_words(shoal_model *model, const map_tokens *tokens,
                          float *projected) {
    static const char *const names[] = {"embedding.weight", "positions.weight",
                                        "types.weight", "input_norm.scale",
                                        "input_norm.shift"};
    const shoal_model_config *config = shoal_model_settings(model);
    const int64_t width = config->heads * config->head_dim, wide = 3 * width;
    const double epsilon = config->epsilon > 0 ? (double)config->epsilon : 1e-5;
    shoal_parameter parts[5];
    float *weight = reserve((size_t)(wide * width), sizeof *weight);
    float *bias = reserve((size_t)wide, sizeof *bias);
    double *x = reserve((size_t)width, sizeof *x);
    bool fits = copy_projections(model, 0, width, "weight", weight) &&
                copy_projections(model, 0, width, "bias", bias);
    for (int i = 0; i < 5; i++)
        fits &= find_parameter(model, names[i], &parts[i]) || i == 2;
    if (!fits)
        demand(SHOAL_INVALID, EXIT_BAD_INPUT);
    for (int64_t row = 0; row < tokens->count; row++) {
        const int64_t at[] = {tokens->ids[row], row, tokens->types[row]};
        /* Input of the first layer: the normalised sum of word, position and type
           embeddings. */
        double mean = 0, square = 0;
        for (int64_t i = 0; i < width; i++) {
            x[i] = 0;
            for (int part = 0; part < 3; part++)
                if (parts[part].values)
                    x[i] += (double)parts[part].values[at[part] * width + i];
            mean += x[i] / (double)width;
        }
        for (int64_t i = 0; i < width; i++)
            square += (x[i] - mean) * (x[i] - mean) / (double)width;
        for (int64_t i = 0; i < width; i++)
            x[i] = (x[i] - mean) / sqrt(square + epsilon) * (double)parts[3].values[i] +
                   (double)parts[4].values[i];
        for (int64_t i = 0; i < wide; i++) {
            double sum = (double)bias[i];
            for (int64_t j = 0; j < width; j++)
                sum += (double)weight[i * width + j] * x[j];
            projected[row * wide + i] = (float)sum;
        }
    }
    free(weight);
    free(bias);
    free(x);
}

void map_project(shoal_context *context, shoal_model *model, const shoal_attention *kind,
                 int64_t layer, const map_tokens *tokens, float *projected) {
    if (layer == 0)
        project_words(model, tokens, projected);
    else
        project_by_layers(context, model, kind, layer, tokens, projected);
}

/* ---- Weights ----------------------------------------------------------------------- */

typedef struct {
    const map_shape *shape;
    int64_t width; /* heads x head_dim */
    shoal_plan *plan;
    float *projected; /* [count][3 width] */
    float *values;    /* [count][width]: saved true values */
    float *out;       /* [count][width] */
} weighing;

static void run_plan(weighing *w) {
    const int64_t offsets[2] = {0, w->shape->count};
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = w->projected,
                                 .k = w->projected + w->width,
                                 .v = w->projected + 2 * w->width,
                                 .query_offsets = offsets,
                                 .key_offsets = offsets};
    demand(shoal_forward(w->plan, &inputs, w->out), EXIT_BAD_INPUT);
}

static void find_weights(weighing *w, float *weights) {
    const map_shape *shape = w->shape;
    const int64_t dim = shape->head_dim;
    for (int64_t first = 0; first < shape->count; first += dim) {
        const int64_t left = shape->count - first, keys = left < dim ? left : dim;
        /* Values that are one-hot in the keys from `first` on. */
        for (int64_t key = 0; key < shape->count; key++) {
            float *values = w->projected + (3 * key + 2) * w->width;
            memset(values, 0, (size_t)w->width * sizeof *values);
            if (key >= first && key < first + shape->head_dim)
                for (int64_t head = 0; head < shape->heads; head++)
                    values[head * shape->head_dim + key - first] = 1;
        }
        run_plan(w);
        for (int64_t row = 0; row < shape->rows; row++)
            for (int64_t head = 0; head < shape->heads; head++)
                memcpy(weights + (row * shape->heads + head) * shape->count + first,
                       w->out + (shape->first + row) * w->width + head * dim,
                       (size_t)keys * sizeof *weights);
    }
}

static void move_values(weighing *w, bool back) {
    for (int64_t row = 0; row < w->shape->count; row++) {
        float *inside = w->projected + (3 * row + 2) * w->width;
        float *kept = w->values + row * w->width;
        memcpy(back ? inside : kept, back ? kept : inside,
               (size_t)w->width * sizeof *kept);
    }
}

/* Error of the true values summed with the weights, compared with the true output in
   w->out. */
static double compare_sums(const weighing *w, const float *weights) {
    const map_shape *shape = w->shape;
    double worst = 0, largest = 0;
    for (int64_t row = 0; row < shape->rows; row++)
        for (int64_t i = 0; i < w->width; i++) {
            const int64_t head = i / shape->head_dim;
            const float *share = weights + (row * shape->heads + head) * shape->count;
            const double wanted = (double)w->out[(shape->first + row) * w->width + i];
            double sum = 0;
            for (int64_t key = 0; key < shape->count; key++)
                sum += (double)share[key] * (double)w->values[key * w->width + i];
            worst = fmax(worst, fabs(sum - wanted));
            largest = fmax(largest, fabs(wanted));
        }
    return largest > 0 ? worst / largest : worst;
}

double map_weigh(shoal_context *context, const shoal_attention *kind,
                 const map_shape *shape, float *projected, float *weights) {
    weighing w = {.shape = shape,
                  .width = shape->heads * shape->head_dim,
                  .projected = projected};
    const size_t bytes = (size_t)(shape->count * w.width) * sizeof(float);
    const shoal_strides strides = {.head = shape->head_dim, .position = 3 * w.width};
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1, /* the layout of a model's encoder */
                                   .heads = shape->heads,
                                   .queries = shape->count,
                                   .keys = shape->count,
                                   .dim = shape->head_dim,
                                   .value_dim = shape->head_dim,
                                   .packed = 1,
                                   .q_strides = &strides,
                                   .k_strides = &strides,
                                   .v_strides = &strides};
    demand(shoal_plan_create(context, &problem, kind, 0, &w.plan), EXIT_BAD_INPUT);
    w.values = reserve(bytes, 1);
    w.out = reserve(bytes, 1);
    move_values(&w, false);
    find_weights(&w, weights);
    move_values(&w, true);
    run_plan(&w);
    const double error = compare_sums(&w, weights);
    free(w.values);
    free(w.out);
    shoal_plan_destroy(w.plan);
    return error;
}
