/* One sequence over several ranks: each holds a run of its positions. What crosses has
   the size of the groups, never of the sequence. */
#ifndef SHOAL_ATTENTION_DISTRIBUTED_H
#define SHOAL_ATTENTION_DISTRIBUTED_H

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
    void *packet;           /* what this rank gives */
    void *packets;          /* and what it gets */
    softmax_parts parts;    /* of the ranks, of the groups that this one merges */
    int32_t *keys;          /* [U][C k]: the different top keys of a unit, ascending */
    int64_t *key_counts;    /* [U] */
    float *samples;         /* [U][sample_size], groups=keys */
    uint64_t *sorted;       /* [C k] */
    int64_t *row_starts;    /* [P U + 1]: where the rows of top keys that are rank p's and
                              unit u's begin, p U + u */
    float *row_grads;       /* [rows][D + Dv]: gradients of the top keys' rows */
    float *own_grads;       /* [P][some rows of this rank][D + Dv] */
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

/* ---- Putting together what ranks have of the groups (spread_merge.c) --------------- */

/* Groups that one rank puts together, at most. */
int64_t sh_spread_most_shared(const shoal_plan *plan);

/* own->packet [U C][width] of every rank: own->packets [U C][width] gets the sums, added
   in the order of the ranks. */
void sh_spread_sum_doubles(spread_run *run, int64_t width);
void sh_spread_sum_floats(spread_run *run, int64_t width);

/* The first of slot->parts of every unit becomes that of all ranks, merged by the code
   that merges chunks of keys. A group's part is as many bytes in a packet. */
void sh_spread_merge_parts(spread_run *run);
int64_t sh_spread_part_size(const shoal_plan *plan, int32_t topk);

/* Rows of one rank whose gradients are sent to it in one go, at most. */
int64_t sh_spread_most_returned(const shoal_plan *plan);

/* ---- Steps ------------------------------------------------------------------------ */

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

/* U C: the groups of all units. */
static inline int64_t spread_groups(const shoal_plan *plan) {
    return sh_mul_checked(spread_units(plan), plan->attention.clusters);
}

static inline int64_t spread_row_size(const shoal_plan *plan) {
    return plan->problem.dim + plan->problem.value_dim;
}

shoal_status sh_spread_forward(const attention_call *call, shoal_status status);
shoal_status sh_spread_backward(const attention_call *call, shoal_status status);

#endif
