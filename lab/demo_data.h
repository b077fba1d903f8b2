/* Queries, keys and values for the demonstration: the same on every machine. */
#ifndef SHOAL_CLI_DEMO_DATA_H
#define SHOAL_CLI_DEMO_DATA_H

#include <stdint.h>

extern const char demo_data_description[];

/* Fills [heads][length][dim] arrays; a position's values do not depend on length. */
void fill_demo_data(float *q, float *k, float *v, int heads, int64_t length, int dim);

#endif
