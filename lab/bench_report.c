/* Output of shoal bench: summaries, table, .csv file, JSON and picture. */
#include <errno.h>

#include "bench.h"
#include "plot.h"

/* ---- Summaries --------------------------------------------------------------------- */

/* The length, interpolated between measured ones, from which on a kind is faster than
   full. */
typedef enum { CROSSING_NONE, CROSSING_AT, CROSSING_BEFORE } crossing_case;

double bench_best(const bench_row *row) {
    return best_of(row->seconds, row->repeats);
}

static double median(const bench_row *row) {
    return median_of(row->seconds, row->repeats);
}

static bool is_measured(const bench_row *row) {
    return row->verified && row->repeats > 0;
}

static const bench_row *full_row(const bench_job *job, int at) {
    for (int kind = 0; kind < job->kinds.count; kind++)
        if (job->kinds.attention[kind].kind == SHOAL_KIND_FULL)
            return &job->rows[at][kind];
    return NULL;
}

static double elements_of(const bench_job *job, int at) {
    return (double)(job->batch * job->length[at]);
}

/* log(kind / full) at a length; NAN unless both are measured. */
static double advantage(const bench_job *job, int kind, int at) {
    const bench_row *row = &job->rows[at][kind], *full = full_row(job, at);
    if (!full || row == full || !is_measured(row) || !is_measured(full))
        return NAN;
    return log(bench_best(row) / bench_best(full));
}

static crossing_case find_crossing(const bench_job *job, int kind, double *length,
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
    /* Linear interpolation on logarithmic axes. */
    const double before = advantage(job, kind, at - 1), after = advantage(job, kind, at);
    const double share = before / (before - after);
    const double low = log((double)job->length[at - 1]), high = log(*length);
    const double from = log(bench_best(&job->rows[at - 1][kind])) -
                        log(elements_of(job, at - 1));
    const double to = log(bench_best(&job->rows[at][kind])) - log(elements_of(job, at));
    *length = exp(low + share * (high - low));
    *seconds_per_element = exp(from + share * (to - from));
    return CROSSING_AT;
}

/* ---- The table --------------------------------------------------------------------- */

void bench_print_subject(const bench_job *job) {
    const bench_machine *machine = &job->machine;
    const int threads = shoal_context_threads(job->context);
    printf("shoal %s, %s, %s; %s, %d cores; %d thread%s\n", shoal_version(),
           shoal_context_isa(job->context), bench_compiler, machine->cpu, machine->cores,
           threads, plural(threads));
    printf("%s%s, batch %" PRId64 ", %" PRId64 " heads of %" PRId64,
           job->layer ? "whole layer, " : "",
           job->train ? "forward and backward" : "forward", job->batch, job->heads,
           job->dim);
    if (job->layer)
        printf(", feed-forward %" PRId64, job->feed_forward);
    if (job->value_dim != job->dim)
        printf(" (values %" PRId64 ")", job->value_dim);
    printf(", float32 noise, seed %" PRIu64 "\n", job->seed);
}

static void print_measured(const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind], *full = full_row(job, at);
    const double best = bench_best(row), elements = elements_of(job, at);
    const double rate = bench_operations(job, kind, job->length[at]) / best;
    print_digits(8, best * 1e3, "", 3);
    print_digits(8, median(row) * 1e3, "", 3);
    if (row->repeats > 1)
        print_digits(6, 100 * (median(row) / best - 1), "", 3);
    else
        printf(" %6s", "-");
    print_digits(8, best / elements * 1e6, "", 3);
    print_digits(7, rate * 1e-9, "", 3);
    print_digits(8, (double)row->workspace / elements, "", 3);
    print_digits(8, row->growth / elements, "", 3);
    if (job->machine.before.sgemm > 0)
        print_digits(6, 100 * rate / job->machine.before.sgemm, "", 3);
    else
        printf(" %6s", "-");
    if (full && (is_measured(full) || full->estimate > 0))
        print_digits(7, (is_measured(full) ? bench_best(full) : full->estimate) / best,
                     is_measured(full) ? "" : "~", 3);
}

static void print_row(const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind];
    if (!is_measured(row) && !row->wrong && row->estimate == 0)
        return; /* interrupted before this row */
    printf("%7" PRId64 "  %-20s", job->length[at], job->kinds.names[kind]);
    if (row->wrong) {
        const bench_check *check = &row->checks[row->check_count - 1];
        for (int i = 0; i < row->check_count; i++)
            if (!(row->checks[i].error < row->checks[i].tolerance))
                check = &row->checks[i];
        printf(" WRONG: %s: %.2g, allowed %.2g", check->what, check->error,
               check->tolerance);
    } else if (is_measured(row)) {
        print_measured(job, at, kind);
    } else {
        print_digits(8, row->estimate * 1e3, "~", 3);
        printf(" %8s %6s", "-", "-");
        print_digits(8, row->estimate / elements_of(job, at) * 1e6, "~", 3);
    }
    putchar('\n');
}

void bench_print_rows(bench_job *job, int lengths) {
    if (!job->heading_printed) {
        const bench_machine *machine = &job->machine;
        job->heading_printed = true;
        bench_print_subject(job);
        if (machine->before.sgemm > 0)
            printf("OpenBLAS sgemm 1024^3: %.1f Gop/s; ", machine->before.sgemm * 1e-9);
        printf("memory (triad): %.1f GB/s\n", machine->before.bandwidth * 1e-9);
        printf("arrays page-aligned, huge pages not requested (system: %s)\n"
               "\n",
               machine->huge_pages);
        printf("%7s  %-20s %8s %8s %6s %8s %7s %8s %8s %6s %7s\n", "", "", "best",
               "median", "noise", "us per", "Gop/s", "B/elem.", "B/elem.", "% of",
               "times");
        printf("%7s  %-20s %8s %8s %6s %8s %7s %8s %8s %6s %7s\n", "N", "kind", "ms",
               "ms", "%", "element", "", job->layer ? "model" : "plan", "process",
               "sgemm", "full");
    }
    for (; job->printed < lengths; job->printed++) {
        for (int kind = 0; kind < job->kinds.count; kind++)
            print_row(job, job->printed, kind);
        putchar('\n');
    }
    fflush(stdout);
}

/* ---- The .csv file ----------------------------------------------------------------- */

static void write_csv_row(FILE *file, const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind];
    const bool measured = is_measured(row);
    const double elements = elements_of(job, at);
    const double best = measured ? bench_best(row) : row->estimate;
    if (row->wrong || (!measured && row->estimate == 0))
        return;
    fprintf(file, "%" PRId64 ",\"%s\",%s,%s,%d,%d,%.9g,", job->length[at],
            job->kinds.names[kind], job->layer ? "layer" : "attention",
            job->train ? "train" : "forward", shoal_context_threads(job->context),
            measured, best);
    if (measured)
        fprintf(file, "%.9g,%.4g,%d,", median(row), median(row) / best - 1, row->repeats);
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

/* ---- JSON -------------------------------------------------------------------------- */

static json_t *positive(double value) {
    return value > 0 ? json_number(value) : json_null();
}

static json_t *row_object(const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind], *full = full_row(job, at);
    const double best = bench_best(row), elements = elements_of(job, at);
    const double rate = bench_operations(job, kind, job->length[at]) / best;
    const double sgemm = job->machine.before.sgemm;
    json_t *checks = json_array();
    for (int i = 0; i < row->check_count; i++)
        json_array_append_new(checks,
                              json_pack("{s:s, s:o, s:f}", "what", row->checks[i].what,
                                        "error", json_number(row->checks[i].error),
                                        "tolerance", row->checks[i].tolerance));
    json_t *object = json_pack("{s:I, s:s, s:b, s:b, s:o}", "length",
                               (json_int_t)job->length[at], "kind",
                               job->kinds.names[kind], "measured", is_measured(row),
                               "verified", row->verified, "checks", checks);
    if (is_measured(row))
        json_object_update_new(
            object,
            json_pack("{s:f, s:f, s:f, s:o, s:f, s:I, s:f, s:f, s:f, s:f, s:o, s:o*}",
                      "best_seconds", best, "median_seconds", median(row), "noise",
                      median(row) / best - 1, "seconds",
                      json_numbers(row->seconds, row->repeats), "us_per_element",
                      best / elements * 1e6, "plan_bytes", (json_int_t)row->workspace,
                      "plan_bytes_per_element", (double)row->workspace / elements,
                      "process_growth_bytes", row->growth,
                      "process_growth_bytes_per_element", row->growth / elements,
                      "ops_per_second", rate, "share_of_sgemm",
                      sgemm > 0 ? json_number(rate / sgemm) : json_null(), "times_full",
                      full && is_measured(full) ? json_number(bench_best(full) / best)
                                                : NULL));
    else if (!row->wrong && row->estimate > 0)
        json_object_set_new(object, "estimated_seconds", json_number(row->estimate));
    return object;
}

static json_t *whole_object(const bench_job *job) {
    const bench_machine *machine = &job->machine;
    json_t *rows = json_array(), *crossings = json_object();
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds.count; kind++)
            json_array_append_new(rows, row_object(job, at, kind));
    for (int kind = 0; kind < job->kinds.count; kind++) {
        double length, seconds;
        if (job->kinds.attention[kind].kind == SHOAL_KIND_FULL)
            continue;
        const crossing_case found = find_crossing(job, kind, &length, &seconds);
        json_object_set_new(crossings, job->kinds.names[kind],
                            found == CROSSING_NONE ? json_null() : json_number(length));
    }
    return json_pack(
        "{s:{s:s, s:i, s:f, s:s, s:s, s:s, s:i, s:b, s:s}, s:{s:s, s:o, s:o, s:o, s:o}, "
        "s:{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:o*}, s:s, s:o, s:o, s:b}",
        "machine", "cpu", machine->cpu, "cores", machine->cores, "memory_bytes",
        machine->memory, "compiler", bench_compiler, "version", shoal_version(), "isa",
        shoal_context_isa(job->context), "threads", shoal_context_threads(job->context),
        "huge_pages_advised", 0, "huge_pages_system", machine->huge_pages, "reference",
        "blas", "OpenBLAS", "sgemm_1024_ops_per_second", positive(machine->before.sgemm),
        "sgemm_1024_ops_per_second_at_end", positive(machine->after.sgemm),
        "triad_bytes_per_second", positive(machine->before.bandwidth),
        "triad_bytes_per_second_at_end", positive(machine->after.bandwidth), "settings",
        "mode", job->train ? "train" : "forward", "scope",
        job->layer ? "layer" : "attention", "batch", (json_int_t)job->batch, "heads",
        (json_int_t)job->heads, "dim", (json_int_t)job->dim, "value_dim",
        (json_int_t)job->value_dim, "repeats", (json_int_t)job->repeats, "budget_seconds",
        (json_int_t)job->budget, "seed", json_seed(job->seed), "data",
        "normally distributed noise", "feed_forward",
        job->layer ? json_integer((json_int_t)job->feed_forward) : NULL,
        "process_growth_from",
        machine->peak_resets ? "VmHWM, reset before each row"
                             : "peak of the process, never reset",
        "rows", rows, "faster_than_full_from", crossings, "interrupted",
        job->interrupted);
}

/* ---- Picture: time and memory per element against the length ---------------------- */

enum { REFERENCE = BENCH_KINDS, SERIES };

/* Storage that the charts point to. */
typedef struct {
    double x[BENCH_LENGTHS], time[SERIES][BENCH_LENGTHS], memory[SERIES][BENCH_LENGTHS];
    bool estimated[SERIES][BENCH_LENGTHS];
    plot_series times[SERIES], memories[SERIES];
    plot_note notes[BENCH_KINDS];
    char note_texts[BENCH_KINDS][32];
    int notes_used;
} bench_picture;

/* Adds a kind, and the length from which it is faster than full. */
static void add_kind(bench_picture *picture, const bench_job *job, int kind) {
    for (int at = 0; at < job->lengths; at++) {
        const bench_row *row = &job->rows[at][kind];
        const double elements = elements_of(job, at);
        const bool measured = is_measured(row);
        const bool known = measured || (!row->wrong && row->estimate > 0);
        picture->estimated[kind][at] = !measured;
        picture->time[kind][at] =
            known ? (measured ? bench_best(row) : row->estimate) / elements * 1e6 : NAN;
        picture->memory[kind][at] = measured ? (double)row->workspace / elements : NAN;
    }
    picture->times[kind] = plot_kind(job->kinds.names[kind], kind, picture->x,
                                     picture->time[kind], job->lengths);
    picture->memories[kind] = picture->times[kind];
    picture->memories[kind].y = picture->memory[kind];
    picture->times[kind].hollow = picture->estimated[kind];
    double length, seconds;
    if (find_crossing(job, kind, &length, &seconds) != CROSSING_AT)
        return;
    char *text = picture->note_texts[picture->notes_used];
    snprintf(text, sizeof *picture->note_texts, "N \xe2\x89\x88 %.0f", length);
    picture->notes[picture->notes_used++] = (plot_note){.x = length,
                                                        .y = seconds * 1e6,
                                                        .text = text,
                                                        .colour = kind % PLOT_COLOURS};
}

static void write_plot(const bench_job *job) {
    static bench_picture picture;
    char caption[400];
    for (int at = 0; at < job->lengths; at++)
        picture.x[at] = (double)job->length[at];
    for (int kind = 0; kind < job->kinds.count; kind++)
        add_kind(&picture, job, kind);
    /* Time of full if all of its products ran at the rate of sgemm. */
    const double rate = job->machine.before.sgemm;
    int full = 0;
    while (full < job->kinds.count && job->kinds.attention[full].kind != SHOAL_KIND_FULL)
        full++;
    const bool reference = full < job->kinds.count && rate > 0;
    for (int at = 0; at < job->lengths && reference; at++)
        picture.time[REFERENCE][at] = bench_operations(job, full, job->length[at]) /
                                      rate / elements_of(job, at) * 1e6;
    picture.times[job->kinds.count] = plot_reference("full at the rate of sgemm",
                                                     picture.x, picture.time[REFERENCE],
                                                     job->lengths);
    const int threads = shoal_context_threads(job->context);
    bool estimates = false;
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds.count; kind++)
            estimates |= !is_measured(&job->rows[at][kind]) &&
                         !job->rows[at][kind].wrong && job->rows[at][kind].estimate > 0;
    snprintf(caption, sizeof caption,
             "shoal %s, %s, %s, %d thread%s; batch %" PRId64 ", %" PRId64
             " heads of %" PRId64 ", float32%s%s%s",
             shoal_version(), job->machine.cpu, shoal_context_isa(job->context), threads,
             plural(threads), job->batch, job->heads, job->dim,
             job->layer ? ", whole layer" : "", estimates ? "; hollow: estimated" : "",
             job->interrupted ? "; interrupted" : "");
    const plot_axis length = {.label = "sequence length N",
                              .scale = PLOT_LOG,
                              .doubling = true};
    const plot_chart charts[] =
        {{.title = job->train ? "Time, forward and backward" : "Time, forward",
          .x = length,
          .y = {.label = "\xc2\xb5s per element", .scale = PLOT_LOG},
          .series = picture.times,
          .series_count = job->kinds.count + reference,
          .notes = picture.notes,
          .note_count = picture.notes_used},
         {.title = job->layer ? "Memory of the layer and its weights"
                              : "Memory besides inputs and outputs",
          .x = length,
          .y = {.label = "bytes per element", .scale = PLOT_LOG},
          .series = picture.memories,
          .series_count = job->kinds.count}};
    plot_write(job->plot_path, &(plot_figure){charts, 2, caption});
}

/* ---- Report ----------------------------------------------------------------------- */

static int printed; /* exit code of printing */

static void print_result(void *shared) {
    bench_job *job = shared;
    if (job->json) {
        printed = print_json(whole_object(job));
        return;
    }
    bench_print_rows(job, job->lengths);
    for (int kind = 0; kind < job->kinds.count; kind++) {
        double length, seconds;
        const crossing_case found = find_crossing(job, kind, &length, &seconds);
        if (found == CROSSING_AT)
            printf("%s is faster than full from about N = %.0f\n", job->kinds.names[kind],
                   length);
        else if (found == CROSSING_BEFORE)
            printf("%s is faster than full from N = %.0f, the shortest length measured\n",
                   job->kinds.names[kind], length);
        else if (job->kinds.attention[kind].kind != SHOAL_KIND_FULL && full_row(job, 0))
            printf("%s is not faster than full at the lengths measured\n",
                   job->kinds.names[kind]);
    }
    printf("\n"
           "All times are of verified results; noise is (median - best) / best; ~ is an "
           "estimate\n"
           "from a shorter length, not a measurement. Gop/s counts the operations in the "
           "formulas%s.\n",
           !job->train  ? ""
           : job->layer ? ";\n"
                          "forward and backward count 3.5 times forward's products in "
                          "the attention, 3 times\n"
                          "elsewhere"
                        : ";\n"
                          "forward and backward count 3.5 times forward's products");
    if (job->machine.after.sgemm > 0)
        printf("sgemm at the end: %.1f Gop/s (%+.0f %%).\n",
               job->machine.after.sgemm * 1e-9,
               100 * (job->machine.after.sgemm / job->machine.before.sgemm - 1));
    if (job->interrupted)
        printf("Interrupted: these are the results so far.\n");
}

/* The table is printed even if a file cannot be written. */
int bench_report(bench_job *job) {
    before_leaving(print_result, job);
    if (job->csv_path) {
        replacement to;
        FILE *file = replace_begin(&to, job->csv_path);
        if (file)
            fputs(
                "length,kind,scope,mode,threads,measured,best_seconds,median_seconds,"
                "noise,"
                "repeats,us_per_element,plan_bytes_per_element,process_bytes_per_element,"
                "gops,share_of_sgemm\n",
                file);
        for (int at = 0; at < job->lengths && file; at++)
            for (int kind = 0; kind < job->kinds.count; kind++)
                write_csv_row(file, job, at, kind);
        if (!file || !replace_end(&to, true))
            die(EXIT_RESOURCES, "%s cannot be written: %s", job->csv_path,
                strerror(errno));
    }
    if (job->plot_path)
        write_plot(job);
    before_leaving(NULL, NULL);
    print_result(job);
    if (printed == EXIT_OK && job->any_wrong)
        return complain(EXIT_FAILURE, "bench",
                        "a result is wrong on this machine; please report it");
    return printed;
}
