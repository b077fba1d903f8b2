/* A recogniser's file, made here with random weights: its notes, older files without
   some of them, errors, and samples in memory compared with the single steps. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "shoal_models.h"
#include "shoal_speech.h"
#include "support.h"

enum { BANDS = 20, HOP = 2, CONTEXT = 6, SAMPLES = 3 * 16000 };

static shoal_context *context;
static const char *folder;
static float samples[SAMPLES];

/* Notes written by a CTC training on words; those from AGED on are missing in the first
   files. */
static const shoal_note notes[] =
    {{"config.task", "speech"},     {"config.units", "words"},
     {"config.bands", "20"},        {"config.normalise", "speaker"},
     {"config.hop", "2"},           {"config.context", "6"},
     {"config.join", "0"},          {"state.step", "17"},
     {"speech.units", "A\nB\nC\n"}, {"config.rate", "16000"},
     {"config.loss", "ctc"},        {"config.every", "1"},
     {"config.topology", "chain"}};
enum { NOTES = sizeof notes / sizeof *notes, AGED = 9 };

/* FOLDER/NAME with these notes, one of them with another value or, if NULL, removed. */
static const char *save(const char *name, int count, const char *key, const char *value) {
    static char path[512];
    const shoal_model_config config = {.size = sizeof(shoal_model_config),
                                       .features = BANDS * CONTEXT,
                                       .outputs = 4,
                                       .max_length = 4000,
                                       .layers = 1,
                                       .heads = 2,
                                       .head_dim = 8,
                                       .feed_forward = 16,
                                       .norm = SHOAL_NORM_PRE,
                                       .positions = SHOAL_POSITIONS_SINUSOIDAL};
    shoal_note own[NOTES];
    int kept = 0;
    for (int i = 0; i < count; i++) {
        const bool other = key && strcmp(notes[i].key, key) == 0;
        if (other && !value)
            continue;
        own[kept] = notes[i];
        own[kept++].value = other ? value : notes[i].value;
    }
    shoal_model *model;
    assert_int_equal(shoal_model_create(context, &config, 5, 1, 1000, 0, &model),
                     SHOAL_OK);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(shoal_checkpoint_save(path, model, NULL, NULL, own, kept), SHOAL_OK);
    shoal_model_destroy(model);
    return path;
}

static shoal_recogniser *open_model(const char *path,
                                    const shoal_recogniser_options *options) {
    shoal_recogniser *made;
    if (shoal_recogniser_open(context, path, options, &made) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return made;
}

static void notes_are_read(void **state) {
    (void)state;
    save("checkpoint.safetensors", NOTES, "state.step", "3");
    shoal_recogniser *r = open_model(folder, NULL);
    assert_int_equal(shoal_recogniser_describe(r)->step, 3);
    shoal_recogniser_destroy(r);
    save("best.safetensors", NOTES, NULL, NULL);
    r = open_model(folder, NULL); /* the best has priority */
    const shoal_recogniser_info info = *shoal_recogniser_describe(r);
    assert_non_null(strstr(info.path, "/best.safetensors"));
    assert_int_equal(info.step, 17);
    assert_int_equal(info.loss, SHOAL_RECOGNISER_LOSS_CTC);
    assert_int_equal(info.topology, SHOAL_TOPOLOGY_CTC);
    assert_int_equal(info.units, 3);
    assert_int_equal(info.outputs, 4);
    assert_int_equal(info.features.context, CONTEXT);
    assert_true(info.step_seconds == 0.02);
    assert_string_equal(shoal_recogniser_unit(r, 2), "C");
    assert_null(shoal_recogniser_unit(r, 3));
    shoal_recogniser_destroy(r);
    r = open_model(save("old", AGED, NULL, NULL), NULL);
    assert_int_equal(shoal_recogniser_describe(r)->features.rate, 16000);
    assert_int_equal(shoal_recogniser_describe(r)->features.every, 1);
    shoal_recogniser_destroy(r);
}

static void expect_refused(const char *key, const char *value, shoal_status status,
                           const char *reason) {
    shoal_recogniser *r;
    assert_int_equal(shoal_recogniser_open(context, save("bad", NOTES, key, value), NULL,
                                           &r),
                     status);
    assert_null(r);
    if (!strstr(shoal_context_message(context), reason))
        fail_msg("\"%s\" in place of %s", shoal_context_message(context), reason);
}

static void others_are_refused(void **state) {
    (void)state;
    expect_refused("config.task", "copy", SHOAL_BAD_FILE, "a model of copy");
    expect_refused("config.task", NULL, SHOAL_BAD_FILE, "is not a recogniser");
    expect_refused("speech.units", NULL, SHOAL_BAD_FILE, "it has no speech.units");
    expect_refused("speech.units", "A\nB\n", SHOAL_BAD_FILE,
                   "does not match its outputs");
    expect_refused("speech.units", "A\nB\x1b\nC\n", SHOAL_BAD_FILE, "control characters");
    expect_refused("config.hop", NULL, SHOAL_BAD_FILE, "has no config.hop");
    expect_refused("config.hop", "0", SHOAL_BAD_FILE, "config.hop is \"0\"");
    expect_refused("config.hop", "1.5", SHOAL_BAD_FILE, "config.hop is");
    expect_refused("config.loss", "mse", SHOAL_BAD_FILE, "config.loss is \"mse\"");
    expect_refused("config.bands", "21", SHOAL_BAD_FILE, "its features do not match");
    expect_refused("config.loss", "lf-mmi", SHOAL_BAD_FILE, "does not match its outputs");
}

static void options_are_checked(void **state) {
    (void)state;
    const char *path = save("good", NOTES, NULL, NULL);
    shoal_recogniser *r;
    shoal_recogniser_options options = shoal_recogniser_options_defaults();
    options.attention = "nonsense";
    assert_int_equal(shoal_recogniser_open(context, path, &options, &r), SHOAL_INVALID);
    options = shoal_recogniser_options_defaults();
    options.lexicon = "somewhere";
    assert_int_equal(shoal_recogniser_open(context, path, &options, &r), SHOAL_INVALID);
    options.lm = "somewhere";
    assert_int_equal(shoal_recogniser_open(context, path, &options, &r), SHOAL_IO);
    options = shoal_recogniser_options_defaults();
    options.beams = -1;
    assert_int_equal(shoal_recogniser_open(context, path, &options, &r), SHOAL_INVALID);
    /* A caller whose structure ends before `beams` gets its default. */
    options.size = offsetof(shoal_recogniser_options, beams);
    r = open_model(path, &options);
    shoal_recognition heard;
    samples[5] = NAN;
    assert_int_equal(shoal_recogniser_recognise(r, samples, SAMPLES, &heard),
                     SHOAL_INVALID);
    samples[5] = 0;
    assert_int_equal(shoal_recogniser_recognise(r, samples, 300, &heard), SHOAL_INVALID);
    shoal_recogniser_destroy(r);
}

/* Features, stacked one by one, the complete model, and the most probable outputs. */
static void sound_is_heard(void **state) {
    (void)state;
    shoal_recogniser *r = open_model(save("good", NOTES, NULL, NULL), NULL);
    shoal_recognition heard;
    assert_int_equal(shoal_recogniser_recognise(r, samples, SAMPLES, &heard), SHOAL_OK);
    const shoal_features_config config = shoal_recogniser_describe(r)->features;
    const shoal_fbank_options fbank = {.size = sizeof(shoal_fbank_options),
                                       .bands = BANDS};
    const int64_t frames = shoal_fbank_frames(&fbank, SAMPLES);
    const int64_t rows = (frames + HOP - 1) / HOP;
    float *features = malloc(sizeof(float) * (size_t)(frames * BANDS));
    float *stacked = calloc((size_t)(rows * CONTEXT * BANDS), sizeof(float));
    assert_int_equal(shoal_fbank(context, &fbank, samples, SAMPLES, features), SHOAL_OK);
    shoal_features_normalise(&config, frames, features);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < CONTEXT; k++)
            for (int64_t band = 0; band < BANDS; band++) {
                const int64_t t = i * HOP - (CONTEXT - HOP) / 2 + k;
                if (t >= 0 && t < frames)
                    stacked[(i * CONTEXT + k) * BANDS + band] =
                        features[t * BANDS + band];
            }
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = 1,
                                       .offsets = (int64_t[]){0, rows},
                                       .features = stacked};
    shoal_model *view;
    float *out;
    assert_int_equal(shoal_model_create_view(shoal_recogniser_describe_parts(r)->model,
                                             NULL, 1, rows, &view),
                     SHOAL_OK);
    assert_int_equal(shoal_model_forward(view, &inputs, &out), SHOAL_OK);
    int64_t count = 0;
    for (int64_t i = 0, before = 0; i < rows; i++) {
        int64_t best = 0;
        for (int64_t c = 1; c < 4; c++)
            best = out[4 * i + c] > out[4 * i + best] ? c : best;
        if (best > 0 && best != before) {
            assert_true(count < heard.count);
            assert_int_equal(heard.units[count].begin, i);
            assert_string_equal(heard.units[count++].text,
                                shoal_recogniser_unit(r, best - 1));
        }
        before = best;
    }
    assert_true(count > 0);
    assert_int_equal(heard.count, count);
    assert_int_equal(heard.steps, rows);
    shoal_model_destroy(view);
    free(features);
    free(stacked);
    shoal_recogniser_destroy(r);
}

static int make(void **state) {
    (void)state;
    context = test_context(NULL, 2);
    folder = make_folder();
    for (int i = 0; i < SAMPLES; i++) /* tones of a quarter of a second each */
        samples[i] = 0.3f * sinf(0.02f * (float)(1 + i / 4000 % 5) * (float)i);
    return 0;
}

static int destroy(void **state) {
    (void)state;
    remove_folder(folder);
    shoal_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(notes_are_read),
                                       cmocka_unit_test(others_are_refused),
                                       cmocka_unit_test(options_are_checked),
                                       cmocka_unit_test(sound_is_heard)};
    return cmocka_run_group_tests(tests, make, destroy);
}
