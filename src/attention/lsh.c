/* Forward, one round after another: hash, sort by (bucket, position), cut into chunks,
 * and continue every position's softmax with the keys of its chunk and the one before.
 * Outputs that are not yet divided by their sum wait in `out` between rounds.
 * Few positions go another way after the sorting: lsh_counted.c. */
#include "attention/lsh.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "cluster/grouping.h"

enum { LENGTH_TASK = 1024 };

int64_t sh_lsh_bucket_count(int64_t n) {
    return n > 0 ? 2 * ceil_divide(n, 2 * LSH_CHUNK) : 2;
}

/* ---- Memory ----------------------------------------------------------------------- */

lsh_state sh_lsh_state_at(const shoal_plan *plan, block_layout *place) {
    const int64_t count = plan->problem.batch * plan->problem.heads *
                          plan->problem.queries;
    int64_t orders;
    lsh_state state = {0};
    if (!plan->with_backward)
        return state;
    if (__builtin_mul_overflow(count, (int64_t)plan->attention.rounds, &orders))
        orders = -1; /* which reserve refuses */
    state.top = sh_reserve(place, count, sizeof(float));
    state.inverse = sh_reserve(place, count, sizeof(float));
    state.order = sh_reserve(place, orders, sizeof(int32_t));
    return state;
}

static void place_thread(lsh_scratch *scratch, dense_scratch *dense,
                         const shoal_plan *plan, block_layout *work) {
    const int64_t dim = plan->problem.dim, value_dim = plan->problem.value_dim;
    sh_dense_place(dense, plan, work);
    scratch->dense = dense;
    scratch->keys = sh_reserve(work, LSH_WINDOW * dim, sizeof(float));
    scratch->values = sh_reserve(work, LSH_WINDOW * value_dim, sizeof(float));
    if (!plan->with_backward)
        return;
    scratch->queries = sh_reserve(work, LSH_CHUNK * dim, sizeof(float));
    scratch->grad_out = sh_reserve(work, LSH_CHUNK * value_dim, sizeof(float));
    scratch->grad_keys = sh_reserve(work, LSH_WINDOW * dim, sizeof(float));
    scratch->grad_values = sh_reserve(work, LSH_WINDOW * value_dim, sizeof(float));
}

static void place_slot(lsh_slot *slot, const shoal_plan *plan, block_layout *work) {
    const int64_t n = plan->problem.queries, dim = plan->problem.dim;
    const int64_t buckets = sh_lsh_bucket_count(n);
    slot->inverse_length = sh_reserve(work, n, sizeof(double));
    slot->projections = sh_reserve(work, buckets / 2 * dim, sizeof(float));
    slot->buckets = sh_reserve(work, n, sizeof(int32_t));
    slot->offsets = sh_reserve(work, buckets + 1, sizeof(int32_t));
    if (plan->with_backward) {
        slot->delta = sh_reserve(work, n, sizeof(float));
        slot->grad_keys = sh_reserve(work, n * dim, sizeof(float));
    } else {
        slot->order = sh_reserve(work, n, sizeof(int32_t));
        slot->top = sh_reserve(work, n, sizeof(float));
        slot->sum = sh_reserve(work, n, sizeof(float));
    }
    sh_lsh_count_place(&slot->count, plan, work);
}

static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    lsh_work measured, *own = sh_reserve(work, 1, sizeof *own);
    const int slots =
        sh_unit_slots(plan->threads, plan->problem.batch * plan->problem.heads);
    plan->work = own;
    own = own ? own : &measured;
    own->dense = sh_reserve(work, plan->threads, sizeof *own->dense);
    own->threads = sh_reserve(work, plan->threads, sizeof *own->threads);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int t = 0; t < plan->threads; t++)
        place_thread(own->threads ? &own->threads[t] : &(lsh_scratch){0},
                     own->dense ? &own->dense[t] : &(dense_scratch){0}, plan, work);
    for (int s = 0; s < slots; s++)
        place_slot(own->slots ? &own->slots[s] : &(lsh_slot){0}, plan, work);
    sh_lsh_state_at(plan, state);
}

/* ---- Unit keys -------------------------------------------------------------------- */

static void length_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const int64_t end = min((task + 1) * LENGTH_TASK, job->view.queries);
    (void)thread;
    for (int64_t i = task * LENGTH_TASK; i < end; i++) {
        const float *q = job->view.q.data + i * job->view.q.stride;
        double sum = 0;
        for (int64_t d = 0; d < job->call->plan->problem.dim; d++)
            sum += (double)q[d] * (double)q[d];
        job->slot->inverse_length[i] = sum == 0 ? 0 : 1 / sqrt(sum);
    }
}

void sh_lsh_measure(lsh_job *job, team workers) {
    sh_team_run(workers, ceil_divide(job->view.queries, LENGTH_TASK), length_task, job);
}

void sh_lsh_unit_row(const lsh_job *job, int64_t position, float *key) {
    const float *q = job->view.q.data + position * job->view.q.stride;
    const double inverse = job->slot->inverse_length[position];
    for (int64_t d = 0; d < job->call->plan->problem.dim; d++)
        key[d] = (float)((double)q[d] * inverse);
}

/* ---- Hashing ---------------------------------------------------------------------- */

/* Column c of this round's projection: the same for every head and every length. */
static void projection_task(void *shared, int64_t c, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const uint64_t column = (uint64_t)job->round << 48 | (uint64_t)c << 17;
    (void)thread;
    for (int64_t d = 0; d < plan->problem.dim; d++)
        job->slot->projections[c * plan->problem.dim + d] =
            sh_random_normal(plan->attention.seed, STREAM_ROTATIONS,
                             column | (uint64_t)d);
}

/* The largest and the smallest product of each lane so far, and the first column that
   gave it: the smallest is the largest of the negated half. */
typedef struct {
    float most[MAX_PANEL], least[MAX_PANEL];
    int32_t most_at[MAX_PANEL], least_at[MAX_PANEL];
} extremes;

static void extremes_start(extremes *found) {
    for (int i = 0; i < MAX_PANEL; i++) {
        found->most[i] = -INFINITY;
        found->least[i] = INFINITY;
        found->most_at[i] = found->least_at[i] = 0;
    }
}

static void extremes_add(extremes *found, const float *products, int width, int count,
                         int32_t first) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < width; i++) {
            const float product = products[r * width + i];
            const int more = product > found->most[i], less = product < found->least[i];
            found->most[i] = more ? product : found->most[i];
            found->most_at[i] = more ? first + r : found->most_at[i];
            found->least[i] = less ? product : found->least[i];
            found->least_at[i] = less ? first + r : found->least_at[i];
        }
}

/* One run of panels of queries. */
static void hash_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const kernel_table *run = plan->kernels;
    const int64_t block = sh_dense_block(run), n = job->view.queries,
                  dim = plan->problem.dim;
    const int32_t half = (int32_t)(sh_lsh_bucket_count(n) / 2);
    lsh_scratch *scratch = &((lsh_work *)plan->work)->threads[thread];
    extremes found[PANELS];
    const int panels =
        sh_dense_cut(scratch->dense, run, task * block, min((task + 1) * block, n));
    for (int p = 0; p < panels; p++) {
        query_panel *panel = &scratch->dense->panels[p];
        for (int i = 0; i < panel->count; i++)
            sh_lsh_unit_row(job, panel->first + i, scratch->keys + i * dim);
        run->pack(scratch->keys, dim, NULL, panel->count, panel->width, (int)dim, 1,
                  panel->queries);
        extremes_start(&found[p]);
    }
    for (int32_t c = 0; c < half; c += KEY_BLOCK)
        for (int p = 0; p < panels; p++) {
            const query_panel *panel = &scratch->dense->panels[p];
            const int count = (int)min(KEY_BLOCK, half - c);
            run->score(panel->queries, panel->width, (int)dim,
                       job->slot->projections + c * dim, dim, count,
                       scratch->dense->scores);
            extremes_add(&found[p], scratch->dense->scores, panel->width, count, c);
        }
    for (int p = 0; p < panels; p++)
        for (int i = 0; i < scratch->dense->panels[p].count; i++)
            job->slot->buckets[scratch->dense->panels[p].first + i] =
                -found[p].least[i] > found[p].most[i] ? half + found[p].least_at[i]
                                                      : found[p].most_at[i];
}

static void hash_round(lsh_job *job, team workers) {
    const int64_t n = job->view.queries;
    sh_team_run(workers, sh_lsh_bucket_count(n) / 2, projection_task, job);
    sh_team_run(workers, ceil_divide(n, sh_dense_block(job->call->plan->kernels)),
                hash_task, job);
}

void sh_lsh_buckets(shoal_plan *plan, const shoal_inputs *inputs, int64_t b, int64_t h,
                    int64_t round, int32_t *buckets) {
    const attention_call call = {.plan = plan, .inputs = inputs};
    lsh_job job = {.call = &call,
                   .slot = ((lsh_work *)plan->work)->slots,
                   .view = sh_view_of(&call, b, h),
                   .round = round};
    sh_lsh_measure(&job, (team){.threads = 1});
    hash_round(&job, (team){.threads = 1});
    memcpy(buckets, job.slot->buckets, (size_t)job.view.queries * sizeof *buckets);
}

/* ---- Chunks ----------------------------------------------------------------------- */

lsh_chunk sh_lsh_chunk_at(const lsh_job *job, int64_t chunk) {
    const int64_t first = chunk * LSH_CHUNK;
    const int before = chunk > 0 ? LSH_CHUNK : 0;
    return (lsh_chunk){.window = job->order + first - before,
                       .before = before,
                       .count = (int)min(LSH_CHUNK, job->view.queries - first)};
}

void sh_lsh_gather(const lsh_job *job, const lsh_chunk *chunk, lsh_scratch *scratch) {
    const shoal_problem *problem = &job->call->plan->problem;
    const row_view v = job->view.v;
    for (int r = 0; r < chunk->before + chunk->count; r++) {
        sh_lsh_unit_row(job, chunk->window[r], scratch->keys + r * problem->dim);
        memcpy(scratch->values + r * problem->value_dim,
               v.data + chunk->window[r] * v.stride,
               (size_t)problem->value_dim * sizeof(float));
    }
}

void sh_lsh_hide_self(const lsh_chunk *chunk, const query_panel *panel, float *scores) {
    if (chunk->before + chunk->count == 1)
        return;
    for (int i = 0; i < panel->count; i++)
        scores[(chunk->before + panel->first + i) * panel->width + i] = -INFINITY;
}

void sh_lsh_cut(const shoal_plan *plan, const lsh_chunk *chunk, int64_t first,
                query_panel *panel) {
    panel->first = first;
    panel->width = panel_width(plan->kernels, chunk->count - first);
    panel->count = (int)min(panel->width, chunk->count - first);
}

/* Takes up the panel's softmax where the round before left it. */
static void resume_panel(const lsh_job *job, const int32_t *queries, query_panel *panel) {
    const shoal_plan *plan = job->call->plan;
    const int value_dim = (int)plan->problem.value_dim, fresh = job->round == 0;
    plan->kernels->pack(job->view.q.data, job->view.q.stride, queries, panel->count,
                        panel->width, (int)plan->problem.dim, plan->problem.scale,
                        panel->queries);
    plan->kernels->pack(job->out.data, job->out.stride, queries, fresh ? 0 : panel->count,
                        panel->width, value_dim, 1, panel->outputs);
    for (int i = 0; i < panel->width; i++) {
        int begun = i < panel->count && !fresh;
        panel->top[i] = begun ? job->top[queries[i]] : LOWEST_SCORE;
        panel->sum[i] = begun ? job->sum[queries[i]] : 0;
    }
}

static void store_panel(const lsh_job *job, const int32_t *queries, query_panel *panel) {
    const shoal_plan *plan = job->call->plan;
    const int last = job->round == plan->attention.rounds - 1;
    for (int i = 0; i < panel->count; i++) {
        panel->sum[i] = last ? 1 / panel->sum[i] : panel->sum[i];
        job->top[queries[i]] = panel->top[i];
        job->sum[queries[i]] = panel->sum[i];
    }
    plan->kernels->unpack(panel->outputs, panel->count, panel->width,
                          (int)plan->problem.value_dim, last ? panel->sum : NULL, NULL, 0,
                          job->out.data, job->out.stride, queries);
}

static void forward_chunk(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const int dim = (int)plan->problem.dim, value_dim = (int)plan->problem.value_dim;
    const kernel_table *run = plan->kernels;
    const lsh_chunk chunk = sh_lsh_chunk_at(job, task);
    const int window = chunk.before + chunk.count;
    lsh_scratch *scratch = &((lsh_work *)plan->work)->threads[thread];
    query_panel *panel = &scratch->dense->panels[0];
    float *scores = scratch->dense->scores;
    sh_lsh_gather(job, &chunk, scratch);
    for (int64_t first = 0; first < chunk.count; first += panel->width) {
        const int32_t *queries = chunk.window + chunk.before + first;
        sh_lsh_cut(plan, &chunk, first, panel);
        resume_panel(job, queries, panel);
        run->score(panel->queries, panel->width, dim, scratch->keys, dim, window, scores);
        sh_lsh_hide_self(&chunk, panel, scores);
        run->softmax_step(scores, panel->width, window, panel->top, panel->sum,
                          panel->keep);
        run->mix(scores, panel->width, scratch->values, value_dim, window, value_dim,
                 panel->keep, panel->outputs);
        store_panel(job, queries, panel);
    }
}

void sh_lsh_sort(lsh_job *job, int32_t *order, team workers) {
    const int64_t n = job->view.queries;
    grouping sorted = {.clusters = (int32_t)sh_lsh_bucket_count(n),
                       .offsets = job->slot->offsets,
                       .order = order};
    hash_round(job, workers);
    sh_group_sort(&sorted, job->slot->buckets, n);
    job->order = order;
}

static void forward_rounds(lsh_job *job, int32_t *orders, int64_t stride, team workers) {
    for (; job->round < job->call->plan->attention.rounds; job->round++) {
        sh_lsh_sort(job, orders + job->round * stride, workers);
        sh_team_run(workers, ceil_divide(job->view.queries, LSH_CHUNK), forward_chunk,
                    job);
    }
}

static void forward_unit(void *shared, int64_t unit, int slot_index, team workers) {
    const attention_call *call = shared;
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const lsh_slot *slot = &((lsh_work *)plan->work)->slots[slot_index];
    const lsh_state state = sh_lsh_state_at(plan, &(block_layout){.base = call->state});
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    const int64_t at = unit * problem->queries;
    int32_t *orders = plan->with_backward ? state.order + at * plan->attention.rounds
                                          : slot->order;
    const int64_t stride = plan->with_backward ? problem->queries : 0;
    lsh_job job = {.call = call,
                   .slot = slot,
                   .view = sh_view_of(call, b, h),
                   .top = plan->with_backward ? state.top + at : slot->top,
                   .sum = plan->with_backward ? state.inverse + at : slot->sum,
                   .out = sh_query_rows(call, call->out, &problem->out, b, h)};
    sh_clear_rows(job.out, job.view.queries,
                  problem->packed ? job.view.queries : problem->queries,
                  problem->value_dim);
    if (job.view.queries == 0)
        return;
    sh_lsh_measure(&job, workers);
    (sh_lsh_counted(&job) ? sh_lsh_count_forward : forward_rounds)(&job, orders, stride,
                                                                   workers);
}

static void forward(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    sh_run_units(sh_team_of(call->plan->context), problem->batch * problem->heads,
                 forward_unit, (void *)call);
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, D = (double)problem->dim;
    const double R = attention->rounds;
    return (operation_count){.once = 2 * R * N * D * N / LSH_WINDOW,
                             .dense = 2 * N * fmin(N, R * LSH_WINDOW) *
                                      (D + (double)problem->value_dim)};
}

const attention_kind sh_lsh_kind = {
    .info = {.name = "lsh-R",
             .number = "rounds",
             .cost = "N min(64 R, N) (D + Dv) + R N N D / 64",
             .summary = "Reformer: R rounds of hashing, each position sees two chunks of "
                        "32; K = Q",
             .defaults = {.kind = SHOAL_LSH, .rounds = 4, .seed = 1},
             .keys_are_queries = 1,
             .unit_keys = 1,
             .has_seed = 1},
    .operations = operations,
    .place = place,
    .forward = forward,
    .backward = sh_lsh_backward,
};
