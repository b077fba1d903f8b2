/* Three tables of a tokenizer: words and their ids, the merges of byte pair encoding,
   and a trie of the pieces of Unigram. Each has a fixed capacity. */
#ifndef SHOAL_MODELS_TEXT_VOCABULARY_H
#define SHOAL_MODELS_TEXT_VOCABULARY_H

#include <stdbool.h>

#include "base/context.h"

typedef struct {
    int64_t count, room;
    size_t bytes;    /* of all words so far */
    size_t longest;  /* bytes of the longest word */
    char *text;      /* all words, concatenated */
    size_t *begin;   /* [room + 1] */
    int32_t *ids;    /* [room] */
    uint32_t *slots; /* [mask + 1]: index of a word, from 1; 0 if free */
    uint64_t mask;
    void *block;
} vocabulary;

/* words, bytes: capacity. */
shoal_status sh_vocabulary_create(shoal_context *context, int64_t words, size_t bytes,
                                  vocabulary *made);
void sh_vocabulary_destroy(shoal_context *context, vocabulary *words);
/* Returns false if the word exists already. The caller respects the capacity. */
bool sh_vocabulary_add(vocabulary *words, const char *word, size_t size, int32_t id);
int32_t sh_vocabulary_find(const vocabulary *words, const char *word,
                           size_t size); /* -1 if there is none */

typedef struct {
    uint64_t pair; /* left id in the upper half, right id in the lower; ~0 if free */
    int32_t rank;  /* lower ranks are merged first */
    int32_t id;    /* of the result */
} merge;

typedef struct {
    int64_t count;
    merge *slots; /* [mask + 1] */
    uint64_t mask;
} merge_table;

shoal_status sh_merges_create(shoal_context *context, int64_t count, merge_table *made);
void sh_merges_destroy(shoal_context *context, merge_table *merges);
/* Its rank is the number of merges so far. Returns false if the pair exists already. */
bool sh_merges_add(merge_table *merges, int32_t left, int32_t right, int32_t id);
const merge *sh_merges_find(const merge_table *merges, int32_t left,
                            int32_t right); /* NULL if there is none */

/* A node is a prefix of pieces; node 0 is the empty one. */
typedef struct {
    uint32_t parent;
    int32_t id; /* of the piece that ends here; -1 if none */
    unsigned char byte;
} trie_node;

typedef struct {
    int64_t count;
    trie_node *nodes; /* [count] */
    uint32_t *slots;  /* [mask + 1]: nodes by parent and byte; 0 if free */
    uint64_t mask;
    void *block;
} piece_trie;

/* bytes: of all pieces. */
shoal_status sh_trie_create(shoal_context *context, size_t bytes, piece_trie *made);
void sh_trie_destroy(shoal_context *context, piece_trie *trie);
/* An existing piece gets the new id. The caller respects the capacity. */
void sh_trie_add(piece_trie *trie, const char *piece, size_t size, int32_t id);
/* The child of a node for a byte, or 0. */
uint32_t sh_trie_next(const piece_trie *trie, uint32_t node, unsigned char byte);

#endif
