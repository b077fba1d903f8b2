/* The cells of shoal repro speech and lf-mmi: what they are, their training, their
   results. */
#define _GNU_SOURCE
#include "repro_speech.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "command.h"
#include "eval.h"

#define RESULT "result.json"
#define AFTER_EPOCHS "epochs.safetensors" /* the best model of then */

/* What every cell has unless the user says otherwise. */
static const char *const grid_fields[][2] = {{"join", "60"},
                                             {"epochs", "15"},
                                             {"decay", "false"},
                                             {"average", "0.999"},
                                             {"validate_every", "200"}};
enum { FINER_SHARE = 5 };             /* of the epochs, for a cell that goes on, */
static const float finer_rate = 0.1f; /* of the learning rate */
#define ENDLESS "1000000000"          /* steps */

static bool cell_path(const char *folder, const char *cell, const char *file,
                      char path[TRAIN_PATH]) {
    char name[REPRO_NAME + 64];
    snprintf(name, sizeof name, "cells/%s%s", cell, file);
    return train_path("repro", path, folder, name);
}

/* ---- What is asked for ------------------------------------------------------------- */

static int spell(shoal_context *context, const char *text, char spelled[REPRO_NAME]) {
    shoal_attention attention;
    const shoal_status status = shoal_attention_parse(context, text, &attention);
    if (status != SHOAL_OK)
        return complain_status(status, EXIT_USAGE, "repro", context);
    shoal_attention_print(&attention, spelled, REPRO_NAME);
    return EXIT_OK;
}

/* "KIND", "KIND@LAYERS" or "CELL+KIND" */
static int parse_cell(shoal_context *context, const char *text, speech_cell *cell) {
    char kind[REPRO_NAME];
    const char *plus = strrchr(text, '+');
    snprintf(kind, sizeof kind, "%s", plus ? plus + 1 : text);
    char *at = strchr(kind, '@');
    if (at) {
        *at = 0;
        if (plus || !parse_integer("repro", "kinds", at + 1, 1, 1024, &cell->layers))
            return complain(EXIT_USAGE, "repro",
                            "--kinds has \"%s\"; a cell is KIND, KIND@LAYERS or "
                            "CELL+KIND",
                            text);
    }
    const int code = spell(context, kind, cell->kind);
    if (code != EXIT_OK)
        return code;
    if (plus)
        snprintf(cell->from, REPRO_NAME, "%.*s", (int)(plus - text), text);
    if (plus)
        snprintf(cell->name, REPRO_NAME, "%.60s+%.60s", cell->from, cell->kind);
    else if (cell->layers)
        snprintf(cell->name, REPRO_NAME, "%.100s@%" PRId64, cell->kind, cell->layers);
    else
        snprintf(cell->name, REPRO_NAME, "%s", cell->kind);
    return EXIT_OK;
}

static speech_cell *find_cell(const speech_grid *grid, const char *name) {
    for (int i = 0; i < grid->count; i++)
        if (strcmp(grid->cells[i].name, name) == 0)
            return &grid->cells[i];
    return NULL;
}

static int make_grid(repro_job *job, speech_grid *grid) {
    snprintf(grid->folder, sizeof grid->folder, "%s", job->folder);
    for (int i = 0; i < job->kind_count; i++) {
        speech_cell *cell = &grid->cells[grid->count];
        const int code = parse_cell(job->context, job->kinds[i], cell);
        if (code != EXIT_OK)
            return code;
        const speech_cell *from = *cell->from ? find_cell(grid, cell->from) : NULL;
        if ((*cell->from && !from) || find_cell(grid, cell->name))
            return complain(EXIT_USAGE, "repro", "--kinds: %s %s", cell->name,
                            *cell->from ? "goes on from a cell that is not before it"
                                        : "is there twice");
        cell->layers = from ? from->layers : cell->layers;
        grid->count++;
    }
    for (int i = 0; i < job->tested_count; i++, grid->tested_count++) {
        const int code = spell(job->context, job->tested[i], grid->tested[i]);
        if (code != EXIT_OK)
            return code;
    }
    for (int i = 0; i < job->only_count; i++)
        if (!find_cell(grid, job->only[i]))
            return complain(EXIT_USAGE, "repro", "--only: there is no cell %s",
                            job->only[i]);
    return EXIT_OK;
}

static bool is_chosen(const repro_job *job, const char *name) {
    for (int i = 0; i < job->only_count; i++)
        if (strcmp(job->only[i], name) == 0)
            return true;
    return job->only_count == 0;
}

/* ---- A cell's configuration -------------------------------------------------------- */

/* A cell that goes on learns more slowly, and not for as long. */
static void go_on_slowly(train_config *config) {
    const int64_t epochs = config->train.epochs / FINER_SHARE;
    config->train.epochs = epochs > 0 ? epochs : 1;
    config->train.learning_rate *= finer_rate;
    config->train.warmup = 0;
    config->speech.mask_after = config->speech.join_after = 0;
}

/* All fields are given, so that a checkpoint of other settings is refused. */
static int cell_config(const repro_job *job, const speech_grid *grid,
                       const speech_cell *cell, bool endless, train_settings *settings,
                       train_config *config) {
    char layers[24];
    const shoal_train_task *task = shoal_task_find("speech");
    config->speech = shoal_speech_defaults(
        grid->experiment->loss == SHOAL_SPEECH_LFMMI ? "lf-mmi" : NULL);
    *settings = (train_settings){.command = "repro"};
    int code = EXIT_OK;
    for (size_t i = 0; i < sizeof grid_fields / sizeof *grid_fields; i++)
        code = settings_add(settings, grid_fields[i][0], grid_fields[i][1]);
    for (int i = 0; i < job->settings.count && code == EXIT_OK; i++)
        code = settings_add(settings, job->settings.list[i].name,
                            job->settings.list[i].text);
    if (code == EXIT_OK)
        code = settings_add(settings, "attention", cell->kind);
    snprintf(layers, sizeof layers, "%" PRId64, cell->layers);
    if (code == EXIT_OK && cell->layers)
        code = settings_add(settings, "layers", layers);
    if (code == EXIT_OK)
        code = settings_apply(settings, job->context, task, config);
    if (*cell->from)
        go_on_slowly(config);
    if (code == EXIT_OK)
        code = settings_add_all(settings, task, config);
    if (code == EXIT_OK && endless)
        code = settings_add(settings, "steps", ENDLESS);
    config->speech.folder = job->data;
    config->speech.cache = job->cache;
    config->speech.skip_bad = job->skip_bad;
    config->speech.lexicon = job->words.lexicon;
    return code;
}

/* ---- A cell's results -------------------------------------------------------------- */

static bool takes_queries_as_keys(const char *kind) {
    return strncmp(kind, "lsh-", 4) == 0 || strncmp(kind, "shared-full", 11) == 0;
}

/* The best model with its own kind first; after all epochs also with the others that its
   weights can do with. The weights of words are tuned on dev unless both are given. */
static int evaluate_cell(const repro_job *job, const speech_grid *grid,
                         const speech_cell *cell, bool others, json_t **object) {
    static char names[EVAL_KINDS][EVAL_NAME];
    char test[TRAIN_PATH], dev[TRAIN_PATH], folder[TRAIN_PATH];
    const bool tunes = job->words.lm && !(job->words.lm_weight && job->words.insertion);
    const bool shares = takes_queries_as_keys(cell->kind);
    shoal_recogniser_options recogniser;
    shoal_evaluation *evaluation;
    shoal_evaluation_options options = shoal_evaluation_defaults();
    int count = 0;
    if (!train_path("repro", test, job->data, "test") ||
        !train_path("repro", dev, job->data, "dev") ||
        !cell_path(job->folder, cell->name, "", folder) ||
        !words_take("eval", &job->words, &recogniser))
        return EXIT_USAGE;
    snprintf(names[count++], EVAL_NAME, "%s", cell->kind);
    for (int i = 0; others && i < grid->tested_count; i++)
        if (strcmp(grid->tested[i], cell->kind) != 0 &&
            (shares || !takes_queries_as_keys(grid->tested[i])))
            snprintf(names[count++], EVAL_NAME, "%s", grid->tested[i]);
    options.data = test;
    options.cache = job->cache;
    options.skip_bad = job->skip_bad;
    options.controls = 1;
    options.tune = tunes ? dev : NULL;
    options.recogniser = &recogniser;
    const int code = evaluate_run("eval", job->context, folder, count, names, &options,
                                  &evaluation, object);
    shoal_evaluation_destroy(evaluation);
    return code;
}

static int save_result(const repro_job *job, const speech_cell *cell) {
    char path[TRAIN_PATH];
    return cell_path(job->folder, cell->name, "/" RESULT, path)
               ? repro_write_json(path, cell->result)
               : EXIT_USAGE;
}

/* The best model may change later; who goes on from this cell begins with this one. A
   link is enough: models are replaced whole. */
static int keep_best(const repro_job *job, const speech_cell *cell) {
    char best[TRAIN_PATH], kept[TRAIN_PATH];
    if (!cell_path(job->folder, cell->name, "/" SHOAL_RUN_BEST, best) ||
        !cell_path(job->folder, cell->name, "/" AFTER_EPOCHS, kept))
        return EXIT_USAGE;
    unlink(kept);
    return link(best, kept) == 0
               ? EXIT_OK
               : complain(EXIT_RESOURCES, "repro", "%s cannot be written: %s", kept,
                          strerror(errno));
}

/* Notes what the training has come to: after all epochs, or after the minutes. */
static int note_result(const repro_job *job, const speech_grid *grid, speech_cell *cell,
                       const train_run *run) {
    json_t *test = NULL;
    int code = evaluate_cell(job, grid, cell, run->result.finished, &test);
    if (code == EXIT_OK && run->result.finished)
        code = keep_best(job, cell);
    if (code != EXIT_OK)
        return code;
    const shoal_train_state *state = &run->result.state;
    const double best = state->best_step > 0 ? 100 * state->best : (double)NAN;
    json_t *now = json_pack("{s:I, s:o, s:o, s:I, s:o}", "steps", (json_int_t)state->step,
                            "seconds", json_number(state->seconds), "dev_error_rate",
                            json_number(best), "best_step", (json_int_t)state->best_step,
                            "test", test);
    const int64_t epochs = run->config.train.epochs;
    if (!cell->result)
        cell->result = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o}", "name", cell->name,
                                 "kind", cell->kind, "from", cell->from, "layers",
                                 (json_int_t)run->config.train.model.layers, "all_epochs",
                                 (json_int_t)epochs, "config",
                                 train_config_json(run->task, &run->config));
    if (run->result.finished)
        json_object_set_new(now, "seconds_per_epoch",
                            json_number(state->seconds / (double)epochs));
    json_object_set_new(cell->result, run->result.finished ? "epochs" : "minutes", now);
    return save_result(job, cell);
}

/* Fields that say how long a cell was trained, or that only the data tells. */
static bool is_compared(const char *field, const train_config *config) {
    static const char *const others[] = {"steps", "decay_steps", "data"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(field, others[i]) == 0)
            return false;
    if (strcmp(field, "units") == 0 || strcmp(field, "pieces") == 0)
        return config->speech.units == SHOAL_UNITS_SUBWORDS ||
               (config->speech.units != SHOAL_UNITS_AUTO && *field == 'u');
    return strcmp(field, "rate") != 0 || config->speech.rate > 0;
}

static bool same_value(const json_t *a, const json_t *b) {
    return json_is_number(a) && json_is_number(b)
               ? (float)json_number_value(a) == (float)json_number_value(b)
               : json_equal(a, b);
}

/* A result of the same settings. */
static int check_result(const speech_cell *cell, const train_config *config) {
    json_t *wanted = train_config_json(shoal_task_find("speech"), config), *value;
    const json_t *had = json_object_get(cell->result, "config");
    const char *field;
    int code = EXIT_OK;
    json_object_foreach(wanted, field, value) {
        if (code == EXIT_OK && is_compared(field, config) &&
            !same_value(value, json_object_get(had, field)))
            code = complain(EXIT_BAD_INPUT, "repro",
                            "%s was done with another %s; choose another folder for this "
                            "one",
                            cell->name, field);
    }
    json_decref(wanted);
    return code;
}

/* ---- A cell's training ------------------------------------------------------------- */

static bool has(const speech_cell *cell, const char *when) {
    return json_is_object(json_object_get(cell->result, when));
}

/* Cells that go on, and those whose rate falls to an end, have epochs alone. */
static bool lacks_minutes(const repro_job *job, const speech_cell *cell,
                          const train_config *config) {
    return job->minutes > 0 && !*cell->from && !config->train.decay &&
           !has(cell, "minutes");
}

/* To the end of the epochs or of the minutes, whichever of what is missing is first. */
static int train_on(repro_job *job, const speech_grid *grid, speech_cell *cell,
                    const char *from, bool *more) {
    static train_run run;
    static train_settings settings;
    char folder[TRAIN_PATH], label[64];
    train_config config;
    const bool endless = has(cell, "epochs");
    int code = cell_config(job, grid, cell, endless, &settings, &config);
    if (code == EXIT_OK && cell->result)
        code = check_result(cell, &config);
    const bool minutes = lacks_minutes(job, cell, &config);
    *more = code == EXIT_OK && (!endless || minutes);
    if (!*more || !cell_path(job->folder, cell->name, "", folder))
        return code;
    snprintf(label, sizeof label, "%d/%d %.40s  ", (int)(cell - grid->cells) + 1,
             grid->count, cell->name);
    run = (train_run){.command = "repro",
                      .label = label,
                      .task = shoal_task_find("speech"),
                      .settings = &settings,
                      .config = config,
                      .options = shoal_run_defaults()};
    run.options.folder = folder;
    run.options.save_seconds = (double)job->save_seconds;
    run.options.stop_seconds = minutes ? 60 * job->minutes : 0;
    run.options.resume = 1;
    run.options.from = from;
    code = train_go(&run, job->context);
    *more = code == EXIT_OK && (run.result.finished || run.result.timed);
    job->skipped += run.result.busy;
    job->failed += !run.result.busy &&
                   code == EXIT_BAD_INPUT; /* it diverged, or is damaged */
    if (run.result.busy || code == EXIT_BAD_INPUT)
        return EXIT_OK;
    return *more ? note_result(job, grid, cell, &run) : code;
}

static int do_cell(repro_job *job, const speech_grid *grid, speech_cell *cell) {
    char from[TRAIN_PATH];
    bool more = true;
    int code = EXIT_OK;
    const speech_cell *before = find_cell(grid, cell->from);
    if (before && !cell_path(job->folder, before->name, "/" AFTER_EPOCHS, from))
        return EXIT_USAGE;
    if (before && !has(before, "epochs")) {
        fprintf(stderr, "shoal repro: %s waits for %s\n", cell->name, before->name);
        return EXIT_OK;
    }
    while (code == EXIT_OK && more && !stop_signal())
        code = train_on(job, grid, cell, before ? from : NULL, &more);
    return code;
}

/* ---- All of them ------------------------------------------------------------------- */

/* Also again: another process may have finished cells meanwhile. */
static int read_results(const repro_job *job, const speech_grid *grid) {
    char path[TRAIN_PATH];
    for (int i = 0; i < grid->count; i++) {
        speech_cell *cell = &grid->cells[i];
        json_decref(cell->result);
        cell->result = NULL;
        if (!cell_path(job->folder, cell->name, "/" RESULT, path))
            return EXIT_USAGE;
        if (access(path, F_OK) == 0 && !(cell->result = load_json("repro", path)))
            return EXIT_BAD_INPUT;
    }
    return EXIT_OK;
}

static int write_results(const repro_job *job, const speech_grid *grid) {
    char path[TRAIN_PATH];
    json_t *cells = json_array(), *tested = json_array();
    for (int i = 0; i < grid->count; i++)
        json_array_append_new(cells,
                              json_pack("{s:s, s:s, s:s, s:I, s:O?}", "name",
                                        grid->cells[i].name, "kind", grid->cells[i].kind,
                                        "from", grid->cells[i].from, "layers",
                                        (json_int_t)grid->cells[i].layers, "result",
                                        grid->cells[i].result));
    for (int i = 0; i < grid->tested_count; i++)
        json_array_append_new(tested, json_string(grid->tested[i]));
    json_t *object = json_pack("{s:s, s:s, s:o, s:o, s:o}", "experiment",
                               grid->experiment->name, "shoal", shoal_version(),
                               "minutes", json_number(job->minutes), "evaluate", tested,
                               "cells", cells);
    const int code = train_path("repro", path, job->folder, REPRO_RESULTS)
                         ? repro_write_json(path, object)
                         : EXIT_USAGE;
    if (code == EXIT_OK && job->json)
        return print_json(object);
    json_decref(object);
    return code;
}

static int report(const repro_job *job) {
    speech_grid grid = {0};
    int code = speech_grid_read("repro", job->folder, &grid);
    if (code == EXIT_OK)
        code = speech_draw("repro", &grid);
    if (code == EXIT_OK && !job->json)
        code = speech_report(&grid, job->markdown);
    speech_grid_free(&grid);
    return code;
}

static bool must_train(const repro_job *job, const speech_grid *grid) {
    for (int i = 0; i < grid->count && !job->show; i++)
        if (is_chosen(job, grid->cells[i].name) && !has(&grid->cells[i], "epochs"))
            return true;
    return false;
}

static void say_bad(void *user, const char *text) {
    (void)user;
    complain(EXIT_OK, "repro", "%s", text);
}

/* Before the first training, so that no cell waits for the part test in vain. */
static int check_test(const repro_job *job, const speech_grid *grid) {
    static train_settings settings;
    train_config config;
    if (!must_train(job, grid))
        return EXIT_OK;
    const int code = cell_config(job, grid, &grid->cells[0], false, &settings, &config);
    if (code != EXIT_OK)
        return code;
    const shoal_train_callbacks callbacks = {.message = say_bad};
    const shoal_status status =
        shoal_speech_check(job->context, &config.speech, "test", &callbacks);
    return status == SHOAL_OK
               ? EXIT_OK
               : complain_status(status, EXIT_BAD_INPUT, "repro", job->context);
}

static int work(repro_job *job, speech_grid *grid) {
    int code = make_grid(job, grid);
    if (code == EXIT_OK && !job->show)
        code = repro_make_folder(job->folder);
    if (code == EXIT_OK)
        code = read_results(job, grid);
    if (code == EXIT_OK)
        code = check_test(job, grid);
    for (int i = 0; i < grid->count && code == EXIT_OK; i++) {
        if (!job->show && !stop_signal() && is_chosen(job, grid->cells[i].name))
            code = do_cell(job, grid, &grid->cells[i]);
    }
    if (code == EXIT_OK)
        code = read_results(job, grid);
    if (code == EXIT_OK)
        code = write_results(job, grid);
    return code == EXIT_OK ? report(job) : code;
}

/* Before the first training. */
static int check_words(const repro_job *job, const speech_experiment *experiment) {
    const words_options *words = &job->words;
    const bool lfmmi = experiment->loss == SHOAL_SPEECH_LFMMI;
    const char *loss = settings_find(&job->settings, "loss");
    if (loss && (strcmp(loss, "lf-mmi") == 0) != lfmmi)
        return complain(EXIT_USAGE, "repro",
                        "the loss of %s is not %s; use shoal repro %s", experiment->name,
                        loss, lfmmi ? "speech" : "lf-mmi");
    if (job->show || (words->lexicon && words->lm))
        return EXIT_OK;
    const bool some = words->lexicon || words->lm || words->beam || words->lm_weight ||
                      words->insertion || words->unknown || words->tokens > 0;
    return some || lfmmi ? complain(EXIT_USAGE, "repro",
                                    "words need both --lexicon and --lm; Debian's "
                                    "package pocketsphinx-en-us has English ones")
                         : EXIT_OK;
}

int repro_speech(repro_job *job) {
    const speech_experiment *experiment = speech_experiment_find(job->experiment);
    const int wrong = check_words(job, experiment);
    if (wrong != EXIT_OK)
        return wrong;
    speech_grid grid = {.experiment = experiment,
                        .cells = calloc(REPRO_KINDS, sizeof *grid.cells)};
    if (!grid.cells)
        return complain(EXIT_RESOURCES, "repro", "out of memory");
    const int code = work(job, &grid);
    speech_grid_free(&grid);
    return code;
}

/* ---- From the file ----------------------------------------------------------------- */

static void copy_text(char *to, const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, REPRO_NAME, "%s", text ? text : "");
}

/* Hours of a cell that goes on are counted from the beginning of the one before. */
static void add_hours_before(const speech_grid *grid, speech_cell *cell) {
    const speech_cell *before = find_cell(grid, cell->from);
    const double hours = before ? speech_hours(grid, before, "epochs") : 0;
    for (int i = 0; i < CURVES && isfinite(hours); i++)
        for (int k = 0; k < cell->log.curves[i].count; k++)
            cell->log.curves[i].x[k] += hours;
}

static int take_cell(const char *command, speech_grid *grid, const json_t *object) {
    speech_cell *cell = &grid->cells[grid->count];
    json_t *result = json_object_get(object, "result");
    copy_text(cell->name, object, "name");
    copy_text(cell->kind, object, "kind");
    copy_text(cell->from, object, "from");
    if (grid->count == REPRO_KINDS || !*cell->name || strchr(cell->name, '/'))
        return complain(EXIT_BAD_INPUT, command, "%s/" REPRO_RESULTS ": cell %d is none",
                        grid->folder, grid->count + 1);
    grid->count++;
    cell->layers = json_integer_value(json_object_get(object, "layers"));
    cell->result = json_is_object(result) ? json_incref(result) : NULL;
    if (!cell_path(grid->folder, cell->name, "/" SHOAL_RUN_LOG, cell->log.path))
        return EXIT_USAGE;
    if (access(cell->log.path, F_OK) != 0 || !cell->result)
        return EXIT_OK;
    const int code = log_curves_read(command, &cell->log, AGAINST_HOURS);
    add_hours_before(grid, cell);
    return code;
}

int speech_grid_read(const char *command, const char *folder, speech_grid *grid) {
    char path[TRAIN_PATH];
    *grid = (speech_grid){.cells = calloc(REPRO_KINDS + 1, sizeof *grid->cells)};
    snprintf(grid->folder, sizeof grid->folder, "%s", folder);
    if (!grid->cells)
        return complain(EXIT_RESOURCES, command, "out of memory");
    if (!train_path(command, path, folder, REPRO_RESULTS))
        return EXIT_USAGE;
    json_t *object = load_json(command, path), *one;
    size_t i;
    int code = object ? EXIT_OK : EXIT_BAD_INPUT;
    const char *what = json_string_value(json_object_get(object, "experiment"));
    grid->experiment = speech_experiment_find(what ? what : "");
    if (code == EXIT_OK && !grid->experiment)
        code = complain(EXIT_BAD_INPUT, command, "%s: is not of repro speech or lf-mmi",
                        path);
    json_array_foreach(json_object_get(object, "evaluate"), i, one) {
        const char *kind = json_string_value(one);
        if (kind && grid->tested_count < REPRO_TESTED)
            snprintf(grid->tested[grid->tested_count++], REPRO_NAME, "%s", kind);
    }
    json_array_foreach(json_object_get(object, "cells"), i, one) {
        if (code == EXIT_OK)
            code = take_cell(command, grid, one);
    }
    json_decref(object);
    return code;
}

void speech_grid_free(speech_grid *grid) {
    for (int i = 0; i < grid->count; i++)
        json_decref(grid->cells[i].result);
    free(grid->cells);
    *grid = (speech_grid){0};
}

static double number_at(const json_t *object, const char *field) {
    const json_t *value = json_object_get(object, field);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

double speech_number(const speech_cell *cell, const char *when, const char *field) {
    return number_at(json_object_get(cell->result, when), field);
}

double speech_tested(const speech_cell *cell, const char *when, const char *kind,
                     speech_measure measure, const char *field) {
    const json_t *test = json_object_get(json_object_get(cell->result, when), "test");
    const json_t *rows = json_object_get(test, "kinds");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *name = json_string_value(json_object_get(row, "kind"));
        if (!kind || (name && strcmp(name, kind) == 0))
            return number_at(measure == OF_WORDS ? json_object_get(row, "words") : row,
                             field);
    }
    return NAN;
}

bool speech_has_words(const speech_grid *grid) {
    for (int i = 0; i < grid->count; i++)
        for (int k = 0; k < 2; k++)
            if (isfinite(speech_tested(&grid->cells[i], k ? "minutes" : "epochs", NULL,
                                       OF_WORDS, "error_rate")))
                return true;
    return false;
}

double speech_hours(const speech_grid *grid, const speech_cell *cell, const char *when) {
    const speech_cell *before = find_cell(grid, cell->from);
    const double own = speech_number(cell, when, "seconds") / 3600;
    return before ? own + speech_hours(grid, before, "epochs") : own;
}
