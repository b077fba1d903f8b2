/* The copy task against its description, and configurations as text. */

/* Before cmocka, whose macro fail() would be in the way. */
#include "models/training/task.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "shoal_models.h"
#include "support.h"

enum { ROWS = 64 };

/* Values that are nobody's default. */
static shoal_train_config some_config(shoal_context *context, const char *kind) {
    shoal_train_config config;
    assert_int_equal(shoal_train_defaults(context, "copy", &config), SHOAL_OK);
    assert_int_equal(shoal_train_set(context, &config, "attention", kind), SHOAL_OK);
    config.batch = 3;
    config.model.dropout = 0.1f;
    config.model.norm = SHOAL_NORM_POST;
    config.average = 0.987654321f;
    config.learning_rate = 1.0f / 3;
    config.seed = UINT64_MAX;
    return config;
}

/* ---- The copy task --------------------------------------------------------------- */

typedef struct {
    int64_t offsets[9];
    int32_t tokens[8 * ROWS], targets[8 * ROWS], answers[8 * ROWS];
    task_batch batch;
} batch_memory;

static const task_batch *make(batch_memory *memory, const shoal_train_config *config,
                              task_split split, int64_t number) {
    memset(memory, 0, sizeof *memory);
    memory->batch = (task_batch){.offsets = memory->offsets,
                                 .tokens = memory->tokens,
                                 .targets = memory->targets,
                                 .answers = memory->answers};
    sh_task_copy.make(config, split, number, &memory->batch);
    return &memory->batch;
}

/* One row of 0w0w: its masked symbols are counted, and can be read in the other half. */
static int64_t check_row(const int32_t *tokens, const int32_t *targets,
                         const int32_t *answers, int64_t length, bool all) {
    int64_t masked = 0;
    assert_int_equal(tokens[0], 0);
    assert_int_equal(tokens[length + 1], 0);
    assert_int_equal(targets[0], all ? 0 : -1);
    for (int64_t i = 1; i <= length; i++) {
        const int64_t places[] = {i, i + length + 1};
        const int32_t first = tokens[places[0]], second = tokens[places[1]];
        assert_false(first == 11 && second == 11);
        assert_true(first == 11 || second == 11 || first == second);
        for (int which = 0; which < 2; which++) {
            const int64_t place = places[which];
            const int32_t symbol = tokens[places[1 - which]];
            const bool hidden = tokens[place] == 11;
            masked += hidden;
            assert_true(hidden || (tokens[place] >= 1 && tokens[place] <= 10));
            assert_int_equal(answers[place], hidden ? symbol : -1);
            assert_int_equal(targets[place], hidden ? symbol : all ? tokens[place] : -1);
        }
    }
    return masked;
}

static void copy_is_as_described(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = some_config(context, "full");
    static batch_memory memory;
    (void)state;
    for (int all = 0; all < 2; all++)
        for (int64_t length = 1; length <= 31; length += length < 4 ? 1 : 9) {
            int64_t first_copy = 0;
            config.length = length;
            config.loss = all ? SHOAL_LOSS_ALL : SHOAL_LOSS_MASKED;
            config.batch = 8;
            const int64_t rows = sh_task_copy.shape(&config).max_length;
            assert_int_equal(rows, 2 * length + 2);
            const task_batch *batch = make(&memory, &config, SPLIT_TRAIN, 3);
            for (int64_t b = 0; b < 8; b++) {
                assert_int_equal(batch->offsets[b], b * rows);
                const int32_t *tokens = batch->tokens + b * rows;
                const int64_t masked = check_row(tokens, batch->targets + b * rows,
                                                 batch->answers + b * rows, length,
                                                 all != 0);
                const int64_t fifth = (int64_t)floor(0.2 * 2 * (double)length + 0.5);
                assert_int_equal(masked, fifth > 0 ? fifth : 1);
                for (int64_t i = 1; i <= length; i++)
                    first_copy += tokens[i] == 11;
            }
            assert_int_equal(batch->offsets[8], 8 * rows);
            if (length == 31) { /* 96 coins */
                assert_true(first_copy > 24);
                assert_true(first_copy < 72);
            }
        }
    shoal_context_destroy(context);
}

static void batches_are_functions_of_their_number(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = some_config(context, "full");
    static batch_memory a, b;
    (void)state;
    config.length = 31;
    make(&a, &config, SPLIT_TRAIN, 7);
    make(&b, &config, SPLIT_TRAIN, 8);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    make(&b, &config, SPLIT_VALIDATE, 7);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    make(&b, &config, SPLIT_TRAIN, 7);
    assert_memory_equal(a.tokens, b.tokens, sizeof a.tokens);
    config.seed++;
    make(&b, &config, SPLIT_TRAIN, 7);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    assert_memory_not_equal(a.tokens, a.tokens + ROWS, 64 * sizeof *a.tokens);
    shoal_context_destroy(context);
}

/* ---- Configurations -------------------------------------------------------------- */

static void fields_are_read_and_written(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = some_config(context, "i-clustered-9:topk=3"), copy;
    (void)state;
    assert_int_equal(shoal_train_defaults(context, "copy", &copy), SHOAL_OK);
    int fields = 0;
    for (; shoal_train_describe(fields); fields++) {
        char text[160];
        shoal_train_get(&config, fields, text, sizeof text);
        assert_int_equal(shoal_train_set(context, &copy,
                                         shoal_train_describe(fields)->name, text),
                         SHOAL_OK);
        assert_int_equal(shoal_train_get(&config, fields, NULL, 0), strlen(text));
    }
    assert_true(fields > 25);
    assert_memory_equal(&config, &copy, sizeof config);
    assert_int_equal(shoal_train_set(context, &copy, "feed-forward", "99"), SHOAL_OK);
    assert_int_equal(copy.model.feed_forward, 99);
    shoal_context_destroy(context);
}

static void wrong_fields_are_named(void **state) {
    static const char *const wrong[][3] = {{"layer", "4", "layer"},
                                           {"layers", "0", "layers"},
                                           {"layers", "4.5", "layers"},
                                           {"layers", "", "layers"},
                                           {"norm", "middle", "pre, post"},
                                           {"dropout", "1", "dropout"},
                                           {"dropout", "nan", "dropout"},
                                           {"learning_rate", "-1", "learning_rate"},
                                           {"seed", "-1", "seed"},
                                           {"attention", "fool", "fool"},
                                           {"task", "fly", "tasks: copy"},
                                           {"steps", "1e3", "steps"},
                                           {"shared_qk", "yes", "shared_qk"},
                                           {"batch", "99999999999999999999", "batch"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_train_config config = some_config(context, "full");
    const shoal_train_config before = config;
    (void)state;
    for (int64_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(shoal_train_set(context, &config, wrong[i][0], wrong[i][1]),
                         SHOAL_INVALID);
        assert_non_null(strstr(shoal_context_message(context), wrong[i][2]));
        assert_memory_equal(&config, &before, sizeof config);
    }
    shoal_trainer *trainer;
    config.batch = 0;
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "batch"));
    assert_null(trainer);
    config = before;
    config.model.norm = 7;
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_INVALID);
    assert_int_equal(shoal_train_defaults(context, "fly", &config), SHOAL_INVALID);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_is_as_described),
        cmocka_unit_test(batches_are_functions_of_their_number),
        cmocka_unit_test(fields_are_read_and_written),
        cmocka_unit_test(wrong_fields_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
