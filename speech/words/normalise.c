#define _POSIX_C_SOURCE 200809L /* for strnlen */
#include "speech/words/normalise.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/nn/edits.h"
#include "models/text/unicode.h"

enum { LONGEST_WORD = 256 }; /* bytes, including the NUL */

/* ---- Output, with number words as digits ------------------------------------------ */

/* Class of the last number word, which determines what may follow in the same
   number. */
typedef enum {
    NUMBER_NONE,
    NUMBER_UNIT, /* 0 to 9 */
    NUMBER_TEEN, /* 10 to 19 */
    NUMBER_TENS,
    NUMBER_HUNDRED,
    NUMBER_SCALE,  /* thousand, million ... */
    NUMBER_LITERAL /* digits */
} number_kind;

typedef struct {
    char *text;
    size_t size, length; /* length of the complete text, written or not */
    /* The current number: total + group. */
    number_kind last;
    uint64_t total, group, scale; /* scale: the last one used, 0 if none */
    bool year;                    /* group is two pairs of digits: "nineteen eighty" */
    bool held_and;                /* "two hundred and": may belong to the number */
    const char *currency;         /* "dollars", to follow the number */
    char literal[LONGEST_WORD];   /* digits as written */
} word_writer;

static const uint64_t largest_number = 1000000000000000; /* exact in a double */

typedef struct {
    number_kind kind;
    uint64_t value;
} number_word;

/* 0 to 19, 20 to 90, 100, 1000 and its powers. */
static const char *const cardinals[] = {"zero",    "one",       "two",      "three",
                                        "four",    "five",      "six",      "seven",
                                        "eight",   "nine",      "ten",      "eleven",
                                        "twelve",  "thirteen",  "fourteen", "fifteen",
                                        "sixteen", "seventeen", "eighteen", "nineteen",
                                        "twenty",  "thirty",    "forty",    "fifty",
                                        "sixty",   "seventy",   "eighty",   "ninety",
                                        "hundred", "thousand",  "million",  "billion",
                                        "trillion"};
static const char *const ordinals[] =
    {"zeroth",     "first",      "second",     "third",     "fourth",    "fifth",
     "sixth",      "seventh",    "eighth",     "ninth",     "tenth",     "eleventh",
     "twelfth",    "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth",
     "eighteenth", "nineteenth", "twentieth",  "thirtieth", "fortieth",  "fiftieth",
     "sixtieth",   "seventieth", "eightieth",  "ninetieth", "hundredth", "thousandth",
     "millionth",  "billionth",  "trillionth"};

static bool find_number(const char *word, number_word *number, bool *ordinal) {
    for (size_t i = 0; i < sizeof cardinals / sizeof *cardinals; i++) {
        *ordinal = strcmp(word, ordinals[i]) == 0;
        if (!*ordinal && strcmp(word, cardinals[i]) != 0)
            continue;
        *number = i < 20   ? (number_word){i < 10 ? NUMBER_UNIT : NUMBER_TEEN, i}
                  : i < 28 ? (number_word){NUMBER_TENS, 10 * (i - 18)}
                  : i < 29 ? (number_word){NUMBER_HUNDRED, 100}
                           : (number_word){NUMBER_SCALE, 1000};
        for (size_t power = 29; power < i; power++)
            number->value *= 1000;
        return true;
    }
    return false;
}

static void write_word(word_writer *out, const char *word) {
    const char *space = out->length > 0 ? " " : "";
    for (const char *part = space; part; part = part == space ? word : NULL)
        for (const char *c = part; *c; c++, out->length++)
            if (out->length < out->size)
                out->text[out->length] = *c;
}

static const char *ordinal_ending(uint64_t number) {
    static const char *const endings[] = {"th", "st", "nd", "rd"};
    bool teen = number / 10 % 10 == 1;
    return number % 10 <= 3 && !teen ? endings[number % 10] : "th";
}

static void write_number(word_writer *out, const char *ending) {
    char digits[LONGEST_WORD];
    bool held_and = out->held_and;
    if (out->last == NUMBER_LITERAL) {
        write_word(out, out->literal);
    } else if (out->last != NUMBER_NONE) {
        snprintf(digits, sizeof digits, "%llu%s",
                 (unsigned long long)(out->total + out->group), ending);
        write_word(out, digits);
    }
    out->last = NUMBER_NONE;
    out->total = out->group = out->scale = 0;
    out->year = out->held_and = false;
    if (out->currency)
        write_word(out, out->currency);
    out->currency = NULL;
    if (held_and)
        write_word(out, "and");
}

/* Digits and a scale: "2.5 million". */
static bool scale_literal(word_writer *out, const number_word *number) {
    char *end;
    double value = strtod(out->literal, &end) * (double)number->value;
    if (*end || !(value < (double)largest_number) || value != floor(value))
        return false;
    out->total = (uint64_t)value;
    out->scale = number->value;
    out->last = number->kind;
    return true;
}

/* Adds the word to the current number if possible. */
static bool extend_number(word_writer *out, const number_word *number) {
    switch (number->kind) {
    case NUMBER_UNIT:
    case NUMBER_TEEN:
    case NUMBER_TENS:
        /* "nineteen" "eighty": two pairs of digits, the first from 10 to 99. */
        if ((out->last == NUMBER_TEEN || out->last == NUMBER_TENS ||
             (out->last == NUMBER_UNIT && out->group > 20)) &&
            number->kind != NUMBER_UNIT && !out->year && out->total == 0 &&
            out->group < 100 && out->group >= 10) {
            out->group = out->group * 100 + number->value;
            out->year = true;
        } else if (number->value > 0 &&
                   (out->last == NUMBER_HUNDRED || out->last == NUMBER_SCALE ||
                    (out->last == NUMBER_TENS && number->kind == NUMBER_UNIT))) {
            out->group += number->value;
        } else {
            return false;
        }
        break;
    case NUMBER_HUNDRED:
        if (out->last == NUMBER_LITERAL)
            return scale_literal(out, number);
        if (out->held_and || out->year || out->group == 0 || out->group >= 100)
            return false;
        out->group *= 100;
        break;
    default:
        if (out->last == NUMBER_LITERAL)
            return scale_literal(out, number);
        if (out->held_and || out->year || out->group == 0 ||
            (out->scale && out->scale <= number->value))
            return false;
        out->total += out->group * number->value;
        out->group = 0;
        out->scale = number->value;
    }
    out->last = number->kind;
    out->held_and = false;
    return true;
}

static void append_word(word_writer *out, const char *word) {
    bool ordinal;
    number_word number;
    if (find_number(word, &number, &ordinal)) {
        if (out->last == NUMBER_NONE || !extend_number(out, &number)) {
            /* A number grows word by word as long as the next word can belong to it;
               then it is written and the next one begins. */
            const char *currency = out->last == NUMBER_NONE ? out->currency : NULL;
            if (out->last != NUMBER_NONE)
                write_number(out, "");
            out->currency = currency;
            out->group = number.kind == NUMBER_SCALE ? 0 : number.value;
            out->total = number.kind == NUMBER_SCALE ? number.value : 0;
            out->scale = number.kind == NUMBER_SCALE ? number.value : 0;
            out->last = number.kind;
        }
        if (ordinal)
            write_number(out, ordinal_ending(out->total + out->group));
    } else if (!word[strspn(word, "0123456789.")] && word[strspn(word, ".")]) {
        /* digits, possibly with decimal points */
        const char *currency = out->last == NUMBER_NONE ? out->currency : NULL;
        if (out->last != NUMBER_NONE)
            write_number(out, "");
        out->currency = currency;
        snprintf(out->literal, sizeof out->literal, "%s", word);
        out->last = NUMBER_LITERAL;
    } else if (strcmp(word, "and") == 0 && !out->held_and &&
               (out->last == NUMBER_HUNDRED || out->last == NUMBER_SCALE)) {
        out->held_and = true;
    } else {
        write_number(out, "");
        write_word(out, word);
    }
}

/* ---- Normalisation of words ------------------------------------------------------- */

typedef struct {
    const char *from, *to;
} replacement;

/* Whole words, each after a ";", and their replacements. */
static const char whole[] =
    ";won't=will not;can't=can not;cannot=can not;let's=let us;ain't=aint"
    ";y'all=you all;wanna=want to;gotta=got to;gonna=going to;i'ma=i am going to"
    ";imma=i am going to;woulda=would have;coulda=could have;shoulda=should have"
    ";ma'am=madam;mr=mister;mrs=missus;st=saint;dr=doctor;prof=professor;capt=captain"
    ";gov=governor;ald=alderman;gen=general;sen=senator;rep=representative"
    ";pres=president;rev=reverend;hon=honorable;asst=assistant;assoc=associate"
    ";lt=lieutenant;col=colonel;jr=junior;sr=senior;esq=esquire;hmm=;mm=;mhm=;mmm="
    ";uh=;um=;theatre=theater;centre=center;centres=centers;theatres=theaters"
    ";sceptre=scepter;spectre=specter;sombre=somber;lustre=luster;fibre=fiber"
    ";metre=meter;metres=meters;litre=liter;meagre=meager;calibre=caliber"
    ";defence=defense;offence=offense;pretence=pretense;licence=license"
    ";programme=program;judgement=judgment;moustache=mustache;gaol=jail;waggon=wagon"
    ";waggons=wagons";

/* Suffixes after an apostrophe; n't comes before 't. */
static const replacement endings[] = {
    {"n't", "not"}, {"'re", "are"},  {"'s", "is"},    {"'d", "would"},
    {"'t", "not"},  {"'ll", "will"}, {"'ve", "have"}, {"'m", "am"},
};

/* Prefixes of words. */
static const replacement beginnings[] = {
    {"colour", "color"},     {"honour", "honor"},       {"favour", "favor"},
    {"labour", "labor"},     {"neighbour", "neighbor"}, {"harbour", "harbor"},
    {"humour", "humor"},     {"parlour", "parlor"},     {"vapour", "vapor"},
    {"odour", "odor"},       {"rumour", "rumor"},       {"splendour", "splendor"},
    {"ardour", "ardor"},     {"vigour", "vigor"},       {"candour", "candor"},
    {"clamour", "clamor"},   {"endeavour", "endeavor"}, {"savour", "savor"},
    {"armour", "armor"},     {"behaviour", "behavior"}, {"flavour", "flavor"},
    {"valour", "valor"},     {"rigour", "rigor"},       {"tumour", "tumor"},
    {"saviour", "savior"},   {"fervour", "fervor"},     {"grey", "gray"},
    {"plough", "plow"},      {"mould", "mold"},         {"sceptic", "skeptic"},
    {"travell", "travel"},   {"marvell", "marvel"},     {"quarrell", "quarrel"},
    {"counsell", "counsel"}, {"jewell", "jewel"},       {"levell", "level"},
};

/* Verbs in -ise, -ised, -ises, -ising, and nouns in -iser. */
static const char *const ise_verbs[] = {
    "real",    "recogn",    "organ", "apolog",  "civil",  "critic", "emphas", "symbol",
    "memor",   "author",    "agon",  "scrutin", "patron", "util",   "summar", "special",
    "general", "character", "bapt",  "sympath", "minim",  "maxim",  "visual", "moral",
};

/* Words separated by spaces, up to the end of the text or a ";". */
static void put_words(word_writer *out, const char *text) {
    char word[LONGEST_WORD];
    while (*text && *text != ';') {
        size_t length = strcspn(text, " ;");
        memcpy(word, text, length);
        word[length] = 0;
        if (length > 0)
            append_word(out, word);
        text += length + (text[length] == ' ');
    }
}

static void put_contracted(word_writer *out, char *word) {
    const size_t length = strlen(word);
    char key[LONGEST_WORD + 2];
    snprintf(key, sizeof key, ";%s=", word);
    const char *found = strstr(whole, key);
    if (found) {
        put_words(out, found + strlen(key));
        return;
    }
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t tail = strlen(endings[i].from);
        if (length > tail && strcmp(word + length - tail, endings[i].from) == 0) {
            word[length - tail] = 0;
            put_contracted(out, word);
            append_word(out, endings[i].to);
            return;
        }
    }
    for (char *c = word; *c; c++) /* other apostrophes separate words */
        *c = *c == '\'' ? ' ' : *c;
    if (strchr(word, ' ')) {
        put_words(out, word);
        return;
    }
    /* American spelling. */
    static const char *const tails[] = {"ise", "ised", "ises", "ising", "iser", "isers"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++) {
        size_t from = strlen(beginnings[i].from), to = strlen(beginnings[i].to);
        if (strncmp(word, beginnings[i].from, from) == 0) {
            memmove(word + to, word + from, strlen(word + from) + 1);
            memcpy(word, beginnings[i].to, to);
            put_words(out, word);
            return;
        }
    }
    for (size_t i = 0; i < sizeof ise_verbs / sizeof *ise_verbs; i++) {
        size_t verb = strlen(ise_verbs[i]);
        if (strncmp(word, ise_verbs[i], verb) != 0)
            continue;
        for (size_t j = 0; j < sizeof tails / sizeof *tails; j++)
            if (strcmp(word + verb, tails[j]) == 0)
                word[verb + 1] = 'z';
    }
    put_words(out, word);
}

/* ---- Splitting text into words ---------------------------------------------------- */

/* Base letters of U+00C0 to U+017F; '.' for those with two, '-' for symbols. */
static const char base_letters[] =
    "aaaaaa.ceeeeiiiidnooooo-ouuuuy..aaaaaa.ceeeeiiiidnooooo-ouuuuy.y"
    "aaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiiiii..jjkkkllllllllll"
    "nnnnnnnnnoooooo..rrrrrrsssssssstttttt"
    "uuuuuuuuuuuuwwyyyzzzzzzs";

_Static_assert(sizeof base_letters == 0x180 - 0xc0 + 1, "one for each character");

typedef struct {
    word_writer *out;
    char word[LONGEST_WORD];
    size_t length;
} word_reader;

static void end_word(word_reader *in) {
    char *word = in->word;
    while (in->length > 0 && word[in->length - 1] == '\'')
        in->length--;
    word[in->length] = 0;
    in->length = 0;
    word += strspn(word, "'");
    if (*word)
        put_contracted(in->out, word);
}

static void add_bytes(word_reader *in, const char *bytes, size_t count) {
    if (in->length + count >= sizeof in->word)
        end_word(in);
    memcpy(in->word + in->length, bytes, count);
    in->length += count;
}

size_t sh_normalise_words(const char *text, char *normal, size_t size) {
    word_writer out = {.text = normal, .size = size};
    word_reader in = {.out = &out};
    size_t length;
    for (char before = 0; *text; text += length) {
        /* Text in brackets is skipped. */
        const char closing = *text == '[' ? ']' : *text == '(' ? ')' : '>';
        const char *end = strchr("[(<", *text) ? strchr(text, closing) : NULL;
        uint32_t c = 0xfffd; /* an invalid byte counts as one character */
        if (end) {
            end_word(&in);
            before = 0;
            length = (size_t)(end - text) + 1;
            continue;
        }
        const int bytes = sh_utf8_next(text, strnlen(text, UTF8_MOST), &c);
        const bool in_number = isdigit((unsigned char)before) &&
                               isdigit((unsigned char)text[1]);
        length = bytes > 0 ? (size_t)bytes : 1;
        before = c < 0x80 ? *text : 0;
        if (c < 0x80 && isalnum((int)c)) {
            add_bytes(&in, &(char){(char)tolower((int)c)}, 1);
        } else if (c == '\'' || c == 0x2018 || c == 0x2019 || c == 0x2bc) {
            add_bytes(&in, "'", 1);
        } else if (c == '.' && in_number) {
            add_bytes(&in, ".", 1);
        } else if (c >= 0xc0 && c <= 0x17f && base_letters[c - 0xc0] == '.') {
            add_bytes(&in,
                      c == 0xc6 || c == 0xe6     ? "ae"
                      : c == 0xde || c == 0xfe   ? "th"
                      : c == 0xdf                ? "ss"
                      : c == 0x132 || c == 0x133 ? "ij"
                                                 : "oe",
                      2);
        } else if (c >= 0xc0 && c <= 0x17f && base_letters[c - 0xc0] != '-') {
            add_bytes(&in, &base_letters[c - 0xc0], 1);
        } else if (c < 0x180 || (c >= 0x2000 && c <= 0x2bff) ||
                   (c >= 0x3000 && c <= 0x303f) || (c >= 0xff00 && c <= 0xff0f) ||
                   c == 0xfffd) { /* punctuation and symbols */
            if (c == ',' && in_number)
                continue;
            end_word(&in);
            if (c == '&' || c == '%')
                append_word(&out, c == '&' ? "and" : "percent");
            if (c == '$' || c == 0xa3 || c == 0x20ac) {
                write_number(&out, "");
                out.currency = c == '$' ? "dollars" : c == 0xa3 ? "pounds" : "euros";
            }
        } else if (c < 0x300 || c > 0x36f) { /* those are combining accents */
            add_bytes(&in, text, length);
        }
    }
    end_word(&in);
    write_number(&out, "");
    if (size > 0)
        normal[out.length < size ? out.length : size - 1] = 0;
    return out.length;
}

/* ---- Edits between two texts ------------------------------------------------------ */

typedef struct {
    const char *begin;
    size_t length;
} word;

/* Splits a text into words; with list NULL only counts them. */
static int64_t split(const char *text, word *list) {
    int64_t count = 0;
    while (*(text += strspn(text, " "))) {
        size_t length = strcspn(text, " ");
        if (list)
            list[count] = (word){text, length};
        count++;
        text += length;
    }
    return count;
}

static int compare_words(const void *a, const void *b) {
    const word *x = *(const word *const *)a, *y = *(const word *const *)b;
    const size_t least = x->length < y->length ? x->length : y->length;
    const int order = memcmp(x->begin, y->begin, least);
    return order ? order : (x->length > y->length) - (x->length < y->length);
}

/* Words as numbers, equal for equal words. */
typedef struct {
    int64_t words, heard;
    int parts;
    word *list;         /* [words + heard] */
    const word **order; /* [words + heard], sorted by text */
    int32_t *numbers;   /* [words + heard] */
    int64_t *ends;      /* [parts]: number of reference words up to the end of each */
    shoal_edits *edits; /* [parts] */
} numbered_words;

static void place_words(void *argument, block_layout *block) {
    numbered_words *w = argument;
    const int64_t count = w->words + w->heard;
    w->list = sh_reserve(block, count, sizeof *w->list);
    w->order = sh_reserve(block, count, sizeof *w->order);
    w->numbers = sh_reserve(block, count, sizeof *w->numbers);
    w->ends = sh_reserve(block, w->parts, sizeof *w->ends);
    w->edits = sh_reserve(block, w->parts, sizeof *w->edits);
}

shoal_status sh_count_edits(shoal_context *context, const char *reference,
                            const int64_t *ends, int parts, const char *hypothesis,
                            shoal_word_errors *errors) {
    numbered_words w = {.words = split(reference, NULL),
                        .heard = split(hypothesis, NULL),
                        .parts = parts};
    void *block = sh_allocate_parts(context, place_words, &w, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    split(reference, w.list);
    split(hypothesis, w.list + w.words);
    const int64_t count = w.words + w.heard;
    for (int64_t i = 0; i < count; i++)
        w.order[i] = &w.list[i];
    qsort(w.order, (size_t)count, sizeof *w.order, compare_words);
    for (int64_t i = 0, number = 0; i < count; i++) {
        number += i > 0 && compare_words(&w.order[i - 1], &w.order[i]) != 0;
        w.numbers[w.order[i] - w.list] = (int32_t)number;
    }
    for (int part = 0; part < parts; part++) {
        const int64_t least = part > 0 ? w.ends[part - 1] : 0;
        const int64_t end = ends[part] < w.words ? ends[part] : w.words;
        w.ends[part] = end > least ? end : least;
        w.edits[part] = (shoal_edits){0};
    }
    w.ends[parts - 1] = w.words;
    const shoal_status status =
        sh_edits_count(context, (edit_sequence){w.numbers, w.words},
                       (edit_sequence){w.numbers + w.words, w.heard}, w.ends, parts,
                       w.edits);
    for (int part = 0; part < parts && status == SHOAL_OK; part++) {
        errors[part].words += w.edits[part].length;
        errors[part].substitutions += w.edits[part].substitutions;
        errors[part].insertions += w.edits[part].insertions;
        errors[part].deletions += w.edits[part].deletions;
    }
    sh_release(context, block);
    return status;
}

/* ---- Texts ------------------------------------------------------------------------ */

/* Joins the texts with spaces; returns the length. into may be NULL. */
static size_t join(const char *const *texts, int count, char *into) {
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        const size_t one = strlen(texts[i]);
        if (into) {
            memcpy(into + length, texts[i], one);
            into[length + one] = i + 1 < count ? ' ' : 0;
        }
        length += one + 1;
    }
    return length > 0 ? length - 1 : 0;
}

typedef struct {
    const char *const *references; /* [parts] */
    int parts;
    size_t reference_size, text_size;
    char *reference, *hypothesis; /* normalised */
    int64_t *ends;                /* [parts] */
} comparison;

static void place_texts(void *argument, block_layout *block) {
    comparison *c = argument;
    c->reference = sh_reserve(block, (int64_t)c->reference_size, 1);
    c->hypothesis = sh_reserve(block, (int64_t)c->text_size, 1);
    c->ends = sh_reserve(block, c->parts, sizeof *c->ends);
}

/* Normalises the reference up to the end of each part in turn, the complete one last:
   measures them, or, if c->reference is set, writes them and counts their words. A
   number that crosses the end of a part belongs to the part in which it begins. */
static void normalise_parts(comparison *c, char *joined) {
    size_t end = 0;
    for (int part = 0; part < c->parts; part++) {
        end += strlen(c->references[part]);
        const char after = joined[end];
        joined[end] = 0;
        const size_t length = sh_normalise_words(joined, c->reference,
                                                 c->reference ? c->reference_size : 0);
        joined[end++] = after;
        if (c->reference)
            c->ends[part] = split(c->reference, NULL);
        else if (length >= c->reference_size)
            c->reference_size = length + 1;
    }
}

shoal_status shoal_count_part_errors(shoal_context *context,
                                     const char *const *references, int count,
                                     const char *text, shoal_word_errors *errors) {
    bool missing = !context || !references || !text || !errors || count < 1;
    for (int i = 0; !missing && i < count; i++)
        missing = !references[i];
    if (missing)
        return sh_fail(context, SHOAL_INVALID,
                       "counting word errors: an argument is NULL, or no text is given");
    comparison c = {.references = references, .parts = count};
    char *joined = sh_allocate(context, join(references, count, NULL) + 1);
    if (!joined)
        return SHOAL_NO_MEMORY;
    join(references, count, joined);
    c.text_size = sh_normalise_words(text, NULL, 0) + 1;
    normalise_parts(&c, joined);
    void *block = sh_allocate_parts(context, place_texts, &c, NULL);
    shoal_status status = SHOAL_NO_MEMORY;
    if (block) {
        normalise_parts(&c, joined);
        sh_normalise_words(text, c.hypothesis, c.text_size);
        status =
            sh_count_edits(context, c.reference, c.ends, count, c.hypothesis, errors);
        sh_release(context, block);
    }
    sh_release(context, joined);
    return status;
}

shoal_status shoal_count_word_errors(shoal_context *context, const char *reference,
                                     const char *text, shoal_word_errors *errors) {
    return shoal_count_part_errors(context, &reference, 1, text, errors);
}
