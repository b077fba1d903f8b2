/* What is measured in which order: a window at a time, on which the kinds take turns,
   so that whatever else the machine does falls on all of them. A kind's encoder runs
   twice on a window: for the text, and then, warm, on the clock. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "wer.h"
#include <shoal_speech.h>

enum { WINDOW_SECONDS = 30 };

typedef struct {
    wer_job *job;
    wer_window *window;
    const char *paths[WER_MOST_PER_WINDOW];
    shoal_recording recording;
    int64_t size;                   /* of an encoder's output */
    float *features;                /* [mels][frames] */
    float *exact, *encoded, *again; /* [size] */
} wer_run;

/* ---- One kind on one window ----------------------------------------------------- */

static int fail_call(const wer_run *run, shoal_status status, const char *kind) {
    complain(EXIT_BAD_INPUT, "wer", "%s on %s:", kind, run->paths[0]);
    return complain_status(status, EXIT_BAD_INPUT, "wer", run->job->context);
}

static int collect(void *user, const shoal_segment *segment) {
    fprintf(user, "%s ", segment->text);
    return 0;
}

/* Greedy or beams at temperature 0; without timestamps unless one recording alone goes
   beyond the window. */
static shoal_status hear(const wer_run *run, char **text) {
    const wer_job *job = run->job;
    const bool longer = run->window->count == 1 && run->window->seconds >= WINDOW_SECONDS;
    const shoal_transcribe_options options = {.language = job->language,
                                              .beams = (int)job->beams,
                                              .no_timestamps = !longer,
                                              .no_fallback = 1};
    size_t size;
    shoal_transcription summary;
    FILE *to = open_memstream(text, &size);
    if (!to)
        return SHOAL_NO_MEMORY;
    const shoal_status status = shoal_speech_transcribe(job->speech, &run->recording,
                                                        &options, collect, to, &summary);
    fclose(to);
    if (status == SHOAL_OK && longer)
        run->window->seconds = summary.seconds;
    return status;
}

static double relative_error(const float *encoded, const float *exact, int64_t count) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double away = (double)encoded[i] - (double)exact[i];
        difference += away * away;
        size += (double)exact[i] * (double)exact[i];
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

/* Twice: a time counts only for a result that is the same again. */
static int time_encoder(wer_run *run, int kind, float *out) {
    wer_kind *k = &run->job->kinds[kind];
    const size_t bytes = (size_t)run->size * sizeof *out;
    shoal_status status = shoal_speech_encode(run->job->speech, run->features, out);
    const double begun = seconds_now();
    if (status == SHOAL_OK)
        status = shoal_speech_encode(run->job->speech, run->features, run->again);
    k->encoder_seconds[run->job->done] = seconds_now() - begun;
    if (status != SHOAL_OK)
        return fail_call(run, status, k->spelling);
    if (memcmp(out, run->again, bytes) != 0)
        return complain(EXIT_FAILURE, "wer",
                        "WRONG: %s on %s: the same call gave another output; please "
                        "report it",
                        k->spelling, run->paths[0]);
    return EXIT_OK;
}

static int try_kind(wer_run *run, int kind) {
    wer_job *job = run->job;
    wer_kind *k = &job->kinds[kind];
    float *out = kind == job->reference ? run->exact : run->encoded;
    progress_say("window %d of %d, %s", job->done + 1, job->window_count, k->spelling);
    shoal_status status = shoal_speech_set_attention(job->speech, k->spelling);
    if (status == SHOAL_OK)
        status = hear(run, &run->window->texts[kind]);
    if (status != SHOAL_OK)
        return fail_call(run, status, k->spelling);
    const int code = time_encoder(run, kind, out);
    if (code != EXIT_OK)
        return code;
    k->output_errors[job->done] = relative_error(out, run->exact, run->size);
    return EXIT_OK;
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

static int count_errors(wer_job *job, const wer_window *window) {
    for (int kind = 0; kind < job->kind_count; kind++) {
        const shoal_status status =
            shoal_count_word_errors(job->context, window->reference, window->texts[kind],
                                    &job->kinds[kind].errors);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
    }
    return EXIT_OK;
}

/* ---- The run -------------------------------------------------------------------- */

static int reserve_memory(wer_run *run) {
    wer_job *job = run->job;
    const shoal_speech_info info = shoal_speech_describe(job->speech);
    const size_t windows = (size_t)job->window_count;
    run->size = (int64_t)info.positions * info.width;
    const size_t bytes = (size_t)run->size * sizeof(float);
    run->features = malloc((size_t)info.mels * (size_t)info.frames * sizeof(float));
    run->exact = malloc(bytes);
    run->encoded = malloc(bytes);
    run->again = malloc(bytes);
    bool good = run->features && run->exact && run->encoded && run->again;
    for (int kind = 0; kind < job->kind_count; kind++) {
        job->kinds[kind].encoder_seconds = calloc(windows, sizeof(double));
        job->kinds[kind].output_errors = calloc(windows, sizeof(double));
        good = good && job->kinds[kind].encoder_seconds && job->kinds[kind].output_errors;
    }
    return good ? EXIT_OK : complain(EXIT_RESOURCES, "wer", "out of memory");
}

static int do_window(wer_run *run, int at) {
    wer_job *job = run->job;
    run->window = &job->windows[at];
    for (int i = 0; i < run->window->count; i++)
        run->paths[i] = job->utterances[run->window->first + i].path;
    run->recording = (shoal_recording){.paths = run->paths,
                                       .files = run->window->count,
                                       .gap = job->gap};
    int code = try_window(run);
    if (code == EXIT_OK && !stop_signal()) {
        code = count_errors(job, run->window);
        job->done++;
    }
    return code;
}

int wer_measure(wer_job *job) {
    wer_run run = {.job = job};
    int code = reserve_memory(&run);
    watch_stop();
    for (int at = 0; at < job->window_count && code == EXIT_OK && !stop_signal(); at++)
        code = do_window(&run, at);
    job->interrupted = stop_signal() != 0;
    free(run.features);
    free(run.exact);
    free(run.encoded);
    free(run.again);
    return code;
}
