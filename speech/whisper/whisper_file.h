/* A Whisper model as it lies on the disk, whatever wrote it: sizes, mel filters, tokens
   and weights. Two readers fill the same description: of one file, whisper.cpp's
   (ggml), and of a Hugging Face folder (hf.c). The model's code sees only this header.

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

#include <jansson.h>

#include "models/files/safetensors.h"
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

/* ---- For the readers and their tests ----------------------------------------------- */

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

/* The expected weights, and the one block in which a whisper_file lies. `label` names the
   file in messages. Sizes that could be a model's. */
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
   q4_0, q4_1, q5_0, q5_1 and q8_0: other types are refused by their names. The bytes
   outlive the object. */
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
