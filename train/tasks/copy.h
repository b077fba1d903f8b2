/* The masked copy's batches, for its task and for tests. */
#ifndef SHOAL_TRAIN_TASKS_COPY_H
#define SHOAL_TRAIN_TASKS_COPY_H

#include "train/train.h"

typedef struct {
    int64_t first, count;    /* of its sequences there are these: a process's share */
    int64_t length;          /* positions of a sequence */
    int64_t *offsets;        /* [count + 1] */
    int32_t *tokens;         /* [rows] */
    int32_t *targets;        /* [rows]: what the loss wants there, or SHOAL_IGNORED */
    int32_t *answers;        /* [rows]: what was masked there, or SHOAL_IGNORED */
    int32_t *masked;         /* [masked_count]: the masked rows */
    int32_t *masked_answers; /* [masked_count] */
    int64_t masked_count;
} copy_batch;

/* Room for batches of `sequences`: the block to be released, or NULL. */
void *sh_copy_allocate(shoal_context *context, const shoal_copy_config *config,
                       int64_t sequences, copy_batch *batch);
/* Sequences first .. first + count - 1 of a batch: a pure function of its arguments, so
   that the position in the data is a number. */
void sh_copy_make(const shoal_copy_config *config, shoal_part part, int64_t number,
                  int64_t first, int64_t count, copy_batch *batch);

#endif
