/* Euclidean k-means on projected queries. Start: a few rounds of k-means++, each drawing
 * several centres at once, in proportion to the squared distance from those already
 * drawn. Then Lloyd's iterations, on an even sample where there are many queries, one
 * half of it by turns, and one assignment of all. Equal distances go to the first centre;
 * a centre that loses its members stays. Same bits on every instruction set and number of
 * threads. */
#ifndef SHOAL_CLUSTER_LLOYD_H
#define SHOAL_CLUSTER_LLOYD_H

#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

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
