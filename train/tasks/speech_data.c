/* Utterances of a data folder as batches. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/tasks/speech.h"

/* Separate streams of random numbers for each use of the seed. */
enum {
    STREAM_JOIN = 100,
    STREAM_LENGTH,
    STREAM_ORDER,
    STREAM_SPEED,
    STREAM_MASK,
    STREAM_PHASE
};

/* ---- Opening ----------------------------------------------------------------------- */

enum { SHOWN_BAD = 20 }; /* maximum number of utterances that are named */

typedef struct {
    const shoal_task_opening *opening;
    const char *folder;
    int64_t bad;
    bool quiet; /* count them without naming them */
} reading;

static int show_progress(void *user, int64_t done, int64_t all) {
    const reading *at = user;
    const shoal_train_callbacks *callbacks = at->opening->callbacks;
    const shoal_train_progress progress = {.event = SHOAL_TRAIN_EVENT_DATA,
                                           .what = at->folder,
                                           .done = done,
                                           .all = all};
    if (callbacks->progress)
        callbacks->progress(callbacks->user, &progress);
    return sh_cancelled(callbacks);
}

static void show_bad(void *user, const char *id, const char *reason) {
    reading *at = user;
    if (at->bad++ < SHOWN_BAD && !at->quiet)
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
    TRY(sh_speech_cache(context, config->cache, cache));
    const shoal_corpus_options options = {.size = sizeof(shoal_corpus_options),
                                          .labels = config->labels,
                                          .unit_type = config->units,
                                          .pieces = config->pieces,
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
    const shoal_status status =
        shoal_corpus_open(context, at->folder, &options, &set->corpora[speed]);
    if (callbacks->progress)
        callbacks->progress(callbacks->user,
                            &(shoal_train_progress){.event = SHOAL_TRAIN_EVENT_END});
    if (status == SHOAL_OK || status == SHOAL_NO_MEMORY)
        return status;
    if (sh_cancelled(callbacks)) {
        sh_note(at->opening,
                "%s: interrupted; the features so far are kept in %s, and the next start "
                "continues from them",
                at->folder, cache);
        return sh_fail(context, SHOAL_CANCELLED, "%s: cancelled", at->folder);
    }
    if (status == SHOAL_IO && strncmp(context->message, cache, strlen(cache)) == 0)
        return status; /* the cache cannot be written */
    memcpy(message, context->message, sizeof message);
    return sh_fail(context, SHOAL_BAD_FILE, "%s%s", message,
                   at->bad ? "; --skip-bad skips them" : "");
}

/* Notes about unexpected properties of the data. */
static void tell_about(const reading *at, const speech_set *set) {
    const shoal_corpus_info *info = &set->info;
    char named[48] = "";
    if (at->bad > SHOWN_BAD)
        snprintf(named, sizeof named, "; the first %d are named above", SHOWN_BAD);
    if (info->bad > 0)
        sh_note(at->opening, "%s: %" PRId64 " of %" PRId64 " utterances are skipped%s",
                at->folder, info->bad, info->bad + info->utterances, named);
    if (set->config->join > 0 && info->utterances > 1 &&
        info->speakers == info->utterances)
        sh_note(at->opening,
                "%s: nothing is joined, because no speaker has two utterances; the file "
                "utt2spk assigns utterances to speakers",
                at->folder);
}

shoal_status sh_speech_open(const shoal_task_opening *opening, const char *folder,
                            const shoal_speech_train_config *config, bool all_speeds,
                            const char *const *units, int64_t unit_count,
                            speech_set *set) {
    reading at = {.opening = opening, .folder = folder};
    *set = (speech_set){.config = config,
                        .features = {.size = sizeof set->features,
                                     .bands = config->bands,
                                     .rate = config->rate,
                                     .normalise = config->normalise,
                                     .hop = config->hop,
                                     .context = config->context,
                                     .every = config->every},
                        .memory = {.context = opening->context},
                        .epoch = -1};
    set->speeds =
        sh_speech_speeds(all_speeds ? config->speeds : "1", set->speed, &set->plain);
    for (int i = 0; i < set->speeds; i++)
        TRY(open_speed(&at, config, units, unit_count, set, i));
    /* Keeps only utterances that are usable at every speed. */
    for (int pass = 0; pass < 2; pass++)
        for (int i = 1; i < set->speeds; i++) {
            const shoal_status status =
                shoal_corpus_keep_common(set->corpora[pass ? i : 0],
                                         set->corpora[pass ? 0 : i]);
            if (status != SHOAL_OK)
                return status == SHOAL_NO_MEMORY ? status : SHOAL_BAD_FILE;
        }
    set->info = *shoal_corpus_describe(set->corpora[set->plain]);
    tell_about(&at, set);
    const int64_t count = set->info.utterances;
    set->members = sh_pool_take(&set->memory, count, sizeof *set->members);
    set->items = sh_pool_take(&set->memory, count, sizeof *set->items);
    set->batches = sh_pool_take(&set->memory, count + 1, sizeof *set->batches);
    set->order = sh_pool_take(&set->memory, count, sizeof *set->order);
    set->keys = sh_pool_take(&set->memory, count, sizeof *set->keys);
    return set->members && set->items && set->batches && set->order && set->keys
               ? SHOAL_OK
               : SHOAL_NO_MEMORY;
}

shoal_status sh_speech_open_alike(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const speech_set *first, speech_set *set) {
    const int64_t count = first->info.units;
    pool memory = {.context = opening->context};
    const char **units = sh_pool_take(&memory, count + 1, sizeof *units);
    if (!units)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < count; i++)
        units[i] = shoal_corpus_unit(first->corpora[0], i + 1);
    const shoal_status status =
        sh_speech_open(opening, folder, config, false, units, count, set);
    sh_pool_free(&memory);
    return status;
}

shoal_status sh_speech_check_units(const shoal_task_opening *opening, const char *train,
                                   const char *dev,
                                   const shoal_speech_train_config *config) {
    static const char *const names[] = {"words", "characters", "subwords"};
    shoal_context *context = opening->context;
    reading at = {.opening = opening, .folder = dev, .quiet = config->skip_bad != 0};
    pool memory = {.context = context};
    shoal_corpus *first, *second = NULL;
    shoal_corpus_options options = {.size = sizeof(shoal_corpus_options),
                                    .labels = config->labels,
                                    .unit_type = config->units,
                                    .pieces = config->pieces,
                                    .skip_bad = 1,
                                    .cache = "",
                                    .labels_only = 1};
    if (shoal_corpus_open(context, train, &options, &first) != SHOAL_OK)
        return SHOAL_OK; /* opening it reports the error */
    options.unit_count = shoal_corpus_describe(first)->units;
    const char **units = sh_pool_take(&memory, options.unit_count + 1, sizeof *units);
    for (int64_t i = 0; units && i < options.unit_count; i++)
        units[i] = shoal_corpus_unit(first, i + 1);
    options.units = units;
    options.skip_bad = config->skip_bad;
    options.bad = show_bad;
    options.user = &at;
    shoal_status status = units ? shoal_corpus_open(context, dev, &options, &second)
                                : SHOAL_NO_MEMORY;
    if (status != SHOAL_OK && at.bad) {
        char message[sizeof context->message];
        memcpy(message, context->message, sizeof message);
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%.300s; the units are the %s of train/%s: choose others with "
                         "--units and --labels, or skip such utterances with --skip-bad",
                         message, names[config->units], config->labels);
    }
    shoal_corpus_destroy(first);
    shoal_corpus_destroy(second);
    sh_pool_free(&memory);
    return status == SHOAL_INVALID ? SHOAL_BAD_FILE : status;
}

void sh_speech_close(speech_set *set) {
    for (int i = 0; i < set->speeds; i++)
        shoal_corpus_destroy(set->corpora[i]);
    sh_pool_free(&set->memory);
    *set = (speech_set){0};
}

/* ---- Sizes ------------------------------------------------------------------------- */

/* Positions of this many frames at the slowest speed, plus a second. */
static int64_t most_positions(const speech_set *set, double frames) {
    double slowest = 1;
    for (int i = 0; i < set->speeds; i++)
        slowest = set->speed[i] < slowest ? set->speed[i] : slowest;
    return shoal_features_positions(&set->features,
                                    (int64_t)ceil(frames / slowest + 100));
}

int64_t sh_speech_longest(const speech_set *set) {
    return most_positions(set, fmax(100 * (double)set->config->join,
                                    (double)set->info.longest));
}

int64_t sh_speech_most_rows(const speech_set *set) {
    const int64_t rows = most_positions(set, (double)set->config->batch_frames) +
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

/* Index of an item in this epoch, for random draws. */
static uint64_t number_of(const speech_set *set, int64_t index) {
    return (uint64_t)(set->epoch * set->info.utterances + index);
}

/* Forms sequences of utterances of one speaker, shuffled or in the folder's order, of
   at most `join` seconds. */
static void make_items(speech_set *set, bool shuffled) {
    const int64_t most = (int64_t)(100 * set->join), count = set->info.utterances;
    const shoal_corpus *corpus = set->corpora[set->plain];
    int64_t speaker = -1;
    shoal_utterance one;
    for (int64_t i = 0; i < count; i++) {
        shoal_corpus_utterance(corpus, i, &one);
        set->members[i] = (int32_t)i;
        set->keys[i] = (uint64_t)one.speaker_index << 32 |
                       (shuffled ? shoal_random(set->config->train.seed, STREAM_JOIN,
                                                number_of(set, i)) >>
                                       32
                                 : 0);
    }
    if (set->join > 0)
        qsort_r(set->members, (size_t)count, sizeof *set->members, compare_members, set);
    set->item_count = 0;
    for (int64_t i = 0; i < count; i++) {
        speech_item *last = set->item_count ? &set->items[set->item_count - 1] : NULL;
        shoal_corpus_utterance(corpus, set->members[i], &one);
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

bool sh_speech_plan(speech_set *set, int64_t epoch, bool shuffled) {
    if (set->epoch == epoch)
        return true;
    const bool apart = shuffled && epoch < set->config->join_after;
    set->epoch = epoch;
    set->join = apart ? 0 : (double)set->config->join;
    make_items(set, shuffled);
    /* Groups sequences of similar length: sorts by length with 10 % random
       variation. */
    for (int64_t i = 0; shuffled && i < set->item_count; i++) {
        const speech_item *item = &set->items[i];
        const uint64_t bits =
            shoal_random(set->config->train.seed, STREAM_LENGTH, number_of(set, i));
        const double chance = (double)(bits >> 11) * 0x1p-53;
        set->keys[set->members[item->first]] =
            (uint64_t)((double)item->frames * (1 + 0.1 * chance) * 1024);
    }
    if (shuffled)
        qsort_r(set->items, (size_t)set->item_count, sizeof *set->items, compare_items,
                set);
    set->batch_count = 0;
    for (int64_t i = 0, frames = 0, count = 0; i < set->item_count; i++) {
        frames += set->items[i].frames;
        count++;
        if (i == 0 || frames > set->config->batch_frames ||
            count > set->config->train.batch) {
            set->batches[set->batch_count++] = i;
            frames = set->items[i].frames;
            count = 1;
        }
    }
    set->batches[set->batch_count] = set->item_count;
    for (int64_t i = 0; i < set->batch_count; i++) {
        set->order[i] = (int32_t)i;
        set->keys[i] = shuffled ? shoal_random(set->config->train.seed, STREAM_ORDER,
                                               number_of(set, i))
                                : (uint64_t)i;
    }
    qsort_r(set->order, (size_t)set->batch_count, sizeof *set->order, compare_members,
            set);
    return set->batch_count > 0;
}

/* ---- A batch ----------------------------------------------------------------------- */

static shoal_status room_for_parts(speech_batch *batch, int64_t wanted) {
    if (wanted <= batch->part_room)
        return SHOAL_OK;
    TRY(sh_pool_resize(&batch->memory, &batch->part_rows, batch->part_room, 2 * wanted,
                       sizeof *batch->part_rows));
    return sh_pool_grow(&batch->memory, &batch->part_labels, &batch->part_room,
                        2 * wanted, sizeof *batch->part_labels);
}

void sh_speech_batch_free(speech_batch *batch) {
    sh_pool_free(&batch->memory);
    *batch = (speech_batch){0};
}

/* Utterance number `member` at the speed drawn for it. */
static shoal_utterance draw(const speech_set *set, int32_t member, bool training) {
    shoal_utterance one;
    const int speed = training && set->speeds > 1
                          ? (int)shoal_random_below(set->config->train.seed, STREAM_SPEED,
                                                    number_of(set, member),
                                                    (uint64_t)set->speeds)
                          : set->plain;
    shoal_corpus_utterance(set->corpora[speed], member, &one);
    return one;
}

/* Appends one utterance to sequence b: normalised frames from frame `at` of the
   sequence on, labels, and start. */
static shoal_status append(const speech_set *set, const shoal_utterance *one, int64_t b,
                           int64_t at, speech_batch *batch) {
    const int64_t bands = set->config->bands, label = batch->label_offsets[b + 1];
    const int64_t labels = label + one->label_count;
    TRY(room_for_parts(batch, batch->parts + 2));
    TRY(sh_pool_grow(&batch->memory, &batch->frames, &batch->frame_room,
                     (at + one->frames) * bands, sizeof *batch->frames));
    if (labels > batch->label_room)
        TRY(sh_pool_grow(&batch->memory, &batch->labels, &batch->label_room, 2 * labels,
                         sizeof *batch->labels));
    batch->part_rows[batch->parts] = batch->offsets[b] +
                                     shoal_features_positions(&set->features, at);
    batch->part_labels[batch->parts++] = label;
    float *out = batch->frames + at * bands;
    for (int64_t t = 0; t < one->frames; t++)
        for (int64_t band = 0; band < bands; band++)
            out[t * bands + band] = (one->features[t * bands + band] - one->mean[band]) *
                                    one->scale[band];
    for (int64_t i = 0; i < one->label_count; i++)
        batch->labels[label + i] = set->words ? set->words[one->labels[i]]
                                              : one->labels[i];
    batch->label_offsets[b + 1] = labels;
    return SHOAL_OK;
}

/* SpecAugment (Park et al. 2019): sets bands and time intervals to 0, the mean. */
static void mask(const speech_set *set, int64_t item, int64_t frames, float *values) {
    const shoal_speech_train_config *speech = set->config;
    const int64_t bands = speech->bands, masks = speech->band_masks + speech->time_masks;
    for (int64_t m = 0; m < masks; m++) {
        const bool of_bands = m < speech->band_masks;
        const int64_t all = of_bands ? bands : frames;
        const int64_t widest = of_bands ? speech->band_mask : speech->time_mask;
        const uint64_t key = shoal_random(set->config->train.seed, STREAM_MASK,
                                          number_of(set, item) * 2048 + (uint64_t)m);
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

/* Adds sequence b of the batch. */
static shoal_status add_item(const speech_set *set, int64_t index, bool training,
                             int64_t b, speech_batch *batch) {
    const shoal_speech_train_config *config = set->config;
    const speech_item *item = &set->items[index];
    int64_t frames = 0;
    batch->label_offsets[b + 1] = batch->label_offsets[b];
    batch->first[b] = item->first;
    batch->members[b] = item->count;
    /* In training, the phase of positions with an output is drawn anew every epoch. */
    batch->phase[b] = training && config->every > 1
                          ? (int64_t)shoal_random_below(config->train.seed, STREAM_PHASE,
                                                        number_of(set, index),
                                                        (uint64_t)config->every)
                          : 0;
    batch->part_offsets[b] = batch->parts;
    for (int64_t i = 0; i < item->count; i++) {
        const shoal_utterance one = draw(set, set->members[item->first + i], training);
        TRY(append(set, &one, b, frames, batch));
        frames += one.frames;
    }
    if (training && set->epoch >= config->mask_after)
        mask(set, index, frames, batch->frames);
    const int64_t first = batch->offsets[b], width = shoal_features_width(&set->features);
    const int64_t end = first + shoal_features_positions(&set->features, frames);
    batch->offsets[b + 1] = end;
    if (end * width > batch->feature_room)
        TRY(sh_pool_grow(&batch->memory, &batch->features, &batch->feature_room,
                         end * width * 3 / 2, sizeof *batch->features));
    shoal_features_stack(&set->features, frames, batch->frames,
                         batch->features + first * width);
    return SHOAL_OK;
}

/* Rows of a sequence at the speeds drawn for it. */
static int64_t item_rows(const speech_set *set, const speech_item *item, bool training) {
    int64_t frames = 0;
    for (int64_t i = 0; i < item->count; i++)
        frames += draw(set, set->members[item->first + i], training).frames;
    return shoal_features_positions(&set->features, frames);
}

/* A sequence belongs to the process whose share of the rows contains its middle. *first
   is the batch's first sequence on entry; *first and *count are the process's on
   return. */
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

shoal_status sh_speech_fill(const speech_set *set, shoal_context *context, int64_t number,
                            bool training, shoal_share share, speech_batch *batch) {
    int64_t **const arrays[] = {&batch->offsets, &batch->label_offsets,
                                &batch->first,   &batch->members,
                                &batch->phase,   &batch->part_offsets};
    const int64_t which = set->order[number];
    int64_t first = set->batches[which], count = set->batches[which + 1] - first;
    batch->memory.context = context;
    batch->first_row = batch->first_sequence = 0;
    if (share.count > 1)
        find_share(set, training, share, &first, &count, batch);
    if (count >= batch->sequence_room) {
        for (int i = 0; i < 6; i++)
            TRY(sh_pool_resize(&batch->memory, arrays[i], 0, count + 1,
                               sizeof **arrays[i]));
        batch->sequence_room = count + 1;
    }
    TRY(room_for_parts(batch, 1));
    batch->count = count;
    batch->longest = batch->most_labels = batch->parts = 0;
    batch->offsets[0] = batch->label_offsets[0] = 0;
    for (int64_t b = 0; b < count; b++) {
        TRY(add_item(set, first + b, training, b, batch));
        const int64_t rows = batch->offsets[b + 1] - batch->offsets[b];
        const int64_t labels = batch->label_offsets[b + 1] - batch->label_offsets[b];
        batch->longest = rows > batch->longest ? rows : batch->longest;
        batch->most_labels = labels > batch->most_labels ? labels : batch->most_labels;
    }
    batch->part_offsets[count] = batch->parts;
    batch->part_rows[batch->parts] = batch->offsets[count];
    batch->part_labels[batch->parts] = batch->label_offsets[count];
    return SHOAL_OK;
}

shoal_model_inputs sh_speech_inputs(const speech_batch *batch) {
    return (shoal_model_inputs){.size = sizeof(shoal_model_inputs),
                                .batch = batch->count,
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
