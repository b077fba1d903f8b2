/* The subset of cmocka that the tests use, for emulated processors without cmocka. Same
   names, same meaning, same output. */
#ifndef SHOAL_TESTS_QEMU_CMOCKA_H
#define SHOAL_TESTS_QEMU_CMOCKA_H

#include <stddef.h>
#include <stdint.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func;
    CMFixtureFunction teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(f)                                                              \
    { #f, f, NULL, NULL, NULL }
#define cmocka_unit_test_prestate(f, state)                                              \
    { #f, f, NULL, NULL, state }
#define cmocka_unit_test_setup(f, setup)                                                 \
    { #f, f, setup, NULL, NULL }
#define cmocka_unit_test_teardown(f, teardown)                                           \
    { #f, f, NULL, teardown, NULL }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                              \
    { #f, f, setup, teardown, NULL }
#define cmocka_unit_test_prestate_setup_teardown(f, setup, teardown, state)              \
    { #f, f, setup, teardown, state }

#define cmocka_run_group_tests(tests, setup, teardown)                                   \
    shim_run_group(#tests, tests, sizeof(tests) / sizeof(tests)[0], setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                        \
    shim_run_group(name, tests, sizeof(tests) / sizeof(tests)[0], setup, teardown)

int shim_run_group(const char *group, const struct CMUnitTest *tests, size_t count,
                   CMFixtureFunction setup, CMFixtureFunction teardown);

/* End the running case: failed, or skipped. */
void shim_fail(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));
void shim_skip(const char *file, int line) __attribute__((noreturn));

void print_message(const char *format, ...) __attribute__((format(printf, 1, 2)));
void print_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

void shim_integers(uintmax_t a, uintmax_t b, int equal, const char *file, int line);
void shim_range(uintmax_t value, uintmax_t low, uintmax_t high, int inside,
                const char *file, int line);
void shim_floats(float a, float b, float tolerance, int equal, const char *file,
                 int line);
void shim_strings(const char *a, const char *b, int equal, const char *file, int line);
void shim_bytes(const void *a, const void *b, size_t size, int equal, const char *file,
                int line);

#define SHIM_HERE __FILE__, __LINE__
#define SHIM_POINTER(p) ((uintmax_t)(uintptr_t)(p))

#define fail() shim_fail(SHIM_HERE, "failed")
#define fail_msg(...) shim_fail(SHIM_HERE, __VA_ARGS__)
#define skip() shim_skip(SHIM_HERE)

#define assert_true(c) ((c) ? (void)0 : shim_fail(SHIM_HERE, "%s", #c))
#define assert_false(c) ((c) ? shim_fail(SHIM_HERE, "not: %s", #c) : (void)0)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p) assert_true((p) == NULL)
#define assert_return_code(rc, error)                                                    \
    ((rc) >= 0 ? (void)0 : shim_fail(SHIM_HERE, "%s, error %d", #rc, (int)(error)))

#define assert_int_equal(a, b) shim_integers((uintmax_t)(a), (uintmax_t)(b), 1, SHIM_HERE)
#define assert_int_not_equal(a, b)                                                       \
    shim_integers((uintmax_t)(a), (uintmax_t)(b), 0, SHIM_HERE)
#define assert_ptr_equal(a, b)                                                           \
    shim_integers(SHIM_POINTER(a), SHIM_POINTER(b), 1, SHIM_HERE)
#define assert_ptr_not_equal(a, b)                                                       \
    shim_integers(SHIM_POINTER(a), SHIM_POINTER(b), 0, SHIM_HERE)
#define assert_in_range(x, low, high)                                                    \
    shim_range((uintmax_t)(x), (uintmax_t)(low), (uintmax_t)(high), 1, SHIM_HERE)
#define assert_not_in_range(x, low, high)                                                \
    shim_range((uintmax_t)(x), (uintmax_t)(low), (uintmax_t)(high), 0, SHIM_HERE)
#define assert_float_equal(a, b, tolerance)                                              \
    shim_floats((float)(a), (float)(b), (float)(tolerance), 1, SHIM_HERE)
#define assert_float_not_equal(a, b, tolerance)                                          \
    shim_floats((float)(a), (float)(b), (float)(tolerance), 0, SHIM_HERE)
#define assert_string_equal(a, b) shim_strings(a, b, 1, SHIM_HERE)
#define assert_string_not_equal(a, b) shim_strings(a, b, 0, SHIM_HERE)
#define assert_memory_equal(a, b, size) shim_bytes(a, b, size, 1, SHIM_HERE)
#define assert_memory_not_equal(a, b, size) shim_bytes(a, b, size, 0, SHIM_HERE)

#endif
