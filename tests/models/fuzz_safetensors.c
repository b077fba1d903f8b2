/* Fuzz target of safetensors files: tensors of accepted files are within the file,
   cover it, and are found by name. */
#define _GNU_SOURCE
#define FUZZ_NAME "fuzz_data_safetensors"
#include "fuzz.h"

#include "models/files/safetensors.h"

static void check(const safetensors *file, const unsigned char *bytes, size_t size) {
    size_t covered = 0;
    for (int64_t i = 0; i < sh_safetensors_count(file); i++) {
        const file_tensor *t = sh_safetensors_at(file, i);
        const unsigned char *data = t->data;
        require(data >= bytes + 8 && data <= bytes + size &&
                    t->bytes <= (size_t)(bytes + size - data),
                "a tensor lies within the file");
        require(t->rank >= 0 && t->rank <= FILE_TENSOR_RANK, "the rank is possible");
        require(sh_safetensors_find(file, t->name) == t, "a tensor is found by its name");
        covered += t->bytes;
        volatile unsigned char sum = 0;
        for (size_t b = 0; b < t->bytes; b++)
            sum = (unsigned char)(sum + data[b]);
    }
    require(covered <= size - 8, "tensors do not overlap");
    const char *key;
    json_t *note;
    json_object_foreach(sh_safetensors_notes(file), key, note) {
        const char *value = sh_safetensors_note_of(file, key);
        require(value && json_string_value(note) == value, "a note is found by its key");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    safetensors *file;
    unsigned char *bytes = exact_copy(data, size);
    if (judged(sh_safetensors_parse(fuzz_context(), "input", bytes, size, &file)))
        check(file, bytes, size);
    sh_safetensors_close(file);
    free(bytes);
    return 0;
}
