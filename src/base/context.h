/* The context: threads, kernel table, allocator and the last message. Errors are values:
   sh_fail() records the message and hands back the status, so a refusal is one line; TRY
   hands it on. */
#ifndef SHOAL_BASE_CONTEXT_H
#define SHOAL_BASE_CONTEXT_H

#include <pthread.h>

#include "base/export.h"
#include "shoal.h"

struct kernel_table;

/* Made in kernels/context.c. */
struct shoal_context {
    shoal_options options; /* allocate and release are never NULL here */
    int threads;
    struct thread_pool *pool; /* NULL: one thread */
    int crossover; /* options' or measured, 1 to MOST_CROSSOVER; see shoal_options */
    const struct kernel_table *kernels; /* NULL: the options were refused */
    pthread_mutex_t memory;             /* held while the allocator is called */
    float *workspace; /* [threads][...]: models/nn/products.c; NULL: nobody holds it */
    int workspace_holders;
    char message[512];
};

enum { MOST_CROSSOVER = 1 << 24 };

/* Records the message (printf style), control characters in it as '?', and returns
   status. context may be NULL. */
SHOAL_PRIVATE shoal_status sh_fail(shoal_context *context, shoal_status status,
                                   const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Options of a context of one thread whose memory is the parent's, for a task: contexts
   are not shared by threads, and an allocator is called by one at a time. In
   kernels/context.c. */
SHOAL_PRIVATE shoal_options sh_child_options(shoal_context *parent);

/* Hands the error of a call on: returns its status unless that is SHOAL_OK. */
#define TRY(call)                                                                        \
    do {                                                                                 \
        const shoal_status tried = (call);                                               \
        if (tried != SHOAL_OK)                                                           \
            return tried;                                                                \
    } while (0)

#endif
