/* What the two readers of Whisper models, ggml.c and hf.c, offer and share: the expected
   weights and the one block in which a whisper_file lies. `label` names the file in
   messages. */
#ifndef SHOAL_SPEECH_WHISPER_WHISPER_READERS_H
#define SHOAL_SPEECH_WHISPER_WHISPER_READERS_H

#include <jansson.h>

#include "models/files/safetensors.h"
#include "speech/whisper/whisper_file.h"

enum { WEIGHT_NAME = 64 }; /* bytes of a weight's name with its 0, at most */

struct whisper_source {
    shoal_context *context;
    file_map map;         /* ggml: the file */
    safetensors *weights; /* Hugging Face: the folder's */
    float *mel_filters;   /* [mels][MEL_BINS] */
    unsigned char *bytes; /* of the tokens */
    uint32_t *begin;      /* [vocabulary + 1] */
    int32_t *by_bytes;    /* [end_of_text] */
    file_tensor *tensors; /* [sh_whisper_tensor_count] */
    char (*names)[WEIGHT_NAME];
};

/* Sizes that could be a model's. */
shoal_status sh_whisper_sizes_check(shoal_context *context, const char *label,
                                    const whisper_sizes *sizes);

/* How many weights a model of these sizes has. */
int64_t sh_whisper_tensor_count(const whisper_sizes *sizes);

/* Every weight is there, in its shape and of a type we read. `sorted` has `count` of them
   under canonical names; more than expected, or a name twice, is refused too. */
shoal_status sh_whisper_tensors_check(shoal_context *context, const char *label,
                                      const whisper_sizes *sizes,
                                      const file_tensor *sorted, int64_t count);

/* One block: the file and room for everything in its source, token_bytes bytes of tokens
   among it. Sizes must have been checked. */
shoal_status sh_whisper_file_allocate(shoal_context *context, const whisper_sizes *sizes,
                                      size_t token_bytes, whisper_file **file);

/* Points the tokens to their bytes, sorts them and finds the suppressed ones. */
void sh_whisper_file_finish_tokens(whisper_file *file);

/* ---- ggml: whisper.cpp's files -------------------------------------------------- */

/* "ggml-tiny.bin": magic, 11 sizes, mel filters, tokens as raw bytes, and tensors to the
   end of the file, all little-endian int32 and floats without any alignment. f32, f16,
   q4_0, q4_1, q5_0, q5_1 and q8_0: other types are refused by their names. */
shoal_status sh_ggml_open(shoal_context *context, const char *path, whisper_file **file);

/* The same for bytes that outlive the object. */
shoal_status sh_ggml_parse(shoal_context *context, const char *label,
                           const unsigned char *bytes, size_t size, whisper_file **file);

/* ---- Hugging Face folders ------------------------------------------------------- */

/* Files of the folder:
     config.json                       sizes; model_type must be "whisper"
     model.safetensors, or model.safetensors.index.json and its shards
     vocab.json or tokenizer.json      byte-level text tokens (GPT-2's spelling of bytes)
     added_tokens.json                 if there: special tokens must have the rule's ids
     generation_config.json            if there: suppress_tokens, begin_suppress_tokens
   Mel filters are computed (mel.h), as the feature extractor does. Weights get the names
   of whisper_file.h; a proj_out.weight is taken to be the tied embedding and not read. */
shoal_status sh_hf_open(shoal_context *context, const char *folder, whisper_file **file);

/* The parts that are pure functions of a file's bytes, for tests and fuzzing. */
shoal_status sh_hf_parse_config(shoal_context *context, const char *label,
                                const char *text, size_t size, whisper_sizes *sizes);

/* Text tokens of vocab.json (or of tokenizer.json, whose "model" has a "vocab"). `bytes`
   has `size` places (a token is never longer than its spelling), `begin` t->count + 1; on
   success t->bytes and t->begin point to them. t must have its layout. */
shoal_status sh_hf_parse_vocabulary(shoal_context *context, const char *label,
                                    const char *text, size_t size, unsigned char *bytes,
                                    uint32_t *begin, tokens *t);

/* "model.encoder.layers.3.self_attn.q_proj.weight" to
   "encoder.blocks.3.attn.query.weight"; false when it is none of ours. */
bool sh_hf_canonical_name(const char *name, char *canonical, size_t size);

/* added_tokens.json, {"<|en|>": 50259}: special tokens have the ids of the rule. */
shoal_status sh_hf_check_added(shoal_context *context, const char *label,
                               const json_t *root, tokens *t);
/* tokenizer.json, "added_tokens": [{"id": 50259, "content": "<|en|>"}]. */
shoal_status sh_hf_check_tokenizer(shoal_context *context, const char *label,
                                   const json_t *root, tokens *t);
/* generation_config.json: suppress_tokens and begin_suppress_tokens, where they are
   lists; without them the published ones stay. */
shoal_status sh_hf_read_suppressed(shoal_context *context, const char *label,
                                   const json_t *root, tokens *t);

#endif
