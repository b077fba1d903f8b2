#include "nn/linear.h"

#include "nn/rows.h"

int64_t linear_scratch(const linear *layer, int64_t rows) {
    return layer->weight.half && rows > FEW_ROWS ? layer->inputs * layer->outputs : 0;
}

void linear_forward_then(const crew *by, const linear *layer, int64_t rows,
                         const_matrix x, matrix y, epilogue then, float *scratch) {
    const nn_tensor *weight = &layer->weight;
    if (rows <= FEW_ROWS) {
        matmul_few(by, rows, layer->inputs, layer->outputs, x, weight->data, weight->half,
                   NULL, y);
        if (then.run && rows > 0)
            then.run(then.shared, by, 0, rows, 0, layer->outputs);
        return;
    }
    const float *w = weight->data;
    if (weight->half) {
        widen_halves(by, layer->inputs * layer->outputs, weight->data, scratch);
        w = scratch;
    }
    matmul_forward(by, rows, layer->inputs, layer->outputs, x,
                   (const_matrix){w, layer->inputs}, false, y, then);
}

typedef struct {
    const float *bias;
    matrix y;
} biased;

static void add_bias(const void *shared, const crew *by, int64_t first, int64_t count,
                     int64_t left, int64_t width) {
    const biased *b = shared;
    for (int64_t row = first; row < first + count; row++)
        by->rows->add(width, b->bias + left, b->y.data + row * b->y.stride + left);
}

void linear_forward(const crew *by, const linear *layer, int64_t rows, const_matrix x,
                    matrix y, float *scratch) {
    biased b = {layer->bias.data, y};
    epilogue then = {.run = layer->bias.data ? add_bias : NULL, .shared = &b};
    linear_forward_then(by, layer, rows, x, y, then, scratch);
}

void linear_backward(const crew *by, const linear *layer, int64_t rows, const_matrix x,
                     const_matrix dy, matrix dx) {
    matmul_weights(by, rows, layer->inputs, layer->outputs, dy, x,
                   (matrix){layer->weight.gradient, layer->inputs}, layer->bias.gradient);
    if (dx.data)
        matmul_data(by, rows, layer->inputs, layer->outputs, dy,
                    (const_matrix){layer->weight.data, layer->inputs}, false, dx,
                    (epilogue){0});
}
