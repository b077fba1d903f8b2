/* auto: full where it is quicker, shoal-C where that is, by what both cost here; with a
   tolerance, as many top keys as the error on some queries asks for. */
#ifndef SHOAL_ATTENTION_AUTO_H
#define SHOAL_ATTENTION_AUTO_H

#include "attention/plan.h"

extern const attention_kind auto_kind;

/* What the last forward into this state picked. */
shoal_attention auto_picked(const shoal_plan *plan, const void *state);

/* Multiplications of one head, in units that take full attention as long as any other
   kind's: the work beside the dense part weighs what the context's crossover says. */
double auto_cost(const shoal_attention *attention, const shoal_problem *problem,
                 int crossover);

#endif
