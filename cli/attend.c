/* shoal attend: the command line and the report. */
#define _GNU_SOURCE
#include "attend.h"

#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "options.h"

enum { DEFAULT_SAMPLES = 256 };

enum {
    OPTION_OUTPUT,
    OPTION_SCALE,
    OPTION_SEED,
    OPTION_THREADS,
    OPTION_ISA,
    OPTION_QUERY_LENGTHS,
    OPTION_KEY_LENGTHS,
    OPTION_GROUPS,
    OPTION_SAVE_GROUPS,
    OPTION_SAVE_TOP,
    OPTION_GRAD_OUT,
    OPTION_GRAD_Q,
    OPTION_GRAD_K,
    OPTION_GRAD_V,
    OPTION_CHECK,
    OPTION_JSON,
    OPTION_HELP
};

static const option_row rows[] = {
    [OPTION_OUTPUT] = {"output", 'o', "OUT.npy",
                       "write the result there, [batch, heads, N, Dv]"},
    [OPTION_SCALE] = {"scale", 0, "X", "multiply the scores by X (default: 1/sqrt(dim))"},
    [OPTION_SEED] = {"seed", 0, "S",
                     "seed of the kind and of --check (default: the kind's, which is 1\n"
                     "unless spelled, as in lsh-4:seed=7)"},
    [OPTION_THREADS] = THREADS_ROW,
    [OPTION_ISA] = ISA_ROW,
    [OPTION_QUERY_LENGTHS] = {"query-lengths", 0, "F",
                              "live queries per sequence, int32 [batch] (default: all)"},
    [OPTION_KEY_LENGTHS] = {"key-lengths", 0, "F",
                            "live keys per sequence, int32 [batch] (default: all)"},
    [OPTION_GROUPS] = {"groups", 0, "F",
                       "use these groups of queries, int32 [batch, heads, N], -1 in the\n"
                       "padding (default: the kind finds its own)"},
    [OPTION_SAVE_GROUPS] = {"save-groups", 0, "F", "write the groups that were used"},
    [OPTION_SAVE_TOP] = {"save-top", 0, "F",
                         "write the top keys that were used, int32 [batch, heads,\n"
                         "clusters, topk], -1 where there are fewer"},
    [OPTION_GRAD_OUT] = {"grad-out", 0, "F",
                         "gradient of the output, for the three below"},
    [OPTION_GRAD_Q] = {"grad-q", 0, "F", "write the gradient of Q"},
    [OPTION_GRAD_K] = {"grad-k", 0, "F",
                       "write the gradient of K (0 where the keys are the queries:\n"
                       "the gradient of Q is then the whole)"},
    [OPTION_GRAD_V] = {"grad-v", 0, "F", "write the gradient of V"},
    [OPTION_CHECK] = {"check", 0, "[=SAMPLES]",
                      "compare with exact attention on a seeded sample of queries\n"
                      "(default: 256) and print the real error"},
    [OPTION_JSON] = {"json", 0, NULL, "print one JSON object instead of text"},
    [OPTION_HELP] = HELP_ROW,
    {0}};

static const command_help help = {
    "attend", "attend KIND Q.npy K.npy V.npy -o OUT.npy [options]",
    "Attention of the queries over the keys and values: float32 arrays [batch, heads, "
    "length,\n"
    "dim] in .npy files of version 1 to 3. K and V may have fewer heads than Q, a "
    "divisor of\n"
    "them. KIND is spelled as shoal kinds shows. In shared-full and lsh the keys are "
    "the\n"
    "queries: K must equal Q, and - says so. Outputs are written when everything else "
    "has\n"
    "succeeded, each whole or not at all.\n",
    rows,
    "-o may be left out when something else is asked for: --check, a gradient, the "
    "groups or\n"
    "the top keys.\n"
    "\n"
    "environment:\n"
    "  SHOAL_SLICE_ABOVE    when Q, K, V and the output have more bytes than this "
    "(default:\n"
    "                       536870912), work on one sequence and key head after another\n"
    "                       to save memory; --check then prints the root mean square of\n"
    "                       their errors\n"
    "  SHOAL_ISA, OMP_NUM_THREADS    defaults of --isa and --threads\n"};

/* ---- The command line ------------------------------------------------------------- */

/* Options that only name a file, and where the name goes. */
static const char **path_of(attend_job *job, int option) {
    switch (option) {
    case OPTION_OUTPUT: return &job->output_paths[OUTPUT_OUT];
    case OPTION_QUERY_LENGTHS: return &job->input_paths[INPUT_QUERY_LENGTHS];
    case OPTION_KEY_LENGTHS: return &job->input_paths[INPUT_KEY_LENGTHS];
    case OPTION_GROUPS: return &job->input_paths[INPUT_GROUPS];
    case OPTION_SAVE_GROUPS: return &job->output_paths[OUTPUT_GROUPS];
    case OPTION_SAVE_TOP: return &job->output_paths[OUTPUT_TOP];
    case OPTION_GRAD_OUT: return &job->input_paths[INPUT_GRAD_OUT];
    case OPTION_GRAD_Q: return &job->output_paths[OUTPUT_GRAD_Q];
    case OPTION_GRAD_K: return &job->output_paths[OUTPUT_GRAD_K];
    case OPTION_GRAD_V: return &job->output_paths[OUTPUT_GRAD_V];
    default: return NULL;
    }
}

static bool take_option(void *shared, int option, const char *value) {
    attend_job *job = shared;
    const char **path = path_of(job, option);
    if (path)
        *path = value;
    switch (option) {
    case OPTION_SCALE: return parse_scale("attend", "scale", value, &job->scale);
    case OPTION_SEED:
        job->has_seed = true;
        return parse_seed("attend", "seed", value, &job->seed);
    case OPTION_THREADS:
        return parse_integer("attend", "threads", value, 0, 4096, &job->threads);
    case OPTION_ISA: job->isa = value; break;
    case OPTION_CHECK:
        job->check_samples = DEFAULT_SAMPLES;
        return !value ||
               parse_integer("attend", "check", value, 1, INT32_MAX, &job->check_samples);
    case OPTION_JSON: job->json = true; break;
    default: break;
    }
    return true;
}

static int take_words(attend_job *job, int count, char **words) {
    static const char *const names[] = {"KIND", "Q.npy", "K.npy", "V.npy"};
    if (count < 4)
        return complain(EXIT_USAGE, "attend", "%s is missing; usage: shoal %s",
                        names[count], help.usage);
    if (count > 4)
        return complain(EXIT_USAGE, "attend", "%s is one word too many; usage: shoal %s",
                        words[4], help.usage);
    job->kind = words[0];
    for (int i = 0; i < 3; i++)
        job->input_paths[INPUT_Q + i] = words[1 + i];
    return EXIT_OK;
}

static int refuse_same_outputs(const attend_job *job) {
    for (int i = 0; i < OUTPUTS; i++)
        for (int j = 0; j < i; j++)
            if (job->output_paths[i] && job->output_paths[j] &&
                strcmp(job->output_paths[i], job->output_paths[j]) == 0)
                return complain(EXIT_USAGE, "attend", "two outputs would go to %s",
                                job->output_paths[i]);
    return EXIT_OK;
}

/* Checks of the options that need no file. */
static int check_combination(const attend_job *job) {
    bool gradient = false, output = job->check_samples > 0;
    for (int i = 0; i < OUTPUTS; i++)
        output |= job->output_paths[i] != NULL;
    for (int i = OUTPUT_GRAD_Q; i <= OUTPUT_GRAD_V; i++)
        gradient |= job->output_paths[i] != NULL;
    if (!output)
        return complain(EXIT_USAGE, "attend",
                        "nothing to do: give -o OUT.npy or --check");
    if (gradient && !job->input_paths[INPUT_GRAD_OUT])
        return complain(EXIT_USAGE, "attend", "gradients need --grad-out, the output's");
    if (!gradient && job->input_paths[INPUT_GRAD_OUT])
        return complain(
            EXIT_USAGE, "attend",
            "--grad-out is for --grad-q, --grad-k or --grad-v; none was given");
    return refuse_same_outputs(job);
}

/* Checks of the options that depend on the kind. */
static int check_kind(attend_job *job) {
    shoal_kind kind = job->attention.kind;
    bool top_keys = kind == SHOAL_I_CLUSTERED || kind == SHOAL_SHOAL;
    bool groups = kind == SHOAL_CLUSTERED || top_keys;
    job->shared = kind == SHOAL_SHARED_FULL || kind == SHOAL_LSH;
    if (job->has_seed)
        job->attention.seed = job->seed;
    if (!groups && (job->input_paths[INPUT_GROUPS] || job->output_paths[OUTPUT_GROUPS]))
        return complain(EXIT_USAGE, "attend",
                        "%s has no groups: --groups and --save-groups "
                        "are for clustered-C, i-clustered-C and shoal-C",
                        job->kind);
    if (!top_keys && job->output_paths[OUTPUT_TOP])
        return complain(EXIT_USAGE, "attend",
                        "%s has no top keys: --save-top is for i-clustered-C and shoal-C",
                        job->kind);
    if (strcmp(job->input_paths[INPUT_K], "-") != 0)
        return EXIT_OK;
    if (!job->shared)
        return complain(EXIT_USAGE, "attend",
                        "- for K.npy is for shared-full and lsh, whose "
                        "keys are the queries; %s needs a file",
                        job->kind);
    job->input_paths[INPUT_K] = NULL;
    return EXIT_OK;
}

static int parse_kind(attend_job *job) {
    shoal_status status = shoal_attention_parse(job->context, job->kind, &job->attention);
    if (status == SHOAL_OK)
        return check_kind(job);
    int code = complain_status(status, EXIT_USAGE, "attend", job->context);
    fputs("shoal attend: shoal kinds shows how every kind is spelled\n", stderr);
    return code;
}

/* ---- The report ------------------------------------------------------------------- */

/* The spelling; kinds of the paper with every option of theirs, defaults too. */
static void spell_in_full(const shoal_attention *attention, char *text, size_t size) {
    shoal_attention_print(attention, text, size);
    /* Kinds and options beyond the paper keep the short spelling. */
    if (attention->kind == SHOAL_SHOAL || attention->kind == SHOAL_AUTO ||
        attention->groups || attention->normaliser)
        return;
    size_t used = strcspn(text, ":");
    text[used] = 0;
    if (attention->kind == SHOAL_I_CLUSTERED)
        used +=
            (size_t)snprintf(text + used, size - used, ":topk=%" PRId32, attention->topk);
    if (attention->kind == SHOAL_CLUSTERED || attention->kind == SHOAL_I_CLUSTERED)
        used += (size_t)snprintf(text + used, size - used,
                                 "%cbits=%" PRId32 ",iterations=%" PRId32,
                                 strchr(text, ':') ? ',' : ':', attention->bits,
                                 attention->iterations);
    if (strchr(text, ':') || attention->kind == SHOAL_LSH)
        snprintf(text + used, size - used, "%cseed=%" PRIu64,
                 strchr(text, ':') ? ',' : ':', attention->seed);
}

static double scale_used(const attend_job *job) {
    const shoal_problem *problem = &job->problem;
    return problem->scale != 0 ? (double)problem->scale
                               : 1 / sqrt((double)(problem->dim > 0 ? problem->dim : 1));
}

static int report_json(const attend_job *job, const char *spelling) {
    const shoal_problem *p = &job->problem;
    json_t *outputs = json_array();
    for (int i = 0; i < OUTPUTS; i++)
        if (job->output_paths[i])
            json_array_append_new(outputs, json_text(job->output_paths[i]));
    json_t *object =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}", "kind", spelling,
                  "batch", (json_int_t)p->batch, "heads", (json_int_t)p->heads,
                  "kv_heads", (json_int_t)p->kv_heads, "queries", (json_int_t)p->queries,
                  "keys", (json_int_t)p->keys, "dim", (json_int_t)p->dim, "value_dim",
                  (json_int_t)p->value_dim, "scale", json_number(scale_used(job)));
    json_t *run = json_pack("{s:s, s:i, s:I, s:f, s:I, s:o}", "isa",
                            shoal_context_isa(job->context), "threads",
                            shoal_context_threads(job->context), "slices",
                            (json_int_t)job->slices, "seconds", job->seconds,
                            "workspace_bytes", (json_int_t)job->workspace, "outputs",
                            outputs);
    json_object_update(object, run);
    json_decref(run);
    if (job->attention.kind == SHOAL_AUTO) {
        char picked[128];
        spell_in_full(&job->picked, picked, sizeof picked);
        json_object_set_new(object, "picked", json_string(picked));
    }
    if (job->check_samples > 0) {
        json_object_set_new(object, "samples", json_integer(job->error.samples));
        json_object_set_new(object, "relative_error",
                            json_number(job->error.relative_error));
        json_object_set_new(object, "largest_error",
                            json_number(job->error.largest_error));
    }
    return print_json(object);
}

static int report_text(const attend_job *job, const char *spelling) {
    const shoal_problem *p = &job->problem;
    printf("%s\n", spelling);
    if (job->attention.kind == SHOAL_AUTO) {
        char picked[128];
        spell_in_full(&job->picked, picked, sizeof picked);
        printf("  picked %s%s\n", picked, job->slices > 1 ? " for the last slice" : "");
    }
    printf("  batch %" PRId64 ", heads %" PRId64 " (keys and values: %" PRId64
           "), queries %" PRId64 ", keys %" PRId64 ", dim %" PRId64 ", value dim %" PRId64
           ", scale %.6g\n",
           p->batch, p->heads, p->kv_heads, p->queries, p->keys, p->dim, p->value_dim,
           scale_used(job));
    printf("  %s, %d thread%s, %s, workspace %s", shoal_context_isa(job->context),
           shoal_context_threads(job->context),
           shoal_context_threads(job->context) == 1 ? "" : "s",
           seconds_text(job->seconds), bytes_text((double)job->workspace));
    if (job->slices > 1)
        printf(", %" PRId64 " slices", job->slices);
    putchar('\n');
    if (job->check_samples > 0)
        printf("  relative error %.3g on %" PRId64 " sampled queries (largest difference "
               "%.3g)\n",
               job->error.relative_error, job->error.samples, job->error.largest_error);
    for (int i = 0; i < OUTPUTS; i++)
        if (job->output_paths[i])
            printf("  wrote %s\n", job->output_paths[i]);
    return EXIT_OK;
}

static int report(const attend_job *job) {
    char spelling[128];
    spell_in_full(&job->attention, spelling, sizeof spelling);
    return job->json ? report_json(job, spelling) : report_text(job, spelling);
}

/* ---- The command ------------------------------------------------------------------ */

static int attend(attend_job *job) {
    static int (*const steps[])(attend_job *) = {parse_kind,    check_destinations,
                                                 load_inputs,   reserve_outputs,
                                                 run_attention, write_outputs};
    int code = EXIT_OK;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && code == EXIT_OK; i++)
        code = steps[i](job);
    progress_end();
    return code == EXIT_OK ? report(job) : code;
}

int attend_command(int count, char **arguments) {
    attend_job job = {0};
    const int ended = take_options(&help, count, arguments, take_option, &job);
    if (ended >= 0)
        return ended;
    int code = take_words(&job, count - optind, arguments + optind);
    if (code == EXIT_OK)
        code = check_combination(&job);
    if (code == EXIT_OK)
        code = open_context("attend", (int)job.threads, job.isa, &job.context);
    if (code != EXIT_OK)
        return code;
    progress_begin(2);
    code = attend(&job);
    release_arrays(&job);
    shoal_context_destroy(job.context);
    return code;
}
