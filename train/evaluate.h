/* Evaluations: rows (evaluate.c), recognisers (evaluate_speech.c), text models
   (finetuned.c). */
#ifndef SHOAL_TRAIN_EVALUATE_H
#define SHOAL_TRAIN_EVALUATE_H

#include "train/train.h"

enum { MOST_KINDS = 32, MOST_ROWS = MOST_KINDS + 3, KIND_NAME = 128 };

/* Zero queries give all keys the same score; a zero output projection removes the
   attention. */
typedef enum { AS_TRAINED, UNIFORM, NO_ATTENTION } row_weights;

typedef struct {
    char name[KIND_NAME];
    shoal_attention kind;
    row_weights weights;
    shoal_evaluation_row row;
    shoal_evaluation_score scores[2];
} eval_row;

struct shoal_evaluation {
    shoal_context *context;
    shoal_evaluation_options options;
    shoal_evaluation_info info;
    char path[SH_PATH], trained[KIND_NAME];
    eval_row rows[MOST_ROWS];
    int count;
    char *json, *predictions;
    bool output_failed; /* SHOAL_IO is of a file that was written, not of one read */
};

/* Creates the rows, once the kind used in training is known. */
shoal_status sh_eval_rows(shoal_evaluation *e, const shoal_attention *trained);
/* Runs a view of the model with the row's kind and the change of a control. If run is
   NULL, only checks whether the weights can be used. */
typedef shoal_status eval_run(void *user, shoal_model *view, eval_row *row);
shoal_status sh_eval_row(shoal_evaluation *e, shoal_model *model, int64_t batch,
                         int64_t rows, eval_row *row, eval_run *run, void *user);
/* Reports progress; returns SHOAL_CANCELLED if the callback asks for it. */
shoal_status sh_eval_progress(shoal_evaluation *e, const char *what, int64_t done,
                              int64_t all);
/* Stores the object as text, with the configuration, and frees it. */
shoal_status sh_eval_keep_json(shoal_evaluation *e, json_t *object);
json_t *sh_eval_config(const shoal_train_task *task, const void *config);
/* NaN and infinities become null, since JSON has neither. */
json_t *sh_json_number(double value);

shoal_status sh_evaluate_text(shoal_evaluation *e, const char *path);
shoal_status sh_evaluate_speech(shoal_evaluation *e, const char *path);

#endif
