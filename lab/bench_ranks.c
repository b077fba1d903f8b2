/* shoal bench under a launcher: each rank has a contiguous part of the positions, and
   rank 0 also has all of them. Calls of rank 0 alone (while the others wait) and of all
   ranks together alternate, so that both are timed under the same conditions. Their
   results must agree: the same clusters, and outputs and gradients up to rounding. The
   table has the bytes that a rank sends. */
#include "bench.h"

/* Maximum relative difference between several ranks and one process. */
static const double out_tolerance = 1e-5, gradient_tolerance = 1e-4;

/* A call of this length needs no warm-up: the verified call counts as a repetition. */
static const double long_call = 1;

typedef struct {
    bench_data data;
    bench_subject called;
} side;

typedef struct {
    bool measured;
    double alone, together; /* seconds, best call */
    double workspace;       /* bytes of the plan or model, maximum over ranks */
    int64_t sent;           /* bytes sent per call, maximum over ranks */
    squares out, gradients, groups;
} ranks_row;

typedef struct {
    bench_job *job;
    shoal_transport *over;
    int at; /* index of the length */
    side whole, part;
    ranks_row rows[BENCH_LENGTHS][BENCH_KINDS];
} ranks_run;

static int64_t first_of(const ranks_run *run, int rank) {
    return rank * run->job->length[run->at] / run->over->ranks;
}

static bool is_first(const ranks_run *run) {
    return run->over->rank == 0;
}

/* ---- Calls ------------------------------------------------------------------------- */

/* Maximum over the ranks. */
static double largest(const ranks_run *run, double mine) {
    double *all = reserve((size_t)run->over->ranks, sizeof *all), most = NAN;
    if (run->over->gather(run->over, sizeof mine, &mine, all) == SHOAL_OK) {
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

/* Calls each once and keeps the shorter times. */
static void take_turn(ranks_run *run, int kind, ranks_row *row) {
    const bench_job *job = run->job;
    double alone = 0;
    first_alone_begin(run->over);
    if (is_first(run))
        alone = bench_subject_call(job, &run->whole.called, &run->whole.data, kind);
    first_alone_end(run->over);
    const int64_t before = run->over->sent;
    const double together =
        bench_subject_call(job, &run->part.called, &run->part.data, kind);
    row->sent = (int64_t)largest(run, (double)(run->over->sent - before));
    row->alone = fmin(row->alone, alone);
    row->together = fmin(row->together, largest(run, together));
}

/* ---- Comparing --------------------------------------------------------------------- */

/* Rows of four-byte elements, floats or integers: part [units][rows of this rank]
   [features] on every rank, and whole [units][N][features] on rank 0. */
typedef struct {
    const void *part, *whole;
    int64_t units, features;
    bool integers;
    squares *sums;
} comparison;

static _Noreturn void cannot_compare(const ranks_run *run) {
    die(EXIT_RESOURCES, "cannot compare the ranks' results: %s", run->over->message);
}

/* Rank 0 receives the rows of all ranks unit by unit. */
static void compare_rows(const ranks_run *run, const comparison *c) {
    const int64_t row = 4 * c->features, N = run->job->length[run->at];
    const int64_t own = run->part.data.length;
    const int ranks = run->over->ranks;
    int64_t *sizes = reserve_zeros(2 * (size_t)ranks, sizeof *sizes);
    char *unit = reserve(is_first(run) ? (size_t)N : 1, (size_t)row);
    sizes[0] = own * row;
    for (int p = 0; p < ranks && is_first(run); p++)
        sizes[ranks + p] = (first_of(run, p + 1) - first_of(run, p)) * row;
    for (int64_t u = 0; u < c->units; u++) {
        if (run->over->exchange(run->over, sizes, (const char *)c->part + u * own * row,
                                sizes + ranks, unit) != SHOAL_OK)
            cannot_compare(run);
        if (!is_first(run))
            continue;
        const void *theirs = unit, *mine = (const char *)c->whole + u * N * row;
        if (!c->integers)
            squares_add_floats(c->sums, theirs, mine, N * c->features);
        for (int64_t i = 0; i < N * c->features && c->integers; i++)
            squares_add(c->sums, ((const int32_t *)theirs)[i],
                        ((const int32_t *)mine)[i]);
    }
    free(unit);
    free(sizes);
}

static void compare_attention(ranks_run *run, ranks_row *row) {
    const bench_data *part = &run->part.data, *whole = &run->whole.data;
    const int64_t units = part->batch * part->heads;
    const int32_t *groups = shoal_plan_clusters(run->part.called.plan, NULL);
    const int32_t *all = is_first(run) ? shoal_plan_clusters(run->whole.called.plan, NULL)
                                       : NULL;
    const int64_t D = part->dim, Dv = part->value_dim;
    const comparison rows[] = {{part->out, whole->out, units, Dv, false, &row->out},
                               {groups, all, groups ? units : 0, 1, true, &row->groups},
                               {part->dq, whole->dq, units, D, false, &row->gradients},
                               {part->dk, whole->dk, units, D, false, &row->gradients},
                               {part->dv, whole->dv, units, Dv, false, &row->gradients}};
    for (int i = 0; i < (part->train ? 5 : 2); i++)
        compare_rows(run, &rows[i]);
}

/* Gradients of the parameters are summed over the ranks. */
static void compare_layer(ranks_run *run, ranks_row *row) {
    const bench_data *part = &run->part.data, *whole = &run->whole.data;
    const bench_layer *layer = &run->part.called.layer;
    const int64_t model = part->heads * part->dim;
    const comparison rows[] = {{layer->out, run->whole.called.layer.out, part->batch,
                                model, false, &row->out},
                               {part->dfeatures, whole->dfeatures, part->batch, model,
                                false, &row->gradients}};
    compare_rows(run, &rows[0]);
    if (!part->train)
        return;
    compare_rows(run, &rows[1]);
    float *mine, *expected = NULL;
    const int64_t count = shoal_model_vectors(layer->model, NULL, &mine);
    float *sum = reserve((size_t)count, sizeof *sum);
    memcpy(sum, mine, sizeof *sum * (size_t)count);
    if (run->over->sum(run->over, SHOAL_SUM_TYPE_FLOAT, count, sum) != SHOAL_OK)
        cannot_compare(run);
    if (is_first(run)) {
        shoal_model_vectors(run->whole.called.layer.model, NULL, &expected);
        squares_add_floats(&row->gradients, sum, expected, count);
    }
    free(sum);
}

/* ---- One kind at one length -------------------------------------------------------- */

static void measure(ranks_run *run, int kind, ranks_row *row) {
    bench_job *job = run->job;
    const side *part = &run->part;
    first_alone_begin(run->over);
    if (is_first(run))
        bench_subject_create(job, &run->whole.data, kind, NULL, &run->whole.called);
    first_alone_end(run->over);
    bench_subject_create(job, &part->data, kind, run->over, &run->part.called);
    *row = (ranks_row){.alone = INFINITY, .together = INFINITY};
    take_turn(run, kind, row); /* this call is verified */
    const uint64_t digest = bench_subject_digest(job, &part->called, &part->data);
    if (job->layer)
        compare_layer(run, row);
    else
        compare_attention(run, row);
    const bool counts = first_says(run, row->alone >= long_call);
    if (!counts)
        row->alone = row->together = INFINITY;
    for (int64_t i = counts; i < job->repeats; i++)
        take_turn(run, kind, row);
    row->workspace = largest(run, (double)bench_subject_workspace(job, &part->called));
    const bool same = largest(run, digest != bench_subject_digest(job, &part->called,
                                                                  &part->data)) == 0;
    const bool right = squares_relative(row->out) <= out_tolerance &&
                       squares_relative(row->gradients) <= gradient_tolerance &&
                       squares_relative(row->groups) == 0;
    row->measured = same && !first_says(run, !right);
    job->any_wrong |= !row->measured;
    bench_subject_destroy(&run->whole.called);
    bench_subject_destroy(&run->part.called);
}

/* ---- The table --------------------------------------------------------------------- */

static int print_result(const ranks_run *run) {
    const bench_job *job = run->job;
    json_t *rows = json_array();
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds.count; kind++) {
            const ranks_row *row = &run->rows[at][kind];
            if (row->together == 0)
                continue;
            json_array_append_new(
                rows,
                json_pack("{s:I, s:s, s:b, s:o, s:o, s:I, s:o, s:o, s:o, s:b}", "length",
                          (json_int_t)job->length[at], "kind", job->kinds.names[kind],
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

/* ---- Measurement ------------------------------------------------------------------ */

static void run_kind(ranks_run *run, int kind) {
    bench_job *job = run->job;
    const bool prints = is_first(run) && !job->json;
    const double left = (double)job->budget - (seconds_now() - job->begun);
    const ranks_row *before = run->at > 0 ? &run->rows[run->at - 1][kind] : NULL;
    double expected = 0; /* seconds of all calls, from the previous length; 0 if
                            unknown */
    if (before && before->measured)
        expected = (before->alone + before->together) * (double)(job->repeats + 1) *
                   bench_operations(job, kind, job->length[run->at]) /
                   bench_operations(job, kind, job->length[run->at - 1]);
    if (first_says(run, expected > left)) {
        if (prints)
            printf("%8" PRId64 "  %-24s skipped: the budget is used up\n",
                   job->length[run->at], job->kinds.names[kind]);
        return;
    }
    measure(run, kind, &run->rows[run->at][kind]);
    if (prints) {
        const ranks_row *row = &run->rows[run->at][kind];
        printf("%8" PRId64 "  %-24s", job->length[run->at], job->kinds.names[kind]);
        if (row->measured)
            printf(" %10.2f %10.2f %7.2f %10s", row->alone * 1e3, row->together * 1e3,
                   row->alone / row->together, bytes_text((double)row->sent));
        if (row->measured)
            printf(" %10s %9.1e\n", bytes_text(row->workspace),
                   squares_relative(row->out));
        else
            printf(" WRONG: difference of outputs %.1e, gradients %.1e, clusters %.1e\n",
                   squares_relative(row->out), squares_relative(row->gradients),
                   squares_relative(row->groups));
        fflush(stdout);
    }
}

int bench_over_ranks(bench_job *job) {
    static ranks_run run;
    int code = EXIT_OK;
    run.job = job;
    run.over = job->ranks;
    job->begun = seconds_now();
    if (is_first(&run) && !job->json) {
        bench_print_subject(job);
        printf("%d ranks; alone: rank 0 with all positions\n"
               "\n",
               (int)run.over->ranks);
        printf("%8s  %-24s %10s %10s %7s %10s %10s %9s\n", "N", "kind", "alone ms",
               "ranks ms", "times", "sent", "memory", "apart");
    }
    for (; run.at < job->lengths; run.at++) {
        const int64_t N = job->length[run.at], first = first_of(&run, run.over->rank);
        bench_data_create(&run.part.data, job, N, first,
                          first_of(&run, run.over->rank + 1) - first);
        if (is_first(&run))
            bench_data_create(&run.whole.data, job, N, 0, N);
        for (int kind = 0; kind < job->kinds.count; kind++)
            run_kind(&run, kind);
        bench_data_destroy(&run.part.data);
        bench_data_destroy(&run.whole.data);
    }
    if (is_first(&run) && job->json)
        code = print_result(&run);
    return code == EXIT_OK && job->any_wrong ? 1 : code;
}
