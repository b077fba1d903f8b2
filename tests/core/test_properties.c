/* Properties that hold for any numbers: kinds that become full attention, and the error
   estimate. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

/* ---- Kinds that become full attention --------------------------------------------- */

/* Kinds with clusters; those with exact keys from FIRST_IMPROVED on. */
enum { FIRST_IMPROVED = 2 };
static const char *const GROUPED[] = {
    "clustered-1:seed=3",
    "clustered-1:groups=keys,seed=3",
    "i-clustered-1:seed=3",
    "i-clustered-1:groups=keys,seed=3",
    "i-clustered-1:normaliser=query,seed=3",
    "q-clustered-1:seed=3",
    "shoal-1:seed=3",
};

/* Runs the case and compares it as if its kind were full. */
static void check_equals_full(attention_case *c) {
    for (int i = 0; test_isa(i); i++) {
        case_run_on(test_isa(i), 2, c);
        check_groups(c, c->plan);
        shoal_kind kind = c->spec.attention.kind;
        c->spec.attention.kind = SHOAL_KIND_FULL;
        check_forward(c, c->plan);
        check_gradients(c, c->plan);
        c->spec.attention.kind = kind;
    }
}

static case_spec clustered_spec(const char *kind, int32_t clusters, int32_t topk) {
    shoal_attention attention = spelled(kind);
    attention.clusters = clusters;
    attention.topk = attention.topk != 0 ? topk : 0;
    return (case_spec){.attention = attention,
                       .batch = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .queries = 70,
                       .keys = 45,
                       .dim = 12,
                       .value_dim = 9,
                       .seed = 11};
}

static void no_more_queries_than_clusters(void **state) {
    for (int64_t kind = 0; kind < COUNT_OF(GROUPED); kind++)
        for (int32_t clusters = 70; clusters <= 71; clusters++) {
            case_spec spec = clustered_spec(GROUPED[kind], clusters, 4);
            attention_case c = case_create(&spec);
            check_equals_full(&c);
            case_destroy(&c);
        }
}

static void every_key_is_a_top_key(void **state) {
    for (int64_t kind = FIRST_IMPROVED; kind < COUNT_OF(GROUPED); kind++)
        for (int32_t topk = 45; topk <= 47; topk++) {
            case_spec spec = clustered_spec(GROUPED[kind], 7, topk);
            spec.layout = LAYOUT_GAPS;
            attention_case c = case_create(&spec);
            check_equals_full(&c);
            case_destroy(&c);
        }
}

/* Lengths may make it equal to full for one sequence of the batch and not for
   another. */
static void check_short_sequences(const char *kind) {
    case_spec spec = clustered_spec(kind, 30, 20);
    spec.batch = 3;
    spec.ragged = true;
    attention_case c = case_create(&spec);
    for (int64_t b = 0; b < spec.batch; b++) {
        c.query_lengths[b] = b == 1 ? 70 : 29 + b / 2;
        c.key_lengths[b] = b == 1 ? 20 : 45;
    }
    case_spec filled = spec;
    filled.ragged = false;
    attention_case source = case_create(&filled);
    memcpy(c.q.data, source.q.data, sizeof(float) * (size_t)c.q.elements);
    memcpy(c.k.data, source.k.data, sizeof(float) * (size_t)c.k.elements);
    memcpy(c.v.data, source.v.data, sizeof(float) * (size_t)c.v.elements);
    memcpy(c.dout.data, source.dout.data, sizeof(float) * (size_t)c.dout.elements);
    check_equals_full(&c);
    case_check_surroundings(&c);
    case_destroy(&c);
    case_destroy(&source);
}

static void short_sequences_equal_full(void **state) {
    for (int64_t kind = FIRST_IMPROVED; kind < COUNT_OF(GROUPED); kind++)
        check_short_sequences(GROUPED[kind]);
}

/* Clusters given by the caller, one per query, in another order. */
static void singleton_groups(void **state) {
    for (int64_t kind = 0; kind < COUNT_OF(GROUPED); kind++) {
        case_spec spec = clustered_spec(GROUPED[kind], 70, 4);
        spec.own_groups = true;
        attention_case c = case_create(&spec);
        for (int64_t i = 0; i < spec.batch * spec.heads * spec.queries; i++)
            c.groups[i] = (int32_t)(i * 31 % spec.queries);
        check_equals_full(&c);
        case_destroy(&c);
    }
}

static void identical_queries(void **state) {
    for (int64_t kind = 0; kind < COUNT_OF(GROUPED); kind++) {
        case_spec spec = clustered_spec(GROUPED[kind], 6, 5);
        attention_case c = case_create(&spec);
        for (int64_t b = 0; b < spec.batch; b++)
            for (int64_t h = 0; h < spec.heads; h++)
                for (int64_t i = 1; i < spec.queries; i++)
                    memcpy(tensor_row(&c.q, b, h, i), tensor_row(&c.q, b, h, 0),
                           sizeof(float) * (size_t)spec.dim);
        case_run_on(NULL, 2, &c);
        check_groups(&c, c.plan);
        check_gradients(&c, c.plan);
        c.spec.attention.kind = SHOAL_KIND_FULL;
        check_forward(&c, c.plan);
        case_destroy(&c);
    }
}

/* ---- The error estimate -------------------------------------------------------- */

/* Turns a head into the exact attention that its kind approximates: for lsh, full over
   unit-length queries. */
static void approximate_nothing(exact_head *head) {
    const shoal_kind_info *facts = facts_of(head->attention.kind);
    for (int64_t l = 0; l < head->keys && facts->keys_are_queries; l++) {
        double *key = head->k + l * head->dim, square = 0;
        for (int64_t d = 0; d < head->dim; d++) {
            key[d] = head->q[l * head->dim + d];
            square += key[d] * key[d];
        }
        for (int64_t d = 0; d < head->dim && facts->unit_keys; d++)
            key[d] /= sqrt(square);
    }
    head->attention.kind = SHOAL_KIND_FULL;
}

/* The expected estimate if every valid query is sampled. */
static shoal_error true_error(const attention_case *c) {
    double difference = 0, exact = 0, largest = 0, centred = 0, length = 0;
    int64_t live = 0, value_dim = c->spec.value_dim;
    for (int64_t head = 0; head < c->spec.batch * c->spec.heads; head++) {
        int64_t b = head / c->spec.heads, h = head % c->spec.heads;
        exact_head *one = case_head(c, NULL, b, h);
        double *out = test_memory(value_dim, sizeof *out);
        double *means = test_memory(2 * value_dim, sizeof *means);
        approximate_nothing(one);
        for (int64_t i = 0; i < one->queries; i++) {
            exact_output(one, i, out);
            for (int64_t d = 0; d < value_dim; d++) {
                double error = fabs(out[d] - (double)tensor_row(&c->out, b, h, i)[d]);
                const double made = (double)tensor_row(&c->out, b, h, i)[d];
                means[d] += (made - out[d]) / (double)one->queries;
                means[value_dim + d] += made / (double)one->queries;
                centred += error * error;
                length += made * made;
                difference += error * error;
                exact += out[d] * out[d];
                largest = fmax(largest, error);
            }
        }
        live += one->queries;
        for (int64_t d = 0; d < value_dim; d++) {
            centred -= (double)one->queries * means[d] * means[d];
            length -= (double)one->queries * means[value_dim + d] * means[value_dim + d];
        }
        free(out), free(means);
        exact_destroy(one);
    }
    return (shoal_error){.samples = live,
                         .relative_error = exact > 0 ? sqrt(difference / exact) : 0,
                         .largest_error = largest,
                         .centred_error = length > 0 ? sqrt(fmax(centred, 0) / length)
                                                     : 0};
}

/* The default scale is rounded to float in the library and not in the reference. */
static bool nearly(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b) + 1e-7;
}

static void check_estimate(const case_spec *spec) {
    attention_case c = case_create(spec);
    shoal_context *context = test_context(NULL, 2);
    shoal_plan *plan = case_plan(context, &c, 0);
    case_forward(plan, &c);
    shoal_error truth = true_error(&c), all, some, again;
    shoal_status status =
        shoal_error_estimate(plan, &c.inputs, c.out.data, 1000000, 1, &all);
    assert_int_equal(status, SHOAL_OK);
    assert_int_equal(all.samples, truth.samples);
    if (!nearly(all.relative_error, truth.relative_error) ||
        !nearly(all.largest_error, truth.largest_error) ||
        fabs(all.centred_error - truth.centred_error) > 1e-5 * truth.centred_error + 1e-6)
        fail_msg("estimated %g, %g and %g, truly %g, %g and %g: %s", all.relative_error,
                 all.largest_error, all.centred_error, truth.relative_error,
                 truth.largest_error, truth.centred_error, case_text(&c));
    assert_int_equal(shoal_error_estimate(plan, &c.inputs, c.out.data, 17, 5, &some),
                     SHOAL_OK);
    assert_int_equal(shoal_error_estimate(plan, &c.inputs, c.out.data, 17, 5, &again),
                     SHOAL_OK);
    assert_int_equal(some.samples, 17);
    assert_true(some.relative_error == again.relative_error);
    assert_true(some.largest_error <= all.largest_error);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

static void estimate_of_everything_is_the_error(void **state) {
    const char *kinds[TEST_KINDS + 1];
    test_kinds((shoal_attention){.clusters = 5, .topk = 6, .rounds = 2}, kinds);
    for (int layout = 0; layout < LAYOUT_COUNT; layout++)
        for (int64_t kind = 0; kinds[kind]; kind++) {
            case_spec spec = clustered_spec("clustered-5", 5, 0);
            spec.attention = spelled(kinds[kind]);
            spec.layout = (memory_layout)layout;
            spec.ragged = layout != LAYOUT_CONTIGUOUS;
            check_estimate(&spec);
        }
}

/* An output with a known error in one place. */
static void estimate_sees_one_wrong_number(void **state) {
    case_spec spec = clustered_spec("clustered-5", 5, 0);
    spec.attention = (shoal_attention){.kind = SHOAL_KIND_FULL};
    attention_case c = case_create(&spec);
    shoal_context *context = test_context(NULL, 2);
    shoal_plan *plan = case_plan(context, &c, 0);
    case_forward(plan, &c);
    tensor_row(&c.out, 1, 2, 60)[3] += 0.5f;
    shoal_error error;
    assert_int_equal(shoal_error_estimate(plan, &c.inputs, c.out.data, 560, 1, &error),
                     SHOAL_OK);
    assert_int_equal(error.samples, 560);
    assert_true(fabs(error.largest_error - 0.5) < 1e-5);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

/* A few samples find one query that has nearly all of the error, and their estimate is
   unbiased, with and without it. */
static void few_samples_tell_the_error(void **state) {
    enum { SEEDS = 60 };
    for (int spoilt = 0; spoilt < 2; spoilt++) {
        case_spec spec = clustered_spec("clustered-5", 5, 0);
        spec.attention = spelled("q-clustered-5:topk=6");
        attention_case c = case_create(&spec);
        shoal_context *context = test_context(NULL, 2);
        shoal_plan *plan = case_plan(context, &c, 0);
        case_forward(plan, &c);
        if (spoilt)
            tensor_row(&c.out, 1, 2, 60)[3] += 30;
        const double truth = true_error(&c).relative_error;
        int near = 0;
        double mean_square = 0;
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            shoal_error few;
            assert_int_equal(shoal_error_estimate(plan, &c.inputs, c.out.data, 24, seed,
                                                  &few),
                             SHOAL_OK);
            near += fabs(few.relative_error - truth) <= 0.4 * truth;
            mean_square += pow(few.relative_error / truth, 2) / SEEDS;
        }
        if (near < SEEDS * 9 / 10 || fabs(mean_square - 1) > 0.15)
            fail_msg("spoilt %d: %d of %d near, mean square %g", spoilt, near, SEEDS,
                     mean_square);
        shoal_plan_destroy(plan);
        shoal_context_destroy(context);
        case_destroy(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_queries_than_clusters),
        cmocka_unit_test(every_key_is_a_top_key),
        cmocka_unit_test(short_sequences_equal_full),
        cmocka_unit_test(singleton_groups),
        cmocka_unit_test(identical_queries),
        cmocka_unit_test(estimate_of_everything_is_the_error),
        cmocka_unit_test(estimate_sees_one_wrong_number),
        cmocka_unit_test(few_samples_tell_the_error),
    };
    return cmocka_run_group_tests_name("properties", tests, NULL, NULL);
}
