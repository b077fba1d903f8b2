/* Pooling of sentence-transformers: the modules listed by a folder, and the settings of
   its pooling. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "models/text/text_model.h"

/* ---- Pooling ---------------------------------------------------------------------- */

typedef struct {
    shoal_context *context;
    const char *label;
    text_config *config;
    int chosen; /* number of poolings so far */
} pooling_file;

/* mode: name in newer files; key: spelling in this folder, for messages. */
static shoal_status choose(pooling_file *f, const char *mode, const char *key) {
    static const struct {
        const char *mode;
        int32_t pooling;
    } rows[] = {{"mean", SHOAL_TEXT_POOLING_MEAN},
                {"cls", SHOAL_TEXT_POOLING_FIRST},
                {"max", SHOAL_TEXT_POOLING_MAX}};
    for (size_t i = 0; mode && f->chosen == 0 && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(mode, rows[i].mode) == 0) {
            f->config->pooling = rows[i].pooling;
            f->chosen++;
            return SHOAL_OK;
        }
    return sh_fail(f->context, SHOAL_BAD_FILE,
                   "%s: '%s' is not supported; use mean, first token (cls) or max, or "
                   "choose a pooling explicitly",
                   f->label, sh_shown(key).text);
}

/* "pooling_mode_...": true, as in files before version 6. */
static shoal_status read_flags(pooling_file *f, json_t *root) {
    static const struct {
        const char *key, *mode;
    } rows[] = {{"pooling_mode_mean_tokens", "mean"},
                {"pooling_mode_cls_token", "cls"},
                {"pooling_mode_max_tokens", "max"}};
    void *i = json_object_iter(root);
    for (; i; i = json_object_iter_next(root, i)) {
        const char *key = json_object_iter_key(i), *mode = NULL;
        if (strncmp(key, "pooling_mode_", 13) != 0 ||
            !json_is_true(json_object_iter_value(i)))
            continue;
        for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
            if (strcmp(key, rows[row].key) == 0)
                mode = rows[row].mode;
        TRY(choose(f, mode, key));
    }
    return SHOAL_OK;
}

shoal_status sh_text_pooling_read(shoal_context *context, const char *label,
                                  const json_t *root, text_config *config) {
    pooling_file f = {context, label, config, 0};
    const json_t *modes = json_object_get(root, "pooling_mode");
    if (!modes)
        return read_flags(&f, (json_t *)(uintptr_t)root); /* jansson iterates non-const */
    /* A name or a list of names; it overrides the older keys, as in
       sentence-transformers. */
    const bool list = json_is_array(modes);
    const size_t count = list ? json_array_size(modes) : 1;
    TRY(count ? SHOAL_OK : choose(&f, NULL, "pooling_mode"));
    for (size_t i = 0; i < count; i++) {
        const char *mode = json_string_value(list ? json_array_get(modes, i) : modes);
        TRY(choose(&f, mode, mode ? mode : "pooling_mode"));
    }
    return SHOAL_OK;
}

/* ---- Modules ---------------------------------------------------------------------- */

/* False if there is no such file. A file that cannot be read, such as a dangling link,
   counts as existing. */
static bool file_in(const char *folder, const char *below, const char *name,
                    char path[PATH_MAX]) {
    struct stat found;
    const int length = snprintf(path, PATH_MAX, "%s/%s/%s", folder, below, name);
    return length > 0 && length < PATH_MAX &&
           (lstat(path, &found) == 0 || (errno != ENOENT && errno != ENOTDIR));
}

static shoal_status open_pooling(shoal_context *context, const char *folder,
                                 const char *below, text_config *config) {
    char path[PATH_MAX];
    json_t *root;
    if (strchr(below, '/') || strcmp(below, "..") == 0 ||
        !file_in(folder, below, "config.json", path))
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: modules.json names a pooling in '%s', which has no "
                       "config.json; add it or choose a pooling explicitly",
                       folder, sh_shown(below).text);
    TRY(sh_json_object_read(context, path, TEXT_CONFIG_LARGEST, &root));
    shoal_status status = sh_text_pooling_read(context, path, root, config);
    json_decref(root);
    return status;
}

/* type: a Python path, of which only the end is the same in all versions. */
static shoal_status take_module(shoal_context *context, const char *folder,
                                const json_t *module, text_config *config) {
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *below = json_string_value(json_object_get(module, "path"));
    const char *dot = type ? strrchr(type, '.') : NULL;
    const char *name = dot ? dot + 1 : type ? type : "";
    if (strcmp(name, "Transformer") == 0 && (!below || !*below))
        return SHOAL_OK;
    if (strcmp(name, "Pooling") == 0)
        return open_pooling(context, folder, below ? below : "", config);
    if (strcmp(name, "Normalize") == 0) {
        config->normalize = true;
        return SHOAL_OK;
    }
    return sh_fail(context, SHOAL_BAD_FILE,
                   "%s: modules.json names the module '%s'%s%s, which is not supported; "
                   "supported are Transformer in the folder itself, Pooling and "
                   "Normalize. An explicitly chosen pooling replaces modules.json",
                   folder, sh_shown(name).text, below && *below ? " in " : "",
                   below ? sh_shown(below).text : "");
}

shoal_status sh_text_modules_open(shoal_context *context, const char *folder,
                                  text_config *config) {
    char path[PATH_MAX];
    json_t *list;
    if (!file_in(folder, ".", "modules.json", path))
        return file_in(folder, "1_Pooling", "config.json", path)
                   ? open_pooling(context, folder, "1_Pooling", config)
                   : SHOAL_OK;
    TRY(sh_json_array_read(context, path, TEXT_CONFIG_LARGEST, &list));
    shoal_status status = SHOAL_OK;
    for (size_t i = 0; i < json_array_size(list) && status == SHOAL_OK; i++)
        status = take_module(context, folder, json_array_get(list, i), config);
    json_decref(list);
    return status;
}
