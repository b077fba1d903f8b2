#include "attention/distributed.h"

#include <string.h>

/* ---- Memory ----------------------------------------------------------------------- */

/* Bytes of the largest record that a group has. */
static int64_t record_size(const shoal_plan *plan) {
    const int64_t numbers = max(plan->problem.dim * (int64_t)sizeof(double),
                                (plan->problem.value_dim + 1) * (int64_t)sizeof(float));
    return max(numbers, sh_distributed_part_size(plan, plan->attention.topk));
}

/* Floats that are shared of a unit to find its groups by the keys: rows of keys and of
   queries, then projected queries. */
static int64_t sample_size(const shoal_plan *plan) {
    const int64_t D = plan->problem.dim, projected = min(plan->attention.rank, D);
    return max(2 * METRIC_SAMPLE * D,
               sh_lloyd_sample(plan->attention.clusters, INT32_MAX) * projected);
}

distributed_work *sh_distributed_place_ranges(shoal_plan *plan, block_layout *work) {
    const int64_t P = plan->over->ranks, B = plan->problem.batch;
    distributed_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    plan->distributed = own;
    own = own ? own : &measured;
    *own = (distributed_work){0};
    own->mine = sh_reserve(work, 2 + 2 * B, sizeof(int64_t));
    own->all = sh_reserve(work, sh_mul_checked(P, 2 + 2 * B), sizeof(int64_t));
    own->first_keys = sh_reserve(work, sh_mul_checked(P + 1, B), sizeof(int64_t));
    own->ranges = sh_reserve(work, B, sizeof *own->ranges);
    own->sizes = sh_reserve(work, 2 * P, sizeof(int64_t));
    return plan->distributed;
}

void sh_distributed_place(shoal_plan *plan, const clustered_work *clustered,
                          block_layout *work) {
    const int64_t U = distributed_units(plan), P = plan->over->ranks;
    const int64_t C = plan->attention.clusters;
    const int64_t counters = kmeans_counters(hash_words(plan->attention.bits));
    distributed_work measured = {0}, *own = sh_distributed_place_ranges(plan, work);
    own = own ? own : &measured;
    own->most_rows = sh_mul_checked(sh_mul_checked(U, C), plan->attention.topk);
    own->heads = sh_reserve(work, U, sizeof *own->heads);
    own->passes = sh_reserve(work, U, sizeof *own->passes);
    own->moving = sh_reserve(work, U, 1);
    own->counts =
        sh_reserve(work, sh_mul_checked(sh_mul_checked(U, C), counters), sizeof(int32_t));
    /* And of the rows of top keys, which may all be one rank's. */
    own->packet =
        sh_reserve(work,
                   max(sh_mul_checked(distributed_clusters(plan), record_size(plan)),
                       sh_mul_checked(own->most_rows, distributed_row_size(plan) *
                                                          (int64_t)sizeof(float))),
                   1);
    /* What all ranks give: records of a share of the groups, or the result; or the
       farthest hashes that they found for one unit. */
    const int64_t words = kmeans_far_words(hash_words(plan->attention.bits));
    const int64_t records = max(distributed_clusters(plan),
                                sh_mul_checked(P, sh_distributed_most_shared(plan)));
    own->packets =
        sh_reserve(work,
                   max(sh_mul_checked(records, record_size(plan)),
                       sh_mul_checked(P, C * words * (int64_t)sizeof(uint64_t))),
                   1);
    own->keys = sh_reserve(work, own->most_rows, sizeof(int32_t));
    own->key_counts = sh_reserve(work, U, sizeof(int64_t));
    if (clustered->by_keys)
        own->samples = reserve_floats(work, U, sample_size(plan));
    own->sorted = sh_reserve(work, C * plan->attention.topk, sizeof(uint64_t));
    own->row_starts = sh_reserve(work, sh_mul_checked(P, U) + 1, sizeof(int64_t));
    sh_clustered_place_parts(&own->parts, plan, clustered,
                             sh_distributed_most_shared(plan), P, work);
    if (!plan->with_backward)
        return;
    own->row_grads = reserve_floats(work, own->most_rows, distributed_row_size(plan));
    own->own_grads = reserve_floats(work,
                                    sh_mul_checked(P, sh_distributed_most_returned(plan)),
                                    distributed_row_size(plan));
}

distributed_state sh_distributed_state_at(const shoal_plan *plan, block_layout *place) {
    const int64_t groups =
        sh_mul_checked(distributed_units(plan), plan->attention.clusters);
    const int64_t rows = sh_mul_checked(groups, plan->attention.topk);
    return (distributed_state){.members = sh_reserve(place, groups, sizeof(int32_t)),
                               .places = sh_reserve(place, rows, sizeof(int32_t)),
                               .rows = reserve_floats(place, rows,
                                                      distributed_row_size(plan))};
}

/* ---- Talking ---------------------------------------------------------------------- */

/* Gathers `bytes` of every rank, as many from each. */
static void gather(distributed_call *run, const void *mine, int64_t bytes, void *all) {
    if (!run->failed && bytes > 0)
        run->failed = run->over->gather(run->over, bytes, mine, all) != SHOAL_OK;
}

static void sum(distributed_call *run, int32_t *values, int64_t count) {
    if (!run->failed && count > 0)
        run->failed = run->over->sum(run->over, SHOAL_SUM_TYPE_INT32, count, values) !=
                      SHOAL_OK;
}

shoal_status sh_distributed_failure(const distributed_call *run) {
    return sh_fail(run->call->plan->context, SHOAL_IO,
                   "rank %d of %d cannot communicate with the others: %s",
                   run->over->rank, run->over->ranks, run->over->message);
}

/* Where this rank's positions lie among all; [P][2 + 2 batch] numbers are there. */
static shoal_status find_ranges(distributed_call *run) {
    const distributed_work *own = run->own;
    const int64_t B = run->call->plan->problem.batch, numbers = 2 + 2 * B;
    for (int64_t b = 0; b < B; b++) {
        distributed_range range = {0};
        for (int p = 0; p < run->over->ranks; p++) {
            const int64_t *theirs = own->all + p * numbers + 2 + 2 * b;
            own->first_keys[p * B + b] = range.keys;
            range.first_query += p < run->over->rank ? theirs[0] : 0;
            range.queries += theirs[0];
            range.keys += theirs[1];
        }
        own->first_keys[run->over->ranks * B + b] = range.keys;
        range.first_key = own->first_keys[run->over->rank * B + b];
        own->ranges[b] = range;
        if (range.queries > INT32_MAX || range.keys > INT32_MAX)
            return REFUSE(run->call->plan->context,
                          "sequence %lld has %lld queries and %lld keys on all ranks: "
                          "the maximum is %d of each",
                          (long long)b, (long long)range.queries, (long long)range.keys,
                          INT32_MAX);
    }
    return SHOAL_OK;
}

shoal_status sh_distributed_begin(distributed_call *run, const attention_call *call,
                                  shoal_status status) {
    const shoal_plan *plan = call->plan;
    *run = (distributed_call){.call = call,
                              .over = plan->over,
                              .workers = sh_team_of(plan->context)};
    const int64_t B = plan->problem.batch, numbers = 2 + 2 * B;
    distributed_work *own = run->own = plan->distributed;
    memset(own->mine, 0, sizeof *own->mine * (size_t)numbers);
    own->mine[0] = status != SHOAL_OK;
    own->mine[1] = status == SHOAL_OK && run->call->inputs->clusters;
    for (int64_t b = 0; b < B && status == SHOAL_OK && plan->problem.heads > 0; b++) {
        const head_view view = sh_view_of(run->call, b, 0);
        own->mine[2 + 2 * b] = view.queries;
        own->mine[3 + 2 * b] = view.keys;
    }
    gather(run, own->mine, numbers * (int64_t)sizeof *own->mine, own->all);
    if (run->failed)
        return sh_distributed_failure(run);
    for (int p = 0; p < run->over->ranks && status == SHOAL_OK; p++) {
        if (own->all[p * numbers])
            return REFUSE(plan->context,
                          "rank %d of %d rejected its arguments; see its message", p,
                          run->over->ranks);
        if (own->all[p * numbers + 1] != own->mine[1])
            return REFUSE(plan->context,
                          "inputs.clusters are given on rank %d, but not on rank %d",
                          own->mine[1] ? run->over->rank : p,
                          own->mine[1] ? p : run->over->rank);
    }
    return status == SHOAL_OK ? find_ranges(run) : status;
}

void sh_distributed_load_heads(distributed_call *run) {
    const shoal_problem *problem = &run->call->plan->problem;
    for (int64_t u = 0; u < distributed_units(run->call->plan); u++) {
        clustered_head *head = &run->own->heads[u];
        *head = sh_clustered_head_of(run->call, sh_view_at(run->call, u), (int)u);
        head->seen = run->own->ranges[u / problem->heads].keys;
        head->first_key = run->own->ranges[u / problem->heads].first_key;
    }
}

static const distributed_range *range_of(const distributed_call *run, int64_t u) {
    return &run->own->ranges[u / run->call->plan->problem.heads];
}

/* A sequence without queries or keys has nothing to find. */
int sh_distributed_is_live(const distributed_call *run, int64_t u) {
    return range_of(run, u)->queries > 0 && range_of(run, u)->keys > 0;
}

/* ---- Groups ----------------------------------------------------------------------- */

/* Assigns the queries of every unit that moves; the counts of all ranks together move
   the centres. Returns whether one moved. */
static int move_centres(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), C = plan->attention.clusters;
    const int64_t size = C * kmeans_counters(hash_words(plan->attention.bits));
    distributed_work *own = run->own;
    int64_t moving = 0;
    for (int64_t u = 0; u < U; u++) {
        if (!own->moving[u])
            continue;
        sh_kmeans_assign(&own->passes[u]);
        sh_kmeans_tally(&own->passes[u]);
        memcpy(own->counts + moving++ * size, own->passes[u].work->change,
               sizeof(int32_t) * (size_t)size);
    }
    sum(run, own->counts, moving * size);
    moving = 0;
    for (int64_t u = 0; u < U; u++) {
        if (!own->moving[u])
            continue;
        memcpy(own->passes[u].work->change, own->counts + moving++ * size,
               sizeof(int32_t) * (size_t)size);
        sh_kmeans_move(&own->passes[u]);
    }
    /* Centres that have lost their members move to the farthest hashes of all ranks.
       That is rare: units do it one by one. */
    const int64_t words = kmeans_far_words(hash_words(plan->attention.bits));
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        kmeans_pass *pass = &own->passes[u];
        const int empty = own->moving[u] ? sh_kmeans_empty(pass->work) : 0;
        if (empty == 0)
            continue;
        const int found =
            sh_kmeans_find_farthest(pass, range_of(run, u)->first_query, empty);
        memset(pass->work->farthest + found * words, 0,
               sizeof(uint64_t) * (size_t)((empty - found) * words));
        gather(run, pass->work->farthest, empty * words * (int64_t)sizeof(uint64_t),
               own->packets);
        if (!run->failed)
            sh_kmeans_reseed(pass->work, own->packets, empty * run->over->ranks);
    }
    int any = 0;
    for (int64_t u = 0; u < U; u++)
        any |= own->moving[u] = own->moving[u] && sh_kmeans_settle(&own->passes[u]);
    return any;
}

static void run_kmeans(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    distributed_work *own = run->own;
    int any = 0;
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        clustered_head *head = &own->heads[u];
        own->moving[u] = range_of(run, u)->queries > plan->attention.clusters &&
                         !run->call->inputs->clusters;
        own->passes[u] = (kmeans_pass){&head->slot->kmeans,
                                       plan->kernels,
                                       &head->slot->hashes,
                                       head->view.queries,
                                       head->state.groups,
                                       run->workers,
                                       0};
        any |= own->moving[u];
        if (!own->moving[u])
            continue;
        sh_clustered_hash(head, run->workers);
        sh_kmeans_start(&own->passes[u]);
    }
    if (!any)
        return;
    /* The first centres are hashes that one rank has; what the others have there is 0. */
    const int64_t U = distributed_units(plan), C = plan->attention.clusters;
    const int64_t halves = 2 * hash_words(plan->attention.bits);
    for (int64_t u = 0; u < U; u++) {
        memset(own->counts + u * C * halves, 0, sizeof(int32_t) * (size_t)(C * halves));
        if (!own->moving[u])
            continue;
        sh_kmeans_draw(&own->passes[u], plan->attention.seed, range_of(run, u)->queries,
                       range_of(run, u)->first_query);
        memcpy(own->counts + u * C * halves, own->passes[u].work->centres,
               sizeof(int32_t) * (size_t)(C * halves));
    }
    sum(run, own->counts, U * C * halves);
    for (int64_t u = 0; u < U; u++)
        if (own->moving[u])
            memcpy(own->passes[u].work->centres, own->counts + u * C * halves,
                   sizeof(int32_t) * (size_t)(C * halves));
    for (int l = 1; l < plan->attention.iterations && !run->failed; l++)
        if (!move_centres(run))
            return;
    for (int64_t u = 0; u < distributed_units(plan); u++)
        if (own->moving[u])
            sh_kmeans_assign(&own->passes[u]);
}

/* An even sample of all rows, of which this rank has some from `first` on: the others'
   are 0, until they are summed. Returns how many. */
static int64_t sample_rows(row_view rows, int64_t count, int64_t first, int64_t all,
                           int64_t dim, float *to) {
    const int64_t taken = min(all, METRIC_SAMPLE);
    for (int64_t i = 0; i < taken; i++) {
        const int64_t here = i * all / taken - first;
        memset(to + i * dim, 0, sizeof *to * (size_t)dim);
        if (here >= 0 && here < count)
            memcpy(to + i * dim, rows.data + here * rows.stride,
                   sizeof *to * (size_t)dim);
    }
    return taken;
}

static void sum_samples(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    sum(run, (int32_t *)run->own->samples, distributed_units(plan) * sample_size(plan));
}

/* The keys' metric, from a sample of all ranks. */
static void find_metrics(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t D = plan->problem.dim;
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        const head_view *view = &run->own->heads[u].view;
        const distributed_range *range = range_of(run, u);
        float *mine = run->own->samples + u * sample_size(plan);
        if (!run->own->moving[u])
            continue;
        mine += D *
                sample_rows(view->k, view->keys, range->first_key, range->keys, D, mine);
        sample_rows(view->q, view->queries, range->first_query, range->queries, D, mine);
    }
    sum_samples(run);
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        const float *all = run->own->samples + u * sample_size(plan);
        const int64_t keys = min(range_of(run, u)->keys, METRIC_SAMPLE);
        const int64_t queries = min(range_of(run, u)->queries, METRIC_SAMPLE);
        if (run->own->moving[u])
            sh_metric_find(&run->own->heads[u].slot->metric, plan->kernels,
                           (metric_rows){all, D, keys, NULL, 0},
                           (metric_rows){all + keys * D, D, queries, NULL, 0});
    }
}

/* The points of unit u that this rank has, projected; 0 where another has them. */
static void project_points(const distributed_call *run, int64_t u) {
    const shoal_plan *plan = run->call->plan;
    clustered_head *head = &run->own->heads[u];
    lloyd_work *work = &head->slot->lloyd;
    const distributed_range *range = range_of(run, u);
    const int64_t sample = sh_lloyd_sample(work->clusters, range->queries);
    float *points = run->own->samples + u * sample_size(plan);
    for (int64_t i = 0; i < sample; i++) {
        const int64_t here = sh_lloyd_query(sample, range->queries, i) -
                             range->first_query;
        memset(points + i * work->dims, 0, sizeof *points * (size_t)work->dims);
        if (here >= 0 && here < head->view.queries)
            sh_lloyd_project(work, plan->kernels,
                             (team){.threads = 1, .self = run->workers.self},
                             head->view.q.data + here * head->view.q.stride, work->dim, 1,
                             head->slot->metric.projection, NULL, points + i * work->dims,
                             NULL);
    }
}

static void run_lloyd(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const distributed_work *own = run->own;
    int any = 0;
    for (int64_t u = 0; u < distributed_units(plan); u++)
        any |= own->moving[u] = range_of(run, u)->queries > plan->attention.clusters &&
                                !run->call->inputs->clusters;
    if (!any)
        return;
    memset(own->samples, 0,
           sizeof(float) * (size_t)(distributed_units(plan) * sample_size(plan)));
    find_metrics(run);
    for (int64_t u = 0; u < distributed_units(plan); u++)
        if (own->moving[u])
            project_points(run, u);
    sum_samples(run);
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        clustered_head *head = &own->heads[u];
        if (!own->moving[u])
            continue;
        sh_lloyd_learn(&head->slot->lloyd, plan->kernels, run->workers,
                       own->samples + u * sample_size(plan), range_of(run, u)->queries,
                       plan->attention.iterations, plan->attention.seed);
        sh_lloyd_project(&head->slot->lloyd, plan->kernels, run->workers,
                         head->view.q.data, head->view.q.stride, head->view.queries,
                         head->slot->metric.projection, NULL, NULL, head->state.groups);
    }
}

/* Sorts every unit's own members; `members` [U][C] are those of all ranks. */
void sh_distributed_use_members(distributed_call *run, const int32_t *members) {
    const int64_t C = run->call->plan->attention.clusters;
    for (int64_t u = 0; u < distributed_units(run->call->plan); u++) {
        clustered_slot *slot = run->own->heads[u].slot;
        memcpy(slot->members, members + u * C, sizeof *members * (size_t)C);
        slot->sorted.used = 0;
        for (int32_t j = 0; j < C; j++)
            slot->sorted.used = members[u * C + j] > 0 ? j + 1 : slot->sorted.used;
    }
}

static void find_clusters(distributed_call *run, int32_t *members) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), C = plan->attention.clusters;
    if (((const clustered_work *)plan->work)->by_keys)
        run_lloyd(run);
    else
        run_kmeans(run);
    for (int64_t u = 0; u < U; u++) {
        /* Groups that nobody had to look for: brought along, or one for each query. */
        clustered_head *head = &run->own->heads[u];
        const int64_t n = head->view.queries, N = plan->problem.queries;
        const int32_t *brought = run->call->inputs->clusters;
        int32_t *groups = head->state.groups;
        if (brought)
            memmove(groups, brought + u * N, (size_t)n * sizeof *groups);
        else if (range_of(run, u)->queries <= plan->attention.clusters)
            for (int64_t i = 0; i < n; i++)
                groups[i] = (int32_t)(range_of(run, u)->first_query + i);
        for (int64_t i = n; i < N; i++)
            groups[i] = -1;
        sh_clustered_sort(&run->own->heads[u]);
        memcpy(members + u * C, run->own->heads[u].slot->members,
               sizeof *members * (size_t)C);
    }
    sum(run, members, U * C);
    sh_distributed_use_members(run, members);
}

/* ---- Centroids -------------------------------------------------------------------- */

static void find_centroids(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan);
    const int64_t size = plan->attention.clusters * plan->problem.dim;
    double *mine = run->own->packet, *all = run->own->packets;
    for (int64_t u = 0; u < U; u++) {
        clustered_head *head = &run->own->heads[u];
        memset(head->slot->sums, 0, sizeof(double) * (size_t)size);
        sh_clustered_sum(head, run->workers);
        memcpy(mine + u * size, head->slot->sums, sizeof(double) * (size_t)size);
    }
    sh_distributed_sum_doubles(run, plan->problem.dim);
    for (int64_t u = 0; u < U && !run->failed; u++) {
        memcpy(run->own->heads[u].slot->sums, all + u * size,
               sizeof(double) * (size_t)size);
        sh_clustered_centre(&run->own->heads[u]);
    }
}

/* ---- The softmax of the centroids -------------------------------------------------- */

/* The first part becomes one that has seen no key. */
static void clear_part(const clustered_head *head) {
    const softmax_parts *parts = &head->slot->parts;
    const int64_t C = parts->clusters;
    for (int64_t j = 0; j < C; j++) {
        parts->largest[j] = LOWEST_SCORE;
        parts->sum[j] = 0;
    }
    memset(parts->values, 0, sizeof(float) * (size_t)(C * head->keys.value_dim));
    if (head->work->has_top)
        memset(parts->counts, 0, sizeof(int32_t) * (size_t)C);
}

static void attend_keys(distributed_call *run) {
    const int64_t U = distributed_units(run->call->plan);
    for (int64_t u = 0; u < U; u++) {
        clustered_head *head = &run->own->heads[u];
        clear_part(head);
        if (!sh_distributed_is_live(run, u) || head->view.keys == 0)
            continue;
        sh_clustered_attend_keys(head, run->workers);
        sh_clustered_merge(head, run->workers);
        /* Candidates get the numbers that their keys have among all. */
        const int64_t k = head->work->topk;
        const softmax_parts *parts = &head->slot->parts;
        for (int64_t j = 0; j < head->slot->sorted.used && head->work->has_top; j++)
            for (int32_t i = 0; i < parts->counts[j]; i++)
                parts->keys[j * k + i] -= (uint64_t)(range_of(run, u)->first_key);
    }
    sh_distributed_merge_parts(run);
    for (int64_t u = 0; u < U && !run->failed; u++)
        sh_clustered_name_top(&run->own->heads[u], run->workers);
}

/* ---- Rows of the top keys ---------------------------------------------------------- */

/* How many of n ascending keys are below `key`. */
static int64_t count_below(const int32_t *keys, int64_t n, int64_t key) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (keys[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Of unit u's different top keys, how many lie before rank p's. */
int64_t sh_distributed_keys_before(const distributed_call *run, int64_t u, int p) {
    const shoal_plan *plan = run->call->plan;
    const int64_t most = plan->attention.clusters * (int64_t)plan->attention.topk;
    return count_below(
        run->own->keys + u * most, run->own->key_counts[u],
        run->own->first_keys[p * plan->problem.batch + u / plan->problem.heads]);
}

void sh_distributed_count_rows(distributed_call *run) {
    const int64_t U = distributed_units(run->call->plan);
    distributed_work *own = run->own;
    for (int64_t u = 0; u < U; u++) {
        /* The different top keys of unit u, ascending. */
        const shoal_plan *plan = run->call->plan;
        const int64_t C = plan->attention.clusters;
        const int32_t k = plan->attention.topk;
        int32_t *keys = own->keys + u * C * k, found = 0;
        const int32_t *top = own->heads[u].state.top_keys;
        for (int64_t j = 0; j < C; j++)
            for (int32_t i = 0; i < k && top[j * k + i] >= 0; i++, found++)
                own->sorted[found] = ~((uint64_t)top[j * k + i] << 32 | (uint32_t)found);
        sh_topk_sort(own->sorted, found); /* the largest first, and so the smallest key */
        own->key_counts[u] = 0;
        for (int32_t i = 0; i < found; i++) {
            const int32_t key = (int32_t)(~own->sorted[i] >> 32);
            if (own->key_counts[u] == 0 || keys[own->key_counts[u] - 1] != key)
                keys[own->key_counts[u]++] = key;
        }
    }
    own->row_starts[0] = 0;
    for (int p = 0; p < run->over->ranks; p++)
        for (int64_t u = 0; u < U; u++)
            own->row_starts[p * U + u + 1] = own->row_starts[p * U + u] +
                                             sh_distributed_keys_before(run, u, p + 1) -
                                             sh_distributed_keys_before(run, u, p);
}

void sh_distributed_use_rows(distributed_call *run, const distributed_state *state) {
    const shoal_plan *plan = run->call->plan;
    const int64_t wide = plan->attention.clusters * (int64_t)plan->attention.topk;
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        clustered_head *head = &run->own->heads[u];
        head->top_places = state->places + u * wide;
        head->top_k = (row_view){state->rows, distributed_row_size(plan)};
        head->top_v =
            (row_view){state->rows + plan->problem.dim, distributed_row_size(plan)};
    }
}

int64_t sh_distributed_rows_of(const distributed_call *run, int p) {
    const int64_t U = distributed_units(run->call->plan);
    return run->own->row_starts[(p + 1) * U] - run->own->row_starts[p * U];
}

static void gather_rows(distributed_call *run, const distributed_state *state) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), D = plan->problem.dim;
    const int64_t Dv = plan->problem.value_dim;
    const int64_t most = plan->attention.clusters * (int64_t)plan->attention.topk;
    distributed_work *own = run->own;
    float *row = own->packet;
    sh_distributed_count_rows(run);
    for (int64_t u = 0; u < U; u++) {
        const head_view *view = &own->heads[u].view;
        const int64_t last = sh_distributed_keys_before(run, u, run->over->rank + 1);
        for (int64_t i = sh_distributed_keys_before(run, u, run->over->rank); i < last;
             i++) {
            const int64_t l = own->keys[u * most + i] - range_of(run, u)->first_key;
            memcpy(row, view->k.data + l * view->k.stride, sizeof *row * (size_t)D);
            memcpy(row + D, view->v.data + l * view->v.stride, sizeof *row * (size_t)Dv);
            row += D + Dv;
        }
        /* Which row each top key of unit u is. */
        const int32_t *top = own->heads[u].state.top_keys;
        uint64_t *rows = own->sorted; /* of the different keys, ascending */
        for (int p = 0; p < run->over->ranks; p++)
            for (int64_t at = own->row_starts[p * U + u];
                 at < own->row_starts[p * U + u + 1]; at++)
                *rows++ = (uint64_t)at;
        for (int64_t i = 0; i < most; i++) {
            const int64_t at =
                count_below(own->keys + u * most, own->key_counts[u], top[i]);
            state->places[u * most + i] = top[i] < 0 ? -1 : (int32_t)own->sorted[at];
        }
    }
    for (int p = 0; p < run->over->ranks; p++)
        own->sizes[p] = sh_distributed_rows_of(run, p) * (D + Dv) *
                        (int64_t)sizeof(float);
    if (!run->failed && own->row_starts[run->over->ranks * U] > 0)
        run->failed = run->over->gather_parts(run->over, own->sizes, own->packet,
                                              state->rows) != SHOAL_OK;
    sh_distributed_use_rows(run, state);
}

/* ---- Groups whose other keys are summed directly ---------------------------------- */

/* Which groups these are, on any rank: own->counts [U][C]. */
static int find_cancelled(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), C = plan->attention.clusters;
    int32_t *cancelled = run->own->counts;
    int any = 0;
    memset(cancelled, 0, sizeof *cancelled * (size_t)(U * C));
    for (int64_t u = 0; u < U; u++) {
        const clustered_head *head = &run->own->heads[u];
        for (int64_t j = 0; j < head->slot->sorted.used && sh_distributed_is_live(run, u);
             j++)
            cancelled[u * C + j] = sh_clustered_is_cancelled(head, j);
    }
    sum(run, cancelled, U * C);
    for (int64_t i = 0; i < U * C; i++)
        any |= cancelled[i] != 0;
    return any && !run->failed;
}

static void improve_cancelled(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t C = plan->attention.clusters, Dv = plan->problem.value_dim;
    clustered_thread *own = ((const clustered_work *)plan->work)->threads;
    if (!find_cancelled(run))
        return;
    /* This rank's part of the softmax of every such centroid over the other keys. */
    const query_panel *panel = &own->dense->panels[0];
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        const clustered_head *head = &run->own->heads[u];
        const softmax_parts *mine = &head->slot->parts;
        clear_part(head);
        for (int64_t j = 0; j < C && head->view.keys > 0; j++) {
            if (!run->own->counts[u * C + j])
                continue;
            sh_clustered_others(head, j, own);
            mine->largest[j] = panel->largest[0];
            mine->sum[j] = panel->sum[0];
            for (int64_t d = 0; d < Dv; d++)
                mine->values[j * Dv + d] = panel->outputs[d * panel->width];
        }
    }
    sh_distributed_merge_parts(run);
    for (int64_t i = 0; i < distributed_clusters(plan) && !run->failed; i++) {
        const clustered_head *head = &run->own->heads[i / C];
        const softmax_parts *merged = &head->slot->parts;
        const int64_t j = i % C;
        if (run->own->counts[i])
            sh_clustered_share_others(head, j, merged->largest[j], merged->sum[j],
                                      merged->values + j * Dv, own);
    }
}

/* ---- The road --------------------------------------------------------------------- */

shoal_status sh_distributed_forward(const attention_call *call, shoal_status status) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const clustered_work *work = plan->work;
    distributed_call run;
    TRY(sh_distributed_begin(&run, call, status));
    const distributed_state state = sh_clustered_distributed_state(plan, call->state);
    sh_distributed_load_heads(&run);
    find_clusters(&run, state.members);
    find_centroids(&run);
    attend_keys(&run);
    if (work->has_top && !run.failed)
        gather_rows(&run, &state);
    if (run.failed)
        return sh_distributed_failure(&run);
    for (int64_t u = 0; u < distributed_units(plan); u++) {
        clustered_head *head = &run.own->heads[u];
        const int live = sh_distributed_is_live(&run, u);
        sh_clear_rows(head->view.out, live ? head->view.queries : 0,
                      head->view.query_rows, problem->value_dim);
        if (!live)
            continue;
        sh_clustered_share(head, run.workers);
        sh_clustered_write(head, run.workers);
    }
    if (work->per_query)
        improve_cancelled(&run);
    return run.failed ? sh_distributed_failure(&run) : SHOAL_OK;
}
