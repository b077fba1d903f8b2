/* Data folders: lists, units, and normalisation of features. */
#define _GNU_SOURCE
#include "speech/recogniser/corpus.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/plain.h"
#include "models/text/unicode.h"
#include "speech/words/grow.h"

static shoal_status no_memory(shoal_context *context) {
    return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the data folder");
}

void sh_corpus_refuse(shoal_corpus *corpus, corpus_utterance *utterance,
                      const char *format, ...) {
    char text[CORPUS_REASON];
    va_list arguments;
    if (utterance->reason)
        return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    utterance->reason = sh_copy_text(corpus->context, text);
    if (!utterance->reason)
        atomic_store(&corpus->lost, true);
}

/* ---- Lists: lines of an id and a value -------------------------------------------- */

typedef struct {
    char *id, *rest;
    int64_t line, index; /* line number, from 1; row index, from 0 */
} list_row;

typedef struct {
    list_row *rows;
    int64_t count;
    char name[512]; /* file name for messages */
} list_file;

enum { CORPUS_LINE = 1 << 20 };
enum { WAV_SCP, SEGMENTS, LABELS, SPEAKERS, LISTS };

typedef struct {
    list_file files[LISTS];
    list_row *sorted[LISTS]; /* sorted by id */
} corpus_lists;

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* Splits the text into rows; returns their number. rows NULL: only counts. */
static int64_t cut_rows(char *text, list_row *rows) {
    int64_t count = 0, line = 0;
    for (char *at = text; *at; line++) {
        char *end = at + strcspn(at, "\n"), *next = *end ? end + 1 : end;
        while (end > at && is_space(end[-1]))
            end--;
        while (at < end && is_space(*at))
            at++;
        if (at < end && rows) {
            char *rest = at;
            *end = 0;
            while (*rest && !is_space(*rest))
                rest++;
            if (*rest)
                *rest++ = 0;
            while (is_space(*rest))
                rest++;
            rows[count] = (list_row){at, rest, line + 1, count};
        }
        count += at < end;
        at = next;
    }
    return count;
}

static shoal_status read_text(shoal_context *context, const char *path, char **text) {
    file_map map = {0};
    TRY(sh_file_map_open(context, path, &map));
    const char *at = (const char *)map.bytes, *end = at + map.size;
    shoal_status status = SHOAL_OK;
    for (int64_t line = 1; at < end; line++) {
        const size_t left = (size_t)(end - at);
        const char *next = memchr(at, '\n', left < CORPUS_LINE ? left : CORPUS_LINE);
        if (!next && left >= CORPUS_LINE)
            status = sh_fail(context, SHOAL_BAD_FILE,
                             "%s: line %lld is longer than %d bytes", path,
                             (long long)line, CORPUS_LINE);
        at = next ? next + 1 : end;
    }
    if (status == SHOAL_OK) {
        *text = sh_allocate(context, map.size + 1);
        if (!*text)
            status = no_memory(context);
    }
    if (status == SHOAL_OK) {
        if (map.size)
            memcpy(*text, map.bytes, map.size);
        (*text)[map.size] = 0;
        if (strlen(*text) != map.size)
            status =
                sh_fail(context, SHOAL_BAD_FILE, "%s: contains control characters", path);
    }
    sh_file_map_close(&map);
    return status;
}

static int compare_rows(const void *a, const void *b) {
    return strcmp(((const list_row *)a)->id, ((const list_row *)b)->id);
}

static const list_row *find(const corpus_lists *lists, int list, const char *id) {
    const list_row key = {.id = (char *)(uintptr_t)id};
    if (lists->files[list].count == 0)
        return NULL;
    return bsearch(&key, lists->sorted[list], (size_t)lists->files[list].count,
                   sizeof key, compare_rows);
}

/* Optional files that are missing leave their lists empty. */
static shoal_status read_lists(shoal_corpus *corpus, const char *folder,
                               corpus_lists *lists) {
    shoal_context *context = corpus->context;
    const char *labels = corpus->options.labels ? corpus->options.labels : "text";
    const char *const names[LISTS] = {"wav.scp", "segments", labels, "utt2spk"};
    for (int i = 0; i < LISTS; i++) {
        list_file *file = &lists->files[i];
        const bool whole = names[i][0] == '/';
        const int length = snprintf(file->name, sizeof file->name,
                                    whole ? "%s%s" : "%s/%s", whole ? "" : folder,
                                    names[i]);
        if (length < 0 || length >= (int)sizeof file->name)
            return sh_fail(context, SHOAL_INVALID, "%.80s...: the path is too long",
                           folder);
        if (i != WAV_SCP && i != LABELS && access(file->name, F_OK) != 0)
            continue;
        TRY(read_text(context, file->name, &corpus->texts[i]));
        char *text = corpus->texts[i];
        if (strncmp(text, "\xef\xbb\xbf", 3) == 0) /* byte order mark */
            text += 3;
        const size_t most = (size_t)cut_rows(text, NULL);
        list_row *sorted = sh_allocate_zeros(context, most + 1, sizeof *sorted);
        file->rows = sh_allocate_zeros(context, most + 1, sizeof *file->rows);
        lists->sorted[i] = sorted;
        if (!file->rows || !sorted)
            return no_memory(context);
        file->count = cut_rows(text, file->rows);
        memcpy(sorted, file->rows, sizeof *sorted * (size_t)file->count);
        qsort(sorted, (size_t)file->count, sizeof *sorted, compare_rows);
        for (int64_t k = 1; k < file->count; k++)
            if (strcmp(sorted[k].id, sorted[k - 1].id) == 0)
                return sh_fail(context, SHOAL_BAD_FILE, "%s: line %lld: duplicate id %s",
                               file->name, (long long)sorted[k].line,
                               sh_shown(sorted[k].id).text);
    }
    return SHOAL_OK;
}

/* ---- Recordings and utterances ----------------------------------------------------- */

static shoal_status take_recordings(shoal_corpus *corpus, const char *folder,
                                    const list_file *list) {
    corpus->recordings = sh_allocate_zeros(corpus->context, (size_t)list->count + 1,
                                           sizeof *corpus->recordings);
    if (!corpus->recordings)
        return no_memory(corpus->context);
    for (int64_t i = 0; i < list->count; i++) {
        const list_row *row = &list->rows[i];
        const size_t length = strlen(row->rest);
        corpus_recording *made = &corpus->recordings[corpus->recording_count++];
        if (length == 0 || row->rest[length - 1] == '|')
            return sh_fail(corpus->context, SHOAL_BAD_FILE,
                           "%s: line %lld: %s %s; it must be ID PATH", list->name,
                           (long long)row->line, sh_shown(row->id).text,
                           length ? "has a command, which is not run: write the "
                                    "recordings to files first"
                                  : "has no path");
        made->id = row->id;
        made->path = sh_print_text(corpus->context,
                                   row->rest[0] == '/' ? "%s%s" : "%s/%s",
                                   row->rest[0] == '/' ? "" : folder, row->rest);
        if (!made->path)
            return no_memory(corpus->context);
    }
    return SHOAL_OK;
}

static shoal_status take_utterances(shoal_corpus *corpus, const corpus_lists *lists) {
    const bool parts = lists->files[SEGMENTS].count > 0;
    const list_file *list = &lists->files[parts ? SEGMENTS : WAV_SCP];
    corpus->utterances = sh_allocate_zeros(corpus->context, (size_t)list->count + 1,
                                           sizeof *corpus->utterances);
    if (!corpus->utterances)
        return no_memory(corpus->context);
    for (int64_t i = 0; i < list->count; i++) {
        corpus_utterance *made = &corpus->utterances[corpus->utterance_count++];
        *made = (corpus_utterance){.id = list->rows[i].id, .recording = i, .end = -1};
        const list_row *speaker = find(lists, SPEAKERS, made->id);
        made->speaker = speaker ? speaker->rest : made->id;
        if (!speaker && lists->files[SPEAKERS].count > 0)
            sh_corpus_refuse(corpus, made, "has no speaker in utt2spk");
        if (!parts)
            continue;
        /* "RECORDING BEGIN END" */
        char *recording = list->rows[i].rest, *after;
        char *numbers = recording + strcspn(recording, " \t");
        if (*numbers)
            *numbers++ = 0;
        made->begin = strtod(numbers, &after);
        made->end = after == numbers ? -1 : strtod(after, &numbers);
        if (after == numbers || *numbers || !(made->begin >= 0) ||
            (made->end != -1 && !(made->end > made->begin)))
            return sh_fail(
                corpus->context, SHOAL_BAD_FILE,
                "%s: line %lld: it must be ID RECORDING BEGIN END with 0 <= BEGIN < END "
                "in seconds, or END -1 for the end of the recording",
                list->name, (long long)list->rows[i].line);
        const list_row *found = find(lists, WAV_SCP, recording);
        made->recording = found ? found->index : -1;
        if (!found)
            sh_corpus_refuse(corpus, made, "its recording %s is not in wav.scp",
                             sh_shown(recording).text);
    }
    return SHOAL_OK;
}

/* ---- Units ------------------------------------------------------------------------- */

/* Copies the next unit of a transcript to text; returns the position after it, or NULL
   at the end. Letters are UTF-8; spaces between words are "_". too_long may be NULL. */
static const char *next_unit(const char *at, int32_t units, char text[64],
                             bool *too_long) {
    const bool characters = units == 1; /* words for subwords */
    const char *begin = at;
    size_t length = 0;
    if (characters && is_space(*at)) {
        while (is_space(*at))
            at++;
        strcpy(text, "_");
        return *at ? at : NULL;
    }
    while (is_space(*at))
        begin = ++at;
    if (!*at)
        return NULL;
    if (characters)
        do
            length++;
        while (((unsigned char)begin[length] & 0xc0) == 0x80);
    else
        while (begin[length] && !is_space(begin[length]))
            length++;
    if (too_long)
        *too_long = length >= 64;
    snprintf(text, 64, "%.*s", (int)length, begin);
    return begin + length;
}

/* Rejects transcripts whose units no model could store or distinguish. */
static void check_transcript(shoal_corpus *corpus, corpus_utterance *one,
                             const list_row *row, int32_t characters) {
    const char *at = row ? row->rest : "";
    char unit[64];
    bool too_long = false;
    if (!sh_utf8_valid(at, strlen(at)))
        sh_corpus_refuse(
            corpus, one,
            "its transcript is not UTF-8; iconv -f latin1 -t utf-8 may convert it");
    if (sh_utf8_has_controls(at, strlen(at)))
        sh_corpus_refuse(corpus, one, "its transcript has control characters: %s",
                         sh_shown(at).text);
    if (characters && strchr(at, '_'))
        sh_corpus_refuse(
            corpus, one,
            "its transcript has \"_\", which stands for the space between words");
    while (!too_long && (at = next_unit(at, characters, unit, &too_long)))
        if (too_long)
            sh_corpus_refuse(corpus, one, "a unit is longer than 63 bytes: %s",
                             sh_shown(unit).text);
    if (!row || !*row->rest)
        sh_corpus_refuse(corpus, one,
                         row ? "its transcript is empty" : "has no transcript");
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool append_unit(shoal_corpus *corpus, const char *text, int64_t *room) {
    if (!grow(corpus->context, &corpus->units, room, corpus->info.units + 1,
              sizeof *corpus->units))
        return false;
    char *copy = sh_copy_text(corpus->context, text);
    if (copy)
        corpus->units[corpus->info.units++] = copy;
    return copy != NULL;
}

/* Sorts the units and removes duplicates. */
static void sort_units(shoal_corpus *corpus) {
    int64_t kept = 0;
    char **units = corpus->units;
    if (units)
        qsort(units, (size_t)corpus->info.units, sizeof *units, compare_texts);
    for (int64_t i = 0; i < corpus->info.units; i++)
        if (kept > 0 && strcmp(units[kept - 1], units[i]) == 0)
            sh_free(units[i]);
        else
            units[kept++] = units[i];
    corpus->info.units = kept;
}

/* The transcript of an utterance that is usable so far. */
static const char *transcript_of(const corpus_lists *lists, const corpus_utterance *one) {
    const list_row *row = one->reason ? NULL : find(lists, LABELS, one->id);
    return row ? row->rest : "";
}

/* Learns subwords from the transcripts. */
static bool learn_units(shoal_corpus *corpus, const corpus_lists *lists, int64_t *room) {
    const int64_t most = corpus->options.pieces ? corpus->options.pieces : 500;
    subwords learned = {.context = corpus->context};
    char text[64];
    bool good = true;
    for (int64_t i = 0; good && i < corpus->utterance_count; i++) {
        const char *at = transcript_of(lists, &corpus->utterances[i]);
        while (good && (at = next_unit(at, 0, text, NULL)))
            good = sh_subwords_add(&learned, text);
    }
    good = good && sh_subwords_learn(&learned, most);
    for (int64_t i = 0; good && i < learned.unit_count; i++)
        good = append_unit(corpus, learned.units[i], room);
    sh_subwords_free(&learned);
    return good;
}

/* The units of the options, or all that occur in the transcripts of the folder. */
static shoal_status make_units(shoal_corpus *corpus, const corpus_lists *lists) {
    int64_t room = 0, since = 0;
    char text[64];
    bool good = true;
    const shoal_corpus_options *options = &corpus->options;
    for (int64_t i = 0; good && options->units && i < options->unit_count; i++)
        good = append_unit(corpus, options->units[i], &room);
    const bool learns = !options->units && options->unit_type == 2;
    if (good && learns)
        good = learn_units(corpus, lists, &room);
    for (int64_t i = 0; good && !options->units && !learns && i < corpus->utterance_count;
         i++) {
        const char *at = transcript_of(lists, &corpus->utterances[i]);
        while (good && (at = next_unit(at, (int32_t)options->unit_type, text, NULL)))
            good = append_unit(corpus, text, &room);
        if (corpus->info.units - since > 100000) { /* mostly duplicates */
            sort_units(corpus);
            since = corpus->info.units;
        }
    }
    sort_units(corpus);
    if (good && options->units && corpus->info.units != options->unit_count)
        return sh_fail(corpus->context, SHOAL_INVALID, "duplicate unit in the options");
    for (int64_t i = 0; good && options->units && i < options->unit_count; i++)
        if (strcmp(corpus->units[i], options->units[i]) != 0)
            return sh_fail(corpus->context, SHOAL_INVALID,
                           "the units of the options are not sorted");
    return good ? SHOAL_OK : no_memory(corpus->context);
}

static shoal_status take_labels(shoal_corpus *corpus, const corpus_lists *lists) {
    int64_t room = 0;
    for (int64_t i = 0; i < corpus->utterance_count; i++) {
        corpus_utterance *one = &corpus->utterances[i];
        const char *at = transcript_of(lists, one);
        char text[64];
        one->first_label = corpus->label_count;
        while ((at = next_unit(at, (int32_t)corpus->options.unit_type, text, NULL))) {
            const char *key = text;
            const bool pieces = corpus->options.unit_type == 2;
            int32_t numbers[SUBWORDS_MOST] = {-1};
            char **found = pieces
                               ? NULL
                               : bsearch(&key, corpus->units, (size_t)corpus->info.units,
                                         sizeof *corpus->units, compare_texts);
            int count = pieces ? sh_subwords_spell(corpus->units, corpus->info.units,
                                                   text, numbers)
                               : found != NULL;
            if (found)
                numbers[0] = (int32_t)(found - corpus->units);
            if (count == 0)
                sh_corpus_refuse(corpus, one,
                                 pieces ? "%s has letters that are not in the model"
                                        : "%s is not a unit of the model",
                                 sh_shown(text).text);
            count = count ? count : 1;
            if (!grow(corpus->context, &corpus->labels, &room,
                      corpus->label_count + count, sizeof *corpus->labels))
                return no_memory(corpus->context);
            for (int k = 0; k < count; k++)
                corpus->labels[corpus->label_count++] = numbers[k] + 1;
        }
        one->label_count = corpus->label_count - one->first_label;
    }
    return SHOAL_OK;
}

/* ---- Removal of bad utterances ---------------------------------------------------- */

static int compare_order(const void *a, const void *b, void *shared) {
    const shoal_corpus *corpus = shared;
    const int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    const int64_t x = corpus->utterances[first].recording;
    const int64_t y = corpus->utterances[second].recording;
    return x != y ? (x < y ? -1 : 1) : first - second;
}

static int compare_speakers(const void *a, const void *b, void *shared) {
    const shoal_corpus *corpus = shared;
    const int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    const int order =
        strcmp(corpus->utterances[first].speaker, corpus->utterances[second].speaker);
    return order ? order : first - second;
}

static uint64_t print_text(uint64_t print, const char *text) {
    for (const char *c = text; *c; c++)
        print = (print ^ (unsigned char)*c) * 0x100000001b3u;
    return print;
}

/* ---- Features as a model uses them: normalised, and stacked into rows ------------- */

int64_t shoal_features_positions(const shoal_features_config *config, int64_t frames) {
    return (frames + config->hop - 1) / config->hop;
}

int64_t shoal_features_width(const shoal_features_config *config) {
    return config->context * config->bands;
}

/* Mean of `count` values and reciprocal of their standard deviation, from their sum and
   the sum of squares. */
static void find_scale(double sum, double squares, double count, float *mean,
                       float *scale) {
    const double exact = sum / count, variance = squares / count - exact * exact;
    *mean = (float)exact;
    *scale = (float)(1 / sqrt(variance > 1e-6 ? variance : 1e-6));
}

void shoal_features_normalise(const shoal_features_config *config, int64_t count,
                              float *frames) {
    const int64_t bands = config->bands;
    if (config->normalise == SHOAL_NORMALISE_NONE)
        return;
    for (int64_t band = 0; band < bands; band++) {
        double sum = 0, squares = 0;
        for (int64_t t = 0; t < count; t++) {
            const double value = (double)frames[t * bands + band];
            sum += value;
            squares += value * value;
        }
        float mean, scale;
        find_scale(sum, squares, (double)count, &mean, &scale);
        for (int64_t t = 0; t < count; t++)
            frames[t * bands + band] = (frames[t * bands + band] - mean) * scale;
    }
}

void shoal_features_stack(const shoal_features_config *config, int64_t count,
                          const float *frames, float *rows) {
    const int64_t bands = config->bands, context = config->context;
    const int64_t left = (context - config->hop) / 2;
    const int64_t positions = shoal_features_positions(config, count);
    for (int64_t i = 0; i < positions; i++)
        for (int64_t k = 0; k < context; k++) {
            const int64_t t = i * config->hop - left + k;
            float *to = rows + (i * context + k) * bands;
            if (t >= 0 && t < count)
                memcpy(to, frames + t * bands, sizeof *to * (size_t)bands);
            else
                memset(to, 0, sizeof *to * (size_t)bands);
        }
}

/* ---- Mean and variance ------------------------------------------------------------- */

static int64_t group_of(const shoal_corpus *corpus, int64_t index) {
    switch (corpus->options.normalise) {
    case SHOAL_NORMALISE_SPEAKER: return corpus->utterances[index].speaker_index;
    case SHOAL_NORMALISE_UTTERANCE: return index;
    default: return 0;
    }
}

static shoal_status find_statistics(shoal_corpus *corpus) {
    const int32_t bands = corpus->info.bands;
    const shoal_normalise kind = corpus->options.normalise;
    const int64_t groups = kind == SHOAL_NORMALISE_SPEAKER     ? corpus->info.speakers
                           : kind == SHOAL_NORMALISE_UTTERANCE ? corpus->info.utterances
                                                               : 1;
    const size_t stride = 2 * (size_t)bands + 1;
    double *sums =
        sh_allocate_zeros(corpus->context, (size_t)groups * stride, sizeof *sums);
    corpus->means =
        sh_allocate_zeros(corpus->context, (size_t)(groups * bands), sizeof(float));
    corpus->scales =
        sh_allocate_zeros(corpus->context, (size_t)(groups * bands), sizeof(float));
    if (!sums || !corpus->means || !corpus->scales) {
        sh_free(sums);
        return no_memory(corpus->context);
    }
    const bool wanted = kind != SHOAL_NORMALISE_NONE;
    for (int64_t i = 0; wanted && i < corpus->info.utterances; i++) {
        const corpus_utterance *one = &corpus->utterances[i];
        const float *row = corpus->features + one->first_frame * bands;
        double *own = sums + (size_t)group_of(corpus, i) * stride;
        for (int64_t t = 0; t < one->frames; t++, row += bands)
            for (int32_t band = 0; band < bands; band++) {
                own[band] += (double)row[band];
                own[bands + band] += (double)row[band] * (double)row[band];
            }
        own[2 * bands] += (double)one->frames;
    }
    for (int64_t g = 0; wanted && g < groups; g++)
        for (int32_t band = 0; band < bands; band++) {
            const double *own = sums + (size_t)g * stride, count = own[2 * bands];
            find_scale(own[band], own[bands + band], count,
                       &corpus->means[g * bands + band],
                       &corpus->scales[g * bands + band]);
        }
    for (int32_t band = 0; !wanted && band < bands; band++)
        corpus->scales[band] = 1;
    sh_free(sums);
    return SHOAL_OK;
}

/* Computes everything that depends on the remaining utterances. */
static shoal_status finish(shoal_corpus *corpus) {
    shoal_corpus_info *info = &corpus->info;
    info->speakers = info->frames = info->labels = info->longest = info->most_labels = 0;
    FREE_ALL(corpus->means, corpus->scales);
    corpus->means = corpus->scales = NULL;
    /* Speakers are numbered in the order of their names. */
    const int64_t count = corpus->info.utterances;
    for (int64_t i = 0; i < count; i++)
        corpus->order[i] = (int32_t)i;
    qsort_r(corpus->order, (size_t)count, sizeof *corpus->order, compare_speakers,
            corpus);
    for (int64_t i = 0; i < count; i++) {
        corpus_utterance *one = &corpus->utterances[corpus->order[i]];
        const corpus_utterance *before = i ? &corpus->utterances[corpus->order[i - 1]]
                                           : NULL;
        corpus->info.speakers += !before || strcmp(before->speaker, one->speaker) != 0;
        one->speaker_index = corpus->info.speakers - 1;
    }
    uint64_t print = 0x9e3779b97f4a7c15u ^ (uint64_t)info->bands ^
                     (info->rate == 16000 ? 0 : (uint64_t)info->rate << 8);
    for (int64_t i = 0; i < info->utterances; i++) {
        const corpus_utterance *one = &corpus->utterances[i];
        info->frames += one->frames;
        info->labels += one->label_count;
        info->longest = one->frames > info->longest ? one->frames : info->longest;
        info->most_labels = one->label_count > info->most_labels ? one->label_count
                                                                 : info->most_labels;
        print = print_text(print, one->id);
        /* Most ids begin with the speaker, as Kaldi requires: then the speaker adds
           nothing to the fingerprint, which stays compatible with earlier versions. */
        const size_t length = strcspn(one->id, "-");
        if (strlen(one->speaker) != length || strncmp(one->speaker, one->id, length) != 0)
            print = print_text((print ^ 0x100) * 0x100000001b3u, one->speaker);
        for (int64_t k = 0; k < one->label_count; k++)
            print = (print ^ (uint64_t)corpus->labels[one->first_label + k]) *
                    0x100000001b3u;
        print = (print ^ (uint64_t)one->frames) * 0x100000001b3u;
    }
    for (int64_t i = 0; i < info->units; i++)
        print = print_text(print, corpus->units[i]);
    info->fingerprint = print;
    return find_statistics(corpus);
}

/* ---- The same folder at another speed --------------------------------------------- */

shoal_status shoal_corpus_keep_common(shoal_corpus *corpus, const shoal_corpus *other) {
    if (!corpus || !other)
        return sh_fail(corpus ? corpus->context : NULL, SHOAL_INVALID,
                       "corpus or other is NULL");
    shoal_corpus_info *info = &corpus->info;
    const int64_t count = other->info.utterances;
    const char **ids = sh_allocate_zeros(corpus->context, (size_t)count + 1, sizeof *ids);
    if (!ids)
        return no_memory(corpus->context);
    for (int64_t i = 0; i < count; i++)
        ids[i] = other->utterances[i].id;
    qsort(ids, (size_t)count, sizeof *ids, compare_texts);
    const double speed = other->options.speed == 0 ? 1 : other->options.speed;
    /* Moves those with a common id to the front. */
    const shoal_corpus_options *options = &corpus->options;
    char reason[64];
    int64_t kept = 0;
    snprintf(reason, sizeof reason, "cannot be used at speed %g", speed);
    for (int64_t i = 0; i < corpus->info.utterances; i++) {
        const corpus_utterance one = corpus->utterances[i];
        if (bsearch(&one.id, ids, (size_t)count, sizeof *ids, compare_texts))
            corpus->utterances[kept++] = one;
        else if (options->bad)
            options->bad(options->user, one.id, reason);
    }
    const bool same = kept == info->utterances;
    sh_free(ids);
    info->bad += info->utterances - kept;
    corpus->utterance_count = info->utterances = kept;
    if (kept == 0)
        return sh_fail(corpus->context, SHOAL_BAD_FILE,
                       "no utterance can be used at speed %g as well", speed);
    return same ? SHOAL_OK : finish(corpus);
}

/* ---- The corpus ------------------------------------------------------------------- */

static shoal_status fill(shoal_corpus *corpus, const char *folder, corpus_lists *lists) {
    TRY(read_lists(corpus, folder, lists));
    TRY(take_recordings(corpus, folder, &lists->files[WAV_SCP]));
    TRY(take_utterances(corpus, lists));
    for (int64_t i = 0; i < corpus->utterance_count; i++)
        check_transcript(corpus, &corpus->utterances[i],
                         find(lists, LABELS, corpus->utterances[i].id),
                         (int32_t)corpus->options.unit_type);
    TRY(make_units(corpus, lists));
    TRY(take_labels(corpus, lists));
    /* Lists the utterances of each recording. */
    corpus->order = sh_allocate_zeros(corpus->context,
                                      (size_t)corpus->utterance_count + 1,
                                      sizeof *corpus->order);
    if (!corpus->order)
        return no_memory(corpus->context);
    for (int64_t i = 0; i < corpus->utterance_count; i++)
        corpus->order[i] = (int32_t)i;
    qsort_r(corpus->order, (size_t)corpus->utterance_count, sizeof *corpus->order,
            compare_order, corpus);
    for (int64_t i = 0; i < corpus->utterance_count; i++) {
        const int64_t r = corpus->utterances[corpus->order[i]].recording;
        if (r < 0)
            continue;
        if (corpus->recordings[r].count++ == 0)
            corpus->recordings[r].first = i;
    }
    if (!corpus->options.labels_only) {
        TRY(sh_corpus_find_rate(corpus));
        TRY(sh_corpus_features(corpus));
    }
    if (atomic_load(&corpus->lost)) /* a reason */
        return no_memory(corpus->context);
    /* Bad utterances are passed to the callback, and the first goes into the
       message. */
    char first[CORPUS_REASON] = "";
    int64_t kept = 0, bad = 0;
    for (int64_t i = 0; i < corpus->utterance_count; i++) {
        corpus_utterance one = corpus->utterances[i];
        if (!one.reason) {
            corpus->utterances[kept++] = one;
            continue;
        }
        if (corpus->options.bad)
            corpus->options.bad(corpus->options.user, one.id, one.reason);
        if (bad++ == 0)
            snprintf(first, sizeof first, "%s: %.300s", sh_shown(one.id).text,
                     one.reason);
        sh_free(one.reason);
    }
    const int64_t all = corpus->utterance_count;
    corpus->utterance_count = corpus->info.utterances = kept;
    corpus->info.bad = bad;
    if (bad > 0 && (!corpus->options.skip_bad || kept == 0))
        return sh_fail(corpus->context, SHOAL_BAD_FILE,
                       "%s: %lld of %lld utterances cannot be used, the first %s", folder,
                       (long long)bad, (long long)all, first);
    if (kept == 0)
        return sh_fail(corpus->context, SHOAL_BAD_FILE, "%s: has no utterances", folder);
    return corpus->options.labels_only ? SHOAL_OK : finish(corpus);
}

shoal_status shoal_corpus_open(shoal_context *context, const char *folder,
                               const shoal_corpus_options *options,
                               shoal_corpus **corpus) {
    corpus_lists lists = {0};
    if (corpus)
        *corpus = NULL;
    if (!context || !context->kernels || !folder || !options || !corpus)
        return sh_fail(context, SHOAL_INVALID,
                       "context, folder, options or corpus is NULL");
    shoal_corpus_options own = shoal_corpus_options_defaults();
    TRY(READ_STRUCT(context, shoal_corpus_options, options, &own));
    own.fbank.size = sizeof own.fbank;
    options = &own;
    if (!options->cache || options->unit_type > SHOAL_UNITS_SUBWORDS ||
        options->normalise < SHOAL_NORMALISE_SPEAKER ||
        options->normalise > SHOAL_NORMALISE_NONE ||
        (options->speed != 0 && !(options->speed >= 0.5 && options->speed <= 2)) ||
        options->unit_count < 0 || (options->unit_count > 0 && !options->units))
        return sh_fail(context, SHOAL_INVALID,
                       "cache or units is NULL, invalid value for unit_type or "
                       "normalise, or speed is not from 0.5 to 2");
    shoal_corpus *made = sh_allocate_zeros(context, 1, sizeof *made);
    if (!made)
        return no_memory(context);
    *made = (shoal_corpus){.context = context,
                           .options = *options,
                           .info.bands = sh_fbank_bands(&options->fbank)};
    const shoal_status status = fill(made, folder, &lists);
    for (int i = 0; i < LISTS; i++)
        FREE_ALL(lists.files[i].rows, lists.sorted[i]);
    if (status == SHOAL_OK)
        *corpus = made;
    else
        shoal_corpus_destroy(made);
    return status;
}

void shoal_corpus_destroy(shoal_corpus *corpus) {
    if (!corpus)
        return;
    for (int i = 0; i < LISTS; i++)
        sh_free(corpus->texts[i]);
    for (int64_t i = 0; i < corpus->recording_count; i++)
        sh_free(corpus->recordings[i].path);
    for (int64_t i = 0; i < corpus->utterance_count; i++)
        sh_free(corpus->utterances[i].reason);
    for (int64_t i = 0; i < corpus->info.units; i++)
        sh_free(corpus->units[i]);
    sh_file_map_close(&corpus->map);
    FREE_ALL(corpus->recordings, corpus->utterances, corpus->order, corpus->units,
             corpus->labels, corpus->means, corpus->scales, corpus);
}

const shoal_corpus_info *shoal_corpus_describe(const shoal_corpus *corpus) {
    return corpus ? &corpus->info : NULL;
}

int shoal_corpus_utterance(const shoal_corpus *corpus, int64_t index,
                           shoal_utterance *utterance) {
    if (!corpus || !utterance || index < 0 || index >= corpus->info.utterances)
        return 0;
    const corpus_utterance *one = &corpus->utterances[index];
    const int32_t bands = corpus->info.bands;
    const int64_t group = group_of(corpus, index);
    *utterance =
        (shoal_utterance){.id = one->id,
                          .speaker = one->speaker,
                          .speaker_index = one->speaker_index,
                          .frames = one->frames,
                          .features = corpus->features + one->first_frame * bands,
                          .mean = corpus->means + group * bands,
                          .scale = corpus->scales + group * bands,
                          .label_count = one->label_count,
                          .labels = corpus->labels + one->first_label};
    return 1;
}

const char *shoal_corpus_unit(const shoal_corpus *corpus, int64_t unit) {
    return corpus && unit >= 1 && unit <= corpus->info.units ? corpus->units[unit - 1]
                                                             : NULL;
}
