/* The prefix tree of a lexicon's pronunciations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "speech/words/grow.h"
#include "speech/words/wordsearch.h"

/* One pronunciation of a word in the tree. */
typedef struct {
    const int32_t *phones;
    int32_t length;
    tree_word word;
} pronunciation;

typedef struct {
    int64_t begin, end; /* range of pronunciations */
    int32_t depth;      /* length of their common prefix */
} tree_range;

typedef struct {
    shoal_context *context;
    pronunciation *rows;
    int64_t count;
    tree_range *ranges; /* [nodes] */
    int64_t node_room, range_room;
} tree_draft;

/* ---- Words ------------------------------------------------------------------------- */

/* Index of a word in the language model, -1 if it has none, -2 if it is not a word. */
static int32_t modelled(const shoal_ngram *ngram, const char *text) {
    const size_t length = strlen(text);
    char other[NGRAM_MOST_LETTERS + 1];
    int32_t word = sh_ngram_find(ngram, text, length);
    for (int upper = 0; upper < 2 && word < 0 && length < sizeof other; upper++) {
        for (size_t i = 0; i <= length; i++) {
            const char c = text[i];
            const bool turn = upper ? c >= 'a' && c <= 'z' : c >= 'A' && c <= 'Z';
            other[i] = turn ? (char)(c ^ 0x20) : c;
        }
        word = sh_ngram_find(ngram, other, length);
    }
    const char *found = word < 0 ? "" : sh_ngram_text(ngram, word);
    const bool mark = word == ngram->begin || word == ngram->end ||
                      strcmp(found, "<unk>") == 0 || strcmp(found, "<UNK>") == 0;
    return word >= 0 && mark ? -2 : word;
}

/* By phones, prefixes first; then by word. */
static int compare(const void *a, const void *b) {
    const pronunciation *x = a, *y = b;
    const int32_t both = x->length < y->length ? x->length : y->length;
    for (int32_t i = 0; i < both; i++)
        if (x->phones[i] != y->phones[i])
            return x->phones[i] < y->phones[i] ? -1 : 1;
    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return (x->word.spelled > y->word.spelled) - (x->word.spelled < y->word.spelled);
}

/* ---- Nodes ------------------------------------------------------------------------- */

static bool add_node(word_tree *tree, tree_draft *draft, tree_range range,
                     int32_t phone) {
    if (!grow(draft->context, &tree->nodes, &draft->node_room, tree->node_count + 1,
              sizeof *tree->nodes) ||
        !grow(draft->context, &draft->ranges, &draft->range_room, tree->node_count + 1,
              sizeof *draft->ranges))
        return false;
    draft->ranges[tree->node_count] = range;
    tree->nodes[tree->node_count++] = (tree_node){.ahead = -INFINITY, .phone = phone};
    return true;
}

static bool grow_tree(const shoal_lexicon *lexicon, const shoal_ngram *ngram,
                      word_tree *tree, tree_draft *draft) {
    const shoal_lexicon_info info = *shoal_lexicon_describe(lexicon);
    const size_t most = (size_t)info.pronunciations + 1;
    tree->hears = sh_allocate_zeros(draft->context, (size_t)info.words + 1, 1);
    draft->rows = sh_allocate(draft->context, sizeof *draft->rows * most);
    tree->words = sh_allocate(draft->context, sizeof *tree->words * most);
    if (!draft->rows || !tree->words || !tree->hears)
        return false;
    for (int64_t i = 0; i < info.words; i++) {
        const int32_t number = modelled(ngram, shoal_lexicon_word(lexicon, i));
        const bool wanted = number >= 0 || (number == -1 && tree->unknown > -INFINITY);
        const int64_t before = draft->count;
        for (int64_t k = 0; k < shoal_lexicon_pronunciations(lexicon, i) && wanted; k++) {
            pronunciation made = {.word = {(int32_t)i, number}};
            made.length =
                (int32_t)shoal_lexicon_pronunciation(lexicon, i, k, &made.phones);
            bool silent = false;
            for (int32_t p = 0; p < made.length; p++)
                silent = silent || made.phones[p] == info.silence;
            if (!silent)
                draft->rows[draft->count++] = made;
        }
        tree->hears[i] = draft->count > before;
        tree->heard += tree->hears[i];
        tree->left_out += !tree->hears[i];
    }
    qsort(draft->rows, (size_t)draft->count, sizeof *draft->rows, compare);
    if (!add_node(tree, draft, (tree_range){0, draft->count, 0}, -1))
        return false;
    for (int32_t i = 0; i < tree->node_count; i++) {
        /* The words that end in a node and its children, from the pronunciations in its
           range. */
        const tree_range own = draft->ranges[i];
        int64_t at = own.begin;
        tree->nodes[i].word = tree->word_count;
        for (; at < own.end && draft->rows[at].length == own.depth; at++)
            tree->words[tree->word_count++] = draft->rows[at].word;
        const int64_t ended = at - own.begin;
        tree->nodes[i].child = tree->node_count;
        while (at < own.end) {
            const int32_t phone = draft->rows[at].phones[own.depth];
            tree_range range = {at, at, own.depth + 1};
            while (range.end < own.end &&
                   draft->rows[range.end].phones[own.depth] == phone)
                range.end++;
            if (!add_node(tree, draft, range, phone))
                return false;
            at = range.end;
        }
        tree->nodes[i].word_count = (int16_t)(ended < INT16_MAX ? ended : INT16_MAX);
        tree->nodes[i].child_count = (int16_t)(tree->node_count - tree->nodes[i].child);
    }
    /* Children come after their parents. */
    for (int32_t i = tree->node_count - 1; i >= 0; i--) {
        tree_node *node = &tree->nodes[i];
        for (int32_t k = 0; k < node->word_count; k++) {
            const int32_t word = tree->words[node->word + k].modelled;
            const float prob = word < 0 ? tree->unknown : ngram->levels[1].probs[word];
            node->ahead = prob > node->ahead ? prob : node->ahead;
        }
        for (int32_t k = 0; k < node->child_count; k++) {
            const float below = tree->nodes[node->child + k].ahead;
            node->ahead = below > node->ahead ? below : node->ahead;
        }
    }
    return true;
}

shoal_status sh_word_tree_make(shoal_context *context, const shoal_lexicon *lexicon,
                               const shoal_ngram *ngram, double unknown,
                               word_tree *tree) {
    tree_draft draft = {.context = context};
    *tree = (word_tree){.unknown = unknown > 0 ? (float)log(unknown) : -INFINITY};
    const bool made = grow_tree(lexicon, ngram, tree, &draft);
    FREE_ALL(draft.rows, draft.ranges);
    if (!made)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the tree");
    if (tree->heard == 0)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "the lexicon has no word of the language model; check that both "
                       "have the same spelling and case");
    return SHOAL_OK;
}

void sh_word_tree_free(word_tree *tree) {
    FREE_ALL(tree->nodes, tree->words, tree->hears);
    *tree = (word_tree){0};
}
