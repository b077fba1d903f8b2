/* Every layer but the linear one. */
#include "models/nn/layers.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "kernels/half.h"

/* Rows that one task works on. */
enum { ROW_BLOCK = 64 };

/* ---- Activations ------------------------------------------------------------------ */

enum { ELEMENT_BLOCK = 1 << 14 };

typedef struct {
    const shoal_context *context;
    activation kind;
    int64_t count;
    const float *x, *dy;
    float *dx;
} activation_call;

static void activation_back_task(void *shared, int64_t task, int thread UNUSED) {
    const activation_call *c = shared;
    int64_t first = task * ELEMENT_BLOCK;
    activation_slope(c->context, c->kind, min(ELEMENT_BLOCK, c->count - first),
                     c->x + first, c->dy + first, c->dx + first, NULL);
}

void sh_activation_backward(const shoal_context *context, activation kind, int64_t count,
                            const float *x, const float *dy, float *dx) {
    activation_call c = {context, kind, count, x, dy, dx};
    sh_run_tasks(context, ceil_divide(count, ELEMENT_BLOCK), activation_back_task, &c);
}

/* ---- Dropout ---------------------------------------------------------------------- */

/* One 64-bit number decides four elements, 16 bits each. A row's numbers are counted from
   row << 32, so that no two rows of up to 2^34 elements share one. */
void sh_dropout_factors(const dropout_mask *mask, int64_t row, int64_t left,
                        int64_t count, float *factors) {
    const uint32_t dropped = (uint32_t)(mask->rate * 65536.0f + 0.5f);
    const float kept = 65536.0f / (65536.0f - (float)dropped);
    const uint64_t key =
        random_bits(mask->seed ^ random_bits(mask->site, STREAM_DROPOUT, 0),
                    STREAM_DROPOUT, mask->step);
    uint64_t bits = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t column = (uint64_t)(left + i);
        if (i == 0 || column % 4 == 0)
            bits = random_bits(key, STREAM_DROPOUT,
                               ((uint64_t)(mask->first + row) << 32) + column / 4);
        uint32_t number = (uint32_t)(bits >> (16 * (column % 4))) & 0xffffu;
        factors[i] = number < dropped ? 0 : kept;
    }
}

void sh_dropout_row(const shoal_context *context, const dropout_mask *mask, int64_t row,
                    int64_t left, int64_t count, float *x) {
    float factors[DROPOUT_PIECE];
    for (int64_t first = 0; mask->rate > 0 && first < count; first += DROPOUT_PIECE) {
        int64_t some = min(DROPOUT_PIECE, count - first);
        sh_dropout_factors(mask, row, left + first, some, factors);
        context->kernels->multiply(some, factors, x + first);
    }
}

typedef struct {
    const shoal_context *context;
    const dropout_mask *mask;
    int64_t rows, size;
    const float *x;
    float *y;
} dropout_call;

static void dropout_task(void *shared, int64_t task, int thread UNUSED) {
    const dropout_call *c = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++) {
        float *y = c->y + row * c->size;
        if (c->y != c->x)
            memcpy(y, c->x + row * c->size, sizeof(float) * (size_t)c->size);
        sh_dropout_row(c->context, c->mask, row, 0, c->size, y);
    }
}

void sh_dropout_apply(const shoal_context *context, const dropout_mask *mask,
                      int64_t rows, int64_t size, const float *x, float *y) {
    dropout_call c = {context, mask, rows, size, x, y};
    sh_run_tasks(context, ceil_divide(rows, ROW_BLOCK), dropout_task, &c);
}

/* ---- Layer norm ------------------------------------------------------------------- */

enum { NORM_BLOCK = 256 }; /* rows whose part of the scale's gradient is one sum */

typedef struct {
    const shoal_context *context;
    const layer_norm *norm;
    int64_t rows;
    const float *x, *dy, *base;
    float *y, *statistics;
    float *parts; /* backward: [blocks][2][size] */
} norm_call;

static void norm_task(void *shared, int64_t task, int thread UNUSED) {
    const norm_call *c = shared;
    int64_t size = c->norm->size, first = task * ROW_BLOCK;
    sh_model_kernels(c->context)
        ->norm_rows(min(ROW_BLOCK, c->rows - first), size, c->x + first * size,
                    c->norm->scale.data, c->norm->shift.data, c->norm->epsilon,
                    c->y + first * size,
                    c->statistics ? c->statistics + 2 * first : NULL);
}

void sh_norm_forward(const shoal_context *context, const layer_norm *norm, int64_t rows,
                     const float *x, float *y, float *statistics) {
    norm_call c = {context, norm, rows, x, NULL, NULL, y, statistics, NULL};
    sh_run_tasks(context, ceil_divide(rows, ROW_BLOCK), norm_task, &c);
}

int64_t sh_norm_scratch(int64_t size, int64_t rows) {
    return 2 * size * ceil_divide(rows, NORM_BLOCK);
}

static void norm_back_task(void *shared, int64_t task, int thread UNUSED) {
    const norm_call *c = shared;
    int64_t size = c->norm->size, first = task * NORM_BLOCK;
    float *part = c->parts + 2 * size * task;
    memset(part, 0, sizeof(float) * 2 * (size_t)size);
    sh_model_kernels(c->context)
        ->norm_rows_slope(min(NORM_BLOCK, c->rows - first), size, c->x + first * size,
                          c->statistics + 2 * first, c->norm->scale.data,
                          c->dy + first * size, c->base ? c->base + first * size : NULL,
                          c->y + first * size, part, part + size);
}

void sh_norm_backward(const shoal_context *context, const layer_norm *norm, int64_t rows,
                      const float *x, const float *statistics, const float *dy,
                      const float *base, float *dx, float *scratch) {
    norm_call c = {context, norm, rows, x, dy, base, dx, (float *)statistics, scratch};
    int64_t blocks = ceil_divide(rows, NORM_BLOCK);
    sh_run_tasks(context, blocks, norm_back_task, &c);
    sh_model_kernels(context)->column_sums(blocks, norm->size, scratch, 2 * norm->size,
                                           norm->scale.gradient);
    sh_model_kernels(context)->column_sums(blocks, norm->size, scratch + norm->size,
                                           2 * norm->size, norm->shift.gradient);
}

/* ---- Tokens and positions --------------------------------------------------------- */

enum { COLUMN_BLOCK = 64 };

void sh_sinusoidal_positions(int64_t length, int64_t size, float *table) {
    for (int64_t i = 0; i < size; i++) {
        double slowness = pow(10000, (double)(i / 2 * 2) / (double)size);
        for (int64_t p = 0; p < length; p++) {
            double angle = (double)p / slowness;
            table[p * size + i] = (float)(i % 2 ? cos(angle) : sin(angle));
        }
    }
}

typedef struct {
    const shoal_context *context;
    const packing *sequences;
    int64_t rows, size;
    const int32_t *tokens;
    const float *table;
    float factor;
    float *out;
} embedding_call;

static void embed_task(void *shared, int64_t task, int thread UNUSED) {
    const embedding_call *c = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++) {
        const float *from = c->table + c->tokens[row] * c->size;
        float *to = c->out + row * c->size;
        for (int64_t i = 0; i < c->size; i++)
            to[i] = c->factor * from[i];
    }
}

void sh_embedding_forward(const shoal_context *context, int64_t rows, int64_t size,
                          const int32_t *tokens, const float *table, float factor,
                          float *out) {
    embedding_call c = {context, NULL, rows, size, tokens, table, factor, out};
    sh_run_tasks(context, ceil_divide(rows, ROW_BLOCK), embed_task, &c);
}

static void embed_add_task(void *shared, int64_t task, int thread UNUSED) {
    const embedding_call *c = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++)
        c->context->kernels->add(c->size,
                                 c->table + (c->tokens ? c->tokens[row] * c->size : 0),
                                 c->out + row * c->size);
}

void sh_embedding_add(const shoal_context *context, int64_t rows, int64_t size,
                      const int32_t *tokens, const float *table, float *out) {
    embedding_call c = {context, NULL, rows, size, tokens, table, 1, out};
    sh_run_tasks(context, ceil_divide(rows, ROW_BLOCK), embed_add_task, &c);
}

/* A task has some columns of every row, so that all rows of a token are added by the same
   task, in order. */
static void embed_back_task(void *shared, int64_t task, int thread UNUSED) {
    const embedding_call *c = shared;
    int64_t left = task * COLUMN_BLOCK, width = min(COLUMN_BLOCK, c->size - left);
    for (int64_t row = 0; row < c->rows; row++) {
        const float *from = c->table + row * c->size + left;
        float *to = c->out + (c->tokens ? c->tokens[row] * c->size : 0) + left;
        for (int64_t i = 0; i < width; i++)
            to[i] += c->factor * from[i];
    }
}

void sh_embedding_backward(const shoal_context *context, int64_t rows, int64_t size,
                           const int32_t *tokens, const float *dout, float factor,
                           float *gradient) {
    embedding_call c = {context, NULL, rows, size, tokens, dout, factor, gradient};
    sh_run_tasks(context, ceil_divide(size, COLUMN_BLOCK), embed_back_task, &c);
}

static void positions_task(void *shared, int64_t task, int thread UNUSED) {
    const embedding_call *c = shared;
    int64_t first = task * ROW_BLOCK, last = min(first + ROW_BLOCK, c->rows);
    int64_t low = 0, high = c->sequences->batch; /* offsets[low] <= row < offsets[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (c->sequences->offsets[middle] <= first)
            low = middle;
        else
            high = middle;
    }
    int64_t sequence = low;
    for (int64_t row = first; row < last; row++) {
        while (c->sequences->offsets[sequence + 1] <= row)
            sequence++;
        int64_t position = row - c->sequences->offsets[sequence];
        c->context->kernels->add(c->size, c->table + position * c->size,
                                 c->out + row * c->size);
    }
}

void sh_positions_forward(const shoal_context *context, const packing *sequences,
                          int64_t size, const float *table, float *x) {
    const int64_t rows = packing_rows(sequences);
    embedding_call c = {context, sequences, rows, size, NULL, table, 1, x};
    sh_run_tasks(context, ceil_divide(rows, ROW_BLOCK), positions_task, &c);
}

static void positions_back_task(void *shared, int64_t task, int thread UNUSED) {
    const embedding_call *c = shared;
    const int64_t *offsets = c->sequences->offsets;
    int64_t first = task * ROW_BLOCK;
    for (int64_t b = 0; b < c->sequences->batch; b++) {
        int64_t length = offsets[b + 1] - offsets[b];
        int64_t last = min(first + ROW_BLOCK, length);
        if (last > first)
            c->context->kernels->add((last - first) * c->size,
                                     c->table + (offsets[b] + first) * c->size,
                                     c->out + first * c->size);
    }
}

void sh_positions_backward(const shoal_context *context, const packing *sequences,
                           int64_t size, int64_t longest, const float *dout,
                           float *gradient) {
    embedding_call c = {context, sequences, 0, size, NULL, dout, 1, gradient};
    sh_run_tasks(context, ceil_divide(longest, ROW_BLOCK), positions_back_task, &c);
}

/* ---- Convolution over time -------------------------------------------------------- */

int64_t sh_conv_length(const conv1d *layer, int64_t length) {
    return ceil_divide(length, layer->stride);
}

void sh_conv_arrange(int64_t inputs, int64_t outputs, const void *weight, bool half,
                     float *arranged) {
    for (int64_t i = 0; i < inputs * outputs; i++)
        for (int64_t tap = 0; tap < CONV_TAPS; tap++) {
            int64_t from = i * CONV_TAPS + tap;
            arranged[tap * inputs * outputs + i] =
                half ? half_to_float(((const uint16_t *)weight)[from])
                     : ((const float *)weight)[from];
        }
}

/* A tap's product: rows first .. last - 1 of the output, and the row of x of the first,
   stride first + tap - 1; the next is `stride` rows further. Rows of x outside the
   sequence are 0 and are left out. */
typedef struct {
    int64_t first, last, x;
} tap_rows;

static tap_rows live_rows(const conv1d *layer, int64_t length, int64_t tap) {
    const int64_t first = tap == 0 ? 1 : 0;
    const int64_t beyond = ceil_divide(length - tap + 1, layer->stride);
    return (tap_rows){first, max(first, min(sh_conv_length(layer, length), beyond)),
                      first * layer->stride + tap - 1};
}

static const_matrix tap_weight(const conv1d *layer, int64_t tap) {
    const float *all = layer->weight.data;
    return (const_matrix){all + tap * layer->outputs * layer->inputs, layer->inputs};
}

typedef struct {
    const conv1d *layer;
    float *sums, *out; /* [conv_length][outputs] */
} conv_end;

static void end_conv(const void *shared, const shoal_context *context, int64_t first,
                     int64_t count, int64_t left, int64_t width) {
    const conv_end *e = shared;
    const conv1d *layer = e->layer;
    for (int64_t row = first; row < first + count; row++) {
        float *sums = e->sums + row * layer->outputs + left;
        float *out = e->out + row * layer->outputs + left;
        if (layer->bias.data)
            context->kernels->add(width, (const float *)layer->bias.data + left, sums);
        if (layer->active)
            activate(context, layer->kind, width, sums, out);
        else if (out != sums)
            memcpy(out, sums, sizeof *out * (size_t)width);
    }
}

void sh_conv_forward(const shoal_context *context, const conv1d *layer, int64_t length,
                     const float *x, float *before, float *out) {
    const int64_t outputs = layer->outputs, inputs = layer->inputs;
    const conv_end end = {layer, before ? before : out, out};
    memset(end.sums, 0,
           sizeof(float) * (size_t)(sh_conv_length(layer, length) * outputs));
    /* The middle tap exists for every row and so ends the sums. */
    const int64_t taps[CONV_TAPS] = {0, 2, 1};
    for (int i = 0; i < CONV_TAPS; i++) {
        const tap_rows live = live_rows(layer, length, taps[i]);
        const epilogue then = {.run = taps[i] == 1 ? end_conv : NULL, .shared = &end};
        sh_matmul_forward(context, live.last - live.first, inputs, outputs,
                          (const_matrix){x + live.x * inputs, inputs * layer->stride},
                          tap_weight(layer, taps[i]), true,
                          (matrix){end.sums + live.first * outputs, outputs}, then);
    }
}

void sh_conv_backward(const shoal_context *context, const conv1d *layer, int64_t length,
                      const float *x, const float *before, float *dout, float *dx) {
    const int64_t outputs = layer->outputs, inputs = layer->inputs;
    const int64_t step = inputs * layer->stride;
    if (layer->active)
        sh_activation_backward(context, layer->kind,
                               sh_conv_length(layer, length) * outputs, before, dout,
                               dout);
    if (dx)
        memset(dx, 0, sizeof *dx * (size_t)(length * inputs));
    for (int64_t tap = 0; tap < CONV_TAPS; tap++) {
        const tap_rows live = live_rows(layer, length, tap);
        const int64_t rows = live.last - live.first;
        const const_matrix dy = {dout + live.first * outputs, outputs};
        if (rows == 0)
            continue;
        sh_matmul_weights(context, rows, inputs, outputs, dy,
                          (const_matrix){x + live.x * inputs, step},
                          (matrix){layer->weight.gradient + tap * outputs * inputs,
                                   inputs},
                          tap == 1 ? layer->bias.gradient : NULL);
        if (dx)
            sh_matmul_data(context, rows, inputs, outputs, dy, tap_weight(layer, tap),
                           true, (matrix){dx + live.x * inputs, step}, (epilogue){0});
    }
}
