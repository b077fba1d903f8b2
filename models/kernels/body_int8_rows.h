/* Rows of floats to bytes, for products of bytes. Elementwise without fused products, and
   a minimum and a maximum have no order: the same bits on every instruction set. */
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "models/kernels/kernels.h"

enum { QUANTISE_LANES = 32 };

typedef struct {
    float low, high;
    uint32_t top; /* the largest magnitude's bits */
} row_range;

/* Of x[i] factors[i], and of 0. NaN does not count in low and high. */
static row_range range_of(int64_t inputs, const float *x, const float *factors) {
    float low[QUANTISE_LANES] = {0}, high[QUANTISE_LANES] = {0};
    uint32_t top[QUANTISE_LANES] = {0};
    float some[QUANTISE_LANES];
    for (int64_t first = 0; first < inputs; first += QUANTISE_LANES) {
        const int64_t count = inputs - first;
        const float *here = x + first;
        if (count < QUANTISE_LANES) {
            memset(some, 0, sizeof some);
            memcpy(some, here, (size_t)count * sizeof *some);
            for (int64_t i = 0; factors && i < count; i++)
                some[i] *= factors[first + i];
            here = some;
        } else if (factors) {
            for (int i = 0; i < QUANTISE_LANES; i++)
                some[i] = here[i] * factors[first + i];
            here = some;
        }
        for (int i = 0; i < QUANTISE_LANES; i++) {
            uint32_t bits;
            memcpy(&bits, here + i, sizeof bits);
            bits &= UINT32_C(0x7fffffff);
            low[i] = here[i] < low[i] ? here[i] : low[i];
            high[i] = here[i] > high[i] ? here[i] : high[i];
            top[i] = bits > top[i] ? bits : top[i];
        }
    }
    row_range range = {low[0], high[0], top[0]};
    for (int i = 1; i < QUANTISE_LANES; i++) {
        range.low = low[i] < range.low ? low[i] : range.low;
        range.high = high[i] > range.high ? high[i] : range.high;
        range.top = top[i] > range.top ? top[i] : range.top;
    }
    return range;
}

/* x inverse + zero, to the nearest integer: the sum with 1.5 * 2^23 rounds, and its bits
   are those of that number plus the integer. */
static inline uint8_t quantised(float x, float inverse, float shifted) {
    const float sum = x * inverse + shifted;
    int32_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits -= INT32_C(0x4b400000);
    bits = bits < 0 ? 0 : bits;
    return (uint8_t)(bits > INT8_LEVELS ? INT8_LEVELS : bits);
}

static void quantise(int64_t inputs, const float *x, const float *factors, uint8_t *bytes,
                     int8_row *of) {
    const row_range range = range_of(inputs, x, factors);
    const float span = range.high - range.low;
    float inverse = span > 0 ? (float)INT8_LEVELS / span : 0;
    *of = (int8_row){span / (float)INT8_LEVELS, 0};
    if (range.top >= UINT32_C(0x7f800000) || !(span <= 3e38f))
        of->scale = NAN;
    if (!(inverse <= 1e38f) || of->scale != of->scale) /* too small to count, or NaN */
        inverse = 0;
    const float shifted = 12582912.0f - range.low * inverse; /* 1.5 * 2^23 */
    const float zero = shifted - 12582912.0f;
    of->zero = (int32_t)zero;
    if (inverse == 0) {
        of->zero = 0;
        memset(bytes, 0, (size_t)((inputs + 3) / 4 * 4));
        return;
    }
    if (factors)
        for (int64_t i = 0; i < inputs; i++)
            bytes[i] = quantised(x[i] * factors[i], inverse, shifted);
    else
        for (int64_t i = 0; i < inputs; i++)
            bytes[i] = quantised(x[i], inverse, shifted);
    for (int64_t i = inputs; i % 4; i++)
        bytes[i] = 0;
}
