/* What the files above the tasks share: the trainer (trainer.c), processes (share.c),
   configurations (config.c), checkpoints (checkpoint.c), runs and their log (run.c). */
#ifndef SHOAL_TRAIN_TRAIN_H
#define SHOAL_TRAIN_TRAIN_H

#include "train/tasks/task.h"

/* ---- Configurations (config.c) ----------------------------------------------------- */

/* A copy of the configuration in the task's own size, of the context's memory. */
shoal_status sh_config_copy(shoal_context *context, const shoal_train_task *task,
                            const void *config, shoal_train_config **copy);
/* The shortest decimal that reads back to the same number; NaN and infinities: "null"
   (run.c). */
const char *sh_real_text(char text[32], double value, bool is_float);
size_t sh_field_print(const shoal_train_task *task, const void *config,
                      const shoal_field *field, char *text, size_t size);
/* What a file keeps of a field, and from it: the only place that knows how fields were
   spelled in the past. text NULL: the file is older than the field. */
size_t sh_field_store(const shoal_train_task *task, const void *config,
                      const shoal_field *field, char *text, size_t size);
shoal_status sh_field_restore(shoal_context *context, const shoal_train_task *task,
                              void *config, const shoal_field *field, const char *text);

/* ---- The trainer ------------------------------------------------------------------- */

struct shoal_trainer {
    const shoal_train_task *task;
    shoal_context *context;
    shoal_train_callbacks callbacks;
    shoal_transport *transport; /* NULL: alone */
    const char *resumed;        /* a run's folder, as tasks have it */
    shoal_train_config *config; /* the task's whole configuration */
    void *data;                 /* the task's */
    shoal_task_sizes sizes;
    shoal_model *model;
    shoal_optimizer *optimizer;
    shoal_schedule schedule;
    shoal_train_state state;
    bool wants_stop;     /* this process wants to end; */
    bool stopped;        /* one of them did in the last step or validation */
    shoal_status summed; /* what became of the sums that backward began */
    int64_t averaged_at; /* step whose weights are those of all processes */
};

/* shoal_trainer_create for a run that goes on in its folder; NULL: a new one. */
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
/* The task's open, in one process of a machine before the others, which then find what it
   kept (features). */
shoal_status sh_trainer_open(shoal_trainer *self);
/* The counts of all processes become one, the same everywhere. */
shoal_status sh_trainer_sum(shoal_trainer *self, shoal_train_counts *counts,
                            int64_t *sequences);
/* Backward begins the sums; shoal_model_backward of the share, whose gradient dout
   [count] is that of the mean over the share. The gradients are those of the whole batch
   afterwards, and the counts are. */
shoal_status sh_trainer_watch(shoal_trainer *self);
shoal_status sh_trainer_backward(shoal_trainer *self, const shoal_model_inputs *inputs,
                                 float *dout, int64_t count, shoal_train_counts *counts,
                                 int64_t *sequences);
/* The average, where the step just taken needs one. */
shoal_status sh_trainer_average(shoal_trainer *self);
/* Whether the weights are those of all processes: while each goes on alone there is
   nothing to save. */
bool sh_trainer_may_save(const shoal_trainer *self);
/* Compares all that processes must have in common before the first step. */
shoal_status sh_trainer_compare(shoal_trainer *self);
/* From the first process to the others. */
shoal_status sh_tell_others(shoal_context *context, shoal_transport *transport,
                            int64_t bytes, void *values);

/* ---- Checkpoints (checkpoint.c) ---------------------------------------------------- */

/* A run's best model, or else its checkpoint; or the file itself. */
shoal_status sh_find_weights(shoal_context *context, const char *path,
                             char found[SH_PATH]);

#endif
