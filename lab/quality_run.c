/* What is measured in which order. A layer at a time: full once, then every kind once,
   compared with it and its rows checked; then the kinds take turns on the clock, so that
   whatever else the machine does falls on all of them. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "quality.h"

typedef struct {
    quality_job *job;
    quality_folder *folder;
    int at; /* which of the folder's layers */
    quality_layer layer;
    int64_t count;      /* elements of an output: B H N Dv */
    float *exact, *out; /* [B][H][N][Dv] */
    int64_t *queries;   /* [samples] indices into [B][H][N] */
    shoal_plan *plans[QUALITY_KINDS];
    uint64_t digests[QUALITY_KINDS]; /* of the output that was compared */
} folder_run;

/* ---- Calls ------------------------------------------------------------------------- */

static quality_cell *cell_of(const folder_run *run, int kind) {
    return &run->folder->cells[run->at][kind];
}

static shoal_status call(const folder_run *run, int kind, float *out, double *seconds) {
    const shoal_kind name = run->folder->attention[kind].kind;
    const bool shares_keys = name == SHOAL_SHARED_FULL || name == SHOAL_LSH;
    const shoal_inputs inputs = {.q = run->layer.arrays[ARRAY_Q].data,
                                 .k = shares_keys ? NULL
                                                  : run->layer.arrays[ARRAY_K].data,
                                 .v = run->layer.arrays[ARRAY_V].data};
    const double begun = seconds_now();
    const shoal_status status = shoal_forward(run->plans[kind], &inputs, out);
    *seconds = seconds_now() - begun;
    return status;
}

/* Of the bits of an output; any change of any of them changes it. */
static uint64_t digest_of(const float *out, int64_t count) {
    uint64_t digest = 1;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, out + i, sizeof bits);
        digest = (digest ^ bits) * 0x100000001b3u;
    }
    return digest;
}

static double relative_error(const float *out, const float *exact, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double away = (double)out[i] - (double)exact[i];
        difference += away * away;
        size += (double)exact[i] * (double)exact[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

static int fail_call(const folder_run *run, shoal_status status, int kind) {
    complain(EXIT_BAD_INPUT, "quality",
             "%s on %s, layer %d:", run->folder->spelling[kind], run->folder->path,
             run->folder->layer[run->at]);
    return complain_status(status, EXIT_BAD_INPUT, "quality", run->job->context);
}

/* ---- Quality ----------------------------------------------------------------------- */

/* The rows are right when, applied to V, they give the output; if not, no figure that
   comes from them or from the output is worth printing. */
static int trust_rows(const folder_run *run, int kind) {
    const double check = cell_of(run, kind)->value[METRIC_ROW_CHECK];
    if (isnan(check) || check <= QUALITY_ROW_TOLERANCE)
        return EXIT_OK;
    return complain(
        EXIT_FAILURE, "quality",
        "WRONG: %s on %s, layer %d: its attention rows, applied to V, are %.2g "
        "away from the output (allowed: %.0e); please report it",
        run->folder->spelling[kind], run->folder->path, run->folder->layer[run->at],
        check, QUALITY_ROW_TOLERANCE);
}

static int compare_rows(folder_run *run, int kind, const float *out) {
    const quality_folder *folder = run->folder;
    const quality_call done = {.attention = &folder->attention[kind],
                               .problem = &folder->problem,
                               .q = run->layer.arrays[ARRAY_Q].data,
                               .k = run->layer.arrays[ARRAY_K].data,
                               .v = run->layer.arrays[ARRAY_V].data,
                               .out = out,
                               .groups = shoal_plan_groups(run->plans[kind], NULL),
                               .top_keys = shoal_plan_top_keys(run->plans[kind], NULL)};
    if (!quality_rows(&done, run->queries, folder->samples, cell_of(run, kind)))
        return complain(EXIT_RESOURCES, "quality", "out of memory");
    return trust_rows(run, kind);
}

static int compare_kind(folder_run *run, int kind) {
    float *out = kind == run->job->reference ? run->exact : run->out;
    double seconds;
    progress_say("%s, layer %d: comparing %s", run->folder->title,
                 run->folder->layer[run->at], run->folder->spelling[kind]);
    const shoal_status status = call(run, kind, out, &seconds);
    if (status != SHOAL_OK)
        return fail_call(run, status, kind);
    run->digests[kind] = digest_of(out, run->count);
    cell_of(run, kind)->value[METRIC_ERROR] = relative_error(out, run->exact, run->count);
    cell_of(run, kind)->value[METRIC_SECONDS] = INFINITY;
    return compare_rows(run, kind, out);
}

static int compare_all(folder_run *run) {
    const int reference = run->job->reference;
    int code = compare_kind(run, reference);
    for (int kind = 0; kind < run->job->kinds && code == EXIT_OK; kind++)
        if (kind != reference && !stop_signal())
            code = compare_kind(run, kind);
    return code;
}

/* ---- Time -------------------------------------------------------------------------- */

static int take_turn(folder_run *run, int kind) {
    double seconds, *best = &cell_of(run, kind)->value[METRIC_SECONDS];
    const shoal_status status = call(run, kind, run->out, &seconds);
    if (status != SHOAL_OK)
        return fail_call(run, status, kind);
    if (digest_of(run->out, run->count) != run->digests[kind])
        return complain(EXIT_FAILURE, "quality",
                        "WRONG: %s on %s, layer %d: the same call gave another output; "
                        "please report it",
                        run->folder->spelling[kind], run->folder->path,
                        run->folder->layer[run->at]);
    *best = fmin(*best, seconds);
    return EXIT_OK;
}

static int time_all(folder_run *run) {
    int code = EXIT_OK;
    for (int64_t repeat = 0; repeat < run->job->repeats; repeat++) {
        progress_say("%s, layer %d: timing, %" PRId64 " of %" PRId64, run->folder->title,
                     run->folder->layer[run->at], repeat + 1, run->job->repeats);
        for (int kind = 0; kind < run->job->kinds && code == EXIT_OK; kind++)
            if (!stop_signal())
                code = take_turn(run, kind);
    }
    return code;
}

/* ---- A folder ---------------------------------------------------------------------- */

static int measure_layer(folder_run *run) {
    const shoal_problem *problem = &run->folder->problem;
    progress_say("%s, layer %d: reading", run->folder->title,
                 run->folder->layer[run->at]);
    int code = quality_read(run->job, run->folder, run->at, &run->layer);
    quality_sample(problem->batch * problem->heads * problem->queries,
                   run->folder->samples,
                   run->job->seed + (uint64_t)run->folder->layer[run->at], run->queries);
    if (code == EXIT_OK)
        code = compare_all(run);
    if (code == EXIT_OK)
        code = time_all(run);
    quality_release(&run->layer);
    if (code == EXIT_OK && !stop_signal())
        run->folder->done++;
    return code;
}

static int prepare(folder_run *run) {
    const quality_folder *folder = run->folder;
    const shoal_problem *problem = &folder->problem;
    run->count = problem->batch * problem->heads * problem->queries * problem->value_dim;
    run->exact = malloc((size_t)run->count * sizeof *run->exact);
    run->out = malloc((size_t)run->count * sizeof *run->out);
    run->queries = malloc((size_t)folder->samples * sizeof *run->queries);
    if (!run->exact || !run->out || !run->queries)
        return complain(EXIT_RESOURCES, "quality", "out of memory");
    for (int kind = 0; kind < run->job->kinds; kind++) {
        const shoal_status status = shoal_plan_create(run->job->context, problem,
                                                      &folder->attention[kind], 0,
                                                      &run->plans[kind]);
        if (status != SHOAL_OK)
            return fail_call(run, status, kind);
    }
    return EXIT_OK;
}

int quality_measure(quality_job *job, quality_folder *folder) {
    folder_run run = {.job = job, .folder = folder};
    progress_begin(1);
    int code = prepare(&run);
    for (; run.at < folder->layers && code == EXIT_OK && !stop_signal(); run.at++)
        code = measure_layer(&run);
    progress_end();
    for (int kind = 0; kind < job->kinds; kind++)
        shoal_plan_destroy(run.plans[kind]);
    free(run.exact);
    free(run.out);
    free(run.queries);
    return code;
}
