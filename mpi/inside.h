/* The inside of a transport on MPI. Nothing here waits inside MPI: requests are begun and
   tested, so that the thread that watches over the other ranks gets its turn. */
#ifndef SHOAL_MPI_INSIDE_H
#define SHOAL_MPI_INSIDE_H

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "shoal_mpi.h"

enum { NAME = 64 };

/* What a rank tells the others when it begins. */
typedef struct {
    int64_t process;
    char name[NAME]; /* of the machine */
} rank_facts;

/* A sum on its way. First the values of everybody's own part come in, one copy per rank;
   then the sum of that part goes out, and those of the others come in. */
typedef struct {
    shoal_sum_type type;
    int64_t count;
    char *values;
    int tag; /* of the first half; the next is that of the second */
    enum { SUM_FREE, SUM_PARTS, SUM_WHOLE } stage;
    char *parts; /* [ranks][own part], of which the own one is not used */
    size_t room;
    MPI_Request *requests; /* [2 ranks] */
    int request_count;
} running_sum;

typedef struct {
    pthread_t thread;
    bool running;
    atomic_bool stop, lost;
    bool *visible;      /* [ranks]: processes of this machine that can be looked for */
    double heard, beat; /* when the rank before was heard of, and when this one spoke */
    char in, out;
    MPI_Request from, to;
} rank_watch;

typedef struct {
    shoal_transport public; /* first: its address is the whole's */
    shoal_mpi_options options;
    MPI_Comm talk, pulse; /* the transport's, and the watch's */
    bool ends_mpi;        /* it began MPI */
    bool failed;
    pthread_mutex_t lock; /* around every call of MPI once the watch runs */
    rank_facts *facts;    /* [ranks] */
    running_sum **sums;   /* [sum_count], in the order in which they were begun */
    int sum_count;
    unsigned next_tag;
    char *scratch; /* of small sums */
    size_t scratch_room;
    MPI_Request *requests; /* of other calls */
    int request_count, request_room;
    rank_watch watch;
} mpi_transport;

/* SHOAL_INVALID, with the reason in the transport's message. */
shoal_status sh_mpi_fail(mpi_transport *self, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for what MPI returned; nothing where that is MPI_SUCCESS. */
shoal_status sh_mpi_check(mpi_transport *self, int code, const char *what);

double sh_mpi_now(void); /* seconds */

/* Sums (sums.c): one look at those on their way; *left is how many are. */
shoal_status sh_mpi_sum_begin(mpi_transport *self, shoal_sum_type type, int64_t count,
                              void *values);
shoal_status sh_mpi_sums_look(mpi_transport *self, int *left);
size_t sh_mpi_size(shoal_sum_type type); /* of one; 0: there is no such type */
/* into += values */
void sh_mpi_add(shoal_sum_type type, int64_t count, const void *values, void *into);
void sh_mpi_sums_free(mpi_transport *self);

/* The watch (watch.c). */
shoal_status sh_mpi_watch_begin(mpi_transport *self);
void sh_mpi_watch_end(mpi_transport *self);

#endif
