/* Memory comes from the context's allocator, aligned to cache lines. Sizes are added up
   with checks, so that a problem too large for size_t is an error and not a small block. */
#ifndef SHOAL_BASE_MEMORY_H
#define SHOAL_BASE_MEMORY_H

#include <stdbool.h>

#include "base/context.h"
#include "base/export.h"

enum { CACHE_LINE = 64 };

/* NULL when the allocator says no (the message is set). size 0 gives a valid block. */
SHOAL_PRIVATE void *sh_allocate(shoal_context *context, size_t bytes);
SHOAL_PRIVATE void sh_release(shoal_context *context, void *block); /* NULL is legal */

/* A layout adds up the parts of one block: first sizes are reserved, then the block is
   allocated once, then the same calls hand out the places.
       layout plan = {0};              // measuring
       sh_reserve(&plan, count, size);    // returns NULL
       plan = (layout){.base = block}; // placing
       place = sh_reserve(&plan, count, size); */
typedef struct {
    char *base;    /* NULL while measuring */
    size_t bytes;  /* so far, a multiple of CACHE_LINE */
    bool overflow; /* a product or sum did not fit */
} layout;

SHOAL_PRIVATE void *sh_reserve(layout *plan, int64_t count, size_t element);

/* The product of counts for reserve, which refuses it when it did not fit. */
SHOAL_PRIVATE int64_t sh_mul_checked(int64_t a, int64_t b);

#endif
