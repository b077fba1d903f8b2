/* Structs that carry their size: older and newer callers, and those that forgot it.
   Strides: NULL is contiguous, 0 shares. */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "support.h"

enum { N = 5, D = 3, ROWS = N * D };

static float q[ROWS], k[ROWS], v[ROWS], out[ROWS], wanted[ROWS];

static void fill(float *rows, uint64_t stream) {
    for (int64_t i = 0; i < ROWS; i++)
        rows[i] = (float)test_normal(test_hash(1, stream, (uint64_t)i));
}

static shoal_problem small_problem(void) {
    shoal_problem problem = shoal_problem_defaults();
    problem.batch = problem.heads = 1;
    problem.queries = problem.keys = N;
    problem.dim = problem.value_dim = D;
    return problem;
}

static shoal_inputs small_inputs(void) {
    shoal_inputs inputs = shoal_inputs_defaults();
    inputs.q = q;
    inputs.k = k;
    inputs.v = v;
    return inputs;
}

static shoal_status attend(shoal_context *context, const void *problem,
                           const void *inputs) {
    memset(out, 0, sizeof out);
    return shoal_attend(context, "full", problem, inputs, out);
}

static void expect_message(shoal_context *context, const char *part) {
    assert_non_null(strstr(shoal_context_message(context), part));
}

static int prepare(void **state) {
    const shoal_problem problem = small_problem();
    const shoal_inputs inputs = small_inputs();
    fill(q, 1);
    fill(k, 2);
    fill(v, 3);
    shoal_context *context = test_context(NULL, 1);
    const shoal_status status = attend(context, &problem, &inputs);
    memcpy(wanted, out, sizeof out);
    *state = context;
    return status != SHOAL_OK;
}

static int end(void **state) {
    shoal_context_destroy(*state);
    return 0;
}

static void a_size_of_0_is_refused(void **state) {
    shoal_problem problem = small_problem();
    shoal_inputs inputs = small_inputs();
    problem.size = 0;
    assert_int_equal(attend(*state, &problem, &inputs), SHOAL_INVALID);
    expect_message(*state, "shoal_problem_defaults()");
    problem.size = sizeof problem;
    inputs.size = 0;
    assert_int_equal(attend(*state, &problem, &inputs), SHOAL_INVALID);
    expect_message(*state, "shoal_inputs_defaults()");
    const shoal_options options = {.threads = 1};
    shoal_context *context;
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_INVALID);
    expect_message(context, "shoal_options_defaults()");
    shoal_context_destroy(context);
    shoal_attention full = {.kind = SHOAL_KIND_FULL};
    problem.size = 0;
    assert_true(shoal_attention_operations(&full, &problem, 0) == 0);
}

/* Whatever stands behind an older struct is not read. */
static void fields_that_an_older_caller_lacks_have_defaults(void **state) {
    shoal_problem problem = small_problem();
    shoal_inputs inputs = small_inputs();
    problem.size = offsetof(shoal_problem, dropout);
    problem.dropout = NAN;
    problem.dtype = (shoal_dtype)77;
    problem.q_strides = (const shoal_strides *)(uintptr_t)1;
    inputs.size = offsetof(shoal_inputs, key_bias);
    inputs.key_bias = (const float *)(uintptr_t)1;
    inputs.bias = (const float *)(uintptr_t)1;
    assert_int_equal(attend(*state, &problem, &inputs), SHOAL_OK);
    assert_memory_equal(out, wanted, sizeof out);
}

typedef struct {
    shoal_problem problem;
    int64_t more[2];
} newer_problem;

static void unknown_fields_of_a_newer_caller_must_be_0(void **state) {
    const shoal_inputs inputs = small_inputs();
    newer_problem newer = {.problem = small_problem()};
    newer.problem.size = sizeof newer;
    assert_int_equal(attend(*state, &newer, &inputs), SHOAL_OK);
    assert_memory_equal(out, wanted, sizeof out);
    newer.more[1] = 1;
    assert_int_equal(attend(*state, &newer, &inputs), SHOAL_INVALID);
    expect_message(*state, "does not know");
}

static void gradients_have_a_size_too(void **state) {
    const shoal_problem problem = small_problem();
    const shoal_inputs inputs = small_inputs();
    const shoal_attention full = {.kind = SHOAL_KIND_FULL};
    float dq[ROWS];
    shoal_gradients gradients = {.out = out, .dout = k, .dq = dq};
    shoal_plan *plan;
    assert_int_equal(shoal_plan_create(*state, &problem, &full, SHOAL_WITH_BACKWARD,
                                       &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_forward(plan, &inputs, out), SHOAL_OK);
    assert_int_equal(shoal_backward(plan, &inputs, &gradients), SHOAL_INVALID);
    expect_message(*state, "shoal_gradients_defaults()");
    gradients.size = offsetof(shoal_gradients, dbias);
    gradients.dbias = (float *)(uintptr_t)1;
    assert_int_equal(shoal_backward(plan, &inputs, &gradients), SHOAL_OK);
    shoal_plan_destroy(plan);
}

/* All strides 0: one row for all positions, and not the contiguous array. */
static void strides_of_0_share(void **state) {
    const shoal_inputs inputs = small_inputs();
    const shoal_strides shared = {0, 0, 0};
    shoal_problem problem = small_problem();
    problem.q_strides = &shared;
    assert_int_equal(attend(*state, &problem, &inputs), SHOAL_OK);
    for (int64_t i = 0; i < N; i++)
        assert_memory_equal(out + i * D, wanted, D * sizeof *out);
    assert_memory_not_equal(out, wanted, sizeof out);
}

static void the_version_can_be_compared(void **state) {
    (void)state;
#if SHOAL_VERSION_NUMBER < 10000
    fail();
#endif
    assert_int_equal(shoal_version_number(), SHOAL_VERSION_NUMBER);
    assert_string_equal(shoal_version(), SHOAL_VERSION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_of_0_is_refused),
        cmocka_unit_test(fields_that_an_older_caller_lacks_have_defaults),
        cmocka_unit_test(unknown_fields_of_a_newer_caller_must_be_0),
        cmocka_unit_test(gradients_have_a_size_too),
        cmocka_unit_test(strides_of_0_share),
        cmocka_unit_test(the_version_can_be_compared),
    };
    return cmocka_run_group_tests(tests, prepare, end);
}
