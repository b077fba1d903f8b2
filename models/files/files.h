/* Files: reading a descriptor to the end of what is wanted, private memory that needs no
   context to give back, and outputs that appear whole or not at all. */
#ifndef SHOAL_MODELS_FILES_FILES_H
#define SHOAL_MODELS_FILES_FILES_H

#include "base/context.h"
#include "base/export.h"

typedef struct {
    const void *bytes;
    size_t size;
} file_part;

/* Opens a file, pipe or device for reading; directories are refused. *size is a regular
   file's size and -1 for anything that only streams. */
SHOAL_PRIVATE shoal_status sh_file_open(shoal_context *context, const char *path,
                                        int *descriptor, int64_t *size);

/* Reads until `size` bytes are there or the file ends; *got says how many are. */
shoal_status sh_file_read(shoal_context *context, const char *path, int descriptor,
                          void *bytes, size_t size, size_t *got);

/* Zeroed pages of at least `size` bytes, or NULL with the message set. */
void *sh_pages_allocate(shoal_context *context, size_t size);
void sh_pages_release(void *pages, size_t size); /* the size that was asked for */

/* Writes the parts one after another to a temporary file beside the path and renames it
   there; a failure removes it and leaves what was at the path. Pipes and devices are
   written directly, and where a symbolic link leads to a file, that is replaced rather
   than the link. */
shoal_status sh_file_replace(shoal_context *context, const char *path,
                             const file_part *parts, int count);

/* The same, and returns only when the disk has the new file and its name: after a loss of
   power there is the old file or the new one, whole. */
shoal_status sh_file_replace_durably(shoal_context *context, const char *path,
                                     const file_part *parts, int count);

#endif
