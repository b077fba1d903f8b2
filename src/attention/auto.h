/* What the parts of this room ask of each other. */
#ifndef SHOAL_ATTENTION_AUTO_H
#define SHOAL_ATTENTION_AUTO_H

#include "attention/dense.h"

/* The time of one head of full, shoal-C or q-clustered-C, in multiplications of full
   attention: the other two are weighed so that full and shoal-C take equally long at
   N = S = crossover. */
double sh_cost_of(const shoal_attention *attention, const shoal_problem *problem,
                  int crossover);

/* ---- The error of outputs (check.c) ------------------------------------------------ */

enum {
    CHECK_SAMPLES = 288, /* queries of a call whose exact outputs are computed, */
    CHECK_LEAST = 8,     /* of a head at least, */
    CHECK_MOST = 64      /* and at most */
};

typedef struct {
    int64_t marks;        /* queries of a head, some perhaps more than once */
    float *rest;          /* [batch * heads][queries], see attention_call */
    double *errors;       /* [batch * heads][marks] */
    double *lengths;      /* [batch * heads]: squared length of the outputs */
    dense_scratch *dense; /* [threads] */
    const attention_call *call;
} error_check;

void sh_check_place(error_check *check, const shoal_plan *plan, block_layout *work);

/* The relative error of the call's outputs, after a forward that has filled check->rest,
   and so many standard deviations of this estimate on top of its square. */
double sh_check_error(error_check *check, const attention_call *call, double deviations);

/* ---- auto (auto.c) ----------------------------------------------------------------- */

enum { AUTO_CHOICES = 4 };

/* What a plan of auto works with. */
typedef struct {
    int first; /* choice that is tried, or picked when nothing is looked at */
    shoal_plan plans[AUTO_CHOICES];
    error_check check; /* where there is a tolerance */
} auto_work;

/* ---- Problems in half precision (floats.c) ----------------------------------------- */

/* A call's problem and inputs in float32, contiguous, and the outputs that are judged. */
typedef struct {
    shoal_plan plan;
    shoal_inputs inputs;
    float *q, *k, *v, *out;
    int64_t *query_lengths, *key_lengths; /* [batch] */
    void *memory;
} float_copy;

/* Fails where there is not enough memory. */
shoal_status sh_floats_create(const attention_call *call, const void *out,
                              float_copy *copy);
void sh_floats_destroy(float_copy *copy);

#endif
