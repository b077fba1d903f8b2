#include "cluster/grouping.h"

#include <string.h>

void sh_group_count(grouping *sorted, const int32_t *groups, int64_t n) {
    int32_t *offsets = sorted->offsets;
    memset(offsets, 0, ((size_t)sorted->clusters + 1) * sizeof *offsets);
    for (int64_t i = 0; i < n; i++)
        offsets[groups[i] + 1]++;
    offsets[0] = 0;
    sorted->used = 0;
    for (int32_t j = 0; j < sorted->clusters; j++) {
        if (offsets[j + 1] > 0)
            sorted->used = j + 1;
        offsets[j + 1] += offsets[j];
    }
}

/* Counting sort. When the sizes are added up, offsets[j] is where group j starts; dealing
   out its members moves it to where the group ends, which is where group j + 1 starts; so
   at the end all move up by one place. */
void sh_group_sort(grouping *sorted, const int32_t *groups, int64_t n) {
    int32_t *offsets = sorted->offsets;
    sh_group_count(sorted, groups, n);
    for (int64_t i = 0; i < n; i++)
        if (groups[i] >= 0)
            sorted->order[offsets[groups[i]]++] = (int32_t)i;
    for (int32_t j = sorted->clusters; j > 0; j--)
        offsets[j] = offsets[j - 1];
    offsets[0] = 0;
}
