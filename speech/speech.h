/* The speech model behind shoal.h: everything that one window needs, made once. */
#ifndef SHOAL_SPEECH_SPEECH_H
#define SHOAL_SPEECH_SPEECH_H

#include "shoal_speech.h"
#include "speech/decode_search.h"
#include "speech/mel.h"
#include "speech/speech_segments.h"
#include "speech/speech_source.h"
#include "speech/whisper.h"

enum {
    SPEECH_TEXT = 64 << 10, /* bytes of a window's text; longer ones are cut */
    SPEECH_SAMPLES = 5,     /* texts drawn at a temperature, of which the best counts */
    SPEECH_MOST_BEAMS = 64
};

struct shoal_speech {
    shoal_context *context;
    whisper_model *model;
    whisper_encoder *encoder;
    mel *mel;
    decoder *decoder;
    search *search;
    size_t bytes;          /* of this block */
    float *features;       /* [mels][MEL_FRAMES] */
    int32_t *prompt;       /* [text positions] */
    int32_t *past;         /* [2 * text positions]: what was said before */
    segment_cut *cuts;     /* [text positions + 1] */
    char *text;            /* [SPEECH_TEXT] */
    unsigned char *packed; /* room for compression_ratio */
};

/* One window's text, as the search that counted gave it. */
typedef struct {
    const int32_t *sampled; /* [count], valid until the next search */
    int count;
    double temperature, mean_logprob, no_speech, compression;
} window_text;

typedef struct {
    int32_t language; /* token, or -1 for models that know English only */
    bool translate, timestamps, fallback;
    int beams;
    uint64_t seed;
    const int32_t *past; /* [past_count]: what was said before */
    int past_count;
} window_task;

/* After decoder_hear: decodes at rising temperatures until the text is believable.
   Returns how many attempts there were. */
int sh_speech_decode_window(shoal_speech *speech, const window_task *task,
                            window_text *result);

/* A window that holds no speech. */
bool sh_speech_is_silent(const window_text *result);

/* Bytes of the text in speech->text, which ends in 0. */
size_t sh_speech_write_text(shoal_speech *speech, const int32_t *sampled, int count);

#endif
