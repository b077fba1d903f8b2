/* shoal repro: the command line. */
#define _GNU_SOURCE
#include "repro.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include <shoal_models.h>

#define DEFAULT_KINDS                                                                    \
    "full,clustered-15,clustered-30,clustered-60,clustered-100,i-clustered-15,"          \
    "i-clustered-30,i-clustered-60,i-clustered-100,lsh-1,lsh-4,lsh-8,lsh-16"
#define DEFAULT_LENGTHS "31,63,127,255"

enum { DEFAULT_SAVE = 60 };

/* ---- Options ----------------------------------------------------------------------- */

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

/* Fields that the grid varies have options of their own. */
static bool take_pair(void *job, const char *name, const char *pair) {
    static const char *const own[][2] = {{"length=", "lengths"}, {"attention=", "kinds"}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(pair, own[i][0], strlen(own[i][0])) == 0) {
            complain(EXIT_USAGE, "repro", "--%s %s: use --%s", name, pair, own[i][1]);
            return false;
        }
    return train_say_pair(&((repro_job *)job)->settings, pair) == EXIT_OK;
}

static bool take_field(void *job, const char *name, const char *value) {
    return train_say(&((repro_job *)job)->settings, name, value) == EXIT_OK;
}

static const option_row rows[] =
    {{"out", 'o', "DIR", "folder of the trainings, " REPRO_RESULTS " and the pictures",
      SETS_TEXT(repro_job, folder)},
     {"kinds", 0, "LIST",
      "kinds of attention (default: full, clustered and i-clustered at\n"
      "15, 30, 60 and 100 clusters, lsh at 1, 4, 8 and 16 rounds)",
      TAKEN_BY(take_kinds)},
     {"lengths", 0, "LIST", "lengths of w (default: 31,63,127,255: 64 to 512 positions)",
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

static const command_help help =
    {"repro", "repro copy --out DIR [options]",
     "The paper's masked copy experiment: a transformer is trained for every kind of\n"
     "attention and every length, the shortest sequences first. A cell ends after all "
     "its\n"
     "steps, or early when three validations in a row, 5 fresh batches each, have not "
     "one\n"
     "mistake (stop_after, validate_batches); its accuracy is then measured on 20 "
     "batches\n"
     "that decided nothing.\n",
     rows,
     "Ctrl-C saves; the same command goes on, cell by cell and inside a cell. Several\n"
     "processes may work on one folder: each takes cells that nobody is training.\n"
     "The pictures are DIR/copy.svg and DIR/copy.png.\n"};

/* ---- The command ------------------------------------------------------------------- */

/* One spelling for each kind, so that results are found again. */
static int settle_kinds(repro_job *job) {
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

static int report(repro_job *job) {
    int code = repro_write_pictures(job);
    if (job->json) {
        const int printed = repro_print_json(job);
        return code == EXIT_OK ? printed : code;
    }
    if (job->markdown)
        repro_print_markdown(job);
    else
        repro_print(job);
    return code;
}

static int check_settings(const repro_job *job) {
    train_config config;
    train_defaults("copy", &config, NULL);
    return train_apply(&job->settings, job->context, &config);
}

static int check_folder(const repro_job *job) {
    DIR *folder = opendir(job->folder);
    if (!folder)
        return complain(EXIT_BAD_INPUT, "repro", "%s: nothing can be shown there: %s",
                        job->folder, strerror(errno));
    closedir(folder);
    return EXIT_OK;
}

static int work(repro_job *job) {
    int code = settle_kinds(job);
    if (code == EXIT_OK)
        code = check_settings(job);
    if (code == EXIT_OK && job->show)
        code = check_folder(job);
    if (code == EXIT_OK)
        code = repro_load(job);
    if (code == EXIT_OK && !job->show) {
        watch_stop();
        code = repro_train(job);
    }
    if (code != EXIT_OK)
        return code;
    code = report(job);
    if (code == EXIT_OK && job->failed > 0)
        code = EXIT_BAD_INPUT;
    if (code != EXIT_OK || !stop_signal())
        return code;
    fprintf(stderr, "shoal repro: interrupted; everything is saved. The same command "
                    "goes on.\n");
    return 128 + stop_signal();
}

static int run(repro_job *job, int count, char **words) {
    if (count != 1 || strcmp(words[0], "copy") != 0)
        return complain(EXIT_USAGE, "repro", "%s; usage: shoal %s",
                        count == 0 ? "no experiment was given"
                                   : "the only experiment is copy",
                        help.usage);
    if (!job->folder)
        return complain(EXIT_USAGE, "repro", "no folder was given; usage: shoal %s",
                        help.usage);
    int code = open_context("repro", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    code = work(job);
    json_decref(job->results);
    shoal_context_destroy(job->context);
    return code;
}

int repro_command(int count, char **arguments) {
    static repro_job job = {.settings = {.command = "repro"},
                            .save_seconds = DEFAULT_SAVE};
    const int ended = take_options(&help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (job.kind_count == 0)
        take_kinds(&job, "kinds", DEFAULT_KINDS);
    if (job.length_count == 0)
        take_lengths(&job, "lengths", DEFAULT_LENGTHS);
    return run(&job, count - optind, arguments + optind);
}
