/* lsh-R: Reformer's attention. Keys are the queries scaled to unit length; in each of R
   rounds a position sees the positions that hash near it, never itself while it has
   another. Rounds weighted by their log-sum-exp are together one softmax in which a key
   counts once for every round that shows it: that is how both passes are written. */
#ifndef SHOAL_ATTENTION_LSH_H
#define SHOAL_ATTENTION_LSH_H

#include "attention/dense.h"

enum { LSH_CHUNK = 32, LSH_WINDOW = 2 * LSH_CHUNK };

/* n / 32, rounded up to an even number: a chunk's worth of positions for each bucket. */
int64_t sh_lsh_bucket_count(int64_t n);

/* The buckets of one head of sequence b in one round, [live queries]. For tests: it runs
   on the plan's own workspace. */
void sh_lsh_buckets(shoal_plan *plan, const shoal_inputs *inputs, int64_t b, int64_t h,
                    int64_t round, int32_t *buckets);

/* ---- What forward and backward share ---------------------------------------------- */

/* One thread's memory. The window is the chunk before this one, and this one. */
typedef struct {
    dense_scratch *dense;
    float *keys;   /* [LSH_WINDOW][dim], unit length */
    float *values; /* [LSH_WINDOW][value_dim] */
    /* Backward only: */
    float *queries, *grad_out;      /* [LSH_CHUNK][dim], [LSH_CHUNK][value_dim] */
    float *grad_keys, *grad_values; /* as keys and values */
} lsh_scratch;

/* A slot's memory for heads that lsh_counted takes; `few` is their most positions. */
typedef struct {
    float *keys;       /* [few][dim], unit length */
    uint8_t *chunks;   /* [rounds][n]: the round's chunk that a position is in; behind
                          them some that are read but not used */
    float *logs;       /* [rounds + 1], logs[m] = log m, and the lowest score for 0 */
    atomic_int *turns; /* backward only, for dense_backward */
} lsh_count;

/* A slot's memory: one head at a time. */
typedef struct {
    double *inverse_length; /* [queries], 0 for a zero query */
    float *projections;     /* [buckets / 2][dim] */
    int32_t *buckets;       /* [queries] */
    int32_t *offsets;       /* [buckets + 1] */
    lsh_count count;
    /* Without backward; with it, these are in the state: */
    int32_t *order;
    float *top, *sum;
    /* Backward only: */
    float *delta;     /* [queries] */
    float *grad_keys; /* [queries][dim] */
} lsh_slot;

typedef struct {
    dense_scratch *dense; /* one for each thread, as `threads` */
    lsh_scratch *threads;
    lsh_slot *slots;
} lsh_work;

typedef struct {
    float *top, *inverse; /* [batch][heads][queries]: of the one softmax */
    int32_t *order;       /* [batch][heads][rounds][queries], sorted by bucket */
} lsh_state;

lsh_state sh_lsh_state_at(const shoal_plan *plan, block_layout *place);

/* One head in work. */
typedef struct {
    const attention_call *call;
    const lsh_slot *slot;
    head_view view;
    int64_t round;
    const int32_t *order; /* [n], of this round */
    float *top, *sum;     /* [n]; the sum's inverse after the last round */
    row_view out;
    /* Backward only: */
    row_view dout, dq, dv;
    int64_t phase; /* 0: even chunks, 1: odd ones */
} lsh_job;

/* A chunk of the sorted positions with the one before it. */
typedef struct {
    const int32_t
        *window; /* positions: `before` of the last chunk, `count` of this one */
    int before, count;
} lsh_chunk;

lsh_chunk sh_lsh_chunk_at(const lsh_job *job, int64_t chunk);
/* Copies the window's unit keys and its values. */
void sh_lsh_gather(const lsh_job *job, const lsh_chunk *chunk, lsh_scratch *scratch);
/* Takes from each query of the panel the score of its own key, unless it has no other. */
void sh_lsh_hide_self(const lsh_chunk *chunk, const query_panel *panel, float *scores);
/* Panels cover queries of a chunk; first counts from the chunk's first. */
void sh_lsh_cut(const shoal_plan *plan, const lsh_chunk *chunk, int64_t first,
                query_panel *panel);

/* Inverse lengths of the head's queries. */
void sh_lsh_measure(lsh_job *job, team workers);
void sh_lsh_unit_row(const lsh_job *job, int64_t position, float *key);

/* Hashes and sorts the positions of the job's round into `order`, [n]. */
void sh_lsh_sort(lsh_job *job, int32_t *order, team workers);

/* ---- Few positions (lsh_counted.c) ------------------------------------------------ */

/* With at most 64 R positions the windows of R rounds hold more pairs than there are:
   each pair is computed once, and its key counts as often as rounds show it. */
int sh_lsh_counted(const lsh_job *job);
void sh_lsh_count_place(lsh_count *count, const shoal_plan *plan, block_layout *work);
/* orders: one order for each round, `stride` apart; 0 if only one is kept. */
void sh_lsh_count_forward(lsh_job *job, int32_t *orders, int64_t stride, team workers);
/* Adds to dv and to slot->grad_keys, overwrites dq. */
void sh_lsh_count_backward(lsh_job *job, const int32_t *orders, team workers);

void sh_lsh_backward(const attention_call *call);

#endif
