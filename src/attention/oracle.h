/* oracle-top-k: a softmax over the k best keys of each query, found by exact search. */
#ifndef SHOAL_ATTENTION_ORACLE_H
#define SHOAL_ATTENTION_ORACLE_H

#include "attention/plan.h"

extern const attention_kind sh_oracle_top_kind;

#endif
