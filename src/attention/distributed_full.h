/* full over ranks. */
#ifndef SHOAL_ATTENTION_DISTRIBUTED_FULL_H
#define SHOAL_ATTENTION_DISTRIBUTED_FULL_H

#include "attention/dense.h"

void sh_ring_place(shoal_plan *plan, block_layout *work);
shoal_status sh_ring_forward(const attention_call *call, shoal_status status);
shoal_status sh_ring_backward(const attention_call *call, shoal_status status);

#endif
