/* Memory comes from the context's allocator, aligned to cache lines. Sizes are computed
   with overflow checks, so that a problem too large for size_t is an error, not a small
   block. Tasks may allocate: the allocator is called by one thread at a time. */
#ifndef SHOAL_BASE_MEMORY_H
#define SHOAL_BASE_MEMORY_H

#include <stdbool.h>

#include "base/context.h"
#include "base/export.h"

enum { CACHE_LINE = 64 };

/* NULL if the allocator fails (the message is set). size 0 gives a valid block. A NULL
   context uses malloc. */
SHOAL_PRIVATE void *sh_allocate(shoal_context *context, size_t bytes);
SHOAL_PRIVATE void sh_release(shoal_context *context, void *block); /* NULL is allowed */

/* The same: blocks know their context. */
SHOAL_PRIVATE void sh_free(void *block); /* NULL is legal */

/* As calloc, realloc, strdup and asprintf, in the context's memory. sh_resize may be
   given a NULL block; where it returns NULL, the block is as it was. */
SHOAL_PRIVATE void *sh_allocate_zeros(shoal_context *context, size_t count, size_t size);
SHOAL_PRIVATE void *sh_resize(shoal_context *context, void *block, size_t bytes);
SHOAL_PRIVATE char *sh_copy_text(shoal_context *context, const char *text);
SHOAL_PRIVATE char *sh_print_text(shoal_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The C library's memory, as the functions of an allocator. */
void *sh_plain_allocate(void *user, size_t bytes);
void sh_plain_release(void *user, void *block);

/* Layout of one block of memory in parts. */
typedef struct {
    char *base;    /* NULL while measuring */
    size_t bytes;  /* so far, a multiple of CACHE_LINE */
    bool overflow; /* a product or sum did not fit */
} block_layout;

/* The next part of the block, `count` elements; NULL while measuring. */
SHOAL_PRIVATE void *sh_reserve(block_layout *block, int64_t count, size_t element);

/* Reserves all parts and stores their addresses. */
typedef void place_function(void *argument, block_layout *block);

/* Calls place(argument, ...) to measure, allocates one block, and calls it again to
   assign the parts. Returns the block, which begins with the first part, and its size
   if bytes is not NULL; NULL if out of memory (the message is set). */
SHOAL_PRIVATE void *sh_allocate_parts(shoal_context *context, place_function *place,
                                      void *argument, size_t *bytes);

/* The product of counts for sh_reserve, which detects an overflow. */
SHOAL_PRIVATE int64_t sh_mul_checked(int64_t a, int64_t b);

/* A part of [rows][columns] floats. */
static inline float *reserve_floats(block_layout *block, int64_t rows, int64_t columns) {
    return sh_reserve(block, sh_mul_checked(rows, columns), sizeof(float));
}

#endif
