/* The header of a .npy file: "\x93NUMPY", a version, the length of a text, and the text:
   a Python dictionary with the keys descr, fortran_order and shape. These are pure
   functions on bytes that may come from anyone; files are shoal_array_read's part. */
#ifndef SHOAL_MODELS_FILES_NPY_H
#define SHOAL_MODELS_FILES_NPY_H

#include <stdbool.h>

#include "shoal.h"
#include "shoal_models.h"

enum {
    NPY_PREFIX = 12, /* bytes that npy_measure needs at most */
    NPY_LARGEST_HEADER =
        1 << 20,      /* longer texts are refused; legal ones have about 100 */
    NPY_PRINTED = 512 /* room that npy_print needs at most */
};

typedef struct {
    shoal_dtype dtype;
    int rank;
    int64_t shape[SHOAL_MAX_DIMENSIONS];
    size_t data_begin; /* where the header ends */
    size_t data_bytes; /* of the whole array; data_begin + data_bytes fits in an int64 */
} npy_header;

/* Why bytes were refused, and what to do; reads on after "FILE: ". */
typedef struct {
    char text[256];
} npy_reason;

/* Reads a header of version 1 to 3 whose first `size` bytes are given; the data need not
   be there. Only what Shoal can use passes: little-endian float32, float16 or int32, C
   order. */
bool sh_npy_parse(const unsigned char *bytes, size_t size, npy_header *header,
                  npy_reason *reason);

/* Bytes of an array of 4-byte elements, or false when a dimension is negative or the size
   is beyond an int64. The others must fit even where a
   dimension is 0. */
bool sh_npy_data_bytes(shoal_dtype dtype, int rank, const int64_t *shape, size_t *bytes);

/* Writes the header of such an array; returns its length, a multiple of 64. */
size_t sh_npy_print(shoal_dtype dtype, int rank, const int64_t *shape,
                    unsigned char text[NPY_PRINTED]);

#endif
