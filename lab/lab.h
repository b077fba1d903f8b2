/* Shared by the commands that measure. */
#ifndef SHOAL_LAB_LAB_H
#define SHOAL_LAB_LAB_H

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"

/* Equal numbers of queries and keys, arrays [batch][heads][length][dim]. */
static inline shoal_problem square_problem(int64_t batch, int64_t heads, int64_t length,
                                           int64_t dim, int64_t value_dim) {
    return (shoal_problem){.size = sizeof(shoal_problem),
                           .batch = batch,
                           .heads = heads,
                           .queries = length,
                           .keys = length,
                           .dim = dim,
                           .value_dim = value_dim};
}

/* Folds the bits of an array into a digest. */
static inline uint64_t fold_floats(uint64_t digest, const float *array, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, array + i, sizeof bits);
        digest = (digest ^ bits) * 0x100000001b3u;
    }
    return digest;
}

static inline double dot_floats(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Accumulates a relative error |made - expected| / |expected|. */
typedef struct {
    double error, size;
} squares;

static inline void squares_add(squares *sums, double made, double expected) {
    sums->error += (made - expected) * (made - expected);
    sums->size += expected * expected;
}

static inline double squares_relative(squares sums) {
    return sums.error == 0 ? 0 : sqrt(sums.error / sums.size);
}

static inline void squares_add_floats(squares *sums, const float *made,
                                      const float *expected, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        squares_add(sums, (double)made[i], (double)expected[i]);
}

static inline double relative_error(const float *made, const float *expected,
                                    int64_t count) {
    squares sums = {0};
    squares_add_floats(&sums, made, expected, count);
    return squares_relative(sums);
}

/* For up to 128 repetitions; INFINITY and NAN if there are none. */
static inline double best_of(const double *seconds, int count) {
    double best = INFINITY;
    for (int i = 0; i < count; i++)
        best = fmin(best, seconds[i]);
    return best;
}

static inline double median_of(const double *seconds, int count) {
    double sorted[128];
    memcpy(sorted, seconds, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_double);
    return count > 0 ? (sorted[(count - 1) / 2] + sorted[count / 2]) / 2 : NAN;
}

/* Three digits in a column of that width after a space, preceded by a mark such as "~";
   numbers below 0.0995 have `small` decimals. */
static inline void print_digits(int width, double value, const char *mark, int small) {
    char text[32];
    const int decimals = value >= 99.95    ? 0
                         : value >= 9.995  ? 1
                         : value >= 0.0995 ? 2
                                           : small;
    snprintf(text, sizeof text, "%s%.*f", mark, decimals, value);
    printf(" %*s", width, text);
}

/* The larger error; NaN is sticky. */
static inline double worse(double worst, double error) {
    return error <= worst ? worst : error;
}

#endif
