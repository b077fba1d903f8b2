/* Integer arithmetic. */
#ifndef SHOAL_BASE_NUMBERS_H
#define SHOAL_BASE_NUMBERS_H

#include <stdint.h>

static inline int64_t min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* a / b rounded up; a >= 0, b > 0. */
static inline int64_t ceil_divide(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

#endif
