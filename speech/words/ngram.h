/* A back-off language model of words: n-grams of any order up to NGRAM_MOST_ORDER, read
   from ARPA text (ngram_arpa.c) or the binary form of CMU Sphinx (ngram_sphinx.c).

   N-grams of k words are level k: sorted by the entry of their first k - 1 words one
   level below, then by the last word. A state is what is remembered of the words so far:
   0 for nothing, else an entry of a level below the highest. A state's shorter one
   forgets its first word, or more where the model has no such entry, so that backing off
   ends at 0. */
#ifndef SHOAL_SPEECH_WORDS_NGRAM_H
#define SHOAL_SPEECH_WORDS_NGRAM_H

#include <stdbool.h>

#include "base/context.h"
#include "shoal_speech.h"

enum { NGRAM_MOST_ORDER = 6, NGRAM_MOST_LETTERS = 1000 };

typedef struct {
    int64_t count;
    int32_t *words;    /* [count] the last of each; NULL at level 1: entry i is word i */
    float *probs;      /* [count] natural logs */
    float *backoffs;   /* [count] of the states; NULL at the highest level */
    int32_t *children; /* [count + 1] where its continuations begin one level above;
                          likewise */
    int32_t *shorter;  /* [count] the state without its first word; from level 3 on */
} ngram_level;

struct shoal_ngram {
    shoal_context *context;
    shoal_ngram_info info; /* of the last shoal_ngram_describe */
    int order;
    ngram_level levels[NGRAM_MOST_ORDER + 1]; /* from 1 on */
    int32_t first_states[NGRAM_MOST_ORDER + 1];
    char *letters;  /* of all words, each ends in 0 */
    int64_t *texts; /* [word_count] where each begins */
    int64_t letter_count, letter_room, text_room;
    int32_t word_count, *table; /* [table_size] a hash of the words, -1: free */
    uint32_t table_size;
    int32_t begin, end; /* <s> and </s> */
};

/* ---- Using one --------------------------------------------------------------------- */

/* A word's number, or -1. */
int32_t sh_ngram_find(const shoal_ngram *model, const char *text, size_t length);
const char *sh_ngram_text(const shoal_ngram *model, int32_t word);

/* Natural log of the probability of a word in a state, and the state after it. */
float sh_ngram_next(const shoal_ngram *model, int32_t state, int32_t word, int32_t *next);

/* The same, but a state that nothing continues is left at once for its shorter one, and
   that back-off is in the result already: over a sentence, whose </s> is asked for with
   sh_ngram_next, the sum is the same, and there are fewer states. */
float sh_ngram_step(const shoal_ngram *model, int32_t state, int32_t word, int32_t *next);

/* ---- Making one -------------------------------------------------------------------- */

/* n-grams of one level in the order of a file. */
typedef struct {
    int32_t context; /* the entry one level below */
    int32_t word;
    float prob, backoff;
    int32_t line; /* in the file, for messages */
} ngram_record;

shoal_status sh_ngram_no_memory(shoal_context *context);
shoal_status sh_ngram_create(shoal_context *context, int order, shoal_ngram **made);
/* The word's number, -1 where it is there already, -2 where memory ran out. */
int32_t sh_ngram_add_word(shoal_ngram *model, const char *text, size_t length);
/* Room for a level of so many entries. */
shoal_status sh_ngram_level_room(shoal_ngram *model, int level, int64_t count);
/* A level from records in any order, which are sorted here. *again is -1, or the
   record of an n-gram that is there twice (SHOAL_BAD_FILE, without a message). */
shoal_status sh_ngram_level_take(shoal_ngram *model, int level, ngram_record *records,
                                 int64_t count, int64_t *again);
/* The entry of word in the continuations of an entry of a level, or -1. */
int64_t sh_ngram_child(const shoal_ngram *model, int level, int64_t entry, int32_t word);
/* After level `level` is whole: its states, and their shorter ones. */
shoal_status sh_ngram_level_end(shoal_ngram *model, int level);
/* Finds <s> and </s>, which must be there. */
shoal_status sh_ngram_finish(shoal_ngram *model, const char *label);

/* ---- Reading one ------------------------------------------------------------------- */

/* From memory. label: for messages. */
shoal_status sh_arpa_parse(shoal_context *context, const char *label, const void *bytes,
                           size_t size, shoal_ngram **made);
shoal_status sh_arpa_read(shoal_context *context, const char *path, shoal_ngram **made);
shoal_status sh_sphinx_parse(shoal_context *context, const char *label,
                             const unsigned char *bytes, size_t size, shoal_ngram **made);
/* Whether a file begins as that form does. */
bool sh_sphinx_is(const unsigned char *bytes, size_t size);

#endif
