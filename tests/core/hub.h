/* Ranks that are threads of one process, for tests: the transport copies between
   them. */
#ifndef SHOAL_TESTS_HUB_H
#define SHOAL_TESTS_HUB_H

#include "shoal_transport.h"

typedef struct hub hub;

/* Runs rank(shared, transport) on `ranks` threads and waits for all. Calls of the
   transport fail from the fail_at-th on, on every rank; 0 for never. Returns the bytes
   that rank 0 sent to others. */
int64_t hub_run(int ranks, int64_t fail_at,
                void (*rank)(void *shared, shoal_transport *transport), void *shared);

#endif
