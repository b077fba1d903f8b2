/* Products of float matrices: a block of the right factor is packed and stays in the
   second cache while panels of the left factor's rows, packed into the first cache, pass
   it. */
#include "models/nn/products.h"

#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

enum {
    BLOCK_COLUMNS = 512, /* of the right factor, packed at once: 768 KiB */
    LEAST_ROWS = 96,
    MOST_ROWS = 768,
    PANELS = 8, /* of the left factor, packed at once if it is depth_major */
    STEPS_TOGETHER = 16,
    ROWS_AHEAD = 8, /* that are prefetched while a block is packed */
    LINE = 16       /* floats of a cache line */
};

/* What a thread has: the left factor's panels, then the right factor's block. */
enum {
    PANEL_FLOATS = PRODUCT_DEPTH * PRODUCT_ROWS + 2 * LINE, /* PRODUCT_SLACK and more */
    THREAD_FLOATS = PANELS * PANEL_FLOATS + PRODUCT_DEPTH * BLOCK_COLUMNS
};

shoal_status sh_products_hold(shoal_context *context) {
    if (context->workspace_holders == 0) {
        const size_t floats = (size_t)context->threads * THREAD_FLOATS;
        context->workspace = sh_allocate(context, floats * sizeof(float));
        if (!context->workspace)
            return SHOAL_NO_MEMORY;
    }
    context->workspace_holders++;
    return SHOAL_OK;
}

void sh_products_drop(shoal_context *context) {
    if (--context->workspace_holders > 0)
        return;
    sh_release(context, context->workspace);
    context->workspace = NULL;
}

/* One factor: element i of step k of the sum, i a row or a column of the result, is
   data[i * stride + k], or data[k * stride + i] where it is depth_major. */
typedef struct {
    const float *data;
    int64_t stride;
    bool depth_major;
} factor;

typedef struct {
    const shoal_context *context;
    int64_t rows, depth, width; /* result [rows][width], sums of `depth` products */
    factor left, right;
    bool onto;
    matrix result;
    epilogue then;
    int64_t least_rows; /* of a task, unless there are fewer: it packs columns for them */
    int64_t row_block, column_block, column_blocks; /* of a task */
} product;

static const float *element(const factor *f, int64_t i, int64_t k) {
    return f->depth_major ? f->data + k * f->stride + i : f->data + i * f->stride + k;
}

/* block: [ceil(width / PRODUCT_COLUMNS)][depth][PRODUCT_COLUMNS], from column `left` and
   step `first` of the sum on; columns past the last are 0. */
static void pack_right(const product *p, int64_t left, int64_t width, int64_t first,
                       int64_t depth, float *block) {
    const int64_t whole = width / PRODUCT_COLUMNS * PRODUCT_COLUMNS;
    const int64_t stride = p->right.stride;
    for (int64_t column = 0; !p->right.depth_major && column < width;
         column += PRODUCT_COLUMNS)
        p->context->kernels->pack(element(&p->right, left + column, first), stride, NULL,
                                  (int)min(PRODUCT_COLUMNS, width - column),
                                  PRODUCT_COLUMNS, (int)depth, 1, block + column * depth);
    for (int64_t k = 0; p->right.depth_major && k < depth; k++) {
        const float *row = element(&p->right, left, first + k);
        for (int64_t ahead = 0; k + ROWS_AHEAD < depth && ahead < width; ahead += LINE)
            __builtin_prefetch(row + ROWS_AHEAD * stride + ahead);
        for (int64_t column = 0; column < whole; column += PRODUCT_COLUMNS)
            memcpy(block + column * depth + k * PRODUCT_COLUMNS, row + column,
                   PRODUCT_COLUMNS * sizeof *row);
        if (whole < width) {
            float *to = block + whole * depth + k * PRODUCT_COLUMNS;
            memset(to, 0, PRODUCT_COLUMNS * sizeof *to);
            memcpy(to, row + whole, (size_t)(width - whole) * sizeof *row);
        }
    }
}

/* Panels [depth][PRODUCT_ROWS], PANEL_FLOATS apart, of rows row .. row + rows - 1. Steps
   of the sum that lie one below the other are read a few at a time for all panels, so
   that a line of memory is read once. */
static void pack_left(const product *p, int64_t row, int64_t rows, int64_t first,
                      int64_t depth, float *panels) {
    const model_kernels *kernels = sh_model_kernels(p->context);
    const factor *left = &p->left;
    const int64_t step = left->depth_major ? STEPS_TOGETHER : depth;
    for (int64_t k = 0; k < depth; k += step) {
        for (int64_t ahead = k + step; ahead < min(k + 2 * step, depth); ahead++)
            for (int64_t i = 0; i < rows; i += LINE)
                __builtin_prefetch(element(left, row + i, first + ahead));
        for (int64_t i = 0; i < rows; i += PRODUCT_ROWS)
            kernels->product_panel(min(step, depth - k), (int)min(PRODUCT_ROWS, rows - i),
                                   element(left, row + i, first + k), left->stride,
                                   left->depth_major,
                                   panels + i / PRODUCT_ROWS * PANEL_FLOATS +
                                       k * PRODUCT_ROWS);
    }
}

/* Part `part` of `parts` of rows row .. row + rows - 1, which are packed next. */
static void prefetch_left(const product *p, int64_t row, int64_t rows, int64_t first,
                          int64_t depth, int64_t part, int64_t parts) {
    const int64_t last = rows * (part + 1) / parts;
    for (int64_t i = rows * part / parts; i < last; i++)
        for (int64_t k = 0; k < depth; k += LINE)
            __builtin_prefetch(element(&p->left, row + i, first + k));
}

/* Rows begin .. end - 1 of `width` columns from `left` on. */
static void multiply(const product *p, int64_t begin, int64_t end, int64_t left,
                     int64_t width, float *panels, float *block) {
    const model_kernels *kernels = sh_model_kernels(p->context);
    const int64_t parts = ceil_divide(width, PRODUCT_COLUMNS);
    const int64_t together = p->left.depth_major ? PANELS * PRODUCT_ROWS : PRODUCT_ROWS;
    for (int64_t first = 0; first == 0 || first < p->depth; first += PRODUCT_DEPTH) {
        const int64_t depth = min(PRODUCT_DEPTH, p->depth - first);
        pack_right(p, left, width, first, depth, block);
        for (int64_t row = begin; row < end; row += PRODUCT_ROWS) {
            const int64_t place = (row - begin) % together, next = row + PRODUCT_ROWS;
            if (place == 0)
                pack_left(p, row, min(together, end - row), first, depth, panels);
            for (int64_t part = 0; part < parts; part++) {
                const int64_t column = part * PRODUCT_COLUMNS;
                if (next < end && !p->left.depth_major)
                    prefetch_left(p, next, min(PRODUCT_ROWS, end - next), first, depth,
                                  part, parts);
                kernels->product_tile(depth, panels + place / PRODUCT_ROWS * PANEL_FLOATS,
                                      block + column * depth,
                                      (int)min(PRODUCT_ROWS, end - row),
                                      (int)min(PRODUCT_COLUMNS, width - column),
                                      p->onto || first > 0,
                                      p->result.data + row * p->result.stride + left +
                                          column,
                                      p->result.stride);
            }
        }
    }
}

static void product_task(void *shared, int64_t task, int thread) {
    const product *p = shared;
    float *panels = p->context->workspace + (int64_t)thread * THREAD_FLOATS;
    const int64_t begin = task / p->column_blocks * p->row_block;
    const int64_t end = min(begin + p->row_block, p->rows);
    const int64_t left = task % p->column_blocks * p->column_block;
    const int64_t right = min(left + p->column_block, p->width);
    const int64_t step =
        sh_even_blocks(p->column_block, BLOCK_COLUMNS, 1, PRODUCT_COLUMNS);
    for (int64_t column = left; column < right; column += step) {
        const int64_t width = min(step, right - column);
        multiply(p, begin, end, column, width, panels, panels + PANELS * PANEL_FLOATS);
        if (p->then.run && !p->then.whole_rows)
            p->then.run(p->then.shared, p->context, begin, end - begin, column, width);
    }
    if (p->then.run && p->then.whole_rows)
        p->then.run(p->then.shared, p->context, begin, end - begin, left, right - left);
}

int64_t sh_even_blocks(int64_t count, int64_t most, int64_t even, int64_t grain) {
    int64_t blocks = ceil_divide(ceil_divide(count, most), even) * even;
    return ceil_divide(ceil_divide(count, blocks), grain) * grain;
}

static void run_product(product p) {
    if (p.rows == 0 || p.width == 0)
        return;
    /* Four tasks of enough rows, or else two, or a multiple. A task has whole rows, so
       that a thread finds them in its cache in the next product, unless there are too
       few of them. */
    const bool many = p.rows >= 4 * p.least_rows;
    const bool whole = many || p.then.whole_rows || p.width <= BLOCK_COLUMNS;
    const int64_t even = many ? 4 : whole && p.rows >= 2 * LEAST_ROWS ? 2 : 1;
    p.row_block = sh_even_blocks(p.rows, MOST_ROWS, even, PRODUCT_ROWS);
    p.column_block = whole ? p.width
                           : sh_even_blocks(p.width, BLOCK_COLUMNS,
                                            p.width > 2 * BLOCK_COLUMNS ? 4 : 2,
                                            PRODUCT_COLUMNS);
    p.column_blocks = ceil_divide(p.width, p.column_block);
    sh_run_tasks(p.context, ceil_divide(p.rows, p.row_block) * p.column_blocks,
                 product_task, &p);
}

void sh_matmul_forward(const shoal_context *context, int64_t rows, int64_t inputs,
                       int64_t outputs, const_matrix x, const_matrix w, bool onto,
                       matrix y, epilogue then) {
    run_product((product){.context = context,
                          .rows = rows,
                          .depth = inputs,
                          .width = outputs,
                          .left = {x.data, x.stride, false},
                          .right = {w.data, w.stride, false},
                          .least_rows = LEAST_ROWS,
                          .onto = onto,
                          .result = y,
                          .then = then});
}

void sh_matmul_data(const shoal_context *context, int64_t rows, int64_t inputs,
                    int64_t outputs, const_matrix dy, const_matrix w, bool onto,
                    matrix dx, epilogue then) {
    run_product((product){.context = context,
                          .rows = rows,
                          .depth = outputs,
                          .width = inputs,
                          .left = {dy.data, dy.stride, false},
                          .right = {w.data, w.stride, true},
                          .least_rows = LEAST_ROWS,
                          .onto = onto,
                          .result = dx,
                          .then = then});
}

typedef struct {
    int64_t rows;
    const_matrix dy;
    float *gradient; /* [outputs] */
} bias_sums;

static void add_bias_sums(const void *shared, const shoal_context *context, int64_t first,
                          int64_t count, int64_t left, int64_t width UNUSED) {
    const bias_sums *b = shared;
    if (left == 0)
        sh_model_kernels(context)->column_sums(b->rows, count, b->dy.data + first,
                                               b->dy.stride, b->gradient + first);
}

void sh_matmul_weights(const shoal_context *context, int64_t rows, int64_t inputs,
                       int64_t outputs, const_matrix dy, const_matrix x, matrix dw,
                       float *bias_gradient) {
    const bias_sums b = {rows, dy, bias_gradient};
    run_product(
        (product){.context = context,
                  .rows = outputs,
                  .depth = rows,
                  .width = inputs,
                  .left = {dy.data, dy.stride, true},
                  .right = {x.data, x.stride, true},
                  .least_rows = 4 * LEAST_ROWS,
                  .onto = true,
                  .result = dw,
                  .then = {.run = bias_gradient ? add_bias_sums : NULL, .shared = &b}});
}
