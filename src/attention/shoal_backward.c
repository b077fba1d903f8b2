/* Backward of shoal-C. Constants are P, Z and the keys' centre,
 * groups, blocks, key clusters, pools and exact keys. With mean_i = dout_i . out_i and
 * p_il the weight of key l for query i, every key that is exact for i (X and near ones)
 * has
 *     g_il = p_il (dout_i . v_l - mean_i)
 * and its score's gradient goes to q_i and k_l. A block sees what is left of key cluster
 * m as one pair, whose score's gradient is that of the tilt, dt_im; what a near key has
 * in the rest is taken from it. From dt go
 *     to q_i and, with the other sign, to the centroid: scale (centre dt + P (dt z_bm)),
 *     to the pair's z_bm = sum of dt_im d_i, and from there to z_l and s_jl of the rest.
 * Blocks add up, for every group and key cluster, what the pass of the centroids over the
 * keys then gives to every key: G and Q, which multiply v_l and z_l, and a number gamma:
 *     ds_jl = e (G . v_l + Q . z_l - gamma), dv_l = e G, dz_l = e Q,  e = e^(s_jl - top)
 * and what X had no part in is taken back block by block. A bias of key l is part of s_il
 * and of s_jl, and has the sum of their gradients. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/shoal_kind.h"

static void add_scaled(float *restrict to, float factor, const float *restrict from,
                       int n) {
    for (int d = 0; d < n; d++)
        to[d] += factor * from[d];
}

static void add_row(row_view to, int64_t l, float factor, const float *from, int n) {
    if (to.data)
        add_scaled(to.data + l * to.stride, factor, from, n);
}

/* What a score's gradient is for its key's bias. */
static void add_bias_slope(const tilted_head *head, int64_t l, float slope) {
    if (head->masks.dkey_bias)
        head->masks.dkey_bias[l * head->masks.dkey_bias_step] += slope;
}

/* slopes [count][width] times scale: gradients of keys' biases, summed over lanes. */
static void sum_bias_slopes(const tilted_head *head, const float *slopes, int width,
                            int lanes, int count, float *sums) {
    const float by = 1 / head->scale;
    if (head->masks.dkey_bias)
        head->run->spread(slopes, width, lanes, &by, 0, 1, count, sums, 1);
}

/* Where the parts of a panel's scores and slopes begin. */
typedef struct {
    query_panel *panel;
    int64_t j;
    int count, pairs, near; /* rows: X, clusters, near keys */
    int last;               /* the block's last panel */
    const int32_t *members;
    uint8_t direct[MAX_PANEL]; /* lanes that are computed key by key */
    int directs;
} member_panel;

static float *pair_rows(const member_panel *now, float *rows) {
    return rows + (int64_t)now->count * now->panel->width;
}

static float *near_rows(const member_panel *now, float *rows) {
    return rows + (int64_t)(now->count + now->pairs) * now->panel->width;
}

/* ---- A query that forward computed key by key -------------------------------------- */

/* Scores of keys first .. of the lane's query: its own on X and near keys, which
   direct_exact tells, else the centroid's, tilted. Hidden keys count as exact here:
   no rest has them. */
static void score_directly(const tilted_head *head, int64_t j, int64_t i, int lane,
                           int width, int64_t first, int count, tilted_thread *own) {
    const row_view q = head->view.q, k = head->view.k;
    float *scores = own->direct_scores, *shared = own->direct_weights;
    head->run->two_dots(k.data + first * k.stride, k.stride, count, head->size->dim,
                        q.data + i * q.stride,
                        head->state.centroids + j * head->size->dim, scores, shared);
    for (int a = 0; a < count; a++) {
        const int64_t l = first + a, m = head->state.key_clusters[l];
        own->direct_exact[a] =
            m < 0 || (head->size->near > 0 && llabs(l - i) <= head->size->near) ||
            tilted_is_exact(own, l);
        scores[a] = head->scale * (own->direct_exact[a] ? scores[a] : shared[a]) +
                    (own->direct_exact[a] ? 0 : own->tilts[m * width + lane]) +
                    tilted_bias(head, l);
    }
}

/* Weights of keys first .. in the rest of the lane's query, 0 where they are exact, and
   gradients of their scores. */
static void weigh_directly(const tilted_head *head, const member_panel *now, int lane,
                           int64_t first, int count, tilted_thread *own) {
    const row_view v = head->view.v;
    const int Dv = head->size->value_dim;
    const int64_t i = now->members[lane];
    const float *dout = own->member_dout + (int64_t)lane * Dv;
    score_directly(head, now->j, i, lane, now->panel->width, first, count, own);
    head->run->dots(Dv, count, v.data + first * v.stride, v.stride, dout, false,
                    own->direct_slopes);
    for (int a = 0; a < count; a++) {
        const float weight = own->direct_exact[a]
                                 ? 0
                                 : expf(own->direct_scores[a] - head->state.log_sums[i]);
        own->direct_weights[a] = weight;
        own->direct_slopes[a] = weight *
                                (own->direct_slopes[a] - now->panel->delta[lane]);
    }
}

static void direct_tilts(const tilted_head *head, const member_panel *now, int lane,
                         tilted_thread *own) {
    const int width = now->panel->width;
    float *tilts = pair_rows(now, own->slopes);
    for (int64_t first = 0; first < head->view.keys; first += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, head->view.keys - first);
        weigh_directly(head, now, lane, first, count, own);
        for (int a = 0; a < count; a++)
            if (!own->direct_exact[a])
                tilts[head->state.key_clusters[first + a] * width + lane] +=
                    own->direct_slopes[a];
    }
}

static void direct_scatter(const tilted_head *head, const member_panel *now, int lane,
                           tilted_thread *own) {
    const row_view k = head->view.k;
    const int dim = head->size->dim;
    const float *c = head->state.centroids + now->j * dim;
    const float *dout = own->member_dout + (int64_t)lane * head->size->value_dim;
    for (int64_t first = 0; first < head->view.keys; first += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, head->view.keys - first);
        weigh_directly(head, now, lane, first, count, own);
        for (int a = 0; a < count; a++) {
            add_bias_slope(head, first + a, own->direct_slopes[a]);
            own->direct_slopes[a] *= head->scale;
            add_row(head->dv, first + a, own->direct_weights[a], dout,
                    head->size->value_dim);
            add_row(head->dk, first + a, own->direct_slopes[a], c, dim);
        }
        head->run->sum_rows(k.data + first * k.stride, k.stride, NULL, own->direct_slopes,
                            count, dim, own->row);
        add_scaled(own->grad_centroid, 1, own->row, dim);
    }
}

/* ---- One panel of members ---------------------------------------------------------- */

static void gather_members(row_view from, const int32_t *order, int count, int dim,
                           float *to) {
    for (int i = 0; i < count; i++)
        memcpy(to + (int64_t)i * dim, from.data + order[i] * from.stride,
               (size_t)dim * sizeof *to);
}

static void load_gradients(const tilted_head *head, const member_panel *now,
                           tilted_thread *own) {
    query_panel *panel = now->panel;
    const int Dv = head->size->value_dim;
    gather_members(head->view.q, now->members, panel->count, head->size->dim,
                   own->member_q);
    gather_members(head->dout, now->members, panel->count, Dv, own->member_dout);
    head->run->pack(own->member_dout, Dv, NULL, panel->count, panel->width, Dv, 1,
                    panel->grad_out);
    head->run->unpack(own->shift, panel->count, panel->width, head->size->rank, NULL,
                      NULL, 0, own->shift_rows, head->size->rank, NULL);
    for (int i = 0; i < panel->width; i++) {
        const int live = i < panel->count;
        /* Lanes without a query have no weight. */
        panel->largest[i] = live ? head->state.log_sums[now->members[i]] : FLT_MAX / 2;
        panel->inverse[i] = 1;
        panel->delta[i] =
            live ? ordered_dot(own->member_dout + (int64_t)i * Dv,
                               head->out.data + now->members[i] * head->out.stride, Dv)
                 : 0;
    }
}

/* dout_i . v_l of near keys. */
static void near_slopes(const tilted_head *head, const member_panel *now,
                        tilted_thread *own) {
    const row_view v = head->view.v;
    const int width = now->panel->width, Dv = head->size->value_dim;
    float *slopes = near_rows(now, own->slopes);
    memset(slopes, 0, sizeof(float) * (size_t)(now->near * width));
    for (int i = 0; i < now->panel->count; i++) {
        const int64_t first = tilted_near_first(head, now->members[i]);
        const int64_t last = tilted_near_last(head, now->members[i]);
        head->run->dots(Dv, last - first, v.data + first * v.stride, v.stride,
                        own->member_dout + (int64_t)i * Dv, false, own->near_weights);
        for (int64_t a = 0; a < last - first; a++)
            slopes[a * width + i] = own->near_weights[a];
    }
}

/* Lanes whose rest was found by too large a subtraction. */
static void find_direct(const tilted_head *head, member_panel *now, tilted_thread *own) {
    const int width = now->panel->width;
    float strain[MAX_PANEL] = {0};
    float *weights = pair_rows(now, own->scores), *tilts = pair_rows(now, own->slopes);
    head->run->mix(weights, width, own->strain, 1, now->pairs, 1, NULL, strain);
    now->directs = 0;
    for (int i = 0; i < width; i++) {
        now->direct[i] = i < now->panel->count && strain[i] > TILTED_STRAIN;
        now->directs += now->direct[i];
        for (int m = 0; m < now->pairs && now->direct[i]; m++)
            weights[m * width + i] = tilts[m * width + i] = 0;
        for (int a = 0; a < now->near && now->direct[i]; a++)
            own->hidden[a * width + i] = own->unused[a * width + i] = 0;
    }
}

/* Scores become weights, and slopes gradients of scores; of near keys too, in `hidden`
   and `unused` what they have in the rest. */
static void weigh_members(const tilted_head *head, member_panel *now,
                          tilted_thread *own) {
    const kernel_table *run = head->run;
    query_panel *panel = now->panel;
    const int width = panel->width;
    run->score_at(panel->grad_out, width, head->size->value_dim, head->view.v.data,
                  head->view.v.stride, own->keys, now->count, own->slopes);
    run->score(panel->grad_out, width, head->size->value_dim, own->rest, head->size->wide,
               now->pairs, pair_rows(now, own->slopes));
    run->softmax_slope(own->scores, own->slopes, width, now->count, panel->largest,
                       panel->inverse, panel->delta, head->scale);
    run->softmax_slope(pair_rows(now, own->scores), pair_rows(now, own->slopes), width,
                       now->pairs, panel->largest, panel->inverse, panel->delta, 1);
    if (now->near > 0) {
        float *slopes = near_rows(now, own->slopes);
        near_slopes(head, now, own);
        memcpy(own->unused, slopes, sizeof(float) * (size_t)(now->near * width));
        run->softmax_slope(near_rows(now, own->scores), slopes, width, now->near,
                           panel->largest, panel->inverse, panel->delta, 1);
        run->softmax_slope(own->hidden, own->unused, width, now->near, panel->largest,
                           panel->inverse, panel->delta, 1);
    }
    find_direct(head, now, own);
}

/* What near keys have in the rest is taken from their clusters' tilts. */
static void near_tilts(const tilted_head *head, const member_panel *now,
                       tilted_thread *own) {
    const int width = now->panel->width;
    float *tilts = pair_rows(now, own->slopes);
    for (int i = 0; i < now->panel->count && now->near > 0; i++) {
        const int64_t first = tilted_near_first(head, now->members[i]);
        const int64_t last = tilted_near_last(head, now->members[i]);
        for (int64_t l = first; l < last; l++)
            if (head->state.key_clusters[l] >= 0)
                tilts[head->state.key_clusters[l] * width + i] -=
                    own->unused[(l - first) * width + i];
    }
}

/* Near keys' part of dq, and of the centroid's gradient. */
static void near_queries(const tilted_head *head, const member_panel *now, int lane,
                         tilted_thread *own) {
    const row_view k = head->view.k;
    const int width = now->panel->width, dim = head->size->dim;
    const int64_t i = now->members[lane], first = tilted_near_first(head, i);
    const int64_t count = tilted_near_last(head, i) - first;
    const float *slopes = near_rows(now, own->slopes);
    for (int64_t a = 0; a < count; a++)
        own->near_weights[a] = head->scale * slopes[a * width + lane];
    head->run->sum_rows(k.data + first * k.stride, k.stride, NULL, own->near_weights,
                        count, dim, own->row);
    add_row(head->dq, i, 1, own->row, dim);
    for (int64_t a = 0; a < count; a++)
        own->near_weights[a] = head->scale * own->unused[a * width + lane];
    head->run->sum_rows(k.data + first * k.stride, k.stride, NULL, own->near_weights,
                        count, dim, own->row);
    add_scaled(own->grad_centroid, -1, own->row, dim);
}

/* The tilt's part of dq and of the centroid's gradient; the exact keys' part of dq. */
static void query_gradients(const tilted_head *head, const member_panel *now,
                            tilted_thread *own) {
    const kernel_table *run = head->run;
    query_panel *panel = now->panel;
    const int width = panel->width, rank = head->size->rank, dim = head->size->dim;
    const float *tilts = pair_rows(now, own->slopes);
    memset(own->grad_shift, 0, sizeof(float) * (size_t)((rank + 1) * width));
    run->mix(tilts, width, own->rest + head->size->value_dim, head->size->wide,
             now->pairs, rank, NULL, own->grad_shift);
    for (int m = 0; m < now->pairs; m++)
        for (int i = 0; i < width; i++)
            own->grad_shift[rank * width + i] += tilts[m * width + i];
    for (int d = 0; d <= rank; d++) {
        float sum = 0;
        for (int i = 0; i < width; i++) {
            own->grad_shift[d * width + i] *= head->scale;
            sum += i < panel->count ? own->grad_shift[d * width + i] : 0;
        }
        add_scaled(own->grad_centroid, -sum, head->state.projection + (int64_t)d * dim,
                   dim);
    }
    if (!head->dq.data)
        return;
    memset(panel->grad_q, 0, sizeof(float) * (size_t)(dim * width));
    run->mix_at(own->slopes, width, head->view.k.data, head->view.k.stride, own->keys,
                now->count, dim, panel->grad_q);
    run->mix(own->grad_shift, width, head->state.projection, dim, rank + 1, dim, NULL,
             panel->grad_q);
    run->unpack(panel->grad_q, panel->count, width, dim, NULL, NULL, 0, head->dq.data,
                head->dq.stride, now->members);
}

/* What the panel adds to the block's sums. */
static void add_to_block(const tilted_head *head, const member_panel *now,
                         tilted_thread *own) {
    const kernel_table *run = head->run;
    const query_panel *panel = now->panel;
    const int width = panel->width, live = panel->count, dim = head->size->dim;
    const int Dv = head->size->value_dim, wide = head->size->wide;
    const int rank = head->size->rank;
    const float *weights = pair_rows(now, own->scores);
    float *pairs = own->grad_values + (int64_t)now->count * wide;
    run->spread(own->slopes, width, live, own->member_q, dim, dim, now->count,
                own->grad_exact_keys, dim);
    sum_bias_slopes(head, own->slopes, width, live, now->count, own->grad_exact_bias);
    run->spread(own->scores, width, live, own->member_dout, Dv, Dv,
                now->count + now->pairs, own->grad_values, wide);
    run->spread(pair_rows(now, own->slopes), width, live, own->shift_rows, rank, rank,
                now->pairs, pairs + Dv, wide);
    for (int m = 0; m < now->pairs; m++)
        for (int i = 0; i < live; i++)
            own->block_mass[m] += weights[m * width + i] * panel->delta[i];
}

/* ---- In turn ----------------------------------------------------------------------- */

/* Near keys' rows of dk and dv, and all keys' of queries that are computed key by key. */
static void scatter_near(const tilted_head *head, const member_panel *now,
                         tilted_thread *own) {
    const int width = now->panel->width, dim = head->size->dim;
    const int Dv = head->size->value_dim;
    const float *c = head->state.centroids + now->j * dim;
    const float *weights = near_rows(now, own->scores);
    const float *slopes = near_rows(now, own->slopes);
    for (int i = 0; i < now->panel->count && now->near > 0; i++) {
        const int64_t first = tilted_near_first(head, now->members[i]);
        const int64_t last = tilted_near_last(head, now->members[i]);
        for (int64_t l = first; l < last; l++) {
            const int64_t at = (l - first) * width + i;
            add_row(head->dv, l, weights[at] - own->hidden[at],
                    own->member_dout + (int64_t)i * Dv, Dv);
            add_row(head->dk, l, head->scale * slopes[at],
                    own->member_q + (int64_t)i * dim, dim);
            add_row(head->dk, l, -head->scale * own->unused[at], c, dim);
            add_bias_slope(head, l, slopes[at] - own->unused[at]);
        }
    }
    for (int i = 0; i < now->panel->count && now->directs > 0; i++)
        if (now->direct[i])
            direct_scatter(head, now, i, own);
}

/* ---- One block --------------------------------------------------------------------- */

static void panel_backward(const tilted_head *head, member_panel *now,
                           tilted_thread *own) {
    sh_tilted_score_members(head, now->j, now->count, now->panel, own);
    load_gradients(head, now, own);
    weigh_members(head, now, own);
    near_tilts(head, now, own);
    for (int i = 0; i < now->panel->count && now->directs > 0; i++)
        if (now->direct[i])
            direct_tilts(head, now, i, own);
    query_gradients(head, now, own);
    for (int i = 0; i < now->panel->count && now->near > 0; i++)
        near_queries(head, now, i, own);
    add_to_block(head, now, own);
}

/* The pairs' gradients become those of the sums that were left: G, Q and gamma. */
static void finish_pairs(const tilted_head *head, int count, tilted_thread *own) {
    const int Dv = head->size->value_dim, wide = head->size->wide;
    for (int64_t m = 0; m < head->size->M; m++) {
        float *row = own->grad_values + (count + m) * wide;
        const float *pair = own->rest + m * wide;
        const float inverse = own->left_mass[m] > 0 ? 1 / own->left_mass[m] : 0;
        for (int d = 0; d < (own->weighted[m] ? wide : Dv); d++)
            row[d] *= inverse;
        own->block_mass[m] *= inverse;
        if (own->weighted[m])
            own->block_mass[m] += ordered_dot(row + Dv, pair + Dv, head->size->rank);
    }
}

/* The pass over all keys will treat X as part of the rest: here that is taken back. */
static void correct_exact(const tilted_head *head, int64_t j, int count,
                          tilted_thread *own) {
    const int Dv = head->size->value_dim, wide = head->size->wide;
    const int rank = head->size->rank, dim = head->size->dim;
    const row_view v = head->view.v;
    for (int x = 0; x < count; x++) {
        const int64_t m = own->exact_clusters[x];
        const float *row = own->grad_values + (count + m) * wide;
        float *grad = own->grad_values + (int64_t)x * wide;
        const float weight = -own->exact_weights[x];
        float slope = ordered_dot(row, v.data + own->keys[x] * v.stride, Dv);
        if (own->weighted[m])
            slope += ordered_dot(row + Dv,
                                 head->slot->coordinates + (int64_t)own->keys[x] * rank,
                                 rank);
        const float dscore = -weight * (slope - own->block_mass[m]);
        own->exact_scores[x] = head->scale * dscore;
        own->grad_exact_bias[x] += dscore;
        add_scaled(grad, -weight, row, own->weighted[m] ? wide : Dv);
        memcpy(own->grad_scores + (int64_t)x * (rank + 1), grad + Dv,
               sizeof(float) * (size_t)rank);
        own->grad_scores[(int64_t)x * (rank + 1) + rank] = own->exact_scores[x];
    }
    memcpy(own->grad_rows, head->state.dual, sizeof(float) * (size_t)(rank * dim));
    memcpy(own->grad_rows + (int64_t)rank * dim, head->state.centroids + j * dim,
           sizeof(float) * (size_t)dim);
    head->run->spread(own->grad_scores, rank + 1, rank + 1, own->grad_rows, dim, dim,
                      count, own->grad_exact_keys, dim);
    head->run->sum_rows(head->view.k.data, head->view.k.stride, own->keys,
                        own->exact_scores, count, dim, own->row);
    add_scaled(own->grad_centroid, 1, own->row, dim);
}

/* Blocks share keys and groups, so they add to them one after another, in order. */
static void scatter_block(const tilted_head *head, int64_t j, int count,
                          tilted_thread *own) {
    const int Dv = head->size->value_dim, wide = head->size->wide;
    const int rank = head->size->rank;
    const int64_t M = head->size->M;
    for (int x = 0; x < count; x++) {
        add_row(head->dk, own->keys[x], 1,
                own->grad_exact_keys + (int64_t)x * head->size->dim, head->size->dim);
        add_row(head->dv, own->keys[x], 1, own->grad_values + (int64_t)x * wide, Dv);
        add_bias_slope(head, own->keys[x], own->grad_exact_bias[x]);
    }
    for (int64_t m = 0; m < M; m++) {
        const float *row = own->grad_values + (count + m) * wide;
        add_scaled(head->slot->grad_sums + (j * M + m) * wide, 1, row,
                   own->weighted[m] ? wide : Dv);
        if (!own->weighted[m])
            add_scaled(head->slot->grad_plain + m * rank, 1, row + Dv, rank);
        head->slot->grad_mass[j * M + m] += own->block_mass[m];
    }
    add_scaled(head->slot->grad_centroids + j * head->size->dim, 1, own->grad_centroid,
               head->size->dim);
}

/* The group that block b belongs to. */
static int64_t group_of(const tilted_head *head, int64_t b) {
    const int32_t *offsets = head->slot->block_offsets;
    int64_t low = 0, high = head->slot->sorted.used;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (offsets[middle] <= b)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void block_task(void *shared, int64_t b, int thread) {
    const tilted_head *head = shared;
    tilted_thread *own = &head->work->threads[thread];
    const tilted_slot *slot = head->slot;
    const int64_t j = group_of(head, b), M = head->size->M;
    const int64_t first = slot->sorted.offsets[j] +
                          (b - slot->block_offsets[j]) * head->size->block;
    const int64_t last = min(first + head->size->block, slot->sorted.offsets[j + 1]);
    sh_tilted_load_group(head, j, own);
    const int count = sh_tilted_load_block(head, j, b, own);
    memset(own->grad_exact_keys, 0, sizeof(float) * (size_t)(count * head->size->dim));
    memset(own->grad_values, 0, sizeof(float) * (size_t)((count + M) * head->size->wide));
    memset(own->grad_exact_bias, 0, sizeof(float) * (size_t)count);
    memset(own->block_mass, 0, sizeof(float) * (size_t)M);
    memset(own->grad_centroid, 0, sizeof(float) * (size_t)head->size->dim);
    member_panel now = {.j = j,
                        .count = count,
                        .pairs = (int)M,
                        .near = tilted_near_rows(head, j)};
    for (int64_t at = first; at < last; at += now.panel->count) {
        now.panel = sh_tilted_load_members(head, at, last, own);
        now.members = head->state.order + at;
        panel_backward(head, &now, own);
        if (at + now.panel->count >= last) {
            finish_pairs(head, count, own);
            correct_exact(head, j, count, own);
        }
        sh_await_turn(slot->turn, (int)b);
        scatter_near(head, &now, own);
    }
    scatter_block(head, j, count, own);
    sh_pass_turn(slot->turn, (int)b);
    sh_tilted_leave_block(count, own);
}

/* ---- The centroids' pass ----------------------------------------------------------- */

static void load_cluster(const tilted_head *head, int64_t m, query_panel *panel) {
    const int64_t M = head->size->M, wide = head->size->wide;
    const int64_t at = panel->first * M + m;
    head->run->pack(head->slot->grad_sums + at * wide, M * wide, NULL, panel->count,
                    panel->width, (int)wide, 1, panel->grad_out);
    for (int i = 0; i < panel->width; i++) {
        const int live = i < panel->count;
        panel->largest[i] = live ? head->state.top[at + i * M] : 0;
        panel->delta[i] = live ? head->slot->grad_mass[at + i * M] : 0;
        panel->inverse[i] = live ? 1 : 0;
    }
}

/* One block of keys of cluster m, gathered, for one panel of centroids. */
static void keys_backward(const tilted_head *head, int64_t m, int count,
                          query_panel *panel, tilted_thread *own) {
    const kernel_table *run = head->run;
    const int width = panel->width, dim = head->size->dim, wide = head->size->wide;
    const int64_t M = head->size->M;
    float *scores = own->dense->scores, *slopes = own->dense->slopes;
    run->score(panel->queries, width, dim, own->key_rows, dim, count, scores);
    if (head->masks.key_bias)
        run->add_to_rows(own->key_bias, 1, width, count, scores);
    run->score(panel->grad_out, width, wide, own->wide_rows, wide, count, slopes);
    run->softmax_slope(scores, slopes, width, count, panel->largest, panel->inverse,
                       panel->delta, head->scale);
    run->mix(slopes, width, own->key_rows, dim, count, dim, NULL, panel->grad_q);
    run->spread(scores, width, panel->count,
                head->slot->grad_sums + (panel->first * M + m) * wide, M * wide, wide,
                count, own->wide_grads, wide);
    run->spread(slopes, width, panel->count, head->state.centroids + panel->first * dim,
                dim, dim, count, own->key_grads, dim);
    sum_bias_slopes(head, slopes, width, panel->count, count, own->bias_grads);
}

/* Coordinates' gradients become the keys'; rows go to their places. */
static void scatter_keys(const tilted_head *head, int64_t m, int64_t first, int count,
                         int with_plain, tilted_thread *own) {
    const int dim = head->size->dim, wide = head->size->wide;
    const int Dv = head->size->value_dim, rank = head->size->rank;
    const int32_t *offsets = head->slot->keys.offsets;
    const float share = 1 / (float)(offsets[m + 1] - offsets[m]);
    for (int i = 0; i < count && with_plain; i++)
        add_scaled(own->wide_grads + (int64_t)i * wide + Dv, share,
                   head->slot->grad_plain + m * rank, rank);
    head->run->spread(own->wide_grads + Dv, wide, rank, head->state.dual, dim, dim, count,
                      own->key_grads, dim);
    for (int i = 0; i < count; i++) {
        const int64_t l = head->slot->keys.order[first + i];
        add_row(head->dk, l, 1, own->key_grads + (int64_t)i * dim, dim);
        add_row(head->dv, l, 1, own->wide_grads + (int64_t)i * wide, Dv);
        add_bias_slope(head, l, own->bias_grads[i]);
    }
}

/* All keys of chunk `chunk` for one run of panels. */
static void chunk_backward(const tilted_head *head, int64_t chunk, int panels,
                           int with_plain, tilted_thread *own) {
    const tilted_slot *slot = head->slot;
    query_panel *panel = own->dense->panels;
    for (int32_t m = slot->chunk_clusters[chunk]; m < slot->chunk_clusters[chunk + 1];
         m++) {
        const int64_t last = slot->keys.offsets[m + 1];
        for (int p = 0; p < panels; p++)
            load_cluster(head, m, &panel[p]);
        for (int64_t key = slot->keys.offsets[m]; key < last; key += KEY_BLOCK) {
            const int some = (int)min(KEY_BLOCK, last - key);
            sh_tilted_gather_keys(head, key, some, own);
            memset(own->key_grads, 0, sizeof(float) * (size_t)(some * head->size->dim));
            memset(own->wide_grads, 0, sizeof(float) * (size_t)(some * head->size->wide));
            memset(own->bias_grads, 0, sizeof(float) * (size_t)some);
            for (int p = 0; p < panels; p++)
                keys_backward(head, m, some, &panel[p], own);
            scatter_keys(head, m, key, some, with_plain, own);
        }
    }
}

static void chunk_task(void *shared, int64_t chunk, int thread) {
    const tilted_head *head = shared;
    tilted_thread *own = &head->work->threads[thread];
    const int64_t used = head->slot->sorted.used, run = sh_dense_block(head->run);
    const int dim = head->size->dim;
    query_panel *panel = own->dense->panels;
    for (int64_t first = 0; first < used; first += run) {
        const int panels =
            sh_dense_cut(own->dense, head->run, first, min(first + run, used));
        for (int p = 0; p < panels; p++) {
            head->run->pack(head->state.centroids + panel[p].first * dim, dim, NULL,
                            panel[p].count, panel[p].width, dim, head->scale,
                            panel[p].queries);
            memset(panel[p].grad_q, 0, sizeof(float) * (size_t)(dim * panel[p].width));
        }
        chunk_backward(head, chunk, panels, first == 0, own);
        sh_await_turn(&head->slot->turns[first / run], (int)chunk);
        for (int p = 0; p < panels; p++)
            head->run->unpack(panel[p].grad_q, panel[p].count, panel[p].width, dim, NULL,
                              NULL, 1, head->slot->grad_centroids + panel[p].first * dim,
                              dim, NULL);
        sh_pass_turn(&head->slot->turns[first / run], (int)chunk);
    }
}

/* ---- The road --------------------------------------------------------------------- */

enum { MEMBER_TASK = 1024 };

/* A centroid's gradient reaches each member divided by the group's size. */
static void member_task(void *shared, int64_t task, int thread) {
    const tilted_head *head = shared;
    const int32_t *offsets = head->slot->sorted.offsets;
    (void)thread;
    for (int64_t i = task * MEMBER_TASK;
         i < min((task + 1) * MEMBER_TASK, head->view.queries); i++) {
        const int64_t j = head->state.groups[i];
        add_row(head->dq, i, 1 / (float)(offsets[j + 1] - offsets[j]),
                head->slot->grad_centroids + j * head->size->dim, head->size->dim);
    }
}

static void clear_sums(const tilted_head *head) {
    const tilted_sizes *size = head->size;
    const tilted_slot *slot = head->slot;
    const size_t sums = (size_t)(slot->sorted.used * size->M);
    memset(slot->grad_sums, 0, sizeof(float) * sums * (size_t)size->wide);
    memset(slot->grad_mass, 0, sizeof(float) * sums);
    memset(slot->grad_plain, 0, sizeof(float) * (size_t)(size->M * size->rank));
    memset(slot->grad_centroids, 0,
           sizeof(float) * (size_t)(slot->sorted.used * size->dim));
}

static void backward_head(tilted_head *head, team workers) {
    tilted_slot *slot = head->slot;
    sh_group_count(&slot->sorted, head->state.groups, head->view.queries);
    sh_group_sort(&slot->keys, head->state.key_clusters, head->view.keys);
    sh_tilted_count_blocks(head);
    sh_tilted_cut_keys(head);
    sh_tilted_find_coordinates(head, workers);
    sh_tilted_find_plain(head);
    clear_sums(head);
    atomic_init(slot->turn, 0);
    for (int64_t i = 0; i < ceil_divide(slot->sorted.used, sh_dense_block(head->run));
         i++)
        atomic_init(&slot->turns[i], 0);
    sh_team_run(workers, slot->block_offsets[slot->sorted.used], block_task, head);
    sh_team_run(workers, slot->chunks, chunk_task, head);
    if (head->dq.data)
        sh_team_run(workers, ceil_divide(head->view.queries, MEMBER_TASK), member_task,
                    head);
}

/* One key/value head, with the query heads that share it. */
void sh_tilted_backward(const attention_call *call, int64_t unit, int slot,
                        team workers) {
    const shoal_problem *problem = &call->plan->problem;
    const shoal_gradients *gradients = call->gradients;
    const kv_head_view own = sh_start_kv_head(call, unit);
    for (int64_t h = own.first; h < own.last; h++) {
        tilted_head head = sh_tilted_head_of(call, own.b, h, slot);
        const int64_t n = head.view.queries, S = head.seen;
        head.dk = own.dk;
        head.dv = own.dv;
        head.dout = sh_query_rows(call, gradients->dout, &problem->out, own.b, h);
        head.out = sh_query_rows(call, gradients->out, &problem->out, own.b, h);
        head.dq = sh_query_rows(call, gradients->dq, &problem->q, own.b, h);
        sh_clear_rows(head.dq, S > 0 ? n : 0, head.view.query_rows, problem->dim);
        if (n > 0 && S > 0)
            backward_head(&head, workers);
    }
}
