/* Conversion of texts to tokens. */
#include "models/text/tokenizer.h"

#include <string.h>

#include "base/numbers.h"

/* Offsets in a text have 32 bits, and each character needs 12 bytes. */
enum { LARGEST_TEXT = 1 << 24 };

bool sh_list_grow(shoal_context *context, void **at, int64_t count, int64_t *room,
                  int64_t more, size_t size) {
    enum { LEAST = 256 };
    if (count + more <= *room)
        return true;
    int64_t wanted = 2 * (count + more);
    wanted = wanted < LEAST ? LEAST : wanted;
    void *grown = sh_allocate(context, (size_t)wanted * size);
    if (!grown)
        return false;
    if (count > 0)
        memcpy(grown, *at, (size_t)count * size);
    sh_release(context, *at);
    *at = grown;
    *room = wanted;
    return true;
}

void shoal_tokenizer_destroy(shoal_tokenizer *t) {
    if (!t)
        return;
    shoal_context *context = t->context;
    sh_vocabulary_destroy(context, &t->words);
    sh_merges_destroy(context, &t->merges);
    sh_trie_destroy(context, &t->pieces);
    sh_normalizer_destroy(context, &t->normal_form);
    void *const blocks[] = {t->added,     t->added_letters.at,
                            t->raw.at,    t->normal.at,
                            t->spaced.at, t->first.at,
                            t->second.at, t->word,
                            t->symbols,   t->heap,
                            t->out,       t->spans,
                            t->scores,    t->ends};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        sh_release(context, blocks[i]);
    sh_release(context, t);
}

int64_t shoal_tokenizer_size(const shoal_tokenizer *t) {
    return t ? (int64_t)t->largest_id + 1 : 0;
}

/* ---- WordPiece -------------------------------------------------------------------- */

enum { WORD_MOST = 1024 }; /* maximum letters of a word for WordPiece */

/* Number of letters of the longest piece that starts at letter `from` of `count`, or 0.
   begin [count + 1]: byte offsets of the letters after the room for the prefix in
   t->word. The prefix is written before each later piece, over bytes that are no longer
   needed. */
static int64_t longest_piece(shoal_tokenizer *t, const size_t *begin, int64_t count,
                             int64_t from, int32_t *id) {
    const size_t lead = from > 0 ? t->prefix_size : 0;
    char *piece = t->word + t->prefix_size + begin[from] - lead;
    if (lead > 0)
        memcpy(piece, t->prefix, lead);
    for (int64_t to = count; to > from; to--) {
        const size_t size = lead + begin[to] - begin[from];
        if (size > t->words.longest)
            continue;
        *id = sh_vocabulary_find(&t->words, piece, size);
        if (*id >= 0)
            return to - from;
    }
    return 0;
}

/* Splits a word into pieces; the whole word is unknown if a piece is missing. */
static bool word_pieces(shoal_tokenizer *t, const letter *letters, int64_t count,
                        token_list *to) {
    size_t begin[WORD_MOST + 1], bytes = 0;
    const int64_t before = to->count;
    const bool whole = count > t->longest_word; /* too long to be split */
    int64_t from = 0;
    for (int64_t i = 0; i < count && !whole; i++) {
        begin[i] = bytes;
        bytes += (size_t)sh_utf8_put(letters[i].code, t->word + t->prefix_size + bytes);
        begin[i + 1] = bytes;
    }
    while (from < count && !whole) {
        int32_t id;
        const int64_t length = longest_piece(t, begin, count, from, &id);
        if (length == 0)
            break;
        if (!tokens_push(t->context, to,
                         (token){id, letters[from].begin,
                                 letters[from + length - 1].end}))
            return false;
        from += length;
    }
    if (from == count)
        return true;
    to->count = before;
    return tokens_push(t->context, to,
                       (token){t->unknown, letters[0].begin, letters[count - 1].end});
}

/* ---- Byte pairs ------------------------------------------------------------------- */

/* Lower ranks first, then further left. */
static bool sooner(const waiting_merge *a, const waiting_merge *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

/* Adds the pair that starts at symbol `at` to the queue, if it can be merged. */
static bool offer_pair(shoal_tokenizer *t, int32_t at) {
    const int32_t next = at >= 0 ? t->symbols[at].next : -1;
    if (next < 0)
        return true;
    const merge *found =
        sh_merges_find(&t->merges, t->symbols[at].id, t->symbols[next].id);
    if (!found)
        return true;
    const waiting_merge one = {found->rank, at, found->id};
    void *heap = t->heap;
    if (!sh_list_grow(t->context, &heap, t->heap_count, &t->heap_room, 1, sizeof one))
        return false;
    t->heap = heap;
    int64_t i = t->heap_count++;
    for (; i > 0 && sooner(&one, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = one;
    return true;
}

static bool merge_symbols(shoal_tokenizer *t, int32_t count) {
    t->heap_count = 0;
    for (int32_t i = 0; i + 1 < count; i++)
        if (!offer_pair(t, i))
            return false;
    while (t->heap_count > 0) {
        const waiting_merge one = t->heap[0], last = t->heap[--t->heap_count];
        int64_t i = 0;
        for (int64_t child; (child = 2 * i + 1) < t->heap_count; i = child) {
            if (child + 1 < t->heap_count && sooner(&t->heap[child + 1], &t->heap[child]))
                child++;
            if (!sooner(&t->heap[child], &last))
                break;
            t->heap[i] = t->heap[child];
        }
        t->heap[i] = last;
        symbol *here = &t->symbols[one.at];
        if (!here->alive || here->next < 0)
            continue;
        /* The pair may have changed since it was queued. */
        const merge *now =
            sh_merges_find(&t->merges, here->id, t->symbols[here->next].id);
        if (!now || now->id != one.id)
            continue;
        symbol *next = &t->symbols[here->next];
        here->id = one.id;
        here->end = next->end;
        here->next = next->next;
        next->alive = false;
        if (here->next >= 0)
            t->symbols[here->next].previous = one.at;
        if (!offer_pair(t, here->previous) || !offer_pair(t, one.at))
            return false;
    }
    return true;
}

/* Converts a word's letters to symbols of bytes; returns their number, or -1 if out of
   memory. */
static int32_t spell_symbols(shoal_tokenizer *t, const letter *letters, int64_t count) {
    void *at = t->symbols;
    if (!sh_list_grow(t->context, &at, 0, &t->symbol_room, count * UTF8_MOST,
                      sizeof(symbol)))
        return -1;
    symbol *symbols = t->symbols = at;
    int32_t made = 0;
    bool unknown = false; /* whether the previous symbol was unknown */
    for (int64_t i = 0; i < count; i++) {
        char bytes[UTF8_MOST];
        const int size = sh_utf8_put(letters[i].code, bytes);
        for (int b = 0; b < size; b++) {
            const int32_t known = t->byte_ids[(unsigned char)bytes[b]];
            const bool joined = known < 0 && unknown && t->join_unknown;
            unknown = known < 0;
            if (joined)
                symbols[made - 1].end = letters[i].end;
            if (joined || (known < 0 && t->unknown < 0))
                continue;
            symbols[made] = (symbol){.id = known < 0 ? t->unknown : known,
                                     .previous = made - 1,
                                     .next = made + 1,
                                     .begin = letters[i].begin,
                                     .end = letters[i].end,
                                     .alive = true};
            made++;
        }
    }
    if (made > 0)
        symbols[made - 1].next = -1;
    return made;
}

/* English contractions of the pattern: 's 't 're 've 'm 'll 'd. */
static int64_t contraction(const letter *letters, int64_t count) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (letters[0].code != '\'')
        return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const int64_t length = (int64_t)strlen(endings[i]);
        int64_t same = 0;
        while (same < length && same + 1 < count &&
               letters[same + 1].code == (unsigned char)endings[i][same])
            same++;
        if (same == length)
            return 1 + length;
    }
    return 0;
}

/* Number of letters of one class from `from` on. */
static int64_t run_of(char_class class, const letter *letters, int64_t from,
                      int64_t count) {
    int64_t to = from;
    while (to < count && sh_char_class(letters[to].code) == class)
        to++;
    return to - from;
}

/* Length of the next word by the pattern of byte-level BPE,
       's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static int64_t next_word(const letter *letters, int64_t count) {
    const int64_t short_form = contraction(letters, count);
    if (short_form > 0)
        return short_form;
    const int64_t space = letters[0].code == ' ' && count > 1;
    const char_class class = sh_char_class(letters[space].code);
    if (class != CHAR_SPACE)
        return space + run_of(class, letters, space, count);
    const int64_t run = run_of(CHAR_SPACE, letters, 0, count);
    return run < count && run > 1 ? run - 1 : run;
}

static bool byte_words(shoal_tokenizer *t, const letter *letters, int64_t count,
                       token_list *to) {
    while (count > 0) {
        const int64_t word = t->split_words ? next_word(letters, count) : count;
        const int32_t symbols = spell_symbols(t, letters, word);
        if (symbols < 0 || !merge_symbols(t, symbols) ||
            !tokens_grow(t->context, to, symbols))
            return false;
        for (const symbol *one = t->symbols; one < t->symbols + symbols; one++)
            if (one->alive)
                to->at[to->count++] = (token){one->id, one->begin, one->end};
        letters += word;
        count -= word;
    }
    return true;
}

/* ---- Added tokens ----------------------------------------------------------------- */

/* The longest added token that is a prefix of the letters, or NULL. */
static const added_token *added_here(const shoal_tokenizer *t, bool normalized,
                                     const letter *letters, int64_t count) {
    if (!t->added_first[letters[0].code % sizeof t->added_first])
        return NULL;
    for (int64_t i = 0; i < t->added_count; i++) {
        const added_token *one = &t->added[i];
        if (one->normalized != normalized || one->length > count)
            continue;
        int64_t same = 0;
        while (same < one->length && one->content[same].code == letters[same].code)
            same++;
        if (same == one->length)
            return one;
    }
    return NULL;
}

typedef bool section_function(shoal_tokenizer *t, const letter *letters, int64_t count,
                              token_list *to);

/* Splits the letters at added tokens, and passes the text between them to `then`. */
static bool cut_added(shoal_tokenizer *t, bool normalized, const letter *letters,
                      int64_t count, section_function *then, token_list *to) {
    int64_t done = 0;
    for (int64_t i = 0; i < count;) {
        const added_token *one = added_here(t, normalized, letters + i, count - i);
        if (!one) {
            i++;
            continue;
        }
        int64_t begin = i, end = i + one->length;
        while (one->lstrip && begin > done && sh_char_is_space(letters[begin - 1].code))
            begin--;
        while (one->rstrip && end < count && sh_char_is_space(letters[end].code))
            end++;
        if ((begin > done && !then(t, letters + done, begin - done, to)) ||
            !tokens_push(t->context, to,
                         (token){one->id, letters[begin].begin, letters[end - 1].end}))
            return false;
        done = end;
        i = end;
    }
    return done == count || then(t, letters + done, count - done, to);
}

/* Prepends a space unless there is one. */
static bool spaced_words(shoal_tokenizer *t, const letter *letters, int64_t count,
                         token_list *to) {
    t->spaced.count = 0;
    if (!letters_grow(t->context, &t->spaced, count + 1))
        return false;
    t->spaced.at[0] = (letter){' ', letters[0].begin, letters[0].begin};
    memcpy(t->spaced.at + 1, letters, (size_t)count * sizeof *letters);
    return byte_words(t, t->spaced.at, count + 1, to);
}

/* Tokenizes normalised text without added tokens. */
static bool words_of(shoal_tokenizer *t, const letter *letters, int64_t count,
                     token_list *to) {
    if (t->model == MODEL_WORDPIECE) {
        /* BERT's words: separated by white space, with punctuation as separate
           words. */
        int64_t begin = 0;
        for (int64_t i = 0; i <= count; i++) {
            const bool space = i == count || sh_char_is_space(letters[i].code);
            const bool alone = !space && sh_char_is_punctuation(letters[i].code);
            if (!space && !alone)
                continue;
            if (i > begin && !word_pieces(t, letters + begin, i - begin, to))
                return false;
            if (alone && !word_pieces(t, letters + i, 1, to))
                return false;
            begin = i + 1;
        }
        return true;
    }
    if (t->model == MODEL_UNIGRAM)
        return sh_unigram_words(t, letters, count, to);
    return (t->prefix_space && letters[0].code != ' '
                ? spaced_words
                : byte_words)(t, letters, count, to);
}

/* Tokenizes raw text without added tokens. */
static bool normalized_words(shoal_tokenizer *t, const letter *letters, int64_t count,
                             token_list *to) {
    t->normal.count = 0;
    if (!sh_normalize(t->context, &t->normal_form, letters, count, &t->normal))
        return false;
    return cut_added(t, true, t->normal.at, t->normal.count, words_of, to);
}

/* ---- One text and pairs ----------------------------------------------------------- */

static shoal_status tokens_of(shoal_tokenizer *t, const char *text, int64_t size,
                              token_list *to) {
    to->count = 0;
    t->raw.count = 0;
    if (size > LARGEST_TEXT)
        return sh_fail(t->context, SHOAL_INVALID,
                       "the text has %lld bytes; the maximum is %d: split it",
                       (long long)size, (int)LARGEST_TEXT);
    if (!letters_grow(t->context, &t->raw, size))
        return SHOAL_NO_MEMORY;
    for (int64_t at = 0; at < size;) {
        uint32_t code;
        const int bytes = sh_utf8_next(text + at, (size_t)(size - at), &code);
        if (bytes == 0)
            return sh_fail(t->context, SHOAL_INVALID,
                           "the text is not UTF-8: byte %lld is invalid", (long long)at);
        t->raw.at[t->raw.count++] = (letter){code, (uint32_t)at, (uint32_t)(at + bytes)};
        at += bytes;
    }
    return cut_added(t, false, t->raw.at, t->raw.count, normalized_words, to)
               ? SHOAL_OK
               : normalizer_status(&t->normal_form);
}

/* Numbers of tokens to keep of two texts so that both together have at most `most`. */
static shoal_status cut_tokens(shoal_tokenizer *t, const shoal_text *text, int64_t most,
                               int64_t kept[2]) {
    const int64_t over = kept[0] + kept[1] - most;
    if (most == 0) {
        kept[0] = kept[1] = 0;
        return SHOAL_OK;
    }
    if (most < 0 || (over > 0 && text->cut == SHOAL_CUT_FIRST && over > kept[0]) ||
        (over > 0 && text->cut == SHOAL_CUT_SECOND && over > kept[1]))
        return sh_fail(
            t->context, SHOAL_INVALID,
            "a maximum of %lld tokens is too small for this text and its special tokens",
            (long long)text->most);
    if (over <= 0)
        return SHOAL_OK;
    if (text->cut == SHOAL_CUT_FIRST || !text->pair) {
        kept[0] -= over;
    } else if (text->cut == SHOAL_CUT_SECOND) {
        kept[1] -= over;
    } else { /* shorten the longer one until both are equal, then both */
        const int longer = kept[0] > kept[1] ? 0 : 1;
        int64_t *small = &kept[1 - longer], *large = &kept[longer];
        *large = max(*small, most - *small);
        if (*small + *large > most) {
            *small = most / 2;
            *large = *small + most % 2;
        }
    }
    return SHOAL_OK;
}

static void write_token(shoal_tokenizer *t, int64_t at, int64_t count, const token *one,
                        int32_t type, int32_t text) {
    t->out[at] = one->id;
    t->out[count + at] = type;
    t->out[2 * count + at] = text;
    t->spans[2 * at] = one->begin;
    t->spans[2 * at + 1] = one->end;
}

shoal_status shoal_tokenizer_encode(shoal_tokenizer *t, const shoal_text *text,
                                    shoal_tokens *tokens) {
    if (!t)
        return SHOAL_INVALID;
    shoal_text own = shoal_text_defaults();
    TRY(READ_STRUCT(t->context, shoal_text, text, &own));
    text = text ? &own : NULL;
    if (!text || !text->text || !tokens)
        return sh_fail(t->context, SHOAL_INVALID,
                       "tokenizer_encode: text or tokens is NULL");
    if (text->most < 0 || text->cut < SHOAL_CUT_LONGEST || text->cut > SHOAL_CUT_SECOND)
        return sh_fail(t->context, SHOAL_INVALID,
                       "tokenizer_encode: most is negative or cut is invalid");
    const int64_t size = text->bytes < 0 ? (int64_t)strlen(text->text) : text->bytes;
    TRY(tokens_of(t, text->text, size, &t->first));
    t->second.count = 0;
    if (text->pair)
        TRY(tokens_of(t, text->pair,
                      text->pair_bytes < 0 ? (int64_t)strlen(text->pair)
                                           : text->pair_bytes,
                      &t->second));
    static const token_template bare = {2, {{0, 0, 0}, {1, 0, 1}}};
    const token_template *around = text->bare   ? &bare
                                   : text->pair ? &t->pair
                                                : &t->single;
    const token_list *const texts[2] = {&t->first, &t->second};
    int64_t kept[2] = {t->first.count, t->second.count}, specials = 0, at = 0;
    const int64_t all = kept[0] + kept[1];
    for (int i = 0; i < around->count; i++)
        specials += around->parts[i].text < 0;
    if (text->most > 0)
        TRY(cut_tokens(t, text, text->most - specials, kept));
    const int64_t count = specials + kept[0] + kept[1];
    void *out = t->out, *spans = t->spans;
    const bool grown =
        sh_list_grow(t->context, &out, 0, &t->out_room, 3 * count, sizeof *t->out) &&
        sh_list_grow(t->context, &spans, 0, &t->span_room, 2 * count, sizeof *t->spans);
    t->out = out;
    t->spans = spans;
    if (!grown)
        return SHOAL_NO_MEMORY;
    for (int i = 0; i < around->count; i++) {
        const int32_t from = around->parts[i].text, type = around->parts[i].type;
        if (from < 0)
            write_token(t, at++, count, &(token){around->parts[i].id, 0, 0}, type, -1);
        for (int64_t j = 0; from >= 0 && j < kept[from]; j++)
            write_token(t, at++, count, &texts[from]->at[j], type, from);
    }
    *tokens = (shoal_tokens){.count = count,
                             .ids = t->out,
                             .types = t->out + count,
                             .texts = t->out + 2 * count,
                             .spans = t->spans,
                             .left_out = all - kept[0] - kept[1]};
    return SHOAL_OK;
}
