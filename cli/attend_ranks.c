/* shoal attend under a launcher: each rank maps the files and computes a contiguous
   part of the positions. Rank 0 holds the complete outputs and receives the rows of the
   others head by head. */
#include <stdlib.h>
#include <string.h>

#include "attend.h"

/* One rank's rows of the arrays. */
typedef struct {
    int64_t first_query, queries, first_key, keys;
} rank_part;

/* Buffers of one rank. */
typedef struct {
    attend_job *job;
    rank_part part;
    shoal_problem problem;
    shoal_strides strides[4]; /* of q, k, v and out, where they are not contiguous */
    shoal_inputs inputs;
    shoal_gradients gradients;
    void *copies[8]; /* to be freed */
    int copy_count;
} rank_work;

static rank_part part_of_rank(const attend_job *job, int rank) {
    const int64_t ranks = job->ranks->ranks, N = job->problem.queries,
                  S = job->problem.keys;
    return (rank_part){.first_query = rank * N / ranks,
                       .queries = (rank + 1) * N / ranks - rank * N / ranks,
                       .first_key = rank * S / ranks,
                       .keys = (rank + 1) * S / ranks - rank * S / ranks};
}

/* Memory that is freed at the end. */
static void *reserve_rows(rank_work *work, int64_t rows, size_t row) {
    return work->copies[work->copy_count++] = reserve((size_t)rows, row);
}

/* Copies rows first .. first + count of [units][all][row]; NULL if there is no
   array. */
static void *copy_rows(rank_work *work, const void *array, int64_t units, int64_t all,
                       int64_t first, int64_t count, size_t row) {
    char *copy = array ? reserve_rows(work, units * count, row) : NULL;
    for (int64_t u = 0; u < units && copy; u++)
        memcpy(copy + (size_t)(u * count) * row,
               (const char *)array + (size_t)(u * all + first) * row,
               (size_t)count * row);
    return copy;
}

static int64_t within(int64_t length, int64_t first, int64_t count) {
    return length < first ? 0 : length - first < count ? length - first : count;
}

static void load_lengths(rank_work *work) {
    const attend_job *job = work->job;
    const rank_part *part = &work->part;
    const shoal_problem *whole = &job->problem;
    int64_t *queries = reserve_rows(work, whole->batch, sizeof *queries);
    int64_t *keys = reserve_rows(work, whole->batch, sizeof *keys);
    for (int64_t b = 0; b < whole->batch; b++) {
        queries[b] = within(job->query_lengths ? job->query_lengths[b] : whole->queries,
                            part->first_query, part->queries);
        keys[b] = within(job->key_lengths ? job->key_lengths[b] : whole->keys,
                         part->first_key, part->keys);
    }
    work->inputs.query_lengths = queries;
    work->inputs.key_lengths = keys;
}

static shoal_strides whole_strides(int64_t heads, int64_t positions, int64_t features) {
    return (shoal_strides){heads * positions * features, positions * features, features};
}

/* Rank 0 uses the complete arrays, whose first rows are its own; the others map the
   files too. They copy their rows only for gradients, which have the strides of their
   inputs. */
static void load_inputs(rank_work *work) {
    const attend_job *job = work->job;
    const shoal_problem *whole = &job->problem;
    const rank_part *part = &work->part;
    const int64_t U = whole->batch * whole->heads, V = whole->batch * whole->kv_heads;
    const int64_t N = whole->queries, S = whole->keys;
    const size_t D = sizeof(float) * (size_t)whole->dim;
    const size_t Dv = sizeof(float) * (size_t)whole->value_dim;
    const bool copies = job->ranks->rank > 0 && job->inputs[INPUT_GRAD_OUT].data;
    const float *q = job->inputs[INPUT_Q].data, *k = job->inputs[INPUT_K].data;
    const float *v = job->inputs[INPUT_V].data;
    shoal_inputs *inputs = &work->inputs;
    work->problem = *whole;
    work->problem.queries = part->queries;
    work->problem.keys = part->keys;
    inputs->clusters = copy_rows(work, job->inputs[INPUT_GROUPS].data, U, N,
                                 part->first_query, part->queries, sizeof(int32_t));
    if (copies) {
        inputs->q = copy_rows(work, q, U, N, part->first_query, part->queries, D);
        inputs->k = copy_rows(work, k, V, S, part->first_key, part->keys, D);
        inputs->v = copy_rows(work, v, V, S, part->first_key, part->keys, Dv);
        work->gradients.dout = copy_rows(work, job->inputs[INPUT_GRAD_OUT].data, U, N,
                                         part->first_query, part->queries, Dv);
        return;
    }
    inputs->q = q + part->first_query * whole->dim;
    inputs->k = k + part->first_key * whole->dim;
    inputs->v = v + part->first_key * whole->value_dim;
    work->strides[0] = whole_strides(whole->heads, N, whole->dim);
    work->strides[1] = whole_strides(whole->kv_heads, S, whole->dim);
    work->strides[2] = whole_strides(whole->kv_heads, S, whole->value_dim);
    work->problem.q_strides = &work->strides[0];
    work->problem.k_strides = &work->strides[1];
    work->problem.v_strides = &work->strides[2];
    work->gradients.dout = job->inputs[INPUT_GRAD_OUT].data;
    work->strides[3] = whole_strides(whole->heads, N, whole->value_dim);
    if (job->ranks->rank == 0)
        work->problem.out_strides = &work->strides[3];
}

/* On other ranks the outputs have only their own rows. */
static void reserve_outputs(rank_work *work) {
    attend_job *job = work->job;
    const shoal_problem *part = &work->problem;
    const int64_t queries = part->batch * part->heads * part->queries;
    const int64_t keys = part->batch * part->kv_heads * part->keys;
    const int64_t sizes[OUTPUTS] = {[OUTPUT_OUT] = queries * part->value_dim,
                                    [OUTPUT_GRAD_Q] = queries * part->dim,
                                    [OUTPUT_GRAD_K] = keys * part->dim,
                                    [OUTPUT_GRAD_V] = keys * part->value_dim};
    for (int i = 0; i < OUTPUTS; i++)
        if (job->ranks->rank > 0 && i != OUTPUT_GROUPS && i != OUTPUT_TOP &&
            (i == OUTPUT_OUT || job->output_paths[i]))
            job->outputs[i].data = reserve((size_t)sizes[i], sizeof(float));
    work->gradients.out = job->outputs[OUTPUT_OUT].data;
    work->gradients.dq = job->outputs[OUTPUT_GRAD_Q].data;
    work->gradients.dk = job->outputs[OUTPUT_GRAD_K].data;
    work->gradients.dv = job->outputs[OUTPUT_GRAD_V].data;
}

/* ---- Outputs ----------------------------------------------------------------------- */

/* An output of a rank: [units][rows][row bytes], of queries or of keys. Rank 0 has the
   complete array with its own rows in place. */
typedef struct {
    char *data;
    int64_t units;
    size_t row;
    bool of_keys;
} rank_rows;

static int64_t rows_of_rank(const attend_job *job, const rank_rows *rows, int rank) {
    const rank_part part = part_of_rank(job, rank);
    return rows->of_keys ? part.keys : part.queries;
}

/* Receives the rows of the others into rank 0's array, unit by unit, because the rows
   of a unit are contiguous there. */
static void collect(const attend_job *job, const rank_rows *rows) {
    shoal_transport *ranks = job->ranks;
    const int64_t own = rows_of_rank(job, rows, ranks->rank);
    const int64_t all = rows->of_keys ? job->problem.keys : job->problem.queries;
    int64_t *sizes = reserve_zeros(2 * (size_t)ranks->ranks, sizeof *sizes);
    for (int p = 1; p < ranks->ranks && ranks->rank == 0; p++)
        sizes[ranks->ranks + p] = rows_of_rank(job, rows, p) * (int64_t)rows->row;
    if (ranks->rank > 0)
        sizes[0] = own * (int64_t)rows->row;
    for (int64_t u = 0; u < rows->units; u++) {
        char *unit = rows->data + (size_t)(u * (ranks->rank ? own : all)) * rows->row;
        if (ranks->exchange(ranks, sizes, unit, sizes + ranks->ranks,
                            unit + (size_t)own * rows->row) != SHOAL_OK)
            die(EXIT_RESOURCES, "%s", ranks->message);
    }
    free(sizes);
}

static void collect_outputs(const rank_work *work, const shoal_plan *plan) {
    const attend_job *job = work->job;
    const shoal_problem *whole = &job->problem;
    const int64_t U = whole->batch * whole->heads, V = whole->batch * whole->kv_heads;
    const size_t D = sizeof(float) * (size_t)whole->dim;
    const size_t Dv = sizeof(float) * (size_t)whole->value_dim;
    const int32_t *groups = shoal_plan_clusters(plan, NULL);
    char *all_groups = job->ranks->rank ? (char *)(uintptr_t)groups
                                        : job->outputs[OUTPUT_GROUPS].data;
    const rank_rows outputs[OUTPUTS] =
        {[OUTPUT_OUT] = {job->outputs[OUTPUT_OUT].data, U, Dv, false},
         [OUTPUT_GROUPS] = {all_groups, U, sizeof(int32_t), false},
         [OUTPUT_GRAD_Q] = {job->outputs[OUTPUT_GRAD_Q].data, U, D, false},
         [OUTPUT_GRAD_K] = {job->outputs[OUTPUT_GRAD_K].data, V, D, true},
         [OUTPUT_GRAD_V] = {job->outputs[OUTPUT_GRAD_V].data, V, Dv, true}};
    for (int64_t u = 0; u < U && job->ranks->rank == 0 && all_groups; u++)
        memcpy(all_groups + sizeof *groups * (size_t)(u * whole->queries),
               groups + u * work->part.queries,
               sizeof *groups * (size_t)work->part.queries);
    if (job->ranks->rank == 0 && job->output_paths[OUTPUT_TOP])
        memcpy(job->outputs[OUTPUT_TOP].data, shoal_plan_top_keys(plan, NULL),
               sizeof(int32_t) * (size_t)(U * job->attention.clusters) *
                   (size_t)job->attention.topk);
    for (int i = 0; i < OUTPUTS; i++)
        if (outputs[i].row && (i == OUTPUT_OUT || job->output_paths[i]))
            collect(job, &outputs[i]);
}

void attend_over_ranks(attend_job *job) {
    rank_work work = {.job = job,
                      .part = part_of_rank(job, job->ranks->rank),
                      .inputs = shoal_inputs_defaults(),
                      .gradients = shoal_gradients_defaults()};
    const bool backward = job->input_paths[INPUT_GRAD_OUT] != NULL;
    shoal_plan *plan;
    job->slices = 1;
    if (job->problem.dtype != SHOAL_DTYPE_FLOAT32)
        die(EXIT_BAD_INPUT, "%s is float16; several processes need float32 arrays",
            job->input_paths[INPUT_Q]);
    if (job->check_samples > 0 || job->shared)
        die(EXIT_USAGE, "several processes support neither --check nor kinds that use "
                        "the queries as keys");
    /* Digest of the shapes and the first rows of the arrays. */
    uint64_t digest = 1;
    for (int i = 0; i < INPUTS; i++) {
        const shoal_array *input = &job->inputs[i];
        int64_t count = input->data != NULL;
        for (int k = 0; k < input->dimensions && input->data; k++)
            count *= input->shape[k];
        digest = digest_bytes(digest, input->shape, sizeof input->shape);
        digest =
            digest_bytes(digest, input->data, 4 * (size_t)(count < 1024 ? count : 1024));
    }
    ranks_same(job->ranks, digest, "other arrays");
    load_lengths(&work);
    load_inputs(&work);
    reserve_outputs(&work);
    demand(shoal_plan_create_over(job->ranks, job->context, &work.problem,
                                  &job->attention, backward ? SHOAL_WITH_BACKWARD : 0,
                                  &plan),
           EXIT_BAD_INPUT);
    const int64_t before = job->ranks->sent;
    const double begun = seconds_now();
    job->workspace = shoal_plan_workspace(plan);
    job->picked = job->attention;
    demand(shoal_forward(plan, &work.inputs, job->outputs[OUTPUT_OUT].data),
           EXIT_BAD_INPUT);
    if (backward)
        demand(shoal_backward(plan, &work.inputs, &work.gradients), EXIT_BAD_INPUT);
    job->seconds = seconds_now() - begun;
    job->sent = job->ranks->sent - before;
    collect_outputs(&work, plan);
    shoal_plan_destroy(plan);
    for (int i = 0; i < work.copy_count; i++)
        free(work.copies[i]);
}
