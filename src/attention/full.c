/* full and shared-full: softmax(scale Q K') V, exactly, without an N x S matrix.
 * Forward: blocks of queries pass over all keys with a streaming softmax.
 * Backward: chunks of keys stay in cache while all queries pass over them (dense.c).
 * State for backward, per query: the largest score and the inverse of the softmax's
 * sum. */
#include "attention/distributed.h"

/* A slot's memory for backward. */
typedef struct {
    atomic_int *turns; /* [query blocks] */
    float *delta;      /* [queries] */
    float *shared_dk;  /* [keys][dim], where keys are queries */
} full_slot;

typedef struct {
    dense_scratch *threads;
    full_slot *slots;
} full_work;

static int64_t query_blocks(const shoal_plan *plan) {
    return ceil_divide(plan->problem.queries, sh_dense_block(plan->kernels));
}

static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    if (plan->over) {
        sh_ring_place(plan, work);
        sh_softmax_state_at(plan, state);
        return;
    }
    full_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    plan->work = own;
    own = own ? own : &measured;
    own->threads = sh_dense_place_threads(plan, work);
    sh_softmax_state_at(plan, state);
    if (!plan->with_backward)
        return;
    int slots =
        sh_unit_slots(plan->threads, plan->problem.batch * plan->problem.kv_heads);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int s = 0; s < slots; s++) {
        full_slot *slot = own->slots ? &own->slots[s] : &(full_slot){0};
        slot->turns = sh_reserve(work, query_blocks(plan), sizeof(atomic_int));
        slot->delta = sh_reserve(work, plan->problem.queries, sizeof(float));
        if (plan->kind->info.keys_are_queries)
            slot->shared_dk =
                sh_reserve(work, plan->problem.keys * plan->problem.dim, sizeof(float));
    }
}

/* One block of queries of one head: task = head * blocks + block. */
static void forward_task(void *shared, int64_t task, int thread) {
    const attention_call *call = shared;
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const int64_t blocks = query_blocks(plan), block = sh_dense_block(plan->kernels);
    const head_view view = sh_view_at(call, task / blocks);
    score_masks masks;
    /* Under a causal mask the last queries see most: they begin. */
    const int64_t first = (problem->causal ? blocks - 1 - task % blocks : task % blocks) *
                          block;
    const int64_t last = first + block;
    const int64_t live = view.keys > 0 ? min(last, view.queries) : 0;
    sh_clear_output(call, view.out, max(live, first), min(last, view.query_rows));
    const softmax_state state =
        sh_softmax_state_at(plan, &(block_layout){.base = call->state});
    const int64_t at = view.head * problem->queries;
    dense_keys keys = sh_dense_keys_of(plan, &view);
    keys.masks = sh_masks_in(call, &view, &masks);
    const dense_forward_job job = {.keys = keys,
                                   .key_count = view.keys,
                                   .x = view.q,
                                   .out = view.out,
                                   .largest = state.largest ? state.largest + at : NULL,
                                   .inverse = state.inverse ? state.inverse + at : NULL,
                                   .threads = ((full_work *)plan->work)->threads};
    sh_dense_forward(&job, first, live, thread);
}

static void forward(const attention_call *call) {
    const shoal_plan *plan = call->plan;
    int64_t tasks = plan->problem.batch * plan->problem.heads * query_blocks(plan);
    sh_team_run(sh_team_of(plan->context), tasks, forward_task, (void *)call);
}

/* ---- Backward --------------------------------------------------------------------- */

/* One query head: adds to dk and dv. */
static void backward_head(const attention_call *call, const full_slot *slot, int64_t b,
                          int64_t h, row_view dk, row_view dv, team workers) {
    const shoal_plan *plan = call->plan;
    const shoal_problem *problem = &plan->problem;
    const head_view view = sh_view_of(call, b, h);
    const softmax_state state =
        sh_softmax_state_at(plan, &(block_layout){.base = call->state});
    const int64_t at = view.head * problem->queries;
    dense_delta_job products = {view.dout, view.out, view.queries, problem->value_dim,
                                slot->delta};
    score_masks masks;
    dense_keys keys = sh_dense_keys_of(plan, &view);
    keys.masks = sh_masks_in(call, &view, &masks);
    dense_backward_job job = {.keys = keys,
                              .n = view.queries,
                              .key_count = view.keys,
                              .x = view.q,
                              .dout = view.dout,
                              .largest = {state.largest + at, 1},
                              .inverse = {state.inverse + at, 1},
                              .delta = {slot->delta, 1},
                              .dq = view.dq,
                              .dk = dk,
                              .dv = dv,
                              .turns = slot->turns,
                              .threads = ((full_work *)plan->work)->threads};
    sh_clear_rows(job.dq, view.keys > 0 ? view.queries : 0, view.query_rows,
                  problem->dim);
    sh_dense_delta(&products, workers);
    sh_dense_backward(&job, workers);
    if (!plan->kind->info.keys_are_queries || !job.dq.data)
        return;
    for (int64_t i = 0; i < view.queries; i++)
        for (int64_t d = 0; d < problem->dim; d++)
            job.dq.data[i * job.dq.stride + d] += dk.data[i * dk.stride + d];
}

/* One key/value head, with the query heads that share it. */
static void backward_unit(const attention_call *call, int64_t unit, int slot_index,
                          team workers) {
    const shoal_plan *plan = call->plan;
    const full_slot *slot = &((full_work *)plan->work)->slots[slot_index];
    const kv_head_view own = sh_start_kv_head(call, unit);
    row_view dk = own.dk;
    if (plan->kind->info.keys_are_queries) {
        dk = (row_view){slot->shared_dk, plan->problem.dim};
        sh_clear_rows(dk, 0, sh_view_of(call, own.b, own.first).keys, plan->problem.dim);
    }
    for (int64_t h = own.first; h < own.last; h++)
        backward_head(call, slot, own.b, h, dk, own.dv, workers);
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    (void)attention;
    return (operation_count){.dense = 2.0 * sh_seen_pairs(problem) *
                                      (double)(problem->dim + problem->value_dim)};
}

#define FULL_FUNCTIONS                                                                   \
    .forwards_half_precision = 1, .operations = operations, .place = place,              \
    .forward = forward, .backward_head = backward_unit

const attention_kind sh_full_kind = {
    .info = {.name = "full",
             .cost = "N S (D + Dv)",
             .summary = "exact attention",
             .defaults = {.kind = SHOAL_KIND_FULL},
             .exact = 1,
             .has_masks = 1},
    FULL_FUNCTIONS,
    .forward_over = sh_ring_forward,
    .backward_over = sh_ring_backward,
};

const attention_kind sh_shared_full_kind =
    {.info = {.name = "shared-full",
              .cost = "N S (D + Dv)",
              .summary = "exact attention with K = Q",
              .defaults = {.kind = SHOAL_KIND_SHARED_FULL},
              .exact = 1,
              .keys_are_queries = 1,
              .has_masks = 1},
     FULL_FUNCTIONS};
