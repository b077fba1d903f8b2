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

/* t_m of the cluster of key l. */
double exact_tilt_of(const exact_head *head, int64_t l);

/* Backward of the corrections for the gradient dscores [S] of the query's scores: adds
   to dq and dcentroid [D] and dk [S][D]; sets dshared [S] to the gradient of the
   centroid's scores through the corrections. */
void exact_tilt_gradient(exact_head *head, const double *dscores, double *dq,
                         double *dcentroid, double *dk, double *dshared);

#endif
