#define _GNU_SOURCE
#include "models/files/tensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
    [DTYPE_U64] = {"U64", 8},         [DTYPE_Q4_0] = {"Q4_0", 18},
    [DTYPE_Q4_1] = {"Q4_1", 20},      [DTYPE_Q5_0] = {"Q5_0", 22},
    [DTYPE_Q5_1] = {"Q5_1", 24},      [DTYPE_Q8_0] = {"Q8_0", 34},
};

const char *sh_dtype_name(tensor_dtype dtype) {
    return dtypes[dtype].name;
}

size_t sh_dtype_size(tensor_dtype dtype) {
    return dtypes[dtype].size;
}

bool sh_dtype_from_name(const char *name, tensor_dtype *dtype) {
    for (int i = 0; i < DTYPE_NAMED; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *dtype = (tensor_dtype)i;
            return true;
        }
    }
    return false;
}

static int64_t block_of(tensor_dtype dtype) {
    return dtype_is_quantised(dtype) ? DTYPE_BLOCK : 1;
}

bool sh_dtype_bytes(tensor_dtype dtype, int rank, const int64_t *shape, int64_t *elements,
                    size_t *bytes) {
    /* A 0 counts as 1, so that {0, 2^62, 2^62} is rejected like {1, 2^62, 2^62}. */
    const int64_t block = block_of(dtype);
    int64_t product = (int64_t)sh_dtype_size(dtype);
    bool empty = false;
    if (block > 1 && (rank == 0 || shape[rank - 1] % block))
        return false;
    for (int i = 0; i < rank; i++) {
        const int64_t size = i == rank - 1 ? shape[i] / block : shape[i];
        if (shape[i] < 0 || __builtin_mul_overflow(product, size ? size : 1, &product))
            return false;
        empty |= shape[i] == 0;
    }
    *bytes = empty ? 0 : (size_t)product;
    *elements = (int64_t)(*bytes / sh_dtype_size(dtype)) * block;
    return true;
}

int64_t sh_file_tensor_elements(const file_tensor *tensor) {
    return (int64_t)(tensor->bytes / sh_dtype_size(tensor->dtype)) *
           block_of(tensor->dtype);
}

bool sh_file_tensor_has_shape(const file_tensor *tensor, int rank, const int64_t *shape) {
    return tensor->rank == rank &&
           (rank == 0 || memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0);
}

/* ---- Values ----------------------------------------------------------------------- */

static uint16_t half_at(const unsigned char *bytes) {
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return half;
}

void sh_quantised_block(tensor_dtype dtype, const void *block, int8_t values[DTYPE_BLOCK],
                        uint16_t *scale, uint16_t *shift) {
    const unsigned char *data = block;
    const bool shifted = dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1;
    const bool five = dtype == DTYPE_Q5_0 || dtype == DTYPE_Q5_1;
    const unsigned char *rest = data + (shifted ? 4 : 2);
    *scale = half_at(data);
    *shift = shifted ? half_at(data + 2) : 0;
    if (dtype == DTYPE_Q8_0)
        memcpy(values, rest, DTYPE_BLOCK);
    else {
        /* Four bits of each number, plus the fifth if there is one: the first half of a
           block in the low nibbles, the second in the high ones. */
        const unsigned char *low = rest + (five ? 4 : 0);
        for (int i = 0; i < DTYPE_BLOCK; i++) {
            const int four = low[i % 16] >> (i < 16 ? 0 : 4) & 15;
            const int upper = five ? rest[i / 8] >> i % 8 & 1 : 0;
            values[i] = (int8_t)((four | upper << 4) - (shifted ? 0 : five ? 16 : 8));
        }
    }
}

shoal_status sh_file_tensor_to_f32(shoal_context *context, const file_tensor *tensor,
                                   float *values) {
    const int64_t count = sh_file_tensor_elements(tensor);
    const size_t size = sh_dtype_size(tensor->dtype);
    const unsigned char *data = tensor->data;
    if (count == 0)
        return SHOAL_OK;
    switch (tensor->dtype) {
    case DTYPE_F32: memcpy(values, data, (size_t)count * sizeof *values); break;
    case DTYPE_F16:
        for (int64_t i = 0; i < count; i++)
            values[i] = half_to_float(half_at(data + 2 * i));
        break;
    case DTYPE_BF16:
        for (int64_t i = 0; i < count; i++)
            values[i] = bfloat_to_float(half_at(data + 2 * i));
        break;
    case DTYPE_F64:
        for (int64_t i = 0; i < count; i++) {
            double value;
            memcpy(&value, data + 8 * i, sizeof value);
            values[i] = (float)value;
        }
        break;
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q8_0:
        for (int64_t first = 0; first < count; first += DTYPE_BLOCK, data += size) {
            int8_t numbers[DTYPE_BLOCK];
            uint16_t scale, shift;
            sh_quantised_block(tensor->dtype, data, numbers, &scale, &shift);
            for (int i = 0; i < DTYPE_BLOCK; i++)
                values[first + i] = (float)numbers[i] * half_to_float(scale) +
                                    half_to_float(shift);
        }
        break;
    default:
        return sh_fail(context, SHOAL_BAD_FILE,
                       "'%s' has type %s; F32, F16, BF16 and F64 are supported",
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

void sh_file_tensor_release(const file_tensor *tensor) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)tensor->data + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)tensor->data + tensor->bytes) / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}
