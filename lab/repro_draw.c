/* Pictures of an experiment: errors and losses against hours, the matrix of kinds in
   training and evaluation, and panels of heatmaps. */
#define _GNU_SOURCE
#include <unistd.h>

#include "plot.h"
#include "repro.h"

enum { MOST_CURVES = 64 };

/* ---- Curves ------------------------------------------------------------------------ */

static int add_curves(const repro_job *job, curve_name curve, bool named,
                      plot_series series[MOST_CURVES]) {
    int count = 0;
    for (int i = 0; i < job->count && count < MOST_CURVES; i++) {
        const log_curve *line = &job->cells[i].log.curves[curve];
        if (line->count > 0)
            series[count++] = (plot_series){.name = named ? job->cells[i].name : NULL,
                                            .x = line->x,
                                            .y = line->y,
                                            .count = line->count,
                                            .colour = i % PLOT_COLOURS,
                                            .marker = PLOT_NO_MARKER,
                                            .dashed = i >= PLOT_COLOURS};
    }
    return count;
}

typedef struct {
    double hours[2 * MOST_CURVES], errors[2 * MOST_CURVES];
    plot_series series[2 * MOST_CURVES];
    int count;
} point_list;

/* Test error of every cell against its hours: filled after the epochs, hollow after the
   minutes. */
static void add_points(const repro_job *job, const char *of, point_list *list) {
    static const char *const times[] = {"epochs", "minutes"};
    static const bool hollow[] = {false, true};
    list->count = 0;
    for (int i = 0; i < job->count && list->count + 2 < 2 * MOST_CURVES; i++)
        for (int k = 0; k < 2; k++) {
            double *hours = &list->hours[list->count];
            double *error = &list->errors[list->count];
            *hours = repro_number(job, &job->cells[i], "hours(%s)", times[k]);
            *error = repro_number(job, &job->cells[i], "%s.test.kinds[0]%s.error_rate",
                                  times[k], of);
            if (isfinite(*hours) && isfinite(*error))
                list->series[list->count++] =
                    (plot_series){.x = hours,
                                  .y = error,
                                  .count = 1,
                                  .colour = i % PLOT_COLOURS,
                                  .marker = (plot_marker)(i / PLOT_COLOURS),
                                  .hollow = &hollow[k]};
        }
}

/* Swaps curves between accuracy and error; calling it twice restores them. */
static void turn_to_errors(const repro_job *job) {
    for (int i = 0; i < job->count; i++) {
        log_curve *line = &job->cells[i].log.curves[CURVE_VALIDATION_ACCURACY];
        for (int k = 0; k < line->count; k++)
            line->y[k] = 100 - line->y[k];
    }
}

/* Curves of dev, and points of test for each available measure. */
static void draw_errors(const repro_job *job, const json_t *how, const char *path) {
    static point_list points[3];
    plot_series curves[MOST_CURVES];
    const json_t *list = json_object_get(how, "points");
    const plot_axis hours = {.label = "hours of training"};
    plot_chart charts[4] = {
        {"dev", hours, {.label = "error rate, %"}, curves, 0, NULL, 0}};
    plot_figure figure = {charts, 1, repro_text(how, "caption")};
    turn_to_errors(job);
    charts[0].series_count = add_curves(job, CURVE_VALIDATION_ACCURACY, true, curves);
    for (size_t i = 0; i < json_array_size(list) && i < 3; i++) {
        const json_t *one = json_array_get(list, i);
        add_points(job, repro_item(one, 2), &points[i]);
        if (points[i].count > 0)
            charts[figure.count++] = (plot_chart){repro_item(one, 0),
                                                  hours,
                                                  {.label = repro_item(one, 1)},
                                                  points[i].series,
                                                  points[i].count,
                                                  NULL,
                                                  0};
    }
    if (charts[0].series_count > 0)
        plot_write(path, &figure);
    turn_to_errors(job);
}

static void draw_losses(const repro_job *job, const json_t *how, const char *path) {
    plot_series train[MOST_CURVES], dev[MOST_CURVES];
    const int first = add_curves(job, CURVE_LOSS, true, train);
    const int second = add_curves(job, CURVE_VALIDATION_LOSS, false, dev);
    const plot_axis hours = {.label = "hours of training"};
    const plot_axis loss = {.label = repro_text(how, "label")};
    const plot_chart charts[] = {{"training", hours, loss, train, first, NULL, 0},
                                 {"validation", hours, loss, dev, second, NULL, 0}};
    const plot_figure figure = {.charts = charts, .count = second ? 2 : 1};
    if (first > 0)
        plot_write(path, &figure);
}

/* ---- Heatmaps ---------------------------------------------------------------------- */

static void draw_matrix(const repro_job *job, const json_t *how, const char *path) {
    const char *columns[MOST_CURVES], *rows[REPRO_VALUES + 4];
    static double values[(REPRO_VALUES + 4) * MOST_CURVES];
    const repro_cell *shown[MOST_CURVES];
    const char *value = repro_text(how, "value"), *split = strstr(value, "@row");
    heatmap_table table = {.title = repro_text(how, "title"),
                           .across = repro_text(how, "across"),
                           .down = repro_text(how, "down"),
                           .caption = repro_text(how, "caption"),
                           .row_names = rows,
                           .column_names = columns,
                           .values = values};
    if (!split)
        die(EXIT_BAD_INPUT, "a matrix needs @row in its \"value\"");
    for (int i = 0; (rows[i] = repro_row(job, i)); i++)
        table.rows = i + 1;
    for (int i = 0; i < job->count && table.columns < MOST_CURVES; i++)
        if (json_object_get(job->cells[i].result, "epochs")) {
            shown[table.columns] = &job->cells[i];
            columns[table.columns++] = job->cells[i].name;
        }
    for (int i = 0; i < table.rows; i++)
        for (int k = 0; k < table.columns; k++)
            values[i * table.columns + k] = repro_number(job, shown[k], "%.*s%s%s",
                                                         (int)(split - value), value,
                                                         rows[i], split + 4);
    if (table.columns > 0)
        heatmap_write(path, &table);
}

#if !defined(SHOAL_HAVE_CAIRO)

static void draw_panels(const repro_job *job, const json_t *how, const char *path) {
    (void)job, (void)how, (void)path;
}

#else
#include <cairo.h>

enum { CELL_WIDTH = 46, CELL_HEIGHT = 34, LEFT = 62, TOP = 40, GAP = 18, BELOW = 58 };

/* A panel per family of kinds, a row per number of clusters or rounds, a column per
   value of the first axis; the share is shown as colour and number. */
typedef struct {
    const repro_job *job;
    const json_t *how;
    char families[REPRO_VALUES][REPRO_NAME];
    int count, rows[REPRO_VALUES]; /* number so far */
    int columns, tallest;
    double width, height; /* in points */
} panels;

/* "i-clustered-15:topk=64" -> "i-clustered:topk=64" and "C = 15". */
static void split_kind(const char *kind, char family[REPRO_NAME], char number[32]) {
    const char *end = strchrnul(kind, ':'), *digits = end;
    while (digits > kind && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    const bool has = digits < end && digits > kind && digits[-1] == '-';
    snprintf(family, REPRO_NAME, "%.*s%s", (int)((has ? digits - 1 : end) - kind), kind,
             end);
    *number = 0;
    if (has)
        snprintf(number, 32, "%s = %.*s", strncmp(family, "lsh", 3) == 0 ? "R" : "C",
                 (int)(end - digits), digits);
}

static int panel_of(panels *all, int kind, char number[32]) {
    char family[REPRO_NAME];
    int at = 0;
    split_kind(all->job->cells[kind].kind, family, number);
    while (at < all->count && strcmp(all->families[at], family) != 0)
        at++;
    if (at == all->count)
        strcpy(all->families[all->count++], family);
    return at;
}

static void paint_panels(cairo_t *cr, const void *what) {
    static panels all;
    char text[REPRO_TEXT], share[32];
    all = *(const panels *)what;
    const double panel = LEFT + CELL_WIDTH * all.columns + GAP;
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_font_size(cr, 10);
    memset(all.rows, 0, sizeof all.rows);
    for (int k = 0; k < all.job->inner; k++) {
        const int at = panel_of(&all, k, share);
        const double left = at * panel + LEFT, y = TOP + CELL_HEIGHT * all.rows[at]++;
        cairo_set_source_rgb(cr, 0, 0, 0);
        plot_text(cr, left - 6, y + CELL_HEIGHT / 2.0 + 3.5, 1, share);
        for (int l = 0; l < all.columns; l++) {
            const repro_cell *cell = &all.job->cells[l * all.job->inner + k];
            const double value = cell->result ? repro_number(all.job, cell, "%s",
                                                             repro_text(all.how, "value"))
                                              : (double)NAN;
            repro_percent(share, value);
            heatmap_draw_box(cr,
                             (heatmap_box){left + CELL_WIDTH * l, y, CELL_WIDTH,
                                           CELL_HEIGHT},
                             value, isnan(value) ? "-" : share);
        }
    }
    cairo_set_source_rgb(cr, 0, 0, 0);
    for (int i = 0; i < all.count; i++) {
        const double left = i * panel + LEFT,
                     middle = left + CELL_WIDTH * all.columns / 2.0;
        const double below = TOP + CELL_HEIGHT * all.rows[i];
        plot_bold(cr, true);
        plot_text(cr, middle, TOP - 14, 0.5, all.families[i]);
        plot_bold(cr, false);
        for (int l = 0; l < all.columns; l++)
            if (repro_fill(all.job, &all.job->cells[l * all.job->inner],
                           repro_text(all.how, "column"), "", "", text))
                plot_text(cr, left + CELL_WIDTH * (l + 0.5), below + 12, 0.5, text);
        plot_text(cr, middle, below + 26, 0.5, repro_text(all.how, "across"));
    }
    cairo_set_font_size(cr, 8.5);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    plot_text(cr, all.width / 2, all.height - 9, 0.5, repro_text(all.how, "caption"));
}

static void draw_panels(const repro_job *job, const json_t *how, const char *path) {
    static panels all;
    char number[32];
    all = (panels){.job = job, .how = how, .columns = job->count / job->inner};
    for (int k = 0; k < job->inner; k++) {
        const int at = panel_of(&all, k, number);
        all.tallest = ++all.rows[at] > all.tallest ? all.rows[at] : all.tallest;
    }
    all.width = (LEFT + CELL_WIDTH * all.columns + GAP) * all.count;
    all.height = TOP + CELL_HEIGHT * all.tallest + BELOW;
    plot_paint(path, all.width, all.height, paint_panels, &all);
}

#endif

/* ---- All pictures ----------------------------------------------------------------- */

void repro_draw(const repro_job *job) {
    static const struct {
        const char *name;
        void (*draw)(const repro_job *job, const json_t *how, const char *path);
    } kinds[] = {{"errors", draw_errors},
                 {"losses", draw_losses},
                 {"matrix", draw_matrix},
                 {"panels", draw_panels}};
    const char *name;
    json_t *how;
    json_object_foreach(json_object_get(job->table, "pictures"), name,
                        how) for (int i = 0; i < 8; i++) {
        char path[REPRO_PATH], file[REPRO_NAME];
        snprintf(file, sizeof file, "%s.%s", name, i % 2 ? "png" : "svg");
        const char *why = plot_obstacle(repro_path(path, job->folder, file));
        if (strcmp(repro_text(how, "draw"), kinds[i / 2].name) != 0)
            continue;
        if (why && i % 2 == 0)
            fprintf(stderr, "shoal %s: no picture %s: %s\n", command_name(), name, why);
        else if (!why)
            kinds[i / 2].draw(job, how, path);
    }
}

void repro_plot(const char *folder) {
    static repro_job job = {.show = true, .minutes = -1};
    static char kinds[REPRO_VALUES * REPRO_NAME], tested[REPRO_VALUES * REPRO_NAME];
    char path[REPRO_PATH];
    json_t *results = load_json("plot", repro_path(path, folder, REPRO_RESULTS)), *one;
    size_t i;
    if (!results)
        leave(EXIT_BAD_INPUT);
    const char *table = repro_text(results, "table");
    repro_load(&job, *table ? table : repro_text(results, "experiment"));
    json_array_foreach(json_object_get(results, "cells"), i, one)
        snprintf(kinds + strlen(kinds), sizeof kinds - strlen(kinds), "%s%s",
                 i ? "," : "", repro_text(one, "name"));
    json_array_foreach(json_object_get(results, "evaluate"), i, one)
        snprintf(tested + strlen(tested), sizeof tested - strlen(tested), "%s%s",
                 i ? "," : "", repro_item(json_object_get(results, "evaluate"), i));
    if (!*kinds)
        die(EXIT_BAD_INPUT, "%s: use shoal repro --show to draw this experiment", path);
    job.kinds = kinds;
    job.evaluate = *tested ? tested : NULL;
    job.folder = folder;
    job.context = begin_context(0, NULL);
    repro_make_cells(&job);
    repro_read(&job);
    repro_draw(&job);
    json_decref(results);
}
