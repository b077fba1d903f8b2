/* Shoal over several processes, on MPI: what its ranks say to each other.
 *
 * A transport (shoal.h) is a handful of functions: sum, gather, broadcast, exchange. Work
 * that is divided among ranks (attention over a sequence that several hold, the training
 * of `shoal train`) takes one and does not know what is behind it. Here is MPI; another
 * engine fills the same structure.
 *
 *     shoal_transport *ranks;
 *     if (shoal_mpi_open(NULL, &ranks) != SHOAL_OK)
 *         return fprintf(stderr, "%s\n", ranks ? ranks->message : "no memory"), 1;
 *     // ... backward, with shoal_model_watch: ranks->sum_begin(...) of each layer
 *     ranks->sum_end(ranks);                  // gradients are those of the whole batch
 *     shoal_mpi_close(ranks);
 *
 * THE RULES
 *
 * Together.  All ranks call the same functions in the same order with the same sizes, as
 *            with MPI itself.
 * Bits.      A sum is ((v0 + v1) + v2) + ... in the order of ranks, whoever comes first,
 *            and every rank gets the same bits. Integers wrap around.
 * Errors.    A call that fails says why in `message`; after that the ranks no longer
 *            agree, and all that is left to do is to end. A rank that died is noticed by
 *            the others, also while they compute: see shoal_mpi_options.
 * Threads.   One thread at a time calls a transport.
 */
#ifndef SHOAL_MPI_H
#define SHOAL_MPI_H

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- MPI --------------------------------------------------------------------------- */

/* What is 0 has its default. */
typedef struct {
    const void *communicator; /* an MPI_Comm's address, which is duplicated; NULL:
                                 MPI_COMM_WORLD, and MPI is begun where nobody has */
    double patience; /* seconds; each rank says every second that it is there, and one
                        that was silent for so long is lost (30) */
    /* A rank is lost: called once, from another thread, while this rank may be computing.
       NULL: only calls of the transport fail. */
    void (*lost)(void *shared, const char *message);
    void *shared;
} shoal_mpi_options;

/* options NULL: all defaults. Where it fails *transport may be there nevertheless, for
   its message, and is to be closed. */
SHOAL_API shoal_status shoal_mpi_open(const shoal_mpi_options *options,
                                      shoal_transport **transport);
/* Waits for all ranks, and ends MPI if open began it. After a call that failed, or a
   lost rank, MPI is left as it is: then exit. NULL is legal. */
SHOAL_API void shoal_mpi_close(shoal_transport *transport);
/* "Open MPI v4.1.4, package ..." */
SHOAL_API const char *shoal_mpi_library(void);

#ifdef __cplusplus
}
#endif
#endif
