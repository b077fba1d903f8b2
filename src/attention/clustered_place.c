/* Memory of the clustered kinds, and a head's view of it. */
#include <string.h>

#include "attention/clustered_place.h"
#include "cluster/topk.h"

/* Keys are cut into at most MAX_CHUNKS chunks, so that one head of one sequence keeps many
   threads busy. They are long where each begins its list of best keys anew. */
enum { MAX_CHUNKS = 16, LEAST_CHUNK = 2048, LEAST_CHUNK_WITH_TOP = 16384 };

static int64_t chunk_length(const shoal_plan *plan, int64_t keys) {
    int64_t even = ceil_divide(ceil_divide(keys, MAX_CHUNKS), KEY_BLOCK) * KEY_BLOCK;
    int64_t least_length = plan->attention.kind == SHOAL_CLUSTERED ? LEAST_CHUNK
                                                                   : LEAST_CHUNK_WITH_TOP;
    return even > least_length ? even : least_length;
}

/* The centroids' softmax of `heads` heads. */
static void place_softmax(clustered_state *state, const shoal_plan *plan, int64_t heads,
                          block_layout *place) {
    const int64_t groups = sh_mul_checked(heads, plan->attention.clusters);
    state->centroids =
        sh_reserve(place, sh_mul_checked(groups, plan->problem.dim), sizeof(float));
    state->shared =
        sh_reserve(place, sh_mul_checked(groups, plan->problem.value_dim), sizeof(float));
    state->top = sh_reserve(place, groups, sizeof(float));
    state->inverse = sh_reserve(place, groups, sizeof(float));
    if (plan->attention.kind != SHOAL_CLUSTERED)
        state->mass = sh_reserve(place, groups, sizeof(float));
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
    if (plan->attention.kind != SHOAL_CLUSTERED)
        state.top_keys =
            sh_reserve(place,
                       sh_mul_checked(sh_mul_checked(heads, plan->attention.clusters),
                                      plan->attention.topk),
                       sizeof(int32_t));
    return state;
}

/* What the grouping needs for one head. */
static void place_groups(clustered_slot *slot, const shoal_plan *plan,
                         const clustered_work *own, block_layout *work) {
    const int64_t N = plan->problem.queries;
    const int C = plan->attention.clusters, dim = (int)plan->problem.dim;
    const int rank = (int)min(plan->attention.rank, dim);
    if (own->by_keys) {
        sh_metric_place(&slot->metric, plan->kernels, dim, rank, work);
        sh_lloyd_place(&slot->lloyd, plan->kernels, C, dim, rank, N, work);
        slot->lloyd.threads = own->lloyd;
        return;
    }
    slot->hashes.bits = plan->attention.bits;
    slot->hashes.words = hash_words(plan->attention.bits);
    slot->hashes.planes = sh_reserve(work, hash_array_size(N, plan->attention.bits), 1);
    sh_kmeans_place(&slot->kmeans, C, plan->attention.bits, N, work);
    slot->kmeans.tally = own->tallies;
}

static void place_slot(clustered_slot *slot, const shoal_plan *plan,
                       const clustered_work *own, block_layout *work) {
    const int64_t N = plan->problem.queries, S = plan->problem.keys;
    const int64_t C = plan->attention.clusters;
    const int64_t parts = ceil_divide(S, chunk_length(plan, S)) * C;
    place_groups(slot, plan, own, work);
    slot->sorted.clusters = (int32_t)C;
    slot->sorted.offsets = sh_reserve(work, C + 1, sizeof(int32_t));
    slot->sorted.order = sh_reserve(work, N, sizeof(int32_t));
    slot->part_top = sh_reserve(work, parts, sizeof(float));
    slot->part_sum = sh_reserve(work, parts, sizeof(float));
    slot->part_values = sh_reserve(work, parts * plan->problem.value_dim, sizeof(float));
    if (own->improved) {
        slot->part_keys = sh_reserve(work, parts * own->topk, sizeof(uint64_t));
        slot->part_counts = sh_reserve(work, parts, sizeof(int32_t));
    }
    if (own->per_query)
        slot->strained = sh_reserve(work, C, sizeof(atomic_int));
    if (!plan->with_backward) {
        place_softmax(&slot->softmax, plan, 1, work);
        return;
    }
    slot->grad_shared = sh_reserve(work, C * plan->problem.value_dim, sizeof(float));
    slot->grad_centroids = sh_reserve(work, C * plan->problem.dim, sizeof(float));
    slot->delta = sh_reserve(work, C, sizeof(float));
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
    if (!own->improved)
        return;
    thread->candidates =
        sh_reserve(work, PANELS * width * own->capacity, sizeof(uint64_t));
    thread->counts = sh_reserve(work, PANELS * width, sizeof(int32_t));
    thread->floor = sh_reserve(work, PANELS * width, sizeof(float));
    thread->top_k = sh_reserve(work, k * D, sizeof(float));
    thread->top_v = sh_reserve(work, k * Dv, sizeof(float));
    thread->weights = sh_reserve(work, k * width, sizeof(float));
    if (!plan->with_backward)
        return;
    thread->scores = sh_reserve(work, k * width, sizeof(float));
    thread->slopes = sh_reserve(work, k * width, sizeof(float));
    thread->member_q = sh_reserve(work, width * D, sizeof(float));
    thread->member_dout = sh_reserve(work, width * Dv, sizeof(float));
    thread->grad_top_k = sh_reserve(work, k * D, sizeof(float));
    thread->grad_top_v = sh_reserve(work, k * Dv, sizeof(float));
}

/* What the grouping needs for each thread. */
static void place_group_threads(clustered_work *own, const shoal_plan *plan,
                                block_layout *work) {
    const int C = plan->attention.clusters, bits = plan->attention.bits;
    const int dim = (int)plan->problem.dim, rank = (int)min(plan->attention.rank, dim);
    if (own->by_keys)
        own->lloyd = sh_reserve(work, plan->threads, sizeof *own->lloyd);
    else
        own->tallies = sh_reserve(work, plan->threads, sizeof *own->tallies);
    for (int t = 0; t < plan->threads; t++) {
        if (own->by_keys)
            sh_lloyd_place_thread(own->lloyd ? &own->lloyd[t] : &(lloyd_thread){0},
                                  plan->kernels, dim, rank, work);
        else
            sh_kmeans_place_tally(own->tallies ? &own->tallies[t] : &(kmeans_tally){0}, C,
                                  bits, work);
    }
    if (own->by_keys)
        return;
    own->directions = sh_reserve(work, (int64_t)bits * dim, sizeof(float));
    if (own->directions)
        sh_hash_directions(plan->attention.seed, bits, dim, own->directions);
}

void sh_clustered_place(shoal_plan *plan, block_layout *work, block_layout *state) {
    const shoal_problem *problem = &plan->problem;
    clustered_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    plan->work = own;
    own = own ? own : &measured;
    *own = (clustered_work){0};
    own->improved = plan->attention.kind != SHOAL_CLUSTERED;
    own->by_keys = plan->attention.groups == SHOAL_GROUPS_KEYS;
    own->per_query = plan->attention.normaliser == SHOAL_NORMALISER_QUERY;
    own->topk = (int32_t)min(plan->attention.topk, problem->keys);
    own->capacity = topk_capacity(own->topk, KEY_BLOCK);
    place_group_threads(own, plan, work);
    own->threads = sh_reserve(work, plan->threads, sizeof *own->threads);
    own->dense = sh_reserve(work, plan->threads, sizeof *own->dense);
    for (int t = 0; t < plan->threads; t++) {
        sh_dense_place(own->dense ? &own->dense[t] : &(dense_scratch){0}, plan, work);
        if (own->threads)
            own->threads[t].dense = &own->dense[t];
        place_thread(own->threads ? &own->threads[t] : &(clustered_thread){0}, plan, own,
                     work);
    }
    int slots = sh_unit_slots(plan->threads, problem->batch * problem->heads);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int s = 0; s < slots; s++)
        place_slot(own->slots ? &own->slots[s] : &(clustered_slot){0}, plan, own, work);
    state_at(plan, state);
}

void sh_clustered_use_topk(shoal_plan *plan, int32_t topk) {
    clustered_work *own = plan->work;
    own->topk = (int32_t)min(topk, plan->problem.keys);
    own->capacity = topk_capacity(own->topk, KEY_BLOCK);
}

const int32_t *sh_clustered_groups(const shoal_plan *plan, const void *state) {
    return state_at(plan, &(block_layout){.base = (char *)state}).groups;
}

const int32_t *sh_clustered_top_keys(const shoal_plan *plan, const void *state) {
    return state_at(plan, &(block_layout){.base = (char *)state}).top_keys;
}

clustered_head sh_clustered_head_of(const attention_call *call, int64_t b, int64_t h,
                                    int slot) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const int64_t C = plan->attention.clusters;
    clustered_head head = {.call = call,
                           .work = plan->work,
                           .view = sh_view_of(call, b, h)};
    const int64_t at = head.view.head;
    head.slot = &head.work->slots[slot];
    head.keys = sh_dense_keys_of(plan, &head.view);
    head.chunk_keys = chunk_length(plan, head.view.keys);
    const clustered_state all = state_at(plan, &(block_layout){.base = call->state});
    head.state = head.slot->softmax;
    if (plan->with_backward) {
        head.state.centroids = all.centroids + at * C * problem->dim;
        head.state.shared = all.shared + at * C * problem->value_dim;
        head.state.top = all.top + at * C;
        head.state.inverse = all.inverse + at * C;
        head.state.mass = head.work->improved ? all.mass + at * C : NULL;
    }
    head.state.groups = all.groups + at * problem->queries;
    if (head.work->improved)
        head.state.top_keys = all.top_keys + at * C * plan->attention.topk;
    return head;
}

int sh_clustered_gather(row_view from, const int32_t *keys, int k, int dim, float *to) {
    int count = 0;
    for (; count < k && keys[count] >= 0; count++)
        memcpy(to + (int64_t)count * dim, from.data + keys[count] * from.stride,
               (size_t)dim * sizeof(float));
    return count;
}
