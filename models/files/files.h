/* Files: reading and mapping them, JSON, private memory that needs no context to give
   back, and outputs that appear whole or not at all. */
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

/* Fails with SHOAL_IO and "PATH: cannot ACTION: the reason of errno", which stays. */
SHOAL_PRIVATE shoal_status sh_file_cannot(shoal_context *context, const char *path,
                                          const char *action);

/* Opens a file, pipe or device for reading; directories are refused. *size is a regular
   file's size and -1 for anything that only streams. */
SHOAL_PRIVATE shoal_status sh_file_open(shoal_context *context, const char *path,
                                        int *descriptor, int64_t *size);

/* Reads until `size` bytes are there or the file ends; *got says how many are. */
shoal_status sh_file_read(shoal_context *context, const char *path, int descriptor,
                          void *bytes, size_t size, size_t *got);

/* A whole regular file mapped read-only. Empty files give size 0 and bytes NULL. */
typedef struct {
    const unsigned char *bytes;
    size_t size;
} file_map;

SHOAL_PRIVATE shoal_status sh_file_map_open(shoal_context *context, const char *path,
                                            file_map *map);
SHOAL_PRIVATE void sh_file_map_close(file_map *map); /* legal on zeroed and closed maps */

/* A name from a file of unknown origin, made fit for a message. */
typedef struct {
    char text[84];
} shown_name;

/* Printable ASCII; anything else is '?', and long names are cut with "...". Use it inside
   a call: sh_fail(context, status, "'%s'", sh_shown(name).text). */
SHOAL_PRIVATE shown_name sh_shown(const char *name);

/* A JSON object, duplicates refused; the caller gives it back with json_decref. */
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
void sh_pages_release(void *pages, size_t size); /* the size that was asked for */

/* Files are written to .shoal-PROCESS-N.tmp and renamed: a process that was killed leaves
   such a file, maybe a large one. Removes those of processes that are gone, and those
   that older versions left (NAME.features.PROCESS.tmp). */
SHOAL_PRIVATE void sh_remove_leftovers(const char *folder);

/* Writes the parts one after another as a shoal_replacement of the path. */
SHOAL_PRIVATE shoal_status sh_file_replace(shoal_context *context, const char *path,
                                           const file_part *parts, int count,
                                           shoal_sync sync);

#endif
