/* Files that are written whole or not at all: under another name in the same folder, and
   renamed at the end. What is no regular file (a device, a pipe) is written to directly.
   The libraries do the same for what they write (models/files/files.h). */
#ifndef SHOAL_CLI_REPLACE_H
#define SHOAL_CLI_REPLACE_H

#include <stdbool.h>
#include <stdio.h>

typedef struct {
    FILE *file;
    char target[4096], temporary[4096]; /* the latter is "" where there is none */
} replacement;

/* The stream to write to, or NULL with errno. Signals that end the program wait until
   replace_end, which must follow; before a pipe, whose reader may never come, they do
   not. */
FILE *replace_begin(replacement *to, const char *path);

/* Puts the file in its place where all was well until here. If not, or if that fails, the
   place is as it was; false then, with errno. */
bool replace_end(replacement *to, bool good);

#endif
