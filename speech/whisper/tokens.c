#include "speech/whisper/tokens.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* ---- Layout ----------------------------------------------------------------------- */

bool sh_tokens_layout(int32_t count, tokens *t) {
    enum { ENGLISH = 51864, ENGLISH_TEXT = 50256, SPECIALS_AFTER_LANGUAGES = 6 };
    *t = (tokens){.count = count};
    if (count < ENGLISH || count > ENGLISH + 2)
        return false;
    t->multilingual = count > ENGLISH;
    t->end_of_text = ENGLISH_TEXT + t->multilingual;
    t->start = t->end_of_text + 1;
    t->first_language = t->start + 1;
    t->first_timestamp = count - TIMESTAMP_COUNT;
    t->translate = t->first_timestamp - SPECIALS_AFTER_LANGUAGES;
    t->languages = t->translate - t->first_language;
    t->transcribe = t->translate + 1;
    t->start_lm = t->translate + 2;
    t->previous = t->translate + 3;
    t->no_speech = t->translate + 4;
    t->no_timestamps = t->translate + 5;
    return true;
}

/* ---- Bytes to ids ----------------------------------------------------------------- */

static size_t length_of(const tokens *t, int32_t id) {
    return t->begin[id + 1] - t->begin[id];
}

static int compare_bytes(const void *a, size_t a_size, const void *b, size_t b_size) {
    size_t common = a_size < b_size ? a_size : b_size;
    int order = common ? memcmp(a, b, common) : 0;
    return order ? order : (a_size > b_size) - (a_size < b_size);
}

static int compare_ids(const tokens *t, int32_t a, int32_t b) {
    int order = compare_bytes(t->bytes + t->begin[a], length_of(t, a),
                              t->bytes + t->begin[b], length_of(t, b));
    return order ? order : (a > b) - (a < b);
}

static void sift_down(const tokens *t, int32_t *heap, int32_t from, int32_t count) {
    for (int32_t child; (child = 2 * from + 1) < count; from = child) {
        if (child + 1 < count && compare_ids(t, heap[child], heap[child + 1]) < 0)
            child++;
        if (compare_ids(t, heap[from], heap[child]) >= 0)
            return;
        int32_t moved = heap[from];
        heap[from] = heap[child];
        heap[child] = moved;
    }
}

/* Heap sort: qsort has no place for the tokens that its comparison needs. */
void sh_tokens_index(const tokens *t, int32_t *by_bytes) {
    int32_t count = t->end_of_text;
    for (int32_t i = 0; i < count; i++)
        by_bytes[i] = i;
    for (int32_t i = count / 2; i-- > 0;)
        sift_down(t, by_bytes, i, count);
    for (int32_t last = count - 1; last > 0; last--) {
        int32_t largest = by_bytes[0];
        by_bytes[0] = by_bytes[last];
        by_bytes[last] = largest;
        sift_down(t, by_bytes, 0, last);
    }
}

int32_t sh_tokens_find(const tokens *t, const void *bytes, size_t size) {
    int32_t low = 0, high = t->end_of_text;
    while (low < high) {
        int32_t middle = low + (high - low) / 2, id = t->by_bytes[middle];
        if (compare_bytes(t->bytes + t->begin[id], length_of(t, id), bytes, size) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (size == 0 || low == t->end_of_text)
        return -1;
    int32_t id = t->by_bytes[low];
    return compare_bytes(t->bytes + t->begin[id], length_of(t, id), bytes, size) ? -1
                                                                                 : id;
}

/* Neighbours are merged whose union has the lowest id, until no union is a token: the
   order of ids is the order in which merges were learnt. */
int32_t sh_tokens_encode_piece(const tokens *t, const void *bytes, size_t size,
                               int32_t *ids, int32_t most) {
    enum { LONGEST = 64 };
    const unsigned char *piece = bytes;
    size_t begin[LONGEST + 1], parts = size;
    if (size > LONGEST)
        return -1;
    for (size_t i = 0; i <= size; i++)
        begin[i] = i;
    while (parts > 1) {
        int32_t best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 2 <= parts; i++) {
            int32_t id = sh_tokens_find(t, piece + begin[i], begin[i + 2] - begin[i]);
            if (id >= 0 && (best < 0 || id < best)) {
                best = id;
                at = i;
            }
        }
        if (best < 0)
            break;
        memmove(begin + at + 1, begin + at + 2, (parts - at - 1) * sizeof *begin);
        parts--;
    }
    for (size_t i = 0; i < parts; i++) {
        int32_t id = sh_tokens_find(t, piece + begin[i], begin[i + 1] - begin[i]);
        if (id < 0)
            return -1;
        if ((int32_t)i < most)
            ids[i] = id;
    }
    return (int32_t)parts;
}

typedef enum { LETTER, DIGIT, BLANK, MARK } byte_class;

/* Bytes of other scripts count as letters. */
static byte_class class_of(char byte) {
    const unsigned char c = (unsigned char)byte;
    if (c >= 0x80 || isalpha(c))
        return LETTER;
    return isdigit(c) ? DIGIT : isspace(c) ? BLANK : MARK;
}

/* Bytes of 's, 't, 're, 've, 'm, 'll or 'd at the beginning of a text. */
static size_t contraction(const char *text) {
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strncmp(text, endings[i], strlen(endings[i])) == 0)
            return strlen(endings[i]);
    return 0;
}

/* Bytes of the first piece, 64 at most: a contraction, or a space and what is of one
   class. */
static size_t piece_length(const char *text) {
    const size_t space = text[0] == ' ' && text[1] && class_of(text[1]) != BLANK;
    size_t length = space + 1;
    if (contraction(text))
        return contraction(text);
    while (length < 64 && text[length] &&
           class_of(text[length]) == class_of(text[space]) && !contraction(text + length))
        length++;
    return length;
}

int32_t sh_tokens_encode(const tokens *t, const char *text, int32_t *ids, int32_t most) {
    int32_t made = 0;
    while (*text) {
        const size_t length = piece_length(text);
        const int32_t room = made < most ? most - made : 0;
        const int32_t count = sh_tokens_encode_piece(t, text, length, ids + made, room);
        made += count > 0 ? count : 0;
        if (made > most)
            return most;
        text += length;
    }
    return made;
}

/* ---- Suppressed tokens ------------------------------------------------------------ */

static void suppress(tokens *t, int32_t id) {
    int32_t at = 0;
    while (at < t->suppress_count && t->suppress[at] < id)
        at++;
    bool present = at < t->suppress_count && t->suppress[at] == id;
    if (present || t->suppress_count == TOKEN_SUPPRESS_MOST)
        return;
    memmove(t->suppress + at + 1, t->suppress + at,
            (size_t)(t->suppress_count - at) * sizeof *t->suppress);
    t->suppress[at] = id;
    t->suppress_count++;
}

static void suppress_specials(tokens *t) {
    const int32_t specials[] = {t->start,    t->translate, t->transcribe,
                                t->start_lm, t->previous,  t->no_speech};
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        suppress(t, specials[i]);
}

static void suppress_blank(tokens *t) {
    int32_t blank = sh_tokens_find(t, " ", 1);
    t->suppress_first_count = 0;
    if (blank >= 0)
        t->suppress_first[t->suppress_first_count++] = blank;
    t->suppress_first[t->suppress_first_count++] = t->end_of_text;
}

/* A symbol alone and after a space. One that needs several tokens is left out, unless its
   first token serves nothing else (`first`), as it is for notes of music. */
static void suppress_symbol(tokens *t, const char *symbol, bool first) {
    char piece[16] = " ";
    int32_t id;
    strcat(piece, symbol);
    for (int spaces = 0; spaces <= 1; spaces++) {
        const char *text = piece + 1 - spaces;
        int32_t count = sh_tokens_encode_piece(t, text, strlen(text), &id, 1);
        if (count == 1 || (first && count > 1))
            suppress(t, id);
    }
}

void sh_tokens_find_suppressed(tokens *t) {
    static const char *const symbols[] = {
        "\"",  "#",  "(",  ")",   "*",   "+",   "/",   ":",  ";",   "<",  "=",   ">",
        "@",   "[",  "\\", "]",   "^",   "_",   "`",   "{",  "|",   "}",  "~",   "「",
        "」",  "『", "』", "<<",  ">>",  "<<<", ">>>", "--", "---", "-(", "-[",  "('",
        "(\"", "((", "))", "(((", ")))", "[[",  "]]",  "{{", "}}",  "♪♪", "♪♪♪",
    };
    static const char *const music[] = {"♩", "♪", "♫", "♬", "♭", "♮", "♯"};
    int32_t id;
    t->suppress_count = 0;
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        suppress_symbol(t, symbols[i], false);
    for (size_t i = 0; i < sizeof music / sizeof *music; i++)
        suppress_symbol(t, music[i], true);
    if (sh_tokens_encode_piece(t, " -", 2, &id, 1) > 0)
        suppress(t, id);
    if (sh_tokens_encode_piece(t, " '", 2, &id, 1) > 0)
        suppress(t, id);
    suppress_specials(t);
    suppress_blank(t);
}

bool sh_tokens_set_suppressed_first(tokens *t, const int32_t *ids, int64_t count) {
    if (count > TOKEN_FIRST_MOST)
        return false;
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= t->count)
            return false;
        t->suppress_first[i] = ids[i];
    }
    t->suppress_first_count = (int32_t)count;
    return true;
}

bool sh_tokens_set_suppressed(tokens *t, const int32_t *ids, int64_t count) {
    enum { ROOM_FOR_SPECIALS = 8 };
    if (count > TOKEN_SUPPRESS_MOST - ROOM_FOR_SPECIALS)
        return false;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= t->count)
            return false;
    t->suppress_count = 0;
    for (int64_t i = 0; i < count; i++)
        suppress(t, ids[i]);
    suppress_specials(t);
    return true;
}

/* ---- UTF-8 ------------------------------------------------------------------------ */

/* Bytes of the character that a first byte announces; 0 for none. */
static size_t announced(unsigned char first) {
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* May `byte` stand at `position` >= 1 after `first`? The second byte's range leaves out
   long spellings, surrogates and what lies beyond U+10FFFF. */
static bool continues(unsigned char first, size_t position, unsigned char byte) {
    unsigned char low = 0x80, high = 0xbf;
    if (position == 1) {
        low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : low;
        high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : high;
    }
    return byte >= low && byte <= high;
}

/* How many bytes at the beginning are one character, whole or cut by the end: 0 when they
   are neither; *whole says which. */
static size_t character(const unsigned char *bytes, size_t size, bool *whole) {
    size_t length = announced(bytes[0]);
    size_t there = length < size ? length : size;
    for (size_t i = 1; i < there; i++)
        if (!continues(bytes[0], i, bytes[i]))
            return 0;
    *whole = there == length;
    return there;
}

size_t sh_utf8_unfinished(const char *text, size_t size) {
    bool whole = true;
    for (size_t back = 1; back <= 3 && back <= size; back++)
        if (character((const unsigned char *)text + size - back, back, &whole) == back &&
            !whole)
            return back;
    return 0;
}

/* ---- Ids to text ------------------------------------------------------------------ */

/* A character arrives byte by byte; what turns out to be none becomes U+FFFD. */
typedef struct {
    char *text;
    size_t size, length;
    char held[4]; /* the beginning of a character */
    size_t held_count;
} utf8_writer;

static void put_bytes(utf8_writer *out, const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++, out->length++)
        if (out->length < out->size)
            out->text[out->length] = bytes[i];
}

static void put_byte(utf8_writer *out, char byte) {
    out->held[out->held_count++] = byte;
    while (out->held_count > 0) {
        bool whole = false;
        if (character((unsigned char *)out->held, out->held_count, &whole) == 0) {
            put_bytes(out, "\xef\xbf\xbd", 3);
            memmove(out->held, out->held + 1, --out->held_count);
            continue;
        }
        if (!whole)
            return;
        put_bytes(out, out->held, out->held_count);
        out->held_count = 0;
    }
}

size_t sh_tokens_decode(const tokens *t, const int32_t *ids, int64_t count, char *text,
                        size_t size) {
    utf8_writer out = {.text = text, .size = size};
    for (int64_t i = 0; i < count; i++) {
        if (!token_is_text(t, ids[i]))
            continue;
        for (uint32_t b = t->begin[ids[i]]; b < t->begin[ids[i] + 1]; b++)
            put_byte(&out, (char)t->bytes[b]);
    }
    for (size_t i = 0; i < out.held_count; i++)
        put_bytes(&out, "\xef\xbf\xbd", 3);
    if (size > 0)
        text[out.length < size ? out.length : size - 1] = 0;
    return out.length;
}

/* ---- Languages --------------------------------------------------------------------- */

/* In the order of their tokens. */
static const struct {
    const char *code, *name;
} languages[LANGUAGE_COUNT] = {
    {"en", "english"},     {"zh", "chinese"},    {"de", "german"},
    {"es", "spanish"},     {"ru", "russian"},    {"ko", "korean"},
    {"fr", "french"},      {"ja", "japanese"},   {"pt", "portuguese"},
    {"tr", "turkish"},     {"pl", "polish"},     {"ca", "catalan"},
    {"nl", "dutch"},       {"ar", "arabic"},     {"sv", "swedish"},
    {"it", "italian"},     {"id", "indonesian"}, {"hi", "hindi"},
    {"fi", "finnish"},     {"vi", "vietnamese"}, {"he", "hebrew"},
    {"uk", "ukrainian"},   {"el", "greek"},      {"ms", "malay"},
    {"cs", "czech"},       {"ro", "romanian"},   {"da", "danish"},
    {"hu", "hungarian"},   {"ta", "tamil"},      {"no", "norwegian"},
    {"th", "thai"},        {"ur", "urdu"},       {"hr", "croatian"},
    {"bg", "bulgarian"},   {"lt", "lithuanian"}, {"la", "latin"},
    {"mi", "maori"},       {"ml", "malayalam"},  {"cy", "welsh"},
    {"sk", "slovak"},      {"te", "telugu"},     {"fa", "persian"},
    {"lv", "latvian"},     {"bn", "bengali"},    {"sr", "serbian"},
    {"az", "azerbaijani"}, {"sl", "slovenian"},  {"kn", "kannada"},
    {"et", "estonian"},    {"mk", "macedonian"}, {"br", "breton"},
    {"eu", "basque"},      {"is", "icelandic"},  {"hy", "armenian"},
    {"ne", "nepali"},      {"mn", "mongolian"},  {"bs", "bosnian"},
    {"kk", "kazakh"},      {"sq", "albanian"},   {"sw", "swahili"},
    {"gl", "galician"},    {"mr", "marathi"},    {"pa", "punjabi"},
    {"si", "sinhala"},     {"km", "khmer"},      {"sn", "shona"},
    {"yo", "yoruba"},      {"so", "somali"},     {"af", "afrikaans"},
    {"oc", "occitan"},     {"ka", "georgian"},   {"be", "belarusian"},
    {"tg", "tajik"},       {"sd", "sindhi"},     {"gu", "gujarati"},
    {"am", "amharic"},     {"yi", "yiddish"},    {"lo", "lao"},
    {"uz", "uzbek"},       {"fo", "faroese"},    {"ht", "haitian creole"},
    {"ps", "pashto"},      {"tk", "turkmen"},    {"nn", "nynorsk"},
    {"mt", "maltese"},     {"sa", "sanskrit"},   {"lb", "luxembourgish"},
    {"my", "myanmar"},     {"bo", "tibetan"},    {"tl", "tagalog"},
    {"mg", "malagasy"},    {"as", "assamese"},   {"tt", "tatar"},
    {"haw", "hawaiian"},   {"ln", "lingala"},    {"ha", "hausa"},
    {"ba", "bashkir"},     {"jw", "javanese"},   {"su", "sundanese"},
    {"yue", "cantonese"},
};

const char *sh_language_code(int32_t index) {
    return index >= 0 && index < LANGUAGE_COUNT ? languages[index].code : NULL;
}

const char *sh_language_name(int32_t index) {
    return index >= 0 && index < LANGUAGE_COUNT ? languages[index].name : NULL;
}

int32_t sh_language_find(const char *text) {
    for (int32_t i = 0; i < LANGUAGE_COUNT; i++)
        if (strcasecmp(text, languages[i].code) == 0 ||
            strcasecmp(text, languages[i].name) == 0)
            return i;
    return -1;
}
