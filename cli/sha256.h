/* SHA-256 (FIPS 180-4), for files that were downloaded. */
#ifndef SHOAL_CLI_SHA256_H
#define SHOAL_CLI_SHA256_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { SHA256_TEXT = 65 }; /* 64 hexadecimal digits and the 0 */

/* Of the rest of the stream, whose bytes are counted; false with errno if it cannot be
   read. */
bool sha256_stream(FILE *file, char text[SHA256_TEXT], int64_t *bytes);

#endif
