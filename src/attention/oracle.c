/* oracle-top-k: a softmax over the k best keys of each query, found by exact search. A
 * yardstick: plain rather than fast.
 * Forward: a panel of queries is scored against all keys; each lane keeps its best ones.
 *          Of equal scores the lowest key wins, and a NaN counts as the best of all, so
 *          that it reaches the output as it would in full attention.
 * Backward: from the chosen keys, in double precision, one key/value head per task.
 * State for backward: the chosen keys, best first, -1 where there are fewer. */
#include <math.h>
#include <string.h>

#include "attention/heads.h"
#include "attention/masks.h"
#include "cluster/grouping.h"

enum { FEATURES = 64 }; /* of an output row that are summed at a time */

/* One thread's memory. k is min(topk, keys). */
typedef struct {
    float *queries; /* [dim][width], times scale */
    float *scores;  /* [KEY_BLOCK][width] */
    topk_lists lists;
    /* Candidates of each lane, best first once the search is over: [width][3 k]. While it
       goes on, the last 2 k are what no comparison finds: k that are NaN, and k that are
       -infinity. */
    uint64_t *best;
    int32_t *counts, *unordered, *lowest; /* [width]: of best, of NaN, of -infinity */
    double *weights;                      /* [k] */
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
    scratch->queries = sh_reserve(work, plan->problem.dim * width, sizeof(float));
    scratch->scores = sh_reserve(work, KEY_BLOCK * width, sizeof(float));
    uint64_t *memory = sh_reserve(work, topk_size(k, width), sizeof(uint64_t));
    int32_t *counts = sh_reserve(work, width, sizeof(int32_t));
    float *lowest = sh_reserve(work, width, sizeof(float));
    scratch->lists = sh_topk_lists(plan->kernels, (int32_t)k, memory, counts, lowest);
    scratch->best = sh_reserve(work, 3 * k * width, sizeof(uint64_t));
    scratch->counts = sh_reserve(work, width, sizeof(int32_t));
    scratch->unordered = sh_reserve(work, width, sizeof(int32_t));
    scratch->lowest = sh_reserve(work, width, sizeof(int32_t));
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

static int any_unordered(const float *scores, int count) {
    int found = 0;
    for (int i = 0; i < count; i++)
        found |= !(scores[i] > -INFINITY);
    return found;
}

static uint64_t *best_of(const oracle_scratch *scratch, int64_t lane) {
    return scratch->best + lane * 3 * scratch->lists.k;
}

/* What no comparison finds: the first k that are NaN, and the first k that are -infinity,
   unless it is hidden keys that have it. */
static void keep_unordered(const score_block *block, int hides, oracle_scratch *scratch) {
    const int32_t k = scratch->lists.k;
    for (int r = 0; r < block->count; r++)
        for (int i = 0; i < block->lanes; i++) {
            const float score = scratch->scores[r * block->width + i];
            const int32_t key = (int32_t)block->key + r;
            uint64_t *best = best_of(scratch, i);
            if (isnan(score) && scratch->unordered[i] < k)
                best[k + scratch->unordered[i]++] = candidate_pack(NAN, key);
            if (!hides && score == -INFINITY && scratch->lowest[i] < k)
                best[2 * k + scratch->lowest[i]++] = candidate_pack(score, key);
        }
}

/* The best keys of a lane, best first. */
static void sort_best(int lane, int width, oracle_scratch *scratch) {
    const int32_t k = scratch->lists.k;
    uint64_t *best = best_of(scratch, lane);
    int32_t count = sh_topk_take(&scratch->lists, lane, width, best);
    memmove(best + count, best + k, sizeof *best * (size_t)scratch->unordered[lane]);
    count += scratch->unordered[lane];
    memmove(best + count, best + 2 * k, sizeof *best * (size_t)scratch->lowest[lane]);
    count = sh_topk_cut(best, count + scratch->lowest[lane], k);
    sh_topk_sort(best, count);
    scratch->counts[lane] = count;
}

/* The best keys of queries first .. first + live - 1, best first. masks may be NULL. */
static void search(const shoal_plan *plan, const head_view *view,
                   const score_masks *masks, int64_t first, int live,
                   oracle_scratch *scratch) {
    const kernel_table *kernels = plan->kernels;
    topk_lists *lists = &scratch->lists;
    float floor[MAX_PANEL];
    const int width = panel_width(kernels, live), dim = (int)plan->problem.dim;
    kernels->pack(view->q.data + first * view->q.stride, view->q.stride, NULL, live,
                  width, dim, plan->problem.scale, scratch->queries);
    for (int i = 0; i < width; i++)
        floor[i] = i < live ? -INFINITY : INFINITY;
    sh_topk_start(lists, width, floor);
    memset(scratch->unordered, 0, sizeof(int32_t) * (size_t)width);
    memset(scratch->lowest, 0, sizeof(int32_t) * (size_t)width);
    const int64_t end = masks ? sh_masks_end(masks, first + live - 1, view->keys)
                              : view->keys;
    for (int64_t key = 0; key < end; key += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, end - key);
        const score_block block = {kernels, first, key, live, width, count};
        kernels->score(scratch->queries, width, dim, view->k.data + key * view->k.stride,
                       view->k.stride, count, scratch->scores);
        if (masks)
            sh_masks_apply(masks, &block, scratch->scores);
        sh_topk_collect(lists, scratch->scores, width, count, key);
        if (any_unordered(scratch->scores, count * width))
            keep_unordered(&block, masks != NULL, scratch);
    }
    sh_topk_finish(lists, width);
    for (int i = 0; i < live; i++)
        sort_best(i, width, scratch);
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

static void attend(const attention_call *call, const head_view *view,
                   const score_masks *masks, int64_t query, const uint64_t *list,
                   int32_t count, double *weights, float *out) {
    const shoal_plan *plan = call->plan;
    const int64_t k = kept_keys(plan);
    int32_t *chosen = state_at(plan, &(block_layout){.base = call->state});
    for (int32_t j = 0; j < count; j++)
        weights[j] = (double)candidate_score(list[j]);
    softmax(weights, count);
    /* Multiplies by dropout's factors. */
    for (int32_t j = 0; masks && j < count; j++)
        weights[j] *= (double)sh_masks_factor(masks, query, candidate_key(list[j]));
    /* out[d] = sum over j of weights[j] * v[key j][d]. */
    for (int64_t first = 0; first < plan->problem.value_dim; first += FEATURES) {
        const int64_t features = min(FEATURES, plan->problem.value_dim - first);
        double sums[FEATURES] = {0};
        for (int32_t j = 0; j < count; j++) {
            const float *value = view->v.data + candidate_key(list[j]) * view->v.stride +
                                 first;
            for (int64_t d = 0; d < features; d++)
                sums[d] += weights[j] * (double)value[d];
        }
        for (int64_t d = 0; d < features; d++)
            out[first + d] = (float)sums[d];
    }
    if (!chosen)
        return;
    chosen += (view->head * plan->problem.queries + query) * k;
    for (int32_t j = 0; j < k; j++)
        chosen[j] = j < count ? candidate_key(list[j]) : -1;
}

/* A query head in forward, a key/value head in backward. */
typedef struct {
    const attention_call *call;
    int64_t unit;
} oracle_unit;

/* One panel of queries of one head. */
static void forward_task(void *shared, int64_t task, int thread) {
    const oracle_unit *at = shared;
    const attention_call *call = at->call;
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const oracle_work *own = plan->work;
    const int64_t width = plan->kernels->panel;
    const head_view view = sh_view_at(call, at->unit);
    const row_view out = view.out;
    const int64_t first = task * width, last = first + width;
    const int64_t live = view.keys > 0 ? min(last, view.queries) : 0;
    sh_clear_rows(out, live > first ? live : first, min(last, view.query_rows),
                  problem->value_dim);
    if (live <= first)
        return;
    oracle_scratch *scratch = &own->threads[thread];
    score_masks room;
    const score_masks *masks = sh_masks_in(call, &view, &room);
    search(plan, &view, masks, first, (int)(live - first), scratch);
    for (int64_t i = 0; i < live - first; i++)
        attend(call, &view, masks, first + i, best_of(scratch, i), scratch->counts[i],
               scratch->weights, out.data + (first + i) * out.stride);
}

static void forward_head(const attention_call *call, int64_t unit, int slot,
                         team workers) {
    (void)slot;
    sh_team_run(workers,
                ceil_divide(call->plan->problem.queries, call->plan->kernels->panel),
                forward_task, &(oracle_unit){call, unit});
}

/* ---- Backward --------------------------------------------------------------------- */

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t d = 0; d < count; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

/* One head of a backward. */
typedef struct {
    const shoal_plan *plan;
    head_view view;
    const score_masks *masks; /* or NULL */
    row_view dk, dv;
    const int32_t *chosen; /* [queries][k] */
    oracle_scratch *scratch;
} backward_head;

static double factor_of(const backward_head *head, int64_t query, int64_t key) {
    return head->masks ? (double)sh_masks_factor(head->masks, query, key) : 1;
}

/* The chosen keys' weights in the output, and the slopes of their scores; returns how
   many there are. */
static int32_t fill_slopes(const backward_head *head, int64_t query,
                           const int32_t *chosen) {
    const row_view v = head->view.v;
    const float *dout = head->view.dout.data + query * head->view.dout.stride;
    double *weights = head->scratch->weights, *slopes = head->scratch->slopes, mean = 0;
    int32_t count = 0;
    for (; count < kept_keys(head->plan) && chosen[count] >= 0; count++) {
        const int64_t key = chosen[count];
        const shoal_problem *problem = &head->plan->problem;
        const head_view *view = &head->view;
        const double score = (double)problem->scale *
                             dot(view->q.data + query * view->q.stride,
                                 view->k.data + key * view->k.stride, problem->dim);
        weights[count] = head->masks ? sh_masks_score(head->masks, query, key, score)
                                     : score;
        slopes[count] = factor_of(head, query, key) *
                        dot(dout, v.data + key * v.stride, head->plan->problem.value_dim);
    }
    softmax(weights, count);
    for (int32_t j = 0; j < count; j++)
        mean += weights[j] * slopes[j];
    for (int32_t j = 0; j < count; j++) {
        slopes[j] = weights[j] * (slopes[j] - mean);
        weights[j] *= factor_of(head, query, chosen[j]);
    }
    return count;
}

/* row += factor * x. */
static void add_scaled(float *row, double factor, const float *x, int64_t count) {
    for (int64_t d = 0; d < count; d++)
        row[d] = (float)((double)row[d] + factor * (double)x[d]);
}

/* One query: writes its dq, adds to dk and dv. */
static void backward_query(const backward_head *head, int64_t query) {
    const shoal_problem *problem = &head->plan->problem;
    const head_view *view = &head->view;
    const int64_t dim = problem->dim;
    const int32_t *chosen = head->chosen + query * kept_keys(head->plan);
    const float *q = view->q.data + query * view->q.stride;
    const float *dout = head->view.dout.data + query * head->view.dout.stride;
    double *sums = head->scratch->dq;
    const int32_t count = fill_slopes(head, query, chosen);
    memset(sums, 0, (size_t)dim * sizeof(double));
    for (int32_t j = 0; j < count; j++) {
        const float *k = view->k.data + chosen[j] * view->k.stride;
        const double slope = (double)problem->scale * head->scratch->slopes[j];
        float *dbias = head->masks ? sh_masks_slope(head->masks, query, chosen[j]) : NULL;
        for (int64_t d = 0; d < dim; d++)
            sums[d] += slope * (double)k[d];
        if (head->dk.data)
            add_scaled(head->dk.data + chosen[j] * head->dk.stride, slope, q, dim);
        if (head->dv.data)
            add_scaled(head->dv.data + chosen[j] * head->dv.stride,
                       head->scratch->weights[j], dout, problem->value_dim);
        float *dkey_bias = head->masks ? sh_masks_key_slope(head->masks, chosen[j])
                                       : NULL;
        if (dbias)
            *dbias = (float)head->scratch->slopes[j];
        if (dkey_bias)
            *dkey_bias += (float)head->scratch->slopes[j];
    }
    for (int64_t d = 0; head->view.dq.data && d < dim; d++)
        head->view.dq.data[query * head->view.dq.stride + d] = (float)sums[d];
}

/* One key/value head, with the query heads that share it. */
static void backward_task(void *shared, int64_t task, int thread) {
    const oracle_unit *at = shared;
    const oracle_work *work = at->call->plan->work;
    const kv_head_view own = sh_start_kv_head(at->call, at->unit);
    (void)task;
    for (int64_t h = own.first; h < own.last; h++) {
        const shoal_plan *plan = at->call->plan;
        const shoal_problem *problem = &plan->problem;
        backward_head head = {.plan = plan,
                              .view = sh_view_of(at->call, own.b, h),
                              .dk = own.dk,
                              .dv = own.dv,
                              .chosen =
                                  state_at(plan,
                                           &(block_layout){.base = at->call->state}),
                              .scratch = &work->threads[thread]};
        score_masks masks;
        head.masks = sh_masks_in(at->call, &head.view, &masks);
        const int64_t live = head.view.keys > 0 ? head.view.queries : 0;
        head.chosen += head.view.head * problem->queries * kept_keys(plan);
        sh_clear_rows(head.view.dq, live, head.view.query_rows, problem->dim);
        for (int64_t i = 0; i < live; i++)
            backward_query(&head, i);
    }
}

static void backward_unit(const attention_call *call, int64_t unit, int slot,
                          team workers) {
    (void)slot;
    sh_team_run(workers, 1, backward_task, &(oracle_unit){call, unit});
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    return (operation_count){.dense = 2 * sh_seen_pairs(problem) * (double)problem->dim +
                                      2 * N * fmin(attention->topk, S) *
                                          (double)problem->value_dim};
}

const attention_kind sh_oracle_top_kind = {
    .info = {.name = "oracle-top-k",
             .number = "topk",
             .cost = "N S D + N k Dv",
             .summary = "only the k best keys of each query, found by exact search",
             .defaults = {.kind = SHOAL_KIND_ORACLE_TOP, .topk = 32},
             .has_masks = 1},
    .operations = operations,
    .place = place,
    .forward_head = forward_head,
    .backward_head = backward_unit,
};
