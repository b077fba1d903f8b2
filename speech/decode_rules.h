/* Which tokens may come next, as the published decoding of Whisper has it: symbols that
   nobody speaks are left out, and timestamps come in pairs, in order, and win when
   together they are likelier than any single word. Pure functions on one row of logits.
   */
#ifndef SHOAL_SPEECH_DECODE_RULES_H
#define SHOAL_SPEECH_DECODE_RULES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int32_t vocabulary;       /* logits of a row */
    int32_t end;              /* ends a text; below it are the tokens of words */
    int32_t no_timestamps;    /* never sampled */
    int32_t first_timestamp;  /* 0.00 s; every token from here on is a time */
    int32_t latest_beginning; /* times after it cannot be the first; -1: any may */
    bool timestamps;          /* whether there are any */
    const int32_t *never;     /* [never_count] */
    const int32_t *not_first; /* [not_first_count] */
    int32_t never_count, not_first_count;
} decode_rules;

/* Sets to -infinity what may not follow `sampled` [count], the tokens after the prompt.
   */
void sh_rules_apply(const decode_rules *rules, const int32_t *sampled, int count,
                    float *logits);

/* log(sum of exp(logits)), without overflow; -infinity where every logit is that. */
double sh_log_sum_exp(const float *logits, int count);

/* The largest logit's index, the first of equals; NaN is never the largest. */
int32_t sh_largest_logit(const float *logits, int count);

#endif
