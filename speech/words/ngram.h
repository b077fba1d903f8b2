/* A back-off language model of words: n-grams of any order up to NGRAM_MOST_ORDER, read
   from ARPA text (ngram_arpa.c) or the binary format of CMU Sphinx (ngram_sphinx.c).

   N-grams of k words form level k, sorted by the entry of their first k - 1 words one
   level below, then by the last word. A state is the history that the model uses: 0 for
   none, otherwise an entry of a level below the highest. The shorter state of a state
   drops its first word, or more if the model has no such entry, so that backing off
   ends at 0. */
#ifndef SHOAL_SPEECH_WORDS_NGRAM_H
#define SHOAL_SPEECH_WORDS_NGRAM_H

#include <stdbool.h>

#include "base/context.h"
#include "shoal_speech.h"

enum { NGRAM_MOST_ORDER = 6, NGRAM_MOST_LETTERS = 1000 };

typedef struct {
    int64_t count;
    int32_t *words;    /* [count] last word of each; NULL at level 1, where entry i is
                          word i */
    float *probs;      /* [count] natural logs */
    float *backoffs;   /* [count] of the states; NULL at the highest level */
    int32_t *children; /* [count + 1] first continuation one level above; NULL at the
                          highest level */
    int32_t *shorter;  /* [count] the state without its first word; from level 3 on */
} ngram_level;

struct shoal_ngram {
    shoal_context *context;
    shoal_ngram_info info; /* of the last shoal_ngram_describe */
    int order;
    ngram_level levels[NGRAM_MOST_ORDER + 1]; /* from 1 on */
    int32_t first_states[NGRAM_MOST_ORDER + 1];
    char *letters;  /* of all words, NUL-terminated */
    int64_t *texts; /* [word_count] offset of each */
    int64_t letter_count, letter_room, text_room;
    int32_t word_count, *table; /* [table_size] hash table of the words, -1 if free */
    uint32_t table_size;
    int32_t begin, end; /* <s> and </s> */
};

/* ---- Queries ---------------------------------------------------------------------- */

/* Index of a word, or -1. */
int32_t sh_ngram_find(const shoal_ngram *model, const char *text, size_t length);
const char *sh_ngram_text(const shoal_ngram *model, int32_t word);

/* Natural log of the probability of a word in a state, and the next state. */
float sh_ngram_next(const shoal_ngram *model, int32_t state, int32_t word, int32_t *next);

/* The same, but a state without continuations is replaced at once by its shorter one,
   and that back-off weight is included in the result. The sum over a sentence that ends
   with sh_ngram_next for </s> is the same, with fewer states. */
float sh_ngram_step(const shoal_ngram *model, int32_t state, int32_t word, int32_t *next);

/* ---- Construction ----------------------------------------------------------------- */

/* An n-gram of one level, in the order of a file. */
typedef struct {
    int32_t context; /* entry one level below */
    int32_t word;
    float prob, backoff;
    int32_t line; /* line number for messages */
} ngram_record;

shoal_status sh_ngram_no_memory(shoal_context *context);
shoal_status sh_ngram_create(shoal_context *context, int order, shoal_ngram **made);
/* Returns the word's index, -1 if it exists already, -2 if out of memory. */
int32_t sh_ngram_add_word(shoal_ngram *model, const char *text, size_t length);
/* count: number of entries. */
shoal_status sh_ngram_level_room(shoal_ngram *model, int level, int64_t count);
/* Builds a level from records in any order, which are sorted. *again is -1, or the
   record of a duplicate n-gram (SHOAL_BAD_FILE, without a message). */
shoal_status sh_ngram_level_take(shoal_ngram *model, int level, ngram_record *records,
                                 int64_t count, int64_t *again);
/* The entry of a word among the continuations of an entry, or -1. */
int64_t sh_ngram_child(const shoal_ngram *model, int level, int64_t entry, int32_t word);
/* Completes level `level`: its states, and their shorter ones. */
shoal_status sh_ngram_level_end(shoal_ngram *model, int level);
/* Finds <s> and </s>, which must exist. */
shoal_status sh_ngram_finish(shoal_ngram *model, const char *label);

/* ---- Readers ---------------------------------------------------------------------- */

/* Parses memory; label is for messages. */
shoal_status sh_arpa_parse(shoal_context *context, const char *label, const void *bytes,
                           size_t size, shoal_ngram **made);
shoal_status sh_arpa_read(shoal_context *context, const char *path, shoal_ngram **made);
shoal_status sh_sphinx_parse(shoal_context *context, const char *label,
                             const unsigned char *bytes, size_t size, shoal_ngram **made);
/* Whether a file has the signature of this format. */
bool sh_sphinx_is(const unsigned char *bytes, size_t size);

#endif
