/* Several processes that a launcher (mpirun) started as one job: the transport between
   them, which is loaded where there is a launcher, and what they must agree about. All of
   it also takes NULL, a process alone. */
#ifndef SHOAL_CLI_RANKS_H
#define SHOAL_CLI_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal_mpi.h>

/* The transport of a job whose launcher set the environment variable; size: processes, or
   0 if it does not say.
   `advice` ends the message about a lost process. Dies if it cannot be opened. */
shoal_transport *ranks_open(const char *variable, long size, const char *advice);
/* Waits for the others, unless the command fails for a reason of this rank alone: then
   the exit ends theirs. */
void ranks_close(shoal_transport *ranks, int exit_code);

static inline bool ranks_first(const shoal_transport *ranks) {
    return !ranks || ranks->rank == 0;
}

/* Threads of each where nobody said how many: the processors that it may use, divided
   among those who may use the same. 0: the context's default. */
int ranks_threads(shoal_transport *ranks);

/* The first rank's code, everywhere: it complained, the others end without a word. */
int ranks_follow(shoal_transport *ranks, int code);
/* Where the digests differ all end, and the first says which rank has `what`, such as
   "another command". */
void ranks_same(shoal_transport *ranks, uint64_t digest, const char *what);
/* All ranks know that they end: the library said so. */
void ranks_agreed(void);

#endif
