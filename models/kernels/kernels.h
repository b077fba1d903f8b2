/* The kernels of the models: what stands between products (norms, activations, losses,
   the optimizer), products of few rows, CTC. They are made as attention's are
   (kernels/tables.h): list.h declares them, the scalar table is the specification, the
   vector tables are one body compiled per instruction set, and
   tests/models/test_kernels.c compares them. Rows that attention needs as well (add,
   multiply, dots, widen) are in its table, context->kernels. */
#ifndef SHOAL_MODELS_KERNELS_KERNELS_H
#define SHOAL_MODELS_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/export.h"
#include "kernels/tables.h"
#include "models/kernels/list.h"
#include "shoal.h"

/* The exponent of what cannot be, in CTC's numbers: far below every probability, and far
   from the ends of an int64_t. */
#define CTC_NEVER (-(INT64_C(1) << 40))

/* The numbers of one optimizer step, for `adam`; g = gradient + coupled value:
       first = beta1 first + (1 - beta1) g, second = beta2 second + (1 - beta2) g^2,
       value = keep value - momentum first / (sqrt(inverse second) + epsilon). */
typedef struct {
    float beta1, beta2;
    float coupled;  /* weight decay that is added to the gradient */
    float keep;     /* 1 - rate * decay, decoupled */
    float momentum; /* rate (times the rectification) / (1 - beta1^t) */
    float inverse;  /* 1 / (1 - beta2^t) */
    float epsilon;
    bool adaptive; /* false: value = keep value - momentum first */
} adam_numbers;

/* Matrices [outputs][inputs] for products with few rows: blocks of PACKED_OUTPUTS
   outputs, each [inputs][PACKED_OUTPUTS], so that outputs are lanes. PACKED_BYTES has per
   PACKED_GROUP inputs (of which there is a whole number) a packed_group; a weight is
   fma(bytes[i][j], scale[j], shift[j]). */
enum { PACKED_OUTPUTS = 32, PACKED_GROUP = 32, PACKED_ROWS = 12 };
/* PACKED_INT8 is below: int8_block, which has kernels of its own. */
typedef enum { PACKED_FLOATS, PACKED_HALVES, PACKED_BYTES, PACKED_INT8 } packed_form;
typedef struct {
    uint16_t scale[PACKED_OUTPUTS], shift[PACKED_OUTPUTS]; /* halves */
    int8_t bytes[PACKED_GROUP][PACKED_OUTPUTS];
} packed_group;

/* Tiles of a product of two float matrices. */
enum { PRODUCT_ROWS = 12, PRODUCT_COLUMNS = 32, PRODUCT_SLACK = 4 };

/* Matrices of bytes: blocks of PACKED_OUTPUTS outputs. A weight is scales[j] times its
   byte; four inputs of an output lie together, [quads][PACKED_OUTPUTS][4], with zeros
   behind the last input. No two bytes that vpmaddubsw adds (of inputs 2 i and 2 i + 1)
   have magnitudes of more than INT8_PAIR together, so that the sum of their products
   with INT8_LEVELS fits 16 bits. */
enum { INT8_LEVELS = 255, INT8_MOST = 127, INT8_PAIR = 128 };
typedef struct {
    float scales[PACKED_OUTPUTS];
    int32_t sums[PACKED_OUTPUTS]; /* of an output's bytes */
    int8_t bytes[];
} int8_block;

/* A row x of bytes: x[i] stands for scale (x[i] - zero). */
typedef struct {
    float scale;
    int32_t zero;
} int8_row;

SHOAL_MODEL_KERNELS(KERNEL_TYPE)

typedef struct model_kernels {
    const char *isa;
    SHOAL_MODEL_KERNELS(KERNEL_FIELD)
} model_kernels;

/* The table for the instruction set that the context has chosen. */
SHOAL_PRIVATE const model_kernels *sh_model_kernels(const shoal_context *context);
/* Whether the context's bf16_product multiplies pairs of bfloat16 at once, which is
   quicker than floats. */
SHOAL_PRIVATE bool sh_multiplies_bf16(const shoal_context *context);
/* Whether its int8_product_dot may be called: the processor has dot products of bytes. A
   context for a lesser instruction set than the machine's does without. */
bool sh_dots_int8(const shoal_context *context);
/* Whether the processor has the dot products of the table at a place. */
bool sh_dots_int8_at(int index);
/* The table at a place of SHOAL_ISAS; NULL past the end. */
const model_kernels *sh_model_kernels_at(int index);

#endif
