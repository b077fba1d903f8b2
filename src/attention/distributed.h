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
    struct distributed_work *own;
    int failed; /* a call of the transport */
} distributed_call;

/* The positions of sequence b. */
typedef struct {
    int64_t queries, keys;          /* of all ranks */
    int64_t first_query, first_key; /* this rank's */
} distributed_range;

/* Memory of a plan over ranks, beside the clustered kinds' own. U units, P ranks. */
typedef struct distributed_work {
    /* Of a rank: whether it refuses, whether it brings groups, and of each sequence how
       many queries and keys it has. */
    int64_t *mine;             /* [2 + 2 batch] */
    int64_t *all;              /* [P][2 + 2 batch] */
    int64_t *first_keys;       /* [P + 1][batch]: where the keys of rank p begin */
    distributed_range *ranges; /* [batch] */
    int64_t *sizes;            /* [2 P]: bytes, for the transport */
    clustered_head *heads;     /* [U] */
    kmeans_pass *passes;       /* [U] */
    uint8_t *moving;           /* [U]: k-means goes on */
    int32_t *counts;           /* [U][C][kmeans_counters]: what is summed */
    void *packet;              /* what this rank gives */
    void *packets;             /* and what it gets */
    softmax_parts parts;       /* of the ranks, of the groups that this one merges */
    int32_t *keys;             /* [U][C k]: the different top keys of a unit, ascending */
    int64_t *key_counts;       /* [U] */
    float *samples;            /* [U][sample_size], groups=keys */
    uint64_t *sorted;          /* [C k] */
    int64_t *row_starts;    /* [P U + 1]: where the rows of top keys that are rank p's and
                              unit u's begin, p U + u */
    float *row_grads;       /* [rows][D + Dv]: gradients of the top keys' rows */
    float *own_grads;       /* [P][some rows of this rank][D + Dv] */
    int64_t most_rows;      /* of the top keys of all units */
    struct ring_work *ring; /* of full: distributed_full.c */
} distributed_work;

/* In the state, for backward: */
typedef struct {
    int32_t *members; /* [U][C] */
    int32_t *places;  /* [U][C][k] */
    float *rows;      /* [rows][D + Dv]: a top key and its value, by rank, then unit */
} distributed_state;

/* What sh_distributed_begin needs; sh_distributed_place: and the clustered kinds. NULL
   while measuring. */
distributed_work *sh_distributed_place_ranges(shoal_plan *plan, block_layout *work);
void sh_distributed_place(shoal_plan *plan, const clustered_work *clustered,
                          block_layout *work);
distributed_state sh_distributed_state_at(const shoal_plan *plan, block_layout *place);

/* Where it lies, behind the clustered kinds' state (clustered.c). */
distributed_state sh_clustered_distributed_state(const shoal_plan *plan, void *state);

/* ---- Forward and backward ---------------------------------------------------------- */

/* Tells the ranks where everybody's positions are, and whether this one's arguments are
   good; SHOAL_OK only where all are. */
shoal_status sh_distributed_begin(distributed_call *run, const attention_call *call,
                                  shoal_status status);

void sh_distributed_load_heads(distributed_call *run);
int sh_distributed_is_live(const distributed_call *run, int64_t u);

/* ---- Putting together what ranks have of the groups (distributed_merge.c) ---------- */

/* Groups that one rank puts together, at most. */
int64_t sh_distributed_most_shared(const shoal_plan *plan);

/* own->packet [U C][width] of every rank: own->packets [U C][width] gets the sums, added
   in the order of the ranks. */
void sh_distributed_sum_doubles(distributed_call *run, int64_t width);
void sh_distributed_sum_floats(distributed_call *run, int64_t width);

/* The first of slot->parts of every unit becomes that of all ranks, merged by the code
   that merges chunks of keys. A group's part is as many bytes in a packet. */
void sh_distributed_merge_parts(distributed_call *run);
int64_t sh_distributed_part_size(const shoal_plan *plan, int32_t topk);

/* Rows of one rank whose gradients are sent to it in one go, at most. */
int64_t sh_distributed_most_returned(const shoal_plan *plan);

/* ---- Steps ------------------------------------------------------------------------- */

/* Members [U][C] of all ranks, once each unit's own are sorted. */
void sh_distributed_use_members(distributed_call *run, const int32_t *members);

/* Finds whose the rows of the top keys are, own->row_starts; and lets the heads have
   them. */
void sh_distributed_count_rows(distributed_call *run);
int64_t sh_distributed_rows_of(const distributed_call *run, int p);
/* Of unit u's different top keys, how many lie before rank p's. */
int64_t sh_distributed_keys_before(const distributed_call *run, int64_t u, int p);
void sh_distributed_use_rows(distributed_call *run, const distributed_state *state);

shoal_status sh_distributed_failure(const distributed_call *run);

static inline int64_t distributed_units(const shoal_plan *plan) {
    return plan->problem.batch * plan->problem.heads;
}

/* U C: the groups of all units. */
static inline int64_t distributed_clusters(const shoal_plan *plan) {
    return sh_mul_checked(distributed_units(plan), plan->attention.clusters);
}

static inline int64_t distributed_row_size(const shoal_plan *plan) {
    return plan->problem.dim + plan->problem.value_dim;
}

/* full: keys and values go around (distributed_full.c). */
void sh_ring_place(shoal_plan *plan, block_layout *work);
shoal_status sh_ring_forward(const attention_call *call, shoal_status status);
shoal_status sh_ring_backward(const attention_call *call, shoal_status status);

shoal_status sh_distributed_forward(const attention_call *call, shoal_status status);
shoal_status sh_distributed_backward(const attention_call *call, shoal_status status);

#endif
