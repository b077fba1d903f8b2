/* What every command shares: exit codes, messages, the context, time, JSON, a progress
   line, signals that never leave half a file, and files that are written whole. */
#ifndef SHOAL_CLI_COMMON_H
#define SHOAL_CLI_COMMON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "shoal_models.h"

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

/* Makes a context or complains; isa NULL and threads 0 are the defaults. */
int open_context(const char *command, int threads, const char *isa,
                 shoal_context **context);

void mask_controls(char *text); /* so */
/* Bytes of the control character that the text begins with; 0: it begins with another. */
int control_bytes(const char *text);

/* A line on stderr, control characters likewise. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

double seconds_now(void); /* monotonic */

/* "12.3 MiB"; the text lives until the eighth call from now. */
const char *bytes_text(double bytes);
/* "12.3 ms", likewise. */
const char *seconds_text(double seconds);

/* Prints the object and drops it. NaN and infinities become null: JSON has none. Files
   that a command writes are written before: nobody may be reading to the end. */
int print_json(json_t *object);
json_t *json_number(double value);
/* Puts '?' for all that is not ASCII in a text that is no UTF-8, as file names may be. */
void make_utf8(char *text);
/* A copy of the text made so, as a string; null for NULL. */
json_t *json_text(const char *text);
/* A whole number; from 2^63 on a string, since readers of JSON have no larger numbers. */
json_t *json_seed(uint64_t seed);
/* The value in a file, or NULL after a complaint (EXIT_BAD_INPUT) that names the line. */
json_t *load_json(const char *command, const char *path);

/* ---- Progress --------------------------------------------------------------------- */

/* From begin to end, and only when stderr is a terminal, a line with the latest text and
   the seconds since the first begin is kept there once `silent_seconds` have passed. */
void progress_begin(double silent_seconds);
void progress_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
void progress_end(void);

/* ---- Signals ---------------------------------------------------------------------- */

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

/* How an output is spelled for the library, which writes it. Valid until the next. */
const char *written_path(const char *path);

/* The reader of standard output has left, and the signal that says so was ignored. */
bool stdout_reader_left(void);
void end_as_by_pipe(void); /* by that signal, late */

/* Where stdin, stdout or stderr is closed, opens /dev/null in its place: the next file
   that the program opens would get its number otherwise. */
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

#endif
