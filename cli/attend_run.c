/* The work of shoal attend. A problem that fits comfortably in memory is one slice. A
   larger one is cut into one slice per sequence and key/value head, which one plan does
   one after the other: a head's result does not depend on the others, and the pages of
   inputs that are finished go back to the system. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attend.h"
#include "common.h"
#include <shoal_models.h>

/* Inputs and output together above which the problem is cut. */
static const char largest_whole_variable[] = "SHOAL_SLICE_ABOVE";
static const size_t largest_whole = (size_t)512 << 20;

static bool must_be_cut(const attend_job *job) {
    const char *asked = getenv(largest_whole_variable);
    size_t limit = asked && *asked ? strtoull(asked, NULL, 10) : largest_whole;
    size_t bytes = array_bytes(&job->outputs[OUTPUT_OUT]);
    for (int i = INPUT_Q; i <= INPUT_V; i++)
        if (job->inputs[i].data)
            bytes += array_bytes(&job->inputs[i]);
    return bytes > limit;
}

/* Every array is [batch, heads or kv heads, ...], so equal parts of it are the slices. */
static void *part_of(const shoal_array *array, int64_t slice, int64_t slices,
                     size_t *bytes) {
    *bytes = array_bytes(array) / (size_t)slices;
    return array->data ? (char *)array->data + (size_t)slice * *bytes : NULL;
}

static void *input_part(const attend_job *job, attend_input which, int64_t slice) {
    size_t bytes;
    return part_of(&job->inputs[which], slice, job->slices, &bytes);
}

static void *output_part(const attend_job *job, attend_output which, int64_t slice) {
    size_t bytes;
    return part_of(&job->outputs[which], slice, job->slices, &bytes);
}

/* The pages that lie wholly inside the slice; those at its ends may be a neighbour's. */
static void give_back_inputs(const attend_job *job, int64_t slice) {
    static const attend_input large[] = {INPUT_Q, INPUT_K, INPUT_V, INPUT_GRAD_OUT};
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        size_t bytes;
        char *part = part_of(&job->inputs[large[i]], slice, job->slices, &bytes);
        uintptr_t ahead = (page - (uintptr_t)part % page) % page;
        if (part && bytes > ahead + page)
            madvise(part + ahead, (bytes - ahead) / page * page, MADV_DONTNEED);
    }
}

/* ---- One slice -------------------------------------------------------------------- */

/* Kinds whose keys are the queries never look at keys. A file with other keys is refused,
   because it would be ignored. */
static int compare_shared_keys(const attend_job *job, const shoal_problem *part,
                               int64_t slice, const shoal_inputs *inputs) {
    const float *keys = input_part(job, INPUT_K, slice);
    if (!job->shared || !keys)
        return EXIT_OK;
    for (int64_t row = 0; row < part->batch * part->heads; row++) {
        int64_t live = inputs->query_lengths ? inputs->query_lengths[row / part->heads]
                                             : part->queries;
        int64_t begin = row * part->keys * part->dim;
        if (memcmp(keys + begin, inputs->q + begin,
                   (size_t)(live * part->dim) * sizeof *keys) != 0)
            return complain(EXIT_BAD_INPUT, "attend",
                            "%s is not equal to %s, and in this kind the keys are the "
                            "queries; give - for K",
                            job->input_paths[INPUT_K], job->input_paths[INPUT_Q]);
    }
    return EXIT_OK;
}

static shoal_inputs slice_inputs(const attend_job *job, int64_t slice) {
    int64_t sequence = job->slices > 1 ? slice / job->problem.kv_heads : 0;
    return (shoal_inputs){.q = input_part(job, INPUT_Q, slice),
                          .k = job->shared ? NULL : input_part(job, INPUT_K, slice),
                          .v = input_part(job, INPUT_V, slice),
                          .query_lengths =
                              job->query_lengths ? job->query_lengths + sequence : NULL,
                          .key_lengths = job->key_lengths ? job->key_lengths + sequence
                                                          : NULL,
                          .groups = input_part(job, INPUT_GROUPS, slice)};
}

static void keep(const attend_job *job, attend_output which, int64_t slice,
                 const int32_t *used) {
    size_t bytes;
    void *part = part_of(&job->outputs[which], slice, job->slices, &bytes);
    if (part && used)
        memcpy(part, used, bytes);
}

static shoal_status forward_and_backward(attend_job *job, shoal_plan *plan, int64_t slice,
                                         const shoal_inputs *inputs) {
    float *out = output_part(job, OUTPUT_OUT, slice);
    double begun = seconds_now();
    shoal_status status = shoal_forward(plan, inputs, out);
    if (status == SHOAL_OK && job->input_paths[INPUT_GRAD_OUT]) {
        shoal_gradients gradients = {.out = out,
                                     .dout = input_part(job, INPUT_GRAD_OUT, slice),
                                     .dq = output_part(job, OUTPUT_GRAD_Q, slice),
                                     .dk = output_part(job, OUTPUT_GRAD_K, slice),
                                     .dv = output_part(job, OUTPUT_GRAD_V, slice)};
        status = shoal_backward(plan, inputs, &gradients);
    }
    job->seconds += seconds_now() - begun;
    return status;
}

/* Samples are spread evenly; over several slices the relative error is the root mean
   square of theirs. */
static shoal_status check_slice(attend_job *job, shoal_plan *plan, int64_t slice,
                                const shoal_inputs *inputs) {
    shoal_error error, *total = &job->error;
    if (job->check_samples == 0)
        return SHOAL_OK;
    int64_t samples = (job->check_samples + job->slices - 1) / job->slices;
    shoal_status status =
        shoal_error_estimate(plan, inputs, output_part(job, OUTPUT_OUT, slice), samples,
                             job->attention.seed + (uint64_t)slice, &error);
    if (status != SHOAL_OK)
        return status;
    double before = (double)total->samples, now = (double)error.samples;
    if (error.samples > 0)
        total->relative_error =
            before > 0 ? sqrt((before * total->relative_error * total->relative_error +
                               now * error.relative_error * error.relative_error) /
                              (before + now))
                       : error.relative_error;
    if (isnan(error.largest_error) || error.largest_error > total->largest_error)
        total->largest_error = error.largest_error;
    total->samples += error.samples;
    return SHOAL_OK;
}

static int run_slice(attend_job *job, const shoal_problem *part, shoal_plan *plan,
                     int64_t slice) {
    const shoal_inputs inputs = slice_inputs(job, slice);
    int code = compare_shared_keys(job, part, slice, &inputs);
    if (code != EXIT_OK)
        return code;
    shoal_status status = forward_and_backward(job, plan, slice, &inputs);
    if (status == SHOAL_OK) {
        keep(job, OUTPUT_GROUPS, slice, shoal_plan_groups(plan, NULL));
        keep(job, OUTPUT_TOP, slice, shoal_plan_top_keys(plan, NULL));
        shoal_plan_picked(plan, NULL, &job->picked);
        status = check_slice(job, plan, slice, &inputs);
    }
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "attend", job->context);
    if (job->slices > 1)
        give_back_inputs(job, slice);
    return EXIT_OK;
}

/* ---- All of them ------------------------------------------------------------------ */

static int run_slices(attend_job *job, const shoal_problem *part, shoal_plan *plan) {
    int code = EXIT_OK;
    for (int64_t slice = 0; slice < job->slices && code == EXIT_OK; slice++) {
        if (job->slices > 1)
            progress_say("%s: slice %" PRId64 " of %" PRId64, job->kind, slice + 1,
                         job->slices);
        else
            progress_say("%s", job->kind);
        code = run_slice(job, part, plan, slice);
    }
    return code;
}

int run_attention(attend_job *job) {
    shoal_problem part = job->problem;
    shoal_plan *plan;
    job->slices = 1;
    if (must_be_cut(job)) {
        job->slices = part.batch * part.kv_heads;
        part.heads /= part.kv_heads;
        part.batch = part.kv_heads = 1;
    }
    unsigned flags = job->input_paths[INPUT_GRAD_OUT] ? SHOAL_WITH_BACKWARD : 0;
    shoal_status status =
        shoal_plan_create(job->context, &part, &job->attention, flags, &plan);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "attend", job->context);
    job->workspace = shoal_plan_workspace(plan);
    int code = run_slices(job, &part, plan);
    shoal_plan_destroy(plan);
    return code;
}
