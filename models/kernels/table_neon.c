/* The models' kernels for NEON (AArch64): the one body with this file's flags. */
#include "models/kernels/table_vector.h"

const model_kernels sh_neon_model_kernels = VECTOR_TABLE(neon);
