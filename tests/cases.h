/* Includes cmocka and the headers that it needs. A case is a function of (void
   **state), which most cases do not use: the warning about unused parameters is
   disabled after this header. */
#ifndef SHOAL_TESTS_CASES_H
#define SHOAL_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
