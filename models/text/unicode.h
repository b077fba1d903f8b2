/* Character properties as in published tokenizers. utf8proc provides Unicode; this file
   corrects it where the `tokenizers` package differs, since models were trained on the
   ids of that package: its classes for BERT are those of Unicode 8, its decompositions
   of Unicode 9, its letters and numbers for byte-level BPE of Unicode 16, its lower
   case and clusters of Unicode 17. */
#ifndef SHOAL_MODELS_TEXT_UNICODE_H
#define SHOAL_MODELS_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/export.h"

/* Decodes the first character; returns its number of bytes, or 0 if the text is not
   valid UTF-8 (overlong, surrogate or truncated). */
SHOAL_PRIVATE int sh_utf8_next(const char *text, size_t size, uint32_t *code);

SHOAL_PRIVATE bool sh_utf8_valid(const char *text, size_t size);
/* Whether UTF-8 contains a control character, U+0000 to 001F or 007F to 009F, other
   than white space within a line. */
SHOAL_PRIVATE bool sh_utf8_has_controls(const char *text, size_t size);

enum { UTF8_MOST = 4 }; /* maximum bytes per character */
int sh_utf8_put(uint32_t code, char out[UTF8_MOST]);

/* White space as defined by Unicode, the same in every version. */
bool sh_char_is_space(uint32_t code);

/* Characters dropped by BERT's normalizer: controls except tab and line ends, U+0000
   and U+FFFD. */
bool sh_char_is_control(uint32_t code);
/* Characters that it surrounds with spaces. */
bool sh_char_is_ideograph(uint32_t code);
/* Accents: nonspacing marks. */
bool sh_char_is_mark(uint32_t code);
/* Characters that BERT's pre-tokenizer makes separate tokens. */
bool sh_char_is_punctuation(uint32_t code);

/* Classes in the pattern of byte-level BPE. */
typedef enum { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE } char_class;
char_class sh_char_class(uint32_t code);

enum { LOWER_MOST = 2, DECOMPOSED_MOST = 18 };
int sh_char_lower(uint32_t code, uint32_t out[LOWER_MOST]);

/* Canonical and compatible decomposition, and the canonical combining class. */
int sh_char_decompose(uint32_t code, uint32_t out[DECOMPOSED_MOST]);
int sh_char_decompose_compatible(uint32_t code, uint32_t out[DECOMPOSED_MOST]);
int sh_char_combining(uint32_t code);
/* The composition of two characters, or 0. */
uint32_t sh_char_compose(uint32_t first, uint32_t second);

/* Whether a character continues the grapheme cluster before it. The state is zero at
   the start of a text, and kept between calls. */
typedef struct {
    int32_t rules; /* state of utf8proc */
    enum { CONJUNCT_NONE, CONJUNCT_BEGUN, CONJUNCT_LINKED } conjunct;
} cluster_state;
bool sh_char_continues(uint32_t before, uint32_t code, cluster_state *state);

#endif
