/* Every function of a transport, with awkward sizes: run by mpirun with any number of
   ranks. Each rank knows what all others send and checks what it receives. */
#include <shoal_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static shoal_transport *ranks;
static int wrong;

static void expect(int good, const char *what, int64_t size) {
    if (good)
        return;
    printf("not ok %s of %lld on rank %d of %d %s\n", what, (long long)size,
           (int)ranks->rank, (int)ranks->ranks, ranks->message);
    wrong = 1;
}

static uint64_t number(int rank, int64_t i) {
    uint64_t x = (uint64_t)(rank + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 27);
}

static double real(int rank, int64_t i) {
    return (double)(int64_t)number(rank, i) / 1e15;
}

/* ---- Sums -------------------------------------------------------------------------- */

static size_t size_of(shoal_sum_type type) {
    return type == SHOAL_SUM_TYPE_FLOAT || type == SHOAL_SUM_TYPE_INT32 ? 4 : 8;
}

static void put(shoal_sum_type type, void *values, int64_t i, int rank, int add) {
    float *f = values;
    double *d = values;
    uint32_t *n = values;
    uint64_t *m = values;
    switch (type) {
    case SHOAL_SUM_TYPE_FLOAT: f[i] = (add ? f[i] : 0) + (float)real(rank, i); break;
    case SHOAL_SUM_TYPE_DOUBLE: d[i] = (add ? d[i] : 0) + real(rank, i); break;
    case SHOAL_SUM_TYPE_INT32: n[i] = (add ? n[i] : 0) + (uint32_t)number(rank, i); break;
    case SHOAL_SUM_TYPE_INT64: m[i] = (add ? m[i] : 0) + number(rank, i); break;
    }
}

static void *own_values(shoal_sum_type type, int64_t count) {
    void *values = malloc((size_t)count * size_of(type) + 1);
    for (int64_t i = 0; i < count; i++)
        put(type, values, i, ranks->rank, 0);
    return values;
}

/* In the order of ranks, bit for bit. */
static int is_sum(shoal_sum_type type, int64_t count, const void *values) {
    void *wanted = malloc((size_t)count * size_of(type) + 1);
    for (int rank = 0; rank < ranks->ranks; rank++)
        for (int64_t i = 0; i < count; i++)
            put(type, wanted, i, rank, rank > 0);
    const int same = memcmp(wanted, values, (size_t)count * size_of(type)) == 0;
    free(wanted);
    return same;
}

static const int64_t counts[] = {0, 1, 2, 3, 5, 7, 64, 1000, 4099, 100003};
enum { COUNTS = sizeof counts / sizeof *counts };

static void check_sums(shoal_sum_type type) {
    void *begun[COUNTS];
    for (int c = 0; c < COUNTS; c++) {
        void *values = own_values(type, counts[c]);
        const shoal_status status = ranks->sum(ranks, type, counts[c], values);
        expect(status == SHOAL_OK && is_sum(type, counts[c], values), "sum", counts[c]);
        free(values);
    }
    for (int c = 0; c < COUNTS; c++) { /* all at once */
        begun[c] = own_values(type, counts[c]);
        expect(ranks->sum_begin(ranks, type, counts[c], begun[c]) == SHOAL_OK,
               "sum_begin", counts[c]);
    }
    expect(ranks->sum_end(ranks) == SHOAL_OK, "sum_end", COUNTS);
    for (int c = 0; c < COUNTS; c++) {
        expect(is_sum(type, counts[c], begun[c]), "begun sum", counts[c]);
        free(begun[c]);
    }
}

/* A long sum sends at most 2 (P - 1) / P of its size. */
static void check_traffic(void) {
    const int64_t count = 100003, before = ranks->sent, others = ranks->ranks - 1;
    float *values = own_values(SHOAL_SUM_TYPE_FLOAT, count);
    expect(ranks->sum(ranks, SHOAL_SUM_TYPE_FLOAT, count, values) == SHOAL_OK, "sum",
           count);
    const int64_t most = 8 * others * (count / ranks->ranks + 1);
    expect(ranks->sent - before <= most, "traffic", ranks->sent - before);
    free(values);
}

/* ---- Other functions -------------------------------------------------------------- */

static void check_gather(int64_t bytes) {
    char *own = malloc((size_t)bytes + 1);
    char *all = malloc((size_t)(bytes * ranks->ranks) + 1);
    int good = 1;
    for (int64_t i = 0; i < bytes; i++)
        own[i] = (char)number(ranks->rank, i);
    expect(ranks->gather(ranks, bytes, own, all) == SHOAL_OK, "gather", bytes);
    for (int rank = 0; rank < ranks->ranks; rank++)
        for (int64_t i = 0; i < bytes; i++)
            good = good && all[rank * bytes + i] == (char)number(rank, i);
    expect(good, "what was gathered", bytes);
    free(own);
    free(all);
}

/* The parts of the ranks have different sizes, some 0. */
static void check_parts(int64_t bytes) {
    int64_t *sizes = calloc((size_t)ranks->ranks, sizeof *sizes), sum = 0;
    for (int rank = 0; rank < ranks->ranks; rank++)
        sum += sizes[rank] = rank % 3 == 1 ? 0 : bytes + rank;
    char *own = malloc((size_t)sizes[ranks->rank] + 1), *all = malloc((size_t)sum + 1);
    int good = 1;
    for (int64_t i = 0; i < sizes[ranks->rank]; i++)
        own[i] = (char)number(ranks->rank, i);
    expect(ranks->gather_parts(ranks, sizes, own, all) == SHOAL_OK, "gather_parts",
           bytes);
    const char *at = all;
    for (int rank = 0; rank < ranks->ranks; rank++)
        for (int64_t i = 0; i < sizes[rank]; i++)
            good = good && *at++ == (char)number(rank, i);
    expect(good, "what was gathered in parts", bytes);
    free(sizes);
    free(own);
    free(all);
}

static void check_broadcast(int root, int64_t bytes) {
    char *values = malloc((size_t)bytes + 1);
    int good = 1;
    for (int64_t i = 0; i < bytes; i++)
        values[i] = (char)number(ranks->rank, i);
    expect(ranks->broadcast(ranks, root, bytes, values) == SHOAL_OK, "broadcast", bytes);
    for (int64_t i = 0; i < bytes; i++)
        good = good && values[i] == (char)number(root, i);
    expect(good, "what was broadcast", bytes);
    free(values);
}

/* Bytes that rank `from` sends to rank `to`; 0 for some. */
static int64_t between(int from, int to, int64_t bytes) {
    return (from + 2 * to) % 3 == 0 ? 0 : bytes + 5 * from + to;
}

static void check_exchange(int64_t bytes) {
    const int own = ranks->rank, count = ranks->ranks;
    int64_t *to = calloc((size_t)count, sizeof *to), out = 0;
    int64_t *from = calloc((size_t)count, sizeof *from), in = 0;
    for (int rank = 0; rank < count; rank++) {
        out += to[rank] = between(own, rank, bytes);
        in += from[rank] = between(rank, own, bytes);
    }
    char *send = malloc((size_t)out + 1), *receive = malloc((size_t)in + 1);
    char *at = send;
    for (int rank = 0; rank < count; rank++)
        for (int64_t i = 0; i < to[rank]; i++)
            *at++ = (char)number(own * count + rank, i);
    expect(ranks->exchange(ranks, to, send, from, receive) == SHOAL_OK, "exchange",
           bytes);
    int good = 1;
    at = receive;
    for (int rank = 0; rank < count; rank++)
        for (int64_t i = 0; i < from[rank]; i++)
            good = good && *at++ == (char)number(rank * count + own, i);
    expect(good, "what was exchanged", bytes);
    free(to);
    free(from);
    free(send);
    free(receive);
}

int main(void) {
    if (shoal_mpi_create(NULL, &ranks) != SHOAL_OK) {
        printf("not ok open: %s\n", ranks ? ranks->message : "out of memory");
        return 1;
    }
    for (int type = SHOAL_SUM_TYPE_FLOAT; type <= SHOAL_SUM_TYPE_INT64; type++)
        check_sums((shoal_sum_type)type);
    check_traffic();
    for (int c = 0; c < COUNTS; c++) {
        check_gather(counts[c]);
        check_parts(counts[c]);
        check_broadcast((int)(counts[c] % ranks->ranks), counts[c]);
        check_exchange(counts[c]);
    }
    int32_t all = wrong;
    ranks->sum(ranks, SHOAL_SUM_TYPE_INT32, 1, &all);
    if (ranks->rank == 0 && all == 0)
        printf("ok the transport of %d ranks\n", (int)ranks->ranks);
    shoal_mpi_destroy(ranks);
    return all != 0;
}
