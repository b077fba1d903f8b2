/* Pieces of speech side by side in windows. */
#include <string.h>

#include "base/memory.h"
#include "speech/audio/pieces.h"

enum { ALMOST_FULL = PIECE_MOST - 2 * AUDIO_RATE }; /* hardly a phrase has room */

struct window_packer {
    shoal_context *context;
    recording_stream *stream;
    speech_detector *detector;
    int64_t at;     /* where the recording is read next */
    float *samples; /* [AUDIO_WINDOW] */
};

static void place(void *argument, block_layout *block) {
    window_packer *p = argument;
    sh_reserve(block, 1, sizeof *p);
    p->samples = sh_reserve(block, AUDIO_WINDOW, sizeof *p->samples);
}

shoal_status sh_packer_create(shoal_context *context, recording_stream *stream,
                              window_packer **made) {
    window_packer sized = {.context = context,
                           .stream = stream,
                           .at = sh_recording_first(stream)};
    *made = NULL;
    window_packer *p = sh_allocate_parts(context, place, &sized, NULL);
    if (!p)
        return SHOAL_NO_MEMORY;
    *p = sized;
    const shoal_status status = sh_detector_create(context, &p->detector);
    if (status == SHOAL_OK)
        *made = p;
    else
        sh_packer_destroy(p);
    return status;
}

void sh_packer_destroy(window_packer *p) {
    if (!p)
        return;
    sh_detector_destroy(p->detector);
    sh_release(p->context, p);
}

int64_t sh_packer_passed(const window_packer *p) {
    return p->at;
}

static bool is_full(const packed_window *window) {
    return window->count == WINDOW_PIECES || window->samples > ALMOST_FULL;
}

/* Looks at what comes next in the recording; *more: something may still be added. */
static shoal_status look(window_packer *p, packed_window *window, bool *more) {
    const float *sound;
    int64_t got = 0;
    sound_piece piece;
    const shoal_status status = sh_recording_window(p->stream, p->at, &sound, &got);
    *more = status == SHOAL_OK && got > 0;
    if (!*more)
        return status;
    switch (sh_detector_within(p->detector, p->at, sound, got,
                               PIECE_MOST - window->samples, &piece)) {
    case PIECE_FOUND:
        memcpy(p->samples + window->samples, sound + (piece.begin - p->at),
               (size_t)(piece.end - piece.begin) * sizeof *p->samples);
        window->samples += piece.end - piece.begin;
        window->pieces[window->count++] = piece;
        p->at = piece.end;
        break;
    case PIECE_NONE: p->at = piece.end; break;
    case PIECE_TOO_LONG: *more = false; break;
    }
    return SHOAL_OK;
}

shoal_status sh_packer_next(window_packer *p, packed_window *window,
                            const float **samples) {
    shoal_status status = SHOAL_OK;
    *window = (packed_window){.count = 0};
    *samples = p->samples;
    for (bool more = true; more && !is_full(window) && status == SHOAL_OK;)
        status = look(p, window, &more);
    return status;
}

/* ---- Times ---------------------------------------------------------------------- */

static double packed_time(const packed_window *window, double seconds, bool begins) {
    double at = seconds * AUDIO_RATE;
    for (int i = 0; i < window->count; i++) {
        const sound_piece *piece = &window->pieces[i];
        const double length = (double)(piece->end - piece->begin);
        if (at < length || (at <= length && !begins))
            return ((double)piece->begin + (at > 0 ? at : 0)) / AUDIO_RATE;
        at -= length;
    }
    return window->count ? (double)window->pieces[window->count - 1].end / AUDIO_RATE : 0;
}

double sh_packed_end(const packed_window *window, double seconds) {
    return packed_time(window, seconds, false);
}

double sh_packed_begin(const packed_window *window, double seconds) {
    return packed_time(window, seconds, true);
}
