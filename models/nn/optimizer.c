#include "models/nn/optimizer.h"

#include <math.h>
#include <string.h>

#include "models/nn/rows.h"

enum { PIECE = 1 << 14, NORM_PIECES = 256 };

typedef struct {
    const crew *by;
    parameters *arena;
    int64_t block;
    update_numbers how;
    optimizer_state *state;
    float factor;
    float *averaged;
    double sums[NORM_PIECES];
} vector_call;

static int64_t extent(const vector_call *c, int64_t task, int64_t *first) {
    *first = task * c->block;
    return min(c->block, c->arena->size - *first);
}

/* The numbers of step t that are the same for every element. */
static update_numbers numbers_of(const optimizer_settings *settings, double rate,
                                 int64_t step) {
    const double beta1 = settings->beta1, beta2 = settings->beta2;
    const double t = (double)step;
    const double left1 = 1 - pow(beta1, t), left2 = 1 - pow(beta2, t);
    double factor = rate / left1;
    bool adaptive = true;
    if (settings->kind == OPTIMIZER_RADAM) {
        const double longest = 2 / (1 - beta2) - 1;
        const double rho = longest - 2 * t * (1 - left2) / left2;
        adaptive = rho > (settings->rectified_above > 0 ? settings->rectified_above : 4);
        if (adaptive)
            factor *= sqrt((rho - 4) * (rho - 2) * longest /
                           ((longest - 4) * (longest - 2) * rho));
    }
    const bool coupled = settings->decay_in_gradient;
    return (update_numbers){.beta1 = (float)beta1,
                            .beta2 = (float)beta2,
                            .coupled = coupled ? (float)settings->weight_decay : 0,
                            .keep = coupled ? 1
                                            : (float)(1 - rate * settings->weight_decay),
                            .momentum = (float)factor,
                            .inverse = (float)(1 / left2),
                            .epsilon = (float)settings->epsilon,
                            .adaptive = adaptive};
}

static void update_task(void *shared, int64_t task, int thread) {
    (void)thread;
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    c->by->rows->update(count, &c->how, c->arena->gradients + first,
                        c->state->first + first, c->state->second + first,
                        c->arena->values + first);
}

void sh_optimizer_step(const crew *by, const optimizer_settings *settings, double rate,
                       parameters *arena, optimizer_state *state) {
    state->step++;
    vector_call c = {.by = by,
                     .arena = arena,
                     .block = PIECE,
                     .how = numbers_of(settings, rate, state->step),
                     .state = state};
    sh_team_run(by->workers, ceil_divide(arena->size, PIECE), update_task, &c);
}

static void squares_task(void *shared, int64_t task, int thread) {
    (void)thread;
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    c->sums[task] = c->by->rows->squares(count, c->arena->gradients + first);
}

double sh_gradients_norm(const crew *by, const parameters *arena) {
    vector_call c = {.by = by, .arena = (parameters *)arena};
    c.block = ceil_divide(arena->size, NORM_PIECES);
    if (arena->size == 0)
        return 0;
    int64_t pieces = ceil_divide(arena->size, c.block);
    sh_team_run(by->workers, pieces, squares_task, &c);
    double total = 0;
    for (int64_t i = 0; i < pieces; i++)
        total += c.sums[i];
    return sqrt(total);
}

static void scale_task(void *shared, int64_t task, int thread) {
    (void)thread;
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    c->by->rows->scale(count, c->factor, c->arena->gradients + first);
}

double sh_gradients_clip(const crew *by, parameters *arena, double limit) {
    double norm = sh_gradients_norm(by, arena);
    if (limit > 0 && isfinite(norm) && norm > limit) {
        vector_call c = {.by = by,
                         .arena = arena,
                         .block = PIECE,
                         .factor = (float)(limit / norm)};
        sh_team_run(by->workers, ceil_divide(arena->size, PIECE), scale_task, &c);
    }
    return norm;
}

static void average_task(void *shared, int64_t task, int thread) {
    (void)thread;
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    c->by->rows->approach(count, c->factor, c->arena->values + first,
                          c->averaged + first);
}

void sh_weights_average(const crew *by, const parameters *arena, double decay,
                        int64_t count, float *averaged) {
    double step = count > 0 ? 1 - decay : 1;
    if (count == 0)
        memset(averaged, 0, sizeof *averaged * (size_t)arena->size);
    vector_call c = {.by = by,
                     .arena = (parameters *)arena,
                     .block = PIECE,
                     .factor = (float)step,
                     .averaged = averaged};
    sh_team_run(by->workers, ceil_divide(arena->size, PIECE), average_task, &c);
}
