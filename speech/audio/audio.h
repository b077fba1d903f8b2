/* Sound as mono float32 at 16 kHz: any format that libsndfile reads (WAV, FLAC, OGG, MP3
   ...), any rate, any number of channels (their mean). Memory does not grow with the
   recording: one window and a few blocks. */
#ifndef SHOAL_SPEECH_AUDIO_AUDIO_H
#define SHOAL_SPEECH_AUDIO_AUDIO_H

#include <stdbool.h>

#include "base/context.h"
#include "shoal_speech.h"

enum {
    AUDIO_RATE = 16000,
    AUDIO_WINDOW = 30 * AUDIO_RATE /* samples that one call can give */
};

/* ---- One file --------------------------------------------------------------------- */

typedef struct audio_file audio_file;

typedef struct {
    int32_t rate, channels; /* of the file */
    double seconds;         /* as the file's header says, which may be wrong */
} audio_information;

/* Refuses what is not a recording: SHOAL_IO when the system says no, else
   SHOAL_BAD_FILE; one that was cut short too, as far as it shows, unless `partial` asks
   for what is there. */
shoal_status sh_audio_open(shoal_context *context, const char *path, bool partial,
                           audio_file **opened);
void sh_audio_close(audio_file *f); /* NULL is legal */
audio_information sh_audio_describe(const audio_file *f);
/* Before anything is read: samples of another rate than AUDIO_RATE. */
shoal_status sh_audio_set_rate(audio_file *f, int32_t rate);

/* Samples begin .. begin + count - 1, 0 <= count <= AUDIO_WINDOW, in memory of the
   file that is valid until the next call. *got < count when the recording ends there
   (0: it ended before begin). begin may go back by less than a window, and forward as
   far as it likes. A damaged or cut file is SHOAL_BAD_FILE when the damage is reached, as
   are samples that are no numbers or beyond 1e9; a recording without any sample too. */
shoal_status sh_audio_window(shoal_context *context, audio_file *f, int64_t begin,
                             int64_t count, const float **samples, int64_t *got);

/* ---- Recordings ------------------------------------------------------------------- */

/* A recording as one stream, whatever it is made of: files one after another with silence
   between, or samples in memory. One window of it is kept. */
typedef struct recording_stream recording_stream;

/* The recording's paths and samples must outlive it. */
shoal_status sh_recording_open(shoal_context *context, const shoal_recording *recording,
                               recording_stream **made);
void sh_recording_close(recording_stream *stream); /* NULL is legal */

/* Samples from `begin` on, up to AUDIO_WINDOW of them; fewer (*got) where the recording
   ends. begin does not go back. */
shoal_status sh_recording_window(recording_stream *stream, int64_t begin,
                                 const float **samples, int64_t *got);

/* The sample at which it is to be heard from, a multiple of 10 ms. */
int64_t sh_recording_first(const recording_stream *stream);

/* Seconds of the whole as the files' headers have it, those opened so far; or where it is
   heard to. */
double sh_recording_seconds(const recording_stream *stream);

#endif
