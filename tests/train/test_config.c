/* The copy task compared with its description, configurations as text, and both in a
   checkpoint. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "support.h"
#include "train_support.h"

enum { ROWS = 64 };

/* Values that are not defaults. */
static shoal_copy_config some_config(shoal_context *context, const char *kind) {
    shoal_copy_config config = shoal_copy_config_defaults();
    say(context, &config, "attention", kind);
    config.train.batch = 3;
    config.train.model.dropout = 0.1f;
    config.train.model.norm = SHOAL_NORM_POST;
    config.train.optimizer.average = 0.987654321f;
    config.train.learning_rate = 1.0f / 3;
    config.train.seed = UINT64_MAX;
    return config;
}

/* ---- The copy task --------------------------------------------------------------- */

typedef struct {
    int64_t offsets[9];
    int32_t tokens[8 * ROWS], targets[8 * ROWS], answers[8 * ROWS], masked[8 * ROWS],
        masked_answers[8 * ROWS];
    copy_batch batch;
} batch_memory;

static const copy_batch *make(batch_memory *memory, const shoal_copy_config *config,
                              shoal_part part, int64_t number) {
    memset(memory, 0, sizeof *memory);
    memory->batch = (copy_batch){.offsets = memory->offsets,
                                 .tokens = memory->tokens,
                                 .targets = memory->targets,
                                 .answers = memory->answers,
                                 .masked = memory->masked,
                                 .masked_answers = memory->masked_answers};
    sh_copy_make(config, part, number, 0, config->train.batch, &memory->batch);
    return &memory->batch;
}

/* One row of 0w0w: counts its masked symbols, which must be readable in the other
   half. */
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
    shoal_copy_config config = some_config(context, "full");
    static batch_memory memory;
    for (int all = 0; all < 2; all++)
        for (int64_t length = 1; length <= 31; length += length < 4 ? 1 : 9) {
            int64_t first_copy = 0, masked = 0;
            config.length = length;
            config.loss = all ? SHOAL_COPY_LOSS_ALL : SHOAL_COPY_LOSS_MASKED;
            config.train.batch = 8;
            const int64_t rows = 2 * length + 2;
            const copy_batch *batch = make(&memory, &config, SHOAL_PART_TRAIN, 3);
            for (int64_t b = 0; b < 8; b++) {
                assert_int_equal(batch->offsets[b], b * rows);
                const int32_t *tokens = batch->tokens + b * rows;
                const int64_t here = check_row(tokens, batch->targets + b * rows,
                                               batch->answers + b * rows, length,
                                               all != 0);
                const int64_t fifth = (int64_t)floor(0.2 * 2 * (double)length + 0.5);
                assert_int_equal(here, fifth > 0 ? fifth : 1);
                for (int64_t i = 1; i <= length; i++)
                    first_copy += tokens[i] == 11;
            }
            assert_int_equal(batch->offsets[8], 8 * rows);
            if (length == 31) { /* 96 coin flips */
                assert_true(first_copy > 24);
                assert_true(first_copy < 72);
            }
            for (int64_t row = 0; row < 8 * rows; row++)
                if (batch->tokens[row] == 11) {
                    assert_int_equal(batch->masked[masked], row);
                    assert_int_equal(batch->masked_answers[masked++],
                                     batch->answers[row]);
                }
            assert_int_equal(batch->masked_count, masked);
        }
    shoal_context_destroy(context);
}

static void batches_are_functions_of_their_number(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_copy_config config = some_config(context, "full");
    static batch_memory a, b;
    config.length = 31;
    make(&a, &config, SHOAL_PART_TRAIN, 7);
    make(&b, &config, SHOAL_PART_TRAIN, 8);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    make(&b, &config, SHOAL_PART_VALIDATION, 7);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    make(&b, &config, SHOAL_PART_TRAIN, 7);
    assert_memory_equal(a.tokens, b.tokens, sizeof a.tokens);
    config.train.seed++;
    make(&b, &config, SHOAL_PART_TRAIN, 7);
    assert_memory_not_equal(a.tokens, b.tokens, sizeof a.tokens);
    assert_memory_not_equal(a.tokens, a.tokens + ROWS, 64 * sizeof *a.tokens);
    shoal_context_destroy(context);
}

/* ---- Configurations -------------------------------------------------------------- */

static void fields_are_read_and_written(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const shoal_copy_config config = some_config(context, "i-clustered-7:topk=5,seed=3");
    shoal_copy_config copy = shoal_copy_config_defaults();
    const shoal_field *field;
    int fields = 0;
    for (; (field = shoal_task_field(&sh_copy_task, fields)); fields++) {
        char text[SHOAL_VALUE_SIZE];
        const size_t length =
            shoal_config_get(&sh_copy_task, &config, field->name, text, sizeof text);
        assert_int_equal(length, strlen(text));
        assert_non_null(field->about);
        say(context, &copy, field->name, text);
        assert_int_equal(shoal_config_get(&sh_copy_task, &config, field->name, NULL, 0),
                         strlen(text));
    }
    assert_true(fields > 25);
    assert_null(shoal_task_field(&sh_copy_task, -1));
    assert_memory_equal(&config, &copy, sizeof config);
    say(context, &copy, "feed-forward", "99");
    assert_int_equal(copy.train.model.feed_forward, 99);
    shoal_context_destroy(context);
}

/* A program built with a smaller configuration, and one without. */
static void sizes_of_other_versions(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_copy_config config = small_config(context, "full");
    shoal_trainer *at;
    config.length = 5;
    config.train.size = offsetof(shoal_copy_config, length);
    assert_int_equal(shoal_trainer_create(context, &sh_copy_task, &config, NULL, NULL,
                                          &at),
                     SHOAL_OK);
    assert_int_equal(((const shoal_copy_config *)shoal_trainer_config(at))->length, 31);
    shoal_trainer_destroy(at);
    config.train.size = 0;
    assert_int_equal(shoal_trainer_create(context, &sh_copy_task, &config, NULL, NULL,
                                          &at),
                     SHOAL_INVALID);
    assert_null(at);
    assert_non_null(strstr(shoal_context_message(context), "_defaults"));
    shoal_context_destroy(context);
}

/* Each task's fields have distinct names, texts that are read back, and defaults within
   their ranges; presets are known or rejected. */
static void every_task_has_its_fields(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const char *name;
    for (int t = 0; (name = shoal_task_name(t)); t++) {
        const shoal_train_task *task = shoal_task_find(name);
        const shoal_field *field;
        char config[4096], value[SHOAL_VALUE_SIZE], json[8192];
        assert_true(task->config_size <= sizeof config);
        assert_int_equal(shoal_config_init(context, task, "default", config,
                                           sizeof config),
                         SHOAL_OK);
        for (int i = 0; (field = shoal_task_field(task, i)); i++) {
            assert_ptr_equal(shoal_task_field_find(task, field->name), field);
            shoal_config_get(task, config, field->name, value, sizeof value);
            assert_int_equal(shoal_config_set(context, task, config, field->name, value),
                             SHOAL_OK);
        }
        assert_true(shoal_config_json(task, config, json, sizeof json) < sizeof json);
        assert_int_equal(shoal_config_init(context, task, "fly", config, sizeof config),
                         SHOAL_INVALID);
    }
    assert_null(shoal_task_find("fly"));
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
                                           {"batch", "99999999999999999999", "batch"},
                                           {"beta2", "1", "0.9999999"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_copy_config config = some_config(context, "full");
    const shoal_copy_config before = config;
    for (int64_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(shoal_config_set(context, &sh_copy_task, &config, wrong[i][0],
                                          wrong[i][1]),
                         SHOAL_INVALID);
        assert_non_null(strstr(shoal_context_message(context), wrong[i][2]));
        assert_memory_equal(&config, &before, sizeof config);
    }
    /* The limits of a range are floats: this one is inside. */
    config = before;
    say(context, &config, "beta2", "0.9999999");
    shoal_trainer *at = trainer_of(context, &config);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

/* ---- Checkpoints ----------------------------------------------------------------- */

static void temporary_path(char path[256]) {
    const char *folder = getenv("TMPDIR");
    snprintf(path, 256, "%s/shoal-config-%ld.safetensors", folder ? folder : "/tmp",
             (long)getpid());
}

/* Every number of the state differs from its initial value. */
static void the_state_comes_back(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const shoal_copy_config config = small_config(context, "full");
    shoal_trainer *at = trainer_of(context, &config),
                  *fresh = trainer_of(context, &config);
    shoal_copy_config read = shoal_copy_config_defaults();
    char path[256];
    temporary_path(path);
    at->state = (shoal_train_state){.step = 2,
                                    .validations = 5,
                                    .validated_at = 1,
                                    .perfect = 3,
                                    .seconds = 0.1};
    at->schedule.best = 0.1;
    at->schedule.waiting = 4;
    at->schedule.scale = 0.3;
    assert_int_equal(shoal_trainer_save(at, path), SHOAL_OK);
    assert_int_equal(shoal_trainer_resume(fresh, path), SHOAL_OK);
    assert_memory_equal(&fresh->state, &at->state, sizeof at->state);
    assert_memory_equal(&fresh->schedule, &at->schedule, sizeof at->schedule);
    assert_int_equal(shoal_run_config(context, &sh_copy_task, path, &read), SHOAL_OK);
    assert_int_equal(read.length, 7);
    assert_int_equal(read.train.seed, 5);
    remove(path);
    shoal_trainer_destroy(fresh);
    shoal_trainer_destroy(at);
    shoal_context_destroy(context);
}

/* Any field that differs is named; the number of steps may differ. */
static void other_fields_are_named(void **state) {
    static const char *const others[][2] =
        {{"length", "6"},       {"layers", "1"},       {"heads", "4"},
         {"head_dim", "4"},     {"norm", "post"},      {"attention", "clustered-3"},
         {"shared_qk", "true"}, {"average", "0"},      {"average", "0.99"},
         {"seed", "4"},         {"loss", "all"},       {"learning_rate", "0.0003"},
         {"clip", "1"},         {"optimizer", "adam"}, {"positions", "learned"}};
    static const char *const longer[][2] = {{"steps", "400"}};
    shoal_context *context = test_context(NULL, 1);
    shoal_trainer *at = trainer_with(context, 0, NULL);
    shoal_train_step step;
    char path[256];
    temporary_path(path);
    assert_int_equal(shoal_trainer_step(at, &step), SHOAL_OK);
    assert_int_equal(shoal_trainer_save(at, path), SHOAL_OK);
    shoal_trainer_destroy(at);
    for (int64_t i = 0; i < COUNT_OF(others); i++) {
        char reason[64];
        shoal_trainer *other = trainer_with(context, 1, &others[i]);
        snprintf(reason, sizeof reason, "the checkpoint has %s = ", others[i][0]);
        assert_int_equal(shoal_trainer_resume(other, path), SHOAL_INVALID);
        assert_non_null(strstr(shoal_context_message(context), reason));
        assert_int_equal(other->state.step, 0);
        shoal_trainer_destroy(other);
    }
    at = trainer_with(context, 1, longer);
    assert_int_equal(shoal_trainer_resume(at, path), SHOAL_OK);
    assert_int_equal(at->state.step, 1);
    shoal_trainer_destroy(at);
    remove(path);
    shoal_context_destroy(context);
}

/* The trainer's notes with one changed or removed, in a trainer that then resumes. */
static void resume_as(shoal_context *context, const char *kind, const char *key,
                      const char *value, shoal_status wanted, const char *reason) {
    const char *const attention[][2] = {{"attention", kind}};
    shoal_trainer *at = trainer_with(context, 1, attention);
    shoal_checkpoint *file;
    shoal_note notes[64];
    int64_t count = 0, kept = 0;
    static const char *const counts[] = {"state.step", "state.validations",
                                         "state.validated_at", "state.perfect",
                                         "state.seconds"};
    char path[256], keys[64][48];
    temporary_path(path);
    assert_int_equal(shoal_trainer_save(at, path), SHOAL_OK);
    assert_int_equal(shoal_checkpoint_open(context, path, &file), SHOAL_OK);
    const shoal_field *field;
    for (int i = 0; (field = shoal_task_field(&sh_copy_task, i)); i++)
        snprintf(keys[count++], sizeof keys[count], "config.%s", field->name);
    for (int64_t i = 0; i < COUNT_OF(counts); i++, count++)
        snprintf(keys[count], sizeof keys[count], "%s", counts[i]);
    for (int64_t i = 0; i < count; i++) {
        const bool changed = strcmp(keys[i], key) == 0;
        notes[kept] =
            (shoal_note){keys[i], changed ? value : shoal_checkpoint_note(file, keys[i])};
        kept += notes[kept].value != NULL;
    }
    assert_int_equal(shoal_checkpoint_save(path, at->model, at->optimizer, &at->schedule,
                                           notes, kept),
                     SHOAL_OK);
    shoal_checkpoint_destroy(file);
    assert_int_equal(shoal_trainer_resume(at, path), wanted);
    if (wanted != SHOAL_OK && !strstr(shoal_context_message(context), reason))
        fail_msg("\"%s\" does not say \"%s\"", shoal_context_message(context), reason);
    shoal_trainer_destroy(at);
    remove(path);
}

static void resume_with(shoal_context *context, const char *key, const char *value,
                        shoal_status wanted, const char *reason) {
    resume_as(context, "i-clustered-3:topk=4", key, value, wanted, reason);
}

/* shoal-C without key clusters in notes means q-clustered-C; new files spell every
   option. */
static void the_attention_keeps_its_meaning(void **state) {
    static const char *const meant[][3] =
        {{"shoal-3", "q-clustered-3", "shoal-3"},
         {"shoal-3:topk=4", "q-clustered-3:topk=4", "shoal-3:topk=4"},
         {"shoal-3:topk=4,keyclusters=0", "q-clustered-3:topk=4", "shoal-3:topk=4"},
         {"shoal-3:keyclusters=auto", "shoal-3:form=2", "q-clustered-3"},
         {"shoal", "shoal:form=2", "q-clustered-100"}};
    shoal_context *context = test_context(NULL, 1);
    for (int64_t i = 0; i < COUNT_OF(meant); i++) {
        resume_as(context, meant[i][1], "", NULL, SHOAL_OK, "");
        resume_as(context, meant[i][2], "", NULL, SHOAL_OK, "");
        resume_as(context, meant[i][1], "config.attention", meant[i][0], SHOAL_OK, "");
        resume_as(context, meant[i][2], "config.attention", meant[i][0], SHOAL_INVALID,
                  "the checkpoint has attention = ");
    }
    shoal_context_destroy(context);
}

static void wrong_notes_are_named(void **state) {
    static const char *const wrong[][3] =
        {{"config.layers", NULL, "no config.layers"},
         {"config.layers", "two", "layers"},
         {"config.task", "fly", "tasks: copy"},
         {"config.norm", "\033[31mpre", "\"?[31mpre\""},
         {"state.step", "-3", "state.step"},
         {"state.step", "9223372036854775807", "state.step"},
         {"state.step", "\033[31m", "state.step is ?[31m"},
         {"state.perfect", NULL, "state.perfect is missing"},
         {"state.seconds", "nan", "state.seconds"}};
    shoal_context *context = test_context(NULL, 1);
    resume_with(context, "", NULL, SHOAL_OK, "");
    /* The same, spelled otherwise. */
    resume_with(context, "config.learning_rate", "1.0e-2", SHOAL_OK, "");
    for (int64_t i = 0; i < COUNT_OF(wrong); i++)
        resume_with(context, wrong[i][0], wrong[i][1], SHOAL_BAD_FILE, wrong[i][2]);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_is_as_described),
        cmocka_unit_test(batches_are_functions_of_their_number),
        cmocka_unit_test(fields_are_read_and_written),
        cmocka_unit_test(sizes_of_other_versions),
        cmocka_unit_test(every_task_has_its_fields),
        cmocka_unit_test(wrong_fields_are_named),
        cmocka_unit_test(the_state_comes_back),
        cmocka_unit_test(other_fields_are_named),
        cmocka_unit_test(the_attention_keeps_its_meaning),
        cmocka_unit_test(wrong_notes_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
