/* lsh-R: Reformer's attention. Keys are the queries scaled to unit length; in each of R
 * rounds a position sees the positions that hash near it, never itself while it has
 * another. Rounds weighted by their log-sum-exp are together one softmax in which a key
 * counts once for every round that shows it: that is how both passes are written.
 * (Reformer divides by the number of those rounds, and its first chunk looks back at the
 * last; here the first has none before it.)
 *
 * Forward, one round after another: hash, sort by (bucket, position), cut into chunks,
 * and continue every position's softmax with the keys of its chunk and the one before.
 * Outputs that are not yet divided by their sum wait in `out` between rounds.
 * Backward recomputes that softmax chunk by chunk from the orders, largest scores and
 * inverse sums that forward left. A chunk adds to the gradients of its own keys and of
 * those of the chunk before it: even chunks run first, then odd ones, so that no two
 * tasks meet and every sum has one order, however many threads there are.
 *
 * With at most 64 R positions the windows of R rounds hold more pairs than there are.
 * Then it is dense attention in which the score of a pair gets the logarithm of the
 * number of rounds that show it, or the lowest score there is: both passes are those of
 * dense.c. */
#include "attention/lsh.h"

#include <math.h>
#include <string.h>

#include "attention/dense.h"
#include "base/random.h"
#include "cluster/grouping.h"

enum {
    LSH_CHUNK = 32,
    LSH_WINDOW = 2 * LSH_CHUNK, /* a chunk and the one before */
    ROW_TASK = 1024,
    STRIP = 16,       /* queries whose rounds are counted together */
    MOST_CHUNKS = 255 /* bytes number them, and the first does not follow the last */
};

int64_t sh_lsh_bucket_count(int64_t n) {
    return n > 0 ? 2 * ceil_divide(n, 2 * LSH_CHUNK) : 2;
}

/* ---- Memory ----------------------------------------------------------------------- */

/* One thread's memory. */
typedef struct {
    dense_scratch *dense;
    float *keys;   /* [LSH_WINDOW][dim], unit length */
    float *values; /* [LSH_WINDOW][value_dim] */
    float *bias;   /* [LSH_WINDOW], where keys have one, and the masks that say so */
    score_masks masks;
    /* Backward only: */
    float *queries, *grad_out;        /* [LSH_CHUNK][dim], [LSH_CHUNK][value_dim] */
    float *largest, *inverse, *delta; /* [LSH_CHUNK] */
    float *grad_keys, *grad_values;   /* as keys and values */
    float *grad_bias;                 /* as bias */
} lsh_scratch;

/* For heads of at most most_counted() positions, M: */
typedef struct {
    float *keys;       /* [M][dim], unit length */
    uint8_t *chunks;   /* [rounds][n]: the round's chunk that a position is in; behind
                          them some that are read but not used */
    float *logs;       /* [rounds + 1], logs[m] = log m, and the lowest score for 0, or
                          -inf where keys have a bias, which may hide all others */
    atomic_int *turns; /* backward only, for dense_backward */
} lsh_count;

/* A slot's memory: one head at a time. */
typedef struct {
    double *inverse_length; /* [queries], 0 for a zero query */
    float *projections;     /* [buckets / 2][dim] */
    int32_t *buckets;       /* [queries] */
    int32_t *offsets;       /* [buckets + 1] */
    float *sum;             /* [queries], between rounds */
    lsh_count count;
    /* Without backward; with it, these are in the state: */
    int32_t *order; /* [queries] */
    float *largest; /* [queries] */
    /* Backward only: */
    float *delta;     /* [queries] */
    float *grad_keys; /* [queries][dim] */
} lsh_slot;

typedef struct {
    dense_scratch *dense; /* one for each thread, as `threads` */
    lsh_scratch *threads;
    lsh_slot *slots;
} lsh_work;

/* What forward leaves for backward. */
typedef struct {
    float *largest, *inverse; /* [batch][heads][queries]: of the one softmax */
    int32_t *order;           /* [batch][heads][rounds][queries], sorted by bucket */
} lsh_state;

/* One head in work. */
typedef struct {
    const attention_call *call;
    const lsh_slot *slot;
    head_view view;
    int64_t round;
    const int32_t *order; /* [n], of this round */
    float *largest;       /* [n] */
    float *inverse;       /* [n], of the softmax's sum; NULL without backward */
    score_masks masks;
    int has_bias; /* of keys: masks say it */
    /* Backward only: */
    row_view dv;
    int64_t phase; /* 0: even chunks, 1: odd ones */
} lsh_job;

static lsh_state state_at(const shoal_plan *plan, block_layout *place) {
    const int64_t count = plan->problem.batch * plan->problem.heads *
                          plan->problem.queries;
    int64_t orders;
    lsh_state state = {0};
    if (!plan->with_backward)
        return state;
    if (__builtin_mul_overflow(count, (int64_t)plan->attention.rounds, &orders))
        orders = -1; /* which reserve refuses */
    state.largest = sh_reserve(place, count, sizeof(float));
    state.inverse = sh_reserve(place, count, sizeof(float));
    state.order = sh_reserve(place, orders, sizeof(int32_t));
    return state;
}

/* The most positions that are counted pair by pair. */
static int64_t most_counted(const shoal_plan *plan) {
    return min(min(plan->problem.queries, MOST_CHUNKS * LSH_CHUNK),
               (int64_t)plan->attention.rounds * LSH_WINDOW);
}

static int is_counted(const lsh_job *job) {
    return job->view.queries <= most_counted(job->call->plan);
}

static void place_thread(lsh_scratch *scratch, dense_scratch *dense,
                         const shoal_plan *plan, block_layout *work) {
    const int64_t dim = plan->problem.dim, value_dim = plan->problem.value_dim;
    sh_dense_place(dense, plan, work);
    scratch->dense = dense;
    scratch->keys = sh_reserve(work, LSH_WINDOW * dim, sizeof(float));
    scratch->values = sh_reserve(work, LSH_WINDOW * value_dim, sizeof(float));
    scratch->bias = sh_reserve(work, LSH_WINDOW, sizeof(float));
    if (!plan->with_backward)
        return;
    scratch->queries = sh_reserve(work, LSH_CHUNK * dim, sizeof(float));
    scratch->grad_out = sh_reserve(work, LSH_CHUNK * value_dim, sizeof(float));
    scratch->largest = sh_reserve(work, LSH_CHUNK, sizeof(float));
    scratch->inverse = sh_reserve(work, LSH_CHUNK, sizeof(float));
    scratch->delta = sh_reserve(work, LSH_CHUNK, sizeof(float));
    scratch->grad_keys = sh_reserve(work, LSH_WINDOW * dim, sizeof(float));
    scratch->grad_values = sh_reserve(work, LSH_WINDOW * value_dim, sizeof(float));
    scratch->grad_bias = sh_reserve(work, LSH_WINDOW, sizeof(float));
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
    for (int s = 0; s < slots; s++) {
        lsh_slot *slot = own->slots ? &own->slots[s] : &(lsh_slot){0};
        const int64_t n = plan->problem.queries, dim = plan->problem.dim;
        const int64_t buckets = sh_lsh_bucket_count(n);
        slot->inverse_length = sh_reserve(work, n, sizeof(double));
        slot->projections = sh_reserve(work, buckets / 2 * dim, sizeof(float));
        slot->buckets = sh_reserve(work, n, sizeof(int32_t));
        slot->offsets = sh_reserve(work, buckets + 1, sizeof(int32_t));
        slot->sum = sh_reserve(work, n, sizeof(float));
        if (plan->with_backward) {
            slot->delta = sh_reserve(work, n, sizeof(float));
            slot->grad_keys = sh_reserve(work, n * dim, sizeof(float));
        } else {
            slot->order = sh_reserve(work, n, sizeof(int32_t));
            slot->largest = sh_reserve(work, n, sizeof(float));
        }
        const int64_t M = most_counted(plan), rounds = plan->attention.rounds;
        slot->count.keys = sh_reserve(work, M * plan->problem.dim, sizeof(float));
        slot->count.chunks = sh_reserve(work, rounds * M + STRIP, sizeof(uint8_t));
        slot->count.logs = sh_reserve(work, rounds + 1, sizeof(float));
        if (plan->with_backward)
            slot->count.turns = sh_reserve(work,
                                           ceil_divide(M, sh_dense_block(plan->kernels)),
                                           sizeof(atomic_int));
    }
    state_at(plan, state);
}

/* ---- Unit keys -------------------------------------------------------------------- */

static void length_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const int64_t end = min((task + 1) * ROW_TASK, job->view.queries);
    (void)thread;
    for (int64_t i = task * ROW_TASK; i < end; i++) {
        const float *q = job->view.q.data + i * job->view.q.stride;
        double sum = 0;
        for (int64_t d = 0; d < job->call->plan->problem.dim; d++)
            sum += (double)q[d] * (double)q[d];
        job->slot->inverse_length[i] = sum == 0 ? 0 : 1 / sqrt(sum);
    }
}

/* Inverse lengths of the head's queries. */
static void measure(lsh_job *job, team workers) {
    sh_team_run(workers, ceil_divide(job->view.queries, ROW_TASK), length_task, job);
}

static void unit_row(const lsh_job *job, int64_t position, float *key) {
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
            random_normal(plan->attention.seed, STREAM_ROTATIONS, column | (uint64_t)d);
}

/* The largest and the smallest product of each lane so far, and the first column that
   gave it: the smallest is the largest of the negated half. */
typedef struct {
    float most[MAX_PANEL], least[MAX_PANEL];
    int32_t most_at[MAX_PANEL], least_at[MAX_PANEL];
} extremes;

/* One run of panels of queries. */
static void hash_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const kernel_table *kernels = plan->kernels;
    const int64_t block = sh_dense_block(kernels), n = job->view.queries,
                  dim = plan->problem.dim;
    const int32_t half = (int32_t)(sh_lsh_bucket_count(n) / 2);
    lsh_scratch *scratch = &((lsh_work *)plan->work)->threads[thread];
    extremes found[PANELS];
    const int panels =
        sh_dense_cut(scratch->dense, kernels, task * block, min((task + 1) * block, n));
    for (int p = 0; p < panels; p++) {
        query_panel *panel = &scratch->dense->panels[p];
        for (int i = 0; i < panel->count; i++)
            unit_row(job, panel->first + i, scratch->keys + i * dim);
        kernels->pack(scratch->keys, dim, NULL, panel->count, panel->width, (int)dim, 1,
                      panel->queries);
        for (int i = 0; i < MAX_PANEL; i++) {
            found[p].most[i] = -INFINITY;
            found[p].least[i] = INFINITY;
            found[p].most_at[i] = found[p].least_at[i] = 0;
        }
    }
    for (int32_t c = 0; c < half; c += KEY_BLOCK)
        for (int p = 0; p < panels; p++) {
            const query_panel *panel = &scratch->dense->panels[p];
            const int count = (int)min(KEY_BLOCK, half - c);
            kernels->score(panel->queries, panel->width, (int)dim,
                           job->slot->projections + c * dim, dim, count,
                           scratch->dense->scores);
            for (int r = 0; r < count; r++)
                for (int i = 0; i < panel->width; i++) {
                    const float product = scratch->dense->scores[r * panel->width + i];
                    const int more = product > found[p].most[i],
                              less = product < found[p].least[i];
                    found[p].most[i] = more ? product : found[p].most[i];
                    found[p].most_at[i] = more ? c + r : found[p].most_at[i];
                    found[p].least[i] = less ? product : found[p].least[i];
                    found[p].least_at[i] = less ? c + r : found[p].least_at[i];
                }
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
    measure(&job, (team){.threads = 1});
    hash_round(&job, (team){.threads = 1});
    memcpy(buckets, job.slot->buckets, (size_t)job.view.queries * sizeof *buckets);
}

/* Hashes and sorts the positions of the job's round into `order`, [n]. */
static void sort_round(lsh_job *job, int32_t *order, team workers) {
    const int64_t n = job->view.queries;
    grouping sorted = {.clusters = (int32_t)sh_lsh_bucket_count(n),
                       .offsets = job->slot->offsets,
                       .order = order};
    hash_round(job, workers);
    sh_group_sort(&sorted, job->slot->buckets, n);
    job->order = order;
}

/* ---- Chunks ----------------------------------------------------------------------- */

/* A chunk of the sorted positions with the one before it. */
typedef struct {
    const int32_t *window; /* positions: `before` of the last chunk, `count` of this */
    int before, count;
} lsh_chunk;

static lsh_chunk chunk_at(const lsh_job *job, int64_t chunk) {
    const int64_t first = chunk * LSH_CHUNK;
    const int before = chunk > 0 ? LSH_CHUNK : 0;
    return (lsh_chunk){.window = job->order + first - before,
                       .before = before,
                       .count = (int)min(LSH_CHUNK, job->view.queries - first)};
}

/* Copies the window's unit keys, its values and its biases. */
static void gather(const lsh_job *job, const lsh_chunk *chunk, lsh_scratch *scratch) {
    const shoal_problem *problem = &job->call->plan->problem;
    const row_view v = job->view.v;
    for (int r = 0; r < chunk->before + chunk->count; r++) {
        unit_row(job, chunk->window[r], scratch->keys + r * problem->dim);
        memcpy(scratch->values + r * problem->value_dim,
               v.data + chunk->window[r] * v.stride,
               (size_t)problem->value_dim * sizeof(float));
        if (job->has_bias)
            scratch->bias[r] = sh_masks_key_bias(&job->masks, chunk->window[r]);
    }
}

/* The window as keys of the dense part. */
static dense_keys window_keys(const lsh_job *job, lsh_scratch *scratch) {
    dense_keys keys = sh_dense_keys_of(job->call->plan, &job->view);
    keys.k = (row_view){scratch->keys, keys.dim};
    keys.v = (row_view){scratch->values, keys.value_dim};
    if (!job->has_bias)
        return keys;
    scratch->masks =
        (score_masks){.key_bias = scratch->bias,
                      .dkey_bias = job->masks.dkey_bias ? scratch->grad_bias : NULL,
                      .key_bias_step = 1,
                      .dkey_bias_step = 1,
                      .step = 1};
    keys.masks = &scratch->masks;
    return keys;
}

/* Gives each query's own key a score of -inf, unless it has no other key. */
static void hide_self(void *context, const query_panel *panel, float *scores, int count,
                      int64_t first) {
    const lsh_chunk *chunk = context;
    (void)count;
    (void)first; /* the window is one block */
    if (chunk->before + chunk->count == 1)
        return;
    for (int i = 0; i < panel->count; i++)
        scores[(chunk->before + panel->first + i) * panel->width + i] = -INFINITY;
}

/* A panel of the chunk's queries; first counts from the chunk's first. */
static void cut(const shoal_plan *plan, const lsh_chunk *chunk, int64_t first,
                query_panel *panel) {
    panel->first = first;
    panel->width = panel_width(plan->kernels, chunk->count - first);
    panel->count = (int)min(panel->width, chunk->count - first);
}

/* ---- Forward ---------------------------------------------------------------------- */

static void forward_chunk(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    lsh_chunk chunk = chunk_at(job, task);
    lsh_scratch *scratch = &((lsh_work *)plan->work)->threads[thread];
    const dense_keys keys = window_keys(job, scratch);
    query_panel *panel = &scratch->dense->panels[0];
    gather(job, &chunk, scratch);
    for (int64_t first = 0; first < chunk.count; first += panel->width) {
        const int32_t *queries = chunk.window + chunk.before + first;
        cut(plan, &chunk, first, panel);
        /* Takes up the panel's softmax where the round before left it. */
        const int value_dim = (int)plan->problem.value_dim, fresh = job->round == 0;
        plan->kernels->pack(job->view.q.data, job->view.q.stride, queries, panel->count,
                            panel->width, (int)plan->problem.dim, plan->problem.scale,
                            panel->queries);
        plan->kernels->pack(job->view.out.data, job->view.out.stride, queries,
                            fresh ? 0 : panel->count, panel->width, value_dim, 1,
                            panel->outputs);
        for (int i = 0; i < panel->width; i++) {
            int begun = i < panel->count && !fresh;
            panel->largest[i] = begun ? job->largest[queries[i]] : LOWEST_SCORE;
            panel->sum[i] = begun ? job->slot->sum[queries[i]] : 0;
        }
        sh_dense_stream(&keys, 0, chunk.before + chunk.count, panel,
                        scratch->dense->scores, hide_self, &chunk);
        const int last = job->round == plan->attention.rounds - 1;
        sh_dense_invert(&keys, panel);
        for (int i = 0; i < panel->count; i++) {
            job->largest[queries[i]] = panel->largest[i];
            job->slot->sum[queries[i]] = panel->sum[i];
            if (last && job->inverse)
                job->inverse[queries[i]] = panel->inverse[i];
        }
        plan->kernels->unpack(panel->outputs, panel->count, panel->width,
                              (int)plan->problem.value_dim, last ? panel->inverse : NULL,
                              NULL, 0, job->view.out.data, job->view.out.stride, queries);
    }
}

static void forward_rounds(lsh_job *job, int32_t *orders, int64_t stride, team workers) {
    for (; job->round < job->call->plan->attention.rounds; job->round++) {
        sort_round(job, orders + job->round * stride, workers);
        sh_team_run(workers, ceil_divide(job->view.queries, LSH_CHUNK), forward_chunk,
                    job);
    }
}

/* ---- Few positions: each pair once ------------------------------------------------- */

typedef uint8_t strip __attribute__((vector_size(STRIP * sizeof(uint8_t))));

static void prepare(const lsh_job *job) {
    const lsh_count *count = &job->slot->count;
    const shoal_plan *plan = job->call->plan;
    for (int64_t i = 0; i < job->view.queries; i++)
        unit_row(job, i, count->keys + i * plan->problem.dim);
    count->logs[0] = job->has_bias && job->view.queries > 1 ? -INFINITY : LOWEST_SCORE;
    for (int m = 1; m <= plan->attention.rounds; m++)
        count->logs[m] = logf((float)m);
}

/* Notes the chunks of the job's round. */
static void note_chunks(const lsh_job *job) {
    const int64_t n = job->view.queries;
    uint8_t *chunks = job->slot->count.chunks + job->round * n;
    for (int64_t s = 0; s < n; s++)
        chunks[job->order[s]] = (uint8_t)(s / LSH_CHUNK);
}

/* counts[i]: rounds in which query first + i has the key in its chunk or in the one
   before. */
static void count_rounds(const lsh_job *job, int64_t first, int64_t key,
                         uint8_t counts[STRIP]) {
    const int64_t n = job->view.queries;
    const uint8_t *chunks = job->slot->count.chunks;
    strip shown = {0};
    for (int round = 0; round < job->call->plan->attention.rounds; round++, chunks += n) {
        strip ahead;
        memcpy(&ahead, chunks + first, sizeof ahead);
        ahead -= chunks[key];
        shown -= (strip)(ahead <= 1); /* true is -1 */
    }
    /* Its own key has the lowest score, and so counts only where it is alone. */
    if (key >= first && key < first + STRIP)
        shown[key - first] = 0;
    memcpy(counts, &shown, sizeof shown);
}

/* on_scores: a key counts as often as rounds show it. */
static void weigh(void *context, const query_panel *panel, float *scores, int count,
                  int64_t first) {
    const lsh_job *job = context;
    const float *logs = job->slot->count.logs;
    for (int r = 0; r < count; r++)
        for (int i = 0; i < panel->count; i += STRIP) {
            float *row = scores + r * panel->width + i;
            const int lanes = (int)min(STRIP, panel->width - i);
            uint8_t counts[STRIP];
            count_rounds(job, panel->first + i, first + r, counts);
            for (int j = 0; j < lanes; j++)
                row[j] += logs[counts[j]]; /* the lowest score absorbs any other */
        }
}

static dense_keys unit_keys(const lsh_job *job) {
    dense_keys keys = sh_dense_keys_of(job->call->plan, &job->view);
    keys.k = (row_view){job->slot->count.keys, job->call->plan->problem.dim};
    keys.masks = job->has_bias ? &job->masks : NULL;
    return keys;
}

/* A head's keys may have a bias. */
static void set_masks(lsh_job *job) {
    job->has_bias = sh_masks_in(job->call, &job->view, &job->masks) != NULL;
}

static void counted_task(void *shared, int64_t task, int thread) {
    const dense_forward_job *dense = shared;
    const int64_t block = sh_dense_block(dense->keys.kernels), first = task * block;
    sh_dense_forward(dense, first, min(first + block, dense->key_count), thread);
}

/* orders: one order for each round, `stride` apart; 0 if only one is kept. */
static void forward_counted(lsh_job *job, int32_t *orders, int64_t stride, team workers) {
    const shoal_plan *plan = job->call->plan;
    const int64_t n = job->view.queries;
    dense_forward_job dense = {.keys = unit_keys(job),
                               .key_count = n,
                               .x = job->view.q,
                               .out = job->view.out,
                               .largest = job->inverse ? job->largest : NULL,
                               .inverse = job->inverse,
                               .on_scores = weigh,
                               .context = job,
                               .threads = ((lsh_work *)plan->work)->dense};
    prepare(job);
    for (job->round = 0; job->round < plan->attention.rounds; job->round++) {
        sort_round(job, orders + job->round * stride, workers);
        note_chunks(job);
    }
    sh_team_run(workers, ceil_divide(n, sh_dense_block(plan->kernels)), counted_task,
                &dense);
}

/* Adds to dv and to slot->grad_keys, overwrites dq. */
static void backward_counted(lsh_job *job, const int32_t *orders, team workers) {
    const shoal_plan *plan = job->call->plan;
    const int64_t n = job->view.queries;
    float *grad_keys = job->view.dq.data ? job->slot->grad_keys : NULL;
    dense_backward_job dense = {.keys = unit_keys(job),
                                .n = n,
                                .key_count = n,
                                .x = job->view.q,
                                .dout = job->view.dout,
                                .largest = {job->largest, 1},
                                .inverse = {job->inverse, 1},
                                .delta = {job->slot->delta, 1},
                                .dq = job->view.dq,
                                .dk = {grad_keys, plan->problem.dim},
                                .dv = job->dv,
                                .on_scores = weigh,
                                .context = job,
                                .turns = job->slot->count.turns,
                                .threads = ((lsh_work *)plan->work)->dense};
    prepare(job);
    for (job->round = 0; job->round < plan->attention.rounds; job->round++) {
        job->order = orders + job->round * plan->problem.queries;
        note_chunks(job);
    }
    sh_dense_backward(&dense, workers);
}

/* ---- One head forward ------------------------------------------------------------- */

static void forward_head(const attention_call *call, int64_t unit, int slot_index,
                         team workers) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const lsh_slot *slot = &((lsh_work *)plan->work)->slots[slot_index];
    const lsh_state state = state_at(plan, &(block_layout){.base = call->state});
    const int64_t at = unit * problem->queries;
    int32_t *orders = plan->with_backward ? state.order + at * plan->attention.rounds
                                          : slot->order;
    const int64_t stride = plan->with_backward ? problem->queries : 0;
    lsh_job job = {.call = call,
                   .slot = slot,
                   .view = sh_view_at(call, unit),
                   .largest = plan->with_backward ? state.largest + at : slot->largest,
                   .inverse = plan->with_backward ? state.inverse + at : NULL};
    sh_clear_rows(job.view.out, job.view.queries, job.view.query_rows,
                  problem->value_dim);
    if (job.view.queries == 0)
        return;
    set_masks(&job);
    measure(&job, workers);
    (is_counted(&job) ? forward_counted : forward_rounds)(&job, orders, stride, workers);
}

/* ---- Backward --------------------------------------------------------------------- */

static void gather_gradients(const lsh_job *job, const lsh_chunk *chunk,
                             lsh_scratch *scratch) {
    const size_t dim = (size_t)job->call->plan->problem.dim;
    const size_t value_dim = (size_t)job->call->plan->problem.value_dim;
    const size_t window = (size_t)(chunk->before + chunk->count);
    for (size_t i = 0; i < (size_t)chunk->count; i++) {
        const int64_t position = chunk->window[(size_t)chunk->before + i];
        memcpy(scratch->queries + i * dim,
               job->view.q.data + position * job->view.q.stride, dim * sizeof(float));
        memcpy(scratch->grad_out + i * value_dim,
               job->view.dout.data + position * job->view.dout.stride,
               value_dim * sizeof(float));
        scratch->largest[i] = job->largest[position];
        scratch->inverse[i] = job->inverse[position];
        scratch->delta[i] = job->slot->delta[position];
    }
    memset(scratch->grad_keys, 0, window * dim * sizeof(float));
    memset(scratch->grad_values, 0, window * value_dim * sizeof(float));
    memset(scratch->grad_bias, 0, window * sizeof(float));
}

/* to[index[r]] += from[r]. */
static void scatter_add(const float *from, int64_t dim, const int32_t *index, int count,
                        row_view to) {
    for (int r = 0; r < count; r++) {
        float *row = to.data + index[r] * to.stride;
        for (int64_t d = 0; d < dim; d++)
            row[d] += from[r * dim + d];
    }
}

static void backward_chunk(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const shoal_problem *problem = &plan->problem;
    lsh_chunk chunk = chunk_at(job, 2 * task + job->phase);
    const int window = chunk.before + chunk.count;
    lsh_scratch *scratch = &((lsh_work *)plan->work)->threads[thread];
    query_panel *panel = &scratch->dense->panels[0];
    const dense_backward_job dense =
        {.keys = window_keys(job, scratch),
         .x = {scratch->queries, problem->dim},
         .dout = {scratch->grad_out, problem->value_dim},
         .largest = {scratch->largest, 1},
         .inverse = {scratch->inverse, 1},
         .delta = {scratch->delta, 1},
         .dq = job->view.dq,
         .dk = {job->view.dq.data ? scratch->grad_keys : NULL, problem->dim},
         .dv = {job->dv.data ? scratch->grad_values : NULL, problem->value_dim},
         .on_scores = hide_self,
         .context = &chunk};
    gather(job, &chunk, scratch);
    gather_gradients(job, &chunk, scratch);
    for (int64_t first = 0; first < chunk.count; first += panel->width) {
        const int32_t *queries = chunk.window + chunk.before + first;
        cut(plan, &chunk, first, panel);
        sh_dense_backward_start(&dense, panel);
        sh_dense_backward_panel(&dense, 0, window, panel, scratch->dense);
        if (job->view.dq.data)
            plan->kernels->unpack(panel->grad_q, panel->count, panel->width,
                                  (int)problem->dim, NULL, NULL, 1, job->view.dq.data,
                                  job->view.dq.stride, queries);
    }
    if (job->dv.data)
        scatter_add(scratch->grad_values, problem->value_dim, chunk.window, window,
                    job->dv);
    if (job->view.dq.data)
        scatter_add(scratch->grad_keys, problem->dim, chunk.window, window,
                    (row_view){job->slot->grad_keys, problem->dim});
    if (job->masks.dkey_bias)
        scatter_add(scratch->grad_bias, 1, chunk.window, window,
                    (row_view){job->masks.dkey_bias, 1});
}

/* Adds the keys' gradients to the queries they were made from: of a key u = q / |q| only
   what is at right angles to u counts, divided by |q|. */
static void normalise_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const int64_t dim = plan->problem.dim;
    const int64_t end = min((task + 1) * ROW_TASK, job->view.queries);
    float *unit = ((lsh_work *)plan->work)->threads[thread].keys;
    for (int64_t i = task * ROW_TASK; i < end; i++) {
        const float *grad = job->slot->grad_keys + i * dim;
        const double inverse = job->slot->inverse_length[i];
        float *dq = job->view.dq.data + i * job->view.dq.stride;
        double along = 0;
        unit_row(job, i, unit);
        for (int64_t d = 0; d < dim; d++)
            along += (double)grad[d] * (double)unit[d];
        for (int64_t d = 0; d < dim; d++)
            dq[d] += (float)(((double)grad[d] - along * (double)unit[d]) * inverse);
    }
}

static void backward_rounds(lsh_job *job, const int32_t *orders, team workers) {
    const shoal_plan *plan = job->call->plan;
    const int64_t chunks = ceil_divide(job->view.queries, LSH_CHUNK);
    for (job->round = 0; job->round < plan->attention.rounds; job->round++) {
        job->order = orders + job->round * plan->problem.queries;
        for (job->phase = 0; job->phase < 2; job->phase++)
            sh_team_run(workers, ceil_divide(chunks - job->phase, 2), backward_chunk,
                        job);
    }
}

static void attend_backward(lsh_job *job, const int32_t *orders, team workers) {
    const shoal_problem *problem = &job->call->plan->problem;
    const int64_t n = job->view.queries;
    measure(job, workers);
    sh_dense_delta(&(dense_delta_job){job->view.dout, job->view.out, n,
                                      problem->value_dim, job->slot->delta},
                   workers);
    sh_clear_rows((row_view){job->slot->grad_keys, problem->dim}, 0, n, problem->dim);
    (is_counted(job) ? backward_counted : backward_rounds)(job, orders, workers);
    if (job->view.dq.data)
        sh_team_run(workers, ceil_divide(n, ROW_TASK), normalise_task, job);
}

/* Keys are queries, so every key/value head has one query head. */
static void backward_head(const attention_call *call, int64_t unit, int slot_index,
                          team workers) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const lsh_state state = state_at(plan, &(block_layout){.base = call->state});
    const int64_t at = unit * problem->queries;
    const kv_head_view kv = sh_start_kv_head(call, unit);
    lsh_job job = {.call = call,
                   .slot = &((lsh_work *)plan->work)->slots[slot_index],
                   .view = sh_view_at(call, unit),
                   .largest = state.largest + at,
                   .inverse = state.inverse + at,
                   .dv = kv.dv};
    sh_clear_rows(job.view.dq, 0, job.view.query_rows, problem->dim);
    set_masks(&job);
    if (job.view.queries > 0)
        attend_backward(&job, state.order + at * plan->attention.rounds, workers);
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
             .summary = "Reformer: R rounds of hashing, each position attends to two "
                        "chunks of 32; K = Q",
             .defaults = {.kind = SHOAL_KIND_LSH, .rounds = 4, .seed = 1},
             .keys_are_queries = 1,
             .unit_keys = 1,
             .has_seed = 1},
    .operations = operations,
    .place = place,
    .forward_head = forward_head,
    .backward_head = backward_head,
};
