/* Log-mel features as Whisper's. 16 kHz, windows of 400 samples (Hann, periodic) every
   160, the signal reflected by 200 samples at both ends, power spectrum, mel filters,
   log10 of at least 1e-10, nothing more than 8 below the largest, then (x + 4) / 4.

   One call is one window of 30 s: fewer samples are followed by zeros (the original cuts
   the features where the recording ends, and pads those with zeros). The largest value
   is that of this window (as Hugging Face computes it; the original takes it over the
   whole recording, which would need the recording before its first word). The 3001st
   frame is dropped, as both do. */
#ifndef SHOAL_SPEECH_AUDIO_MEL_H
#define SHOAL_SPEECH_AUDIO_MEL_H

#include "base/context.h"

enum {
    MEL_FFT = 400,
    MEL_HOP = 160,
    MEL_BINS = MEL_FFT / 2 + 1,
    MEL_SAMPLES = 480000, /* 30 s */
    MEL_FRAMES = MEL_SAMPLES / MEL_HOP,
    MEL_MOST_BANDS = 256
};

typedef struct mel mel;

/* filters: [bands][MEL_BINS], copied. */
shoal_status sh_mel_create(shoal_context *context, int bands, const float *filters,
                           mel **features);
void sh_mel_destroy(mel *features); /* NULL is legal; its context must be alive */

/* samples: [count], 0 <= count <= MEL_SAMPLES, finite. out: [bands][MEL_FRAMES]. Uses the
   context's threads and allocates nothing. */
void sh_mel_compute(mel *features, const float *samples, int64_t count, float *out);

/* Triangles of Slaney's mel scale, each of area 1, from 0 to 8 kHz: [bands][MEL_BINS]. */
void sh_mel_filters(int bands, float *filters);

#endif
