/* shoal transcribe: recordings become text, SubRip, WebVTT or JSON. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include <shoal_speech.h>

/* ---- Transcripts on their way out ----------------------------------------------- */

enum { FORM_TXT, FORM_SRT, FORM_VTT, FORM_JSON };
/* As options spell them, and as files end. */
static const char *const transcript_forms[] = {"txt", "srt", "vtt", "json", NULL};

/* One recording's transcript on its way out: to stdout as it comes, or to memory that
   becomes a file at the end. */
typedef struct {
    int form;
    FILE *to;
    int64_t segments;
    json_t *list; /* FORM_JSON: the segments so far */
    char *text;   /* what was collected for a file */
    size_t size;
} transcript;

/* Into a file at the end, or to stdout at once. False when memory ran out. */
static bool transcript_begin(transcript *t, bool into_file) {
    t->to = into_file ? open_memstream(&t->text, &t->size) : stdout;
    t->list = t->form == FORM_JSON ? json_array() : NULL;
    if (!t->to || (t->form == FORM_JSON && !t->list))
        return false;
    if (t->form == FORM_VTT)
        fputs("WEBVTT\n\n", t->to);
    return true;
}

/* 01:02:03,004 */
static void print_time(FILE *to, double seconds, char point) {
    const int64_t ms = (int64_t)llround(seconds * 1000);
    fprintf(to, "%02" PRId64 ":%02" PRId64 ":%02" PRId64 "%c%03" PRId64, ms / 3600000,
            ms / 60000 % 60, ms / 1000 % 60, point, ms % 1000);
}

/* One line without spaces around it; an arrow would end a cue, and WebVTT has marks of
   its own. */
static void print_line(const transcript *t, const char *text) {
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]))
        length--;
    const char *end = text + length;
    for (text += strspn(text, " \t\r\n"); text < end; text++) {
        const bool cue = t->form == FORM_SRT || t->form == FORM_VTT;
        if ((unsigned char)*text < ' ' || *text == 0x7f) /* tokens may be any bytes */
            fputc(' ', t->to);
        else if (cue && strncmp(text, "-->", 3) == 0)
            fputs("-", t->to), text++;
        else if (t->form == FORM_VTT && *text == '&')
            fputs("&amp;", t->to);
        else if (t->form == FORM_VTT && *text == '<')
            fputs("&lt;", t->to);
        else
            fputc(*text, t->to);
    }
    fputc('\n', t->to);
}

static void print_cue(const transcript *t, const shoal_segment *segment) {
    const char point = t->form == FORM_SRT ? ',' : '.';
    if (t->form == FORM_SRT)
        fprintf(t->to, "%" PRId64 "\n", t->segments);
    print_time(t->to, segment->begin, point);
    fputs(" --> ", t->to);
    print_time(t->to, segment->end, point);
    fputc('\n', t->to);
    print_line(t, segment->text);
    fputc('\n', t->to);
}

static void add_object(const transcript *t, const shoal_segment *segment) {
    json_t *ids = json_array();
    for (int64_t i = 0; i < segment->token_count; i++)
        json_array_append_new(ids, json_integer(segment->tokens[i]));
    json_array_append_new(t->list,
                          json_pack("{s:I, s:f, s:f, s:o, s:o, s:f, s:o, s:o, s:o}", "id",
                                    (json_int_t)t->segments - 1, "start", segment->begin,
                                    "end", segment->end, "text", json_text(segment->text),
                                    "tokens", ids, "temperature", segment->temperature,
                                    "mean_logprob", json_number(segment->mean_logprob),
                                    "compression_ratio",
                                    json_number(segment->compression), "no_speech",
                                    json_number(segment->no_speech)));
}

static void transcript_add(transcript *t, const shoal_segment *segment) {
    t->segments++;
    if (t->form == FORM_JSON)
        add_object(t, segment);
    else if (t->form == FORM_TXT)
        print_line(t, segment->text);
    else
        print_cue(t, segment);
    if (t->to == stdout)
        fflush(stdout);
}

/* All segments' texts, as one. */
static json_t *whole_text(const json_t *list) {
    char *text = NULL;
    size_t size = 0, index;
    json_t *segment;
    FILE *to = open_memstream(&text, &size);
    if (!to)
        return json_string("");
    json_array_foreach(list, index, segment)
        fputs(json_string_value(json_object_get(segment, "text")), to);
    fclose(to);
    json_t *value = json_string(text + strspn(text, " "));
    free(text);
    return value ? value : json_string("");
}

/* The rest; `details` (a JSON object, dropped here) heads the JSON form. False when it
   could not be written. */
static bool transcript_end(transcript *t, json_t *details) {
    bool good = true;
    if (t->form == FORM_JSON) {
        json_object_set_new(details, "text", whole_text(t->list));
        json_object_set(details, "segments", t->list);
        good = json_dumpf(details, t->to, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
               fputc('\n', t->to) != EOF;
    }
    json_decref(details);
    if (t->to == stdout)
        return fflush(stdout) == 0 && !ferror(stdout) && good;
    good = fclose(t->to) == 0 && good;
    t->to = NULL;
    return good;
}

static void transcript_drop(transcript *t) {
    json_decref(t->list);
    if (t->to && t->to != stdout)
        fclose(t->to);
    free(t->text);
    *t = (transcript){0};
}

/* Writes the collected text through a temporary file. Exit code, after a complaint. */
static int transcript_save(const transcript *t, const char *path) {
    replacement to;
    FILE *file = replace_begin(&to, path);
    if (file && replace_end(&to, fwrite(t->text, 1, t->size, file) == t->size))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "transcribe", "%s cannot be written: %s", path,
                    strerror(errno));
}

/* ---- Options -------------------------------------------------------------------- */

bool parse_language(const char *command, const char *text, const char **language) {
    *language = strcmp(text, "auto") == 0 ? NULL : text;
    if (!*language || shoal_speech_language(text))
        return true;
    complain(EXIT_USAGE, command,
             "--language is \"%s\"; it must be a code or an English name, such as de or "
             "german, or auto",
             text);
    return false;
}

enum { MOST_BEAMS = 64, FALLBACK_SAMPLES = 5 };

typedef struct {
    const char *model, *attention, *isa, *folder;
    int form;
    int64_t beams, batch, threads;
    shoal_transcribe_options options;
    bool no_timestamps, no_context, no_fallback, partial, force, quiet;
    bool no_vad, published, exact;

    shoal_context *context;
    shoal_speech *speech;
    const char *path;       /* of the recording at work, */
    int number, recordings; /* which it is, from 1, of how many */
    transcript out;
} transcribe_job;

static bool take_language(void *job, const char *name, const char *value) {
    (void)name;
    return parse_language("transcribe", value,
                          &((transcribe_job *)job)->options.language);
}

/* --output was the format once; in other commands it is a file. */
static bool take_old_format(void *job, const char *name, const char *value) {
    for (int form = 0; transcript_forms[form]; form++)
        if (strcmp(value, transcript_forms[form]) == 0) {
            ((transcribe_job *)job)->form = form;
            return true;
        }
    complain(EXIT_USAGE, "transcribe",
             "--%s is \"%s\"; --out DIR says where texts go, --format FORM what they are",
             name, value);
    return false;
}

static const char *const tasks[] = {"transcribe", "translate", NULL};

static const option_row rows[] =
    {{"model", 'm', "MODEL",
      "model: a ggml file (f32 or f16) or a Hugging Face folder\n"
      "(default: the environment variable SHOAL_MODEL)",
      SETS_TEXT(transcribe_job, model)},
     {"attention", 'a', "KIND",
      "attention of the encoder, as shoal kinds spells it\n"
      "(default: full)",
      SETS_TEXT(transcribe_job, attention)},
     {"force", 0, NULL,
      "also kinds that take the queries as keys (lsh, shared-full),\n"
      "though no sense can come of them",
      SETS_FLAG(transcribe_job, force)},
     {"language", 'l', "L",
      "code or English name of the language spoken, or auto, which\n"
      "listens to the first 30 s (default: auto)",
      TAKEN_BY(take_language)},
     {"task", 't', "TASK", "transcribe, or translate into English (default: transcribe)",
      SETS_CHOICE(transcribe_job, options.translate, tasks)},
     {"beam-size", 'b', "B",
      "texts that are followed side by side, 1 to 64; 1 is greedy\n"
      "(default: 1)",
      SETS_INTEGER(transcribe_job, beams, 1, MOST_BEAMS)},
     {"format", 'f', "FORM", "txt, srt, vtt or json (default: txt)",
      SETS_CHOICE(transcribe_job, form, transcript_forms)},
     {"out", 'o', "DIR",
      "write NAME.FORM there for each recording NAME, instead of to\n"
      "standard output; made if it is missing",
      SETS_TEXT(transcribe_job, folder)},
     {"no-timestamps", 0, NULL,
      "decode without times: one segment per 30 s; windows do\n"
      "not begin where the last words ended",
      SETS_FLAG(transcribe_job, no_timestamps)},
     {"batch", 0, "B",
      "windows that run side by side, 1 to 64 (default: 16, or\n"
      "fewer where their sound would take more than 256 MiB);\n"
      "the text does not depend on it",
      SETS_INTEGER(transcribe_job, batch, 0, 64)},
     {"no-vad", 0, NULL,
      "do not look for speech first: window follows upon window,\n"
      "each told what was said before",
      SETS_FLAG(transcribe_job, no_vad)},
     {"published", 0, NULL,
      "--no-vad by the rules that were published with the model,\n"
      "and no others",
      SETS_FLAG(transcribe_job, published)},
     {"exact", 0, NULL, "the decoder keeps what it hears as float32, not as halves",
      SETS_FLAG(transcribe_job, exact)},
     {"no-context", 0, NULL, "with --no-vad: windows are not told what was said before",
      SETS_FLAG(transcribe_job, no_context)},
     {"no-fallback", 0, NULL,
      "temperature 0 only, and words for all but windows without\n"
      "any sound",
      SETS_FLAG(transcribe_job, no_fallback)},
     {"partial", 0, NULL,
      "of recordings that were cut short, take what is there\n"
      "instead of refusing them",
      SETS_FLAG(transcribe_job, partial)},
     {"seed", 0, "S", "seed of the fallback's samples (default: 0)",
      SETS_SEED(transcribe_job, options.seed)},
     THREADS_ROW(transcribe_job),
     ISA_ROW(transcribe_job),
     {"quiet", 'q', NULL, "no summary on standard error",
      SETS_FLAG(transcribe_job, quiet)},
     HELP_ROW,
     {"output", 0, "FORM", NULL, TAKEN_BY(take_old_format)},
     {0}};

const command_help transcribe_help = {
    "transcribe",
    "transcribe FILE... --model MODEL [options]",
    "Text of recordings by a Whisper model, with any kind of attention in its encoder.\n"
    "FILE is WAV, FLAC, OGG or MP3, of any rate and number of channels and any length.\n",
    rows,
    "Speech is found first and packed into windows of 30 s, which run side by side.\n"
    "Timestamps come in pairs, symbols nobody speaks are left out, a text that repeats\n"
    "itself (compression above 2.4), is unlikely (mean log-probability below -1) or\n"
    "says too little is decoded again at higher temperatures (0.2 ... 1, the best of\n"
    "5), silence is left out where it is likely (above 0.6) and the words are not, and\n"
    "where a text ends before the speech does, the rest is heard again. A recording "
    "that\n"
    "cannot be read does not keep the others from being transcribed.\n",
    "FILE"};

/* ---- Destinations --------------------------------------------------------------- */

/* DIR/NAME.FORM for .../NAME.flac. */
static void destination(const transcribe_job *job, const char *path, char *into,
                        size_t size) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *point = strrchr(name, '.');
    const int length = point && point != name ? (int)(point - name) : (int)strlen(name);
    snprintf(into, size, "%s/%.*s.%s", job->folder, length, name,
             transcript_forms[job->form]);
}

static int check_names(const transcribe_job *job, int count, char **paths) {
    char into[PATH_MAX];
    int code = EXIT_OK;
    for (int i = 0; i < count && code == EXIT_OK; i++)
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
        return complain(EXIT_RESOURCES, "transcribe",
                        "--out %s is a file; name a folder, where each recording's text "
                        "gets a file",
                        path);
    if (access(path, W_OK | X_OK) != 0)
        return complain(EXIT_RESOURCES, "transcribe", "%s cannot be written to: %s", path,
                        strerror(errno));
    return EXIT_OK;
}

static int check_destinations(const transcribe_job *job, int count, char **paths) {
    if (!job->folder) {
        if (count > 1 && job->form != FORM_TXT)
            return complain(EXIT_USAGE, "transcribe",
                            "several recordings as %s need --out DIR",
                            transcript_forms[job->form]);
        return EXIT_OK;
    }
    int code = make_folder(job->folder);
    if (code == EXIT_OK)
        code = will_read("transcribe", job->model);
    return code == EXIT_OK ? check_names(job, count, paths) : code;
}

/* ---- One recording -------------------------------------------------------------- */

static int take_segment(void *user, const shoal_segment *segment) {
    transcribe_job *job = user;
    if (job->out.to == stdout)
        progress_end(); /* the line on the terminal makes way, and comes back */
    transcript_add(&job->out, segment);
    return 0;
}

static void show_progress(void *user, double done, double all) {
    const transcribe_job *job = user;
    progress_begin(1);
    progress_say("%d of %d, %.0f of %.0f s: %s", job->number, job->recordings, done, all,
                 job->path);
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

static int transcribe_one(transcribe_job *job, const char *path, bool named) {
    const shoal_recording recording = {.paths = &path,
                                       .files = 1,
                                       .partial = job->partial};
    shoal_transcription summary;
    job->path = path;
    job->out = (transcript){.form = job->form};
    if (!transcript_begin(&job->out, job->folder != NULL))
        return complain(EXIT_RESOURCES, "transcribe", "out of memory");
    if (named && !job->folder && job->form == FORM_TXT)
        printf("%s:\n", path);
    progress_begin(1);
    progress_say("%d of %d: %s", job->number, job->recordings, path);
    const double begun = seconds_now();
    const shoal_status status = shoal_speech_transcribe(job->speech, &recording,
                                                        &job->options, take_segment, job,
                                                        &summary);
    const double seconds = seconds_now() - begun;
    progress_end();
    const int code = status == SHOAL_OK ? finish(job, &summary, seconds)
                                        : complain_status(status, EXIT_BAD_INPUT,
                                                          "transcribe", job->context);
    transcript_drop(&job->out);
    return code;
}

/* ---- The command ---------------------------------------------------------------- */

/* A misspelt kind is a mistake of the command line, found before a model is opened. */
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

static int open_model(transcribe_job *job) {
    const bool samples = !job->options.no_fallback;
    const int64_t beams = samples && job->beams < FALLBACK_SAMPLES ? FALLBACK_SAMPLES
                                                                   : job->beams;
    const shoal_speech_options options = {.attention = job->attention,
                                          .beams = (int)beams,
                                          .batch = (int)job->batch,
                                          .exact = job->exact,
                                          .force = job->force};
    progress_begin(1);
    progress_say("opening %s", job->model);
    const shoal_status status =
        shoal_speech_open(job->context, job->model, &options, &job->speech);
    progress_end();
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status,
                                 status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT,
                                 "transcribe", job->context);
}

static int run(transcribe_job *job, int count, char **paths) {
    if (count == 0)
        return complain(EXIT_USAGE, "transcribe",
                        "no recording was given; usage: shoal %s", transcribe_help.usage);
    if (!job->model || !*job->model)
        return complain(EXIT_USAGE, "transcribe",
                        "no model; give --model MODEL or set SHOAL_MODEL");
    int code = open_context("transcribe", (int)job->threads, job->isa, &job->context);
    if (code == EXIT_OK)
        code = check_attention(job);
    if (code == EXIT_OK)
        code = check_destinations(job, count, paths);
    if (code == EXIT_OK)
        code = open_model(job);
    job->recordings = count;
    if (code == EXIT_OK)
        for (int i = 0; i < count; i++) {
            job->number = i + 1;
            const int one = transcribe_one(job, paths[i], count > 1);
            code = code == EXIT_OK ? one : code;
        }
    shoal_speech_close(job->speech);
    shoal_context_destroy(job->context);
    return code;
}

int transcribe_command(int count, char **arguments) {
    transcribe_job job = {.model = getenv("SHOAL_MODEL"), .beams = 1};
    const int ended = take_options(&transcribe_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    job.options.beams = (int)job.beams;
    job.options.no_timestamps = job.no_timestamps;
    job.options.no_context = job.no_context;
    job.options.no_fallback = job.no_fallback;
    job.options.no_vad = job.no_vad;
    job.options.published = job.published;
    job.options.progress = show_progress;
    return run(&job, count - optind, arguments + optind);
}
