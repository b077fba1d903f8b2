/* The metric of the keys, and Euclidean k-means on queries projected by it
   (groups=keys). */
#ifndef SHOAL_CLUSTER_LLOYD_H
#define SHOAL_CLUSTER_LLOYD_H

#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

/* ---- The metric of the keys ------------------------------------------------------- */

/* Two queries attend alike if (a - b) K' is small, not if a - b is: with S the
   covariance of the keys, the relevant distance is (a - b)' S (a - b). This finds
   `dims` directions such that the Euclidean distance between projected queries is the
   best approximation of that distance for these queries: S = U'U, and the directions
   are V'U with V the leading eigenvectors of U Cq U', where Cq is the covariance of the
   queries. Both covariances come from an even sample.

   The dual gives coordinates of keys: z = Z'(k - mean of the keys). For a difference y
   of projected queries, y.z is the best approximation with `dims` numbers of its score
   with k minus the mean.

   All sums have a fixed order, and all products are kernels with a fixed order or plain
   C, so the projection has the same bits on every instruction set and number of
   threads. */
enum { METRIC_SAMPLE = 256 }; /* rows of the even sample for a covariance */

typedef struct {
    int dim, dims;           /* features; projection dimension */
    float *mean;             /* [dim] */
    float *sample;           /* [METRIC_SAMPLE][dim]: minus their mean */
    float *columns;          /* [METRIC_SAMPLE][kernels->panel]: some columns of it */
    float *keys, *queries;   /* [dim][dim]: covariances; keys becomes U */
    float *product, *target; /* [dim][dim]: U Cq, and U Cq U' */
    float *basis;            /* [dims][dim]: V' */
    float *panel, *scores;   /* [dim][kernels->panel] */
    float *projection;       /* [dims][dim]: the result */
    float *centre;           /* [dim]: mean of the sampled keys */
    double *normal;          /* [dims][dims] */
    double *dual;            /* [dims][dim] */
} metric_work;

void sh_metric_place(metric_work *work, const kernel_table *kernels, int dim, int dims,
                     block_layout *place);

/* Rows of queries or keys, without those hidden by their bias. */
typedef struct {
    const float *data;
    int64_t stride, count;
    const float *bias; /* or NULL */
    int64_t bias_step;
} metric_rows;

void sh_metric_find(metric_work *work, const kernel_table *kernels, metric_rows keys,
                    metric_rows queries);

/* After sh_metric_find: Z' [dims][dim] = (P'CqP)^-1 P'Cq. */
void sh_metric_dual(metric_work *work, const kernel_table *kernels, float *dual);

/* ---- Euclidean k-means ------------------------------------------------------------- */

/* Euclidean k-means on projected queries. Start: a few rounds of k-means++, each of
   which draws several centres in proportion to the squared distance from those already
   drawn. Then Lloyd's iterations, on an even sample if there are many queries,
   alternating between its halves, and one assignment of all queries. On ties the first
   centre is taken; a centre that loses its members stays. Same bits on every
   instruction set and number of threads. */
enum { LLOYD_PARTS = 8 }; /* number of partial sums of the sample */

/* Scratch memory of one thread. */
typedef struct {
    float *panel;     /* [dim][kernels->panel] */
    float *projected; /* [dims][kernels->panel] */
} lloyd_thread;

typedef struct {
    int clusters, dims, dim; /* dims: projection dimension */
    int64_t sample;          /* number of points to learn from, in the current run */
    int64_t half;            /* index of the first point of the second half */
    int64_t begin, end;      /* points used by the current step */
    float *panels;           /* the sample in panels, [dims][width] each */
    float *points;           /* [sample][dims] */
    float *squares;          /* [sample]: |y|^2 */
    float *closeness;      /* [sample]: y . c - |c|^2 / 2 for the nearest centre so far */
    float *weights;        /* [sample]: squared distance from that centre */
    float *weight_sums;    /* [blocks of the sample] */
    int32_t *nearest;      /* [sample]: index of that centre */
    float *centres;        /* [C][dims] */
    float *bias;           /* [C]: -|c|^2 / 2 */
    float *sums;           /* [LLOYD_PARTS][C][dims] */
    int32_t *sizes;        /* [LLOYD_PARTS][C] */
    lloyd_thread *threads; /* shared by all parallel runs */
} lloyd_work;

void sh_lloyd_place(lloyd_work *work, const kernel_table *kernels, int clusters, int dim,
                    int dims, int64_t n, block_layout *place);
void sh_lloyd_place_thread(lloyd_thread *thread, const kernel_table *kernels, int dim,
                           int dims, block_layout *place);

/* Clusters n queries, rows of q, projected by projection [dims][dim]. n >= clusters.
   projected, unless NULL, receives the projections [n][dims]. */
void sh_lloyd_run(lloyd_work *work, const kernel_table *kernels, team workers,
                  const float *q, int64_t stride, int64_t n, const float *projection,
                  int iterations, uint64_t seed, int32_t *groups, float *projected);

/* For n rows of q: projections [n][dims], plus shift [dims] unless that is NULL; and
   the index of the nearest centre, groups [n]. Either result may be NULL. */
void sh_lloyd_project(lloyd_work *work, const kernel_table *kernels, team workers,
                      const float *q, int64_t stride, int64_t n, const float *projection,
                      const float *shift, float *projected, int32_t *groups);

/* ---- Queries distributed over processes ------------------------------------------- */

/* Each process projects the points of the sample that it has, among all n queries; all
   processes learn the same centres from all points [sample][dims], and assign their own
   queries with sh_lloyd_project. */
int64_t sh_lloyd_sample(int64_t clusters, int64_t n);
/* The query of a point. */
int64_t sh_lloyd_query(int64_t sample, int64_t n, int64_t point);
void sh_lloyd_learn(lloyd_work *work, const kernel_table *kernels, team workers,
                    const float *points, int64_t n, int iterations, uint64_t seed);

#endif
