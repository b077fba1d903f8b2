#include "models/nn/linear.h"

#include "models/nn/rows.h"

int64_t sh_linear_scratch(const linear *layer, int64_t rows) {
    return layer->weight.half && rows > FEW_ROWS ? layer->inputs * layer->outputs : 0;
}

void sh_linear_forward_then(const crew *by, const linear *layer, int64_t rows,
                            const_matrix x, matrix y, epilogue then, float *scratch) {
    const nn_tensor *weight = &layer->weight;
    if (rows <= FEW_ROWS) {
        sh_matmul_few(by, rows, layer->inputs, layer->outputs, x, weight->data,
                      weight->half, NULL, y);
        if (then.run && rows > 0)
            then.run(then.shared, by, 0, rows, 0, layer->outputs);
        return;
    }
    const float *w = weight->data;
    if (weight->half) {
        sh_widen_halves(by, layer->inputs * layer->outputs, weight->data, scratch);
        w = scratch;
    }
    sh_matmul_forward(by, rows, layer->inputs, layer->outputs, x,
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

void sh_linear_forward(const crew *by, const linear *layer, int64_t rows, const_matrix x,
                       matrix y, float *scratch) {
    biased b = {layer->bias.data, y};
    epilogue then = {.run = layer->bias.data ? add_bias : NULL, .shared = &b};
    sh_linear_forward_then(by, layer, rows, x, y, then, scratch);
}

void sh_linear_backward(const crew *by, const linear *layer, int64_t rows, const_matrix x,
                        const_matrix dy, matrix dx) {
    sh_matmul_weights(by, rows, layer->inputs, layer->outputs, dy, x,
                      (matrix){layer->weight.gradient, layer->inputs},
                      layer->bias.gradient);
    if (dx.data)
        sh_matmul_data(by, rows, layer->inputs, layer->outputs, dy,
                       (const_matrix){layer->weight.data, layer->inputs}, false, dx,
                       (epilogue){0});
}
