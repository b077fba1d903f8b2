#include "speech/audio/mel.h"

#include <kiss_fftr.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"

enum {
    HALF = MEL_FFT / 2,
    TASK_FRAMES = 100, /* of 3000, for any number of threads */
    TASKS = MEL_FRAMES / TASK_FRAMES
};

typedef struct {
    int first, count; /* bins with nonzero weight */
} band_range;

struct mel {
    shoal_context *context;
    int bands, threads;
    size_t transform_size; /* bytes */
    float *hann;           /* [MEL_FFT] */
    float *filters;        /* [bands][MEL_BINS] */
    band_range *ranges;    /* [bands] */
    float *largest;        /* [TASKS] */
    float *frames;         /* [threads][FRAME_STRIDE]: windowed samples, then power */
    kiss_fft_cpx *spectra; /* [threads][SPECTRUM_STRIDE] */
    char *transforms;      /* [threads][transform_size]: state of kissfft with scratch */
};

/* Whole cache lines, to avoid false sharing between threads. */
enum { FRAME_STRIDE = 448, SPECTRUM_STRIDE = 208 };

/* ---- Filters ---------------------------------------------------------------------- */

/* Slaney's mel scale: linear up to 1 kHz (15 mel), logarithmic above. */
static double hertz_of_mel(double mels) {
    const double step = 200.0 / 3.0, corner = 1000.0 / step, ratio = log(6.4) / 27.0;
    return mels < corner ? mels * step : 1000.0 * exp(ratio * (mels - corner));
}

static double mel_of_hertz(double hertz) {
    const double step = 200.0 / 3.0, corner = 1000.0 / step, ratio = log(6.4) / 27.0;
    return hertz < 1000.0 ? hertz / step : corner + log(hertz / 1000.0) / ratio;
}

void sh_mel_filters(int bands, float *filters) {
    const double highest = mel_of_hertz(8000.0), bin_width = 16000.0 / MEL_FFT;
    for (int band = 0; band < bands; band++) {
        double low = hertz_of_mel(highest * band / (bands + 1));
        double middle = hertz_of_mel(highest * (band + 1) / (bands + 1));
        double high = hertz_of_mel(highest * (band + 2) / (bands + 1));
        for (int bin = 0; bin < MEL_BINS; bin++) {
            double hertz = bin * bin_width;
            double rising = (hertz - low) / (middle - low);
            double falling = (high - hertz) / (high - middle);
            double weight = fmin(rising, falling) * 2.0 / (high - low);
            filters[band * MEL_BINS + bin] = (float)fmax(weight, 0.0);
        }
    }
}

/* ---- Creation --------------------------------------------------------------------- */

static kiss_fftr_cfg transform_of(const mel *features, int thread) {
    char *place = features->transforms + (size_t)thread * features->transform_size;
    return (kiss_fftr_cfg)(void *)place;
}

static void place(void *argument, block_layout *block) {
    mel *made = argument;
    const int64_t bands = made->bands, threads = made->threads;
    sh_reserve(block, 1, sizeof *made);
    made->hann = sh_reserve(block, MEL_FFT, sizeof(float));
    made->filters = sh_reserve(block, bands * MEL_BINS, sizeof(float));
    made->ranges = sh_reserve(block, bands, sizeof(band_range));
    made->largest = sh_reserve(block, TASKS, sizeof(float));
    made->frames = sh_reserve(block, threads * FRAME_STRIDE, sizeof(float));
    made->spectra = sh_reserve(block, threads * SPECTRUM_STRIDE, sizeof(kiss_fft_cpx));
    made->transforms = sh_reserve(block, threads, made->transform_size);
}

shoal_status sh_mel_create(shoal_context *context, int bands, const float *filters,
                           mel **features) {
    const double turn = 6.283185307179586476925286766559;
    *features = NULL;
    if (bands < 1 || bands > MEL_MOST_BANDS)
        return sh_fail(context, SHOAL_INVALID,
                       "the number of mel bands is %d: it must be from 1 to %d", bands,
                       (int)MEL_MOST_BANDS);
    mel sized = {.context = context, .bands = bands, .threads = context->threads};
    kiss_fftr_alloc(MEL_FFT, 0, NULL, &sized.transform_size);
    sized.transform_size = (sized.transform_size + CACHE_LINE - 1) & ~(CACHE_LINE - 1ul);
    mel *made = sh_allocate_parts(context, place, &sized, NULL);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = sized;
    for (int i = 0; i < MEL_FFT; i++)
        made->hann[i] = (float)(0.5 - 0.5 * cos(turn * i / MEL_FFT));
    memcpy(made->filters, filters, (size_t)bands * MEL_BINS * sizeof *filters);
    for (int band = 0; band < bands; band++) {
        const float *filter = made->filters + band * MEL_BINS;
        int first = 0, end = MEL_BINS;
        while (first < end && filter[first] == 0.0f)
            first++;
        while (end > first && filter[end - 1] == 0.0f)
            end--;
        made->ranges[band] = (band_range){first, end - first};
    }
    for (int thread = 0; thread < made->threads; thread++)
        kiss_fftr_alloc(MEL_FFT, 0, transform_of(made, thread), &made->transform_size);
    *features = made;
    return SHOAL_OK;
}

void sh_mel_destroy(mel *features) {
    if (features)
        sh_release(features->context, features);
}

/* ---- One window ------------------------------------------------------------------- */

typedef struct {
    mel *features;
    const float *samples;
    int64_t count;
    float *out; /* [bands][MEL_FRAMES] */
    float lowest;
} window;

/* Without fmaxf, which is a function call because of NaN. */
static float larger(float a, float b) {
    return a > b ? a : b;
}

static void frames_task(void *shared, int64_t task, int thread) {
    const window *w = shared;
    mel *features = w->features;
    float *frame = features->frames + (int64_t)thread * FRAME_STRIDE;
    kiss_fft_cpx *spectrum = features->spectra + (int64_t)thread * SPECTRUM_STRIDE;
    float largest = -10.0f;
    for (int64_t i = task * TASK_FRAMES; i < (task + 1) * TASK_FRAMES; i++) {
        int64_t begin = i * MEL_HOP - HALF;
        if (begin >= w->count) { /* only zeros, even where the end is reflected */
            for (int band = 0; band < features->bands; band++)
                w->out[band * (int64_t)MEL_FRAMES + i] = -10.0f;
            continue;
        }
        const float *hann = w->features->hann;
        if (begin >= 0 && begin + MEL_FFT <= w->count)
            for (int k = 0; k < MEL_FFT; k++)
                frame[k] = w->samples[begin + k] * hann[k];
        else /* zeros after the recording, and the 30 s reflected at both ends */
            for (int k = 0; k < MEL_FFT; k++) {
                int64_t at = begin + k < 0 ? -begin - k : begin + k;
                at = at >= MEL_SAMPLES ? 2 * (int64_t)MEL_SAMPLES - 2 - at : at;
                frame[k] = (at < w->count ? w->samples[at] : 0.0f) * hann[k];
            }
        kiss_fftr(transform_of(features, thread), frame, spectrum);
        for (int bin = 0; bin < MEL_BINS; bin++)
            frame[bin] = spectrum[bin].r * spectrum[bin].r +
                         spectrum[bin].i * spectrum[bin].i;
        /* Writes the logarithms of one frame to its column. */
        const float log10_e = 0.4342944819f;
        for (int band = 0; band < features->bands; band++) {
            band_range range = features->ranges[band];
            const float *filter = features->filters + band * MEL_BINS;
            double sum = 0.0;
            for (int bin = range.first; bin < range.first + range.count; bin++)
                sum += (double)filter[bin] * (double)frame[bin];
            float value = log10_e * logf(larger((float)sum, 1e-10f));
            w->out[band * (int64_t)MEL_FRAMES + i] = value;
            largest = larger(largest, value);
        }
    }
    features->largest[task] = largest;
}

static void bands_task(void *shared, int64_t band, int thread) {
    const window *w = shared;
    float *row = w->out + band * MEL_FRAMES;
    (void)thread;
    for (int i = 0; i < MEL_FRAMES; i++)
        row[i] = (larger(row[i], w->lowest) + 4.0f) / 4.0f;
}

void sh_mel_compute(mel *features, const float *samples, int64_t count, float *out) {
    window w = {.features = features, .samples = samples, .count = count, .out = out};
    team workers = {.threads = features->threads};
    sh_team_run(workers, TASKS, frames_task, &w);
    float largest = features->largest[0];
    for (int task = 1; task < TASKS; task++)
        largest = larger(largest, features->largest[task]);
    w.lowest = largest - 8.0f;
    sh_team_run(workers, features->bands, bands_task, &w);
}
