/* Linear layers whose weights lie packed (kernels.h): for a decoder, whose runs have few
   rows and read every weight. A row's result does not depend on the rows beside it, nor
   on the number of threads. Weights keep the size that they have in their file: floats,
   halves, or bytes with a scale and a shift per 32 inputs, widened inside the product; or
   they are bytes that are multiplied as such. */
#ifndef SHOAL_MODELS_NN_PACKED_H
#define SHOAL_MODELS_NN_PACKED_H

#include "models/kernels/kernels.h"
#include "models/nn/layers.h"

typedef struct {
    int64_t inputs, outputs;
    packed_form form;
    const void *blocks;   /* [ceil(outputs / PACKED_OUTPUTS)] */
    const float *factors; /* [inputs] of PACKED_INT8 (models/nn/quantised.h) */
    const float *bias;    /* [outputs]; NULL: none */
} packed_linear;

/* Bytes of one block, and of all of a matrix. */
SHOAL_PRIVATE int64_t sh_packed_block(packed_form form, int64_t inputs);
SHOAL_PRIVATE int64_t sh_packed_bytes(packed_form form, int64_t inputs, int64_t outputs);

/* Writes row `output` [inputs] of a matrix into its blocks, which must begin as zeros;
   for floats and halves. */
SHOAL_PRIVATE void sh_packed_put(packed_form form, int64_t inputs, int64_t output,
                                 const void *row, void *blocks);
/* The same for PACKED_BYTES: PACKED_GROUP numbers of a row, from group * PACKED_GROUP on,
   with their scale and shift, which are halves. */
SHOAL_PRIVATE void sh_packed_put_group(int64_t inputs, int64_t output, int64_t group,
                                       const int8_t *bytes, uint16_t scale,
                                       uint16_t shift, void *blocks);
/* Row `output` as floats [inputs]. */
SHOAL_PRIVATE void sh_packed_get(const packed_linear *layer, int64_t output, float *row);

/* The widest panel that rows need, 1 to PACKED_ROWS, and floats of the panels of `rows`
   rows: scratch of the products below. */
SHOAL_PRIVATE int sh_packed_width(int64_t rows);
SHOAL_PRIVATE int64_t sh_packed_scratch(int64_t rows, int64_t inputs);

/* panel [inputs][width] = x [rows][inputs] times `scale`, zeros beside it; rows of x are
   `stride` apart, rows <= width. */
SHOAL_PRIVATE void sh_packed_panel(int64_t inputs, int rows, int width, const float *x,
                                   int64_t stride, float scale, float *panel);

typedef enum { PACKED_SET, PACKED_ADD, PACKED_GELU } packed_then;

/* y = x W' + b; PACKED_ADD: added to y; PACKED_GELU: its GELU. y has a stride of its own.
   scratch: [sh_packed_scratch]. */
SHOAL_PRIVATE void sh_packed_forward(const shoal_context *context,
                                     const packed_linear *layer, int64_t rows,
                                     const_matrix x, matrix y, packed_then then,
                                     float *scratch);

#endif
