/* The outputs of the clustered kinds, once every group knows what its members share. */
#include <math.h>
#include <string.h>

#include "attention/clustered.h"

enum { MEMBER_TASK = 480 }; /* queries in one task: whole panels of every width */

static void copy_shared(const clustered_head *head, int64_t i) {
    const int64_t Dv = head->keys.value_dim;
    memcpy(head->out.data + i * head->out.stride,
           head->state.shared + head->state.groups[i] * Dv, (size_t)Dv * sizeof(float));
}

/* clustered: every member gets what its group shares. */
static void copy_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    (void)thread;
    for (int64_t i = task * MEMBER_TASK;
         i < min((task + 1) * MEMBER_TASK, head->view.queries); i++)
        copy_shared(head, i);
}

/* In the softmax of a centroid, with top and sum, the keys that are not top keys have the
   share 1 - mass. Returns that sum, which turns the group's shares into such weights; 0
   when there is nothing to begin with. */
float sh_clustered_start_top(const clustered_head *head, int64_t j, query_panel *panel) {
    const float left = 1 - head->state.mass[j];
    const int begun = head->work->per_query && !(left <= 0);
    const float sum = begun ? 1 / head->state.inverse[j] : 0;
    for (int i = 0; i < panel->width; i++) {
        panel->top[i] = begun ? head->state.top[j] : LOWEST_SCORE;
        panel->sum[i] = left * sum;
    }
    return sum;
}

/* What is left for the other keys was found by subtraction, to a rounding error of the
   centroid's sum; for query i that error is f_i = (centroid's sum) / (the query's) times
   as large. A group with such members is done again with its other keys summed directly.
   Hardly any group is, on real queries, so nothing is looked up beforehand. */
enum { STRAIN = 32 };

static void watch_strain(const clustered_head *head, int64_t j, float others,
                         const query_panel *panel) {
    for (int i = 0; i < panel->count; i++)
        if (panel->keep[i] * others > STRAIN * panel->sum[i] &&
            !sh_clustered_rest_is_summed(head, j)) {
            atomic_store_explicit(&head->slot->strained[j], 1, memory_order_relaxed);
            return;
        }
}

/* Members first .. last - 1 of the sorted order, all of group j, against its top keys. */
static void improve_members(const clustered_head *head, int64_t j, int64_t first,
                            int64_t last, clustered_thread *own) {
    const kernel_table *run = head->keys.kernels;
    const int dim = head->keys.dim, Dv = head->keys.value_dim;
    const int per_query = head->work->per_query;
    const float *shared = head->state.shared + j * Dv;
    const int32_t *order = head->slot->sorted.order;
    const int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    int k = sh_clustered_gather(head->view.k, keys, head->work->topk, dim, own->top_k);
    sh_clustered_gather(head->view.v, keys, head->work->topk, Dv, own->top_v);
    for (int64_t at = first; at < last;) {
        query_panel *panel = &own->dense->panels[0];
        sh_dense_cut(own->dense, run, at, min(at + run->panel, last));
        run->pack(head->view.q.data, head->view.q.stride, order + at, panel->count,
                  panel->width, dim, head->keys.scale, panel->queries);
        at += panel->count;
        prefetch_rows(head->view.q.data, head->view.q.stride, order + at,
                      min(run->panel, head->view.queries - at), dim);
        prefetch_rows_to_write(head->out.data, head->out.stride, order + panel->first,
                               panel->count, Dv);
        run->score(panel->queries, panel->width, dim, own->top_k, dim, k, own->weights);
        const float others = sh_clustered_start_top(head, j, panel);
        memset(panel->outputs, 0, sizeof(float) * (size_t)(Dv * panel->width));
        for (int d = 0; d < Dv && per_query; d++)
            for (int i = 0; i < panel->width; i++)
                panel->outputs[d * panel->width + i] = others * shared[d];
        run->softmax_step(own->weights, panel->width, k, panel->top, panel->sum,
                          panel->keep);
        if (per_query)
            watch_strain(head, j, others, panel);
        run->mix(own->weights, panel->width, own->top_v, Dv, k, Dv, panel->keep,
                 panel->outputs);
        for (int i = 0; i < panel->width; i++)
            panel->sum[i] = (per_query ? 1 : head->state.mass[j]) / panel->sum[i];
        run->unpack(panel->outputs, panel->count, panel->width, Dv, panel->sum,
                    per_query ? NULL : shared, 0, head->out.data, head->out.stride,
                    order + panel->first);
    }
}

/* The next group's top keys and values lie anywhere: ask for them in time. */
static void prefetch_top(const clustered_head *head, int64_t j) {
    const int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    int64_t count = 0;
    while (count < head->work->topk && keys[count] >= 0)
        count++;
    prefetch_rows(head->view.k.data, head->view.k.stride, keys, count, head->keys.dim);
    prefetch_rows(head->view.v.data, head->view.v.stride, keys, count,
                  head->keys.value_dim);
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
        if (end < last)
            prefetch_top(head, j + 1);
        if (clustered_is_alone(head, j))
            copy_shared(head, head->slot->sorted.order[at]);
        else
            improve_members(head, j, at, end, &head->work->threads[thread]);
        at = end;
    }
}

static void strained_task(void *shared, int64_t j, int thread) {
    const clustered_head *head = shared;
    const int32_t *offsets = head->slot->sorted.offsets;
    clustered_thread *own = &head->work->threads[thread];
    if (!atomic_load_explicit(&head->slot->strained[j], memory_order_relaxed))
        return;
    sh_clustered_sum_rest(head, j, own);
    improve_members(head, j, offsets[j], offsets[j + 1], own);
}

void sh_clustered_outputs(clustered_head *head, team workers) {
    const int64_t used = head->slot->sorted.used;
    for (int64_t j = 0; j < used && head->work->per_query; j++)
        atomic_init(&head->slot->strained[j], 0);
    sh_team_run(workers, ceil_divide(head->view.queries, MEMBER_TASK),
                head->work->improved ? improve_task : copy_task, head);
    if (head->work->per_query)
        sh_team_run(workers, used, strained_task, head);
}
