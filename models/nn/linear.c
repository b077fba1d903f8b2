/* The linear layer, and products with weights that are half precision or packed. */
#include "base/memory.h"
#include "kernels/half.h"
#include "models/nn/layers.h"
#include "models/nn/packed.h"
#include "models/nn/quantised.h"

enum { FEW_OUTPUTS = 64, HALF_BLOCK = 1 << 14 };

/* y = x W' where a weight is read as it lies: by a few rows, or packed. */
typedef struct {
    const shoal_context *context;
    const linear *layer;
    int64_t rows;
    const_matrix x;
    matrix y;
    epilogue then;
    void *panels;      /* of rows; see the tasks */
    int64_t row_block; /* rows of a task, of floats */
} layer_product;

static void few_task(void *shared, int64_t task, int thread UNUSED) {
    const layer_product *p = shared;
    const linear *layer = p->layer;
    const bool half = layer->weight.half;
    const size_t element = half ? sizeof(uint16_t) : sizeof(float);
    float sums[FEW_ROWS];
    int64_t last = min((task + 1) * FEW_OUTPUTS, layer->outputs);
    for (int64_t output = task * FEW_OUTPUTS; output < last; output++) {
        const char *w = layer->weight.data;
        p->context->kernels->dots(layer->inputs, p->rows, p->x.data, p->x.stride,
                                  w + element * (size_t)(output * layer->inputs), half,
                                  sums);
        for (int64_t r = 0; r < p->rows; r++)
            p->y.data[r * p->y.stride + output] = sums[r];
    }
}

typedef struct {
    const shoal_context *context;
    int64_t count;
    const uint16_t *halves;
    float *out;
} widening;

static void widen_task(void *shared, int64_t task, int thread UNUSED) {
    const widening *w = shared;
    int64_t first = task * HALF_BLOCK;
    w->context->kernels->widen(min(HALF_BLOCK, w->count - first), w->halves + first,
                               w->out + first);
}

void sh_widen_halves(const shoal_context *context, int64_t count, const uint16_t *halves,
                     float *out) {
    widening w = {context, count, halves, out};
    sh_run_tasks(context, ceil_divide(count, HALF_BLOCK), widen_task, &w);
}

/* ---- Products of bfloat16 ---------------------------------------------------------- */

void sh_bf16_put(int64_t inputs, int64_t output, const float *row, uint32_t *pairs) {
    uint32_t *block = pairs + output / PACKED_OUTPUTS * (inputs / 2) * PACKED_OUTPUTS;
    for (int64_t p = 0; p < inputs / 2; p++)
        block[p * PACKED_OUTPUTS + output % PACKED_OUTPUTS] =
            bfloat_pair(row[2 * p], row[2 * p + 1]);
}

/* Panels: uint32_t [ceil(rows / PACKED_ROWS)][inputs / 2][PACKED_ROWS]. */
enum { PANELS_PER_TASK = 6 };

static void bf16_panel_task(void *shared, int64_t task, int thread UNUSED) {
    const layer_product *p = shared;
    const int64_t first = task * PACKED_ROWS, inputs = p->layer->inputs;
    sh_model_kernels(p->context)
        ->bf16_panel(inputs, (int)min(PACKED_ROWS, p->rows - first),
                     p->x.data + first * p->x.stride, p->x.stride,
                     (uint32_t *)p->panels + first * inputs / 2);
}

/* All outputs of some panels: a block of the weight stays in cache while they pass. */
static void bf16_task(void *shared, int64_t task, int thread UNUSED) {
    const layer_product *p = shared;
    const int64_t pairs = p->layer->inputs / 2, outputs = p->layer->outputs;
    const int64_t first = task * PANELS_PER_TASK * PACKED_ROWS;
    const int64_t end = min(first + PANELS_PER_TASK * PACKED_ROWS, p->rows);
    const uint32_t *w = p->layer->weight.data, *panels = p->panels;
    for (int64_t left = 0; left < outputs; left += PACKED_OUTPUTS)
        for (int64_t row = first; row < end; row += PACKED_ROWS)
            sh_model_kernels(p->context)
                ->bf16_product(pairs, w + left * pairs, panels + row * pairs,
                               (int)min(PACKED_ROWS, end - row),
                               p->y.data + row * p->y.stride + left, p->y.stride);
    if (p->then.run)
        p->then.run(p->then.shared, p->context, first, end - first, 0, outputs);
}

/* ---- Products with packed weights -------------------------------------------------- */

/* Many rows: where BLAS packs both factors in every call, the weight lies packed from the
   beginning, and a task packs its rows once for all outputs. Panels: float [threads]
   [TASK_ROWS][inputs]. */
enum { TASK_ROWS = 8 * PACKED_ROWS };

int64_t sh_panel_scratch(const shoal_context *context, int64_t inputs) {
    return sh_mul_checked(sh_team_of(context).threads * (int64_t)TASK_ROWS, inputs);
}

static void panel_task(void *shared, int64_t task, int thread) {
    const layer_product *p = shared;
    const int64_t inputs = p->layer->inputs, outputs = p->layer->outputs;
    const int64_t first = task * p->row_block, end = min(first + p->row_block, p->rows);
    const float *w = p->layer->weight.data;
    float *panels = (float *)p->panels + thread * TASK_ROWS * inputs;
    for (int64_t row = first; row < end; row += PACKED_ROWS) {
        const int rows = (int)min(PACKED_ROWS, end - row);
        sh_packed_panel(inputs, rows, sh_packed_width(rows),
                        p->x.data + row * p->x.stride, p->x.stride, 1,
                        panels + (row - first) * inputs);
    }
    for (int64_t left = 0; left < outputs; left += PACKED_OUTPUTS)
        for (int64_t row = first; row < end; row += PACKED_ROWS) {
            const int rows = (int)min(PACKED_ROWS, end - row);
            sh_model_kernels(p->context)
                ->packed(inputs, w + left * inputs, PACKED_FLOATS,
                         panels + (row - first) * inputs, sh_packed_width(rows), rows,
                         p->y.data + row * p->y.stride + left, p->y.stride);
        }
    if (p->then.run)
        p->then.run(p->then.shared, p->context, first, end - first, 0, outputs);
}

/* ---- The linear layer ------------------------------------------------------------- */

int64_t sh_linear_scratch(const linear *layer, int64_t rows) {
    if (layer->weight.bf16)
        return ceil_divide(rows, PACKED_ROWS) * PACKED_ROWS * layer->inputs / 2;
    return layer->weight.half && rows > FEW_ROWS ? layer->inputs * layer->outputs : 0;
}

void sh_linear_forward_then(const shoal_context *context, const linear *layer,
                            int64_t rows, const_matrix x, matrix y, epilogue then,
                            float *scratch) {
    const nn_tensor *weight = &layer->weight;
    layer_product of = {context, layer, rows, x, y, then, .panels = scratch};
    if (weight->bf16) {
        const int64_t panels = ceil_divide(rows, PACKED_ROWS);
        sh_run_tasks(context, panels, bf16_panel_task, &of);
        sh_run_tasks(context, ceil_divide(panels, PANELS_PER_TASK), bf16_task, &of);
        return;
    }
    if (weight->int8) {
        sh_int8_forward(context, layer, rows, x, y, then, scratch);
        return;
    }
    if (weight->packed) {
        of.row_block = sh_even_blocks(max(rows, 1), TASK_ROWS, 4, PACKED_ROWS);
        sh_run_tasks(context, ceil_divide(rows, of.row_block), panel_task, &of);
        return;
    }
    if (rows <= FEW_ROWS) {
        if (rows > 0)
            sh_run_tasks(context, ceil_divide(layer->outputs, FEW_OUTPUTS), few_task,
                         &of);
        if (then.run && rows > 0)
            then.run(then.shared, context, 0, rows, 0, layer->outputs);
        return;
    }
    const float *w = weight->data;
    if (weight->half) {
        sh_widen_halves(context, layer->inputs * layer->outputs, weight->data, scratch);
        w = scratch;
    }
    sh_matmul_forward(context, rows, layer->inputs, layer->outputs, x,
                      (const_matrix){w, layer->inputs}, false, y, then);
}

typedef struct {
    const float *bias;
    matrix y;
} biased;

static void add_bias(const void *shared, const shoal_context *context, int64_t first,
                     int64_t count, int64_t left, int64_t width) {
    const biased *b = shared;
    for (int64_t row = first; row < first + count; row++)
        context->kernels->add(width, b->bias + left,
                              b->y.data + row * b->y.stride + left);
}

void sh_linear_forward(const shoal_context *context, const linear *layer, int64_t rows,
                       const_matrix x, matrix y, float *scratch) {
    biased b = {layer->bias.data, y};
    epilogue then = {.run = layer->bias.data ? add_bias : NULL, .shared = &b};
    sh_linear_forward_then(context, layer, rows, x, y, then, scratch);
}

void sh_linear_backward(const shoal_context *context, const linear *layer, int64_t rows,
                        const_matrix x, const_matrix dy, matrix dx) {
    sh_matmul_weights(context, rows, layer->inputs, layer->outputs, dy, x,
                      (matrix){layer->weight.gradient, layer->inputs},
                      layer->bias.gradient);
    if (dx.data)
        sh_matmul_data(context, rows, layer->inputs, layer->outputs, dy,
                       (const_matrix){layer->weight.data, layer->inputs}, false, dx,
                       (epilogue){0});
}
