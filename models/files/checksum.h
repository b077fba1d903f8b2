/* XXH64, the published 64-bit hash (xxhash.com), of bytes in memory: detects damage at
   about the speed of memory. A hash can be the seed of the next. */
#ifndef SHOAL_MODELS_FILES_CHECKSUM_H
#define SHOAL_MODELS_FILES_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/export.h"

SHOAL_PRIVATE uint64_t sh_checksum(const void *bytes, size_t size, uint64_t seed);

/* An incremental hash of words, for keys of caches and their small files. */
static inline uint64_t mix_word(uint64_t sum, uint64_t word) {
    sum = (sum ^ word) * 0xd6e8feb86659fd93u;
    return sum ^ (sum >> 32);
}

/* The same for `size` bytes, a multiple of 4, in words of 4. */
static inline uint64_t mix_words(uint64_t sum, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i += 4) {
        uint32_t word;
        memcpy(&word, (const char *)bytes + i, sizeof word);
        sum = mix_word(sum, word);
    }
    return sum;
}

#endif
