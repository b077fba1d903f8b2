/* Errors of words for shoal eval: the search over a batch's outputs against what was
   said, and the weights that make the fewest errors on a development set. */
#ifndef SHOAL_CLI_SPEECH_EVAL_WORDS_H
#define SHOAL_CLI_SPEECH_EVAL_WORDS_H

#include "speech_words.h"

typedef struct {
    shoal_context *context;
    words_search search;
    words_said said;
    int64_t spoken_words, missing_words; /* of the data; that cannot be heard */
    /* of a batch */
    shoal_spoken *spoken;
    const char **texts;
    size_t spoken_room, text_room;
} eval_words;

/* Of the data folder, every utterance of which must have its words. An exit code. */
int eval_words_open(shoal_context *context, const words_options *options,
                    const speech_model *model, eval_words *words);
int eval_words_data(eval_words *words, const char *folder, const speech_set *set);
void eval_words_close(eval_words *words);

/* The edits of each sequence of a batch whose outputs are given: each [sequences]. */
shoal_status eval_words_count(eval_words *words, const speech_set *set,
                              const speech_batch *batch, const float *outputs,
                              shoal_edits *each);

/* Sets weight and insertion to what makes the fewest errors on the set of a folder, heard
   by the model with that attention. An exit code. */
int eval_words_tune(eval_words *words, const char *folder, speech_set *set,
                    const speech_model *model, const shoal_attention *kind);

#endif
