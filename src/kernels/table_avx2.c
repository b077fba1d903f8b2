/* The vector kernels for AVX2 with FMA: the one body with this file's flags. */
#include "kernels/table_vector.h"

const kernel_table sh_avx2_table = VECTOR_TABLE(avx2);
