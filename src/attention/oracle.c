/* oracle-top-k: a softmax over the k best keys of each query, found by exact search. A
 * yardstick: plain rather than fast.
 * Forward: a panel of queries is scored against all keys; each lane keeps its best ones.
 *          Of equal scores the lowest key wins, and a NaN counts as the best of all, so
 *          that it reaches the output as it would in full attention.
 * Backward: from the chosen keys, in double precision, one key/value head per task.
 * State for backward: the chosen keys, best first, -1 where there are fewer. */
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "cluster/topk.h"

enum { FEATURES = 64 }; /* of an output row that are summed at a time */

/* One thread's memory. k is min(topk, keys). */
typedef struct {
    float *queries; /* [dim][width], times scale */
    float *scores;  /* [KEY_BLOCK][width] */
    topk_lists lists;
    double *weights; /* [k] */
    /* Backward only: */
    double *slopes; /* [k] */
    double *dq;     /* [dim] */
} oracle_scratch;

typedef struct {
    oracle_scratch *threads;
} oracle_work;

static int32_t kept_keys(const shoal_plan *plan) {
    return (int32_t)min(plan->attention.topk, plan->problem.keys);
}

/* chosen: [batch][heads][queries][k], or NULL without backward. */
static int32_t *state_at(const shoal_plan *plan, block_layout *place) {
    int64_t count = plan->problem.batch * plan->problem.heads * plan->problem.queries;
    int64_t size;
    if (!plan->with_backward)
        return NULL;
    if (__builtin_mul_overflow(count, (int64_t)kept_keys(plan), &size))
        size = -1; /* which reserve refuses */
    return sh_reserve(place, size, sizeof(int32_t));
}

static void place_thread(oracle_scratch *scratch, const shoal_plan *plan,
                         block_layout *work) {
    const int64_t width = plan->kernels->panel, k = kept_keys(plan);
    topk_lists *lists = &scratch->lists;
    scratch->queries = sh_reserve(work, plan->problem.dim * width, sizeof(float));
    scratch->scores = sh_reserve(work, KEY_BLOCK * width, sizeof(float));
    lists->kernels = plan->kernels;
    lists->k = (int32_t)k;
    lists->candidates = sh_reserve(work, width * topk_capacity(k), sizeof(uint64_t));
    lists->counts = sh_reserve(work, width, sizeof(int32_t));
    lists->floor = sh_reserve(work, width, sizeof(float));
    scratch->weights = sh_reserve(work, k, sizeof(double));
    if (!plan->with_backward)
        return;
    scratch->slopes = sh_reserve(work, k, sizeof(double));
    scratch->dq = sh_reserve(work, plan->problem.dim, sizeof(double));
}

static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    oracle_work measured, *own = sh_reserve(work, 1, sizeof *own);
    plan->work = own;
    own = own ? own : &measured;
    own->threads = sh_reserve(work, plan->threads, sizeof *own->threads);
    for (int t = 0; t < plan->threads; t++)
        place_thread(own->threads ? &own->threads[t] : &(oracle_scratch){0}, plan, work);
    state_at(plan, state);
}

/* ---- The search ------------------------------------------------------------------- */

/* What no comparison finds: NaN, and -infinity while nothing better filled the list. */
static void collect_unordered(oracle_scratch *scratch, int live, int width, int count,
                              int32_t first) {
    const topk_lists *lists = &scratch->lists;
    for (int r = 0; r < count; r++)
        for (int i = 0; i < live; i++) {
            float score = scratch->scores[r * width + i];
            int lowest = score == -INFINITY && lists->floor[i] == -INFINITY;
            if (!isnan(score) && !lowest)
                continue;
            topk_list(lists, i)[lists->counts[i]++] =
                candidate_pack(isnan(score) ? NAN : score, first + r);
        }
}

static int any_unordered(const float *scores, int count) {
    int found = 0;
    for (int i = 0; i < count; i++)
        found |= !(scores[i] > -INFINITY);
    return found;
}

/* The best keys of queries first .. first + live - 1, best first, in the lists. */
static void search(const shoal_plan *plan, const head_view *view, int64_t first, int live,
                   oracle_scratch *scratch) {
    const kernel_table *run = plan->kernels;
    const topk_lists *lists = &scratch->lists;
    const int width = panel_width(run, live), dim = (int)plan->problem.dim;
    run->pack(view->q.data + first * view->q.stride, view->q.stride, NULL, live, width,
              dim, plan->problem.scale, scratch->queries);
    sh_topk_start(lists, live, width);
    for (int64_t key = 0; key < view->keys; key += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, view->keys - key);
        run->score(scratch->queries, width, dim, view->k.data + key * view->k.stride,
                   view->k.stride, count, scratch->scores);
        sh_topk_collect(lists, scratch->scores, live, width, count, key);
        if (any_unordered(scratch->scores, count * width))
            collect_unordered(scratch, live, width, count, (int32_t)key);
    }
    for (int i = 0; i < live; i++) {
        lists->counts[i] = sh_topk_cut(topk_list(lists, i), lists->counts[i], lists->k);
        sh_topk_sort(topk_list(lists, i), lists->counts[i]);
    }
}

/* ---- Forward ---------------------------------------------------------------------- */

/* scores -> softmax; the first one is the largest. */
static void softmax(double *scores, int32_t count) {
    double sum = 0;
    for (int32_t j = count - 1; j >= 0; j--) {
        scores[j] = exp(scores[j] - scores[0]);
        sum += scores[j];
    }
    for (int32_t j = 0; j < count; j++)
        scores[j] /= sum;
}

/* out[d] = sum over j of weights[j] * v[key j][d]. */
static void mix_values(const uint64_t *list, const double *weights, int32_t count,
                       row_view v, int64_t value_dim, float *out) {
    for (int64_t first = 0; first < value_dim; first += FEATURES) {
        const int64_t features = min(FEATURES, value_dim - first);
        double sums[FEATURES] = {0};
        for (int32_t j = 0; j < count; j++) {
            const float *value = v.data + candidate_key(list[j]) * v.stride + first;
            for (int64_t d = 0; d < features; d++)
                sums[d] += weights[j] * (double)value[d];
        }
        for (int64_t d = 0; d < features; d++)
            out[first + d] = (float)sums[d];
    }
}

static void attend(const attention_call *call, const head_view *view, int64_t query,
                   const uint64_t *list, int32_t count, double *weights, float *out) {
    const shoal_plan *plan = call->plan;
    const int64_t k = kept_keys(plan);
    int32_t *chosen = state_at(plan, &(block_layout){.base = call->state});
    for (int32_t j = 0; j < count; j++)
        weights[j] = (double)candidate_score(list[j]);
    softmax(weights, count);
    mix_values(list, weights, count, view->v, plan->problem.value_dim, out);
    if (!chosen)
        return;
    chosen += (view->head * plan->problem.queries + query) * k;
    for (int32_t j = 0; j < k; j++)
        chosen[j] = j < count ? candidate_key(list[j]) : -1;
}

/* One panel of queries of one head: task = head * panels + panel. */
static void forward_task(void *shared, int64_t task, int thread) {
    const attention_call *call = shared;
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const oracle_work *own = plan->work;
    const int64_t width = plan->kernels->panel;
    const int64_t panels = ceil_divide(problem->queries, width);
    const int64_t b = task / panels / problem->heads, h = task / panels % problem->heads;
    const head_view view = sh_view_of(call, b, h);
    const row_view out = sh_query_rows(call, call->out, &problem->out, b, h);
    const int64_t first = task % panels * width, last = first + width;
    const int64_t live = view.keys > 0 ? min(last, view.queries) : 0;
    sh_clear_rows(out, live > first ? live : first, min(last, view.query_rows),
                  problem->value_dim);
    if (live <= first)
        return;
    oracle_scratch *scratch = &own->threads[thread];
    search(plan, &view, first, (int)(live - first), scratch);
    for (int64_t i = 0; i < live - first; i++)
        attend(call, &view, first + i, topk_list(&scratch->lists, (int)i),
               scratch->lists.counts[i], scratch->weights,
               out.data + (first + i) * out.stride);
}

static void forward(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t panels = ceil_divide(problem->queries, call->plan->kernels->panel);
    sh_team_run(sh_team_of(call->plan->context), problem->batch * problem->heads * panels,
                forward_task, (void *)call);
}

/* ---- Backward --------------------------------------------------------------------- */

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t d = 0; d < count; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

/* The chosen keys' weights and the slopes of their scores; returns how many there are. */
static int32_t fill_slopes(const shoal_plan *plan, const head_view *view,
                           const int32_t *chosen, const float *q, const float *dout,
                           oracle_scratch *scratch) {
    const double scale = (double)plan->problem.scale;
    double *weights = scratch->weights, *slopes = scratch->slopes, mean = 0;
    int32_t count = 0;
    for (; count < kept_keys(plan) && chosen[count] >= 0; count++) {
        const int64_t key = chosen[count];
        weights[count] = scale *
                         dot(q, view->k.data + key * view->k.stride, plan->problem.dim);
        slopes[count] =
            dot(dout, view->v.data + key * view->v.stride, plan->problem.value_dim);
    }
    softmax(weights, count);
    for (int32_t j = 0; j < count; j++)
        mean += weights[j] * slopes[j];
    for (int32_t j = 0; j < count; j++)
        slopes[j] = scale * weights[j] * (slopes[j] - mean);
    return count;
}

/* row += factor * x. */
static void add_scaled(float *row, double factor, const float *x, int64_t count) {
    for (int64_t d = 0; d < count; d++)
        row[d] = (float)((double)row[d] + factor * (double)x[d]);
}

/* One query: writes its dq, adds to dk and dv. */
static void backward_query(const shoal_plan *plan, const head_view *view,
                           const int32_t *chosen, const float *q, const float *dout,
                           float *dq, row_view dk, row_view dv, oracle_scratch *scratch) {
    const int64_t dim = plan->problem.dim;
    const int32_t count = fill_slopes(plan, view, chosen, q, dout, scratch);
    memset(scratch->dq, 0, (size_t)dim * sizeof(double));
    for (int32_t j = 0; j < count; j++) {
        const float *k = view->k.data + chosen[j] * view->k.stride;
        for (int64_t d = 0; d < dim; d++)
            scratch->dq[d] += scratch->slopes[j] * (double)k[d];
        if (dk.data)
            add_scaled(dk.data + chosen[j] * dk.stride, scratch->slopes[j], q, dim);
        if (dv.data)
            add_scaled(dv.data + chosen[j] * dv.stride, scratch->weights[j], dout,
                       plan->problem.value_dim);
    }
    for (int64_t d = 0; dq && d < dim; d++)
        dq[d] = (float)scratch->dq[d];
}

static void backward_head(const attention_call *call, int64_t b, int64_t h, row_view dk,
                          row_view dv, oracle_scratch *scratch) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const head_view view = sh_view_of(call, b, h);
    const row_view dout = sh_query_rows(call, call->gradients->dout, &problem->out, b, h);
    const row_view dq = sh_query_rows(call, call->gradients->dq, &problem->q, b, h);
    const int64_t live = view.keys > 0 ? view.queries : 0;
    const int32_t *chosen = state_at(plan, &(block_layout){.base = call->state});
    chosen += view.head * problem->queries * kept_keys(plan);
    sh_clear_rows(dq, live, view.query_rows, problem->dim);
    for (int64_t i = 0; i < live; i++)
        backward_query(plan, &view, chosen + i * kept_keys(plan),
                       view.q.data + i * view.q.stride, dout.data + i * dout.stride,
                       dq.data ? dq.data + i * dq.stride : NULL, dk, dv, scratch);
}

/* One key/value head, with the query heads that share it. */
static void backward_task(void *shared, int64_t task, int thread) {
    const attention_call *call = shared;
    const oracle_work *work = call->plan->work;
    const kv_head_view own = sh_start_kv_head(call, task);
    for (int64_t h = own.first; h < own.last; h++)
        backward_head(call, own.b, h, own.dk, own.dv, &work->threads[thread]);
}

static void backward(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    sh_team_run(sh_team_of(call->plan->context), problem->batch * problem->kv_heads,
                backward_task, (void *)call);
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    return (operation_count){.dense = 2 * N * S * (double)problem->dim +
                                      2 * N * fmin(attention->topk, S) *
                                          (double)problem->value_dim};
}

const attention_kind sh_oracle_top_kind = {
    .info = {.name = "oracle-top-k",
             .number = "topk",
             .cost = "N S D + N k Dv",
             .summary = "only the k best keys of each query, by exact search",
             .defaults = {.kind = SHOAL_ORACLE_TOP, .topk = 32}},
    .operations = operations,
    .place = place,
    .forward = forward,
    .backward = backward,
};
