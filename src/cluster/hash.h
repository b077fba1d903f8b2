/* Hashes of queries: bit b of query i is 1 where q_i . direction_b > 0. */
#ifndef SHOAL_CLUSTER_HASH_H
#define SHOAL_CLUSTER_HASH_H

#include "kernels/kernels.h"

/* Hashes of n queries, in blocks of HASH_BLOCK: byte p of query i is
   planes[i / HASH_BLOCK][p][i % HASH_BLOCK]. Bits past the last are 0. */
typedef struct {
    uint8_t *planes;
    int bits, words;
} hash_array;

static inline int hash_words(int bits) {
    return (bits + 63) / 64;
}

/* Bytes that the hashes of n queries take. */
static inline int64_t hash_array_size(int64_t n, int bits) {
    return (n + HASH_BLOCK - 1) / HASH_BLOCK * HASH_BLOCK * 8 * hash_words(bits);
}

static inline uint8_t *hash_block(const hash_array *hashes, int64_t block) {
    return hashes->planes + block * hashes->words * 8 * HASH_BLOCK;
}

/* Bits 64 w .. 64 w + 63 of the hash of query i. */
static inline uint64_t hash_word(const hash_array *hashes, int64_t i, int w) {
    const uint8_t *plane = hash_block(hashes, i / HASH_BLOCK) + 8 * w * HASH_BLOCK +
                           i % HASH_BLOCK;
    uint64_t word = 0;
    for (int p = 0; p < 8; p++)
        word |= (uint64_t)plane[p * HASH_BLOCK] << (8 * p);
    return word;
}

/* directions: [bits][dim], normally distributed. */
void sh_hash_directions(uint64_t seed, int bits, int64_t dim, float *directions);

/* Hashes one block of `count` queries, the first rows of q. q has `ahead` >= count rows:
   the next ones are prefetched. panel: [dim][table->panel]; scores:
   [bits][table->panel]. */
void sh_hash_queries(const kernel_table *table, const float *q, int64_t stride, int count,
                     int64_t ahead, int dim, const float *directions, hash_array *hashes,
                     int64_t block, float *panel, float *scores);

#endif
