/* Fuzz target of language models in ARPA format. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_arpa"
#include "fuzz.h"

#include <math.h>

#include "speech/words/ngram.h"

/* Backing off ends after some steps, and every word has a probability. */
static void check(const shoal_ngram *model) {
    require(model->word_count == model->levels[1].count, "words are 1-grams");
    int32_t state = 0, next;
    for (int i = 0; i < 64; i++) {
        const int32_t word = (int32_t)((unsigned)i * 7u % (unsigned)model->word_count);
        require(sh_ngram_find(model, sh_ngram_text(model, word),
                              strlen(sh_ngram_text(model, word))) == word,
                "a word is found");
        const float prob = sh_ngram_next(model, state, word, &next);
        require(isfinite(prob), "a probability is a number");
        require(isfinite(sh_ngram_step(model, state, word, &state)), "a step's, too");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shoal_ngram *model;
    unsigned char *bytes = exact_copy(data, size);
    if (judged(sh_arpa_parse(fuzz_context(), "input", bytes, size, &model)))
        check(model);
    shoal_ngram_destroy(model);
    free(bytes);
    return 0;
}
