/* Members of clusters sorted by cluster, and within a cluster so that similar members
   are adjacent; and the k best of a stream of candidates. */
#ifndef SHOAL_CLUSTER_GROUPING_H
#define SHOAL_CLUSTER_GROUPING_H

#include "base/memory.h"
#include "kernels/kernels.h"

/* Members of cluster j: order[offsets[j]] .. order[offsets[j + 1] - 1], ascending.
   Cluster -1 means none. */
typedef struct {
    int32_t clusters;
    int32_t *offsets; /* [clusters + 1] */
    int32_t *order;   /* [n] */
    int32_t used;     /* clusters 0 .. used - 1 hold all members; some may be empty */
} grouping;

/* Sets only offsets and used, not the order. */
void sh_group_count(grouping *sorted, const int32_t *groups, int64_t n);

void sh_group_sort(grouping *sorted, const int32_t *groups, int64_t n);

/* ---- The k best -------------------------------------------------------------------- */

/* The k largest of a stream of scores, with their keys: lists grow unsorted and are cut
   back to about k when they are full, so that most scores cost one comparison. */

/* Capacity of a list, which is cut when a block of keys might not fit. Twice k is best:
   with fewer cuts, the k-th largest score that new candidates must exceed is out of
   date; with more, cutting costs more. */
static inline int64_t topk_capacity(int64_t k) {
    return 2 * k + KEY_BLOCK;
}

/* One list per lane of a panel, interleaved, because they are cut together. */
typedef struct {
    const kernel_table *kernels;
    int32_t k;
    int even;        /* nothing was cut yet: all lists are equally long */
    float *list;     /* [topk_capacity(k)][width]: scores */
    int32_t *keys;   /* [topk_capacity(k)][width] */
    int32_t *counts; /* [width] */
    float *floor;    /* [width]: only greater scores are candidates */
} topk_lists;

/* Numbers of 8 bytes that the lists of `lanes` lanes take. */
static inline int64_t topk_size(int64_t k, int64_t lanes) {
    return lanes * topk_capacity(k);
}

/* Lists for up to kernels->panel lanes in memory[topk_size()]; the rest has a number for
   each lane. */
topk_lists sh_topk_lists(const kernel_table *kernels, int32_t k, uint64_t *memory,
                         int32_t *counts, float *floor);

/* Empty lists that collect what exceeds floor [width]: everything (-infinity), nothing
   (infinity), or what may be among the k largest. */
void sh_topk_start(topk_lists *lists, int width, const float *floor);

/* Adds the scores [count][width] of at most KEY_BLOCK keys from `first` on. */
void sh_topk_collect(topk_lists *lists, const float *scores, int width, int count,
                     int64_t first);

/* Cuts the lists to the k largest. */
void sh_topk_finish(topk_lists *lists, int width);

/* Writes what is left of a lane's list as candidates (see candidate_pack), in no order;
   returns how many. */
int32_t sh_topk_take(const topk_lists *lists, int lane, int width, uint64_t *to);

/* Moves the k largest of list[0 .. count - 1] to its front, unsorted; returns the
   number left. */
int32_t sh_topk_cut(uint64_t *list, int32_t count, int32_t k);

/* Sorts in decreasing order. */
void sh_topk_sort(uint64_t *list, int32_t count);

/* ---- Sorting similar rows together ------------------------------------------------ */

enum { HALVING_MOST = 4096 /* maximum number of rows per call */ };

/* Scratch memory of one thread. */
typedef struct {
    const kernel_table *kernels;
    int dims;
    float *mean, *along, *upper; /* [dims] */
    float *places;               /* [HALVING_MOST]: coordinates of rows along the
                                    direction */
    int32_t *front;              /* [HALVING_MOST]: rows of the upper half */
} halving_work;

void sh_halving_place(halving_work *work, const kernel_table *kernels, int dims,
                      block_layout *place);

/* Permutes the n <= HALVING_MOST rows [n][dims] and their entries in `order`:
   recursively bisects them along the direction between the means of the two halves,
   until `leaf` rows or fewer are left. The initial halves are by the coordinate with
   the largest variance. The size of left parts is a multiple of `leaf`. Same bits on
   every instruction set. */
void sh_halve(halving_work *work, float *rows, int32_t *order, int64_t n, int64_t leaf);

#endif
