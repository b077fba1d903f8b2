#define _GNU_SOURCE
#include "models/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Some systems refuse a single transfer of 2 GiB or more. */
static const size_t largest_transfer = (size_t)1 << 30;

shoal_status sh_file_cannot(shoal_context *context, const char *path,
                            const char *action) {
    const int error = errno;
    sh_fail(context, SHOAL_IO, "%s: cannot %s: %s", path, action, strerror(error));
    errno = error;
    return SHOAL_IO;
}

/* ---- Reading ---------------------------------------------------------------------- */

shoal_status sh_file_open(shoal_context *context, const char *path, int *descriptor,
                          int64_t *size) {
    struct stat information;
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    *descriptor = -1;
    *size = -1;
    if (opened < 0)
        return sh_file_cannot(context, path, "open it");
    if (fstat(opened, &information) != 0) {
        shoal_status status = sh_file_cannot(context, path, "inspect it");
        close(opened);
        return status;
    }
    if (S_ISDIR(information.st_mode)) {
        close(opened);
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is a directory; name a file in it",
                       path);
    }
    *descriptor = opened;
    *size = S_ISREG(information.st_mode) ? (int64_t)information.st_size : -1;
    return SHOAL_OK;
}

shoal_status sh_file_read(shoal_context *context, const char *path, int descriptor,
                          void *bytes, size_t size, size_t *got) {
    *got = 0;
    while (*got < size) {
        size_t wanted = size - *got < largest_transfer ? size - *got : largest_transfer;
        ssize_t count = read(descriptor, (char *)bytes + *got, wanted);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return sh_file_cannot(context, path, "read it");
        if (count == 0)
            break;
        *got += (size_t)count;
    }
    return SHOAL_OK;
}

/* ---- Mappings --------------------------------------------------------------------- */

static shoal_status map_descriptor(shoal_context *context, const char *path,
                                   int descriptor, int64_t size, file_map *map) {
    if (size < 0)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is not a regular file, so it cannot be mapped", path);
    if (size == 0)
        return SHOAL_OK;
    void *bytes = mmap(NULL, (size_t)size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (bytes == MAP_FAILED)
        return sh_fail(context, SHOAL_IO, "%s: cannot map its %lld bytes", path,
                       (long long)size);
    map->bytes = bytes;
    map->size = (size_t)size;
    return SHOAL_OK;
}

shoal_status sh_file_map_open(shoal_context *context, const char *path, file_map *map) {
    int descriptor;
    int64_t size;
    struct stat information;
    *map = (file_map){0};
    /* A pipe without a writer would be waited for by open(). */
    if (stat(path, &information) == 0 && !S_ISREG(information.st_mode) &&
        !S_ISDIR(information.st_mode))
        return map_descriptor(context, path, -1, -1, map);
    TRY(sh_file_open(context, path, &descriptor, &size));
    shoal_status status = map_descriptor(context, path, descriptor, size, map);
    close(descriptor);
    return status;
}

void sh_file_map_close(file_map *map) {
    if (map->bytes)
        munmap((void *)(uintptr_t)map->bytes, map->size);
    *map = (file_map){0};
}

/* ---- JSON ------------------------------------------------------------------------- */

shown_name sh_shown(const char *name) {
    enum { ROOM = sizeof(shown_name) - 4 };
    shown_name copy;
    size_t length = 0;
    for (; name[length] && length < ROOM; length++) {
        unsigned char c = (unsigned char)name[length];
        copy.text[length] = c >= ' ' && c <= '~' ? name[length] : '?';
    }
    strcpy(copy.text + length, name[length] ? "..." : "");
    return copy;
}

/* An object, or an array. */
static shoal_status parse_json(shoal_context *context, const char *label,
                               const char *text, size_t size, bool array, json_t **root) {
    json_error_t error;
    *root = json_loadb(size ? text : "", size, JSON_REJECT_DUPLICATES, &error);
    if (!*root)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: is not JSON: line %d: %s", label,
                       error.line, sh_shown(error.text).text);
    if (array ? json_is_array(*root) : json_is_object(*root))
        return SHOAL_OK;
    json_decref(*root);
    *root = NULL;
    return sh_fail(context, SHOAL_BAD_FILE, "%s: is not a JSON %s", label,
                   array ? "array" : "object");
}

shoal_status sh_json_object_parse(shoal_context *context, const char *label,
                                  const char *text, size_t size, json_t **root) {
    return parse_json(context, label, text, size, false, root);
}

static shoal_status read_json(shoal_context *context, const char *path, size_t largest,
                              bool array, json_t **root) {
    file_map map;
    *root = NULL;
    shoal_status status = sh_file_map_open(context, path, &map);
    if (status != SHOAL_OK)
        return status;
    if (map.size > largest)
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%s: has %zu bytes, more than any such file (%zu)", path,
                         map.size, largest);
    else
        status =
            parse_json(context, path, (const char *)map.bytes, map.size, array, root);
    sh_file_map_close(&map);
    return status;
}

shoal_status sh_json_object_read(shoal_context *context, const char *path, size_t largest,
                                 json_t **root) {
    return read_json(context, path, largest, false, root);
}

shoal_status sh_json_array_read(shoal_context *context, const char *path, size_t largest,
                                json_t **root) {
    return read_json(context, path, largest, true, root);
}

/* ---- Pages ------------------------------------------------------------------------ */

static size_t at_least_one(size_t size) {
    return size ? size : 1;
}

void *sh_pages_allocate(shoal_context *context, size_t size) {
    void *pages = mmap(NULL, at_least_one(size), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED)
        return pages;
    sh_fail(context, SHOAL_NO_MEMORY, "out of memory: could not allocate %zu bytes",
            size);
    return NULL;
}

void sh_pages_release(void *pages, size_t size) {
    if (pages)
        munmap(pages, at_least_one(size));
}
