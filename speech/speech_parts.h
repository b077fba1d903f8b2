/* What the two readers of speech models share: the expected tensors and the one block in
   which a speech_file lies. */
#ifndef SHOAL_SPEECH_SPEECH_PARTS_H
#define SHOAL_SPEECH_SPEECH_PARTS_H

#include "models/files/safetensors.h"
#include "speech/speech_file.h"

enum { SPEECH_NAME = 64 }; /* bytes of a weight's name with its 0, at most */

struct speech_parts {
    shoal_context *context;
    file_map map;         /* ggml: the file */
    safetensors *weights; /* Hugging Face: the folder's */
    float *mel_filters;   /* [mels][MEL_BINS] */
    unsigned char *bytes; /* of the tokens */
    uint32_t *begin;      /* [vocabulary + 1] */
    int32_t *by_bytes;    /* [end_of_text] */
    file_tensor *tensors; /* [speech_tensor_count] */
    char (*names)[SPEECH_NAME];
};

/* Sizes that could be a model's; `label` names the file in messages. */
shoal_status sh_speech_sizes_check(shoal_context *context, const char *label,
                                   const speech_sizes *sizes);

/* How many weights a model of these sizes has. */
int64_t sh_speech_tensor_count(const speech_sizes *sizes);

/* Every weight is there, in its shape and of a type we read. `sorted` has `count` of them
   under canonical names; more than expected, or a name twice, is refused too. */
shoal_status sh_speech_tensors_check(shoal_context *context, const char *label,
                                     const speech_sizes *sizes, const file_tensor *sorted,
                                     int64_t count);

/* One block: the file and room for everything in its source, token_bytes bytes of tokens
   among it. Sizes must have been checked. */
shoal_status sh_speech_file_allocate(shoal_context *context, const speech_sizes *sizes,
                                     size_t token_bytes, speech_file **file);

/* Points the tokens to their bytes, sorts them and finds the suppressed ones. */
void sh_speech_file_finish_tokens(speech_file *file);

#endif
