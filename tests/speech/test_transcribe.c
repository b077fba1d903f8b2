/* Complete recordings with small models with random weights: any length, any number of
   threads, memory, errors; and, if the real model is available, real speech. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "models/text/unicode.h"
#include "small_whisper.h"
#include "speech/whisper/speech.h"
#include "support.h"

#include "shoal_speech.h"
enum { VOCABULARY = 51865, SECOND = 16000 };

static const small_whisper plain_model = {VOCABULARY, false, 1, false, 0};
static const small_whisper half_model = {VOCABULARY, true, 2, false, 0};

/* ---- Recordings ----------------------------------------------------------------- */

typedef struct {
    int64_t segments, tokens;
    double last_end;
    uint64_t digest;
    int stop_after; /* 0: never */
} heard;

static int listen(void *user, const shoal_segment *segment) {
    heard *h = user;
    assert_true(segment->begin >= 0 && segment->end > segment->begin);
    assert_true(segment->text[0] != 0 && segment->token_count > 0);
    assert_true(sh_utf8_valid(segment->text, strlen(segment->text)));
    h->segments++;
    h->tokens += segment->token_count;
    h->last_end = segment->end;
    for (int64_t i = 0; i < segment->token_count; i++)
        h->digest = (h->digest ^ (uint64_t)segment->tokens[i]) * 0x100000001b3u;
    return h->stop_after && h->segments == h->stop_after;
}

static heard hear_samples(const opened *o, int64_t count,
                          const shoal_transcribe_options *options,
                          shoal_transcription *summary) {
    float *samples = floats(count);
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = samples,
                                       .sample_count = count};
    heard h = {0};
    make_samples(9, count, samples);
    assert_int_equal(shoal_speech_transcribe(o->speech, &recording, options, listen, &h,
                                             summary),
                     SHOAL_OK);
    free(samples);
    return h;
}

static void test_recordings_of_any_length(void **state) {
    static const int64_t lengths[] = {0, 1, 159, 160, 16000, 480000, 480001, 1300000};
    opened o = open_small(&half_model, "shoal-20", 2);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int timestamps = 0; timestamps < 2; timestamps++) {
            const shoal_transcribe_options options = {.size = sizeof(
                                                          shoal_transcribe_options),
                                                      .no_timestamps = !timestamps,
                                                      .no_vad = 1,
                                                      .no_fallback = 1};
            shoal_transcription summary;
            hear_samples(&o, lengths[i], &options, &summary);
            const int64_t frames = lengths[i] / 160;
            assert_true(fabs(summary.seconds - (double)frames / 100) < 1e-9);
            assert_true(summary.windows >= (frames + 2999) / 3000);
            if (!timestamps)
                assert_int_equal(summary.windows, (frames + 2999) / 3000);
        }
    close_small(&o);
}

static void test_threads_change_nothing(void **state) {
    uint64_t digests[3];
    for (int i = 0; i < 3; i++) {
        opened o = open_small(&half_model, "shoal-20", i + 1);
        const shoal_transcribe_options options = {.size =
                                                      sizeof(shoal_transcribe_options),
                                                  .beams = 3,
                                                  .seed = 5,
                                                  .no_vad = 1};
        shoal_transcription summary;
        const heard h = hear_samples(&o, 8 * SECOND, &options, &summary);
        digests[i] = h.digest;
        assert_true(summary.fallbacks > 0); /* random words are never probable */
        close_small(&o);
    }
    assert_true(digests[0] == digests[1] && digests[1] == digests[2]);
}

/* A voice with gliding pitch and formant, four syllables per second, phrases of 5 s. */
static void make_speech(int64_t count, float *samples) {
    const double turn = 6.283185307179586;
    double phase = 0;
    make_samples(11, count, samples);
    for (int64_t i = 0; i < count; i++) {
        const double t = (double)i / SECOND, in = fmod(t, 0.25);
        const double pitch = 110 + 30 * sin(turn * 0.7 * t) + 60 * in;
        const double formant = 500 + 1800 * in + 250 * sin(turn * 1.3 * t);
        const bool spoken = in < 0.2 && fmod(t, 6.5) < 5;
        double sum = 0;
        phase += pitch / SECOND;
        for (int h = 1; h <= 8 && spoken; h++)
            sum += sin(turn * h * phase) / (1 + pow((h * pitch - formant) / 300, 2));
        samples[i] =
            (float)(1e-3 * (double)samples[i] + 0.1 * sum * sin(turn * in / 0.4));
    }
}

static heard hear_batch(int batch, int threads, int beams, shoal_transcription *summary) {
    enum { COUNT = 100 * SECOND };
    opened o = {.context = test_context(NULL, threads),
                .path = write_whisper(&half_model)};
    const shoal_speech_options wanted = {.size = sizeof(shoal_speech_options),
                                         .attention = "shoal-20",
                                         .batch = batch};
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .beams = beams,
                                              .seed = 5};
    float *samples = floats(COUNT);
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = samples,
                                       .sample_count = COUNT};
    heard h = {0};
    make_speech(COUNT, samples);
    assert_int_equal(shoal_speech_open(o.context, o.path, &wanted, &o.speech), SHOAL_OK);
    assert_int_equal(shoal_speech_transcribe(o.speech, &recording, &options, listen, &h,
                                             summary),
                     SHOAL_OK);
    free(samples);
    close_small(&o);
    return h;
}

/* The same text for any batch size, including fallback, which random words always
   need. */
static void test_batches_change_nothing(void **state) {
    static const struct {
        int batch, threads, beams;
    } runs[] = {{1, 2, 1}, {3, 1, 1}, {16, 3, 1}, {1, 1, 3}, {4, 2, 3}};
    uint64_t digest = 0;
    for (int i = 0; i < COUNT_OF(runs); i++) {
        shoal_transcription summary;
        const heard h =
            hear_batch(runs[i].batch, runs[i].threads, runs[i].beams, &summary);
        assert_true(summary.windows >= 3 && summary.fallbacks == summary.windows);
        assert_true(h.segments > 0);
        assert_true(i % 3 == 0 || h.digest == digest);
        digest = h.digest;
    }
}

/* An open model does not need its file any more; truncating a mapped file would end the
   program. */
static void test_the_file_may_shrink(void **state) {
    uint64_t digests[2];
    for (int shrunk = 0; shrunk < 2; shrunk++) {
        opened o = open_small(&half_model, "shoal-20", 2);
        const shoal_transcribe_options options = {.size =
                                                      sizeof(shoal_transcribe_options),
                                                  .no_fallback = 1};
        if (shrunk)
            assert_int_equal(truncate(o.path, 0), 0);
        assert_int_equal(shoal_speech_set_attention(o.speech, "shoal-20"), SHOAL_OK);
        digests[shrunk] = hear_samples(&o, 3 * SECOND, &options, NULL).digest;
        FILE *maps = fopen("/proc/self/maps", "r");
        char line[4096];
        while (maps && fgets(line, sizeof line, maps))
            assert_null(strstr(line, o.path));
        if (maps)
            fclose(maps);
        close_small(&o);
    }
    assert_true(digests[0] == digests[1]);
}

static void test_the_caller_can_stop(void **state) {
    opened o = open_small(&half_model, NULL, 2);
    float *samples = floats(70 * SECOND);
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = samples,
                                       .sample_count = 70 * SECOND};
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .no_fallback = 1,
                                              .no_timestamps = 1,
                                              .no_vad = 1};
    heard h = {.stop_after = 1};
    make_samples(9, 70 * SECOND, samples);
    assert_int_equal(shoal_speech_transcribe(o.speech, &recording, &options, listen, &h,
                                             NULL),
                     SHOAL_CANCELLED);
    assert_int_equal(h.segments, 1);
    free(samples);
    close_small(&o);
}

/* Memory is allocated when the model is opened, and does not depend on the
   recording. */
static void test_memory_does_not_grow(void **state) {
    counting_allocator memory = {0};
    const shoal_options counted = counting_options(&memory);
    opened o = {.path = write_whisper(&half_model)};
    assert_int_equal(shoal_context_create(&counted, &o.context), SHOAL_OK);
    assert_int_equal(shoal_speech_open(o.context, o.path, NULL, &o.speech), SHOAL_OK);
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .no_fallback = 1};
    int64_t calls[2];
    for (int i = 0; i < 2; i++) {
        const int64_t before = memory.calls;
        hear_samples(&o, (i ? 100 : 20) * SECOND, &options, NULL);
        calls[i] = memory.calls - before;
    }
    assert_int_equal(calls[0], calls[1]);
    close_small(&o);
    assert_int_equal(memory.live, 0);
}

static void test_every_allocation_fails_in_turn(void **state) {
    char *path = write_whisper(&half_model);
    int64_t failures = 0;
    for (int64_t at = 1;; at++) {
        counting_allocator memory = {0};
        const shoal_options counted = counting_options(&memory);
        shoal_context *context;
        shoal_speech *speech;
        assert_int_equal(shoal_context_create(&counted, &context), SHOAL_OK);
        memory.fail_at = memory.calls + at; /* the context has allocated before */
        const shoal_status status = shoal_speech_open(context, path, NULL, &speech);
        if (status != SHOAL_OK) {
            assert_int_equal(status, SHOAL_NO_MEMORY);
            assert_null(speech);
            failures++;
        }
        shoal_speech_destroy(speech);
        shoal_context_destroy(context);
        assert_int_equal(memory.live, 0);
        if (status == SHOAL_OK)
            break;
    }
    assert_true(failures >= 8);
    drop_whisper(path);
}

/* ---- Errors ----------------------------------------------------------------------- */

static shoal_status transcribe_with(const opened *o, shoal_transcribe_options options) {
    float silence[SECOND] = {0};
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = silence,
                                       .sample_count = SECOND};
    options.no_fallback = 1;
    return shoal_speech_transcribe(o->speech, &recording, &options, NULL, NULL, NULL);
}

static void test_refusals(void **state) {
    opened o = open_small(&plain_model, NULL, 1);
    float *features = floats(80 * 3000), *encoded = floats(1500 * SMALL_WIDTH), logit;
    shoal_speech *none;
    const int32_t wrong[] = {0, VOCABULARY};
    assert_int_equal(shoal_speech_logits(o.speech, encoded, wrong, 2, &logit),
                     SHOAL_INVALID);
    assert_int_equal(shoal_speech_logits(o.speech, encoded, wrong, 0, &logit),
                     SHOAL_INVALID);
    assert_int_equal(shoal_speech_logits(o.speech, encoded, wrong, SMALL_TEXT + 1,
                                         &logit),
                     SHOAL_INVALID);
    assert_int_equal(shoal_speech_encode(o.speech, NULL, encoded), SHOAL_INVALID);
    assert_int_equal(transcribe_with(&o,
                                     (shoal_transcribe_options){
                                         .size = sizeof(shoal_transcribe_options),
                                         .beams = 6}),
                     SHOAL_INVALID);
    assert_int_equal(transcribe_with(&o,
                                     (shoal_transcribe_options){
                                         .size = sizeof(shoal_transcribe_options),
                                         .language = "elvish"}),
                     SHOAL_INVALID);
    assert_int_equal(transcribe_with(&o,
                                     (shoal_transcribe_options){
                                         .size = sizeof(shoal_transcribe_options),
                                         .language = "German"}),
                     SHOAL_OK);
    const float bad[] = {0, NAN};
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = bad,
                                       .sample_count = 2};
    assert_int_equal(shoal_speech_features(o.speech, &recording, 0, features, NULL),
                     SHOAL_INVALID);
    const shoal_speech_options many = {.size = sizeof(shoal_speech_options), .beams = 65};
    assert_int_equal(shoal_speech_open(o.context, o.path, &many, &none), SHOAL_INVALID);
    const shoal_speech_options odd = {.size = sizeof(shoal_speech_options),
                                      .attention = "fill"};
    assert_int_equal(shoal_speech_open(o.context, o.path, &odd, &none), SHOAL_INVALID);
    assert_null(none);
    assert_int_equal(shoal_speech_open(o.context, "/no/such/model", NULL, &none),
                     SHOAL_IO);
    free(features);
    free(encoded);
    close_small(&o);
}

static void test_english_only(void **state) {
    const small_whisper english = {51864, true, 3, false, 0};
    opened o = open_small(&english, NULL, 2);
    shoal_transcription summary;
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .no_fallback = 1};
    hear_samples(&o, 3 * SECOND, &options, &summary);
    assert_string_equal(summary.language, "en");
    assert_int_equal(shoal_speech_describe(o.speech)->multilingual, 0);
    assert_int_equal(transcribe_with(&o,
                                     (shoal_transcribe_options){
                                         .size = sizeof(shoal_transcribe_options),
                                         .language = "de"}),
                     SHOAL_INVALID);
    assert_int_equal(transcribe_with(&o,
                                     (shoal_transcribe_options){
                                         .size = sizeof(shoal_transcribe_options),
                                         .translate = 1}),
                     SHOAL_INVALID);
    close_small(&o);
}

/* ---- Real speech ---------------------------------------------------------------- */

typedef struct {
    char text[4096];
} collected;

static int collect(void *user, const shoal_segment *segment) {
    collected *c = user;
    strncat(c->text, segment->text, sizeof c->text - strlen(c->text) - 1);
    return 0;
}

static void test_real_speech(void **state) {
    static const char reference[] =
        "fisher went back to the library the girl was sealing up some letters as he "
        "entered and looked up i am afraid miss holland i've got myself into very "
        "serious "
        "trouble what is that fisher asked the girl";
    const char *found = test_data("models/ggml-tiny.bin");
    char *model = found ? strdup(found) : NULL;
    found = test_data("speech/1088-134315-0043.flac");
    char *sound = found ? strdup(found) : NULL;
    if (!model || !sound) {
        free(model);
        free(sound);
        print_message("the real model and speech are not here\n");
        skip();
    }
    shoal_context *context = test_context(NULL, 2);
    const shoal_speech_options options = {.size = sizeof(shoal_speech_options),
                                          .attention = "shoal-100"};
    const char *path = sound;
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .paths = &path,
                                       .files = 1};
    shoal_speech *speech;
    shoal_transcription summary;
    collected c = {{0}};
    assert_int_equal(shoal_speech_open(context, model, &options, &speech), SHOAL_OK);
    assert_int_equal(shoal_speech_transcribe(speech, &recording, NULL, collect, &c,
                                             &summary),
                     SHOAL_OK);
    assert_string_equal(summary.language, "en");
    shoal_word_errors errors = {0};
    assert_int_equal(shoal_count_word_errors(context, reference, c.text, &errors),
                     SHOAL_OK);
    assert_true(errors.words > 30);
    assert_true(errors.substitutions + errors.insertions + errors.deletions <= 2);
    shoal_speech_destroy(speech);
    shoal_context_destroy(context);
    free(model);
    free(sound);
}

/* ---- Many recordings ------------------------------------------------------------- */

enum { MANY = 6, BROKEN = 2, MANY_SECONDS = 45 };

typedef struct {
    heard texts[MANY];
    shoal_status ends[MANY];
    double seconds[MANY];
    char message[256];
    shoal_context *context;
    int ended, stop_after; /* 0: never */
} many_heard;

static int listen_many(void *user, const shoal_segment *segment) {
    many_heard *m = user;
    return listen(&m->texts[m->ended], segment);
}

static int end_one(void *user, int index, shoal_status status,
                   const shoal_transcription *summary) {
    many_heard *m = user;
    assert_int_equal(index, m->ended);
    m->ends[m->ended] = status;
    m->seconds[m->ended++] = summary->seconds;
    if (status != SHOAL_OK)
        snprintf(m->message, sizeof m->message, "%s", shoal_context_message(m->context));
    return m->ended == m->stop_after;
}

/* Some of one window, one of two, one of silence, and a missing file. */
static void make_many(const float *speech, const float *silence,
                      shoal_recording *recordings) {
    static const char *const missing[] = {"/nowhere/nothing.wav"};
    static const int seconds[MANY] = {5, MANY_SECONDS, 0, 3, 8, 12};
    for (int i = 0; i < MANY; i++)
        recordings[i] =
            (shoal_recording){.size = sizeof(shoal_recording),
                              .samples = i == 3 ? silence : speech + i * SECOND / 2,
                              .sample_count = seconds[i] * SECOND};
    recordings[1].samples = speech;
    recordings[BROKEN] =
        (shoal_recording){.size = sizeof(shoal_recording), .paths = missing, .files = 1};
}

static many_heard hear_many(int batch, bool together, int stop_after) {
    opened o = {.context = test_context(NULL, 2), .path = write_whisper(&half_model)};
    const shoal_speech_options wanted = {.size = sizeof(shoal_speech_options),
                                         .batch = batch};
    const shoal_transcribe_options options = {.size = sizeof(shoal_transcribe_options),
                                              .seed = 5};
    float *speech = floats(MANY_SECONDS * SECOND), *silence = floats(3 * SECOND);
    shoal_recording recordings[MANY];
    many_heard m = {.context = o.context, .stop_after = stop_after};
    make_speech(MANY_SECONDS * SECOND, speech);
    memset(silence, 0, 3 * SECOND * sizeof *silence);
    make_many(speech, silence, recordings);
    assert_int_equal(shoal_speech_open(o.context, o.path, &wanted, &o.speech), SHOAL_OK);
    for (int i = 0; i < MANY && !together; i++) {
        shoal_transcription summary;
        m.ends[i] = shoal_speech_transcribe(o.speech, &recordings[i], &options, listen,
                                            &m.texts[i], &summary);
        m.seconds[i] = summary.seconds;
    }
    if (together)
        assert_int_equal(shoal_speech_transcribe_all(o.speech, recordings, MANY, &options,
                                                     listen_many, end_one, &m),
                         stop_after ? SHOAL_CANCELLED : SHOAL_OK);
    free(speech);
    free(silence);
    close_small(&o);
    return m;
}

/* Each has the text that it has alone, in order, and an error of one is reported in its
   turn, whatever was opened since. */
static void test_many_recordings(void **state) {
    const many_heard alone = hear_many(4, false, 0);
    const int batches[] = {1, 3, 16};
    for (int b = 0; b < 3; b++) {
        const many_heard all = hear_many(batches[b], true, 0);
        assert_int_equal(all.ended, MANY);
        assert_non_null(strstr(all.message, "/nowhere/nothing.wav"));
        for (int i = 0; i < MANY; i++) {
            assert_int_equal(all.ends[i], alone.ends[i]);
            assert_int_equal(all.ends[i] == SHOAL_OK, i != BROKEN);
            assert_int_equal(all.texts[i].segments, alone.texts[i].segments);
            assert_true(all.texts[i].digest == alone.texts[i].digest);
            assert_true(all.seconds[i] == alone.seconds[i]);
        }
    }
    assert_true(alone.texts[0].segments > 0 && alone.texts[MANY - 1].segments > 0);
    assert_true(alone.texts[0].digest != alone.texts[MANY - 1].digest);
    assert_int_equal(alone.texts[3].segments, 0);
    assert_int_equal(hear_many(16, true, 2).ended, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recordings_of_any_length),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_batches_change_nothing),
        cmocka_unit_test(test_many_recordings),
        cmocka_unit_test(test_the_file_may_shrink),
        cmocka_unit_test(test_the_caller_can_stop),
        cmocka_unit_test(test_memory_does_not_grow),
        cmocka_unit_test(test_every_allocation_fails_in_turn),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_english_only),
        cmocka_unit_test(test_real_speech),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
