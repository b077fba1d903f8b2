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

/* Fields that the axes vary have options of their own. */
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
            die(EXIT_USAGE, "--%s %s: use --%s", name, pair, own[i][1]);
    return take_field(job, field, pair + length + 1);
}

static const option_row rows[] = {
    {"out", 'o', "DIR", "folder of the trainings, " REPRO_RESULTS " and the pictures",
     SETS_TEXT(repro_job, folder)},
    {"kinds", 0, "KINDS",
     "kinds of attention (default: full, clustered and i-clustered at\n"
     "15, 30, 60 and 100 clusters, lsh at 1, 4, 8 and 16 rounds);\n"
     "of speech and lf-mmi cells: also KIND@LAYERS, and CELL+KIND,\n"
     "which goes on more slowly (default: the paper's, shoal;\n"
     "of speech also shared-full; full and i-clustered-100 of fewer\n"
     "layers; two of 100 clusters go on with 200)",
     SETS_TEXT(repro_job, kinds)},
    {"model", 'm', "DIR", "text: Hugging Face folder of a BERT or RoBERTa",
     SETS_TEXT(repro_job, model)},
    {"tasks", 0, "LIST", "text: tasks of GLUE, and SQuAD (default: all that are there)",
     SETS_TEXT(repro_job, tasks)},
    {"only", 0, "CELLS", "speech, lf-mmi: train these of them now",
     SETS_TEXT(repro_job, only)},
    {"evaluate", 0, "KINDS",
     "speech, lf-mmi, text: rows of the matrix (default: the paper's, and\nshoal)",
     SETS_TEXT(repro_job, evaluate)},
    {"minutes", 0, "M",
     "speech, lf-mmi: every cell is trained for so long, and for all\n"
     "epochs; 0: for the epochs alone (default: 40)\n"
     "once calibrated, for as many steps as these minutes have",
     SETS_NUMBER(repro_job, minutes, 0, 1000000)},
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
     SETS_TEXT(repro_job, lengths)},
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
    {"status", 0, NULL, "train nothing: say what is done, running and left, and how long",
     SETS_FLAG(repro_job, status)},
    {"calibrate", 0, NULL,
     "train nothing: measure the seconds of a step of each cell into\n" REPRO_CALIBRATION
     ", from which then budgets and hours are computed",
     SETS_FLAG(repro_job, calibrate)},
    {"markdown", 0, NULL, "print the table as Markdown", SETS_FLAG(repro_job, markdown)},
    {"json", 0, NULL, "print one JSON object instead of the table",
     SETS_FLAG(repro_job, json)},
    HELP_ROW,
    {0}};

const command_help repro_help =
    {"repro",
     "repro copy|speech DATA|lf-mmi DATA|text DATA|TABLE.json [DATA] --out DIR [options]",
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
     "evaluated on dev with each kind of --evaluate and with the controls.\n\n"
     "TABLE.json, an experiment of your own (docs/experiments.md): these four are such\n"
     "tables.\n",
     rows,
     "Ctrl-C saves; the same command goes on, cell by cell and inside a cell. Several\n"
     "processes may work on one folder: each takes cells that nobody is training.\n"
     "Pictures are put into DIR, of speech and lf-mmi also tables.md and\n"
     "results.json, of text table.md and results.json.\n",
     "copy|speech|lf-mmi|text|FILE DIR"};

/* ---- The command ------------------------------------------------------------------- */

/* What words need, before the first training. */
static void check_words(const repro_job *job) {
    int code;
    const bool needed = json_is_true(json_object_get(job->table, "words"));
    if (!job->show && !words_wanted("repro", &job->words, &code) && code == EXIT_OK &&
        needed)
        code = complain(EXIT_USAGE, "repro",
                        "words need both --lexicon and --lm; Debian's package "
                        "pocketsphinx-en-us has English ones");
    if (!job->show && code != EXIT_OK)
        leave(code);
}

static void say_cells(int count, const char *one, const char *more) {
    if (count > 0)
        fprintf(stderr, "shoal repro: %d %s\n", count, count == 1 ? one : more);
}

static int end(const repro_job *job) {
    say_cells(job->skipped, "cell is left to another process",
              "cells are left to another process");
    say_cells(job->failed, "cell failed, as said above", "cells failed, as said above");
    if (job->failed > 0 || !stop_signal())
        return job->failed > 0 ? EXIT_BAD_INPUT : EXIT_OK;
    fprintf(stderr, "shoal repro: interrupted; everything is saved. The same command "
                    "goes on.\n");
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
            data ? "one data folder" : "no other word", repro_help.usage);
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
        die(EXIT_BAD_INPUT, "%s: nothing can be shown there", job->folder);
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
