/* cmocka, and what its header needs before it. A case is a function of (void **state),
   which most have no use for: the warning about that is off behind this header. */
#ifndef SHOAL_TESTS_CASES_H
#define SHOAL_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#pragma GCC diagnostic ignored "-Wunused-parameter"

#endif
