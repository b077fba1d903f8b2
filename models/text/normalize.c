/* Normalisation of a text in steps, character by character, keeping the source bytes of
   each character. */
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

/* Sorts the marks of one character, at[0 .. count - 1], by combining class; stable. */
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
    int last = -1; /* combining class of the previous letter since the starter; -1 if
                      none */
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

/* Rules for single letters; there is enough room. */
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

/* Appends `count` letters to `to`, each by the rules. Returns false if out of
   memory. */
static bool normalize_characters(shoal_context *context, const character_rules *rules,
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
    /* Sorts each run of marks from `first` on. */
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
        /* Drops the marks of decomposed letters from `first` on. Each remaining capital
           has a single lower-case letter: the only exception is already decomposed. */
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

/* ---- Steps ------------------------------------------------------------------------- */

bool sh_letters_of(shoal_context *context, const char *text, letter_list *to) {
    const size_t size = strlen(text);
    bool good = letters_grow(context, to, (int64_t)size);
    for (size_t at = 0; good && at < size;) {
        uint32_t code = 0;
        const int bytes = sh_utf8_next(text + at, size - at, &code);
        to->at[to->count++] = (letter){.code = code};
        at += bytes > 0 ? (size_t)bytes : size;
    }
    return good;
}

static bool push_all(shoal_context *context, const letter *from, int64_t count,
                     letter_list *to) {
    if (!letters_grow(context, to, count))
        return false;
    if (count > 0)
        memcpy(to->at + to->count, from, (size_t)count * sizeof *from);
    to->count += count;
    return true;
}

/* ---- Limits on growth ------------------------------------------------------------- */

/* Unicode expands a character to at most eighteen. A file may specify more, repeatedly,
   until no memory is enough. */
enum { GROWTH_MOST = 64, ALWAYS = 4096 };

typedef struct {
    shoal_context *context;
    int64_t most;   /* maximum number of letters of a step's output */
    bool *too_long; /* set if there would be more */
} step_limit;

/* Makes room for letters that replace one or more; first: start of the step's
   output. */
static bool grow(const step_limit *limit, letter_list *to, int64_t first, int64_t more) {
    if (to->count - first + more <= limit->most)
        return letters_grow(limit->context, to, more);
    *limit->too_long = true;
    sh_fail(limit->context, SHOAL_BAD_FILE,
            "the tokenizer's normalizer makes a text more than %d times as long",
            (int)GROWTH_MOST);
    return false;
}

/* ---- Replace ---------------------------------------------------------------------- */

/* Number of letters here that match the pattern. */
static int64_t matched(const normal_step *step, const letter *from, int64_t count) {
    const letter *pattern = step->pattern.at;
    const int64_t length = step->pattern.count;
    int64_t same = 0;
    if (step->least > 0) {
        while (same < count && from[same].code == pattern[0].code)
            same++;
        return same >= step->least ? same : 0;
    }
    while (same < length && same < count && from[same].code == pattern[same].code)
        same++;
    return same == length ? length : 0;
}

static bool replace(const step_limit *limit, const normal_step *step, const letter *from,
                    int64_t count, letter_list *to) {
    const int64_t first = to->count;
    for (int64_t i = 0; i < count;) {
        const int64_t length = matched(step, from + i, count - i);
        if (!grow(limit, to, first, length == 0 ? 1 : step->content.count))
            return false;
        if (length == 0) {
            to->at[to->count++] = from[i++];
            continue;
        }
        for (int64_t j = 0; j < step->content.count; j++)
            to->at[to->count++] = (letter){step->content.at[j].code, from[i].begin,
                                           from[i + length - 1].end};
        i += length;
    }
    return true;
}

/* ---- SentencePiece's table -------------------------------------------------------- */

enum { CLUSTER_BYTES = 5 }; /* longer clusters are not looked up as a whole */

/* Number of letters in the grapheme cluster. */
static int64_t cluster(const letter *from, int64_t count) {
    cluster_state state = {0};
    int64_t length = 1;
    while (length < count &&
           sh_char_continues(from[length - 1].code, from[length].code, &state))
        length++;
    return length;
}

/* The replacement of a cluster, or NULL. The table is queried with the whole cluster,
   but the shortest entry is used and the rest of the cluster dropped, as in the models'
   training. */
static const char *find_letters(const charsmap *map, const letter *from, int64_t count,
                                size_t *found_size) {
    char bytes[CLUSTER_BYTES + UTF8_MOST];
    size_t size = 0;
    for (int64_t i = 0; i < count && size <= CLUSTER_BYTES; i++)
        size += (size_t)sh_utf8_put(from[i].code, bytes + size);
    return size <= CLUSTER_BYTES ? sh_charsmap_find(map, bytes, size, found_size) : NULL;
}

static bool map_text(const step_limit *limit, const charsmap *map, const letter *from,
                     int64_t count, letter_list *to) {
    const int64_t first = to->count;
    int64_t together = 0; /* letters before this index belong to a cluster without an
                             entry */
    for (int64_t i = 0, length; i < count; i += length) {
        size_t size = 0;
        length = i < together ? 1 : cluster(from + i, count - i);
        const char *found = find_letters(map, from + i, length, &size);
        if (!found && length > 1) {
            together = i + length;
            length = 0;
            continue;
        }
        if (!grow(limit, to, first, found ? (int64_t)size : 1))
            return false;
        /* One letter per character of the replacement, or the letter itself. */
        for (size_t at = 0; found && at < size;) {
            uint32_t code = 0;
            at += (size_t)sh_utf8_next(found + at, size - at, &code);
            to->at[to->count++] = (letter){code, from[i].begin, from[i + length - 1].end};
        }
        if (!found)
            to->at[to->count++] = from[i];
    }
    /* Text that was dropped at the start belongs to the first letter, so that offsets
       still begin at 0. */
    if (to->count > first)
        to->at[first].begin = from[0].begin;
    return true;
}

/* ---- All steps -------------------------------------------------------------------- */

static bool take(const step_limit *limit, const normal_step *step, const letter *from,
                 int64_t count, letter_list *to) {
    shoal_context *context = limit->context;
    switch (step->kind) {
    case STEP_CHARACTERS:
        return normalize_characters(context, &step->rules, from, count, to);
    case STEP_CHARSMAP: return map_text(limit, &step->map, from, count, to);
    case STEP_STRIP:
        for (; step->left && count > 0 && sh_char_is_space(from[0].code); from++)
            count--;
        while (step->right && count > 0 && sh_char_is_space(from[count - 1].code))
            count--;
        return push_all(context, from, count, to);
    case STEP_REPLACE: return replace(limit, step, from, count, to);
    }
    return false;
}

bool sh_normalize(shoal_context *context, normalizer *n, const letter *from,
                  int64_t count, letter_list *to) {
    if (n->count == 0)
        return push_all(context, from, count, to);
    const step_limit limit = {context, GROWTH_MOST * count + ALWAYS, &n->too_long};
    n->too_long = false;
    for (int i = 0; i + 1 < n->count; i++) {
        letter_list *next = &n->between[i % 2];
        next->count = 0;
        if (!take(&limit, &n->steps[i], from, count, next))
            return false;
        from = next->at;
        count = next->count;
    }
    return take(&limit, &n->steps[n->count - 1], from, count, to);
}

void sh_normalizer_destroy(shoal_context *context, normalizer *n) {
    for (int i = 0; i < n->count; i++) {
        sh_charsmap_destroy(context, &n->steps[i].map);
        sh_release(context, n->steps[i].pattern.at);
        sh_release(context, n->steps[i].content.at);
    }
    for (int i = 0; i < 2; i++)
        sh_release(context, n->between[i].at);
    *n = (normalizer){0};
}
