/* What is measured in which order. A layer at a time: full once, then every kind once,
   compared with it and its rows checked; then the kinds take turns on the clock, so that
   whatever else the machine does falls on all of them.

   A kind's weights for a sampled query come from exact/, with the groups and top keys
   that the library used. They are trusted because, applied to the values, they give the
   library's own output. */
#define _GNU_SOURCE
#include <float.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common.h"
#include "exact/exact.h"
#include "lab.h"
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

static shoal_inputs inputs_of(const folder_run *run) {
    return (shoal_inputs){.q = run->layer.arrays[ARRAY_Q].data,
                          .k = run->layer.arrays[ARRAY_K].data,
                          .v = run->layer.arrays[ARRAY_V].data};
}

static shoal_status call(const folder_run *run, int kind, float *out, double *seconds) {
    shoal_inputs inputs = inputs_of(run);
    if (kind_facts(&run->folder->attention[kind])->keys_are_queries)
        inputs.k = NULL;
    const double begun = seconds_now();
    const shoal_status status = shoal_forward(run->plans[kind], &inputs, out);
    *seconds = seconds_now() - begun;
    return status;
}

static double relative_error(const float *out, const float *exact, int64_t count) {
    squares sums = {0};
    for (int64_t i = 0; i < count; i++)
        squares_add(&sums, (double)out[i], (double)exact[i]);
    return squares_relative(sums);
}

static int fail_call(const folder_run *run, shoal_status status, int kind) {
    complain(EXIT_BAD_INPUT, "quality",
             "%s on %s, layer %d:", run->folder->spelling[kind], run->folder->path,
             run->folder->layer[run->at]);
    return complain_status(status, EXIT_BAD_INPUT, "quality", run->job->context);
}

/* ---- Rows of sampled queries ------------------------------------------------------- */

/* Room for one query. */
typedef struct {
    double *full; /* [S], full's weights */
    double *sums; /* [2][Dv], row V and row |V| */
    double score; /* the largest of the query's own scores, signs aside */
} row_work;

/* The largest difference of row V from the output, as a share of the largest row |V|. */
static double check_row(const exact_head *head, const row_work *work, const float *out) {
    const int64_t Dv = head->value_dim;
    double *sums = work->sums, *sizes = work->sums + Dv, worst = 0, size = 0;
    memset(sums, 0, 2 * (size_t)Dv * sizeof *sums);
    for (int64_t l = 0; l < head->keys; l++)
        for (int64_t d = 0; d < Dv; d++) {
            sums[d] += head->weights[l] * head->v[l * Dv + d];
            sizes[d] += head->weights[l] * fabs(head->v[l * Dv + d]);
        }
    for (int64_t d = 0; d < Dv; d++) {
        const double difference = fabs(sums[d] - (double)out[d]);
        worst = isnan(difference) ? INFINITY : fmax(worst, difference);
        size = fmax(size, sizes[d]);
    }
    /* Rounding of scores, which are exponents, grows with them. */
    const double growth = 1 +
                          4 * (double)FLT_EPSILON * work->score / QUALITY_ROW_TOLERANCE;
    return worst == 0 ? 0 : worst / (size * growth);
}

static int64_t strongest(const double *row, int64_t count) {
    int64_t best = 0;
    for (int64_t l = 1; l < count; l++)
        if (row[l] > row[best])
            best = l;
    return best;
}

/* full's weights for query i of the same head. */
static void fill_full(exact_head *head, int64_t i, row_work *work) {
    const shoal_attention kept = head->attention;
    head->attention.kind = SHOAL_FULL;
    memcpy(work->full, exact_row(head, i), (size_t)head->keys * sizeof *work->full);
    head->attention = kept;
    work->score = 0;
    for (int64_t l = 0; l < head->keys; l++)
        work->score = fmax(work->score, fabs(head->scores[l]));
}

/* Adds what the kind's weights for query i say. out: [Dv], what it computed. */
static void add_row(exact_head *head, int64_t i, row_work *work, const float *out,
                    quality_cell *cell) {
    double *const metrics = cell->value;
    fill_full(head, i, work);
    exact_row(head, i);
    /* Two keys that single precision may see the other way round tell nothing. */
    if (head->margin > 1e-5 * (1 + work->score))
        metrics[METRIC_ROW_CHECK] =
            fmax(metrics[METRIC_ROW_CHECK], check_row(head, work, out));
    for (int64_t l = 0; l < head->keys; l++)
        metrics[METRIC_ROW_L1] += fabs(head->weights[l] - work->full[l]);
    metrics[METRIC_AGREEMENT] += strongest(head->weights, head->keys) ==
                                 strongest(work->full, head->keys);
}

/* Fills the three metrics of rows; they are NAN where the plan does not tell what it
   chose. False when memory ran out. */
static bool measure_rows(const folder_run *run, int kind, const float *out,
                         quality_cell *cell) {
    const shoal_problem *problem = &run->folder->problem;
    const shoal_inputs inputs = inputs_of(run);
    const int64_t N = problem->queries, count = run->folder->samples;
    row_work work = {.full = malloc((size_t)problem->keys * sizeof(double)),
                     .sums = malloc(2 * (size_t)problem->value_dim * sizeof(double))};
    exact_head *head = NULL;
    bool fine = work.full && work.sums, known = true;
    double *const metrics = cell->value;
    metrics[METRIC_ROW_L1] = metrics[METRIC_AGREEMENT] = metrics[METRIC_ROW_CHECK] = 0;
    for (int64_t s = 0; s < count && fine && known; s++) {
        const int64_t at = run->queries[s] / N;
        if (s == 0 || at != run->queries[s - 1] / N) {
            exact_destroy(head);
            head = exact_load(problem, &inputs, run->plans[kind],
                              &run->folder->attention[kind], at / problem->heads,
                              at % problem->heads);
        }
        fine = head != NULL;
        known = fine && exact_is_known(head);
        if (known)
            add_row(head, run->queries[s] % N, &work,
                    out + run->queries[s] * problem->value_dim, cell);
    }
    exact_destroy(head);
    free(work.full);
    free(work.sums);
    metrics[METRIC_ROW_L1] /= known ? (double)count : NAN;
    metrics[METRIC_AGREEMENT] /= known ? (double)count : NAN;
    metrics[METRIC_ROW_CHECK] /= known ? 1 : NAN;
    return fine;
}

/* ---- Which queries ----------------------------------------------------------------- */

static double random_share(uint64_t seed, uint64_t counter) {
    const uint64_t bits =
        mix_bits((counter + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u);
    return (double)(bits >> 11) * 0x1p-53;
}

/* Selection sampling: each is taken with the probability still wanted / still left. */
static void sample(int64_t total, int64_t count, uint64_t seed, int64_t *chosen) {
    int64_t taken = 0;
    for (int64_t i = 0; i < total && taken < count; i++)
        if ((double)(total - i) * random_share(seed, (uint64_t)i) <
            (double)(count - taken))
            chosen[taken++] = i;
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
    if (!measure_rows(run, kind, out, cell_of(run, kind)))
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
    run->digests[kind] = fold_floats(1, out, run->count);
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
    if (fold_floats(1, run->out, run->count) != run->digests[kind])
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
    sample(problem->batch * problem->heads * problem->queries, run->folder->samples,
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
        /* shoal-C tells what it chose only where backward will ask for it. */
        const shoal_attention *attention = &folder->attention[kind];
        const unsigned flags = attention->kind == SHOAL_SHOAL ? SHOAL_WITH_BACKWARD : 0;
        const shoal_status status = shoal_plan_create(run->job->context, problem,
                                                      attention, flags,
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
