/* Recognisers by lattice-free MMI: the lexicon, the words of a data folder, the graphs,
   and the loss and phones of a batch. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "train/tasks/speech.h"

/* ---- Lexicon and words ------------------------------------------------------------- */

enum { MOST_FILES = 16 };

shoal_status sh_lexicon_open(shoal_context *context, const char *files,
                             const char *const *phones, int64_t phone_count,
                             shoal_lexicon **lexicon) {
    const char *paths[MOST_FILES];
    int count = 0;
    char *copy = strdup(files), *rest = NULL;
    if (!copy)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (count < MOST_FILES)
            paths[count] = one;
        count++;
    }
    const shoal_lexicon_options options = {.phones = phones, .phone_count = phone_count};
    shoal_status status =
        count == 0 || count > MOST_FILES
            ? sh_fail(context, SHOAL_BAD_FILE, "--lexicon has %s",
                      count ? "more than 16 files" : "no file")
            : shoal_lexicon_open(context, paths, count, &options, lexicon);
    free(copy);
    return status == SHOAL_OK || status == SHOAL_NO_MEMORY ? status : SHOAL_BAD_FILE;
}

/* Names words in lines; the caller has said what is wrong with them. */
static void name_words(const shoal_train_callbacks *callbacks, const speech_set *set) {
    char line[168] = " ";
    const char *word;
    for (int64_t i = 1; (word = shoal_corpus_unit(set->corpora[0], i)); i++) {
        if (set->words[i] >= 0)
            continue;
        if (line[1] && strlen(line) + 1 + strlen(word) > 80) {
            sh_warn(callbacks, "%s", line);
            line[1] = 0;
        }
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, " %.78s", word);
    }
    sh_warn(callbacks, "%s", line);
}

/* Which word of the lexicon each unit is; returns how many are none, -1: no memory. */
static int64_t map_units(speech_set *set, const shoal_lexicon *lexicon) {
    const char *word;
    int64_t missing = 0;
    set->words = calloc((size_t)set->info.units + 1, sizeof *set->words);
    if (!set->words)
        return -1;
    for (int64_t i = 1; (word = shoal_corpus_unit(set->corpora[0], i)); i++) {
        set->words[i] = (int32_t)shoal_lexicon_find(lexicon, word);
        missing += set->words[i] < 0;
    }
    return missing;
}

/* Opens the folder again without the utterances that have such words. */
static shoal_status open_known(const shoal_task_opening *opening, const char *folder,
                               const shoal_speech_train_config *config, bool all_speeds,
                               const shoal_lexicon *lexicon, speech_set *set) {
    speech_set all = *set;
    const char **known = calloc((size_t)all.info.units + 1, sizeof *known);
    int64_t count = 0;
    for (int64_t i = 1; known && i <= all.info.units; i++)
        if (all.words[i] >= 0)
            known[count++] = shoal_corpus_unit(all.corpora[0], i);
    *set = (speech_set){0};
    shoal_status status =
        known ? sh_speech_open(opening, folder, config, all_speeds, known, count, set)
              : sh_fail(opening->context, SHOAL_NO_MEMORY, "out of memory");
    free(known);
    sh_speech_close(&all);
    if (status == SHOAL_OK && map_units(set, lexicon) != 0)
        status = sh_fail(opening->context, SHOAL_NO_MEMORY, "out of memory");
    return status;
}

shoal_status sh_lfmmi_open_set(const shoal_task_opening *opening, const char *folder,
                               const shoal_speech_train_config *config, bool all_speeds,
                               const shoal_lexicon *lexicon, speech_set *set) {
    const shoal_status status =
        sh_speech_open(opening, folder, config, all_speeds, NULL, 0, set);
    if (status != SHOAL_OK)
        return status;
    const int64_t missing = map_units(set, lexicon);
    if (missing == 0)
        return SHOAL_OK;
    if (missing < 0)
        return sh_fail(opening->context, SHOAL_NO_MEMORY, "out of memory");
    sh_warn(opening->callbacks,
            "%s: %" PRId64 " words have no pronunciation in the lexicon; add them to "
            "it%s:",
            folder, missing,
            config->skip_bad ? "" : ", or leave their utterances out by --skip-bad");
    name_words(opening->callbacks, set);
    return config->skip_bad
               ? open_known(opening, folder, config, all_speeds, lexicon, set)
               : sh_fail(opening->context, SHOAL_BAD_FILE,
                         "%s: %" PRId64 " words have no pronunciation in the lexicon",
                         folder, missing);
}

uint64_t sh_lfmmi_fingerprint(const speech_set *set, const shoal_lexicon *lexicon) {
    uint64_t sum = 14695981039346656037u;
    const int32_t *phones;
    for (int64_t i = 1; i <= set->info.units; i++)
        for (int64_t k = 0, length;
             (length = shoal_lexicon_pronunciation(lexicon, set->words[i], k, &phones)) >
             0;
             k++)
            for (int64_t p = 0; p <= length; p++)
                sum = (sum ^ (p < length ? (uint64_t)phones[p] + 1 : 0)) * 1099511628211u;
    return sum;
}

/* ---- Graphs ------------------------------------------------------------------------ */

shoal_status sh_lfmmi_create(shoal_context *context,
                             const shoal_speech_train_config *config,
                             const shoal_lexicon *lexicon, const speech_set *set,
                             shoal_lfmmi **loss) {
    const int64_t count = set->info.utterances;
    char cache[SH_PATH];
    shoal_status status = sh_speech_cache(context, config->cache, cache);
    const shoal_lfmmi_options options =
        {.topology = SHOAL_TOPOLOGY_CHAIN + config->topology,
         .order = (int32_t)config->order,
         .extra = config->extra ? config->extra : -1,
         .whole = config->whole,
         .leak = config->leak,
         .l2 = config->output_l2 > 0 ? config->output_l2 : -1,
         .range = config->output_range > 0 ? config->output_range : -1,
         .cache = cache};
    int64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
    int32_t *words = calloc((size_t)set->info.labels + 1, sizeof *words);
    if (status == SHOAL_OK && (!offsets || !words))
        status = sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    for (int64_t u = 0; u < count && status == SHOAL_OK; u++) {
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[set->plain], u, &one);
        for (int64_t i = 0; i < one.label_count; i++)
            words[offsets[u] + i] = set->words[one.labels[i]];
        offsets[u + 1] = offsets[u] + one.label_count;
    }
    if (status == SHOAL_OK)
        status =
            shoal_lfmmi_create(context, &options, lexicon, count, offsets, words, loss);
    free(offsets);
    free(words);
    return status;
}

/* ---- A batch ----------------------------------------------------------------------- */

/* As sh_grow, with a quarter more. */
static bool room_for(void *array, size_t *room, size_t count, size_t size) {
    return count <= *room || sh_grow(array, room, count + count / 4, size);
}

void sh_lfmmi_scorer_free(speech_scorer *scorer) {
    speech_steps *s = &scorer->steps;
    free(s->offsets), free(s->sequences), free(s->counts), free(s->rows);
    free(s->outputs), free(s->phones), free(s->begins), free(s->wanted);
    *s = (speech_steps){0};
}

/* Which rows have an output, utterance by utterance. */
static bool choose_rows(const speech_batch *batch, int64_t every, speech_steps *s) {
    const size_t parts = (size_t)batch->parts + 1,
                 rows = (size_t)batch->offsets[batch->count];
    if (!room_for(&s->offsets, &s->offset_room, parts, sizeof *s->offsets) ||
        !room_for(&s->sequences, &s->sequence_room, parts, sizeof *s->sequences) ||
        !room_for(&s->counts, &s->count_room, parts, sizeof *s->counts) ||
        !room_for(&s->rows, &s->row_room, rows + 1, sizeof *s->rows))
        return false;
    int64_t count = 0;
    for (int64_t b = 0; b < batch->count; b++) {
        int64_t row = batch->offsets[b] + batch->phase[b];
        s->sequences[b] = count;
        for (int64_t p = batch->part_offsets[b]; p < batch->part_offsets[b + 1]; p++) {
            s->offsets[p] = count;
            for (; row < batch->part_rows[p + 1]; row += every)
                s->rows[count++] = row;
        }
    }
    s->offsets[batch->parts] = s->sequences[batch->count] = count;
    return true;
}

/* steps [count][classes] from, or back to, rows of all positions. */
static bool gather(speech_steps *s, int64_t count, int64_t classes, const float *out) {
    const size_t row = (size_t)classes * sizeof *out;
    if (!room_for(&s->outputs, &s->output_room, ((size_t)count + 1) * (size_t)classes,
                  sizeof *s->outputs))
        return false;
    for (int64_t i = 0; i < count; i++)
        memcpy(s->outputs + i * classes, out + s->rows[i] * classes, row);
    return true;
}

static void scatter(const speech_steps *s, int64_t count, int64_t classes, int64_t rows,
                    float *gradient) {
    const size_t row = (size_t)classes * sizeof *gradient;
    memset(gradient, 0, (size_t)rows * row);
    for (int64_t i = 0; i < count; i++)
        memcpy(gradient + s->rows[i] * classes, s->outputs + i * classes, row);
}

/* The phones that sequence b has, by the first pronunciation of its words. */
static bool want_phones(speech_scorer *scorer, const speech_batch *batch, int64_t b,
                        int64_t *count) {
    speech_steps *s = &scorer->steps;
    *count = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1 &&
            !room_for(&s->wanted, &s->wanted_room, (size_t)*count + 1, sizeof *s->wanted))
            return false;
        *count = 0;
        for (int64_t i = batch->label_offsets[b]; i < batch->label_offsets[b + 1]; i++) {
            const int32_t phone = batch->labels[i] - 1, *phones = &phone;
            const int64_t length = scorer->lexicon
                                       ? shoal_lexicon_pronunciation(scorer->lexicon,
                                                                     batch->labels[i], 0,
                                                                     &phones)
                                       : 1;
            for (int64_t k = 0; k < length && pass == 1; k++)
                s->wanted[*count + k] = phones[k];
            *count += length;
        }
    }
    return true;
}

/* Whole sequences: a recording does not say where its utterances begin. */
static shoal_status decode(speech_scorer *scorer, const speech_batch *batch,
                           speech_result *result, shoal_edits *each) {
    speech_steps *s = &scorer->steps;
    const size_t steps = (size_t)s->sequences[batch->count] + 1;
    if (!room_for(&s->phones, &s->phone_room, steps, sizeof *s->phones) ||
        !room_for(&s->begins, &s->begin_room, steps, sizeof *s->begins))
        return sh_fail(scorer->context, SHOAL_NO_MEMORY, "out of memory");
    shoal_status status = shoal_lfmmi_decode(scorer->lfmmi, batch->count, s->sequences,
                                             s->outputs, s->phones, s->begins, s->counts);
    for (int64_t b = 0; b < batch->count && status == SHOAL_OK; b++) {
        shoal_edits edits = {0};
        int64_t wanted;
        if (!want_phones(scorer, batch, b, &wanted))
            return sh_fail(scorer->context, SHOAL_NO_MEMORY, "out of memory");
        status = shoal_count_edits(scorer->context, s->wanted, wanted,
                                   s->phones + s->sequences[b], s->counts[b], &edits);
        sh_add_edits(&edits, &result->edits);
        if (each)
            each[b] = edits;
    }
    return status;
}

shoal_status sh_lfmmi_score(speech_scorer *scorer, const speech_batch *batch,
                            int64_t classes, const float *out, float *gradient,
                            speech_result *result, shoal_edits *each) {
    speech_steps *s = &scorer->steps;
    shoal_lfmmi_result loss = {0};
    if (!choose_rows(batch, scorer->every, s) ||
        !gather(s, s->sequences[batch->count], classes, out))
        return sh_fail(scorer->context, SHOAL_NO_MEMORY, "out of memory");
    const int64_t steps = s->sequences[batch->count];
    shoal_status status = gradient ? SHOAL_OK : decode(scorer, batch, result, each);
    const shoal_lfmmi_batch utterances = {batch->parts, s->offsets, batch->part_labels,
                                          batch->labels};
    if (status == SHOAL_OK && scorer->lexicon)
        status = shoal_lfmmi_loss(scorer->lfmmi, &utterances, s->outputs,
                                  steps ? 1 / (double)steps : 0,
                                  gradient ? s->outputs : NULL, NULL, &loss);
    if (status != SHOAL_OK)
        return status;
    if (gradient)
        scatter(s, steps, classes, batch->offsets[batch->count], gradient);
    result->divisor = (double)steps;
    result->loss += loss.sum;
    result->labels += loss.steps;
    result->impossible += loss.impossible;
    result->broken += loss.broken;
    return SHOAL_OK;
}
