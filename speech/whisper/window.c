#include "speech/whisper/window.h"

#include <math.h>
#include <string.h>
#include <zlib.h>

/* ---- Silence -------------------------------------------------------------------- */

/* Root mean square. */
static double loudness(const float *samples, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)samples[i] * (double)samples[i];
    return sqrt(sum / (double)count);
}

sound_level sh_sound_level(const float *samples, int64_t count) {
    enum { STRETCH = AUDIO_RATE / 10 };
    sound_level level = {0};
    if (count > 0 && count < STRETCH)
        level.loudest = level.quietest = loudness(samples, count);
    for (int64_t at = 0; at + STRETCH <= count; at += STRETCH) {
        const double one = loudness(samples + at, STRETCH);
        level.loudest = fmax(level.loudest, one);
        level.quietest = at == 0 ? one : fmin(level.quietest, one);
    }
    return level;
}

/* Of full scale. Speech at a hundredth of its usual size has stretches above QUIET, and
   is believed to be speech even below it; what is below NOTHING is not even noise of the
   last bit of 16. */
#define NOTHING_BELOW 1e-5
#define QUIET_BELOW 1e-3
#define STEADY_BELOW 3.0 /* the loudest stretch over the quietest: hum, hiss, an engine */

bool sh_is_flat(sound_level level) {
    return level.loudest < QUIET_BELOW || level.loudest < STEADY_BELOW * level.quietest;
}

bool sh_is_nothing(sound_level level) {
    return level.loudest < NOTHING_BELOW;
}

/* ---- What the decoder is told --------------------------------------------------- */

static const float temperatures[] = {0, 0.2f, 0.4f, 0.6f, 0.8f, 1};
enum { TEMPERATURES = sizeof temperatures / sizeof *temperatures };

void sh_window_search(shoal_speech *speech, const window_rules *rules,
                      speech_window *window) {
    const tokens *t = &speech->model->file->tokens;
    const int attempt = window->attempt;
    search_task task = {.window = window->slot,
                        .no_speech = t->no_speech,
                        .rules = {.vocabulary = t->count,
                                  .end = t->end_of_text,
                                  .no_timestamps = t->no_timestamps,
                                  .first_timestamp = t->first_timestamp,
                                  .latest_beginning = t->first_timestamp +
                                                      TIME_STEPS_PER_SECOND,
                                  .timestamps = rules->timestamps,
                                  .published = rules->published,
                                  .never = t->suppress,
                                  .not_first = t->suppress_first,
                                  .never_count = t->suppress_count,
                                  .not_first_count = t->suppress_first_count},
                        .longest = speech->model->file->sizes.text_positions / 2,
                        .beams = attempt == 0 ? rules->beams
                                              : (int)min(SPEECH_SAMPLES, speech->beams),
                        .temperature = temperatures[attempt],
                        .seed = rules->seed + (uint64_t)attempt};
    /* The prompt: <previous> and what was said before, <start>, language and task, <no
       timestamps>; all but <start> only where they apply. */
    int32_t *prompt = speech->prompt;
    const int past = (int)min(window->past_count, task.longest - 1);
    int count = 0;
    if (past > 0) {
        prompt[count++] = t->previous;
        memcpy(prompt + count, window->past + window->past_count - past,
               (size_t)past * sizeof *prompt);
        count += past;
    }
    task.start = count;
    prompt[count++] = t->start;
    if (rules->language >= 0) {
        prompt[count++] = rules->language;
        prompt[count++] = rules->translate ? t->translate : t->transcribe;
    }
    if (!rules->timestamps)
        prompt[count++] = t->no_timestamps;
    task.prompt = prompt;
    task.prompt_count = count;
    window->search = sh_search_begin(speech->search, &task);
}

/* ---- Segments of a window ------------------------------------------------------- */

#define TOKEN_LASTS 1.0 /* seconds at most; slow readers have 2 a second */

typedef struct {
    const int32_t *sampled;
    int count;
    int32_t first_timestamp;
} window_tokens;

static bool is_time(const window_tokens *w, int at) {
    return at >= 0 && at < w->count && w->sampled[at] >= w->first_timestamp;
}

static double seconds_at(const window_tokens *w, int at) {
    return (double)(w->sampled[at] - w->first_timestamp) / TIME_STEPS_PER_SECOND;
}

static segment_cut cut_between(const window_tokens *w, int first, int end) {
    return (segment_cut){first, end, seconds_at(w, first), seconds_at(w, end - 1)};
}

int sh_segments_cut(const int32_t *sampled, int count, int32_t first_timestamp,
                    int64_t frames, segment_cut *cuts, int64_t *advance) {
    const window_tokens w = {sampled, count, first_timestamp};
    int made = 0, last = 0;
    /* A cut lies between the time that ends a segment and the one that begins the
       next. */
    for (int at = 1; at < count; at++)
        if (is_time(&w, at - 1) && is_time(&w, at)) {
            cuts[made++] = cut_between(&w, last, at);
            last = at;
        }
    *advance = frames;
    if (made == 0) {
        /* One segment from the window's beginning to its last time, or to its end. */
        segment_cut cut = {.end = count, .ends = (double)frames / FRAMES_PER_SECOND};
        while (last < count && !is_time(&w, count - 1 - last))
            last++;
        if (last < count && seconds_at(&w, count - 1 - last) > 0)
            cut.ends = seconds_at(&w, count - 1 - last);
        if (count > 0)
            cuts[made++] = cut;
    } else if (is_time(&w, count - 1) && !is_time(&w, count - 2)) {
        /* it ends in a single time: nothing was said after it */
        cuts[made++] = cut_between(&w, last, count);
    } else { /* what follows the last pair belongs to the next window */
        *advance = (int64_t)(sampled[last - 1] - first_timestamp) * FRAMES_PER_STEP;
    }
    if (*advance < 1 || *advance > frames)
        *advance = frames < 1 ? 1 : frames;
    return made;
}

double sh_seconds_passed_over(const int32_t *sampled, int count, int32_t first_timestamp,
                              int64_t frames, segment_cut *cuts) {
    const window_tokens w = {sampled, count, first_timestamp};
    int64_t advance;
    const int made =
        sh_segments_cut(sampled, count, first_timestamp, frames, cuts, &advance);
    const bool lone = made > 0 && is_time(&w, count - 1) && seconds_at(&w, count - 1) > 1;
    double end = (double)advance / FRAMES_PER_SECOND, covered = 0;
    if (advance == frames && lone)
        end = fmin(end, seconds_at(&w, count - 1));
    for (int i = 0; i < made; i++) {
        int words = 0;
        for (int at = cuts[i].first; at < cuts[i].end; at++)
            words += !is_time(&w, at);
        covered += fmin(cuts[i].ends - cuts[i].begins, words * TOKEN_LASTS);
    }
    return fmax(end - covered, 0);
}

/* ---- Judgement ------------------------------------------------------------------ */

size_t sh_window_text(shoal_speech *speech, const int32_t *sampled, int count) {
    const size_t length = sh_tokens_decode(&speech->model->file->tokens, sampled, count,
                                           speech->text, SPEECH_TEXT);
    return length < SPEECH_TEXT ? length : SPEECH_TEXT - 1;
}

unsigned long sh_compression_room(unsigned long size) {
    return compressBound(size);
}

double sh_compression_ratio(const char *text, unsigned long size, unsigned char *room) {
    unsigned long packed = compressBound(size);
    if (size == 0 || compress(room, &packed, (const unsigned char *)text, size) != Z_OK)
        return 0;
    return (double)size / (double)packed;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Of the text without the spaces around it. */
static double compression_of(shoal_speech *speech, const int32_t *sampled, int count) {
    size_t length = sh_window_text(speech, sampled, count);
    const char *text = speech->text;
    for (; length > 0 && is_space(text[length - 1]); length--)
        continue;
    for (; length > 0 && is_space(*text); length--)
        text++;
    return sh_compression_ratio(text, (unsigned long)length, speech->packed);
}

/* The published limits. */
#define REPEATS_ABOVE 2.4   /* compression ratio */
#define UNLIKELY_BELOW -1.0 /* mean log-probability */
#define SILENT_ABOVE 0.6    /* probability of no speech */
/* Ours: tokens per second of sound in which speech was found. Slow readers have 2. */
#define TOO_FEW_BELOW 0.5

/* Ours: seconds of speech, and share of a window's, that a text may pass over. */
#define PASSED_OVER_MOST 4.0
#define PASSED_OVER_SHARE 0.25
/* A text that passes over speech is tried again so often; then it is taken: something
   may sound like speech and be none. */
enum { PASSED_OVER_ATTEMPTS = 2 };

/* A window that holds no speech. The published rule asks for an unlikely text, and so
   writes "you" under silence, which the model has heard often; where the sound itself is
   flat, the text need not be unlikely. */
static bool is_silent(const speech_window *window) {
    return window->no_speech > SILENT_ABOVE &&
           (window->flat || window->mean_logprob <= UNLIKELY_BELOW);
}

static bool repeats(const speech_window *window) {
    return window->compression > REPEATS_ABOVE;
}

static bool is_unlikely(const speech_window *window) {
    return window->mean_logprob < UNLIKELY_BELOW;
}

/* Speech was found in all of the sound, but hardly a word of it is there. */
static bool says_too_little(const window_rules *rules, const speech_window *window) {
    return !rules->published && window->sound.count > 0 &&
           window->no_speech < SILENT_ABOVE &&
           window->count < TOO_FEW_BELOW * (double)window->frames / FRAMES_PER_SECOND;
}

/* There are words, but not for all of the speech that was found. */
static bool passes_over_speech(shoal_speech *speech, const window_rules *rules,
                               const speech_window *window) {
    const double all = (double)window->frames / FRAMES_PER_SECOND;
    return rules->speech_found && rules->timestamps &&
           window->attempt < PASSED_OVER_ATTEMPTS && window->no_speech < SILENT_ABOVE &&
           sh_seconds_passed_over(window->sampled, window->count,
                                  speech->model->file->tokens.first_timestamp,
                                  window->frames, speech->cuts) >
               fmax(PASSED_OVER_MOST, PASSED_OVER_SHARE * all);
}

static void judge(shoal_speech *speech, const window_rules *rules,
                  speech_window *window) {
    const bool last = !rules->fallback || window->attempt == TEMPERATURES - 1;
    window->silent = rules->fallback && is_silent(window);
    window->ready = last || window->silent ||
                    !(repeats(window) || is_unlikely(window) ||
                      says_too_little(rules, window) ||
                      passes_over_speech(speech, rules, window));
    window->failed = !rules->published && rules->fallback && last && repeats(window) &&
                     is_unlikely(window);
    if (!window->ready)
        window->attempt++;
}

void sh_window_collect(shoal_speech *speech, const window_rules *rules,
                       speech_window *window) {
    search_result found;
    if (window->search < 0 || !sh_search_ended(speech->search, window->search, &found))
        return;
    memcpy(window->sampled, found.tokens, (size_t)found.count * sizeof *found.tokens);
    memcpy(window->logprobs, found.logprobs,
           (size_t)found.count * sizeof *found.logprobs);
    window->count = found.count;
    window->temperature = (double)temperatures[window->attempt];
    window->mean_logprob = found.mean_logprob;
    window->no_speech = found.no_speech;
    window->compression = compression_of(speech, found.tokens, found.count);
    sh_search_drop(speech->search, window->search);
    window->search = -1;
    judge(speech, rules, window);
}
