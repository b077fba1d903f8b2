/* shoal bench: the command line. */
#define _GNU_SOURCE
#include "bench.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"

enum {
    OPTION_KINDS,
    OPTION_LENGTHS,
    OPTION_HEADS,
    OPTION_DIM,
    OPTION_VALUE_DIM,
    OPTION_FEED_FORWARD,
    OPTION_BATCH,
    OPTION_THREADS,
    OPTION_MODE,
    OPTION_SCOPE,
    OPTION_REPEATS,
    OPTION_QUICK,
    OPTION_BUDGET,
    OPTION_SEED,
    OPTION_ISA,
    OPTION_JSON,
    OPTION_CSV,
    OPTION_PLOT,
    OPTION_HELP
};

#define DEFAULT_KINDS "full,clustered-100,i-clustered-100,lsh-1,lsh-4"
#define DEFAULT_LENGTHS "512..32768"
#define QUICK_LENGTHS "512..8192"
enum { DEFAULT_REPEATS = 7, QUICK_REPEATS = 3, DEFAULT_BUDGET = 240, QUICK_BUDGET = 35 };

static const option_row rows[] =
    {[OPTION_KINDS] =
         {"kinds", 0, "LIST",
          "kinds of attention, as shoal kinds spells them (default:\n" DEFAULT_KINDS ")"},
     [OPTION_LENGTHS] =
         {"lengths", 0, "LIST",
          "sequence lengths; A..B doubles from A to B (default:\n" DEFAULT_LENGTHS
          "; with --quick " QUICK_LENGTHS ")"},
     [OPTION_HEADS] = {"heads", 0, "H", "heads (default: 6)"},
     [OPTION_DIM] = {"dim", 0, "D", "size of a query and of a key (default: 64)"},
     [OPTION_VALUE_DIM] = {"value-dim", 0, "D", "size of a value (default: as --dim)"},
     [OPTION_FEED_FORWARD] = {"feed-forward", 0, "F",
                              "with --scope layer: features inside the feed-forward\n"
                              "(default: 4 H D, so 1536)"},
     [OPTION_BATCH] = {"batch", 0, "B", "sequences (default: 1)"},
     [OPTION_THREADS] = THREADS_ROW,
     [OPTION_MODE] = {"mode", 0, "MODE",
                      "forward, or train: forward and backward (default: forward)"},
     [OPTION_SCOPE] = {"scope", 0, "SCOPE",
                       "attention, or layer: a whole encoder layer with projections,\n"
                       "feed-forward and norms (default: attention)"},
     [OPTION_REPEATS] = {"repeats", 0, "R",
                         "repetitions at most, 1 to 100; fewer where time is short\n"
                         "(default: 7; with --quick 3)"},
     [OPTION_QUICK] = {"quick", 0, NULL,
                       "fewer lengths and repetitions: under 45 seconds"},
     [OPTION_BUDGET] = {"budget", 0, "SECONDS",
                        "what would take longer in all is estimated, not measured\n"
                        "(default: 240; with --quick 35)"},
     [OPTION_SEED] = {"seed", 0, "S", "seed of the data and of the kinds (default: 1)"},
     [OPTION_ISA] = ISA_ROW,
     [OPTION_JSON] = {"json", 0, NULL, "print one JSON object instead of the table"},
     [OPTION_CSV] = {"csv", 0, "F", "write the rows there as comma-separated values"},
     [OPTION_PLOT] = {"plot", 0, "F.svg|F.png",
                      "draw time and memory per element against the length"},
     [OPTION_HELP] = HELP_ROW,
     {0}};

static const command_help help = {
    "bench", "bench [options]",
    "What each kind of attention costs on this machine, in time and in memory, at "
    "growing\n"
    "lengths, and where it becomes faster than full attention. Every result is verified\n"
    "before its time is printed. The kinds take turns; best and median are shown, and "
    "how\n"
    "far apart they are. Beside them, measured in the same run: the rate of a BLAS and "
    "of\n"
    "memory.\n",
    rows,
    "An element is a position of a sequence. B/elem. plan: what the plan holds besides\n"
    "inputs and outputs (layer: what the model holds, weights included); process: how\n"
    "much the process grew at its peak. Where full (or any kind) would exceed the "
    "budget\n"
    "its time is an estimate, marked ~.\n"
    "Ctrl-C shows and saves what is measured so far. A result that is wrong gets no "
    "time,\n"
    "and the exit code is then 1.\n"};

/* ---- Lists ------------------------------------------------------------------------- */

static bool take_kinds(bench_job *job, const char *text) {
    job->kinds = read_kinds("bench", "kinds", text, job->kind_texts[0],
                            sizeof *job->kind_texts, BENCH_KINDS);
    return job->kinds > 0;
}

static bool add_lengths(bench_job *job, int64_t from, int64_t to) {
    for (int64_t length = from; length <= to; length *= 2) {
        if (job->lengths == BENCH_LENGTHS) {
            complain(EXIT_USAGE, "bench", "--lengths has more than %d lengths",
                     BENCH_LENGTHS);
            return false;
        }
        if (job->lengths > 0 && job->length[job->lengths - 1] >= length) {
            complain(EXIT_USAGE, "bench",
                     "--lengths must grow: %" PRId64 " comes after %" PRId64, length,
                     job->length[job->lengths - 1]);
            return false;
        }
        job->length[job->lengths++] = length;
    }
    return true;
}

static bool take_lengths(bench_job *job, const char *text) {
    char copy[512];
    char *rest = copy, *piece;
    job->lengths = 0;
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy) {
        complain(EXIT_USAGE, "bench", "--lengths is too long");
        return false;
    }
    while ((piece = strsep(&rest, ","))) {
        int64_t from, to;
        char *dots = strstr(piece, "..");
        if (dots)
            *dots = 0;
        if (!parse_integer("bench", "lengths", piece, 1, 1 << 26, &from))
            return false;
        to = from;
        if (dots && !parse_integer("bench", "lengths", dots + 2, from, 1 << 26, &to))
            return false;
        if (!add_lengths(job, from, to))
            return false;
    }
    return true;
}

/* ---- Options ----------------------------------------------------------------------- */

static bool take_mode(bench_job *job, const char *value) {
    job->train = strcmp(value, "train") == 0;
    if (job->train || strcmp(value, "forward") == 0)
        return true;
    complain(EXIT_USAGE, "bench", "--mode is \"%s\"; it must be forward or train", value);
    return false;
}

static bool take_scope(bench_job *job, const char *value) {
    job->layer = strcmp(value, "layer") == 0;
    if (job->layer && bench_layer_missing())
        complain(EXIT_USAGE, "bench", "--scope layer: %s", bench_layer_missing());
    else if (job->layer || strcmp(value, "attention") == 0)
        return true;
    else
        complain(EXIT_USAGE, "bench", "--scope is \"%s\"; it must be attention or layer",
                 value);
    return false;
}

static bool take_option(void *shared, int option, const char *value) {
    bench_job *job = shared;
    switch (option) {
    case OPTION_KINDS: return take_kinds(job, value);
    case OPTION_LENGTHS: return take_lengths(job, value);
    case OPTION_HEADS:
        return parse_integer("bench", "heads", value, 1, 4096, &job->heads);
    case OPTION_DIM: return parse_integer("bench", "dim", value, 1, 65536, &job->dim);
    case OPTION_VALUE_DIM:
        return parse_integer("bench", "value-dim", value, 1, 65536, &job->value_dim);
    case OPTION_FEED_FORWARD:
        return parse_integer("bench", "feed-forward", value, 1, 1 << 24,
                             &job->feed_forward);
    case OPTION_BATCH:
        return parse_integer("bench", "batch", value, 1, 65536, &job->batch);
    case OPTION_THREADS:
        return parse_integer("bench", "threads", value, 0, 4096, &job->threads);
    case OPTION_MODE: return take_mode(job, value);
    case OPTION_SCOPE: return take_scope(job, value);
    case OPTION_REPEATS:
        return parse_integer("bench", "repeats", value, 1, BENCH_REPEATS, &job->repeats);
    case OPTION_BUDGET:
        return parse_integer("bench", "budget", value, 1, 1000000, &job->budget);
    case OPTION_SEED: return parse_seed("bench", "seed", value, &job->seed);
    case OPTION_ISA: job->isa = value; return true;
    case OPTION_CSV: job->csv_path = value; return true;
    case OPTION_PLOT: return take_plot("bench", value, &job->plot_path);
    case OPTION_JSON: job->json = true; return true;
    case OPTION_QUICK: job->quick = true; return true;
    default: return true;
    }
}

/* Refuses options of the other scope. */
static int check_sizes(const bench_job *job) {
    if (job->layer && job->value_dim > 0 && job->value_dim != job->dim)
        return complain(EXIT_USAGE, "bench",
                        "--value-dim is %" PRId64 "; in a layer it is --dim, %" PRId64,
                        job->value_dim, job->dim);
    if (!job->layer && job->feed_forward > 0)
        return complain(EXIT_USAGE, "bench", "--feed-forward needs --scope layer");
    return EXIT_OK;
}

/* Sets what was not given. */
static void fill_defaults(bench_job *job) {
    if (job->kinds == 0)
        take_kinds(job, DEFAULT_KINDS);
    if (job->lengths == 0)
        take_lengths(job, job->quick ? QUICK_LENGTHS : DEFAULT_LENGTHS);
    if (job->repeats == 0)
        job->repeats = job->quick ? QUICK_REPEATS : DEFAULT_REPEATS;
    if (job->budget == 0)
        job->budget = job->quick ? QUICK_BUDGET : DEFAULT_BUDGET;
    if (job->value_dim == 0)
        job->value_dim = job->dim;
    if (job->layer && job->feed_forward == 0)
        job->feed_forward = 4 * job->heads * job->dim;
}

/* ---- The command ------------------------------------------------------------------- */

static int parse_kinds(bench_job *job) {
    for (int i = 0; i < job->kinds; i++) {
        shoal_status status =
            shoal_attention_parse(job->context, job->kind_texts[i], &job->attention[i]);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "bench", job->context);
        if (!strstr(job->kind_texts[i], "seed=") && job->attention[i].seed != 0)
            job->attention[i].seed = job->seed;
        shoal_attention_print(&job->attention[i], job->spelling[i],
                              sizeof job->spelling[i]);
    }
    return EXIT_OK;
}

static int run(bench_job *job) {
    int code = check_destination("bench", job->csv_path);
    if (code == EXIT_OK)
        code = check_destination("bench", job->plot_path);
    if (code == EXIT_OK)
        code = open_context("bench", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    code = parse_kinds(job);
    if (code == EXIT_OK) {
        bench_machine_describe(&job->machine);
        code = bench_run(job);
    }
    shoal_context_destroy(job->context);
    return code;
}

int bench_command(int count, char **arguments) {
    bench_job *job = calloc(1, sizeof *job);
    if (!job)
        return complain(EXIT_RESOURCES, "bench", "out of memory");
    job->heads = 6;
    job->dim = 64;
    job->batch = 1;
    job->seed = 1;
    int code = take_options(&help, count, arguments, take_option, job);
    if (code >= 0) {
        free(job);
        return code;
    }
    code = EXIT_OK;
    if (optind < count)
        code =
            complain(EXIT_USAGE, "bench", "%s is one word too many", arguments[optind]);
    if (code == EXIT_OK)
        code = check_sizes(job);
    if (code == EXIT_OK) {
        fill_defaults(job);
        code = run(job);
    }
    free(job);
    return code;
}
