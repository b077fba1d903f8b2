/* shoal repro speech: the paper's speech tables on the data of a folder. A cell is one
   kind of attention: it is trained, and its best model on dev is evaluated on test with
   every kind that its weights can do with, and with the controls. A cell is finished when
   its result.json is there.

       DIR/cells/KIND/     checkpoint, best model, log and result.json of a cell
       DIR/speech.svg      error on dev against hours; error on test against hours */
#define _GNU_SOURCE
#include "repro_speech.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"
#include "plot.h"
#include "speech_eval.h"

#define RESULT "result.json"

enum { MOST_POINTS = 4096 };

/* A validation: hours of training, and the error rate on dev in percent. */
typedef struct {
    double hours[MOST_POINTS], errors[MOST_POINTS];
    int count;
} dev_curve;

typedef struct {
    json_t *result; /* NULL: not finished */
    dev_curve curve;
    double hours; /* of training, all told */
} speech_cell;

typedef struct {
    const repro_speech_job *job;
    speech_cell cells[SPEECH_KINDS];
    int failed;
} speech_grid;

static bool cell_path(const repro_speech_job *job, int kind, const char *file,
                      char path[TRAIN_PATH]) {
    char name[SPEECH_NAME + 64];
    snprintf(name, sizeof name, "cells/%s%s", job->kinds[kind], file);
    return train_path("repro", path, job->folder, name);
}

/* ---- A cell ------------------------------------------------------------------------ */

static int cell_config(const repro_speech_job *job, int kind, train_settings *settings,
                       train_config *config) {
    train_defaults("speech", config, NULL);
    *settings = *job->settings;
    int code = settings_add(settings, "attention", job->kinds[kind]);
    if (code == EXIT_OK)
        code = settings_apply(settings, job->context, config);
    config->folder = job->data;
    config->cache = job->cache;
    config->skip_bad = job->skip_bad;
    /* All fields are given, so that a checkpoint of other settings is refused. */
    return code == EXIT_OK ? settings_add_all(settings, config) : code;
}

static bool takes_queries_as_keys(const char *kind) {
    return strncmp(kind, "lsh-", 4) == 0 || strncmp(kind, "shared-full", 11) == 0;
}

/* The best model with its own kind first, then with the others that it can do with. */
static int evaluate_cell(const repro_speech_job *job, int kind, const char *folder,
                         json_t **object) {
    static char names[SPEECH_KINDS][EVAL_NAME];
    char test[TRAIN_PATH];
    speech_eval_job eval = {.path = folder,
                            .data = test,
                            .cache = job->cache,
                            .skip_bad = job->skip_bad,
                            .controls = true,
                            .join = -1,
                            .names = names,
                            .object = object};
    const bool shares = takes_queries_as_keys(job->kinds[kind]);
    if (!train_path("repro", test, job->data, "test"))
        return EXIT_USAGE;
    snprintf(names[eval.kinds++], EVAL_NAME, "%s", job->kinds[kind]);
    for (int i = 0; i < job->kind_count; i++)
        if (i != kind && (shares || !takes_queries_as_keys(job->kinds[i])))
            snprintf(names[eval.kinds++], EVAL_NAME, "%s", job->kinds[i]);
    return speech_eval(&eval, job->context);
}

static int write_result(const char *path, const json_t *object) {
    replacement to;
    FILE *file = replace_begin(&to, path);
    const bool written =
        file && json_dumpf(object, file, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0 &&
        fputc('\n', file) != EOF;
    if (file && replace_end(&to, written))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "repro", "%s cannot be written: %s", path,
                    strerror(errno));
}

static int finish_cell(const repro_speech_job *job, int kind, const train_run *run) {
    char path[TRAIN_PATH];
    json_t *evaluation = NULL;
    int code = evaluate_cell(job, kind, run->folder, &evaluation);
    if (code != EXIT_OK || !cell_path(job, kind, "/" RESULT, path))
        return code;
    const double epochs = (double)run->config.speech.epochs;
    json_t *result = json_pack("{s:s, s:I, s:o, s:o, s:o, s:I, s:o, s:o}", "kind",
                               job->kinds[kind], "steps", (json_int_t)run->state.step,
                               "seconds", json_number(run->state.seconds),
                               "seconds_per_epoch",
                               json_number(run->state.seconds / epochs), "dev_error_rate",
                               json_number(100 * run->state.best), "best_step",
                               (json_int_t)run->state.best_step, "config",
                               train_config_json(&run->config), "test", evaluation);
    code = write_result(path, result);
    json_decref(result);
    return code;
}

static int do_cell(speech_grid *grid, int kind) {
    static train_run run;
    static train_settings settings;
    const repro_speech_job *job = grid->job;
    char folder[TRAIN_PATH], path[TRAIN_PATH], label[64];
    train_config config;
    if (!cell_path(job, kind, "", folder) || !cell_path(job, kind, "/" RESULT, path))
        return EXIT_USAGE;
    if (access(path, F_OK) == 0)
        return EXIT_OK;
    int code = cell_config(job, kind, &settings, &config);
    if (code != EXIT_OK)
        return code;
    snprintf(label, sizeof label, "%d/%d %.30s  ", kind + 1, job->kind_count,
             job->kinds[kind]);
    run = (train_run){.command = "repro",
                      .label = label,
                      .folder = folder,
                      .save_seconds = job->save_seconds,
                      .resume = true,
                      .settings = &settings,
                      .config = config};
    code = train_go(&run, job->context);
    if (run.busy)
        return EXIT_OK;
    if (code == EXIT_BAD_INPUT) { /* it diverged, or its checkpoint is damaged */
        grid->failed++;
        return EXIT_OK;
    }
    return code == EXIT_OK && run.finished ? finish_cell(job, kind, &run) : code;
}

/* ---- What is there ----------------------------------------------------------------- */

static void read_curve(const char *path, speech_cell *cell) {
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    dev_curve *curve = &cell->curve;
    while (file && getline(&text, &capacity, file) > 0) {
        json_t *line = strstr(text, "validation_loss") ? json_loads(text, 0, NULL) : NULL;
        if (line && curve->count < MOST_POINTS) {
            const json_t *right = json_object_get(line, "validation_accuracy");
            const json_t *seconds = json_object_get(line, "seconds");
            curve->hours[curve->count] = json_number_value(seconds) / 3600;
            curve->errors[curve->count] = 100 * (1 - json_number_value(right));
            cell->hours = curve->hours[curve->count++];
        }
        json_decref(line);
    }
    free(text);
    if (file)
        fclose(file);
}

static int read_cells(speech_grid *grid) {
    char path[TRAIN_PATH];
    for (int k = 0; k < grid->job->kind_count; k++) {
        speech_cell *cell = &grid->cells[k];
        if (!cell_path(grid->job, k, "/" TRAIN_LOG, path))
            return EXIT_USAGE;
        read_curve(path, cell);
        cell_path(grid->job, k, "/" RESULT, path);
        if (access(path, F_OK) != 0)
            continue;
        cell->result = load_json("repro", path);
        if (!cell->result)
            return EXIT_BAD_INPUT;
    }
    return EXIT_OK;
}

/* A number of the cell's evaluation with a kind; NAN where there is none. */
static double tested(const speech_cell *cell, const char *kind, const char *field) {
    const json_t *rows = json_object_get(json_object_get(cell->result, "test"), "kinds");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_object_get(row, "kind"));
        if (name && strcmp(name, kind) == 0)
            return json_number_value(json_object_get(row, field));
    }
    return NAN;
}

static double number_of(const speech_cell *cell, const char *field) {
    const json_t *value = json_object_get(cell->result, field);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The lowest error on dev within so many hours. */
static double error_after(const dev_curve *curve, double hours) {
    double best = NAN;
    for (int i = 0; i < curve->count; i++)
        if (curve->hours[i] <= hours && !(curve->errors[i] >= best))
            best = curve->errors[i];
    return best;
}

/* Hours until dev's error is that low; NAN: it never was. */
static double hours_to(const dev_curve *curve, double error) {
    for (int i = 0; i < curve->count; i++)
        if (curve->errors[i] <= error + 1e-6)
            return curve->hours[i];
    return NAN;
}

/* The hours that every finished cell has had. */
static double common_hours(const speech_grid *grid) {
    double least = INFINITY;
    for (int k = 0; k < grid->job->kind_count; k++)
        if (grid->cells[k].result && grid->cells[k].hours < least)
            least = grid->cells[k].hours;
    return least;
}

static double full_error(const speech_grid *grid) {
    for (int k = 0; k < grid->job->kind_count; k++)
        if (strcmp(grid->job->kinds[k], "full") == 0)
            return number_of(&grid->cells[k], "dev_error_rate");
    return NAN;
}

/* ---- Tables ------------------------------------------------------------------------ */

static const char *figure(char text[24], double value) {
    if (isnan(value))
        snprintf(text, 24, "-");
    else
        snprintf(text, 24, "%.2f", value);
    return text;
}

static void print_cell(const speech_grid *grid, int k, const char *format) {
    const speech_cell *cell = &grid->cells[k];
    const char *kind = grid->job->kinds[k];
    char range[64] = "-", t[6][24];
    if (cell->result)
        snprintf(range, sizeof range, "%.2f to %.2f", tested(cell, kind, "low"),
                 tested(cell, kind, "high"));
    printf(format, kind, figure(t[0], tested(cell, kind, "error_rate")), range,
           figure(t[1], number_of(cell, "dev_error_rate")),
           figure(t[2], number_of(cell, "seconds_per_epoch")),
           figure(t[3], error_after(&cell->curve, common_hours(grid))),
           figure(t[4], hours_to(&cell->curve, full_error(grid))));
}

/* Rows are kinds to evaluate with and the controls, columns what was trained. */
static void print_matrix(const speech_grid *grid) {
    const repro_speech_job *job = grid->job;
    const char *const controls[] = {"uniform attention", "no attention", "clustered-1"};
    const char *const begin = job->markdown ? "| " : "";
    const char *const between = job->markdown ? " | " : "\t";
    const char *const end = job->markdown ? " |\n" : "\n";
    char text[24];
    printf("%s", begin);
    for (int k = 0; k < job->kind_count; k++)
        printf("%s%s", between, job->kinds[k]);
    printf("%s", end);
    for (int k = 0; job->markdown && k <= job->kind_count; k++)
        printf("|---%s", k == job->kind_count ? "|\n" : "");
    for (int e = 0; e < job->kind_count + 3; e++) {
        const char *kind = e < job->kind_count ? job->kinds[e]
                                               : controls[e - job->kind_count];
        printf("%s%s", begin, kind);
        for (int k = 0; k < job->kind_count; k++)
            printf("%s%s", between,
                   figure(text, tested(&grid->cells[k], kind, "error_rate")));
        printf("%s", end);
    }
}

static void print_tables(const speech_grid *grid) {
    const bool markdown = grid->job->markdown;
    const char *const format = markdown ? "| %s | %s | %s | %s | %s | %s | %s |\n"
                                        : "%-20s %8s %18s %8s %10s %12s %13s\n";
    printf(format, "kind", "test %", "95 %", "dev %", "s / epoch", "dev % alike",
           "hours to full");
    if (markdown)
        printf("|---|---|---|---|---|---|---|\n");
    for (int k = 0; k < grid->job->kind_count; k++)
        print_cell(grid, k, format);
    printf("\ndev %% alike: after %.3g h of training, which every finished kind had;\n"
           "hours to full: until dev's error is the lowest that full had\n\n"
           "test error with another kind (rows) than was trained (columns):\n%s",
           common_hours(grid), markdown ? "\n" : "");
    print_matrix(grid);
}

static int print_everything(const speech_grid *grid) {
    json_t *cells = json_object();
    for (int k = 0; k < grid->job->kind_count; k++)
        if (grid->cells[k].result)
            json_object_set(cells, grid->job->kinds[k], grid->cells[k].result);
    return print_json(json_pack("{s:s, s:s, s:o}", "experiment", "speech", "shoal",
                                shoal_version(), "cells", cells));
}

/* ---- Pictures ---------------------------------------------------------------------- */

static int draw(const speech_grid *grid, const char *name) {
    const repro_speech_job *job = grid->job;
    plot_series curves[SPEECH_KINDS] = {0}, points[SPEECH_KINDS] = {0};
    static double hours[SPEECH_KINDS], errors[SPEECH_KINDS];
    char path[TRAIN_PATH], reason[256];
    int count = 0, finished = 0;
    for (int k = 0; k < job->kind_count; k++) {
        const speech_cell *cell = &grid->cells[k];
        const int colour = k % PLOT_COLOURS;
        if (cell->curve.count > 0)
            curves[count++] = (plot_series){.name = job->kinds[k],
                                            .x = cell->curve.hours,
                                            .y = cell->curve.errors,
                                            .count = cell->curve.count,
                                            .colour = colour,
                                            .marker = PLOT_NO_MARKER,
                                            .dashed = k >= PLOT_COLOURS};
        if (!cell->result)
            continue;
        hours[k] = cell->hours;
        errors[k] = tested(cell, job->kinds[k], "error_rate");
        points[finished++] = (plot_series){.x = &hours[k],
                                           .y = &errors[k],
                                           .count = 1,
                                           .colour = colour,
                                           .marker = (plot_marker)(k % 4)};
    }
    const plot_chart charts[] = {{.title = "dev",
                                  .x = {.label = "hours of training"},
                                  .y = {.label = "error rate, %"},
                                  .series = curves,
                                  .series_count = count},
                                 {.title = "test",
                                  .x = {.label = "hours of training"},
                                  .y = {.label = "error rate, %"},
                                  .series = points,
                                  .series_count = finished}};
    const plot_figure picture = {.charts = charts, .count = finished ? 2 : 1};
    if (count == 0)
        return EXIT_OK;
    if (!train_path("repro", path, job->folder, name))
        return EXIT_USAGE;
    if (!plot_possible(path, reason, sizeof reason)) {
        fprintf(stderr, "shoal repro: no picture: %s\n", reason);
        return EXIT_OK;
    }
    return plot_write(path, &picture, reason, sizeof reason)
               ? EXIT_OK
               : complain(EXIT_RESOURCES, "repro", "%s", reason);
}

/* ---- The whole --------------------------------------------------------------------- */

static int train_grid(speech_grid *grid) {
    int code = train_make_folder("repro", grid->job->folder);
    watch_stop();
    for (int k = 0; k < grid->job->kind_count && code == EXIT_OK && !stop_signal(); k++)
        code = do_cell(grid, k);
    return code;
}

static int report(speech_grid *grid) {
    int code = read_cells(grid);
    if (code == EXIT_OK)
        code = draw(grid, "speech.svg");
    if (code == EXIT_OK)
        code = draw(grid, "speech.png");
    if (code == EXIT_OK && grid->job->json)
        code = print_everything(grid);
    else if (code == EXIT_OK)
        print_tables(grid);
    if (code == EXIT_OK && grid->failed > 0)
        code = complain(EXIT_BAD_INPUT, "repro", "%d cells failed, as said above",
                        grid->failed);
    return code;
}

int repro_speech(const repro_speech_job *job) {
    static speech_grid grid;
    grid = (speech_grid){.job = job};
    int code = job->show ? EXIT_OK : train_grid(&grid);
    if (code == EXIT_OK)
        code = report(&grid);
    for (int k = 0; k < job->kind_count; k++)
        json_decref(grid.cells[k].result);
    if (code != EXIT_OK || !stop_signal())
        return code;
    fprintf(stderr, "shoal repro: interrupted; everything is saved. The same command "
                    "goes on.\n");
    return 128 + stop_signal();
}
