/* The inside of the search for words: the tree of the lexicon (wordsearch_tree.c), tokens
   that walk through it (wordsearch.c), and what they leave behind (wordsearch_paths.c):
   a record for each end of a word, from which the best strings are read. */
#ifndef SHOAL_SPEECH_WORDS_WORDSEARCH_H
#define SHOAL_SPEECH_WORDS_WORDSEARCH_H

#include <stdbool.h>

#include "speech/words/lexicon.h"
#include "speech/words/ngram.h"

/* Outputs of a step; phones with the silence. */
int64_t sh_topology_outputs(int32_t topology, int64_t phones);

/* ---- The tree ---------------------------------------------------------------------- */

/* Node 0 is the root, before a word; all others stand for a phone. Children lie one after
   another. */
typedef struct {
    float ahead; /* best log-probability of a word alone that ends here or below */
    int32_t phone;
    int32_t child, word; /* the first ones */
    int16_t child_count, word_count;
} tree_node;

typedef struct {
    int32_t spelled;  /* the lexicon's word */
    int32_t modelled; /* the language model's; -1: it has none */
} tree_word;

typedef struct {
    tree_node *nodes; /* [node_count] */
    tree_word *words; /* [word_count], by node */
    int32_t node_count, word_count;
    float unknown;    /* log-probability of a word without a number in the model */
    char *hears;      /* [words of the lexicon] nonzero: it is in the tree */
    int64_t left_out; /* words of the lexicon */
    int64_t heard;    /* the others */
} word_tree;

shoal_status sh_word_tree_make(shoal_context *context, const shoal_lexicon *lexicon,
                               const shoal_ngram *ngram, double unknown, word_tree *tree);
void sh_word_tree_free(word_tree *tree);

/* ---- Records ----------------------------------------------------------------------- */

/* A word's end. Those that ended in the same step, with the same state of the language
   model and nothing else that later words could tell apart, are a group: the best of them
   is what later records refer to, the others hang on it. */
typedef struct {
    int32_t spelled;
    int32_t before; /* the group of the word before; -1: none */
    int32_t other;  /* the next one of the group, -1: the last */
    int32_t begin, end;
    float score; /* of the best path to here, above bases[end] */
} word_record;

typedef struct {
    float score;
    int32_t group; /* that the end of the sequence was reached from; -1: no word at all */
} path_end;

/* All that is left of a search. */
typedef struct {
    shoal_context *context;
    const shoal_lexicon *lexicon;
    word_record *records; /* [count], by end */
    int32_t count;
    int64_t room;
    double *bases; /* [steps + 1] what scores of each step are above of */
    path_end *ends;
    int64_t end_count, end_room;
    int32_t steps;
    float scale; /* of scores, where they become probabilities */
} word_paths;

/* Drops all records that cannot be reached from the groups [count], and gives those their
   new numbers. false: out of memory. */
bool sh_paths_shrink(word_paths *paths, int32_t *const *groups, int64_t count);
/* The best strings, with confidences where the settings say so, in one block at
   *block. */
bool sh_paths_read(const word_paths *paths, const shoal_word_settings *settings,
                   shoal_spoken *spoken, void **block);

/* ---- Searching --------------------------------------------------------------------- */

struct shoal_word_decoder {
    shoal_context *context;
    const shoal_lexicon *lexicon;
    const shoal_ngram *ngram;
    shoal_topology topology;
    word_tree tree;
    int32_t phones; /* the silence included, the last */
    int64_t outputs;
    struct word_search **searches; /* [threads], made when they are needed */
    void **blocks;                 /* [block_count] what the last strings lie in */
    int64_t block_count;
};

#endif
