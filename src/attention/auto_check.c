/* How far a call's outputs are from full attention's, by some queries of every head.
 *
 * One query in a hundred can carry half of the squared error, and an even draw misses it.
 * What a kind approximates is the rest of a query's keys, so a query is drawn the more
 * often the larger the rest's share of its weights is; half of the probability is even,
 * for queries whose rest seems small because their best keys were overlooked. What a
 * drawn query shows is divided by its probability, so that the sums are unbiased. */
#include <math.h>
#include <string.h>

#include "attention/auto.h"
#include "attention/dense.h"
#include "base/random.h"

static const double even_part = 0.5;

void sh_check_place(error_check *check, const shoal_plan *plan, block_layout *work) {
    const int64_t heads = plan->problem.batch * plan->problem.heads;
    const int64_t wanted = ceil_divide(CHECK_SAMPLES, max(1, heads));
    check->marks = max(CHECK_LEAST, min(wanted, CHECK_MOST));
    check->rest = reserve_floats(work, heads, plan->problem.queries);
    check->errors =
        sh_reserve(work, sh_mul_checked(heads, check->marks), sizeof *check->errors);
    check->lengths = sh_reserve(work, heads, sizeof *check->lengths);
    check->dense = sh_reserve(work, plan->threads, sizeof *check->dense);
    for (int t = 0; t < plan->threads; t++)
        sh_dense_place(check->dense ? &check->dense[t] : &(dense_scratch){0}, plan, work);
}

/* ---- The draw ---------------------------------------------------------------------- */

/* Queries in order, each as wide as its probability; one mark in each of `marks` equal
   parts, at random. Finds the queries of marks first .. first + count - 1. */
typedef struct {
    int32_t queries[MAX_PANEL];
    double weights[MAX_PANEL]; /* the inverse of their probabilities */
} drawn_marks;

static void draw(const error_check *check, const head_view *view, int64_t first,
                 int64_t count, drawn_marks *drawn) {
    const float *rest = check->rest + view->head * check->call->plan->problem.queries;
    const uint64_t seed = check->call->plan->attention.seed;
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    const double even = 1 / (double)view->queries;
    double total = 0, passed = 0;
    for (int64_t i = 0; i < view->queries; i++)
        total += (double)rest[i];
    int64_t mark = first;
    for (int64_t i = 0; i < view->queries && mark < first + count; i++) {
        const double guided = total > 0 ? (double)rest[i] / total : even;
        const double p = even_part * even + (1 - even_part) * guided;
        const int last = i == view->queries - 1;
        passed += p;
        for (; mark < first + count; mark++) {
            const uint64_t bits =
                sh_random_bits(seed, STREAM_SAMPLES,
                               (uint64_t)(view->head * check->marks + mark));
            const double inside = (double)(bits >> 11) * unit;
            if (!last && ((double)mark + inside) / (double)check->marks > passed)
                break;
            drawn->queries[mark - first] = (int32_t)i;
            drawn->weights[mark - first] = 1 / p;
        }
    }
}

/* ---- The exact outputs ------------------------------------------------------------- */

static void attend_exactly(const dense_keys *keys, const head_view *view,
                           const drawn_marks *drawn, query_panel *panel, float *scores) {
    sh_dense_start(keys, panel, view->q);
    keys->kernels->pack(view->q.data, view->q.stride, drawn->queries, panel->count,
                        panel->width, keys->dim, keys->scale, panel->queries);
    for (int64_t key = 0; key < view->keys; key += KEY_BLOCK)
        sh_dense_stream(keys, key, min(key + KEY_BLOCK, view->keys), panel, scores, NULL,
                        NULL);
}

static double squared_error(const query_panel *panel, int s, const float *out, int dim) {
    double sum = 0;
    for (int d = 0; d < dim; d++) {
        const double right = (double)panel->outputs[d * panel->width + s] /
                             (double)panel->sum[s];
        sum += ((double)out[d] - right) * ((double)out[d] - right);
    }
    return sum;
}

static double squared_length(row_view out, int64_t rows, int64_t dim) {
    double sum = 0;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < dim; d++)
            sum += (double)out.data[i * out.stride + d] *
                   (double)out.data[i * out.stride + d];
    return sum;
}

/* One panel of marks of one head: task = head * panels of a head + panel. */
static void check_task(void *shared, int64_t task, int thread) {
    const error_check *check = shared;
    const attention_call *call = check->call;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t width = call->plan->kernels->panel;
    const int64_t panels = ceil_divide(check->marks, width), unit = task / panels;
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    const int64_t first = task % panels * width, count = min(width, check->marks - first);
    const head_view view = sh_view_of(call, b, h);
    const row_view out = sh_query_rows(call, call->out, &problem->out, b, h);
    double *errors = check->errors + unit * check->marks + first;
    const int dim = (int)problem->value_dim;
    if (first == 0)
        check->lengths[unit] = squared_length(out, view.queries, dim);
    memset(errors, 0, sizeof *errors * (size_t)count);
    const score_masks masks = sh_masks_of(call, &view);
    if (view.queries == 0 || sh_masks_seen(&masks, view.keys) == 0)
        return;
    dense_keys keys = sh_dense_keys_of(call->plan, &view);
    if (sh_masks_exist(call))
        keys.masks = &masks;
    dense_scratch *scratch = &check->dense[thread];
    query_panel *panel = scratch->panels;
    drawn_marks drawn;
    draw(check, &view, first, count, &drawn);
    panel->first = 0;
    panel->count = (int)count;
    panel->width = panel_width(call->plan->kernels, (int)count);
    attend_exactly(&keys, &view, &drawn, panel, scratch->scores);
    for (int64_t s = 0; s < count; s++)
        errors[s] =
            drawn.weights[s] *
            squared_error(panel, (int)s, out.data + drawn.queries[s] * out.stride, dim);
}

/* The marks of one head, where its rows are converted for them. */
typedef struct {
    error_check check;
    int64_t first;
} unit_marks;

static void unit_task(void *shared, int64_t task, int thread) {
    unit_marks *marks = shared;
    check_task(&marks->check, marks->first + task, thread);
}

static void check_unit(void *shared, int64_t unit, int slot, team workers) {
    const attention_call *call = shared;
    const error_check *check = call->judge;
    const int64_t panels = ceil_divide(check->marks, call->plan->kernels->panel);
    unit_marks marks = {*check, unit * panels};
    (void)slot;
    marks.check.call = call;
    sh_team_run(workers, panels, unit_task, &marks);
}

static void check_heads(error_check *check) {
    attention_call call = *check->call;
    const int64_t heads = call.plan->problem.batch * call.plan->problem.heads;
    call.judge = check;
    sh_run_heads(&call, heads, check_unit);
}

/* ---- The verdict ------------------------------------------------------------------- */

double sh_check_error(error_check *check, const attention_call *call, double deviations) {
    const int64_t heads = call->plan->problem.batch * call->plan->problem.heads;
    const double marks = (double)check->marks;
    double error = 0, variance = 0, length = 0;
    check->call = call;
    if (call->plan->problem.dtype != SHOAL_FLOAT32)
        check_heads(check);
    else
        sh_team_run(sh_team_of(call->plan->context),
                    heads * ceil_divide(check->marks, call->plan->kernels->panel),
                    check_task, check);
    for (int64_t unit = 0; unit < heads; unit++) {
        const double *errors = check->errors + unit * check->marks;
        double mean = 0, spread = 0;
        for (int64_t s = 0; s < check->marks; s++)
            mean += errors[s] / marks;
        for (int64_t s = 0; s < check->marks; s++)
            spread += (errors[s] - mean) * (errors[s] - mean);
        error += mean;
        variance += spread / (marks * (marks - 1));
        length += check->lengths[unit];
    }
    error += deviations * sqrt(variance);
    return error > 0 || isnan(error) ? sqrt(error / length) : 0;
}
