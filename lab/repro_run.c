/* Training and evaluation of an experiment's cells, and the files of results. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "repro.h"

#define RESULT "result.json"
#define AFTER_EPOCHS "epochs.safetensors" /* best model at that time */
#define ENDLESS "1000000000"              /* steps */

/* ---- Files ------------------------------------------------------------------------- */

void repro_make_folder(const char *path) {
    char part[REPRO_PATH];
    struct stat information;
    for (size_t i = 1; i <= strlen(path) && i < sizeof part; i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            die(EXIT_RESOURCES, "%s cannot be created: %s", part, strerror(errno));
    }
    if (stat(path, &information) != 0 || !S_ISDIR(information.st_mode))
        die(EXIT_RESOURCES, "%s is not a folder", path);
}

void repro_write(const char *folder, const char *name, const json_t *object) {
    char path[REPRO_PATH];
    replacement to;
    FILE *file = replace_begin(&to, repro_path(path, folder, name));
    const bool written =
        file && json_dumpf(object, file, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) == 0 &&
        fputc('\n', file) != EOF;
    if (!file || !replace_end(&to, written))
        die(EXIT_RESOURCES, "%s cannot be written: %s", path, strerror(errno));
}

/* The object in a file of the folder, or NULL if there is none. */
static json_t *read_file(const char *folder, const char *name) {
    char path[REPRO_PATH];
    if (access(repro_path(path, folder, name), F_OK) != 0)
        return NULL;
    json_t *object = load_json("repro", path);
    if (!object)
        leave(EXIT_BAD_INPUT);
    return object;
}

json_t *repro_last_line(const repro_cell *cell, const char *word) {
    char path[REPRO_PATH], *text = NULL;
    FILE *file = fopen(repro_path(path, cell->folder, SHOAL_RUN_LOG), "r");
    size_t capacity = 0;
    json_t *last = NULL;
    while (file && getline(&text, &capacity, file) > 0) {
        json_t *line = strstr(text, word) ? json_loads(text, 0, NULL) : NULL;
        if (line) {
            json_decref(last);
            last = line;
        }
    }
    free(text);
    if (file)
        fclose(file);
    return last;
}

/* ---- Reading ----------------------------------------------------------------------- */

/* Test results of all cells are in one file. */
static json_t *read_tested(const repro_job *job) {
    json_t *object = read_file(job->folder, REPRO_RESULTS), *cell, *config;
    const char *key;
    double right, seconds;
    int steps, limit, early;
    if (!object)
        return json_pack("{s:s, s:s, s:{}}", "experiment", job->name, "shoal",
                         shoal_version(), "cells");
    if (!json_is_object(json_object_get(object, "cells")))
        die(EXIT_BAD_INPUT, "%s/" REPRO_RESULTS ": it has no cells", job->folder);
    json_object_foreach(json_object_get(object, "cells"), key,
                        cell) if (json_unpack(cell, "{s:F, s:i, s:i, s:F, s:b, s:o}",
                                              "accuracy", &right, "steps", &steps,
                                              "steps_limit", &limit, "seconds", &seconds,
                                              "stopped_early", &early, "config",
                                              &config) != 0 ||
                                  right < 0 || right > 1)
        die(EXIT_BAD_INPUT,
            "%s/" REPRO_RESULTS ": cell \"%s\" is not a valid result; correct it, or "
            "remove it to test it again",
            job->folder, key);
    return object;
}

/* Creates folders for cells of results.json that have none: the file was copied from
   another machine. */
static void import_results(const repro_job *job, const json_t *object) {
    const json_t *cells = json_object_get(object, "cells");
    for (size_t i = 0; i < json_array_size(cells); i++) {
        const json_t *cell = json_array_get(cells, i);
        const json_t *result = json_object_get(cell, "result");
        char folder[REPRO_PATH], name[REPRO_NAME + 8];
        snprintf(name, sizeof name, "cells/%s", repro_text(cell, "name"));
        if (!json_is_object(result) || strchr(name + 6, '/') || name[6] == '.' ||
            access(repro_path(folder, job->folder, name), F_OK) == 0)
            continue;
        repro_make_folder(folder);
        repro_write(folder, RESULT, result);
    }
}

static const char *const curve_names[CURVES] = {"loss", "accuracy", "validation_loss",
                                                "validation_accuracy"};

/* Curves of a log, {NAME: [steps, hours, values]}. */
static json_t *curves_of(const char *path) {
    static log_curves logs[2];
    json_t *object = json_object();
    for (int against = 0; against < 2; against++) {
        logs[against] = (log_curves){0};
        strcpy(logs[against].path, path);
        const int code = log_curves_read(command_name(), &logs[against],
                                         against ? AGAINST_HOURS : AGAINST_STEPS);
        if (code != EXIT_OK)
            leave(code);
    }
    for (int i = 0; i < CURVES; i++) {
        const log_curve *lines[2] = {&logs[0].curves[i], &logs[1].curves[i]};
        const int count = lines[0]->count;
        json_object_set_new(object, curve_names[i],
                            json_pack("[o, o, o]", json_numbers(lines[0]->x, count),
                                      json_numbers(lines[1]->x, count),
                                      json_numbers(lines[0]->y, count)));
    }
    return object;
}

/* Reads curves against hours since the start of the cell that this one continues. */
static void read_curves(const repro_job *job, repro_cell *cell) {
    const bool calibrated = isfinite(cell->seconds_per_step);
    const repro_cell *before = repro_find(job, cell->from);
    const double hours = before ? repro_number(job, before, "hours(epochs)") : 0;
    repro_path(cell->log.path, cell->folder, SHOAL_RUN_LOG);
    if (access(cell->log.path, F_OK) == 0)
        json_object_set_new(cell->result, "curves", curves_of(cell->log.path));
    for (int i = 0; i < CURVES; i++) {
        const json_t *curve =
            json_object_get(json_object_get(cell->result, "curves"), curve_names[i]);
        const json_t *x = json_array_get(curve, calibrated ? 0 : 1);
        const json_t *y = json_array_get(curve, 2);
        log_curve *line = &cell->log.curves[i];
        line->count = 0;
        for (size_t k = 0; k < json_array_size(y) && k < CURVE_POINTS; k++) {
            const double at = json_number_value(json_array_get(x, k));
            line->x[k] = (calibrated ? at * cell->seconds_per_step / 3600 : at) +
                         (isfinite(hours) ? hours : 0);
            line->y[k] = json_number_value(json_array_get(y, k));
            line->count = (int)k + 1;
        }
    }
}

/* Collects the values of a cell that tables see; without a result, its last
   validation. */
static void look_at(const repro_job *job, repro_cell *cell) {
    const bool early = json_is_true(json_object_get(cell->result, "stopped_early"));
    const char *state = early          ? "early, no mistakes"
                        : cell->result ? "all steps"
                                       : "not begun";
    const char *mark = "";
    json_t *line = cell->result ? NULL : repro_last_line(cell, "validation_loss");
    json_decref(cell->seen);
    cell->seen = json_copy(cell->facts);
    if (cell->result)
        json_object_update(cell->seen, cell->result);
    if (line) {
        state = "not finished: last validation";
        mark = "unfinished: ";
        json_object_set(cell->seen, "accuracy",
                        json_object_get(line, "validation_accuracy"));
        json_object_set(cell->seen, "steps", json_object_get(line, "step"));
        json_object_set(cell->seen, "seconds", json_object_get(line, "seconds"));
    }
    json_object_set_new(cell->seen, "name", json_text(cell->name));
    json_object_set_new(cell->seen, "state", json_string(state));
    json_object_set_new(cell->seen, "unfinished", json_string(mark));
    json_object_set_new(cell->seen, "early", json_string(early ? ", early" : ""));
    json_decref(line);
    if (job->form == OF_MILESTONES && cell->result)
        read_curves(job, cell);
}

void repro_read(repro_job *job) {
    json_t *all = job->form == OF_TEST ? read_tested(job)
                                       : read_file(job->folder, REPRO_RESULTS);
    json_t *calibration = read_file(job->folder, REPRO_CALIBRATION);
    const json_t *seconds = json_object_get(calibration, "seconds_per_step");
    if (job->form == OF_MILESTONES)
        import_results(job, all);
    for (int i = 0; i < job->count; i++) {
        repro_cell *cell = &job->cells[i];
        const json_t *step = json_object_get(seconds, cell->name);
        cell->seconds_per_step = step ? json_number_value(step) : (double)NAN;
        json_decref(cell->result);
        cell->result =
            job->form == OF_TEST
                ? json_incref(json_object_get(json_object_get(all, "cells"), cell->name))
                : read_file(cell->folder, RESULT);
        look_at(job, cell);
    }
    json_decref(calibration);
    json_decref(all);
}

json_t *repro_results(const repro_job *job) {
    json_t *cells = job->form == OF_EVALUATION ? json_object() : json_array();
    json_t *tested = json_array();
    for (int i = 0; i < job->count; i++) {
        const repro_cell *cell = &job->cells[i];
        if (job->form == OF_EVALUATION && cell->result)
            json_object_set(cells, cell->name, cell->result);
        else if (job->form == OF_MILESTONES)
            json_array_append_new(cells,
                                  json_pack("{s:s, s:s, s:s, s:I, s:O?}", "name",
                                            cell->name, "kind", cell->kind, "from",
                                            cell->from, "layers",
                                            (json_int_t)cell->config.train.model.layers,
                                            "result", cell->result));
    }
    for (int i = 0; i < job->tested_count; i++)
        json_array_append_new(tested, json_text(job->tested[i]));
    json_t *object = json_pack("{s:s, s:s, s:s, s:o, s:o}", "experiment", job->name,
                               "shoal", shoal_version(), "commit", repro_commit,
                               "evaluate", tested,
                               job->form == OF_EVALUATION ? "tasks" : "cells", cells);
    if (job->form == OF_EVALUATION)
        json_object_set_new(object, "trained", json_text(job->cells[0].kind));
    else
        json_object_set_new(object, "minutes", json_number(job->minutes));
    if (job->table_path)
        json_object_set_new(object, "table", json_text(job->table_path));
    return object;
}

/* ---- Results ----------------------------------------------------------------------- */

static bool has(const repro_cell *cell, const char *when) {
    return json_is_object(json_object_get(cell->result, when));
}

/* Adds to the file of all results with the folder locked, because another process may
   have finished a cell. */
static void keep_tested(repro_job *job, repro_cell *cell) {
    const int lock = open(job->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock >= 0)
        flock(lock, LOCK_EX);
    json_t *all = read_tested(job);
    json_object_set(json_object_get(all, "cells"), cell->name, cell->result);
    repro_write(job->folder, REPRO_RESULTS, all);
    json_decref(all);
    if (lock >= 0)
        close(lock);
}

/* Fields determined by the data unless they are given. */
static bool is_found(const repro_cell *cell, const char *field) {
    return (strcmp(field, "rate") == 0 || strcmp(field, "units") == 0 ||
            strcmp(field, "pieces") == 0) &&
           !json_object_get(cell->given, field);
}

/* Checks that a result has the same settings, except for the length of training; some
   experiments only know the given settings, and the others come from the model or the
   data. */
static void check_result(const repro_job *job, const repro_cell *cell) {
    const bool given = strcmp(repro_text(job->table, "compare"), "given") == 0;
    json_t *wanted = repro_config_json(cell->task, &cell->config), *value;
    const json_t *had = json_object_get(cell->result, "config");
    const char *field;
    json_object_foreach(wanted, field, value) {
        const json_t *old = json_object_get(had, field);
        const bool numbers = (json_is_real(value) || json_is_real(old)) &&
                             json_is_number(value) && json_is_number(old);
        if (numbers ? (float)json_number_value(value) == (float)json_number_value(old)
                    : json_equal(value, old))
            continue;
        if (strcmp(field, "steps") == 0 || strcmp(field, "decay_steps") == 0 ||
            strcmp(field, "data") == 0 || is_found(cell, field) ||
            (given && !json_object_get(cell->given, field)))
            continue;
        const char *what = strcmp(field, "attention") == 0 ? "the attention" : field;
        char *was = json_dumps(old, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        char now[SHOAL_VALUE_SIZE];
        shoal_config_get(cell->task, &cell->config, field, now, sizeof now);
        die(EXIT_BAD_INPUT,
            "%s was done with another %s: %s was made with %s %s, not %s; use the same "
            "setting, or another folder with --out",
            cell->name, field, cell->name, what,
            json_is_string(old) ? json_string_value(old)
            : was               ? was
                                : "unknown",
            now);
    }
    json_decref(wanted);
}

/* ---- Training ---------------------------------------------------------------------- */

typedef struct {
    shoal_train_callbacks shown;
    int64_t step, limit; /* 0 if there is none */
    repro_config config;
    shoal_run_result result;
} cell_run;

static void see_progress(void *user, const shoal_train_progress *at) {
    cell_run *run = user;
    run->step = at->state ? at->state->step : run->step;
    run->shown.progress(run->shown.user, at);
}

static int is_over(void *user) {
    cell_run *run = user;
    return (run->limit > 0 && run->step >= run->limit) ||
           run->shown.cancelled(run->shown.user);
}

static void pass_message(void *user, const char *text) {
    cell_run *run = user;
    run->shown.message(run->shown.user, text);
}

/* Trains to the end, or for the minutes; returns whether that point was reached. All
   known fields are passed again when a run continues, so that a checkpoint of other
   settings is rejected. */
static bool train(repro_job *job, repro_cell *cell, bool endless, bool minutes,
                  cell_run *run) {
    const repro_cell *before = repro_find(job, cell->from);
    const bool given = strcmp(repro_text(job->table, "compare"), "given") == 0;
    char label[REPRO_NAME + 32], from[REPRO_PATH], texts[128][SHOAL_VALUE_SIZE];
    shoal_setting settings[128];
    shoal_run_options options = shoal_run_options_defaults();
    const shoal_field *field;
    snprintf(label, sizeof label, "%d/%d %.40s  ", (int)(cell - job->cells) + 1,
             job->count, cell->name);
    *run = (cell_run){.shown = show_training(label),
                      .limit = minutes ? repro_budget(job, cell) : 0,
                      .config = cell->config};
    for (int i = 0; i < 128 && (field = shoal_task_field(cell->task, i)); i++) {
        if (is_found(cell, field->name) ||
            (given && !json_object_get(cell->given, field->name)))
            continue;
        char *text = texts[options.setting_count];
        shoal_config_get(cell->task, &cell->config, field->name, text, SHOAL_VALUE_SIZE);
        if (endless && strcmp(field->name, "steps") == 0)
            strcpy(text, ENDLESS);
        settings[options.setting_count++] = (shoal_setting){field->name, text};
    }
    options.settings = settings;
    options.folder = cell->folder;
    options.save_seconds = (double)job->save_seconds;
    options.stop_seconds = minutes && !run->limit ? 60 * job->minutes : 0;
    options.resume = 1;
    options.from = before ? repro_path(from, before->folder, AFTER_EPOCHS) : NULL;
    options.callbacks = (shoal_train_callbacks){.user = run,
                                                .progress = see_progress,
                                                .message = pass_message,
                                                .cancelled = is_over};
    const shoal_status status =
        shoal_train_run(job->context, cell->task, &run->config, &options, &run->result);
    progress_end();
    if (status == SHOAL_OK)
        return run->result.finished || run->result.timed;
    if (status == SHOAL_CANCELLED)
        return run->result.saved && run->limit > 0 && run->step >= run->limit;
    complain(EXIT_USAGE, "repro", "%s", shoal_context_message(job->context));
    job->skipped += run->result.busy;
    job->failed += !run->result.busy; /* it diverged, or is damaged */
    if (!run->result.busy && run->result.cause != SHOAL_RUN_CAUSE_INPUT)
        leave(run->result.cause == SHOAL_RUN_CAUSE_SETTINGS ? EXIT_USAGE
                                                            : EXIT_RESOURCES);
    return false;
}

/* ---- Evaluation -------------------------------------------------------------------- */

static bool takes_queries_as_keys(const repro_job *job, const char *kind) {
    shoal_attention attention;
    demand(shoal_attention_parse(job->context, kind, &attention), EXIT_USAGE);
    return kind_facts(&attention)->keys_are_queries;
}

/* Evaluates the best model: with its own kind first if it has milestones, and with
   other kinds that its weights support and the result lacks. Word weights are tuned
   unless both are given. NULL if there is none now. */
static json_t *evaluate(repro_job *job, const repro_cell *cell, bool others) {
    const json_t *how = json_object_get(job->table, "evaluate");
    const bool first = job->form == OF_MILESTONES;
    const bool shares = takes_queries_as_keys(job, cell->kind);
    const bool tunes = job->words.lm && !(job->words.lm_weight && job->words.insertion);
    char data[REPRO_PATH], tune[REPRO_PATH];
    shoal_attention kinds[REPRO_VALUES + 1];
    shoal_recogniser_options recogniser;
    shoal_evaluation *evaluation = NULL;
    shoal_evaluation_options options = shoal_evaluation_options_defaults();
    if (!words_take("repro", &job->words, &recogniser))
        leave(EXIT_USAGE);
    if (first)
        shoal_attention_parse(job->context, cell->kind, &kinds[options.kinds++]);
    for (int i = 0; others && i < job->tested_count && options.kinds < REPRO_VALUES; i++)
        if (first ? strcmp(job->tested[i], cell->kind) != 0 &&
                        (shares || !takes_queries_as_keys(job, job->tested[i]))
                  : !repro_at(job, cell, "kinds[%s]", job->tested[i]))
            shoal_attention_parse(job->context, job->tested[i], &kinds[options.kinds++]);
    if (options.kinds == 0)
        return NULL;
    options.attention = kinds;
    options.cache = job->cache;
    options.skip_bad = job->skip_bad;
    options.controls = !repro_at(job, cell, "kinds[%s]", repro_controls[0]);
    options.recogniser = &recogniser;
    options.callbacks = show_training("");
    if (*repro_text(how, "data"))
        options.data = repro_path(data, job->data, repro_text(how, "data"));
    if (*repro_text(how, "tune") && tunes)
        options.tune = repro_path(tune, job->data, repro_text(how, "tune"));
    const shoal_status status =
        shoal_evaluation_create(job->context, cell->folder, &options, &evaluation);
    progress_end();
    json_t *object = status == SHOAL_OK
                         ? json_loads(shoal_evaluation_json(evaluation), 0, NULL)
                         : NULL;
    shoal_evaluation_destroy(evaluation);
    if (status == SHOAL_BAD_FILE) {
        complain_status(status, EXIT_BAD_INPUT, "repro", job->context);
        job->failed++;
    } else if (status != SHOAL_CANCELLED)
        demand(status, EXIT_USAGE);
    return object;
}

/* ---- Milestones ------------------------------------------------------------------- */

static json_t *tested_result(const repro_cell *cell, const cell_run *run) {
    const shoal_run_result *result = &run->result;
    json_t *object = json_copy(cell->facts);
    json_object_del(object, "attention");
    json_object_del(object, "cell");
    json_t *more =
        json_pack("{s:s, s:f, s:o, s:I, s:I, s:I, s:I, s:f, s:b, s:s, s:o}", "kind",
                  cell->kind, "accuracy", result->test.accuracy, "loss",
                  json_number(result->test.loss), "correct",
                  (json_int_t)result->test.correct, "counted",
                  (json_int_t)result->test.counted, "steps",
                  (json_int_t)result->state.step, "steps_limit",
                  (json_int_t)run->config.train.steps, "seconds", result->state.seconds,
                  "stopped_early", result->state.step < run->config.train.steps, "commit",
                  repro_commit, "config", repro_config_json(cell->task, &run->config));
    json_object_update(object, more);
    json_decref(more);
    return object;
}

/* Records the state of the training after all epochs or after the minutes. The best
   model may change later, and a continuing cell starts from this one: a link is enough,
   because models are replaced atomically. */
static bool note_milestone(repro_job *job, repro_cell *cell, const cell_run *run) {
    const shoal_train_state *state = &run->result.state;
    const bool finished = run->result.finished;
    const int64_t epochs = run->config.train.epochs;
    char best[REPRO_PATH], kept[REPRO_PATH];
    json_t *test = evaluate(job, cell, finished);
    if (!test)
        return false;
    repro_path(best, cell->folder, SHOAL_RUN_BEST);
    repro_path(kept, cell->folder, AFTER_EPOCHS);
    if (finished && access(best, F_OK) == 0 &&
        ((unlink(kept) != 0 && errno != ENOENT) || link(best, kept) != 0))
        die(EXIT_RESOURCES, "%s cannot be written: %s", kept, strerror(errno));
    json_t *now =
        json_pack("{s:I, s:o, s:o, s:I, s:o}", "steps", (json_int_t)state->step,
                  "seconds", json_number(state->seconds), "dev_error_rate",
                  json_number(state->best_step > 0 ? 100 * state->best : (double)NAN),
                  "best_step", (json_int_t)state->best_step, "test", test);
    if (!cell->result)
        cell->result = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:s, s:s}", "name",
                                 cell->name, "kind", cell->kind, "from", cell->from,
                                 "layers", (json_int_t)run->config.train.model.layers,
                                 "all_epochs", (json_int_t)epochs, "config",
                                 repro_config_json(cell->task, &run->config), "shoal",
                                 shoal_version(), "commit", repro_commit);
    if (finished && epochs > 0)
        json_object_set_new(now, "seconds_per_epoch",
                            json_number(state->seconds / (double)epochs));
    json_object_set_new(cell->result, finished ? "epochs" : "minutes", now);
    read_curves(job, cell);
    repro_write(cell->folder, RESULT, cell->result);
    return true;
}

int64_t repro_budget(const repro_job *job, const repro_cell *cell) {
    return isfinite(cell->seconds_per_step) && job->minutes > 0
               ? (int64_t)(60 * job->minutes / cell->seconds_per_step) + 1
               : 0;
}

/* Cells that continue others, and those whose rate decays to 0, only have epochs. */
static bool lacks_minutes(const repro_job *job, const repro_cell *cell) {
    return job->form == OF_MILESTONES && job->minutes > 0 && !*cell->from &&
           !cell->config.train.decay && !has(cell, "minutes");
}

bool repro_is_done(const repro_job *job, const repro_cell *cell) {
    const json_t *limit = json_object_get(cell->result, "steps_limit");
    if (job->form == OF_MILESTONES)
        return has(cell, "epochs") && !lacks_minutes(job, cell);
    return cell->result &&
           (job->form == OF_EVALUATION ||
            json_is_true(json_object_get(cell->result, "stopped_early")) ||
            json_integer_value(limit) >= cell->config.train.steps);
}

/* Returns whether there may be more to do. */
static bool do_cell(repro_job *job, repro_cell *cell) {
    static cell_run run;
    if (cell->result)
        check_result(job, cell);
    if (job->form == OF_EVALUATION) {
        if (!cell->result && (!train(job, cell, false, false, &run) || stop_signal()))
            return false;
        json_t *more = evaluate(job, cell, true);
        if (more && cell->result)
            json_array_extend(json_object_get(cell->result, "kinds"),
                              json_object_get(more, "kinds"));
        if (more && !cell->result) {
            cell->result = json_incref(more);
            json_object_set_new(more, "commit", json_string(repro_commit));
        }
        if (more)
            repro_write(cell->folder, RESULT, cell->result);
        json_decref(more);
        return false;
    }
    if (repro_is_done(job, cell) ||
        !train(job, cell, has(cell, "epochs"), lacks_minutes(job, cell), &run))
        return false;
    if (job->form == OF_MILESTONES)
        return note_milestone(job, cell, &run);
    if (run.result.finished) {
        json_decref(cell->result);
        cell->result = tested_result(cell, &run);
        keep_tested(job, cell);
    }
    return false;
}

/* ---- All cells -------------------------------------------------------------------- */

/* Called before the first training, so that no cell is trained without a test set. */
static void check_test(const repro_job *job) {
    const char *part = repro_text(json_object_get(job->table, "evaluate"), "data");
    for (int i = 0; i < job->count; i++) {
        const repro_cell *cell = &job->cells[i];
        if (cell->task != shoal_task_find("speech") || !*part ||
            repro_is_done(job, cell) || !repro_is_chosen(job, cell))
            continue;
        const shoal_train_callbacks callbacks = show_training("");
        demand(shoal_speech_check(job->context, &cell->config.speech, part, &callbacks),
               EXIT_BAD_INPUT);
        progress_end();
        return;
    }
}

/* Checks the model that the folder's cells started from. */
static void check_model(const repro_job *job, json_t *results) {
    char model[PATH_MAX] = "";
    json_t *before = read_file(job->folder, REPRO_RESULTS);
    const char *was = repro_text(before, "model");
    if (job->model && !realpath(job->model, model))
        snprintf(model, sizeof model, "%s", job->model);
    if (*was && *model && strcmp(was, model) != 0)
        die(EXIT_BAD_INPUT,
            "%s: " REPRO_RESULTS
            " was made with the model %s, not %s; use the same model, or another --out",
            job->folder, was, model);
    if (*was || *model)
        json_object_set_new(results, "model", json_text(*was ? was : model));
    json_decref(before);
}

static void write_results(const repro_job *job) {
    json_t *results = repro_results(job);
    check_model(job, results);
    if (job->form != OF_TEST)
        repro_write(job->folder, REPRO_RESULTS, results);
    json_decref(results);
}

void repro_train(repro_job *job) {
    if (!job->show)
        check_test(job);
    repro_make_folder(job->folder);
    write_results(job); /* records the model before a cell begins */
    for (int i = 0; i < job->count && !job->show; i++) {
        repro_cell *cell = &job->cells[i];
        const repro_cell *before = repro_find(job, cell->from);
        if (!repro_is_chosen(job, cell) || cell->missing)
            continue;
        if (before && !has(before, "epochs")) {
            fprintf(stderr, "shoal repro: %s waits for %s\n", cell->name, before->name);
            continue;
        }
        while (!stop_signal() && do_cell(job, cell))
            ;
    }
    repro_read(job);
    write_results(job);
}
