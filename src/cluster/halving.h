/* Rows in an order in which alike ones follow each other: halved again and again, along
   the direction between the halves' means, until `leaf` rows or fewer are left. The first
   halves are by the coordinate of largest variance. Left parts are a multiple of `leaf`.
   Same bits on every instruction set. */
#ifndef SHOAL_CLUSTER_HALVING_H
#define SHOAL_CLUSTER_HALVING_H

#include "base/memory.h"
#include "kernels/kernels.h"

enum { HALVING_MOST = 4096 /* rows at once */ };

/* One thread's scratch. */
typedef struct {
    const kernel_table *kernels;
    int rank;
    float *mean, *along, *upper; /* [rank] */
    float *ranked;               /* [HALVING_MOST]: where rows lie */
    int32_t *front;              /* [HALVING_MOST]: rows of the upper half */
} halving_work;

void sh_halving_place(halving_work *work, const kernel_table *kernels, int rank,
                      block_layout *place);

/* Moves the n <= HALVING_MOST rows [n][rank] and, with them, what `order` says about
   each. */
void sh_halve(halving_work *work, float *rows, int32_t *order, int64_t n, int64_t leaf);

#endif
