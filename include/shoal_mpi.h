/* Shoal over MPI: a transport (shoal_transport.h) for processes that MPI connects.
 *
 *     shoal_transport *ranks;
 *     if (shoal_mpi_create(NULL, &ranks) != SHOAL_OK) {
 *         fprintf(stderr, "%s\n", ranks ? ranks->message : "out of memory");
 *         return 1;
 *     }
 *     // ... shoal_plan_create_over(ranks, ...), shoal_forward, shoal_backward, or
 *     // shoal_train_run with options.transport = ranks
 *     shoal_mpi_destroy(ranks);
 *
 * THE RULES (those of shoal.h and shoal_transport.h hold too)
 *
 * Bits.      A sum is ((v0 + v1) + v2) + ... in the order of ranks, so every process gets
 *            the same bits in every run. Integers wrap around.
 * Errors.    A call that fails sets the transport's `message`; after that the only thing
 *            left to do is to exit. The death of a process is noticed by the others, even
 *            while they compute: see shoal_mpi_options.
 * Threads.   One thread at a time may call a transport.
 */
#ifndef SHOAL_MPI_H
#define SHOAL_MPI_H

#include "shoal.h"
#include "shoal_transport.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t size;
    const void *communicator; /* address of an MPI_Comm, which is duplicated; NULL:
                                 MPI_COMM_WORLD, and MPI is initialised if necessary */
    double patience; /* seconds; every process sends a sign of life each second, and one
                        that is silent for longer than this is lost. 0: 30 */
    /* Called once when a process is lost, from another thread, possibly while this
       process computes. NULL: only calls of the transport fail. */
    void (*lost)(void *user, const char *message);
    void *user;
} shoal_mpi_options;
SHOAL_ZERO_DEFAULTS(shoal_mpi_options)

/* options may be NULL. If the call fails, *transport may be set nevertheless, so that its
   message can be read; then it must be destroyed. */
SHOAL_API shoal_status shoal_mpi_create(const shoal_mpi_options *options,
                                        shoal_transport **transport);
/* Waits for all processes, and finalises MPI if create initialised it. After a call that
   failed or the loss of a process, MPI is left as it is: exit then. NULL is valid. */
SHOAL_API void shoal_mpi_destroy(shoal_transport *transport);
/* The MPI library, such as "Open MPI v4.1.4, package ...". */
SHOAL_API const char *shoal_mpi_library(void);

#ifdef __cplusplus
}
#endif
#endif
