/* XXH64, the published 64-bit hash (xxhash.com), of bytes in memory: it finds damage, at
   about the speed of memory. A hash is the seed of the next. */
#ifndef SHOAL_MODELS_FILES_CHECKSUM_H
#define SHOAL_MODELS_FILES_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#include "base/export.h"

SHOAL_PRIVATE uint64_t sh_checksum(const void *bytes, size_t size, uint64_t seed);

#endif
