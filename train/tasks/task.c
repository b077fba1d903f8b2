/* Functions shared by tasks. */
#define _GNU_SOURCE
#include "train/tasks/task.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"

/* ---- Messages ---------------------------------------------------------------------- */

#define PRINT(text, format)                                                              \
    do {                                                                                 \
        va_list arguments;                                                               \
        va_start(arguments, format);                                                     \
        vsnprintf(text, sizeof text, format, arguments);                                 \
        va_end(arguments);                                                               \
    } while (0)

shoal_status shoal_context_fail(shoal_context *context, shoal_status status,
                                const char *format, ...) {
    char text[512];
    PRINT(text, format);
    return sh_fail(context, status, "%s", text);
}

void sh_warn(const shoal_train_callbacks *callbacks, const char *format, ...) {
    char text[SH_PATH + 1024];
    PRINT(text, format);
    if (callbacks && callbacks->message)
        callbacks->message(callbacks->user, text);
}

void sh_note(const shoal_task_opening *opening, const char *format, ...) {
    char text[SH_PATH + 1024];
    PRINT(text, format);
    if (opening->share.index == 0)
        sh_warn(opening->callbacks, "%s", text);
}

void shoal_share_split(shoal_share share, int64_t things, int64_t *first, int64_t *own) {
    *first = things * share.index / share.count;
    *own = things * (share.index + 1) / share.count - *first;
}

/* ---- Paths ------------------------------------------------------------------------- */

shoal_status sh_path(shoal_context *context, char path[SH_PATH], const char *folder,
                     const char *name) {
    const int length = snprintf(path, SH_PATH, "%s/%s", folder, name);
    return length >= 0 && length < SH_PATH
               ? SHOAL_OK
               : sh_fail(context, SHOAL_INVALID, "%.80s...: the path is too long",
                         folder);
}

shoal_status sh_make_folder(shoal_context *context, const char *path) {
    char part[SH_PATH];
    struct stat information;
    if (!*path || strlen(path) >= sizeof part)
        return sh_fail(context, SHOAL_INVALID, "\"%.80s\" cannot be a folder", path);
    for (size_t i = 1; i <= strlen(path); i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return sh_fail(context, SHOAL_IO, "%s cannot be created: %s", part,
                           strerror(errno));
    }
    if (stat(path, &information) == 0 && S_ISDIR(information.st_mode))
        return SHOAL_OK;
    return sh_fail(context, SHOAL_IO, "%s is not a folder", path);
}

json_t *sh_json_text(shoal_context *context, const char *text) {
    json_t *string = text ? json_string(text) : json_null();
    char *copy = string ? NULL : sh_copy_text(context, text);
    for (char *c = copy; c && *c; c++)
        *c = *c & 0x80 ? '?' : *c;
    if (copy)
        string = json_string(copy);
    sh_free(copy);
    return string;
}

/* ---- Memory ------------------------------------------------------------------------ */

/* Header of a block, one cache line before it. */
typedef struct pool_block {
    struct pool_block *before, *after;
} pool_block;

void *sh_pool_take(pool *from, int64_t count, size_t size) {
    const int64_t bytes = sh_mul_checked(count, (int64_t)size);
    const bool fits = bytes >= 0 && bytes < INT64_MAX - CACHE_LINE;
    char *block =
        sh_allocate(from->context, fits ? (size_t)bytes + CACHE_LINE : SIZE_MAX);
    if (!block)
        return NULL;
    memset(block, 0, (size_t)bytes + CACHE_LINE);
    pool_block *head = (pool_block *)(void *)block;
    head->before = from->last;
    if (from->last)
        from->last->after = head;
    from->last = head;
    return block + CACHE_LINE;
}

/* Removes a block. */
static void drop(pool *from, void *block) {
    if (!block)
        return;
    pool_block *head = (pool_block *)(void *)((char *)block - CACHE_LINE);
    if (head->before)
        head->before->after = head->after;
    if (head->after)
        head->after->before = head->before;
    else
        from->last = head->before;
    sh_release(from->context, head);
}

shoal_status sh_pool_resize(pool *from, void *array, int64_t kept, int64_t wanted,
                            size_t size) {
    void *old, *made = sh_pool_take(from, wanted, size);
    if (!made)
        return SHOAL_NO_MEMORY;
    memcpy(&old, array, sizeof old);
    if (old)
        memcpy(made, old, (size_t)kept * size);
    drop(from, old);
    memcpy(array, &made, sizeof made);
    return SHOAL_OK;
}

void sh_pool_free(pool *from) {
    while (from->last)
        drop(from, (char *)from->last + CACHE_LINE);
}
