/* full over ranks, exactly: the keys and values of every rank go around, and each rank's
 * queries see them block after block. What crosses grows with the sequence: it is what
 * the clustered kinds are compared with, and for those who need it exact.
 *
 * A block has the live keys of one rank, [sequence][kv_head][key][D + Dv], each beside
 * its value. In step s rank p sees the block of rank p - s. In backward the block's
 * gradients go around with it, and one step farther: home. */
#include <math.h>
#include <string.h>

#include "attention/distributed.h"

/* What travels: the block that is here, and room for the next. */
typedef struct {
    float *here, *next; /* blocks of the rank that has most */
} ring_pair;

struct ring_work {
    ring_pair keys, grads; /* grads: backward only */
    dense_scratch *threads;
    float *out;               /* [threads][queries of a block][Dv]: what one block gave */
    float *largest, *inverse; /* [threads][queries of a block]: the same */
    float *delta;             /* [heads][queries] */
    atomic_int *turns;        /* [blocks of queries] */
};

/* One step of a call: the block that is here. */
typedef struct {
    distributed_call *run;
    const struct ring_work *own;
    softmax_state state;
    int from; /* the rank that the block is of */
} ring_step;

static void place_pair(ring_pair *pair, const shoal_plan *plan, block_layout *work) {
    const int64_t rows =
        sh_mul_checked(plan->problem.batch * plan->problem.kv_heads, plan->most_keys);
    pair->here = reserve_floats(work, rows, distributed_row_size(plan));
    pair->next = reserve_floats(work, rows, distributed_row_size(plan));
}

void sh_ring_place(shoal_plan *plan, block_layout *work) {
    const int64_t block = sh_dense_block(plan->kernels);
    struct ring_work measured = {0}, *own;
    distributed_work *placed = sh_distributed_place_ranges(plan, work);
    own = sh_reserve(work, 1, sizeof *own);
    if (placed)
        placed->ring = own;
    own = own ? own : &measured;
    *own = (struct ring_work){0};
    place_pair(&own->keys, plan, work);
    own->threads = sh_dense_place_threads(plan, work);
    own->out = reserve_floats(work, plan->threads * block, plan->problem.value_dim);
    own->largest = reserve_floats(work, plan->threads, block);
    own->inverse = reserve_floats(work, plan->threads, block);
    if (!plan->with_backward)
        return;
    place_pair(&own->grads, plan, work);
    own->delta = reserve_floats(work, distributed_units(plan), plan->problem.queries);
    own->turns =
        sh_reserve(work, ceil_divide(plan->problem.queries, block), sizeof(atomic_int));
}

/* ---- Blocks ----------------------------------------------------------------------- */

/* Keys of sequence b that rank p has. */
static int64_t keys_of(const distributed_call *run, int p, int64_t b) {
    return run->own->all[p * (2 + 2 * run->call->plan->problem.batch) + 3 + 2 * b];
}

/* The row at which a key/value head of sequence b begins in the block of rank p; of the
   sequence after the last: all rows. */
static int64_t first_row(const distributed_call *run, int p, int64_t b, int64_t kv_head) {
    const int64_t kv_heads = run->call->plan->problem.kv_heads;
    int64_t row = 0;
    for (int64_t before = 0; before < b; before++)
        row += kv_heads * keys_of(run, p, before);
    return b < run->call->plan->problem.batch ? row + kv_head * keys_of(run, p, b) : row;
}

static int64_t block_bytes(const distributed_call *run, int p) {
    const shoal_plan *plan = run->call->plan;
    return first_row(run, p, plan->problem.batch, 0) * distributed_row_size(plan) *
           (int64_t)sizeof(float);
}

/* Passes the block that is of rank `from` on, and takes the one before it. */
static void pass_on(distributed_call *run, ring_pair *pair, int from) {
    shoal_transport *over = run->over;
    int64_t *sizes = run->own->sizes;
    float *kept = pair->here;
    memset(sizes, 0, sizeof *sizes * (size_t)(2 * over->ranks));
    sizes[(over->rank + 1) % over->ranks] = block_bytes(run, from);
    sizes[over->ranks + (over->rank + over->ranks - 1) % over->ranks] =
        block_bytes(run, (from + over->ranks - 1) % over->ranks);
    if (!run->failed)
        run->failed = over->exchange(over, sizes, pair->here, sizes + over->ranks,
                                     pair->next) != SHOAL_OK;
    pair->here = pair->next;
    pair->next = kept;
}

/* Copies this rank's keys and values into the block, or the block into the gradients of
   them. */
static void copy_block(distributed_call *run, float *block, int back) {
    const attention_call *call = run->call;
    const shoal_problem *problem = &call->plan->problem;
    const void *keys = back ? call->gradients->dk : call->inputs->k;
    const void *values = back ? call->gradients->dv : call->inputs->v;
    const int64_t D = problem->dim, Dv = problem->value_dim;
    for (int64_t b = 0; b < problem->batch; b++)
        for (int64_t h = 0; h < problem->kv_heads; h++) {
            const row_view k = sh_key_rows(call, keys, problem->k_strides, b, h);
            const row_view v = sh_key_rows(call, values, problem->v_strides, b, h);
            float *row = block + first_row(run, run->over->rank, b, h) * (D + Dv);
            const int64_t count = keys_of(run, run->over->rank, b);
            for (int64_t l = 0; l < count; l++, row += D + Dv) {
                float *key = k.data ? k.data + l * k.stride : NULL;
                float *value = v.data ? v.data + l * v.stride : NULL;
                if (key)
                    memcpy(back ? key : row, back ? row : key, sizeof *row * (size_t)D);
                if (value)
                    memcpy(back ? value : row + D, back ? row + D : value,
                           sizeof *row * (size_t)Dv);
            }
        }
}

/* The block's keys and values that a query head sees. */
static dense_keys block_keys(const ring_step *step, const head_view *view) {
    const shoal_plan *plan = step->run->call->plan;
    const shoal_problem *problem = &plan->problem;
    const int64_t wide = distributed_row_size(plan);
    const int64_t kv_head = view->h / (problem->heads / problem->kv_heads);
    dense_keys keys = sh_dense_keys_of(plan, view);
    keys.k = (row_view){step->own->keys.here +
                            wide * first_row(step->run, step->from, view->b, kv_head),
                        wide};
    keys.v = (row_view){keys.k.data + problem->dim, wide};
    return keys;
}

static ring_step first_step(distributed_call *run) {
    block_layout state = {.base = run->call->state};
    return (ring_step){.run = run,
                       .own = run->own->ring,
                       .state = sh_softmax_state_at(run->call->plan, &state)};
}

/* ---- Forward ---------------------------------------------------------------------- */

/* Rows of two softmaxes become one: out, largest and inverse so far get those of `more`
   beside them. */
static void join(float *out, float *largest, float *inverse, const float *more,
                 float more_largest, float more_inverse, int64_t Dv) {
    const float top = fmaxf(*largest, more_largest);
    const float a = expf(*largest - top) / *inverse;
    const float b = expf(more_largest - top) / more_inverse;
    for (int64_t d = 0; d < Dv; d++)
        out[d] = (a * out[d] + b * more[d]) / (a + b);
    *largest = top;
    *inverse = 1 / (a + b);
}

/* One block of queries of one head: task = head * blocks + block. */
static void forward_task(void *shared, int64_t task, int thread) {
    const ring_step *step = shared;
    const attention_call *call = step->run->call;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t size = sh_dense_block(call->plan->kernels), Dv = problem->value_dim;
    const int64_t blocks = ceil_divide(problem->queries, size), u = task / blocks;
    const int64_t first = task % blocks * size;
    const head_view view = sh_view_at(call, u);
    const int64_t last = min(first + size, view.queries);
    const row_view out = view.out;
    float *largest = step->state.largest + u * problem->queries;
    float *inverse = step->state.inverse + u * problem->queries;
    if (keys_of(step->run, step->from, view.b) == 0 || first >= last)
        return;
    /* The job's rows are numbered by query: its results are a block's. */
    float *more = step->own->out + thread * size * Dv;
    float *more_largest = step->own->largest + thread * size;
    float *more_inverse = step->own->inverse + thread * size;
    const dense_forward_job job = {.keys = block_keys(step, &view),
                                   .key_count = keys_of(step->run, step->from, view.b),
                                   .x = {view.q.data + first * view.q.stride,
                                         view.q.stride},
                                   .out = {more, Dv},
                                   .largest = more_largest,
                                   .inverse = more_inverse,
                                   .threads = step->own->threads};
    sh_dense_forward(&job, 0, last - first, thread);
    for (int64_t i = first; i < last; i++) {
        const int64_t r = i - first;
        if (inverse[i] > 0) {
            join(out.data + i * out.stride, &largest[i], &inverse[i], more + r * Dv,
                 more_largest[r], more_inverse[r], Dv);
            continue;
        }
        memcpy(out.data + i * out.stride, more + r * Dv, sizeof(float) * (size_t)Dv);
        largest[i] = more_largest[r];
        inverse[i] = more_inverse[r];
    }
}

shoal_status sh_ring_forward(const attention_call *call, shoal_status status) {
    const shoal_plan *plan = call->plan;
    const int ranks = plan->over->ranks;
    distributed_call run;
    TRY(sh_distributed_begin(&run, call, status));
    struct ring_work *own = run.own->ring;
    ring_step step = first_step(&run);
    const int64_t blocks =
        ceil_divide(plan->problem.queries, sh_dense_block(plan->kernels));
    const shoal_problem *problem = &call->plan->problem;
    const int64_t units = problem->batch * problem->heads;
    memset(step.state.inverse, 0, sizeof(float) * (size_t)(units * problem->queries));
    for (int64_t u = 0; u < units; u++) {
        const head_view view = sh_view_at(call, u);
        sh_clear_rows(view.out, 0, view.query_rows, problem->value_dim);
    }
    copy_block(&run, own->keys.here, 0);
    for (int s = 0; s < ranks && !run.failed; s++) {
        step.from = (plan->over->rank - s + ranks) % ranks;
        sh_team_run(run.workers, distributed_units(plan) * blocks, forward_task, &step);
        if (s < ranks - 1)
            pass_on(&run, &own->keys, step.from);
    }
    return run.failed ? sh_distributed_failure(&run) : SHOAL_OK;
}

/* ---- Backward --------------------------------------------------------------------- */

/* What the block that is here gives one head's queries, and they give it. */
static void backward_head(const ring_step *step, int64_t u) {
    const attention_call *call = step->run->call;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t at = u * problem->queries;
    const head_view view = sh_view_at(call, u);
    dense_backward_job job = {.keys = block_keys(step, &view),
                              .n = view.queries,
                              .key_count = keys_of(step->run, step->from, view.b),
                              .x = view.q,
                              .dout = view.dout,
                              .largest = {step->state.largest + at, 1},
                              .inverse = {step->state.inverse + at, 1},
                              .delta = {step->own->delta + at, 1},
                              .dq = view.dq,
                              .onto = 1,
                              .turns = step->own->turns,
                              .threads = step->own->threads};
    const int64_t row = job.keys.k.data - step->own->keys.here;
    job.dk = (row_view){step->own->grads.here + row, job.keys.k.stride};
    job.dv = (row_view){job.dk.data + problem->dim, job.keys.k.stride};
    if (job.key_count > 0 && job.n > 0)
        sh_dense_backward(&job, step->run->workers);
}

/* Gradients that are added to are 0, and every query has its delta. */
static void start_gradients(const distributed_call *run) {
    const attention_call *call = run->call;
    const shoal_problem *problem = &call->plan->problem;
    for (int64_t u = 0; u < distributed_units(call->plan); u++) {
        const head_view view = sh_view_at(call, u);
        dense_delta_job products = {view.dout, view.out, view.queries, problem->value_dim,
                                    run->own->ring->delta + u * problem->queries};
        sh_dense_delta(&products, run->workers);
        sh_clear_rows(view.dq, 0, view.query_rows, problem->dim);
    }
    for (int64_t unit = 0; unit < problem->batch * problem->kv_heads; unit++)
        sh_start_kv_head(call, unit);
}

shoal_status sh_ring_backward(const attention_call *call, shoal_status status) {
    const shoal_plan *plan = call->plan;
    const int ranks = plan->over->ranks;
    distributed_call run;
    TRY(sh_distributed_begin(&run, call, status));
    struct ring_work *own = run.own->ring;
    ring_step step = first_step(&run);
    start_gradients(&run);
    copy_block(&run, own->keys.here, 0);
    memset(own->grads.here, 0, (size_t)block_bytes(&run, plan->over->rank));
    for (int s = 0; s < ranks && !run.failed; s++) {
        step.from = (plan->over->rank - s + ranks) % ranks;
        for (int64_t u = 0; u < distributed_units(plan); u++)
            backward_head(&step, u);
        if (s < ranks - 1)
            pass_on(&run, &own->keys, step.from);
        if (ranks > 1)
            pass_on(&run, &own->grads, step.from);
    }
    if (run.failed)
        return sh_distributed_failure(&run);
    copy_block(&run, own->grads.here, 1);
    return SHOAL_OK;
}
