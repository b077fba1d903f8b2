/* The trainer on the masked copy task: the same curve on any number of threads and
   after any number of resumptions, stopping, learning, evaluation with other kinds,
   contents of a step and a validation, memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "cases.h"
#include "support.h"
#include "train_support.h"

enum { STEPS = 12 };

/* For the kind with dropout, or, after a '!', without: then the last layer skips rows
   that are not masked. */
static shoal_trainer *small_trainer(shoal_context *context, const char *kind) {
    shoal_copy_config config = small_config(context, kind + (*kind == '!'));
    if (*kind == '!')
        say(context, &config, "dropout", "0");
    return trainer_of(context, &config);
}

/* ---- Curves ---------------------------------------------------------------------- */

typedef struct {
    double loss[STEPS], accuracy[STEPS], norm[STEPS], rate[STEPS];
    double validation[STEPS];
    int validations;
} curve;

/* One step, and the validation after it if one is due. */
static void advance(shoal_trainer *at, curve *line) {
    shoal_train_step step;
    shoal_train_score score;
    const int64_t number = at->state.step, validations = at->state.validations;
    assert_int_equal(shoal_trainer_step(at, &step), SHOAL_OK);
    line->loss[number] = step.score.loss;
    line->accuracy[number] = step.score.accuracy;
    line->norm[number] = step.gradient_norm;
    line->rate[number] = step.learning_rate;
    if (!shoal_trainer_must_validate(at))
        return;
    assert_int_equal(shoal_trainer_validate(at, &score), SHOAL_OK);
    if (at->state.validations > validations) {
        line->validation[validations] = score.loss;
        line->validations++;
    }
}

static void whole_curve(const char *kind, int threads, curve *line) {
    shoal_context *context = test_context(NULL, threads);
    shoal_trainer *at = small_trainer(context, kind);
    memset(line, 0, sizeof *line);
    while (!shoal_trainer_finished(at))
        advance(at, line);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

static const char *const kinds[] = {"full",  "clustered-4",    "i-clustered-4:topk=3",
                                    "lsh-2", "shoal-4:topk=3", "!i-clustered-4:topk=3",
                                    "!full"};

static void threads_change_nothing(void **state) {
    static curve one, many;
    for (int64_t i = 0; i < COUNT_OF(kinds); i++) {
        whole_curve(kinds[i], 1, &one);
        assert_int_equal(one.validations, STEPS / 3);
        assert_true(one.loss[0] > 1 && one.loss[0] < 6);
        assert_true(one.rate[0] < one.rate[3]); /* warm-up */
        for (int threads = 2; threads <= 5; threads += 3) {
            whole_curve(kinds[i], threads, &many);
            assert_memory_equal(&one, &many, sizeof one);
        }
    }
}

/* A new trainer for every step, from the checkpoint of the last one. */
static void resumed_curve(const char *kind, const char *path, curve *line) {
    bool finished = false;
    memset(line, 0, sizeof *line);
    for (int turn = 0; !finished; turn++) {
        shoal_context *context = test_context(NULL, 1 + turn % 2);
        shoal_trainer *at = small_trainer(context, kind);
        if (turn > 0)
            assert_int_equal(shoal_trainer_resume(at, path), SHOAL_OK);
        advance(at, line);
        finished = shoal_trainer_finished(at);
        assert_int_equal(shoal_trainer_save(at, path), SHOAL_OK);
        shoal_trainer_destroy(at);
        shoal_context_destroy(context);
    }
}

static void checkpoint_path(char path[256]) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, 256, "%s/shoal-train-%ld.safetensors", folder ? folder : "/tmp",
             (long)getpid());
}

static void resuming_changes_nothing(void **state) {
    static curve whole, pieces;
    char path[256];
    checkpoint_path(path);
    for (int64_t i = 0; i < COUNT_OF(kinds); i += 2) {
        whole_curve(kinds[i], 2, &whole);
        resumed_curve(kinds[i], path, &pieces);
        assert_memory_equal(&whole, &pieces, sizeof whole);
    }
    remove(path);
}

/* Trains to 4 steps, which end with a validation that is not a regular one, and then to
   all. */
static void raising_the_steps_changes_nothing(void **state) {
    static curve whole, pieces;
    char path[256];
    checkpoint_path(path);
    whole_curve("full", 1, &whole);
    memset(&pieces, 0, sizeof pieces);
    shoal_context *context = test_context(NULL, 1);
    for (int64_t steps = 4; steps <= STEPS; steps += STEPS - 4) {
        shoal_copy_config config = small_config(context, "full");
        config.train.steps = steps;
        shoal_trainer *at = trainer_of(context, &config);
        if (steps == STEPS)
            assert_int_equal(shoal_trainer_resume(at, path), SHOAL_OK);
        while (!shoal_trainer_finished(at))
            advance(at, &pieces);
        assert_int_equal(shoal_trainer_save(at, path), SHOAL_OK);
        shoal_trainer_destroy(at);
    }
    assert_memory_equal(&whole, &pieces, sizeof whole);
    shoal_context_destroy(context);
    remove(path);
}

/* ---- Stopping and evaluating ----------------------------------------------------- */

static void stops_by_the_rule_only(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *at = small_trainer(context, "full");
    shoal_train_score score;
    at->config->stop_after = 2;
    at->state.perfect = 1;
    at->state.step = 3;
    assert_true(shoal_trainer_must_validate(at));
    assert_false(shoal_trainer_finished(at));
    assert_int_equal(shoal_trainer_validate(at, &score), SHOAL_OK);
    assert_true(score.correct < score.counted); /* nothing is learned */
    assert_int_equal(at->state.perfect, 0);
    assert_false(shoal_trainer_finished(at));
    at->state.perfect = 2;
    assert_true(shoal_trainer_finished(at));
    at->config->stop_after = 0;
    assert_false(shoal_trainer_finished(at));
    at->state.step = 12;
    assert_false(shoal_trainer_finished(at)); /* a validation is due */
    assert_int_equal(shoal_trainer_validate(at, &score), SHOAL_OK);
    assert_true(shoal_trainer_finished(at));
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

static void evaluates_with_other_kinds(void **state) {
    shoal_context *context = test_context(NULL, 2);
    shoal_trainer *at = small_trainer(context, "full");
    shoal_train_score full, same, other;
    static curve line;
    advance(at, &line);
    const shoal_train_state before = at->state;
    shoal_attention kind = spelled("clustered-100"); /* no more queries: equals full */
    assert_int_equal(shoal_trainer_evaluate(at, NULL, SHOAL_PART_TEST, 3, &full),
                     SHOAL_OK);
    assert_int_equal(full.counted, 3 * 3 * 3);
    assert_int_equal(shoal_trainer_evaluate(at, &kind, SHOAL_PART_TEST, 3, &same),
                     SHOAL_OK);
    assert_true(fabs(full.loss - same.loss) < 1e-5);
    kind = spelled("clustered-2");
    assert_int_equal(shoal_trainer_evaluate(at, &kind, SHOAL_PART_TEST, 3, &other),
                     SHOAL_OK);
    assert_true(fabs(full.loss - other.loss) > 1e-6);
    kind = spelled("lsh-1");
    assert_int_equal(shoal_trainer_evaluate(at, &kind, SHOAL_PART_TEST, 3, &other),
                     SHOAL_INVALID);
    assert_int_equal(shoal_trainer_evaluate(at, &kind, SHOAL_PART_TEST, 0, &other),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "shared_qk"));
    assert_int_equal(shoal_trainer_evaluate(at, NULL, SHOAL_PART_TEST, 0, &other),
                     SHOAL_OK);
    assert_int_equal(other.counted, 0);
    assert_memory_equal(&before, &at->state, sizeof before);
    /* Its batches are not those of the validation. */
    assert_int_equal(shoal_trainer_evaluate(at, NULL, SHOAL_PART_TEST, 2, &same),
                     SHOAL_OK);
    assert_int_equal(shoal_trainer_validate(at, &other), SHOAL_OK);
    assert_true(fabs(same.loss - other.loss) > 1e-6);
    shoal_trainer_destroy(at);

    at = small_trainer(context, "lsh-2");
    kind = spelled("shared-full");
    assert_int_equal(shoal_trainer_evaluate(at, &kind, SHOAL_PART_TEST, 3, &other),
                     SHOAL_OK);
    kind = spelled("full"); /* of one projection */
    assert_int_equal(shoal_trainer_evaluate(at, &kind, SHOAL_PART_TEST, 3, &same),
                     SHOAL_OK);
    assert_true(fabs(other.loss - same.loss) < 1e-6);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

/* Everything together: after some seconds the copies are found. */
static void learns_to_copy(void **state) {
    static const char *const settings[][2] =
        {{"average", "0"},         {"dropout", "0"},          {"head_dim", "16"},
         {"feed_forward", "64"},   {"batch", "16"},           {"steps", "1500"},
         {"warmup", "0"},          {"plateau_patience", "0"}, {"stop_after", "1"},
         {"validate_every", "50"}, {"learning_rate", "0.003"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *at = trainer_with(context, COUNT_OF(settings), settings);
    shoal_train_step step;
    shoal_train_score score = {0};
    while (!shoal_trainer_finished(at) && score.accuracy < 0.97)
        assert_int_equal(shoal_trainer_must_validate(at)
                             ? shoal_trainer_validate(at, &score)
                             : shoal_trainer_step(at, &step),
                         SHOAL_OK);
    assert_int_equal(shoal_trainer_evaluate(at, NULL, SHOAL_PART_TEST, 10, &score),
                     SHOAL_OK);
    assert_true(score.accuracy > 0.94);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

/* ---- Contents of steps and validations -------------------------------------------- */

static void take_steps(shoal_trainer *at, int count) {
    shoal_train_step step;
    for (int i = 0; i < count; i++)
        assert_int_equal(shoal_trainer_step(at, &step), SHOAL_OK);
}

static size_t weight_bytes(const shoal_trainer *at) {
    return sizeof(float) * (size_t)shoal_model_vectors(at->model, NULL, NULL);
}

static float *weights_of(const shoal_trainer *at) {
    float *values;
    shoal_model_vectors(at->model, &values, NULL);
    return values;
}

static float *copy_weights(const shoal_trainer *at) {
    return memcpy(malloc(weight_bytes(at)), weights_of(at), weight_bytes(at));
}

/* The averaged weights are validated and evaluated, and the others are restored. */
static void averages_are_what_is_judged(void **state) {
    static const char *const averaged[][2] = {{"average", "0.7"}};
    static const char *const plain[][2] = {{"average", "0"}};
    shoal_context *context = test_context(NULL, 2);
    shoal_trainer *at = trainer_with(context, 1, averaged);
    shoal_trainer *other = trainer_with(context, 1, plain);
    const size_t bytes = weight_bytes(at);
    shoal_train_score judged, wanted;
    take_steps(at, 3);
    float *before = copy_weights(at);
    assert_int_equal(shoal_optimizer_use_average(at->optimizer, 1), SHOAL_OK);
    assert_memory_not_equal(before, weights_of(at), bytes);
    memcpy(weights_of(other), weights_of(at), bytes);
    assert_int_equal(shoal_optimizer_use_average(at->optimizer, 0), SHOAL_OK);
    other->state.step = at->state.step;
    assert_int_equal(shoal_trainer_validate(at, &judged), SHOAL_OK);
    assert_int_equal(shoal_trainer_validate(other, &wanted), SHOAL_OK);
    assert_true(judged.loss == wanted.loss);
    assert_memory_equal(before, weights_of(at), bytes);
    assert_int_equal(shoal_trainer_evaluate(at, NULL, SHOAL_PART_TEST, 2, &judged),
                     SHOAL_OK);
    assert_int_equal(shoal_trainer_evaluate(other, NULL, SHOAL_PART_TEST, 2, &wanted),
                     SHOAL_OK);
    assert_true(judged.loss == wanted.loss);
    assert_memory_equal(before, weights_of(at), bytes);
    free(before);
    shoal_trainer_destroy(at);
    shoal_trainer_destroy(other);
    shoal_context_destroy(context);
}

/* Loss over targets and accuracy over answers, from all logits of the first batch. */
static shoal_train_score score_by_hand(shoal_trainer *at) {
    const shoal_copy_config *config = shoal_trainer_config(at);
    copy_batch made, *const batch = &made;
    void *block = sh_copy_allocate(at->context, config, config->train.batch, batch);
    sh_copy_make(config, SHOAL_PART_TRAIN, 0, 0, config->train.batch, batch);
    const int32_t *targets = batch->targets;
    const int64_t rows = batch->offsets[config->train.batch];
    const int64_t outputs = config->train.model.outputs;
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = config->train.batch,
                                       .offsets = batch->offsets,
                                       .tokens = batch->tokens};
    shoal_train_score score = {0};
    float *logits;
    int64_t positions = 0;
    assert_int_equal(shoal_model_forward(at->model, &inputs, &logits), SHOAL_OK);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = logits + r * outputs;
        int64_t best = 0;
        double sum = 0;
        for (int64_t o = 0; o < outputs; o++) {
            sum += exp((double)row[o]);
            best = row[o] > row[best] ? o : best;
        }
        if (targets[r] != SHOAL_IGNORED) {
            score.loss += log(sum) - (double)row[targets[r]];
            positions++;
        }
        score.counted += batch->answers[r] != SHOAL_IGNORED;
        score.correct += batch->answers[r] == best;
    }
    score.loss /= (double)positions;
    sh_release(at->context, block);
    return score;
}

static void losses_are_over_what_they_say(void **state) {
    static const char *const settings[2][2][2] = {{{"loss", "masked"}, {"dropout", "0"}},
                                                  {{"loss", "all"}, {"dropout", "0"}}};
    shoal_context *context = test_context(NULL, 2);
    double losses[2];
    for (int i = 0; i < 2; i++) {
        shoal_trainer *at = trainer_with(context, 2, settings[i]);
        float *first = copy_weights(at);
        shoal_train_step step;
        assert_int_equal(shoal_trainer_step(at, &step), SHOAL_OK);
        memcpy(weights_of(at), first, weight_bytes(at));
        const shoal_train_score wanted = score_by_hand(at);
        assert_true(fabs(step.score.loss - wanted.loss) < 1e-5);
        assert_int_equal(step.score.correct, wanted.correct);
        assert_int_equal(step.score.counted, wanted.counted);
        losses[i] = step.score.loss;
        free(first);
        shoal_trainer_destroy(at);
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
    shoal_trainer *at = trainer_with(context, COUNT_OF(settings), settings);
    float *before = copy_weights(at);
    double moved = 0;
    shoal_train_step step;
    assert_int_equal(shoal_trainer_step(at, &step), SHOAL_OK);
    assert_true(step.gradient_norm > 0.01);
    for (size_t i = 0; i < weight_bytes(at) / sizeof(float); i++)
        moved += pow((double)(weights_of(at)[i] - before[i]), 2);
    const double wanted = 0.001 * step.learning_rate;
    assert_true(fabs(sqrt(moved) - wanted) < 0.01 * wanted);
    free(before);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

/* Each setting of the optimizer leads to different weights. */
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
    for (int i = 0; i < CASES; i++) {
        shoal_trainer *at = trainer_with(context, 1, settings[i]);
        take_steps(at, AFTER_RECTIFIED);
        weights[i] = copy_weights(at);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(weights[i], weights[j], weight_bytes(at));
        shoal_trainer_destroy(at);
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
    shoal_trainer *at = trainer_with(context, COUNT_OF(settings), settings);
    shoal_train_step step;
    shoal_train_score score;
    for (int i = 0; i < 8; i++) {
        take_steps(at, 1);
        assert_int_equal(shoal_trainer_validate(at, &score), SHOAL_OK);
    }
    assert_int_equal(shoal_trainer_step(at, &step), SHOAL_OK);
    assert_true(step.learning_rate < 0.6e-9); /* nothing was learned */
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

static void divergence_is_said_and_spoils_nothing(void **state) {
    static const char *const settings[][2] = {{"dropout", "0"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *at = trainer_with(context, 1, settings);
    shoal_train_step step;
    take_steps(at, 1);
    weights_of(at)[3] = NAN;
    float *before = copy_weights(at);
    assert_int_equal(shoal_trainer_step(at, &step), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "step 2 is not finite"));
    assert_memory_equal(before, weights_of(at), weight_bytes(at));
    assert_int_equal(at->state.step, 1);
    free(before);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

/* ---- Memory ---------------------------------------------------------------------- */

static void steps_allocate_nothing(void **state) {
    for (int64_t i = 0; i < COUNT_OF(kinds); i++) {
        counting_allocator allocator = {0};
        shoal_options options = counting_options(&allocator);
        shoal_context *context;
        static curve line;
        assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
        shoal_trainer *at = small_trainer(context, kinds[i]);
        const int64_t calls = allocator.calls;
        for (int step = 0; step < 4; step++)
            advance(at, &line);
        assert_int_equal(allocator.calls, calls);
        shoal_trainer_destroy(at);
        shoal_context_destroy(context);
        assert_int_equal(allocator.live, 0);
    }
}

/* Everything that allocates, with the n-th allocation failing; true if none failed. */
static bool survive(int64_t fail_at, const char *path) {
    counting_allocator allocator = {.fail_at = 0};
    shoal_options options = counting_options(&allocator);
    shoal_context *context;
    shoal_train_score score;
    shoal_trainer *at = NULL;
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    shoal_copy_config config = small_config(context, "i-clustered-4:topk=3");
    allocator.fail_at = allocator.calls + fail_at;
    shoal_status status =
        shoal_trainer_create(context, &sh_copy_task, &config, NULL, NULL, &at);
    if (status == SHOAL_OK)
        status = shoal_trainer_save(at, path);
    if (status == SHOAL_OK)
        status = shoal_trainer_resume(at, path);
    if (status == SHOAL_OK)
        status = shoal_trainer_evaluate(at, NULL, SHOAL_PART_TEST, 1, &score);
    if (status == SHOAL_OK)
        status = shoal_run_config(context, &sh_copy_task, path, &config);
    assert_true(status == SHOAL_OK || status == SHOAL_NO_MEMORY);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
    assert_int_equal(allocator.live, 0);
    return status == SHOAL_OK;
}

static void allocations_may_fail(void **state) {
    char path[256];
    int64_t failures = 1;
    checkpoint_path(path);
    while (!survive(failures, path))
        failures++;
    assert_true(failures > 8);
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(resuming_changes_nothing),
        cmocka_unit_test(raising_the_steps_changes_nothing),
        cmocka_unit_test(stops_by_the_rule_only),
        cmocka_unit_test(evaluates_with_other_kinds),
        cmocka_unit_test(learns_to_copy),
        cmocka_unit_test(averages_are_what_is_judged),
        cmocka_unit_test(losses_are_over_what_they_say),
        cmocka_unit_test(gradients_are_clipped),
        cmocka_unit_test(the_optimizer_is_as_configured),
        cmocka_unit_test(the_rate_drops_on_a_plateau),
        cmocka_unit_test(divergence_is_said_and_spoils_nothing),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(allocations_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
