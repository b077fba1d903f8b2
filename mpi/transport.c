/* The transport: creation and destruction, and everything except sums and the watch. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/context.h"
#include "inside.h"

enum {
    SMALL = 1 << 13,   /* total bytes up to which a sum is done by a gather */
    MESSAGE = 1 << 30, /* maximum bytes per message */
    PATIENCE = 30,     /* seconds */
    QUICK = 100,       /* tests without a pause, */
    YIELDS = 2000,     /* then with a yield between them, then with pauses */
    PAUSE = 50000,     /* nanoseconds */
    MESSAGE_TAG = 1
};

/* ---- Failures ---------------------------------------------------------------------- */

shoal_status sh_mpi_fail(mpi_transport *self, const char *format, ...) {
    va_list arguments;
    self->failed = true;
    if (atomic_load(&self->watch.lost)) /* this is the cause, and its message is
                                           already set */
        return SHOAL_IO;
    va_start(arguments, format);
    vsnprintf(self->public.message, sizeof self->public.message, format, arguments);
    va_end(arguments);
    return SHOAL_IO;
}

shoal_status sh_mpi_check(mpi_transport *self, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return SHOAL_OK;
    MPI_Error_string(code, text, &length);
    return sh_mpi_fail(self, "%s: %.180s", what, text);
}

/* ---- Waiting ----------------------------------------------------------------------- */

double sh_mpi_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Tests the call's own requests, and the sums in progress, once. */
static shoal_status look(mpi_transport *self, int *left) {
    int there = 1;
    shoal_status status = sh_mpi_sums_look(self, left);
    if (status != SHOAL_OK || self->request_count == 0)
        return status;
    status = sh_mpi_check(self,
                          MPI_Testall(self->request_count, self->requests, &there,
                                      MPI_STATUSES_IGNORE),
                          "a message failed");
    if (there)
        self->request_count = 0;
    return status;
}

/* Waits for the requests, or also for the sums. */
static shoal_status wait_for(mpi_transport *self, bool sums) {
    shoal_status status = SHOAL_OK;
    int looks = 0, left = 1;
    while (status == SHOAL_OK && (self->request_count > 0 || (sums && left > 0))) {
        pthread_mutex_lock(&self->lock);
        status = look(self, &left);
        pthread_mutex_unlock(&self->lock);
        if (status == SHOAL_OK && atomic_load(&self->watch.lost))
            status = sh_mpi_fail(self, "a rank is lost");
        /* Between two tests: first nothing, then a yield of the processor, finally a
           short sleep. */
        looks += looks < QUICK + YIELDS;
        if (looks >= QUICK + YIELDS)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE}, NULL);
        else if (looks >= QUICK)
            sched_yield();
    }
    return status;
}

/* ---- Messages ---------------------------------------------------------------------- */

static MPI_Request *next_request(mpi_transport *self) {
    if (self->request_count == self->request_room) {
        const int room = 2 * self->request_room + 16;
        MPI_Request *more =
            realloc(self->requests, sizeof *self->requests * (size_t)room);
        if (!more)
            return NULL;
        self->requests = more;
        self->request_room = room;
    }
    return &self->requests[self->request_count++];
}

typedef struct {
    bool send;
    int rank;
    char *at;
    int64_t bytes;
} part_message;

static shoal_status post(mpi_transport *self, part_message m) {
    for (int64_t first = 0; first < m.bytes; first += MESSAGE) {
        const int bytes = (int)(m.bytes - first < MESSAGE ? m.bytes - first : MESSAGE);
        MPI_Request *request = next_request(self);
        if (!request) {
            sh_mpi_fail(self, "out of memory for messages");
            return SHOAL_NO_MEMORY;
        }
        const int code = m.send ? MPI_Isend(m.at + first, bytes, MPI_BYTE, m.rank,
                                            MESSAGE_TAG, self->talk, request)
                                : MPI_Irecv(m.at + first, bytes, MPI_BYTE, m.rank,
                                            MESSAGE_TAG, self->talk, request);
        if (code != MPI_SUCCESS)
            return sh_mpi_check(self, code, "a message cannot start");
        self->public.sent += m.send ? bytes : 0;
    }
    return SHOAL_OK;
}

/* Data sent to and received from every rank, concatenated. */
typedef struct {
    const int64_t *to_sizes; /* [ranks]; NULL if all are sent the same own_size bytes */
    const int64_t *from_sizes;
    int64_t own_size;
    char *send, *receive;
} traffic;

static shoal_status exchange_all(mpi_transport *self, traffic t) {
    shoal_status status = SHOAL_OK;
    pthread_mutex_lock(&self->lock);
    for (int rank = 0; rank < self->public.ranks && status == SHOAL_OK; rank++) {
        const int64_t to = t.to_sizes ? t.to_sizes[rank] : t.own_size;
        const int64_t from = t.from_sizes ? t.from_sizes[rank] : t.own_size;
        const bool own = rank == self->public.rank;
        if (own && to > 0)
            memcpy(t.receive, t.send, (size_t)to);
        if (!own)
            status = post(self, (part_message){false, rank, t.receive, from});
        if (!own && status == SHOAL_OK)
            status = post(self, (part_message){true, rank, t.send, to});
        t.send += t.to_sizes ? to : 0;
        t.receive += from;
    }
    pthread_mutex_unlock(&self->lock);
    return status == SHOAL_OK ? wait_for(self, false) : status;
}

static shoal_status exchange(shoal_transport *public, const int64_t *to_sizes,
                             const void *send, const int64_t *from_sizes, void *receive) {
    mpi_transport *self = (mpi_transport *)public;
    for (int rank = 0; rank < public->ranks; rank++)
        if (to_sizes[rank] < 0 || from_sizes[rank] < 0)
            return sh_mpi_fail(self, "exchange: a size is negative");
    if (to_sizes[public->rank] != from_sizes[public->rank])
        return sh_mpi_fail(self,
                           "exchange: the sizes that a rank sends to itself differ");
    return exchange_all(self, (traffic){.to_sizes = to_sizes,
                                        .from_sizes = from_sizes,
                                        .send = (char *)(uintptr_t)send,
                                        .receive = receive});
}

/* Large ones are sent directly, small ones by MPI's own collective. */
static shoal_status gather(shoal_transport *public, int64_t bytes, const void *own,
                           void *all) {
    mpi_transport *self = (mpi_transport *)public;
    shoal_status status = SHOAL_NO_MEMORY;
    if (bytes < 0)
        return sh_mpi_fail(self, "gather: bytes is negative");
    if (bytes > SMALL)
        return exchange_all(self, (traffic){.own_size = bytes,
                                            .send = (char *)(uintptr_t)own,
                                            .receive = all});
    pthread_mutex_lock(&self->lock);
    MPI_Request *request = next_request(self);
    if (request)
        status = sh_mpi_check(self,
                              MPI_Iallgather(own, (int)bytes, MPI_BYTE, all, (int)bytes,
                                             MPI_BYTE, self->talk, request),
                              "a gather cannot start");
    self->public.sent += request ? bytes * (self->public.ranks - 1) : 0;
    pthread_mutex_unlock(&self->lock);
    return status == SHOAL_OK ? wait_for(self, false) : status;
}

static shoal_status gather_parts(shoal_transport *public, const int64_t *sizes,
                                 const void *own, void *all) {
    mpi_transport *self = (mpi_transport *)public;
    for (int rank = 0; rank < public->ranks; rank++)
        if (sizes[rank] < 0)
            return sh_mpi_fail(self, "gather_parts: a size is negative");
    return exchange_all(self, (traffic){.from_sizes = sizes,
                                        .own_size = sizes[public->rank],
                                        .send = (char *)(uintptr_t)own,
                                        .receive = all});
}

static shoal_status broadcast(shoal_transport *public, int32_t root, int64_t bytes,
                              void *values) {
    mpi_transport *self = (mpi_transport *)public;
    shoal_status status = SHOAL_OK;
    if (bytes < 0 || root < 0 || root >= public->ranks)
        return sh_mpi_fail(self,
                           "broadcast: bytes is negative, or the rank does not exist");
    for (int64_t first = 0; first < bytes && status == SHOAL_OK; first += MESSAGE) {
        const int some = (int)(bytes - first < MESSAGE ? bytes - first : MESSAGE);
        pthread_mutex_lock(&self->lock);
        MPI_Request *request = next_request(self);
        status = request ? sh_mpi_check(self,
                                        MPI_Ibcast((char *)values + first, some, MPI_BYTE,
                                                   root, self->talk, request),
                                        "a broadcast cannot start")
                         : SHOAL_NO_MEMORY;
        pthread_mutex_unlock(&self->lock);
        public->sent += root == public->rank ? some : 0;
        if (status == SHOAL_OK)
            status = wait_for(self, false);
    }
    return status;
}

/* ---- Sums -------------------------------------------------------------------------- */

static shoal_status check_sum(mpi_transport *self, shoal_sum_type type, int64_t count) {
    if (sh_mpi_size(type) == 0 || count < 0)
        return sh_mpi_fail(self, "sum: unknown type, or count is negative");
    return SHOAL_OK;
}

static shoal_status sum_begin(shoal_transport *public, shoal_sum_type type, int64_t count,
                              void *values) {
    mpi_transport *self = (mpi_transport *)public;
    int left;
    shoal_status status = check_sum(self, type, count);
    if (status != SHOAL_OK)
        return status;
    pthread_mutex_lock(&self->lock);
    status = sh_mpi_sum_begin(self, type, count, values);
    if (status == SHOAL_OK) /* earlier sums continue meanwhile */
        status = sh_mpi_sums_look(self, &left);
    pthread_mutex_unlock(&self->lock);
    return status;
}

static shoal_status sum_end(shoal_transport *public) {
    return wait_for((mpi_transport *)public, true);
}

static shoal_status sum(shoal_transport *public, shoal_sum_type type, int64_t count,
                        void *values) {
    mpi_transport *self = (mpi_transport *)public;
    shoal_status status = check_sum(self, type, count);
    if (status != SHOAL_OK || count == 0)
        return status;
    if (count <= SMALL && count * (int64_t)sh_mpi_size(type) * public->ranks <= SMALL) {
        /* A few numbers are sent to all ranks, which add them in the same order. */
        const size_t bytes = (size_t)count * sh_mpi_size(type);
        const size_t room = bytes * (size_t)self->public.ranks;
        if (room > self->scratch_room) {
            free(self->scratch);
            self->scratch = malloc(room);
            self->scratch_room = self->scratch ? room : 0;
        }
        if (!self->scratch) {
            sh_mpi_fail(self, "out of memory for a sum");
            return SHOAL_NO_MEMORY;
        }
        status = gather(&self->public, (int64_t)bytes, values, self->scratch);
        if (status != SHOAL_OK)
            return status;
        for (int rank = 1; rank < self->public.ranks; rank++)
            sh_mpi_add(type, count, self->scratch + (size_t)rank * bytes, self->scratch);
        memcpy(values, self->scratch, bytes);
        return SHOAL_OK;
    }
    status = sum_begin(public, type, count, values);
    return status == SHOAL_OK ? sum_end(public) : status;
}

/* ---- Creation --------------------------------------------------------------------- */

static shoal_status begin_mpi(mpi_transport *self) {
    int begun = 0, ended = 0, threads = MPI_THREAD_SINGLE;
    MPI_Finalized(&ended);
    if (ended)
        return sh_mpi_fail(self,
                           "MPI was finalized before and cannot be initialized again");
    MPI_Initialized(&begun);
    if (begun) {
        MPI_Query_thread(&threads);
    } else if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &threads) !=
               MPI_SUCCESS) {
        return sh_mpi_fail(self, "MPI cannot be initialized");
    } else {
        self->ends_mpi = true;
    }
    if (threads < MPI_THREAD_SERIALIZED)
        return sh_mpi_fail(self, "this MPI cannot be called from two threads; Shoal "
                                 "needs MPI_THREAD_SERIALIZED");
    return SHOAL_OK;
}

static shoal_status find_ranks(mpi_transport *self) {
    const MPI_Comm all = self->options.communicator
                             ? *(const MPI_Comm *)self->options.communicator
                             : MPI_COMM_WORLD;
    MPI_Comm machine;
    int code = MPI_Comm_dup(all, &self->talk);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_dup(all, &self->pulse);
    if (code != MPI_SUCCESS)
        return sh_mpi_check(self, code, "the communicator cannot be duplicated");
    MPI_Comm_set_errhandler(self->talk, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(self->pulse, MPI_ERRORS_RETURN);
    MPI_Comm_rank(self->talk, &self->public.rank);
    MPI_Comm_size(self->talk, &self->public.ranks);
    code = MPI_Comm_split_type(self->talk, MPI_COMM_TYPE_SHARED, self->public.rank,
                               MPI_INFO_NULL, &machine);
    if (code != MPI_SUCCESS)
        return sh_mpi_check(self, code, "the ranks of a machine cannot be found");
    MPI_Comm_rank(machine, &self->public.local_rank);
    MPI_Comm_size(machine, &self->public.local_ranks);
    MPI_Comm_free(&machine);
    return SHOAL_OK;
}

static shoal_status tell_facts(mpi_transport *self) {
    char name[MPI_MAX_PROCESSOR_NAME] = "";
    int length;
    rank_facts own = {.process = getpid()};
    self->facts = calloc((size_t)self->public.ranks, sizeof *self->facts);
    if (!self->facts)
        return SHOAL_NO_MEMORY;
    MPI_Get_processor_name(name, &length);
    snprintf(own.name, sizeof own.name, "%.*s", NAME - 1, name);
    const int code = MPI_Allgather(&own, sizeof own, MPI_BYTE, self->facts, sizeof own,
                                   MPI_BYTE, self->talk);
    return sh_mpi_check(self, code, "the ranks cannot communicate");
}

shoal_status shoal_mpi_create(const shoal_mpi_options *options,
                              shoal_transport **transport) {
    if (!transport)
        return SHOAL_INVALID;
    mpi_transport *self = calloc(1, sizeof *self);
    *transport = self ? &self->public : NULL;
    if (!self)
        return SHOAL_NO_MEMORY;
    self->options = shoal_mpi_options_defaults();
    const shoal_status readable =
        READ_STRUCT(NULL, shoal_mpi_options, options, &self->options);
    if (readable != SHOAL_OK) {
        self->options = shoal_mpi_options_defaults();
        snprintf(self->public.message, sizeof self->public.message,
                 "shoal_mpi_options: initialise the struct with "
                 "shoal_mpi_options_defaults()");
    }
    if (!(self->options.patience > 0))
        self->options.patience = PATIENCE;
    self->talk = self->pulse = MPI_COMM_NULL;
    pthread_mutex_init(&self->lock, NULL);
    self->public.sum = sum;
    self->public.sum_begin = sum_begin;
    self->public.sum_end = sum_end;
    self->public.gather = gather;
    self->public.gather_parts = gather_parts;
    self->public.broadcast = broadcast;
    self->public.exchange = exchange;
    shoal_status status = readable;
    if (status == SHOAL_OK)
        status = begin_mpi(self);
    if (status == SHOAL_OK)
        status = find_ranks(self);
    if (status == SHOAL_OK)
        status = tell_facts(self);
    if (status == SHOAL_OK)
        status = sh_mpi_watch_begin(self);
    return status;
}

/* ---- Destruction ------------------------------------------------------------------ */

/* A barrier: before it the watch is needed, and after it the watch must ignore ranks
   that exit. */
void shoal_mpi_destroy(shoal_transport *transport) {
    mpi_transport *self = (mpi_transport *)transport;
    if (!self)
        return;
    char own = 0;
    char *all = calloc((size_t)self->public.ranks + 1, 1);
    if (self->watch.running && !self->failed && all)
        gather(transport, 1, &own, all);
    free(all);
    sh_mpi_watch_end(self);
    if (!self->failed) {
        if (self->talk != MPI_COMM_NULL)
            MPI_Comm_free(&self->talk);
        if (self->pulse != MPI_COMM_NULL)
            MPI_Comm_free(&self->pulse);
        if (self->ends_mpi)
            MPI_Finalize();
    }
    sh_mpi_sums_free(self);
    pthread_mutex_destroy(&self->lock);
    free(self->scratch);
    free(self->requests);
    free(self->facts);
    free(self);
}

const char *shoal_mpi_library(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return "MPI";
    text[strcspn(text, "\n")] = 0;
    return text;
}
