/* Fuzz target of language models in Sphinx's binary format. An input that begins with
   'T' is three counts and the data after the tables, which are all -1; any other is a
   complete file. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_sphinx"
#include "fuzz.h"

#include <math.h>

#include "speech/words/ngram.h"

enum { HEAD = 36, TABLES = 3 * 65536 * 4, COUNTS = 12 };

static unsigned char *with_tables(const uint8_t *data, size_t *size) {
    const size_t after = *size - 1 - COUNTS;
    unsigned char *bytes = malloc(HEAD + TABLES + after);
    require(bytes != NULL, "there is memory");
    memcpy(bytes, "Trie Language Model\3", 20);
    memcpy(bytes + 20, data + 1, COUNTS);
    memcpy(bytes + 32, "\1\0\0", 4);
    for (int i = 0; i < TABLES; i += 4)
        memcpy(bytes + HEAD + i, "\0\0\x80\xbf", 4);
    memcpy(bytes + HEAD + TABLES, data + 1 + COUNTS, after);
    *size = HEAD + TABLES + after;
    return bytes;
}

static void check(const shoal_ngram *model) {
    int32_t state = 0;
    for (int i = 0; i < 64; i++) {
        const int32_t word = (int32_t)((unsigned)i * 7u % (unsigned)model->word_count);
        require(isfinite(sh_ngram_step(model, state, word, &state)),
                "a probability is a number");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shoal_ngram *model;
    const bool tables = size > COUNTS && data[0] == 'T';
    unsigned char *bytes = tables ? with_tables(data, &size) : exact_copy(data, size);
    if (judged(sh_sphinx_parse(fuzz_context(), "input", bytes, size, &model)))
        check(model);
    shoal_ngram_destroy(model);
    free(bytes);
    return 0;
}
