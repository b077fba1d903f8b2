#include "attention/dense.h"

#include <string.h>

/* Keys whose values and gradients stay in cache while all queries pass over them. */
enum { KEY_CHUNK = 4 * KEY_BLOCK };

void sh_dense_place(dense_scratch *scratch, const shoal_plan *plan, block_layout *work) {
    const int64_t width = plan->kernels->panel;
    const int64_t dim = plan->problem.dim, value_dim = plan->problem.value_dim;
    for (int p = 0; p < PANELS; p++) {
        query_panel *panel = &scratch->panels[p];
        panel->queries = sh_reserve(work, dim * width, sizeof(float));
        panel->outputs = sh_reserve(work, value_dim * width, sizeof(float));
        panel->largest = sh_reserve(work, width, sizeof(float));
        panel->sum = sh_reserve(work, width, sizeof(float));
        panel->inverse = sh_reserve(work, width, sizeof(float));
        panel->keep = sh_reserve(work, width, sizeof(float));
        if (plan->problem.dtype != SHOAL_DTYPE_FLOAT32)
            panel->rows = sh_reserve(work, max(dim, value_dim) * width, sizeof(float));
        if (!plan->with_backward)
            continue;
        panel->grad_out = sh_reserve(work, value_dim * width, sizeof(float));
        panel->grad_q = sh_reserve(work, dim * width, sizeof(float));
        panel->delta = sh_reserve(work, width, sizeof(float));
    }
    scratch->scores = sh_reserve(work, KEY_BLOCK * width, sizeof(float));
    if (plan->with_backward)
        scratch->slopes = sh_reserve(work, KEY_BLOCK * width, sizeof(float));
    if (plan->problem.dtype == SHOAL_DTYPE_FLOAT32)
        return;
    scratch->block_k = sh_reserve(work, KEY_BLOCK * dim, sizeof(float));
    scratch->block_v = sh_reserve(work, KEY_BLOCK * value_dim, sizeof(float));
}

dense_scratch *sh_dense_place_threads(const shoal_plan *plan, block_layout *work) {
    dense_scratch *threads = sh_reserve(work, plan->threads, sizeof *threads);
    for (int t = 0; t < plan->threads; t++)
        sh_dense_place(threads ? &threads[t] : &(dense_scratch){0}, plan, work);
    return threads;
}

softmax_state sh_softmax_state_at(const shoal_plan *plan, block_layout *place) {
    const int64_t count = plan->problem.batch * plan->problem.heads *
                          plan->problem.queries;
    softmax_state state = {0};
    if (plan->with_backward || plan->over) {
        state.largest = sh_reserve(place, count, sizeof(float));
        state.inverse = sh_reserve(place, count, sizeof(float));
    }
    return state;
}

dense_keys sh_dense_keys_of(const shoal_plan *plan, const head_view *view) {
    return (dense_keys){.kernels = plan->kernels,
                        .k = view->k,
                        .v = view->v,
                        .dim = (int)plan->problem.dim,
                        .value_dim = (int)plan->problem.value_dim,
                        .scale = plan->problem.scale,
                        .dtype = plan->problem.dtype};
}

int64_t sh_dense_block(const kernel_table *kernels) {
    return PANELS * kernels->panel;
}

int sh_dense_cut(dense_scratch *scratch, const kernel_table *kernels, int64_t first,
                 int64_t last) {
    int panels = 0;
    for (; first < last && panels < PANELS; panels++) {
        query_panel *panel = &scratch->panels[panels];
        panel->first = first;
        panel->width = panel_width(kernels, last - first);
        /* Two middling panels are quicker than a wide one and a very narrow one. */
        if (last - first > kernels->panel &&
            last - first <= kernels->panel + kernels->lanes)
            panel->width = kernels->panel - kernels->lanes;
        panel->count = (int)min(panel->width, last - first);
        first += panel->width;
    }
    return panels;
}

/* The panel's rows of x, as floats. */
static row_view panel_rows(const dense_keys *keys, const query_panel *panel, row_view x) {
    if (keys->dtype == SHOAL_DTYPE_FLOAT32)
        return (row_view){x.data + panel->first * x.stride, x.stride};
    sh_widen_rows(keys->kernels, half_rows_of(x, keys->dim, keys->dtype), panel->first,
                  panel->count, panel->rows);
    return (row_view){panel->rows, keys->dim};
}

void sh_dense_start(const dense_keys *keys, query_panel *panel, row_view x) {
    const row_view rows = panel_rows(keys, panel, x);
    keys->kernels->pack(rows.data, rows.stride, NULL, panel->count, panel->width,
                        keys->dim, keys->scale, panel->queries);
    memset(panel->outputs, 0, sizeof(float) * (size_t)(keys->value_dim * panel->width));
    for (int i = 0; i < panel->width; i++) {
        panel->largest[i] = LOWEST_SCORE;
        panel->sum[i] = 0;
    }
}

/* Keys first .. first + count - 1 for one panel. */
static score_block block_of(const dense_keys *keys, const query_panel *panel,
                            int64_t first, int count) {
    return (score_block){.kernels = keys->kernels,
                         .query = panel->first,
                         .key = first,
                         .lanes = panel->count,
                         .width = panel->width,
                         .count = count};
}

/* The first key that none of the panel's queries sees. */
static int64_t end_of(const dense_keys *keys, const query_panel *panel, int64_t last) {
    return keys->masks ? sh_masks_end(keys->masks, panel->first + panel->count - 1, last)
                       : last;
}

/* Products of a panel with the block's rows, while parts first_part .. of `parts` of its
   masks' rows are asked for. */
enum { SCORE_PARTS = 4, SCORE_ROWS = KEY_BLOCK / SCORE_PARTS };

static void score_rows(const dense_keys *keys, const score_block *now, const float *panel,
                       int dim, const float *rows, int64_t stride, int first_part,
                       int parts, float *scores) {
    const kernel_table *kernels = keys->kernels;
    if (!keys->masks || !sh_masks_have_rows(keys->masks)) {
        kernels->score(panel, now->width, dim, rows, stride, now->count, scores);
        return;
    }
    for (int p = 0; p < SCORE_PARTS; p++) {
        const int at = (int)min(p * SCORE_ROWS, now->count);
        sh_masks_prefetch(keys->masks, now, first_part + p, parts);
        kernels->score(panel, now->width, dim, rows + at * stride, stride,
                       (int)min(SCORE_ROWS, now->count - at), scores + at * now->width);
    }
}

void sh_dense_stream(const dense_keys *keys, int64_t first, int64_t last,
                     query_panel *panel, float *scores, scores_callback *on_scores,
                     void *context) {
    const kernel_table *kernels = keys->kernels;
    last = end_of(keys, panel, last);
    for (int64_t block = first; block < last; block += KEY_BLOCK) {
        int count = (int)min(KEY_BLOCK, last - block);
        const score_block now = block_of(keys, panel, block, count);
        const int64_t row = block - keys->origin;
        score_rows(keys, &now, panel->queries, keys->dim,
                   keys->k.data + row * keys->k.stride, keys->k.stride, 0, SCORE_PARTS,
                   scores);
        if (keys->masks)
            sh_masks_apply(keys->masks, &now, scores);
        if (on_scores)
            on_scores(context, panel, scores, count, block);
        kernels->softmax_step(scores, panel->width, count, panel->largest, panel->sum,
                              panel->keep);
        if (keys->masks)
            sh_masks_drop(keys->masks, &now, scores);
        kernels->mix(scores, panel->width, keys->v.data + row * keys->v.stride,
                     keys->v.stride, count, keys->value_dim, panel->keep, panel->outputs);
    }
}

/* A score that is not -inf, once it is the largest, has added 1 to the sum. */
void sh_dense_invert(const dense_keys *keys, query_panel *panel) {
    for (int i = 0; i < panel->width; i++)
        panel->inverse[i] = 1 / panel->sum[i];
    for (int i = 0; i < panel->width && keys->masks; i++) {
        if (!(panel->sum[i] < 0.5f))
            continue;
        panel->inverse[i] = 0;
        for (int d = 0; d < keys->value_dim; d++)
            panel->outputs[d * panel->width + i] = 0;
    }
}

void sh_dense_write(const dense_keys *keys, query_panel *panel, row_view out,
                    float *largest, float *inverse) {
    const size_t size = (size_t)panel->count * sizeof(float);
    const int is_half = keys->dtype != SHOAL_DTYPE_FLOAT32;
    row_view to = {panel->rows, keys->value_dim};
    if (!is_half)
        to = (row_view){out.data + panel->first * out.stride, out.stride};
    keys->kernels->unpack(panel->outputs, panel->count, panel->width, keys->value_dim,
                          panel->inverse, NULL, 0, to.data, to.stride, NULL);
    if (is_half)
        sh_narrow_rows(keys->kernels, panel->rows,
                       half_rows_of(out, keys->value_dim, keys->dtype), panel->first,
                       panel->count);
    if (!largest)
        return;
    memcpy(largest + panel->first, panel->largest, size);
    memcpy(inverse + panel->first, panel->inverse, size);
}

dense_keys sh_dense_widen(const dense_keys *keys, int64_t first, int64_t last, float *k,
                          float *v) {
    dense_keys some = *keys;
    sh_widen_rows(keys->kernels, half_rows_of(keys->k, keys->dim, keys->dtype), first,
                  last - first, k);
    sh_widen_rows(keys->kernels, half_rows_of(keys->v, keys->value_dim, keys->dtype),
                  first, last - first, v);
    some.k = (row_view){k, keys->dim};
    some.v = (row_view){v, keys->value_dim};
    some.dtype = SHOAL_DTYPE_FLOAT32;
    some.origin = first;
    return some;
}

void sh_dense_forward(const dense_forward_job *job, int64_t first, int64_t last,
                      int thread) {
    dense_scratch *scratch = &job->threads[thread];
    const int panels = sh_dense_cut(scratch, job->keys.kernels, first, last);
    const int64_t end =
        panels > 0 ? end_of(&job->keys, &scratch->panels[panels - 1], job->key_count) : 0;
    const int is_half = job->keys.dtype != SHOAL_DTYPE_FLOAT32;
    dense_keys some;
    for (int p = 0; p < panels; p++)
        sh_dense_start(&job->keys, &scratch->panels[p], job->x);
    for (int64_t key = 0; key < end; key += KEY_BLOCK) {
        const int64_t next = min(key + KEY_BLOCK, end);
        if (is_half)
            some =
                sh_dense_widen(&job->keys, key, next, scratch->block_k, scratch->block_v);
        for (int p = 0; p < panels; p++)
            sh_dense_stream(is_half ? &some : &job->keys, key, next, &scratch->panels[p],
                            scratch->scores, job->on_scores, job->context);
    }
    for (int p = 0; p < panels; p++) {
        sh_dense_invert(&job->keys, &scratch->panels[p]);
        sh_dense_write(&job->keys, &scratch->panels[p], job->out, job->largest,
                       job->inverse);
    }
}

/* ---- Backward --------------------------------------------------------------------- */

enum { DELTA_TASK = 1024 };

static void delta_task(void *shared, int64_t task, int thread) {
    const dense_delta_job *job = shared;
    (void)thread;
    for (int64_t i = task * DELTA_TASK; i < min((task + 1) * DELTA_TASK, job->n); i++) {
        const float *a = job->dout.data + i * job->dout.stride;
        const float *b = job->out.data + i * job->out.stride;
        double sum = 0;
        for (int64_t d = 0; d < job->value_dim; d++)
            sum += (double)a[d] * (double)b[d];
        job->delta[i] = (float)sum;
    }
}

void sh_dense_delta(dense_delta_job *job, team workers) {
    sh_team_run(workers, ceil_divide(job->n, DELTA_TASK), delta_task, job);
}

void sh_dense_backward_start(const dense_backward_job *job, query_panel *panel) {
    const dense_keys *keys = &job->keys;
    keys->kernels->pack(job->x.data + panel->first * job->x.stride, job->x.stride, NULL,
                        panel->count, panel->width, keys->dim, keys->scale,
                        panel->queries);
    keys->kernels->pack(job->dout.data + panel->first * job->dout.stride,
                        job->dout.stride, NULL, panel->count, panel->width,
                        keys->value_dim, 1, panel->grad_out);
    memset(panel->grad_q, 0, sizeof(float) * (size_t)(keys->dim * panel->width));
    for (int i = 0; i < panel->width; i++) {
        const int live = i < panel->count;
        const int64_t at = panel->first + i;
        panel->largest[i] = live ? job->largest.data[at * job->largest.stride] : 0;
        panel->inverse[i] = live ? job->inverse.data[at * job->inverse.stride] : 0;
        panel->delta[i] = live ? job->delta.data[at * job->delta.stride] : 0;
    }
}

void sh_dense_backward_panel(const dense_backward_job *job, int64_t first, int64_t last,
                             query_panel *panel, dense_scratch *scratch) {
    const dense_keys *keys = &job->keys;
    const kernel_table *kernels = keys->kernels;
    const row_view dk = job->dk, dv = job->dv, x = job->x, dout = job->dout;
    float *scores = scratch->scores, *slopes = scratch->slopes;
    const int width = panel->width;
    last = end_of(keys, panel, last);
    for (int64_t key = first; key < last; key += KEY_BLOCK) {
        /* One block of keys for one panel: five products around one softmax. */
        const int count = (int)min(KEY_BLOCK, last - key);
        const float *k = keys->k.data + key * keys->k.stride;
        const float *v = keys->v.data + key * keys->v.stride;
        const score_block now = block_of(keys, panel, key, count);
        score_rows(keys, &now, panel->queries, keys->dim, k, keys->k.stride, 0,
                   2 * SCORE_PARTS, scores);
        score_rows(keys, &now, panel->grad_out, keys->value_dim, v, keys->v.stride,
                   SCORE_PARTS, 2 * SCORE_PARTS, slopes);
        if (keys->masks) {
            sh_masks_apply(keys->masks, &now, scores);
            sh_masks_drop(keys->masks, &now, slopes);
        }
        if (job->on_scores)
            job->on_scores(job->context, panel, scores, count, key);
        kernels->softmax_slope(scores, slopes, width, count, panel->largest,
                               panel->inverse, panel->delta, keys->scale);
        if (keys->masks) {
            sh_masks_drop(keys->masks, &now, scores);
            sh_masks_keep_slopes(keys->masks, &now, keys->scale, slopes);
        }
        if (job->dq.data)
            kernels->mix(slopes, width, k, keys->k.stride, count, keys->dim, NULL,
                         panel->grad_q);
        if (dv.data)
            kernels->spread(scores, width, panel->count,
                            dout.data + panel->first * dout.stride, dout.stride,
                            keys->value_dim, count, dv.data + key * dv.stride, dv.stride);
        if (dk.data)
            kernels->spread(slopes, width, panel->count, x.data + panel->first * x.stride,
                            x.stride, keys->dim, count, dk.data + key * dk.stride,
                            dk.stride);
    }
}

void sh_dense_backward_write(const dense_backward_job *job, const query_panel *panel,
                             int onto) {
    if (job->dq.data)
        job->keys.kernels->unpack(panel->grad_q, panel->count, panel->width,
                                  job->keys.dim, NULL, NULL, onto,
                                  job->dq.data + panel->first * job->dq.stride,
                                  job->dq.stride, NULL);
}

/* A chunk of keys is one task: it alone writes their dk and dv. Queries that see none of
   its keys are passed over: they see none of the later chunks either, so nobody waits. */
static void backward_chunk(void *shared, int64_t chunk, int thread) {
    const dense_backward_job *job = shared;
    dense_scratch *scratch = &job->threads[thread];
    const int64_t block = sh_dense_block(job->keys.kernels);
    const int64_t end = min((chunk + 1) * KEY_CHUNK, job->key_count);
    const int64_t unseen =
        job->keys.masks ? sh_masks_begin(job->keys.masks, chunk * KEY_CHUNK) : 0;
    for (int64_t first = unseen / block * block; first < job->n; first += block) {
        int panels =
            sh_dense_cut(scratch, job->keys.kernels, first, min(first + block, job->n));
        for (int p = 0; p < panels; p++)
            sh_dense_backward_start(job, &scratch->panels[p]);
        for (int64_t key = chunk * KEY_CHUNK; key < end; key += KEY_BLOCK)
            for (int p = 0; p < panels; p++)
                sh_dense_backward_panel(job, key, min(key + KEY_BLOCK, end),
                                        &scratch->panels[p], scratch);
        /* The chunks before this one have added to this block of dq when it is its turn:
           the sum has one order, however many threads there are. */
        sh_await_turn(&job->turns[first / block], (int)chunk);
        for (int p = 0; p < panels; p++)
            sh_dense_backward_write(job, &scratch->panels[p], job->onto || chunk > 0);
        sh_pass_turn(&job->turns[first / block], (int)chunk);
    }
}

void sh_dense_backward(dense_backward_job *job, team workers) {
    int64_t blocks = ceil_divide(job->n, sh_dense_block(job->keys.kernels));
    for (int64_t i = 0; i < blocks; i++)
        atomic_init(&job->turns[i], 0);
    sh_team_run(workers, ceil_divide(job->key_count, KEY_CHUNK), backward_chunk, job);
}
