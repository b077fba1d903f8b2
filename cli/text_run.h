/* A run of shoal train glue or squad, to be used. */
#ifndef SHOAL_CLI_TEXT_RUN_H
#define SHOAL_CLI_TEXT_RUN_H

#include "train/tasks/text.h"
#include "train.h"

typedef struct {
    char folder[TRAIN_PATH]; /* of config.json and the tokenizer */
    char path[TRAIN_PATH];   /* of the weights */
    bool not_best;           /* the folder has no best ones: its checkpoint's */
    train_config config;
    const glue_task *glue; /* NULL: squad */
    int64_t step;
    json_t *paths; /* where its data was */
    shoal_tokenizer *tokenizer;
    shoal_model *model; /* of no rows: look at it through a view */
} text_run;

/* path: the folder, whose best weights are taken, or a file in it. Exit code; to be
   closed in any case. */
int text_run_open(const char *command, shoal_context *context, const char *path,
                  text_run *run);
void text_run_close(text_run *run);

#endif
