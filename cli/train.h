/* Training from the command line: settings as text (train_settings.c), the log
   (train_log.c), one run from wherever it is to its end (train_run.c). `shoal train` is
   one run, `shoal repro` is many. */
#ifndef SHOAL_CLI_TRAIN_H
#define SHOAL_CLI_TRAIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "shoal.h"
#include "shoal_models.h"

enum { TRAIN_PATH = 4096, TRAIN_VALUE = 160, TRAIN_SETTINGS = 64 };

/* ---- Settings (train_settings.c) ------------------------------------------------- */

/* What the user said, in order; later ones win. Fields that nobody named keep the task's
   default, or the checkpoint's value when a run is resumed. */
typedef struct {
    const char *command; /* for complaints */
    const char *file;    /* what is being read; NULL: the command line */
    int count;
    struct {
        char name[32], text[TRAIN_VALUE];
        const char *file;
    } said[TRAIN_SETTINGS];
} train_settings;

/* Each returns an exit code, after a complaint where it is not EXIT_OK. */
int train_say(train_settings *settings, const char *name, const char *text);
int train_say_pair(train_settings *settings, const char *pair); /* "KEY=VALUE" */
/* A JSON object of fields; keys that are none are refused by name. */
int train_say_file(train_settings *settings, const char *path);
/* Says every field as the configuration has it, and nothing else. */
int train_say_all(train_settings *settings, const shoal_train_config *config);
/* Puts what was said into the configuration. */
int train_apply(const train_settings *settings, shoal_context *context,
                shoal_train_config *config);

/* All fields as one JSON object: numbers, booleans and strings. */
json_t *train_config_json(const shoal_train_config *config);

/* ---- The log (train_log.c) ------------------------------------------------------- */

/* One JSON object per line: {"config": ...} first, then a line per step and one per
   validation, each flushed as it is written. */
typedef struct {
    FILE *file;
    char path[TRAIN_PATH];
} train_log;

/* Opens the log for appending, after cutting off what is later than the progress: a
   resumed run writes those lines again. A new log begins with the configuration. */
int train_log_open(train_log *log, const char *command, const char *path,
                   const shoal_train_config *config,
                   const shoal_train_progress *progress);
bool train_log_step(train_log *log, int64_t number, const shoal_train_step *step,
                    double seconds);
bool train_log_validation(train_log *log, int64_t number, const shoal_score *score,
                          double seconds);
bool train_log_sync(train_log *log); /* on disk when it returns */
void train_log_close(train_log *log);
/* The last validation's line of the log at `path`, to be released; NULL: none. */
json_t *train_log_last_validation(const char *path);

/* ---- Runs (train_run.c) ---------------------------------------------------------- */

typedef struct {
    const char *command; /* for complaints */
    const char *label;   /* at the beginning of the progress line; may be "" */
    const char *folder;  /* of checkpoint.safetensors and log.jsonl; made if missing */
    double save_seconds; /* between checkpoints; 0: after every step */
    bool resume;         /* go on if there is a checkpoint */
    const train_settings *settings;
    shoal_train_config config; /* defaults before, what was run after */

    shoal_train_progress progress; /* at the end */
    shoal_train_step last_step;    /* the last one of this run, if any */
    shoal_score validation;        /* the last one of this run */
    shoal_score test;              /* `test_batches` batches at the end, if finished */
    bool validated, stepped, tested;
    bool busy; /* somebody else is training in this folder: nothing was done */
    int64_t test_batches;
    double sequences_per_second; /* of this run; NAN: too short to say */
} train_run;

/* Trains until finished or interrupted; the last thing is a checkpoint. EXIT_OK also when
   a signal ended it: stop_signal tells. */
int train_go(train_run *run, shoal_context *context);

/* FOLDER/NAME; complains and returns false when it is too long. */
bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name);
/* mkdir -p. */
int train_make_folder(const char *command, const char *path);
/* A descriptor that keeps others out of the folder until it is closed, or -1 with errno:
   EWOULDBLOCK where somebody is in there and `wait` is not set. */
int train_lock_folder(const char *path, bool wait);

#define TRAIN_CHECKPOINT "checkpoint.safetensors"
#define TRAIN_LOG "log.jsonl"

#endif
