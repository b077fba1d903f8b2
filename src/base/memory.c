#include "base/memory.h"

#include <string.h>

/* The caller's block is only malloc-aligned: shift it to a cache line and keep the
   original pointer in the word before. */
void *sh_allocate(shoal_context *context, size_t bytes) {
    const size_t extra = CACHE_LINE + sizeof(void *);
    char *block = NULL;
    if (bytes <= SIZE_MAX - extra)
        block = context->options.allocate(context->options.user, bytes + extra);
    if (!block) {
        sh_fail(context, SHOAL_NO_MEMORY, "out of memory: could not allocate %zu bytes",
                bytes);
        return NULL;
    }
    uintptr_t aligned = ((uintptr_t)block + extra) & ~(uintptr_t)(CACHE_LINE - 1);
    char *place = block + (aligned - (uintptr_t)block);
    memcpy(place - sizeof(void *), &block, sizeof block);
    return place;
}

void sh_release(shoal_context *context, void *block) {
    if (!block)
        return;
    void *original;
    memcpy(&original, (char *)block - sizeof(void *), sizeof original);
    context->options.release(context->options.user, original);
}

void *sh_reserve(block_layout *block, int64_t count, size_t element) {
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, element, &bytes) ||
        bytes > SIZE_MAX / 2 - block->bytes - CACHE_LINE) {
        block->overflow = true;
        return NULL;
    }
    void *place = block->base ? block->base + block->bytes : NULL;
    block->bytes += (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return place;
}

void *sh_allocate_parts(shoal_context *context, place_function *place, void *argument,
                        size_t *bytes) {
    block_layout block = {0};
    place(argument, &block);
    if (block.overflow) {
        sh_fail(context, SHOAL_NO_MEMORY,
                "out of memory: what it takes does not fit the address space");
        return NULL;
    }
    if (bytes)
        *bytes = block.bytes;
    block = (block_layout){.base = sh_allocate(context, block.bytes)};
    if (block.base)
        place(argument, &block);
    return block.base;
}

int64_t sh_mul_checked(int64_t a, int64_t b) {
    int64_t product;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product) ? -1 : product;
}
