/* The reference itself: its gradients against central finite differences of its forward,
   and its weights against what must hold for any attention. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "reference.h"
#include "support.h"

enum { MAX_CLUSTERS = 5, MAX_ROUNDS = 3 };

/* A head with room of its own for everything that a reference_head points at. */
typedef struct {
    reference_head head;
    double *q, *k, *v, *dout;
    int32_t *groups, *top_keys, *buckets;
} owned_head;

static double *random_doubles(uint64_t seed, uint64_t stream, int64_t count) {
    double *values = reference_memory(count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = test_normal(test_hash(seed, stream, (uint64_t)i));
    return values;
}

static int32_t *random_integers(uint64_t seed, uint64_t stream, int64_t count,
                                int64_t bound) {
    int32_t *values = reference_memory(count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(test_hash(seed, stream, (uint64_t)i) % (uint64_t)bound);
    return values;
}

/* Distinct keys in each row, with the last row one short. */
static int32_t *random_top_keys(uint64_t seed, int64_t clusters, int64_t topk,
                                int64_t keys) {
    int32_t *top = reference_memory(clusters * topk, sizeof *top);
    for (int64_t c = 0; c < clusters; c++) {
        int64_t first = (int64_t)(test_hash(seed, 7, (uint64_t)c) % (uint64_t)keys);
        for (int64_t rank = 0; rank < topk; rank++)
            top[c * topk + rank] = rank < keys ? (int32_t)((first + rank) % keys) : -1;
    }
    if (topk > 1)
        top[clusters * topk - 1] = -1;
    return top;
}

static owned_head head_create(shoal_kind kind, shoal_normaliser normaliser,
                              uint64_t seed) {
    int64_t queries = test_pick(seed, 10, 1, 40), keys = test_pick(seed, 11, 1, 12);
    if (reference_shares_keys(kind))
        keys = queries;
    int64_t dim = test_pick(seed, 12, 1, 5), value_dim = test_pick(seed, 13, 1, 4);
    int64_t topk = test_pick(seed, 14, 1, 6), rounds = test_pick(seed, 15, 1, MAX_ROUNDS);
    owned_head owned = {
        .q = random_doubles(seed, 1, queries * dim),
        .k = random_doubles(seed, 2, keys * dim),
        .v = random_doubles(seed, 3, keys * value_dim),
        .dout = random_doubles(seed, 4, queries * value_dim),
        .groups = random_integers(seed, 5, queries, MAX_CLUSTERS),
        .top_keys = random_top_keys(seed, MAX_CLUSTERS, topk, keys),
        .buckets = random_integers(seed, 6, rounds * queries, 4),
    };
    owned.head = (reference_head){.kind = kind,
                                  .queries = queries,
                                  .keys = keys,
                                  .dim = dim,
                                  .value_dim = value_dim,
                                  .scale = 0.3 + 0.2 * (double)(seed % 5),
                                  .q = owned.q,
                                  .k = owned.k,
                                  .v = owned.v,
                                  .topk = topk,
                                  .groups = owned.groups,
                                  .top_keys = owned.top_keys,
                                  .normaliser = (int32_t)normaliser,
                                  .rounds = rounds,
                                  .buckets = owned.buckets};
    return owned;
}

static void head_destroy(owned_head *owned) {
    free(owned->q);
    free(owned->k);
    free(owned->v);
    free(owned->dout);
    free(owned->groups);
    free(owned->top_keys);
    free(owned->buckets);
}

/* The loss whose gradient backward gives: the sum of dout x out. */
static double loss(const owned_head *owned, double *out) {
    double sum = 0;
    reference_forward(&owned->head, out);
    for (int64_t i = 0; i < owned->head.queries * owned->head.value_dim; i++)
        sum += owned->dout[i] * out[i];
    return sum;
}

/* A step across which the oracle's choice changes has no derivative to compare with. */
static bool choice_is_stable(const owned_head *owned) {
    if (owned->head.kind != SHOAL_ORACLE_TOP)
        return true;
    double *gaps = reference_memory(owned->head.queries, sizeof *gaps),
           smallest = INFINITY;
    reference_oracle_gaps(&owned->head, gaps);
    for (int64_t i = 0; i < owned->head.queries; i++)
        smallest = fmin(smallest, gaps[i]);
    free(gaps);
    return smallest > 1e-3;
}

static void compare_gradient(const owned_head *owned, double *values,
                             const double *gradient, int64_t count) {
    const double step = 1e-5;
    double *out =
        reference_memory(owned->head.queries * owned->head.value_dim, sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        double before = values[i];
        values[i] = before + step;
        double above = loss(owned, out);
        values[i] = before - step;
        double below = loss(owned, out);
        values[i] = before;
        double difference = (above - below) / (2 * step);
        if (fabs(difference - gradient[i]) > 1e-7 * (1 + fabs(difference)))
            fail_msg("kind %d, element %lld of %lld: difference %.12g, gradient %.12g",
                     (int)owned->head.kind, (long long)i, (long long)count, difference,
                     gradient[i]);
    }
    free(out);
}

static void check_differences(shoal_kind kind, shoal_normaliser normaliser) {
    int checked = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        owned_head owned = head_create(kind, normaliser, seed);
        const reference_head *head = &owned.head;
        int64_t query_size = head->queries * head->dim, key_size = head->keys * head->dim;
        int64_t value_size = head->keys * head->value_dim;
        double *dq = reference_memory(query_size, sizeof *dq);
        double *dk = reference_memory(key_size, sizeof *dk);
        double *dv = reference_memory(value_size, sizeof *dv);
        if (choice_is_stable(&owned)) {
            reference_backward(head, owned.dout, dq, dk, dv);
            compare_gradient(&owned, owned.q, dq, query_size);
            compare_gradient(&owned, owned.k, dk, key_size);
            compare_gradient(&owned, owned.v, dv, value_size);
            checked++;
        }
        free(dq);
        free(dk);
        free(dv);
        head_destroy(&owned);
    }
    assert_true(checked >= 5);
}

static void full_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_FULL, SHOAL_NORMALISER_CLUSTER);
}

static void shared_full_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_SHARED_FULL, SHOAL_NORMALISER_CLUSTER);
}

static void clustered_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_CLUSTERED, SHOAL_NORMALISER_CLUSTER);
}

static void i_clustered_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_I_CLUSTERED, SHOAL_NORMALISER_CLUSTER);
}

static void normaliser_per_query_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_I_CLUSTERED, SHOAL_NORMALISER_QUERY);
}

/* The kind stands for its normaliser: it need not be told. */
static void shoal_kind_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_SHOAL, SHOAL_NORMALISER_CLUSTER);
}

static void lsh_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_LSH, SHOAL_NORMALISER_CLUSTER);
}

static void oracle_gradients(void **state) {
    (void)state;
    check_differences(SHOAL_ORACLE_TOP, SHOAL_NORMALISER_CLUSTER);
}

/* Rows of weights are never negative and sum to 1, whatever the kind. */
static void weights_are_averages(void **state) {
    (void)state;
    for (int kind = SHOAL_FULL; kind <= SHOAL_SHOAL; kind++) {
        owned_head owned = head_create((shoal_kind)kind, SHOAL_NORMALISER_CLUSTER, 5);
        int64_t queries = owned.head.queries, keys = owned.head.keys;
        double *weights = reference_memory(queries * keys, sizeof *weights);
        reference_weights(&owned.head, weights);
        for (int64_t i = 0; i < queries; i++) {
            double sum = 0;
            for (int64_t l = 0; l < keys; l++) {
                assert_true(weights[i * keys + l] >= 0);
                sum += weights[i * keys + l];
            }
            assert_true(fabs(sum - 1) < 1e-12);
        }
        free(weights);
        head_destroy(&owned);
    }
}

/* A query that is its group's centroid sees the same with either normaliser, and as if
   it attended in full. */
static void normalisers_agree_on_a_centroid(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        owned_head owned = head_create(SHOAL_I_CLUSTERED, SHOAL_NORMALISER_CLUSTER, seed);
        reference_head *head = &owned.head;
        int64_t size = head->queries * head->value_dim;
        double *outs[3];
        for (int64_t i = 0; i < head->queries * head->dim; i++)
            owned.q[i] = owned.q[i % head->dim];
        for (int which = 0; which < 3; which++) {
            head->kind = which == 2 ? SHOAL_FULL : SHOAL_I_CLUSTERED;
            head->normaliser = which == 1 ? SHOAL_NORMALISER_QUERY
                                          : SHOAL_NORMALISER_CLUSTER;
            outs[which] = reference_memory(size, sizeof(double));
            reference_forward(head, outs[which]);
        }
        for (int64_t i = 0; i < size; i++)
            assert_true(fabs(outs[1][i] - outs[0][i]) < 1e-12 &&
                        fabs(outs[1][i] - outs[2][i]) < 1e-12);
        for (int which = 0; which < 3; which++)
            free(outs[which]);
        head_destroy(&owned);
    }
}

/* Two queries, two keys, by hand: scores 0 and log 3 give weights 1/4 and 3/4. */
static void worked_example(void **state) {
    (void)state;
    const double q[] = {0, 1}, k[] = {0, log(3)}, v[] = {4, 8};
    const int32_t one_group[] = {0, 0};
    const int32_t top[] = {1};
    reference_head head = {.kind = SHOAL_FULL,
                           .queries = 2,
                           .keys = 2,
                           .dim = 1,
                           .value_dim = 1,
                           .scale = 1,
                           .q = q,
                           .k = k,
                           .v = v,
                           .topk = 1,
                           .groups = one_group,
                           .top_keys = top};
    double out[2], root = sqrt(3);
    reference_forward(&head, out);
    assert_true(fabs(out[0] - 6) < 1e-12 && fabs(out[1] - 7) < 1e-12);
    head.kind = SHOAL_CLUSTERED; /* the centroid is 1/2: scores 0 and log(3) / 2 */
    reference_forward(&head, out);
    double expected = (4 + 8 * root) / (1 + root);
    assert_true(fabs(out[0] - expected) < 1e-12 && fabs(out[1] - expected) < 1e-12);
    head.kind = SHOAL_SHOAL; /* key 1 by each query, key 0 by the centroid */
    reference_forward(&head, out);
    assert_true(fabs(out[0] - 6) < 1e-12 && fabs(out[1] - 7) < 1e-12);
    head.top_keys = &(const int32_t){0}; /* the other way round: 1 : sqrt(3) for both */
    reference_forward(&head, out);
    assert_true(fabs(out[0] - expected) < 1e-12 && fabs(out[1] - expected) < 1e-12);
    head.kind = SHOAL_ORACLE_TOP; /* query 0 has a tie, which goes to the lower key */
    reference_forward(&head, out);
    assert_true(fabs(out[0] - 4) < 1e-12 && fabs(out[1] - 8) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_gradients),
        cmocka_unit_test(shared_full_gradients),
        cmocka_unit_test(clustered_gradients),
        cmocka_unit_test(i_clustered_gradients),
        cmocka_unit_test(normaliser_per_query_gradients),
        cmocka_unit_test(shoal_kind_gradients),
        cmocka_unit_test(lsh_gradients),
        cmocka_unit_test(oracle_gradients),
        cmocka_unit_test(weights_are_averages),
        cmocka_unit_test(normalisers_agree_on_a_centroid),
        cmocka_unit_test(worked_example),
    };
    return cmocka_run_group_tests_name("reference", tests, NULL, NULL);
}
