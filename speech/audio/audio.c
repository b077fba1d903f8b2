#define _GNU_SOURCE
#include "speech/audio/audio.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sndfile.h>
#include <soxr.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "models/files/files.h"
#include "speech/audio/container.h"

enum {
    BLOCK = 16384, /* frames read at a time */
    LOWEST_RATE = 1000,
    HIGHEST_RATE = 768000, /* maximum sample rate of a file */
    MOST_CHANNELS = 1024,
    CAPACITY = 2 * AUDIO_WINDOW + BLOCK
};

struct audio_file {
    shoal_context *context;
    char *path;
    int descriptor;
    bool partial; /* accept the available part of a truncated file */
    SNDFILE *file;
    int64_t size, position; /* position: only used by file_read */
    container_state container;
    SF_INFO information;
    soxr_t resampler; /* NULL if the file has the requested rate */
    float *frames;    /* [BLOCK][channels], as read */
    float *mono;      /* [BLOCK], at the file's rate */
    float *held;      /* [CAPACITY], samples held_begin .. held_begin + held_count - 1 */
    int64_t held_begin, held_count;
    int64_t frames_read;
    int64_t mono_begin, mono_count; /* range of `mono` that is not yet resampled */
    bool file_ended, ended;
};

/* ---- Suppressing messages of libraries on standard error -------------------------- */

typedef struct {
    void (*run)(void *argument);
    void *argument;
} call;

/* On Linux a thread may have its own table of file descriptors: closing and opening in
   it does not affect other threads, while open files are shared. */
static void *call_quietly(void *shared) {
    const call *c = shared;
#ifdef __linux__
    if (unshare(CLONE_FILES) == 0) {
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (nowhere >= 0)
            dup2(nowhere, STDERR_FILENO);
    }
#endif
    c->run(c->argument);
    return NULL;
}

/* Runs the function with its output to standard error discarded, without affecting
   other threads. On systems that cannot do that, the function is just run. */
static void run_quietly(void (*run)(void *argument), void *argument) {
    call c = {run, argument};
    pthread_t thread;
    sigset_t all, before;
    /* A signal handler must not run here, where its messages would be discarded. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, call_quietly, &c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        run(argument);
    else
        pthread_join(thread, NULL);
}

/* ---- Opening ---------------------------------------------------------------------- */

/* libsndfile believes a data size of 0 in a header; these callbacks show it the file
   with the actual size. */
static sf_count_t file_length(void *user) {
    return ((const audio_file *)user)->size;
}

static sf_count_t file_seek(sf_count_t offset, int whence, void *user) {
    audio_file *f = user;
    const int64_t from = whence == SEEK_CUR   ? f->position
                         : whence == SEEK_END ? f->size
                                              : 0;
    f->position = from + offset;
    return f->position;
}

static sf_count_t file_tell(void *user) {
    return ((const audio_file *)user)->position;
}

static sf_count_t file_read(void *bytes, sf_count_t count, void *user) {
    audio_file *f = user;
    const int64_t field = f->container.open_size;
    const uint64_t sound = (uint64_t)(f->size - field - 4);
    const uint32_t shown = sound < UINT32_MAX ? (uint32_t)sound : UINT32_MAX;
    const ssize_t got = pread(f->descriptor, bytes, (size_t)count, f->position);
    for (int i = 0; i < 4; i++) {
        const int64_t at = field + i - f->position;
        const int shift = 8 * (f->container.big_endian ? 3 - i : i);
        if (at >= 0 && at < got)
            ((unsigned char *)bytes)[at] = (unsigned char)(shown >> shift);
    }
    f->position += got > 0 ? got : 0;
    return got > 0 ? got : 0;
}

/* The MP3 decoder writes to standard error, even when it only probes for MP3. */
static void open_quietly(void *argument) {
    audio_file *f = argument;
    SF_VIRTUAL_IO shown = {file_length, file_seek, file_read, NULL, file_tell};
    f->file = f->container.open_size
                  ? sf_open_virtual(&shown, SFM_READ, &f->information, f)
                  : sf_open_fd(f->descriptor, SFM_READ, &f->information, SF_FALSE);
}

/* End of messages about truncated files. */
#define GO_ON "use partial (transcribe --partial) to accept the available part"

/* libsndfile's error message without its full stop. */
static shown_name sound_error(SNDFILE *file) {
    shown_name shown = sh_shown(sf_strerror(file));
    const size_t length = strlen(shown.text);
    if (length > 0 && shown.text[length - 1] == '.')
        shown.text[length - 1] = 0;
    return shown;
}

static shoal_status open_sound(audio_file *f) {
    shoal_context *context = f->context;
    const char *path = f->path;
    const SF_INFO *information = &f->information;
    const container_state *state = &f->container;
    if (f->size == 0)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is empty", path);
    f->container = sh_container_check(f->descriptor, f->size);
    /* Checked before libsndfile, which leaks memory on damaged OGG headers. */
    if (state->verdict == CONTAINER_UNREADABLE)
        return sh_fail(
            context, SHOAL_BAD_FILE,
            "%s: is not a readable recording: its headers end at byte %lld of %lld", path,
            (long long)state->at, (long long)f->size);
    if (state->verdict == CONTAINER_BROKEN && !f->partial)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is truncated or damaged at byte %lld of %lld; " GO_ON, path,
                       (long long)state->at, (long long)f->size);
    run_quietly(open_quietly, f);
    if (!f->file && strstr(sf_strerror(NULL), "SF_INFO")) /* a misleading message */
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: its header has a sample rate of 0, or no channels", path);
    if (!f->file)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is not a readable recording: %s; to convert it, try ffmpeg "
                       "-i %s -ar 16000 -ac 1 out.wav",
                       path, sound_error(NULL).text, path);
    if (information->channels < 1 || information->channels > MOST_CHANNELS)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: has %d channels", path,
                       information->channels);
    if (information->samplerate < LOWEST_RATE || information->samplerate > HIGHEST_RATE)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has %d samples per second; %d to %d are supported", path,
                       information->samplerate, (int)LOWEST_RATE, (int)HIGHEST_RATE);
    const double seconds = (double)information->frames / information->samplerate;
    if (state->verdict != CONTAINER_CUT || f->partial)
        return SHOAL_OK;
    if (state->there <= 0 || information->frames <= 0)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has no samples: it is truncated after its header", path);
    return sh_fail(
        context, SHOAL_BAD_FILE,
        "%s: is truncated: it has %.2f of the %.2f seconds in its header; " GO_ON, path,
        seconds, seconds * (double)state->announced / (double)state->there);
}

shoal_status sh_audio_set_rate(audio_file *f, int32_t rate) {
    soxr_error_t error;
    soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
    if (f->resampler)
        soxr_delete(f->resampler);
    f->resampler = NULL;
    if (f->information.samplerate == rate)
        return SHOAL_OK;
    f->resampler =
        soxr_create(f->information.samplerate, rate, 1, &error, &io, &quality, &runtime);
    if (!f->resampler)
        return sh_fail(f->context, SHOAL_NO_MEMORY, "%s: cannot resample it: %s", f->path,
                       sh_shown(error).text);
    return SHOAL_OK;
}

static void place_buffers(void *argument, block_layout *block) {
    audio_file *f = argument;
    const int64_t channels = f->information.channels;
    f->held = sh_reserve(block, CAPACITY, sizeof(float));
    f->mono = sh_reserve(block, BLOCK, sizeof(float));
    f->frames = reserve_floats(block, BLOCK, channels);
}

shoal_status sh_audio_open(shoal_context *context, const char *path, bool partial,
                           audio_file **opened) {
    int descriptor;
    int64_t size;
    struct stat information;
    *opened = NULL;
    /* open() would wait for the writer of a pipe. */
    if (stat(path, &information) == 0 && !S_ISREG(information.st_mode) &&
        !S_ISDIR(information.st_mode))
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is not a regular file", path);
    TRY(sh_file_open(context, path, &descriptor, &size));
    const size_t path_bytes = strlen(path) + 1;
    audio_file *made = sh_allocate(context, sizeof *made + path_bytes);
    if (!made) {
        close(descriptor);
        return SHOAL_NO_MEMORY;
    }
    *made = (audio_file){.context = context,
                         .descriptor = descriptor,
                         .size = size,
                         .partial = partial};
    made->path = memcpy(made + 1, path, path_bytes);
    shoal_status status = open_sound(made);
    if (status == SHOAL_OK)
        status = sh_audio_set_rate(made, AUDIO_RATE);
    if (status == SHOAL_OK && !sh_allocate_parts(context, place_buffers, made, NULL))
        status = SHOAL_NO_MEMORY;
    if (status == SHOAL_OK)
        *opened = made;
    else
        sh_audio_close(made);
    return status;
}

void sh_audio_close(audio_file *f) {
    if (!f)
        return;
    if (f->resampler)
        soxr_delete(f->resampler);
    if (f->file)
        sf_close(f->file);
    close(f->descriptor);
    sh_release(f->context, f->held);
    sh_release(f->context, f);
}

audio_information sh_audio_describe(const audio_file *f) {
    const SF_INFO *information = &f->information;
    bool known = information->frames > 0 && information->frames < SF_COUNT_MAX;
    return (audio_information){
        .rate = information->samplerate,
        .channels = information->channels,
        .seconds = known ? (double)information->frames / information->samplerate : 0.0,
    };
}

/* ---- Reading ---------------------------------------------------------------------- */

static void read_frames(void *argument) {
    audio_file *f = argument;
    sf_count_t count = sf_readf_float(f->file, f->frames, BLOCK);
    f->mono_begin = 0;
    f->mono_count = count > 0 ? count : 0;
}

static shoal_status read_block(audio_file *f) {
    const SF_INFO *information = &f->information;
    const bool mp3 = (information->format & SF_FORMAT_TYPEMASK) == SF_FORMAT_MPEG;
    const float largest = 1e9f;
    if (mp3)
        run_quietly(read_frames, f);
    else
        read_frames(f);
    /* Averages the channels, unless a sample is not finite or far too large. */
    for (int64_t i = 0; i < f->mono_count; i++) {
        double sum = 0.0;
        for (int c = 0; c < information->channels; c++) {
            const float sample = f->frames[i * information->channels + c];
            if (!(fabsf(sample) <= largest)) {
                f->mono_count = 0;
                f->file_ended = true;
                return sh_fail(f->context, SHOAL_BAD_FILE,
                               "%s: has samples that are not finite or too large, after "
                               "%.2f seconds",
                               f->path,
                               (double)(f->frames_read + i) / information->samplerate);
            }
            sum += (double)sample;
        }
        f->mono[i] = (float)(sum / information->channels);
    }
    f->frames_read += f->mono_count;
    if (f->mono_count > 0)
        return SHOAL_OK;
    const double seconds = (double)f->frames_read / information->samplerate;
    f->file_ended = true;
    if (f->partial && f->frames_read > 0)
        return SHOAL_OK;
    if (sf_error(f->file) != SF_ERR_NO_ERROR)
        return sh_fail(f->context, SHOAL_BAD_FILE,
                       "%s: is damaged after %.2f seconds: %s; " GO_ON, f->path, seconds,
                       sound_error(f->file).text);
    if (f->frames_read == 0)
        return sh_fail(f->context, SHOAL_BAD_FILE, "%s: has no samples", f->path);
    /* MP3 headers only estimate the length, and some encoders omit it. */
    if (!mp3 && information->frames < SF_COUNT_MAX &&
        f->frames_read < information->frames)
        return sh_fail(f->context, SHOAL_BAD_FILE,
                       "%s: is truncated: it ends after %.2f of %.2f seconds; " GO_ON,
                       f->path, seconds,
                       (double)information->frames / information->samplerate);
    return SHOAL_OK;
}

shoal_status sh_audio_window(shoal_context *context, audio_file *f, int64_t begin,
                             int64_t count, const float **samples, int64_t *got) {
    if (begin < f->held_begin || count < 0 || count > AUDIO_WINDOW)
        return sh_fail(context, SHOAL_INVALID,
                       "samples %lld to %lld are no longer available: a window can go "
                       "back by at most 30 s",
                       (long long)begin, (long long)(begin + count));
    while (!f->ended && f->held_begin + f->held_count < begin + count) {
        if (f->mono_count == 0 && !f->file_ended)
            TRY(read_block(f));
        if (f->held_count + BLOCK > CAPACITY) { /* the oldest samples are not requested
                                                   again */
            const int64_t drop = min(begin, f->held_begin + f->held_count) -
                                 AUDIO_WINDOW - f->held_begin;
            f->held_begin += drop;
            f->held_count -= drop;
            memmove(f->held, f->held + drop, (size_t)f->held_count * sizeof(float));
        }
        /* Appends up to BLOCK samples at 16 kHz to the held samples. */
        float *out = f->held + f->held_count;
        const float *in = f->mono + f->mono_begin;
        size_t available = (size_t)f->mono_count, used = available, made = available;
        if (!f->resampler) {
            memcpy(out, in, available * sizeof *out);
            f->ended = f->file_ended;
        } else {
            soxr_error_t error = soxr_process(f->resampler, f->file_ended ? NULL : in,
                                              available, &used, out, BLOCK, &made);
            if (error)
                return sh_fail(f->context, SHOAL_NO_MEMORY, "%s: cannot resample it: %s",
                               f->path, sh_shown(error).text);
            used = f->file_ended ? available : used;
            f->ended = f->file_ended && made == 0;
        }
        f->mono_begin += (int64_t)used;
        f->mono_count -= (int64_t)used;
        f->held_count += (int64_t)made;
    }
    *got = max(0, min(count, f->held_begin + f->held_count - begin));
    *samples = f->held + (*got > 0 ? begin - f->held_begin : 0);
    return SHOAL_OK;
}

/* ---- Recordings: a sequence of files, or samples ---------------------------------- */

struct recording_stream {
    shoal_context *context;
    const shoal_recording *recording;
    audio_file *file;     /* the open file, or NULL */
    int part;             /* index of the open file, or of the next one */
    int64_t at;           /* samples taken from it */
    int64_t silence;      /* remaining samples of the gap */
    double seconds;       /* of the files opened so far, including gaps */
    int64_t begin, count; /* part of the recording in the buffer */
    int64_t first, limit; /* selected samples: first .. limit - 1 */
    bool ended;
    float *buffer; /* [AUDIO_WINDOW] */
};

/* Opens the next file; without one the recording ends. */
static shoal_status open_part(recording_stream *s) {
    if (s->part == s->recording->files) {
        s->ended = true;
        return SHOAL_OK;
    }
    TRY(sh_audio_open(s->context, s->recording->paths[s->part],
                      s->recording->partial != 0, &s->file));
    s->seconds += sh_audio_describe(s->file).seconds +
                  (s->part > 0 ? s->recording->gap : 0);
    s->at = 0;
    return SHOAL_OK;
}

static void place_stream(void *argument, block_layout *block) {
    recording_stream *s = argument;
    sh_reserve(block, 1, sizeof *s);
    s->buffer = sh_reserve(block, AUDIO_WINDOW, sizeof *s->buffer);
}

shoal_status sh_recording_open(shoal_context *context, const shoal_recording *recording,
                               recording_stream **made) {
    *made = NULL;
    if (!recording || recording->files < 0 || recording->sample_count < 0 ||
        (recording->files > 0 && !recording->paths) ||
        (recording->files == 0 && recording->sample_count > 0 && !recording->samples))
        return sh_fail(context, SHOAL_INVALID,
                       "recording: give paths, or samples and their number");
    if (!(recording->gap >= 0 && recording->gap <= 3600))
        return sh_fail(context, SHOAL_INVALID,
                       "recording.gap is %g: it must be from 0 to 3600 s",
                       recording->gap);
    if (!(recording->offset >= 0 && recording->offset <= 1e9) ||
        !(recording->duration >= 0 && recording->duration <= 1e9))
        return sh_fail(context, SHOAL_INVALID,
                       "recording.offset is %g, duration %g: both must be 0 or more "
                       "seconds",
                       recording->offset, recording->duration);
    for (int i = 0; i < recording->files; i++)
        if (!recording->paths[i])
            return sh_fail(context, SHOAL_INVALID, "recording.paths[%d] is NULL", i);
    for (int64_t i = 0; recording->files == 0 && i < recording->sample_count; i++)
        if (!(fabsf(recording->samples[i]) <= 1e9f))
            return sh_fail(context, SHOAL_INVALID,
                           "recording.samples[%lld] is not finite or beyond 1e9",
                           (long long)i);
    shoal_status status = SHOAL_OK;
    const int64_t first = llround(recording->offset * 100) * (AUDIO_RATE / 100);
    recording_stream sized = {.context = context,
                              .recording = recording,
                              .first = first,
                              .limit = INT64_MAX};
    if (recording->duration > 0)
        sized.limit = first + llround(recording->duration * AUDIO_RATE);
    recording_stream *s = sh_allocate_parts(context, place_stream, &sized, NULL);
    if (!s)
        return SHOAL_NO_MEMORY;
    *s = sized;
    if (recording->files > 0)
        status = open_part(s);
    else
        s->seconds = (double)recording->sample_count / AUDIO_RATE;
    if (status == SHOAL_OK)
        *made = s;
    else
        sh_recording_close(s);
    return status;
}

void sh_recording_close(recording_stream *s) {
    if (!s)
        return;
    sh_audio_close(s->file);
    sh_release(s->context, s);
}

double sh_recording_seconds(const recording_stream *s) {
    return fmin(s->seconds, (double)s->limit / AUDIO_RATE);
}

int64_t sh_recording_first(const recording_stream *s) {
    return s->first;
}

/* Returns up to `most` further samples; 0 only at the end or between two parts. */
static shoal_status take(recording_stream *s, int64_t most, float *to, int64_t *got) {
    if (s->silence > 0) {
        *got = min(s->silence, most);
        memset(to, 0, (size_t)*got * sizeof *to);
        s->silence -= *got;
        return SHOAL_OK;
    }
    if (s->recording->files > 0) {
        /* Samples of the open file; at its end the gap and the next file follow. */
        const float *samples;
        TRY(sh_audio_window(s->context, s->file, s->at, most, &samples, got));
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
    *got = min(s->recording->sample_count - s->at, most);
    if (*got > 0)
        memcpy(to, s->recording->samples + s->at, (size_t)*got * sizeof *to);
    s->at += *got;
    s->ended = s->at == s->recording->sample_count;
    return SHOAL_OK;
}

shoal_status sh_recording_window(recording_stream *s, int64_t begin,
                                 const float **samples, int64_t *got) {
    int64_t skip = begin - s->begin;
    if (skip < s->count) {
        s->count -= skip;
        memmove(s->buffer, s->buffer + skip, (size_t)s->count * sizeof *s->buffer);
        s->begin = begin;
    } else {
        s->begin += s->count;
        s->count = 0;
    }
    while (s->begin < begin && !s->ended) { /* skip */
        int64_t passed = 0;
        TRY(take(s, min(begin - s->begin, AUDIO_WINDOW), s->buffer, &passed));
        s->begin += passed;
    }
    while (s->count < AUDIO_WINDOW && !s->ended) {
        int64_t more = 0;
        TRY(take(s, AUDIO_WINDOW - s->count, s->buffer + s->count, &more));
        s->count += more;
    }
    *samples = s->buffer;
    *got = s->begin < begin ? 0 : max(0, min(s->count, s->limit - begin));
    return SHOAL_OK;
}
