/* Normalisation of a text, character by character, with the bytes that each came from. */
#include <stdlib.h>
#include <string.h>

#include "models/text/tokenizer.h"

/* ---- Canonical forms -------------------------------------------------------------- */

typedef struct {
    letter of;
    int class;
    int64_t place;
} ordered_mark;

static int by_class(const void *a, const void *b) {
    const ordered_mark *left = a, *right = b;
    if (left->class != right->class)
        return left->class < right->class ? -1 : 1;
    return left->place < right->place ? -1 : 1;
}

/* Marks of one character, at[0 .. count - 1], by their classes; equals keep their
   order. */
static bool order_marks(shoal_context *context, letter *at, int64_t count) {
    bool sorted = true;
    for (int64_t i = 1; i < count; i++)
        sorted &= sh_char_combining(at[i - 1].code) <= sh_char_combining(at[i].code);
    if (sorted)
        return true;
    ordered_mark *marks = sh_allocate(context, (size_t)count * sizeof *marks);
    if (!marks)
        return false;
    for (int64_t i = 0; i < count; i++)
        marks[i] = (ordered_mark){at[i], sh_char_combining(at[i].code), i};
    qsort(marks, (size_t)count, sizeof *marks, by_class);
    for (int64_t i = 0; i < count; i++)
        at[i] = marks[i].of;
    sh_release(context, marks);
    return true;
}

/* NFC of decomposed letters from `first` on, in place. */
static void compose(letter_list *list, int64_t first) {
    letter *at = list->at;
    int64_t kept = first, starter = -1;
    int last = -1; /* class of the letter before, since the starter; -1: none between */
    for (int64_t i = first; i < list->count; i++) {
        const int class = sh_char_combining(at[i].code);
        uint32_t both = 0;
        if (starter >= 0 && (last < class || last == -1))
            both = sh_char_compose(at[starter].code, at[i].code);
        if (both) {
            at[starter].code = both;
            at[starter].end = at[i].end > at[starter].end ? at[i].end : at[starter].end;
            continue;
        }
        if (class == 0) {
            starter = kept;
            last = -1;
        } else {
            last = class;
        }
        at[kept++] = at[i];
    }
    list->count = kept;
}

/* ---- A text ----------------------------------------------------------------------- */

static void push(letter_list *to, uint32_t code, const letter *from) {
    to->at[to->count++] = (letter){code, from->begin, from->end};
}

/* All that is done to a letter alone; there is room. */
static void push_normal(const character_rules *rules, letter_list *to,
                        const letter *from) {
    uint32_t code = from->code;
    if (rules->clean && sh_char_is_control(code))
        return;
    if (rules->clean && sh_char_is_space(code))
        code = ' ';
    const bool apart = rules->ideographs && sh_char_is_ideograph(code);
    if (apart)
        push(to, ' ', from);
    if (rules->strip_accents || rules->decompose) {
        uint32_t parts[DECOMPOSED_MOST];
        const int count = (rules->compatible ? sh_char_decompose_compatible
                                             : sh_char_decompose)(code, parts);
        for (int i = 0; i < count; i++)
            push(to, parts[i], from);
    } else if (rules->lower) {
        uint32_t parts[LOWER_MOST];
        const int count = sh_char_lower(code, parts);
        for (int i = 0; i < count; i++)
            push(to, parts[i], from);
    } else
        push(to, code, from);
    if (apart)
        push(to, ' ', from);
}

bool sh_normalize_characters(shoal_context *context, const character_rules *rules,
                             const letter *from, int64_t count, letter_list *to) {
    enum { MOST_FROM_ONE = DECOMPOSED_MOST + 2, PIECE = 64 };
    const int64_t first = to->count;
    for (int64_t i = 0; i < count; i++) {
        if (i % PIECE == 0 && !letters_grow(context, to, PIECE * MOST_FROM_ONE))
            return false;
        push_normal(rules, to, &from[i]);
    }
    if (!rules->strip_accents && !rules->decompose)
        return true;
    /* The letters from `first` on, each run of marks in order. */
    int64_t run = first;
    for (int64_t i = first; i <= to->count; i++)
        if (i == to->count || sh_char_combining(to->at[i].code) == 0) {
            if (i - run > 1 && !order_marks(context, to->at + run, i - run))
                return false;
            run = i + 1;
        }
    if (rules->compose)
        compose(to, first);
    if (rules->strip_accents) {
        /* Drops the marks of decomposed letters from `first` on. What is left is one
           small letter for each capital: the one that has two is decomposed by now. */
        uint32_t lower[LOWER_MOST];
        int64_t kept = first;
        for (int64_t i = first; i < to->count; i++) {
            letter one = to->at[i];
            if (sh_char_is_mark(one.code))
                continue;
            if (rules->lower && sh_char_lower(one.code, lower) == 1)
                one.code = lower[0];
            to->at[kept++] = one;
        }
        to->count = kept;
    }
    return true;
}
