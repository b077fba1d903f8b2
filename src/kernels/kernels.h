/* The vector room. A kernel works on panels: up to `panel` queries side by side, one lane
 * each, so that softmax needs no sums across lanes and keys and values are read where
 * they lie, without packing.
 *
 *     panel of queries   [dim][width]      panel[d * width + i], lane i
 *     block of scores    [count][width]    one row per key
 *     panel of outputs   [value_dim][width]
 *
 * width is a multiple of the table's `lanes`, at most its `panel`. Lanes without a query
 * hold 0. Panels and blocks are aligned to a cache line; rows are not.
 *
 * The scalar table is the specification. The vector tables are one body, body_tiles.h,
 * body_rows.h and body_plain.h, compiled with each instruction set's flags;
 * tests/core/test_kernels.c compares them with the scalar one. */
#ifndef SHOAL_KERNELS_KERNELS_H
#define SHOAL_KERNELS_KERNELS_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/list.h"
#include "kernels/tables.h"
#include "shoal.h"

enum {
    MAX_PANEL = 48,        /* lanes of the widest panel of any table */
    KEY_BLOCK = 64,        /* keys that are scored before their values are mixed */
    HASH_BLOCK = 64,       /* queries whose hashes lie together */
    NEAREST_CENTRES = 256, /* centres one `nearest` call may compare */
    SUM_BLOCK = 64         /* rows that sum_rows adds before it adds to the total */
};

/* What the largest score of a softmax starts from. Not -inf: where all scores so far are
   -inf, the largest would be too, and exp(-inf - -inf) is NaN. */
#define LOWEST_SCORE (-FLT_MAX)

/* A key with such a bias is seen by nobody: -inf, or PyTorch's way to mask, the lowest
   number. */
static inline int hides_key(float bias) {
    return bias <= LOWEST_SCORE / 8;
}

SHOAL_KERNELS(KERNEL_TYPE)

typedef struct kernel_table {
    const char *isa;
    int set;   /* its place in SHOAL_ISAS, which chooses the tables of other lists too */
    int lanes; /* lanes of a vector */
    int panel; /* lanes of the widest panel */
    SHOAL_KERNELS(KERNEL_FIELD)
} kernel_table;

/* The narrowest legal panel for count > 0 queries: at most kernels->panel lanes. */
static inline int panel_width(const kernel_table *kernels, int64_t count) {
    if (count >= kernels->panel)
        return kernels->panel;
    return (int)((count + kernels->lanes - 1) / kernels->lanes * kernels->lanes);
}

/* a . b, added up in the same order wherever it is compiled. Eight sums side by side: the
   compiler can use vectors without changing the order. */
static inline float ordered_dot(const float *a, const float *b, int n) {
    float sums[8] = {0}, total = 0;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            sums[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        total += a[i] * b[i];
    for (int j = 0; j < 8; j++)
        total += sums[j];
    return total;
}

/* Prefetches rows that will be needed soon. index NULL: row i. */
static inline void prefetch_rows(const float *x, int64_t stride, const int32_t *index,
                                 int64_t count, int64_t dim) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < dim; d += 16)
            __builtin_prefetch(x + (index ? index[i] : i) * stride + d);
}

/* The same for rows that will be written. */
static inline void prefetch_rows_to_write(float *x, int64_t stride, const int32_t *index,
                                          int64_t count, int64_t dim) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < dim; d += 16)
            __builtin_prefetch(x + index[i] * stride + d, 1);
}

/* Tables in order of preference, worst first; NULL past the end. Index 0 is scalar. */
const kernel_table *sh_kernel_table_at(int index);
/* Whether this machine can run the table. */
int sh_kernel_table_runs(const kernel_table *kernels);

/* A candidate for the best keys as one number: a higher score is larger, and of equal
   scores the lower key. Any float but NaN has its order; NaN is never a candidate. */
static inline uint64_t candidate_pack(float score, int32_t key) {
    union {
        float value;
        uint32_t bits;
    } pun = {score};
    uint32_t ordered = pun.bits & 0x80000000u ? ~pun.bits : pun.bits | 0x80000000u;
    return (uint64_t)ordered << 32 | (0xffffffffu - (uint32_t)key);
}

/* A number whose order as an integer is the float's, and the float of such a number. */
static inline int32_t float_order(float x) {
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

static inline float float_of_order(int32_t order) {
    const int32_t bits = order ^ (int32_t)((uint32_t)(order >> 31) >> 1);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline int32_t candidate_key(uint64_t candidate) {
    return (int32_t)(0xffffffffu - (uint32_t)candidate);
}

static inline float candidate_score(uint64_t candidate) {
    uint32_t ordered = (uint32_t)(candidate >> 32);
    union {
        uint32_t bits;
        float value;
    } pun = {ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered};
    return pun.value;
}

#endif
