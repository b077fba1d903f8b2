/* Errors of words: the search over a batch's outputs against what was said, and the
   weights that make the fewest errors on a development set. */
#ifndef SHOAL_TRAIN_EVALUATE_WORDS_H
#define SHOAL_TRAIN_EVALUATE_WORDS_H

#include "train/evaluate.h"
#include "train/tasks/speech.h"

typedef struct {
    const char *id, *rest;
} said_row;

typedef struct {
    shoal_evaluation *e;
    shoal_recogniser_parts search; /* its settings are those to look with */
    /* The file `text` of a data folder, "ID WORD WORD ...": */
    char *text;     /* what the rows point into */
    said_row *rows; /* [row_count], by id */
    int64_t row_count;
    int64_t words, missing; /* of the data; that cannot be heard */
    /* of a batch */
    shoal_spoken *spoken;
    const char **texts;
    size_t spoken_room, text_room;
} eval_words;

/* What was said in a data folder, every utterance of which must have its words. */
shoal_status sh_eval_words_open(eval_words *words, const char *folder,
                                const speech_set *set);
void sh_eval_words_close(eval_words *words);

/* The edits of each sequence of a batch whose outputs are given: each [sequences]. */
shoal_status sh_eval_words_count(eval_words *words, const speech_set *set,
                                 const speech_batch *batch, const float *outputs,
                                 shoal_edits *each);

/* Sets weight and insertion to what makes the fewest errors on the set of a folder, heard
   by a view of the recogniser. */
shoal_status sh_eval_words_tune(eval_words *words, const char *folder, speech_set *set,
                                shoal_model *view);

#endif
