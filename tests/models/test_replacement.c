/* Atomic replacement of files. */
#define _GNU_SOURCE
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "shoal_models.h"

static void write_whole(const char *path, const char *text, shoal_sync sync, bool keep) {
    shoal_replacement *to;
    assert_int_equal(shoal_replacement_create(NULL, path, &to), SHOAL_OK);
    fputs(text, shoal_replacement_file(to));
    if (keep)
        assert_int_equal(shoal_replacement_commit(to, sync), SHOAL_OK);
    shoal_replacement_destroy(to);
}

static void expect_text(const char *path, const char *expected) {
    char text[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) <= sizeof text);
    fclose(file);
    assert_string_equal(text, expected);
}

static void expect_no_leftovers(void) {
    glob_t found;
    assert_int_equal(glob(".shoal-*", 0, NULL, &found), GLOB_NOMATCH);
}

static void a_commit_replaces(void **state) {
    for (int sync = SHOAL_SYNC_NONE; sync <= SHOAL_SYNC_NAME; sync++) {
        write_whole("file", "old", (shoal_sync)sync, true);
        write_whole("file", "new", (shoal_sync)sync, true);
        expect_text("file", "new");
    }
    expect_no_leftovers();
}

static void without_a_commit_nothing_changes(void **state) {
    write_whole("file", "old", SHOAL_SYNC_NONE, true);
    write_whole("file", "new", SHOAL_SYNC_NONE, false);
    expect_text("file", "old");
    expect_no_leftovers();
}

static void permissions_and_links_stay(void **state) {
    struct stat found;
    char target[PATH_MAX];
    write_whole("target", "old", SHOAL_SYNC_NONE, true);
    assert_int_equal(chmod("target", 0640), 0);
    assert_int_equal(symlink("target", "link"), 0);
    write_whole("link", "new", SHOAL_SYNC_NONE, true);
    assert_true(lstat("link", &found) == 0 && S_ISLNK(found.st_mode));
    assert_true(stat("target", &found) == 0 && (found.st_mode & 0777) == 0640);
    expect_text("target", "new");
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    assert_true(shoal_file_target("dangling", target, sizeof target));
    assert_string_equal(target, "nowhere");
    assert_false(shoal_file_target("dangling", target, 4));
}

static void failures_say_why(void **state) {
    shoal_replacement *to;
    shoal_context *context;
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    assert_int_equal(shoal_replacement_create(context, "no/file", &to), SHOAL_IO);
    assert_int_equal(errno, ENOENT);
    assert_null(to);
    assert_string_equal(shoal_context_message(context),
                        "no/file: cannot create a temporary file beside it: No such file "
                        "or directory");
    assert_int_equal(symlink("round", "round"), 0);
    assert_int_equal(shoal_replacement_create(NULL, "round", &to), SHOAL_IO);
    assert_int_equal(errno, ELOOP);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_commit_replaces),
        cmocka_unit_test(without_a_commit_nothing_changes),
        cmocka_unit_test(permissions_and_links_stay),
        cmocka_unit_test(failures_say_why),
    };
    const char *folder = make_folder();
    if (chdir(folder) != 0)
        return 1;
    const int failed = cmocka_run_group_tests_name("replacement", tests, NULL, NULL);
    remove_folder(folder);
    return failed;
}
