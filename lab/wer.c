/* shoal wer: the command line. */
#define _GNU_SOURCE
#include "wer.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"
#include <shoal_speech.h>

#define DEFAULT_KINDS "full,shoal-100"
#define DEFAULT_GAP 0.5
enum { DEFAULT_PER_WINDOW = 2, MOST_BEAMS = 64 };

enum {
    OPTION_MODEL,
    OPTION_ATTENTION,
    OPTION_PER_WINDOW,
    OPTION_GAP,
    OPTION_LANGUAGE,
    OPTION_BEAM_SIZE,
    OPTION_LIMIT,
    OPTION_THREADS,
    OPTION_ISA,
    OPTION_PLOT,
    OPTION_JSON,
    OPTION_TEXTS,
    OPTION_HELP
};

static const option_row rows[] =
    {[OPTION_MODEL] = {"model", 'm', "M",
                       "model: a ggml file (f32 or f16) or a Hugging Face folder\n"
                       "(default: the environment variable SHOAL_MODEL)"},
     [OPTION_ATTENTION] = {"attention", 'a', "LIST",
                           "kinds of attention for the encoder, as shoal kinds spells\n"
                           "them; full is added where it is missing\n"
                           "(default: full,shoal-100)"},
     [OPTION_PER_WINDOW] = {"per-window", 0, "N",
                            "utterances that are heard together, 1 to 16, as long as\n"
                            "they fit into 30 s: speech fills the window then\n"
                            "(default: 2)"},
     [OPTION_GAP] = {"gap", 0, "SECONDS", "silence between them (default: 0.5)"},
     [OPTION_LANGUAGE] = {"language", 'l', "L",
                          "language spoken, or auto; numbers, titles and spellings are\n"
                          "normalised as English in any case (default: en)"},
     [OPTION_BEAM_SIZE] = {"beam-size", 'b', "B",
                           "texts that are followed side by side, 1 to 64; 1 is greedy\n"
                           "(default: 1)"},
     [OPTION_LIMIT] = {"limit", 0, "N", "only the first N utterances (default: all)"},
     [OPTION_THREADS] = THREADS_ROW,
     [OPTION_ISA] = ISA_ROW,
     [OPTION_PLOT] = {"plot", 0, "F.svg|F.png",
                      "draw word error rate against encoder time"},
     [OPTION_JSON] = {"json", 0, NULL, "print one JSON object instead of the table"},
     [OPTION_TEXTS] = {"texts", 0, NULL, "with --json: also what every kind heard"},
     [OPTION_HELP] = HELP_ROW,
     {0}};

static const command_help help =
    {"wer", "wer DIR --model M [options]",
     "How well a Whisper model recognises speech with each kind of attention in its\n"
     "encoder, and what that costs. DIR holds recordings and transcripts.txt, or\n"
     "LibriSpeech's *.trans.txt, in it or below: each line is the name of a recording\n"
     "beside it, without its ending, and what is said.\n",
     rows,
     "Decoding is at temperature 0 without timestamps (with them for recordings beyond\n"
     "30 s). Both texts are normalised: lower case, no punctuation, numbers as digits,\n"
     "contractions and titles spelled out, American spelling. Encoder times are of one\n"
     "window of 30 s, convolutions included, after a first run of the same.\n"
     "Ctrl-C shows the windows measured so far; twice ends at once.\n"};

/* ---- Options -------------------------------------------------------------------- */

static bool take_kinds(wer_job *job, const char *text) {
    char names[WER_KINDS][WER_NAME];
    job->kind_count =
        read_kinds("wer", "attention", text, names[0], sizeof *names, WER_KINDS);
    for (int i = 0; i < job->kind_count; i++)
        memcpy(job->kinds[i].spelling, names[i], sizeof names[i]);
    return job->kind_count > 0;
}

/* Errors and speeds are against full: where it is not asked for it comes first. */
static bool place_reference(wer_job *job) {
    for (job->reference = 0; job->reference < job->kind_count; job->reference++)
        if (strcmp(job->kinds[job->reference].spelling, "full") == 0)
            return true;
    if (job->kind_count == WER_KINDS) {
        complain(EXIT_USAGE, "wer", "--attention has more than %d kinds without full",
                 WER_KINDS - 1);
        return false;
    }
    memmove(job->kinds + 1, job->kinds, (size_t)job->kind_count * sizeof *job->kinds);
    snprintf(job->kinds[0].spelling, WER_NAME, "full");
    job->kind_count++;
    job->reference = 0;
    return true;
}

static bool take_gap(wer_job *job, const char *value) {
    char *rest;
    job->gap = strtod(value, &rest);
    if (rest != value && !*rest && job->gap >= 0 && job->gap <= 30)
        return true;
    complain(EXIT_USAGE, "wer", "--gap is \"%s\"; it must be from 0 to 30 seconds",
             value);
    return false;
}

static bool take_option(void *shared, int option, const char *value) {
    wer_job *job = shared;
    switch (option) {
    case OPTION_MODEL: job->model = value; return true;
    case OPTION_ATTENTION: return take_kinds(job, value);
    case OPTION_PER_WINDOW:
        return parse_integer("wer", "per-window", value, 1, WER_MOST_PER_WINDOW,
                             &job->per_window);
    case OPTION_GAP: return take_gap(job, value);
    case OPTION_LANGUAGE:
        job->language = strcmp(value, "auto") == 0 ? NULL : value;
        return true;
    case OPTION_BEAM_SIZE:
        return parse_integer("wer", "beam-size", value, 1, MOST_BEAMS, &job->beams);
    case OPTION_LIMIT:
        return parse_integer("wer", "limit", value, 1, INT32_MAX, &job->limit);
    case OPTION_THREADS:
        return parse_integer("wer", "threads", value, 0, 4096, &job->threads);
    case OPTION_ISA: job->isa = value; return true;
    case OPTION_PLOT: return take_plot("wer", value, &job->plot_path);
    case OPTION_JSON: job->json = true; return true;
    case OPTION_TEXTS: job->texts = true; return true;
    default: return true;
    }
}

/* ---- The command ---------------------------------------------------------------- */

/* Misspelt kinds are mistakes of the command line; the shortest spelling is shown. */
static int check_kinds(wer_job *job) {
    for (int i = 0; i < job->kind_count; i++) {
        shoal_attention parsed;
        const shoal_status status =
            shoal_attention_parse(job->context, job->kinds[i].spelling, &parsed);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "wer", job->context);
        shoal_attention_print(&parsed, job->kinds[i].spelling, WER_NAME);
    }
    return EXIT_OK;
}

static int open_model(wer_job *job) {
    const shoal_speech_options options = {.beams = (int)job->beams};
    const shoal_status status =
        shoal_speech_open(job->context, job->model, &options, &job->speech);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "wer", job->context);
}

static int report(const wer_job *job) {
    int code = EXIT_OK;
    if (job->json)
        code = wer_print_json(job);
    else
        wer_print(job);
    if (code == EXIT_OK && job->plot_path)
        code = wer_write_plot(job);
    return code == EXIT_OK && job->interrupted ? 128 + stop_signal() : code;
}

static int work(wer_job *job) {
    progress_begin(1);
    int code = wer_read_folder(job);
    if (code == EXIT_OK)
        code = open_model(job);
    if (code == EXIT_OK)
        code = wer_pack(job);
    if (code == EXIT_OK)
        code = wer_measure(job);
    progress_end();
    if (code == EXIT_OK)
        code = report(job);
    wer_release(job);
    shoal_speech_close(job->speech);
    return code;
}

static int run(wer_job *job, int count, char **words) {
    if (count != 1)
        return complain(EXIT_USAGE, "wer", "%s; usage: shoal %s",
                        count ? "one folder at a time" : "no folder was given",
                        help.usage);
    if (!job->model || !*job->model)
        return complain(EXIT_USAGE, "wer", "no model; give --model M or set SHOAL_MODEL");
    job->folder = words[0];
    int code = check_destination("wer", job->plot_path);
    if (code == EXIT_OK)
        code = open_context("wer", (int)job->threads, job->isa, &job->context);
    if (code == EXIT_OK)
        code = check_kinds(job);
    if (code == EXIT_OK)
        code = work(job);
    shoal_context_destroy(job->context);
    return code;
}

int wer_command(int count, char **arguments) {
    static wer_job job = {.language = "en",
                          .per_window = DEFAULT_PER_WINDOW,
                          .gap = DEFAULT_GAP,
                          .beams = 1};
    job.model = getenv("SHOAL_MODEL");
    const int ended = take_options(&help, count, arguments, take_option, &job);
    if (ended >= 0)
        return ended;
    if (job.kind_count == 0)
        take_kinds(&job, DEFAULT_KINDS);
    if (!place_reference(&job))
        return EXIT_USAGE;
    return run(&job, count - optind, arguments + optind);
}
