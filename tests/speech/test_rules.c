/* Decoding without a network: which tokens may follow, where windows are cut, and
   compression of texts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "speech/whisper/search.h"
#include "speech/whisper/speech.h"

/* A vocabulary of 10 words, the end, two specials and 8 times. */
enum { END = 10, NO_TIMES = 12, TIME = 13, ALL = 21, SYMBOL = 3, BLANK = 4 };

static const int32_t never[] = {SYMBOL, 11, 99}, not_first[] = {BLANK, END};

static decode_rules rules_with(bool timestamps) {
    return (decode_rules){.vocabulary = ALL,
                          .end = END,
                          .no_timestamps = NO_TIMES,
                          .first_timestamp = TIME,
                          .latest_beginning = TIME + 2,
                          .timestamps = timestamps,
                          .never = never,
                          .not_first = not_first,
                          .never_count = 3,
                          .not_first_count = 2};
}

/* One letter per token: '.' if allowed, 'x' if not. */
static void check_allowed(bool timestamps, const int32_t *sampled, int count,
                          const float *logits, const char *expected) {
    const decode_rules rules = rules_with(timestamps);
    float row[ALL];
    char found[ALL + 1] = {0};
    memcpy(row, logits, sizeof row);
    sh_rules_apply(&rules, sampled, count, row);
    for (int i = 0; i < ALL; i++)
        found[i] = row[i] == -INFINITY ? 'x' : '.';
    assert_string_equal(found, expected);
    for (int i = 0; i < ALL; i++)
        if (row[i] != -INFINITY)
            assert_true(row[i] == logits[i]);
}

/* Words far more probable than all times together. */
static void fill_wordy(float *logits) {
    for (int i = 0; i < ALL; i++)
        logits[i] = i < TIME ? 9 : 0;
}

static void test_symbols_are_left_out(void **state) {
    float logits[ALL];
    fill_wordy(logits);
    check_allowed(false, NULL, 0, logits, "...xx.....xx.........");
    check_allowed(false, (int32_t[]){5}, 1, logits, "...x.......x.........");
}

static void test_times_come_in_pairs(void **state) {
    float logits[ALL];
    fill_wordy(logits);
    /* The first token is a time, and an early one. */
    check_allowed(true, NULL, 0, logits, "xxxxxxxxxxxxx...xxxxx");
    /* After a start time words follow. */
    check_allowed(true, (int32_t[]){TIME}, 1, logits, "...x.......xxxxxxxxxx");
    /* After words anything later is allowed, but not the start time. */
    check_allowed(true, (int32_t[]){TIME + 1, 5}, 2, logits, "...x.......xxxx......");
    /* After an end time its partner, which may be the same time, or the end of the
       text. */
    check_allowed(true, (int32_t[]){TIME, 5, TIME + 3}, 3, logits,
                  "xxxxxxxxxx.xxxxx.....");
    /* After a pair words follow. */
    check_allowed(true, (int32_t[]){TIME, 5, TIME + 3, TIME + 4}, 4, logits,
                  "...x.......xxxxxxxxxx");
    check_allowed(true, (int32_t[]){TIME, 5, TIME + 3, TIME + 4, 6}, 5, logits,
                  "...x.......xxxxxxx...");
}

static void test_likely_times_win(void **state) {
    float logits[ALL];
    for (int i = 0; i < ALL; i++)
        logits[i] = i < TIME ? 1 : 0;
    /* 7 times of e^0 and a word of e^1: the times together are more probable. */
    check_allowed(true, (int32_t[]){TIME, 5}, 2, logits, "xxxxxxxxxxxxxx.......");
    /* 2 times of e^0 are less. */
    check_allowed(true, (int32_t[]){TIME + 5, 5}, 2, logits, "...x.......xxxxxxxx..");
}

static void test_the_last_time(void **state) {
    float logits[ALL];
    fill_wordy(logits);
    check_allowed(true, (int32_t[]){ALL - 1, 5}, 2, logits, "...x.......xxxxxxxxxx");
    check_allowed(true, (int32_t[]){TIME, 5, ALL - 1}, 3, logits,
                  "xxxxxxxxxx.xxxxxxxxx.");
}

static void test_log_sum_exp(void **state) {
    static float logits[5000];
    double sum = 0;
    for (int i = 0; i < 5000; i++) {
        logits[i] = (float)(sin(i) * 20 + 600); /* exp would overflow */
        sum += exp((double)logits[i] - 620);
    }
    assert_true(fabs(sh_log_sum_exp(logits, 5000) - (log(sum) + 620)) < 1e-5);
    logits[0] = -INFINITY;
    assert_true(sh_log_sum_exp(logits, 1) == -INFINITY);
    logits[1] = 3;
    assert_true(fabs(sh_log_sum_exp(logits, 2) - 3) < 1e-6);
}

/* ---- Cutting windows ------------------------------------------------------------ */

enum { T0 = 100 }; /* first timestamp */

typedef struct {
    int32_t sampled[12];
    int count;
    int64_t frames, advance;
    int cuts;
    segment_cut expected[3];
} cut_case;

static const cut_case cut_cases[] = {
    /* Empty. */
    {{0}, 0, 3000, 3000, 0, {{0}}},
    /* Without times: one segment over the available part of the window. */
    {{1, 2, 3}, 3, 1500, 1500, 1, {{0, 3, 0, 15}}},
    /* A start and an end: nothing follows, so the next window is the next 30 s. */
    {{T0, 1, 2, T0 + 250}, 4, 3000, 3000, 1, {{0, 4, 0, 5}}},
    /* The end is missing: up to the end of the window. */
    {{T0, 1, 2}, 3, 3000, 3000, 1, {{0, 3, 0, 30}}},
    /* A pair, then an unfinished text: processed again from the pair on. */
    {{T0 + 10, 1, T0 + 100, T0 + 100, 2}, 5, 3000, 200, 1, {{0, 3, 0.2, 2}}},
    /* A pair, then a complete text. */
    {{T0, 1, T0 + 100, T0 + 150, 2, T0 + 200},
     6,
     3000,
     3000,
     2,
     {{0, 3, 0, 2}, {3, 6, 3, 4}}},
    /* Two pairs at the end. */
    {{T0, 1, T0 + 100, T0 + 150, 2, T0 + 200, T0 + 200},
     7,
     3000,
     400,
     2,
     {{0, 3, 0, 2}, {3, 6, 3, 4}}},
    /* A time beyond the recording's end is limited to it. */
    {{T0, 1, T0 + 100, T0 + 100, 2}, 5, 90, 90, 1, {{0, 3, 0, 2}}},
    /* A pair at 0 would never advance. */
    {{T0, T0, 1}, 3, 3000, 3000, 1, {{0, 1, 0, 0}}},
};

static void test_windows_are_cut(void **state) {
    for (size_t i = 0; i < sizeof cut_cases / sizeof *cut_cases; i++) {
        const cut_case *c = &cut_cases[i];
        segment_cut cuts[13];
        int64_t advance;
        assert_int_equal(sh_segments_cut(c->sampled, c->count, T0, c->frames, cuts,
                                         &advance),
                         c->cuts);
        assert_int_equal(advance, c->advance);
        for (int j = 0; j < c->cuts; j++) {
            assert_int_equal(cuts[j].first, c->expected[j].first);
            assert_int_equal(cuts[j].end, c->expected[j].end);
            assert_true(fabs(cuts[j].begins - c->expected[j].begins) < 1e-9);
            assert_true(fabs(cuts[j].ends - c->expected[j].ends) < 1e-9);
        }
    }
}

static void test_speech_without_words_is_seen(void **state) {
    static const struct {
        int32_t sampled[12];
        int count;
        double passed_over; /* of 30 s of speech */
    } cases[] = {
        /* A token lasts a second at most. */
        {{T0, 1, 2, 3, T0 + 150}, 5, 0},
        {{T0, 1, 2, T0 + 250}, 4, 3},
        /* Audio after 5 s is processed again, but not if the end is missing, */
        {{T0, 1, 2, 3, 4, 5, T0 + 250}, 7, 0},
        {{T0, 1, 2, 3, 4, 5}, 6, 25},
        /* or if a text ends at once. */
        {{T0, 1, T0 + 20}, 3, 29.6},
        /* A good segment does not excuse the next one. */
        {{T0, 1, 2, 3, T0 + 100, T0 + 100, 4, T0 + 1400}, 8, 25},
        /* Nor does it count for an unfinished text, which is processed again. */
        {{T0, 1, 2, T0 + 100, T0 + 100, 2}, 6, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        segment_cut cuts[13];
        const double found =
            sh_seconds_passed_over(cases[i].sampled, cases[i].count, T0, 3000, cuts);
        assert_true(fabs(found - cases[i].passed_over) < 1e-9);
    }
}

static void test_compression(void **state) {
    char text[2000];
    unsigned char *room = malloc(sh_compression_room(sizeof text));
    assert_true(sh_compression_ratio(text, 0, room) == 0);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = "no no no "[i % 9];
    assert_true(sh_compression_ratio(text, sizeof text, room) > 20);
    /* Python's zlib compresses these 44 bytes to 50. */
    const double ratio =
        sh_compression_ratio("the girl was sealing up some letters as he e", 44, room);
    assert_true(fabs(ratio - 44.0 / 50) < 0.03);
    free(room);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_symbols_are_left_out),
        cmocka_unit_test(test_times_come_in_pairs),
        cmocka_unit_test(test_likely_times_win),
        cmocka_unit_test(test_the_last_time),
        cmocka_unit_test(test_log_sum_exp),
        cmocka_unit_test(test_windows_are_cut),
        cmocka_unit_test(test_speech_without_words_is_seen),
        cmocka_unit_test(test_compression),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
