#define _GNU_SOURCE
#include "speech/audio.h"

#include <math.h>
#include <sndfile.h>
#include <soxr.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "models/files/shown.h"
#include "speech/quiet.h"

enum {
    BLOCK = 16384, /* frames read at a time */
    LOWEST_RATE = 1000,
    HIGHEST_RATE = 768000, /* of a file */
    MOST_CHANNELS = 1024,
    CAPACITY = 2 * AUDIO_WINDOW + BLOCK
};

struct audio {
    shoal_context *context;
    char *path;
    int descriptor;
    SNDFILE *file;
    SF_INFO information;
    soxr_t resampler; /* NULL at 16 kHz */
    float *frames;    /* [BLOCK][channels], as read */
    float *mono;      /* [BLOCK], at the file's rate */
    float *held;      /* [CAPACITY], samples held_begin .. held_begin + held_count - 1 */
    int64_t held_begin, held_count;
    int64_t frames_read;
    int64_t mono_begin, mono_count; /* of `mono`, not yet resampled */
    bool file_ended, ended;
};

/* ---- Opening ---------------------------------------------------------------------- */

static shoal_status open_descriptor(shoal_context *context, const char *path,
                                    int *descriptor, int64_t *size) {
    struct stat information;
    /* A pipe without a writer would be waited for by open(). */
    bool odd = stat(path, &information) == 0 && !S_ISREG(information.st_mode) &&
               !S_ISDIR(information.st_mode);
    if (odd)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is not a regular file", path);
    return sh_file_open(context, path, descriptor, size);
}

/* libsndfile takes a cut WAV file for a shorter one. Its first 12 bytes tell, unless a
   program that wrote to a pipe could not know the size. */
static bool wav_was_cut(int descriptor, int64_t file_size) {
    const uint32_t unknown_from = 0x7ffff000;
    unsigned char head[12];
    if (pread(descriptor, head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head, "RIFF", 4) != 0 || memcmp(head + 8, "WAVE", 4) != 0)
        return false;
    uint32_t size = (uint32_t)head[4] | (uint32_t)head[5] << 8 | (uint32_t)head[6] << 16 |
                    (uint32_t)head[7] << 24;
    /* Some writers count these 8 bytes themselves, or a last byte that is not there. */
    return size < unknown_from && file_size < (int64_t)size;
}

/* The decoder of MP3, which is also asked whether a file is one, writes its
   findings to standard error. */
static void open_quietly(void *argument) {
    audio *recording = argument;
    recording->file =
        sf_open_fd(recording->descriptor, SFM_READ, &recording->information, SF_FALSE);
}

static shoal_status open_sound(audio *recording, int64_t file_size) {
    shoal_context *context = recording->context;
    const char *path = recording->path;
    SF_INFO *information = &recording->information;
    if (file_size == 0)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is empty", path);
    if (wav_was_cut(recording->descriptor, file_size))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is shorter than its header says; it was cut short", path);
    sh_run_quietly(open_quietly, recording);
    if (!recording->file)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is no recording that can be read: %s", path,
                       sh_shown(sf_strerror(NULL)).text);
    if (information->channels < 1 || information->channels > MOST_CHANNELS)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: has %d channels", path,
                       information->channels);
    if (information->samplerate < LOWEST_RATE || information->samplerate > HIGHEST_RATE)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has %d samples per second; %d to %d can be read", path,
                       information->samplerate, (int)LOWEST_RATE, (int)HIGHEST_RATE);
    return SHOAL_OK;
}

static shoal_status open_resampler(audio *recording) {
    soxr_error_t error;
    soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
    soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
    if (recording->information.samplerate == AUDIO_RATE)
        return SHOAL_OK;
    recording->resampler = soxr_create(recording->information.samplerate, AUDIO_RATE, 1,
                                       &error, &io, &quality, &runtime);
    if (!recording->resampler)
        return sh_fail(recording->context, SHOAL_NO_MEMORY, "%s: cannot resample it: %s",
                       recording->path, sh_shown(error).text);
    return SHOAL_OK;
}

static void place_buffers(void *argument, block_layout *block) {
    audio *recording = argument;
    const int64_t channels = recording->information.channels;
    recording->held = sh_reserve(block, CAPACITY, sizeof(float));
    recording->mono = sh_reserve(block, BLOCK, sizeof(float));
    recording->frames = sh_reserve(block, sh_mul_checked(BLOCK, channels), sizeof(float));
}

shoal_status sh_audio_open(shoal_context *context, const char *path, audio **recording) {
    int descriptor;
    int64_t size;
    *recording = NULL;
    shoal_status status = open_descriptor(context, path, &descriptor, &size);
    if (status != SHOAL_OK)
        return status;
    size_t path_bytes = strlen(path) + 1;
    audio *made = sh_allocate(context, sizeof *made + path_bytes);
    if (!made) {
        close(descriptor);
        return SHOAL_NO_MEMORY;
    }
    *made = (audio){.context = context, .descriptor = descriptor};
    made->path = memcpy(made + 1, path, path_bytes);
    status = open_sound(made, size);
    if (status == SHOAL_OK)
        status = open_resampler(made);
    if (status == SHOAL_OK && !sh_allocate_parts(context, place_buffers, made, NULL))
        status = SHOAL_NO_MEMORY;
    if (status != SHOAL_OK) {
        sh_audio_close(made);
        return status;
    }
    *recording = made;
    return SHOAL_OK;
}

void sh_audio_close(audio *recording) {
    if (!recording)
        return;
    if (recording->resampler)
        soxr_delete(recording->resampler);
    if (recording->file)
        sf_close(recording->file);
    close(recording->descriptor);
    sh_release(recording->context, recording->held);
    sh_release(recording->context, recording);
}

audio_information sh_audio_describe(const audio *recording) {
    const SF_INFO *information = &recording->information;
    bool known = information->frames > 0 && information->frames < SF_COUNT_MAX;
    return (audio_information){
        .rate = information->samplerate,
        .channels = information->channels,
        .seconds = known ? (double)information->frames / information->samplerate : 0.0,
    };
}

/* ---- Reading ---------------------------------------------------------------------- */

/* The mean of the channels; false when one is no number or absurd. */
static bool mix(const float *frames, int64_t count, int channels, float *mono) {
    const float largest = 1e9f;
    for (int64_t i = 0; i < count; i++) {
        double sum = 0.0;
        for (int c = 0; c < channels; c++) {
            float sample = frames[i * channels + c];
            if (!(fabsf(sample) <= largest))
                return false;
            sum += (double)sample;
        }
        mono[i] = (float)(sum / channels);
    }
    return true;
}

static bool is_mp3(const SF_INFO *information) {
    return (information->format & SF_FORMAT_TYPEMASK) == SF_FORMAT_MPEG;
}

/* MP3 headers only estimate the length, and some writers leave it open. */
static bool length_is_certain(const SF_INFO *information) {
    return !is_mp3(information) && information->frames < SF_COUNT_MAX;
}

static shoal_status at_file_end(audio *recording) {
    const SF_INFO *information = &recording->information;
    recording->file_ended = true;
    if (sf_error(recording->file) != SF_ERR_NO_ERROR)
        return sh_fail(recording->context, SHOAL_BAD_FILE,
                       "%s: is damaged after %.2f seconds: %s", recording->path,
                       (double)recording->frames_read / information->samplerate,
                       sh_shown(sf_strerror(recording->file)).text);
    if (recording->frames_read == 0)
        return sh_fail(recording->context, SHOAL_BAD_FILE, "%s: has no samples",
                       recording->path);
    if (length_is_certain(information) && recording->frames_read < information->frames)
        return sh_fail(recording->context, SHOAL_BAD_FILE,
                       "%s: ends after %.2f of %.2f seconds; it was cut short",
                       recording->path,
                       (double)recording->frames_read / information->samplerate,
                       (double)information->frames / information->samplerate);
    return SHOAL_OK;
}

static void read_frames(void *argument) {
    audio *recording = argument;
    sf_count_t count = sf_readf_float(recording->file, recording->frames, BLOCK);
    recording->mono_begin = 0;
    recording->mono_count = count > 0 ? count : 0;
}

static shoal_status read_block(audio *recording) {
    int channels = recording->information.channels;
    if (is_mp3(&recording->information))
        sh_run_quietly(read_frames, recording);
    else
        read_frames(recording);
    bool at_end = recording->mono_count == 0;
    if (!mix(recording->frames, recording->mono_count, channels, recording->mono)) {
        recording->mono_count = 0;
        recording->file_ended = true;
        return sh_fail(recording->context, SHOAL_BAD_FILE,
                       "%s: has samples that are no numbers, after %.2f seconds",
                       recording->path,
                       (double)recording->frames_read /
                           recording->information.samplerate);
    }
    recording->frames_read += recording->mono_count;
    return at_end ? at_file_end(recording) : SHOAL_OK;
}

/* Room for BLOCK more samples behind what is held: drops what no legal call asks for. */
static void make_room(audio *recording, int64_t begin) {
    int64_t end = recording->held_begin + recording->held_count;
    int64_t keep_from = (begin < end ? begin : end) - AUDIO_WINDOW;
    int64_t drop = keep_from - recording->held_begin;
    if (recording->held_count + BLOCK <= CAPACITY)
        return;
    recording->held_begin += drop;
    recording->held_count -= drop;
    memmove(recording->held, recording->held + drop,
            (size_t)recording->held_count * sizeof(float));
}

/* Appends up to BLOCK samples at 16 kHz to what is held. */
static shoal_status produce(audio *recording) {
    float *out = recording->held + recording->held_count;
    const float *in = recording->mono + recording->mono_begin;
    size_t available = (size_t)recording->mono_count, used = available, made = available;
    if (!recording->resampler) {
        memcpy(out, in, available * sizeof *out);
        recording->ended = recording->file_ended;
    } else {
        soxr_error_t error = soxr_process(recording->resampler,
                                          recording->file_ended ? NULL : in, available,
                                          &used, out, BLOCK, &made);
        if (error)
            return sh_fail(recording->context, SHOAL_NO_MEMORY,
                           "%s: cannot resample it: %s", recording->path,
                           sh_shown(error).text);
        used = recording->file_ended ? available : used;
        recording->ended = recording->file_ended && made == 0;
    }
    recording->mono_begin += (int64_t)used;
    recording->mono_count -= (int64_t)used;
    recording->held_count += (int64_t)made;
    return SHOAL_OK;
}

shoal_status sh_audio_window(shoal_context *context, audio *recording, int64_t begin,
                             int64_t count, const float **samples, int64_t *got) {
    if (begin < recording->held_begin || count < 0 || count > AUDIO_WINDOW)
        return sh_fail(
            context, SHOAL_INVALID,
            "samples %lld to %lld cannot be had: windows go back by 30 s at most",
            (long long)begin, (long long)(begin + count));
    while (!recording->ended &&
           recording->held_begin + recording->held_count < begin + count) {
        shoal_status status = SHOAL_OK;
        if (recording->mono_count == 0 && !recording->file_ended)
            status = read_block(recording);
        if (status != SHOAL_OK)
            return status;
        make_room(recording, begin);
        status = produce(recording);
        if (status != SHOAL_OK)
            return status;
    }
    int64_t available = recording->held_begin + recording->held_count - begin;
    available = available < 0 ? 0 : available;
    *got = available < count ? available : count;
    *samples = recording->held + (*got > 0 ? begin - recording->held_begin : 0);
    return SHOAL_OK;
}

int64_t sh_audio_length(const audio *recording) {
    return recording->ended ? recording->held_begin + recording->held_count : -1;
}
