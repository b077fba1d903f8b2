/* Tasks: where batches come from and which answers are right. A batch is a pure function
   of (configuration, split, number), so the position in the data is a number and nothing
   has to be remembered of the batches before. */
#ifndef SHOAL_MODELS_TRAINING_TASK_H
#define SHOAL_MODELS_TRAINING_TASK_H

#include "base/context.h"
#include "shoal_models.h"

/* Splits share no batch. */
typedef enum { SPLIT_TRAIN, SPLIT_VALIDATE, SPLIT_TEST } task_split;

enum { TASK_IGNORED = -1 }; /* in targets and answers: not counted here */

typedef struct {
    int64_t batch;    /* sequences */
    int64_t *offsets; /* [batch + 1] */
    int32_t *tokens;  /* [rows] */
    int32_t *targets; /* [rows]: what the loss wants there, or TASK_IGNORED */
    int32_t *answers; /* [rows]: what accuracy wants there, or TASK_IGNORED */
} task_batch;

/* What the model must be for the task. */
typedef struct {
    int64_t vocabulary, outputs, max_length;
} task_shape;

typedef struct {
    const char *name;
    shoal_train_config defaults; /* the attention is filled in by the caller */
    task_shape (*shape)(const shoal_train_config *config);
    /* Fills a batch of at most config->batch sequences of shape.max_length rows. */
    void (*make)(const shoal_train_config *config, task_split split, int64_t number,
                 task_batch *batch);
} task_kind;

/* The task of this name; the message lists them when there is none. */
shoal_status sh_task_find(shoal_context *context, const char *name,
                          const task_kind **task);

extern const task_kind sh_task_copy;

#endif
