/* shoal bench, in files: the command line (bench.c), what is measured in which order
   (bench_run.c), the arrays (bench_data.c), the checks (bench_check.c, and
   bench_gradient.c for the backward pass), the machine (bench_machine.c), the table and
   the files (bench_report.c, bench_json.c) and the picture (bench_plot.c).

   Shapes: B batch, H heads, N positions (queries and keys), D dim, Dv value_dim. An
   element is a position of a sequence: B x N of them. */
#ifndef SHOAL_CLI_BENCH_H
#define SHOAL_CLI_BENCH_H

#include <jansson.h>
#include <stdbool.h>

#include "shoal.h"

enum { BENCH_KINDS = 16, BENCH_LENGTHS = 24, BENCH_REPEATS = 100, BENCH_CHECKS = 6 };

/* One check that a row has passed, or the one that it failed. */
typedef struct {
    const char *what;
    double error, tolerance;
} bench_check;

typedef struct {
    bool verified, wrong;
    double seconds[BENCH_REPEATS]; /* one per repetition */
    int repeats;
    double estimate;  /* of a call, where nothing was measured; 0: none */
    size_t workspace; /* bytes of the plan */
    double growth;    /* of the process, in bytes, while it was made and first ran */
    uint64_t digest;  /* of the verified result; every timed one must have the same */
    bench_check checks[BENCH_CHECKS];
    int check_count;
} bench_row;

/* Operations and bytes per second; 0: not measured. */
typedef struct {
    double sgemm, bandwidth;
} bench_rates;

typedef struct {
    char cpu[128], huge_pages[32];
    int cores;
    double memory;             /* bytes */
    bench_rates before, after; /* at the beginning, and again at the end */
    bool peak_resets;          /* the kernel lets us start a new peak */
} bench_machine;

typedef struct {
    /* What was asked for. */
    char kind_texts[BENCH_KINDS][96];
    int kinds, lengths;
    int64_t length[BENCH_LENGTHS];
    int64_t heads, dim, value_dim, batch, threads, repeats, budget;
    uint64_t seed;
    bool train, json, quick;
    const char *isa, *csv_path, *plot_path;

    /* What is worked on. */
    shoal_context *context;
    shoal_attention attention[BENCH_KINDS];
    char spelling[BENCH_KINDS][96];
    bench_machine machine;
    double begun; /* seconds_now() */
    bench_row rows[BENCH_LENGTHS][BENCH_KINDS];
    int printed; /* lengths whose rows the table shows already */
    bool heading_printed, any_wrong, interrupted;
} bench_job;

/* ---- Arrays (bench_data.c) --------------------------------------------------------- */

/* All contiguous and page-aligned. Those after `out` exist for --mode train only. */
typedef struct {
    int64_t batch, heads, length, dim, value_dim;
    bool train;
    int64_t query_count, value_count; /* elements: B H N D, B H N Dv */
    float *q, *k;                     /* [B][H][N][D] */
    float *v, *out;                   /* [B][H][N][Dv] */
    float *spare;                     /* as v: other values, for the checks */
    float *dout, *dv;                 /* as v */
    float *dq, *dk, *line_q, *line_k, *moved_q, *moved_k; /* as q */
    int32_t *groups;                                      /* [B][H][N] */
} bench_data;

/* False when memory ran out. The data are normally distributed noise. */
bool bench_data_create(bench_data *data, const bench_job *job, int64_t length);
void bench_data_destroy(bench_data *data);
shoal_problem bench_problem(const bench_data *data);
shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention);
bool bench_keys_are_queries(const shoal_attention *attention);

/* Counter-based: the same numbers everywhere. */
uint64_t bench_random(uint64_t seed, uint64_t counter);

/* ---- Checks ------------------------------------------------------------------------ */

/* Everything that is known about what bench_call has just computed, compared with what it
   must be. Sets verified or wrong and the checks of the row; overwrites the results. */
shoal_status bench_verify(bench_job *job, shoal_plan *plan, bench_data *data, int kind,
                          bench_row *row);

/* Adds a check to the row; one that fails makes it wrong. */
void bench_note(bench_row *row, const char *what, double error, double tolerance);

/* bench_gradient.c: the part of the above for the backward pass. */
shoal_status bench_verify_gradients(shoal_plan *plan, bench_data *data,
                                    const shoal_attention *attention, bench_row *row,
                                    const char *const names[2]);

/* ---- The run (bench_run.c) --------------------------------------------------------- */

/* One call and how long it took: forward, and in train mode backward with dout = out,
   which is copied in between while the clock stands. */
shoal_status bench_call(shoal_plan *plan, const bench_data *data,
                        const shoal_attention *attention, double *seconds);
/* Everything from the first length to the report. */
int bench_run(bench_job *job);
/* Seconds that a call will take, from the lengths measured before this one. */
double bench_estimate(const bench_job *job, int kind, int at);

/* Operations (multiplications and additions) that the formulas need for one call. */
double bench_operations(const bench_job *job, int kind, int64_t length);

/* ---- The machine (bench_machine.c) ------------------------------------------------- */

void bench_machine_describe(bench_machine *machine);
void bench_machine_measure(bench_rates *rates, int threads);
/* Starts a new peak where the kernel allows it and returns what is resident now; where it
   does not, returns the peak so far, and only what rises above that is seen. */
double bench_peak_begin(bool *resets);
double bench_peak_now(void);
extern const char bench_compiler[];
extern const char bench_blas[];

/* ---- Reports ----------------------------------------------------------------------- */

/* Summaries of a measured row. */
double bench_best(const bench_row *row);
double bench_median(const bench_row *row);
bool bench_measured(const bench_row *row);
/* Positions in all sequences of the batch. */
double bench_elements(const bench_job *job, int at);
/* The row of the kind called full at this length, or NULL. */
const bench_row *bench_full_row(const bench_job *job, int length);
/* Where the kind becomes faster than full for good, between the measured lengths. */
typedef enum { CROSSING_NONE, CROSSING_AT, CROSSING_BEFORE } bench_crossing_case;
bench_crossing_case bench_crossing(const bench_job *job, int kind, double *length,
                                   double *seconds_per_element);

/* Prints what was not printed yet, up to the given number of lengths. */
void bench_print_rows(bench_job *job, int lengths);
/* The end: what is left of the table, or the JSON, and the files. */
int bench_report(bench_job *job);
json_t *bench_object(const bench_job *job);
int bench_write_plot(const bench_job *job);

#endif
