#include "cluster/grouping.h"

#include <math.h>
#include <string.h>

#include "base/numbers.h"

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

/* Counting sort. After the prefix sum offsets[j] is the start of cluster j;
   distributing its members advances it to the end of the cluster, which is the start of
   cluster j + 1; at the end all offsets move up by one place. */
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

/* ---- The k best -------------------------------------------------------------------- */

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

/* Larger ones before the returned index, smaller ones after it, the pivot on it. The
   pivot is the median of three, since sorted lists are common. */
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

topk_lists sh_topk_lists(const kernel_table *kernels, int32_t k, uint64_t *memory,
                         int32_t *counts, float *floor) {
    const int64_t size = kernels->panel * topk_capacity(k);
    float *list = (float *)(void *)memory;
    return (topk_lists){.kernels = kernels,
                        .k = k,
                        .list = list,
                        .keys = memory ? (int32_t *)(void *)(list + size) : NULL,
                        .counts = counts,
                        .floor = floor};
}

/* What lists have past their ends is -infinity. */
static void clear_ends(topk_lists *lists, int width) {
    const int64_t capacity = topk_capacity(lists->k);
    for (int64_t at = (int64_t)lists->counts[0] * width; at < capacity * width; at++)
        lists->list[at] = -INFINITY;
}

void sh_topk_start(topk_lists *lists, int width, const float *floor) {
    lists->even = 0;
    memcpy(lists->floor, floor, sizeof *floor * (size_t)width);
    memset(lists->counts, 0, sizeof *lists->counts * (size_t)width);
    for (int i = 0; i < width; i++)
        lists->even |= floor[i] == -INFINITY;
    if (!lists->even)
        clear_ends(lists, width);
}

/* Cuts the lists of each vector of lanes of which one is longer than `least`. */
static void cut(topk_lists *lists, int width, int32_t least, int32_t most) {
    const int lanes = lists->kernels->lanes;
    for (int i = 0; i < width; i += lanes) {
        int32_t rows = 0;
        for (int lane = i; lane < i + lanes; lane++)
            rows = lists->counts[lane] > rows ? lists->counts[lane] : rows;
        if (rows > least)
            lists->kernels->cut_lists(width, rows, lists->k, most, lists->list + i,
                                      lists->keys + i, lists->counts + i,
                                      lists->floor + i);
    }
}

void sh_topk_collect(topk_lists *lists, const float *scores, int width, int count,
                     int64_t first) {
    const int32_t capacity = (int32_t)topk_capacity(lists->k);
    if (lists->even && lists->counts[0] + count <= capacity) {
        lists->kernels->collect_all(scores, width, count, (int32_t)first, lists->floor,
                                    lists->list, lists->keys, lists->counts);
        return;
    }
    /* A few more than k may stay until the end: finding exactly k takes longer. */
    const int32_t most = lists->k + lists->k / 8;
    if (lists->even) {
        clear_ends(lists, width);
        cut(lists, width, 0, most);
    } else {
        cut(lists, width, capacity - KEY_BLOCK, most);
    }
    lists->even = 0;
    lists->kernels->collect(scores, width, count, (int32_t)first, lists->floor,
                            lists->list, lists->keys, lists->counts);
}

void sh_topk_finish(topk_lists *lists, int width) {
    cut(lists, width, 0, lists->k);
}

int32_t sh_topk_take(const topk_lists *lists, int lane, int width, uint64_t *to) {
    const int32_t count = lists->counts[lane];
    for (int64_t i = 0; i < count; i++)
        to[i] =
            candidate_pack(lists->list[i * width + lane], lists->keys[i * width + lane]);
    return count;
}

/* ---- Sorting similar rows together ------------------------------------------------ */

enum {
    HALVING_STEPS = 2 /* towards the direction between the means of the two halves */
};

void sh_halving_place(halving_work *work, const kernel_table *kernels, int dims,
                      block_layout *place) {
    work->kernels = kernels;
    work->dims = dims;
    work->mean = sh_reserve(place, dims, sizeof(float));
    work->along = sh_reserve(place, dims, sizeof(float));
    work->upper = sh_reserve(place, dims, sizeof(float));
    work->places = sh_reserve(place, HALVING_MOST, sizeof(float));
    work->front = sh_reserve(place, HALVING_MOST, sizeof(int32_t));
}

/* Loops over coordinates vectorise well only if the compiler knows their number: the
   passes below are compiled for the usual numbers of dimensions. */
#define INLINE static inline __attribute__((always_inline))

/* The mean, and the coordinate with the largest variance. */
INLINE int find_mean(const halving_work *work, const float *restrict rows, int64_t n,
                     const int dims) {
    float *restrict mean = work->mean, *restrict squares = work->upper;
    memset(mean, 0, sizeof(float) * (size_t)dims);
    memset(squares, 0, sizeof(float) * (size_t)dims);
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < dims; d++) {
            const float x = rows[i * dims + d];
            mean[d] += x;
            squares[d] += x * x;
        }
    int found = 0;
    for (int d = 0; d < dims; d++) {
        mean[d] /= (float)n;
        squares[d] -= (float)n * mean[d] * mean[d];
        if (squares[d] > squares[found])
            found = d;
    }
    return found;
}

typedef float v4 __attribute__((vector_size(16)));

/* Coordinate of a row along the direction; the middle for NaN. */
INLINE float place_of(const halving_work *work, const float *restrict row, float middle,
                      const int dims) {
    v4 sums = {0};
    int d = 0;
    for (; d + 4 <= dims; d += 4) {
        v4 x, along;
        memcpy(&x, row + d, sizeof x);
        memcpy(&along, work->along + d, sizeof along);
        sums += x * along;
    }
    float x = (sums[0] + sums[1]) + (sums[2] + sums[3]) - middle;
    for (; d < dims; d++)
        x += row[d] * work->along[d];
    return x == x ? x : 0;
}

/* Replaces a direction by the one between the means of the rows above and below the
   middle; the upper mean determines it, since the mean of both is known. */
INLINE void follow_means(const halving_work *work, const float *restrict rows, int64_t n,
                         const int dims) {
    float *restrict upper = work->upper;
    const float middle = ordered_dot(work->mean, work->along, dims);
    float above = 0;
    memset(upper, 0, sizeof(float) * (size_t)dims);
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows + i * dims;
        const float by = place_of(work, row, middle, dims) > 0 ? 1 : 0;
        above += by;
        for (int d = 0; d < dims; d++)
            upper[d] += by * row[d];
    }
    for (int d = 0; d < dims && above > 0; d++)
        work->along[d] = upper[d] / above - work->mean[d];
}

/* The direction, and the coordinate of every row along it. */
INLINE void find_places(const halving_work *work, const float *rows, int64_t n,
                        const int dims) {
    const int start = find_mean(work, rows, n, dims);
    memset(work->along, 0, sizeof(float) * (size_t)dims);
    work->along[start] = 1;
    for (int step = 0; step < HALVING_STEPS; step++)
        follow_means(work, rows, n, dims);
    const float middle = ordered_dot(work->mean, work->along, dims);
    for (int64_t i = 0; i < n; i++)
        work->places[i] = place_of(work, rows + i * dims, middle, dims);
}

static void swap_rows(float *rows, int32_t *order, int dims, int64_t a, int64_t b) {
    const int32_t kept = order[a];
    order[a] = order[b];
    order[b] = kept;
    for (int d = 0; d < dims; d++) {
        const float value = rows[a * dims + d];
        rows[a * dims + d] = rows[b * dims + d];
        rows[b * dims + d] = value;
    }
}

void sh_halve(halving_work *work, float *rows, int32_t *order, int64_t n, int64_t leaf) {
    while (n > leaf) {
        switch (work->dims) {
        case 8: find_places(work, rows, n, 8); break;
        case 16: find_places(work, rows, n, 16); break;
        default: find_places(work, rows, n, work->dims);
        }
        int64_t left = max(1, (n + leaf) / (2 * leaf)) * leaf;
        left = left < n ? left : n / 2;
        /* The `left` rows with the largest coordinates go to the front: those of them
           at the back are exchanged with the others at the front. */
        const int32_t *front = work->front;
        work->kernels->largest(work->places, (int32_t)n, (int32_t)left, work->front);
        int64_t behind = left;
        while (behind > 0 && front[behind - 1] >= left)
            behind--;
        for (int64_t low = 0, kept = 0; behind < left; low++) {
            if (front[kept] == low)
                kept++;
            else
                swap_rows(rows, order, work->dims, low, front[behind++]);
        }
        sh_halve(work, rows, order, left, leaf);
        rows += left * work->dims;
        order += left;
        n -= left;
    }
}
