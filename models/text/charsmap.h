/* SentencePiece's table of characters and what stands for them (precompiled_charsmap):
 *
 *     bytes of the array, 32 bits; the array; texts, each ended by a zero byte
 *
 * The array is a trie over the bytes of what is replaced, in 32-bit units. Bit 31 says
 * that a unit is a value: where in the texts the replacement begins. Any other has the
 * byte that leads to it (bits 0-7), whether a value hangs on it (bit 8), and how far its
 * children are (bits 10-30, in steps of 256 where bit 9 is set): child c of unit i is
 * unit i ^ far ^ c, its value the one at c = 0. */
#ifndef SHOAL_MODELS_TEXT_CHARSMAP_H
#define SHOAL_MODELS_TEXT_CHARSMAP_H

#include <stdbool.h>

#include "base/context.h"

typedef struct {
    uint32_t *units; /* [unit_count] */
    uint32_t unit_count;
    char *text; /* [text_size] */
    size_t text_size;
    unsigned char *bytes; /* of the file: text is a part of them */
} charsmap;

/* From the base64 of a tokenizer.json. Every way through the array is known to stay in
   it, once it is read; `label` names the file in messages. */
shoal_status sh_charsmap_read(shoal_context *context, const char *label,
                              const char *base64, charsmap *made);
void sh_charsmap_destroy(shoal_context *context, charsmap *map);

/* What stands for the shortest entry that the bytes begin with, and its size; NULL where
   there is none. */
const char *sh_charsmap_find(const charsmap *map, const char *bytes, size_t size,
                             size_t *found_size);

#endif
