#include "models/nn/packed.h"

#include <string.h>

#include "base/memory.h"
#include "kernels/half.h"
#include "models/nn/quantised.h"

int64_t sh_packed_block(packed_form form, int64_t inputs) {
    if (form == PACKED_INT8)
        return sh_int8_block(inputs);
    const int64_t all = inputs * PACKED_OUTPUTS;
    return form == PACKED_FLOATS ? all * (int64_t)sizeof(float)
           : form == PACKED_HALVES
               ? all * (int64_t)sizeof(uint16_t)
               : inputs / PACKED_GROUP * (int64_t)sizeof(packed_group);
}

int64_t sh_packed_bytes(packed_form form, int64_t inputs, int64_t outputs) {
    return ceil_divide(outputs, PACKED_OUTPUTS) * sh_packed_block(form, inputs);
}

static void *block_of(packed_form form, int64_t inputs, int64_t output, void *blocks) {
    return (char *)blocks + output / PACKED_OUTPUTS * sh_packed_block(form, inputs);
}

void sh_packed_put(packed_form form, int64_t inputs, int64_t output, const void *row,
                   void *blocks) {
    void *block = block_of(form, inputs, output, blocks);
    const int64_t lane = output % PACKED_OUTPUTS;
    if (form == PACKED_HALVES)
        for (int64_t i = 0; i < inputs; i++)
            memcpy((uint16_t *)block + i * PACKED_OUTPUTS + lane,
                   (const char *)row + i * (int64_t)sizeof(uint16_t), sizeof(uint16_t));
    else
        for (int64_t i = 0; i < inputs; i++)
            ((float *)block)[i * PACKED_OUTPUTS + lane] = ((const float *)row)[i];
}

void sh_packed_put_group(int64_t inputs, int64_t output, int64_t group,
                         const int8_t *bytes, uint16_t scale, uint16_t shift,
                         void *blocks) {
    packed_group *to = block_of(PACKED_BYTES, inputs, output, blocks);
    const int64_t lane = output % PACKED_OUTPUTS;
    to[group].scale[lane] = scale;
    to[group].shift[lane] = shift;
    for (int i = 0; i < PACKED_GROUP; i++)
        to[group].bytes[i][lane] = bytes[i];
}

void sh_packed_get(const packed_linear *layer, int64_t output, float *row) {
    if (layer->form == PACKED_INT8) {
        sh_int8_get(layer->inputs, layer->blocks, output, layer->factors, row);
        return;
    }
    const int64_t lane = output % PACKED_OUTPUTS;
    const void *block = (const char *)layer->blocks +
                        output / PACKED_OUTPUTS *
                            sh_packed_block(layer->form, layer->inputs);
    const packed_group *groups = block;
    for (int64_t i = 0; i < layer->inputs; i++) {
        const packed_group *group = groups + i / PACKED_GROUP;
        const int64_t at = i * PACKED_OUTPUTS + lane;
        if (layer->form == PACKED_FLOATS)
            row[i] = ((const float *)block)[at];
        else if (layer->form == PACKED_HALVES)
            row[i] = half_to_float(((const uint16_t *)block)[at]);
        else
            row[i] = (float)group->bytes[i % PACKED_GROUP][lane] *
                         half_to_float(group->scale[lane]) +
                     half_to_float(group->shift[lane]);
    }
}

/* ---- Panels ------------------------------------------------------------------------ */

int sh_packed_width(int64_t rows) {
    return rows <= 2 ? (int)rows : rows <= 4 ? 4 : rows <= 8 ? 8 : PACKED_ROWS;
}

int64_t sh_packed_scratch(int64_t rows, int64_t inputs) {
    return sh_mul_checked(ceil_divide(rows, PACKED_ROWS) * PACKED_ROWS, inputs);
}

typedef float four __attribute__((vector_size(16), aligned(4), may_alias));

/* Four inputs of four rows, times `scale`, from rows to columns. */
static void turn_four(const float *x, int64_t stride, int width, float scale,
                      float *panel) {
    const four a = *(const four *)x * scale, b = *(const four *)(x + stride) * scale;
    const four c = *(const four *)(x + 2 * stride) * scale;
    const four d = *(const four *)(x + 3 * stride) * scale;
    const four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const four ab_end = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const four cd_end = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(four *)panel = __builtin_shufflevector(ab, cd, 0, 1, 4, 5);
    *(four *)(panel + width) = __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
    *(four *)(panel + 2 * width) = __builtin_shufflevector(ab_end, cd_end, 0, 1, 4, 5);
    *(four *)(panel + 3 * width) = __builtin_shufflevector(ab_end, cd_end, 2, 3, 6, 7);
}

void sh_packed_panel(int64_t inputs, int rows, int width, const float *x, int64_t stride,
                     float scale, float *panel) {
    const int64_t fours = rows == width && width % 4 == 0 ? inputs / 4 * 4 : 0;
    for (int64_t i = 0; i < fours; i += 4)
        for (int r = 0; r < width; r += 4)
            turn_four(x + r * stride + i, stride, width, scale, panel + i * width + r);
    /* The other inputs, one by one. */
    enum { TOGETHER = 16 }; /* inputs whose lines stay in cache while the rows pass */
    for (int64_t at = fours; at < inputs; at += TOGETHER)
        for (int r = 0; r < width; r++)
            for (int64_t i = at; i < min(at + TOGETHER, inputs); i++)
                panel[i * width + r] = r < rows ? scale * x[r * stride + i] : 0;
}

/* ---- Products ---------------------------------------------------------------------- */

typedef struct {
    const shoal_context *context;
    const packed_linear *layer;
    int64_t rows;
    const_matrix x;
    matrix y;
    packed_then then;
    float *panels; /* one after another, PACKED_ROWS rows each; or rows as bytes */
} packed_product;

enum {
    BLOCKS_PER_TASK = 4, /* of outputs */
    FEW_PANELS = 4       /* which are not worth more than one thread */
};

/* In place of panels, rows of bytes, and then their scales: less than a row of floats,
   since there are INT8_INPUTS_LEAST inputs. */
static uint8_t *bytes_of(const packed_product *p, int64_t row) {
    return (uint8_t *)p->panels + row * int8_stride(p->layer->inputs);
}

static int8_row *rows_of(const packed_product *p) {
    return (int8_row *)(void *)bytes_of(p, p->rows);
}

static void panel_task(void *shared, int64_t task, int thread UNUSED) {
    const packed_product *p = shared;
    const int64_t first = task * PACKED_ROWS, inputs = p->layer->inputs;
    const int rows = (int)min(p->rows - first, PACKED_ROWS);
    if (p->layer->form == PACKED_INT8) {
        for (int r = 0; r < rows; r++)
            sh_model_kernels(p->context)
                ->quantise(inputs, p->x.data + (first + r) * p->x.stride,
                           p->layer->factors, bytes_of(p, first + r),
                           rows_of(p) + first + r);
        return;
    }
    sh_packed_panel(inputs, rows, sh_packed_width(rows), p->x.data + first * p->x.stride,
                    p->x.stride, 1, p->panels + first * inputs);
}

/* What follows the sums of one row of a block. */
static void finish_row(const packed_product *p, const float *sums, int64_t left,
                       int64_t count, float *y) {
    float here[PACKED_OUTPUTS];
    const float *bias = p->layer->bias ? p->layer->bias + left : NULL;
    for (int64_t j = 0; j < count; j++)
        here[j] = sums[j] + (bias ? bias[j] : 0);
    if (p->then == PACKED_GELU)
        sh_model_kernels(p->context)->gelu(count, here, here);
    for (int64_t j = 0; j < count; j++)
        y[j] = p->then == PACKED_ADD ? y[j] + here[j] : here[j];
}

static void blocks_task(void *shared, int64_t task, int thread UNUSED) {
    const packed_product *p = shared;
    const int64_t blocks = ceil_divide(p->layer->outputs, PACKED_OUTPUTS);
    const int64_t end = min((task + 1) * BLOCKS_PER_TASK, blocks);
    for (int64_t block = task * BLOCKS_PER_TASK; block < end; block++) {
        const int64_t inputs = p->layer->inputs, left = block * PACKED_OUTPUTS;
        const int64_t count = min(p->layer->outputs - left, PACKED_OUTPUTS);
        const void *w = (const char *)p->layer->blocks +
                        block * sh_packed_block(p->layer->form, inputs);
        const bool direct = !p->layer->bias && p->then == PACKED_SET &&
                            count == PACKED_OUTPUTS;
        float sums[PACKED_ROWS * PACKED_OUTPUTS];
        for (int64_t first = 0; first < p->rows; first += PACKED_ROWS) {
            const int rows = (int)min(p->rows - first, PACKED_ROWS);
            float *y = p->y.data + first * p->y.stride + left;
            float *to = direct ? y : sums;
            const int64_t stride = direct ? p->y.stride : PACKED_OUTPUTS;
            if (p->layer->form == PACKED_INT8)
                sh_int8_product(p->context)(ceil_divide(inputs, 4), w, bytes_of(p, first),
                                            int8_stride(inputs), rows_of(p) + first, rows,
                                            to, stride);
            else
                sh_model_kernels(p->context)
                    ->packed(inputs, w, (int)p->layer->form, p->panels + first * inputs,
                             sh_packed_width(rows), rows, to, stride);
            for (int r = 0; r < rows && !direct; r++)
                finish_row(p, sums + r * PACKED_OUTPUTS, left, count,
                           y + r * p->y.stride);
        }
    }
}

void sh_packed_forward(const shoal_context *context, const packed_linear *layer,
                       int64_t rows, const_matrix x, matrix y, packed_then then,
                       float *scratch) {
    packed_product p = {context, layer, rows, x, y, then, scratch};
    const int64_t panels = ceil_divide(rows, PACKED_ROWS);
    const int64_t blocks = ceil_divide(layer->outputs, PACKED_OUTPUTS);
    if (panels <= FEW_PANELS)
        for (int64_t panel = 0; panel < panels; panel++)
            panel_task(&p, panel, 0);
    else
        sh_run_tasks(context, panels, panel_task, &p);
    if (rows > 0)
        sh_run_tasks(context, ceil_divide(blocks, BLOCKS_PER_TASK), blocks_task, &p);
}
