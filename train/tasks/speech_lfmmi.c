/* LF-MMI in the task speech: the lexicon, the words of a data folder, the graphs, and
   the loss and phones of a batch. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "train/tasks/speech.h"

/* ---- Lexicon and words ------------------------------------------------------------- */

enum { MOST_FILES = 16 };

shoal_status sh_lexicon_open(shoal_context *context, const char *files,
                             const char *const *phones, int64_t phone_count,
                             shoal_lexicon **lexicon) {
    const char *paths[MOST_FILES];
    int count = 0;
    char *copy = sh_allocate(context, strlen(files) + 1), *rest = NULL;
    if (!copy)
        return SHOAL_NO_MEMORY;
    strcpy(copy, files);
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (count < MOST_FILES)
            paths[count] = one;
        count++;
    }
    const shoal_lexicon_options options = {.size = sizeof(shoal_lexicon_options),
                                           .phones = phones,
                                           .phone_count = phone_count};
    const shoal_status status =
        count == 0 || count > MOST_FILES
            ? sh_fail(context, SHOAL_BAD_FILE, "--lexicon has %s",
                      count ? "more than 16 files" : "no file")
            : shoal_lexicon_open(context, paths, count, &options, lexicon);
    sh_release(context, copy);
    return status == SHOAL_OK || status == SHOAL_NO_MEMORY ? status : SHOAL_BAD_FILE;
}

/* The words of a folder, of which no recording is read. *words is NULL where they cannot
   be read: opening the folder says why. */
static shoal_status open_transcripts(shoal_context *context, const char *folder,
                                     const shoal_speech_train_config *config,
                                     shoal_corpus **words) {
    const shoal_corpus_options options = {.size = sizeof options,
                                          .labels = config->labels,
                                          .skip_bad = 1,
                                          .cache = "",
                                          .labels_only = 1};
    const shoal_status status = shoal_corpus_open(context, folder, &options, words);
    return status == SHOAL_NO_MEMORY ? status : SHOAL_OK;
}

/* Words in lines. */
static void name_missing(const shoal_task_opening *opening, const shoal_corpus *words,
                         const shoal_lexicon *lexicon) {
    char line[168] = " ";
    const char *word;
    for (int64_t i = 1; (word = shoal_corpus_unit(words, i)); i++) {
        if (shoal_lexicon_find(lexicon, word) >= 0)
            continue;
        if (line[1] && strlen(line) + 1 + strlen(word) > 80) {
            sh_warn(opening->callbacks, "%s", line);
            line[1] = 0;
        }
        const size_t used = strlen(line);
        snprintf(line + used, sizeof line - used, " %.78s", word);
    }
    sh_warn(opening->callbacks, "%s", line);
}

shoal_status sh_lfmmi_check_words(const shoal_task_opening *opening, const char *folder,
                                  const shoal_speech_train_config *config,
                                  const shoal_lexicon *lexicon) {
    shoal_corpus *words;
    const char *word;
    int64_t missing = 0;
    TRY(open_transcripts(opening->context, folder, config, &words));
    for (int64_t i = 1; (word = shoal_corpus_unit(words, i)); i++)
        missing += shoal_lexicon_find(lexicon, word) < 0;
    if (missing > 0) {
        sh_warn(opening->callbacks,
                "%s: %" PRId64 " words have no pronunciation in the lexicon; add them to "
                "it%s:",
                folder, missing,
                config->skip_bad ? "" : ", or leave their utterances out by --skip-bad");
        name_missing(opening, words, lexicon);
    }
    shoal_corpus_destroy(words);
    return missing == 0 || config->skip_bad
               ? SHOAL_OK
               : sh_fail(opening->context, SHOAL_BAD_FILE,
                         "%s: %" PRId64 " words have no pronunciation in the lexicon",
                         folder, missing);
}

shoal_status sh_lfmmi_open_set(const shoal_task_opening *opening, const char *folder,
                               const shoal_speech_train_config *config, bool all_speeds,
                               const shoal_lexicon *lexicon, speech_set *set) {
    shoal_corpus *words;
    pool memory = {.context = opening->context};
    *set = (speech_set){0};
    TRY(open_transcripts(opening->context, folder, config, &words));
    /* Units are given only where some are to be left out. */
    const int64_t all = shoal_corpus_describe(words)->units;
    const char **known = sh_pool_take(&memory, all + 1, sizeof *known);
    int64_t count = 0;
    for (int64_t i = 1; known && i <= all; i++) {
        const char *word = shoal_corpus_unit(words, i);
        if (shoal_lexicon_find(lexicon, word) >= 0)
            known[count++] = word;
    }
    const bool some = count < all;
    const shoal_status status = known ? sh_speech_open(opening, folder, config,
                                                       all_speeds, some ? known : NULL,
                                                       some ? count : 0, set)
                                      : SHOAL_NO_MEMORY;
    shoal_corpus_destroy(words);
    sh_pool_free(&memory);
    TRY(status);
    set->words = sh_pool_take(&set->memory, set->info.units + 1, sizeof *set->words);
    const char *word;
    for (int64_t i = 1; set->words && (word = shoal_corpus_unit(set->corpora[0], i)); i++)
        set->words[i] = (int32_t)shoal_lexicon_find(lexicon, word);
    return set->words ? SHOAL_OK : SHOAL_NO_MEMORY;
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
    TRY(sh_speech_cache(context, config->cache, cache));
    const shoal_lfmmi_options options = {.size = sizeof options,
                                         .topology = config->topology,
                                         .order = (int32_t)config->order,
                                         .extra = config->extra,
                                         .whole = config->whole,
                                         .leak = config->leak,
                                         .l2 = config->output_l2,
                                         .range = config->output_range,
                                         .cache = cache};
    pool memory = {.context = context};
    int64_t *offsets = sh_pool_take(&memory, count + 1, sizeof *offsets);
    int32_t *words = sh_pool_take(&memory, set->info.labels + 1, sizeof *words);
    for (int64_t u = 0; u < count && offsets && words; u++) {
        shoal_utterance one;
        shoal_corpus_utterance(set->corpora[set->plain], u, &one);
        for (int64_t i = 0; i < one.label_count; i++)
            words[offsets[u] + i] = set->words[one.labels[i]];
        offsets[u + 1] = offsets[u] + one.label_count;
    }
    const shoal_status status =
        offsets && words
            ? shoal_lfmmi_create(context, &options, lexicon, count, offsets, words, loss)
            : SHOAL_NO_MEMORY;
    sh_pool_free(&memory);
    return status;
}

/* ---- A batch ----------------------------------------------------------------------- */

#define RESIZE(array, wanted)                                                            \
    TRY(sh_pool_resize(&scorer->memory, &s->array, 0, wanted, sizeof *s->array))

/* Compacts the rows that have an output, utterance by utterance. */
static shoal_status gather(speech_scorer *scorer, const speech_batch *batch,
                           int64_t classes, const float *out) {
    speech_steps *s = &scorer->steps;
    const int64_t parts = batch->parts + 1, rows = batch->offsets[batch->count] + 1;
    int64_t count = 0;
    if (parts > s->part_room) {
        const int64_t room = parts + parts / 4;
        RESIZE(offsets, room);
        RESIZE(sequences, room);
        RESIZE(counts, room);
        s->part_room = room;
    }
    if (rows > s->row_room) {
        const int64_t room = rows + rows / 4;
        RESIZE(rows, room);
        RESIZE(phones, room);
        RESIZE(begins, room);
        RESIZE(outputs, room * classes);
        s->row_room = room;
    }
    for (int64_t b = 0; b < batch->count; b++) {
        int64_t row = batch->offsets[b] + batch->phase[b];
        s->sequences[b] = count;
        for (int64_t p = batch->part_offsets[b]; p < batch->part_offsets[b + 1]; p++) {
            s->offsets[p] = count;
            for (; row < batch->part_rows[p + 1]; row += scorer->every)
                s->rows[count++] = row;
        }
    }
    s->offsets[batch->parts] = s->sequences[batch->count] = count;
    for (int64_t i = 0; i < count; i++)
        memcpy(s->outputs + i * classes, out + s->rows[i] * classes,
               (size_t)classes * sizeof *out);
    return SHOAL_OK;
}

/* Decodes whole sequences, because the start of utterances in a recording is unknown.
   The reference phones are those of the first pronunciation of each word. */
static shoal_status decode(speech_scorer *scorer, const speech_batch *batch,
                           speech_result *result, shoal_edits *each) {
    speech_steps *s = &scorer->steps;
    TRY(shoal_lfmmi_decode(scorer->lfmmi, batch->count, s->sequences, s->outputs,
                           s->phones, s->begins, s->counts));
    for (int64_t b = 0; b < batch->count; b++) {
        shoal_edits edits = {0};
        int64_t wanted = 0;
        TRY(sh_pool_grow(&scorer->memory, &s->wanted, &s->wanted_room, 1,
                         sizeof *s->wanted));
        for (int64_t i = batch->label_offsets[b]; i < batch->label_offsets[b + 1]; i++) {
            const int32_t phone = batch->labels[i] - 1, *phones = &phone;
            const int64_t length = scorer->lexicon
                                       ? shoal_lexicon_pronunciation(scorer->lexicon,
                                                                     batch->labels[i], 0,
                                                                     &phones)
                                       : 1;
            if (wanted + length > s->wanted_room)
                TRY(sh_pool_grow(&scorer->memory, &s->wanted, &s->wanted_room,
                                 2 * (wanted + length), sizeof *s->wanted));
            for (int64_t k = 0; k < length; k++)
                s->wanted[wanted++] = phones[k];
        }
        TRY(shoal_count_edits(scorer->memory.context, s->wanted, wanted,
                              s->phones + s->sequences[b], s->counts[b], &edits));
        sh_add_edits(&edits, &result->edits);
        if (each)
            each[b] = edits;
    }
    return SHOAL_OK;
}

shoal_status sh_lfmmi_score(speech_scorer *scorer, const speech_batch *batch,
                            int64_t classes, const float *out, float *gradient,
                            speech_result *result, shoal_edits *each) {
    speech_steps *s = &scorer->steps;
    const size_t row = (size_t)classes * sizeof *out;
    shoal_lfmmi_result loss = {0};
    TRY(gather(scorer, batch, classes, out));
    if (!gradient)
        TRY(decode(scorer, batch, result, each));
    const int64_t steps = s->sequences[batch->count];
    const shoal_lfmmi_batch utterances = {sizeof utterances, batch->parts, s->offsets,
                                          batch->part_labels, batch->labels};
    if (scorer->lexicon)
        TRY(shoal_lfmmi_loss(scorer->lfmmi, &utterances, s->outputs,
                             steps ? 1 / (double)steps : 0, gradient ? s->outputs : NULL,
                             NULL, &loss));
    if (gradient) { /* zero except for the rows that have an output */
        memset(gradient, 0, (size_t)batch->offsets[batch->count] * row);
        for (int64_t i = 0; i < steps; i++)
            memcpy(gradient + s->rows[i] * classes, s->outputs + i * classes, row);
    }
    result->divisor = (double)steps;
    result->loss += loss.sum;
    result->labels += loss.steps;
    result->impossible += loss.impossible;
    result->broken += loss.broken;
    return SHOAL_OK;
}
