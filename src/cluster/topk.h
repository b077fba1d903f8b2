/* The k largest of a stream of candidates (see candidate_pack): lists grow unsorted and
   are cut back to k when they are full, so that most candidates cost one comparison. */
#ifndef SHOAL_CLUSTER_TOPK_H
#define SHOAL_CLUSTER_TOPK_H

#include <stdint.h>

/* Room that a list needs when up to `block` candidates come at a time, and it is cut when
   there is no room for as many. Twice k is best: cut less often, and the k-th largest that
   new candidates must exceed is out of date; more often, and cutting costs more. */
static inline int64_t topk_capacity(int64_t k, int64_t block) {
    return 2 * k + block;
}

/* Moves the k largest of list[0 .. count - 1] to its front, in no order; returns how many
   are left. */
int32_t sh_topk_cut(uint64_t *list, int32_t count, int32_t k);

/* Sorts the largest first. */
void sh_topk_sort(uint64_t *list, int32_t count);

#endif
