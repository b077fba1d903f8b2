/* The inside of lattice-free MMI: the denominator graph and numerator graphs
   (lfmmi_graph.c), their passes (lfmmi_pass.c), and batches (lfmmi.c).

   Whatever arcs lead to a state, they carry the phone that its history ends with: a state
   has one output for being entered and one for being stayed in. So a step of either pass
   is a product with a fixed sparse matrix, and what the outputs say is multiplied in per
   state. */
#ifndef SHOAL_SPEECH_RECOGNISER_LFMMI_H
#define SHOAL_SPEECH_RECOGNISER_LFMMI_H

#include "models/kernels/kernels.h"
#include "speech/recogniser/phone_lm.h"
#include "speech/words/wordsearch.h"

typedef struct {
    int32_t entry, loop; /* outputs that a state has, */
} state_outputs;

/* Arcs that lead to, or from, each of some states. Loops are not among them. */
typedef struct {
    int32_t *first; /* [states + 1] */
    int32_t *other; /* [arcs] */
    float *weight;  /* [arcs] */
} arc_lists;

typedef struct {
    int32_t states, arcs;
    const int32_t *last;    /* [states], as of the language model */
    state_outputs *outputs; /* [states] */
    arc_lists in, out;
    float *init, *final, *occupancy; /* [states] */
    /* By phone p, first_of[p] .. first_of[p + 1] - 1: states that an utterance may be in
       after p as its first phone, with the sum of their ways there. */
    int32_t *first_of; /* [phones + 1] */
    int32_t *first_state;
    double *first_weight;
    void *block;
} den_graph;

bool sh_den_make(shoal_context *context, const phone_lm *lm, int32_t topology, bool whole,
                 den_graph *den);
void sh_den_free(den_graph *den);

/* What can be said in one utterance. States are in an order in which arcs lead on: other
   is less than the state for in, more for out. State 0 is the beginning, without a
   loop. */
typedef struct {
    int32_t states, arcs;
    state_outputs *outputs; /* [states] */
    arc_lists in, out;
    double *final;         /* [states] */
    int32_t *least, *rest; /* [states]: steps to it, and from it to an end */
    void *block;
} num_graph;

/* Without a path it has no states. false: out of memory. */
bool sh_num_make(shoal_context *context, const phone_lm *lm, const den_graph *den,
                 int32_t topology, const shoal_lexicon *lexicon, const int32_t *words,
                 int64_t count, num_graph *num);
void sh_num_free(num_graph *num);

/* Memory that one thread uses for all its utterances, and that grows. */
typedef struct {
    shoal_context *context;
    float *rows;     /* of either pass */
    size_t row_room; /* bytes */
    float *gradient; /* [steps][outputs] */
    size_t gradient_room;
    double *small; /* what is of the size of a step */
    size_t small_room;
} lfmmi_scratch;

/* Each writes its logarithm, and adds `sign` times its posteriors to the gradient
   [steps][outputs] unless that is NULL. false: out of memory. Where there is no path, or
   an output is no number, the logarithm is not finite, and the gradient is not of use. */
bool sh_den_pass(const den_graph *den, float leak, const float *y, int64_t steps,
                 int64_t outputs, lfmmi_scratch *scratch, double *logarithm,
                 float *gradient, float sign);
bool sh_num_pass(const model_kernels *kernels, const num_graph *num, const float *y,
                 int64_t steps, int64_t outputs, lfmmi_scratch *scratch,
                 double *logarithm, float *gradient, float sign);

/* The likeliest phones, silences included: phones [steps], and at which step each
   begins, [steps]. Returns how many, or -1: out of memory. */
int64_t sh_den_decode(const den_graph *den, const float *y, int64_t steps,
                      int64_t outputs, lfmmi_scratch *scratch, int32_t *phones,
                      int32_t *begins);

/* At least `bytes` at *block, whose contents are lost when it grows. */
bool sh_lfmmi_room(shoal_context *context, void *block, size_t *room, size_t bytes);

#endif
