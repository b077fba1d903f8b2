/* What is a pure function of a window's tokens, samples or text. */
#include <math.h>
#include <zlib.h>

#include "speech/whisper/speech.h"

/* ---- Segments of a window ------------------------------------------------------- */

typedef struct {
    const int32_t *sampled;
    int count;
    int32_t first_timestamp;
} window_tokens;

static bool is_time(const window_tokens *w, int at) {
    return at >= 0 && at < w->count && w->sampled[at] >= w->first_timestamp;
}

static int64_t steps_at(const window_tokens *w, int at) {
    return w->sampled[at] - w->first_timestamp;
}

static double seconds_at(const window_tokens *w, int at) {
    return (double)steps_at(w, at) / TIME_STEPS_PER_SECOND;
}

/* A text that ends in a single time: nothing was said after it. */
static bool ends_alone(const window_tokens *w) {
    return w->count >= 1 && is_time(w, w->count - 1) && !is_time(w, w->count - 2);
}

/* One segment from the window's beginning to its last time, or to its end. */
static segment_cut whole_window(const window_tokens *w, int64_t frames) {
    segment_cut cut = {.end = w->count, .ends = (double)frames / FRAMES_PER_SECOND};
    for (int at = w->count - 1; at >= 0; at--)
        if (is_time(w, at)) {
            if (steps_at(w, at) > 0)
                cut.ends = seconds_at(w, at);
            break;
        }
    return cut;
}

static segment_cut cut_between(const window_tokens *w, int first, int end) {
    return (segment_cut){first, end, seconds_at(w, first), seconds_at(w, end - 1)};
}

int sh_segments_cut(const int32_t *sampled, int count, int32_t first_timestamp,
                    int64_t frames, segment_cut *cuts, int64_t *advance) {
    const window_tokens w = {sampled, count, first_timestamp};
    int made = 0, last = 0;
    /* A cut lies between the time that ends a segment and the one that begins the
       next. */
    for (int at = 1; at < count; at++)
        if (is_time(&w, at - 1) && is_time(&w, at)) {
            cuts[made++] = cut_between(&w, last, at);
            last = at;
        }
    *advance = frames;
    if (made == 0) {
        if (count > 0)
            cuts[made++] = whole_window(&w, frames);
    } else if (ends_alone(&w)) {
        cuts[made++] = cut_between(&w, last, count);
    } else { /* what follows the last pair belongs to the next window */
        *advance = steps_at(&w, last - 1) * FRAMES_PER_STEP;
    }
    if (*advance < 1 || *advance > frames)
        *advance = frames < 1 ? 1 : frames;
    return made;
}

/* ---- Silence -------------------------------------------------------------------- */

/* Root mean square. */
static double loudness(const float *samples, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)samples[i] * (double)samples[i];
    return sqrt(sum / (double)count);
}

sound_level sh_sound_level(const float *samples, int64_t count) {
    enum { STRETCH = AUDIO_RATE / 10 };
    sound_level level = {0};
    if (count > 0 && count < STRETCH)
        level.loudest = level.quietest = loudness(samples, count);
    for (int64_t at = 0; at + STRETCH <= count; at += STRETCH) {
        const double one = loudness(samples + at, STRETCH);
        level.loudest = fmax(level.loudest, one);
        level.quietest = at == 0 ? one : fmin(level.quietest, one);
    }
    return level;
}

/* ---- Texts that repeat themselves ------------------------------------------------ */

unsigned long sh_compression_room(unsigned long size) {
    return compressBound(size);
}

double sh_compression_ratio(const char *text, unsigned long size, unsigned char *room) {
    unsigned long packed = compressBound(size);
    if (size == 0 || compress(room, &packed, (const unsigned char *)text, size) != Z_OK)
        return 0;
    return (double)size / (double)packed;
}
