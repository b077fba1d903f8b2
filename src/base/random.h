/* Counter-based random numbers: a pure function of (seed, stream, counter), without
   state, the same on every machine, with random access. */
#ifndef SHOAL_BASE_RANDOM_H
#define SHOAL_BASE_RANDOM_H

#include <stdint.h>

/* Streams separate the uses of one seed. */
enum random_stream {
    STREAM_DIRECTIONS,   /* random directions of the hash */
    STREAM_STARTS,       /* initial centres of k-means */
    STREAM_ROTATIONS,    /* projections of lsh */
    STREAM_SAMPLES,      /* queries sampled by the error estimate */
    STREAM_WEIGHTS,      /* initial parameters of a model */
    STREAM_DROPOUT,      /* what dropout leaves out */
    STREAM_CALLER = 1000 /* and above: shoal_random's, for data */
};

/* The finaliser of splitmix64 (Steele, Lea, Flood 2014), a bijection with good
   mixing. */
static inline uint64_t random_mix(uint64_t x) {
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static inline uint64_t random_bits(uint64_t seed, enum random_stream stream,
                                   uint64_t counter) {
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    const uint64_t key = random_mix(seed + golden * ((uint64_t)stream + 1));
    return random_mix(random_mix(key + golden * (counter + 1)) ^ key);
}

/* Uniform in 0 .. bound - 1; bound > 0. */
static inline uint64_t random_below(uint64_t seed, enum random_stream stream,
                                    uint64_t counter, uint64_t bound) {
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)(((wide)random_bits(seed, stream, counter) * bound) >> 64);
}

/* Approximately standard normal. Box-Muller needs log and cos, whose last bit differs
   between C libraries. The sum of 16 uniform 16-bit numbers is an integer and the same
   everywhere. Its distribution function is within 0.002 of the normal one; the tails
   are thinner (19 % less beyond 3 deviations, nothing beyond 7), which does not matter
   for directions and initial weights. */
static inline float random_normal(uint64_t seed, enum random_stream stream,
                                  uint64_t counter) {
    int32_t sum = 0;
    for (uint64_t word = 0; word < 4; word++) {
        const uint64_t bits = random_bits(seed, stream, 4 * counter + word);
        for (int part = 0; part < 4; part++)
            sum += (int32_t)((bits >> (16 * part)) & 0xffff);
    }
    /* sqrt(16 * (65536^2 - 1) / 12) is 75674.45. The relative difference of 2e-6 is
       kept, since another constant would change the numbers of every seed. */
    const float deviation = 75674.29f;
    return (float)(sum - 16 * 65535 / 2) / deviation;
}

/* `count` distinct numbers from 0 .. bound - 1 in increasing order, count <= bound: one
   from each of `count` equal parts. */
static inline void random_subset(uint64_t seed, enum random_stream stream, int64_t bound,
                                 int64_t count, int32_t *chosen) {
    for (int64_t i = 0; i < count; i++) {
        __extension__ typedef __int128 wide;
        const int64_t first = (int64_t)((wide)i * bound / count);
        const int64_t next = (int64_t)((wide)(i + 1) * bound / count);
        chosen[i] = (int32_t)(first + (int64_t)random_below(seed, stream, (uint64_t)i,
                                                            (uint64_t)(next - first)));
    }
}

#endif
