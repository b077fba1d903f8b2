/* shoal bench, by file: the command line and the machine (bench.c), the arrays and the
   order of measurements (bench_run.c), the checks of attention (bench_check.c), a whole
   layer and its checks (bench_layer.c), reports (bench_report.c), and several ranks
   (bench_ranks.c).

   Shapes: B batch, H heads, N positions (queries and keys), D dim, Dv value_dim, M = H
   D features of a row of the layer, F of its feed-forward. An element is a position of
   a sequence: there are B x N. */
#ifndef SHOAL_LAB_BENCH_H
#define SHOAL_LAB_BENCH_H

#include "exact/exact.h"
#include "lab.h"

enum { BENCH_KINDS = 16, BENCH_LENGTHS = 24, BENCH_REPEATS = 100, BENCH_CHECKS = 12 };

/* A check that a row passed, or the one that it failed. */
typedef struct {
    const char *what;
    double error, tolerance;
} bench_check;

typedef struct {
    bool verified, wrong;
    double seconds[BENCH_REPEATS]; /* of each repetition */
    int repeats;
    double estimate;  /* seconds of a call if nothing was measured; 0 if unknown */
    size_t workspace; /* bytes of the plan, or of the layer's model */
    double growth;    /* of the process in bytes, during creation and the first call */
    uint64_t digest;  /* of the verified result; every timed result must have the same */
    bench_check checks[BENCH_CHECKS];
    int check_count;
} bench_row;

/* Operations and bytes per second; 0 if not measured. */
typedef struct {
    double sgemm, bandwidth;
} bench_rates;

typedef struct {
    char cpu[128], huge_pages[32];
    int cores;
    double memory;             /* bytes */
    bench_rates before, after; /* at the start, and again at the end */
    bool peak_resets;          /* the kernel can reset the peak */
} bench_machine;

typedef struct {
    /* Options. */
    kind_list kinds;
    int lengths;
    int64_t length[BENCH_LENGTHS];
    int64_t heads, dim, value_dim, feed_forward, batch, threads, repeats, budget;
    uint64_t seed;
    int train, layer; /* index of the value of --mode and of --scope */
    bool json, quick;
    const char *isa, *csv_path, *plot_path;

    /* State. */
    shoal_transport *ranks; /* NULL for a single process */
    shoal_context *context;
    bench_machine machine;
    double begun; /* start, by seconds_now() */
    bench_row rows[BENCH_LENGTHS][BENCH_KINDS];
    int printed; /* number of lengths whose rows are printed */
    bool heading_printed, any_wrong, interrupted;
} bench_job;

/* ---- Arrays (bench_run.c) ---------------------------------------------------------- */

enum { BENCH_PROJECTIONS = 3 }; /* queries, keys and values */

/* All arrays are contiguous and page-aligned. Those after `spare` exist only with
   --mode train. */
typedef struct {
    int64_t batch, heads, length, dim, value_dim;
    int64_t whole_length, first; /* these are positions first .. of whole_length */
    bool train;
    int64_t query_count, value_count; /* elements: B H N D, B H N Dv */
    float *q, *k;                     /* [B][H][N][D] */
    float *v, *out;                   /* [B][H][N][Dv] */
    float *spare;                     /* shape of v: other values, for the checks */
    float *dout, *dv;                 /* shape of v */
    float *dq, *dk, *moved_q;         /* shape of q */

    /* --scope layer only. q, k and v are then signed permutations of the features:
       feature `a` of projection p is feature s = sources[p][a], or minus feature ~s if
       s is negative. */
    int64_t *offsets;                 /* [B + 1] */
    int32_t *sources;                 /* [BENCH_PROJECTIONS][M] */
    float *features;                  /* [B N][M], one row per position */
    float *noise, *slope, *dfeatures; /* shape of features, train only: gradient of the
                                         output; its copy for a call; gradient of the
                                         features */
} bench_data;

/* Fills the arrays with normally distributed noise for a range of positions. These
   functions exit if memory runs out, after reporting what was measured. */
void bench_data_create(bench_data *data, const bench_job *job, int64_t whole_length,
                       int64_t first, int64_t length);
void bench_data_destroy(bench_data *data);
shoal_problem bench_problem(const bench_data *data);
shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention);
shoal_gradients bench_gradients(const bench_data *data);
/* Index in an array [B][H][N][D] of feature `feature` (of M) of a row of the layer. */
int64_t bench_place(const bench_data *data, int64_t row, int64_t feature);
/* Digest of out and, in train mode, of the gradients. */
uint64_t bench_digest(const bench_data *data);

/* Counter-based: the same numbers on every machine. */
uint64_t bench_random(uint64_t seed, uint64_t counter);
/* Variance 1, counter-based; streams are 0 to 255. */
float bench_noise(uint64_t seed, uint64_t stream, int64_t at);

/* ---- The measured call (bench_run.c): attention, or the layer around it ----------- */

typedef struct {
    shoal_model *model;                     /* one post-norm layer, as in the paper */
    shoal_parameter parts[2 * EXACT_PARTS]; /* weight and bias of each part; the key's
                                               have no values if the kind uses the
                                               queries as keys */
    int64_t counts[2 * EXACT_PARTS];        /* number of elements */
    float *out; /* [B N][M], output of the last call; owned by the model */
} bench_layer;

typedef struct {
    shoal_plan *plan;  /* --scope attention */
    bench_layer layer; /* --scope layer */
} bench_subject;

shoal_plan *bench_plan(const bench_job *job, const bench_data *data,
                       const shoal_attention *attention, unsigned flags);
/* Seconds of one call: forward, and in train mode backward with dout = out, which is
   copied between them without being timed. */
double bench_call(shoal_plan *plan, const bench_data *data,
                  const shoal_attention *attention);

/* over: ranks that hold the other positions, or NULL. */
void bench_subject_create(const bench_job *job, const bench_data *data, int kind,
                          shoal_transport *over, bench_subject *subject);
void bench_subject_destroy(bench_subject *subject);
double bench_subject_call(const bench_job *job, bench_subject *subject,
                          const bench_data *data, int kind);
uint64_t bench_subject_digest(const bench_job *job, const bench_subject *subject,
                              const bench_data *data);
size_t bench_subject_workspace(const bench_job *job, const bench_subject *subject);

/* Measures all lengths and prints the report. */
int bench_run(bench_job *job);
/* Operations (multiplications and additions) in the formulas of one call. */
double bench_operations(const bench_job *job, int kind, int64_t length);

/* ---- Checks (bench_check.c, bench_layer.c) ----------------------------------------- */

/* Checks all known properties of the result of bench_call. Sets verified or wrong and
   the checks of the row; overwrites the results. */
void bench_verify(bench_job *job, shoal_plan *plan, bench_data *data, int kind,
                  bench_row *row);
/* Largest error of three gradients. The error of a tiny gradient, such as those of
   queries and keys if there is one position, is relative to this share of the
   largest. */
double bench_worst(squares sums[3], double share);
/* Adds a check to the row; a failed check marks the row as wrong. */
void bench_note(bench_row *row, const char *what, double error, double tolerance);

void bench_layer_create(const bench_job *job, const bench_data *data, int kind,
                        shoal_transport *over, bench_layer *layer);
/* Like bench_call; the gradient of the output is noise. */
double bench_layer_call(bench_layer *layer, const bench_data *data);
uint64_t bench_layer_digest(const bench_layer *layer, const bench_data *data);
/* Like bench_verify: first the attention inside, then the layer around it. */
void bench_verify_layer(bench_job *job, bench_layer *layer, bench_data *data, int kind,
                        bench_row *row);

/* ---- The machine (bench.c) --------------------------------------------------------- */

void bench_machine_measure(bench_rates *rates, int threads);
/* Resets the peak if the kernel allows it and returns the resident size; otherwise
   returns the peak so far, and only growth beyond it is measured. */
double bench_peak_begin(bool *resets);
double bench_peak_now(void);
extern const char bench_compiler[];

/* ---- Over ranks (bench_ranks.c) ---------------------------------------------------- */

/* Runs the command under a launcher. */
int bench_over_ranks(bench_job *job);

/* ---- Reports (bench_report.c) ------------------------------------------------------ */

/* Two lines: what is measured, and on which machine. */
void bench_print_subject(const bench_job *job);
/* Seconds of the best repetition. */
double bench_best(const bench_row *row);
/* Prints the rows that are not yet printed, up to the given number of lengths. */
void bench_print_rows(bench_job *job, int lengths);
/* Prints the remaining rows or the JSON, and writes the files. */
int bench_report(bench_job *job);

#endif
