/* Recordings in several formats, resampled, window by window; and files that are not
   recordings. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "speech/audio/audio.h"
#include "support.h"

static const double pi = 3.14159265358979323846;
static shoal_context *context;
static const char *folder;

static const char *inside(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A sine of 440 Hz and half of full scale, with a factor per channel; the factors have
   mean 1. */
static bool write_sine(const char *path, int format, int rate, int channels,
                       int64_t frames) {
    SF_INFO information = {.samplerate = rate, .channels = channels, .format = format};
    SNDFILE *file = sf_open(path, SFM_WRITE, &information);
    if (!file)
        return false;
    float *samples = malloc((size_t)(frames * channels) * sizeof *samples);
    for (int64_t i = 0; i < frames; i++)
        for (int c = 0; c < channels; c++) {
            double factor = channels == 1 ? 1.0 : 2.0 * c / (channels - 1);
            samples[i * channels + c] =
                (float)(0.45 * factor * sin(2 * pi * 440 * (double)i / rate));
        }
    assert_int_equal(sf_writef_float(file, samples, frames), frames);
    free(samples);
    sf_close(file);
    return true;
}

/* The whole recording, read in windows of `step`; allocated by malloc. */
static float *read_all(const char *path, int64_t step, int64_t *length) {
    audio_file *recording;
    const float *part;
    float *samples = NULL;
    int64_t got;
    if (sh_audio_open(context, path, false, &recording) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    *length = 0;
    do {
        if (sh_audio_window(context, recording, *length, step, &part, &got) != SHOAL_OK)
            fail_msg("%s", shoal_context_message(context));
        samples = realloc(samples, (size_t)(*length + got + 1) * sizeof *samples);
        memcpy(samples + *length, part, (size_t)got * sizeof *samples);
        *length += got;
    } while (got == step);
    assert_int_equal(sh_audio_window(context, recording, *length, 1, &part, &got),
                     SHOAL_OK);
    assert_int_equal(got, 0);
    sh_audio_close(recording);
    return samples;
}

/* Relative distance of the middle of the recording from the sine, after removing the
   best-fitting sine of that frequency, since a lossy codec may delay it. */
static double distance_from_sine(const float *samples, int64_t length, double *size) {
    int64_t from = 4000, to = length - 4000;
    double s = 0, c = 0, rest = 0, n = (double)(to - from);
    for (int64_t i = from; i < to; i++) {
        s += (double)samples[i] * sin(2 * pi * 440 * (double)i / 16000) * 2 / n;
        c += (double)samples[i] * cos(2 * pi * 440 * (double)i / 16000) * 2 / n;
    }
    for (int64_t i = from; i < to; i++) {
        double angle = 2 * pi * 440 * (double)i / 16000;
        double difference = (double)samples[i] - s * sin(angle) - c * cos(angle);
        rest += difference * difference / n;
    }
    *size = sqrt(s * s + c * c);
    return sqrt(2 * rest) / *size;
}

static const struct {
    const char *name;
    int format, rate, channels;
    double tolerance;
} formats[] = {
    {"a.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 1e-3},
    {"b.wav", SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 2, 1e-3},
    {"c.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_24, 8000, 6, 1e-3},
    {"d.wav", SF_FORMAT_WAV | SF_FORMAT_PCM_U8, 96000, 1, 2e-2},
    {"e.flac", SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 48000, 2, 1e-3},
    {"f.ogg", SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100, 2, 5e-2},
    {"g.mp3", SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100, 2, 5e-2},
    {"h.aiff", SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 22050, 1, 1e-3},
    {"i.ogg", SF_FORMAT_OGG | SF_FORMAT_OPUS, 48000, 1, 5e-2},
};

static void formats_are_read(void **state) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        const char *path = inside(formats[i].name);
        int64_t length, expected = 2 * AUDIO_RATE;
        double size;
        if (!write_sine(path, formats[i].format, formats[i].rate, formats[i].channels,
                        2 * formats[i].rate)) {
            print_message("%s cannot be written here: skipped\n", formats[i].name);
            continue;
        }
        float *samples = read_all(path, AUDIO_WINDOW, &length);
        double distance = distance_from_sine(samples, length, &size);
        if (distance > formats[i].tolerance || fabs(size - 0.45) > 0.01)
            fail_msg("%s: distance %g, size %g", path, distance, size);
        assert_true(llabs(length - expected) <= 3000);
        assert_true(formats[i].tolerance > 2e-2 || llabs(length - expected) <= 1);
        free(samples);
    }
}

/* Without delay: equal to the sine sample by sample, at a rate that is resampled. */
static void resampling_has_no_delay(void **state) {
    int64_t length;
    write_sine(inside("r.wav"), SF_FORMAT_WAV | SF_FORMAT_FLOAT, 44100, 1, 88200);
    float *samples = read_all(inside("r.wav"), 1000, &length);
    for (int64_t i = 2000; i < length - 2000; i++)
        assert_true(fabs((double)samples[i] -
                         0.45 * sin(2 * pi * 440 * (double)i / 16000)) < 1e-3);
    free(samples);
}

static void descriptions_are_the_files(void **state) {
    audio_file *recording;
    write_sine(inside("s.wav"), SF_FORMAT_WAV | SF_FORMAT_PCM_16, 44100, 2, 66150);
    assert_int_equal(sh_audio_open(context, inside("s.wav"), false, &recording),
                     SHOAL_OK);
    audio_information information = sh_audio_describe(recording);
    assert_true(information.rate == 44100 && information.channels == 2 &&
                fabs(information.seconds - 1.5) < 1e-9);
    sh_audio_close(recording);
    sh_audio_close(NULL);
}

/* Windows that overlap, go back and jump ahead give the samples of one long read. */
static void windows_are_parts_of_the_whole(void **state) {
    enum { SECONDS = 200 };
    int64_t length, got;
    audio_file *recording;
    const float *part;
    uint64_t begin = 0;
    write_sine(inside("w.wav"), SF_FORMAT_WAV | SF_FORMAT_PCM_16, 22050, 1,
               SECONDS * 22050);
    float *whole = read_all(inside("w.wav"), AUDIO_WINDOW, &length);
    assert_true(llabs(length - SECONDS * AUDIO_RATE) <= 1);
    for (uint64_t round = 0; round < 4; round++) {
        int64_t at = 0;
        assert_int_equal(sh_audio_open(context, inside("w.wav"), false, &recording),
                         SHOAL_OK);
        while (at < length + AUDIO_WINDOW) {
            int64_t count = test_pick(round, 1, 0, AUDIO_WINDOW + (int64_t)begin % 2 - 1);
            assert_int_equal(sh_audio_window(context, recording, at, count, &part, &got),
                             SHOAL_OK);
            int64_t left = length - at < 0 ? 0 : length - at;
            assert_int_equal(got, count < left ? count : left);
            assert_memory_equal(part, whole + at - (got ? 0 : at),
                                (size_t)got * sizeof *whole);
            at += test_pick(round, begin++, -AUDIO_WINDOW / 2, AUDIO_WINDOW * 2);
            at = at < 0 ? 0 : at;
        }
        assert_int_equal(sh_audio_window(context, recording, 0, 10, &part, &got),
                         SHOAL_INVALID);
        assert_int_equal(sh_audio_window(context, recording, at, AUDIO_WINDOW + 1, &part,
                                         &got),
                         SHOAL_INVALID);
        sh_audio_close(recording);
    }
    free(whole);
}

/* ---- Invalid files ---------------------------------------------------------------- */

/* Opens and reads to the end: the first error, or SHOAL_OK. */
static shoal_status read_through(const char *path) {
    audio_file *recording;
    const float *part;
    int64_t got = 1;
    shoal_status status = sh_audio_open(context, path, false, &recording);
    for (int64_t at = 0; status == SHOAL_OK && got > 0; at += got)
        status = sh_audio_window(context, recording, at, AUDIO_WINDOW, &part, &got);
    sh_audio_close(recording);
    return status;
}

static void refuse(const char *name, shoal_status expected, const char *message) {
    assert_int_equal(read_through(inside(name)), expected);
    if (!strstr(shoal_context_message(context), message))
        fail_msg("'%s' does not say '%s'", shoal_context_message(context), message);
    assert_non_null(strstr(shoal_context_message(context), name));
}

static void other_files_are_refused(void **state) {
    write_bytes_to(inside("text.wav"), "To be or not to be, that is...\n", 31);
    write_bytes_to(inside("empty.flac"), "", 0);
    write_bytes_to(inside("riff.wav"), "RIFF\4\0\0\0WAVE", 12);
    mkdir(inside("folder.mp3"), 0700);
    refuse("text.wav", SHOAL_BAD_FILE, "not a readable recording");
    refuse("empty.flac", SHOAL_BAD_FILE, "empty");
    refuse("riff.wav", SHOAL_BAD_FILE, "recording");
    refuse("folder.mp3", SHOAL_BAD_FILE, "directory");
    refuse("absent.wav", SHOAL_IO, "cannot open");
    assert_int_equal(read_through("/dev/zero"), SHOAL_BAD_FILE);
}

static void no_samples_are_refused(void **state) {
    write_sine(inside("none.wav"), SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 0);
    refuse("none.wav", SHOAL_BAD_FILE, "no samples");
}

static void odd_numbers_are_refused(void **state) {
    const float odd[] = {NAN, INFINITY, -INFINITY, 2e9f};
    for (int i = 0; i < 4; i++) {
        SF_INFO information = {.samplerate = 16000,
                               .channels = 1,
                               .format = SF_FORMAT_WAV | SF_FORMAT_FLOAT};
        SNDFILE *file = sf_open(inside("nan.wav"), SFM_WRITE, &information);
        float *samples = calloc(10000, sizeof *samples);
        samples[9000] = odd[i];
        sf_writef_float(file, samples, 10000);
        sf_close(file);
        free(samples);
        refuse("nan.wav", SHOAL_BAD_FILE, "not finite or too large, after 0.56 seconds");
    }
}

/* A file's bytes, allocated by malloc. */
static unsigned char *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = malloc(1 << 20);
    assert_non_null(file);
    *size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

/* Number of samples with `partial`; -1 if rejected. */
static int64_t count_partial(const char *path) {
    audio_file *recording;
    const float *part;
    int64_t got = 1, all = 0;
    shoal_status status = sh_audio_open(context, path, true, &recording);
    for (; status == SHOAL_OK && got > 0; all += got)
        status = sh_audio_window(context, recording, all, AUDIO_WINDOW, &part, &got);
    sh_audio_close(recording);
    return status == SHOAL_OK ? all : -1;
}

static const struct {
    int format, channels;
    size_t blind; /* bytes at the end that no header covers */
} cut_formats[] = {
    {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 1, 1},
    {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 2, 7},
    {SF_FORMAT_WAVEX | SF_FORMAT_PCM_24, 1, 2},
    {SF_FORMAT_RF64 | SF_FORMAT_PCM_16, 1, 1},
    {SF_FORMAT_WAV | SF_ENDIAN_BIG | SF_FORMAT_PCM_16, 1, 1},
    {SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 1, 0},
    {SF_FORMAT_AU | SF_FORMAT_PCM_16, 1, 0},
    {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 1, 0},
    {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 1, 0},
    {SF_FORMAT_OGG | SF_FORMAT_OPUS, 1, 0},
    {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 1, 0},
};

/* At any length: rejected, or without the last bytes of a frame. */
static void cut_files_are_refused(void **state) {
    for (size_t i = 0; i < sizeof cut_formats / sizeof *cut_formats; i++) {
        /* An OGG file of a few seconds may have a single page. */
        const bool ogg = (cut_formats[i].format & SF_FORMAT_TYPEMASK) == SF_FORMAT_OGG;
        const int64_t frames = ogg ? 400000 : 20000;
        size_t size;
        if (!write_sine(inside("cut"), cut_formats[i].format, 16000,
                        cut_formats[i].channels, frames)) {
            print_message("format %x cannot be written here: skipped\n",
                          cut_formats[i].format);
            continue;
        }
        unsigned char *bytes = load(inside("cut"), &size);
        const int64_t all = count_partial(inside("cut"));
        assert_true(all >= frames);
        assert_int_equal(read_through(inside("cut")), SHOAL_OK);
        for (size_t length = 0; length + cut_formats[i].blind < size;
             length += length < 200 ? 1 : size / 40) {
            write_bytes_to(inside("cut"), bytes, length);
            if (read_through(inside("cut")) != SHOAL_BAD_FILE)
                fail_msg("format %x, %zu of %zu bytes", cut_formats[i].format, length,
                         size);
            assert_true(count_partial(inside("cut")) <= all);
        }
        write_bytes_to(inside("cut"), bytes, size * 3 / 4);
        const int64_t most = count_partial(inside("cut"));
        if (most < all / 4 || most >= all) /* libsndfile's buffers hold back a little */
            fail_msg("format %x: %lld of %lld samples are taken: %s",
                     cut_formats[i].format, (long long)most, (long long)all,
                     shoal_context_message(context));
        free(bytes);
    }
}

/* A 16-bit WAV file of 2.5 s with wrong sizes in its header. */
static void write_sizes(const char *name, uint32_t riff, uint32_t data) {
    size_t size;
    write_sine(inside(name), SF_FORMAT_WAV | SF_FORMAT_PCM_16, 16000, 1, 40000);
    unsigned char *bytes = load(inside(name), &size);
    assert_int_equal(size, 44 + 80000);
    for (int i = 0; i < 4; i++) {
        bytes[4 + i] = (unsigned char)(riff >> 8 * i);
        bytes[40 + i] = (unsigned char)(data >> 8 * i);
    }
    write_bytes_to(inside(name), bytes, size);
    free(bytes);
}

/* The size of the audio counts, whatever that of the file is. */
static void more_sound_announced_than_there_is_refused(void **state) {
    write_sizes("claims.wav", 80036, 160000);
    refuse("claims.wav", SHOAL_BAD_FILE, "2.50 of the 5.00 seconds");
    refuse("claims.wav", SHOAL_BAD_FILE, "partial");
    assert_int_equal(count_partial(inside("claims.wav")), 40000);
    write_sizes("claims.wav", 80036, 80002);
    refuse("claims.wav", SHOAL_BAD_FILE, "truncated");
}

/* Sizes written by programs that write to a pipe. */
static void unknown_sizes_are_read_to_the_end(void **state) {
    static const uint32_t sizes[][2] = {{UINT32_MAX, UINT32_MAX},
                                        {0, 0},
                                        {0x7fffffff, 0x7fffffdb},
                                        {0x7ffff024, 0x7ffff000},
                                        {0x80000024, 0x80000000},
                                        {80036, 0},
                                        {8, 0},
                                        {36, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_sizes("pipe.wav", sizes[i][0], sizes[i][1]);
        if (read_through(inside("pipe.wav")) != SHOAL_OK)
            fail_msg("%s", shoal_context_message(context));
        assert_int_equal(count_partial(inside("pipe.wav")), 40000);
    }
}

/* Nothing was recorded, and a comment follows, which is not audio. */
static void chunks_behind_no_sound_are_no_sound(void **state) {
    static const char file[] =
        "RIFF\60\0\0\0WAVEfmt \20\0\0\0\1\0\1\0\200>\0\0\0}\0\0\2\0\20\0"
        "data\0\0\0\0LIST\4\0\0\0INFO";
    write_bytes_to(inside("none.wav"), file, sizeof file - 1);
    refuse("none.wav", SHOAL_BAD_FILE, "no samples");
}

/* A wrong byte anywhere in an OGG file is detected; without its headers it cannot be
   read. */
static void damaged_pages_are_refused(void **state) {
    size_t size;
    if (!write_sine(inside("d.ogg"), SF_FORMAT_OGG | SF_FORMAT_VORBIS, 16000, 1, 400000))
        skip();
    unsigned char *bytes = load(inside("d.ogg"), &size);
    for (size_t at = 0; at < size; at += 1 + at / 20) {
        bytes[at] ^= 0x10;
        write_bytes_to(inside("d.ogg"), bytes, size);
        refuse("d.ogg", SHOAL_BAD_FILE, at < 100 ? "recording" : "byte");
        assert_true(count_partial(inside("d.ogg")) < 400000);
        bytes[at] ^= 0x10;
    }
    free(bytes);
}

/* Headers with every byte wrong in turn do not cause a crash. */
static void damaged_headers_do_no_harm(void **state) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        size_t size;
        if (!write_sine(inside("damaged"), formats[i].format, formats[i].rate,
                        formats[i].channels, 3000))
            continue;
        unsigned char *bytes = load(inside("damaged"), &size);
        for (size_t at = 0; at < 64 && at < size; at++) {
            for (int value = 0; value < 3; value++) {
                unsigned char before = bytes[at];
                bytes[at] = value == 0   ? 0
                            : value == 1 ? 255
                                         : (unsigned char)(before ^ 1);
                write_bytes_to(inside("damaged"), bytes, size);
                shoal_status status = read_through(inside("damaged"));
                assert_true(status == SHOAL_OK || status == SHOAL_BAD_FILE);
                bytes[at] = before;
            }
        }
        free(bytes);
    }
}

/* Messages of the MP3 decoder about damaged files must not reach standard error. */
static void decoders_are_silent(void **state) {
    size_t size;
    if (!write_sine(inside("loud.mp3"), SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100,
                    1, 44100)) {
        print_message("MP3 cannot be written here: skipped\n");
        skip();
    }
    unsigned char *bytes = load(inside("loud.mp3"), &size);
    for (size_t at = 500; at < size; at += 97)
        bytes[at] ^= 0x5a;
    write_bytes_to(inside("loud.mp3"), bytes, size);
    free(bytes);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    int caught = open(inside("stderr"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(caught, STDERR_FILENO);
    read_through(inside("loud.mp3"));
    dup2(before, STDERR_FILENO);
    off_t written = lseek(caught, 0, SEEK_END);
    close(before);
    close(caught);
    assert_int_equal(written, 0);
}

static void failed_allocations_are_reported(void **state) {
    write_sine(inside("m.wav"), SF_FORMAT_WAV | SF_FORMAT_PCM_16, 8000, 1, 100);
    for (int64_t n = 0; n <= 2; n++) {
        counting_allocator memory = {0};
        const shoal_options options = counting_options(&memory);
        shoal_context *counted;
        assert_int_equal(shoal_context_create(&options, &counted), SHOAL_OK);
        int64_t live = memory.live;
        audio_file *recording;
        memory.fail_at = memory.calls + n + 1;
        assert_int_equal(sh_audio_open(counted, inside("m.wav"), false, &recording),
                         n < 2 ? SHOAL_NO_MEMORY : SHOAL_OK);
        sh_audio_close(recording);
        assert_int_equal(memory.live, live);
        shoal_context_destroy(counted);
    }
}

static int begin(void **state) {
    folder = make_folder();
    return shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int end(void **state) {
    remove_folder(folder);
    shoal_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_read),
        cmocka_unit_test(resampling_has_no_delay),
        cmocka_unit_test(descriptions_are_the_files),
        cmocka_unit_test(windows_are_parts_of_the_whole),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(no_samples_are_refused),
        cmocka_unit_test(odd_numbers_are_refused),
        cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(more_sound_announced_than_there_is_refused),
        cmocka_unit_test(unknown_sizes_are_read_to_the_end),
        cmocka_unit_test(chunks_behind_no_sound_are_no_sound),
        cmocka_unit_test(damaged_pages_are_refused),
        cmocka_unit_test(damaged_headers_do_no_harm),
        cmocka_unit_test(decoders_are_silent),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
