/* Shoal, inspection: internal constants of the kind shoal, for tests and research.
 *
 * The kind shoal chooses exact keys and key clusters in its forward pass and treats them
 * as constants in its backward pass. The functions here return them, so that a reference
 * implementation (exact/ in Shoal's source) can compute the same output and gradient.
 * docs/method.md has the formulas. The rules of shoal.h hold here too. Link libshoal.
 */
#ifndef SHOAL_INSPECT_H
#define SHOAL_INSPECT_H

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Constants of one head. */
typedef struct {
    int64_t rank, near;          /* the values used for this head's sequence */
    int64_t key_cluster_count;   /* likewise */
    const int32_t *key_clusters; /* [keys]; -1: hidden by the key bias */
    const float *projection;     /* [rank + 1][dim]: P', then the centre of the keys */
    const float *dual;           /* [rank][dim]: Z' */
    const float *shares;         /* [clusters][key_cluster_count]: sigma; not in form 2 */
} shoal_tilt;

/* Constants of the last forward pass of shoal with this state (NULL: the plan's own).
   head: batch index x heads + head. Needs a plan with SHOAL_WITH_BACKWARD. */
SHOAL_API shoal_status shoal_plan_tilt(const shoal_plan *plan, const void *state,
                                       int64_t head, shoal_tilt *tilt);

/* Writes the exact keys that a query shares with its block to keys [topk], with -1 after
   the last. Returns their number, 0 if the plan has no such keys. The cost grows with the
   number of queries of the head. */
SHOAL_API int64_t shoal_plan_exact_keys(const shoal_plan *plan, const void *state,
                                        int64_t head, int64_t query, int32_t *keys);

#ifdef __cplusplus
}
#endif
#endif
