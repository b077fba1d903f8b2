/* Rows of an evaluation: the kinds of attention that were asked for, and the controls,
   the same model with its attention taken away, so that a task which needs none is seen
   to prove nothing. */
#ifndef SHOAL_CLI_CONTROLS_H
#define SHOAL_CLI_CONTROLS_H

#include <stdbool.h>

#include <shoal_models.h>

enum { EVAL_MOST_KINDS = 32, EVAL_NAME = 128, EVAL_MOST_ROWS = EVAL_MOST_KINDS + 3 };

/* Queries that are 0 score all keys alike; an output of 0 adds nothing. */
typedef enum { AS_TRAINED, UNIFORM, NO_ATTENTION } row_weights;

typedef struct {
    char name[EVAL_NAME];
    shoal_attention kind;
    row_weights weights;
    bool control;
} eval_kind;

/* What to evaluate a model with. */
typedef struct {
    int kinds; /* 0: the one that was trained */
    char (*names)[EVAL_NAME];
    bool controls;
    const shoal_attention *trained;
} eval_choice;

/* Fills rows [EVAL_MOST_ROWS]; returns how many, or after a complaint less than 0. */
int eval_kinds(shoal_context *context, const eval_choice *choice, eval_kind *rows);

/* Takes away what the row does without; control_end brings it back. Whether there was
   memory to keep it in. */
typedef struct {
    float *values, *kept; /* kept NULL: nothing was taken */
    int64_t size;
} control_state;
bool control_begin(shoal_model *model, row_weights weights, control_state *state);
void control_end(control_state *state);

#endif
