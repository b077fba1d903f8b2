/* The pictures of shoal repro speech and lf-mmi: errors and losses against hours, and the
   matrix of kinds to train and to evaluate with. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "plot.h"
#include "repro_speech.h"

enum { MOST_POINTS = 2 * REPRO_KINDS };

static plot_series curve_of(const speech_cell *cell, curve_name curve, int number,
                            bool named) {
    const log_curve *line = &cell->log.curves[curve];
    return (plot_series){.name = named ? cell->name : NULL,
                         .x = line->x,
                         .y = line->y,
                         .count = line->count,
                         .colour = number % PLOT_COLOURS,
                         .marker = PLOT_NO_MARKER,
                         .dashed = number >= PLOT_COLOURS};
}

static int add_curves(const speech_grid *grid, curve_name curve, bool named,
                      plot_series *series) {
    int count = 0;
    for (int i = 0; i < grid->count; i++)
        if (grid->cells[i].log.curves[curve].count > 0)
            series[count++] = curve_of(&grid->cells[i], curve, i, named);
    return count;
}

/* "errors" as DIR/errors.svg and .png; without cairo it is said once. */
static int write_figure(const char *command, const speech_grid *grid, const char *name,
                        const plot_figure *figure, const heatmap_table *table) {
    static const char *const endings[] = {".svg", ".png"};
    for (int i = 0; i < 2; i++) {
        char path[TRAIN_PATH], file[64];
        snprintf(file, sizeof file, "%s%s", name, endings[i]);
        if (!train_path(command, path, grid->folder, file))
            return EXIT_USAGE;
        const char *why = plot_obstacle(path);
        if (why) {
            fprintf(stderr, "shoal %s: no picture %s: %s\n", command, name, why);
            return EXIT_OK;
        }
        if (figure)
            plot_write(path, figure);
        else
            heatmap_write(path, table);
    }
    return EXIT_OK;
}

/* ---- Errors ------------------------------------------------------------------------ */

typedef struct {
    double hours[MOST_POINTS], errors[MOST_POINTS];
    plot_series series[MOST_POINTS];
    int count;
} point_list;

/* Test's error of every cell against its hours: after the epochs filled, after the
   minutes hollow. */
static void add_points(const speech_grid *grid, speech_measure measure,
                       point_list *list) {
    static const char *const times[] = {"epochs", "minutes"};
    static const bool hollow[] = {false, true};
    list->count = 0;
    for (int i = 0; i < grid->count; i++)
        for (int k = 0; k < 2; k++) {
            const speech_cell *cell = &grid->cells[i];
            double *hours = &list->hours[list->count];
            double *error = &list->errors[list->count];
            *hours = speech_hours(grid, cell, times[k]);
            *error = speech_tested(cell, times[k], NULL, measure, "error_rate");
            if (!isfinite(*hours) || !isfinite(*error))
                continue;
            list->series[list->count++] =
                (plot_series){.x = hours,
                              .y = error,
                              .count = 1,
                              .colour = i % PLOT_COLOURS,
                              .marker = (plot_marker)(i / PLOT_COLOURS),
                              .hollow = &hollow[k]};
        }
}

/* The curves show what is right; twice gives them back. */
static void turn_to_errors(const speech_grid *grid) {
    for (int i = 0; i < grid->count; i++) {
        log_curve *line = &grid->cells[i].log.curves[CURVE_VALIDATION_ACCURACY];
        for (int k = 0; k < line->count; k++)
            line->y[k] = 100 - line->y[k];
    }
}

/* dev, test, and where words were found those of test. */
static int draw_errors(const char *command, const speech_grid *grid) {
    static point_list units, words;
    plot_series curves[REPRO_KINDS];
    turn_to_errors(grid);
    const int count = add_curves(grid, CURVE_VALIDATION_ACCURACY, true, curves);
    add_points(grid, OF_UNITS, &units);
    add_points(grid, OF_WORDS, &words);
    const plot_axis hours = {.label = "hours of training"};
    const plot_axis error = {.label = "error rate, %"};
    const plot_axis wrong = {.label = "words wrong, %"};
    const plot_chart charts[] = {{"dev", hours, error, curves, count, NULL, 0},
                                 {"test", hours, error, units.series, units.count, NULL,
                                  0},
                                 {"test, words", hours, wrong, words.series, words.count,
                                  NULL, 0}};
    const plot_figure figure = {.charts = charts,
                                .count = 1 + (units.count > 0) + (words.count > 0),
                                .caption = "test: filled after all epochs, hollow after "
                                           "the same minutes"};
    const int code = count ? write_figure(command, grid, "errors", &figure, NULL)
                           : EXIT_OK;
    turn_to_errors(grid);
    return code;
}

/* ---- Losses ------------------------------------------------------------------------ */

static int draw_losses(const char *command, const speech_grid *grid) {
    plot_series train[REPRO_KINDS], dev[REPRO_KINDS];
    const int first = add_curves(grid, CURVE_LOSS, true, train);
    const int second = add_curves(grid, CURVE_VALIDATION_LOSS, false, dev);
    const plot_axis hours = {.label = "hours of training"};
    const plot_axis loss = {.label = grid->experiment->loss_label};
    const plot_chart charts[] = {{"training", hours, loss, train, first, NULL, 0},
                                 {"validation", hours, loss, dev, second, NULL, 0}};
    const plot_figure figure = {.charts = charts, .count = second ? 2 : 1};
    return first ? write_figure(command, grid, "losses", &figure, NULL) : EXIT_OK;
}

/* ---- The matrix -------------------------------------------------------------------- */

static int draw_matrix(const char *command, const speech_grid *grid) {
    static const char *const controls[] = {"uniform attention", "no attention",
                                           "clustered-1"};
    const char *columns[REPRO_KINDS], *rows[REPRO_TESTED + 3];
    static double values[(REPRO_TESTED + 3) * REPRO_KINDS];
    const speech_measure measure = grid->experiment->measure;
    heatmap_table table = {.title = measure == OF_WORDS ? "words wrong on test, %"
                                                        : "error rate on test, %",
                           .across = "trained with",
                           .down = "evaluated with",
                           .caption = "-: not done, or not possible with these weights",
                           .row_names = rows,
                           .column_names = columns,
                           .values = values};
    const speech_cell *shown[REPRO_KINDS];
    for (int i = 0; i < grid->count; i++)
        if (isfinite(
                speech_tested(&grid->cells[i], "epochs", NULL, measure, "error_rate"))) {
            shown[table.columns] = &grid->cells[i];
            columns[table.columns++] = grid->cells[i].name;
        }
    for (int i = 0; i < grid->tested_count; i++)
        rows[table.rows++] = grid->tested[i];
    for (int i = 0; i < 3; i++)
        rows[table.rows++] = controls[i];
    for (int i = 0; i < table.rows; i++)
        for (int k = 0; k < table.columns; k++)
            values[i * table.columns + k] =
                speech_tested(shown[k], "epochs", rows[i], measure, "error_rate");
    return table.columns ? write_figure(command, grid, "matrix", NULL, &table) : EXIT_OK;
}

int speech_draw(const char *command, const speech_grid *grid) {
    int code = draw_errors(command, grid);
    if (code == EXIT_OK)
        code = draw_losses(command, grid);
    return code == EXIT_OK ? draw_matrix(command, grid) : code;
}
