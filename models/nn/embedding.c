#include "models/nn/embedding.h"

#include <math.h>
#include <string.h>

#include "models/nn/rows.h"

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

int64_t sh_packing_sequence(const packing *sequences, int64_t row) {
    int64_t low = 0, high = sequences->batch; /* offsets[low] <= row < offsets[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (sequences->offsets[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

typedef struct {
    const crew *by;
    const packing *sequences;
    int64_t rows, size;
    const int32_t *tokens;
    const float *table;
    float factor;
    float *out;
} embedding_call;

static void embed_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const embedding_call *c = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++) {
        const float *from = c->table + c->tokens[row] * c->size;
        float *to = c->out + row * c->size;
        for (int64_t i = 0; i < c->size; i++)
            to[i] = c->factor * from[i];
    }
}

void sh_embedding_forward(const crew *by, int64_t rows, int64_t size,
                          const int32_t *tokens, const float *table, float factor,
                          float *out) {
    embedding_call c = {.by = by,
                        .rows = rows,
                        .size = size,
                        .tokens = tokens,
                        .table = table,
                        .factor = factor,
                        .out = out};
    sh_team_run(by->workers, ceil_divide(rows, ROW_BLOCK), embed_task, &c);
}

/* A task has some columns of every row: two rows of one token never meet in two tasks. */
static void embed_back_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const embedding_call *c = shared;
    int64_t left = task * COLUMN_BLOCK, width = min(COLUMN_BLOCK, c->size - left);
    for (int64_t row = 0; row < c->rows; row++) {
        const float *from = c->table + row * c->size + left;
        float *to = c->out + c->tokens[row] * c->size + left;
        for (int64_t i = 0; i < width; i++)
            to[i] += c->factor * from[i];
    }
}

void sh_embedding_backward(const crew *by, int64_t rows, int64_t size,
                           const int32_t *tokens, const float *dout, float factor,
                           float *gradient) {
    embedding_call c = {.by = by,
                        .rows = rows,
                        .size = size,
                        .tokens = tokens,
                        .table = dout,
                        .factor = factor,
                        .out = gradient};
    sh_team_run(by->workers, ceil_divide(size, COLUMN_BLOCK), embed_back_task, &c);
}

static void positions_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const embedding_call *c = shared;
    int64_t first = task * ROW_BLOCK, last = min(first + ROW_BLOCK, c->rows);
    int64_t sequence = sh_packing_sequence(c->sequences, first);
    for (int64_t row = first; row < last; row++) {
        while (c->sequences->offsets[sequence + 1] <= row)
            sequence++;
        int64_t position = row - c->sequences->offsets[sequence];
        c->by->rows->add(c->size, c->table + position * c->size, c->out + row * c->size);
    }
}

void sh_positions_forward(const crew *by, const packing *sequences, int64_t size,
                          const float *table, float *x) {
    embedding_call c = {.by = by,
                        .sequences = sequences,
                        .rows = packing_rows(sequences),
                        .size = size,
                        .table = table,
                        .out = x};
    sh_team_run(by->workers, ceil_divide(c.rows, ROW_BLOCK), positions_task, &c);
}

static void positions_back_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const embedding_call *c = shared;
    const int64_t *offsets = c->sequences->offsets;
    int64_t first = task * ROW_BLOCK;
    for (int64_t b = 0; b < c->sequences->batch; b++) {
        int64_t length = offsets[b + 1] - offsets[b];
        int64_t last = min(first + ROW_BLOCK, length);
        if (last > first)
            c->by->rows->add((last - first) * c->size,
                             c->table + (offsets[b] + first) * c->size,
                             c->out + first * c->size);
    }
}

void sh_positions_backward(const crew *by, const packing *sequences, int64_t size,
                           int64_t longest, const float *dout, float *gradient) {
    embedding_call c = {.by = by,
                        .sequences = sequences,
                        .size = size,
                        .table = dout,
                        .out = gradient};
    sh_team_run(by->workers, ceil_divide(longest, ROW_BLOCK), positions_back_task, &c);
}
