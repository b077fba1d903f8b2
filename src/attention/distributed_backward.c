/* Backward of the clustered kinds over ranks. Of a group only sums cross: of its members'
   output gradients and of their part in the mass's, later the centroid's gradient; and
   the gradients of the top keys' rows go back to the ranks that have the keys. */
#include <string.h>

#include "attention/distributed.h"

/* Where a unit has [C][width] floats that are to be summed over the ranks. */
typedef float *rows_of_unit(const clustered_head *head);

static float *shared_of(const clustered_head *head) {
    return head->slot->grad_shared;
}

static float *delta_of(const clustered_head *head) {
    return head->slot->delta;
}

static float *centroids_of(const clustered_head *head) {
    return head->slot->grad_centroids;
}

static void add_up(distributed_call *run, rows_of_unit *rows, int64_t width) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), size = plan->attention.clusters * width;
    float *mine = run->own->packet, *all = run->own->packets;
    for (int64_t u = 0; u < U; u++) {
        const clustered_head *head = &run->own->heads[u];
        memset(mine + u * size, 0, sizeof *mine * (size_t)size);
        if (sh_distributed_is_live(run, u))
            memcpy(mine + u * size, rows(head),
                   sizeof *mine * (size_t)(head->slot->sorted.used * width));
    }
    sh_distributed_sum_floats(run, width);
    for (int64_t u = 0; u < U; u++)
        memcpy(rows(&run->own->heads[u]), all + u * size, sizeof *all * (size_t)size);
}

static void clear_gradients(distributed_call *run) {
    for (int64_t u = 0; u < distributed_units(run->call->plan); u++) {
        const head_view *view = &run->own->heads[u].view;
        sh_clear_rows(view->dq, sh_distributed_is_live(run, u) ? view->queries : 0,
                      view->query_rows, run->call->plan->problem.dim);
    }
}

/* The members' part; the top keys' rows have gradients in own->row_grads. */
static void backward_parts(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), wide = distributed_row_size(plan);
    distributed_work *own = run->own;
    memset(own->row_grads, 0,
           sizeof(float) * (size_t)(own->row_starts[run->over->ranks * U] * wide));
    for (int64_t u = 0; u < U; u++) {
        clustered_head *head = &own->heads[u];
        head->dk = (row_view){own->row_grads, wide};
        head->dv = (row_view){own->row_grads + plan->problem.dim, wide};
        if (sh_distributed_is_live(run, u))
            sh_clustered_backward_parts(head, run->workers);
    }
}

/* The keys' own gradients: the dense pass over those that are here. */
static void backward_keys(distributed_call *run) {
    const attention_call *call = run->call;
    const shoal_problem *problem = &call->plan->problem;
    for (int64_t unit = 0; unit < problem->batch * problem->kv_heads; unit++) {
        const kv_head_view keys = sh_start_kv_head(call, unit);
        for (int64_t h = keys.first; h < keys.last; h++) {
            const int64_t u = keys.b * problem->heads + h;
            clustered_head *head = &run->own->heads[u];
            head->dk = keys.dk;
            head->dv = keys.dv;
            if (!sh_distributed_is_live(run, u))
                continue;
            sh_clustered_backward_correct(head);
            if (head->view.keys > 0)
                sh_clustered_backward_dense(head, run->workers);
        }
    }
}

/* Rows' gradients go to the ranks that have the keys, each of which gets P times its
   rows. Where one has far more than its part of them, that would need room for many times
   as much: so they go in turns, mostly in one. */
int64_t sh_distributed_most_returned(const shoal_plan *plan) {
    const int64_t rows = sh_mul_checked(distributed_groups(plan), plan->attention.topk);
    return ceil_divide(2 * rows, plan->over->ranks);
}

/* Rows of rank p in turn `turn`. */
static int64_t rows_in_turn(const distributed_call *run, int p, int64_t turn) {
    const int64_t most = sh_distributed_most_returned(run->call->plan);
    return max(0, min(most, sh_distributed_rows_of(run, p) - turn * most));
}

static int64_t turns_of(const distributed_call *run) {
    const int64_t most = sh_distributed_most_returned(run->call->plan);
    int64_t turns = 0;
    for (int p = 0; p < run->over->ranks && most > 0; p++)
        turns = max(turns, ceil_divide(sh_distributed_rows_of(run, p), most));
    return turns;
}

static void send_rows(distributed_call *run, int64_t turn) {
    const shoal_plan *plan = run->call->plan;
    const int64_t wide = distributed_row_size(plan), U = distributed_units(plan);
    const int ranks = run->over->ranks;
    const distributed_work *own = run->own;
    float *send = own->packet;
    for (int p = 0; p < ranks; p++) {
        const int64_t first = own->row_starts[p * U] +
                              turn * sh_distributed_most_returned(plan);
        const int64_t rows = rows_in_turn(run, p, turn);
        if (rows > 0)
            memcpy(send, own->row_grads + first * wide,
                   sizeof *send * (size_t)(rows * wide));
        send += rows * wide;
        own->sizes[p] = rows * wide * (int64_t)sizeof *send;
        own->sizes[ranks + p] = rows_in_turn(run, run->over->rank, turn) * wide *
                                (int64_t)sizeof *send;
    }
    if (!run->failed)
        run->failed = run->over->exchange(run->over, own->sizes, own->packet,
                                          own->sizes + ranks, own->own_grads) != SHOAL_OK;
}

static void add_row(row_view to, int64_t l, const float *from, int64_t dim) {
    for (int64_t d = 0; d < dim && to.data; d++)
        to.data[l * to.stride + d] += from[d];
}

/* To the key of this rank that is the ith of unit u's. */
static void add_gradient(const distributed_call *run, int64_t u, int64_t i,
                         const float *row) {
    const shoal_plan *plan = run->call->plan;
    const int64_t most = plan->attention.clusters * (int64_t)plan->attention.topk;
    const clustered_head *head = &run->own->heads[u];
    const int64_t first = sh_distributed_keys_before(run, u, run->over->rank);
    const int64_t l = run->own->keys[u * most + first + i] - head->first_key;
    add_row(head->dk, l, row, plan->problem.dim);
    add_row(head->dv, l, row + plan->problem.dim, plan->problem.value_dim);
}

static void add_rows(const distributed_call *run, int64_t turn) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), wide = distributed_row_size(plan);
    const int64_t rows = rows_in_turn(run, run->over->rank, turn);
    const int64_t first = turn * sh_distributed_most_returned(plan);
    const int64_t *starts = run->own->row_starts + run->over->rank * U;
    for (int p = 0; p < run->over->ranks; p++)
        for (int64_t u = 0; u < U; u++) {
            const int64_t begin = starts[u] - starts[0], end = starts[u + 1] - starts[0];
            for (int64_t at = max(begin, first); at < min(end, first + rows); at++)
                add_gradient(run, u, at - begin,
                             run->own->own_grads + (p * rows + at - first) * wide);
        }
}

static void return_rows(distributed_call *run) {
    const int64_t turns = turns_of(run);
    for (int64_t turn = 0; turn < turns && !run->failed; turn++) {
        send_rows(run, turn);
        if (!run->failed)
            add_rows(run, turn);
    }
}

shoal_status sh_distributed_backward(const attention_call *call, shoal_status status) {
    const shoal_plan *plan = call->plan;
    const clustered_work *work = plan->work;
    distributed_call run;
    status = sh_distributed_begin(&run, call, status);
    if (status != SHOAL_OK)
        return status;
    const distributed_state state = sh_clustered_distributed_state(plan, call->state);
    sh_distributed_load_heads(&run);
    for (int64_t u = 0; u < distributed_units(plan); u++)
        sh_clustered_sort(&run.own->heads[u]);
    sh_distributed_use_members(&run, state.members);
    memset(run.own->row_starts, 0,
           sizeof(int64_t) * (size_t)(run.over->ranks * distributed_units(plan) + 1));
    if (work->has_top) {
        sh_distributed_count_rows(&run);
        sh_distributed_use_rows(&run, &state);
    }
    clear_gradients(&run);
    backward_parts(&run);
    add_up(&run, shared_of, plan->problem.value_dim);
    add_up(&run, delta_of, 1);
    backward_keys(&run);
    add_up(&run, centroids_of, plan->problem.dim);
    return_rows(&run);
    if (run.failed)
        return sh_distributed_failure(&run);
    for (int64_t u = 0; u < distributed_units(plan); u++)
        if (sh_distributed_is_live(&run, u))
            sh_clustered_backward_members(&run.own->heads[u], run.workers);
    return SHOAL_OK;
}
