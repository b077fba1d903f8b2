/* Command lines from one table per subcommand: the table is what is parsed, what the help
   shows, and where the closest match to a misspelt option is found. */
#ifndef SHOAL_CLI_OPTIONS_H
#define SHOAL_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_OPTIONS = 24 };

typedef struct {
    const char *name;  /* long form without dashes; NULL ends the table */
    char letter;       /* short form, or 0 */
    const char *value; /* what the help calls the value; NULL: a flag; "[=X]": optional */
    const char *help;
} option_row;

typedef struct {
    const char *command;
    const char *usage; /* the line after "usage: shoal " */
    const char *about; /* the paragraph after it */
    const option_row *options;
    const char *notes; /* after the options; may be NULL */
} command_help;

enum { OPTIONS_END = -1, OPTIONS_WRONG = -2 };

/* Steps through the options as getopt does. Returns the row's index with *value set (NULL
   where there is none), OPTIONS_END when only words are left, or OPTIONS_WRONG after a
   complaint. Words may stand anywhere; when the end is reached, optind is the first. */
int next_option(const command_help *help, int count, char **arguments,
                const char **value);

/* Takes all options through `take`, which returns false after a complaint. Returns the
   exit code when that is the end (--help, a mistake), or -1: go on with the words at
   optind. */
typedef bool option_function(void *job, int option, const char *value);
int take_options(const command_help *help, int count, char **arguments,
                 option_function *take, void *job);

/* Rows that commands have in common. */
#define THREADS_ROW                                                                      \
    { "threads", 0, "T", "threads (default: 0, one per processor)" }
#define ISA_ROW                                                                          \
    {                                                                                    \
        "isa", 0, "NAME",                                                                \
            "instruction set: scalar, avx2, avx512, neon (default: SHOAL_ISA,\n"         \
            "else the best that runs here)"                                              \
    }
#define HELP_ROW                                                                         \
    { "help", 'h', NULL, "print this" }

/* Everything there is to say about a command, on stdout. */
void print_help(const command_help *help);

/* The nearest of count names (stride bytes from one char pointer to the next), or NULL
   when none is near. */
const char *closest_name(const char *word, const void *names, int count, int stride);

/* Numbers must be whole words within the range; complaints name the option. */
bool parse_integer(const char *command, const char *option, const char *text, int64_t min,
                   int64_t max, int64_t *value);
bool parse_seed(const char *command, const char *option, const char *text,
                uint64_t *value);
bool parse_scale(const char *command, const char *option, const char *text, float *value);

/* Splits the value of an option into `most` kinds at the most, each name `size` bytes
   from the one before: a piece such as "topk=32" belongs to the kind before it. Returns
   how many, or 0 after a complaint. */
int read_kinds(const char *command, const char *option, const char *text, char *names,
               size_t size, int most);

#endif
