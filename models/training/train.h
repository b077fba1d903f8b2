/* The trainer: a task, a model, an optimizer and how far they have come. */
#ifndef SHOAL_MODELS_TRAINING_TRAIN_H
#define SHOAL_MODELS_TRAINING_TRAIN_H

#include "models/nn/optimizer.h"
#include "models/nn/schedule.h"
#include "models/training/model.h"
#include "models/training/task.h"
#include "shoal_models.h"

/* All that changes while training, beside the numbers in arrays: what a checkpoint keeps.
   Batches, dropout and validation data are pure functions of the seed and these counts:
   they are also the position in the data and the state of the random numbers. */
typedef struct {
    int64_t step;         /* done */
    int64_t validations;  /* done, every validate_every steps */
    int64_t validated_at; /* step of the last one */
    int64_t perfect;      /* latest validations in a row without a mistake */
    int64_t averaged;     /* sets of weights in the average */
    schedule_state schedule;
    double seconds;
} train_state;

struct shoal_trainer {
    shoal_context *context;
    shoal_train_config config;
    const task_kind *task;
    shoal_model *model;
    optimizer_state optimizer; /* its step is state.step */
    float *averaged;           /* [arena size], NULL: no averaging */
    task_batch batch;          /* config.batch sequences */
    train_state state;
    size_t own_bytes;
};

#endif
