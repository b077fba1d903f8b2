/* Standard input as a recording. */
#ifndef SHOAL_CLI_TRANSCRIBE_INPUT_H
#define SHOAL_CLI_TRANSCRIBE_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copies standard input to its end into a file without a name, in TMPDIR or /tmp, which
   is gone when its descriptor is closed; rate 0: a recording in any format that is read,
   else samples of 16 bits, one channel, little-endian. path: how the file is opened.
   Returns the descriptor, or -1 after a complaint. */
int spool_input(const char *command, int64_t rate, char *path, size_t size);

bool is_standard_input(const char *path); /* "-" */

#endif
