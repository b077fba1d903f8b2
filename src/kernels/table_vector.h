/* What each table_SET.c compiles with its instruction set's flags: the one body, and the
   table of it. */
#include "kernels/simd.h"

#include "kernels/body_plain.h"
#include "kernels/body_rows.h"
#include "kernels/body_tiles.h"

#define VECTOR_TABLE(set_name)                                                           \
    {                                                                                    \
        .isa = #set_name, .set = ISA_##set_name, .lanes = LANES,                         \
        .panel = LANES * TILE_VECTORS, SHOAL_KERNELS(KERNEL_ROW)                         \
    }
