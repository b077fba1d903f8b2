/* shoal bench, in files: the command line and the machine (bench.c), the arrays and what
   is measured in which order (bench_run.c), the checks of attention (bench_check.c), the
   whole layer and its checks (bench_layer.c), all that is printed and written
   (bench_report.c), and the same under a launcher, over several ranks (bench_ranks.c).

   Shapes: B batch, H heads, N positions (queries and keys), D dim, Dv value_dim, M = H D
   features of a row of the layer, F of its feed-forward. An element is a position of a
   sequence: B x N of them. */
#ifndef SHOAL_LAB_BENCH_H
#define SHOAL_LAB_BENCH_H

#include "exact/exact.h"
#include "lab.h"

enum { BENCH_KINDS = 16, BENCH_LENGTHS = 24, BENCH_REPEATS = 100, BENCH_CHECKS = 12 };

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
    size_t workspace; /* bytes of the plan, or of the layer's model */
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
    kind_list kinds;
    int lengths;
    int64_t length[BENCH_LENGTHS];
    int64_t heads, dim, value_dim, feed_forward, batch, threads, repeats, budget;
    uint64_t seed;
    int train, layer; /* which of --mode's and of --scope's words */
    bool json, quick;
    const char *isa, *csv_path, *plot_path;

    /* What is worked on. */
    shoal_transport *ranks; /* NULL: a process alone */
    shoal_context *context;
    bench_machine machine;
    double begun; /* seconds_now() */
    bench_row rows[BENCH_LENGTHS][BENCH_KINDS];
    int printed; /* lengths whose rows the table shows already */
    bool heading_printed, any_wrong, interrupted;
} bench_job;

/* ---- Arrays (bench_run.c) ---------------------------------------------------------- */

enum { BENCH_PROJECTIONS = 3 }; /* of queries, keys and values */

/* All contiguous and page-aligned. Those after `spare` exist for --mode train only. */
typedef struct {
    int64_t batch, heads, length, dim, value_dim;
    int64_t whole_length, first; /* the positions are those from `first` on of so many */
    bool train;
    int64_t query_count, value_count; /* elements: B H N D, B H N Dv */
    float *q, *k;                     /* [B][H][N][D] */
    float *v, *out;                   /* [B][H][N][Dv] */
    float *spare;                     /* as v: other values, for the checks */
    float *dout, *dv;                 /* as v */
    float *dq, *dk, *moved_q;         /* as q */

    /* --scope layer only. q, k and v are then features in another order, some with the
       other sign: feature `a` of projection p is feature s = sources[p][a], or minus
       feature ~s where s is negative. */
    int64_t *offsets;                 /* [B + 1] */
    int32_t *sources;                 /* [BENCH_PROJECTIONS][M] */
    float *features;                  /* [B N][M], one row per position */
    float *noise, *slope, *dfeatures; /* as features, train only: gradient of the output;
                                      its copy for a call; gradient of the features */
} bench_data;

/* Normally distributed noise, of a run of the positions. All of this dies where memory
   runs out, after which the report is of what was measured. */
void bench_data_create(bench_data *data, const bench_job *job, int64_t whole_length,
                       int64_t first, int64_t length);
void bench_data_destroy(bench_data *data);
shoal_problem bench_problem(const bench_data *data);
shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention);
shoal_gradients bench_gradients(const bench_data *data);
/* Where feature `feature` of M of a layer's row is in an array [B][H][N][D]. */
int64_t bench_place(const bench_data *data, int64_t row, int64_t feature);
/* Of the bits of out and, in train mode, of the gradients. */
uint64_t bench_digest(const bench_data *data);

/* Counter-based: the same numbers everywhere. */
uint64_t bench_random(uint64_t seed, uint64_t counter);
/* Of variance 1, likewise; streams are 0 to 255. */
float bench_noise(uint64_t seed, uint64_t stream, int64_t at);

/* ---- What is called (bench_run.c): the attention, or the layer around it ----------- */

typedef struct {
    shoal_model *model;                     /* one layer, post-norm as in the paper */
    shoal_parameter parts[2 * EXACT_PARTS]; /* weight and bias of each; the key's have no
                                               values where the keys are the queries */
    int64_t counts[2 * EXACT_PARTS];        /* of their elements */
    float *out; /* [B N][M], of the last call; the model's own */
} bench_layer;

typedef struct {
    shoal_plan *plan;  /* --scope attention */
    bench_layer layer; /* --scope layer */
} bench_subject;

shoal_plan *bench_plan(const bench_job *job, const bench_data *data,
                       const shoal_attention *attention, unsigned flags);
/* One call and how long it took: forward, and in train mode backward with dout = out,
   which is copied in between while the clock stands. */
double bench_call(shoal_plan *plan, const bench_data *data,
                  const shoal_attention *attention);

/* over: ranks that have the other positions; NULL: none. */
void bench_subject_create(const bench_job *job, const bench_data *data, int kind,
                          shoal_transport *over, bench_subject *subject);
void bench_subject_destroy(bench_subject *subject);
double bench_subject_call(const bench_job *job, bench_subject *subject,
                          const bench_data *data, int kind);
uint64_t bench_subject_digest(const bench_job *job, const bench_subject *subject,
                              const bench_data *data);
size_t bench_subject_workspace(const bench_job *job, const bench_subject *subject);

/* Everything from the first length to the report. */
int bench_run(bench_job *job);
/* Operations (multiplications and additions) that the formulas need for one call. */
double bench_operations(const bench_job *job, int kind, int64_t length);

/* ---- Checks (bench_check.c, bench_layer.c) ----------------------------------------- */

/* Everything that is known about what bench_call has just computed, compared with what it
   must be. Sets verified or wrong and the checks of the row; overwrites the results. */
void bench_verify(bench_job *job, shoal_plan *plan, bench_data *data, int kind,
                  bench_row *row);
/* The worst error of three gradients. One that is next to nothing, as those of queries
   and keys are where there is one position, is measured by that share of the largest. */
double bench_worst(squares sums[3], double share);
/* Adds a check to the row; one that fails makes it wrong. */
void bench_note(bench_row *row, const char *what, double error, double tolerance);

void bench_layer_create(const bench_job *job, const bench_data *data, int kind,
                        shoal_transport *over, bench_layer *layer);
/* As bench_call; the gradient of the output is noise. */
double bench_layer_call(bench_layer *layer, const bench_data *data);
uint64_t bench_layer_digest(const bench_layer *layer, const bench_data *data);
/* As bench_verify: the attention inside, then the rest of the layer around it. */
void bench_verify_layer(bench_job *job, bench_layer *layer, bench_data *data, int kind,
                        bench_row *row);

/* ---- The machine (bench.c) --------------------------------------------------------- */

void bench_machine_measure(bench_rates *rates, int threads);
/* Starts a new peak where the kernel allows it and returns what is resident now; where it
   does not, returns the peak so far, and only what rises above that is seen. */
double bench_peak_begin(bool *resets);
double bench_peak_now(void);
extern const char bench_compiler[];

/* ---- Over ranks (bench_ranks.c) ---------------------------------------------------- */

/* Everything, under a launcher. */
int bench_over_ranks(bench_job *job);

/* ---- Reports (bench_report.c) ------------------------------------------------------ */

/* What is measured, and on what: two lines. */
void bench_print_subject(const bench_job *job);
/* Seconds of the best repetition. */
double bench_best(const bench_row *row);
/* Prints what was not printed yet, up to the given number of lengths. */
void bench_print_rows(bench_job *job, int lengths);
/* The end: what is left of the table, or the JSON, and the files. */
int bench_report(bench_job *job);

#endif
