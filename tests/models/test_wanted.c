/* Rows that are not wanted are not computed after the last attention; loss, logits and
   gradients are those of all rows, up to rounding (BLAS may sum the last rows of a
   product with another kernel). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "nn_support.h"

#include "support.h"

static const char *KINDS[TEST_KINDS + 1];

static model_case small_case(const char *kind, bool post_norm) {
    return (model_case){.name = kind,
                        .attention = kind,
                        .post_norm = post_norm,
                        .shared_qk = post_norm,
                        .layers = 2,
                        .heads = 2,
                        .head_dim = 8,
                        .feed_forward = 30,
                        .lengths = {70, 0, 33, 60}};
}

/* One row in `every` keeps its target; returns their number. */
static int64_t thin_out(model_setup *setup, int64_t every) {
    int64_t kept = 0;
    for (int64_t row = 0; row < setup->rows; row++) {
        if (every == 0 || row % every != every / 2)
            setup->targets[row] = SHOAL_IGNORED;
        else if (setup->targets[row] == SHOAL_IGNORED)
            setup->targets[row] = (int32_t)(row % TEST_OUTPUTS);
        kept += setup->targets[row] != SHOAL_IGNORED;
    }
    return kept;
}

static void assert_near(const float *got, const float *expected, int64_t count,
                        double allowed, const char *kind) {
    double error = 0, size = 1e-30;
    for (int64_t i = 0; i < count; i++) {
        error += pow((double)got[i] - (double)expected[i], 2);
        size += pow((double)expected[i], 2);
    }
    if (!(sqrt(error / size) <= allowed))
        fail_msg("%s: relative difference %g", kind, sqrt(error / size));
}

static void compare_steps(const char *kind, bool post_norm, int64_t every, int threads) {
    shoal_context *context = test_context(NULL, threads);
    const model_case c = small_case(kind, post_norm);
    model_setup setup = setup_create(context, &c, true, 6);
    const int64_t kept = thin_out(&setup, every), size = setup.arena->size;
    float *whole = malloc(sizeof(float) * (size_t)size);
    const shoal_loss expected = setup_step(context, &setup);
    assert_int_equal(setup_logit_rows(&setup), setup.rows);
    memcpy(whole, setup.arena->gradients, sizeof(float) * (size_t)size);
    setup_want(&setup, false);
    for (int again = 0; again < 2; again++) { /* the second time must not depend on the
                                                 first */
        const shoal_loss got = setup_step(context, &setup);
        assert_int_equal(setup_logit_rows(&setup), kept);
        assert_int_equal(got.counted, expected.counted);
        assert_int_equal(got.correct, expected.correct);
        assert_true(fabs(got.mean - expected.mean) <= 1e-6 * expected.mean);
        assert_near(setup.arena->gradients, whole, size, 2e-6, kind);
    }
    setup_want(&setup, true); /* and nothing remains when all are wanted again */
    setup_step(context, &setup);
    assert_memory_equal(setup.arena->gradients, whole, sizeof(float) * (size_t)size);
    free(whole);
    setup_destroy(&setup);
    shoal_context_destroy(context);
}

static void fewer_rows_give_the_same_step(void **state) {
    for (int64_t k = 0; KINDS[k]; k++)
        for (int post_norm = 0; post_norm < 2; post_norm++) {
            compare_steps(KINDS[k], post_norm, 5, 1 + (int)k % 3);
            compare_steps(KINDS[k], post_norm, 1, 2);
            compare_steps(KINDS[k], post_norm, 100, 2);
            compare_steps(KINDS[k], post_norm, 0, 2); /* none */
        }
}

static void inference_gives_the_wanted_rows(void **state) {
    shoal_context *context = test_context(NULL, 2);
    for (int post_norm = 0; post_norm < 2; post_norm++) {
        const model_case c = small_case("full", post_norm);
        model_setup setup = setup_create(context, &c, false, 7);
        const int64_t floats = setup.rows * TEST_OUTPUTS;
        float *whole = malloc(sizeof(float) * (size_t)floats);
        memcpy(whole, setup_forward(&setup), sizeof(float) * (size_t)floats);
        thin_out(&setup, 3);
        setup_want(&setup, false);
        const float *logits = setup_forward(&setup);
        for (int64_t row = 0, at = 0; row < setup.rows; row++)
            if (setup.targets[row] != SHOAL_IGNORED)
                assert_near(logits + at++ * TEST_OUTPUTS, whole + row * TEST_OUTPUTS,
                            TEST_OUTPUTS, 1e-5, "full");
        free(whole);
        setup_destroy(&setup);
    }
    shoal_context_destroy(context);
}

int main(void) {
    test_kinds((shoal_attention){.clusters = 5, .topk = 8, .rounds = 2}, KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewer_rows_give_the_same_step),
        cmocka_unit_test(inference_gives_the_wanted_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
