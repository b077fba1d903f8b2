/* full over ranks. */
#ifndef SHOAL_ATTENTION_DISTRIBUTED_FULL_H
#define SHOAL_ATTENTION_DISTRIBUTED_FULL_H

#include "attention/dense.h"

typedef struct {
    float *largest, *inverse; /* [batch][heads][queries] */
} full_state;

/* Where full keeps them (full.c). */
full_state sh_full_state_at(const shoal_plan *plan, block_layout *place);

void sh_ring_place(shoal_plan *plan, block_layout *work);
shoal_status sh_ring_forward(const attention_call *call, shoal_status status);
shoal_status sh_ring_backward(const attention_call *call, shoal_status status);

#endif
