/* The encoder's way back. `gradient` [R][M] goes down the stream in place: with respect
   to a layer's output on entry, to its input on return. f(hidden) is computed again,
   together with its slope; everything else that is needed was kept. */
#include <string.h>

#include "models/nn/encoder_layout.h"
#include "models/nn/rows.h"

enum { PIECE = 256 };

/* The gradient behind a dropout; itself when there is none. */
static const float *behind_dropout(encoder *stack, dropout mask, int64_t rows,
                                   const float *gradient) {
    if (mask.rate <= 0)
        return gradient;
    sh_dropout_apply(&stack->by, &mask, rows, stack->model, gradient,
                     stack->grad_dropped);
    return stack->grad_dropped;
}

/* Behind the product that gives the gradient of `activated`. */
typedef struct {
    activation kind;
    dropout mask;
    const float *hidden;
    float *activated, *gradient;
    int64_t size;
} slope_call;

static void take_slope(const void *shared, const crew *by, int64_t first, int64_t count,
                       int64_t left, int64_t width) {
    const slope_call *s = shared;
    float factors[PIECE];
    for (int64_t row = first; row < first + count; row++)
        for (int64_t from = left; from < left + width; from += PIECE) {
            int64_t some = min(PIECE, left + width - from), at = row * s->size + from;
            by->rows->slope(s->kind, some, s->hidden + at, s->gradient + at,
                            s->gradient + at, s->activated + at);
            if (s->mask.rate > 0) {
                sh_dropout_factors(&s->mask, row, from, some, factors);
                by->rows->multiply(some, factors, s->gradient + at);
                by->rows->multiply(some, factors, s->activated + at);
            }
        }
}

/* From the gradient at the feed-forward's output to that at its input: overwrites `into`
   or is added to it. */
static void forward_branch(encoder *stack, const encoder_layer *weights,
                           const layer_memory *memory, int64_t rows, dropout inner,
                           const float *dy, bool onto, float *into) {
    const crew *by = &stack->by;
    const linear narrow = sh_narrow_linear(stack, weights);
    const linear widen = sh_widen_linear(stack, weights);
    const int64_t model = stack->model, wide = widen.outputs;
    slope_call s = {.kind = stack->shape.activation,
                    .mask = inner,
                    .hidden = memory->hidden,
                    .activated = stack->activated,
                    .gradient = stack->grad_hidden,
                    .size = wide};
    sh_matmul_data(by, rows, wide, model, (const_matrix){dy, model},
                   (const_matrix){narrow.weight.data, wide}, false,
                   (matrix){stack->grad_hidden, wide},
                   (epilogue){.run = take_slope, .shared = &s});
    sh_linear_backward(by, &narrow, rows, (const_matrix){stack->activated, wide},
                       (const_matrix){dy, model}, (matrix){0});
    sh_linear_backward(by, &widen, rows, (const_matrix){memory->forward_in, model},
                       (const_matrix){stack->grad_hidden, wide}, (matrix){0});
    sh_matmul_data(by, rows, model, wide, (const_matrix){stack->grad_hidden, wide},
                   (const_matrix){widen.weight.data, model}, onto, (matrix){into, model},
                   (epilogue){0});
}

typedef struct {
    const encoder *stack;
    int64_t rows;
} key_call;

/* The keys' gradient joins the queries', whose projection they share. */
static void join_keys(void *shared, int64_t task, int thread) {
    (void)thread;
    const key_call *c = shared;
    const encoder *stack = c->stack;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++)
        stack->by.rows->add(stack->model, stack->grad_keys + row * stack->width,
                            stack->grad_projected + row * stack->width);
}

static shoal_status attention_gradient(encoder *stack, const layer_memory *memory,
                                       int64_t rows, const float *dout) {
    shoal_inputs inputs = sh_attention_inputs(stack, memory);
    const int64_t model = stack->model;
    float *all = stack->grad_projected;
    const bool shared = sh_encoder_shares_keys(&stack->shape);
    shoal_gradients gradients = {.out = memory->attended,
                                 .dout = dout,
                                 .dq = all,
                                 .dk = shared ? stack->grad_keys : all + model,
                                 .dv = all + (shared ? model : 2 * model)};
    shoal_status status = shoal_backward(stack->plan, &inputs, &gradients);
    if (status == SHOAL_OK && stack->grad_keys) {
        key_call c = {stack, rows};
        sh_team_run(stack->by.workers, ceil_divide(rows, ROW_BLOCK), join_keys, &c);
    }
    return status;
}

/* From the rows that were asked for, which lie in front, to all: the others are 0. Backwards
   and in place, as no row moves to the front. */
static void spread_asked(const encoder *stack, int64_t rows, float *gradient) {
    const int64_t size = stack->model;
    int64_t left = stack->asked_count;
    for (int64_t row = rows - 1; row >= 0; row--) {
        float *to = gradient + row * size;
        if (left > 0 && stack->asked[left - 1] == row)
            memmove(to, gradient + --left * size, (size_t)size * sizeof(float));
        else
            memset(to, 0, (size_t)size * sizeof(float));
    }
}

/* The output product's way back: grad_rows is then the gradient of what the attention
   gave. dy may be `stream`, the gradient that goes by, which has all rows afterwards. */
static void output_branch(encoder *stack, const encoder_layer *weights, int64_t l,
                          int64_t rows, const float *dy, float *stream) {
    const bool asked = sh_layer_is_asked(stack, l);
    const linear output = sh_output_linear(stack, weights);
    const float *attended = asked ? sh_asked_attended(stack, l)
                                  : stack->layers[l].attended;
    sh_linear_backward(&stack->by, &output, sh_asked_rows(stack, l, rows),
                       (const_matrix){attended, stack->model},
                       (const_matrix){dy, stack->model},
                       (matrix){stack->grad_rows, stack->model});
    if (asked) {
        spread_asked(stack, rows, stack->grad_rows);
        spread_asked(stack, rows, stream);
    }
}

/* The same for the attention, behind output_branch. `in` is what was projected. */
static shoal_status attention_branch(encoder *stack, const encoder_layer *weights,
                                     const layer_memory *memory, int64_t rows,
                                     const float *in, bool onto, float *into) {
    const crew *by = &stack->by;
    const int64_t model = stack->model;
    shoal_status status = attention_gradient(stack, memory, rows, stack->grad_rows);
    if (status != SHOAL_OK)
        return status;
    projections parts = sh_projections_of(stack, weights);
    for (int i = 0; i < parts.count; i++) {
        const linear *part = &parts.parts[i];
        const_matrix d = {stack->grad_projected + parts.columns[i], stack->width};
        sh_linear_backward(by, part, rows, (const_matrix){in, model}, d, (matrix){0});
        sh_matmul_data(by, rows, model, part->outputs, d,
                       (const_matrix){part->weight.data, model}, onto || i > 0,
                       (matrix){into, model}, (epilogue){0});
    }
    return SHOAL_OK;
}

static shoal_status pre_norm_layer(encoder *stack, const encoder_layer *weights,
                                   int64_t l, int64_t rows, encoder_moment moment,
                                   const float *stream, float *gradient) {
    const layer_memory *memory = &stack->layers[l];
    const int64_t some = sh_asked_rows(stack, l, rows); /* behind the attention */
    const layer_norm second = sh_forward_norm(stack, weights);
    const layer_norm first = sh_attention_norm(stack, weights);
    const float *dy = behind_dropout(stack, sh_dropout_at(stack, moment, l, SITE_FORWARD),
                                     rows, gradient);
    forward_branch(stack, weights, memory, some,
                   sh_dropout_at(stack, moment, l, SITE_ACTIVATION), dy, false,
                   stack->grad_rows);
    sh_norm_backward(&stack->by, &second, some, memory->middle,
                     memory->forward_statistics, stack->grad_rows, gradient, gradient,
                     stack->norm_parts);
    dy = behind_dropout(stack, sh_dropout_at(stack, moment, l, SITE_ATTENTION), rows,
                        gradient);
    output_branch(stack, weights, l, rows, dy, gradient);
    shoal_status status = attention_branch(stack, weights, memory, rows,
                                           memory->attention_in, false, stack->grad_rows);
    if (status == SHOAL_OK)
        sh_norm_backward(&stack->by, &first, rows, stream, memory->attention_statistics,
                         stack->grad_rows, gradient, gradient, stack->norm_parts);
    return status;
}

static shoal_status post_norm_layer(encoder *stack, const encoder_layer *weights,
                                    int64_t l, int64_t rows, encoder_moment moment,
                                    const float *stream, float *gradient) {
    const layer_memory *memory = &stack->layers[l];
    const int64_t some = sh_asked_rows(stack, l, rows); /* behind the attention */
    const layer_norm second = sh_forward_norm(stack, weights);
    const layer_norm first = sh_attention_norm(stack, weights);
    sh_norm_backward(&stack->by, &second, some, memory->sum, memory->forward_statistics,
                     gradient, NULL, gradient, stack->norm_parts);
    const float *dy = behind_dropout(stack, sh_dropout_at(stack, moment, l, SITE_FORWARD),
                                     rows, gradient);
    forward_branch(stack, weights, memory, some,
                   sh_dropout_at(stack, moment, l, SITE_ACTIVATION), dy, true, gradient);
    sh_norm_backward(&stack->by, &first, some, memory->middle,
                     memory->attention_statistics, gradient, NULL, gradient,
                     stack->norm_parts);
    dy = behind_dropout(stack, sh_dropout_at(stack, moment, l, SITE_ATTENTION), rows,
                        gradient);
    output_branch(stack, weights, l, rows, dy, gradient);
    return attention_branch(stack, weights, memory, rows, stream, true, gradient);
}

shoal_status sh_encoder_backward(encoder *stack, const encoder_weights *weights,
                                 const packing *sequences, encoder_moment moment,
                                 const float *x, float *gradient) {
    if (!stack->limits.training)
        return sh_fail(stack->context, SHOAL_INVALID,
                       "encoder_backward: the encoder was made for inference");
    const int64_t rows = packing_rows(sequences), layers = stack->shape.layers;
    if (sh_ends_in_norm(&stack->shape)) {
        layer_norm norm = sh_final_norm(stack, weights);
        sh_norm_backward(&stack->by, &norm, sh_asked_rows(stack, layers - 1, rows),
                         layers ? stack->layers[layers - 1].out : x,
                         stack->final_statistics, gradient, NULL, gradient,
                         stack->norm_parts);
    }
    for (int64_t l = layers - 1; l >= 0; l--) {
        const float *stream = l > 0 ? stack->layers[l - 1].out : x;
        shoal_status status = (stack->shape.post_norm
                                   ? post_norm_layer
                                   : pre_norm_layer)(stack, &weights->layers[l], l, rows,
                                                     moment, stream, gradient);
        if (status != SHOAL_OK)
            return status;
    }
    return SHOAL_OK;
}
