/* What the commands of cli/ and lab/ share: the list of them, options from tables,
   complaints and exit codes, progress, signals, JSON, files that are written whole, texts
   out of files, lists of kinds, intervals of error rates, and several processes. */
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
    EXIT_USAGE = 2,     /* the command line makes no sense */
    EXIT_BAD_INPUT = 3, /* a file cannot be read or does not fit */
    EXIT_RESOURCES = 4  /* memory ran out, or an output cannot be written */
};

/* For the end of the general help, and for shoal(1). */
extern const char exit_codes_help[];

/* One message line on stderr, "shoal COMMAND: ...", and the exit code handed back.
   Control characters, which names and files may contain, are shown as '?'. */
int complain(int exit_code, const char *command, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* From now on complaints say which of several processes they are of. */
void complain_as(int rank);

/* The same with the context's message. EXIT_RESOURCES where memory ran out, `otherwise`
   for any other status. */
int complain_status(shoal_status status, int otherwise, const char *command,
                    const shoal_context *context);

/* Ends the program after a complaint of the command whose options were taken. A file that
   is being written is given up: what was in its place stays. */
_Noreturn void die(int exit_code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
_Noreturn void die_of_memory(void);
_Noreturn void leave(int exit_code); /* the same without a word */
/* What main returns: others and readers of standard output are told about the end. */
int finish_program(int exit_code);
/* The last word of a command that leaves: called once, after the complaint. */
void before_leaving(void (*function)(void *what), void *what);

/* Dies of anything but SHOAL_OK, with the message of the context opened last. */
void demand(shoal_status status, int otherwise);

/* Memory, or death. What hangs on a command's static job is never given back: the end is
   near. */
void *reserve(size_t count, size_t size);
void *reserve_zeros(size_t count, size_t size);

/* The context of the command; isa NULL and threads 0 are the defaults. One returns an
   exit code after a complaint, the other dies. */
int open_context(const char *command, int threads, const char *isa,
                 shoal_context **context);
shoal_context *begin_context(int64_t threads, const char *isa);

void mask_controls(char *text); /* so */
/* Bytes of the control character that the text begins with; 0: it begins with another. */
int control_bytes(const char *text);

/* A line on stderr, control characters likewise. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- Options ----------------------------------------------------------------------- */

/* Command lines come from one table per command: the table is what is parsed, what the
   help, the manual pages and the shells' completions show, and where the closest match to
   a misspelt option is found. */

/* Takes the value of the option of that name (NULL: none) into the command's job; false
   after a complaint. */
typedef bool option_function(void *job, const char *name, const char *value);

typedef enum {
    OPTION_HELP,    /* prints the help and ends */
    OPTION_FLAG,    /* sets a bool */
    OPTION_TEXT,    /* sets a const char * */
    OPTION_INTEGER, /* sets an int64_t, from min to max */
    OPTION_NUMBER,  /* sets a double, likewise */
    OPTION_SEED,    /* sets a uint64_t */
    OPTION_CHOICE,  /* sets an int: which of the choices */
    OPTION_KINDS,   /* sets a kind_list of up to max kinds */
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
    option_function *take;      /* of a text: also checks it */
    const char *const *choices; /* the words that a value may be, then NULL; or NULL */
    bool repeats; /* FILE and DIR are refused twice, where one would be forgotten */
} option_row;

/* The end of a row: what the option does. */
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
    const char *words; /* what the words of the line are, the last any number of times:
                          FILE, DIR, KIND, the word itself, or several with | between;
                          NULL: there are none */
} command_help;

void print_help(const command_help *help);

/* Takes all options into the job. Returns the exit code when that is the end (--help, a
   mistake), or -1: go on with the words at optind. Words may stand anywhere. */
int take_options(const command_help *help, int count, char **arguments, void *job);
/* The same, but where that is the end the program leaves. */
void begin_command(const command_help *help, int count, char **arguments, void *job);
/* Dies of a line that makes no sense, "WHAT; usage: ...". */
_Noreturn void die_of_usage(const char *what);
const char *command_name(void); /* whose options were taken; "" before */

extern const char *const isa_names[];

/* Rows that commands have in common; the job has int64_t threads and const char *isa. */
#define THREADS_ROW(job) THREADS_ROW_AT(job, threads)
#define ISA_ROW(job) ISA_ROW_AT(job, isa)
#define THREADS_ROW_AT(job, member)                                                      \
    {                                                                                    \
        "threads", 0, "T", "threads (default: 0, one per processor)",                    \
            SETS_INTEGER(job, member, 0, 4096)                                           \
    }
#define ISA_ROW_AT(job, member)                                                          \
    {                                                                                    \
        "isa", 0, "NAME",                                                                \
            "instruction set: scalar, avx2, avx512, neon (default: SHOAL_ISA,\n"         \
            "else the best that runs here)",                                             \
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

/* The next of "A,B..C" at *rest, which is cut up: from = to where there are no dots.
   False where none is left; dies of what is no number within the range. */
bool next_range(const char *option, char **rest, int64_t min, int64_t max, int64_t *from,
                int64_t *to);

/* The model that the variable names, else the older SHOAL_MODEL, which was for speech and
   text; NULL: none. */
const char *default_model(const char *variable);
#define NO_SPEECH_MODEL                                                                  \
    "no model; give --model MODEL or set SHOAL_SPEECH_MODEL. MODEL is a file of "        \
    "whisper.cpp, such as ggml-tiny.bin (78 MB), which ggerganov/whisper.cpp on "        \
    "Hugging Face publishes, or a folder of Whisper there, such as "                     \
    "openai/whisper-tiny (151 MB)"

/* A code or English name that some model knows, or auto: *language is NULL then. In
   transcribe.c, with speech alone. */
bool parse_language(const char *command, const char *text, const char **language);

/* ---- Kinds of attention ------------------------------------------------------------ */

enum { KIND_NAME = 128, KINDS_MOST = 24 };

typedef struct {
    int count;
    char names[KINDS_MOST][KIND_NAME];
    shoal_attention attention[KINDS_MOST]; /* once they are parsed */
} kind_list;

/* Splits the value of an option into `most` kinds at the most, each name `size` bytes
   from the one before: a piece such as "topk=32" belongs to the kind before it. Returns
   how many, or 0 after a complaint. */
int read_kinds(const char *command, const char *option, const char *text, char *names,
               size_t size, int most);
/* The list of a text that is right, where it is empty. */
void default_kinds(kind_list *kinds, const char *text);
/* The first that is full, which is put first where there is none; the names may end in
   @WORD. Dies where there is no room. */
int place_full(kind_list *kinds, const char *option, int most);
/* Dies of what is misspelt. Kinds that do not spell their seed get this one; then the
   names become the shortest spellings. */
void parse_kind_list(kind_list *kinds, shoal_context *context, uint64_t seed);

/* Properties of a kind. */
static inline const shoal_kind_info *kind_facts(const shoal_attention *attention) {
    return shoal_kind_describe((int)attention->kind);
}

/* ---- Time, sizes and JSON ---------------------------------------------------------- */

double seconds_now(void); /* monotonic */

/* "12.3 MiB"; the text lives until the eighth call from now. */
const char *bytes_text(double bytes);
/* "12.3 ms", likewise. */
const char *seconds_text(double seconds);
/* "shoal 1.2.3, avx2, 2 threads": what a command runs with. */
const char *setting_text(const shoal_context *context);
const char *plural(int64_t count);           /* "s", unless it is 1 */
int by_double(const void *a, const void *b); /* for qsort */

/* Prints the object and drops it. NaN and infinities become null: JSON has none. Files
   that a command writes are written before: nobody may be reading to the end. */
int print_json(json_t *object);
json_t *json_number(double value);
json_t *json_numbers(const double *values, int64_t count);
/* Puts '?' for all that is not ASCII in a text that is no UTF-8, as file names may be. */
void make_utf8(char *text);
/* A copy of the text made so, as a string; null for NULL. */
json_t *json_text(const char *text);
/* A whole number; from 2^63 on a string, since readers of JSON have no larger numbers. */
json_t *json_seed(uint64_t seed);
/* The value in a file, or NULL after a complaint (EXIT_BAD_INPUT) that names the line. */
json_t *load_json(const char *command, const char *path);

/* ---- Progress ---------------------------------------------------------------------- */

/* From begin to end the latest text and the seconds since the first begin are shown: on a
   terminal in one line that is written again and again, once `silent_seconds` have
   passed; elsewhere as a line every 30 s, or as often as SHOAL_PROGRESS says. Of several
   processes the first speaks. */
void progress_begin(double silent_seconds);
void progress_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);

/* ---- Signals ----------------------------------------------------------------------- */

/* An interrupt ends the program at once, except between writing_begin and writing_end,
   where it waits for the end: a file is written whole or not at all. */
void handle_signals(void);
void writing_begin(void);
void writing_end(void);
void writing_wait(void); /* from another thread, some seconds at most */

/* For work that ends well when it is interrupted: from here on a signal is only noted,
   and a second one ends the program (after the file that is being written). */
void watch_stop(void);
int stop_signal(void); /* the one that came, or 0 */

/* Calls the handler for every signal that asks to stop and is not ignored. */
void catch_signals(void (*handler)(int number));

/* ---- Files (files.c) --------------------------------------------------------------- */

/* A command says which files it will write (NULL: none) before its work, and which it
   reads. Exit code, after a complaint where a file cannot be written, or where an output
   is an input or another output: the same file, however it is spelled.
   Where an output is standard output, all else that would be printed there goes to
   stderr; and from the first output on a reader of standard output who leaves ends the
   command only when its files are written. */
int will_write(const char *command, const char *path);
int will_read(const char *command, const char *path);
/* The same for the command whose options were taken; they die. */
void plan_output(const char *path);
void plan_input(const char *path);

/* How an output is spelled for the library, which writes it. Valid until the next. */
const char *written_path(const char *path);

/* The reader of standard output has left, and the signal that says so was ignored. */
bool stdout_reader_left(void);
void end_as_by_pipe(void); /* by that signal, late */

/* Where stdin, stdout or stderr is closed, opens /dev/null in its place: the next file
   that the program opens would get its number otherwise. stdout for reading: what is
   printed is then not lost in silence. */
void open_standard_files(void);

/* A file that is written whole or not at all, as shoal_replacement does it, or standard
   output. */
typedef struct {
    FILE *file;
    shoal_replacement *whole; /* NULL: standard output */
    bool waits;               /* signals do, between writing_begin and writing_end */
} replacement;

/* The stream to write to, or NULL with errno. Signals that end the program wait until
   replace_end, which must follow; before a pipe, whose reader may never come, they do
   not. */
FILE *replace_begin(replacement *to, const char *path);

/* Puts the file in its place where all was well until here. If not, or if that fails, the
   place is as it was; false then, with errno. */
bool replace_end(replacement *to, bool good);
/* Gives up the one that was begun and not ended, if there is one. */
void replace_nothing(void);

/* ---- Texts out of files (texts.c) -------------------------------------------------- */

enum { TEXT_BLOCK = 2048 };

/* Where a text is: which file, and the line in it. */
typedef struct {
    int file;
    int64_t line;
} text_place;

/* Texts of files, block by block. */
typedef struct {
    char **paths; /* [files]; "-" is standard input */
    int files;
    const char *field;  /* of JSON lines; NULL: plain lines */
    const char *prefix; /* put before every text; NULL: nothing */
    bool whole;         /* a file is one text */

    int next; /* file */
    int file; /* descriptor of the one that is open */
    bool open;
    unsigned char *input; /* what was read of it */
    size_t input_at, input_count;
    int64_t line; /* in it, the last that was read */
    char *bytes;  /* the block's texts, one after another, each ending in 0 */
    size_t used, room;
    size_t *begins;     /* [TEXT_BLOCK] */
    int64_t first;      /* texts before the block */
    int64_t count;      /* texts of the block; 0: there are no more */
    const char **texts; /* [count] */
    int64_t *sizes;     /* [count] */
    text_place *places; /* [count] */
} text_source;

/* The next block; dies of what is wrong, and names file and line. */
void texts_next(text_source *source);
void texts_close(text_source *source);

/* ---- Trainings and evaluations ----------------------------------------------------- */

/* Callbacks that keep a progress line, whose steps begin with the label, complain about
   what is wrong with data, and cancel after a signal. The label must live as long. */
shoal_train_callbacks show_training(const char *label);

/* ---- Words of what a recogniser hears (speech_words.c) ----------------------------- */

/* What the command line says; numbers as it spells them, NULL: by default. */
typedef struct {
    const char *lexicon, *lm;
    const char *beam, *lm_weight, *insertion, *unknown;
    int64_t tokens; /* 0: by default */
} words_options;

/* Rows of a command whose job has words_options as `member`. */
#define WORDS_ROWS(job, member, who)                                                     \
    {"lexicon", 0, "FILE",                                                               \
     who "words: their phones, as Kaldi or CMUdict keep them; several files\n"           \
         "with commas between",                                                          \
     SETS_TEXT(job, member.lexicon)},                                                    \
        {"lm", 0, "FILE",                                                                \
         who "words: a language model, ARPA, ARPA in .gz, or the binary\n"               \
             "trigrams of CMU Sphinx (Debian's pocketsphinx-en-us has both files)",      \
         SETS_TEXT(job, member.lm)},                                                     \
        {"lm-weight", 0, "X",                                                            \
         who "words: of the language model (default: 1, of CTC 0.6)",                    \
         SETS_TEXT(job, member.lm_weight)},                                              \
        {"insertion", 0, "X", who "words: added for each (default: -1, of CTC 0)",       \
         SETS_TEXT(job, member.insertion)},                                              \
        {"unknown", 0, "P",                                                              \
         who "words: probability of those that the language model lacks\n"               \
             "(default: 0, they are left out)",                                          \
         SETS_TEXT(job, member.unknown)},                                                \
        {"beam", 0, "X",                                                                 \
         who "words: how far behind the best paths may be (default: 12)",                \
         SETS_TEXT(job, member.beam)},                                                   \
    {                                                                                    \
        "tokens", 0, "N", who "words: paths of a step at most (default: 3000)",          \
            SETS_INTEGER(job, member.tokens, 1, 100000000)                               \
    }

/* Whether words are wanted; options that make sense only then are a mistake otherwise
   (an exit code in *code). */
bool words_wanted(const char *command, const words_options *options, int *code);

/* A recogniser's options, by default but for these; false after a complaint
   (EXIT_USAGE). */
bool words_take(const char *command, const words_options *options,
                shoal_recogniser_options *taken);

/* ---- Random numbers ---------------------------------------------------------------- */

/* splitmix64's finaliser: random numbers are this of a number for each. */
static inline uint64_t mix_bits(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Folds the bytes into a digest: any change of any of them changes it. */
static inline uint64_t digest_bytes(uint64_t digest, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        digest = (digest ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return digest;
}

/* ---- Several processes ------------------------------------------------------------- */

/* Those of the launcher's job, or NULL: this process is alone. They are left together
   with the program, which tells the others where it dies. `advice` ends what is said when
   one of them is lost. */
shoal_transport *begin_ranks(const char *advice);
/* Between the two only the first process works, and the others wait in the second: where
   the first one dies they end too, without a word. */
void first_alone_begin(const shoal_transport *ranks);
void first_alone_end(shoal_transport *ranks);

/* ---- The commands ------------------------------------------------------------------ */

/* Each parses its own arguments (arguments[0] is its name) and returns the program's exit
   code. */
typedef int command_function(int count, char **arguments);
command_function attend_command, kinds_command, info_command, demo_command, bench_command,
    quality_command, train_command, eval_command, plot_command, repro_command,
    transcribe_command, recognise_command, embed_command, answer_command, maps_command,
    similar_command, wer_command;
command_function manual_command; /* for the build: in no list */

extern const command_help attend_help, kinds_help, info_help, demo_help, bench_help,
    quality_help, train_help, eval_help, plot_help, repro_help, transcribe_help, wer_help,
    recognise_help, embed_help, similar_help, answer_help, maps_help;

typedef struct {
    const char *name;
    command_function *run;
    const command_help *help;
    const char *summary;
    bool measures; /* a command of the laboratory (lab/) */
} command_row;

extern const command_row commands[]; /* ends with a row of zeros */

#endif
