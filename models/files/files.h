/* Reading and mapping of files, JSON, anonymous pages that are released without a
   context, and atomic replacement of files. */
#ifndef SHOAL_MODELS_FILES_FILES_H
#define SHOAL_MODELS_FILES_FILES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/context.h"
#include "base/export.h"
#include "shoal_models.h"

typedef struct {
    const void *bytes;
    size_t size;
} file_part;

/* Fails with SHOAL_IO and "PATH: cannot ACTION: the reason of errno"; preserves
   errno. */
SHOAL_PRIVATE shoal_status sh_file_cannot(shoal_context *context, const char *path,
                                          const char *action);

/* Opens a file, pipe or device for reading; directories are rejected. *size is the size
   of a regular file and -1 for a stream. */
SHOAL_PRIVATE shoal_status sh_file_open(shoal_context *context, const char *path,
                                        int *descriptor, int64_t *size);

/* Reads until `size` bytes are read or the file ends; *got is the number of bytes. */
shoal_status sh_file_read(shoal_context *context, const char *path, int descriptor,
                          void *bytes, size_t size, size_t *got);

/* A whole regular file mapped read-only. Empty files give size 0 and bytes NULL. */
typedef struct {
    const unsigned char *bytes;
    size_t size;
} file_map;

SHOAL_PRIVATE shoal_status sh_file_map_open(shoal_context *context, const char *path,
                                            file_map *map);
SHOAL_PRIVATE void sh_file_map_close(file_map *map); /* zeroed and closed maps are
                                                        allowed */

/* A name from an untrusted file, made safe for a message. */
typedef struct {
    char text[84];
} shown_name;

/* Printable ASCII; other characters become '?', and long names are truncated with
   "...". For use inside a call: sh_fail(context, status, "'%s'",
   sh_shown(name).text). */
SHOAL_PRIVATE shown_name sh_shown(const char *name);

/* A JSON object without duplicate keys; the caller releases it with json_decref. */
SHOAL_PRIVATE shoal_status sh_json_object_parse(shoal_context *context, const char *label,
                                                const char *text, size_t size,
                                                json_t **root);
SHOAL_PRIVATE shoal_status sh_json_object_read(shoal_context *context, const char *path,
                                               size_t largest, json_t **root);
/* JSON as text in the context's memory; NULL: none left. */
SHOAL_PRIVATE char *sh_json_dump(shoal_context *context, const json_t *value,
                                 size_t flags);
/* The next line of a file, with its newline, as getline does it, in the context's memory:
   *line of *room bytes grows. Its length, 0 at the end of the file or where it cannot be
   read, or -1: out of memory. */
SHOAL_PRIVATE int64_t sh_read_line(shoal_context *context, FILE *file, char **line,
                                   size_t *room);
/* The same for a JSON array. */
shoal_status sh_json_array_read(shoal_context *context, const char *path, size_t largest,
                                json_t **root);

/* Zeroed pages of at least `size` bytes, or NULL with the message set. */
void *sh_pages_allocate(shoal_context *context, size_t size);
void sh_pages_release(void *pages, size_t size); /* size: as requested */

/* Removes temporary files of processes that no longer exist (.shoal-PROCESS-N.tmp,
   renamed when complete; possibly large), and those of older versions
   (NAME.features.PROCESS.tmp). */
SHOAL_PRIVATE void sh_remove_leftovers(const char *folder);

/* Writes the parts in order as a shoal_replacement of the path. */
SHOAL_PRIVATE shoal_status sh_file_replace(shoal_context *context, const char *path,
                                           const file_part *parts, int count,
                                           shoal_sync sync);

#endif
