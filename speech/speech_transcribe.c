/* A whole recording: window after window, each beginning where the last words of the one
   before ended, and each told what was said before it. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "shoal_speech.h"
#include "speech/speech.h"

typedef struct {
    shoal_speech *speech;
    const shoal_transcribe_options *options;
    shoal_segment_function *segment;
    void *user;
    source_stream *stream;
    window_task task;
    int64_t seek; /* frames before the window */
    bool stopped; /* by the caller */
    shoal_transcription summary;
} transcription;

/* ---- What is asked for ---------------------------------------------------------- */

static shoal_status choose_language(transcription *t) {
    shoal_context *context = t->speech->context;
    const tokens *known = &t->speech->model->file->tokens;
    const char *asked = t->options->language;
    if (!asked && known->multilingual)
        return SHOAL_OK; /* detected in the first window */
    const int32_t index = sh_language_find(asked ? asked : "en");
    if (index < 0 || (known->multilingual && index >= known->languages))
        return sh_fail(context, SHOAL_INVALID,
                       "language \"%s\" is not one that this model knows", asked);
    if (!known->multilingual && strcmp(sh_language_code(index), "en") != 0)
        return sh_fail(context, SHOAL_INVALID,
                       "language \"%s\": this model knows English only", asked);
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
    if (beams < 1 || beams > sh_decoder_beams(t->speech->decoder))
        return sh_fail(context, SHOAL_INVALID,
                       "beams is %d: the model was opened for 1 to %d", beams,
                       sh_decoder_beams(t->speech->decoder));
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
    t->task.language = sh_search_choice(t->speech->search, known->start, among,
                                        known->languages,
                                        &t->summary.language_probability);
    strncpy(t->summary.language,
            sh_language_code(t->task.language - known->first_language),
            sizeof t->summary.language - 1);
}

/* ---- Segments ------------------------------------------------------------------- */

static bool has_text(const char *text) {
    return text[strspn(text, " \t\r\n\v\f")] != 0;
}

/* Later windows are told the latest half of the decoder's positions. */
static void remember(transcription *t, const int32_t *sampled, int count) {
    const int room = 2 * whisper_sizes(t->speech->model)->text_positions;
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
    sh_speech_write_text(t->speech, sampled, count);
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
    /* What was sampled hot is no good company for the windows after it. */
    if (t->options->no_context || window->temperature > 0.5)
        t->task.past_count = 0;
    return advance;
}

/* ---- Windows -------------------------------------------------------------------- */

/* A model that makes no numbers of a recording makes no words of it either. */
static shoal_status check_encoded(const transcription *t, const float *encoded) {
    const speech_sizes *sizes = whisper_sizes(t->speech->model);
    const int64_t count = (int64_t)sizes->audio_positions * sizes->audio_width;
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(encoded[i]))
            return sh_fail(t->speech->context, SHOAL_BAD_FILE,
                           "the model's encoder gives NaN or infinities: its weights are "
                           "damaged");
    return SHOAL_OK;
}

static shoal_status hear(transcription *t, const float *samples, int64_t got) {
    const double begun = sh_seconds();
    const float *encoded;
    sh_mel_compute(t->speech->mel, samples, got, t->speech->features);
    shoal_status status =
        sh_whisper_encode(t->speech->encoder, t->speech->features, &encoded);
    if (status == SHOAL_OK)
        status = check_encoded(t, encoded);
    if (status != SHOAL_OK)
        return status;
    t->summary.encoder_seconds += sh_seconds() - begun;
    const double heard = sh_seconds();
    sh_decoder_hear(t->speech->decoder, encoded);
    if (!*t->summary.language)
        detect_language(t);
    t->summary.decoder_seconds += sh_seconds() - heard;
    return SHOAL_OK;
}

static int64_t decode(transcription *t, int64_t frames) {
    const double begun = sh_seconds();
    window_text window;
    int64_t advance = frames;
    const int attempts = sh_speech_decode_window(t->speech, &t->task, &window);
    t->summary.decoder_seconds += sh_seconds() - begun;
    t->summary.fallbacks += attempts > 1;
    t->summary.windows++;
    if (t->task.fallback && sh_speech_is_silent(&window))
        t->summary.silent++;
    else
        advance = use_window(t, &window, frames);
    return advance;
}

static void report(transcription *t, int64_t frames) {
    const double done = (double)(t->seek + frames) / FRAMES_PER_SECOND;
    const double all = sh_source_seconds(t->stream);
    t->summary.seconds = done;
    if (t->options->progress)
        t->options->progress(t->user, done, all > done ? all : done);
}

/* One window; *advance is 0 at the end of the recording. */
static shoal_status do_window(transcription *t, int64_t *advance) {
    const float *samples;
    int64_t got = 0;
    *advance = 0;
    shoal_status status = sh_source_window(t->stream, t->seek * MEL_HOP, &samples, &got);
    const int64_t frames = got / MEL_HOP;
    if (status != SHOAL_OK || frames == 0)
        return status;
    status = hear(t, samples, got);
    if (status != SHOAL_OK)
        return status;
    *advance = decode(t, frames);
    report(t, *advance);
    return SHOAL_OK;
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
        status = sh_source_open(speech->context, recording, &t.stream);
    for (int64_t advance = 1; status == SHOAL_OK && advance > 0 && !t.stopped;) {
        status = do_window(&t, &advance);
        t.seek += advance;
    }
    sh_source_close(t.stream);
    if (summary)
        *summary = t.summary;
    return status;
}
