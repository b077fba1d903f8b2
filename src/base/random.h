/* Random numbers that are a pure function of (seed, stream, counter): no state to carry,
   the same on every machine, and any element can be had without the ones before it. */
#ifndef SHOAL_BASE_RANDOM_H
#define SHOAL_BASE_RANDOM_H

#include "base/export.h"

#include <stdint.h>

/* Streams keep the uses of one seed apart. */
enum random_stream {
    STREAM_DIRECTIONS,   /* the hash's random directions */
    STREAM_STARTS,       /* k-means' first centres */
    STREAM_ROTATIONS,    /* lsh's projections */
    STREAM_SAMPLES,      /* queries that the error estimate looks at */
    STREAM_WEIGHTS,      /* a model's first parameters */
    STREAM_DROPOUT,      /* what dropout leaves out */
    STREAM_CALLER = 1000 /* and on: shoal_random's, for data */
};

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection that mixes well. */
static inline uint64_t random_mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

SHOAL_PRIVATE uint64_t sh_random_bits(uint64_t seed, enum random_stream stream,
                                      uint64_t counter);
/* Uniform in 0 .. bound - 1; bound > 0. */
SHOAL_PRIVATE uint64_t sh_random_below(uint64_t seed, enum random_stream stream,
                                       uint64_t counter, uint64_t bound);
/* Nearly standard normal (see random.c), the same bits on every machine. */
SHOAL_PRIVATE float sh_random_normal(uint64_t seed, enum random_stream stream,
                                     uint64_t counter);

/* `count` distinct numbers of 0 .. bound - 1 in increasing order, count <= bound: one of
   each of `count` equal parts. */
void sh_random_subset(uint64_t seed, enum random_stream stream, int64_t bound,
                      int64_t count, int32_t *chosen);

#endif
