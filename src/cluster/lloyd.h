/* groups=keys: the keys' own metric, and Euclidean k-means on queries projected by it. */
#ifndef SHOAL_CLUSTER_LLOYD_H
#define SHOAL_CLUSTER_LLOYD_H

#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

/* ---- The keys' own metric ---------------------------------------------------------- */

/* The keys' own metric. Two queries attend alike when (a - b) K' is small, not when a - b
 * is: with S the covariance of the keys, the distance that matters is (a - b)' S (a - b).
 * This finds `dims` directions such that plain Euclidean distance between projected
 * queries is that distance, as nearly as any `dims` directions can have it for these
 * queries: S = U'U, and the directions are V'U with V the leading eigenvectors of U Cq
 * U', Cq the covariance of the queries. Both covariances come from an even sample.
 *
 * Keys have coordinates of their own, its dual: z = Z'(k - centre), with which y.z of a
 * difference y of projected queries is as near to its score with k - centre as `dims`
 * numbers can be.
 *
 * Every sum has one order and every product is a kernel with one order or plain C, so the
 * projection is the same bits on every instruction set and number of threads. */
enum { METRIC_SAMPLE = 256 }; /* rows that a covariance is taken from, evenly */

typedef struct {
    int dim, dims;           /* features; projection dimension */
    float *mean;             /* [dim] */
    float *sample;           /* [METRIC_SAMPLE][dim]: less their mean */
    float *columns;          /* [METRIC_SAMPLE][kernels->panel]: some columns of it */
    float *keys, *queries;   /* [dim][dim]: covariances; keys becomes U */
    float *product, *target; /* [dim][dim]: U Cq, and U Cq U' */
    float *basis;            /* [dims][dim]: V' */
    float *panel, *scores;   /* [dim][kernels->panel] */
    float *projection;       /* [dims][dim]: the result */
    float *centre;           /* [dim]: mean of the keys that were looked at */
    double *normal;          /* [dims][dims] */
    double *dual;            /* [dims][dim] */
} metric_work;

void sh_metric_place(metric_work *work, const kernel_table *kernels, int dim, int dims,
                     block_layout *place);

/* Rows of queries or keys. Those that their bias hides are not there. */
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

/* Euclidean k-means on projected queries. Start: a few rounds of k-means++, each drawing
 * several centres at once, in proportion to the squared distance from those already
 * drawn. Then Lloyd's iterations, on an even sample where there are many queries, one
 * half of it by turns, and one assignment of all. Equal distances go to the first centre;
 * a centre that loses its members stays. Same bits on every instruction set and number of
 * threads. */
enum { LLOYD_PARTS = 8 }; /* parts that the sample's sums are made of */

/* One thread's scratch. */
typedef struct {
    float *panel;     /* [dim][kernels->panel] */
    float *projected; /* [dims][kernels->panel] */
} lloyd_thread;

typedef struct {
    int clusters, dims, dim; /* dims: projection dimension */
    int64_t sample;          /* points that centres are learnt on, in the run under way */
    int64_t half;            /* number of the first point of the second half */
    int64_t begin, end;      /* points that the step under way looks at */
    float *panels;           /* the sample in panels, [dims][width] each */
    float *points;           /* [sample][dims] */
    float *squares;          /* [sample]: |y|^2 */
    float *closeness;      /* [sample]: y . c - |c|^2 / 2 for the nearest centre so far */
    float *weights;        /* [sample]: squared distance from it */
    float *weight_sums;    /* [blocks of the sample] */
    int32_t *nearest;      /* [sample]: which it is */
    float *centres;        /* [C][dims] */
    float *bias;           /* [C]: -|c|^2 / 2 */
    float *sums;           /* [LLOYD_PARTS][C][dims] */
    int32_t *sizes;        /* [LLOYD_PARTS][C] */
    lloyd_thread *threads; /* shared by all that run side by side */
} lloyd_work;

void sh_lloyd_place(lloyd_work *work, const kernel_table *kernels, int clusters, int dim,
                    int dims, int64_t n, block_layout *place);
void sh_lloyd_place_thread(lloyd_thread *thread, const kernel_table *kernels, int dim,
                           int dims, block_layout *place);

/* Groups of n queries, rows of q, projected by projection [dims][dim]. n >= clusters.
   projected, unless NULL, gets the queries' projections [n][dims]. */
void sh_lloyd_run(lloyd_work *work, const kernel_table *kernels, team workers,
                  const float *q, int64_t stride, int64_t n, const float *projection,
                  int iterations, uint64_t seed, int32_t *groups, float *projected);

/* Of n rows of q: projections [n][dims], plus shift [dims] unless that is NULL; and the
   nearest of the centres that were found, groups [n]. Either result may be NULL. */
void sh_lloyd_project(lloyd_work *work, const kernel_table *kernels, team workers,
                      const float *q, int64_t stride, int64_t n, const float *projection,
                      const float *shift, float *projected, int32_t *groups);

/* ---- Queries of which others have some -------------------------------------------- */

/* The same in parts: points of the sample, of all n queries, are projected by whoever has
   them; everybody learns the same centres from all points [sample][dims]; and assigns its
   own queries by sh_lloyd_project. */
int64_t sh_lloyd_sample(int64_t clusters, int64_t n);
/* Which query a point is. */
int64_t sh_lloyd_query(int64_t sample, int64_t n, int64_t point);
void sh_lloyd_learn(lloyd_work *work, const kernel_table *kernels, team workers,
                    const float *points, int64_t n, int iterations, uint64_t seed);

#endif
