/* shoal-C: what its files share.
 *
 * Legend: N queries i, S keys l, C clusters j of queries, M key clusters m, r projection
 * dimensions, D and Dv features; s_il = scale q_i . k_l, and s_jl is the score of the
 * centroid c_j of cluster j.
 *
 * Coordinates of r dimensions stand for scores: d_i = scale P'(q_i - c_j) of a query and
 * z_l = Z'(k_l - centre) of a key, and b_i = scale (q_i - c_j) . centre; so that s_il is
 * about s_jl + b_i + d_i . z_l. Members of a cluster that are alike make a block of
 * `block` queries, which has keys of its own, X, that are exact; so are the `near`
 * positions on either side of a query. Every other key has the centroid's score plus a
 * tilt, one number for the query and the key's cluster:
 *
 *     row of i = softmax of {s_il on X and near keys; s_jl + t_im + log(1 + u_im)
 *                            elsewhere}
 *     t_im = b_i + d_i . (mean of z over the rest of m, weighted by e^s_jl)
 *     u_im = sum over r of d_i^2 var_m / 2      second order of the tilt
 *
 * and the values of the keys that are not exact follow the query to first order: out_i
 * has the dipole a_i d_i'J_j besides, a_i = sum over m of e^(t_im) of the rest of m.
 * Both terms leave out an m whose rest has hardly any weight for the centroid. The
 * variances var_m of z and the covariances Cov_m of z with v are of all keys of m, by
 * weights omega = e^(s_l / 2 + bias) of the mean query's scores s; J_j mixes Cov_m by
 * what m holds of the keys that are probably not exact for the centroid, sigma_jm. The
 * second form (form=2) has neither u nor the dipole.
 *
 * The stages of a head, each with its memory beside its code:
 *
 *     clusters   shoal.c           P and Z; clusters of queries, their centroids, members
 *                                  in an order in which alike ones follow each other;
 *                                  coordinates of the keys, key clusters
 *     sums       shoal.c           one pass of the centroids over the keys: sums of
 *                                  e^s_jl (1, v_l, z_l) over every key cluster, and
 *                                  candidates for the pool
 *     pool       shoal_blocks.c    the keys that the blocks of a cluster choose from
 *     block      shoal_blocks.c    X, and what it leaves of the sums: M key-value pairs
 *     members    shoal_blocks.c    a panel of a block's queries: softmax over X, the
 *                                  pairs and near keys
 *     lost sums  shoal_blocks.c    queries for which too little was left of the sums
 *     moments    shoal_moments.c   var, Cov and J, and their gradients
 *     backward   shoal_backward.c
 *
 * Keys may have a bias: it is part of s_il and of s_jl. A key that it hides is in no
 * cluster and no sample; it is not there, but for its place among near positions. */
#ifndef SHOAL_ATTENTION_SHOAL_KIND_H
#define SHOAL_ATTENTION_SHOAL_KIND_H

#include "attention/dense.h"
#include "cluster/grouping.h"
#include "cluster/lloyd.h"

/* The sizes that a plan's arrays have, or the numbers that a sequence goes by, which are
   no larger. N, S and blocks are the arrays'. */
typedef struct {
    int64_t C, M, N, S;
    int64_t k;       /* keys of X */
    int64_t k_of[3]; /* k by the concentration of attention (sh_shoal_topk) */
    int64_t p;       /* keys of a pool */
    int64_t blocks;  /* at most */
    int block, points, near;
    int each; /* members that a point is the mean of */
    int leaf; /* members that are alike enough to be in any order */
    int dim, value_dim;
    int dims; /* r */
    int wide; /* Dv + r: values with coordinates beside them */
} shoal_sizes;

enum { SHOAL_POINTS = 8 /* means that speak for a block, at most */ };
enum { SHOAL_CHUNKS = 8 /* parts that key clusters are shared out in, at most */ };

typedef struct shoal_work shoal_work;

/* One head of one sequence: the problem, which no stage changes. */
typedef struct {
    const attention_call *call;
    const shoal_work *work; /* where tasks find their thread's scratch */
    const kernel_table *kernels;
    shoal_sizes size;
    head_view view;
    score_masks masks; /* where keys have a bias */
    int64_t seen;      /* keys that are not hidden */
    float scale;
    int has_moments; /* the third form, unless every query is a cluster */
} shoal_head;

static inline float key_bias_of(const shoal_head *head, int64_t l) {
    return head->masks.key_bias ? head->masks.key_bias[l * head->masks.key_bias_step] : 0;
}

/* Keys near query i: first .. last - 1. */
static inline int64_t near_first(const shoal_head *head, int64_t i) {
    return min(max(0, i - head->size.near), head->view.keys);
}

static inline int64_t near_last(const shoal_head *head, int64_t i) {
    return min(i + head->size.near + 1, head->view.keys);
}

static inline int bit_of(const uint64_t *bits, int64_t l) {
    return bits[l / 64] >> (l % 64) & 1;
}

static inline void add_scaled(float *restrict to, float factor,
                              const float *restrict from, int n) {
    for (int d = 0; d < n; d++)
        to[d] += factor * from[d];
}

/* Starts a softmax over values of `features` features. */
static inline void start_softmax(query_panel *panel, int features) {
    memset(panel->outputs, 0, sizeof(float) * (size_t)(features * panel->width));
    for (int i = 0; i < panel->width; i++) {
        panel->largest[i] = LOWEST_SCORE;
        panel->sum[i] = 0;
    }
}

/* What stages keep for backward lies in the state, [heads] of each array; in plans
   without backward it lies in the slot, of one head. */
typedef struct {
    block_layout *layout;
    int64_t heads, at; /* how many heads, and which of them */
    int with_backward;
} shoal_keep;

/* The head's part of an array with `count` elements for each. */
static inline void *keep_part(const shoal_keep *keep, int64_t count, size_t element) {
    char *all = sh_reserve(keep->layout, sh_mul_checked(keep->heads, count), element);
    return all ? all + (size_t)(keep->at * count) * element : NULL;
}

/* ---- Clusters (shoal.c) ------------------------------------------------------------ */

typedef struct {
    /* Kept: */
    int32_t *of_queries; /* [N], -1 in the padding */
    int32_t *of_keys;    /* [S], -1: hidden */
    float *projection;   /* [r + 1][D]: P', and the keys' centre */
    float *dual;         /* [r][D]: Z' */
    float *centroids;    /* [C][D] */
    int32_t *live;    /* [4], plans with backward: queries and keys that there were, keys
                            not hidden, and keys of X */
    grouping queries; /* its order is kept: by cluster, and block after block */
    /* Backward finds these again: */
    grouping keys;
    int32_t *block_offsets; /* [C + 1]: blocks of cluster j */
    float *centroid_shift;  /* [C][r + 1]: scale (P'c_j, c_j . centre) */
    float *coordinates;     /* [max(N, S)][r]: P'q_i of the queries, then z of the keys */
    float *plain;           /* [M][r]: mean of z */
    int32_t chunk_clusters[SHOAL_CHUNKS + 1];
    int chunks;
    /* Forward: */
    float *variances; /* [C][r]: of the members' d */
    metric_work metric;
    lloyd_work query_means, key_means; /* over each other: one after the other is used */
    float *stretch; /* [r][r]: root mean square of d, on the diagonal */
    float *shift;   /* [r]: -Z'(centre) */
} shoal_clusters;

/* In backward: what was not kept. */
void sh_shoal_restore_clusters(const shoal_head *head, shoal_clusters *clusters,
                               team workers);

/* ---- Sums (shoal.c) ---------------------------------------------------------------- */

typedef struct {
    /* Kept: */
    float *top;    /* [C][M]: largest s_jl of the cluster */
    float *mass;   /* [C][M]: sum of e^(s_jl - top) */
    float *wide;   /* [C][M][Dv + r]: the same of e^(..) (v_l, z_l) */
    float *shares; /* [C][M]: sigma, third form */
    /* Candidates for the pool, from each chunk of key clusters: */
    uint64_t *candidates; /* [C][SHOAL_CHUNKS][p] */
    int32_t *counts;      /* [C][SHOAL_CHUNKS] */
    float *concentration; /* [C]: what the largest weights of the centroid sum to */
} shoal_sums;

/* Some keys of a cluster, one below the other. */
typedef struct {
    float *rows; /* [KEY_BLOCK][D] */
    float *bias; /* [KEY_BLOCK] */
    float *wide; /* [KEY_BLOCK][Dv + r]: v_l and z_l */
} key_block;

/* Keys first .. first + count - 1 of the clusters' order, in the thread's scratch. */
const key_block *sh_shoal_gather_keys(const shoal_head *head,
                                      const shoal_clusters *clusters, int64_t first,
                                      int count, int thread);

typedef struct cluster_thread cluster_thread;

/* ---- Moments (shoal_moments.c) ----------------------------------------------------- */

/* Of the key clusters, found in forward and again in backward. */
typedef struct {
    float *query;     /* [D]: the mean query */
    float *top;       /* [M]: largest log of omega */
    float *mass;      /* [M]: sum of omega e^-top */
    float *means;     /* [M][Dv + r]: of v and z */
    float *variances; /* [M][r] */
    float *cov;       /* [M][r][Dv] */
    float *dipoles;   /* [C][r][Dv]: J */
} shoal_moments;

void sh_shoal_place_moments(shoal_moments *moments, const shoal_sizes *size,
                            block_layout *work);
/* Scratch of moments, [threads]. */
typedef struct moment_thread moment_thread;
void sh_shoal_place_moment_threads(shoal_work *own, const shoal_plan *plan,
                                   block_layout *work);

/* All but J. */
void sh_shoal_find_moments(const shoal_head *head, const shoal_clusters *clusters,
                           const shoal_moments *moments, team workers);

/* J of cluster j, from its shares [M]. */
void sh_shoal_find_dipole(const shoal_head *head, const shoal_moments *moments,
                          const float *shares, int64_t j);

/* ---- Blocks (shoal_blocks.c) ------------------------------------------------------- */

/* Kept. */
typedef struct {
    int32_t *pools;       /* [C][p]: keys */
    int32_t *pool_counts; /* [C] */
    uint16_t *exact;      /* [blocks][k]: X, as places in the cluster's pool */
    float *log_sums;      /* [N], plans with backward: log of the softmax's sum */
} shoal_choices;

void sh_shoal_keep_choices(shoal_choices *choices, const shoal_sizes *size,
                           const shoal_keep *keep);

/* The pools of all clusters, and how concentrated the centroids' attention is. */
void sh_shoal_find_pools(const shoal_head *head, const shoal_clusters *clusters,
                         const shoal_sums *sums, const shoal_choices *choices,
                         team workers);

/* Keys of X that suit this concentration. */
int64_t sh_shoal_topk(const shoal_head *head, const shoal_clusters *clusters,
                      const shoal_sums *sums);

/* Exact keys and outputs. */
void sh_shoal_attend_blocks(const shoal_head *head, const shoal_clusters *clusters,
                            const shoal_sums *sums, const shoal_moments *moments,
                            const shoal_choices *choices, row_view out, team workers);

/* One block: its exact keys X, and what they leave of every key cluster. */
typedef struct {
    _Alignas(CACHE_LINE) int64_t j; /* its cluster */
    int count;                      /* keys of X */
    int32_t *keys;                  /* [k]: X */
    int32_t *clusters;              /* [k]: theirs */
    float *bias;                    /* [k] */
    uint64_t *is_exact;             /* [S bits]: X */
    float *centroid;                /* [D]: scale c_j */
    float *panel;                   /* [D][panel]: keys of X */
    float *scores, *weights;        /* [k]: s_jl and -e^(s_jl - top) */
    float *tops;                    /* [3][k] */
    float *rest;       /* [M][Dv + r]: mean of what is left of the clusters */
    float *left_mass;  /* [M]: sum of it; 0: nothing is left */
    float *strain;     /* [M]: by how much more it was */
    int32_t *left;     /* [M]: keys */
    uint8_t *weighted; /* [M]: the z mean is weighted, not plain */
    float *logs;       /* [M]: log of the sum */
    float *means;      /* [M][r]: of z, summed directly, */
    uint8_t *has_mean; /* [M]: where it was (sh_shoal_direct_tilts) */
} shoal_block;

/* Loads block b, of cluster j, whose exact keys were chosen; leave_block ends it. */
void sh_shoal_load_block(const shoal_head *head, const shoal_clusters *clusters,
                         const shoal_sums *sums, const shoal_choices *choices, int64_t j,
                         int64_t b, shoal_block *block);
void sh_shoal_leave_block(shoal_block *block);

/* One panel of a block's members. Rows of scores are X, key clusters, near keys. */
typedef struct {
    _Alignas(CACHE_LINE) dense_scratch *dense;
    query_panel *panel;     /* dense->panels[0] */
    shoal_block *block;     /* theirs */
    const int32_t *queries; /* [panel->count] */
    int near;               /* rows of near keys */
    float *d;               /* [r + 1][panel]: d and b */
    float *d_rows;          /* [block][r]: d */
    float *tilts;           /* [M][panel]: t */
    float *squares;         /* [r][panel]: d^2 / 2 */
    float *bends;           /* [M][panel]: u */
    float *scores;          /* [k + M + 2 near + 1][panel] */
    float *hidden;          /* [2 near + 1][panel]: what near keys have in the rest */
    float *hidden_bends;    /* the same: u of their clusters */
    float *hidden_slopes;   /* the same; forward has nothing to keep there */
    float *near_weights;    /* [2 near + 1], of one query */
    float *row;             /* [max(D, Dv + r)] */
} shoal_members;

/* Members first .. of the order, up to a panel of them, with d and b. */
void sh_shoal_load_members(const shoal_head *head, const shoal_clusters *clusters,
                           int64_t j, int64_t first, int64_t last,
                           shoal_members *members);

/* Their scores, and what near keys have in the rest. Returns how many rows there are. */
int sh_shoal_score_members(const shoal_head *head, const shoal_clusters *clusters,
                           const shoal_moments *moments, const shoal_members *members);

/* What is left of the clusters' sums was found by subtraction, to a rounding error of the
   whole sums. A query for which those weigh more than this beside its softmax's sum is
   computed without subtraction instead, and so are its tilts. Hardly any is, unless
   scores are sharp. */
enum { SHOAL_STRAIN = 12 };
void sh_shoal_direct_tilts(const shoal_head *head, const shoal_clusters *clusters,
                           const shoal_members *members, int lane);

typedef struct shoal_pool shoal_pool;
typedef struct lost_sums lost_sums;
void sh_shoal_place_block_threads(shoal_work *own, const shoal_plan *plan,
                                  block_layout *work);

/* ---- Backward (shoal_backward.c) --------------------------------------------------- */

/* Of one head: what its blocks add up for the pass of the centroids. */
typedef struct {
    float *sums;      /* [C][M][Dv + r]: G and Q */
    float *mass;      /* [C][M]: gamma */
    float *plain;     /* [M][r] */
    float *centroids; /* [C][D] */
    float *dipoles;   /* [C][r][Dv]: of J */
    float *variances; /* [M][r] */
    float *query;     /* [M][D]: of the mean query, by key cluster */
    atomic_int *turn, *turns;
} head_gradients;

void sh_shoal_place_gradients(head_gradients *gradients, const shoal_plan *plan,
                              const shoal_sizes *size, block_layout *work);

typedef struct backward_thread backward_thread;
void sh_shoal_place_backward_threads(shoal_work *own, const shoal_plan *plan,
                                     block_layout *work);
head_function sh_shoal_backward;

/* From the gradients of J and of the variances to the keys', the values' and the
   centroids'. */
void sh_shoal_moments_backward(const shoal_head *head, const shoal_clusters *clusters,
                               const shoal_sums *sums, const shoal_moments *moments,
                               const head_gradients *gradients, row_view dk, row_view dv,
                               team workers);

/* ---- Plans and heads (shoal.c) ----------------------------------------------------- */

/* Memory for one head at a time. */
typedef struct {
    shoal_clusters clusters;
    shoal_sums sums;
    shoal_moments moments;
    shoal_choices choices;
    head_gradients gradients; /* plans with backward */
} shoal_slot;

struct shoal_work {
    shoal_sizes size;
    shoal_slot *slots;
    /* Scratch, [threads] of each. A type that is not complete here is one file's. */
    dense_scratch *dense; /* for values of Dv + r features */
    lloyd_thread *lloyd;
    cluster_thread *clusters;
    shoal_pool *pools;
    shoal_block *blocks;
    shoal_members *members;
    lost_sums *lost;
    moment_thread *moments;
    backward_thread *backward;
};

/* Head h of sequence b; what the slot keeps of it is bound to the call's state. */
shoal_head sh_shoal_head_of(const attention_call *call, int64_t b, int64_t h,
                            shoal_slot *slot);

#endif
