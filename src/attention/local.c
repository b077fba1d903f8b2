/* local-W: query i sees the keys at most W/2 positions away (rounded down).
 * strided-W: those, and the keys that are a multiple of W away: the Sparse Transformer's
 * pattern.
 *
 * Query i and key i are at the same position, whatever N and S are; under a causal mask
 * query i is at the position of key i + ahead (masks.h), and keys behind it are left out.
 * A query that sees no key, far behind the last one, has the output 0.
 *
 * The band: a panel of neighbouring queries passes over the keys that any of them sees,
 * and on_scores hides those that are too far from one. Backward goes by chunks of
 * queries, at least W of them: the keys of a chunk meet those of its neighbours only, so
 * even chunks run first, then odd ones, no two tasks meet and every sum has one order.
 * The strides: queries at r, r + W, r + 2 W ... see the same keys of that form, so each
 * residue r is a small dense attention whose rows are W positions apart. Forward begins
 * with it; its outputs wait in `out`, not yet divided by their sum, until the band
 * continues their softmax. */
#include <math.h>
#include <string.h>

#include "attention/dense.h"

/* A slot's memory: one head at a time. */
typedef struct {
    float *largest, *sum; /* [queries], strided-W: between the strides and the band */
    float *delta;         /* [queries], backward only */
} window_slot;

/* A thread's rows of keys and values that a block of queries passes over, as floats:
   local-W in half precision. */
typedef struct {
    float *k, *v;
} window_rows;

typedef struct {
    dense_scratch *threads;
    window_rows *rows; /* [threads] */
    window_slot *slots;
} window_work;

/* One head at work. */
typedef struct {
    const attention_call *call;
    const window_slot *slot;
    head_view view;
    dense_keys keys;
    score_masks masks;    /* keys.masks, where there are any */
    int64_t window, half; /* W and W/2 */
    int64_t ahead;        /* query i is at the position of key i + ahead */
    int strided;
    float *largest, *inverse; /* [queries], or NULL without backward */
    /* Backward only: */
    dense_backward_job backward;
    int64_t chunk; /* queries in one task */
    int64_t phase; /* 0: even chunks, 1: odd ones */
} window_head;

/* ---- Memory ----------------------------------------------------------------------- */

static void place_rows(window_work *own, const shoal_plan *plan, block_layout *work) {
    const shoal_problem *problem = &plan->problem;
    const int64_t rows =
        min(problem->keys, sh_dense_block(plan->kernels) + plan->attention.window);
    if (problem->dtype == SHOAL_DTYPE_FLOAT32 ||
        plan->attention.kind == SHOAL_KIND_STRIDED)
        return;
    own->rows = sh_reserve(work, plan->threads, sizeof *own->rows);
    for (int t = 0; t < plan->threads; t++) {
        window_rows *room = own->rows ? &own->rows[t] : &(window_rows){0};
        room->k = reserve_floats(work, rows, problem->dim);
        room->v = reserve_floats(work, rows, problem->value_dim);
    }
}

static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    window_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    const int slots =
        sh_unit_slots(plan->threads, plan->problem.batch * plan->problem.heads);
    plan->work = own;
    own = own ? own : &measured;
    own->threads = sh_dense_place_threads(plan, work);
    place_rows(own, plan, work);
    own->slots = sh_reserve(work, slots, sizeof *own->slots);
    for (int s = 0; s < slots; s++) {
        window_slot *slot = own->slots ? &own->slots[s] : &(window_slot){0};
        if (plan->attention.kind == SHOAL_KIND_STRIDED) {
            slot->largest = sh_reserve(work, plan->problem.queries, sizeof(float));
            slot->sum = sh_reserve(work, plan->problem.queries, sizeof(float));
        }
        if (plan->with_backward)
            slot->delta = sh_reserve(work, plan->problem.queries, sizeof(float));
    }
    sh_softmax_state_at(plan, state);
}

static void start_head(const attention_call *call, head_view view, int slot,
                       window_head *head) {
    const shoal_plan *plan = call->plan;
    const softmax_state state =
        sh_softmax_state_at(plan, &(block_layout){.base = call->state});
    *head = (window_head){.call = call,
                          .slot = &((window_work *)plan->work)->slots[slot],
                          .view = view,
                          .window = plan->attention.window,
                          .half = plan->attention.window / 2,
                          .strided = plan->attention.kind == SHOAL_KIND_STRIDED};
    head->keys = sh_dense_keys_of(plan, &head->view);
    head->keys.masks = sh_masks_in(call, &head->view, &head->masks);
    head->ahead = head->masks.ahead;
    if (plan->with_backward) {
        head->largest = state.largest + head->view.head * plan->problem.queries;
        head->inverse = state.inverse + head->view.head * plan->problem.queries;
    }
}

static dense_scratch *scratch_of(const window_head *head, int thread) {
    return &((window_work *)head->call->plan->work)->threads[thread];
}

/* ---- The band --------------------------------------------------------------------- */

/* Keys first .. last - 1. */
typedef struct {
    int64_t first, last;
} key_range;

/* What a panel passes over. */
static key_range band_of(const window_head *head, const query_panel *panel) {
    const int64_t S = head->view.keys, first = panel->first + head->ahead;
    return (key_range){min(max(0, first - head->half), S),
                       min(first + panel->count + head->half, S)};
}

/* on_scores: hides keys that are too far from a query, and its own where the strides have
   it. */
static void hide_far(void *context, const query_panel *panel, float *scores, int count,
                     int64_t first) {
    const window_head *head = context;
    for (int r = 0; r < count; r++) {
        float *row = scores + r * panel->width;
        /* The lane at the key's position. */
        const int64_t self = first + r - panel->first - head->ahead;
        const int64_t begin = min(max(0, self - head->half), panel->count);
        const int64_t end = min(max(0, self + head->half + 1), panel->count);
        for (int64_t i = 0; i < begin; i++)
            row[i] = -INFINITY;
        for (int64_t i = end; i < panel->count; i++)
            row[i] = -INFINITY;
        if (head->strided && self >= 0 && self < panel->count)
            row[self] = -INFINITY;
    }
}

static int sees_any(const window_head *head, int64_t query) {
    const int64_t S = head->view.keys, position = query + head->ahead;
    return S > 0 &&
           (position - head->half < S || (head->strided && position % head->window < S));
}

/* ---- The strides ------------------------------------------------------------------ */

/* The residue of a query's position. */
static int64_t residue_of(const window_head *head, int64_t query) {
    return (query + head->ahead) % head->window;
}

/* Rows r, r + W, r + 2 W ... */
static row_view every(const window_head *head, row_view rows, int64_t r) {
    return (row_view){rows.data ? rows.data + r * rows.stride : NULL,
                      rows.stride * head->window};
}

/* How many of n positions are r, r + W, r + 2 W ... */
static int64_t count_every(const window_head *head, int64_t n, int64_t r) {
    return n > r ? ceil_divide(n - r, head->window) : 0;
}

/* The keys that queries `from`, from + W ... see; `masks` is room for what holds for
   them. */
static dense_keys every_key(const window_head *head, int64_t from, score_masks *masks) {
    const int64_t r = residue_of(head, from);
    dense_keys keys = head->keys;
    keys.k = every(head, keys.k, r);
    keys.v = every(head, keys.v, r);
    if (!keys.masks)
        return keys;
    *masks = sh_masks_every(keys.masks, from, r, head->window);
    keys.masks = masks;
    return keys;
}

/* ---- Forward ---------------------------------------------------------------------- */

/* Queries `from`, from + W ... over their keys. */
static void stride_task(void *shared, int64_t from, int thread) {
    const window_head *head = shared;
    score_masks masks;
    const dense_keys keys = every_key(head, from, &masks);
    const int64_t n = count_every(head, head->view.queries, from);
    const int64_t S = count_every(head, head->view.keys, residue_of(head, from));
    const int64_t block = sh_dense_block(keys.kernels);
    dense_scratch *scratch = scratch_of(head, thread);
    for (int64_t first = 0; first < n; first += block) {
        const int panels =
            sh_dense_cut(scratch, keys.kernels, first, min(first + block, n));
        for (int p = 0; p < panels; p++) {
            query_panel *panel = &scratch->panels[p];
            sh_dense_start(&keys, panel, every(head, head->view.q, from));
            sh_dense_stream(&keys, 0, S, panel, scratch->scores, NULL, NULL);
            /* Leaves the softmax of queries `from`, from + W ... where the band finds
               it. */
            const row_view out = every(head, head->view.out, from);
            for (int i = 0; i < panel->count; i++) {
                const int64_t query = from + (panel->first + i) * head->window;
                head->slot->largest[query] = panel->largest[i];
                head->slot->sum[query] = panel->sum[i];
            }
            head->keys.kernels->unpack(panel->outputs, panel->count, panel->width,
                                       head->keys.value_dim, NULL, NULL, 0,
                                       out.data + panel->first * out.stride, out.stride,
                                       NULL);
        }
    }
}

/* The keys of some panels, as floats. */
static dense_keys block_keys(const window_head *head, const dense_scratch *scratch,
                             int panels, int thread) {
    const window_work *work = head->call->plan->work;
    if (head->keys.dtype == SHOAL_DTYPE_FLOAT32 || panels == 0)
        return head->keys;
    const int64_t first = band_of(head, &scratch->panels[0]).first;
    const int64_t last = band_of(head, &scratch->panels[panels - 1]).last;
    return sh_dense_widen(&head->keys, first, max(first, last), work->rows[thread].k,
                          work->rows[thread].v);
}

/* One block of queries over the band. */
static void band_task(void *shared, int64_t task, int thread) {
    const window_head *head = shared;
    const kernel_table *kernels = head->keys.kernels;
    const int64_t block = sh_dense_block(kernels), first = task * block;
    dense_scratch *scratch = scratch_of(head, thread);
    const int panels =
        sh_dense_cut(scratch, kernels, first, min(first + block, head->view.queries));
    const dense_keys keys = block_keys(head, scratch, panels, thread);
    for (int p = 0; p < panels; p++) {
        query_panel *panel = &scratch->panels[p];
        const key_range band = band_of(head, panel);
        sh_dense_start(&head->keys, panel, head->view.q);
        if (head->strided) {
            const row_view out = head->view.out;
            const size_t size = (size_t)panel->count * sizeof(float);
            head->keys.kernels->pack(out.data + panel->first * out.stride, out.stride,
                                     NULL, panel->count, panel->width,
                                     head->keys.value_dim, 1, panel->outputs);
            memcpy(panel->largest, head->slot->largest + panel->first, size);
            memcpy(panel->sum, head->slot->sum + panel->first, size);
        }
        sh_dense_stream(&keys, band.first, band.last, panel, scratch->scores, hide_far,
                        shared);
        sh_dense_invert(&head->keys, panel);
        for (int i = 0; i < panel->width; i++)
            if (!sees_any(head, panel->first + i))
                panel->inverse[i] = 0;
        sh_dense_write(&head->keys, panel, head->view.out, head->largest, head->inverse);
    }
}

static void forward_head(const attention_call *call, int64_t unit, int slot,
                         team workers) {
    window_head head;
    start_head(call, sh_view_at(call, unit), slot, &head);
    const int64_t n = head.view.queries;
    sh_clear_output(call, head.view.out, n, head.view.query_rows);
    if (head.strided)
        sh_team_run(workers, min(head.window, n), stride_task, &head);
    sh_team_run(workers, ceil_divide(n, sh_dense_block(head.keys.kernels)), band_task,
                &head);
}

/* ---- Backward --------------------------------------------------------------------- */

/* Queries first .. last - 1 of a job over keys of the band, or over some others. */
static void backward_rows(const window_head *head, const dense_backward_job *job,
                          const key_range *others, int64_t first, int64_t last,
                          int thread) {
    const kernel_table *kernels = head->keys.kernels;
    const int64_t block = sh_dense_block(kernels);
    dense_scratch *scratch = &((window_work *)head->call->plan->work)->threads[thread];
    for (; first < last; first += block) {
        const int panels =
            sh_dense_cut(scratch, kernels, first, min(first + block, last));
        for (int p = 0; p < panels; p++) {
            query_panel *panel = &scratch->panels[p];
            const key_range keys = others ? *others : band_of(head, panel);
            sh_dense_backward_start(job, panel);
            sh_dense_backward_panel(job, keys.first, keys.last, panel, scratch);
            sh_dense_backward_write(job, panel, job->onto);
        }
    }
}

static void band_backward_task(void *shared, int64_t task, int thread) {
    const window_head *head = shared;
    const int64_t start = (2 * task + head->phase) * head->chunk;
    backward_rows(head, &head->backward, NULL, start,
                  min(start + head->chunk, head->view.queries), thread);
}

/* Queries `from`, from + W ...: adds to what the band gave, and no other residue does. */
static void stride_backward_task(void *shared, int64_t from, int thread) {
    const window_head *head = shared;
    const dense_backward_job *band = &head->backward;
    const int64_t n = count_every(head, head->view.queries, from);
    const int64_t r = residue_of(head, from);
    score_masks masks;
    const key_range keys = {0, count_every(head, head->view.keys, r)};
    const dense_backward_job job = {.keys = every_key(head, from, &masks),
                                    .x = every(head, band->x, from),
                                    .dout = every(head, band->dout, from),
                                    .largest = every(head, band->largest, from),
                                    .inverse = every(head, band->inverse, from),
                                    .delta = every(head, band->delta, from),
                                    .dq = every(head, band->dq, from),
                                    .dk = every(head, band->dk, r),
                                    .dv = every(head, band->dv, r),
                                    .onto = 1};
    backward_rows(head, &job, &keys, 0, n, thread);
}

/* One query head: adds to dk and dv. */
static void backward_head(window_head *head, const kv_head_view *kv, team workers) {
    const shoal_problem *problem = &head->call->plan->problem;
    const int64_t n = head->view.queries;
    dense_backward_job *job = &head->backward;
    *job = (dense_backward_job){.keys = head->keys,
                                .x = head->view.q,
                                .dout = head->view.dout,
                                .largest = {head->largest, 1},
                                .inverse = {head->inverse, 1},
                                .delta = {head->slot->delta, 1},
                                .dq = head->view.dq,
                                .dk = kv->dk,
                                .dv = kv->dv,
                                .on_scores = hide_far,
                                .context = head};
    dense_delta_job products = {job->dout, head->view.out, n, problem->value_dim,
                                head->slot->delta};
    sh_clear_rows(job->dq, n, head->view.query_rows, problem->dim);
    sh_dense_delta(&products, workers);
    head->chunk = max(sh_dense_block(head->keys.kernels), head->window);
    const int64_t chunks = ceil_divide(n, head->chunk);
    for (head->phase = 0; head->phase < 2; head->phase++)
        sh_team_run(workers, (chunks + 1 - head->phase) / 2, band_backward_task, head);
    if (head->strided)
        sh_team_run(workers, min(head->window, n), stride_backward_task, head);
}

static void backward_unit(const attention_call *call, int64_t unit, int slot,
                          team workers) {
    const kv_head_view kv = sh_start_kv_head(call, unit);
    for (int64_t h = kv.first; h < kv.last; h++) {
        window_head head;
        start_head(call, sh_view_of(call, kv.b, h), slot, &head);
        backward_head(&head, &kv, workers);
    }
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double W = attention->window;
    const double whole = attention->kind == SHOAL_KIND_STRIDED ? W + S / W : W;
    const double seen = problem->causal ? whole / 2 : whole;
    return (operation_count){.dense = 2 * N * fmin(S, seen) *
                                      (double)(problem->dim + problem->value_dim)};
}

#define WINDOW_FUNCTIONS                                                                 \
    .operations = operations, .place = place, .forward_head = forward_head,              \
    .backward_head = backward_unit

const attention_kind sh_local_kind =
    {.info = {.name = "local-W",
              .number = "window",
              .cost = "N W (D + Dv)",
              .summary = "only the keys at most W/2 positions away",
              .defaults = {.kind = SHOAL_KIND_LOCAL, .window = 64},
              .has_masks = 1},
     .forwards_half_precision = 1,
     WINDOW_FUNCTIONS};

const attention_kind sh_strided_kind =
    {.info = {.name = "strided-W",
              .number = "window",
              .cost = "N (W + S / W) (D + Dv)",
              .summary = "the keys at most W/2 positions away, and those a multiple of W",
              .defaults = {.kind = SHOAL_KIND_STRIDED, .window = 64},
              .has_masks = 1},
     WINDOW_FUNCTIONS};
