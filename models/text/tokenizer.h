/* Internal representation of a tokenizer: tokenizer_file.c fills it in, tokenizer.c
   applies it:

   text -> split at added tokens -> normalised -> words -> tokens -> special tokens */
#ifndef SHOAL_MODELS_TEXT_TOKENIZER_H
#define SHOAL_MODELS_TEXT_TOKENIZER_H

#include <jansson.h>

#include "base/memory.h"
#include "models/text/charsmap.h"
#include "models/text/unicode.h"
#include "models/text/vocabulary.h"
#include "shoal_models.h"

/* A character during tokenization, and its byte range in the text. */
typedef struct {
    uint32_t code, begin, end;
} letter;

/* Growing arrays. */
typedef struct {
    letter *at; /* [count] */
    int64_t count, room;
} letter_list;

typedef struct {
    int32_t id;
    uint32_t begin, end;
} token;

typedef struct {
    token *at;
    int64_t count, room;
} token_list;

/* Makes room for `more` elements of `size` bytes. Returns false if out of memory, with
   a message. */
bool sh_list_grow(shoal_context *context, void **at, int64_t count, int64_t *room,
                  int64_t more, size_t size);

static inline bool letters_grow(shoal_context *context, letter_list *list, int64_t more) {
    void *at = list->at;
    bool grown =
        sh_list_grow(context, &at, list->count, &list->room, more, sizeof(letter));
    list->at = at;
    return grown;
}

static inline bool tokens_grow(shoal_context *context, token_list *list, int64_t more) {
    void *at = list->at;
    bool grown =
        sh_list_grow(context, &at, list->count, &list->room, more, sizeof(token));
    list->at = at;
    return grown;
}

static inline bool tokens_push(shoal_context *context, token_list *list, token one) {
    const bool grown = tokens_grow(context, list, 1);
    if (grown)
        list->at[list->count++] = one;
    return grown;
}

/* ---- Normalisation (normalize.c) -------------------------------------------------- */

typedef struct {
    bool clean;         /* drop control characters; any white space becomes a space */
    bool ideographs;    /* surround them with spaces */
    bool strip_accents; /* decompose and drop the marks */
    bool lower;
    /* Exclusive with the above: NFD; with `compose` NFC; with `compatible` NFKD or
       NFKC. */
    bool decompose, compose, compatible;
} character_rules;

typedef enum { STEP_CHARACTERS, STEP_CHARSMAP, STEP_STRIP, STEP_REPLACE } step_kind;

typedef struct {
    step_kind kind;
    character_rules rules;
    charsmap map;
    bool left, right; /* sides where white space is stripped */
    /* Replace: the pattern; or, if `least` is not 0, each run of at least that many of
       its only letter. */
    letter_list pattern, content;
    int64_t least;
} normal_step;

enum { STEPS_MOST = 16 };

typedef struct {
    int count;
    normal_step steps[STEPS_MOST];
    letter_list between[2]; /* buffers between steps */
    bool too_long;          /* a step expanded the text beyond the limit */
} normalizer;

/* Appends `count` letters to `to` after all steps. Returns false if out of memory or
   too long, with a message. */
bool sh_normalize(shoal_context *context, normalizer *n, const letter *from,
                  int64_t count, letter_list *to);
/* Status after sh_normalize returned false. */
static inline shoal_status normalizer_status(const normalizer *n) {
    return n->too_long ? SHOAL_BAD_FILE : SHOAL_NO_MEMORY;
}
void sh_normalizer_destroy(shoal_context *context, normalizer *n);

/* Appends the letters of a UTF-8 text, without offsets. Returns false if out of
   memory. */
bool sh_letters_of(shoal_context *context, const char *text, letter_list *to);

/* ---- The tokenizer ---------------------------------------------------------------- */

/* A token that is matched in the text before anything else. */
typedef struct {
    int32_t id;
    const letter *content; /* [length] */
    int64_t length;
    bool lstrip, rstrip; /* adjacent white space belongs to it */
    bool normalized;     /* matched in the normalised text */
} added_token;

enum { ADDED_MOST = 10000, TEMPLATE_MOST = 16 };

/* Special tokens around one text or a pair. */
typedef struct {
    int count;
    struct {
        int32_t text; /* 0 or 1: tokens of that text; -1: the special token `id` */
        int32_t id, type;
    } parts[TEMPLATE_MOST];
} token_template;

/* A symbol of a word during merging, and a queued merge. */
typedef struct {
    int32_t id, previous, next; /* -1 if there is none */
    uint32_t begin, end;
    bool alive;
} symbol;

typedef struct {
    int32_t rank, at, id;
} waiting_merge;

/* A position in a word in the Viterbi search of Unigram: the best path to it, and the
   path onwards once it is known. */
typedef struct {
    double score;
    int32_t id;             /* of the piece that ends here */
    uint32_t from, onwards; /* letters: start of that piece; end of the next one */
    uint32_t byte;          /* offset in the word */
} piece_end;

typedef enum { MODEL_WORDPIECE, MODEL_BYTE_PAIRS, MODEL_UNIGRAM } token_model;

/* Which texts without a leading mark get one. */
typedef enum { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

struct shoal_tokenizer {
    shoal_context *context;
    token_model model;
    normalizer normal_form;
    vocabulary words;
    int32_t largest_id;
    int32_t unknown; /* -1 if unknown text is dropped */
    /* WordPiece. */
    char prefix[32]; /* of pieces after a word's first */
    size_t prefix_size;
    int64_t longest_word; /* characters; longer words are unknown */
    /* Byte pair encoding. */
    bool prefix_space, split_words, join_unknown;
    merge_table merges;
    int32_t byte_ids[256]; /* -1 if not in the vocabulary */
    /* Unigram. */
    bool split_white;   /* split at white space, which is dropped */
    uint32_t mark;      /* replaces each space; 0 to keep spaces */
    bool split_marks;   /* a word begins at each mark */
    bool byte_fallback; /* unknown letters become their bytes */
    prepend_scheme prepend;
    piece_trie pieces;
    double *scores; /* [words.count], by id */
    double unknown_score;

    added_token *added; /* [added_count], longest first */
    int64_t added_count;
    letter_list added_letters;
    bool added_first[256]; /* possible first characters, modulo 256 */
    token_template single, pair;

    /* Buffers for one text. */
    letter_list raw, normal, spaced;
    token_list first, second;
    char *word; /* bytes of a word */
    int64_t word_room;
    symbol *symbols;
    int64_t symbol_room;
    piece_end *ends;
    int64_t end_room;
    waiting_merge *heap;
    int64_t heap_count, heap_room;
    int32_t *out; /* ids, types and texts */
    int64_t out_room;
    int64_t *spans;
    int64_t span_room;
};

/* Tokenizes normalised text without added tokens by Unigram (unigram.c). Returns false
   if out of memory. */
bool sh_unigram_words(shoal_tokenizer *t, const letter *letters, int64_t count,
                      token_list *to);

/* From the bytes of a tokenizer.json; `label` names it in messages. */
shoal_status sh_tokenizer_parse(shoal_context *context, const char *label,
                                const char *text, size_t size, shoal_tokenizer **made);

/* The older files: a list of words (vocab.txt), or words with ids and merges
   (vocab.json, merges.txt). settings: from tokenizer_config.json, or NULL. */
typedef struct {
    const char *label;
    const char *bytes; /* [size] */
    size_t size;
} text_file;

shoal_status sh_tokenizer_parse_words(shoal_context *context, const text_file *words,
                                      const json_t *settings, shoal_tokenizer **made);
shoal_status sh_tokenizer_parse_pairs(shoal_context *context, const text_file *words,
                                      const text_file *merges, const json_t *settings,
                                      shoal_tokenizer **made);

#endif
