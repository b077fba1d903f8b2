/* shoal quality, in files: the command line and folders of arrays (quality.c), what is
   measured in which order and the weights of sampled queries (quality_run.c), and all
   that is printed and drawn (quality_report.c).

   Shapes: B batch, H heads, G key/value heads, N queries, S keys, D dim, Dv value_dim. */
#ifndef SHOAL_LAB_QUALITY_H
#define SHOAL_LAB_QUALITY_H

#include <stdbool.h>

#include "shoal.h"
#include "shoal_models.h"

enum { QUALITY_KINDS = 24, QUALITY_LAYERS = 256, QUALITY_NAME = 128 };

/* How far a row applied to V may be from the library's output, as a share of the largest
   sum of weight x |v|; more where scores are in the hundreds. */
#define QUALITY_ROW_TOLERANCE 1e-4

typedef enum {
    METRIC_ERROR,  /* |out - full's out| / |full's out|, the layer as one long vector */
    METRIC_ROW_L1, /* mean over the sampled queries of |row - full's row|, L1 */
    METRIC_AGREEMENT, /* share of the sampled queries with full's strongest key */
    METRIC_SECONDS,   /* of a call, the best of the repeats */
    METRIC_ROW_CHECK, /* largest difference of row V from the output, relative */
    METRICS
} quality_metric;

/* One kind on one layer. Where a kind has no rows their metrics are NAN. */
typedef struct {
    double value[METRICS];
} quality_cell;

typedef struct {
    const char *path;
    char title[QUALITY_NAME];  /* last part of the path */
    int layers, done;          /* done: measured whole */
    int layer[QUALITY_LAYERS]; /* numbers in the file names, growing */
    shoal_problem problem;     /* every layer's */
    int64_t clusters, samples; /* C of the kinds spelled with it; queries sampled */
    shoal_attention attention[QUALITY_KINDS];
    char spelling[QUALITY_KINDS][QUALITY_NAME];
    quality_cell cells[QUALITY_LAYERS][QUALITY_KINDS];
} quality_folder;

typedef struct {
    /* What was asked for. */
    char kind_texts[QUALITY_KINDS]
                   [QUALITY_NAME]; /* -C stands for the folder's clusters */
    int kinds, reference;          /* reference: which of them is full */
    const char *layers_text, *isa, *plot_path;
    int64_t clusters; /* 0: by the length */
    int64_t samples, threads, repeats;
    uint64_t seed;
    bool json;

    /* What is worked on. */
    shoal_context *context;
    quality_folder *folders; /* [folder_count] */
    int folder_count;
    bool interrupted;
} quality_job;

/* ---- Arrays (quality.c) ------------------------------------------------------------ */

/* Queries [B][H][N][D], keys [B][G][S][D], values [B][G][S][Dv] of one layer. */
typedef enum { ARRAY_Q, ARRAY_K, ARRAY_V, ARRAYS } quality_array;

typedef struct {
    shoal_array arrays[ARRAYS];
} quality_layer;

/* Reads one layer, and checks every number. Returns an exit code, after a complaint where
   it is not EXIT_OK. */
int quality_read(quality_job *job, const quality_folder *folder, int at,
                 quality_layer *layer);
void quality_release(quality_layer *layer);

/* ---- The run (quality_run.c) and its reports (quality_report.c) -------------------- */

int quality_measure(quality_job *job, quality_folder *folder);

void quality_print(const quality_job *job, const quality_folder *folder);
int quality_print_json(const quality_job *job);
int quality_write_plot(const quality_job *job);

#endif
