/* Audio as mono float32 at 16 kHz: any format that libsndfile reads (WAV, FLAC, OGG,
   MP3 ...), any sample rate, any number of channels (averaged). Memory is independent
   of the length: one window and a few blocks. */
#ifndef SHOAL_SPEECH_AUDIO_AUDIO_H
#define SHOAL_SPEECH_AUDIO_AUDIO_H

#include <stdbool.h>

#include "base/context.h"
#include "shoal_speech.h"

enum {
    AUDIO_RATE = 16000,
    AUDIO_WINDOW = 30 * AUDIO_RATE /* maximum samples per call */
};

/* ---- One file --------------------------------------------------------------------- */

typedef struct audio_file audio_file;

typedef struct {
    int32_t rate, channels; /* of the file */
    double seconds;         /* according to the header, which may be wrong */
} audio_information;

/* Returns SHOAL_IO for system errors and SHOAL_BAD_FILE for a file that is not a
   recording, or is visibly truncated unless `partial` is set. */
shoal_status sh_audio_open(shoal_context *context, const char *path, bool partial,
                           audio_file **opened);
void sh_audio_close(audio_file *f); /* NULL is allowed */
audio_information sh_audio_describe(const audio_file *f);
/* Selects another rate than AUDIO_RATE; must be called before reading. */
shoal_status sh_audio_set_rate(audio_file *f, int32_t rate);

/* Returns samples begin .. begin + count - 1, 0 <= count <= AUDIO_WINDOW, in memory of
   the file that is valid until the next call. *got < count at the end of the recording
   (0 if it ended before begin). begin may go back by less than a window, and forward
   arbitrarily. Returns SHOAL_BAD_FILE when damage, truncation, or a sample that is not
   finite or beyond 1e9 is reached, and for a recording without samples. */
shoal_status sh_audio_window(shoal_context *context, audio_file *f, int64_t begin,
                             int64_t count, const float **samples, int64_t *got);

/* ---- Recordings ------------------------------------------------------------------- */

/* A recording as one stream: files in sequence with silence between them, or samples in
   memory. One window of it is kept. */
typedef struct recording_stream recording_stream;

/* The recording's paths and samples must outlive it. */
shoal_status sh_recording_open(shoal_context *context, const shoal_recording *recording,
                               recording_stream **made);
void sh_recording_close(recording_stream *stream); /* NULL is allowed */

/* Returns up to AUDIO_WINDOW samples from `begin` on; fewer (*got) at the end of the
   recording. begin must not decrease. */
shoal_status sh_recording_window(recording_stream *stream, int64_t begin,
                                 const float **samples, int64_t *got);

/* First selected sample, a multiple of 10 ms. */
int64_t sh_recording_first(const recording_stream *stream);

/* Total seconds according to the headers of the files opened so far, or the end of the
   selected part. */
double sh_recording_seconds(const recording_stream *stream);

#endif
