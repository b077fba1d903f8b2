#include "cluster/halving.h"

#include <string.h>

#include "base/numbers.h"

enum { HALVING_STEPS = 2 /* towards the direction between the halves' means */ };

void sh_halving_place(halving_work *work, const kernel_table *kernels, int rank,
                      block_layout *place) {
    work->kernels = kernels;
    work->rank = rank;
    work->mean = sh_reserve(place, rank, sizeof(float));
    work->along = sh_reserve(place, rank, sizeof(float));
    work->upper = sh_reserve(place, rank, sizeof(float));
    work->ranked = sh_reserve(place, HALVING_MOST, sizeof(float));
    work->front = sh_reserve(place, HALVING_MOST, sizeof(int32_t));
}

/* Loops over coordinates are worth their vectors only where the compiler knows how many
   there are: the passes below are compiled for the usual ranks. */
#define INLINE static inline __attribute__((always_inline))

/* The mean, and the coordinate of largest variance. */
INLINE int find_mean(const halving_work *work, const float *restrict rows, int64_t n,
                     const int rank) {
    float *restrict mean = work->mean, *restrict squares = work->upper;
    memset(mean, 0, sizeof(float) * (size_t)rank);
    memset(squares, 0, sizeof(float) * (size_t)rank);
    for (int64_t i = 0; i < n; i++)
        for (int d = 0; d < rank; d++) {
            const float x = rows[i * rank + d];
            mean[d] += x;
            squares[d] += x * x;
        }
    int found = 0;
    for (int d = 0; d < rank; d++) {
        mean[d] /= (float)n;
        squares[d] -= (float)n * mean[d] * mean[d];
        if (squares[d] > squares[found])
            found = d;
    }
    return found;
}

typedef float v4 __attribute__((vector_size(16)));

/* Where a row lies along the direction; a NaN lies in the middle. */
INLINE float place_of(const halving_work *work, const float *restrict row, float middle,
                      const int rank) {
    v4 sums = {0};
    int d = 0;
    for (; d + 4 <= rank; d += 4) {
        v4 x, along;
        memcpy(&x, row + d, sizeof x);
        memcpy(&along, work->along + d, sizeof along);
        sums += x * along;
    }
    float x = (sums[0] + sums[1]) + (sums[2] + sums[3]) - middle;
    for (; d < rank; d++)
        x += row[d] * work->along[d];
    return x == x ? x : 0;
}

/* From a direction to the one between the means of the rows above and below the middle:
   the upper ones' tells it, since both have the same mean. */
INLINE void follow_means(const halving_work *work, const float *restrict rows, int64_t n,
                         const int rank) {
    float *restrict upper = work->upper;
    const float middle = ordered_dot(work->mean, work->along, rank);
    float above = 0;
    memset(upper, 0, sizeof(float) * (size_t)rank);
    for (int64_t i = 0; i < n; i++) {
        const float *row = rows + i * rank;
        const float by = place_of(work, row, middle, rank) > 0 ? 1 : 0;
        above += by;
        for (int d = 0; d < rank; d++)
            upper[d] += by * row[d];
    }
    for (int d = 0; d < rank && above > 0; d++)
        work->along[d] = upper[d] / above - work->mean[d];
}

INLINE void find_direction_of(const halving_work *work, const float *rows, int64_t n,
                              const int rank) {
    const int start = find_mean(work, rows, n, rank);
    memset(work->along, 0, sizeof(float) * (size_t)rank);
    work->along[start] = 1;
    for (int step = 0; step < HALVING_STEPS; step++)
        follow_means(work, rows, n, rank);
}

static void find_direction(const halving_work *work, const float *rows, int64_t n) {
    switch (work->rank) {
    case 8: find_direction_of(work, rows, n, 8); break;
    case 16: find_direction_of(work, rows, n, 16); break;
    default: find_direction_of(work, rows, n, work->rank);
    }
}

INLINE void rank_rows_of(const halving_work *work, const float *rows, int64_t n,
                         const int rank) {
    const float middle = ordered_dot(work->mean, work->along, rank);
    for (int64_t i = 0; i < n; i++)
        work->ranked[i] = place_of(work, rows + i * rank, middle, rank);
}

static void rank_rows(const halving_work *work, const float *rows, int64_t n) {
    switch (work->rank) {
    case 8: rank_rows_of(work, rows, n, 8); break;
    case 16: rank_rows_of(work, rows, n, 16); break;
    default: rank_rows_of(work, rows, n, work->rank);
    }
}

static void swap_rows(float *rows, int32_t *order, int rank, int64_t a, int64_t b) {
    const int32_t kept = order[a];
    order[a] = order[b];
    order[b] = kept;
    for (int d = 0; d < rank; d++) {
        const float value = rows[a * rank + d];
        rows[a * rank + d] = rows[b * rank + d];
        rows[b * rank + d] = value;
    }
}

/* The `left` rows farthest up go to the front: those of them that lie behind change
   places with the others that do not. */
static void cut_exactly(const halving_work *work, float *rows, int32_t *order, int64_t n,
                        int64_t left) {
    const int32_t *front = work->front;
    rank_rows(work, rows, n);
    work->kernels->largest(work->ranked, (int32_t)n, (int32_t)left, work->front);
    int64_t behind = left;
    while (behind > 0 && front[behind - 1] >= left)
        behind--;
    for (int64_t low = 0, kept = 0; behind < left; low++) {
        if (front[kept] == low)
            kept++;
        else
            swap_rows(rows, order, work->rank, low, front[behind++]);
    }
}

void sh_halve(halving_work *work, float *rows, int32_t *order, int64_t n, int64_t leaf) {
    while (n > leaf) {
        find_direction(work, rows, n);
        int64_t left = max(1, (n + leaf) / (2 * leaf)) * leaf;
        left = left < n ? left : n / 2;
        cut_exactly(work, rows, order, n, left);
        sh_halve(work, rows, order, left, leaf);
        rows += left * work->rank;
        order += left;
        n -= left;
    }
}
