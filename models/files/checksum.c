#include "models/files/checksum.h"

#include <string.h>

static const uint64_t p1 = 0x9e3779b185ebca87u, p2 = 0xc2b2ae3d27d4eb4fu,
                      p3 = 0x165667b19e3779f9u, p4 = 0x85ebca77c2b2ae63u,
                      p5 = 0x27d4eb2f165667c5u;

static uint64_t rotate(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

static uint64_t word64(const unsigned char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static uint64_t take_word(uint64_t lane, uint64_t word) {
    return rotate(lane + word * p2, 31) * p1;
}

/* Four lanes in parallel over all complete blocks of 32 bytes, folded into one. */
static uint64_t hash_blocks(const unsigned char *bytes, size_t blocks, uint64_t seed) {
    uint64_t lanes[4] = {seed + p1 + p2, seed + p2, seed, seed - p1};
    for (size_t block = 0; block < blocks; block++)
        for (int i = 0; i < 4; i++, bytes += 8)
            lanes[i] = take_word(lanes[i], word64(bytes));
    uint64_t hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) +
                    rotate(lanes[3], 18);
    for (int i = 0; i < 4; i++)
        hash = (hash ^ take_word(0, lanes[i])) * p1 + p4;
    return hash;
}

uint64_t sh_checksum(const void *bytes, size_t size, uint64_t seed) {
    const unsigned char *at = bytes;
    const size_t blocks = size / 32;
    uint64_t hash = blocks > 0 ? hash_blocks(at, blocks, seed) : seed + p5;
    size_t left = size % 32;
    at += size - left;
    hash += size;
    for (; left >= 8; left -= 8, at += 8)
        hash = rotate(hash ^ take_word(0, word64(at)), 27) * p1 + p4;
    for (; left >= 4; left -= 4, at += 4)
        hash = rotate(hash ^ ((uint64_t)at[0] | (uint64_t)at[1] << 8 |
                              (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24) *
                                 p1,
                      23) *
                   p2 +
               p3;
    for (; left > 0; left--, at++)
        hash = rotate(hash ^ *at * p5, 11) * p1;
    hash = (hash ^ hash >> 33) * p2;
    hash = (hash ^ hash >> 29) * p3;
    return hash ^ hash >> 32;
}
