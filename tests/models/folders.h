/* Files and folders that tests make, and those that were recorded. */
#ifndef SHOAL_TESTS_FOLDERS_H
#define SHOAL_TESTS_FOLDERS_H

#include <stddef.h>

/* A whole small file; fails the test when it cannot be written. */
void write_bytes_to(const char *path, const void *bytes, size_t size);
/* A new folder under /tmp; the text is valid for the program's life. */
const char *make_folder(void);
void remove_folder(const char *folder); /* and the files in it, and one level below */

/* A file or folder of tests/models/text; the text is valid until the next call. */
const char *recorded_text(const char *name);

#endif
