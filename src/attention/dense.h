/* The dense part that every kind shares: panels of queries (or of centroids) against rows
   of keys, forward with a streaming softmax and backward by recomputing it. */
#ifndef SHOAL_ATTENTION_DENSE_H
#define SHOAL_ATTENTION_DENSE_H

#include "attention/attention.h"
#include "attention/heads.h"
#include "attention/masks.h"

enum { PANELS = 5 }; /* panels that pass over a block of keys before the next block */

/* One panel and the softmax it has streamed so far. */
typedef struct {
    int64_t first; /* its first query */
    int count, width;
    float *queries; /* [dim][width], times scale */
    float *outputs; /* [value_dim][width], not divided by the sum */
    float *largest; /* [width]: score so far */
    float *sum;     /* [width]: of exp(score - largest) */
    float *inverse; /* [width]: of the sum, once all keys have passed */
    float *keep;    /* [width]: what the last block left of those before it */
    float *rows;    /* [width][dim or value_dim], problems in half precision */
    /* Backward only: */
    float *grad_out; /* [value_dim][width] */
    float *grad_q;   /* [dim][width] */
    float *delta;    /* [width] */
} query_panel;

/* One thread's panels and blocks, on cache lines of its own. */
typedef struct {
    _Alignas(CACHE_LINE) query_panel panels[PANELS];
    float *scores;            /* [KEY_BLOCK][width] */
    float *slopes;            /* [KEY_BLOCK][width], backward only */
    float *block_k, *block_v; /* [KEY_BLOCK] rows, problems in half precision */
} dense_scratch;

/* Keys and values of one head as the dense part sees them. */
typedef struct {
    const kernel_table *kernels;
    row_view k, v;
    int64_t origin;    /* the key that k and v begin with */
    shoal_dtype dtype; /* of k and v, and of what is given and gotten with them */
    int dim, value_dim;
    float scale;
    const score_masks *masks; /* NULL: every query sees every key */
} dense_keys;

void sh_dense_place(dense_scratch *scratch, const shoal_plan *plan, block_layout *work);
/* One for each thread; NULL while measuring. */
dense_scratch *sh_dense_place_threads(const shoal_plan *plan, block_layout *work);

/* What backward needs of every query's softmax: NULL in plans without it, except where
   the softmax is put together from several processes' parts. */
typedef struct {
    float *largest, *inverse; /* [batch][heads][queries]: score, and inverse of the sum */
} softmax_state;
softmax_state sh_softmax_state_at(const shoal_plan *plan, block_layout *place);

dense_keys sh_dense_keys_of(const shoal_plan *plan, const head_view *view);

/* Queries that one run of PANELS panels covers. */
int64_t sh_dense_block(const kernel_table *kernels);

/* Keys first .. last - 1 in half precision as floats, in k [last - first][dim] and v
   [last - first][value_dim]. */
dense_keys sh_dense_widen(const dense_keys *keys, int64_t first, int64_t last, float *k,
                          float *v);

/* Cuts queries first .. last - 1 (at most dense_block of them) into panels; returns how
   many panels. */
int sh_dense_cut(dense_scratch *scratch, const kernel_table *kernels, int64_t first,
                 int64_t last);

/* Packs rows of x, and begins a softmax that has seen nothing. */
void sh_dense_start(const dense_keys *keys, query_panel *panel, row_view x);

/* Gets the scores [count][width] of keys first .. first + count - 1 before they become
   weights, and may change them. */
typedef void scores_callback(void *context, const query_panel *panel, float *scores,
                             int count, int64_t first);

/* Streams keys first .. last - 1 over one panel. on_scores may be NULL. */
void sh_dense_stream(const dense_keys *keys, int64_t first, int64_t last,
                     query_panel *panel, float *scores, scores_callback *on_scores,
                     void *context);

/* The inverse of the sums; where there are masks, 0 for a query that saw no key, whose
   outputs become 0. */
void sh_dense_invert(const dense_keys *keys, query_panel *panel);

/* Writes the panel's rows of out, in the keys' precision, divided by the sums; and what
   backward needs, largest and inverse [queries], unless those are NULL. */
void sh_dense_write(const dense_keys *keys, query_panel *panel, row_view out,
                    float *largest, float *inverse);

/* softmax(scale x K') V. largest and inverse, where wanted, get what backward needs: each
   row's largest score and the inverse of its softmax's sum. */
typedef struct {
    dense_keys keys;
    int64_t key_count;
    row_view x, out;
    float *largest, *inverse;   /* of each row of x, or NULL */
    scores_callback *on_scores; /* may be NULL */
    void *context;              /* of on_scores */
    dense_scratch *threads;
} dense_forward_job;
/* Rows first .. last - 1, at most dense_block of them. x, keys and out may be in
   half precision. */
void sh_dense_forward(const dense_forward_job *job, int64_t first, int64_t last,
                      int thread);

/* delta[i] = dout_i . out_i for n rows: what a softmax's gradient subtracts. */
typedef struct {
    row_view dout, out;
    int64_t n, value_dim;
    float *delta;
} dense_delta_job;
void sh_dense_delta(dense_delta_job *job, team workers);

/* Backward of softmax(scale x K') V for n rows x. What forward and sh_dense_delta found
   is one number for each row. Adds to dk and dv; dq, if wanted, is overwritten, or added
   to when onto is not 0. A gradient with data NULL is not wanted. */
typedef struct {
    dense_keys keys;
    int64_t n, key_count;
    row_view x, dout;                 /* [n] */
    row_view largest, inverse, delta; /* [n][1] */
    row_view dq, dk, dv;
    int onto;
    scores_callback *on_scores; /* forward's */
    void *context;
    atomic_int *turns; /* [ceil(n / dense_block)], whose turn it is to add to dq */
    dense_scratch *threads;
} dense_backward_job;
void sh_dense_backward(dense_backward_job *job, team workers);

/* Loads a panel with its rows, and sets its grad_q to 0. */
void sh_dense_backward_start(const dense_backward_job *job, query_panel *panel);

/* Passes keys first .. last - 1 over one panel that was loaded: adds to its grad_q, and
   to dk and dv. */
void sh_dense_backward_panel(const dense_backward_job *job, int64_t first, int64_t last,
                             query_panel *panel, dense_scratch *scratch);
/* Then writes its rows of dq, or adds to them. */
void sh_dense_backward_write(const dense_backward_job *job, const query_panel *panel,
                             int onto);

#endif
