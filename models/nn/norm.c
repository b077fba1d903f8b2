#include "models/nn/norm.h"

#include <string.h>

#include "models/nn/rows.h"

enum { NORM_BLOCK = 256 }; /* rows whose part of the scale's gradient is one sum */

typedef struct {
    const crew *by;
    const layer_norm *norm;
    int64_t rows;
    const float *x, *dy, *base;
    float *y, *statistics;
    float *parts; /* backward: [blocks][2][size] */
} norm_call;

static void forward_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const norm_call *c = shared;
    int64_t size = c->norm->size, first = task * ROW_BLOCK;
    c->by->rows->norm(min(ROW_BLOCK, c->rows - first), size, c->x + first * size,
                      c->norm->scale.data, c->norm->shift.data, c->norm->epsilon,
                      c->y + first * size,
                      c->statistics ? c->statistics + 2 * first : NULL);
}

void sh_norm_forward(const crew *by, const layer_norm *norm, int64_t rows, const float *x,
                     float *y, float *statistics) {
    norm_call c =
        {.by = by, .norm = norm, .rows = rows, .x = x, .y = y, .statistics = statistics};
    sh_team_run(by->workers, ceil_divide(rows, ROW_BLOCK), forward_task, &c);
}

int64_t sh_norm_scratch(const layer_norm *norm, int64_t rows) {
    return 2 * norm->size * ceil_divide(rows, NORM_BLOCK);
}

static void backward_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const norm_call *c = shared;
    int64_t size = c->norm->size, first = task * NORM_BLOCK;
    float *part = c->parts + 2 * size * task;
    memset(part, 0, sizeof(float) * 2 * (size_t)size);
    c->by->rows->norm_slope(min(NORM_BLOCK, c->rows - first), size, c->x + first * size,
                            c->statistics + 2 * first, c->norm->scale.data,
                            c->dy + first * size, c->base ? c->base + first * size : NULL,
                            c->y + first * size, part, part + size);
}

void sh_norm_backward(const crew *by, const layer_norm *norm, int64_t rows,
                      const float *x, const float *statistics, const float *dy,
                      const float *base, float *dx, float *scratch) {
    norm_call c = {.by = by,
                   .norm = norm,
                   .rows = rows,
                   .x = x,
                   .dy = dy,
                   .base = base,
                   .y = dx,
                   .statistics = (float *)statistics,
                   .parts = scratch};
    int64_t blocks = ceil_divide(rows, NORM_BLOCK);
    sh_team_run(by->workers, blocks, backward_task, &c);
    by->rows->column_sums(blocks, norm->size, scratch, 2 * norm->size,
                          norm->scale.gradient);
    by->rows->column_sums(blocks, norm->size, scratch + norm->size, 2 * norm->size,
                          norm->shift.gradient);
}
