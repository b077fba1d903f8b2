#define _GNU_SOURCE
#include "speech_eval_words.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

/* ---- The data ---------------------------------------------------------------------- */

int eval_words_open(shoal_context *context, const words_options *options,
                    const speech_model *model, eval_words *words) {
    words->context = context;
    return words_open("eval", context, options, model, &words->search);
}

void eval_words_close(eval_words *words) {
    words_close(&words->search);
    words_said_close(&words->said);
    free(words->spoken);
    free(words->texts);
    *words = (eval_words){0};
}

/* Whether lexicon and language model have a word. */
static bool can_hear(const words_search *search, const char *text, size_t length) {
    char word[256];
    if (length >= sizeof word)
        return false;
    memcpy(word, text, length);
    word[length] = 0;
    const int64_t number = shoal_lexicon_find(search->lexicon, word);
    return number >= 0 && shoal_word_decoder_hears(search->decoder, number);
}

static void count_words(eval_words *words, const char *text) {
    for (const char *at = text;;) {
        at += strspn(at, " \t\r");
        const size_t length = strcspn(at, " \t\r");
        if (length == 0)
            return;
        words->spoken_words++;
        words->missing_words += !can_hear(&words->search, at, length);
        at += length;
    }
}

int eval_words_data(eval_words *words, const char *folder, const speech_set *set) {
    shoal_utterance one;
    words_said_close(&words->said);
    words->spoken_words = words->missing_words = 0;
    const int code = words_said_open("eval", folder, "text", &words->said);
    if (code != EXIT_OK)
        return code;
    for (int64_t i = 0; shoal_corpus_utterance(set->corpora[set->plain], i, &one); i++) {
        const char *text = words_said_find(&words->said, one.id);
        if (!text)
            return complain(EXIT_BAD_INPUT, "eval", "%s/text: has no line of %s", folder,
                            one.id);
        count_words(words, text);
    }
    return EXIT_OK;
}

static bool grow(void **block, size_t *room, size_t wanted, size_t element) {
    if (wanted <= *room)
        return true;
    void *more = realloc(*block, (wanted + wanted / 2) * element);
    if (!more)
        return false;
    *block = more;
    *room = wanted + wanted / 2;
    return true;
}

/* What the utterances of a batch say, one after another, from texts[at] on. */
static bool find_texts(eval_words *words, const speech_set *set,
                       const speech_batch *batch, size_t at) {
    void *block = (void *)words->texts;
    for (int64_t b = 0; b < batch->count; b++)
        for (int64_t i = 0; i < batch->members[b]; i++) {
            shoal_utterance one;
            if (!grow(&block, &words->text_room, at + 1, sizeof *words->texts))
                return false;
            words->texts = block;
            shoal_corpus_utterance(set->corpora[set->plain],
                                   set->members[batch->first[b] + i], &one);
            words->texts[at++] = words_said_find(&words->said, one.id);
        }
    return true;
}

/* ---- Errors ------------------------------------------------------------------------ */

/* members [count]: how many texts each sequence has. */
static shoal_status count_edits(eval_words *words, int64_t count, const int64_t *offsets,
                                const float *outputs, const int64_t *members,
                                shoal_edits *each) {
    void *block = words->spoken;
    if (!grow(&block, &words->spoken_room, (size_t)count, sizeof *words->spoken))
        return SHOAL_NO_MEMORY;
    words->spoken = block;
    shoal_status status = shoal_word_decoder_run(words->search.decoder,
                                                 &words->search.settings, count, offsets,
                                                 outputs, words->spoken);
    const char **texts = words->texts;
    for (int64_t b = 0; b < count && status == SHOAL_OK; b++) {
        each[b] = (shoal_edits){0};
        status = words_count_edits(words->context, texts, members[b],
                                   &words->spoken[b].strings[0], &each[b]);
        texts += members[b];
    }
    return status;
}

shoal_status eval_words_count(eval_words *words, const speech_set *set,
                              const speech_batch *batch, const float *outputs,
                              shoal_edits *each) {
    if (!find_texts(words, set, batch, 0))
        return SHOAL_NO_MEMORY;
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
    int64_t words;
} tuning;

static bool keep_batch(tuning *t, const speech_batch *batch, int64_t classes,
                       const float *out) {
    const int64_t rows = batch->offsets[batch->count];
    void *block = t->outputs;
    if (!grow(&block, &t->output_room, (size_t)((t->rows + rows) * classes),
              sizeof *t->outputs))
        return false;
    t->outputs = block;
    memcpy(t->outputs + t->rows * classes, out, sizeof *out * (size_t)(rows * classes));
    for (int64_t b = 0; b < batch->count; b++) {
        t->members[t->count] = batch->members[b];
        t->offsets[++t->count] = t->rows + batch->offsets[b + 1];
    }
    t->rows += rows;
    return true;
}

static shoal_status hear_set(eval_words *words, speech_set *set, int64_t classes,
                             shoal_model *view, tuning *t) {
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
        if (!speech_fill(set, i, false, &batch))
            status = SHOAL_NO_MEMORY;
        const shoal_model_inputs inputs = {.batch = batch.count,
                                           .offsets = batch.offsets,
                                           .features = batch.features};
        if (status == SHOAL_OK)
            status = shoal_model_forward(view, &inputs, &out);
        if (status == SHOAL_OK)
            speech_thin(set, &batch, classes, out);
        if (status == SHOAL_OK && (!find_texts(words, set, &batch, texts) ||
                                   !keep_batch(t, &batch, classes, out)))
            status = SHOAL_NO_MEMORY;
        for (int64_t b = 0; b < batch.count; b++)
            texts += (size_t)batch.members[b];
    }
    speech_batch_free(&batch);
    return status;
}

/* Words that are wrong with these weights. */
static shoal_status try_weights(eval_words *words, tuning *t, double weight,
                                double insertion, double *wrong) {
    for (int i = 0; i < t->tried_count; i++)
        if (t->tried[i].weight == weight && t->tried[i].insertion == insertion) {
            *wrong = t->tried[i].wrong;
            return SHOAL_OK;
        }
    words->search.settings.lm_weight = weight;
    words->search.settings.insertion = insertion;
    const shoal_status status =
        count_edits(words, t->count, t->offsets, t->outputs, t->members, t->each);
    *wrong = 0;
    t->words = 0;
    for (int64_t i = 0; i < t->count && status == SHOAL_OK; i++) {
        const shoal_edits *own = &t->each[i];
        *wrong += (double)(own->substitutions + own->insertions + own->deletions);
        t->words += own->length;
    }
    t->tried[t->tried_count].weight = weight;
    t->tried[t->tried_count].insertion = insertion;
    t->tried[t->tried_count++].wrong = *wrong;
    progress_say("tuning, try %d: weight %g, insertion %g, %.2f %% wrong", t->tried_count,
                 weight, insertion, 100 * *wrong / (double)(t->words ? t->words : 1));
    return status;
}

/* Goes to the best neighbour as long as there is a better one, then halves the steps,
   twice. */
static shoal_status descend(eval_words *words, tuning *t) {
    double weight = words->search.settings.lm_weight;
    double insertion = words->search.settings.insertion, best, wrong;
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
    words->search.settings.lm_weight = weight;
    words->search.settings.insertion = insertion;
    return status;
}

static shoal_status tune(eval_words *words, speech_set *set, const speech_model *model,
                         const shoal_attention *kind, tuning *t) {
    shoal_model *view = NULL;
    shoal_status status = shoal_model_view(model->model, kind, model->config.batch,
                                           speech_most_rows(set), &view);
    if (status == SHOAL_OK)
        status =
            hear_set(words, set, shoal_model_settings(model->model)->outputs, view, t);
    shoal_model_destroy(view);
    return status == SHOAL_OK ? descend(words, t) : status;
}

int eval_words_tune(eval_words *words, const char *folder, speech_set *set,
                    const speech_model *model, const shoal_attention *kind) {
    tuning t = {0};
    int code = eval_words_data(words, folder, set);
    if (code == EXIT_OK) {
        const shoal_status status = tune(words, set, model, kind, &t);
        if (status != SHOAL_OK)
            code = complain_status(status, EXIT_BAD_INPUT, "eval", words->context);
    }
    free(t.outputs);
    free(t.offsets);
    free(t.members);
    free(t.each);
    return code;
}
