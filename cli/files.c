/* Files that commands read and write. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "command.h"

void open_standard_files(void) {
    for (int file = 0; file <= STDERR_FILENO; file++)
        if (fcntl(file, F_GETFD) < 0 &&
            open("/dev/null", file == STDOUT_FILENO ? O_RDONLY : O_RDWR) != file)
            return;
}

/* ---- Identity of a file ------------------------------------------------------------ */

static void folder_of(const char *path, char folder[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    if (slash)
        snprintf(folder, PATH_MAX, "%.*s", (int)(slash - path) + 1, path);
    else
        strcpy(folder, ".");
}

/* An existing file, or the place where a new one would be created. */
typedef struct {
    mode_t mode; /* 0 if neither the file nor its folder exists */
    dev_t device;
    ino_t inode;             /* of the file, or of the folder for a new file */
    char name[NAME_MAX + 1]; /* name in the folder; "" for an existing file */
} identity;

static identity identity_of(const struct stat *found, const char *name) {
    identity made = {.mode = found->st_mode,
                     .device = found->st_dev,
                     .inode = found->st_ino};
    snprintf(made.name, sizeof made.name, "%.*s", NAME_MAX, name);
    return made;
}

static identity identify(const char *path) {
    struct stat found;
    char target[PATH_MAX], folder[PATH_MAX];
    if (stat(path, &found) == 0)
        return identity_of(&found, "");
    if (!shoal_file_target(path, target, sizeof target))
        return (identity){0};
    folder_of(target, folder);
    const char *slash = strrchr(target, '/');
    return stat(folder, &found) == 0 ? identity_of(&found, slash ? slash + 1 : target)
                                     : (identity){0};
}

/* Writing to a device such as /dev/null or a terminal overwrites nothing. */
static bool is_same(const identity *a, const identity *b) {
    return a->mode && b->mode && !S_ISCHR(a->mode) && a->device == b->device &&
           a->inode == b->inode && strcmp(a->name, b->name) == 0;
}

/* ---- Inputs and outputs ------------------------------------------------------------ */

typedef struct {
    char *path;
    bool written, to_stdout;
    identity file;
} known_file;

static known_file *known;
static int known_count;
static int first_stdout = -1; /* the original standard output, if an output goes there */
static bool pipes_ignored;

static known_file *remember(const char *path, bool written) {
    known_file *more = realloc(known, (size_t)(known_count + 1) * sizeof *known);
    char *copy = strdup(path);
    if (!more || !copy) {
        free(copy);
        known = more ? more : known;
        return NULL;
    }
    known = more;
    known[known_count] =
        (known_file){.path = copy, .written = written, .file = identify(path)};
    return &known[known_count++];
}

/* An earlier declaration of the same file, if one of the two is an output. */
static const known_file *find_same(const known_file *one) {
    for (int i = 0; i < known_count; i++)
        if (&known[i] != one && (one->written || known[i].written) &&
            is_same(&known[i].file, &one->file))
            return &known[i];
    return NULL;
}

/* Records the file and rejects conflicts; returns an exit code. */
static int remember_once(const char *command, const char *path, bool writes,
                         known_file **made) {
    known_file *one = *made = remember(path, writes);
    const known_file *other = one ? find_same(one) : NULL;
    if (!one)
        return complain(EXIT_RESOURCES, command, "out of memory");
    if (!other)
        return EXIT_OK;
    const char *read = one->written ? other->path : one->path;
    const char *written = one->written ? one->path : other->path;
    if (one->written && other->written && strcmp(one->path, other->path) == 0)
        return complain(EXIT_USAGE, command,
                        "two outputs would be written to %s; choose different names",
                        one->path);
    if (one->written && other->written)
        return complain(
            EXIT_USAGE, command,
            "two outputs would be written to one file: %s is %s; choose different names",
            other->path, one->path);
    return complain(EXIT_USAGE, command,
                    "the output %s would overwrite the input %s; choose another name",
                    written, read);
}

static bool stdout_is(const identity *file) {
    struct stat found;
    if (fstat(STDOUT_FILENO, &found) != 0)
        return false;
    const identity standard = identity_of(&found, "");
    return is_same(&standard, file);
}

int will_read(const char *command, const char *path) {
    known_file *one;
    const int code = remember_once(command, path, false, &one);
    if (code == EXIT_OK && S_ISREG(one->file.mode) && stdout_is(&one->file))
        return complain(
            EXIT_USAGE, command,
            "standard output would overwrite the input %s; redirect it to another file",
            path);
    return code;
}

/* Redirects further output of printf to stderr, or to /dev/null if stderr is the same
   file. */
static void give_stdout_away(void) {
    struct stat found;
    fflush(stdout);
    const identity errors = fstat(STDERR_FILENO, &found) == 0 ? identity_of(&found, "")
                                                              : (identity){0};
    const bool both = stdout_is(&errors);
    const int instead = both ? open("/dev/null", O_WRONLY | O_CLOEXEC) : STDERR_FILENO;
    first_stdout = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (instead >= 0)
        dup2(instead, STDOUT_FILENO);
    if (both && instead >= 0)
        close(instead);
}

static int check_destination(const char *command, const char *path) {
    struct stat found;
    char target[PATH_MAX], folder[PATH_MAX];
    const bool there = stat(path, &found) == 0;
    if (there && S_ISDIR(found.st_mode))
        return complain(EXIT_RESOURCES, command, "%s cannot be written: is a directory",
                        path);
    const identity file = there ? identity_of(&found, "") : (identity){0};
    if (there && (!S_ISREG(found.st_mode) || stdout_is(&file)))
        return EXIT_OK;
    if ((there ? access(path, W_OK) == 0 : errno == ENOENT) &&
        shoal_file_target(path, target, sizeof target)) {
        folder_of(target, folder);
        if (access(folder, W_OK | X_OK) == 0)
            return EXIT_OK;
    }
    return complain(EXIT_RESOURCES, command, "%s cannot be written: %s", path,
                    strerror(errno));
}

int will_write(const char *command, const char *path) {
    known_file *one;
    int code = path ? check_destination(command, path) : EXIT_OK;
    if (path && code == EXIT_OK)
        code = remember_once(command, path, true, &one);
    if (!path || code != EXIT_OK)
        return code;
    if (!pipes_ignored && signal(SIGPIPE, SIG_IGN) != SIG_IGN)
        pipes_ignored = true;
    one->to_stdout = stdout_is(&one->file);
    if (one->to_stdout)
        give_stdout_away();
    return EXIT_OK;
}

static bool goes_to_stdout(const char *path) {
    for (int i = 0; i < known_count; i++)
        if (known[i].to_stdout && strcmp(known[i].path, path) == 0)
            return first_stdout >= 0;
    return false;
}

const char *written_path(const char *path) {
    static char descriptor[32];
    if (!goes_to_stdout(path))
        return path;
    snprintf(descriptor, sizeof descriptor, "/dev/fd/%d", first_stdout);
    return descriptor;
}

bool stdout_reader_left(void) {
    struct pollfd standard = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return pipes_ignored && poll(&standard, 1, 0) == 1 && (standard.revents & POLLERR);
}

void end_as_by_pipe(void) {
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
}

/* ---- Writing ----------------------------------------------------------------------- */

static replacement *begun; /* the replacement that is not yet ended */

FILE *replace_begin(replacement *to, const char *path) {
    struct stat information;
    *to = (replacement){0};
    if (goes_to_stdout(path)) {
        to->file = fdopen(fcntl(first_stdout, F_DUPFD_CLOEXEC, 0), "w");
    } else {
        to->waits = stat(path, &information) != 0 || S_ISREG(information.st_mode);
        if (to->waits)
            writing_begin();
        if (shoal_replacement_create(NULL, path, &to->whole) == SHOAL_OK)
            to->file = shoal_replacement_file(to->whole);
        const int error = errno;
        if (to->waits && !to->file)
            writing_end();
        errno = error;
    }
    begun = to->file ? to : NULL;
    return to->file;
}

bool replace_end(replacement *to, bool good) {
    begun = NULL;
    if (!to->whole) {
        good = good && fflush(to->file) == 0 && !ferror(to->file);
        const int error = errno;
        const bool closed = fclose(to->file) == 0;
        errno = good ? errno : error;
        return good && closed;
    }
    good = good && shoal_replacement_commit(to->whole, SHOAL_SYNC_DATA) == SHOAL_OK;
    const int error = errno;
    shoal_replacement_destroy(to->whole);
    if (to->waits)
        writing_end();
    errno = error;
    return good;
}

void replace_nothing(void) {
    if (begun)
        replace_end(begun, false);
}
