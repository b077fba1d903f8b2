/* Forward of the clustered kinds; clustered_backward.c is its mirror. */
#include "attention/clustered.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "attention/distributed.h"

/* ---- Memory ----------------------------------------------------------------------- */

/* Keys are cut into at most MAX_CHUNKS chunks, so that one head of one sequence keeps
   many threads busy. They are longer where each has a list of best keys. */
enum { MAX_CHUNKS = 16, MIN_CHUNK = 2048, MIN_CHUNK_WITH_TOP = 4096 };

static int64_t chunk_length(const shoal_plan *plan, int64_t keys) {
    int64_t even = ceil_divide(ceil_divide(keys, MAX_CHUNKS), KEY_BLOCK) * KEY_BLOCK;
    return max(even, plan->kind->info.has_top_keys ? MIN_CHUNK_WITH_TOP : MIN_CHUNK);
}

/* The centroids' softmax of `heads` heads. */
static void place_softmax(clustered_state *state, const shoal_plan *plan, int64_t heads,
                          block_layout *place) {
    const int64_t groups = sh_mul_checked(heads, plan->attention.clusters);
    state->centroids = reserve_floats(place, groups, plan->problem.dim);
    state->shared = reserve_floats(place, groups, plan->problem.value_dim);
    state->largest = sh_reserve(place, groups, sizeof(float));
    state->inverse = sh_reserve(place, groups, sizeof(float));
    if (plan->kind->info.has_top_keys)
        state->mass = sh_reserve(place, groups, sizeof(float));
    if (plan->attention.normaliser == SHOAL_NORMALISER_QUERY)
        state->others_alone = sh_reserve(place, groups, sizeof(uint8_t));
}

/* Groups and top keys are there to be asked for. The softmax is kept for backward only;
   without it a slot has one head's. */
static clustered_state state_at(const shoal_plan *plan, block_layout *place) {
    const shoal_problem *problem = &plan->problem;
    const int64_t heads = problem->batch * problem->heads;
    clustered_state state = {0};
    state.groups =
        sh_reserve(place, sh_mul_checked(heads, problem->queries), sizeof(int32_t));
    if (plan->with_backward)
        place_softmax(&state, plan, heads, place);
    if (plan->kind->info.has_top_keys)
        state.top_keys =
            sh_reserve(place,
                       sh_mul_checked(sh_mul_checked(heads, plan->attention.clusters),
                                      plan->attention.topk),
                       sizeof(int32_t));
    return state;
}

void sh_clustered_place_parts(softmax_parts *parts, const shoal_plan *plan,
                              const clustered_work *own, int64_t groups, int64_t most,
                              block_layout *work) {
    const int64_t all = sh_mul_checked(most, groups);
    parts->clusters = groups;
    parts->largest = sh_reserve(work, all, sizeof(float));
    parts->sum = sh_reserve(work, all, sizeof(float));
    parts->values = reserve_floats(work, all, plan->problem.value_dim);
    if (!own->has_top)
        return;
    parts->keys = sh_reserve(work, sh_mul_checked(all, own->topk), sizeof(uint64_t));
    parts->counts = sh_reserve(work, all, sizeof(int32_t));
    parts->floors = sh_reserve(work, all, sizeof(atomic_int));
}

/* Memory for one head: to cluster its queries, then for the centroids. */
static void place_slot(clustered_slot *slot, const shoal_plan *plan,
                       const clustered_work *own, block_layout *work) {
    const int64_t N = plan->problem.queries, S = plan->problem.keys;
    const int64_t D = plan->problem.dim, Dv = plan->problem.value_dim;
    const int C = plan->attention.clusters, bits = plan->attention.bits;
    if (own->by_keys) {
        sh_metric_place(&slot->metric, plan->kernels, (int)D, own->projected, work);
        sh_lloyd_place(&slot->lloyd, plan->kernels, C, (int)D, own->projected,
                       plan->over ? INT32_MAX : N, work);
        slot->lloyd.threads = own->lloyd;
    } else {
        slot->hashes.bits = bits;
        slot->hashes.words = hash_words(bits);
        slot->hashes.planes = sh_reserve(work, hash_array_size(N, bits), 1);
        sh_kmeans_place(&slot->kmeans, C, bits, N, work);
        slot->kmeans.tally = own->tallies;
    }
    slot->sorted.clusters = C;
    slot->sorted.offsets = sh_reserve(work, C + 1, sizeof(int32_t));
    slot->sorted.order = sh_reserve(work, N, sizeof(int32_t));
    slot->members = sh_reserve(work, C, sizeof(int32_t));
    slot->sums = sh_reserve(work, sh_mul_checked(C, D), sizeof(double));
    sh_clustered_place_parts(&slot->parts, plan, own, C,
                             max(1, ceil_divide(S, chunk_length(plan, S))), work);
    if (own->per_query)
        slot->cancelled = sh_reserve(work, C, sizeof(atomic_int));
    if (!plan->with_backward) {
        place_softmax(&slot->softmax, plan, 1, work);
        return;
    }
    slot->grad_shared = sh_reserve(work, C * Dv, sizeof(float));
    slot->grad_centroids = sh_reserve(work, C * D, sizeof(float));
    slot->delta = sh_reserve(work, C, sizeof(float));
    slot->dense_largest = sh_reserve(work, C, sizeof(float));
    slot->dense_inverse = sh_reserve(work, C, sizeof(float));
    slot->turns = sh_reserve(work, ceil_divide(C, sh_dense_block(plan->kernels)),
                             sizeof(atomic_int));
    slot->scatter_turn = sh_reserve(work, 1, sizeof(atomic_int));
}

static void place_thread(clustered_thread *thread, const shoal_plan *plan,
                         const clustered_work *own, block_layout *work) {
    const int64_t width = plan->kernels->panel, k = own->topk;
    const int64_t D = plan->problem.dim, Dv = plan->problem.value_dim;
    if (!own->by_keys)
        thread->projections =
            sh_reserve(work, plan->attention.bits * width, sizeof(float));
    if (!own->has_top)
        return;
    thread->candidates = sh_reserve(work, topk_size(k, PANELS * width), sizeof(uint64_t));
    thread->counts = sh_reserve(work, PANELS * width, sizeof(int32_t));
    thread->floor = sh_reserve(work, PANELS * width, sizeof(float));
    thread->top_key_rows = sh_reserve(work, k * D, sizeof(float));
    thread->top_value_rows = sh_reserve(work, k * Dv, sizeof(float));
    thread->top_sum = sh_reserve(work, Dv, sizeof(float));
    thread->top_bias = sh_reserve(work, k, sizeof(float));
    thread->weights = sh_reserve(work, k * width, sizeof(float));
    if (own->per_query)
        thread->top_ascending = sh_reserve(work, k + 1, sizeof(uint64_t));
    if (!plan->with_backward)
        return;
    thread->scores = sh_reserve(work, k * width, sizeof(float));
    thread->slopes = sh_reserve(work, k * width, sizeof(float));
    thread->member_q = sh_reserve(work, width * D, sizeof(float));
    thread->member_dout = sh_reserve(work, width * Dv, sizeof(float));
    thread->grad_top_keys = sh_reserve(work, k * D, sizeof(float));
    thread->grad_top_values = sh_reserve(work, k * Dv, sizeof(float));
    thread->grad_top_bias = sh_reserve(work, k, sizeof(float));
}

static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    const shoal_problem *problem = &plan->problem;
    const int threads = plan->threads, dim = (int)problem->dim;
    const int C = plan->attention.clusters, bits = plan->attention.bits;
    clustered_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    plan->work = own;
    own = own ? own : &measured;
    *own =
        (clustered_work){.has_top = plan->kind->info.has_top_keys,
                         .by_keys = plan->attention.clustering == SHOAL_CLUSTERING_KEYS,
                         .per_query = plan->attention.normaliser ==
                                      SHOAL_NORMALISER_QUERY,
                         .projected = (int)min(plan->attention.rank, dim),
                         .topk = plan->over
                                     ? plan->attention.topk
                                     : (int32_t)min(plan->attention.topk, problem->keys)};
    if (own->by_keys) {
        own->lloyd = sh_reserve(work, threads, sizeof *own->lloyd);
    } else {
        own->tallies = sh_reserve(work, threads, sizeof *own->tallies);
        own->directions = sh_reserve(work, (int64_t)bits * dim, sizeof(float));
        if (own->directions)
            sh_hash_directions(plan->attention.seed, bits, dim, own->directions);
    }
    own->threads = sh_reserve(work, threads, sizeof *own->threads);
    own->dense = sh_dense_place_threads(plan, work);
    for (int t = 0; t < threads; t++) {
        if (own->by_keys)
            sh_lloyd_place_thread(own->lloyd ? &own->lloyd[t] : &(lloyd_thread){0},
                                  plan->kernels, dim, own->projected, work);
        else
            sh_kmeans_place_tally(own->tallies ? &own->tallies[t] : &(kmeans_tally){0}, C,
                                  bits, work);
        if (own->threads)
            own->threads[t].dense = &own->dense[t];
        place_thread(own->threads ? &own->threads[t] : &(clustered_thread){0}, plan, own,
                     work);
    }
    /* A distributed plan has a slot for each head, because all go step by step
       together. */
    const int64_t units = problem->batch * problem->heads;
    const int64_t slots = plan->over ? units : sh_unit_slots(threads, units);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int64_t s = 0; s < slots; s++)
        place_slot(own->slots ? &own->slots[s] : &(clustered_slot){0}, plan, own, work);
    if (plan->over)
        sh_distributed_place(plan, own, work);
    state_at(plan, state);
    if (plan->over)
        sh_distributed_state_at(plan, state);
}

distributed_state sh_clustered_distributed_state(const shoal_plan *plan, void *state) {
    block_layout place = {.base = state};
    state_at(plan, &place);
    return sh_distributed_state_at(plan, &place);
}

static const int32_t *groups_in(const shoal_plan *plan, const void *state) {
    return state_at(plan, &(block_layout){.base = (char *)state}).groups;
}

static const int32_t *top_keys_in(const shoal_plan *plan, const void *state) {
    return state_at(plan, &(block_layout){.base = (char *)state}).top_keys;
}

clustered_head sh_clustered_head_of(const attention_call *call, head_view view,
                                    int slot) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const int64_t C = plan->attention.clusters;
    clustered_head head = {.call = call, .work = plan->work, .view = view};
    const int64_t at = head.view.head;
    head.slot = &head.work->slots[slot];
    head.keys = sh_dense_keys_of(plan, &head.view);
    head.seen = head.view.keys;
    head.chunk_keys = chunk_length(plan, head.view.keys);
    const clustered_state all = state_at(plan, &(block_layout){.base = call->state});
    head.state = head.slot->softmax;
    if (plan->with_backward) {
        head.state.centroids = all.centroids + at * C * problem->dim;
        head.state.shared = all.shared + at * C * problem->value_dim;
        head.state.largest = all.largest + at * C;
        head.state.inverse = all.inverse + at * C;
        head.state.mass = all.mass ? all.mass + at * C : NULL;
        head.state.others_alone = all.others_alone ? all.others_alone + at * C : NULL;
    }
    head.state.groups = all.groups + at * problem->queries;
    if (head.work->has_top)
        head.state.top_keys = all.top_keys + at * C * plan->attention.topk;
    head.top_places = head.state.top_keys;
    head.top_k = head.view.k;
    head.top_v = head.view.v;
    return head;
}

void sh_clustered_set_masks(clustered_head *head) {
    head->keys.masks = sh_masks_in(head->call, &head->view, &head->masks);
    head->seen = head->keys.masks ? sh_masks_seen(&head->masks, head->view.keys)
                                  : head->view.keys;
}

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

void sh_clustered_hash(clustered_head *head, team workers) {
    sh_team_deal(workers, ceil_divide(head->view.queries, HASH_TASK), hash_task, head);
}

void sh_clustered_sort(clustered_head *head) {
    grouping *sorted = &head->slot->sorted;
    sh_group_sort(sorted, head->state.groups, head->view.queries);
    for (int64_t j = 0; j < sorted->clusters; j++)
        head->slot->members[j] = sorted->offsets[j + 1] - sorted->offsets[j];
}

static void find_clusters(clustered_head *head, team workers) {
    const shoal_plan *plan = head->call->plan;
    const int64_t n = head->view.queries, N = plan->problem.queries;
    const int32_t *brought = head->call->inputs->clusters;
    int32_t *groups = head->state.groups;
    if (brought) {
        memmove(groups, brought + head->view.head * N, (size_t)n * sizeof *groups);
    } else if (n <= plan->attention.clusters) {
        for (int64_t i = 0; i < n; i++)
            groups[i] = (int32_t)i;
    } else if (head->work->by_keys) {
        const row_view q = head->view.q, k = head->view.k;
        sh_metric_find(&head->slot->metric, head->keys.kernels,
                       (metric_rows){k.data, k.stride, head->view.keys,
                                     head->masks.key_bias, head->masks.key_bias_step},
                       (metric_rows){q.data, q.stride, n, NULL, 0});
        sh_lloyd_run(&head->slot->lloyd, head->keys.kernels, workers, q.data, q.stride, n,
                     head->slot->metric.projection, plan->attention.iterations,
                     plan->attention.seed, groups, NULL);
    } else {
        sh_clustered_hash(head, workers);
        sh_kmeans_run(&head->slot->kmeans, head->keys.kernels, workers,
                      &head->slot->hashes, n, plan->attention.iterations,
                      plan->attention.seed, groups);
    }
    for (int64_t i = n; i < N; i++)
        groups[i] = -1;
    sh_clustered_sort(head);
}

/* ---- Centroids and their attention ------------------------------------------------ */

enum { CLUSTER_TASK = 8 }; /* clusters in one task */

/* What is done for every cluster, on whatever thread. */
typedef struct {
    const clustered_head *head;
    void (*one)(const clustered_head *head, int64_t j, clustered_thread *own);
} cluster_loop;

static void cluster_task(void *shared, int64_t task, int thread) {
    const cluster_loop *loop = shared;
    const clustered_head *head = loop->head;
    const int64_t last = min((task + 1) * CLUSTER_TASK, head->slot->sorted.used);
    for (int64_t j = task * CLUSTER_TASK; j < last; j++)
        loop->one(head, j, &head->work->threads[thread]);
}

static void for_clusters(const clustered_head *head, team workers,
                         void (*one)(const clustered_head *, int64_t,
                                     clustered_thread *)) {
    sh_team_deal(workers, ceil_divide(head->slot->sorted.used, CLUSTER_TASK),
                 cluster_task, &(cluster_loop){head, one});
}

/* Summed in double precision, so that the centroid is the same however its members are
   dealt out. */
static void sum_members(const clustered_head *head, int64_t j, clustered_thread *own) {
    const grouping *sorted = &head->slot->sorted;
    const int dim = head->keys.dim;
    (void)own;
    head->keys.kernels->sum_rows_wide(head->view.q.data, head->view.q.stride,
                                      sorted->order + sorted->offsets[j],
                                      sorted->offsets[j + 1] - sorted->offsets[j], dim,
                                      head->slot->sums + j * dim);
}

void sh_clustered_sum(clustered_head *head, team workers) {
    for_clusters(head, workers, sum_members);
}

static void centre_members(const clustered_head *head, int64_t j, clustered_thread *own) {
    const int64_t dim = head->keys.dim;
    (void)own;
    for (int64_t d = j * dim; d < (j + 1) * dim; d++)
        head->state.centroids[d] =
            (float)(head->slot->sums[d] / (double)max(1, head->slot->members[j]));
}

void sh_clustered_centre(clustered_head *head) {
    for (int64_t j = 0; j < head->slot->sorted.used; j++)
        centre_members(head, j, NULL);
}

static void find_centroid(const clustered_head *head, int64_t j, clustered_thread *own) {
    sum_members(head, j, own);
    centre_members(head, j, own);
}

static void collect(void *context, const query_panel *panel, float *scores, int count,
                    int64_t first) {
    sh_topk_collect(context, scores, panel->width, count, first);
}

static int64_t centroids_per_task(const clustered_head *head) {
    return head->task_panels * head->keys.kernels->panel;
}

/* A score that is too low for the top keys of group j, if a chunk before this one has
   found k keys that are as high. The top keys are the same whether or not it has. */
static float known_floor(const clustered_head *head, int64_t chunk, int64_t j) {
    const softmax_parts *parts = &head->slot->parts;
    int highest = float_order(-INFINITY);
    for (int64_t before = 0; before < chunk; before++) {
        const int order =
            atomic_load_explicit(&parts->floors[before * parts->clusters + j],
                                 memory_order_relaxed);
        highest = order > highest ? order : highest;
    }
    return float_of_order(highest);
}

/* A group that needs no top keys collects no candidates. */
static void start_panel(const clustered_head *head, int64_t chunk, query_panel *panel,
                        topk_lists *lists) {
    sh_dense_start(&head->keys, panel, (row_view){head->state.centroids, head->keys.dim});
    if (!head->work->has_top)
        return;
    float floor[MAX_PANEL];
    for (int i = 0; i < panel->width; i++)
        floor[i] = i >= panel->count || clustered_is_alone(head, panel->first + i)
                       ? INFINITY
                       : known_floor(head, chunk, panel->first + i);
    sh_topk_start(lists, panel->width, floor);
}

/* What a chunk gave a panel: softmax, values and best keys. */
static void keep_part(const clustered_head *head, int64_t chunk, const query_panel *panel,
                      topk_lists *lists) {
    const softmax_parts *parts = &head->slot->parts;
    const int64_t at = chunk * parts->clusters + panel->first;
    const int Dv = head->keys.value_dim;
    memcpy(parts->largest + at, panel->largest, (size_t)panel->count * sizeof(float));
    memcpy(parts->sum + at, panel->sum, (size_t)panel->count * sizeof(float));
    head->keys.kernels->unpack(panel->outputs, panel->count, panel->width, Dv, NULL, NULL,
                               0, parts->values + at * Dv, Dv, NULL);
    if (!head->work->has_top)
        return;
    sh_topk_finish(lists, panel->width);
    for (int i = 0; i < panel->count; i++) {
        parts->counts[at + i] =
            sh_topk_take(lists, i, panel->width, parts->keys + (at + i) * lists->k);
        atomic_store_explicit(&parts->floors[at + i], float_order(lists->floor[i]),
                              memory_order_relaxed);
    }
}

/* The part of `parts` of the next block of keys and values that begins at `first`. */
static void prefetch_next(const clustered_head *head, int64_t first, int64_t end,
                          int part, int parts) {
    const int64_t rows = max(0, min(KEY_BLOCK, end - first));
    const int64_t from = first + rows * part / parts;
    const int64_t count = first + rows * (part + 1) / parts - from;
    const row_view k = head->keys.k, v = head->keys.v;
    prefetch_rows(k.data + from * k.stride, k.stride, NULL, count, head->keys.dim);
    prefetch_rows(v.data + from * v.stride, v.stride, NULL, count, head->keys.value_dim);
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
    const int32_t k = head->work->topk;
    topk_lists lists[PANELS] = {0};
    for (int p = 0; p < panels; p++) {
        if (head->work->has_top) {
            const int64_t lane = (int64_t)p * head->keys.kernels->panel;
            lists[p] = sh_topk_lists(head->keys.kernels, k,
                                     own->candidates + topk_size(k, lane),
                                     own->counts + lane, own->floor + lane);
        }
        start_panel(head, chunk, &own->dense->panels[p], &lists[p]);
    }
    for (int64_t key = start; key < end; key += KEY_BLOCK)
        for (int p = 0; p < panels; p++) {
            prefetch_next(head, key + KEY_BLOCK, end, p, panels);
            sh_dense_stream(&head->keys, key, min(key + KEY_BLOCK, end),
                            &own->dense->panels[p], own->dense->scores,
                            head->work->has_top ? collect : NULL, &lists[p]);
        }
    for (int p = 0; p < panels; p++)
        keep_part(head, chunk, &own->dense->panels[p], &lists[p]);
}

/* A task reads its keys once for all its panels. Threads share out chunks of keys, and
   where those are few, panels. */
void sh_clustered_attend_keys(clustered_head *head, team workers) {
    const int64_t used = head->slot->sorted.used;
    const int64_t chunks = ceil_divide(head->view.keys, head->chunk_keys);
    head->task_panels = PANELS;
    if (chunks < workers.threads)
        head->task_panels = used / head->keys.kernels->panel * chunks / workers.threads;
    head->task_panels = max(1, min(head->task_panels, PANELS));
    for (int64_t i = 0; i < chunks * head->slot->parts.clusters && head->work->has_top;
         i++)
        atomic_init(&head->slot->parts.floors[i], float_order(-INFINITY));
    sh_team_deal(workers, chunks * ceil_divide(used, centroids_per_task(head)),
                 attend_task, head);
    head->slot->parts.count = chunks;
}

/* ---- Merging the chunks ----------------------------------------------------------- */

void sh_clustered_merge_cluster(const shoal_plan *plan, const softmax_parts *parts,
                                int64_t j, clustered_thread *own) {
    const clustered_work *work = plan->work;
    const int64_t C = parts->clusters, Dv = plan->problem.value_dim, k = work->topk;
    float *values = parts->values + j * Dv;
    float largest = parts->largest[j], sum = 0;
    for (int64_t part = 1; part < parts->count; part++)
        largest = fmaxf(largest, parts->largest[part * C + j]);
    for (int64_t part = 0; part < parts->count; part++) {
        const int64_t at = part * C + j;
        const float keep = expf(parts->largest[at] - largest);
        sum += keep * parts->sum[at];
        for (int64_t d = 0; d < Dv; d++)
            values[d] = (part ? values[d] : 0) + keep * parts->values[at * Dv + d];
    }
    parts->largest[j] = largest;
    parts->sum[j] = sum;
    if (!work->has_top)
        return;
    /* The best keys of all parts, in no order. */
    int32_t count = 0;
    for (int64_t part = 0; part < parts->count; part++) {
        const int64_t at = part * C + j;
        const int32_t more = parts->counts[at];
        memcpy(own->candidates + count, parts->keys + at * k,
               sizeof *own->candidates * (size_t)more);
        count += more;
        if (count > 3 * k || part == parts->count - 1)
            count = sh_topk_cut(own->candidates, count, (int32_t)k);
    }
    parts->counts[j] = count;
    memcpy(parts->keys + j * k, own->candidates, sizeof *own->candidates * (size_t)count);
}

static void merge_cluster(const clustered_head *head, int64_t j, clustered_thread *own) {
    if (head->slot->members[j] > 0)
        sh_clustered_merge_cluster(head->call->plan, &head->slot->parts, j, own);
}

void sh_clustered_merge(clustered_head *head, team workers) {
    for_clusters(head, workers, merge_cluster);
}

/* The top keys, best first. */
static void name_top(const clustered_head *head, int64_t j, clustered_thread *own) {
    (void)own;
    if (head->slot->members[j] == 0)
        return;
    int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    uint64_t *list = head->slot->parts.keys + j * head->work->topk;
    const int32_t count = head->slot->parts.counts[j];
    sh_topk_sort(list, count);
    for (int32_t i = 0; i < count; i++)
        keys[i] = candidate_key(list[i]);
}

static void share_cluster(const clustered_head *head, int64_t j, clustered_thread *own) {
    if (head->slot->members[j] == 0)
        return;
    const int64_t Dv = head->keys.value_dim;
    const float sum = head->slot->parts.sum[j];
    const float *values = head->slot->parts.values + j * Dv;
    float *shared = head->state.shared + j * Dv;
    const int hidden = head->keys.masks && sum < 0.5f; /* every key is: see dense.c */
    for (int64_t d = 0; d < Dv; d++)
        shared[d] = hidden ? 0 : values[d] / sum;
    head->state.largest[j] = head->slot->parts.largest[j];
    head->state.inverse[j] = hidden ? 0 : 1 / sum;
    if (head->work->has_top) {
        /* The top keys' weights are taken out of what the group shares and make its
           mass. */
        const row_view v = head->top_v;
        const int32_t *rows = head->top_places + j * head->call->plan->attention.topk;
        const uint64_t *list = head->slot->parts.keys + j * head->work->topk;
        const int32_t count = head->slot->parts.counts[j];
        prefetch_rows(v.data, v.stride, rows, count, Dv);
        double mass = 0;
        for (int32_t i = 0; i < count; i++) {
            own->weights[i] = expf(candidate_score(list[i]) - head->state.largest[j]) *
                              head->state.inverse[j];
            mass += (double)own->weights[i];
        }
        head->keys.kernels->sum_rows(v.data, v.stride, rows, own->weights, count, (int)Dv,
                                     own->top_sum);
        for (int64_t d = 0; d < Dv; d++)
            shared[d] -= own->top_sum[d];
        /* While there are other keys the mass is below 1, whatever rounding made it. */
        head->state.mass[j] = (float)mass;
        if (head->state.mass[j] >= 1)
            head->state.mass[j] = 1 - FLT_EPSILON / 2;
        if (count < head->seen)
            return;
        /* All keys are top keys: nothing is left to share, exactly. */
        head->state.mass[j] = 1;
        memset(shared, 0, (size_t)Dv * sizeof *shared);
    }
}

static void clear_top(const clustered_head *head) {
    const int64_t all = (int64_t)head->slot->sorted.clusters *
                        head->call->plan->attention.topk;
    for (int64_t i = 0; i < all && head->work->has_top; i++)
        head->state.top_keys[i] = -1;
}

void sh_clustered_name_top(clustered_head *head, team workers) {
    clear_top(head);
    if (head->work->has_top && head->seen > 0)
        for_clusters(head, workers, name_top);
}

/* All that follows the pass over the keys for one cluster. */
static void finish_cluster(const clustered_head *head, int64_t j, clustered_thread *own) {
    merge_cluster(head, j, own);
    if (head->work->has_top && head->seen > 0)
        name_top(head, j, own);
    share_cluster(head, j, own);
}

void sh_clustered_share(clustered_head *head, team workers) {
    for_clusters(head, workers, share_cluster);
}

/* ---- The top keys, exactly -------------------------------------------------------- */

enum { MEMBER_TASK = 480 }; /* queries in one task: whole panels of every width */

static void copy_shared(const clustered_head *head, int64_t i) {
    const int64_t Dv = head->keys.value_dim;
    memcpy(head->view.out.data + i * head->view.out.stride,
           head->state.shared + head->state.groups[i] * Dv, (size_t)Dv * sizeof(float));
}

/* Copies rows of keys (best first, ending at k or the first -1) one below the other;
   returns how many. */
static int gather(row_view from, const int32_t *keys, int k, int dim, float *to) {
    int count = 0;
    for (; count < k && keys[count] >= 0; count++)
        memcpy(to + (int64_t)count * dim, from.data + keys[count] * from.stride,
               (size_t)dim * sizeof(float));
    return count;
}

int sh_clustered_gather_top(const clustered_head *head, int64_t j,
                            clustered_thread *own) {
    const int32_t *rows = head->top_places + j * head->call->plan->attention.topk;
    gather(head->top_v, rows, head->work->topk, head->keys.value_dim,
           own->top_value_rows);
    for (int i = 0; head->keys.masks && i < head->work->topk && rows[i] >= 0; i++)
        own->top_bias[i] = sh_masks_key_bias(head->keys.masks, rows[i]);
    return gather(head->top_k, rows, head->work->topk, head->keys.dim, own->top_key_rows);
}

/* Of the centroid's softmax the keys that are not top keys have the part 1 - mass, or all
   of it where it was taken over them alone. */
float sh_clustered_start_top(const clustered_head *head, int64_t j, query_panel *panel) {
    const int per_query = head->work->per_query;
    const int alone = per_query && head->state.others_alone[j];
    const float others = alone ? 1 : 1 - head->state.mass[j];
    const int begun = per_query && !(others <= 0);
    const float sum = begun ? 1 / head->state.inverse[j] : 0;
    for (int i = 0; i < panel->width; i++) {
        panel->largest[i] = begun ? head->state.largest[j] : LOWEST_SCORE;
        panel->sum[i] = others * sum;
    }
    return sum;
}

/* What the other keys have was found by subtraction, to a rounding error of the
   centroid's sum; for query i that error is f_i = (centroid's sum) / (the query's) times
   as large. A group with a member whose f_i is larger than this is done again with its
   other keys summed directly. On real queries hardly any group is. */
enum { MAX_AMPLIFICATION = 32 };

static void find_cancellation(const clustered_head *head, int64_t j, float sum,
                              const query_panel *panel) {
    for (int i = 0; i < panel->count && !head->state.others_alone[j]; i++)
        if (panel->keep[i] * sum > MAX_AMPLIFICATION * panel->sum[i]) {
            atomic_store_explicit(&head->slot->cancelled[j], 1, memory_order_relaxed);
            return;
        }
}

/* Members first .. last - 1 of the sorted order, all of group j, against its top keys. */
static void improve_members(const clustered_head *head, int64_t j, int64_t first,
                            int64_t last, clustered_thread *own) {
    const kernel_table *kernels = head->keys.kernels;
    const int dim = head->keys.dim, Dv = head->keys.value_dim;
    const int per_query = head->work->per_query;
    const float *shared = head->state.shared + j * Dv;
    const int32_t *order = head->slot->sorted.order;
    const int k = sh_clustered_gather_top(head, j, own);
    for (int64_t at = first; at < last;) {
        query_panel *panel = &own->dense->panels[0];
        sh_dense_cut(own->dense, kernels, at, min(at + kernels->panel, last));
        kernels->pack(head->view.q.data, head->view.q.stride, order + at, panel->count,
                      panel->width, dim, head->keys.scale, panel->queries);
        at += panel->count;
        prefetch_rows(head->view.q.data, head->view.q.stride, order + at,
                      min(kernels->panel, head->view.queries - at), dim);
        prefetch_rows_to_write(head->view.out.data, head->view.out.stride,
                               order + panel->first, panel->count, Dv);
        kernels->score(panel->queries, panel->width, dim, own->top_key_rows, dim, k,
                       own->weights);
        if (head->keys.masks)
            kernels->add_to_rows(own->top_bias, 1, panel->width, k, own->weights);
        const float sum = sh_clustered_start_top(head, j, panel);
        memset(panel->outputs, 0, sizeof(float) * (size_t)(Dv * panel->width));
        for (int d = 0; d < Dv && per_query; d++)
            for (int i = 0; i < panel->width; i++)
                panel->outputs[d * panel->width + i] = sum * shared[d];
        kernels->softmax_step(own->weights, panel->width, k, panel->largest, panel->sum,
                              panel->keep);
        if (per_query)
            find_cancellation(head, j, sum, panel);
        kernels->mix(own->weights, panel->width, own->top_value_rows, Dv, k, Dv,
                     panel->keep, panel->outputs);
        for (int i = 0; i < panel->width; i++)
            panel->inverse[i] = (per_query ? 1 : head->state.mass[j]) / panel->sum[i];
        kernels->unpack(panel->outputs, panel->count, panel->width, Dv, panel->inverse,
                        per_query ? NULL : shared, 0, head->view.out.data,
                        head->view.out.stride, order + panel->first);
    }
}

static void improve_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    const int32_t *offsets = head->slot->sorted.offsets;
    const int64_t last = min((task + 1) * MEMBER_TASK, head->view.queries);
    int64_t at = task * MEMBER_TASK;
    for (int64_t j = head->state.groups[head->slot->sorted.order[at]]; at < last; j++) {
        int64_t end = min(offsets[j + 1], last);
        if (end <= at)
            continue;
        if (clustered_is_alone(head, j))
            copy_shared(head, head->slot->sorted.order[at]);
        else if (clustered_sees_nothing(head, j))
            for (int64_t i = at; i < end; i++)
                copy_shared(head, head->slot->sorted.order[i]);
        else
            improve_members(head, j, at, end, &head->work->threads[thread]);
        at = end;
    }
}

/* ---- The other keys alone --------------------------------------------------------- */

top_walk sh_clustered_top_walk(const clustered_head *head, int64_t j,
                               clustered_thread *own) {
    const int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    uint64_t *ascending = own->top_ascending;
    int32_t count = 0;
    for (int32_t i = 0; i < head->work->topk && keys[i] >= 0; i++)
        if (keys[i] >= head->first_key && keys[i] - head->first_key < head->view.keys)
            ascending[count++] = ~(uint64_t)(keys[i] - head->first_key);
    sh_topk_sort(ascending, count); /* the largest first, and so the smallest key */
    for (int32_t i = 0; i < count; i++)
        ascending[i] = ~ascending[i];
    ascending[count] = UINT64_MAX;
    return (top_walk){ascending};
}

/* on_scores of one centroid: top keys get a score that weighs nothing beside another
   key's. Not -inf: a block may hold top keys alone. */
static void hide_top(void *context, const query_panel *panel, float *scores, int count,
                     int64_t first) {
    for (int l = 0; l < count; l++)
        if (top_walk_has(context, first + l))
            scores[l * panel->width] = -FLT_MAX / 2;
}

/* Its part of the softmax of group j's centroid over the other keys, the first panel. */
void sh_clustered_others(const clustered_head *head, int64_t j, clustered_thread *own) {
    query_panel *panel = &own->dense->panels[0];
    top_walk walk = sh_clustered_top_walk(head, j, own);
    sh_dense_cut(own->dense, head->keys.kernels, j, j + 1);
    sh_dense_start(&head->keys, panel, (row_view){head->state.centroids, head->keys.dim});
    sh_dense_stream(&head->keys, 0, head->view.keys, panel, own->dense->scores, hide_top,
                    &walk);
}

void sh_clustered_share_others(const clustered_head *head, int64_t j, float largest,
                               float sum, const float *values, clustered_thread *own) {
    const int32_t *offsets = head->slot->sorted.offsets;
    const int Dv = head->keys.value_dim;
    for (int d = 0; d < Dv; d++)
        head->state.shared[j * Dv + d] = values[d] / sum;
    head->state.largest[j] = largest;
    head->state.inverse[j] = 1 / sum;
    head->state.others_alone[j] = 1;
    improve_members(head, j, offsets[j], offsets[j + 1], own);
}

/* The softmax over its other keys alone, instead of what the top keys leave of the
   softmax over all. */
static void cancelled_task(void *shared, int64_t j, int thread) {
    const clustered_head *head = shared;
    clustered_thread *own = &head->work->threads[thread];
    const query_panel *panel = &own->dense->panels[0];
    if (!sh_clustered_is_cancelled(head, j))
        return;
    sh_clustered_others(head, j, own);
    /* improve_members has the panel for others. */
    const float largest = panel->largest[0], sum = panel->sum[0];
    const int Dv = head->keys.value_dim;
    for (int d = 0; d < Dv; d++)
        own->top_sum[d] = panel->outputs[d * panel->width];
    sh_clustered_share_others(head, j, largest, sum, own->top_sum, own);
}

/* ---- Outputs ---------------------------------------------------------------------- */

/* clustered: every member gets what its group shares. */
static void copy_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    (void)thread;
    for (int64_t i = task * MEMBER_TASK;
         i < min((task + 1) * MEMBER_TASK, head->view.queries); i++)
        copy_shared(head, i);
}

void sh_clustered_write(clustered_head *head, team workers) {
    const int64_t used = head->slot->sorted.used;
    for (int64_t j = 0; j < used && head->work->per_query; j++) {
        atomic_init(&head->slot->cancelled[j], 0);
        head->state.others_alone[j] = 0;
    }
    sh_team_deal(workers, ceil_divide(head->view.queries, MEMBER_TASK),
                 head->work->has_top ? improve_task : copy_task, head);
    if (head->work->per_query && !head->call->plan->over)
        sh_team_deal(workers, used, cancelled_task, head);
}

static void forward_head(const attention_call *call, int64_t unit, int slot,
                         team workers) {
    clustered_head head = sh_clustered_head_of(call, sh_view_at(call, unit), slot);
    sh_clustered_set_masks(&head);
    const int64_t n = head.view.queries, S = head.view.keys;
    sh_clear_rows(head.view.out, S > 0 ? n : 0, head.view.query_rows,
                  call->plan->problem.value_dim);
    find_clusters(&head, workers);
    if (n > 0 && S > 0) {
        for_clusters(&head, workers, find_centroid);
        sh_clustered_attend_keys(&head, workers);
    }
    clear_top(&head);
    if (n == 0 || S == 0)
        return;
    for_clusters(&head, workers, finish_cluster);
    sh_clustered_write(&head, workers);
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double D = (double)problem->dim, both = D + (double)problem->value_dim;
    const double C = fmin(N, attention->clusters), k = fmin(S, attention->topk);
    const int by_keys = attention->clustering == SHOAL_CLUSTERING_KEYS;
    return (operation_count){.once = 2 * N * D *
                                     (by_keys ? attention->rank : attention->bits),
                             .dense = 2 * (C * S + N * k) * both};
}

/* What the kinds share; i-clustered has every option, the others fix some. */
#define CLUSTERED_FUNCTIONS                                                              \
    .operations = operations, .place = place, .forward_head = forward_head,              \
    .backward_head = sh_clustered_backward, .forward_over = sh_distributed_forward,      \
    .backward_over = sh_distributed_backward, .groups = groups_in,                       \
    .top_keys = top_keys_in

const attention_kind sh_clustered_kind =
    {.info = {.name = "clustered-C",
              .number = "clusters",
              .cost = "N D B + N C L + C S (D + Dv)",
              .summary = "each cluster of queries attends once",
              .defaults = {.kind = SHOAL_KIND_CLUSTERED,
                           .clusters = 100,
                           .bits = 63,
                           .rank = 16,
                           .iterations = 10,
                           .seed = 1},
              .has_clusters = 1,
              .has_seed = 1},
     .options = OPTION_GROUPS | OPTION_BITS | OPTION_RANK | OPTION_ITERATIONS,
     CLUSTERED_FUNCTIONS};

const attention_kind sh_i_clustered_kind =
    {.info =
         {.name = "i-clustered-C",
          .number = "clusters",
          .cost = "N D B + N C L + (C S + N k) (D + Dv)",
          .summary =
              "clustered, with exact scores of each cluster's topk keys for every query",
          .defaults = {.kind = SHOAL_KIND_I_CLUSTERED,
                       .clusters = 100,
                       .topk = 32,
                       .bits = 63,
                       .rank = 16,
                       .iterations = 10,
                       .seed = 1},
          .has_clusters = 1,
          .has_top_keys = 1,
          .has_seed = 1},
     .options = OPTION_TOPK | OPTION_GROUPS | OPTION_NORMALISER | OPTION_BITS |
                OPTION_RANK | OPTION_ITERATIONS,
     CLUSTERED_FUNCTIONS};

/* i-clustered with groups=keys,normaliser=query and defaults of its own. */
const attention_kind sh_q_clustered_kind = {
    .info = {.name = "q-clustered-C",
             .number = "clusters",
             .cost = "N r (D + C) + (C S + N k) (D + Dv)",
             .summary = "queries clustered in the keys' metric; each cluster's topk keys "
                        "exactly, one softmax per query",
             .defaults = {.kind = SHOAL_KIND_Q_CLUSTERED,
                          .clusters = 100,
                          .topk = 64,
                          .clustering = SHOAL_CLUSTERING_KEYS,
                          .normaliser = SHOAL_NORMALISER_QUERY,
                          .rank = 16,
                          .iterations = 6,
                          .seed = 1},
             .has_clusters = 1,
             .has_top_keys = 1,
             .has_seed = 1},
    .options = OPTION_TOPK | OPTION_RANK | OPTION_ITERATIONS,
    CLUSTERED_FUNCTIONS};
