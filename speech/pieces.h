/* Pieces of a recording: what a window of the model hears, in samples of the recording
   at 16 kHz. Windows that are made of pieces depend on nothing but their sound, so that
   many run side by side; times in them are mapped back to the recording's. */
#ifndef SHOAL_SPEECH_PIECES_H
#define SHOAL_SPEECH_PIECES_H

#include <stdbool.h>

#include "base/context.h"

typedef struct {
    int64_t begin, end; /* samples begin .. end - 1 */
} sound_piece;

/* Finds speech (vad.c). What it has learnt of the recording's noise stays with it, so
   that a recording is gone through once, from its beginning to its end. */
typedef struct speech_detector speech_detector;

shoal_status sh_detector_create(shoal_context *context, speech_detector **made);
void sh_detector_destroy(speech_detector *d); /* NULL is legal */

/* The first piece of speech in samples [count], which begin at sample `from` of the
   recording; count is AUDIO_WINDOW unless the recording ends there. True: *piece is one,
   from <= begin < end <= from + count; it begins and ends in pauses wherever there are
   any. False: there is none yet. Either way the next call begins at *next, *next > from
   while anything is left: at the piece's end, or where speech begins that goes on beyond
   these samples. */
bool sh_detector_next(speech_detector *d, int64_t from, const float *samples,
                      int64_t count, sound_piece *piece, int64_t *next);

#endif
