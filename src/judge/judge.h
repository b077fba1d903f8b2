/* What the parts of this room ask of each other. */
#ifndef SHOAL_JUDGE_JUDGE_H
#define SHOAL_JUDGE_JUDGE_H

#include "attention/attention.h"

/* The time of one head of full attention or shoal-C, in multiplications of full
   attention: what shoal-C does is weighed so that both take equally long at N = S =
   crossover. */
double sh_cost_of(const shoal_attention *attention, const shoal_problem *problem,
                  int crossover);

/* ---- Trying numbers of top keys (trial.c) ------------------------------------------ */

/* One thread's memory. */
typedef struct {
    float *centroids;    /* [panel][dim]: of the samples' groups */
    int32_t *keys;       /* [top keys]: one sample's list, best first in parts */
    float *weights;      /* [top keys]: what moving them adds to their weights */
    float *values;       /* [value_dim]: sum so far */
    float *moved_values; /* [value_dim] */
} trial_thread;

/* Finds the groups of all heads of a plan of shoal-C, leaves them in the state, and
   compares what `samples` queries of each head would get with what they should:
   squares[h][t] is the squared error with topks[t] top keys (increasing, at most the
   plan's), squares[h][count] the squared length of the exact outputs, both scaled to all
   queries of the head. */
typedef struct {
    const attention_call *call;
    int samples, count;
    const int32_t *topks;  /* [count] */
    double *squares;       /* [batch * heads][count + 1] */
    trial_thread *threads; /* one for each of the plan's */
} topk_trial;
void sh_trial_run(topk_trial *trial);

/* A thread's memory for trials of at most topk top keys. */
void sh_trial_place(trial_thread *thread, const shoal_plan *plan, int32_t topk,
                    block_layout *work);

#endif
