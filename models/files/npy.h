/* The header of a .npy file: "\x93NUMPY", a version, the length of a text, and the
   text: a Python dictionary with the keys descr, fortran_order and shape. These are
   pure functions on untrusted bytes; shoal_array_read handles files. */
#ifndef SHOAL_MODELS_FILES_NPY_H
#define SHOAL_MODELS_FILES_NPY_H

#include <stdbool.h>

#include "shoal.h"
#include "shoal_models.h"

enum {
    NPY_PREFIX = 12, /* maximum bytes that npy_measure needs */
    NPY_LARGEST_HEADER =
        1 << 20,      /* maximum length of the text; valid ones have about 100 */
    NPY_PRINTED = 512 /* maximum room that npy_print needs */
};

typedef struct {
    shoal_dtype dtype;
    int rank;
    int64_t shape[SHOAL_MAX_DIMENSIONS];
    size_t data_begin; /* end of the header */
    size_t data_bytes; /* of the array; data_begin + data_bytes fits in an int64 */
} npy_header;

/* Why bytes were rejected, and what to do; continues a sentence after "FILE: ". */
typedef struct {
    char text[256];
} npy_reason;

/* Parses a header of version 1 to 3 from the first `size` bytes; the data need not be
   present. Accepts little-endian float32, float16 or int32 in C order. */
bool sh_npy_parse(const unsigned char *bytes, size_t size, npy_header *header,
                  npy_reason *reason);

/* Bytes of an array, or false if a dimension is negative or the size exceeds an int64.
   The product of the other dimensions must fit even if one is 0. */
bool sh_npy_data_bytes(shoal_dtype dtype, int rank, const int64_t *shape, size_t *bytes);

/* Writes the header of such an array; returns its length, a multiple of 64. */
size_t sh_npy_print(shoal_dtype dtype, int rank, const int64_t *shape,
                    unsigned char text[NPY_PRINTED]);

#endif
