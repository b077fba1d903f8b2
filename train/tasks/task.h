/* Shared by tasks: messages, paths, memory, and the four built-in tasks, which use
   shoal_train.h like any other task. */
#ifndef SHOAL_TRAIN_TASKS_TASK_H
#define SHOAL_TRAIN_TASKS_TASK_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/context.h"
#include "shoal_train.h"

enum { SH_PATH = 4096 };

/* Sends a warning to the callback, if there is one; sh_warn on all processes, sh_note
   on the first. */
void sh_warn(const shoal_train_callbacks *callbacks, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void sh_note(const shoal_task_opening *opening, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline bool sh_cancelled(const shoal_train_callbacks *callbacks) {
    return callbacks->cancelled && callbacks->cancelled(callbacks->user);
}

/* FOLDER/NAME; fails if it is too long. */
shoal_status sh_path(shoal_context *context, char path[SH_PATH], const char *folder,
                     const char *name);
/* mkdir -p. */
shoal_status sh_make_folder(shoal_context *context, const char *path);
/* A JSON string with non-ASCII bytes replaced by '?' if the text is not valid UTF-8, as
   paths may be; null for NULL. */
json_t *sh_json_text(shoal_context *context, const char *text);

/* Zeroed blocks of the context's memory that are released together. */
typedef struct {
    shoal_context *context;
    struct pool_block *last;
} pool;

/* Both record a message if memory runs out. */
void *sh_pool_take(pool *from, int64_t count, size_t size);
/* Resizes array (NULL for a new one) to `wanted` elements and keeps the first
   `kept`. */
shoal_status sh_pool_resize(pool *from, void *array, int64_t kept, int64_t wanted,
                            size_t size);
/* Resizes only if *room, the current number of elements, is too small. */
static inline shoal_status sh_pool_grow(pool *from, void *array, int64_t *room,
                                        int64_t wanted, size_t size) {
    if (wanted <= *room)
        return SHOAL_OK;
    TRY(sh_pool_resize(from, array, *room, wanted, size));
    *room = wanted;
    return SHOAL_OK;
}
void sh_pool_free(pool *from);

extern const shoal_train_task sh_copy_task, sh_speech_task, sh_glue_task, sh_squad_task;

/* ---- Batches of the masked copy task (copy.c), also used by tests ----------------- */

typedef struct {
    int64_t first, count;    /* range of sequences in this process's share */
    int64_t length;          /* positions per sequence */
    int64_t *offsets;        /* [count + 1] */
    int32_t *tokens;         /* [rows] */
    int32_t *targets;        /* [rows]: target of the loss, or SHOAL_IGNORED */
    int32_t *answers;        /* [rows]: the masked symbol, or SHOAL_IGNORED */
    int32_t *masked;         /* [masked_count]: the masked rows */
    int32_t *masked_answers; /* [masked_count] */
    int64_t masked_count;
} copy_batch;

/* Allocates room for batches of `sequences`; returns the block to be released, or
   NULL. */
void *sh_copy_allocate(shoal_context *context, const shoal_copy_config *config,
                       int64_t sequences, copy_batch *batch);
/* Generates sequences first .. first + count - 1 of a batch: a pure function of its
   arguments, so that a number is the position in the data. */
void sh_copy_make(const shoal_copy_config *config, shoal_part part, int64_t number,
                  int64_t first, int64_t count, copy_batch *batch);

#endif
