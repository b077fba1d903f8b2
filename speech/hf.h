/* A Hugging Face folder of a Whisper model:
     config.json                       sizes; model_type must be "whisper"
     model.safetensors, or model.safetensors.index.json and its shards
     vocab.json or tokenizer.json      byte-level text tokens (GPT-2's spelling of bytes)
     added_tokens.json                 if there: special tokens must have the rule's ids
     generation_config.json            if there: suppress_tokens, begin_suppress_tokens
   Mel filters are computed (mel.h), as the feature extractor does. Weights get the names
   of speech_file.h; a proj_out.weight is taken to be the tied embedding and not read. */
#ifndef SHOAL_SPEECH_HF_H
#define SHOAL_SPEECH_HF_H

#include "speech/speech_file.h"

shoal_status sh_hf_open(shoal_context *context, const char *folder, speech_file **file);

/* The parts that are pure functions of a file's bytes, for tests and fuzzing. */
shoal_status sh_hf_parse_config(shoal_context *context, const char *label,
                                const char *text, size_t size, speech_sizes *sizes);

/* Text tokens of vocab.json (or of tokenizer.json, whose "model" has a "vocab"). `bytes`
   has `size` places (a token is never longer than its spelling), `begin` t->count + 1; on
   success t->bytes and t->begin point to them. t must have its layout. */
shoal_status sh_hf_parse_vocabulary(shoal_context *context, const char *label,
                                    const char *text, size_t size, unsigned char *bytes,
                                    uint32_t *begin, tokens *t);

/* "model.encoder.layers.3.self_attn.q_proj.weight" to
   "encoder.blocks.3.attn.query.weight"; false when it is none of ours. */
bool sh_hf_canonical_name(const char *name, char *canonical, size_t size);

#endif
