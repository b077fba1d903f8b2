/* The kind shoal-C: its numbers and its memory, one head's way through the stages, and
   what a plan tells. */
#include <math.h>
#include <string.h>

#include "attention/shoal_kind.h"

/* ---- Sizes ------------------------------------------------------------------------ */

/* Means of neighbouring members that speak for a block when its keys are chosen: with
   many queries the members of a block are so alike that fewer will do. */
static int points_of(int64_t N, int64_t block) {
    const int64_t most = N < 4096 ? SHOAL_POINTS : N < 8192 ? 4 : N < 16384 ? 2 : 1;
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
static shoal_sizes numbers_of(const shoal_plan *plan, int64_t n, int64_t S,
                              int64_t seen) {
    const shoal_attention a = resolved(plan, n, seen);
    shoal_sizes size = {.C = a.clusters,
                        .N = plan->problem.queries,
                        .S = plan->problem.keys,
                        .dim = (int)plan->problem.dim,
                        .value_dim = (int)plan->problem.value_dim,
                        .dims = (int)min(a.rank, plan->problem.dim)};
    size.M = max(1, min(a.keyclusters, seen));
    size.k = min(a.topk, seen);
    size.p = min(max(a.pool, size.k), seen);
    size.block = (int)min(a.block, max(1, n));
    size.points = points_of(n, size.block);
    size.each = (int)ceil_divide(size.block, size.points);
    size.leaf = (int)max(size.each, min(8, size.block / 2));
    size.near = (int)(n == S ? min(resolved(plan, n, S).near, S) : 0);
    size.wide = size.value_dim + size.dims;
    size.blocks = ceil_divide(n, size.block) + min(size.C, n);
    return size;
}

static void widen(shoal_sizes *most, const shoal_sizes *size) {
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
static shoal_sizes sizes_of(const shoal_plan *plan) {
    static const int64_t ends[] = {1023, 4095, 8191, 16383, INT64_MAX};
    const int64_t N = plan->problem.queries, S = plan->problem.keys;
    shoal_sizes most = numbers_of(plan, N, S, S);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int64_t n = min(N, ends[i]);
        const shoal_sizes any = numbers_of(plan, n, S, S);
        const shoal_sizes aligned = numbers_of(plan, min(n, S), min(n, S), min(n, S));
        widen(&most, &any);
        widen(&most, &aligned);
    }
    return most;
}

/* ---- Memory ----------------------------------------------------------------------- */

/* What the stages keep of a head, beside the queries' clusters. */
static void keep_stages(shoal_slot *slot, const shoal_sizes *size,
                        const shoal_keep *keep) {
    sh_shoal_keep_clusters(&slot->clusters, size, keep);
    sh_shoal_keep_sums(&slot->sums, size, keep);
    sh_shoal_keep_choices(&slot->choices, size, keep);
}

/* Binds the slot to what the state has of head `at`. */
static void bind_state(const shoal_plan *plan, const shoal_sizes *size,
                       block_layout *state, int64_t at, shoal_slot *slot) {
    const shoal_keep keep = {state, plan->problem.batch * plan->problem.heads, at,
                             plan->with_backward};
    slot->clusters.of_queries = keep_part(&keep, size->N, sizeof(int32_t));
    if (plan->with_backward)
        keep_stages(slot, size, &keep);
}

static void place_shoal(shoal_plan *plan, block_layout *work, block_layout *state) {
    const shoal_problem *problem = &plan->problem;
    const int slots = sh_unit_slots(plan->threads, problem->batch * problem->heads);
    shoal_work measured, *own = sh_reserve(work, 1, sizeof *own);
    shoal_slot scratch;
    shoal_plan widened = *plan;
    plan->work = own;
    own = own ? own : &measured;
    *own = (shoal_work){.size = sizes_of(plan)};
    const shoal_sizes *size = &own->size;
    widened.problem.value_dim = size->wide;
    own->dense = sh_reserve(work, plan->threads, sizeof *own->dense);
    own->lloyd = sh_reserve(work, plan->threads, sizeof *own->lloyd);
    for (int t = 0; t < plan->threads; t++) {
        sh_dense_place(own->dense ? &own->dense[t] : &(dense_scratch){0}, &widened, work);
        sh_lloyd_place_thread(own->lloyd ? &own->lloyd[t] : &(lloyd_thread){0},
                              plan->kernels, size->dim, size->dims, work);
    }
    sh_shoal_place_cluster_threads(own, plan, work);
    sh_shoal_place_block_threads(own, plan, work);
    if (plan->with_backward)
        sh_shoal_place_backward_threads(own, plan, work);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int s = 0; s < slots; s++) {
        shoal_slot *slot = own->slots ? &own->slots[s] : &scratch;
        *slot = (shoal_slot){0};
        sh_shoal_place_clusters(&slot->clusters, plan, own, work);
        sh_shoal_place_sums(&slot->sums, size, work);
        if (plan->with_backward)
            sh_shoal_place_gradients(&slot->gradients, plan, size, work);
        else
            keep_stages(slot, size, &(shoal_keep){work, 1, 0, 0});
    }
    bind_state(plan, size, state, 0, &(shoal_slot){0});
}

/* ---- One head ---------------------------------------------------------------------- */

shoal_head sh_shoal_head_of(const attention_call *call, int64_t b, int64_t h,
                            shoal_slot *slot) {
    const shoal_plan *plan = call->plan;
    shoal_head head = {.call = call,
                       .work = plan->work,
                       .kernels = plan->kernels,
                       .scale = plan->problem.scale,
                       .view = sh_view_of(call, b, h)};
    head.seen = head.view.keys;
    if (sh_masks_exist(call)) {
        head.masks = sh_masks_of(call, &head.view);
        head.seen = sh_masks_seen(&head.masks, head.view.keys);
    }
    head.size = numbers_of(plan, head.view.queries, head.view.keys, head.seen);
    if (call->inputs->groups)
        head.size.C = head.work->size.C;
    bind_state(plan, &head.work->size, &(block_layout){.base = call->state},
               head.view.head, slot);
    return head;
}

static void forward_head(const attention_call *call, int64_t unit, int s, team workers) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    shoal_slot *slot = &((shoal_work *)call->plan->work)->slots[s];
    const shoal_head head = sh_shoal_head_of(call, b, h, slot);
    const row_view out = sh_query_rows(call, call->out, &problem->out, b, h);
    const int is_empty = head.view.queries == 0 || head.seen == 0;
    sh_clear_rows(out, is_empty ? 0 : head.view.queries, head.view.query_rows,
                  problem->value_dim);
    memset(slot->choices.pool_counts, 0, sizeof(int32_t) * (size_t)head.size.C);
    sh_shoal_find_clusters(&head, &slot->clusters, workers);
    if (is_empty)
        return;
    sh_shoal_find_sums(&head, &slot->clusters, &slot->sums, workers);
    sh_shoal_attend_blocks(&head, &slot->clusters, &slot->sums, &slot->choices, out,
                           workers);
}

/* ---- The kind ---------------------------------------------------------------------- */

/* They come first in the state. */
static const int32_t *groups(const shoal_plan *plan, const void *state) {
    (void)plan;
    return state;
}

/* What a state (NULL: the plan's own) keeps of a head, and the numbers of its sequence;
   returns whether the plan keeps anything of such a head. */
static int read_state(const shoal_plan *plan, const void *state, int64_t head,
                      shoal_slot *kept, shoal_sizes *size) {
    if (!plan || plan->kind != &sh_shoal_kind || !plan->with_backward || head < 0 ||
        head >= plan->problem.batch * plan->problem.heads)
        return 0;
    block_layout layout = {.base = state ? (char *)state : plan->state};
    bind_state(plan, &((shoal_work *)plan->work)->size, &layout, head, kept);
    const int32_t *live = kept->clusters.live;
    *size = numbers_of(plan, live[0], live[1], live[2]);
    return 1;
}

shoal_status shoal_plan_tilt(const shoal_plan *plan, const void *state, int64_t head,
                             shoal_tilt *tilt) {
    shoal_slot kept;
    shoal_sizes size;
    if (!tilt || !read_state(plan, state, head, &kept, &size))
        return REFUSE(plan ? plan->context : NULL,
                      "shoal_plan_tilt: not a plan of shoal-C with "
                      "SHOAL_WITH_BACKWARD, or no such head");
    *tilt = (shoal_tilt){.rank = size.dims,
                         .near = size.near,
                         .key_clusters = kept.clusters.of_keys,
                         .projection = kept.clusters.projection,
                         .dual = kept.clusters.dual};
    return SHOAL_OK;
}

int64_t shoal_plan_exact_keys(const shoal_plan *plan, const void *state, int64_t head,
                              int64_t query, int32_t *keys) {
    shoal_slot kept;
    shoal_sizes size;
    if (!keys || !read_state(plan, state, head, &kept, &size) || query < 0 ||
        query >= plan->problem.queries)
        return 0;
    const int32_t *of = kept.clusters.of_queries, *order = kept.clusters.queries.order;
    const int32_t j = of[query];
    for (int64_t x = 0; x < plan->attention.topk; x++)
        keys[x] = -1;
    if (j < 0 || kept.clusters.live[2] == 0)
        return 0;
    /* The query's block: queries are in order, block after block. */
    int64_t block = 0, place = 0;
    for (int64_t at = 0; order[at] != query; at++) {
        place = of[order[at]] == of[order[at + 1]] ? place + 1 : 0;
        block += place % size.block == 0;
    }
    const uint16_t *places = kept.choices.exact + block * size.k;
    const int64_t count = min(size.k, kept.choices.pool_counts[j]);
    for (int64_t x = 0; x < count; x++)
        keys[x] = kept.choices.pools[j * size.p + places[x]];
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
             .summary = "queries clustered in the keys' metric; exact keys per block of "
                        "similar queries, corrected weights for the others",
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
    .place = place_shoal,
    .forward_head = forward_head,
    .backward_head = sh_shoal_backward,
    .groups = groups,
};
