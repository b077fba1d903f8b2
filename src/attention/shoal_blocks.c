/* Blocks of alike members of a group: their exact keys, and their outputs. */
#include "attention/shoal_kind.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Of a cluster's sum: with less left, what is left has no mean of its own. */
static const float least_weighted = 1e-3f, least_left = 1e-6f;

/* A score that weighs nothing; not -inf, which could meet another. */
static const float no_score = -FLT_MAX / 4;

enum { MAX_POINTS = TILTED_POINTS };

static void add_scaled(float *restrict to, float factor, const float *restrict from,
                       int n) {
    for (int d = 0; d < n; d++)
        to[d] += factor * from[d];
}

/* ---- The pool of a group ----------------------------------------------------------- */

static int32_t merge_candidates(const tilted_head *head, int64_t j, tilted_thread *own) {
    const tilted_slot *slot = head->slot;
    const int64_t C = head->size->C, p = head->size->p;
    uint64_t *list = own->candidates;
    int32_t count = 0;
    for (int64_t chunk = 0; chunk < slot->chunks; chunk++) {
        const int32_t more = slot->part_counts[chunk * C + j];
        memcpy(list + count, slot->part_keys + (chunk * C + j) * p,
               (size_t)more * sizeof *list);
        count = sh_topk_cut(list, count + more, (int32_t)p);
    }
    return count;
}

/* What the choice of a panel of the pool's keys is told by: the centroid's scores, and
   how far their tilts are from their clusters'. Lanes without a key are never chosen. */
static void weigh_candidates(const tilted_head *head, int64_t j, int32_t first, int count,
                             tilted_thread *own) {
    const int width = head->run->panel, rank = head->size->rank;
    const int32_t *keys = head->state.pools + j * head->size->p + first;
    const float *variances = head->slot->variances + j * rank;
    float *z = own->pool_panels + (int64_t)first * rank, *plain = own->point_panel;
    float spread[MAX_PANEL] = {0}, apart[MAX_PANEL] = {0};
    int32_t clusters[MAX_PANEL];
    for (int i = 0; i < count; i++)
        clusters[i] = head->state.key_clusters[keys[i]];
    head->run->pack(head->slot->coordinates, rank, keys, count, width, rank, 1, z);
    head->run->pack(head->slot->plain, rank, clusters, count, width, rank, 1, plain);
    for (int d = 0; d < rank; d++)
        for (int i = 0; i < width; i++) {
            const float x = z[d * width + i], away = x - plain[d * width + i];
            spread[i] += variances[d] * x * x;
            apart[i] += variances[d] * away * away;
        }
    for (int i = 0; i < width; i++) {
        const int there = i < count;
        const float expected = there ? candidate_score(own->candidates[first + i]) : 0;
        own->pool_scores[first + i] = there ? expected - spread[i] / 2 : no_score;
        own->pool_residual[first + i] = logf(apart[i] + 1e-6f) / 2;
    }
}

static void load_pool(const tilted_head *head, int64_t j, tilted_thread *own) {
    const int width = head->run->panel;
    int32_t *pool = head->state.pools + j * head->size->p;
    const int32_t count = merge_candidates(head, j, own);
    head->state.pool_counts[j] = count;
    for (int32_t i = 0; i < count; i++)
        pool[i] = head->slot->keys.order[candidate_key(own->candidates[i])];
    for (int32_t first = 0; first < count; first += width)
        weigh_candidates(head, j, first, (int)min(width, count - first), own);
    for (int64_t m = 0; m < head->size->M; m++) {
        const float mass = head->state.mass[j * head->size->M + m];
        own->group_logs[m] =
            mass > 0 ? head->state.top[j * head->size->M + m] + logf(mass) : no_score;
    }
}

void sh_tilted_load_group(const tilted_head *head, int64_t j, tilted_thread *own) {
    const int lanes = head->run->lanes, rank = head->size->rank, dim = head->size->dim;
    query_panel *panel = &own->dense->panels[0];
    head->run->pack(head->state.centroids + j * dim, dim, NULL, 1, lanes, dim,
                    head->scale, panel->queries);
    head->run->score(panel->queries, lanes, dim, head->state.projection, dim, rank + 1,
                     own->shift);
    for (int d = 0; d <= rank; d++)
        own->group_shift[d] = own->shift[d * lanes];
}

/* ---- The exact keys of a block ----------------------------------------------------- */

/* Means of `each` neighbouring members, [points][rank]; returns how many. */
static int find_points(const tilted_head *head, int64_t members, tilted_thread *own) {
    const int rank = head->size->rank, each = head->size->each;
    int points = 0;
    for (int64_t first = 0; first < members; first += each, points++) {
        const int64_t count = min(each, members - first);
        float *restrict point = own->point_rows + (int64_t)points * rank;
        memset(point, 0, sizeof(float) * (size_t)rank);
        for (int64_t i = first; i < first + count; i++)
            for (int d = 0; d < rank; d++)
                point[d] += own->shift_rows[i * rank + d];
        for (int d = 0; d < rank; d++)
            point[d] /= (float)count;
    }
    return points;
}

/* Log of the sum of all keys' weights for every point, by the clusters' plain tilts. */
static void weigh_points(const tilted_head *head, int points, tilted_thread *own,
                         float *norms) {
    const kernel_table *run = head->run;
    const int width = panel_width(run, points), rank = head->size->rank;
    const int M = (int)head->size->M;
    float largest[MAX_PANEL], sum[MAX_PANEL] = {0}, keep[MAX_PANEL];
    for (int i = 0; i < width; i++)
        largest[i] = LOWEST_SCORE;
    run->pack(own->point_rows, rank, NULL, points, width, rank, 1, own->point_panel);
    run->score(own->point_panel, width, rank, head->slot->plain, rank, M,
               own->point_scores);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++)
            own->point_scores[m * width + i] += own->group_logs[m];
    run->softmax_step(own->point_scores, width, M, largest, sum, keep);
    for (int i = 0; i < points; i++)
        norms[i] = largest[i] + logf(sum[i]);
}

static float largest_of(const float *x, int count) {
    float best[4] = {x[0], x[0], x[0], x[0]};
    int i = 0;
    for (; i + 4 <= count; i += 4)
        for (int d = 0; d < 4; d++)
            best[d] = x[i + d] > best[d] ? x[i + d] : best[d];
    for (; i < count; i++)
        best[0] = x[i] > best[0] ? x[i] : best[0];
    best[0] = best[1] > best[0] ? best[1] : best[0];
    best[2] = best[3] > best[2] ? best[3] : best[2];
    return best[2] > best[0] ? best[2] : best[0];
}

/* Scores of the pool's keys for every point; the norms become at least the largest. */
static void score_pool(const tilted_head *head, int points, int32_t count,
                       tilted_thread *own, float *norms) {
    const int width = head->run->panel, rank = head->size->rank;
    float best[MAX_POINTS * MAX_PANEL];
    for (int i = 0; i < points * width; i++)
        best[i] = LOWEST_SCORE;
    for (int32_t first = 0; first < count; first += width) {
        float *shares = own->shares + (int64_t)first * points;
        head->run->score(own->pool_panels + (int64_t)first * rank, width, rank,
                         own->point_rows, rank, points, shares);
        head->run->add_and_raise(own->pool_scores + first, width, points, shares, best);
    }
    for (int a = 0; a < points; a++)
        norms[a] = fmaxf(norms[a], largest_of(best + a * width, width));
}

/* Every key's largest share of any point, and how much the tilt would miss. */
static void rank_pool(const tilted_head *head, int points, int32_t count,
                      const float *norms, tilted_thread *own) {
    const int width = head->run->panel;
    for (int32_t first = 0; first < count; first += width)
        head->run->largest_above(own->shares + (int64_t)first * points, width, points,
                                 norms, own->pool_residual + first, own->ranked + first);
}

static void choose_exact(const tilted_head *head, int64_t j, int64_t b, int64_t members,
                         tilted_thread *own) {
    const int32_t count = head->state.pool_counts[j];
    uint16_t *exact = head->state.exact + b * head->size->k;
    float norms[MAX_PANEL];
    if (count == 0)
        return;
    const int points = find_points(head, members, own);
    weigh_points(head, points, own, norms);
    score_pool(head, points, count, own, norms);
    rank_pool(head, points, count, norms, own);
    const int32_t kept = (int32_t)min(head->size->k, count);
    head->run->largest(own->ranked, count, kept, own->keys);
    for (int32_t i = 0; i < kept; i++)
        exact[i] = (uint16_t)own->keys[i];
}

/* ---- What is left of the clusters -------------------------------------------------- */

/* Cluster m as one key-value pair: the mean of what is left of it, and the log of its
   sum. */
static void pair_up(const tilted_head *head, int64_t at, int64_t m, float *row,
                    tilted_thread *own) {
    const int Dv = head->size->value_dim, wide = head->size->wide;
    const float mass = head->state.mass[at];
    if (own->left[m] == 0 || mass == 0) {
        own->left_mass[m] = own->strain[m] = 0;
        own->logs[m] = no_score;
        own->weighted[m] = 0;
        memset(row, 0, sizeof(float) * (size_t)wide);
        return;
    }
    float left = own->left_mass[m];
    left = left < least_left * mass ? least_left * mass : left;
    const float inverse = 1 / left;
    for (int d = 0; d < wide; d++)
        row[d] *= inverse;
    own->weighted[m] = left > least_weighted * mass;
    if (!own->weighted[m])
        memcpy(row + Dv, head->slot->plain + m * head->size->rank,
               sizeof(float) * (size_t)head->size->rank);
    own->left_mass[m] = left;
    own->strain[m] = mass * inverse;
    own->logs[m] = head->state.top[at] + logf(left);
}

/* Names X's keys; returns how many there are. */
static int name_exact(const tilted_head *head, int64_t j, int64_t b, tilted_thread *own) {
    const int count = (int)min(head->size->k, head->state.pool_counts[j]);
    const uint16_t *exact = head->state.exact + b * head->size->k;
    for (int x = 0; x < count; x++) {
        const int32_t l = head->state.pools[j * head->size->p + exact[x]];
        own->keys[x] = l;
        own->is_exact[l / 64] |= (uint64_t)1 << (l % 64);
        own->exact_clusters[x] = head->state.key_clusters[l];
    }
    for (int x = 0; x < count && head->masks.key_bias; x++)
        own->exact_bias[x] = tilted_bias(head, own->keys[x]);
    return count;
}

/* What X's keys weigh in their clusters' sums: exact_weights = -e^(s_jl - top). */
static void weigh_exact(const tilted_head *head, int64_t j, int count,
                        tilted_thread *own) {
    const int width = (int)ceil_divide(count, head->run->lanes) * head->run->lanes;
    const float *top = head->state.top + j * head->size->M;
    float *tops = own->exact_tops, *minus = tops + width, *none = minus + width;
    head->run->dots_at(head->view.k.data, head->view.k.stride, own->keys, count,
                       head->size->dim, head->state.centroids + j * head->size->dim,
                       own->exact_scores);
    for (int x = 0; x < width; x++) {
        tops[x] = x < count ? top[own->exact_clusters[x]] : 0;
        own->exact_weights[x] = x < count ? own->exact_scores[x] *= head->scale : 0;
        minus[x] = -1;
        none[x] = 0;
    }
    if (head->masks.key_bias)
        head->run->add(count, own->exact_bias, own->exact_weights);
    head->run->softmax_slope(own->exact_weights, none, width, 1, tops, minus, none, 0);
}

int sh_tilted_load_block(const tilted_head *head, int64_t j, int64_t b,
                         tilted_thread *own) {
    const int64_t M = head->size->M, wide = head->size->wide;
    const int Dv = head->size->value_dim, rank = head->size->rank;
    const int32_t *offsets = head->slot->keys.offsets;
    const int count = name_exact(head, j, b, own);
    weigh_exact(head, j, count, own);
    memcpy(own->rest, head->state.sums + j * M * wide,
           sizeof(float) * (size_t)(M * wide));
    memcpy(own->left_mass, head->state.mass + j * M, sizeof(float) * (size_t)M);
    for (int64_t m = 0; m < M; m++)
        own->left[m] = offsets[m + 1] - offsets[m];
    for (int x = 0; x < count; x++) {
        own->left[own->exact_clusters[x]]--;
        own->left_mass[own->exact_clusters[x]] += own->exact_weights[x];
    }
    head->run->scatter_rows(head->view.v.data, head->view.v.stride, own->keys,
                            own->exact_clusters, own->exact_weights, count, Dv, own->rest,
                            wide);
    head->run->scatter_rows(head->slot->coordinates, rank, own->keys, own->exact_clusters,
                            own->exact_weights, count, rank, own->rest + Dv, wide);
    for (int64_t m = 0; m < M; m++)
        pair_up(head, j * M + m, m, own->rest + m * wide, own);
    return count;
}

void sh_tilted_leave_block(int count, tilted_thread *own) {
    for (int x = 0; x < count; x++)
        own->is_exact[own->keys[x] / 64] = 0;
}

/* ---- Members ----------------------------------------------------------------------- */

query_panel *sh_tilted_load_members(const tilted_head *head, int64_t first, int64_t last,
                                    tilted_thread *own) {
    const int rank = head->size->rank, dim = head->size->dim;
    query_panel *panel = &own->dense->panels[0];
    sh_dense_cut(own->dense, head->run, first, min(first + head->run->panel, last));
    head->run->pack(head->view.q.data, head->view.q.stride, head->state.order + first,
                    panel->count, panel->width, dim, head->scale, panel->queries);
    head->run->score(panel->queries, panel->width, dim, head->state.projection, dim,
                     rank + 1, own->shift);
    for (int d = 0; d <= rank; d++)
        for (int i = 0; i < panel->width; i++)
            own->shift[d * panel->width + i] -= own->group_shift[d];
    return panel;
}

/* Near rows of the next query lie anywhere: ask for them in time. */
static void prefetch_near(const tilted_head *head, row_view x, int dim, int64_t i) {
    const int64_t first = tilted_near_first(head, i);
    prefetch_rows(x.data + first * x.stride, x.stride, NULL,
                  tilted_near_last(head, i) - first, dim);
}

/* Near keys of the panel's lane: their bias is in both of their scores. */
static void bias_near(const tilted_head *head, int lane, int width, int64_t i,
                      float *scores, tilted_thread *own) {
    const int64_t first = tilted_near_first(head, i), last = tilted_near_last(head, i);
    for (int64_t l = first; l < last; l++) {
        if (head->state.key_clusters[l] < 0 || tilted_is_exact(own, l))
            continue;
        scores[(l - first) * width + lane] += tilted_bias(head, l);
        own->hidden[(l - first) * width + lane] += tilted_bias(head, l);
    }
}

/* Near keys of the panel's lane: their own scores, and those that they have in the
   rest. */
static void score_near(const tilted_head *head, int64_t j, int lane, int width, int64_t i,
                       float *scores, tilted_thread *own) {
    const row_view q = head->view.q, k = head->view.k;
    const int dim = head->size->dim, rows = 2 * head->size->near + 1;
    const int64_t first = tilted_near_first(head, i), last = tilted_near_last(head, i);
    const float *start = k.data + first * k.stride;
    float *mine = own->near_weights, *shared = own->unused;
    head->run->two_dots(start, k.stride, last - first, dim, q.data + i * q.stride,
                        head->state.centroids + j * dim, mine, shared);
    for (int64_t a = 0; a < rows; a++) {
        const int64_t l = first + a;
        const int64_t m =
            l < last && !tilted_is_exact(own, l) ? head->state.key_clusters[l] : -1;
        const int there = m >= 0;
        scores[a * width + lane] = there ? head->scale * mine[a] : no_score;
        own->hidden[a * width + lane] =
            there ? head->scale * shared[a] + own->tilts[m * width + lane] : no_score;
    }
    if (head->masks.key_bias)
        bias_near(head, lane, width, i, scores, own);
}

int sh_tilted_score_members(const tilted_head *head, int64_t j, int count,
                            const query_panel *panel, tilted_thread *own) {
    const kernel_table *run = head->run;
    const int width = panel->width, rank = head->size->rank, dim = head->size->dim;
    const int M = (int)head->size->M, wide = head->size->wide;
    const int near = tilted_near_rows(head, j);
    float *scores = own->scores + (int64_t)count * width;
    run->score_at(panel->queries, width, dim, head->view.k.data, head->view.k.stride,
                  own->keys, count, own->scores);
    if (head->masks.key_bias)
        run->add_to_rows(own->exact_bias, 1, width, count, own->scores);
    run->score(own->shift, width, rank, own->rest + head->size->value_dim, wide, M,
               own->tilts);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++) {
            own->tilts[m * width + i] += own->shift[rank * width + i];
            scores[m * width + i] = own->tilts[m * width + i] + own->logs[m];
        }
    scores += (int64_t)M * width;
    for (int a = 0; a < near; a++)
        for (int i = panel->count; i < width; i++)
            scores[a * width + i] = own->hidden[a * width + i] = no_score;
    for (int i = 0; i < panel->count && near > 0; i++) {
        if (i + 1 < panel->count)
            prefetch_near(head, head->view.k, dim,
                          head->state.order[panel->first + i + 1]);
        score_near(head, j, i, width, head->state.order[panel->first + i], scores, own);
    }
    return count + M + near;
}

/* ---- A query whose rest was lost by subtraction ------------------------------------ */

/* Without subtraction: what keys outside the pool have in the clusters, summed again, for
   a group that has such a query; and the pool's keys one by one. So it costs a pass over
   the keys for every such group, and a pass over the pool for every such query. */
static void load_tail(const tilted_head *head, int64_t j, int64_t m, tilted_thread *own) {
    const row_view k = head->view.k, v = head->view.v;
    const int Dv = head->size->value_dim, dim = head->size->dim;
    const int64_t last = head->slot->keys.offsets[m + 1];
    float *tail = own->tails + m * Dv, *scores = own->direct_scores;
    float top = LOWEST_SCORE, mass = 0;
    memset(tail, 0, sizeof(float) * (size_t)Dv);
    for (int64_t at = head->slot->keys.offsets[m]; at < last; at += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, last - at);
        const int32_t *keys = head->slot->keys.order + at;
        head->run->dots_at(k.data, k.stride, keys, count, dim,
                           head->state.centroids + j * dim, scores);
        const float before = top;
        for (int x = 0; x < count; x++) {
            scores[x] = bit_of(own->is_pooled, keys[x])
                            ? -INFINITY
                            : head->scale * scores[x] + tilted_bias(head, keys[x]);
            top = scores[x] > top ? scores[x] : top;
        }
        const float keep = expf(before - top);
        mass *= keep;
        for (int x = 0; x < count; x++)
            mass += scores[x] = expf(scores[x] - top);
        head->run->sum_rows(v.data, v.stride, keys, scores, count, Dv, own->row);
        for (int d = 0; d < Dv; d++)
            tail[d] = tail[d] * keep + own->row[d];
    }
    own->tail_logs[m] = mass > 0 ? top + logf(mass) : no_score;
    for (int d = 0; d < Dv && mass > 0; d++)
        tail[d] /= mass;
}

static void load_direct(const tilted_head *head, int64_t j, tilted_thread *own) {
    const row_view k = head->view.k;
    const int32_t count = head->state.pool_counts[j];
    const int32_t *pool = head->state.pools + j * head->size->p;
    for (int32_t x = 0; x < count; x++)
        own->is_pooled[pool[x] / 64] |= (uint64_t)1 << (pool[x] % 64);
    head->run->dots_at(k.data, k.stride, pool, count, head->size->dim,
                       head->state.centroids + j * head->size->dim, own->pool_direct);
    for (int64_t m = 0; m < head->size->M; m++)
        load_tail(head, j, m, own);
    own->has_direct = 1;
}

static void leave_direct(const tilted_head *head, int64_t j, tilted_thread *own) {
    const int32_t *pool = head->state.pools + j * head->size->p;
    for (int32_t x = 0; x < head->state.pool_counts[j] && own->has_direct; x++)
        own->is_pooled[pool[x] / 64] = 0;
    own->has_direct = 0;
}

/* A softmax that is added up, or taken off, part by part. */
typedef struct {
    const tilted_head *head;
    tilted_thread *own;
    double largest, sum;
    float *out;
} direct_sum;

/* Scores of `count` rows; index NULL: rows 0, 1, ... */
static void add_direct(direct_sum *total, float *scores, int count, double sign,
                       row_view rows, const int32_t *index) {
    const int Dv = total->head->size->value_dim;
    double top = total->largest;
    for (int x = 0; x < count && sign > 0; x++)
        top = !((double)scores[x] <= top) ? (double)scores[x] : top;
    const double keep = exp(total->largest - top);
    total->sum *= keep;
    for (int x = 0; x < count; x++) {
        const double weight = sign * exp((double)scores[x] - top);
        total->sum += weight;
        scores[x] = (float)weight;
    }
    total->head->run->sum_rows(rows.data, rows.stride, index, scores, count, Dv,
                               total->own->row);
    for (int d = 0; d < Dv; d++)
        total->out[d] = total->out[d] * (float)keep + total->own->row[d];
    total->largest = top;
}

/* Near keys outside X: their own scores; and what they have in the tails, which is taken
   off once those are there: `hidden` and hidden_keys. Returns how many such there are. */
static int add_near_directly(direct_sum *total, int64_t j, int64_t i, int lane,
                             int width) {
    const tilted_head *head = total->head;
    tilted_thread *own = total->own;
    const row_view q = head->view.q, k = head->view.k;
    const int64_t first = tilted_near_first(head, i), last = tilted_near_last(head, i);
    float *shared = own->unused;
    int32_t *keys = own->direct_keys;
    int count = 0, hiding = 0;
    head->run->two_dots(k.data + first * k.stride, k.stride, last - first,
                        head->size->dim, q.data + i * q.stride,
                        head->state.centroids + j * head->size->dim, own->near_weights,
                        shared);
    for (int64_t l = first; l < last; l++) {
        if (head->state.key_clusters[l] < 0 || tilted_is_exact(own, l))
            continue;
        const float bias = tilted_bias(head, l);
        own->direct_scores[count] = head->scale * own->near_weights[l - first] + bias;
        keys[count++] = (int32_t)l;
        if (bit_of(own->is_pooled, l))
            continue;
        own->hidden[hiding] = head->scale * shared[l - first] + bias +
                              own->tilts[head->state.key_clusters[l] * width + lane];
        own->hidden_keys[hiding++] = (int32_t)l;
    }
    add_direct(total, own->direct_scores, count, 1, head->view.v, keys);
    return hiding;
}

/* Keys of the pool that are neither in X nor near. */
static void add_pool_directly(direct_sum *total, int64_t j, int64_t i, int lane,
                              int width) {
    const tilted_head *head = total->head;
    tilted_thread *own = total->own;
    const int32_t *pool = head->state.pools + j * head->size->p;
    const int64_t near = tilted_near_rows(head, j) > 0 ? head->size->near : -1;
    int count = 0;
    for (int32_t x = 0; x < head->state.pool_counts[j]; x++) {
        const int64_t l = pool[x], m = head->state.key_clusters[l];
        if (tilted_is_exact(own, l) || llabs(l - i) <= near)
            continue;
        own->direct_scores[count] = head->scale * own->pool_direct[x] +
                                    tilted_bias(head, l) + own->tilts[m * width + lane];
        own->direct_keys[count++] = (int32_t)l;
    }
    add_direct(total, own->direct_scores, count, 1, head->view.v, own->direct_keys);
}

static void attend_directly(const tilted_head *head, int64_t j, int count, int lane,
                            int width, int64_t i, tilted_thread *own) {
    const int Dv = head->size->value_dim, M = (int)head->size->M;
    const row_view q = head->view.q, k = head->view.k;
    float *out = head->out.data + i * head->out.stride, *scores = own->direct_scores;
    int hiding = 0;
    direct_sum total = {head, own, (double)LOWEST_SCORE, 0, out};
    if (!own->has_direct)
        load_direct(head, j, own);
    memset(out, 0, sizeof *out * (size_t)Dv);
    head->run->dots_at(k.data, k.stride, own->keys, count, head->size->dim,
                       q.data + i * q.stride, scores);
    for (int x = 0; x < count; x++)
        scores[x] = head->scale * scores[x] + tilted_bias(head, own->keys[x]);
    add_direct(&total, scores, count, 1, head->view.v, own->keys);
    if (tilted_near_rows(head, j) > 0)
        hiding = add_near_directly(&total, j, i, lane, width);
    add_pool_directly(&total, j, i, lane, width);
    for (int m = 0; m < M; m++)
        scores[m] = own->tail_logs[m] + own->tilts[m * width + lane];
    add_direct(&total, scores, M, 1, (row_view){own->tails, Dv}, NULL);
    add_direct(&total, own->hidden, hiding, -1, head->view.v, own->hidden_keys);
    for (int d = 0; d < Dv; d++)
        out[d] = (float)((double)out[d] / total.sum);
    if (head->state.log_sums)
        head->state.log_sums[i] = (float)(total.largest + log(total.sum));
}

/* ---- Outputs ----------------------------------------------------------------------- */

/* Near keys: what they have in the rest is taken from the sums, and their values are
   weighed. `scores` are their own weights. */
static void take_hidden(const tilted_head *head, const query_panel *panel, int near,
                        float *scores, tilted_thread *own) {
    const int width = panel->width;
    float one[MAX_PANEL], none[MAX_PANEL] = {0};
    for (int i = 0; i < width; i++)
        one[i] = 1;
    memset(own->unused, 0, sizeof(float) * (size_t)(near * width));
    head->run->softmax_slope(own->hidden, own->unused, width, near, panel->largest, one,
                             none, 0);
    for (int a = 0; a < near; a++)
        for (int i = 0; i < width; i++) {
            scores[a * width + i] -= own->hidden[a * width + i];
            panel->sum[i] -= own->hidden[a * width + i];
        }
}

static void add_near(const tilted_head *head, const query_panel *panel, int near,
                     int lane, int64_t i, const float *weights, tilted_thread *own) {
    const row_view v = head->view.v;
    const int64_t first = tilted_near_first(head, i), last = tilted_near_last(head, i);
    for (int a = 0; a < near; a++)
        own->near_weights[a] = weights[a * panel->width + lane] * panel->inverse[lane];
    head->run->sum_rows(v.data + first * v.stride, v.stride, NULL, own->near_weights,
                        last - first, head->size->value_dim, own->row);
    add_scaled(head->out.data + i * head->out.stride, 1, own->row, head->size->value_dim);
}

/* What the clusters' rests weigh beside all keys, before near keys are taken off. */
static void keep_rest(const tilted_head *head, const query_panel *panel, int M,
                      const float *pairs) {
    const int32_t *order = head->state.order + panel->first;
    float *rest = head->call->approximated + head->view.head * head->size->N;
    for (int i = 0; i < panel->count; i++) {
        float sum = 0;
        for (int m = 0; m < M; m++)
            sum += pairs[m * panel->width + i];
        rest[order[i]] = sum / panel->sum[i];
    }
}

/* Members first .. of block b, one panel of them. */
static void attend_members(const tilted_head *head, int64_t j, int count,
                           query_panel *panel, tilted_thread *own) {
    const kernel_table *run = head->run;
    const int width = panel->width, Dv = head->size->value_dim, wide = head->size->wide;
    const int M = (int)head->size->M, near = tilted_near_rows(head, j);
    const int32_t *order = head->state.order + panel->first;
    float *pairs = own->scores + (int64_t)count * width, *nearby = pairs + M * width;
    float strain[MAX_PANEL] = {0};
    const int rows = sh_tilted_score_members(head, j, count, panel, own);
    for (int i = 0; i < width; i++) {
        panel->largest[i] = LOWEST_SCORE;
        panel->sum[i] = 0;
    }
    memset(panel->outputs, 0, sizeof(float) * (size_t)(Dv * width));
    run->softmax_step(own->scores, width, rows, panel->largest, panel->sum, panel->keep);
    run->mix_at(own->scores, width, head->view.v.data, head->view.v.stride, own->keys,
                count, Dv, panel->outputs);
    run->mix(pairs, width, own->rest, wide, M, Dv, NULL, panel->outputs);
    run->mix(pairs, width, own->strain, 1, M, 1, NULL, strain);
    if (head->call->approximated)
        keep_rest(head, panel, M, pairs);
    if (near > 0)
        take_hidden(head, panel, near, nearby, own);
    for (int i = 0; i < width; i++)
        panel->inverse[i] = 1 / panel->sum[i];
    run->unpack(panel->outputs, panel->count, width, Dv, panel->inverse, NULL, 0,
                head->out.data, head->out.stride, order);
    for (int i = 0; i < panel->count; i++) {
        if (near > 0 && i + 1 < panel->count)
            prefetch_near(head, head->view.v, Dv, order[i + 1]);
        if (near > 0)
            add_near(head, panel, near, i, order[i], nearby, own);
        if (head->state.log_sums)
            head->state.log_sums[order[i]] = panel->largest[i] + logf(panel->sum[i]);
        if (strain[i] > TILTED_STRAIN * panel->sum[i])
            attend_directly(head, j, count, i, width, order[i], own);
    }
}

static void attend_block(const tilted_head *head, int64_t j, int64_t b, int64_t first,
                         int64_t last, tilted_thread *own) {
    const int rank = head->size->rank;
    query_panel *panel = NULL;
    for (int64_t at = first; at < last; at += panel->count) {
        panel = sh_tilted_load_members(head, at, last, own);
        head->run->unpack(own->shift, panel->count, panel->width, rank, NULL, NULL, 0,
                          own->shift_rows + (at - first) * rank, rank, NULL);
    }
    choose_exact(head, j, b, last - first, own);
    const int count = sh_tilted_load_block(head, j, b, own);
    const int whole = panel && panel->first == first; /* one panel, still loaded */
    for (int64_t at = first; at < last; at += panel->count) {
        if (!whole)
            panel = sh_tilted_load_members(head, at, last, own);
        attend_members(head, j, count, panel, own);
    }
    sh_tilted_leave_block(count, own);
}

void sh_tilted_attend_group(const tilted_head *head, int64_t j, tilted_thread *own) {
    const int32_t *offsets = head->slot->sorted.offsets;
    const int64_t first = offsets[j], last = offsets[j + 1], size = head->size->block;
    if (first == last)
        return;
    load_pool(head, j, own);
    sh_tilted_load_group(head, j, own);
    int64_t b = head->slot->block_offsets[j];
    for (int64_t at = first; at < last; at += size, b++)
        attend_block(head, j, b, at, min(at + size, last), own);
    leave_direct(head, j, own);
}
