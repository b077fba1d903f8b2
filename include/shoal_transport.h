/* Shoal, transport: one sequence over several processes.
 *
 * A transport is a set of functions by which processes exchange data: sum, gather,
 * broadcast, exchange. shoal_mpi.h provides one that uses MPI; another communication
 * library can fill in the same struct. Distributed attention (below), distributed models
 * (shoal_models.h) and distributed training (shoal_train.h) use a transport and do not
 * depend on its implementation. The rules of shoal.h hold here too. Link libshoal.
 *
 * Processes are numbered by their rank. All processes call the same functions in the same
 * order with the same sizes, as with MPI. A process has at most one transport call under
 * way. After a call has failed, the processes no longer agree: the Shoal call under way
 * returns SHOAL_IO, and its plan, model or trainer can only be destroyed.
 */
#ifndef SHOAL_TRANSPORT_H
#define SHOAL_TRANSPORT_H

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    SHOAL_SUM_TYPE_FLOAT,
    SHOAL_SUM_TYPE_DOUBLE,
    SHOAL_SUM_TYPE_INT32,
    SHOAL_SUM_TYPE_INT64
} shoal_sum_type;

typedef struct shoal_transport shoal_transport;

/* The functions take the transport itself as their first argument; an implementation
   keeps its own data behind it, or in `user`. Plans use sum, gather, gather_parts and
   exchange; training uses all. */
struct shoal_transport {
    void *user;                      /* for the implementation */
    int32_t rank, ranks;             /* number of this process, and of all processes */
    int32_t local_rank, local_ranks; /* the same among the processes of this machine */
    int64_t sent;                    /* bytes that this process has sent so far */
    char message[256];               /* why the last call failed */

    /* Replaces values [count] by their sum over all processes. */
    shoal_status (*sum)(shoal_transport *self, shoal_sum_type type, int64_t count,
                        void *values);
    /* The same in two steps. Between them, other sums may begin and other work may be
       done, but the values must not be accessed. sum_end waits for all sums begun. */
    shoal_status (*sum_begin)(shoal_transport *self, shoal_sum_type type, int64_t count,
                              void *values);
    shoal_status (*sum_end)(shoal_transport *self);
    /* Collects own [bytes] of every process, by rank: all [ranks][bytes]. */
    shoal_status (*gather)(shoal_transport *self, int64_t bytes, const void *own,
                           void *all);
    /* The same with sizes[ranks] bytes, one part after another. */
    shoal_status (*gather_parts)(shoal_transport *self, const int64_t *sizes,
                                 const void *own, void *all);
    /* Copies the bytes of process `root` to all processes. */
    shoal_status (*broadcast)(shoal_transport *self, int32_t root, int64_t bytes,
                              void *values);
    /* Sends each process its own bytes: send has to_sizes[0] bytes for process 0, then
       to_sizes[1] for process 1, and so on; receive gets from_sizes[0] bytes from process
       0, and so on. Both sides know the sizes. */
    shoal_status (*exchange)(shoal_transport *self, const int64_t *to_sizes,
                             const void *send, const int64_t *from_sizes, void *receive);
    void *reserved[4];
};

/* Plans for sequences of which each process holds a contiguous part, in the order of
   ranks. The problem describes this process's part: queries and keys are its own numbers,
   which may be 0; everything else must be equal in all processes, or all of them refuse
   the plan. Lengths, offsets, outputs and gradients are also this process's. Clusters and
   top keys are those that one process would find, and top keys have the same numbers.
   Messages have the size of the clusters; only full, which is exact, sends all keys and
   values around. All processes call shoal_plan_create_over, shoal_forward and
   shoal_backward together. The transport must outlive the plan.
   The kinds full, clustered-C, i-clustered-C and q-clustered-C are supported, in float32,
   without biases, masks, dropout and causal order. shoal-C is not: its blocks of similar
   queries may be spread over all processes. */
SHOAL_API shoal_status shoal_plan_create_over(shoal_transport *transport,
                                              shoal_context *context,
                                              const shoal_problem *problem,
                                              const shoal_attention *attention,
                                              unsigned flags, shoal_plan **plan);

#ifdef __cplusplus
}
#endif
#endif
