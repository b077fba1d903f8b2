/* How the clustered kinds' memory is laid out. */
#ifndef SHOAL_ATTENTION_CLUSTERED_PLACE_H
#define SHOAL_ATTENTION_CLUSTERED_PLACE_H

#include "attention/clustered.h"

void sh_clustered_place(shoal_plan *plan, block_layout *work, block_layout *state);
const int32_t *sh_clustered_groups(const shoal_plan *plan, const void *state);
const int32_t *sh_clustered_top_keys(const shoal_plan *plan, const void *state);

#endif
