/* shoal train: the command line. */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "train.h"

enum { DEFAULT_SAVE = 60, DEFAULT_TEST = 20 };

/* Up to OPTION_CONFIG the names are fields of the configuration. */
enum {
    OPTION_ATTENTION,
    OPTION_LENGTH,
    OPTION_LAYERS,
    OPTION_STEPS,
    OPTION_BATCH,
    OPTION_RATE,
    OPTION_SEED,
    OPTION_CONFIG,
    OPTION_SET,
    OPTION_PRINT,
    OPTION_OUT,
    OPTION_RESUME,
    OPTION_SAVE,
    OPTION_THREADS,
    OPTION_ISA,
    OPTION_JSON,
    OPTION_HELP
};

static const option_row rows[] =
    {[OPTION_ATTENTION] = {"attention", 0, "KIND",
                           "as shoal kinds spells them (default: full)"},
     [OPTION_LENGTH] = {"length", 0, "L",
                        "copy: symbols of w in 0w0w, 2 L + 2 positions (default: 31)"},
     [OPTION_LAYERS] = {"layers", 0, "N", "encoder layers (default: 4)"},
     [OPTION_STEPS] = {"steps", 0, "N", "steps in all (default: 5000)"},
     [OPTION_BATCH] = {"batch", 0, "N", "sequences of a step (default: 32)"},
     [OPTION_RATE] = {"learning-rate", 0, "X", "(default: 0.0002)"},
     [OPTION_SEED] = {"seed", 0, "S", "of weights, data and dropout (default: 1)"},
     [OPTION_CONFIG] = {"config", 0, "F.json",
                        "an object of fields, as --print-config writes it; flags win"},
     [OPTION_SET] = {"set", 0, "KEY=VALUE", "any field; may be repeated"},
     [OPTION_PRINT] = {"print-config", 0, NULL,
                       "print the whole configuration as JSON and stop"},
     [OPTION_OUT] = {"out", 'o', "DIR",
                     "folder for " TRAIN_CHECKPOINT " and " TRAIN_LOG ";\n"
                     "made if it is missing"},
     [OPTION_RESUME] =
         {"resume", 0, NULL,
          "go on from the checkpoint in the folder, or begin where there is\n"
          "none; the configuration is the checkpoint's, --steps may differ"},
     [OPTION_SAVE] = {"save-seconds", 0, "S",
                      "seconds between checkpoints; 0: after every step (default: 60)"},
     [OPTION_THREADS] = {"threads", 0, "T",
                         "threads (default: 0, one per processor); they change\n"
                         "the time and nothing else"},
     [OPTION_ISA] = ISA_ROW,
     [OPTION_JSON] = {"json", 0, NULL, "print the result as one JSON object"},
     [OPTION_HELP] = HELP_ROW,
     {0}};

static const command_help help = {
    "train", "train TASK --out DIR [options]",
    "Trains a transformer encoder. TASK is copy: 0w0w with w of L symbols from 1 to 10,\n"
    "a fifth of them masked and never both copies of one; the masked ones are wanted.\n"
    "Defaults are the paper's: 4 layers, 6 heads of 32, feed-forward 768, sinusoidal\n"
    "positions, R-Adam at 0.0002, gradients clipped at 10, weight decay 0.01, batches "
    "of\n"
    "32, 5000 steps, the rate halved on a plateau of the validation loss.\n",
    rows,
    "Validation is on fresh data every validate_every steps. The log has one JSON "
    "object\n"
    "per line; shoal plot draws it. Ctrl-C saves a checkpoint and says how to go on; "
    "after\n"
    "a crash nothing is lost but the steps since the last checkpoint, and --resume "
    "gives\n"
    "the same curve to the last bit as if nothing had happened.\n"};

typedef struct {
    train_run run;
    train_settings settings;
    int64_t threads, save_seconds;
    const char *isa;
    bool json, print_config;
} train_job;

/* ---- Options --------------------------------------------------------------------- */

/* Files first, so that flags win wherever they stand. */
static bool take_option(train_job *job, int option, const char *value, bool files) {
    if (option < OPTION_CONFIG)
        return files || train_say(&job->settings, rows[option].name, value) == EXIT_OK;
    switch (option) {
    case OPTION_SET: return files || train_say_pair(&job->settings, value) == EXIT_OK;
    case OPTION_PRINT: job->print_config = true; return true;
    case OPTION_OUT: job->run.folder = value; return true;
    case OPTION_RESUME: job->run.resume = true; return true;
    case OPTION_SAVE:
        return parse_integer("train", "save-seconds", value, 0, 1000000,
                             &job->save_seconds);
    case OPTION_THREADS:
        return parse_integer("train", "threads", value, 0, 4096, &job->threads);
    case OPTION_ISA: job->isa = value; return true;
    case OPTION_JSON: job->json = true; return true;
    default: return true;
    }
}

/* Goes through the words twice: files, then flags. -1: go on. */
static int take_twice(train_job *job, int count, char **arguments) {
    for (int pass = 0; pass < 2; pass++) {
        const char *value;
        optind = 0; /* glibc's way to begin again */
        for (int option;
             (option = next_option(&help, count, arguments, &value)) != OPTIONS_END;) {
            if (option == OPTION_HELP) {
                print_help(&help);
                return EXIT_OK;
            }
            if (option == OPTION_CONFIG && pass == 0) {
                const int code = train_say_file(&job->settings, value);
                if (code != EXIT_OK)
                    return code;
            }
            if (option == OPTIONS_WRONG || !take_option(job, option, value, pass == 0))
                return EXIT_USAGE;
        }
    }
    return -1;
}

/* ---- Results --------------------------------------------------------------------- */

static json_t *score_json(const train_score *score) {
    return json_pack("{s:o, s:o, s:I, s:I}", "loss", json_number(score->loss), "accuracy",
                     json_number(score->accuracy), "correct", (json_int_t)score->correct,
                     "counted", (json_int_t)score->counted);
}

static int report_json(const train_job *job) {
    const train_run *run = &job->run;
    json_t *object =
        json_pack("{s:o, s:o, s:I, s:b, s:o, s:o}", "config",
                  train_config_json(&run->config), "folder", json_text(run->folder),
                  "steps", (json_int_t)run->state.step, "finished", run->finished,
                  "seconds", json_number(run->state.seconds), "sequences_per_second",
                  json_number(run->sequences_per_second));
    if (run->validated)
        json_object_set_new(object, "validation", score_json(&run->validation));
    if (run->tested)
        json_object_set_new(object, "test", score_json(&run->test));
    return print_json(object);
}

static void report(const train_job *job) {
    const train_run *run = &job->run;
    char kind[TRAIN_VALUE];
    shoal_attention_print(&run->config.model.attention, kind, sizeof kind);
    printf("%s, %s: %" PRId64 " of %" PRId64 " steps, %s\n", run->config.task, kind,
           run->state.step, run->config.steps, seconds_text(run->state.seconds));
    if (run->stepped)
        printf("last step    loss %.6f  right %.2f %%\n", run->last_step.score.loss,
               100 * run->last_step.score.accuracy);
    if (run->validated)
        printf("validation   loss %.6f  right %.2f %%\n", run->validation.loss,
               100 * run->validation.accuracy);
    if (run->tested)
        printf("test         loss %.6f  right %.2f %% (%" PRId64 " of %" PRId64 ")\n",
               run->test.loss, 100 * run->test.accuracy, run->test.correct,
               run->test.counted);
    printf("%s/%s\n%s/%s\n", run->folder, TRAIN_CHECKPOINT, run->folder, TRAIN_LOG);
    fflush(stdout);
}

/* In quotes where a shell would split or expand it. */
static void print_word(FILE *file, const char *word) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789_-+=:,./";
    if (*word && word[strspn(word, plain)] == 0) {
        fprintf(file, " %s", word);
        return;
    }
    fputs(" '", file);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", file);
        else
            fputc(*word, file);
    fputc('\'', file);
}

static int interrupted(const train_job *job) {
    fprintf(stderr,
            "shoal train: interrupted after step %" PRId64
            "; the checkpoint is written. To go on:\n  shoal train %s --resume --out",
            job->run.state.step, job->run.config.task);
    print_word(stderr, job->run.folder);
    fprintf(stderr, " --steps %" PRId64, job->run.config.steps);
    if (job->isa) /* another one rounds otherwise */
        fprintf(stderr, " --isa %s", job->isa);
    fputc('\n', stderr);
    return 128 + stop_signal();
}

/* ---- The command ----------------------------------------------------------------- */

static int print_config(train_job *job, shoal_context *context) {
    const int code = train_apply(&job->settings, context, &job->run.config);
    return code == EXIT_OK ? print_json(train_config_json(&job->run.config)) : code;
}

static int train(train_job *job, shoal_context *context) {
    if (!job->run.folder)
        return complain(EXIT_USAGE, "train", "no folder was given; usage: shoal %s",
                        help.usage);
    watch_stop();
    int code = train_go(&job->run, context);
    if (code != EXIT_OK)
        return code;
    if (job->json)
        code = report_json(job);
    else
        report(job);
    return code == EXIT_OK && stop_signal() && !job->run.finished ? interrupted(job)
                                                                  : code;
}

static int with_task(train_job *job, int count, char **words) {
    shoal_context *context;
    train_reason reason;
    if (count != 1)
        return complain(EXIT_USAGE, "train", "%s; usage: shoal %s",
                        count == 0 ? "no task was given" : "one task at a time",
                        help.usage);
    int code = open_context("train", (int)job->threads, job->isa, &context);
    if (code != EXIT_OK)
        return code;
    if (train_defaults(words[0], &job->run.config, &reason))
        code = train_say(&job->settings, "task", words[0]);
    else
        code = complain(EXIT_USAGE, "train", "%s", reason.text);
    if (code == EXIT_OK)
        code = job->print_config ? print_config(job, context) : train(job, context);
    shoal_context_destroy(context);
    return code;
}

int train_command(int count, char **arguments) {
    static train_job job = {.run = {.command = "train",
                                    .label = "",
                                    .settings = &job.settings,
                                    .test_batches = DEFAULT_TEST},
                            .settings = {.command = "train"},
                            .save_seconds = DEFAULT_SAVE};
    const int code = take_twice(&job, count, arguments);
    if (code >= 0)
        return code;
    job.run.save_seconds = (double)job.save_seconds;
    return with_task(&job, count - optind, arguments + optind);
}
