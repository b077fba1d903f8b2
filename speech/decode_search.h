/* From logits to a text: greedy, beam search, or samples at a temperature, each ranked as
   the published decoding ranks them: by the mean log-probability of a token. */
#ifndef SHOAL_SPEECH_DECODE_SEARCH_H
#define SHOAL_SPEECH_DECODE_SEARCH_H

#include "speech/decode_network.h"
#include "speech/decode_rules.h"

typedef struct {
    const int32_t *prompt; /* [prompt_count]: what was said before, if anything, and the
                              tokens that name language and task; at least one */
    int prompt_count;
    int start;         /* index of the start-of-transcript token in it */
    int32_t no_speech; /* the token whose probability after `start` is that of silence */
    decode_rules rules;
    int longest;       /* tokens to sample at most */
    int beams;         /* texts side by side: 1 is greedy, or one sample */
    float temperature; /* 0: the likeliest; more: samples, the best of `beams` */
    uint64_t seed;     /* of the samples */
} search_task;

typedef struct {
    const int32_t *tokens; /* [count], without the end; valid until the next search */
    int count;
    double mean_logprob; /* of the tokens and the end */
    double no_speech;    /* probability that nothing is said */
} search_result;

typedef struct search search;

/* `decoder` must outlive the search, which uses up to its number of beams. */
shoal_status sh_search_create(shoal_context *context, decoder *network, search **made);
void sh_search_destroy(search *s); /* NULL is legal */

/* After decoder_hear. */
void sh_search_run(search *s, const search_task *task, search_result *result);

/* The likeliest of `count` tokens right after the one given, and its probability among
   them: how a language is detected. */
int32_t sh_search_choice(search *s, int32_t after, const int32_t *among, int count,
                         double *probability);

#endif
