/* What BERT and RoBERTa have around their layers: types and a norm in front, a head
   behind; forward beside backward.

   R: rows of a batch, M: features of a row inside the model. */
#include <math.h>

#include "models/nn/model.h"

static bool has_head(const shoal_model_config *config) {
    return config->form != SHOAL_FORM_PLAIN && config->pooling != SHOAL_POOLING_NONE;
}

bool sh_frame_narrows(const shoal_model_config *config) {
    return has_head(config) && config->pooling == SHOAL_POOLING_FIRST;
}

/* ---- Checks ---------------------------------------------------------------------- */

shoal_status sh_frame_check(shoal_context *context, const shoal_model_config *config) {
    const bool framed = config->form != SHOAL_FORM_PLAIN;
    if (config->form < SHOAL_FORM_PLAIN || config->form > SHOAL_FORM_ROBERTA)
        return sh_fail(context, SHOAL_INVALID, "invalid value for form");
    if (config->types < 0 || config->types > 65536 || (config->types > 0 && !framed))
        return sh_fail(context, SHOAL_INVALID,
                       "types is %lld: it must be from 0 to 65536, and 0 unless the form "
                       "is BERT's or RoBERTa's",
                       (long long)config->types);
    if (!(config->epsilon >= 0 && config->epsilon < 1))
        return sh_fail(context, SHOAL_INVALID,
                       "model: epsilon is %g: it must be at least 0 and below 1",
                       (double)config->epsilon);
    if (framed && (!config->vocabulary || config->norm != SHOAL_NORM_POST ||
                   config->positions != SHOAL_POSITIONS_LEARNED))
        return sh_fail(context, SHOAL_INVALID,
                       "models of BERT's and RoBERTa's form need a vocabulary, "
                       "SHOAL_NORM_POST and SHOAL_POSITIONS_LEARNED positions");
    return SHOAL_OK;
}

shoal_status sh_frame_check_inputs(const shoal_model *model,
                                   const shoal_model_inputs *inputs) {
    const int64_t rows = inputs->offsets[inputs->batch];
    for (int64_t b = 0; sh_frame_narrows(&model->config) && b < inputs->batch; b++)
        if (inputs->offsets[b] == inputs->offsets[b + 1])
            return sh_fail(
                model->context, SHOAL_INVALID,
                "sequence %lld is empty: pooling by its first row is impossible",
                (long long)b);
    for (int64_t row = 0; model->config.types && inputs->types && row < rows; row++)
        if (inputs->types[row] < 0 || inputs->types[row] >= model->config.types)
            return sh_fail(model->context, SHOAL_INVALID,
                           "type %d at row %lld: it must be from 0 to %lld",
                           (int)inputs->types[row], (long long)row,
                           (long long)model->config.types - 1);
    return SHOAL_OK;
}

/* ---- Parameters and memory ------------------------------------------------------- */

void sh_frame_describe(parameters *into, const shoal_model_config *config) {
    const int64_t width = width_of(config);
    parameter_shape types = matrix_shape(START_NORMAL, config->types, width);
    parameter_shape head = matrix_shape(START_NORMAL, width, width);
    types.spread = head.spread = 0.02f;
    if (config->form == SHOAL_FORM_PLAIN)
        return;
    if (config->types)
        sh_parameters_add(into, types, "types.weight");
    sh_parameters_add(into, vector_shape(START_ONE, width), "input_norm.scale");
    sh_parameters_add(into, vector_shape(START_ZERO, width), "input_norm.shift");
    if (!has_head(config))
        return;
    sh_parameters_add(into, head, "head.weight");
    sh_parameters_add(into, vector_shape(START_ZERO, width), "head.bias");
}

void sh_frame_bind(shoal_model *model) {
    const parameters *arena = model->arena;
    text_frame *frame = &model->frame;
    const int64_t width = width_of(&model->config);
    frame->types = sh_parameters_tensor(arena, "types.weight");
    frame->norm = sh_model_norm(model, "input_norm");
    frame->head = (linear){width, width, sh_parameters_tensor(arena, "head.weight"),
                           sh_parameters_tensor(arena, "head.bias")};
}

void sh_frame_place(shoal_model *model, block_layout *block) {
    const encoder_limits *limits = &model->limits;
    const int64_t width = width_of(&model->config);
    text_frame *frame = &model->frame;
    if (model->config.form == SHOAL_FORM_PLAIN)
        return;
    frame->summed = model->x;
    if (limits->training) {
        frame->summed = reserve_floats(block, limits->rows, width);
        frame->statistics = reserve_floats(block, limits->rows, 2);
        frame->norm_parts =
            reserve_floats(block, sh_norm_scratch(width, limits->rows), 1);
    }
    if (!has_head(&model->config))
        return;
    frame->firsts = sh_reserve(block, limits->batch, sizeof(int32_t));
    frame->head_out = reserve_floats(block, limits->batch, width);
    frame->output_in = reserve_floats(block, limits->batch, width);
    frame->head_dropped = reserve_floats(block, limits->batch, width);
    frame->head_gradient = reserve_floats(block, limits->batch, width);
}

/* ---- In front of the layers ------------------------------------------------------- */

void sh_frame_input(shoal_model *model, const shoal_model_inputs *inputs) {
    const text_frame *frame = &model->frame;
    const int64_t rows = inputs->offsets[inputs->batch];
    if (frame->types.data)
        sh_embedding_add(model->context, rows, frame->norm.size, inputs->types,
                         frame->types.data, frame->summed);
    sh_norm_forward(model->context, &frame->norm, rows, frame->summed, model->x,
                    frame->statistics);
}

void sh_frame_input_back(shoal_model *model, const shoal_model_inputs *inputs,
                         float *gradient) {
    const text_frame *frame = &model->frame;
    const int64_t rows = inputs->offsets[inputs->batch];
    sh_norm_backward(model->context, &frame->norm, rows, frame->summed, frame->statistics,
                     gradient, NULL, gradient, frame->norm_parts);
    if (frame->types.gradient)
        sh_embedding_backward(model->context, rows, frame->norm.size, inputs->types,
                              gradient, 1, frame->types.gradient);
}

/* ---- Behind the layers ----------------------------------------------------------- */

/* Two sites after those of the layers: in front of the output, and of the head. */
enum { BEFORE_OUTPUT, BEFORE_HEAD };

static dropout_mask mask_at(const shoal_model *model, const shoal_model_inputs *inputs,
                            int which) {
    dropout_mask mask = sh_model_dropout(model, inputs, which, inputs->first_sequence);
    if (which == BEFORE_HEAD && model->config.form != SHOAL_FORM_ROBERTA)
        mask.rate = 0;
    return mask;
}

const float *sh_frame_head(shoal_model *model, const shoal_model_inputs *inputs,
                           const float *rows) {
    text_frame *frame = &model->frame;
    const int64_t width = frame->norm.size, batch = inputs->batch;
    const dropout_mask inner = mask_at(model, inputs, BEFORE_HEAD);
    const dropout_mask outer = mask_at(model, inputs, BEFORE_OUTPUT);
    if (!has_head(&model->config))
        return rows;
    frame->head_in = rows;
    if (inner.rate > 0) {
        sh_dropout_apply(model->context, &inner, batch, width, rows, frame->head_dropped);
        frame->head_in = frame->head_dropped;
    }
    sh_linear_forward(model->context, &frame->head, batch,
                      (const_matrix){frame->head_in, width},
                      (matrix){frame->head_out, width}, NULL);
    for (int64_t i = 0; i < batch * width; i++)
        frame->head_out[i] = tanhf(frame->head_out[i]);
    if (outer.rate <= 0)
        return frame->head_out;
    sh_dropout_apply(model->context, &outer, batch, width, frame->head_out,
                     frame->output_in);
    return frame->output_in;
}

void sh_frame_head_back(shoal_model *model, const shoal_model_inputs *inputs,
                        float *gradient) {
    const text_frame *frame = &model->frame;
    const int64_t width = frame->norm.size, batch = inputs->batch;
    const dropout_mask inner = mask_at(model, inputs, BEFORE_HEAD);
    const dropout_mask outer = mask_at(model, inputs, BEFORE_OUTPUT);
    if (!has_head(&model->config))
        return;
    if (outer.rate > 0)
        sh_dropout_apply(model->context, &outer, batch, width, gradient, gradient);
    for (int64_t i = 0; i < batch * width; i++)
        frame->head_gradient[i] = gradient[i] *
                                  (1 - frame->head_out[i] * frame->head_out[i]);
    sh_linear_backward(model->context, &frame->head, batch,
                       (const_matrix){frame->head_in, width},
                       (const_matrix){frame->head_gradient, width},
                       (matrix){gradient, width});
    if (inner.rate > 0)
        sh_dropout_apply(model->context, &inner, batch, width, gradient, gradient);
}
