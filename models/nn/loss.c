#include "models/nn/loss.h"

#include <string.h>

#include "models/nn/rows.h"

typedef struct {
    const crew *by;
    pooling how;
    const packing *sequences;
    int64_t size;
    const float *from;
    float *to;
} pool_call;

static void pool_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const pool_call *c = shared;
    int64_t first = c->sequences->offsets[task];
    int64_t length = c->sequences->offsets[task + 1] - first;
    const float *x = c->from + first * c->size;
    float *out = c->to + task * c->size;
    memset(out, 0, sizeof(float) * (size_t)c->size);
    if (length == 0)
        return;
    c->by->rows->column_sums(c->how == POOL_FIRST ? 1 : length, c->size, x, c->size, out);
    if (c->how == POOL_MEAN)
        c->by->rows->scale(c->size, 1.0f / (float)length, out);
}

void sh_pool_forward(const crew *by, pooling how, const packing *sequences, int64_t size,
                     const float *x, float *out) {
    pool_call c = {by, how, sequences, size, x, out};
    sh_team_run(by->workers, sequences->batch, pool_task, &c);
}

static void pool_back_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const pool_call *c = shared;
    int64_t first = c->sequences->offsets[task];
    int64_t length = c->sequences->offsets[task + 1] - first;
    const float share = c->how == POOL_MEAN ? 1.0f / (float)length : 1;
    const float *dout = c->from + task * c->size;
    for (int64_t row = 0; row < length; row++) {
        float *dx = c->to + (first + row) * c->size;
        bool touched = c->how == POOL_MEAN || row == 0;
        for (int64_t i = 0; i < c->size; i++)
            dx[i] = touched ? share * dout[i] : 0;
    }
}

void sh_pool_backward(const crew *by, pooling how, const packing *sequences, int64_t size,
                      const float *dout, float *dx) {
    pool_call c = {by, how, sequences, size, dout, dx};
    sh_team_run(by->workers, sequences->batch, pool_back_task, &c);
}

typedef struct {
    const crew *by;
    int64_t rows, classes;
    const float *logits;
    const int32_t *targets;
    float factor;
    float *gradient, *row_losses;
    atomic_llong correct; /* whole numbers: the order of adding does not matter */
} entropy_call;

static void entropy_task(void *shared, int64_t task, int thread) {
    (void)thread;
    entropy_call *c = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows), correct = 0;
    for (int64_t row = task * ROW_BLOCK; row < last; row++) {
        float *gradient = c->gradient ? c->gradient + row * c->classes : NULL;
        c->row_losses[row] = 0;
        if (c->targets[row] == IGNORED_TARGET) {
            if (gradient)
                memset(gradient, 0, sizeof(float) * (size_t)c->classes);
            continue;
        }
        int64_t best;
        c->row_losses[row] =
            c->by->rows->entropy(c->classes, c->logits + row * c->classes,
                                 c->targets[row], c->factor, gradient, &best);
        correct += best == c->targets[row];
    }
    atomic_fetch_add(&c->correct, correct);
}

loss_result sh_cross_entropy(const crew *by, int64_t rows, int64_t classes,
                             const float *logits, const int32_t *targets, float *gradient,
                             float *row_losses) {
    loss_result result = {0};
    for (int64_t row = 0; row < rows; row++)
        result.counted += targets[row] != IGNORED_TARGET;
    entropy_call c = {.by = by,
                      .rows = rows,
                      .classes = classes,
                      .logits = logits,
                      .targets = targets,
                      .gradient = gradient,
                      .row_losses = row_losses};
    c.factor = result.counted ? 1.0f / (float)result.counted : 0;
    sh_team_run(by->workers, ceil_divide(rows, ROW_BLOCK), entropy_task, &c);
    double total = 0;
    for (int64_t row = 0; row < rows; row++)
        total += (double)row_losses[row];
    result.loss = result.counted ? total / (double)result.counted : 0;
    result.correct = atomic_load(&c.correct);
    return result;
}
