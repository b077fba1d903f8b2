/* Row functions for any processor. */
#define ROW_TABLE sh_plain_rows
#define FUSED(a, b, c) ((a) * (b) + (c))
#define WIDEN8(halves, floats)                                                           \
    for (int j_ = 0; j_ < 8; j_++)                                                       \
    (floats)[j_] = half_to_float((halves)[j_])

#include "models/nn/rows_body.h"
