/* Errors, memory, the clock, and numbers as text. */
#define _GNU_SOURCE
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/plain.h"

/* ---- Errors ------------------------------------------------------------------------ */

shoal_status sh_fail(shoal_context *context, shoal_status status, const char *format,
                     ...) {
    if (context) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(context->message, sizeof context->message, format, arguments);
        va_end(arguments);
        /* Messages quote file names and contents of unknown origin: control characters
           could act on a terminal. UTF-8 encodes those from U+0080 on as 0xc2 and
           another byte. */
        for (unsigned char *c = (unsigned char *)context->message; *c; c++)
            if (*c < ' ' || *c == 0x7f) {
                *c = '?';
            } else if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) {
                *c++ = '?';
                *c = '?';
            }
    }
    return status;
}

const char *shoal_version(void) {
    return SHOAL_VERSION;
}

int shoal_version_number(void) {
    return SHOAL_VERSION_NUMBER;
}

const char *shoal_status_text(shoal_status status) {
    switch (status) {
    case SHOAL_OK: return "ok";
    case SHOAL_INVALID: return "invalid argument";
    case SHOAL_BAD_FILE: return "bad file";
    case SHOAL_IO: return "input or output failed";
    case SHOAL_NO_MEMORY: return "out of memory";
    case SHOAL_CANCELLED: return "cancelled";
    }
    return "unknown status";
}

/* ---- Structs that carry their size ------------------------------------------------- */

shoal_status sh_read_struct(shoal_context *context, const char *name, const void *given,
                            void *known, size_t bytes) {
    size_t size;
    if (!given)
        return SHOAL_OK;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size)
        return sh_fail(context, SHOAL_INVALID,
                       "%s.size is %zu: initialise the struct with %s_defaults()", name,
                       size, name);
    for (size_t i = bytes; i < size; i++)
        if (((const unsigned char *)given)[i])
            return sh_fail(context, SHOAL_INVALID,
                           "%s has %zu bytes and sets a field that this library, "
                           "version %s with %zu bytes, does not know",
                           name, size, SHOAL_VERSION, bytes);
    memcpy(known, given, size < bytes ? size : bytes);
    memcpy(known, &bytes, sizeof bytes);
    return SHOAL_OK;
}

void sh_write_struct(void *to, size_t size, const void *known, size_t bytes) {
    if (!to || size < sizeof size)
        return;
    memset(to, 0, size);
    memcpy(to, known, size < bytes ? size : bytes);
    memcpy(to, &size, sizeof size);
}

/* ---- Memory ------------------------------------------------------------------------ */

/* The caller's block is only malloc-aligned: align it to a cache line and store its
   header before it. */
typedef struct {
    void *original;
    shoal_context *context;
    size_t bytes;
} block_header;

static block_header header_of(const void *block) {
    block_header header;
    memcpy(&header, (const char *)block - sizeof header, sizeof header);
    return header;
}

void *sh_plain_allocate(void *user, size_t bytes) {
    (void)user;
    return malloc(bytes);
}

void sh_plain_release(void *user, void *block) {
    (void)user;
    free(block);
}

void *sh_allocate(shoal_context *context, size_t bytes) {
    const size_t extra = CACHE_LINE + sizeof(block_header);
    char *block = NULL;
    if (context)
        pthread_mutex_lock(&context->memory);
    if (bytes <= SIZE_MAX - extra)
        block = context ? context->options.allocate(context->options.user, bytes + extra)
                        : sh_plain_allocate(NULL, bytes + extra);
    if (!block)
        sh_fail(context, SHOAL_NO_MEMORY, "out of memory: could not allocate %zu bytes",
                bytes);
    if (context)
        pthread_mutex_unlock(&context->memory);
    if (!block)
        return NULL;
    uintptr_t aligned = ((uintptr_t)block + extra) & ~(uintptr_t)(CACHE_LINE - 1);
    char *place = block + (aligned - (uintptr_t)block);
    const block_header header = {block, context, bytes};
    memcpy(place - sizeof header, &header, sizeof header);
    return place;
}

void sh_free(void *block) {
    if (!block)
        return;
    const block_header header = header_of(block);
    shoal_context *context = header.context;
    if (!context) {
        sh_plain_release(NULL, header.original);
        return;
    }
    pthread_mutex_lock(&context->memory);
    context->options.release(context->options.user, header.original);
    pthread_mutex_unlock(&context->memory);
}

void sh_release(shoal_context *context, void *block) {
    (void)context;
    sh_free(block);
}

void *sh_allocate_zeros(shoal_context *context, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        bytes = SIZE_MAX; /* which is refused */
    void *block = sh_allocate(context, bytes);
    return block ? memset(block, 0, bytes) : NULL;
}

void *sh_resize(shoal_context *context, void *block, size_t bytes) {
    void *made = sh_allocate(context, bytes);
    if (made && block) {
        const size_t before = header_of(block).bytes;
        memcpy(made, block, before < bytes ? before : bytes);
        sh_free(block);
    }
    return made;
}

char *sh_copy_text(shoal_context *context, const char *text) {
    const size_t size = strlen(text) + 1;
    char *copy = sh_allocate(context, size);
    return copy ? memcpy(copy, text, size) : NULL;
}

char *sh_print_text(shoal_context *context, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int size = vsnprintf(NULL, 0, format, arguments);
    char *text = size >= 0 ? sh_allocate(context, (size_t)size + 1) : NULL;
    if (text)
        vsnprintf(text, (size_t)size + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

void *sh_reserve(block_layout *block, int64_t count, size_t element) {
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, element, &bytes) ||
        bytes > SIZE_MAX / 2 - block->bytes - CACHE_LINE) {
        block->overflow = true;
        return NULL;
    }
    void *place = block->base ? block->base + block->bytes : NULL;
    block->bytes += (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return place;
}

void *sh_allocate_parts(shoal_context *context, place_function *place, void *argument,
                        size_t *bytes) {
    block_layout block = {0};
    place(argument, &block);
    if (block.overflow) {
        sh_fail(context, SHOAL_NO_MEMORY,
                "out of memory: the required size does not fit the address space");
        return NULL;
    }
    if (bytes)
        *bytes = block.bytes;
    block = (block_layout){.base = sh_allocate(context, block.bytes)};
    if (block.base)
        place(argument, &block);
    return block.base;
}

int64_t sh_mul_checked(int64_t a, int64_t b) {
    int64_t product;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product) ? -1 : product;
}

/* ---- The clock --------------------------------------------------------------------- */

double sh_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Locale-independent numbers --------------------------------------------------- */

/* The "C" locale for this thread, and the locale to restore. */
typedef struct {
    locale_t plain, before;
} locales;

static locales use_plain(void) {
    locales both = {.plain = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    both.before = both.plain ? uselocale(both.plain) : (locale_t)0;
    return both;
}

static void restore(locales both) {
    if (!both.plain)
        return;
    uselocale(both.before);
    freelocale(both.plain);
}

int sh_print_c(char *text, size_t size, const char *format, ...) {
    const locales both = use_plain();
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, size, format, arguments);
    va_end(arguments);
    restore(both);
    return length;
}

bool sh_read_c(const char *text, double *value) {
    const locales both = use_plain();
    char *rest;
    *value = strtod(text, &rest);
    restore(both);
    return rest != text && !*rest;
}
