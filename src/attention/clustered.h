/* clustered-C, i-clustered-C and q-clustered-C: what forward and backward share.
 *
 * Legend: N queries, S keys, C clusters, k top keys, D and Dv features.
 *
 * One head goes: groups (hash and Hamming k-means, or the keys' metric and Euclidean
 * k-means) -> sort by group -> centroids -> softmax of the centroids over all keys,
 * streaming, with the best k keys of each -> for kinds with top keys their part, exact
 * per query, on queries sorted by group -> out. */
#ifndef SHOAL_ATTENTION_CLUSTERED_H
#define SHOAL_ATTENTION_CLUSTERED_H

#include "attention/dense.h"
#include "cluster/grouping.h"
#include "cluster/kmeans.h"
#include "cluster/lloyd.h"

/* What forward leaves for backward and for the caller to see; first index the head. */
typedef struct {
    int32_t *groups;          /* [N] */
    int32_t *top_keys;        /* [C][k], best first, -1 where there are fewer; a group of
                                 one member has none */
    float *centroids;         /* [C][D] */
    float *shared;            /* [C][Dv]: the output that a group's members share: all of
                                 it, or the part of the keys outside the top keys */
    float *largest, *inverse; /* [C]: score and sum of the centroids' softmax */
    float *mass;              /* [C]: weight of the top keys in that softmax */
    uint8_t *others_alone;    /* [C], normaliser=query: 1 where shared, largest and
                                 inverse are of a softmax over the other keys alone */
} clustered_state;

/* The centroids' softmax over parts of the keys, to be merged. */
typedef struct {
    int64_t count, clusters; /* how many parts, G clusters in each */
    float *largest, *sum;    /* [parts][G] */
    float *values;           /* [parts][G][Dv], not divided by the sum */
    uint64_t *keys;          /* [parts][G][k]: candidates */
    int32_t *counts;         /* [parts][G] */
    atomic_int *floors; /* [parts][G]: float_order of a score that k of the part's keys,
                           once it is done, are at least */
} softmax_parts;

/* Memory for one head at a time. */
typedef struct {
    hash_array hashes; /* groups=hash */
    kmeans_work kmeans;
    metric_work metric; /* groups=keys */
    lloyd_work lloyd;
    grouping sorted;
    int32_t *members;        /* [C]: of each group, wherever they are */
    double *sums;            /* [C][D]: of the members' queries */
    clustered_state softmax; /* plans without backward: of the head at work, no more */
    softmax_parts parts;     /* of the chunks of keys; the first, of all together */
    atomic_int *cancelled;   /* [C], normaliser=query: see find_cancellation */
    /* Backward: */
    float *grad_shared;                   /* [C][Dv]: sum of the members' gradients */
    float *grad_centroids;                /* [C][D] */
    float *delta;                         /* [C] */
    float *dense_largest, *dense_inverse; /* [C]: the softmax that the dense pass sees */
    atomic_int *turns;                    /* [panel runs] */
    atomic_int *scatter_turn;
} clustered_slot;

/* Memory for one thread. */
typedef struct {
    dense_scratch *dense; /* one of work->dense */
    float *projections;   /* [bits][panel] */
    /* Lists of candidates, one per lane of every panel: */
    uint64_t *candidates; /* [PANELS][topk_size] */
    int32_t *counts;      /* [PANELS][panel] */
    float *floor;         /* [PANELS][panel] */
    /* The top keys of one group: */
    float *top_key_rows, *top_value_rows; /* [k][D], [k][Dv] */
    float *top_sum;                       /* [Dv]: their values, weighted */
    float *top_bias;                      /* [k], where keys have a bias */
    float *weights;                       /* [k][panel] */
    uint64_t *top_ascending;              /* [k + 1], normaliser=query: see top_walk */
    /* Backward: */
    float *scores, *slopes;                 /* [k][panel] */
    float *member_q, *member_dout;          /* [panel][D], [panel][Dv] */
    float *grad_top_keys, *grad_top_values; /* [k][D], [k][Dv] */
    float *grad_top_bias;                   /* [k] */
} clustered_thread;

typedef struct {
    int has_top;       /* the kind has top keys */
    int by_keys;       /* groups=keys */
    int per_query;     /* normaliser=query */
    int projected;     /* dimensions of the keys' metric, groups=keys */
    int32_t topk;      /* k, at most the number of keys */
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
    score_masks masks; /* keys.masks, where keys have a bias */
    int64_t seen;      /* keys that are not hidden, wherever they are */
    int64_t first_key; /* number of the first that is here: 0 unless others have some */
    /* Where the top keys' rows lie: rows top_places[C][k] of top_k and top_v. Those are
       the keys themselves unless some are others' (distributed.c). */
    const int32_t *top_places;
    row_view top_k, top_v;
    row_view dk, dv;     /* backward */
    int64_t chunk_keys;  /* keys of a chunk */
    int64_t task_panels; /* panels of centroids in one task */
} clustered_head;

clustered_head sh_clustered_head_of(const attention_call *call, head_view view, int slot);

/* Keys with a bias: keys.masks points into the head, which must not move any more. */
void sh_clustered_set_masks(clustered_head *head);

/* A group of one member: its centroid is the query, whose softmax over all keys is exact
   already. It has no top keys, whatever the kind. */
static inline int clustered_is_alone(const clustered_head *head, int64_t j) {
    return head->slot->members[j] == 1;
}

/* Every key is hidden from it: its members' outputs are 0. */
static inline int clustered_sees_nothing(const clustered_head *head, int64_t j) {
    return head->keys.masks && head->state.inverse[j] == 0;
}

/* ---- Forward and backward only ----------------------------------------------------- */

/* Copies the rows of group j's top keys and their values to the thread's; returns how
   many there are. */
int sh_clustered_gather_top(const clustered_head *head, int64_t j, clustered_thread *own);

/* Begins the members' softmax over the top keys of group j: with nothing, or, where each
   query has its own normaliser, with the group's other keys. Returns what a weight in the
   group's shared output is multiplied by to become one in this softmax; 0 where there are
   no other keys. */
float sh_clustered_start_top(const clustered_head *head, int64_t j, query_panel *panel);

/* The top keys of a group in increasing order, so that a walk over all keys can skip
   them; ends with a key that no head has. */
typedef struct {
    const uint64_t *next;
} top_walk;
top_walk sh_clustered_top_walk(const clustered_head *head, int64_t j,
                               clustered_thread *own);

/* Whether key l, greater than every one asked about before, is a top key. */
static inline int top_walk_has(top_walk *walk, int64_t l) {
    walk->next += *walk->next < (uint64_t)l;
    return *walk->next == (uint64_t)l;
}

/* ---- Steps of forward, in this order ---------------------------------------------- */

/* The queries' hashes. */
void sh_clustered_hash(clustered_head *head, team workers);

/* Sorts the members of the groups, and counts them. */
void sh_clustered_sort(clustered_head *head);

/* slot->sums of the members, and from them the centroids. */
void sh_clustered_sum(clustered_head *head, team workers);
void sh_clustered_centre(clustered_head *head);

/* The centroids over the keys: slot->parts. */
void sh_clustered_attend_keys(clustered_head *head, team workers);

void sh_clustered_place_parts(softmax_parts *parts, const shoal_plan *plan,
                              const clustered_work *own, int64_t groups, int64_t most,
                              block_layout *work);

/* Cluster j of all parts together becomes that of the first part. */
void sh_clustered_merge_cluster(const shoal_plan *plan, const softmax_parts *parts,
                                int64_t j, clustered_thread *own);
/* The same of all groups of slot->parts that have members. */
void sh_clustered_merge(clustered_head *head, team workers);

/* state.top_keys of what was merged. */
void sh_clustered_name_top(clustered_head *head, team workers);

/* What the groups share, and the outputs. */
void sh_clustered_share(clustered_head *head, team workers);
void sh_clustered_write(clustered_head *head, team workers);

/* normaliser=query: a group whose other keys are to be summed directly, after
   sh_clustered_write. Its part of their softmax, which is left in the thread's first
   panel; and, merged, what becomes of it: the members' outputs are written again. */
static inline int sh_clustered_is_cancelled(const clustered_head *head, int64_t j) {
    return atomic_load_explicit(&head->slot->cancelled[j], memory_order_relaxed);
}
void sh_clustered_others(const clustered_head *head, int64_t j, clustered_thread *own);
void sh_clustered_share_others(const clustered_head *head, int64_t j, float largest,
                               float sum, const float *values, clustered_thread *own);

/* ---- Steps of backward, where other ranks have members and keys too --------------- */

/* G_j in slot->grad_shared and dm_j in slot->delta, of the members that are here; what
   they give to the top keys' rows is added to head->dk and dv, by their places. */
void sh_clustered_backward_parts(clustered_head *head, team workers);

/* Once those are everybody's, and head->dk and dv the keys' own: what the dense pass
   needs, and what it gets wrong on top keys that are here. */
void sh_clustered_backward_correct(clustered_head *head);
void sh_clustered_backward_dense(clustered_head *head, team workers);

/* dq of the members gets its share of slot->grad_centroids. */
void sh_clustered_backward_members(clustered_head *head, team workers);

head_function sh_clustered_backward;

#endif
