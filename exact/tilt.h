/* The correction of shoal-C, shared by attention.c and tilt.c. */
#ifndef SHOAL_EXACT_TILT_H
#define SHOAL_EXACT_TILT_H

#include "exact/exact.h"

static inline bool exact_is_tilted(const exact_head *head) {
    return head->attention.kind == SHOAL_KIND_SHOAL;
}

/* Bias added to the score of query i and key l. */
double exact_bias(const exact_head *head, int64_t i, int64_t l);

/* Number of queries in a cluster. */
int64_t exact_members(const exact_head *head, int32_t group);

/* Memory for the corrections, one block; NULL if out of memory. */
struct exact_tilt *exact_tilt_create(const shoal_attention *attention, int64_t keys,
                                     int64_t dim);

/* Computes the corrections of query i, whose centroid is known, and their inputs. */
void exact_find_tilts(exact_head *head, int64_t i);

/* t_m + log(1 + u_m) of the cluster of key l. */
double exact_tilt_of(const exact_head *head, int64_t l);

/* Adds the dipole to the weights of query i, whose scores are there; without it, the
   weight of key l is exact_base_weight. */
void exact_add_dipole(exact_head *head, int64_t i);
double exact_base_weight(const exact_head *head, int64_t l);

/* What the gradients dscores [S] of the query's scores and dweights [S] of its row say
   about tilts and dipole: adds to dq [N][D], dcentroid [D], dk [S][D] and the bias;
   dshared [S] becomes the gradient of the centroid's scores by way of them. */
void exact_tilt_gradient(exact_head *head, int64_t i, const double *dscores,
                         const double *dweights, double *dq, double *dcentroid,
                         double *dk, double *dshared);

#endif
