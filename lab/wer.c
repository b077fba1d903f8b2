/* shoal wer: word error rates of a Whisper model with each kind of attention, and what
   the encoder costs with it. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"
#include "wer.h"

#define DEFAULT_KINDS "full,shoal"
#define DEFAULT_GAP 0.5
enum { DEFAULT_PER_WINDOW = 2, MOST_BEAMS = 64, MOST_BATCH = 64, SAMPLES = 5 };

const char *const wer_modes[] = {"window", "vad", "no-vad", "published", NULL};

static bool take_kinds(void *shared, const char *name, const char *text) {
    wer_job *job = shared;
    char names[WER_KINDS][WER_NAME];
    job->kind_count = read_kinds("wer", name, text, names[0], sizeof *names, WER_KINDS);
    for (int i = 0; i < job->kind_count; i++)
        memcpy(job->kinds[i].spelling, names[i], sizeof names[i]);
    return job->kind_count > 0;
}

static bool take_number(const char *name, const char *value, const char *unit,
                        double most, double *number) {
    char *rest;
    *number = strtod(value, &rest);
    if (rest != value && !*rest && *number >= 0 && *number <= most)
        return true;
    complain(EXIT_USAGE, "wer", "--%s is \"%s\"; it must be from 0 to %g %s", name, value,
             most, unit);
    return false;
}

static bool take_gap(void *job, const char *name, const char *value) {
    return take_number(name, value, "seconds", 30, &((wer_job *)job)->gap);
}

static bool take_join(void *job, const char *name, const char *value) {
    return take_number(name, value, "minutes", 600, &((wer_job *)job)->join);
}

static bool take_language(void *job, const char *name, const char *value) {
    (void)name;
    return parse_language("wer", value, &((wer_job *)job)->language);
}

static bool take_picture(void *job, const char *name, const char *value) {
    (void)name;
    return take_plot("wer", value, &((wer_job *)job)->plot_path);
}

static const option_row rows[] =
    {{"model", 'm', "MODEL",
      "model: a ggml file (f32 or f16) or a Hugging Face folder\n"
      "(default: the environment variable SHOAL_MODEL)",
      SETS_TEXT(wer_job, model)},
     {"attention", 'a', "KINDS",
      "kinds of attention for the encoder, as shoal kinds spells\n"
      "them; full is added where it is missing\n"
      "(default: full,shoal)",
      TAKEN_BY(take_kinds)},
     {"force", 0, NULL,
      "also kinds that take the queries as keys (lsh, shared-full),\n"
      "though no sense can come of them",
      SETS_FLAG(wer_job, force)},
     {"per-window", 0, "N",
      "utterances that are heard together, 1 to 16, as long as\n"
      "they fit into 30 s: speech fills the window then\n"
      "(default: 2)",
      SETS_INTEGER(wer_job, per_window, 1, WER_PER_WINDOW)},
     {"gap", 0, "SECONDS", "silence between them (default: 0.5)", TAKEN_BY(take_gap)},
     {"join", 0, "MINUTES",
      "utterances one after another as recordings of so many\n"
      "minutes, heard as shoal transcribe hears them",
      TAKEN_BY(take_join)},
     {"vad", 0, NULL,
      "hear also windows as shoal transcribe does: speech found\n"
      "first, timestamps, other temperatures where it takes them",
      SETS_FLAG(wer_job, vad)},
     {"timestamps", 0, NULL, "decode windows with timestamps (default: without)",
      SETS_FLAG(wer_job, timestamps)},
     {"shuffle", 0, NULL,
      "utterances in an order drawn by the seed, rather than the\n"
      "folder's",
      SETS_FLAG(wer_job, shuffle)},
     {"arrangements", 0, "N",
      "hear all utterances N times: as the options say, then one\n"
      "per window, then in other orders, with gaps of 0, 0.25, 1,\n"
      "2 and 0.5 s in turns (default: 1)",
      SETS_INTEGER(wer_job, arrangement_count, 1, WER_ARRANGEMENTS)},
     {"seed", 0, "S", "seed of orders and of intervals (default: 1)",
      SETS_SEED(wer_job, seed)},
     {"language", 'l', "L",
      "language spoken, or auto; numbers, titles and spellings are\n"
      "normalised as English in any case (default: en)",
      TAKEN_BY(take_language)},
     {"beam-size", 'b', "B",
      "texts that are followed side by side, 1 to 64; 1 is greedy\n"
      "(default: 1)",
      SETS_INTEGER(wer_job, beams, 1, MOST_BEAMS)},
     {"batch", 0, "B",
      "windows that are heard side by side where there are several,\n"
      "1 to 64 (default: 16, or what 256 MiB hold)",
      SETS_INTEGER(wer_job, batch, 1, MOST_BATCH)},
     {"limit", 0, "N", "only the first N utterances (default: all)",
      SETS_INTEGER(wer_job, limit, 1, INT32_MAX)},
     THREADS_ROW(wer_job),
     ISA_ROW(wer_job),
     {"no-time", 0, NULL, "run the encoder once on each window: no times of it",
      SETS_FLAG(wer_job, no_time)},
     {"plot", 0, "FILE", "draw word error rate against encoder time (.svg or .png)",
      TAKEN_BY(take_picture)},
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(wer_job, json)},
     {"texts", 0, NULL, "with --json: also what every kind heard",
      SETS_FLAG(wer_job, texts)},
     HELP_ROW,
     {0}};

const command_help wer_help = {
    "wer",
    "wer DIR --model MODEL [options]",
    "How well a Whisper model recognises speech with each kind of attention in its\n"
    "encoder, and what that costs. DIR holds, in it or below, recordings and\n"
    "transcripts.txt, or LibriSpeech's *.trans.txt: each line is the name of a\n"
    "recording beside it, without its ending, and what is said. Or Kaldi's wav.scp,\n"
    "names and paths of recordings, and text, names and what is said.\n",
    rows,
    "Decoding is at temperature 0 without timestamps (with them for recordings beyond\n"
    "30 s), unless --vad, --join or a kind's @MODE asks for what shoal transcribe does\n"
    "(no-vad and published: with the options of that name). Both texts are normalised: "
    "lower case, no punctuation, numbers as digits,\n"
    "contractions and titles spelled out, American spelling. Intervals are 95 %, by the\n"
    "bootstrap over utterances; the difference from full is paired. Encoder times are\n"
    "of one window of 30 s, convolutions included, after a first run of the same.\n"
    "Ctrl-C shows the windows measured so far; twice ends at once.\n",
    "DIR"};

/* ---- Options ----------------------------------------------------------------------- */

/* KIND@MODE; without a mode, that of the options. */
static bool split_mode(const wer_job *job, wer_kind *kind) {
    char *at = strchr(kind->spelling, '@');
    memcpy(kind->attention, kind->spelling, sizeof kind->attention);
    kind->mode = job->vad || job->join > 0 ? WER_VAD : WER_WINDOW;
    if (!at)
        return true;
    kind->attention[at - kind->spelling] = 0;
    for (int mode = 0; wer_modes[mode]; mode++)
        if (strcmp(at + 1, wer_modes[mode]) == 0 && (mode > 0 || job->join <= 0)) {
            kind->mode = mode;
            return true;
        }
    complain(EXIT_USAGE, "wer",
             "--attention has %s; behind @ stand%s vad, no-vad or published",
             kind->spelling, job->join > 0 ? "" : " window,");
    return false;
}

/* Errors and speeds are against the first that is full: where there is none it is put
   first. */
static bool place_reference(wer_job *job) {
    for (int i = 0; i < job->kind_count; i++)
        if (!split_mode(job, &job->kinds[i]))
            return false;
    for (job->reference = 0; job->reference < job->kind_count; job->reference++)
        if (strcmp(job->kinds[job->reference].attention, "full") == 0)
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
    return split_mode(job, &job->kinds[0]);
}

/* ---- The command ------------------------------------------------------------------- */

/* Misspelt kinds are mistakes of the command line; the shortest spelling is shown. */
static int check_kinds(wer_job *job) {
    for (int i = 0; i < job->kind_count; i++) {
        shoal_attention parsed;
        wer_kind *kind = &job->kinds[i];
        const char *mode = strchr(kind->spelling, '@');
        const shoal_status status =
            shoal_attention_parse(job->context, kind->attention, &parsed);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "wer", job->context);
        shoal_attention_print(&parsed, kind->attention, WER_NAME);
        snprintf(kind->spelling, WER_NAME, "%.100s%s%s", kind->attention, mode ? "@" : "",
                 mode ? wer_modes[kind->mode] : "");
    }
    return EXIT_OK;
}

static int open_model(wer_job *job) {
    const shoal_speech_options options = {.beams = (int)(job->beams < SAMPLES
                                                             ? SAMPLES
                                                             : job->beams),
                                          .force = job->force,
                                          .batch = (int)job->batch};
    progress_say("opening %s", job->model);
    shoal_status status =
        shoal_speech_open(job->context, job->model, &options, &job->speech);
    for (int i = 0; i < job->kind_count && status == SHOAL_OK; i++)
        status = shoal_speech_set_attention(job->speech, job->kinds[i].attention);
    const int code = status == SHOAL_INVALID ? EXIT_USAGE : EXIT_BAD_INPUT;
    return status == SHOAL_OK ? EXIT_OK
                              : complain_status(status, code, "wer", job->context);
}

static int report(const wer_job *job) {
    int code = job->plot_path ? wer_write_plot(job) : EXIT_OK;
    if (job->json) {
        const int printed = wer_print_json(job);
        code = code == EXIT_OK ? printed : code;
    } else {
        wer_print(job);
    }
    return code == EXIT_OK && job->interrupted ? 128 + stop_signal() : code;
}

static int work(wer_job *job) {
    progress_begin(1);
    int code = open_model(job);
    if (code == EXIT_OK)
        code = wer_read_folder(job);
    if (code == EXIT_OK)
        code = wer_arrange(job);
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
                        wer_help.usage);
    if (!job->model || !*job->model)
        return complain(EXIT_USAGE, "wer",
                        "no model; give --model MODEL or set SHOAL_MODEL");
    job->folder = words[0];
    int code = will_write("wer", job->plot_path);
    if (code == EXIT_OK)
        code = will_read("wer", job->model);
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
                          .beams = 1,
                          .arrangement_count = 1,
                          .seed = 1};
    job.model = getenv("SHOAL_MODEL");
    const int ended = take_options(&wer_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (job.kind_count == 0)
        take_kinds(&job, "attention", DEFAULT_KINDS);
    if (!place_reference(&job))
        return EXIT_USAGE;
    return run(&job, count - optind, arguments + optind);
}
