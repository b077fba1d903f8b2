/* One call's arguments: checked once, then seen as heads of rows. */
#ifndef SHOAL_ATTENTION_CALL_H
#define SHOAL_ATTENTION_CALL_H

#include "attention/plan.h"

/* Refuses arguments that cannot be honoured before anything is written; fills *now. */
shoal_status sh_call_check(shoal_plan *plan, const shoal_inputs *inputs,
                           attention_call *now);

#endif
