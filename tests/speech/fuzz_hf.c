/* Fuzz target of the small files of a Hugging Face folder. The first byte selects one:
   'c' config.json, 'v' vocab.json or tokenizer.json, 's' generation_config.json, 'a'
   added_tokens.json, 't' the special tokens of a tokenizer.json, 'n' the name of a
   weight. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_data_hf"
#include "fuzz.h"

#include "models/files/files.h"
#include "speech/whisper/whisper_file.h"

static void try_config(const char *text, size_t size) {
    whisper_sizes sizes;
    if (judged(sh_hf_parse_config(fuzz_context(), "input", text, size, &sizes)))
        require(sizes.audio_width > 0 && sizes.audio_width % sizes.audio_heads == 0,
                "heads divide the width");
}

static void try_vocabulary(const char *text, size_t size) {
    static uint32_t begin[51866];
    tokens t;
    sh_tokens_layout(51865, &t);
    unsigned char *bytes = malloc(size ? size : 1);
    if (judged(sh_hf_parse_vocabulary(fuzz_context(), "input", text, size, bytes, begin,
                                      &t)))
        require(begin[51865] <= size, "tokens are no longer than their spelling");
    free(bytes);
}

static void try_list(char which, const char *text, size_t size) {
    json_t *root;
    tokens t;
    sh_tokens_layout(51865, &t);
    if (!judged(sh_json_object_parse(fuzz_context(), "input", text, size, &root)))
        return;
    if (which == 's')
        judged(sh_hf_read_suppressed(fuzz_context(), "input", root, &t));
    else if (which == 'a')
        judged(sh_hf_check_added(fuzz_context(), "input", root, &t));
    else
        judged(sh_hf_check_tokenizer(fuzz_context(), "input", root, &t));
    for (int32_t i = 0; i < t.suppress_count; i++)
        require(t.suppress[i] >= 0 && t.suppress[i] < t.count &&
                    (i == 0 || t.suppress[i - 1] < t.suppress[i]),
                "suppressed tokens are ids in order");
    json_decref(root);
}

static void try_name(const char *text, size_t size) {
    char *name = malloc(size + 1), canonical[64];
    memcpy(name, text, size);
    name[size] = 0;
    if (sh_hf_canonical_name(name, canonical, sizeof canonical))
        require(strncmp(canonical, "encoder.", 8) == 0 ||
                    strncmp(canonical, "decoder.", 8) == 0,
                "canonical names have a side");
    free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0)
        return 0;
    char *text = (char *)exact_copy(data + 1, size - 1);
    switch (data[0]) {
    case 'c': try_config(text, size - 1); break;
    case 'v': try_vocabulary(text, size - 1); break;
    case 's':
    case 'a':
    case 't': try_list((char)data[0], text, size - 1); break;
    default: try_name(text, size - 1);
    }
    free(text);
    return 0;
}
