/* Where an output is likely to be off: every live query's squared distance from a second
   output, which is nearer to the exact one and has other groups. */
#ifndef SHOAL_JUDGE_GUIDE_H
#define SHOAL_JUDGE_GUIDE_H

#include "attention/attention.h"

typedef struct {
    double out_squared; /* squared length of the output, all live queries */
    float *distances;   /* [live queries], head by head; NULL where there is no guide */
    double total;       /* their sum; 0 where there is no guide */
} guide;

/* Without `wanted`, or for kinds that have no groups, only out_squared. */
shoal_status sh_guide_create(const attention_call *call, const float *out, int64_t live,
                             int wanted, guide *made);
void sh_guide_destroy(const attention_call *call, guide *made);

#endif
