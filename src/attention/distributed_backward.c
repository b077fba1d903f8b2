/* Backward of the clustered kinds over ranks. Of a group only sums cross: of its members'
   output gradients and of their part in the mass's, later the centroid's gradient; and
   the gradients of the top keys' rows go back to the ranks that have the keys. */
#include <stddef.h>
#include <string.h>

#include "attention/distributed.h"

/* Sums the [C][width] floats of every unit over the ranks; `field` is the offset of their
   pointer in clustered_slot. */
static void add_up(distributed_call *run, size_t field, int64_t width) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), size = plan->attention.clusters * width;
    float *mine = run->own->packet, *all = run->own->packets, *rows;
    memset(mine, 0, sizeof *mine * (size_t)(U * size));
    for (int64_t u = 0; u < U; u++) {
        const clustered_slot *slot = run->own->heads[u].slot;
        memcpy(&rows, (const char *)slot + field, sizeof rows);
        if (sh_distributed_is_live(run, u))
            memcpy(mine + u * size, rows,
                   sizeof *mine * (size_t)(slot->sorted.used * width));
    }
    sh_distributed_sum_floats(run, width);
    for (int64_t u = 0; u < U; u++) {
        memcpy(&rows, (char *)run->own->heads[u].slot + field, sizeof rows);
        memcpy(rows, all + u * size, sizeof *all * (size_t)size);
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
        const head_view *view = &head->view;
        const int live = sh_distributed_is_live(run, u);
        head->dk = (row_view){own->row_grads, wide};
        head->dv = (row_view){own->row_grads + plan->problem.dim, wide};
        sh_clear_rows(view->dq, live ? view->queries : 0, view->query_rows,
                      plan->problem.dim);
        if (live)
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
    const int64_t rows = sh_mul_checked(distributed_clusters(plan), plan->attention.topk);
    return ceil_divide(2 * rows, plan->over->ranks);
}

/* Adds what every rank sent, `rows` rows each, to the keys that are here: rows `first` on
   of this rank's. */
static void add_rows(const distributed_call *run, int64_t first, int64_t rows) {
    const shoal_plan *plan = run->call->plan;
    const int64_t U = distributed_units(plan), D = plan->problem.dim;
    const int64_t wide = distributed_row_size(plan);
    const int64_t most = plan->attention.clusters * (int64_t)plan->attention.topk;
    const int64_t *starts = run->own->row_starts + run->over->rank * U;
    for (int p = 0; p < run->over->ranks; p++)
        for (int64_t u = 0; u < U; u++) {
            const clustered_head *head = &run->own->heads[u];
            const int64_t begin = starts[u] - starts[0], end = starts[u + 1] - starts[0];
            const int32_t *keys = run->own->keys + u * most +
                                  sh_distributed_keys_before(run, u, run->over->rank);
            for (int64_t at = max(begin, first); at < min(end, first + rows); at++) {
                const float *row = run->own->own_grads + (p * rows + at - first) * wide;
                const int64_t l = keys[at - begin] - head->first_key;
                for (int64_t d = 0; d < D && head->dk.data; d++)
                    head->dk.data[l * head->dk.stride + d] += row[d];
                for (int64_t d = D; d < wide && head->dv.data; d++)
                    head->dv.data[l * head->dv.stride + d - D] += row[d];
            }
        }
}

static void return_rows(distributed_call *run) {
    const shoal_plan *plan = run->call->plan;
    const int64_t wide = distributed_row_size(plan), U = distributed_units(plan);
    const int64_t most = sh_distributed_most_returned(plan);
    const int ranks = run->over->ranks;
    const distributed_work *own = run->own;
    int64_t longest = 0;
    for (int p = 0; p < ranks; p++)
        longest = max(longest, sh_distributed_rows_of(run, p));
    for (int64_t first = 0; first < longest && !run->failed; first += most) {
        const int64_t mine = sh_distributed_rows_of(run, run->over->rank) - first;
        const int64_t here = max(0, min(most, mine));
        float *send = own->packet;
        for (int p = 0; p < ranks; p++) {
            const int64_t rows =
                max(0, min(most, sh_distributed_rows_of(run, p) - first));
            if (rows > 0)
                memcpy(send, own->row_grads + (own->row_starts[p * U] + first) * wide,
                       sizeof *send * (size_t)(rows * wide));
            send += rows * wide;
            own->sizes[p] = rows * wide * (int64_t)sizeof *send;
            own->sizes[ranks + p] = here * wide * (int64_t)sizeof *send;
        }
        run->failed = run->over->exchange(run->over, own->sizes, own->packet,
                                          own->sizes + ranks, own->own_grads) != SHOAL_OK;
        if (!run->failed)
            add_rows(run, first, here);
    }
}

shoal_status sh_distributed_backward(const attention_call *call, shoal_status status) {
    const shoal_plan *plan = call->plan;
    const clustered_work *work = plan->work;
    distributed_call run;
    TRY(sh_distributed_begin(&run, call, status));
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
    backward_parts(&run);
    add_up(&run, offsetof(clustered_slot, grad_shared), plan->problem.value_dim);
    add_up(&run, offsetof(clustered_slot, delta), 1);
    backward_keys(&run);
    add_up(&run, offsetof(clustered_slot, grad_centroids), plan->problem.dim);
    return_rows(&run);
    if (run.failed)
        return sh_distributed_failure(&run);
    for (int64_t u = 0; u < distributed_units(plan); u++)
        if (sh_distributed_is_live(&run, u))
            sh_clustered_backward_members(&run.own->heads[u], run.workers);
    return SHOAL_OK;
}
