/* Keys kept by the oracle if scores are equal, increase or decrease along the keys, or
   are NaN. Comparison with the reference is in test_attention.c. */
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "support.h"

enum { KEYS = 1000 };

/* One query of 1 and keys of one feature; values are the keys' positions, so that the
   output is the weighted mean position of the kept keys. */
static float mean_position(shoal_context *context, int32_t topk, const float *keys) {
    static float values[KEYS];
    const float query = 1;
    float out = -1;
    shoal_attention attention = {.kind = SHOAL_KIND_ORACLE_TOP, .topk = topk};
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = 1,
                             .heads = 1,
                             .queries = 1,
                             .keys = KEYS,
                             .dim = 1,
                             .value_dim = 1,
                             .scale = 1};
    shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                           .q = &query,
                           .k = keys,
                           .v = values};
    shoal_plan *plan = NULL;
    for (int l = 0; l < KEYS; l++)
        values[l] = (float)l;
    assert_int_equal(shoal_plan_create(context, &problem, &attention, 0, &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_forward(plan, &inputs, &out), SHOAL_OK);
    shoal_plan_destroy(plan);
    return out;
}

static void equal_scores_keep_the_lowest_keys(void **state) {
    static float keys[KEYS];
    for (int isa = 0; test_isa(isa); isa++) {
        shoal_context *context = test_context(test_isa(isa), 1);
        for (int l = 0; l < KEYS; l++)
            keys[l] = 0.5f;
        assert_true(mean_position(context, 3, keys) == 1);
        assert_true(mean_position(context, 1, keys) == 0);
        keys[700] = keys[900] = 0.75f; /* followed by key 0 */
        double weights = 2 * exp(0.25) + 1;
        double mean = exp(0.25) * (700 + 900) / weights;
        assert_true(fabs((double)mean_position(context, 3, keys) - mean) < 1e-3);
        shoal_context_destroy(context);
    }
}

/* Every block of increasing keys displaces all that were kept before. */
static void rising_and_falling_scores(void **state) {
    static float rising[KEYS], falling[KEYS];
    for (int l = 0; l < KEYS; l++) {
        rising[l] = (float)l * 1e-6f;
        falling[l] = -rising[l];
    }
    for (int isa = 0; test_isa(isa); isa++) {
        shoal_context *context = test_context(test_isa(isa), 1);
        assert_true(fabsf(mean_position(context, 5, rising) - 997) < 1e-2f);
        assert_true(fabsf(mean_position(context, 5, falling) - 2) < 1e-2f);
        shoal_context_destroy(context);
    }
}

/* NaN is kept before anything else; -infinity only if nothing else is left. */
static void scores_that_are_no_numbers(void **state) {
    static float keys[KEYS];
    for (int isa = 0; test_isa(isa); isa++) {
        shoal_context *context = test_context(test_isa(isa), 1);
        for (int l = 0; l < KEYS; l++)
            keys[l] = l == 600 || l == 601 ? 0 : -INFINITY;
        assert_true(mean_position(context, 32, keys) == 600.5f);
        assert_true(mean_position(context, KEYS + 1, keys) == 600.5f);
        keys[3] = isa % 2 ? NAN : -NAN;
        assert_true(isnan(mean_position(context, 1, keys)));
        for (int l = 0; l < KEYS; l++)
            keys[l] = -INFINITY;
        assert_true(isnan(mean_position(context, 32, keys)));
        shoal_context_destroy(context);
    }
}

/* With room for every key it equals full attention, including NaN. */
static void enough_room_is_full(void **state) {
    case_spec spec = {.attention = {.kind = SHOAL_KIND_FULL},
                      .batch = 1,
                      .heads = 2,
                      .kv_heads = 1,
                      .queries = 40,
                      .keys = 300,
                      .dim = 7,
                      .value_dim = 5,
                      .seed = 8};
    attention_case full = case_create(&spec);
    spec.attention = (shoal_attention){.kind = SHOAL_KIND_ORACLE_TOP, .topk = 300};
    attention_case oracle = case_create(&spec);
    tensor_row(&full.q, 0, 1, 11)[2] = tensor_row(&oracle.q, 0, 1, 11)[2] = NAN;
    tensor_row(&full.q, 0, 0, 5)[0] = tensor_row(&oracle.q, 0, 0, 5)[0] = INFINITY;
    shoal_context *context = test_context(NULL, 2);
    shoal_plan *plans[] = {case_run(context, &full), case_run(context, &oracle)};
    const tensor *pairs[][2] = {{&full.out, &oracle.out},
                                {&full.dq, &oracle.dq},
                                {&full.dk, &oracle.dk},
                                {&full.dv, &oracle.dv}};
    for (int64_t p = 0; p < COUNT_OF(pairs); p++)
        for (int64_t e = 0; e < pairs[p][0]->elements; e++) {
            float a = pairs[p][0]->data[e], b = pairs[p][1]->data[e];
            assert_true((isnan(a) && isnan(b)) || fabsf(a - b) < 1e-5f);
        }
    for (int i = 0; i < 2; i++)
        shoal_plan_destroy(plans[i]);
    shoal_context_destroy(context);
    case_destroy(&full);
    case_destroy(&oracle);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_scores_keep_the_lowest_keys),
        cmocka_unit_test(rising_and_falling_scores),
        cmocka_unit_test(scores_that_are_no_numbers),
        cmocka_unit_test(enough_room_is_full),
    };
    return cmocka_run_group_tests_name("oracle", tests, NULL, NULL);
}
