/* Sorting similar rows together: it is a permutation, rows keep their entries, and
   neighbours become more similar. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "cluster/grouping.h"
#include "support.h"

enum { MOST_ROWS = 1000, CENTRES = 40 };

typedef enum { MIXTURE, IDENTICAL, WITH_NAN, CHARACTERS } character;

static void fill(float *rows, int64_t n, int rank, character what) {
    for (int64_t i = 0; i < n * rank; i++) {
        const uint64_t row = (uint64_t)(i / rank), d = (uint64_t)(i % rank);
        const double centre =
            test_normal(test_hash(1, test_hash(2, row, 0) % CENTRES, d));
        rows[i] = (float)(centre + 0.1 * test_normal(test_hash(3, row, d)));
        if (what == IDENTICAL)
            rows[i] = 1.5f;
    }
    if (what == WITH_NAN && n > 0)
        rows[n / 2 * rank] = NAN;
}

static void halve(float *rows, int32_t *order, int64_t n, int rank, int64_t leaf) {
    halving_work work;
    block_layout measured = {0};
    sh_halving_place(&work, sh_kernel_table_at(0), rank, &measured);
    block_layout place = {.base = aligned_alloc(64, (measured.bytes + 63) / 64 * 64)};
    char *memory = place.base;
    sh_halving_place(&work, sh_kernel_table_at(0), rank, &place);
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    sh_halve(&work, rows, order, n, leaf);
    free(memory);
}

/* Squared distances of rows from the mean of their leaf. */
static double spread(const float *rows, int64_t n, int rank, int64_t leaf) {
    double sum = 0;
    for (int64_t first = 0; first < n; first += leaf) {
        const int64_t count = first + leaf < n ? leaf : n - first;
        for (int d = 0; d < rank; d++) {
            double mean = 0;
            for (int64_t i = first; i < first + count; i++)
                mean += (double)rows[i * rank + d] / (double)count;
            for (int64_t i = first; i < first + count; i++)
                sum += pow((double)rows[i * rank + d] - mean, 2);
        }
    }
    return sum;
}

static void check(int64_t n, int rank, int64_t leaf, character what) {
    static float before[MOST_ROWS * 16], rows[MOST_ROWS * 16];
    static int32_t order[MOST_ROWS];
    bool seen[MOST_ROWS] = {false};
    const size_t bytes = sizeof(float) * (size_t)rank;
    fill(before, n, rank, what);
    memcpy(rows, before, bytes * (size_t)n);
    halve(rows, order, n, rank, leaf);
    for (int64_t i = 0; i < n; i++) {
        assert_in_range(order[i], 0, n - 1);
        assert_false(seen[order[i]]);
        seen[order[i]] = true;
        assert_memory_equal(rows + i * rank, before + (int64_t)order[i] * rank, bytes);
    }
    /* Ten rows around each of 40 centres, leaves of 4 or 8: most leaves belong to one
       centre. */
    if (what == MIXTURE && n >= 400 && rank > 1 && leaf > 1)
        if (!(spread(rows, n, rank, leaf) < 0.4 * spread(before, n, rank, leaf)))
            fail_msg("n %d, rank %d, leaf %d: %g of %g", (int)n, rank, (int)leaf,
                     spread(rows, n, rank, leaf), spread(before, n, rank, leaf));
}

static void orders(void **state) {
    const int64_t counts[] = {0, 1, 2, 7, 8, 9, 63, 200, 401, MOST_ROWS};
    const int ranks[] = {1, 3, 16};
    const int64_t leaves[] = {1, 4, 8};
    for (int64_t c = 0; c < COUNT_OF(counts); c++)
        for (int64_t r = 0; r < COUNT_OF(ranks); r++)
            for (int64_t l = 0; l < COUNT_OF(leaves); l++)
                for (character what = 0; what < CHARACTERS; what++)
                    check(counts[c], ranks[r], leaves[l], what);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(orders)};
    return cmocka_run_group_tests_name("halving", tests, NULL, NULL);
}
