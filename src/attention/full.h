/* full and shared-full: softmax(scale Q K') V, exactly, without an N x S matrix. */
#ifndef SHOAL_ATTENTION_FULL_H
#define SHOAL_ATTENTION_FULL_H

#include "attention/plan.h"

extern const attention_kind sh_full_kind, sh_shared_full_kind;

#endif
