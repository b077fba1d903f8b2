/* shoal repro: experiments of the paper and your own. An experiment is a table, a
   JSON file that lists the cells to train and what to show of them
   (docs/experiments.md); the tables in lab/experiments are compiled into the
   program.

       DIR/cells/CELL/     the run of a cell: checkpoint, best model, log, result.json
       DIR/results.json    the results of all cells, curves included: this file alone is
                           enough to continue on another machine
       DIR/calibration.json    seconds per step of cells, by --calibrate
       and the tables and pictures of the experiment

   By file: the command line (repro.c), cells (repro_cells.c), training and results
   (repro_run.c), time (repro_time.c), tables (repro_table.c), pictures
   (repro_draw.c). */
#ifndef SHOAL_LAB_REPRO_H
#define SHOAL_LAB_REPRO_H

#include "lab.h"
#include "log_curves.h"

enum { REPRO_NAME = 128, REPRO_VALUES = 32, REPRO_PATH = 4096, REPRO_TEXT = 1024 };
#define REPRO_CALIBRATION "calibration.json"
#define REPRO_RESULTS "results.json"

/* A configuration of any task. */
typedef union {
    shoal_train_config train;
    shoal_copy_config copy;
    shoal_speech_train_config speech;
    shoal_glue_config glue;
    shoal_squad_config squad;
} repro_config;

typedef struct {
    char name[REPRO_NAME], kind[REPRO_NAME]; /* the kind in its shortest spelling */
    char from[REPRO_NAME];                   /* the cell whose weights it starts with */
    char folder[REPRO_PATH], data[REPRO_PATH], dev[REPRO_PATH];
    const shoal_train_task *task;
    repro_config config; /* as requested */
    json_t *given;       /* texts of the fields set by the table, the user and the axes */
    json_t *facts;       /* values of the axes, and members of their entries */
    json_t *result;      /* NULL if there is none */
    json_t *seen; /* visible to tables: facts, and the result or the end of the log */
    bool missing; /* the data is missing, and the cell was not named by the user */
    double seconds_per_step; /* calibrated, otherwise NAN */
    log_curves log;          /* against hours, including those of `from` */
} repro_cell;

typedef struct {
    /* Options; lists as given, NULL for those of the table. */
    const char *kinds, *lengths, *tasks, *only, *evaluate;
    const char *folder, *data, *cache, *model, *isa;
    words_options words;
    int64_t threads, save_seconds;
    double minutes; /* negative for that of the table */
    bool show, status, calibrate, json, markdown, skip_bad;
    json_t *given; /* fields set by the user, as texts */

    /* The experiment. */
    const char *table_path; /* user's table; NULL for a built-in one */
    char name[REPRO_NAME];
    json_t *table;
    enum { OF_MILESTONES, OF_TEST, OF_EVALUATION } form; /* kind of result */
    shoal_context *context;
    repro_cell *cells;                     /* the last axis varies fastest */
    int count, inner;                      /* inner: number of values of the last axis */
    char tested[REPRO_VALUES][REPRO_NAME]; /* kinds to evaluate with */
    int tested_count;
    int skipped, failed; /* cells of other processes; cells whose training failed */
} repro_job;

/* ---- The table and its cells (repro_cells.c) --------------------------------------- */

/* word: name of a built-in table, or a path. */
void repro_load(repro_job *job, const char *word);
void repro_make_cells(repro_job *job);
repro_cell *repro_find(const repro_job *job, const char *name);     /* or NULL */
bool repro_is_chosen(const repro_job *job, const repro_cell *cell); /* by --only */
/* A member of an object as text; "" if there is none. */
const char *repro_text(const json_t *object, const char *member);
const char *repro_item(const json_t *list, size_t index); /* "" if there is none */
/* FOLDER/NAME; exits if it is too long. */
const char *repro_path(char path[REPRO_PATH], const char *folder, const char *name);
json_t *repro_config_json(const shoal_train_task *task, const repro_config *config);

/* ---- Training and results (repro_run.c) -------------------------------------------- */

void repro_train(repro_job *job); /* trains the selected cells as far as needed */
/* Reads results; called again because other processes may finish cells. */
void repro_read(repro_job *job);
json_t *repro_results(const repro_job *job); /* contents of results.json */
void repro_make_folder(const char *path);    /* with its parents */
void repro_write(const char *folder, const char *name, const json_t *object);
/* Whether the cell is complete. */
bool repro_is_done(const repro_job *job, const repro_cell *cell);
/* Steps in the given minutes, by calibration; 0 if only the clock decides. */
int64_t repro_budget(const repro_job *job, const repro_cell *cell);
/* The last line of the cell's log that contains the word, or NULL. */
json_t *repro_last_line(const repro_cell *cell, const char *word);

/* ---- Time (repro_time.c) ----------------------------------------------------------- */

void repro_calibrate(repro_job *job);
void repro_status(repro_job *job);

/* ---- Values and tables (repro_table.c) ------------------------------------------- */

extern const char *const repro_controls[]; /* NULL-terminated */

/* Evaluates terms joined by * / +, from left to right: numbers, paths into the visible
   values of the cell or into the table's "paper", hours(WHEN), reach(accuracy),
   reach(loss). A path is names separated by dots; [NAME] is the list element whose kind
   or number it is, or an object's member. NAN if something is missing. */
double repro_number(const repro_job *job, const repro_cell *cell, const char *terms, ...)
    __attribute__((format(printf, 3, 4)));
/* The value at a path, or NULL. */
const json_t *repro_at(const repro_job *job, const repro_cell *cell, const char *path,
                       ...) __attribute__((format(printf, 3, 4)));
/* Fills a template with {TERMS:FORMAT}, in which @row, @metric and @name are replaced;
   false if a value is missing. */
bool repro_fill(const repro_job *job, const repro_cell *cell, const char *format,
                const char *row, const char *metric, char text[REPRO_TEXT]);
/* Prints all tables to stdout and writes the experiment's file. */
void repro_report(const repro_job *job);
/* Evaluated rows: kinds, then controls; NULL past the end. */
const char *repro_row(const repro_job *job, int index);
void repro_percent(char text[32], double share); /* 99.996 % is not rounded to 100 % */

/* ---- Pictures (repro_draw.c) ------------------------------------------------------- */

void repro_draw(const repro_job *job);
/* Draws the pictures of DIR/results.json (shoal plot DIR); exits if there is none. */
void repro_plot(const char *folder);

/* ---- Built-in tables (generated by cmake) ----------------------------------------- */

typedef struct {
    const char *name, *json;
} repro_builtin;
extern const repro_builtin repro_builtins[]; /* terminated by a row of zeros */
extern const char repro_commit[];            /* of the source tree; "" if unknown */

#endif
