/* lsh over few positions: dense attention in which a key counts once for every round that
 * shows it. Its score gets the logarithm of that number, a pair that no round shows the
 * lowest score there is; so both passes are those of dense.c. */
#include <math.h>
#include <string.h>

#include "attention/lsh.h"

enum {
    STRIP = 16,       /* queries that are looked at together */
    MOST_CHUNKS = 255 /* bytes number them, and the first does not follow the last */
};
typedef uint8_t strip __attribute__((vector_size(STRIP * sizeof(uint8_t))));

static int64_t most_positions(const shoal_plan *plan) {
    return min(min(plan->problem.queries, MOST_CHUNKS * LSH_CHUNK),
               (int64_t)plan->attention.rounds * LSH_WINDOW);
}

int sh_lsh_counted(const lsh_job *job) {
    return job->view.queries <= most_positions(job->call->plan);
}

void sh_lsh_count_place(lsh_count *count, const shoal_plan *plan, block_layout *work) {
    const int64_t few = most_positions(plan), rounds = plan->attention.rounds;
    count->keys = sh_reserve(work, few * plan->problem.dim, sizeof(float));
    count->chunks = sh_reserve(work, rounds * few + STRIP, sizeof(uint8_t));
    count->logs = sh_reserve(work, rounds + 1, sizeof(float));
    if (plan->with_backward)
        count->turns = sh_reserve(work, ceil_divide(few, sh_dense_block(plan->kernels)),
                                  sizeof(atomic_int));
}

/* ---- Rounds that show a pair ------------------------------------------------------ */

static void prepare(const lsh_job *job) {
    const lsh_count *count = &job->slot->count;
    const shoal_plan *plan = job->call->plan;
    for (int64_t i = 0; i < job->view.queries; i++)
        sh_lsh_unit_row(job, i, count->keys + i * plan->problem.dim);
    count->logs[0] = LOWEST_SCORE;
    for (int m = 1; m <= plan->attention.rounds; m++)
        count->logs[m] = logf((float)m);
}

/* Notes the chunks of the job's round. */
static void note_chunks(const lsh_job *job) {
    const int64_t n = job->view.queries;
    uint8_t *chunks = job->slot->count.chunks + job->round * n;
    for (int64_t s = 0; s < n; s++)
        chunks[job->order[s]] = (uint8_t)(s / LSH_CHUNK);
}

/* counts[i]: rounds in which query first + i has the key in its chunk or in the one
   before. */
static void count_rounds(const lsh_job *job, int64_t first, int64_t key,
                         uint8_t counts[STRIP]) {
    const int64_t n = job->view.queries;
    const uint8_t *chunks = job->slot->count.chunks;
    strip shown = {0};
    for (int round = 0; round < job->call->plan->attention.rounds; round++, chunks += n) {
        strip ahead;
        memcpy(&ahead, chunks + first, sizeof ahead);
        ahead -= chunks[key];
        shown -= (strip)(ahead <= 1); /* true is -1 */
    }
    /* itself: the lowest score counts only where it is alone */
    if (key >= first && key < first + STRIP)
        shown[key - first] = 0;
    memcpy(counts, &shown, sizeof shown);
}

static void weigh(void *shared, const query_panel *panel, float *scores, int count,
                  int64_t first) {
    const lsh_job *job = shared;
    const float *logs = job->slot->count.logs;
    for (int r = 0; r < count; r++)
        for (int i = 0; i < panel->count; i += STRIP) {
            float *row = scores + r * panel->width + i;
            const int lanes = (int)min(STRIP, panel->width - i);
            uint8_t counts[STRIP];
            count_rounds(job, panel->first + i, first + r, counts);
            for (int j = 0; j < lanes; j++)
                row[j] += logs[counts[j]]; /* the lowest score absorbs any other */
        }
}

/* ---- The passes ------------------------------------------------------------------- */

static dense_keys unit_keys(const lsh_job *job) {
    dense_keys keys = sh_dense_keys_of(job->call->plan, &job->view);
    keys.k = (row_view){job->slot->count.keys, job->call->plan->problem.dim};
    return keys;
}

static void forward_task(void *shared, int64_t task, int thread) {
    const dense_forward_job *dense = shared;
    const int64_t block = sh_dense_block(dense->keys.kernels), first = task * block;
    sh_dense_forward(dense, first, min(first + block, dense->key_count), thread);
}

void sh_lsh_count_forward(lsh_job *job, int32_t *orders, int64_t stride, team workers) {
    const shoal_plan *plan = job->call->plan;
    const int64_t n = job->view.queries;
    dense_forward_job dense = {.keys = unit_keys(job),
                               .key_count = n,
                               .x = job->view.q,
                               .out = job->out,
                               .top = job->top,
                               .inverse = job->sum,
                               .seen = weigh,
                               .seer = job,
                               .threads = ((lsh_work *)plan->work)->dense};
    prepare(job);
    for (job->round = 0; job->round < plan->attention.rounds; job->round++) {
        sh_lsh_sort(job, orders + job->round * stride, workers);
        note_chunks(job);
    }
    sh_team_run(workers, ceil_divide(n, sh_dense_block(plan->kernels)), forward_task,
                &dense);
}

void sh_lsh_count_backward(lsh_job *job, const int32_t *orders, team workers) {
    const shoal_plan *plan = job->call->plan;
    const int64_t n = job->view.queries;
    float *grad_keys = job->dq.data ? job->slot->grad_keys : NULL;
    dense_backward_job dense = {.keys = unit_keys(job),
                                .n = n,
                                .key_count = n,
                                .x = job->view.q,
                                .dout = job->dout,
                                .top = job->top,
                                .inverse = job->sum,
                                .delta = job->slot->delta,
                                .dq = job->dq,
                                .dk = {grad_keys, plan->problem.dim},
                                .dv = job->dv,
                                .seen = weigh,
                                .seer = job,
                                .turns = job->slot->count.turns,
                                .threads = ((lsh_work *)plan->work)->dense};
    prepare(job);
    for (job->round = 0; job->round < plan->attention.rounds; job->round++) {
        job->order = orders + job->round * plan->problem.queries;
        note_chunks(job);
    }
    sh_dense_backward(&dense, workers);
}
