#include "speech/fbank.h"

#include <float.h>
#include <kiss_fftr.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"

enum { WINDOW = 400, FFT = 512, BINS = FFT / 2, RATE = 16000 };

/* The bins of the spectrum that a band takes. */
typedef struct {
    int first, count;
} band_range;

struct fbank {
    shoal_context *context;
    int bands;
    bool centred; /* Kaldi's snip-edges=false */
    size_t transform_size;
    float *window;          /* [WINDOW], povey */
    float *weights;         /* [bands][BINS] */
    band_range *ranges;     /* [bands] */
    float *frame;           /* [FFT] */
    kiss_fft_cpx *spectrum; /* [BINS + 1] */
    kiss_fftr_cfg transform;
};

int sh_fbank_bands(const shoal_fbank_options *options) {
    return options && options->bands ? options->bands : FBANK_BANDS;
}

/* ---- Creation -------------------------------------------------------------------- */

/* In floats, as Kaldi has it: at an edge of a triangle their rounding shows. */
static float mel_of(float hertz) {
    return 1127.0f * logf(1.0f + hertz / 700.0f);
}

static void set_triangle(fbank *f, int band) {
    const float low = mel_of(20);
    const float width = (mel_of(RATE / 2.0f) - low) / (float)(f->bands + 1);
    const float left = low + (float)band * width, right = low + (float)(band + 2) * width;
    const float centre = low + (float)(band + 1) * width;
    float *weights = f->weights + band * BINS;
    band_range range = {BINS, 0};
    for (int bin = 0; bin < BINS; bin++) {
        const float mel = mel_of((float)RATE / FFT * (float)bin);
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

static void place(void *argument, block_layout *block) {
    fbank *f = argument;
    sh_reserve(block, 1, sizeof *f);
    f->window = sh_reserve(block, WINDOW, sizeof(float));
    f->weights = reserve_floats(block, f->bands, BINS);
    f->ranges = sh_reserve(block, f->bands, sizeof *f->ranges);
    f->frame = sh_reserve(block, FFT, sizeof(float));
    f->spectrum = sh_reserve(block, BINS + 1, sizeof *f->spectrum);
    f->transform = sh_reserve(block, 1, f->transform_size);
}

shoal_status sh_fbank_create(shoal_context *context, const shoal_fbank_options *options,
                             fbank **made) {
    const double turn = 6.283185307179586476925286766559;
    *made = NULL;
    fbank sized = {.context = context,
                   .bands = sh_fbank_bands(options),
                   .centred = options && options->centred};
    if (sized.bands < 1 || sized.bands > FBANK_MOST_BANDS)
        return sh_fail(context, SHOAL_INVALID, "%d bands: 1 to %d are possible",
                       sized.bands, (int)FBANK_MOST_BANDS);
    kiss_fftr_alloc(FFT, 0, NULL, &sized.transform_size);
    fbank *f = sh_allocate_parts(context, place, &sized, NULL);
    if (!f)
        return SHOAL_NO_MEMORY;
    *f = sized;
    for (int i = 0; i < WINDOW; i++)
        f->window[i] = (float)pow(0.5 - 0.5 * cos(turn * i / (WINDOW - 1)), 0.85);
    for (int band = 0; band < f->bands; band++)
        set_triangle(f, band);
    kiss_fftr_alloc(FFT, 0, f->transform, &f->transform_size);
    *made = f;
    return SHOAL_OK;
}

void sh_fbank_destroy(fbank *f) {
    if (f)
        sh_release(f->context, f);
}

/* ---- Frames ---------------------------------------------------------------------- */

int64_t shoal_fbank_frames(const shoal_fbank_options *options, int64_t samples) {
    if (options && options->centred)
        return samples < 0 ? 0 : (samples + FBANK_SHIFT / 2) / FBANK_SHIFT;
    return samples < WINDOW ? 0 : 1 + (samples - WINDOW) / FBANK_SHIFT;
}

/* Reflected at both ends, as often as it takes. */
static int64_t reflect(int64_t index, int64_t count) {
    while (index < 0 || index >= count)
        index = index < 0 ? -index - 1 : 2 * count - 1 - index;
    return index;
}

static void take_frame(fbank *f, const float *samples, int64_t count, int64_t begin) {
    float *frame = f->frame;
    if (begin >= 0 && begin + WINDOW <= count)
        memcpy(frame, samples + begin, WINDOW * sizeof *frame);
    else
        for (int i = 0; i < WINDOW; i++)
            frame[i] = samples[reflect(begin + i, count)];
    double sum = 0;
    for (int i = 0; i < WINDOW; i++) {
        frame[i] *= 32768;
        sum += (double)frame[i];
    }
    const float mean = (float)(sum / WINDOW);
    for (int i = 0; i < WINDOW; i++)
        frame[i] -= mean;
    for (int i = WINDOW - 1; i > 0; i--)
        frame[i] = (frame[i] - 0.97f * frame[i - 1]) * f->window[i];
    frame[0] = (frame[0] - 0.97f * frame[0]) * f->window[0];
    memset(frame + WINDOW, 0, (FFT - WINDOW) * sizeof *frame);
}

static void write_bands(fbank *f, float *out) {
    float *power = f->frame;
    for (int bin = 0; bin < BINS; bin++)
        power[bin] = f->spectrum[bin].r * f->spectrum[bin].r +
                     f->spectrum[bin].i * f->spectrum[bin].i;
    for (int band = 0; band < f->bands; band++) {
        const band_range range = f->ranges[band];
        const float *weights = f->weights + band * BINS + range.first;
        double sum = 0;
        for (int i = 0; i < range.count; i++)
            sum += (double)weights[i] * (double)power[range.first + i];
        out[band] = logf(sum > (double)FLT_EPSILON ? (float)sum : FLT_EPSILON);
    }
}

void sh_fbank_compute(fbank *f, const float *samples, int64_t count, float *out) {
    const shoal_fbank_options options = {.centred = f->centred};
    const int64_t frames = shoal_fbank_frames(&options, count);
    const int64_t first = f->centred ? FBANK_SHIFT / 2 - WINDOW / 2 : 0;
    for (int64_t i = 0; i < frames; i++) {
        take_frame(f, samples, count, first + i * FBANK_SHIFT);
        kiss_fftr(f->transform, f->frame, f->spectrum);
        write_bands(f, out + i * f->bands);
    }
}

shoal_status shoal_fbank(shoal_context *context, const shoal_fbank_options *options,
                         const float *samples, int64_t count, float *features) {
    fbank *f;
    if (!context || count < 0 || (count > 0 && !samples) ||
        (shoal_fbank_frames(options, count) > 0 && !features))
        return sh_fail(context, SHOAL_INVALID,
                       "context, samples or features is NULL, or count is negative");
    const shoal_status status = sh_fbank_create(context, options, &f);
    if (status != SHOAL_OK)
        return status;
    sh_fbank_compute(f, samples, count, features);
    sh_fbank_destroy(f);
    return SHOAL_OK;
}
