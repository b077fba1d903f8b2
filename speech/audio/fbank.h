/* Log-mel filter banks as Kaldi computes them: 16 or 8 kHz, 25 ms every 10 ms, the mean
   taken away, preemphasis 0.97, povey window, power spectrum of 512 or 256, triangles on
   the mel scale from 20 Hz to half the rate, natural logarithm; samples count as 16-bit
   numbers. No dither. */
#ifndef SHOAL_SPEECH_AUDIO_FBANK_H
#define SHOAL_SPEECH_AUDIO_FBANK_H

#include "base/context.h"
#include "shoal_speech.h"

enum { FBANK_BANDS = 40, FBANK_MOST_BANDS = 200 };

typedef struct fbank fbank;

/* Bands 0: FBANK_BANDS. */
shoal_status sh_fbank_create(shoal_context *context, const shoal_fbank_options *options,
                             fbank **made);
void sh_fbank_destroy(fbank *f); /* NULL is legal */
/* out [frames][bands], as many frames as shoal_fbank_frames says. One thread. */
void sh_fbank_compute(fbank *f, const float *samples, int64_t count, float *out);
int sh_fbank_bands(const shoal_fbank_options *options);
int sh_fbank_rate(const shoal_fbank_options *options);

#endif
