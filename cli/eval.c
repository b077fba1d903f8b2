/* shoal eval: evaluates a trained model with any kind of attention. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "eval.h"

typedef struct {
    char names[EVAL_KINDS][EVAL_NAME];
    int kinds;
    int64_t threads, beams, batches;
    const char *isa, *predictions, *data, *labels, *cache, *tune;
    bool json, controls, skip_bad;
    double join;
    words_options words;
} eval_job;

static bool take_kinds(void *shared, const char *name, const char *value) {
    eval_job *job = shared;
    job->kinds = read_kinds("eval", name, value, job->names[0], EVAL_NAME, EVAL_KINDS);
    return job->kinds > 0;
}

static const option_row rows[] =
    {{"attention", 0, "KINDS",
      "kinds of attention, as in shoal kinds, separated by commas\n"
      "(default: the one used in training)",
      TAKEN_BY(take_kinds)},
     {"data", 0, "DIR",
      "speech: data folder to recognise, such as DATA/test, with the file\n"
      "of transcripts used in training; glue: the folder; squad: dev.json\n"
      "(default: the data of the training)",
      SETS_TEXT(eval_job, data)},
     {"labels", 0, "FILE",
      "speech: file of transcripts (default: that of the training; for\n"
      "lf-mmi phones, or the words of text with --lexicon)",
      SETS_TEXT(eval_job, labels)},
     {"controls", 0, NULL,
      "speech, glue, squad: also evaluate uniform attention, no attention,\n"
      "and clustered-1",
      SETS_FLAG(eval_job, controls)},
     {"beams", 0, "N",
      "speech: number of beams for prefix beam search (default: 0, the most\n"
      "probable unit at each position)",
      SETS_INTEGER(eval_job, beams, 0, 10000)},
     WORDS_ROWS(eval_job, words, "speech: "),
     {"tune", 0, "DIR",
      "speech: choose the weight and insertion with the fewest word errors\n"
      "on this data folder, such as DATA/dev (default: as given)",
      SETS_TEXT(eval_job, tune)},
     {"join", 0, "SECONDS",
      "speech: concatenate utterances of a speaker up to this length;\n"
      "0: none (default: as in the training)",
      SETS_NUMBER(eval_job, join, 0, 3600)},
     {"cache", 0, "DIR", "speech: folder for cached features, as in shoal train",
      SETS_TEXT(eval_job, cache)},
     {"predictions", 0, "FILE",
      "glue, squad: write the predictions of the first kind; for squad in\n"
      "the format of the official scorer",
      SETS_TEXT(eval_job, predictions)},
     {"skip-bad", 0, NULL, "skip utterances and rows that cannot be used",
      SETS_FLAG(eval_job, skip_bad)},
     {"batches", 0, "N",
      "copy: batches of the training's size, the same for every kind, that\n"
      "neither training nor validation used (default: 20)",
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
    "Evaluates a checkpoint of shoal train (the file, or its folder) with each of the\n"
    "kinds of attention: copy on new data, a recogniser on the folder of --data, with\n"
    "its error rate and a 95 % confidence interval (bootstrap, 10000 resamples of\n"
    "sequences), a model of glue or squad on its dev set. With a lexicon and a\n"
    "language model, word errors are counted too, against the file text of the folder.\n",
    rows,
    "lsh and shared-full use the queries as keys: they can only evaluate models that "
    "were\n"
    "trained like that (with one of the two, or with shared_qk).\n",
    "FILE"};

/* ---- The tables -------------------------------------------------------------------- */

/* "* kind": a marked row name. */
static void print_name(const shoal_evaluation_row *row, int width) {
    printf("%c %-*s", row->control ? '-' : row->trained ? '*' : ' ', width, row->kind);
}

static int name_width(const shoal_evaluation *e) {
    shoal_evaluation_row row;
    int width = 4;
    for (int i = 0; shoal_evaluation_row_get(e, i, &row) == SHOAL_OK; i++)
        width = (int)strlen(row.kind) > width ? (int)strlen(row.kind) : width;
    return width;
}

static void print_marks(const eval_job *job) {
    printf("\n"
           "* kind used in training%s\n",
           job->controls ? "\n"
                           "- controls: if they are not much worse, the model hardly "
                           "uses attention, and the\n"
                           "  comparison of kinds says little"
                         : "");
}

static void print_copy(const shoal_evaluation *e) {
    const shoal_evaluation_info *info = shoal_evaluation_describe(e);
    const int width = name_width(e);
    shoal_evaluation_row row;
    shoal_evaluation_score score;
    bool trained = false;
    printf("%s, trained with %s for %" PRId64 " steps; %" PRId64 " batches of %" PRId64
           "\n\n  %-*s %10s %9s %12s\n",
           info->task, info->trained, info->step, info->sequences, info->batch, width,
           "kind", "loss", "right %", "of");
    for (int i = 0; shoal_evaluation_row_get(e, i, &row) == SHOAL_OK; i++) {
        shoal_evaluation_score_get(e, i, 0, &score);
        trained = trained || row.trained;
        print_name(&row, width);
        printf(" %10.6f %9.3f %12" PRId64 "\n", row.loss, 100 * score.value, row.counted);
    }
    if (trained)
        printf("\n"
               "* kind used in training\n");
}

static void print_text(const eval_job *job, const shoal_evaluation *e) {
    const shoal_evaluation_info *info = shoal_evaluation_describe(e);
    const int width = name_width(e);
    shoal_evaluation_row row;
    shoal_evaluation_score score;
    printf("%s, %s, trained with %s, step %" PRId64 "; dev: %" PRId64 " %s\n\n  %-*s",
           info->path, info->dataset, info->trained, info->step, info->sequences,
           strcmp(info->task, "glue") == 0 ? "texts" : "questions", width, "kind");
    for (int i = 0; shoal_evaluation_score_get(e, 0, i, &score) == SHOAL_OK; i++)
        printf(" %12s", score.name);
    printf(" %9s\n", "seconds");
    for (int i = 0; shoal_evaluation_row_get(e, i, &row) == SHOAL_OK; i++) {
        print_name(&row, width);
        for (int k = 0; shoal_evaluation_score_get(e, i, k, &score) == SHOAL_OK; k++)
            printf(" %12.4f", score.value);
        printf(" %9.2f\n", score.seconds);
    }
    print_marks(job);
}

/* Errors of units (which 0) or words (1). */
static void print_rates(const shoal_evaluation *e, int which) {
    const int width = name_width(e);
    shoal_evaluation_row row;
    shoal_evaluation_score rate;
    printf("  %-*s %8s %17s %7s %6s %6s %6s  %s\n", width, "kind",
           which ? "words %" : "error %", "95 %", "seconds", "sub", "ins", "del",
           "minus the first, 95 %");
    for (int i = 0; shoal_evaluation_row_get(e, i, &row) == SHOAL_OK; i++) {
        shoal_evaluation_score_get(e, i, which, &rate);
        print_name(&row, width);
        printf(" %8.2f %8.2f %8.2f %7.2f %6" PRId64 " %6" PRId64 " %6" PRId64, rate.value,
               rate.low, rate.high, rate.seconds, rate.edits.substitutions,
               rate.edits.insertions, rate.edits.deletions);
        if (i > 0)
            printf("  %+.2f (%+.2f to %+.2f)", rate.difference, rate.difference_low,
                   rate.difference_high);
        putchar('\n');
    }
}

static void print_speech(const eval_job *job, const shoal_evaluation *e) {
    const shoal_evaluation_info *info = shoal_evaluation_describe(e);
    shoal_evaluation_score words;
    printf("%s, trained with %s, step %" PRId64 "; %s: %" PRId64 " sequences, %" PRId64
           " labels\n\n",
           info->path, info->trained, info->step, job->data, info->sequences,
           info->labels);
    print_rates(e, 0);
    if (shoal_evaluation_score_get(e, 0, 1, &words) == SHOAL_OK) {
        putchar('\n');
        print_rates(e, 1);
        const shoal_word_settings *settings = &info->word_settings;
        printf("\n"
               "lexicon %s\n"
               "language model %s\n"
               "language weight %g, insertion %g, %s%s; beam %g, tokens %" PRId64
               "; search %.4f times real time\n%" PRId64
               " words, %.2f %% of them not in the lexicon or the language model\n"
               "The training text of a language model may contain some of these "
               "sentences; that of\n"
               "pocketsphinx-en-us is not documented. The error of units does not depend "
               "on it.\n",
               job->words.lexicon, job->words.lm, settings->lm_weight,
               settings->insertion, job->tune ? "tuned on " : "not tuned",
               job->tune ? job->tune : "", settings->beam, settings->tokens,
               words.seconds / info->seconds, info->words,
               100 * (double)info->missing_words /
                   (info->words ? (double)info->words : 1));
    }
    if (info->impossible)
        printf("\n%" PRId64 " sequences have more labels than positions\n",
               info->impossible);
    print_marks(job);
}

static int report(const eval_job *job, const shoal_evaluation *e) {
    const char *task = shoal_evaluation_describe(e)->task;
    const char *predictions = shoal_evaluation_predictions(e);
    if (job->predictions && predictions) {
        replacement to;
        FILE *file = replace_begin(&to, job->predictions);
        if (!file || !replace_end(&to, fputs(predictions, file) != EOF))
            return complain(EXIT_RESOURCES, "eval", "%s cannot be written: %s",
                            job->predictions, strerror(errno));
    }
    if (job->json)
        return print_json(json_loads(shoal_evaluation_json(e), 0, NULL));
    if (strcmp(task, "copy") == 0)
        print_copy(e);
    else if (strcmp(task, "speech") == 0)
        print_speech(job, e);
    else
        print_text(job, e);
    return EXIT_OK;
}

/* ---- The command ------------------------------------------------------------------- */

int evaluate_run(const char *command, shoal_context *context, const char *path, int kinds,
                 char (*names)[EVAL_NAME], shoal_evaluation_options *options,
                 shoal_evaluation **evaluation, json_t **object) {
    shoal_attention parsed[EVAL_KINDS];
    *evaluation = NULL;
    for (int i = 0; i < kinds; i++) {
        const shoal_status status = shoal_attention_parse(context, names[i], &parsed[i]);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, command, context);
    }
    options->attention = parsed;
    options->kinds = kinds;
    options->callbacks = show_training("");
    progress_begin(2);
    const shoal_status status =
        shoal_evaluation_create(context, path, options, evaluation);
    progress_end();
    if (status == SHOAL_CANCELLED)
        return 128 + (stop_signal() ? stop_signal() : SIGTERM);
    if (status != SHOAL_OK)
        return complain_status(status,
                               status == SHOAL_INVALID ? EXIT_USAGE
                               : status == SHOAL_IO    ? EXIT_RESOURCES
                                                       : EXIT_BAD_INPUT,
                               command, context);
    if (object)
        *object = json_loads(shoal_evaluation_json(*evaluation), 0, NULL);
    return EXIT_OK;
}

int eval_command(int count, char **arguments) {
    static eval_job job = {.batches = 20, .join = -1};
    static shoal_evaluation *evaluation;
    shoal_recogniser_options recogniser;
    int code = EXIT_OK;
    begin_command(&eval_help, count, arguments, &job);
    if (count - optind != 1)
        die_of_usage(count == optind ? "no checkpoint was given" : "give one checkpoint");
    shoal_context *context = begin_context(job.threads, job.isa);
    plan_output(job.predictions);
    if (!(job.words.lexicon && !job.words.lm)) /* LF-MMI may have a lexicon without a
                                                  language model */
        words_wanted("eval", &job.words, &code);
    if (code != EXIT_OK || !words_take("eval", &job.words, &recogniser))
        return EXIT_USAGE;
    recogniser.beams = job.beams;
    shoal_evaluation_options options = shoal_evaluation_options_defaults();
    options.controls = job.controls;
    options.data = job.data;
    options.skip_bad = job.skip_bad;
    options.batches = job.batches;
    options.labels = job.labels;
    options.cache = job.cache;
    options.join = job.join;
    options.tune = job.tune;
    options.recogniser = &recogniser;
    code = evaluate_run("eval", context, arguments[optind], job.kinds, job.names,
                        &options, &evaluation, NULL);
    return code == EXIT_OK ? report(&job, evaluation) : code;
}
