/* Checks of the kernels between the products of a model, and of CTC's. */
#include <math.h>
#include <string.h>

#include "cases.h"
#include "kernel_checks.h"
#include "kernels/half.h"
#include "support.h"

/* ---- Between the products of a model ---------------------------------------------- */

static const int LENGTHS[] = {0,  1,  2,  3,  7,  8,   9,   15,  16,  17,  31,
                              32, 33, 64, 65, 97, 255, 256, 257, 511, 513, 700};

/* Every length, salts 0 .. salts - 1. */
static void walk_lengths(const kernel_table *table, int salts,
                         void (*compare)(const kernel_table *table, int count,
                                         int salt)) {
    for (int64_t i = 0; i < COUNT_OF(LENGTHS); i++)
        for (int salt = 0; salt < salts; salt++)
            compare(table, LENGTHS[i], salt);
}

/* [1][count], wide enough for the tails of an activation, with odd ones by the salt. */
static float *wide_row(int count, int salt) {
    const float odd[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 1e30f, -1e30f};
    float *x = random_rows(1, count, count);
    for (int i = 0; i < count; i++)
        x[i] *= 16;
    for (int i = 0; i < 8 && count > 0 && salt; i++)
        x[draw_below(count)] = odd[i];
    return x;
}

static void add_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->add(count, x, y.expected);
    table->add(count, x, y.actual);
    compare_bits(y, "add", table);
    guarded_finish("add");
}

CHECK(add, walk_lengths(table, 1, add_once))

static void multiply_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->multiply(count, x, y.expected);
    table->multiply(count, x, y.actual);
    compare_bits(y, "multiply", table);
    guarded_finish("multiply");
}

CHECK(multiply, walk_lengths(table, 1, multiply_once))

static void scale_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float_pair x = pair_create(count);
    SCALAR->scale_by(count, 0.3f, x.expected);
    table->scale_by(count, 0.3f, x.actual);
    compare_bits(x, "scale_by", table);
    guarded_finish("scale_by");
}

CHECK(scale_by, walk_lengths(table, 1, scale_once))

static void lerp_once(const kernel_table *table, int count, int salt) {
    float *x = random_rows(1, count, count);
    float_pair y = pair_create(count);
    SCALAR->lerp(count, salt ? 1 : 0.01f, x, y.expected);
    table->lerp(count, salt ? 1 : 0.01f, x, y.actual);
    compare_bits(y, "lerp", table);
    guarded_finish("lerp");
}

CHECK(lerp, walk_lengths(table, 2, lerp_once))

static void relu_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt);
    float_pair out = pair_create(count);
    SCALAR->relu(count, x, out.expected);
    table->relu(count, x, out.actual);
    pair_compare(out, 0, "relu", table->isa);
    guarded_finish("relu");
}

CHECK(relu, walk_lengths(table, 2, relu_once))

/* Fused multiply-adds are rounded otherwise: some units of what is largest in a sum. */
static void gelu_compare(float_pair values, const float *x, const char *what,
                         const kernel_table *table) {
    for (size_t i = 0; i < values.count; i++)
        pair_compare((float_pair){values.expected + i, values.actual + i, 1},
                     4 * EPSILON * fmaxf(1, fabsf(x[i])), what, table->isa);
}

static void gelu_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt);
    float_pair out = pair_create(count);
    SCALAR->gelu(count, x, out.expected);
    table->gelu(count, x, out.actual);
    gelu_compare(out, x, "gelu", table);
    guarded_finish("gelu");
}

CHECK(gelu, walk_lengths(table, 2, gelu_once))

static void relu_slope_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt % 2);
    float_pair dx = pair_create(count), out = pair_create(count);
    SCALAR->relu_slope(count, x, dx.expected, dx.expected,
                       salt > 1 ? out.expected : NULL);
    table->relu_slope(count, x, dx.actual, dx.actual, salt > 1 ? out.actual : NULL);
    pair_compare(dx, 0, "relu_slope", table->isa);
    pair_compare(out, 0, "relu_slope's out", table->isa);
    guarded_finish("relu_slope");
}

CHECK(relu_slope, walk_lengths(table, 4, relu_slope_once))

static void gelu_slope_once(const kernel_table *table, int count, int salt) {
    float *x = wide_row(count, salt % 2);
    float_pair dx = pair_create(count), out = pair_create(count);
    SCALAR->gelu_slope(count, x, dx.expected, dx.expected,
                       salt > 1 ? out.expected : NULL);
    table->gelu_slope(count, x, dx.actual, dx.actual, salt > 1 ? out.actual : NULL);
    gelu_compare(dx, x, "gelu_slope", table);
    gelu_compare(out, x, "gelu_slope's out", table);
    guarded_finish("gelu_slope");
}

CHECK(gelu_slope, walk_lengths(table, 4, gelu_slope_once))

static void norm_once(const kernel_table *table, int size, int salt) {
    const int count = size ? 1 + salt * 4 : 0;
    float *x = random_rows(count, size, size), *scale = random_rows(1, size, size);
    float *shift = random_rows(1, size, size);
    float_pair y = pair_create(count * size), statistics = pair_create(2 * count);
    SCALAR->norm_rows(count, size, x, scale, shift, 1e-5f, y.expected,
                      salt ? statistics.expected : NULL);
    table->norm_rows(count, size, x, scale, shift, 1e-5f, y.actual,
                     salt ? statistics.actual : NULL);
    compare_bits(y, "norm_rows", table);
    compare_bits(statistics, "norm_rows' statistics", table);
    guarded_finish("norm_rows");
}

CHECK(norm_rows, walk_lengths(table, 2, norm_once))

static void norm_slope_once(const kernel_table *table, int size, int salt) {
    const int count = size ? 1 + salt * 3 : 0;
    float *x = random_rows(count, size, size), *scale = random_rows(1, size, size);
    float *statistics = random_rows(count, 2, 2), *dy = random_rows(count, size, size);
    float *base = salt ? random_rows(count, size, size) : NULL;
    float_pair dx = pair_create(count * size);
    float_pair dscale = pair_create(size), dshift = pair_create(size);
    SCALAR->norm_rows_slope(count, size, x, statistics, scale, dy, base, dx.expected,
                            dscale.expected, dshift.expected);
    table->norm_rows_slope(count, size, x, statistics, scale, dy, base, dx.actual,
                           dscale.actual, dshift.actual);
    compare_bits(dx, "norm_rows_slope", table);
    compare_bits(dscale, "norm_rows_slope's dscale", table);
    compare_bits(dshift, "norm_rows_slope's dshift", table);
    guarded_finish("norm_rows_slope");
}

CHECK(norm_rows_slope, walk_lengths(table, 2, norm_slope_once))

static void column_once(const kernel_table *table, int width, int salt) {
    const int counts[] = {0, 1, 5, 256, 300};
    const int stride = width + salt % 2;
    float *x = random_rows(counts[salt], stride, width);
    float_pair sums = pair_create(width);
    SCALAR->column_sums(counts[salt], width, x, stride, sums.expected);
    table->column_sums(counts[salt], width, x, stride, sums.actual);
    compare_bits(sums, "column_sums", table);
    guarded_finish("column_sums");
}

CHECK(column_sums, walk_lengths(table, 5, column_once))

/* salt 1: the gradient takes the place of the logits; 2: it is not wanted; 3: a NaN. */
static void entropy_once(const kernel_table *table, int classes, int salt) {
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
    table->cross_entropy(classes, x.actual, target, 0.1f, to.actual, loss.actual,
                         &best[1]);
    assert_int_equal(best[0], best[1]);
    pair_compare(loss, 32 * EPSILON, "cross_entropy", table->isa);
    pair_compare(x, EPSILON, "cross_entropy's logits", table->isa);
    pair_compare(gradient, EPSILON, "cross_entropy's gradient", table->isa);
    guarded_finish("cross_entropy");
}

CHECK(cross_entropy, walk_lengths(table, 4, entropy_once))

static uint16_t *random_halves(int count) {
    uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
    for (int i = 0; i < count; i++) /* no infinity, no NaN */
        halves[i] = (uint16_t)(draw() & 0xbbff);
    return halves;
}

static void dots_once(const kernel_table *table, int inputs, int salt) {
    const int rows = salt / 2, stride = inputs + rows % 3, half = salt % 2;
    float *x = random_rows(rows, stride, inputs);
    const void *w = half ? (void *)random_halves(inputs)
                         : (void *)random_rows(1, inputs, inputs);
    float_pair out = pair_create(rows);
    SCALAR->dots(inputs, rows, x, stride, w, half, out.expected);
    table->dots(inputs, rows, x, stride, w, half, out.actual);
    compare_bits(out, "dots", table);
    guarded_finish("dots");
}

CHECK(dots, walk_lengths(table, 18, dots_once))

/* Every half there is, NaN aside to the bit, in an order that leaves ordinary ones for
   the end, which is not a whole vector. */
void check_widen(const kernel_table *table) {
    for (int first = 0; first < 11; first++) {
        const int count = 65536 - first;
        uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
        for (int i = 0; i < count; i++)
            halves[i] = (uint16_t)(first + i * 0x6a5);
        float_pair out = pair_create(count);
        SCALAR->widen(count, halves, out.expected);
        table->widen(count, halves, out.actual);
        pair_compare(out, 0, "widen", table->isa);
        guarded_finish("widen");
    }
}

/* Every half comes back, and what lies between two goes to the nearer. */
void check_narrow(const kernel_table *table) {
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
        table->narrow(COUNT, x, actual);
        bytes_compare(expected, actual, COUNT * sizeof *actual, "narrow", table->isa);
        for (int i = 0; i < COUNT && shift < 0; i++)
            assert_true(half_to_float(actual[i]) == x[i] || fabsf(x[i]) > 65504);
    }
    guarded_finish("narrow");
}

static void packed_once(const kernel_table *table, int inputs, int salt) {
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
    table->packed(inputs, w, form, x, width, rows, y.actual, stride);
    compare_bits(y, "packed", table);
    guarded_finish("packed");
}

CHECK(packed, walk_lengths(table, 45, packed_once))

static uint32_t *random_brains(int64_t count) {
    uint32_t *pairs = guarded_input((size_t)count * sizeof *pairs);
    for (int64_t i = 0; i < count; i++) /* about 1 */
        pairs[i] = ((uint32_t)draw() & 0x80ff80ffu) | 0x3f003f00u;
    return pairs;
}

static void brains_once(const kernel_table *table, int pairs, int salt) {
    const int rows = salt, stride = PACKED_OUTPUTS + salt % 3;
    uint32_t *w = random_brains((int64_t)pairs * PACKED_OUTPUTS);
    uint32_t *x = random_brains((int64_t)pairs * PACKED_ROWS);
    float_pair y = pair_create(rows > 0 ? (rows - 1) * stride + PACKED_OUTPUTS : 0);
    SCALAR->brains(pairs, w, x, rows, y.expected, stride);
    table->brains(pairs, w, x, rows, y.actual, stride);
    pair_compare(y, 1e-4f, "brains", table->isa);
    guarded_finish("brains");
}

CHECK(brains, walk_lengths(table, PACKED_ROWS + 1, brains_once))

static void brain_panel_once(const kernel_table *table, int pairs, int salt) {
    const int rows = salt, inputs = 2 * pairs, stride = inputs + salt % 3;
    float *x = random_rows(rows, stride, inputs);
    float_pair panel = pair_create(pairs * PACKED_ROWS);
    SCALAR->brain_panel(inputs, rows, x, stride, (uint32_t *)(void *)panel.expected);
    table->brain_panel(inputs, rows, x, stride, (uint32_t *)(void *)panel.actual);
    compare_bits(panel, "brain_panel", table);
    for (int p = 0; p < pairs; p++)
        for (int r = 0; r < rows; r++) {
            uint32_t pair;
            memcpy(&pair, panel.actual + p * PACKED_ROWS + r, sizeof pair);
            const float one = x[r * stride + 2 * p], other = x[r * stride + 2 * p + 1];
            assert_true(fabsf(bits_to_float(pair << 16) - one) <= fabsf(one) / 256);
            assert_true(fabsf(bits_to_float(pair & 0xffff0000u) - other) <=
                        fabsf(other) / 256);
        }
    guarded_finish("brain_panel");
}

CHECK(brain_panel, walk_lengths(table, PACKED_ROWS + 1, brain_panel_once))

static void peak_once(const kernel_table *table, int count, int salt) {
    float_pair largest = pair_create(1);
    int64_t who[2];
    double total[2];
    if (count == 0)
        return;
    float *x = random_rows(1, count, count);
    for (int i = 0; i < count; i++)
        x[i] = salt == 1 && i % 3 ? -INFINITY : 30 * x[i];
    if (salt == 2) /* the first of equals */
        x[draw_below(count)] = x[draw_below(count)] = 1000;
    SCALAR->peak(count, x, largest.expected, &who[0], &total[0]);
    table->peak(count, x, largest.actual, &who[1], &total[1]);
    compare_bits(largest, "peak", table);
    assert_int_equal(who[0], who[1]);
    assert_true(x[who[0]] == largest.expected[0]);
    assert_true(fabs(total[0] - total[1]) <= 1e-6 * total[0]);
    guarded_finish("peak");
}

CHECK(peak, walk_lengths(table, 3, peak_once))

static void soften_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float_pair x = pair_create(count), total = pair_create(1);
    SCALAR->soften(count, x.expected, total.expected);
    table->soften(count, x.actual, total.actual);
    pair_compare(x, 8 * EPSILON, "soften", table->isa);
    pair_compare(total, EPSILON * (float)(32 + count), "soften's sum", table->isa);
    guarded_finish("soften");
}

CHECK(soften, walk_lengths(table, 1, soften_once))

/* Floats around every half: itself, halfway to the next, and a little more and less than
   that; NaN and what is too large. */
static float near_a_half(int bfloats, int i) {
    union {
        uint32_t bits;
        float value;
    } pun;
    pun.value = half_to_float((uint16_t)(i / 4));
    if (bfloats)
        pun.bits = (uint32_t)(i / 4) << 16;
    const uint32_t half_way = bfloats ? 0x8000u : 0x1000u;
    const uint32_t more[] = {0, half_way, half_way + 1, half_way - 1};
    pun.bits += more[i % 4];
    return pun.value;
}

static int is_nan_half(uint16_t half, int bfloats) {
    return (half & 0x7fff) > (bfloats ? 0x7f80 : 0x7c00);
}

void check_round_of(const kernel_table *table, int bfloats) {
    for (int first = 0; first < 11; first++) {
        const int count = 4 * 65536 - first;
        float *x = guarded_input((size_t)count * sizeof *x);
        uint16_t *expected = guarded_output((size_t)count * sizeof *expected);
        uint16_t *actual = guarded_output((size_t)count * sizeof *actual);
        for (int i = 0; i < count; i++)
            x[i] = near_a_half(bfloats, (first + i * 0x6a5) % (4 * 65536));
        (bfloats ? SCALAR->round_bfloats : SCALAR->round_halves)(count, x, expected);
        (bfloats ? table->round_bfloats : table->round_halves)(count, x, actual);
        for (int i = 0; i < count; i++)
            if (expected[i] != actual[i] &&
                !(is_nan_half(expected[i], bfloats) && is_nan_half(actual[i], bfloats)))
                fail_msg("%s: %a becomes %#x, not %#x", table->isa, (double)x[i],
                         actual[i], expected[i]);
        guarded_finish("rounding");
    }
}

/* The scalar kernel by its definition: no half is nearer, and of two as near it is the
   even one. */
void check_nearest_half(float x, int bfloats) {
    uint16_t half;
    (bfloats ? SCALAR->round_bfloats : SCALAR->round_halves)(1, &x, &half);
    if (isnan(x)) {
        assert_true(is_nan_half(half, bfloats));
        return;
    }
    float near[3];
    const uint16_t some[3] = {half, (uint16_t)(half - 1), (uint16_t)(half + 1)};
    (bfloats ? SCALAR->widen_bfloats : SCALAR->widen)(3, some, near);
    const double largest = bfloats ? 0x1.ffp127 : 65520.0;
    if (isinf(near[0])) {
        assert_true(fabs((double)x) >= largest && signbit(x) == signbit(near[0]));
        return;
    }
    assert_true(signbit(x) == signbit(near[0]));
    const double error = fabs((double)x - (double)near[0]);
    for (int i = 1; i < 3; i++) {
        const double other = fabs((double)x - (double)near[i]);
        if ((some[i] ^ half) & 0x8000 || isnan(near[i]) || isinf(near[i]))
            continue;
        assert_true(error < other || (error == other && half % 2 == 0));
    }
}

void scalar_halves_are_the_nearest(void **state) {
    for (int i = 0; i < 4 * 65536; i++)
        for (int bfloats = 0; bfloats < 2; bfloats++)
            check_nearest_half(near_a_half(bfloats, i), bfloats);
}

CHECK(round_halves, check_round_of(table, 0))
CHECK(round_bfloats, check_round_of(table, 1))

void check_widen_bfloats(const kernel_table *table) {
    for (int first = 0; first < 11; first++) {
        const int count = 65536 - first;
        uint16_t *halves = guarded_input((size_t)count * sizeof *halves);
        for (int i = 0; i < count; i++)
            halves[i] = (uint16_t)(first + i * 0x6a5);
        float *out = guarded_output((size_t)count * sizeof *out);
        table->widen_bfloats(count, halves, out);
        for (int i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &out[i], sizeof bits);
            assert_true(bits == (uint32_t)halves[i] << 16);
        }
        guarded_finish("widen_bfloats");
    }
}

static void adam_once(const kernel_table *table, int count, int salt) {
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
    table->adam(count, &how, gradient, first.actual, second.actual, values.actual);
    compare_bits(first, "adam's first moment", table);
    compare_bits(second, "adam's second moment", table);
    compare_bits(values, "adam", table);
    guarded_finish("adam");
}

CHECK(adam, walk_lengths(table, 4, adam_once))

static void squares_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    float *x = random_rows(1, count, count);
    double expected, actual;
    SCALAR->sum_squares(count, x, &expected);
    table->sum_squares(count, x, &actual);
    bytes_compare(&expected, &actual, sizeof actual, "sum_squares", table->isa);
    guarded_finish("sum_squares");
}

CHECK(sum_squares, walk_lengths(table, 1, squares_once))

/* ---- CTC -------------------------------------------------------------------------- */

static double *random_mantissas(int count) {
    double *x = guarded_input((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = 1.5 + 0.49 * (double)draw_uniform();
    return x;
}

/* Some near each other, some far apart, some of what cannot be. */
static int64_t *random_exponents(int count) {
    int64_t *x = guarded_input((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = draw_below(5) == 0   ? CTC_NEVER
               : draw_below(5) == 0 ? -draw_below(100000)
                                    : -draw_below(60);
    return x;
}

static void compare_doubles(const double *expected, const double *actual, int count,
                            const char *what, const kernel_table *table) {
    bytes_compare(expected, actual, (size_t)count * sizeof *expected, what, table->isa);
}

static void compare_exponents(const int64_t *expected, const int64_t *actual, int count,
                              const char *what, const kernel_table *table) {
    bytes_compare(expected, actual, (size_t)count * sizeof *expected, what, table->isa);
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
                         const kernel_table *table) {
    compare_doubles(pair.numbers[0], pair.numbers[1], count, what, table);
    compare_exponents(pair.powers[0], pair.powers[1], count, what, table);
}

/* Against the other tables, and the scalar one against e^x itself. */
static void powers_once(const kernel_table *table, int count, int salt) {
    float *x = random_rows(1, count, count);
    wide_pair to = wide_create(count), values = wide_create(count);
    for (int i = 0; i < count; i++)
        x[i] = (x[i] - 1) * (salt ? 1e4f : 40.0f);
    SCALAR->powers(count, x, 0, to.numbers[0], to.powers[0], values.numbers[0]);
    table->powers(count, x, 0, to.numbers[1], to.powers[1], values.numbers[1]);
    wide_compare(to, count, "powers", table);
    wide_compare(values, count, "powers' values", table);
    for (int i = 0; i < count; i++) {
        const double log_found = log(to.numbers[0][i]) +
                                 (double)to.powers[0][i] * 0.69314718055994531;
        assert_true(fabs(log_found - (double)x[i]) <=
                    1e-12 * fmax(1, fabs((double)x[i])));
        assert_true(fabs(values.numbers[0][i] - exp((double)x[i])) <= 1e-12);
    }
    guarded_finish("powers");
}

CHECK(powers, walk_lengths(table, 2, powers_once))

static void blanks_once(const kernel_table *table, int count, int salt) {
    (void)salt;
    const double *blanks = random_mantissas(count), *labels = random_mantissas(count);
    const int64_t *blank_powers = random_exponents(count);
    const int64_t *label_powers = random_exponents(count);
    wide_pair to = wide_create(count);
    SCALAR->ctc_blanks(count, blanks, blank_powers, labels, label_powers, 0.3, -7,
                       to.numbers[0], to.powers[0]);
    table->ctc_blanks(count, blanks, blank_powers, labels, label_powers, 0.3, -7,
                      to.numbers[1], to.powers[1]);
    wide_compare(to, count, "ctc_blanks", table);
    for (int i = 0; i < count; i++)
        if (blank_powers[i] > -900 && label_powers[i] > -900)
            assert_true(
                fabs(ldexp(to.numbers[0][i], (int)to.powers[0][i]) /
                         (ldexp(0.3, -7) * (ldexp(blanks[i], (int)blank_powers[i]) +
                                            ldexp(labels[i], (int)label_powers[i]))) -
                     1) < 1e-14);
    guarded_finish("ctc_blanks");
}

CHECK(ctc_blanks, walk_lengths(table, 3, blanks_once))

static void labels_once(const kernel_table *table, int count, int salt) {
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
    table->ctc_labels(count, blanks, blank_powers, labels, label_powers, skips, mantissas,
                      exponents, to.numbers[1], to.powers[1]);
    wide_compare(to, count, "ctc_labels", table);
    guarded_finish("ctc_labels");
}

CHECK(ctc_labels, walk_lengths(table, 3, labels_once))

static void meet_once(const kernel_table *table, int count, int salt) {
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
    table->ctc_meet(count, ahead, ahead_powers, behind, behind_powers, exponents, -3,
                    to.numbers[1]);
    wide_compare(to, count, "ctc_meet", table);
    guarded_finish("ctc_meet");
}

CHECK(ctc_meet, walk_lengths(table, 2, meet_once))
