/* shoal quality, by file: the command line, folders of arrays and the order of
   measurements (quality.c), and output (quality_report.c).

   Shapes: B batch, H heads, G key/value heads, N queries, S keys, D dim, Dv
   value_dim. */
#ifndef SHOAL_LAB_QUALITY_H
#define SHOAL_LAB_QUALITY_H

#include "lab.h"

enum { QUALITY_LAYERS = 256 };

/* Maximum difference between a row applied to V and the library's output, relative to
   the largest sum of weight x |v|; larger if scores are in the hundreds. */
#define QUALITY_ROW_TOLERANCE 1e-4

typedef enum {
    METRIC_ERROR,  /* |out - full's out| / |full's out|, the layer as one vector */
    METRIC_ROW_L1, /* mean over the sampled queries of the L1 norm of row - full's row */
    METRIC_AGREEMENT, /* share of the sampled queries with full's strongest key */
    METRIC_SECONDS,   /* of a call, best of the repeats */
    METRIC_ROW_CHECK, /* largest difference of row V from the output, relative */
    METRICS
} quality_metric;

/* One kind on one layer. Metrics are NAN if a kind has no rows. */
typedef struct {
    double value[METRICS];
} quality_cell;

typedef struct {
    const char *path;
    char title[KIND_NAME];     /* last part of the path */
    int layers, done;          /* done: completely measured */
    int layer[QUALITY_LAYERS]; /* numbers in the file names, increasing */
    shoal_problem problem;     /* the same for every layer */
    int64_t clusters, samples; /* C of the kinds; number of sampled queries */
    kind_list kinds;
    quality_cell cells[QUALITY_LAYERS][KINDS_MOST];
} quality_folder;

typedef struct {
    /* Options. */
    kind_list kinds; /* -C in names stands for the folder's clusters */
    int reference;   /* index of full */
    const char *layers_text, *isa, *plot_path;
    int64_t clusters; /* 0 to choose by length */
    int64_t samples, threads, repeats;
    uint64_t seed;
    bool json;

    /* State. */
    shoal_context *context;
    quality_folder *folders; /* [folder_count] */
    int folder_count;
    bool interrupted;
} quality_job;

void quality_print(const quality_job *job, const quality_folder *folder);
int quality_print_json(const quality_job *job);
void quality_write_plot(const quality_job *job);

#endif
