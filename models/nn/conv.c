#include "models/nn/conv.h"

#include <cblas.h>
#include <string.h>

#include "models/nn/half.h"
#include "models/nn/rows.h"

enum { TIME_BLOCK = 128 }; /* rows of one task */

int64_t sh_conv_length(const conv1d *layer, int64_t length) {
    return ceil_divide(length, layer->stride);
}

void sh_conv_arrange(int64_t inputs, int64_t outputs, const void *weight, bool half,
                     float *arranged) {
    for (int64_t i = 0; i < inputs * outputs; i++)
        for (int64_t tap = 0; tap < CONV_TAPS; tap++) {
            int64_t from = i * CONV_TAPS + tap;
            arranged[tap * inputs * outputs + i] =
                half ? half_to_float(((const uint16_t *)weight)[from])
                     : ((const float *)weight)[from];
        }
}

typedef struct {
    const crew *by;
    const conv1d *layer;
    int64_t length, rows; /* of x, of out */
    const float *x;
    float *sums, *out;
    float *dx;
} conv_call;

/* The first and one past the last row of first .. last - 1 whose row of x for this tap,
   stride t + tap - 1, exists. */
static void live_rows(const conv_call *c, int64_t tap, int64_t *first, int64_t *last) {
    int64_t stride = c->layer->stride;
    if (tap == 0 && *first == 0)
        *first = 1;
    int64_t beyond = ceil_divide(c->length - tap + 1, stride);
    *last = min(*last, beyond);
}

static const float *tap_weight(const conv1d *layer, int64_t tap) {
    return (const float *)layer->weight.data + tap * layer->outputs * layer->inputs;
}

static void forward_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const conv_call *c = shared;
    const conv1d *layer = c->layer;
    const int64_t outputs = layer->outputs, inputs = layer->inputs;
    int64_t begin = task * TIME_BLOCK, end = min(begin + TIME_BLOCK, c->rows);
    /* The middle tap exists for every row and so starts the sums. */
    const int64_t taps[CONV_TAPS] = {1, 0, 2};
    for (int i = 0; i < CONV_TAPS; i++) {
        int64_t first = begin, last = end;
        live_rows(c, taps[i], &first, &last);
        if (last <= first)
            continue;
        const float *x = c->x + (first * layer->stride + taps[i] - 1) * inputs;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)(last - first),
                    (int)outputs, (int)inputs, 1, x, (int)(inputs * layer->stride),
                    tap_weight(layer, taps[i]), (int)inputs, i == 0 ? 0 : 1,
                    c->sums + first * outputs, (int)outputs);
    }
    for (int64_t row = begin; layer->bias.data && row < end; row++)
        c->by->rows->add(outputs, layer->bias.data, c->sums + row * outputs);
    if (layer->active)
        c->by->rows->activate(layer->kind, (end - begin) * outputs,
                              c->sums + begin * outputs, c->out + begin * outputs);
    else if (c->out != c->sums)
        memcpy(c->out + begin * outputs, c->sums + begin * outputs,
               sizeof(float) * (size_t)((end - begin) * outputs));
}

void sh_conv_forward(const crew *by, const conv1d *layer, int64_t length, const float *x,
                     float *before, float *out) {
    conv_call c = {.by = by,
                   .layer = layer,
                   .length = length,
                   .rows = sh_conv_length(layer, length),
                   .x = x,
                   .sums = before ? before : out,
                   .out = out};
    sh_team_run(by->workers, ceil_divide(c.rows, TIME_BLOCK), forward_task, &c);
}

/* dx of rows begin .. end - 1 of x: one gather over the taps, so that tasks do not meet.
   Row s of x is tap s + 1 - stride t of row t. */
static void data_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const conv_call *c = shared;
    const conv1d *layer = c->layer;
    const int64_t outputs = layer->outputs, inputs = layer->inputs,
                  stride = layer->stride;
    int64_t begin = task * TIME_BLOCK, end = min(begin + TIME_BLOCK, c->length);
    memset(c->dx + begin * inputs, 0, sizeof(float) * (size_t)((end - begin) * inputs));
    for (int64_t tap = 0; tap < CONV_TAPS; tap++) {
        /* The first s >= begin with s + 1 - tap a multiple of the stride, and not before
           row 0 of the output. */
        int64_t s = begin;
        while ((s + 1 - tap) % stride != 0 || s + 1 - tap < 0)
            s++;
        int64_t t = (s + 1 - tap) / stride;
        int64_t count = s < end ? min(ceil_divide(end - s, stride), c->rows - t) : 0;
        if (count <= 0)
            continue;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)count, (int)inputs,
                    (int)outputs, 1, c->out + t * outputs, (int)outputs,
                    tap_weight(layer, tap), (int)inputs, 1, c->dx + s * inputs,
                    (int)(inputs * stride));
    }
}

void sh_conv_backward(const crew *by, const conv1d *layer, int64_t length, const float *x,
                      const float *before, float *dout, float *dx) {
    const int64_t outputs = layer->outputs, inputs = layer->inputs;
    conv_call c = {.by = by,
                   .layer = layer,
                   .length = length,
                   .rows = sh_conv_length(layer, length),
                   .x = x,
                   .out = dout,
                   .dx = dx};
    if (layer->active)
        sh_activation_backward(by, layer->kind, c.rows * outputs, before, dout, dout);
    for (int64_t tap = 0; tap < CONV_TAPS; tap++) {
        int64_t first = 0, last = c.rows;
        live_rows(&c, tap, &first, &last);
        if (last <= first)
            continue;
        sh_matmul_weights(by, last - first, inputs, outputs,
                          (const_matrix){dout + first * outputs, outputs},
                          (const_matrix){x + (first * layer->stride + tap - 1) * inputs,
                                         inputs * layer->stride},
                          (matrix){layer->weight.gradient + tap * outputs * inputs,
                                   inputs},
                          tap == 1 ? layer->bias.gradient : NULL);
    }
    if (dx)
        sh_team_run(by->workers, ceil_divide(length, TIME_BLOCK), data_task, &c);
}
