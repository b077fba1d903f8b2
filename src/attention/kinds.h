/* The spelling of an attention: which options a kind has, their ranges and defaults. */
#ifndef SHOAL_ATTENTION_KINDS_H
#define SHOAL_ATTENTION_KINDS_H

#include "base/context.h"

enum option {
    OPTION_TOPK = 1,
    OPTION_BITS = 2,
    OPTION_ITERATIONS = 4,
    OPTION_SEED = 8,
    OPTION_RANK = 16,
    OPTION_GROUPS = 32,
    OPTION_NORMALISER = 64,
    OPTION_TOLERANCE = 128
};

/* The number after the kind's name: none, or a field of shoal_attention. */
enum number { NUMBER_NONE, NUMBER_CLUSTERS, NUMBER_ROUNDS, NUMBER_TOPK };

/* Refuses what the header's limits exclude; the message names the field. Fields that are
   no options of the kind get the values that the kind stands for. */
shoal_status sh_attention_check(shoal_context *context, shoal_attention *attention);

#endif
