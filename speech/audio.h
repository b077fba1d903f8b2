/* Recordings as a stream of mono float32 at 16 kHz: any format that libsndfile reads
   (WAV, FLAC, OGG, MP3 ...), any rate, any number of channels (their mean). Memory does
   not grow with the recording: one window and a few blocks. */
#ifndef SHOAL_SPEECH_AUDIO_H
#define SHOAL_SPEECH_AUDIO_H

#include "base/context.h"

enum {
    AUDIO_RATE = 16000,
    AUDIO_WINDOW = 30 * AUDIO_RATE /* samples that one call can give */
};

typedef struct audio audio;

typedef struct {
    int32_t rate, channels; /* of the file */
    double seconds;         /* as the file's header says; for progress, not for truth */
} audio_information;

/* Refuses what is not a recording: SHOAL_IO when the system says no, else
   SHOAL_BAD_FILE. */
shoal_status sh_audio_open(shoal_context *context, const char *path, audio **recording);
void sh_audio_close(audio *recording); /* NULL is legal */
audio_information sh_audio_describe(const audio *recording);

/* Samples begin .. begin + count - 1, 0 <= count <= AUDIO_WINDOW, in memory of the
   recording that is valid until the next call. *got < count when the recording ends there
   (0: it ended before begin). begin may go back by less than a window, and forward as
   far as it likes. A damaged or cut file is SHOAL_BAD_FILE when the damage is reached, as
   are samples that are no numbers or beyond 1e9; a recording without any sample too. */
shoal_status sh_audio_window(shoal_context *context, audio *recording, int64_t begin,
                             int64_t count, const float **samples, int64_t *got);

/* Samples at 16 kHz once the end was reached, else -1. */
int64_t sh_audio_length(const audio *recording);

#endif
