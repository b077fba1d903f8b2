/* shoal repro: the command line. */
#define _GNU_SOURCE
#include "repro.h"

#include <unistd.h>

/* ---- The command line -------------------------------------------------------------- */

static repro_job the_job = {.save_seconds = 60, .minutes = -1};

static bool take_field(void *shared, const char *name, const char *value) {
    (void)shared;
    if (!the_job.given)
        the_job.given = json_object();
    json_object_set_new(the_job.given, name, json_text(value));
    return true;
}

/* Fields varied by axes have their own options. */
static bool take_pair(void *job, const char *name, const char *pair) {
    static const char *const own[][2] = {{"length", "lengths"}, {"attention", "kinds"}};
    char field[64];
    const size_t length = strcspn(pair, "=");
    if (!pair[length] || length == 0 || length >= sizeof field)
        die(EXIT_USAGE, "--set is \"%s\"; it must be KEY=VALUE", pair);
    for (size_t i = 0; i < length + 1; i++)
        field[i] = i == length ? 0 : pair[i] == '-' ? '_' : pair[i];
    for (int i = 0; i < 2; i++)
        if (strcmp(field, own[i][0]) == 0)
            die(EXIT_USAGE, "--%s %s: use --%s instead", name, pair, own[i][1]);
    return take_field(job, field, pair + length + 1);
}

static const option_row rows[] =
    {{"out", 'o', "DIR", "folder for runs, " REPRO_RESULTS " and pictures",
      SETS_TEXT(repro_job, folder)},
     {"kinds", 0, "KINDS",
      "kinds of attention (default: full, clustered and i-clustered with\n"
      "15, 30, 60 and 100 clusters, lsh with 1, 4, 8 and 16 rounds); for\n"
      "speech and lf-mmi cells also KIND@LAYERS, and CELL+KIND, which\n"
      "continues a cell at a lower learning rate (default: the paper's\n"
      "kinds and shoal, for speech also shared-full; full and\n"
      "i-clustered-100 with fewer layers; two cells of 100 clusters\n"
      "continued with 200)",
      SETS_TEXT(repro_job, kinds)},
     {"model", 'm', "DIR", "text: Hugging Face folder of a BERT or RoBERTa",
      SETS_TEXT(repro_job, model)},
     {"tasks", 0, "LIST",
      "text: tasks of GLUE, and SQuAD (default: all whose data exists)",
      SETS_TEXT(repro_job, tasks)},
     {"only", 0, "CELLS", "speech, lf-mmi: train only these cells now",
      SETS_TEXT(repro_job, only)},
     {"evaluate", 0, "KINDS",
      "speech, lf-mmi, text: rows of the matrix (default: the paper's kinds\n"
      "and shoal)",
      SETS_TEXT(repro_job, evaluate)},
     {"minutes", 0, "M",
      "speech, lf-mmi: train every cell for this time, and for all epochs;\n"
      "0: epochs only (default: 40); once calibrated, for the number of\n"
      "steps of this time",
      SETS_NUMBER(repro_job, minutes, 0, 1000000)},
     WORDS_ROWS(repro_job, words, ""),
     {"labels", 0, "FILE", "speech: file of transcripts (default: text)",
      TAKEN_BY(take_field)},
     {"join", 0, "SECONDS", "speech, lf-mmi: as in shoal train (default: 60)",
      TAKEN_BY(take_field)},
     {"epochs", 0, "N",
      "passes over the data (default: 15 for speech and lf-mmi; text: as\n"
      "in shoal train)",
      TAKEN_BY(take_field)},
     {"cache", 0, "DIR", "speech, lf-mmi: folder for cached features, as in shoal train",
      SETS_TEXT(repro_job, cache)},
     {"skip-bad", 0, NULL, "skip utterances and rows that cannot be used",
      SETS_FLAG(repro_job, skip_bad)},
     {"lengths", 0, "LIST",
      "copy: lengths of w (default: 31,63,127,255: 64 to 512 positions)",
      SETS_TEXT(repro_job, lengths)},
     {"steps", 0, "N",
      "steps per cell; finished cells with fewer are continued\n"
      "(default: 5000)",
      TAKEN_BY(take_field)},
     {"seed", 0, "S", "seed of weights, data and dropout (default: 1)",
      TAKEN_BY(take_field)},
     {"set", 0, "KEY=VALUE",
      "set any other field of the runs, as in shoal train; may be\n"
      "repeated",
      TAKEN_BY(take_pair)},
     {"save-seconds", 0, "S", "seconds between checkpoints of a run (default: 60)",
      SETS_INTEGER(repro_job, save_seconds, 0, 1000000)},
     THREADS_ROW(repro_job),
     ISA_ROW(repro_job),
     {"show", 0, NULL, "train nothing: print and draw the existing results",
      SETS_FLAG(repro_job, show)},
     {"status", 0, NULL,
      "train nothing: print which cells are done, running and left, and\n"
      "the remaining time",
      SETS_FLAG(repro_job, status)},
     {"calibrate", 0, NULL,
      "train nothing: measure the seconds per step of each cell and "
      "write\n" REPRO_CALIBRATION ", from which budgets and hours are computed",
      SETS_FLAG(repro_job, calibrate)},
     {"markdown", 0, NULL, "print the table as Markdown", SETS_FLAG(repro_job, markdown)},
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(repro_job, json)},
     HELP_ROW,
     {0}};

const command_help repro_help = {
    "repro",
    "repro copy|speech DATA|lf-mmi DATA|text DATA|TABLE.json [DATA] --out DIR [options]",
    "copy: the paper's masked copy experiment. Trains a transformer for every kind of\n"
    "attention and every length, shortest sequences first. A cell ends after all steps, "
    "or\n"
    "early after three consecutive validations, of 5 new batches each, without a "
    "mistake\n"
    "(stop_after, validate_batches). Its accuracy is then measured on 20 other batches.\n"
    "\n"
    "speech: the paper's speech tables on DATA (folders train, dev and test, as for "
    "shoal\n"
    "train). Trains a recogniser for every cell; the best model on dev, after the "
    "epochs\n"
    "and after the minutes, is evaluated on test with its own kind, with the controls "
    "of\n"
    "shoal eval, and with every other kind that its weights support.\n"
    "\n"
    "lf-mmi: the paper's other speech table. The same with lattice-free MMI, trained on\n"
    "words and the pronunciations of --lexicon, and also evaluated by words with the\n"
    "language model of --lm, whose weight and insertion are tuned on dev for each cell\n"
    "unless both are given.\n"
    "\n"
    "text: the paper's table of GLUE and SQuAD on DATA (folders glue and squad).\n"
    "Fine-tunes the model of --model on each task with the kind of --kinds (default: "
    "full)\n"
    "and evaluates it on dev with each kind of --evaluate and with the controls.\n"
    "\n"
    "TABLE.json: an experiment of your own (docs/experiments.md). The four experiments\n"
    "above are such tables.\n",
    rows,
    "Ctrl-C saves; the same command continues, cell by cell and inside a cell. Several\n"
    "processes may share a folder: each takes cells that no other process is training.\n"
    "Pictures are written to DIR; speech and lf-mmi also write tables.md and "
    "results.json,\n"
    "text writes table.md and results.json.\n",
    "copy|speech|lf-mmi|text|FILE DIR"};

/* ---- The command ------------------------------------------------------------------- */

/* Checks the options for words before the first training. */
static void check_words(const repro_job *job) {
    int code;
    const bool needed = json_is_true(json_object_get(job->table, "words"));
    if (!job->show && !words_wanted("repro", &job->words, &code) && code == EXIT_OK &&
        needed)
        code = complain(EXIT_USAGE, "repro",
                        "words need both --lexicon and --lm; Debian's package "
                        "pocketsphinx-en-us has both for English");
    if (!job->show && code != EXIT_OK)
        leave(code);
}

static void say_cells(int count, const char *one, const char *more) {
    if (count > 0)
        fprintf(stderr, "shoal repro: %d %s\n", count, count == 1 ? one : more);
}

static int end(const repro_job *job) {
    say_cells(job->skipped, "cell is being trained by another process",
              "cells are being trained by other processes");
    say_cells(job->failed, "cell failed; see the message above",
              "cells failed; see the messages above");
    if (job->failed > 0 || !stop_signal())
        return job->failed > 0 ? EXIT_BAD_INPUT : EXIT_OK;
    fprintf(stderr, "shoal repro: interrupted; everything is saved. Run the same command "
                    "to continue.\n");
    return 128 + stop_signal();
}

int repro_command(int count, char **arguments) {
    repro_job *job = &the_job;
    const int ended = take_options(&repro_help, count, arguments, job);
    if (ended >= 0)
        return ended;
    const int words = count - optind;
    if (words == 0)
        die(EXIT_USAGE, "no experiment was given; usage: shoal %s", repro_help.usage);
    repro_load(job, arguments[optind]);
    const bool data = json_is_array(json_object_get(job->table, "data"));
    if (words != 1 + data)
        die(EXIT_USAGE, "%s needs %s; usage: shoal %s", job->name,
            data ? "one data folder" : "no other argument", repro_help.usage);
    if (!job->folder)
        die(EXIT_USAGE, "no folder was given; usage: shoal %s", repro_help.usage);
    job->data = data ? arguments[optind + 1] : NULL;
    job->show = job->show || job->status;
    check_words(job);
    job->context = begin_context(job->threads, job->isa);
    if (!job->show)
        watch_stop();
    repro_make_cells(job);
    if (job->show && access(job->folder, F_OK) != 0)
        die(EXIT_BAD_INPUT, "%s: there are no results to show", job->folder);
    repro_read(job);
    if (job->status)
        repro_status(job);
    else if (job->calibrate)
        repro_calibrate(job);
    else
        repro_train(job);
    if (!job->status && !job->calibrate) {
        repro_read(job);
        repro_report(job);
    }
    return end(job);
}
