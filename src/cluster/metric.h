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
#ifndef SHOAL_CLUSTER_METRIC_H
#define SHOAL_CLUSTER_METRIC_H

#include "base/memory.h"
#include "kernels/kernels.h"

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

#endif
