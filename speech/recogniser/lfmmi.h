/* Internals of lattice-free MMI: the denominator graph and numerator graphs
   (lfmmi_graph.c), their forward and backward passes (lfmmi_pass.c), and batches
   (lfmmi.c).

   All arcs to a state carry the last phone of its history: a state has one output for
   entering it and one for staying. Thus a step of either pass is a product with a fixed
   sparse matrix, followed by multiplication with the outputs per state. */
#ifndef SHOAL_SPEECH_RECOGNISER_LFMMI_H
#define SHOAL_SPEECH_RECOGNISER_LFMMI_H

#include "models/kernels/kernels.h"
#include "speech/recogniser/phone_lm.h"
#include "speech/words/wordsearch.h"

typedef struct {
    int32_t entry, loop; /* outputs for entering and for staying */
} state_outputs;

/* Arcs to, or from, each state, without self-loops. */
typedef struct {
    int32_t *first; /* [states + 1] */
    int32_t *other; /* [arcs] */
    float *weight;  /* [arcs] */
} arc_lists;

typedef struct {
    int32_t states, arcs;
    const int32_t *last;    /* [states], owned by the language model */
    state_outputs *outputs; /* [states] */
    arc_lists in, out;
    float *init, *final, *occupancy; /* [states] */
    /* For phone p, first_of[p] .. first_of[p + 1] - 1: states in which an utterance may
       be after p as its first phone, with the sum of their probabilities. */
    int32_t *first_of; /* [phones + 1] */
    int32_t *first_state;
    double *first_weight;
    void *block;
} den_graph;

bool sh_den_make(shoal_context *context, const phone_lm *lm, int32_t topology, bool whole,
                 den_graph *den);
void sh_den_free(den_graph *den);

/* All pronunciations of one utterance. States are topologically sorted: other is less
   than the state for in, and more for out. State 0 is the start, without a loop. */
typedef struct {
    int32_t states, arcs;
    state_outputs *outputs; /* [states] */
    arc_lists in, out;
    double *final;         /* [states] */
    int32_t *least, *rest; /* [states]: minimum number of steps to it, and from it to
                              an end */
    void *block;
} num_graph;

/* If there is no path, it has no states. Returns false if out of memory. */
bool sh_num_make(shoal_context *context, const phone_lm *lm, const den_graph *den,
                 int32_t topology, const shoal_lexicon *lexicon, const int32_t *words,
                 int64_t count, num_graph *num);
void sh_num_free(num_graph *num);

/* Growing buffers of one thread. */
typedef struct {
    shoal_context *context;
    float *rows;     /* of either pass */
    size_t row_room; /* bytes */
    float *gradient; /* [steps][outputs] */
    size_t gradient_room;
    double *small; /* of the size of a step */
    size_t small_room;
} lfmmi_scratch;

/* Each computes a log-probability, and adds `sign` times the posteriors to the
   gradient [steps][outputs] unless that is NULL. Returns false if out of memory. If
   there is no path, or an output is not finite, the result is not finite and the
   gradient invalid. */
bool sh_den_pass(const den_graph *den, float leak, const float *y, int64_t steps,
                 int64_t outputs, lfmmi_scratch *scratch, double *logarithm,
                 float *gradient, float sign);
bool sh_num_pass(const model_kernels *kernels, const num_graph *num, const float *y,
                 int64_t steps, int64_t outputs, lfmmi_scratch *scratch,
                 double *logarithm, float *gradient, float sign);

/* Viterbi path: phones [steps], silences included, and the step at which each begins,
   [steps]. Returns their number, or -1 if out of memory. */
int64_t sh_den_decode(const den_graph *den, const float *y, int64_t steps,
                      int64_t outputs, lfmmi_scratch *scratch, int32_t *phones,
                      int32_t *begins);

/* Makes room for `bytes` at *block; the contents are lost if it grows. */
bool sh_lfmmi_room(shoal_context *context, void *block, size_t *room, size_t bytes);

#endif
