#include "speech/audio/fbank.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"

/* ---- Power spectra ----------------------------------------------------------------- */

/* A real FFT of 256 or 512 numbers in float32 with the same bits on every machine:
   radix 4 with a fixed order of additions, that of the package kaldi-native-fbank. The
   value of a silent band beside loud ones is their rounding error, so another order
   would give another value. */
enum { RFFT_MOST = 512 };

typedef struct {
    float re, im;
} rfft_number;

typedef struct {
    int half; /* half the size, a power of 2: numbers are transformed in pairs */
    rfft_number turns[RFFT_MOST / 2]; /* exp(-2 pi i k / half) */
    rfft_number parts[RFFT_MOST / 4]; /* exp(-pi i (k / half + 1 / 2)), k from 1 on */
    rfft_number work[RFFT_MOST / 2];
} rfft;

static const double pi = 3.14159265358979323846264338327950288;

static rfft_number turn(double angle) {
    return (rfft_number){(float)cos(angle), (float)sin(angle)};
}

/* Real part as two terms, because the sums add them separately. */
typedef struct {
    float plus, minus, im;
} product;

static product times(rfft_number a, rfft_number b) {
    return (product){a.re * b.re, a.im * b.im, a.re * b.im + a.im * b.re};
}

/* Transforms every `stride`th pair to out [size]. */
static void transform(const rfft *t, const float *pairs, int stride, int size,
                      rfft_number *out) {
    const int radix = size % 4 ? 2 : 4, part = size / radix;
    for (int i = 0; i < radix; i++)
        if (part == 1)
            out[i] = (rfft_number){pairs[2 * i * stride], pairs[2 * i * stride + 1]};
        else
            transform(t, pairs + 2 * i * stride, radix * stride, part, out + i * part);
    /* Radix-4 butterfly: one number of each of four transforms, `part` apart. */
    for (int i = 0; i < part && radix == 4; i++) {
        rfft_number *x = out + i;
        const rfft_number a = x[0];
        const product b = times(x[part], t->turns[i * stride]);
        const product c = times(x[2 * part], t->turns[2 * i * stride]);
        const product d = times(x[3 * part], t->turns[3 * i * stride]);
        const float b_re = b.plus - b.minus;
        const rfft_number even = {(a.re + c.plus) - c.minus, a.im + c.im};
        const rfft_number even_less = {(a.re + c.minus) - c.plus, a.im - c.im};
        const rfft_number odd = {(b_re - d.minus) + d.plus, b.im + d.im};
        const float odd_less = (b_re - d.plus) + d.minus;
        x[0] = (rfft_number){even.re + odd.re, even.im + odd.im};
        x[2 * part] = (rfft_number){even.re - odd.re, even.im - odd.im};
        x[part] = (rfft_number){(even_less.re + b.im) - d.im, even_less.im - odd_less};
        x[3 * part] =
            (rfft_number){(even_less.re + d.im) - b.im, even_less.im + odd_less};
    }
    if (radix == 2) {
        const rfft_number a = out[0], b = out[1];
        out[0] = (rfft_number){a.re + b.re, a.im + b.im};
        out[1] = (rfft_number){a.re - b.re, a.im - b.im};
    }
}

/* samples [count]; power [count / 2], without the Nyquist frequency. Numbers k and half
   - k of the pairs' transform give two of the real transform. */
static void find_power(rfft *t, const float *samples, float *power) {
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
        power[k] = low_re * low_re + low_im * low_im;
        power[half - k] = high_re * high_re + high_im * high_im;
    }
}

/* ---- Filter banks ----------------------------------------------------------------- */

enum { RATE = 16000 };

/* Sizes that depend on the sample rate. */
typedef struct {
    int window, shift, transform; /* samples */
} frame_sizes;

static frame_sizes sizes_of(int32_t rate) {
    return rate == RATE / 2 ? (frame_sizes){200, 80, 256} : (frame_sizes){400, 160, 512};
}

/* Range of spectrum bins of a band. */
typedef struct {
    int first, count;
} band_range;

struct fbank {
    shoal_context *context;
    int bands, rate, bins;
    frame_sizes sizes;
    bool centred;       /* Kaldi's snip-edges=false */
    float *window;      /* [sizes.window], povey */
    float *weights;     /* [bands][bins] */
    band_range *ranges; /* [bands] */
    float *frame;       /* [sizes.transform] */
    float *power;       /* [bins] */
    rfft *transform;
};

int sh_fbank_bands(const shoal_fbank_options *options) {
    return options && options->bands ? options->bands : FBANK_BANDS;
}

int sh_fbank_rate(const shoal_fbank_options *options) {
    return options && options->rate ? options->rate : RATE;
}

/* ---- Creation -------------------------------------------------------------------- */

/* In float, like Kaldi: its rounding matters at the edges of triangles. */
static float mel_of(float hertz) {
    return 1127.0f * logf(1.0f + hertz / 700.0f);
}

static void place(void *argument, block_layout *block) {
    fbank *f = argument;
    sh_reserve(block, 1, sizeof *f);
    f->window = sh_reserve(block, f->sizes.window, sizeof(float));
    f->weights = reserve_floats(block, f->bands, f->bins);
    f->ranges = sh_reserve(block, f->bands, sizeof *f->ranges);
    f->frame = sh_reserve(block, f->sizes.transform, sizeof(float));
    f->power = sh_reserve(block, f->bins, sizeof(float));
    f->transform = sh_reserve(block, 1, sizeof *f->transform);
}

shoal_status sh_fbank_create(shoal_context *context, const shoal_fbank_options *options,
                             fbank **made) {
    *made = NULL;
    fbank sized = {.context = context,
                   .bands = sh_fbank_bands(options),
                   .rate = sh_fbank_rate(options),
                   .centred = options && options->centred};
    if (sized.bands < 1 || sized.bands > FBANK_MOST_BANDS)
        return sh_fail(context, SHOAL_INVALID,
                       "the number of bands is %d: it must be from 1 to %d", sized.bands,
                       (int)FBANK_MOST_BANDS);
    if (sized.rate != RATE && sized.rate != RATE / 2)
        return sh_fail(context, SHOAL_INVALID,
                       "the rate is %d samples per second: it must be 8000 or 16000",
                       sized.rate);
    sized.sizes = sizes_of(sized.rate);
    sized.bins = sized.sizes.transform / 2;
    fbank *f = sh_allocate_parts(context, place, &sized, NULL);
    if (!f)
        return SHOAL_NO_MEMORY;
    *f = sized;
    const double angle = 2 * pi / (f->sizes.window - 1);
    for (int i = 0; i < f->sizes.window; i++)
        f->window[i] = (float)pow(0.5 - 0.5 * cos(angle * i), 0.85);
    for (int band = 0; band < f->bands; band++) {
        const float low = mel_of(20);
        const float width = (mel_of((float)f->rate / 2) - low) / (float)(f->bands + 1);
        const float left = low + (float)band * width,
                    right = low + (float)(band + 2) * width;
        const float centre = low + (float)(band + 1) * width;
        const float width_of_bin = (float)f->rate / (float)f->sizes.transform;
        float *weights = f->weights + band * f->bins;
        band_range range = {f->bins, 0};
        for (int bin = 0; bin < f->bins; bin++) {
            const float mel = mel_of(width_of_bin * (float)bin);
            weights[bin] = 0;
            if (mel <= left || mel >= right)
                continue;
            weights[bin] = mel <= centre ? (mel - left) / (centre - left)
                                         : (right - mel) / (right - centre);
            range.first = bin < range.first ? bin : range.first;
            range.count = bin - range.first + 1;
        }
        f->ranges[band] = range;
    }
    rfft *t = f->transform;
    t->half = f->sizes.transform / 2;
    for (int i = 0; i < t->half; i++)
        t->turns[i] = turn(-2 * pi * i / t->half);
    for (int i = 0; i < t->half / 2; i++)
        t->parts[i] = turn(-pi * ((double)(i + 1) / t->half + 0.5));
    *made = f;
    return SHOAL_OK;
}

void sh_fbank_destroy(fbank *f) {
    if (f)
        sh_release(f->context, f);
}

/* ---- Frames ---------------------------------------------------------------------- */

int64_t shoal_fbank_frames(const shoal_fbank_options *options, int64_t samples) {
    shoal_fbank_options own = shoal_fbank_options_defaults();
    if (READ_STRUCT(NULL, shoal_fbank_options, options, &own) != SHOAL_OK)
        return -1;
    const frame_sizes sizes = sizes_of(sh_fbank_rate(&own));
    if (own.centred)
        return samples < 0 ? 0 : (samples + sizes.shift / 2) / sizes.shift;
    return samples < sizes.window ? 0 : 1 + (samples - sizes.window) / sizes.shift;
}

void sh_fbank_compute(fbank *f, const float *samples, int64_t count, float *out) {
    const shoal_fbank_options options = {.size = sizeof(shoal_fbank_options),
                                         .centred = f->centred,
                                         .rate = f->rate};
    const frame_sizes sizes = f->sizes;
    const int window = sizes.window;
    const int64_t frames = shoal_fbank_frames(&options, count);
    const int64_t first = f->centred ? sizes.shift / 2 - window / 2 : 0;
    for (int64_t row = 0; row < frames; row++, out += f->bands) {
        /* All sums in float32 and in this order, like kaldi-native-fbank. */
        float *frame = f->frame, total = 0;
        for (int i = 0; i < window; i++) {
            int64_t at = first + row * sizes.shift + i;
            while (at < 0 ||
                   at >= count) /* reflected at both ends, repeatedly if needed */
                at = at < 0 ? -at - 1 : 2 * count - 1 - at;
            frame[i] = 32768 * samples[at];
            total += frame[i];
        }
        const float mean = total / (float)window;
        for (int i = 0; i < window; i++)
            frame[i] -= mean;
        for (int i = window - 1; i > 0; i--)
            frame[i] = (frame[i] - 0.97f * frame[i - 1]) * f->window[i];
        frame[0] = (frame[0] - 0.97f * frame[0]) * f->window[0];
        memset(frame + window, 0, (size_t)(sizes.transform - window) * sizeof *frame);
        find_power(f->transform, frame, f->power);
        for (int band = 0; band < f->bands; band++) {
            const band_range range = f->ranges[band];
            const float *weights = f->weights + band * f->bins + range.first;
            float sum = 0;
            for (int i = 0; i < range.count; i++)
                sum += weights[i] * f->power[range.first + i];
            out[band] = logf(sum > FLT_EPSILON ? sum : FLT_EPSILON);
        }
    }
}

shoal_status shoal_fbank(shoal_context *context, const shoal_fbank_options *options,
                         const float *samples, int64_t count, float *features) {
    fbank *f;
    shoal_fbank_options own = shoal_fbank_options_defaults();
    TRY(READ_STRUCT(context, shoal_fbank_options, options, &own));
    options = &own;
    if (!context || count < 0 || (count > 0 && !samples) ||
        (shoal_fbank_frames(options, count) > 0 && !features))
        return sh_fail(context, SHOAL_INVALID,
                       "context, samples or features is NULL, or count is negative");
    TRY(sh_fbank_create(context, options, &f));
    sh_fbank_compute(f, samples, count, features);
    sh_fbank_destroy(f);
    return SHOAL_OK;
}
