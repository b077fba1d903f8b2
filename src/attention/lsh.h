/* What tests ask of lsh-R. */
#ifndef SHOAL_ATTENTION_LSH_H
#define SHOAL_ATTENTION_LSH_H

#include "attention/attention.h"

/* n / 32, rounded up to an even number: a chunk's worth of positions for each bucket. */
int64_t sh_lsh_bucket_count(int64_t n);

/* The buckets of one head of sequence b in one round, [live queries]; runs on the plan's
   own workspace. */
void sh_lsh_buckets(shoal_plan *plan, const shoal_inputs *inputs, int64_t b, int64_t h,
                    int64_t round, int32_t *buckets);

#endif
