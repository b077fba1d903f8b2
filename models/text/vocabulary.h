/* Three tables of a tokenizer: words and their ids, the merges of byte pair encoding, and
   the pieces of Unigram by how they begin. Each is made for a number of entries that is
   known beforehand. */
#ifndef SHOAL_MODELS_TEXT_VOCABULARY_H
#define SHOAL_MODELS_TEXT_VOCABULARY_H

#include <stdbool.h>

#include "base/context.h"

typedef struct {
    int64_t count, room;
    size_t bytes;    /* of all words so far */
    size_t longest;  /* bytes of one */
    char *text;      /* all words, one after another */
    size_t *begin;   /* [room + 1] */
    int32_t *ids;    /* [room] */
    uint32_t *slots; /* [mask + 1]: which word, from 1; 0: none */
    uint64_t mask;
    void *block;
} vocabulary;

/* For so many words of so many bytes in all. */
shoal_status sh_vocabulary_create(shoal_context *context, int64_t words, size_t bytes,
                                  vocabulary *made);
void sh_vocabulary_destroy(shoal_context *context, vocabulary *words);
/* False when the word is there already. The caller keeps to the room. */
bool sh_vocabulary_add(vocabulary *words, const char *word, size_t size, int32_t id);
int32_t sh_vocabulary_find(const vocabulary *words, const char *word,
                           size_t size); /* -1: none */

typedef struct {
    uint64_t pair; /* left id in the upper half, right id in the lower; ~0: free */
    int32_t rank;  /* smaller ones are merged first */
    int32_t id;    /* of what they become */
} merge;

typedef struct {
    int64_t count;
    merge *slots; /* [mask + 1] */
    uint64_t mask;
} merge_table;

shoal_status sh_merges_create(shoal_context *context, int64_t count, merge_table *made);
void sh_merges_destroy(shoal_context *context, merge_table *merges);
/* Of rank `count` so far. False when the pair is there already. */
bool sh_merges_add(merge_table *merges, int32_t left, int32_t right, int32_t id);
const merge *sh_merges_find(const merge_table *merges, int32_t left,
                            int32_t right); /* NULL: none */

/* A node is a beginning of pieces; node 0 is the empty one. */
typedef struct {
    uint32_t parent;
    int32_t id; /* of the piece that ends here; -1: none */
    unsigned char byte;
} trie_node;

typedef struct {
    int64_t count;
    trie_node *nodes; /* [count] */
    uint32_t *slots;  /* [mask + 1]: nodes by parent and byte; 0: none */
    uint64_t mask;
    void *block;
} piece_trie;

/* For pieces of so many bytes in all. */
shoal_status sh_trie_create(shoal_context *context, size_t bytes, piece_trie *made);
void sh_trie_destroy(shoal_context *context, piece_trie *trie);
/* A piece that is there already has the new id. The caller keeps to the room. */
void sh_trie_add(piece_trie *trie, const char *piece, size_t size, int32_t id);
/* The node that a byte leads to, or 0. */
uint32_t sh_trie_next(const piece_trie *trie, uint32_t node, unsigned char byte);

#endif
