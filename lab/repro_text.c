/* shoal repro text: a model is fine-tuned on each task and evaluated with other kinds of
   attention, without training again.

       DIR/cells/TASK/     the run of shoal train, and result.json, what shoal eval says
       DIR/results.json    all of them
       DIR/table.md        the table, beside the paper's figures */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "command.h"
#include "eval.h"
#include "repro.h"
#include "table.h"

#define RESULT "result.json"

typedef struct {
    const char *name;
    const char *metrics[2]; /* the second may be NULL */
    bool missing;           /* its data is not there, and it was not asked for by name */
    json_t *result;         /* NULL: not done */
} text_cell;

typedef struct {
    repro_job *job;
    text_cell cells[REPRO_TASKS];
    int count;
    char model[PATH_MAX]; /* the folder that all cells begin with; "": not known */
} text_grid;

static bool is_squad(const text_cell *cell) {
    return strcmp(cell->name, "SQuAD") == 0;
}

static bool cell_path(const text_grid *grid, const text_cell *cell, const char *file,
                      char path[TRAIN_PATH]) {
    char name[128];
    snprintf(name, sizeof name, "cells/%s%s", cell->name, file);
    return train_path("repro", path, grid->job->folder, name);
}

static int add_cells(text_grid *grid) {
    for (int i = 0; i < grid->job->task_count; i++) {
        const char *word = grid->job->tasks[i];
        shoal_glue_info glue = {"SQuAD", "f1", "exact_match", 0};
        char names[128] = "";
        bool found = strcasecmp(word, "squad") == 0;
        for (int k = 0; !found && shoal_glue_describe(k, &glue); k++) {
            found = strcasecmp(word, glue.name) == 0;
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
                     k ? ", " : "", glue.name);
        }
        if (!found)
            return complain(EXIT_USAGE, "repro",
                            "there is no task %s; there are %s and SQuAD", word, names);
        grid->cells[grid->count++] =
            (text_cell){glue.name, {glue.metric, glue.second}, false, NULL};
    }
    return EXIT_OK;
}

static const char *const controls[] = {"uniform attention", "no attention",
                                       "clustered-1"};

/* A kind's row in a result; NULL: it was not evaluated. */
static const json_t *find_kind(const text_cell *cell, const char *kind) {
    const json_t *kinds = json_object_get(cell->result, "kinds");
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const json_t *one = json_array_get(kinds, i);
        const char *name = json_string_value(json_object_get(one, "kind"));
        if (name && strcmp(name, kind) == 0)
            return one;
    }
    return NULL;
}

/* ---- A cell ------------------------------------------------------------------------ */

/* SQuAD's files by the names that they have. */
static bool find_squad(const char *data, const char *part, char path[TRAIN_PATH]) {
    static const char *const forms[] = {"%s/squad/%s-v1.1.json",
                                        "%s/squad/%s-v1.1-slice44.json"};
    for (int i = 0; i < 2; i++)
        if (snprintf(path, TRAIN_PATH, forms[i], data, part) < TRAIN_PATH &&
            access(path, F_OK) == 0)
            return true;
    return false;
}

/* Tasks that nobody named and whose data is not there are columns that say so. */
static void find_missing(text_grid *grid) {
    char path[TRAIN_PATH];
    for (int i = 0; i < grid->count && grid->job->every_task; i++) {
        text_cell *cell = &grid->cells[i];
        const char *data = grid->job->data;
        if (is_squad(cell))
            cell->missing = !find_squad(data, "train", path) ||
                            !find_squad(data, "dev", path);
        else
            cell->missing = snprintf(path, sizeof path, "%s/glue", data) < TRAIN_PATH &&
                            !shoal_glue_is_there(cell->name, path);
    }
}

static int cell_settings(const text_grid *grid, const text_cell *cell,
                         train_settings *settings) {
    *settings = grid->job->settings;
    int code = settings_add(settings, "attention", grid->job->kinds[0]);
    if (code == EXIT_OK && !is_squad(cell))
        code = settings_add(settings, "dataset", cell->name);
    return code;
}

static int train_cell(const text_grid *grid, text_cell *cell, bool *finished) {
    static train_run run;
    static train_settings settings;
    repro_job *job = grid->job;
    char folder[TRAIN_PATH], label[64], paths[2][TRAIN_PATH];
    train_config config;
    const shoal_train_task *task = shoal_task_find(is_squad(cell) ? "squad" : "glue");
    *finished = false;
    if (!cell_path(grid, cell, "", folder) ||
        !train_path("repro", paths[0], job->data, "glue"))
        return EXIT_USAGE;
    if (is_squad(cell) && (!find_squad(job->data, "train", paths[0]) ||
                           !find_squad(job->data, "dev", paths[1])))
        return complain(EXIT_BAD_INPUT, "repro",
                        "%s has no squad/train-v1.1.json or squad/dev-v1.1.json",
                        job->data);
    int code = cell_settings(grid, cell, &settings);
    if (code != EXIT_OK)
        return code;
    shoal_config_defaults(job->context, task, NULL, &config, sizeof config);
    if (is_squad(cell)) {
        config.squad.folder = paths[0];
        config.squad.dev = paths[1];
        config.squad.model_folder = job->model;
        config.squad.skip_bad = job->skip_bad;
    } else {
        config.glue.folder = paths[0];
        config.glue.model_folder = job->model;
        config.glue.skip_bad = job->skip_bad;
    }
    snprintf(label, sizeof label, "%d/%d %s  ", (int)(cell - grid->cells) + 1,
             grid->count, cell->name);
    run = (train_run){.command = "repro",
                      .label = label,
                      .task = task,
                      .settings = &settings,
                      .config = config,
                      .options = shoal_run_defaults()};
    run.options.folder = folder;
    run.options.save_seconds = (double)job->save_seconds;
    run.options.resume = 1;
    code = train_go(&run, job->context);
    *finished = code == EXIT_OK && run.result.finished;
    job->skipped += run.result.busy;
    return run.result.busy ? EXIT_OK : code;
}

/* Adds what was evaluated now to what was before. */
static void merge(text_cell *cell, json_t *more) {
    json_t *rows = json_object_get(cell->result, "kinds");
    if (!rows) {
        json_decref(cell->result);
        cell->result = more;
        return;
    }
    json_array_extend(rows, json_object_get(more, "kinds"));
    json_decref(more);
}

/* With the kinds that its result does not have yet; controls: with these too. */
static int evaluate_cell(const text_grid *grid, text_cell *cell) {
    char folder[TRAIN_PATH], path[TRAIN_PATH], kinds[REPRO_TESTED][REPRO_NAME];
    json_t *more = NULL;
    if (!cell_path(grid, cell, "", folder) || !cell_path(grid, cell, "/" RESULT, path))
        return EXIT_USAGE;
    shoal_evaluation *evaluation;
    shoal_evaluation_options options = shoal_evaluation_defaults();
    int count = 0;
    for (int i = 0; i < grid->job->tested_count; i++)
        if (!find_kind(cell, grid->job->tested[i]))
            strcpy(kinds[count++], grid->job->tested[i]);
    if (count == 0)
        return EXIT_OK;
    options.skip_bad = grid->job->skip_bad;
    options.controls = !find_kind(cell, controls[0]);
    const int code = evaluate_run("eval", grid->job->context, folder, count, kinds,
                                  &options, &evaluation, &more);
    shoal_evaluation_destroy(evaluation);
    if (code != EXIT_OK)
        return code;
    merge(cell, more);
    return repro_write_json(path, cell->result);
}

/* The others go on where one has failed. */
static int do_cell(const text_grid *grid, text_cell *cell) {
    bool finished = cell->result != NULL;
    int code = finished ? EXIT_OK : train_cell(grid, cell, &finished);
    if (code == EXIT_OK && finished && !stop_signal())
        code = evaluate_cell(grid, cell);
    if (code != EXIT_BAD_INPUT)
        return code;
    grid->job->failed++;
    return EXIT_OK;
}

/* ---- The table --------------------------------------------------------------------- */

/* METHOD.md 7.5: RoBERTa-base, 25 clusters. */
static const struct {
    const char *kind;
    const char *tasks[10];
} paper[] = {
    {"paper: full",
     {"CoLA .601", "MNLI .880", "MRPC .868", "QNLI .929", "QQP .915", "RTE .682",
      "SST-2 .947", "STS-B .900", "WNLI .437", "SQuAD .904"}},
    {"paper: clustered-25",
     {"CoLA .598", "MNLI .794", "MRPC .436", "QNLI .746", "QQP .894", "RTE .498",
      "SST-2 .944", "STS-B .789", "WNLI .437", "SQuAD .006"}},
    {"paper: i-clustered-25",
     {"CoLA .601", "MNLI .880", "MRPC .873", "QNLI .930", "QQP .915", "RTE .704",
      "SST-2 .947", "STS-B .900", "WNLI .437", "SQuAD .876"}},
};

static const char *paper_figure(size_t row, const char *task) {
    for (int i = 0; i < 10; i++) {
        const char *gap = strchr(paper[row].tasks[i], ' ');
        if (strncmp(paper[row].tasks[i], task, (size_t)(gap - paper[row].tasks[i])) == 0)
            return gap + 1;
    }
    return "-";
}

static void add_kind(const text_grid *grid, const char *kind, text_table *table) {
    table_row(table, kind);
    for (int i = 0; i < grid->count; i++) {
        const text_cell *cell = &grid->cells[i];
        for (int m = 0; m < 2 && cell->metrics[m]; m++) {
            const json_t *value =
                json_object_get(find_kind(cell, kind), cell->metrics[m]);
            if (json_is_number(value))
                table_add(table, "%.3f", json_number_value(value));
            else
                table_add(table, "%s",
                          cell->missing  ? "no data"
                          : cell->result ? "-"
                                         : "not run");
        }
    }
}

static void add_paper(const text_grid *grid, size_t row, text_table *table) {
    table_row(table, paper[row].kind);
    for (int i = 0; i < grid->count; i++) {
        table_add(table, "%s", paper_figure(row, grid->cells[i].name));
        if (grid->cells[i].metrics[1])
            table_add(table, " ");
    }
}

static void make_table(const text_grid *grid, text_table *table) {
    memset(table, 0, sizeof *table);
    table_row(table, "kind");
    for (int i = 0; i < grid->count; i++)
        for (int m = 0; m < 2 && grid->cells[i].metrics[m]; m++)
            table_add(table, "%s, %s", grid->cells[i].name, grid->cells[i].metrics[m]);
    for (int i = 0; i < grid->job->tested_count; i++)
        add_kind(grid, grid->job->tested[i], table);
    for (int i = 0; i < 3; i++)
        add_kind(grid, controls[i], table);
    for (size_t row = 0; row < sizeof paper / sizeof *paper; row++)
        add_paper(grid, row, table);
}

static int write_table(const text_grid *grid, const text_table *table) {
    char path[TRAIN_PATH];
    replacement to;
    if (!train_path("repro", path, grid->job->folder, "table.md"))
        return EXIT_USAGE;
    FILE *file = replace_begin(&to, path);
    if (file)
        table_print(table, true, file);
    if (file && replace_end(&to, !ferror(file)))
        return EXIT_OK;
    return complain(EXIT_RESOURCES, "repro", "%s cannot be written: %s", path,
                    strerror(errno));
}

static json_t *all_results(const text_grid *grid) {
    json_t *object = json_object();
    for (int i = 0; i < grid->count; i++)
        if (grid->cells[i].result)
            json_object_set(object, grid->cells[i].name, grid->cells[i].result);
    json_t *all = json_pack("{s:s, s:s, s:o}", "experiment", "text", "trained",
                            grid->job->kinds[0], "tasks", object);
    if (grid->model[0])
        json_object_set_new(all, "model", json_text(grid->model));
    return all;
}

static int write_results(const text_grid *grid, const json_t *object) {
    char path[TRAIN_PATH];
    return train_path("repro", path, grid->job->folder, REPRO_RESULTS)
               ? repro_write_json(path, object)
               : EXIT_USAGE;
}

static int report(const text_grid *grid) {
    static text_table table;
    json_t *object = all_results(grid);
    make_table(grid, &table);
    int code = write_table(grid, &table);
    if (code == EXIT_OK)
        code = write_results(grid, object);
    if (code == EXIT_OK && grid->job->json)
        return print_json(object);
    json_decref(object);
    if (code == EXIT_OK)
        table_print(&table, grid->job->markdown, stdout);
    return code;
}

/* ---- All of them ------------------------------------------------------------------- */

static int other(const text_grid *grid, const char *what, const char *field,
                 const char *was, const char *asked) {
    return complain(EXIT_BAD_INPUT, "repro",
                    "%s: %s was made with %s %s, not %s; ask for the same, or give "
                    "another --out",
                    grid->job->folder, what, field, was, asked);
}

/* All kinds as they are printed, so that they can be compared. */
static int spell_kinds(const text_grid *grid) {
    repro_job *job = grid->job;
    for (int i = -1; i < job->tested_count; i++) {
        char *kind = i < 0 ? job->kinds[0] : job->tested[i];
        shoal_attention parsed;
        const shoal_status status = shoal_attention_parse(job->context, kind, &parsed);
        if (status != SHOAL_OK)
            return complain_status(status, EXIT_USAGE, "repro", job->context);
        shoal_attention_print(&parsed, kind, REPRO_NAME);
    }
    return EXIT_OK;
}

/* Which model the folder's cells began with, as results.json says it. */
static int check_model(text_grid *grid) {
    const repro_job *job = grid->job;
    char path[TRAIN_PATH];
    if (!train_path("repro", path, job->folder, REPRO_RESULTS))
        return EXIT_USAGE;
    if (job->model && !realpath(job->model, grid->model))
        snprintf(grid->model, sizeof grid->model, "%s", job->model);
    json_t *before = access(path, F_OK) == 0 ? load_json("repro", path) : NULL;
    const char *model = json_string_value(json_object_get(before, "model"));
    int code = EXIT_OK;
    if (model && job->model && strcmp(model, grid->model) != 0)
        code = other(grid, REPRO_RESULTS, "the model", model, grid->model);
    else if (model)
        snprintf(grid->model, sizeof grid->model, "%s", model);
    json_decref(before);
    return code;
}

/* A result of other settings is not this one's. */
static int check_result(const text_grid *grid, const text_cell *cell) {
    const char *trained = json_string_value(json_object_get(cell->result, "trained"));
    json_t *config = json_object_get(cell->result, "config");
    void *i = json_object_iter(config);
    if (trained && strcmp(trained, grid->job->kinds[0]) != 0)
        return other(grid, cell->name, "the attention", trained, grid->job->kinds[0]);
    for (; i; i = json_object_iter_next(config, i)) {
        const char *key = json_object_iter_key(i);
        const char *asked = settings_find(&grid->job->settings, key);
        const double was = json_number_value(json_object_iter_value(i));
        char text[32];
        snprintf(text, sizeof text, "%g", was);
        if (asked && json_is_number(json_object_iter_value(i)) &&
            (float)strtod(asked, NULL) != (float)was)
            return other(grid, cell->name, key, text, asked);
    }
    return EXIT_OK;
}

/* Also again: a cell that has a result is done, but for kinds that it does not have. */
static int read_results(text_grid *grid) {
    char path[TRAIN_PATH];
    int code = EXIT_OK;
    for (int i = 0; i < grid->count && code == EXIT_OK; i++) {
        if (!cell_path(grid, &grid->cells[i], "/" RESULT, path))
            return EXIT_USAGE;
        if (access(path, F_OK) != 0)
            continue;
        grid->cells[i].result = load_json("repro", path);
        code = grid->cells[i].result ? check_result(grid, &grid->cells[i])
                                     : EXIT_BAD_INPUT;
    }
    return code;
}

static int do_cells(text_grid *grid) {
    json_t *object = all_results(grid); /* which says the model, before a cell begins */
    int code = write_results(grid, object);
    json_decref(object);
    for (int i = 0; i < grid->count && code == EXIT_OK && !stop_signal(); i++)
        if (!grid->cells[i].missing)
            code = do_cell(grid, &grid->cells[i]);
    return code;
}

int repro_text(repro_job *job) {
    static text_grid grid;
    grid = (text_grid){.job = job};
    int code = add_cells(&grid);
    if (code == EXIT_OK && !job->model && !job->show)
        code = complain(EXIT_USAGE, "repro",
                        "text needs --model, the folder of a BERT or RoBERTa");
    if (code == EXIT_OK)
        code = spell_kinds(&grid);
    if (code == EXIT_OK)
        code = repro_make_folder(job->folder);
    if (code == EXIT_OK)
        code = check_model(&grid);
    if (code == EXIT_OK)
        code = read_results(&grid);
    find_missing(&grid);
    if (code == EXIT_OK && !job->show)
        code = do_cells(&grid);
    if (code == EXIT_OK)
        code = report(&grid);
    for (int i = 0; i < grid.count; i++)
        json_decref(grid.cells[i].result);
    return code;
}
