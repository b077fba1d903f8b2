#include "attention/heads.h"

#include <string.h>

/* ---- Rows -------------------------------------------------------------------------- */

/* Rows without gaps are one long row: changes their number, returns its length. */
static int64_t join_rows(half_rows rows, int64_t *count) {
    if (rows.stride != rows.dim || *count == 0)
        return rows.dim;
    const int64_t length = *count * rows.dim;
    *count = 1;
    return length;
}

void sh_widen_rows(const kernel_table *kernels, half_rows rows, int64_t first,
                   int64_t count, float *to) {
    widen_kernel *widen = rows.dtype == SHOAL_DTYPE_BFLOAT16 ? kernels->widen_bfloats
                                                             : kernels->widen;
    const int64_t length = join_rows(rows, &count);
    for (int64_t i = 0; i < count; i++)
        widen(length, rows.data + (first + i) * rows.stride, to + i * rows.dim);
}

void sh_narrow_rows(const kernel_table *kernels, const float *from, half_rows rows,
                    int64_t first, int64_t count) {
    round_halves_kernel *narrow = rows.dtype == SHOAL_DTYPE_BFLOAT16
                                      ? kernels->round_bfloats
                                      : kernels->round_halves;
    const int64_t length = join_rows(rows, &count);
    for (int64_t i = 0; i < count; i++)
        narrow(length, from + i * rows.dim, rows.data + (first + i) * rows.stride);
}

void sh_clear_output(const attention_call *call, row_view out, int64_t first,
                     int64_t last) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t size = sh_element_size(problem->dtype);
    for (int64_t i = first; out.data && i < last; i++)
        memset((char *)out.data + i * out.stride * size, 0,
               (size_t)(problem->value_dim * size));
}

void sh_float_rows_place(shoal_plan *plan, block_layout *work) {
    const shoal_problem *problem = &plan->problem;
    if (problem->dtype == SHOAL_DTYPE_FLOAT32 || problem->heads == 0 ||
        (plan->kind->forwards_half_precision && !plan->with_backward))
        return;
    const int slots = sh_unit_slots(plan->threads, problem->batch * problem->heads);
    const int64_t heads = plan->with_backward ? problem->heads / problem->kv_heads : 1;
    const int64_t queries = sh_mul_checked(heads, problem->queries), keys = problem->keys;
    plan->float_rows = sh_reserve(work, slots, sizeof *plan->float_rows);
    for (int s = 0; s < slots; s++) {
        float_rows *rows = plan->float_rows ? &plan->float_rows[s] : &(float_rows){0};
        *rows = (float_rows){0};
        rows->q = reserve_floats(work, queries, problem->dim);
        rows->out = reserve_floats(work, queries, problem->value_dim);
        rows->v = reserve_floats(work, keys, problem->value_dim);
        if (!plan->kind->info.keys_are_queries)
            rows->k = reserve_floats(work, keys, problem->dim);
        if (!plan->with_backward)
            continue;
        rows->dq = reserve_floats(work, queries, problem->dim);
        rows->dout = reserve_floats(work, queries, problem->value_dim);
        rows->dk = reserve_floats(work, keys, problem->dim);
        rows->dv = reserve_floats(work, keys, problem->value_dim);
    }
}

/* ---- A head in half precision ------------------------------------------------------ */

/* One unit on its way: query heads first .. last - 1 of sequence b, which share keys. */
typedef struct {
    const attention_call *call; /* the caller's */
    const float_rows *rows;     /* of the slot */
    team workers;
    int64_t b, first, last;
    int64_t query_offset, key_offset; /* of the sequence, where it is packed */
    /* What the kind's function sees: */
    shoal_plan plan;
    shoal_inputs inputs;
    shoal_gradients gradients;
    attention_call now;
} half_head;

/* Where an array in floats would begin whose element `before` is the first of `rows`. */
static float *begin_of(const void *array, float *rows, int64_t before) {
    return array ? (float *)((uintptr_t)rows - (uintptr_t)before * sizeof(float)) : NULL;
}

static float *query_begin(const half_head *head, const void *array, float *rows,
                          int64_t dim) {
    const int64_t heads_before = head->first * head->plan.problem.queries;
    return begin_of(array, rows, (heads_before + head->query_offset) * dim);
}

static float *key_begin(const half_head *head, const void *array, float *rows,
                        int64_t dim) {
    return begin_of(array, rows, head->key_offset * dim);
}

/* The call in floats, of which the unit's heads are the slot's rows. */
static void show_floats(half_head *head) {
    const shoal_inputs *inputs = head->call->inputs;
    const shoal_gradients *gradients = head->call->gradients;
    const float_rows *rows = head->rows;
    shoal_problem *problem = &head->plan.problem;
    const int64_t N = problem->queries, D = problem->dim, Dv = problem->value_dim;
    problem->dtype = SHOAL_DTYPE_FLOAT32;
    head->plan.strides[0] = (shoal_strides){0, N * D, D};
    head->plan.strides[1] = (shoal_strides){0, 0, D};
    head->plan.strides[2] = (shoal_strides){0, 0, Dv};
    head->plan.strides[3] = (shoal_strides){0, N * Dv, Dv};
    sh_plan_own_strides(&head->plan);
    head->inputs.q = query_begin(head, inputs->q, rows->q, D);
    head->inputs.v = key_begin(head, inputs->v, rows->v, Dv);
    head->inputs.k = rows->k ? key_begin(head, inputs->k, rows->k, D) : NULL;
    head->now.plan = &head->plan;
    head->now.inputs = &head->inputs;
    head->now.out = query_begin(head, head->call->out, rows->out, Dv);
    if (!gradients)
        return;
    head->gradients = *gradients;
    head->gradients.out = query_begin(head, gradients->out, rows->out, Dv);
    head->gradients.dout = query_begin(head, gradients->dout, rows->dout, Dv);
    head->gradients.dq = query_begin(head, gradients->dq, rows->dq, D);
    head->gradients.dk = key_begin(head, gradients->dk, rows->dk, D);
    head->gradients.dv = key_begin(head, gradients->dv, rows->dv, Dv);
    head->now.gradients = &head->gradients;
}

enum { ROW_TASK = 256 };

/* One array of one head. */
typedef struct {
    const kernel_table *kernels;
    half_rows half;
    float *floats;
    int64_t rows;
    int narrows; /* from floats to half precision */
} conversion;

static void convert_task(void *shared, int64_t task, int thread) {
    const conversion *job = shared;
    const int64_t first = task * ROW_TASK, count = min(ROW_TASK, job->rows - first);
    float *floats = job->floats + first * job->half.dim;
    (void)thread;
    if (job->narrows)
        sh_narrow_rows(job->kernels, floats, job->half, first, count);
    else
        sh_widen_rows(job->kernels, job->half, first, count, floats);
}

static void convert(const half_head *head, row_view half, int64_t dim, float *floats,
                    int64_t rows, int narrows) {
    conversion job = {.kernels = head->plan.kernels,
                      .half = half_rows_of(half, dim, head->call->plan->problem.dtype),
                      .floats = floats,
                      .rows = rows,
                      .narrows = narrows};
    if (half.data)
        sh_team_run(head->workers, ceil_divide(rows, ROW_TASK), convert_task, &job);
}

/* An array with the strides of q or out, all query heads of the unit. */
static void convert_queries(const half_head *head, const void *array,
                            const shoal_strides *strides, int64_t dim, float *floats,
                            int64_t rows, int narrows) {
    for (int64_t h = head->first; h < head->last; h++)
        convert(head, sh_query_rows(head->call, array, strides, head->b, h), dim,
                floats + (h - head->first) * head->plan.problem.queries * dim, rows,
                narrows);
}

static void read_head(const half_head *head, const head_view *view) {
    const attention_call *call = head->call;
    const shoal_problem *problem = &call->plan->problem;
    const float_rows *rows = head->rows;
    const int64_t D = problem->dim, Dv = problem->value_dim, n = view->queries;
    convert_queries(head, call->inputs->q, problem->q_strides, D, rows->q, n, 0);
    if (rows->k)
        convert(head, view->k, D, rows->k, view->keys, 0);
    convert(head, view->v, Dv, rows->v, view->keys, 0);
    const void *out = call->gradients ? call->gradients->out : call->out;
    if (call->gradients || call->has_outputs)
        convert_queries(head, out, problem->out_strides, Dv, rows->out, n, 0);
    if (call->gradients)
        convert_queries(head, call->gradients->dout, problem->out_strides, Dv, rows->dout,
                        n, 0);
}

static void write_head(const half_head *head, const head_view *view) {
    const attention_call *call = head->call;
    const shoal_problem *problem = &call->plan->problem;
    const shoal_gradients *gradients = call->gradients;
    const float_rows *rows = head->rows;
    const int64_t b = head->b, D = problem->dim, Dv = problem->value_dim;
    const int64_t kv_head = head->first / (problem->heads / problem->kv_heads);
    if (!gradients && !call->has_outputs)
        convert_queries(head, call->out, problem->out_strides, Dv, rows->out,
                        view->query_rows, 1);
    if (!gradients)
        return;
    convert_queries(head, gradients->dq, problem->q_strides, D, rows->dq,
                    view->query_rows, 1);
    convert(head, sh_key_rows(call, gradients->dk, problem->k_strides, b, kv_head), D,
            rows->dk, view->key_rows, 1);
    convert(head, sh_key_rows(call, gradients->dv, problem->v_strides, b, kv_head), Dv,
            rows->dv, view->key_rows, 1);
}

/* ---- The loop ---------------------------------------------------------------------- */

typedef struct {
    const attention_call *call;
    head_function *one;
    int64_t sharing; /* query heads in one unit */
    int converts;    /* units are shown to `one` in floats */
} head_loop;

static void run_unit(void *shared, int64_t unit, int slot, team workers) {
    const head_loop *loop = shared;
    const attention_call *call = loop->call;
    if (!loop->converts) {
        loop->one(call, unit, slot, workers);
        return;
    }
    const shoal_plan *plan = call->plan;
    const int64_t first = unit * loop->sharing % plan->problem.heads;
    half_head head = {.call = call,
                      .rows = &plan->float_rows[slot],
                      .workers = workers,
                      .b = unit * loop->sharing / plan->problem.heads,
                      .first = first,
                      .last = first + loop->sharing,
                      .plan = *plan,
                      .inputs = *call->inputs,
                      .now = *call};
    const head_view view = sh_view_of(call, head.b, head.first);
    if (plan->problem.packed) {
        head.query_offset = call->inputs->query_offsets[head.b];
        head.key_offset = plan->kind->info.keys_are_queries
                              ? head.query_offset
                              : call->inputs->key_offsets[head.b];
    }
    show_floats(&head);
    read_head(&head, &view);
    loop->one(&head.now, unit, slot, workers);
    write_head(&head, &view);
}

static void run_units(const attention_call *call, int64_t count, head_function *one,
                      int takes_half_precision) {
    const shoal_problem *problem = &call->plan->problem;
    head_loop loop = {.call = call,
                      .one = one,
                      .sharing = count > 0 ? problem->batch * problem->heads / count : 0,
                      .converts = problem->dtype != SHOAL_DTYPE_FLOAT32 &&
                                  !takes_half_precision};
    sh_run_units(sh_team_of(call->plan->context), count, run_unit, &loop);
}

void sh_for_heads(const attention_call *call, head_function *one) {
    run_units(call, call->plan->problem.batch * call->plan->problem.heads, one, 0);
}

void sh_forward_heads(const attention_call *call) {
    const attention_kind *kind = call->plan->kind;
    if (kind->forward)
        kind->forward(call);
    else
        run_units(call, call->plan->problem.batch * call->plan->problem.heads,
                  kind->forward_head, kind->forwards_half_precision);
}

void sh_backward_heads(const attention_call *call) {
    const attention_kind *kind = call->plan->kind;
    if (kind->backward)
        kind->backward(call);
    else
        run_units(call, call->plan->problem.batch * call->plan->problem.kv_heads,
                  kind->backward_head, 0);
}
