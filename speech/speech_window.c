/* One window: prompt, search, and other temperatures where the text cannot be right. */
#include <string.h>

#include "shoal_speech.h"
#include "speech/speech.h"

/* The published limits. */
#define REPEATS_ABOVE 2.4   /* compression ratio */
#define UNLIKELY_BELOW -1.0 /* mean log-probability */
#define SILENT_ABOVE 0.6    /* probability of no speech */

static const float temperatures[] = {0, 0.2f, 0.4f, 0.6f, 0.8f, 1};
enum { TEMPERATURES = sizeof temperatures / sizeof *temperatures };

/* previous, its text, start, language, task, no timestamps: all but start as needed. */
static void write_prompt(const shoal_speech *speech, const window_task *task,
                         search_task *search_for) {
    const tokens *t = &speech->model->file->tokens;
    int32_t *prompt = speech->prompt;
    const int most = whisper_sizes(speech->model)->text_positions / 2 - 1;
    const int past = task->past_count < most ? task->past_count : most;
    int count = 0;
    if (past > 0) {
        prompt[count++] = t->previous;
        memcpy(prompt + count, task->past + task->past_count - past,
               (size_t)past * sizeof *prompt);
        count += past;
    }
    search_for->start = count;
    prompt[count++] = t->start;
    if (task->language >= 0) {
        prompt[count++] = task->language;
        prompt[count++] = task->translate ? t->translate : t->transcribe;
    }
    if (!task->timestamps)
        prompt[count++] = t->no_timestamps;
    search_for->prompt = prompt;
    search_for->prompt_count = count;
}

static decode_rules rules_of(const tokens *t, bool timestamps) {
    return (decode_rules){.vocabulary = t->count,
                          .end = t->end_of_text,
                          .no_timestamps = t->no_timestamps,
                          .first_timestamp = t->first_timestamp,
                          .latest_beginning = t->first_timestamp + TIME_STEPS_PER_SECOND,
                          .timestamps = timestamps,
                          .never = t->suppress,
                          .not_first = t->suppress_first,
                          .never_count = t->suppress_count,
                          .not_first_count = t->suppress_first_count};
}

size_t sh_speech_write_text(shoal_speech *speech, const int32_t *sampled, int count) {
    const size_t length = sh_tokens_decode_utf8(&speech->model->file->tokens, sampled,
                                                count, speech->text, SPEECH_TEXT);
    return length < SPEECH_TEXT ? length : SPEECH_TEXT - 1;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Of the text without the spaces around it. */
static double compression_of(shoal_speech *speech, const int32_t *sampled, int count) {
    size_t length = sh_speech_write_text(speech, sampled, count);
    const char *text = speech->text;
    for (; length > 0 && is_space(text[length - 1]); length--)
        continue;
    for (; length > 0 && is_space(*text); length--)
        text++;
    return sh_compression_ratio(text, (unsigned long)length, speech->packed);
}

bool sh_speech_is_silent(const window_text *result) {
    return result->no_speech > SILENT_ABOVE && result->mean_logprob <= UNLIKELY_BELOW;
}

static bool is_believable(const window_text *result) {
    if (result->no_speech > SILENT_ABOVE && result->mean_logprob < UNLIKELY_BELOW)
        return true; /* unlikely words where nothing is said: nothing better to be had */
    return result->compression <= REPEATS_ABOVE && result->mean_logprob >= UNLIKELY_BELOW;
}

int sh_speech_decode_window(shoal_speech *speech, const window_task *task,
                            window_text *result) {
    const tokens *t = &speech->model->file->tokens;
    const int tries = task->fallback ? TEMPERATURES : 1;
    search_task wanted = {.no_speech = t->no_speech,
                          .rules = rules_of(t, task->timestamps),
                          .longest = whisper_sizes(speech->model)->text_positions / 2};
    write_prompt(speech, task, &wanted);
    for (int attempt = 0; attempt < tries; attempt++) {
        search_result found;
        wanted.temperature = temperatures[attempt];
        wanted.beams = attempt == 0 ? task->beams : SPEECH_SAMPLES;
        wanted.seed = task->seed + (uint64_t)attempt;
        sh_search_run(speech->search, &wanted, &found);
        *result = (window_text){.sampled = found.tokens,
                                .count = found.count,
                                .temperature = (double)temperatures[attempt],
                                .mean_logprob = found.mean_logprob,
                                .no_speech = found.no_speech,
                                .compression =
                                    compression_of(speech, found.tokens, found.count)};
        if (is_believable(result))
            return attempt + 1;
    }
    return tries;
}
