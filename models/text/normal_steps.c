/* The steps of a normaliser, one after another: what is more than a rule for each
   character. */
#include <string.h>

#include "models/text/tokenizer.h"

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

/* ---- Strip and replace ------------------------------------------------------------ */

static bool strip(shoal_context *context, const normal_step *step, const letter *from,
                  int64_t count, letter_list *to) {
    while (step->left && count > 0 && sh_char_is_space(from[0].code)) {
        from++;
        count--;
    }
    while (step->right && count > 0 && sh_char_is_space(from[count - 1].code))
        count--;
    return push_all(context, from, count, to);
}

/* How many letters are replaced that begin here. */
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

static bool replace(shoal_context *context, const normal_step *step, const letter *from,
                    int64_t count, letter_list *to) {
    for (int64_t i = 0; i < count;) {
        const int64_t length = matched(step, from + i, count - i);
        if (!letters_grow(context, to, 1 + step->content.count))
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

enum { CLUSTER_BYTES = 5 }; /* a longer cluster is not looked for as a whole */

/* Letters that a reader sees as one character: how many, and their bytes as far as they
   are few. */
static int64_t cluster(const letter *from, int64_t count) {
    int32_t state = 0;
    int64_t length = 1;
    while (length < count &&
           sh_char_continues(from[length - 1].code, from[length].code, &state))
        length++;
    return length;
}

/* Replaces all `count` letters by what stands for their beginning. The table is asked
   with the whole cluster, but its shortest entry is taken, and the rest of the cluster
   dropped: models were trained so. *done: whether there was an entry. */
static bool map_letters(shoal_context *context, const charsmap *map, const letter *from,
                        int64_t count, letter_list *to, bool *done) {
    char bytes[CLUSTER_BYTES + UTF8_MOST];
    size_t size = 0, found_size = 0;
    *done = false;
    for (int64_t i = 0; i < count && size <= CLUSTER_BYTES; i++)
        size += (size_t)sh_utf8_put(from[i].code, bytes + size);
    const char *found =
        size <= CLUSTER_BYTES ? sh_charsmap_find(map, bytes, size, &found_size) : NULL;
    if (!found)
        return true;
    *done = true;
    if (!letters_grow(context, to, (int64_t)found_size))
        return false;
    for (size_t at = 0; at < found_size;) {
        uint32_t code = 0;
        at += (size_t)sh_utf8_next(found + at, found_size - at, &code);
        to->at[to->count++] = (letter){code, from[0].begin, from[count - 1].end};
    }
    return true;
}

static bool map_text(shoal_context *context, const charsmap *map, const letter *from,
                     int64_t count, letter_list *to) {
    const int64_t first = to->count;
    bool good = true, done;
    for (int64_t i = 0, length; good && i < count; i += length) {
        length = cluster(from + i, count - i);
        good = map_letters(context, map, from + i, length, to, &done);
        for (int64_t j = i; good && !done && j < i + length; j++) {
            bool alone;
            good = map_letters(context, map, from + j, 1, to, &alone) &&
                   (alone || push_all(context, from + j, 1, to));
        }
    }
    /* What was dropped in front counts as the first letter's: a text still begins at its
       beginning. */
    if (good && to->count > first)
        to->at[first].begin = from[0].begin;
    return good;
}

/* ---- All of them ------------------------------------------------------------------ */

static bool take(shoal_context *context, const normal_step *step, const letter *from,
                 int64_t count, letter_list *to) {
    switch (step->kind) {
    case STEP_CHARACTERS:
        return sh_normalize_characters(context, &step->rules, from, count, to);
    case STEP_CHARSMAP: return map_text(context, &step->map, from, count, to);
    case STEP_STRIP: return strip(context, step, from, count, to);
    case STEP_REPLACE: return replace(context, step, from, count, to);
    }
    return false;
}

bool sh_normalize(shoal_context *context, normalizer *n, const letter *from,
                  int64_t count, letter_list *to) {
    if (n->count == 0)
        return push_all(context, from, count, to);
    for (int i = 0; i + 1 < n->count; i++) {
        letter_list *next = &n->between[i % 2];
        next->count = 0;
        if (!take(context, &n->steps[i], from, count, next))
            return false;
        from = next->at;
        count = next->count;
    }
    return take(context, &n->steps[n->count - 1], from, count, to);
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
