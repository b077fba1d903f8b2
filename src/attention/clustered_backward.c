/* Backward of the clustered kinds. Groups and top keys are constants.
 *
 * For group j with members i, G_j is the sum of their output gradients.
 * clustered: what the group shares has gradient G_j; it goes through the dense softmax of
 * the centroids to K, V and the centroid, and from there to the members, divided by the
 * group's size.
 * i-clustered: with p_i the softmax over the top keys T alone and m_j the mass,
 *     slope_il = dout_i . v_l            (l in T)
 *     mean_i   = sum over T of p_il slope_il
 *     dm_j     = sum over i of mean_i
 *     dscore_il = m_j p_il (slope_il - mean_i),   dv_l += m_j p_il dout_i
 * and the centroids' weight a_l has gradient dm_j for l in T, G_j . v_l elsewhere. The
 * dense pass treats every key as one of the others; what it gets wrong on T is put right
 * here, key by key, since T is small.
 * normaliser=query: one softmax over T and the others, whose weights are the centroid's
 * times f_i = (sum of the centroid's exponentials) / (sum of query i's). With
 * mean_i = dout_i . out_i, the top part is as above with m_j = 1; the others see
 * G_j = sum of f_i dout_i, and delta_j = sum of f_i mean_i takes the place of dm_j. */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attention/clustered.h"

static bool has_others_alone(const clustered_head *head, int64_t j) {
    return head->work->per_query && head->state.others_alone[j];
}

/* Members' rows one below the other, for products that run over members. */
static void gather_members(row_view from, const int32_t *order, int count, int dim,
                           float *to) {
    for (int i = 0; i < count; i++)
        memcpy(to + (int64_t)i * dim, from.data + order[i] * from.stride,
               (size_t)dim * sizeof *to);
}

/* normaliser=cluster: the mean slope of every member; returns their sum, part of dm_j. */
static double cluster_means(const clustered_head *head, int k, clustered_thread *own) {
    query_panel *panel = &own->dense->panels[0];
    double sum = 0;
    head->keys.kernels->dot_columns(own->weights, own->slopes, panel->width, k,
                                    panel->delta);
    for (int i = 0; i < panel->width; i++) {
        panel->delta[i] *= panel->inverse[i];
        sum += i < panel->count ? (double)panel->delta[i] : 0;
    }
    return sum;
}

/* normaliser=query: the mean slope of every member, and its weight f_i in what the group
   shares, added to G_j; returns the part of delta_j. */
static double query_means(const clustered_head *head, int64_t j, int64_t first,
                          float factor, clustered_thread *own) {
    query_panel *panel = &own->dense->panels[0];
    const int Dv = head->keys.value_dim;
    const int32_t *members = head->slot->sorted.order + first;
    double sum = 0;
    for (int i = 0; i < panel->width; i++) {
        panel->keep[i] *= factor * panel->inverse[i];
        panel->delta[i] = 0;
        if (i >= panel->count)
            continue;
        panel->delta[i] =
            ordered_dot(own->member_dout + (int64_t)i * Dv,
                        head->view.out.data + members[i] * head->view.out.stride, Dv);
        sum += (double)panel->keep[i] * (double)panel->delta[i];
    }
    head->keys.kernels->spread(panel->keep, panel->width, panel->count, own->member_dout,
                               Dv, Dv, 1, head->slot->grad_shared + j * Dv, Dv);
    return sum;
}

/* One panel of members against the top keys: writes their dq, adds to the gradients of
   the top keys' rows; returns its part of dm_j, or of delta_j. */
static double top_panel(const clustered_head *head, int64_t j, int k, int64_t first,
                        clustered_thread *own) {
    const kernel_table *kernels = head->keys.kernels;
    const int dim = head->keys.dim, Dv = head->keys.value_dim;
    const int32_t *members = head->slot->sorted.order + first;
    const float mass = head->work->per_query ? 1 : head->state.mass[j];
    query_panel *panel = &own->dense->panels[0];
    const int width = panel->width;
    gather_members(head->view.q, members, panel->count, dim, own->member_q);
    gather_members(head->view.dout, members, panel->count, Dv, own->member_dout);
    kernels->pack(own->member_q, dim, NULL, panel->count, width, dim, head->keys.scale,
                  panel->queries);
    kernels->pack(own->member_dout, Dv, NULL, panel->count, width, Dv, 1,
                  panel->grad_out);
    kernels->score(panel->queries, width, dim, own->top_key_rows, dim, k, own->scores);
    kernels->score(panel->grad_out, width, Dv, own->top_value_rows, Dv, k, own->slopes);
    if (head->keys.masks)
        kernels->add_to_rows(own->top_bias, 1, width, k, own->scores);
    const float sum = sh_clustered_start_top(head, j, panel);
    memcpy(own->weights, own->scores, sizeof(float) * (size_t)(k * width));
    kernels->softmax_step(own->weights, width, k, panel->largest, panel->sum,
                          panel->keep);
    for (int i = 0; i < width; i++)
        panel->inverse[i] = 1 / panel->sum[i];
    double gradient = head->work->per_query ? query_means(head, j, first, sum, own)
                                            : cluster_means(head, k, own);
    kernels->softmax_slope(own->scores, own->slopes, width, k, panel->largest,
                           panel->inverse, panel->delta, mass * head->keys.scale);
    if (head->view.dq.data) {
        memset(panel->grad_q, 0, sizeof(float) * (size_t)(dim * width));
        kernels->mix(own->slopes, width, own->top_key_rows, dim, k, dim, NULL,
                     panel->grad_q);
        kernels->unpack(panel->grad_q, panel->count, width, dim, NULL, NULL, 0,
                        head->view.dq.data, head->view.dq.stride, members);
    }
    kernels->spread(own->slopes, width, panel->count, own->member_q, dim, dim, k,
                    own->grad_top_keys, dim);
    const float by = 1 / head->keys.scale;
    if (head->masks.dkey_bias)
        kernels->spread(own->slopes, width, panel->count, &by, 0, 1, k,
                        own->grad_top_bias, 1);
    kernels->spread(own->scores, width, panel->count, own->member_dout, Dv, Dv, k,
                    own->grad_top_values, Dv);
    return gradient;
}

static void add_scaled(float *restrict to, float factor, const float *restrict from,
                       int n) {
    for (int d = 0; d < n; d++)
        to[d] += factor * from[d];
}

/* Row keys[l] of `to`, if there is one, gets row l of `from`. */
static void scatter_rows(row_view to, const int32_t *keys, int count, const float *from,
                         int dim) {
    for (int l = 0; l < count && to.data; l++)
        add_scaled(to.data + keys[l] * to.stride, 1, from + (int64_t)l * dim, dim);
}

/* Corrects what the dense pass will add for the top keys: there it takes G_j . v_l for
   the gradient of the weight, which is dm_j, and it adds to dv_l as if v_l were part of
   the shared output. */
static void correct_top(const clustered_head *head, int64_t j, int k, float gradient,
                        clustered_thread *own) {
    const int dim = head->keys.dim, Dv = head->keys.value_dim;
    const float *centroid = head->state.centroids + j * dim;
    const float *grad_shared = head->slot->grad_shared + j * Dv;
    const float mass = head->work->per_query ? 1 : head->state.mass[j];
    float *grad_centroid = head->slot->grad_centroids + j * dim;
    for (int l = 0; l < k; l++) {
        const float *key = own->top_key_rows + (int64_t)l * dim;
        float *restrict grad_v = own->grad_top_values + (int64_t)l * Dv;
        float score = head->keys.scale * ordered_dot(centroid, key, dim);
        if (head->keys.masks)
            score += own->top_bias[l];
        float weight = expf(score - head->state.largest[j]) * head->state.inverse[j];
        float slope = ordered_dot(grad_shared, own->top_value_rows + (int64_t)l * Dv, Dv);
        float wrong = weight * (gradient - slope) * head->keys.scale;
        own->grad_top_bias[l] += weight * (gradient - slope);
        add_scaled(grad_centroid, wrong, key, dim);
        add_scaled(own->grad_top_keys + (int64_t)l * dim, wrong, centroid, dim);
        for (int d = 0; d < Dv; d++)
            grad_v[d] = mass * grad_v[d] - weight * grad_shared[d];
    }
}

static double score_of(const clustered_head *head, int64_t j, int64_t l) {
    const float *centroid = head->state.centroids + j * head->keys.dim;
    const float *key = head->view.k.data + l * head->view.k.stride;
    double sum = 0;
    for (int d = 0; d < head->keys.dim; d++)
        sum += (double)centroid[d] * (double)key[d];
    sum *= (double)head->keys.scale;
    return head->keys.masks ? sum + (double)sh_masks_key_bias(head->keys.masks, l) : sum;
}

/* The other keys of a group whose softmax was over them alone, key by key: such groups
   are few. What every member gives the shared part is in slot->grad_shared, and delta is
   the softmax's. Adds to dk and dv: on the group's turn. */
static void others_backward(const clustered_head *head, int64_t j, float delta,
                            clustered_thread *own) {
    const int dim = head->keys.dim, Dv = head->keys.value_dim;
    const float *centroid = head->state.centroids + j * dim;
    const float *grad_shared = head->slot->grad_shared + j * Dv;
    float *grad_centroid = head->slot->grad_centroids + j * dim;
    top_walk walk = sh_clustered_top_walk(head, j, own);
    for (int64_t l = 0; l < head->view.keys; l++) {
        if (top_walk_has(&walk, l))
            continue;
        const float *key = head->view.k.data + l * head->view.k.stride;
        const float *value = head->view.v.data + l * head->view.v.stride;
        double slope = 0;
        for (int d = 0; d < Dv; d++)
            slope += (double)grad_shared[d] * (double)value[d];
        const double weight = exp(score_of(head, j, l) - (double)head->state.largest[j]) *
                              (double)head->state.inverse[j];
        const float dscore =
            (float)(weight * (slope - (double)delta) * (double)head->keys.scale);
        float *dbias = head->keys.masks ? sh_masks_key_slope(head->keys.masks, l) : NULL;
        if (dbias)
            *dbias += (float)(weight * (slope - (double)delta));
        for (int d = 0; d < dim; d++)
            grad_centroid[d] += dscore * key[d];
        for (int d = 0; d < dim && head->dk.data; d++)
            head->dk.data[l * head->dk.stride + d] += dscore * centroid[d];
        for (int d = 0; d < Dv && head->dv.data; d++)
            head->dv.data[l * head->dv.stride + d] += (float)weight * grad_shared[d];
    }
}

static bool has_top(const clustered_head *head, int64_t j) {
    return head->work->has_top && head->slot->members[j] > 1 &&
           !clustered_sees_nothing(head, j);
}

/* G_j of the members that are here; where each has its own factor, top_gradient adds
   them up. */
static void sum_members(const clustered_head *head, int64_t j) {
    const grouping *sorted = &head->slot->sorted;
    const int64_t first = sorted->offsets[j], last = sorted->offsets[j + 1];
    const int Dv = head->keys.value_dim;
    float *grad_shared = head->slot->grad_shared + j * Dv;
    memset(grad_shared, 0, sizeof(float) * (size_t)Dv);
    if (!(has_top(head, j) && head->work->per_query))
        head->keys.kernels->sum_rows(head->view.dout.data, head->view.dout.stride,
                                     sorted->order + first, NULL, last - first, Dv,
                                     grad_shared);
}

/* The members' part of the top keys' gradients, in the thread's rows, and their dq;
   returns dm_j, or delta_j's part. */
static double top_gradient(const clustered_head *head, int64_t j, int *k,
                           clustered_thread *own) {
    const kernel_table *kernels = head->keys.kernels;
    const int32_t *offsets = head->slot->sorted.offsets;
    double gradient = 0;
    *k = sh_clustered_gather_top(head, j, own);
    const size_t rows = sizeof(float) * (size_t)*k;
    memset(own->grad_top_keys, 0, rows * (size_t)head->keys.dim);
    memset(own->grad_top_values, 0, rows * (size_t)head->keys.value_dim);
    memset(own->grad_top_bias, 0, rows);
    for (int64_t at = offsets[j]; at < offsets[j + 1];
         at += own->dense->panels[0].count) {
        sh_dense_cut(own->dense, kernels, at, min(at + kernels->panel, offsets[j + 1]));
        gradient += top_panel(head, j, *k, at, own);
    }
    return gradient;
}

/* The centroid's part of dq is added to nothing. */
static void clear_members(const clustered_head *head, int64_t j) {
    const grouping *sorted = &head->slot->sorted;
    for (int64_t i = sorted->offsets[j]; i < sorted->offsets[j + 1] && head->view.dq.data;
         i++)
        memset(head->view.dq.data + sorted->order[i] * head->view.dq.stride, 0,
               sizeof(float) * (size_t)head->keys.dim);
}

/* What the dense pass needs of group j, once G_j is there. */
static void start_dense(const clustered_head *head, int64_t j) {
    const int Dv = head->keys.value_dim, dim = head->keys.dim;
    memset(head->slot->grad_centroids + j * dim, 0, sizeof(float) * (size_t)dim);
    head->slot->delta[j] = 0;
    /* The softmax that the dense pass sees. A group without members has no weight in it,
       nor one whose softmax was over its other keys alone: that has others_backward. */
    const bool seen = head->slot->members[j] && !has_others_alone(head, j);
    head->slot->dense_largest[j] = seen                     ? head->state.largest[j]
                                   : head->slot->members[j] ? FLT_MAX
                                                            : 0;
    head->slot->dense_inverse[j] = seen ? head->state.inverse[j] : 0;
    if (head->slot->members[j] > 0 && !(has_top(head, j) && head->work->per_query))
        head->slot->delta[j] = ordered_dot(head->slot->grad_shared + j * Dv,
                                           head->state.shared + j * Dv, Dv);
}

/* All that belongs to one group before the dense pass. */
static void group_task(void *shared, int64_t j, int thread) {
    const clustered_head *head = shared;
    clustered_thread *own = &head->work->threads[thread];
    int k;
    sum_members(head, j);
    start_dense(head, j);
    if (!head->work->has_top)
        return;
    if (!has_top(head, j)) {
        clear_members(head, j);
        sh_await_turn(head->slot->scatter_turn, (int)j);
        sh_pass_turn(head->slot->scatter_turn, (int)j);
        return;
    }
    const double gradient = top_gradient(head, j, &k, own);
    head->slot->delta[j] += (head->work->per_query ? 1 : head->state.mass[j]) *
                            (float)gradient;
    if (!has_others_alone(head, j))
        correct_top(head, j, k, (float)gradient, own);
    /* Groups share keys, so they add to them one after another, in order. */
    const int32_t *keys = head->state.top_keys + j * head->call->plan->attention.topk;
    sh_await_turn(head->slot->scatter_turn, (int)j);
    scatter_rows(head->dk, keys, k, own->grad_top_keys, head->keys.dim);
    scatter_rows(head->dv, keys, k, own->grad_top_values, head->keys.value_dim);
    if (head->keys.masks)
        scatter_rows((row_view){head->masks.dkey_bias, 1}, keys, k, own->grad_top_bias,
                     1);
    if (has_others_alone(head, j))
        others_backward(head, j, (float)gradient, own);
    sh_pass_turn(head->slot->scatter_turn, (int)j);
}

/* ---- Groups whose members and keys are on several ranks --------------------------- */

/* G_j and dm_j of the members that are here; the top keys' gradients go to head->dk and
   dv by their places. */
static void part_task(void *shared, int64_t j, int thread) {
    const clustered_head *head = shared;
    clustered_thread *own = &head->work->threads[thread];
    const int32_t *rows = head->top_places + j * head->call->plan->attention.topk;
    int k;
    sum_members(head, j);
    head->slot->delta[j] = 0;
    if (!head->work->has_top)
        return;
    if (has_top(head, j)) {
        head->slot->delta[j] = (float)top_gradient(head, j, &k, own);
        for (int64_t i = 0; i < (int64_t)k * head->keys.value_dim; i++)
            own->grad_top_values[i] *= head->work->per_query ? 1 : head->state.mass[j];
    } else {
        clear_members(head, j);
    }
    sh_await_turn(head->slot->scatter_turn, (int)j);
    if (has_top(head, j)) {
        scatter_rows(head->dk, rows, k, own->grad_top_keys, head->keys.dim);
        scatter_rows(head->dv, rows, k, own->grad_top_values, head->keys.value_dim);
    }
    sh_pass_turn(head->slot->scatter_turn, (int)j);
}

void sh_clustered_backward_parts(clustered_head *head, team workers) {
    atomic_init(head->slot->scatter_turn, 0);
    sh_team_run(workers, head->slot->sorted.used, part_task, head);
}

void sh_clustered_backward_correct(clustered_head *head) {
    const int64_t wide = head->call->plan->attention.topk;
    for (int64_t j = 0; j < head->slot->sorted.used; j++) {
        const float gradient = head->slot->delta[j];
        start_dense(head, j);
        if (!has_top(head, j))
            continue;
        head->slot->delta[j] += (head->work->per_query ? 1 : head->state.mass[j]) *
                                gradient;
        if (has_others_alone(head, j))
            others_backward(head, j, gradient, head->work->threads);
        for (int64_t i = 0; i < wide && !has_others_alone(head, j); i++) {
            const int64_t l = head->state.top_keys[j * wide + i] - head->first_key;
            if (l >= 0 && l < head->view.keys) {
                /* Corrects, as correct_top does, what the dense pass will add for one of
                   the top keys: adds to its dk and dv and to the centroid's gradient. */
                const int dim = head->keys.dim, Dv = head->keys.value_dim;
                const float *centroid = head->state.centroids + j * dim;
                const float *grad_shared = head->slot->grad_shared + j * Dv;
                const float *key = head->view.k.data + l * head->view.k.stride;
                const float *value = head->view.v.data + l * head->view.v.stride;
                const float score = head->keys.scale * ordered_dot(centroid, key, dim);
                const float weight = expf(score - head->state.largest[j]) *
                                     head->state.inverse[j];
                const float wrong = weight *
                                    (gradient - ordered_dot(grad_shared, value, Dv)) *
                                    head->keys.scale;
                add_scaled(head->slot->grad_centroids + j * dim, wrong, key, dim);
                if (head->dk.data)
                    add_scaled(head->dk.data + l * head->dk.stride, wrong, centroid, dim);
                if (head->dv.data)
                    add_scaled(head->dv.data + l * head->dv.stride, -weight, grad_shared,
                               Dv);
            }
        }
    }
}

enum { MEMBER_TASK = 1024 };

/* A centroid's gradient reaches each member divided by the group's size. */
static void member_task(void *shared, int64_t task, int thread) {
    const clustered_head *head = shared;
    const int dim = head->keys.dim;
    (void)thread;
    for (int64_t i = task * MEMBER_TASK;
         i < min((task + 1) * MEMBER_TASK, head->view.queries); i++) {
        int32_t j = head->state.groups[i];
        float share = 1 / (float)head->slot->members[j];
        const float *gradient = head->slot->grad_centroids + (int64_t)j * dim;
        float *dq = head->view.dq.data + i * head->view.dq.stride;
        if (!head->work->has_top)
            memset(dq, 0, sizeof *dq * (size_t)dim);
        add_scaled(dq, share, gradient, dim);
    }
}

void sh_clustered_backward_dense(clustered_head *head, team workers) {
    clustered_slot *slot = head->slot;
    dense_backward_job job = {.keys = head->keys,
                              .n = slot->sorted.used,
                              .key_count = head->view.keys,
                              .x = {head->state.centroids, head->keys.dim},
                              .dout = {slot->grad_shared, head->keys.value_dim},
                              .largest = {slot->dense_largest, 1},
                              .inverse = {slot->dense_inverse, 1},
                              .delta = {slot->delta, 1},
                              .dq = {slot->grad_centroids, head->keys.dim},
                              .dk = head->dk,
                              .dv = head->dv,
                              .onto = 1,
                              .turns = slot->turns,
                              .threads = head->work->dense};
    sh_dense_backward(&job, workers);
}

void sh_clustered_backward_members(clustered_head *head, team workers) {
    if (head->view.dq.data)
        sh_team_run(workers, ceil_divide(head->view.queries, MEMBER_TASK), member_task,
                    head);
}

/* One key/value head, with the query heads that share it. */
void sh_clustered_backward(const attention_call *call, int64_t unit, int slot,
                           team workers) {
    const kv_head_view own = sh_start_kv_head(call, unit);
    for (int64_t h = own.first; h < own.last; h++) {
        clustered_head head =
            sh_clustered_head_of(call, sh_view_of(call, own.b, h), slot);
        sh_clustered_set_masks(&head);
        const int64_t n = head.view.queries, S = head.view.keys;
        head.dk = own.dk;
        head.dv = own.dv;
        sh_clear_rows(head.view.dq, S > 0 ? n : 0, head.view.query_rows,
                      call->plan->problem.dim);
        if (n > 0 && S > 0) {
            sh_clustered_sort(&head);
            atomic_init(head.slot->scatter_turn, 0);
            sh_team_run(workers, head.slot->sorted.used, group_task, &head);
            sh_clustered_backward_dense(&head, workers);
            sh_clustered_backward_members(&head, workers);
        }
    }
}
