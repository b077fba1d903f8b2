/* Internals of a transport on MPI. No call blocks inside MPI: requests are started and
   tested, so that the thread that watches the other ranks can run. */
#ifndef SHOAL_MPI_INSIDE_H
#define SHOAL_MPI_INSIDE_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "shoal_mpi.h"

enum { NAME = 64 };

/* Data that a rank sends to the others at the start. */
typedef struct {
    int64_t process;
    char name[NAME]; /* of the machine */
} rank_facts;

/* A sum in progress. First the values of this rank's part arrive, one copy per rank;
   then the sum of that part is sent, and those of the others arrive. */
typedef struct {
    shoal_sum_type type;
    int64_t count;
    char *values;
    int tag; /* of the first phase; the second uses the next one */
    enum { SUM_FREE, SUM_PARTS, SUM_WHOLE } stage;
    char *parts; /* [ranks][own part]; the own one is unused */
    size_t room;
    MPI_Request *requests; /* [2 ranks] */
    int request_count;
} running_sum;

typedef struct {
    pthread_t thread;
    bool running;
    atomic_bool stop, lost;
    bool *visible;      /* [ranks]: processes on this machine that can be probed */
    double heard, beat; /* time of the last message from the previous rank, and of the
                           last one sent */
    char in, out;
    MPI_Request from, to;
} rank_watch;

typedef struct {
    shoal_transport public; /* first, so that its address is that of the structure */
    shoal_mpi_options options;
    MPI_Comm talk, pulse; /* communicators of the transport and of the watch */
    bool ends_mpi;        /* it initialized MPI */
    bool failed;
    pthread_mutex_t lock; /* held in every call of MPI once the watch runs */
    rank_facts *facts;    /* [ranks] */
    running_sum **sums;   /* [sum_count], in the order in which they were started */
    int sum_count;
    unsigned next_tag;
    char *scratch; /* for small sums */
    size_t scratch_room;
    MPI_Request *requests; /* of other calls */
    int request_count, request_room;
    rank_watch watch;
} mpi_transport;

/* SHOAL_INVALID, with the reason in the transport's message. */
shoal_status sh_mpi_fail(mpi_transport *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for a return code of MPI; SHOAL_OK for MPI_SUCCESS. */
shoal_status sh_mpi_check(mpi_transport *self, int code, const char *what);

double sh_mpi_now(void); /* seconds */

/* Sums (sums.c): tests those in progress once; *left is their number. */
shoal_status sh_mpi_sum_begin(mpi_transport *self, shoal_sum_type type, int64_t count,
                              void *values);
shoal_status sh_mpi_sums_look(mpi_transport *self, int *left);
size_t sh_mpi_size(shoal_sum_type type); /* bytes per element; 0 for an unknown type */
/* into += values */
void sh_mpi_add(shoal_sum_type type, int64_t count, const void *values, void *into);
void sh_mpi_sums_free(mpi_transport *self);

/* The watch (watch.c). */
shoal_status sh_mpi_watch_begin(mpi_transport *self);
void sh_mpi_watch_end(mpi_transport *self);

#endif
