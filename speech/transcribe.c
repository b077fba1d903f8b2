/* A whole recording: window after window, each beginning where the last words of the one
   before ended, and each told what was said before it. */
#include <math.h>
#include <string.h>
#include <zlib.h>

#include "base/clock.h"
#include "shoal_speech.h"
#include "speech/speech.h"

/* ---- Segments of a window ------------------------------------------------------- */

typedef struct {
    const int32_t *sampled;
    int count;
    int32_t first_timestamp;
} window_tokens;

static bool is_time(const window_tokens *w, int at) {
    return at >= 0 && at < w->count && w->sampled[at] >= w->first_timestamp;
}

static int64_t steps_at(const window_tokens *w, int at) {
    return w->sampled[at] - w->first_timestamp;
}

static double seconds_at(const window_tokens *w, int at) {
    return (double)steps_at(w, at) / TIME_STEPS_PER_SECOND;
}

/* A text that ends in a single time: nothing was said after it. */
static bool ends_alone(const window_tokens *w) {
    return w->count >= 1 && is_time(w, w->count - 1) && !is_time(w, w->count - 2);
}

/* One segment from the window's beginning to its last time, or to its end. */
static segment_cut whole_window(const window_tokens *w, int64_t frames) {
    segment_cut cut = {.end = w->count, .ends = (double)frames / FRAMES_PER_SECOND};
    for (int at = w->count - 1; at >= 0; at--)
        if (is_time(w, at)) {
            if (steps_at(w, at) > 0)
                cut.ends = seconds_at(w, at);
            break;
        }
    return cut;
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
        if (count > 0)
            cuts[made++] = whole_window(&w, frames);
    } else if (ends_alone(&w)) {
        cuts[made++] = cut_between(&w, last, count);
    } else { /* what follows the last pair belongs to the next window */
        *advance = steps_at(&w, last - 1) * FRAMES_PER_STEP;
    }
    if (*advance < 1 || *advance > frames)
        *advance = frames < 1 ? 1 : frames;
    return made;
}

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

static bool is_quiet_or_steady(sound_level level) {
    return level.loudest < QUIET_BELOW || level.loudest < STEADY_BELOW * level.quietest;
}

/* ---- Text of a window ----------------------------------------------------------- */

/* One window's text, as the last search of it gave it. */
typedef struct {
    const int32_t *sampled; /* [count], valid until the next search */
    int count;
    double temperature, mean_logprob, no_speech, compression;
} window_text;

typedef struct {
    int32_t language; /* token, or -1 for models that know English only */
    bool translate, timestamps, fallback;
    bool flat; /* the window is quiet or steady, as is_quiet_or_steady has it */
    int beams;
    uint64_t seed;
    const int32_t *past; /* [past_count]: what was said before */
    int past_count;
} window_task;

unsigned long sh_compression_room(unsigned long size) {
    return compressBound(size);
}

double sh_compression_ratio(const char *text, unsigned long size, unsigned char *room) {
    unsigned long packed = compressBound(size);
    if (size == 0 || compress(room, &packed, (const unsigned char *)text, size) != Z_OK)
        return 0;
    return (double)size / (double)packed;
}

/* The published limits. */
#define REPEATS_ABOVE 2.4   /* compression ratio */
#define UNLIKELY_BELOW -1.0 /* mean log-probability */
#define SILENT_ABOVE 0.6    /* probability of no speech */

static const float temperatures[] = {0, 0.2f, 0.4f, 0.6f, 0.8f, 1};
enum { TEMPERATURES = sizeof temperatures / sizeof *temperatures };

/* The prompt: <previous> and what was said before, <start>, language and task, <no
   timestamps>; all but <start> only where they apply. */
static void write_prompt(const shoal_speech *speech, const window_task *task,
                         search_task *search_for) {
    const tokens *t = &speech->model->file->tokens;
    int32_t *prompt = speech->prompt;
    const int most = sizes_of(speech->model)->text_positions / 2 - 1;
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
                          .published = true,
                          .never = t->suppress,
                          .not_first = t->suppress_first,
                          .never_count = t->suppress_count,
                          .not_first_count = t->suppress_first_count};
}

/* Into speech->text, which ends in 0; returns its bytes. */
static size_t write_text(shoal_speech *speech, const int32_t *sampled, int count) {
    const size_t length = sh_tokens_decode(&speech->model->file->tokens, sampled, count,
                                           speech->text, SPEECH_TEXT);
    return length < SPEECH_TEXT ? length : SPEECH_TEXT - 1;
}

static bool is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Of the text without the spaces around it. */
static double compression_of(shoal_speech *speech, const int32_t *sampled, int count) {
    size_t length = write_text(speech, sampled, count);
    const char *text = speech->text;
    for (; length > 0 && is_space(text[length - 1]); length--)
        continue;
    for (; length > 0 && is_space(*text); length--)
        text++;
    return sh_compression_ratio(text, (unsigned long)length, speech->packed);
}

/* A window that holds no speech. The published rule asks for an unlikely text, and so
   writes "you" under silence, which the model has heard often; where the sound itself is
   flat, the text need not be unlikely. */
static bool is_silent(const window_task *task, const window_text *result) {
    return result->no_speech > SILENT_ABOVE &&
           (task->flat || result->mean_logprob <= UNLIKELY_BELOW);
}

static bool is_believable(const window_task *task, const window_text *result) {
    if (is_silent(task, result))
        return true; /* nothing is said, so that no other words would be likelier */
    return result->compression <= REPEATS_ABOVE && result->mean_logprob >= UNLIKELY_BELOW;
}

/* After sh_decoder_hear: decodes at rising temperatures until the text is
   believable. Returns how many attempts there were. */
static shoal_status decode_window(shoal_speech *speech, const window_task *task,
                                  window_text *result, int *attempts) {
    const tokens *t = &speech->model->file->tokens;
    const int tries = task->fallback ? TEMPERATURES : 1;
    search_task wanted = {.no_speech = t->no_speech,
                          .rules = rules_of(t, task->timestamps),
                          .longest = sizes_of(speech->model)->text_positions / 2};
    write_prompt(speech, task, &wanted);
    shoal_status status = SHOAL_OK;
    for (int attempt = 0; attempt < tries && status == SHOAL_OK; attempt++) {
        search_result found;
        wanted.temperature = temperatures[attempt];
        wanted.beams = attempt == 0                     ? task->beams
                       : speech->beams < SPEECH_SAMPLES ? speech->beams
                                                        : SPEECH_SAMPLES;
        wanted.seed = task->seed + (uint64_t)attempt;
        status = sh_search_run(speech->search, &wanted, &found);
        *result = (window_text){.sampled = found.tokens,
                                .count = found.count,
                                .temperature = (double)temperatures[attempt],
                                .mean_logprob = found.mean_logprob,
                                .no_speech = found.no_speech,
                                .compression =
                                    compression_of(speech, found.tokens, found.count)};
        *attempts = attempt + 1;
        if (is_believable(task, result))
            break;
    }
    return status;
}

/* ---- The recording -------------------------------------------------------------- */

typedef struct {
    shoal_speech *speech;
    const shoal_transcribe_options *options;
    shoal_segment_function *segment;
    void *user;
    recording_stream *stream;
    window_task task;
    int64_t seek; /* frames before the window */
    bool stopped; /* by the caller */
    bool guessed; /* the language, in this window */
    shoal_transcription summary;
} transcription;

static shoal_status choose_language(transcription *t) {
    shoal_context *context = t->speech->context;
    const tokens *known = &t->speech->model->file->tokens;
    const char *name = t->options->language;
    if (!name && known->multilingual)
        return SHOAL_OK; /* detected in the first window */
    const int32_t index = sh_language_find(name ? name : "en");
    if (index < 0 || (known->multilingual && index >= known->languages))
        return sh_fail(context, SHOAL_INVALID,
                       "language \"%s\" is not one that this model knows", name);
    if (!known->multilingual && strcmp(sh_language_code(index), "en") != 0)
        return sh_fail(context, SHOAL_INVALID,
                       "language \"%s\": this model knows English only", name);
    if (known->multilingual)
        t->task.language = known->first_language + index;
    strncpy(t->summary.language, sh_language_code(index), sizeof t->summary.language - 1);
    t->summary.language_probability = 1;
    return SHOAL_OK;
}

static shoal_status prepare(transcription *t) {
    const shoal_transcribe_options *options = t->options;
    shoal_context *context = t->speech->context;
    const int beams = options->beams ? options->beams : 1;
    if (beams < 1 || beams > t->speech->beams)
        return sh_fail(context, SHOAL_INVALID,
                       "beams is %d: the model was opened for 1 to %d", beams,
                       t->speech->beams);
    if (options->translate && !t->speech->model->file->tokens.multilingual)
        return sh_fail(context, SHOAL_INVALID,
                       "translate: this model knows English only");
    t->task = (window_task){.language = -1,
                            .translate = options->translate != 0,
                            .timestamps = !options->no_timestamps,
                            .fallback = !options->no_fallback,
                            .beams = beams,
                            .seed = options->seed,
                            .past = t->speech->past};
    return choose_language(t);
}

/* The likeliest language token after the start token. */
static void detect_language(transcription *t) {
    const tokens *known = &t->speech->model->file->tokens;
    int32_t among[LANGUAGE_COUNT];
    for (int32_t i = 0; i < known->languages; i++)
        among[i] = known->first_language + i;
    t->task.language = sh_search_choice(t->speech->search, 0, known->start, among,
                                        known->languages,
                                        &t->summary.language_probability);
    strncpy(t->summary.language,
            sh_language_code(t->task.language - known->first_language),
            sizeof t->summary.language - 1);
    t->guessed = true;
}

/* A window without speech; the language of the next ones is not that of its noise. */
static void leave_out(transcription *t) {
    t->summary.silent++;
    if (t->guessed) {
        t->summary.language[0] = 0;
        t->summary.language_probability = 0;
    }
}

/* ---- Segments ------------------------------------------------------------------- */

static bool has_text(const char *text) {
    return text[strspn(text, " \t\r\n\v\f")] != 0;
}

/* Later windows are told the latest half of the decoder's positions. */
static void remember(transcription *t, const int32_t *sampled, int count) {
    const int room = 2 * sizes_of(t->speech->model)->text_positions;
    int32_t *past = t->speech->past;
    const int over = t->task.past_count + count - room;
    if (over > 0) {
        memmove(past, past + over, (size_t)(t->task.past_count - over) * sizeof *past);
        t->task.past_count -= over;
    }
    memcpy(past + t->task.past_count, sampled, (size_t)count * sizeof *past);
    t->task.past_count += count;
}

static void hand_over(transcription *t, const window_text *window,
                      const segment_cut *cut) {
    const double offset = (double)t->seek / FRAMES_PER_SECOND;
    const int32_t *sampled = window->sampled + cut->first;
    const int count = cut->end - cut->first;
    write_text(t->speech, sampled, count);
    if (cut->begins == cut->ends || !has_text(t->speech->text))
        return;
    remember(t, sampled, count);
    const shoal_segment segment = {.begin = offset + cut->begins,
                                   .end = offset + cut->ends,
                                   .text = t->speech->text,
                                   .tokens = sampled,
                                   .token_count = count,
                                   .temperature = window->temperature,
                                   .mean_logprob = window->mean_logprob,
                                   .no_speech = window->no_speech,
                                   .compression = window->compression};
    if (t->segment && !t->stopped)
        t->stopped = t->segment(t->user, &segment) != 0;
}

/* Returns the frames to the next window. */
static int64_t use_window(transcription *t, const window_text *window, int64_t frames) {
    const int32_t first_time = t->speech->model->file->tokens.first_timestamp;
    int64_t advance;
    const int cuts = sh_segments_cut(window->sampled, window->count, first_time, frames,
                                     t->speech->cuts, &advance);
    for (int i = 0; i < cuts && !t->stopped; i++)
        hand_over(t, window, &t->speech->cuts[i]);
    t->summary.tokens += window->count;
    /* A text sampled at a high temperature may be wrong, and would mislead the windows
       after it. */
    if (t->options->no_context || window->temperature > 0.5)
        t->task.past_count = 0;
    return advance;
}

/* ---- Windows -------------------------------------------------------------------- */

/* NaN in the encoder's output would only show as an empty text. */
static shoal_status check_encoded(const transcription *t, const float *encoded) {
    const whisper_sizes *sizes = sizes_of(t->speech->model);
    const int64_t count = (int64_t)sizes->audio_positions * sizes->audio_width;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(encoded[i]))
            return sh_fail(t->speech->context, SHOAL_BAD_FILE,
                           "the model's encoder gives NaN or infinities: its weights are "
                           "damaged");
    return SHOAL_OK;
}

/* What the decoder is to hear. */
static shoal_status take_encoded(transcription *t, const float *encoded) {
    const shoal_status status = check_encoded(t, encoded);
    if (status != SHOAL_OK)
        return status;
    const double begun = sh_seconds();
    sh_decoder_hear(t->speech->decoder, 0, encoded);
    t->guessed = false;
    if (!*t->summary.language)
        detect_language(t);
    t->summary.decoder_seconds += sh_seconds() - begun;
    return SHOAL_OK;
}

static shoal_status hear(transcription *t, const float *samples, int64_t got) {
    const double begun = sh_seconds();
    const float *encoded;
    sh_mel_compute(t->speech->mel, samples, got, t->speech->features);
    const shoal_status status =
        sh_whisper_encode(t->speech->encoder, t->speech->features, &encoded);
    t->summary.encoder_seconds += sh_seconds() - begun;
    return status == SHOAL_OK ? take_encoded(t, encoded) : status;
}

/* *advance: frames from this window's beginning to the next one's. */
static shoal_status decode(transcription *t, int64_t frames, int64_t *advance) {
    const double begun = sh_seconds();
    window_text window;
    int attempts = 0;
    const shoal_status status = decode_window(t->speech, &t->task, &window, &attempts);
    if (status != SHOAL_OK)
        return status;
    *advance = frames;
    t->summary.decoder_seconds += sh_seconds() - begun;
    t->summary.fallbacks += attempts > 1;
    t->summary.windows++;
    if (t->task.fallback && is_silent(&t->task, &window))
        leave_out(t);
    else
        *advance = use_window(t, &window, frames);
    return SHOAL_OK;
}

static void report(transcription *t, int64_t frames) {
    const double done = (double)(t->seek + frames) / FRAMES_PER_SECOND;
    const double all = sh_recording_seconds(t->stream);
    t->summary.seconds = done;
    if (t->options->progress)
        t->options->progress(t->user, done, all > done ? all : done);
}

static shoal_status hear_and_decode(transcription *t, const float *samples, int64_t got,
                                    int64_t *advance) {
    const sound_level level = sh_sound_level(samples, got);
    if (level.loudest < NOTHING_BELOW) {
        t->summary.windows++;
        t->summary.silent++;
        *advance = got / MEL_HOP;
        return SHOAL_OK;
    }
    t->task.flat = is_quiet_or_steady(level);
    const shoal_status status = hear(t, samples, got);
    return status == SHOAL_OK ? decode(t, got / MEL_HOP, advance) : status;
}

/* One window; *advance is 0 at the end of the recording. */
static shoal_status do_window(transcription *t, int64_t *advance) {
    const float *samples;
    int64_t got = 0;
    *advance = 0;
    shoal_status status =
        sh_recording_window(t->stream, t->seek * MEL_HOP, &samples, &got);
    if (status != SHOAL_OK || got < MEL_HOP)
        return status;
    status = hear_and_decode(t, samples, got, advance);
    if (status == SHOAL_OK)
        report(t, *advance);
    return status;
}

shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                     const shoal_recording *recording,
                                     const shoal_transcribe_options *options,
                                     shoal_segment_function *segment, void *user,
                                     shoal_transcription *summary) {
    static const shoal_transcribe_options published = {0};
    if (!speech || !recording)
        return sh_fail(speech ? speech->context : NULL, SHOAL_INVALID,
                       "shoal_speech_transcribe: an argument is NULL");
    transcription t = {.speech = speech,
                       .options = options ? options : &published,
                       .segment = segment,
                       .user = user};
    shoal_status status = prepare(&t);
    if (status == SHOAL_OK)
        status = sh_recording_open(speech->context, recording, &t.stream);
    for (int64_t advance = 1; status == SHOAL_OK && advance > 0 && !t.stopped;) {
        status = do_window(&t, &advance);
        t.seek += advance;
    }
    sh_recording_close(t.stream);
    if (summary)
        *summary = t.summary;
    return status;
}

shoal_status shoal_speech_decode(shoal_speech *speech, const float *encoded,
                                 double seconds, const shoal_transcribe_options *options,
                                 shoal_segment_function *segment, void *user,
                                 shoal_transcription *summary) {
    static const shoal_transcribe_options published = {0};
    if (!speech || !encoded)
        return sh_fail(speech ? speech->context : NULL, SHOAL_INVALID,
                       "shoal_speech_decode: an argument is NULL");
    if (!(seconds > 0 && seconds <= AUDIO_WINDOW / AUDIO_RATE))
        return sh_fail(speech->context, SHOAL_INVALID,
                       "seconds is %g: it must be above 0 and at most 30", seconds);
    transcription t = {.speech = speech,
                       .options = options ? options : &published,
                       .segment = segment,
                       .user = user};
    int64_t advance;
    shoal_status status = prepare(&t);
    if (status == SHOAL_OK)
        status = take_encoded(&t, encoded);
    if (status == SHOAL_OK)
        status = decode(&t, (int64_t)ceil(seconds * FRAMES_PER_SECOND), &advance);
    t.summary.seconds = seconds;
    if (summary)
        *summary = t.summary;
    return status;
}
