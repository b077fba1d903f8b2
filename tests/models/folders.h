/* Temporary files and folders of tests, and recorded ones. */
#ifndef SHOAL_TESTS_FOLDERS_H
#define SHOAL_TESTS_FOLDERS_H

#include <stddef.h>

/* Writes a small file; fails the test if that is impossible. */
void write_bytes_to(const char *path, const void *bytes, size_t size);
/* A new folder under /tmp; the text stays valid until the program ends. */
const char *make_folder(void);
void remove_folder(const char *folder); /* with its files, and one level of subfolders */

/* A file or folder of tests/models/text; the text is valid until the next call. */
const char *recorded_text(const char *name);

#endif
