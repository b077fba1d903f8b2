/* Power spectra of 256 or 512 real numbers in float32, on any machine with the same bits:
   radix 4, and a fixed order of every addition. It is the order that the package
   kaldi-native-fbank has as it is built. Where a band is silent beside loud ones, its
   value is the rounding of theirs, so that another order is another value there. */
#ifndef SHOAL_SPEECH_AUDIO_RFFT_H
#define SHOAL_SPEECH_AUDIO_RFFT_H

enum { RFFT_MOST = 512 };

typedef struct {
    float re, im;
} rfft_number;

typedef struct {
    int half; /* of the real numbers: they are transformed in pairs */
    rfft_number turns[RFFT_MOST / 2]; /* exp(-2 pi i k / half) */
    rfft_number parts[RFFT_MOST / 4]; /* exp(-pi i (k / half + 1 / 2)), k from 1 on */
    rfft_number work[RFFT_MOST / 2];
} rfft;

void sh_rfft_begin(rfft *t, int count); /* a power of 2, 8 to RFFT_MOST */
/* samples [count]; power [count / 2], without that of half the rate. */
void sh_rfft_power(rfft *t, const float *samples, float *power);

#endif
