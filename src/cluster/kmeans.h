/* K-means on hashes with the Hamming distance.

   Start: the hashes of C distinct queries, drawn with the seed. Then, L times: every
   hash is assigned to the nearest centre (on ties the first); each bit of a centre
   becomes the majority of its members' bits (a tie keeps it). After each assignment but
   the last, centres without members are moved, in order, to the hash that is farthest
   from its own centre (on ties the first; each hash once; none at distance 0). Stops
   early when nothing changes. Everything is integer arithmetic, so the result does not
   depend on threads and instruction set; tests/core/test_cluster.c has the plain loop
   that it must equal.

   Most centres soon stop changing, which gives exact bounds for the search. Pairs
   (distance, centre) are ordered by distance, then centre; a query's centre has the
   smallest pair. As long as its own centre is unchanged or has come no farther,
   unchanged centres remain worse, and only changed ones must be compared. Queries whose
   centre moved away are collected and compared with all centres. */
#ifndef SHOAL_CLUSTER_KMEANS_H
#define SHOAL_CLUSTER_KMEANS_H

#include "base/memory.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

/* ---- Hashes: bit b of query i is 1 if q_i . direction_b > 0 ----------------------- */

/* Hashes of n queries, in blocks of HASH_BLOCK: byte p of query i is
   planes[i / HASH_BLOCK][p][i % HASH_BLOCK]. Bits past the last are 0. */
typedef struct {
    uint8_t *planes;
    int bits, words;
} hash_array;

static inline int hash_words(int bits) {
    return (bits + 63) / 64;
}

/* Bytes of the hashes of n queries. */
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

/* Hashes one block of `count` queries, the first rows of q. q has `ahead` >= count
   rows, so that the next ones can be prefetched. panel: [dim][kernels->panel]; scores:
   [bits][kernels->panel]. */
void sh_hash_queries(const kernel_table *kernels, const float *q, int64_t stride,
                     int count, int64_t ahead, int dim, const float *directions,
                     hash_array *hashes, int64_t block, float *panel, float *scores);

/* ---- K-means ---------------------------------------------------------------------- */

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
    int32_t *bit_count;  /* [C][64 W]: number of members with the bit */
    int32_t *sizes;      /* [C] */
    int32_t *change;     /* [C][kmeans_counters]: change of bit_count, and of the size */
    int32_t *starts;     /* [C]: queries that initialise the centres */
    uint64_t *farthest;  /* [C][kmeans_far_words]: distance and query, packed so that
                            the largest is taken first; and its hash */
    uint8_t *distances;  /* [n, whole blocks]: distance of every query from its centre */
    kmeans_tally *tally; /* [threads], shared by all parallel runs */
} kmeans_work;

static inline int64_t kmeans_counters(int words) {
    return 64 * words + 1;
}

static inline int64_t kmeans_far_words(int words) {
    return 1 + words;
}

/* For up to n queries; the tallies, one per thread, are placed separately. */
void sh_kmeans_place(kmeans_work *work, int clusters, int bits, int64_t n,
                     block_layout *place);
void sh_kmeans_place_tally(kmeans_tally *tally, int clusters, int bits,
                           block_layout *place);

/* groups: [n]. n >= clusters. */
void sh_kmeans_run(kmeans_work *work, const kernel_table *kernels, team workers,
                   const hash_array *hashes, int64_t n, int iterations, uint64_t seed,
                   int32_t *groups);

/* ---- Single steps ----------------------------------------------------------------- */

/* For a part of all queries: the counts are summed over the parts between the steps
   (attention/distributed.c). sh_kmeans_run does the same for one part. */
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

/* Initial centres from `all` queries, of which this pass has those from origin on;
   centres from other parts are 0. */
void sh_kmeans_draw(kmeans_pass *pass, uint64_t seed, int64_t all, int64_t origin);

/* Assigns every query to its nearest centre. */
void sh_kmeans_assign(kmeans_pass *pass);

/* Sets work->change to the arrivals and departures; sh_kmeans_move adds it and updates
   the centres. */
void sh_kmeans_tally(kmeans_pass *pass);
void sh_kmeans_move(kmeans_pass *pass);

/* Number of centres without members. */
int sh_kmeans_empty(const kmeans_work *work);

/* Sets work->farthest to up to `count` of this pass's queries, numbered from origin on;
   returns their number. sh_kmeans_reseed takes those of all parts together and sets
   their first words to 0. */
int sh_kmeans_find_farthest(kmeans_pass *pass, int64_t origin, int count);
void sh_kmeans_reseed(kmeans_work *work, uint64_t *farthest, int count);

/* Counts the centres that changed; 0 means convergence. */
int sh_kmeans_settle(kmeans_pass *pass);

#endif
