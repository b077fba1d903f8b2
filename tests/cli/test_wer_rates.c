/* Confidence intervals of word error rates, compared with known values. */
#include "lab/lab.h"
#include "lab/wer_rates.c"

#include <string.h>

#include "cases.h"

enum { UTTERANCES = 400 };

/* One utterance per window, repeated per arrangement: the second kind is full. */
static wer_job make_job(int arrangements) {
    wer_job job = {.utterance_count = UTTERANCES,
                   .kind_count = 2,
                   .reference = 1,
                   .seed = 7,
                   .done = UTTERANCES * arrangements};
    job.windows = calloc((size_t)job.done, sizeof *job.windows);
    job.members = calloc((size_t)job.done, sizeof *job.members);
    job.errors = calloc((size_t)job.done * 2, sizeof *job.errors);
    for (int i = 0; i < job.done; i++) {
        job.windows[i].count = 1;
        job.windows[i].members = &job.members[i];
        job.windows[i].members[0] = i % UTTERANCES;
        job.windows[i].arrangement = i / UTTERANCES;
        for (int kind = 0; kind < 2; kind++) {
            job.windows[i].errors[kind] = &job.errors[2 * i + kind];
            job.windows[i].errors[kind][0].words = 10;
        }
    }
    return job;
}

static void drop_job(wer_job *job) {
    free(job->windows);
    free(job->members);
    free(job->errors);
}

static void rates_are_of_all_words(void **state) {
    wer_job job = make_job(2);
    job.windows[0].errors[0][0] = (shoal_word_errors){10, 1, 2, 3};
    job.windows[UTTERANCES].errors[0][0] = (shoal_word_errors){30, 4, 0, 0};
    const shoal_word_errors first = wer_count(&job, 0, 0), all = wer_count(&job, 0, -1);
    assert_int_equal(first.words, 10 * UTTERANCES);
    assert_int_equal(all.words, 20 * UTTERANCES + 20);
    assert_int_equal(all.substitutions, 5);
    assert_int_equal(all.insertions, 2);
    assert_int_equal(all.deletions, 3);
    assert_true(fabs(wer_percent(&first) - 100.0 * 6 / 4000) < 1e-12);
    assert_true(isnan(wer_percent(&(shoal_word_errors){0})));
    drop_job(&job);
}

/* Errors with probability p in each of n utterances of 10 words: the rate's standard
   deviation is 10 sqrt(p (1 - p) / n) percent, and the interval is 1.96 of it on each
   side. */
static void intervals_have_their_size(void **state) {
    wer_job job = make_job(1);
    int wrong = 0;
    for (int i = 0; i < UTTERANCES; i++) {
        const bool one = mix_bits((uint64_t)i) % 4 == 0;
        job.windows[i].errors[0][0].substitutions = one;
        wrong += one;
    }
    const double p = (double)wrong / UTTERANCES;
    const double side = 1.96 * 10 * sqrt(p * (1 - p) / UTTERANCES);
    const wer_interval found = wer_intervals(&job, 0);
    assert_true(fabs(found.rate - 10 * p) < 1e-9);
    assert_true(fabs(found.rate_low - (found.rate - side)) < 0.1 * side);
    assert_true(fabs(found.rate_high - (found.rate + side)) < 0.1 * side);
    assert_true(found.difference == found.rate); /* full makes none */
    assert_true(found.difference_low == found.rate_low);
    drop_job(&job);
}

static void intervals_are_the_seeds(void **state) {
    wer_job job = make_job(1);
    for (int i = 0; i < UTTERANCES; i++)
        job.windows[i].errors[0][0] = (shoal_word_errors){10 + i % 7, i % 5, 0, 0};
    const wer_interval found = wer_intervals(&job, 0), again = wer_intervals(&job, 0);
    assert_memory_equal(&again, &found, sizeof found);
    job.seed = 8;
    const wer_interval other = wer_intervals(&job, 0);
    assert_true(other.rate == found.rate && other.rate_low != found.rate_low);
    drop_job(&job);
}

/* Both kinds have errors in the same utterances, one of them one more error in each:
   the rates are uncertain, their difference is not. */
static void differences_are_paired(void **state) {
    wer_job job = make_job(1);
    for (int i = 0; i < UTTERANCES; i++) {
        job.windows[i].errors[1][0].deletions = (int64_t)(mix_bits((uint64_t)i) % 9);
        job.windows[i].errors[0][0].deletions = job.windows[i].errors[1][0].deletions + 1;
    }
    const wer_interval found = wer_intervals(&job, 0), full = wer_intervals(&job, 1);
    assert_true(found.rate_high - found.rate_low > 2);
    assert_true(fabs(found.difference - 10) < 1e-9 &&
                fabs(found.difference_low - 10) < 1e-9 &&
                fabs(found.difference_high - 10) < 1e-9);
    assert_true(full.difference == 0 && full.difference_low == 0 &&
                full.difference_high == 0);
    drop_job(&job);
}

/* Repeating every utterance in another window adds no information: the interval is over
   utterances. */
static void arrangements_are_no_more_utterances(void **state) {
    wer_job once = make_job(1), often = make_job(5);
    for (int i = 0; i < often.done; i++) {
        const int64_t wrong = (int64_t)(mix_bits((uint64_t)(i % UTTERANCES)) % 4);
        often.windows[i].errors[0][0].substitutions = wrong;
        if (i < once.done)
            once.windows[i].errors[0][0].substitutions = wrong;
    }
    const wer_interval a = wer_intervals(&once, 0), b = wer_intervals(&often, 0);
    assert_true(fabs(a.rate_low - b.rate_low) < 1e-9 &&
                fabs(a.rate_high - b.rate_high) < 1e-9);
    drop_job(&once);
    drop_job(&often);
}

static void no_words_have_no_rate(void **state) {
    wer_job job = make_job(1);
    job.done = 0;
    const wer_interval found = wer_intervals(&job, 0);
    assert_true(isnan(found.rate) && isnan(found.rate_low) &&
                isnan(found.difference_high));
    drop_job(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_of_all_words),
        cmocka_unit_test(intervals_have_their_size),
        cmocka_unit_test(intervals_are_the_seeds),
        cmocka_unit_test(differences_are_paired),
        cmocka_unit_test(arrangements_are_no_more_utterances),
        cmocka_unit_test(no_words_have_no_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
