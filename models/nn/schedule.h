/* Learning rate: linear warm-up, then a drop whenever the validation loss stops falling.
   */
#ifndef SHOAL_MODELS_NN_SCHEDULE_H
#define SHOAL_MODELS_NN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double rate;          /* after the warm-up and before any drop */
    int64_t warmup_steps; /* step s of them (from 1) has rate * s / warmup_steps */
    double factor;        /* a drop multiplies by it; 0 or 1: never drops */
    int64_t patience;     /* observations without progress that are forgiven */
    double threshold;     /* progress: loss < best (1 - threshold) */
    double minimum;       /* drops stop here */
} schedule_settings;

/* To be saved with a checkpoint; begins as schedule_begin says. */
typedef struct {
    double best;     /* smallest validation loss; infinity before any */
    int64_t waiting; /* observations since then */
    double scale;    /* product of the drops */
} schedule_state;

schedule_state sh_schedule_begin(void);
/* The rate of a step, counted from 1. */
double sh_schedule_rate(const schedule_settings *settings, const schedule_state *state,
                        int64_t step);
/* After a validation; true when the rate was dropped. A loss that is NaN is no progress.
   */
bool sh_schedule_observe(const schedule_settings *settings, schedule_state *state,
                         double loss);

#endif
