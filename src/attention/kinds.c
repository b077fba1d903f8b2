/* Reads and writes spellings such as "i-clustered-100:topk=32,seed=7". */
#include "attention/kinds.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/plan.h"
#include "base/plain.h"

/* Every option after the colon. The number after the kind's name is a field like them.
   An option with names has those values instead of numbers. Defaults are the kind's. */
typedef struct {
    const char *name;
    unsigned bit;
    size_t offset; /* of an int32_t in shoal_attention */
    int32_t least, most;
    const char *const *names;
} option_row;

static const char *const grouping_names[] = {"hash", "keys"};
static const char *const normaliser_names[] = {"cluster", "query"};

static const option_row option_rows[] = {
    {"topk", OPTION_TOPK, offsetof(shoal_attention, topk), 1, 65535, NULL},
    {"groups", OPTION_GROUPS, offsetof(shoal_attention, groups), 0, 1, grouping_names},
    {"normaliser", OPTION_NORMALISER, offsetof(shoal_attention, normaliser), 0, 1,
     normaliser_names},
    {"bits", OPTION_BITS, offsetof(shoal_attention, bits), 1, 255, NULL},
    {"rank", OPTION_RANK, offsetof(shoal_attention, rank), 1, 1024, NULL},
    {"iterations", OPTION_ITERATIONS, offsetof(shoal_attention, iterations), 1, 1000,
     NULL},
};
enum { OPTION_ROWS = sizeof option_rows / sizeof *option_rows };

static const option_row number_rows[] = {
    [NUMBER_CLUSTERS] = {"clusters", 0, offsetof(shoal_attention, clusters), 1, 65535,
                         NULL},
    [NUMBER_ROUNDS] = {"rounds", 0, offsetof(shoal_attention, rounds), 1, 255, NULL},
    [NUMBER_TOPK] = {"topk", 0, offsetof(shoal_attention, topk), 1, 65535, NULL},
};

static int32_t *field(shoal_attention *attention, const option_row *row) {
    return (int32_t *)(void *)((char *)attention + row->offset);
}

static int32_t value_of(const shoal_attention *attention, const option_row *row) {
    return *(const int32_t *)(const void *)((const char *)attention + row->offset);
}

static const attention_kind *row_of(shoal_kind kind) {
    for (int i = 0; sh_attention_kind_at(i); i++)
        if (sh_attention_kind_at(i)->kind == kind)
            return sh_attention_kind_at(i);
    return NULL;
}

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

static shoal_status read_name(shoal_context *context, const char *whole,
                              const option_row *row, const char *text, size_t length,
                              shoal_attention *attention) {
    for (int32_t value = row->least; value <= row->most; value++)
        if (strlen(row->names[value]) == length &&
            !memcmp(row->names[value], text, length)) {
            *field(attention, row) = value;
            return SHOAL_OK;
        }
    return sh_fail(context, SHOAL_INVALID,
                   "attention \"%.80s\": %s is \"%.*s\", it must be %s or %s", whole,
                   row->name, (int)(length < 40 ? length : 40), text, row->names[0],
                   row->names[1]);
}

static shoal_status read_field(shoal_context *context, const char *whole,
                               const option_row *row, const char *text, size_t length,
                               shoal_attention *attention) {
    uint64_t value;
    if (row->names)
        return read_name(context, whole, row, text, length, attention);
    if (!read_number(text, length, INT32_MAX, &value) || (int32_t)value < row->least ||
        (int32_t)value > row->most)
        return sh_fail(
            context, SHOAL_INVALID,
            "attention \"%.80s\": %s is \"%.*s\", it must be a whole number from %d "
            "to %d",
            whole, row->name, (int)(length < 40 ? length : 40), text, (int)row->least,
            (int)row->most);
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
    return sh_fail(
        context, SHOAL_INVALID,
        "attention \"%.80s\": tolerance must be a decimal number from 0.0001 to 10",
        whole);
}

/* One "name=value". */
static shoal_status read_option(shoal_context *context, const char *whole,
                                const char *text, size_t length, unsigned *seen,
                                shoal_attention *attention) {
    const char *equals = memchr(text, '=', length);
    size_t name = equals ? (size_t)(equals - text) : length;
    unsigned allowed = row_of(attention->kind)->options & ~*seen;
    if (equals && name == 4 && !memcmp(text, "seed", 4) && (allowed & OPTION_SEED)) {
        *seen |= OPTION_SEED;
        if (read_number(equals + 1, length - 5, UINT64_MAX, &attention->seed))
            return SHOAL_OK;
        return sh_fail(context, SHOAL_INVALID,
                       "attention \"%.80s\": seed must be a whole number below 2^64",
                       whole);
    }
    if (equals && name == 9 && !memcmp(text, "tolerance", 9) &&
        (allowed & OPTION_TOLERANCE)) {
        *seen |= OPTION_TOLERANCE;
        return read_tolerance(context, whole, equals + 1, length - 10, attention);
    }
    for (int i = 0; i < OPTION_ROWS && equals; i++) {
        const option_row *row = &option_rows[i];
        if (strlen(row->name) == name && !memcmp(text, row->name, name) &&
            (allowed & row->bit)) {
            *seen |= row->bit;
            return read_field(context, whole, row, equals + 1, length - name - 1,
                              attention);
        }
    }
    return sh_fail(
        context, SHOAL_INVALID,
        "attention \"%.80s\": \"%.*s\" is not an option of this kind, or is given "
        "twice (the kind with its options: %s)",
        whole, (int)(length < 40 ? length : 40), text,
        row_of(attention->kind)->info.defaults);
}

static shoal_status read_kind(shoal_context *context, const char *text, size_t length,
                              shoal_attention *attention) {
    for (int i = 0; sh_attention_kind_at(i); i++) {
        const attention_kind *kind = sh_attention_kind_at(i);
        size_t prefix = strlen(kind->prefix);
        if (length < prefix || memcmp(text, kind->prefix, prefix) != 0 ||
            (kind->number == NUMBER_NONE && length != prefix))
            continue;
        *attention = kind->defaults;
        attention->kind = kind->kind;
        if (kind->number == NUMBER_NONE)
            return SHOAL_OK;
        return read_field(context, text, &number_rows[kind->number], text + prefix,
                          length - prefix, attention);
    }
    return sh_fail(
        context, SHOAL_INVALID,
        "unknown attention \"%.80s\": the kinds are full, shared-full, clustered-C, "
        "i-clustered-C, lsh-R, oracle-top-k, shoal-C, auto, such as shoal-100:topk=64",
        text);
}

shoal_status shoal_attention_parse(shoal_context *context, const char *text,
                                   shoal_attention *attention) {
    if (context && !context->kernels)
        return SHOAL_INVALID; /* the message says why the context was refused */
    if (!text || !attention)
        return sh_fail(context, SHOAL_INVALID,
                       "attention: the spelling or its place is NULL");
    shoal_attention read = {0};
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    shoal_status status = read_kind(context, text, length, &read);
    if (status != SHOAL_OK)
        return status;
    unsigned seen = 0;
    for (const char *part = colon; part && status == SHOAL_OK;) {
        const char *start = part + 1;
        part = strchr(start, ',');
        size_t size = part ? (size_t)(part - start) : strlen(start);
        status = read_option(context, text, start, size, &seen, &read);
    }
    if (status == SHOAL_OK)
        *attention = read;
    return status;
}

/* Hashes have bits and the keys' metric has a rank: the other one is not used. */
static bool is_unused(const shoal_attention *attention, const option_row *row) {
    return row->bit ==
           (attention->groups == SHOAL_GROUPS_KEYS ? OPTION_BITS : OPTION_RANK);
}

static bool is_legal(const option_row *row, int32_t value) {
    return value >= row->least && value <= row->most;
}

shoal_status sh_attention_check(shoal_context *context, shoal_attention *attention) {
    const attention_kind *kind = row_of(attention->kind);
    if (!kind)
        return sh_fail(context, SHOAL_INVALID, "attention.kind is %d: no such kind",
                       (int)attention->kind);
    const option_row *wanted[OPTION_ROWS + 1];
    int count = 0;
    if (kind->number != NUMBER_NONE)
        wanted[count++] = &number_rows[kind->number];
    for (int i = 0; i < OPTION_ROWS; i++) {
        if (kind->options & option_rows[i].bit)
            wanted[count++] = &option_rows[i];
        else if (!(kind->number == NUMBER_TOPK && option_rows[i].bit == OPTION_TOPK))
            *field(attention, &option_rows[i]) =
                value_of(&kind->defaults, &option_rows[i]);
    }
    for (int i = 0; i < count; i++) {
        int32_t value = value_of(attention, wanted[i]);
        if (!is_unused(attention, wanted[i]) && !is_legal(wanted[i], value))
            return sh_fail(context, SHOAL_INVALID,
                           "attention.%s is %d: it must be %d to %d", wanted[i]->name,
                           (int)value, (int)wanted[i]->least, (int)wanted[i]->most);
    }
    if (!(kind->options & OPTION_TOLERANCE))
        attention->tolerance = 0;
    else if (attention->tolerance != 0 && !tolerance_is_legal(attention->tolerance))
        return sh_fail(context, SHOAL_INVALID,
                       "attention.tolerance is %g: it must be 0, or from 0.0001 to 10",
                       (double)attention->tolerance);
    return SHOAL_OK;
}

/* The fewest decimals that read back as the same float. */
static size_t print_tolerance(float tolerance, char *text, size_t size, char *separator) {
    char digits[40];
    int decimals = 0;
    shoal_attention back = {0};
    do {
        sh_print_c(digits, sizeof digits, "%.*f", decimals, (double)tolerance);
        read_tolerance(NULL, digits, digits, strlen(digits), &back);
    } while (back.tolerance != tolerance && ++decimals < 20);
    size_t length = (size_t)snprintf(text, size, "%ctolerance=%s", *separator, digits);
    *separator = ',';
    return length;
}

size_t shoal_attention_print(const shoal_attention *attention, char *text, size_t size) {
    const attention_kind *kind = row_of(attention->kind);
    char buffer[240] = "";
    size_t length = 0;
    if (kind)
        length = (size_t)snprintf(buffer, sizeof buffer, "%s", kind->prefix);
    if (kind && kind->number != NUMBER_NONE)
        length += (size_t)snprintf(buffer + length, sizeof buffer - length, "%d",
                                   (int)value_of(attention, &number_rows[kind->number]));
    char separator = ':';
    for (int i = 0; kind && i < OPTION_ROWS; i++) {
        int32_t value = value_of(attention, &option_rows[i]);
        if (!(kind->options & option_rows[i].bit) ||
            (is_unused(attention, &option_rows[i]) &&
             !is_legal(&option_rows[i], value)) ||
            value == value_of(&kind->defaults, &option_rows[i]))
            continue;
        length += (size_t)snprintf(buffer + length, sizeof buffer - length,
                                   "%c%s=", separator, option_rows[i].name);
        length += option_rows[i].names && value >= 0 && value <= option_rows[i].most
                      ? (size_t)snprintf(buffer + length, sizeof buffer - length, "%s",
                                         option_rows[i].names[value])
                      : (size_t)snprintf(buffer + length, sizeof buffer - length, "%d",
                                         (int)value);
        separator = ',';
    }
    if (kind && (kind->options & OPTION_TOLERANCE) && attention->tolerance > 0)
        length += print_tolerance(attention->tolerance, buffer + length,
                                  sizeof buffer - length, &separator);
    if (kind && (kind->options & OPTION_SEED) && attention->seed != kind->defaults.seed)
        length += (size_t)snprintf(buffer + length, sizeof buffer - length,
                                   "%cseed=%" PRIu64, separator, attention->seed);
    if (size > 0)
        snprintf(text, size, "%s", buffer);
    return length;
}

const shoal_kind_info *shoal_kind_describe(int index) {
    const attention_kind *kind = sh_attention_kind_at(index);
    return kind ? &kind->info : NULL;
}
