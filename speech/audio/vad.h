/* Speech in a recording, found in pieces and packed into windows, which the model hears;
   both in samples of the recording at 16 kHz. Windows that are made of pieces depend on
   nothing but their sound, so that many run side by side; times in them are mapped back
   to the recording's. */
#ifndef SHOAL_SPEECH_AUDIO_VAD_H
#define SHOAL_SPEECH_AUDIO_VAD_H

#include <stdbool.h>

#include "base/context.h"
#include "speech/audio/audio.h"

typedef struct {
    int64_t begin, end; /* samples begin .. end - 1 */
} sound_piece;

/* The longest piece, and the most that a window is filled with. Where speech reaches up
   to the end of the model's 30 s, it takes the last sentence for one that was cut off,
   and leaves it to the next window: in 20 of 46 windows of more than 28 s, and in 2 of
   92 others. */
enum { PIECE_MOST = AUDIO_WINDOW - 2 * AUDIO_RATE };

/* Finds speech. What it has learnt of the recording's noise stays with it, so
   that a recording is gone through once, from its beginning to its end. */
typedef struct speech_detector speech_detector;

shoal_status sh_detector_create(shoal_context *context, speech_detector **made);
void sh_detector_destroy(speech_detector *d); /* NULL is legal */

typedef enum { PIECE_NONE, PIECE_FOUND, PIECE_TOO_LONG } piece_found;

/* The first piece of speech in samples [count], which begin at sample `from` of the
   recording; count is AUDIO_WINDOW unless the recording ends there. PIECE_FOUND: *piece
   is one of at most `most` samples, from <= begin < end <= from + count; it begins and
   ends in pauses wherever there are any, and where `most` is less than PIECE_MOST in a
   pause between phrases, or it is too long. PIECE_NONE: there is none yet. The next call
   begins at piece->end, which is beyond `from` while anything is left: at the piece's
   end, or where speech begins that goes on beyond these samples; or again at `from` if it
   was too long. */
piece_found sh_detector_within(speech_detector *d, int64_t from, const float *samples,
                               int64_t count, int64_t most, sound_piece *piece);

/* ---- Windows ----------------------------------------------------------------------- */

/* What the model hears at once: pieces of a recording one after another, PIECE_MOST at
   most. Pauses of a second and more between them are shortened. */
enum { WINDOW_PIECES = 32 };
typedef struct {
    sound_piece pieces[WINDOW_PIECES];
    int count;
    int64_t samples; /* of all of them */
} packed_window;

typedef struct window_packer window_packer;

/* The stream must outlive it, and is read by nobody else. */
shoal_status sh_packer_create(shoal_context *context, recording_stream *stream,
                              window_packer **made);
void sh_packer_destroy(window_packer *p); /* NULL is legal */

/* The next window of speech; samples [window->samples] live until the next call.
   window->count is 0 at the end of the recording. */
shoal_status sh_packer_next(window_packer *p, packed_window *window,
                            const float **samples);

/* Samples of the recording that were gone through so far, silence included. */
int64_t sh_packer_passed(const window_packer *p);

/* The recording's time, in seconds, of one in the window: where two pieces meet, that of
   the end of the first or of the beginning of the second. */
double sh_packed_end(const packed_window *window, double seconds);
double sh_packed_begin(const packed_window *window, double seconds);

#endif
