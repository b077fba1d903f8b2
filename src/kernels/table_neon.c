/* The vector kernels for NEON (AArch64): the one body with this file's flags. */
#include "kernels/table_vector.h"

const kernel_table sh_neon_table = VECTOR_TABLE(neon);
