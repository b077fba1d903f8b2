/* Clusters of queries and of keys, and the pass of the centroids over the keys. */
#include <math.h>
#include <string.h>

#include "attention/shoal_kind.h"

/* ---- Memory ----------------------------------------------------------------------- */

/* Two layouts that begin at the same place. */
static block_layout longer(block_layout a, block_layout b) {
    block_layout both = a.bytes > b.bytes ? a : b;
    both.overflow = a.overflow || b.overflow;
    return both;
}

void sh_shoal_place_clusters(shoal_clusters *clusters, const shoal_plan *plan,
                             const shoal_work *own, block_layout *work) {
    const shoal_sizes *size = &own->size;
    sh_metric_place(&clusters->metric, plan->kernels, size->dim, size->dims, work);
    block_layout queries = *work, keys = *work;
    sh_lloyd_place(&clusters->query_means, plan->kernels, (int)size->C, size->dim,
                   size->dims, size->N, &queries);
    sh_lloyd_place(&clusters->key_means, plan->kernels, (int)size->M, size->dims,
                   size->dims, size->S, &keys);
    clusters->query_means.threads = clusters->key_means.threads = own->lloyd;
    *work = longer(queries, keys);
    clusters->queries.offsets = sh_reserve(work, size->C + 1, sizeof(int32_t));
    clusters->keys.offsets = sh_reserve(work, size->M + 1, sizeof(int32_t));
    clusters->keys.order = sh_reserve(work, size->S, sizeof(int32_t));
    clusters->block_offsets = sh_reserve(work, size->C + 1, sizeof(int32_t));
    clusters->centroid_shift = reserve_floats(work, size->C, size->dims + 1);
    clusters->coordinates = reserve_floats(work, max(size->N, size->S), size->dims);
    clusters->variances = reserve_floats(work, size->C, size->dims);
    clusters->stretch = reserve_floats(work, size->dims, size->dims);
    clusters->plain = reserve_floats(work, size->M, size->dims);
    clusters->shift = reserve_floats(work, size->dims, 1);
}

void sh_shoal_keep_clusters(shoal_clusters *clusters, const shoal_sizes *size,
                            const shoal_keep *keep) {
    const int64_t D = size->dim;
    clusters->queries.order = keep_part(keep, size->N, sizeof(int32_t));
    clusters->of_keys = keep_part(keep, size->S, sizeof(int32_t));
    clusters->projection = keep_part(keep, (size->dims + 1) * D, sizeof(float));
    clusters->dual = keep_part(keep, size->dims * D, sizeof(float));
    clusters->centroids = keep_part(keep, size->C * D, sizeof(float));
    if (keep->with_backward)
        clusters->live = keep_part(keep, 3, sizeof(int32_t));
}

void sh_shoal_place_sums(shoal_sums *sums, const shoal_sizes *size, block_layout *work) {
    sums->candidates =
        sh_reserve(work, SHOAL_CHUNKS * size->C * size->p, sizeof(uint64_t));
    sums->counts = sh_reserve(work, SHOAL_CHUNKS * size->C, sizeof(int32_t));
}

void sh_shoal_keep_sums(shoal_sums *sums, const shoal_sizes *size,
                        const shoal_keep *keep) {
    const int64_t count = size->C * size->M;
    sums->top = keep_part(keep, count, sizeof(float));
    sums->mass = keep_part(keep, count, sizeof(float));
    sums->wide = keep_part(keep, sh_mul_checked(count, size->wide), sizeof(float));
}

struct cluster_thread {
    /* Members are put in order before the pass over the keys: both in the same place. */
    halving_work halving;
    float *member_rows; /* [HALVING_MOST at most][r]: d of members */
    key_block keys;
    float *half_squares; /* [KEY_BLOCK][r]: of z */
    float *variances;    /* [panels][r][panel] */
    float *expected;     /* [KEY_BLOCK][panel]: what the pool is chosen by */
    topk_lists lists[PANELS];
    uint64_t *candidates; /* all lists' */
    int32_t *counts;
    float *floor;
};

void sh_shoal_place_cluster_threads(shoal_work *all, const shoal_plan *plan,
                                    block_layout *work) {
    const shoal_sizes *size = &all->size;
    const int64_t width = plan->kernels->panel, r = size->dims;
    const int64_t lanes = min(PANELS * width, ceil_divide(size->C, width) * width);
    cluster_thread measured;
    all->clusters = sh_reserve(work, plan->threads, sizeof *all->clusters);
    for (int t = 0; t < plan->threads; t++) {
        cluster_thread *own = all->clusters ? &all->clusters[t] : &measured;
        block_layout order = *work;
        sh_halving_place(&own->halving, plan->kernels, size->dims, &order);
        own->member_rows = reserve_floats(&order, min(size->N, HALVING_MOST), r);
        own->keys.rows = reserve_floats(work, KEY_BLOCK, size->dim);
        own->keys.bias = reserve_floats(work, KEY_BLOCK, 1);
        own->keys.wide = reserve_floats(work, KEY_BLOCK, size->wide);
        own->half_squares = reserve_floats(work, KEY_BLOCK, r);
        own->variances = reserve_floats(work, lanes, r);
        own->expected = reserve_floats(work, KEY_BLOCK, width);
        own->candidates =
            sh_reserve(work, lanes * topk_capacity(size->p), sizeof(uint64_t));
        own->counts = sh_reserve(work, lanes, sizeof(int32_t));
        own->floor = reserve_floats(work, lanes, 1);
        *work = longer(order, *work);
    }
}

/* ---- Clusters of queries ----------------------------------------------------------- */

/* Every query is a cluster of its own: nothing is approximated, so nothing is needed to
   approximate it with. */
static int is_trivial(const shoal_head *head) {
    return !head->call->inputs->groups && head->view.queries <= head->size.C;
}

static int is_finite(const float *x, int64_t count) {
    int finite = 1;
    for (int64_t i = 0; i < count; i++)
        finite &= isfinite(x[i]) != 0;
    return finite;
}

/* P, Z and the keys' centre. Where inputs are too large for them, or not numbers, all are
   0: no tilts. */
static void find_metric(const shoal_head *head, shoal_clusters *clusters) {
    const row_view q = head->view.q, k = head->view.k;
    const int64_t size = (int64_t)head->size.dims * head->size.dim;
    const int64_t whole = size + head->size.dim;
    metric_work *metric = &clusters->metric;
    if (!is_trivial(head)) {
        sh_metric_find(metric, head->kernels,
                       (metric_rows){k.data, k.stride, head->view.keys,
                                     head->masks.key_bias, head->masks.key_bias_step},
                       (metric_rows){q.data, q.stride, head->view.queries, NULL, 0});
        sh_metric_dual(metric, head->kernels, clusters->dual);
        memcpy(clusters->projection, metric->projection, sizeof(float) * (size_t)size);
        memcpy(clusters->projection + size, metric->centre,
               sizeof(float) * (size_t)head->size.dim);
        if (is_finite(clusters->projection, whole) && is_finite(clusters->dual, size))
            return;
    }
    memset(clusters->projection, 0, sizeof(float) * (size_t)whole);
    memset(clusters->dual, 0, sizeof(float) * (size_t)size);
}

/* Cuts the clusters into blocks. */
static void count_blocks(const shoal_head *head, shoal_clusters *clusters) {
    const int32_t *members = clusters->queries.offsets;
    int32_t *offsets = clusters->block_offsets;
    offsets[0] = 0;
    for (int64_t j = 0; j < clusters->queries.used; j++)
        offsets[j + 1] = offsets[j] + (int32_t)ceil_divide(members[j + 1] - members[j],
                                                           head->size.block);
}

static void find_query_clusters(const shoal_head *head, shoal_clusters *clusters,
                                team workers) {
    const shoal_attention *attention = &head->call->plan->attention;
    const row_view q = head->view.q;
    const int64_t n = head->view.queries, N = head->size.N;
    const int32_t *brought = head->call->inputs->groups;
    int32_t *of = clusters->of_queries;
    if (brought) {
        memmove(of, brought + head->view.head * N, (size_t)n * sizeof *of);
        sh_lloyd_project(&clusters->query_means, head->kernels, workers, q.data, q.stride,
                         n, clusters->projection, NULL, clusters->coordinates, NULL);
    } else if (n <= head->size.C) {
        for (int64_t i = 0; i < n; i++)
            of[i] = (int32_t)i;
    } else {
        sh_lloyd_run(&clusters->query_means, head->kernels, workers, q.data, q.stride, n,
                     clusters->projection, attention->iterations, attention->seed, of,
                     clusters->coordinates);
    }
    for (int64_t i = n; i < N; i++)
        of[i] = -1;
    sh_group_sort(&clusters->queries, of, n);
    count_blocks(head, clusters);
}

/* The stages' tasks. */
typedef struct {
    const shoal_head *head;
    const shoal_clusters *clusters;
    shoal_sums *sums;
} cluster_job;

/* Projects the centroid of cluster j. */
static void shift_task(void *shared, int64_t j, int thread) {
    const cluster_job *job = shared;
    const shoal_head *head = job->head;
    const int lanes = head->kernels->lanes, r = head->size.dims, dim = head->size.dim;
    const query_panel *panel = &head->work->dense[thread].panels[0];
    head->kernels->pack(job->clusters->centroids + j * dim, dim, NULL, 1, lanes, dim,
                        head->scale, panel->queries);
    head->kernels->score(panel->queries, lanes, dim, job->clusters->projection, dim,
                         r + 1, panel->outputs);
    for (int d = 0; d <= r; d++)
        job->clusters->centroid_shift[j * (r + 1) + d] = panel->outputs[d * lanes];
}

/* The centroid of cluster j; its members' order, and the variances of their d. */
static void centroid_task(void *shared, int64_t j, int thread) {
    const cluster_job *job = shared;
    const shoal_head *head = job->head;
    const shoal_clusters *clusters = job->clusters;
    cluster_thread *own = &head->work->clusters[thread];
    const int dim = head->size.dim, r = head->size.dims;
    const int64_t first = clusters->queries.offsets[j];
    const int64_t last = clusters->queries.offsets[j + 1], size = last - first;
    const float *shift = clusters->centroid_shift + j * (r + 1);
    float *centroid = clusters->centroids + j * dim;
    float *restrict squares = clusters->variances + j * r;
    head->kernels->sum_rows(head->view.q.data, head->view.q.stride,
                            clusters->queries.order + first, NULL, size, dim, centroid);
    for (int d = 0; d < dim && size > 1; d++)
        centroid[d] /= (float)size;
    shift_task(shared, j, thread);
    memset(squares, 0, sizeof(float) * (size_t)r);
    if (size <= 1)
        return;
    /* Very large clusters are put in order in parts. */
    for (int64_t at = first; at < last; at += HALVING_MOST) {
        const int64_t count = min(HALVING_MOST, last - at);
        int32_t *order = clusters->queries.order + at;
        float *restrict rows = own->member_rows;
        for (int64_t i = 0; i < count; i++)
            for (int d = 0; d < r; d++) {
                const float x = head->scale *
                                    clusters->coordinates[(int64_t)order[i] * r + d] -
                                shift[d];
                rows[i * r + d] = x;
                squares[d] += x * x;
            }
        sh_halve(&own->halving, rows, order, count, head->size.leaf);
    }
    for (int d = 0; d < r; d++)
        squares[d] /= (float)size;
}

/* ---- Key clusters ----------------------------------------------------------------- */

static void find_coordinates(const shoal_head *head, shoal_clusters *clusters,
                             team workers) {
    const int r = head->size.dims, dim = head->size.dim;
    const float *centre = clusters->projection + (int64_t)r * dim;
    for (int d = 0; d < r; d++)
        clusters->shift[d] = -ordered_dot(clusters->dual + (int64_t)d * dim, centre, dim);
    sh_lloyd_project(&clusters->query_means, head->kernels, workers, head->view.k.data,
                     head->view.k.stride, head->view.keys, clusters->dual,
                     clusters->shift, clusters->coordinates, NULL);
}

/* Sorts the keys, whose clusters and coordinates are there: plain means, and chunks of
   whole clusters, each of at least an eighth of the keys. */
static void sort_keys(const shoal_head *head, shoal_clusters *clusters) {
    const int r = head->size.dims;
    grouping *keys = &clusters->keys;
    sh_group_sort(keys, clusters->of_keys, head->view.keys);
    for (int64_t m = 0; m < head->size.M; m++) {
        const int64_t first = keys->offsets[m], size = keys->offsets[m + 1] - first;
        float *mean = clusters->plain + m * r;
        head->kernels->sum_rows(clusters->coordinates, r, keys->order + first, NULL, size,
                                r, mean);
        for (int d = 0; d < r && size > 0; d++)
            mean[d] /= (float)size;
    }
    const int64_t least = max(1024, ceil_divide(head->seen, SHOAL_CHUNKS));
    int32_t first = 0;
    clusters->chunks = 0;
    clusters->chunk_clusters[0] = 0;
    for (int32_t m = 0; m < keys->used; m++)
        if (keys->offsets[m + 1] - keys->offsets[first] >= least || m == keys->used - 1) {
            first = m + 1;
            clusters->chunk_clusters[++clusters->chunks] = first;
        }
}

static void find_key_clusters(const shoal_head *head, shoal_clusters *clusters,
                              team workers) {
    const shoal_attention *attention = &head->call->plan->attention;
    const int64_t r = head->size.dims, S = head->view.keys, seen = head->seen;
    const size_t row = sizeof(float) * (size_t)r;
    int32_t *of = clusters->of_keys;
    float *z = clusters->coordinates;
    find_coordinates(head, clusters, workers);
    /* K-means sees keys that are not hidden: their rows go one below the other, */
    for (int64_t l = 0, to = 0; l < S && seen < S; l++)
        if (!hides_key(key_bias_of(head, l)))
            memmove(z + to++ * r, z + l * r, row);
    if (is_trivial(head)) {
        memset(of, 0, sizeof *of * (size_t)seen);
    } else if (seen <= head->size.M) {
        for (int64_t l = 0; l < seen; l++)
            of[l] = (int32_t)l;
    } else {
        /* What one unit of each coordinate of z changes, over all queries. */
        const grouping *queries = &clusters->queries;
        memset(clusters->stretch, 0, sizeof(float) * (size_t)r * (size_t)r);
        for (int d = 0; d < r; d++) {
            double sum = 0;
            for (int64_t j = 0; j < queries->used; j++)
                sum += (double)(queries->offsets[j + 1] - queries->offsets[j]) *
                       (double)clusters->variances[j * r + d];
            clusters->stretch[d * r + d] = (float)sqrt(sum / (double)head->view.queries);
        }
        sh_lloyd_run(&clusters->key_means, head->kernels, workers, z, r, seen,
                     clusters->stretch, attention->iterations, attention->seed + 1000, of,
                     NULL);
    }
    /* and back to their places, with their clusters. */
    for (int64_t l = S - 1, from = seen; l >= 0 && seen < S; l--) {
        const int hidden = hides_key(key_bias_of(head, l));
        from -= !hidden;
        of[l] = hidden ? -1 : of[from];
        if (!hidden)
            memmove(z + l * r, z + from * r, row);
    }
    sort_keys(head, clusters);
}

void sh_shoal_find_clusters(const shoal_head *head, shoal_clusters *clusters,
                            team workers) {
    cluster_job job = {head, clusters, NULL};
    clusters->queries.clusters = clusters->query_means.clusters = (int32_t)head->size.C;
    clusters->keys.clusters = clusters->key_means.clusters = (int32_t)head->size.M;
    if (clusters->live) {
        clusters->live[0] = (int32_t)head->view.queries;
        clusters->live[1] = (int32_t)head->view.keys;
        clusters->live[2] = (int32_t)head->seen;
    }
    find_metric(head, clusters);
    find_query_clusters(head, clusters, workers);
    if (head->view.queries == 0 || head->seen == 0) {
        memset(clusters->of_keys, -1, sizeof(int32_t) * (size_t)head->view.keys);
        return;
    }
    sh_team_run(workers, clusters->queries.used, centroid_task, &job);
    find_key_clusters(head, clusters, workers);
}

void sh_shoal_restore_clusters(const shoal_head *head, shoal_clusters *clusters,
                               team workers) {
    cluster_job job = {head, clusters, NULL};
    clusters->queries.clusters = (int32_t)head->size.C;
    clusters->keys.clusters = (int32_t)head->size.M;
    sh_group_count(&clusters->queries, clusters->of_queries, head->view.queries);
    count_blocks(head, clusters);
    sh_team_run(workers, clusters->queries.used, shift_task, &job);
    find_coordinates(head, clusters, workers);
    sort_keys(head, clusters);
}

/* ---- The centroids' pass over the keys -------------------------------------------- */

const key_block *sh_shoal_gather_keys(const shoal_head *head,
                                      const shoal_clusters *clusters, int64_t first,
                                      int count, int thread) {
    const key_block *to = &head->work->clusters[thread].keys;
    const row_view k = head->view.k, v = head->view.v;
    const int r = head->size.dims, dim = head->size.dim;
    const int Dv = head->size.value_dim, wide = head->size.wide;
    const int32_t *order = clusters->keys.order + first;
    for (int i = 0; i < count; i++) {
        memcpy(to->rows + (int64_t)i * dim, k.data + order[i] * k.stride,
               sizeof(float) * (size_t)dim);
        memcpy(to->wide + (int64_t)i * wide, v.data + order[i] * v.stride,
               sizeof(float) * (size_t)Dv);
        memcpy(to->wide + (int64_t)i * wide + Dv,
               clusters->coordinates + (int64_t)order[i] * r, sizeof(float) * (size_t)r);
    }
    for (int i = 0; i < count && head->masks.key_bias; i++)
        to->bias[i] = key_bias_of(head, order[i]);
    return to;
}

/* Some keys of one cluster, from key `first` of the order on: their part of the sums, and
   candidates for the pool. */
static void attend_keys(const shoal_head *head, const key_block *keys, int64_t first,
                        int count, query_panel *panel, int p, cluster_thread *own,
                        float *scores) {
    const kernel_table *kernels = head->kernels;
    const int width = panel->width, r = head->size.dims, wide = head->size.wide;
    float *expected = own->expected;
    kernels->score(panel->queries, width, head->size.dim, keys->rows, head->size.dim,
                   count, scores);
    if (head->masks.key_bias)
        kernels->add_to_rows(keys->bias, 1, width, count, scores);
    kernels->score(own->variances + (int64_t)p * r * kernels->panel, width, r,
                   own->half_squares, r, count, expected);
    for (int i = 0; i < count * width; i++)
        expected[i] += scores[i];
    sh_topk_collect(&own->lists[p], expected, panel->count, width, count, first);
    kernels->softmax_step(scores, width, count, panel->largest, panel->sum, panel->keep);
    kernels->mix(scores, width, keys->wide, wide, count, wide, panel->keep,
                 panel->outputs);
}

static void keep_cluster(const shoal_head *head, const query_panel *panel, int64_t m,
                         shoal_sums *sums) {
    const int64_t M = head->size.M, wide = head->size.wide;
    const int64_t at = panel->first * M + m;
    head->kernels->unpack(panel->outputs, panel->count, panel->width, (int)wide, NULL,
                          NULL, 0, sums->wide + at * wide, M * wide, NULL);
    for (int i = 0; i < panel->count; i++) {
        sums->top[at + i * M] = panel->largest[i];
        sums->mass[at + i * M] = panel->sum[i];
    }
}

/* One chunk of key clusters over one batch of panels of centroids, which take turns on
   every block of keys. task = chunk * batches + batch. */
static void sum_task(void *shared, int64_t task, int thread) {
    const cluster_job *job = shared;
    const shoal_head *head = job->head;
    const shoal_clusters *clusters = job->clusters;
    cluster_thread *own = &head->work->clusters[thread];
    dense_scratch *dense = &head->work->dense[thread];
    query_panel *panels = dense->panels;
    const int r = head->size.dims, wide = head->size.wide;
    const int64_t used = clusters->queries.used, batch = sh_dense_block(head->kernels);
    const int64_t batches = ceil_divide(used, batch), chunk = task / batches;
    const int64_t begin = task % batches * batch;
    const int count = sh_dense_cut(dense, head->kernels, begin, min(begin + batch, used));
    for (int p = 0; p < count; p++) {
        const int64_t lane = (int64_t)p * head->kernels->panel;
        const int32_t *offsets = clusters->queries.offsets + panels[p].first;
        const int32_t k = (int32_t)head->size.p;
        const int dim = head->size.dim;
        head->kernels->pack(clusters->centroids + panels[p].first * dim, dim, NULL,
                            panels[p].count, panels[p].width, dim, head->scale,
                            panels[p].queries);
        head->kernels->pack(clusters->variances + panels[p].first * r, r, NULL,
                            panels[p].count, panels[p].width, r, 1,
                            own->variances + lane * r);
        own->lists[p] = (topk_lists){head->kernels, k,
                                     own->candidates + lane * topk_capacity(k),
                                     own->counts + lane, own->floor + lane};
        sh_topk_start(&own->lists[p], panels[p].count, panels[p].width);
        for (int i = 0; i < panels[p].count; i++)
            if (offsets[i + 1] - offsets[i] <= 1)
                own->lists[p].floor[i] = INFINITY;
    }
    for (int32_t m = clusters->chunk_clusters[chunk];
         m < clusters->chunk_clusters[chunk + 1]; m++) {
        const int64_t last = clusters->keys.offsets[m + 1];
        for (int p = 0; p < count; p++)
            start_softmax(&panels[p], wide);
        for (int64_t at = clusters->keys.offsets[m]; at < last; at += KEY_BLOCK) {
            const int some = (int)min(KEY_BLOCK, last - at);
            const key_block *keys =
                sh_shoal_gather_keys(head, clusters, at, some, thread);
            for (int i = 0; i < some; i++)
                for (int d = 0; d < r; d++) {
                    const float z = keys->wide[i * wide + head->size.value_dim + d];
                    own->half_squares[i * r + d] = z * z / 2;
                }
            for (int p = 0; p < count; p++)
                attend_keys(head, keys, at, some, &panels[p], p, own, dense->scores);
        }
        for (int p = 0; p < count; p++)
            keep_cluster(head, &panels[p], m, job->sums);
    }
    for (int p = 0; p < count; p++)
        for (int i = 0; i < panels[p].count; i++) {
            const int64_t at = (panels[p].first + i) * SHOAL_CHUNKS + chunk;
            uint64_t *list = topk_list(&own->lists[p], i);
            const int32_t kept =
                sh_topk_cut(list, own->lists[p].counts[i], own->lists[p].k);
            job->sums->counts[at] = kept;
            memcpy(job->sums->candidates + at * own->lists[p].k, list,
                   (size_t)kept * sizeof *list);
        }
}

void sh_shoal_find_sums(const shoal_head *head, const shoal_clusters *clusters,
                        shoal_sums *sums, team workers) {
    cluster_job job = {head, clusters, sums};
    const int64_t batches =
        ceil_divide(clusters->queries.used, sh_dense_block(head->kernels));
    sh_team_run(workers, clusters->chunks * batches, sum_task, &job);
}
