/* shoal quality, in files: the command line, folders of arrays and what is measured in
   which order (quality.c), and all that is printed and drawn (quality_report.c).

   Shapes: B batch, H heads, G key/value heads, N queries, S keys, D dim, Dv value_dim. */
#ifndef SHOAL_LAB_QUALITY_H
#define SHOAL_LAB_QUALITY_H

#include "lab.h"

enum { QUALITY_LAYERS = 256 };

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
    char title[KIND_NAME];     /* last part of the path */
    int layers, done;          /* done: measured whole */
    int layer[QUALITY_LAYERS]; /* numbers in the file names, growing */
    shoal_problem problem;     /* every layer's */
    int64_t clusters, samples; /* C of the kinds spelled with it; queries sampled */
    kind_list kinds;
    quality_cell cells[QUALITY_LAYERS][KINDS_MOST];
} quality_folder;

typedef struct {
    /* What was asked for. */
    kind_list kinds; /* names: -C stands for the folder's clusters */
    int reference;   /* which of them is full */
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

void quality_print(const quality_job *job, const quality_folder *folder);
int quality_print_json(const quality_job *job);
void quality_write_plot(const quality_job *job);

#endif
