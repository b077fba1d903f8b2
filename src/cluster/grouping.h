/* Queries sorted by group. */
#ifndef SHOAL_CLUSTER_GROUPING_H
#define SHOAL_CLUSTER_GROUPING_H

#include <stdint.h>

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

#endif
