/* Small speech models that tests write themselves: the same weights and tokens as a ggml
   file and as a Hugging Face folder. */
#ifndef SHOAL_TESTS_DATA_MODEL_H
#define SHOAL_TESTS_DATA_MODEL_H

#include "speech/whisper_file.h"

typedef struct {
    unsigned char *bytes; /* malloc's */
    size_t size;
    size_t tokens_begin, tensors_begin; /* where those parts begin */
} made_model;

/* Width 4, 2 heads, 1 encoder and 1 decoder layer, 16 text positions, 80 mel bands;
   matrices are F16 and the rest F32. vocabulary: 51864, 51865 or 51866. */
whisper_sizes made_sizes(int32_t vocabulary);
made_model make_ggml(int32_t vocabulary);

/* config.json, vocab.json and model.safetensors (or, with `shards`, an index and two
   files) into an existing folder. */
void make_hf_folder(shoal_context *context, const whisper_file *model, const char *folder,
                    bool shards);

/* A whole small file; fails the test when it cannot be written. */
void write_bytes_to(const char *path, const void *bytes, size_t size);
/* A new folder under /tmp; the text is valid for the program's life. */
const char *make_folder(void);
void remove_folder(const char *folder); /* and the files in it, and one level below */

/* An allocator that refuses the call number `fail_at` (from 0; -1: none). */
typedef struct {
    int64_t calls, live, fail_at;
} counted_memory;
shoal_context *counted_context(counted_memory *memory, int threads);

#endif
