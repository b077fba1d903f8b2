/* IEEE half precision in memory: 1 sign, 5 exponent and 10 fraction bits. */
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

#endif
