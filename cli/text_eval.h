/* shoal eval for models of text. */
#ifndef SHOAL_CLI_TEXT_EVAL_H
#define SHOAL_CLI_TEXT_EVAL_H

#include "controls.h"
#include "train.h"

typedef struct {
    const char *path;        /* a run or a file */
    const char *data;        /* GLUE's folder or SQuAD's dev.json; NULL: the training's */
    const char *predictions; /* a file for what the first row predicts; or NULL */
    bool skip_bad, controls, json;
    int kinds; /* 0: the one that was trained */
    char (*names)[EVAL_NAME];
    json_t **object; /* where the JSON object goes in place of being printed; or NULL */
} text_eval_job;

/* An exit code; prints the table or the JSON object, or hands the latter over. */
int text_eval(const text_eval_job *job, shoal_context *context);

#endif
