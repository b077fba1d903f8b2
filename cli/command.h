/* Shared by the commands of cli/ and lab/: the list of commands, option tables, error
   messages and exit codes, progress, signals, JSON, atomic writing of files, texts read
   from files, lists of kinds, confidence intervals, and distributed runs. */
#ifndef SHOAL_CLI_COMMAND_H
#define SHOAL_CLI_COMMAND_H

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "ranks.h"
#include "shoal_train.h"

/* ---- Exit codes and complaints ----------------------------------------------------- */

enum {
    EXIT_OK = 0,
    EXIT_USAGE = 2,     /* invalid command line */
    EXIT_BAD_INPUT = 3, /* a file cannot be read or has unsuitable contents */
    EXIT_RESOURCES = 4  /* out of memory, or an output cannot be written */
};

/* Printed at the end of the general help and in shoal(1). */
extern const char exit_codes_help[];

/* Prints one line on stderr, "shoal COMMAND: ...", and returns exit_code. Control
   characters, which names and files may contain, are printed as '?'. */
int complain(int exit_code, const char *command, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Makes later messages begin with the rank of this process. */
void complain_as(int rank);

/* Prints the context's message in the same way. Returns EXIT_RESOURCES for
   SHOAL_OUT_OF_MEMORY and `otherwise` for any other status. */
int complain_status(shoal_status status, int otherwise, const char *command,
                    const shoal_context *context);

/* Exits after a message that names the current command (the one whose options were
   parsed). A file that is being written is discarded; a previous file stays in
   place. */
_Noreturn void die(int exit_code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void die_of_memory(void);
_Noreturn void leave(int exit_code); /* exits without a message */
/* Value for main to return, after closing the transport and flushing standard
   output. */
int finish_program(int exit_code);
/* Registers a function that is called once before an early exit, after the message. */
void before_leaving(void (*function)(void *what), void *what);

/* Exits unless status is SHOAL_OK, with the message of the context opened last. */
void demand(shoal_status status, int otherwise);

/* Allocate, or exit with a message. Memory that belongs to a command's static job is
   never freed, because the process ends with the command. */
void *reserve(size_t count, size_t size);
void *reserve_zeros(size_t count, size_t size);

/* Open the context of a command; isa NULL and threads 0 select the defaults.
   open_context returns an exit code after printing a message; begin_context exits. */
int open_context(const char *command, int threads, const char *isa,
                 shoal_context **context);
shoal_context *begin_context(int64_t threads, const char *isa);

void mask_controls(char *text); /* replaces them by '?' */
/* Number of bytes of the control character at the start of the text, or 0 if the text
   starts with another character. */
int control_bytes(const char *text);

/* Prints a line on stderr, with control characters replaced. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- Options ----------------------------------------------------------------------- */

/* Each command has one table of options. Parsing, help, manual pages, shell completion
   and the suggestion for a misspelt option all use it. */

/* Stores the value of an option in the command's job; value is NULL if there is none.
   Returns false after printing a message. */
typedef bool option_function(void *job, const char *name, const char *value);

typedef enum {
    OPTION_HELP,    /* prints the help and exits */
    OPTION_FLAG,    /* sets a bool */
    OPTION_TEXT,    /* sets a const char * */
    OPTION_INTEGER, /* sets an int64_t, from min to max */
    OPTION_NUMBER,  /* sets a double, from min to max */
    OPTION_SEED,    /* sets a uint64_t */
    OPTION_CHOICE,  /* sets an int: the index of the choice */
    OPTION_KINDS,   /* sets a kind_list of up to max kinds */
    OPTION_OTHER    /* calls a function */
} option_type;

typedef struct {
    const char *name;  /* long form without dashes; NULL ends the table */
    char letter;       /* short form, or 0 */
    const char *value; /* name of the value in the help; NULL for a flag, "[=X]" if it
                          is optional. FILE, MODEL, DIR and KIND select how it is
                          completed. */
    const char *help;  /* NULL for a hidden option; hidden rows come last */
    option_type type;
    size_t field; /* offset in the job of the member to set */
    int64_t min, max;
    option_function *take;      /* OPTION_TEXT: may also check it */
    const char *const *choices; /* NULL-terminated list of accepted values, or NULL */
    bool repeats; /* FILE and DIR options are rejected if given twice, unless this is
                     set */
} option_row;

/* Initialisers for the end of a row: the member that an option sets. */
#define SETS_FLAG(job, member) .type = OPTION_FLAG, .field = offsetof(job, member)
#define SETS_TEXT(job, member) .type = OPTION_TEXT, .field = offsetof(job, member)
#define SETS_SEED(job, member) .type = OPTION_SEED, .field = offsetof(job, member)
#define SETS_INTEGER(job, member, low, high)                                             \
    .type = OPTION_INTEGER, .field = offsetof(job, member), .min = low, .max = high
#define SETS_NUMBER(job, member, low, high)                                              \
    .type = OPTION_NUMBER, .field = offsetof(job, member), .min = low, .max = high
#define SETS_CHOICE(job, member, words)                                                  \
    .type = OPTION_CHOICE, .field = offsetof(job, member), .choices = words
#define SETS_KINDS(job, member, most)                                                    \
    .type = OPTION_KINDS, .field = offsetof(job, member), .max = most
#define TAKEN_BY(function) .type = OPTION_OTHER, .take = function

typedef struct {
    const char *command;
    const char *usage; /* the line after "usage: shoal " */
    const char *about; /* the paragraph after it */
    const option_row *options;
    const char *notes; /* after the options; may be NULL */
    const char *words; /* what the positional arguments are; the last one may repeat:
                          FILE, DIR, KIND, a literal word, or alternatives separated by
                          |; NULL if there are none */
} command_help;

void print_help(const command_help *help);

/* Parses all options into the job. Returns an exit code if the command should end
   (--help, an error), or -1 to continue with the positional arguments at optind.
   Options and positional arguments may be mixed. */
int take_options(const command_help *help, int count, char **arguments, void *job);
/* The same, but exits where take_options returns an exit code. */
void begin_command(const command_help *help, int count, char **arguments, void *job);
/* Exits with "WHAT; usage: ...". */
_Noreturn void die_of_usage(const char *what);
const char *command_name(void); /* the command whose options were parsed; "" before
                                   that */

extern const char *const isa_names[];

/* Rows shared by commands; the job has int64_t threads and const char *isa. */
#define THREADS_ROW(job) THREADS_ROW_AT(job, threads)
#define ISA_ROW(job) ISA_ROW_AT(job, isa)
#define THREADS_ROW_AT(job, member)                                                      \
    {                                                                                    \
        "threads", 0, "T", "number of threads (default: 0, one per processor)",          \
            SETS_INTEGER(job, member, 0, 4096)                                           \
    }
#define ISA_ROW_AT(job, member)                                                          \
    {                                                                                    \
        "isa", 0, "NAME",                                                                \
            "instruction set: scalar, avx2, avx512, neon (default: SHOAL_ISA,\n"         \
            "else the best that this processor supports)",                               \
            SETS_TEXT(job, member), .choices = isa_names                                 \
    }
/* --precision, a shoal_precision, and --exact, which is float32. */
extern const char *const precision_names[];
#define PRECISION_ROW(job, member)                                                       \
    {                                                                                    \
        "precision", 0, "P",                                                             \
            "precision of the matrices: auto (bfloat16 where the processor\n"            \
            "multiplies it, else float32), float32, bfloat16 or int8\n"                  \
            "(default: auto)",                                                           \
            SETS_CHOICE(job, member, precision_names)                                    \
    }
#define EXACT_ROW(job, member)                                                           \
    { "exact", 0, NULL, "the same as --precision float32", SETS_FLAG(job, member) }
#define HELP_ROW                                                                         \
    { "help", 'h', NULL, "print this help", .type = OPTION_HELP }

/* The nearest of `count` names (`stride` bytes between the char pointers), or NULL if
   none is near. */
const char *closest_name(const char *word, const void *names, int count, int stride);

/* Parse a complete word as a number within the range; messages name the option. */
bool parse_integer(const char *command, const char *option, const char *text, int64_t min,
                   int64_t max, int64_t *value);
bool parse_seed(const char *command, const char *option, const char *text,
                uint64_t *value);
bool parse_scale(const char *command, const char *option, const char *text, float *value);
bool parse_number(const char *command, const char *option, const char *text, double min,
                  double max, double *value);

/* Parses the next item of a list such as "A,B..C" at *rest, which is modified; from
   equals to for a single number. Returns false at the end of the list; exits if an item
   is not a number within the range. */
bool next_range(const char *option, char **rest, int64_t min, int64_t max, int64_t *from,
                int64_t *to);

/* The model named by the environment variable, else by SHOAL_MODEL (the older variable,
   used for speech and text), else NULL. */
const char *default_model(const char *variable);
#define NO_SPEECH_MODEL                                                                  \
    "no model; give --model MODEL or set SHOAL_SPEECH_MODEL. `shoal model "              \
    "whisper-tiny` says where to get one (78 MB). MODEL is a file of whisper.cpp, such " \
    "as ggml-tiny.bin, or a folder of Whisper on Hugging Face, such as "                 \
    "openai/whisper-tiny"

/* Parses a language code, an English language name, or auto, for which *language is
   NULL. Defined in transcribe.c, only if speech is built. */
bool parse_language(const char *command, const char *text, const char **language);

/* ---- Kinds of attention ------------------------------------------------------------ */

enum { KIND_NAME = 128, KINDS_MOST = 24 };

typedef struct {
    int count;
    char names[KINDS_MOST][KIND_NAME];
    shoal_attention attention[KINDS_MOST]; /* valid after parse_kind_list */
} kind_list;

/* Splits a comma-separated list into at most `most` kinds, with names `size` bytes
   apart; an item such as "topk=32" belongs to the kind before it. Returns the number of
   kinds, or 0 after printing a message. */
int read_kinds(const char *command, const char *option, const char *text, char *names,
               size_t size, int most);
/* Fills an empty list from a valid text. */
void default_kinds(kind_list *kinds, const char *text);
/* Index of the first kind that is full; full is inserted at the front if there is none.
   Names may end in @WORD. Exits if the list has no room. */
int place_full(kind_list *kinds, const char *option, int most);
/* Parses the names; exits if one is invalid. Kinds without an explicit seed get this
   one. Names are replaced by their shortest spelling. */
void parse_kind_list(kind_list *kinds, shoal_context *context, uint64_t seed);

/* Properties of a kind. */
static inline const shoal_kind_info *kind_facts(const shoal_attention *attention) {
    return shoal_kind_describe((int)attention->kind);
}

/* ---- Time, sizes and JSON ---------------------------------------------------------- */

double seconds_now(void); /* monotonic */

/* "12.3 MiB"; the text stays valid for seven more calls. */
const char *bytes_text(double bytes);
/* "12.3 ms", with the same lifetime. */
const char *seconds_text(double seconds);
/* "shoal 1.2.3, avx2, 2 threads". */
const char *setting_text(const shoal_context *context);
const char *plural(int64_t count);           /* "" for 1, otherwise "s" */
int by_double(const void *a, const void *b); /* comparison for qsort */

/* Prints and frees the object. NaN and infinities become null, since JSON has neither.
   Commands write their files first, because the reader of standard output may close it
   early. */
int print_json(json_t *object);
json_t *json_number(double value);
json_t *json_numbers(const double *values, int64_t count);
/* Replaces non-ASCII bytes by '?' if the text is not valid UTF-8; file names may be
   invalid. */
void make_utf8(char *text);
/* A JSON string of the text, made valid by make_utf8; null for NULL. */
json_t *json_text(const char *text);
/* An integer, or a string from 2^63 on, which JSON readers cannot represent as an
   integer. */
json_t *json_seed(uint64_t seed);
/* Reads a file; NULL after a message that names the line (EXIT_BAD_INPUT). */
json_t *load_json(const char *command, const char *path);

/* ---- Progress ---------------------------------------------------------------------- */

/* Between begin and end, the latest text and the seconds since the first begin are
   shown: on a terminal in one line that is overwritten, once `silent_seconds` have
   passed; otherwise as a line every 30 s, or every SHOAL_PROGRESS seconds. Only rank 0
   prints. */
void progress_begin(double silent_seconds);
void progress_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);

/* ---- Signals ----------------------------------------------------------------------- */

/* An interrupt ends the program at once, except between writing_begin and writing_end,
   where it is delayed until the file is complete. */
void handle_signals(void);
void writing_begin(void);
void writing_end(void);
void writing_wait(void); /* called by another thread; waits a few seconds at most */

/* For work that can be interrupted cleanly: afterwards the first signal is only
   recorded, and a second one ends the program (after the file that is being
   written). */
void watch_stop(void);
int stop_signal(void); /* the recorded signal, or 0 */

/* Installs the handler for every termination signal that is not ignored. */
void catch_signals(void (*handler)(int number));

/* ---- Files (files.c) --------------------------------------------------------------- */

/* A command declares the files it will write (NULL if none) and read before it starts
   work. These functions return an exit code, after a message if a file cannot be
   written, or if an output is the same file as an input or another output under any
   name. If an output is standard output, everything else that would be printed there
   goes to stderr. After the first declared output, SIGPIPE ends the command only once
   its files are written. */
int will_write(const char *command, const char *path);
int will_read(const char *command, const char *path);
/* The same for the current command; they exit on error. */
void plan_output(const char *path);
void plan_input(const char *path);

/* The path under which the library writes an output. Valid until the next call. */
const char *written_path(const char *path);

/* The reader of standard output has closed it and SIGPIPE was ignored. */
bool stdout_reader_left(void);
void end_as_by_pipe(void); /* ends the process by SIGPIPE, after the files are written */

/* Opens /dev/null for each of stdin, stdout and stderr that is closed, so that no file
   gets its descriptor. stdout is opened for reading, so that printing to it fails
   visibly. */
void open_standard_files(void);

/* A file that is replaced atomically by shoal_replacement, or standard output. */
typedef struct {
    FILE *file;
    shoal_replacement *whole; /* NULL for standard output */
    bool waits;               /* signals are delayed by writing_begin */
} replacement;

/* Returns the stream to write to, or NULL with errno set. Termination signals are
   delayed until replace_end, which must follow, except for a pipe, whose reader may
   never come. */
FILE *replace_begin(replacement *to, const char *path);

/* Moves the file into place if good is true. If it is false, or if the move fails, the
   previous file stays; returns false with errno set. */
bool replace_end(replacement *to, bool good);
/* Discards a replacement that was begun and not ended, if there is one. */
void replace_nothing(void);

/* ---- Texts out of files (texts.c) -------------------------------------------------- */

enum { TEXT_BLOCK = 2048 };

/* Where a text was read: index of the file, and the line in it. */
typedef struct {
    int file;
    int64_t line;
} text_place;

/* Reads texts from files, block by block. */
typedef struct {
    char **paths; /* [files]; "-" is standard input */
    int files;
    const char *field;  /* member of JSON lines that holds the text; NULL for plain
                           lines */
    const char *prefix; /* put before every text; NULL if none */
    bool whole;         /* each file is one text */

    int next; /* index of the next file to open */
    int file; /* descriptor of the open file */
    bool open;
    unsigned char *input; /* bytes read from it */
    size_t input_at, input_count;
    int64_t line; /* number of the last line that was read */
    char *bytes;  /* texts of the block, one after another, each NUL-terminated */
    size_t used, room;
    size_t *begins;     /* [TEXT_BLOCK] */
    int64_t first;      /* number of texts before the block */
    int64_t count;      /* number of texts in the block; 0 at the end */
    const char **texts; /* [count] */
    int64_t *sizes;     /* [count] */
    text_place *places; /* [count] */
} text_source;

/* Reads the next block; on error exits with a message that names file and line. */
void texts_next(text_source *source);
void texts_close(text_source *source);

/* ---- Trainings and evaluations ----------------------------------------------------- */

/* Callbacks that update a progress line beginning with the label, print messages about
   bad data, and cancel after a signal. The label must outlive them. */
shoal_train_callbacks show_training(const char *label);

/* ---- Words of what a recogniser hears (speech_words.c) ----------------------------- */

/* Values as given on the command line; NULL selects the default. */
typedef struct {
    const char *lexicon, *lm;
    const char *beam, *lm_weight, *insertion, *unknown;
    int64_t tokens; /* 0 selects the default */
} words_options;

/* Rows for a command whose job has words_options as `member`. */
#define WORDS_ROWS(job, member, who)                                                     \
    {"lexicon", 0, "FILE",                                                               \
     who "pronunciation lexicon in the format of Kaldi or CMUdict, to\n"                 \
         "recognise words; several files separated by commas",                           \
     SETS_TEXT(job, member.lexicon)},                                                    \
        {"lm", 0, "FILE",                                                                \
         who "language model for words: ARPA, gzipped ARPA, or the binary\n"             \
             "trigrams of CMU Sphinx (Debian's pocketsphinx-en-us has lexicon\n"         \
             "and model)",                                                               \
         SETS_TEXT(job, member.lm)},                                                     \
        {"lm-weight", 0, "X",                                                            \
         who "weight of the language model (default: 1; for CTC 0.6)",                   \
         SETS_TEXT(job, member.lm_weight)},                                              \
        {"insertion", 0, "X",                                                            \
         who "added to the score per word (default: -1; for CTC 0)",                     \
         SETS_TEXT(job, member.insertion)},                                              \
        {"unknown", 0, "P",                                                              \
         who "probability of words that are not in the language model\n"                 \
             "(default: 0, such words are excluded)",                                    \
         SETS_TEXT(job, member.unknown)},                                                \
        {"beam", 0, "X",                                                                 \
         who "width of the word search: maximum score difference from the\n"             \
             "best path (default: 12)",                                                  \
         SETS_TEXT(job, member.beam)},                                                   \
    {                                                                                    \
        "tokens", 0, "N",                                                                \
            who "maximum number of paths per step of the search (default: 3000)",        \
            SETS_INTEGER(job, member.tokens, 1, 100000000)                               \
    }

/* Whether words are requested. Word options without a lexicon and a language model are
   an error, reported by an exit code in *code. */
bool words_wanted(const char *command, const words_options *options, int *code);

/* Fills a recogniser's options from these, with defaults for the others; false after a
   message (EXIT_USAGE). */
bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken);

/* ---- Random numbers ---------------------------------------------------------------- */

/* splitmix64's finaliser: a counter-based random number generator. */
static inline uint64_t mix_bits(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* FNV-1a: folds the bytes into a digest. */
static inline uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return digest;
}

/* ---- Several processes ------------------------------------------------------------- */

/* The transport of the launcher's job, or NULL for a single process. It is closed when
   the program ends, which informs the other processes. `advice` ends the message about
   a lost process. */
shoal_transport *begin_ranks(const char *advice);
/* Between these two calls only rank 0 works; the others wait in the second call. If
   rank 0 exits, the others exit without a message. */
void first_alone_begin(const shoal_transport *ranks);
void first_alone_end(shoal_transport *ranks);

/* ---- The commands ------------------------------------------------------------------ */

/* Parses its own arguments (arguments[0] is its name) and returns the program's exit
   code. */
typedef int command_function(int count, char **arguments);
command_function attend_command, kinds_command, info_command, demo_command, bench_command,
    quality_command, train_command, eval_command, plot_command, repro_command,
    transcribe_command, recognise_command, embed_command, answer_command, maps_command,
    similar_command, wer_command, model_command;
command_function manual_command; /* used by the build, not listed */

extern const command_help attend_help, kinds_help, info_help, demo_help, bench_help,
    quality_help, train_help, eval_help, plot_help, repro_help, transcribe_help, wer_help,
    recognise_help, embed_help, similar_help, answer_help, maps_help, model_help;

typedef struct {
    const char *name;
    command_function *run;
    const command_help *help;
    const char *summary;
    bool measures; /* a command of lab/ */
} command_row;

extern const command_row commands[]; /* ends with a row of zeros */

#endif
