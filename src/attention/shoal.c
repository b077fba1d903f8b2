/* shoal-C: the road of one head up to its blocks. */
#include "attention/shoal_kind.h"

#include <math.h>
#include <string.h>

/* ---- Coordinates ------------------------------------------------------------------- */

enum { PROJECT_TASK = 480 }; /* rows in one task: whole panels of every width */

/* Rows of x times a matrix [r][D], plus shift unless NULL: the slot's coordinates. */
typedef struct {
    const tilted_head *head;
    row_view x;
    int64_t n;
    const float *matrix, *shift;
} projection;

static void project_task(void *shared, int64_t task, int thread) {
    const projection *job = shared;
    const tilted_head *head = job->head;
    tilted_thread *own = &head->work->threads[thread];
    const int rank = head->size->rank, dim = head->size->dim;
    const int64_t last = min((task + 1) * PROJECT_TASK, job->n);
    query_panel *panel = &own->dense->panels[0];
    for (int64_t at = task * PROJECT_TASK; at < last; at += panel->count) {
        sh_dense_cut(own->dense, head->run, at, min(at + head->run->panel, last));
        head->run->pack(job->x.data + at * job->x.stride, job->x.stride, NULL,
                        panel->count, panel->width, dim, 1, panel->queries);
        head->run->score(panel->queries, panel->width, dim, job->matrix, dim, rank,
                         own->shift);
        head->run->unpack(own->shift, panel->count, panel->width, rank, NULL, job->shift,
                          0, head->slot->coordinates + at * rank, rank, NULL);
    }
}

static void project(const tilted_head *head, team workers, projection *job) {
    job->head = head;
    sh_team_run(workers, ceil_divide(job->n, PROJECT_TASK), project_task, job);
}

/* ---- Groups ----------------------------------------------------------------------- */

/* Every query is a group of its own: nothing is approximated, so nothing is needed to
   approximate it with. */
static int is_trivial(const tilted_head *head) {
    return !head->call->inputs->groups && head->view.queries <= head->size->C;
}

static int is_finite(const float *x, int64_t count) {
    int finite = 1;
    for (int64_t i = 0; i < count; i++)
        finite &= isfinite(x[i]) != 0;
    return finite;
}

/* P, Z and the keys' centre. Where inputs are too large for them, or not numbers, all are
   0: nothing is tilted. */
static void find_metric(tilted_head *head) {
    const row_view q = head->view.q, k = head->view.k;
    const int64_t size = (int64_t)head->size->rank * head->size->dim;
    const int64_t whole = size + head->size->dim;
    metric_work *metric = &head->slot->metric;
    memset(head->state.projection, 0, sizeof(float) * (size_t)whole);
    memset(head->state.dual, 0, sizeof(float) * (size_t)size);
    if (is_trivial(head))
        return;
    sh_metric_find(metric, head->run,
                   (metric_rows){k.data, k.stride, head->view.keys, head->masks.key_bias,
                                 head->masks.key_bias_step},
                   (metric_rows){q.data, q.stride, head->view.queries, NULL, 0});
    sh_metric_dual(metric, head->run, head->state.dual);
    memcpy(head->state.projection, metric->projection, sizeof(float) * (size_t)size);
    memcpy(head->state.projection + size, metric->centre,
           sizeof(float) * (size_t)head->size->dim);
    if (is_finite(head->state.projection, whole) && is_finite(head->state.dual, size))
        return;
    memset(head->state.projection, 0, sizeof(float) * (size_t)whole);
    memset(head->state.dual, 0, sizeof(float) * (size_t)size);
}

static void find_groups(tilted_head *head, team workers) {
    const shoal_attention *attention = &head->call->plan->attention;
    const int64_t n = head->view.queries, N = head->size->N;
    const int32_t *brought = head->call->inputs->groups;
    int32_t *groups = head->state.groups;
    if (brought) {
        memmove(groups, brought + head->view.head * N, (size_t)n * sizeof *groups);
        project(head, workers,
                &(projection){.x = head->view.q,
                              .n = n,
                              .matrix = head->state.projection});
    } else if (n <= head->size->C) {
        for (int64_t i = 0; i < n; i++)
            groups[i] = (int32_t)i;
    } else {
        sh_lloyd_run(&head->slot->query_means, head->run, workers, head->view.q.data,
                     head->view.q.stride, n, head->state.projection,
                     attention->iterations, attention->seed, groups,
                     head->slot->coordinates);
    }
    for (int64_t i = n; i < N; i++)
        groups[i] = -1;
    sh_group_sort(&head->slot->sorted, groups, n);
}

/* Members first .. last - 1 of the order, all of group j: their d, and they are put in
   order. Adds to the squares of d. */
static void order_members(const tilted_head *head, int64_t first, int64_t last,
                          float *restrict squares, tilted_thread *own) {
    const int rank = head->size->rank;
    int32_t *order = head->state.order + first;
    float *restrict rows = own->ordered_rows;
    for (int64_t i = 0; i < last - first; i++)
        for (int d = 0; d < rank; d++) {
            const float x = head->scale *
                                head->slot->coordinates[(int64_t)order[i] * rank + d] -
                            own->group_shift[d];
            rows[i * rank + d] = x;
            squares[d] += x * x;
        }
    sh_halve(&own->halving, rows, order, last - first, head->size->leaf);
}

/* Very large groups are put in order in parts. */
static void find_members(const tilted_head *head, int64_t j, tilted_thread *own) {
    const grouping *sorted = &head->slot->sorted;
    const int64_t first = sorted->offsets[j], last = sorted->offsets[j + 1];
    float *variances = head->slot->variances + j * head->size->rank;
    sh_tilted_load_group(head, j, own);
    for (int64_t at = first; at < last; at += HALVING_MOST)
        order_members(head, at, min(at + HALVING_MOST, last), variances, own);
    for (int d = 0; d < head->size->rank; d++)
        variances[d] /= (float)(last - first);
}

static void group_task(void *shared, int64_t j, int thread) {
    const tilted_head *head = shared;
    const grouping *sorted = &head->slot->sorted;
    const int dim = head->size->dim;
    const int64_t size = sorted->offsets[j + 1] - sorted->offsets[j];
    float *centroid = head->state.centroids + j * dim;
    head->run->sum_rows(head->view.q.data, head->view.q.stride,
                        sorted->order + sorted->offsets[j], NULL, size, dim, centroid);
    for (int d = 0; d < dim && size > 1; d++)
        centroid[d] /= (float)size;
    memset(head->slot->variances + j * head->size->rank, 0,
           sizeof(float) * (size_t)head->size->rank);
    if (size > 1)
        find_members(head, j, &head->work->threads[thread]);
}

/* ---- Key clusters ----------------------------------------------------------------- */

void sh_tilted_find_coordinates(tilted_head *head, team workers) {
    const int rank = head->size->rank, dim = head->size->dim;
    const float *centre = head->state.projection + (int64_t)rank * dim;
    for (int d = 0; d < rank; d++)
        head->slot->shift[d] =
            -ordered_dot(head->state.dual + (int64_t)d * dim, centre, dim);
    project(head, workers,
            &(projection){.x = head->view.k,
                          .n = head->view.keys,
                          .matrix = head->state.dual,
                          .shift = head->slot->shift});
}

/* What one unit of each coordinate of z changes, over all queries. */
static void find_stretch(const tilted_head *head) {
    const int rank = head->size->rank;
    const grouping *sorted = &head->slot->sorted;
    memset(head->slot->stretch, 0, sizeof(float) * (size_t)rank * (size_t)rank);
    for (int d = 0; d < rank; d++) {
        double sum = 0;
        for (int64_t j = 0; j < sorted->used; j++)
            sum += (double)(sorted->offsets[j + 1] - sorted->offsets[j]) *
                   (double)head->slot->variances[j * rank + d];
        head->slot->stretch[d * rank + d] = (float)sqrt(sum / (double)head->view.queries);
    }
}

void sh_tilted_find_plain(tilted_head *head) {
    const int rank = head->size->rank;
    const grouping *keys = &head->slot->keys;
    for (int64_t m = 0; m < head->size->M; m++) {
        const int64_t first = keys->offsets[m], size = keys->offsets[m + 1] - first;
        float *mean = head->slot->plain + m * rank;
        head->run->sum_rows(head->slot->coordinates, rank, keys->order + first, NULL,
                            size, rank, mean);
        for (int d = 0; d < rank && size > 0; d++)
            mean[d] /= (float)size;
    }
}

/* Chunks of whole clusters, each of at least an eighth of the keys. */
void sh_tilted_cut_keys(tilted_head *head) {
    tilted_slot *slot = head->slot;
    const int32_t *offsets = slot->keys.offsets;
    const int64_t least = max(1024, ceil_divide(head->seen, TILTED_CHUNKS));
    int32_t first = 0;
    slot->chunks = 0;
    slot->chunk_clusters[0] = 0;
    for (int32_t m = 0; m < slot->keys.used; m++)
        if (offsets[m + 1] - offsets[first] >= least || m == slot->keys.used - 1) {
            first = m + 1;
            slot->chunk_clusters[++slot->chunks] = first;
        }
}

/* Coordinates of keys that are not hidden, one below the other: k-means sees these. */
static void gather_seen(tilted_head *head) {
    const int rank = head->size->rank;
    float *to = head->slot->coordinates;
    for (int64_t l = 0; l < head->view.keys && head->seen < head->view.keys; l++)
        if (!hides_key(tilted_bias(head, l))) {
            memmove(to, head->slot->coordinates + l * rank, sizeof(float) * (size_t)rank);
            to += rank;
        }
}

/* And back to their places, with their clusters. */
static void scatter_seen(tilted_head *head) {
    const int rank = head->size->rank;
    int32_t *clusters = head->state.key_clusters;
    float *coordinates = head->slot->coordinates;
    int64_t from = head->seen;
    for (int64_t l = head->view.keys - 1; l >= 0 && head->seen < head->view.keys; l--) {
        if (hides_key(tilted_bias(head, l))) {
            clusters[l] = -1;
            continue;
        }
        clusters[l] = clusters[--from];
        memmove(coordinates + l * rank, coordinates + from * rank,
                sizeof(float) * (size_t)rank);
    }
}

static void find_key_clusters(tilted_head *head, team workers) {
    const shoal_attention *attention = &head->call->plan->attention;
    const int64_t S = head->seen;
    int32_t *clusters = head->state.key_clusters;
    sh_tilted_find_coordinates(head, workers);
    gather_seen(head);
    if (is_trivial(head)) {
        memset(clusters, 0, sizeof *clusters * (size_t)S);
    } else if (S <= head->size->M) {
        for (int64_t l = 0; l < S; l++)
            clusters[l] = (int32_t)l;
    } else {
        find_stretch(head);
        sh_lloyd_run(&head->slot->key_means, head->run, workers, head->slot->coordinates,
                     head->size->rank, S, head->slot->stretch, attention->iterations,
                     attention->seed + 1000, clusters, NULL);
    }
    scatter_seen(head);
    sh_group_sort(&head->slot->keys, clusters, head->view.keys);
    sh_tilted_cut_keys(head);
    sh_tilted_find_plain(head);
}

/* ---- The centroids' pass over the keys -------------------------------------------- */

void sh_tilted_gather_keys(const tilted_head *head, int64_t first, int count,
                           tilted_thread *own) {
    const row_view k = head->view.k, v = head->view.v;
    const int rank = head->size->rank, dim = head->size->dim;
    const int Dv = head->size->value_dim, wide = head->size->wide;
    const int32_t *order = head->slot->keys.order + first;
    for (int i = 0; i < count; i++) {
        memcpy(own->key_rows + (int64_t)i * dim, k.data + order[i] * k.stride,
               sizeof(float) * (size_t)dim);
        memcpy(own->wide_rows + (int64_t)i * wide, v.data + order[i] * v.stride,
               sizeof(float) * (size_t)Dv);
        memcpy(own->wide_rows + (int64_t)i * wide + Dv,
               head->slot->coordinates + (int64_t)order[i] * rank,
               sizeof(float) * (size_t)rank);
    }
    for (int i = 0; i < count && head->masks.key_bias; i++)
        own->key_bias[i] = tilted_bias(head, order[i]);
}

static void square_coordinates(const tilted_head *head, int count, tilted_thread *own) {
    const int rank = head->size->rank, wide = head->size->wide;
    for (int i = 0; i < count; i++)
        for (int d = 0; d < rank; d++) {
            const float z = own->wide_rows[(int64_t)i * wide + head->size->value_dim + d];
            own->half_squares[i * rank + d] = z * z / 2;
        }
}

static topk_lists lists_of(const tilted_head *head, const tilted_thread *own, int p) {
    const int64_t lane = (int64_t)p * head->run->panel;
    const int32_t k = (int32_t)head->size->p;
    return (topk_lists){head->run, k, own->candidates + lane * topk_capacity(k),
                        own->counts + lane, own->floor + lane};
}

static void start_panel(const tilted_head *head, query_panel *panel, int p,
                        tilted_thread *own) {
    const topk_lists lists = lists_of(head, own, p);
    const int32_t *offsets = head->slot->sorted.offsets + panel->first;
    const int64_t rank = head->size->rank;
    head->run->pack(head->state.centroids + panel->first * head->size->dim,
                    head->size->dim, NULL, panel->count, panel->width, head->size->dim,
                    head->scale, panel->queries);
    head->run->pack(head->slot->variances + panel->first * rank, rank, NULL, panel->count,
                    panel->width, (int)rank, 1,
                    own->variances + p * rank * head->run->panel);
    sh_topk_start(&lists, panel->count, panel->width);
    for (int i = 0; i < panel->count; i++)
        if (offsets[i + 1] - offsets[i] <= 1)
            lists.floor[i] = INFINITY;
}

/* One block of keys, gathered, of one cluster: its part of the sums, and candidates for
   the pool. */
static void attend_block(const tilted_head *head, query_panel *panel, int p,
                         int64_t first, int count, tilted_thread *own) {
    const kernel_table *run = head->run;
    const int width = panel->width, rank = head->size->rank, wide = head->size->wide;
    const topk_lists lists = lists_of(head, own, p);
    float *scores = own->dense->scores, *expected = own->expected;
    run->score(panel->queries, width, head->size->dim, own->key_rows, head->size->dim,
               count, scores);
    if (head->masks.key_bias)
        run->add_to_rows(own->key_bias, 1, width, count, scores);
    run->score(own->variances + (int64_t)p * rank * run->panel, width, rank,
               own->half_squares, rank, count, expected);
    for (int i = 0; i < count * width; i++)
        expected[i] += scores[i];
    sh_topk_collect(&lists, expected, panel->count, width, count, first);
    run->softmax_step(scores, width, count, panel->largest, panel->sum, panel->keep);
    run->mix(scores, width, own->wide_rows, wide, count, wide, panel->keep,
             panel->outputs);
}

static void start_cluster(const tilted_head *head, query_panel *panel) {
    memset(panel->outputs, 0, sizeof(float) * (size_t)(head->size->wide * panel->width));
    for (int i = 0; i < panel->width; i++) {
        panel->largest[i] = LOWEST_SCORE;
        panel->sum[i] = 0;
    }
}

static void keep_cluster(const tilted_head *head, const query_panel *panel, int64_t m) {
    const int64_t M = head->size->M, wide = head->size->wide;
    const int64_t at = panel->first * M + m;
    head->run->unpack(panel->outputs, panel->count, panel->width, (int)wide, NULL, NULL,
                      0, head->state.sums + at * wide, M * wide, NULL);
    for (int i = 0; i < panel->count; i++) {
        head->state.top[at + i * M] = panel->largest[i];
        head->state.mass[at + i * M] = panel->sum[i];
    }
}

static void keep_candidates(const tilted_head *head, int64_t chunk,
                            const query_panel *panel, int p, tilted_thread *own) {
    const topk_lists lists = lists_of(head, own, p);
    const int64_t at = chunk * head->size->C + panel->first;
    for (int i = 0; i < panel->count; i++) {
        uint64_t *list = topk_list(&lists, i);
        const int32_t count = sh_topk_cut(list, lists.counts[i], lists.k);
        head->slot->part_counts[at + i] = count;
        memcpy(head->slot->part_keys + (at + i) * head->size->p, list,
               (size_t)count * sizeof *list);
    }
}

/* One chunk of key clusters over some panels of centroids, which take turns on every
   block of keys. task = chunk * runs of panels + run. */
static void attend_task(void *shared, int64_t task, int thread) {
    const tilted_head *head = shared;
    tilted_thread *own = &head->work->threads[thread];
    const tilted_slot *slot = head->slot;
    const int64_t used = slot->sorted.used, run = sh_dense_block(head->run);
    const int64_t runs = ceil_divide(used, run), chunk = task / runs;
    const int64_t begin = task % runs * run;
    query_panel *panels = own->dense->panels;
    const int count = sh_dense_cut(own->dense, head->run, begin, min(begin + run, used));
    for (int p = 0; p < count; p++)
        start_panel(head, &panels[p], p, own);
    for (int32_t m = slot->chunk_clusters[chunk]; m < slot->chunk_clusters[chunk + 1];
         m++) {
        const int64_t last = slot->keys.offsets[m + 1];
        for (int p = 0; p < count; p++)
            start_cluster(head, &panels[p]);
        for (int64_t key = slot->keys.offsets[m]; key < last; key += KEY_BLOCK) {
            const int some = (int)min(KEY_BLOCK, last - key);
            sh_tilted_gather_keys(head, key, some, own);
            square_coordinates(head, some, own);
            for (int p = 0; p < count; p++)
                attend_block(head, &panels[p], p, key, some, own);
        }
        for (int p = 0; p < count; p++)
            keep_cluster(head, &panels[p], m);
    }
    for (int p = 0; p < count; p++)
        keep_candidates(head, chunk, &panels[p], p, own);
}

/* ---- The road --------------------------------------------------------------------- */

static void members_task(void *shared, int64_t j, int thread) {
    const tilted_head *head = shared;
    sh_tilted_attend_group(head, j, &head->work->threads[thread]);
}

void sh_tilted_count_blocks(tilted_head *head) {
    const grouping *sorted = &head->slot->sorted;
    int32_t *offsets = head->slot->block_offsets;
    offsets[0] = 0;
    for (int64_t j = 0; j < sorted->used; j++)
        offsets[j + 1] = offsets[j] +
                         (int32_t)ceil_divide(sorted->offsets[j + 1] - sorted->offsets[j],
                                              head->size->block);
}

void sh_tilted_forward(const attention_call *call, int64_t unit, int slot, team workers) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    tilted_head head = sh_tilted_head_of(call, b, h, slot);
    const int64_t n = head.view.queries, S = head.seen;
    head.out = sh_query_rows(call, call->out, &problem->out, b, h);
    sh_clear_rows(head.out, S > 0 ? n : 0, head.view.query_rows, problem->value_dim);
    memset(head.state.pool_counts, 0, sizeof(int32_t) * (size_t)head.size->C);
    if (call->plan->with_backward) {
        head.state.live[0] = (int32_t)n;
        head.state.live[1] = (int32_t)head.view.keys;
        head.state.live[2] = (int32_t)S;
    }
    find_metric(&head);
    find_groups(&head, workers);
    if (n == 0 || S == 0) {
        memset(head.state.key_clusters, -1, sizeof(int32_t) * (size_t)head.view.keys);
        return;
    }
    const int64_t used = head.slot->sorted.used;
    sh_tilted_count_blocks(&head);
    sh_team_run(workers, used, group_task, &head);
    find_key_clusters(&head, workers);
    sh_team_run(workers, head.slot->chunks * ceil_divide(used, sh_dense_block(head.run)),
                attend_task, &head);
    sh_team_run(workers, used, members_task, &head);
}
