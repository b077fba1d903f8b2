#define _GNU_SOURCE
#include "speech_lfmmi.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

/* ---- Lexicon and words ------------------------------------------------------------- */

enum { MOST_FILES = 16 };

int lfmmi_open_lexicon(const char *command, shoal_context *context, const char *files,
                       const char *const *phones, int64_t phone_count,
                       shoal_lexicon **lexicon) {
    const char *paths[MOST_FILES];
    int count = 0;
    char *copy = strdup(files), *rest = NULL;
    if (!copy)
        return complain(EXIT_RESOURCES, command, "out of memory");
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        if (count < MOST_FILES)
            paths[count] = one;
        count++;
    }
    if (count == 0 || count > MOST_FILES) {
        free(copy);
        return complain(EXIT_USAGE, command, "--lexicon has %s",
                        count ? "more than 16 files" : "no file");
    }
    const shoal_lexicon_options options = {.phones = phones, .phone_count = phone_count};
    const shoal_status status =
        shoal_lexicon_open(context, paths, count, &options, lexicon);
    free(copy);
    return status == SHOAL_OK ? EXIT_OK
                              : complain_status(status, EXIT_BAD_INPUT, command, context);
}

/* Names words in lines; the caller has said what is wrong with them. */
static void name_words(const speech_set *set) {
    int column = 0;
    const char *word;
    for (int64_t i = 1; (word = shoal_corpus_unit(set->corpora[0], i)); i++) {
        if (set->words[i] >= 0)
            continue;
        char shown[80];
        snprintf(shown, sizeof shown, " %s", word);
        mask_controls(shown);
        const int length = (int)strlen(shown);
        if (column > 0 && column + length > 80)
            fputc('\n', stderr), column = 0;
        column += fprintf(stderr, "%s%s", column ? "" : " ", shown);
    }
    fputc('\n', stderr);
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
static int open_known(const char *command, shoal_context *context, const char *folder,
                      const train_config *config, bool all_speeds,
                      const shoal_lexicon *lexicon, speech_set *set) {
    speech_set all = *set;
    const char **known = calloc((size_t)all.info.units + 1, sizeof *known);
    int64_t count = 0;
    for (int64_t i = 1; known && i <= all.info.units; i++)
        if (all.words[i] >= 0)
            known[count++] = shoal_corpus_unit(all.corpora[0], i);
    int code = known ? speech_open(command, context, folder, config, all_speeds, known,
                                   count, set)
                     : complain(EXIT_RESOURCES, command, "out of memory");
    free(known);
    speech_close(&all);
    if (code == EXIT_OK && map_units(set, lexicon) != 0)
        code = complain(EXIT_RESOURCES, command, "out of memory");
    return code;
}

int lfmmi_open_set(const char *command, shoal_context *context, const char *folder,
                   const train_config *config, bool all_speeds,
                   const shoal_lexicon *lexicon, speech_set *set) {
    const int code =
        speech_open(command, context, folder, config, all_speeds, NULL, 0, set);
    if (code != EXIT_OK)
        return code;
    const int64_t missing = map_units(set, lexicon);
    if (missing == 0)
        return EXIT_OK;
    if (missing < 0)
        return complain(EXIT_RESOURCES, command, "out of memory");
    complain(EXIT_BAD_INPUT, command,
             "%s: %" PRId64 " words have no pronunciation in the lexicon; add them to "
             "it%s:",
             folder, missing,
             config->skip_bad ? "" : ", or leave their utterances out by --skip-bad");
    name_words(set);
    return config->skip_bad
               ? open_known(command, context, folder, config, all_speeds, lexicon, set)
               : EXIT_BAD_INPUT;
}

uint64_t lfmmi_fingerprint(const speech_set *set, const shoal_lexicon *lexicon) {
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

static shoal_lfmmi_options options_of(const train_config *config) {
    const speech_config *speech = &config->speech;
    return (shoal_lfmmi_options){.topology = SHOAL_TOPOLOGY_CHAIN + speech->topology,
                                 .order = (int32_t)speech->order,
                                 .extra = speech->extra ? speech->extra : -1,
                                 .whole = speech->whole,
                                 .leak = speech->leak,
                                 .l2 = speech->output_l2 > 0 ? speech->output_l2 : -1,
                                 .range = speech->output_range > 0 ? speech->output_range
                                                                   : -1,
                                 .cache = config->cache};
}

shoal_status lfmmi_create(shoal_context *context, const train_config *config,
                          const shoal_lexicon *lexicon, const speech_set *set,
                          shoal_lfmmi **loss) {
    const shoal_lfmmi_options options = options_of(config);
    const int64_t count = set->info.utterances;
    int64_t *offsets = calloc((size_t)count + 1, sizeof *offsets);
    int32_t *words = calloc((size_t)set->info.labels + 1, sizeof *words);
    shoal_status status = offsets && words ? SHOAL_OK : SHOAL_NO_MEMORY;
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

shoal_status lfmmi_open(shoal_context *context, const train_config *config,
                        const shoal_lexicon *lexicon, const char *path,
                        shoal_lfmmi **loss) {
    const shoal_lfmmi_options options = options_of(config);
    return shoal_lfmmi_open(context, &options, lexicon, path, loss);
}

/* ---- A batch ----------------------------------------------------------------------- */

/* Grows one of the scorer's arrays; what was in it is lost. */
static bool room_for(void *array, size_t *room, size_t bytes) {
    void **at = array;
    if (bytes <= *room)
        return true;
    free(*at);
    *at = malloc(bytes + bytes / 4);
    *room = *at ? bytes + bytes / 4 : 0;
    return *at != NULL;
}

void lfmmi_scorer_free(speech_scorer *scorer) {
    speech_steps *s = &scorer->steps;
    free(s->offsets), free(s->sequences), free(s->counts), free(s->rows);
    free(s->outputs), free(s->phones), free(s->begins), free(s->wanted);
    *s = (speech_steps){0};
}

/* Which rows have an output, utterance by utterance. */
static bool choose_rows(const speech_batch *batch, int64_t every, speech_steps *s) {
    const size_t parts = (size_t)batch->parts + 1,
                 rows = (size_t)batch->offsets[batch->count];
    if (!room_for(&s->offsets, &s->offset_room, parts * sizeof *s->offsets) ||
        !room_for(&s->sequences, &s->sequence_room, parts * sizeof *s->sequences) ||
        !room_for(&s->counts, &s->count_room, parts * sizeof *s->counts) ||
        !room_for(&s->rows, &s->row_room, (rows + 1) * sizeof *s->rows))
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
    if (!room_for(&s->outputs, &s->output_room, ((size_t)count + 1) * row))
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
        if (pass == 1 && !room_for(&s->wanted, &s->wanted_room,
                                   ((size_t)*count + 1) * sizeof *s->wanted))
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

static void add_edits(const shoal_edits *edits, shoal_edits *sum) {
    sum->length += edits->length;
    sum->substitutions += edits->substitutions;
    sum->insertions += edits->insertions;
    sum->deletions += edits->deletions;
}

/* Whole sequences: a recording does not say where its utterances begin. */
static shoal_status decode(speech_scorer *scorer, const speech_batch *batch,
                           speech_result *result, shoal_edits *each) {
    speech_steps *s = &scorer->steps;
    const size_t steps = (size_t)s->sequences[batch->count] + 1;
    if (!room_for(&s->phones, &s->phone_room, steps * sizeof *s->phones) ||
        !room_for(&s->begins, &s->begin_room, steps * sizeof *s->begins))
        return SHOAL_NO_MEMORY;
    shoal_status status = shoal_lfmmi_decode(scorer->lfmmi, batch->count, s->sequences,
                                             s->outputs, s->phones, s->begins, s->counts);
    for (int64_t b = 0; b < batch->count && status == SHOAL_OK; b++) {
        shoal_edits edits = {0};
        int64_t wanted;
        if (!want_phones(scorer, batch, b, &wanted))
            return SHOAL_NO_MEMORY;
        status = shoal_count_edits(scorer->context, s->wanted, wanted,
                                   s->phones + s->sequences[b], s->counts[b], &edits);
        add_edits(&edits, &result->edits);
        if (each)
            each[b] = edits;
    }
    return status;
}

shoal_status lfmmi_score(speech_scorer *scorer, const speech_batch *batch,
                         int64_t classes, const float *out, float *gradient,
                         speech_result *result, shoal_edits *each) {
    speech_steps *s = &scorer->steps;
    shoal_lfmmi_result loss = {0};
    if (!choose_rows(batch, scorer->every, s) ||
        !gather(s, s->sequences[batch->count], classes, out))
        return SHOAL_NO_MEMORY;
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
