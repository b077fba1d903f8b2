/* Runs in folders: cancelled and resumed runs have the log of an uninterrupted one;
   errors, and callbacks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "support.h"
#include "train_support.h"

typedef struct {
    int64_t steps, validations, saved, cancel_at; /* 0: never */
    bool cancelled;
    const char *folder;
} listener;

static void hear(void *user, const shoal_train_progress *at) {
    listener *one = user;
    one->steps += at->event == SHOAL_TRAIN_EVENT_STEP;
    one->validations += at->event == SHOAL_TRAIN_EVENT_VALIDATION;
    one->saved += at->event == SHOAL_TRAIN_EVENT_SAVED;
    if (at->event == SHOAL_TRAIN_EVENT_STEP)
        assert_int_equal(at->done, at->state->step);
    one->cancelled = one->cancel_at > 0 && at->done >= one->cancel_at;
}

static int wants_to_end(void *user) {
    return ((listener *)user)->cancelled;
}

static shoal_run_options options_of(listener *one, const char *folder) {
    shoal_run_options options = shoal_run_options_defaults();
    options.folder = folder;
    options.test_batches = 2;
    options.callbacks =
        (shoal_train_callbacks){.user = one, .progress = hear, .cancelled = wants_to_end};
    return options;
}

/* The lines of a log, without seconds. */
static void read_log(const char *folder, char *text, size_t size) {
    char path[512], line[4096];
    snprintf(path, sizeof path, "%s/" SHOAL_RUN_LOG, folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t used = 0;
    text[0] = 0;
    while (fgets(line, sizeof line, file)) {
        char *seconds = strstr(line, "\"seconds\"");
        if (seconds)
            strcpy(seconds, "\n");
        used += (size_t)snprintf(text + used, size - used, "%s", line);
        assert_true(used < size);
    }
    fclose(file);
}

static void cancelling_changes_nothing(void **state) {
    static char whole_log[1 << 16], pieces_log[1 << 16];
    shoal_context *context = test_context(NULL, 2);
    shoal_copy_config config = small_config(context, "full"),
                      again = shoal_copy_config_defaults();
    const char *folder = make_folder();
    char whole[512], pieces[512];
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(pieces, sizeof pieces, "%s/pieces", folder);
    listener one = {0}, other = {.cancel_at = 5};
    shoal_run_options options = options_of(&one, whole);
    shoal_run_result result, found;
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &result),
                     SHOAL_OK);
    assert_true(result.finished && result.tested && result.saved && result.validated);
    assert_int_equal(one.steps, 12);
    assert_int_equal(one.validations, 4);
    assert_int_equal(result.test.counted, 2 * 3 * 3);

    options = options_of(&other, pieces);
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &found),
                     SHOAL_CANCELLED);
    assert_true(found.saved && !found.finished && !found.tested);
    assert_int_equal(found.state.step, 5);
    /* Without resume it is not continued; and then only from the checkpoint. */
    other = (listener){0};
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &found),
                     SHOAL_INVALID);
    assert_int_equal(found.cause, SHOAL_RUN_CAUSE_SETTINGS);
    assert_non_null(
        strstr(shoal_context_message(context), "already contains a training"));
    options.resume = 1;
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &again, &options, &found),
                     SHOAL_OK);
    assert_int_equal(other.steps, 7);
    assert_int_equal(again.length, 7);
    assert_true(found.test.loss == result.test.loss);
    read_log(whole, whole_log, sizeof whole_log);
    read_log(pieces, pieces_log, sizeof pieces_log);
    assert_string_equal(whole_log, pieces_log);
    remove_folder(folder);
    shoal_context_destroy(context);
}

static void what_is_refused(void **state) {
    static const shoal_setting longer = {"steps", "14"}, wider = {"heads", "4"};
    shoal_context *context = test_context(NULL, 1);
    shoal_copy_config config = small_config(context, "full");
    const char *folder = make_folder();
    listener one = {.cancel_at = 2};
    shoal_run_options options = options_of(&one, folder);
    shoal_run_result result;
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, NULL),
                     SHOAL_CANCELLED);
    options.resume = 1;
    options.settings = &wider;
    options.setting_count = 1;
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &result),
                     SHOAL_INVALID);
    assert_int_equal(result.cause, SHOAL_RUN_CAUSE_INPUT);
    assert_non_null(strstr(shoal_context_message(context), "the checkpoint has heads"));
    one = (listener){0};
    options.settings = &longer;
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &result),
                     SHOAL_OK);
    assert_int_equal(result.state.step, 14);
    /* The folder is locked by another process. */
    const int lock = open(folder, O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &result),
                     SHOAL_IO);
    assert_true(result.busy && result.cause == SHOAL_RUN_CAUSE_OUTPUT);
    close(lock);
    options.folder = NULL;
    assert_int_equal(shoal_train_run(context, &sh_copy_task, &config, &options, &result),
                     SHOAL_INVALID);
    remove_folder(folder);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancelling_changes_nothing),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
