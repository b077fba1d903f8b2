/* Arrays that grow, in malloc's memory. */
#ifndef SHOAL_SPEECH_WORDS_GROW_H
#define SHOAL_SPEECH_WORDS_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Room for `wanted` elements of the array whose address lies at `array`: twice as many as
   there were, and some. false: out of memory, and all is as it was. */
static inline bool grow(void *array, int64_t *room, int64_t wanted, size_t element) {
    void *block;
    if (wanted <= *room)
        return true;
    const int64_t more = 2 * *room + 256 > wanted ? 2 * *room + 256 : wanted;
    memcpy(&block, array, sizeof block);
    block = realloc(block, (size_t)more * element);
    if (!block)
        return false;
    memcpy(array, &block, sizeof block);
    *room = more;
    return true;
}

#endif
