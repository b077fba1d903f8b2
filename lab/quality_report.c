/* Output of shoal quality: table, JSON object and picture. */
#include "plot.h"
#include "quality.h"

enum { LAYERS_ACROSS = 10 };

/* ---- Summaries --------------------------------------------------------------------- */

/* Over the layers that are done. */
static double mean_of(const quality_folder *folder, int kind, quality_metric metric) {
    double sum = 0;
    for (int at = 0; at < folder->done; at++)
        sum += folder->cells[at][kind].value[metric];
    return sum / folder->done;
}

static double times_full(const quality_job *job, const quality_folder *folder, int kind) {
    return mean_of(folder, job->reference, METRIC_SECONDS) /
           mean_of(folder, kind, METRIC_SECONDS);
}

/* Whether no kind has both a smaller error and a shorter time. */
static bool is_on_front(const quality_job *job, const quality_folder *folder, int kind) {
    const double error = mean_of(folder, kind, METRIC_ERROR);
    const double seconds = mean_of(folder, kind, METRIC_SECONDS);
    for (int other = 0; other < job->kinds.count; other++) {
        const double its_error = mean_of(folder, other, METRIC_ERROR);
        const double its_seconds = mean_of(folder, other, METRIC_SECONDS);
        if (its_error <= error && its_seconds <= seconds &&
            (its_error < error || its_seconds < seconds))
            return false;
    }
    return true;
}

/* ---- The table --------------------------------------------------------------------- */

/* "-" for NAN. */
static void print_value(int width, int decimals, double value) {
    if (isnan(value))
        printf(" %*s", width, "-");
    else
        printf(" %*.*f", width, decimals, value);
}

static void print_summary(const quality_job *job, const quality_folder *folder,
                          int width) {
    const shoal_problem *p = &folder->problem;
    printf("%s: %d layer%s, batch %" PRId64 ", heads %" PRId64, folder->path,
           folder->done, plural(folder->done), p->batch, p->heads);
    if (p->kv_heads != p->heads)
        printf(" (keys and values: %" PRId64 ")", p->kv_heads);
    printf(", queries %" PRId64 ", keys %" PRId64 ", dim %" PRId64, p->queries, p->keys,
           p->dim);
    if (p->value_dim != p->dim)
        printf(", value dim %" PRId64, p->value_dim);
    printf("\n%s; %" PRId64 " quer%s sampled per layer, seed %" PRIu64
           "; best of %" PRId64 "\n\n",
           setting_text(job->context), folder->samples,
           folder->samples == 1 ? "y" : "ies", job->seed, job->repeats);
    printf("  %-*s %8s %8s %8s %9s %9s %8s\n", width, "", "error", "error", "rows",
           "strongest", "ms per", "speed");
    printf("  %-*s %8s %8s %8s %9s %9s %8s\n", width, "kind", "mean", "worst", "L1",
           "key same", "call", "vs full");
    for (int kind = 0; kind < job->kinds.count; kind++) {
        double worst = 0;
        for (int at = 0; at < folder->done; at++)
            worst = fmax(worst, folder->cells[at][kind].value[METRIC_ERROR]);
        printf("%c %-*s", is_on_front(job, folder, kind) ? '*' : ' ', width,
               folder->kinds.names[kind]);
        print_value(8, 4, mean_of(folder, kind, METRIC_ERROR));
        print_value(8, 4, worst);
        print_value(8, 4, mean_of(folder, kind, METRIC_ROW_L1));
        print_value(9, 3, mean_of(folder, kind, METRIC_AGREEMENT));
        print_value(9, 3, 1e3 * mean_of(folder, kind, METRIC_SECONDS));
        print_value(8, 2, times_full(job, folder, kind));
        putchar('\n');
    }
}

void quality_print(const quality_job *job, const quality_folder *folder) {
    int width = 14;
    if (folder->done == 0) {
        printf("%s: interrupted before the first layer was done\n", folder->path);
        return;
    }
    for (int kind = 0; kind < job->kinds.count; kind++)
        width = (int)fmax(width, (double)strlen(folder->kinds.names[kind]));
    print_summary(job, folder, width);
    for (int first = 0; first < folder->done; first += LAYERS_ACROSS) {
        /* Layers from `first` on, as many as fit. */
        const int end = first + LAYERS_ACROSS < folder->done ? first + LAYERS_ACROSS
                                                             : folder->done;
        printf("\n  %-*s", width, first == 0 ? "error by layer" : "");
        for (int at = first; at < end; at++)
            printf(" %8d", folder->layer[at]);
        putchar('\n');
        for (int kind = 0; kind < job->kinds.count; kind++) {
            printf("  %-*s", width, folder->kinds.names[kind]);
            for (int at = first; at < end; at++)
                print_value(8, 4, folder->cells[at][kind].value[METRIC_ERROR]);
            putchar('\n');
        }
    }
    printf("\n"
           "* on the Pareto front: no kind has a smaller error in less time. error: |out "
           "- full| / |full|;\n"
           "rows L1: mean distance of attention weights from full's. Every row was "
           "checked against the output.\n");
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
    json_t *object = json_pack("{s:s}", "kind", folder->kinds.names[kind]);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_object_set_new(object, fields[i].name,
                            json_number(mean_of(folder, kind, fields[i].metric)));
        json_object_set_new(object, fields[i].layers_name,
                            by_layer(folder, kind, fields[i].metric));
    }
    json_object_set_new(object, "row_check_by_layer",
                        by_layer(folder, kind, METRIC_ROW_CHECK));
    json_object_set_new(object, "speed_relative_to_full",
                        json_number(times_full(job, folder, kind)));
    json_object_set_new(object, "on_pareto_front",
                        json_boolean(is_on_front(job, folder, kind)));
    return object;
}

static json_t *folder_object(const quality_job *job, const quality_folder *folder) {
    const shoal_problem *p = &folder->problem;
    json_t *kinds = json_array(), *layers = json_array();
    for (int at = 0; at < folder->done; at++)
        json_array_append_new(layers, json_integer(folder->layer[at]));
    for (int kind = 0; kind < job->kinds.count && folder->done > 0; kind++)
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

/* ---- Picture: error against time, a chart per folder, with the Pareto front ------- */

/* Storage that one chart points to. */
typedef struct {
    double x[KINDS_MOST], y[KINDS_MOST];
    double front_x[KINDS_MOST], front_y[KINDS_MOST];
    plot_series series[KINDS_MOST + 1]; /* the front first, below the points */
    char title[KIND_NAME + 48];
} folder_picture;

/* The front as a line, from the fastest kind on. */
static int trace_front(const quality_job *job, const quality_folder *folder,
                       folder_picture *picture) {
    int count = 0;
    for (int kind = 0; kind < job->kinds.count; kind++) {
        if (!is_on_front(job, folder, kind))
            continue;
        int at = count++;
        for (; at > 0 && picture->front_x[at - 1] > picture->x[kind]; at--) {
            picture->front_x[at] = picture->front_x[at - 1];
            picture->front_y[at] = picture->front_y[at - 1];
        }
        picture->front_x[at] = picture->x[kind];
        picture->front_y[at] = picture->y[kind];
    }
    return count;
}

/* The largest of 1, 2 or 5 times a power of ten that is at most value. */
static double round_down(double value) {
    const double power = pow(10, floor(log10(value)));
    const double digit = value / power;
    return power * (digit >= 5 ? 5 : digit >= 2 ? 2 : 1);
}

/* The legend is shared, so it says C if the folders have different numbers of
   clusters. */
static plot_chart draw_folder(const quality_job *job, const quality_folder *folder,
                              folder_picture *picture) {
    double fastest = INFINITY, slowest = 0, worst = 1e-6;
    bool alike = true;
    for (int i = 1; i < job->folder_count; i++)
        alike = alike && job->folders[i].clusters == job->folders[0].clusters;
    for (int kind = 0; kind < job->kinds.count; kind++) {
        const double x = picture->x[kind] = 1e3 * mean_of(folder, kind, METRIC_SECONDS);
        const double y = picture->y[kind] = mean_of(folder, kind, METRIC_ERROR);
        fastest = fmin(fastest, x);
        slowest = fmax(slowest, x);
        worst = fmax(worst, y);
        picture->series[1 + kind] =
            plot_kind(alike ? folder->kinds.names[kind] : job->kinds.names[kind], kind,
                      &picture->x[kind], &picture->y[kind], 1);
    }
    picture->series[0] = plot_reference("Pareto front", picture->front_x,
                                        picture->front_y,
                                        trace_front(job, folder, picture));
    snprintf(picture->title, sizeof picture->title, alike ? "%s" : "%s, C = %" PRId64,
             folder->title, folder->clusters);
    /* Times from the fastest to the slowest, extended to ticks; errors from just below
       0, so that the marker of full is visible. */
    return (plot_chart){.title = picture->title,
                        .x = {.label = "ms per call",
                              .scale = PLOT_LOG,
                              .low = round_down(fastest * 0.99),
                              .high = 1 / round_down(0.99 / slowest)},
                        .y = {.label = "relative L2 error",
                              .scale = PLOT_LINEAR,
                              .low = -0.03 * worst,
                              .high = 1.05 * worst},
                        .series = picture->series,
                        .series_count = job->kinds.count + 1};
}

void quality_write_plot(const quality_job *job) {
    folder_picture *pictures = reserve_zeros((size_t)job->folder_count, sizeof *pictures);
    plot_chart *charts = reserve_zeros((size_t)job->folder_count, sizeof *charts);
    char caption[160];
    int count = 0;
    snprintf(caption, sizeof caption, "%s; mean over layers%s",
             setting_text(job->context), job->interrupted ? "; interrupted" : "");
    for (int i = 0; i < job->folder_count; i++)
        if (job->folders[i].done > 0) {
            charts[count] = draw_folder(job, &job->folders[i], &pictures[count]);
            count++;
        }
    if (count > 0)
        plot_write(job->plot_path, &(plot_figure){charts, count, caption});
    free(pictures);
    free(charts);
}
