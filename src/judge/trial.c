/* What a few queries of every head would get from more and more top keys, against what
   they should get. One pass over the keys for the queries and for their groups' centroids
   gives the exact outputs, the centroids' sums and their best keys; then keys move one by
   one, best first, from the centroid's part of a query's softmax into its own. */
#include <math.h>
#include <string.h>

#include "attention/clustered.h"
#include "base/random.h"
#include "judge/judge.h"

enum { MOST_SAMPLES = 64 };

void sh_trial_place(trial_thread *thread, const shoal_plan *plan, int32_t topk,
                    block_layout *work) {
    const int64_t D = plan->problem.dim, Dv = plan->problem.value_dim;
    thread->centroids = sh_reserve(work, plan->kernels->panel * D, sizeof(float));
    thread->keys = sh_reserve(work, topk, sizeof(int32_t));
    thread->weights = sh_reserve(work, topk, sizeof(float));
    thread->values = sh_reserve(work, Dv, sizeof(float));
    thread->moved_values = sh_reserve(work, Dv, sizeof(float));
}

/* The samples of one panel. Panel 0 of the thread's dense scratch has the queries, panel
   1 their groups' centroids. */
typedef struct {
    const topk_trial *trial;
    const clustered_head *head;
    dense_scratch *dense;
    trial_thread *own;
    topk_lists lists;       /* of panel 1 */
    const int32_t *queries; /* [count] */
    int count;
} sample_panel;

static void load_panels(sample_panel *samples) {
    const clustered_head *head = samples->head;
    const kernel_table *run = head->keys.kernels;
    const grouping *sorted = &head->slot->sorted;
    const row_view q = head->view.q;
    const int dim = head->keys.dim;
    query_panel *panel = samples->dense->panels;
    for (int s = 0; s < samples->count; s++) {
        const int32_t j = head->state.groups[samples->queries[s]];
        const int32_t first = sorted->offsets[j], size = sorted->offsets[j + 1] - first;
        float *centroid = samples->own->centroids + (int64_t)s * dim;
        run->sum_rows(q.data, q.stride, sorted->order + first, NULL, size, dim, centroid);
        for (int d = 0; d < dim; d++)
            centroid[d] /= (float)size;
    }
    for (int p = 0; p < 2; p++) {
        panel[p].first = 0;
        panel[p].count = samples->count;
        panel[p].width = panel_width(run, samples->count);
        sh_dense_start(&head->keys, &panel[p], (row_view){samples->own->centroids, dim});
    }
    run->pack(q.data, q.stride, samples->queries, samples->count, panel->width, dim,
              head->keys.scale, panel->queries);
    sh_topk_start(&samples->lists, samples->count, panel->width);
}

/* What moving the list's keys into the query's own part adds to their weights. */
static void weigh_moves(const sample_panel *samples, int s, const uint64_t *list,
                        int32_t count) {
    const row_view q = samples->head->view.q, k = samples->head->view.k;
    const float *query = q.data + samples->queries[s] * q.stride;
    const float largest = samples->dense->panels[1].largest[s];
    for (int32_t r = 0; r < count; r++) {
        const float *key = k.data + candidate_key(list[r]) * k.stride;
        const float score = samples->head->keys.scale *
                            ordered_dot(query, key, samples->head->keys.dim);
        samples->own->weights[r] = expf(score - largest) -
                                   expf(candidate_score(list[r]) - largest);
        samples->own->keys[r] = candidate_key(list[r]);
    }
}

/* Brings the best keys to the front of the list, those for each of the trial's numbers
   before the others: their order matters no further. Returns how many there are. */
static int32_t best_in_parts(const topk_trial *trial, uint64_t *list, int32_t count) {
    const int32_t found = sh_topk_cut(list, count, trial->topks[trial->count - 1]);
    count = found;
    for (int t = trial->count - 2; t >= 0; t--)
        count = sh_topk_cut(list, count, trial->topks[t]);
    return found;
}

/* Sample s: adds to squares [count + 1]. */
static void follow_sample(const sample_panel *samples, int s, double *squares) {
    const topk_trial *trial = samples->trial;
    const clustered_head *head = samples->head;
    const int Dv = head->keys.value_dim;
    const query_panel *exact = samples->dense->panels, *centroid = exact + 1;
    const int width = exact->width;
    float *sums = samples->own->values, *moved = samples->own->moved_values;
    uint64_t *list = topk_list(&samples->lists, s);
    const int32_t found = best_in_parts(trial, list, samples->lists.counts[s]);
    weigh_moves(samples, s, list, found);
    double sum = (double)centroid->sum[s];
    for (int d = 0; d < Dv; d++)
        sums[d] = centroid->outputs[d * width + s];
    for (int32_t t = 0, taken = 0; t < trial->count; t++) {
        const int32_t more = (int32_t)min(trial->topks[t], found) - taken;
        head->keys.kernels->sum_rows(head->view.v.data, head->view.v.stride,
                                     samples->own->keys + taken,
                                     samples->own->weights + taken, more, Dv, moved);
        for (int32_t r = taken; r < taken + more; r++)
            sum += (double)samples->own->weights[r];
        taken += more;
        double square = 0;
        for (int d = 0; d < Dv; d++) {
            sums[d] += moved[d];
            const double error = (double)sums[d] / sum -
                                 (double)(exact->outputs[d * width + s] / exact->sum[s]);
            square += error * error;
        }
        squares[t] += square;
    }
    for (int d = 0; d < Dv; d++) {
        const double right = (double)(exact->outputs[d * width + s] / exact->sum[s]);
        squares[trial->count] += right * right;
    }
}

static void try_panel(sample_panel *samples, double *squares) {
    const clustered_head *head = samples->head;
    query_panel *panel = samples->dense->panels;
    float *scores = samples->dense->scores;
    load_panels(samples);
    for (int64_t key = 0; key < head->view.keys; key += KEY_BLOCK) {
        const int64_t end = min(key + KEY_BLOCK, head->view.keys);
        sh_dense_stream(&head->keys, key, end, &panel[0], scores, NULL, NULL);
        sh_dense_stream(&head->keys, key, end, &panel[1], scores, sh_clustered_collect,
                        &samples->lists);
    }
    for (int s = 0; s < samples->count; s++)
        follow_sample(samples, s, squares);
}

static void try_head(void *shared, int64_t unit, int slot, team workers) {
    const topk_trial *trial = shared;
    const shoal_plan *plan = trial->call->plan;
    const int64_t heads = plan->problem.heads;
    clustered_head head =
        sh_clustered_head_of(trial->call, unit / heads, unit % heads, slot);
    double *squares = trial->squares + unit * (trial->count + 1);
    memset(squares, 0, sizeof *squares * (size_t)(trial->count + 1));
    sh_clustered_find_groups(&head, workers);
    const int64_t n = head.view.queries;
    if (n == 0 || head.view.keys == 0)
        return;
    int32_t chosen[MOST_SAMPLES];
    const int64_t count = min(min(trial->samples, MOST_SAMPLES), n);
    sh_random_subset(plan->attention.seed + (uint64_t)unit, STREAM_SAMPLES, n, count,
                     chosen);
    const int thread = workers.threads == 1 ? workers.self : 0;
    const clustered_thread *scratch = &head.work->threads[thread];
    sample_panel samples = {.trial = trial,
                            .head = &head,
                            .dense = scratch->dense,
                            .own = &trial->threads[thread],
                            .lists = sh_clustered_lists(&head, scratch, 1)};
    for (int64_t first = 0; first < count; first += samples.count) {
        samples.queries = chosen + first;
        samples.count = (int)min(head.keys.kernels->panel, count - first);
        try_panel(&samples, squares);
    }
    for (int t = 0; t <= trial->count; t++)
        squares[t] *= (double)n / (double)count;
}

void sh_trial_run(topk_trial *trial) {
    const shoal_problem *problem = &trial->call->plan->problem;
    sh_run_units(sh_team_of(trial->call->plan->context), problem->batch * problem->heads,
                 try_head, trial);
}
