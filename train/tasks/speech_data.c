/* Utterances of a data folder as batches. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/tasks/speech.h"

/* Streams of random numbers, apart for each use of the seed. */
enum {
    STREAM_JOIN = 100,
    STREAM_LENGTH,
    STREAM_ORDER,
    STREAM_SPEED,
    STREAM_MASK,
    STREAM_PHASE
};

/* ---- Opening ----------------------------------------------------------------------- */

enum { SHOWN_BAD = 20 };

typedef struct {
    const shoal_task_opening *opening;
    const char *folder;
    int64_t bad;
} reading;

static int show_progress(void *user, int64_t done, int64_t all) {
    const reading *at = user;
    const shoal_train_callbacks *callbacks = at->opening->callbacks;
    const shoal_train_progress progress = {.event = SHOAL_AT_DATA,
                                           .what = at->folder,
                                           .done = done,
                                           .all = all};
    if (callbacks->progress)
        callbacks->progress(callbacks->user, &progress);
    return sh_cancelled(callbacks);
}

static void show_bad(void *user, const char *id, const char *reason) {
    reading *at = user;
    if (at->bad++ < SHOWN_BAD)
        sh_warn(at->opening->callbacks, "%s: %s: %s", at->folder, id, reason);
}

shoal_status sh_speech_cache(shoal_context *context, const char *chosen,
                             char path[SH_PATH]) {
    const char *home = getenv("HOME"), *caches = getenv("XDG_CACHE_HOME");
    if (chosen)
        snprintf(path, SH_PATH, "%s", chosen);
    else if (caches && *caches)
        snprintf(path, SH_PATH, "%s/shoal", caches);
    else
        snprintf(path, SH_PATH, "%s/.cache/shoal", home && *home ? home : "/tmp");
    return sh_make_folder(context, path);
}

int sh_speech_speeds(const char *text, double speed[MOST_SPEEDS], int *plain) {
    int count = 0;
    *plain = -1;
    for (const char *at = text; *at || at == text;) {
        char *rest;
        const double value = strtod(at, &rest);
        if (rest == at || (*rest && *rest != ',') || !(value >= 0.5 && value <= 2) ||
            count == MOST_SPEEDS)
            return 0;
        if (value == 1)
            *plain = count;
        speed[count++] = value;
        at = *rest ? rest + 1 : rest;
    }
    return *plain >= 0 ? count : 0;
}

static shoal_status open_speed(reading *at, const shoal_speech_train_config *config,
                               const char *const *units, int64_t unit_count,
                               speech_set *set, int speed) {
    shoal_context *context = at->opening->context;
    const shoal_train_callbacks *callbacks = at->opening->callbacks;
    char cache[SH_PATH], message[sizeof context->message];
    shoal_status status = sh_speech_cache(context, config->cache, cache);
    if (status != SHOAL_OK)
        return status;
    const shoal_corpus_options options = {.labels = config->labels,
                                          .characters = config->units,
                                          .skip_bad = config->skip_bad,
                                          .normalise = config->normalise,
                                          .speed = set->speed[speed],
                                          .fbank = {.bands = (int32_t)config->bands,
                                                    .rate = (int32_t)config->rate},
                                          .cache = cache,
                                          .units = units,
                                          .unit_count = unit_count,
                                          .progress = show_progress,
                                          .bad = speed == 0 || !config->skip_bad
                                                     ? show_bad
                                                     : NULL,
                                          .user = at};
    status = shoal_corpus_open(context, at->folder, &options, &set->corpora[speed]);
    if (callbacks->progress)
        callbacks->progress(callbacks->user,
                            &(shoal_train_progress){.event = SHOAL_AT_END});
    if (status == SHOAL_OK || status == SHOAL_NO_MEMORY)
        return status;
    if (sh_cancelled(callbacks))
        return sh_fail(context, SHOAL_CANCELLED, "%s: cancelled", at->folder);
    if (status == SHOAL_IO && strncmp(context->message, cache, strlen(cache)) == 0)
        return status; /* the cache cannot be written */
    memcpy(message, context->message, sizeof message);
    return sh_fail(context, SHOAL_BAD_FILE, "%s%s", message,
                   at->bad ? "; --skip-bad leaves them out" : "");
}

/* Only what can be used at every speed stays. */
static shoal_status keep_common(speech_set *set) {
    shoal_status status = SHOAL_OK;
    for (int i = 1; i < set->speeds && status == SHOAL_OK; i++)
        status = shoal_corpus_keep_common(set->corpora[0], set->corpora[i]);
    for (int i = 1; i < set->speeds && status == SHOAL_OK; i++)
        status = shoal_corpus_keep_common(set->corpora[i], set->corpora[0]);
    return status == SHOAL_OK || status == SHOAL_NO_MEMORY ? status : SHOAL_BAD_FILE;
}

/* What is not as somebody might think. */
static void tell_about(const reading *at, const speech_set *set) {
    const shoal_corpus_info *info = &set->info;
    char named[48] = "";
    if (at->bad > SHOWN_BAD)
        snprintf(named, sizeof named, "; the first %d are named above", SHOWN_BAD);
    if (info->bad > 0)
        sh_note(at->opening, "%s: %" PRId64 " of %" PRId64 " utterances are left out%s",
                at->folder, info->bad, info->bad + info->utterances, named);
    if (set->config->join > 0 && info->utterances > 1 &&
        info->speakers == info->utterances)
        sh_note(at->opening,
                "%s: nothing is joined: only utterances of one speaker are, and none has "
                "two; the file utt2spk says whose they are",
                at->folder);
}

shoal_status sh_speech_open(const shoal_task_opening *opening, const char *folder,
                            const shoal_speech_train_config *config, bool all_speeds,
                            const char *const *units, int64_t unit_count,
                            speech_set *set) {
    reading at = {opening, folder, 0};
    *set = (speech_set){.config = config,
                        .features = {.bands = config->bands,
                                     .rate = config->rate,
                                     .normalise = config->normalise,
                                     .hop = config->hop,
                                     .context = config->context,
                                     .every = config->every},
                        .epoch = -1};
    set->speeds =
        sh_speech_speeds(all_speeds ? config->speeds : "1", set->speed, &set->plain);
    shoal_status status = SHOAL_OK;
    for (int i = 0; i < set->speeds && status == SHOAL_OK; i++)
        status = open_speed(&at, config, units, unit_count, set, i);
    if (status == SHOAL_OK)
        status = keep_common(set);
    if (status != SHOAL_OK)
        return status;
    set->info = shoal_corpus_describe(set->corpora[set->plain]);
    tell_about(&at, set);
    const size_t count = (size_t)set->info.utterances;
    set->members = calloc(count, sizeof *set->members);
    set->items = calloc(count, sizeof *set->items);
    set->batches = calloc(count + 1, sizeof *set->batches);
    set->order = calloc(count, sizeof *set->order);
    set->keys = calloc(count, sizeof *set->keys);
    return set->members && set->items && set->batches && set->order && set->keys
               ? SHOAL_OK
               : sh_fail(opening->context, SHOAL_NO_MEMORY, "out of memory");
}

shoal_status sh_speech_open_alike(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const speech_set *first, speech_set *set) {
    const int64_t count = first->info.units;
    const char **units = calloc((size_t)count + 1, sizeof *units);
    if (!units)
        return sh_fail(opening->context, SHOAL_NO_MEMORY, "out of memory");
    for (int64_t i = 0; i < count; i++)
        units[i] = shoal_corpus_unit(first->corpora[0], i + 1);
    const shoal_status status =
        sh_speech_open(opening, folder, config, false, units, count, set);
    free(units);
    return status;
}

void sh_speech_close(speech_set *set) {
    for (int i = 0; i < set->speeds; i++)
        shoal_corpus_close(set->corpora[i]);
    free(set->members);
    free(set->items);
    free(set->batches);
    free(set->order);
    free(set->keys);
    free(set->words);
    *set = (speech_set){0};
}

/* ---- Sizes ------------------------------------------------------------------------- */

/* Frames of the longest sequence, at the slowest speed. */
static double longest_frames(const speech_set *set) {
    const double joined = 100 * (double)set->config->join;
    double longest = (double)set->info.longest, slowest = 1;
    for (int i = 0; i < set->speeds; i++)
        slowest = set->speed[i] < slowest ? set->speed[i] : slowest;
    longest = joined > longest ? joined : longest;
    return longest / slowest + 100;
}

int64_t sh_speech_longest(const speech_set *set) {
    return shoal_features_positions(&set->features, (int64_t)ceil(longest_frames(set)));
}

int64_t sh_speech_most_rows(const speech_set *set) {
    double slowest = 1;
    for (int i = 0; i < set->speeds; i++)
        slowest = set->speed[i] < slowest ? set->speed[i] : slowest;
    const double frames = (double)set->config->batch_frames / slowest + 100;
    const int64_t rows = shoal_features_positions(&set->features, (int64_t)ceil(frames)) +
                         2 * set->config->train.batch;
    const int64_t alone = sh_speech_longest(set);
    return rows > alone ? rows : alone;
}

/* ---- The plan of an epoch ---------------------------------------------------------- */

static int compare_members(const void *a, const void *b, void *shared) {
    const speech_set *set = shared;
    const int32_t first = *(const int32_t *)a, second = *(const int32_t *)b;
    if (set->keys[first] != set->keys[second])
        return set->keys[first] < set->keys[second] ? -1 : 1;
    return first - second;
}

/* By speaker, and within one by chance or in the folder's order. */
static void order_members(speech_set *set, bool shuffled) {
    const int64_t count = set->info.utterances;
    const uint64_t seed = set->config->train.seed;
    for (int64_t i = 0; i < count; i++) {
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[set->plain], i, &one);
        const uint64_t number = (uint64_t)(set->epoch * count + i);
        set->members[i] = (int32_t)i;
        set->keys[i] = (uint64_t)one.speaker_index << 32 |
                       (shuffled ? shoal_random(seed, STREAM_JOIN, number) >> 32 : 0);
    }
    if (set->join > 0)
        qsort_r(set->members, (size_t)count, sizeof *set->members, compare_members, set);
}

/* Sequences: utterances of one speaker as long as they stay within `join` seconds. */
static void make_items(speech_set *set) {
    const int64_t most = (int64_t)(100 * set->join);
    int64_t speaker = -1;
    set->item_count = 0;
    for (int64_t i = 0; i < set->info.utterances; i++) {
        speech_item *last = set->item_count ? &set->items[set->item_count - 1] : NULL;
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[set->plain], set->members[i], &one);
        if (last && speaker == one.speaker_index && last->frames + one.frames <= most) {
            last->count++;
            last->frames += one.frames;
        } else {
            set->items[set->item_count++] = (speech_item){i, 1, one.frames};
        }
        speaker = one.speaker_index;
    }
}

static int compare_items(const void *a, const void *b, void *shared) {
    const speech_set *set = shared;
    const speech_item *first = a, *second = b;
    const uint64_t x = set->keys[set->members[first->first]];
    const uint64_t y = set->keys[set->members[second->first]];
    return x != y ? (x < y ? -1 : 1) : first->first < second->first ? -1 : 1;
}

/* Sequences of about the same length come together: sorted by length with a tenth of
   chance. */
static void sort_items(speech_set *set) {
    for (int64_t i = 0; i < set->item_count; i++) {
        const speech_item *item = &set->items[i];
        const uint64_t number = (uint64_t)(set->epoch * set->info.utterances + i);
        const double chance =
            (double)(shoal_random(set->config->train.seed, STREAM_LENGTH, number) >> 11) *
            0x1p-53;
        set->keys[set->members[item->first]] =
            (uint64_t)((double)item->frames * (1 + 0.1 * chance) * 1024);
    }
    qsort_r(set->items, (size_t)set->item_count, sizeof *set->items, compare_items, set);
}

static void cut_batches(speech_set *set) {
    const int64_t most = set->config->batch_frames;
    int64_t frames = 0, count = 0;
    set->batch_count = 0;
    for (int64_t i = 0; i < set->item_count; i++) {
        frames += set->items[i].frames;
        count++;
        if (i == 0 || frames > most || count > set->config->train.batch) {
            set->batches[set->batch_count++] = i;
            frames = set->items[i].frames;
            count = 1;
        }
    }
    set->batches[set->batch_count] = set->item_count;
}

bool sh_speech_plan(speech_set *set, int64_t epoch, bool shuffled) {
    if (set->epoch == epoch)
        return true;
    const bool apart = shuffled && epoch < set->config->join_after;
    set->epoch = epoch;
    set->join = apart ? 0 : (double)set->config->join;
    order_members(set, shuffled);
    make_items(set);
    if (shuffled)
        sort_items(set);
    cut_batches(set);
    for (int64_t i = 0; i < set->batch_count; i++) {
        const uint64_t number = (uint64_t)(epoch * set->info.utterances + i);
        set->order[i] = (int32_t)i;
        set->keys[i] = shuffled
                           ? shoal_random(set->config->train.seed, STREAM_ORDER, number)
                           : (uint64_t)i;
    }
    qsort_r(set->order, (size_t)set->batch_count, sizeof *set->order, compare_members,
            set);
    return set->batch_count > 0;
}

/* ---- A batch ----------------------------------------------------------------------- */

bool sh_grow(void *array, size_t *room, size_t count, size_t size) {
    void **at = array;
    if (count <= *room)
        return true;
    void *more = realloc(*at, count * size);
    if (!more)
        return false;
    *at = more;
    *room = count;
    return true;
}

void sh_speech_batch_free(speech_batch *batch) {
    free(batch->offsets);
    free(batch->label_offsets);
    free(batch->first);
    free(batch->members);
    free(batch->phase);
    free(batch->part_offsets);
    free(batch->part_rows);
    free(batch->part_labels);
    free(batch->labels);
    free(batch->features);
    free(batch->frames);
    *batch = (speech_batch){0};
}

static int draw_speed(const speech_set *set, int32_t utterance, bool training) {
    const uint64_t number =
        (uint64_t)(set->epoch * set->info.utterances + (int64_t)utterance);
    return training && set->speeds > 1
               ? (int)shoal_random_below(set->config->train.seed, STREAM_SPEED, number,
                                         (uint64_t)set->speeds)
               : set->plain;
}

/* Normalised frames of one utterance, appended to those of the sequence. */
static bool append_frames(speech_batch *batch, const shoal_utterance *one, int64_t bands,
                          int64_t at) {
    if (!sh_grow(&batch->frames, &batch->frame_room, (size_t)((at + one->frames) * bands),
                 sizeof *batch->frames))
        return false;
    float *out = batch->frames + at * bands;
    for (int64_t t = 0; t < one->frames; t++)
        for (int64_t band = 0; band < bands; band++)
            out[t * bands + band] = (one->features[t * bands + band] - one->mean[band]) *
                                    one->scale[band];
    return true;
}

static bool append_labels(const speech_set *set, speech_batch *batch,
                          const shoal_utterance *one, int64_t b) {
    const size_t at = (size_t)batch->label_offsets[b + 1];
    const size_t count = (size_t)one->label_count;
    if (at + count > batch->label_room &&
        !sh_grow(&batch->labels, &batch->label_room, 2 * (at + count),
                 sizeof *batch->labels))
        return false;
    for (size_t i = 0; i < count; i++)
        batch->labels[at + i] = set->words ? set->words[one->labels[i]] : one->labels[i];
    batch->label_offsets[b + 1] += one->label_count;
    return true;
}

static bool room_for_parts(speech_batch *batch, size_t wanted) {
    size_t room = batch->part_room;
    return wanted <= room ||
           (sh_grow(&batch->part_rows, &room, 2 * wanted, sizeof(int64_t)) &&
            sh_grow(&batch->part_labels, &batch->part_room, 2 * wanted, sizeof(int64_t)));
}

/* An utterance that begins `frames` after its sequence, whose first row is `row`. */
static bool append_part(const speech_set *set, speech_batch *batch, int64_t row,
                        int64_t frames, int64_t label) {
    if (!room_for_parts(batch, (size_t)batch->parts + 2))
        return false;
    batch->part_rows[batch->parts] = row +
                                     shoal_features_positions(&set->features, frames);
    batch->part_labels[batch->parts++] = label;
    return true;
}

/* Positions between outputs begin anywhere in training, another way every epoch. */
static int64_t draw_phase(const speech_set *set, int64_t item, bool training) {
    const uint64_t number = (uint64_t)(set->epoch * set->info.utterances + item);
    const int64_t every = set->config->every;
    return training && every > 1
               ? (int64_t)shoal_random_below(set->config->train.seed, STREAM_PHASE,
                                             number, (uint64_t)every)
               : 0;
}

/* Bands and stretches of time become 0, which is the mean (Park et al. 2019). */
static void mask(const speech_set *set, int64_t item, int64_t frames, float *values) {
    const shoal_speech_train_config *speech = set->config;
    const int64_t bands = speech->bands, masks = speech->band_masks + speech->time_masks;
    for (int64_t m = 0; m < masks; m++) {
        const bool of_bands = m < speech->band_masks;
        const int64_t all = of_bands ? bands : frames;
        const int64_t widest = of_bands ? speech->band_mask : speech->time_mask;
        const uint64_t key =
            shoal_random(set->config->train.seed, STREAM_MASK,
                         (uint64_t)((set->epoch * set->info.utterances + item) * 2048 +
                                    m));
        int64_t width = (int64_t)shoal_random_below(key, 0, 0, (uint64_t)widest + 1);
        width = width < all / 2 ? width : all / 2;
        const int64_t begin =
            (int64_t)shoal_random_below(key, 0, 1, (uint64_t)(all - width + 1));
        for (int64_t t = of_bands ? 0 : begin; t < (of_bands ? frames : begin + width);
             t++)
            for (int64_t band = of_bands ? begin : 0;
                 band < (of_bands ? begin + width : bands); band++)
                values[t * bands + band] = 0;
    }
}

/* Sequence b of the batch. */
static bool add_item(const speech_set *set, const speech_item *item, int64_t index,
                     bool training, int64_t b, speech_batch *batch) {
    const shoal_speech_train_config *config = set->config;
    int64_t frames = 0;
    batch->label_offsets[b + 1] = batch->label_offsets[b];
    batch->first[b] = item->first;
    batch->members[b] = item->count;
    batch->phase[b] = draw_phase(set, index, training);
    batch->part_offsets[b] = batch->parts;
    for (int64_t i = 0; i < item->count; i++) {
        const int32_t member = set->members[item->first + i];
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[draw_speed(set, member, training)], member,
                               &one);
        if (!append_part(set, batch, batch->offsets[b], frames,
                         batch->label_offsets[b + 1]) ||
            !append_frames(batch, &one, config->bands, frames) ||
            !append_labels(set, batch, &one, b))
            return false;
        frames += one.frames;
    }
    if (training && set->epoch >= config->mask_after)
        mask(set, index, frames, batch->frames);
    const int64_t positions = shoal_features_positions(&set->features, frames);
    const int64_t first = batch->offsets[b], width = shoal_features_width(&set->features);
    batch->offsets[b + 1] = first + positions;
    const size_t floats = (size_t)((first + positions) * width);
    if (floats > batch->feature_room &&
        !sh_grow(&batch->features, &batch->feature_room, floats + floats / 2,
                 sizeof *batch->features))
        return false;
    shoal_features_stack(&set->features, frames, batch->frames,
                         batch->features + first * width);
    return true;
}

static bool room_for_sequences(speech_batch *batch, size_t count) {
    size_t room = batch->sequence_room;
    int64_t **const arrays[] = {&batch->offsets, &batch->label_offsets,
                                &batch->first,   &batch->members,
                                &batch->phase,   &batch->part_offsets};
    for (int i = 0; i < 6; i++) {
        room = batch->sequence_room;
        if (!sh_grow(arrays[i], &room, count + 1, sizeof(int64_t)))
            return false;
    }
    batch->sequence_room = room;
    return true;
}

/* Rows of a sequence, at the speeds that are drawn for it. */
static int64_t item_rows(const speech_set *set, const speech_item *item, bool training) {
    int64_t frames = 0;
    for (int64_t i = 0; i < item->count; i++) {
        const int32_t member = set->members[item->first + i];
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[draw_speed(set, member, training)], member,
                               &one);
        frames += one.frames;
    }
    return shoal_features_positions(&set->features, frames);
}

/* A sequence is that process's in whose share of the rows its middle lies. *first, on
   entry the batch's first sequence, and *count become the process's. */
static void find_share(const speech_set *set, bool training, shoal_share share,
                       int64_t *first, int64_t *count, speech_batch *batch) {
    const int64_t begin = *first, end = begin + *count;
    int64_t all = 0, before = 0;
    for (int64_t i = begin; i < end; i++)
        all += item_rows(set, &set->items[i], training);
    *count = 0;
    for (int64_t i = begin; i < end; i++) {
        const int64_t rows = item_rows(set, &set->items[i], training);
        const int64_t owner = (2 * before + rows) * share.count / (2 * all + 1);
        if (owner < share.index) {
            batch->first_sequence++;
            batch->first_row += rows;
        }
        *count += owner == share.index;
        before += rows;
    }
    *first = begin + batch->first_sequence;
}

static bool fill(const speech_set *set, int64_t number, bool training, shoal_share share,
                 speech_batch *batch) {
    const int64_t which = set->order[number];
    int64_t first = set->batches[which], count = set->batches[which + 1] - first;
    batch->first_row = batch->first_sequence = 0;
    if (share.count > 1)
        find_share(set, training, share, &first, &count, batch);
    if (!room_for_sequences(batch, (size_t)count) || !room_for_parts(batch, 1))
        return false;
    batch->count = count;
    batch->longest = batch->most_labels = batch->parts = 0;
    batch->offsets[0] = batch->label_offsets[0] = 0;
    for (int64_t b = 0; b < count; b++) {
        if (!add_item(set, &set->items[first + b], first + b, training, b, batch))
            return false;
        const int64_t rows = batch->offsets[b + 1] - batch->offsets[b];
        const int64_t labels = batch->label_offsets[b + 1] - batch->label_offsets[b];
        batch->longest = rows > batch->longest ? rows : batch->longest;
        batch->most_labels = labels > batch->most_labels ? labels : batch->most_labels;
    }
    batch->part_offsets[count] = batch->parts;
    batch->part_rows[batch->parts] = batch->offsets[count];
    batch->part_labels[batch->parts] = batch->label_offsets[count];
    return true;
}

shoal_status sh_speech_fill(const speech_set *set, shoal_context *context, int64_t number,
                            bool training, shoal_share share, speech_batch *batch) {
    return fill(set, number, training, share, batch)
               ? SHOAL_OK
               : sh_fail(context, SHOAL_NO_MEMORY, "out of memory for a batch");
}

shoal_model_inputs sh_speech_inputs(const speech_batch *batch) {
    return (shoal_model_inputs){.batch = batch->count,
                                .offsets = batch->offsets,
                                .features = batch->features,
                                .first_row = batch->first_row,
                                .first_sequence = batch->first_sequence};
}

void sh_speech_thin(const speech_set *set, speech_batch *batch, int64_t classes,
                    float *out) {
    const int64_t every = set->config->every;
    int64_t kept = 0;
    for (int64_t b = 0, first = 0; b < batch->count && every > 1; b++) {
        const int64_t end = batch->offsets[b + 1];
        int64_t row = first + batch->phase[b];
        for (int64_t p = batch->part_offsets[b]; p < batch->part_offsets[b + 1]; p++) {
            const int64_t stop =
                p + 1 < batch->part_offsets[b + 1] ? batch->part_rows[p + 1] : end;
            batch->part_rows[p] = kept;
            for (; row < stop; row += every, kept++)
                memmove(out + kept * classes, out + row * classes,
                        sizeof *out * (size_t)classes);
        }
        first = end;
        batch->offsets[b + 1] = batch->part_rows[batch->part_offsets[b + 1]] = kept;
        batch->phase[b] = 0;
    }
}
