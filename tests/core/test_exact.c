/* The exact formulas themselves: gradients compared with central finite differences,
   and properties of the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

enum { MAX_CLUSTERS = 5, MAX_ROUNDS = 3 };

static void fill_normal(uint64_t seed, uint64_t stream, int64_t count, double *values) {
    for (int64_t i = 0; i < count; i++)
        values[i] = test_normal(test_hash(seed, stream, (uint64_t)i));
}

static int32_t *random_integers(uint64_t seed, uint64_t stream, int64_t count,
                                int64_t bound) {
    int32_t *values = test_memory(count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(test_hash(seed, stream, (uint64_t)i) % (uint64_t)bound);
    return values;
}

/* Distinct keys in each row; the last row is one short. */
static int32_t *random_top_keys(uint64_t seed, int64_t clusters, int64_t topk,
                                int64_t keys) {
    int32_t *top = test_memory(clusters * topk, sizeof *top);
    for (int64_t c = 0; c < clusters; c++) {
        int64_t first = (int64_t)(test_hash(seed, 7, (uint64_t)c) % (uint64_t)keys);
        for (int64_t rank = 0; rank < topk; rank++)
            top[c * topk + rank] = rank < keys ? (int32_t)((first + rank) % keys) : -1;
    }
    if (topk > 1)
        top[clusters * topk - 1] = -1;
    return top;
}

static bool is_tilted(const shoal_attention *attention) {
    return attention->kind == SHOAL_KIND_SHOAL;
}

static float *random_floats(uint64_t seed, uint64_t stream, int64_t count) {
    float *values = test_memory(count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)test_normal(test_hash(seed, stream, (uint64_t)i));
    return values;
}

/* Constants of shoal-C. Members of a cluster need not share keys. */
static void fill_tilt(exact_head *head, uint64_t seed) {
    const int64_t rank = head->attention.rank < head->dim ? head->attention.rank
                                                          : head->dim;
    int32_t *keys =
        random_top_keys(seed, head->queries, head->attention.topk, head->keys);
    memcpy(head->own_keys, keys,
           sizeof *keys * (size_t)(head->queries * head->attention.topk));
    free(keys);
    const int64_t clusters = head->attention.keyclusters < head->keys
                                 ? head->attention.keyclusters
                                 : head->keys;
    head->key_clusters = random_integers(seed, 8, head->keys, clusters);
    head->projection = random_floats(seed, 21, (rank + 1) * head->dim);
    head->dual = random_floats(seed, 22, rank * head->dim);
    head->shares = random_floats(seed, 24, MAX_CLUSTERS * clusters);
    head->share_stride = clusters;
}

/* A head of random numbers and choices, which head_destroy frees. */
static exact_head *head_create(shoal_attention attention, uint64_t seed) {
    int64_t queries = test_pick(seed, 10, 1, 40), keys = test_pick(seed, 11, 1, 12);
    if (facts_of(attention.kind)->keys_are_queries)
        keys = queries;
    attention.clusters = MAX_CLUSTERS;
    attention.topk = (int32_t)test_pick(seed, 14, 1, 6);
    attention.rounds = (int32_t)test_pick(seed, 15, 1, MAX_ROUNDS);
    attention.window = (int32_t)test_pick(seed, 16, 1, 9);
    if (is_tilted(&attention)) {
        attention.keyclusters = (int32_t)test_pick(seed, 17, 1, 4);
        attention.rank = (int32_t)test_pick(seed, 18, 1, 3);
        attention.near = (int32_t)test_pick(seed, 19, 0, 2);
        attention.form = seed % 4 == 0 ? 2 : 3;
    }
    exact_head *head = exact_create(&attention, queries, keys, test_pick(seed, 12, 1, 5),
                                    test_pick(seed, 13, 1, 4));
    assert_non_null(head);
    head->scale = 0.3 + 0.2 * (double)(seed % 5);
    fill_normal(seed, 1, queries * head->dim, head->q);
    fill_normal(seed, 2, keys * head->dim, head->k);
    fill_normal(seed, 3, keys * head->value_dim, head->v);
    head->groups = random_integers(seed, 5, queries, MAX_CLUSTERS);
    head->top_keys = random_top_keys(seed, MAX_CLUSTERS, attention.topk, keys);
    int32_t *buckets = random_integers(seed, 6, attention.rounds * queries, 4);
    for (int64_t round = 0; round < attention.rounds; round++)
        exact_set_buckets(head, round, buckets + round * queries);
    free(buckets);
    if (is_tilted(&attention))
        fill_tilt(head, seed);
    assert_true(exact_is_known(head));
    return head;
}

/* Hides one key in four from every query. */
static bool hides(uint64_t seed, int64_t l) {
    return test_hash(seed, 23, (uint64_t)l) % 4 == 0;
}

/* A bias that hides some keys, dropout, and queries at the last positions. */
static void head_mask(exact_head *head, uint64_t seed) {
    const int64_t count = head->queries * head->keys;
    head->ahead = test_pick(seed, 17, 0, 3);
    head->bias = test_memory(count, sizeof *head->bias);
    head->factors = test_memory(count, sizeof *head->factors);
    fill_normal(seed, 8, count, head->bias);
    for (int64_t i = 0; i < count; i++) {
        const uint64_t bits = test_hash(seed, 9, (uint64_t)i);
        if (!facts_of(head->attention.kind)->has_masks) {
            head->factors[i] = 1;
            if (is_tilted(&head->attention) && hides(seed, i % head->keys))
                head->bias[i] = -INFINITY;
            continue;
        }
        head->factors[i] = bits % 4 == 0 ? 0 : 4.0 / 3;
        if (bits / 4 % 5 == 0)
            head->bias[i] = -INFINITY;
    }
    for (int64_t l = 0; l < head->keys && is_tilted(&head->attention); l++)
        if (hides(seed, l))
            ((int32_t *)head->key_clusters)[l] = -1;
}

static void head_destroy(exact_head *head) {
    free((void *)head->groups);
    free((void *)head->top_keys);
    free((void *)head->key_clusters);
    free((void *)head->projection);
    free((void *)head->dual);
    free((void *)head->shares);
    exact_destroy(head);
}

/* out: [N][Dv]. */
static void outputs(exact_head *head, double *out) {
    for (int64_t i = 0; i < head->queries; i++)
        exact_output(head, i, out + i * head->value_dim);
}

/* ---- Gradients by finite differences ---------------------------------------------- */

/* The loss is the sum of dout x out. out: [N][Dv]. */
static double loss(exact_head *head, const double *dout, double *out) {
    double sum = 0;
    outputs(head, out);
    for (int64_t i = 0; i < head->queries * head->value_dim; i++)
        sum += dout[i] * out[i];
    return sum;
}

/* A step across which a query's own choice changes has no derivative. */
static bool choice_is_stable(exact_head *head) {
    double smallest = INFINITY;
    for (int64_t i = 0; i < head->queries; i++) {
        exact_row(head, i);
        smallest = fmin(smallest, head->margin);
    }
    return smallest > 1e-3;
}

static void compare_gradient(exact_head *head, const double *dout, double *values,
                             const double *gradient, int64_t count) {
    const double step = 1e-5;
    double *out = test_memory(head->queries * head->value_dim, sizeof *out);
    for (int64_t i = 0; i < count; i++) {
        double before = values[i];
        values[i] = before + step;
        double above = loss(head, dout, out);
        values[i] = before - step;
        double below = loss(head, dout, out);
        values[i] = before;
        double difference = (above - below) / (2 * step);
        if (fabs(difference - gradient[i]) > 1e-7 * (1 + fabs(difference)))
            fail_msg("kind %d, element %lld of %lld: difference %.12g, gradient %.12g",
                     (int)head->attention.kind, (long long)i, (long long)count,
                     difference, gradient[i]);
    }
    free(out);
}

static void compare_gradients(exact_head *head, uint64_t seed) {
    int64_t query_size = head->queries * head->dim, key_size = head->keys * head->dim;
    int64_t value_size = head->keys * head->value_dim;
    int64_t out_size = head->queries * head->value_dim;
    double *dq = test_memory(query_size, sizeof *dq);
    double *dk = test_memory(key_size, sizeof *dk);
    double *dv = test_memory(value_size, sizeof *dv);
    double *dout = test_memory(out_size, sizeof *dout);
    head->dbias = test_memory(head->queries * head->keys, sizeof(double));
    fill_normal(seed, 4, out_size, dout);
    for (int64_t i = 0; i < head->queries; i++)
        exact_output_gradient(head, i, dout + i * head->value_dim, dq, dk, dv);
    compare_gradient(head, dout, head->q, dq, query_size);
    compare_gradient(head, dout, head->k, dk, key_size);
    compare_gradient(head, dout, head->v, dv, value_size);
    if (head->bias)
        compare_gradient(head, dout, head->bias, head->dbias, head->queries * head->keys);
    free(dq), free(dk), free(dv), free(dout), free(head->dbias);
}

/* Every kind except auto, with either normaliser, which some kinds ignore. */
static void gradients_are_those_of_differences(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++) {
        int checked = 0;
        for (uint64_t seed = 1; seed <= 20 && !facts_of((shoal_kind)kind)->picks; seed++)
            for (int normaliser = 0; normaliser < 2; normaliser++) {
                exact_head *head =
                    head_create((shoal_attention){.kind = (shoal_kind)kind,
                                                  .normaliser = normaliser},
                                seed);
                if (choice_is_stable(head)) {
                    compare_gradients(head, seed);
                    checked++;
                }
                head_destroy(head);
            }
        assert_true(checked >= 10 || facts_of((shoal_kind)kind)->picks);
    }
}

static void masks_too(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++) {
        const shoal_kind_info *facts = facts_of((shoal_kind)kind);
        int checked = 0;
        for (uint64_t seed = 1; seed <= 40 && !facts->picks; seed++) {
            exact_head *head =
                head_create((shoal_attention){.kind = (shoal_kind)kind}, seed);
            head_mask(head, seed);
            if (choice_is_stable(head)) {
                compare_gradients(head, seed);
                checked++;
            }
            head_destroy(head);
        }
        assert_true(checked >= 10 || facts->picks);
    }
}

/* ---- Weights -------------------------------------------------------------------- */

/* Rows of weights sum to 1 in every kind; to 0 for a query that sees no key. Only the
   dipole of shoal can make a weight negative. */
static void weights_are_averages(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++) {
        if (facts_of((shoal_kind)kind)->picks)
            continue;
        exact_head *head = head_create((shoal_attention){.kind = (shoal_kind)kind}, 5);
        for (int64_t i = 0; i < head->queries; i++) {
            const double *weights = exact_row(head, i);
            double sum = 0;
            bool sees = facts_of((shoal_kind)kind)->has_clusters;
            for (int64_t l = 0; l < head->keys; l++) {
                assert_true(weights[l] >= 0 || is_tilted(&head->attention));
                sum += weights[l];
                sees |= head->counts[l] > 0;
            }
            assert_true(fabs(sum - (sees ? 1 : 0)) < 1e-12);
        }
        head_destroy(head);
    }
}

/* A query that equals its cluster's centroid has the same weights with either
   normaliser, those of full attention. */
static void normalisers_agree_on_a_centroid(void **state) {
    for (uint64_t seed = 1; seed <= 5; seed++) {
        exact_head *head =
            head_create((shoal_attention){.kind = SHOAL_KIND_I_CLUSTERED}, seed);
        int64_t size = head->queries * head->value_dim;
        double *outs[3];
        for (int64_t i = 0; i < head->queries * head->dim; i++)
            head->q[i] = head->q[i % head->dim];
        for (int which = 0; which < 3; which++) {
            head->attention.kind = which == 2 ? SHOAL_KIND_FULL : SHOAL_KIND_I_CLUSTERED;
            head->attention.normaliser = which == 1 ? SHOAL_NORMALISER_QUERY
                                                    : SHOAL_NORMALISER_CLUSTER;
            outs[which] = test_memory(size, sizeof(double));
            outputs(head, outs[which]);
        }
        for (int64_t i = 0; i < size; i++)
            assert_true(fabs(outs[1][i] - outs[0][i]) < 1e-12 &&
                        fabs(outs[1][i] - outs[2][i]) < 1e-12);
        for (int which = 0; which < 3; which++)
            free(outs[which]);
        head_destroy(head);
    }
}

static void check_two_outputs(exact_head *head, shoal_kind kind, double first,
                              double second) {
    double out[2];
    head->attention.kind = kind;
    outputs(head, out);
    assert_true(fabs(out[0] - first) < 1e-12 && fabs(out[1] - second) < 1e-12);
}

/* Two queries, two keys, by hand: scores 0 and log 3 give weights 1/4 and 3/4. */
static void worked_example(void **state) {
    const int32_t one_group[] = {0, 0}, second[] = {1}, first[] = {0};
    shoal_attention attention = {.topk = 1, .clusters = 1};
    exact_head *head = exact_create(&attention, 2, 2, 1, 1);
    assert_non_null(head);
    memcpy(head->q, (double[]){0, 1}, 2 * sizeof(double));
    memcpy(head->k, (double[]){0, log(3)}, 2 * sizeof(double));
    memcpy(head->v, (double[]){4, 8}, 2 * sizeof(double));
    head->groups = one_group;
    head->top_keys = second;
    check_two_outputs(head, SHOAL_KIND_FULL, 6, 7);
    /* The centroid is 1/2: scores 0 and log(3) / 2. */
    const double shared = (4 + 8 * sqrt(3)) / (1 + sqrt(3));
    check_two_outputs(head, SHOAL_KIND_CLUSTERED, shared, shared);
    /* Key 1 with the query's score, key 0 with the centroid's. */
    check_two_outputs(head, SHOAL_KIND_Q_CLUSTERED, 6, 7);
    head->top_keys = first; /* the other way round: 1 : sqrt(3) for both */
    check_two_outputs(head, SHOAL_KIND_Q_CLUSTERED, shared, shared);
    /* Query 0 has a tie, which goes to the lower key. */
    check_two_outputs(head, SHOAL_KIND_ORACLE_TOP, 4, 8);
    exact_destroy(head);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_differences),
        cmocka_unit_test(masks_too),
        cmocka_unit_test(weights_are_averages),
        cmocka_unit_test(normalisers_agree_on_a_centroid),
        cmocka_unit_test(worked_example),
    };
    return cmocka_run_group_tests_name("exact", tests, NULL, NULL);
}
