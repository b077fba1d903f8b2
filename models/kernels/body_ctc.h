/* The three loops of CTC (models/nn/ctc.c) over numbers of any size: mantissa times
 * 2^exponent, a double and an int64_t. A probability of 5,000 rows is far below what a
 * double can hold, and as a logarithm each sum would need exponentials and a logarithm;
 * here it needs shifts of exponents. Nothing is 0: an exponent of CTC_NEVER is as good.
 *
 * Compiled for every table, elementwise without fused products: the same bits on all. */
#include <string.h>

#include "models/kernels/kernels.h"

static inline double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^exponent for exponents of at most 1023; 0 below -1022. */
static inline double power_of_2(int64_t exponent) {
    const int64_t biased = exponent + 1023;
    return double_of((uint64_t)(biased < 0 ? 0 : biased) << 52);
}

static inline int64_t larger_exponent(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Brings a positive number into 1 <= value < 2; returns the exponent that it had. */
static inline int64_t take_exponent(double *value) {
    const uint64_t bits = bits_of(*value);
    *value = double_of((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    return (int64_t)(bits >> 52) - 1023;
}

/* e^r = 2^n 2^f with |f| <= 1/2, the latter by its Taylor series: the first term left
   out is below 1e-13. */
static void powers(int64_t count, const float *x, float top, double *mantissas,
                   int64_t *exponents, double *values) {
    const double to_integer = 6755399441055744.0; /* 1.5 * 2^52 */
    for (int64_t i = 0; i < count; i++) {
        const double r = (double)x[i] - (double)top;
        const double bounded = r < -1e6 ? -1e6 : r;
        const double z = bounded * 1.4426950408889634;
        const double shifted = z + to_integer;
        const double f = (z - (shifted - to_integer)) * 0.69314718055994531;
        double p = 1.0 / 3628800 * f + 1.0 / 362880;
        p = p * f + 1.0 / 40320;
        p = p * f + 1.0 / 5040;
        p = p * f + 1.0 / 720;
        p = p * f + 1.0 / 120;
        p = p * f + 1.0 / 24;
        p = p * f + 1.0 / 6;
        p = p * f + 1.0 / 2;
        p = p * f + 1.0;
        p = p * f + 1.0;
        mantissas[i] = p;
        exponents[i] = (int64_t)(bits_of(shifted) - bits_of(to_integer));
        values[i] = p * power_of_2(exponents[i]);
    }
}

static void ctc_blanks(int64_t count, const double *blanks, const int64_t *blank_powers,
                       const double *labels, const int64_t *label_powers, double mantissa,
                       int64_t exponent, double *to, int64_t *to_powers) {
    for (int64_t k = 0; k < count; k++) {
        const int64_t most = larger_exponent(blank_powers[k], label_powers[k]);
        double sum = blanks[k] * power_of_2(blank_powers[k] - most) +
                     labels[k] * power_of_2(label_powers[k] - most);
        sum *= mantissa;
        to_powers[k] = most + exponent + take_exponent(&sum);
        to[k] = sum;
    }
}

static void ctc_labels(int64_t count, const double *blanks, const int64_t *blank_powers,
                       const double *labels, const int64_t *label_powers,
                       const int64_t *skips, const double *mantissas,
                       const int64_t *exponents, double *to, int64_t *to_powers) {
    for (int64_t k = 0; k < count; k++) {
        const int64_t skipped = label_powers[k] + skips[k];
        const int64_t most =
            larger_exponent(larger_exponent(blank_powers[k], label_powers[k + 1]),
                            skipped);
        double sum = blanks[k] * power_of_2(blank_powers[k] - most) +
                     labels[k + 1] * power_of_2(label_powers[k + 1] - most) +
                     labels[k] * power_of_2(skipped - most);
        sum *= mantissas[k];
        to_powers[k] = most + exponents[k] + take_exponent(&sum);
        to[k] = sum;
    }
}

static void ctc_meet(int64_t count, const double *ahead, const int64_t *ahead_powers,
                     const double *behind, const int64_t *behind_powers,
                     const int64_t *exponents, int64_t shift, double *out) {
    for (int64_t k = 0; k < count; k++) {
        const int64_t other = count - 1 - k;
        out[k] = ahead[k] * behind[other] *
                 power_of_2(ahead_powers[k] + behind_powers[other] -
                            (exponents ? exponents[k] : 0) - shift);
    }
}
