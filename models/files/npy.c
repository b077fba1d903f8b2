#define _GNU_SOURCE
#include "models/files/npy.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "models/files/files.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "arrays are mapped without conversion, and the file format is little-endian"
#endif

static const char magic[] = "\x93NUMPY";
enum { MAGIC_BYTES = 6, ALIGNMENT = 64 };

static const char *const descriptions[] = {[SHOAL_DTYPE_FLOAT32] = "<f4",
                                           [SHOAL_DTYPE_INT32] = "<i4",
                                           [SHOAL_DTYPE_FLOAT16] = "<f2"};

__attribute__((format(printf, 2, 3))) /* completes "FILE: " */
static bool
refuse(npy_reason *reason, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason->text, sizeof reason->text, format, arguments);
    va_end(arguments);
    return false;
}

/* ---- The prefix: magic, version, header length ------------------------------------ */

/* Finds the start of the text and of the data from the first NPY_PREFIX bytes (fewer if
   the file is shorter). */
static bool measure(const unsigned char *bytes, size_t size, size_t *text_begin,
                    size_t *data_begin, npy_reason *reason) {
    if (size == 0)
        return refuse(reason, "is empty; a .npy file was expected");
    if (size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0)
        return refuse(reason,
                      "is an archive (.npz?), not a .npy file; save each array with "
                      "numpy.save");
    if (size < MAGIC_BYTES || memcmp(bytes, magic, MAGIC_BYTES) != 0)
        return refuse(reason, "is not a .npy file (its first bytes are not \\x93NUMPY); "
                              "write it with numpy.save");
    if (size < MAGIC_BYTES + 2)
        return refuse(reason, "is truncated in its version; copy it again");
    int major = bytes[MAGIC_BYTES], minor = bytes[MAGIC_BYTES + 1];
    if (major < 1 || major > 3 || minor != 0)
        return refuse(reason,
                      "has .npy version %d.%d; versions 1.0, 2.0 and 3.0 are supported",
                      major, minor);
    int length_bytes = major == 1 ? 2 : 4;
    *text_begin = (size_t)(MAGIC_BYTES + 2 + length_bytes);
    if (size < *text_begin)
        return refuse(reason, "is truncated in the length of its header; copy it again");
    size_t length = 0; /* little-endian */
    for (int i = length_bytes - 1; i >= 0; i--)
        length = length << 8 | bytes[MAGIC_BYTES + 2 + i];
    if (length > NPY_LARGEST_HEADER)
        return refuse(
            reason,
            "has a header of %zu bytes, more than the limit of %d; the file is damaged",
            length, NPY_LARGEST_HEADER);
    *data_begin = *text_begin + length;
    return true;
}

/* ---- The text: a small subset of Python's grammar --------------------------------- */

typedef struct {
    const char *at, *end;
    npy_reason *reason;
} cursor;

/* The next character that is not white space, without consuming it; 0 at the end. */
static char peek(cursor *text) {
    while (text->at < text->end && *text->at && strchr(" \t\n\r\f", *text->at))
        text->at++;
    return text->at < text->end ? *text->at : 0;
}

static bool accept(cursor *text, char wanted) {
    if (peek(text) != wanted || text->at == text->end)
        return false;
    text->at++;
    return true;
}

static bool expect(cursor *text, char wanted, const char *where) {
    return accept(text, wanted) ||
           refuse(text->reason, "has a damaged header: '%c' is missing %s", wanted,
                  where);
}

/* Copies a quoted string without escapes; replaces control characters and truncates it
   to the length of the longest known name. */
enum { WORD = 24 };

static bool read_string(cursor *text, char word[WORD]) {
    char quote = peek(text);
    if (quote != '\'' && quote != '"')
        return refuse(text->reason, "has a damaged header: a quoted string is missing");
    size_t length = 0;
    for (text->at++; text->at < text->end && *text->at != quote; text->at++) {
        char c = *text->at;
        if (c == '\\' || c == '\n')
            return refuse(text->reason, "has a damaged header: a string with escapes");
        if (length < WORD - 1)
            word[length++] = c >= ' ' && c <= '~' ? c : '?';
    }
    word[length] = 0;
    if (text->at == text->end)
        return refuse(text->reason, "has a damaged header: an unterminated string");
    text->at++;
    return true;
}

static bool read_boolean(cursor *text, bool *value) {
    static const char *const words[] = {"False", "True"};
    peek(text);
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(text->end - text->at) < length ||
            memcmp(text->at, words[i], length) != 0)
            continue;
        text->at += length;
        *value = i == 1;
        return true;
    }
    return refuse(text->reason,
                  "has a damaged header: fortran_order is not True or False");
}

static bool read_shape(cursor *text, npy_header *header) {
    if (!expect(text, '(', "before the shape"))
        return false;
    header->rank = 0;
    bool comma = true;
    while (!accept(text, ')')) {
        if (!comma)
            return refuse(text->reason,
                          "has a damaged header: ',' is missing in the shape");
        char first = peek(text);
        if (first == '-')
            return refuse(text->reason,
                          "has a negative dimension in its shape; the file is damaged");
        if (first < '0' || first > '9')
            return refuse(text->reason,
                          "has a damaged header: its shape is not a tuple of integers");
        int64_t sum = 0;
        for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++)
            if (__builtin_mul_overflow(sum, 10, &sum) ||
                __builtin_add_overflow(sum, *text->at - '0', &sum))
                return refuse(text->reason,
                              "has a dimension beyond 64 bits in its shape; the file "
                              "is damaged");
        if (text->at < text->end && *text->at == 'L') /* Python 2 suffix */
            text->at++;
        if (header->rank == SHOAL_MAX_DIMENSIONS)
            return refuse(text->reason, "has more than %d dimensions; reshape it",
                          SHOAL_MAX_DIMENSIONS);
        header->shape[header->rank++] = sum;
        comma = accept(text, ',');
    }
    if (header->rank == 1 && !comma)
        return refuse(text->reason, "has a damaged header: its shape is not a tuple");
    return true;
}

/* ---- The three keys --------------------------------------------------------------- */

/* A readable type name for messages, such as "float64" for "<f8". */
static void name_type(const char *descr, char name[WORD]) {
    enum { SIZED = 4 }; /* the first ones, whose names end in their number of bits */
    static const struct {
        char letter;
        const char *name;
    } types[] = {{'f', "float"},     {'i', "int"},          {'u', "uint"},
                 {'c', "complex"},   {'b', "bool"},         {'O', "Python objects"},
                 {'U', "text"},      {'S', "byte strings"}, {'a', "byte strings"},
                 {'V', "raw bytes"}, {'M', "dates"},        {'m', "time spans"}};
    const char *letter = descr + (descr[0] && strchr("<>=|", descr[0]) ? 1 : 0);
    int bytes = 0;
    for (const char *c = letter + (*letter != 0); *c >= '0' && *c <= '9' && bytes < 100;
         c++)
        bytes = bytes * 10 + (*c - '0');
    snprintf(name, WORD, "an unknown type");
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (*letter == types[i].letter && i >= SIZED)
            snprintf(name, WORD, "%s", types[i].name);
        else if (*letter == types[i].letter && bytes > 0)
            snprintf(name, WORD, "%s%d", types[i].name, bytes * 8);
}

static bool read_type(cursor *text, npy_header *header) {
    char descr[WORD], name[WORD];
    if (peek(text) == '[')
        return refuse(text->reason,
                      "contains structured records; save one field as float32");
    if (!read_string(text, descr))
        return false;
    for (int i = SHOAL_DTYPE_FLOAT32; i <= SHOAL_DTYPE_FLOAT16; i++) {
        if (strcmp(descr, descriptions[i]) == 0) {
            header->dtype = (shoal_dtype)i;
            return true;
        }
    }
    name_type(descr, name);
    if (strcmp(descr, ">f4") == 0 || strcmp(descr, ">i4") == 0 ||
        strcmp(descr, ">f2") == 0)
        return refuse(text->reason,
                      "contains big-endian %s ('%s'); save it with .astype('<%s')", name,
                      descr, descr + 1);
    if (strcmp(name, "float32") == 0 || strcmp(name, "int32") == 0)
        return refuse(
            text->reason,
            "contains %s without a byte order ('%s'); save it with .astype('<%c4')", name,
            descr, name[0]);
    return refuse(text->reason,
                  "contains %s ('%s'); little-endian float32, float16 and int32 are "
                  "supported: save it with .astype('float32')",
                  name, descr);
}

enum { HAS_TYPE = 1, HAS_ORDER = 2, HAS_SHAPE = 4, HAS_ALL = 7 };

/* ---- The complete header ---------------------------------------------------------- */

bool sh_npy_data_bytes(shoal_dtype dtype, int rank, const int64_t *shape, size_t *bytes) {
    int64_t product = descriptions[dtype][2] - '0'; /* bytes per element */
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return false;
        if (shape[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, shape[i], &product))
            return false;
    }
    if (product > INT64_MAX / 2 || (uint64_t)product > SIZE_MAX / 2)
        return false;
    *bytes = empty ? 0 : (size_t)product;
    return true;
}

bool sh_npy_parse(const unsigned char *bytes, size_t size, npy_header *header,
                  npy_reason *reason) {
    size_t text_begin = 0;
    bool fortran = false;
    *header = (npy_header){0};
    if (!measure(bytes, size, &text_begin, &header->data_begin, reason))
        return false;
    if (header->data_begin > size)
        return refuse(
            reason, "is truncated: its header of %zu bytes ends after %zu; copy it again",
            header->data_begin, size);
    cursor text = {(const char *)bytes + text_begin,
                   (const char *)bytes + header->data_begin, reason};
    unsigned seen = 0;
    bool comma = true;
    if (!expect(&text, '{', "at its beginning"))
        return false;
    while (!accept(&text, '}')) {
        if (!comma)
            return refuse(text.reason, "has a damaged header: ',' or '}' is missing");
        char key[WORD];
        if (!read_string(&text, key) || !expect(&text, ':', "after a key"))
            return false;
        unsigned item = strcmp(key, "descr") == 0           ? HAS_TYPE
                        : strcmp(key, "fortran_order") == 0 ? HAS_ORDER
                        : strcmp(key, "shape") == 0         ? HAS_SHAPE
                                                            : 0;
        if (!item || (seen & item))
            return refuse(text.reason, "has a damaged header: its key '%s' is %s", key,
                          item ? "a duplicate" : "unknown");
        seen |= item;
        if (!(item == HAS_TYPE    ? read_type(&text, header)
              : item == HAS_ORDER ? read_boolean(&text, &fortran)
                                  : read_shape(&text, header)))
            return false;
        comma = accept(&text, ',');
    }
    if (seen != HAS_ALL)
        return refuse(text.reason, "has a damaged header: %s is missing",
                      !(seen & HAS_TYPE)    ? "descr"
                      : !(seen & HAS_ORDER) ? "fortran_order"
                                            : "shape");
    peek(&text);
    if (text.at < text.end)
        return refuse(text.reason, "has a damaged header: text after its dictionary");
    if (!sh_npy_data_bytes(header->dtype, header->rank, header->shape,
                           &header->data_bytes))
        return refuse(reason,
                      "has a shape whose size is beyond 64 bits; the file is damaged");
    /* C and Fortran order are equal if at most one dimension exceeds 1. */
    int longer = 0;
    for (int i = 0; i < header->rank; i++)
        longer += header->shape[i] > 1;
    if (fortran && longer > 1 && header->data_bytes > 0)
        return refuse(reason,
                      "is in Fortran order; save it with numpy.ascontiguousarray");
    return true;
}

size_t sh_npy_print(shoal_dtype dtype, int rank, const int64_t *shape,
                    unsigned char text[NPY_PRINTED]) {
    char dimensions[SHOAL_MAX_DIMENSIONS * 24] = "";
    size_t used = 0;
    for (int i = 0; i < rank; i++)
        used += (size_t)snprintf(dimensions + used, sizeof dimensions - used,
                                 "%s%" PRId64, i ? ", " : "", shape[i]);
    const size_t begin = MAGIC_BYTES + 4;
    memcpy(text, magic, MAGIC_BYTES);
    memcpy(text + MAGIC_BYTES, "\1\0", 2);
    size_t end =
        begin +
        (size_t)snprintf((char *)text + begin, NPY_PRINTED - begin,
                         "{'descr': '%s', 'fortran_order': False, 'shape': (%s%s), }",
                         descriptions[dtype], dimensions, rank == 1 ? "," : "");
    size_t padded = (end + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    memset(text + end, ' ', padded - end);
    text[padded - 1] = '\n';
    text[MAGIC_BYTES + 2] = (unsigned char)((padded - begin) & 255);
    text[MAGIC_BYTES + 3] = (unsigned char)((padded - begin) >> 8);
    return padded;
}

/* ---- Arrays in files -------------------------------------------------------------- */

typedef struct {
    shoal_context *context;
    const char *path;
    int descriptor;
    int64_t size; /* -1 if only known at the end */
} source;

static shoal_status wrong_size(const source *file, const npy_header *header, size_t got) {
    if (got > header->data_bytes)
        return sh_fail(file->context, SHOAL_BAD_FILE,
                       "%s: has more than the %zu bytes of data that its shape requires; "
                       "save one array per file",
                       file->path, header->data_bytes);
    return sh_fail(file->context, SHOAL_BAD_FILE,
                   "%s: is truncated: it has %zu bytes of data, but its shape requires "
                   "%zu; copy it again",
                   file->path, got, header->data_bytes);
}

/* Leaves the descriptor at the start of the data. head: room for the longest header. */
static shoal_status read_header(const source *file, unsigned char *head,
                                npy_header *header) {
    size_t got, more = 0, text_begin = 0, data_begin = 0;
    npy_reason reason;
    /* Version 1 has a prefix of 10 bytes; the bytes read beyond it are part of any
       valid header. */
    TRY(sh_file_read(file->context, file->path, file->descriptor, head, NPY_PREFIX,
                     &got));
    const bool measured = measure(head, got, &text_begin, &data_begin, &reason);
    if (measured && data_begin > got)
        TRY(sh_file_read(file->context, file->path, file->descriptor, head + got,
                         data_begin - got, &more));
    if (measured && sh_npy_parse(head, got + more, header, &reason))
        return SHOAL_OK;
    return sh_fail(file->context, SHOAL_BAD_FILE, "%s: %s", file->path, reason.text);
}

static shoal_status load_data(const source *file, const npy_header *header,
                              shoal_array *array) {
    /* Requests one extra byte to detect files that are too long. */
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

/* Maps a regular file with aligned data; reads streams. */
static shoal_status read_data(const source *file, const npy_header *header,
                              shoal_array *array) {
    if (file->size < 0)
        return load_data(file, header, array);
    const int64_t rest = file->size - (int64_t)header->data_begin;
    const size_t got = rest > 0 ? (size_t)rest : 0, bytes = (size_t)file->size;
    if (got != header->data_bytes)
        return wrong_size(file, header, got);
    void *mapping =
        header->data_begin % sizeof(float) != 0
            ? MAP_FAILED
            : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file->descriptor, 0);
    if (mapping == MAP_FAILED)
        return load_data(file, header, array);
    array->mapping = mapping;
    array->mapping_bytes = bytes;
    array->data = (char *)mapping + header->data_begin;
    return SHOAL_OK;
}

static shoal_status read_array(const source *file, shoal_array *array) {
    npy_header header;
    unsigned char *head =
        sh_pages_allocate(file->context, NPY_PREFIX + NPY_LARGEST_HEADER);
    if (!head)
        return SHOAL_NO_MEMORY;
    const shoal_status status = read_header(file, head, &header);
    sh_pages_release(head, NPY_PREFIX + NPY_LARGEST_HEADER);
    TRY(status);
    TRY(read_data(file, &header, array));
    array->dtype = header.dtype;
    array->dimensions = header.rank;
    memcpy(array->shape, header.shape, sizeof array->shape);
    return SHOAL_OK;
}

/* A context whose options were rejected repeats its message. */
static shoal_status check_arguments(shoal_context *context, const char *path,
                                    const shoal_array *array) {
    if (!context || !context->kernels)
        return SHOAL_INVALID;
    return path && array ? SHOAL_OK
                         : sh_fail(context, SHOAL_INVALID, "path or array is NULL");
}

shoal_status shoal_array_read(shoal_context *context, const char *path,
                              shoal_array *array) {
    if (array)
        *array = (shoal_array){0};
    source file = {.context = context, .path = path};
    TRY(check_arguments(context, path, array));
    TRY(sh_file_open(context, path, &file.descriptor, &file.size));
    const shoal_status status = read_array(&file, array);
    close(file.descriptor);
    return status;
}

void shoal_array_release(shoal_array *array) {
    if (!array)
        return;
    if (array->mapping)
        munmap(array->mapping, array->mapping_bytes);
    *array = (shoal_array){0};
}

shoal_status shoal_array_write(shoal_context *context, const char *path,
                               const shoal_array *array) {
    size_t bytes;
    unsigned char header[NPY_PRINTED];
    TRY(check_arguments(context, path, array));
    if (array->dtype < SHOAL_DTYPE_FLOAT32 || array->dtype > SHOAL_DTYPE_FLOAT16)
        return sh_fail(context, SHOAL_INVALID, "%s: an array with unknown type %d", path,
                       (int)array->dtype);
    if (array->dimensions < 0 || array->dimensions > SHOAL_MAX_DIMENSIONS)
        return sh_fail(context, SHOAL_INVALID,
                       "%s: an array with %d dimensions; 0 to %d are supported", path,
                       array->dimensions, SHOAL_MAX_DIMENSIONS);
    if (!sh_npy_data_bytes(array->dtype, array->dimensions, array->shape, &bytes))
        return sh_fail(context, SHOAL_INVALID, "%s: an array with an invalid shape", path);
    if (bytes > 0 && !array->data)
        return sh_fail(context, SHOAL_INVALID, "%s: an array without data", path);
    const file_part parts[] = {{header, sh_npy_print(array->dtype, array->dimensions,
                                                     array->shape, header)},
                               {array->data, bytes}};
    return sh_file_replace(context, path, parts, 2, SHOAL_SYNC_NONE);
}
