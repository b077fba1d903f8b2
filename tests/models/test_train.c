/* The trainer: the same curve on any number of threads and after any number of
   resumptions, stopping, learning, evaluation with other kinds, memory. */

/* Before cmocka, whose macro fail() would be in the way. */
#include "models/training/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shoal_models.h"
#include "train_support.h"

enum { STEPS = 12 };

/* Of the kind with dropout, or, behind a '!', without: then the last layer leaves out
   rows that nobody asks for. */
static shoal_trainer *small_trainer(shoal_context *context, const char *kind) {
    shoal_train_config config = small_config(context, kind + (*kind == '!'));
    if (*kind == '!')
        say(context, &config, "dropout", "0");
    shoal_trainer *trainer;
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_OK);
    return trainer;
}

/* ---- Curves ---------------------------------------------------------------------- */

typedef struct {
    double loss[STEPS], accuracy[STEPS], norm[STEPS], rate[STEPS];
    double validation[STEPS];
    int validations;
} curve;

/* One step, and the validation after it if one is due. */
static void advance(shoal_trainer *trainer, curve *line) {
    shoal_train_step step;
    shoal_score score;
    const int64_t at = shoal_trainer_progress(trainer).step;
    const int64_t validations = shoal_trainer_progress(trainer).validations;
    assert_int_equal(shoal_trainer_step(trainer, &step), SHOAL_OK);
    line->loss[at] = step.score.loss;
    line->accuracy[at] = step.score.accuracy;
    line->norm[at] = step.gradient_norm;
    line->rate[at] = step.learning_rate;
    if (!shoal_trainer_progress(trainer).validate)
        return;
    assert_int_equal(shoal_trainer_validate(trainer, &score), SHOAL_OK);
    if (shoal_trainer_progress(trainer).validations > validations) {
        line->validation[validations] = score.loss;
        line->validations++;
    }
}

static void whole_curve(const char *kind, int threads, curve *line) {
    shoal_context *context = test_context(NULL, threads);
    shoal_trainer *trainer = small_trainer(context, kind);
    memset(line, 0, sizeof *line);
    while (!shoal_trainer_progress(trainer).finished)
        advance(trainer, line);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

static const char *const kinds[] = {"full",  "clustered-4",    "i-clustered-4:topk=3",
                                    "lsh-2", "shoal-4:topk=3", "!i-clustered-4:topk=3",
                                    "!full"};

static void threads_change_nothing(void **state) {
    static curve one, many;
    (void)state;
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

/* A new trainer for every step, from the checkpoint that the last one left. */
static void resumed_curve(const char *kind, const char *path, curve *line) {
    bool finished = false;
    memset(line, 0, sizeof *line);
    for (int turn = 0; !finished; turn++) {
        shoal_context *context = test_context(NULL, 1 + turn % 2);
        shoal_trainer *trainer = small_trainer(context, kind);
        if (turn > 0)
            assert_int_equal(shoal_trainer_resume(trainer, path), SHOAL_OK);
        advance(trainer, line);
        finished = shoal_trainer_progress(trainer).finished != 0;
        assert_int_equal(shoal_trainer_save(trainer, path), SHOAL_OK);
        shoal_trainer_destroy(trainer);
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
    (void)state;
    checkpoint_path(path);
    for (int64_t i = 0; i < COUNT_OF(kinds); i += 2) {
        whole_curve(kinds[i], 2, &whole);
        resumed_curve(kinds[i], path, &pieces);
        assert_memory_equal(&whole, &pieces, sizeof whole);
    }
    remove(path);
}

/* Training to 4 steps, where a closing validation is off the beat of 3, and then to all. */
static void raising_the_steps_changes_nothing(void **state) {
    static curve whole, pieces;
    char path[256];
    (void)state;
    checkpoint_path(path);
    whole_curve("full", 1, &whole);
    memset(&pieces, 0, sizeof pieces);
    shoal_context *context = test_context(NULL, 1);
    for (int64_t steps = 4; steps <= STEPS; steps += STEPS - 4) {
        shoal_train_config config = small_config(context, "full");
        shoal_trainer *trainer;
        config.steps = steps;
        assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_OK);
        if (steps == STEPS)
            assert_int_equal(shoal_trainer_resume(trainer, path), SHOAL_OK);
        while (!shoal_trainer_progress(trainer).finished)
            advance(trainer, &pieces);
        assert_int_equal(shoal_trainer_save(trainer, path), SHOAL_OK);
        shoal_trainer_destroy(trainer);
    }
    assert_memory_equal(&whole, &pieces, sizeof whole);
    shoal_context_destroy(context);
    remove(path);
}

/* ---- Stopping and evaluating ----------------------------------------------------- */

static void stops_by_the_rule_only(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *trainer = small_trainer(context, "full");
    shoal_score score;
    (void)state;
    trainer->config.stop_after = 2;
    trainer->state.perfect = 1;
    trainer->state.step = 3;
    assert_true(shoal_trainer_progress(trainer).validate);
    assert_false(shoal_trainer_progress(trainer).finished);
    assert_int_equal(shoal_trainer_validate(trainer, &score), SHOAL_OK);
    assert_true(score.correct < score.counted); /* nothing is learnt */
    assert_int_equal(trainer->state.perfect, 0);
    assert_false(shoal_trainer_progress(trainer).finished);
    trainer->state.perfect = 2;
    assert_true(shoal_trainer_progress(trainer).finished);
    trainer->config.stop_after = 0;
    assert_false(shoal_trainer_progress(trainer).finished);
    trainer->state.step = 12;
    assert_false(shoal_trainer_progress(trainer).finished); /* a validation is due */
    assert_int_equal(shoal_trainer_validate(trainer, &score), SHOAL_OK);
    assert_true(shoal_trainer_progress(trainer).finished);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

static void evaluates_with_other_kinds(void **state) {
    shoal_context *context = test_context(NULL, 2);
    shoal_trainer *trainer = small_trainer(context, "full");
    shoal_score full, same, other;
    static curve line;
    (void)state;
    advance(trainer, &line);
    const shoal_train_progress before = shoal_trainer_progress(trainer);
    shoal_attention kind = spelled("clustered-100"); /* no more queries: full */
    assert_int_equal(shoal_trainer_evaluate(trainer, NULL, 3, &full), SHOAL_OK);
    assert_int_equal(full.counted, 3 * 3 * 3);
    assert_int_equal(shoal_trainer_evaluate(trainer, &kind, 3, &same), SHOAL_OK);
    assert_float_equal(full.loss, same.loss, 1e-5);
    kind = spelled("clustered-2");
    assert_int_equal(shoal_trainer_evaluate(trainer, &kind, 3, &other), SHOAL_OK);
    assert_true(fabs(full.loss - other.loss) > 1e-6);
    kind = spelled("lsh-1");
    assert_int_equal(shoal_trainer_evaluate(trainer, &kind, 3, &other), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_evaluate(trainer, &kind, 0, &other), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_evaluate(trainer, NULL, 0, &other), SHOAL_OK);
    assert_int_equal(other.counted, 0);
    assert_non_null(strstr(shoal_context_message(context), "shared_qk"));
    const shoal_train_progress after = shoal_trainer_progress(trainer);
    assert_int_equal(before.step, after.step);
    assert_int_equal(before.validations, after.validations);
    /* Its batches are not those of the validation. */
    assert_int_equal(shoal_trainer_evaluate(trainer, NULL, 2, &same), SHOAL_OK);
    assert_int_equal(shoal_trainer_validate(trainer, &other), SHOAL_OK);
    assert_true(fabs(same.loss - other.loss) > 1e-6);
    shoal_trainer_destroy(trainer);

    trainer = small_trainer(context, "lsh-2");
    kind = spelled("shared-full");
    assert_int_equal(shoal_trainer_evaluate(trainer, &kind, 3, &other), SHOAL_OK);
    kind = spelled("full"); /* of one projection */
    assert_int_equal(shoal_trainer_evaluate(trainer, &kind, 3, &same), SHOAL_OK);
    assert_float_equal(other.loss, same.loss, 1e-6);
    shoal_trainer_destroy(trainer);
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
    shoal_train_config config = small_config(context, "full");
    shoal_trainer *trainer;
    shoal_train_step step;
    shoal_score score = {0};
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(settings); i++)
        say(context, &config, settings[i][0], settings[i][1]);
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_OK);
    for (shoal_train_progress at = {0}; !at.finished && score.accuracy < 0.97;
         at = shoal_trainer_progress(trainer))
        assert_int_equal(at.validate ? shoal_trainer_validate(trainer, &score)
                                     : shoal_trainer_step(trainer, &step),
                         SHOAL_OK);
    assert_int_equal(shoal_trainer_evaluate(trainer, NULL, 10, &score), SHOAL_OK);
    assert_true(score.accuracy > 0.94);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

/* ---- Memory ---------------------------------------------------------------------- */

static void steps_allocate_nothing(void **state) {
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(kinds); i++) {
        counting_allocator allocator = {0};
        shoal_options options = counting_options(&allocator);
        shoal_context *context;
        static curve line;
        assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
        shoal_trainer *trainer = small_trainer(context, kinds[i]);
        const int64_t calls = allocator.calls;
        for (int step = 0; step < 4; step++)
            advance(trainer, &line);
        assert_int_equal(allocator.calls, calls);
        shoal_trainer_destroy(trainer);
        shoal_context_destroy(context);
        assert_int_equal(allocator.live, 0);
    }
}

/* All that allocates, with the n-th allocation failing; true when none failed. */
static bool survive(int64_t fail_at, const char *path) {
    counting_allocator allocator = {.fail_at = 0};
    shoal_options options = counting_options(&allocator);
    shoal_context *context;
    shoal_trainer *trainer = NULL;
    shoal_score score;
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    shoal_train_config config = small_config(context, "i-clustered-4:topk=3");
    allocator.fail_at = allocator.calls + fail_at;
    shoal_status status = shoal_trainer_create(context, &config, &trainer);
    if (status == SHOAL_OK)
        status = shoal_trainer_save(trainer, path);
    if (status == SHOAL_OK)
        status = shoal_trainer_resume(trainer, path);
    if (status == SHOAL_OK)
        status = shoal_trainer_evaluate(trainer, NULL, 1, &score);
    if (status == SHOAL_OK)
        status = shoal_train_read(context, path, &config);
    assert_true(status == SHOAL_OK || status == SHOAL_NO_MEMORY);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
    assert_int_equal(allocator.live, 0);
    return status == SHOAL_OK;
}

static void allocations_may_fail(void **state) {
    char path[256];
    int64_t failures = 1;
    (void)state;
    checkpoint_path(path);
    while (!survive(failures, path))
        failures++;
    assert_true(failures > 8);
    remove(path);
}

static void null_is_refused(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = small_config(context, "full");
    shoal_trainer *trainer;
    (void)state;
    assert_int_equal(shoal_trainer_create(NULL, &config, &trainer), SHOAL_INVALID);
    assert_null(trainer);
    trainer = small_trainer(context, "full");
    assert_int_equal(shoal_trainer_step(trainer, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_step(NULL, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_validate(trainer, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_evaluate(trainer, NULL, 0, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_save(trainer, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_trainer_resume(NULL, "x"), SHOAL_INVALID);
    assert_int_equal(shoal_train_set(context, NULL, "seed", "1"), SHOAL_INVALID);
    assert_int_equal(shoal_train_read(context, NULL, &config), SHOAL_INVALID);
    assert_null(shoal_train_describe(-1));
    assert_int_equal(shoal_trainer_workspace(NULL), 0);
    shoal_trainer_destroy(NULL);
    shoal_trainer_destroy(trainer);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_change_nothing),
        cmocka_unit_test(resuming_changes_nothing),
        cmocka_unit_test(raising_the_steps_changes_nothing),
        cmocka_unit_test(stops_by_the_rule_only),
        cmocka_unit_test(evaluates_with_other_kinds),
        cmocka_unit_test(learns_to_copy),
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(allocations_may_fail),
        cmocka_unit_test(null_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
