/* Fuzz target of lexicons. The first byte selects options: 's' keeps the stress, 'g'
   allows only the phones A, B and SIL. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_lexicon"
#include "fuzz.h"

#include "speech/words/lexicon.h"

/* Every word has phones, can be found, and is sorted. */
static void check(const shoal_lexicon *lexicon) {
    const shoal_lexicon_info info = *shoal_lexicon_describe(lexicon);
    require(info.words > 0 && info.phones > 0, "there are words and a silence");
    for (int64_t w = 0; w < info.words; w++) {
        const char *text = shoal_lexicon_word(lexicon, w);
        require(text[0] != 0, "words have letters");
        require(w == 0 || strcmp(shoal_lexicon_word(lexicon, w - 1), text) < 0,
                "words are in order");
        require(shoal_lexicon_find(lexicon, text) == w, "a word is found");
        const int64_t count = shoal_lexicon_pronunciations(lexicon, w);
        require(count > 0, "a word has pronunciations");
        for (int64_t i = 0; i < count; i++) {
            const int32_t *phones;
            const int64_t length = shoal_lexicon_pronunciation(lexicon, w, i, &phones);
            require(length > 0, "a pronunciation has phones");
            for (int64_t k = 0; k < length; k++)
                require(shoal_lexicon_phone(lexicon, phones[k]) != NULL,
                        "phones are there");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const given[] = {"A", "B", "SIL"};
    if (size == 0)
        return 0;
    const shoal_lexicon_options options = {.size = sizeof(shoal_lexicon_options),
                                           .keep_stress = data[0] == 's',
                                           .phones = given,
                                           .phone_count = data[0] == 'g' ? 3 : 0};
    char *text = (char *)exact_copy(data + 1, size - 1);
    shoal_lexicon *lexicon = NULL;
    lexicon_draft *draft;
    require(sh_lexicon_begin(fuzz_context(), &options, &draft) == SHOAL_OK,
            "there is memory");
    shoal_status status = sh_lexicon_add(draft, "input", text, size - 1);
    status = sh_lexicon_end(draft, status, &lexicon);
    if (judged(status))
        check(lexicon);
    shoal_lexicon_destroy(lexicon);
    free(text);
    return 0;
}
