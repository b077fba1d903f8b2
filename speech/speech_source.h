/* A recording as one stream of samples at 16 kHz, whatever it is made of: files one after
   another with silence between, or samples in memory. One window of it is kept. */
#ifndef SHOAL_SPEECH_SPEECH_SOURCE_H
#define SHOAL_SPEECH_SPEECH_SOURCE_H

#include "shoal.h"
#include "shoal_speech.h"
#include "speech/audio.h"

typedef struct speech_source_stream source_stream;

/* The recording's paths and samples must outlive it. */
shoal_status sh_source_open(shoal_context *context, const shoal_recording *recording,
                            source_stream **made);
void sh_source_close(source_stream *stream); /* NULL is legal */

/* Samples from `begin` on, up to AUDIO_WINDOW of them; fewer (*got) where the recording
   ends. begin does not go back. */
shoal_status sh_source_window(source_stream *stream, int64_t begin, const float **samples,
                              int64_t *got);

/* Seconds of the whole as the files' headers have it, those opened so far. */
double sh_source_seconds(const source_stream *stream);

#endif
