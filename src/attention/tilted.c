/* The second form of shoal-C: memory, and the road of one head up to its blocks. */
#include "attention/tilted.h"

#include <math.h>
#include <string.h>

#include "attention/clustered.h"

/* ---- Sizes ------------------------------------------------------------------------ */

/* Means of neighbouring members that speak for a block when its keys are chosen: with
   many queries the members of a block are so alike that fewer will do. */
static int points_of(int64_t N, int64_t block) {
    const int64_t most = N < 4096 ? TILTED_POINTS : N < 8192 ? 4 : N < 16384 ? 2 : 1;
    return (int)max(1, min(most, block / 2));
}

/* Of a sequence of n queries and S keys: its numbers are what they would be alone. */
static tilted_sizes numbers_of(const shoal_plan *plan, int64_t n, int64_t S) {
    shoal_problem problem = plan->problem;
    problem.queries = n;
    problem.keys = S;
    const shoal_attention a = sh_attention_resolve(&plan->asked, &problem);
    tilted_sizes size = {.C = a.clusters,
                         .N = plan->problem.queries,
                         .S = plan->problem.keys,
                         .dim = (int)problem.dim,
                         .value_dim = (int)problem.value_dim,
                         .rank = (int)min(a.rank, problem.dim)};
    size.M = max(1, min(a.keyclusters, S));
    size.k = min(a.topk, S);
    size.p = min(max(a.pool, size.k), S);
    size.block = (int)min(a.block, max(1, n));
    size.points = points_of(n, size.block);
    size.each = (int)ceil_divide(size.block, size.points);
    size.leaf = (int)max(size.each, min(8, size.block / 2));
    size.near = (int)(n == S ? min(a.near, S) : 0);
    size.wide = size.value_dim + size.rank;
    size.blocks = ceil_divide(n, size.block) + min(size.C, n);
    return size;
}

static void widen(tilted_sizes *most, const tilted_sizes *size) {
    most->C = max(most->C, size->C);
    most->M = max(most->M, size->M);
    most->k = max(most->k, size->k);
    most->p = max(most->p, size->p);
    most->blocks = max(most->blocks, size->blocks);
    most->block = (int)max(most->block, size->block);
    most->points = (int)max(most->points, size->points);
    most->near = (int)max(most->near, size->near);
}

/* What suffices for every sequence of the plan. All numbers grow with a sequence's length
   between these lengths, and with its keys; near keys are where both are as many. */
static tilted_sizes sizes_of(const shoal_plan *plan) {
    static const int64_t ends[] = {1023, 4095, 8191, 16383, INT64_MAX};
    const int64_t N = plan->problem.queries, S = plan->problem.keys;
    tilted_sizes most = numbers_of(plan, N, S);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int64_t n = min(N, ends[i]);
        const tilted_sizes any = numbers_of(plan, n, S);
        const tilted_sizes aligned = numbers_of(plan, min(n, S), min(n, S));
        widen(&most, &any);
        widen(&most, &aligned);
    }
    return most;
}

static int is_tilted(const shoal_plan *plan) {
    return plan->attention.keyclusters > 0;
}

/* ---- Memory ----------------------------------------------------------------------- */

static float *floats(block_layout *place, int64_t a, int64_t b) {
    return reserve_floats(place, a, b);
}

/* What backward needs, of `heads` heads. */
static void place_state(tilted_state *state, const tilted_sizes *size, int64_t heads,
                        int with_backward, block_layout *place) {
    const int64_t sums = sh_mul_checked(heads, size->C * size->M);
    state->order = sh_reserve(place, sh_mul_checked(heads, size->N), sizeof(int32_t));
    state->key_clusters =
        sh_reserve(place, sh_mul_checked(heads, size->S), sizeof(int32_t));
    state->projection = floats(place, heads, (int64_t)(size->rank + 1) * size->dim);
    state->dual = floats(place, heads, (int64_t)size->rank * size->dim);
    state->centroids = floats(place, heads, size->C * size->dim);
    state->top = floats(place, sums, 1);
    state->mass = floats(place, sums, 1);
    state->sums = floats(place, sums, size->wide);
    state->pools =
        sh_reserve(place, sh_mul_checked(heads, size->C * size->p), sizeof(int32_t));
    state->pool_counts =
        sh_reserve(place, sh_mul_checked(heads, size->C), sizeof(int32_t));
    state->exact = sh_reserve(place, sh_mul_checked(heads, size->blocks * size->k),
                              sizeof(uint16_t));
    if (!with_backward)
        return;
    state->log_sums = floats(place, heads, size->N);
    state->live = sh_reserve(place, sh_mul_checked(heads, 2), sizeof(int32_t));
}

static tilted_state state_at(const shoal_plan *plan, block_layout *place) {
    const tilted_sizes size = sizes_of(plan);
    const int64_t heads = plan->problem.batch * plan->problem.heads;
    tilted_state state = {
        .groups = sh_reserve(place, sh_mul_checked(heads, size.N), sizeof(int32_t))};
    if (plan->with_backward)
        place_state(&state, &size, heads, 1, place);
    return state;
}

static void place_means(tilted_slot *slot, const shoal_plan *plan,
                        const tilted_sizes *size, const tilted_work *own,
                        block_layout *work) {
    block_layout queries = *work, keys = *work;
    sh_lloyd_place(&slot->query_means, plan->kernels, (int)size->C, size->dim, size->rank,
                   size->N, &queries);
    sh_lloyd_place(&slot->key_means, plan->kernels, (int)size->M, size->rank, size->rank,
                   size->S, &keys);
    slot->query_means.threads = slot->key_means.threads = own->lloyd;
    *work = queries.bytes > keys.bytes ? queries : keys;
    work->overflow = queries.overflow || keys.overflow;
}

static void place_slot(tilted_slot *slot, const shoal_plan *plan,
                       const tilted_sizes *size, const tilted_work *own,
                       block_layout *work) {
    *slot = (tilted_slot){0};
    sh_metric_place(&slot->metric, plan->kernels, size->dim, size->rank, work);
    place_means(slot, plan, size, own, work);
    slot->sorted.offsets = sh_reserve(work, size->C + 1, sizeof(int32_t));
    slot->keys.offsets = sh_reserve(work, size->M + 1, sizeof(int32_t));
    slot->keys.order = sh_reserve(work, size->S, sizeof(int32_t));
    slot->block_offsets = sh_reserve(work, size->C + 1, sizeof(int32_t));
    slot->coordinates = floats(work, max(size->N, size->S), size->rank);
    slot->variances = floats(work, size->C, size->rank);
    slot->stretch = floats(work, size->rank, size->rank);
    slot->plain = floats(work, size->M, size->rank);
    slot->shift = floats(work, size->rank, 1);
    slot->part_keys =
        sh_reserve(work, TILTED_CHUNKS * size->C * size->p, sizeof(uint64_t));
    slot->part_counts = sh_reserve(work, TILTED_CHUNKS * size->C, sizeof(int32_t));
    if (!plan->with_backward) {
        place_state(&slot->state, size, 1, 0, work);
        return;
    }
    slot->grad_sums = floats(work, size->C * size->M, size->wide);
    slot->grad_mass = floats(work, size->C, size->M);
    slot->grad_plain = floats(work, size->M, size->rank);
    slot->grad_centroids = floats(work, size->C, size->dim);
    slot->turn = sh_reserve(work, 1, sizeof(atomic_int));
    slot->turns = sh_reserve(work, ceil_divide(size->C, sh_dense_block(plan->kernels)),
                             sizeof(atomic_int));
}

static void place_backward_thread(tilted_thread *own, const tilted_sizes *size,
                                  int64_t width, block_layout *work) {
    const int64_t near = 2 * size->near + 1, r = size->rank;
    own->slopes = floats(work, size->k + size->M + near, width);
    own->direct_weights = floats(work, KEY_BLOCK, 1);
    own->direct_slopes = floats(work, KEY_BLOCK, 1);
    own->direct_exact = sh_reserve(work, KEY_BLOCK, 1);
    own->member_q = floats(work, width, size->dim);
    own->member_dout = floats(work, width, size->value_dim);
    own->grad_exact_keys = floats(work, size->k, size->dim);
    own->grad_values = floats(work, size->k + size->M, size->wide);
    own->grad_scores = floats(work, size->k, r + 1);
    own->grad_rows = floats(work, r + 1, size->dim);
    own->grad_shift = floats(work, r + 1, width);
    own->block_mass = floats(work, size->M, 1);
    own->grad_centroid = floats(work, size->dim, 1);
    own->key_grads = floats(work, KEY_BLOCK, size->dim);
    own->wide_grads = floats(work, KEY_BLOCK, size->wide);
}

static void place_thread(tilted_thread *own, const shoal_plan *plan,
                         const tilted_sizes *size, block_layout *work) {
    const int64_t width = plan->kernels->panel, r = size->rank;
    const int64_t lanes = min(PANELS * width, ceil_divide(size->C, width) * width);
    const int64_t pool = ceil_divide(size->p, width) * width;
    const int64_t near = 2 * size->near + 1;
    const int64_t k_lanes = ceil_divide(size->k, plan->kernels->lanes) *
                            plan->kernels->lanes; /* whole vectors */
    *own = (tilted_thread){0};
    sh_halving_place(&own->halving, plan->kernels, size->rank, work);
    own->ordered_rows = floats(work, min(size->N, HALVING_MOST), r);
    own->key_rows = floats(work, KEY_BLOCK, size->dim);
    own->wide_rows = floats(work, KEY_BLOCK, size->wide);
    own->half_squares = floats(work, KEY_BLOCK, r);
    own->variances = floats(work, PANELS * width, r);
    own->expected = floats(work, KEY_BLOCK, width);
    own->candidates = sh_reserve(work, lanes * topk_capacity(size->p), sizeof(uint64_t));
    own->counts = sh_reserve(work, PANELS * width, sizeof(int32_t));
    own->floor = floats(work, PANELS, width);
    own->pool_panels = floats(work, pool, r);
    own->pool_scores = floats(work, pool, 1);
    own->pool_residual = floats(work, pool, 1);
    own->shares = floats(work, pool, max(size->points, 1));
    own->ranked = floats(work, pool, 1);
    own->group_logs = floats(work, size->M, 1);
    own->group_shift = floats(work, r + 1, 1);
    own->keys = sh_reserve(work, size->k, sizeof(int32_t));
    own->is_exact = sh_reserve(work, size->S / 64 + 1, sizeof(uint64_t));
    own->rest = floats(work, size->M, size->wide);
    own->exact_scores = floats(work, size->k, 1);
    own->exact_weights = floats(work, k_lanes, 1);
    own->exact_tops = floats(work, 3, k_lanes);
    own->exact_clusters = sh_reserve(work, size->k, sizeof(int32_t));
    own->left_mass = floats(work, size->M, 1);
    own->strain = floats(work, size->M, 1);
    own->left = sh_reserve(work, size->M, sizeof(int32_t));
    own->weighted = sh_reserve(work, size->M, 1);
    own->logs = floats(work, size->M, 1);
    own->scores = floats(work, size->k + size->M + near, width);
    own->hidden = floats(work, near, width);
    own->unused = floats(work, near, width);
    own->tilts = floats(work, size->M, width);
    own->shift = floats(work, r + 1, width);
    own->shift_rows = floats(work, size->block, r);
    own->point_rows = floats(work, size->points, r);
    own->point_panel = floats(work, r, width);
    own->point_scores = floats(work, size->M, width);
    own->near_weights = floats(work, near, 1);
    const int64_t some = max(max(KEY_BLOCK, near), max(size->p, size->M));
    own->direct_scores = floats(work, some, 1);
    own->direct_keys = sh_reserve(work, some, sizeof(int32_t));
    own->hidden_keys = sh_reserve(work, near, sizeof(int32_t));
    own->is_pooled = sh_reserve(work, size->S / 64 + 1, sizeof(uint64_t));
    own->pool_direct = floats(work, size->p, 1);
    own->tail_logs = floats(work, size->M, 1);
    own->tails = floats(work, size->M, size->value_dim);
    own->row = floats(work, max(size->dim, size->wide), 1);
    if (plan->with_backward)
        place_backward_thread(own, size, width, work);
    if (own->is_exact) {
        memset(own->is_exact, 0, sizeof(uint64_t) * (size_t)(size->S / 64 + 1));
        memset(own->is_pooled, 0, sizeof(uint64_t) * (size_t)(size->S / 64 + 1));
    }
}

static void place_tilted(shoal_plan *plan, block_layout *work, block_layout *state) {
    const shoal_problem *problem = &plan->problem;
    tilted_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    shoal_plan widened = *plan;
    plan->work = own;
    own = own ? own : &measured;
    *own = (tilted_work){.size = sizes_of(plan)};
    widened.problem.value_dim = own->size.wide;
    own->lloyd = sh_reserve(work, plan->threads, sizeof *own->lloyd);
    own->threads = sh_reserve(work, plan->threads, sizeof *own->threads);
    own->dense = sh_reserve(work, plan->threads, sizeof *own->dense);
    for (int t = 0; t < plan->threads; t++) {
        sh_lloyd_place_thread(own->lloyd ? &own->lloyd[t] : &(lloyd_thread){0},
                              plan->kernels, own->size.dim, own->size.rank, work);
        sh_dense_place(own->dense ? &own->dense[t] : &(dense_scratch){0}, &widened, work);
        place_thread(own->threads ? &own->threads[t] : &(tilted_thread){0}, plan,
                     &own->size, work);
        if (own->threads)
            own->threads[t].dense = &own->dense[t];
    }
    int slots = sh_unit_slots(plan->threads, problem->batch * problem->heads);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int s = 0; s < slots; s++)
        place_slot(own->slots ? &own->slots[s] : &(tilted_slot){0}, plan, &own->size, own,
                   work);
    state_at(plan, state);
}

/* The part of the state that is head `at`'s. */
static tilted_state state_of(const tilted_state *all, const tilted_sizes *size,
                             int64_t at) {
    const int64_t sums = at * size->C * size->M;
    return (tilted_state){.order = all->order + at * size->N,
                          .key_clusters = all->key_clusters + at * size->S,
                          .projection = all->projection +
                                        at * (size->rank + 1) * size->dim,
                          .dual = all->dual + at * size->rank * size->dim,
                          .centroids = all->centroids + at * size->C * size->dim,
                          .top = all->top + sums,
                          .mass = all->mass + sums,
                          .sums = all->sums + sums * size->wide,
                          .pools = all->pools + at * size->C * size->p,
                          .pool_counts = all->pool_counts + at * size->C,
                          .exact = all->exact + at * size->blocks * size->k,
                          .log_sums = all->log_sums + at * size->N,
                          .live = all->live + 2 * at};
}

/* The slot's parts that have one of each group or key cluster. */
static void count_parts(tilted_slot *slot) {
    slot->sorted.clusters = slot->query_means.clusters = (int32_t)slot->size.C;
    slot->keys.clusters = slot->key_means.clusters = (int32_t)slot->size.M;
}

tilted_head sh_tilted_head_of(const attention_call *call, int64_t b, int64_t h,
                              int slot) {
    const shoal_plan *plan = call->plan;
    tilted_head head = {.call = call,
                        .work = plan->work,
                        .run = plan->kernels,
                        .scale = plan->problem.scale,
                        .view = sh_view_of(call, b, h)};
    head.slot = &head.work->slots[slot];
    head.slot->size = numbers_of(plan, head.view.queries, head.view.keys);
    if (call->inputs->groups)
        head.slot->size.C = head.work->size.C;
    count_parts(head.slot);
    head.size = &head.slot->size;
    const tilted_state all = state_at(plan, &(block_layout){.base = call->state});
    head.state = plan->with_backward ? state_of(&all, &head.work->size, head.view.head)
                                     : head.slot->state;
    head.state.groups = all.groups + head.view.head * head.size->N;
    head.slot->sorted.order = head.state.order;
    return head;
}

/* ---- Coordinates ------------------------------------------------------------------- */

enum { PROJECT_TASK = 480 }; /* rows in one task: whole panels of every width */

/* Rows of x times a matrix [r][D], plus shift unless NULL: the slot's coordinates. */
typedef struct {
    const tilted_head *head;
    row_view x;
    int64_t n;
    const float *matrix, *shift;
} projection;

static void project_task(void *shared, int64_t task, int thread) {
    const projection *job = shared;
    const tilted_head *head = job->head;
    tilted_thread *own = &head->work->threads[thread];
    const int rank = head->size->rank, dim = head->size->dim;
    const int64_t last = min((task + 1) * PROJECT_TASK, job->n);
    query_panel *panel = &own->dense->panels[0];
    for (int64_t at = task * PROJECT_TASK; at < last; at += panel->count) {
        sh_dense_cut(own->dense, head->run, at, min(at + head->run->panel, last));
        head->run->pack(job->x.data + at * job->x.stride, job->x.stride, NULL,
                        panel->count, panel->width, dim, 1, panel->queries);
        head->run->score(panel->queries, panel->width, dim, job->matrix, dim, rank,
                         own->shift);
        head->run->unpack(own->shift, panel->count, panel->width, rank, NULL, job->shift,
                          0, head->slot->coordinates + at * rank, rank, NULL);
    }
}

static void project(const tilted_head *head, team workers, projection *job) {
    job->head = head;
    sh_team_run(workers, ceil_divide(job->n, PROJECT_TASK), project_task, job);
}

/* ---- Groups ----------------------------------------------------------------------- */

/* Every query is a group of its own: nothing is approximated, so nothing is needed to
   approximate it with. */
static int is_trivial(const tilted_head *head) {
    return !head->call->inputs->groups && head->view.queries <= head->size->C;
}

static int is_finite(const float *x, int64_t count) {
    int finite = 1;
    for (int64_t i = 0; i < count; i++)
        finite &= isfinite(x[i]) != 0;
    return finite;
}

/* P, Z and the keys' centre. Where inputs are too large for them, or not numbers, all are
   0: nothing is tilted. */
static void find_metric(tilted_head *head) {
    const row_view q = head->view.q, k = head->view.k;
    const int64_t size = (int64_t)head->size->rank * head->size->dim;
    const int64_t whole = size + head->size->dim;
    metric_work *metric = &head->slot->metric;
    memset(head->state.projection, 0, sizeof(float) * (size_t)whole);
    memset(head->state.dual, 0, sizeof(float) * (size_t)size);
    if (is_trivial(head))
        return;
    sh_metric_find(metric, head->run, k.data, k.stride, head->view.keys, q.data, q.stride,
                   head->view.queries);
    sh_metric_dual(metric, head->run, head->state.dual);
    memcpy(head->state.projection, metric->projection, sizeof(float) * (size_t)size);
    memcpy(head->state.projection + size, metric->centre,
           sizeof(float) * (size_t)head->size->dim);
    if (is_finite(head->state.projection, whole) && is_finite(head->state.dual, size))
        return;
    memset(head->state.projection, 0, sizeof(float) * (size_t)whole);
    memset(head->state.dual, 0, sizeof(float) * (size_t)size);
}

static void find_groups(tilted_head *head, team workers) {
    const shoal_attention *attention = &head->call->plan->attention;
    const int64_t n = head->view.queries, N = head->size->N;
    const int32_t *brought = head->call->inputs->groups;
    int32_t *groups = head->state.groups;
    if (brought) {
        memmove(groups, brought + head->view.head * N, (size_t)n * sizeof *groups);
        project(head, workers,
                &(projection){.x = head->view.q,
                              .n = n,
                              .matrix = head->state.projection});
    } else if (n <= head->size->C) {
        for (int64_t i = 0; i < n; i++)
            groups[i] = (int32_t)i;
    } else {
        sh_lloyd_run(&head->slot->query_means, head->run, workers, head->view.q.data,
                     head->view.q.stride, n, head->state.projection,
                     attention->iterations, attention->seed, groups,
                     head->slot->coordinates);
    }
    for (int64_t i = n; i < N; i++)
        groups[i] = -1;
    sh_group_sort(&head->slot->sorted, groups, n);
}

/* Members first .. last - 1 of the order, all of group j: their d, and they are put in
   order. Adds to the squares of d. */
static void order_members(const tilted_head *head, int64_t first, int64_t last,
                          float *restrict squares, tilted_thread *own) {
    const int rank = head->size->rank;
    int32_t *order = head->state.order + first;
    float *restrict rows = own->ordered_rows;
    for (int64_t i = 0; i < last - first; i++)
        for (int d = 0; d < rank; d++) {
            const float x = head->scale *
                                head->slot->coordinates[(int64_t)order[i] * rank + d] -
                            own->group_shift[d];
            rows[i * rank + d] = x;
            squares[d] += x * x;
        }
    sh_halve(&own->halving, rows, order, last - first, head->size->leaf);
}

/* Very large groups are put in order in parts. */
static void find_members(const tilted_head *head, int64_t j, tilted_thread *own) {
    const grouping *sorted = &head->slot->sorted;
    const int64_t first = sorted->offsets[j], last = sorted->offsets[j + 1];
    float *variances = head->slot->variances + j * head->size->rank;
    sh_tilted_load_group(head, j, own);
    for (int64_t at = first; at < last; at += HALVING_MOST)
        order_members(head, at, min(at + HALVING_MOST, last), variances, own);
    for (int d = 0; d < head->size->rank; d++)
        variances[d] /= (float)(last - first);
}

static void group_task(void *shared, int64_t j, int thread) {
    const tilted_head *head = shared;
    const grouping *sorted = &head->slot->sorted;
    const int dim = head->size->dim;
    const int64_t size = sorted->offsets[j + 1] - sorted->offsets[j];
    float *centroid = head->state.centroids + j * dim;
    head->run->sum_rows(head->view.q.data, head->view.q.stride,
                        sorted->order + sorted->offsets[j], NULL, size, dim, centroid);
    for (int d = 0; d < dim && size > 1; d++)
        centroid[d] /= (float)size;
    memset(head->slot->variances + j * head->size->rank, 0,
           sizeof(float) * (size_t)head->size->rank);
    if (size > 1)
        find_members(head, j, &head->work->threads[thread]);
}

/* ---- Key clusters ----------------------------------------------------------------- */

void sh_tilted_find_coordinates(tilted_head *head, team workers) {
    const int rank = head->size->rank, dim = head->size->dim;
    const float *centre = head->state.projection + (int64_t)rank * dim;
    for (int d = 0; d < rank; d++)
        head->slot->shift[d] =
            -ordered_dot(head->state.dual + (int64_t)d * dim, centre, dim);
    project(head, workers,
            &(projection){.x = head->view.k,
                          .n = head->view.keys,
                          .matrix = head->state.dual,
                          .shift = head->slot->shift});
}

/* What one unit of each coordinate of z changes, over all queries. */
static void find_stretch(const tilted_head *head) {
    const int rank = head->size->rank;
    const grouping *sorted = &head->slot->sorted;
    memset(head->slot->stretch, 0, sizeof(float) * (size_t)rank * (size_t)rank);
    for (int d = 0; d < rank; d++) {
        double sum = 0;
        for (int64_t j = 0; j < sorted->used; j++)
            sum += (double)(sorted->offsets[j + 1] - sorted->offsets[j]) *
                   (double)head->slot->variances[j * rank + d];
        head->slot->stretch[d * rank + d] = (float)sqrt(sum / (double)head->view.queries);
    }
}

void sh_tilted_find_plain(tilted_head *head) {
    const int rank = head->size->rank;
    const grouping *keys = &head->slot->keys;
    for (int64_t m = 0; m < head->size->M; m++) {
        const int64_t first = keys->offsets[m], size = keys->offsets[m + 1] - first;
        float *mean = head->slot->plain + m * rank;
        head->run->sum_rows(head->slot->coordinates, rank, keys->order + first, NULL,
                            size, rank, mean);
        for (int d = 0; d < rank && size > 0; d++)
            mean[d] /= (float)size;
    }
}

/* Chunks of whole clusters, each of at least an eighth of the keys. */
void sh_tilted_cut_keys(tilted_head *head) {
    tilted_slot *slot = head->slot;
    const int32_t *offsets = slot->keys.offsets;
    const int64_t least = max(1024, ceil_divide(head->view.keys, TILTED_CHUNKS));
    int32_t first = 0;
    slot->chunks = 0;
    slot->chunk_clusters[0] = 0;
    for (int32_t m = 0; m < slot->keys.used; m++)
        if (offsets[m + 1] - offsets[first] >= least || m == slot->keys.used - 1) {
            first = m + 1;
            slot->chunk_clusters[++slot->chunks] = first;
        }
}

static void find_key_clusters(tilted_head *head, team workers) {
    const shoal_attention *attention = &head->call->plan->attention;
    const int64_t S = head->view.keys;
    int32_t *clusters = head->state.key_clusters;
    sh_tilted_find_coordinates(head, workers);
    if (is_trivial(head)) {
        memset(clusters, 0, sizeof *clusters * (size_t)S);
    } else if (S <= head->size->M) {
        for (int64_t l = 0; l < S; l++)
            clusters[l] = (int32_t)l;
    } else {
        find_stretch(head);
        sh_lloyd_run(&head->slot->key_means, head->run, workers, head->slot->coordinates,
                     head->size->rank, S, head->slot->stretch, attention->iterations,
                     attention->seed + 1000, clusters, NULL);
    }
    sh_group_sort(&head->slot->keys, clusters, S);
    sh_tilted_cut_keys(head);
    sh_tilted_find_plain(head);
}

/* ---- The centroids' pass over the keys -------------------------------------------- */

void sh_tilted_gather_keys(const tilted_head *head, int64_t first, int count,
                           tilted_thread *own) {
    const row_view k = head->view.k, v = head->view.v;
    const int rank = head->size->rank, dim = head->size->dim;
    const int Dv = head->size->value_dim, wide = head->size->wide;
    const int32_t *order = head->slot->keys.order + first;
    for (int i = 0; i < count; i++) {
        memcpy(own->key_rows + (int64_t)i * dim, k.data + order[i] * k.stride,
               sizeof(float) * (size_t)dim);
        memcpy(own->wide_rows + (int64_t)i * wide, v.data + order[i] * v.stride,
               sizeof(float) * (size_t)Dv);
        memcpy(own->wide_rows + (int64_t)i * wide + Dv,
               head->slot->coordinates + (int64_t)order[i] * rank,
               sizeof(float) * (size_t)rank);
    }
}

static void square_coordinates(const tilted_head *head, int count, tilted_thread *own) {
    const int rank = head->size->rank, wide = head->size->wide;
    for (int i = 0; i < count; i++)
        for (int d = 0; d < rank; d++) {
            const float z = own->wide_rows[(int64_t)i * wide + head->size->value_dim + d];
            own->half_squares[i * rank + d] = z * z / 2;
        }
}

static topk_lists lists_of(const tilted_head *head, const tilted_thread *own, int p) {
    const int64_t lane = (int64_t)p * head->run->panel;
    const int32_t k = (int32_t)head->size->p;
    return (topk_lists){head->run, k, own->candidates + lane * topk_capacity(k),
                        own->counts + lane, own->floor + lane};
}

static void start_panel(const tilted_head *head, query_panel *panel, int p,
                        tilted_thread *own) {
    const topk_lists lists = lists_of(head, own, p);
    const int32_t *offsets = head->slot->sorted.offsets + panel->first;
    const int64_t rank = head->size->rank;
    head->run->pack(head->state.centroids + panel->first * head->size->dim,
                    head->size->dim, NULL, panel->count, panel->width, head->size->dim,
                    head->scale, panel->queries);
    head->run->pack(head->slot->variances + panel->first * rank, rank, NULL, panel->count,
                    panel->width, (int)rank, 1,
                    own->variances + p * rank * head->run->panel);
    sh_topk_start(&lists, panel->count, panel->width);
    for (int i = 0; i < panel->count; i++)
        if (offsets[i + 1] - offsets[i] <= 1)
            lists.floor[i] = INFINITY;
}

/* One block of keys, gathered, of one cluster: its part of the sums, and candidates for
   the pool. */
static void attend_block(const tilted_head *head, query_panel *panel, int p,
                         int64_t first, int count, tilted_thread *own) {
    const kernel_table *run = head->run;
    const int width = panel->width, rank = head->size->rank, wide = head->size->wide;
    const topk_lists lists = lists_of(head, own, p);
    float *scores = own->dense->scores, *expected = own->expected;
    run->score(panel->queries, width, head->size->dim, own->key_rows, head->size->dim,
               count, scores);
    run->score(own->variances + (int64_t)p * rank * run->panel, width, rank,
               own->half_squares, rank, count, expected);
    for (int i = 0; i < count * width; i++)
        expected[i] += scores[i];
    sh_topk_collect(&lists, expected, panel->count, width, count, first);
    run->softmax_step(scores, width, count, panel->largest, panel->sum, panel->keep);
    run->mix(scores, width, own->wide_rows, wide, count, wide, panel->keep,
             panel->outputs);
}

static void start_cluster(const tilted_head *head, query_panel *panel) {
    memset(panel->outputs, 0, sizeof(float) * (size_t)(head->size->wide * panel->width));
    for (int i = 0; i < panel->width; i++) {
        panel->largest[i] = LOWEST_SCORE;
        panel->sum[i] = 0;
    }
}

static void keep_cluster(const tilted_head *head, const query_panel *panel, int64_t m) {
    const int64_t M = head->size->M, wide = head->size->wide;
    const int64_t at = panel->first * M + m;
    head->run->unpack(panel->outputs, panel->count, panel->width, (int)wide, NULL, NULL,
                      0, head->state.sums + at * wide, M * wide, NULL);
    for (int i = 0; i < panel->count; i++) {
        head->state.top[at + i * M] = panel->largest[i];
        head->state.mass[at + i * M] = panel->sum[i];
    }
}

static void keep_candidates(const tilted_head *head, int64_t chunk,
                            const query_panel *panel, int p, tilted_thread *own) {
    const topk_lists lists = lists_of(head, own, p);
    const int64_t at = chunk * head->size->C + panel->first;
    for (int i = 0; i < panel->count; i++) {
        uint64_t *list = topk_list(&lists, i);
        const int32_t count = sh_topk_cut(list, lists.counts[i], lists.k);
        head->slot->part_counts[at + i] = count;
        memcpy(head->slot->part_keys + (at + i) * head->size->p, list,
               (size_t)count * sizeof *list);
    }
}

/* One chunk of key clusters over some panels of centroids, which take turns on every
   block of keys. task = chunk * runs of panels + run. */
static void attend_task(void *shared, int64_t task, int thread) {
    const tilted_head *head = shared;
    tilted_thread *own = &head->work->threads[thread];
    const tilted_slot *slot = head->slot;
    const int64_t used = slot->sorted.used, run = sh_dense_block(head->run);
    const int64_t runs = ceil_divide(used, run), chunk = task / runs;
    const int64_t begin = task % runs * run;
    query_panel *panels = own->dense->panels;
    const int count = sh_dense_cut(own->dense, head->run, begin, min(begin + run, used));
    for (int p = 0; p < count; p++)
        start_panel(head, &panels[p], p, own);
    for (int32_t m = slot->chunk_clusters[chunk]; m < slot->chunk_clusters[chunk + 1];
         m++) {
        const int64_t last = slot->keys.offsets[m + 1];
        for (int p = 0; p < count; p++)
            start_cluster(head, &panels[p]);
        for (int64_t key = slot->keys.offsets[m]; key < last; key += KEY_BLOCK) {
            const int some = (int)min(KEY_BLOCK, last - key);
            sh_tilted_gather_keys(head, key, some, own);
            square_coordinates(head, some, own);
            for (int p = 0; p < count; p++)
                attend_block(head, &panels[p], p, key, some, own);
        }
        for (int p = 0; p < count; p++)
            keep_cluster(head, &panels[p], m);
    }
    for (int p = 0; p < count; p++)
        keep_candidates(head, chunk, &panels[p], p, own);
}

/* ---- The road --------------------------------------------------------------------- */

static void members_task(void *shared, int64_t j, int thread) {
    const tilted_head *head = shared;
    sh_tilted_attend_group(head, j, &head->work->threads[thread]);
}

void sh_tilted_count_blocks(tilted_head *head) {
    const grouping *sorted = &head->slot->sorted;
    int32_t *offsets = head->slot->block_offsets;
    offsets[0] = 0;
    for (int64_t j = 0; j < sorted->used; j++)
        offsets[j + 1] = offsets[j] +
                         (int32_t)ceil_divide(sorted->offsets[j + 1] - sorted->offsets[j],
                                              head->size->block);
}

static void forward_head(void *shared, int64_t unit, int slot, team workers) {
    const attention_call *call = shared;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    tilted_head head = sh_tilted_head_of(call, b, h, slot);
    const int64_t n = head.view.queries, S = head.view.keys;
    head.out = sh_query_rows(call, call->out, &problem->out, b, h);
    sh_clear_rows(head.out, S > 0 ? n : 0, head.view.query_rows, problem->value_dim);
    memset(head.state.pool_counts, 0, sizeof(int32_t) * (size_t)head.size->C);
    if (call->plan->with_backward) {
        head.state.live[0] = (int32_t)n;
        head.state.live[1] = (int32_t)S;
    }
    find_metric(&head);
    find_groups(&head, workers);
    if (n == 0 || S == 0)
        return;
    const int64_t used = head.slot->sorted.used;
    sh_tilted_count_blocks(&head);
    sh_team_run(workers, used, group_task, &head);
    find_key_clusters(&head, workers);
    sh_team_run(workers, head.slot->chunks * ceil_divide(used, sh_dense_block(head.run)),
                attend_task, &head);
    sh_team_run(workers, used, members_task, &head);
}

static void forward(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    if (!is_tilted(call->plan)) {
        sh_clustered_forward(call);
        return;
    }
    sh_run_heads(call, problem->batch * problem->heads, forward_head);
}

/* ---- The kind ---------------------------------------------------------------------- */

static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    if (is_tilted(plan))
        place_tilted(plan, work, state);
    else
        sh_clustered_place(plan, work, state);
}

static void backward(const attention_call *call) {
    if (is_tilted(call->plan))
        sh_tilted_backward(call);
    else
        sh_clustered_backward(call);
}

static const int32_t *groups(const shoal_plan *plan, const void *state) {
    return is_tilted(plan) ? state_at(plan, &(block_layout){.base = (char *)state}).groups
                           : sh_clustered_groups(plan, state);
}

/* Blocks have exact keys of their own; a group has none. */
static const int32_t *top_keys(const shoal_plan *plan, const void *state) {
    return is_tilted(plan) ? NULL : sh_clustered_top_keys(plan, state);
}

static int keeps_choices(const shoal_plan *plan, int64_t head) {
    return plan && plan->kind == &sh_shoal_kind && is_tilted(plan) &&
           plan->with_backward && head >= 0 &&
           head < plan->problem.batch * plan->problem.heads;
}

static tilted_state choices_of(const shoal_plan *plan, const void *state, int64_t head) {
    const tilted_sizes size = sizes_of(plan);
    const tilted_state all =
        state_at(plan,
                 &(block_layout){.base = (char *)(state ? (void *)state : plan->state)});
    tilted_state own = state_of(&all, &size, head);
    own.groups = all.groups + head * size.N;
    return own;
}

shoal_status shoal_plan_tilt(const shoal_plan *plan, const void *state, int64_t head,
                             shoal_tilt *tilt) {
    if (!keeps_choices(plan, head) || !tilt)
        return sh_fail(plan ? plan->context : NULL, SHOAL_INVALID,
                       "shoal_plan_tilt: not a plan of shoal-C with key clusters and "
                       "SHOAL_WITH_BACKWARD, or no such head");
    const tilted_state own = choices_of(plan, state, head);
    const tilted_sizes size = numbers_of(plan, own.live[0], own.live[1]);
    *tilt = (shoal_tilt){.rank = size.rank,
                         .near = size.near,
                         .key_clusters = own.key_clusters,
                         .projection = own.projection,
                         .dual = own.dual};
    return SHOAL_OK;
}

/* The block that a query lies in: queries are in order, block after block. */
static int64_t block_of(const tilted_sizes *size, const tilted_state *own,
                        int64_t query) {
    int64_t block = -1, place = 0;
    for (int64_t at = 0;; at++, place++) {
        const int64_t i = own->order[at];
        if (at == 0 || own->groups[i] != own->groups[own->order[at - 1]])
            place = 0;
        block += place % size->block == 0;
        if (i == query)
            return block;
    }
}

int64_t shoal_plan_exact_keys(const shoal_plan *plan, const void *state, int64_t head,
                              int64_t query, int32_t *keys) {
    if (!keeps_choices(plan, head) || !keys || query < 0 ||
        query >= plan->problem.queries)
        return 0;
    const tilted_state own = choices_of(plan, state, head);
    const tilted_sizes size = numbers_of(plan, own.live[0], own.live[1]);
    const int32_t j = own.groups[query];
    for (int64_t x = 0; x < plan->attention.topk; x++)
        keys[x] = -1;
    if (j < 0 || own.live[1] == 0)
        return 0;
    const uint16_t *places = own.exact + block_of(&size, &own, query) * size.k;
    const int64_t count = min(size.k, own.pool_counts[j]);
    for (int64_t x = 0; x < count; x++)
        keys[x] = own.pools[j * size.p + places[x]];
    return count;
}

/* What a field is when the spelling leaves it to the sizes: docs/notebook/shoal2.md has
   the measurements. */
static void resolve_second(const shoal_problem *problem, shoal_attention *a) {
    const int64_t N = problem->queries, S = problem->keys;
    const int32_t advised = N < 1024 ? 8 : N < 8192 ? 16 : N < 16384 ? 24 : 32;
    if (a->clusters == SHOAL_BY_SIZE)
        a->clusters = advised;
    /* In smaller groups blocks are more alike. */
    const double smaller = fmin(1, (double)advised / a->clusters);
    if (a->keyclusters == SHOAL_BY_SIZE)
        a->keyclusters = (int32_t)min(24, max(8, S / 480 * 8));
    if (a->topk == SHOAL_BY_SIZE) /* a shorter sequence's are never more */
        a->topk = 8 * (int32_t)round((N < 1024 ? 12 : 14) * sqrt(sqrt(smaller)));
    if (a->rank == SHOAL_BY_SIZE)
        a->rank = (int32_t)max(1, min(16, problem->dim / 4));
    if (a->block == SHOAL_BY_SIZE)
        a->block = N < 8192 ? 24 : 48;
    if (a->pool == SHOAL_BY_SIZE) {
        a->pool = (int32_t)((S < 1024 ? 160 : S < 8192 ? 384 : 768) * smaller);
        a->pool = (int32_t)min(65535, max(a->pool, 2 * (int64_t)a->topk));
    }
    if (a->near == SHOAL_BY_SIZE || N != S)
        a->near = N != S ? 0 : N < 8192 ? (int32_t)min(8, N / 180) : 4;
}

static void resolve(const shoal_problem *problem, shoal_attention *a) {
    if (a->keyclusters != 0) {
        resolve_second(problem, a);
        return;
    }
    a->clusters = a->clusters == SHOAL_BY_SIZE ? sh_first_shoal.clusters : a->clusters;
    a->topk = a->topk == SHOAL_BY_SIZE ? sh_first_shoal.topk : a->topk;
    a->rank = a->rank == SHOAL_BY_SIZE ? sh_first_shoal.rank : a->rank;
}

static operation_count operations(const shoal_attention *a,
                                  const shoal_problem *problem) {
    if (a->keyclusters == 0)
        return sh_clustered_operations(a, problem);
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double D = (double)problem->dim, both = D + (double)problem->value_dim;
    const double C = fmin(N, a->clusters), M = fmin(S, a->keyclusters);
    const double r = fmin(D, a->rank), block = a->block;
    const double points = points_of(problem->queries, a->block);
    const double near = N == S && a->near > 0 ? 2 * a->near + 1 : 0;
    return (operation_count){.once = 2 * (2 * N + S) * D * r + 2 * C * S * r +
                                     2 * N / block * points * fmin(S, a->pool) * r,
                             .dense = 2 *
                                      (C * S * (both + r) + N * fmin(S, a->topk) * both +
                                       N * M * (r + (double)problem->value_dim) +
                                       N * near * (both + D))};
}

const shoal_attention sh_first_shoal = {.kind = SHOAL_SHOAL,
                                        .clusters = 100,
                                        .topk = 64,
                                        .groups = SHOAL_GROUPS_KEYS,
                                        .normaliser = SHOAL_NORMALISER_QUERY,
                                        .rank = 16,
                                        .iterations = 6,
                                        .seed = 1};

const attention_kind sh_shoal_kind = {
    .info = {.name = "shoal-C",
             .number = "clusters",
             .cost = "N r (D + C) + C S (D + Dv + r) + N (k + 2 w + 1 + M) (D + Dv)",
             .summary = "groups in the keys' metric; blocks of alike queries have exact "
                        "keys, the rest follows each query",
             .defaults = {.kind = SHOAL_SHOAL,
                          .clusters = SHOAL_BY_SIZE,
                          .topk = SHOAL_BY_SIZE,
                          .groups = SHOAL_GROUPS_KEYS,
                          .normaliser = SHOAL_NORMALISER_QUERY,
                          .rank = SHOAL_BY_SIZE,
                          .keyclusters = SHOAL_BY_SIZE,
                          .block = SHOAL_BY_SIZE,
                          .pool = SHOAL_BY_SIZE,
                          .near = SHOAL_BY_SIZE,
                          .iterations = 6,
                          .seed = 1},
             .has_groups = 1,
             .has_top_keys = 1,
             .has_seed = 1},
    .options = OPTION_TOPK | OPTION_RANK | OPTION_ITERATIONS | OPTION_KEYCLUSTERS |
               OPTION_BLOCK | OPTION_POOL | OPTION_NEAR,
    .resolve = resolve,
    .operations = operations,
    .place = place,
    .forward = forward,
    .backward = backward,
    .groups = groups,
    .top_keys = top_keys,
};
