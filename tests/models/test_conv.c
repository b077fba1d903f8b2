/* Convolution over time and its gradients, against the sums in double precision and their
   central differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "models/nn/layers.h"

#include <cmocka.h>

#include "support.h"

static float *random_floats(int64_t count, uint64_t stream) {
    float *x = malloc(sizeof *x * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)test_normal(test_hash(7, stream, (uint64_t)i));
    return x;
}

static void close_to(double got, double wanted, double tolerance, const char *what) {
    if (!(fabs(got - wanted) <= tolerance))
        fail_msg("%s is %.9g, should be %.9g", what, got, wanted);
}

/* In double precision from the file's order of weights, [outputs][inputs][3]. */
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

static void convolutions_and_their_gradients_are_right(void **state) {
    (void)state;
    shoal_context *context = test_context(NULL, 2);
    const int64_t lengths[] = {0, 1, 2, 3, 7, 8, 131, 260};
    for (int64_t i = 0; i < COUNT_OF(lengths); i++)
        for (int stride = 1; stride <= 2; stride++)
            for (int active = 0; active < 2; active++)
                check_conv(context, lengths[i], stride, active != 0);
    shoal_context_destroy(context);
}

int main(void) {
    sh_blas_use_one_thread();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_and_their_gradients_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
