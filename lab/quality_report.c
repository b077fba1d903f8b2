/* The table, and the whole run as one JSON object. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common.h"
#include "quality.h"

enum { LAYERS_ACROSS = 10 };

/* ---- Summaries --------------------------------------------------------------------- */

double quality_mean(const quality_folder *folder, int kind, quality_metric metric) {
    double sum = 0;
    for (int at = 0; at < folder->done; at++)
        sum += folder->cells[at][kind].value[metric];
    return sum / folder->done;
}

static double worst_error(const quality_folder *folder, int kind) {
    double worst = 0;
    for (int at = 0; at < folder->done; at++)
        worst = fmax(worst, folder->cells[at][kind].value[METRIC_ERROR]);
    return worst;
}

static double times_full(const quality_job *job, const quality_folder *folder, int kind) {
    return quality_mean(folder, job->reference, METRIC_SECONDS) /
           quality_mean(folder, kind, METRIC_SECONDS);
}

bool quality_on_front(const quality_job *job, const quality_folder *folder, int kind) {
    const double error = quality_mean(folder, kind, METRIC_ERROR);
    const double seconds = quality_mean(folder, kind, METRIC_SECONDS);
    for (int other = 0; other < job->kinds; other++) {
        const double its_error = quality_mean(folder, other, METRIC_ERROR);
        const double its_seconds = quality_mean(folder, other, METRIC_SECONDS);
        if (its_error <= error && its_seconds <= seconds &&
            (its_error < error || its_seconds < seconds))
            return false;
    }
    return true;
}

/* ---- The table --------------------------------------------------------------------- */

/* "-" where there is nothing to say. */
static void print_value(int width, int decimals, double value) {
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, decimals, value);
}

static int name_width(const quality_job *job, const quality_folder *folder) {
    size_t width = 4;
    for (int kind = 0; kind < job->kinds; kind++) {
        const size_t length = strlen(folder->spelling[kind]);
        width = length > width ? length : width;
    }
    return (int)width;
}

static void print_heading(const quality_job *job, const quality_folder *folder) {
    const shoal_problem *p = &folder->problem;
    const int threads = shoal_context_threads(job->context);
    printf("%s: %d layer%s, batch %" PRId64 ", heads %" PRId64, folder->path,
           folder->done, folder->done == 1 ? "" : "s", p->batch, p->heads);
    if (p->kv_heads != p->heads)
        printf(" (keys and values: %" PRId64 ")", p->kv_heads);
    printf(", queries %" PRId64 ", keys %" PRId64 ", dim %" PRId64, p->queries, p->keys,
           p->dim);
    if (p->value_dim != p->dim)
        printf(", value dim %" PRId64, p->value_dim);
    printf("\nshoal %s, %s, %d thread%s; %" PRId64
           " quer%s sampled per layer, seed %" PRIu64 "; best of %" PRId64 "\n\n",
           shoal_version(), shoal_context_isa(job->context), threads,
           threads == 1 ? "" : "s", folder->samples, folder->samples == 1 ? "y" : "ies",
           job->seed, job->repeats);
}

static void print_summary(const quality_job *job, const quality_folder *folder,
                          int width) {
    printf("  %-*s %8s %8s %8s %9s %9s %8s\n", width, "", "error", "error", "rows",
           "strongest", "ms per", "speed");
    printf("  %-*s %8s %8s %8s %9s %9s %8s\n", width, "kind", "mean", "worst", "L1",
           "key same", "call", "vs full");
    for (int kind = 0; kind < job->kinds; kind++) {
        printf("%c %-*s", quality_on_front(job, folder, kind) ? '*' : ' ', width,
               folder->spelling[kind]);
        print_value(8, 4, quality_mean(folder, kind, METRIC_ERROR));
        print_value(8, 4, worst_error(folder, kind));
        print_value(8, 4, quality_mean(folder, kind, METRIC_ROW_L1));
        print_value(9, 3, quality_mean(folder, kind, METRIC_AGREEMENT));
        print_value(9, 3, 1e3 * quality_mean(folder, kind, METRIC_SECONDS));
        print_value(8, 2, times_full(job, folder, kind));
        putchar('\n');
    }
}

/* The layers from `first` on, as many as fit across. */
static void print_layers(const quality_job *job, const quality_folder *folder, int width,
                         int first) {
    const int end = first + LAYERS_ACROSS < folder->done ? first + LAYERS_ACROSS
                                                         : folder->done;
    printf("\n  %-*s", width, first == 0 ? "error by layer" : "");
    for (int at = first; at < end; at++)
        printf(" %8d", folder->layer[at]);
    putchar('\n');
    for (int kind = 0; kind < job->kinds; kind++) {
        printf("  %-*s", width, folder->spelling[kind]);
        for (int at = first; at < end; at++)
            print_value(8, 4, folder->cells[at][kind].value[METRIC_ERROR]);
        putchar('\n');
    }
}

void quality_print(const quality_job *job, const quality_folder *folder) {
    int width = name_width(job, folder);
    width = width < 14 ? 14 : width;
    if (folder->done == 0) {
        printf("%s: interrupted before the first layer was done\n", folder->path);
        return;
    }
    print_heading(job, folder);
    print_summary(job, folder, width);
    for (int first = 0; first < folder->done; first += LAYERS_ACROSS)
        print_layers(job, folder, width, first);
    printf("\n* on the Pareto front: no kind has less error in less time. error: |out - "
           "full| / |full|;\nrows L1: mean distance of attention rows from full's. Every "
           "row was checked against the output.\n");
    if (folder->done < folder->layers)
        printf("Interrupted: %d of %d layers.\n", folder->done, folder->layers);
    putchar('\n');
    fflush(stdout);
}

/* ---- JSON -------------------------------------------------------------------------- */

static json_t *by_layer(const quality_folder *folder, int kind, quality_metric metric) {
    json_t *values = json_array();
    for (int at = 0; at < folder->done; at++)
        json_array_append_new(values, json_number(folder->cells[at][kind].value[metric]));
    return values;
}

static json_t *kind_object(const quality_job *job, const quality_folder *folder,
                           int kind) {
    static const struct {
        const char *name, *layers_name;
        quality_metric metric;
    } fields[] = {
        {"relative_error", "relative_error_by_layer", METRIC_ERROR},
        {"row_l1", "row_l1_by_layer", METRIC_ROW_L1},
        {"strongest_key_agrees", "strongest_key_agrees_by_layer", METRIC_AGREEMENT},
        {"seconds_per_call", "seconds_per_call_by_layer", METRIC_SECONDS},
    };
    json_t *object = json_pack("{s:s}", "kind", folder->spelling[kind]);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_object_set_new(object, fields[i].name,
                            json_number(quality_mean(folder, kind, fields[i].metric)));
        json_object_set_new(object, fields[i].layers_name,
                            by_layer(folder, kind, fields[i].metric));
    }
    json_object_set_new(object, "row_check_by_layer",
                        by_layer(folder, kind, METRIC_ROW_CHECK));
    json_object_set_new(object, "speed_relative_to_full",
                        json_number(times_full(job, folder, kind)));
    json_object_set_new(object, "on_pareto_front",
                        json_boolean(quality_on_front(job, folder, kind)));
    return object;
}

static json_t *folder_object(const quality_job *job, const quality_folder *folder) {
    const shoal_problem *p = &folder->problem;
    json_t *kinds = json_array(), *layers = json_array();
    for (int at = 0; at < folder->done; at++)
        json_array_append_new(layers, json_integer(folder->layer[at]));
    for (int kind = 0; kind < job->kinds && folder->done > 0; kind++)
        json_array_append_new(kinds, kind_object(job, folder, kind));
    return json_pack("{s:o, s:o, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
                     "folder", json_text(folder->path), "layers", layers, "complete",
                     folder->done == folder->layers, "batch", (json_int_t)p->batch,
                     "heads", (json_int_t)p->heads, "kv_heads", (json_int_t)p->kv_heads,
                     "queries", (json_int_t)p->queries, "keys", (json_int_t)p->keys,
                     "dim", (json_int_t)p->dim, "value_dim", (json_int_t)p->value_dim,
                     "clusters", (json_int_t)folder->clusters, "samples",
                     (json_int_t)folder->samples, "kinds", kinds);
}

int quality_print_json(const quality_job *job) {
    json_t *folders = json_array();
    for (int i = 0; i < job->folder_count; i++)
        json_array_append_new(folders, folder_object(job, &job->folders[i]));
    return print_json(json_pack("{s:s, s:s, s:i, s:o, s:I, s:f, s:b, s:o}", "version",
                                shoal_version(), "isa", shoal_context_isa(job->context),
                                "threads", shoal_context_threads(job->context), "seed",
                                json_seed(job->seed), "repeats", (json_int_t)job->repeats,
                                "row_tolerance", QUALITY_ROW_TOLERANCE, "interrupted",
                                job->interrupted, "folders", folders));
}
