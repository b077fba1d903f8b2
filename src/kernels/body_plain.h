/* Plain loops over rows of numbers, and half precision. Compiled for every table, the
   scalar one too (kernels/eight.h). */
#include <string.h>

#include "base/numbers.h"
#include "kernels/eight.h"
#include "kernels/kernels.h"

static void add(int64_t count, const float *x, float *y) {
    for (int64_t i = 0; i < count; i++)
        y[i] += x[i];
}

/* Sixteen columns at a time, whose sums stay in registers. */
static void sum_rows_wide(const float *x, int64_t stride, const int32_t *index,
                          int64_t count, int dim, double *sums) {
    enum { COLUMNS = 16 };
    int d = 0;
    for (; d + COLUMNS <= dim; d += COLUMNS) {
        double some[COLUMNS] = {0};
        for (int64_t i = 0; i < count; i++) {
            const float *row = x + index[i] * stride + d;
            for (int e = 0; e < COLUMNS; e++)
                some[e] += (double)row[e];
        }
        memcpy(sums + d, some, sizeof some);
    }
    for (; d < dim; d++) {
        sums[d] = 0;
        for (int64_t i = 0; i < count; i++)
            sums[d] += (double)x[index[i] * stride + d];
    }
}

static void multiply(int64_t count, const float *x, float *y) {
    for (int64_t i = 0; i < count; i++)
        y[i] *= x[i];
}

static void widen(int64_t count, const uint16_t *halves, float *out) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        widen8(halves + i, out + i);
    for (; i < count; i++)
        out[i] = half_to_float(halves[i]);
}

static void round_halves(int64_t count, const float *x, uint16_t *halves) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        round8(x + i, halves + i);
    for (; i < count; i++)
        halves[i] = round_to_half(x[i]);
}

static void widen_bfloats(int64_t count, const uint16_t *restrict halves,
                          float *restrict out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = bfloat_to_float(halves[i]);
}

static void round_bfloats(int64_t count, const float *restrict x,
                          uint16_t *restrict halves) {
    for (int64_t i = 0; i < count; i++)
        halves[i] = round_to_bfloat(x[i]);
}

static float dot(int64_t size, const float *a, const float *b) {
    v8 sums[4] = {{0}}, v, w;
    float rest = 0;
    int64_t i = 0;
    for (; i + 4 * 8 <= size; i += 4 * 8)
        for (int j = 0; j < 4; j++) {
            LOAD(v, a + i + j * 8);
            LOAD(w, b + i + j * 8);
            sums[j] += v * w;
        }
    for (; i < size; i++)
        rest += a[i] * b[i];
    sums[0] += sums[2];
    sums[1] += sums[3];
    sums[0] += sums[1];
    return sum_of_8(&sums[0]) + rest;
}

static void dots(int64_t inputs, int64_t rows, const float *x, int64_t stride,
                 const void *w, bool half, float *out) {
    float wide[CHUNK];
    for (int64_t r = 0; r < rows; r++)
        out[r] = 0;
    for (int64_t first = 0; first < inputs; first += CHUNK) {
        int64_t some = min(CHUNK, inputs - first);
        const float *part = half ? wide : (const float *)w + first;
        if (half)
            widen(some, (const uint16_t *)w + first, wide);
        for (int64_t r = 0; r < rows; r++)
            out[r] += dot(some, x + r * stride + first, part);
    }
}
