/* Readers of the folder's lists of tokens, for hf.c. `label` names the file. */
#ifndef SHOAL_SPEECH_HF_PARTS_H
#define SHOAL_SPEECH_HF_PARTS_H

#include <jansson.h>

#include "speech/hf.h"

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
