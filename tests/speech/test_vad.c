/* Where speech is detected, and where it is cut. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "speech/audio/vad.h"
#include "support.h"

enum { SECOND = AUDIO_RATE, MOST_PIECES = 200 };

typedef struct {
    float *samples;
    int64_t count;
} sound;

static sound silence(double seconds) {
    sound s = {.count = (int64_t)(seconds * SECOND)};
    s.samples = calloc((size_t)s.count + 1, sizeof *s.samples);
    assert_non_null(s.samples);
    return s;
}

static void add_noise(sound s, double size) {
    uint64_t draw = 88172645463325252u;
    for (int64_t i = 0; i < s.count; i++) {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        s.samples[i] += (float)(size * 3.4641 * ((double)(draw >> 11) * 0x1p-53 - 0.5));
    }
}

static void add_tone(sound s, double begin, double end, double hertz, double size) {
    const double turn = 6.283185307179586;
    const int64_t first = (int64_t)(begin * SECOND), last = (int64_t)(end * SECOND);
    for (int64_t i = first; i < last && i < s.count; i++) {
        const double edge =
            fmin(1, 200.0 * fmin((double)(i - first), (double)(last - i)) / SECOND);
        s.samples[i] += (float)(edge * size * sin(turn * hertz * (double)i / SECOND));
    }
}

/* Syllables of 0.2 s, four per second: a voice with gliding pitch and formants. */
static void add_voice(sound s, double begin, double end) {
    const double turn = 6.283185307179586;
    double phase = 0;
    for (int64_t i = (int64_t)(begin * SECOND); i < (int64_t)(end * SECOND); i++) {
        const double t = (double)i / SECOND, in = fmod(t - begin, 0.25);
        const double pitch = 110 + 30 * sin(turn * 0.7 * t) + 60 * in;
        const double formant = 600 + 2400 * in + 250 * sin(turn * 1.3 * t);
        const double loud = in < 0.2 ? sin(turn * in / 0.4) : 0;
        phase += pitch / SECOND;
        for (int h = 1; h <= 25; h++) {
            const double off = (h * pitch - formant) / 300;
            s.samples[i] +=
                (float)(0.1 * loud * exp(-off * off / 2) * sin(turn * h * phase));
        }
    }
}

typedef struct {
    sound_piece pieces[MOST_PIECES];
    int count;
} found;

static found find(sound s) {
    shoal_context *context = test_context(NULL, 2);
    speech_detector *d;
    found f = {.count = 0};
    assert_int_equal(sh_detector_create(context, &d), SHOAL_OK);
    for (int64_t at = 0, next; at < s.count; at = next) {
        const int64_t left = s.count - at;
        sound_piece piece;
        const piece_found kind =
            sh_detector_within(d, at, s.samples + at,
                               left < AUDIO_WINDOW ? left : AUDIO_WINDOW, PIECE_MOST,
                               &piece);
        next = piece.end;
        if (kind == PIECE_FOUND) {
            assert_true(piece.begin >= at && piece.begin < piece.end);
            assert_true(piece.end <= s.count);
            assert_true(piece.end - piece.begin <= AUDIO_WINDOW);
            assert_true(f.count < MOST_PIECES);
            f.pieces[f.count++] = piece;
        }
        assert_true(next > at && next <= s.count);
    }
    sh_detector_destroy(d);
    shoal_context_destroy(context);
    return f;
}

static void expect_nothing(const char *what, sound s) {
    const found f = find(s);
    if (f.count > 0)
        print_message("%s: a piece from %.2f to %.2f s\n", what,
                      (double)f.pieces[0].begin / SECOND,
                      (double)f.pieces[0].end / SECOND);
    assert_int_equal(f.count, 0);
    free(s.samples);
}

static void silence_is_no_speech(void **state) {
    const double lengths[] = {0, 0.0001, 0.01, 0.5, 29.9999, 30, 30.001, 70};
    for (int i = 0; i < 8; i++)
        expect_nothing("silence", silence(lengths[i]));
}

static void noise_is_no_speech(void **state) {
    const double sizes[] = {1e-5, 1e-3, 0.03, 0.3};
    for (int i = 0; i < 4; i++) {
        sound s = silence(45);
        add_noise(s, sizes[i]);
        expect_nothing("noise", s);
    }
    sound s = silence(45); /* switched on */
    add_noise((sound){s.samples + 20 * SECOND, 25 * SECOND}, 0.1);
    expect_nothing("noise that begins", s);
}

/* Low notes beat against each other, so that the spectrum is not stationary. */
static void low_chords_are_no_speech(void **state) {
    static const double roots[] = {82.4, 110, 98, 87.3, 130.8};
    static const double intervals[] = {1, 1.1892, 1.2599};
    for (int fading = 0; fading < 3; fading++) {
        sound s = silence(40);
        for (int i = 0; i < 20; i++)
            for (int k = 0; k < 3; k++)
                for (int h = 1; h < 6; h++)
                    add_tone(s, 2 * i, 2 * i + 2, h * roots[i % 5] * intervals[k],
                             0.1 / h);
        for (int64_t i = 0; i < s.count; i++)
            s.samples[i] *= (float)exp(-4 * fading * (double)(i % (2 * SECOND)) / SECOND);
        expect_nothing("low chords", s);
    }
}

static void tones_are_no_speech(void **state) {
    const double chord[] = {220, 277.2, 329.6, 440, 554.4};
    sound hum = silence(40), tone = silence(40), beeps = silence(40),
          chords = silence(40), clicks = silence(40);
    for (int h = 1; h < 8; h++)
        add_tone(hum, 10, 40, 50 * h, 0.1 / h);
    add_tone(tone, 5, 35, 1000, 0.2);
    for (int i = 0; i < 60; i++)
        add_tone(beeps, 0.6 * i, 0.6 * i + 0.3, 440, 0.2);
    for (int i = 0; i < 80; i++)
        for (int k = 0; k < 3; k++)
            for (int h = 1; h < 5; h++)
                add_tone(chords, 0.5 * i, 0.5 * i + 0.5, h * chord[(i + 2 * k) % 5],
                         0.08 / h);
    for (int i = 0; i < 40; i++)
        clicks.samples[i * SECOND + 77] = 0.7f;
    expect_nothing("hum", hum);
    expect_nothing("a tone", tone);
    expect_nothing("beeps", beeps);
    expect_nothing("chords", chords);
    expect_nothing("clicks", clicks);
}

/* Intervals of the voice, with pauses between them. */
static const double heard[][2] = {{2, 9}, {9.4, 24}, {24.3, 33}, {33.5, 48}, {70, 71.5}};
enum { HEARD = sizeof heard / sizeof *heard };

static sound make_talk(double noise) {
    sound s = silence(75.3);
    for (int i = 0; i < HEARD; i++)
        add_voice(s, heard[i][0], heard[i][1]);
    add_noise(s, noise);
    return s;
}

static bool is_in_a_pause(int64_t sample) {
    for (int i = 0; i < HEARD; i++)
        if ((double)sample > heard[i][0] * SECOND &&
            (double)sample < heard[i][1] * SECOND)
            return false;
    return true;
}

static void voices_are_cut_in_their_pauses(void **state) {
    const double noises[] = {0, 1e-4, 1e-3, 1e-2};
    for (int i = 0; i < 4; i++) {
        const sound s = make_talk(noises[i]);
        const found f = find(s);
        int64_t kept = 0;
        for (int k = 0; k < f.count; k++) {
            assert_true(is_in_a_pause(f.pieces[k].begin));
            assert_true(is_in_a_pause(f.pieces[k].end));
            kept += f.pieces[k].end - f.pieces[k].begin;
        }
        assert_true(f.count >= 3 && f.count <= 5);
        assert_true((double)f.pieces[0].begin > 1.2 * SECOND);
        assert_true((double)f.pieces[f.count - 1].begin > 69 * SECOND);
        assert_true((double)kept > 46.7 * SECOND && (double)kept < 51 * SECOND);
        free(s.samples);
    }
}

/* Speech without a pause is cut at a quiet place, between two syllables. */
static void pieces_are_never_too_long(void **state) {
    const sound s = silence(100);
    add_voice(s, 0, 100);
    add_noise(s, 1e-3);
    const found f = find(s);
    int64_t at = 0;
    for (int i = 0; i < f.count; i++) {
        const double inside = fmod((double)f.pieces[i].end / SECOND, 0.25);
        assert_true(f.pieces[i].begin == at);
        at = f.pieces[i].end;
        assert_true(i == f.count - 1 || inside > 0.18 || inside < 0.02);
    }
    assert_true((double)at > 99.8 * SECOND && f.count >= 4 && f.count <= 6);
    free(s.samples);
}

/* ---- Windows --------------------------------------------------------------------- */

static void windows_hold_the_pieces(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const sound s = make_talk(1e-3);
    const shoal_recording recording = {.size = sizeof(shoal_recording),
                                       .samples = s.samples,
                                       .sample_count = s.count};
    recording_stream *stream;
    window_packer *packer;
    packed_window window;
    const float *samples;
    int windows = 0;
    bool packed = false;
    double latest = 0;
    assert_int_equal(sh_recording_open(context, &recording, &stream), SHOAL_OK);
    assert_int_equal(sh_packer_create(context, stream, &packer), SHOAL_OK);
    for (;; windows++) {
        int64_t filled = 0;
        assert_int_equal(sh_packer_next(packer, &window, &samples), SHOAL_OK);
        if (window.count == 0)
            break;
        packed = window.count > 1;
        assert_true(window.samples <= AUDIO_WINDOW);
        for (int i = 0; i < window.count; i++) {
            const sound_piece *piece = &window.pieces[i];
            const int64_t length = piece->end - piece->begin;
            assert_memory_equal(samples + filled, s.samples + piece->begin,
                                (size_t)length * sizeof *samples);
            const double begins = (double)filled / SECOND;
            assert_true(fabs(sh_packed_begin(&window, begins) -
                             (double)piece->begin / SECOND) < 1e-9);
            filled += length;
            assert_true(fabs(sh_packed_end(&window, (double)filled / SECOND) -
                             (double)piece->end / SECOND) < 1e-9);
            assert_true((double)piece->begin / SECOND >= latest);
            latest = (double)piece->end / SECOND;
        }
        assert_true(filled == window.samples);
        assert_true(sh_packed_end(&window, 1000) == latest);
        assert_true(sh_packed_begin(&window, -1) ==
                    (double)window.pieces[0].begin / SECOND);
    }
    assert_true(windows == 2 || windows == 3);
    assert_true(packed); /* the last 1.5 s, after a long pause, with others */
    assert_true(sh_packer_passed(packer) == s.count);
    sh_packer_destroy(packer);
    sh_recording_close(stream);
    shoal_context_destroy(context);
    free(s.samples);
}

/* ---- Real voices ----------------------------------------------------------------- */

enum { UTTERANCES = 24 };

/* Reads utterances, with pauses of 0.2 to 0.9 s after each: ends [2 i] and [2 i + 1]
   are those of utterance i. */
static sound join_utterances(shoal_context *context, int64_t *ends) {
    sound s = silence(UTTERANCES * 31);
    char line[4096], path[4096];
    snprintf(path, sizeof path, "%s", test_data("librispeech/dev/wav.scp"));
    FILE *list = fopen(path, "r");
    assert_non_null(list);
    *strrchr(path, '/') = 0;
    s.count = 0;
    for (int i = 0; i < UTTERANCES && fgets(line, sizeof line, list); i++) {
        char full[8300];
        audio_file *file;
        const float *samples;
        int64_t got;
        line[strcspn(line, "\n")] = 0;
        snprintf(full, sizeof full, "%s/%s", path, strchr(line, ' ') + 1);
        assert_int_equal(sh_audio_open(context, full, false, &file), SHOAL_OK);
        assert_int_equal(sh_audio_window(context, file, 0, AUDIO_WINDOW, &samples, &got),
                         SHOAL_OK);
        ends[2 * i] = s.count;
        memcpy(s.samples + s.count, samples, (size_t)got * sizeof *samples);
        s.count += got;
        ends[2 * i + 1] = s.count;
        s.count += SECOND * (2 + i * 3 % 8) / 10;
        sh_audio_close(file);
    }
    fclose(list);
    return s;
}

static double level(sound s, int64_t at) {
    enum { AROUND = 320 }; /* 20 ms on either side */
    double sum = 1e-12;
    for (int64_t i = at - AROUND; i < at + AROUND; i++)
        sum += i >= 0 && i < s.count ? (double)s.samples[i] * (double)s.samples[i] : 0;
    return 10 * log10(sum / (2 * AROUND));
}

/* Cuts are between utterances, or in quiet places: 30 dB below the loudest second
   around. */
static void utterances_are_cut_in_their_pauses(void **state) {
    int64_t ends[2 * UTTERANCES];
    if (!test_data("librispeech/dev/wav.scp"))
        skip();
    shoal_context *context = test_context(NULL, 1);
    sound s = join_utterances(context, ends);
    const double noises[] = {0, 1e-3};
    for (int n = 0; n < 2; n++) {
        sound noisy = silence((double)s.count / SECOND);
        memcpy(noisy.samples, s.samples, (size_t)s.count * sizeof *s.samples);
        add_noise(noisy, noises[n]);
        const found f = find(noisy);
        int64_t kept = 0;
        for (int i = 0; i < 2 * f.count; i++) {
            const sound_piece *piece = &f.pieces[i / 2];
            const int64_t cut = i % 2 ? piece->end : piece->begin;
            double loudest = -200;
            for (int64_t at = cut - 2 * SECOND; at < cut + 2 * SECOND; at += 320)
                loudest = fmax(loudest, level(s, at));
            assert_true(level(s, cut) < loudest - 30);
            kept += i % 2 ? piece->end - piece->begin : 0;
        }
        assert_true((double)kept > 0.8 * (double)s.count);
        free(noisy.samples);
    }
    free(s.samples);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_is_no_speech),
        cmocka_unit_test(noise_is_no_speech),
        cmocka_unit_test(tones_are_no_speech),
        cmocka_unit_test(low_chords_are_no_speech),
        cmocka_unit_test(voices_are_cut_in_their_pauses),
        cmocka_unit_test(pieces_are_never_too_long),
        cmocka_unit_test(windows_hold_the_pieces),
        cmocka_unit_test(utterances_are_cut_in_their_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
