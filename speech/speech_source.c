#include "speech/speech_source.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "shoal_speech.h"

struct speech_source_stream {
    shoal_context *context;
    const shoal_recording *recording;
    audio *file;          /* of part `part`, when it is a file that was opened */
    int part;             /* which file comes next, or the one that is open */
    int64_t at;           /* samples taken of it */
    int64_t silence;      /* samples of the gap that are still to come */
    double seconds;       /* of the files opened so far, with their gaps */
    int64_t begin, count; /* what the buffer holds of the recording */
    bool ended;
    float *buffer; /* [AUDIO_WINDOW] */
};

static shoal_status check(shoal_context *context, const shoal_recording *recording) {
    if (!recording || recording->files < 0 || recording->sample_count < 0 ||
        (recording->files > 0 && !recording->paths) ||
        (recording->files == 0 && recording->sample_count > 0 && !recording->samples))
        return sh_fail(context, SHOAL_INVALID,
                       "recording: it needs paths, or samples and their number");
    if (!(recording->gap >= 0 && recording->gap <= 3600))
        return sh_fail(context, SHOAL_INVALID,
                       "recording.gap is %g: it must be 0 to 3600 s", recording->gap);
    for (int i = 0; i < recording->files; i++)
        if (!recording->paths[i])
            return sh_fail(context, SHOAL_INVALID, "recording.paths[%d] is NULL", i);
    if (recording->files > 0)
        return SHOAL_OK;
    for (int64_t i = 0; i < recording->sample_count; i++)
        if (!(fabsf(recording->samples[i]) <= 1e9f))
            return sh_fail(context, SHOAL_INVALID,
                           "recording.samples[%lld] is not a number or beyond 1e9",
                           (long long)i);
    return SHOAL_OK;
}

/* Opens the next file, if there is one; none left ends the recording. */
static shoal_status open_part(source_stream *s) {
    if (s->part == s->recording->files) {
        s->ended = true;
        return SHOAL_OK;
    }
    const shoal_status status =
        sh_audio_open(s->context, s->recording->paths[s->part], &s->file);
    if (status == SHOAL_OK)
        s->seconds += sh_audio_describe(s->file).seconds +
                      (s->part > 0 ? s->recording->gap : 0);
    s->at = 0;
    return status;
}

static void place(void *argument, block_layout *block) {
    source_stream *s = argument;
    sh_reserve(block, 1, sizeof *s);
    s->buffer = sh_reserve(block, AUDIO_WINDOW, sizeof *s->buffer);
}

shoal_status sh_source_open(shoal_context *context, const shoal_recording *recording,
                            source_stream **made) {
    *made = NULL;
    shoal_status status = check(context, recording);
    if (status != SHOAL_OK)
        return status;
    source_stream sized = {.context = context, .recording = recording};
    source_stream *s = sh_allocate_parts(context, place, &sized, NULL);
    if (!s)
        return SHOAL_NO_MEMORY;
    *s = sized;
    if (recording->files > 0)
        status = open_part(s);
    else
        s->seconds = (double)recording->sample_count / AUDIO_RATE;
    if (status != SHOAL_OK) {
        sh_source_close(s);
        return status;
    }
    *made = s;
    return SHOAL_OK;
}

void sh_source_close(source_stream *s) {
    if (!s)
        return;
    sh_audio_close(s->file);
    sh_release(s->context, s);
}

double sh_source_seconds(const source_stream *s) {
    return s->seconds;
}

/* The next samples of the open file; at its end the gap and the next file follow. */
static shoal_status take_from_file(source_stream *s, int64_t most, float *to,
                                   int64_t *got) {
    const float *samples;
    const shoal_status status =
        sh_audio_window(s->context, s->file, s->at, most, &samples, got);
    if (status != SHOAL_OK)
        return status;
    if (*got > 0)
        memcpy(to, samples, (size_t)*got * sizeof *to);
    s->at += *got;
    if (*got == most)
        return SHOAL_OK;
    sh_audio_close(s->file);
    s->file = NULL;
    s->part++;
    if (s->part < s->recording->files)
        s->silence = (int64_t)(s->recording->gap * AUDIO_RATE);
    return open_part(s);
}

static int64_t take_samples(source_stream *s, int64_t most, float *to) {
    const int64_t left = s->recording->sample_count - s->at;
    const int64_t got = left < most ? left : most;
    if (got > 0)
        memcpy(to, s->recording->samples + s->at, (size_t)got * sizeof *to);
    s->at += got;
    s->ended = s->at == s->recording->sample_count;
    return got;
}

/* Up to `most` samples more; 0 only at the end or where one part gives way to the next.
   */
static shoal_status take(source_stream *s, int64_t most, float *to, int64_t *got) {
    if (s->silence > 0) {
        *got = s->silence < most ? s->silence : most;
        memset(to, 0, (size_t)*got * sizeof *to);
        s->silence -= *got;
        return SHOAL_OK;
    }
    if (s->recording->files > 0)
        return take_from_file(s, most, to, got);
    *got = take_samples(s, most, to);
    return SHOAL_OK;
}

shoal_status sh_source_window(source_stream *s, int64_t begin, const float **samples,
                              int64_t *got) {
    int64_t skip = begin - s->begin;
    if (skip < s->count) {
        s->count -= skip;
        memmove(s->buffer, s->buffer + skip, (size_t)s->count * sizeof *s->buffer);
        s->begin = begin;
    } else {
        s->begin += s->count;
        s->count = 0;
    }
    while (s->begin < begin && !s->ended) { /* what nobody asked for goes by */
        const int64_t left = begin - s->begin;
        int64_t passed = 0;
        const shoal_status status =
            take(s, left < AUDIO_WINDOW ? left : AUDIO_WINDOW, s->buffer, &passed);
        if (status != SHOAL_OK)
            return status;
        s->begin += passed;
    }
    while (s->count < AUDIO_WINDOW && !s->ended) {
        int64_t more = 0;
        const shoal_status status =
            take(s, AUDIO_WINDOW - s->count, s->buffer + s->count, &more);
        if (status != SHOAL_OK)
            return status;
        s->count += more;
    }
    *samples = s->buffer;
    *got = s->begin < begin ? 0 : s->count;
    return SHOAL_OK;
}
