/* Reads and writes spellings such as "i-clustered-100:topk=32,seed=7". */
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "attention/attention.h"
#include "base/plain.h"

/* ---- A text that grows ------------------------------------------------------------ */

typedef struct {
    char text[240]; /* the longest spelling fits */
    size_t length;  /* what it would be with room enough */
    char separator; /* before the next option */
} printed;

static void append(printed *to, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void append(printed *to, const char *format, ...) {
    const size_t used = to->length < sizeof to->text ? to->length : sizeof to->text - 1;
    va_list arguments;
    va_start(arguments, format);
    to->length +=
        (size_t)vsnprintf(to->text + used, sizeof to->text - used, format, arguments);
    va_end(arguments);
}

/* ---- Fields ----------------------------------------------------------------------- */

/* A field of shoal_attention as it is spelled: an option after the colon, or the number
   after the kind's name. One with names has those values instead of numbers. */
typedef struct {
    const char *name;
    unsigned bit;  /* enum option; 0: a number after a name, and never an option */
    size_t offset; /* of an int32_t in shoal_attention */
    int32_t min, max;
    const char *const *names;
} field_row;

static const char *const clustering_names[] = {"hash", "keys"};
static const char *const normaliser_names[] = {"cluster", "query"};

/* In the order in which options are printed. */
#define FIELD(name, bit, min, max, names)                                                \
    { #name, bit, offsetof(shoal_attention, name), min, max, names }
static const field_row fields[] = {
    FIELD(clusters, 0, 1, 65535, NULL),
    FIELD(rounds, 0, 1, 255, NULL),
    FIELD(window, 0, 1, 65535, NULL),
    FIELD(topk, OPTION_TOPK, 1, 65535, NULL),
    {"groups", OPTION_GROUPS, offsetof(shoal_attention, clustering), 0, 1,
     clustering_names},
    FIELD(normaliser, OPTION_NORMALISER, 0, 1, normaliser_names),
    FIELD(bits, OPTION_BITS, 1, 255, NULL),
    FIELD(rank, OPTION_RANK, 1, 1024, NULL),
    FIELD(keyclusters, OPTION_KEYCLUSTERS, 1, 65535, NULL),
    FIELD(block, OPTION_BLOCK, 1, 65535, NULL),
    FIELD(pool, OPTION_POOL, 1, 65535, NULL),
    FIELD(near, OPTION_NEAR, 0, 65535, NULL),
    FIELD(iterations, OPTION_ITERATIONS, 1, 1000, NULL),
    FIELD(form, OPTION_FORM, 2, 3, NULL),
};
#undef FIELD
enum { FIELDS = sizeof fields / sizeof *fields };

static int32_t *field(shoal_attention *attention, const field_row *row) {
    return (int32_t *)(void *)((char *)attention + row->offset);
}

static int32_t value_of(const shoal_attention *attention, const field_row *row) {
    return *(const int32_t *)(const void *)((const char *)attention + row->offset);
}

/* Whether a value may be left to a problem's sizes. */
static bool has_size_default(const attention_kind *kind, const field_row *row) {
    return value_of(&kind->info.defaults, row) == SHOAL_BY_SIZE;
}

/* The row of the number after the kind's name, or NULL. */
static const field_row *number_of(const attention_kind *kind) {
    for (int i = 0; kind->info.number && i < FIELDS; i++)
        if (!strcmp(fields[i].name, kind->info.number))
            return &fields[i];
    return NULL;
}

/* Of the name without the letter that stands for the number: "lsh-" of "lsh-R". */
static size_t prefix_length(const attention_kind *kind) {
    return strlen(kind->info.name) - (kind->info.number != NULL);
}

/* ---- Reading ---------------------------------------------------------------------- */

static int tolerance_is_legal(float tolerance) {
    return tolerance >= 0.0001f && tolerance <= 10;
}

/* A run of decimal digits and nothing else, at most `most`. */
static int read_number(const char *text, size_t length, uint64_t most, uint64_t *value) {
    *value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (*value > (most - digit) / 10)
            return 0;
        *value = *value * 10 + digit;
    }
    return length > 0;
}

static bool is_word(const char *text, size_t length, const char *word) {
    return strlen(word) == length && !memcmp(text, word, length);
}

static shoal_status read_field(shoal_context *context, const char *whole,
                               const field_row *row, const char *text, size_t length,
                               shoal_attention *attention) {
    uint64_t value;
    const attention_kind *kind = sh_attention_kind_at((int)attention->kind);
    if (has_size_default(kind, row) && row->bit != 0 && is_word(text, length, "auto")) {
        *field(attention, row) = SHOAL_BY_SIZE;
        return SHOAL_OK;
    }
    if (row->names) {
        for (int32_t named = row->min; named <= row->max; named++)
            if (is_word(text, length, row->names[named])) {
                *field(attention, row) = named;
                return SHOAL_OK;
            }
        return REFUSE(context, "attention \"%.80s\": %s is \"%.*s\", it must be %s or %s",
                      whole, row->name, (int)(length < 40 ? length : 40), text,
                      row->names[0], row->names[1]);
    }
    if (!read_number(text, length, INT32_MAX, &value) || (int32_t)value < row->min ||
        (int32_t)value > row->max)
        return REFUSE(
            context,
            "attention \"%.80s\": %s is \"%.*s\", it must be a whole number from %d "
            "to %d%s",
            whole, row->name, (int)(length < 40 ? length : 40), text, (int)row->min,
            (int)row->max,
            has_size_default(kind, row) && row->bit != 0 ? ", or auto" : "");
    *field(attention, row) = (int32_t)value;
    return SHOAL_OK;
}

/* Digits with at most one point, so that no locale changes what it means. */
static shoal_status read_tolerance(shoal_context *context, const char *whole,
                                   const char *text, size_t length,
                                   shoal_attention *attention) {
    double value = 0, unit = 1;
    int points = 0, digits = 0;
    for (size_t i = 0; i < length && points < 2; i++) {
        points += text[i] == '.' ? 1 : text[i] < '0' || text[i] > '9' ? 2 : 0;
        if (text[i] == '.')
            continue;
        unit = points ? unit * 10 : 1;
        value = points ? value + (text[i] - '0') / unit : value * 10 + (text[i] - '0');
        digits++;
    }
    attention->tolerance = (float)value;
    if (points < 2 && digits > 0 && tolerance_is_legal(attention->tolerance))
        return SHOAL_OK;
    return REFUSE(
        context,
        "attention \"%.80s\": tolerance must be a decimal number from 0.0001 to 10",
        whole);
}

/* What has been read of a spelling. */
typedef struct {
    const char *whole;
    const attention_kind *kind;
    shoal_attention attention;
    unsigned seen; /* bits of the options that were given */
    bool seen_seed, seen_tolerance;
} spelling;

static shoal_status refuse_option(shoal_context *context, const spelling *read,
                                  const char *text, size_t length) {
    char options[sizeof(printed){0}.text];
    shoal_attention_print_all(&read->kind->info.defaults, options, sizeof options);
    return REFUSE(context,
                  "attention \"%.80s\": \"%.*s\" is not an option of this kind, or is "
                  "given twice (the kind with its options: %s)",
                  read->whole, (int)(length < 40 ? length : 40), text, options);
}

/* One "name=value". */
static shoal_status read_option(shoal_context *context, spelling *read, const char *text,
                                size_t length) {
    const char *equals = memchr(text, '=', length);
    if (!equals)
        return refuse_option(context, read, text, length);
    const size_t name = (size_t)(equals - text), rest = length - name - 1;
    const shoal_kind_info *info = &read->kind->info;
    if (is_word(text, name, "seed") && info->has_seed && !read->seen_seed) {
        read->seen_seed = true;
        if (read_number(equals + 1, rest, UINT64_MAX, &read->attention.seed))
            return SHOAL_OK;
        return REFUSE(context,
                      "attention \"%.80s\": seed must be a whole number below 2^64",
                      read->whole);
    }
    if (is_word(text, name, "tolerance") && info->has_tolerance &&
        !read->seen_tolerance) {
        read->seen_tolerance = true;
        return read_tolerance(context, read->whole, equals + 1, rest, &read->attention);
    }
    for (int i = 0; i < FIELDS; i++)
        if (is_word(text, name, fields[i].name) &&
            (read->kind->options & ~read->seen & fields[i].bit)) {
            read->seen |= fields[i].bit;
            return read_field(context, read->whole, &fields[i], equals + 1, rest,
                              &read->attention);
        }
    return refuse_option(context, read, text, length);
}

static shoal_status read_kind(shoal_context *context, size_t length, spelling *read) {
    for (int i = 0; sh_attention_kind_at(i); i++) {
        const attention_kind *kind = sh_attention_kind_at(i);
        const size_t prefix = prefix_length(kind);
        const field_row *number = number_of(kind);
        if (number && has_size_default(kind, number) && length == prefix - 1 &&
            !memcmp(read->whole, kind->info.name, length)) {
            read->kind = kind;
            read->attention = kind->info.defaults;
            return SHOAL_OK;
        }
        if (length < prefix || memcmp(read->whole, kind->info.name, prefix) != 0 ||
            (!number && length != prefix))
            continue;
        read->kind = kind;
        read->attention = kind->info.defaults;
        return number ? read_field(context, read->whole, number, read->whole + prefix,
                                   length - prefix, &read->attention)
                      : SHOAL_OK;
    }
    printed names = {.length = 0};
    for (int i = 0; sh_attention_kind_at(i); i++) {
        const attention_kind *kind = sh_attention_kind_at(i);
        const size_t prefix = prefix_length(kind);
        if (number_of(kind) && length == prefix - 1 &&
            !memcmp(read->whole, kind->info.name, length))
            return REFUSE(context,
                          "attention \"%.80s\" lacks a number: the spelling is %s, such "
                          "as %.*s%" PRId32,
                          read->whole, kind->info.name, (int)prefix, kind->info.name,
                          value_of(&kind->info.defaults, number_of(kind)));
        append(&names, "%s, ", kind->info.name);
    }
    return REFUSE(context,
                  "unknown attention \"%.80s\"; kinds: %ssuch as shoal-64:near=0",
                  read->whole, names.text);
}

static shoal_status parse(shoal_context *context, const char *text,
                          shoal_attention *attention) {
    spelling read = {.whole = text};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    TRY(read_kind(context, length, &read));
    for (const char *part = colon; part;) {
        const char *start = part + 1;
        part = strchr(start, ',');
        size_t size = part ? (size_t)(part - start) : strlen(start);
        TRY(read_option(context, &read, start, size));
    }
    *attention = read.attention;
    return SHOAL_OK;
}

/* ---- Spellings of earlier versions ------------------------------------------------- */

/* Whether an option of `length` characters is one that q-clustered does not have, or
   leaves to the sizes. Sets *zero if it is keyclusters=0, *spelled if it is keyclusters
   at all. */
static bool is_dropped(const char *option, size_t length, bool *zero, bool *spelled) {
    static const char *const dropped[] = {"keyclusters", "block", "pool", "near"};
    const char *equals = memchr(option, '=', length);
    const size_t name = equals ? (size_t)(equals - option) : length;
    const size_t rest = equals ? length - name - 1 : 0;
    uint64_t value;
    if (is_word(option, name, "topk") || is_word(option, name, "rank"))
        return is_word(equals + 1, rest, "auto");
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        if (is_word(option, name, dropped[i])) {
            *spelled |= i == 0;
            *zero |= i == 0 && rest > 0 &&
                     read_number(equals + 1, rest, INT32_MAX, &value) && value == 0;
            return true;
        }
    return false;
}

/* q-clustered-C was spelled shoal-C:keyclusters=0; and shoal-C alone before shoal had key
   clusters, which files with every option can be told by (`is_complete`). Writes its name
   of today and returns whether the spelling is such a one. */
static bool rename_old(const char *text, bool is_complete, printed *to) {
    bool zero = false, spelled = false;
    const size_t name = strcspn(text, ":");
    if (strncmp(text, "shoal", 5) != 0 || (name > 5 && text[5] != '-'))
        return false;
    to->separator = ':';
    append(to, "q-clustered-%.*s", name > 5 ? (int)name - 6 : 3,
           name > 5 ? text + 6 : "100");
    for (const char *option = text + name; *option;) {
        const size_t length = strcspn(++option, ",");
        if (!is_dropped(option, length, &zero, &spelled)) {
            append(to, "%c%.*s", to->separator, (int)length, option);
            to->separator = ',';
        }
        option += length;
    }
    return (zero || (is_complete && !spelled && text[5] == '-')) &&
           to->length < sizeof to->text;
}

/* shoal-C was its second form before it had a third. Files with every option tell it by
   the lack of the option `form`. Writes the spelling of today and returns whether the
   spelling is such a one. */
static bool add_form(const char *text, printed *to) {
    const size_t name = strcspn(text, ":");
    if (strncmp(text, "shoal", 5) != 0 || (name > 5 && text[5] != '-'))
        return false;
    for (const char *option = text + name; *option; option += strcspn(option, ",")) {
        option++;
        if (is_word(option, strcspn(option, "="), "form"))
            return false;
    }
    append(to, "%s%cform=2", text, text[name] ? ',' : ':');
    return to->length < sizeof to->text;
}

static shoal_status check_arguments(shoal_context *context, const char *text,
                                    const shoal_attention *attention) {
    if (context && !context->kernels)
        return SHOAL_INVALID; /* the message says why the context was refused */
    if (!text || !attention)
        return REFUSE(context, "attention: spelling or result is NULL");
    return SHOAL_OK;
}

shoal_status shoal_attention_parse(shoal_context *context, const char *text,
                                   shoal_attention *attention) {
    printed renamed = {.length = 0};
    TRY(check_arguments(context, text, attention));
    if (rename_old(text, false, &renamed))
        return REFUSE(context,
                      "attention \"%.80s\" is now called %s; shoal has at least one key "
                      "cluster",
                      text, renamed.text);
    return parse(context, text, attention);
}

shoal_status shoal_attention_parse_stored(shoal_context *context, const char *text,
                                          int is_complete, shoal_attention *attention) {
    printed renamed = {.length = 0}, second = {.length = 0};
    TRY(check_arguments(context, text, attention));
    if (rename_old(text, is_complete != 0, &renamed))
        return parse(context, renamed.text, attention);
    return parse(context, is_complete && add_form(text, &second) ? second.text : text,
                 attention);
}

/* ---- Checking ---------------------------------------------------------------------- */

/* Hashes have bits and the keys' metric has a rank: the other one is not used. */
static bool is_unused(const shoal_attention *attention, const field_row *row) {
    return row->bit != 0 &&
           row->bit == (attention->clustering == SHOAL_CLUSTERING_KEYS ? OPTION_BITS
                                                                       : OPTION_RANK);
}

static bool is_legal(const field_row *row, int32_t value) {
    return value >= row->min && value <= row->max;
}

static bool is_by_size(const attention_kind *kind, const field_row *row, int32_t value) {
    return value == SHOAL_BY_SIZE && has_size_default(kind, row);
}

shoal_status sh_attention_check(shoal_context *context, shoal_attention *attention) {
    const attention_kind *kind = sh_attention_kind_at((int)attention->kind);
    if (!kind)
        return REFUSE(context, "attention.kind is %d: there is no such kind",
                      (int)attention->kind);
    const field_row *number = number_of(kind);
    for (int i = 0; i < FIELDS; i++)
        if (&fields[i] != number && fields[i].bit && !(kind->options & fields[i].bit))
            *field(attention, &fields[i]) = value_of(&kind->info.defaults, &fields[i]);
    for (int i = 0; i < FIELDS; i++) {
        const int32_t value = value_of(attention, &fields[i]);
        if ((&fields[i] == number || (kind->options & fields[i].bit)) &&
            !is_unused(attention, &fields[i]) && !is_legal(&fields[i], value) &&
            !is_by_size(kind, &fields[i], value))
            return REFUSE(context, "attention.%s is %d: it must be %d to %d%s",
                          fields[i].name, (int)value, (int)fields[i].min,
                          (int)fields[i].max,
                          value == 0 && fields[i].bit == OPTION_KEYCLUSTERS
                              ? "; shoal without key clusters is SHOAL_KIND_Q_CLUSTERED"
                              : "");
    }
    if (!kind->info.has_tolerance)
        attention->tolerance = 0;
    else if (attention->tolerance != 0 && !tolerance_is_legal(attention->tolerance))
        return REFUSE(context,
                      "attention.tolerance is %g: it must be 0, or from 0.0001 to 10",
                      (double)attention->tolerance);
    return SHOAL_OK;
}

/* ---- Printing --------------------------------------------------------------------- */

static void append_option(printed *to, const char *name) {
    append(to, "%c%s=", to->separator, name);
    to->separator = ',';
}

/* An option that is not used is shown where it could be read back. */
static void append_field(printed *to, const shoal_attention *attention,
                         const field_row *row) {
    const int32_t value = value_of(attention, row);
    const attention_kind *kind = sh_attention_kind_at((int)attention->kind);
    if (is_unused(attention, row) && !is_legal(row, value))
        return;
    append_option(to, row->name);
    if (is_by_size(kind, row, value))
        append(to, "auto");
    else if (row->names && is_legal(row, value))
        append(to, "%s", row->names[value]);
    else
        append(to, "%d", (int)value);
}

static size_t print(const shoal_attention *attention, bool all, char *text, size_t size) {
    const attention_kind *kind = attention ? sh_attention_kind_at((int)attention->kind)
                                           : NULL;
    printed to = {.separator = ':'};
    if (kind) {
        const shoal_kind_info *info = &kind->info;
        const field_row *number = number_of(kind);
        const bool by_size = number &&
                             is_by_size(kind, number, value_of(attention, number));
        append(&to, "%.*s", (int)prefix_length(kind) - by_size, info->name);
        if (number && !by_size)
            append(&to, "%d", (int)value_of(attention, number_of(kind)));
        for (int i = 0; i < FIELDS; i++)
            if ((kind->options & fields[i].bit) &&
                (all || value_of(attention, &fields[i]) !=
                            value_of(&info->defaults, &fields[i])))
                append_field(&to, attention, &fields[i]);
        if (info->has_tolerance && attention->tolerance > 0) {
            /* The fewest decimals that read back as the same float. */
            char digits[40];
            int decimals = 0;
            shoal_attention back = {0};
            do {
                sh_print_c(digits, sizeof digits, "%.*f", decimals,
                           (double)attention->tolerance);
                read_tolerance(NULL, digits, digits, strlen(digits), &back);
            } while (back.tolerance != attention->tolerance && ++decimals < 20);
            append_option(&to, "tolerance");
            append(&to, "%s", digits);
        }
        if (info->has_seed && (all || attention->seed != info->defaults.seed)) {
            append_option(&to, "seed");
            append(&to, "%" PRIu64, attention->seed);
        }
    }
    if (text && size > 0)
        snprintf(text, size, "%s", to.text);
    return to.length;
}

size_t shoal_attention_print(const shoal_attention *attention, char *text, size_t size) {
    return print(attention, false, text, size);
}

size_t shoal_attention_print_all(const shoal_attention *attention, char *text,
                                 size_t size) {
    return print(attention, true, text, size);
}
