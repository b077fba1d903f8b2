/* What stands between a model's products, row by row: norms, activations, the loss, the
   optimizer. Compiled for every table, the scalar one too (kernels/eight.h). */
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "kernels/eight.h"
#include "models/kernels/kernels.h"

static void scale_by(int64_t count, float factor, float *x) {
    for (int64_t i = 0; i < count; i++)
        x[i] *= factor;
}

static void lerp(int64_t count, float step, const float *x, float *y) {
    for (int64_t i = 0; i < count; i++)
        y[i] += step * (x[i] - y[i]);
}

/* e^x for x <= 0, to a relative error of about 1e-7; 0 below -87; NaN of NaN. With
   x = n ln 2 + r, |r| <= ln 2 / 2, it is 2^n times a polynomial in r, whose own relative
   error is below 5e-9. */
static inline float exp_lane(float x) {
    union {
        float value;
        uint32_t bits;
    } shifted, power;
    float bounded = x < -87.0f ? -87.0f : x;
    shifted.value = bounded * 1.44269504f +
                    12582912.0f; /* 1.5 * 2^23: rounds to integer */
    float n = shifted.value - 12582912.0f;
    float r = FUSED(n, -0.693145752f, bounded); /* ln 2 in two parts, the first short */
    r = FUSED(n, -1.4286068e-6f, r);
    float p = FUSED(r, 1.3814475e-3f, 8.3687827e-3f);
    p = FUSED(p, r, 4.1668393e-2f);
    p = FUSED(p, r, 1.6666520e-1f);
    p = FUSED(p, r, 4.9999994e-1f);
    p = FUSED(p, r * r, r) + 1.0f;
    power.bits = (shifted.bits - UINT32_C(0x4b400000) + 127u) << 23;
    return x < -87.0f ? 0.0f : p * power.value;
}

/* The normal distribution function Phi(x), and `bell` = e^(-x^2 / 2). With t = 1 / (1 +
   0.21 |x|), Phi(-|x|) = bell t P(t). The polynomial P makes its largest relative error
   small: it is below 2.5e-8. The bell is 0 beyond |x| = 13.2. */
static inline float normal_below(float x, float *bell) {
    float t = 1.0f / FUSED(0.21f, fabsf(x), 1.0f);
    float p = -0.07165641f;
    p = FUSED(p, t, 0.28358915f);
    p = FUSED(p, t, -0.33025464f);
    p = FUSED(p, t, 0.34940252f);
    p = FUSED(p, t, -0.093926296f);
    p = FUSED(p, t, 0.124873206f);
    p = FUSED(p, t, 0.06919204f);
    p = FUSED(p, t, 0.085068874f);
    p = FUSED(p, t, 0.08371157f);
    *bell = exp_lane(-0.5f * x * x);
    float tail = *bell * t * p;
    return x < 0 ? tail : 1.0f - tail;
}

static void relu(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++)
        out[i] = x[i] < 0 ? 0 : x[i];
}

static void gelu(int64_t count, const float *x, float *out) {
    for (int64_t i = 0; i < count; i++) {
        float bell;
        out[i] = x[i] * normal_below(x[i], &bell);
    }
}

static void relu_slope(int64_t count, const float *x, const float *dy, float *dx,
                       float *out) {
    if (out)
        relu(count, x, out);
    for (int64_t i = 0; i < count; i++)
        dx[i] = x[i] > 0 ? dy[i] : 0;
}

/* d/dx x Phi(x) = Phi(x) + x e^(-x^2 / 2) / sqrt(2 pi). */
static void gelu_slope(int64_t count, const float *x, const float *dy, float *dx,
                       float *out) {
    float values[CHUNK];
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t some = min(CHUNK, count - first);
        for (int64_t i = 0; i < some; i++) {
            float bell, here = x[first + i], below = normal_below(here, &bell);
            values[i] = here * below;
            dx[first + i] = dy[first + i] * FUSED(here * 0.39894228f, bell, below);
        }
        if (out)
            memcpy(out + first, values, sizeof(float) * (size_t)some);
    }
}

static float sum(int64_t size, const float *x) {
    v8 low = {0}, high = {0}, v;
    float rest = 0;
    int64_t i = 0;
    for (; i + 2 * 8 <= size; i += 2 * 8) {
        LOAD(v, x + i);
        low += v;
        LOAD(v, x + i + 8);
        high += v;
    }
    for (; i < size; i++)
        rest += x[i];
    low += high;
    return sum_of_8(&low) + rest;
}

static float squared_distance(int64_t size, const float *x, float mean) {
    v8 low = {0}, high = {0}, v;
    float rest = 0;
    int64_t i = 0;
    for (; i + 2 * 8 <= size; i += 2 * 8) {
        LOAD(v, x + i);
        v -= mean;
        low += v * v;
        LOAD(v, x + i + 8);
        v -= mean;
        high += v * v;
    }
    for (; i < size; i++)
        rest += (x[i] - mean) * (x[i] - mean);
    low += high;
    return sum_of_8(&low) + rest;
}

static void norm_rows(int64_t count, int64_t size, const float *x, const float *scale,
                      const float *shift, float epsilon, float *y, float *statistics) {
    const float share = 1.0f / (float)size;
    for (int64_t row = 0; row < count; row++, x += size, y += size) {
        float mean = sum(size, x) * share;
        float variance = squared_distance(size, x, mean) * share;
        float inverse = 1.0f / sqrtf(variance + epsilon);
        for (int64_t i = 0; i < size; i++)
            y[i] = (x[i] - mean) * inverse * scale[i] + shift[i];
        if (statistics) {
            statistics[2 * row] = mean;
            statistics[2 * row + 1] = inverse;
        }
    }
}

/* With u = (x - mean) inverse and g = scale dy: the mean of g and the mean of g u. */
static void norm_means(int64_t size, const float *x, float mean, float inverse,
                       const float *scale, const float *dy, float means[2]) {
    v8 plain = {0}, along = {0}, a, b, g;
    float plain_rest = 0, along_rest = 0;
    int64_t i = 0;
    for (; i + 8 <= size; i += 8) {
        LOAD(a, x + i);
        LOAD(b, dy + i);
        LOAD(g, scale + i);
        g *= b;
        plain += g;
        along += g * ((a - mean) * inverse);
    }
    for (; i < size; i++) {
        plain_rest += scale[i] * dy[i];
        along_rest += scale[i] * dy[i] * ((x[i] - mean) * inverse);
    }
    means[0] = (sum_of_8(&plain) + plain_rest) / (float)size;
    means[1] = (sum_of_8(&along) + along_rest) / (float)size;
}

/* dx = inverse (g - mean of g - u mean of (g u)). The vectors are written out, because a
   compiler cannot know that so many arrays do not overlap. */
static void norm_rows_slope(int64_t count, int64_t size, const float *x,
                            const float *statistics, const float *scale, const float *dy,
                            const float *base, float *dx, float *dscale, float *dshift) {
    for (int64_t row = 0; row < count; row++, x += size, dy += size, dx += size) {
        const float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
        float means[2];
        norm_means(size, x, mean, inverse, scale, dy, means);
        v8 u, d, old, g, more = {0};
        int64_t i = 0;
        for (; i + 8 <= size; i += 8) {
            LOAD(u, x + i);
            LOAD(d, dy + i);
            LOAD(g, scale + i);
            u = (u - mean) * inverse;
            LOAD(old, dscale + i);
            old += d * u;
            STORE(dscale + i, old);
            LOAD(old, dshift + i);
            old += d;
            STORE(dshift + i, old);
            if (base)
                LOAD(more, base + i);
            g = inverse * (g * d - means[0] - u * means[1]) + more;
            STORE(dx + i, g);
        }
        for (; i < size; i++) {
            float along = (x[i] - mean) * inverse, here = dy[i];
            dscale[i] += here * along;
            dshift[i] += here;
            dx[i] = inverse * (scale[i] * here - means[0] - along * means[1]) +
                    (base ? base[i] : 0);
        }
        base = base ? base + size : NULL;
    }
}

static void column_sums(int64_t count, int64_t width, const float *x, int64_t stride,
                        float *sums) {
    float part[CHUNK];
    for (int64_t left = 0; left < width; left += CHUNK) {
        int64_t some = min(CHUNK, width - left);
        for (int64_t first = 0; first < count; first += CHUNK) {
            int64_t last = min(first + CHUNK, count);
            memset(part, 0, sizeof(float) * (size_t)some);
            for (int64_t row = first; row < last; row++)
                for (int64_t i = 0; i < some; i++)
                    part[i] += x[row * stride + left + i];
            for (int64_t i = 0; i < some; i++)
                sums[left + i] += part[i];
        }
    }
}

static void cross_entropy(int64_t classes, const float *x, int64_t target, float factor,
                          float *gradient, float *loss, int64_t *best) {
    float top = x[0];
    *best = 0;
    for (int64_t j = 1; j < classes; j++)
        if (x[j] > top) {
            top = x[j];
            *best = j;
        }
    const float aim = x[target];
    float total = 0;
    float powers[CHUNK];
    for (int64_t first = 0; first < classes; first += CHUNK) {
        int64_t some = min(CHUNK, classes - first);
        for (int64_t j = 0; j < some; j++)
            powers[j] = exp_lane(x[first + j] - top);
        total += sum(some, powers);
    }
    for (int64_t j = 0; gradient && j < classes; j++)
        gradient[j] = exp_lane(x[j] - top) * (factor / total);
    if (gradient)
        gradient[target] -= factor;
    *loss = logf(total) + (top - aim);
}

static void adam(int64_t count, const adam_numbers *how, const float *gradient,
                 float *first, float *second, float *values) {
    const adam_numbers n = *how;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] + n.coupled * values[i];
        first[i] = n.beta1 * first[i] + (1 - n.beta1) * g;
        second[i] = n.beta2 * second[i] + (1 - n.beta2) * (g * g);
    }
    if (!n.adaptive) {
        for (int64_t i = 0; i < count; i++)
            values[i] = n.keep * values[i] - n.momentum * first[i];
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float size = sqrtf(second[i] * n.inverse) + n.epsilon;
        values[i] = n.keep * values[i] - n.momentum * first[i] / size;
    }
}

static void sum_squares(int64_t count, const float *x, double *total) {
    double sums[4] = {0}, rest = 0;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
        for (int j = 0; j < 4; j++)
            sums[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < count; i++)
        rest += (double)x[i] * (double)x[i];
    *total = (sums[0] + sums[2]) + (sums[1] + sums[3]) + rest;
}

static void narrow(int64_t count, const float *x, uint16_t *halves) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        narrow8(x + i, halves + i);
    for (; i < count; i++)
        halves[i] = float_to_half(x[i]);
}

static float largest_of(int64_t count, const float *x) {
    enum { SIDE_BY_SIDE = 32 };
    float tops[SIDE_BY_SIDE];
    int64_t i = 0;
    for (int j = 0; j < SIDE_BY_SIDE; j++)
        tops[j] = -INFINITY;
    for (; i + SIDE_BY_SIDE <= count; i += SIDE_BY_SIDE)
        for (int j = 0; j < SIDE_BY_SIDE; j++)
            tops[j] = x[i + j] > tops[j] ? x[i + j] : tops[j];
    for (; i < count; i++)
        tops[0] = x[i] > tops[0] ? x[i] : tops[0];
    for (int j = 1; j < SIDE_BY_SIDE; j++)
        tops[0] = tops[j] > tops[0] ? tops[j] : tops[0];
    return tops[0];
}

static void peak(int64_t count, const float *x, float *largest, int64_t *who,
                 double *total) {
    const float top = largest_of(count, x);
    float powers[CHUNK];
    int64_t at = 0;
    double all = 0;
    while (at < count && x[at] != top)
        at++;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t some = min(CHUNK, count - first);
        for (int64_t j = 0; j < some; j++)
            powers[j] = exp_lane(x[first + j] - top);
        all += (double)sum(some, powers);
    }
    *largest = top;
    *who = at < count ? at : 0;
    *total = all;
}

static void soften(int64_t count, float *x, float *total) {
    const float top = largest_of(count, x);
    float all = 0;
    for (int64_t first = 0; first < count; first += CHUNK) {
        int64_t some = min(CHUNK, count - first);
        for (int64_t j = 0; j < some; j++)
            x[first + j] = exp_lane(x[first + j] - top);
        all += sum(some, x + first);
    }
    *total = all;
}

static void bf16_panel(int64_t inputs, int rows, const float *x, int64_t stride,
                       uint32_t *panel) {
    enum { TOGETHER = 16 };
    for (int64_t first = 0; first < inputs / 2; first += TOGETHER) {
        const int count = (int)min(TOGETHER, inputs / 2 - first);
        uint32_t *to = panel + first * PACKED_ROWS;
        for (int r = 0; r < PACKED_ROWS; r++) {
            const float *from = x + r * stride + 2 * first;
            uint32_t words[TOGETHER] = {0};
            for (int p = 0; p < count && r < rows; p++)
                words[p] = bfloat_pair(from[2 * p], from[2 * p + 1]);
            for (int p = 0; p < count; p++)
                to[p * PACKED_ROWS + r] = words[p];
        }
    }
}

static void bf16_product_plain(int64_t pairs, const uint32_t *w, const uint32_t *x,
                               int rows, float *y, int64_t stride) {
    for (int r = 0; r < rows; r++) {
        float sums[PACKED_OUTPUTS] = {0};
        for (int64_t p = 0; p < pairs; p++) {
            const uint32_t one = x[p * PACKED_ROWS + r];
            const float low = bits_to_float(one << 16);
            const float high = bits_to_float(one & 0xffff0000u);
            for (int j = 0; j < PACKED_OUTPUTS; j++) {
                const uint32_t pair = w[p * PACKED_OUTPUTS + j];
                sums[j] = FUSED(high, bits_to_float(pair & 0xffff0000u), sums[j]);
                sums[j] = FUSED(low, bits_to_float(pair << 16), sums[j]);
            }
        }
        memcpy(y + r * stride, sums, sizeof sums);
    }
}
