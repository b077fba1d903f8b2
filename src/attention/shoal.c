/* The kind shoal-C: clusters of queries and of keys, the pass of the centroids over the
   keys; its numbers and its memory, one head's way through the stages, and what a plan
   tells. shoal_blocks.c has what follows for each block of queries. */
#include <math.h>
#include <string.h>

#include "attention/shoal_kind.h"
#include "shoal_inspect.h"

/* ---- Clusters and sums: memory ----------------------------------------------------- */

/* Two layouts that begin at the same place. */
static block_layout longer(block_layout a, block_layout b) {
    block_layout both = a.bytes > b.bytes ? a : b;
    both.overflow = a.overflow || b.overflow;
    return both;
}

static void place_clusters(shoal_clusters *clusters, const shoal_plan *plan,
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

static void keep_clusters(shoal_clusters *clusters, const shoal_sizes *size,
                          const shoal_keep *keep) {
    const int64_t D = size->dim;
    clusters->queries.order = keep_part(keep, size->N, sizeof(int32_t));
    clusters->of_keys = keep_part(keep, size->S, sizeof(int32_t));
    clusters->projection = keep_part(keep, (size->dims + 1) * D, sizeof(float));
    clusters->dual = keep_part(keep, size->dims * D, sizeof(float));
    clusters->centroids = keep_part(keep, size->C * D, sizeof(float));
    if (keep->with_backward)
        clusters->live = keep_part(keep, 4, sizeof(int32_t));
}

static void place_sums(shoal_sums *sums, const shoal_sizes *size, block_layout *work) {
    sums->candidates =
        sh_reserve(work, SHOAL_CHUNKS * size->C * size->p, sizeof(uint64_t));
    sums->counts = sh_reserve(work, SHOAL_CHUNKS * size->C, sizeof(int32_t));
    sums->concentration = reserve_floats(work, size->C, 1);
}

static void keep_sums(shoal_sums *sums, const shoal_sizes *size, const shoal_keep *keep) {
    const int64_t count = size->C * size->M;
    sums->top = keep_part(keep, count, sizeof(float));
    sums->mass = keep_part(keep, count, sizeof(float));
    sums->wide = keep_part(keep, sh_mul_checked(count, size->wide), sizeof(float));
    sums->shares = keep_part(keep, count, sizeof(float));
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

static void place_cluster_threads(shoal_work *all, const shoal_plan *plan,
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
        own->candidates = sh_reserve(work, topk_size(size->p, lanes), sizeof(uint64_t));
        own->counts = sh_reserve(work, lanes, sizeof(int32_t));
        own->floor = reserve_floats(work, lanes, 1);
        *work = longer(order, *work);
    }
}

/* ---- Clusters of queries ----------------------------------------------------------- */

/* Every query is a cluster of its own: nothing is approximated, so nothing is needed to
   approximate it with. */
static int is_trivial(const shoal_head *head) {
    return !head->call->inputs->clusters && head->view.queries <= head->size.C;
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
    const int32_t *brought = head->call->inputs->clusters;
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

static void find_clusters(const shoal_head *head, shoal_clusters *clusters,
                          team workers) {
    cluster_job job = {head, clusters, NULL};
    clusters->queries.clusters = clusters->query_means.clusters = (int32_t)head->size.C;
    clusters->keys.clusters = clusters->key_means.clusters = (int32_t)head->size.M;
    if (clusters->live) {
        clusters->live[0] = (int32_t)head->view.queries;
        clusters->live[1] = (int32_t)head->view.keys;
        clusters->live[2] = (int32_t)head->seen;
        clusters->live[3] = (int32_t)head->size.k;
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
    sh_topk_collect(&own->lists[p], expected, width, count, first);
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
        own->lists[p] = sh_topk_lists(head->kernels, k,
                                      own->candidates + topk_size(k, lane),
                                      own->counts + lane, own->floor + lane);
        float floor[MAX_PANEL];
        for (int i = 0; i < panels[p].width; i++)
            floor[i] = i < panels[p].count && offsets[i + 1] - offsets[i] > 1 ? -INFINITY
                                                                              : INFINITY;
        sh_topk_start(&own->lists[p], panels[p].width, floor);
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
    for (int p = 0; p < count; p++) {
        topk_lists *lists = &own->lists[p];
        sh_topk_finish(lists, panels[p].width);
        for (int i = 0; i < panels[p].count; i++) {
            const int64_t at = (panels[p].first + i) * SHOAL_CHUNKS + chunk;
            job->sums->counts[at] = sh_topk_take(lists, i, panels[p].width,
                                                 job->sums->candidates + at * lists->k);
        }
    }
}

static void find_sums(const shoal_head *head, const shoal_clusters *clusters,
                      shoal_sums *sums, team workers) {
    cluster_job job = {head, clusters, sums};
    const int64_t M = head->size.M;
    /* Key clusters that k-means did not use have no sums. */
    for (int64_t at = 0; at < clusters->queries.used * M; at++)
        if (at % M >= clusters->keys.used) {
            sums->top[at] = LOWEST_SCORE;
            sums->mass[at] = 0;
        }
    const int64_t batches =
        ceil_divide(clusters->queries.used, sh_dense_block(head->kernels));
    sh_team_run(workers, clusters->chunks * batches, sum_task, &job);
}

/* ---- Sizes ------------------------------------------------------------------------ */

/* Means of neighbouring members that speak for a block when its keys are chosen: with
   many queries the members of a block are so alike that fewer will do. */
static int points_of(int64_t N, int64_t block) {
    const int64_t most = N < 4096 ? SHOAL_POINTS : N < 8192 ? 4 : N < 16384 ? 2 : 1;
    return (int)max(1, min(most, block / 2));
}

/* Keys of X by the concentration of attention: where it is spread over many keys, fewer
   exact ones do, since the others follow the query. `at`: 0 for spread, 2 for
   concentrated attention. Short sequences and wide heads have the same number always. */
static int64_t topk_of(const shoal_attention *a, const shoal_problem *problem, int64_t n,
                       int at) {
    static const int64_t eighths[3] = {4, 6, 8};
    const int adapts = a->form != 2 && n >= 1024 && problem->dim <= 64;
    return adapts ? max(1, a->topk * eighths[at] / 8) : a->topk;
}

static shoal_attention resolved(const shoal_plan *plan, int64_t n, int64_t S) {
    shoal_problem problem = plan->problem;
    problem.queries = n;
    problem.keys = S;
    return sh_attention_resolve(&plan->asked, &problem);
}

/* Of a sequence of n queries and S keys, some of them perhaps hidden: its numbers are
   what they would be alone, and without those. Near are positions, hidden or not. */
static shoal_sizes numbers_of(const shoal_plan *plan, int64_t n, int64_t S,
                              int64_t seen) {
    const shoal_attention a = resolved(plan, n, seen);
    shoal_sizes size = {.C = a.clusters,
                        .N = plan->problem.queries,
                        .S = plan->problem.keys,
                        .dim = (int)plan->problem.dim,
                        .value_dim = (int)plan->problem.value_dim,
                        .dims = (int)min(a.rank, plan->problem.dim)};
    size.M = max(1, min(a.keyclusters, seen));
    size.k = min(a.topk, seen);
    for (int i = 0; i < 3; i++)
        size.k_of[i] = plan->asked.topk == SHOAL_BY_SIZE
                           ? min(topk_of(&a, &plan->problem, n, i), size.k)
                           : size.k;
    size.p = min(max(a.pool, size.k), seen);
    size.block = (int)min(a.block, max(1, n));
    size.points = points_of(n, size.block);
    size.each = (int)ceil_divide(size.block, size.points);
    size.leaf = (int)max(size.each, min(8, size.block / 2));
    size.near = (int)(n == S ? min(resolved(plan, n, S).near, S) : 0);
    size.wide = size.value_dim + size.dims;
    size.blocks = ceil_divide(n, size.block) + min(size.C, n);
    return size;
}

static void widen(shoal_sizes *most, const shoal_sizes *size) {
    most->C = max(most->C, size->C);
    most->M = max(most->M, size->M);
    most->k = max(most->k, size->k);
    most->p = max(most->p, size->p);
    most->blocks = max(most->blocks, size->blocks);
    most->block = (int)max(most->block, size->block);
    most->points = (int)max(most->points, size->points);
    most->near = (int)max(most->near, size->near);
}

/* What suffices for every sequence of the plan. All numbers grow with a sequence's length
   between these lengths, and with its keys; near keys are where both are as many. */
static shoal_sizes sizes_of(const shoal_plan *plan) {
    static const int64_t ends[] = {1023, 4095, 8191, 16383, INT64_MAX};
    const int64_t N = plan->problem.queries, S = plan->problem.keys;
    shoal_sizes most = numbers_of(plan, N, S, S);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int64_t n = min(N, ends[i]);
        const shoal_sizes any = numbers_of(plan, n, S, S);
        const shoal_sizes aligned = numbers_of(plan, min(n, S), min(n, S), min(n, S));
        widen(&most, &any);
        widen(&most, &aligned);
    }
    return most;
}

/* ---- Memory ----------------------------------------------------------------------- */

/* What the stages keep of a head, beside the queries' clusters. */
static void keep_stages(shoal_slot *slot, const shoal_sizes *size,
                        const shoal_keep *keep) {
    keep_clusters(&slot->clusters, size, keep);
    keep_sums(&slot->sums, size, keep);
    sh_shoal_keep_choices(&slot->choices, size, keep);
}

/* Binds the slot to what the state has of head `at`. */
static void bind_state(const shoal_plan *plan, const shoal_sizes *size,
                       block_layout *state, int64_t at, shoal_slot *slot) {
    const shoal_keep keep = {state, plan->problem.batch * plan->problem.heads, at,
                             plan->with_backward};
    slot->clusters.of_queries = keep_part(&keep, size->N, sizeof(int32_t));
    if (plan->with_backward)
        keep_stages(slot, size, &keep);
}

static void place_shoal(shoal_plan *plan, block_layout *work, block_layout *state) {
    const shoal_problem *problem = &plan->problem;
    const int slots = sh_unit_slots(plan->threads, problem->batch * problem->heads);
    shoal_work measured, *own = sh_reserve(work, 1, sizeof *own);
    shoal_slot scratch;
    shoal_plan widened = *plan;
    plan->work = own;
    own = own ? own : &measured;
    *own = (shoal_work){.size = sizes_of(plan)};
    const shoal_sizes *size = &own->size;
    widened.problem.value_dim = size->wide;
    own->dense = sh_reserve(work, plan->threads, sizeof *own->dense);
    own->lloyd = sh_reserve(work, plan->threads, sizeof *own->lloyd);
    for (int t = 0; t < plan->threads; t++) {
        sh_dense_place(own->dense ? &own->dense[t] : &(dense_scratch){0}, &widened, work);
        sh_lloyd_place_thread(own->lloyd ? &own->lloyd[t] : &(lloyd_thread){0},
                              plan->kernels, size->dim, size->dims, work);
    }
    place_cluster_threads(own, plan, work);
    sh_shoal_place_moment_threads(own, plan, work);
    sh_shoal_place_block_threads(own, plan, work);
    if (plan->with_backward)
        sh_shoal_place_backward_threads(own, plan, work);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int s = 0; s < slots; s++) {
        shoal_slot *slot = own->slots ? &own->slots[s] : &scratch;
        *slot = (shoal_slot){0};
        place_clusters(&slot->clusters, plan, own, work);
        place_sums(&slot->sums, size, work);
        sh_shoal_place_moments(&slot->moments, size, work);
        if (plan->with_backward)
            sh_shoal_place_gradients(&slot->gradients, plan, size, work);
        else
            keep_stages(slot, size, &(shoal_keep){work, 1, 0, 0});
    }
    bind_state(plan, size, state, 0, &(shoal_slot){0});
}

/* ---- One head ---------------------------------------------------------------------- */

shoal_head sh_shoal_head_of(const attention_call *call, int64_t b, int64_t h,
                            shoal_slot *slot) {
    const shoal_plan *plan = call->plan;
    shoal_head head = {.call = call,
                       .work = plan->work,
                       .kernels = plan->kernels,
                       .scale = plan->problem.scale,
                       .view = sh_view_of(call, b, h)};
    head.seen = head.view.keys;
    if (sh_masks_exist(call)) {
        head.masks = sh_masks_of(call, &head.view);
        head.seen = sh_masks_seen(&head.masks, head.view.keys);
    }
    head.size = numbers_of(plan, head.view.queries, head.view.keys, head.seen);
    if (call->inputs->clusters)
        head.size.C = head.work->size.C;
    head.has_moments = plan->attention.form != 2 && !is_trivial(&head);
    bind_state(plan, &head.work->size, &(block_layout){.base = call->state},
               head.view.head, slot);
    return head;
}

static void forward_head(const attention_call *call, int64_t unit, int s, team workers) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    shoal_slot *slot = &((shoal_work *)call->plan->work)->slots[s];
    shoal_head head = sh_shoal_head_of(call, b, h, slot);
    const row_view out = sh_query_rows(call, call->out, problem->out_strides, b, h);
    const int is_empty = head.view.queries == 0 || head.seen == 0;
    sh_clear_rows(out, is_empty ? 0 : head.view.queries, head.view.query_rows,
                  problem->value_dim);
    memset(slot->choices.pool_counts, 0, sizeof(int32_t) * (size_t)head.size.C);
    find_clusters(&head, &slot->clusters, workers);
    if (is_empty)
        return;
    find_sums(&head, &slot->clusters, &slot->sums, workers);
    sh_shoal_find_pools(&head, &slot->clusters, &slot->sums, &slot->choices, workers);
    head.size.k = sh_shoal_topk(&head, &slot->clusters, &slot->sums);
    if (slot->clusters.live)
        slot->clusters.live[3] = (int32_t)head.size.k;
    if (head.has_moments)
        sh_shoal_find_moments(&head, &slot->clusters, &slot->moments, workers);
    sh_shoal_attend_blocks(&head, &slot->clusters, &slot->sums, &slot->moments,
                           &slot->choices, out, workers);
}

/* ---- The kind ---------------------------------------------------------------------- */

/* They come first in the state. */
static const int32_t *groups(const shoal_plan *plan, const void *state) {
    (void)plan;
    return state;
}

/* What a state (NULL: the plan's own) keeps of a head, and the numbers of its sequence;
   returns whether the plan keeps anything of such a head. */
static int read_state(const shoal_plan *plan, const void *state, int64_t head,
                      shoal_slot *kept, shoal_sizes *size) {
    if (!plan || plan->kind != &sh_shoal_kind || !plan->with_backward || head < 0 ||
        head >= plan->problem.batch * plan->problem.heads)
        return 0;
    block_layout layout = {.base = state ? (char *)state : plan->state};
    bind_state(plan, &((shoal_work *)plan->work)->size, &layout, head, kept);
    const int32_t *live = kept->clusters.live;
    *size = numbers_of(plan, live[0], live[1], live[2]);
    size->k = live[3];
    return 1;
}

shoal_status shoal_plan_tilt(const shoal_plan *plan, const void *state, int64_t head,
                             shoal_tilt *tilt) {
    shoal_slot kept;
    shoal_sizes size;
    if (!tilt || !read_state(plan, state, head, &kept, &size))
        return REFUSE(plan ? plan->context : NULL,
                      "shoal_plan_tilt: not a plan of shoal-C with SHOAL_WITH_BACKWARD, "
                      "or the head does not exist");
    *tilt = (shoal_tilt){.rank = size.dims,
                         .near = size.near,
                         .key_cluster_count = size.M,
                         .key_clusters = kept.clusters.of_keys,
                         .projection = kept.clusters.projection,
                         .dual = kept.clusters.dual,
                         .shares = kept.sums.shares};
    return SHOAL_OK;
}

int64_t shoal_plan_exact_keys(const shoal_plan *plan, const void *state, int64_t head,
                              int64_t query, int32_t *keys) {
    shoal_slot kept;
    shoal_sizes size;
    if (!keys || !read_state(plan, state, head, &kept, &size) || query < 0 ||
        query >= plan->problem.queries)
        return 0;
    const int32_t *of = kept.clusters.of_queries, *order = kept.clusters.queries.order;
    const int32_t j = of[query];
    for (int64_t x = 0; x < plan->attention.topk; x++)
        keys[x] = -1;
    if (j < 0 || kept.clusters.live[2] == 0)
        return 0;
    /* The query's block: queries are in order, block after block. */
    int64_t block = 0, place = 0;
    for (int64_t at = 0; order[at] != query; at++) {
        place = of[order[at]] == of[order[at + 1]] ? place + 1 : 0;
        block += place % size.block == 0;
    }
    const uint16_t *places = kept.choices.exact + block * size.k;
    const int64_t count = min(size.k, kept.choices.pool_counts[j]);
    for (int64_t x = 0; x < count; x++)
        keys[x] = kept.choices.pools[j * size.p + places[x]];
    return count;
}

/* What a field is when the spelling leaves it to the sizes: docs/notebook/shoal3.md and
   shoal2.md have the measurements. */
static void resolve(const shoal_problem *problem, shoal_attention *a) {
    const int64_t N = problem->queries, S = problem->keys, D = problem->dim;
    const int second = a->form == 2;
    /* Beside the products of wide heads, choosing costs little: more of everything. */
    const int wide = !second && D > 64 ? 2 : 1;
    int32_t advised = wide * (N < 1024 ? 8 : N < 8192 ? 16 : N < 16384 ? 24 : 32);
    if (!second && N >= 4096)
        advised = wide == 2 ? 96 : N < 8192 ? 24 : 32;
    if (a->clusters == SHOAL_BY_SIZE)
        a->clusters = advised;
    /* In smaller groups blocks are more alike. */
    const double smaller = fmin(1, (double)advised / a->clusters);
    if (a->keyclusters == SHOAL_BY_SIZE)
        a->keyclusters = (int32_t)(second ? min(24, max(8, S / 480 * 8))
                                          : min(wide * 48, max(8, wide * S / 640 * 8)));
    if (a->topk == SHOAL_BY_SIZE) { /* a shorter sequence's are never more */
        int32_t eighth = N < 1024 ? 12 : second || N < 8192 ? 14 : 16;
        if (wide == 2 && N >= 1024)
            eighth = N < 4096 ? 20 : 40;
        a->topk = 8 * (int32_t)round(eighth * sqrt(sqrt(smaller)));
    }
    if (a->rank == SHOAL_BY_SIZE)
        a->rank =
            (int32_t)max(1, wide == 1 ? min(16, D / 4) : min(24, max(16, 3 * D / 16)));
    if (a->block == SHOAL_BY_SIZE)
        a->block = N < 8192 ? 24 : 48;
    if (a->pool == SHOAL_BY_SIZE) {
        int32_t pool = S < 1024 ? second ? 160 : 256 : S < 8192 ? 384 : 768;
        if (wide == 2 && S >= 1024)
            pool = S < 3072 ? 768 : 1536;
        a->pool = (int32_t)(pool * smaller);
        a->pool = (int32_t)min(65535, max(a->pool, 2 * (int64_t)a->topk));
    }
    if (a->near == SHOAL_BY_SIZE || N != S)
        a->near = N != S ? 0 : N < 8192 ? (int32_t)min(8, N / 180) : 4;
}

static operation_count operations(const shoal_attention *a,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double D = (double)problem->dim, both = D + (double)problem->value_dim;
    const double C = fmin(N, a->clusters), M = fmin(S, a->keyclusters);
    const double r = fmin(D, a->rank), block = a->block;
    const double points = points_of(problem->queries, a->block);
    const double near = N == S && a->near > 0 ? 2 * a->near + 1 : 0;
    return (operation_count){.once = 2 * (2 * N + S) * D * r + 2 * C * S * r +
                                     2 * N / block * points * fmin(S, a->pool) * r,
                             .dense = 2 *
                                      (C * S * (both + r) + N * fmin(S, a->topk) * both +
                                       N * M * (r + (double)problem->value_dim) +
                                       N * near * (both + D))};
}

const attention_kind sh_shoal_kind = {
    .info = {.name = "shoal-C",
             .number = "clusters",
             .cost = "N r (D + C) + C S (D + Dv + r) + N (k + 2 w + 1 + M) (D + Dv)",
             .summary = "queries clustered in the metric of the keys; exact keys per "
                        "block of similar queries, corrected weights for the others",
             .defaults = {.kind = SHOAL_KIND_SHOAL,
                          .clusters = SHOAL_BY_SIZE,
                          .topk = SHOAL_BY_SIZE,
                          .clustering = SHOAL_CLUSTERING_KEYS,
                          .normaliser = SHOAL_NORMALISER_QUERY,
                          .rank = SHOAL_BY_SIZE,
                          .keyclusters = SHOAL_BY_SIZE,
                          .block = SHOAL_BY_SIZE,
                          .pool = SHOAL_BY_SIZE,
                          .near = SHOAL_BY_SIZE,
                          .form = 3,
                          .iterations = 6,
                          .seed = 1},
             .has_clusters = 1,
             .has_seed = 1},
    .options = OPTION_TOPK | OPTION_RANK | OPTION_ITERATIONS | OPTION_KEYCLUSTERS |
               OPTION_BLOCK | OPTION_POOL | OPTION_NEAR | OPTION_FORM,
    .resolve = resolve,
    .operations = operations,
    .place = place_shoal,
    .forward_head = forward_head,
    .backward_head = sh_shoal_backward,
    .groups = groups,
};
