/* Tokens of Whisper: bytes of the text tokens, special tokens, and which tokens its
   decoding never chooses. Ids are laid out by rule, from the vocabulary's size alone:

     text 0 .. end_of_text - 1 | end_of_text | start | languages (99 or 100) | translate |
     transcribe | start_lm | previous | no_speech | no_timestamps | <|0.00|> .. <|30.00|>

   with end_of_text 50256 for English-only models (51864 ids) and 50257 for the others. */
#ifndef SHOAL_SPEECH_WHISPER_TOKENS_H
#define SHOAL_SPEECH_WHISPER_TOKENS_H

#include <stdbool.h>

#include "base/context.h"

enum {
    TIMESTAMP_COUNT = 1501, /* 0.00 s to 30.00 s in steps of 0.02 s */
    LANGUAGE_COUNT = 100,   /* the table's; models before large-v3 know the first 99 */
    TOKEN_SUPPRESS_MOST = 256,
    TOKEN_FIRST_MOST = 8
};

typedef struct {
    int32_t count; /* all ids */
    bool multilingual;
    int32_t languages; /* 99 or 100 */
    int32_t end_of_text, start, first_language, translate, transcribe, start_lm, previous,
        no_speech, no_timestamps, first_timestamp;
    const unsigned char *bytes; /* the text tokens' bytes, one after another */
    const uint32_t *begin;      /* [count + 1]; specials are empty */
    const int32_t *by_bytes; /* [end_of_text], text tokens in the order of their bytes */
    /* Never chosen while sampling (the published "-1" list: symbols that are not speech,
       and the specials start, translate, transcribe, start_lm, previous, no_speech;
       timestamps and end_of_text are not in it), in increasing order. */
    int32_t suppress[TOKEN_SUPPRESS_MOST];
    int32_t suppress_count;
    /* Nor as the first token of a window: the blank " " and end_of_text. */
    int32_t suppress_first[TOKEN_FIRST_MOST];
    int32_t suppress_first_count;
} tokens;

/* The special ids of a vocabulary of `count` ids; false when there is no such model. */
bool sh_tokens_layout(int32_t count, tokens *t);

/* Fills suppress and suppress_first from the vocabulary, as the published code does. */
void sh_tokens_find_suppressed(tokens *t);

/* Replaces the symbols in `suppress` by `ids` (a model folder's own list); specials stay.
   False when there are too many or one is not an id. The other is for suppress_first. */
bool sh_tokens_set_suppressed(tokens *t, const int32_t *ids, int64_t count);
bool sh_tokens_set_suppressed_first(tokens *t, const int32_t *ids, int64_t count);

/* Sorts by_bytes, which is memory of the caller: [end_of_text]. */
void sh_tokens_index(const tokens *t, int32_t *by_bytes);

/* The id whose bytes are these, or -1. Of equal ones the lowest. */
int32_t sh_tokens_find(const tokens *t, const void *bytes, size_t size);

/* Byte pair encoding of one piece (a word with its leading space, or punctuation): writes
   up to `most` ids and returns how many there are, or -1 when a byte has no token or the
   piece is longer than 64 bytes. */
int32_t sh_tokens_encode_piece(const tokens *t, const void *bytes, size_t size,
                               int32_t *ids, int32_t most);

/* Tokens of a text: words with the space before them, numbers and marks, each encoded by
   itself. Writes up to `most` ids and returns how many there are; what has no token is
   left out. */
int32_t sh_tokens_encode(const tokens *t, const char *text, int32_t *ids, int32_t most);

/* Text of ids; specials and timestamps give nothing, and every byte that is not part of a
   well-formed character becomes U+FFFD. Always ends in 0 when size > 0, and returns the
   length in full, as snprintf does. */
size_t sh_tokens_decode(const tokens *t, const int32_t *ids, int64_t count, char *text,
                        size_t size);

/* Bytes at the end of `text` that are the beginning of a character (0 to 3). */
size_t sh_utf8_unfinished(const char *text, size_t size);

/* Languages: index 0 .. LANGUAGE_COUNT - 1, the id is first_language + index. */
const char *sh_language_code(int32_t index); /* "en"; NULL past the end */
const char *sh_language_name(int32_t index); /* "english" */
/* By code or by English name, in any case; -1 when unknown. */
int32_t sh_language_find(const char *text);

static inline bool token_is_text(const tokens *t, int32_t id) {
    return id >= 0 && id < t->end_of_text;
}

#endif
