/* Memory comes from the context's allocator, aligned to cache lines. Sizes are added up
   with checks, so that a problem too large for size_t is an error and not a small block. */
#ifndef SHOAL_BASE_MEMORY_H
#define SHOAL_BASE_MEMORY_H

#include <stdbool.h>

#include "base/context.h"

enum { CACHE_LINE = 64 };

/* NULL when the allocator says no (the message is set). size 0 gives a valid block. */
void *allocate(shoal_context *context, size_t bytes);
void release(shoal_context *context, void *block); /* NULL is legal */

/* A layout adds up the parts of one block: first sizes are reserved, then the block is
   allocated once, then the same calls hand out the places.
       layout plan = {0};              // measuring
       reserve(&plan, count, size);    // returns NULL
       plan = (layout){.base = block}; // placing
       place = reserve(&plan, count, size); */
typedef struct {
    char *base;    /* NULL while measuring */
    size_t bytes;  /* so far, a multiple of CACHE_LINE */
    bool overflow; /* a product or sum did not fit */
} layout;

void *reserve(layout *plan, int64_t count, size_t element);

/* The product of counts for reserve, which refuses it when it did not fit. */
int64_t times(int64_t a, int64_t b);

#endif
