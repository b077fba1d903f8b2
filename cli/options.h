/* Command lines from one table per subcommand: the table is what is parsed, what the
   help, the manual pages and the shells' completions show, and where the closest match to
   a misspelt option is found. */
#ifndef SHOAL_CLI_OPTIONS_H
#define SHOAL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_OPTIONS = 32 };

/* Takes the value of the option of that name (NULL: none) into the command's job; false
   after a complaint. */
typedef bool option_function(void *job, const char *name, const char *value);

typedef enum {
    OPTION_HELP,    /* prints the help and ends */
    OPTION_FLAG,    /* sets a bool */
    OPTION_TEXT,    /* sets a const char * */
    OPTION_INTEGER, /* sets an int64_t, from min to max */
    OPTION_SEED,    /* sets a uint64_t */
    OPTION_CHOICE,  /* sets an int: which of the choices */
    OPTION_OTHER    /* calls a function */
} option_type;

typedef struct {
    const char *name;  /* long form without dashes; NULL ends the table */
    char letter;       /* short form, or 0 */
    const char *value; /* what the help calls the value; NULL: a flag; "[=X]": optional.
                          FILE, MODEL, DIR and KIND in it say how it is completed. */
    const char *help;  /* NULL: understood and nowhere shown; such rows come last */
    option_type type;
    size_t field; /* of the job, what is set */
    int64_t min, max;
    option_function *take;
    const char *const *choices; /* the words that a value may be, then NULL; or NULL */
    bool repeats; /* FILE and DIR are refused twice, where one would be forgotten */
} option_row;

/* The end of a row: what the option does. */
#define SETS_FLAG(job, member) .type = OPTION_FLAG, .field = offsetof(job, member)
#define SETS_TEXT(job, member) .type = OPTION_TEXT, .field = offsetof(job, member)
#define SETS_SEED(job, member) .type = OPTION_SEED, .field = offsetof(job, member)
#define SETS_INTEGER(job, member, low, high)                                             \
    .type = OPTION_INTEGER, .field = offsetof(job, member), .min = low, .max = high
#define SETS_CHOICE(job, member, words)                                                  \
    .type = OPTION_CHOICE, .field = offsetof(job, member), .choices = words
#define TAKEN_BY(function) .type = OPTION_OTHER, .take = function

typedef struct {
    const char *command;
    const char *usage; /* the line after "usage: shoal " */
    const char *about; /* the paragraph after it */
    const option_row *options;
    const char *notes; /* after the options; may be NULL */
    const char *words; /* what the words of the line are, the last any number of times:
                          FILE, DIR, KIND, the word itself, or several with | between;
                          NULL: there are none */
} command_help;

void print_help(const command_help *help);

/* Takes all options into the job. Returns the exit code when that is the end (--help, a
   mistake), or -1: go on with the words at optind. Words may stand anywhere. */
int take_options(const command_help *help, int count, char **arguments, void *job);

extern const char *const isa_names[];

/* Rows that commands have in common; the job has int64_t threads and const char *isa. */
#define THREADS_ROW(job)                                                                 \
    {                                                                                    \
        "threads", 0, "T", "threads (default: 0, one per processor)",                    \
            SETS_INTEGER(job, threads, 0, 4096)                                          \
    }
#define ISA_ROW(job)                                                                     \
    {                                                                                    \
        "isa", 0, "NAME",                                                                \
            "instruction set: scalar, avx2, avx512, neon (default: SHOAL_ISA,\n"         \
            "else the best that runs here)",                                             \
            SETS_TEXT(job, isa), .choices = isa_names                                    \
    }
#define HELP_ROW                                                                         \
    { "help", 'h', NULL, "print this", .type = OPTION_HELP }

/* The nearest of count names (stride bytes from one char pointer to the next), or NULL
   when none is near. */
const char *closest_name(const char *word, const void *names, int count, int stride);

/* Numbers must be whole words within the range; complaints name the option. */
bool parse_integer(const char *command, const char *option, const char *text, int64_t min,
                   int64_t max, int64_t *value);
bool parse_seed(const char *command, const char *option, const char *text,
                uint64_t *value);
bool parse_scale(const char *command, const char *option, const char *text, float *value);
bool parse_number(const char *command, const char *option, const char *text, double min,
                  double max, double *value);

/* A code or English name that some model knows, or auto: *language is NULL then. In
   transcribe.c, with speech alone. */
bool parse_language(const char *command, const char *text, const char **language);

/* Splits the value of an option into `most` kinds at the most, each name `size` bytes
   from the one before: a piece such as "topk=32" belongs to the kind before it. Returns
   how many, or 0 after a complaint. */
int read_kinds(const char *command, const char *option, const char *text, char *names,
               size_t size, int most);

#endif
