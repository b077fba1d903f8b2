/* Arrays in a context's memory: growing, searching, freeing. */
#ifndef SHOAL_SPEECH_WORDS_GROW_H
#define SHOAL_SPEECH_WORDS_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/memory.h"

/* Makes room for `wanted` elements of the array whose address is at `array`, at least
   doubling it. Returns false if out of memory, with everything unchanged. */
static inline bool grow(shoal_context *context, void *array, int64_t *room,
                        int64_t wanted, size_t element) {
    void *block;
    if (wanted <= *room)
        return true;
    const int64_t more = 2 * *room + 256 > wanted ? 2 * *room + 256 : wanted;
    memcpy(&block, array, sizeof block);
    block = sh_resize(context, block, (size_t)more * element);
    if (!block)
        return false;
    memcpy(array, &block, sizeof block);
    *room = more;
    return true;
}

/* Index of `wanted` in the increasing list[low] to list[high - 1], or -1. */
static inline int64_t find_rising(const int32_t *list, int64_t low, int64_t high,
                                  int32_t wanted) {
    const int64_t end = high;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (list[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low < end && list[low] == wanted ? low : -1;
}

static inline void free_blocks(void *const *blocks, size_t count) {
    for (size_t i = 0; i < count; i++)
        sh_free(blocks[i]);
}

/* Frees all pointers. */
#define FREE_ALL(...)                                                                    \
    free_blocks((void *const[]){__VA_ARGS__},                                            \
                sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))

#endif
