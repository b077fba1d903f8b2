#include "models/files/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/half.h"

/* ---- Types ------------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t size;
} dtypes[DTYPE_COUNT] = {
    [DTYPE_BOOL] = {"BOOL", 1},       [DTYPE_U8] = {"U8", 1},
    [DTYPE_I8] = {"I8", 1},           [DTYPE_F8_E5M2] = {"F8_E5M2", 1},
    [DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DTYPE_I16] = {"I16", 2},
    [DTYPE_U16] = {"U16", 2},         [DTYPE_F16] = {"F16", 2},
    [DTYPE_BF16] = {"BF16", 2},       [DTYPE_I32] = {"I32", 4},
    [DTYPE_U32] = {"U32", 4},         [DTYPE_F32] = {"F32", 4},
    [DTYPE_F64] = {"F64", 8},         [DTYPE_I64] = {"I64", 8},
    [DTYPE_U64] = {"U64", 8},
};

const char *sh_dtype_name(tensor_dtype dtype) {
    return dtypes[dtype].name;
}

size_t sh_dtype_size(tensor_dtype dtype) {
    return dtypes[dtype].size;
}

bool sh_dtype_from_name(const char *name, tensor_dtype *dtype) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (tensor_dtype)i;
            return true;
        }
    }
    return false;
}

bool sh_dtype_bytes(tensor_dtype dtype, int rank, const int64_t *shape, int64_t *elements,
                    size_t *bytes) {
    /* A 0 counts as 1, so that {0, 2^62, 2^62} is refused like {1, 2^62, 2^62}. */
    int64_t product = (int64_t)sh_dtype_size(dtype);
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0 ||
            __builtin_mul_overflow(product, shape[i] ? shape[i] : 1, &product))
            return false;
        empty |= shape[i] == 0;
    }
    *bytes = empty ? 0 : (size_t)product;
    *elements = (int64_t)(*bytes / sh_dtype_size(dtype));
    return true;
}

int64_t sh_file_tensor_elements(const file_tensor *tensor) {
    return (int64_t)(tensor->bytes / sh_dtype_size(tensor->dtype));
}

bool sh_file_tensor_has_shape(const file_tensor *tensor, int rank, const int64_t *shape) {
    return tensor->rank == rank &&
           (rank == 0 || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0);
}

/* ---- Values ----------------------------------------------------------------------- */

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void halves_to_f32(const unsigned char *data, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, data + 2 * i, sizeof half);
        values[i] = half_to_float(half);
    }
}

static void bfloats_to_f32(const unsigned char *data, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t upper;
        memcpy(&upper, data + 2 * i, sizeof upper);
        values[i] = float_of_bits((uint32_t)upper << 16);
    }
}

static void doubles_to_f32(const unsigned char *data, int64_t count, float *values) {
    for (int64_t i = 0; i < count; i++) {
        double value;
        memcpy(&value, data + 8 * i, sizeof value);
        values[i] = (float)value;
    }
}

shoal_status sh_file_tensor_to_f32(shoal_context *context, const file_tensor *tensor,
                                   float *values) {
    const int64_t count = sh_file_tensor_elements(tensor);
    const unsigned char *data = tensor->data;
    if (count == 0)
        return SHOAL_OK;
    switch (tensor->dtype) {
    case DTYPE_F32: memcpy(values, data, (size_t)count * sizeof *values); break;
    case DTYPE_F16: halves_to_f32(data, count, values); break;
    case DTYPE_BF16: bfloats_to_f32(data, count, values); break;
    case DTYPE_F64: doubles_to_f32(data, count, values); break;
    default:
        return sh_fail(context, SHOAL_BAD_FILE,
                       "'%s' is of type %s; it should be F32, F16, BF16 or F64",
                       sh_shown(tensor->name).text, sh_dtype_name(tensor->dtype));
    }
    return SHOAL_OK;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(((const file_tensor *)left)->name, ((const file_tensor *)right)->name);
}

void sh_file_tensors_sort(file_tensor *tensors, int64_t count) {
    if (count > 0)
        qsort(tensors, (size_t)count, sizeof *tensors, compare_names);
}

static int compare_name(const void *name, const void *tensor) {
    return strcmp(name, ((const file_tensor *)tensor)->name);
}

const file_tensor *sh_file_tensor_find(const file_tensor *sorted, int64_t count,
                                       const char *name) {
    return count > 0 ? bsearch(name, sorted, (size_t)count, sizeof *sorted, compare_name)
                     : NULL;
}
