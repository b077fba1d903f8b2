/* The other keys of one group, summed on their own: normaliser=query, where the top keys
   have almost all of the centroid's weight and a member leans on the rest. Such groups are
   few. The group's shared output, top and inverse then belong to the other keys' softmax,
   and its mass is 0. */
#include <float.h>
#include <math.h>

#include "attention/clustered.h"
#include "cluster/topk.h"

int sh_clustered_rest_is_summed(const clustered_head *head, int64_t j) {
    return head->work->per_query && !clustered_is_alone(head, j) &&
           head->state.mass[j] == 0;
}

/* The top keys of the group in increasing order, so that a walk over all keys can skip
   them; ends with a key that no head has. */
typedef struct {
    uint64_t *next; /* into a thread's candidates */
} top_walk;

static top_walk walk_of(const clustered_head *head, int64_t j, clustered_thread *own) {
    const int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    int32_t count = 0;
    for (; count < head->work->topk && keys[count] >= 0; count++)
        own->candidates[count] = ~(uint64_t)keys[count];
    sh_topk_sort(own->candidates, count); /* the smallest key first */
    for (int32_t i = 0; i < count; i++)
        own->candidates[i] = ~own->candidates[i];
    own->candidates[count] = UINT64_MAX;
    return (top_walk){own->candidates};
}

/* Is l, greater than every key asked about before, a top key? */
static int skips(top_walk *walk, int64_t l) {
    walk->next += *walk->next < (uint64_t)l;
    return *walk->next == (uint64_t)l;
}

static double score_of(const clustered_head *head, int64_t j, int64_t l) {
    const float *centroid = head->state.centroids + j * head->keys.dim;
    const float *key = head->view.k.data + l * head->view.k.stride;
    double sum = 0;
    for (int d = 0; d < head->keys.dim; d++)
        sum += (double)centroid[d] * (double)key[d];
    return sum * (double)head->keys.scale;
}

/* Top keys get a score that any other key's makes nothing of. Not -inf: a block may hold
   top keys alone. */
static void hide_top(void *seer, const query_panel *panel, float *scores, int count,
                     int64_t first) {
    top_walk *walk = seer;
    for (int l = 0; l < count; l++)
        if (skips(walk, first + l))
            scores[l * panel->width] = -FLT_MAX / 2;
}

void sh_clustered_sum_rest(const clustered_head *head, int64_t j, clustered_thread *own) {
    const int Dv = head->keys.value_dim;
    query_panel *panel = &own->dense->panels[0];
    top_walk walk = walk_of(head, j, own);
    sh_dense_cut(own->dense, head->keys.kernels, j, j + 1);
    sh_dense_start(&head->keys, panel, (row_view){head->state.centroids, head->keys.dim});
    sh_dense_stream(&head->keys, 0, head->view.keys, panel, own->dense->scores, hide_top,
                    &walk);
    for (int d = 0; d < Dv; d++)
        head->state.shared[j * Dv + d] = panel->outputs[d * panel->width] / panel->sum[0];
    head->state.top[j] = panel->top[0];
    head->state.inverse[j] = 1 / panel->sum[0];
    head->state.mass[j] = 0;
}

void sh_clustered_rest_backward(const clustered_head *head, int64_t j, float delta,
                                clustered_thread *own) {
    const int dim = head->keys.dim, Dv = head->keys.value_dim;
    const float *centroid = head->state.centroids + j * dim;
    const float *grad_shared = head->slot->grad_shared + j * Dv;
    float *grad_centroid = head->slot->grad_centroids + j * dim;
    top_walk walk = walk_of(head, j, own);
    for (int64_t l = 0; l < head->view.keys; l++) {
        if (skips(&walk, l))
            continue;
        const float *key = head->view.k.data + l * head->view.k.stride;
        const float *value = head->view.v.data + l * head->view.v.stride;
        double slope = 0;
        for (int d = 0; d < Dv; d++)
            slope += (double)grad_shared[d] * (double)value[d];
        const double weight = exp(score_of(head, j, l) - (double)head->state.top[j]) *
                              (double)head->state.inverse[j];
        const float dscore =
            (float)(weight * (slope - (double)delta) * (double)head->keys.scale);
        for (int d = 0; d < dim; d++)
            grad_centroid[d] += dscore * key[d];
        for (int d = 0; d < dim && head->dk.data; d++)
            head->dk.data[l * head->dk.stride + d] += dscore * centroid[d];
        for (int d = 0; d < Dv && head->dv.data; d++)
            head->dv.data[l * head->dv.stride + d] += (float)weight * grad_shared[d];
    }
}
