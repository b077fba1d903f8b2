#define _GNU_SOURCE
#include "models/files/safetensors.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum {
    SAFETENSORS_LENGTH = 8,                 /* bytes of the header's length */
    SAFETENSORS_LARGEST_HEADER = 100000000, /* limit of the format */
};
#define SAFETENSORS_METADATA "__metadata__"

struct safetensors {
    shoal_context *context;
    const char *label;    /* file name for messages */
    json_t *root;         /* the header, which owns the names; NULL for shards */
    file_tensor *tensors; /* [count], sorted by name */
    int64_t count;
    file_map map;         /* NULL for shards */
    safetensors **shards; /* [shard_count]: own the tensors */
    int64_t shard_count;
};

/* One block: the object, its label, and room for `count` tensors and for as many shards
   and names. */
typedef struct {
    safetensors file;
    const char *label;
    int64_t shards;
    const char **names; /* [shards], needed only while opening */
} file_parts;

static void place(void *argument, block_layout *block) {
    file_parts *parts = argument;
    safetensors *file = &parts->file;
    sh_reserve(block, 1, sizeof *file);
    char *label = sh_reserve(block, (int64_t)strlen(parts->label) + 1, 1);
    file->label = label ? strcpy(label, parts->label) : NULL;
    file->tensors = sh_reserve(block, file->count, sizeof *file->tensors);
    file->shards = sh_reserve(block, parts->shards, sizeof(safetensors *));
    parts->names = sh_reserve(block, parts->shards, sizeof *parts->names);
}

static shoal_status make_file(file_parts *parts, safetensors **file) {
    *file = sh_allocate_parts(parts->file.context, place, parts, NULL);
    if (!*file)
        return SHOAL_NO_MEMORY;
    **file = parts->file;
    return SHOAL_OK;
}

/* ---- From JSON to one tensor ------------------------------------------------------ */

typedef struct {
    shoal_context *context;
    const char *label;
    const unsigned char *data; /* bytes of all tensors */
    size_t size;               /* of data */
} data_buffer;

static shoal_status refuse(const data_buffer *buffer, const char *name,
                           const char *what) {
    return sh_fail(buffer->context, SHOAL_BAD_FILE, "%s: tensor '%s': %s", buffer->label,
                   sh_shown(name).text, what);
}

/* Integers only: 2.0 is a real number, and numbers above 2^63 - 1 do not get here. */
static bool count_of(const json_t *value, int64_t *count) {
    *count = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    return *count >= 0;
}

static shoal_status read_tensor(const data_buffer *buffer, const json_t *description,
                                file_tensor *tensor) {
    const char *dtype = json_string_value(json_object_get(description, "dtype"));
    const json_t *shape = json_object_get(description, "shape");
    const json_t *offsets = json_object_get(description, "data_offsets");
    int64_t begin, end, elements;
    if (!json_is_object(description))
        return refuse(buffer, tensor->name, "its description is not an object");
    if (!dtype)
        return refuse(buffer, tensor->name, "it has no 'dtype'");
    if (!sh_dtype_from_name(dtype, &tensor->dtype))
        return sh_fail(buffer->context, SHOAL_BAD_FILE,
                       "%s: tensor '%s': unknown type '%s'", buffer->label,
                       sh_shown(tensor->name).text, sh_shown(dtype).text);
    if (!json_is_array(shape))
        return refuse(buffer, tensor->name, "its 'shape' is not a list");
    if (json_array_size(shape) > FILE_TENSOR_RANK)
        return refuse(buffer, tensor->name, "it has more than 8 dimensions");
    tensor->rank = (int)json_array_size(shape);
    for (int i = 0; i < tensor->rank; i++)
        if (!count_of(json_array_get(shape, (size_t)i), &tensor->shape[i]))
            return refuse(buffer, tensor->name, "a dimension is not an integer");
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !count_of(json_array_get(offsets, 0), &begin) ||
        !count_of(json_array_get(offsets, 1), &end))
        return refuse(buffer, tensor->name, "its 'data_offsets' are not two integers");
    if (begin > end || (uint64_t)end > buffer->size)
        return refuse(buffer, tensor->name, "its 'data_offsets' are outside the file");
    if (!sh_dtype_bytes(tensor->dtype, tensor->rank, tensor->shape, &elements,
                        &tensor->bytes))
        return refuse(buffer, tensor->name, "its shape is larger than any file");
    if (tensor->bytes != (uint64_t)(end - begin))
        return refuse(buffer, tensor->name,
                      "its shape and 'data_offsets' differ in size");
    tensor->data = buffer->data + begin;
    return SHOAL_OK;
}

/* ---- The header ------------------------------------------------------------------- */

static bool are_strings(json_t *object) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        if (!json_is_string(value))
            return false;
    }
    return true;
}

static int compare_places(const void *left, const void *right) {
    const file_tensor *a = left, *b = right;
    const unsigned char *first = a->data, *second = b->data;
    if (first != second)
        return first < second ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static shoal_status read_tensors(const data_buffer *buffer, json_t *root,
                                 safetensors *file) {
    file_tensor *next = file->tensors;
    void *i = json_object_iter(root);
    for (; i; i = json_object_iter_next(root, i)) {
        const char *name = json_object_iter_key(i);
        if (strcmp(name, SAFETENSORS_METADATA) == 0)
            continue;
        *next = (file_tensor){.name = name};
        TRY(read_tensor(buffer, json_object_iter_value(i), next++));
    }
    /* Sorted by offset, each tensor must begin where the previous one ends. */
    const unsigned char *expected = buffer->data;
    if (file->count > 0)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_places);
    for (const file_tensor *one = file->tensors; one < next; one++) {
        const unsigned char *begin = one->data;
        if (begin != expected)
            return refuse(buffer, one->name,
                          begin < expected ? "it overlaps another tensor"
                                           : "there is a gap before its data");
        expected = begin + one->bytes;
    }
    if (expected != buffer->data + buffer->size)
        return sh_fail(buffer->context, SHOAL_BAD_FILE,
                       "%s: %zu bytes after the last tensor do not belong to a tensor",
                       buffer->label, (size_t)(buffer->data + buffer->size - expected));
    sh_file_tensors_sort(file->tensors, file->count);
    return SHOAL_OK;
}

shoal_status sh_safetensors_parse(shoal_context *context, const char *label,
                                  const unsigned char *bytes, size_t size,
                                  safetensors **file) {
    *file = NULL;
    if (size < SAFETENSORS_LENGTH)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: too short for a safetensors file (%zu bytes)", label, size);
    uint64_t length = 0;
    for (int i = SAFETENSORS_LENGTH - 1; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > SAFETENSORS_LARGEST_HEADER)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: its header would have %llu bytes; not a safetensors file?",
                       label, (unsigned long long)length);
    if (length > size - SAFETENSORS_LENGTH)
        return sh_fail(context, SHOAL_BAD_FILE,
                       "%s: is truncated in its header; copy it again", label);
    const char *header = (const char *)bytes + SAFETENSORS_LENGTH;
    if (length == 0 || header[0] != '{')
        return sh_fail(context, SHOAL_BAD_FILE, "%s: its header does not begin with '{'",
                       label);
    json_error_t error;
    json_t *root = json_loadb(header, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: its header is not JSON: %s", label,
                       sh_shown(error.text).text);
    data_buffer buffer = {context, label, bytes + SAFETENSORS_LENGTH + length,
                          size - SAFETENSORS_LENGTH - (size_t)length};
    json_t *metadata = json_object_get(root, SAFETENSORS_METADATA);
    file_parts parts = {.file = {.context = context, .root = root}, .label = label};
    parts.file.count = (int64_t)json_object_size(root) - (metadata != NULL);
    shoal_status status =
        !json_is_object(root)
            ? sh_fail(context, SHOAL_BAD_FILE, "%s: its header is not an object", label)
        : metadata && (!json_is_object(metadata) || !are_strings(metadata))
            ? sh_fail(context, SHOAL_BAD_FILE,
                      "%s: its metadata are not an object of strings", label)
            : make_file(&parts, file);
    if (status != SHOAL_OK) {
        json_decref(root);
        return status;
    }
    status = read_tensors(&buffer, root, *file); /* the file owns the tree now */
    if (status != SHOAL_OK) {
        sh_safetensors_close(*file);
        *file = NULL;
    }
    return status;
}

/* ---- Shards: "weight_map" of an index names the file of every tensor -------------- */

typedef struct {
    shoal_context *context;
    const char *path;
    json_t *weight_map;
} shard_index;

static int compare_text(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Lists the shards' names without duplicates, in order; they are owned by the JSON
   tree. */
static shoal_status list_shards(const shard_index *index, const char **names,
                                int64_t *count) {
    int64_t all = 0, kept = 0;
    void *i = json_object_iter(index->weight_map);
    for (; i; i = json_object_iter_next(index->weight_map, i)) {
        const char *name = json_string_value(json_object_iter_value(i));
        if (!name || !name[0] || strchr(name, '/') || strcmp(name, "..") == 0)
            return sh_fail(
                index->context, SHOAL_BAD_FILE,
                "%s: tensor '%s' must be mapped to the name of a file in the same folder",
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

static shoal_status open_one(shoal_context *context, const char *path,
                             safetensors **file) {
    file_map map;
    shoal_status status = sh_file_map_open(context, path, &map);
    if (status == SHOAL_OK)
        status = sh_safetensors_parse(context, path, map.bytes, map.size, file);
    if (status == SHOAL_OK)
        (*file)->map = map;
    else
        sh_file_map_close(&map);
    return status;
}

/* Opens a shard and appends its tensors, all of which the index must map to this
   shard. */
static shoal_status take_shard(const shard_index *index, const char *name,
                               safetensors *file) {
    char path[PATH_MAX];
    const char *slash = strrchr(index->path, '/');
    int folder = slash ? (int)(slash - index->path) + 1 : 0;
    int length = snprintf(path, sizeof path, "%.*s%s", folder, index->path, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return sh_fail(index->context, SHOAL_BAD_FILE, "%s: the name '%s' is too long",
                       index->path, sh_shown(name).text);
    TRY(open_one(index->context, path, &file->shards[file->shard_count]));
    const safetensors *shard = file->shards[file->shard_count++];
    int64_t room = (int64_t)json_object_size(index->weight_map);
    for (int64_t i = 0; i < shard->count; i++) {
        const char *tensor = shard->tensors[i].name;
        const char *mapped =
            json_string_value(json_object_get(index->weight_map, tensor));
        if (!mapped || strcmp(mapped, name) != 0 || file->count == room)
            return sh_fail(
                index->context, SHOAL_BAD_FILE,
                "%s: tensor '%s' is in '%s', but the index maps it to another file",
                index->path, sh_shown(tensor).text, sh_shown(name).text);
        file->tensors[file->count++] = shard->tensors[i];
    }
    return SHOAL_OK;
}

/* Every tensor in a shard was mapped to it, so equal counts mean that none is
   missing. */
static shoal_status open_shards(const shard_index *index, const char **names,
                                safetensors *file) {
    int64_t count = 0;
    TRY(list_shards(index, names, &count));
    for (int64_t i = 0; i < count; i++)
        TRY(take_shard(index, names[i], file));
    if (file->count != (int64_t)json_object_size(index->weight_map))
        return sh_fail(index->context, SHOAL_BAD_FILE,
                       "%s: maps %zu tensors, but the files have %lld of them",
                       index->path, json_object_size(index->weight_map),
                       (long long)file->count);
    sh_file_tensors_sort(file->tensors, file->count);
    return SHOAL_OK;
}

static shoal_status open_index(shoal_context *context, const char *path,
                               safetensors **file) {
    json_t *root;
    *file = NULL;
    TRY(sh_json_object_read(context, path, SAFETENSORS_LARGEST_HEADER, &root));
    const shard_index index = {context, path, json_object_get(root, "weight_map")};
    const int64_t tensors = (int64_t)json_object_size(index.weight_map);
    file_parts parts = {.file = {.context = context, .count = tensors},
                        .label = path,
                        .shards = tensors};
    shoal_status status =
        tensors > 0 ? make_file(&parts, file)
                    : sh_fail(context, SHOAL_BAD_FILE,
                              "%s: has no 'weight_map' from tensors to files", path);
    if (status == SHOAL_OK) {
        (*file)->count = 0;
        status = open_shards(&index, parts.names, *file);
    }
    if (status != SHOAL_OK) {
        sh_safetensors_close(*file);
        *file = NULL;
    }
    json_decref(root);
    return status;
}

/* ---- Files and lookup ------------------------------------------------------------- */

shoal_status sh_safetensors_open(shoal_context *context, const char *path,
                                 safetensors **file) {
    const size_t length = strlen(path);
    *file = NULL;
    return length >= 5 && strcmp(path + length - 5, ".json") == 0
               ? open_index(context, path, file)
               : open_one(context, path, file);
}

void sh_safetensors_close(safetensors *file) {
    if (!file)
        return;
    for (int64_t i = 0; i < file->shard_count; i++)
        sh_safetensors_close(file->shards[i]);
    json_decref(file->root);
    sh_file_map_close(&file->map);
    sh_release(file->context, file);
}

int64_t sh_safetensors_count(const safetensors *file) {
    return file->count;
}

const file_tensor *sh_safetensors_at(const safetensors *file, int64_t index) {
    return &file->tensors[index];
}

const file_tensor *sh_safetensors_find(const safetensors *file, const char *name) {
    return sh_file_tensor_find(file->tensors, file->count, name);
}

shoal_status sh_safetensors_require(shoal_context *context, const safetensors *file,
                                    const char *name, tensor_dtype dtype, int rank,
                                    const int64_t *shape, const file_tensor **tensor) {
    *tensor = sh_safetensors_find(file, name);
    if (!*tensor)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: has no tensor '%s'", file->label,
                       sh_shown(name).text);
    if ((*tensor)->dtype != dtype)
        return sh_fail(context, SHOAL_BAD_FILE, "%s: tensor '%s' is %s instead of %s",
                       file->label, sh_shown(name).text, sh_dtype_name((*tensor)->dtype),
                       sh_dtype_name(dtype));
    if (!sh_file_tensor_has_shape(*tensor, rank, shape))
        return sh_fail(context, SHOAL_BAD_FILE, "%s: tensor '%s' has another shape",
                       file->label, sh_shown(name).text);
    return SHOAL_OK;
}

json_t *sh_safetensors_notes(const safetensors *file) {
    return json_object_get(file->root, SAFETENSORS_METADATA);
}

const char *sh_safetensors_note_of(const safetensors *file, const char *key) {
    return json_string_value(json_object_get(sh_safetensors_notes(file), key));
}

/* ---- Writing: the header by jansson, then the tensors' bytes in place ------------- */

typedef struct {
    shoal_context *context;
    const char *path;
    const file_tensor **order; /* [count], in the order of the file */
    file_part *parts;          /* [count + 2]: length, header, tensors */
    int64_t count;
} writing;

/* Larger elements first, so that each tensor is aligned to its element size. */
static int compare_for_writing(const void *left, const void *right) {
    const file_tensor *a = *(const file_tensor *const *)left;
    const file_tensor *b = *(const file_tensor *const *)right;
    size_t first = sh_dtype_size(a->dtype), second = sh_dtype_size(b->dtype);
    if (first != second)
        return first > second ? -1 : 1;
    return strcmp(a->name, b->name);
}

static shoal_status cannot_write(const writing *out, const char *name, const char *what) {
    return sh_fail(out->context, SHOAL_INVALID, "%s: cannot write '%s': %s", out->path,
                   sh_shown(name).text, what);
}

/* Adds to an object; duplicate names and invalid UTF-8 are rejected. */
static shoal_status add(const writing *out, json_t *object, const char *name,
                        json_t *value) {
    if (!name[0] || json_object_get(object, name)) {
        json_decref(value);
        return cannot_write(out, name, "the name is empty or used twice");
    }
    if (!value || json_object_set_new(object, name, value) != 0)
        return cannot_write(out, name, "not UTF-8, or out of memory");
    return SHOAL_OK;
}

static shoal_status describe(const writing *out, json_t *root, const shoal_note *notes,
                             int64_t note_count) {
    int64_t begin = 0, end, elements;
    json_t *metadata = note_count > 0 ? json_object() : NULL;
    if (note_count > 0)
        TRY(add(out, root, SAFETENSORS_METADATA, metadata));
    for (int64_t i = 0; i < note_count; i++)
        TRY(add(out, metadata, notes[i].key, json_string(notes[i].value)));
    for (int64_t i = 0; i < out->count; i++) {
        const file_tensor *tensor = out->order[i];
        size_t bytes;
        if (strcmp(tensor->name, SAFETENSORS_METADATA) == 0)
            return cannot_write(out, tensor->name, "the name is reserved by the format");
        if (tensor->rank < 0 || tensor->rank > FILE_TENSOR_RANK ||
            !sh_dtype_bytes(tensor->dtype, tensor->rank, tensor->shape, &elements,
                            &bytes) ||
            __builtin_add_overflow(begin, (int64_t)bytes, &end))
            return cannot_write(out, tensor->name, "its shape is invalid");
        out->parts[i + 2] = (file_part){tensor->data, bytes};
        json_t *shape = json_array();
        for (int d = 0; d < tensor->rank; d++)
            json_array_append_new(shape, json_integer(tensor->shape[d]));
        json_t *value = json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                  sh_dtype_name(tensor->dtype), "shape", shape,
                                  "data_offsets", (json_int_t)begin, (json_int_t)end);
        TRY(add(out, root, tensor->name, value));
        begin = end;
    }
    return SHOAL_OK;
}

static shoal_status write_file(const writing *out, const json_t *root, bool durable) {
    enum { ALIGNMENT = 8 }; /* of the header, which is padded with spaces */
    unsigned char length[SAFETENSORS_LENGTH];
    const size_t text = json_dumpb(root, NULL, 0, JSON_COMPACT);
    const size_t size = (text + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (size > SAFETENSORS_LARGEST_HEADER)
        return sh_fail(out->context, SHOAL_INVALID,
                       "%s: its header would exceed the limit of the format", out->path);
    char *header = text > 0 ? sh_allocate(out->context, size) : NULL;
    if (!header)
        return sh_fail(out->context, SHOAL_NO_MEMORY, "%s: out of memory for its header",
                       out->path);
    memset(header, ' ', size);
    json_dumpb(root, header, text, JSON_COMPACT);
    for (int i = 0; i < SAFETENSORS_LENGTH; i++)
        length[i] = (unsigned char)(size >> (8 * i));
    out->parts[0] = (file_part){length, sizeof length};
    out->parts[1] = (file_part){header, size};
    const shoal_status status =
        sh_file_replace(out->context, out->path, out->parts, (int)(out->count + 2),
                        durable ? SHOAL_SYNC_NAME : SHOAL_SYNC_NONE);
    sh_free(header);
    return status;
}

static void place_writing(void *argument, block_layout *block) {
    writing *out = argument;
    out->order = sh_reserve(block, out->count, sizeof *out->order);
    out->parts = sh_reserve(block, out->count + 2, sizeof *out->parts);
}

shoal_status sh_safetensors_write(shoal_context *context, const char *path,
                                  const file_tensor *tensors, int64_t count,
                                  const shoal_note *notes, int64_t note_count,
                                  bool durable) {
    if (count < 0 || count > INT_MAX - 2 || note_count < 0)
        return sh_fail(context, SHOAL_INVALID, "%s: cannot write %lld tensors", path,
                       (long long)count);
    writing out = {.context = context, .path = path, .count = count};
    void *block = sh_allocate_parts(context, place_writing, &out, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < count; i++)
        out.order[i] = &tensors[i];
    if (count > 0)
        qsort(out.order, (size_t)count, sizeof *out.order, compare_for_writing);
    json_t *root = json_object();
    shoal_status status =
        root ? describe(&out, root, notes, note_count)
             : sh_fail(context, SHOAL_NO_MEMORY, "%s: out of memory", path);
    if (status == SHOAL_OK)
        status = write_file(&out, root, durable);
    json_decref(root);
    sh_release(context, block);
    return status;
}
