/* Blocks of alike members of a cluster: their exact keys, and their outputs. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attention/shoal_kind.h"

/* Of a cluster's sum: with less left, what is left has no mean of its own. */
static const float least_weighted = 1e-3f, least_left = 1e-6f;

/* A second-order term above this is not a number that counts; its square is one. */
static const float largest_bend = 1e18f;

/* A score that weighs nothing; not -inf, which could meet another. */
static const float no_score = -FLT_MAX / 4;

typedef struct {
    const shoal_head *head;
    const shoal_clusters *clusters;
    const shoal_sums *sums;
    const shoal_moments *moments;
    const shoal_choices *choices;
    row_view out;
} block_job;

/* ---- The pool of a cluster --------------------------------------------------------- */

/* The pool of a cluster, and the points that choose from it for a block. */
struct shoal_pool {
    _Alignas(CACHE_LINE) int32_t count;
    float *panels;       /* [panels of p][r][panel]: z */
    float *scores;       /* [p]: s_jl */
    float *residual;     /* [p]: log of how far a tilt is from the key's own score */
    float *shares;       /* [points][panels of p][panel] */
    float *missed;       /* [p]: how much its key would be missed */
    float *logs;         /* [M]: log of the clusters' sums */
    float *points;       /* [points][r]: means of d */
    float *point_panel;  /* [r][panel] */
    float *point_scores; /* [M][panel] */
};

static void place_pool(shoal_pool *pool, const shoal_sizes *size, int64_t width,
                       block_layout *work) {
    const int64_t p = ceil_divide(size->p, width) * width, r = size->dims;
    pool->panels = reserve_floats(work, p, r);
    pool->scores = reserve_floats(work, p, 1);
    pool->residual = reserve_floats(work, p, 1);
    pool->shares = reserve_floats(work, p, max(size->points, 1));
    pool->missed = reserve_floats(work, p, 1);
    pool->logs = reserve_floats(work, size->M, 1);
    pool->points = reserve_floats(work, size->points, r);
    pool->point_panel = reserve_floats(work, r, width);
    pool->point_scores = reserve_floats(work, size->M, width);
}

/* What the choice of a panel of the pool's keys, from `first` on, is told by: the
   centroid's scores, and how far their tilts are from their clusters'. Lanes without a
   key are never chosen. */
static void weigh_candidates(const shoal_head *head, const shoal_clusters *clusters,
                             int64_t j, const int32_t *keys, const uint64_t *candidates,
                             int32_t first, shoal_pool *pool) {
    const int width = head->kernels->panel, r = head->size.dims;
    const int count = (int)min(width, pool->count - first);
    const float *variances = clusters->variances + j * r;
    float *z = pool->panels + (int64_t)first * r, *plain = pool->point_panel;
    float spread[MAX_PANEL] = {0}, apart[MAX_PANEL] = {0};
    int32_t of_keys[MAX_PANEL];
    for (int i = 0; i < count; i++)
        of_keys[i] = clusters->of_keys[keys[first + i]];
    head->kernels->pack(clusters->coordinates, r, keys + first, count, width, r, 1, z);
    head->kernels->pack(clusters->plain, r, of_keys, count, width, r, 1, plain);
    for (int d = 0; d < r; d++)
        for (int i = 0; i < width; i++) {
            const float x = z[d * width + i], away = x - plain[d * width + i];
            spread[i] += variances[d] * x * x;
            apart[i] += variances[d] * away * away;
        }
    for (int i = 0; i < width; i++) {
        const int there = i < count;
        const float expected = there ? candidate_score(candidates[first + i]) : 0;
        pool->scores[first + i] = there ? expected - spread[i] / 2 : no_score;
        pool->residual[first + i] = logf(apart[i] + 1e-6f) / 2;
    }
}

/* Loads the pool of cluster j, whose keys and candidates are found. */
static void load_pool(const shoal_head *head, const shoal_clusters *clusters,
                      const shoal_sums *sums, const shoal_choices *choices, int64_t j,
                      shoal_pool *pool) {
    const int64_t M = head->size.M, p = head->size.p;
    pool->count = choices->pool_counts[j];
    for (int32_t first = 0; first < pool->count; first += head->kernels->panel)
        weigh_candidates(head, clusters, j, choices->pools + j * p,
                         sums->candidates + j * SHOAL_CHUNKS * p, first, pool);
    for (int64_t m = 0; m < M; m++) {
        const float mass = sums->mass[j * M + m];
        pool->logs[m] = mass > 0 ? sums->top[j * M + m] + logf(mass) : no_score;
    }
}

/* Log of the sum of all keys' weights for centroid j. */
static float log_of_all(const shoal_head *head, const shoal_sums *sums, int64_t j) {
    const int64_t M = head->size.M;
    const float *tops = sums->top + j * M, *mass = sums->mass + j * M;
    float top = LOWEST_SCORE, sum = 0;
    for (int64_t m = 0; m < M; m++)
        top = mass[m] > 0 && tops[m] > top ? tops[m] : top;
    for (int64_t m = 0; m < M; m++)
        sum += mass[m] > 0 ? mass[m] * expf(tops[m] - top) : 0;
    return top + logf(sum);
}

/* Keys whose weights tell how concentrated attention is, and the bounds between spread
   and concentrated attention. */
enum { SHOAL_FOREMOST = 64 };
static const double spread_below = 0.25, concentrated_from = 0.5;

/* The best candidates of all chunks, which are merged in place, are the pool. */
static void pool_task(void *shared, int64_t j, int thread) {
    const block_job *job = shared;
    const shoal_head *head = job->head;
    shoal_pool *pool = &head->work->pools[thread];
    const int64_t p = head->size.p;
    uint64_t *list = job->sums->candidates + j * SHOAL_CHUNKS * p;
    int32_t *keys = job->choices->pools + j * p, count = 0;
    for (int64_t chunk = 0; chunk < job->clusters->chunks; chunk++) {
        const int32_t more = job->sums->counts[j * SHOAL_CHUNKS + chunk];
        memmove(list + count, list + chunk * p, (size_t)more * sizeof *list);
        count = sh_topk_cut(list, count + more, (int32_t)p);
    }
    for (int32_t i = 0; i < count; i++)
        keys[i] = job->clusters->keys.order[candidate_key(list[i])];
    job->choices->pool_counts[j] = count;
    job->sums->concentration[j] = 0;
    if (head->size.k_of[0] == head->size.k)
        return;
    /* A candidate's score is the centroid's, and half the spread of the members'. */
    const int r = head->size.dims;
    const float *variances = job->clusters->variances + j * r;
    const float whole = log_of_all(head, job->sums, j);
    int32_t places[SHOAL_FOREMOST];
    const int32_t best = (int32_t)min(SHOAL_FOREMOST, count);
    for (int32_t i = 0; i < count; i++)
        pool->missed[i] = candidate_score(list[i]);
    head->kernels->largest(pool->missed, count, best, places);
    for (int32_t i = 0; i < best; i++) {
        const float *z = job->clusters->coordinates + (int64_t)keys[places[i]] * r;
        float spread = 0;
        for (int d = 0; d < r; d++)
            spread += variances[d] * z[d] * z[d];
        job->sums->concentration[j] += expf(pool->missed[places[i]] - spread / 2 - whole);
    }
}

void sh_shoal_find_pools(const shoal_head *head, const shoal_clusters *clusters,
                         const shoal_sums *sums, const shoal_choices *choices,
                         team workers) {
    block_job job = {.head = head,
                     .clusters = clusters,
                     .sums = sums,
                     .choices = choices};
    sh_team_run(workers, clusters->queries.used, pool_task, &job);
}

int64_t sh_shoal_topk(const shoal_head *head, const shoal_clusters *clusters,
                      const shoal_sums *sums) {
    const int32_t *offsets = clusters->queries.offsets;
    double tau = 0;
    for (int64_t j = 0; j < clusters->queries.used; j++)
        tau += (double)(offsets[j + 1] - offsets[j]) * (double)sums->concentration[j];
    tau /= (double)head->view.queries;
    return head->size.k_of[tau < spread_below ? 0 : tau < concentrated_from ? 1 : 2];
}

/* sigma of cluster j: what its key clusters hold of the keys that are probably not exact,
   those outside the k best candidates; and J, which it makes. */
static void find_shares(const shoal_head *head, const shoal_clusters *clusters,
                        const shoal_sums *sums, const shoal_moments *moments, int64_t j,
                        const int32_t *keys, const uint64_t *candidates,
                        const shoal_pool *pool, int32_t *chosen) {
    const int64_t M = head->size.M;
    const int32_t kept = (int32_t)min(head->size.k, pool->count);
    float *shares = sums->shares + j * M, sum = 0;
    const float whole = log_of_all(head, sums, j);
    for (int64_t m = 0; m < M; m++)
        shares[m] = expf(pool->logs[m] - whole);
    for (int32_t i = 0; i < pool->count; i++)
        pool->missed[i] = candidate_score(candidates[i]);
    head->kernels->largest(pool->missed, pool->count, kept, chosen);
    for (int32_t i = 0; i < kept; i++)
        shares[clusters->of_keys[keys[chosen[i]]]] -=
            expf(pool->scores[chosen[i]] - whole);
    for (int64_t m = 0; m < M; m++) {
        const float least = least_left * expf(pool->logs[m] - whole);
        shares[m] = shares[m] > least ? shares[m] : least;
        sum += shares[m];
    }
    for (int64_t m = 0; m < M; m++)
        shares[m] /= sum;
    sh_shoal_find_dipole(head, moments, shares, j);
}

/* ---- The exact keys of a block ----------------------------------------------------- */

/* Log of the sum of all keys' weights for every point, by the clusters' plain tilts. */
static void weigh_points(const shoal_head *head, const shoal_clusters *clusters,
                         int points, const shoal_pool *pool, float *norms) {
    const kernel_table *kernels = head->kernels;
    const int width = panel_width(kernels, points), r = head->size.dims;
    const int M = (int)head->size.M;
    float largest[MAX_PANEL], sum[MAX_PANEL] = {0}, keep[MAX_PANEL];
    for (int i = 0; i < width; i++)
        largest[i] = LOWEST_SCORE;
    kernels->pack(pool->points, r, NULL, points, width, r, 1, pool->point_panel);
    kernels->score(pool->point_panel, width, r, clusters->plain, r, M,
                   pool->point_scores);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++)
            pool->point_scores[m * width + i] += pool->logs[m];
    kernels->softmax_step(pool->point_scores, width, M, largest, sum, keep);
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

/* The keys of the pool that would be missed most: those with the largest share in any
   point's weights, where the tilt is far from the score. chosen: [k], scratch. */
static void choose_exact(const shoal_head *head, const shoal_clusters *clusters,
                         const float *d_rows, int64_t members, const shoal_pool *pool,
                         int32_t *chosen, uint16_t *exact) {
    const kernel_table *kernels = head->kernels;
    const int width = kernels->panel, r = head->size.dims;
    const int32_t count = pool->count, kept = (int32_t)min(head->size.k, count);
    float norms[MAX_PANEL], best[SHOAL_POINTS * MAX_PANEL];
    if (count == 0)
        return;
    /* Points are means of `each` neighbouring rows d. */
    const int each = head->size.each;
    int points = 0;
    for (int64_t first = 0; first < members; first += each, points++) {
        const int64_t some = min(each, members - first);
        float *restrict point = pool->points + (int64_t)points * r;
        memset(point, 0, sizeof(float) * (size_t)r);
        for (int64_t i = first; i < first + some; i++)
            for (int d = 0; d < r; d++)
                point[d] += d_rows[i * r + d];
        for (int d = 0; d < r; d++)
            point[d] /= (float)some;
    }
    weigh_points(head, clusters, points, pool, norms);
    for (int i = 0; i < points * width; i++)
        best[i] = LOWEST_SCORE;
    for (int32_t first = 0; first < count; first += width) {
        float *shares = pool->shares + (int64_t)first * points;
        kernels->score(pool->panels + (int64_t)first * r, width, r, pool->points, r,
                       points, shares);
        kernels->add_and_raise(pool->scores + first, width, points, shares, best);
    }
    for (int a = 0; a < points; a++) /* no share is larger than 1 */
        norms[a] = fmaxf(norms[a], largest_of(best + a * width, width));
    for (int32_t first = 0; first < count; first += width)
        kernels->largest_above(pool->shares + (int64_t)first * points, width, points,
                               norms, pool->residual + first, pool->missed + first);
    kernels->largest(pool->missed, count, kept, chosen);
    for (int32_t i = 0; i < kept; i++)
        exact[i] = (uint16_t)chosen[i];
}

/* ---- What is left of the clusters -------------------------------------------------- */

static void place_block(shoal_block *block, const shoal_sizes *size,
                        const kernel_table *kernels, block_layout *work) {
    const int64_t k = size->k, M = size->M, lanes = kernels->lanes;
    const int64_t vectors = ceil_divide(k, lanes) * lanes; /* whole ones */
    block->keys = sh_reserve(work, k, sizeof(int32_t));
    block->clusters = sh_reserve(work, k, sizeof(int32_t));
    block->bias = reserve_floats(work, k, 1);
    block->is_exact = sh_reserve(work, size->S / 64 + 1, sizeof(uint64_t));
    block->centroid = reserve_floats(work, size->dim, 1);
    block->panel = reserve_floats(work, size->dim, panel_width(kernels, k));
    block->scores = reserve_floats(work, vectors, 1);
    block->weights = reserve_floats(work, vectors, 1);
    block->tops = reserve_floats(work, 3, vectors);
    block->rest = reserve_floats(work, M, size->wide);
    block->left_mass = reserve_floats(work, M, 1);
    block->strain = reserve_floats(work, M, 1);
    block->left = sh_reserve(work, M, sizeof(int32_t));
    block->weighted = sh_reserve(work, M, 1);
    block->means = reserve_floats(work, M, size->dims);
    block->has_mean = sh_reserve(work, M, 1);
    block->logs = reserve_floats(work, M, 1);
    if (block->is_exact)
        memset(block->is_exact, 0, sizeof(uint64_t) * (size_t)(size->S / 64 + 1));
}

/* Cluster m as one key-value pair: the mean of what is left of it, and the log of its
   sum. */
static void pair_up(const shoal_head *head, int64_t m, float mass, float top,
                    const float *plain, shoal_block *block) {
    const int wide = head->size.wide;
    float *row = block->rest + m * wide;
    if (block->left[m] == 0 || mass == 0) {
        block->left_mass[m] = block->strain[m] = 0;
        block->logs[m] = no_score;
        block->weighted[m] = 0;
        memset(row, 0, sizeof(float) * (size_t)wide);
        return;
    }
    float left = block->left_mass[m];
    left = left < least_left * mass ? least_left * mass : left;
    const float inverse = 1 / left;
    for (int d = 0; d < wide; d++)
        row[d] *= inverse;
    block->weighted[m] = left > least_weighted * mass;
    if (!block->weighted[m])
        memcpy(row + head->size.value_dim, plain,
               sizeof(float) * (size_t)head->size.dims);
    block->left_mass[m] = left;
    block->strain[m] = mass * inverse;
    block->logs[m] = top + logf(left);
}

/* s_jl of X, without bias: the same bits as in the sums (attend_keys), from which X's
   weights are subtracted. Scores in the thousands that were added up in another order
   would leave a thousandth of a weight there, and all that is left may be less. */
static void score_exact(const shoal_head *head, const float *centroid,
                        const shoal_block *block) {
    const kernel_table *kernels = head->kernels;
    const row_view k = head->view.k;
    const int dim = head->size.dim;
    for (int d = 0; d < dim; d++)
        block->centroid[d] = head->scale * centroid[d];
    for (int first = 0; first < block->count; first += kernels->panel) {
        const int count = (int)min(kernels->panel, block->count - first);
        const int width = panel_width(kernels, count);
        kernels->pack(k.data, k.stride, block->keys + first, count, width, dim, 1,
                      block->panel);
        kernels->score(block->panel, width, dim, block->centroid, dim, 1,
                       block->scores + first);
    }
}

void sh_shoal_load_block(const shoal_head *head, const shoal_clusters *clusters,
                         const shoal_sums *sums, const shoal_choices *choices, int64_t j,
                         int64_t b, shoal_block *block) {
    const int64_t M = head->size.M, wide = head->size.wide, at = j * M;
    const int Dv = head->size.value_dim, r = head->size.dims;
    const int count = (int)min(head->size.k, choices->pool_counts[j]);
    const uint16_t *exact = choices->exact + b * head->size.k;
    const int32_t *offsets = clusters->keys.offsets;
    block->j = j;
    block->count = count;
    for (int x = 0; x < count; x++) {
        const int32_t l = choices->pools[j * head->size.p + exact[x]];
        block->keys[x] = l;
        block->is_exact[l / 64] |= (uint64_t)1 << (l % 64);
        block->clusters[x] = clusters->of_keys[l];
    }
    for (int x = 0; x < count && head->masks.key_bias; x++)
        block->bias[x] = key_bias_of(head, block->keys[x]);
    /* What X's keys weigh in their clusters' sums: weights = -e^(s_jl - top). */
    const kernel_table *kernels = head->kernels;
    const int width = (int)ceil_divide(block->count, kernels->lanes) * kernels->lanes;
    float *tops = block->tops, *minus = tops + width, *none = minus + width;
    score_exact(head, clusters->centroids + j * head->size.dim, block);
    for (int x = 0; x < width; x++) {
        const int there = x < block->count;
        tops[x] = there ? sums->top[at + block->clusters[x]] : 0;
        block->weights[x] = there ? block->scores[x] : 0;
        minus[x] = -1;
        none[x] = 0;
    }
    if (head->masks.key_bias)
        kernels->add(block->count, block->bias, block->weights);
    kernels->softmax_slope(block->weights, none, width, 1, tops, minus, none, 0);
    memcpy(block->rest, sums->wide + at * wide, sizeof(float) * (size_t)(M * wide));
    memcpy(block->left_mass, sums->mass + at, sizeof(float) * (size_t)M);
    for (int64_t m = 0; m < M; m++)
        block->left[m] = offsets[m + 1] - offsets[m];
    for (int x = 0; x < count; x++) {
        block->left[block->clusters[x]]--;
        block->left_mass[block->clusters[x]] += block->weights[x];
    }
    head->kernels->scatter_rows(head->view.v.data, head->view.v.stride, block->keys,
                                block->clusters, block->weights, count, Dv, block->rest,
                                wide);
    head->kernels->scatter_rows(clusters->coordinates, r, block->keys, block->clusters,
                                block->weights, count, r, block->rest + Dv, wide);
    for (int64_t m = 0; m < M; m++)
        pair_up(head, m, sums->mass[at + m], sums->top[at + m], clusters->plain + m * r,
                block);
    memset(block->has_mean, 0, (size_t)M);
}

void sh_shoal_leave_block(shoal_block *block) {
    for (int x = 0; x < block->count; x++)
        block->is_exact[block->keys[x] / 64] = 0;
}

/* ---- Members ----------------------------------------------------------------------- */

static void place_members(shoal_members *members, const shoal_sizes *size, int64_t width,
                          block_layout *work) {
    const int64_t near = 2 * size->near + 1, r = size->dims;
    members->d = reserve_floats(work, r + 1, width);
    members->d_rows = reserve_floats(work, size->block, r);
    members->tilts = reserve_floats(work, size->M, width);
    members->squares = reserve_floats(work, r, width);
    members->bends = reserve_floats(work, size->M, width);
    members->scores = reserve_floats(work, size->k + size->M + near, width);
    members->hidden = reserve_floats(work, near, width);
    members->hidden_bends = reserve_floats(work, near, width);
    members->hidden_slopes = reserve_floats(work, near, width);
    members->near_weights = reserve_floats(work, near, 1);
    members->row = reserve_floats(work, max(size->dim, size->wide), 1);
}

void sh_shoal_load_members(const shoal_head *head, const shoal_clusters *clusters,
                           int64_t j, int64_t first, int64_t last,
                           shoal_members *members) {
    const int r = head->size.dims, dim = head->size.dim;
    const int32_t *offsets = clusters->queries.offsets;
    const float *shift = clusters->centroid_shift + j * (r + 1);
    query_panel *panel = members->panel;
    sh_dense_cut(members->dense, head->kernels, first,
                 min(first + head->kernels->panel, last));
    members->queries = clusters->queries.order + first;
    /* A cluster of one is exact without near keys. */
    members->near = head->size.near > 0 && offsets[j + 1] - offsets[j] > 1
                        ? 2 * head->size.near + 1
                        : 0;
    head->kernels->pack(head->view.q.data, head->view.q.stride, members->queries,
                        panel->count, panel->width, dim, head->scale, panel->queries);
    head->kernels->score(panel->queries, panel->width, dim, clusters->projection, dim,
                         r + 1, members->d);
    for (int d = 0; d <= r; d++)
        for (int i = 0; i < panel->width; i++)
            members->d[d * panel->width + i] -= shift[d];
}

/* Near rows of the next query lie anywhere: ask for them in time. */
static void prefetch_near(const shoal_head *head, row_view x, int dim, int64_t i) {
    const int64_t first = near_first(head, i);
    prefetch_rows(x.data + first * x.stride, x.stride, NULL, near_last(head, i) - first,
                  dim);
}

/* Near keys of the panel's lane: their own scores, and those that they have in the rest.
   A key's bias is in both. */
static void score_near(const shoal_head *head, const shoal_clusters *clusters,
                       const shoal_members *members, int lane, float *scores) {
    const shoal_block *block = members->block;
    const row_view q = head->view.q, k = head->view.k;
    const int dim = head->size.dim, width = members->panel->width;
    const int64_t i = members->queries[lane];
    const int64_t first = near_first(head, i), last = near_last(head, i);
    float *mine = members->near_weights, *shared = members->hidden_slopes;
    head->kernels->two_dots(k.data + first * k.stride, k.stride, last - first, dim,
                            q.data + i * q.stride, clusters->centroids + block->j * dim,
                            mine, shared);
    for (int64_t a = 0; a < members->near; a++) {
        const int64_t l = first + a, at = a * width + lane;
        const int64_t m = l < last && !bit_of(block->is_exact, l) ? clusters->of_keys[l]
                                                                  : -1;
        scores[at] = members->hidden[at] = no_score;
        members->hidden_bends[at] = m < 0 ? 0 : members->bends[m * width + lane];
        if (m < 0)
            continue;
        const float bias = key_bias_of(head, l);
        scores[at] = head->scale * mine[a] + bias;
        members->hidden[at] = head->scale * shared[a] + members->tilts[m * width + lane] +
                              bias;
    }
}

/* Second-order terms of the tilts; 0 where the rest has no mean of its own. */
static void find_bends(const shoal_head *head, const shoal_moments *moments,
                       const shoal_members *members) {
    const int width = members->panel->width, r = head->size.dims;
    const int M = (int)head->size.M;
    float *bends = members->bends;
    if (!head->has_moments) {
        memset(bends, 0, sizeof(float) * (size_t)(M * width));
        return;
    }
    for (int i = 0; i < r * width; i++)
        members->squares[i] = members->d[i] * members->d[i] / 2;
    head->kernels->score(members->squares, width, r, moments->variances, r, M, bends);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++) {
            const float bend = bends[m * width + i];
            bends[m * width + i] = !members->block->weighted[m] ? 0
                                   : bend < largest_bend        ? bend
                                                                : largest_bend;
        }
}

int sh_shoal_score_members(const shoal_head *head, const shoal_clusters *clusters,
                           const shoal_moments *moments, const shoal_members *members) {
    const kernel_table *kernels = head->kernels;
    const shoal_block *block = members->block;
    const query_panel *panel = members->panel;
    const int width = panel->width, r = head->size.dims, dim = head->size.dim;
    const int M = (int)head->size.M, near = members->near, count = block->count;
    float *scores = members->scores + (int64_t)count * width;
    kernels->score_at(panel->queries, width, dim, head->view.k.data, head->view.k.stride,
                      block->keys, count, members->scores);
    if (head->masks.key_bias)
        kernels->add_to_rows(block->bias, 1, width, count, members->scores);
    kernels->score(members->d, width, r, block->rest + head->size.value_dim,
                   head->size.wide, M, members->tilts);
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++) {
            members->tilts[m * width + i] += members->d[r * width + i];
            scores[m * width + i] = members->tilts[m * width + i] + block->logs[m];
        }
    find_bends(head, moments, members);
    scores += (int64_t)M * width;
    for (int a = 0; a < near; a++)
        for (int i = panel->count; i < width; i++)
            scores[a * width + i] = members->hidden[a * width + i] = no_score,
                               members->hidden_bends[a * width + i] = 0;
    for (int i = 0; i < panel->count && near > 0; i++) {
        if (i + 1 < panel->count)
            prefetch_near(head, head->view.k, dim, members->queries[i + 1]);
        score_near(head, clusters, members, i, scores);
    }
    return count + M + near;
}

/* ---- A query whose rest was lost by subtraction ------------------------------------ */

/* A cluster's sums once more, for queries whose rest was lost by subtraction. */
struct lost_sums {
    _Alignas(CACHE_LINE) int found; /* what follows is of the cluster at work */
    uint64_t *is_pooled;            /* [S bits] */
    float *pool_scores;             /* [p]: c_j . k_l */
    float *tail_logs;               /* [M]: log of the sum over keys outside the pool */
    float *tails;                   /* [M][Dv]: their mean */
    float *scores;                  /* [max(KEY_BLOCK, 2 near + 1, p, M)], of some keys */
    int32_t *keys;                  /* the same */
    int32_t *hidden_keys;           /* [2 near + 1] */
};

static void place_lost(lost_sums *lost, const shoal_sizes *size, block_layout *work) {
    const int64_t near = 2 * size->near + 1;
    const int64_t some = max(max(KEY_BLOCK, near), max(size->p, size->M));
    lost->found = 0;
    lost->is_pooled = sh_reserve(work, size->S / 64 + 1, sizeof(uint64_t));
    lost->pool_scores = reserve_floats(work, size->p, 1);
    lost->tail_logs = reserve_floats(work, size->M, 1);
    lost->tails = reserve_floats(work, size->M, size->value_dim);
    lost->scores = reserve_floats(work, some, 1);
    lost->keys = sh_reserve(work, some, sizeof(int32_t));
    lost->hidden_keys = sh_reserve(work, near, sizeof(int32_t));
    if (lost->is_pooled)
        memset(lost->is_pooled, 0, sizeof(uint64_t) * (size_t)(size->S / 64 + 1));
}

/* Without subtraction: what keys outside the pool have in the clusters, summed again, for
   a cluster that has such a query, the tails; and the pool's keys one by one. So it costs
   a pass over the keys for every such cluster, and a pass over the pool for every such
   query. row: [Dv], scratch. */
static void find_lost(const shoal_head *head, const shoal_clusters *clusters, int64_t j,
                      const int32_t *pool, int32_t count, lost_sums *lost, float *row) {
    for (int32_t x = 0; x < count; x++)
        lost->is_pooled[pool[x] / 64] |= (uint64_t)1 << (pool[x] % 64);
    head->kernels->dots_at(head->view.k.data, head->view.k.stride, pool, count,
                           head->size.dim, clusters->centroids + j * head->size.dim,
                           lost->pool_scores);
    for (int64_t m = 0; m < head->size.M; m++) {
        const row_view k = head->view.k, v = head->view.v;
        const int Dv = head->size.value_dim, dim = head->size.dim;
        const int64_t last = clusters->keys.offsets[m + 1];
        float *tail = lost->tails + m * Dv, *scores = lost->scores;
        float top = LOWEST_SCORE, mass = 0;
        memset(tail, 0, sizeof(float) * (size_t)Dv);
        for (int64_t at = clusters->keys.offsets[m]; at < last; at += KEY_BLOCK) {
            const int some = (int)min(KEY_BLOCK, last - at);
            const int32_t *keys = clusters->keys.order + at;
            head->kernels->dots_at(k.data, k.stride, keys, some, dim,
                                   clusters->centroids + j * dim, scores);
            const float before = top;
            for (int x = 0; x < some; x++) {
                scores[x] = bit_of(lost->is_pooled, keys[x])
                                ? -INFINITY
                                : head->scale * scores[x] + key_bias_of(head, keys[x]);
                top = scores[x] > top ? scores[x] : top;
            }
            const float keep = expf(before - top);
            mass *= keep;
            for (int x = 0; x < some; x++)
                mass += scores[x] = expf(scores[x] - top);
            head->kernels->sum_rows(v.data, v.stride, keys, scores, some, Dv, row);
            for (int d = 0; d < Dv; d++)
                tail[d] = tail[d] * keep + row[d];
        }
        lost->tail_logs[m] = mass > 0 ? top + logf(mass) : no_score;
        for (int d = 0; d < Dv && mass > 0; d++)
            tail[d] /= mass;
    }
    lost->found = 1;
}

/* A tilt multiplies the mean of z over what is left of a key cluster by d, which is large
   where scores are sharp, and so it multiplies the rounding error that the subtraction
   left in it. Where much was taken off, the mean is summed anew, once for a block. */
void sh_shoal_direct_tilts(const shoal_head *head, const shoal_clusters *clusters,
                           const shoal_members *members, int lane) {
    shoal_block *block = members->block;
    const int r = head->size.dims, dim = head->size.dim, width = members->panel->width;
    for (int64_t m = 0; m < head->size.M; m++) {
        const int64_t last = clusters->keys.offsets[m + 1];
        float *mean = block->means + m * r, scores[KEY_BLOCK], tilt = 0;
        double mass = 0;
        if (!block->weighted[m] || !(block->strain[m] > SHOAL_STRAIN))
            continue;
        if (!block->has_mean[m])
            memset(mean, 0, sizeof(float) * (size_t)r);
        for (int64_t at = clusters->keys.offsets[m]; at < last && !block->has_mean[m];
             at += KEY_BLOCK) {
            const int32_t *keys = clusters->keys.order + at;
            const int count = (int)min(KEY_BLOCK, last - at);
            head->kernels->dots_at(head->view.k.data, head->view.k.stride, keys, count,
                                   dim, clusters->centroids + block->j * dim, scores);
            for (int x = 0; x < count; x++) {
                if (bit_of(block->is_exact, keys[x]))
                    continue;
                const float weight = expf(head->scale * scores[x] +
                                          key_bias_of(head, keys[x]) - block->logs[m]);
                mass += (double)weight;
                add_scaled(mean, weight, clusters->coordinates + (int64_t)keys[x] * r, r);
            }
        }
        for (int d = 0; d < r && mass > 0; d++)
            mean[d] /= (float)mass;
        block->has_mean[m] = 1;
        for (int d = 0; d < r; d++)
            tilt += members->d[d * width + lane] * mean[d];
        members->tilts[m * width + lane] = tilt + members->d[r * width + lane];
    }
}

/* A softmax that is added up, or taken off, part by part. */
typedef struct {
    const kernel_table *kernels;
    int Dv;
    double largest, sum;
    float *out, *row; /* [Dv]: the result, and scratch */
} running_softmax;

/* Scores of `count` rows; index NULL: rows 0, 1, ... */
static void add_rows(running_softmax *total, float *scores, int count, double sign,
                     row_view rows, const int32_t *index) {
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
    total->kernels->sum_rows(rows.data, rows.stride, index, scores, count, total->Dv,
                             total->row);
    for (int d = 0; d < total->Dv; d++)
        total->out[d] = total->out[d] * (float)keep + total->row[d];
    total->largest = top;
}

/* The log of what a key's weight is multiplied by in the rest of cluster m. */
static float bent_tilt(const shoal_members *members, int64_t m, int lane) {
    const int64_t at = m * members->panel->width + lane;
    return members->tilts[at] + log1pf(members->bends[at]);
}

/* Near keys outside X: their own scores; and what they have in the tails, which is taken
   off once those are there: `hidden` and hidden_keys. Returns how many such there are. */
static int add_near_rows(running_softmax *total, const shoal_head *head,
                         const shoal_clusters *clusters, const shoal_members *members,
                         int lane, const lost_sums *lost) {
    const shoal_block *block = members->block;
    const row_view q = head->view.q, k = head->view.k;
    const int64_t i = members->queries[lane];
    const int64_t first = near_first(head, i), last = near_last(head, i);
    float *mine = members->near_weights, *shared = members->hidden_slopes;
    int count = 0, hiding = 0;
    head->kernels->two_dots(k.data + first * k.stride, k.stride, last - first,
                            head->size.dim, q.data + i * q.stride,
                            clusters->centroids + block->j * head->size.dim, mine,
                            shared);
    for (int64_t l = first; l < last; l++) {
        const int64_t m = clusters->of_keys[l];
        if (m < 0 || bit_of(block->is_exact, l))
            continue;
        const float bias = key_bias_of(head, l);
        lost->scores[count] = head->scale * mine[l - first] + bias;
        lost->keys[count++] = (int32_t)l;
        if (bit_of(lost->is_pooled, l))
            continue;
        members->hidden[hiding] = head->scale * shared[l - first] + bias +
                                  bent_tilt(members, m, lane);
        lost->hidden_keys[hiding++] = (int32_t)l;
    }
    add_rows(total, lost->scores, count, 1, head->view.v, lost->keys);
    return hiding;
}

/* The output of the panel's lane, from X, near keys, the pool's keys and the tails.
   dipole: [r][Dv], J of the block's cluster. */
static void attend_directly(const shoal_head *head, const shoal_clusters *clusters,
                            const float *dipole, const shoal_choices *choices,
                            const shoal_members *members, int lane, lost_sums *lost,
                            float *out) {
    const shoal_block *block = members->block;
    const int Dv = head->size.value_dim, M = (int)head->size.M;
    const int width = members->panel->width;
    const row_view q = head->view.q, k = head->view.k;
    const int64_t i = members->queries[lane];
    const int64_t near = members->near > 0 ? head->size.near : -1;
    const int32_t *pool = choices->pools + block->j * head->size.p;
    const int32_t pooled = choices->pool_counts[block->j];
    float *scores = lost->scores;
    running_softmax total = {head->kernels, Dv,          (double)LOWEST_SCORE, 0,
                             out,           members->row};
    if (!lost->found)
        find_lost(head, clusters, block->j, pool, pooled, lost, members->row);
    sh_shoal_direct_tilts(head, clusters, members, lane);
    memset(out, 0, sizeof *out * (size_t)Dv);
    head->kernels->dots_at(k.data, k.stride, block->keys, block->count, head->size.dim,
                           q.data + i * q.stride, scores);
    for (int x = 0; x < block->count; x++)
        scores[x] = head->scale * scores[x] + key_bias_of(head, block->keys[x]);
    add_rows(&total, scores, block->count, 1, head->view.v, block->keys);
    const int hiding =
        near >= 0 ? add_near_rows(&total, head, clusters, members, lane, lost) : 0;
    int count = 0;
    for (int32_t x = 0; x < pooled; x++) {
        const int64_t l = pool[x], m = clusters->of_keys[l];
        if (bit_of(block->is_exact, l) || llabs(l - i) <= near)
            continue;
        scores[count] = head->scale * lost->pool_scores[x] + key_bias_of(head, l) +
                        bent_tilt(members, m, lane);
        lost->keys[count++] = (int32_t)l;
    }
    add_rows(&total, scores, count, 1, head->view.v, lost->keys);
    for (int m = 0; m < M; m++)
        scores[m] = lost->tail_logs[m] + bent_tilt(members, m, lane);
    add_rows(&total, scores, M, 1, (row_view){lost->tails, Dv}, NULL);
    add_rows(&total, members->hidden, hiding, -1, head->view.v, lost->hidden_keys);
    if (head->has_moments) {
        double mass = 0;
        for (int32_t x = 0; x < pooled; x++) {
            const int64_t l = pool[x], m = clusters->of_keys[l];
            if (!bit_of(block->is_exact, l) && block->weighted[m])
                mass += exp((double)(head->scale * lost->pool_scores[x] +
                                     key_bias_of(head, l) +
                                     members->tilts[m * width + lane]) -
                            total.largest);
        }
        for (int m = 0; m < M; m++)
            mass += block->weighted[m] ? exp((double)(lost->tail_logs[m] +
                                                      members->tilts[m * width + lane]) -
                                             total.largest)
                                       : 0;
        for (int d = 0; d < head->size.dims; d++)
            add_scaled(out, (float)mass * members->d[d * width + lane],
                       dipole + (int64_t)d * Dv, Dv);
    }
    for (int d = 0; d < Dv; d++)
        out[d] = (float)((double)out[d] / total.sum);
    if (choices->log_sums)
        choices->log_sums[i] = (float)(total.largest + log(total.sum));
}

/* ---- Outputs ----------------------------------------------------------------------- */

/* What near keys have in the rest is taken from the sums and from their own weights. */
static void take_hidden(const shoal_head *head, const shoal_members *members,
                        float *nearby) {
    const query_panel *panel = members->panel;
    const int width = panel->width, near = members->near;
    float one[MAX_PANEL], none[MAX_PANEL] = {0};
    for (int i = 0; i < width; i++)
        one[i] = 1;
    memset(members->hidden_slopes, 0, sizeof(float) * (size_t)(near * width));
    head->kernels->softmax_slope(members->hidden, members->hidden_slopes, width, near,
                                 panel->largest, one, none, 0);
    for (int i = 0; i < near * width; i++)
        members->hidden[i] *= 1 + members->hidden_bends[i];
    for (int a = 0; a < near; a++)
        for (int i = 0; i < width; i++) {
            nearby[a * width + i] -= members->hidden[a * width + i];
            panel->sum[i] -= members->hidden[a * width + i];
        }
}

/* Second-order weights of the pairs, whose weights are there; and the dipole. */
static void bend_members(const shoal_head *head, const float *dipole,
                         const shoal_members *members, float *pairs) {
    const query_panel *panel = members->panel;
    const int width = panel->width, M = (int)head->size.M, r = head->size.dims;
    const int Dv = head->size.value_dim;
    float mass[MAX_PANEL] = {0};
    for (int m = 0; m < M; m++)
        for (int i = 0; i < width; i++) {
            const float weight = pairs[m * width + i];
            const float more = weight * members->bends[m * width + i];
            mass[i] += members->block->weighted[m] ? weight : 0;
            panel->sum[i] += more;
            pairs[m * width + i] = weight + more;
        }
    float *along = members->squares; /* not needed any more */
    for (int d = 0; d < r; d++)
        for (int i = 0; i < width; i++)
            along[d * width + i] = mass[i] * members->d[d * width + i];
    head->kernels->mix(along, width, dipole, Dv, r, Dv, NULL, panel->outputs);
}

/* The near keys' part of the lane's output. */
static void add_near(const shoal_head *head, const shoal_members *members, int lane,
                     const float *nearby, float *out) {
    const query_panel *panel = members->panel;
    const row_view v = head->view.v;
    const int64_t i = members->queries[lane];
    const int64_t first = near_first(head, i), last = near_last(head, i);
    for (int a = 0; a < members->near; a++)
        members->near_weights[a] = nearby[a * panel->width + lane] * panel->inverse[lane];
    head->kernels->sum_rows(v.data + first * v.stride, v.stride, NULL,
                            members->near_weights, last - first, head->size.value_dim,
                            members->row);
    add_scaled(out, 1, members->row, head->size.value_dim);
}

/* Outputs of one panel of a block's members. */
static void attend_members(const block_job *job, const shoal_members *members,
                           lost_sums *lost) {
    const shoal_head *head = job->head;
    const shoal_clusters *clusters = job->clusters;
    const shoal_choices *choices = job->choices;
    const row_view out = job->out;
    const kernel_table *kernels = head->kernels;
    const shoal_block *block = members->block;
    query_panel *panel = members->panel;
    const int width = panel->width, Dv = head->size.value_dim, M = (int)head->size.M;
    const int near = members->near;
    const int32_t *queries = members->queries;
    const float *dipole = job->moments->dipoles + block->j * head->size.dims * Dv;
    float *pairs = members->scores + (int64_t)block->count * width;
    float *nearby = pairs + M * width, strain[MAX_PANEL] = {0};
    const int rows = sh_shoal_score_members(head, clusters, job->moments, members);
    start_softmax(panel, Dv);
    kernels->softmax_step(members->scores, width, rows, panel->largest, panel->sum,
                          panel->keep);
    kernels->mix_at(members->scores, width, head->view.v.data, head->view.v.stride,
                    block->keys, block->count, Dv, panel->outputs);
    if (head->has_moments)
        bend_members(head, dipole, members, pairs);
    kernels->mix(pairs, width, block->rest, head->size.wide, M, Dv, NULL, panel->outputs);
    kernels->mix(pairs, width, block->strain, 1, M, 1, NULL, strain);
    if (head->call->approximated) {
        /* What the clusters' rests weigh beside all keys, before near keys are taken
           off. */
        float *rest = head->call->approximated + head->view.head * head->size.N;
        for (int i = 0; i < panel->count; i++) {
            float sum = 0;
            for (int m = 0; m < head->size.M; m++)
                sum += pairs[m * panel->width + i];
            rest[members->queries[i]] = sum / panel->sum[i];
        }
    }
    if (near > 0)
        take_hidden(head, members, nearby);
    for (int i = 0; i < width; i++)
        panel->inverse[i] = 1 / panel->sum[i];
    kernels->unpack(panel->outputs, panel->count, width, Dv, panel->inverse, NULL, 0,
                    out.data, out.stride, queries);
    for (int i = 0; i < panel->count; i++) {
        float *row = out.data + queries[i] * out.stride;
        if (near > 0 && i + 1 < panel->count)
            prefetch_near(head, head->view.v, Dv, queries[i + 1]);
        if (near > 0)
            add_near(head, members, i, nearby, row);
        if (choices->log_sums)
            choices->log_sums[queries[i]] = panel->largest[i] + logf(panel->sum[i]);
        if (strain[i] > SHOAL_STRAIN * panel->sum[i])
            attend_directly(head, clusters, dipole, choices, members, i, lost, row);
    }
}

/* ---- All blocks -------------------------------------------------------------------- */

void sh_shoal_keep_choices(shoal_choices *choices, const shoal_sizes *size,
                           const shoal_keep *keep) {
    choices->pools = keep_part(keep, size->C * size->p, sizeof(int32_t));
    choices->pool_counts = keep_part(keep, size->C, sizeof(int32_t));
    choices->exact = keep_part(keep, size->blocks * size->k, sizeof(uint16_t));
    if (keep->with_backward)
        choices->log_sums = keep_part(keep, size->N, sizeof(float));
}

void sh_shoal_place_block_threads(shoal_work *own, const shoal_plan *plan,
                                  block_layout *work) {
    const int64_t width = plan->kernels->panel;
    own->pools = sh_reserve(work, plan->threads, sizeof *own->pools);
    own->blocks = sh_reserve(work, plan->threads, sizeof *own->blocks);
    own->members = sh_reserve(work, plan->threads, sizeof *own->members);
    own->lost = sh_reserve(work, plan->threads, sizeof *own->lost);
    for (int t = 0; t < plan->threads; t++) {
        place_pool(own->pools ? &own->pools[t] : &(shoal_pool){0}, &own->size, width,
                   work);
        place_block(own->blocks ? &own->blocks[t] : &(shoal_block){0}, &own->size,
                    plan->kernels, work);
        place_members(own->members ? &own->members[t] : &(shoal_members){0}, &own->size,
                      width, work);
        place_lost(own->lost ? &own->lost[t] : &(lost_sums){0}, &own->size, work);
        if (own->members) {
            own->members[t].dense = &own->dense[t];
            own->members[t].panel = &own->dense[t].panels[0];
            own->members[t].block = &own->blocks[t];
        }
    }
}

/* Members first .. last - 1 of the order, block b of cluster j. */
static void attend_block(const block_job *job, int64_t j, int64_t b, int64_t first,
                         int64_t last, int thread) {
    const shoal_head *head = job->head;
    shoal_block *block = &head->work->blocks[thread];
    shoal_members *members = &head->work->members[thread];
    const query_panel *panel = members->panel;
    const int r = head->size.dims;
    for (int64_t at = first; at < last; at += panel->count) {
        sh_shoal_load_members(head, job->clusters, j, at, last, members);
        head->kernels->unpack(members->d, panel->count, panel->width, r, NULL, NULL, 0,
                              members->d_rows + (at - first) * r, r, NULL);
    }
    choose_exact(head, job->clusters, members->d_rows, last - first,
                 &head->work->pools[thread], block->keys,
                 job->choices->exact + b * head->size.k);
    sh_shoal_load_block(head, job->clusters, job->sums, job->choices, j, b, block);
    const int whole = panel->first == first; /* one panel, still loaded */
    for (int64_t at = first; at < last; at += panel->count) {
        if (!whole)
            sh_shoal_load_members(head, job->clusters, j, at, last, members);
        attend_members(job, members, &head->work->lost[thread]);
    }
    sh_shoal_leave_block(block);
}

/* The blocks of cluster j. */
static void cluster_task(void *shared, int64_t j, int thread) {
    const block_job *job = shared;
    const shoal_head *head = job->head;
    const shoal_clusters *clusters = job->clusters;
    shoal_pool *pool = &head->work->pools[thread];
    lost_sums *lost = &head->work->lost[thread];
    const int64_t size = head->size.block, last = clusters->queries.offsets[j + 1];
    int64_t at = clusters->queries.offsets[j], b = clusters->block_offsets[j];
    const int64_t M = head->size.M, p = head->size.p;
    memset(job->sums->shares + j * M, 0, sizeof(float) * (size_t)M);
    if (at == last)
        return;
    load_pool(head, clusters, job->sums, job->choices, j, pool);
    if (head->has_moments)
        find_shares(head, clusters, job->sums, job->moments, j,
                    job->choices->pools + j * p,
                    job->sums->candidates + j * SHOAL_CHUNKS * p, pool,
                    head->work->blocks[thread].keys);
    for (; at < last; at += size, b++)
        attend_block(job, j, b, at, min(at + size, last), thread);
    for (int32_t x = 0; x < pool->count && lost->found; x++)
        lost->is_pooled[job->choices->pools[j * head->size.p + x] / 64] = 0;
    lost->found = 0;
}

void sh_shoal_attend_blocks(const shoal_head *head, const shoal_clusters *clusters,
                            const shoal_sums *sums, const shoal_moments *moments,
                            const shoal_choices *choices, row_view out, team workers) {
    block_job job = {head, clusters, sums, moments, choices, out};
    sh_team_run(workers, clusters->queries.used, cluster_task, &job);
}
