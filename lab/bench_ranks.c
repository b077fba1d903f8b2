/* shoal bench under a launcher: each rank has a run of the positions, and the first one
   has the whole as well. One process alone (the first rank, while the others wait) and
   all ranks together take turns, so that both times are of the same minutes. What the
   ranks make must be what the one process makes: the same groups, outputs and gradients
   to rounding. Beside the times stand the bytes that a rank sends. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "bench.h"
#include "common.h"
#include "lab.h"
#include "ranks.h"

/* How far ranks may be from one process. */
static const double out_tolerance = 1e-5, gradient_tolerance = 1e-4;

/* A call this long needs no warming up: the verified one counts as a repetition. */
static const double long_call = 1;

/* What is called: the attention, or the layer around it. */
typedef struct {
    bench_data data;
    shoal_plan *plan;
    bench_layer layer;
} subject;

typedef struct {
    bool measured;
    double alone, together; /* seconds, the best */
    double workspace;       /* bytes of a rank's plan or model, the most */
    int64_t sent;           /* bytes by a rank in one call, the most */
    squares out, gradients, groups;
} ranks_row;

typedef struct {
    bench_job *job;
    shoal_transport *over;
    int at; /* which length */
    subject whole, part;
    ranks_row rows[BENCH_LENGTHS][BENCH_KINDS];
} ranks_run;

static int64_t first_of(const ranks_run *run, int rank) {
    return rank * run->job->length[run->at] / run->over->ranks;
}

static bool is_first(const ranks_run *run) {
    return run->over->rank == 0;
}

/* ---- Calls ------------------------------------------------------------------------- */

static shoal_status make_subject(const bench_job *job, int kind, shoal_transport *over,
                                 subject *made) {
    const shoal_problem problem = bench_problem(&made->data);
    const unsigned flags = job->train ? SHOAL_WITH_BACKWARD : 0;
    const shoal_attention *attention = &job->attention[kind];
    if (job->layer)
        return bench_layer_create(job, &made->data, kind, over, &made->layer);
    return over
               ? shoal_plan_create_over(over, job->context, &problem, attention, flags,
                                        &made->plan)
               : shoal_plan_create(job->context, &problem, attention, flags, &made->plan);
}

static void destroy_subject(subject *made) {
    shoal_plan_destroy(made->plan);
    bench_layer_destroy(&made->layer);
    made->plan = NULL;
}

static shoal_status call_subject(const bench_job *job, int kind, subject *made,
                                 double *seconds) {
    return job->layer
               ? bench_layer_call(&made->layer, &made->data, seconds)
               : bench_call(made->plan, &made->data, &job->attention[kind], seconds);
}

static uint64_t digest_of(const bench_job *job, const subject *made) {
    return job->layer ? bench_layer_digest(&made->layer, &made->data)
                      : bench_digest(&made->data);
}

/* What one rank alone did: a failure becomes everybody's. */
static int share_status(const ranks_run *run, shoal_status status) {
    const int code = status == SHOAL_OK ? EXIT_OK
                                        : complain_status(status, EXIT_USAGE, "bench",
                                                          run->job->context);
    return ranks_follow(run->over, code);
}

/* The largest of what the ranks have. */
static double largest(const ranks_run *run, double mine) {
    double *all = malloc(sizeof *all * (size_t)run->over->ranks), most = NAN;
    if (all && run->over->gather(run->over, sizeof mine, &mine, all) == SHOAL_OK) {
        most = mine;
        for (int p = 0; p < run->over->ranks; p++)
            most = fmax(most, all[p]);
    }
    free(all);
    return most;
}

static bool first_says(const ranks_run *run, bool what) {
    return largest(run, is_first(run) && what) != 0;
}

/* One call of each; the times replace longer ones. */
static int take_turn(ranks_run *run, int kind, ranks_row *row) {
    const bench_job *job = run->job;
    double alone = 0, together = 0;
    shoal_status status = SHOAL_OK;
    if (is_first(run))
        status = call_subject(job, kind, &run->whole, &alone);
    const int code = share_status(run, status);
    if (code != EXIT_OK)
        return code;
    const int64_t before = run->over->sent;
    status = call_subject(job, kind, &run->part, &together);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, "bench", job->context);
    row->sent = (int64_t)largest(run, (double)(run->over->sent - before));
    row->alone = fmin(row->alone, alone);
    row->together = fmin(row->together, largest(run, together));
    return EXIT_OK;
}

/* ---- Comparing --------------------------------------------------------------------- */

typedef void compare_function(const void *theirs, const void *own, int64_t count,
                              squares *sums);

static void compare_floats(const void *theirs, const void *own, int64_t count,
                           squares *sums) {
    for (int64_t i = 0; i < count; i++)
        squares_add(sums, (double)((const float *)theirs)[i],
                    (double)((const float *)own)[i]);
}

static void compare_integers(const void *theirs, const void *own, int64_t count,
                             squares *sums) {
    for (int64_t i = 0; i < count; i++)
        squares_add(sums, ((const int32_t *)theirs)[i], ((const int32_t *)own)[i]);
}

/* Rows of four bytes a feature: part [units][rows of this rank][features] of every rank,
   beside whole [units][N][features], which the first one has. */
typedef struct {
    const void *part, *whole;
    int64_t units, features;
    compare_function *compare;
    squares *sums;
} comparison;

/* Unit by unit everybody's rows come to the first rank. */
static shoal_status compare_rows(const ranks_run *run, const comparison *c) {
    const int64_t row = 4 * c->features, N = run->job->length[run->at];
    const int64_t own = run->part.data.length;
    const int ranks = run->over->ranks;
    int64_t *sizes = calloc(2 * (size_t)ranks, sizeof *sizes);
    char *unit = malloc(is_first(run) ? (size_t)(N * row) : 1);
    shoal_status status = sizes && unit ? SHOAL_OK : SHOAL_NO_MEMORY;
    if (status == SHOAL_OK)
        sizes[0] = own * row;
    for (int p = 0; p < ranks && status == SHOAL_OK && is_first(run); p++)
        sizes[ranks + p] = (first_of(run, p + 1) - first_of(run, p)) * row;
    for (int64_t u = 0; u < c->units && status == SHOAL_OK; u++) {
        status = run->over->exchange(run->over, sizes,
                                     (const char *)c->part + u * own * row, sizes + ranks,
                                     unit);
        if (status == SHOAL_OK && is_first(run))
            c->compare(unit, (const char *)c->whole + u * N * row, N * c->features,
                       c->sums);
    }
    free(unit);
    free(sizes);
    return status;
}

static shoal_status compare_attention(ranks_run *run, ranks_row *row) {
    const bench_data *part = &run->part.data, *whole = &run->whole.data;
    const int64_t units = part->batch * part->heads;
    const int32_t *groups = shoal_plan_groups(run->part.plan, NULL);
    const int32_t *all = is_first(run) ? shoal_plan_groups(run->whole.plan, NULL) : NULL;
    const int64_t D = part->dim, Dv = part->value_dim;
    const comparison rows[] =
        {{part->out, whole->out, units, Dv, compare_floats, &row->out},
         {groups, all, groups ? units : 0, 1, compare_integers, &row->groups},
         {part->dq, whole->dq, units, D, compare_floats, &row->gradients},
         {part->dk, whole->dk, units, D, compare_floats, &row->gradients},
         {part->dv, whole->dv, units, Dv, compare_floats, &row->gradients}};
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < (part->train ? 5 : 2) && status == SHOAL_OK; i++)
        status = compare_rows(run, &rows[i]);
    return status;
}

/* The parameters' gradients: the sum of the ranks' beside one process's. */
static shoal_status compare_parameters(const ranks_run *run, ranks_row *row) {
    float *mine, *expected = NULL;
    const int64_t count = shoal_model_vectors(run->part.layer.model, NULL, &mine);
    float *sum = malloc(sizeof *sum * (size_t)count);
    if (!sum)
        return SHOAL_NO_MEMORY;
    memcpy(sum, mine, sizeof *sum * (size_t)count);
    const shoal_status status = run->over->sum(run->over, SHOAL_SUM_FLOAT, count, sum);
    if (is_first(run))
        shoal_model_vectors(run->whole.layer.model, NULL, &expected);
    if (status == SHOAL_OK && expected)
        compare_floats(sum, expected, count, &row->gradients);
    free(sum);
    return status;
}

static shoal_status compare_layer(ranks_run *run, ranks_row *row) {
    const bench_data *part = &run->part.data, *whole = &run->whole.data;
    const int64_t model = part->heads * part->dim;
    const comparison out = {run->part.layer.out, run->whole.layer.out,
                            part->batch,         model,
                            compare_floats,      &row->out};
    const comparison dx = {part->dfeatures, whole->dfeatures, part->batch,
                           model,           compare_floats,   &row->gradients};
    shoal_status status = compare_rows(run, &out);
    if (status == SHOAL_OK && part->train)
        status = compare_rows(run, &dx);
    return status == SHOAL_OK && part->train ? compare_parameters(run, row) : status;
}

/* Both were called once. */
static int compare(ranks_run *run, ranks_row *row) {
    const shoal_status status = run->job->layer ? compare_layer(run, row)
                                                : compare_attention(run, row);
    if (status == SHOAL_OK)
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "bench", "the ranks' results cannot be compared: %s",
                    status == SHOAL_NO_MEMORY ? "out of memory" : run->over->message);
}

static bool is_right(const ranks_row *row) {
    return squares_relative(row->out) <= out_tolerance &&
           squares_relative(row->gradients) <= gradient_tolerance &&
           squares_relative(row->groups) == 0;
}

/* ---- One kind at one length -------------------------------------------------------- */

static size_t workspace_of(const bench_job *job, const subject *made) {
    return job->layer ? bench_layer_workspace(&made->layer)
                      : shoal_plan_workspace(made->plan);
}

static int measure(ranks_run *run, int kind, ranks_row *row) {
    bench_job *job = run->job;
    shoal_status status = SHOAL_OK;
    if (is_first(run))
        status = make_subject(job, kind, NULL, &run->whole);
    int code = share_status(run, status);
    if (code != EXIT_OK)
        return code;
    status = make_subject(job, kind, run->over, &run->part);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, "bench", job->context);
    *row = (ranks_row){.alone = INFINITY, .together = INFINITY};
    code = take_turn(run, kind, row); /* is verified */
    const uint64_t digest = code == EXIT_OK ? digest_of(job, &run->part) : 0;
    if (code == EXIT_OK)
        code = compare(run, row);
    if (code != EXIT_OK)
        return code;
    const bool counts = first_says(run, row->alone >= long_call);
    if (!counts)
        row->alone = row->together = INFINITY;
    for (int64_t i = counts; i < job->repeats && code == EXIT_OK; i++)
        code = take_turn(run, kind, row);
    if (code != EXIT_OK)
        return code;
    row->workspace = largest(run, (double)workspace_of(job, &run->part));
    const bool same = largest(run, digest != digest_of(job, &run->part)) == 0;
    row->measured = same && !first_says(run, !is_right(row));
    job->any_wrong |= !row->measured;
    return EXIT_OK;
}

/* ---- The table --------------------------------------------------------------------- */

static void print_heading(const ranks_run *run) {
    bench_print_subject(run->job);
    printf("%d ranks; alone: the first of them with all positions\n\n",
           (int)run->over->ranks);
    printf("%8s  %-24s %10s %10s %7s %10s %10s %9s\n", "N", "kind", "alone ms",
           "ranks ms", "times", "sent", "memory", "apart");
}

static void print_row(const ranks_run *run, int kind) {
    const bench_job *job = run->job;
    const ranks_row *row = &run->rows[run->at][kind];
    printf("%8" PRId64 "  %-24s", job->length[run->at], job->spelling[kind]);
    if (row->measured)
        printf(" %10.2f %10.2f %7.2f %10s", row->alone * 1e3, row->together * 1e3,
               row->alone / row->together, bytes_text((double)row->sent));
    if (row->measured)
        printf(" %10s %9.1e\n", bytes_text(row->workspace), squares_relative(row->out));
    else
        printf(" WRONG: outputs are %.1e, gradients %.1e, groups %.1e apart\n",
               squares_relative(row->out), squares_relative(row->gradients),
               squares_relative(row->groups));
    fflush(stdout);
}

static int print_result(const ranks_run *run) {
    const bench_job *job = run->job;
    json_t *rows = json_array();
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds; kind++) {
            const ranks_row *row = &run->rows[at][kind];
            if (row->together == 0)
                continue;
            json_array_append_new(
                rows,
                json_pack("{s:I, s:s, s:b, s:o, s:o, s:I, s:o, s:o, s:o, s:b}", "length",
                          (json_int_t)job->length[at], "kind", job->spelling[kind],
                          "verified", row->measured, "alone_seconds",
                          json_number(row->alone), "seconds", json_number(row->together),
                          "sent_bytes", (json_int_t)row->sent, "workspace_bytes",
                          json_number(row->workspace), "relative_error",
                          json_number(squares_relative(row->out)), "gradient_error",
                          json_number(squares_relative(row->gradients)), "same_groups",
                          squares_relative(row->groups) == 0));
        }
    return print_json(json_pack("{s:s, s:i, s:i, s:s, s:s, s:o}", "shoal",
                                shoal_version(), "ranks", (int)run->over->ranks,
                                "threads", shoal_context_threads(job->context), "mode",
                                job->train ? "train" : "forward", "scope",
                                job->layer ? "layer" : "attention", "rows", rows));
}

/* ---- The road ---------------------------------------------------------------------- */

/* What all calls of a kind will take, from the length before; 0: not known. */
static double expected_seconds(const ranks_run *run, int kind) {
    const bench_job *job = run->job;
    const ranks_row *before = run->at > 0 ? &run->rows[run->at - 1][kind] : NULL;
    if (!before || !before->measured)
        return 0;
    return (before->alone + before->together) * (double)(job->repeats + 1) *
           bench_operations(job, kind, job->length[run->at]) /
           bench_operations(job, kind, job->length[run->at - 1]);
}

static bool has_time(const ranks_run *run, int kind) {
    const bench_job *job = run->job;
    const double left = (double)job->budget - (seconds_now() - job->begun);
    return !first_says(run, expected_seconds(run, kind) > left);
}

static int run_kind(ranks_run *run, int kind) {
    bench_job *job = run->job;
    if (!has_time(run, kind)) {
        if (is_first(run) && !job->json)
            printf("%8" PRId64 "  %-24s left out: --budget is over\n",
                   job->length[run->at], job->spelling[kind]);
        return EXIT_OK;
    }
    const int code = measure(run, kind, &run->rows[run->at][kind]);
    destroy_subject(&run->whole);
    destroy_subject(&run->part);
    if (code == EXIT_OK && is_first(run) && !job->json)
        print_row(run, kind);
    return code;
}

static int run_length(ranks_run *run) {
    bench_job *job = run->job;
    const int64_t N = job->length[run->at], first = first_of(run, run->over->rank);
    const bool part = bench_data_create_part(&run->part.data, job, N, first,
                                             first_of(run, run->over->rank + 1) - first);
    const bool whole = !is_first(run) || bench_data_create(&run->whole.data, job, N);
    int code = largest(run, !part || !whole) == 0
                   ? EXIT_OK
                   : complain(EXIT_RESOURCES, "bench",
                              "a rank has not enough memory for N = %" PRId64, N);
    for (int kind = 0; kind < job->kinds && code == EXIT_OK; kind++)
        code = run_kind(run, kind);
    bench_data_destroy(&run->part.data);
    bench_data_destroy(&run->whole.data);
    return code;
}

int bench_over_ranks(bench_job *job) {
    ranks_run *run = calloc(1, sizeof *run);
    int code = EXIT_OK;
    if (!run)
        return complain(EXIT_RESOURCES, "bench", "out of memory");
    run->job = job;
    run->over = job->ranks;
    job->begun = seconds_now();
    if (is_first(run) && !job->json)
        print_heading(run);
    for (; run->at < job->lengths && code == EXIT_OK; run->at++)
        code = run_length(run);
    if (code == EXIT_OK && is_first(run) && job->json)
        code = print_result(run);
    free(run);
    return code == EXIT_OK && job->any_wrong ? 1 : code;
}
