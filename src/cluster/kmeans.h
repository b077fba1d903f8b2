/* K-Means on hashes with the Hamming distance.
 *
 * Start: the hashes of C distinct queries, a seeded draw. Then, L times: every hash goes
 * to the nearest centre (the first of equals); a centre's bit becomes the majority of its
 * members' bits (a tie keeps it). After each assignment but the last, a centre without
 * members is moved, in order of the centres, to the hash that lies farthest from its own
 * centre (the first of equals; each hash once; one at distance 0 is not taken). Stops
 * early when nothing moves. All of it is integers, so no thread count and no instruction
 * set can change the result; tests/core/test_cluster.c has the plain loop that it must
 * equal.
 *
 * Most centres soon stop changing, and that bounds the search exactly. Order pairs
 * (distance, centre) by distance, then centre; a query's centre has the least pair. While
 * its own centre is unchanged or has come no farther, the unchanged centres still lose to
 * it, and only changed ones need a look. Queries whose centre went away from them are
 * collected and compared with all centres. */
#ifndef SHOAL_CLUSTER_KMEANS_H
#define SHOAL_CLUSTER_KMEANS_H

#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

/* ---- Hashes: bit b of query i is 1 where q_i . direction_b > 0 --------------------- */

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
   the next ones are prefetched. panel: [dim][kernels->panel]; scores:
   [bits][kernels->panel]. */
void sh_hash_queries(const kernel_table *kernels, const float *q, int64_t stride,
                     int count, int64_t ahead, int dim, const float *directions,
                     hash_array *hashes, int64_t block, float *panel, float *scores);

/* ---- K-Means ----------------------------------------------------------------------- */

/* One thread's share of the counts: members with a bit that came to each centre, less
   those that left. W words, so 64 W
   bits and 16 W nibbles in a hash. Threads write to theirs all the time: none may share a
   cache line. */
typedef struct {
    _Alignas(CACHE_LINE) int16_t *net; /* [C][64 W]: came, less left, since a flush */
    int16_t *moves;              /* [C]: hashes that came or left, since the last flush */
    int32_t *size_change;        /* [C] */
    int32_t *change;             /* [C][64 W]: what was flushed */
    uint8_t *flushed;            /* [C]: whether anything was */
    const void *owner;           /* kmeans_work whose counts these are, or NULL */
    int round;                   /* of that work, when the thread last had a task */
    uint64_t *centres;           /* [C][W]: those that its tables are of */
    uint8_t *tables;             /* [C][16 W][16] */
    uint8_t *changed_tables;     /* [changed_count][16 W][16] */
    uint8_t *nibbles;            /* [16 W][HASH_BLOCK] */
    uint8_t *planes;             /* [8 W][HASH_BLOCK]: hashes of those that wait */
    int32_t waiting[HASH_BLOCK]; /* queries that need a look at all centres */
    int waiting_count;
} kmeans_tally;

typedef struct {
    int clusters, words;
    uint64_t *centres; /* [C][W] */
    uint8_t *changed;  /* [C]: 1 where the centre is not what it was an iteration ago */
    int32_t *changed_list; /* [changed_count]: which those are, ascending */
    int changed_count;
    int round;           /* counts the assignments */
    int32_t *bit_count;  /* [C][64 W]: members that have the bit */
    int32_t *sizes;      /* [C] */
    int32_t *change;     /* [C][kmeans_counters]: of bit_count, and of the size */
    int32_t *starts;     /* [C]: queries that centres were taken from */
    uint64_t *farthest;  /* [C][kmeans_far_words]: distance and query, so that the one to
                             take first is the greatest; and its hash */
    uint8_t *distances;  /* [n, whole blocks]: of every query from its centre */
    kmeans_tally *tally; /* [threads], shared by all that run side by side */
} kmeans_work;

static inline int64_t kmeans_counters(int words) {
    return 64 * words + 1;
}

static inline int64_t kmeans_far_words(int words) {
    return 1 + words;
}

/* For up to n queries; the tallies are placed apart, one for each thread. */
void sh_kmeans_place(kmeans_work *work, int clusters, int bits, int64_t n,
                     block_layout *place);
void sh_kmeans_place_tally(kmeans_tally *tally, int clusters, int bits,
                           block_layout *place);

/* groups: [n]. n >= clusters. */
void sh_kmeans_run(kmeans_work *work, const kernel_table *kernels, team workers,
                   const hash_array *hashes, int64_t n, int iterations, uint64_t seed,
                   int32_t *groups);

/* ---- Step by step ------------------------------------------------------------------ */

/* For queries that are a part of all: others have the rest, and what is counted is added
   up between the steps (attention/distributed.c). sh_kmeans_run is the same for one
   part. */
typedef struct {
    kmeans_work *work;
    const kernel_table *kernels;
    const hash_array *hashes;
    int64_t n;
    int32_t *groups;
    team workers;
    int all; /* compare every query with all centres */
} kmeans_pass;

void sh_kmeans_start(kmeans_pass *pass);

/* The first centres, of `all` queries, of which the pass has those from origin on; those
   of others are 0. */
void sh_kmeans_draw(kmeans_pass *pass, uint64_t seed, int64_t all, int64_t origin);

/* Every query goes to its nearest centre. */
void sh_kmeans_assign(kmeans_pass *pass);

/* work->change gets what came and left; sh_kmeans_move adds it and moves the centres. */
void sh_kmeans_tally(kmeans_pass *pass);
void sh_kmeans_move(kmeans_pass *pass);

/* Centres without members. */
int sh_kmeans_empty(const kmeans_work *work);

/* work->farthest gets up to `count` of the pass's queries, numbered from origin on;
   returns how many. Those of all parts together are sh_kmeans_reseed's, which sets their
   first words to 0. */
int sh_kmeans_find_farthest(kmeans_pass *pass, int64_t origin, int count);
void sh_kmeans_reseed(kmeans_work *work, uint64_t *farthest, int count);

/* Counts the centres that changed; 0: none did, and all is done. */
int sh_kmeans_settle(kmeans_pass *pass);

#endif
