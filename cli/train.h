/* Training from the command line: fields that the user set, and a run with a progress
   line. `shoal train` is one run, `shoal repro` is many. */
#ifndef SHOAL_CLI_TRAIN_H
#define SHOAL_CLI_TRAIN_H

#include <jansson.h>
#include <stdbool.h>

#include <shoal_train.h>

#include "ranks.h"

enum { TRAIN_PATH = 4096, TRAIN_SETTINGS = 64 };

/* A configuration of any task. */
typedef union {
    shoal_train_config train;
    shoal_copy_config copy;
    shoal_speech_train_config speech;
    shoal_glue_config glue;
    shoal_squad_config squad;
} train_config;

/* Fields that the user set, in order; later ones win. Other fields keep the default of
   the task, or the checkpoint's value when a run is resumed. */
typedef struct {
    const char *command; /* for messages */
    const char *task;    /* for messages; NULL if not known yet */
    const char *file;    /* the file being read; NULL for the command line */
    int count;
    struct {
        char name[32], text[SHOAL_VALUE_SIZE];
        const char *file;
    } list[TRAIN_SETTINGS];
} train_settings;

/* Each returns an exit code, after a message if it is not EXIT_OK. */
int settings_add(train_settings *settings, const char *name, const char *text);
/* Last value of a field; NULL if it was not set. */
const char *settings_find(const train_settings *settings, const char *name);
int settings_add_pair(train_settings *settings, const char *pair); /* "KEY=VALUE" */
/* Adds the members of a JSON object; unknown keys are rejected by name. */
int settings_add_file(train_settings *settings, const char *path);
/* Stores the settings in the configuration. */
int settings_apply(const train_settings *settings, shoal_context *context,
                   const shoal_train_task *task, train_config *config);

/* The configuration as a JSON object. */
json_t *train_config_json(const shoal_train_task *task, const train_config *config);
/* FOLDER/NAME; prints a message and returns false if it is too long. */
bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name);

typedef struct {
    const char *command; /* for messages */
    const char *label;   /* start of the progress line; may be "" */
    const shoal_train_task *task;
    const train_settings *settings;
    train_config config; /* in: defaults; out: the configuration that was used */
    shoal_run_options options;
    shoal_run_result result;
    bool stopped; /* by a signal to any process, after saving */
} train_run;

/* Trains with a progress line; a signal ends the run cleanly. Returns an exit code,
   after a message if it is not EXIT_OK; EXIT_OK also if a signal ended the run after a
   checkpoint. */
int train_go(train_run *run, shoal_context *context);

#endif
