/* lsh over many chunks: buckets by definition, then forward and backward compared with
   the reference using those buckets. */
#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "cases.h"
#include "support.h"

#include "attention/lsh.h"

static const int64_t LENGTHS[] = {1, 2, 31, 32, 33, 64, 65, 66, 97, 128, 200, 333};

static case_spec lsh_spec(int64_t n, int32_t rounds, uint64_t seed) {
    return (
        case_spec){.attention = {.kind = SHOAL_KIND_LSH, .rounds = rounds, .seed = seed},
                   .batch = 2,
                   .heads = 2,
                   .queries = n,
                   .dim = test_pick(seed, 1, 1, 40),
                   .value_dim = test_pick(seed, 2, 1, 30),
                   .layout = (memory_layout)(seed % LAYOUT_COUNT),
                   .ragged = seed % 3 == 0,
                   .seed = seed};
}

/* ---- Buckets ---------------------------------------------------------------------- */

static void bucket_counts(void **state) {
    const int64_t expected[][2] = {{1, 2},   {32, 2},  {64, 2},     {65, 4},
                                   {128, 4}, {129, 6}, {4096, 128}, {4097, 130}};
    for (int64_t i = 0; i < COUNT_OF(expected); i++)
        assert_int_equal(sh_lsh_bucket_count(expected[i][0]), expected[i][1]);
}

/* The product of a unit query with the vector of a bucket. */
static double product(const attention_case *c, const float *q, int64_t round,
                      int64_t bucket, int64_t half) {
    const uint64_t column = (uint64_t)round << 48 | (uint64_t)(bucket % half) << 17;
    double sum = 0, length = 0;
    for (int64_t d = 0; d < c->spec.dim; d++) {
        sum += (double)q[d] * (double)random_normal(c->spec.attention.seed,
                                                    STREAM_ROTATIONS,
                                                    column | (uint64_t)d);
        length += (double)q[d] * (double)q[d];
    }
    return (bucket < half ? sum : -sum) / sqrt(length);
}

/* No bucket is better than the chosen one, and no earlier one is equal, up to
   rounding. */
static void check_bucket(const attention_case *c, const float *q, int64_t round,
                         int32_t bucket, int64_t buckets) {
    assert_in_range(bucket, 0, buckets - 1);
    double chosen = product(c, q, round, bucket, buckets / 2);
    for (int64_t other = 0; other < buckets; other++)
        assert_true(product(c, q, round, other, buckets / 2) < chosen + 1e-5);
}

static void buckets_are_the_largest_products(void **state) {
    case_spec spec = lsh_spec(333, 3, 10);
    attention_case c = case_create(&spec);
    shoal_context *context = test_context(NULL, 1);
    shoal_plan *plan = case_plan(context, &c, 0);
    int32_t *buckets = test_memory(spec.queries, sizeof *buckets);
    for (int64_t round = 0; round < 3; round++) {
        sh_lsh_buckets(plan, &c.inputs, 1, 1, round, buckets);
        for (int64_t i = 0; i < c.query_lengths[1]; i++)
            check_bucket(&c, tensor_row(&c.q, 1, 1, i), round, buckets[i],
                         sh_lsh_bucket_count(c.query_lengths[1]));
    }
    free(buckets);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

static int32_t *buckets_on(const char *isa, const attention_case *c) {
    int32_t *buckets = test_memory(c->spec.queries, sizeof *buckets);
    shoal_context *context = test_context(isa, 1);
    shoal_plan *plan = case_plan(context, c, 0);
    sh_lsh_buckets(plan, &c->inputs, 0, 1, 1, buckets);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    return buckets;
}

/* Buckets do not depend on the length of a query either; 0 and NaN go to the first
   bucket. */
static void buckets_are_the_same_everywhere(void **state) {
    case_spec spec = lsh_spec(300, 2, 5);
    attention_case c = case_create(&spec), scaled = case_create(&spec);
    for (int64_t i = 0; i < spec.queries; i++)
        for (int64_t d = 0; d < spec.dim; d++) {
            float *q = tensor_row(&c.q, 0, 1, i) + d;
            *q = i == 7 ? 0 : i == 9 && d == 0 ? NAN : *q;
            tensor_row(&scaled.q, 0, 1, i)[d] = *q * 1024;
        }
    int32_t *first = buckets_on("scalar", &c);
    assert_int_equal(first[7], 0);
    assert_int_equal(first[9], 0);
    for (int isa = 0; test_isa(isa); isa++) {
        int32_t *again = buckets_on(test_isa(isa), isa % 2 ? &scaled : &c);
        assert_memory_equal(first, again, (size_t)spec.queries * sizeof *first);
        free(again);
    }
    free(first);
    case_destroy(&c);
    case_destroy(&scaled);
}

/* ---- Comparison with the reference ------------------------------------------------ */

static void check_on(attention_case *c, const char *isa, int threads) {
    shoal_context *context = test_context(isa, threads);
    shoal_plan *plan = case_run(context, c);
    check_everything(c, plan);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
}

/* One round uses chunks from 65 positions on; several rounds count pairs up to 64
   positions per round. */
static void many_chunks(void **state) {
    for (int64_t i = 0; i < COUNT_OF(LENGTHS); i++)
        for (int isa = 0; test_isa(isa); isa++)
            for (int32_t rounds = 1; rounds <= 5; rounds += 1 + (int32_t)(i % 4)) {
                case_spec spec = lsh_spec(LENGTHS[i], rounds, 50 + (uint64_t)i);
                attention_case c = case_create(&spec);
                check_on(&c, test_isa(isa), 1 + (int)(i % 3));
                case_destroy(&c);
            }
}

/* A zero query has the key 0 and still a gradient, by chunks and counted. */
static void zero_queries(void **state) {
    for (int32_t rounds = 1; rounds <= 2; rounds++) {
        case_spec spec = lsh_spec(80, rounds, 35);
        attention_case c = case_create(&spec);
        for (int64_t i = 3; i < 80; i += 20)
            for (int64_t d = 0; d < spec.dim; d++)
                tensor_row(&c.q, 0, 0, i)[d] = 0;
        check_on(&c, NULL, 2);
        case_destroy(&c);
    }
}

/* Few positions in two opposite directions, so that no round shows the last chunk a key
   of the first direction: a whole block of keys. */
static void keys_that_no_round_shows(void **state) {
    case_spec spec = lsh_spec(256, 4, 36);
    attention_case c = case_create(&spec);
    for (int64_t i = 0; i < 256; i++)
        tensor_row(&c.q, 0, 0, i)[0] = i < 128 ? 100 : -100;
    check_on(&c, NULL, 1);
    case_destroy(&c);
}

/* Most keys are hidden, so that some queries see no visible key; by chunks and counted.
   Keys that no round shows are not used instead. */
static void few_keys_are_left(void **state) {
    for (int32_t rounds = 1; rounds <= 4; rounds += 3)
        for (int64_t n = 1; n <= 200; n += 199) {
            case_spec spec = lsh_spec(n, rounds, 40);
            spec.key_bias = PAIRS_WHOLE;
            attention_case c = case_create(&spec);
            for (int64_t at = 0; at < spec.batch * spec.heads * n; at++)
                c.key_bias[at] = at % 50 == 7 ? 0.5f : -INFINITY;
            check_on(&c, NULL, 2);
            case_destroy(&c);
        }
}

static void check_threads(int32_t rounds) {
    case_spec spec = lsh_spec(700, rounds, 25);
    for (int threads = 2; threads <= 5; threads++) {
        attention_case one = case_create(&spec), several = case_create(&spec);
        shoal_context *contexts[] = {test_context(NULL, 1), test_context(NULL, threads)};
        shoal_plan *plans[] = {case_run(contexts[0], &one),
                               case_run(contexts[1], &several)};
        case_check_identical(&one, &several);
        for (int i = 0; i < 2; i++) {
            shoal_plan_destroy(plans[i]);
            shoal_context_destroy(contexts[i]);
        }
        case_destroy(&one);
        case_destroy(&several);
    }
}

static void any_number_of_threads(void **state) {
    check_threads(3);
    check_threads(16); /* 64 times 16 is more than 700: pairs are counted */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_counts),
        cmocka_unit_test(buckets_are_the_largest_products),
        cmocka_unit_test(buckets_are_the_same_everywhere),
        cmocka_unit_test(many_chunks),
        cmocka_unit_test(zero_queries),
        cmocka_unit_test(keys_that_no_round_shows),
        cmocka_unit_test(few_keys_are_left),
        cmocka_unit_test(any_number_of_threads),
    };
    return cmocka_run_group_tests_name("lsh", tests, NULL, NULL);
}
