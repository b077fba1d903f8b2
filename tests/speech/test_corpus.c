/* Filter banks compared with recorded values of kaldi-native-fbank
   (bench/peers/fbank.py --record), and data folders: lists, units, segments, bad
   utterances, the file of features. */
#define _GNU_SOURCE
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "shoal_speech.h"
#include "support.h"

static shoal_context *context;
static const char *folder, *cache;

/* ---- Filter banks ------------------------------------------------------------------ */

/* A tone in noise. */
static void fill_tone(float *samples, int64_t count) {
    uint64_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = (state * 1103515245 + 12345) % (UINT64_C(1) << 31);
        samples[i] = (float)(0.3 * sin(0.05 * (double)i) +
                             0.2 * ((double)(state >> 16) / 32768 - 0.5));
    }
}

/* A pure tone: the other bands are rounding errors of the transform. */
static void fill_alone(float *samples, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        samples[i] = (float)(0.9 * sin(2.5 * (double)i + 1));
}

static const struct {
    shoal_fbank_options options;
    bool alone;
    int64_t frames;
    float first[8], last[8]; /* of the frames, every (bands / 8)th band */
} recorded[] = {
    {{.size = sizeof(shoal_fbank_options), .bands = 40, .centred = 0, .rate = 0},
     false,
     4,
     {20.06968f, 15.62828f, 18.01092f, 20.38466f, 20.45133f, 21.56773f, 22.87395f,
      23.21797f},
     {20.02436f, 16.80790f, 19.44717f, 19.72525f, 19.75290f, 22.02406f, 23.21847f,
      23.57246f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 0, .centred = 1, .rate = 0},
     false,
     6,
     {20.46360f, 18.37969f, 18.86781f, 20.14133f, 20.04485f, 21.21319f, 23.47750f,
      23.72075f},
     {20.52235f, 16.90339f, 19.08848f, 20.33652f, 20.72612f, 22.13399f, 23.57478f,
      23.67190f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 80, .centred = 0, .rate = 0},
     false,
     4,
     {15.08151f, 13.84119f, 17.52075f, 18.80154f, 19.01577f, 19.72650f, 21.77628f,
      21.94712f},
     {15.39043f, 16.00689f, 19.09653f, 19.22593f, 18.21380f, 20.76184f, 22.18326f,
      23.09144f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 80, .centred = 1, .rate = 0},
     false,
     6,
     {18.09401f, 17.93925f, 17.72707f, 18.84668f, 18.81377f, 19.44115f, 21.71009f,
      22.82920f},
     {18.25027f, 15.59426f, 18.07057f, 19.84681f, 20.11349f, 21.32588f, 22.33582f,
      22.81010f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 40, .centred = 0, .rate = 8000},
     false,
     11,
     {20.52027f, 16.60458f, 17.51538f, 19.52800f, 20.29601f, 21.03037f, 20.11847f,
      22.24739f},
     {20.49945f, 18.22260f, 16.09804f, 18.44084f, 19.74359f, 20.86265f, 20.93279f,
      22.51814f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 80, .centred = 1, .rate = 8000},
     false,
     13,
     {19.13167f, 16.94944f, 17.76457f, 17.83620f, 18.75601f, 19.02934f, 21.08851f,
      21.11568f},
     {19.31041f, 17.56555f, 13.90448f, 19.69786f, 19.45608f, 18.99565f, 19.02303f,
      19.84605f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 40, .centred = 0, .rate = 0},
     true,
     4,
     {5.82791f, 2.40169f, 2.33792f, 3.28922f, 4.20820f, 5.72141f, 8.31394f, 16.96292f},
     {4.95817f, 2.52188f, 2.43162f, 3.35586f, 4.24460f, 5.73475f, 8.31679f, 16.96293f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 80, .centred = 1, .rate = 0},
     true,
     6,
     {12.56919f, 15.68404f, 17.47170f, 18.97625f, 20.30231f, 21.55640f, 23.04498f,
      25.85675f},
     {11.31333f, 13.64087f, 15.33427f, 16.82235f, 18.14166f, 19.39464f, 20.88211f,
      23.69454f}},
    {{.size = sizeof(shoal_fbank_options), .bands = 80, .centred = 0, .rate = 8000},
     true,
     11,
     {10.98285f, 0.65542f, 4.28990f, 3.81933f, 6.43036f, 6.79977f, 10.81167f, 21.84386f},
     {8.90066f, 0.52880f, 3.76225f, 3.33120f, 6.09809f, 6.74507f, 10.75863f, 21.84373f}},
};

static void banks_are_kaldis(void **state) {
    float samples[1000], features[13 * 80];
    for (int64_t i = 0; i < COUNT_OF(recorded); i++) {
        const shoal_fbank_options *options = &recorded[i].options;
        const int bands = options->bands ? options->bands : 40;
        (recorded[i].alone ? fill_alone : fill_tone)(samples, 1000);
        assert_int_equal(shoal_fbank_frames(options, 1000), recorded[i].frames);
        assert_int_equal(shoal_fbank(context, options, samples, 1000, features),
                         SHOAL_OK);
        for (int k = 0; k < 8; k++) {
            const float *last = features + (recorded[i].frames - 1) * bands;
            assert_true(fabsf(features[k * bands / 8] - recorded[i].first[k]) < 1e-3f);
            assert_true(fabsf(last[k * bands / 8] - recorded[i].last[k]) < 1e-3f);
        }
    }
}

static void banks_have_corners(void **state) {
    const shoal_fbank_options centred = {.size = sizeof(shoal_fbank_options),
                                         .centred = 1};
    float samples[400] = {0}, features[3 * 40];
    assert_int_equal(shoal_fbank_frames(NULL, 0), 0);
    assert_int_equal(shoal_fbank_frames(NULL, 399), 0);
    assert_int_equal(shoal_fbank_frames(NULL, 400), 1);
    assert_int_equal(shoal_fbank_frames(NULL, 559), 1);
    assert_int_equal(shoal_fbank_frames(NULL, 560), 2);
    assert_int_equal(shoal_fbank_frames(&centred, 79), 0);
    assert_int_equal(shoal_fbank_frames(&centred, 80), 1);
    assert_int_equal(shoal_fbank(context, NULL, samples, 400, features), SHOAL_OK);
    assert_true(fabsf(features[0] - logf(1.1920929e-7f)) < 1e-4f); /* silence */
    assert_int_equal(shoal_fbank(context, &centred, samples, 80, features), SHOAL_OK);
    assert_int_equal(shoal_fbank(context,
                                 &(shoal_fbank_options){.size =
                                                            sizeof(shoal_fbank_options),
                                                        .bands = 201},
                                 samples, 400, features),
                     SHOAL_INVALID);
    assert_int_equal(shoal_fbank(context,
                                 &(shoal_fbank_options){.size =
                                                            sizeof(shoal_fbank_options),
                                                        .rate = 11025},
                                 samples, 400, features),
                     SHOAL_INVALID);
    assert_int_equal(shoal_fbank(context, NULL, NULL, 400, features), SHOAL_INVALID);
    assert_int_equal(shoal_fbank(NULL, NULL, samples, 400, features), SHOAL_INVALID);
}

/* ---- A folder ---------------------------------------------------------------------- */

static const char *inside(const char *name) {
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_text(const char *name, const char *text) {
    write_bytes_to(inside(name), text, strlen(text));
}

static void write_sound(const char *name, int rate, int64_t count) {
    SF_INFO information = {.samplerate = rate,
                           .channels = 1,
                           .format = SF_FORMAT_WAV | SF_FORMAT_PCM_16};
    SNDFILE *file = sf_open(inside(name), SFM_WRITE, &information);
    float *samples = test_memory(count, sizeof *samples);
    fill_tone(samples, count);
    assert_non_null(file);
    assert_int_equal(sf_writef_float(file, samples, count), count);
    sf_close(file);
    free(samples);
}

/* Three recordings of two speakers. */
static void write_lists(void) {
    write_text("wav.scp", "a a.wav\nb b.wav\n\nc  c.wav \n");
    write_text("text", "a ONE TWO\nb TWO\nc THREE ONE ONE");
    write_text("utt2spk", "a x\nb y\nc x\n");
}

static int make_data(void **state) {
    context = test_context(NULL, 2);
    folder = make_folder();
    cache = make_folder();
    write_sound("a.wav", 16000, 16000);
    write_sound("b.wav", 48000, 24000);
    write_sound("c.wav", 16000, 8000);
    write_lists();
    return 0;
}

static int remove_data(void **state) {
    remove_folder(folder);
    remove_folder(cache);
    shoal_context_destroy(context);
    return 0;
}

static char refused[2000];

static void note_bad(void *user, const char *id, const char *reason) {
    char *text = user;
    const size_t used = strlen(text);
    snprintf(text + used, sizeof refused - used, "%s: %s\n", id, reason);
}

static shoal_corpus_options options_of(void) {
    refused[0] = 0;
    return (shoal_corpus_options){.size = sizeof(shoal_corpus_options),
                                  .cache = cache,
                                  .bad = note_bad,
                                  .user = refused};
}

static shoal_corpus *open_good(const shoal_corpus_options *options) {
    shoal_corpus *corpus;
    if (shoal_corpus_open(context, folder, options, &corpus) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return corpus;
}

static void open_bad(const shoal_corpus_options *options, const char *message) {
    shoal_corpus *corpus;
    assert_int_not_equal(shoal_corpus_open(context, folder, options, &corpus), SHOAL_OK);
    assert_null(corpus);
    if (!strstr(shoal_context_message(context), message))
        fail_msg("\"%s\" has no \"%s\"", shoal_context_message(context), message);
}

static void a_folder_is_read(void **state) {
    const shoal_corpus_options options = options_of();
    for (int pass = 0; pass < 2; pass++) {
        shoal_corpus *corpus = open_good(&options);
        const shoal_corpus_info info = *shoal_corpus_describe(corpus);
        shoal_utterance a, b, c;
        assert_int_equal(info.cached, pass);
        assert_true(info.utterances == 3 && info.speakers == 2 && info.bad == 0 &&
                    info.labels == 6 && info.units == 3 && info.bands == 40 &&
                    info.rate == 16000 && info.longest == 98 && info.most_labels == 3);
        assert_true(shoal_corpus_utterance(corpus, 0, &a) == 1 &&
                    shoal_corpus_utterance(corpus, 1, &b) == 1 &&
                    shoal_corpus_utterance(corpus, 2, &c) == 1 &&
                    shoal_corpus_utterance(corpus, 3, &c) == 0);
        assert_string_equal(a.id, "a");
        assert_string_equal(b.speaker, "y");
        assert_true(a.frames == 98 && b.frames == 48 && c.frames == 48);
        assert_memory_equal(c.labels, ((int32_t[]){2, 1, 1}), sizeof(int32_t) * 3);
        assert_string_equal(shoal_corpus_unit(corpus, 2), "THREE");
        assert_null(shoal_corpus_unit(corpus, 0));
        assert_null(shoal_corpus_unit(corpus, 4));
        /* c is the beginning of a, up to the 16 bits of the file */
        for (int i = 0; i < 48 * 40; i++)
            assert_true(fabsf(a.features[i] - c.features[i]) < 1e-6f);
        assert_ptr_equal(a.mean, c.mean);
        assert_true(a.mean != b.mean);
        shoal_corpus_destroy(corpus);
    }
}

/* Normalised features of a speaker have mean 0 and variance 1. */
static void speakers_are_normalised(void **state) {
    const shoal_corpus_options options = options_of();
    shoal_corpus *corpus = open_good(&options);
    shoal_utterance one;
    double sum = 0, squares = 0, count = 0;
    for (int64_t i = 0; i < 3; i += 2) {
        shoal_corpus_utterance(corpus, i, &one);
        for (int64_t t = 0; t < one.frames; t++) {
            const double value =
                (double)((one.features[t * 40 + 7] - one.mean[7]) * one.scale[7]);
            sum += value;
            squares += value * value;
            count++;
        }
    }
    assert_true(fabs(sum / count) < 1e-4 && fabs(squares / count - 1) < 1e-3);
    shoal_corpus_destroy(corpus);
}

static uint64_t print_with(const char *speakers) {
    const shoal_corpus_options options = options_of();
    if (speakers)
        write_text("utt2spk", speakers);
    else
        unlink(inside("utt2spk"));
    shoal_corpus *corpus = open_good(&options);
    const uint64_t print = shoal_corpus_describe(corpus)->fingerprint;
    shoal_corpus_destroy(corpus);
    return print;
}

/* Normalisation and joining depend on the speakers: other speakers are other data. */
static void fingerprints_have_the_speakers(void **state) {
    write_text("wav.scp", "x-a a.wav\nx-b b.wav\ny-c c.wav\n");
    write_text("text", "x-a ONE TWO\nx-b TWO\ny-c THREE ONE ONE");
    const uint64_t prints[] = {print_with("x-a x\nx-b x\ny-c y\n"),
                               print_with("x-a x\nx-b y\ny-c y\n"),
                               print_with("x-a y\nx-b y\ny-c x\n"),
                               print_with("x-a z\nx-b z\ny-c z\n"), print_with(NULL)};
    for (int64_t i = 0; i < COUNT_OF(prints); i++)
        for (int64_t k = 0; k < i; k++)
            assert_true(prints[i] != prints[k]);
    assert_true(print_with("x-a x\nx-b x\ny-c y\n") == prints[0]);
    /* the value from before speakers were included, if ids begin with the speaker */
    assert_true(prints[0] == UINT64_C(0xbd5b77926154e208));
    write_lists();
}

static void segments_are_cut(void **state) {
    shoal_corpus_options options = options_of();
    write_text("segments", "s1 a 0 0.5\ns2 a 0.5 1.0\ns3 c 0.1 0.4\n");
    write_text("labels", "s1 A B\ns2 B\ns3 C\n");
    write_text("utt2spk", "s1 x\ns2 x\ns3 y\n");
    options.labels = "labels";
    shoal_corpus *corpus = open_good(&options);
    shoal_utterance one;
    shoal_corpus_utterance(corpus, 1, &one);
    assert_string_equal(one.id, "s2");
    assert_int_equal(one.frames, 48);
    shoal_corpus_destroy(corpus);
    write_text("segments", "s1 a 0 0.5\ns2 nobody 0.5 1.0\ns3 c 0.1 4\n");
    open_bad(&options, "2 of 3 utterances cannot be used, the first s2");
    assert_non_null(strstr(refused, "s3: ends at 4.00 s, but its recording has 0.50 s"));
    write_text("segments", "s1 a 0 0.5\ns2 a 1 0.5\n");
    open_bad(&options, "segments: line 2");
    write_text("segments", "s1 a 0 0.5\ns2 a 0.2 -1\ns3 c 0.6 -1\n");
    refused[0] = 0;
    open_bad(&options, "1 of 3 utterances cannot be used");
    assert_non_null(
        strstr(refused, "s3: begins at 0.60 s, but its recording has 0.50 s"));
    options.skip_bad = 1;
    corpus = open_good(&options); /* -1: to the end */
    shoal_corpus_utterance(corpus, 1, &one);
    assert_string_equal(one.id, "s2");
    assert_int_equal(one.frames, 78);
    shoal_corpus_destroy(corpus);
    unlink(inside("segments"));
    write_text("utt2spk", "a x\nb y\nc x\n");
}

static void characters_are_units(void **state) {
    shoal_corpus_options options = options_of();
    write_text("letters", "a AB A\nb \xc3\xa4\nc B");
    options.labels = "letters";
    options.unit_type = SHOAL_UNITS_CHARACTERS;
    shoal_corpus *corpus = open_good(&options);
    shoal_utterance one;
    assert_int_equal(shoal_corpus_describe(corpus)->units, 4);
    assert_string_equal(shoal_corpus_unit(corpus, 3), "_");
    assert_string_equal(shoal_corpus_unit(corpus, 4), "\xc3\xa4");
    shoal_corpus_utterance(corpus, 0, &one);
    assert_memory_equal(one.labels, ((int32_t[]){1, 2, 3, 1}), sizeof(int32_t) * 4);
    shoal_corpus_destroy(corpus);
}

/* Transcripts whose units no model could store or distinguish. */
static void transcripts_are_text(void **state) {
    shoal_corpus_options options = options_of();
    write_text("letters", "a ONE\nb caf\xe9\nc \xc2\x92x ONE");
    options.labels = "letters";
    open_bad(&options, "2 of 3 utterances cannot be used, the first b: ");
    assert_non_null(strstr(refused, "b: its transcript is not UTF-8"));
    assert_non_null(strstr(refused, "c: its transcript has control characters"));
    write_text("letters", "a ONE\nb B\x7f\nc A\vB");
    refused[0] = 0;
    open_bad(&options, "2 of 3 utterances cannot be used, the first b: ");
    assert_non_null(strstr(refused, "b: its transcript has control characters"));
    assert_non_null(strstr(refused, "c: its transcript has control characters"));
    options.skip_bad = 1;
    shoal_corpus *corpus = open_good(&options); /* none of their units remains */
    assert_int_equal(shoal_corpus_describe(corpus)->units, 1);
    assert_string_equal(shoal_corpus_unit(corpus, 1), "ONE");
    shoal_corpus_destroy(corpus);
    write_text("letters", "a ONE\tTWO \r\nb A_B\nc \xc3\xa4");
    shoal_corpus_destroy(open_good(&options));
    options.skip_bad = 0;
    shoal_corpus_destroy(open_good(&options));
    options.unit_type = SHOAL_UNITS_CHARACTERS;
    open_bad(&options, "1 of 3 utterances cannot be used, the first b: ");
    assert_non_null(strstr(refused, "b: its transcript has \"_\""));
}

static void long_units_are_no_units(void **state) {
    shoal_corpus_options options = options_of();
    char text[200];
    snprintf(text, sizeof text, "a ONE\nb %063d\nc TWO %064d", 0, 1);
    write_text("letters", text);
    options.labels = "letters";
    open_bad(&options, "1 of 3 utterances cannot be used, the first c: a unit is longer");
    options.skip_bad = 1;
    shoal_corpus *corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->units, 2);
    shoal_corpus_destroy(corpus);
}

/* Some editors begin a UTF-8 file with a byte order mark, which is not part of the
   first id. */
static void marks_are_passed_over(void **state) {
    const shoal_corpus_options options = options_of();
    write_text("wav.scp", "\xef\xbb\xbf"
                          "a a.wav\nb b.wav\nc c.wav\n");
    write_text("text", "\xef\xbb\xbf"
                       "a ONE\nb TWO\nc ONE\n");
    write_text("utt2spk", "\xef\xbb\xbf"
                          "a x\nb y\nc x\n");
    shoal_corpus *corpus = open_good(&options);
    shoal_utterance one;
    shoal_corpus_utterance(corpus, 0, &one);
    assert_string_equal(one.id, "a");
    shoal_corpus_destroy(corpus);
    write_text("utt2spk", "\xef\xbb\xbf");
    shoal_corpus_destroy(open_good(&options));
    write_lists();
}

static void units_of_a_model_are_kept(void **state) {
    const char *const units[] = {"FOUR", "ONE", "THREE", "TWO"};
    shoal_corpus_options options = options_of();
    options.units = units;
    options.unit_count = 4;
    shoal_corpus *corpus = open_good(&options);
    shoal_utterance one;
    shoal_corpus_utterance(corpus, 1, &one);
    assert_int_equal(one.labels[0], 4);
    shoal_corpus_destroy(corpus);
    options.unit_count = 3;
    open_bad(&options, "the first a: TWO is not a unit of the model");
}

/* ---- Bad utterances --------------------------------------------------------------- */

static void bad_ones_are_named_and_skipped(void **state) {
    shoal_corpus_options options = options_of();
    write_text("wav.scp", "a a.wav\nb missing.wav\nc c.wav\nd low.wav\ne noise.wav\n"
                          "f c.wav\ng c.wav\n");
    write_text("text", "a ONE TWO\nb TWO\nc THREE\nd ONE\ne ONE\nf\n");
    write_text("utt2spk", "a x\nb y\nc x\nd x\ne x\nf x\ng x\n");
    write_sound("low.wav", 8000, 8000);
    write_text("noise.wav", "this is no sound");
    for (int pass = 0; pass < 2; pass++) {
        refused[0] = 0;
        open_bad(&options, "5 of 7 utterances cannot be used");
        assert_non_null(strstr(refused, "b: "));
        assert_non_null(strstr(refused, "missing.wav"));
        assert_non_null(strstr(refused, "has 8000 samples per second"));
        assert_non_null(strstr(refused, "e: "));
        assert_non_null(strstr(refused, "f: its transcript is empty"));
        assert_non_null(strstr(refused, "g: has no transcript"));
    }
    options.skip_bad = 1;
    shoal_corpus *corpus = open_good(&options);
    assert_true(shoal_corpus_describe(corpus)->utterances == 2 &&
                shoal_corpus_describe(corpus)->bad == 5);
    shoal_corpus_destroy(corpus);
    write_text("wav.scp", "a a.wav\nb sox b.wav -t wav - |\n");
    open_bad(&options, "line 2: b has a command");
    write_text("wav.scp", "a a.wav\na b.wav\n");
    open_bad(&options, "line 2: duplicate id a");
    char *line = test_memory(1, (1 << 20) + 32);
    memset(line, 'a', 1 << 20);
    memcpy(line, "a a.wav\nb ", 10);
    write_text("wav.scp", line);
    shoal_corpus_destroy(open_good(&options)); /* one byte below the limit */
    memset(line + (1 << 20), 'a', 10);
    write_text("wav.scp", line);
    open_bad(&options, "line 2 is longer than 1048576 bytes");
    free(line);
    write_text("wav.scp", "");
    open_bad(&options, "has no utterances");
    options.labels = "nothing";
    open_bad(&options, "nothing");
    write_lists();
}

/* Errors in the middle of a long list; "" is a good recording without a transcript. */
static const char *const bad_files[] = {"missing.wav", "empty.wav", "noise.wav",
                                        "low.wav",     "cut.wav",   ""};
enum { MANY = 1000, EVERY = 150 };

static void write_many(void) {
    char *scp = test_memory(MANY, 32), *labels = test_memory(MANY, 32);
    char *scp_end = scp, *labels_end = labels;
    for (int i = 0; i < MANY; i++) {
        const int bad = i % EVERY == EVERY - 1 ? i / EVERY : -1;
        const char *file = bad >= 0 && *bad_files[bad] ? bad_files[bad] : "short.wav";
        scp_end += sprintf(scp_end, "u%d %s\n", i, file);
        labels_end +=
            sprintf(labels_end, "u%d%s\n", i, bad >= 0 && !*bad_files[bad] ? "" : " A B");
    }
    write_text("wav.scp", scp);
    write_text("text", labels);
    free(scp);
    free(labels);
}

/* All are found, named and counted, and the others can be used. */
static void bad_ones_among_many(void **state) {
    shoal_corpus_options options = options_of();
    unlink(inside("utt2spk"));
    write_sound("short.wav", 16000, 800);
    write_sound("low.wav", 8000, 800);
    write_sound("cut.wav", 16000, 4000);
    assert_int_equal(truncate(inside("cut.wav"), 1000), 0);
    write_text("empty.wav", "");
    write_text("noise.wav", "this is no sound");
    write_many();
    open_bad(&options, "6 of 1000 utterances cannot be used, the first u149: ");
    for (int i = 0; i < COUNT_OF(bad_files); i++) {
        char id[32];
        snprintf(id, sizeof id, "u%d: ", i * EVERY + EVERY - 1);
        assert_non_null(strstr(refused, id));
        assert_non_null(strstr(refused, bad_files[i]));
    }
    options.skip_bad = 1;
    shoal_corpus *corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->utterances, MANY - 6);
    assert_int_equal(shoal_corpus_describe(corpus)->bad, 6);
    shoal_corpus_destroy(corpus);
    write_lists();
}

static void write_rates(int first, int second, int third) {
    write_sound("first.wav", first, first / 2);
    write_sound("second.wav", second, second / 2);
    write_sound("third.wav", third, third / 2);
}

/* A failed allocation does not mark a recording as bad. */
static void every_allocation_fails_in_turn(void **state) {
    shoal_corpus_options options = options_of();
    int64_t failures = 0;
    write_text("wav.scp", "a first.wav\nb second.wav\nc third.wav\n");
    write_text("text", "a ONE\nb TWO\nc ONE\n");
    unlink(inside("utt2spk"));
    write_rates(8000, 8000, 8000);
    for (int64_t at = 1;; at++) {
        counting_allocator memory = {0};
        const shoal_options counted = counting_options(&memory);
        shoal_context *poor;
        shoal_corpus *corpus;
        assert_int_equal(shoal_context_create(&counted, &poor), SHOAL_OK);
        memory.fail_at = memory.calls + at; /* the context has allocated before */
        const shoal_status status = shoal_corpus_open(poor, folder, &options, &corpus);
        if (status != SHOAL_OK) {
            assert_int_equal(status, SHOAL_NO_MEMORY);
            assert_non_null(strstr(shoal_context_message(poor), "memory"));
            failures++;
        } else {
            assert_int_equal(shoal_corpus_describe(corpus)->rate, 8000);
        }
        shoal_corpus_destroy(corpus);
        shoal_context_destroy(poor);
        assert_int_equal(memory.live, 0);
        if (status == SHOAL_OK)
            break;
    }
    assert_true(failures >= 3);
    assert_string_equal(refused, "");
    write_lists();
}

/* The folder's rate is that of most recordings; others are bad. */
static void low_rates_are_taken(void **state) {
    shoal_corpus_options options = options_of();
    shoal_utterance one;
    write_text("wav.scp", "a first.wav\nb second.wav\nc third.wav\n");
    write_text("text", "a ONE\nb TWO\nc ONE\n");
    unlink(inside("utt2spk"));
    write_rates(8000, 8000, 8000);
    shoal_corpus *corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->rate, 8000);
    shoal_corpus_utterance(corpus, 1, &one);
    assert_int_equal(one.frames, 48);
    shoal_corpus_destroy(corpus);
    options.fbank.rate = 16000;
    open_bad(&options, "8000 samples per second; at least 16000 are needed");
    options.fbank.rate = 0;
    write_rates(44100, 8000, 8000);
    open_bad(&options, "1 of 3 utterances cannot be used, the first a");
    assert_non_null(strstr(refused, "has 44100 samples per second, but most recordings"));
    options.fbank.rate = 8000;
    corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->rate, 8000);
    shoal_corpus_utterance(corpus, 1, &one);
    assert_int_equal(one.frames, 48);
    shoal_corpus_destroy(corpus);
    write_lists();
}

static void one_low_recording_decides_nothing(void **state) {
    static const int low[] = {8000, 11025, 6000};
    shoal_corpus_options options = options_of();
    write_text("wav.scp", "a first.wav\nb second.wav\nc third.wav\n");
    for (int64_t i = 0; i < COUNT_OF(low); i++) {
        write_rates(low[i], 16000, 48000);
        refused[0] = 0;
        options.skip_bad = 0;
        open_bad(&options, "1 of 3 utterances cannot be used, the first a");
        assert_non_null(strstr(refused, low[i] < 8000 ? "at least 8000 are needed"
                                                      : "rate=8000 accepts both"));
        options.skip_bad = 1;
        shoal_corpus *corpus = open_good(&options);
        assert_int_equal(shoal_corpus_describe(corpus)->rate, 16000);
        assert_int_equal(shoal_corpus_describe(corpus)->utterances, 2);
        shoal_corpus_destroy(corpus);
    }
    /* recordings without utterances do not count */
    write_rates(8000, 8000, 48000);
    write_text("wav.scp", "x first.wav\ny first.wav\nz first.wav\nthird.wav third.wav\n");
    write_text("segments", "a third.wav 0 0.3\nb third.wav 0.1 0.4\n");
    options.skip_bad = 0;
    shoal_corpus *corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->rate, 16000);
    shoal_corpus_destroy(corpus);
    unlink(inside("segments"));
    write_lists();
}

/* ---- The file ---------------------------------------------------------------------- */

static void speed_changes_the_length(void **state) {
    shoal_corpus_options options = options_of();
    shoal_utterance one;
    options.speed = 1.25;
    shoal_corpus *corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->cached, 0);
    shoal_corpus_utterance(corpus, 0, &one);
    assert_int_equal(one.frames, 78); /* 12,800 samples */
    shoal_corpus_destroy(corpus);
    options.speed = 3;
    open_bad(&options, "speed");
}

/* An utterance that is too short at one speed is removed at the other too. */
static void speeds_have_the_same_utterances(void **state) {
    shoal_corpus_options options = options_of();
    write_sound("c.wav", 16000, 420);
    options.skip_bad = 1;
    options.bad = NULL;
    options.speed = 1.1;
    shoal_corpus *fast = open_good(&options);
    assert_int_equal(shoal_corpus_describe(fast)->utterances, 2);
    options = options_of();
    shoal_corpus *plain = open_good(&options);
    assert_int_equal(shoal_corpus_keep_common(fast, plain), SHOAL_OK);
    assert_int_equal(shoal_corpus_describe(fast)->bad, 1);
    assert_string_equal(refused, "");
    assert_int_equal(shoal_corpus_keep_common(plain, fast), SHOAL_OK);
    assert_string_equal(refused, "c: cannot be used at speed 1.1\n");
    const shoal_corpus_info info = *shoal_corpus_describe(plain);
    assert_true(info.utterances == 2 && info.bad == 1 && info.speakers == 2 &&
                info.frames == 146 && info.labels == 3 && info.most_labels == 2);
    shoal_corpus_destroy(plain);
    write_text("text", "a ONE TWO\nb TWO\nc"); /* the same as if it had been bad before */
    options.skip_bad = 1;
    const char *const units[] = {"ONE", "THREE", "TWO"};
    options.units = units;
    options.unit_count = 3;
    plain = open_good(&options);
    assert_true(shoal_corpus_describe(plain)->fingerprint == info.fingerprint);
    assert_int_equal(shoal_corpus_keep_common(plain, NULL), SHOAL_INVALID);
    shoal_corpus_destroy(plain);
    shoal_corpus_destroy(fast);
    write_sound("c.wav", 16000, 8000);
    write_lists();
}

static int flip_a_byte(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, at, SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 1, file);
    return fclose(file);
}

/* Stale and damaged files are replaced. */
static void damage_is_mended(void **state) {
    const char *fresh = make_folder();
    shoal_corpus_options options = options_of();
    char command[600], path[512] = "";
    options.cache = fresh;
    shoal_corpus_destroy(open_good(&options));
    snprintf(command, sizeof command, "ls %s/*.features", fresh);
    FILE *list = popen(command, "r");
    assert_non_null(fgets(path, sizeof path, list));
    pclose(list);
    path[strcspn(path, "\n")] = 0;
    struct stat whole;
    assert_int_equal(stat(path, &whole), 0);
    const long places[] = {0, 9, 20, 47, 50, 100, (long)whole.st_size - 1};
    for (int64_t i = 0; i < COUNT_OF(places); i++) {
        flip_a_byte(path, places[i]);
        shoal_corpus *corpus = open_good(&options);
        assert_int_equal(shoal_corpus_describe(corpus)->cached, 0);
        shoal_corpus_destroy(corpus);
    }
    assert_int_equal(truncate(path, whole.st_size / 2), 0);
    shoal_corpus *corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->cached, 0);
    shoal_corpus_destroy(corpus);
    corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->cached, 1);
    shoal_corpus_destroy(corpus);
    write_sound("c.wav", 16000, 8001); /* another recording with the same name */
    corpus = open_good(&options);
    assert_int_equal(shoal_corpus_describe(corpus)->cached, 0);
    shoal_corpus_destroy(corpus);
    remove_folder(fresh);
}

static int stop_at_once(void *user, int64_t done, int64_t all) {
    return done > 0 && all == 3;
}

static void work_can_be_stopped(void **state) {
    shoal_corpus_options options = options_of();
    options.speed = 0.9;
    options.progress = stop_at_once;
    open_bad(&options, "cancelled");
    options.progress = NULL;
    options.cache = "/nonexistent";
    open_bad(&options, "/nonexistent/fbank");
    open_bad(&options, "cannot create a temporary file beside it");
    options.cache = NULL;
    open_bad(&options, "cache");
}

/* Stops when half of the recordings are read, and notes where reading began. */
typedef struct {
    int64_t first, calls;
    bool goes_on;
} stop_half_way;

static int stop_at_half(void *user, int64_t done, int64_t all) {
    stop_half_way *at = user;
    if (at->calls++ == 0)
        at->first = done;
    return !at->goes_on && 2 * done >= all;
}

/* The only file of a folder, whose name must end so. */
static char *only_file(const char *in, const char *ending, char path[512]) {
    char command[600], more[512];
    snprintf(command, sizeof command, "ls -A %s", in);
    FILE *list = popen(command, "r");
    assert_non_null(fgets(more, sizeof more, list));
    more[strcspn(more, "\n")] = 0;
    snprintf(path, 512, "%.200s/%.300s", in, more);
    assert_null(fgets(more, sizeof more, list));
    pclose(list);
    assert_string_equal(path + strlen(path) - strlen(ending), ending);
    return path;
}

static void assert_same_files(const char *a, const char *b) {
    char command[1100];
    snprintf(command, sizeof command, "cmp %s %s", a, b);
    assert_int_equal(system(command), 0);
}

/* What was extracted before a stop is kept: the next call goes on behind it, and the file
   has the bytes of one that was made at once. A damaged part is made anew. */
static void stopped_work_goes_on(void **state) {
    enum { LISTED = 40 };
    char scp[20 * LISTED] = "", text[20 * LISTED] = "", path[512], whole[512];
    for (int i = 0; i < LISTED; i++) { /* one is bad, early: its reason is found again */
        sprintf(scp + strlen(scp), "u%02d %s\n", i,
                i == 3  ? "none.wav"
                : i % 2 ? "a.wav"
                        : "c.wav");
        sprintf(text + strlen(text), "u%02d ONE\n", i);
    }
    write_text("wav.scp", scp);
    write_text("text", text);
    unlink(inside("utt2spk"));
    const char *at_once = make_folder(), *in_parts = make_folder();
    stop_half_way stop = {.goes_on = true};
    shoal_corpus_options options = options_of();
    options.bad = NULL;
    options.skip_bad = 1;
    options.progress = stop_at_half;
    options.user = &stop;
    options.cache = at_once;
    shoal_corpus_destroy(open_good(&options));
    only_file(at_once, ".features", whole);
    const int64_t chunk = stop.first;
    assert_true(chunk < LISTED / 2); /* or nothing is tested */
    options.cache = in_parts;
    for (int damaged = 0; damaged < 2; damaged++) {
        stop = (stop_half_way){0};
        open_bad(&options, "cancelled");
        only_file(in_parts, ".features.part", path);
        if (damaged)
            flip_a_byte(path, 5000);
        stop = (stop_half_way){.goes_on = true};
        shoal_corpus *corpus = open_good(&options);
        assert_int_equal(shoal_corpus_describe(corpus)->bad, 1);
        shoal_corpus_destroy(corpus);
        assert_int_equal(stop.first > chunk, !damaged);
        assert_same_files(only_file(in_parts, ".features", path), whole);
        unlink(path);
    }
    remove_folder(at_once);
    remove_folder(in_parts);
    write_lists();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(banks_are_kaldis),
        cmocka_unit_test(banks_have_corners),
        cmocka_unit_test(a_folder_is_read),
        cmocka_unit_test(speakers_are_normalised),
        cmocka_unit_test(fingerprints_have_the_speakers),
        cmocka_unit_test(segments_are_cut),
        cmocka_unit_test(characters_are_units),
        cmocka_unit_test(transcripts_are_text),
        cmocka_unit_test(long_units_are_no_units),
        cmocka_unit_test(marks_are_passed_over),
        cmocka_unit_test(units_of_a_model_are_kept),
        cmocka_unit_test(bad_ones_are_named_and_skipped),
        cmocka_unit_test(bad_ones_among_many),
        cmocka_unit_test(every_allocation_fails_in_turn),
        cmocka_unit_test(low_rates_are_taken),
        cmocka_unit_test(one_low_recording_decides_nothing),
        cmocka_unit_test(speed_changes_the_length),
        cmocka_unit_test(speeds_have_the_same_utterances),
        cmocka_unit_test(damage_is_mended),
        cmocka_unit_test(work_can_be_stopped),
        cmocka_unit_test(stopped_work_goes_on),
    };
    return cmocka_run_group_tests_name("corpus", tests, make_data, remove_data);
}
