/* The one list of kernels: it declares them and makes the tables' fields, and
   tests/core/test_kernels.c does not build without a check of each. What each computes is
   written here; table_scalar.c is the same in C. */
#ifndef SHOAL_KERNELS_LIST_H
#define SHOAL_KERNELS_LIST_H

/* clang-format off */
#define SHOAL_KERNELS(KERNEL)                                                            \
    /* panel[d][i] = scale * x[index[i]][d] for i < count, 0 in the other lanes;         \
       index NULL: row i. Rows of x are `stride` elements apart. */                      \
    KERNEL(pack, (const float *x, int64_t stride, const int32_t *index, int count,       \
                  int width, int dim, float scale, float *panel))                        \
    /* x[index[i]][d] = factor[i] * panel[d][i] + shift[d] for i < count, added to what  \
       is there when `onto` is not 0; factor NULL: 1, shift NULL: 0. */                  \
    KERNEL(unpack, (const float *panel, int count, int width, int dim,                   \
                    const float *factor, const float *shift, int onto, float *x,         \
                    int64_t stride, const int32_t *index))                               \
    /* scores[r][i] = sum over d, in order, by fused multiply-add, of                    \
       rows[r][d] * panel[d][i]: the same bits on every instruction set. */              \
    KERNEL(score, (const float *panel, int width, int dim, const float *rows,            \
                   int64_t stride, int count, float *scores))                            \
    /* out[d][i] = out[d][i] * keep[i] + sum over r, in order, by fused multiply-add, of \
       rows[r][d] * weights[r][i]: the same bits on every instruction set. keep NULL:    \
       1. */                                                                             \
    KERNEL(mix, (const float *weights, int width, const float *rows, int64_t stride,     \
                 int count, int dim, const float *keep, float *out))                     \
    /* The same two of rows index[r]; mix_at without `keep`. */                          \
    KERNEL(score_at, (const float *panel, int width, int dim, const float *rows,         \
                      int64_t stride, const int32_t *index, int count, float *scores))   \
    KERNEL(mix_at, (const float *weights, int width, const float *rows, int64_t stride,  \
                    const int32_t *index, int count, int dim, float *out))               \
    /* out[r][d] += sum over i < lanes of weights[r][i] * x[i][d]. weights has `width`   \
       columns, any width >= lanes; out is [count] rows, `out_stride` apart. */          \
    KERNEL(spread, (const float *weights, int64_t width, int lanes, const float *x,      \
                    int64_t stride, int dim, int count, float *out, int64_t out_stride)) \
    /* scores[r][i] += x[i][r] for r < count, i < lanes <= width: rows of x, `stride`    \
       apart, are queries'. */                                                           \
    KERNEL(add_across, (const float *x, int64_t stride, int lanes, int width, int count, \
                        float *scores))                                                  \
    /* scores[r][i] += x[r * stride] for r < count. */                                   \
    KERNEL(add_to_rows, (const float *x, int64_t stride, int width, int count,           \
                         float *scores))                                                 \
    /* One block of a softmax that streams over keys. Per lane: raises top to the        \
       largest score, turns scores into exp(score - top), and rescales:                  \
       keep = exp(old top - top), sum = sum * keep + the block's sum. */                 \
    KERNEL(softmax_step, (float *scores, int width, int count, float *top, float *sum,   \
                          float *keep))                                                  \
    /* scores -> p = exp(score - top[i]) * inverse[i];                                   \
       slopes -> scale * p * (slope - delta[i]). */                                      \
    KERNEL(softmax_slope, (float *scores, float *slopes, int width, int count,           \
                           const float *top, const float *inverse, const float *delta,   \
                           float scale))                                                 \
    /* products[i] = sum over r of a[r][i] * b[r][i]. */                                 \
    KERNEL(dot_columns, (const float *a, const float *b, int width, int count,           \
                         float *products))                                               \
    /* Lists of candidates, one per lane: list[r][i] with its key in keys[r][i], for     \
       r < counts[i]. Appends scores[r][i] and first + r to lane i's where the score     \
       exceeds floor[i], for r < count <= KEY_BLOCK; there is room. */                   \
    KERNEL(collect, (const float *scores, int width, int count, int32_t first,           \
                     const float *floor, float *list, int32_t *keys,                     \
                     int32_t *counts))                                                   \
    /* The same while all lists are equally long: all grow by `count`, with -infinity    \
       where the score does not exceed the floor. */                                     \
    KERNEL(collect_all, (const float *scores, int width, int count, int32_t first,       \
                         const float *floor, float *list, int32_t *keys,                 \
                         int32_t *counts))                                               \
    /* Cuts the lists of as many lanes as a vector has, of which no list is longer than  \
       `rows`; what a lane has past its end, up to `rows`, is -infinity before and after.\
       Keeps the k largest, of equal ones the first, or up to `most` >= k of the largest;\
       in order, without those that are -infinity. Raises floor[i] where k are left, to a\
       number that k of them are at least. */                                            \
    KERNEL(cut_lists, (int width, int32_t rows, int32_t k, int32_t most, float *list,    \
                       int32_t *keys, int32_t *counts, float *floor))                    \
    /* Bit b % 8 of planes[b / 8][i] is scores[b][i] > 0, for b < bits; planes are       \
       HASH_BLOCK bytes apart. */                                                        \
    KERNEL(signs, (const float *scores, int width, int bits, uint8_t *planes))           \
    /* For each of HASH_BLOCK hashes the nearest of `count` <= NEAREST_CENTRES centres   \
       by Hamming distance, the first of equals. nibbles[n][i] is the n-th four bits of  \
       hash i; tables[c][n][x] the distance of x from the n-th four bits of centre c. */ \
    KERNEL(nearest, (const uint8_t *nibbles, int nibble_count, const uint8_t *tables,    \
                     int count, uint8_t *distance, uint8_t *centre))                     \
    /* best[i] = the largest over centres c of bias[c] + sum over r, in order, by fused  \
       multiply-add, of centres[c][r] * panel[r][i], and who[i] the first c that has it: \
       the same bits on every instruction set. Centres are `stride` >= rank apart. NaN   \
       is never the largest; if there is nothing else, best is -infinity and who 0. */   \
    KERNEL(closest, (const float *panel, int width, int rank, const float *centres,      \
                     int stride, const float *bias, int count, float *best,              \
                     int32_t *who))                                                      \
    /* counters[b] += by where bit b of the word is set. */                              \
    KERNEL(tally, (uint64_t word, int16_t by, int16_t counters[64]))                     \
    /* sums[d] = sum over i < count of weights[i] * x[index[i]][d], in order, by fused   \
       multiply-add within blocks of SUM_BLOCK rows: the same bits on every instruction  \
       set. index NULL: row i; weights NULL: 1. */                                       \
    KERNEL(sum_rows, (const float *x, int64_t stride, const int32_t *index,              \
                      const float *weights, int64_t count, int dim, float *sums))        \
    /* sums[d] = sum over i < count of x[index[i]][d], in order. */                      \
    KERNEL(sum_rows_wide, (const float *x, int64_t stride, const int32_t *index,         \
                           int64_t count, int dim, double *sums))                        \
    /* out[to[i]][d] += weights[i] * x[from[i]][d] for i < count, in order, by fused     \
       multiply-add: the same bits on every instruction set. */                          \
    KERNEL(scatter_rows, (const float *x, int64_t stride, const int32_t *from,           \
                          const int32_t *to, const float *weights, int64_t count,        \
                          int dim, float *out, int64_t out_stride))                      \
    /* out[r] = x[index[r]] . a for r < rows. */                                         \
    KERNEL(dots_at, (const float *x, int64_t stride, const int32_t *index, int64_t rows, \
                     int dim, const float *a, float *out))                               \
    /* with_a[r] = x[r] . a and with_b[r] = x[r] . b for r < rows. */                    \
    KERNEL(two_dots, (const float *x, int64_t stride, int64_t rows, int dim,             \
                      const float *a, const float *b, float *with_a, float *with_b))     \
    /* scores[r][i] += more[i] for r < count, and best[r][i] = the larger of it and the  \
       sum. */                                                                           \
    KERNEL(add_and_raise, (const float *more, int width, int count, float *scores,       \
                           float *best))                                                 \
    /* out[i] = more[i] + the largest over r < count of scores[r][i] - below[r]; -inf    \
       where that is NaN. */                                                             \
    KERNEL(largest_above, (const float *scores, int width, int count,                    \
                           const float *below, const float *more, float *out))           \
    /* places = where the k largest of x [count] are, in order; 0 <= k <= count. Of      \
       equal ones the first are taken. x has no NaN. */                                  \
    KERNEL(largest, (const float *x, int32_t count, int32_t k, int32_t *places))         \
    /* ---- Plain loops: body_plain.h ---- */                                            \
    /* y[i] += x[i]. */                                                                  \
    KERNEL(add, (int64_t count, const float *x, float *y))                               \
    /* y[i] *= x[i]. */                                                                  \
    KERNEL(multiply, (int64_t count, const float *x, float *y))                          \
    /* out[r] = x[r] . w for r < rows; rows of x are `stride` apart, w [inputs] is       \
       uint16_t halves where `half` is set, else float. */                               \
    KERNEL(dots, (int64_t inputs, int64_t rows, const float *x, int64_t stride,          \
                  const void *w, bool half, float *out))                                 \
    /* Halves to floats. */                                                              \
    KERNEL(widen, (int64_t count, const uint16_t *halves, float *out))                   \
    KERNEL(widen_bfloats, (int64_t count, const uint16_t *halves, float *out))           \
    /* And back, to nearest, ties to even. */                                            \
    KERNEL(round_halves, (int64_t count, const float *x, uint16_t *halves))              \
    KERNEL(round_bfloats, (int64_t count, const float *x, uint16_t *halves))
/* clang-format on */

#endif
