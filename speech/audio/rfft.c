#include "speech/audio/rfft.h"

#include <math.h>

static const double pi = 3.14159265358979323846264338327950288;

static rfft_number turn(double angle) {
    return (rfft_number){(float)cos(angle), (float)sin(angle)};
}

void sh_rfft_begin(rfft *t, int count) {
    t->half = count / 2;
    for (int i = 0; i < t->half; i++)
        t->turns[i] = turn(-2 * pi * i / t->half);
    for (int i = 0; i < t->half / 2; i++)
        t->parts[i] = turn(-pi * ((double)(i + 1) / t->half + 0.5));
}

/* The parts of a product's real number stay apart, since sums take them one by one. */
typedef struct {
    float plus, minus, im;
} product;

static product times(rfft_number a, rfft_number b) {
    return (product){a.re * b.re, a.im * b.im, a.re * b.im + a.im * b.re};
}

/* Transforms of `size` numbers from two that are half as long. */
static void join_two(rfft_number *x) {
    const rfft_number a = x[0], b = x[1];
    x[0] = (rfft_number){a.re + b.re, a.im + b.im};
    x[1] = (rfft_number){a.re - b.re, a.im - b.im};
}

/* One number of each of four transforms, `quarter` apart, to one of each quarter. */
static void join_four(const rfft *t, rfft_number *x, int quarter, int step) {
    const rfft_number a = x[0];
    const product b = times(x[quarter], t->turns[step]);
    const product c = times(x[2 * quarter], t->turns[2 * step]);
    const product d = times(x[3 * quarter], t->turns[3 * step]);
    const float b_re = b.plus - b.minus;
    const rfft_number even = {(a.re + c.plus) - c.minus, a.im + c.im};
    const rfft_number even_less = {(a.re + c.minus) - c.plus, a.im - c.im};
    const rfft_number odd = {(b_re - d.minus) + d.plus, b.im + d.im};
    const float odd_less = (b_re - d.plus) + d.minus;
    x[0] = (rfft_number){even.re + odd.re, even.im + odd.im};
    x[2 * quarter] = (rfft_number){even.re - odd.re, even.im - odd.im};
    x[quarter] = (rfft_number){(even_less.re + b.im) - d.im, even_less.im - odd_less};
    x[3 * quarter] = (rfft_number){(even_less.re + d.im) - b.im, even_less.im + odd_less};
}

/* out [size] from every `stride`th of the pairs. */
static void transform(const rfft *t, const float *pairs, int stride, int size,
                      rfft_number *out) {
    const int radix = size % 4 ? 2 : 4, part = size / radix;
    for (int i = 0; i < radix; i++)
        if (part == 1)
            out[i] = (rfft_number){pairs[2 * i * stride], pairs[2 * i * stride + 1]};
        else
            transform(t, pairs + 2 * i * stride, radix * stride, part, out + i * part);
    for (int i = 0; i < part; i++)
        if (radix == 2)
            join_two(out);
        else
            join_four(t, out + i, part, i * stride);
}

static float square(float re, float im) {
    return re * re + im * im;
}

/* Numbers k and half - k of the pairs' transform are two of the real numbers'. */
void sh_rfft_power(rfft *t, const float *samples, float *power) {
    const int half = t->half;
    const rfft_number *work = t->work;
    transform(t, samples, 1, half, t->work);
    const float first = work[0].re + work[0].im;
    power[0] = first * first;
    for (int k = 1; k <= half / 2; k++) {
        const rfft_number a = work[k], b = work[half - k];
        const float sum = a.re + b.re, difference = a.im - b.im;
        const product p = times((rfft_number){a.re - b.re, a.im + b.im}, t->parts[k - 1]);
        const float low_re = ((sum + p.plus) - p.minus) * 0.5f;
        const float low_im = (difference + p.im) * 0.5f;
        const float high_re = ((sum + p.minus) - p.plus) * 0.5f;
        const float high_im = (p.im - difference) * 0.5f;
        power[k] = square(low_re, low_im);
        power[half - k] = square(high_re, high_im);
    }
}
