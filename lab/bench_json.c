/* The whole run as one JSON object. */
#include <math.h>

#include "bench.h"
#include "common.h"

static json_t *machine_object(const bench_job *job) {
    const bench_machine *machine = &job->machine;
    return json_pack("{s:s, s:i, s:f, s:s, s:s, s:s, s:i, s:b, s:s}", "cpu", machine->cpu,
                     "cores", machine->cores, "memory_bytes", machine->memory, "compiler",
                     bench_compiler, "version", shoal_version(), "isa",
                     shoal_context_isa(job->context), "threads",
                     shoal_context_threads(job->context), "huge_pages_advised", 0,
                     "huge_pages_system", machine->huge_pages);
}

static json_t *positive(double value) {
    return value > 0 ? json_number(value) : json_null();
}

static json_t *reference_object(const bench_job *job) {
    const bench_machine *machine = &job->machine;
    return json_pack("{s:s, s:o, s:o, s:o, s:o}", "blas", bench_blas,
                     "sgemm_1024_ops_per_second", positive(machine->before.sgemm),
                     "sgemm_1024_ops_per_second_at_end", positive(machine->after.sgemm),
                     "triad_bytes_per_second", positive(machine->before.bandwidth),
                     "triad_bytes_per_second_at_end", positive(machine->after.bandwidth));
}

static json_t *settings_object(const bench_job *job) {
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s}", "mode",
                  job->train ? "train" : "forward", "scope",
                  job->layer ? "layer" : "attention", "batch", (json_int_t)job->batch,
                  "heads", (json_int_t)job->heads, "dim", (json_int_t)job->dim,
                  "value_dim", (json_int_t)job->value_dim, "repeats",
                  (json_int_t)job->repeats, "budget_seconds", (json_int_t)job->budget,
                  "seed", json_seed(job->seed), "data", "normally distributed noise");
    if (job->layer)
        json_object_set_new(object, "feed_forward",
                            json_integer((json_int_t)job->feed_forward));
    return object;
}

static json_t *checks_array(const bench_row *row) {
    json_t *checks = json_array();
    for (int i = 0; i < row->check_count; i++)
        json_array_append_new(checks,
                              json_pack("{s:s, s:o, s:f}", "what", row->checks[i].what,
                                        "error", json_number(row->checks[i].error),
                                        "tolerance", row->checks[i].tolerance));
    return checks;
}

static void add_measurement(json_t *object, const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind], *full = bench_full_row(job, at);
    const double best = bench_best(row), elements = bench_elements(job, at);
    const double rate = bench_operations(job, kind, job->length[at]) / best;
    const double sgemm = job->machine.before.sgemm;
    json_t *samples = json_array(), *more;
    for (int i = 0; i < row->repeats; i++)
        json_array_append_new(samples, json_number(row->seconds[i]));
    more = json_pack("{s:f, s:f, s:f, s:o, s:f, s:I, s:f, s:f, s:f, s:f, s:o}",
                     "best_seconds", best, "median_seconds", bench_median(row), "noise",
                     bench_median(row) / best - 1, "seconds", samples, "us_per_element",
                     best / elements * 1e6, "plan_bytes", (json_int_t)row->workspace,
                     "plan_bytes_per_element", (double)row->workspace / elements,
                     "process_growth_bytes", row->growth,
                     "process_growth_bytes_per_element", row->growth / elements,
                     "ops_per_second", rate, "share_of_sgemm",
                     sgemm > 0 ? json_number(rate / sgemm) : json_null());
    json_object_update(object, more);
    json_decref(more);
    if (full && bench_measured(full))
        json_object_set_new(object, "times_full", json_number(bench_best(full) / best));
}

static json_t *row_object(const bench_job *job, int at, int kind) {
    const bench_row *row = &job->rows[at][kind];
    json_t *object = json_pack("{s:I, s:s, s:b, s:b, s:o}", "length",
                               (json_int_t)job->length[at], "kind", job->spelling[kind],
                               "measured", bench_measured(row), "verified", row->verified,
                               "checks", checks_array(row));
    if (bench_measured(row))
        add_measurement(object, job, at, kind);
    else if (!row->wrong && row->estimate > 0)
        json_object_set_new(object, "estimated_seconds", json_number(row->estimate));
    return object;
}

static json_t *crossings_object(const bench_job *job) {
    json_t *object = json_object();
    for (int kind = 0; kind < job->kinds; kind++) {
        double length, seconds;
        if (job->attention[kind].kind == SHOAL_FULL)
            continue;
        const bench_crossing_case found = bench_crossing(job, kind, &length, &seconds);
        json_object_set_new(object, job->spelling[kind],
                            found == CROSSING_NONE ? json_null() : json_number(length));
    }
    return object;
}

json_t *bench_object(const bench_job *job) {
    json_t *rows = json_array();
    for (int at = 0; at < job->lengths; at++)
        for (int kind = 0; kind < job->kinds; kind++)
            json_array_append_new(rows, row_object(job, at, kind));
    return json_pack("{s:o, s:o, s:o, s:s, s:o, s:o, s:b}", "machine",
                     machine_object(job), "reference", reference_object(job), "settings",
                     settings_object(job), "process_growth_from",
                     job->machine.peak_resets ? "VmHWM, reset before each row"
                                              : "the peak of the process, never reset",
                     "rows", rows, "faster_than_full_from", crossings_object(job),
                     "interrupted", job->interrupted);
}
