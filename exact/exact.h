/* Every formula of Shoal once, in double precision and plain loops, written from the
   mathematics. Tests, `shoal bench` and `shoal quality` compare the libraries with it.
   It is not optimised and shares no code with the libraries.

   attention.c  one head of any kind: a query's row of weights, its output, its
   gradients
   tilt.c       the correction of the kind shoal
   layers.c     products, norms, activations, losses, and a layer around its attention
   ctc.c        the CTC loss
   whisper.c    a complete speech model: convolutions, encoder, decoder

   A new kind of attention is one function and one row of the table in attention.c. */
#ifndef SHOAL_EXACT_H
#define SHOAL_EXACT_H

#include <stdbool.h>

#include "shoal.h"
#include "shoal_models.h"

/* ---- One head of attention (attention.c) ------------------------------------------- */

/* N queries and S keys without padding. D is the dimension of queries and keys, Dv of
   values. Choices of the attention (clusters, exact keys, buckets) are inputs: they are
   constants of the formulas. */
typedef struct {
    shoal_attention attention;
    int64_t queries, keys, dim, value_dim;
    double scale;            /* 1/sqrt(D) by default */
    double *q;               /* [N][D] */
    double *k;               /* [S][D]; unused if the kind uses the queries as keys */
    double *v;               /* [S][Dv] */
    const int32_t *groups;   /* [N], clusters of the queries */
    const int32_t *top_keys; /* [clusters][topk] exact keys, padded with -1 */
    /* shoal-C: */
    int32_t *own_keys;      /* [N][topk]: exact keys of a query's block, padded with
                               -1, without the neighbouring ones; from a plan they are
                               set by exact_row */
    const shoal_plan *plan; /* source of own_keys, or NULL */
    const void *state;
    int64_t at;                  /* index of the head in it */
    const int32_t *key_clusters; /* [S], -1 for hidden keys */
    const float *projection;     /* [rank + 1][D]: P', and the mean of the keys */
    const float *dual;           /* [rank][D]: Z' */
    const float *shares;         /* [groups][share_stride]: sigma; NULL: 0 */
    int64_t share_stride;        /* key clusters */
    int64_t *chunks;             /* [rounds][N], lsh: set by exact_set_buckets */
    bool has_chunks; /* set, or the only possible ones: one chunk holds all positions */

    /* Masks and key bias; exact_load takes them from a problem. */
    int64_t ahead;   /* query i is at the position of key i + ahead */
    double *bias;    /* [N][S], -INFINITY for hidden keys; NULL for 0 */
    double *factors; /* [N][S], dropout factors of the weights; NULL for 1 */
    double *dbias;   /* [N][S], accumulates the gradient; NULL if not needed */

    /* Results of the last exact_row. */
    double *weights; /* [S], the row that multiplies V, before dropout */
    double *counts;  /* [S] multiplicity of a key with the query's own score */
    double *scores;  /* [S] the query's if counts is nonzero, else the centroid's */
    double margin;   /* score difference between the last chosen key and the next, for
                        choices made per query; INFINITY if there was none */

    /* Intermediate results: the two softmaxes of i-clustered, and gradients. */
    double *own, *shared;         /* [S] */
    double *dweights, *dshared;   /* [S] */
    double *centroid, *dcentroid; /* [D] */
    struct exact_ranked *ranking; /* [S] */
    struct exact_tilt *tilt;      /* shoal: of the last query */
    void *memory;
} exact_head;

/* Zeroed q, k and v, and no choices yet. NULL if out of memory. */
exact_head *exact_create(const shoal_attention *attention, int64_t queries, int64_t keys,
                         int64_t dim, int64_t value_dim);
void exact_destroy(exact_head *head); /* NULL is allowed */

/* Loads head h of sequence b of a problem, with the choices that the plan reports for
   its last forward; `plan` may be NULL. `attention` is the plan's, or another to
   compare it with; auto becomes the kind it picked. NULL if out of memory. */
exact_head *exact_load(const shoal_problem *problem, const shoal_inputs *inputs,
                       const shoal_plan *plan, const shoal_attention *attention,
                       int64_t b, int64_t h);

/* Loads the choices that a plan reports for its last forward into a state (NULL for its
   own): of head `at`, for sequences of at most `longest` queries. */
void exact_choose(exact_head *head, const shoal_plan *plan, const void *state, int64_t at,
                  int64_t longest);

/* Whether all inputs of the kind's formula are known. A plan reports neither lsh's
   buckets nor the clusters of the kind that auto picked. */
bool exact_is_known(const exact_head *head);

/* lsh: bucket of each position in a round. buckets: [N]. */
void exact_set_buckets(exact_head *head, int64_t round, const int32_t *buckets);

/* The weights of query i, [S]: owned by the head, valid until the next call. */
const double *exact_row(exact_head *head, int64_t i);

/* out [Dv] = row V of query i. */
void exact_output(exact_head *head, int64_t i, double *out);

/* Backward for dout [Dv], the gradient of query i's output: adds to dq [N][D], dk
   [S][D], dv [S][Dv]. If the kind uses the queries as keys, dq gets both parts. */
void exact_output_gradient(exact_head *head, int64_t i, const double *dout, double *dq,
                           double *dk, double *dv);

/* Computes the mean of a cluster's queries, [D], in head->centroid. Returns their
   number. */
int64_t exact_centroid(exact_head *head, int32_t group);

/* The score scale x.k_l of a vector x [D], with the kind's keys. */
double exact_score(const exact_head *head, const double *x, int64_t l);

/* ---- Parts of a transformer (layers.c) -------------------------------------------- */

/* A matrix with its bias, or a norm with its scale and shift. */
typedef struct {
    int64_t inputs, outputs;
    const double *weight;    /* [outputs][inputs]; for a norm [outputs], the scale */
    const double *bias;      /* [outputs]; NULL if there is none */
    double *dweight, *dbias; /* accumulate gradients; NULL if not needed */
} exact_part;

/* y [rows][outputs] = x [rows][inputs] W' + b. The gradient is added to dx. */
void exact_linear(const exact_part *w, int64_t rows, const double *x, double *y);
void exact_linear_gradient(const exact_part *w, int64_t rows, const double *x,
                           const double *dy, double *dx);

/* y [rows][outputs] = (x - mean) / sqrt(variance + epsilon) scale + shift, row by row;
   y may be x. The gradient is added to dx. */
void exact_norm(const exact_part *n, double epsilon, int64_t rows, const double *x,
                double *y);
void exact_norm_gradient(const exact_part *n, double epsilon, int64_t rows,
                         const double *x, const double *dy, double *dx);

double exact_activation(shoal_activation kind, double x);
double exact_activation_slope(shoal_activation kind, double x);

/* Feature `feature` of `size` of the sinusoidal encoding of a position. */
double exact_sinusoid(int64_t position, int64_t feature, int64_t size);

/* Mean of -log softmax(logits)[target] over the rows whose target is not negative; 0 if
   there are none. logits and dlogits (may be NULL, is overwritten): [rows][classes]. */
double exact_cross_entropy(int64_t rows, int64_t classes, const double *logits,
                           const int32_t *targets, double *dlogits);

/* ---- CTC (ctc.c) ------------------------------------------------------------------- */

/* -log of the probability that softmax(logits), [rows][classes], spells the labels
   [count]; class 0 is the blank. INFINITY if there are too few rows. dlogits: its
   gradient, [rows][classes]; may be NULL. */
double exact_ctc(int64_t rows, int64_t classes, const double *logits,
                 const int32_t *labels, int64_t count, double *dlogits);

/* ---- An encoder layer (layers.c) --------------------------------------------------- */

typedef enum {
    EXACT_QUERY,          /* [M][M] */
    EXACT_KEY,            /* [M][M]; weight NULL if the queries are the keys */
    EXACT_VALUE,          /* [M][M] */
    EXACT_OUTPUT,         /* [M][M] after the attention */
    EXACT_WIDEN,          /* [F][M] into the feed-forward */
    EXACT_NARROW,         /* [M][F] out of it */
    EXACT_ATTENTION_NORM, /* [M], before each block or after its residual sum */
    EXACT_FORWARD_NORM,   /* [M] */
    EXACT_PARTS
} exact_part_name;

/* Names of their weight and bias (or scale and shift) in libshoal-models, after the
   name of the layer: "attention.query.weight". */
extern const char *const exact_part_names[EXACT_PARTS][2];

/* Places of dropout: after the attention's output projection [M], inside the
   feed-forward network [F] and after it [M]. */
typedef enum {
    EXACT_DROP_ATTENTION,
    EXACT_DROP_HIDDEN,
    EXACT_DROP_FORWARD,
    EXACT_DROPS
} exact_dropout;

/* Processes one row at a time: rows interact only in the attention, which is
   computed between project and row. M: features of a row. F: width of the
   feed-forward network. */
typedef struct {
    int64_t model, wide;
    bool post_norm; /* false: norms are before the blocks */
    shoal_activation activation;
    double epsilon; /* of the norms; 1e-5 by default */
    exact_part parts[EXACT_PARTS];
    const float *dropout[EXACT_DROPS]; /* factors of the row; NULL if there is no
                                          dropout */

    /* Intermediate results of the row, and their gradients. */
    double *sum;                  /* [M] x + attention */
    double *inner;                /* [M] norm(sum), input of the feed-forward network */
    double *hidden, *active;      /* [F] before and after the activation */
    double *branch;               /* [M] output of a block */
    double *end, *out;            /* [M] sum or inner + feed-forward; its norm */
    double *dend, *dinner, *dsum; /* [M] */
    double *dhidden;              /* [F] */
    double *memory;
} exact_layer;

/* Sets the sizes; the caller sets the weights. NULL if out of memory. */
exact_layer *exact_layer_create(int64_t model, int64_t wide);
void exact_layer_destroy(exact_layer *layer); /* NULL is allowed */

/* q, k and v of a row x, all [M], heads concatenated. */
void exact_layer_project(exact_layer *layer, const double *x, double *q, double *k,
                         double *v);

/* Output [M] of the layer for a row x [M] with attention output `attended` [M]. Owned
   by the layer, valid until the next call. */
const double *exact_layer_row(exact_layer *layer, const double *x,
                              const double *attended);

/* Backward for the gradient dout [M] of that output: dx [M] through the residual
   connections, dattended [M], and adds to the gradients of the parts after the
   attention. */
void exact_layer_row_gradient(exact_layer *layer, const double *x, const double *attended,
                              const double *dout, double *dx, double *dattended);

/* ---- Whisper (whisper.c) ----------------------------------------------------------- */

typedef struct {
    const char *name; /* as published: "encoder.blocks.0.attn.query.weight" */
    const double *values;
} exact_weight;

typedef struct {
    int64_t mels, positions, vocabulary; /* positions of the audio: frames / 2 */
    int64_t width;                       /* of encoder and decoder */
    int64_t heads, layers, text_heads, text_layers;
    const exact_weight *weights; /* [weight_count], in any order */
    int64_t weight_count;
} exact_whisper;

/* features: [mels][2 positions]; out: [positions][width]. Both functions return false
   if out of memory or a weight is missing. */
bool exact_whisper_encode(const exact_whisper *model, const double *features,
                          double *out);
/* encoded: [positions][width]; logits: [count][vocabulary], after each token. */
bool exact_whisper_logits(const exact_whisper *model, const double *encoded,
                          const int32_t *tokens, int64_t count, double *logits);

#endif
