/* The metric of the keys compared with a plain computation in double precision:
   distances of queries with respect to all keys, and the part that `rank` directions
   keep. The same bits on every instruction set. D: dimension, N queries, S keys. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "cluster/lloyd.h"
#include "support.h"

enum { MOST_DIM = 100, SWEEPS = 12 };

/* ---- Distributions of queries and keys -------------------------------------------- */

typedef enum {
    WHITE,
    FALLING,    /* directions of decreasing size, mixed */
    DEFICIENT,  /* in the span of a few directions */
    HUGE_ONE,   /* one direction far larger than the others */
    SCALED,     /* columns of very different size */
    CORRELATED, /* half of the columns nearly equal */
    CHARACTERS
} character;

typedef struct {
    int dim;
    int64_t queries, keys, stride; /* stride of both */
    float *q, *k;                  /* NaN between the rows */
} metric_case;

static double normal(uint64_t seed, uint64_t stream, int64_t at) {
    return test_normal(test_hash(seed, stream, (uint64_t)at));
}

/* Coordinate d of row i. */
static double element(character which, uint64_t seed, uint64_t stream, int dim, int64_t i,
                      int d) {
    const double own = normal(seed, stream, i * MOST_DIM + d), offset = 3 * (d % 3);
    double sum = 0;
    switch (which) {
    case FALLING:
    case DEFICIENT:
        for (int e = 0; e < (which == DEFICIENT && dim > 4 ? 4 : dim); e++)
            sum += normal(seed, stream, i * MOST_DIM + e) / (1 + e) *
                   normal(seed, stream + 1, d * MOST_DIM + e);
        return sum + offset;
    case HUGE_ONE: return d == dim / 2 ? 30 * own + 100 : own;
    case SCALED: return own * (1 + d % 7 * 4);
    case CORRELATED:
        return d % 2 ? own : normal(seed, stream, i * MOST_DIM) + 0.1 * own + offset;
    default: return own + offset;
    }
}

static float *rows_of(character which, uint64_t seed, uint64_t stream, int64_t count,
                      int dim, int64_t stride) {
    float *rows = test_memory(count * stride, sizeof *rows);
    for (int64_t i = 0; i < count * stride; i++)
        rows[i] = i % stride < dim ? (float)element(which, seed, stream, dim, i / stride,
                                                    (int)(i % stride))
                                   : NAN;
    return rows;
}

static metric_case case_of(character queries, character keys, int dim, int64_t N,
                           int64_t S, uint64_t seed) {
    const int64_t stride = dim + (int64_t)(seed % 4);
    return (metric_case){.dim = dim,
                         .queries = N,
                         .keys = S,
                         .stride = stride,
                         .q = rows_of(queries, seed, 1, N, dim, stride),
                         .k = rows_of(keys, seed, 11, S, dim, stride)};
}

static void metric_case_destroy(metric_case *c) {
    free(c->q);
    free(c->k);
}

/* ---- The library ------------------------------------------------------------------ */

/* [rank][dim]; the caller frees it. The memory is not zeroed. */
static float *find_projection(const metric_case *c, const kernel_table *table, int rank) {
    metric_work work = {0};
    block_layout place = {0};
    sh_metric_place(&work, table, c->dim, rank, &place);
    void *block = aligned_alloc(CACHE_LINE, place.bytes);
    assert_non_null(block);
    memset(block, 0xff, place.bytes);
    place = (block_layout){.base = block};
    sh_metric_place(&work, table, c->dim, rank, &place);
    sh_metric_find(&work, table, (metric_rows){c->k, c->stride, c->keys, NULL, 0},
                   (metric_rows){c->q, c->stride, c->queries, NULL, 0});
    float *projection = test_memory((int64_t)rank * c->dim, sizeof *projection);
    memcpy(projection, work.projection, sizeof(float) * (size_t)(rank * c->dim));
    free(block);
    return projection;
}

static void check_same_everywhere(const metric_case *c, int rank) {
    float *first = find_projection(c, sh_kernel_table_at(0), rank);
    for (int t = 1; sh_kernel_table_at(t); t++) {
        if (!sh_kernel_table_runs(sh_kernel_table_at(t)))
            continue;
        float *other = find_projection(c, sh_kernel_table_at(t), rank);
        for (int i = 0; i < rank * c->dim; i++)
            if (memcmp(first + i, other + i, sizeof *first) != 0 &&
                !(isnan(first[i]) && isnan(other[i])))
                fail_msg("element %d of %d x %d is %.9g on %s, not %.9g", i, rank, c->dim,
                         (double)other[i], sh_kernel_table_at(t)->isa, (double)first[i]);
        free(other);
    }
    free(first);
}

/* ---- In double precision ---------------------------------------------------------- */

/* Sums of products of centred rows. out: [D][D]. */
static void scatter_of(const float *rows, int64_t count, int64_t stride, int dim,
                       double *out) {
    double mean[MOST_DIM] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < dim; d++)
            mean[d] += (double)rows[i * stride + d] / (double)count;
    memset(out, 0, sizeof *out * (size_t)(dim * dim));
    for (int64_t i = 0; i < count; i++)
        for (int d = 0; d < dim; d++)
            for (int e = 0; e < dim; e++)
                out[d * dim + e] += ((double)rows[i * stride + d] - mean[d]) *
                                    ((double)rows[i * stride + e] - mean[e]);
}

/* x' A y */
static double form(const double *a, const double *x, const double *y, int dim) {
    double sum = 0;
    for (int d = 0; d < dim; d++)
        for (int e = 0; e < dim; e++)
            sum += x[d] * a[d * dim + e] * y[e];
    return sum;
}

/* Jacobi rotation: makes a[p][q] 0, and rotates the vectors. */
static void rotate(double *a, double *vectors, int dim, int p, int q) {
    if (a[p * dim + q] == 0)
        return;
    const double theta = (a[q * dim + q] - a[p * dim + p]) / (2 * a[p * dim + q]);
    const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
    const double c = 1 / sqrt(t * t + 1), s = t * c;
    for (int i = 0; i < dim; i++) {
        double x = a[i * dim + p], y = a[i * dim + q];
        a[i * dim + p] = c * x - s * y;
        a[i * dim + q] = s * x + c * y;
    }
    for (int i = 0; i < dim; i++) {
        double x = a[p * dim + i], y = a[q * dim + i];
        a[p * dim + i] = c * x - s * y;
        a[q * dim + i] = s * x + c * y;
        x = vectors[p * dim + i];
        y = vectors[q * dim + i];
        vectors[p * dim + i] = c * x - s * y;
        vectors[q * dim + i] = s * x + c * y;
    }
}

/* Jacobi iteration: a becomes diagonal, the rows of vectors its eigenvectors. */
static void eigen(double *a, double *vectors, int dim) {
    for (int i = 0; i < dim * dim; i++)
        vectors[i] = i / dim == i % dim;
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int p = 0; p < dim; p++)
            for (int q = p + 1; q < dim; q++)
                rotate(a, vectors, dim, p, q);
}

static int larger_first(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

static double sum_of_largest(double *values, int count, int rank) {
    double sum = 0;
    qsort(values, (size_t)count, sizeof *values, larger_first);
    for (int i = 0; i < rank && i < count; i++)
        sum += values[i];
    return sum;
}

/* Maximum share of the queries' variance in the metric of the keys for `rank`
   directions. */
typedef struct {
    double eigenbasis; /* coordinates of the keys' eigenbasis: largest w_c u_c' Cq u_c */
    double best;       /* any directions: largest eigenvalues of sqrt(S) Cq sqrt(S) */
} variances;

static variances possible_variances(const double *keys, const double *queries, int dim,
                                    int rank) {
    const int64_t size = (int64_t)dim * dim;
    double *a = test_memory(size, sizeof *a), held[MOST_DIM], either[MOST_DIM];
    double *vectors = test_memory(size, sizeof *vectors);
    double *mixed = test_memory(size, sizeof *mixed);
    memcpy(a, keys, sizeof *a * (size_t)size);
    eigen(a, vectors, dim);
    for (int i = 0; i < dim; i++)
        for (int j = 0; j < dim; j++) {
            double weight = fmax(a[i * dim + i], 0) * fmax(a[j * dim + j], 0);
            mixed[i * dim + j] = sqrt(weight) *
                                 form(queries, vectors + i * dim, vectors + j * dim, dim);
        }
    for (int i = 0; i < dim; i++)
        held[i] = mixed[i * dim + i];
    eigen(mixed, vectors, dim);
    for (int i = 0; i < dim; i++)
        either[i] = mixed[i * dim + i];
    free(a);
    free(vectors);
    free(mixed);
    return (variances){sum_of_largest(held, dim, rank),
                       sum_of_largest(either, dim, rank)};
}

static double projected_variance(const float *projection, const double *queries, int dim,
                                 int rank) {
    double sum = 0, row[MOST_DIM];
    for (int r = 0; r < rank; r++) {
        for (int d = 0; d < dim; d++)
            row[d] = (double)projection[r * dim + d];
        sum += form(queries, row, row, dim);
    }
    return sum;
}

/* ---- Distances -------------------------------------------------------------------- */

static double projected_distance(const float *projection, const double *difference,
                                 int dim, int rank) {
    double sum = 0;
    for (int r = 0; r < rank; r++) {
        double along = 0;
        for (int d = 0; d < dim; d++)
            along += (double)projection[r * dim + d] * difference[d];
        sum += along * along;
    }
    return sum;
}

/* Error of each pair's squared distance relative to a typical one: at most `tolerance`;
   and, for any rank, no pair is farther apart than it is. */
static void check_distances(const metric_case *c, const float *projection, int rank,
                            const double *keys, double tolerance, const char *what) {
    double typical = 0, error = 0, excess = 0;
    int64_t pairs = 0;
    for (int64_t i = 0; i + 1 < c->queries; i++, pairs++) {
        double difference[MOST_DIM];
        for (int d = 0; d < c->dim; d++)
            difference[d] = (double)c->q[i * c->stride + d] -
                            (double)c->q[(i + 1) * c->stride + d];
        double exact = form(keys, difference, difference, c->dim);
        double got = projected_distance(projection, difference, c->dim, rank);
        typical += exact;
        error = fmax(error, fabs(got - exact));
        excess = fmax(excess, got - exact);
    }
    typical /= (double)pairs;
    if (!(error <= tolerance * typical) || !(excess <= 1e-3 * typical))
        fail_msg("%s, D %d, rank %d: off by %.3g and above by %.3g of the typical %.3g",
                 what, c->dim, rank, error / typical, excess / typical, typical);
}

static const char *const NAMES[CHARACTERS] = {"white", "falling", "deficient",
                                              "huge",  "scaled",  "correlated"};

static void check_metric(const metric_case *c, int rank, const char *what) {
    double *keys = test_memory(c->dim * c->dim, sizeof *keys);
    double *queries = test_memory(c->dim * c->dim, sizeof *queries);
    float *projection = find_projection(c, sh_kernel_table_at(0), rank);
    scatter_of(c->k, c->keys, c->stride, c->dim, keys);
    scatter_of(c->q, c->queries, c->stride, c->dim, queries);
    check_distances(c, projection, rank, keys, rank == c->dim ? 3e-4 : INFINITY, what);
    variances most = possible_variances(keys, queries, c->dim, rank);
    double got = projected_variance(projection, queries, c->dim, rank);
    if (!(got >= 0.97 * most.eigenbasis) || !(got >= 0.95 * most.best))
        fail_msg("%s keys, D %d, rank %d: %.4g of what the eigenbasis holds, %.4g of the "
                 "most that can be held",
                 what, c->dim, rank, got / most.eigenbasis, got / most.best);
    check_same_everywhere(c, rank);
    free(projection);
    free(keys);
    free(queries);
}

static void distances_are_those_of_the_keys(void **state) {
    const int dims[] = {1, 2, 3, 7, 8, 17, 33, 64, 65}, ranks[] = {1, 3, 8, 16, 40};
    for (int which = 0; which < 3 * CHARACTERS * CHARACTERS; which++) {
        const character keys = (character)(which % CHARACTERS);
        const character queries = (character)(which / CHARACTERS % CHARACTERS);
        const int dim = dims[(which + which / CHARACTERS) % COUNT_OF(dims)];
        const int rank = ranks[(which + which / 10) % COUNT_OF(ranks)];
        metric_case c = case_of(queries, keys, dim, 200, 230, (uint64_t)which + 1);
        check_metric(&c, dim, NAMES[keys]);
        check_metric(&c, rank < dim ? rank : dim, NAMES[keys]);
        metric_case_destroy(&c);
    }
}

/* More rows than the sample: close to the covariance of all, covering all of them. */
static void a_sample_stands_for_all(void **state) {
    for (uint64_t seed = 1; seed <= 8; seed++) {
        metric_case c = case_of(WHITE, SCALED, 12, 3000, 2000 + (int64_t)seed, seed);
        double *keys = test_memory(c.dim * c.dim, sizeof *keys), typical = 0;
        float *projection = find_projection(&c, sh_kernel_table_at(0), c.dim);
        scatter_of(c.k, c.keys, c.stride, c.dim, keys);
        for (int d = 0; d < c.dim; d++) {
            double unit[MOST_DIM] = {0};
            unit[d] = 1;
            double got = projected_distance(projection, unit, c.dim, c.dim);
            typical = got / form(keys, unit, unit, c.dim) * (double)c.keys / 256;
            assert_true(typical > 0.6 && typical < 1.6);
        }
        check_same_everywhere(&c, 5);
        free(keys);
        free(projection);
        metric_case_destroy(&c);
    }
}

/* Large and small numbers: the same directions, bit for bit. */
static void any_magnitude(void **state) {
    metric_case c = case_of(FALLING, SCALED, 20, 150, 140, 9);
    float *usual = find_projection(&c, sh_kernel_table_at(0), 8);
    for (int power = -20; power <= 20; power += 5) {
        metric_case other = case_of(FALLING, SCALED, 20, 150, 140, 9);
        for (int64_t i = 0; i < c.queries; i++)
            for (int d = 0; d < c.dim; d++)
                other.q[i * c.stride + d] = ldexpf(c.q[i * c.stride + d], power);
        for (int64_t i = 0; i < c.keys; i++)
            for (int d = 0; d < c.dim; d++)
                other.k[i * c.stride + d] = ldexpf(c.k[i * c.stride + d], power);
        float *found = find_projection(&other, sh_kernel_table_at(0), 8);
        for (int i = 0; i < 8 * c.dim; i++)
            assert_true(found[i] == ldexpf(usual[i], power));
        free(found);
        metric_case_destroy(&other);
    }
    free(usual);
    metric_case_destroy(&c);
}

/* Keys that do not distinguish queries: every direction is 0, or nearly. */
static void keys_without_extent(void **state) {
    for (int which = 0; which < 4; which++)
        for (int dim = 1; dim <= 65; dim += 16) {
            metric_case c = case_of(WHITE, WHITE, dim, 100, 60, 7);
            c.keys = which == 0 ? 0 : which == 1 ? 1 : c.keys;
            for (int64_t i = 0; i < c.keys; i++)
                for (int d = 0; d < dim; d++)
                    c.k[i * c.stride + d] = which == 2 ? 0 : (float)(d + 3);
            const int rank = dim < 16 ? dim : 16;
            float *projection = find_projection(&c, sh_kernel_table_at(0), rank);
            for (int i = 0; i < rank * dim; i++)
                assert_true(fabsf(projection[i]) < 1e-3f);
            check_same_everywhere(&c, rank);
            free(projection);
            metric_case_destroy(&c);
        }
}

/* NaN and infinities: the result is the same on every instruction set. */
static void spoilt_rows(void **state) {
    const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (int which = 0; which < 8; which++) {
        metric_case c = case_of(FALLING, FALLING, 20, 150, 140, 9);
        float *rows = which % 2 ? c.q : c.k;
        rows[5 * c.stride + 3] = odd[which / 2];
        check_same_everywhere(&c, 8);
        check_same_everywhere(&c, 20);
        metric_case_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distances_are_those_of_the_keys),
        cmocka_unit_test(a_sample_stands_for_all),
        cmocka_unit_test(any_magnitude),
        cmocka_unit_test(keys_without_extent),
        cmocka_unit_test(spoilt_rows),
    };
    return cmocka_run_group_tests_name("metric", tests, NULL, NULL);
}
