/* Clipping, optimizers and averages over all parameters as one vector, and the learning
   rate. Everything is elementwise or has one order of sums: threads change nothing. */
#include "models/nn/model.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "models/kernels/kernels.h"

enum { PIECE = 1 << 14, NORM_PIECES = 256 };

/* One pass over the vectors, in tasks of `block` elements. */
typedef struct {
    const shoal_context *context;
    const parameters *arena;
    int64_t block;
    const shoal_optimizer *optimizer;
    adam_numbers how;
    float factor;
    double sums[NORM_PIECES];
} vector_call;

static int64_t extent(const vector_call *c, int64_t task, int64_t *first) {
    *first = task * c->block;
    return min(c->block, c->arena->size - *first);
}

static void run_pass(vector_call *c, task_function *task) {
    sh_run_tasks(c->context, ceil_divide(c->arena->size, c->block), task, c);
}

/* ---- Clipping -------------------------------------------------------------------- */

static void squares_task(void *shared, int64_t task, int thread UNUSED) {
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    sh_model_kernels(c->context)
        ->sum_squares(count, c->arena->gradients + first, &c->sums[task]);
}

static void scale_task(void *shared, int64_t task, int thread UNUSED) {
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    sh_model_kernels(c->context)->scale_by(count, c->factor, c->arena->gradients + first);
}

shoal_status shoal_gradients_clip(shoal_model *model, double limit, double *norm) {
    if (!model || model->owner || !model->arena->gradients || !(limit >= 0))
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model is NULL or has no gradients, or limit is negative");
    vector_call c = {.context = model->context, .arena = model->arena};
    /* From a sum in double precision. */
    double total = 0;
    c.block = ceil_divide(c.arena->size, NORM_PIECES);
    run_pass(&c, squares_task);
    for (int64_t i = 0; i < ceil_divide(c.arena->size, c.block); i++)
        total += c.sums[i];
    const double before = sqrt(total);
    if (norm)
        *norm = before;
    if (!isfinite(before))
        return sh_fail(model->context, SHOAL_INVALID,
                       "the gradient is not finite: the training has diverged; try a "
                       "smaller learning rate, a warm-up or a smaller limit");
    if (limit > 0 && before > limit) {
        c.block = PIECE;
        c.factor = (float)(limit / before);
        run_pass(&c, scale_task);
    }
    return SHOAL_OK;
}

/* ---- Creation -------------------------------------------------------------------- */

void shoal_optimizer_config_init(shoal_optimizer_config *config, size_t size) {
    const shoal_optimizer_config known = {.size = sizeof known,
                                          .kind = SHOAL_OPTIMIZER_KIND_RADAM,
                                          .beta1 = 0.9f,
                                          .beta2 = 0.999f,
                                          .epsilon = 1e-8f,
                                          .weight_decay = 0.01f,
                                          .rectify_above = 4};
    sh_write_struct(config, size, &known, sizeof known);
}

static bool is_share(float value) {
    return value >= 0 && value < 1;
}

static void place(void *argument, block_layout *block) {
    shoal_optimizer *optimizer = argument;
    const int64_t size = optimizer->model->arena->size;
    sh_reserve(block, 1, sizeof *optimizer);
    optimizer->first = sh_reserve(block, size, sizeof(float));
    optimizer->second = sh_reserve(block, size, sizeof(float));
    if (optimizer->config.average > 0)
        optimizer->averaged = sh_reserve(block, size, sizeof(float));
}

shoal_status shoal_optimizer_create(shoal_model *model,
                                    const shoal_optimizer_config *config,
                                    shoal_optimizer **optimizer) {
    shoal_optimizer_config own = shoal_optimizer_config_defaults();
    if (optimizer)
        *optimizer = NULL;
    if (!model || !optimizer || model->owner || !model->arena->gradients)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or optimizer is NULL, or the model has no gradients");
    TRY(READ_STRUCT(model->context, shoal_optimizer_config, config, &own));
    config = &own;
    if (config->kind < SHOAL_OPTIMIZER_KIND_RADAM ||
        config->kind > SHOAL_OPTIMIZER_KIND_ADAM_L2)
        return sh_fail(model->context, SHOAL_INVALID, "unknown optimizer %d",
                       (int)config->kind);
    if (!is_share(config->beta1) || !is_share(config->beta2) ||
        !is_share(config->average) || !(config->epsilon > 0) ||
        !isfinite(config->epsilon) || !(config->weight_decay >= 0) ||
        !isfinite(config->weight_decay) || !(config->rectify_above >= 4))
        return sh_fail(model->context, SHOAL_INVALID,
                       "beta1, beta2 and average must be from 0 to below 1, epsilon "
                       "above 0, weight_decay 0 or more and rectify_above 4 or more");
    shoal_optimizer made = {.model = model, .config = *config};
    *optimizer = sh_allocate_parts(model->context, place, &made, &made.bytes);
    if (!*optimizer)
        return SHOAL_NO_MEMORY;
    memset(*optimizer, 0, made.bytes);
    **optimizer = made;
    return SHOAL_OK;
}

void shoal_optimizer_destroy(shoal_optimizer *optimizer) {
    if (optimizer)
        sh_release(optimizer->model->context, optimizer);
}

size_t shoal_optimizer_workspace(const shoal_optimizer *optimizer) {
    return optimizer ? optimizer->bytes : 0;
}

int64_t shoal_optimizer_steps(const shoal_optimizer *optimizer) {
    return optimizer ? optimizer->steps : 0;
}

int64_t shoal_optimizer_vectors(shoal_optimizer *optimizer, float **first, float **second,
                                float **averaged) {
    if (!optimizer)
        return 0;
    if (first)
        *first = optimizer->first;
    if (second)
        *second = optimizer->second;
    if (averaged)
        *averaged = optimizer->averaged;
    return optimizer->model->arena->size;
}

/* ---- A step ---------------------------------------------------------------------- */

/* The numbers of step t that are the same for every element. */
static adam_numbers numbers_of(const shoal_optimizer_config *config, double rate,
                               int64_t step) {
    const double beta1 = config->beta1, beta2 = config->beta2, t = (double)step;
    const double left1 = 1 - pow(beta1, t), left2 = 1 - pow(beta2, t);
    const double decay = config->weight_decay;
    const bool rectified = config->kind == SHOAL_OPTIMIZER_KIND_RADAM ||
                           config->kind == SHOAL_OPTIMIZER_KIND_RADAM_L2;
    const bool coupled = config->kind == SHOAL_OPTIMIZER_KIND_RADAM_L2 ||
                         config->kind == SHOAL_OPTIMIZER_KIND_ADAM_L2;
    double factor = rate / left1;
    bool adaptive = true;
    if (rectified) {
        const double longest = 2 / (1 - beta2) - 1;
        const double rho = longest - 2 * t * (1 - left2) / left2;
        adaptive = rho > (double)config->rectify_above;
        if (adaptive)
            factor *= sqrt((rho - 4) * (rho - 2) * longest /
                           ((longest - 4) * (longest - 2) * rho));
    }
    return (adam_numbers){.beta1 = (float)beta1,
                          .beta2 = (float)beta2,
                          .coupled = coupled ? (float)decay : 0,
                          .keep = coupled ? 1 : (float)(1 - rate * decay),
                          .momentum = (float)factor,
                          .inverse = (float)(1 / left2),
                          .epsilon = config->epsilon,
                          .adaptive = adaptive};
}

static void update_task(void *shared, int64_t task, int thread UNUSED) {
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    sh_model_kernels(c->context)
        ->adam(count, &c->how, c->arena->gradients + first, c->optimizer->first + first,
               c->optimizer->second + first, c->arena->values + first);
}

static void average_task(void *shared, int64_t task, int thread UNUSED) {
    vector_call *c = shared;
    int64_t first, count = extent(c, task, &first);
    sh_model_kernels(c->context)
        ->lerp(count, c->factor, c->arena->values + first,
               c->optimizer->averaged + first);
}

shoal_status shoal_optimizer_step(shoal_optimizer *optimizer, double learning_rate) {
    shoal_context *context = optimizer ? optimizer->model->context : NULL;
    if (!optimizer || !isfinite(learning_rate) || optimizer->using_average)
        return sh_fail(context, SHOAL_INVALID,
                       "optimizer is NULL, the rate is not finite, or the averaged "
                       "weights are in use");
    vector_call c = {.context = context,
                     .arena = optimizer->model->arena,
                     .block = PIECE,
                     .optimizer = optimizer,
                     .how = numbers_of(&optimizer->config, learning_rate,
                                       ++optimizer->steps)};
    run_pass(&c, update_task);
    if (optimizer->averaged) { /* which is 0 at first, and then becomes a copy */
        c.factor =
            (float)(optimizer->averages++ ? 1 - (double)optimizer->config.average : 1);
        run_pass(&c, average_task);
    }
    return SHOAL_OK;
}

shoal_status shoal_optimizer_use_average(shoal_optimizer *optimizer, int use) {
    if (!optimizer)
        return SHOAL_INVALID;
    if (optimizer->averages == 0 || (use != 0) == optimizer->using_average)
        return SHOAL_OK;
    float *values = optimizer->model->arena->values, *averaged = optimizer->averaged;
    for (int64_t i = 0; i < optimizer->model->arena->size; i++) {
        const float value = values[i];
        values[i] = averaged[i];
        averaged[i] = value;
    }
    optimizer->using_average = use != 0;
    return SHOAL_OK;
}

/* ---- The learning rate ------------------------------------------------------------ */

shoal_schedule shoal_schedule_start(double rate) {
    return (shoal_schedule){.rate = rate,
                            .factor = 1,
                            .threshold = 1e-4,
                            .best = INFINITY,
                            .scale = 1};
}

double shoal_schedule_rate(const shoal_schedule *schedule, int64_t step) {
    if (!schedule)
        return 0;
    const double rate = schedule->rate * schedule->scale;
    return step < schedule->warmup ? rate * ((double)step / (double)schedule->warmup)
                                   : rate;
}

int shoal_schedule_observe(shoal_schedule *schedule, double loss) {
    if (!schedule)
        return 0;
    if (loss < schedule->best * (1 - schedule->threshold)) {
        schedule->best = loss;
        schedule->waiting = 0;
        return 0;
    }
    if (++schedule->waiting <= schedule->patience)
        return 0;
    schedule->waiting = 0;
    if (schedule->factor <= 0 || schedule->factor >= 1)
        return 0;
    double scale = schedule->scale * schedule->factor;
    if (schedule->rate * scale < schedule->minimum)
        scale = schedule->minimum / schedule->rate;
    const int dropped = scale < schedule->scale;
    if (dropped)
        schedule->scale = scale;
    return dropped;
}
