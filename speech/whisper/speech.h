/* The model behind shoal_speech.h, with everything that one window needs, made once; and
   the parts of transcribing that are pure functions. */
#ifndef SHOAL_SPEECH_WHISPER_SPEECH_H
#define SHOAL_SPEECH_WHISPER_SPEECH_H

#include "shoal_speech.h"
#include "speech/audio/audio.h"
#include "speech/audio/mel.h"
#include "speech/whisper/align.h"
#include "speech/whisper/search.h"
#include "speech/whisper/whisper.h"

enum {
    SPEECH_TEXT = 64 << 10, /* bytes of a window's text; longer ones are cut */
    SPEECH_SAMPLES = 5,     /* texts drawn at a temperature, of which the best counts */
    SPEECH_MOST_BEAMS = 64,
    SPEECH_MOST_BATCH = 64,
    SPEECH_BATCH = 16,             /* windows side by side, unless asked otherwise, */
    SPEECH_BATCH_BYTES = 256 << 20 /* as long as keys and values of their sound fit */
};

enum {
    TIME_STEPS_PER_SECOND = 50, /* of timestamp tokens */
    FRAMES_PER_STEP = 2,
    FRAMES_PER_SECOND = 100
};

typedef struct {
    int first, end;      /* tokens first .. end - 1 */
    double begins, ends; /* seconds from the window's beginning */
} segment_cut;

struct shoal_speech {
    shoal_context *context;
    shoal_speech_info info; /* of the last shoal_speech_describe */
    whisper_model *model;
    whisper_encoder *encoder;
    mel *mel;
    decoder *decoder;
    search *search;
    aligner *aligner;      /* made when words are first asked for */
    int beams;             /* of a search, at most */
    bool force;            /* kinds that make no sense are taken too */
    size_t bytes;          /* of this block */
    float *features;       /* [mels][MEL_FRAMES] */
    int32_t *prompt;       /* [text positions + 4] */
    int32_t *past;         /* [2 * text positions]: what was said before */
    segment_cut *cuts;     /* [text positions + 1] */
    char *text;            /* [SPEECH_TEXT] */
    unsigned char *packed; /* [sh_compression_room(SPEECH_TEXT)] */
};

/* Where a window's tokens are cut into segments, as the published transcription cuts
   them. sampled: [count]; frames: how many of the window are recording. cuts: room for
   count + 1. Returns how many there are; *advance: frames to the next window, at least 1.
   */
int sh_segments_cut(const int32_t *sampled, int count, int32_t first_timestamp,
                    int64_t frames, segment_cut *cuts, int64_t *advance);

/* Seconds of a window's sound, all of it speech, that its text passes over: segments last
   longer than so few tokens can, or the text ends at once. What follows a text that ends
   early is heard again, and not counted. cuts: room as above. */
double sh_seconds_passed_over(const int32_t *sampled, int count, int32_t first_timestamp,
                              int64_t frames, segment_cut *cuts);

/* Root mean squares of the loudest and the quietest tenth of a second. */
typedef struct {
    double loudest, quietest;
} sound_level;
sound_level sh_sound_level(const float *samples, int64_t count);

/* Bytes of the text over the bytes that zlib makes of it; 0 for no text. `room` is memory
   of sh_compression_room(size). */
double sh_compression_ratio(const char *text, unsigned long size, unsigned char *room);
unsigned long sh_compression_room(unsigned long size);

#endif
