/* Small speech models that tests write themselves: the same weights and tokens as a ggml
   file and as a Hugging Face folder. */
#ifndef SHOAL_TESTS_DATA_MODEL_H
#define SHOAL_TESTS_DATA_MODEL_H

#include "folders.h"
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

#endif
