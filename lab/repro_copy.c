/* shoal repro copy: the grid of the masked copy task: a training for every kind of
   attention and every length, the file of their results, and tables. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "repro.h"

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

/* Reads the file again first, with the folder locked: another process may have finished
   a cell meanwhile. */
static int add_result(repro_job *job, const char *key, json_t *cell) {
    char path[TRAIN_PATH];
    if (!train_path("repro", path, job->folder, REPRO_RESULTS)) {
        json_decref(cell);
        return EXIT_USAGE;
    }
    const int lock = repro_lock(job->folder);
    int code = load_results(job);
    if (code == EXIT_OK) {
        json_object_set(json_object_get(job->results, "cells"), key, cell);
        code = repro_write_json(path, job->results);
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

/* The last validation's line of a log, to be released; NULL: none. */
static json_t *last_validation(const char *path) {
    FILE *file = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    json_t *last = NULL;
    while (file && getline(&text, &capacity, file) > 0) {
        json_t *line = strstr(text, "validation_loss") ? json_loads(text, 0, NULL) : NULL;
        if (!line)
            continue;
        json_decref(last);
        last = line;
    }
    free(text);
    if (file)
        fclose(file);
    return last;
}

static copy_cell unfinished_cell(const repro_job *job, const char *kind, int64_t length) {
    char path[TRAIN_PATH];
    copy_cell cell = {0};
    if (!cell_path(job, kind, length, "/" SHOAL_RUN_LOG, path))
        return cell;
    json_t *line = last_validation(path);
    cell.begun = line != NULL;
    cell.accuracy = json_number_value(json_object_get(line, "validation_accuracy"));
    cell.steps = json_integer_value(json_object_get(line, "step"));
    cell.seconds = json_number_value(json_object_get(line, "seconds"));
    json_decref(line);
    return cell;
}

copy_cell repro_copy_cell(const repro_job *job, const char *kind, int64_t length) {
    const json_t *cell = find_cell(job, kind, length);
    if (!cell)
        return unfinished_cell(job, kind, length);
    return (
        copy_cell){.done = true,
                   .accuracy = json_number_value(json_object_get(cell, "accuracy")),
                   .steps = json_integer_value(json_object_get(cell, "steps")),
                   .steps_limit =
                       json_integer_value(json_object_get(cell, "steps_limit")),
                   .seconds = json_number_value(json_object_get(cell, "seconds")),
                   .stopped_early = json_is_true(json_object_get(cell, "stopped_early"))};
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
    const shoal_copy_config *config = &run->config.copy;
    const shoal_run_result *result = &run->result;
    return json_pack("{s:s, s:I, s:I, s:f, s:o, s:I, s:I, s:I, s:I, s:f, s:b, s:o}",
                     "kind", kind, "length", (json_int_t)config->length, "positions",
                     (json_int_t)repro_positions(config->length), "accuracy",
                     result->test.accuracy, "loss",
                     isfinite(result->test.loss) ? json_real(result->test.loss)
                                                 : json_null(),
                     "correct", (json_int_t)result->test.correct, "counted",
                     (json_int_t)result->test.counted, "steps",
                     (json_int_t)result->state.step, "steps_limit",
                     (json_int_t)config->train.steps, "seconds", result->state.seconds,
                     "stopped_early", result->state.step < config->train.steps, "config",
                     train_config_json(run->task, &run->config));
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
                      .task = shoal_task_find("copy"),
                      .settings = settings,
                      .config = *config,
                      .options = shoal_run_defaults()};
    run.options.folder = folder;
    run.options.save_seconds = (double)job->save_seconds;
    run.options.resume = 1;
    run.options.test_batches = TEST_BATCHES;
    const int code = train_go(&run, job->context);
    if (run.result.busy) {
        job->skipped++;
        return EXIT_OK;
    }
    if (code == EXIT_BAD_INPUT) { /* it diverged, or its checkpoint is damaged */
        job->failed++;
        return EXIT_OK;
    }
    if (code != EXIT_OK || !run.result.finished)
        return code;
    name_cell(key, kind, length);
    return add_result(job, key, result_of(&run, kind));
}

/* Whether a finished cell is what is asked for now; *go_on when it lacks steps. */
static int check_done(const repro_job *job, const char *kind, int64_t length,
                      const train_config *config, bool *go_on) {
    const copy_cell cell = repro_copy_cell(job, kind, length);
    json_t *wanted = train_config_json(shoal_task_find("copy"), config);
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
    *go_on = cell.steps_limit < config->train.steps && !cell.stopped_early;
    return code;
}

static int do_cell(repro_job *job, const char *kind, int64_t length, int number) {
    static train_settings settings;
    train_config config = {.copy = shoal_copy_defaults()};
    const shoal_train_task *task = shoal_task_find("copy");
    bool go_on = true;
    int code = cell_settings(job, kind, length, &settings);
    if (code == EXIT_OK)
        code = settings_apply(&settings, job->context, task, &config);
    if (code == EXIT_OK && find_cell(job, kind, length))
        code = check_done(job, kind, length, &config, &go_on);
    /* Fields that are not given would be the checkpoint's when a cell is resumed: all are
       given, so that a checkpoint of other settings is refused. */
    if (code == EXIT_OK)
        code = settings_add_all(&settings, task, &config);
    return code == EXIT_OK && go_on
               ? train_cell(job, kind, length, number, &settings, &config)
               : code;
}

static int train_grid(repro_job *job) {
    int code = repro_make_folder(job->folder), number = 0;
    for (int l = 0; l < job->length_count; l++)
        for (int k = 0; k < job->kind_count; k++) {
            if (code != EXIT_OK || stop_signal())
                return code;
            code = do_cell(job, job->kinds[k], job->lengths[l], ++number);
        }
    return code;
}

/* ---- Tables -------------------------------------------------------------------- */

static int kind_width(const repro_job *job) {
    size_t width = 4;
    for (int k = 0; k < job->kind_count; k++)
        width = strlen(job->kinds[k]) > width ? strlen(job->kinds[k]) : width;
    return (int)width;
}

void repro_percent_text(char text[16], double accuracy) {
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
            const copy_cell cell = repro_copy_cell(job, job->kinds[k], job->lengths[l]);
            char right[16], time[16];
            printf("%-*s %6" PRId64 " %6" PRId64, width, job->kinds[k], job->lengths[l],
                   repro_positions(job->lengths[l]));
            missing += !cell.done;
            if (!cell.done && !cell.begun) {
                printf(" %9s %8s %10s  not begun\n", "-", "-", "-");
                continue;
            }
            repro_percent_text(right, cell.accuracy);
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
        printf(" N = %" PRId64 " |", repro_positions(job->lengths[l]));
    printf("\n|---|");
    for (int l = 0; l < job->length_count; l++)
        printf("---|");
    putchar('\n');
    for (int k = 0; k < job->kind_count; k++) {
        printf("| %s |", job->kinds[k]);
        for (int l = 0; l < job->length_count; l++) {
            const copy_cell cell = repro_copy_cell(job, job->kinds[k], job->lengths[l]);
            char right[16], time[16];
            if (!cell.done && !cell.begun) {
                printf(" not run |");
                continue;
            }
            repro_percent_text(right, cell.accuracy);
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
            const copy_cell cell = repro_copy_cell(job, job->kinds[k], job->lengths[l]);
            json_t *row = json_pack("{s:s, s:I, s:I, s:b}", "kind", job->kinds[k],
                                    "length", (json_int_t)job->lengths[l], "positions",
                                    (json_int_t)repro_positions(job->lengths[l]),
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

/* ---- The whole ----------------------------------------------------------------- */

static int report(repro_job *job) {
    int code = repro_copy_draw(job);
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
    train_config config = {.copy = shoal_copy_defaults()};
    return settings_apply(&job->settings, job->context, shoal_task_find("copy"), &config);
}

static int check_folder(const repro_job *job) {
    DIR *folder = opendir(job->folder);
    if (!folder)
        return complain(EXIT_BAD_INPUT, "repro", "%s: nothing can be shown there: %s",
                        job->folder, strerror(errno));
    closedir(folder);
    return EXIT_OK;
}

int repro_copy(repro_job *job) {
    int code = check_settings(job);
    if (code == EXIT_OK && job->show)
        code = check_folder(job);
    if (code == EXIT_OK)
        code = load_results(job);
    if (code == EXIT_OK && !job->show)
        code = train_grid(job);
    return code == EXIT_OK ? report(job) : code;
}
