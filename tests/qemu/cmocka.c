#include "cmocka.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum outcome { PASSED, FAILED, SKIPPED }; /* setjmp's 0 is the start, and success */

static jmp_buf case_end;

static void print(FILE *file, const char *format, va_list arguments) {
    vfprintf(file, format, arguments);
    fflush(file);
}

void print_message(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(stdout, format, arguments);
    va_end(arguments);
}

void print_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(stderr, format, arguments);
    va_end(arguments);
}

void shim_fail(const char *file, int line, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_error("[  ERROR   ] --- ");
    print(stderr, format, arguments);
    print_error("\n[   LINE   ] --- %s:%d: error: Failure!\n", file, line);
    va_end(arguments);
    longjmp(case_end, FAILED);
}

void shim_skip(const char *file, int line) {
    print_message("[   LINE   ] --- %s:%d: skipped\n", file, line);
    longjmp(case_end, SKIPPED);
}

void shim_integers(uintmax_t a, uintmax_t b, int equal, const char *file, int line) {
    if ((a == b) != equal)
        shim_fail(file, line, "%#" PRIxMAX " %s %#" PRIxMAX, a, equal ? "!=" : "==", b);
}

void shim_range(uintmax_t value, uintmax_t low, uintmax_t high, int inside,
                const char *file, int line) {
    if ((value >= low && value <= high) != inside)
        shim_fail(file, line, "%" PRIuMAX " is %s %" PRIuMAX " .. %" PRIuMAX, value,
                  inside ? "outside" : "inside", low, high);
}

void shim_floats(float a, float b, float tolerance, int equal, const char *file,
                 int line) {
    if ((fabsf(a - b) <= tolerance) != equal)
        shim_fail(file, line, "%.9g and %.9g, tolerance %g", (double)a, (double)b,
                  (double)tolerance);
}

void shim_strings(const char *a, const char *b, int equal, const char *file, int line) {
    if ((strcmp(a, b) == 0) != equal)
        shim_fail(file, line, "\"%s\" %s \"%s\"", a, equal ? "!=" : "==", b);
}

void shim_bytes(const void *a, const void *b, size_t size, int equal, const char *file,
                int line) {
    if ((memcmp(a, b, size) == 0) != equal)
        shim_fail(file, line, "%zu bytes %s", size, equal ? "differ" : "are the same");
}

/* A failed assertion in any of the three parts jumps back to here. */
static enum outcome run_case(const struct CMUnitTest *test, void **state) {
    enum outcome outcome = (enum outcome)setjmp(case_end);
    if (outcome != PASSED)
        return outcome;
    if (test->setup_func && test->setup_func(state) != 0)
        return FAILED;
    test->test_func(state);
    return PASSED;
}

static enum outcome tear_down(const struct CMUnitTest *test, void **state) {
    enum outcome outcome = (enum outcome)setjmp(case_end);
    if (outcome == PASSED && test->teardown_func && test->teardown_func(state) != 0)
        return FAILED;
    return outcome;
}

static enum outcome run_and_print(const struct CMUnitTest *test, void *group_state) {
    static const char *const labels[] = {"      OK", " FAILED ", " SKIPPED"};
    void *state = test->initial_state ? test->initial_state : group_state;
    print_message("[ RUN      ] %s\n", test->name);
    enum outcome outcome = run_case(test, &state);
    if (tear_down(test, &state) != PASSED)
        outcome = FAILED;
    print_message("[ %s ] %s\n", labels[outcome], test->name);
    return outcome;
}

int shim_run_group(const char *group, const struct CMUnitTest *tests, size_t count,
                   CMFixtureFunction setup, CMFixtureFunction teardown) {
    size_t outcomes[3] = {0};
    void *state = NULL;
    print_message("[==========] Running %zu test(s).\n", count);
    if (setup && setup(&state) != 0) {
        print_error("[  FAILED  ] GROUP SETUP %s\n", group);
        return 1;
    }
    for (size_t i = 0; i < count; i++)
        if (tests[i].name) /* cmocka skips the others too */
            outcomes[run_and_print(&tests[i], state)]++;
    if (teardown && teardown(&state) != 0)
        outcomes[FAILED]++;
    print_message("[==========] %zu test(s) run.\n[  PASSED  ] %zu test(s).\n", count,
                  outcomes[PASSED]);
    return (int)outcomes[FAILED];
}
