#include "nn_support.h"
#include "cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/nn/layers.h"

#include "support.h"

shoal_model_config config_of(const model_case *c) {
    shoal_model_config config = {.size = sizeof(shoal_model_config),
                                 .vocabulary = c->features ? 0 : TEST_VOCABULARY,
                                 .features = c->features ? TEST_FEATURES : 0,
                                 .outputs = TEST_OUTPUTS,
                                 .max_length = 1,
                                 .layers = c->layers,
                                 .heads = c->heads,
                                 .head_dim = c->head_dim,
                                 .feed_forward = c->feed_forward,
                                 .attention = spelled(c->attention),
                                 .shared_qk = c->shared_qk,
                                 .norm = c->post_norm ? SHOAL_NORM_POST : SHOAL_NORM_PRE,
                                 .activation = c->relu ? SHOAL_ACTIVATION_RELU
                                                       : SHOAL_ACTIVATION_GELU,
                                 .positions = c->learned ? SHOAL_POSITIONS_LEARNED
                                              : c->no_positions
                                                  ? SHOAL_POSITIONS_NONE
                                                  : SHOAL_POSITIONS_SINUSOIDAL,
                                 .pooling = (int32_t)c->pooling,
                                 .dropout = c->dropout,
                                 .form = (int32_t)c->form,
                                 .convolutions = c->convolutions,
                                 .types = c->form ? TEST_TYPES : 0,
                                 .epsilon = c->form ? 1e-3f : 0};
    for (int i = 0; i < COUNT_OF(c->lengths) && c->lengths[i] >= 0; i++)
        if (c->lengths[i] > config.max_length)
            config.max_length = c->lengths[i];
    return config;
}

static void fill_batch(model_setup *setup, const model_case *c, uint64_t seed) {
    int64_t batch = 0;
    setup->offsets = calloc(COUNT_OF(c->lengths) + 1, sizeof *setup->offsets);
    while (batch < COUNT_OF(c->lengths) && c->lengths[batch] >= 0) {
        setup->offsets[batch + 1] = setup->offsets[batch] + c->lengths[batch];
        batch++;
    }
    const int64_t rows = setup->rows = setup->offsets[batch];
    setup->longest = setup->config.max_length;
    const int64_t most = rows > batch ? rows : batch;
    setup->tokens = calloc((size_t)rows + 1, sizeof *setup->tokens);
    setup->types = calloc((size_t)rows + 1, sizeof *setup->types);
    setup->targets = calloc((size_t)most + 1, sizeof *setup->targets);
    setup->wanted = calloc((size_t)rows + 1, sizeof *setup->wanted);
    setup->wanted_targets = calloc((size_t)rows + 1, sizeof *setup->wanted_targets);
    setup->features = calloc((size_t)(rows * TEST_FEATURES) + 1, sizeof(float));
    for (int64_t r = 0; r < rows; r++)
        setup->tokens[r] = (int32_t)(test_hash(seed, 2, (uint64_t)r) % TEST_VOCABULARY);
    for (int64_t r = 0; r < rows; r++)
        setup->types[r] = (int32_t)(test_hash(seed, 6, (uint64_t)r) % TEST_TYPES);
    for (int64_t r = 0; r < most; r++) /* one in seven is ignored */
        setup->targets[r] =
            (int32_t)(test_hash(seed, 3, (uint64_t)r) % (TEST_OUTPUTS + 1)) - 1;
    for (int64_t i = 0; i < rows * TEST_FEATURES; i++)
        setup->features[i] = (float)test_normal(test_hash(seed, 4, (uint64_t)i));
    setup->inputs = (shoal_model_inputs){.size = sizeof(shoal_model_inputs),
                                         .batch = batch,
                                         .offsets = setup->offsets,
                                         .tokens = setup->tokens,
                                         .types = setup->types,
                                         .features = setup->features,
                                         .training = c->dropout > 0,
                                         .step = 3};
}

model_setup setup_create(shoal_context *context, const model_case *c, bool training,
                         uint64_t seed) {
    model_setup setup = {.config = config_of(c), .seed = seed};
    fill_batch(&setup, c, seed);
    if (shoal_model_create(context, &setup.config, seed, setup.inputs.batch, setup.rows,
                           training ? SHOAL_WITH_BACKWARD : 0, &setup.model) != SHOAL_OK)
        fail_msg("%s: %s", c->name, shoal_context_message(context));
    setup.arena = setup.model->arena;
    for (int64_t i = 0; i < setup.arena->count; i++) {
        const parameter *entry = &setup.arena->list[i];
        float *values = setup.arena->values + entry->offset;
        for (int64_t j = 0; entry->rank == 1 && j < entry->count; j++)
            values[j] +=
                0.3f * (float)test_normal(test_hash(seed, 5 + (uint64_t)i, (uint64_t)j));
    }
    return setup;
}

void setup_destroy(model_setup *setup) {
    shoal_model_destroy(setup->model);
    free(setup->offsets);
    free(setup->tokens);
    free(setup->types);
    free(setup->targets);
    free(setup->wanted);
    free(setup->wanted_targets);
    free(setup->features);
}

void setup_want(model_setup *setup, bool all) {
    int64_t count = 0;
    for (int64_t row = 0; row < setup->rows; row++)
        if (setup->targets[row] != SHOAL_IGNORED) {
            setup->wanted[count] = (int32_t)row;
            setup->wanted_targets[count++] = setup->targets[row];
        }
    setup->inputs.wanted = all ? NULL : setup->wanted;
    setup->inputs.wanted_count = count;
}

int64_t setup_logit_rows(const model_setup *setup) {
    return setup->config.pooling  ? setup->inputs.batch
           : setup->inputs.wanted ? setup->inputs.wanted_count
                                  : setup->offsets[setup->inputs.batch];
}

float *setup_forward(model_setup *setup) {
    float *logits;
    assert_int_equal(shoal_model_forward(setup->model, &setup->inputs, &logits),
                     SHOAL_OK);
    return logits;
}

shoal_loss setup_step(shoal_context *context, model_setup *setup) {
    shoal_loss loss;
    float *logits = setup_forward(setup);
    assert_int_equal(shoal_cross_entropy(context, setup_logit_rows(setup), TEST_OUTPUTS,
                                         logits,
                                         setup->inputs.wanted ? setup->wanted_targets
                                                              : setup->targets,
                                         logits, &loss),
                     SHOAL_OK);
    assert_int_equal(shoal_model_backward(setup->model, &setup->inputs, logits, NULL),
                     SHOAL_OK);
    return loss;
}

double *setup_values(const model_setup *setup) {
    double *values = test_memory(setup->arena->size, sizeof *values);
    for (int64_t i = 0; i < setup->arena->size; i++)
        values[i] = (double)setup->arena->values[i];
    return values;
}

/* ---- The same model in double precision ------------------------------------------- */

/* The part whose weight and bias have these names; the caller sets its sizes. */
static exact_part part_of(const model_setup *setup, const double *values,
                          const char *weight, const char *bias) {
    const parameter *w = sh_parameters_find(setup->arena, weight);
    const parameter *b = sh_parameters_find(setup->arena, bias);
    return (exact_part){.weight = w ? values + w->offset : NULL,
                        .bias = b ? values + b->offset : NULL};
}

static exact_layer *layer_of(const model_setup *setup, const double *values,
                             int64_t index) {
    const shoal_model_config *config = &setup->config;
    exact_layer *layer =
        exact_layer_create(config->heads * config->head_dim, config->feed_forward);
    assert_non_null(layer);
    layer->post_norm = config->norm == SHOAL_NORM_POST;
    if (config->epsilon > 0)
        layer->epsilon = (double)config->epsilon;
    layer->activation = (shoal_activation)config->activation;
    for (int part = 0; part < EXACT_PARTS; part++) {
        char full[2][PARAMETER_NAME];
        for (int which = 0; which < 2; which++)
            snprintf(full[which], sizeof full[which], "encoder.layers.%lld.%s",
                     (long long)index, exact_part_names[part][which]);
        exact_part found = part_of(setup, values, full[0], full[1]);
        layer->parts[part].weight = found.weight;
        layer->parts[part].bias = found.bias;
    }
    return layer;
}

/* Dropout factors of a row at one place; NULL if there is none. */
static const float *dropped(const model_setup *setup, int64_t site, int64_t row,
                            int64_t size, float *factors) {
    dropout_mask mask = {.rate = setup->config.dropout,
                         .seed = setup->seed,
                         .step = (uint64_t)setup->inputs.step,
                         .site = (uint64_t)site};
    if (!setup->inputs.training || mask.rate <= 0)
        return NULL;
    sh_dropout_factors(&mask, row, 0, size, factors);
    return factors;
}

/* out [rows][M] = the attention of q, k and v [rows][M] in the layer. */
static void attend(const model_setup *setup, int64_t layer, const double *const qkv[3],
                   double *out) {
    const shoal_model_config *config = &setup->config;
    const int64_t dim = config->head_dim, size = config->heads * dim;
    const encoder *stack = setup->model->stack;
    const void *state = sh_encoder_state(stack, layer);
    shoal_attention used;
    assert_int_equal(shoal_plan_picked(sh_encoder_plan(stack), state, &used), SHOAL_OK);
    for (int64_t at = 0; at < setup->inputs.batch * config->heads; at++) {
        const int64_t *bounds = setup->offsets + at / config->heads;
        int64_t first = bounds[0] * size + at % config->heads * dim;
        int64_t length = bounds[1] - bounds[0];
        exact_head *head = exact_create(&used, length, length, dim, dim);
        assert_non_null(head);
        double *const to[3] = {head->q, head->k, head->v};
        for (int64_t i = 0; i < 3 * length; i++)
            memcpy(to[i % 3] + i / 3 * dim, qkv[i % 3] + first + i / 3 * size,
                   sizeof(double) * (size_t)dim);
        exact_choose(head, sh_encoder_plan(stack), state, at, setup->longest);
        for (int64_t i = 0; i < length; i++)
            exact_output(head, i, out + first + i * size);
        exact_destroy(head);
    }
}

/* Row index for dropout: the last layer of a text model continues with only the first
   row of every sequence (the others are ignored). */
static int64_t row_of_mask(const model_setup *setup, int64_t layer, int64_t row) {
    if (!setup->config.form || setup->config.pooling != SHOAL_POOLING_FIRST ||
        layer + 1 < setup->config.layers)
        return row;
    for (int64_t b = 0; b < setup->inputs.batch; b++)
        if (setup->offsets[b] == row)
            return b;
    return 0;
}

static void run_layer(const model_setup *setup, const double *values, int64_t index,
                      double *x) {
    exact_layer *layer = layer_of(setup, values, index);
    const int64_t size = layer->model, count = setup->rows * size;
    double *q = test_memory(4 * count, sizeof *q), *k = q + count, *v = k + count;
    double *attended = v + count;
    float *factors = test_memory(2 * size + layer->wide, sizeof *factors);
    for (int64_t at = 0; at < count; at += size)
        exact_layer_project(layer, x + at, q + at, k + at, v + at);
    attend(setup, index, (const double *const[]){q, k, v}, attended);
    for (int64_t r = 0; r < setup->rows; r++) {
        const int64_t counted = row_of_mask(setup, index, r);
        layer->dropout[0] = dropped(setup, 1 + 3 * index, counted, size, factors);
        layer->dropout[1] = setup->config.form ? NULL
                                               : dropped(setup, 2 + 3 * index, counted,
                                                         layer->wide, factors + 2 * size);
        layer->dropout[2] = dropped(setup, 3 + 3 * index, counted, size, factors + size);
        memcpy(x + r * size, exact_layer_row(layer, x + r * size, attended + r * size),
               sizeof *x * (size_t)size);
    }
    free(factors);
    free(q);
    exact_layer_destroy(layer);
}

/* x [M] = row r of the features after the input projection. */
static void take_features(const model_setup *setup, const double *values, int64_t r,
                          int64_t size, double *x) {
    exact_part product = part_of(setup, values, "input.weight", "input.bias");
    double features[TEST_FEATURES];
    product.inputs = TEST_FEATURES;
    product.outputs = size;
    for (int64_t f = 0; f < TEST_FEATURES; f++)
        features[f] = (double)setup->features[r * TEST_FEATURES + f];
    exact_linear(&product, 1, features, x);
}

/* One row of a convolution, of sequence b, from normalised rows. */
static double convolve(const exact_part *conv, const model_setup *setup, int64_t b,
                       int64_t r, int64_t size, int64_t o, const double *normed) {
    double sum = conv->bias[o];
    for (int64_t tap = 0; tap < 3; tap++) {
        const int64_t from = r + tap - 1;
        if (from < setup->offsets[b] || from >= setup->offsets[b + 1])
            continue;
        for (int64_t i = 0; i < size; i++)
            sum += conv->weight[(tap * size + o) * size + i] * normed[from * size + i];
    }
    return exact_activation((shoal_activation)setup->config.activation, sum);
}

/* Convolution `index` after the projection: x [rows][M] in place. Dropout counts one
   more row after each sequence. */
static void run_convolution(const model_setup *setup, const double *values, int64_t index,
                            int64_t size, double *x) {
    char names[4][PARAMETER_NAME];
    static const char *const ends[] = {"norm.scale", "norm.shift", "weight", "bias"};
    for (int i = 0; i < 4; i++)
        snprintf(names[i], sizeof names[i], "stem.%lld.%s", (long long)index, ends[i]);
    exact_part norm = part_of(setup, values, names[0], names[1]);
    const exact_part conv = part_of(setup, values, names[2], names[3]);
    double *normed = test_memory(setup->rows * size + 1, sizeof *normed);
    float *factors = test_memory(size, sizeof *factors);
    norm.outputs = size;
    exact_norm(&norm, 1e-5, setup->rows, x, normed);
    for (int64_t b = 0; b < setup->inputs.batch; b++)
        for (int64_t r = setup->offsets[b]; r < setup->offsets[b + 1]; r++) {
            const float *keep = dropped(setup, 3 + 3 * setup->config.layers + index,
                                        r + b, size, factors);
            for (int64_t o = 0; o < size; o++)
                x[r * size + o] += convolve(&conv, setup, b, r, size, o, normed) *
                                   (keep ? (double)keep[o] : 1);
        }
    free(factors);
    free(normed);
}

/* x [M] = row r of the first layer's input; for features it already has their
   projection. */
static void take_input(const model_setup *setup, const double *values, int64_t r,
                       int64_t position, int64_t size, double *x) {
    const shoal_model_config *config = &setup->config;
    const double *table = part_of(setup, values, "embedding.weight", "").weight;
    const double *learned = part_of(setup, values, "positions.weight", "").weight;
    const double *types = part_of(setup, values, "types.weight", "").weight;
    const double scale = config->form ? 1 : sqrt((double)size);
    float *factors = test_memory(size, sizeof *factors);
    const float *keep = dropped(setup, 0, r, size, factors);
    for (int64_t i = 0; i < size; i++) {
        if (table)
            x[i] = scale * table[setup->tokens[r] * size + i];
        if (config->positions == SHOAL_POSITIONS_LEARNED)
            x[i] += learned[position * size + i];
        else if (config->positions == SHOAL_POSITIONS_SINUSOIDAL)
            x[i] += exact_sinusoid(position, i, size);
        if (types)
            x[i] += types[setup->types[r] * size + i];
    }
    exact_part norm = part_of(setup, values, "input_norm.scale", "input_norm.shift");
    norm.outputs = size;
    if (norm.weight)
        exact_norm(&norm, (double)config->epsilon, 1, x, x);
    for (int64_t i = 0; i < size; i++)
        x[i] *= keep ? (double)keep[i] : 1;
    free(factors);
}

/* pooled [M]: the mean of a sequence's rows, or its first; 0 for an empty one. */
static void pool(const model_setup *setup, int64_t b, int64_t size, const double *x,
                 double *pooled) {
    int64_t first = setup->offsets[b], used = setup->offsets[b + 1] - first;
    if (setup->config.pooling == SHOAL_POOLING_FIRST && used > 1)
        used = 1;
    for (int64_t r = first; r < first + used; r++)
        for (int64_t i = 0; i < size; i++)
            pooled[i] += x[r * size + i] / (double)used;
}

/* rows [batch][M] = dropout(tanh(W dropout(rows) + b)), the inner dropout only for
   RoBERTa. */
static void run_head(const model_setup *setup, const double *values, int64_t size,
                     double *rows) {
    exact_part head = part_of(setup, values, "head.weight", "head.bias");
    const int64_t after = 1 + 3 * setup->config.layers;
    float *factors = test_memory(2 * size, sizeof *factors);
    double *made = test_memory(size, sizeof *made);
    head.inputs = head.outputs = size;
    for (int64_t b = 0; b < setup->inputs.batch; b++) {
        double *row = rows + b * size;
        const float *inner = setup->config.form == SHOAL_FORM_ROBERTA
                                 ? dropped(setup, after + 1, b, size, factors)
                                 : NULL;
        const float *outer = dropped(setup, after, b, size, factors + size);
        for (int64_t i = 0; i < size; i++)
            row[i] *= inner ? (double)inner[i] : 1;
        exact_linear(&head, 1, row, made);
        for (int64_t i = 0; i < size; i++)
            row[i] = tanh(made[i]) * (outer ? (double)outer[i] : 1);
    }
    free(made);
    free(factors);
}

double setup_exact_loss(const model_setup *setup, const double *values, double *logits) {
    const shoal_model_config *config = &setup->config;
    const int64_t size = config->heads * config->head_dim, *offsets = setup->offsets;
    const int64_t batch = setup->inputs.batch;
    double *x = test_memory((setup->rows + batch) * size, sizeof *x), *read = x;
    for (int64_t r = 0; config->features && r < setup->rows; r++)
        take_features(setup, values, r, size, x + r * size);
    for (int64_t i = 0; i < config->convolutions; i++)
        run_convolution(setup, values, i, size, x);
    for (int64_t r = 0, b = 0; r < setup->rows; r++) {
        while (offsets[b + 1] <= r)
            b++;
        take_input(setup, values, r, r - offsets[b], size, x + r * size);
    }
    for (int64_t l = 0; l < config->layers; l++)
        run_layer(setup, values, l, x);
    exact_part norm =
        part_of(setup, values, "encoder.final_norm.scale", "encoder.final_norm.shift");
    norm.outputs = size;
    if (norm.weight)
        exact_norm(&norm, 1e-5, setup->rows, x, x);
    if (config->pooling != SHOAL_POOLING_NONE)
        read = x + setup->rows * size;
    for (int64_t b = 0; b < batch && read != x; b++)
        pool(setup, b, size, x, read + b * size);
    if (config->form && read != x)
        run_head(setup, values, size, read);
    const int64_t rows = read == x ? setup->rows : batch;
    exact_part output = part_of(setup, values, "output.weight", "output.bias");
    output.inputs = size;
    output.outputs = config->outputs;
    double *made = test_memory(rows * config->outputs, sizeof *made);
    exact_linear(&output, rows, read, made);
    if (logits)
        memcpy(logits, made, sizeof *made * (size_t)(rows * config->outputs));
    double loss = exact_cross_entropy(rows, config->outputs, made, setup->targets, NULL);
    free(made);
    free(x);
    return loss;
}

uint16_t half_from_float(float value) {
    union {
        float value;
        uint32_t bits;
    } pun = {value};
    uint32_t sign = (pun.bits >> 16) & 0x8000u, magnitude = pun.bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu)); /* NaN, quiet */
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    uint32_t shift = 13, base = magnitude, exponent = magnitude >> 23;
    if (exponent >= 113) { /* normal: change the exponent's bias from 127 to 15 */
        base -= (uint32_t)112 << 23;
    } else { /* subnormal: make the hidden bit explicit and shift right */
        if (exponent < 102)
            return (uint16_t)sign;
        base = (magnitude & 0x7fffffu) | 0x800000u;
        shift += 113 - exponent;
    }
    uint32_t kept = base >> shift, half = UINT32_C(1) << (shift - 1);
    uint32_t rest = base & ((UINT32_C(1) << shift) - 1);
    kept += rest > half || (rest == half && (kept & 1));
    return (uint16_t)(sign | kept);
}
