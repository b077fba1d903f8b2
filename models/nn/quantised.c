#include "models/nn/quantised.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

/* ---- Weights ----------------------------------------------------------------------- */

static int64_t quads_of(int64_t inputs) {
    return ceil_divide(inputs, 4);
}

/* Share of a row's weights that may become 0 beside the largest. Of normal weights it is
   1 %, of the worst row of all-MiniLM 85 %. */
#define VANISHING_MOST 0.9

int64_t sh_int8_block(int64_t inputs) {
    return (int64_t)sizeof(int8_block) + 4 * PACKED_OUTPUTS * quads_of(inputs);
}

int64_t sh_int8_bytes(int64_t inputs, int64_t outputs) {
    return sh_mul_checked(ceil_divide(outputs, PACKED_OUTPUTS), sh_int8_block(inputs));
}

static int8_block *block_of(int64_t inputs, int64_t output, const void *blocks) {
    return (int8_block *)((char *)blocks +
                          output / PACKED_OUTPUTS * sh_int8_block(inputs));
}

static int8_verdict judge_row(int64_t inputs, const float *row) {
    float most = 0;
    int64_t count = 0, lost = 0;
    bool finite = true;
    for (int64_t i = 0; i < inputs; i++) {
        const float size = fabsf(row[i]);
        finite = finite && isfinite(size);
        most = size > most ? size : most;
    }
    for (int64_t i = 0; i < inputs; i++) {
        count += row[i] != 0;
        lost += row[i] != 0 && fabsf(row[i]) < most / (2 * INT8_MOST);
    }
    if (!finite)
        return INT8_NOT_FINITE;
    return (double)lost > VANISHING_MOST * (double)count || most > 1e30f ? INT8_OUTLIER
                                                                         : INT8_FINE;
}

int8_verdict sh_int8_judge(const int8_source *from) {
    int8_verdict worst = INT8_FINE;
    for (int64_t output = 0; output < from->outputs; output++) {
        const float *row = from->row(from->shared, output);
        const int8_verdict verdict = row ? judge_row(from->inputs, row) : INT8_UNREADABLE;
        if (verdict == INT8_UNREADABLE || verdict == INT8_NOT_FINITE)
            return verdict;
        worst = verdict == INT8_OUTLIER ? verdict : worst;
    }
    return worst;
}

/* From sums of squares. Inputs without weights stay as they are. */
static void find_factors(int64_t inputs, const double *squares, float *factors) {
    double mean = 0;
    for (int64_t i = 0; i < inputs; i++)
        mean += sqrt(squares[i]) / (double)inputs;
    for (int64_t i = 0; i < inputs; i++) {
        const double share = mean > 0 ? sqrt(squares[i]) / mean : 0;
        factors[i] = share > 0 ? (float)sqrt(fmin(fmax(share, 0.01), 100)) : 1;
    }
}

/* What one byte stands for, so that no byte is above INT8_MOST and no pair above
   INT8_PAIR; 0 where all weights are. */
static float step_of(int64_t inputs, const float *row, const float *factors) {
    float most = 0, pair = 0;
    for (int64_t i = 0; i < inputs; i += 2) {
        const float one = fabsf(row[i] / factors[i]);
        const float other = i + 1 < inputs ? fabsf(row[i + 1] / factors[i + 1]) : 0;
        most = one > most ? one : most;
        most = other > most ? other : most;
        pair = one + other > pair ? one + other : pair;
    }
    return most / INT8_MOST > pair / INT8_PAIR ? most / INT8_MOST : pair / INT8_PAIR;
}

static void put_row(int64_t inputs, int64_t lane, const float *row, const float *factors,
                    int8_block *block) {
    const float step = step_of(inputs, row, factors);
    int32_t sum = 0;
    int before = 0;
    for (int64_t i = 0; i < 4 * quads_of(inputs); i++) {
        const float exact = i < inputs && step > 0 ? row[i] / factors[i] / step : 0;
        int byte = (int)lrintf(exact);
        /* Both of a pair may have been rounded up. */
        if (i % 2 && abs(byte) + abs(before) > INT8_PAIR)
            byte -= byte > 0 ? 1 : -1;
        block->bytes[(i / 4 * PACKED_OUTPUTS + lane) * 4 + i % 4] = (int8_t)byte;
        sum += byte;
        before = byte;
    }
    block->scales[lane] = step;
    block->sums[lane] = sum;
}

bool sh_int8_convert(const int8_source *from, double *squares, float *factors,
                     void *blocks) {
    const int64_t inputs = from->inputs;
    memset(squares, 0, (size_t)inputs * sizeof *squares);
    memset(blocks, 0, (size_t)sh_int8_bytes(inputs, from->outputs));
    for (int64_t output = 0; output < from->outputs; output++) {
        const float *row = from->row(from->shared, output);
        for (int64_t i = 0; row && i < inputs; i++)
            squares[i] += (double)row[i] * (double)row[i];
        if (!row)
            return false;
    }
    find_factors(inputs, squares, factors);
    for (int64_t output = 0; output < from->outputs; output++) {
        const float *row = from->row(from->shared, output);
        if (!row)
            return false;
        put_row(inputs, output % PACKED_OUTPUTS, row, factors,
                block_of(inputs, output, blocks));
    }
    return true;
}

void sh_int8_get(int64_t inputs, const void *blocks, int64_t output, const float *factors,
                 float *row) {
    const int8_block *block = block_of(inputs, output, blocks);
    const int64_t lane = output % PACKED_OUTPUTS;
    for (int64_t i = 0; i < inputs; i++)
        row[i] = (float)block->bytes[(i / 4 * PACKED_OUTPUTS + lane) * 4 + i % 4] *
                 block->scales[lane] * factors[i];
}

/* ---- Products ---------------------------------------------------------------------- */

enum {
    TASK_ROWS = 8 * PACKED_ROWS,   /* of a layer */
    BRANCH_ROWS = 4 * PACKED_ROWS, /* of a feed-forward: hidden rows stay in L2 */
    TOGETHER = 4 * PACKED_OUTPUTS  /* outputs that an epilogue finds in L1 */
};

int8_product_kernel *sh_int8_product(const shoal_context *context) {
    const model_kernels *kernels = sh_model_kernels(context);
    return sh_dots_int8(context) ? kernels->int8_product_dot : kernels->int8_product;
}

/* Rows of one task as bytes. */
typedef struct {
    int8_row *of;
    uint8_t *bytes;
    int64_t stride;
} int8_rows;

/* A thread's scratch: bytes of the input, of the hidden rows, and these. */
typedef struct {
    int8_rows in, hidden;
    float *wide; /* [BRANCH_ROWS][hidden] */
    float *pair; /* [BRANCH_ROWS][2 TOGETHER], where they are gated */
} int8_memory;

static int8_rows place_rows(block_layout *block, int64_t rows, int64_t inputs) {
    const int64_t stride = int8_stride(inputs);
    return (int8_rows){.stride = stride,
                       .of = sh_reserve(block, rows, sizeof(int8_row)),
                       .bytes = sh_reserve(block, sh_mul_checked(rows, stride), 1)};
}

static int8_memory place_memory(block_layout *block, int64_t inputs, int64_t hidden) {
    int8_memory made = {.in = place_rows(block, TASK_ROWS, inputs)};
    if (hidden) {
        made.hidden = place_rows(block, BRANCH_ROWS, hidden);
        made.wide = reserve_floats(block, BRANCH_ROWS, hidden);
        made.pair = reserve_floats(block, BRANCH_ROWS, 2 * TOGETHER);
    }
    return made;
}

/* Bytes of one thread. */
static int64_t memory_bytes(int64_t inputs, int64_t hidden) {
    block_layout measured = {0};
    place_memory(&measured, inputs, hidden);
    return measured.overflow ? -1 : (int64_t)measured.bytes;
}

int64_t sh_int8_scratch(const shoal_context *context, int64_t inputs, int64_t hidden) {
    return sh_mul_checked(sh_team_of(context).threads,
                          memory_bytes(inputs, hidden) / (int64_t)sizeof(float));
}

typedef struct {
    const shoal_context *context;
    const linear *layer;
    const int8_branch *branch;
    int64_t rows, row_block;
    const_matrix x;
    matrix y;
    epilogue then;
    char *scratch;
    int8_product_kernel *product;
} int8_call;

static int8_memory memory_of(const int8_call *call, int64_t inputs, int64_t hidden,
                             int thread) {
    block_layout block = {.base = call->scratch + thread * memory_bytes(inputs, hidden)};
    return place_memory(&block, inputs, hidden);
}

static void quantise_rows(const int8_call *call, int64_t count, const linear *layer,
                          const float *x, int64_t stride, int8_rows to) {
    const model_kernels *kernels = sh_model_kernels(call->context);
    for (int64_t r = 0; r < count; r++)
        kernels->quantise(layer->inputs, x + r * stride, layer->weight.factors,
                          to.bytes + r * to.stride, to.of + r);
}

/* y [count][width]: outputs left .. left + width - 1, left a multiple of PACKED_OUTPUTS.
   A block of the weight passes all rows. */
static void multiply_rows(const int8_call *call, const linear *layer, int64_t count,
                          int8_rows x, int64_t left, int64_t width, float *y,
                          int64_t stride) {
    const int64_t quads = quads_of(layer->inputs);
    for (int64_t at = 0; at < width; at += PACKED_OUTPUTS) {
        const int8_block *block = block_of(layer->inputs, left + at, layer->weight.data);
        const int64_t some = min(PACKED_OUTPUTS, width - at);
        for (int64_t first = 0; first < count; first += PACKED_ROWS) {
            const int rows = (int)min(PACKED_ROWS, count - first);
            float part[PACKED_ROWS * PACKED_OUTPUTS], *to = y + first * stride + at;
            const bool whole = some == PACKED_OUTPUTS;
            call->product(quads, block, x.bytes + first * x.stride, x.stride,
                          x.of + first, rows, whole ? to : part,
                          whole ? stride : PACKED_OUTPUTS);
            for (int r = 0; r < rows && !whole; r++)
                memcpy(to + r * stride, part + r * PACKED_OUTPUTS,
                       (size_t)some * sizeof *to);
        }
    }
}

/* All outputs of the rows from `first` on, and what follows. */
static void finish_rows(const int8_call *call, const linear *layer, int64_t first,
                        int64_t count, int8_rows x) {
    const bool pieces = call->then.run && !call->then.whole_rows;
    const int64_t outputs = layer->outputs, step = pieces ? TOGETHER : outputs;
    for (int64_t left = 0; left < outputs; left += step) {
        const int64_t width = min(step, outputs - left);
        multiply_rows(call, layer, count, x, left, width,
                      call->y.data + first * call->y.stride + left, call->y.stride);
        if (call->then.run)
            call->then.run(call->then.shared, call->context, first, count, left, width);
    }
}

static void rows_task(void *shared, int64_t task, int thread) {
    const int8_call *call = shared;
    const linear *layer = call->layer;
    const int64_t first = task * call->row_block;
    const int64_t count = min(call->row_block, call->rows - first);
    const int8_memory memory = memory_of(call, layer->inputs, 0, thread);
    quantise_rows(call, count, layer, call->x.data + first * call->x.stride,
                  call->x.stride, memory.in);
    finish_rows(call, layer, first, count, memory.in);
}

/* Few rows, which are quantised already: a task has some outputs. */
static void outputs_task(void *shared, int64_t task, int thread UNUSED) {
    const int8_call *call = shared;
    const int8_memory memory = memory_of(call, call->layer->inputs, 0, 0);
    const int64_t left = task * TOGETHER;
    multiply_rows(call, call->layer, call->rows, memory.in, left,
                  min(TOGETHER, call->layer->outputs - left), call->y.data + left,
                  call->y.stride);
}

/* Rows of a task: equal, at most `most`, in an even number of tasks. */
static int64_t rows_of_task(int64_t rows, int64_t most) {
    const int64_t panels = ceil_divide(rows, PACKED_ROWS);
    const int64_t tasks = ceil_divide(ceil_divide(rows, most), 4) * 4;
    return ceil_divide(panels, min(max(tasks, 1), panels)) * PACKED_ROWS;
}

void sh_int8_forward(const shoal_context *context, const linear *layer, int64_t rows,
                     const_matrix x, matrix y, epilogue then, float *scratch) {
    int8_call call = {.context = context,
                      .layer = layer,
                      .rows = rows,
                      .x = x,
                      .y = y,
                      .then = then,
                      .scratch = (char *)scratch,
                      .product = sh_int8_product(context)};
    if (rows == 0)
        return;
    if (rows > INT8_FEW_ROWS) {
        call.row_block = rows_of_task(rows, TASK_ROWS);
        sh_run_tasks(context, ceil_divide(rows, call.row_block), rows_task, &call);
        return;
    }
    quantise_rows(&call, rows, layer, x.data, x.stride,
                  memory_of(&call, layer->inputs, 0, 0).in);
    sh_run_tasks(context, ceil_divide(layer->outputs, TOGETHER), outputs_task, &call);
    if (then.run)
        then.run(then.shared, context, 0, rows, 0, layer->outputs);
}

/* ---- Feed-forward ------------------------------------------------------------------ */

/* wide [count][hidden] = f(a + bias), or f(a) b; TOGETHER numbers of all rows at once. */
static void widen_rows(const int8_call *call, int64_t count, const int8_memory *memory,
                       int64_t left) {
    const int8_branch *branch = call->branch;
    const int64_t hidden = branch->narrow->inputs, width = min(TOGETHER, hidden - left);
    const bool gated = branch->gated;
    const float *bias = branch->widen->bias.data;
    float *a = gated ? memory->pair : memory->wide + left;
    const int64_t stride = gated ? 2 * TOGETHER : hidden;
    multiply_rows(call, branch->widen, count, memory->in, left, width, a, stride);
    if (gated)
        multiply_rows(call, branch->widen, count, memory->in, hidden + left, width,
                      a + TOGETHER, stride);
    for (int64_t r = 0; r < count; r++) {
        float *row = a + r * stride;
        if (bias)
            call->context->kernels->add(width, bias + left, row);
        if (bias && gated)
            call->context->kernels->add(width, bias + hidden + left, row + TOGETHER);
        activate(call->context, branch->kind, width, row, row);
        if (gated) {
            call->context->kernels->multiply(width, row + TOGETHER, row);
            memcpy(memory->wide + r * hidden + left, row, (size_t)width * sizeof *row);
        }
    }
}

static void branch_task(void *shared, int64_t task, int thread) {
    const int8_call *call = shared;
    const linear *widen = call->branch->widen, *narrow = call->branch->narrow;
    const int64_t first = task * call->row_block, hidden = narrow->inputs;
    const int64_t count = min(call->row_block, call->rows - first);
    const int8_memory memory = memory_of(call, widen->inputs, hidden, thread);
    quantise_rows(call, count, widen, call->x.data + first * call->x.stride,
                  call->x.stride, memory.in);
    for (int64_t left = 0; left < hidden; left += TOGETHER)
        widen_rows(call, count, &memory, left);
    quantise_rows(call, count, narrow, memory.wide, hidden, memory.hidden);
    finish_rows(call, narrow, first, count, memory.hidden);
}

void sh_int8_feed_forward(const shoal_context *context, const int8_branch *branch,
                          int64_t rows, const_matrix x, matrix y, epilogue then,
                          float *scratch) {
    int8_call call = {.context = context,
                      .branch = branch,
                      .rows = rows,
                      .x = x,
                      .y = y,
                      .then = then,
                      .scratch = (char *)scratch,
                      .product = sh_int8_product(context)};
    if (rows == 0)
        return;
    call.row_block = rows_of_task(rows, BRANCH_ROWS);
    sh_run_tasks(context, ceil_divide(rows, call.row_block), branch_task, &call);
}
