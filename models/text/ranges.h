/* Sets of characters as sorted ranges. */
#ifndef SHOAL_MODELS_TEXT_RANGES_H
#define SHOAL_MODELS_TEXT_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t first, last;
} range;

static inline bool within(const range *ranges, size_t count, uint32_t code) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && code >= ranges[low].first;
}

#define WITHIN(ranges, code) within(ranges, sizeof ranges / sizeof *ranges, code)

#endif
