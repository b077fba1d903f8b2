/* Sharded models: "weight_map" of an index names the file of every tensor. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/json_file.h"
#include "models/files/safetensors_parts.h"
#include "models/files/shown.h"

typedef struct {
    shoal_context *context;
    const char *path;
    json_t *weight_map;
} shard_index;

static int compare_text(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* The shards' names, each once, in order; they are the JSON tree's own. */
static shoal_status list_shards(const shard_index *index, const char **names,
                                int64_t *count) {
    int64_t all = 0, kept = 0;
    void *i = json_object_iter(index->weight_map);
    for (; i; i = json_object_iter_next(index->weight_map, i)) {
        const char *name = json_string_value(json_object_iter_value(i));
        if (!name || !name[0] || strchr(name, '/') || strcmp(name, "..") == 0)
            return sh_fail(
                index->context, SHOAL_BAD_FILE,
                "%s: tensor '%s' should be mapped to the name of a file beside it",
                index->path, sh_shown(json_object_iter_key(i)).text);
        names[all++] = name;
    }
    qsort(names, (size_t)all, sizeof *names, compare_text);
    for (int64_t j = 0; j < all; j++)
        if (kept == 0 || strcmp(names[kept - 1], names[j]) != 0)
            names[kept++] = names[j];
    *count = kept;
    return SHOAL_OK;
}

static shoal_status open_shard(const shard_index *index, const char *name,
                               safetensors **shard) {
    char path[PATH_MAX];
    const char *slash = strrchr(index->path, '/');
    int folder = slash ? (int)(slash - index->path) + 1 : 0;
    int length = snprintf(path, sizeof path, "%.*s%s", folder, index->path, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return sh_fail(index->context, SHOAL_BAD_FILE, "%s: the name '%s' is too long",
                       index->path, sh_shown(name).text);
    file_map map;
    shoal_status status = sh_file_map_open(index->context, path, &map);
    if (status != SHOAL_OK)
        return status;
    status = sh_safetensors_parse(index->context, path, map.bytes, map.size, shard);
    if (status == SHOAL_OK)
        (*shard)->map = map;
    else
        sh_file_map_close(&map);
    return status;
}

/* Appends a shard's tensors; each must be mapped to this shard. */
static shoal_status take_tensors(const shard_index *index, const char *name,
                                 const safetensors *shard, safetensors *file) {
    int64_t room = (int64_t)json_object_size(index->weight_map);
    for (int64_t i = 0; i < shard->count; i++) {
        const char *tensor = shard->tensors[i].name;
        const char *mapped =
            json_string_value(json_object_get(index->weight_map, tensor));
        if (!mapped || strcmp(mapped, name) != 0 || file->count == room)
            return sh_fail(index->context, SHOAL_BAD_FILE,
                           "%s: tensor '%s' lies in '%s', which the index does not say",
                           index->path, sh_shown(tensor).text, sh_shown(name).text);
        file->tensors[file->count++] = shard->tensors[i];
    }
    return SHOAL_OK;
}

/* Every tensor in a shard was mapped to it, so equal counts mean that none is missing. */
static shoal_status open_shards(const shard_index *index, const char **names,
                                int64_t count, safetensors *file) {
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++) {
        status = open_shard(index, names[i], &file->shards[i]);
        if (status != SHOAL_OK)
            break;
        file->shard_count++;
        status = take_tensors(index, names[i], file->shards[i], file);
    }
    if (status != SHOAL_OK)
        return status;
    if (file->count != (int64_t)json_object_size(index->weight_map))
        return sh_fail(index->context, SHOAL_BAD_FILE,
                       "%s: names %zu tensors, but the files have %lld of them",
                       index->path, json_object_size(index->weight_map),
                       (long long)file->count);
    sh_file_tensors_sort(file->tensors, file->count);
    return SHOAL_OK;
}

typedef struct {
    safetensors file;
    const char *path;
    int64_t tensors;
    const char **names; /* [tensors], needed only while opening */
} index_parts;

static void place(void *argument, block_layout *block) {
    index_parts *parts = argument;
    sh_reserve(block, 1, sizeof parts->file);
    char *label = sh_reserve(block, (int64_t)strlen(parts->path) + 1, 1);
    parts->file.label = label ? strcpy(label, parts->path) : NULL;
    parts->file.tensors = sh_reserve(block, parts->tensors, sizeof(file_tensor));
    parts->file.shards = sh_reserve(block, parts->tensors, sizeof(safetensors *));
    parts->names = sh_reserve(block, parts->tensors, sizeof *parts->names);
}

static shoal_status open_weight_map(const shard_index *index, safetensors **file) {
    index_parts parts = {.file.context = index->context,
                         .path = index->path,
                         .tensors = (int64_t)json_object_size(index->weight_map)};
    int64_t count = 0;
    *file = sh_allocate_parts(index->context, place, &parts, NULL);
    if (!*file)
        return SHOAL_NO_MEMORY;
    **file = parts.file;
    shoal_status status = list_shards(index, parts.names, &count);
    if (status == SHOAL_OK)
        status = open_shards(index, parts.names, count, *file);
    if (status != SHOAL_OK) {
        sh_safetensors_close(*file);
        *file = NULL;
    }
    return status;
}

shoal_status sh_safetensors_open_index(shoal_context *context, const char *path,
                                       safetensors **file) {
    json_t *root;
    *file = NULL;
    shoal_status status =
        sh_json_object_read(context, path, SAFETENSORS_LARGEST_HEADER, &root);
    if (status != SHOAL_OK)
        return status;
    shard_index index = {context, path, json_object_get(root, "weight_map")};
    if (json_object_size(index.weight_map) == 0)
        status = sh_fail(context, SHOAL_BAD_FILE,
                         "%s: has no 'weight_map' of tensors and files", path);
    else
        status = open_weight_map(&index, file);
    json_decref(root);
    return status;
}
