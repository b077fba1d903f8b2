/* Every formula of Shoal once, in double precision and by the plainest loops, written
   from the mathematics alone: what the tests, `shoal bench` and `shoal quality` compare
   the libraries with. Nothing here is fast, and nothing is shared with what it judges.

   attention.c  one head of any kind: a query's row of weights, its output, its gradients
   layers.c     products, norms, activations, losses, and a layer around its attention
   ctc.c        the loss of labels without alignment
   whisper.c    a speech model whole: convolutions, encoder, decoder

   A new kind of attention is one function and one row of the table in attention.c. */
#ifndef SHOAL_EXACT_H
#define SHOAL_EXACT_H

#include <stdbool.h>

#include "shoal.h"
#include "shoal_models.h"

/* ---- One head of attention (attention.c) ------------------------------------------- */

/* N queries and S keys, all live: padding is cut away. D: size of a query or key. Dv: of
   a value. The choices that an attention makes are given, not found here: they are
   constants of the formulas. */
typedef struct {
    shoal_attention attention;
    int64_t queries, keys, dim, value_dim;
    double scale;            /* 1/sqrt(D) unless changed */
    double *q;               /* [N][D] */
    double *k;               /* [S][D]; not looked at where the keys are the queries */
    double *v;               /* [S][Dv] */
    const int32_t *groups;   /* [N], kinds with groups */
    const int32_t *top_keys; /* [clusters][topk], -1 where a group has fewer */
    /* shoal-C: */
    int32_t *own_keys;      /* [N][topk]: exact for a query and its block, -1 where
                                    there are fewer; near ones apart. With a plan, they
                                    are there once the query's row is */
    const shoal_plan *plan; /* that tells them, or NULL */
    const void *state;
    int64_t at;                  /* the head's number in it */
    const int32_t *key_clusters; /* [S], -1: hidden */
    const float *projection;     /* [rank + 1][D]: P', and the keys' centre */
    const float *dual;           /* [rank][D]: Z' */
    const float *shares;         /* [groups][share_stride]: sigma; NULL: 0 */
    int64_t share_stride;        /* key clusters */
    int64_t *chunks;             /* [rounds][N], lsh: exact_set_buckets fills them */
    bool has_chunks; /* they were set, or could be no others: one chunk holds all */

    /* Kinds with masks, or with a key bias; exact_load takes them from a problem. */
    int64_t ahead;   /* query i is at the position of key i + ahead */
    double *bias;    /* [N][S], -INFINITY where the query does not see the key; NULL: 0 */
    double *factors; /* [N][S], what dropout makes of the weights; NULL: 1 */
    double *dbias;   /* [N][S], a gradient is added to it; NULL: it is not wanted */

    /* What the last exact_row found for its query. */
    double *weights; /* [S], the row that multiplies V, before dropout */
    double *counts;  /* [S] how often a key counts with the query's own score */
    double *scores;  /* [S] the query's where it counts, elsewhere its centroid's */
    double margin;   /* by which score the last key chosen for this query alone beats the
                        next one; INFINITY where there was no such choice */

    /* Intermediate results: i-clustered's two softmaxes and what a gradient passes. */
    double *own, *shared;         /* [S] */
    double *dweights, *dshared;   /* [S] */
    double *centroid, *dcentroid; /* [D] */
    struct exact_ranked *ranking; /* [S] */
    struct exact_tilt *tilt;      /* shoal: of the last query */
    void *memory;
} exact_head;

/* Zeroed q, k and v, and no choices yet. NULL when memory ran out. */
exact_head *exact_create(const shoal_attention *attention, int64_t queries, int64_t keys,
                         int64_t dim, int64_t value_dim);
void exact_destroy(exact_head *head); /* NULL is legal */

/* Head h of sequence b of a problem, with the choices that the plan reports for its last
   forward; `plan` may be NULL. `attention` is the plan's, or another to be compared with
   it; auto becomes what it picked. NULL when memory ran out. */
exact_head *exact_load(const shoal_problem *problem, const shoal_inputs *inputs,
                       const shoal_plan *plan, const shoal_attention *attention,
                       int64_t b, int64_t h);

/* The choices that a plan reports for its last forward into a state (NULL: its own): of
   head `at` of all, in sequences of at most `longest` queries. */
void exact_choose(exact_head *head, const shoal_plan *plan, const void *state, int64_t at,
                  int64_t longest);

/* Whether all that the kind's formula needs is there. A plan reports neither lsh's
   buckets nor the groups of what auto picked. */
bool exact_is_known(const exact_head *head);

/* lsh: what each position hashed to in a round. buckets: [N]. */
void exact_set_buckets(exact_head *head, int64_t round, const int32_t *buckets);

/* The weights of query i, [S]: the head's own, valid until the next call. */
const double *exact_row(exact_head *head, int64_t i);

/* out [Dv] = row V of query i. */
void exact_output(exact_head *head, int64_t i, double *out);

/* Adds what dout [Dv], the gradient of query i's output, says about everything: dq
   [N][D], dk [S][D], dv [S][Dv]. Where the keys are the queries all of it goes to dq. */
void exact_output_gradient(exact_head *head, int64_t i, const double *dout, double *dq,
                           double *dk, double *dv);

/* Mean of the queries of a group, [D], in head->centroid. Returns how many there are. */
int64_t exact_centroid(exact_head *head, int32_t group);

/* The score scale x.k_l of a vector x [D], by the kind's own keys. */
double exact_score(const exact_head *head, const double *x, int64_t l);

/* ---- The parts of a transformer (layers.c) ----------------------------------------- */

/* A matrix with its bias, or a norm with its scale and shift. */
typedef struct {
    int64_t inputs, outputs;
    const double *weight;    /* [outputs][inputs]; of a norm [outputs], the scale */
    const double *bias;      /* [outputs]; NULL: none */
    double *dweight, *dbias; /* gradients are added to these; NULL: they are not wanted */
} exact_part;

/* y [rows][outputs] = x [rows][inputs] W' + b. The gradient adds to dx. */
void exact_linear(const exact_part *w, int64_t rows, const double *x, double *y);
void exact_linear_gradient(const exact_part *w, int64_t rows, const double *x,
                           const double *dy, double *dx);

/* y [rows][outputs] = (x - mean) / sqrt(variance + epsilon) scale + shift, row by row; y
   may be x. The gradient adds to dx. */
void exact_norm(const exact_part *n, double epsilon, int64_t rows, const double *x,
                double *y);
void exact_norm_gradient(const exact_part *n, double epsilon, int64_t rows,
                         const double *x, const double *dy, double *dx);

double exact_activation(shoal_activation kind, double x);
double exact_activation_slope(shoal_activation kind, double x);

/* Feature `feature` of `size` of the sinusoid at a position. */
double exact_sinusoid(int64_t position, int64_t feature, int64_t size);

/* Mean of -log softmax(logits)[target] over the rows whose target is not negative; 0 if
   there are none. logits and dlogits (may be NULL, is overwritten): [rows][classes]. */
double exact_cross_entropy(int64_t rows, int64_t classes, const double *logits,
                           const int32_t *targets, double *dlogits);

/* ---- CTC (ctc.c) ------------------------------------------------------------------- */

/* -log of the probability that softmax(logits), [rows][classes], spells the labels
   [count]; class 0 is the blank. INFINITY where there are too few rows. dlogits: its
   gradient, [rows][classes]; may be NULL. */
double exact_ctc(int64_t rows, int64_t classes, const double *logits,
                 const int32_t *labels, int64_t count, double *dlogits);

/* ---- An encoder layer (layers.c) --------------------------------------------------- */

typedef enum {
    EXACT_QUERY,          /* [M][M] */
    EXACT_KEY,            /* [M][M]; weight NULL: the keys are the queries */
    EXACT_VALUE,          /* [M][M] */
    EXACT_OUTPUT,         /* [M][M] behind the attention */
    EXACT_WIDEN,          /* [F][M] into the feed-forward */
    EXACT_NARROW,         /* [M][F] out of it */
    EXACT_ATTENTION_NORM, /* [M], each in front of its block or behind the block's sum */
    EXACT_FORWARD_NORM,   /* [M] */
    EXACT_PARTS
} exact_part_name;

/* How libshoal-models names their weight and bias (or scale and shift), behind the name
   of the layer: "attention.query.weight". */
extern const char *const exact_part_names[EXACT_PARTS][2];

/* Where dropout multiplies: behind the attention's output product [M], inside the
   feed-forward [F] and behind it [M]. */
typedef enum {
    EXACT_DROP_ATTENTION,
    EXACT_DROP_HIDDEN,
    EXACT_DROP_FORWARD,
    EXACT_DROPS
} exact_dropout;

/* One row at a time: rows meet in the attention alone, which stands between project and
   row. M: features of a row. F: features inside the feed-forward. */
typedef struct {
    int64_t model, wide;
    bool post_norm; /* false: norms stand in front of the blocks */
    shoal_activation activation;
    double epsilon; /* of the norms; 1e-5 unless changed */
    exact_part parts[EXACT_PARTS];
    const float *dropout[EXACT_DROPS]; /* factors of the row; NULL: none */

    /* Intermediate results of the row, and their gradients. */
    double *sum;                  /* [M] x + attention */
    double *inner;                /* [M] norm(sum), what the feed-forward sees */
    double *hidden, *active;      /* [F] in front of and behind the activation */
    double *branch;               /* [M] what a block adds */
    double *end, *out;            /* [M] sum or inner + feed-forward; its norm */
    double *dend, *dinner, *dsum; /* [M] */
    double *dhidden;              /* [F] */
    double *memory;
} exact_layer;

/* Sizes are set, weights are the caller's to point at. NULL when memory ran out. */
exact_layer *exact_layer_create(int64_t model, int64_t wide);
void exact_layer_destroy(exact_layer *layer); /* NULL is legal */

/* q, k and v of a row x, all [M]: the heads one after another. */
void exact_layer_project(exact_layer *layer, const double *x, double *q, double *k,
                         double *v);

/* The layer's output [M] for a row x [M] whose attention gave `attended` [M]. The layer's
   own, valid until the next call. */
const double *exact_layer_row(exact_layer *layer, const double *x,
                              const double *attended);

/* For the gradient dout [M] of that output: dx [M] past the attention, dattended [M], and
   adds to the gradients of the parts behind the attention. */
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

/* features: [mels][2 positions]; out: [positions][width]. Both functions are false when
   memory ran out or a weight is missing. */
bool exact_whisper_encode(const exact_whisper *model, const double *features,
                          double *out);
/* encoded: [positions][width]; logits: [count][vocabulary], after each token. */
bool exact_whisper_logits(const exact_whisper *model, const double *encoded,
                          const int32_t *tokens, int64_t count, double *logits);

#endif
