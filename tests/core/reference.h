/* Attention in double precision by the plainest loops, one head at a time: what every
   kind is compared with. It is written from the formulas alone and shares nothing with
   the library. Everything here is live: padding has been cut away by whoever fills the
   head. N, S: live queries and keys. D, Dv: size of a query or key, of a value. */
#ifndef SHOAL_TESTS_REFERENCE_H
#define SHOAL_TESTS_REFERENCE_H

#include <stdbool.h>

#include "shoal.h"

enum { REFERENCE_CHUNK = 32 }; /* positions in a chunk of lsh */

typedef struct {
    shoal_kind kind;
    int64_t queries, keys, dim, value_dim;
    double scale;
    const double *q;         /* [N][D] */
    const double *k;         /* [S][D]; not looked at where the keys are the queries */
    const double *v;         /* [S][Dv] */
    int64_t topk;            /* of the oracle, and of the kinds with groups and topk */
    const int32_t *groups;   /* [N], kinds with groups */
    const int32_t *top_keys; /* [clusters][topk], -1 where there are fewer */
    int32_t normaliser;      /* a shoal_normaliser; shoal's is query whatever it says */
    int64_t rounds;
    const int32_t *buckets; /* [rounds][N], lsh */
} reference_head;

/* Whether the keys are the queries (shared-full, lsh). */
bool reference_shares_keys(shoal_kind kind);
/* Whether queries attend in groups; and whether groups have top keys. */
bool reference_has_groups(shoal_kind kind);
bool reference_has_top_keys(shoal_kind kind);

/* weights: [N][S], the rows that multiply V. */
void reference_weights(const reference_head *head, double *weights);

/* out: [N][Dv]. */
void reference_forward(const reference_head *head, double *out);

/* dout: [N][Dv]. dq [N][D], dk [S][D] and dv [S][Dv] are overwritten. Where the keys are
   the queries, dq is the whole gradient and dk is 0. */
void reference_backward(const reference_head *head, const double *dout, double *dq,
                        double *dk, double *dv);

/* The difference between the k-th and the (k + 1)-th best score of each query, which says
   whether rounding can change the oracle's choice; INFINITY where all keys are kept.
   gaps: [N]. */
void reference_oracle_gaps(const reference_head *head, double *gaps);

/* Mean of the queries in `group`. centroid: [D]. Returns the number of members. */
int64_t reference_centroid(const reference_head *head, int32_t group, double *centroid);

/* Zeroed memory, never NULL: a test that cannot have it stops. */
void *reference_memory(int64_t count, size_t size);

#endif
