/* ModernBERT's layers, for inference. R rows, M model, F feed-forward.

   x      += attention(rotated(norm(x)))       the first layer uses x itself
   x      += narrow(activation(a) b)           a, b: the two parts of widen(norm(x))
   out     = norm(x)

   `normed` always holds the input of the next product: the epilogue of a product that
   ends a branch adds it to x and writes norm(x). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "models/nn/quantised.h"
#include "models/text/text_model.h"

enum {
    ROW_BLOCK = 64,
    FORWARD_ROWS = 1024
}; /* rows per task; rows per feed-forward
                                                 pass */

struct modern_stack {
    shoal_context *context;
    const text_config *config;
    text_limits limits;
    shoal_plan *plans[2]; /* global, local; NULL if no layer uses it */
    size_t bytes;
    int64_t *offsets; /* [limits.batch + 1] */
    float *normed;    /* [R][M] */
    float *attended;  /* [R][M] */
    float *projected; /* [R][3 M] */
    float *wide;      /* [FORWARD_ROWS][2 F] */
    float *turns[2];  /* [R][head_dim / 2][2]: cosine and sine of each rotation */
    float *scratch;   /* of products, by the weights' form */
};

/* ---- The object ------------------------------------------------------------------- */

static bool has_layer(const text_config *config, bool local) {
    for (int64_t l = 0; l < config->layers; l++)
        if (config->local[l] == local)
            return true;
    return false;
}

/* What the products of the weights' forms need, the largest of them. */
static int64_t scratch_floats(const modern_stack *stack) {
    const text_limits *limits = &stack->limits;
    const int64_t size = stack->config->size, wide = stack->config->feed_forward;
    int64_t floats = 0;
    if (limits->packed_weights)
        floats = sh_panel_scratch(stack->context, max(size, wide));
    if (limits->bf16_weights)
        floats =
            max(floats, sh_mul_checked(limits->rows / 2 + PACKED_ROWS, max(size, wide)));
    if (limits->int8_weights)
        floats = max(floats, max(sh_int8_scratch(stack->context, size, wide),
                                 sh_int8_scratch(stack->context, wide, 0)));
    return floats;
}

static void place(void *argument, block_layout *block) {
    modern_stack *stack = argument;
    const int64_t rows = stack->limits.rows, size = stack->config->size;
    sh_reserve(block, 1, sizeof *stack);
    stack->offsets = sh_reserve(block, stack->limits.batch + 1, sizeof(int64_t));
    stack->normed = reserve_floats(block, rows, size);
    stack->attended = reserve_floats(block, rows, size);
    stack->projected = reserve_floats(block, rows, 3 * size);
    stack->wide =
        reserve_floats(block, min(rows, FORWARD_ROWS), 2 * stack->config->feed_forward);
    stack->scratch = reserve_floats(block, scratch_floats(stack), 1);
    for (int local = 0; local < 2; local++)
        stack->turns[local] =
            has_layer(stack->config, local)
                ? reserve_floats(block, rows, size / stack->config->heads)
                : NULL;
}

static shoal_status plan_attention(modern_stack *stack, const shoal_attention *attention,
                                   int local) {
    const text_config *config = stack->config;
    const int64_t dim = config->size / config->heads;
    const shoal_strides strides = {.head = dim, .position = 3 * config->size};
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = stack->limits.batch,
                                   .heads = config->heads,
                                   .queries = stack->limits.length,
                                   .keys = stack->limits.length,
                                   .dim = dim,
                                   .value_dim = dim,
                                   .packed = 1,
                                   .q_strides = &strides,
                                   .k_strides = &strides,
                                   .v_strides = &strides};
    return shoal_plan_create(stack->context, &problem, attention, 0,
                             &stack->plans[local]);
}

static shoal_status make_plans(modern_stack *stack, const shoal_attention *attention) {
    char spelling[32];
    shoal_attention window;
    snprintf(spelling, sizeof spelling, "local-%lld", (long long)stack->config->window);
    TRY(shoal_attention_parse(stack->context, spelling, &window));
    if (has_layer(stack->config, false))
        TRY(plan_attention(stack, attention, 0));
    if (has_layer(stack->config, true))
        TRY(plan_attention(stack, &window, 1));
    return SHOAL_OK;
}

shoal_status sh_modern_create(shoal_context *context, const text_config *config,
                              const shoal_attention *attention, const text_limits *limits,
                              modern_stack **made) {
    modern_stack stack = {.context = context, .config = config, .limits = *limits};
    *made = sh_allocate_parts(context, place, &stack, &stack.bytes);
    if (!*made || sh_products_hold(context) != SHOAL_OK) {
        sh_release(context, *made);
        *made = NULL;
        return SHOAL_NO_MEMORY;
    }
    **made = stack;
    shoal_status status = make_plans(*made, attention);
    if (status != SHOAL_OK) {
        sh_modern_destroy(*made);
        *made = NULL;
    }
    return status;
}

void sh_modern_destroy(modern_stack *stack) {
    if (!stack)
        return;
    sh_products_drop(stack->context);
    shoal_plan_destroy(stack->plans[0]);
    shoal_plan_destroy(stack->plans[1]);
    sh_release(stack->context, stack);
}

size_t sh_modern_memory(const modern_stack *stack) {
    size_t bytes = stack->bytes;
    for (int i = 0; i < 2; i++)
        bytes += stack->plans[i] ? shoal_plan_workspace(stack->plans[i]) : 0;
    return bytes;
}

/* ---- Rotary positions ------------------------------------------------------------- */

typedef struct {
    const modern_stack *stack;
    int64_t rows;
    const float *places; /* [R] */
    int local;
} rotation;

/* In float, like the models' training code, except for the functions themselves. */
static void turn_task(void *shared, int64_t task, int thread UNUSED) {
    const rotation *r = shared;
    const text_config *config = r->stack->config;
    const int64_t dim = config->size / config->heads;
    const float theta = (float)config->theta[r->local];
    const int64_t last = min((task + 1) * ROW_BLOCK, r->rows);
    for (int64_t i = 0; i < dim / 2; i++) {
        const float speed = 1.0f / powf(theta, (float)(2 * i) / (float)dim);
        for (int64_t row = task * ROW_BLOCK; row < last; row++) {
            float *turn = r->stack->turns[r->local] + row * dim + 2 * i;
            const double angle = (double)(speed * r->places[row]);
            turn[0] = (float)cos(angle);
            turn[1] = (float)sin(angle);
        }
    }
}

static void rotate_task(void *shared, int64_t task, int thread UNUSED) {
    const rotation *r = shared;
    const text_config *config = r->stack->config;
    const int64_t dim = config->size / config->heads, width = 3 * config->size;
    const int64_t last = min((task + 1) * ROW_BLOCK, r->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++)
        for (int64_t head = 0; head < 2 * config->heads; head++) {
            /* Queries, then keys: the first and second half of a head are rotated
               together. */
            const int64_t half = dim / 2;
            const float *turns = r->stack->turns[r->local] + row * dim;
            float *x = r->stack->projected + row * width + head * dim;
            for (int64_t i = 0; i < half; i++) {
                const float a = x[i], b = x[half + i];
                x[i] = a * turns[2 * i] - b * turns[2 * i + 1];
                x[half + i] = b * turns[2 * i] + a * turns[2 * i + 1];
            }
        }
}

static void by_rows(const rotation *r, task_function *run) {
    rotation shared = *r;
    sh_run_tasks(r->stack->context, ceil_divide(r->rows, ROW_BLOCK), run, &shared);
}

/* ---- Products and their epilogues ------------------------------------------------- */

/* x += y, then y = norm(x), the input of the next product. */
typedef struct {
    const text_config *config;
    const float *scale, *shift;
    float *x, *y; /* at the product's first row */
} branch_end;

static void end_branch(const void *shared, const shoal_context *context, int64_t first,
                       int64_t count, int64_t left, int64_t width) {
    (void)left, (void)width;
    const branch_end *e = shared;
    const int64_t size = e->config->size;
    float *x = e->x + first * size, *y = e->y + first * size;
    context->kernels->add(count * size, y, x);
    sh_model_kernels(context)->norm_rows(count, size, x, e->scale, e->shift,
                                         e->config->epsilon, y, NULL);
}

static void gate_task(void *shared, int64_t task, int thread UNUSED) {
    const modern_stack *stack = shared;
    const int64_t size = stack->config->feed_forward;
    float *row = stack->wide + task * 2 * size;
    activate(stack->context, stack->config->activation, size, row, row);
    stack->context->kernels->multiply(size, row + size, row);
}

static void feed_forward(modern_stack *stack, const modern_layer *layer, int64_t rows,
                         branch_end end) {
    const text_config *config = stack->config;
    const int64_t size = config->size, wide = config->feed_forward;
    const linear widen = {size, 2 * wide, layer->widen, {0}};
    const linear narrow = {wide, size, layer->narrow, {0}};
    const int8_branch branch = {&widen, &narrow, config->activation, true};
    if (rows > INT8_FEW_ROWS && widen.weight.int8 && narrow.weight.int8) {
        sh_int8_feed_forward(stack->context, &branch, rows,
                             (const_matrix){stack->normed, size},
                             (matrix){stack->normed, size},
                             (epilogue){.run = end_branch,
                                        .shared = &end,
                                        .whole_rows = true},
                             stack->scratch);
        return;
    }
    for (int64_t first = 0; first < rows; first += FORWARD_ROWS) {
        const int64_t count = min(FORWARD_ROWS, rows - first);
        float *in = stack->normed + first * size;
        sh_linear_forward(stack->context, &widen, count, (const_matrix){in, size},
                          (matrix){stack->wide, 2 * wide}, stack->scratch);
        sh_run_tasks(stack->context, count, gate_task, stack);
        branch_end part = end;
        part.x += first * size;
        part.y = in;
        sh_linear_forward_then(stack->context, &narrow, count,
                               (const_matrix){stack->wide, 2 * wide}, (matrix){in, size},
                               (epilogue){.run = end_branch,
                                          .shared = &part,
                                          .whole_rows = true},
                               stack->scratch);
    }
}

shoal_status sh_modern_forward(modern_stack *stack, const text_weights *weights,
                               const packing *sequences, const float *places, float *x,
                               const float **out) {
    const text_config *config = stack->config;
    const int64_t rows = packing_rows(sequences), size = config->size;
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = stack->projected,
                                 .k = stack->projected + size,
                                 .v = stack->projected + 2 * size,
                                 .query_offsets = stack->offsets,
                                 .key_offsets = stack->offsets};
    for (int64_t b = 0; b <= stack->limits.batch; b++) /* sequences beyond the batch
                                                          are empty */
        stack->offsets[b] = sequences->offsets[min(b, sequences->batch)];
    for (int local = 0; local < 2; local++)
        if (stack->turns[local])
            by_rows(&(rotation){stack, rows, places, local}, turn_task);
    memcpy(stack->normed, x, (size_t)(rows * size) * sizeof(float));
    for (int64_t l = 0; l < config->layers; l++) {
        const modern_layer *layer = &weights->modern[l];
        const linear projections = {size, 3 * size, layer->projections, {0}};
        const linear output = {size, size, layer->output, {0}};
        const bool last = l + 1 == config->layers;
        sh_linear_forward(stack->context, &projections, rows,
                          (const_matrix){stack->normed, size},
                          (matrix){stack->projected, 3 * size}, stack->scratch);
        by_rows(&(rotation){stack, rows, NULL, config->local[l]}, rotate_task);
        TRY(shoal_forward(stack->plans[config->local[l]], &inputs, stack->attended));
        branch_end end = {config, layer->forward_scale.data, weights->zeros, x,
                          stack->normed};
        sh_linear_forward_then(stack->context, &output, rows,
                               (const_matrix){stack->attended, size},
                               (matrix){stack->normed, size},
                               (epilogue){.run = end_branch,
                                          .shared = &end,
                                          .whole_rows = true},
                               stack->scratch);
        end.scale = last ? weights->final_scale.data
                         : weights->modern[l + 1].attention_scale.data;
        feed_forward(stack, layer, rows, end);
    }
    *out = stack->normed;
    return SHOAL_OK;
}
