#define _GNU_SOURCE
#include "transcribe_input.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

bool is_standard_input(const char *path) {
    return strcmp(path, "-") == 0;
}

static bool write_all(int to, const void *bytes, size_t size) {
    const char *at = bytes;
    while (size > 0) {
        const ssize_t written = write(to, at, size);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        size -= (size_t)written;
    }
    return true;
}

static void put_number(unsigned char *to, int bytes, uint64_t value) {
    for (int i = 0; i < bytes; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

/* Of a WAV file whose length nobody knows yet. */
static bool write_header(int to, int64_t rate) {
    unsigned char header[44] = "RIFF    WAVEfmt                     data";
    put_number(header + 4, 4, UINT32_MAX);
    put_number(header + 16, 4, 16);
    put_number(header + 20, 2, 1); /* integers, */
    put_number(header + 22, 2, 1); /* one channel */
    put_number(header + 24, 4, (uint64_t)rate);
    put_number(header + 28, 4, 2 * (uint64_t)rate);
    put_number(header + 32, 2, 2);
    put_number(header + 34, 2, 16);
    put_number(header + 40, 4, UINT32_MAX);
    return write_all(to, header, sizeof header);
}

/* False with errno; of reading where *reading. */
static bool copy_input(int to, bool *reading) {
    static char block[1 << 16];
    for (;;) {
        const ssize_t got = read(STDIN_FILENO, block, sizeof block);
        if (got < 0 && errno == EINTR)
            continue;
        *reading = got < 0;
        if (got <= 0)
            return got == 0;
        if (!write_all(to, block, (size_t)got))
            return false;
    }
}

/* Its name is taken away at once, so that nothing is left of it. */
static int make_spool(char *name, size_t size) {
    const char *folder = getenv("TMPDIR");
    snprintf(name, size, "%s/shoal-XXXXXX", folder && *folder ? folder : "/tmp");
    const int made = mkstemp(name);
    if (made >= 0)
        unlink(name);
    return made;
}

int spool_input(const char *command, int64_t rate, char *path, size_t size) {
    bool reading = false;
    const int spool = make_spool(path, size);
    const bool good = spool >= 0 && (rate == 0 || write_header(spool, rate)) &&
                      copy_input(spool, &reading);
    if (good) {
        snprintf(path, size, "/proc/self/fd/%d", spool);
        return spool;
    }
    complain(reading ? EXIT_BAD_INPUT : EXIT_RESOURCES, command, "%s %s: %s",
             reading ? "standard input" : path,
             reading ? "cannot be read" : "cannot be written", strerror(errno));
    if (spool >= 0)
        close(spool);
    return -1;
}
