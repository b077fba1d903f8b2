/* Internals of the word search: the tree of the lexicon (wordsearch_tree.c), tokens
   that pass through it (wordsearch.c), and their records (wordsearch_paths.c): one per
   end of a word, from which the best strings are read. */
#ifndef SHOAL_SPEECH_WORDS_WORDSEARCH_H
#define SHOAL_SPEECH_WORDS_WORDSEARCH_H

#include <stdbool.h>

#include "speech/words/lexicon.h"
#include "speech/words/ngram.h"

/* Outputs per step; phones include the silence. */
int64_t sh_topology_outputs(int32_t topology, int64_t phones);

/* ---- The tree ---------------------------------------------------------------------- */

/* Node 0 is the root, before a word; every other node is a phone. Children are
   contiguous. */
typedef struct {
    float ahead; /* best unigram log-probability of a word that ends here or below */
    int32_t phone;
    int32_t child, word; /* indices of the first ones */
    int16_t child_count, word_count;
} tree_node;

typedef struct {
    int32_t spelled;  /* index in the lexicon */
    int32_t modelled; /* index in the language model; -1 if it has none */
} tree_word;

typedef struct {
    tree_node *nodes; /* [node_count] */
    tree_word *words; /* [word_count], sorted by node */
    int32_t node_count, word_count;
    float unknown;    /* log-probability of a word that is not in the model */
    char *hears;      /* [words of the lexicon] nonzero if the word is in the tree */
    int64_t left_out; /* number of words not in the tree */
    int64_t heard;    /* number of words in the tree */
} word_tree;

shoal_status sh_word_tree_make(shoal_context *context, const shoal_lexicon *lexicon,
                               const shoal_ngram *ngram, double unknown, word_tree *tree);
void sh_word_tree_free(word_tree *tree);

/* ---- Records ----------------------------------------------------------------------- */

/* The end of a word. Records with the same step and the same state of the language
   model, which later words cannot distinguish, form a group: later records refer to the
   best of them, and the others are linked to it. */
typedef struct {
    int32_t spelled;
    int32_t before; /* group of the previous word; -1 if none */
    int32_t other;  /* next record of the group, -1 for the last */
    int32_t begin, end;
    float score; /* of the best path to here, relative to bases[end] */
} word_record;

typedef struct {
    float score;
    int32_t group; /* group at the end of the sequence; -1 if there is no word */
} path_end;

/* Result of a search. */
typedef struct {
    shoal_context *context;
    const shoal_lexicon *lexicon;
    word_record *records; /* [count], sorted by end */
    int32_t count;
    int64_t room;
    double *bases; /* [steps + 1] offset of the scores of each step */
    path_end *ends;
    int64_t end_count, end_room;
    int32_t steps;
    float scale; /* scale of scores for posterior probabilities */
} word_paths;

/* Removes all records that cannot be reached from the groups [count], and renumbers
   these. Returns false if out of memory. */
bool sh_paths_shrink(word_paths *paths, int32_t *const *groups, int64_t count);
/* Reads the best strings, with confidences if requested, into one block. */
bool sh_paths_read(const word_paths *paths, const shoal_word_settings *settings,
                   shoal_spoken *spoken, void **block);

/* ---- Searching --------------------------------------------------------------------- */

struct shoal_word_decoder {
    shoal_context *context;
    shoal_word_decoder_info info; /* of the last shoal_word_decoder_describe */
    const shoal_lexicon *lexicon;
    const shoal_ngram *ngram;
    shoal_topology topology;
    word_tree tree;
    int32_t phones; /* including the silence, the last */
    int64_t outputs;
    struct word_search **searches; /* [threads], created on demand */
    void **blocks;                 /* [block_count] storage of the last strings */
    int64_t block_count;
};

#endif
