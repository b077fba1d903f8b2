#include "sphinx_file.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 5, BIGRAMS = 4, TRIGRAMS = 2, ROOM = 36 + 3 * 65536 * 4 + 1000 };
enum { WORD_BITS = 3, NEXT_BITS = 2 };

typedef struct {
    unsigned char *bytes;
    size_t at;
} writer;

static void put_u32(writer *w, uint32_t value) {
    for (int i = 0; i < 4; i++)
        w->bytes[w->at++] = (unsigned char)(value >> (8 * i));
}

/* A log to base 10. */
static void put_log(writer *w, double log10) {
    const float value = (float)(log10 * log(10) / log(1.0001));
    uint32_t bits;
    memcpy(&bits, &value, 4);
    put_u32(w, bits);
}

static void put_bits(unsigned char *to, size_t *at, uint32_t value, int count) {
    for (int i = 0; i < count; i++, (*at)++)
        to[*at / 8] |= (unsigned char)((value >> i & 1) << (*at % 8));
}

/* Numbers of 2-grams and 3-grams: indices into these. */
static void put_tables(writer *w) {
    static const double tables[3][8] = {{-0.3, -0.4, -0.8, -0.2},
                                        {-0.05, -0.25, 0, 0},
                                        {-0.11, -0.12}};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 65536; k++)
            put_log(w, k < 8 ? tables[i][k] : 0);
}

unsigned char *make_sphinx_file(size_t *size) {
    /* </s> 0, <s> 1, a 2, b 3, c 4; 2-grams by last word: a </s>, b </s>, <s> a, a b */
    static const uint32_t first[WORDS + 1] = {0, 2, 2, 3, 4, 4};
    static const double probs[WORDS] = {-1, -99, -0.6, -0.7, -1.5};
    static const double backoffs[WORDS] = {0, -0.3, -0.2, -0.1, 0};
    static const uint32_t bigrams[BIGRAMS][3] = {{2, 2, 2},
                                                 {3, 3, 3},
                                                 {1, 0, 0},
                                                 {2, 1, 1}}; /* word, back-off, prob */
    static const uint32_t next[BIGRAMS + 1] = {0, 0, 1, 1, 2};
    static const uint32_t trigrams[TRIGRAMS][2] = {{2, 1}, {1, 0}}; /* word, prob */
    static const char words[] = "</s>\0<s>\0a\0b\0c";
    writer w = {calloc(1, ROOM), 20};
    if (!w.bytes)
        return NULL;
    memcpy(w.bytes, "Trie Language Model\3", 20);
    put_u32(&w, WORDS);
    put_u32(&w, BIGRAMS + 1); /* one too many, as in the real file */
    put_u32(&w, TRIGRAMS);
    put_u32(&w, 1);
    put_tables(&w);
    for (int i = 0; i <= WORDS; i++) {
        put_log(&w, i < WORDS ? probs[i] : 0);
        put_log(&w, i < WORDS ? backoffs[i] : 0);
        put_u32(&w, first[i]);
    }
    size_t at = 0;
    for (int i = 0; i <= BIGRAMS; i++) {
        put_bits(w.bytes + w.at, &at, i < BIGRAMS ? bigrams[i][0] : 0, WORD_BITS);
        put_bits(w.bytes + w.at, &at, i < BIGRAMS ? bigrams[i][1] : 0, 16);
        put_bits(w.bytes + w.at, &at, i < BIGRAMS ? bigrams[i][2] : 0, 16);
        put_bits(w.bytes + w.at, &at, next[i], NEXT_BITS);
    }
    w.at += ((BIGRAMS + 2) * (WORD_BITS + 32 + NEXT_BITS) + 7) / 8 + 8;
    at = 0;
    for (int i = 0; i < TRIGRAMS; i++) {
        put_bits(w.bytes + w.at, &at, trigrams[i][0], WORD_BITS);
        put_bits(w.bytes + w.at, &at, trigrams[i][1], 16);
    }
    w.at += ((TRIGRAMS + 1) * (WORD_BITS + 16) + 7) / 8 + 8;
    put_u32(&w, sizeof words);
    memcpy(w.bytes + w.at, words, sizeof words);
    *size = w.at + sizeof words;
    return w.bytes;
}
