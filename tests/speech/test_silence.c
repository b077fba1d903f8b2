/* Detection of silence by the audio alone, and, if the real model is available, by its
   output. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "small_whisper.h"
#include "speech/whisper/speech.h"
#include "support.h"

enum { SECOND = AUDIO_RATE };

/* White noise with this root mean square. */
static void add_noise(double size, int64_t count, float *samples) {
    uint64_t draw = 88172645463325252u;
    for (int64_t i = 0; i < count; i++) {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        samples[i] += (float)(size * sqrt(12) * ((double)(draw >> 11) * 0x1p-53 - 0.5));
    }
}

static void levels_are_of_tenths_of_a_second(void **state) {
    float samples[8000] = {0};
    sound_level level = sh_sound_level(samples, 0);
    assert_true(level.loudest == 0 && level.quietest == 0);
    for (int i = 1600; i < 3200; i++)
        samples[i] = i % 2 ? 0.5f : -0.5f;
    level = sh_sound_level(samples, 8000);
    assert_true(fabs(level.loudest - 0.5) < 1e-9 && level.quietest == 0);
    level = sh_sound_level(samples + 1600, 1600);
    assert_true(fabs(level.loudest - 0.5) < 1e-9 && level.quietest == level.loudest);
    level = sh_sound_level(samples + 1600, 100); /* less than a tenth of a second is
                                                    one interval */
    assert_true(fabs(level.loudest - 0.5) < 1e-9 && level.quietest == level.loudest);
    level = sh_sound_level(samples, 1700); /* and a remainder after a tenth is ignored */
    assert_true(level.loudest == 0);
}

/* ---- With a model ----------------------------------------------------------------- */

typedef struct {
    char text[4096];
    shoal_transcription summary;
} words;

static int collect(void *user, const shoal_segment *segment) {
    words *w = user;
    strncat(w->text, segment->text, sizeof w->text - strlen(w->text) - 1);
    return 0;
}

static words hear(shoal_speech *speech, const float *samples, int64_t count,
                  const shoal_transcribe_options *options) {
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = samples,
                                       .sample_count = count};
    words w = {.text = ""};
    assert_int_equal(shoal_speech_transcribe(speech, &recording, options, collect, &w,
                                             &w.summary),
                     SHOAL_OK);
    return w;
}

/* A model with random weights has words for any input. */
static void nothing_is_never_heard(void **state) {
    const small_whisper model = {51865, true, 2, false, 0};
    opened o = open_small(&model, NULL, 2);
    const int64_t count = 40 * SECOND;
    float *samples = floats(count);
    for (int no_fallback = 0; no_fallback < 2; no_fallback++) {
        const shoal_transcribe_options options = {.size =
                                                      sizeof(shoal_transcribe_options),
                                                  .no_fallback = no_fallback,
                                                  .no_vad = 1};
        memset(samples, 0, (size_t)count * sizeof *samples);
        words w = hear(o.speech, samples, count, &options);
        assert_string_equal(w.text, "");
        assert_string_equal(w.summary.language, "");
        assert_int_equal(w.summary.windows, 2);
        assert_int_equal(w.summary.silent, 2);
        assert_true(fabs(w.summary.seconds - 40) < 1e-9);
        add_noise(0.01, SECOND, samples + 35 * SECOND); /* in the second window */
        w = hear(o.speech, samples, count,
                 &(shoal_transcribe_options){.size = sizeof(shoal_transcribe_options),
                                             .no_fallback = 1,
                                             .no_vad = 1});
        assert_true(w.text[0] != 0);
        assert_int_equal(w.summary.silent, 1);
    }
    free(samples);
    close_small(&o);
}

/* Decoding a window from the encoder's output gives the same words as transcription. */
static void decoding_alone_is_the_same(void **state) {
    const small_whisper model = {51865, true, 2, false, 0};
    opened o = open_small(&model, NULL, 2);
    const int64_t count = 7 * SECOND;
    float *samples = floats(count), *features = floats(80 * 3000),
          *encoded = floats(1500 * SMALL_WIDTH);
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = samples,
                                       .sample_count = count};
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .no_fallback = 1,
                                              .no_timestamps = 1,
                                              .no_vad = 1};
    words again = {.text = ""};
    make_samples(9, count, samples);
    const words w = hear(o.speech, samples, count, &options);
    double seconds;
    assert_int_equal(shoal_speech_features(o.speech, &recording, 0, features, &seconds),
                     SHOAL_OK);
    assert_int_equal(shoal_speech_encode(o.speech, features, encoded), SHOAL_OK);
    assert_int_equal(shoal_speech_decode(o.speech, encoded, seconds, &options, collect,
                                         &again, &again.summary),
                     SHOAL_OK);
    assert_true(w.text[0] != 0);
    assert_string_equal(w.text, again.text);
    assert_string_equal(w.summary.language, again.summary.language);
    const double wrong[] = {0, -1, 30.01, NAN};
    for (int i = 0; i < 4; i++)
        assert_int_equal(shoal_speech_decode(o.speech, encoded, wrong[i], NULL, NULL,
                                             NULL, NULL),
                         SHOAL_INVALID);
    assert_int_equal(shoal_speech_decode(o.speech, NULL, 1, NULL, NULL, NULL, NULL),
                     SHOAL_INVALID);
    encoded[77] = NAN;
    assert_int_equal(shoal_speech_decode(o.speech, encoded, 1, NULL, NULL, NULL, NULL),
                     SHOAL_BAD_FILE);
    free(samples);
    free(features);
    free(encoded);
    close_small(&o);
}

/* ---- With the real model ---------------------------------------------------------- */

typedef struct {
    shoal_context *context;
    shoal_speech *speech;
    float *samples; /* [count], of a recording */
    int64_t count;
} real;

static real open_real(void) {
    real r = {.context = test_context(NULL, 2)};
    audio_file *sound = NULL;
    const float *samples = NULL;
    const char *path = test_data("models/ggml-tiny.bin");
    if (!path || shoal_speech_open(r.context, path, NULL, &r.speech) != SHOAL_OK ||
        !(path = test_data("speech/1088-134315-0043.flac")) ||
        sh_audio_open(r.context, path, false, &sound) != SHOAL_OK) {
        shoal_speech_destroy(r.speech);
        shoal_context_destroy(r.context);
        print_message("the real model and speech are not here\n");
        skip();
    }
    assert_int_equal(sh_audio_window(r.context, sound, 0, AUDIO_WINDOW, &samples,
                                     &r.count),
                     SHOAL_OK);
    r.samples = floats(r.count);
    memcpy(r.samples, samples, (size_t)r.count * sizeof *samples);
    sh_audio_close(sound);
    return r;
}

static void close_real(real *r) {
    free(r->samples);
    shoal_speech_destroy(r->speech);
    shoal_context_destroy(r->context);
}

static void noise_has_no_words(void **state) {
    static const double sizes[] = {3e-5, 1e-3};
    real r = open_real();
    float *samples = floats(3 * SECOND);
    for (int i = 0; i < 4; i++) {
        const shoal_transcribe_options options = {.size =
                                                      sizeof(shoal_transcribe_options),
                                                  .no_vad = i / 2};
        memset(samples, 0, 3 * SECOND * sizeof *samples);
        add_noise(sizes[i % 2], 3 * SECOND, samples);
        const words w = hear(r.speech, samples, 3 * SECOND, &options);
        if (*w.text || w.summary.silent != i / 2 || *w.summary.language)
            fail_msg("noise of %g: '%s', language '%s'", sizes[i % 2], w.text,
                     w.summary.language);
    }
    free(samples);
    close_real(&r);
}

/* Speech at a hundredth of its amplitude keeps its words. */
static void quiet_speech_is_heard(void **state) {
    static const char said[] =
        "fisher went back to the library the girl was sealing up some letters as he "
        "entered and looked up i am afraid miss holland i've got myself into very "
        "serious trouble what is that fisher asked the girl";
    real r = open_real();
    for (int64_t i = 0; i < r.count; i++) /* quantised to 16 bits */
        r.samples[i] = roundf(r.samples[i] * 327.68f) / 32768;
    for (int no_vad = 0; no_vad < 2; no_vad++) {
        const shoal_transcribe_options options = {.size =
                                                      sizeof(shoal_transcribe_options),
                                                  .no_vad = no_vad};
        const words quiet = hear(r.speech, r.samples, r.count, &options);
        shoal_word_errors errors = {0};
        assert_int_equal(shoal_count_word_errors(r.context, said, quiet.text, &errors),
                         SHOAL_OK);
        if (errors.substitutions + errors.insertions + errors.deletions > 4)
            fail_msg("'%s' was heard", quiet.text);
    }
    close_real(&r);
}

/* The language is that of the speech, not of a window of noise before it. */
static void noise_has_no_language(void **state) {
    real r = open_real();
    const int64_t count = AUDIO_WINDOW + r.count;
    float *samples = floats(count);
    memset(samples, 0, (size_t)count * sizeof *samples);
    memcpy(samples + AUDIO_WINDOW, r.samples, (size_t)r.count * sizeof *samples);
    add_noise(1e-2, AUDIO_WINDOW, samples);
    for (int no_vad = 0; no_vad < 2; no_vad++) {
        const shoal_transcribe_options options = {.size =
                                                      sizeof(shoal_transcribe_options),
                                                  .no_vad = no_vad};
        const words w = hear(r.speech, samples, count, &options);
        assert_string_equal(w.summary.language, "en");
        assert_non_null(strstr(w.text, "library"));
    }
    free(samples);
    close_real(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_of_tenths_of_a_second),
        cmocka_unit_test(nothing_is_never_heard),
        cmocka_unit_test(decoding_alone_is_the_same),
        cmocka_unit_test(noise_has_no_words),
        cmocka_unit_test(quiet_speech_is_heard),
        cmocka_unit_test(noise_has_no_language),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
