/* From logits to a text: which tokens may come next, and greedy, beam search, or samples
   at a temperature, each ranked as the published decoding of Whisper ranks them: by the
   mean log-probability of a token. */
#ifndef SHOAL_SPEECH_WHISPER_SEARCH_H
#define SHOAL_SPEECH_WHISPER_SEARCH_H

#include "speech/whisper/decoder.h"

/* ---- Rules ---------------------------------------------------------------------- */

/* Which tokens may come next: symbols that nobody speaks are left out, and timestamps
   come in pairs, in order, and win when together they are likelier than any single word.
   Pure functions on one row of logits. */
typedef struct {
    int32_t vocabulary;       /* logits of a row */
    int32_t end;              /* ends a text; below it are the tokens of words */
    int32_t no_timestamps;    /* never sampled */
    int32_t first_timestamp;  /* 0.00 s; every token from here on is a time */
    int32_t latest_beginning; /* times after it cannot be the first; -1: any may */
    bool timestamps;          /* whether there are any */
    bool published;           /* the end may come even where a symbol that is left out is
                                 likelier: a quote that opens, say, after which more would
                                 be said */
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

/* ---- Searches side by side -------------------------------------------------------- */

typedef struct {
    int window;            /* that it hears, after sh_decoder_hear */
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
    const int32_t *tokens; /* [count], without the end */
    const float *logprobs; /* [count]: of each */
    int count;
    double mean_logprob; /* of the tokens and the end */
    double no_speech;    /* probability that nothing is said */
} search_result;

typedef struct search search;

/* The decoder must outlive the search, which uses up to its number of texts. */
shoal_status sh_search_create(shoal_context *context, decoder *network, search **made);
void sh_search_destroy(search *s); /* NULL is legal */

/* Begins a search, whose texts join the others' at the next step; the prompt is not
   needed afterwards. Returns its number, or -1 where there is no room for it beside the
   others. Alone there is room for up to the decoder's number of texts. */
int sh_search_begin(search *s, const search_task *task);

/* One token more for every text of every search that has not ended. Logits that are no
   numbers are SHOAL_BAD_FILE. */
shoal_status sh_search_step(search *s);

/* Whether this search has ended, and with what: valid until sh_search_drop, which makes
   room for another one. */
bool sh_search_ended(const search *s, int number, search_result *result);
void sh_search_drop(search *s, int number);
void sh_search_drop_all(search *s);

/* The likeliest of `count` tokens right after the one given, and its probability among
   them: how a language is detected. No search may be running. */
int32_t sh_search_choice(search *s, int window, int32_t after, const int32_t *among,
                         int count, double *probability);

#endif
