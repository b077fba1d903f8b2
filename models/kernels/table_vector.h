/* What each table_SET.c compiles with its instruction set's flags: the one body, and the
   table of it. */
#include "kernels/simd.h"

#include "models/kernels/body_ctc.h"
#include "models/kernels/body_int8.h"
#include "models/kernels/body_int8_rows.h"
#include "models/kernels/body_layers.h"
#include "models/kernels/body_packed.h"
#include "models/kernels/body_products.h"

#define VECTOR_TABLE(set_name)                                                           \
    { .isa = #set_name, SHOAL_MODEL_KERNELS(KERNEL_ROW) }
