/* clustered-C, i-clustered-C and shoal-C.
 *
 * Legend: N queries, S keys, C clusters, k top keys, D and Dv features.
 *
 * One head goes: groups (hash and Hamming k-means, or the keys' metric and Euclidean
 * k-means) -> sort by group -> centroids -> softmax of the
 * centroids over all keys, streaming, with the best k keys of each -> for i-clustered the
 * top part, exact per query, on queries sorted by group -> out. */
#ifndef SHOAL_ATTENTION_CLUSTERED_H
#define SHOAL_ATTENTION_CLUSTERED_H

#include "attention/dense.h"
#include "cluster/grouping.h"
#include "cluster/kmeans.h"
#include "cluster/lloyd.h"
#include "cluster/metric.h"

/* What forward leaves for backward and for the caller to see; first index the head. */
typedef struct {
    int32_t *groups;      /* [N] */
    int32_t *top_keys;    /* [C][k], best first, -1 where there are fewer; a group of one
                              member has none */
    float *centroids;     /* [C][D] */
    float *shared;        /* [C][Dv]: the output that a group's members share: all of it,
                              or what lies outside the top keys */
    float *top, *inverse; /* [C]: of the centroids' softmax */
    float *mass; /* [C]: weight of the top keys in it; 0 marks a group whose shared,
                              top and inverse are those of its other keys alone
                              (clustered_rest.c) */
} clustered_state;

/* Memory for one head at a time. */
typedef struct {
    hash_array hashes; /* groups=hash */
    kmeans_work kmeans;
    metric_work metric; /* groups=keys */
    lloyd_work lloyd;
    grouping sorted;
    clustered_state softmax; /* plans without backward: of the head at work, no more */
    /* The centroids' softmax over each chunk of keys, before they are merged: */
    float *part_top, *part_sum; /* [chunks][C] */
    float *part_values;         /* [chunks][C][Dv] */
    uint64_t *part_keys;        /* [chunks][C][k] candidates */
    int32_t *part_counts;       /* [chunks][C] */
    atomic_int
        *strained; /* [C]: normaliser=query, groups whose other keys are summed again */
    /* Backward: */
    float *grad_shared;    /* [C][Dv]: sum of the members' output gradients */
    float *grad_centroids; /* [C][D] */
    float *delta;          /* [C] */
    atomic_int *turns;     /* [panel runs] */
    atomic_int *scatter_turn;
} clustered_slot;

/* Memory for one thread. */
typedef struct {
    dense_scratch *dense; /* one of work->dense */
    float *projections;   /* [bits][panel] */
    /* Lists of candidates, one per lane of every panel: */
    uint64_t *candidates; /* [PANELS][panel][capacity] */
    int32_t *counts;      /* [PANELS][panel] */
    float *floor;         /* [PANELS][panel] */
    /* The top part of one group: */
    float *top_k, *top_v; /* [k][D], [k][Dv]: the top keys' rows */
    float *weights;       /* [k][panel] */
    /* Backward: */
    float *scores, *slopes;         /* [k][panel] */
    float *member_q, *member_dout;  /* [panel][D], [panel][Dv] */
    float *grad_top_k, *grad_top_v; /* [k][D], [k][Dv] */
} clustered_thread;

typedef struct {
    int improved;      /* the kind has top keys */
    int by_keys;       /* groups=keys */
    int per_query;     /* normaliser=query */
    int32_t topk;      /* k, at most the number of keys */
    int64_t capacity;  /* of a candidate list */
    float *directions; /* [bits][D] */
    clustered_slot *slots;
    clustered_thread *threads;
    dense_scratch *dense;  /* [threads] */
    kmeans_tally *tallies; /* [threads] */
    lloyd_thread *lloyd;   /* [threads] */
} clustered_work;

/* One head on its way through forward or backward. */
typedef struct {
    const attention_call *call;
    const clustered_work *work;
    clustered_slot *slot;
    clustered_state state; /* of this head */
    head_view view;
    dense_keys keys;
    row_view out;
    row_view dout, dq; /* backward */
    row_view dk, dv;
    int64_t chunk_keys;  /* keys of a chunk */
    int64_t task_panels; /* panels of centroids in one task */
} clustered_head;

clustered_head sh_clustered_head_of(const attention_call *call, int64_t b, int64_t h,
                                    int slot);

/* A group of one member: its centroid is the query, whose softmax over all keys is exact
   already. It has no top keys, whatever the kind. */
static inline int clustered_is_alone(const clustered_head *head, int64_t j) {
    const int32_t *offsets = head->slot->sorted.offsets;
    return offsets[j + 1] - offsets[j] == 1;
}

/* The caller's groups, or one for every query where there are enough, or found; sorted. */
void sh_clustered_find_groups(clustered_head *head, team workers);

/* Sees blocks of scores of one panel of centroids: keeps the candidates, and cuts lists
   before they are full. */
typedef struct {
    const clustered_work *work;
    const kernel_table *kernels;
    /* Of the panel's lanes: */
    uint64_t *candidates; /* [width][capacity] */
    int32_t *counts;
    float *floor;
} candidate_seer;
candidate_seer sh_clustered_seer(const clustered_head *head, clustered_thread *own,
                                 int panel);
void sh_clustered_see(void *seer, const query_panel *panel, float *scores, int count,
                      int64_t first);
void sh_clustered_start_panel(const clustered_head *head, query_panel *panel,
                              const candidate_seer *seer);

/* Copies rows named by keys (best first, ending at k or the first -1) one below the other;
   returns how many. */
int sh_clustered_gather(row_view from, const int32_t *keys, int k, int dim, float *to);

/* The softmax over the top keys of group j begins with nothing, or, where each query has
   its own normaliser, with the group's other keys: how much weight they have. */
float sh_clustered_start_top(const clustered_head *head, int64_t j, query_panel *panel);

/* The other keys of group j summed on their own, instead of by what the top keys leave of
   the whole: needed where hardly anything is left and a member leans on it. */
void sh_clustered_sum_rest(const clustered_head *head, int64_t j, clustered_thread *own);
int sh_clustered_rest_is_summed(const clustered_head *head, int64_t j);

/* Backward of such a group's other keys: what every member gives the shared part is in
   slot->grad_shared, and delta is the softmax's. Adds to dk and dv: on the group's turn. */
void sh_clustered_rest_backward(const clustered_head *head, int64_t j, float delta,
                                clustered_thread *own);

/* Writes the members' rows of out. */
void sh_clustered_outputs(clustered_head *head, team workers);

void sh_clustered_backward(const attention_call *call);

/* Finds the groups of all heads, leaves them in the state, and compares what `samples`
   queries of each head would get with what they should: squares[h][t] is the squared error
   with topks[t] top keys (increasing, at most the plan's), squares[h][count] the squared
   length of the exact outputs, both scaled to all queries of the head. */
typedef struct {
    const attention_call *call;
    int samples, count;
    const int32_t *topks; /* [count] */
    double *squares;      /* [batch * heads][count + 1] */
} clustered_trial;
void sh_clustered_try(clustered_trial *trial);

/* Uses fewer top keys than the plan has room for, from the next forward on. */
void sh_clustered_use_topk(shoal_plan *plan, int32_t topk);

#endif
