#define _GNU_SOURCE
#include "models/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Some systems refuse a single transfer of 2 GiB or more. */
static const size_t largest_transfer = (size_t)1 << 30;

enum { TEMPORARY_ATTEMPTS = 1000 };

static shoal_status cannot(shoal_context *context, const char *path, const char *action) {
    return sh_fail(context, SHOAL_IO, "%s: cannot %s: %s", path, action, strerror(errno));
}

/* ---- Reading ---------------------------------------------------------------------- */

shoal_status sh_file_open(shoal_context *context, const char *path, int *descriptor,
                          int64_t *size) {
    struct stat information;
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    *descriptor = -1;
    *size = -1;
    if (opened < 0)
        return cannot(context, path, "open it");
    if (fstat(opened, &information) != 0) {
        shoal_status status = cannot(context, path, "inspect it");
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
            return cannot(context, path, "read it");
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
    shoal_status status = sh_file_open(context, path, &descriptor, &size);
    if (status != SHOAL_OK)
        return status;
    status = map_descriptor(context, path, descriptor, size, map);
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

/* ---- Writing ---------------------------------------------------------------------- */

static bool write_bytes(int descriptor, const char *bytes, size_t size) {
    while (size > 0) {
        size_t wanted = size < largest_transfer ? size : largest_transfer;
        ssize_t count = write(descriptor, bytes, wanted);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return false;
        bytes += count;
        size -= (size_t)count;
    }
    return true;
}

/* Closes the descriptor in any case; errno is that of the first failure. */
static bool write_parts_and_close(int descriptor, const file_part *parts, int count,
                                  bool durable) {
    bool written = true;
    for (int i = 0; i < count && written; i++)
        written = write_bytes(descriptor, parts[i].bytes, parts[i].size);
    if (written && durable)
        written = fsync(descriptor) == 0;
    int error = errno;
    if (close(descriptor) != 0 && written)
        return false;
    errno = error;
    return written;
}

/* The temporary name is short and of its own, so that it fits wherever the target fits.
   open() rather than mkstemp(): the file gets the permissions that the umask grants. */
static int open_temporary(const char *target, char *temporary, size_t size) {
    const char *slash = strrchr(target, '/');
    int directory = slash ? (int)(slash - target) + 1 : 0;
    for (int attempt = 0; attempt < TEMPORARY_ATTEMPTS; attempt++) {
        int length = snprintf(temporary, size, "%.*s.shoal-%ld-%d.tmp", directory, target,
                              (long)getpid(), attempt);
        if (length < 0 || (size_t)length >= size) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST)
            return descriptor;
    }
    return -1;
}

/* The descriptor that a path such as /dev/stdout or /dev/fd/5 stands for, or -1. Opening
   it would begin a file that is there at its first byte, and fails for sockets. */
static int descriptor_of(const char *path) {
    int number = -1, length = 0;
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    if ((sscanf(path, "/dev/fd/%d%n", &number, &length) == 1 ||
         sscanf(path, "/proc/self/fd/%d%n", &number, &length) == 1) &&
        !path[length])
        return number;
    return -1;
}

static shoal_status write_directly(shoal_context *context, const char *path,
                                   const file_part *parts, int count) {
    const int given = descriptor_of(path);
    int descriptor = given >= 0 ? fcntl(given, F_DUPFD_CLOEXEC, 0)
                                : open(path, O_WRONLY | O_CLOEXEC);
    if (descriptor < 0 || !write_parts_and_close(descriptor, parts, count, false))
        return cannot(context, path, "write it");
    return SHOAL_OK;
}

/* Syncing a folder writes the names in it. A file system that cannot sync folders answers
   EINVAL; there is nothing more to do then. */
static bool sync_folder_of(const char *target) {
    char folder[PATH_MAX];
    const char *slash = strrchr(target, '/');
    int length = slash ? (int)(slash - target) + 1 : 0;
    snprintf(folder, sizeof folder, "%.*s.", length, target);
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool synced = fsync(descriptor) == 0 || errno == EINVAL;
    int error = errno;
    close(descriptor);
    errno = error;
    return synced;
}

/* The file that a path leads to, there or not yet: links are followed, also one that
   leads nowhere. False with errno. */
static bool follow_links(const char *path, char target[PATH_MAX]) {
    enum { MOST_LINKS = 40 };
    char link[PATH_MAX];
    if (realpath(path, target))
        return true;
    if (snprintf(target, PATH_MAX, "%s", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (int followed = 0; followed < MOST_LINKS; followed++) {
        const ssize_t length = readlink(target, link, sizeof link - 1);
        if (length < 0)
            return true; /* no link: the name of a new file */
        link[length] = 0;
        char *slash = strrchr(target, '/');
        const size_t folder = link[0] != '/' && slash ? (size_t)(slash - target) + 1 : 0;
        if (folder + (size_t)length >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return false;
        }
        strcpy(target + folder, link);
    }
    errno = ELOOP;
    return false;
}

shoal_status sh_file_replace(shoal_context *context, const char *path,
                             const file_part *parts, int count, bool durable) {
    struct stat existing;
    bool exists = stat(path, &existing) == 0;
    if (descriptor_of(path) >= 0 || (exists && !S_ISREG(existing.st_mode)))
        return write_directly(context, path, parts, count);

    char target[PATH_MAX], temporary[PATH_MAX];
    if (!follow_links(path, target))
        return cannot(context, path, "follow its links");
    int descriptor = open_temporary(target, temporary, sizeof temporary);
    if (descriptor < 0)
        return cannot(context, path, "create a temporary file beside it");
    /* Keeping the old file's permissions is a courtesy, and no reason to stop. */
    if (exists && fchmod(descriptor, existing.st_mode & 0777) != 0)
        errno = 0;
    if (write_parts_and_close(descriptor, parts, count, durable) &&
        rename(temporary, target) == 0) {
        if (durable && !sync_folder_of(target))
            return cannot(context, path, "sync the folder it is in");
        return SHOAL_OK;
    }
    shoal_status status = cannot(context, path, "write it");
    unlink(temporary);
    return status;
}
