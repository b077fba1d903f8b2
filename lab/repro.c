/* shoal repro: the paper's experiments, each a grid of trainings. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "command.h"
#include "repro.h"
#include "repro_speech.h"

/* ---- The command line ---------------------------------------------------------- */

#define DEFAULT_KINDS                                                                    \
    "full,clustered-15,clustered-30,clustered-60,clustered-100,i-clustered-15,"          \
    "i-clustered-30,i-clustered-60,i-clustered-100,lsh-1,lsh-4,lsh-8,lsh-16"
#define DEFAULT_LENGTHS "31,63,127,255"
#define TEXT_TASKS "CoLA,MNLI,MRPC,QNLI,QQP,RTE,SST-2,STS-B,WNLI,SQuAD"
#define TEXT_TESTED "full,clustered-25,i-clustered-25,shoal-25"

enum { DEFAULT_SAVE = 60, DEFAULT_MINUTES = 40 };

static int by_size(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool take_lengths(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    char word[32];
    for (job->length_count = 0;; text++) {
        const size_t size = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)size, text);
        if (job->length_count == REPRO_LENGTHS) {
            complain(EXIT_USAGE, "repro", "--%s has more than %d lengths", name,
                     REPRO_LENGTHS);
            return false;
        }
        if (!parse_integer("repro", name, word, 1, 1 << 24,
                           &job->lengths[job->length_count]))
            return false;
        job->length_count++;
        text += size;
        if (!*text)
            break;
    }
    qsort(job->lengths, (size_t)job->length_count, sizeof *job->lengths, by_size);
    return true;
}

static bool take_kinds(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    job->kind_count =
        read_kinds("repro", name, text, job->kinds[0], REPRO_NAME, REPRO_KINDS);
    return job->kind_count > 0;
}

static bool take_minutes(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    return parse_number("repro", name, text, 0, 1e6, &job->minutes);
}

static bool take_only(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    job->only_count =
        read_kinds("repro", name, text, job->only[0], REPRO_NAME, REPRO_KINDS);
    return job->only_count > 0;
}

static bool take_tasks(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    job->task_count =
        read_kinds("repro", name, text, job->tasks[0], REPRO_NAME, REPRO_TASKS);
    return job->task_count > 0;
}

static bool take_tested(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    job->tested_count =
        read_kinds("repro", name, text, job->tested[0], REPRO_NAME, REPRO_TESTED);
    return job->tested_count > 0;
}

/* Fields that the grid varies have options of their own. */
static bool take_pair(void *job, const char *name, const char *pair) {
    static const char *const own[][2] = {{"length=", "lengths"}, {"attention=", "kinds"}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(pair, own[i][0], strlen(own[i][0])) == 0) {
            complain(EXIT_USAGE, "repro", "--%s %s: use --%s", name, pair, own[i][1]);
            return false;
        }
    return settings_add_pair(&((repro_job *)job)->settings, pair) == EXIT_OK;
}

static bool take_field(void *job, const char *name, const char *value) {
    return settings_add(&((repro_job *)job)->settings, name, value) == EXIT_OK;
}

static const option_row rows[] =
    {{"out", 'o', "DIR", "folder of the trainings, " REPRO_RESULTS " and the pictures",
      SETS_TEXT(repro_job, folder)},
     {"kinds", 0, "KINDS",
      "kinds of attention (default: full, clustered and i-clustered at\n"
      "15, 30, 60 and 100 clusters, lsh at 1, 4, 8 and 16 rounds);\n"
      "of speech and lf-mmi cells: also KIND@LAYERS, and CELL+KIND,\n"
      "which goes on more slowly (default: " SPEECH_SHOWN_KINDS ")",
      TAKEN_BY(take_kinds)},
     {"model", 'm', "DIR", "text: Hugging Face folder of a BERT or RoBERTa",
      SETS_TEXT(repro_job, model)},
     {"tasks", 0, "LIST", "text: tasks of GLUE, and SQuAD (default: all that are there)",
      TAKEN_BY(take_tasks)},
     {"only", 0, "CELLS", "speech, lf-mmi: train these of them now", TAKEN_BY(take_only)},
     {"evaluate", 0, "KINDS",
      "speech, lf-mmi, text: rows of the matrix (default: the paper's, and\nshoal)",
      TAKEN_BY(take_tested)},
     {"minutes", 0, "M",
      "speech, lf-mmi: every cell is trained for so long, and for all\n"
      "epochs; 0: for the epochs alone (default: 40)",
      TAKEN_BY(take_minutes)},
     WORDS_ROWS(repro_job, words, ""),
     {"labels", 0, "FILE", "speech: the file of transcripts (default: text)",
      TAKEN_BY(take_field)},
     {"join", 0, "SECONDS", "speech, lf-mmi: as in shoal train (default: 60)",
      TAKEN_BY(take_field)},
     {"epochs", 0, "N",
      "times through the data (default: 15 for speech and lf-mmi; text: as\n"
      "in shoal train)",
      TAKEN_BY(take_field)},
     {"cache", 0, "DIR", "speech, lf-mmi: folder for features, as in shoal train",
      SETS_TEXT(repro_job, cache)},
     {"skip-bad", 0, NULL, "leave out utterances and rows that cannot be used",
      SETS_FLAG(repro_job, skip_bad)},
     {"lengths", 0, "LIST",
      "copy: lengths of w (default: 31,63,127,255: 64 to 512 positions)",
      TAKEN_BY(take_lengths)},
     {"steps", 0, "N",
      "steps of a cell; finished cells with fewer go on\n"
      "(default: 5000)",
      TAKEN_BY(take_field)},
     {"seed", 0, "S", "of weights, data and dropout (default: 1)", TAKEN_BY(take_field)},
     {"set", 0, "KEY=VALUE",
      "any other field of the trainings, as in shoal train; may be\n"
      "repeated",
      TAKEN_BY(take_pair)},
     {"save-seconds", 0, "S", "seconds between a training's checkpoints (default: 60)",
      SETS_INTEGER(repro_job, save_seconds, 0, 1000000)},
     THREADS_ROW(repro_job),
     ISA_ROW(repro_job),
     {"show", 0, NULL, "train nothing: print and draw what is there",
      SETS_FLAG(repro_job, show)},
     {"markdown", 0, NULL, "print the table as Markdown", SETS_FLAG(repro_job, markdown)},
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(repro_job, json)},
     HELP_ROW,
     {0}};

const command_help repro_help =
    {"repro",
     "repro copy|speech DATA|lf-mmi DATA|text DATA --out DIR [options]",
     "copy, the paper's masked copy experiment: a transformer is trained for every kind "
     "of\n"
     "attention and every length, the shortest sequences first. A cell ends after all\n"
     "its steps, or early when three validations in a row, 5 fresh batches each, have\n"
     "not one mistake (stop_after, validate_batches); its accuracy is then measured on\n"
     "20 batches that decided nothing.\n\n"
     "speech, its speech tables on DATA (folders train, dev and test, as for shoal\n"
     "train): a recogniser for every cell; the best on dev, after the epochs and after\n"
     "the minutes, is evaluated on test with its own kind, with the controls of shoal\n"
     "eval, and with every other kind that its weights can do with.\n\n"
     "lf-mmi, its other speech table: the same by lattice-free MMI, from words and the\n"
     "--lexicon that has their phones, and evaluated by words too, with the language\n"
     "model of --lm, whose weight and insertion are tuned on dev for each cell, unless\n"
     "both are given.\n\n"
     "text, its table of GLUE and SQuAD on DATA (folders glue and squad): the model of\n"
     "--model is fine-tuned on each task with the kind of --kinds (default: full), and\n"
     "evaluated on dev with each kind of --evaluate and with the controls.\n",
     rows,
     "Ctrl-C saves; the same command goes on, cell by cell and inside a cell. Several\n"
     "processes may work on one folder: each takes cells that nobody is training.\n"
     "Pictures are put into DIR, of speech and lf-mmi also tables.md and\n"
     "results.json, of text table.md and results.json.\n",
     "copy|speech|lf-mmi|text DIR"};

/* ---- The command --------------------------------------------------------------- */

int repro_write_json(const char *path, const json_t *object) {
    replacement to;
    FILE *file = replace_begin(&to, path);
    const bool written =
        file && json_dumpf(object, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
        fputc('\n', file) != EOF;
    if (file && replace_end(&to, written))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "repro", "%s cannot be written: %s", path,
                    strerror(errno));
}

/* One spelling for each kind, so that results are found again. */
static int spell_kinds(repro_job *job) {
    for (int i = 0; i < job->kind_count; i++) {
        shoal_attention attention;
        const shoal_status status =
            shoal_attention_parse(job->context, job->kinds[i], &attention);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "repro", job->context);
        shoal_attention_print(&attention, job->kinds[i], REPRO_NAME);
    }
    return EXIT_OK;
}

static int work_on_copy(repro_job *job) {
    const int code = spell_kinds(job);
    return code == EXIT_OK ? repro_copy(job) : code;
}

static int work_on_text(repro_job *job) {
    const int code = spell_kinds(job);
    return code == EXIT_OK ? repro_text(job) : code;
}

int repro_make_folder(const char *path) {
    char part[TRAIN_PATH];
    struct stat information;
    if (!*path || strlen(path) >= sizeof part)
        return complain(EXIT_USAGE, "repro", "\"%.80s\" cannot be a folder", path);
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return complain(EXIT_RESOURCES, "repro", "%s cannot be made: %s", part,
                            strerror(errno));
    }
    return stat(path, &information) == 0 && S_ISDIR(information.st_mode)
               ? EXIT_OK
               : complain(EXIT_RESOURCES, "repro", "%s is not a folder", path);
}

int repro_lock(const char *path) {
    const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0)
        flock(folder, LOCK_EX);
    return folder;
}

static void say_cells(int count, const char *one, const char *more) {
    if (count > 0)
        fprintf(stderr, "shoal repro: %d %s\n", count, count == 1 ? one : more);
}

static int end(const repro_job *job, int code) {
    say_cells(job->skipped, "cell is left to another process",
              "cells are left to another process");
    say_cells(job->failed, "cell failed, as said above", "cells failed, as said above");
    if (code == EXIT_OK && job->failed > 0)
        code = EXIT_BAD_INPUT;
    if (code != EXIT_OK || !stop_signal())
        return code;
    fprintf(stderr, "shoal repro: interrupted; everything is saved. The same command "
                    "goes on.\n");
    return 128 + stop_signal();
}

static const struct {
    const char *name, *kinds, *tested; /* by default */
    bool data;                         /* a folder follows */
    int (*work)(repro_job *job);
} experiments[] = {{"copy", DEFAULT_KINDS, "full", false, work_on_copy},
                   {"speech", SPEECH_KINDS, SPEECH_TESTED, true, repro_speech},
                   {"lf-mmi", LFMMI_KINDS, LFMMI_TESTED, true, repro_speech},
                   {"text", "full", TEXT_TESTED, true, work_on_text}};
enum { EXPERIMENTS = sizeof experiments / sizeof *experiments };

static int run(repro_job *job, int which, const char *data) {
    if (!job->folder)
        return complain(EXIT_USAGE, "repro", "no folder was given; usage: shoal %s",
                        repro_help.usage);
    job->experiment = experiments[which].name;
    job->data = data;
    if (job->kind_count == 0)
        take_kinds(job, "kinds", experiments[which].kinds);
    if (job->tested_count == 0)
        take_tested(job, "evaluate", experiments[which].tested);
    job->every_task = job->task_count == 0;
    if (job->every_task)
        take_tasks(job, "tasks", TEXT_TASKS);
    if (job->length_count == 0)
        take_lengths(job, "lengths", DEFAULT_LENGTHS);
    int code = open_context("repro", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    if (!job->show)
        watch_stop();
    code = end(job, experiments[which].work(job));
    json_decref(job->results);
    shoal_context_destroy(job->context);
    return code;
}

int repro_command(int count, char **arguments) {
    static repro_job job = {.settings = {.command = "repro"},
                            .save_seconds = DEFAULT_SAVE,
                            .minutes = DEFAULT_MINUTES};
    const int ended = take_options(&repro_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    const int words = count - optind;
    if (words == 0)
        return complain(EXIT_USAGE, "repro", "no experiment was given; usage: shoal %s",
                        repro_help.usage);
    for (int i = 0; i < EXPERIMENTS; i++) {
        if (strcmp(experiments[i].name, arguments[optind]) != 0)
            continue;
        if (words == 1 + experiments[i].data)
            return run(&job, i, experiments[i].data ? arguments[optind + 1] : NULL);
        return complain(EXIT_USAGE, "repro", "%s needs %s; usage: shoal %s",
                        experiments[i].name,
                        experiments[i].data ? "one data folder" : "no other word",
                        repro_help.usage);
    }
    return complain(EXIT_USAGE, "repro",
                    "the experiments are copy, speech, lf-mmi and text; usage: shoal %s",
                    repro_help.usage);
}
