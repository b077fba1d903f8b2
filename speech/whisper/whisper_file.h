/* A Whisper model as it lies on the disk, whatever wrote it: sizes, mel filters, tokens
   and weights. Two readers fill the same description: ggml.c (one file, whisper.cpp's)
   and hf.c (a Hugging Face folder). The model's code sees only this header.

       whisper_file *file;
       shoal_status status = sh_whisper_file_open(context, path, &file);
       const file_tensor *w = sh_whisper_file_tensor(
           file, "encoder.blocks.%d.attn.%s.weight", 0, "query");

   NAMES. Weights have the names of the published model, which ggml files use as they are
   and which Hugging Face's names are mapped to. E, T: widths of encoder and decoder:

     encoder.conv1.weight [E][mels][3]            encoder.conv1.bias [E]
     encoder.conv2.weight [E][E][3]               encoder.conv2.bias [E]
     encoder.positional_embedding [audio positions][E]
     encoder.blocks.I.{attn_ln,mlp_ln}.{weight,bias} [E]
     encoder.blocks.I.attn.{query,key,value,out}.weight [E][E] (outputs first)
     encoder.blocks.I.attn.{query,value,out}.bias [E]          (the key has none)
     encoder.blocks.I.mlp.0.weight [4E][E]        encoder.blocks.I.mlp.0.bias [4E]
     encoder.blocks.I.mlp.2.weight [E][4E]        encoder.blocks.I.mlp.2.bias [E]
     encoder.ln_post.{weight,bias} [E]
     decoder.token_embedding.weight [vocabulary][T]            (also the output layer)
     decoder.positional_embedding [text positions][T]
     decoder.blocks.I.*  as the encoder's, of width T, and besides
     decoder.blocks.I.cross_attn_ln.{weight,bias} [T]
     decoder.blocks.I.cross_attn.{query,value,out}.weight [T][T], .bias [T]
     decoder.blocks.I.cross_attn.key.weight [T][T]
     decoder.ln.{weight,bias} [T]

   An opened file has all of them, in these shapes, as F32, F16 or (Hugging Face) BF16;
   matrices also as ggml's quantised types. */
#ifndef SHOAL_SPEECH_WHISPER_WHISPER_FILE_H
#define SHOAL_SPEECH_WHISPER_WHISPER_FILE_H

#include "models/files/tensors.h"
#include "speech/whisper/tokens.h"

typedef struct {
    int32_t vocabulary;      /* 51864 (English only), 51865, 51866 (large-v3) */
    int32_t audio_positions; /* 1500 */
    int32_t audio_width, audio_heads, audio_layers;
    int32_t text_positions;                      /* 448 */
    int32_t text_width, text_heads, text_layers; /* text_width = audio_width */
    int32_t mels;                                /* 80 or 128 */
} whisper_sizes;

/* One head of the decoder's attention over the audio. */
typedef struct {
    int32_t layer, head;
} decoder_head;

enum { FILE_HEADS_MOST = 64 };

typedef struct {
    whisper_sizes sizes;
    const float *mel_filters;                /* [mels][MEL_BINS], for mel.h; aligned */
    tokens tokens;                           /* tokens.h */
    decoder_head alignment[FILE_HEADS_MOST]; /* heads that follow the speech, */
    int alignment_count;                     /* where the file names them */
    int64_t tensor_count;
    const file_tensor *tensors;    /* sorted by name */
    struct whisper_source *source; /* the reader's own: mappings and memory */
} whisper_file;

/* Opens a ggml file or a Hugging Face folder (or the config.json in one). On failure
   *file is NULL. */
shoal_status sh_whisper_file_open(shoal_context *context, const char *path,
                                  whisper_file **file);
void sh_whisper_file_close(whisper_file *file); /* NULL is legal */

/* Once the weights are copied: gives up the mappings, so that nothing happens to the
   model when its files change. Sizes, filters and tokens stay. */
void sh_whisper_file_unmap(whisper_file *file);

/* A weight by its name, printf style; NULL when the file has none of that name, which
   cannot be for the names above. */
const file_tensor *sh_whisper_file_tensor(const whisper_file *file, const char *format,
                                          ...) __attribute__((format(printf, 2, 3)));

#endif
