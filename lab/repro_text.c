/* shoal repro text: a model is fine-tuned on each task and evaluated with other kinds of
   attention, without training again.

       DIR/cells/TASK/     the run of shoal train, and result.json, what shoal eval says
       DIR/results.json    all of them
       DIR/table.md        the table, beside the paper's figures */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common.h"
#include "repro.h"
#include "table.h"
#include "text_data.h"
#include "text_eval.h"

#define RESULT "result.json"

typedef struct {
    const char *name;
    json_t *result; /* NULL: not done */
} text_cell;

typedef struct {
    repro_job *job;
    text_cell cells[REPRO_TASKS];
    int count;
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
        const glue_task *glue = glue_find(word);
        if (!glue && strcasecmp(word, "squad") != 0)
            return complain(EXIT_USAGE, "repro",
                            "there is no task %s; there are %s and SQuAD", word,
                            glue_names());
        grid->cells[grid->count++].name = glue ? glue->name : "SQuAD";
    }
    return EXIT_OK;
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
    train_reason reason;
    *finished = false;
    if (!train_defaults(is_squad(cell) ? "squad" : "glue", &config, &reason) ||
        !cell_path(grid, cell, "", folder) ||
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
    config.folder = paths[0];
    config.dev = is_squad(cell) ? paths[1] : NULL;
    config.model_folder = job->model;
    config.skip_bad = job->skip_bad;
    snprintf(label, sizeof label, "%d/%d %s  ", (int)(cell - grid->cells) + 1,
             grid->count, cell->name);
    run = (train_run){.command = "repro",
                      .label = label,
                      .folder = folder,
                      .save_seconds = (double)job->save_seconds,
                      .resume = true,
                      .settings = &settings,
                      .config = config};
    code = train_go(&run, job->context);
    *finished = code == EXIT_OK && run.finished;
    job->skipped += run.busy;
    return run.busy ? EXIT_OK : code;
}

static int evaluate_cell(const text_grid *grid, text_cell *cell) {
    char folder[TRAIN_PATH], path[TRAIN_PATH];
    if (!cell_path(grid, cell, "", folder) || !cell_path(grid, cell, "/" RESULT, path))
        return EXIT_USAGE;
    const text_eval_job job = {.path = folder,
                               .skip_bad = grid->job->skip_bad,
                               .controls = true,
                               .kinds = grid->job->tested_count,
                               .names = grid->job->tested,
                               .object = &cell->result};
    const int code = text_eval(&job, grid->job->context);
    return code == EXIT_OK ? repro_write_json(path, cell->result) : code;
}

/* The others go on where one has failed. */
static int do_cell(const text_grid *grid, text_cell *cell) {
    bool finished;
    int code = train_cell(grid, cell, &finished);
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

static void add_kind(const text_grid *grid, const char *kind, text_table *table) {
    table_row(table, kind);
    for (int i = 0; i < grid->count; i++) {
        const text_cell *cell = &grid->cells[i];
        const char *metric = json_string_value(json_object_get(cell->result, "metric"));
        const json_t *value =
            json_object_get(find_kind(cell, kind), metric ? metric : "");
        if (json_is_number(value))
            table_add(table, "%.3f", json_number_value(value));
        else
            table_add(table, cell->result ? "-" : "not run");
    }
}

static void make_table(const text_grid *grid, text_table *table) {
    static const char *const controls[] = {"uniform attention", "no attention",
                                           "clustered-1"};
    memset(table, 0, sizeof *table);
    table_row(table, "kind");
    for (int i = 0; i < grid->count; i++) {
        const char *metric =
            json_string_value(json_object_get(grid->cells[i].result, "metric"));
        table_add(table, metric ? "%s, %s" : "%s", grid->cells[i].name, metric);
    }
    for (int i = 0; i < grid->job->tested_count; i++)
        add_kind(grid, grid->job->tested[i], table);
    for (int i = 0; i < 3; i++)
        add_kind(grid, controls[i], table);
    for (size_t row = 0; row < sizeof paper / sizeof *paper; row++) {
        table_row(table, paper[row].kind);
        for (int i = 0; i < grid->count; i++)
            table_add(table, "%s", paper_figure(row, grid->cells[i].name));
    }
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
    return json_pack("{s:s, s:s, s:o}", "experiment", "text", "trained",
                     grid->job->kinds[0], "tasks", object);
}

static int report(const text_grid *grid) {
    static text_table table;
    char path[TRAIN_PATH];
    json_t *object = all_results(grid);
    make_table(grid, &table);
    int code = write_table(grid, &table);
    if (code == EXIT_OK && !train_path("repro", path, grid->job->folder, REPRO_RESULTS))
        code = EXIT_USAGE;
    if (code == EXIT_OK)
        code = repro_write_json(path, object);
    if (code == EXIT_OK && grid->job->json)
        return print_json(object);
    json_decref(object);
    if (code == EXIT_OK)
        table_print(&table, grid->job->markdown, stdout);
    return code;
}

/* ---- All of them ------------------------------------------------------------------- */

/* Also again: a cell that has a result is done. */
static int read_results(text_grid *grid) {
    char path[TRAIN_PATH];
    for (int i = 0; i < grid->count; i++) {
        if (!cell_path(grid, &grid->cells[i], "/" RESULT, path))
            return EXIT_USAGE;
        if (access(path, F_OK) != 0)
            continue;
        grid->cells[i].result = load_json("repro", path);
        if (!grid->cells[i].result)
            return EXIT_BAD_INPUT;
    }
    return EXIT_OK;
}

int repro_text(repro_job *job) {
    static text_grid grid;
    grid = (text_grid){.job = job};
    int code = add_cells(&grid);
    if (code == EXIT_OK && !job->model && !job->show)
        code = complain(EXIT_USAGE, "repro",
                        "text needs --model, the folder of a BERT or RoBERTa");
    if (code == EXIT_OK)
        code = train_make_folder("repro", job->folder);
    if (code == EXIT_OK)
        code = read_results(&grid);
    for (int i = 0; i < grid.count && code == EXIT_OK && !job->show && !stop_signal();
         i++)
        if (!grid.cells[i].result)
            code = do_cell(&grid, &grid.cells[i]);
    if (code == EXIT_OK)
        code = report(&grid);
    for (int i = 0; i < grid.count; i++)
        json_decref(grid.cells[i].result);
    return code;
}
