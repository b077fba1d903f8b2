/* The list of the models' kernels: it declares them and makes the tables' fields, as
   src/kernels/list.h does for attention, and tests/models/test_kernels.c does not build
   without a check of each. What each computes is written here; table_scalar.c is the same
   in C. */
#ifndef SHOAL_MODELS_KERNELS_LIST_H
#define SHOAL_MODELS_KERNELS_LIST_H

/* clang-format off */
#define SHOAL_MODEL_KERNELS(KERNEL)                                                      \
    /* ---- Between the products of a model: body_layers.h, body_packed.h ---- */        \
    /* x[i] *= factor. */                                                                \
    KERNEL(scale_by, (int64_t count, float factor, float *x))                            \
    /* y[i] += step * (x[i] - y[i]). */                                                  \
    KERNEL(lerp, (int64_t count, float step, const float *x, float *y))                  \
    /* out[i] = f(x[i]), f(x) = max(x, 0) or x Phi(x); out may be x. */                  \
    KERNEL(relu, (int64_t count, const float *x, float *out))                            \
    KERNEL(gelu, (int64_t count, const float *x, float *out))                            \
    /* dx[i] = dy[i] f'(x[i]), and out[i] = f(x[i]) unless out is NULL; dx may be dy. */ \
    KERNEL(relu_slope, (int64_t count, const float *x, const float *dy, float *dx,       \
                        float *out))                                                     \
    KERNEL(gelu_slope, (int64_t count, const float *x, const float *dy, float *dx,       \
                        float *out))                                                     \
    /* Layer norm of `count` rows of `size`: y = scale (x - mean) / sqrt(variance +      \
       epsilon) + shift. statistics, unless NULL: [count][2], mean and 1 / deviation. */ \
    KERNEL(norm_rows, (int64_t count, int64_t size, const float *x, const float *scale,  \
                       const float *shift, float epsilon, float *y, float *statistics))  \
    /* dx = its gradient, plus base [count][size] unless NULL; dx may be dy or base. The \
       gradients dscale and dshift [size] are added to. */                               \
    KERNEL(norm_rows_slope, (int64_t count, int64_t size, const float *x,                \
                             const float *statistics, const float *scale,                \
                             const float *dy, const float *base, float *dx,              \
                             float *dscale, float *dshift))                              \
    /* sums[j] += sum over the rows of x[row][j]. */                                     \
    KERNEL(column_sums, (int64_t count, int64_t width, const float *x, int64_t stride,   \
                         float *sums))                                                   \
    /* *loss = -log softmax(x)[target]; *best: the first largest. Unless NULL,           \
       gradient[j] = factor (softmax(x)[j] - (j is the target)), which may be x. */      \
    KERNEL(cross_entropy, (int64_t classes, const float *x, int64_t target,              \
                           float factor, float *gradient, float *loss, int64_t *best))   \
    /* Floats to the nearest halves, ties to even; none is beyond 65504. */              \
    KERNEL(narrow, (int64_t count, const float *x, uint16_t *halves))                    \
    /* y[r][j] = sum over i, in order, by fused multiply-add, of x[i][r] * w[i][j], for  \
       r < rows <= width and j < PACKED_OUTPUTS: the same bits whatever the rows, the    \
       width and the instruction set. x is [inputs][width], width 1, 2, 4, 8 or 12; w one\
       block of a packed matrix (packed_form below). */                                  \
    KERNEL(packed, (int64_t inputs, const void *w, int form, const float *x, int width,  \
                    int rows, float *y, int64_t stride))                                 \
    /* Rows of the left factor of a product, side by side: panel[k][r] = x[r][k], or     \
       x[k][r] where depth_major is not 0, for r < rows <= PRODUCT_ROWS, and 0 up to     \
       PRODUCT_ROWS. Rows of x are `stride` apart. PRODUCT_SLACK floats after the panel  \
       may be overwritten. */                                                            \
    KERNEL(product_panel, (int64_t depth, int rows, const float *x, int64_t stride,      \
                           int depth_major, float *panel))                               \
    /* c[r][j] = (onto: c[r][j] +) sum over k, in order, by fused multiply-add, of       \
       a[k][r] * b[k][j], for r < rows <= PRODUCT_ROWS and j < columns <=                \
       PRODUCT_COLUMNS: the same bits on every instruction set. a is                     \
       [depth][PRODUCT_ROWS], b [depth][PRODUCT_COLUMNS]. */                             \
    KERNEL(product_tile, (int64_t depth, const float *a, const float *b, int rows,       \
                          int columns, int onto, float *c, int64_t stride))              \
    /* Two bfloat16 numbers in each word of panel [inputs / 2][PACKED_ROWS], nearest of  \
       x [rows][inputs], which is even; zeros beside the rows. */                        \
    KERNEL(bf16_panel, (int64_t inputs, int rows, const float *x, int64_t stride,        \
                        uint32_t *panel))                                                \
    /* y[r][j] = sum over p of x[p][r] . w[p][j], pairs of bfloat16 each, for r < rows <=\
       PACKED_ROWS and j < PACKED_OUTPUTS; x is [pairs][PACKED_ROWS]. Whatever the rows, \
       the bits are the same. */                                                         \
    KERNEL(bf16_product, (int64_t pairs, const uint32_t *w, const uint32_t *x, int rows, \
                          float *y, int64_t stride))                                     \
    /* The row x[i] factors[i] in bytes [4 ceil(inputs / 4)], zeros at its end: scale =  \
       (max - min) / INT8_LEVELS, where min <= 0 <= max, zero = -min / scale, and bytes  \
       x / scale + zero, round to nearest, ties to even. factors NULL: 1. A row that is  \
       not finite has the scale NaN. The same bits on all. */                            \
    KERNEL(quantise, (int64_t inputs, const float *x, const float *factors,              \
                      uint8_t *bytes, int8_row *of))                                     \
    /* y[r][j] = scale of the row and of the output times the exact sum over i of        \
       (x[r][i] - zero) w[i][j], for r < rows and j < PACKED_OUTPUTS: the same bits      \
       whatever the rows and the instruction set. The second uses dot products of bytes, \
       where the processor has them (sh_dots_int8). */                                   \
    KERNEL(int8_product, (int64_t quads, const int8_block *w, const uint8_t *x,          \
                          int64_t x_stride, const int8_row *of, int rows, float *y,      \
                          int64_t y_stride))                                             \
    KERNEL(int8_product_dot, (int64_t quads, const int8_block *w, const uint8_t *x,      \
                              int64_t x_stride, const int8_row *of, int rows, float *y,  \
                              int64_t y_stride))                                         \
    /* The largest of x [count], count > 0, the first that is it, and the sum of         \
       exp(x[i] - *largest). NaN is never the largest; where there is nothing above      \
       -infinity, *who is 0 and the total NaN. */                                        \
    KERNEL(peak, (int64_t count, const float *x, float *largest, int64_t *who,           \
                  double *total))                                                        \
    /* x[i] = exp(x[i] - the largest), and their sum. */                                 \
    KERNEL(soften, (int64_t count, float *x, float *total))                              \
    /* One step of an optimizer on values [count] and its two moments. */                \
    KERNEL(adam, (int64_t count, const adam_numbers *how, const float *gradient,         \
                  float *first, float *second, float *values))                           \
    /* *total = sum of x[i]^2. */                                                        \
    KERNEL(sum_squares, (int64_t count, const float *x, double *total))                  \
    /* ---- CTC: body_ctc.h; numbers are mantissas[i] 2^exponents[i] ---- */             \
    /* e^(x[i] - top), from x[i] - top = -1e6 on, also as plain values, which may be 0;  \
       mantissas from 0.7 to 1.5. */                                                     \
    KERNEL(powers, (int64_t count, const float *x, float top, double *mantissas,         \
                    int64_t *exponents, double *values))                                 \
    /* Blank k: (blanks[k] + labels[k]) times one number. Mantissas to[k] are from 1     \
       to 2. */                                                                          \
    KERNEL(ctc_blanks, (int64_t count, const double *blanks,                             \
                        const int64_t *blank_powers, const double *labels,               \
                        const int64_t *label_powers, double mantissa, int64_t exponent,  \
                        double *to, int64_t *to_powers))                                 \
    /* Label k: (labels[k + 1] + blanks[k] + labels[k] 2^skips[k]) times a number of     \
       its own; labels have count + 1 elements. */                                       \
    KERNEL(ctc_labels, (int64_t count, const double *blanks,                             \
                        const int64_t *blank_powers, const double *labels,               \
                        const int64_t *label_powers, const int64_t *skips,               \
                        const double *mantissas, const int64_t *exponents, double *to,   \
                        int64_t *to_powers))                                             \
    /* out[k] = ahead[k] behind[count - 1 - k] / 2^(exponents[k] + shift); exponents     \
       NULL: 0. What is below the smallest double is 0. */                               \
    KERNEL(ctc_meet, (int64_t count, const double *ahead, const int64_t *ahead_powers,   \
                      const double *behind, const int64_t *behind_powers,                \
                      const int64_t *exponents, int64_t shift, double *out))
/* clang-format on */

#endif
