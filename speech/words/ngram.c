/* Language models: words, states and probabilities. */
#include "speech/words/ngram.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/numbers.h"
#include "models/files/files.h"
#include "speech/words/grow.h"

shoal_status sh_ngram_no_memory(shoal_context *context) {
    return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the language model");
}

/* ---- Words ------------------------------------------------------------------------- */

const char *sh_ngram_text(const shoal_ngram *model, int32_t word) {
    return model->letters + model->texts[word];
}

/* The slot of the word, or the free slot for it. */
static uint32_t find_place(const shoal_ngram *model, const char *text, size_t length) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    uint32_t at = (hash ^ (hash >> 15)) & (model->table_size - 1);
    for (; model->table[at] >= 0; at = (at + 1) & (model->table_size - 1)) {
        const char *there = sh_ngram_text(model, model->table[at]);
        if (strncmp(there, text, length) == 0 && there[length] == 0)
            break;
    }
    return at;
}

int32_t sh_ngram_find(const shoal_ngram *model, const char *text, size_t length) {
    return model->table_size ? model->table[find_place(model, text, length)] : -1;
}

static bool grow_table(shoal_ngram *model) {
    const uint32_t size = model->table_size ? 2 * model->table_size : 1024;
    int32_t *table = sh_allocate(model->context, sizeof *table * size);
    if (!table)
        return false;
    memset(table, 0xff, sizeof *table * size);
    sh_free(model->table);
    model->table = table;
    model->table_size = size;
    for (int32_t i = 0; i < model->word_count; i++) {
        const char *text = sh_ngram_text(model, i);
        table[find_place(model, text, strlen(text))] = i;
    }
    return true;
}

int32_t sh_ngram_add_word(shoal_ngram *model, const char *text, size_t length) {
    if (!grow(model->context, &model->letters, &model->letter_room,
              model->letter_count + (int64_t)length + 1, 1) ||
        !grow(model->context, &model->texts, &model->text_room, model->word_count + 1,
              sizeof *model->texts) ||
        (model->table_size <= 2 * (uint32_t)model->word_count && !grow_table(model)))
        return -2;
    const uint32_t place = find_place(model, text, length);
    if (model->table[place] >= 0)
        return -1;
    memcpy(model->letters + model->letter_count, text, length);
    model->letters[model->letter_count + (int64_t)length] = 0;
    model->texts[model->word_count] = model->letter_count;
    model->letter_count += (int64_t)length + 1;
    model->table[place] = model->word_count;
    return model->word_count++;
}

/* ---- States ------------------------------------------------------------------------ */

int64_t sh_ngram_child(const shoal_ngram *model, int level, int64_t entry, int32_t word) {
    const int32_t *children = model->levels[level].children + entry;
    return find_rising(model->levels[level + 1].words, children[0], children[1], word);
}

static int level_of(const shoal_ngram *model, int32_t state) {
    int level = 1;
    while (level + 1 < model->order && state >= model->first_states[level + 1])
        level++;
    return level;
}

/* The state of an entry without its first word. */
static int32_t shorter_of(const shoal_ngram *model, int level, int64_t entry) {
    if (level == 1)
        return 0;
    const ngram_level *own = &model->levels[level];
    return level == 2 ? 1 + own->words[entry] : own->shorter[entry];
}

/* The state after an entry. */
static int32_t state_of(const shoal_ngram *model, int level, int64_t entry) {
    return level == model->order ? shorter_of(model, level, entry)
                                 : model->first_states[level] + (int32_t)entry;
}

float sh_ngram_next(const shoal_ngram *model, int32_t state, int32_t word,
                    int32_t *next) {
    float sum = 0;
    while (state != 0) {
        const int level = level_of(model, state);
        const int64_t entry = state - model->first_states[level];
        const int64_t child = sh_ngram_child(model, level, entry, word);
        if (child >= 0) {
            *next = state_of(model, level + 1, child);
            return sum + model->levels[level + 1].probs[child];
        }
        sum += model->levels[level].backoffs[entry];
        state = shorter_of(model, level, entry);
    }
    *next = state_of(model, 1, word);
    return sum + model->levels[1].probs[word];
}

float sh_ngram_step(const shoal_ngram *model, int32_t state, int32_t word,
                    int32_t *next) {
    float sum = sh_ngram_next(model, state, word, &state);
    while (state != 0) {
        const int level = level_of(model, state);
        const ngram_level *own = &model->levels[level];
        const int64_t entry = state - model->first_states[level];
        if (own->children[entry] < own->children[entry + 1])
            break;
        sum += own->backoffs[entry];
        state = shorter_of(model, level, entry);
    }
    *next = state;
    return sum;
}

/* ---- Creation --------------------------------------------------------------------- */

shoal_status sh_ngram_create(shoal_context *context, int order, shoal_ngram **made) {
    *made = sh_allocate_zeros(context, 1, sizeof **made);
    if (!*made)
        return sh_ngram_no_memory(context);
    (*made)->context = context;
    (*made)->order = order;
    return grow_table(*made) ? SHOAL_OK : sh_ngram_no_memory(context);
}

void shoal_ngram_destroy(shoal_ngram *model) {
    if (!model)
        return;
    for (int i = 0; i <= NGRAM_MOST_ORDER; i++) {
        const ngram_level *level = &model->levels[i];
        FREE_ALL(level->words, level->probs, level->backoffs, level->children,
                 level->shorter);
    }
    FREE_ALL(model->letters, model->texts, model->table, model);
}

shoal_status sh_ngram_level_room(shoal_ngram *model, int level, int64_t count) {
    ngram_level *made = &model->levels[level];
    const size_t size = (size_t)count + 1;
    made->count = count;
    made->probs = sh_allocate(model->context, sizeof(float) * size);
    if (level > 1)
        made->words = sh_allocate(model->context, sizeof(int32_t) * size);
    if (level > 2)
        made->shorter = sh_allocate(model->context, sizeof(int32_t) * size);
    if (level < model->order) {
        made->backoffs = sh_allocate(model->context, sizeof(float) * size);
        made->children = sh_allocate_zeros(model->context, size + 1, sizeof(int32_t));
    }
    const bool whole = made->probs && (level == 1 || made->words) &&
                       (level <= 2 || made->shorter) &&
                       (level == model->order || (made->backoffs && made->children));
    return whole ? SHOAL_OK : sh_ngram_no_memory(model->context);
}

static int compare_records(const void *a, const void *b) {
    const ngram_record *x = a, *y = b;
    if (x->context != y->context)
        return x->context < y->context ? -1 : 1;
    if (x->word != y->word)
        return x->word < y->word ? -1 : 1;
    return (x->line > y->line) - (x->line < y->line);
}

shoal_status sh_ngram_level_take(shoal_ngram *model, int level, ngram_record *records,
                                 int64_t count, int64_t *again) {
    *again = -1;
    TRY(sh_ngram_level_room(model, level, count));
    ngram_level *made = &model->levels[level];
    int32_t *begins = model->levels[level - 1].children;
    bool sorted = true;
    for (int64_t i = 1; i < count && sorted; i++)
        sorted = compare_records(&records[i - 1], &records[i]) < 0;
    if (!sorted)
        qsort(records, (size_t)count, sizeof *records, compare_records);
    for (int64_t i = 0; i < count; i++) {
        if (i > 0 && records[i].context == records[i - 1].context &&
            records[i].word == records[i - 1].word) {
            *again = i;
            return SHOAL_BAD_FILE;
        }
        made->probs[i] = records[i].prob;
        if (made->backoffs)
            made->backoffs[i] = records[i].backoff;
        if (level > 1) {
            made->words[i] = records[i].word;
            begins[records[i].context + 1]++;
        }
    }
    for (int64_t i = 0; i < model->levels[level - 1].count; i++)
        begins[i + 1] += begins[i];
    return sh_ngram_level_end(model, level);
}

shoal_status sh_ngram_level_end(shoal_ngram *model, int level) {
    const int64_t first =
        level == 1 ? 1 : model->first_states[level - 1] + model->levels[level - 1].count;
    if (first + model->levels[level].count > INT32_MAX)
        return sh_fail(model->context, SHOAL_BAD_FILE,
                       "the language model has more than 2^31 n-grams");
    model->first_states[level] = (int32_t)first;
    if (level > 2) {
        /* States without the first word, found from those of the entries one level
           below. */
        ngram_level *own = &model->levels[level];
        const ngram_level *below = &model->levels[level - 1];
        for (int64_t context = 0; context < below->count; context++)
            for (int32_t i = below->children[context]; i < below->children[context + 1];
                 i++)
                for (int32_t state = shorter_of(model, level - 1, context);;) {
                    const int of = state == 0 ? 0 : level_of(model, state);
                    const int64_t entry = state - model->first_states[of];
                    const int64_t child =
                        of == 0 ? own->words[i]
                                : sh_ngram_child(model, of, entry, own->words[i]);
                    if (child >= 0) {
                        own->shorter[i] = model->first_states[of + 1] + (int32_t)child;
                        break;
                    }
                    state = shorter_of(model, of, entry);
                }
    }
    return SHOAL_OK;
}

shoal_status sh_ngram_finish(shoal_ngram *model, const char *label) {
    model->begin = sh_ngram_find(model, "<s>", 3);
    model->end = sh_ngram_find(model, "</s>", 4);
    if (model->begin >= 0 && model->end >= 0)
        return SHOAL_OK;
    return sh_fail(model->context, SHOAL_BAD_FILE,
                   "%s: has no %s; a language model needs the words <s> and </s>", label,
                   model->begin < 0 ? "<s>" : "</s>");
}

/* ---- The interface ----------------------------------------------------------------- */

shoal_status shoal_ngram_open(shoal_context *context, const char *path,
                              shoal_ngram **ngram) {
    unsigned char head[64];
    int64_t size;
    int file;
    if (!context || !path || !ngram)
        return sh_fail(context, SHOAL_INVALID, "a language model needs %s",
                       !path ? "a path" : "a place for the model");
    *ngram = NULL;
    TRY(sh_file_open(context, path, &file, &size));
    const ssize_t got = size < 0 ? 0 : read(file, head, sizeof head);
    close(file);
    shoal_status status;
    if (got > 0 && sh_sphinx_is(head, (size_t)got)) {
        file_map map = {0};
        status = sh_file_map_open(context, path, &map);
        if (status == SHOAL_OK)
            status = sh_sphinx_parse(context, path, map.bytes, map.size, ngram);
        sh_file_map_close(&map);
    } else
        status = sh_arpa_read(context, path, ngram);
    if (status == SHOAL_OK)
        status = sh_ngram_finish(*ngram, path);
    if (status != SHOAL_OK) {
        shoal_ngram_destroy(*ngram);
        *ngram = NULL;
    }
    return status;
}

const shoal_ngram_info *shoal_ngram_describe(const shoal_ngram *ngram) {
    if (!ngram)
        return NULL;
    shoal_ngram_info info = {.order = ngram->order, .words = ngram->word_count};
    info.bytes = (size_t)ngram->letter_room + sizeof(int64_t) * (size_t)ngram->text_room +
                 sizeof(int32_t) * ngram->table_size;
    for (int i = 1; i <= ngram->order; i++) {
        const ngram_level *level = &ngram->levels[i];
        const size_t each =
            4 * (1 + (size_t)(i > 1) + (size_t)(i > 2) + 2 * (size_t)(i < ngram->order));
        info.ngrams += level->count;
        info.bytes += each * (size_t)level->count;
    }
    shoal_ngram_info *kept = &((shoal_ngram *)(uintptr_t)ngram)->info;
    *kept = info;
    return kept;
}

int64_t shoal_ngram_word(const shoal_ngram *ngram, const char *text) {
    return sh_ngram_find(ngram, text, strlen(text));
}

double shoal_ngram_score(const shoal_ngram *ngram, const int64_t *words, int64_t count) {
    int32_t state = 0;
    double prob = 0;
    for (int64_t i = count > ngram->order ? count - ngram->order : 0; i < count; i++)
        prob = (double)sh_ngram_next(ngram, state, (int32_t)words[i], &state);
    return prob;
}
