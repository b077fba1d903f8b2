/* A thread that watches the other ranks while this one computes: processes on the same
   machine by their number, several times a second, and the previous rank by its message
   every second. MPI alone would wait for a dead rank forever. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "inside.h"

enum { LOOK = 100000000 /* nanoseconds */, PULSE_TAG = 1 };

static bool exists(int64_t process) {
    return kill((pid_t)process, 0) == 0 || errno != ESRCH;
}

static int rank_before(const mpi_transport *self) {
    return (self->public.rank + self->public.ranks - 1) % self->public.ranks;
}

/* Called once. The message is set before the flag. */
static void lose(mpi_transport *self, const char *message) {
    snprintf(self->public.message, sizeof self->public.message, "%s", message);
    atomic_store(&self->watch.lost, true);
    if (self->options.lost)
        self->options.lost(self->options.user, self->public.message);
}

static void look_for_processes(mpi_transport *self) {
    char message[200];
    for (int rank = 0; rank < self->public.ranks; rank++) {
        if (!self->watch.visible[rank] || exists(self->facts[rank].process))
            continue;
        snprintf(message, sizeof message, "rank %d, process %lld on %s, has ended", rank,
                 (long long)self->facts[rank].process, self->facts[rank].name);
        lose(self, message);
        return;
    }
}

static void look_for_silence(mpi_transport *self, double now) {
    char message[200];
    const double silent = now - self->watch.heard;
    const int rank = rank_before(self);
    if (silent <= self->options.patience)
        return;
    snprintf(message, sizeof message,
             "rank %d, process %lld on %s, has not responded for %.0f seconds: it is "
             "stopped, or its machine or the network is down",
             rank, (long long)self->facts[rank].process, self->facts[rank].name, silent);
    lose(self, message);
}

/* After a pause of this process (a stopped and continued job) the silence of others
   means nothing. */
static void *watch_ranks(void *argument) {
    mpi_transport *self = argument;
    rank_watch *watch = &self->watch;
    double before = watch->heard = sh_mpi_now();
    while (!atomic_load(&watch->stop) && !atomic_load(&watch->lost)) {
        const double now = sh_mpi_now();
        if (now - before > self->options.patience / 4)
            watch->heard = now;
        before = now;
        look_for_processes(self);
        pthread_mutex_lock(&self->lock);
        /* Sends a sign of life, and checks for that of the previous rank. */
        const int next = (self->public.rank + 1) % self->public.ranks;
        int there = 0;
        if (now - watch->beat >= 1) {
            MPI_Test(&watch->to, &there, MPI_STATUS_IGNORE);
            if (there)
                MPI_Isend(&watch->out, 1, MPI_BYTE, next, PULSE_TAG, self->pulse,
                          &watch->to);
            watch->beat = now;
        }
        do {
            there = 0;
            MPI_Test(&watch->from, &there, MPI_STATUS_IGNORE);
            if (there) {
                watch->heard = now;
                MPI_Irecv(&watch->in, 1, MPI_BYTE, rank_before(self), PULSE_TAG,
                          self->pulse, &watch->from);
            }
        } while (there);
        pthread_mutex_unlock(&self->lock);
        if (!atomic_load(&watch->lost))
            look_for_silence(self, now);
        nanosleep(&(struct timespec){.tv_nsec = LOOK}, NULL);
    }
    return NULL;
}

/* Signals are for the caller's threads. */
shoal_status sh_mpi_watch_begin(mpi_transport *self) {
    sigset_t all, kept;
    if (self->public.ranks == 1)
        return SHOAL_OK;
    self->watch.visible = calloc((size_t)self->public.ranks, sizeof(bool));
    if (!self->watch.visible)
        return SHOAL_NO_MEMORY;
    /* Processes that are not visible from here (containers have their own numbers) are
       not probed. */
    const rank_facts *own = &self->facts[self->public.rank];
    for (int rank = 0; rank < self->public.ranks; rank++)
        self->watch.visible[rank] = rank != self->public.rank &&
                                    strcmp(self->facts[rank].name, own->name) == 0 &&
                                    exists(self->facts[rank].process);
    self->watch.to = MPI_REQUEST_NULL;
    MPI_Irecv(&self->watch.in, 1, MPI_BYTE, rank_before(self), PULSE_TAG, self->pulse,
              &self->watch.from);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &kept);
    self->watch.running = pthread_create(&self->watch.thread, NULL, watch_ranks, self) ==
                          0;
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    return self->watch.running
               ? SHOAL_OK
               : sh_mpi_fail(self, "cannot create a thread to watch the ranks");
}

void sh_mpi_watch_end(mpi_transport *self) {
    rank_watch *watch = &self->watch;
    if (watch->running) {
        atomic_store(&watch->stop, true);
        pthread_join(watch->thread, NULL);
        watch->running = false;
        if (!self->failed) {
            MPI_Cancel(&watch->from);
            MPI_Wait(&watch->from, MPI_STATUS_IGNORE);
            MPI_Wait(&watch->to, MPI_STATUS_IGNORE);
        }
    }
    free(watch->visible);
    watch->visible = NULL;
}
