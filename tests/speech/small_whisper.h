/* Small Whisper models with random weights, written by tests. */
#ifndef SHOAL_TESTS_SMALL_WHISPER_H
#define SHOAL_TESTS_SMALL_WHISPER_H

#include "folders.h"
#include "shoal_speech.h"
#include "speech/whisper/speech.h"

enum { SMALL_WIDTH = 12, SMALL_HEADS = 3, SMALL_LAYERS = 2, SMALL_TEXT = 40 };

typedef struct {
    int32_t vocabulary; /* 51864, 51865 or 51866 */
    bool half;          /* matrices in half precision; the rest is always float32 */
    uint64_t seed;
    bool tiny; /* width 4, 2 heads, 1 layer, 16 text positions instead of the above */
    int32_t quantised; /* ggml's number of the matrices' type, or 0 to follow `half`;
                          the width is then 32 */
} small_whisper;

whisper_sizes small_sizes(const small_whisper *model);

/* A ggml file in memory. */
typedef struct {
    unsigned char *bytes; /* allocated by malloc */
    size_t size;
    size_t tokens_begin, tensors_begin; /* offsets of these parts */
} made_model;
made_model make_ggml(const small_whisper *model);

/* Writes a new ggml file under /tmp and returns its path; drop_whisper removes it. */
char *write_whisper(const small_whisper *model);
void drop_whisper(char *path);

/* Writes a Hugging Face folder: config.json, vocab.json and model.safetensors (or, with
   `shards`, an index and two files) into an existing folder. */
void make_hf_folder(shoal_context *context, const whisper_file *model, const char *folder,
                    bool shards);

/* Written and opened. */
typedef struct {
    shoal_context *context;
    char *path;
    shoal_speech *speech;
} opened;

opened open_small(const small_whisper *model, const char *kind, int threads);
void close_small(opened *o);

float *floats(int64_t count); /* allocated by malloc */

/* `count` samples of voice-like noise, a pure function of its arguments. */
void make_samples(uint64_t seed, int64_t count, float *samples);

#endif
