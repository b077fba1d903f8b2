#define _GNU_SOURCE
#include "models/files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

/* Some systems reject a single transfer of 2 GiB or more. */
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
    /* open() would wait for the writer of a pipe. */
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
    TRY(sh_file_map_open(context, path, &map));
    const shoal_status status =
        map.size > largest
            ? sh_fail(context, SHOAL_BAD_FILE,
                      "%s: has %zu bytes, more than the limit of %zu for such a file",
                      path, map.size, largest)
            : parse_json(context, path, (const char *)map.bytes, map.size, array, root);
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

void *sh_pages_allocate(shoal_context *context, size_t size) {
    void *pages = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED)
        return pages;
    sh_fail(context, SHOAL_NO_MEMORY, "out of memory: could not allocate %zu bytes",
            size);
    return NULL;
}

void sh_pages_release(void *pages, size_t size) {
    if (pages)
        munmap(pages, size ? size : 1);
}

char *sh_json_dump(shoal_context *context, const json_t *value, size_t flags) {
    const size_t size = value ? json_dumpb(value, NULL, 0, flags) : 0;
    char *text = size > 0 ? sh_allocate(context, size + 1) : NULL;
    if (text)
        text[json_dumpb(value, text, size, flags)] = 0;
    return text;
}

int64_t sh_read_line(shoal_context *context, FILE *file, char **line, size_t *room) {
    size_t length = 0;
    for (int c = 0; c != '\n' && (c = getc(file)) != EOF;) {
        if (length + 2 > *room) {
            const size_t more = 2 * *room + 256;
            char *grown = sh_resize(context, *line, more);
            if (!grown)
                return -1;
            *line = grown;
            *room = more;
        }
        (*line)[length++] = (char)c;
        (*line)[length] = 0;
    }
    return (int64_t)length;
}

/* ---- Atomic replacement of files -------------------------------------------------- */

enum { TEMPORARY_ATTEMPTS = 1000 };

struct shoal_replacement {
    shoal_context *context;
    FILE *file;
    char *path;               /* as the caller named it */
    char target[PATH_MAX];    /* the file that it refers to */
    char temporary[PATH_MAX]; /* "" if written directly, or already renamed */
};

int shoal_file_target(const char *path, char *target, size_t size) {
    enum { MOST_LINKS = 40 };
    char link[PATH_MAX], whole[PATH_MAX];
    const char *found = realpath(path, whole);
    const int length = snprintf(target, size, "%s", found ? found : path);
    if (length < 0 || (size_t)length >= size) {
        errno = ENAMETOOLONG;
        return 0;
    }
    for (int followed = 0; followed < MOST_LINKS; followed++) {
        const ssize_t read = readlink(target, link, sizeof link - 1);
        if (read < 0)
            return 1; /* not a link: a file, or the name of a new one */
        link[read] = 0;
        const char *slash = strrchr(target, '/');
        const size_t folder = link[0] != '/' && slash ? (size_t)(slash - target) + 1 : 0;
        if (folder + (size_t)read >= size) {
            errno = ENAMETOOLONG;
            return 0;
        }
        strcpy(target + folder, link);
    }
    errno = ELOOP;
    return 0;
}

/* The temporary name is short and independent of the target's, so that it fits wherever
   the target fits. open() rather than mkstemp(): the file gets the permissions that the
   umask grants. */
static int open_temporary(const char *target, char temporary[PATH_MAX]) {
    const char *slash = strrchr(target, '/');
    int directory = slash ? (int)(slash - target) + 1 : 0;
    for (int attempt = 0; attempt < TEMPORARY_ATTEMPTS; attempt++) {
        int length = snprintf(temporary, PATH_MAX, "%.*s.shoal-%ld-%d.tmp", directory,
                              target, (long)getpid(), attempt);
        if (length < 0 || length >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor >= 0 || errno != EEXIST)
            return descriptor;
    }
    return -1;
}

/* The descriptor named by a path such as /dev/stdout or /dev/fd/5, or -1. Opening the
   path would truncate an existing file, and fails for sockets. */
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

/* Syncing a folder makes the rename durable. A file system that cannot sync folders
   returns EINVAL, which is ignored. */
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

/* Returns a descriptor to write to, or -1 with the failed action in *action. */
static int open_for(shoal_replacement *to, const char **action) {
    struct stat existing;
    const bool exists = stat(to->path, &existing) == 0;
    const int given = descriptor_of(to->path);
    *action = "write it";
    if (given >= 0)
        return fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (exists && !S_ISREG(existing.st_mode))
        return open(to->path, O_WRONLY | O_CLOEXEC);
    *action = "follow its links";
    if (!shoal_file_target(to->path, to->target, sizeof to->target))
        return -1;
    *action = "create a temporary file beside it";
    const int descriptor = open_temporary(to->target, to->temporary);
    if (descriptor < 0)
        to->temporary[0] = 0;
    /* Keeping the old file's permissions is optional. */
    else if (exists && fchmod(descriptor, existing.st_mode & 0777) != 0)
        errno = 0;
    return descriptor;
}

shoal_status shoal_replacement_create(shoal_context *context, const char *path,
                                      shoal_replacement **replacement) {
    if (!path || !replacement)
        return sh_fail(context, SHOAL_INVALID, "path or replacement is NULL");
    *replacement = NULL;
    shoal_replacement *to = sh_allocate_zeros(context, 1, sizeof *to);
    char *copy = sh_copy_text(context, path);
    if (!to || !copy) {
        sh_free(to);
        sh_free(copy);
        return sh_fail(context, SHOAL_NO_MEMORY, "%s: out of memory to write it", path);
    }
    *to = (shoal_replacement){.context = context, .path = copy};
    const char *action;
    const int descriptor = open_for(to, &action);
    to->file = descriptor >= 0 ? fdopen(descriptor, "w") : NULL;
    if (to->file) {
        *replacement = to;
        return SHOAL_OK;
    }
    const shoal_status status = sh_file_cannot(context, path, action);
    const int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    shoal_replacement_destroy(to);
    errno = error;
    return status;
}

FILE *shoal_replacement_file(const shoal_replacement *replacement) {
    return replacement->file;
}

shoal_status shoal_replacement_commit(shoal_replacement *to, shoal_sync sync) {
    const bool written = fflush(to->file) == 0 && !ferror(to->file) &&
                         (sync == SHOAL_SYNC_NONE || !to->temporary[0] ||
                          fsync(fileno(to->file)) == 0 || errno == EINVAL);
    const int error = errno;
    const bool closed = fclose(to->file) == 0;
    to->file = NULL;
    if (!written)
        errno = error;
    if (!written || !closed ||
        (to->temporary[0] && rename(to->temporary, to->target) != 0))
        return sh_file_cannot(to->context, to->path, "write it");
    const bool beside = to->temporary[0] != 0;
    to->temporary[0] = 0;
    if (beside && sync == SHOAL_SYNC_NAME && !sync_folder_of(to->target))
        return sh_file_cannot(to->context, to->path, "sync the folder it is in");
    return SHOAL_OK;
}

void shoal_replacement_destroy(shoal_replacement *to) {
    if (!to)
        return;
    if (to->file)
        fclose(to->file);
    if (to->temporary[0])
        unlink(to->temporary);
    sh_free(to->path);
    sh_free(to);
}

void sh_remove_leftovers(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        const char *name = entry->d_name, *old = strstr(name, ".features.");
        long process;
        int number, length = 0;
        const bool ours =
            old ? sscanf(old, ".features.%ld.tmp%n", &process, &length) == 1
                : sscanf(name, ".shoal-%ld-%d.tmp%n", &process, &number, &length) == 2;
        if (ours && length > 0 && !(old ? old : name)[length] &&
            kill((pid_t)process, 0) != 0 && errno == ESRCH)
            unlinkat(dirfd(folder), name, 0);
    }
    if (folder)
        closedir(folder);
}

shoal_status sh_file_replace(shoal_context *context, const char *path,
                             const file_part *parts, int count, shoal_sync sync) {
    shoal_replacement *to;
    TRY(shoal_replacement_create(context, path, &to));
    bool written = true;
    for (int i = 0; i < count && written; i++)
        for (size_t at = 0; at < parts[i].size && written;) {
            const size_t left = parts[i].size - at;
            const ssize_t some = write(fileno(to->file),
                                       (const char *)parts[i].bytes + at,
                                       left < largest_transfer ? left : largest_transfer);
            written = some >= 0 || errno == EINTR;
            at += some > 0 ? (size_t)some : 0;
        }
    shoal_status status = written ? shoal_replacement_commit(to, sync)
                                  : sh_file_cannot(context, path, "write it");
    shoal_replacement_destroy(to);
    return status;
}
