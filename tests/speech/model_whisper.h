/* Small Whisper models with random weights that tests write themselves. */
#ifndef SHOAL_TESTS_MODEL_WHISPER_H
#define SHOAL_TESTS_MODEL_WHISPER_H

#include "shoal_speech.h"
#include "speech/speech.h"

enum { SMALL_WIDTH = 12, SMALL_HEADS = 3, SMALL_LAYERS = 2, SMALL_TEXT = 40 };

/* Writes a ggml file into a new file under /tmp and returns its path, which
   drop_whisper removes. Matrices are halves or floats. */
typedef struct {
    int32_t vocabulary; /* 51864, 51865 or 51866 */
    bool half;
    uint64_t seed;
} small_whisper;
char *write_whisper(const small_whisper *model);
void drop_whisper(char *path);

/* Such a model, written and opened. */
typedef struct {
    shoal_context *context;
    char *path;
    shoal_speech *speech;
} opened;

opened open_small(const small_whisper *model, const char *kind, int threads);
void close_small(opened *o);

float *floats(int64_t count); /* malloc's */

/* `count` samples of a voice-like noise, a pure function of its arguments. */
void make_samples(uint64_t seed, int64_t count, float *samples);

#endif
