/* Trainings from the command line: fields that the user set, and a run with its progress
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

/* What the user set, in order; later ones win. Other fields keep the task's default, or
   the checkpoint's value when a run is resumed. */
typedef struct {
    const char *command; /* for complaints */
    const char *task;    /* that, too; NULL: it is not known yet */
    const char *file;    /* what is being read; NULL: the command line */
    int count;
    struct {
        char name[32], text[SHOAL_VALUE_SIZE];
        const char *file;
    } list[TRAIN_SETTINGS];
} train_settings;

/* Each returns an exit code, after a complaint where it is not EXIT_OK. */
int settings_add(train_settings *settings, const char *name, const char *text);
/* What a field was set to last; NULL: it was not. */
const char *settings_find(const train_settings *settings, const char *name);
int settings_add_pair(train_settings *settings, const char *pair); /* "KEY=VALUE" */
/* A JSON object of fields; keys that are none are refused by name. */
int settings_add_file(train_settings *settings, const char *path);
/* Puts them into the configuration. */
int settings_apply(const train_settings *settings, shoal_context *context,
                   const shoal_train_task *task, train_config *config);

/* The configuration as a JSON object. */
json_t *train_config_json(const shoal_train_task *task, const train_config *config);
/* FOLDER/NAME; complains and returns false when it is too long. */
bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name);

typedef struct {
    const char *command; /* for complaints */
    const char *label;   /* at the beginning of the progress line; may be "" */
    const shoal_train_task *task;
    const train_settings *settings;
    train_config config; /* defaults before, what was run after */
    shoal_run_options options;
    shoal_run_result result;
    bool stopped; /* by a signal, to this process or another one; it is saved */
} train_run;

/* A run with a progress line; a signal ends it well. An exit code, after a complaint;
   EXIT_OK also when a signal ended it after a checkpoint. */
int train_go(train_run *run, shoal_context *context);

#endif
