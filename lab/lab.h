/* What the commands that measure share. */
#ifndef SHOAL_LAB_LAB_H
#define SHOAL_LAB_LAB_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "shoal.h"

static inline const shoal_kind_info *kind_facts(const shoal_attention *attention) {
    return shoal_kind_describe((int)attention->kind);
}

/* The laboratory's random numbers are this of a number for each: splitmix64's
   finaliser. */
static inline uint64_t mix_bits(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Folds the bits of an array into a digest; any change of any of them changes it. */
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

/* Relative error of a vector, |made - expected| / |expected|, in two sums. */
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

/* The larger error; a NaN, once there, stays. */
static inline double worse(double worst, double error) {
    return error <= worst ? worst : error;
}

#endif
