/* The vector kernels for AVX-512 (F, BW, DQ, VL): the one body with this file's flags. */
#include "kernels/simd.h"

#include "kernels/body_ctc.h"
#include "kernels/body_layers.h"
#include "kernels/body_packed.h"
#include "kernels/body_rows.h"
#include "kernels/body_tiles.h"

#define KERNEL_ROW(name, arguments) .name = name,
const kernel_table sh_avx512_table = {.isa = "avx512",
                                      .lanes = LANES,
                                      .panel = LANES * TILE_VECTORS,
                                      SHOAL_KERNELS(KERNEL_ROW)};
