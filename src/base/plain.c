#define _GNU_SOURCE
#include "base/plain.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The "C" locale, in use by this thread, and the locale to return to. */
typedef struct {
    locale_t plain, before;
} locales;

static locales use_plain(void) {
    locales both = {.plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    both.before = both.plain ? uselocale(both.plain) : (locale_t)0;
    return both;
}

static void restore(locales both) {
    if (!both.plain)
        return;
    uselocale(both.before);
    freelocale(both.plain);
}

int sh_print_c(char *text, size_t size, const char *format, ...) {
    const locales both = use_plain();
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    restore(both);
    return length;
}

bool sh_read_c(const char *text, double *value) {
    const locales both = use_plain();
    char *rest;
    *value = strtod(text, &rest);
    restore(both);
    return rest != text && !*rest;
}
