/* Shared by the files above the tasks: the trainer (trainer.c), processes (share.c),
   configurations (config.c), checkpoints (checkpoint.c), runs and their log (run.c). */
#ifndef SHOAL_TRAIN_TRAIN_H
#define SHOAL_TRAIN_TRAIN_H

#include "train/tasks/task.h"

/* ---- Configurations (config.c) ----------------------------------------------------- */

/* Copies a configuration with the task's own size into the context's memory. */
shoal_status sh_config_copy(shoal_context *context, const shoal_train_task *task,
                            const void *config, shoal_train_config **copy);
/* The shortest decimal that reads back to the same number; "null" for NaN and
   infinities (run.c). */
const char *sh_real_text(char text[32], double value, bool is_float);
size_t sh_field_print(const shoal_train_task *task, const void *config,
                      const shoal_field *field, char *text, size_t size);
/* Conversion of a field to and from files, the only code that knows earlier spellings.
   text is NULL if the file is older than the field. */
size_t sh_field_store(const shoal_train_task *task, const void *config,
                      const shoal_field *field, char *text, size_t size);
shoal_status sh_field_restore(shoal_context *context, const shoal_train_task *task,
                              void *config, const shoal_field *field, const char *text);

/* ---- The trainer ------------------------------------------------------------------- */

struct shoal_trainer {
    const shoal_train_task *task;
    shoal_context *context;
    shoal_train_callbacks callbacks;
    shoal_transport *transport; /* NULL for a single process */
    const char *resumed;        /* folder of a resumed run, for tasks */
    shoal_train_config *config; /* complete configuration of the task */
    void *data;                 /* of the task */
    shoal_task_sizes sizes;
    shoal_model *model;
    shoal_optimizer *optimizer;
    shoal_schedule schedule;
    shoal_train_state state;
    bool wants_stop;     /* this process asks to stop */
    bool stopped;        /* a process asked to stop in the last step or validation */
    shoal_status summed; /* status of the sums that backward began */
    int64_t averaged_at; /* step at which all processes last had the same weights */
};

/* shoal_trainer_create for a run that continues in its folder; NULL for a new one. */
shoal_status sh_trainer_create(shoal_context *context, const shoal_train_task *task,
                               const void *config, const shoal_train_callbacks *callbacks,
                               shoal_transport *transport, const char *resumed,
                               shoal_trainer **trainer);

/* ---- Several processes (share.c) --------------------------------------------------- */

static inline shoal_share sh_share(const shoal_transport *transport) {
    return transport ? (shoal_share){transport->rank, transport->ranks}
                     : (shoal_share){0, 1};
}
static inline bool sh_is_first(const shoal_transport *transport) {
    return !transport || transport->rank == 0;
}
/* Opens the task's data, first in one process per machine, so that the others find its
   cached features. */
shoal_status sh_trainer_open(shoal_trainer *self);
/* Sums the counts of all processes. */
shoal_status sh_trainer_sum(shoal_trainer *self, shoal_train_counts *counts,
                            int64_t *sequences);
/* Backward pass of this process's share with sums of gradients over processes. dout
   [count] is the gradient of the mean over the share; afterwards gradients and counts
   are those of the whole batch. */
shoal_status sh_trainer_watch(shoal_trainer *self);
shoal_status sh_trainer_backward(shoal_trainer *self, const shoal_model_inputs *inputs,
                                 float *dout, int64_t count, shoal_train_counts *counts,
                                 int64_t *sequences);
/* Averages weights if the last step requires it. */
shoal_status sh_trainer_average(shoal_trainer *self);
/* Whether all processes have the same weights; between averages there is nothing to
   save. */
bool sh_trainer_may_save(const shoal_trainer *self);
/* Compares everything that must be equal in all processes before the first step. */
shoal_status sh_trainer_compare(shoal_trainer *self);
/* Broadcast from rank 0. */
shoal_status sh_tell_others(shoal_context *context, shoal_transport *transport,
                            int64_t bytes, void *values);

/* ---- Checkpoints (checkpoint.c) ---------------------------------------------------- */

/* The best model of a run, else its checkpoint; or the file itself. */
shoal_status sh_find_weights(shoal_context *context, const char *path,
                             char found[SH_PATH]);

#endif
