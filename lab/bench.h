/* shoal bench, in files: the command line (bench.c), what is measured in which order
   (bench_run.c), the arrays (bench_data.c), the checks (bench_check.c, and
   bench_gradient.c for the backward pass), the whole layer (bench_layer.c) and its checks
   (bench_layer_check.c, bench_layer_gradient.c, in the mathematics of
   bench_layer_exact.c), the machine (bench_machine.c), the table and the files
   (bench_report.c, bench_json.c) and the picture (bench_plot.c).

   Shapes: B batch, H heads, N positions (queries and keys), D dim, Dv value_dim, M = H D
   features of a row of the layer, F of its feed-forward. An element is a position of a
   sequence: B x N of them. */
#ifndef SHOAL_CLI_BENCH_H
#define SHOAL_CLI_BENCH_H

#include <jansson.h>
#include <stdbool.h>

#include "shoal.h"
#include "shoal_models.h"

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
    char kind_texts[BENCH_KINDS][96];
    int kinds, lengths;
    int64_t length[BENCH_LENGTHS];
    int64_t heads, dim, value_dim, feed_forward, batch, threads, repeats, budget;
    uint64_t seed;
    bool train, layer, json, quick;
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

enum { BENCH_PROJECTIONS = 3 }; /* of queries, keys and values */

/* All contiguous and page-aligned. Those after `spare` exist for --mode train only. */
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

    /* --scope layer only. q, k and v are then features in another order, some with the
       other sign: feature `a` of projection p is feature s = sources[p][a], or minus
       feature ~s where s is negative. */
    int64_t *offsets;                 /* [B + 1] */
    int32_t *sources;                 /* [BENCH_PROJECTIONS][M] */
    float *features;                  /* [B N][M], one row per position */
    float *noise, *slope, *dfeatures; /* as features, train only: gradient of the output;
                                      its copy for a call; gradient of the features */
} bench_data;

/* False when memory ran out. The data are normally distributed noise. */
bool bench_data_create(bench_data *data, const bench_job *job, int64_t length);
void bench_data_destroy(bench_data *data);
shoal_problem bench_problem(const bench_data *data);
shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention);
bool bench_keys_are_queries(const shoal_attention *attention);

/* Counter-based: the same numbers everywhere. */
uint64_t bench_random(uint64_t seed, uint64_t counter);
/* Of variance 1, likewise; streams are 0 to 255. */
float bench_noise(uint64_t seed, uint64_t stream, int64_t at);

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

/* ---- The whole layer --------------------------------------------------------------- */

/* Parameters of a layer. The first ones have no say in what the attention chooses. */
enum {
    PART_OUTPUT,       /* [M][M] */
    PART_OUTPUT_BIAS,  /* [M] */
    PART_WIDEN,        /* [F][M] */
    PART_WIDEN_BIAS,   /* [F] */
    PART_NARROW,       /* [M][F] */
    PART_NARROW_BIAS,  /* [M] */
    PART_FIRST_SCALE,  /* [M], norm behind the attention */
    PART_FIRST_SHIFT,  /* [M] */
    PART_SECOND_SCALE, /* [M], norm behind the feed-forward */
    PART_SECOND_SHIFT, /* [M] */
    FREE_PARTS,
    PART_QUERY =
        FREE_PARTS, /* [M][M]; key and value follow. No key where the keys are the
                                queries: its values are NULL */
    PART_QUERY_BIAS = PART_QUERY + BENCH_PROJECTIONS, /* [M]; likewise */
    PARTS = PART_QUERY_BIAS + BENCH_PROJECTIONS
};

typedef struct {
    shoal_model *model; /* one layer, post-norm as in the paper */
    shoal_parameter parts[PARTS];
    const float *out; /* [B N][M], of the last call; the model's own */
} bench_layer;

/* NULL: layers can be measured. Otherwise why not. */
const char *bench_layer_missing(void);
shoal_status bench_layer_create(const bench_job *job, const bench_data *data, int kind,
                                bench_layer *layer);
void bench_layer_destroy(bench_layer *layer);
size_t bench_layer_workspace(const bench_layer *layer);
int64_t bench_part_count(const bench_layer *layer, int part);
shoal_status bench_layer_forward(bench_layer *layer, const bench_data *data);
/* Overwrites slope. */
shoal_status bench_layer_backward(bench_layer *layer, const bench_data *data);
/* As bench_call; the gradient of the output is noise. */
shoal_status bench_layer_call(bench_layer *layer, const bench_data *data,
                              double *seconds);
uint64_t bench_layer_digest(const bench_layer *layer, const bench_data *data);

/* As bench_verify: the attention inside, then the rest of the layer around it. */
shoal_status bench_verify_layer(bench_job *job, bench_layer *layer, bench_data *data,
                                int kind, bench_row *row);
/* Its part for the backward pass. The plan has just run forward. */
shoal_status bench_verify_layer_gradients(const bench_job *job, bench_layer *layer,
                                          shoal_plan *plan, bench_data *data, int kind,
                                          bench_row *row);

/* One row of the layer in double precision, behind its attention. */
typedef struct {
    const bench_layer *layer;
    int64_t model, wide;
    double *x, *attended;   /* [M], given */
    double *sum, *normed;   /* [M], in front of and behind the first norm */
    double *hidden, *awake; /* [F], in front of and behind the activation */
    double *end, *out;      /* [M], in front of and behind the second norm */
    double *dout;           /* [M], given */
    double *dsum;      /* [M], with respect to sum: what reaches x past the attention */
    double *dattended; /* [M] */
    double *spare;     /* [2 M + F] */
    double *gradients[FREE_PARTS]; /* added to; all rows together */
} bench_exact;

bool bench_exact_create(bench_exact *exact, const bench_layer *layer,
                        const bench_job *job, bool with_gradients);
void bench_exact_destroy(bench_exact *exact);
/* x and attended of row `row` from the data, whose `out` is the attention's. */
void bench_exact_load(bench_exact *exact, const bench_data *data, int64_t row);
void bench_exact_forward(bench_exact *exact);
void bench_exact_backward(bench_exact *exact);

/* ---- The run (bench_run.c) --------------------------------------------------------- */

/* One call and how long it took: forward, and in train mode backward with dout = out,
   which is copied in between while the clock stands. */
shoal_status bench_call(shoal_plan *plan, const bench_data *data,
                        const shoal_attention *attention, double *seconds);
/* Folds the bits of an array into a digest. */
uint64_t bench_fold(uint64_t digest, const float *array, int64_t count);
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
