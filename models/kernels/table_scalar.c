/* The specification of every kernel of the models, in plain C. Other tables must agree
   with it. */
#include <math.h>

#include "models/kernels/body_ctc.h"
#include "models/kernels/body_int8_rows.h"
#include "models/kernels/body_layers.h"

static float packed_weight(const void *w, int form, int64_t input, int output) {
    const packed_group *group = (const packed_group *)w + input / PACKED_GROUP;
    if (form == PACKED_FLOATS)
        return ((const float *)w)[input * PACKED_OUTPUTS + output];
    if (form == PACKED_HALVES)
        return half_to_float(((const uint16_t *)w)[input * PACKED_OUTPUTS + output]);
    return fmaf((float)group->bytes[input % PACKED_GROUP][output],
                half_to_float(group->scale[output]), half_to_float(group->shift[output]));
}

static void packed(int64_t inputs, const void *w, int form, const float *x, int width,
                   int rows, float *y, int64_t stride) {
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < PACKED_OUTPUTS; j++)
            y[r * stride + j] = 0;
    for (int64_t i = 0; i < inputs; i++)
        for (int j = 0; j < PACKED_OUTPUTS; j++) {
            const float weight = packed_weight(w, form, i, j);
            for (int r = 0; r < rows; r++)
                y[r * stride + j] = fmaf(x[i * width + r], weight, y[r * stride + j]);
        }
}

static void product_panel(int64_t depth, int rows, const float *x, int64_t stride,
                          int depth_major, float *panel) {
    for (int64_t k = 0; k < depth; k++)
        for (int r = 0; r < PRODUCT_ROWS; r++)
            panel[k * PRODUCT_ROWS + r] = r >= rows     ? 0
                                          : depth_major ? x[k * stride + r]
                                                        : x[r * stride + k];
}

static void product_tile(int64_t depth, const float *a, const float *b, int rows,
                         int columns, int onto, float *c, int64_t stride) {
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < columns; j++) {
            float sum = 0;
            for (int64_t k = 0; k < depth; k++)
                sum = fmaf(a[k * PRODUCT_ROWS + r], b[k * PRODUCT_COLUMNS + j], sum);
            c[r * stride + j] = onto ? c[r * stride + j] + sum : sum;
        }
}

static void bf16_product(int64_t pairs, const uint32_t *w, const uint32_t *x, int rows,
                         float *y, int64_t stride) {
    bf16_product_plain(pairs, w, x, rows, y, stride);
}

static void int8_product(int64_t quads, const int8_block *w, const uint8_t *x,
                         int64_t x_stride, const int8_row *of, int rows, float *y,
                         int64_t y_stride) {
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < PACKED_OUTPUTS; j++) {
            int32_t sum = 0;
            for (int64_t i = 0; i < 4 * quads; i++)
                sum += (x[r * x_stride + i] - of[r].zero) *
                       w->bytes[(i / 4 * PACKED_OUTPUTS + j) * 4 + i % 4];
            y[r * y_stride + j] = (float)sum * (of[r].scale * w->scales[j]);
        }
}

static void int8_product_dot(int64_t quads, const int8_block *w, const uint8_t *x,
                             int64_t x_stride, const int8_row *of, int rows, float *y,
                             int64_t y_stride) {
    int8_product(quads, w, x, x_stride, of, rows, y, y_stride);
}

const model_kernels sh_scalar_model_kernels = {.isa = "scalar",
                                               SHOAL_MODEL_KERNELS(KERNEL_ROW)};
