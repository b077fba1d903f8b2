/* Sums whose order does not depend on the order of arrival.

   The values are divided into one part per rank. Each rank receives all values of its
   part, adds them in the order of ranks, and sends the sum to all: with P ranks it
   sends and receives 2 (P - 1) / P times the values, which is the minimum for any sum.
   Everything is nonblocking, so that the values of one layer are transferred while the
   next is computed. */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

/* Longer messages are split: counts of MPI are ints. */
enum { MOST_BYTES = 1 << 28, FIRST_TAG = 16, TAGS = 8192 };

size_t sh_mpi_size(shoal_sum_type type) {
    switch (type) {
    case SHOAL_SUM_TYPE_FLOAT:
    case SHOAL_SUM_TYPE_INT32: return 4;
    case SHOAL_SUM_TYPE_DOUBLE:
    case SHOAL_SUM_TYPE_INT64: return 8;
    }
    return 0;
}

#define ADD(type, values, into)                                                          \
    for (int64_t i = 0; i < count; i++)                                                  \
    ((type *)(into))[i] += ((const type *)(values))[i]

void sh_mpi_add(shoal_sum_type type, int64_t count, const void *values, void *into) {
    switch (type) {
    case SHOAL_SUM_TYPE_FLOAT: ADD(float, values, into); break;
    case SHOAL_SUM_TYPE_DOUBLE: ADD(double, values, into); break;
    case SHOAL_SUM_TYPE_INT32: /* unsigned: they wrap around */
        ADD(uint32_t, values, into);
        break;
    case SHOAL_SUM_TYPE_INT64: ADD(uint64_t, values, into); break;
    }
}

/* ---- Parts ------------------------------------------------------------------------- */

/* Start of the part of a rank, in bytes; that of `ranks` is the end. */
static int64_t part_begin(const mpi_transport *self, const running_sum *sum, int rank) {
    return sum->count * rank / self->public.ranks * (int64_t)sh_mpi_size(sum->type);
}

static int64_t part_bytes(const mpi_transport *self, const running_sum *sum, int rank) {
    return part_begin(self, sum, rank + 1) - part_begin(self, sum, rank);
}

static char *copy_of(const mpi_transport *self, const running_sum *sum, int rank) {
    return sum->parts + rank * part_bytes(self, sum, self->public.rank);
}

static int send_part(mpi_transport *self, running_sum *sum, int part, int to, int tag) {
    const int64_t bytes = part_bytes(self, sum, part);
    if (bytes == 0)
        return MPI_SUCCESS;
    self->public.sent += bytes;
    return MPI_Isend(sum->values + part_begin(self, sum, part), (int)bytes, MPI_BYTE, to,
                     tag, self->talk, &sum->requests[sum->request_count++]);
}

static int receive_part(mpi_transport *self, running_sum *sum, int part, char *into,
                        int from, int tag) {
    const int64_t bytes = part_bytes(self, sum, part);
    if (bytes == 0)
        return MPI_SUCCESS;
    return MPI_Irecv(into, (int)bytes, MPI_BYTE, from, tag, self->talk,
                     &sum->requests[sum->request_count++]);
}

/* ---- The two phases --------------------------------------------------------------- */

/* Each rank begins with the next one, so that not all send to the same one first. */
static int other(const mpi_transport *self, int turn) {
    return (self->public.rank + turn) % self->public.ranks;
}

static shoal_status begin_whole(mpi_transport *self, running_sum *sum) {
    const int own = self->public.rank;
    int code = MPI_SUCCESS;
    /* ((0 + 1) + 2) + ..., with the own values in their turn. */
    char *values = sum->values + part_begin(self, sum, own);
    const int64_t bytes = part_bytes(self, sum, own);
    const int64_t count = bytes / (int64_t)sh_mpi_size(sum->type);
    char *into = own == 0 ? values : copy_of(self, sum, 0);
    for (int rank = 1; rank < self->public.ranks; rank++)
        sh_mpi_add(sum->type, count, rank == own ? values : copy_of(self, sum, rank),
                   into);
    if (into != values)
        memcpy(values, into, (size_t)bytes);
    sum->request_count = 0;
    for (int turn = 1; turn < self->public.ranks && code == MPI_SUCCESS; turn++) {
        const int rank = other(self, turn);
        code = receive_part(self, sum, rank, sum->values + part_begin(self, sum, rank),
                            rank, sum->tag + 1);
        if (code == MPI_SUCCESS)
            code = send_part(self, sum, own, rank, sum->tag + 1);
    }
    sum->stage = SUM_WHOLE;
    return sh_mpi_check(self, code, "a sum cannot continue");
}

/* ---- Sums in progress ------------------------------------------------------------- */

static running_sum *new_sum(mpi_transport *self) {
    running_sum **more =
        realloc(self->sums, sizeof *more * ((size_t)self->sum_count + 1));
    if (!more)
        return NULL;
    self->sums = more;
    running_sum *sum = calloc(1, sizeof *sum);
    if (!sum)
        return NULL;
    sum->requests = calloc(2 * (size_t)self->public.ranks, sizeof *sum->requests);
    if (!sum->requests) {
        free(sum);
        return NULL;
    }
    return self->sums[self->sum_count++] = sum;
}

/* A free one with enough room; memory is kept for the next step. */
static running_sum *take_sum(mpi_transport *self, shoal_sum_type type, int64_t count) {
    const int ranks = self->public.ranks;
    const size_t room = (size_t)(count / ranks + 1) * sh_mpi_size(type) * (size_t)ranks;
    running_sum *sum = NULL;
    for (int i = 0; i < self->sum_count && !sum; i++)
        if (self->sums[i]->stage == SUM_FREE && self->sums[i]->room >= room)
            sum = self->sums[i];
    for (int i = 0; i < self->sum_count && !sum; i++)
        if (self->sums[i]->stage == SUM_FREE)
            sum = self->sums[i];
    if (!sum)
        sum = new_sum(self);
    if (!sum || sum->room >= room)
        return sum;
    free(sum->parts);
    sum->parts = malloc(room);
    sum->room = sum->parts ? room : 0;
    return sum->parts ? sum : NULL;
}

static shoal_status begin_one(mpi_transport *self, shoal_sum_type type, int64_t count,
                              char *values) {
    running_sum *sum = take_sum(self, type, count);
    if (!sum) {
        sh_mpi_fail(self, "out of memory for a sum of %lld", (long long)count);
        return SHOAL_NO_MEMORY;
    }
    sum->type = type;
    sum->count = count;
    sum->values = values;
    sum->request_count = 0;
    sum->tag = FIRST_TAG + 2 * (int)(self->next_tag++ % TAGS);
    const int own = self->public.rank;
    int code = MPI_SUCCESS;
    for (int turn = 1; turn < self->public.ranks && code == MPI_SUCCESS; turn++) {
        const int rank = other(self, turn);
        code = receive_part(self, sum, own, copy_of(self, sum, rank), rank, sum->tag);
    }
    for (int turn = 1; turn < self->public.ranks && code == MPI_SUCCESS; turn++) {
        const int rank = other(self, turn);
        code = send_part(self, sum, rank, rank, sum->tag);
    }
    sum->stage = SUM_PARTS;
    return sh_mpi_check(self, code, "a sum cannot start");
}

shoal_status sh_mpi_sum_begin(mpi_transport *self, shoal_sum_type type, int64_t count,
                              void *values) {
    const int64_t most = MOST_BYTES / (int64_t)sh_mpi_size(type);
    shoal_status status = SHOAL_OK;
    for (int64_t first = 0; first < count && status == SHOAL_OK; first += most)
        status = begin_one(self, type, count - first < most ? count - first : most,
                           (char *)values + first * (int64_t)sh_mpi_size(type));
    return status;
}

static shoal_status look_at(mpi_transport *self, running_sum *sum) {
    int there = 0;
    const int code =
        MPI_Testall(sum->request_count, sum->requests, &there, MPI_STATUSES_IGNORE);
    const shoal_status status = sh_mpi_check(self, code, "a sum failed");
    if (status != SHOAL_OK || !there)
        return status;
    if (sum->stage == SUM_PARTS)
        return begin_whole(self, sum);
    sum->stage = SUM_FREE;
    return SHOAL_OK;
}

shoal_status sh_mpi_sums_look(mpi_transport *self, int *left) {
    shoal_status status = SHOAL_OK;
    *left = 0;
    for (int i = 0; i < self->sum_count && status == SHOAL_OK; i++) {
        if (self->sums[i]->stage == SUM_FREE)
            continue;
        status = look_at(self, self->sums[i]);
        *left += self->sums[i]->stage != SUM_FREE;
    }
    return status;
}

void sh_mpi_sums_free(mpi_transport *self) {
    for (int i = 0; i < self->sum_count; i++) {
        free(self->sums[i]->parts);
        free(self->sums[i]->requests);
        free(self->sums[i]);
    }
    free(self->sums);
    self->sums = NULL;
    self->sum_count = 0;
}
