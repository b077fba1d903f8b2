/* Numbers as text that mean the same in every locale: a program that uses the library may
   have chosen one with a decimal comma. */
#ifndef SHOAL_BASE_PLAIN_H
#define SHOAL_BASE_PLAIN_H

#include "base/export.h"

#include <stdbool.h>
#include <stddef.h>

/* snprintf in the "C" locale. */
SHOAL_PRIVATE int sh_print_c(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Whether the whole text is a number there, as strtod reads them. */
SHOAL_PRIVATE bool sh_read_c(const char *text, double *value);

#endif
