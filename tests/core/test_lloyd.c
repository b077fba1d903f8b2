/* Euclidean k-means on projected queries: the same clusters on every instruction set
   and number of threads; every query is assigned to the nearest centre; and clusters
   as tight as those of plain Lloyd iterations from a random start. N queries, C
   clusters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "cluster/lloyd.h"
#include "support.h"

enum { MOST_THREADS = 3, MOST_RANK = 64 };

typedef struct {
    int64_t n, stride;
    int clusters, dim, rank, iterations;
    uint64_t seed;
    float *q;          /* [N] rows, NaN between them */
    float *projection; /* [rank][dim] */
    double *points;    /* [N][rank]: projected, in double precision */
} lloyd_case;

/* ---- Cases ------------------------------------------------------------------------ */

typedef enum {
    MIXTURE,   /* around more centres than there are clusters */
    SPREAD,    /* one cloud */
    IDENTICAL, /* one point */
    FEW,       /* six points, many times each */
    CHARACTERS
} character;

static double normal(uint64_t seed, uint64_t stream, int64_t at) {
    return test_normal(test_hash(seed, stream, (uint64_t)at));
}

static double element(const lloyd_case *c, character which, int64_t i, int d) {
    const int many = c->clusters + c->clusters / 2 + 3;
    const uint64_t kinds = which == MIXTURE ? (uint64_t)many : 6;
    const int64_t centre = (int64_t)(test_hash(c->seed, 5, (uint64_t)i) % kinds);
    switch (which) {
    case MIXTURE:
        return 4 * normal(c->seed, 1, centre * 100 + d) + normal(c->seed, 2, i * 100 + d);
    case IDENTICAL: return normal(c->seed, 1, d);
    case FEW: return normal(c->seed, 1, centre * 100 + d);
    default: return normal(c->seed, 2, i * 100 + d) / (1 + d % 5) + 2;
    }
}

static void project_points(lloyd_case *c) {
    for (int64_t i = 0; i < c->n; i++)
        for (int r = 0; r < c->rank; r++) {
            double sum = 0;
            for (int d = 0; d < c->dim; d++)
                sum += (double)c->projection[r * c->dim + d] *
                       (double)c->q[i * c->stride + d];
            c->points[i * c->rank + r] = sum;
        }
}

static lloyd_case lloyd_case_create(character which, int64_t n, int clusters, int rank,
                                    int iterations, uint64_t seed) {
    lloyd_case c = {.n = n,
                    .clusters = clusters,
                    .dim = rank + (int)(seed % 3),
                    .rank = rank,
                    .iterations = iterations,
                    .seed = seed};
    c.stride = c.dim + (int64_t)(seed % 2) * 3;
    c.q = test_memory(n * c.stride, sizeof(float));
    c.projection = test_memory((int64_t)rank * c.dim, sizeof(float));
    c.points = test_memory(n * rank, sizeof(double));
    for (int64_t i = 0; i < n * c.stride; i++)
        c.q[i] = i % c.stride < c.dim
                     ? (float)element(&c, which, i / c.stride, (int)(i % c.stride))
                     : NAN;
    for (int64_t i = 0; i < (int64_t)rank * c.dim; i++)
        c.projection[i] = (float)((i % c.dim == i / c.dim) + 0.2 * normal(seed, 3, i));
    project_points(&c);
    return c;
}

static void lloyd_case_destroy(lloyd_case *c) {
    free(c->q);
    free(c->projection);
    free(c->points);
}

/* ---- The library ------------------------------------------------------------------ */

/* groups: [N]; centres: [C][rank], or NULL. The memory is not zeroed. */
static void run_lloyd(const lloyd_case *c, const kernel_table *table, team workers,
                      int32_t *groups, float *centres) {
    lloyd_work work = {0};
    lloyd_thread threads[MOST_THREADS] = {{0}};
    block_layout place = {0};
    void *block = NULL;
    for (int pass = 0; pass < 2; pass++) {
        sh_lloyd_place(&work, table, c->clusters, c->dim, c->rank, c->n, &place);
        for (int t = 0; t < MOST_THREADS; t++)
            sh_lloyd_place_thread(&threads[t], table, c->dim, c->rank, &place);
        if (pass > 0)
            break;
        block = aligned_alloc(CACHE_LINE, place.bytes);
        assert_non_null(block);
        memset(block, 0xff, place.bytes);
        place = (block_layout){.base = block};
    }
    work.threads = threads;
    for (int64_t i = 0; i < c->n; i++)
        groups[i] = -1;
    sh_lloyd_run(&work, table, workers, c->q, c->stride, c->n, c->projection,
                 c->iterations, c->seed, groups, NULL);
    if (centres)
        memcpy(centres, work.centres,
               sizeof(float) * (size_t)c->clusters * (size_t)c->rank);
    free(block);
}

/* Compares every table and team with the first; groups: [N], the first result. */
static void check_same_everywhere(const lloyd_case *c, int32_t *groups, float *centres) {
    shoal_context *two = test_context("scalar", 2), *three = test_context("scalar", 3);
    const team teams[] = {{.threads = 1},
                          {.threads = 1, .self = MOST_THREADS - 1},
                          sh_team_of(two),
                          sh_team_of(three)};
    int32_t *other = test_memory(c->n, sizeof *other);
    run_lloyd(c, sh_kernel_table_at(0), teams[0], groups, centres);
    for (int64_t i = 0; i < c->n; i++)
        assert_in_range(groups[i], 0, c->clusters - 1);
    for (int t = 0; sh_kernel_table_at(t); t++)
        for (int64_t w = 0; w < COUNT_OF(teams); w++) {
            if (!sh_kernel_table_runs(sh_kernel_table_at(t)))
                continue;
            run_lloyd(c, sh_kernel_table_at(t), teams[w], other, NULL);
            for (int64_t i = 0; i < c->n; i++)
                if (groups[i] != other[i])
                    fail_msg("%s, team %d: query %lld of %lld is in group %d, not %d "
                             "(C %d, rank %d, iterations %d)",
                             sh_kernel_table_at(t)->isa, (int)w, (long long)i,
                             (long long)c->n, other[i], groups[i], c->clusters, c->rank,
                             c->iterations);
        }
    free(other);
    shoal_context_destroy(two);
    shoal_context_destroy(three);
}

/* ---- Tightness of clusters -------------------------------------------------------- */

static double square_distance(const double *a, const double *b, int rank) {
    double sum = 0;
    for (int r = 0; r < rank; r++)
        sum += (a[r] - b[r]) * (a[r] - b[r]);
    return sum;
}

/* Means of the clusters; one without members keeps its centre. centres: [C][rank]. */
static void move_to_means(const lloyd_case *c, const int32_t *groups, double *centres) {
    int64_t *sizes = test_memory(c->clusters, sizeof *sizes);
    double *sums = test_memory((int64_t)c->clusters * c->rank, sizeof *sums);
    for (int64_t i = 0; i < c->n; i++) {
        sizes[groups[i]]++;
        for (int r = 0; r < c->rank; r++)
            sums[groups[i] * c->rank + r] += c->points[i * c->rank + r];
    }
    for (int64_t i = 0; i < (int64_t)c->clusters * c->rank; i++)
        if (sizes[i / c->rank] > 0)
            centres[i] = sums[i] / (double)sizes[i / c->rank];
    free(sizes);
    free(sums);
}

/* Sum of squared distances from the means of the clusters. */
static double looseness(const lloyd_case *c, const int32_t *groups) {
    double *means = test_memory((int64_t)c->clusters * c->rank, sizeof *means);
    double sum = 0;
    move_to_means(c, groups, means);
    for (int64_t i = 0; i < c->n; i++)
        sum += square_distance(c->points + i * c->rank, means + groups[i] * c->rank,
                               c->rank);
    free(means);
    return sum;
}

static void assign(const lloyd_case *c, const double *centres, int32_t *groups) {
    for (int64_t i = 0; i < c->n; i++) {
        double least = INFINITY;
        for (int32_t j = 0; j < c->clusters; j++) {
            double distance =
                square_distance(c->points + i * c->rank, centres + j * c->rank, c->rank);
            groups[i] = distance < least ? j : groups[i];
            least = fmin(least, distance);
        }
    }
}

/* Plain Lloyd iterations from C random queries, on all of them. */
static double plain_looseness(const lloyd_case *c) {
    double *centres = test_memory((int64_t)c->clusters * c->rank, sizeof *centres);
    int32_t *groups = test_memory(c->n, sizeof *groups);
    for (int64_t j = 0; j < c->clusters; j++) {
        uint64_t share = test_hash(c->seed, 9, (uint64_t)j);
        int64_t first = j * c->n / c->clusters, end = (j + 1) * c->n / c->clusters;
        int64_t point = first + (int64_t)(share % (uint64_t)(end - first));
        memcpy(centres + j * c->rank, c->points + point * c->rank,
               sizeof *centres * (size_t)c->rank);
    }
    assign(c, centres, groups);
    for (int l = 1; l < c->iterations; l++) {
        move_to_means(c, groups, centres);
        assign(c, centres, groups);
    }
    double sum = looseness(c, groups);
    free(centres);
    free(groups);
    return sum;
}

/* ---- Tests ------------------------------------------------------------------------ */

/* No other centre is nearer, up to the rounding of the compared squares. */
static void check_nearest(const lloyd_case *c, const int32_t *groups,
                          const float *centres) {
    const double none[MOST_RANK] = {0};
    double *exact = test_memory((int64_t)c->clusters * c->rank, sizeof *exact);
    int32_t *nearest = test_memory(c->n, sizeof *nearest);
    for (int64_t i = 0; i < (int64_t)c->clusters * c->rank; i++)
        exact[i] = (double)centres[i];
    assign(c, exact, nearest);
    for (int64_t i = 0; i < c->n; i++) {
        const double *point = c->points + i * c->rank;
        double got = square_distance(point, exact + groups[i] * c->rank, c->rank);
        double least = square_distance(point, exact + nearest[i] * c->rank, c->rank);
        double size = square_distance(point, none, c->rank);
        assert_true(got <= least + 1e-5 * (size + least));
    }
    free(exact);
    free(nearest);
}

/* If all members of a cluster are one point, or one cluster has all queries and learned
   from all of them, the centre is the mean. */
static void check_centres(const lloyd_case *c, const int32_t *groups,
                          const float *centres, double size) {
    double *means = test_memory((int64_t)c->clusters * c->rank, sizeof *means);
    move_to_means(c, groups, means);
    for (int64_t i = 0; i < c->n; i++)
        for (int r = 0; r < c->rank; r++) {
            int64_t at = groups[i] * c->rank + r;
            assert_true(fabs((double)centres[at] - means[at]) <=
                        1e-4 * sqrt(size / (double)c->n));
        }
    free(means);
}

static void check_case(character which, int64_t n, int clusters, int rank, int iterations,
                       uint64_t seed) {
    lloyd_case c = lloyd_case_create(which, n, clusters, rank, iterations, seed);
    int32_t *groups = test_memory(n, sizeof *groups);
    float *centres = test_memory((int64_t)clusters * rank, sizeof *centres);
    check_same_everywhere(&c, groups, centres);
    check_nearest(&c, groups, centres);
    double size = 0, loose = looseness(&c, groups);
    for (int64_t i = 0; i < n * rank; i++)
        size += c.points[i] * c.points[i];
    if (which == IDENTICAL || (which == FEW && clusters >= 25))
        assert_true(loose <= 1e-9 * size);
    if (which == IDENTICAL || (which == FEW && clusters >= 25) ||
        (clusters == 1 && n < 1024 && iterations > 1))
        check_centres(&c, groups, centres, size);
    for (int64_t i = 0; i < n && which == IDENTICAL; i++)
        assert_int_equal(groups[i], groups[0]);
    free(groups);
    free(centres);
    lloyd_case_destroy(&c);
}

/* Around every size where the algorithm changes: panels, tasks, half and complete
   samples. */
static void groups_are_the_same_everywhere(void **state) {
    const int64_t sizes[] = {2,    3,    25,   49,   959,  960,  961,  1023, 1024,
                             1025, 1200, 2000, 4095, 4096, 4097, 4200, 5000};
    const int clusters[] = {1, 2, 3, 4, 5, 25, 100}, ranks[] = {1, 2, 8, 16, 17, 33, 64};
    const int iterations[] = {1, 2, 3, 5};
    for (uint64_t seed = 1; seed <= 90; seed++) {
        const int64_t n = sizes[seed % COUNT_OF(sizes)];
        const int C = clusters[test_pick(seed, 1, 0, COUNT_OF(clusters) - 1)];
        check_case((character)(seed % CHARACTERS), n, C < n ? C : (int)n,
                   ranks[test_pick(seed, 2, 0, n > 2000 ? 3 : COUNT_OF(ranks) - 1)],
                   iterations[test_pick(seed, 3, 0, COUNT_OF(iterations) - 1)], seed);
    }
}

/* Enough clusters that the sample grows with them. */
static void many_clusters(void **state) {
    check_case(MIXTURE, 9599, 300, 4, 5, 1);
    check_case(MIXTURE, 9601, 300, 4, 2, 2);
    check_case(SPREAD, 9700, 300, 3, 1, 3);
    check_case(FEW, 9700, 300, 3, 5, 4);
    check_case(SPREAD, 301, 300, 3, 5, 5);
    check_case(IDENTICAL, 301, 300, 3, 5, 6);
}

/* More clusters than half the points: hardly one stays empty. */
static void nearly_as_many_clusters(void **state) {
    const int64_t sizes[] = {1023, 1024, 1100};
    for (int64_t s = 0; s < COUNT_OF(sizes); s++) {
        lloyd_case c = lloyd_case_create(SPREAD, sizes[s], 1000, 16, 6, 3);
        int32_t *groups = test_memory(c.n, sizeof *groups), used = 0;
        char seen[1000] = {0};
        run_lloyd(&c, sh_kernel_table_at(0), (team){.threads = 1}, groups, NULL);
        for (int64_t i = 0; i < c.n; i++) {
            used += !seen[groups[i]];
            seen[groups[i]] = 1;
        }
        if (used < 950)
            fail_msg("%lld points: %d of 1000 clusters", (long long)sizes[s], used);
        free(groups);
        lloyd_case_destroy(&c);
    }
}

static void groups_are_tight(void **state) {
    const int64_t sizes[] = {300, 1023, 1025, 2000, 4097, 6000};
    const int clusters[] = {10, 25, 100}, iterations[] = {1, 2, 5};
    for (int64_t s = 0; s < COUNT_OF(sizes); s++)
        for (int64_t l = 0; l < COUNT_OF(iterations); l++) {
            double ours = 0, plain = 0;
            for (uint64_t seed = 1; seed <= 4; seed++) {
                lloyd_case c = lloyd_case_create(seed % 4 ? MIXTURE : SPREAD, sizes[s],
                                                 clusters[(s + l) % COUNT_OF(clusters)],
                                                 8, iterations[l], seed);
                int32_t *groups = test_memory(c.n, sizeof *groups);
                run_lloyd(&c, sh_kernel_table_at(0), (team){.threads = 1}, groups, NULL);
                ours += looseness(&c, groups);
                plain += plain_looseness(&c);
                free(groups);
                lloyd_case_destroy(&c);
            }
            if (!(ours <= 1.05 * plain))
                fail_msg("N %lld, C %d, iterations %d: %.4g times plain Lloyd's",
                         (long long)sizes[s], clusters[(s + l) % COUNT_OF(clusters)],
                         iterations[l], ours / plain);
        }
}

/* NaN and infinities in some queries, in all of them, and in the projection. */
static void spoilt_queries(void **state) {
    const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f};
    const int64_t sizes[] = {70, 1500, 4500}, steps[] = {1, 3, 41};
    for (int which = 0; which < 36; which++) {
        lloyd_case c =
            lloyd_case_create(MIXTURE, sizes[which % 3], 20, 5, 5, (uint64_t)which + 1);
        int32_t *groups = test_memory(c.n, sizeof *groups);
        for (int64_t i = 0; i < c.n; i += steps[which / 3 % 3])
            c.q[i * c.stride + which % c.dim] = odd[which / 9];
        if (which % 7 == 6)
            c.projection[2] = NAN;
        check_same_everywhere(&c, groups, NULL);
        free(groups);
        lloyd_case_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_are_the_same_everywhere),
        cmocka_unit_test(many_clusters),
        cmocka_unit_test(nearly_as_many_clusters),
        cmocka_unit_test(groups_are_tight),
        cmocka_unit_test(spoilt_queries),
    };
    return cmocka_run_group_tests_name("lloyd", tests, NULL, NULL);
}
