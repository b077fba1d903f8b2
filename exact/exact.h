/* Every formula of Shoal once, in double precision and by the plainest loops, written from
   the mathematics alone: what the tests, `shoal bench` and `shoal quality` compare the
   libraries with. Nothing here is fast, and nothing is shared with what it judges.

   attention.c  one head of any kind: a query's row of weights, its output, its gradients

   A new kind of attention is one function and one row of the table in attention.c. */
#ifndef SHOAL_EXACT_H
#define SHOAL_EXACT_H

#include <stdbool.h>

#include "shoal.h"

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
    int64_t *chunks;         /* [rounds][N], lsh: exact_set_buckets fills them */
    bool has_chunks; /* they were set, or could be no others: one chunk holds all */

    /* What the last exact_row found for its query. */
    double *weights; /* [S], the row that multiplies V */
    double *counts;  /* [S] how often a key counts with the query's own score */
    double *scores;  /* [S] the query's where it counts, elsewhere its centroid's */
    double margin;   /* by which score the last key chosen for this query alone beats the
                        next one; INFINITY where there was no such choice */

    /* Intermediate results: i-clustered's two softmaxes and what a gradient passes. */
    double *own, *shared;         /* [S] */
    double *dweights, *dshared;   /* [S] */
    double *centroid, *dcentroid; /* [D] */
    struct exact_ranked *ranking; /* [S] */
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

/* Whether all that the kind's formula needs is there. A plan reports neither lsh's
   buckets nor the groups of what auto picked. */
bool exact_is_known(const exact_head *head);

/* lsh: what each position hashed to in a round. buckets: [N]. */
void exact_set_buckets(exact_head *head, int64_t round, const int32_t *buckets);

/* The weights of query i, [S]: the head's own, valid until the next call. */
const double *exact_row(exact_head *head, int64_t i);

/* out [Dv] = row V of query i. */
void exact_output(exact_head *head, int64_t i, double *out);

/* Adds what dout [Dv], the gradient of query i's output, says about everything: dq [N][D],
   dk [S][D], dv [S][Dv]. Where the keys are the queries all of it goes to dq. */
void exact_output_gradient(exact_head *head, int64_t i, const double *dout, double *dq,
                           double *dk, double *dv);

/* Mean of the queries of a group, [D], in head->centroid. Returns how many there are. */
int64_t exact_centroid(exact_head *head, int32_t group);

/* The score scale x.k_l of a vector x [D], by the kind's own keys. */
double exact_score(const exact_head *head, const double *x, int64_t l);

#endif
