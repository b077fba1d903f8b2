/* One window on its way from sound to text: what the decoder is told, attempts at rising
   temperatures, and whether a text is believable. Windows depend on nothing but
   themselves, so that many are on their way at once, in slots of their own. */
#ifndef SHOAL_SPEECH_WHISPER_WINDOW_H
#define SHOAL_SPEECH_WHISPER_WINDOW_H

#include "speech/audio/vad.h"
#include "speech/whisper/speech.h"

/* The same for all windows of a recording. */
typedef struct {
    int32_t language; /* token, or -1 for models that know English only */
    bool translate, timestamps, fallback;
    bool speech_found; /* windows hold speech and nothing else */
    bool published;    /* rules as published with the model, and no others */
    int beams;
    uint64_t seed;
} window_rules;

typedef struct {
    struct transcription *owner; /* the recording it comes from */
    int slot;                    /* the decoder's window */
    /* Its sound. */
    packed_window sound;  /* where it comes from */
    const float *samples; /* [sound.samples]; NULL where only the encoder's output came */
    int64_t frames;       /* of the window that are recording */
    bool flat;            /* quiet or steady, so that no speech is likely */
    /* What was said before. */
    const int32_t *past; /* [past_count] */
    int past_count;
    /* Attempts. */
    int search;  /* that goes on; -1: none */
    int attempt; /* the next one, or that which goes on */
    bool ready;  /* what follows is final */
    /* The text of the last attempt. */
    int32_t *sampled; /* [text positions], of the caller, as the next */
    float *logprobs;  /* of the tokens */
    int count;
    int said; /* tokens of them that became segments */
    double temperature, mean_logprob, no_speech, compression;
    bool silent; /* nothing is said */
    bool failed; /* every check, at every temperature: the text is not to be believed */
} speech_window;

/* Begins the next attempt where there is room for its texts. */
void sh_window_search(shoal_speech *speech, const window_rules *rules,
                      speech_window *window);

/* After a step: takes over the text of a search that has ended, and judges it. */
void sh_window_collect(shoal_speech *speech, const window_rules *rules,
                       speech_window *window);

/* Quiet, or as loud all the time; and below everything that sounds. */
bool sh_is_flat(sound_level level);
bool sh_is_nothing(sound_level level);

/* Into speech->text, which ends in 0; returns its bytes. */
size_t sh_window_text(shoal_speech *speech, const int32_t *sampled, int count);

#endif
