/* Log-mel filter banks like Kaldi's: 16 or 8 kHz, windows of 25 ms every 10 ms, mean
   removal, preemphasis 0.97, Povey window, power spectrum of 512 or 256, triangles on
   the mel scale from 20 Hz to half the rate, natural logarithm; samples are scaled to
   16-bit range. No dither. */
#ifndef SHOAL_SPEECH_AUDIO_FBANK_H
#define SHOAL_SPEECH_AUDIO_FBANK_H

#include "base/context.h"
#include "shoal_speech.h"

enum { FBANK_BANDS = 40, FBANK_MOST_BANDS = 200 };

typedef struct fbank fbank;

/* Zero bands select FBANK_BANDS. */
shoal_status sh_fbank_create(shoal_context *context, const shoal_fbank_options *options,
                             fbank **made);
void sh_fbank_destroy(fbank *f); /* NULL is allowed */
/* out [frames][bands], with shoal_fbank_frames frames. Single-threaded. */
void sh_fbank_compute(fbank *f, const float *samples, int64_t count, float *out);
int sh_fbank_bands(const shoal_fbank_options *options);
int sh_fbank_rate(const shoal_fbank_options *options);

#endif
