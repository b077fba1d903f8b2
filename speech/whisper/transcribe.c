/* Whole recordings. Where speech is found first, windows are packed with it and run side
   by side, each by itself, those of the next recordings as well, and their texts come out
   in order. Else window follows upon window, each beginning where the last words of the
   one before ended, and each told what was said before it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "shoal_speech.h"
#include "speech/whisper/window.h"

/* ---- The recording -------------------------------------------------------------- */

/* Windows on their way, W at most, P text positions: a ring, the oldest first. */
typedef struct {
    shoal_speech *speech;
    int slots;              /* W */
    speech_window *windows; /* [W] */
    int first, count;
    int32_t *sampled; /* [W][P] */
    float *logprobs;  /* [W][P] */
    int32_t *told;    /* [W][P]: what the rest of a window is told that was said in it */
    float *samples;   /* [W][AUDIO_WINDOW], where speech is found first */
    bool pieces;      /* so it is */
} window_ring;

typedef struct transcription {
    shoal_speech *speech;
    const shoal_transcribe_options *options;
    shoal_recording recording;
    shoal_segment_callback segment;
    void *user;
    window_ring *ring;
    bool pieces; /* speech is found first */
    recording_stream *stream;
    window_packer *packer;
    double begins, lasts; /* seconds of the recording, as far as is known */
    window_rules rules;
    int past_count;   /* tokens of speech->past that the next window is told */
    bool stopped;     /* by the caller */
    bool guessed;     /* the language, in this window */
    int64_t said;     /* segments */
    int on_way;       /* windows of the ring that are its */
    align_task words; /* of the window whose segments are handed over, if asked for */
    shoal_transcription summary;
    shoal_status status;
    char message[256]; /* of a status that is not SHOAL_OK */
} transcription;

static void place(void *argument, block_layout *block) {
    window_ring *ring = argument;
    const int64_t all =
        sh_mul_checked(ring->slots, ring->speech->model->file->sizes.text_positions);
    const int64_t sounds = ring->pieces ? ring->slots : 0;
    ring->windows = sh_reserve(block, ring->slots, sizeof *ring->windows);
    ring->sampled = sh_reserve(block, all, sizeof *ring->sampled);
    ring->logprobs = sh_reserve(block, all, sizeof *ring->logprobs);
    ring->told = sh_reserve(block, all, sizeof *ring->told);
    ring->samples =
        sh_reserve(block, sh_mul_checked(sounds, AUDIO_WINDOW), sizeof *ring->samples);
}

/* *memory is given back with sh_release. */
static shoal_status make_ring(shoal_speech *speech, bool pieces, window_ring *ring,
                              void **memory) {
    *ring =
        (window_ring){.speech = speech,
                      .slots = pieces ? sh_decoder_limits(speech->decoder)->windows : 1,
                      .pieces = pieces};
    *memory = sh_allocate_parts(speech->context, place, ring, NULL);
    return *memory ? SHOAL_OK : SHOAL_NO_MEMORY;
}

static speech_window *window_at(const window_ring *ring, int index) {
    return &ring->windows[(ring->first + index) % ring->slots];
}

/* A new window in a slot, without anything heard. */
static speech_window *new_window(transcription *t, int slot) {
    const int64_t positions = t->speech->model->file->sizes.text_positions;
    speech_window *window = &t->ring->windows[slot];
    *window = (speech_window){.owner = t,
                              .slot = slot,
                              .past = t->speech->past,
                              .past_count = t->past_count,
                              .search = -1,
                              .sampled = t->ring->sampled + slot * positions,
                              .logprobs = t->ring->logprobs + slot * positions};
    return window;
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
                       "translate: this model supports English only");
    t->rules = (window_rules){.language = -1,
                              .translate = options->translate != 0,
                              .timestamps = !options->no_timestamps,
                              .fallback = !options->no_fallback,
                              .speech_found = t->pieces,
                              .published = options->published != 0,
                              .beams = beams,
                              .seed = options->seed};
    const tokens *known = &t->speech->model->file->tokens;
    const char *name = t->options->language;
    if (!name && known->multilingual)
        return SHOAL_OK; /* detected in the first window */
    const int32_t index = sh_language_find(name ? name : "en");
    if (index < 0 || (known->multilingual && index >= known->languages))
        return sh_fail(context, SHOAL_INVALID,
                       "language \"%s\" is not supported by this model", name);
    if (!known->multilingual && strcmp(sh_language_code(index), "en") != 0)
        return sh_fail(context, SHOAL_INVALID,
                       "language \"%s\": this model supports English only", name);
    if (known->multilingual)
        t->rules.language = known->first_language + index;
    strncpy(t->summary.language, sh_language_code(index), sizeof t->summary.language - 1);
    t->summary.language_probability = 1;
    return SHOAL_OK;
}

static void forget_language(transcription *t) {
    t->summary.language[0] = 0;
    t->summary.language_probability = 0;
}

/* ---- Segments ------------------------------------------------------------------- */

/* What the caller says was said before: its end, where there is too much of it. */
static void begin_past(transcription *t) {
    char text[4096];
    const char *prompt = t->options->prompt ? t->options->prompt : "";
    const size_t length = strlen(prompt), most = sizeof text - 2;
    t->past_count = 0;
    prompt += length > most ? length - most : 0;
    prompt += strspn(prompt, " ");
    snprintf(text, sizeof text, " %s", prompt);
    if (*prompt)
        t->past_count =
            sh_tokens_encode(&t->speech->model->file->tokens, text, t->speech->past,
                             2 * t->speech->model->file->sizes.text_positions);
}

static void hand_over(transcription *t, const speech_window *window,
                      const segment_cut *cut) {
    const int32_t *sampled = window->sampled + cut->first;
    const int count = cut->end - cut->first;
    const double length = (double)window->frames / FRAMES_PER_SECOND;
    const double ends = fmin(cut->ends, length);
    const double begins = fmin(cut->begins, fmax(ends - 0.02, 0));
    shoal_segment segment = {.text = t->speech->text,
                             .begin = sh_packed_begin(&window->sound, begins),
                             .end = sh_packed_end(&window->sound, ends),
                             .tokens = sampled,
                             .token_count = count,
                             .temperature = window->temperature,
                             .mean_logprob = window->mean_logprob,
                             .no_speech = window->no_speech,
                             .compression = window->compression};
    sh_window_text(t->speech, sampled, count);
    /* Nor what begins after the sound's end, in the silence that fills the window. */
    if (cut->begins == cut->ends ||
        !t->speech->text[strspn(t->speech->text, " \t\r\n\v\f")] ||
        (!t->rules.published && cut->begins >= length))
        return;
    if (!t->pieces) {
        /* Later windows are told the latest half of the decoder's positions. */
        int32_t *past = t->speech->past;
        const int room = 2 * t->speech->model->file->sizes.text_positions;
        const int over = (int)max(0, t->past_count + count - room);
        t->past_count -= over;
        memmove(past, past + over, (size_t)t->past_count * sizeof *past);
        memcpy(past + t->past_count, sampled, (size_t)count * sizeof *past);
        t->past_count += count;
    }
    t->said++;
    if (t->options->words)
        segment.word_count = sh_aligned_words(t->speech->aligner, &t->words,
                                              &window->sound, cut->first, cut->end,
                                              &segment.words);
    if (t->segment && !t->stopped)
        t->stopped = t->segment(t->user, &segment) != 0;
}

/* Seconds that may be left without words, and those that are something done. */
enum { LEFT_MOST = FRAMES_PER_SECOND, LEAST_DONE = FRAMES_PER_SECOND };
#define AS_LOUD 0.1 /* as the loudest of the window: more speech */

/* Whether the window's sound from a frame on asks for words. */
static bool goes_on(const speech_window *window, int64_t frame) {
    const int64_t at = frame * MEL_HOP, all = window->sound.samples;
    if (!window->samples || frame < LEAST_DONE || window->frames - frame <= LEFT_MOST)
        return false;
    const double rest = sh_sound_level(window->samples + at, all - at).loudest;
    return rest > AS_LOUD * sh_sound_level(window->samples, all).loudest;
}

/* Where the text ends that has a last word to say on it: a lone time. Beyond it more may
   be said, although the model has ended. *whole: nothing comes after the window's sound,
   so that words after the last pair of times stay. */
static int64_t advance_from(const transcription *t, const speech_window *window,
                            bool whole, int *cuts, int64_t advance) {
    const int32_t first_time = t->speech->model->file->tokens.first_timestamp;
    segment_cut *list = t->speech->cuts;
    const int last = window->count - 1;
    const bool lone = last > 0 && window->sampled[last] >= first_time;
    if (t->rules.published || !t->rules.timestamps || *cuts == 0)
        return advance;
    if (advance == window->frames && lone) {
        const int64_t end = (window->sampled[last] - first_time) * FRAMES_PER_STEP;
        return goes_on(window, end) ? end : advance;
    }
    if (advance == window->frames || !whole || goes_on(window, advance))
        return advance;
    list[*cuts] = (segment_cut){.first = list[*cuts - 1].end,
                                .end = window->count,
                                .begins = (double)advance / FRAMES_PER_SECOND,
                                .ends = (double)window->frames / FRAMES_PER_SECOND};
    ++*cuts;
    return window->frames;
}

/* A window is ready: its segments, and the frames from its beginning to the next one. */
static int64_t finish_window(transcription *t, speech_window *window, bool whole) {
    const tokens *known = &t->speech->model->file->tokens;
    int64_t advance;
    t->summary.windows++;
    t->summary.fallbacks += window->attempt > 0;
    t->summary.silent += window->silent;
    if (window->silent && t->guessed && !t->pieces)
        forget_language(t); /* that of the next ones is not that of its noise */
    if (window->silent || window->failed)
        return window->frames;
    int cuts = sh_segments_cut(window->sampled, window->count, known->first_timestamp,
                               window->frames, t->speech->cuts, &advance);
    advance = advance_from(t, window, whole, &cuts, advance);
    window->said = cuts > 0 ? t->speech->cuts[cuts - 1].end : 0;
    if (t->options->words) {
        const aligned_word *found;
        t->words = (align_task){.window = window->slot,
                                .tokens = known,
                                .language = t->rules.language,
                                .translate = t->rules.translate,
                                .spaces = t->rules.translate ||
                                          sh_language_has_spaces(t->summary.language),
                                .ids = window->sampled,
                                .logprobs = window->logprobs,
                                .count = window->said,
                                .frames = window->frames};
        sh_align(t->speech->aligner, &t->words, &found);
    }
    for (int i = 0; i < cuts && !t->stopped; i++)
        hand_over(t, window, &t->speech->cuts[i]);
    t->summary.tokens += window->count;
    /* A text sampled at a high temperature may be wrong, and would mislead the windows
       after it. */
    if (!t->pieces && (t->options->no_context || window->temperature > 0.5))
        begin_past(t);
    return advance;
}

/* ---- Windows -------------------------------------------------------------------- */

/* What the decoder is to hear. */
static shoal_status take_encoded(transcription *t, const speech_window *window,
                                 const float *encoded) {
    const whisper_sizes *sizes = &t->speech->model->file->sizes;
    for (int64_t i = 0; i < (int64_t)sizes->audio_positions * sizes->audio_width; i++)
        if (!isfinite(encoded[i])) /* would only show as an empty text */
            return sh_fail(t->speech->context, SHOAL_BAD_FILE,
                           "the encoder's outputs are NaN or infinite: the model's "
                           "weights are damaged");
    const double begun = sh_seconds();
    sh_decoder_hear(t->speech->decoder, window->slot, encoded);
    t->guessed = t->pieces && t->guessed;
    if (!*t->summary.language) {
        /* The likeliest language token after the start token. */
        const tokens *known = &t->speech->model->file->tokens;
        int32_t among[LANGUAGE_COUNT];
        for (int32_t i = 0; i < known->languages; i++)
            among[i] = known->first_language + i;
        t->rules.language = sh_search_choice(t->speech->search, window->slot,
                                             known->start, among, known->languages,
                                             &t->summary.language_probability);
        strncpy(t->summary.language,
                sh_language_code(t->rules.language - known->first_language),
                sizeof t->summary.language - 1);
        t->guessed = true;
    }
    t->summary.decoder_seconds += sh_seconds() - begun;
    return SHOAL_OK;
}

static shoal_status hear(transcription *t, speech_window *window) {
    const double begun = sh_seconds();
    const float *encoded;
    window->flat = sh_is_flat(sh_sound_level(window->samples, window->sound.samples));
    sh_mel_compute(t->speech->mel, window->samples, window->sound.samples,
                   t->speech->features);
    const shoal_status status =
        sh_whisper_encode(t->speech->encoder, t->speech->features, &encoded);
    t->summary.encoder_seconds += sh_seconds() - begun;
    TRY(status);
    return take_encoded(t, window, encoded);
}

/* One step of all windows on their way, which share the time that it takes. */
static shoal_status step(window_ring *ring) {
    const double begun = sh_seconds();
    for (int i = 0; i < ring->count; i++) {
        speech_window *window = window_at(ring, i);
        if (!window->ready && window->search < 0)
            sh_window_search(ring->speech, &window->owner->rules, window);
    }
    const shoal_status status = sh_search_step(ring->speech->search);
    const double share = (sh_seconds() - begun) / ring->count;
    for (int i = 0; i < ring->count && status == SHOAL_OK; i++) {
        speech_window *window = window_at(ring, i);
        sh_window_collect(ring->speech, &window->owner->rules, window);
        window->owner->summary.decoder_seconds += share;
    }
    return status;
}

static void report(transcription *t, double done) {
    t->summary.seconds = done - t->begins;
    if (t->stream)
        t->lasts = sh_recording_seconds(t->stream);
    if (t->options->progress)
        t->options->progress(t->user, done, t->lasts > done ? t->lasts : done);
}

/* ---- Window upon window --------------------------------------------------------- */

static packed_window one_piece(int64_t begin, int64_t count) {
    return (
        packed_window){.pieces = {{begin, begin + count}}, .count = 1, .samples = count};
}

static shoal_status decode(transcription *t, speech_window *window) {
    t->ring->count = 1;
    while (!window->ready)
        TRY(step(t->ring));
    return SHOAL_OK;
}

/* One window; *advance is 0 at the end of the recording. */
static shoal_status do_window(transcription *t, int64_t seek, int64_t *advance) {
    const float *samples;
    int64_t got = 0;
    *advance = 0;
    TRY(sh_recording_window(t->stream, seek * MEL_HOP, &samples, &got));
    if (got < MEL_HOP)
        return SHOAL_OK;
    speech_window *window = new_window(t, 0);
    window->sound = one_piece(seek * MEL_HOP, got);
    window->samples = samples;
    window->frames = got / MEL_HOP;
    if (sh_is_nothing(sh_sound_level(samples, got))) {
        t->summary.windows++;
        t->summary.silent++;
        *advance = window->frames;
    } else {
        TRY(hear(t, window));
        TRY(decode(t, window));
        *advance = finish_window(t, window, got < AUDIO_WINDOW);
    }
    report(t, (double)(seek + *advance) / FRAMES_PER_SECOND);
    return SHOAL_OK;
}

/* ---- Windows side by side ------------------------------------------------------- */

static float *own_samples(const window_ring *ring, int slot) {
    return ring->samples + (int64_t)slot * AUDIO_WINDOW;
}

/* What is left of a window's sound from a frame on is heard again, in the same slot. */
static shoal_status hear_rest(transcription *t, speech_window *window, int64_t frame) {
    enum { EARLIER = 60, LATER = 30, WIDTH = 10 };
    float *own = own_samples(t->ring, window->slot);
    const speech_window last = *window;
    const packed_window before = last.sound;
    /* A time that the model wrote may lie in a word: the quietest place near. */
    const int64_t earliest = max(frame - EARLIER, WIDTH / 2);
    const int64_t latest = min(frame + LATER, last.frames - WIDTH + WIDTH / 2);
    double quietest = INFINITY;
    for (int64_t at = earliest; at <= latest; at++) {
        const float *around = last.samples + (at - WIDTH / 2) * MEL_HOP;
        const double level = sh_sound_level(around, WIDTH * MEL_HOP).loudest;
        frame = level < quietest ? at : frame;
        quietest = fmin(level, quietest);
    }
    window = new_window(t, window->slot);
    /* It is told what was said in the one before it: the latest of it, and of what that
       one was told. */
    const int positions = t->speech->model->file->sizes.text_positions;
    int32_t *told = t->ring->told + (int64_t)last.slot * positions;
    const int said = last.temperature > 0.5 ? 0 : last.said;
    const int kept = (int)min(last.past_count, positions - said);
    memmove(told, last.past + last.past_count - kept, (size_t)kept * sizeof *told);
    memcpy(told + kept, last.sampled, (size_t)said * sizeof *told);
    window->past = told;
    window->past_count = kept + said;
    int64_t skip = frame * MEL_HOP;
    for (int i = 0; i < before.count; i++) {
        const int64_t length = before.pieces[i].end - before.pieces[i].begin;
        const int64_t cut = min(skip, length);
        skip -= cut;
        if (cut < length)
            window->sound.pieces[window->sound.count++] =
                (sound_piece){before.pieces[i].begin + cut, before.pieces[i].end};
    }
    window->sound.samples = before.samples - frame * MEL_HOP;
    memmove(own, own + frame * MEL_HOP, (size_t)window->sound.samples * sizeof *own);
    window->samples = own;
    window->frames = window->sound.samples / MEL_HOP;
    return hear(t, window);
}

/* What is wrong with a recording is told when its turn comes. */
static void fail(transcription *t, shoal_status status) {
    t->status = status;
    snprintf(t->message, sizeof t->message, "%s",
             shoal_context_message(t->speech->context));
}

/* ---- Recordings ----------------------------------------------------------------- */

static void close_recording(transcription *t) {
    if (t->packer)
        t->lasts = (double)(sh_packer_passed(t->packer) / MEL_HOP) / FRAMES_PER_SECOND;
    sh_packer_destroy(t->packer);
    sh_recording_close(t->stream);
    t->packer = NULL;
    t->stream = NULL;
}

static shoal_status open_recording(transcription *t) {
    TRY(sh_recording_open(t->speech->context, &t->recording, &t->stream));
    if (t->pieces)
        TRY(sh_packer_create(t->speech->context, t->stream, &t->packer));
    t->begins = (double)sh_recording_first(t->stream) / AUDIO_RATE;
    t->lasts = sh_recording_seconds(t->stream);
    begin_past(t);
    return SHOAL_OK;
}

/* All recordings of a call: those before `ended` are, from `packed` on none has a window
   yet, and the first of these may be open. */
typedef struct {
    shoal_speech *speech;
    transcription *list; /* [count] */
    int count, ended, packed;
    shoal_recording_callback function;
    void *user;
    window_ring ring;
    bool stopped; /* by the caller */
} recording_queue;

/* All that the next recording said is handed over. */
static void end_recording(recording_queue *queue) {
    transcription *t = &queue->list[queue->ended];
    if (t->stopped)
        queue->stopped = true;
    else if (t->status == SHOAL_OK && t->pieces)
        report(t, t->lasts);
    if (t->pieces && t->said == 0 && t->guessed)
        forget_language(t);
    if (t->status != SHOAL_OK)
        sh_fail(t->speech->context, t->status, "%s", t->message);
    if (queue->function &&
        queue->function(queue->user, queue->ended, t->status, &t->summary) != 0)
        queue->stopped = true;
    queue->ended++;
}

static void close_open(recording_queue *queue) {
    close_recording(&queue->list[queue->packed++]);
}

/* The next window of the recording that is open, or of the next one, behind those on
   their way. */
static void add_from(recording_queue *queue) {
    transcription *t = &queue->list[queue->packed];
    window_ring *ring = t->ring;
    packed_window sound = {.count = 0};
    const float *samples;
    shoal_status status = t->stream ? SHOAL_OK : open_recording(t);
    if (status == SHOAL_OK)
        status = sh_packer_next(t->packer, &sound, &samples);
    if (status == SHOAL_OK && sound.count > 0) {
        const int slot = (ring->first + ring->count) % ring->slots;
        speech_window *window = new_window(t, slot);
        window->sound = sound;
        window->samples = memcpy(own_samples(ring, slot), samples,
                                 (size_t)sound.samples * sizeof *samples);
        window->frames = sound.samples / MEL_HOP;
        status = hear(t, window);
        ring->count += status == SHOAL_OK;
        t->on_way += status == SHOAL_OK;
    }
    if (status != SHOAL_OK)
        fail(t, status);
    if (status != SHOAL_OK || sound.count == 0)
        close_open(queue);
}

/* Texts of the oldest windows, as far as they are ready; recordings before theirs have
   no more. */
static void hand_over_ready(recording_queue *queue) {
    window_ring *ring = &queue->ring;
    while (ring->count > 0 && window_at(ring, 0)->ready) {
        speech_window *window = window_at(ring, 0);
        transcription *t = window->owner;
        const sound_piece last = window->sound.pieces[window->sound.count - 1];
        while (&queue->list[queue->ended] != t && !queue->stopped)
            end_recording(queue);
        if (queue->stopped)
            return;
        const int64_t advance = finish_window(t, window, true);
        if (t->stopped)
            return;
        if (advance < window->frames) {
            const shoal_status status = hear_rest(t, window, advance);
            if (status == SHOAL_OK)
                return;
            fail(t, status);
        }
        report(t, (double)last.end / AUDIO_RATE);
        ring->first = (ring->first + 1) % ring->slots;
        ring->count--;
        t->on_way--;
    }
}

static void run_side_by_side(recording_queue *queue) {
    window_ring *ring = &queue->ring;
    while (!queue->stopped && queue->ended < queue->count) {
        while (ring->count < ring->slots && queue->packed < queue->count)
            add_from(queue);
        if (ring->count > 0) {
            const shoal_status status = step(ring);
            if (status == SHOAL_OK)
                hand_over_ready(queue);
            /* Else the decoder's numbers are damaged: nothing of what is on its way can
               be had. */
            for (; status != SHOAL_OK && ring->count > 0; ring->count--) {
                transcription *t = window_at(ring, ring->count - 1)->owner;
                fail(t, status);
                t->on_way = 0;
            }
            if (status != SHOAL_OK)
                sh_search_drop_all(queue->speech->search);
            if (status != SHOAL_OK && queue->packed < queue->count &&
                queue->list[queue->packed].status != SHOAL_OK)
                close_open(queue);
        }
        while (!queue->stopped && queue->ended < queue->count) {
            const transcription *t = &queue->list[queue->ended];
            if (!t->stopped && (queue->ended >= queue->packed || t->on_way > 0))
                break;
            end_recording(queue);
        }
    }
}

static void run_one_by_one(recording_queue *queue) {
    while (!queue->stopped && queue->ended < queue->count) {
        transcription *t = &queue->list[queue->ended];
        shoal_status status = open_recording(t);
        int64_t seek = status == SHOAL_OK ? sh_recording_first(t->stream) / MEL_HOP : 0;
        for (int64_t advance = 1; status == SHOAL_OK && advance > 0 && !t->stopped;) {
            status = do_window(t, seek, &advance);
            seek += advance;
        }
        if (status != SHOAL_OK)
            fail(t, status);
        close_recording(t);
        sh_search_drop_all(queue->speech->search);
        queue->packed++;
        end_recording(queue);
    }
}

static shoal_status make_aligner(shoal_speech *speech,
                                 const shoal_transcribe_options *options) {
    return options->words && !speech->aligner
               ? sh_aligner_create(speech->context, speech->decoder, speech->model->file,
                                   &speech->aligner)
               : SHOAL_OK;
}

static shoal_status cancelled(const shoal_speech *speech) {
    return sh_fail(speech->context, SHOAL_CANCELLED, "cancelled by a callback");
}

/* Segments and progress go to `user`, the ends of recordings to `ended_user`. */
static shoal_status transcribe(shoal_speech *speech, const shoal_recording *recordings,
                               int count, const shoal_transcribe_options *options,
                               shoal_segment_callback segment, void *user,
                               shoal_recording_callback ended, void *ended_user) {
    shoal_transcribe_options own = shoal_transcribe_options_defaults();
    TRY(READ_STRUCT(speech->context, shoal_transcribe_options, options, &own));
    transcription first = {.speech = speech,
                           .options = &own,
                           .segment = segment,
                           .user = user};
    first.pieces = !first.options->no_vad && !first.options->published;
    shoal_status status = prepare(&first);
    if (status != SHOAL_OK || count == 0)
        return status;
    recording_queue queue = {.speech = speech,
                             .count = count,
                             .function = ended,
                             .user = ended_user};
    queue.list = sh_allocate(speech->context, (size_t)count * sizeof *queue.list);
    if (!queue.list)
        return SHOAL_NO_MEMORY;
    void *memory = NULL;
    status = make_ring(queue.speech, first.pieces, &queue.ring, &memory);
    for (int i = 0; i < queue.count; i++) {
        queue.list[i] = first;
        queue.list[i].ring = &queue.ring;
        queue.list[i].recording = shoal_recording_defaults();
        /* The caller's structs may have another size than this library's. */
        if (status == SHOAL_OK)
            status = READ_STRUCT(speech->context, shoal_recording,
                                 (const char *)recordings + (size_t)i * recordings->size,
                                 &queue.list[i].recording);
    }
    if (status == SHOAL_OK)
        status = make_aligner(queue.speech, first.options);
    const bool ready = status == SHOAL_OK;
    if (ready && first.pieces)
        run_side_by_side(&queue);
    else if (ready)
        run_one_by_one(&queue);
    for (int i = 0; i < queue.count; i++)
        close_recording(&queue.list[i]);
    sh_search_drop_all(queue.speech->search);
    sh_release(queue.speech->context, memory);
    sh_release(speech->context, queue.list);
    return status == SHOAL_OK && queue.stopped ? cancelled(speech) : status;
}

shoal_status shoal_speech_transcribe_all(shoal_speech *speech,
                                         const shoal_recording *recordings, int count,
                                         const shoal_transcribe_options *options,
                                         shoal_segment_callback segment,
                                         shoal_recording_callback ended, void *user) {
    if (!speech || (count > 0 && !recordings) || count < 0)
        return sh_fail(speech ? speech->context : NULL, SHOAL_INVALID,
                       "shoal_speech_transcribe_all: an argument is NULL or negative");
    return transcribe(speech, recordings, count, options, segment, user, ended, user);
}

/* The end of the one recording of a call. */
typedef struct {
    shoal_status status;
    shoal_transcription summary;
} recording_end;

static int keep_end(void *user, int index, shoal_status status,
                    const shoal_transcription *summary) {
    (void)index;
    *(recording_end *)user = (recording_end){status, *summary};
    return 0;
}

shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                     const shoal_recording *recording,
                                     const shoal_transcribe_options *options,
                                     shoal_segment_callback segment, void *user,
                                     shoal_transcription *summary) {
    if (!speech || !recording)
        return sh_fail(speech ? speech->context : NULL, SHOAL_INVALID,
                       "shoal_speech_transcribe: an argument is NULL");
    recording_end end = {0};
    const shoal_status status =
        transcribe(speech, recording, 1, options, segment, user, keep_end, &end);
    if (summary)
        *summary = end.summary;
    return end.status != SHOAL_OK ? end.status : status;
}

shoal_status shoal_speech_decode(shoal_speech *speech, const float *encoded,
                                 double seconds, const shoal_transcribe_options *options,
                                 shoal_segment_callback segment, void *user,
                                 shoal_transcription *summary) {
    if (!speech || !encoded)
        return sh_fail(speech ? speech->context : NULL, SHOAL_INVALID,
                       "shoal_speech_decode: an argument is NULL");
    if (!(seconds > 0 && seconds <= AUDIO_WINDOW / AUDIO_RATE))
        return sh_fail(speech->context, SHOAL_INVALID,
                       "seconds is %g: it must be above 0 and at most 30", seconds);
    void *memory = NULL;
    window_ring ring;
    shoal_transcribe_options own = shoal_transcribe_options_defaults();
    TRY(READ_STRUCT(speech->context, shoal_transcribe_options, options, &own));
    transcription t = {.speech = speech,
                       .options = &own,
                       .segment = segment,
                       .user = user,
                       .ring = &ring};
    shoal_status status = prepare(&t);
    if (status == SHOAL_OK)
        status = make_ring(speech, false, &ring, &memory);
    if (status == SHOAL_OK)
        status = make_aligner(speech, t.options);
    if (status == SHOAL_OK) {
        /* The sound is not there, so that nothing can be heard again. */
        speech_window *window = new_window(&t, 0);
        window->frames = (int64_t)ceil(seconds * FRAMES_PER_SECOND);
        window->sound = one_piece(0, window->frames * MEL_HOP);
        status = take_encoded(&t, window, encoded);
        if (status == SHOAL_OK)
            status = decode(&t, window);
        if (status == SHOAL_OK)
            finish_window(&t, window, true);
        t.summary.seconds = seconds;
        sh_search_drop_all(speech->search);
    }
    sh_release(speech->context, memory);
    if (summary)
        *summary = t.summary;
    return status == SHOAL_OK && t.stopped ? cancelled(speech) : status;
}
