/* The models' kernels for AVX-512 (F, BW, DQ, VL): the one body, this file's flags. */
#include "models/kernels/table_vector.h"

const model_kernels sh_avx512_model_kernels = VECTOR_TABLE(avx512);
