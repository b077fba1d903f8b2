/* shoal-C: what forward and backward share.
 *
 * Legend: N queries i, S keys l, C groups j of queries, M key clusters m, r = rank,
 * D and Dv features, s_il = scale q_i . k_l and s_jl the score of group j's centroid c_j.
 *
 * Two coordinates of rank r stand for scores: d_i = scale P'(q_i - c_j) of a query and
 * z_l = Z'(k_l - centre) of a key, b_i = scale (q_i - c_j) . centre; so that s_il is
 * about s_jl + b_i + d_i . z_l. Members of a group that are alike make a block of `block`
 * queries, which has keys of its own, X, that are exact; so are the `near` positions on
 * either side of a query. Every other key has the centroid's score, tilted by one number
 * for its key cluster:
 *
 *     row of i = softmax of {s_il on X and near keys; s_jl + t_im elsewhere}
 *     t_im = b_i + d_i . (mean of z over the rest of m, weighted by e^s_jl)
 *
 * One head goes: groups -> centroids, coordinates of the queries, order in groups ->
 * coordinates of the keys and their clusters -> one pass of the centroids over the keys,
 * with sums for every key cluster and the pool of keys that blocks choose from -> block
 * by block: X, what is left of the sums, and a softmax over X and M more key-value
 * pairs.
 *
 * Keys may have a bias: it is part of s_il and of s_jl. A key that it hides is in no
 * cluster and no sample; it is not there, but for its place among near positions. */
#ifndef SHOAL_ATTENTION_SHOAL_KIND_H
#define SHOAL_ATTENTION_SHOAL_KIND_H

#include "attention/dense.h"
#include "cluster/grouping.h"
#include "cluster/halving.h"
#include "cluster/lloyd.h"
#include "cluster/metric.h"

/* What forward leaves for backward, of one head. */
typedef struct {
    int32_t *groups;       /* [N] */
    int32_t *order;        /* [N]: by group, and block after block */
    int32_t *key_clusters; /* [S], -1: hidden */
    float *projection;     /* [r + 1][D]: P', and the keys' centre */
    float *dual;           /* [r][D]: Z' */
    float *centroids;      /* [C][D] */
    float *top;            /* [C][M]: largest s_jl of the cluster */
    float *mass;           /* [C][M]: sum of e^(s_jl - top) */
    float *sums;           /* [C][M][Dv + r]: the same of e^(..) (v_l, z_l) */
    int32_t *pools;        /* [C][p]: keys */
    int32_t *pool_counts;  /* [C] */
    uint16_t *exact;       /* [blocks][k]: X, as places in the group's pool */
    /* Plans with backward only: */
    float *log_sums; /* [N]: log of the softmax's sum */
    int32_t *live;   /* [3]: queries and keys that there were, and keys not hidden */
} tilted_state;

/* The sizes that a plan's arrays have, or the numbers that a sequence goes by, which are
   no larger. N, S and blocks are the arrays'. */
typedef struct {
    int64_t C, M, k, p, N, S;
    int64_t blocks; /* at most */
    int block, points, near;
    int each; /* members that a point is the mean of */
    int leaf; /* members that are alike enough to be in any order */
    int dim, value_dim, rank;
    int wide; /* Dv + r: values with coordinates beside them */
} tilted_sizes;

enum { TILTED_POINTS = 8 /* means that speak for a block, at most */ };
enum { TILTED_CHUNKS = 8 /* parts that key clusters are shared out in, at most */ };

/* Memory for one head at a time. */
typedef struct {
    tilted_sizes size; /* of the head at work */
    metric_work metric;
    lloyd_work query_means, key_means; /* over each other: one after the other is used */
    grouping sorted;                   /* its order is the state's */
    grouping keys;
    int32_t *block_offsets; /* [C + 1]: blocks of group j */
    float *coordinates;     /* [max(N, S)][r]: of queries, then of keys */
    float *variances;       /* [C][r]: of the members' d */
    float *stretch;         /* [r][r]: root mean square of d, on the diagonal */
    float *plain;           /* [M][r]: mean of z */
    float *shift;           /* [r]: -Z'(centre) */
    int32_t chunk_clusters[TILTED_CHUNKS + 1];
    int chunks;
    uint64_t *part_keys;  /* [chunks][C][p] candidates */
    int32_t *part_counts; /* [chunks][C] */
    tilted_state state;   /* plans without backward: of the head at work, no more */
    /* Backward: */
    float *grad_sums;      /* [C][M][Dv + r] */
    float *grad_mass;      /* [C][M] */
    float *grad_plain;     /* [M][r] */
    float *grad_centroids; /* [C][D] */
    atomic_int *turn, *turns;
} tilted_slot;

/* Memory for one thread. */
typedef struct {
    dense_scratch *dense; /* for values of Dv + r features */
    halving_work halving;
    float *ordered_rows; /* [HALVING_MOST at most][r]: d of members */
    lloyd_thread lloyd;
    /* One block of keys of a cluster: */
    float *key_rows;     /* [KEY_BLOCK][D] */
    float *key_bias;     /* [KEY_BLOCK] */
    float *wide_rows;    /* [KEY_BLOCK][Dv + r] */
    float *half_squares; /* [KEY_BLOCK][r]: of z */
    float *variances;    /* [panels][r][panel] */
    float *expected;     /* [KEY_BLOCK][panel]: what the pool is chosen by */
    uint64_t *candidates;
    int32_t *counts;
    float *floor;
    /* The pool of a group: */
    float *pool_panels;   /* [panels of p][r][panel] */
    float *pool_scores;   /* [p]: s_jl */
    float *pool_residual; /* [p] */
    float *shares;        /* [points][panels of p][panel] */
    float *ranked;        /* [p]: how much its key would be missed */
    float *group_logs;    /* [M]: log of the clusters' sums */
    float *group_shift;   /* [r + 1]: projection of the centroid */
    /* One block of members: */
    int32_t *keys;           /* [k]: X */
    float *exact_bias;       /* [k]: its keys' */
    uint64_t *is_exact;      /* [S bits]: X */
    float *rest;             /* [M][Dv + r]: mean of what is left of the clusters */
    int32_t *exact_clusters; /* [k] */
    float *exact_scores, *exact_weights; /* [k]: s_jl and -e^(s_jl - top) */
    float *exact_tops;                   /* [3][k] */
    float *left_mass;    /* [M]: sum of what is left of a cluster; 0: nothing */
    float *strain;       /* [M]: by how much more it was */
    int32_t *left;       /* [M]: keys */
    uint8_t *weighted;   /* [M]: the z mean is weighted, not plain */
    float *logs;         /* [M]: log of the sum */
    float *scores;       /* [k + M + 2 near + 1][panel] */
    float *hidden;       /* [2 near + 1][panel]: what near keys have in the rest */
    float *unused;       /* [2 near + 1][panel] */
    float *tilts;        /* [M][panel]: t */
    float *shift;        /* [r + 1][panel]: d and b */
    float *shift_rows;   /* [block][r]: d */
    float *point_rows;   /* [points][r] */
    float *point_panel;  /* [r][panel] */
    float *point_scores; /* [M][panel] */
    float *near_weights; /* [2 near + 1] */
    /* Queries whose rest was lost by subtraction: */
    float *direct_scores; /* [max(KEY_BLOCK, p, k, M)], of some keys */
    int32_t *direct_keys; /* the same */
    int32_t *hidden_keys; /* [2 near + 1] */
    int has_direct;       /* what follows is of the group at work */
    uint64_t *is_pooled;  /* [S bits] */
    float *pool_direct;   /* [p]: c_j . k_l */
    float *tail_logs;     /* [M]: log of the sum over keys outside the pool */
    float *tails;         /* [M][Dv]: their mean */
    float *direct_weights, *direct_slopes; /* [KEY_BLOCK]; backward */
    uint8_t *direct_exact;                 /* the same */
    float *row;                            /* [max(D, Dv + r)] */
    /* Backward: */
    float *slopes;                 /* as scores */
    float *member_q, *member_dout; /* [panel][D], [panel][Dv] */
    float *grad_exact_keys;        /* [k][D] */
    float *grad_values;            /* [k + M][Dv + r] */
    float *grad_exact_bias;        /* [k] */
    float *grad_scores;            /* [k][r + 1]: of z and of s_jl */
    float *grad_rows;              /* [r + 1][D]: Z' and scale c_j */
    float *grad_shift;             /* [r + 1][panel] */
    float *block_mass;             /* [M] */
    float *grad_centroid;          /* [D] */
    float *key_grads;              /* [KEY_BLOCK][D] */
    float *bias_grads;             /* [KEY_BLOCK] */
    float *wide_grads;             /* [KEY_BLOCK][Dv + r] */
} tilted_thread;

typedef struct {
    tilted_sizes size;
    tilted_slot *slots;
    tilted_thread *threads;
    dense_scratch *dense; /* [threads] */
    lloyd_thread *lloyd;  /* [threads] */
} tilted_work;

/* One head on its way through forward or backward. */
typedef struct {
    const attention_call *call;
    const tilted_work *work;
    const tilted_sizes *size;
    const kernel_table *run;
    tilted_slot *slot;
    tilted_state state;
    head_view view;
    score_masks masks; /* where keys have a bias */
    int64_t seen;      /* keys that are not hidden */
    float scale;
    row_view out;
    row_view dout, dq, dk, dv; /* backward */
} tilted_head;

tilted_head sh_tilted_head_of(const attention_call *call, int64_t b, int64_t h, int slot);

/* Numbers the blocks, once the groups are counted. */
void sh_tilted_count_blocks(tilted_head *head);

/* Cuts key clusters into chunks, once they are sorted. */
void sh_tilted_cut_keys(tilted_head *head);

/* Coordinates z of all keys, and the clusters' plain means, once groups and key clusters
   are there. */
void sh_tilted_find_coordinates(tilted_head *head, team workers);
void sh_tilted_find_plain(tilted_head *head);

/* Rows of keys first .. first + count - 1 of the clusters' order, one below the other. */
void sh_tilted_gather_keys(const tilted_head *head, int64_t first, int count,
                           tilted_thread *own);

/* ---- Members (tilted_blocks.c) ----------------------------------------------------- */

/* The pool of group j, and for every block of it X and the outputs. */
void sh_tilted_attend_group(const tilted_head *head, int64_t j, tilted_thread *own);

/* What the blocks of group j need to be told apart: its centroid's projection. */
void sh_tilted_load_group(const tilted_head *head, int64_t j, tilted_thread *own);

/* Loads X of block b of group j, and makes one more key-value pair of what is left of
   every key cluster. Returns how many keys X has; sh_tilted_leave_block ends it. */
int sh_tilted_load_block(const tilted_head *head, int64_t j, int64_t b,
                         tilted_thread *own);
void sh_tilted_leave_block(int count, tilted_thread *own);

/* Packs members first .. of the order as panel 0, with d and b. */
query_panel *sh_tilted_load_members(const tilted_head *head, int64_t first, int64_t last,
                                    tilted_thread *own);

/* Their scores of X (count), of the clusters' rests, and of near keys; and what near keys
   have in the rest. Returns how many rows of scores there are. */
int sh_tilted_score_members(const tilted_head *head, int64_t j, int count,
                            const query_panel *panel, tilted_thread *own);

static inline float tilted_bias(const tilted_head *head, int64_t l) {
    return head->masks.key_bias ? head->masks.key_bias[l * head->masks.key_bias_step] : 0;
}

/* Keys near query i: first .. last - 1. */
static inline int64_t tilted_near_first(const tilted_head *head, int64_t i) {
    return min(max(0, i - head->size->near), head->view.keys);
}

static inline int64_t tilted_near_last(const tilted_head *head, int64_t i) {
    return min(i + head->size->near + 1, head->view.keys);
}

/* Rows of near keys; 0 where there are none: a group of one is exact without. */
static inline int tilted_near_rows(const tilted_head *head, int64_t j) {
    const int32_t *offsets = head->slot->sorted.offsets;
    return head->size->near > 0 && offsets[j + 1] - offsets[j] > 1
               ? 2 * head->size->near + 1
               : 0;
}

static inline int bit_of(const uint64_t *bits, int64_t l) {
    return bits[l / 64] >> (l % 64) & 1;
}

static inline int tilted_is_exact(const tilted_thread *own, int64_t l) {
    return bit_of(own->is_exact, l);
}

/* What is left of the clusters' sums was found by subtraction, to a rounding error of the
   whole sums. A query for which those weigh more than this beside its softmax's sum is
   computed without subtraction instead. Hardly any is, unless scores are sharp. */
enum { TILTED_STRAIN = 32 };

head_function sh_tilted_forward, sh_tilted_backward;

#endif
