/* The reader of one file. The JSON tree is measured, copied into one block and let go. */
#include "models/files/safetensors.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/safetensors_parts.h"
#include "models/files/shown.h"

/* ---- From JSON to one tensor ------------------------------------------------------ */

typedef struct {
    shoal_context *context;
    const char *label;
    const unsigned char *data; /* the tensors' bytes */
    size_t size;               /* of them */
} data_buffer;

static shoal_status refuse(const data_buffer *buffer, const char *name,
                           const char *what) {
    return sh_fail(buffer->context, SHOAL_BAD_FILE, "%s: tensor '%s': %s", buffer->label,
                   sh_shown(name).text, what);
}

/* Integers only: 2.0 is a real number, and larger ones than 2^63 - 1 never get here. */
static bool count_of(const json_t *value, int64_t *count) {
    *count = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;
    return *count >= 0;
}

static shoal_status read_shape(const data_buffer *buffer, const json_t *shape,
                               file_tensor *tensor) {
    if (!json_is_array(shape))
        return refuse(buffer, tensor->name, "its 'shape' is not a list");
    size_t rank = json_array_size(shape);
    if (rank > FILE_TENSOR_RANK)
        return refuse(buffer, tensor->name, "it has more than 8 dimensions");
    tensor->rank = (int)rank;
    for (size_t i = 0; i < rank; i++)
        if (!count_of(json_array_get(shape, i), &tensor->shape[i]))
            return refuse(buffer, tensor->name, "a dimension is not a whole number");
    return SHOAL_OK;
}

static shoal_status read_place(const data_buffer *buffer, const json_t *offsets,
                               file_tensor *tensor) {
    int64_t begin, end, elements;
    size_t bytes;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !count_of(json_array_get(offsets, 0), &begin) ||
        !count_of(json_array_get(offsets, 1), &end))
        return refuse(buffer, tensor->name,
                      "its 'data_offsets' are not two whole numbers");
    if (begin > end || (uint64_t)end > buffer->size)
        return refuse(buffer, tensor->name, "its 'data_offsets' lie outside the file");
    if (!sh_dtype_bytes(tensor->dtype, tensor->rank, tensor->shape, &elements, &bytes))
        return refuse(buffer, tensor->name, "its shape is larger than any file");
    if (bytes != (uint64_t)(end - begin))
        return refuse(buffer, tensor->name,
                      "its shape and 'data_offsets' differ in size");
    tensor->data = buffer->data + begin;
    tensor->bytes = bytes;
    return SHOAL_OK;
}

static shoal_status read_tensor(const data_buffer *buffer, const json_t *description,
                                file_tensor *tensor) {
    if (!json_is_object(description))
        return refuse(buffer, tensor->name, "its description is not an object");
    const char *dtype = json_string_value(json_object_get(description, "dtype"));
    if (!dtype)
        return refuse(buffer, tensor->name, "it has no 'dtype'");
    if (!sh_dtype_from_name(dtype, &tensor->dtype))
        return sh_fail(buffer->context, SHOAL_BAD_FILE,
                       "%s: tensor '%s': type '%s' is not known", buffer->label,
                       sh_shown(tensor->name).text, sh_shown(dtype).text);
    shoal_status status =
        read_shape(buffer, json_object_get(description, "shape"), tensor);
    if (status != SHOAL_OK)
        return status;
    return read_place(buffer, json_object_get(description, "data_offsets"), tensor);
}

/* ---- The whole header ------------------------------------------------------------- */

static char *copy_text(char **room, const char *text) {
    size_t size = strlen(text) + 1;
    char *copy = memcpy(*room, text, size);
    *room += size;
    return copy;
}

/* Bytes of all names, keys and values with their zeros; false: metadata are not text. */
static bool measure_text(json_t *root, json_t *metadata, size_t *bytes) {
    *bytes = 0;
    for (void *i = json_object_iter(root); i; i = json_object_iter_next(root, i))
        *bytes += strlen(json_object_iter_key(i)) + 1;
    for (void *i = json_object_iter(metadata); i;
         i = json_object_iter_next(metadata, i)) {
        const char *value = json_string_value(json_object_iter_value(i));
        if (!value)
            return false;
        *bytes += strlen(json_object_iter_key(i)) + strlen(value) + 2;
    }
    return true;
}

typedef struct {
    safetensors file;
    const char *label;
    size_t text_bytes;
    char *text; /* [text_bytes]: names, keys and values of notes */
} file_parts;

static void place(void *argument, block_layout *block) {
    file_parts *parts = argument;
    safetensors *file = &parts->file;
    sh_reserve(block, 1, sizeof *file);
    char *label = sh_reserve(block, (int64_t)strlen(parts->label) + 1, 1);
    file->label = label ? strcpy(label, parts->label) : NULL;
    file->tensors = sh_reserve(block, file->count, sizeof *file->tensors);
    file->notes = sh_reserve(block, file->note_count, sizeof *file->notes);
    parts->text = sh_reserve(block, (int64_t)parts->text_bytes, 1);
}

static shoal_status read_tensors(const data_buffer *buffer, json_t *root,
                                 safetensors *file, char **text) {
    shoal_status status = SHOAL_OK;
    file_tensor *next = file->tensors;
    void *i = json_object_iter(root);
    for (; i && status == SHOAL_OK; i = json_object_iter_next(root, i)) {
        const char *name = json_object_iter_key(i);
        if (strcmp(name, SAFETENSORS_METADATA) == 0)
            continue;
        *next = (file_tensor){.name = copy_text(text, name)};
        status = read_tensor(buffer, json_object_iter_value(i), next++);
    }
    return status;
}

static int compare_places(const void *left, const void *right) {
    const file_tensor *a = left, *b = right;
    const unsigned char *first = a->data, *second = b->data;
    if (first != second)
        return first < second ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static int compare_keys(const void *left, const void *right) {
    return strcmp(((const shoal_note *)left)->key, ((const shoal_note *)right)->key);
}

/* Sorted by place, each tensor begins where the one before it ended. */
static shoal_status check_coverage(const data_buffer *buffer, safetensors *file) {
    const unsigned char *expected = buffer->data;
    if (file->count > 0)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, compare_places);
    for (int64_t i = 0; i < file->count; i++) {
        const unsigned char *begin = file->tensors[i].data;
        if (begin != expected)
            return refuse(buffer, file->tensors[i].name,
                          begin < expected ? "it overlaps another tensor"
                                           : "there is a gap before its data");
        expected = begin + file->tensors[i].bytes;
    }
    if (expected != buffer->data + buffer->size)
        return sh_fail(buffer->context, SHOAL_BAD_FILE,
                       "%s: %zu bytes after the last tensor belong to none",
                       buffer->label, (size_t)(buffer->data + buffer->size - expected));
    return SHOAL_OK;
}

static void read_notes(json_t *metadata, safetensors *file, char **text) {
    shoal_note *next = file->notes;
    for (void *i = json_object_iter(metadata); i;
         i = json_object_iter_next(metadata, i)) {
        next->key = copy_text(text, json_object_iter_key(i));
        next->value = copy_text(text, json_string_value(json_object_iter_value(i)));
        next++;
    }
}

static shoal_status read_root(const data_buffer *buffer, json_t *root,
                              safetensors **file) {
    json_t *metadata = json_object_get(root, SAFETENSORS_METADATA);
    file_parts parts = {.file.context = buffer->context, .label = buffer->label};
    if (!json_is_object(root))
        return sh_fail(buffer->context, SHOAL_BAD_FILE, "%s: its header is not an object",
                       buffer->label);
    if ((metadata && !json_is_object(metadata)) ||
        !measure_text(root, metadata, &parts.text_bytes))
        return sh_fail(buffer->context, SHOAL_BAD_FILE,
                       "%s: its metadata are not an object of strings", buffer->label);
    int64_t count = (int64_t)json_object_size(root) - (metadata != NULL);
    parts.file.count = count;
    parts.file.note_count = (int64_t)json_object_size(metadata);
    *file = sh_allocate_parts(buffer->context, place, &parts, NULL);
    if (!*file)
        return SHOAL_NO_MEMORY;
    **file = parts.file;
    read_notes(metadata, *file, &parts.text);
    shoal_status status = read_tensors(buffer, root, *file, &parts.text);
    if (status == SHOAL_OK)
        status = check_coverage(buffer, *file);
    if (status != SHOAL_OK) {
        sh_safetensors_close(*file);
        *file = NULL;
        return status;
    }
    sh_file_tensors_sort((*file)->tensors, count);
    if ((*file)->note_count > 0)
        qsort((*file)->notes, (size_t)(*file)->note_count, sizeof(shoal_note),
              compare_keys);
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
                       "%s: ends within its header; the file was cut short", label);
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
    shoal_status status = read_root(&buffer, root, file);
    json_decref(root);
    return status;
}

/* ---- Files and lookup ------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

shoal_status sh_safetensors_open(shoal_context *context, const char *path,
                                 safetensors **file) {
    file_map map;
    *file = NULL;
    if (ends_with(path, ".json"))
        return sh_safetensors_open_index(context, path, file);
    shoal_status status = sh_file_map_open(context, path, &map);
    if (status == SHOAL_OK)
        status = sh_safetensors_parse(context, path, map.bytes, map.size, file);
    if (status == SHOAL_OK)
        (*file)->map = map;
    else
        sh_file_map_close(&map);
    return status;
}

void sh_safetensors_close(safetensors *file) {
    if (!file)
        return;
    for (int64_t i = 0; i < file->shard_count; i++)
        sh_safetensors_close(file->shards[i]);
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
        return sh_fail(context, SHOAL_BAD_FILE, "%s: tensor '%s' is %s and should be %s",
                       file->label, sh_shown(name).text, sh_dtype_name((*tensor)->dtype),
                       sh_dtype_name(dtype));
    if (!sh_file_tensor_has_shape(*tensor, rank, shape))
        return sh_fail(context, SHOAL_BAD_FILE, "%s: tensor '%s' has another shape",
                       file->label, sh_shown(name).text);
    return SHOAL_OK;
}

int64_t sh_safetensors_note_count(const safetensors *file) {
    return file->note_count;
}

shoal_note sh_safetensors_note_at(const safetensors *file, int64_t index) {
    return file->notes[index];
}

const char *sh_safetensors_note_of(const safetensors *file, const char *key) {
    for (int64_t i = 0; i < file->note_count; i++)
        if (strcmp(file->notes[i].key, key) == 0)
            return file->notes[i].value;
    return NULL;
}
