/* Convolutions over time behind the product that takes features:

       x += dropout(f(conv(norm(x))))

   `convolutions` times, 3 taps, M features in and out. Sequences lie one after another
   with a row between them, a gap, that is 0 where it goes into a convolution: so the
   whole batch is one sequence for it, and nothing crosses a border. P: rows with gaps,
   R + batch; sequence b begins at row offsets[b] + b. */
#include <stdio.h>
#include <string.h>

#include "models/nn/model.h"

enum { ROWS_OF_A_TASK = 64 };

void sh_stem_describe(parameters *into, const shoal_model_config *config) {
    const int64_t width = width_of(config);
    const parameter_shape row = vector_shape(START_ZERO, width);
    for (long long i = 0; i < config->convolutions; i++) {
        sh_parameters_add(into, vector_shape(START_ONE, width), "stem.%lld.norm.scale",
                          i);
        sh_parameters_add(into, row, "stem.%lld.norm.shift", i);
        sh_parameters_add(into,
                          (parameter_shape){.start = START_XAVIER,
                                            .rank = 3,
                                            .shape = {CONV_TAPS, width, width}},
                          "stem.%lld.weight", i);
        sh_parameters_add(into, row, "stem.%lld.bias", i);
    }
}

void sh_stem_bind(shoal_model *model) {
    const parameters *arena = model->arena;
    const shoal_model_config *config = &model->config;
    const int64_t width = width_of(config);
    for (long long i = 0; i < config->convolutions; i++) {
        stem_block *block = &model->stem.blocks[i];
        char name[40];
        snprintf(name, sizeof name, "stem.%lld.norm", i);
        block->norm = sh_model_norm(model, name);
        block->conv =
            (conv1d){.inputs = width,
                     .outputs = width,
                     .stride = 1,
                     .weight = sh_parameters_tensor(arena, "stem.%lld.weight", i),
                     .bias = sh_parameters_tensor(arena, "stem.%lld.bias", i),
                     .active = true,
                     .kind = activation_of(config)};
    }
}

/* Without a backward all blocks share their arrays. */
void sh_stem_place(shoal_model *model, block_layout *block) {
    const encoder_limits *limits = &model->limits;
    const int64_t width = width_of(&model->config);
    const int64_t count = model->config.convolutions;
    conv_stem *stem = &model->stem;
    int64_t rows;
    if (count == 0)
        return;
    if (__builtin_add_overflow(limits->rows, limits->batch, &rows))
        rows = INT64_MAX;
    stem->blocks = sh_reserve(block, count, sizeof *stem->blocks);
    stem->made = reserve_floats(block, rows, width);
    if (limits->training) {
        stem->gradient = reserve_floats(block, rows, width);
        stem->inner = reserve_floats(block, rows, width);
        stem->norm_parts = reserve_floats(block, sh_norm_scratch(width, rows), 1);
    }
    stem_block made = {0};
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || limits->training) {
            made.x = reserve_floats(block, rows, width);
            made.normed = reserve_floats(block, rows, width);
        }
        if (limits->training) {
            made.statistics = reserve_floats(block, rows, 2);
            made.sums = reserve_floats(block, rows, width);
        }
        if (block->base)
            stem->blocks[i] = made;
    }
}

/* ---- Gaps ------------------------------------------------------------------------- */

typedef struct {
    const int64_t *offsets;
    int64_t count, width;
    bool open; /* gaps between the sequences */
    const float *from, *made;
    float *to;
} stem_call;

/* Clears the gap behind each sequence. */
static void clear_gaps(const shoal_model_inputs *inputs, int64_t width, float *x) {
    for (int64_t b = 0; b < inputs->batch; b++)
        memset(x + (inputs->offsets[b + 1] + b) * width, 0, sizeof *x * (size_t)width);
}

static void move_task(void *shared, int64_t b, int thread UNUSED) {
    const stem_call *c = shared;
    const int64_t first = c->offsets[b], length = c->offsets[b + 1] - first;
    memcpy(c->to + (first + (c->open ? b : 0)) * c->width,
           c->from + (first + (c->open ? 0 : b)) * c->width,
           sizeof(float) * (size_t)(length * c->width));
}

/* From packed rows to rows with gaps of 0 (open), or back. */
static void move_rows(const shoal_model *model, const shoal_model_inputs *inputs,
                      bool open, const float *from, float *to) {
    const int64_t width = width_of(&model->config);
    stem_call c = {.offsets = inputs->offsets,
                   .width = width,
                   .open = open,
                   .from = from,
                   .to = to};
    sh_run_tasks(model->context, inputs->batch, move_task, &c);
    if (open)
        clear_gaps(inputs, width, to);
}

static void sum_task(void *shared, int64_t task, int thread UNUSED) {
    const stem_call *c = shared;
    const int64_t first = task * ROWS_OF_A_TASK * c->width;
    const int64_t end = min(first + ROWS_OF_A_TASK * c->width, c->count);
    for (int64_t i = first; i < end; i++)
        c->to[i] = c->from[i] + c->made[i];
}

/* ---- Both ways -------------------------------------------------------------------- */

/* The first site is that of the input, three are those of each layer, and two are behind
   the layers of other forms. A batch's share counts rows and gaps as the batch does. */
static dropout_mask mask_of(const shoal_model *model, const shoal_model_inputs *inputs,
                            int64_t block) {
    return sh_model_dropout(model, inputs, 2 + block,
                            inputs->first_row + inputs->first_sequence);
}

void sh_stem_forward(shoal_model *model, const shoal_model_inputs *inputs, float *x) {
    const int64_t count = model->config.convolutions;
    const int64_t rows = inputs->offsets[inputs->batch] + inputs->batch;
    float *made = model->stem.made;
    if (count == 0)
        return;
    move_rows(model, inputs, true, x, model->stem.blocks[0].x);
    for (int64_t i = 0; i < count; i++) {
        const stem_block *block = &model->stem.blocks[i];
        const dropout_mask mask = mask_of(model, inputs, i);
        const int64_t width = block->norm.size;
        sh_norm_forward(model->context, &block->norm, rows, block->x, block->normed,
                        block->statistics);
        clear_gaps(inputs, width, block->normed);
        sh_conv_forward(model->context, &block->conv, rows, block->normed, block->sums,
                        made);
        if (mask.rate > 0)
            sh_dropout_apply(model->context, &mask, rows, width, made, made);
        stem_call c = {.count = rows * width,
                       .width = width,
                       .from = block->x,
                       .made = made,
                       .to = i + 1 < count ? block[1].x : made};
        sh_run_tasks(model->context, ceil_divide(rows, ROWS_OF_A_TASK), sum_task, &c);
    }
    move_rows(model, inputs, false, made, x);
}

void sh_stem_backward(shoal_model *model, const shoal_model_inputs *inputs,
                      float *gradient) {
    const conv_stem *stem = &model->stem;
    const int64_t rows = inputs->offsets[inputs->batch] + inputs->batch;
    if (model->config.convolutions == 0)
        return;
    move_rows(model, inputs, true, gradient, stem->gradient);
    for (int64_t i = model->config.convolutions - 1; i >= 0; i--) {
        const stem_block *block = &stem->blocks[i];
        const dropout_mask mask = mask_of(model, inputs, i);
        const int64_t width = block->norm.size;
        sh_dropout_apply(model->context, &mask, rows, width, stem->gradient, stem->made);
        sh_conv_backward(model->context, &block->conv, rows, block->normed, block->sums,
                         stem->made, stem->inner);
        clear_gaps(inputs, width, stem->inner);
        sh_norm_backward(model->context, &block->norm, rows, block->x, block->statistics,
                         stem->inner, stem->gradient, stem->gradient, stem->norm_parts);
    }
    move_rows(model, inputs, false, stem->gradient, gradient);
}
