/* The writer: header by jansson, then the tensors' bytes from where they are. */
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "models/files/files.h"
#include "models/files/safetensors_parts.h"
#include "models/files/shown.h"

typedef struct {
    shoal_context *context;
    const char *path;
    const file_tensor **order; /* [count], as they lie in the file */
    file_part *parts;          /* [count + 2]: length, header, tensors */
    int64_t count;
} writing;

/* Larger elements first, so that each tensor is aligned to its own. */
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

/* Adds to an object; a name that is there already, or not UTF-8, is refused. */
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

static json_t *shape_of(const file_tensor *tensor) {
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return shape;
}

static shoal_status describe_tensors(const writing *out, json_t *root) {
    int64_t begin = 0, end, elements;
    shoal_status status = SHOAL_OK;
    for (int64_t i = 0; i < out->count && status == SHOAL_OK; i++) {
        const file_tensor *tensor = out->order[i];
        size_t bytes;
        if (strcmp(tensor->name, SAFETENSORS_METADATA) == 0)
            return cannot_write(out, tensor->name, "the name is the format's own");
        if (tensor->rank < 0 || tensor->rank > FILE_TENSOR_RANK ||
            !sh_dtype_bytes(tensor->dtype, tensor->rank, tensor->shape, &elements,
                            &bytes) ||
            __builtin_add_overflow(begin, (int64_t)bytes, &end))
            return cannot_write(out, tensor->name, "its shape is impossible");
        out->parts[i + 2] = (file_part){tensor->data, bytes};
        json_t *value = json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                  sh_dtype_name(tensor->dtype), "shape", shape_of(tensor),
                                  "data_offsets", (json_int_t)begin, (json_int_t)end);
        status = add(out, root, tensor->name, value);
        begin = end;
    }
    return status;
}

static shoal_status describe_notes(const writing *out, json_t *root,
                                   const shoal_note *notes, int64_t count) {
    shoal_status status = SHOAL_OK;
    if (count == 0)
        return SHOAL_OK;
    json_t *metadata = json_object();
    for (int64_t i = 0; i < count && status == SHOAL_OK; i++)
        status = add(out, metadata, notes[i].key, json_string(notes[i].value));
    if (status != SHOAL_OK) {
        json_decref(metadata);
        return status;
    }
    return add(out, root, SAFETENSORS_METADATA, metadata);
}

/* Header text padded with spaces to a multiple of 8, in malloc's memory. */
static char *print_header(const json_t *root, size_t *size) {
    enum { ALIGNMENT = 8 };
    size_t length = json_dumpb(root, NULL, 0, JSON_COMPACT);
    *size = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    char *text = length > 0 ? malloc(*size) : NULL;
    if (!text)
        return NULL;
    memset(text, ' ', *size);
    json_dumpb(root, text, length, JSON_COMPACT);
    return text;
}

static shoal_status write_file(const writing *out, const json_t *root, unsigned flags) {
    unsigned char length[SAFETENSORS_LENGTH];
    size_t size;
    char *header = print_header(root, &size);
    if (!header)
        return sh_fail(out->context, SHOAL_NO_MEMORY, "%s: out of memory for its header",
                       out->path);
    shoal_status status;
    if (size > SAFETENSORS_LARGEST_HEADER) {
        status = sh_fail(out->context, SHOAL_INVALID,
                         "%s: its header would be larger than the format allows",
                         out->path);
    } else {
        for (int i = 0; i < SAFETENSORS_LENGTH; i++)
            length[i] = (unsigned char)(size >> (8 * i));
        out->parts[0] = (file_part){length, sizeof length};
        out->parts[1] = (file_part){header, size};
        status = (flags & SAFETENSORS_DURABLE ? sh_file_replace_durably
                                              : sh_file_replace)(out->context, out->path,
                                                                 out->parts,
                                                                 (int)(out->count + 2));
    }
    free(header);
    return status;
}

static shoal_status describe_and_write(const writing *out, const shoal_note *notes,
                                       int64_t note_count, unsigned flags) {
    json_t *root = json_object();
    if (!root)
        return sh_fail(out->context, SHOAL_NO_MEMORY, "%s: out of memory", out->path);
    shoal_status status = describe_notes(out, root, notes, note_count);
    if (status == SHOAL_OK)
        status = describe_tensors(out, root);
    if (status == SHOAL_OK)
        status = write_file(out, root, flags);
    json_decref(root);
    return status;
}

static void place(void *argument, block_layout *block) {
    writing *out = argument;
    out->order = sh_reserve(block, out->count, sizeof *out->order);
    out->parts = sh_reserve(block, out->count + 2, sizeof *out->parts);
}

shoal_status sh_safetensors_write(shoal_context *context, const char *path,
                                  const file_tensor *tensors, int64_t count,
                                  const shoal_note *notes, int64_t note_count,
                                  unsigned flags) {
    if (count < 0 || count > INT_MAX - 2 || note_count < 0)
        return sh_fail(context, SHOAL_INVALID, "%s: cannot write %lld tensors", path,
                       (long long)count);
    writing out = {.context = context, .path = path, .count = count};
    void *block = sh_allocate_parts(context, place, &out, NULL);
    if (!block)
        return SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < count; i++)
        out.order[i] = &tensors[i];
    if (count > 0)
        qsort(out.order, (size_t)count, sizeof *out.order, compare_for_writing);
    shoal_status status = describe_and_write(&out, notes, note_count, flags);
    sh_release(context, block);
    return status;
}
