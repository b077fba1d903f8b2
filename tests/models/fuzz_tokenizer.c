/* Fuzz target of tokenizer files: tokenizer.json; after a 'W', vocab.txt; after a 'P',
   vocab.json, a zero byte and merges.txt. An accepted tokenizer gives valid ids and
   spans inside the text. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_tokenizer"
#include "fuzz.h"

#include "models/text/tokenizer.h"

static void check(shoal_tokenizer *tokenizer) {
    static const char text[] = "The ab\xcc\x81 [MASK] <s>don't  \xe4\xb8\xad\n12 aaaaaaaa"
                               "\xef\xac\x81\xcc\x88\xc2\xbd <mask> "
                               "\xf0\x9f\x98\x80\xe2\x80\x8d\r\n\xe2\x84\xa2";
    shoal_text given = {.size = sizeof(shoal_text),
                        .text = text,
                        .bytes = sizeof text - 1,
                        .pair = "b a",
                        .pair_bytes = 3,
                        .most = 24};
    shoal_tokens tokens;
    shoal_status status = shoal_tokenizer_encode(tokenizer, &given, &tokens);
    if (tokenizer->normal_form.too_long && !judged(status))
        return;
    require(status == SHOAL_OK, "a text is tokenized");
    for (int64_t i = 0; i < tokens.count; i++) {
        require(tokens.ids[i] >= 0 && tokens.ids[i] < shoal_tokenizer_size(tokenizer),
                "an id is below the size");
        require(tokens.spans[2 * i] <= tokens.spans[2 * i + 1] &&
                    tokens.spans[2 * i + 1] <= given.bytes,
                "a span lies in the text");
    }
}

static shoal_status parse_pairs(const char *bytes, size_t size, shoal_tokenizer **made) {
    const char *zero = size ? memchr(bytes, 0, size) : NULL;
    const size_t first = zero ? (size_t)(zero - bytes) : size;
    const text_file words = {"words", bytes, first},
                    merges = {"merges", zero ? zero + 1 : bytes,
                              zero ? size - first - 1 : 0};
    return sh_tokenizer_parse_pairs(fuzz_context(), &words, &merges, NULL, made);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    shoal_tokenizer *made = NULL;
    char *bytes = (char *)exact_copy(data, size);
    shoal_status status;
    if (size > 0 && bytes[0] == 'W')
        status = sh_tokenizer_parse_words(fuzz_context(),
                                          &(text_file){"input", bytes + 1, size - 1},
                                          NULL, &made);
    else if (size > 0 && bytes[0] == 'P')
        status = parse_pairs(bytes + 1, size - 1, &made);
    else
        status = sh_tokenizer_parse(fuzz_context(), "input", bytes, size, &made);
    if (judged(status))
        check(made);
    shoal_tokenizer_destroy(made);
    free(bytes);
    return 0;
}
