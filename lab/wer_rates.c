/* Word error rates and their confidence intervals. */
#include "wer.h"

#include "shoal_models.h"

shoal_word_errors wer_count(const wer_job *job, int kind, int arrangement) {
    shoal_word_errors sum = {0};
    for (int at = 0; at < job->done; at++) {
        const wer_window *window = &job->windows[at];
        if (arrangement < 0 || window->arrangement == arrangement)
            for (int i = 0; i < window->count; i++) {
                const shoal_word_errors *more = &window->errors[kind][i];
                sum.words += more->words;
                sum.substitutions += more->substitutions;
                sum.insertions += more->insertions;
                sum.deletions += more->deletions;
            }
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

wer_interval wer_intervals(const wer_job *job, int kind) {
    const shoal_word_errors errors = wer_count(job, kind, -1),
                            full = wer_count(job, job->reference, -1);
    shoal_sequence_errors *utterances =
        reserve_zeros((size_t)job->utterance_count + 1, sizeof *utterances);
    /* Each utterance in all windows that contain it. */
    for (int at = 0; at < job->done; at++) {
        const wer_window *window = &job->windows[at];
        for (int i = 0; i < window->count; i++) {
            shoal_sequence_errors *one = &utterances[window->members[i]];
            one->length += (double)window->errors[kind][i].words;
            one->wrong += (double)wrong_words(&window->errors[kind][i]);
            one->wrong_of_other +=
                (double)wrong_words(&window->errors[job->reference][i]);
        }
    }
    const shoal_rate_interval drawn =
        shoal_bootstrap_rates(utterances, job->utterance_count, job->seed);
    free(utterances);
    return (wer_interval){.rate = wer_percent(&errors),
                          .rate_low = drawn.rate_low,
                          .rate_high = drawn.rate_high,
                          .difference = wer_percent(&errors) - wer_percent(&full),
                          .difference_low = drawn.difference_low,
                          .difference_high = drawn.difference_high};
}
