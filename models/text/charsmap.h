/* SentencePiece's table of character replacements (precompiled_charsmap):

   size of the array in bytes, 32 bits; the array; NUL-terminated texts

   The array is a double-array trie over the bytes of the replaced text, in 32-bit
   units. If bit 31 is set, a unit is a value: the offset of the replacement in the
   texts. Otherwise it has the byte that leads to it (bits 0-7), whether it has a value
   (bit 8), and the offset of its children (bits 10-30, in steps of 256 if bit 9 is
   set): child c of unit i is unit i ^ offset ^ c, and its value is the child with c =
   0. */
#ifndef SHOAL_MODELS_TEXT_CHARSMAP_H
#define SHOAL_MODELS_TEXT_CHARSMAP_H

#include <stdbool.h>

#include "base/context.h"

typedef struct {
    uint32_t *units; /* [unit_count] */
    uint32_t unit_count;
    char *text; /* [text_size] */
    size_t text_size;
    unsigned char *bytes; /* decoded file; text points into it */
} charsmap;

/* Decodes the base64 of a tokenizer.json and verifies that every path through the array
   stays inside it; `label` names the file in messages. */
shoal_status sh_charsmap_read(shoal_context *context, const char *label,
                              const char *base64, charsmap *made);
void sh_charsmap_destroy(shoal_context *context, charsmap *map);

/* The replacement of the shortest entry that is a prefix of the bytes, and its size;
   NULL if there is none. */
const char *sh_charsmap_find(const charsmap *map, const char *bytes, size_t size,
                             size_t *found_size);

#endif
