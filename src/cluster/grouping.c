#include "cluster/grouping.h"

#include <math.h>
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

/* ---- The k best ------------------------------------------------------------------- */

static void swap(uint64_t *a, uint64_t *b) {
    uint64_t kept = *a;
    *a = *b;
    *b = kept;
}

static void insertion_sort(uint64_t *list, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        uint64_t value = list[i];
        int32_t place = i;
        for (; place > 0 && list[place - 1] < value; place--)
            list[place] = list[place - 1];
        list[place] = value;
    }
}

/* Larger ones before the returned place, smaller ones after, the pivot on it: the middle
   one of three, since lists that come in order are common. */
static int32_t partition(uint64_t *list, int32_t count) {
    uint64_t *middle = &list[count / 2], *last = &list[count - 1];
    if (*middle > list[0])
        swap(middle, list);
    if (*last > list[0])
        swap(last, list);
    if (*middle > *last)
        swap(middle, last);
    uint64_t pivot = *last;
    int32_t place = 0;
    for (int32_t i = 0; i < count - 1; i++) {
        uint64_t value = list[i];
        list[i] = list[place];
        list[place] = value;
        place += value > pivot;
    }
    swap(&list[place], last);
    return place;
}

int32_t sh_topk_cut(uint64_t *list, int32_t count, int32_t k) {
    if (count <= k)
        return count;
    uint64_t *part = list;
    int32_t size = count, wanted = k; /* the `wanted` largest of part[0 .. size - 1] */
    while (size > 8 && wanted > 0 && wanted < size) {
        int32_t place = partition(part, size);
        if (place >= wanted) {
            size = place;
            continue;
        }
        part += place + 1;
        size -= place + 1;
        wanted -= place + 1;
    }
    if (wanted > 0 && wanted < size)
        insertion_sort(part, size);
    return k;
}

void sh_topk_sort(uint64_t *list, int32_t count) {
    while (count > 16) {
        int32_t place = partition(list, count);
        if (place < count / 2) {
            sh_topk_sort(list, place);
            list += place + 1;
            count -= place + 1;
        } else {
            sh_topk_sort(list + place + 1, count - place - 1);
            count = place;
        }
    }
    insertion_sort(list, count);
}

void sh_topk_start(const topk_lists *lists, int live, int width) {
    for (int i = 0; i < width; i++) {
        lists->counts[i] = 0;
        lists->floor[i] = i < live ? -INFINITY : INFINITY;
    }
}

static void cut_lane(const topk_lists *lists, int lane) {
    uint64_t *list = topk_list(lists, lane);
    const int32_t count = sh_topk_cut(list, lists->counts[lane], lists->k);
    uint64_t worst = list[0];
    for (int32_t i = 1; i < count; i++)
        worst = list[i] < worst ? list[i] : worst;
    lists->counts[lane] = count;
    lists->floor[lane] = candidate_score(worst);
}

void sh_topk_collect(const topk_lists *lists, const float *scores, int live, int width,
                     int count, int64_t first) {
    const int64_t capacity = topk_capacity(lists->k);
    for (int i = 0; i < live; i++)
        if (lists->counts[i] >= capacity - KEY_BLOCK)
            cut_lane(lists, i);
    lists->kernels->collect(scores, width, count, (int32_t)first, lists->floor,
                            lists->candidates, capacity, lists->counts);
}
