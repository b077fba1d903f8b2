/* Number words to digits. A number is put together word by word for as long as the next
   word can belong to it; then it is written and the next one begins. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "speech/wer_parts.h"

static const uint64_t largest_number = 1000000000000000; /* exact in a double */

/* ---- Number words ----------------------------------------------------------------- */

typedef struct {
    const char *cardinal, *ordinal;
    number_kind kind;
    uint64_t value;
} number_word;

static const number_word number_words[] = {
    {"zero", "zeroth", NUMBER_UNIT, 0},
    {"one", "first", NUMBER_UNIT, 1},
    {"two", "second", NUMBER_UNIT, 2},
    {"three", "third", NUMBER_UNIT, 3},
    {"four", "fourth", NUMBER_UNIT, 4},
    {"five", "fifth", NUMBER_UNIT, 5},
    {"six", "sixth", NUMBER_UNIT, 6},
    {"seven", "seventh", NUMBER_UNIT, 7},
    {"eight", "eighth", NUMBER_UNIT, 8},
    {"nine", "ninth", NUMBER_UNIT, 9},
    {"ten", "tenth", NUMBER_TEEN, 10},
    {"eleven", "eleventh", NUMBER_TEEN, 11},
    {"twelve", "twelfth", NUMBER_TEEN, 12},
    {"thirteen", "thirteenth", NUMBER_TEEN, 13},
    {"fourteen", "fourteenth", NUMBER_TEEN, 14},
    {"fifteen", "fifteenth", NUMBER_TEEN, 15},
    {"sixteen", "sixteenth", NUMBER_TEEN, 16},
    {"seventeen", "seventeenth", NUMBER_TEEN, 17},
    {"eighteen", "eighteenth", NUMBER_TEEN, 18},
    {"nineteen", "nineteenth", NUMBER_TEEN, 19},
    {"twenty", "twentieth", NUMBER_TENS, 20},
    {"thirty", "thirtieth", NUMBER_TENS, 30},
    {"forty", "fortieth", NUMBER_TENS, 40},
    {"fifty", "fiftieth", NUMBER_TENS, 50},
    {"sixty", "sixtieth", NUMBER_TENS, 60},
    {"seventy", "seventieth", NUMBER_TENS, 70},
    {"eighty", "eightieth", NUMBER_TENS, 80},
    {"ninety", "ninetieth", NUMBER_TENS, 90},
    {"hundred", "hundredth", NUMBER_HUNDRED, 100},
    {"thousand", "thousandth", NUMBER_SCALE, 1000},
    {"million", "millionth", NUMBER_SCALE, 1000000},
    {"billion", "billionth", NUMBER_SCALE, 1000000000},
    {"trillion", "trillionth", NUMBER_SCALE, 1000000000000},
};

static const number_word *find_number(const char *word, bool *ordinal) {
    for (size_t i = 0; i < sizeof number_words / sizeof *number_words; i++) {
        *ordinal = strcmp(word, number_words[i].ordinal) == 0;
        if (*ordinal || strcmp(word, number_words[i].cardinal) == 0)
            return &number_words[i];
    }
    return NULL;
}

/* ---- Output ----------------------------------------------------------------------- */

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
    char digits[WER_WORD];
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

void sh_word_finish(word_writer *out) {
    write_number(out, "");
    if (out->size > 0)
        out->text[out->length < out->size ? out->length : out->size - 1] = 0;
}

/* ---- Putting a number together ---------------------------------------------------- */

static void begin_number(word_writer *out, const number_word *number) {
    const char *currency = out->last == NUMBER_NONE ? out->currency : NULL;
    if (out->last != NUMBER_NONE)
        write_number(out, "");
    out->currency = currency;
    out->group = number->kind == NUMBER_SCALE ? 0 : number->value;
    out->total = number->kind == NUMBER_SCALE ? number->value : 0;
    out->scale = number->kind == NUMBER_SCALE ? number->value : 0;
    out->last = number->kind;
}

/* "nineteen" "eighty": two pairs of digits, the first from 10 to 99. */
static bool makes_year(const word_writer *out, const number_word *number) {
    bool pair = out->last == NUMBER_TEEN || out->last == NUMBER_TENS ||
                (out->last == NUMBER_UNIT && out->group > 20);
    bool second = number->kind == NUMBER_TEEN || number->kind == NUMBER_TENS;
    return pair && second && !out->year && out->total == 0 && out->group < 100 &&
           out->group >= 10;
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

/* May the word belong to the number so far? Takes it if so. */
static bool extend_number(word_writer *out, const number_word *number) {
    switch (number->kind) {
    case NUMBER_UNIT:
    case NUMBER_TEEN:
    case NUMBER_TENS:
        if (makes_year(out, number)) {
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

static void put_number(word_writer *out, const number_word *number, bool ordinal) {
    if (out->last == NUMBER_NONE || !extend_number(out, number))
        begin_number(out, number);
    if (ordinal)
        write_number(out, ordinal_ending(out->total + out->group));
}

static bool is_literal(const char *word) {
    bool digits = false;
    for (const char *c = word; *c; c++) {
        if (!isdigit((unsigned char)*c) && *c != '.')
            return false;
        digits |= *c != '.';
    }
    return digits;
}

void sh_word_put(word_writer *out, const char *word) {
    bool ordinal;
    const number_word *number = find_number(word, &ordinal);
    if (number) {
        put_number(out, number, ordinal);
    } else if (is_literal(word)) {
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

void sh_word_put_currency(word_writer *out, const char *name) {
    write_number(out, "");
    out->currency = name;
}
