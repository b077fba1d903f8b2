#include "attention/heads.h"

#include <string.h>

/* ---- Rows -------------------------------------------------------------------------- */

/* Rows without gaps are one long row: changes their number, returns its length. */
static int64_t join_rows(half_rows halves, int64_t *count) {
    if (halves.stride != halves.dim || *count == 0)
        return halves.dim;
    const int64_t length = *count * halves.dim;
    *count = 1;
    return length;
}

void sh_widen_rows(const kernel_table *kernels, half_rows halves, int64_t first,
                   int64_t count, float *to) {
    widen_kernel *widen = halves.dtype == SHOAL_BFLOAT16 ? kernels->widen_bfloats
                                                         : kernels->widen;
    const int64_t length = join_rows(halves, &count);
    for (int64_t i = 0; i < count; i++)
        widen(length, halves.data + (first + i) * halves.stride, to + i * halves.dim);
}

void sh_narrow_rows(const kernel_table *kernels, const float *from, half_rows halves,
                    int64_t first, int64_t count) {
    round_halves_kernel *narrow = halves.dtype == SHOAL_BFLOAT16 ? kernels->round_bfloats
                                                                 : kernels->round_halves;
    const int64_t length = join_rows(halves, &count);
    for (int64_t i = 0; i < count; i++)
        narrow(length, from + i * halves.dim, halves.data + (first + i) * halves.stride);
}

void sh_clear_output(const attention_call *call, row_view out, int64_t first,
                     int64_t last) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t size = sh_element_size(problem->dtype);
    for (int64_t i = first; out.data && i < last; i++)
        memset((char *)out.data + i * out.stride * size, 0,
               (size_t)(problem->value_dim * size));
}

enum { ROW_TASK = 256 };

/* One array of one head. */
typedef struct {
    const kernel_table *kernels;
    half_rows halves;
    float *floats;
    int64_t rows;
} conversion;

static void widen_task(void *shared, int64_t task, int thread) {
    const conversion *job = shared;
    const int64_t first = task * ROW_TASK;
    (void)thread;
    sh_widen_rows(job->kernels, job->halves, first, min(ROW_TASK, job->rows - first),
                  job->floats + first * job->halves.dim);
}

static void narrow_task(void *shared, int64_t task, int thread) {
    const conversion *job = shared;
    const int64_t first = task * ROW_TASK;
    (void)thread;
    sh_narrow_rows(job->kernels, job->floats + first * job->halves.dim, job->halves,
                   first, min(ROW_TASK, job->rows - first));
}

/* ---- Rooms ------------------------------------------------------------------------- */

static void place_room(float_room *room, const shoal_plan *plan, block_layout *work) {
    const shoal_problem *problem = &plan->problem;
    const int64_t heads = plan->with_backward ? problem->heads / problem->kv_heads : 1;
    const int64_t queries = sh_mul_checked(heads, problem->queries);
    *room = (float_room){0};
    room->q = reserve_floats(work, queries, problem->dim);
    room->out = reserve_floats(work, queries, problem->value_dim);
    room->v = reserve_floats(work, problem->keys, problem->value_dim);
    if (!plan->kind->info.keys_are_queries)
        room->k = reserve_floats(work, problem->keys, problem->dim);
    if (!plan->with_backward)
        return;
    room->dq = reserve_floats(work, queries, problem->dim);
    room->dout = reserve_floats(work, queries, problem->value_dim);
    room->dk = reserve_floats(work, problem->keys, problem->dim);
    room->dv = reserve_floats(work, problem->keys, problem->value_dim);
}

void sh_rooms_place(shoal_plan *plan, block_layout *work) {
    const shoal_problem *problem = &plan->problem;
    if (problem->dtype == SHOAL_FLOAT32 || problem->heads == 0 ||
        (plan->kind->forwards_halves && !plan->with_backward))
        return;
    const int slots = sh_unit_slots(plan->threads, problem->batch * problem->heads);
    plan->rooms = sh_reserve(work, slots, sizeof *plan->rooms);
    for (int s = 0; s < slots; s++)
        place_room(plan->rooms ? &plan->rooms[s] : &(float_room){0}, plan, work);
}

/* ---- Heads ------------------------------------------------------------------------- */

/* One unit on its way: what the kind sees, and what it is made of. */
typedef struct {
    const attention_call *call; /* the caller's */
    const float_room *room;
    team workers;
    int64_t b, first, last;           /* query heads first .. last - 1 of sequence b */
    head_view view;                   /* of the first, in halves */
    int64_t query_offset, key_offset; /* of the sequence, where it is packed */
    shoal_plan plan;
    shoal_inputs inputs;
    shoal_gradients gradients;
    attention_call now;
} half_unit;

/* Where an array in floats would begin whose element `before` is the room's first. */
static float *begin_of(const void *array, float *room, int64_t before) {
    return array ? (float *)((uintptr_t)room - (uintptr_t)before * sizeof(float)) : NULL;
}

static float *query_begin(const half_unit *unit, const void *array, float *room,
                          int64_t dim) {
    const int64_t heads_before = unit->first * unit->plan.problem.queries;
    return begin_of(array, room, (heads_before + unit->query_offset) * dim);
}

static float *key_begin(const half_unit *unit, const void *array, float *room,
                        int64_t dim) {
    return begin_of(array, room, unit->key_offset * dim);
}

/* The call in floats, of which the unit's heads are the room's rows. */
static void show_floats(half_unit *unit) {
    const shoal_inputs *inputs = unit->call->inputs;
    const shoal_gradients *gradients = unit->call->gradients;
    const float_room *room = unit->room;
    shoal_problem *problem = &unit->plan.problem;
    const int64_t N = problem->queries, D = problem->dim, Dv = problem->value_dim;
    problem->dtype = SHOAL_FLOAT32;
    problem->q = (shoal_strides){0, N * D, D};
    problem->out = (shoal_strides){0, N * Dv, Dv};
    problem->k = (shoal_strides){0, 0, D};
    problem->v = (shoal_strides){0, 0, Dv};
    unit->inputs.q = query_begin(unit, inputs->q, room->q, D);
    unit->inputs.v = key_begin(unit, inputs->v, room->v, Dv);
    unit->inputs.k = room->k ? key_begin(unit, inputs->k, room->k, D) : NULL;
    unit->now.plan = &unit->plan;
    unit->now.inputs = &unit->inputs;
    unit->now.out = query_begin(unit, unit->call->out, room->out, Dv);
    if (!gradients)
        return;
    unit->gradients = *gradients;
    unit->gradients.out = query_begin(unit, gradients->out, room->out, Dv);
    unit->gradients.dout = query_begin(unit, gradients->dout, room->dout, Dv);
    unit->gradients.dq = query_begin(unit, gradients->dq, room->dq, D);
    unit->gradients.dk = key_begin(unit, gradients->dk, room->dk, D);
    unit->gradients.dv = key_begin(unit, gradients->dv, room->dv, Dv);
    unit->now.gradients = &unit->gradients;
}

typedef struct {
    const attention_call *call;
    unit_function *run;
    int64_t heads; /* of queries in one unit */
} half_units;

static void start_unit(const half_units *units, int64_t index, int slot, team workers,
                       half_unit *unit) {
    const attention_call *call = units->call;
    const shoal_plan *plan = call->plan;
    const int64_t head = index * units->heads;
    *unit = (half_unit){.call = call,
                        .room = &plan->rooms[slot],
                        .workers = workers,
                        .b = head / plan->problem.heads,
                        .first = head % plan->problem.heads,
                        .plan = *plan,
                        .inputs = *call->inputs,
                        .now = *call};
    unit->last = unit->first + units->heads;
    unit->view = sh_view_of(call, unit->b, unit->first);
    if (plan->problem.packed) {
        unit->query_offset = call->inputs->query_offsets[unit->b];
        unit->key_offset = plan->kind->info.keys_are_queries
                               ? unit->query_offset
                               : call->inputs->key_offsets[unit->b];
    }
    show_floats(unit);
}

static void convert(const half_unit *unit, row_view halves, float *floats, int64_t rows,
                    int64_t dim, task_function *run) {
    const shoal_dtype dtype = unit->call->plan->problem.dtype;
    conversion job = {unit->plan.kernels, half_rows_of(halves, dim, dtype), floats, rows};
    if (halves.data)
        sh_team_run(unit->workers, ceil_divide(rows, ROW_TASK), run, &job);
}

/* An array with the strides of q or out, all heads of the unit. */
static void convert_queries(const half_unit *unit, const void *array, int64_t dim,
                            const shoal_strides *strides, float *floats, int64_t rows,
                            task_function *run) {
    for (int64_t h = unit->first; h < unit->last; h++)
        convert(unit, sh_query_rows(unit->call, array, strides, unit->b, h),
                floats + (h - unit->first) * unit->plan.problem.queries * dim, rows, dim,
                run);
}

static void read_unit(const half_unit *unit) {
    const attention_call *call = unit->call;
    const shoal_problem *problem = &call->plan->problem;
    const head_view *view = &unit->view;
    const int64_t D = problem->dim, Dv = problem->value_dim;
    convert_queries(unit, call->inputs->q, D, &problem->q, unit->room->q, view->queries,
                    widen_task);
    if (unit->room->k)
        convert(unit, view->k, unit->room->k, view->keys, D, widen_task);
    convert(unit, view->v, unit->room->v, view->keys, Dv, widen_task);
    if (call->judge)
        convert_queries(unit, call->out, Dv, &problem->out, unit->room->out,
                        view->queries, widen_task);
    if (!call->gradients)
        return;
    convert_queries(unit, call->gradients->out, Dv, &problem->out, unit->room->out,
                    view->queries, widen_task);
    convert_queries(unit, call->gradients->dout, Dv, &problem->out, unit->room->dout,
                    view->queries, widen_task);
}

static void write_unit(const half_unit *unit) {
    const attention_call *call = unit->call;
    const shoal_problem *problem = &call->plan->problem;
    const shoal_gradients *gradients = call->gradients;
    const int64_t b = unit->b, D = problem->dim, Dv = problem->value_dim;
    const int64_t queries = unit->view.query_rows, keys = unit->view.key_rows;
    const int64_t kv_head = unit->first / (problem->heads / problem->kv_heads);
    if (!gradients && !call->judge)
        convert_queries(unit, call->out, Dv, &problem->out, unit->room->out, queries,
                        narrow_task);
    if (!gradients)
        return;
    convert_queries(unit, gradients->dq, D, &problem->q, unit->room->dq, queries,
                    narrow_task);
    convert(unit, sh_key_rows(call, gradients->dk, &problem->k, b, kv_head),
            unit->room->dk, keys, D, narrow_task);
    convert(unit, sh_key_rows(call, gradients->dv, &problem->v, b, kv_head),
            unit->room->dv, keys, Dv, narrow_task);
}

static void run_unit(void *shared, int64_t index, int slot, team workers) {
    const half_units *units = shared;
    half_unit unit;
    start_unit(units, index, slot, workers, &unit);
    read_unit(&unit);
    units->run(&unit.now, index, slot, workers);
    write_unit(&unit);
}

void sh_run_heads(const attention_call *call, int64_t count, unit_function *run) {
    const shoal_problem *problem = &call->plan->problem;
    const team workers = sh_team_of(call->plan->context);
    if (problem->dtype == SHOAL_FLOAT32) {
        sh_run_units(workers, count, run, (void *)call);
        return;
    }
    half_units units = {call, run,
                        count > 0 ? problem->batch * problem->heads / count : 0};
    sh_run_units(workers, count, run_unit, &units);
}
