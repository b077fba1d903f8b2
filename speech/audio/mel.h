/* Log-mel features of Whisper: 16 kHz, windows of 400 samples (periodic Hann) every
   160, the signal reflected by 200 samples at both ends, power spectrum, mel filters,
   log10 of at least 1e-10, limited to 8 below the maximum, then (x + 4) / 4.

   One call is one window of 30 s: shorter input is padded with zeros (the original
   implementation truncates the features at the end of the recording and pads them with
   zeros). The maximum is that of this window (as in Hugging Face; the original uses the
   whole recording, which would have to be read before the first word). The 3001st frame
   is dropped, as in both. */
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
void sh_mel_destroy(mel *features); /* NULL is allowed; its context must still exist */

/* samples: [count], 0 <= count <= MEL_SAMPLES, finite. out: [bands][MEL_FRAMES]. Uses the
   context's threads and allocates nothing. */
void sh_mel_compute(mel *features, const float *samples, int64_t count, float *out);

/* Triangles on Slaney's mel scale, normalised to area 1, from 0 to 8 kHz:
   [bands][MEL_BINS]. */
void sh_mel_filters(int bands, float *filters);

#endif
