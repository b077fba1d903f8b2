/* Processes that a launcher (mpirun) started as one job: the transport between them,
   loaded only if there is a launcher, and checks that they agree. All functions accept
   NULL for a single process. */
#ifndef SHOAL_CLI_RANKS_H
#define SHOAL_CLI_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include <shoal_mpi.h>

/* Opens the transport of a job whose launcher set the environment variable; size is the
   number of processes, or 0 if unknown. `advice` ends the message about a lost process.
   Exits on failure. */
shoal_transport *ranks_open(const char *variable, long size, const char *advice);
/* Waits for the others, unless the command failed on this rank alone: then exiting ends
   the other processes. */
void ranks_close(shoal_transport *ranks, int exit_code);

static inline bool ranks_first(const shoal_transport *ranks) {
    return !ranks || ranks->rank == 0;
}

/* Default number of threads per process: the processors that it may use, divided by the
   number of processes that may use the same ones. 0 selects the context's default. */
int ranks_threads(shoal_transport *ranks);

/* Returns rank 0's exit code on all ranks; rank 0 has printed the message. */
int ranks_follow(shoal_transport *ranks, int code);
/* Exits on all ranks if the digests differ; rank 0 prints which rank has `what`, such
   as "another command". */
void ranks_same(shoal_transport *ranks, uint64_t digest, const char *what);
/* Records that all ranks know that they will exit, because the library reported it. */
void ranks_agreed(void);

#endif
