/* What a step and a validation are made of: averaged weights, both losses, clipping, the
   learning rate's drops, divergence. */

/* Before cmocka, whose macro fail() would be in the way. */
#include "models/training/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shoal_models.h"
#include "train_support.h"

static shoal_trainer *trainer_with(shoal_context *context, int count,
                                   const char *const settings[][2]) {
    shoal_train_config config = small_config(context, "full");
    shoal_trainer *trainer;
    for (int i = 0; i < count; i++)
        say(context, &config, settings[i][0], settings[i][1]);
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_OK);
    return trainer;
}

static void take_steps(shoal_trainer *trainer, int count) {
    shoal_train_step step;
    for (int i = 0; i < count; i++)
        assert_int_equal(shoal_trainer_step(trainer, &step), SHOAL_OK);
}

static float *weights_of(const shoal_trainer *trainer) {
    const size_t bytes = sizeof(float) * (size_t)trainer->model->arena->size;
    return memcpy(malloc(bytes), trainer->model->arena->values, bytes);
}

/* The averaged weights are what is validated and evaluated, and the others come back. */
static void averages_are_what_is_judged(void **state) {
    static const char *const averaged[][2] = {{"average", "0.7"}};
    static const char *const plain[][2] = {{"average", "0"}};
    shoal_context *context = test_context(NULL, 2);
    shoal_trainer *trainer = trainer_with(context, 1, averaged);
    shoal_trainer *other = trainer_with(context, 1, plain);
    const size_t bytes = sizeof(float) * (size_t)trainer->model->arena->size;
    shoal_score judged, wanted;
    (void)state;
    take_steps(trainer, 3);
    float *before = weights_of(trainer);
    assert_memory_not_equal(before, trainer->averaged, bytes);
    memcpy(other->model->arena->values, trainer->averaged, bytes);
    other->state.step = trainer->state.step;
    assert_int_equal(shoal_trainer_validate(trainer, &judged), SHOAL_OK);
    assert_int_equal(shoal_trainer_validate(other, &wanted), SHOAL_OK);
    assert_true(judged.loss == wanted.loss);
    assert_memory_equal(before, trainer->model->arena->values, bytes);
    assert_int_equal(shoal_trainer_evaluate(trainer, NULL, 2, &judged), SHOAL_OK);
    assert_int_equal(shoal_trainer_evaluate(other, NULL, 2, &wanted), SHOAL_OK);
    assert_true(judged.loss == wanted.loss);
    assert_memory_equal(before, trainer->model->arena->values, bytes);
    free(before);
    shoal_trainer_destroy(trainer);
    shoal_trainer_destroy(other);
    shoal_context_destroy(context);
}

/* Loss over `targets`, right answers among `answers`, from logits by the public calls. */
static shoal_score score_by_hand(shoal_trainer *trainer, const int32_t *targets) {
    const task_batch *batch = &trainer->batch;
    const int64_t rows = batch->offsets[batch->batch];
    const int64_t outputs = trainer->config.model.outputs;
    const shoal_model_inputs inputs = {.batch = batch->batch,
                                       .offsets = batch->offsets,
                                       .tokens = batch->tokens};
    shoal_score score = {0};
    const float *logits;
    int64_t positions = 0;
    assert_int_equal(shoal_model_forward(trainer->model, &inputs, &logits), SHOAL_OK);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * outputs;
        int64_t best = 0;
        double sum = 0;
        for (int64_t o = 0; o < outputs; o++) {
            sum += exp((double)row[o]);
            best = row[o] > row[best] ? o : best;
        }
        if (targets[r] != TASK_IGNORED) {
            score.loss += log(sum) - (double)row[targets[r]];
            positions++;
        }
        score.counted += batch->answers[r] != TASK_IGNORED;
        score.correct += batch->answers[r] == best;
    }
    score.loss /= (double)positions;
    return score;
}

static void losses_are_over_what_they_say(void **state) {
    static const char *const settings[2][2][2] = {{{"loss", "masked"}, {"dropout", "0"}},
                                                  {{"loss", "all"}, {"dropout", "0"}}};
    shoal_context *context = test_context(NULL, 2);
    double losses[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        shoal_trainer *trainer = trainer_with(context, 2, settings[i]);
        float *first = weights_of(trainer);
        shoal_train_step step;
        assert_int_equal(shoal_trainer_step(trainer, &step), SHOAL_OK);
        memcpy(trainer->model->arena->values, first,
               sizeof(float) * (size_t)trainer->model->arena->size);
        const shoal_score wanted = score_by_hand(trainer, trainer->batch.targets);
        assert_true(fabs(step.score.loss - wanted.loss) < 1e-5);
        assert_int_equal(step.score.correct, wanted.correct);
        assert_int_equal(step.score.counted, wanted.counted);
        losses[i] = step.score.loss;
        free(first);
        shoal_trainer_destroy(trainer);
    }
    assert_true(fabs(losses[0] - losses[1]) > 1e-3);
    shoal_context_destroy(context);
}

/* R-Adam's first step is the clipped gradient times the rate. */
static void gradients_are_clipped(void **state) {
    static const char *const settings[][2] = {{"clip", "0.001"},
                                              {"weight_decay", "0"},
                                              {"warmup", "0"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *trainer = trainer_with(context, COUNT_OF(settings), settings);
    float *before = weights_of(trainer);
    double moved = 0;
    shoal_train_step step;
    (void)state;
    assert_int_equal(shoal_trainer_step(trainer, &step), SHOAL_OK);
    assert_true(step.gradient_norm > 0.01);
    for (int64_t i = 0; i < trainer->model->arena->size; i++)
        moved += pow((double)(trainer->model->arena->values[i] - before[i]), 2);
    const double wanted = 0.001 * step.learning_rate;
    assert_true(fabs(sqrt(moved) - wanted) < 0.01 * wanted);
    free(before);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

/* Each of the optimizer's settings leads to other weights than every other. */
static void the_optimizer_is_as_configured(void **state) {
    static const char *const settings[][1][2] = {{{"optimizer", "radam"}},
                                                 {{"optimizer", "adam"}},
                                                 {{"optimizer", "radam-l2"}},
                                                 {{"optimizer", "adam-l2"}},
                                                 {{"beta1", "0"}},
                                                 {{"beta2", "0.9"}},
                                                 {{"epsilon", "0.1"}},
                                                 {{"weight_decay", "0.5"}}};
    enum { CASES = sizeof settings / sizeof *settings, AFTER_RECTIFIED = 8 };
    shoal_context *context = test_context(NULL, 1);
    float *weights[CASES];
    size_t bytes = 0;
    (void)state;
    for (int i = 0; i < CASES; i++) {
        shoal_trainer *trainer = trainer_with(context, 1, settings[i]);
        take_steps(trainer, AFTER_RECTIFIED);
        bytes = sizeof(float) * (size_t)trainer->model->arena->size;
        weights[i] = weights_of(trainer);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(weights[i], weights[j], bytes);
        shoal_trainer_destroy(trainer);
    }
    for (int i = 0; i < CASES; i++)
        free(weights[i]);
    shoal_context_destroy(context);
}

static void the_rate_drops_on_a_plateau(void **state) {
    static const char *const settings[][2] = {{"learning_rate", "1e-9"},
                                              {"warmup", "0"},
                                              {"plateau_factor", "0.5"},
                                              {"validate_every", "1"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *trainer = trainer_with(context, COUNT_OF(settings), settings);
    shoal_train_step step;
    shoal_score score;
    (void)state;
    for (int i = 0; i < 8; i++) {
        take_steps(trainer, 1);
        assert_int_equal(shoal_trainer_validate(trainer, &score), SHOAL_OK);
    }
    assert_int_equal(shoal_trainer_step(trainer, &step), SHOAL_OK);
    assert_true(step.learning_rate < 0.6e-9); /* nothing was learnt */
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

static void divergence_is_said_and_spoils_nothing(void **state) {
    static const char *const settings[][2] = {{"dropout", "0"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *trainer = trainer_with(context, 1, settings);
    const size_t bytes = sizeof(float) * (size_t)trainer->model->arena->size;
    shoal_train_step step;
    (void)state;
    take_steps(trainer, 1);
    trainer->model->arena->values[3] = NAN;
    float *before = weights_of(trainer);
    assert_int_equal(shoal_trainer_step(trainer, &step), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "not finite"));
    assert_memory_equal(before, trainer->model->arena->values, bytes);
    assert_int_equal(shoal_trainer_progress(trainer).step, 1);
    free(before);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

/* A configuration that somebody filled in wrongly is printed without reading past it. */
static void wrong_choices_are_no_text(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = small_config(context, "full");
    char text[32];
    (void)state;
    config.model.norm = 7;
    for (int i = 0; shoal_train_describe(i); i++)
        if (strcmp(shoal_train_describe(i)->name, "norm") == 0)
            assert_int_equal(shoal_train_get(&config, i, text, sizeof text), 0);
    shoal_context_destroy(context);
}

/* The ends of a range are floats: 1 is beyond 0.9999999, however near. */
static void ranges_are_exact(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = small_config(context, "full");
    shoal_trainer *trainer;
    (void)state;
    say(context, &config, "beta2", "0.9999999");
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_OK);
    shoal_trainer_destroy(trainer);
    assert_int_equal(shoal_train_set(context, &config, "beta2", "1"), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "0.9999999"));
    config.beta2 = 1;
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_INVALID);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_are_what_is_judged),
        cmocka_unit_test(losses_are_over_what_they_say),
        cmocka_unit_test(gradients_are_clipped),
        cmocka_unit_test(the_optimizer_is_as_configured),
        cmocka_unit_test(the_rate_drops_on_a_plateau),
        cmocka_unit_test(divergence_is_said_and_spoils_nothing),
        cmocka_unit_test(wrong_choices_are_no_text),
        cmocka_unit_test(ranges_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
