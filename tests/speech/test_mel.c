/* Log-mel features compared with a plain discrete Fourier transform in double
   precision. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "speech/audio/mel.h"
#include "support.h"

static const double pi = 3.14159265358979323846;

/* The definition: zeros up to 30 s, reflection, Hann, power, filters, log10. One frame,
   before limiting. */
static void reference_frame(const float *samples, int64_t count, int64_t frame, int bands,
                            const float *filters, double *out) {
    static double cosine[MEL_FFT], sine[MEL_FFT];
    double windowed[MEL_FFT], power[MEL_BINS];
    for (int i = 0; cosine[0] == 0 && i < MEL_FFT; i++) {
        cosine[MEL_FFT - 1 - i] = cos(2 * pi * (MEL_FFT - 1 - i) / MEL_FFT);
        sine[MEL_FFT - 1 - i] = sin(2 * pi * (MEL_FFT - 1 - i) / MEL_FFT);
    }
    for (int i = 0; i < MEL_FFT; i++) {
        int64_t at = frame * MEL_HOP - MEL_FFT / 2 + i;
        if (at < 0)
            at = -at;
        if (at > MEL_SAMPLES - 1)
            at = 2 * (int64_t)(MEL_SAMPLES - 1) - at;
        double hann = 0.5 * (1 - cos(2 * pi * i / MEL_FFT));
        windowed[i] = (at < count ? (double)samples[at] : 0.0) * hann;
    }
    for (int k = 0; k < MEL_BINS; k++) {
        double real = 0, imaginary = 0;
        for (int i = 0; i < MEL_FFT; i++) {
            real += windowed[i] * cosine[k * i % MEL_FFT];
            imaginary -= windowed[i] * sine[k * i % MEL_FFT];
        }
        power[k] = real * real + imaginary * imaginary;
    }
    for (int band = 0; band < bands; band++) {
        double sum = 0;
        for (int k = 0; k < MEL_BINS; k++)
            sum += (double)filters[band * MEL_BINS + k] * power[k];
        out[band] = log10(sum > 1e-10 ? sum : 1e-10);
    }
}

static float *make_sound(int64_t count) {
    float *samples = malloc((size_t)count * sizeof *samples);
    for (int64_t i = 0; i < count; i++) {
        double t = (double)i / 16000;
        double noise = test_normal(test_hash(5, 1, (uint64_t)i));
        samples[i] = (float)(0.3 * sin(2 * pi * 440 * t) * sin(2 * pi * 0.7 * t) +
                             0.2 * sin(2 * pi * 3000 * t * (1 + 0.01 * t)) +
                             0.01 * noise);
    }
    return samples;
}

typedef struct {
    shoal_context *context;
    mel *features;
    float *filters, *out;
    int bands;
} fixture;

static fixture set_up(int bands, int threads) {
    fixture f = {.context = test_context(NULL, threads), .bands = bands};
    f.filters = malloc((size_t)bands * MEL_BINS * sizeof(float));
    f.out = malloc((size_t)bands * MEL_FRAMES * sizeof(float));
    sh_mel_filters(bands, f.filters);
    assert_int_equal(sh_mel_create(f.context, bands, f.filters, &f.features), SHOAL_OK);
    return f;
}

static void tear_down(fixture *f) {
    sh_mel_destroy(f->features);
    shoal_context_destroy(f->context);
    free(f->filters);
    free(f->out);
}

/* Every 7th frame, and those at the edges of the signal and of the window. */
static bool is_checked(int64_t frame, int64_t count) {
    return frame % 7 == 0 || frame < 4 || frame >= MEL_FRAMES - 4 ||
           llabs(frame - count / MEL_HOP) < 4;
}

static void compare(int bands, int64_t count) {
    fixture f = set_up(bands, 2);
    float *samples = make_sound(count);
    double *expected = malloc((size_t)bands * MEL_FRAMES * sizeof *expected);
    double largest = -10;
    sh_mel_compute(f.features, samples, count, f.out);
    for (int64_t frame = 0; frame < MEL_FRAMES; frame++) {
        double *column = expected + frame * bands;
        if (!is_checked(frame, count))
            continue;
        reference_frame(samples, count, frame, bands, f.filters, column);
    }
    /* The maximum may be in a frame that is not checked: take it from the result. */
    for (int64_t i = 0; i < (int64_t)bands * MEL_FRAMES; i++)
        largest = fmax(largest, (double)f.out[i] * 4 - 4);
    for (int64_t frame = 0; frame < MEL_FRAMES; frame++) {
        for (int band = 0; band < bands && is_checked(frame, count); band++) {
            double value = expected[frame * bands + band];
            assert_true(value <= largest + 1e-4);
            value = (fmax(value, largest - 8) + 4) / 4;
            if (fabs(value - (double)f.out[band * MEL_FRAMES + frame]) > 1e-4)
                fail_msg("frame %d band %d: %g is not %g", (int)frame, band,
                         (double)f.out[band * MEL_FRAMES + frame], value);
        }
    }
    free(expected);
    free(samples);
    tear_down(&f);
}

static void features_are_those_of_the_definition(void **state) {
    compare(80, MEL_SAMPLES);
    compare(80, 100003);
    compare(128, 16000);
    compare(80, 1);
}

static void silence_is_flat(void **state) {
    fixture f = set_up(80, 1);
    float quiet[500] = {0};
    for (int64_t count = 0; count <= 500; count += 500) {
        sh_mel_compute(f.features, quiet, count, f.out);
        for (int i = 0; i < 80 * MEL_FRAMES; i++)
            assert_true(f.out[i] == -1.5f);
    }
    tear_down(&f);
}

static void threads_change_nothing(void **state) {
    fixture one = set_up(80, 1), three = set_up(80, 3);
    float *samples = make_sound(MEL_SAMPLES);
    sh_mel_compute(one.features, samples, MEL_SAMPLES, one.out);
    sh_mel_compute(three.features, samples, MEL_SAMPLES, three.out);
    assert_memory_equal(one.out, three.out, 80 * MEL_FRAMES * sizeof(float));
    free(samples);
    tear_down(&one);
    tear_down(&three);
}

static void loud_sound_stays_finite(void **state) {
    fixture f = set_up(80, 1);
    float *samples = make_sound(16000);
    for (int i = 0; i < 16000; i++)
        samples[i] = samples[i] < 0 ? -1e9f : 1e9f;
    sh_mel_compute(f.features, samples, 16000, f.out);
    for (int i = 0; i < 80 * MEL_FRAMES; i++)
        assert_true(isfinite(f.out[i]));
    free(samples);
    tear_down(&f);
}

static void bands_are_limited(void **state) {
    fixture f = set_up(1, 1);
    mel *none;
    assert_int_equal(sh_mel_create(f.context, 0, f.filters, &none), SHOAL_INVALID);
    assert_int_equal(sh_mel_create(f.context, 257, f.filters, &none), SHOAL_INVALID);
    tear_down(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(features_are_those_of_the_definition),
        cmocka_unit_test(silence_is_flat),
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(loud_sound_stays_finite),
        cmocka_unit_test(bands_are_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
