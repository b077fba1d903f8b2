/* Word error rates, and how far they can be trusted. */
#include <math.h>
#include <stdlib.h>

#include "lab.h"
#include "wer.h"

static void add_errors(shoal_word_errors *to, const shoal_word_errors *more) {
    to->words += more->words;
    to->substitutions += more->substitutions;
    to->insertions += more->insertions;
    to->deletions += more->deletions;
}

shoal_word_errors wer_count(const wer_job *job, int kind, int arrangement) {
    shoal_word_errors sum = {0};
    for (int at = 0; at < job->done; at++) {
        const wer_window *window = &job->windows[at];
        if (arrangement < 0 || window->arrangement == arrangement)
            for (int i = 0; i < window->count; i++)
                add_errors(&sum, &window->errors[kind][i]);
    }
    return sum;
}

static int64_t wrong_words(const shoal_word_errors *errors) {
    return errors->substitutions + errors->insertions + errors->deletions;
}

double wer_percent(const shoal_word_errors *errors) {
    return errors->words > 0 ? 100.0 * (double)wrong_words(errors) / (double)errors->words
                             : NAN;
}

/* ---- The bootstrap ----------------------------------------------------------------- */

/* One utterance in all windows where it was heard. */
typedef struct {
    double words, wrong, wrong_of_full;
} utterance_errors;

typedef struct {
    utterance_errors *utterances; /* [utterance_count] */
    double *rates, *differences;  /* [WER_DRAWS] */
} bootstrap;

static void collect(const wer_job *job, int kind, utterance_errors *utterances) {
    for (int at = 0; at < job->done; at++) {
        const wer_window *window = &job->windows[at];
        for (int i = 0; i < window->count; i++) {
            utterance_errors *one = &utterances[window->members[i]];
            one->words += (double)window->errors[kind][i].words;
            one->wrong += (double)wrong_words(&window->errors[kind][i]);
            one->wrong_of_full += (double)wrong_words(&window->errors[job->reference][i]);
        }
    }
}

/* Draw number `draw` is the same for every kind. */
static utterance_errors draw_utterances(const wer_job *job,
                                        const utterance_errors *utterances, int draw) {
    const uint64_t count = (uint64_t)job->utterance_count;
    const uint64_t start = mix_bits(job->seed + 0x9e3779b97f4a7c15u) +
                           (uint64_t)draw * count;
    utterance_errors sum = {0};
    for (uint64_t i = 0; i < count; i++) {
        const utterance_errors *one = &utterances[mix_bits(start + i) % count];
        sum.words += one->words;
        sum.wrong += one->wrong;
        sum.wrong_of_full += one->wrong_of_full;
    }
    return sum;
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The middle 95 % of what is sorted here; draws without words are left out before. */
static void middle(double *values, int count, double *low, double *high) {
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    *low = values[count / 40];
    *high = values[count - 1 - count / 40];
}

static wer_interval draw_intervals(const wer_job *job, bootstrap *b) {
    wer_interval found;
    int count = 0;
    for (int draw = 0; draw < WER_DRAWS; draw++) {
        const utterance_errors sum = draw_utterances(job, b->utterances, draw);
        if (sum.words <= 0)
            continue;
        b->rates[count] = 100 * sum.wrong / sum.words;
        b->differences[count++] = 100 * (sum.wrong - sum.wrong_of_full) / sum.words;
    }
    if (count == 0)
        return (wer_interval){NAN, NAN, NAN, NAN, NAN, NAN};
    middle(b->rates, count, &found.rate_low, &found.rate_high);
    middle(b->differences, count, &found.difference_low, &found.difference_high);
    return found;
}

wer_interval wer_intervals(const wer_job *job, int kind) {
    const shoal_word_errors errors = wer_count(job, kind, -1),
                            full = wer_count(job, job->reference, -1);
    bootstrap b = {calloc((size_t)job->utterance_count, sizeof *b.utterances),
                   calloc(WER_DRAWS, sizeof(double)), calloc(WER_DRAWS, sizeof(double))};
    wer_interval found = {NAN, NAN, NAN, NAN, NAN, NAN};
    if (b.utterances && b.rates && b.differences) {
        collect(job, kind, b.utterances);
        found = draw_intervals(job, &b);
    }
    found.rate = wer_percent(&errors);
    found.difference = found.rate - wer_percent(&full);
    free(b.utterances);
    free(b.rates);
    free(b.differences);
    return found;
}
