#define _GNU_SOURCE
#include "train/evaluate_words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "models/files/files.h"

static const char blanks[] = " \t\r";

/* ---- What was said ----------------------------------------------------------------- */

void sh_eval_words_close(eval_words *words) {
    free(words->text);
    free(words->rows);
    free(words->spoken);
    free(words->texts);
    *words = (eval_words){0};
}

static int compare_rows(const void *a, const void *b) {
    return strcmp(((const said_row *)a)->id, ((const said_row *)b)->id);
}

static const char *find_said(const eval_words *words, const char *id) {
    const said_row key = {id, NULL};
    const said_row *row = words->row_count == 0
                              ? NULL
                              : bsearch(&key, words->rows, (size_t)words->row_count,
                                        sizeof key, compare_rows);
    return row ? row->rest : NULL;
}

static shoal_status read_said(eval_words *words, const char *folder) {
    char path[SH_PATH];
    file_map map;
    size_t lines = 1;
    shoal_context *context = words->e->context;
    shoal_status status = sh_path(context, path, folder, "text");
    if (status != SHOAL_OK)
        return status;
    if (access(path, R_OK) != 0)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: cannot be read (%s); errors of words are counted against it",
                       path, strerror(errno));
    status = sh_file_map_open(context, path, &map);
    if (status != SHOAL_OK)
        return status;
    free(words->text);
    free(words->rows);
    words->row_count = 0;
    words->text = malloc(map.size + 1);
    for (size_t i = 0; i < map.size; i++)
        lines += map.bytes[i] == '\n';
    words->rows = malloc(sizeof *words->rows * lines);
    if (words->text && map.size)
        memcpy(words->text, map.bytes, map.size);
    if (words->text)
        words->text[map.size] = 0;
    sh_file_map_close(&map);
    if (!words->text || !words->rows)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    const size_t mark = strncmp(words->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    for (char *at = words->text + mark, *next; at; at = next) {
        next = strchr(at, '\n');
        if (next)
            *next++ = 0;
        at += strspn(at, blanks);
        char *rest = at + strcspn(at, blanks);
        if (rest == at)
            continue;
        if (*rest)
            *rest++ = 0;
        words->rows[words->row_count++] = (said_row){at, rest};
    }
    qsort(words->rows, (size_t)words->row_count, sizeof *words->rows, compare_rows);
    return SHOAL_OK;
}

/* The word at or after *at, to which it moves; returns its length, 0: there is none. */
static size_t find_word(const char **at) {
    *at += strspn(*at, blanks);
    return strcspn(*at, blanks);
}

/* Counts the words, and those that lexicon or language model does not have. */
static void count_words(eval_words *words, const char *at) {
    for (size_t length; (length = find_word(&at)) > 0; at += length) {
        char word[256];
        int64_t number = -1;
        if (length < sizeof word) {
            memcpy(word, at, length);
            word[length] = 0;
            number = shoal_lexicon_find(words->search.lexicon, word);
        }
        words->words++;
        words->missing += number < 0 ||
                          !shoal_word_decoder_hears(words->search.decoder, number);
    }
}

shoal_status sh_eval_words_open(eval_words *words, const char *folder,
                                const speech_set *set) {
    shoal_utterance one;
    words->words = words->missing = 0;
    const shoal_status status = read_said(words, folder);
    if (status != SHOAL_OK)
        return status;
    for (int64_t i = 0; shoal_corpus_utterance(set->corpora[set->plain], i, &one); i++) {
        const char *text = find_said(words, one.id);
        if (!text)
            return sh_fail(words->e->context, SHOAL_BAD_FILE,
                           "%s/text: has no line of %s", folder, one.id);
        count_words(words, text);
    }
    return SHOAL_OK;
}

/* ---- Errors ------------------------------------------------------------------------ */

typedef struct {
    const char *text;
    size_t length;
    int32_t at;
} spelled;

/* The case of letters does not matter. */
static int compare_spelled(const void *a, const void *b) {
    const spelled *x = a, *y = b;
    const size_t both = x->length < y->length ? x->length : y->length;
    const int order = strncasecmp(x->text, y->text, both);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* The words of a text go to list[count] on; returns how many there are then. list NULL:
   counts. */
static int64_t split_words(const char *at, spelled *list, int64_t count) {
    for (size_t length; (length = find_word(&at)) > 0; at += length, count++)
        if (list)
            list[count] = (spelled){at, length, (int32_t)count};
    return count;
}

/* Adds the fewest edits between the words of the texts, one after another, and those of a
   result: words become numbers, equal ones the same. */
static shoal_status add_edits(shoal_context *context, const char *const *said,
                              int64_t count, const shoal_word_string *heard,
                              shoal_edits *edits) {
    int64_t right = 0, all = 0;
    for (int64_t i = 0; i < count; i++)
        right = split_words(said[i], NULL, right);
    const size_t size = (size_t)(right + heard->count) + 1;
    spelled *list = malloc(sizeof *list * size);
    int32_t *numbers = malloc(sizeof *numbers * size);
    shoal_status status;
    if (list && numbers) {
        for (int64_t i = 0; i < count; i++)
            all = split_words(said[i], list, all);
        for (int64_t i = 0; i < heard->count; i++, all++)
            list[all] = (spelled){heard->words[i].text, strlen(heard->words[i].text),
                                  (int32_t)all};
        qsort(list, (size_t)all, sizeof *list, compare_spelled);
        for (int64_t i = 0, number = 0; i < all; i++) {
            number += i > 0 && compare_spelled(&list[i], &list[i - 1]) != 0;
            numbers[list[i].at] = (int32_t)number;
        }
        status = shoal_count_edits(context, numbers, right, numbers + right, heard->count,
                                   edits);
    } else {
        status = sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    }
    free(list);
    free(numbers);
    return status;
}

/* What the utterances of a batch say, one after another, from texts[at] on. */
static bool find_texts(eval_words *words, const speech_set *set,
                       const speech_batch *batch, size_t at) {
    for (int64_t b = 0; b < batch->count; b++)
        for (int64_t i = 0; i < batch->members[b]; i++) {
            shoal_utterance one;
            if (!sh_grow(&words->texts, &words->text_room, at + 1, sizeof *words->texts))
                return false;
            shoal_corpus_utterance(set->corpora[set->plain],
                                   set->members[batch->first[b] + i], &one);
            words->texts[at++] = find_said(words, one.id);
        }
    return true;
}

/* members [count]: how many texts each sequence has. */
static shoal_status count_edits(eval_words *words, int64_t count, const int64_t *offsets,
                                const float *outputs, const int64_t *members,
                                shoal_edits *each) {
    shoal_context *context = words->e->context;
    if (!sh_grow(&words->spoken, &words->spoken_room, (size_t)count,
                 sizeof *words->spoken))
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory");
    shoal_status status = shoal_word_decoder_run(words->search.decoder,
                                                 &words->search.words, count, offsets,
                                                 outputs, words->spoken);
    const char **texts = words->texts;
    for (int64_t b = 0; b < count && status == SHOAL_OK; b++) {
        each[b] = (shoal_edits){0};
        status =
            add_edits(context, texts, members[b], &words->spoken[b].strings[0], &each[b]);
        texts += members[b];
    }
    return status;
}

shoal_status sh_eval_words_count(eval_words *words, const speech_set *set,
                                 const speech_batch *batch, const float *outputs,
                                 shoal_edits *each) {
    if (!find_texts(words, set, batch, 0))
        return sh_fail(words->e->context, SHOAL_NO_MEMORY, "out of memory");
    return count_edits(words, batch->count, batch->offsets, outputs, batch->members,
                       each);
}

/* ---- Tuning ------------------------------------------------------------------------ */

/* All outputs of the development set. */
typedef struct {
    float *outputs; /* [rows][classes] */
    int64_t *offsets, *members;
    shoal_edits *each;
    int64_t count, rows;
    size_t output_room;
    /* what was tried */
    struct {
        double weight, insertion, wrong;
    } tried[256];
    int tried_count;
} tuning;

static bool keep_batch(tuning *t, const speech_batch *batch, int64_t classes,
                       const float *out) {
    const int64_t rows = batch->offsets[batch->count];
    if (!sh_grow(&t->outputs, &t->output_room, (size_t)((t->rows + rows) * classes),
                 sizeof *t->outputs))
        return false;
    memcpy(t->outputs + t->rows * classes, out, sizeof *out * (size_t)(rows * classes));
    for (int64_t b = 0; b < batch->count; b++) {
        t->members[t->count] = batch->members[b];
        t->offsets[++t->count] = t->rows + batch->offsets[b + 1];
    }
    t->rows += rows;
    return true;
}

static shoal_status hear_set(eval_words *words, speech_set *set, shoal_model *view,
                             tuning *t) {
    const int64_t classes = shoal_model_settings(view)->outputs;
    const size_t size = (size_t)set->item_count + 1;
    speech_batch batch = {0};
    size_t texts = 0;
    t->offsets = calloc(size, sizeof *t->offsets);
    t->members = calloc(size, sizeof *t->members);
    t->each = calloc(size, sizeof *t->each);
    shoal_status status = t->offsets && t->members && t->each ? SHOAL_OK
                                                              : SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < set->batch_count && status == SHOAL_OK; i++) {
        float *out;
        status =
            sh_speech_fill(set, words->e->context, i, false, (shoal_share){0, 1}, &batch);
        const shoal_model_inputs inputs = sh_speech_inputs(&batch);
        if (status == SHOAL_OK)
            status = shoal_model_forward(view, &inputs, &out);
        if (status != SHOAL_OK)
            break;
        sh_speech_thin(set, &batch, classes, out);
        if (!find_texts(words, set, &batch, texts) ||
            !keep_batch(t, &batch, classes, out))
            status = SHOAL_NO_MEMORY;
        for (int64_t b = 0; b < batch.count; b++)
            texts += (size_t)batch.members[b];
    }
    sh_speech_batch_free(&batch);
    return status == SHOAL_NO_MEMORY ? sh_fail(words->e->context, status, "out of memory")
                                     : status;
}

/* Words that are wrong with these weights. */
static shoal_status try_weights(eval_words *words, tuning *t, double weight,
                                double insertion, double *wrong) {
    char text[128];
    int64_t all = 0;
    for (int i = 0; i < t->tried_count; i++)
        if (t->tried[i].weight == weight && t->tried[i].insertion == insertion) {
            *wrong = t->tried[i].wrong;
            return SHOAL_OK;
        }
    words->search.words.lm_weight = weight;
    words->search.words.insertion = insertion;
    shoal_status status =
        count_edits(words, t->count, t->offsets, t->outputs, t->members, t->each);
    *wrong = 0;
    for (int64_t i = 0; i < t->count && status == SHOAL_OK; i++) {
        const shoal_edits *own = &t->each[i];
        *wrong += (double)(own->substitutions + own->insertions + own->deletions);
        all += own->length;
    }
    t->tried[t->tried_count].weight = weight;
    t->tried[t->tried_count].insertion = insertion;
    t->tried[t->tried_count++].wrong = *wrong;
    snprintf(text, sizeof text, "tuning, try %d: weight %g, insertion %g, %.2f %% wrong",
             t->tried_count, weight, insertion, 100 * *wrong / (double)(all ? all : 1));
    return status == SHOAL_OK ? sh_eval_progress(words->e, text, 0, 0) : status;
}

/* Goes to the best neighbour as long as there is a better one, then halves the steps,
   twice. */
static shoal_status descend(eval_words *words, tuning *t) {
    double weight = words->search.words.lm_weight;
    double insertion = words->search.words.insertion, best, wrong;
    shoal_status status = try_weights(words, t, weight, insertion, &best);
    for (double step = 0.4; step > 0.09 && t->tried_count < 250; step /= 2)
        for (bool moved = true; moved && t->tried_count < 250;) {
            const double at[4][2] = {{weight + step, insertion},
                                     {weight - step, insertion},
                                     {weight, insertion + 2.5 * step},
                                     {weight, insertion - 2.5 * step}};
            moved = false;
            for (int i = 0; i < 4 && status == SHOAL_OK && !moved; i++) {
                if (at[i][0] < 0)
                    continue;
                status = try_weights(words, t, at[i][0], at[i][1], &wrong);
                if (status == SHOAL_OK && wrong < best) {
                    best = wrong;
                    weight = at[i][0];
                    insertion = at[i][1];
                    moved = true;
                }
            }
        }
    words->search.words.lm_weight = weight;
    words->search.words.insertion = insertion;
    return status;
}

shoal_status sh_eval_words_tune(eval_words *words, const char *folder, speech_set *set,
                                shoal_model *view) {
    tuning t = {0};
    shoal_status status = sh_eval_words_open(words, folder, set);
    if (status == SHOAL_OK)
        status = hear_set(words, set, view, &t);
    if (status == SHOAL_OK)
        status = descend(words, &t);
    free(t.outputs);
    free(t.offsets);
    free(t.members);
    free(t.each);
    return status;
}
