/* A run of glue or squad as its evaluation sees it. */
#ifndef SHOAL_TRAIN_FINETUNED_H
#define SHOAL_TRAIN_FINETUNED_H

#include "train/tasks/text.h"
#include "train/train.h"

struct shoal_finetuned {
    shoal_context *context;
    char folder[SH_PATH]; /* of config.json and the tokenizer */
    char path[SH_PATH];   /* of the weights */
    const char *given;    /* which of the two was opened */
    shoal_finetuned_info info;
    const glue_task *glue; /* NULL: squad */
    union {
        shoal_train_config train;
        shoal_glue_config glue;
        shoal_squad_config squad;
    } config;
    int64_t stride, max_answer; /* squad */
    json_t *paths;              /* where its data was */
    shoal_tokenizer *tokenizer;
    shoal_model *model; /* of no rows; */
    shoal_model *view;  /* of one sequence: NULL until one is read */
    shoal_attention attention;
    /* of one call */
    text_set windows;
    text_batch batch;
    char *answer;
};

text_reader sh_finetuned_reader(const shoal_finetuned *model);

#endif
