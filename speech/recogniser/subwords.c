/* Subword units: learned from words by repeatedly merging the most frequent pair of
   neighbours (byte-pair encoding: Sennrich et al. 2016). Words are spelled with the
   fewest units, so that the list of units is enough for spelling. A word begins with
   "_". */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "speech/recogniser/corpus.h"
#include "speech/words/grow.h"

enum { MOST_BYTES = 64, LAST = -1 };

/* ---- Words and their frequencies -------------------------------------------------- */

void sh_subwords_free(subwords *s) {
    for (int64_t i = 0; i < s->count; i++)
        sh_free(s->words[i].text);
    for (int64_t i = 0; i < s->unit_count; i++)
        sh_free(s->units[i]);
    sh_free(s->words);
    sh_free(s->units);
    *s = (subwords){0};
}

static int compare_words(const void *a, const void *b) {
    return strcmp(((const counted_word *)a)->text, ((const counted_word *)b)->text);
}

/* Merges equal words. */
static void join_equal(subwords *s) {
    int64_t kept = 0;
    qsort(s->words, (size_t)s->count, sizeof *s->words, compare_words);
    for (int64_t i = 0; i < s->count; i++)
        if (kept > 0 && strcmp(s->words[kept - 1].text, s->words[i].text) == 0) {
            s->words[kept - 1].count += s->words[i].count;
            sh_free(s->words[i].text);
        } else {
            s->words[kept++] = s->words[i];
        }
    s->count = s->joined = kept;
}

bool sh_subwords_add(subwords *s, const char *word) {
    if (s->count - s->joined > 100000) /* mostly duplicates */
        join_equal(s);
    if (!grow(s->context, &s->words, &s->room, s->count + 1, sizeof *s->words))
        return false;
    char *copy = sh_copy_text(s->context, word);
    if (copy)
        s->words[s->count++] = (counted_word){.text = copy, .count = 1};
    return copy != NULL;
}

/* ---- Learning ---------------------------------------------------------------------- */

/* Hash table of pair frequencies with open addressing; 0 if free. */
typedef struct {
    shoal_context *context;
    uint64_t *keys; /* 1 + (first << 32 | second) */
    int64_t *counts;
    size_t size, used; /* size: a power of 2; used: at most half of it */
} pair_table;

static bool count_pair(pair_table *table, uint64_t key, int64_t count) {
    if (2 * (table->used + 1) > table->size) {
        pair_table more = {.context = table->context,
                           .size = table->size ? 2 * table->size : 1 << 12};
        more.keys = sh_allocate_zeros(table->context, more.size, sizeof *more.keys);
        more.counts = sh_allocate_zeros(table->context, more.size, sizeof *more.counts);
        bool good = more.keys && more.counts;
        for (size_t i = 0; good && i < table->size; i++)
            good = !table->keys[i] || count_pair(&more, table->keys[i], table->counts[i]);
        sh_free(good ? table->keys : more.keys);
        sh_free(good ? table->counts : more.counts);
        if (!good)
            return false;
        *table = more;
    }
    size_t at = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (table->size - 1);
    while (table->keys[at] && table->keys[at] != key)
        at = (at + 1) & (table->size - 1);
    table->used += table->keys[at] == 0;
    table->keys[at] = key;
    table->counts[at] += count;
    return true;
}

/* Index of a unit, which is added if it is new; -1 if out of memory. */
static int32_t number_of(subwords *s, const char *text) {
    for (int64_t i = 0; i < s->unit_count; i++)
        if (strcmp(s->units[i], text) == 0)
            return (int32_t)i;
    if (!grow(s->context, &s->units, &s->unit_room, s->unit_count + 1, sizeof *s->units))
        return -1;
    s->units[s->unit_count] = sh_copy_text(s->context, text);
    return s->units[s->unit_count] ? (int32_t)s->unit_count++ : -1;
}

/* All words as letter indices, each terminated by LAST; NULL if out of memory. */
static int32_t *spell_letters(subwords *s) {
    int64_t bytes = 0, at = 0;
    for (int64_t i = 0; i < s->count; i++)
        bytes += (int64_t)strlen(s->words[i].text) + 2;
    int32_t *symbols = sh_allocate(s->context, sizeof *symbols * (size_t)(bytes + 1));
    for (int64_t i = 0; symbols && i < s->count; i++) {
        char letter[8] = "_";
        for (const char *from = s->words[i].text; letter[0];) {
            size_t length = *from ? 1 : 0;
            symbols[at] = number_of(s, letter);
            if (symbols[at++] < 0) {
                sh_free(symbols);
                return NULL;
            }
            while (length > 0 && length < 4 &&
                   ((unsigned char)from[length] & 0xc0) == 0x80)
                length++;
            snprintf(letter, sizeof letter, "%.*s", (int)length, from);
            from += length;
        }
        symbols[at++] = LAST;
    }
    return symbols;
}

/* Adds the most frequent pair as a unit; on ties the first. Returns false if no pair
   occurs twice, or if out of memory (*good). */
static bool join_pair(subwords *s, int32_t *symbols, pair_table *table, bool *good) {
    uint64_t best = 0;
    int64_t most = 1;
    if (table->size)
        memset(table->keys, 0, table->size * sizeof *table->keys);
    if (table->size)
        memset(table->counts, 0, table->size * sizeof *table->counts);
    table->used = 0;
    const int32_t *at = symbols;
    for (int64_t i = 0; i < s->count; i++, at++)
        for (; *at != LAST; at++)
            if (at[1] != LAST &&
                !count_pair(table, 1 + ((uint64_t)at[0] << 32 | (uint32_t)at[1]),
                            s->words[i].count))
                return *good = false;
    for (size_t i = 0; i < table->size; i++) {
        const uint64_t key = table->keys[i];
        if (key &&
            (table->counts[i] > most || (table->counts[i] == most && key < best)) &&
            strlen(s->units[(key - 1) >> 32]) + strlen(s->units[(uint32_t)(key - 1)]) <
                MOST_BYTES) {
            best = key;
            most = table->counts[i];
        }
    }
    if (!best)
        return false;
    const int32_t first = (int32_t)((best - 1) >> 32), second = (int32_t)(best - 1);
    char text[MOST_BYTES];
    snprintf(text, sizeof text, "%s%s", s->units[first], s->units[second]);
    const int32_t made = number_of(s, text);
    if (made < 0)
        return *good = false;
    int32_t *to = symbols;
    at = symbols;
    for (int64_t i = 0; i < s->count; i++) {
        while (*at != LAST) {
            const bool joined = at[0] == first && at[1] == second;
            *to++ = joined ? made : at[0];
            at += joined ? 2 : 1;
        }
        *to++ = *at++;
    }
    return true;
}

bool sh_subwords_learn(subwords *s, int64_t most) {
    pair_table table = {.context = s->context};
    join_equal(s);
    int32_t *symbols = spell_letters(s);
    bool good = symbols != NULL;
    while (good && s->unit_count < most && join_pair(s, symbols, &table, &good))
        ;
    sh_free(table.keys);
    sh_free(table.counts);
    sh_free(symbols);
    return good;
}

/* ---- Spelling ---------------------------------------------------------------------- */

static int compare_units(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int sh_subwords_spell(char *const *units, int64_t count, const char *word,
                      int32_t numbers[SUBWORDS_MOST]) {
    char text[SUBWORDS_MOST + 1], part[SUBWORDS_MOST + 1];
    int fewest[SUBWORDS_MOST + 1], next[SUBWORDS_MOST], number[SUBWORDS_MOST], made = 0;
    const int length = snprintf(text, sizeof text, "_%s", word);
    if (length > SUBWORDS_MOST)
        return 0;
    fewest[length] = 0;
    for (int i = length - 1; i >= 0; i--) {
        fewest[i] = SUBWORDS_MOST + 1;           /* cannot be spelled from here */
        for (int end = length; end > i; end--) { /* on ties the longest first */
            const char *key = part;
            if (fewest[end] + 1 >= fewest[i])
                continue;
            snprintf(part, sizeof part, "%.*s", end - i, text + i);
            char *const *found =
                bsearch(&key, units, (size_t)count, sizeof *units, compare_units);
            if (found) {
                fewest[i] = fewest[end] + 1;
                next[i] = end;
                number[i] = (int)(found - units);
            }
        }
    }
    for (int i = 0; i < length && fewest[0] <= SUBWORDS_MOST; i = next[i])
        numbers[made++] = number[i];
    return made;
}
