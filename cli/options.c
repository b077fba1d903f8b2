#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"

/* ---- Closest match ---------------------------------------------------------------- */

enum { LONGEST_WORD = 63 };

static int min(int a, int b) {
    return a < b ? a : b;
}

/* How many letters to insert, drop or change to get from one word to the other. */
static int edit_distance(const char *from, const char *to) {
    int row[LONGEST_WORD + 1], columns = (int)strlen(to);
    if (columns > LONGEST_WORD)
        return LONGEST_WORD;
    for (int j = 0; j <= columns; j++)
        row[j] = j;
    for (int i = 0; from[i]; i++) {
        int diagonal = row[0];
        row[0] = i + 1;
        for (int j = 0; j < columns; j++) {
            int changed = diagonal + (from[i] != to[j]);
            diagonal = row[j + 1];
            row[j + 1] = min(changed, min(row[j], row[j + 1]) + 1);
        }
    }
    return row[columns];
}

const char *closest_name(const char *word, const void *names, int count, int stride) {
    const char *closest = NULL;
    int least = (int)strlen(word) / 3 + 2; /* further away is no help */
    for (int i = 0; i < count; i++) {
        const char *name;
        memcpy(&name, (const char *)names + (ptrdiff_t)i * stride, sizeof name);
        int distance = edit_distance(word, name);
        if (distance < least) {
            least = distance;
            closest = name;
        }
    }
    return closest;
}

/* ---- Options ---------------------------------------------------------------------- */

const char *const isa_names[] = {"scalar", "avx2", "avx512", "neon", NULL};

static int count_shown(const option_row *rows) {
    int count = 0;
    while (rows[count].name && rows[count].help)
        count++;
    return count;
}

static int argument_kind(const option_row *row) {
    return !row->value            ? no_argument
           : row->value[0] == '[' ? optional_argument
                                  : required_argument;
}

/* getopt's own two notations for the table; a row is known by 256 + its index. */
static void translate(const option_row *rows, struct option *longs, char *shorts) {
    *shorts++ = ':';
    for (int i = 0; rows[i].name; i++) {
        longs[i] = (struct option){rows[i].name, argument_kind(&rows[i]), NULL, 256 + i};
        if (!rows[i].letter)
            continue;
        *shorts++ = rows[i].letter;
        if (rows[i].value)
            *shorts++ = ':';
    }
    *shorts = 0;
}

static void refuse_option(const command_help *help, const char *written,
                          bool value_missing) {
    char name[LONGEST_WORD + 1];
    const char *bare = written + strspn(written, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(bare, "="), bare);
    const char *near = closest_name(name, &help->options->name,
                                    count_shown(help->options), sizeof(option_row));
    if (value_missing)
        complain(EXIT_USAGE, help->command, "%s needs a value", written);
    else if (near && strcmp(near, name) == 0)
        complain(EXIT_USAGE, help->command, "--%s takes no value", name);
    else if (near && strncmp(written, "--", 2) == 0)
        complain(EXIT_USAGE, help->command,
                 "unknown or ambiguous option %s; did you mean --%s?", written, near);
    else
        complain(EXIT_USAGE, help->command, "unknown option %s; see shoal %s%s--help",
                 written, help->command, *help->command ? " " : "");
}

static void print_indented(const char *text, int columns) {
    for (; *text; text++) {
        putchar(*text);
        if (*text == '\n')
            printf("%*s", columns, "");
    }
    putchar('\n');
}

void print_help(const command_help *help) {
    printf("usage: shoal %s\n\n%s", help->usage, help->about);
    printf("\noptions:\n");
    for (const option_row *row = help->options; row->name && row->help; row++) {
        char left[64], letter[8] = "    ";
        if (row->letter)
            snprintf(letter, sizeof letter, "-%c, ", row->letter);
        bool optional = row->value && row->value[0] == '[';
        snprintf(left, sizeof left, "%s--%s%s%s", letter, row->name,
                 row->value && !optional ? " " : "", row->value ? row->value : "");
        printf("  %-26s ", left);
        print_indented(row->help, 29);
    }
    if (help->notes)
        printf("\n%s", help->notes);
}

/* ---- Numbers ---------------------------------------------------------------------- */

bool parse_integer(const char *command, const char *option, const char *text, int64_t min,
                   int64_t max, int64_t *value) {
    char *rest;
    errno = 0;
    long long parsed = strtoll(text, &rest, 10);
    if (rest != text && !*rest && errno == 0 && parsed >= min && parsed <= max) {
        *value = parsed;
        return true;
    }
    complain(EXIT_USAGE, command,
             "--%s is \"%s\"; it must be a whole number from %" PRId64 " to %" PRId64,
             option, text, min, max);
    return false;
}

bool parse_seed(const char *command, const char *option, const char *text,
                uint64_t *value) {
    char *rest;
    errno = 0;
    unsigned long long parsed = strtoull(text, &rest, 10);
    if (text[0] >= '0' && text[0] <= '9' && !*rest && errno == 0) {
        *value = parsed;
        return true;
    }
    complain(EXIT_USAGE, command,
             "--%s is \"%s\"; it must be a whole number from 0 to %" PRIu64, option, text,
             UINT64_MAX);
    return false;
}

bool parse_scale(const char *command, const char *option, const char *text,
                 float *value) {
    char *rest;
    float parsed = strtof(text, &rest);
    if (rest != text && !*rest && isfinite(parsed) && parsed != 0) {
        *value = parsed;
        return true;
    }
    complain(EXIT_USAGE, command,
             "--%s is \"%s\"; it must be a finite number other than 0", option, text);
    return false;
}

bool parse_number(const char *command, const char *option, const char *text, double min,
                  double max, double *value) {
    char *rest;
    *value = strtod(text, &rest);
    if (rest != text && !*rest && *value >= min && *value <= max)
        return true;
    complain(EXIT_USAGE, command, "--%s is \"%s\"; it must be a number from %g to %g",
             option, text, min, max);
    return false;
}

/* ---- Taking options --------------------------------------------------------------- */

static bool take_choice(const char *command, const option_row *row, const char *value,
                        int *choice) {
    char list[120] = "";
    for (int i = 0; row->choices[i]; i++) {
        const char *between = i == 0 ? "" : row->choices[i + 1] ? ", " : " or ";
        const size_t used = strlen(list);
        if (strcmp(value, row->choices[i]) == 0) {
            *choice = i;
            return true;
        }
        snprintf(list + used, sizeof list - used, "%s%s", between, row->choices[i]);
    }
    complain(EXIT_USAGE, command, "--%s is \"%s\"; it must be %s", row->name, value,
             list);
    return false;
}

static bool take_option(const command_help *help, const option_row *row,
                        const char *value, void *job) {
    void *field = (char *)job + row->field;
    switch (row->type) {
    case OPTION_FLAG: *(bool *)field = true; return true;
    case OPTION_TEXT: *(const char **)field = value; return true;
    case OPTION_INTEGER:
        return parse_integer(help->command, row->name, value, row->min, row->max, field);
    case OPTION_SEED: return parse_seed(help->command, row->name, value, field);
    case OPTION_CHOICE: return take_choice(help->command, row, value, field);
    default: return row->take(job, row->name, value);
    }
}

/* The row of what getopt has just found, or NULL after a complaint. */
static const option_row *find_row(const command_help *help, char **arguments, int found) {
    if (found >= 256)
        return &help->options[found - 256];
    for (int i = 0; found != '?' && found != ':' && help->options[i].name; i++)
        if (help->options[i].letter == found)
            return &help->options[i];
    const char letter[3] = {'-', (char)optopt, 0};
    const bool is_letter = optopt > 0 && optopt < 256;
    refuse_option(help, is_letter ? letter : arguments[optind - 1], found == ':');
    return NULL;
}

/* What the command line alone shows to be a mistake. */
static bool refuse_value(const command_help *help, const option_row *row,
                         const char *value, bool *seen) {
    const bool file = row->value &&
                      (strcmp(row->value, "FILE") == 0 || strcmp(row->value, "DIR") == 0);
    if (row->value && value && !*value)
        complain(EXIT_USAGE, help->command, "--%s is empty; is a variable not set?",
                 row->name);
    else if (file && *seen && !row->repeats)
        complain(EXIT_USAGE, help->command, "--%s is given twice", row->name);
    else {
        *seen = true;
        return false;
    }
    return true;
}

int take_options(const command_help *help, int count, char **arguments, void *job) {
    struct option longs[MAX_OPTIONS + 1] = {{0}};
    bool seen[MAX_OPTIONS] = {false};
    char shorts[2 * MAX_OPTIONS + 2];
    translate(help->options, longs, shorts);
    opterr = 0;
    optind = 0; /* glibc's way to begin again */
    for (int found; (found = getopt_long(count, arguments, shorts, longs, NULL)) != -1;) {
        const option_row *row = find_row(help, arguments, found);
        if (row && row->type == OPTION_HELP) {
            print_help(help);
            return EXIT_OK;
        }
        if (!row || refuse_value(help, row, optarg, &seen[row - help->options]) ||
            !take_option(help, row, optarg, job))
            return EXIT_USAGE;
    }
    for (int i = optind; i < count; i++)
        if (!*arguments[i])
            return complain(EXIT_USAGE, help->command,
                            "a word of the line is empty; is a variable not set?");
    return -1;
}

/* ---- Kinds ------------------------------------------------------------------------ */

static bool continues_kind(const char *piece) {
    const size_t name = strspn(piece, "abcdefghijklmnopqrstuvwxyz");
    return name > 0 && piece[name] == '=';
}

int read_kinds(const char *command, const char *option, const char *text, char *names,
               size_t size, int most) {
    int kinds = 0;
    for (;; text++) {
        const int length = (int)strcspn(text, ",");
        const bool more = kinds > 0 && continues_kind(text);
        if (!more && kinds == most) {
            complain(EXIT_USAGE, command, "--%s has more than %d kinds", option, most);
            return 0;
        }
        kinds += !more;
        char *name = names + (size_t)(kinds - 1) * size;
        const size_t used = more ? strlen(name) : 0;
        const int written =
            snprintf(name + used, size - used, "%s%.*s", more ? "," : "", length, text);
        if (used + (size_t)written >= size) {
            complain(EXIT_USAGE, command, "--%s: %.40s... is too long", option, name);
            return 0;
        }
        text += length;
        if (!*text)
            return kinds;
    }
}
