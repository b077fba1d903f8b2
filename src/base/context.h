/* The context: threads, kernel table, allocator and the last message. Errors are
   values: sh_fail() records the message and returns the status, so that an error is one
   line; TRY propagates it. */
#ifndef SHOAL_BASE_CONTEXT_H
#define SHOAL_BASE_CONTEXT_H

#include <pthread.h>

#include "base/export.h"
#include "shoal.h"

struct kernel_table;

/* Created in kernels/context.c. */
struct shoal_context {
    shoal_options options; /* allocate and release are never NULL here */
    int threads;
    struct thread_pool *pool; /* NULL for one thread */
    int crossover;            /* from the options or measured, 1 to MOST_CROSSOVER; see
                      shoal_options */
    const struct kernel_table *kernels; /* NULL if the options were invalid */
    pthread_mutex_t memory;             /* held while the allocator is called */
    float *workspace; /* [threads][...]: models/nn/products.c; NULL: nobody holds it */
    int workspace_holders;
    char message[512];
};

enum { MOST_CROSSOVER = 1 << 24 };

/* Records the message (printf style) with control characters replaced by '?', and
   returns status. context may be NULL. */
SHOAL_PRIVATE shoal_status sh_fail(shoal_context *context, shoal_status status,
                                   const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Options of a context of one thread whose memory is the parent's, for a task: contexts
   are not shared by threads, and an allocator is called by one at a time. In
   kernels/context.c. */
SHOAL_PRIVATE shoal_options sh_child_options(shoal_context *parent);

/* Copies a caller's struct, which begins with its size, over the defaults in known
   [bytes], by the rule in shoal.h. given may be NULL: the defaults stay. */
SHOAL_PRIVATE shoal_status sh_read_struct(shoal_context *context, const char *name,
                                          const void *given, void *known, size_t bytes);
#define READ_STRUCT(context, type, given, known)                                         \
    sh_read_struct(context, #type, (const type *)(given), (type *)(known), sizeof(type))

/* Writes defaults, known [bytes], to a caller's struct of `size` bytes that begins with
   its size. */
SHOAL_PRIVATE void sh_write_struct(void *to, size_t size, const void *known,
                                   size_t bytes);

/* Hands the error of a call on: returns its status unless that is SHOAL_OK. */
#define TRY(call)                                                                        \
    do {                                                                                 \
        const shoal_status tried = (call);                                               \
        if (tried != SHOAL_OK)                                                           \
            return tried;                                                                \
    } while (0)

#endif
