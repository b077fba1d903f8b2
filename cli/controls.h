/* Controls of an evaluation: the same model with its attention taken away, so that a task
   which needs none is seen to prove nothing. */
#ifndef SHOAL_CLI_CONTROLS_H
#define SHOAL_CLI_CONTROLS_H

#include <shoal_models.h>

/* Queries that are 0 score all keys alike; an output of 0 adds nothing. */
typedef enum { AS_TRAINED, UNIFORM, NO_ATTENTION } row_weights;

/* Sets the weights to 0 that the control does without; the others stay. */
void control_clear(shoal_model *model, row_weights weights);

#endif
