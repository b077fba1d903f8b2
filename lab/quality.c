/* shoal quality: the command line, and folders of layerL_{q,k,v}.npy: which layers there
   are, whether their shapes agree, and the kinds spelled for them. */
#define _GNU_SOURCE
#include "quality.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"

/* From this many queries on a group count of 100 is usual, below it 25. */
enum { LONG = 1024, CLUSTERS = 100, FEW_CLUSTERS = 25 };

enum { DEFAULT_SAMPLES = 256, DEFAULT_REPEATS = 7, DEFAULT_SEED = 1 };

#define DEFAULT_KINDS                                                                    \
    "full,clustered-C,i-clustered-C,i-clustered-C:groups=keys,"                          \
    "i-clustered-C:normaliser=query,q-clustered-C:topk=32,"                              \
    "q-clustered-C,shoal"

static bool take_kinds(void *shared, const char *name, const char *text) {
    quality_job *job = shared;
    job->kinds = read_kinds("quality", name, text, job->kind_texts[0],
                            sizeof *job->kind_texts, QUALITY_KINDS);
    return job->kinds > 0;
}

static bool take_picture(void *job, const char *name, const char *value) {
    (void)name;
    return take_plot("quality", value, &((quality_job *)job)->plot_path);
}

static const option_row rows[] =
    {{"kinds", 0, "KINDS",
      "kinds of attention, as shoal kinds spells them; a kind's -C\n"
      "stands for --clusters; full is added where it is missing\n"
      "(default: full,clustered-C,i-clustered-C,\n"
      "i-clustered-C:groups=keys,i-clustered-C:normaliser=query,\n"
      "q-clustered-C:topk=32,q-clustered-C,shoal)",
      TAKEN_BY(take_kinds)},
     {"clusters", 0, "C",
      "groups of queries (default: 100; 25 when there are fewer\n"
      "than 1024 queries)",
      SETS_INTEGER(quality_job, clusters, 1, 65535)},
     {"layers", 0, "LIST", "only these layers, such as 0,2..4 (default: all)",
      SETS_TEXT(quality_job, layers_text)},
     {"samples", 0, "N",
      "queries per layer whose attention rows are compared; all of\n"
      "them if there are no more (default: 256)",
      SETS_INTEGER(quality_job, samples, 1, INT32_MAX)},
     {"repeats", 0, "R",
      "timed calls per kind and layer, taken in turns; the best\n"
      "counts, 1 to 1000 (default: 7)",
      SETS_INTEGER(quality_job, repeats, 1, 1000)},
     {"seed", 0, "S",
      "seed of the kinds, unless spelled, and of the sample\n"
      "(default: 1)",
      SETS_SEED(quality_job, seed)},
     THREADS_ROW(quality_job),
     ISA_ROW(quality_job),
     {"plot", 0, "FILE", "draw error against time, with the Pareto front (.svg or .png)",
      TAKEN_BY(take_picture)},
     {"json", 0, NULL, "print one JSON object instead of the tables",
      SETS_FLAG(quality_job, json)},
     HELP_ROW,
     {0}};

const command_help quality_help = {
    "quality",
    "quality DIR... [options]",
    "How near each kind of attention comes to full attention on queries, keys and\n"
    "values of a real model, and what that costs. DIR holds layerL_q.npy,\n"
    "layerL_k.npy and layerL_v.npy for its layers L: float32 [batch, heads, length,\n"
    "dim], one shape for all layers; k and v may have fewer heads than q, a divisor\n"
    "of them.\n",
    rows,
    "error: |out - full| / |full|, a layer as one long vector; its mean over the layers\n"
    "and its worst. rows L1: mean L1 distance of a query's attention weights from\n"
    "full's, 0 to 2. strongest key same: share of queries whose largest weight is on\n"
    "full's key. Weights are computed in double precision from the groups and top keys\n"
    "that were used, and must give the output when applied to v: if one does not, the\n"
    "exit code is 1. lsh has none: -.\n"
    "Ctrl-C shows the layers measured so far; twice ends at once.\n",
    "DIR"};

/* ---- Options ----------------------------------------------------------------------- */

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

static const char letters[ARRAYS] = {'q', 'k', 'v'};

/* ---- Which layers there are -------------------------------------------------------- */

/* The number in "layer3_q.npy", or -1. A number has one spelling: not "layer03". */
static int layer_of(const char *name) {
    int number, length = 0;
    char letter, again[32];
    if (sscanf(name, "layer%6d_%c.npy%n", &number, &letter, &length) != 2 || number < 0 ||
        length == 0 || name[length] || !memchr(letters, letter, ARRAYS))
        return -1;
    snprintf(again, sizeof again, "layer%d_%c.npy", number, letter);
    return strcmp(name, again) == 0 ? number : -1;
}

/* Inserts in growing order, once. False when there are too many. */
static bool add_layer(int *layers, int *count, int number) {
    int at = *count;
    while (at > 0 && layers[at - 1] > number)
        at--;
    if (at > 0 && layers[at - 1] == number)
        return true;
    if (*count == QUALITY_LAYERS)
        return false;
    memmove(layers + at + 1, layers + at, (size_t)(*count - at) * sizeof *layers);
    layers[at] = number;
    ++*count;
    return true;
}

static int list_layers(quality_folder *folder) {
    DIR *directory = opendir(folder->path);
    bool fits = true;
    if (!directory)
        return complain(EXIT_BAD_INPUT, "quality", "the folder %s cannot be opened: %s",
                        folder->path, strerror(errno));
    for (const struct dirent *entry; fits && (entry = readdir(directory));) {
        const int number = layer_of(entry->d_name);
        fits = number < 0 || add_layer(folder->layer, &folder->layers, number);
    }
    closedir(directory);
    if (!fits)
        return complain(EXIT_BAD_INPUT, "quality", "%s has more than %d layers",
                        folder->path, QUALITY_LAYERS);
    if (folder->layers == 0)
        return complain(EXIT_BAD_INPUT, "quality",
                        "%s has no layers: it should hold layer0_q.npy, layer0_k.npy, "
                        "layer0_v.npy and so on",
                        folder->path);
    return EXIT_OK;
}

/* ---- Which of them are wanted ------------------------------------------------------ */

static bool has_layer(const quality_folder *folder, int64_t number) {
    for (int i = 0; i < folder->layers; i++)
        if (folder->layer[i] == number)
            return true;
    return false;
}

static int lacks_layer(const quality_folder *folder, int64_t number) {
    char list[128] = "";
    size_t used = 0;
    for (int i = 0; i < folder->layers && used < sizeof list - 16; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", i ? ", " : "",
                                 folder->layer[i]);
    return complain(EXIT_BAD_INPUT, "quality",
                    "%s has no layer %" PRId64 ", which --layers asks for; it has %s",
                    folder->path, number, list);
}

/* "0,2..4": every number named must be there. */
static int choose_layers(const quality_job *job, quality_folder *folder) {
    int chosen[QUALITY_LAYERS] = {0}, count = 0;
    char copy[512], *rest = copy, *piece;
    if (!job->layers_text)
        return EXIT_OK;
    if ((size_t)snprintf(copy, sizeof copy, "%s", job->layers_text) >= sizeof copy)
        return complain(EXIT_USAGE, "quality", "--layers is too long");
    while ((piece = strsep(&rest, ","))) {
        int64_t from, to;
        char *dots = strstr(piece, "..");
        if (dots)
            *dots = 0;
        if (!parse_integer("quality", "layers", piece, 0, 999999, &from))
            return EXIT_USAGE;
        to = from;
        if (dots && !parse_integer("quality", "layers", dots + 2, from, 999999, &to))
            return EXIT_USAGE;
        for (int64_t number = from; number <= to; number++) {
            if (!has_layer(folder, number))
                return lacks_layer(folder, number);
            add_layer(chosen, &count, (int)number);
        }
    }
    folder->layers = count;
    memcpy(folder->layer, chosen, sizeof folder->layer);
    return EXIT_OK;
}

/* ---- Arrays ------------------------------------------------------------------------ */

static int write_path(const quality_folder *folder, int at, int array, char *path,
                      size_t size) {
    const int length = snprintf(path, size, "%s/layer%d_%c.npy", folder->path,
                                folder->layer[at], letters[array]);
    if (length >= 0 && (size_t)length < size)
        return EXIT_OK;
    return complain(EXIT_BAD_INPUT, "quality", "the name of the folder %s is too long",
                    folder->path);
}

static int read_array(quality_job *job, const quality_folder *folder, int at, int array,
                      shoal_array *into) {
    char path[PATH_MAX];
    int code = write_path(folder, at, array, path, sizeof path);
    if (code != EXIT_OK)
        return code;
    if (access(path, F_OK) != 0)
        return complain(EXIT_BAD_INPUT, "quality",
                        "%s is missing: a layer needs its q, k and v", path);
    code = will_read("quality", path);
    if (code != EXIT_OK)
        return code;
    const shoal_status status = shoal_array_read(job->context, path, into);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_BAD_INPUT, "quality", job->context);
    if (into->dtype != SHOAL_FLOAT32 || into->rank != 4)
        return complain(
            EXIT_BAD_INPUT, "quality",
            "%s must be float32 [batch, heads, length, dim]; it is %s with %d "
            "dimension%s",
            path,
            into->dtype == SHOAL_FLOAT32   ? "float32"
            : into->dtype == SHOAL_FLOAT16 ? "float16"
                                           : "int32",
            into->rank, into->rank == 1 ? "" : "s");
    return EXIT_OK;
}

void quality_release(quality_layer *layer) {
    for (int i = 0; i < ARRAYS; i++)
        shoal_array_release(&layer->arrays[i]);
    *layer = (quality_layer){0};
}

static int refuse_shapes(const quality_folder *folder, int at, const quality_layer *layer,
                         const char *why) {
    char shapes[ARRAYS][96];
    for (int i = 0; i < ARRAYS; i++) {
        const int64_t *s = layer->arrays[i].shape;
        snprintf(shapes[i], sizeof shapes[i],
                 "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", s[0], s[1], s[2],
                 s[3]);
    }
    return complain(EXIT_BAD_INPUT, "quality", "%s, layer %d: %s (q %s, k %s, v %s)",
                    folder->path, folder->layer[at], why, shapes[0], shapes[1],
                    shapes[2]);
}

/* The layer's problem, or why it has none. */
static const char *describe(const quality_layer *layer, shoal_problem *problem) {
    const int64_t *q = layer->arrays[ARRAY_Q].shape, *k = layer->arrays[ARRAY_K].shape;
    const int64_t *v = layer->arrays[ARRAY_V].shape;
    for (int i = 0; i < 4; i++)
        if (q[i] == 0 || k[i] == 0 || v[i] == 0)
            return "an array is empty";
    if (q[0] != k[0] || k[0] != v[0])
        return "q, k and v must have one batch size";
    if (k[1] != v[1] || q[1] % k[1] != 0)
        return "k and v must have q's heads, or one divisor of them";
    if (k[2] != v[2])
        return "k and v must have one length";
    if (q[3] != k[3])
        return "q and k must have one dim";
    *problem = (shoal_problem){.batch = q[0],
                               .heads = q[1],
                               .kv_heads = k[1],
                               .queries = q[2],
                               .keys = k[2],
                               .dim = q[3],
                               .value_dim = v[3]};
    return NULL;
}

static bool same_shapes(const shoal_problem *a, const shoal_problem *b) {
    return a->batch == b->batch && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->queries == b->queries && a->keys == b->keys && a->dim == b->dim &&
           a->value_dim == b->value_dim;
}

/* Reading maps the files, so that looking at shapes alone costs nothing. */
static int map_layer(quality_job *job, const quality_folder *folder, int at,
                     quality_layer *layer, shoal_problem *problem) {
    *layer = (quality_layer){0};
    for (int i = 0; i < ARRAYS; i++) {
        const int code = read_array(job, folder, at, i, &layer->arrays[i]);
        if (code != EXIT_OK)
            return code;
    }
    const char *why = describe(layer, problem);
    return why ? refuse_shapes(folder, at, layer, why) : EXIT_OK;
}

static int check_layer(quality_job *job, quality_folder *folder, int at) {
    quality_layer layer;
    shoal_problem problem;
    int code = map_layer(job, folder, at, &layer, &problem);
    if (code == EXIT_OK && at == 0)
        folder->problem = problem;
    if (code == EXIT_OK && !same_shapes(&problem, &folder->problem)) {
        char why[64];
        snprintf(why, sizeof why, "its shapes differ from layer %d's", folder->layer[0]);
        code = refuse_shapes(folder, at, &layer, why);
    }
    quality_release(&layer);
    return code;
}

/* With a NaN or an infinity in the arrays nothing could be compared. */
static int check_numbers(const quality_folder *folder, int at, int array,
                         const shoal_array *values) {
    const float *numbers = values->data;
    int64_t count = 1;
    for (int i = 0; i < values->rank; i++)
        count *= values->shape[i];
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(numbers[i]))
            return complain(EXIT_BAD_INPUT, "quality",
                            "%s/layer%d_%c.npy has a NaN or an infinity (element %" PRId64
                            ")",
                            folder->path, folder->layer[at], letters[array], i);
    return EXIT_OK;
}

int quality_read(quality_job *job, const quality_folder *folder, int at,
                 quality_layer *layer) {
    shoal_problem problem;
    int code = map_layer(job, folder, at, layer, &problem);
    if (code == EXIT_OK && !same_shapes(&problem, &folder->problem))
        code = refuse_shapes(folder, at, layer, "the files changed during the run");
    for (int i = 0; i < ARRAYS && code == EXIT_OK; i++)
        code = check_numbers(folder, at, i, &layer->arrays[i]);
    return code;
}

/* ---- Kinds for the folder ---------------------------------------------------------- */

/* "shoal-C:topk=32" -> "shoal-100:topk=32". */
static void spell_clusters(const char *text, int64_t clusters, char *into, size_t size) {
    const size_t name = strcspn(text, ":");
    if (name >= 2 && strncmp(text + name - 2, "-C", 2) == 0)
        snprintf(into, size, "%.*s%" PRId64 "%s", (int)name - 1, text, clusters,
                 text + name);
    else
        snprintf(into, size, "%s", text);
}

static int parse_kinds(const quality_job *job, int64_t clusters,
                       shoal_attention *attention, char (*spelling)[QUALITY_NAME]) {
    for (int i = 0; i < job->kinds; i++) {
        char text[QUALITY_NAME + 24];
        spell_clusters(job->kind_texts[i], clusters, text, sizeof text);
        const shoal_status status =
            shoal_attention_parse(job->context, text, &attention[i]);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "quality", job->context);
        if (!strstr(text, "seed=") && attention[i].seed != 0)
            attention[i].seed = job->seed;
        shoal_attention_print(&attention[i], spelling[i], sizeof spelling[i]);
    }
    return EXIT_OK;
}

static void name_folder(quality_folder *folder) {
    const char *end = folder->path + strlen(folder->path);
    while (end > folder->path + 1 && end[-1] == '/')
        end--;
    const char *begin = end;
    while (begin > folder->path && begin[-1] != '/')
        begin--;
    snprintf(folder->title, sizeof folder->title, "%.*s", (int)(end - begin), begin);
    /* Pictures take UTF-8 only, and a long name may have been cut inside a letter. */
    make_utf8(folder->title);
}

static int open_folder(quality_job *job, quality_folder *folder) {
    name_folder(folder);
    int code = list_layers(folder);
    if (code == EXIT_OK)
        code = choose_layers(job, folder);
    for (int at = 0; at < folder->layers && code == EXIT_OK; at++)
        code = check_layer(job, folder, at);
    if (code != EXIT_OK)
        return code;
    const shoal_problem *problem = &folder->problem;
    const int64_t queries = problem->batch * problem->heads * problem->queries;
    folder->samples = job->samples < queries ? job->samples : queries;
    folder->clusters = job->clusters              ? job->clusters
                       : problem->queries >= LONG ? CLUSTERS
                                                  : FEW_CLUSTERS;
    return parse_kinds(job, folder->clusters, folder->attention, folder->spelling);
}

/* ---- The command ------------------------------------------------------------------- */

/* Misspelt kinds are mistakes of the command line, found before a folder is read. */
static int check_kinds(const quality_job *job) {
    shoal_attention attention[QUALITY_KINDS];
    char spelling[QUALITY_KINDS][QUALITY_NAME];
    return parse_kinds(job, job->clusters ? job->clusters : CLUSTERS, attention,
                       spelling);
}

static int measure_folders(quality_job *job) {
    int code = EXIT_OK;
    for (int i = 0; i < job->folder_count && code == EXIT_OK; i++)
        code = open_folder(job, &job->folders[i]);
    if (code == EXIT_OK)
        watch_stop();
    for (int i = 0; i < job->folder_count && code == EXIT_OK && !job->interrupted; i++) {
        code = quality_measure(job, &job->folders[i]);
        job->interrupted = stop_signal() != 0;
        if (code == EXIT_OK && !job->json)
            quality_print(job, &job->folders[i]);
    }
    if (code == EXIT_OK && job->plot_path)
        code = quality_write_plot(job);
    if (code == EXIT_OK && job->json)
        code = quality_print_json(job);
    return code == EXIT_OK && job->interrupted ? 128 + stop_signal() : code;
}

static int run(quality_job *job, int count, char **paths) {
    if (count == 0)
        return complain(EXIT_USAGE, "quality", "no folder was given; usage: shoal %s",
                        quality_help.usage);
    int code = will_write("quality", job->plot_path);
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
    const int ended = take_options(&quality_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    if (job.kinds == 0)
        take_kinds(&job, "kinds", DEFAULT_KINDS);
    if (!place_reference(&job))
        return EXIT_USAGE;
    return run(&job, count - optind, arguments + optind);
}
