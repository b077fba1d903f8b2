/* auto: full where it is quicker, shoal-C where that is, by what both cost here; with a
   tolerance, as many top keys as the error on some queries asks for. */
#ifndef SHOAL_JUDGE_AUTO_H
#define SHOAL_JUDGE_AUTO_H

#include "attention/attention.h"

/* Multiplications of one head, in units that take full attention as long as any other
   kind's: the work beside the dense part weighs what the context's crossover says. */
double sh_auto_cost(const shoal_attention *attention, const shoal_problem *problem,
                    int crossover);

#endif
