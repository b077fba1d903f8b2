/* One sequence over several ranks: each holds a run of its positions. What crosses has
   the size of the groups, never of the sequence. */
#ifndef SHOAL_ATTENTION_SPREAD_H
#define SHOAL_ATTENTION_SPREAD_H

#include "attention/clustered.h"

/* One call on its way over the ranks. Units are heads of a sequence, b * heads + h. */
typedef struct {
    const attention_call *call;
    shoal_transport *over;
    team workers;
    struct spread_work *own;
    int failed; /* a call of the transport */
} spread_run;

/* The positions of sequence b. */
typedef struct {
    int64_t queries, keys;          /* of all ranks */
    int64_t first_query, first_key; /* this rank's */
} spread_range;

/* Memory of a plan over ranks, beside the clustered kinds' own. U units, P ranks. */
typedef struct spread_work {
    /* Of a rank: whether it refuses, whether it brings groups, and of each sequence how
       many queries and keys it has. */
    int64_t *mine;          /* [2 + 2 batch] */
    int64_t *all;           /* [P][2 + 2 batch] */
    int64_t *first_keys;    /* [P + 1][batch]: where the keys of rank p begin */
    spread_range *ranges;   /* [batch] */
    int64_t *sizes;         /* [2 P]: bytes, for the transport */
    clustered_head *heads;  /* [U] */
    kmeans_pass *passes;    /* [U] */
    uint8_t *moving;        /* [U]: k-means goes on */
    int32_t *counts;        /* [U][C][kmeans_counters]: what is summed */
    void *packet;           /* what this rank gives to a gather */
    void *packets;          /* [P] of them */
    softmax_parts parts;    /* of the ranks, one unit at a time */
    int32_t *keys;          /* [U][C k]: the different top keys of a unit, ascending */
    int64_t *key_counts;    /* [U] */
    float *samples;         /* [U][sample_size], groups=keys */
    uint64_t *sorted;       /* [C k] */
    int64_t *row_starts;    /* [P U + 1]: where the rows of top keys that are rank p's and
                              unit u's begin, p U + u */
    float *row_grads;       /* [rows][D + Dv]: gradients of the top keys' rows */
    float *own_grads;       /* [P][rows of this rank][D + Dv] */
    int64_t most_rows;      /* of the top keys of all units */
    struct ring_work *ring; /* of full: ring.c */
} spread_work;

/* In the state, for backward: */
typedef struct {
    int32_t *members; /* [U][C] */
    int32_t *places;  /* [U][C][k] */
    float *rows;      /* [rows][D + Dv]: a top key and its value, by rank, then unit */
} spread_state;

/* What sh_spread_begin needs; sh_spread_place: and the clustered kinds. NULL while
   measuring. */
spread_work *sh_spread_place_ranges(shoal_plan *plan, block_layout *work);
void sh_spread_place(shoal_plan *plan, const clustered_work *clustered,
                     block_layout *work);
spread_state sh_spread_state_at(const shoal_plan *plan, block_layout *place);

/* Where it lies, behind the clustered kinds' state (clustered.c). */
spread_state sh_clustered_spread_state(const shoal_plan *plan, void *state);

/* ---- Forward and backward ---------------------------------------------------------- */

/* Tells the ranks where everybody's positions are, and whether this one's arguments are
   good; SHOAL_OK only where all are. */
shoal_status sh_spread_begin(spread_run *run, const attention_call *call,
                             shoal_status status);

void sh_spread_load_heads(spread_run *run);
int sh_spread_is_live(const spread_run *run, int64_t u);

/* Gathers `bytes` of every rank, as many from each. */
void sh_spread_gather(spread_run *run, const void *mine, int64_t bytes, void *all);

/* Members [U][C] of all ranks, once each unit's own are sorted. */
void sh_spread_use_members(spread_run *run, const int32_t *members);

/* Finds whose the rows of the top keys are, own->row_starts; and lets the heads have
   them. */
void sh_spread_count_rows(spread_run *run);
int64_t sh_spread_rows_of(const spread_run *run, int p);
/* Of unit u's different top keys, how many lie before rank p's. */
int64_t sh_spread_keys_before(const spread_run *run, int64_t u, int p);
void sh_spread_use_rows(spread_run *run, const spread_state *state);

shoal_status sh_spread_failure(const spread_run *run);

static inline int64_t spread_units(const shoal_plan *plan) {
    return plan->problem.batch * plan->problem.heads;
}

static inline int64_t spread_row_size(const shoal_plan *plan) {
    return plan->problem.dim + plan->problem.value_dim;
}

shoal_status sh_spread_forward(const attention_call *call, shoal_status status);
shoal_status sh_spread_backward(const attention_call *call, shoal_status status);

#endif
