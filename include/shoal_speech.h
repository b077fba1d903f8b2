/* Shoal's speech: recordings become text.
 *
 * Whisper, whole: features, encoder, decoder, and the published way of decoding. Any kind
 * of attention runs the encoder, which attends over 1500 positions in every window of
 * 30 s; the decoder's attention is exact. Models are read as others have published them.
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal_speech.h>
 *     #include <stdio.h>
 *
 *     static int print_segment(void *user, const shoal_segment *segment) {
 *         (void)user;
 *         printf("%7.2f %7.2f %s\n", segment->begin, segment->end, segment->text);
 *         return 0;                           // go on
 *     }
 *
 *     int main(void) {
 *         const char *path = "talk.flac";
 *         shoal_recording talk = {.paths = &path, .files = 1};
 *         shoal_speech_options options = {.attention = "shoal-100"};
 *         shoal_context *context;
 *         shoal_speech *speech;
 *         if (shoal_context_create(NULL, &context) != SHOAL_OK ||
 *             shoal_speech_open(context, "ggml-tiny.bin", &options, &speech) ||
 *             shoal_speech_transcribe(speech, &talk, NULL, print_segment, NULL, NULL))
 *             return 1;                       // shoal_context_message(context) says why
 *         shoal_speech_close(speech);
 *         shoal_context_destroy(context);
 *     }
 *
 * THE RULES, ONCE (those of shoal.h hold too)
 *
 * Models.   A ggml file as whisper.cpp reads it (f32 or f16; quantised ones are refused),
 *           or a Hugging Face folder: config.json, model.safetensors or its shards, and
 *           vocab.json or tokenizer.json. All sizes of Whisper, English-only ones too.
 * Sound.    WAV, FLAC, OGG, MP3 and what else libsndfile reads, of any rate and number of
 *           channels: mixed to one and resampled to 16 kHz. Or samples in memory, mono at
 *           16 kHz. NaN and samples beyond 1e9 are refused.
 * Owners.   A speech belongs to its context: close it first. What a recording points to
 *           must live during the call. What a segment points to lives until its callback
 *           returns.
 * Errors.   A file that is missing is SHOAL_IO, one that is damaged SHOAL_BAD_FILE.
 *           Files are read as they are needed, so shoal_speech_transcribe may fail when
 *           it has handed over segments; the summary is of what was done till then.
 * Memory.   Opening allocates what one window needs and tells how much. Transcribing
 *           takes buffers for the sound, which do not grow with its length. The libraries
 *           that read and resample sound use malloc, whatever the context's allocator is.
 *           The model's files stay mapped until the speech is closed: do not write to
 *           them meanwhile.
 * Threads.  As in shoal.h: one context per thread, with all that belongs to it. Callbacks
 *           come in the caller's thread, and must not use the speech they come from.
 * Bits.     The same model, sound, options and seed give the same text on any number of
 *           threads.
 */
#ifndef SHOAL_SPEECH_H
#define SHOAL_SPEECH_H

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Models ----------------------------------------------------------------------- */

typedef struct shoal_speech shoal_speech;

typedef struct {
    const char *attention; /* of the encoder, as shoal_attention_parse takes it; NULL:
                              full. Kinds that take the queries as keys (lsh,
                              shared-full) are refused: the model has keys of its own */
    int beams;             /* most texts that a search follows side by side, 1 to 64;
                              0: 5, which the samples of a fallback need */
    int force; /* nonzero: any kind of attention, whatever it makes of words */
} shoal_speech_options;

/* Opens a model: a file, a folder, or the config.json in one. options may be NULL. */
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

/* ---- Transcribing ----------------------------------------------------------------- */

/* What is listened to: files one after another with `gap` seconds of silence between, or
   samples. */
typedef struct {
    const char *const *paths; /* [files] */
    int files;                /* 0: the samples below */
    double gap;               /* 0 to 3600 */
    const float *samples;     /* [sample_count] */
    int64_t sample_count;
    int partial; /* nonzero: of a file that was cut short or is damaged after its
                    beginning, what is there; 0: it is refused */
} shoal_recording;

/* All zero is the published decoding: language detected, greedy with timestamps, other
   temperatures where the text repeats itself or is unlikely, silence left out, each
   window told what was said before. */
typedef struct {
    const char *language; /* "en", "english" ...; NULL: detected in the first window */
    int translate;        /* nonzero: into English */
    int beams;            /* 0 or 1: greedy; more: beam search */
    int no_timestamps;    /* nonzero: one segment per window of 30 s */
    int no_context;       /* nonzero: every window begins afresh */
    int no_fallback;      /* nonzero: temperature 0 only, and words for all but windows
                             without any sound */
    uint64_t seed;        /* of the samples at temperatures above 0 */
    /* Called after each window with the seconds done and those of the recording, as far
       as its files' headers tell; may be NULL. */
    void (*progress)(void *user, double done, double all);
} shoal_transcribe_options;

typedef struct {
    double begin, end;     /* seconds */
    const char *text;      /* UTF-8 as the model wrote it, a leading space included */
    const int32_t *tokens; /* [token_count], timestamps included */
    int64_t token_count;
    /* Of the window it comes from: */
    double temperature, mean_logprob;
    double no_speech;   /* probability that nothing is said */
    double compression; /* bytes of the text over those that zlib makes of it: high where
                           it repeats itself */
} shoal_segment;

/* Called for every segment in order. Not 0: stop here, which is no error. */
typedef int shoal_segment_function(void *user, const shoal_segment *segment);

typedef struct {
    char language[16];                       /* code; "" where nothing was said */
    double language_probability;             /* 1 when it was given */
    double seconds;                          /* of the recording that were gone through */
    double encoder_seconds, decoder_seconds; /* time they took */
    int64_t windows, fallbacks, silent;      /* windows; decoded again; left out */
    int64_t tokens;                          /* of the texts that were taken */
} shoal_transcription;

/* options, segment and summary may be NULL; user goes to both callbacks. */
SHOAL_API shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                               const shoal_recording *recording,
                                               const shoal_transcribe_options *options,
                                               shoal_segment_function *segment,
                                               void *user, shoal_transcription *summary);

/* ---- The steps one by one --------------------------------------------------------- */

/* Log-mel features of the 30 s from `begin` seconds on, padded with silence; features:
   [mels][frames]. *seconds: how much of it is recording; may be NULL. */
SHOAL_API shoal_status shoal_speech_features(shoal_speech *speech,
                                             const shoal_recording *recording,
                                             double begin, float *features,
                                             double *seconds);

/* The encoder: features [mels][frames] to encoded [positions][width]. */
SHOAL_API shoal_status shoal_speech_encode(shoal_speech *speech, const float *features,
                                           float *encoded);

/* The words of one window from the encoder's output, encoded [positions][width]; seconds,
   up to 30, of it are recording. As shoal_speech_transcribe, with nothing said before;
   options, segment and summary may be NULL. */
SHOAL_API shoal_status shoal_speech_decode(shoal_speech *speech, const float *encoded,
                                           double seconds,
                                           const shoal_transcribe_options *options,
                                           shoal_segment_function *segment, void *user,
                                           shoal_transcription *summary);

/* The decoder: logits [count][vocabulary] after each of the tokens [count] of a text,
   1 <= count <= text_positions. */
SHOAL_API shoal_status shoal_speech_logits(shoal_speech *speech, const float *encoded,
                                           const int32_t *tokens, int64_t count,
                                           float *logits);

/* ---- Word errors ------------------------------------------------------------------ */

typedef struct {
    int64_t words; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_word_errors;

/* Adds the word errors of a text to *errors: the fewest edits, after the usual
   normalisation of English on both sides: lower case, no punctuation, numbers as digits,
   contractions and titles spelled out, American spelling. */
SHOAL_API shoal_status shoal_count_word_errors(shoal_context *context,
                                               const char *reference, const char *text,
                                               shoal_word_errors *errors);

#ifdef __cplusplus
}
#endif
#endif
