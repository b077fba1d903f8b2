/* Backward through the one softmax that the rounds are together, recomputed chunk by
 * chunk from the orders, tops and inverse sums that forward left. A chunk adds to the
 * gradients of its own keys and of those of the chunk before it: even chunks run first,
 * then odd ones, so that no two tasks meet and every sum has one order, however many
 * threads there are. */
#include "attention/lsh.h"

#include <string.h>

enum { ROW_TASK = 1024 };

/* ---- One chunk -------------------------------------------------------------------- */

static void gather_gradients(const lsh_job *job, const lsh_chunk *chunk,
                             lsh_scratch *scratch) {
    const size_t dim = (size_t)job->call->plan->problem.dim;
    const size_t value_dim = (size_t)job->call->plan->problem.value_dim;
    const size_t window = (size_t)(chunk->before + chunk->count);
    for (size_t i = 0; i < (size_t)chunk->count; i++) {
        const int64_t position = chunk->window[(size_t)chunk->before + i];
        memcpy(scratch->queries + i * dim,
               job->view.q.data + position * job->view.q.stride, dim * sizeof(float));
        memcpy(scratch->grad_out + i * value_dim,
               job->dout.data + position * job->dout.stride, value_dim * sizeof(float));
    }
    memset(scratch->grad_keys, 0, window * dim * sizeof(float));
    memset(scratch->grad_values, 0, window * value_dim * sizeof(float));
}

static void start_panel(const lsh_job *job, const int32_t *queries,
                        const lsh_scratch *scratch, query_panel *panel) {
    const shoal_plan *plan = job->call->plan;
    const int64_t dim = plan->problem.dim, value_dim = plan->problem.value_dim;
    plan->kernels->pack(scratch->queries + panel->first * dim, dim, NULL, panel->count,
                        panel->width, (int)dim, plan->problem.scale, panel->queries);
    plan->kernels->pack(scratch->grad_out + panel->first * value_dim, value_dim, NULL,
                        panel->count, panel->width, (int)value_dim, 1, panel->grad_out);
    memset(panel->grad_q, 0, sizeof(float) * (size_t)(dim * panel->width));
    for (int i = 0; i < panel->width; i++) {
        int live = i < panel->count;
        panel->top[i] = live ? job->top[queries[i]] : 0;
        panel->sum[i] = live ? job->sum[queries[i]] : 0;
        panel->delta[i] = live ? job->slot->delta[queries[i]] : 0;
    }
}

/* Five products around one softmax, as in dense.c, but the rows have been gathered. */
static void backward_panel(const lsh_job *job, const lsh_chunk *chunk,
                           const lsh_scratch *scratch, query_panel *panel) {
    const shoal_plan *plan = job->call->plan;
    const kernel_table *run = plan->kernels;
    const int dim = (int)plan->problem.dim, value_dim = (int)plan->problem.value_dim;
    const int width = panel->width, window = chunk->before + chunk->count;
    const int32_t *queries = chunk->window + chunk->before + panel->first;
    float *scores = scratch->dense->scores, *slopes = scratch->dense->slopes;
    start_panel(job, queries, scratch, panel);
    run->score(panel->queries, width, dim, scratch->keys, dim, window, scores);
    run->score(panel->grad_out, width, value_dim, scratch->values, value_dim, window,
               slopes);
    sh_lsh_hide_self(chunk, panel, scores);
    run->softmax_slope(scores, slopes, width, window, panel->top, panel->sum,
                       panel->delta, plan->problem.scale);
    if (job->dv.data)
        run->spread(scores, width, panel->count,
                    scratch->grad_out + panel->first * value_dim, value_dim, value_dim,
                    window, scratch->grad_values, value_dim);
    if (!job->dq.data)
        return;
    run->mix(slopes, width, scratch->keys, dim, window, dim, NULL, panel->grad_q);
    run->unpack(panel->grad_q, panel->count, width, dim, NULL, NULL, 1, job->dq.data,
                job->dq.stride, queries);
    run->spread(slopes, width, panel->count, scratch->queries + panel->first * dim, dim,
                dim, window, scratch->grad_keys, dim);
}

/* to[index[r]] += from[r]. */
static void scatter_add(const float *from, int64_t dim, const int32_t *index, int count,
                        row_view to) {
    for (int r = 0; r < count; r++) {
        float *row = to.data + index[r] * to.stride;
        for (int64_t d = 0; d < dim; d++)
            row[d] += from[r * dim + d];
    }
}

static void backward_chunk(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const shoal_problem *problem = &plan->problem;
    const lsh_chunk chunk = sh_lsh_chunk_at(job, 2 * task + job->phase);
    const int window = chunk.before + chunk.count;
    lsh_scratch *scratch = &((lsh_work *)plan->work)->threads[thread];
    query_panel *panel = &scratch->dense->panels[0];
    sh_lsh_gather(job, &chunk, scratch);
    gather_gradients(job, &chunk, scratch);
    for (int64_t first = 0; first < chunk.count; first += panel->width) {
        sh_lsh_cut(plan, &chunk, first, panel);
        backward_panel(job, &chunk, scratch, panel);
    }
    if (job->dv.data)
        scatter_add(scratch->grad_values, problem->value_dim, chunk.window, window,
                    job->dv);
    if (job->dq.data)
        scatter_add(scratch->grad_keys, problem->dim, chunk.window, window,
                    (row_view){job->slot->grad_keys, problem->dim});
}

/* ---- One head --------------------------------------------------------------------- */

/* What the softmax's gradient subtracts: delta_i = dout_i . out_i. */
static void delta_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const int64_t end = min((task + 1) * ROW_TASK, job->view.queries);
    (void)thread;
    for (int64_t i = task * ROW_TASK; i < end; i++) {
        const float *a = job->dout.data + i * job->dout.stride;
        const float *b = job->out.data + i * job->out.stride;
        double sum = 0;
        for (int64_t d = 0; d < job->call->plan->problem.value_dim; d++)
            sum += (double)a[d] * (double)b[d];
        job->slot->delta[i] = (float)sum;
    }
}

/* Adds the keys' gradients to the queries they were made from: of a key u = q / |q| only
   what is at right angles to u counts, divided by |q|. */
static void normalise_task(void *shared, int64_t task, int thread) {
    const lsh_job *job = shared;
    const shoal_plan *plan = job->call->plan;
    const int64_t dim = plan->problem.dim;
    const int64_t end = min((task + 1) * ROW_TASK, job->view.queries);
    float *unit = ((lsh_work *)plan->work)->threads[thread].keys;
    for (int64_t i = task * ROW_TASK; i < end; i++) {
        const float *grad = job->slot->grad_keys + i * dim;
        const double inverse = job->slot->inverse_length[i];
        float *dq = job->dq.data + i * job->dq.stride;
        double along = 0;
        sh_lsh_unit_row(job, i, unit);
        for (int64_t d = 0; d < dim; d++)
            along += (double)grad[d] * (double)unit[d];
        for (int64_t d = 0; d < dim; d++)
            dq[d] += (float)(((double)grad[d] - along * (double)unit[d]) * inverse);
    }
}

static void backward_rounds(lsh_job *job, const int32_t *orders, team workers) {
    const shoal_plan *plan = job->call->plan;
    const int64_t chunks = ceil_divide(job->view.queries, LSH_CHUNK);
    for (job->round = 0; job->round < plan->attention.rounds; job->round++) {
        job->order = orders + job->round * plan->problem.queries;
        for (job->phase = 0; job->phase < 2; job->phase++)
            sh_team_run(workers, ceil_divide(chunks - job->phase, 2), backward_chunk,
                        job);
    }
}

static void backward_head(lsh_job *job, const int32_t *orders, team workers) {
    const shoal_problem *problem = &job->call->plan->problem;
    const int64_t n = job->view.queries;
    sh_lsh_measure(job, workers);
    sh_team_run(workers, ceil_divide(n, ROW_TASK), delta_task, job);
    sh_clear_rows((row_view){job->slot->grad_keys, problem->dim}, 0, n, problem->dim);
    (sh_lsh_counted(job) ? sh_lsh_count_backward : backward_rounds)(job, orders, workers);
    if (job->dq.data)
        sh_team_run(workers, ceil_divide(n, ROW_TASK), normalise_task, job);
}

static void backward_unit(void *shared, int64_t unit, int slot_index, team workers) {
    const attention_call *call = shared;
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const shoal_gradients *gradients = call->gradients;
    const lsh_state state = sh_lsh_state_at(plan, &(block_layout){.base = call->state});
    const int64_t b = unit / problem->heads, h = unit % problem->heads;
    const int64_t at = unit * problem->queries;
    lsh_job job = {.call = call,
                   .slot = &((lsh_work *)plan->work)->slots[slot_index],
                   .view = sh_view_of(call, b, h),
                   .top = state.top + at,
                   .sum = state.inverse + at,
                   .out = sh_query_rows(call, gradients->out, &problem->out, b, h),
                   .dout = sh_query_rows(call, gradients->dout, &problem->out, b, h),
                   .dq = sh_query_rows(call, gradients->dq, &problem->q, b, h),
                   .dv = sh_key_rows(call, gradients->dv, &problem->v, b, h)};
    const int64_t positions = problem->packed ? job.view.queries : problem->queries;
    sh_clear_rows(job.dq, 0, positions, problem->dim);
    sh_clear_rows(job.dv, 0, positions, problem->value_dim);
    sh_clear_rows(sh_key_rows(call, gradients->dk, &problem->k, b, h), 0, positions,
                  problem->dim);
    if (job.view.queries > 0)
        backward_head(&job, state.order + at * plan->attention.rounds, workers);
}

void sh_lsh_backward(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    sh_run_units(sh_team_of(call->plan->context), problem->batch * problem->heads,
                 backward_unit, (void *)call);
}
