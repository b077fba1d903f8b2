/* shoal quality: the command line. */
#define _GNU_SOURCE
#include "quality.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"

enum { DEFAULT_SAMPLES = 256, DEFAULT_REPEATS = 7, DEFAULT_SEED = 1 };

#define DEFAULT_KINDS                                                                    \
    "full,clustered-C,i-clustered-C,i-clustered-C:groups=keys,"                          \
    "i-clustered-C:normaliser=query,shoal-C:topk=32,shoal-C"

enum {
    OPTION_KINDS,
    OPTION_CLUSTERS,
    OPTION_LAYERS,
    OPTION_SAMPLES,
    OPTION_REPEATS,
    OPTION_SEED,
    OPTION_THREADS,
    OPTION_ISA,
    OPTION_PLOT,
    OPTION_JSON,
    OPTION_HELP
};

static const option_row rows[] =
    {[OPTION_KINDS] = {"kinds", 0, "LIST",
                       "kinds of attention, as shoal kinds spells them; a kind's -C\n"
                       "stands for --clusters; full is added where it is missing\n"
                       "(default: full,clustered-C,i-clustered-C,\n"
                       "i-clustered-C:groups=keys,i-clustered-C:normaliser=query,\n"
                       "shoal-C:topk=32,shoal-C)"},
     [OPTION_CLUSTERS] = {"clusters", 0, "C",
                          "groups of queries (default: 100; 25 when there are fewer\n"
                          "than 1024 queries)"},
     [OPTION_LAYERS] = {"layers", 0, "LIST",
                        "only these layers, such as 0,2..4 (default: all)"},
     [OPTION_SAMPLES] = {"samples", 0, "N",
                         "queries per layer whose attention rows are compared; all of\n"
                         "them if there are no more (default: 256)"},
     [OPTION_REPEATS] = {"repeats", 0, "R",
                         "timed calls per kind and layer, taken in turns; the best\n"
                         "counts, 1 to 1000 (default: 7)"},
     [OPTION_SEED] = {"seed", 0, "S",
                      "seed of the kinds, unless spelled, and of the sample\n"
                      "(default: 1)"},
     [OPTION_THREADS] = THREADS_ROW,
     [OPTION_ISA] = ISA_ROW,
     [OPTION_PLOT] = {"plot", 0, "F.svg|F.png",
                      "draw error against time, with the Pareto front"},
     [OPTION_JSON] = {"json", 0, NULL, "print one JSON object instead of the tables"},
     [OPTION_HELP] = HELP_ROW,
     {0}};

static const command_help help = {
    "quality", "quality DIR... [options]",
    "How near each kind of attention comes to full attention on queries, keys and "
    "values\n"
    "of a real model, and what that costs. DIR holds layerL_q.npy, layerL_k.npy and\n"
    "layerL_v.npy for its layers L: float32 [batch, heads, length, dim], one shape for\n"
    "all layers; k and v may have fewer heads than q, a divisor of them.\n",
    rows,
    "error: |out - full| / |full|, a layer as one long vector; its mean over the layers\n"
    "and its worst. rows L1: mean L1 distance of a query's attention weights from\n"
    "full's, 0 to 2. strongest key same: share of queries whose largest weight is on\n"
    "full's key. Weights are computed in double precision from the groups and top keys\n"
    "that were used, and must give the output when applied to v: if one does not, the\n"
    "exit code is 1. lsh has none: -.\n"
    "Ctrl-C shows the layers measured so far; twice ends at once.\n"};

/* ---- Options ----------------------------------------------------------------------- */

static bool take_kinds(quality_job *job, const char *text) {
    job->kinds = read_kinds("quality", "kinds", text, job->kind_texts[0],
                            sizeof *job->kind_texts, QUALITY_KINDS);
    return job->kinds > 0;
}

/* Errors and speeds are against full: where it is not asked for it comes first. */
static bool place_reference(quality_job *job) {
    for (job->reference = 0; job->reference < job->kinds; job->reference++)
        if (strcmp(job->kind_texts[job->reference], "full") == 0)
            return true;
    if (job->kinds == QUALITY_KINDS) {
        complain(EXIT_USAGE, "quality", "--kinds has more than %d kinds without full",
                 QUALITY_KINDS - 1);
        return false;
    }
    memmove(job->kind_texts + 1, job->kind_texts,
            (size_t)job->kinds * sizeof *job->kind_texts);
    snprintf(job->kind_texts[0], QUALITY_NAME, "full");
    job->kinds++;
    job->reference = 0;
    return true;
}

static bool take_option(void *shared, int option, const char *value) {
    quality_job *job = shared;
    switch (option) {
    case OPTION_KINDS: return take_kinds(job, value);
    case OPTION_CLUSTERS:
        return parse_integer("quality", "clusters", value, 1, 65535, &job->clusters);
    case OPTION_LAYERS: job->layers_text = value; return true;
    case OPTION_SAMPLES:
        return parse_integer("quality", "samples", value, 1, INT32_MAX, &job->samples);
    case OPTION_REPEATS:
        return parse_integer("quality", "repeats", value, 1, 1000, &job->repeats);
    case OPTION_SEED: return parse_seed("quality", "seed", value, &job->seed);
    case OPTION_THREADS:
        return parse_integer("quality", "threads", value, 0, 4096, &job->threads);
    case OPTION_ISA: job->isa = value; return true;
    case OPTION_PLOT: return take_plot("quality", value, &job->plot_path);
    case OPTION_JSON: job->json = true; return true;
    default: return true;
    }
}

/* ---- The command ------------------------------------------------------------------- */

/* Misspelt kinds are mistakes of the command line, found before a folder is read. */
static int check_kinds(const quality_job *job) {
    shoal_attention attention[QUALITY_KINDS];
    char spelling[QUALITY_KINDS][QUALITY_NAME];
    return quality_parse_kinds(job, job->clusters ? job->clusters : QUALITY_CLUSTERS,
                               attention, spelling);
}

static int measure_folders(quality_job *job) {
    int code = EXIT_OK;
    for (int i = 0; i < job->folder_count && code == EXIT_OK; i++)
        code = quality_open(job, &job->folders[i]);
    if (code == EXIT_OK)
        watch_stop();
    for (int i = 0; i < job->folder_count && code == EXIT_OK && !job->interrupted; i++) {
        code = quality_measure(job, &job->folders[i]);
        job->interrupted = stop_signal() != 0;
        if (code == EXIT_OK && !job->json)
            quality_print(job, &job->folders[i]);
    }
    if (code == EXIT_OK && job->json)
        code = quality_print_json(job);
    if (code == EXIT_OK && job->plot_path)
        code = quality_write_plot(job);
    return code == EXIT_OK && job->interrupted ? 128 + stop_signal() : code;
}

static int run(quality_job *job, int count, char **paths) {
    if (count == 0)
        return complain(EXIT_USAGE, "quality", "no folder was given; usage: shoal %s",
                        help.usage);
    int code = check_destination("quality", job->plot_path);
    if (code == EXIT_OK)
        code = open_context("quality", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    job->folders = calloc((size_t)count, sizeof *job->folders);
    job->folder_count = count;
    for (int i = 0; i < count && job->folders; i++)
        job->folders[i].path = paths[i];
    code = job->folders ? check_kinds(job)
                        : complain(EXIT_RESOURCES, "quality", "out of memory");
    if (code == EXIT_OK)
        code = measure_folders(job);
    free(job->folders);
    shoal_context_destroy(job->context);
    return code;
}

int quality_command(int count, char **arguments) {
    static quality_job job = {.samples = DEFAULT_SAMPLES,
                              .repeats = DEFAULT_REPEATS,
                              .seed = DEFAULT_SEED};
    const int ended = take_options(&help, count, arguments, take_option, &job);
    if (ended >= 0)
        return ended;
    if (job.kinds == 0)
        take_kinds(&job, DEFAULT_KINDS);
    if (!place_reference(&job))
        return EXIT_USAGE;
    return run(&job, count - optind, arguments + optind);
}
