/* Fuzz target of ggml speech models. An input that begins with 'T' is the tensors after
   valid sizes, filters and tokens; with 'Q' the same for a width of 32, whose matrices
   may be quantised; any other is a complete file. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_data_ggml"
#include "fuzz.h"

#include "speech/audio/mel.h"
#include "speech/whisper/whisper_file.h"

enum { TOKENS = 50257, MELS = 80, HEAD = 14 * 4 + MELS * MEL_BINS * 4 + 4 + TOKENS * 5 };

/* Sizes of a model of this width with one layer on each side, zero filters, tokens of
   one byte. */
static void write_head(unsigned char *head, int32_t width) {
    const int32_t sizes[] = {0x67676d6c, 51865, 1500, width, 1, 1,    8,
                             width,      1,     1,    MELS,  1, MELS, MEL_BINS};
    const int32_t count = TOKENS, length = 1;
    unsigned char *at = head + sizeof sizes + MELS * MEL_BINS * 4;
    memset(head, 0, HEAD);
    memcpy(head, sizes, sizeof sizes);
    memcpy(at, &count, 4);
    at += 4;
    for (int i = 0; i < TOKENS; i++, at += 5) {
        memcpy(at, &length, 4);
        at[4] = (unsigned char)i;
    }
}

static void check(const whisper_file *file) {
    require(file->sizes.audio_width > 0 && file->sizes.mels > 0, "sizes are positive");
    require(sh_whisper_file_tensor(file, "decoder.ln.bias") != NULL, "weights are there");
    char text[16];
    sh_tokens_decode(&file->tokens, (int32_t[]){0, 200, 50256, 50300}, 4, text,
                     sizeof text);
    for (int64_t i = 0; i < file->tensor_count; i++) {
        const int64_t count = sh_file_tensor_elements(&file->tensors[i]);
        float *values = malloc((size_t)count * sizeof *values + 1);
        require(values && sh_file_tensor_to_f32(NULL, &file->tensors[i], values) == 0,
                "every tensor has values");
        free(values);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned char head[HEAD];
    whisper_file *file;
    bool tensors = size > 0 && (data[0] == 'T' || data[0] == 'Q');
    if (tensors)
        write_head(head, data[0] == 'T' ? 2 : 32);
    size_t before = tensors ? HEAD : 0, after = size - tensors;
    unsigned char *bytes = malloc(before + after + (size == 0));
    require(bytes != NULL, "there is memory");
    memcpy(bytes, head, before);
    if (after)
        memcpy(bytes + before, data + tensors, after);
    if (judged(sh_ggml_parse(fuzz_context(), "input", bytes, before + after, &file)))
        check(file);
    sh_whisper_file_close(file);
    free(bytes);
    return 0;
}
