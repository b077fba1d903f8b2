/* Checkpoints that do not fit, are cut short or are not checkpoints: each is refused with
   a message that names what is wrong, and the trainer stays what it was. */

#define _GNU_SOURCE
/* Before cmocka, whose macro fail() would be in the way. */
#include "models/files/safetensors.h"
#include "models/training/train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shoal_models.h"
#include "support.h"

typedef struct {
    shoal_context *context;
    shoal_trainer *trainer;
    char path[256], other[272];
} workplace;

static shoal_trainer *make_trainer(shoal_context *context, const char *field,
                                   const char *value) {
    static const char *const settings[][2] =
        {{"length", "5"},          {"layers", "1"},
         {"heads", "2"},           {"head_dim", "4"},
         {"batch", "2"},           {"feed_forward", "8"},
         {"steps", "4"},           {"seed", "3"},
         {"average", "0.9"},       {"validate_every", "2"},
         {"validate_batches", "1"}};
    shoal_train_config config;
    shoal_trainer *trainer;
    assert_int_equal(shoal_train_defaults(context, "copy", &config), SHOAL_OK);
    for (int64_t i = 0; i < COUNT_OF(settings); i++)
        assert_int_equal(shoal_train_set(context, &config, settings[i][0],
                                         settings[i][1]),
                         SHOAL_OK);
    assert_int_equal(shoal_train_set(context, &config, field, value), SHOAL_OK);
    assert_int_equal(shoal_trainer_create(context, &config, &trainer), SHOAL_OK);
    return trainer;
}

static int set_up(void **state) {
    static workplace place;
    const char *folder = getenv("TMPDIR");
    shoal_train_step step;
    shoal_score score;
    snprintf(place.path, sizeof place.path, "%s/shoal-files-%ld.safetensors",
             folder ? folder : "/tmp", (long)getpid());
    snprintf(place.other, sizeof place.other, "%s.other", place.path);
    place.context = test_context(NULL, 1);
    place.trainer = make_trainer(place.context, "seed", "3");
    assert_int_equal(shoal_trainer_step(place.trainer, &step), SHOAL_OK);
    assert_int_equal(shoal_trainer_step(place.trainer, &step), SHOAL_OK);
    assert_int_equal(shoal_trainer_validate(place.trainer, &score), SHOAL_OK);
    assert_int_equal(shoal_trainer_save(place.trainer, place.path), SHOAL_OK);
    *state = &place;
    return 0;
}

static int tear_down(void **state) {
    workplace *place = *state;
    shoal_trainer_destroy(place->trainer);
    shoal_context_destroy(place->context);
    remove(place->path);
    remove(place->other);
    return 0;
}

/* The trainer's weights and counts, as a sum that any change changes. */
static double digest(const shoal_trainer *trainer) {
    const parameters *arena = trainer->model->arena;
    double sum = (double)trainer->state.step;
    for (int64_t i = 0; i < arena->size; i++)
        sum += (double)(i % 97 + 1) *
               ((double)arena->values[i] + 3 * (double)trainer->optimizer.first[i] +
                5 * (double)trainer->optimizer.second[i] +
                7 * (double)trainer->averaged[i]);
    return sum;
}

static void refused(workplace *place, const char *path, const char *reason) {
    const double before = digest(place->trainer);
    const shoal_status status = shoal_trainer_resume(place->trainer, path);
    assert_true(status == SHOAL_BAD_FILE || status == SHOAL_INVALID ||
                status == SHOAL_IO);
    if (!strstr(shoal_context_message(place->context), reason))
        fail_msg("\"%s\" does not say \"%s\"", shoal_context_message(place->context),
                 reason);
    assert_true(digest(place->trainer) == before);
}

/* ---- Fitting --------------------------------------------------------------------- */

static void everything_comes_back(void **state) {
    workplace *place = *state;
    shoal_trainer *fresh = make_trainer(place->context, "seed", "3");
    shoal_train_config config;
    const train_state kept = place->trainer->state;
    assert_true(digest(fresh) != digest(place->trainer));
    /* Every number of the state another one than at the beginning. */
    place->trainer->state.perfect = 3;
    place->trainer->state.schedule =
        (schedule_state){.best = 0.1, .waiting = 4, .scale = 0.3};
    assert_int_equal(shoal_trainer_save(place->trainer, place->other), SHOAL_OK);
    assert_int_equal(shoal_trainer_resume(fresh, place->other), SHOAL_OK);
    assert_true(digest(fresh) == digest(place->trainer));
    assert_memory_equal(&fresh->state, &place->trainer->state, sizeof fresh->state);
    assert_int_equal(fresh->optimizer.step, 2);
    assert_int_equal(shoal_train_read(place->context, place->path, &config), SHOAL_OK);
    assert_int_equal(config.length, 5);
    assert_int_equal(config.seed, 3);
    place->trainer->state = kept;
    shoal_trainer_destroy(fresh);
}

/* Whatever field differs, it is named; the number of steps may. */
static void other_fields_are_named(void **state) {
    static const char *const others[][2] =
        {{"length", "6"},       {"layers", "2"},       {"heads", "4"},
         {"head_dim", "8"},     {"norm", "post"},      {"attention", "clustered-3"},
         {"shared_qk", "true"}, {"average", "0"},      {"average", "0.99"},
         {"seed", "4"},         {"loss", "all"},       {"learning_rate", "0.0003"},
         {"clip", "1"},         {"optimizer", "adam"}, {"positions", "learned"}};
    workplace *place = *state;
    for (int64_t i = 0; i < COUNT_OF(others); i++) {
        char reason[64];
        shoal_trainer *other = make_trainer(place->context, others[i][0], others[i][1]);
        snprintf(reason, sizeof reason, "the checkpoint has %s = ", others[i][0]);
        assert_int_equal(shoal_trainer_resume(other, place->path), SHOAL_INVALID);
        assert_non_null(strstr(shoal_context_message(place->context), reason));
        assert_int_equal(shoal_trainer_progress(other).step, 0);
        shoal_trainer_destroy(other);
    }
    shoal_trainer *longer = make_trainer(place->context, "steps", "400");
    assert_int_equal(shoal_trainer_resume(longer, place->path), SHOAL_OK);
    assert_int_equal(shoal_trainer_progress(longer).step, 2);
    shoal_trainer_destroy(longer);
}

/* A program that chose a decimal comma writes and reads the same files. Where there is no
   such locale, one is made. */
static void commas_change_nothing(void **state) {
    workplace *place = *state;
    char folder[] = "/tmp/shoal-locale-XXXXXX", command[160];
    shoal_train_config config;
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command,
             "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >%s/out 2>&1", folder, folder);
    const bool made = system(command) == 0;
    setenv("LOCPATH", folder, 1);
    const bool chosen = made && setlocale(LC_NUMERIC, "de_DE.UTF-8");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    unsetenv("LOCPATH");
    if (!chosen) {
        print_message("skipped: no locale de_DE.UTF-8 (the Debian package locales)\n");
        skip();
    }
    assert_true(strtod("0,5", NULL) == 0.5); /* it has the comma */
    shoal_trainer *fresh = make_trainer(place->context, "learning_rate", "0.0002");
    assert_int_equal(shoal_trainer_resume(fresh, place->path), SHOAL_OK);
    assert_int_equal(shoal_trainer_save(fresh, place->other), SHOAL_OK);
    setlocale(LC_NUMERIC, "C");
    assert_int_equal(shoal_trainer_resume(fresh, place->other), SHOAL_OK);
    assert_int_equal(shoal_train_read(place->context, place->other, &config), SHOAL_OK);
    assert_true(config.learning_rate == 0.0002f && config.average == 0.9f);
    shoal_trainer_destroy(fresh);
}

/* ---- Files that are wrong -------------------------------------------------------- */

/* Writes the checkpoint again without one tensor, or with a note changed or left out. */
static void rewrite(workplace *place, const char *left_out, const char *key,
                    const char *value) {
    safetensors *file;
    file_tensor tensors[256];
    safetensors_note notes[64];
    int64_t count = 0, note_count = 0;
    assert_int_equal(sh_safetensors_open(place->context, place->path, &file), SHOAL_OK);
    for (int64_t i = 0; i < sh_safetensors_count(file); i++) {
        assert_true(count < 256);
        tensors[count] = *sh_safetensors_at(file, i);
        count += strcmp(tensors[count].name, left_out) != 0;
    }
    for (int64_t i = 0; i < sh_safetensors_note_count(file); i++) {
        assert_true(note_count < 64);
        notes[note_count] = sh_safetensors_note_at(file, i);
        if (strcmp(notes[note_count].key, key) == 0)
            notes[note_count].value = value;
        note_count += notes[note_count].value != NULL;
    }
    assert_int_equal(sh_safetensors_write(place->context, place->other, tensors, count,
                                          notes, note_count, 0),
                     SHOAL_OK);
    sh_safetensors_close(file);
}

static void wrong_contents_are_named(void **state) {
    workplace *place = *state;
    rewrite(place, "", "", NULL);
    assert_int_equal(shoal_trainer_resume(place->trainer, place->other), SHOAL_OK);
    rewrite(place, "output.weight", "", NULL);
    refused(place, place->other, "output.weight");
    rewrite(place, "optimizer.second.output.bias", "", NULL);
    refused(place, place->other, "optimizer.second.output.bias");
    rewrite(place, "", "format", "other");
    refused(place, place->other, "not a checkpoint");
    rewrite(place, "", "config.layers", NULL);
    refused(place, place->other, "config.layers");
    rewrite(place, "", "config.layers", "two");
    refused(place, place->other, "layers");
    shoal_train_config config;
    assert_int_equal(shoal_train_read(place->context, place->other, &config),
                     SHOAL_BAD_FILE);
    /* The same, spelled otherwise. */
    rewrite(place, "", "config.learning_rate", "2.0e-4");
    assert_int_equal(shoal_trainer_resume(place->trainer, place->other), SHOAL_OK);
    rewrite(place, "", "config.norm", "\033[31mpre");
    refused(place, place->other, "\"?[31mpre\"");
    rewrite(place, "", "format", "\033[31m");
    refused(place, place->other, "\"?[31m\"");
    rewrite(place, "", "state.step", "-3");
    refused(place, place->other, "state.step");
    rewrite(place, "", "state.step", "9223372036854775807");
    refused(place, place->other, "state.step");
    rewrite(place, "", "state.schedule_best", "nan");
    refused(place, place->other, "state.schedule_best");
    rewrite(place, "", "state.schedule_scale", "-0x1p+0");
    refused(place, place->other, "state.schedule_scale");
    rewrite(place, "", "state.schedule_scale", "inf");
    refused(place, place->other, "state.schedule_scale");
    rewrite(place, "", "state.perfect", NULL);
    refused(place, place->other, "state.perfect");
    refused(place, "/nonexistent/x.safetensors", "x.safetensors");
}

/* A file cut anywhere is refused. */
static void truncated_files_are_refused(void **state) {
    workplace *place = *state;
    FILE *file = fopen(place->path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    char *bytes = malloc((size_t)size);
    rewind(file);
    assert_int_equal(fread(bytes, 1, (size_t)size, file), size);
    fclose(file);
    for (long cut = 0; cut < size; cut += 1 + size / 97) {
        file = fopen(place->other, "wb");
        assert_int_equal(fwrite(bytes, 1, (size_t)cut, file), cut);
        fclose(file);
        refused(place, place->other, place->other);
    }
    free(bytes);
}

/* A save that cannot be written leaves the old checkpoint. */
static void failed_saves_leave_the_old_one(void **state) {
    workplace *place = *state;
    assert_int_equal(shoal_trainer_save(place->trainer, "/nonexistent/x.safetensors"),
                     SHOAL_IO);
    assert_int_equal(shoal_trainer_resume(place->trainer, place->path), SHOAL_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_comes_back),
        cmocka_unit_test(other_fields_are_named),
        cmocka_unit_test(commas_change_nothing),
        cmocka_unit_test(wrong_contents_are_named),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(failed_saves_leave_the_old_one),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
