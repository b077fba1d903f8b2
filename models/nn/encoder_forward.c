/* The encoder's way forward: a product, and what follows it while its block is in cache.
   */
#include <string.h>

#include "models/nn/encoder_layout.h"
#include "models/nn/rows.h"

enum { PIECE = 256 };

static shoal_status take_batch(encoder *stack, const packing *sequences) {
    const encoder_limits *limits = &stack->limits;
    if (sequences->batch < 0 || sequences->batch > limits->batch)
        return sh_fail(stack->context, SHOAL_INVALID,
                       "a batch of %lld sequences: this encoder was made for up to %lld",
                       (long long)sequences->batch, (long long)limits->batch);
    stack->offsets[0] = 0;
    for (int64_t b = 0; b < limits->batch; b++) {
        int64_t next = stack->offsets[b];
        if (b < sequences->batch) {
            next = sequences->offsets[b + 1];
            int64_t length = next - stack->offsets[b];
            if (sequences->offsets[0] != 0 || length < 0 || length > limits->length)
                return sh_fail(
                    stack->context, SHOAL_INVALID,
                    "sequence %lld of the batch has %lld rows: it must have 0 to "
                    "%lld, and the first begins at row 0",
                    (long long)b, (long long)length, (long long)limits->length);
        }
        if (next > limits->rows)
            return sh_fail(
                stack->context, SHOAL_INVALID,
                "the batch has over %lld rows, which this encoder was made for",
                (long long)limits->rows);
        stack->offsets[b + 1] = next; /* sequences beyond the batch are empty */
    }
    return SHOAL_OK;
}

/* Behind the attention's output product and behind the feed-forward's second:
   y = base + dropout(y + bias), and its norm. */
typedef struct {
    const float *bias, *base;
    const int32_t *base_rows; /* which row of base a row has; NULL: its own */
    dropout mask;
    float *y, *normed, *statistics;
    const layer_norm *norm; /* NULL: none follows */
    int64_t size;
} settling;

static void settle(const void *shared, const crew *by, int64_t first, int64_t count,
                   int64_t left, int64_t width) {
    const settling *s = shared;
    float factors[PIECE];
    for (int64_t row = first; row < first + count; row++) {
        float *y = s->y + row * s->size + left;
        if (s->bias)
            by->rows->add(width, s->bias + left, y);
        for (int64_t from = 0; s->mask.rate > 0 && from < width; from += PIECE) {
            int64_t some = min(PIECE, width - from);
            sh_dropout_factors(&s->mask, row, left + from, some, factors);
            by->rows->multiply(some, factors, y + from);
        }
        int64_t from = s->base_rows ? s->base_rows[row] : row;
        by->rows->add(width, s->base + from * s->size + left, y);
    }
    if (s->norm)
        by->rows->norm(count, s->size, s->y + first * s->size, s->norm->scale.data,
                       s->norm->shift.data, s->norm->epsilon, s->normed + first * s->size,
                       s->statistics ? s->statistics + 2 * first : NULL);
}

/* Behind the feed-forward's first product: hidden += bias, activated = f(hidden). */
typedef struct {
    const float *bias;
    activation kind;
    dropout mask;
    float *hidden, *activated;
    int64_t size;
} waking;

static void wake(const void *shared, const crew *by, int64_t first, int64_t count,
                 int64_t left, int64_t width) {
    const waking *w = shared;
    float factors[PIECE];
    for (int64_t row = first; row < first + count; row++) {
        float *hidden = w->hidden + row * w->size + left;
        float *activated = w->activated + row * w->size + left;
        if (w->bias)
            by->rows->add(width, w->bias + left, hidden);
        by->rows->activate(w->kind, width, hidden, activated);
        for (int64_t from = 0; w->mask.rate > 0 && from < width; from += PIECE) {
            int64_t some = min(PIECE, width - from);
            sh_dropout_factors(&w->mask, row, left + from, some, factors);
            by->rows->multiply(some, factors, activated + from);
        }
    }
}

static shoal_status run_attention(encoder *stack, const encoder_layer *weights,
                                  layer_memory *memory, int64_t rows, const float *in) {
    projections parts = sh_projections_of(stack, weights);
    for (int i = 0; i < parts.count; i++)
        sh_linear_forward(&stack->by, &parts.parts[i], rows,
                          (const_matrix){in, stack->model},
                          (matrix){memory->projected + parts.columns[i], stack->width},
                          stack->scratch);
    shoal_inputs inputs = sh_attention_inputs(stack, memory);
    return shoal_forward(stack->plan, &inputs, memory->attended);
}

typedef struct {
    const encoder *stack;
    const float *from;
    float *to;
} gathering;

static void gather_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const gathering *g = shared;
    const size_t size = (size_t)g->stack->model;
    int64_t last = min((task + 1) * ROW_BLOCK, g->stack->asked_count);
    for (int64_t i = task * ROW_BLOCK; i < last; i++)
        memcpy(g->to + (size_t)i * size, g->from + (size_t)g->stack->asked[i] * size,
               size * sizeof(float));
}

/* The attended rows that are asked for, one behind the other; all of them as they are. */
static const float *take_asked(const encoder *stack, int64_t l) {
    if (!sh_layer_is_asked(stack, l))
        return stack->layers[l].attended;
    gathering g = {stack, stack->layers[l].attended, sh_asked_attended(stack, l)};
    sh_team_run(stack->by.workers, ceil_divide(stack->asked_count, ROW_BLOCK),
                gather_task, &g);
    return g.to;
}

/* The product that ends a branch: y = base + dropout(x W' + bias), then the norm. */
static void end_branch(encoder *stack, const linear *layer, int64_t rows, const float *x,
                       settling s) {
    s.bias = layer->bias.data;
    s.size = stack->model;
    epilogue then = {.run = settle, .shared = &s, .whole_rows = true};
    sh_linear_forward_then(&stack->by, layer, rows, (const_matrix){x, layer->inputs},
                           (matrix){s.y, stack->model}, then, stack->scratch);
}

static void begin_forward(encoder *stack, const encoder_layer *weights,
                          layer_memory *memory, int64_t rows, dropout mask) {
    const linear widen = sh_widen_linear(stack, weights);
    waking w = {.bias = widen.bias.data,
                .kind = stack->shape.activation,
                .mask = mask,
                .hidden = memory->hidden,
                .activated = stack->activated,
                .size = widen.outputs};
    epilogue then = {.run = wake, .shared = &w};
    sh_linear_forward_then(&stack->by, &widen, rows,
                           (const_matrix){memory->forward_in, stack->model},
                           (matrix){memory->hidden, widen.outputs}, then, stack->scratch);
}

static shoal_status run_layer(encoder *stack, const encoder_weights *weights, int64_t l,
                              int64_t rows, encoder_moment moment, const float *stream) {
    const encoder_layer *mine = &weights->layers[l];
    layer_memory *memory = &stack->layers[l];
    const bool post = stack->shape.post_norm, last = l + 1 == stack->shape.layers;
    shoal_status status =
        run_attention(stack, mine, memory, rows, post ? stream : memory->attention_in);
    if (status != SHOAL_OK)
        return status;
    /* Both orders have a norm of `middle` here: post-norm's first, pre-norm's second. */
    layer_norm norm = post ? sh_attention_norm(stack, mine)
                           : sh_forward_norm(stack, mine);
    linear output = sh_output_linear(stack, mine);
    const float *attended = take_asked(stack, l);
    rows = sh_asked_rows(stack, l, rows);
    end_branch(stack, &output, rows, attended,
               (settling){.base = stream,
                          .base_rows = sh_layer_is_asked(stack, l) ? stack->asked : NULL,
                          .mask = sh_dropout_at(stack, moment, l, SITE_ATTENTION),
                          .y = memory->middle,
                          .normed = memory->forward_in,
                          .statistics = post ? memory->attention_statistics
                                             : memory->forward_statistics,
                          .norm = &norm});
    begin_forward(stack, mine, memory, rows,
                  sh_dropout_at(stack, moment, l, SITE_ACTIVATION));
    settling s = {.base = post ? memory->forward_in : memory->middle,
                  .mask = sh_dropout_at(stack, moment, l, SITE_FORWARD),
                  .y = memory->sum,
                  .norm = &norm};
    if (post) {
        norm = sh_forward_norm(stack, mine);
        s.normed = memory->out;
        s.statistics = memory->forward_statistics;
    } else if (!last) { /* the next layer's first norm, while the rows are in cache */
        norm = sh_attention_norm(stack, &weights->layers[l + 1]);
        s.normed = stack->layers[l + 1].attention_in;
        s.statistics = stack->layers[l + 1].attention_statistics;
    } else if (sh_ends_in_norm(&stack->shape)) {
        norm = sh_final_norm(stack, weights);
        s.normed = stack->finished;
        s.statistics = stack->final_statistics;
    } else {
        s.norm = NULL;
    }
    linear narrow = sh_narrow_linear(stack, mine);
    end_branch(stack, &narrow, rows, stack->activated, s);
    return SHOAL_OK;
}

shoal_status sh_encoder_forward(encoder *stack, const encoder_weights *weights,
                                const packing *sequences, encoder_moment moment,
                                const float *x, const float **out) {
    shoal_status status = take_batch(stack, sequences);
    if (status != SHOAL_OK)
        return status;
    const int64_t rows = packing_rows(sequences), layers = stack->shape.layers;
    const bool final = sh_ends_in_norm(&stack->shape);
    *out = x;
    if (!stack->shape.post_norm && (layers > 0 || final)) {
        layer_norm first = layers ? sh_attention_norm(stack, &weights->layers[0])
                                  : sh_final_norm(stack, weights);
        sh_norm_forward(&stack->by, &first, rows, x,
                        layers ? stack->layers[0].attention_in : stack->finished,
                        layers ? stack->layers[0].attention_statistics
                               : stack->final_statistics);
    }
    for (int64_t l = 0; l < layers; l++) {
        status = run_layer(stack, weights, l, rows, moment, *out);
        if (status != SHOAL_OK)
            return status;
        *out = stack->layers[l].out;
    }
    if (final)
        *out = stack->finished;
    return SHOAL_OK;
}
