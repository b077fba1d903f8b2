/* Causal order, biases, masks and dropout, in every kind that supports them: compared
   with the reference on random problems, and properties. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

enum { PROBLEMS_PER_KIND = 10 };

static const int64_t LENGTHS[] = {0,  1,  2,  3,  7,  8,  9,   16,  17,  24,
                                  25, 33, 47, 64, 65, 97, 129, 130, 257, 300};
static const int64_t SIZES[] = {1, 3, 4, 8, 16, 17, 33};
static const int64_t HEADS[][2] = {{1, 0}, {2, 0}, {2, 1}, {4, 2}, {6, 2}};
static const int32_t TOPKS[] = {1, 2, 3, 8, 9, 31, 64, 300};
static const float DROPOUTS[] = {0, 0, 0.1f, 0.5f, 1};

/* A random entry of a list. */
#define CHOOSE(list, seed, stream) (list)[test_pick(seed, stream, 0, COUNT_OF(list) - 1)]

static pair_layout random_pairs(uint64_t seed, uint64_t stream) {
    const int64_t picked = test_pick(seed, stream, -PAIRS_COUNT, PAIRS_COUNT - 1);
    return picked > 0 ? (pair_layout)picked : PAIRS_NONE;
}

/* Key clusters and neighbouring positions. */
static void vary_shoal(uint64_t seed, shoal_attention *attention) {
    static const int32_t clusters[] = {1, 3, 8, 24}, blocks[] = {1, 3, 8, 24};
    if (attention->kind != SHOAL_KIND_SHOAL)
        return;
    attention->keyclusters = CHOOSE(clusters, seed, 30);
    attention->rank = (int32_t)test_pick(seed, 31, 1, 6);
    attention->block = CHOOSE(blocks, seed, 32);
    attention->near = (int32_t)test_pick(seed, 33, 0, 4);
    attention->pool = CHOOSE(TOPKS, seed, 34);
}

static case_spec random_spec(shoal_kind kind, uint64_t seed) {
    const int64_t heads = test_pick(seed, 1, 0, COUNT_OF(HEADS) - 1);
    case_spec spec = {.attention = facts_of(kind)->defaults,
                      .seed = seed,
                      .batch = test_pick(seed, 2, 1, 3),
                      .heads = HEADS[heads][0],
                      .kv_heads = HEADS[heads][1],
                      .dim = CHOOSE(SIZES, seed, 3),
                      .value_dim = CHOOSE(SIZES, seed, 4),
                      .layout = (memory_layout)test_pick(seed, 5, 0, LAYOUT_COUNT - 1),
                      .ragged = test_pick(seed, 6, 0, 1) == 0,
                      .causal = test_pick(seed, 7, 0, 2) > 0,
                      .bias = random_pairs(seed, 8),
                      .mask = random_pairs(seed, 9),
                      .dropout = CHOOSE(DROPOUTS, seed, 10),
                      .queries = CHOOSE(LENGTHS, seed, 11),
                      .keys = CHOOSE(LENGTHS, seed, 12)};
    if (seed % 4 == 1 || !facts_of(kind)->has_masks)
        spec.key_bias = (pair_layout)test_pick(seed, 15, PAIRS_WHOLE, PAIRS_SHARED);
    if (!facts_of(kind)->has_masks) {
        spec.causal = false;
        spec.bias = spec.mask = PAIRS_NONE;
        spec.dropout = 0;
    }
    if (spec.attention.clusters > 0)
        spec.attention.clusters = CHOOSE(TOPKS, seed, 16);
    if (facts_of(kind)->has_top_keys && seed % 2)
        spec.attention.normaliser = SHOAL_NORMALISER_QUERY;
    if (seed % 3 == 0)
        spec.keys = spec.queries;
    if (spec.attention.topk > 0)
        spec.attention.topk = CHOOSE(TOPKS, seed, 13);
    if (spec.attention.window > 0)
        spec.attention.window = CHOOSE(TOPKS, seed, 14);
    vary_shoal(seed, &spec.attention);
    if (spec.attention.rounds > 0)
        spec.attention.rounds = (int32_t)test_pick(seed, 17, 1, 4);
    return spec;
}

static void check_case(const case_spec *spec) {
    for (int i = 0; test_isa(i); i++) {
        attention_case c = case_create(spec);
        case_calm(&c);
        case_run_on(test_isa(i), 2, &c);
        check_everything(&c, c.plan);
        case_destroy(&c);
    }
}

/* state: properties of the kind. */
static void check_kind(void **state) {
    shoal_kind kind = ((const shoal_kind_info *)*state)->defaults.kind;
    const uint64_t count = kind == SHOAL_KIND_SHOAL ? 40 : PROBLEMS_PER_KIND;
    for (uint64_t problem = 1; problem <= count; problem++) {
        case_spec spec = random_spec(kind, 1000 * (uint64_t)kind + problem);
        check_case(&spec);
    }
}

/* ---- Properties ------------------------------------------------------------------- */

static case_spec long_spec(shoal_kind kind) {
    return (case_spec){.attention = facts_of(kind)->defaults,
                       .batch = 1,
                       .heads = 2,
                       .kv_heads = 1,
                       .queries = 1000,
                       .keys = 1000,
                       .dim = 8,
                       .value_dim = 8,
                       .causal = true,
                       .bias = PAIRS_SHARED,
                       .dropout = 0.25f,
                       .seed = 21};
}

static void threads_do_not_matter(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++) {
        case_spec spec = long_spec((shoal_kind)kind);
        spec.key_bias = PAIRS_SHARED;
        spec.queries = spec.keys = 600;
        if (!facts_of((shoal_kind)kind)->has_masks) {
            spec.causal = false;
            spec.bias = PAIRS_NONE;
            spec.dropout = 0;
        }
        attention_case one = case_create(&spec), five = case_create(&spec);
        case_run_on(NULL, 1, &one);
        case_run_on(NULL, 5, &five);
        case_check_identical(&one, &five);
        case_destroy(&one);
        case_destroy(&five);
    }
}

/* Blocks above the diagonal are not computed: a NaN among the last keys does not reach
   the first queries, as it would if its weight of 0 were multiplied. */
static void the_future_is_not_looked_at(void **state) {
    for (int isa = 0; test_isa(isa); isa++) {
        case_spec spec = long_spec(SHOAL_KIND_FULL);
        spec.bias = PAIRS_NONE;
        spec.dropout = 0;
        attention_case c = case_create(&spec);
        for (int64_t l = 900; l < spec.keys; l++)
            tensor_row(&c.k, 0, 0, l)[0] = tensor_row(&c.v, 0, 0, l)[0] = NAN;
        case_run_on(test_isa(isa), 2, &c);
        for (int64_t i = 0; i < 800; i++)
            assert_true(isfinite(tensor_row(&c.out, 0, 1, i)[0]) &&
                        isfinite(tensor_row(&c.dq, 0, 1, i)[0]));
        assert_true(isnan(tensor_row(&c.out, 0, 1, 950)[0]));
        case_destroy(&c);
    }
}

/* Decoding: the last query alone, with all keys, gives the last row. */
static void queries_are_the_last_positions(void **state) {
    const char *const kinds[] = {"full", "local-16", "strided-16", "oracle-top-8"};
    for (int64_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        case_spec spec = long_spec(SHOAL_KIND_FULL);
        spec.attention = spelled(kinds[kind]);
        spec.bias = PAIRS_NONE;
        spec.dropout = 0;
        spec.kv_heads = spec.heads = 1;
        attention_case all = case_create(&spec);
        case_run_on(NULL, 2, &all);
        spec.queries = 3;
        attention_case some = case_create(&spec);
        for (int64_t i = 0; i < 3; i++)
            memcpy(tensor_row(&some.q, 0, 0, i), tensor_row(&all.q, 0, 0, 997 + i),
                   (size_t)spec.dim * sizeof(float));
        case_run_on(NULL, 2, &some);
        for (int64_t i = 0; i < 3; i++)
            for (int64_t d = 0; d < spec.value_dim; d++)
                assert_true(fabs((double)tensor_row(&some.out, 0, 0, i)[d] -
                                 (double)tensor_row(&all.out, 0, 0, 997 + i)[d]) < 1e-6);
        case_destroy(&all);
        case_destroy(&some);
    }
}

/* A mask is a bias of 0 and -inf, to the bit. */
static void masks_are_biases(void **state) {
    for (int layout = PAIRS_WHOLE; layout < PAIRS_COUNT; layout++) {
        case_spec spec = long_spec(SHOAL_KIND_FULL);
        spec.queries = 130;
        spec.keys = 200;
        spec.bias = PAIRS_NONE;
        spec.mask = (pair_layout)layout;
        attention_case masked = case_create(&spec);
        spec.mask = PAIRS_NONE;
        spec.bias = (pair_layout)layout;
        attention_case biased = case_create(&spec);
        const shoal_pair_strides *s = masked.inputs.mask_strides;
        const int64_t last = layout == PAIRS_WHOLE
                                 ? spec.heads * spec.queries * spec.keys - 1
                                 : (spec.heads - 1) * s->head +
                                       (spec.queries - 1) * s->query +
                                       (spec.keys - 1) * s->key;
        for (int64_t at = 0; at <= last; at++)
            biased.bias[at] = masked.mask[at] ? 0 : -INFINITY;
        case_run_on(NULL, 2, &masked);
        case_run_on(NULL, 2, &biased);
        case_check_identical(&masked, &biased);
        case_destroy(&masked);
        case_destroy(&biased);
    }
}

/* If every score is the lowest finite number, as in PyTorch's masks, all keys have the
   same weight; if every score is -inf, none has. */
static void lowest_biases(void **state) {
    float q[4] = {1, 2, 3, 4}, k[4] = {1, 1, 2, 2}, v[4] = {1, 2, 3, 6}, out[4];
    float bias[16];
    for (int i = 0; i < 16; i++)
        bias[i] = i < 4 ? -INFINITY : i < 8 ? -3.40282347e38f : 0;
    bias[8] = bias[9] = bias[10] = -INFINITY;
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = 1,
                                   .queries = 4,
                                   .keys = 4,
                                   .dim = 1,
                                   .value_dim = 1};
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .bias = bias};
    for (int isa = 0; test_isa(isa); isa++) {
        shoal_context *context = test_context(test_isa(isa), 1);
        assert_int_equal(shoal_attend(context, "full", &problem, &inputs, out), SHOAL_OK);
        assert_true(out[0] == 0 && fabsf(out[1] - 3) < 1e-6f && out[2] == 6);
        shoal_context_destroy(context);
    }
}

static void dropout_keeps_the_mean(void **state) {
    const float rates[] = {0, 0.1f, 0.5f, 0.9f};
    for (int64_t rate = 0; rate < COUNT_OF(rates); rate++) {
        double sum = 0, zeros = 0;
        const int64_t count = 40000;
        for (int64_t i = 0; i < count; i++) {
            const float factor =
                shoal_dropout_factor(rates[rate], 7, i % 3, i / 100, i % 101);
            sum += (double)factor;
            zeros += factor == 0;
        }
        assert_true(fabs(sum / (double)count - 1) < 0.05);
        assert_true(fabs(zeros / (double)count - (double)rates[rate]) < 0.01);
    }
    assert_true(shoal_dropout_factor(1, 7, 0, 0, 0) == 0);
}

/* An exact kind with a mask has no error. */
static void errors_are_estimated(void **state) {
    case_spec spec = long_spec(SHOAL_KIND_FULL);
    spec.queries = spec.keys = 150;
    spec.dropout = 0;
    spec.mask = PAIRS_OF_QUERIES;
    attention_case c = case_create(&spec);
    shoal_error error;
    case_run_on(NULL, 2, &c);
    assert_int_equal(shoal_error_estimate(c.plan, &c.inputs, c.out.data, 1000, 1, &error),
                     SHOAL_OK);
    assert_true(error.relative_error < 1e-5);
    case_destroy(&c);
}

/* If every key is hidden, outputs and gradients are 0, in every kind. */
static void no_key_is_left(void **state) {
    const char *kinds[TEST_KINDS + 1];
    test_kinds((shoal_attention){.clusters = 5, .topk = 4}, kinds);
    for (int64_t k = 0; kinds[k]; k++)
        for (int isa = 0; test_isa(isa); isa++) {
            case_spec spec = {.attention = spelled(kinds[k]),
                              .batch = 2,
                              .heads = 1,
                              .queries = 40,
                              .keys = 40,
                              .dim = 4,
                              .value_dim = 4,
                              .key_bias = PAIRS_WHOLE,
                              .seed = 9};
            attention_case c = case_create(&spec);
            for (int64_t l = 0; l < spec.keys; l++)
                c.key_bias[l] = -INFINITY;
            case_run_on(test_isa(isa), 1, &c);
            for (int64_t i = 0; i < spec.queries; i++)
                for (int64_t d = 0; d < 4; d++) {
                    assert_true(tensor_row(&c.out, 0, 0, i)[d] == 0);
                    assert_true(tensor_row(&c.dq, 0, 0, i)[d] == 0);
                    assert_true(tensor_row(&c.dv, 0, 0, i)[d] == 0);
                    assert_true(isfinite(tensor_row(&c.out, 1, 0, i)[d]));
                }
            case_destroy(&c);
        }
}

/* The same problem without the hidden keys. The caller destroys it. */
static attention_case without_hidden(const attention_case *c) {
    case_spec spec = c->spec;
    int64_t to = 0;
    spec.key_bias = PAIRS_NONE;
    for (int64_t l = 0; l < c->spec.keys; l++)
        spec.keys -= c->key_bias[l] == -INFINITY;
    attention_case some = case_create(&spec);
    memcpy(some.q.data, c->q.data, (size_t)c->q.elements * sizeof(float));
    memcpy(some.dout.data, c->dout.data, (size_t)c->dout.elements * sizeof(float));
    for (int64_t l = 0; l < c->spec.keys; l++) {
        if (c->key_bias[l] == -INFINITY)
            continue;
        memcpy(tensor_row(&some.k, 0, 0, to), tensor_row(&c->k, 0, 0, l),
               (size_t)spec.dim * sizeof(float));
        memcpy(tensor_row(&some.v, 0, 0, to++), tensor_row(&c->v, 0, 0, l),
               (size_t)spec.value_dim * sizeof(float));
    }
    return some;
}

static void check_rows(const float *a, const float *b, int64_t count) {
    for (int64_t d = 0; d < count; d++)
        assert_true(fabs((double)a[d] - (double)b[d]) < 1e-5);
}

static const float NOTHING[64] = {0};

/* The visible keys have the results that they would have alone, also if options depend
   on sizes; hidden keys have zero gradients. */
static void hidden_keys_are_absent(void **state) {
    const char *const kinds[] = {"full",
                                 "clustered-6",
                                 "i-clustered-6:topk=9",
                                 "i-clustered-6:topk=9,groups=keys,normaliser=query",
                                 "q-clustered-6:topk=9",
                                 "q-clustered-6:topk=2000",
                                 "shoal-6:topk=9,keyclusters=3,block=8,pool=20",
                                 "shoal-2000",
                                 "shoal",
                                 "auto"};
    for (int64_t kind = 0; kind < COUNT_OF(kinds); kind++) {
        case_spec spec = {.attention = spelled(kinds[kind]),
                          .batch = 1,
                          .heads = 1,
                          .queries = 700,
                          .keys = 1450,
                          .dim = 8,
                          .value_dim = 7,
                          .key_bias = PAIRS_WHOLE,
                          .seed = 31};
        attention_case all = case_create(&spec);
        for (int64_t l = 0; l < spec.keys; l++)
            all.key_bias[l] = l < 400 || l % 7 == 0 ? -INFINITY : 0;
        attention_case some = without_hidden(&all);
        case_run_on(NULL, 2, &all);
        case_run_on(NULL, 2, &some);
        for (int64_t i = 0; i < spec.queries; i++) {
            check_rows(tensor_row(&all.out, 0, 0, i), tensor_row(&some.out, 0, 0, i), 7);
            check_rows(tensor_row(&all.dq, 0, 0, i), tensor_row(&some.dq, 0, 0, i), 8);
        }
        for (int64_t l = 0, at = 0; l < spec.keys; l++) {
            const bool gone = all.key_bias[l] == -INFINITY;
            check_rows(tensor_row(&all.dk, 0, 0, l),
                       gone ? NOTHING : tensor_row(&some.dk, 0, 0, at), 8);
            check_rows(tensor_row(&all.dv, 0, 0, l),
                       gone ? NOTHING : tensor_row(&some.dv, 0, 0, at), 7);
            at += !gone;
        }
        case_destroy(&all);
        case_destroy(&some);
    }
}

/* auto's error estimate uses the bias, and so does shoal_error_estimate: here the bias
   hides half of the keys and shifts the others. */
static void auto_judges_with_the_bias(void **state) {
    case_spec spec = {.attention = spelled("auto:tolerance=0.2"),
                      .batch = 1,
                      .heads = 2,
                      .queries = 2048,
                      .keys = 2048,
                      .dim = 16,
                      .value_dim = 16,
                      .key_bias = PAIRS_SHARED,
                      .seed = 5};
    attention_case c = case_create(&spec);
    for (int64_t l = 0; l < spec.keys; l++)
        c.key_bias[l] = l < 1000 ? -INFINITY : 3 * c.key_bias[l];
    shoal_attention picked;
    shoal_error error;
    case_run_on(NULL, 2, &c);
    assert_int_equal(shoal_plan_picked(c.plan, NULL, &picked), SHOAL_OK);
    assert_int_equal(picked.kind, SHOAL_KIND_SHOAL);
    assert_int_equal(shoal_error_estimate(c.plan, &c.inputs, c.out.data, 200, 1, &error),
                     SHOAL_OK);
    assert_true(error.relative_error > 0 && error.relative_error < 0.2);
    case_destroy(&c);
}

/* ---- Errors ----------------------------------------------------------------------- */

static void check_message(shoal_context *context, shoal_status status, const char *kind) {
    assert_int_equal(status, SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), kind));
    assert_non_null(strstr(shoal_context_message(context), "full, shared-full"));
}

static void other_kinds_refuse(void **state) {
    shoal_context *context = test_context(NULL, 1);
    for (int kind = 0; shoal_kind_describe(kind); kind++) {
        const shoal_kind_info *facts = facts_of((shoal_kind)kind);
        case_spec spec = {.attention = facts->defaults,
                          .batch = 1,
                          .heads = 1,
                          .queries = 20,
                          .keys = 20,
                          .dim = 4,
                          .value_dim = 4,
                          .seed = 1};
        if (facts->has_masks)
            continue;
        attention_case c = case_create(&spec);
        float *bias = test_memory(400, sizeof *bias);
        uint8_t mask[400] = {0};
        shoal_plan *plan;
        shoal_problem causal = c.problem, dropping = c.problem;
        causal.causal = 1;
        dropping.dropout = 0.5f;
        check_message(context,
                      shoal_plan_create(context, &causal, &facts->defaults, 0, &plan),
                      facts->name);
        check_message(context,
                      shoal_plan_create(context, &dropping, &facts->defaults, 0, &plan),
                      facts->name);
        plan = case_run(context, &c);
        const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                           .out = c.out.data,
                                           .dout = c.dout.data,
                                           .dbias = bias};
        check_message(context, shoal_backward(plan, &c.inputs, &gradients), facts->name);
        c.inputs.bias = bias;
        check_message(context, shoal_forward(plan, &c.inputs, c.out.data), facts->name);
        c.inputs.bias = NULL;
        c.inputs.mask = mask;
        check_message(context, shoal_forward(plan, &c.inputs, c.out.data), facts->name);
        shoal_plan_destroy(plan);
        free(bias);
        case_destroy(&c);
    }
    shoal_context_destroy(context);
}

static void bad_numbers_are_refused(void **state) {
    const float rates[] = {-0.1f, 1.5f, NAN, INFINITY};
    const shoal_pair_strides strides[] = {{-1, 0, 0, 1},
                                          {0, 0, INT64_MAX / 4, 1},
                                          {INT64_MAX, 1, 1, 1}};
    case_spec spec = long_spec(SHOAL_KIND_FULL);
    spec.queries = spec.keys = 20;
    attention_case c = case_create(&spec);
    shoal_context *context = test_context(NULL, 1);
    shoal_plan *plan = case_run(context, &c), *none;
    for (int64_t i = 0; i < COUNT_OF(rates); i++) {
        shoal_problem problem = c.problem;
        problem.dropout = rates[i];
        assert_int_equal(shoal_plan_create(context, &problem, &spec.attention, 0, &none),
                         SHOAL_INVALID);
    }
    for (int64_t i = 0; i < COUNT_OF(strides); i++) {
        c.inputs.bias_strides = &strides[i];
        assert_int_equal(shoal_forward(plan, &c.inputs, c.out.data), SHOAL_INVALID);
    }
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

int main(void) {
    struct CMUnitTest tests[TEST_KINDS] = {
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(the_future_is_not_looked_at),
        cmocka_unit_test(queries_are_the_last_positions),
        cmocka_unit_test(masks_are_biases),
        cmocka_unit_test(lowest_biases),
        cmocka_unit_test(dropout_keeps_the_mean),
        cmocka_unit_test(errors_are_estimated),
        cmocka_unit_test(no_key_is_left),
        cmocka_unit_test(hidden_keys_are_absent),
        cmocka_unit_test(auto_judges_with_the_bias),
        cmocka_unit_test(other_kinds_refuse),
        cmocka_unit_test(bad_numbers_are_refused),
    };
    int count = 12; /* followed by one per kind */
    for (int kind = 0; shoal_kind_describe(kind); kind++)
        tests[count++] =
            (struct CMUnitTest){.name = shoal_kind_describe(kind)->name,
                                .test_func = check_kind,
                                .initial_state = (void *)shoal_kind_describe(kind)};
    return cmocka_run_group_tests_name("masks", tests, NULL, NULL);
}
