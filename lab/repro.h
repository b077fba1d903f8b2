/* shoal repro: experiments of the paper, and of anybody else. An experiment is a table, a
   JSON file of cells to train and of what to show of them (docs/experiments.md); those of
   lab/experiments are in the program.

       DIR/cells/CELL/     the run of a cell: checkpoint, best model, log, result.json
       DIR/results.json    the results of all cells, curves included: a new machine that
                           has this file alone goes on from here
       DIR/calibration.json    seconds per step of cells, by --calibrate
       and the tables and pictures that the experiment asks for

   In files: the command line (repro.c), cells (repro_cells.c), their training and results
   (repro_run.c), time (repro_time.c), tables (repro_table.c), pictures (repro_draw.c). */
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
    char from[REPRO_NAME];                   /* the cell whose weights it begins with */
    char folder[REPRO_PATH], data[REPRO_PATH], dev[REPRO_PATH];
    const shoal_train_task *task;
    repro_config config; /* that is asked for */
    json_t *given;  /* texts of the fields that the table, the user and the axes set */
    json_t *facts;  /* values of the axes, and what their entries say */
    json_t *result; /* NULL: none */
    json_t *seen;   /* what tables see: facts, and the result or the log's end */
    bool missing;   /* there is no data, and nobody asked for the cell by name */
    double seconds_per_step; /* calibrated; NAN: not */
    log_curves log;          /* against hours, those of `from` included */
} repro_cell;

typedef struct {
    /* What was asked for; lists as they were spelled, NULL: the table's. */
    const char *kinds, *lengths, *tasks, *only, *evaluate;
    const char *folder, *data, *cache, *model, *isa;
    words_options words;
    int64_t threads, save_seconds;
    double minutes; /* negative: the table's */
    bool show, status, calibrate, json, markdown, skip_bad;
    json_t *given; /* fields that the user set, as texts */

    /* The experiment. */
    const char *table_path; /* of the user's own table; NULL: one of the program's */
    char name[REPRO_NAME];
    json_t *table;
    enum { OF_MILESTONES, OF_TEST, OF_EVALUATION } form; /* of a result */
    shoal_context *context;
    repro_cell *cells;                     /* the last axis varies fastest */
    int count, inner;                      /* inner: values of the last axis */
    char tested[REPRO_VALUES][REPRO_NAME]; /* kinds to evaluate with */
    int tested_count;
    int skipped, failed; /* cells of another process; whose training ended in error */
} repro_job;

/* ---- The table and its cells (repro_cells.c) --------------------------------------- */

/* word: a name of the program's tables, or a path. */
void repro_load(repro_job *job, const char *word);
void repro_make_cells(repro_job *job);
repro_cell *repro_find(const repro_job *job, const char *name);     /* NULL: none */
bool repro_is_chosen(const repro_job *job, const repro_cell *cell); /* by --only */
/* A member of an object as text; "" where there is none. */
const char *repro_text(const json_t *object, const char *member);
const char *repro_item(const json_t *list, size_t index); /* likewise */
/* FOLDER/NAME; dies where it is too long. */
const char *repro_path(char path[REPRO_PATH], const char *folder, const char *name);
json_t *repro_config_json(const shoal_train_task *task, const repro_config *config);

/* ---- Training and results (repro_run.c) -------------------------------------------- */

void repro_train(repro_job *job); /* what is missing of the chosen cells */
/* Also again: another process may have finished cells meanwhile. */
void repro_read(repro_job *job);
json_t *repro_results(const repro_job *job); /* what results.json has */
void repro_make_folder(const char *path);    /* and those above it */
void repro_write(const char *folder, const char *name, const json_t *object);
/* Whether the cell lacks nothing. */
bool repro_is_done(const repro_job *job, const repro_cell *cell);
/* Steps after which the minutes are over, by calibration; 0: only the clock tells. */
int64_t repro_budget(const repro_job *job, const repro_cell *cell);
/* The last line of the cell's log that has the word; NULL: none. */
json_t *repro_last_line(const repro_cell *cell, const char *word);

/* ---- Time (repro_time.c) ----------------------------------------------------------- */

void repro_calibrate(repro_job *job);
void repro_status(repro_job *job);

/* ---- Values and tables (repro_table.c) ------------------------------------------- */

extern const char *const repro_controls[]; /* then NULL */

/* Terms with * / + between, from left to right: numbers, paths into what is seen of the
   cell or into the table's "paper", hours(WHEN), reach(accuracy), reach(loss). A path is
   names with dots between; [NAME] is a list's element whose kind is that, or whose number
   it is, or an object's member. NAN where something is missing. */
double repro_number(const repro_job *job, const repro_cell *cell, const char *terms, ...)
    __attribute__((format(printf, 3, 4)));
/* The value at a path alone; NULL: none. */
const json_t *repro_at(const repro_job *job, const repro_cell *cell, const char *path,
                       ...) __attribute__((format(printf, 3, 4)));
/* A template with {TERMS:FORMAT} in it, where @row, @metric and @name are replaced; false
   where a value is missing. */
bool repro_fill(const repro_job *job, const repro_cell *cell, const char *format,
                const char *row, const char *metric, char text[REPRO_TEXT]);
/* All tables to stdout and to the experiment's file. */
void repro_report(const repro_job *job);
/* Rows that were evaluated: kinds, then controls; NULL past the end. */
const char *repro_row(const repro_job *job, int index);
void repro_percent(char text[32], double share); /* 99.996 % is not 100 % */

/* ---- Pictures (repro_draw.c) ------------------------------------------------------- */

void repro_draw(const repro_job *job);
/* Those of DIR/results.json (shoal plot DIR); dies where there is none. */
void repro_plot(const char *folder);

/* ---- Tables in the program (made by cmake) ----------------------------------------- */

typedef struct {
    const char *name, *json;
} repro_builtin;
extern const repro_builtin repro_builtins[]; /* then a row of zeros */
extern const char repro_commit[];            /* of the tree; "": not known */

#endif
