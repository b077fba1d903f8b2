/* Characters as the published tokenizers see them. utf8proc knows Unicode; what is here
 * is where the `tokenizers` package differs from it, since a model was trained on the ids
 * that package gives: its classes for BERT are those of Unicode 8, its decompositions of
 * Unicode 9, its letters and numbers for byte-level BPE of Unicode 16, its lower case and
 * clusters of Unicode 17. */
#ifndef SHOAL_MODELS_TEXT_UNICODE_H
#define SHOAL_MODELS_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/export.h"

/* Bytes of the character that the text begins with, and the character; 0 where the text
   is not UTF-8 (nothing overlong, no surrogates, none cut short). */
SHOAL_PRIVATE int sh_utf8_next(const char *text, size_t size, uint32_t *code);

SHOAL_PRIVATE bool sh_utf8_valid(const char *text, size_t size);
/* Whether UTF-8 has a control, U+0000 to 001F and 007F to 009F, that is no white space
   within a line. */
SHOAL_PRIVATE bool sh_utf8_has_controls(const char *text, size_t size);

enum { UTF8_MOST = 4 }; /* bytes of one character */
int sh_utf8_put(uint32_t code, char out[UTF8_MOST]);

/* White space, as Unicode defines it: the same in every version. */
bool sh_char_is_space(uint32_t code);

/* What BERT's normaliser drops: controls but tab and line ends, U+0000 and U+FFFD. */
bool sh_char_is_control(uint32_t code);
/* What it puts between spaces. */
bool sh_char_is_ideograph(uint32_t code);
/* Accents: marks without a width of their own. */
bool sh_char_is_mark(uint32_t code);
/* What its pre-tokenizer cuts out: a token of its own. */
bool sh_char_is_punctuation(uint32_t code);

/* The classes of byte-level BPE's pattern. */
typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } char_class;
char_class sh_char_class(uint32_t code);

enum { LOWER_MOST = 2, DECOMPOSED_MOST = 18 };
int sh_char_lower(uint32_t code, uint32_t out[LOWER_MOST]);

/* Decomposition, canonical and compatible, and the class that marks are put in order
   by. */
int sh_char_decompose(uint32_t code, uint32_t out[DECOMPOSED_MOST]);
int sh_char_decompose_compatible(uint32_t code, uint32_t out[DECOMPOSED_MOST]);
int sh_char_combining(uint32_t code);
/* The character that two make together, or 0. */
uint32_t sh_char_compose(uint32_t first, uint32_t second);

/* Whether a reader sees a character as part of the one before it. The state
   is zero at a text's first character, and kept between calls. */
typedef struct {
    int32_t rules; /* utf8proc's */
    enum { CONJUNCT_NONE, CONJUNCT_BEGUN, CONJUNCT_LINKED } conjunct;
} cluster_state;
bool sh_char_continues(uint32_t before, uint32_t code, cluster_state *state);

#endif
