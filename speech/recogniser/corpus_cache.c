/* The file of a data folder's features: computed by all threads, mapped, and verified
   completely when it is opened.

       cache_head, then [utterances] cache_row, then features [frames][bands], floats

   in native byte order, since it is local to the machine. Utterances that could not be
   read have no frames; they are read again each time to find the reason.

   Until it is complete it is NAME.features.part, of the same form: rows of utterances
   that were not read yet begin at NOT_READ. Work that was stopped goes on from there. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <soxr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "models/files/checksum.h"
#include "models/files/files.h"
#include "shoal_models.h"
#include "speech/audio/audio.h"
#include "speech/recogniser/corpus.h"
#include "speech/words/grow.h"

enum {
    CACHE_VERSION = 2,
    CACHE_PATH = 4096, /* bytes of the file's path at most */
    CHUNK = 64,        /* recordings at most that are read before any is written */
    NOT_READ = -1      /* cache_row.first */
};

typedef struct {
    char magic[8];
    uint64_t key;
    int64_t bands, utterances, frames;
    uint64_t checksum; /* of everything after it */
} cache_head;

typedef struct {
    int64_t first, frames;
} cache_row;

static const char magic[8] = "shoalfb1";

/* ---- Checksums -------------------------------------------------------------------- */

static uint64_t mix_real(uint64_t sum, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return mix_word(sum, bits);
}

/* ---- One recording ----------------------------------------------------------------- */

/* Result for one recording; the features of its utterances are concatenated. */
typedef struct {
    float *features;
    int64_t frames;
    bool lost; /* out of memory */
} read_recording;

typedef struct {
    shoal_corpus *corpus;
    shoal_context **contexts; /* [threads], one per thread */
    fbank **banks;            /* [threads] */
    int64_t first;            /* recording of task 0 */
    read_recording *found;    /* [CHUNK] */
} reading;

typedef struct {
    float *samples;
    int64_t count, room;
} sound;

enum { LOW_RATE = AUDIO_RATE / 2, LOOKED_AT = 100 };

/* alike: `wanted` is the rate of most recordings, and others are rejected. */
static shoal_status read_open(shoal_context *context, audio_file *file, const char *path,
                              int wanted, bool alike, sound *s) {
    const int rate = sh_audio_describe(file).rate;
    const bool low = wanted < AUDIO_RATE;
    const int least = alike ? LOW_RATE : wanted;
    if (rate < least)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: has %d samples per second; at least %d are needed", path,
                       rate, least);
    if (alike && low != (rate < AUDIO_RATE))
        return sh_fail(context, SHOAL_BAD_FILE,
                       low ? "%s: has %d samples per second, but most recordings less "
                             "than %d; rate=%d accepts both, rate=%d only the higher ones"
                           : "%s: has %d samples per second, but most recordings %d or "
                             "more; rate=%d accepts both",
                       path, rate, (int)AUDIO_RATE, (int)LOW_RATE, (int)AUDIO_RATE);
    TRY(sh_audio_set_rate(file, wanted));
    const float *part;
    int64_t got = 0;
    do {
        TRY(sh_audio_window(context, file, s->count, AUDIO_WINDOW, &part, &got));
        if (!grow(context, &s->samples, &s->room, s->count + got, sizeof *part))
            return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
        if (got > 0)
            memcpy(s->samples + s->count, part, sizeof *part * (size_t)got);
        s->count += got;
    } while (got > 0);
    return SHOAL_OK;
}

static shoal_status read_sound(shoal_context *context, const char *path, int wanted,
                               bool alike, sound *s) {
    audio_file *file;
    TRY(sh_audio_open(context, path, false, &file));
    const shoal_status status = read_open(context, file, path, wanted, alike, s);
    sh_audio_close(file);
    return status;
}

shoal_status sh_corpus_find_rate(shoal_corpus *corpus) {
    const int64_t all = corpus->utterance_count, looks = min(all, LOOKED_AT);
    int64_t low = 0, high = 0;
    corpus->info.rate = sh_fbank_rate(&corpus->options.fbank);
    corpus->rate_found = corpus->options.fbank.rate == 0;
    /* Whether most utterances are from recordings with a low rate; unreadable ones
       do not count. A long list is sampled, because opening a file may take
       milliseconds. */
    for (int64_t i = 0; i < looks && corpus->rate_found; i++) {
        const int64_t at =
            all == looks ? i
                         : (int64_t)shoal_random_below(1, 0, (uint64_t)i, (uint64_t)all);
        const int64_t recording = corpus->utterances[at].recording;
        audio_file *file = NULL;
        if (recording >= 0 &&
            sh_audio_open(corpus->context, corpus->recordings[recording].path, false,
                          &file) == SHOAL_NO_MEMORY)
            return SHOAL_NO_MEMORY;
        const int rate = file ? sh_audio_describe(file).rate : 0;
        sh_audio_close(file);
        low += rate >= LOW_RATE && rate < AUDIO_RATE;
        high += rate >= AUDIO_RATE;
    }
    if (corpus->rate_found)
        corpus->info.rate = low > high ? LOW_RATE : AUDIO_RATE;
    corpus->options.fbank.rate = corpus->info.rate;
    return SHOAL_OK;
}

static shoal_status play_faster(shoal_context *context, double speed, sound *s) {
    const size_t room = (size_t)((double)s->count / speed) + 16;
    const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    float *made = sh_allocate(context, sizeof *made * room);
    size_t count = 0;
    const soxr_error_t error = made ? soxr_oneshot(speed, 1, 1, s->samples,
                                                   (size_t)s->count, NULL, made, room,
                                                   &count, NULL, &quality, NULL)
                                    : "out of memory";
    if (error) {
        sh_free(made);
        return sh_fail(context, SHOAL_NO_MEMORY, "cannot resample: %s",
                       sh_shown(error).text);
    }
    sh_free(s->samples);
    *s = (sound){made, (int64_t)count, (int64_t)room};
    return SHOAL_OK;
}

/* Sample range of an utterance; 0 if there are too few samples for a frame. */
static int64_t cut(shoal_corpus *corpus, corpus_utterance *one, const sound *s,
                   int64_t *begin) {
    const double rate = corpus->info.rate /
                        (corpus->options.speed > 0 ? corpus->options.speed : 1);
    const double first = one->begin * rate;
    const double last = one->end < 0 ? (double)s->count : one->end * rate;
    if (last > (double)s->count + rate / 10) {
        sh_corpus_refuse(corpus, one, "ends at %.2f s, but its recording has %.2f s",
                         one->end, (double)s->count / rate);
        return 0;
    }
    if (first > (double)s->count) {
        sh_corpus_refuse(corpus, one, "begins at %.2f s, but its recording has %.2f s",
                         one->begin, (double)s->count / rate);
        return 0;
    }
    *begin = (int64_t)(first + 0.5);
    const int64_t end = min(s->count, (int64_t)(last + 0.5));
    const int64_t count = end - *begin;
    if (shoal_fbank_frames(&corpus->options.fbank, count) > 0)
        return count;
    sh_corpus_refuse(corpus, one, "is too short: %lld samples", (long long)count);
    return 0;
}

static void recording_task(void *shared, int64_t task, int thread) {
    const reading *r = shared;
    const corpus_recording *recording = &r->corpus->recordings[r->first + task];
    shoal_context *context = r->contexts[thread];
    sound s = {0};
    r->found[task] = (read_recording){0};
    if (recording->count == 0)
        return;
    shoal_status status = read_sound(context, recording->path, r->corpus->info.rate,
                                     r->corpus->rate_found, &s);
    const double speed = r->corpus->options.speed;
    if (status == SHOAL_OK && speed > 0 && speed != 1)
        status = play_faster(context, speed, &s);
    if (status == SHOAL_OK) {
        /* Features of all utterances of the recording; frames are counted from its
           first. */
        shoal_corpus *corpus = r->corpus;
        for (int64_t i = 0; i < recording->count; i++) {
            corpus_utterance *one =
                &corpus->utterances[corpus->order[recording->first + i]];
            int64_t begin;
            const int64_t count = cut(corpus, one, &s, &begin);
            const int64_t frames =
                count > 0 ? shoal_fbank_frames(&corpus->options.fbank, count) : 0;
            float *more =
                sh_resize(r->corpus->context, r->found[task].features,
                          sizeof *more * (size_t)((r->found[task].frames + frames) *
                                                      corpus->info.bands +
                                                  1));
            one->frames = more ? frames : 0;
            one->first_frame = r->found[task].frames;
            if (!more) {
                r->found[task].lost = true;
                continue;
            }
            r->found[task].features = more;
            if (frames > 0)
                sh_fbank_compute(r->banks[thread], s.samples + begin, count,
                                 more + r->found[task].frames * corpus->info.bands);
            r->found[task].frames += frames;
        }
    }
    r->found[task].lost = r->found[task].lost || status == SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < recording->count && status != SHOAL_OK; i++)
        sh_corpus_refuse(r->corpus,
                         &r->corpus->utterances[r->corpus->order[recording->first + i]],
                         "%s", shoal_context_message(context));
    sh_free(s.samples);
}

/* ---- All recordings --------------------------------------------------------------- */

static void end_reading(reading *r, int threads) {
    for (int i = 0; i < threads; i++) {
        if (r->banks)
            sh_fbank_destroy(r->banks[i]);
        if (r->contexts)
            shoal_context_destroy(r->contexts[i]);
    }
    FREE_ALL(r->banks, r->contexts, r->found);
}

/* Threads cannot share a context: each has its own, with one thread. */
static shoal_status begin_reading(shoal_corpus *corpus, reading *r) {
    const int threads = corpus->context->threads;
    const shoal_options options = sh_child_options(corpus->context);
    *r = (reading){.corpus = corpus,
                   .contexts = sh_allocate_zeros(corpus->context, (size_t)threads,
                                                 sizeof *r->contexts),
                   .banks = sh_allocate_zeros(corpus->context, (size_t)threads,
                                              sizeof *r->banks),
                   .found = sh_allocate_zeros(corpus->context, CHUNK, sizeof *r->found)};
    shoal_status status = r->contexts && r->banks && r->found ? SHOAL_OK
                                                              : SHOAL_NO_MEMORY;
    for (int i = 0; i < threads && status == SHOAL_OK; i++) {
        status = shoal_context_create(&options, &r->contexts[i]);
        if (status == SHOAL_OK)
            status =
                sh_fbank_create(r->contexts[i], &corpus->options.fbank, &r->banks[i]);
        if (status != SHOAL_OK)
            sh_fail(corpus->context, status, "%s",
                    r->contexts[i] ? shoal_context_message(r->contexts[i])
                                   : "out of memory for a recording");
    }
    return status;
}

/* Writes what a chunk gave, and drops it. SHOAL_IO: it cannot be written. */
static shoal_status write_chunk(reading *r, int64_t chunk, FILE *file, cache_head *head,
                                cache_row *rows) {
    const shoal_corpus *corpus = r->corpus;
    bool good = true, lost = false;
    for (int64_t i = 0; i < chunk; i++) {
        const corpus_recording *recording = &corpus->recordings[r->first + i];
        read_recording *found = &r->found[i];
        const size_t floats = (size_t)(found->frames * corpus->info.bands);
        for (int64_t k = 0; k < recording->count; k++) {
            const int32_t index = corpus->order[recording->first + k];
            const corpus_utterance *one = &corpus->utterances[index];
            rows[index] = (cache_row){head->frames + one->first_frame, one->frames};
        }
        good = good && (floats == 0 ||
                        fwrite(found->features, sizeof(float), floats, file) == floats);
        head->checksum =
            mix_words(head->checksum, found->features, floats * sizeof(float));
        head->frames += found->frames;
        lost = lost || found->lost;
        sh_free(found->features);
        found->features = NULL;
    }
    if (!good)
        return SHOAL_IO;
    return lost ? sh_fail(corpus->context, SHOAL_NO_MEMORY,
                          "out of memory for the features")
                : SHOAL_OK;
}

/* Reads all recordings from one on into the open file, whose head and rows come last.
   SHOAL_IO: it cannot be written. *stopped: the caller wants no more for now. */
static shoal_status write_all(shoal_corpus *corpus, int64_t from, FILE *file,
                              cache_head *head, cache_row *rows, bool *stopped) {
    const size_t count = (size_t)head->utterances;
    const int64_t all = corpus->recording_count;
    const int64_t most = max(CHUNK / 8, min(CHUNK, 2 * corpus->context->threads));
    const shoal_corpus_options *options = &corpus->options;
    reading r;
    shoal_status status = begin_reading(corpus, &r);
    r.first = from;
    while (r.first < all && status == SHOAL_OK && !*stopped) {
        const int64_t chunk = min(most, all - r.first);
        sh_team_run(sh_team_of(corpus->context), chunk, recording_task, &r);
        status = write_chunk(&r, chunk, file, head, rows);
        r.first += chunk;
        *stopped = status == SHOAL_OK && options->progress &&
                   options->progress(options->user, r.first, all) != 0;
    }
    const int error = errno;
    end_reading(&r, corpus->context->threads);
    errno = error;
    if (status != SHOAL_OK)
        return status;
    head->checksum = mix_words(head->checksum, rows, sizeof *rows * count);
    return fseek(file, 0, SEEK_SET) == 0 && fwrite(head, sizeof *head, 1, file) == 1 &&
                   fwrite(rows, sizeof *rows, count, file) == count
               ? SHOAL_OK
               : SHOAL_IO;
}

/* Whether a map is whole and of this key. */
static bool is_good(const shoal_corpus *corpus, const file_map *map, uint64_t key) {
    const cache_head *head = (const void *)map->bytes;
    if (map->size < sizeof *head || memcmp(head->magic, magic, sizeof magic) != 0 ||
        head->key != key || head->bands != corpus->info.bands ||
        head->utterances != corpus->utterance_count || head->frames < 0 ||
        head->frames > (int64_t)(map->size / sizeof(float)))
        return false;
    const size_t rows = sizeof(cache_row) * (size_t)head->utterances;
    const size_t floats = sizeof(float) * (size_t)(head->frames * head->bands);
    if (map->size != sizeof *head + rows + floats)
        return false;
    const unsigned char *after = map->bytes + sizeof *head;
    const uint64_t sum = mix_words(mix_words(0, after + rows, floats), after, rows);
    return sum == head->checksum;
}

/* Begins the file: head and rows, which are written again in the end, and the features
   that work left which was stopped. *from: the first recording that is not there. */
static shoal_status begin_file(const shoal_corpus *corpus, const char *part, FILE *file,
                               cache_head *head, cache_row *rows, int64_t *from) {
    const size_t count = (size_t)head->utterances;
    file_map map = {0};
    size_t bytes = 0;
    const unsigned char *features = NULL;
    *from = 0;
    if (access(part, F_OK) == 0 &&
        sh_file_map_open(corpus->context, part, &map) == SHOAL_OK &&
        is_good(corpus, &map, head->key)) {
        const cache_head *before = (const void *)map.bytes;
        memcpy(rows, before + 1, sizeof *rows * count);
        features = map.bytes + sizeof *head + sizeof *rows * count;
        bytes = map.size - (size_t)(features - map.bytes);
        head->frames = before->frames;
        head->checksum = mix_words(0, features, bytes);
        for (; *from < corpus->recording_count; ++*from) {
            const corpus_recording *recording = &corpus->recordings[*from];
            if (recording->count > 0 &&
                rows[corpus->order[recording->first]].first == NOT_READ)
                break;
        }
    }
    const bool written = fwrite(head, sizeof *head, 1, file) == 1 &&
                         fwrite(rows, sizeof *rows, count, file) == count &&
                         (bytes == 0 || fwrite(features, bytes, 1, file) == 1);
    const int error = errno;
    sh_file_map_close(&map);
    errno = error;
    return written ? SHOAL_OK : SHOAL_IO;
}

/* Written as NAME.part, which is renamed where it is complete. */
static shoal_status make_file(shoal_corpus *corpus, const char *path, uint64_t key) {
    char part[CACHE_PATH + 8];
    shoal_replacement *to = NULL;
    cache_head head = {.key = key,
                       .bands = corpus->info.bands,
                       .utterances = corpus->utterance_count};
    memcpy(head.magic, magic, sizeof magic);
    cache_row *rows = sh_allocate_zeros(corpus->context,
                                        (size_t)corpus->utterance_count + 1,
                                        sizeof *rows);
    if (!rows)
        return sh_fail(corpus->context, SHOAL_NO_MEMORY,
                       "out of memory for the features");
    for (int64_t i = 0; i < corpus->utterance_count; i++)
        rows[i].first = corpus->utterances[i].recording < 0 ? 0 : NOT_READ;
    snprintf(part, sizeof part, "%s.part", path);
    sh_remove_leftovers(corpus->options.cache);
    bool stopped = false;
    shoal_status status = shoal_replacement_create(corpus->context, part, &to);
    if (status == SHOAL_OK) {
        FILE *file = shoal_replacement_file(to);
        int64_t from;
        status = begin_file(corpus, part, file, &head, rows, &from);
        if (status == SHOAL_OK)
            status = write_all(corpus, from, file, &head, rows, &stopped);
        if (status == SHOAL_IO)
            sh_file_cannot(corpus->context, path, "write the features to it");
    }
    if (status == SHOAL_OK)
        status = shoal_replacement_commit(to, SHOAL_SYNC_DATA);
    shoal_replacement_destroy(to);
    sh_free(rows);
    if (status == SHOAL_OK && stopped)
        return sh_fail(corpus->context, SHOAL_CANCELLED,
                       "cancelled while features were computed");
    if (status == SHOAL_OK && rename(part, path) != 0)
        return sh_file_cannot(corpus->context, path, "rename the features to it");
    return status;
}

/* ---- Using the cache -------------------------------------------------------------- */

/* Frames of the utterances, and again the reason of those that have none. */
static shoal_status take_rows(shoal_corpus *corpus) {
    const cache_head *head = (const void *)corpus->map.bytes;
    const cache_row *rows = (const void *)(head + 1);
    corpus->features = (const void *)(rows + head->utterances);
    reading r = {0};
    for (int64_t i = 0; i < corpus->utterance_count; i++) {
        corpus_utterance *one = &corpus->utterances[i];
        if (rows[i].frames == 0 && !one->reason && one->recording >= 0) {
            if (!r.contexts && begin_reading(corpus, &r) != SHOAL_OK) {
                end_reading(&r, corpus->context->threads);
                return SHOAL_NO_MEMORY;
            }
            r.first = one->recording;
            recording_task(&r, 0, 0);
            sh_free(r.found[0].features);
            sh_corpus_refuse(corpus, one,
                             "could not be read at first; remove the cache to try again");
        }
    }
    if (r.contexts)
        end_reading(&r, corpus->context->threads);
    for (int64_t i = 0; i < corpus->utterance_count; i++) {
        corpus->utterances[i].first_frame = rows[i].first;
        corpus->utterances[i].frames = rows[i].frames;
    }
    return SHOAL_OK;
}

shoal_status sh_corpus_features(shoal_corpus *corpus) {
    char path[CACHE_PATH];
    /* The features depend on all of these. */
    uint64_t key = mix_word(CACHE_VERSION, (uint64_t)corpus->info.bands);
    key = mix_word(key, corpus->options.fbank.centred != 0);
    key = mix_word(key, (uint64_t)corpus->info.rate);
    key = mix_word(key, corpus->rate_found && corpus->info.rate < AUDIO_RATE);
    key = mix_real(key, corpus->options.speed == 0 ? 1 : corpus->options.speed);
    for (int64_t i = 0; i < corpus->recording_count; i++) {
        struct stat information = {0};
        const bool there = stat(corpus->recordings[i].path, &information) == 0;
        for (const char *c = corpus->recordings[i].path; *c; c++)
            key = mix_word(key, (unsigned char)*c);
        key = mix_word(key, 0x100);
        key = mix_word(key, there ? (uint64_t)information.st_size : UINT64_MAX);
        key = mix_word(key, (uint64_t)information.st_mtim.tv_sec);
        key = mix_word(key, (uint64_t)information.st_mtim.tv_nsec);
    }
    for (int64_t i = 0; i < corpus->utterance_count; i++) {
        key = mix_word(key, (uint64_t)corpus->utterances[i].recording);
        key = mix_real(key, corpus->utterances[i].begin);
        key = mix_real(key, corpus->utterances[i].end);
    }
    const int length = snprintf(path, sizeof path, "%s/fbank%d-%016llx.features",
                                corpus->options.cache, (int)corpus->info.bands,
                                (unsigned long long)key);
    if (length < 0 || length >= (int)sizeof path)
        return sh_fail(corpus->context, SHOAL_INVALID,
                       "the path of the cache is too long");
    shoal_status status = SHOAL_OK;
    if (access(path, F_OK) == 0)
        status = sh_file_map_open(corpus->context, path, &corpus->map);
    corpus->info.cached = status == SHOAL_OK && is_good(corpus, &corpus->map, key);
    if (corpus->info.cached)
        return take_rows(corpus);
    sh_file_map_close(&corpus->map);
    TRY(make_file(corpus, path, key));
    TRY(sh_file_map_open(corpus->context, path, &corpus->map));
    return is_good(corpus, &corpus->map, key)
               ? take_rows(corpus)
               : sh_fail(corpus->context, SHOAL_IO,
                         "%s: does not contain what was written; check the disk", path);
}

/* ---- A single file ---------------------------------------------------------------- */

shoal_status shoal_fbank_file(shoal_context *context, const shoal_fbank_options *options,
                              const char *path, float **features, int64_t *frames) {
    sound s = {0};
    fbank *bank = NULL;
    if (features)
        *features = NULL;
    if (!context || !path || !features || !frames)
        return sh_fail(context, SHOAL_INVALID,
                       "context, path, features or frames is NULL");
    shoal_fbank_options own = shoal_fbank_options_defaults();
    TRY(READ_STRUCT(context, shoal_fbank_options, options, &own));
    options = &own;
    shoal_status status = sh_fbank_create(context, options, &bank);
    if (status == SHOAL_OK)
        status = read_sound(context, path, sh_fbank_rate(options), false, &s);
    *frames = shoal_fbank_frames(options, s.count);
    if (status == SHOAL_OK) {
        const size_t floats = (size_t)*frames * (size_t)sh_fbank_bands(options);
        *features = sh_allocate(context, floats * sizeof(float));
        status = *features ? SHOAL_OK : SHOAL_NO_MEMORY;
    }
    if (status == SHOAL_OK)
        sh_fbank_compute(bank, s.samples, s.count, *features);
    sh_fbank_destroy(bank);
    sh_free(s.samples);
    return status;
}

void shoal_fbank_release(shoal_context *context, float *features) {
    if (context)
        sh_release(context, features);
}
