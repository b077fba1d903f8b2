/* shoal repro, in files: the command line (repro.c); the masked copy (repro_copy.c) with
   its heatmaps (repro_copy_plot.c); speech and lf-mmi: cells and their training
   (repro_speech.c), the paper's figures (repro_speech_paper.c), tables
   (repro_speech_report.c), pictures (repro_speech_plot.c); text (repro_text.c). */
#ifndef SHOAL_LAB_REPRO_H
#define SHOAL_LAB_REPRO_H

#include "speech_words.h"
#include "train.h"

enum {
    REPRO_KINDS = 32,
    REPRO_TESTED = 24,
    REPRO_LENGTHS = 16,
    REPRO_TASKS = 16,
    REPRO_NAME = 128
};

#define REPRO_RESULTS "results.json"

typedef struct {
    /* What was asked for. */
    const char *experiment;
    char kinds[REPRO_KINDS][REPRO_NAME]; /* speech: of cells, see repro_speech.h */
    int kind_count;
    int64_t lengths[REPRO_LENGTHS]; /* growing */
    int length_count;
    const char *folder, *isa;
    int64_t threads, save_seconds;
    train_settings settings; /* of every cell */
    bool show, json, markdown;
    /* Of speech and lf-mmi. */
    const char *data, *cache;
    words_options words;
    bool skip_bad;
    double minutes; /* of a cell's training */
    char only[REPRO_KINDS][REPRO_NAME], tested[REPRO_TESTED][REPRO_NAME];
    int only_count, tested_count; /* cells to train, kinds to evaluate with */

    /* Of text, with data, skip_bad and tested. */
    const char *model;
    char tasks[REPRO_TASKS][REPRO_NAME];
    int task_count;
    bool every_task; /* none was named: those whose data is missing are no failures */

    /* What is worked on. */
    shoal_context *context;
    json_t *results; /* copy, the file: {"cells": {"KIND/LENGTH": {...}}, ...} */
    int skipped;     /* cells that another process is training */
    int failed;      /* cells whose training ended with a complaint */
} repro_job;

/* Each trains what is missing, unless it is only to be shown, and reports. */
int repro_copy(repro_job *job);
int repro_speech(repro_job *job);
int repro_text(repro_job *job);

/* mkdir -p; complains. */
int repro_make_folder(const char *path);
/* A descriptor that keeps others out of the folder until it is closed; -1: none. */
int repro_lock(const char *path);
static inline int64_t repro_positions(int64_t length) { /* of 0w0w */
    return 2 * (length + 1);
}

/* A JSON file, whole or not at all; complains. */
int repro_write_json(const char *path, const json_t *object);

/* ---- Copy: what its pictures need (repro_copy.c) ----------------------------------- */

/* What is known of one cell. */
typedef struct {
    bool done;       /* a finished training */
    bool begun;      /* one that has been validated, but is not finished */
    double accuracy; /* on the test's batches if done, else the last validation's */
    int64_t steps, steps_limit;
    double seconds;
    bool stopped_early;
} copy_cell;

copy_cell repro_copy_cell(const repro_job *job, const char *kind, int64_t length);
/* 99.996 % is not 100 %: only all of them are. */
void repro_percent_text(char text[16], double accuracy);
int repro_copy_draw(const repro_job *job); /* copy.svg and copy.png */

#endif
