/* shoal eval: a trained model with other kinds of attention than it was trained with. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "speech_eval.h"
#include "text_eval.h"
#include "train.h"

enum { MOST_KINDS = EVAL_MOST_KINDS, NAME = EVAL_NAME, DEFAULT_BATCHES = 20 };

typedef struct {
    char names[MOST_KINDS][NAME];
    int kinds;
    int64_t batches, threads;
    const char *isa;
    bool json;
    speech_eval_job speech; /* what only recognisers have */

    shoal_context *context;
    trainer trainer;
    shoal_attention parsed[MOST_KINDS];
    train_score scores[MOST_KINDS];
    const char *predictions;
    bool recogniser, text;
    char trained[NAME];
} eval_job;

static bool take_kinds(void *shared, const char *name, const char *value) {
    eval_job *job = shared;
    job->kinds = read_kinds("eval", name, value, job->names[0], NAME, MOST_KINDS);
    return job->kinds > 0;
}

static bool take_join(void *shared, const char *name, const char *value) {
    eval_job *job = shared;
    return parse_number("eval", name, value, 0, 3600, &job->speech.join);
}

static const option_row rows[] =
    {{"attention", 0, "KINDS",
      "kinds of attention, as shoal kinds spells them, with commas\n"
      "between (default: the one that was trained)",
      TAKEN_BY(take_kinds)},
     {"data", 0, "DIR",
      "speech: the data folder to recognise, such as DATA/test; its\n"
      "transcripts are in the file that the training had; glue: the\n"
      "folder, squad: dev.json (default: where the training had them)",
      SETS_TEXT(eval_job, speech.data)},
     {"labels", 0, "FILE",
      "speech: the file of transcripts (default: that of the training; of\n"
      "lf-mmi a file of phones, phones, or the words of text by --lexicon)",
      SETS_TEXT(eval_job, speech.labels)},
     {"controls", 0, NULL,
      "speech, glue, squad: also with uniform attention, with none, and\n"
      "clustered-1",
      SETS_FLAG(eval_job, speech.controls)},
     {"beams", 0, "N",
      "speech: prefix beam search with so many beams (default: 0, the\n"
      "likeliest unit of each position)",
      SETS_INTEGER(eval_job, speech.beams, 0, 10000)},
     WORDS_ROWS(eval_job, speech.words, "speech, "),
     {"tune", 0, "DIR",
      "speech, words: weight and insertion are those with the fewest errors\n"
      "on this data folder, such as DATA/dev (default: as given)",
      SETS_TEXT(eval_job, speech.tune)},
     {"join", 0, "SECONDS",
      "speech: utterances of a speaker one after another up to that\n"
      "length; 0: each by itself (default: as in the training)",
      TAKEN_BY(take_join)},
     {"cache", 0, "DIR", "speech: folder for features, as in shoal train",
      SETS_TEXT(eval_job, speech.cache)},
     {"predictions", 0, "FILE",
      "glue, squad: what the first kind predicts; squad: as its official\n"
      "program reads it",
      SETS_TEXT(eval_job, predictions)},
     {"skip-bad", 0, NULL, "leave out utterances and rows that cannot be used",
      SETS_FLAG(eval_job, speech.skip_bad)},
     {"batches", 0, "N",
      "copy: batches of the training's size, the same for every kind, that\n"
      "neither training nor validation saw (default: 20)",
      SETS_INTEGER(eval_job, batches, 1, 1000000)},
     THREADS_ROW(eval_job),
     ISA_ROW(eval_job),
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(eval_job, json)},
     HELP_ROW,
     {0}};

const command_help eval_help = {
    "eval",
    "eval CHECKPOINT [options]",
    "Evaluates a checkpoint of shoal train (the file, or the folder that holds it) with\n"
    "each of the kinds of attention: on the same fresh data of its task, or a "
    "recogniser\n"
    "on the folder of --data, with its error rate and what of that is chance (95 % of\n"
    "10000 draws of sequences), or a model of glue or squad on its dev part. With a\n"
    "lexicon and a language model errors of words are counted, too, against the file\n"
    "text of that folder.\n",
    rows,
    "lsh and shared-full take the queries as keys: they evaluate models that were\n"
    "trained so (by one of the two, or with shared_qk).\n",
    "FILE"};

static int open_checkpoint(eval_job *job, const char *path) {
    char inside[TRAIN_PATH];
    struct stat information;
    train_config config;
    train_reason reason;
    job->speech.path = path;
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode)) {
        if (!train_path("eval", inside, path, TRAIN_CHECKPOINT))
            return EXIT_USAGE;
        path = inside;
    }
    shoal_status status = train_read(job->context, path, &config, &reason);
    if (status != SHOAL_OK)
        return train_complain(status, EXIT_BAD_INPUT, "eval", &reason);
    job->recogniser = strcmp(config.task, "speech") == 0;
    job->text = train_is_text(&config);
    if (job->recogniser || job->text)
        return EXIT_OK;
    status = trainer_begin(&job->trainer, job->context, &config);
    if (status == SHOAL_OK)
        status = trainer_resume(&job->trainer, path);
    if (status != SHOAL_OK)
        return train_complain(status, EXIT_BAD_INPUT, "eval", &job->trainer.reason);
    shoal_attention_print(&config.model.attention, job->trained, NAME);
    return EXIT_OK;
}

static int evaluate_one(eval_job *job, const shoal_attention *kind, int64_t batches,
                        int at) {
    const shoal_status status =
        trainer_evaluate(&job->trainer, kind, batches, &job->scores[at]);
    return status == SHOAL_OK
               ? EXIT_OK
               : train_complain(status, EXIT_BAD_INPUT, "eval", &job->trainer.reason);
}

/* Their shortest spelling, so that the trained one is recognised among them. Misspelt
   ones are mistakes of the command line, found before the checkpoint is read. */
static int parse_kinds(eval_job *job) {
    for (int i = 0; i < job->kinds; i++) {
        const shoal_status status =
            shoal_attention_parse(job->context, job->names[i], &job->parsed[i]);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "eval", job->context);
        shoal_attention_print(&job->parsed[i], job->names[i], NAME);
    }
    return EXIT_OK;
}

static bool is_trained(const eval_job *job, int kind) {
    return strcmp(job->names[kind], job->trained) == 0;
}

static int evaluate(eval_job *job) {
    int code = EXIT_OK;
    for (int i = 0; i < job->kinds && code == EXIT_OK; i++) /* can the weights do it? */
        code = evaluate_one(job, &job->parsed[i], 0, i);
    progress_begin(2);
    for (int i = 0; i < job->kinds && code == EXIT_OK; i++) {
        progress_say("%s, %d of %d", job->names[i], i + 1, job->kinds);
        code = evaluate_one(job, &job->parsed[i], job->batches, i);
    }
    progress_end();
    return code;
}

static void print_table(const eval_job *job) {
    const train_config *config = &job->trainer.config;
    size_t width = 4;
    bool trained = false;
    for (int i = 0; i < job->kinds; i++)
        width = strlen(job->names[i]) > width ? strlen(job->names[i]) : width;
    printf("%s, trained with %s for %" PRId64 " steps; %" PRId64 " batches of %" PRId64
           "\n\n  %-*s %10s %9s %12s\n",
           config->task, job->trained, job->trainer.state.step, job->batches,
           config->batch, (int)width, "kind", "loss", "right %", "of");
    for (int i = 0; i < job->kinds; i++) {
        trained = trained || is_trained(job, i);
        printf("%c %-*s %10.6f %9.3f %12" PRId64 "\n", is_trained(job, i) ? '*' : ' ',
               (int)width, job->names[i], job->scores[i].loss,
               100 * job->scores[i].accuracy, job->scores[i].counted);
    }
    if (trained)
        printf("\n* the kind it was trained with\n");
}

static int print_object(const eval_job *job) {
    const train_config *config = &job->trainer.config;
    json_t *kinds = json_array();
    for (int i = 0; i < job->kinds; i++)
        json_array_append_new(kinds,
                              json_pack("{s:s, s:o, s:o, s:I, s:I}", "kind",
                                        job->names[i], "loss",
                                        json_number(job->scores[i].loss), "accuracy",
                                        json_number(job->scores[i].accuracy), "correct",
                                        (json_int_t)job->scores[i].correct, "counted",
                                        (json_int_t)job->scores[i].counted));
    return print_json(json_pack("{s:s, s:s, s:I, s:I, s:o, s:o}", "task", config->task,
                                "trained", job->trained, "steps",
                                (json_int_t)job->trainer.state.step, "batches",
                                (json_int_t)job->batches, "config",
                                train_config_json(config), "kinds", kinds));
}

/* What has an evaluation of its own. */
static int evaluate_other(eval_job *job) {
    const text_eval_job text = {.path = job->speech.path,
                                .data = job->speech.data,
                                .predictions = job->predictions,
                                .skip_bad = job->speech.skip_bad,
                                .controls = job->speech.controls,
                                .json = job->json,
                                .kinds = job->kinds,
                                .names = job->names};
    if (job->text)
        return text_eval(&text, job->context);
    job->speech.kinds = job->kinds;
    job->speech.names = job->names;
    job->speech.json = job->json;
    return speech_eval(&job->speech, job->context);
}

static int run(eval_job *job, int count, char **paths) {
    if (count != 1)
        return complain(EXIT_USAGE, "eval", "%s; usage: shoal %s",
                        count == 0 ? "no checkpoint was given"
                                   : "one checkpoint at a time",
                        eval_help.usage);
    int code = open_context("eval", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    code = parse_kinds(job);
    if (code == EXIT_OK)
        code = open_checkpoint(job, paths[0]);
    if (code == EXIT_OK && (job->recogniser || job->text)) {
        code = evaluate_other(job);
        shoal_context_destroy(job->context);
        return code;
    }
    if (code == EXIT_OK && job->kinds == 0) {
        job->parsed[0] = job->trainer.config.model.attention;
        snprintf(job->names[job->kinds++], NAME, "%s", job->trained);
    }
    if (code == EXIT_OK)
        code = evaluate(job);
    if (code == EXIT_OK && job->json)
        code = print_object(job);
    else if (code == EXIT_OK)
        print_table(job);
    trainer_end(&job->trainer);
    shoal_context_destroy(job->context);
    return code;
}

int eval_command(int count, char **arguments) {
    static eval_job job = {.batches = DEFAULT_BATCHES, .speech = {.join = -1}};
    const int ended = take_options(&eval_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    return run(&job, count - optind, arguments + optind);
}
