#define _GNU_SOURCE
#include "replace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common.h"

enum { ATTEMPTS = 1000 };

/* PATH_MAX bytes, as realpath demands. */
_Static_assert(sizeof((replacement *)0)->target >= 4096, "room for a resolved path");

/* Creates a new file beside the target. Its name has the form that the library uses for
   temporary files, by which leftovers are found; it does not contain the target's name,
   which may be as long as a name can be. */
static FILE *open_temporary(replacement *to) {
    const char *slash = strrchr(to->target, '/');
    const int folder = slash ? (int)(slash - to->target) + 1 : 0;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        const int length = snprintf(to->temporary, sizeof to->temporary,
                                    "%.*s.shoal-%ld-%d.tmp", folder, to->target,
                                    (long)getpid(), attempt);
        if (length < 0 || (size_t)length >= sizeof to->temporary) {
            errno = ENAMETOOLONG;
            return NULL;
        }
        FILE *file = fopen(to->temporary, "wx");
        if (file || errno != EEXIST)
            return file;
    }
    return NULL;
}

/* The old file's permissions are kept, where that is allowed. */
static FILE *open_beside(replacement *to, const struct stat *old) {
    writing_begin();
    to->file = open_temporary(to);
    if (to->file && old && fchmod(fileno(to->file), old->st_mode & 0777) != 0)
        errno = 0;
    if (!to->file) {
        const int error = errno;
        writing_end();
        errno = error;
    }
    return to->file;
}

FILE *replace_begin(replacement *to, const char *path) {
    struct stat information;
    *to = (replacement){0};
    const bool exists = stat(path, &information) == 0;
    if (exists && !S_ISREG(information.st_mode))
        return to->file = fopen(path, "w");
    if (strlen(path) >= sizeof to->target) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    if (!exists || !realpath(path, to->target)) /* a link to a file stays */
        snprintf(to->target, sizeof to->target, "%s", path);
    return open_beside(to, exists ? &information : NULL);
}

/* Writes all to the disk. What cannot be synced (EINVAL) has no disk behind it. */
static bool settled(const replacement *to) {
    return fflush(to->file) == 0 && !ferror(to->file) &&
           (!to->temporary[0] || fsync(fileno(to->file)) == 0 || errno == EINVAL);
}

bool replace_end(replacement *to, bool good) {
    const bool beside = to->temporary[0] != 0;
    good = good && settled(to);
    int error = errno;
    const bool closed = fclose(to->file) == 0;
    if (good) {
        good = closed && (!beside || rename(to->temporary, to->target) == 0);
        error = errno;
    }
    if (beside && !good)
        unlink(to->temporary);
    if (beside)
        writing_end();
    errno = error;
    return good;
}
