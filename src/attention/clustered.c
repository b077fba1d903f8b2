/* Forward of the clustered kinds; clustered_backward.c is its mirror. */
#include "attention/clustered.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "attention/clustered_place.h"
#include "cluster/topk.h"

/* ---- Groups ----------------------------------------------------------------------- */

enum { HASH_TASK = 16 * HASH_BLOCK }; /* queries hashed in one task */

static void hash_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    clustered_thread *own = &head->work->threads[thread];
    const row_view q = head->view.q;
    const int64_t last = min((task + 1) * HASH_TASK, head->view.queries);
    for (int64_t first = task * HASH_TASK; first < last; first += HASH_BLOCK)
        sh_hash_queries(head->keys.kernels, q.data + first * q.stride, q.stride,
                        (int)min(HASH_BLOCK, last - first), last - first, head->keys.dim,
                        head->work->directions, &head->slot->hashes, first / HASH_BLOCK,
                        own->dense->panels[0].queries, own->projections);
}

void sh_clustered_find_groups(clustered_head *head, team workers) {
    const shoal_plan *plan = head->call->plan;
    const int64_t n = head->view.queries, N = plan->problem.queries;
    const int32_t *brought = head->call->inputs->groups;
    int32_t *groups = head->state.groups;
    if (brought) {
        memmove(groups, brought + head->view.head * N, (size_t)n * sizeof *groups);
    } else if (n <= plan->attention.clusters) {
        for (int64_t i = 0; i < n; i++)
            groups[i] = (int32_t)i;
    } else if (head->work->by_keys) {
        const row_view q = head->view.q, k = head->view.k;
        sh_metric_find(&head->slot->metric, head->keys.kernels, k.data, k.stride,
                       head->view.keys, q.data, q.stride, n);
        sh_lloyd_run(&head->slot->lloyd, head->keys.kernels, workers, q.data, q.stride, n,
                     head->slot->metric.projection, plan->attention.iterations,
                     plan->attention.seed, groups);
    } else {
        sh_team_run(workers, ceil_divide(n, HASH_TASK), hash_task, head);
        sh_kmeans_run(&head->slot->kmeans, head->keys.kernels, workers,
                      &head->slot->hashes, n, plan->attention.iterations,
                      plan->attention.seed, groups);
    }
    for (int64_t i = n; i < N; i++)
        groups[i] = -1;
    sh_group_sort(&head->slot->sorted, groups, n);
}

/* ---- Centroids and their attention ------------------------------------------------ */

enum { GROUP_TASK = 8 }; /* groups in one task */

static void centroid_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    const grouping *sorted = &head->slot->sorted;
    const int dim = head->keys.dim;
    (void)thread;
    for (int64_t j = task * GROUP_TASK; j < min((task + 1) * GROUP_TASK, sorted->used);
         j++) {
        int64_t size = sorted->offsets[j + 1] - sorted->offsets[j];
        float *centroid = head->state.centroids + j * dim;
        head->keys.kernels->sum_rows(head->view.q.data, head->view.q.stride,
                                     sorted->order + sorted->offsets[j], NULL, size, dim,
                                     centroid);
        for (int d = 0; d < dim && size > 1; d++)
            centroid[d] /= (float)size;
    }
}

candidate_seer sh_clustered_seer(const clustered_head *head, clustered_thread *own,
                                 int p) {
    const int64_t lane = (int64_t)p * head->keys.kernels->panel;
    if (!head->work->improved) /* there are no lists */
        return (candidate_seer){.work = head->work, .kernels = head->keys.kernels};
    return (candidate_seer){head->work, head->keys.kernels,
                            own->candidates + lane * head->work->capacity,
                            own->counts + lane, own->floor + lane};
}

static void cut_list(const candidate_seer *seer, int lane) {
    uint64_t *list = seer->candidates + lane * seer->work->capacity;
    int32_t count = sh_topk_cut(list, seer->counts[lane], seer->work->topk);
    seer->counts[lane] = count;
    if (count < seer->work->topk)
        return;
    uint64_t worst = list[0];
    for (int32_t i = 1; i < count; i++)
        worst = list[i] < worst ? list[i] : worst;
    seer->floor[lane] = candidate_score(worst);
}

void sh_clustered_see(void *shared, const query_panel *panel, float *scores, int count,
                      int64_t first) {
    const candidate_seer *seer = shared;
    for (int i = 0; i < panel->count; i++)
        if (seer->counts[i] >= seer->work->capacity - KEY_BLOCK)
            cut_list(seer, i);
    seer->kernels->collect(scores, panel->width, count, (int32_t)first, seer->floor,
                           seer->candidates, seer->work->capacity, seer->counts);
}

void sh_clustered_start_panel(const clustered_head *head, query_panel *panel,
                              const candidate_seer *seer) {
    sh_dense_start(&head->keys, panel, (row_view){head->state.centroids, head->keys.dim});
    for (int i = 0; i < panel->width && head->work->improved; i++) {
        seer->counts[i] = 0;
        /* Lanes that stand for no centroid collect nothing. */
        seer->floor[i] = i < panel->count ? -INFINITY : INFINITY;
    }
}

/* What a chunk of keys gave one panel of centroids: softmax, values and best keys. */
static void keep_panel(const clustered_head *head, int64_t chunk,
                       const query_panel *panel, const candidate_seer *seer) {
    const clustered_slot *slot = head->slot;
    const int64_t k = head->work->topk, Dv = head->keys.value_dim;
    const int64_t at = chunk * slot->sorted.clusters + panel->first;
    memcpy(slot->part_top + at, panel->top, (size_t)panel->count * sizeof(float));
    memcpy(slot->part_sum + at, panel->sum, (size_t)panel->count * sizeof(float));
    head->keys.kernels->unpack(panel->outputs, panel->count, panel->width, (int)Dv, NULL,
                               NULL, 0, slot->part_values + at * Dv, Dv, NULL);
    for (int i = 0; i < panel->count && head->work->improved; i++) {
        uint64_t *list = seer->candidates + i * head->work->capacity;
        int32_t count = sh_topk_cut(list, seer->counts[i], (int32_t)k);
        slot->part_counts[at + i] = count;
        memcpy(slot->part_keys + (at + i) * k, list, (size_t)count * sizeof *list);
    }
}

static int64_t centroids_per_task(const clustered_head *head) {
    return head->task_panels * head->keys.kernels->panel;
}

/* One chunk of keys over some panels of centroids, which take turns on every block of
   keys while it is in cache. task = chunk * runs of panels + run. */
static void attend_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    clustered_thread *own = &head->work->threads[thread];
    const int64_t used = head->slot->sorted.used, run = centroids_per_task(head);
    const int64_t runs = ceil_divide(used, run), chunk = task / runs;
    const int64_t first = task % runs * run;
    const int64_t start = chunk * head->chunk_keys;
    const int64_t end = min(start + head->chunk_keys, head->view.keys);
    const int panels =
        sh_dense_cut(own->dense, head->keys.kernels, first, min(first + run, used));
    candidate_seer seers[PANELS];
    for (int p = 0; p < panels; p++) {
        seers[p] = sh_clustered_seer(head, own, p);
        sh_clustered_start_panel(head, &own->dense->panels[p], &seers[p]);
        for (int i = 0; i < own->dense->panels[p].count && head->work->improved; i++)
            if (clustered_is_alone(head, own->dense->panels[p].first + i))
                seers[p].floor[i] = INFINITY; /* no candidates, no top keys, no mass */
    }
    for (int64_t key = start; key < end; key += KEY_BLOCK)
        for (int p = 0; p < panels; p++)
            sh_dense_stream(&head->keys, key, min(key + KEY_BLOCK, end),
                            &own->dense->panels[p], own->dense->scores,
                            head->work->improved ? sh_clustered_see : NULL, &seers[p]);
    for (int p = 0; p < panels; p++)
        keep_panel(head, chunk, &own->dense->panels[p], &seers[p]);
}

/* ---- Merging the chunks ----------------------------------------------------------- */

/* The best keys of all chunks, best first; their weights are taken out of what the group
   shares and make its mass. */
static void choose_top(const clustered_head *head, int64_t j, int64_t chunks,
                       clustered_thread *own) {
    const clustered_work *work = head->work;
    const int64_t C = head->slot->sorted.clusters, Dv = head->keys.value_dim;
    const row_view v = head->view.v;
    int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    float *shared = head->state.shared + j * Dv;
    uint64_t *list = own->candidates;
    int32_t count = 0;
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t at = chunk * C + j;
        int32_t more = head->slot->part_counts[at];
        memcpy(list + count, head->slot->part_keys + at * work->topk,
               (size_t)more * sizeof *list);
        count = sh_topk_cut(list, count + more, work->topk);
    }
    sh_topk_sort(list, count);
    for (int32_t i = 0; i < count; i++)
        keys[i] = candidate_key(list[i]);
    prefetch_rows(v.data, v.stride, keys, count, Dv);
    double mass = 0;
    for (int32_t i = 0; i < count; i++) {
        own->weights[i] = expf(candidate_score(list[i]) - head->state.top[j]) *
                          head->state.inverse[j];
        mass += (double)own->weights[i];
    }
    head->keys.kernels->sum_rows(v.data, v.stride, keys, own->weights, count, (int)Dv,
                                 own->top_v);
    for (int64_t d = 0; d < Dv; d++)
        shared[d] -= own->top_v[d];
    /* Below 1, however it was rounded, while there are other keys. */
    head->state.mass[j] = (float)mass;
    if (head->state.mass[j] >= 1)
        head->state.mass[j] = 1 - FLT_EPSILON / 2;
    if (count < head->view.keys)
        return;
    /* All keys are top keys: nothing is left to share, exactly. */
    head->state.mass[j] = 1;
    memset(shared, 0, (size_t)Dv * sizeof *shared);
}

static void merge_group(const clustered_head *head, int64_t j, clustered_thread *own) {
    const int64_t C = head->slot->sorted.clusters, Dv = head->keys.value_dim;
    const int64_t chunks = ceil_divide(head->view.keys, head->chunk_keys);
    float *shared = head->state.shared + j * Dv;
    float top = head->slot->part_top[j];
    for (int64_t chunk = 1; chunk < chunks; chunk++)
        top = fmaxf(top, head->slot->part_top[chunk * C + j]);
    float sum = 0;
    memset(shared, 0, (size_t)Dv * sizeof *shared);
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        int64_t at = chunk * C + j;
        float keep = expf(head->slot->part_top[at] - top);
        sum += keep * head->slot->part_sum[at];
        for (int64_t d = 0; d < Dv; d++)
            shared[d] += keep * head->slot->part_values[at * Dv + d];
    }
    for (int64_t d = 0; d < Dv; d++)
        shared[d] /= sum;
    head->state.top[j] = top;
    head->state.inverse[j] = 1 / sum;
    if (head->work->improved)
        choose_top(head, j, chunks, own);
}

static void merge_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    const grouping *sorted = &head->slot->sorted;
    for (int64_t j = task * GROUP_TASK; j < min((task + 1) * GROUP_TASK, sorted->used);
         j++)
        if (sorted->offsets[j + 1] > sorted->offsets[j])
            merge_group(head, j, &head->work->threads[thread]);
}

/* ---- The whole of it ---------------------------------------------------------------- */

static void forward_head(void *shared, int64_t unit, int slot, team workers) {
    const attention_call *call = shared;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    clustered_head head = sh_clustered_head_of(call, b, h, slot);
    const int64_t n = head.view.queries, S = head.view.keys;
    head.out = sh_query_rows(call, call->out, &problem->out, b, h);
    sh_clear_rows(head.out, S > 0 ? n : 0, problem->packed ? n : problem->queries,
                  problem->value_dim);
    sh_clustered_find_groups(&head, workers);
    int64_t used = head.slot->sorted.used;
    if (head.work->improved)
        for (int64_t i = 0;
             i < (int64_t)call->plan->attention.clusters * call->plan->attention.topk;
             i++)
            head.state.top_keys[i] = -1;
    if (n == 0 || S == 0)
        return;
    int64_t chunks = ceil_divide(S, head.chunk_keys);
    sh_team_run(workers, ceil_divide(used, GROUP_TASK), centroid_task, &head);
    /* A task reads its keys once for all its panels. Threads share out chunks of keys, and
       where those are few, panels. */
    head.task_panels = PANELS;
    if (chunks < workers.threads)
        head.task_panels = used / head.keys.kernels->panel * chunks / workers.threads;
    head.task_panels = head.task_panels < 1 ? 1 : min(head.task_panels, PANELS);
    sh_team_run(workers, chunks * ceil_divide(used, centroids_per_task(&head)),
                attend_task, &head);
    sh_team_run(workers, ceil_divide(used, GROUP_TASK), merge_task, &head);
    sh_clustered_outputs(&head, workers);
}

static void forward(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    sh_run_units(sh_team_of(call->plan->context), problem->batch * problem->heads,
                 forward_head, (void *)call);
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double D = (double)problem->dim, both = D + (double)problem->value_dim;
    const double C = fmin(N, attention->clusters), k = fmin(S, attention->topk);
    const int by_keys = attention->groups == SHOAL_GROUPS_KEYS;
    return (operation_count){.once = 2 * N * D *
                                     (by_keys ? attention->rank : attention->bits),
                             .dense = 2 * (C * S + N * k) * both};
}

/* What the kinds share; i-clustered has every option, the others fix some. */
#define CLUSTERED_FUNCTIONS                                                              \
    .operations = operations, .place = sh_clustered_place, .forward = forward,           \
    .backward = sh_clustered_backward, .groups = sh_clustered_groups,                    \
    .top_keys = sh_clustered_top_keys

const attention_kind sh_clustered_kind =
    {.info = {.name = "clustered-C",
              .number = "clusters",
              .cost = "N D B + N C L + C S (D + Dv)",
              .summary = "each group of queries attends once",
              .defaults = {.kind = SHOAL_CLUSTERED,
                           .clusters = 100,
                           .bits = 63,
                           .rank = 16,
                           .iterations = 10,
                           .seed = 1},
              .has_groups = 1,
              .has_seed = 1},
     .options = OPTION_GROUPS | OPTION_BITS | OPTION_RANK | OPTION_ITERATIONS,
     CLUSTERED_FUNCTIONS};

const attention_kind sh_i_clustered_kind =
    {.info = {.name = "i-clustered-C",
              .number = "clusters",
              .cost = "N D B + N C L + (C S + N k) (D + Dv)",
              .summary = "clustered, and each group's topk keys exactly for every query",
              .defaults = {.kind = SHOAL_I_CLUSTERED,
                           .clusters = 100,
                           .topk = 32,
                           .bits = 63,
                           .rank = 16,
                           .iterations = 10,
                           .seed = 1},
              .has_groups = 1,
              .has_top_keys = 1,
              .has_seed = 1},
     .options = OPTION_TOPK | OPTION_GROUPS | OPTION_NORMALISER | OPTION_BITS |
                OPTION_RANK | OPTION_ITERATIONS,
     CLUSTERED_FUNCTIONS};

const attention_kind sh_shoal_kind =
    {.info = {.name = "shoal-C",
              .number = "clusters",
              .cost = "N r (D + C) + (C S + N k) (D + Dv)",
              .summary = "groups in the keys' metric, a normaliser per query: half the "
                         "error",
              .defaults = {.kind = SHOAL_SHOAL,
                           .clusters = 100,
                           .topk = 64,
                           .groups = SHOAL_GROUPS_KEYS,
                           .normaliser = SHOAL_NORMALISER_QUERY,
                           .rank = 16,
                           .iterations = 6,
                           .seed = 1},
              .has_groups = 1,
              .has_top_keys = 1,
              .has_seed = 1},
     .options = OPTION_TOPK | OPTION_RANK | OPTION_ITERATIONS,
     CLUSTERED_FUNCTIONS};
