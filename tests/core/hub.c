#define _POSIX_C_SOURCE 200809L /* for barriers */
#include "hub.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support.h"

struct hub {
    int ranks;
    int64_t fail_at;
    pthread_barrier_t all;
    const void **given;          /* [ranks] */
    const int64_t **given_sizes; /* [ranks], exchange */
    void (*run)(void *shared, shoal_transport *transport);
    void *shared;
};

typedef struct {
    shoal_transport public;
    hub *all;
    int64_t calls;
} member;

static shoal_status finish(member *self) {
    if (++self->calls < self->all->fail_at || !self->all->fail_at)
        return SHOAL_OK;
    snprintf(self->public.message, sizeof self->public.message, "the test wants it so");
    return SHOAL_IO;
}

static shoal_status sum(shoal_transport *public, shoal_sum_type type, int64_t count,
                        void *values) {
    member *self = (member *)public;
    hub *all = self->all;
    uint32_t *total = test_memory(count, sizeof *total);
    if (type != SHOAL_SUM_TYPE_INT32)
        abort();
    all->given[public->rank] = values;
    pthread_barrier_wait(&all->all);
    for (int p = 0; p < all->ranks; p++)
        for (int64_t i = 0; i < count; i++)
            total[i] += (uint32_t)((const int32_t *)all->given[p])[i];
    pthread_barrier_wait(&all->all);
    memcpy(values, total, sizeof *total * (size_t)count);
    free(total);
    public->sent += 2 * count * 4 * (all->ranks - 1) / all->ranks;
    return finish(self);
}

static shoal_status gather_parts(shoal_transport *public, const int64_t *sizes,
                                 const void *own, void *to) {
    member *self = (member *)public;
    hub *all = self->all;
    char *place = to;
    all->given[public->rank] = own;
    pthread_barrier_wait(&all->all);
    for (int p = 0; p < all->ranks; place += sizes[p], p++)
        if (sizes[p] > 0)
            memcpy(place, all->given[p], (size_t)sizes[p]);
    pthread_barrier_wait(&all->all);
    public->sent += sizes[public->rank] * (all->ranks - 1);
    return finish(self);
}

static shoal_status gather(shoal_transport *public, int64_t bytes, const void *own,
                           void *to) {
    int64_t *sizes = test_memory(public->ranks, sizeof *sizes);
    for (int p = 0; p < public->ranks; p++)
        sizes[p] = bytes;
    const shoal_status status = gather_parts(public, sizes, own, to);
    free(sizes);
    return status;
}

static shoal_status exchange(shoal_transport *public, const int64_t *to_sizes,
                             const void *send, const int64_t *from_sizes, void *receive) {
    member *self = (member *)public;
    hub *all = self->all;
    char *place = receive;
    all->given[public->rank] = send;
    all->given_sizes[public->rank] = to_sizes;
    pthread_barrier_wait(&all->all);
    for (int p = 0; p < all->ranks; p++) {
        const char *from = all->given[p];
        for (int q = 0; q < public->rank; q++)
            from += all->given_sizes[p][q];
        if (all->given_sizes[p][public->rank] != from_sizes[p])
            abort();
        if (from_sizes[p] > 0)
            memcpy(place, from, (size_t)from_sizes[p]);
        place += from_sizes[p];
        public->sent += p == public->rank ? 0 : to_sizes[p];
    }
    pthread_barrier_wait(&all->all);
    return finish(self);
}

static void *run_rank(void *context) {
    member *self = context;
    self->all->run(self->all->shared, &self->public);
    return NULL;
}

int64_t hub_run(int ranks, int64_t fail_at,
                void (*rank)(void *shared, shoal_transport *transport), void *shared) {
    hub all = {.ranks = ranks, .fail_at = fail_at, .run = rank, .shared = shared};
    member *members = test_memory(ranks, sizeof *members);
    pthread_t *threads = test_memory(ranks, sizeof *threads);
    all.given = test_memory(ranks, sizeof *all.given);
    all.given_sizes = test_memory(ranks, sizeof *all.given_sizes);
    pthread_barrier_init(&all.all, NULL, (unsigned)ranks);
    for (int p = 0; p < ranks; p++) {
        members[p] = (member){.public = {.rank = p,
                                         .ranks = ranks,
                                         .sum = sum,
                                         .gather = gather,
                                         .gather_parts = gather_parts,
                                         .exchange = exchange},
                              .all = &all};
        if (pthread_create(&threads[p], NULL, run_rank, &members[p]))
            abort();
    }
    for (int p = 0; p < ranks; p++)
        pthread_join(threads[p], NULL);
    const int64_t sent = members[0].public.sent;
    pthread_barrier_destroy(&all.all);
    free(all.given);
    free(all.given_sizes);
    free(threads);
    free(members);
    return sent;
}
