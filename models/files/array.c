/* Arrays in files: npy.h reads and writes the headers, files.h the bytes. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/files/files.h"
#include "models/files/npy.h"
#include "shoal_models.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "arrays are mapped as they are in the file, which is little-endian"
#endif

typedef struct {
    shoal_context *context;
    const char *path;
    int descriptor;
    int64_t size; /* -1 where it is only known at the end */
} source;

static shoal_status bad(const source *file, const npy_reason *reason) {
    return sh_fail(file->context, SHOAL_BAD_FILE, "%s: %s", file->path, reason->text);
}

static shoal_status wrong_size(const source *file, const npy_header *header, size_t got) {
    if (got > header->data_bytes)
        return sh_fail(
            file->context, SHOAL_BAD_FILE,
            "%s: goes on after the %zu bytes of data that its shape needs; save it "
            "again, one array per file",
            file->path, header->data_bytes);
    return sh_fail(
        file->context, SHOAL_BAD_FILE,
        "%s: is truncated: %zu bytes of data where its shape needs %zu; copy it again",
        file->path, got, header->data_bytes);
}

/* Leaves the descriptor where the data begins. head: room for the longest header. */
static shoal_status read_header(const source *file, unsigned char *head,
                                npy_header *header) {
    size_t got, more = 0, text_begin, data_begin;
    npy_reason reason;
    /* Version 1 has a prefix of 10; what is read beyond it is text in a legal header. */
    shoal_status status =
        sh_file_read(file->context, file->path, file->descriptor, head, NPY_PREFIX, &got);
    if (status != SHOAL_OK)
        return status;
    if (!sh_npy_measure(head, got, &text_begin, &data_begin, &reason))
        return bad(file, &reason);
    if (data_begin > got)
        status = sh_file_read(file->context, file->path, file->descriptor, head + got,
                              data_begin - got, &more);
    if (status != SHOAL_OK)
        return status;
    return sh_npy_parse(head, got + more, header, &reason) ? SHOAL_OK
                                                           : bad(file, &reason);
}

static bool map_data(const source *file, const npy_header *header, shoal_array *array) {
    size_t bytes = (size_t)file->size;
    if (header->data_begin % sizeof(float) != 0)
        return false;
    void *mapping =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file->descriptor, 0);
    if (mapping == MAP_FAILED)
        return false;
    array->mapping = mapping;
    array->mapping_bytes = bytes;
    array->data = (char *)mapping + header->data_begin;
    return true;
}

static shoal_status load_data(const source *file, const npy_header *header,
                              shoal_array *array) {
    /* One byte more than there should be tells whether the file ends where it should. */
    size_t bytes = header->data_bytes + 1, got;
    void *pages = sh_pages_allocate(file->context, bytes);
    if (!pages)
        return SHOAL_NO_MEMORY;
    shoal_status status =
        sh_file_read(file->context, file->path, file->descriptor, pages, bytes, &got);
    if (status == SHOAL_OK && got != header->data_bytes)
        status = wrong_size(file, header, got);
    if (status != SHOAL_OK) {
        sh_pages_release(pages, bytes);
        return status;
    }
    array->data = array->mapping = pages;
    array->mapping_bytes = bytes;
    return SHOAL_OK;
}

static shoal_status read_data(const source *file, const npy_header *header,
                              shoal_array *array) {
    if (file->size >= 0) {
        int64_t rest = file->size - (int64_t)header->data_begin;
        size_t got = rest > 0 ? (size_t)rest : 0;
        if (got != header->data_bytes)
            return wrong_size(file, header, got);
        if (map_data(file, header, array))
            return SHOAL_OK;
    }
    return load_data(file, header, array);
}

static shoal_status read_array(const source *file, shoal_array *array) {
    npy_header header;
    unsigned char *head =
        sh_pages_allocate(file->context, NPY_PREFIX + NPY_LARGEST_HEADER);
    if (!head)
        return SHOAL_NO_MEMORY;
    shoal_status status = read_header(file, head, &header);
    sh_pages_release(head, NPY_PREFIX + NPY_LARGEST_HEADER);
    if (status == SHOAL_OK)
        status = read_data(file, &header, array);
    if (status != SHOAL_OK)
        return status;
    array->dtype = header.dtype;
    array->rank = header.rank;
    memcpy(array->shape, header.shape, sizeof array->shape);
    return SHOAL_OK;
}

/* A context whose options were refused keeps saying why. */
static bool usable(const shoal_context *context) {
    return context && context->kernels;
}

shoal_status shoal_array_read(shoal_context *context, const char *path,
                              shoal_array *array) {
    *array = (shoal_array){0};
    if (!usable(context))
        return SHOAL_INVALID;
    source file = {.context = context, .path = path};
    shoal_status status = sh_file_open(context, path, &file.descriptor, &file.size);
    if (status != SHOAL_OK)
        return status;
    status = read_array(&file, array);
    close(file.descriptor);
    return status;
}

void shoal_array_release(shoal_array *array) {
    if (array->mapping)
        munmap(array->mapping, array->mapping_bytes);
    *array = (shoal_array){0};
}

shoal_status shoal_array_write(shoal_context *context, const char *path,
                               const shoal_array *array) {
    size_t bytes;
    unsigned char header[NPY_PRINTED];
    if (!usable(context))
        return SHOAL_INVALID;
    if (array->dtype != SHOAL_FLOAT32 && array->dtype != SHOAL_INT32)
        return sh_fail(context, SHOAL_INVALID, "%s: an array of unknown type %d", path,
                       (int)array->dtype);
    if (array->rank < 0 || array->rank > SHOAL_MAX_RANK)
        return sh_fail(context, SHOAL_INVALID,
                       "%s: an array of rank %d; 0 to %d is possible", path, array->rank,
                       SHOAL_MAX_RANK);
    if (!sh_npy_data_bytes(array->rank, array->shape, &bytes))
        return sh_fail(context, SHOAL_INVALID, "%s: an array of impossible shape", path);
    if (bytes > 0 && !array->data)
        return sh_fail(context, SHOAL_INVALID, "%s: an array without data", path);
    const file_part parts[] = {{header, sh_npy_print(array->dtype, array->rank,
                                                     array->shape, header)},
                               {array->data, bytes}};
    return sh_file_replace(context, path, parts, 2);
}
