/* Shoal's speech: recordings become text. */
#ifndef SHOAL_SPEECH_H
#define SHOAL_SPEECH_H

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Speech ------------------------------------------------------------------------ */

/* Whisper, whole: recordings become text, and any kind of attention runs the encoder. In
   builds without the models' libraries these functions are absent.

       shoal_speech *speech;
       const char *path = "talk.flac";
       shoal_recording talk = {.paths = &path, .files = 1};
       shoal_speech_open(context, "ggml-tiny.bin", NULL, &speech);
       shoal_speech_transcribe(speech, &talk, NULL, print_segment, NULL, NULL);
       shoal_speech_close(speech); */
typedef struct shoal_speech shoal_speech;

typedef struct {
    const char *attention; /* of the encoder; NULL: full */
    int beams;             /* most texts that a search follows side by side, 1 to 64;
                              0: 5, which the samples of a fallback need */
} shoal_speech_options;

/* Opens a model: a ggml file as whisper.cpp reads it (f32 or f16), or a Hugging Face
   folder. options may be NULL. The context must outlive it. */
SHOAL_API shoal_status shoal_speech_open(shoal_context *context, const char *path,
                                         const shoal_speech_options *options,
                                         shoal_speech **speech);
SHOAL_API void shoal_speech_close(shoal_speech *speech); /* NULL is legal */

/* Another attention for the encoder; when it is refused the one before stays. */
SHOAL_API shoal_status shoal_speech_set_attention(shoal_speech *speech,
                                                  const char *attention);

typedef struct {
    int32_t mels, frames;     /* features of a window of 30 s: [mels][frames] */
    int32_t positions, width; /* the encoder's output: [positions][width] */
    int32_t heads, layers;    /* of the encoder */
    int32_t text_positions, text_layers, vocabulary;
    int32_t multilingual; /* 0: English only */
    size_t bytes;         /* of memory, without the mapped file */
} shoal_speech_info;
SHOAL_API shoal_speech_info shoal_speech_describe(const shoal_speech *speech);

/* What is listened to: files (WAV, FLAC, OGG, MP3 ..., any rate and channels), one after
   another with `gap` seconds of silence between; or samples in memory. Files are read
   as they are needed: memory does not grow with their length. */
typedef struct {
    const char *const *paths; /* [files] */
    int files;                /* 0: the samples below */
    double gap;
    const float *samples; /* [sample_count], mono, 16 kHz */
    int64_t sample_count;
} shoal_recording;

/* The steps one by one. Features of the 30 s from `begin` seconds on, padded with silence
   (features: [mels][frames]; *seconds: how much of it is recording, may be NULL); the
   encoder (encoded: [positions][width]); and the decoder's logits after each token of a
   text (logits: [count][vocabulary], 1 <= count <= text_positions). */
SHOAL_API shoal_status shoal_speech_features(shoal_speech *speech,
                                             const shoal_recording *recording,
                                             double begin, float *features,
                                             double *seconds);
SHOAL_API shoal_status shoal_speech_encode(shoal_speech *speech, const float *features,
                                           float *encoded);
SHOAL_API shoal_status shoal_speech_logits(shoal_speech *speech, const float *encoded,
                                           const int32_t *tokens, int64_t count,
                                           float *logits);

/* All zero is the published decoding: language detected, greedy with timestamps, other
   temperatures where the text repeats itself or is unlikely, silence left out, each window
   told what was said before. */
typedef struct {
    const char *language; /* "en", "english" ...; NULL: detected in the first window */
    int translate;        /* nonzero: into English */
    int beams;            /* 0 or 1: greedy; more: beam search */
    int no_timestamps;    /* nonzero: one segment per window of 30 s */
    int no_context;       /* nonzero: every window begins afresh */
    int no_fallback;      /* nonzero: temperature 0 only, and nothing taken for silence */
    uint64_t seed;        /* of the samples at temperatures above 0 */
    /* Called after each window with the seconds done and those that the file names; may be
       NULL. */
    void (*progress)(void *user, double done, double all);
} shoal_transcribe_options;

typedef struct {
    double begin, end;     /* seconds */
    const char *text;      /* UTF-8 as the model wrote it, a leading space included */
    const int32_t *tokens; /* [token_count], timestamps included */
    int64_t token_count;
    double temperature, mean_logprob, no_speech; /* of the window it comes from */
    double
        compression; /* bytes of the window's text over those of zlib; a high value is a
                           text that repeats itself */
} shoal_segment;

/* Called for every segment in order; what it points to lives until it returns. Not 0: stop
   here, which is no error. */
typedef int shoal_segment_function(void *user, const shoal_segment *segment);

typedef struct {
    char language[16];                       /* code; "en" for English-only models */
    double language_probability;             /* 1 when it was given */
    double seconds;                          /* of the recording that were gone through */
    double encoder_seconds, decoder_seconds; /* time they took */
    int64_t windows, fallbacks, silent;      /* windows; decoded again; left out */
    int64_t tokens;                          /* sampled in the end */
} shoal_transcription;

/* options, segment and summary may be NULL; user goes to both callbacks. */
SHOAL_API shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                               const shoal_recording *recording,
                                               const shoal_transcribe_options *options,
                                               shoal_segment_function *segment,
                                               void *user, shoal_transcription *summary);

typedef struct {
    int64_t words; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_word_errors;

/* Adds the word errors of a text to *errors, after the usual normalisation of English on
   both sides: lower case, no punctuation, numbers as digits, contractions and titles
   spelled out, American spelling. */
SHOAL_API shoal_status shoal_count_word_errors(shoal_context *context,
                                               const char *reference, const char *text,
                                               shoal_word_errors *errors);

#ifdef __cplusplus
}
#endif
#endif
