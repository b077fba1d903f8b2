/* Halves in memory: IEEE half precision, 1 sign, 5 exponent and 10 fraction bits; and
   bfloat16, the upper half of a float. */
#ifndef SHOAL_KERNELS_HALF_H
#define SHOAL_KERNELS_HALF_H

#include <stdint.h>

/* Exact for every half: subnormal numbers, infinities and NaN included. */
static inline float half_to_float(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } magnitude, scale = {UINT32_C(0x77800000)}; /* 2^112: moves the exponent's bias */
    uint32_t low = (uint32_t)half & 0x7fffu;
    magnitude.bits = low << 13;
    magnitude.value *= scale.value;
    /* Exponent 31 is infinity or NaN: it becomes 255. */
    magnitude.bits |= low >= 0x7c00u ? UINT32_C(0x7f800000) : 0;
    magnitude.bits |= ((uint32_t)half & 0x8000u) << 16;
    return magnitude.value;
}

/* The nearest half, of two equally near the even one; beyond the largest, 65504, that.
   NaN stays NaN. */
static inline uint16_t float_to_half(float value) {
    union {
        float value;
        uint32_t bits;
    } x = {value}, small;
    const uint32_t sign = x.bits >> 16 & 0x8000u;
    x.bits &= UINT32_C(0x7fffffff);
    if (x.bits > UINT32_C(0x7f800000))
        return (uint16_t)(sign | 0x7e00u);
    if (x.bits >= UINT32_C(0x477fe000)) /* 65504 */
        return (uint16_t)(sign | 0x7bffu);
    if (x.bits < UINT32_C(0x38800000)) { /* below 2^-14: the sum rounds at 2^-24 */
        small.value = x.value + 0.5f;
        return (uint16_t)(sign | (small.bits - UINT32_C(0x3f000000)));
    }
    /* Half of the last bit kept, less one where that is even, and the bias. */
    x.bits += UINT32_C(0xc8000fff) + (x.bits >> 13 & 1);
    return (uint16_t)(sign | x.bits >> 13);
}

/* To nearest, ties to even; beyond 65504 by more than rounding infinity. */
static inline uint16_t round_to_half(float x) {
    union {
        float value;
        uint32_t bits;
    } pun = {x};
    const uint32_t sign = pun.bits >> 16 & 0x8000u;
    pun.bits &= UINT32_C(0x7fffffff);
    if (pun.bits > UINT32_C(0x7f800000)) /* NaN: what fits of its bits, and quiet */
        return (uint16_t)(sign | 0x7e00u | (pun.bits >> 13 & 0x3ffu));
    if (pun.bits >= UINT32_C(0x477ff000)) /* 65520 */
        return (uint16_t)(sign | 0x7c00u);
    if (pun.bits < UINT32_C(0x38800000)) { /* 2^-14: the addition of 1/2 rounds */
        pun.value += 0.5f;
        return (uint16_t)(sign | (pun.bits - UINT32_C(0x3f000000)));
    }
    pun.bits += 0xfffu + (pun.bits >> 13 & 1);
    return (uint16_t)(sign | (pun.bits - UINT32_C(0x38000000)) >> 13);
}

static inline float bfloat_to_float(uint16_t half) {
    union {
        uint32_t bits;
        float value;
    } pun = {(uint32_t)half << 16};
    return pun.value;
}

static inline uint16_t round_to_bfloat(float x) {
    union {
        float value;
        uint32_t bits;
    } pun = {x};
    const uint32_t quiet = pun.bits >> 16 | 0x40u;
    const uint32_t nearest = (pun.bits + 0x7fffu + (pun.bits >> 16 & 1)) >> 16;
    return (uint16_t)((pun.bits & UINT32_C(0x7fffffff)) > UINT32_C(0x7f800000) ? quiet
                                                                               : nearest);
}

/* Two in a word, the first in the lower half. */
static inline uint32_t bfloat_pair(float first, float second) {
    return round_to_bfloat(first) | (uint32_t)round_to_bfloat(second) << 16;
}

static inline float bits_to_float(uint32_t bits) {
    union {
        uint32_t bits;
        float value;
    } x = {bits};
    return x.value;
}

#endif
