#include "models/nn/activation.h"

#include "models/nn/rows.h"

enum { ELEMENT_BLOCK = 1 << 14 };

typedef struct {
    const crew *by;
    activation kind;
    int64_t count;
    const float *x, *dy;
    float *out;
} activation_call;

static void forward_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const activation_call *c = shared;
    int64_t first = task * ELEMENT_BLOCK;
    c->by->rows->activate(c->kind, min(ELEMENT_BLOCK, c->count - first), c->x + first,
                          c->out + first);
}

void sh_activation_forward(const crew *by, activation kind, int64_t count, const float *x,
                           float *out) {
    activation_call c = {.by = by, .kind = kind, .count = count, .x = x, .out = out};
    sh_team_run(by->workers, ceil_divide(count, ELEMENT_BLOCK), forward_task, &c);
}

static void backward_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const activation_call *c = shared;
    int64_t first = task * ELEMENT_BLOCK;
    c->by->rows->slope(c->kind, min(ELEMENT_BLOCK, c->count - first), c->x + first,
                       c->dy + first, c->out + first, NULL);
}

void sh_activation_backward(const crew *by, activation kind, int64_t count,
                            const float *x, const float *dy, float *dx) {
    activation_call c =
        {.by = by, .kind = kind, .count = count, .x = x, .dy = dy, .out = dx};
    sh_team_run(by->workers, ceil_divide(count, ELEMENT_BLOCK), backward_task, &c);
}
