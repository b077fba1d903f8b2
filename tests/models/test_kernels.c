/* Every kernel of the models, of every table that this machine supports, compared with
   the scalar one over awkward sizes. A kernel in models/kernels/list.h without a
   check_NAME here does not compile. */
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "cases.h"
#include "kernels/half.h"
#include "models/kernels/kernels.h"

#define KERNEL_LIST SHOAL_MODEL_KERNELS
#define KERNELS_AT sh_model_kernels_at
typedef model_kernels checked_kernels;
#include "kernel_checks.h"
#include "support.h"

/* ---- Kernels between products ----------------------------------------------------- */

/* [1][count], wide enough for the tails of an activation, with special values depending
   on the salt. */
static float *wide_row(int count, int salt) {
    const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 1e30f, -1e30f};
    float *x = random_rows(1, count, count);
    for (int i = 0; i < count; i++)
        x[i] *= 16;
    for (int i = 0; i < 8 && count > 0 && salt; i++)
        x[draw_below(count)] = odd[i];
    return x;
}

static void scale_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    float_pair x = pair_create(count);
    SCALAR->scale_by(count, 0.3f, x.expected);
    kernels->scale_by(count, 0.3f, x.actual);
    compare_bits(x, "scale_by", kernels);
    guarded_finish("scale_by");
}

CHECK(scale_by, walk_lengths(kernels, 1, scale_once))

static void lerp_once(const checked_kernels *kernels, int count, int salt) {
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->lerp(count, salt ? 1 : 0.01f, x, y.expected);
    kernels->lerp(count, salt ? 1 : 0.01f, x, y.actual);
    compare_bits(y, "lerp", kernels);
    guarded_finish("lerp");
}

CHECK(lerp, walk_lengths(kernels, 2, lerp_once))

static void relu_once(const checked_kernels *kernels, int count, int salt) {
    float *x = wide_row(count, salt);
    float_pair out = pair_create(count);
    SCALAR->relu(count, x, out.expected);
    kernels->relu(count, x, out.actual);
    pair_compare(out, 0, "relu", kernels->isa);
    guarded_finish("relu");
}

CHECK(relu, walk_lengths(kernels, 2, relu_once))

/* Fused multiply-adds round differently: by some units of the largest term of a sum. */
static void gelu_compare(float_pair values, const float *x, const char *what,
                         const checked_kernels *kernels) {
    for (size_t i = 0; i < values.count; i++)
        pair_compare((float_pair){values.expected + i, values.actual + i, 1},
                     4 * EPSILON * fmaxf(1, fabsf(x[i])), what, kernels->isa);
}

static void gelu_once(const checked_kernels *kernels, int count, int salt) {
    float *x = wide_row(count, salt);
    float_pair out = pair_create(count);
    SCALAR->gelu(count, x, out.expected);
    kernels->gelu(count, x, out.actual);
    gelu_compare(out, x, "gelu", kernels);
    guarded_finish("gelu");
}

CHECK(gelu, walk_lengths(kernels, 2, gelu_once))

static void relu_slope_once(const checked_kernels *kernels, int count, int salt) {
    float *x = wide_row(count, salt % 2);
    float_pair dx = pair_create(count), out = pair_create(count);
    SCALAR->relu_slope(count, x, dx.expected, dx.expected,
                       salt > 1 ? out.expected : NULL);
    kernels->relu_slope(count, x, dx.actual, dx.actual, salt > 1 ? out.actual : NULL);
    pair_compare(dx, 0, "relu_slope", kernels->isa);
    pair_compare(out, 0, "relu_slope's out", kernels->isa);
    guarded_finish("relu_slope");
}

CHECK(relu_slope, walk_lengths(kernels, 4, relu_slope_once))

static void gelu_slope_once(const checked_kernels *kernels, int count, int salt) {
    float *x = wide_row(count, salt % 2);
    float_pair dx = pair_create(count), out = pair_create(count);
    SCALAR->gelu_slope(count, x, dx.expected, dx.expected,
                       salt > 1 ? out.expected : NULL);
    kernels->gelu_slope(count, x, dx.actual, dx.actual, salt > 1 ? out.actual : NULL);
    gelu_compare(dx, x, "gelu_slope", kernels);
    gelu_compare(out, x, "gelu_slope's out", kernels);
    guarded_finish("gelu_slope");
}

CHECK(gelu_slope, walk_lengths(kernels, 4, gelu_slope_once))

static void norm_once(const checked_kernels *kernels, int size, int salt) {
    const int count = size ? 1 + salt * 4 : 0;
    float *x = random_rows(count, size, size), *scale = random_rows(1, size, size);
    float *shift = random_rows(1, size, size);
    float_pair y = pair_create(count * size), statistics = pair_create(2 * count);
    SCALAR->norm_rows(count, size, x, scale, shift, 1e-5f, y.expected,
                      salt ? statistics.expected : NULL);
    kernels->norm_rows(count, size, x, scale, shift, 1e-5f, y.actual,
                       salt ? statistics.actual : NULL);
    compare_bits(y, "norm_rows", kernels);
    compare_bits(statistics, "norm_rows' statistics", kernels);
    guarded_finish("norm_rows");
}

CHECK(norm_rows, walk_lengths(kernels, 2, norm_once))

static void norm_slope_once(const checked_kernels *kernels, int size, int salt) {
    const int count = size ? 1 + salt * 3 : 0;
    float *x = random_rows(count, size, size), *scale = random_rows(1, size, size);
    float *statistics = random_rows(count, 2, 2), *dy = random_rows(count, size, size);
    float *base = salt ? random_rows(count, size, size) : NULL;
    float_pair dx = pair_create(count * size);
    float_pair dscale = pair_create(size), dshift = pair_create(size);
    SCALAR->norm_rows_slope(count, size, x, statistics, scale, dy, base, dx.expected,
                            dscale.expected, dshift.expected);
    kernels->norm_rows_slope(count, size, x, statistics, scale, dy, base, dx.actual,
                             dscale.actual, dshift.actual);
    compare_bits(dx, "norm_rows_slope", kernels);
    compare_bits(dscale, "norm_rows_slope's dscale", kernels);
    compare_bits(dshift, "norm_rows_slope's dshift", kernels);
    guarded_finish("norm_rows_slope");
}

CHECK(norm_rows_slope, walk_lengths(kernels, 2, norm_slope_once))

static void column_once(const checked_kernels *kernels, int width, int salt) {
    const int counts[] = {0, 1, 5, 256, 300};
    const int stride = width + salt % 2;
    float *x = random_rows(counts[salt], stride, width);
    float_pair sums = pair_create(width);
    SCALAR->column_sums(counts[salt], width, x, stride, sums.expected);
    kernels->column_sums(counts[salt], width, x, stride, sums.actual);
    compare_bits(sums, "column_sums", kernels);
    guarded_finish("column_sums");
}

CHECK(column_sums, walk_lengths(kernels, 5, column_once))

/* salt 1: the gradient replaces the logits; 2: no gradient; 3: a NaN. */
static void entropy_once(const checked_kernels *kernels, int classes, int salt) {
    if (classes == 0)
        return;
    const int target = draw_below(classes);
    float_pair x = pair_create(classes), gradient = pair_create(classes);
    float_pair loss = pair_create(1);
    int64_t best[2];
    for (int i = 0; i < classes; i++)
        x.expected[i] *= 30;
    if (salt == 3)
        x.expected[draw_below(classes)] = NAN;
    pair_copy(x);
    float_pair to = salt == 1 ? x : salt == 2 ? (float_pair){0} : gradient;
    SCALAR->cross_entropy(classes, x.expected, target, 0.1f, to.expected, loss.expected,
                          &best[0]);
    kernels->cross_entropy(classes, x.actual, target, 0.1f, to.actual, loss.actual,
                           &best[1]);
    assert_int_equal(best[0], best[1]);
    pair_compare(loss, 32 * EPSILON, "cross_entropy", kernels->isa);
    pair_compare(x, EPSILON, "cross_entropy's logits", kernels->isa);
    pair_compare(gradient, EPSILON, "cross_entropy's gradient", kernels->isa);
    guarded_finish("cross_entropy");
}

CHECK(cross_entropy, walk_lengths(kernels, 4, entropy_once))

/* Every half-precision number is restored, and values between two are rounded to the
   nearer. */
static void check_narrow(const checked_kernels *kernels) {
    enum { COUNT = 65536 + 37 };
    float *x = guarded_input(COUNT * sizeof *x);
    uint16_t *expected = guarded_input(COUNT * sizeof *expected);
    uint16_t *actual = guarded_input(COUNT * sizeof *actual);
    for (int shift = -1; shift <= 1; shift++) {
        for (int i = 0; i < COUNT; i++) {
            const uint16_t half = (uint16_t)(i * 0x6a5);
            const float next = half_to_float((uint16_t)(half ^ 1));
            const float here = half_to_float(half);
            x[i] = isnan(here) || isnan(next) ? 1e30f
                   : shift < 0                ? here
                                              : here + 0.5f * (next - here);
            x[i] = shift > 0 ? nextafterf(x[i], i % 2 ? INFINITY : -INFINITY) : x[i];
            assert_true(shift >= 0 || x[i] == here || isinf(here) || x[i] == 1e30f);
        }
        SCALAR->narrow(COUNT, x, expected);
        kernels->narrow(COUNT, x, actual);
        bytes_compare(expected, actual, COUNT * sizeof *actual, "narrow", kernels->isa);
        for (int i = 0; i < COUNT && shift < 0; i++)
            assert_true(half_to_float(actual[i]) == x[i] || fabsf(x[i]) > 65504);
    }
    guarded_finish("narrow");
}

static void packed_once(const checked_kernels *kernels, int inputs, int salt) {
    static const int widths[] = {1, 2, 4, 8, 12};
    const int width = widths[salt % 5], form = salt / 5 % 3, rows = width - salt / 15;
    const int stride = PACKED_OUTPUTS + salt % 3;
    if (form == PACKED_BYTES)
        inputs = (inputs + PACKED_GROUP - 1) / PACKED_GROUP * PACKED_GROUP;
    const int count = inputs * PACKED_OUTPUTS;
    const int groups = inputs / PACKED_GROUP;
    float *x = random_rows(inputs, width, width);
    void *w = form == PACKED_FLOATS ? (void *)random_rows(1, count, count)
              : form == PACKED_HALVES
                  ? (void *)random_halves(count)
                  : (void *)random_halves(groups * (int)sizeof(packed_group) / 2);
    float_pair y = pair_create(rows > 0 ? (rows - 1) * stride + PACKED_OUTPUTS : 0);
    SCALAR->packed(inputs, w, form, x, width, rows, y.expected, stride);
    kernels->packed(inputs, w, form, x, width, rows, y.actual, stride);
    compare_bits(y, "packed", kernels);
    guarded_finish("packed");
}

CHECK(packed, walk_lengths(kernels, 45, packed_once))

static void product_panel_once(const checked_kernels *kernels, int depth, int salt) {
    const int rows = salt / 2 % (PRODUCT_ROWS + 1), depth_major = salt % 2;
    const int stride = (depth_major ? rows : depth) + salt % 3;
    float *x = depth_major ? random_rows(depth, stride, rows)
                           : random_rows(rows, stride, depth);
    const int count = depth * PRODUCT_ROWS;
    float_pair panel = pair_create(count + PRODUCT_SLACK);
    SCALAR->product_panel(depth, rows, x, stride, depth_major, panel.expected);
    kernels->product_panel(depth, rows, x, stride, depth_major, panel.actual);
    panel.count = (size_t)count;
    compare_bits(panel, "product_panel", kernels);
    guarded_finish("product_panel");
}

CHECK(product_panel, walk_lengths(kernels, 2 * (PRODUCT_ROWS + 1), product_panel_once))

static void product_tile_once(const checked_kernels *kernels, int depth, int salt) {
    const int rows = salt % (PRODUCT_ROWS + 1), onto = salt % 2;
    const int columns = salt % 5 == 0 ? PRODUCT_COLUMNS : 1 + salt % PRODUCT_COLUMNS;
    const int stride = columns + salt % 3;
    float *a = random_panel(depth, PRODUCT_ROWS),
          *b = random_panel(depth, PRODUCT_COLUMNS);
    float_pair c = pair_create(rows > 0 ? (rows - 1) * stride + columns : 0);
    SCALAR->product_tile(depth, a, b, rows, columns, onto, c.expected, stride);
    kernels->product_tile(depth, a, b, rows, columns, onto, c.actual, stride);
    compare_bits(c, "product_tile", kernels);
    guarded_finish("product_tile");
}

CHECK(product_tile, walk_lengths(kernels, 65, product_tile_once))

static uint32_t *random_pairs(int64_t count) {
    uint32_t *pairs = guarded_input((size_t)count * sizeof *pairs);
    for (int64_t i = 0; i < count; i++) /* approximately 1 */
        pairs[i] = ((uint32_t)draw() & 0x80ff80ffu) | 0x3f003f00u;
    return pairs;
}

static void bf16_product_once(const checked_kernels *kernels, int pairs, int salt) {
    const int rows = salt, stride = PACKED_OUTPUTS + salt % 3;
    uint32_t *w = random_pairs((int64_t)pairs * PACKED_OUTPUTS);
    uint32_t *x = random_pairs((int64_t)pairs * PACKED_ROWS);
    float_pair y = pair_create(rows > 0 ? (rows - 1) * stride + PACKED_OUTPUTS : 0);
    SCALAR->bf16_product(pairs, w, x, rows, y.expected, stride);
    kernels->bf16_product(pairs, w, x, rows, y.actual, stride);
    pair_compare(y, 1e-4f, "bf16_product", kernels->isa);
    guarded_finish("bf16_product");
}

CHECK(bf16_product, walk_lengths(kernels, PACKED_ROWS + 1, bf16_product_once))

static void bf16_panel_once(const checked_kernels *kernels, int pairs, int salt) {
    const int rows = salt, inputs = 2 * pairs, stride = inputs + salt % 3;
    float *x = random_rows(rows, stride, inputs);
    float_pair panel = pair_create(pairs * PACKED_ROWS);
    SCALAR->bf16_panel(inputs, rows, x, stride, (uint32_t *)(void *)panel.expected);
    kernels->bf16_panel(inputs, rows, x, stride, (uint32_t *)(void *)panel.actual);
    compare_bits(panel, "bf16_panel", kernels);
    for (int p = 0; p < pairs; p++)
        for (int r = 0; r < rows; r++) {
            uint32_t pair;
            memcpy(&pair, panel.actual + p * PACKED_ROWS + r, sizeof pair);
            const float one = x[r * stride + 2 * p], other = x[r * stride + 2 * p + 1];
            assert_true(fabsf(bits_to_float(pair << 16) - one) <= fabsf(one) / 256);
            assert_true(fabsf(bits_to_float(pair & 0xffff0000u) - other) <=
                        fabsf(other) / 256);
        }
    guarded_finish("bf16_panel");
}

CHECK(bf16_panel, walk_lengths(kernels, PACKED_ROWS + 1, bf16_panel_once))

/* ---- Products of bytes ------------------------------------------------------------ */

static void quantise_once(const checked_kernels *kernels, int inputs, int salt) {
    const float odd[] = {INFINITY, NAN, 1e-42f, 3e38f};
    const size_t padded = (size_t)(inputs + 3) / 4 * 4;
    float *x = random_rows(1, inputs, inputs), *factors = random_rows(1, inputs, inputs);
    uint8_t *expected = guarded_output(padded), *actual = guarded_output(padded);
    int8_row rows[2];
    for (int i = 0; i < inputs && salt > 1; i++)
        x[i] = salt == 2 ? 0 : salt == 3 ? fabsf(x[i]) : 1e-42f * (float)(i % 3);
    if (salt > 4 && inputs > 0)
        x[draw_below(inputs)] = odd[salt - 5];
    SCALAR->quantise(inputs, x, salt % 2 ? factors : NULL, expected, &rows[0]);
    kernels->quantise(inputs, x, salt % 2 ? factors : NULL, actual, &rows[1]);
    assert_memory_equal(rows, rows + 1, sizeof *rows);
    assert_memory_equal(expected, actual, padded);
    bool finite = true;
    for (int i = 0; i < inputs; i++)
        finite = finite && isfinite(x[i]);
    assert_int_equal(isnan(rows[1].scale) != 0, !finite);
    for (int i = 0; i < inputs && finite; i++) {
        const float of = salt % 2 ? x[i] * factors[i] : x[i];
        const float got = rows[1].scale * (float)(actual[i] - rows[1].zero);
        assert_true(fabsf(got - of) <= 0.51f * rows[1].scale + 1e-35f);
    }
    for (size_t i = (size_t)inputs; i < padded; i++)
        assert_int_equal(actual[i], 0);
    guarded_finish("quantise");
}

CHECK(quantise, walk_lengths(kernels, 9, quantise_once))

/* Bytes of all sizes that a pair may have, its largest among them. */
static int8_block *random_block(int quads) {
    int8_block *w = guarded_input(sizeof *w + (size_t)(4 * quads * PACKED_OUTPUTS));
    for (int j = 0; j < PACKED_OUTPUTS; j++) {
        w->scales[j] = 0.01f * (float)(1 + draw_below(100));
        w->sums[j] = 0;
    }
    for (int i = 0; i < 4 * quads * PACKED_OUTPUTS; i += 2) {
        const int most = i % 3 ? INT8_MOST : draw_below(INT8_MOST + 1);
        const int sign = draw_below(4) ? 1 : -1, other = draw_below(4) ? sign : -sign;
        w->bytes[i] = (int8_t)(sign * most);
        w->bytes[i + 1] = (int8_t)(other * min(INT8_PAIR - most, INT8_MOST));
        w->sums[i / 4 % PACKED_OUTPUTS] += w->bytes[i] + w->bytes[i + 1];
    }
    return w;
}

static void int8_with(int8_product_kernel *product, const checked_kernels *kernels,
                      int quads, int rows) {
    const int x_stride = 4 * quads + rows % 3, stride = PACKED_OUTPUTS + rows % 3;
    const int last = rows > 0 ? (rows - 1) * x_stride + 4 * quads : 0;
    const int8_block *w = random_block(quads);
    uint8_t *x = guarded_input((size_t)last);
    int8_row *of = guarded_input((size_t)rows * sizeof *of);
    float_pair y = pair_create(rows > 0 ? (rows - 1) * stride + PACKED_OUTPUTS : 0);
    for (int i = 0; i < last; i++)
        x[i] = (uint8_t)(draw_below(2) ? INT8_LEVELS : draw_below(INT8_LEVELS + 1));
    for (int r = 0; r < rows; r++)
        of[r] = (int8_row){0.1f * (float)(r + 1), draw_below(INT8_LEVELS + 1)};
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < PACKED_OUTPUTS; j++) {
            int64_t sum = 0;
            for (int q = 0; q < quads; q++)
                for (int i = 0; i < 4; i++)
                    sum += (int64_t)(x[r * x_stride + 4 * q + i] - of[r].zero) *
                           w->bytes[(q * PACKED_OUTPUTS + j) * 4 + i];
            y.expected[r * stride + j] = (float)sum * (of[r].scale * w->scales[j]);
        }
    product(quads, w, x, x_stride, of, rows, y.actual, stride);
    compare_bits(y, "int8_product", kernels);
    guarded_finish("int8_product");
}

static void int8_product_once(const checked_kernels *kernels, int quads, int salt) {
    int8_with(SCALAR->int8_product, SCALAR, quads, salt);
    int8_with(kernels->int8_product, kernels, quads, salt);
}

CHECK(int8_product, walk_lengths(kernels, 14, int8_product_once))

static void int8_product_dot_once(const checked_kernels *kernels, int quads, int salt) {
    int8_with(kernels->int8_product_dot, kernels, quads, salt);
}

/* Where the processor has dot products of bytes, of this table's width. */
static void check_int8_product_dot(const checked_kernels *kernels) {
    for (int i = 0; KERNELS_AT(i); i++)
        if (KERNELS_AT(i) == kernels && sh_dots_int8_at(i))
            walk_lengths(kernels, 14, int8_product_dot_once);
}

static void peak_once(const checked_kernels *kernels, int count, int salt) {
    float_pair largest = pair_create(1);
    int64_t who[2];
    double total[2];
    if (count == 0)
        return;
    float *x = random_rows(1, count, count);
    for (int i = 0; i < count; i++)
        x[i] = salt == 1 && i % 3 ? -INFINITY : 30 * x[i];
    if (salt == 2) /* the first of ties */
        x[draw_below(count)] = x[draw_below(count)] = 1000;
    SCALAR->peak(count, x, largest.expected, &who[0], &total[0]);
    kernels->peak(count, x, largest.actual, &who[1], &total[1]);
    compare_bits(largest, "peak", kernels);
    assert_int_equal(who[0], who[1]);
    assert_true(x[who[0]] == largest.expected[0]);
    assert_true(fabs(total[0] - total[1]) <= 1e-6 * total[0]);
    guarded_finish("peak");
}

CHECK(peak, walk_lengths(kernels, 3, peak_once))

static void soften_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    float_pair x = pair_create(count), total = pair_create(1);
    SCALAR->soften(count, x.expected, total.expected);
    kernels->soften(count, x.actual, total.actual);
    pair_compare(x, 8 * EPSILON, "soften", kernels->isa);
    pair_compare(total, EPSILON * (float)(32 + count), "soften's sum", kernels->isa);
    guarded_finish("soften");
}

CHECK(soften, walk_lengths(kernels, 1, soften_once))

static void adam_once(const checked_kernels *kernels, int count, int salt) {
    const adam_numbers how = {.beta1 = 0.9f,
                              .beta2 = 0.999f,
                              .coupled = salt & 1 ? 0.01f : 0,
                              .keep = 0.99f,
                              .momentum = 0.02f,
                              .inverse = 1.5f,
                              .epsilon = 1e-8f,
                              .adaptive = salt & 2};
    float *gradient = random_rows(1, count, count);
    float_pair first = pair_create(count), second = pair_create(count);
    float_pair values = pair_create(count);
    for (int i = 0; i < count; i++)
        second.expected[i] = fabsf(second.expected[i]);
    pair_copy(second);
    SCALAR->adam(count, &how, gradient, first.expected, second.expected, values.expected);
    kernels->adam(count, &how, gradient, first.actual, second.actual, values.actual);
    compare_bits(first, "adam's first moment", kernels);
    compare_bits(second, "adam's second moment", kernels);
    compare_bits(values, "adam", kernels);
    guarded_finish("adam");
}

CHECK(adam, walk_lengths(kernels, 4, adam_once))

static void squares_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    double expected, actual;
    SCALAR->sum_squares(count, x, &expected);
    kernels->sum_squares(count, x, &actual);
    bytes_compare(&expected, &actual, sizeof actual, "sum_squares", kernels->isa);
    guarded_finish("sum_squares");
}

CHECK(sum_squares, walk_lengths(kernels, 1, squares_once))

/* ---- CTC -------------------------------------------------------------------------- */

static double *random_mantissas(int count) {
    double *x = guarded_input((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = 1.5 + 0.49 * (double)draw_uniform();
    return x;
}

/* Some close to each other, some far apart, some of impossible states. */
static int64_t *random_exponents(int count) {
    int64_t *x = guarded_input((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = draw_below(5) == 0   ? CTC_NEVER
               : draw_below(5) == 0 ? -draw_below(100000)
                                    : -draw_below(60);
    return x;
}

static void compare_doubles(const double *expected, const double *actual, int count,
                            const char *what, const checked_kernels *kernels) {
    bytes_compare(expected, actual, (size_t)count * sizeof *expected, what, kernels->isa);
}

static void compare_exponents(const int64_t *expected, const int64_t *actual, int count,
                              const char *what, const checked_kernels *kernels) {
    bytes_compare(expected, actual, (size_t)count * sizeof *expected, what, kernels->isa);
}

typedef struct {
    double *numbers[2];
    int64_t *powers[2];
} wide_pair;

static wide_pair wide_create(int count) {
    wide_pair made;
    for (int i = 0; i < 2; i++) {
        made.numbers[i] = guarded_output((size_t)count * sizeof(double));
        made.powers[i] = guarded_output((size_t)count * sizeof(int64_t));
        memset(made.numbers[i], 0, (size_t)count * sizeof(double));
        memset(made.powers[i], 0, (size_t)count * sizeof(int64_t));
    }
    return made;
}

static void wide_compare(wide_pair pair, int count, const char *what,
                         const checked_kernels *kernels) {
    compare_doubles(pair.numbers[0], pair.numbers[1], count, what, kernels);
    compare_exponents(pair.powers[0], pair.powers[1], count, what, kernels);
}

/* Compared with the other tables, and the scalar one with e^x itself. */
static void powers_once(const checked_kernels *kernels, int count, int salt) {
    float *x = random_rows(1, count, count);
    wide_pair to = wide_create(count), values = wide_create(count);
    for (int i = 0; i < count; i++)
        x[i] = (x[i] - 1) * (salt ? 1e4f : 40.0f);
    SCALAR->powers(count, x, 0, to.numbers[0], to.powers[0], values.numbers[0]);
    kernels->powers(count, x, 0, to.numbers[1], to.powers[1], values.numbers[1]);
    wide_compare(to, count, "powers", kernels);
    wide_compare(values, count, "powers' values", kernels);
    for (int i = 0; i < count; i++) {
        const double log_found = log(to.numbers[0][i]) +
                                 (double)to.powers[0][i] * 0.69314718055994531;
        assert_true(fabs(log_found - (double)x[i]) <=
                    1e-12 * fmax(1, fabs((double)x[i])));
        assert_true(fabs(values.numbers[0][i] - exp((double)x[i])) <= 1e-12);
    }
    guarded_finish("powers");
}

CHECK(powers, walk_lengths(kernels, 2, powers_once))

static void blanks_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    const double *blanks = random_mantissas(count), *labels = random_mantissas(count);
    const int64_t *blank_powers = random_exponents(count);
    const int64_t *label_powers = random_exponents(count);
    wide_pair to = wide_create(count);
    SCALAR->ctc_blanks(count, blanks, blank_powers, labels, label_powers, 0.3, -7,
                       to.numbers[0], to.powers[0]);
    kernels->ctc_blanks(count, blanks, blank_powers, labels, label_powers, 0.3, -7,
                        to.numbers[1], to.powers[1]);
    wide_compare(to, count, "ctc_blanks", kernels);
    for (int i = 0; i < count; i++)
        if (blank_powers[i] > -900 && label_powers[i] > -900)
            assert_true(
                fabs(ldexp(to.numbers[0][i], (int)to.powers[0][i]) /
                         (ldexp(0.3, -7) * (ldexp(blanks[i], (int)blank_powers[i]) +
                                            ldexp(labels[i], (int)label_powers[i]))) -
                     1) < 1e-14);
    guarded_finish("ctc_blanks");
}

CHECK(ctc_blanks, walk_lengths(kernels, 3, blanks_once))

static void labels_once(const checked_kernels *kernels, int count, int salt) {
    (void)salt;
    const double *blanks = random_mantissas(count), *labels = random_mantissas(count + 1);
    const int64_t *blank_powers = random_exponents(count);
    const int64_t *label_powers = random_exponents(count + 1);
    const double *mantissas = random_mantissas(count);
    const int64_t *exponents = random_exponents(count);
    int64_t *skips = random_exponents(count);
    for (int i = 0; i < count; i++)
        skips[i] = i % 3 ? 0 : CTC_NEVER;
    wide_pair to = wide_create(count);
    SCALAR->ctc_labels(count, blanks, blank_powers, labels, label_powers, skips,
                       mantissas, exponents, to.numbers[0], to.powers[0]);
    kernels->ctc_labels(count, blanks, blank_powers, labels, label_powers, skips,
                        mantissas, exponents, to.numbers[1], to.powers[1]);
    wide_compare(to, count, "ctc_labels", kernels);
    guarded_finish("ctc_labels");
}

CHECK(ctc_labels, walk_lengths(kernels, 3, labels_once))

static void meet_once(const checked_kernels *kernels, int count, int salt) {
    const double *ahead = random_mantissas(count), *behind = random_mantissas(count);
    const int64_t *ahead_powers = random_exponents(count);
    const int64_t *behind_powers = random_exponents(count);
    const int64_t *exponents = NULL;
    if (salt) {
        int64_t *small = random_exponents(count);
        for (int i = 0; i < count; i++)
            small[i] = -draw_below(50);
        exponents = small;
    }
    wide_pair to = wide_create(count);
    SCALAR->ctc_meet(count, ahead, ahead_powers, behind, behind_powers, exponents, -3,
                     to.numbers[0]);
    kernels->ctc_meet(count, ahead, ahead_powers, behind, behind_powers, exponents, -3,
                      to.numbers[1]);
    wide_compare(to, count, "ctc_meet", kernels);
    guarded_finish("ctc_meet");
}

CHECK(ctc_meet, walk_lengths(kernels, 2, meet_once))

int main(void) {
    const struct CMUnitTest tests[] = {KERNEL_LIST(KERNEL_TEST)};
    return cmocka_run_group_tests_name("kernels of the models", tests, NULL, NULL);
}
