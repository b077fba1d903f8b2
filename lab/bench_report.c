/* Summaries, the table on stdout, and the .csv file. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "common.h"
#include "replace.h"

/* ---- Summaries --------------------------------------------------------------------- */

double bench_best(const bench_row *row) {
    double best = INFINITY;
    for (int i = 0; i < row->repeats; i++)
        best = fmin(best, row->seconds[i]);
    return best;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(const bench_row *row) {
    double sorted[BENCH_REPEATS];
    const int count = row->repeats;
    memcpy(sorted, row->seconds, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_size);
    return count > 0 ? (sorted[(count - 1) / 2] + sorted[count / 2]) / 2 : NAN;
}

bool bench_measured(const bench_row *row) {
    return row->verified && row->repeats > 0;
}

const bench_row *bench_full_row(const bench_job *job, int at) {
    for (int kind = 0; kind < job->kinds; kind++)
        if (job->attention[kind].kind == SHOAL_FULL)
            return &job->rows[at][kind];
    return NULL;
}

double bench_elements(const bench_job *job, int at) {
    return (double)(job->batch * job->length[at]);
}

/* log(kind / full) at a length; NAN unless both are measured. */
static double advantage(const bench_job *job, int kind, int at) {
    const bench_row *row = &job->rows[at][kind], *full = bench_full_row(job, at);
    if (!full || row == full || !bench_measured(row) || !bench_measured(full))
        return NAN;
    return log(bench_best(row) / bench_best(full));
}

bench_crossing_case bench_crossing(const bench_job *job, int kind, double *length,
                                   double *seconds_per_element) {
    int last = job->lengths - 1, at;
    while (last >= 0 && isnan(advantage(job, kind, last)))
        last--;
    if (last < 0 || advantage(job, kind, last) >= 0)
        return CROSSING_NONE;
    for (at = last; at > 0 && advantage(job, kind, at - 1) < 0; at--)
        continue;
    *length = (double)job->length[at];
    if (at == 0 || isnan(advantage(job, kind, at - 1)))
        return CROSSING_BEFORE;
    /* Straight lines between the two lengths on log axes. */
    const double before = advantage(job, kind, at - 1), after = advantage(job, kind, at);
    const double share = before / (before - after);
    const double low = log((double)job->length[at - 1]), high = log(*length);
    const double from = log(bench_best(&job->rows[at - 1][kind])) -
                        log(bench_elements(job, at - 1));
    const double to = log(bench_best(&job->rows[at][kind])) -
                      log(bench_elements(job, at));
    *length = exp(low + share * (high - low));
    *seconds_per_element = exp(from + share * (to - from));
    return CROSSING_AT;
}

/* ---- The table --------------------------------------------------------------------- */

/* Three digits, right-aligned. */
static void print_number(int width, double value, const char *mark) {
    char text[32];
    const int decimals = value >= 99.95    ? 0
                         : value >= 9.995  ? 1
                         : value >= 0.0995 ? 2
                                           : 3;
    snprintf(text, sizeof text, "%s%.*f", mark, decimals, value);
    printf(" %*s", width, text);
}

static void print_heading(bench_job *job) {
    const bench_machine *machine = &job->machine;
    job->heading_printed = true;
    printf("shoal %s, %s, %s; %s, %d cores; %d thread%s\n", shoal_version(),
           shoal_context_isa(job->context), bench_compiler, machine->cpu, machine->cores,
           shoal_context_threads(job->context),
           shoal_context_threads(job->context) == 1 ? "" : "s");
    printf("%s%s, batch %" PRId64 ", %" PRId64 " heads of %" PRId64,
           job->layer ? "whole layer, " : "",
           job->train ? "forward and backward" : "forward", job->batch, job->heads,
           job->dim);
    if (job->layer)
        printf(", feed-forward %" PRId64, job->feed_forward);
    if (job->value_dim != job->dim)
        printf(" (values %" PRId64 ")", job->value_dim);
    printf(", float32 noise, seed %" PRIu64 "\n", job->seed);
    if (machine->before.sgemm > 0)
        printf("%s sgemm 1024^3: %.1f Gop/s; ", bench_blas, machine->before.sgemm * 1e-9);
    else
        printf("no BLAS in this build; ");
    printf("memory (triad): %.1f GB/s\n", machine->before.bandwidth * 1e-9);
    printf("arrays page-aligned, huge pages not advised (system: %s)\n\n",
           machine->huge_pages);
    printf("%7s  %-20s %8s %8s %6s %8s %7s %8s %8s %6s %7s\n", "", "", "best", "median",
           "noise", "us per", "Gop/s", "B/elem.", "B/elem.", "% of", "times");
    printf("%7s  %-20s %8s %8s %6s %8s %7s %8s %8s %6s %7s\n", "N", "kind", "ms", "ms",
           "%", "element", "", job->layer ? "model" : "plan", "process", "sgemm", "full");
}

static void print_measured(const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind], *full = bench_full_row(job, at);
    const double best = bench_best(row), elements = bench_elements(job, at);
    const double rate = bench_operations(job, kind, job->length[at]) / best;
    const double noise = bench_median(row) / best - 1;
    print_number(8, best * 1e3, "");
    print_number(8, bench_median(row) * 1e3, "");
    if (row->repeats > 1)
        print_number(6, noise * 100, "");
    else
        printf(" %6s", "-");
    print_number(8, best / elements * 1e6, "");
    print_number(7, rate * 1e-9, "");
    print_number(8, (double)row->workspace / elements, "");
    print_number(8, row->growth / elements, "");
    if (job->machine.before.sgemm > 0)
        print_number(6, 100 * rate / job->machine.before.sgemm, "");
    else
        printf(" %6s", "-");
    if (full && (bench_measured(full) || full->estimate > 0))
        print_number(7, (bench_measured(full) ? bench_best(full) : full->estimate) / best,
                     bench_measured(full) ? "" : "~");
}

static void print_row(const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind];
    if (!bench_measured(row) && !row->wrong && row->estimate == 0)
        return; /* interrupted before it */
    printf("%7" PRId64 "  %-20s", job->length[at], job->spelling[kind]);
    if (row->wrong) {
        const bench_check *check = &row->checks[row->check_count - 1];
        for (int i = 0; i < row->check_count; i++)
            if (!(row->checks[i].error < row->checks[i].tolerance))
                check = &row->checks[i];
        printf(" WRONG: %s: %.2g, allowed %.2g", check->what, check->error,
               check->tolerance);
    } else if (bench_measured(row)) {
        print_measured(job, at, kind);
    } else {
        print_number(8, row->estimate * 1e3, "~");
        printf(" %8s %6s", "-", "-");
        print_number(8, row->estimate / bench_elements(job, at) * 1e6, "~");
    }
    putchar('\n');
}

void bench_print_rows(bench_job *job, int lengths) {
    if (!job->heading_printed)
        print_heading(job);
    for (; job->printed < lengths; job->printed++) {
        for (int kind = 0; kind < job->kinds; kind++)
            print_row(job, job->printed, kind);
        putchar('\n');
    }
    fflush(stdout);
}

static void print_crossings(const bench_job *job) {
    for (int kind = 0; kind < job->kinds; kind++) {
        double length, seconds;
        const bench_crossing_case found = bench_crossing(job, kind, &length, &seconds);
        if (found == CROSSING_AT)
            printf("%s is faster than full from about N = %.0f\n", job->spelling[kind],
                   length);
        else if (found == CROSSING_BEFORE)
            printf("%s is faster than full from N = %.0f, the shortest measured\n",
                   job->spelling[kind], length);
        else if (job->attention[kind].kind != SHOAL_FULL && bench_full_row(job, 0))
            printf("%s is not faster than full at the lengths measured\n",
                   job->spelling[kind]);
    }
}

static void print_end(const bench_job *job) {
    print_crossings(job);
    printf("\nEvery time is of a verified result; noise is (median - best) / best; ~ is "
           "an estimate\nfrom a shorter length, not a measurement. Gop/s counts what the "
           "formula needs%s.\n",
           !job->train  ? ""
           : job->layer ? ";\nforward and backward 3.5 times forward's products in the "
                          "attention, 3 times elsewhere"
                        : ";\nforward and backward 3.5 times forward's products");
    if (job->machine.after.sgemm > 0)
        printf("sgemm at the end: %.1f Gop/s (%+.0f %%).\n",
               job->machine.after.sgemm * 1e-9,
               100 * (job->machine.after.sgemm / job->machine.before.sgemm - 1));
    if (job->interrupted)
        printf("Interrupted: this is what was measured until then.\n");
}

/* ---- The .csv file ----------------------------------------------------------------- */

static void write_csv_row(FILE *file, const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind];
    const bool measured = bench_measured(row);
    const double elements = bench_elements(job, at);
    const double best = measured ? bench_best(row) : row->estimate;
    if (row->wrong || (!measured && row->estimate == 0))
        return;
    fprintf(file, "%" PRId64 ",\"%s\",%s,%s,%d,%d,%.9g,", job->length[at],
            job->spelling[kind], job->layer ? "layer" : "attention",
            job->train ? "train" : "forward", shoal_context_threads(job->context),
            measured, best);
    if (measured)
        fprintf(file, "%.9g,%.4g,%d,", bench_median(row), bench_median(row) / best - 1,
                row->repeats);
    else
        fputs(",,0,", file);
    fprintf(file, "%.9g,", best / elements * 1e6);
    if (measured)
        fprintf(file, "%.9g,%.9g,%.6g,", (double)row->workspace / elements,
                row->growth / elements,
                bench_operations(job, kind, job->length[at]) / best * 1e-9);
    else
        fputs(",,,", file);
    if (measured && job->machine.before.sgemm > 0)
        fprintf(file, "%.6g",
                bench_operations(job, kind, job->length[at]) / best /
                    job->machine.before.sgemm);
    fputc('\n', file);
}

static void write_csv_rows(FILE *file, const bench_job *job) {
    fputs("length,kind,scope,mode,threads,measured,best_seconds,median_seconds,noise,"
          "repeats,"
          "us_per_element,plan_bytes_per_element,process_bytes_per_element,gops,"
          "share_of_sgemm\n",
          file);
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds; kind++)
            write_csv_row(file, job, at, kind);
}

static int write_csv(const bench_job *job) {
    replacement to;
    FILE *file = replace_begin(&to, job->csv_path);
    if (file)
        write_csv_rows(file, job);
    if (file && replace_end(&to, true))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "bench", "%s cannot be written: %s", job->csv_path,
                    strerror(errno));
}

/* ---- The end ----------------------------------------------------------------------- */

int bench_report(bench_job *job) {
    int code = EXIT_OK, plotted = EXIT_OK;
    if (job->json) {
        code = print_json(bench_object(job));
    } else {
        bench_print_rows(job, job->lengths);
        print_end(job);
    }
    if (job->csv_path && code == EXIT_OK)
        code = write_csv(job);
    if (job->plot_path)
        plotted = bench_write_plot(job);
    code = code == EXIT_OK ? plotted : code;
    if (code == EXIT_OK && job->any_wrong)
        code = complain(EXIT_FAILURE, "bench",
                        "a result is wrong on this machine; please report it");
    return code;
}
