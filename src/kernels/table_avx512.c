/* The vector kernels for AVX-512 (F, BW, DQ, VL): the one body with this file's flags. */
#include "kernels/table_vector.h"

const kernel_table sh_avx512_table = VECTOR_TABLE(avx512);
