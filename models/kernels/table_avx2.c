/* The models' kernels for AVX2 with FMA: the one body with this file's flags. */
#include "models/kernels/table_vector.h"

const model_kernels sh_avx2_model_kernels = VECTOR_TABLE(avx2);
