/* Locale-independent conversion of numbers: the host program may have chosen a locale
   with a decimal comma. */
#ifndef SHOAL_BASE_PLAIN_H
#define SHOAL_BASE_PLAIN_H

#include "base/export.h"

#include <stdbool.h>
#include <stddef.h>

/* snprintf in the "C" locale. */
SHOAL_PRIVATE int sh_print_c(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether the whole text is a number, as parsed by strtod in the "C" locale. */
SHOAL_PRIVATE bool sh_read_c(const char *text, double *value);

#endif
