/* whisper.cpp's model files ("ggml-tiny.bin"): magic, 11 sizes, mel filters, tokens as
   raw bytes, and tensors to the end of the file, all little-endian int32 and floats
   without any alignment. f32 and f16 only: a quantised file is refused by its type. */
#ifndef SHOAL_SPEECH_GGML_H
#define SHOAL_SPEECH_GGML_H

#include "speech/speech_file.h"

shoal_status sh_ggml_open(shoal_context *context, const char *path, speech_file **file);

/* The same for bytes that outlive the object; `label` names them in messages. */
shoal_status sh_ggml_parse(shoal_context *context, const char *label,
                           const unsigned char *bytes, size_t size, speech_file **file);

/* Do the bytes begin as such a file does? */
bool sh_ggml_looks_like(const unsigned char *bytes, size_t size);

#endif
