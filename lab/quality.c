/* shoal quality: the command line, folders of layerL_{q,k,v}.npy, and the order of
   measurements. Layer by layer, full runs once, then every kind runs once and is
   compared with it and its rows are checked; then timed calls of the kinds alternate,
   so that other load on the machine affects all of them.

   The weights of a kind for a sampled query come from exact/, with the clusters and
   exact keys that the library used. They are verified by applying them to the values,
   which must give the library's output. */
#define _GNU_SOURCE
#include "quality.h"

#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <unistd.h>

#include "exact/exact.h"
#include "plot.h"
#include "shoal_models.h"

/* Default numbers of clusters: 100 from 1024 queries on, 25 below. */
enum { LONG = 1024, CLUSTERS = 100, FEW_CLUSTERS = 25 };

enum { DEFAULT_SAMPLES = 256, DEFAULT_REPEATS = 7, DEFAULT_SEED = 1 };

#define DEFAULT_KINDS                                                                    \
    "full,clustered-C,i-clustered-C,i-clustered-C:groups=keys,"                          \
    "i-clustered-C:normaliser=query,q-clustered-C:topk=32,"                              \
    "q-clustered-C,shoal"

static const option_row rows[] =
    {{"kinds", 0, "KINDS",
      "kinds of attention, as in shoal kinds; -C in a kind stands for\n"
      "--clusters; full is added if it is missing\n"
      "(default: full,clustered-C,i-clustered-C,\n"
      "i-clustered-C:groups=keys,i-clustered-C:normaliser=query,\n"
      "q-clustered-C:topk=32,q-clustered-C,shoal)",
      SETS_KINDS(quality_job, kinds, KINDS_MOST)},
     {"clusters", 0, "C",
      "number of query clusters (default: 100; 25 with fewer than 1024\n"
      "queries)",
      SETS_INTEGER(quality_job, clusters, 1, 65535)},
     {"layers", 0, "LIST", "only these layers, such as 0,2..4 (default: all)",
      SETS_TEXT(quality_job, layers_text)},
     {"samples", 0, "N",
      "number of queries per layer whose attention weights are compared,\n"
      "at most all of them (default: 256)",
      SETS_INTEGER(quality_job, samples, 1, INT32_MAX)},
     {"repeats", 0, "R",
      "timed calls per kind and layer, alternating; the best one counts,\n"
      "1 to 1000 (default: 7)",
      SETS_INTEGER(quality_job, repeats, 1, 1000)},
     {"seed", 0, "S",
      "seed of the sample, and of kinds without an explicit seed\n"
      "(default: 1)",
      SETS_SEED(quality_job, seed)},
     THREADS_ROW(quality_job),
     ISA_ROW(quality_job),
     {"plot", 0, "FILE", "plot error against time, with the Pareto front (.svg or .png)",
      SETS_TEXT(quality_job, plot_path), .take = plot_option},
     {"json", 0, NULL, "print one JSON object instead of the tables",
      SETS_FLAG(quality_job, json)},
     HELP_ROW,
     {0}};

const command_help quality_help =
    {"quality",
     "quality DIR... [options]",
     "Measures the error of each kind of attention relative to full attention, and its\n"
     "time, on queries, keys and values of a real model. DIR has layerL_q.npy, "
     "layerL_k.npy\n"
     "and layerL_v.npy for layers L: float32 [batch, heads, length, dim], with the same\n"
     "shapes in all layers; the number of heads of k and v must divide that of q.\n",
     rows,
     "error: |out - full| / |full| of a layer as one vector; mean and maximum over the\n"
     "layers. rows L1: mean L1 distance of a query's attention weights from full's, 0 to "
     "2.\n"
     "strongest key same: share of queries with the same strongest key as full. Weights "
     "are\n"
     "computed in double precision from the clusters and exact keys that were used, and\n"
     "must give the output when applied to v; otherwise the exit code is 1. lsh has no\n"
     "weights: -.\n"
     "Ctrl-C prints the layers measured so far; a second one exits at once.\n",
     "DIR"};

/* Queries [B][H][N][D], keys [B][G][S][D], values [B][G][S][Dv] of one layer. */
typedef enum { ARRAY_Q, ARRAY_K, ARRAY_V, ARRAYS } quality_array;

typedef struct {
    shoal_array arrays[ARRAYS];
} quality_layer;

static const char letters[ARRAYS] = {'q', 'k', 'v'};

/* ---- Finding layers --------------------------------------------------------------- */

/* The number in "layer3_q.npy", or -1. Leading zeros as in "layer03" are not
   accepted. */
static int layer_of(const char *name) {
    int number, length = 0;
    char letter, again[32];
    if (sscanf(name, "layer%6d_%c.npy%n", &number, &letter, &length) != 2 || number < 0 ||
        length == 0 || name[length] || !memchr(letters, letter, ARRAYS))
        return -1;
    snprintf(again, sizeof again, "layer%d_%c.npy", number, letter);
    return strcmp(name, again) == 0 ? number : -1;
}

/* Inserts in increasing order without duplicates. Returns false if there are too
   many. */
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

static void list_layers(quality_folder *folder) {
    DIR *directory = opendir(folder->path);
    bool fits = true;
    if (!directory)
        die(EXIT_BAD_INPUT, "cannot open the folder %s: %s", folder->path,
            strerror(errno));
    for (const struct dirent *entry; fits && (entry = readdir(directory));) {
        const int number = layer_of(entry->d_name);
        fits = number < 0 || add_layer(folder->layer, &folder->layers, number);
    }
    closedir(directory);
    if (!fits)
        die(EXIT_BAD_INPUT, "%s has more than %d layers", folder->path, QUALITY_LAYERS);
    if (folder->layers == 0)
        die(EXIT_BAD_INPUT,
            "%s has no layers: it needs layer0_q.npy, layer0_k.npy, layer0_v.npy and so "
            "on",
            folder->path);
}

/* ---- Selecting layers ------------------------------------------------------------- */

static void need_layer(const quality_folder *folder, int64_t number) {
    char list[128] = "";
    size_t used = 0;
    for (int i = 0; i < folder->layers; i++)
        if (folder->layer[i] == number)
            return;
    for (int i = 0; i < folder->layers && used < sizeof list - 16; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d", i ? ", " : "",
                                 folder->layer[i]);
    die(EXIT_BAD_INPUT, "%s has no layer %" PRId64 ", which --layers selects; it has %s",
        folder->path, number, list);
}

/* "0,2..4": all these layers must exist. */
static void choose_layers(const quality_job *job, quality_folder *folder) {
    int chosen[QUALITY_LAYERS] = {0}, count = 0;
    int64_t from, to;
    char copy[512], *rest = copy;
    if (!job->layers_text)
        return;
    if ((size_t)snprintf(copy, sizeof copy, "%s", job->layers_text) >= sizeof copy)
        die(EXIT_USAGE, "--layers is too long");
    while (next_range("layers", &rest, 0, 999999, &from, &to))
        for (int64_t number = from; number <= to; number++) {
            need_layer(folder, number);
            add_layer(chosen, &count, (int)number);
        }
    folder->layers = count;
    memcpy(folder->layer, chosen, sizeof folder->layer);
}

/* ---- Arrays ------------------------------------------------------------------------ */

static void release_layer(quality_layer *layer) {
    for (int i = 0; i < ARRAYS; i++)
        shoal_array_release(&layer->arrays[i]);
    *layer = (quality_layer){0};
}

/* Fills the layer's problem; returns an error message or NULL. */
static const char *describe(const quality_layer *layer, shoal_problem *problem) {
    const int64_t *q = layer->arrays[ARRAY_Q].shape, *k = layer->arrays[ARRAY_K].shape;
    const int64_t *v = layer->arrays[ARRAY_V].shape;
    for (int i = 0; i < 4; i++)
        if (q[i] == 0 || k[i] == 0 || v[i] == 0)
            return "an array is empty";
    if (q[0] != k[0] || k[0] != v[0])
        return "q, k and v must have the same batch size";
    if (k[1] != v[1] || q[1] % k[1] != 0)
        return "the number of heads of k and v must be equal and divide that of q";
    if (k[2] != v[2])
        return "k and v must have the same length";
    if (q[3] != k[3])
        return "q and k must have the same dim";
    *problem = (shoal_problem){.size = sizeof(shoal_problem),
                               .batch = q[0],
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

/* Files are mapped, so checking shapes alone costs nothing. `differ` is the message if
   the shapes are not those of the folder. */
static void map_layer(quality_job *job, quality_folder *folder, int at,
                      const char *differ, quality_layer *layer) {
    shoal_problem problem = {.size = sizeof(shoal_problem)};
    for (int i = 0; i < ARRAYS; i++) {
        char path[PATH_MAX];
        const int length = snprintf(path, sizeof path, "%s/layer%d_%c.npy", folder->path,
                                    folder->layer[at], letters[i]);
        if (length < 0 || (size_t)length >= sizeof path)
            die(EXIT_BAD_INPUT, "the path of the folder %s is too long", folder->path);
        if (access(path, F_OK) != 0)
            die(EXIT_BAD_INPUT, "%s is missing: a layer needs q, k and v", path);
        plan_input(path);
        demand(shoal_array_read(job->context, path, &layer->arrays[i]), EXIT_BAD_INPUT);
        if (layer->arrays[i].dtype != SHOAL_DTYPE_FLOAT32 ||
            layer->arrays[i].dimensions != 4)
            die(EXIT_BAD_INPUT,
                "%s must be float32 [batch, heads, length, dim]; it is %s with %d "
                "dimension%s",
                path,
                layer->arrays[i].dtype == SHOAL_DTYPE_FLOAT32   ? "float32"
                : layer->arrays[i].dtype == SHOAL_DTYPE_FLOAT16 ? "float16"
                                                                : "int32",
                layer->arrays[i].dimensions, plural(layer->arrays[i].dimensions));
    }
    const char *why = describe(layer, &problem);
    if (!why && folder->problem.batch == 0)
        folder->problem = problem;
    if (!why && !same_shapes(&problem, &folder->problem))
        why = differ;
    if (why) {
        char shapes[ARRAYS][96];
        for (int i = 0; i < ARRAYS; i++) {
            const int64_t *s = layer->arrays[i].shape;
            snprintf(shapes[i], sizeof shapes[i],
                     "[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]", s[0], s[1],
                     s[2], s[3]);
        }
        die(EXIT_BAD_INPUT, "%s, layer %d: %s (q %s, k %s, v %s)", folder->path,
            folder->layer[at], why, shapes[0], shapes[1], shapes[2]);
    }
}

/* ---- Kinds for a folder ----------------------------------------------------------- */

/* "shoal-C:topk=32" -> "shoal-100:topk=32". A misspelt kind is a usage error. */
static void spell_kinds(const quality_job *job, int64_t clusters, kind_list *kinds) {
    kinds->count = job->kinds.count;
    for (int i = 0; i < kinds->count; i++) {
        const char *text = job->kinds.names[i];
        const size_t name = strcspn(text, ":");
        if (name >= 2 && strncmp(text + name - 2, "-C", 2) == 0)
            snprintf(kinds->names[i], KIND_NAME, "%.*s%" PRId64 "%s", (int)name - 1, text,
                     clusters, text + name);
        else
            snprintf(kinds->names[i], KIND_NAME, "%s", text);
    }
    parse_kind_list(kinds, job->context, job->seed);
}

static void open_folder(quality_job *job, quality_folder *folder) {
    quality_layer layer = {0};
    char differ[64];
    const char *end = folder->path + strlen(folder->path);
    while (end > folder->path + 1 && end[-1] == '/')
        end--;
    const char *begin = end;
    while (begin > folder->path && begin[-1] != '/')
        begin--;
    snprintf(folder->title, sizeof folder->title, "%.*s", (int)(end - begin), begin);
    /* Pictures need UTF-8, and a long name may have been truncated inside a
       character. */
    make_utf8(folder->title);
    list_layers(folder);
    choose_layers(job, folder);
    snprintf(differ, sizeof differ, "its shapes differ from those of layer %d",
             folder->layer[0]);
    for (int at = 0; at < folder->layers; at++) {
        map_layer(job, folder, at, differ, &layer);
        release_layer(&layer);
    }
    const shoal_problem *problem = &folder->problem;
    const int64_t queries = problem->batch * problem->heads * problem->queries;
    folder->samples = job->samples < queries ? job->samples : queries;
    folder->clusters = job->clusters              ? job->clusters
                       : problem->queries >= LONG ? CLUSTERS
                                                  : FEW_CLUSTERS;
    spell_kinds(job, folder->clusters, &folder->kinds);
}

typedef struct {
    quality_job *job;
    quality_folder *folder;
    int at; /* index of the layer in the folder */
    quality_layer layer;
    int64_t count;      /* elements of an output: B H N Dv */
    float *exact, *out; /* [B][H][N][Dv] */
    int64_t *queries;   /* [samples] indices into [B][H][N] */
    shoal_plan *plans[KINDS_MOST];
    uint64_t digests[KINDS_MOST]; /* of the output that was compared */
} folder_run;

/* ---- Calls ------------------------------------------------------------------------- */

static quality_cell *cell_of(const folder_run *run, int kind) {
    return &run->folder->cells[run->at][kind];
}

static shoal_inputs inputs_of(const folder_run *run) {
    return (shoal_inputs){.size = sizeof(shoal_inputs),
                          .q = run->layer.arrays[ARRAY_Q].data,
                          .k = run->layer.arrays[ARRAY_K].data,
                          .v = run->layer.arrays[ARRAY_V].data};
}

static const char *where(const folder_run *run, int kind) {
    static char text[KIND_NAME + PATH_MAX + 32];
    snprintf(text, sizeof text, "%s on %s, layer %d", run->folder->kinds.names[kind],
             run->folder->path, run->folder->layer[run->at]);
    return text;
}

static void demand_call(const folder_run *run, shoal_status status, int kind) {
    if (status != SHOAL_OK)
        complain(EXIT_BAD_INPUT, "quality", "%s:", where(run, kind));
    demand(status, EXIT_BAD_INPUT);
}

/* Returns the seconds. */
static double call(const folder_run *run, int kind, float *out) {
    shoal_inputs inputs = inputs_of(run);
    if (kind_facts(&run->folder->kinds.attention[kind])->keys_are_queries)
        inputs.k = NULL;
    const double begun = seconds_now();
    const shoal_status status = shoal_forward(run->plans[kind], &inputs, out);
    const double seconds = seconds_now() - begun;
    demand_call(run, status, kind);
    return seconds;
}

/* ---- Rows of sampled queries ------------------------------------------------------- */

/* Buffers for one query. */
typedef struct {
    double *full; /* [S], full's weights */
    double *sums; /* [2][Dv], row V and row |V| */
    double score; /* largest magnitude of the query's scores */
} row_work;

/* Largest difference between row V and the output, relative to the largest row |V|. */
static double check_row(const exact_head *head, const row_work *work, const float *out) {
    const int64_t Dv = head->value_dim;
    double *sums = work->sums, *sizes = work->sums + Dv, worst = 0, size = 0;
    memset(sums, 0, 2 * (size_t)Dv * sizeof *sums);
    for (int64_t l = 0; l < head->keys; l++)
        for (int64_t d = 0; d < Dv; d++) {
            sums[d] += head->weights[l] * head->v[l * Dv + d];
            sizes[d] += head->weights[l] * fabs(head->v[l * Dv + d]);
        }
    for (int64_t d = 0; d < Dv; d++) {
        const double difference = fabs(sums[d] - (double)out[d]);
        worst = isnan(difference) ? INFINITY : fmax(worst, difference);
        size = fmax(size, sizes[d]);
    }
    /* Rounding errors of scores, which are exponents, grow with them. */
    const double growth = 1 +
                          4 * (double)FLT_EPSILON * work->score / QUALITY_ROW_TOLERANCE;
    return worst == 0 ? 0 : worst / (size * growth);
}

static int64_t strongest(const double *row, int64_t count) {
    int64_t best = 0;
    for (int64_t l = 1; l < count; l++)
        if (row[l] > row[best])
            best = l;
    return best;
}

/* Adds the metrics of the kind's weights for query i. out: [Dv], the output of the
   kind. */
static void add_row(exact_head *head, int64_t i, row_work *work, const float *out,
                    quality_cell *cell) {
    double *const metrics = cell->value;
    /* full's weights for query i of the same head. */
    const shoal_attention kept = head->attention;
    head->attention.kind = SHOAL_KIND_FULL;
    memcpy(work->full, exact_row(head, i), (size_t)head->keys * sizeof *work->full);
    head->attention = kept;
    work->score = 0;
    for (int64_t l = 0; l < head->keys; l++)
        work->score = fmax(work->score, fabs(head->scores[l]));
    exact_row(head, i);
    /* Skips queries where single precision may order two keys differently. */
    if (head->margin > 1e-5 * (1 + work->score))
        metrics[METRIC_ROW_CHECK] =
            fmax(metrics[METRIC_ROW_CHECK], check_row(head, work, out));
    for (int64_t l = 0; l < head->keys; l++)
        metrics[METRIC_ROW_L1] += fabs(head->weights[l] - work->full[l]);
    metrics[METRIC_AGREEMENT] += strongest(head->weights, head->keys) ==
                                 strongest(work->full, head->keys);
}

/* Fills the three metrics of rows; NAN if the plan does not report its choices. */
static void measure_rows(const folder_run *run, int kind, const float *out) {
    const shoal_problem *problem = &run->folder->problem;
    const shoal_inputs inputs = inputs_of(run);
    const int64_t N = problem->queries, count = run->folder->samples;
    row_work work = {.full = reserve((size_t)problem->keys, sizeof(double)),
                     .sums = reserve(2 * (size_t)problem->value_dim, sizeof(double))};
    exact_head *head = NULL;
    bool known = true;
    quality_cell *cell = cell_of(run, kind);
    double *const metrics = cell->value;
    metrics[METRIC_ROW_L1] = metrics[METRIC_AGREEMENT] = metrics[METRIC_ROW_CHECK] = 0;
    for (int64_t s = 0; s < count && known; s++) {
        const int64_t at = run->queries[s] / N;
        if (s == 0 || at != run->queries[s - 1] / N) {
            exact_destroy(head);
            head = exact_load(problem, &inputs, run->plans[kind],
                              &run->folder->kinds.attention[kind], at / problem->heads,
                              at % problem->heads);
        }
        if (!head)
            die_of_memory();
        known = exact_is_known(head);
        if (known)
            add_row(head, run->queries[s] % N, &work,
                    out + run->queries[s] * problem->value_dim, cell);
    }
    exact_destroy(head);
    free(work.full);
    free(work.sums);
    metrics[METRIC_ROW_L1] /= known ? (double)count : NAN;
    metrics[METRIC_AGREEMENT] /= known ? (double)count : NAN;
    metrics[METRIC_ROW_CHECK] /= known ? 1 : NAN;
}

/* ---- Sampling queries ------------------------------------------------------------- */

/* Selection sampling: each query is taken with probability (still needed) / (still
   left). */
static void sample(int64_t total, int64_t count, uint64_t seed, int64_t *chosen) {
    int64_t taken = 0;
    for (int64_t i = 0; i < total && taken < count; i++) {
        const uint64_t bits = mix_bits(((uint64_t)i + 1) * 0x9e3779b97f4a7c15u +
                                       seed * 0xd1342543de82ef95u);
        if ((double)(total - i) * ((double)(bits >> 11) * 0x1p-53) <
            (double)(count - taken))
            chosen[taken++] = i;
    }
}

/* ---- Quality and time -------------------------------------------------------------- */

/* The rows are verified by applying them to V, which must give the output; otherwise no
   figure is printed. */
static void compare_kind(folder_run *run, int kind) {
    float *out = kind == run->job->reference ? run->exact : run->out;
    double *const metrics = cell_of(run, kind)->value;
    progress_say("%s, layer %d: comparing %s", run->folder->title,
                 run->folder->layer[run->at], run->folder->kinds.names[kind]);
    call(run, kind, out);
    run->digests[kind] = fold_floats(1, out, run->count);
    metrics[METRIC_ERROR] = relative_error(out, run->exact, run->count);
    metrics[METRIC_SECONDS] = INFINITY;
    measure_rows(run, kind, out);
    if (metrics[METRIC_ROW_CHECK] > QUALITY_ROW_TOLERANCE)
        die(EXIT_FAILURE,
            "WRONG: %s: its attention weights, applied to V, differ from the output by "
            "%.2g (allowed: %.0e); please report it",
            where(run, kind), metrics[METRIC_ROW_CHECK], QUALITY_ROW_TOLERANCE);
}

static void take_turn(folder_run *run, int kind) {
    double *best = &cell_of(run, kind)->value[METRIC_SECONDS];
    const double seconds = call(run, kind, run->out);
    if (fold_floats(1, run->out, run->count) != run->digests[kind])
        die(EXIT_FAILURE,
            "WRONG: %s: a repeated call gave a different output; please report it",
            where(run, kind));
    *best = fmin(*best, seconds);
}

static void measure_layer(folder_run *run) {
    quality_folder *folder = run->folder;
    const shoal_problem *problem = &folder->problem;
    const quality_job *job = run->job;
    const int number = folder->layer[run->at];
    progress_say("%s, layer %d: reading", folder->title, number);
    map_layer(run->job, folder, run->at, "the files changed during the run", &run->layer);
    for (int i = 0; i < ARRAYS; i++) {
        /* Arrays with a NaN or an infinity cannot be compared. */
        const float *numbers = run->layer.arrays[i].data;
        int64_t count = 1;
        for (int k = 0; k < run->layer.arrays[i].dimensions; k++)
            count *= run->layer.arrays[i].shape[k];
        for (int64_t k = 0; k < count; k++)
            if (!isfinite(numbers[k]))
                die(EXIT_BAD_INPUT,
                    "%s/layer%d_%c.npy has a NaN or an infinity (element %" PRId64 ")",
                    folder->path, number, letters[i], k);
    }
    sample(problem->batch * problem->heads * problem->queries, folder->samples,
           job->seed + (uint64_t)number, run->queries);
    compare_kind(run, job->reference);
    for (int kind = 0; kind < job->kinds.count; kind++)
        if (kind != job->reference && !stop_signal())
            compare_kind(run, kind);
    for (int64_t repeat = 0; repeat < job->repeats; repeat++) {
        progress_say("%s, layer %d: timing, %" PRId64 " of %" PRId64, folder->title,
                     number, repeat + 1, job->repeats);
        for (int kind = 0; kind < job->kinds.count; kind++)
            if (!stop_signal())
                take_turn(run, kind);
    }
    release_layer(&run->layer);
    folder->done += !stop_signal();
}

static void measure_folder(quality_job *job, quality_folder *folder) {
    const shoal_problem *problem = &folder->problem;
    folder_run run = {.job = job, .folder = folder};
    progress_begin(1);
    run.count = problem->batch * problem->heads * problem->queries * problem->value_dim;
    run.exact = reserve((size_t)run.count, sizeof *run.exact);
    run.out = reserve((size_t)run.count, sizeof *run.out);
    run.queries = reserve((size_t)folder->samples, sizeof *run.queries);
    for (int kind = 0; kind < job->kinds.count; kind++) {
        /* shoal-C reports its choices only in plans with backward. */
        const shoal_attention *attention = &folder->kinds.attention[kind];
        const unsigned flags = attention->kind == SHOAL_KIND_SHOAL ? SHOAL_WITH_BACKWARD
                                                                   : 0;
        demand_call(&run,
                    shoal_plan_create(job->context, problem, attention, flags,
                                      &run.plans[kind]),
                    kind);
    }
    for (; run.at < folder->layers && !stop_signal(); run.at++)
        measure_layer(&run);
    progress_end();
    for (int kind = 0; kind < job->kinds.count; kind++)
        shoal_plan_destroy(run.plans[kind]);
    free(run.exact);
    free(run.out);
    free(run.queries);
}

/* ---- The command ------------------------------------------------------------------- */

int quality_command(int count, char **arguments) {
    static quality_job job = {.samples = DEFAULT_SAMPLES,
                              .repeats = DEFAULT_REPEATS,
                              .seed = DEFAULT_SEED};
    static kind_list checked;
    begin_command(&quality_help, count, arguments, &job);
    default_kinds(&job.kinds, DEFAULT_KINDS);
    job.reference = place_full(&job.kinds, "kinds", KINDS_MOST);
    if (optind == count)
        die_of_usage("no folder was given");
    plan_output(job.plot_path);
    job.context = begin_context(job.threads, job.isa);
    job.folder_count = count - optind;
    job.folders = reserve_zeros((size_t)job.folder_count, sizeof *job.folders);
    for (int i = 0; i < job.folder_count; i++)
        job.folders[i].path = arguments[optind + i];
    spell_kinds(&job, job.clusters ? job.clusters : CLUSTERS, &checked);
    int code = EXIT_OK;
    for (int i = 0; i < job.folder_count; i++)
        open_folder(&job, &job.folders[i]);
    watch_stop();
    for (int i = 0; i < job.folder_count && !job.interrupted; i++) {
        measure_folder(&job, &job.folders[i]);
        job.interrupted = stop_signal() != 0;
        if (!job.json)
            quality_print(&job, &job.folders[i]);
    }
    if (job.plot_path)
        quality_write_plot(&job);
    if (job.json)
        code = quality_print_json(&job);
    return code == EXIT_OK && job.interrupted ? 128 + stop_signal() : code;
}
