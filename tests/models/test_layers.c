/* Single layers: activations, half precision, products, norms, dropout, convolutions,
   with the scalar kernels and the best. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "kernels/half.h"
#include "models/nn/layers.h"
#include "models/nn/packed.h"

#include "nn_support.h"
#include "support.h"

static float *random_floats(int64_t count, uint64_t stream) {
    float *x = malloc(sizeof *x * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)test_normal(test_hash(7, stream, (uint64_t)i));
    return x;
}

static double *doubles(const float *x, int64_t count) {
    double *y = test_memory(count, sizeof *y);
    for (int64_t i = 0; i < count; i++)
        y[i] = (double)x[i];
    return y;
}

static void close_to(double got, double wanted, double tolerance, const char *what) {
    if (!(fabs(got - wanted) <= tolerance))
        fail_msg("%s is %.9g, should be %.9g", what, got, wanted);
}

static void all_close_to(const float *got, const double *wanted, int64_t count,
                         double tolerance, const char *what) {
    for (int64_t i = 0; i < count; i++)
        close_to((double)got[i], wanted[i], tolerance, what);
}

/* Runs a check with the scalar kernels and with the best. */
static void with_both(void (*check)(shoal_context *context)) {
    const char *const sets[] = {"scalar", NULL};
    for (int64_t i = 0; i < COUNT_OF(sets); i++) {
        shoal_context *context = test_context(sets[i], 2);
        assert_int_equal(sh_products_hold(context), SHOAL_OK);
        check(context);
        sh_products_drop(context);
        shoal_context_destroy(context);
    }
}

/* ---- Activations ------------------------------------------------------------------ */

static void check_gelu(shoal_context *context) {
    enum { COUNT = 40001 };
    float *x = random_floats(COUNT, 1), *y = random_floats(COUNT, 2);
    float *ones = random_floats(COUNT, 3), *dx = random_floats(COUNT, 4);
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(i - COUNT / 2) * 1e-3f; /* -20 .. 20 */
        ones[i] = 1;
    }
    activate(context, ACTIVATION_GELU, COUNT, x, y);
    sh_activation_backward(context, ACTIVATION_GELU, COUNT, x, ones, dx);
    for (int i = 0; i < COUNT; i++) {
        double at = (double)x[i], gelu = exact_activation(SHOAL_ACTIVATION_GELU, at);
        close_to((double)y[i], gelu, 2e-7 * fmax(1, fabs(at)), "gelu");
        close_to((double)dx[i], exact_activation_slope(SHOAL_ACTIVATION_GELU, at), 4e-7,
                 "the slope of gelu");
        if (at < 0 && at > -8) /* the small tail has a small relative error */
            close_to((double)y[i], gelu, 1e-5 * fabs(gelu), "gelu's tail");
    }
    free(x), free(y), free(ones), free(dx);
}

static void gelu_is_exact(void **state) {
    with_both(check_gelu);
}

/* ---- Half precision --------------------------------------------------------------- */

static double half_value(uint16_t half) {
    int exponent = (half >> 10) & 31, fraction = half & 1023;
    double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -size : size;
}

static void halves_convert_exactly(void **state) {
    for (int i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i;
        float value = half_to_float(half);
        if ((half & 0x7c00) == 0x7c00) {
            assert_true((half & 1023) ? isnan(value) : isinf(value));
            assert_int_equal(!!signbit(value), half >> 15);
            if (!(half & 1023))
                assert_int_equal(half_from_float(value), half);
            continue;
        }
        assert_true((double)value == half_value(half));
        assert_int_equal(half_from_float(value), half);
        /* Halfway to the next is rounded to even; slightly beyond is rounded up. */
        if ((half & 0x7fff) < 0x7bff) {
            double middle = (half_value(half) + half_value((uint16_t)(half + 1))) / 2;
            assert_int_equal(half_from_float((float)middle), half + (half & 1));
            double beyond = middle * (1 + 1e-6);
            assert_int_equal(half_from_float((float)beyond), half + 1);
        }
    }
    assert_int_equal(half_from_float(65519.0f), 0x7bff);
    assert_int_equal(half_from_float(65520.0f), 0x7c00);
    assert_true((half_from_float(NAN) & 0x7fff) > 0x7c00);
    assert_int_equal(half_from_float(1e-9f), 0);
}

static void check_widening(shoal_context *context) {
    uint16_t *halves = malloc(sizeof *halves * 65536);
    float *wide = malloc(sizeof *wide * 65536);
    for (int i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    sh_widen_halves(context, 65536, halves, wide);
    for (int i = 0; i < 65536; i++)
        assert_true(isnan(wide[i]) ? isnan(half_to_float(halves[i]))
                                   : wide[i] == half_to_float(halves[i]));
    free(halves), free(wide);
}

static void halves_widen_exactly(void **state) {
    with_both(check_widening);
}

/* ---- Products --------------------------------------------------------------------- */

static void check_linear(const shoal_context *context, int64_t rows, int64_t inputs,
                         int64_t outputs, bool half) {
    float *x = random_floats(rows * inputs, 1), *w = random_floats(outputs * inputs, 2);
    float *b = random_floats(outputs, 3), *y = random_floats(rows * outputs, 4);
    float *scratch = malloc(sizeof(float) * (size_t)(inputs * outputs));
    uint16_t *halves = malloc(sizeof *halves * (size_t)(inputs * outputs));
    for (int64_t i = 0; i < inputs * outputs; i++) {
        halves[i] = half_from_float(w[i]);
        w[i] = half ? half_to_float(halves[i]) : w[i];
    }
    linear layer = {inputs,
                    outputs,
                    {.data = half ? (void *)halves : w, .half = half},
                    {.data = b}};
    assert_true(sh_linear_scratch(&layer, rows) <= inputs * outputs);
    sh_linear_forward(context, &layer, rows, (const_matrix){x, inputs},
                      (matrix){y, outputs}, scratch);
    double *from = doubles(x, rows * inputs), *weight = doubles(w, outputs * inputs);
    double *bias = doubles(b, outputs), *wanted = doubles(y, rows * outputs);
    exact_linear(&(exact_part){inputs, outputs, weight, bias, NULL, NULL}, rows, from,
                 wanted);
    all_close_to(y, wanted, rows * outputs, 2e-6 * (double)(inputs + 4), "y");
    free(x), free(w), free(b), free(y), free(scratch), free(halves);
    free(from), free(weight), free(bias), free(wanted);
}

static void check_products(shoal_context *context) {
    const int64_t sizes[][3] = {{0, 3, 2},    {1, 1, 1},    {3, 300, 67},
                                {8, 257, 65}, {9, 31, 130}, {131, 17, 1100}};
    for (int64_t i = 0; i < COUNT_OF(sizes); i++)
        for (int half = 0; half < 2; half++)
            check_linear(context, sizes[i][0], sizes[i][1], sizes[i][2], half != 0);
}

/* A packed weight: every number of rows of a panel, and more than a task's; the same
   bits whichever rows are beside. */
static void check_packed_linear(shoal_context *context) {
    const int64_t counts[] = {0, 1, 2, 3, 5, 8, 9, 12, 13, 95, 96, 97, 240, 401};
    enum { INPUTS = 37, OUTPUTS = 96, MOST = 401 };
    float *x = random_floats(MOST * INPUTS, 1), *w = random_floats(OUTPUTS * INPUTS, 2);
    float *b = random_floats(OUTPUTS, 3), *blocks = calloc(OUTPUTS * INPUTS, sizeof *w);
    float *scratch = malloc((size_t)sh_panel_scratch(context, INPUTS) * sizeof *scratch);
    double *from = doubles(x, MOST * INPUTS), *weight = doubles(w, OUTPUTS * INPUTS);
    double *bias = doubles(b, OUTPUTS), *wanted = calloc(MOST * OUTPUTS, sizeof *wanted);
    for (int64_t row = 0; row < OUTPUTS; row++)
        sh_packed_put(PACKED_FLOATS, INPUTS, row, w + row * INPUTS, blocks);
    const linear layer = {INPUTS, OUTPUTS, {.data = blocks, .packed = true}, {.data = b}};
    exact_linear(&(exact_part){INPUTS, OUTPUTS, weight, bias, NULL, NULL}, MOST, from,
                 wanted);
    float *all = random_floats(MOST * OUTPUTS, 4);
    sh_linear_forward(context, &layer, MOST, (const_matrix){x, INPUTS},
                      (matrix){all, OUTPUTS}, scratch);
    for (int64_t i = 0; i < COUNT_OF(counts); i++) {
        float *y = random_floats(MOST * OUTPUTS, 5);
        sh_linear_forward(context, &layer, counts[i], (const_matrix){x, INPUTS},
                          (matrix){y, OUTPUTS}, scratch);
        all_close_to(y, wanted, counts[i] * OUTPUTS, 2e-6 * (INPUTS + 4), "y");
        assert_memory_equal(y, all, (size_t)(counts[i] * OUTPUTS) * sizeof *y);
        free(y);
    }
    free(x), free(w), free(b), free(blocks), free(scratch), free(all);
    free(from), free(weight), free(bias), free(wanted);
}

static void packed_products_are_right(void **state) {
    with_both(check_packed_linear);
}

static void products_are_right_for_floats_and_halves(void **state) {
    with_both(check_products);
}

/* dx and dW are adjoint: <dy, x W'> has the gradients dy W and dy' x. */
static void check_linear_backward(shoal_context *context) {
    enum { ROWS = 150, INPUTS = 391, OUTPUTS = 101 };
    float *x = random_floats(ROWS * INPUTS, 1), *w = random_floats(OUTPUTS * INPUTS, 2);
    float *dy = random_floats(ROWS * OUTPUTS, 3), *dx = random_floats(ROWS * INPUTS, 4);
    float *dw = random_floats(OUTPUTS * INPUTS, 5), *db = random_floats(OUTPUTS, 6);
    double *from = doubles(x, ROWS * INPUTS), *weight = doubles(w, OUTPUTS * INPUTS);
    double *slope = doubles(dy, ROWS * OUTPUTS), *dbias = doubles(db, OUTPUTS);
    double *dweight = doubles(dw, OUTPUTS * INPUTS);
    double *dfrom = test_memory(ROWS * INPUTS, sizeof *dfrom);
    exact_part part = {INPUTS, OUTPUTS, weight, NULL, dweight, dbias};
    linear layer = {INPUTS, OUTPUTS, {.data = w, .gradient = dw}, {.gradient = db}};
    sh_linear_backward(context, &layer, ROWS, (const_matrix){x, INPUTS},
                       (const_matrix){dy, OUTPUTS}, (matrix){dx, INPUTS});
    exact_linear_gradient(&part, ROWS, from, slope, dfrom);
    all_close_to(dx, dfrom, ROWS * INPUTS, 2e-4, "dx");
    all_close_to(dw, dweight, OUTPUTS * INPUTS, 2e-4, "dW");
    all_close_to(db, dbias, OUTPUTS, 2e-4, "db");
    free(x), free(w), free(dy), free(dx), free(dw), free(db);
    free(from), free(weight), free(slope), free(dbias), free(dweight), free(dfrom);
}

static void gradients_of_products_are_added(void **state) {
    with_both(check_linear_backward);
}

/* ---- Norm ------------------------------------------------------------------------- */

static void check_norm(shoal_context *context) {
    for (int64_t size = 1; size < 70; size += 17) {
        const int64_t rows = 67;
        float *x = random_floats(rows * size, 1), *y = random_floats(rows * size, 2);
        float *scale = random_floats(size, 3), *shift = random_floats(size, 4);
        float *statistics = random_floats(2 * rows, 5);
        for (int64_t i = 0; i < rows * size; i++)
            x[i] += 100; /* a mean far from 0 must not reduce the accuracy of the
                            variance */
        layer_norm norm = {size, {.data = scale}, {.data = shift}, 1e-5f};
        sh_norm_forward(context, &norm, rows, x, y, statistics);
        double *from = doubles(x, rows * size), *wanted = doubles(y, rows * size);
        double *by_scale = doubles(scale, size), *by_shift = doubles(shift, size);
        exact_norm(&(exact_part){0, size, by_scale, by_shift, NULL, NULL}, 1e-5, rows,
                   from, wanted);
        all_close_to(y, wanted, rows * size, 1e-4, "norm");
        for (int64_t r = 0; r < rows; r++) {
            double mean = 0;
            for (int64_t i = 0; i < size; i++)
                mean += from[r * size + i] / (double)size;
            close_to((double)statistics[2 * r], mean, 1e-4, "mean");
        }
        free(x), free(y), free(scale), free(shift), free(statistics);
        free(from), free(wanted), free(by_scale), free(by_shift);
    }
}

/* More rows than one block of the sums over them. */
static void check_norm_backward(shoal_context *context) {
    enum { ROWS = 600, SIZE = 21 };
    float *x = random_floats(ROWS * SIZE, 1), *y = random_floats(ROWS * SIZE, 2);
    float *dy = random_floats(ROWS * SIZE, 3), *dx = random_floats(ROWS * SIZE, 4);
    float *scale = random_floats(SIZE, 5), *shift = random_floats(SIZE, 6);
    float *dscale = calloc(SIZE, sizeof *dscale), *dshift = calloc(SIZE, sizeof *dshift);
    float *statistics = random_floats(2 * ROWS, 7);
    layer_norm norm = {SIZE,
                       {.data = scale, .gradient = dscale},
                       {.data = shift, .gradient = dshift},
                       1e-5f};
    float *scratch = random_floats(sh_norm_scratch(SIZE, ROWS), 8);
    double wanted_scale[SIZE] = {0}, wanted_shift[SIZE] = {0};
    double *from = doubles(x, ROWS * SIZE), *slope = doubles(dy, ROWS * SIZE);
    double *by_scale = doubles(scale, SIZE);
    double *wanted = test_memory(ROWS * SIZE, sizeof *wanted);
    exact_part part = {0, SIZE, by_scale, NULL, wanted_scale, wanted_shift};
    sh_norm_forward(context, &norm, ROWS, x, y, statistics);
    sh_norm_backward(context, &norm, ROWS, x, statistics, dy, NULL, dx, scratch);
    exact_norm_gradient(&part, 1e-5, ROWS, from, slope, wanted);
    all_close_to(dx, wanted, ROWS * SIZE, 2e-5, "dx of a norm");
    all_close_to(dscale, wanted_scale, SIZE, 1e-4, "dscale");
    all_close_to(dshift, wanted_shift, SIZE, 1e-4, "dshift");
    free(x), free(y), free(dy), free(dx), free(scale), free(shift), free(dscale);
    free(dshift), free(statistics), free(scratch);
    free(from), free(slope), free(by_scale), free(wanted);
}

static void norms_are_right(void **state) {
    with_both(check_norm);
    with_both(check_norm_backward);
}

/* ---- Dropout ---------------------------------------------------------------------- */

static void dropout_keeps_the_share_it_should(void **state) {
    enum { ROWS = 400, SIZE = 257 };
    float factors[SIZE], piece[SIZE];
    dropout_mask mask = {.rate = 0.25f, .seed = 1, .step = 2, .site = 3};
    int64_t dropped = 0, same_as_next_step = 0;
    for (int64_t row = 0; row < ROWS; row++) {
        sh_dropout_factors(&mask, row, 0, SIZE, factors);
        sh_dropout_factors(&mask, row, 101, SIZE - 101, piece); /* any part of a row */
        assert_memory_equal(piece, factors + 101, sizeof(float) * (SIZE - 101));
        dropout_mask next = mask;
        next.step++;
        sh_dropout_factors(&next, row, 0, SIZE, piece);
        for (int i = 0; i < SIZE; i++) {
            assert_true(factors[i] == 0 || fabsf(factors[i] - 4 / 3.0f) < 1e-6f);
            dropped += factors[i] == 0;
            same_as_next_step += factors[i] == piece[i];
        }
    }
    const double all = ROWS * SIZE;
    close_to((double)dropped / all, 0.25, 0.006, "the dropped share");
    close_to((double)same_as_next_step / all, 0.625, 0.008, "agreement between steps");
}

/* ---- The layer in double precision ------------------------------------------------ */

enum { LAYER_MODEL = 5, LAYER_WIDE = 7, LAYER_WEIGHTS = LAYER_MODEL * LAYER_WIDE };

/* Row and attention are inputs[0] and [1]; the loss is the sum of dout x out. Every
   weight has its own gradient. */
typedef struct {
    exact_layer *layer;
    double inputs[2][LAYER_MODEL], dinputs[2][LAYER_MODEL], dout[LAYER_MODEL];
    double values[2][EXACT_PARTS][LAYER_WEIGHTS], slopes[2][EXACT_PARTS][LAYER_WEIGHTS];
    float factors[EXACT_DROPS][LAYER_WIDE];
} layer_case;

static void fill_layer(layer_case *c, int variant) {
    exact_layer *layer = c->layer = exact_layer_create(LAYER_MODEL, LAYER_WIDE);
    assert_non_null(layer);
    layer->post_norm = variant & 1;
    layer->activation = variant & 2 ? SHOAL_ACTIVATION_RELU : SHOAL_ACTIVATION_GELU;
    double *numbers[] = {c->inputs[0], c->dout, c->values[0][0]};
    const int64_t counts[] = {2 * LAYER_MODEL, LAYER_MODEL,
                              2 * EXACT_PARTS * LAYER_WEIGHTS};
    for (uint64_t n = 0; n < 3; n++)
        for (int64_t i = 0; i < counts[n]; i++)
            numbers[n][i] =
                test_normal(test_hash(50 + (uint64_t)variant, n, (uint64_t)i));
    for (int part = 0; part < EXACT_PARTS; part++) {
        layer->parts[part].weight = c->values[0][part];
        layer->parts[part].bias = c->values[1][part];
        layer->parts[part].dweight = c->slopes[0][part];
        layer->parts[part].dbias = c->slopes[1][part];
    }
    for (int i = 0; i < EXACT_DROPS * LAYER_WIDE; i++)
        c->factors[i / LAYER_WIDE][i % LAYER_WIDE] = i % 3 ? 1.5f : 0;
    for (int place = 0; place < EXACT_DROPS && variant & 4; place++)
        layer->dropout[place] = c->factors[place];
}

static double layer_loss(const layer_case *c) {
    const double *out = exact_layer_row(c->layer, c->inputs[0], c->inputs[1]);
    double sum = 0;
    for (int i = 0; i < LAYER_MODEL; i++)
        sum += c->dout[i] * out[i];
    return sum;
}

static void compare_slopes(const layer_case *c, double *values, const double *slopes,
                           int64_t count) {
    const double step = 1e-6;
    for (int64_t i = 0; i < count; i++) {
        const double kept = values[i];
        values[i] = kept + step;
        double above = layer_loss(c);
        values[i] = kept - step;
        double below = layer_loss(c);
        values[i] = kept;
        close_to(slopes[i], (above - below) / (2 * step), 1e-6, "an exact slope");
    }
}

/* Its gradients equal central differences, with either order of norms, either
   activation, with and without dropout. */
static void exact_layer_gradients(void **state) {
    for (int variant = 0; variant < 8; variant++) {
        layer_case c = {0};
        fill_layer(&c, variant);
        exact_layer_row_gradient(c.layer, c.inputs[0], c.inputs[1], c.dout, c.dinputs[0],
                                 c.dinputs[1]);
        compare_slopes(&c, c.inputs[0], c.dinputs[0], 2 * LAYER_MODEL);
        for (int part = EXACT_OUTPUT; part < EXACT_PARTS; part++)
            for (int which = 0; which < 2; which++)
                compare_slopes(&c, c.values[which][part], c.slopes[which][part],
                               LAYER_WEIGHTS);
        exact_layer_destroy(c.layer);
    }
}

/* ---- Convolution over time, and its gradients by central differences -------------- */

/* In double precision with the file's order of weights, [outputs][inputs][3]. */
static double conv_at(const conv1d *layer, const float *weight, const float *bias,
                      int64_t length, const float *x, int64_t t, int64_t o) {
    double sum = (double)bias[o];
    for (int64_t tap = 0; tap < CONV_TAPS; tap++) {
        int64_t s = t * layer->stride + tap - 1;
        for (int64_t i = 0; s >= 0 && s < length && i < layer->inputs; i++)
            sum += (double)weight[(o * layer->inputs + i) * CONV_TAPS + tap] *
                   (double)x[s * layer->inputs + i];
    }
    return layer->active ? sum * 0.5 * erfc(-sum / sqrt(2)) : sum;
}

typedef struct {
    conv1d layer;
    int64_t length, rows, weights;
    float *x, *weight, *arranged, *bias, *before, *out, *dout, *dx, *dw, *db;
} conv_case;

static double conv_loss(const conv_case *c) {
    double loss = 0;
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t o = 0; o < c->layer.outputs; o++)
            loss += conv_at(&c->layer, c->weight, c->bias, c->length, c->x, t, o) *
                    (double)c->dout[t * c->layer.outputs + o];
    return loss;
}

static double conv_slope(const conv_case *c, float *element) {
    const float kept = *element, step = 0x1p-8f;
    *element = kept + step;
    double above = conv_loss(c), span = (double)*element;
    *element = kept - step;
    double below = conv_loss(c);
    span -= (double)*element;
    *element = kept;
    return (above - below) / span;
}

static conv_case conv_make(int64_t length, int stride, bool active) {
    conv_case c =
        {.layer = {.inputs = 5, .outputs = 7, .stride = stride, .active = active},
         .length = length};
    c.rows = sh_conv_length(&c.layer, length);
    c.weights = CONV_TAPS * 5 * 7;
    c.x = random_floats(length * 5, 1);
    c.weight = random_floats(c.weights, 2);
    c.arranged = random_floats(c.weights, 3);
    c.bias = random_floats(7, 4);
    c.before = random_floats(c.rows * 7, 5);
    c.out = random_floats(c.rows * 7, 6);
    c.dout = random_floats(c.rows * 7, 7);
    c.dx = random_floats(length * 5, 8);
    c.dw = calloc((size_t)c.weights, sizeof(float));
    c.db = calloc(7, sizeof(float));
    sh_conv_arrange(5, 7, c.weight, false, c.arranged);
    c.layer.weight = (nn_tensor){.data = c.arranged, .gradient = c.dw};
    c.layer.bias = (nn_tensor){.data = c.bias, .gradient = c.db};
    return c;
}

static void check_conv(const shoal_context *context, int64_t length, int stride,
                       bool active) {
    conv_case c = conv_make(length, stride, active);
    const int64_t outputs = c.layer.outputs, inputs = c.layer.inputs;
    sh_conv_forward(context, &c.layer, length, c.x, c.before, c.out);
    for (int64_t t = 0; t < c.rows; t++)
        for (int64_t o = 0; o < outputs; o++)
            close_to((double)c.out[t * outputs + o],
                     conv_at(&c.layer, c.weight, c.bias, length, c.x, t, o), 2e-5,
                     "conv");
    float *dout = malloc(sizeof(float) * (size_t)(c.rows * outputs + 1));
    memcpy(dout, c.dout, sizeof(float) * (size_t)(c.rows * outputs));
    sh_conv_backward(context, &c.layer, length, c.x, c.before, dout, c.dx);
    for (int64_t i = 0; i<length * inputs; i += length> 20 ? 37 : 1)
        close_to((double)c.dx[i], conv_slope(&c, &c.x[i]), 2e-3, "conv dx");
    for (int64_t i = 0; i<c.weights; i += length> 20 ? 11 : 1) {
        int64_t arranged = i % CONV_TAPS * outputs * inputs + i / CONV_TAPS;
        close_to((double)c.dw[arranged], conv_slope(&c, &c.weight[i]),
                 2e-3 * sqrt((double)length + 1), "conv dW");
    }
    for (int64_t o = 0; o < outputs; o++)
        close_to((double)c.db[o], conv_slope(&c, &c.bias[o]),
                 2e-3 * sqrt((double)length + 1), "conv db");
    free(dout), free(c.x), free(c.weight), free(c.arranged), free(c.bias), free(c.before);
    free(c.out), free(c.dout), free(c.dx), free(c.dw), free(c.db);
}

static void check_convolutions(shoal_context *context) {
    const int64_t lengths[] = {0, 1, 2, 3, 7, 8, 131, 260};
    for (int64_t i = 0; i < COUNT_OF(lengths); i++)
        for (int stride = 1; stride <= 2; stride++)
            for (int active = 0; active < 2; active++)
                check_conv(context, lengths[i], stride, active != 0);
}

static void convolutions_and_their_gradients_are_right(void **state) {
    with_both(check_convolutions);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gelu_is_exact),
        cmocka_unit_test(halves_convert_exactly),
        cmocka_unit_test(halves_widen_exactly),
        cmocka_unit_test(products_are_right_for_floats_and_halves),
        cmocka_unit_test(packed_products_are_right),
        cmocka_unit_test(gradients_of_products_are_added),
        cmocka_unit_test(norms_are_right),
        cmocka_unit_test(dropout_keeps_the_share_it_should),
        cmocka_unit_test(exact_layer_gradients),
        cmocka_unit_test(convolutions_and_their_gradients_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
