/* shoal repro copy: the grid of the masked copy task, in files: the command line
   (repro.c), cells and their results (repro_grid.c), tables (repro_report.c) and heatmaps
   (repro_plot.c). */
#ifndef SHOAL_CLI_REPRO_H
#define SHOAL_CLI_REPRO_H

#include <jansson.h>
#include <stdbool.h>

#include "train.h"

enum { REPRO_KINDS = 32, REPRO_LENGTHS = 16, REPRO_NAME = 128 };

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

    /* What is worked on. */
    shoal_context *context;
    json_t *results; /* the file: {"cells": {"KIND/LENGTH": {...}}, ...} */
    int skipped;     /* cells that another process is training */
    int failed;      /* cells whose training ended with a complaint */
} repro_job;

/* ---- Cells (repro_grid.c) ---------------------------------------------------------- */

/* Each returns an exit code, after a complaint where it is not EXIT_OK. */
int repro_load(repro_job *job);
/* Trains what is not there yet, the shortest sequences first. */
int repro_train(repro_job *job);
repro_cell repro_cell_of(const repro_job *job, const char *kind, int64_t length);

/* ---- Tables and pictures ----------------------------------------------------------- */

void repro_print(const repro_job *job);
void repro_print_markdown(const repro_job *job);
int repro_print_json(const repro_job *job);
/* FOLDER/copy.svg and copy.png. */
int repro_write_pictures(const repro_job *job);

#endif
