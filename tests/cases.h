/* cmocka, and what its header needs before it. A case is a function of (void **state),
   which most have no use for: tests are compiled without the warning about that. */
#ifndef SHOAL_TESTS_CASES_H
#define SHOAL_TESTS_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
