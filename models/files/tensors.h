/* Tensors of a model file: a name, a type, a shape and bytes in a read-only mapping of
   the file. Both readers (safetensors.h, ggml.h) return these.

   If a file is truncated while it is mapped, reading its lost pages ends the program,
   as in any program that maps files. Replace model files by renaming, as Shoal does. */
#ifndef SHOAL_MODELS_FILES_TENSORS_H
#define SHOAL_MODELS_FILES_TENSORS_H

#include "models/files/files.h"

typedef enum {
    DTYPE_BOOL,
    DTYPE_U8,
    DTYPE_I8,
    DTYPE_F8_E5M2,
    DTYPE_F8_E4M3,
    DTYPE_I16,
    DTYPE_U16,
    DTYPE_F16,
    DTYPE_BF16,
    DTYPE_I32,
    DTYPE_U32,
    DTYPE_F32,
    DTYPE_F64,
    DTYPE_I64,
    DTYPE_U64,
    DTYPE_NAMED, /* safetensors has those above; ggml also has blocks of DTYPE_BLOCK: */
    DTYPE_Q4_0 = DTYPE_NAMED,
    DTYPE_Q4_1,
    DTYPE_Q5_0,
    DTYPE_Q5_1,
    DTYPE_Q8_0,
    DTYPE_COUNT
} tensor_dtype;

/* Elements per block of a quantised type, along the innermost dimension. */
enum { DTYPE_BLOCK = 32 };

static inline bool dtype_is_quantised(tensor_dtype dtype) {
    return dtype >= DTYPE_NAMED;
}

enum { FILE_TENSOR_RANK = 8 };

typedef struct {
    const char *name; /* NUL-terminated, without other NUL bytes */
    tensor_dtype dtype;
    int rank;
    int64_t shape[FILE_TENSOR_RANK]; /* outermost first; C order */
    const void *data;                /* NOT aligned: use file_tensor_to_f32 or memcpy */
    size_t bytes;                    /* elements, or blocks, times dtype_size */
} file_tensor;

SHOAL_PRIVATE const char *
sh_dtype_name(tensor_dtype dtype); /* as safetensors spells it: "F16" */
bool sh_dtype_from_name(const char *name, tensor_dtype *dtype);
size_t sh_dtype_size(tensor_dtype dtype); /* of an element, or of a block */

/* Elements and bytes of a shape. Returns false if a dimension is negative, a product
   does not fit in an int64 (the product of the others must fit even if one is 0), or
   rows of a quantised type are not whole blocks. */
SHOAL_PRIVATE bool sh_dtype_bytes(tensor_dtype dtype, int rank, const int64_t *shape,
                                  int64_t *elements, size_t *bytes);

SHOAL_PRIVATE int64_t sh_file_tensor_elements(const file_tensor *tensor);
SHOAL_PRIVATE bool sh_file_tensor_has_shape(const file_tensor *tensor, int rank,
                                            const int64_t *shape);

/* Decodes a block of a quantised type: numbers are values[i] * scale + shift, with
   scale and shift in float16. */
SHOAL_PRIVATE void sh_quantised_block(tensor_dtype dtype, const void *block,
                                      int8_t values[DTYPE_BLOCK], uint16_t *scale,
                                      uint16_t *shift);

/* Converts F32, F16, BF16, F64 or a quantised type to float32, exactly except for F64,
   which is rounded. values: one per element. Other types are rejected. */
SHOAL_PRIVATE shoal_status sh_file_tensor_to_f32(shoal_context *context,
                                                 const file_tensor *tensor,
                                                 float *values);

SHOAL_PRIVATE void sh_file_tensors_sort(file_tensor *tensors,
                                        int64_t count); /* for qsort, by name (strcmp) */
/* Binary search in `count` tensors sorted by name (strcmp); NULL if there is none. */
SHOAL_PRIVATE const file_tensor *sh_file_tensor_find(const file_tensor *sorted,
                                                     int64_t count, const char *name);

/* A tensor of a mapped file was read: its pages need not stay in memory. They come back
   from the file when they are read again. */
SHOAL_PRIVATE void sh_file_tensor_release(const file_tensor *tensor);

#endif
