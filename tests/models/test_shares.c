/* A batch divided among processes: shares with dropout sum to the batch, and backward
   reports which gradients are complete. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "shoal_models.h"
#include "support.h"

enum { VOCABULARY = 7, OUTPUTS = 5, ROWS = 13, BATCH = 4, CUTS = 6 };
static const int64_t offsets[] = {0, 5, 5, 6, ROWS}; /* lengths 5, 0, 1, 7 */
static int32_t tokens[ROWS];
static float direction[ROWS * OUTPUTS];

static shoal_model *make_model(shoal_context *context, int32_t norm) {
    const shoal_model_config config = {.size = sizeof(shoal_model_config),
                                       .vocabulary = VOCABULARY,
                                       .outputs = OUTPUTS,
                                       .max_length = 8,
                                       .layers = 2,
                                       .heads = 2,
                                       .head_dim = 8,
                                       .feed_forward = 20,
                                       .norm = norm,
                                       .dropout = 0.3f,
                                       .attention = spelled("full")};
    shoal_model *model;
    for (int i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)test_pick(1, 2, 0, 1000 + i) % VOCABULARY;
    for (int i = 0; i < ROWS * OUTPUTS; i++)
        direction[i] = (float)test_normal(test_hash(3, 5, (uint64_t)i));
    assert_int_equal(shoal_model_create(context, &config, 11, BATCH, ROWS,
                                        SHOAL_WITH_BACKWARD, &model),
                     SHOAL_OK);
    return model;
}

/* Forward and backward of sequences first .. last - 1 of the batch, with the gradients
   of the whole batch's loss; accumulates. */
static void run_share(shoal_model *model, int64_t first, int64_t last) {
    int64_t own[BATCH + 1];
    float dout[ROWS * OUTPUTS], *out;
    const int64_t row = offsets[first], rows = offsets[last] - row;
    for (int64_t b = first; b <= last; b++)
        own[b - first] = offsets[b] - row;
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = last - first,
                                       .offsets = own,
                                       .tokens = tokens + row,
                                       .training = 1,
                                       .accumulate = 1,
                                       .step = 17,
                                       .first_row = row,
                                       .first_sequence = first};
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    memcpy(dout, direction + row * OUTPUTS, sizeof *dout * (size_t)(rows * OUTPUTS));
    assert_int_equal(shoal_model_backward(model, &inputs, dout, NULL), SHOAL_OK);
}

/* Some shares are empty, and some have only a sequence without rows. */
static void shares_add_up_to_the_batch(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model *model = make_model(context, SHOAL_NORM_PRE);
    float *gradients;
    const int64_t count = shoal_model_vectors(model, NULL, &gradients);
    float *whole = test_memory(count, sizeof *whole);
    static const int64_t cuts[CUTS][2] = {{1, 3}, {0, 2}, {4, 4}, {2, 2}, {1, 2}, {3, 3}};
    run_share(model, 0, BATCH);
    memcpy(whole, gradients, sizeof *whole * (size_t)count);
    for (int c = 0; c < CUTS; c++) {
        memset(gradients, 0, sizeof *whole * (size_t)count);
        run_share(model, 0, cuts[c][0]);
        run_share(model, cuts[c][0], cuts[c][1]);
        run_share(model, cuts[c][1], BATCH);
        for (int64_t i = 0; i < count; i++)
            if (fabsf(gradients[i] - whole[i]) > 1e-5f * (1 + fabsf(whole[i])))
                fail_msg("cut %d, element %lld: %g, not %g", c, (long long)i,
                         (double)gradients[i], (double)whole[i]);
    }
    free(whole);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

typedef struct {
    const float *gradients;
    float *seen;
    int64_t below; /* start of the reported gradients */
    int parts;
} telling;

static void hear(void *shared, int64_t first, int64_t count) {
    telling *t = shared;
    assert_int_equal(first + count, t->below);
    assert_true(first >= 0 && count > 0);
    memcpy(t->seen + first, t->gradients + first, sizeof *t->seen * (size_t)count);
    t->below = first;
    t->parts++;
}

static void check_telling(int32_t norm) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model *model = make_model(context, norm);
    float *gradients;
    const int64_t count = shoal_model_vectors(model, NULL, &gradients);
    telling t = {.gradients = gradients,
                 .seen = test_memory(count, sizeof(float)),
                 .below = count};
    assert_int_equal(shoal_model_watch(model, hear, &t), SHOAL_OK);
    run_share(model, 0, BATCH);
    assert_int_equal(t.below, 0);
    assert_int_equal(t.parts, 3); /* two layers and the embedding */
    assert_memory_equal(t.seen, gradients, sizeof *gradients * (size_t)count);
    assert_int_equal(shoal_model_watch(model, NULL, NULL), SHOAL_OK);
    run_share(model, 0, BATCH);
    assert_int_equal(t.parts, 3);
    free(t.seen);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

static void gradients_that_are_told_of_stay(void **state) {
    check_telling(SHOAL_NORM_PRE);
    check_telling(SHOAL_NORM_POST);
}

static void wrong_calls_are_refused(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model *model = make_model(context, SHOAL_NORM_PRE), *view;
    float *out;
    shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                 .batch = BATCH,
                                 .offsets = offsets,
                                 .tokens = tokens};
    inputs.first_row = -1;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    inputs.first_row = 0;
    inputs.first_sequence = -1;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    assert_int_equal(shoal_model_create_view(model, NULL, BATCH, ROWS, &view), SHOAL_OK);
    assert_int_equal(shoal_model_watch(view, hear, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_watch(NULL, hear, NULL), SHOAL_INVALID);
    shoal_model_destroy(view);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

/* The vectors are the optimizer's own: with the means set to 0 a step is the first. */
static void the_optimizer_shows_its_vectors(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model *model = make_model(context, SHOAL_NORM_PRE);
    const shoal_optimizer_config config = {.size = sizeof config,
                                           .kind = SHOAL_OPTIMIZER_KIND_ADAM,
                                           .beta1 = 0.5f,
                                           .beta2 = 0.5f,
                                           .epsilon = 1e-8f,
                                           .rectify_above = 4};
    shoal_optimizer *optimizer;
    float *first, *second, *averaged, *gradients;
    assert_int_equal(shoal_optimizer_create(model, &config, &optimizer), SHOAL_OK);
    const int64_t count = shoal_model_vectors(model, NULL, &gradients);
    assert_int_equal(shoal_optimizer_vectors(optimizer, &first, &second, &averaged),
                     count);
    assert_int_equal(shoal_optimizer_vectors(NULL, NULL, NULL, NULL), 0);
    assert_null(averaged);
    run_share(model, 0, BATCH);
    assert_int_equal(shoal_optimizer_step(optimizer, 0.001), SHOAL_OK);
    for (int64_t i = 0; i < count; i++) {
        assert_true(first[i] == 0.5f * gradients[i]);
        assert_true(second[i] == 0.5f * gradients[i] * gradients[i]);
    }
    shoal_optimizer_destroy(optimizer);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_add_up_to_the_batch),
        cmocka_unit_test(gradients_that_are_told_of_stay),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(the_optimizer_shows_its_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
