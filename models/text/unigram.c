/* Unigram: splits a word into the pieces with the largest sum of scores. */
#include <string.h>

#include "models/text/tokenizer.h"

static const uint32_t nowhere = UINT32_MAX;

/* ---- Viterbi search --------------------------------------------------------------- */

/* Keeps the better path to an end; on ties the first. */
static void offer(piece_end *end, double score, int32_t id, uint32_t from) {
    if (end->from == nowhere || score > end->score) {
        end->score = score;
        end->id = id;
        end->from = from;
    }
}

/* ---- Ids -------------------------------------------------------------------------- */

/* Adds letters `from` to `to` as one token. */
static bool push(shoal_tokenizer *t, const letter *letters, uint32_t from, uint32_t to,
                 int32_t id, token_list *out) {
    return tokens_push(t->context, out,
                       (token){id, letters[from].begin, letters[to - 1].end});
}

/* Unknown letters: a piece if they are one together; otherwise their bytes, if each has
   a token; otherwise unknown. */
static bool push_unknown(shoal_tokenizer *t, const letter *letters, uint32_t from,
                         uint32_t to, token_list *out) {
    const char *bytes = t->word + t->ends[from].byte;
    const size_t size = t->ends[to].byte - t->ends[from].byte;
    const int32_t known = sh_vocabulary_find(&t->words, bytes, size);
    bool spelled = t->byte_fallback && known < 0;
    for (size_t i = 0; i < size && spelled; i++)
        spelled = t->byte_ids[(unsigned char)bytes[i]] >= 0;
    if (!spelled)
        return push(t, letters, from, to, known < 0 ? t->unknown : known, out);
    for (size_t i = 0; i < size; i++)
        if (!push(t, letters, from, to, t->byte_ids[(unsigned char)bytes[i]], out))
            return false;
    return true;
}

static bool best_pieces(shoal_tokenizer *t, const letter *letters, int64_t length,
                        token_list *out) {
    const uint32_t count = (uint32_t)length;
    /* The word's bytes, and the end of each letter in them. */
    void *word = t->word, *ends = t->ends;
    const bool grown =
        sh_list_grow(t->context, &word, 0, &t->word_room, UTF8_MOST * length, 1) &&
        sh_list_grow(t->context, &ends, 0, &t->end_room, length + 1, sizeof *t->ends);
    t->word = word;
    t->ends = ends;
    if (!grown)
        return false;
    uint32_t end = 0;
    t->ends[0] = (piece_end){.from = 0};
    for (int64_t i = 0; i < length; i++) {
        end += (uint32_t)sh_utf8_put(letters[i].code, t->word + end);
        t->ends[i + 1] = (piece_end){.from = nowhere, .byte = end};
    }
    for (uint32_t i = 0; i < count; i++) {
        /* Every piece that begins at a letter. A letter that is not a piece is
           unknown. */
        const piece_end *here = &t->ends[i];
        const size_t size = t->ends[count].byte - here->byte;
        const char *bytes = t->word + here->byte;
        bool alone = false;
        uint32_t node = 0, to = i;
        for (size_t at = 0; at < size; at++) {
            node = sh_trie_next(&t->pieces, node, (unsigned char)bytes[at]);
            if (node == 0)
                break;
            to += here->byte + at + 1 == t->ends[to + 1].byte;
            const int32_t id = t->pieces.nodes[node].id;
            if (id >= 0) {
                offer(&t->ends[to], here->score + t->scores[id], id, i);
                alone |= to == i + 1;
            }
        }
        if (!alone)
            offer(&t->ends[i + 1], here->score + t->unknown_score, t->unknown, i);
    }
    /* Reverses the best path, which is linked from end to start. */
    for (uint32_t at = count; at > 0; at = t->ends[at].from)
        t->ends[t->ends[at].from].onwards = at;
    bool good = true;
    for (uint32_t from = 0, to; good && from < count; from = to) {
        to = t->ends[from].onwards;
        const int32_t id = t->ends[to].id;
        while (id == t->unknown && to < count &&
               t->ends[t->ends[to].onwards].id == t->unknown)
            to = t->ends[to].onwards;
        good = id == t->unknown ? push_unknown(t, letters, from, to, out)
                                : push(t, letters, from, to, id, out);
    }
    return good;
}

/* ---- Words ------------------------------------------------------------------------ */

/* Replaces spaces by marks and prepends one. */
static bool put_marks(shoal_tokenizer *t, const letter *letters, int64_t count) {
    letter_list *to = &t->spaced;
    const bool wanted = t->prepend == PREPEND_ALWAYS ||
                        (t->prepend == PREPEND_FIRST && letters[0].begin == 0);
    to->count = 0;
    if (!letters_grow(t->context, to, count + 1))
        return false;
    if (wanted && letters[0].code != ' ' && letters[0].code != t->mark)
        to->at[to->count++] = (letter){t->mark, letters[0].begin, letters[0].begin};
    for (int64_t i = 0; i < count; i++) {
        to->at[to->count] = letters[i];
        if (letters[i].code == ' ')
            to->at[to->count].code = t->mark;
        to->count++;
    }
    return true;
}

static bool marked_words(shoal_tokenizer *t, const letter *letters, int64_t count,
                         token_list *out) {
    if (t->mark == 0)
        return best_pieces(t, letters, count, out);
    if (!put_marks(t, letters, count))
        return false;
    const letter *at = t->spaced.at;
    int64_t begin = 0;
    for (int64_t i = 1; i <= t->spaced.count; i++) {
        if (i < t->spaced.count && !(t->split_marks && at[i].code == t->mark))
            continue;
        if (!best_pieces(t, at + begin, i - begin, out))
            return false;
        begin = i;
    }
    return true;
}

bool sh_unigram_words(shoal_tokenizer *t, const letter *letters, int64_t count,
                      token_list *to) {
    if (!t->split_white)
        return marked_words(t, letters, count, to);
    int64_t begin = 0;
    for (int64_t i = 0; i <= count; i++) {
        if (i < count && !sh_char_is_space(letters[i].code))
            continue;
        if (i > begin && !marked_words(t, letters + begin, i - begin, to))
            return false;
        begin = i + 1;
    }
    return true;
}
