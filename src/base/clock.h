#ifndef SHOAL_BASE_CLOCK_H
#define SHOAL_BASE_CLOCK_H

#include "base/export.h"

/* Seconds since some moment in the past; never goes back. */
SHOAL_PRIVATE double sh_seconds(void);

#endif
