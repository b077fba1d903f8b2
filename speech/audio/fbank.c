#include "speech/audio/fbank.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "speech/audio/rfft.h"

enum { RATE = 16000 };

/* What follows from the samples per second. */
typedef struct {
    int window, shift, transform; /* samples */
} frame_sizes;

static frame_sizes sizes_of(int32_t rate) {
    return rate == RATE / 2 ? (frame_sizes){200, 80, 256} : (frame_sizes){400, 160, 512};
}

/* The bins of the spectrum that a band takes. */
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

/* In floats, as Kaldi has it: at an edge of a triangle their rounding shows. */
static float mel_of(float hertz) {
    return 1127.0f * logf(1.0f + hertz / 700.0f);
}

static void set_triangle(fbank *f, int band) {
    const float low = mel_of(20);
    const float width = (mel_of((float)f->rate / 2) - low) / (float)(f->bands + 1);
    const float left = low + (float)band * width, right = low + (float)(band + 2) * width;
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
    const double turn = 6.283185307179586476925286766559;
    *made = NULL;
    fbank sized = {.context = context,
                   .bands = sh_fbank_bands(options),
                   .rate = sh_fbank_rate(options),
                   .centred = options && options->centred};
    if (sized.bands < 1 || sized.bands > FBANK_MOST_BANDS)
        return sh_fail(context, SHOAL_INVALID, "%d bands: 1 to %d are possible",
                       sized.bands, (int)FBANK_MOST_BANDS);
    if (sized.rate != RATE && sized.rate != RATE / 2)
        return sh_fail(context, SHOAL_INVALID,
                       "%d samples per second: 8000 and 16000 are possible", sized.rate);
    sized.sizes = sizes_of(sized.rate);
    sized.bins = sized.sizes.transform / 2;
    fbank *f = sh_allocate_parts(context, place, &sized, NULL);
    if (!f)
        return SHOAL_NO_MEMORY;
    *f = sized;
    const double angle = turn / (f->sizes.window - 1);
    for (int i = 0; i < f->sizes.window; i++)
        f->window[i] = (float)pow(0.5 - 0.5 * cos(angle * i), 0.85);
    for (int band = 0; band < f->bands; band++)
        set_triangle(f, band);
    sh_rfft_begin(f->transform, f->sizes.transform);
    *made = f;
    return SHOAL_OK;
}

void sh_fbank_destroy(fbank *f) {
    if (f)
        sh_release(f->context, f);
}

/* ---- Frames ---------------------------------------------------------------------- */

int64_t shoal_fbank_frames(const shoal_fbank_options *options, int64_t samples) {
    const frame_sizes sizes = sizes_of(sh_fbank_rate(options));
    if (options && options->centred)
        return samples < 0 ? 0 : (samples + sizes.shift / 2) / sizes.shift;
    return samples < sizes.window ? 0 : 1 + (samples - sizes.window) / sizes.shift;
}

/* Reflected at both ends, as often as it takes. */
static int64_t reflect(int64_t index, int64_t count) {
    while (index < 0 || index >= count)
        index = index < 0 ? -index - 1 : 2 * count - 1 - index;
    return index;
}

/* Every sum in float32 and in this order, as the package has it (rfft.h). */
static void take_frame(fbank *f, const float *samples, int64_t count, int64_t begin) {
    const int window = f->sizes.window;
    float *frame = f->frame, sum = 0;
    for (int i = 0; i < window; i++) {
        frame[i] = 32768 * samples[reflect(begin + i, count)];
        sum += frame[i];
    }
    const float mean = sum / (float)window;
    for (int i = 0; i < window; i++)
        frame[i] -= mean;
    for (int i = window - 1; i > 0; i--)
        frame[i] = (frame[i] - 0.97f * frame[i - 1]) * f->window[i];
    frame[0] = (frame[0] - 0.97f * frame[0]) * f->window[0];
    memset(frame + window, 0, (size_t)(f->sizes.transform - window) * sizeof *frame);
}

static void write_bands(const fbank *f, float *out) {
    for (int band = 0; band < f->bands; band++) {
        const band_range range = f->ranges[band];
        const float *weights = f->weights + band * f->bins + range.first;
        float sum = 0;
        for (int i = 0; i < range.count; i++)
            sum += weights[i] * f->power[range.first + i];
        out[band] = logf(sum > FLT_EPSILON ? sum : FLT_EPSILON);
    }
}

void sh_fbank_compute(fbank *f, const float *samples, int64_t count, float *out) {
    const shoal_fbank_options options = {.centred = f->centred, .rate = f->rate};
    const frame_sizes sizes = f->sizes;
    const int64_t frames = shoal_fbank_frames(&options, count);
    const int64_t first = f->centred ? sizes.shift / 2 - sizes.window / 2 : 0;
    for (int64_t i = 0; i < frames; i++) {
        take_frame(f, samples, count, first + i * sizes.shift);
        sh_rfft_power(f->transform, f->frame, f->power);
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
