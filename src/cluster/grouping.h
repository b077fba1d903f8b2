/* Members of clusters in order: sorted by cluster, and within a cluster so that alike
   ones follow each other. */
#ifndef SHOAL_CLUSTER_GROUPING_H
#define SHOAL_CLUSTER_GROUPING_H

#include "base/memory.h"
#include "kernels/kernels.h"

/* Members of group j: order[offsets[j]] .. order[offsets[j + 1] - 1], ascending. Who is
   in group -1 is in none. */
typedef struct {
    int32_t clusters;
    int32_t *offsets; /* [clusters + 1] */
    int32_t *order;   /* [n] */
    int32_t used;     /* groups 0 .. used - 1 hold all members; some may be empty */
} grouping;

/* offsets and used alone: the order is left as it is. */
void sh_group_count(grouping *sorted, const int32_t *groups, int64_t n);

void sh_group_sort(grouping *sorted, const int32_t *groups, int64_t n);

/* ---- Alike rows ------------------------------------------------------------------- */

enum { HALVING_MOST = 4096 /* rows at once */ };

/* One thread's scratch. */
typedef struct {
    const kernel_table *kernels;
    int dims;
    float *mean, *along, *upper; /* [dims] */
    float *places;               /* [HALVING_MOST]: where rows lie */
    int32_t *front;              /* [HALVING_MOST]: rows of the upper half */
} halving_work;

void sh_halving_place(halving_work *work, const kernel_table *kernels, int dims,
                      block_layout *place);

/* Moves the n <= HALVING_MOST rows [n][dims] and, with them, what `order` says about
   each. They are halved again and again, along the direction between the halves' means,
   until `leaf` rows or fewer are left. The first halves are by the coordinate of largest
   variance. Left parts are a multiple of `leaf`. Same bits on every instruction set. */
void sh_halve(halving_work *work, float *rows, int32_t *order, int64_t n, int64_t leaf);

#endif
