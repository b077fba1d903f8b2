/* Lexicons: lines of a word and its phones, in the format of Kaldi and CMUdict. */
#define _GNU_SOURCE
#include "speech/words/lexicon.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plain.h"
#include "models/files/files.h"
#include "models/text/unicode.h"
#include "speech/words/grow.h"

typedef struct {
    const char *text;
    size_t length;
} field;

typedef struct {
    size_t word;              /* offset in the text */
    int64_t order;            /* index among the lines of all files */
    int64_t phone, phone_end; /* range in `phones` */
} entry;

enum { SLOTS = 2 * LEXICON_PHONES };

struct lexicon_draft {
    shoal_context *context;
    bool keep_stress, given; /* given: the set of phones is fixed */
    char silence[LEXICON_PHONE];
    char *text;
    size_t text_size;
    int64_t text_room;
    entry *entries;
    int64_t entry_count, entry_room;
    int32_t *phones; /* of all entries */
    int64_t phone_size, phone_room;
    char (*names)[LEXICON_PHONE]; /* [LEXICON_PHONES], in order of first use */
    int32_t name_count;
    int32_t slots[SLOTS]; /* 0 if free; otherwise the number of a name, from 1 */
    /* The current file: */
    const char *file;
    int64_t line;
    bool probabilities;
};

static shoal_status no_memory(shoal_context *context) {
    return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for the lexicon");
}

/* ---- Lines and fields -------------------------------------------------------------- */

static bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* The next field of the line at *at; length 0 if there is none. A '#' after the word
   begins a comment. */
static field next_field(const char **at, const char *end, bool first) {
    while (*at < end && is_space(**at))
        ++*at;
    field found = {*at, 0};
    if (!first && *at < end && **at == '#') {
        *at = end;
        return found;
    }
    while (*at < end && !is_space(**at))
        ++*at;
    found.length = (size_t)(*at - found.text);
    return found;
}

static bool is_comment(const char *at, const char *end) {
    return end - at >= 3 ? memcmp(at, ";;;", 3) == 0 || memcmp(at, "##", 2) == 0
                         : end - at == 2 && memcmp(at, "##", 2) == 0;
}

/* The end of the line at `at`; beyond the limit if the line is too long. */
static const char *line_end(const char *at, const char *end) {
    const char *last = end - at > LEXICON_LINE ? at + LEXICON_LINE + 1 : end;
    const char *found = memchr(at, '\n', (size_t)(last - at));
    return found ? found : last;
}

/* A number above 0, up to 1. *plain: it could also be a name. */
static bool is_probability(field f, bool *plain) {
    char text[32];
    double value;
    if (f.length == 0 || f.length >= sizeof text || !strchr("0123456789.", f.text[0]))
        return false;
    memcpy(text, f.text, f.length);
    text[f.length] = 0;
    *plain = !strpbrk(text, ".eE");
    return strlen(text) == f.length && sh_read_c(text, &value) && value > 0 && value <= 1;
}

static shoal_status refuse(const lexicon_draft *draft, const char *what, field f) {
    char text[LEXICON_PHONE + 8];
    snprintf(text, sizeof text, "%.*s", (int)(f.length < 70 ? f.length : 70),
             f.length ? f.text : "");
    return sh_fail(draft->context, SHOAL_BAD_FILE, "%s: line %lld: %s%s",
                   sh_shown(draft->file).text, (long long)draft->line,
                   f.length ? sh_shown(text).text : "", what);
}

/* ---- Phones ------------------------------------------------------------------------ */

/* The slot of a name, or the free slot for it. */
static int32_t *slot_of(lexicon_draft *draft, const char *name, size_t length) {
    uint64_t sum = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        sum = (sum ^ (unsigned char)name[i]) * 1099511628211u;
    for (uint64_t i = sum ^ (sum >> 29);; i++) {
        int32_t *slot = &draft->slots[i % SLOTS];
        if (*slot == 0 || (strncmp(draft->names[*slot - 1], name, length) == 0 &&
                           draft->names[*slot - 1][length] == 0))
            return slot;
    }
}

/* The number of a name, which is added if it is new; -1 if there are too many. */
static int32_t name_number(lexicon_draft *draft, const char *name, size_t length) {
    int32_t *slot = slot_of(draft, name, length);
    if (*slot == 0) {
        if (draft->name_count == LEXICON_PHONES)
            return -1;
        memcpy(draft->names[draft->name_count], name, length);
        draft->names[draft->name_count][length] = 0;
        *slot = ++draft->name_count;
    }
    return *slot - 1;
}

static shoal_status add_phone(lexicon_draft *draft, field f) {
    bool plain = true;
    /* ARPAbet vowels carry a stress digit, 0 to 2. */
    const bool stressed = f.length == 3 && strchr("AEIOUaeiou", f.text[0]) &&
                          ((f.text[1] | 32) >= 'a' && (f.text[1] | 32) <= 'z') &&
                          f.text[2] >= '0' && f.text[2] <= '2';
    const size_t length = stressed && !draft->keep_stress ? 2 : f.length;
    if (length >= LEXICON_PHONE)
        return refuse(draft, "... is longer than 63 bytes, the maximum for a phone", f);
    if (is_probability(f, &plain) && !plain)
        return refuse(draft,
                      " is not a phone; probabilities must follow the word, in every "
                      "line or in none",
                      f);
    if (draft->given && *slot_of(draft, f.text, length) == 0)
        return refuse(draft, " is not a phone of the model", f);
    const int32_t number = name_number(draft, f.text, length);
    if (number < 0)
        return refuse(draft, ": there are more than 4096 phones; is this a lexicon?", f);
    if (!grow(draft->context, &draft->phones, &draft->phone_room, draft->phone_size + 1,
              sizeof *draft->phones))
        return no_memory(draft->context);
    draft->phones[draft->phone_size++] = number;
    return SHOAL_OK;
}

/* ---- Words ------------------------------------------------------------------------- */

static shoal_status add_line(lexicon_draft *draft, const char *at, const char *end) {
    static const field none = {0};
    if (end - at > LEXICON_LINE)
        return refuse(draft, "is longer than 65536 bytes", none);
    if (sh_utf8_has_controls(at, (size_t)(end - at)))
        return refuse(draft, "contains control characters", none);
    if (!sh_utf8_valid(at, (size_t)(end - at)))
        return refuse(draft, "is not UTF-8; iconv -f latin1 -t utf-8 may convert it",
                      none);
    if (is_comment(at, end))
        return SHOAL_OK;
    const field word = next_field(&at, end, true);
    entry made = {.word = draft->text_size,
                  .order = draft->entry_count,
                  .phone = draft->phone_size};
    if (word.length == 0)
        return SHOAL_OK;
    if (draft->probabilities)
        next_field(&at, end, false);
    for (field f; (f = next_field(&at, end, false)).length > 0;)
        TRY(add_phone(draft, f));
    made.phone_end = draft->phone_size;
    if (made.phone_end == made.phone)
        return refuse(draft, " has no phones; a line must be WORD PHONE PHONE ...", word);
    /* "WORD(2)" is another pronunciation of WORD. */
    size_t length = word.length;
    if (length >= 4 && word.text[length - 1] == ')') {
        size_t digit = length - 1;
        while (digit > 0 && word.text[digit - 1] >= '0' && word.text[digit - 1] <= '9')
            digit--;
        if (digit > 1 && digit < length - 1 && word.text[digit - 1] == '(')
            length = digit - 1;
    }
    if (!grow(draft->context, &draft->entries, &draft->entry_room, draft->entry_count + 1,
              sizeof *draft->entries) ||
        !grow(draft->context, &draft->text, &draft->text_room,
              (int64_t)(draft->text_size + length + 1), 1))
        return no_memory(draft->context);
    memcpy(draft->text + draft->text_size, word.text, length);
    draft->text[draft->text_size + length] = 0;
    draft->text_size += length + 1;
    draft->entries[draft->entry_count++] = made;
    return SHOAL_OK;
}

shoal_status sh_lexicon_add(lexicon_draft *draft, const char *name, const char *bytes,
                            size_t size) {
    if (size == 0)
        return sh_fail(draft->context, SHOAL_BAD_FILE, "%s: the lexicon is empty",
                       sh_shown(name).text);
    const char *end = bytes + size, *stop;
    draft->file = name;
    draft->line = 0;
    if (size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        bytes += 3;
    /* Whether every line has a probability after the word, as in lexiconp.txt. */
    bool all = true, surely = false, plain;
    for (const char *at = bytes; at < end && all; at = stop + 1) {
        const char *rest = at;
        stop = line_end(at, end);
        if (stop - at > LEXICON_LINE)
            all = false;
        else if (!is_comment(at, stop) && next_field(&rest, stop, true).length > 0) {
            all = is_probability(next_field(&rest, stop, false), &plain) &&
                  next_field(&rest, stop, false).length > 0;
            surely = surely || (all && !plain);
        }
    }
    draft->probabilities = all && surely;
    for (const char *at = bytes; at < end; at = stop + 1) {
        stop = line_end(at, end);
        draft->line++;
        TRY(add_line(draft, at, stop));
    }
    return SHOAL_OK;
}

/* ---- Sorting ----------------------------------------------------------------------- */

static int compare_entries(const void *a, const void *b, void *text) {
    const entry *x = a, *y = b;
    const int words = strcmp((char *)text + x->word, (char *)text + y->word);
    return words ? words : (x->order > y->order) - (x->order < y->order);
}

static int fold(char c) {
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

/* Case-insensitive. */
static int compare_folded(const char *a, const char *b) {
    while (*a && fold(*a) == fold(*b))
        a++, b++;
    return fold(*a) - fold(*b);
}

static int compare_words(const void *a, const void *b, void *shared) {
    const shoal_lexicon *lexicon = shared;
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const int order = compare_folded(lexicon->words[x], lexicon->words[y]);
    return order ? order : x - y;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Sorts phones by strcmp unless they were given, with silence last; renumbers the
   entries' phones. */
static bool sort_phones(lexicon_draft *draft, shoal_lexicon *made) {
    const int32_t silence = name_number(draft, draft->silence, strlen(draft->silence));
    const int32_t count = draft->name_count; /* it exists already */
    int32_t *moved = sh_allocate_zeros(draft->context, (size_t)count + 1, sizeof *moved);
    made->names =
        sh_allocate_zeros(draft->context, (size_t)count + 1, sizeof *made->names);
    made->phone_count = count;
    if (!moved || !made->names) {
        sh_free(moved);
        return false;
    }
    memcpy(made->names, draft->names, sizeof *made->names * (size_t)silence);
    memcpy(made->names + silence, draft->names + silence + 1,
           sizeof *made->names * (size_t)(count - silence - 1));
    if (!draft->given)
        qsort(made->names, (size_t)count - 1, sizeof *made->names, compare_names);
    strcpy(made->names[count - 1], draft->silence);
    for (int32_t i = 0; i < count; i++)
        moved[*slot_of(draft, made->names[i], strlen(made->names[i])) - 1] = i;
    for (int64_t i = 0; i < draft->phone_size; i++)
        draft->phones[i] = moved[draft->phones[i]];
    sh_free(moved);
    return true;
}

/* ---- Finishing -------------------------------------------------------------------- */

shoal_status sh_lexicon_begin(shoal_context *context,
                              const shoal_lexicon_options *options,
                              lexicon_draft **made) {
    const shoal_lexicon_options defaults = shoal_lexicon_options_defaults();
    lexicon_draft *draft = sh_allocate_zeros(context, 1, sizeof *draft);
    const shoal_lexicon_options *o = options ? options : &defaults;
    const char *silence = o->silence ? o->silence : "SIL";
    if (draft)
        draft->names = sh_allocate_zeros(context, LEXICON_PHONES, sizeof *draft->names);
    *made = NULL;
    if (!draft || !draft->names) {
        sh_free(draft);
        return no_memory(context);
    }
    draft->context = context;
    draft->keep_stress = o->keep_stress != 0;
    snprintf(draft->silence, sizeof draft->silence, "%s", silence);
    shoal_status status = SHOAL_OK;
    if (strlen(silence) == 0 || strlen(silence) >= LEXICON_PHONE)
        status = sh_fail(context, SHOAL_INVALID,
                         "the name of the silence is empty or too long");
    for (int64_t i = 0; i < o->phone_count && status == SHOAL_OK; i++) {
        const char *name = o->phones[i];
        const size_t length = name ? strlen(name) : 0;
        if (length == 0 || length >= LEXICON_PHONE || i >= LEXICON_PHONES - 1 ||
            name_number(draft, name, length) != i)
            status = sh_fail(context, SHOAL_INVALID,
                             "phone %lld is empty, too long, a duplicate, or beyond the "
                             "maximum number",
                             (long long)i);
    }
    if (status != SHOAL_OK)
        return sh_lexicon_end(draft, status, NULL);
    draft->given = o->phone_count > 0;
    name_number(draft, draft->silence, strlen(draft->silence));
    *made = draft;
    return SHOAL_OK;
}

static shoal_status finish(lexicon_draft *draft, shoal_lexicon *made) {
    const size_t entries = (size_t)draft->entry_count;
    if (!made)
        return no_memory(draft->context);
    made->words = sh_allocate_zeros(draft->context, entries + 1, sizeof *made->words);
    made->folded = sh_allocate_zeros(draft->context, entries + 1, sizeof *made->folded);
    made->first = sh_allocate_zeros(draft->context, entries + 1, sizeof *made->first);
    made->begin = sh_allocate_zeros(draft->context, entries + 1, sizeof *made->begin);
    made->phones = sh_allocate_zeros(draft->context, (size_t)draft->phone_size + 1,
                                     sizeof *made->phones);
    if (!made->words || !made->folded || !made->first || !made->begin || !made->phones)
        return no_memory(draft->context);
    made->context = draft->context;
    if (draft->entry_count == 0 || draft->entry_count > INT32_MAX)
        return sh_fail(draft->context, SHOAL_BAD_FILE,
                       "%s: the lexicon must have 1 to 2147483647 words",
                       draft->file ? sh_shown(draft->file).text : "no file");
    if (!sort_phones(draft, made))
        return no_memory(draft->context);
    made->text = draft->text;
    draft->text = NULL;
    qsort_r(draft->entries, (size_t)draft->entry_count, sizeof *draft->entries,
            compare_entries, made->text);
    for (int64_t i = 0; i < draft->entry_count; i++) {
        const char *word = made->text + draft->entries[i].word;
        if (made->word_count == 0 ||
            strcmp(made->words[made->word_count - 1], word) != 0) {
            made->folded[made->word_count] = (int32_t)made->word_count;
            made->first[made->word_count] = made->pronunciation_count;
            made->words[made->word_count++] = word;
        }
        /* Adds the pronunciation to its word, unless it is a duplicate. */
        const int32_t *phones = draft->phones + draft->entries[i].phone;
        const int64_t count = draft->entries[i].phone_end - draft->entries[i].phone;
        const int64_t at = made->pronunciation_count;
        const int64_t first = made->first[made->word_count - 1];
        int64_t same = first;
        while (same < at && (made->begin[same + 1] - made->begin[same] != count ||
                             memcmp(made->phones + made->begin[same], phones,
                                    sizeof *phones * (size_t)count) != 0))
            same++;
        if (same < at)
            continue;
        if (at - first == LEXICON_VARIANTS)
            return sh_fail(draft->context, SHOAL_BAD_FILE,
                           "%s: %s has more than %d pronunciations",
                           sh_shown(draft->file).text, sh_shown(word).text,
                           LEXICON_VARIANTS);
        memcpy(made->phones + made->begin[at], phones, sizeof *phones * (size_t)count);
        made->begin[at + 1] = made->begin[at] + count;
        made->pronunciation_count++;
    }
    made->first[made->word_count] = made->pronunciation_count;
    qsort_r(made->folded, (size_t)made->word_count, sizeof *made->folded, compare_words,
            made);
    made->info = (shoal_lexicon_info){made->word_count, made->pronunciation_count,
                                      made->phone_count, made->phone_count - 1};
    return SHOAL_OK;
}

shoal_status sh_lexicon_end(lexicon_draft *draft, shoal_status status,
                            shoal_lexicon **lexicon) {
    if (!draft)
        return status;
    if (status == SHOAL_OK) {
        shoal_lexicon *made = sh_allocate_zeros(draft->context, 1, sizeof *made);
        status = finish(draft, made);
        if (status == SHOAL_OK)
            *lexicon = made;
        else
            shoal_lexicon_destroy(made);
    }
    FREE_ALL(draft->names, draft->text, draft->entries, draft->phones, draft);
    return status;
}

shoal_status shoal_lexicon_open(shoal_context *context, const char *const *paths,
                                int64_t count, const shoal_lexicon_options *options,
                                shoal_lexicon **lexicon) {
    if (lexicon)
        *lexicon = NULL;
    shoal_lexicon_options own = shoal_lexicon_options_defaults();
    TRY(READ_STRUCT(context, shoal_lexicon_options, options, &own));
    if (!context || !paths || count < 1 || !lexicon ||
        (own.phone_count > 0 && !own.phones))
        return sh_fail(context, SHOAL_INVALID,
                       "context, paths, phones or lexicon is NULL, or there is no path");
    lexicon_draft *draft;
    shoal_status status = sh_lexicon_begin(context, &own, &draft);
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++) {
        file_map map = {0};
        status = sh_file_map_open(context, paths[i], &map);
        if (status == SHOAL_OK)
            status = sh_lexicon_add(draft, paths[i], (const char *)map.bytes, map.size);
        sh_file_map_close(&map);
    }
    return sh_lexicon_end(draft, status, lexicon);
}

shoal_status shoal_lexicon_open_list(shoal_context *context, const char *files,
                                     const shoal_lexicon_options *options,
                                     shoal_lexicon **lexicon) {
    const char *paths[16];
    int64_t count = 0;
    if (lexicon)
        *lexicon = NULL;
    if (!context || !files)
        return sh_fail(context, SHOAL_INVALID, "context or files is NULL");
    char *copy = sh_copy_text(context, files), *rest = NULL;
    if (!copy)
        return sh_fail(context, SHOAL_NO_MEMORY, "out of memory for a lexicon");
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
        if (count++ < 16)
            paths[count - 1] = one;
    const shoal_status status =
        count > 0 && count <= 16
            ? shoal_lexicon_open(context, paths, count, options, lexicon)
            : sh_fail(context, SHOAL_INVALID, "the lexicon has %s",
                      count ? "more than 16 files" : "no file");
    sh_free(copy);
    return status;
}

void shoal_lexicon_destroy(shoal_lexicon *lexicon) {
    if (!lexicon)
        return;
    FREE_ALL(lexicon->text, lexicon->words, lexicon->folded, lexicon->first,
             lexicon->begin, lexicon->phones, lexicon->names, lexicon);
}

/* ---- Lookup ----------------------------------------------------------------------- */

const shoal_lexicon_info *shoal_lexicon_describe(const shoal_lexicon *lexicon) {
    return lexicon ? &lexicon->info : NULL;
}

const char *shoal_lexicon_phone(const shoal_lexicon *lexicon, int64_t phone) {
    const bool there = lexicon && phone >= 0 && phone < lexicon->phone_count;
    return there ? lexicon->names[phone] : NULL;
}

const char *shoal_lexicon_word(const shoal_lexicon *lexicon, int64_t word) {
    const bool there = lexicon && word >= 0 && word < lexicon->word_count;
    return there ? lexicon->words[word] : NULL;
}

/* The first word that is not before the text, in the order of `folded` or of strcmp. */
static int64_t lower_bound(const shoal_lexicon *lexicon, const char *text, bool folded) {
    int64_t low = 0, high = lexicon->word_count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const int order =
            folded ? compare_folded(lexicon->words[lexicon->folded[middle]], text)
                   : strcmp(lexicon->words[middle], text);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t shoal_lexicon_find(const shoal_lexicon *lexicon, const char *text) {
    if (!lexicon || !text)
        return -1;
    int64_t at = lower_bound(lexicon, text, false);
    if (at < lexicon->word_count && strcmp(lexicon->words[at], text) == 0)
        return at;
    at = lower_bound(lexicon, text, true);
    if (at == lexicon->word_count)
        return -1;
    at = lexicon->folded[at];
    return compare_folded(lexicon->words[at], text) == 0 ? at : -1;
}

int64_t shoal_lexicon_pronunciations(const shoal_lexicon *lexicon, int64_t word) {
    const bool there = lexicon && word >= 0 && word < lexicon->word_count;
    return there ? lexicon->first[word + 1] - lexicon->first[word] : 0;
}

int64_t shoal_lexicon_pronunciation(const shoal_lexicon *lexicon, int64_t word,
                                    int64_t index, const int32_t **phones) {
    if (index < 0 || index >= shoal_lexicon_pronunciations(lexicon, word))
        return 0;
    const int64_t at = lexicon->first[word] + index;
    *phones = lexicon->phones + lexicon->begin[at];
    return lexicon->begin[at + 1] - lexicon->begin[at];
}
