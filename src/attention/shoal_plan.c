/* The kind shoal-C: its numbers and its memory, and what a plan tells. */
#include "attention/shoal_kind.h"

#include <math.h>
#include <string.h>

/* ---- Sizes ------------------------------------------------------------------------ */

/* Means of neighbouring members that speak for a block when its keys are chosen: with
   many queries the members of a block are so alike that fewer will do. */
static int points_of(int64_t N, int64_t block) {
    const int64_t most = N < 4096 ? TILTED_POINTS : N < 8192 ? 4 : N < 16384 ? 2 : 1;
    return (int)max(1, min(most, block / 2));
}

static shoal_attention resolved(const shoal_plan *plan, int64_t n, int64_t S) {
    shoal_problem problem = plan->problem;
    problem.queries = n;
    problem.keys = S;
    return sh_attention_resolve(&plan->asked, &problem);
}

/* Of a sequence of n queries and S keys, some of them perhaps hidden: its numbers are
   what they would be alone, and without those. Near are positions, hidden or not. */
static tilted_sizes numbers_of(const shoal_plan *plan, int64_t n, int64_t S,
                               int64_t seen) {
    const shoal_attention a = resolved(plan, n, seen);
    tilted_sizes size = {.C = a.clusters,
                         .N = plan->problem.queries,
                         .S = plan->problem.keys,
                         .dim = (int)plan->problem.dim,
                         .value_dim = (int)plan->problem.value_dim,
                         .rank = (int)min(a.rank, plan->problem.dim)};
    size.M = max(1, min(a.keyclusters, seen));
    size.k = min(a.topk, seen);
    size.p = min(max(a.pool, size.k), seen);
    size.block = (int)min(a.block, max(1, n));
    size.points = points_of(n, size.block);
    size.each = (int)ceil_divide(size.block, size.points);
    size.leaf = (int)max(size.each, min(8, size.block / 2));
    size.near = (int)(n == S ? min(resolved(plan, n, S).near, S) : 0);
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
    tilted_sizes most = numbers_of(plan, N, S, S);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int64_t n = min(N, ends[i]);
        const tilted_sizes any = numbers_of(plan, n, S, S);
        const tilted_sizes aligned = numbers_of(plan, min(n, S), min(n, S), min(n, S));
        widen(&most, &any);
        widen(&most, &aligned);
    }
    return most;
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
    state->live = sh_reserve(place, sh_mul_checked(heads, 3), sizeof(int32_t));
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
    own->grad_exact_bias = floats(work, size->k, 1);
    own->grad_scores = floats(work, size->k, r + 1);
    own->grad_rows = floats(work, r + 1, size->dim);
    own->grad_shift = floats(work, r + 1, width);
    own->block_mass = floats(work, size->M, 1);
    own->grad_centroid = floats(work, size->dim, 1);
    own->key_grads = floats(work, KEY_BLOCK, size->dim);
    own->bias_grads = floats(work, KEY_BLOCK, 1);
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
    own->key_bias = floats(work, KEY_BLOCK, 1);
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
    own->exact_bias = floats(work, size->k, 1);
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
                          .live = all->live + 3 * at};
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
    head.seen = head.view.keys;
    if (sh_masks_exist(call)) {
        head.masks = sh_masks_of(call, &head.view);
        head.seen = sh_masks_seen(&head.masks, head.view.keys);
    }
    head.slot->size = numbers_of(plan, head.view.queries, head.view.keys, head.seen);
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

/* ---- The kind ---------------------------------------------------------------------- */

static const int32_t *groups(const shoal_plan *plan, const void *state) {
    return state_at(plan, &(block_layout){.base = (char *)state}).groups;
}

static int keeps_choices(const shoal_plan *plan, int64_t head) {
    return plan && plan->kind == &sh_shoal_kind && plan->with_backward && head >= 0 &&
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

static tilted_sizes live_numbers(const shoal_plan *plan, const tilted_state *own) {
    return numbers_of(plan, own->live[0], own->live[1], own->live[2]);
}

shoal_status shoal_plan_tilt(const shoal_plan *plan, const void *state, int64_t head,
                             shoal_tilt *tilt) {
    if (!keeps_choices(plan, head) || !tilt)
        return sh_fail(plan ? plan->context : NULL, SHOAL_INVALID,
                       "shoal_plan_tilt: not a plan of shoal-C with "
                       "SHOAL_WITH_BACKWARD, or no such head");
    const tilted_state own = choices_of(plan, state, head);
    const tilted_sizes size = live_numbers(plan, &own);
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
    const tilted_sizes size = live_numbers(plan, &own);
    const int32_t j = own.groups[query];
    for (int64_t x = 0; x < plan->attention.topk; x++)
        keys[x] = -1;
    if (j < 0 || own.live[2] == 0)
        return 0;
    const uint16_t *places = own.exact + block_of(&size, &own, query) * size.k;
    const int64_t count = min(size.k, own.pool_counts[j]);
    for (int64_t x = 0; x < count; x++)
        keys[x] = own.pools[j * size.p + places[x]];
    return count;
}

/* What a field is when the spelling leaves it to the sizes: docs/notebook/shoal2.md has
   the measurements. */
static void resolve(const shoal_problem *problem, shoal_attention *a) {
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

static operation_count operations(const shoal_attention *a,
                                  const shoal_problem *problem) {
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
             .has_seed = 1},
    .options = OPTION_TOPK | OPTION_RANK | OPTION_ITERATIONS | OPTION_KEYCLUSTERS |
               OPTION_BLOCK | OPTION_POOL | OPTION_NEAR,
    .resolve = resolve,
    .operations = operations,
    .place = place_tilted,
    .forward_head = sh_tilted_forward,
    .backward_head = sh_tilted_backward,
    .groups = groups,
};
