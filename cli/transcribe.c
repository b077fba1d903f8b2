/* shoal transcribe: converts recordings to text. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"
#include "transcribe_forms.h"
#include <shoal_speech.h>

/* ---- Options -------------------------------------------------------------------- */

bool parse_language(const char *command, const char *text, const char **language) {
    *language = strcmp(text, "auto") == 0 ? NULL : text;
    if (!*language || shoal_speech_language(text))
        return true;
    complain(EXIT_USAGE, command,
             "--language is \"%s\"; give a code or an English name, such as de or "
             "german, or auto",
             text);
    return false;
}

enum { MOST_BEAMS = 64, MOST_BATCH = 64, FALLBACK_SAMPLES = 5 };

typedef struct {
    const char *model, *attention, *isa, *folder;
    int form, precision;
    int64_t beams, batch, threads, rate, line_width, line_count;
    double offset, duration;
    shoal_transcribe_options options;
    bool no_timestamps, no_context, no_fallback, no_vad, published, exact;
    bool words, colors, partial, force, quiet;
    bool warned;            /* about the error of the attention */
    int spool;              /* copy of standard input; -1 if none */
    char spooled[PATH_MAX]; /* path of the copy */

    shoal_context *context;
    shoal_speech *speech;
    char **paths;           /* [recordings] */
    int number, recordings; /* index of the current recording, and their number */
    const char *path;       /* of the current recording */
    double begun;           /* start time */
    double heard;           /* seconds of the recordings before it */
    int code;
    transcript out;
} transcribe_job;

static bool take_language(void *job, const char *name, const char *value) {
    (void)name;
    return parse_language("transcribe", value,
                          &((transcribe_job *)job)->options.language);
}

/* --output used to name the format; in other commands it names a file. */
static bool take_old_format(void *job, const char *name, const char *value) {
    for (int form = 0; transcript_forms[form]; form++)
        if (strcmp(value, transcript_forms[form]) == 0) {
            ((transcribe_job *)job)->form = form;
            return true;
        }
    complain(EXIT_USAGE, "transcribe",
             "--%s is \"%s\"; use --out DIR for the folder and --format FORM for the "
             "format of transcripts",
             name, value);
    return false;
}

static bool take_seconds(const char *name, const char *value, double *seconds) {
    char *rest;
    *seconds = strtod(value, &rest);
    if (rest != value && !*rest && *seconds >= 0 && *seconds <= 1e9)
        return true;
    complain(EXIT_USAGE, "transcribe",
             "--%s is \"%s\"; give a number of seconds, 0 or more", name, value);
    return false;
}

static bool take_offset(void *job, const char *name, const char *value) {
    return take_seconds(name, value, &((transcribe_job *)job)->offset);
}

static bool take_duration(void *job, const char *name, const char *value) {
    return take_seconds(name, value, &((transcribe_job *)job)->duration);
}

static const char *const tasks[] = {"transcribe", "translate", NULL};

static const option_row rows[] =
    {{"model", 'm', "MODEL",
      "model: a ggml file or a Hugging Face folder\n"
      "(default: the environment variable SHOAL_SPEECH_MODEL, else\n"
      "SHOAL_MODEL)",
      SETS_TEXT(transcribe_job, model)},
     {"attention", 'a', "KIND",
      "attention kind of the encoder, as in shoal kinds\n"
      "(default: full)",
      SETS_TEXT(transcribe_job, attention)},
     {"force", 0, NULL,
      "allow kinds that use the queries as keys (lsh, shared-full),\n"
      "which give meaningless text",
      SETS_FLAG(transcribe_job, force)},
     {"language", 'l', "L",
      "code or English name of the spoken language, or auto to detect\n"
      "it from the first 30 s (default: auto)",
      TAKEN_BY(take_language)},
     {"task", 't', "TASK", "transcribe, or translate into English (default: transcribe)",
      SETS_CHOICE(transcribe_job, options.translate, tasks)},
     {"beam-size", 'b', "B", "beam size, 1 to 64; 1 is greedy decoding (default: 1)",
      SETS_INTEGER(transcribe_job, beams, 1, MOST_BEAMS)},
     {"batch", 0, "B",
      "number of windows processed in parallel, 1 to 64; the text does\n"
      "not depend on it (default: 16, or as many as fit into 256 MiB)",
      SETS_INTEGER(transcribe_job, batch, 1, MOST_BATCH)},
     {"format", 'f', "FORM", "txt, srt, vtt, json, csv or lrc (default: txt)",
      SETS_CHOICE(transcribe_job, form, transcript_forms)},
     {"words", 'w', NULL,
      "add the time and probability of each word: fields in json and\n"
      "csv, one cue per word in srt, times inside lines in vtt and lrc",
      SETS_FLAG(transcribe_job, words)},
     {"max-line-width", 0, "N",
      "srt and vtt: maximum characters per line, or 0 for no limit\n"
      "(default: 42); lines break at punctuation and between words",
      SETS_INTEGER(transcribe_job, line_width, 0, 10000)},
     {"max-line-count", 0, "N",
      "srt and vtt: maximum lines per cue; longer segments become\n"
      "several cues, each with the times of its words (default: 2)",
      SETS_INTEGER(transcribe_job, line_count, 1, 100)},
     {"print-colors", 0, NULL,
      "on a terminal: color words from red to green by probability",
      SETS_FLAG(transcribe_job, colors)},
     {"out", 'o', "DIR",
      "write NAME.FORM into this folder for each recording NAME, instead\n"
      "of to standard output; created if it is missing",
      SETS_TEXT(transcribe_job, folder)},
     {"prompt", 0, "TEXT",
      "text that each window gets as preceding text, such as expected\n"
      "names and spellings",
      SETS_TEXT(transcribe_job, options.prompt)},
     {"offset", 0, "SECONDS", "start of the part to transcribe (default: 0)",
      TAKEN_BY(take_offset)},
     {"duration", 0, "SECONDS",
      "length of the part to transcribe (default: 0, to the end)",
      TAKEN_BY(take_duration)},
     {"rate", 0, "HZ",
      "standard input has 16-bit samples, one channel, at this rate in\n"
      "Hz, instead of a recording",
      SETS_INTEGER(transcribe_job, rate, 1000, 768000)},
     {"no-vad", 0, NULL,
      "do not detect speech first: windows follow each other, and each\n"
      "gets the preceding text as context",
      SETS_FLAG(transcribe_job, no_vad)},
     {"published", 0, NULL,
      "--no-vad with exactly the published rules of Whisper's decoding",
      SETS_FLAG(transcribe_job, published)},
     PRECISION_ROW(transcribe_job, precision),
     EXACT_ROW(transcribe_job, exact),
     {"no-timestamps", 0, NULL,
      "decode without timestamps: one segment per 30 s; windows do not\n"
      "start at the end of the last words",
      SETS_FLAG(transcribe_job, no_timestamps)},
     {"no-context", 0, NULL, "with --no-vad: do not pass preceding text to windows",
      SETS_FLAG(transcribe_job, no_context)},
     {"no-fallback", 0, NULL,
      "temperature 0 only, with text for every window that is not\n"
      "completely silent",
      SETS_FLAG(transcribe_job, no_fallback)},
     {"partial", 0, NULL,
      "transcribe the available part of truncated recordings instead of\n"
      "rejecting them",
      SETS_FLAG(transcribe_job, partial)},
     {"seed", 0, "S", "seed for sampling at higher temperatures (default: 0)",
      SETS_SEED(transcribe_job, options.seed)},
     THREADS_ROW(transcribe_job),
     ISA_ROW(transcribe_job),
     {"quiet", 'q', NULL, "print no summary on standard error",
      SETS_FLAG(transcribe_job, quiet)},
     HELP_ROW,
     {"output", 0, "FORM", NULL, TAKEN_BY(take_old_format)},
     {0}};

const command_help transcribe_help = {
    "transcribe",
    "transcribe FILE... --model MODEL [options]",
    "Transcribes recordings with a Whisper model and any kind of attention in its "
    "encoder.\n"
    "FILE is WAV, FLAC, OGG or MP3 of any sample rate, number of channels and length; - "
    "is\n"
    "standard input, up to SHOAL_STDIN_MIB MiB (default: 4096).\n",
    rows,
    "Speech is detected first and packed into windows of 30 s, which are processed in\n"
    "parallel. Timestamps come in pairs, and non-speech symbols are suppressed. A text\n"
    "that repeats itself (compression ratio above 2.4), is improbable (mean\n"
    "log-probability below -1) or is too short is decoded again at higher temperatures\n"
    "(0.2 ... 1, the best of 5). A window is dropped if silence is probable (above 0.6)\n"
    "and its text is not. If a text ends before the speech does, the remaining speech "
    "is\n"
    "processed again. A recording that cannot be read is reported, and the others are\n"
    "transcribed.\n",
    "FILE"};

/* ---- Standard input as a recording ------------------------------------------------- */

static bool is_standard_input(const char *path) {
    return strcmp(path, "-") == 0;
}

static bool write_all(int to, const void *bytes, size_t size) {
    const char *at = bytes;
    while (size > 0) {
        const ssize_t written = write(to, at, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        size -= (size_t)written;
    }
    return true;
}

static void put_number(unsigned char *to, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

/* Header of a WAV file of unknown length. */
static bool write_header(int to, int64_t rate) {
    unsigned char header[44] = "RIFF    WAVEfmt                     data";
    put_number(header + 4, 4, UINT32_MAX);
    put_number(header + 16, 4, 16);
    put_number(header + 20, 2, 1); /* PCM */
    put_number(header + 22, 2, 1); /* one channel */
    put_number(header + 24, 4, (uint64_t)rate);
    put_number(header + 28, 4, 2 * (uint64_t)rate);
    put_number(header + 32, 2, 2);
    put_number(header + 34, 2, 16);
    put_number(header + 40, 4, UINT32_MAX);
    return write_all(to, header, sizeof header);
}

/* Limit on bytes of standard input: it is copied to disk, and may be an endless
   stream. */
static int64_t spool_limit(void) {
    const char *text = getenv("SHOAL_STDIN_MIB");
    const long given = text ? strtol(text, NULL, 10) : 0;
    return (int64_t)(given > 0 && given <= 1 << 30 ? given : 4096) << 20;
}

/* Copies up to the end, or the first `wanted` bytes. Returns an exit code, after a
   message if it is not EXIT_OK. */
static int copy_input(int to, const char *path, int64_t wanted) {
    static char block[1 << 16];
    const int64_t most = spool_limit();
    for (int64_t copied = 0; copied < wanted;) {
        const ssize_t got = read(STDIN_FILENO, block, sizeof block);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return complain(EXIT_BAD_INPUT, "transcribe",
                            "standard input cannot be read: %s", strerror(errno));
        if (got == 0)
            break;
        copied += got;
        if (copied > most)
            return complain(EXIT_RESOURCES, "transcribe",
                            "standard input has more than %lld MiB, which are kept in "
                            "%.*s until it ends; use --duration SECONDS with --rate for "
                            "the beginning of a stream, or set SHOAL_STDIN_MIB",
                            (long long)(most >> 20), (int)(strrchr(path, '/') - path),
                            path);
        if (!write_all(to, block, (size_t)got))
            return complain(EXIT_RESOURCES, "transcribe",
                            "%s, a copy of standard input, cannot be written: %s", path,
                            strerror(errno));
    }
    return EXIT_OK;
}

/* Copies standard input into an unlinked file in TMPDIR or /tmp. rate 0: a recording in
   any supported format; otherwise 16-bit little-endian samples of one channel, of which
   only the requested part is read. Returns an exit code, after a message if it is not
   EXIT_OK. */
static int spool_input(transcribe_job *job) {
    char path[sizeof job->spooled];
    const char *folder = getenv("TMPDIR");
    const double seconds = job->offset + job->duration;
    const int64_t wanted = job->rate > 0 && job->duration > 0 && seconds < 1e9
                               ? (int64_t)ceil(seconds * (double)job->rate) * 2
                               : INT64_MAX;
    snprintf(path, sizeof path, "%s/shoal-XXXXXX", folder && *folder ? folder : "/tmp");
    job->spool = mkstemp(path);
    if (job->spool >= 0)
        unlink(path); /* the file disappears when it is closed */
    if (job->spool < 0 || (job->rate > 0 && !write_header(job->spool, job->rate)))
        return complain(EXIT_RESOURCES, "transcribe",
                        "%s, a copy of standard input, cannot be written: %s", path,
                        strerror(errno));
    snprintf(job->spooled, sizeof job->spooled, "/proc/self/fd/%d", job->spool);
    return copy_input(job->spool, path, wanted);
}

/* Prints the context's message, with the path of the copy replaced by "standard
   input". */
static int complain_of(const transcribe_job *job, shoal_status status) {
    char *text = NULL;
    size_t size = 0;
    const char *message = shoal_context_message(job->context), *found;
    const size_t length = strlen(job->spooled);
    FILE *to = length > 0 && strstr(message, job->spooled) ? open_memstream(&text, &size)
                                                           : NULL;
    if (!to)
        return complain_status(status, EXIT_BAD_INPUT, "transcribe", job->context);
    for (; (found = strstr(message, job->spooled)); message = found + length) {
        const bool argument = found - message > 2 && strncmp(found - 3, "-i ", 3) == 0;
        fprintf(to, "%.*s%s", (int)(found - message), message,
                argument ? "-" : "standard input");
    }
    fputs(message, to);
    fclose(to);
    const int code = complain(status == SHOAL_NO_MEMORY ? EXIT_RESOURCES : EXIT_BAD_INPUT,
                              "transcribe", "%s", text ? text : "out of memory");
    free(text);
    return code;
}

/* ---- Destinations --------------------------------------------------------------- */

static void destination(const transcribe_job *job, const char *path, char *into,
                        size_t size) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *point = strrchr(name, '.');
    const int length = point && point != name ? (int)(point - name) : (int)strlen(name);
    if (is_standard_input(path))
        snprintf(into, size, "%s/stdin.%s", job->folder, transcript_forms[job->form]);
    else
        snprintf(into, size, "%s/%.*s.%s", job->folder, length, name,
                 transcript_forms[job->form]);
}

static int check_names(const transcribe_job *job, int count, char **paths) {
    char into[PATH_MAX];
    int code = EXIT_OK;
    for (int i = 0; i < count && code == EXIT_OK; i++)
        if (!is_standard_input(paths[i]))
            code = will_read("transcribe", paths[i]);
    for (int i = 0; i < count && code == EXIT_OK; i++) {
        destination(job, paths[i], into, sizeof into);
        code = will_write("transcribe", into);
    }
    return code;
}

static int make_folder(const char *path) {
    struct stat information;
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return complain(EXIT_RESOURCES, "transcribe", "%s cannot be made: %s", path,
                        strerror(errno));
    if (stat(path, &information) == 0 && !S_ISDIR(information.st_mode))
        return complain(
            EXIT_RESOURCES, "transcribe",
            "--out %s is a file; give a folder, which gets one file per recording", path);
    if (access(path, W_OK | X_OK) != 0)
        return complain(EXIT_RESOURCES, "transcribe", "%s cannot be written to: %s", path,
                        strerror(errno));
    return EXIT_OK;
}

static int check_destinations(const transcribe_job *job, int count, char **paths) {
    if (!job->folder) {
        if (count > 1 && job->form != FORM_TXT)
            return complain(EXIT_USAGE, "transcribe",
                            "several recordings with the format %s need --out DIR",
                            transcript_forms[job->form]);
        return EXIT_OK;
    }
    int code = make_folder(job->folder);
    if (code == EXIT_OK)
        code = will_read("transcribe", job->model);
    return code == EXIT_OK ? check_names(job, count, paths) : code;
}

/* ---- One recording -------------------------------------------------------------- */

/* Attention with a large error gives fluent but wrong text. */
static void warn_of_attention(transcribe_job *job) {
    const double most = 0.2, error = shoal_speech_attention_error(job->speech);
    if (job->warned || !(error > most))
        return;
    job->warned = true;
    complain(EXIT_OK, "transcribe",
             "warning: the error of the encoder's attention with %s is %.2f of its norm "
             "in the first window; above %.1f the text is unreliable. Use shoal or auto, "
             "which keep the words, or full, which is exact",
             job->attention, error, most);
}

static int take_segment(void *user, const shoal_segment *segment) {
    transcribe_job *job = user;
    warn_of_attention(job);
    if (job->out.to == stdout)
        progress_end(); /* the warning replaces the progress line, which is drawn again */
    transcript_add(&job->out, segment);
    return 0;
}

static void show_progress(void *user, double done, double all) {
    const transcribe_job *job = user;
    const double heard = done - job->offset, taken = seconds_now() - job->begun;
    const double speed = taken > 0 ? (job->heard + heard) / taken : 0;
    const double left = speed > 0 ? (all - done) / speed : 0;
    progress_begin(1);
    progress_say("%d of %d, %.0f of %.0f s, %.1f times real time, %.0f:%02d left: %s",
                 job->number + 1, job->recordings, done, all, speed, floor(left / 60),
                 (int)fmod(left, 60), job->path);
}

static json_t *details(const transcribe_job *job, const shoal_transcription *summary,
                       double seconds) {
    return json_pack("{s:o, s:o, s:s, s:s?, s:o, s:s, s:f, s:f, s:f, s:f, s:f, s:I, s:I, "
                     "s:I}",
                     "file", json_text(job->path), "model", json_text(job->model),
                     "attention", job->attention ? job->attention : "full", "language",
                     *summary->language ? summary->language : NULL,
                     "language_probability", json_number(summary->language_probability),
                     "task", job->options.translate ? "translate" : "transcribe",
                     "duration", summary->seconds, "seconds", seconds, "encoder_seconds",
                     summary->encoder_seconds, "decoder_seconds",
                     summary->decoder_seconds, "real_time_factor",
                     summary->seconds > 0 ? seconds / summary->seconds : 0, "windows",
                     (json_int_t)summary->windows, "fallbacks",
                     (json_int_t)summary->fallbacks, "silent_windows",
                     (json_int_t)summary->silent);
}

static void report(const transcribe_job *job, const shoal_transcription *summary,
                   double seconds) {
    if (job->quiet)
        return;
    char probability[32] = "";
    if (*summary->language && summary->language_probability < 1)
        snprintf(probability, sizeof probability, " (%.2f)",
                 summary->language_probability);
    tell("%s: %.1f s of audio in %.2f s, real-time factor %.3f (encoder %.2f s, decoder "
         "%.2f s); %s%s%s",
         job->path, summary->seconds, seconds,
         summary->seconds > 0 ? seconds / summary->seconds : 0, summary->encoder_seconds,
         summary->decoder_seconds, *summary->language ? "language " : "no speech",
         summary->language, probability);
}

static int finish(transcribe_job *job, const shoal_transcription *summary,
                  double seconds) {
    char path[PATH_MAX];
    if (!transcript_end(&job->out, details(job, summary, seconds)))
        return complain(EXIT_RESOURCES, "transcribe",
                        "the transcript of %s could not be written", job->path);
    if (job->folder) {
        destination(job, job->path, path, sizeof path);
        const int code = transcript_save(&job->out, path);
        if (code != EXIT_OK)
            return code;
    }
    report(job, summary, seconds);
    return EXIT_OK;
}

/* Begins the transcript of the next recording. */
static bool start(transcribe_job *job) {
    job->path = job->paths[job->number];
    job->out = (transcript){.form = job->form,
                            .words = job->words,
                            .colors = job->colors,
                            .line_width = job->line_width ? job->line_width : INT64_MAX,
                            .line_count = job->line_count};
    if (!transcript_begin(&job->out, job->folder != NULL)) {
        job->code = complain(EXIT_RESOURCES, "transcribe", "out of memory");
        return false;
    }
    if (job->recordings > 1 && !job->folder && job->form == FORM_TXT)
        printf("%s:\n", job->path);
    progress_begin(1);
    progress_say("%d of %d: %s", job->number + 1, job->recordings, job->path);
    return true;
}

/* Recordings processed together share the time in proportion to the model's work. */
static int end_recording(void *user, int index, shoal_status status,
                         const shoal_transcription *summary) {
    transcribe_job *job = user;
    const double seconds = job->recordings == 1
                               ? seconds_now() - job->begun
                               : summary->encoder_seconds + summary->decoder_seconds;
    progress_end();
    warn_of_attention(job);
    const int code = status == SHOAL_OK ? finish(job, summary, seconds)
                                        : complain_of(job, status);
    transcript_drop(&job->out);
    job->code = job->code == EXIT_OK ? code : job->code;
    job->heard += summary->seconds;
    job->number = index + 1;
    return job->number < job->recordings && !start(job);
}

static void hear(transcribe_job *job, const shoal_recording *recordings) {
    job->begun = seconds_now();
    if (!start(job))
        return;
    const shoal_status status =
        shoal_speech_transcribe_all(job->speech, recordings, job->recordings,
                                    &job->options, take_segment, end_recording, job);
    progress_end();
    if (status != SHOAL_OK) {
        job->code = complain_of(job, status);
        transcript_drop(&job->out);
    } else if (job->recordings > 1 && !job->quiet) {
        const double taken = seconds_now() - job->begun;
        tell("%d recordings: %.1f s of audio in %.2f s, real-time factor %.3f",
             job->recordings, job->heard, taken, job->heard > 0 ? taken / job->heard : 0);
    }
}

/* Standard input is copied to a file first. */
static int hear_all(transcribe_job *job) {
    const char *standard = job->spooled;
    shoal_recording *recordings = calloc((size_t)job->recordings, sizeof *recordings);
    if (!recordings)
        return complain(EXIT_RESOURCES, "transcribe", "out of memory");
    for (int i = 0; i < job->recordings && job->code == EXIT_OK; i++) {
        const bool input = is_standard_input(job->paths[i]);
        if (input)
            job->code = spool_input(job);
        recordings[i] =
            (shoal_recording){.size = sizeof(shoal_recording),
                              .paths = input ? &standard
                                             : (const char *const *)&job->paths[i],
                              .files = 1,
                              .partial = job->partial,
                              .offset = job->offset,
                              .duration = job->duration};
    }
    if (job->code == EXIT_OK)
        hear(job, recordings);
    if (job->spool >= 0)
        close(job->spool);
    free(recordings);
    return job->code;
}

/* ---- The command ---------------------------------------------------------------- */

/* A misspelt kind is a usage error, reported before a model is opened. */
static int check_attention(const transcribe_job *job) {
    shoal_attention parsed;
    if (!job->attention)
        return EXIT_OK;
    const shoal_status status =
        shoal_attention_parse(job->context, job->attention, &parsed);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_USAGE, "transcribe", job->context);
}

static int check_input(const transcribe_job *job, int count, char **paths) {
    int standard = 0;
    for (int i = 0; i < count; i++)
        standard += is_standard_input(paths[i]);
    if (standard > 1)
        return complain(EXIT_USAGE, "transcribe", "standard input, -, is given twice");
    if (job->rate && !standard)
        return complain(EXIT_USAGE, "transcribe",
                        "--rate describes samples on standard input; give - as FILE");
    return EXIT_OK;
}

static int run(transcribe_job *job, int count, char **paths) {
    if (count == 0)
        return complain(EXIT_USAGE, "transcribe",
                        "no recording was given; usage: shoal %s", transcribe_help.usage);
    if (!job->model || !*job->model)
        return complain(EXIT_USAGE, "transcribe", NO_SPEECH_MODEL);
    int code = check_input(job, count, paths);
    if (code == EXIT_OK)
        code = open_context("transcribe", (int)job->threads, job->isa, &job->context);
    if (code == EXIT_OK)
        code = check_attention(job);
    if (code == EXIT_OK)
        code = check_destinations(job, count, paths);
    if (code == EXIT_OK) {
        const bool samples = !job->options.no_fallback;
        const int64_t beams = samples && job->beams < FALLBACK_SAMPLES ? FALLBACK_SAMPLES
                                                                       : job->beams;
        const shoal_speech_options options = {.size = sizeof(shoal_speech_options),
                                              .attention = job->attention,
                                              .beams = (int)beams,
                                              .force = job->force,
                                              .batch = (int)job->batch,
                                              .precision = job->exact
                                                               ? SHOAL_PRECISION_FLOAT32
                                                               : job->precision};
        progress_begin(1);
        progress_say("opening %s", job->model);
        const shoal_status status =
            shoal_speech_open(job->context, job->model, &options, &job->speech);
        progress_end();
        code =
            status == SHOAL_OK
                ? EXIT_OK
                : complain_status(status,
                                  status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT,
                                  "transcribe", job->context);
    }
    job->paths = paths;
    job->recordings = count;
    if (code == EXIT_OK)
        code = hear_all(job);
    shoal_speech_destroy(job->speech);
    shoal_context_destroy(job->context);
    return code;
}

int transcribe_command(int count, char **arguments) {
    transcribe_job job = {.model = default_model("SHOAL_SPEECH_MODEL"),
                          .beams = 1,
                          .line_width = 42,
                          .line_count = 2,
                          .spool = -1};
    const int ended = take_options(&transcribe_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    job.options.size = sizeof job.options;
    job.options.beams = (int)job.beams;
    job.options.no_timestamps = job.no_timestamps;
    job.options.no_context = job.no_context;
    job.options.no_fallback = job.no_fallback;
    job.options.no_vad = job.no_vad;
    job.options.published = job.published;
    job.colors = job.colors && job.form == FORM_TXT && !job.folder &&
                 isatty(STDOUT_FILENO);
    const bool cues = job.form == FORM_SRT || job.form == FORM_VTT;
    job.options.words = job.words || job.colors || (cues && job.line_width > 0);
    job.options.progress = show_progress;
    return run(&job, count - optind, arguments + optind);
}
