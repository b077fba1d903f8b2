#ifndef SHOAL_BASE_CLOCK_H
#define SHOAL_BASE_CLOCK_H

#include "base/export.h"

/* Monotonic time in seconds. */
SHOAL_PRIVATE double sh_seconds(void);

#endif
