/* Which utterances are heard together, and each kind on each window. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "lab.h"
#include "wer.h"

/* ---- Arrangements ------------------------------------------------------------------ */

/* The first as the options say, the second with one utterance in a window, the others in
   other orders and with other gaps. */
static wer_arrangement choose_arrangement(const wer_job *job, int at) {
    static const double gaps[] = {0, 0.25, 1, 2, 0.5};
    const int64_t several = job->per_window > 1 ? job->per_window : 2;
    const uint64_t seed = job->seed + (uint64_t)at;
    if (job->join > 0)
        return (wer_arrangement){INT64_MAX, job->gap, job->shuffle || at > 0, seed, 0};
    if (at == 0)
        return (wer_arrangement){job->per_window, job->gap, job->shuffle, seed, 0};
    if (at == 1)
        return (wer_arrangement){job->per_window > 1 ? 1 : 2, job->gap, false, seed, 0};
    return (wer_arrangement){several, gaps[(at - 2) % 5], true, seed, 0};
}

/* order: [utterance_count]. */
static void fill_order(const wer_job *job, const wer_arrangement *arrangement,
                       int *order) {
    for (int i = 0; i < job->utterance_count; i++)
        order[i] = i;
    for (int i = job->utterance_count - 1; arrangement->shuffled && i > 0; i--) {
        const uint64_t drawn = mix_bits(mix_bits(arrangement->seed) + (uint64_t)i);
        const int other = (int)(drawn % ((uint64_t)i + 1)), before = order[i];
        order[i] = order[other];
        order[other] = before;
    }
}

static int measure_length(wer_job *job, wer_utterance *utterance, float *features) {
    const char *path = utterance->path;
    const shoal_recording recording = {.paths = &path, .files = 1};
    const shoal_status status =
        shoal_speech_features(job->speech, &recording, 0, features, &utterance->seconds);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
}

/* The next of the order that fit into one window, or recording. */
static void fill_window(const wer_job *job, const wer_arrangement *arrangement,
                        const int *order, int left, wer_window *window) {
    const double most = job->join > 0 ? 60 * job->join : WER_WINDOW_SECONDS;
    while (window->count < left && window->count < arrangement->per_window) {
        const int next = order[window->count];
        const double more = job->utterances[next].seconds +
                            (window->count > 0 ? arrangement->gap : 0);
        if (window->count > 0 && window->seconds + more > most)
            break;
        window->seconds += more;
        window->members[window->count++] = next;
    }
}

static void fill_windows(wer_job *job, int at, int *order) {
    wer_arrangement *arrangement = &job->arrangements[at];
    *arrangement = choose_arrangement(job, at);
    fill_order(job, arrangement, order);
    for (int first = 0; first < job->utterance_count;) {
        const size_t place = (size_t)at * (size_t)job->utterance_count + (size_t)first;
        wer_window *window = &job->windows[job->window_count++];
        window->arrangement = at;
        window->members = job->members + place;
        fill_window(job, arrangement, order + first, job->utterance_count - first,
                    window);
        for (int kind = 0; kind < job->kind_count; kind++)
            window->errors[kind] = job->errors + place * (size_t)job->kind_count +
                                   kind * window->count;
        first += window->count;
        arrangement->windows++;
    }
}

int wer_arrange(wer_job *job) {
    const shoal_speech_info info = shoal_speech_describe(job->speech);
    const size_t utterances = (size_t)job->utterance_count,
                 arrangements = (size_t)job->arrangement_count;
    float *features = malloc((size_t)info.mels * (size_t)info.frames * sizeof *features);
    int *order = malloc(utterances * sizeof *order);
    job->arrangements = calloc(arrangements, sizeof *job->arrangements);
    job->windows = calloc(utterances * arrangements, sizeof *job->windows);
    job->members = calloc(utterances * arrangements, sizeof *job->members);
    job->errors =
        calloc(utterances * arrangements * (size_t)job->kind_count, sizeof *job->errors);
    int code = features && order && job->arrangements && job->windows && job->members &&
                       job->errors
                   ? EXIT_OK
                   : complain(EXIT_RESOURCES, "wer", "out of memory");
    for (int i = 0; i < job->utterance_count && code == EXIT_OK; i++) {
        progress_say("reading %d of %d recordings", i + 1, job->utterance_count);
        code = measure_length(job, &job->utterances[i], features);
    }
    for (int at = 0; at < (int)job->arrangement_count && code == EXIT_OK; at++)
        fill_windows(job, at, order);
    free(features);
    free(order);
    return code;
}

void wer_release(wer_job *job) {
    for (int i = 0; i < job->window_count; i++)
        for (int kind = 0; kind < job->kind_count; kind++)
            free(job->windows[i].texts[kind]);
    for (int i = 0; i < job->utterance_count; i++) {
        free(job->utterances[i].path);
        free(job->utterances[i].name);
        free(job->utterances[i].text);
    }
    for (int kind = 0; kind < job->kind_count; kind++)
        free(job->kinds[kind].output_errors);
    free(job->arrangements);
    free(job->windows);
    free(job->members);
    free(job->errors);
    free(job->utterances);
}

/* ---- One kind on one window -------------------------------------------------------- */

/* A window at a time, on which the kinds take turns, so that whatever else the machine
   does falls on all of them. A kind's encoder runs once on a window, and on the first
   WER_TIMED of them again, on the clock. */
typedef struct {
    wer_job *job;
    wer_window *window;
    const char **paths; /* [utterances] */
    shoal_recording recording;
    int64_t size;                   /* of an encoder's output */
    float *features;                /* [mels][frames] */
    float *exact, *encoded, *again; /* [size] */
} wer_run;

static int fail_call(const wer_run *run, shoal_status status, const char *kind) {
    complain(EXIT_BAD_INPUT, "wer", "%s on %s:", kind, run->paths[0]);
    return complain_status(status, EXIT_BAD_INPUT, "wer", run->job->context);
}

static int collect(void *user, const shoal_segment *segment) {
    fprintf(user, "%s ", segment->text);
    return 0;
}

/* Greedy or beams at temperature 0; without timestamps, unless they are asked for or one
   recording alone goes beyond the window: that is heard from the beginning. */
static shoal_status hear_window(const wer_run *run, const float *encoded, FILE *to) {
    const wer_job *job = run->job;
    const bool longer = run->window->count == 1 &&
                        run->window->seconds >= WER_WINDOW_SECONDS;
    const shoal_transcribe_options options = {.language = job->language,
                                              .beams = (int)job->beams,
                                              .no_timestamps = !longer &&
                                                               !job->timestamps,
                                              .no_vad = 1,
                                              .no_fallback = 1};
    if (!longer)
        return shoal_speech_decode(job->speech, encoded, run->window->seconds, &options,
                                   collect, to, NULL);
    shoal_transcription summary;
    const shoal_status status = shoal_speech_transcribe(job->speech, &run->recording,
                                                        &options, collect, to, &summary);
    run->window->seconds = status == SHOAL_OK ? summary.seconds : run->window->seconds;
    return status;
}

/* As shoal transcribe does it; the encoder's time is that of one window. */
static shoal_status transcribe(const wer_run *run, wer_kind *kind, FILE *to) {
    const wer_job *job = run->job;
    const shoal_transcribe_options options = {.language = job->language,
                                              .beams = (int)job->beams,
                                              .no_vad = kind->mode == WER_NO_VAD,
                                              .published = kind->mode == WER_PUBLISHED};
    shoal_transcription summary;
    const shoal_status status = shoal_speech_transcribe(job->speech, &run->recording,
                                                        &options, collect, to, &summary);
    if (job->done < WER_TIMED)
        kind->encoder_seconds[job->done] =
            summary.windows > 0 ? summary.encoder_seconds / (double)summary.windows : 0;
    kind->output_errors[job->done] = NAN;
    return status;
}

static double relative_error(const float *encoded, const float *exact, int64_t count) {
    squares sums = {0};
    for (int64_t i = 0; i < count; i++)
        squares_add(&sums, (double)encoded[i], (double)exact[i]);
    return squares_relative(sums);
}

/* A time counts only for a result that is the same again. */
static int time_encoder(wer_run *run, int kind, const float *out) {
    wer_kind *k = &run->job->kinds[kind];
    const double begun = seconds_now();
    const shoal_status status =
        shoal_speech_encode(run->job->speech, run->features, run->again);
    k->encoder_seconds[run->job->done] = seconds_now() - begun;
    if (status != SHOAL_OK)
        return fail_call(run, status, k->spelling);
    if (memcmp(out, run->again, (size_t)run->size * sizeof *out) != 0)
        return complain(EXIT_FAILURE, "wer",
                        "WRONG: %s on %s: the same call gave another output; please "
                        "report it",
                        k->spelling, run->paths[0]);
    return EXIT_OK;
}

/* encoded: NULL where the kind does not listen to one window. */
static int hear_text(wer_run *run, wer_kind *kind, const float *encoded) {
    size_t size;
    FILE *to = open_memstream(&run->window->texts[kind - run->job->kinds], &size);
    if (!to)
        return complain(EXIT_RESOURCES, "wer", "out of memory");
    const shoal_status status = encoded ? hear_window(run, encoded, to)
                                        : transcribe(run, kind, to);
    fclose(to);
    return status == SHOAL_OK ? EXIT_OK : fail_call(run, status, kind->spelling);
}

static int try_kind(wer_run *run, int index) {
    wer_job *job = run->job;
    wer_kind *kind = &job->kinds[index];
    float *out = index == job->reference ? run->exact : run->encoded;
    progress_say("window %d of %d, %s", job->done + 1, job->window_count, kind->spelling);
    shoal_status status = shoal_speech_set_attention(job->speech, kind->attention);
    if (status == SHOAL_OK && kind->mode != WER_WINDOW)
        return hear_text(run, kind, NULL);
    if (status == SHOAL_OK)
        status = shoal_speech_encode(job->speech, run->features, out);
    if (status != SHOAL_OK)
        return fail_call(run, status, kind->spelling);
    kind->output_errors[job->done] = job->kinds[job->reference].mode == WER_WINDOW
                                         ? relative_error(out, run->exact, run->size)
                                         : NAN;
    int code = EXIT_OK;
    if (job->done < WER_TIMED && !job->no_time)
        code = time_encoder(run, index, out);
    if (code == EXIT_OK)
        code = hear_text(run, kind, out);
    return code;
}

/* The reference first: the others are compared with it. */
static int try_window(wer_run *run) {
    wer_job *job = run->job;
    const shoal_status status =
        shoal_speech_features(job->speech, &run->recording, 0, run->features, NULL);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
    int code = try_kind(run, job->reference);
    for (int kind = 0; kind < job->kind_count && code == EXIT_OK && !stop_signal();
         kind++)
        if (kind != job->reference)
            code = try_kind(run, kind);
    return code;
}

static int count_errors(const wer_job *job, wer_window *window) {
    const char **references = malloc((size_t)window->count * sizeof *references);
    shoal_status status = references ? SHOAL_OK : SHOAL_NO_MEMORY;
    for (int i = 0; i < window->count && references; i++)
        references[i] = job->utterances[window->members[i]].text;
    for (int kind = 0; kind < job->kind_count && status == SHOAL_OK; kind++)
        status = shoal_count_part_errors(job->context, references, window->count,
                                         window->texts[kind], window->errors[kind]);
    free(references);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
}

/* ---- The run ----------------------------------------------------------------------- */

static int reserve_memory(wer_run *run) {
    wer_job *job = run->job;
    const shoal_speech_info info = shoal_speech_describe(job->speech);
    run->size = (int64_t)info.positions * info.width;
    const size_t bytes = (size_t)run->size * sizeof(float);
    run->features = malloc((size_t)info.mels * (size_t)info.frames * sizeof(float));
    run->exact = malloc(bytes);
    run->encoded = malloc(bytes);
    run->again = malloc(bytes);
    run->paths = malloc((size_t)job->utterance_count * sizeof *run->paths);
    bool good = run->features && run->exact && run->encoded && run->again && run->paths;
    for (int kind = 0; kind < job->kind_count; kind++) {
        wer_kind *k = &job->kinds[kind];
        k->output_errors = calloc((size_t)job->window_count, sizeof(double));
        good = good && k->output_errors;
    }
    return good ? EXIT_OK : complain(EXIT_RESOURCES, "wer", "out of memory");
}

static int do_window(wer_run *run, int at) {
    wer_job *job = run->job;
    run->window = &job->windows[at];
    for (int i = 0; i < run->window->count; i++)
        run->paths[i] = job->utterances[run->window->members[i]].path;
    run->recording =
        (shoal_recording){.paths = run->paths,
                          .files = run->window->count,
                          .gap = job->arrangements[run->window->arrangement].gap};
    int code = try_window(run);
    if (code == EXIT_OK && !stop_signal()) {
        code = count_errors(job, run->window);
        job->done++;
    }
    return code;
}

int wer_measure(wer_job *job) {
    wer_run run = {.job = job};
    const double begun = seconds_now();
    int code = reserve_memory(&run);
    watch_stop();
    for (int at = 0; at < job->window_count && code == EXIT_OK && !stop_signal(); at++)
        code = do_window(&run, at);
    job->interrupted = stop_signal() != 0;
    job->seconds = seconds_now() - begun;
    free(run.features);
    free(run.exact);
    free(run.encoded);
    free(run.again);
    free(run.paths);
    return code;
}
