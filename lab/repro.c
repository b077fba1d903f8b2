/* shoal repro copy: the grid of the masked copy task: a training for every kind of
   attention and every length, the file of their results, tables and heatmaps. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "common.h"
#include "options.h"
#include "plot.h"
#include "repro_speech.h"
#include "speech_data.h"
#include "train.h"
#if defined(SHOAL_HAVE_CAIRO)
#include <cairo.h>
#endif

enum { REPRO_KINDS = SPEECH_KINDS, REPRO_LENGTHS = 16, REPRO_NAME = SPEECH_NAME };

#define REPRO_RESULTS "results.json"

/* What is known of one cell. */
typedef struct {
    bool done;       /* a finished training */
    bool begun;      /* one that has been validated, but is not finished */
    double accuracy; /* on the test's batches if done, else the last validation's */
    int64_t steps, steps_limit;
    double seconds;
    bool stopped_early;
} repro_cell;

typedef struct {
    /* What was asked for. */
    char kinds[REPRO_KINDS][REPRO_NAME];
    int kind_count;
    int64_t lengths[REPRO_LENGTHS]; /* growing */
    int length_count;
    const char *folder, *isa;
    int64_t threads, save_seconds;
    train_settings settings; /* of every cell */
    bool show, json, markdown;
    const char *cache; /* speech */
    bool skip_bad;

    /* What is worked on. */
    shoal_context *context;
    json_t *results; /* the file: {"cells": {"KIND/LENGTH": {...}}, ...} */
    int skipped;     /* cells that another process is training */
    int failed;      /* cells whose training ended with a complaint */
} repro_job;

enum { TEST_BATCHES = 20 };

/* After so many validations in a row without a mistake a cell has shown everything. */
#define STOP_AFTER "3"

/* ---- The file of results ------------------------------------------------------- */

static bool cell_is_whole(const json_t *cell) {
    const json_t *accuracy = json_object_get(cell, "accuracy");
    const double right = json_number_value(accuracy);
    return json_is_number(accuracy) && right >= 0 && right <= 1 &&
           json_is_integer(json_object_get(cell, "steps")) &&
           json_is_integer(json_object_get(cell, "steps_limit")) &&
           json_is_number(json_object_get(cell, "seconds")) &&
           json_is_boolean(json_object_get(cell, "stopped_early")) &&
           json_is_object(json_object_get(cell, "config"));
}

static bool results_are_whole(const char *path, const json_t *object) {
    json_t *cells = json_object_get(object, "cells"), *cell;
    const char *key;
    if (!json_is_object(cells)) {
        complain(EXIT_BAD_INPUT, "repro", "%s: it has no cells", path);
        return false;
    }
    json_object_foreach(cells, key, cell) {
        if (cell_is_whole(cell))
            continue;
        complain(EXIT_BAD_INPUT, "repro",
                 "%s: cell \"%s\" is no result; mend it, or remove it to have it tested "
                 "again",
                 path, key);
        return false;
    }
    return true;
}

static json_t *read_results(const char *path) {
    if (access(path, F_OK) != 0)
        return json_pack("{s:s, s:s, s:{}}", "experiment", "copy", "shoal",
                         shoal_version(), "cells");
    json_t *object = load_json("repro", path);
    if (!object || results_are_whole(path, object))
        return object;
    json_decref(object);
    return NULL;
}

static int load_results(repro_job *job) {
    char path[TRAIN_PATH];
    if (!train_path("repro", path, job->folder, REPRO_RESULTS))
        return EXIT_USAGE;
    json_decref(job->results);
    job->results = read_results(path);
    return job->results ? EXIT_OK : EXIT_BAD_INPUT;
}

static bool write_whole(const json_t *object, const char *path) {
    replacement to;
    FILE *file = replace_begin(&to, path);
    if (!file)
        return false;
    const bool written =
        json_dumpf(object, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
        fputc('\n', file) != EOF;
    return replace_end(&to, written);
}

/* Reads the file again first, with the folder locked: another process may have finished
   a cell meanwhile. */
static int add_result(repro_job *job, const char *key, json_t *cell) {
    char path[TRAIN_PATH];
    if (!train_path("repro", path, job->folder, REPRO_RESULTS)) {
        json_decref(cell);
        return EXIT_USAGE;
    }
    const int lock = train_lock_folder(job->folder, true);
    int code = load_results(job);
    if (code == EXIT_OK) {
        json_object_set(json_object_get(job->results, "cells"), key, cell);
        if (!write_whole(job->results, path))
            code = complain(EXIT_RESOURCES, "repro", "%s cannot be written: %s", path,
                            strerror(errno));
    }
    json_decref(cell);
    if (lock >= 0)
        close(lock);
    return code;
}

/* ---- One cell ------------------------------------------------------------------ */

static void name_cell(char key[REPRO_NAME + 32], const char *kind, int64_t length) {
    snprintf(key, REPRO_NAME + 32, "%s/%" PRId64, kind, length);
}

static const json_t *find_cell(const repro_job *job, const char *kind, int64_t length) {
    char key[REPRO_NAME + 32];
    name_cell(key, kind, length);
    return json_object_get(json_object_get(job->results, "cells"), key);
}

static bool cell_path(const repro_job *job, const char *kind, int64_t length,
                      const char *file, char path[TRAIN_PATH]) {
    char name[REPRO_NAME + 64];
    snprintf(name, sizeof name, "cells/%s_L%" PRId64 "%s", kind, length, file);
    return train_path("repro", path, job->folder, name);
}

static repro_cell unfinished_cell(const repro_job *job, const char *kind,
                                  int64_t length) {
    char path[TRAIN_PATH];
    repro_cell cell = {0};
    if (!cell_path(job, kind, length, "/" TRAIN_LOG, path))
        return cell;
    json_t *line = train_log_last_validation(path);
    cell.begun = line != NULL;
    cell.accuracy = json_number_value(json_object_get(line, "validation_accuracy"));
    cell.steps = json_integer_value(json_object_get(line, "step"));
    cell.seconds = json_number_value(json_object_get(line, "seconds"));
    json_decref(line);
    return cell;
}

static repro_cell cell_of(const repro_job *job, const char *kind, int64_t length) {
    const json_t *cell = find_cell(job, kind, length);
    if (!cell)
        return unfinished_cell(job, kind, length);
    return (repro_cell){.done = true,
                        .accuracy = json_number_value(json_object_get(cell, "accuracy")),
                        .steps = json_integer_value(json_object_get(cell, "steps")),
                        .steps_limit =
                            json_integer_value(json_object_get(cell, "steps_limit")),
                        .seconds = json_number_value(json_object_get(cell, "seconds")),
                        .stopped_early =
                            json_is_true(json_object_get(cell, "stopped_early"))};
}

/* The grid's own settings, what the user said, and the cell's. */
static int cell_settings(const repro_job *job, const char *kind, int64_t length,
                         train_settings *settings) {
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, length);
    *settings = (train_settings){.command = "repro"};
    int code = settings_add(settings, "stop_after", STOP_AFTER);
    for (int i = 0; i < job->settings.count && code == EXIT_OK; i++)
        code = settings_add(settings, job->settings.list[i].name,
                            job->settings.list[i].text);
    if (code == EXIT_OK)
        code = settings_add(settings, "attention", kind);
    return code == EXIT_OK ? settings_add(settings, "length", text) : code;
}

static json_t *result_of(const train_run *run, const char *kind) {
    const train_config *config = &run->config;
    return json_pack("{s:s, s:I, s:I, s:f, s:o, s:I, s:I, s:I, s:I, s:f, s:b, s:o}",
                     "kind", kind, "length", (json_int_t)config->length, "positions",
                     (json_int_t)copy_positions(config->length), "accuracy",
                     run->test.accuracy, "loss",
                     isfinite(run->test.loss) ? json_real(run->test.loss) : json_null(),
                     "correct", (json_int_t)run->test.correct, "counted",
                     (json_int_t)run->test.counted, "steps", (json_int_t)run->state.step,
                     "steps_limit", (json_int_t)config->steps, "seconds",
                     run->state.seconds, "stopped_early", run->state.step < config->steps,
                     "config", train_config_json(config));
}

static int train_cell(repro_job *job, const char *kind, int64_t length, int number,
                      const train_settings *settings, const train_config *config) {
    static train_run run;
    char folder[TRAIN_PATH], key[REPRO_NAME + 32], label[64];
    snprintf(label, sizeof label, "%d/%d %.30s L=%" PRId64 "  ", number,
             job->kind_count * job->length_count, kind, length);
    if (!cell_path(job, kind, length, "", folder))
        return EXIT_USAGE;
    run = (train_run){.command = "repro",
                      .label = label,
                      .folder = folder,
                      .save_seconds = (double)job->save_seconds,
                      .resume = true,
                      .settings = settings,
                      .config = *config,
                      .test_batches = TEST_BATCHES};
    const int code = train_go(&run, job->context);
    if (run.busy) {
        job->skipped++;
        return EXIT_OK;
    }
    if (code == EXIT_BAD_INPUT) { /* it diverged, or its checkpoint is damaged */
        job->failed++;
        return EXIT_OK;
    }
    if (code != EXIT_OK || !run.finished)
        return code;
    name_cell(key, kind, length);
    return add_result(job, key, result_of(&run, kind));
}

/* Whether a finished cell is what is asked for now; *go_on when it lacks steps. */
static int check_done(const repro_job *job, const char *kind, int64_t length,
                      const train_config *config, bool *go_on) {
    const repro_cell cell = cell_of(job, kind, length);
    json_t *wanted = train_config_json(config);
    const json_t *had = json_object_get(find_cell(job, kind, length), "config"), *value;
    const char *field;
    int code = EXIT_OK;
    json_object_foreach(wanted, field, value) {
        const json_t *other = json_object_get(had, field);
        const bool same = json_is_real(value) && json_is_number(other)
                              ? (float)json_real_value(value) ==
                                    (float)json_number_value(other)
                              : json_equal(value, other);
        if (same || strcmp(field, "steps") == 0)
            continue;
        code = complain(EXIT_BAD_INPUT, "repro",
                        "%s at length %" PRId64 " was done with another %s; choose "
                        "another folder for this one",
                        kind, length, field);
        break;
    }
    json_decref(wanted);
    *go_on = cell.steps_limit < config->steps && !cell.stopped_early;
    return code;
}

static int do_cell(repro_job *job, const char *kind, int64_t length, int number) {
    static train_settings settings;
    train_config config;
    bool go_on = true;
    train_defaults("copy", &config, NULL);
    int code = cell_settings(job, kind, length, &settings);
    if (code == EXIT_OK)
        code = settings_apply(&settings, job->context, &config);
    if (code == EXIT_OK && find_cell(job, kind, length))
        code = check_done(job, kind, length, &config, &go_on);
    /* Fields that are not given would be the checkpoint's when a cell is resumed: all are
       given, so that a checkpoint of other settings is refused. */
    if (code == EXIT_OK)
        code = settings_add_all(&settings, &config);
    return code == EXIT_OK && go_on
               ? train_cell(job, kind, length, number, &settings, &config)
               : code;
}

static int train_grid(repro_job *job) {
    int code = train_make_folder("repro", job->folder), number = 0;
    for (int l = 0; l < job->length_count; l++)
        for (int k = 0; k < job->kind_count; k++) {
            if (code != EXIT_OK || stop_signal())
                return code;
            code = do_cell(job, job->kinds[k], job->lengths[l], ++number);
        }
    if (job->skipped > 0)
        fprintf(stderr, "shoal repro: %d cell%s left to another process\n", job->skipped,
                job->skipped == 1 ? " is" : "s are");
    if (job->failed > 0)
        fprintf(stderr, "shoal repro: %d cell%s failed, as said above\n", job->failed,
                job->failed == 1 ? "" : "s");
    return code;
}

/* ---- Tables -------------------------------------------------------------------- */

static int kind_width(const repro_job *job) {
    size_t width = 4;
    for (int k = 0; k < job->kind_count; k++)
        width = strlen(job->kinds[k]) > width ? strlen(job->kinds[k]) : width;
    return (int)width;
}

/* 99.996 % is not 100 %: only all of them are. */
static void percent_text(char text[16], double accuracy) {
    double percent = 100 * accuracy;
    if (accuracy < 1 && percent > 99.99)
        percent = 99.99;
    snprintf(text, 16, accuracy == 1 ? "%.0f" : "%.2f", percent);
}

static const char *hours_text(char text[16], double seconds) {
    if (seconds < 600)
        snprintf(text, 16, "%.0f s", seconds);
    else if (seconds < 36000)
        snprintf(text, 16, "%.0f min", seconds / 60);
    else
        snprintf(text, 16, "%.1f h", seconds / 3600);
    return text;
}

static void print_table(const repro_job *job) {
    const int width = kind_width(job);
    int missing = 0;
    printf("%-*s %6s %6s %9s %8s %10s  %s\n", width, "kind", "L", "N", "right %", "steps",
           "time", "ended");
    for (int l = 0; l < job->length_count; l++)
        for (int k = 0; k < job->kind_count; k++) {
            const repro_cell cell = cell_of(job, job->kinds[k], job->lengths[l]);
            char right[16], time[16];
            printf("%-*s %6" PRId64 " %6" PRId64, width, job->kinds[k], job->lengths[l],
                   copy_positions(job->lengths[l]));
            missing += !cell.done;
            if (!cell.done && !cell.begun) {
                printf(" %9s %8s %10s  not begun\n", "-", "-", "-");
                continue;
            }
            percent_text(right, cell.accuracy);
            printf(" %9s %8" PRId64 " %10s  %s\n", right, cell.steps,
                   hours_text(time, cell.seconds),
                   cell.begun           ? "not finished: last validation"
                   : cell.stopped_early ? "early, no mistakes"
                                        : "all steps");
        }
    printf("\nright: masked symbols of 640 fresh sequences at batch 32. early: three\n"
           "validations in a row without one mistake (or as stop_after says).\n");
    if (missing > 0)
        printf("%d of %d cells are not finished.\n", missing,
               job->kind_count * job->length_count);
    fflush(stdout);
}

static void print_markdown(const repro_job *job) {
    printf("| kind |");
    for (int l = 0; l < job->length_count; l++)
        printf(" N = %" PRId64 " |", copy_positions(job->lengths[l]));
    printf("\n|---|");
    for (int l = 0; l < job->length_count; l++)
        printf("---|");
    putchar('\n');
    for (int k = 0; k < job->kind_count; k++) {
        printf("| %s |", job->kinds[k]);
        for (int l = 0; l < job->length_count; l++) {
            const repro_cell cell = cell_of(job, job->kinds[k], job->lengths[l]);
            char right[16], time[16];
            if (!cell.done && !cell.begun) {
                printf(" not run |");
                continue;
            }
            percent_text(right, cell.accuracy);
            printf(" %s%s %% (%" PRId64 " steps%s, %s) |",
                   cell.begun ? "unfinished: " : "", right, cell.steps,
                   cell.stopped_early ? ", early" : "", hours_text(time, cell.seconds));
        }
        putchar('\n');
    }
    fflush(stdout);
}

/* The cells that were asked for, in the table's order. */
static int print_object(const repro_job *job) {
    json_t *cells = json_array();
    for (int l = 0; l < job->length_count; l++)
        for (int k = 0; k < job->kind_count; k++) {
            const repro_cell cell = cell_of(job, job->kinds[k], job->lengths[l]);
            json_t *row = json_pack("{s:s, s:I, s:I, s:b}", "kind", job->kinds[k],
                                    "length", (json_int_t)job->lengths[l], "positions",
                                    (json_int_t)copy_positions(job->lengths[l]),
                                    "finished", cell.done);
            if (cell.done || cell.begun) {
                json_object_set_new(row, cell.done ? "accuracy" : "validation_accuracy",
                                    json_real(cell.accuracy));
                json_object_set_new(row, "steps", json_integer(cell.steps));
                json_object_set_new(row, "seconds", json_real(cell.seconds));
                json_object_set_new(row, "stopped_early",
                                    json_boolean(cell.stopped_early));
            }
            json_array_append_new(cells, row);
        }
    return print_json(json_pack("{s:s, s:s, s:o}", "experiment", "copy", "shoal",
                                shoal_version(), "cells", cells));
}

/* ---- Heatmaps ------------------------------------------------------------------ */

/* A panel per family of kinds, a row per number of clusters or rounds, a column per
   length, the accuracy as colour and number. */

#if !defined(SHOAL_HAVE_CAIRO)

static int write_pictures(const repro_job *job) {
    char reason[160];
    (void)job;
    plot_possible("copy.svg", reason, sizeof reason);
    fprintf(stderr, "shoal repro: no pictures: %s\n", reason);
    return EXIT_OK;
}

#else

enum { CELL_WIDTH = 46, CELL_HEIGHT = 34, LEFT = 62, TOP = 40, GAP = 18 };
static const double text_size = 10, small_text = 8.5, bottom = 58;

/* Kinds of one family: the same spelling up to the number in it. */
typedef struct {
    char family[REPRO_NAME];
    int kinds[REPRO_KINDS];
    int count;
} panel;

typedef struct {
    panel panels[REPRO_KINDS];
    int count;
} panels;

/* "i-clustered-15:topk=64" -> "i-clustered:topk=64"; the number, or -1. */
static int64_t split_kind(const char *kind, char family[REPRO_NAME]) {
    const char *end = strchrnul(kind, ':'), *digits = end;
    int64_t number = -1;
    while (digits > kind && digits[-1] >= '0' && digits[-1] <= '9')
        digits--;
    if (digits < end && digits > kind && digits[-1] == '-') {
        number = 0;
        for (const char *at = digits; at < end; at++)
            number = 10 * number + (*at - '0');
        snprintf(family, REPRO_NAME, "%.*s%s", (int)(digits - 1 - kind), kind, end);
        return number;
    }
    snprintf(family, REPRO_NAME, "%s", kind);
    return number;
}

static void sort_panels(const repro_job *job, panels *all) {
    for (int k = 0; k < job->kind_count; k++) {
        char family[REPRO_NAME];
        int at = 0;
        split_kind(job->kinds[k], family);
        while (at < all->count && strcmp(all->panels[at].family, family) != 0)
            at++;
        if (at == all->count)
            snprintf(all->panels[all->count++].family, REPRO_NAME, "%s", family);
        all->panels[at].kinds[all->panels[at].count++] = k;
    }
}

static int tallest(const panels *all) {
    int rows = 0;
    for (int i = 0; i < all->count; i++)
        rows = all->panels[i].count > rows ? all->panels[i].count : rows;
    return rows;
}

static double panel_width(const repro_job *job) {
    return LEFT + CELL_WIDTH * job->length_count + GAP;
}

/* From dark blue over green to yellow, lightness growing with the value, so that it reads
   in grey and for colour-blind readers too. */
static void colour_of(double value, double rgb[3]) {
    static const double anchors[][3] = {{0.17, 0.07, 0.37}, {0.16, 0.29, 0.53},
                                        {0.11, 0.48, 0.56}, {0.16, 0.66, 0.49},
                                        {0.55, 0.81, 0.33}, {0.97, 0.91, 0.25}};
    enum { LAST = sizeof anchors / sizeof *anchors - 1 };
    const double at = fmin(fmax(value, 0), 1) * LAST;
    const int left = at >= LAST ? LAST - 1 : (int)at;
    for (int i = 0; i < 3; i++)
        rgb[i] = anchors[left][i] +
                 (at - left) * (anchors[left + 1][i] - anchors[left][i]);
}

static void draw_text(cairo_t *cr, double x, double y, double across, const char *text) {
    cairo_text_extents_t extents;
    cairo_text_extents(cr, text, &extents);
    cairo_move_to(cr, x - across * extents.x_advance, y);
    cairo_show_text(cr, text);
    cairo_new_path(cr);
}

static void draw_cell(cairo_t *cr, const repro_cell *cell, double x, double y) {
    char text[16] = "-";
    double rgb[3] = {0.93, 0.93, 0.93};
    if (cell->done) {
        colour_of(cell->accuracy, rgb);
        percent_text(text, cell->accuracy);
    }
    cairo_rectangle(cr, x, y, CELL_WIDTH - 1, CELL_HEIGHT - 1);
    cairo_set_source_rgb(cr, rgb[0], rgb[1], rgb[2]);
    cairo_fill(cr);
    const bool light = !cell->done || cell->accuracy > 0.5;
    cairo_set_source_rgb(cr, light ? 0 : 1, light ? 0 : 1, light ? 0 : 1);
    draw_text(cr, x + CELL_WIDTH / 2.0, y + CELL_HEIGHT / 2.0 + 3.5, 0.5, text);
}

static void draw_panel(cairo_t *cr, const repro_job *job, const panel *one, double left) {
    char text[48], family[REPRO_NAME];
    const double middle = left + LEFT + CELL_WIDTH * job->length_count / 2.0;
    cairo_set_source_rgb(cr, 0, 0, 0);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           CAIRO_FONT_WEIGHT_BOLD);
    draw_text(cr, middle, TOP - 14, 0.5, one->family);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL,
                           CAIRO_FONT_WEIGHT_NORMAL);
    for (int row = 0; row < one->count; row++) {
        const char *kind = job->kinds[one->kinds[row]];
        const int64_t number = split_kind(kind, family);
        const double y = TOP + CELL_HEIGHT * row;
        const bool rounds = strncmp(family, "lsh", 3) == 0;
        text[0] = 0;
        if (number >= 0)
            snprintf(text, sizeof text, "%s = %" PRId64, rounds ? "R" : "C", number);
        cairo_set_source_rgb(cr, 0, 0, 0);
        draw_text(cr, left + LEFT - 6, y + CELL_HEIGHT / 2.0 + 3.5, 1, text);
        for (int l = 0; l < job->length_count; l++) {
            const repro_cell cell = cell_of(job, kind, job->lengths[l]);
            draw_cell(cr, &cell, left + LEFT + CELL_WIDTH * l, y);
        }
    }
    cairo_set_source_rgb(cr, 0, 0, 0);
    for (int l = 0; l < job->length_count; l++) {
        snprintf(text, sizeof text, "%" PRId64, copy_positions(job->lengths[l]));
        draw_text(cr, left + LEFT + CELL_WIDTH * (l + 0.5),
                  TOP + CELL_HEIGHT * one->count + 12, 0.5, text);
    }
    draw_text(cr, middle, TOP + CELL_HEIGHT * one->count + 26, 0.5, "positions N");
}

static void draw(cairo_t *cr, const repro_job *job, const panels *all, double width,
                 double height) {
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_font_size(cr, text_size);
    for (int i = 0; i < all->count; i++)
        draw_panel(cr, job, &all->panels[i], i * panel_width(job));
    cairo_set_font_size(cr, small_text);
    cairo_set_source_rgb(cr, 0.35, 0.35, 0.35);
    draw_text(cr, width / 2, height - 9, 0.5,
              "masked copy: % of masked symbols right, on fresh sequences; -: not "
              "finished");
}

/* What is drawn, and how large. */
typedef struct {
    const repro_job *job;
    panels all;
    double width, height; /* in points */
} picture;

static void draw_picture(cairo_t *cr, const void *what) {
    const picture *one = what;
    draw(cr, one->job, &one->all, one->width, one->height);
}

static int write_picture(const picture *one, const char *name) {
    char path[TRAIN_PATH], reason[TRAIN_PATH + 200];
    if (!train_path("repro", path, one->job->folder, name))
        return EXIT_USAGE;
    if (plot_paint(path, one->width, one->height, draw_picture, one, reason,
                   sizeof reason))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "repro", "%s", reason);
}

static int write_pictures(const repro_job *job) {
    picture one = {.job = job};
    sort_panels(job, &one.all);
    one.width = panel_width(job) * one.all.count;
    one.height = TOP + CELL_HEIGHT * tallest(&one.all) + bottom;
    const int code = write_picture(&one, "copy.svg");
    return code == EXIT_OK ? write_picture(&one, "copy.png") : code;
}

#endif

/* ---- The command line ---------------------------------------------------------- */

#define DEFAULT_KINDS                                                                    \
    "full,clustered-15,clustered-30,clustered-60,clustered-100,i-clustered-15,"          \
    "i-clustered-30,i-clustered-60,i-clustered-100,lsh-1,lsh-4,lsh-8,lsh-16"
#define DEFAULT_LENGTHS "31,63,127,255"

enum { DEFAULT_SAVE = 60 };

static int by_size(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool take_lengths(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    char word[32];
    for (job->length_count = 0;; text++) {
        const size_t size = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)size, text);
        if (job->length_count == REPRO_LENGTHS) {
            complain(EXIT_USAGE, "repro", "--%s has more than %d lengths", name,
                     REPRO_LENGTHS);
            return false;
        }
        if (!parse_integer("repro", name, word, 1, 1 << 24,
                           &job->lengths[job->length_count]))
            return false;
        job->length_count++;
        text += size;
        if (!*text)
            break;
    }
    qsort(job->lengths, (size_t)job->length_count, sizeof *job->lengths, by_size);
    return true;
}

static bool take_kinds(void *shared, const char *name, const char *text) {
    repro_job *job = shared;
    job->kind_count =
        read_kinds("repro", name, text, job->kinds[0], REPRO_NAME, REPRO_KINDS);
    return job->kind_count > 0;
}

/* Fields that the grid varies have options of their own. */
static bool take_pair(void *job, const char *name, const char *pair) {
    static const char *const own[][2] = {{"length=", "lengths"}, {"attention=", "kinds"}};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strncmp(pair, own[i][0], strlen(own[i][0])) == 0) {
            complain(EXIT_USAGE, "repro", "--%s %s: use --%s", name, pair, own[i][1]);
            return false;
        }
    return settings_add_pair(&((repro_job *)job)->settings, pair) == EXIT_OK;
}

static bool take_field(void *job, const char *name, const char *value) {
    return settings_add(&((repro_job *)job)->settings, name, value) == EXIT_OK;
}

static const option_row rows[] =
    {{"out", 'o', "DIR", "folder of the trainings, " REPRO_RESULTS " and the pictures",
      SETS_TEXT(repro_job, folder)},
     {"kinds", 0, "KINDS",
      "kinds of attention (default: full, clustered and i-clustered at\n"
      "15, 30, 60 and 100 clusters, lsh at 1, 4, 8 and 16 rounds)",
      TAKEN_BY(take_kinds)},
     {"labels", 0, "FILE", "speech: the file of transcripts (default: text)",
      TAKEN_BY(take_field)},
     {"join", 0, "SECONDS", "speech: as in shoal train (default: 0)",
      TAKEN_BY(take_field)},
     {"epochs", 0, "N", "speech: times through the data (default: 25)",
      TAKEN_BY(take_field)},
     {"cache", 0, "DIR", "speech: folder for features, as in shoal train",
      SETS_TEXT(repro_job, cache)},
     {"skip-bad", 0, NULL, "speech: leave out utterances that cannot be used",
      SETS_FLAG(repro_job, skip_bad)},
     {"lengths", 0, "LIST",
      "copy: lengths of w (default: 31,63,127,255: 64 to 512 positions)",
      TAKEN_BY(take_lengths)},
     {"steps", 0, "N",
      "steps of a cell; finished cells with fewer go on\n"
      "(default: 5000)",
      TAKEN_BY(take_field)},
     {"seed", 0, "S", "of weights, data and dropout (default: 1)", TAKEN_BY(take_field)},
     {"set", 0, "KEY=VALUE",
      "any other field of the trainings, as in shoal train; may be\n"
      "repeated",
      TAKEN_BY(take_pair)},
     {"save-seconds", 0, "S", "seconds between a training's checkpoints (default: 60)",
      SETS_INTEGER(repro_job, save_seconds, 0, 1000000)},
     THREADS_ROW(repro_job),
     ISA_ROW(repro_job),
     {"show", 0, NULL, "train nothing: print and draw what is there",
      SETS_FLAG(repro_job, show)},
     {"markdown", 0, NULL, "print the table as Markdown", SETS_FLAG(repro_job, markdown)},
     {"json", 0, NULL, "print one JSON object instead of the table",
      SETS_FLAG(repro_job, json)},
     HELP_ROW,
     {0}};

const command_help repro_help =
    {"repro",
     "repro copy|speech [DATA] --out DIR [options]",
     "copy, the paper's masked copy experiment: a transformer is trained for every kind "
     "of\n"
     "attention and every length, the shortest sequences first. A cell ends after all\n"
     "its steps, or early when three validations in a row, 5 fresh batches each, have\n"
     "not one mistake (stop_after, validate_batches); its accuracy is then measured on\n"
     "20 batches that decided nothing.\n\n"
     "speech, its speech tables on DATA (folders train, dev and test, as for shoal\n"
     "train): a recogniser for every kind; the best on dev is evaluated on test with\n"
     "its own kind, with every other that its weights can do with, and with the\n"
     "controls of shoal eval.\n",
     rows,
     "Ctrl-C saves; the same command goes on, cell by cell and inside a cell. Several\n"
     "processes may work on one folder: each takes cells that nobody is training.\n"
     "The pictures are DIR/copy.svg or DIR/speech.svg, and the same as .png.\n",
     "copy|speech DIR"};

/* ---- The command --------------------------------------------------------------- */

/* One spelling for each kind, so that results are found again. */
static int spell_kinds(repro_job *job) {
    for (int i = 0; i < job->kind_count; i++) {
        shoal_attention attention;
        const shoal_status status =
            shoal_attention_parse(job->context, job->kinds[i], &attention);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "repro", job->context);
        shoal_attention_print(&attention, job->kinds[i], REPRO_NAME);
    }
    return EXIT_OK;
}

static int report(repro_job *job) {
    int code = write_pictures(job);
    if (job->json) {
        const int printed = print_object(job);
        return code == EXIT_OK ? printed : code;
    }
    if (job->markdown)
        print_markdown(job);
    else
        print_table(job);
    return code;
}

static int check_settings(const repro_job *job) {
    train_config config;
    train_defaults("copy", &config, NULL);
    return settings_apply(&job->settings, job->context, &config);
}

static int check_folder(const repro_job *job) {
    DIR *folder = opendir(job->folder);
    if (!folder)
        return complain(EXIT_BAD_INPUT, "repro", "%s: nothing can be shown there: %s",
                        job->folder, strerror(errno));
    closedir(folder);
    return EXIT_OK;
}

static int work(repro_job *job) {
    int code = spell_kinds(job);
    if (code == EXIT_OK)
        code = check_settings(job);
    if (code == EXIT_OK && job->show)
        code = check_folder(job);
    if (code == EXIT_OK)
        code = load_results(job);
    if (code == EXIT_OK && !job->show) {
        watch_stop();
        code = train_grid(job);
    }
    if (code != EXIT_OK)
        return code;
    code = report(job);
    if (code == EXIT_OK && job->failed > 0)
        code = EXIT_BAD_INPUT;
    if (code != EXIT_OK || !stop_signal())
        return code;
    fprintf(stderr, "shoal repro: interrupted; everything is saved. The same command "
                    "goes on.\n");
    return 128 + stop_signal();
}

static int work_on_speech(repro_job *job, const char *data) {
    const repro_speech_job speech = {.data = data,
                                     .folder = job->folder,
                                     .cache = speech_cache("repro", job->cache),
                                     .skip_bad = job->skip_bad,
                                     .show = job->show,
                                     .json = job->json,
                                     .markdown = job->markdown,
                                     .save_seconds = (double)job->save_seconds,
                                     .kind_count = job->kind_count,
                                     .kinds = job->kinds,
                                     .settings = &job->settings,
                                     .context = job->context};
    const int code = spell_kinds(job);
    if (code != EXIT_OK)
        return code;
    return speech.cache ? repro_speech(&speech) : EXIT_RESOURCES;
}

static int run(repro_job *job, int count, char **words) {
    const bool speech = count > 0 && strcmp(words[0], "speech") == 0;
    if (count != 1 + speech || (!speech && strcmp(words[0], "copy") != 0))
        return complain(EXIT_USAGE, "repro", "%s; usage: shoal %s",
                        count == 0 ? "no experiment was given"
                        : speech   ? "speech needs one data folder"
                                   : "the experiments are copy and speech",
                        repro_help.usage);
    if (!job->folder)
        return complain(EXIT_USAGE, "repro", "no folder was given; usage: shoal %s",
                        repro_help.usage);
    int code = open_context("repro", (int)job->threads, job->isa, &job->context);
    if (code != EXIT_OK)
        return code;
    code = speech ? work_on_speech(job, words[1]) : work(job);
    json_decref(job->results);
    shoal_context_destroy(job->context);
    return code;
}

int repro_command(int count, char **arguments) {
    static repro_job job = {.settings = {.command = "repro"},
                            .save_seconds = DEFAULT_SAVE};
    const int ended = take_options(&repro_help, count, arguments, &job);
    if (ended >= 0)
        return ended;
    const bool speech = optind < count && strcmp(arguments[optind], "speech") == 0;
    if (job.kind_count == 0)
        take_kinds(&job, "kinds", speech ? SPEECH_DEFAULT_KINDS : DEFAULT_KINDS);
    if (job.length_count == 0)
        take_lengths(&job, "lengths", DEFAULT_LENGTHS);
    return run(&job, count - optind, arguments + optind);
}
