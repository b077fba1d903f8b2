/* How far an error rate can be trusted: the rate of utterances drawn with replacement,
   again and again (the bootstrap), and its difference from another on the same draws. */
#ifndef SHOAL_CLI_BOOTSTRAP_H
#define SHOAL_CLI_BOOTSTRAP_H

#include <stdint.h>

/* One utterance. */
typedef struct {
    double words, wrong;
    double wrong_of_other; /* with what the rate is compared with */
} utterance_errors;

/* The middle 95 % of the draws, in percent; NAN where there is nothing to draw. */
typedef struct {
    double rate_low, rate_high, difference_low, difference_high;
} bootstrap_interval;

enum { BOOTSTRAP_DRAWS = 10000 };

/* A draw depends on the seed and on `count` alone: it is the same for every rate. */
bootstrap_interval bootstrap_rates(const utterance_errors *utterances, int64_t count,
                                   uint64_t seed);

#endif
