/* Arrays in files: the corpus of valid and malicious headers, pipes, and atomic
   outputs. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"
#include "models/files/npy.h"
#include "shoal_models.h"

#define CORPUS SHOAL_SOURCE_DIR "/tests/corpus/npy/"

static shoal_context *context;
static char directory[] = "/tmp/shoal-npy-XXXXXX";

static const char *inside(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static int begin(void **state) {
    return !mkdtemp(directory) || shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int for_each_file(const char *path,
                         void (*visit)(const char *path, const char *name)) {
    DIR *files = opendir(path);
    int count = 0;
    for (struct dirent *entry; files && (entry = readdir(files));) {
        char file[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
        if (visit)
            visit(file, entry->d_name);
        count++;
    }
    if (files)
        closedir(files);
    return count;
}

static void remove_file(const char *path, const char *name) {
    (void)name;
    unlink(path);
}

static int end(void **state) {
    for_each_file(directory, remove_file);
    shoal_context_destroy(context);
    return rmdir(directory);
}

/* ---- Reading ---------------------------------------------------------------------- */

static void check_values(const shoal_array *array, const char *name) {
    static const float floats[6] = {1, 2, 3, 4, 5, 6};
    static const int32_t integers[6] = {1, -2, 3, -4, 5, -6};
    static const uint16_t halves[6] = {0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600};
    size_t bytes = 0;
    assert_true(sh_npy_data_bytes(array->dtype, array->dimensions, array->shape, &bytes));
    assert_true(bytes <= sizeof floats);
    assert_int_equal((uintptr_t)array->data % sizeof(float), 0);
    const bool whole = strstr(name, "int32"), half = strstr(name, "float16");
    const void *expected = whole  ? (const void *)integers
                           : half ? (const void *)halves
                                  : floats;
    assert_int_equal(array->dtype, whole  ? SHOAL_DTYPE_INT32
                                   : half ? SHOAL_DTYPE_FLOAT16
                                          : SHOAL_DTYPE_FLOAT32);
    assert_memory_equal(array->data, expected, bytes);
}

static void check_corpus_file(const char *path, const char *name) {
    shoal_array array;
    shoal_status status = shoal_array_read(context, path, &array);
    const char *message = shoal_context_message(context);
    if (strncmp(name, "ok-", 3) == 0) {
        if (status != SHOAL_OK)
            fail_msg("%s", message);
        check_values(&array, name);
        shoal_array_release(&array);
    } else if (status != SHOAL_BAD_FILE || strncmp(message, path, strlen(path)) != 0) {
        fail_msg("%s: status %d, message %s", name, (int)status, message);
    }
    assert_null(array.data);
    assert_null(array.mapping);
}

static void corpus_is_read_or_refused(void **state) {
    assert_true(for_each_file(CORPUS, check_corpus_file) > 80);
}

static void refusals_say_why(void **state) {
    static const struct {
        const char *name, *words;
    } rows[] = {
        {"bad-text-file", "not a .npy file"},
        {"bad-npz", "numpy.save"},
        {"bad-version4", "version 4.0"},
        {"bad-header-cut", "truncated"},
        {"bad-header-length-4GiB", "4294967295"},
        {"bad-data-cut", "23 bytes of data, but its shape requires 24"},
        {"bad-data-extra", "more than the 24 bytes"},
        {"bad-float64", "contains float64 ('<f8')"},
        {"bad-int64", "contains int64 ('<i8')"},
        {"bad-uint8", "contains uint8 ('|u1')"},
        {"bad-bool", "contains bool ('|b1')"},
        {"bad-complex64", "complex64"},
        {"bad-objects", "Python objects"},
        {"bad-structured", "structured"},
        {"bad-big-endian", "big-endian float32"},
        {"bad-native-order", "without a byte order"},
        {"bad-fortran", "Fortran order"},
        {"bad-shape-negative", "negative"},
        {"bad-shape-product", "beyond 64 bits"},
        {"bad-shape-beyond-64", "beyond 64 bits"},
        {"bad-shape-wraps-to-6", "beyond 64 bits"},
        {"bad-rank9", "more than 8 dimensions"},
        {"bad-key-missing", "fortran_order is missing"},
        {"bad-key-twice", "'shape' is a duplicate"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[512];
        shoal_array array;
        snprintf(path, sizeof path, CORPUS "%s.npy", rows[i].name);
        assert_int_equal(shoal_array_read(context, path, &array), SHOAL_BAD_FILE);
        if (!strstr(shoal_context_message(context), rows[i].words))
            fail_msg("no \"%s\" in: %s", rows[i].words, shoal_context_message(context));
    }
}

static void what_is_no_file_is_refused(void **state) {
    shoal_array array;
    assert_int_equal(shoal_array_read(context, inside("absent.npy"), &array), SHOAL_IO);
    assert_non_null(strstr(shoal_context_message(context), "absent.npy"));
    assert_int_equal(shoal_array_read(context, directory, &array), SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(context), "directory"));
}

/* Writes a corpus file (all but the last `cut` bytes, and `more` zeros) to a pipe and
   reads it. */
static shoal_status read_through_pipe(const char *name, long cut, long more,
                                      shoal_array *array) {
    char path[512], bytes[4096] = {0};
    int ends[2];
    snprintf(path, sizeof path, CORPUS "%s.npy", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    long size = (long)fread(bytes, 1, sizeof bytes / 2, file) - cut + more;
    fclose(file);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], bytes, (size_t)size), size);
    close(ends[1]);
    snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    shoal_status status = shoal_array_read(context, path, array);
    close(ends[0]);
    return status;
}

static void pipes_are_read(void **state) {
    static const char *const names[] = {"ok-version1", "ok-version2",
                                        "ok-unaligned-by-one", "ok-int32", "ok-scalar"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        shoal_array array;
        assert_int_equal(read_through_pipe(names[i], 0, 0, &array), SHOAL_OK);
        check_values(&array, names[i]);
        shoal_array_release(&array);
        assert_int_equal(read_through_pipe(names[i], 1, 0, &array), SHOAL_BAD_FILE);
        assert_non_null(strstr(shoal_context_message(context), "truncated"));
        assert_int_equal(read_through_pipe(names[i], 0, 1, &array), SHOAL_BAD_FILE);
        assert_non_null(strstr(shoal_context_message(context), "has more than"));
    }
    shoal_array array;
    assert_int_equal(read_through_pipe("ok-empty", 0, 0, &array), SHOAL_OK);
    assert_int_equal(array.shape[0], 0);
    shoal_array_release(&array);
}

static void a_read_array_is_a_private_copy(void **state) {
    float values[2] = {1, 2};
    shoal_array array = {SHOAL_DTYPE_FLOAT32, 1, {2}, values, NULL, 0}, first, second;
    assert_int_equal(shoal_array_write(context, inside("copy.npy"), &array), SHOAL_OK);
    assert_int_equal(shoal_array_read(context, inside("copy.npy"), &first), SHOAL_OK);
    ((float *)first.data)[0] = 7;
    assert_int_equal(shoal_array_read(context, inside("copy.npy"), &second), SHOAL_OK);
    assert_memory_equal(second.data, values, sizeof values);
    /* Replacing the file does not change what was read before. */
    values[1] = 9;
    assert_int_equal(shoal_array_write(context, inside("copy.npy"), &array), SHOAL_OK);
    assert_true(((float *)second.data)[1] == 2);
    shoal_array_release(&first);
    shoal_array_release(&second);
    shoal_array_release(&second);
}

/* ---- Writing ---------------------------------------------------------------------- */

static void what_is_written_is_read(void **state) {
    int32_t values[2 * 3 * 4 * 5];
    for (int i = 0; i < 2 * 3 * 4 * 5; i++)
        values[i] = i * 77777 - 999;
    static const struct {
        int rank;
        int64_t shape[8];
    } rows[] = {{0, {0}},
                {1, {7}},
                {1, {0}},
                {2, {3, 5}},
                {4, {2, 3, 4, 5}},
                {3, {4, 0, 9}},
                {8, {1, 2, 1, 3, 1, 4, 5, 1}}};
    static const shoal_dtype dtypes[] = {SHOAL_DTYPE_FLOAT32, SHOAL_DTYPE_INT32,
                                         SHOAL_DTYPE_FLOAT16};
    for (size_t i = 0; i < 3 * sizeof rows / sizeof *rows; i++) {
        shoal_array back, array = {.dtype = dtypes[i % 3],
                                   .dimensions = rows[i / 3].rank,
                                   .data = values};
        size_t bytes;
        memcpy(array.shape, rows[i / 3].shape, sizeof array.shape);
        assert_true(
            sh_npy_data_bytes(array.dtype, array.dimensions, array.shape, &bytes));
        assert_int_equal(shoal_array_write(context, inside("again.npy"), &array),
                         SHOAL_OK);
        assert_int_equal(shoal_array_read(context, inside("again.npy"), &back), SHOAL_OK);
        assert_int_equal(back.dtype, array.dtype);
        assert_int_equal(back.dimensions, array.dimensions);
        assert_memory_equal(back.shape, array.shape, sizeof array.shape);
        assert_memory_equal(back.data, values, bytes);
        shoal_array_release(&back);
    }
}

static void impossible_arrays_are_not_written(void **state) {
    float value = 1;
    shoal_array good = {SHOAL_DTYPE_FLOAT32, 2, {1, 1}, &value, NULL, 0}, bad;
    const char *path = inside("impossible.npy");
    bad = good, bad.dimensions = 9;
    assert_int_equal(shoal_array_write(context, path, &bad), SHOAL_INVALID);
    bad = good, bad.dimensions = -1;
    assert_int_equal(shoal_array_write(context, path, &bad), SHOAL_INVALID);
    bad = good, bad.shape[1] = -1;
    assert_int_equal(shoal_array_write(context, path, &bad), SHOAL_INVALID);
    bad = good, bad.shape[0] = bad.shape[1] = INT64_MAX / 2;
    assert_int_equal(shoal_array_write(context, path, &bad), SHOAL_INVALID);
    assert_int_equal(shoal_array_write(context, NULL, &good), SHOAL_INVALID);
    assert_int_equal(shoal_array_write(context, path, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_array_read(context, NULL, &bad), SHOAL_INVALID);
    assert_int_equal(shoal_array_read(context, path, NULL), SHOAL_INVALID);
    shoal_array_release(NULL);
    bad = good, bad.data = NULL;
    assert_int_equal(shoal_array_write(context, path, &bad), SHOAL_INVALID);
    bad = good, bad.dtype = (shoal_dtype)5;
    assert_int_equal(shoal_array_write(context, path, &bad), SHOAL_INVALID);
    assert_int_equal(access(path, F_OK), -1);
}

/* A file size limit simulates a full disk. */
static void a_failed_write_leaves_what_was_there(void **state) {
    static float values[100000];
    shoal_array small = {SHOAL_DTYPE_FLOAT32, 1, {3}, values, NULL, 0}, back;
    shoal_array large = {SHOAL_DTYPE_FLOAT32, 1, {100000}, values, NULL, 0};
    struct rlimit before, limited;
    assert_int_equal(shoal_array_write(context, inside("kept.npy"), &small), SHOAL_OK);
    int files = for_each_file(directory, NULL);

    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    limited = before;
    limited.rlim_cur = 100000;
    setrlimit(RLIMIT_FSIZE, &limited);
    shoal_status status = shoal_array_write(context, inside("kept.npy"), &large);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, SHOAL_IO);
    assert_non_null(strstr(shoal_context_message(context), "kept.npy"));
    assert_int_equal(for_each_file(directory, NULL), files);
    assert_int_equal(shoal_array_read(context, inside("kept.npy"), &back), SHOAL_OK);
    assert_int_equal(back.shape[0], 3);
    shoal_array_release(&back);
}

static void unwritable_places_are_named(void **state) {
    float value = 1;
    shoal_array array = {SHOAL_DTYPE_FLOAT32, 1, {1}, &value, NULL, 0};
    assert_int_equal(shoal_array_write(context, inside("no/such/a.npy"), &array),
                     SHOAL_IO);
    assert_non_null(strstr(shoal_context_message(context), "No such file"));
    assert_int_equal(shoal_array_write(context, directory, &array), SHOAL_IO);
    struct stat device;
    if (stat("/dev/full", &device) != 0 || !S_ISCHR(device.st_mode))
        return;
    assert_int_equal(shoal_array_write(context, "/dev/full", &array), SHOAL_IO);
    assert_non_null(strstr(shoal_context_message(context), "No space"));
}

static void links_pipes_and_permissions_survive(void **state) {
    float value = 4;
    char link[512], target[512], bytes[256];
    struct stat information;
    shoal_array back, array = {SHOAL_DTYPE_FLOAT32, 1, {1}, &value, NULL, 0};
    snprintf(target, sizeof target, "%s", inside("target.npy"));
    snprintf(link, sizeof link, "%s", inside("link.npy"));
    assert_int_equal(shoal_array_write(context, target, &array), SHOAL_OK);
    assert_int_equal(chmod(target, 0640), 0);
    assert_int_equal(symlink("target.npy", link), 0);
    value = 5;
    assert_int_equal(shoal_array_write(context, link, &array), SHOAL_OK);
    assert_int_equal(lstat(link, &information), 0);
    assert_true(S_ISLNK(information.st_mode));
    assert_int_equal(stat(target, &information), 0);
    assert_int_equal(information.st_mode & 0777, 0640);
    assert_int_equal(shoal_array_read(context, target, &back), SHOAL_OK);
    assert_true(*(float *)back.data == 5);
    shoal_array_release(&back);

    int ends[2];
    assert_int_equal(pipe(ends), 0);
    snprintf(link, sizeof link, "/dev/fd/%d", ends[1]);
    assert_int_equal(shoal_array_write(context, link, &array), SHOAL_OK);
    assert_int_equal(read(ends[0], bytes, sizeof bytes), 128 + 4);
    assert_memory_equal(bytes + 128, &value, 4);
    close(ends[0]);
    close(ends[1]);
}

/* A dangling link is followed, through another one and from another folder. */
static void links_to_new_files_are_followed(void **state) {
    float value = 7;
    char first[512], second[512];
    struct stat information;
    shoal_array back, array = {SHOAL_DTYPE_FLOAT32, 1, {1}, &value, NULL, 0};
    snprintf(first, sizeof first, "%s", inside("first.npy"));
    snprintf(second, sizeof second, "%s", inside("second.npy"));
    assert_int_equal(symlink(second, first), 0);
    assert_int_equal(symlink("new.npy", second), 0);
    assert_int_equal(shoal_array_write(context, first, &array), SHOAL_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lstat(i ? second : first, &information), 0);
        assert_true(S_ISLNK(information.st_mode));
    }
    assert_int_equal(shoal_array_read(context, inside("new.npy"), &back), SHOAL_OK);
    assert_true(*(float *)back.data == 7);
    shoal_array_release(&back);
    assert_int_equal(symlink("circle.npy", inside("circle.npy")), 0);
    assert_int_equal(shoal_array_write(context, inside("circle.npy"), &array), SHOAL_IO);
    assert_int_equal(symlink("no/such.npy", inside("nowhere.npy")), 0);
    assert_int_equal(shoal_array_write(context, inside("nowhere.npy"), &array), SHOAL_IO);
}

/* A descriptor is written at its position, and its file is not replaced. */
static void descriptors_are_appended_to(void **state) {
    float value = 8;
    char path[64], bytes[256];
    shoal_array array = {SHOAL_DTYPE_FLOAT32, 1, {1}, &value, NULL, 0};
    const int file = open(inside("stream"), O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(file, "before", 6), 6);
    snprintf(path, sizeof path, "/dev/fd/%d", file);
    assert_int_equal(shoal_array_write(context, path, &array), SHOAL_OK);
    assert_int_equal(pread(file, bytes, sizeof bytes, 0), 6 + 128 + 4);
    assert_memory_equal(bytes, "before\x93NUMPY", 12);
    assert_memory_equal(bytes + 6 + 128, &value, 4);
    close(file);
}

static void a_refused_context_stays_refused(void **state) {
    float value = 1;
    shoal_options options = {.size = sizeof(shoal_options), .isa = "abacus"};
    shoal_context *refused;
    shoal_array array = {SHOAL_DTYPE_FLOAT32, 1, {1}, &value, NULL, 0}, read;
    assert_int_equal(shoal_context_create(&options, &refused), SHOAL_INVALID);
    assert_int_equal(shoal_array_write(refused, inside("refused.npy"), &array),
                     SHOAL_INVALID);
    assert_int_equal(access(inside("refused.npy"), F_OK), -1);
    assert_int_equal(shoal_array_read(refused, CORPUS "ok-vector.npy", &read),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(refused), "abacus"));
    shoal_context_destroy(refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(corpus_is_read_or_refused),
        cmocka_unit_test(refusals_say_why),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(pipes_are_read),
        cmocka_unit_test(a_read_array_is_a_private_copy),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(impossible_arrays_are_not_written),
        cmocka_unit_test(a_failed_write_leaves_what_was_there),
        cmocka_unit_test(unwritable_places_are_named),
        cmocka_unit_test(links_pipes_and_permissions_survive),
        cmocka_unit_test(links_to_new_files_are_followed),
        cmocka_unit_test(descriptors_are_appended_to),
        cmocka_unit_test(a_refused_context_stays_refused),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
