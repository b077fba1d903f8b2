#define _GNU_SOURCE
#include "command.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

const char exit_codes_help[] =
    "exit codes:\n"
    "  0    success\n"
    "  1    a command found one of its own results to be wrong\n"
    "  2    usage: the command line is invalid\n"
    "  3    bad input: a file cannot be read or is unsuitable, or a training diverged\n"
    "  4    out of resources: not enough memory, or an output cannot be written\n"
    "  130  interrupted (128 plus the signal number); files are written whole or not at "
    "all\n";

/* ---- Messages --------------------------------------------------------------------- */

/* UTF-8 encodes the control characters from U+0080 on as 0xc2 and another byte. */
int control_bytes(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
        return 2;
    return (*c && *c < ' ') || *c == 0x7f;
}

void mask_controls(char *text) {
    while (*text) {
        const int bytes = control_bytes(text);
        memset(text, '?', (size_t)bytes);
        text += bytes ? bytes : 1;
    }
}

static void print_masked(const char *format, va_list arguments) {
    char *text;
    if (vasprintf(&text, format, arguments) < 0)
        return;
    mask_controls(text);
    fprintf(stderr, "%s\n", text);
    free(text);
}

static const char *command = "", *usage = ""; /* of the current command */
static shoal_context *context_in_use;
static int own_rank = -1; /* -1 for a single process */

void complain_as(int rank) {
    own_rank = rank;
}

int complain(int exit_code, const char *complaining, const char *format, ...) {
    va_list arguments;
    char rank[32] = "";
    progress_end();
    if (own_rank >= 0)
        snprintf(rank, sizeof rank, "rank %d: ", own_rank);
    fprintf(stderr, "shoal%s%s: %s", *complaining ? " " : "", complaining, rank);
    va_start(arguments, format);
    print_masked(format, arguments);
    va_end(arguments);
    return exit_code;
}

void tell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print_masked(format, arguments);
    va_end(arguments);
}

/* ---- Leaving ----------------------------------------------------------------------- */

static struct {
    void (*function)(void *what);
    void *what;
} last_word;

static shoal_transport *own_ranks; /* NULL for a single process */
static bool others_wait;

void before_leaving(void (*function)(void *what), void *what) {
    last_word.function = function;
    last_word.what = what;
}

const char *command_name(void) {
    return command;
}

int finish_program(int code) {
    if (own_ranks)
        ranks_close(own_ranks, code);
    const bool broken = fflush(stdout) != 0 || ferror(stdout);
    if (broken && stdout_reader_left())
        end_as_by_pipe();
    if (broken && code == EXIT_OK)
        return complain(EXIT_RESOURCES, "", "the output could not be written");
    return code;
}

_Noreturn void leave(int exit_code) {
    void (*const speak)(void *) = last_word.function;
    progress_end();
    last_word.function = NULL;
    if (speak)
        speak(last_word.what);
    replace_nothing();
    if (others_wait)
        ranks_follow(own_ranks, exit_code);
    _exit(finish_program(exit_code));
}

_Noreturn void die(int exit_code, const char *format, ...) {
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    complain(exit_code, command, "%s", length < 0 ? "out of memory" : text);
    leave(exit_code);
}

_Noreturn void die_of_memory(void) {
    die(EXIT_RESOURCES, "out of memory");
}

void *reserve(size_t count, size_t size) {
    void *made = malloc(count && size ? count * size : 1);
    if (!made || (size && count > SIZE_MAX / size))
        die_of_memory();
    return made;
}

void *reserve_zeros(size_t count, size_t size) {
    void *made = calloc(count ? count : 1, size);
    if (!made)
        die_of_memory();
    return made;
}

int complain_status(shoal_status status, int otherwise, const char *complaining,
                    const shoal_context *context) {
    const char *message = context ? shoal_context_message(context) : "";
    return complain(status == SHOAL_NO_MEMORY ? EXIT_RESOURCES : otherwise, complaining,
                    "%s", *message ? message : shoal_status_text(status));
}

void demand(shoal_status status, int otherwise) {
    if (status != SHOAL_OK)
        leave(complain_status(status, otherwise, command, context_in_use));
}

int open_context(const char *asking, int threads, const char *isa,
                 shoal_context **context) {
    const shoal_options options = {.size = sizeof(shoal_options),
                                   .threads = threads,
                                   .isa = isa};
    const shoal_status status = shoal_context_create(&options, context);
    if (status == SHOAL_OK)
        return EXIT_OK;
    const int code = complain_status(status, EXIT_USAGE, asking, *context);
    shoal_context_destroy(*context);
    *context = NULL;
    return code;
}

shoal_context *begin_context(int64_t threads, const char *isa) {
    const int code = open_context(command, (int)threads, isa, &context_in_use);
    if (code != EXIT_OK)
        leave(code);
    return context_in_use;
}

/* ---- Several processes ------------------------------------------------------------- */

/* The environment variable set by a launcher, or NULL if there was none. *size is 0 if
   the variable does not give the number of processes. */
static const char *find_launcher(long *size) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK",
                                        "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *text = getenv(names[i]);
        if (!text || !*text)
            continue;
        *size = strstr(names[i], "SIZE") ? strtol(text, NULL, 10) : 0;
        return names[i];
    }
    return NULL;
}

shoal_transport *begin_ranks(const char *advice) {
    long size = 0;
    const char *variable = find_launcher(&size);
    own_ranks = variable && size != 1 ? ranks_open(variable, size, advice) : NULL;
    if (own_ranks)
        ranks_same(own_ranks, digest_bytes(1, command, strlen(command)),
                   "another command");
    return own_ranks;
}

void first_alone_begin(const shoal_transport *ranks) {
    others_wait = ranks->rank == 0;
}

void first_alone_end(shoal_transport *ranks) {
    others_wait = false;
    const int code = ranks_follow(ranks, EXIT_OK);
    if (code != EXIT_OK)
        leave(code);
}

/* ---- Time and sizes ---------------------------------------------------------------- */

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

enum { TEXT = 96 };

static char *next_text(void) {
    static char texts[8][TEXT];
    static unsigned next;
    return texts[next++ % 8];
}

/* Three digits, so that columns of very different magnitudes align. */
static const char *scaled_text(double value, double step, const char *const *units,
                               int count) {
    char *text = next_text();
    int unit = 0;
    while (value >= 999.5 && unit + 1 < count) {
        value /= step;
        unit++;
    }
    int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    if (unit == 0 && step == 1024) /* bytes are integers */
        decimals = 0;
    snprintf(text, TEXT, "%.*f %s", decimals, value, units[unit]);
    return text;
}

const char *bytes_text(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    return scaled_text(bytes, 1024, units, 5);
}

const char *seconds_text(double seconds) {
    static const char *const units[] = {"us", "ms", "s"};
    return scaled_text(seconds * 1e6, 1000, units, 3);
}

int by_double(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

const char *plural(int64_t count) {
    return count == 1 ? "" : "s";
}

const char *setting_text(const shoal_context *context) {
    char *text = next_text();
    const int threads = shoal_context_threads(context);
    snprintf(text, TEXT, "shoal %s, %s, %d thread%s", shoal_version(),
             shoal_context_isa(context), threads, plural(threads));
    return text;
}

/* ---- JSON -------------------------------------------------------------------------- */

json_t *load_json(const char *asking, const char *path) {
    json_error_t error = {.line = -1};
    json_t *object = NULL;
    struct stat information;
    FILE *file = fopen(path, "r");
    if (!file)
        complain(EXIT_BAD_INPUT, asking, "%s: cannot open it: %s", path, strerror(errno));
    else if (fstat(fileno(file), &information) == 0 && S_ISDIR(information.st_mode))
        complain(EXIT_BAD_INPUT, asking, "%s: is a directory; name a file in it", path);
    else if (!(object = json_loadf(file, JSON_REJECT_DUPLICATES, &error)))
        complain(EXIT_BAD_INPUT, asking, "%s: line %d: %s", path, error.line, error.text);
    if (file)
        fclose(file);
    return object;
}

json_t *json_seed(uint64_t seed) {
    return seed <= INT64_MAX ? json_integer((json_int_t)seed)
                             : json_sprintf("%" PRIu64, seed);
}

void make_utf8(char *text) {
    json_t *valid = json_string(text);
    for (char *c = text; !valid && *c; c++)
        *c = *c & 0x80 ? '?' : *c;
    json_decref(valid);
}

json_t *json_text(const char *text) {
    char *copy = text ? strdup(text) : NULL;
    if (!copy)
        return json_null();
    make_utf8(copy);
    json_t *string = json_string(copy);
    free(copy);
    return string;
}

int print_json(json_t *object) {
    int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(object);
    if (failed || putchar('\n') == EOF || fflush(stdout) != 0)
        return stdout_reader_left()
                   ? EXIT_OK
                   : complain(EXIT_RESOURCES, "", "the JSON output could not be written");
    return EXIT_OK;
}

json_t *json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *json_numbers(const double *values, int64_t count) {
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, json_number(values[i]));
    return list;
}

/* ---- Closest match ---------------------------------------------------------------- */

enum { LONGEST_WORD = 63 };

/* Levenshtein distance. */
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
            const int other = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            row[j + 1] = changed < other ? changed : other;
        }
    }
    return row[columns];
}

const char *closest_name(const char *word, const void *names, int count, int stride) {
    const char *closest = NULL;
    int least = (int)strlen(word) / 3 + 2; /* more distant names are not suggested */
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

const char *const precision_names[] = {"auto", "float32", "bfloat16", "int8", NULL};
const char *const isa_names[] = {"scalar", "avx2", "avx512", "neon", NULL};

/* Translates the table into getopt's two notations; a row is returned as 256 + its
   index. */
static void translate(const option_row *rows, struct option *longs, char *shorts) {
    *shorts++ = ':';
    for (int i = 0; rows[i].name; i++) {
        const char *value = rows[i].value;
        const int argument = !value            ? no_argument
                             : value[0] == '[' ? optional_argument
                                               : required_argument;
        longs[i] = (struct option){rows[i].name, argument, NULL, 256 + i};
        if (!rows[i].letter)
            continue;
        *shorts++ = rows[i].letter;
        if (value)
            *shorts++ = ':';
    }
    *shorts = 0;
}

static void refuse_option(const command_help *help, const char *written,
                          bool value_missing) {
    char name[LONGEST_WORD + 1];
    const char *bare = written + strspn(written, "-");
    int shown = 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(bare, "="), bare);
    while (help->options[shown].name && help->options[shown].help)
        shown++;
    const char *near =
        closest_name(name, &help->options->name, shown, sizeof(option_row));
    if (value_missing)
        complain(EXIT_USAGE, help->command, "%.60s needs a value", written);
    else if (near && strcmp(near, name) == 0)
        complain(EXIT_USAGE, help->command, "--%s takes no value", name);
    else if (near && strncmp(written, "--", 2) == 0)
        complain(EXIT_USAGE, help->command,
                 "unknown or ambiguous option %.60s; did you mean --%s?", written, near);
    else
        complain(EXIT_USAGE, help->command,
                 "unknown option %.60s%s; see shoal %s%s--help", written,
                 strlen(written) > 60 ? "..." : "", help->command,
                 *help->command ? " " : "");
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
        for (const char *text = row->help; *text; text++)
            printf(*text == '\n' ? "%c%29s" : "%c%s", *text, "");
        putchar('\n');
    }
    if (help->notes)
        printf("\n%s", help->notes);
}

/* ---- Numbers ---------------------------------------------------------------------- */

bool parse_integer(const char *asking, const char *option, const char *text, int64_t min,
                   int64_t max, int64_t *value) {
    char *rest;
    errno = 0;
    long long parsed = strtoll(text, &rest, 10);
    if (rest != text && !*rest && errno == 0 && parsed >= min && parsed <= max) {
        *value = parsed;
        return true;
    }
    complain(EXIT_USAGE, asking,
             "--%s is \"%.60s\"; it must be a whole number from %" PRId64 " to %" PRId64,
             option, text, min, max);
    return false;
}

bool parse_seed(const char *asking, const char *option, const char *text,
                uint64_t *value) {
    char *rest;
    errno = 0;
    unsigned long long parsed = strtoull(text, &rest, 10);
    if (text[0] >= '0' && text[0] <= '9' && !*rest && errno == 0) {
        *value = parsed;
        return true;
    }
    complain(EXIT_USAGE, asking,
             "--%s is \"%.60s\"; it must be a whole number from 0 to %" PRIu64, option,
             text, UINT64_MAX);
    return false;
}

bool parse_scale(const char *asking, const char *option, const char *text, float *value) {
    char *rest;
    float parsed = strtof(text, &rest);
    if (rest != text && !*rest && isfinite(parsed) && parsed != 0) {
        *value = parsed;
        return true;
    }
    complain(EXIT_USAGE, asking,
             "--%s is \"%.60s\"; it must be a finite number other than 0", option, text);
    return false;
}

bool parse_number(const char *asking, const char *option, const char *text, double min,
                  double max, double *value) {
    char *rest;
    *value = strtod(text, &rest);
    if (rest != text && !*rest && *value >= min && *value <= max)
        return true;
    complain(EXIT_USAGE, asking, "--%s is \"%.60s\"; it must be a number from %g to %g",
             option, text, min, max);
    return false;
}

const char *default_model(const char *variable) {
    const char *model = getenv(variable);
    return model && *model ? model : getenv("SHOAL_MODEL");
}

/* ---- Taking options --------------------------------------------------------------- */

static bool take_choice(const option_row *row, const char *value, int *choice) {
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
    complain(EXIT_USAGE, command, "--%s is \"%.60s\"; it must be %s", row->name, value,
             list);
    return false;
}

static bool take_option(const option_row *row, const char *value, void *job) {
    void *field = (char *)job + row->field;
    kind_list *kinds = field;
    switch (row->type) {
    case OPTION_FLAG: *(bool *)field = true; return true;
    case OPTION_TEXT:
        *(const char **)field = value;
        return !row->take || row->take(job, row->name, value);
    case OPTION_INTEGER:
        return parse_integer(command, row->name, value, row->min, row->max, field);
    case OPTION_NUMBER:
        return parse_number(command, row->name, value, (double)row->min, (double)row->max,
                            field);
    case OPTION_SEED: return parse_seed(command, row->name, value, field);
    case OPTION_CHOICE: return take_choice(row, value, field);
    case OPTION_KINDS:
        kinds->count = read_kinds(command, row->name, value, kinds->names[0], KIND_NAME,
                                  (int)row->max);
        return kinds->count > 0;
    default: return row->take(job, row->name, value);
    }
}

/* The row of the option that getopt found, or NULL after a message. */
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

/* Rejects empty and repeated values. */
static bool refuse_value(const command_help *help, const option_row *row,
                         const char *value, bool *seen) {
    const bool file = row->value &&
                      (strcmp(row->value, "FILE") == 0 || strcmp(row->value, "DIR") == 0);
    if (row->value && value && !*value)
        complain(EXIT_USAGE, help->command,
                 "--%s is empty; is an environment variable unset?", row->name);
    else if (file && *seen && !row->repeats)
        complain(EXIT_USAGE, help->command, "--%s is given twice; give it once",
                 row->name);
    else {
        *seen = true;
        return false;
    }
    return true;
}

/* Stores each option in the job; returns an exit code, or -1. */
static int take_all(const command_help *help, int count, char **arguments, void *job,
                    int rows) {
    struct option *longs = reserve_zeros((size_t)rows + 1, sizeof *longs);
    bool *seen = reserve_zeros((size_t)rows + 1, sizeof *seen);
    char *shorts = reserve((size_t)rows + 1, 2);
    int code = -1;
    translate(help->options, longs, shorts);
    opterr = 0;
    optind = 0; /* restarts glibc's getopt */
    for (int found; code < 0 &&
                    (found = getopt_long(count, arguments, shorts, longs, NULL)) != -1;) {
        const option_row *row = find_row(help, arguments, found);
        if (row && row->type == OPTION_HELP) {
            print_help(help);
            code = EXIT_OK;
        } else if (!row || refuse_value(help, row, optarg, &seen[row - help->options]) ||
                   !take_option(row, optarg, job)) {
            code = EXIT_USAGE;
        }
    }
    free(longs);
    free(seen);
    free(shorts);
    return code;
}

int take_options(const command_help *help, int count, char **arguments, void *job) {
    int rows = 0;
    command = help->command;
    usage = help->usage;
    while (help->options[rows].name)
        rows++;
    const int code = take_all(help, count, arguments, job, rows);
    if (code >= 0)
        return code;
    for (int i = optind; i < count; i++)
        if (!*arguments[i])
            return complain(EXIT_USAGE, command,
                            "an argument is empty; is an environment variable unset?");
    if (!help->words && optind < count)
        return complain(EXIT_USAGE, command, "unexpected argument %.200s",
                        arguments[optind]);
    return -1;
}

void begin_command(const command_help *help, int count, char **arguments, void *job) {
    const int code = take_options(help, count, arguments, job);
    if (code >= 0)
        leave(code);
}

_Noreturn void die_of_usage(const char *what) {
    die(EXIT_USAGE, "%s; usage: shoal %s", what, usage);
}

/* ---- Kinds ------------------------------------------------------------------------ */

int read_kinds(const char *asking, const char *option, const char *text, char *names,
               size_t size, int most) {
    int kinds = 0;
    for (;; text++) {
        const int length = (int)strcspn(text, ",");
        const size_t word = strspn(text, "abcdefghijklmnopqrstuvwxyz");
        const bool more = kinds > 0 && word > 0 && text[word] == '=';
        if (!more && kinds == most) {
            complain(EXIT_USAGE, asking, "--%s has more than %d kinds; give fewer",
                     option, most);
            return 0;
        }
        kinds += !more;
        char *name = names + (size_t)(kinds - 1) * size;
        const size_t used = more ? strlen(name) : 0;
        const int written =
            snprintf(name + used, size - used, "%s%.*s", more ? "," : "", length, text);
        if (used + (size_t)written >= size) {
            complain(EXIT_USAGE, asking, "--%s: %.40s... is too long for a kind", option,
                     name);
            return 0;
        }
        text += length;
        if (!*text)
            return kinds;
    }
}

void default_kinds(kind_list *kinds, const char *text) {
    if (kinds->count == 0)
        kinds->count =
            read_kinds(command, "kinds", text, kinds->names[0], KIND_NAME, KINDS_MOST);
}

int place_full(kind_list *kinds, const char *option, int most) {
    for (int i = 0; i < kinds->count; i++)
        if (strcspn(kinds->names[i], "@") == 4 &&
            strncmp(kinds->names[i], "full", 4) == 0)
            return i;
    if (kinds->count == most)
        die(EXIT_USAGE, "--%s has more than %d kinds besides full; give fewer", option,
            most - 1);
    memmove(kinds->names + 1, kinds->names, (size_t)kinds->count++ * KIND_NAME);
    strcpy(kinds->names[0], "full");
    return 0;
}

void parse_kind_list(kind_list *kinds, shoal_context *context, uint64_t seed) {
    for (int i = 0; i < kinds->count; i++) {
        shoal_attention *kind = &kinds->attention[i];
        demand(shoal_attention_parse(context, kinds->names[i], kind), EXIT_USAGE);
        if (!strstr(kinds->names[i], "seed=") && kind->seed != 0)
            kind->seed = seed;
        shoal_attention_print(kind, kinds->names[i], KIND_NAME);
    }
}

bool next_range(const char *option, char **rest, int64_t min, int64_t max, int64_t *from,
                int64_t *to) {
    char *piece = strsep(rest, ","), *dots = piece ? strstr(piece, "..") : NULL;
    if (!piece)
        return false;
    if (dots)
        *dots = 0;
    if (!parse_integer(command, option, piece, min, max, from) ||
        (dots && !parse_integer(command, option, dots + 2, *from, max, to)))
        leave(EXIT_USAGE);
    if (!dots)
        *to = *from;
    return true;
}

void plan_output(const char *path) {
    const int code = will_write(command, path);
    if (code != EXIT_OK)
        leave(code);
}

void plan_input(const char *path) {
    const int code = will_read(command, path);
    if (code != EXIT_OK)
        leave(code);
}

/* ---- Progress --------------------------------------------------------------------- */

static struct {
    bool running, stop, shown, terminal;
    double begun, silent_seconds;
    double between, next; /* without a terminal: seconds between lines, and time of the
                             next */
    char text[200];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void print_progress(double elapsed) {
    struct winsize window = {0};
    char seconds[32];
    int room = 79 - snprintf(seconds, sizeof seconds, " (%.0f s)", elapsed);
    int length = (int)strlen(progress.text);
    if (!progress.terminal) {
        tell("shoal %s: %s%s", command, progress.text, seconds);
        return;
    }
    /* At most one terminal line: a longer one would remain when the next is written. */
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        room += window.ws_col - 80;
    if (length > room)
        length = room > 0 ? room : 0;
    while (length > 0 && (progress.text[length] & 0xc0) == 0x80)
        length--; /* keeps UTF-8 characters whole */
    fprintf(stderr, "\r\033[K%.*s%s", length, progress.text, seconds);
    progress.shown = true;
}

static void *show_progress(void *unused) {
    pthread_mutex_lock(&progress.lock);
    while (!progress.stop) {
        const double now = seconds_now();
        const double due = progress.terminal ? progress.begun + progress.silent_seconds
                                             : progress.next;
        if (progress.text[0] && now >= due) {
            print_progress(now - progress.begun);
            progress.next = now + progress.between;
        }
        const double wait = progress.terminal ? 0.25 : fmax(0.25, progress.next - now);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += (time_t)wait;
        until.tv_nsec += (long)(1e9 * fmod(wait, 1));
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&progress.changed, &progress.lock, &until);
    }
    if (progress.shown)
        fputs("\r\033[K", stderr);
    pthread_mutex_unlock(&progress.lock);
    return unused;
}

void progress_begin(double silent_seconds) {
    const char *between = getenv("SHOAL_PROGRESS");
    if (progress.running || own_rank > 0)
        return;
    progress.terminal = isatty(STDERR_FILENO);
    progress.between = between && *between ? strtod(between, NULL) : 30;
    if (!progress.terminal && !(progress.between > 0))
        return;
    progress.stop = progress.shown = false;
    if (progress.begun == 0) {
        progress.begun = seconds_now();
        progress.next = progress.begun + progress.between;
    }
    progress.silent_seconds = silent_seconds;
    progress.text[0] = 0;
    progress.running = pthread_create(&progress.thread, NULL, show_progress, NULL) == 0;
}

void progress_say(const char *format, ...) {
    if (!progress.running)
        return;
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&progress.lock);
    vsnprintf(progress.text, sizeof progress.text, format, arguments);
    mask_controls(progress.text);
    pthread_mutex_unlock(&progress.lock);
    va_end(arguments);
}

void progress_end(void) {
    if (!progress.running)
        return;
    pthread_mutex_lock(&progress.lock);
    progress.stop = true;
    pthread_cond_signal(&progress.changed);
    pthread_mutex_unlock(&progress.lock);
    pthread_join(progress.thread, NULL);
    progress.running = false;
}

/* ---- Signals ---------------------------------------------------------------------- */

static volatile sig_atomic_t writing, pending_signal;

static void on_signal(int number) {
    if (writing) {
        pending_signal = number;
        return;
    }
    /* Ends the progress line; an error here cannot be handled. */
    const bool line = progress.running && progress.terminal;
    ssize_t unused = line ? write(STDERR_FILENO, "\n", 1) : 0;
    (void)unused;
    _exit(128 + number);
}

void catch_signals(void (*handler)(int number)) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        /* A signal that was ignored at start (nohup) stays ignored. */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

/* Input files are mapped: truncating one while it is in use raises SIGBUS. */
static void on_lost_pages(int number) {
    static const char message[] =
        "shoal: an input file was truncated, or its disk failed, while it was in use\n";
    (void)number;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
        _exit(EXIT_RESOURCES);
    _exit(EXIT_BAD_INPUT);
}

void handle_signals(void) {
    struct sigaction lost = {.sa_handler = on_lost_pages};
    sigemptyset(&lost.sa_mask);
    sigaction(SIGBUS, &lost, NULL);
    signal(SIGXFSZ, SIG_IGN); /* write() then fails with EFBIG at a file size limit */
    catch_signals(on_signal);
}

static volatile sig_atomic_t noted_signal;

static void note_signal(int number) {
    if (noted_signal) /* second signal: exit without waiting */
        on_signal(number);
    noted_signal = number;
}

void watch_stop(void) {
    catch_signals(note_signal);
}

int stop_signal(void) {
    return (int)noted_signal;
}

void writing_begin(void) {
    writing = 1;
}

void writing_wait(void) {
    const double begun = seconds_now();
    while (writing && seconds_now() - begun < 10)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

void writing_end(void) {
    writing = 0;
    if (pending_signal)
        _exit(128 + (int)pending_signal);
}
