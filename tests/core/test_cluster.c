/* Clustering and top-k: k-means compared with the plain loop described in its header,
   on every instruction set and several teams; topk_cut and topk_sort compared with
   qsort; group_sort compared with its definition. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "cases.h"
#include "cluster/grouping.h"
#include "cluster/kmeans.h"
#include "support.h"

enum { MOST_WORDS = 4, PROBLEMS = 240, MOST_THREADS = 4 };

/* n hashes of W = hash_words(bits) words. */
typedef struct {
    int64_t n;
    int clusters, bits, words, iterations;
    uint64_t seed;
    uint64_t *hashes; /* [n][W] */
} kmeans_case;

/* ---- The plain loop --------------------------------------------------------------- */

typedef struct {
    uint64_t *centres;  /* [C][W] */
    int64_t *sizes;     /* [C] */
    int64_t *bit_count; /* [C][64 W] */
    int *distances;     /* [n]: distance of every hash from its centre */
} plain_work;

static int hamming(const uint64_t *a, const uint64_t *b, int words) {
    int sum = 0;
    for (int w = 0; w < words; w++)
        sum += __builtin_popcountll(a[w] ^ b[w]);
    return sum;
}

/* Assigns every hash to its nearest centre, on ties the first; returns the number that
   moved. */
static int64_t plain_assign(const kmeans_case *k, plain_work *work, int32_t *groups) {
    int64_t moved = 0;
    for (int64_t i = 0; i < k->n; i++) {
        int32_t nearest = 0;
        int least = INT32_MAX;
        for (int32_t c = 0; c < k->clusters; c++) {
            int distance =
                hamming(k->hashes + i * k->words, work->centres + c * k->words, k->words);
            if (distance < least) {
                least = distance;
                nearest = c;
            }
        }
        moved += groups[i] != nearest;
        groups[i] = nearest;
        work->distances[i] = least;
    }
    return moved;
}

/* Each bit of a centre is the majority of its members'; a tie keeps it. */
static void plain_majority(const kmeans_case *k, plain_work *work,
                           const int32_t *groups) {
    const int bits = 64 * k->words;
    memset(work->sizes, 0, sizeof *work->sizes * (size_t)k->clusters);
    memset(work->bit_count, 0, sizeof *work->bit_count * (size_t)(k->clusters * bits));
    for (int64_t i = 0; i < k->n; i++) {
        work->sizes[groups[i]]++;
        for (int b = 0; b < bits; b++)
            work->bit_count[groups[i] * bits + b] +=
                (int64_t)(k->hashes[i * k->words + b / 64] >> (b % 64) & 1);
    }
    for (int c = 0; c < k->clusters; c++)
        for (int b = 0; b < bits; b++) {
            uint64_t *word = &work->centres[c * k->words + b / 64];
            const uint64_t bit = UINT64_C(1) << (b % 64);
            const int64_t with = work->bit_count[c * bits + b];
            if (2 * with > work->sizes[c])
                *word |= bit;
            if (2 * with < work->sizes[c])
                *word &= ~bit;
        }
}

/* Moves centres without members, in order, to the farthest hashes; returns their
   number. */
static int plain_reseed(const kmeans_case *k, plain_work *work) {
    int reseeded = 0;
    for (int c = 0; c < k->clusters; c++) {
        if (work->sizes[c] > 0)
            continue;
        int64_t farthest = 0;
        for (int64_t i = 1; i < k->n; i++)
            if (work->distances[i] > work->distances[farthest])
                farthest = i;
        if (work->distances[farthest] == 0)
            break;
        work->distances[farthest] = 0;
        memcpy(work->centres + c * k->words, k->hashes + farthest * k->words,
               sizeof(uint64_t) * (size_t)k->words);
        reseeded++;
    }
    return reseeded;
}

static void plain_kmeans(const kmeans_case *k, int32_t *groups) {
    const int64_t bits = (int64_t)k->clusters * 64 * k->words;
    plain_work work = {.centres = test_memory(k->clusters * k->words, sizeof(uint64_t)),
                       .sizes = test_memory(k->clusters, sizeof(int64_t)),
                       .bit_count = test_memory(bits, sizeof(int64_t)),
                       .distances = test_memory(k->n, sizeof(int))};
    int32_t *starts = test_memory(k->clusters, sizeof *starts);
    random_subset(k->seed, STREAM_STARTS, k->n, k->clusters, starts);
    for (int c = 0; c < k->clusters; c++)
        memcpy(work.centres + c * k->words, k->hashes + starts[c] * k->words,
               sizeof(uint64_t) * (size_t)k->words);
    for (int64_t i = 0; i < k->n; i++)
        groups[i] = -1;
    int reseeded = 0;
    for (int l = 0; l < k->iterations; l++) {
        int64_t moved = plain_assign(k, &work, groups);
        if (l == k->iterations - 1 || (moved == 0 && reseeded == 0))
            break;
        plain_majority(k, &work, groups);
        reseeded = plain_reseed(k, &work);
    }
    free(work.centres);
    free(work.sizes);
    free(work.bit_count);
    free(work.distances);
    free(starts);
}

/* ---- Distributions of hashes ------------------------------------------------------ */

enum character { RANDOM, REPEATED, IDENTICAL, SEPARATED, SPARSE, COUNTING, CHARACTERS };

static uint64_t word_of(const kmeans_case *k, enum character character, int64_t i,
                        int w) {
    const uint64_t key = (uint64_t)i, stream = 100 + (uint64_t)w;
    const uint64_t own = test_hash(k->seed, stream, key);
    const uint64_t pool = key * 7919 %
                          (uint64_t)(1 + k->clusters / 2 + (int)(k->seed % 9));
    switch (character) {
    case REPEATED: return test_hash(k->seed, stream, pool);
    case IDENTICAL: return test_hash(k->seed, stream, 0);
    case SEPARATED: /* a distant centre, with one bit in sixteen flipped */
        return test_hash(k->seed, stream, pool) ^
               (own & own << 7 & own << 23 & own >> 11);
    case SPARSE: return own & own << 5 & own >> 9;
    case COUNTING: return w == 0 ? key / 3 : 0;
    default: return own;
    }
}

static void fill_hashes(kmeans_case *k, enum character character) {
    for (int64_t i = 0; i < k->n; i++)
        for (int w = 0; w < k->words; w++) {
            int live = k->bits - 64 * w < 64 ? k->bits - 64 * w : 64;
            uint64_t mask = live == 64 ? ~UINT64_C(0) : (UINT64_C(1) << live) - 1;
            k->hashes[i * k->words + w] = word_of(k, character, i, w) & mask;
        }
}

static kmeans_case random_case(uint64_t seed) {
    const int clusters[] = {1, 2, 3, 7, 8, 25, 63, 64, 100, 255, 256, 257, 300};
    const int bits[] = {1, 7, 8, 63, 63, 64, 65, 128, 129, 255};
    const int64_t more[] = {0, 1, 5, 63, 64, 130, 700, 1100, 2500};
    kmeans_case k = {.clusters = clusters[test_pick(seed, 1, 0, COUNT_OF(clusters) - 1)],
                     .bits = bits[test_pick(seed, 2, 0, COUNT_OF(bits) - 1)],
                     .iterations = (int)test_pick(seed, 3, 1, 12),
                     .seed = test_hash(seed, 4, 0)};
    k.n = k.clusters + more[test_pick(seed, 5, 0, COUNT_OF(more) - 1)];
    k.words = hash_words(k.bits);
    k.hashes = test_memory(k.n * k.words, sizeof(uint64_t));
    fill_hashes(&k, (enum character)(seed % CHARACTERS));
    return k;
}

/* ---- The library ------------------------------------------------------------------ */

static hash_array planes_of(const kmeans_case *k) {
    hash_array hashes = {.planes = test_memory(hash_array_size(k->n, k->bits), 1),
                         .bits = k->bits,
                         .words = k->words};
    for (int64_t i = 0; i < k->n; i++)
        for (int p = 0; p < 8 * k->words; p++)
            hash_block(&hashes, i / HASH_BLOCK)[p * HASH_BLOCK + i % HASH_BLOCK] =
                (uint8_t)(k->hashes[i * k->words + p / 8] >> (8 * (p % 8)));
    return hashes;
}

/* Reserved in two passes, as in a plan: measured, then placed. The memory is not
   zeroed. */
static void *place_work(const kmeans_case *k, kmeans_work *work, kmeans_tally *tallies) {
    block_layout place = {0};
    void *block = NULL;
    for (int pass = 0; pass < 2; pass++) {
        sh_kmeans_place(work, k->clusters, k->bits, k->n, &place);
        for (int t = 0; t < MOST_THREADS; t++)
            sh_kmeans_place_tally(&tallies[t], k->clusters, k->bits, &place);
        if (pass == 0) {
            block = aligned_alloc(CACHE_LINE, place.bytes);
            assert_non_null(block);
            memset(block, 0x5a, place.bytes);
            place = (block_layout){.base = block};
        }
    }
    work->tally = tallies;
    return block;
}

static void check_team(const kmeans_case *k, const hash_array *hashes,
                       const kernel_table *table, team workers, const int32_t *expected) {
    kmeans_work work = {0};
    kmeans_tally tallies[MOST_THREADS] = {{0}};
    int32_t *groups = test_memory(k->n, sizeof *groups);
    void *block = place_work(k, &work, tallies);
    for (int again = 0; again < 2; again++) { /* the second time on the state left by
                                                 the first */
        sh_kmeans_run(&work, table, workers, hashes, k->n, k->iterations, k->seed,
                      groups);
        for (int64_t i = 0; i < k->n; i++)
            if (groups[i] != expected[i])
                fail_msg(
                    "%s, %d threads, run %d: hash %lld of %lld is in group %d, not %d "
                    "(C %d, bits %d, iterations %d, seed %llx)",
                    table->isa, workers.threads, again, (long long)i, (long long)k->n,
                    groups[i], expected[i], k->clusters, k->bits, k->iterations,
                    (unsigned long long)k->seed);
    }
    free(block);
    free(groups);
}

static void kmeans_is_the_plain_loop(void **state) {
    shoal_context *two = test_context("scalar", 2);
    shoal_context *most = test_context("scalar", MOST_THREADS);
    const team teams[] = {{.threads = 1},
                          {.threads = 1, .self = MOST_THREADS - 1},
                          sh_team_of(two),
                          sh_team_of(most)};
    for (uint64_t problem = 1; problem <= PROBLEMS; problem++) {
        kmeans_case k = random_case(problem);
        hash_array hashes = planes_of(&k);
        int32_t *expected = test_memory(k.n, sizeof *expected);
        plain_kmeans(&k, expected);
        for (int i = 0; sh_kernel_table_at(i); i++)
            if (sh_kernel_table_runs(sh_kernel_table_at(i)))
                check_team(&k, &hashes, sh_kernel_table_at(i),
                           teams[(problem + (uint64_t)i) % 4], expected);
        free(expected);
        free(hashes.planes);
        free(k.hashes);
    }
    shoal_context_destroy(two);
    shoal_context_destroy(most);
}

/* ---- Top-k ------------------------------------------------------------------------ */

static int larger_first(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

/* Random, increasing, decreasing, with many ties, or constant. */
static void fill_list(uint64_t *list, int32_t count, uint64_t seed) {
    for (int32_t i = 0; i < count; i++) {
        uint64_t own = test_hash(seed, 6, (uint64_t)i);
        float score = (float)test_normal(own);
        switch (seed % 5) {
        case 1: score = (float)i; break;
        case 2: score = (float)-i; break;
        case 3: score = (float)(own % 3); break;
        default: break;
        }
        list[i] = seed % 5 == 4 ? 12345 : candidate_pack(score, i);
    }
}

static void topk_is_qsort(void **state) {
    for (uint64_t seed = 0; seed < 3000; seed++) {
        const int32_t count = (int32_t)test_pick(seed, 1, 0, seed % 10 ? 90 : 700);
        const int32_t k = (int32_t)test_pick(seed, 2, 0, count + 3);
        const int32_t kept = k < count ? k : count;
        uint64_t *list = test_memory(count, sizeof *list);
        uint64_t *sorted = test_memory(count, sizeof *sorted);
        fill_list(list, count, seed);
        memcpy(sorted, list, sizeof *list * (size_t)count);
        qsort(sorted, (size_t)count, sizeof *sorted, larger_first);
        assert_int_equal(sh_topk_cut(list, count, k), kept);
        sh_topk_sort(list, kept);
        assert_memory_equal(list, sorted, sizeof *list * (size_t)kept);
        sh_topk_sort(list, count); /* nothing was lost */
        assert_memory_equal(list, sorted, sizeof *list * (size_t)count);
        free(list);
        free(sorted);
    }
}

static void candidates_order_scores(void **state) {
    const float rising[] =
        {-__builtin_inff(), -3e38f, -1, -1e-40f, 0, 1e-40f, 1, 2, 3e38f,
         __builtin_inff()};
    for (int i = 0; i < COUNT_OF(rising); i++) {
        assert_true(candidate_score(candidate_pack(rising[i], i)) == rising[i]);
        assert_int_equal(candidate_key(candidate_pack(rising[i], INT32_MAX - i)),
                         INT32_MAX - i);
        assert_true(candidate_pack(rising[i], 3) > candidate_pack(rising[i], 4));
        if (i > 0)
            assert_true(candidate_pack(rising[i], 9) > candidate_pack(rising[i - 1], 0));
    }
}

/* ---- Sorting by cluster ----------------------------------------------------------- */

static void check_grouping(const grouping *sorted, const int32_t *groups, int64_t n) {
    int32_t used = 0;
    assert_int_equal(sorted->offsets[0], 0);
    assert_int_equal(sorted->offsets[sorted->clusters], n);
    for (int32_t j = 0; j < sorted->clusters; j++) {
        assert_true(sorted->offsets[j] <= sorted->offsets[j + 1]);
        for (int32_t m = sorted->offsets[j]; m < sorted->offsets[j + 1]; m++) {
            assert_in_range(sorted->order[m], 0, n - 1);
            assert_int_equal(groups[sorted->order[m]], j);
            if (m > sorted->offsets[j])
                assert_true(sorted->order[m] > sorted->order[m - 1]);
            used = j + 1;
        }
    }
    assert_int_equal(sorted->used, used);
}

static void group_sort_sorts(void **state) {
    for (uint64_t seed = 0; seed < 300; seed++) {
        const int64_t n = test_pick(seed, 1, 0, 400);
        const int32_t clusters = (int32_t)test_pick(seed, 2, 1, 50);
        const int32_t within = (int32_t)test_pick(seed, 3, 1, clusters);
        grouping sorted = {.clusters = clusters,
                           .offsets = test_memory(clusters + 1, sizeof(int32_t)),
                           .order = test_memory(n, sizeof(int32_t))};
        int32_t *groups = test_memory(n, sizeof *groups);
        for (int64_t i = 0; i < n; i++)
            groups[i] = (int32_t)(test_hash(seed, 4, (uint64_t)i) % (uint64_t)within);
        sh_group_sort(&sorted, groups, n);
        check_grouping(&sorted, groups, n);
        free(sorted.offsets);
        free(sorted.order);
        free(groups);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kmeans_is_the_plain_loop),
        cmocka_unit_test(topk_is_qsort),
        cmocka_unit_test(candidates_order_scores),
        cmocka_unit_test(group_sort_sorts),
    };
    return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
