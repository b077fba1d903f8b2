/* Detects speech in a recording in pieces, and packs the pieces into windows for the
   model; both in samples at 16 kHz. Windows of pieces depend only on their own audio,
   so that many can be processed in parallel; their times are mapped back to the
   recording. */
#ifndef SHOAL_SPEECH_AUDIO_VAD_H
#define SHOAL_SPEECH_AUDIO_VAD_H

#include <stdbool.h>

#include "base/context.h"
#include "speech/audio/audio.h"

typedef struct {
    int64_t begin, end; /* samples begin .. end - 1 */
} sound_piece;

/* Maximum length of a piece, and maximum content of a window. If speech reaches the
   end of the model's 30 s, the model takes the last sentence for a truncated one and
   leaves it to the next window: in 20 of 46 windows of more than 28 s, and in 2 of
   92 others. */
enum { PIECE_MOST = AUDIO_WINDOW - 2 * AUDIO_RATE };

/* Detects speech. It adapts to the recording's noise, so a recording is processed once,
   from beginning to end. */
typedef struct speech_detector speech_detector;

shoal_status sh_detector_create(shoal_context *context, speech_detector **made);
void sh_detector_destroy(speech_detector *d); /* NULL is allowed */

typedef enum { PIECE_NONE, PIECE_FOUND, PIECE_TOO_LONG } piece_found;

/* Finds the first piece of speech in samples [count], which begin at sample `from` of
   the recording; count is AUDIO_WINDOW unless the recording ends there. PIECE_FOUND:
   *piece has at most `most` samples, from <= begin < end <= from + count; it begins and
   ends in pauses if there are any, and if `most` is less than PIECE_MOST, in a pause
   between phrases, or it is too long. PIECE_NONE: there is none yet. The next call
   begins at piece->end, which is beyond `from` while anything is left: at the piece's
   end, or at the start of speech that continues beyond these samples; or again at
   `from` if it was too long. */
piece_found sh_detector_within(speech_detector *d, int64_t from, const float *samples,
                               int64_t count, int64_t most, sound_piece *piece);

/* ---- Windows ----------------------------------------------------------------------- */

/* Input of one run of the model: consecutive pieces of a recording, at most PIECE_MOST
   in total. Pauses of a second or more between them are shortened. */
enum { WINDOW_PIECES = 32 };
typedef struct {
    sound_piece pieces[WINDOW_PIECES];
    int count;
    int64_t samples; /* total */
} packed_window;

typedef struct window_packer window_packer;

/* The stream must outlive it, and must not be read by others. */
shoal_status sh_packer_create(shoal_context *context, recording_stream *stream,
                              window_packer **made);
void sh_packer_destroy(window_packer *p); /* NULL is allowed */

/* Returns the next window of speech; samples [window->samples] are valid until the next
   call. window->count is 0 at the end of the recording. */
shoal_status sh_packer_next(window_packer *p, packed_window *window,
                            const float **samples);

/* Number of samples of the recording processed so far, including silence. */
int64_t sh_packer_passed(const window_packer *p);

/* Converts a time in the window to the recording's, in seconds: at the boundary of two
   pieces, the end of the first or the beginning of the second. */
double sh_packed_end(const packed_window *window, double seconds);
double sh_packed_begin(const packed_window *window, double seconds);

#endif
