/* The encoder: its memory, forward and backward.
 *
 * One layer's activations, in the order they come to be (R rows, M model, F forward):
 *
 *                     pre-norm                        post-norm
 *     stream          what the layer is given (the layer before it keeps it)
 *     attention_in    norm(stream)                    stream itself
 *     projected       queries, keys and values, [R][3 M], or [R][2 M] without keys
 *     attended        what the attention gives
 *     middle          stream + attention              stream + attention
 *     forward_in      norm(middle)                    norm(middle)
 *     hidden          before the activation, [R][F]
 *     sum             middle + forward                forward_in + forward
 *     out             sum itself                      norm(sum)
 *
 * For training every layer has its own; for inference all layers share one set, in which
 * arrays that are not needed at the same time are one. */
#include "models/nn/encoder.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "models/nn/quantised.h"

enum {
    ROW_BLOCK = 64, /* rows that one task works on */
    PROJECTIONS = 3 /* queries, keys, values */
};

typedef struct {
    float *attention_in, *projected, *attended, *middle, *forward_in, *hidden, *sum, *out;
    float *attention_statistics, *forward_statistics; /* [R][2] each, of the two norms */
    void *state; /* the attention's; NULL in inference: the plan's own */
} layer_memory;

struct encoder {
    shoal_context *context;
    encoder_shape shape;
    encoder_limits limits;
    int64_t model, width; /* M; columns of projected */
    shoal_plan *plan;
    size_t bytes;         /* of this object's own block */
    int64_t *offsets;     /* [limits.batch + 1], what the attention is given */
    layer_memory *layers; /* [layers] */
    float *finished;      /* [R][M], after the final norm */
    float *final_statistics;
    float *activated; /* [R][F], f(hidden) of the layer at work */
    float *scratch;   /* of products, by the weights' form */
    /* Training only: gradients of the layer at work. */
    float *grad_hidden;    /* [R][F] */
    float *grad_projected; /* like projected */
    float *grad_keys;      /* like projected, where keys share the queries' projection */
    float *grad_rows;      /* [R][M] */
    float *grad_dropped;   /* [R][M], gradient at a dropout's input */
    float *norm_parts;
    layer_callback *layer_done;
    void *layer_shared;
    double *errors; /* [layers], of the attention, where they are asked for */
    int64_t error_samples;
};

/* One call of forward or backward. */
typedef struct {
    encoder *stack;
    const encoder_weights *weights;
    int64_t rows;      /* R of the batch */
    row_subset wanted; /* rows whose output is wanted */
    dropout_key random;
} pass;

/* ---- One layer's parts ------------------------------------------------------------ */

static layer_norm norm_with(const encoder *stack, nn_tensor scale, nn_tensor shift) {
    return (layer_norm){stack->model, scale, shift, stack->shape.epsilon};
}

static layer_norm attention_norm(const encoder *stack, const encoder_layer *weights) {
    return norm_with(stack, weights->attention_scale, weights->attention_shift);
}

static layer_norm forward_norm(const encoder *stack, const encoder_layer *weights) {
    return norm_with(stack, weights->forward_scale, weights->forward_shift);
}

static layer_norm final_norm(const encoder *stack, const encoder_weights *weights) {
    return norm_with(stack, weights->final_scale, weights->final_shift);
}

static linear output_linear(const encoder *stack, const encoder_layer *weights) {
    return (linear){stack->model, stack->model, weights->output, weights->output_bias};
}

static linear widen_linear(const encoder *stack, const encoder_layer *weights) {
    return (linear){stack->model, stack->shape.feed_forward, weights->widen,
                    weights->widen_bias};
}

static linear narrow_linear(const encoder *stack, const encoder_layer *weights) {
    return (linear){stack->shape.feed_forward, stack->model, weights->narrow,
                    weights->narrow_bias};
}

/* Whether b begins where a, of `count` elements, ends, in values and in gradients; also
   where both are absent. inputs: of a matrix. */
static bool follows(nn_tensor a, nn_tensor b, int64_t count, int64_t inputs) {
    if (!a.data || !b.data)
        return !a.data && !b.data;
    const bool small = a.half || a.bf16;
    size_t bytes = (size_t)count * (small ? sizeof(uint16_t) : sizeof(float));
    if (a.int8)
        bytes = (size_t)sh_int8_bytes(inputs, count / inputs);
    return a.half == b.half && a.bf16 == b.bf16 && a.packed == b.packed &&
           a.int8 == b.int8 && a.factors == b.factors &&
           (const char *)a.data + bytes == (const char *)b.data &&
           (a.gradient ? a.gradient + count == b.gradient : !b.gradient);
}

/* The projections to queries, keys and values. Those whose weights follow each other in
   memory are one linear layer: `count` are left, part i giving the columns from
   columns[i]. */
typedef struct {
    int count;
    linear parts[PROJECTIONS];
    int64_t columns[PROJECTIONS];
} projections;

static projections projections_of(const encoder *stack, const encoder_layer *weights) {
    const int64_t model = stack->model;
    const bool shared = encoder_shares_keys(&stack->shape);
    const linear all[PROJECTIONS] = {
        {model, model, weights->query, weights->query_bias},
        {model, model, weights->key, weights->key_bias},
        {model, model, weights->value, weights->value_bias},
    };
    projections made = {0};
    int64_t column = 0;
    for (int i = 0; i < PROJECTIONS; i++) {
        if (shared && i == 1)
            continue;
        linear *last = made.count ? &made.parts[made.count - 1] : NULL;
        if (last && follows(last->weight, all[i].weight, last->outputs * model, model) &&
            follows(last->bias, all[i].bias, last->outputs, 1)) {
            last->outputs += model;
        } else {
            made.parts[made.count] = all[i];
            made.columns[made.count++] = column;
        }
        column += model;
    }
    return made;
}

/* Whether the layer goes on with the wanted rows alone after its attention, and how many
   rows it has there. */
static bool narrows(const pass *p, int64_t layer) {
    return p->wanted.rows && layer + 1 == p->stack->shape.layers;
}

static int64_t rows_after(const pass *p, int64_t layer) {
    return narrows(p, layer) ? p->wanted.count : p->rows;
}

/* Which dropout of the model: three per layer; 0 is the network's own. */
enum { SITE_ATTENTION, SITE_ACTIVATION, SITE_FORWARD, SITES };

static dropout_mask dropout_at(const pass *p, int64_t layer, int site) {
    const encoder_shape *shape = &p->stack->shape;
    const bool none = !p->random.dropout ||
                      (site == SITE_ACTIVATION && shape->whole_inside);
    return (dropout_mask){.rate = none ? 0 : shape->dropout,
                          .seed = p->random.seed,
                          .step = p->random.step,
                          .site = 1 + (uint64_t)(layer * SITES + site),
                          .first = narrows(p, layer) ? p->random.first_wanted
                                                     : p->random.first_row};
}

/* What the attention is given: q, k and v inside projected. */
static shoal_inputs attention_inputs(const encoder *stack, const layer_memory *layer) {
    const int64_t model = stack->model;
    const bool shared = encoder_shares_keys(&stack->shape);
    shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                           .q = layer->projected,
                           .k = layer->projected + (shared ? 0 : model),
                           .v = layer->projected + (shared ? model : 2 * model),
                           .query_offsets = stack->offsets,
                           .key_offsets = stack->offsets,
                           .state = layer->state};
    if (encoder_keys_are_queries(&stack->shape))
        inputs.k = NULL;
    return inputs;
}

/* ---- Memory ----------------------------------------------------------------------- */

static void place_for_training(encoder *stack, block_layout *block) {
    const size_t state_size = shoal_plan_state_size(stack->plan);
    const int64_t rows = stack->limits.rows, model = stack->model;
    const int64_t width = stack->width, wide = stack->shape.feed_forward;
    const bool post = stack->shape.post_norm;
    for (int64_t l = 0; l < stack->shape.layers; l++) {
        layer_memory made = {0};
        made.attention_in = post ? NULL : reserve_floats(block, rows, model);
        made.projected = reserve_floats(block, rows, width);
        made.attended = reserve_floats(block, rows, model);
        made.middle = reserve_floats(block, rows, model);
        made.forward_in = reserve_floats(block, rows, model);
        made.hidden = reserve_floats(block, rows, wide);
        made.sum = reserve_floats(block, rows, model);
        made.out = post ? reserve_floats(block, rows, model) : made.sum;
        made.attention_statistics = reserve_floats(block, rows, 2);
        made.forward_statistics = reserve_floats(block, rows, 2);
        made.state = sh_reserve(block, 1, state_size);
        if (block->base)
            stack->layers[l] = made;
    }
    stack->activated = reserve_floats(block, rows, wide);
    stack->final_statistics = reserve_floats(block, rows, 2);
    stack->grad_hidden = reserve_floats(block, rows, wide);
    stack->grad_projected = reserve_floats(block, rows, width);
    if (encoder_shares_keys(&stack->shape) && !encoder_keys_are_queries(&stack->shape))
        stack->grad_keys = reserve_floats(block, rows, width);
    stack->grad_rows = reserve_floats(block, rows, model);
    if (stack->shape.dropout > 0)
        stack->grad_dropped = reserve_floats(block, rows, model);
    stack->norm_parts = reserve_floats(block, sh_norm_scratch(model, rows), 1);
}

/* Arrays that are not needed at the same time are one: a norm's output is used up by the
   product that follows it; the sum of post-norm takes the place of middle. */
static void place_for_inference(encoder *stack, block_layout *block) {
    const encoder_limits *limits = &stack->limits;
    const int64_t rows = limits->rows, model = stack->model;
    /* Of more rows, bytes keep the hidden numbers with the thread that makes them. */
    const int64_t hidden =
        limits->int8_weights && !limits->other_weights ? min(rows, INT8_FEW_ROWS) : rows;
    layer_memory made = {0};
    made.forward_in = reserve_floats(block, rows, model);
    made.attention_in = stack->shape.post_norm ? NULL : made.forward_in;
    made.projected = reserve_floats(block, rows, stack->width);
    made.attended = reserve_floats(block, rows, model);
    made.middle = reserve_floats(block, rows, model);
    made.hidden = reserve_floats(block, hidden, stack->shape.feed_forward);
    made.out = reserve_floats(block, rows, model);
    made.sum = stack->shape.post_norm ? made.middle : made.out;
    for (int64_t l = 0; block->base && l < stack->shape.layers; l++)
        stack->layers[l] = made;
    stack->activated = made.hidden;
}

/* What the products of the weights' forms need, the largest of them. */
static int64_t scratch_floats(const encoder *stack) {
    const encoder_limits *limits = &stack->limits;
    const int64_t wide = stack->shape.feed_forward, model = stack->model;
    int64_t floats = 0;
    if (limits->half_weights)
        floats = sh_mul_checked(model, max(wide, stack->width));
    if (limits->packed_weights)
        floats = max(floats, sh_panel_scratch(stack->context, max(wide, model)));
    if (limits->bf16_weights)
        floats =
            max(floats, sh_mul_checked(limits->rows / 2 + PACKED_ROWS, max(wide, model)));
    if (limits->int8_weights)
        floats = max(floats, max(sh_int8_scratch(stack->context, model, wide),
                                 sh_int8_scratch(stack->context, wide, 0)));
    return floats;
}

static void place(void *argument, block_layout *block) {
    encoder *stack = argument;
    const encoder_shape *shape = &stack->shape;
    sh_reserve(block, 1, sizeof *stack);
    stack->layers = sh_reserve(block, shape->layers, sizeof(layer_memory));
    stack->offsets = sh_reserve(block, stack->limits.batch + 1, sizeof(int64_t));
    if (stack->limits.training)
        place_for_training(stack, block);
    else
        place_for_inference(stack, block);
    if (!shape->post_norm)
        stack->finished = reserve_floats(block, stack->limits.rows, stack->model);
    stack->scratch = reserve_floats(block, scratch_floats(stack), 1);
}

/* ---- The object ------------------------------------------------------------------- */

static shoal_status plan_attention(encoder *stack) {
    const encoder_shape *shape = &stack->shape;
    const shoal_strides strides = {.head = shape->head_dim, .position = stack->width};
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = stack->limits.batch,
                             .heads = shape->heads,
                             .queries = stack->limits.length,
                             .keys = stack->limits.length,
                             .dim = shape->head_dim,
                             .value_dim = shape->head_dim,
                             .packed = 1,
                             .q_strides = &strides,
                             .k_strides = &strides,
                             .v_strides = &strides};
    unsigned flags = stack->limits.training ? SHOAL_WITH_BACKWARD : 0;
    if (stack->limits.over)
        return shoal_plan_create_over(stack->limits.over, stack->context, &problem,
                                      &shape->attention, flags, &stack->plan);
    return shoal_plan_create(stack->context, &problem, &shape->attention, flags,
                             &stack->plan);
}

shoal_status sh_encoder_create(shoal_context *context, const encoder_shape *shape,
                               const encoder_limits *limits, encoder **made) {
    *made = NULL;
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = {
        {"layers", shape->layers, 0, 4096},
        {"heads", shape->heads, 1, 65536},
        {"head_dim", shape->head_dim, 1, 65536},
        {"feed_forward", shape->feed_forward, 1, INT32_MAX / 4},
        {"batch", limits->batch, 0, INT32_MAX / 2},
        {"rows", limits->rows, 0, INT32_MAX / 2},
        {"length", limits->length, 0, INT32_MAX / 2},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return sh_fail(context, SHOAL_INVALID,
                           "encoder: %s is %lld: it must be from %lld to %lld",
                           sizes[i].name, (long long)sizes[i].value,
                           (long long)sizes[i].least, (long long)sizes[i].most);
    if (encoder_model(shape) > INT32_MAX / 16)
        return sh_fail(context, SHOAL_INVALID, "encoder: heads x head_dim is too large");
    if (!(shape->dropout >= 0 && shape->dropout < 1))
        return sh_fail(context, SHOAL_INVALID,
                       "encoder: dropout is %g: it must be at least 0 and below 1",
                       (double)shape->dropout);
    if (!(shape->epsilon >= 0 && isfinite(shape->epsilon)))
        return sh_fail(context, SHOAL_INVALID, "encoder: epsilon must not be negative");
    if (limits->training && (limits->half_weights || limits->bf16_weights ||
                             limits->packed_weights || limits->int8_weights))
        return sh_fail(context, SHOAL_INVALID,
                       "encoder: half-precision and packed weights cannot be trained");
    encoder stack = {.context = context, .shape = *shape, .limits = *limits};
    stack.model = encoder_model(shape);
    stack.width = (encoder_shares_keys(shape) ? 2 : 3) * stack.model;
    if (stack.shape.epsilon == 0)
        stack.shape.epsilon = 1e-5f;
    TRY(plan_attention(&stack));
    encoder *kept = sh_allocate_parts(context, place, &stack, &stack.bytes);
    if (!kept || sh_products_hold(context) != SHOAL_OK) {
        sh_release(context, kept);
        shoal_plan_destroy(stack.plan);
        return SHOAL_NO_MEMORY;
    }
    *kept = stack;
    *made = kept;
    return SHOAL_OK;
}

void sh_encoder_destroy(encoder *stack) {
    if (!stack)
        return;
    sh_products_drop(stack->context);
    shoal_plan_destroy(stack->plan);
    sh_release(stack->context, stack);
}

size_t sh_encoder_memory(const encoder *stack) {
    return stack->bytes + shoal_plan_workspace(stack->plan);
}

const shoal_plan *sh_encoder_plan(const encoder *stack) {
    return stack->plan;
}

const void *sh_encoder_state(const encoder *stack, int64_t layer) {
    return stack->layers[layer].state;
}

/* ---- Forward: a product, and what follows it while its block is in cache ---------- */

/* After the product that ends a branch, the attention's output or the feed-forward's
   second: y = base + dropout(y + bias), and its norm. */
typedef struct {
    const float *bias, *base;
    const int32_t *base_rows; /* which row of base a row has; NULL: its own */
    dropout_mask mask;
    float *y, *normed, *statistics;
    const layer_norm *norm;
    int64_t size;
} residual_epilogue;

static void add_residual(const void *shared, const shoal_context *context, int64_t first,
                         int64_t count, int64_t left, int64_t width) {
    const residual_epilogue *e = shared;
    for (int64_t row = first; row < first + count; row++) {
        float *y = e->y + row * e->size + left;
        if (e->bias)
            context->kernels->add(width, e->bias + left, y);
        sh_dropout_row(context, &e->mask, row, left, width, y);
        int64_t from = e->base_rows ? e->base_rows[row] : row;
        context->kernels->add(width, e->base + from * e->size + left, y);
    }
    sh_model_kernels(context)->norm_rows(count, e->size, e->y + first * e->size,
                                         e->norm->scale.data, e->norm->shift.data,
                                         e->norm->epsilon, e->normed + first * e->size,
                                         e->statistics ? e->statistics + 2 * first
                                                       : NULL);
}

/* After the feed-forward's first product: hidden += bias,
   activated = dropout(f(hidden)). */
typedef struct {
    const float *bias;
    activation kind;
    dropout_mask mask;
    float *hidden, *activated;
    int64_t size;
} hidden_epilogue;

static void activate_hidden(const void *shared, const shoal_context *context,
                            int64_t first, int64_t count, int64_t left, int64_t width) {
    const hidden_epilogue *e = shared;
    for (int64_t row = first; row < first + count; row++) {
        float *hidden = e->hidden + row * e->size + left;
        float *activated = e->activated + row * e->size + left;
        if (e->bias)
            context->kernels->add(width, e->bias + left, hidden);
        activate(context, e->kind, width, hidden, activated);
        sh_dropout_row(context, &e->mask, row, left, width, activated);
    }
}

typedef struct {
    row_subset wanted;
    int64_t size;
    const float *from;
    float *to;
} gathering;

static void gather_task(void *shared, int64_t task, int thread UNUSED) {
    const gathering *g = shared;
    int64_t last = min((task + 1) * ROW_BLOCK, g->wanted.count);
    for (int64_t i = task * ROW_BLOCK; i < last; i++)
        memcpy(g->to + i * g->size, g->from + g->wanted.rows[i] * g->size,
               (size_t)g->size * sizeof(float));
}

/* What the attention gave, [rows_after][M]: as it is, or the wanted rows gathered in
   `scratch`. */
static const float *attended_rows(const pass *p, int64_t l, float *scratch) {
    const encoder *stack = p->stack;
    if (!narrows(p, l))
        return stack->layers[l].attended;
    gathering g = {p->wanted, stack->model, stack->layers[l].attended, scratch};
    sh_run_tasks(stack->context, ceil_divide(p->wanted.count, ROW_BLOCK), gather_task,
                 &g);
    return scratch;
}

/* The product that ends a branch. `e` has all but what the layer knows. whole: the
   feed-forward is one call, and x its input; NULL: it is not. */
static void end_branch(encoder *stack, const linear *layer, const int8_branch *whole,
                       int64_t rows, const float *x, residual_epilogue e) {
    e.bias = layer->bias.data;
    e.size = stack->model;
    epilogue then = {.run = add_residual, .shared = &e, .whole_rows = true};
    if (whole) {
        sh_int8_feed_forward(stack->context, whole, rows, (const_matrix){x, stack->model},
                             (matrix){e.y, stack->model}, then, stack->scratch);
        return;
    }
    sh_linear_forward_then(stack->context, layer, rows, (const_matrix){x, layer->inputs},
                           (matrix){e.y, stack->model}, then, stack->scratch);
}

typedef struct {
    layer_norm norm;
    float *normed, *statistics; /* where its results go */
} norm_step;

/* Pre-norm: the norm that begins layer l, or ends the stack where l is past the last. */
static norm_step begin_norm(const pass *p, int64_t l) {
    const encoder *stack = p->stack;
    if (l == stack->shape.layers)
        return (norm_step){final_norm(stack, p->weights), stack->finished,
                           stack->final_statistics};
    return (norm_step){attention_norm(stack, &p->weights->layers[l]),
                       stack->layers[l].attention_in,
                       stack->layers[l].attention_statistics};
}

static shoal_status run_layer(const pass *p, int64_t l, const float *stream) {
    encoder *stack = p->stack;
    const encoder_layer *weights = &p->weights->layers[l];
    layer_memory *memory = &stack->layers[l];
    const bool post = stack->shape.post_norm;
    const int64_t rows = rows_after(p, l);
    const projections parts = projections_of(stack, weights);
    const const_matrix in = {post ? stream : memory->attention_in, stack->model};
    for (int i = 0; i < parts.count; i++)
        sh_linear_forward(stack->context, &parts.parts[i], p->rows, in,
                          (matrix){memory->projected + parts.columns[i], stack->width},
                          stack->scratch);
    const shoal_inputs inputs = attention_inputs(stack, memory);
    TRY(shoal_forward(stack->plan, &inputs, memory->attended));
    if (stack->errors) {
        shoal_error found;
        TRY(shoal_error_estimate(stack->plan, &inputs, memory->attended,
                                 stack->error_samples, (uint64_t)l, &found));
        stack->errors[l] = found.relative_error;
    }
    /* Both orders have a norm of `middle` here: post-norm's first, pre-norm's second. */
    layer_norm norm = post ? attention_norm(stack, weights)
                           : forward_norm(stack, weights);
    linear output = output_linear(stack, weights);
    /* In training the projections are kept; the gradients' place is free until then. */
    float *scratch = stack->limits.training ? stack->grad_projected : memory->projected;
    end_branch(stack, &output, NULL, rows, attended_rows(p, l, scratch),
               (residual_epilogue){.base = stream,
                                   .base_rows = narrows(p, l) ? p->wanted.rows : NULL,
                                   .mask = dropout_at(p, l, SITE_ATTENTION),
                                   .y = memory->middle,
                                   .normed = memory->forward_in,
                                   .statistics = post ? memory->attention_statistics
                                                      : memory->forward_statistics,
                                   .norm = &norm});
    const linear widen = widen_linear(stack, weights);
    const linear narrow = narrow_linear(stack, weights);
    const int8_branch branch = {&widen, &narrow, stack->shape.activation, false};
    const bool whole = widen.weight.int8 && narrow.weight.int8 && rows > INT8_FEW_ROWS;
    hidden_epilogue e = {.bias = widen.bias.data,
                         .kind = stack->shape.activation,
                         .mask = dropout_at(p, l, SITE_ACTIVATION),
                         .hidden = memory->hidden,
                         .activated = stack->activated,
                         .size = widen.outputs};
    epilogue then = {.run = activate_hidden, .shared = &e};
    if (!whole)
        sh_linear_forward_then(stack->context, &widen, rows,
                               (const_matrix){memory->forward_in, stack->model},
                               (matrix){memory->hidden, widen.outputs}, then,
                               stack->scratch);
    /* The feed-forward's second product, and while the rows are in cache the norm that
       follows: post-norm's own, or the next that pre-norm needs. */
    const norm_step next = post ? (norm_step){forward_norm(stack, weights), memory->out,
                                              memory->forward_statistics}
                                : begin_norm(p, l + 1);
    end_branch(stack, &narrow, whole ? &branch : NULL, rows,
               whole ? memory->forward_in : stack->activated,
               (residual_epilogue){.base = post ? memory->forward_in : memory->middle,
                                   .mask = dropout_at(p, l, SITE_FORWARD),
                                   .y = memory->sum,
                                   .normed = next.normed,
                                   .statistics = next.statistics,
                                   .norm = &next.norm});
    return SHOAL_OK;
}

shoal_status sh_encoder_forward(encoder *stack, const encoder_weights *weights,
                                const packing *sequences, row_subset wanted,
                                dropout_key random, const float *x, const float **out) {
    const encoder_limits *limits = &stack->limits;
    if (sequences->batch < 0 || sequences->batch > limits->batch)
        return sh_fail(stack->context, SHOAL_INVALID,
                       "batch is %lld: the limit of this encoder is %lld sequences",
                       (long long)sequences->batch, (long long)limits->batch);
    stack->offsets[0] = 0;
    for (int64_t b = 0; b < limits->batch; b++) {
        int64_t next = stack->offsets[b];
        if (b < sequences->batch) {
            next = sequences->offsets[b + 1];
            int64_t length = next - stack->offsets[b];
            if (sequences->offsets[0] != 0 || length < 0 || length > limits->length)
                return sh_fail(stack->context, SHOAL_INVALID,
                               "sequence %lld of the batch has %lld rows: it must have 0 "
                               "to %lld, and the first must begin at row 0",
                               (long long)b, (long long)length,
                               (long long)limits->length);
        }
        if (next > limits->rows)
            return sh_fail(stack->context, SHOAL_INVALID,
                           "the batch has more than %lld rows, the limit of this encoder",
                           (long long)limits->rows);
        stack->offsets[b + 1] = next; /* sequences beyond the batch are empty */
    }
    const pass p = {stack, weights, packing_rows(sequences), wanted, random};
    const int64_t layers = stack->shape.layers;
    const bool post = stack->shape.post_norm;
    *out = x;
    if (!post) {
        const norm_step first = begin_norm(&p, 0);
        sh_norm_forward(stack->context, &first.norm, p.rows, x, first.normed,
                        first.statistics);
    }
    for (int64_t l = 0; l < layers; l++) {
        TRY(run_layer(&p, l, *out));
        *out = stack->layers[l].out;
    }
    if (!post)
        *out = stack->finished;
    return SHOAL_OK;
}

/* ---- Backward ------------------------------------------------------------------------
 * `gradient` [R][M] goes down the stream in place: with respect to a layer's output on
 * entry, to its input on return. f(hidden) is computed again, together with its slope;
 * everything else that is needed was kept. */

/* The gradient at a dropout's input; itself when there is none. */
static const float *through_dropout(encoder *stack, dropout_mask mask, int64_t rows,
                                    const float *gradient) {
    if (mask.rate <= 0)
        return gradient;
    sh_dropout_apply(stack->context, &mask, rows, stack->model, gradient,
                     stack->grad_dropped);
    return stack->grad_dropped;
}

/* After the product that gives the gradient of `activated`. */
typedef struct {
    activation kind;
    dropout_mask mask;
    const float *hidden;
    float *activated, *gradient;
    int64_t size;
} slope_epilogue;

static void take_slope(const void *shared, const shoal_context *context, int64_t first,
                       int64_t count, int64_t left, int64_t width) {
    const slope_epilogue *s = shared;
    float factors[DROPOUT_PIECE];
    for (int64_t row = first; row < first + count; row++)
        for (int64_t from = left; from < left + width; from += DROPOUT_PIECE) {
            int64_t some = min(DROPOUT_PIECE, left + width - from);
            int64_t at = row * s->size + from;
            activation_slope(context, s->kind, some, s->hidden + at, s->gradient + at,
                             s->gradient + at, s->activated + at);
            if (s->mask.rate > 0) {
                sh_dropout_factors(&s->mask, row, from, some, factors);
                context->kernels->multiply(some, factors, s->gradient + at);
                context->kernels->multiply(some, factors, s->activated + at);
            }
        }
}

/* From the gradient at the feed-forward's output to that at its input: overwrites `into`
   or is added to it. */
static void forward_branch(encoder *stack, const encoder_layer *weights,
                           const layer_memory *memory, int64_t rows, dropout_mask inner,
                           const float *dy, bool onto, float *into) {
    const shoal_context *context = stack->context;
    const linear narrow = narrow_linear(stack, weights);
    const linear widen = widen_linear(stack, weights);
    const int64_t model = stack->model, wide = widen.outputs;
    slope_epilogue s = {.kind = stack->shape.activation,
                        .mask = inner,
                        .hidden = memory->hidden,
                        .activated = stack->activated,
                        .gradient = stack->grad_hidden,
                        .size = wide};
    sh_matmul_data(context, rows, wide, model, (const_matrix){dy, model},
                   (const_matrix){narrow.weight.data, wide}, false,
                   (matrix){stack->grad_hidden, wide},
                   (epilogue){.run = take_slope, .shared = &s});
    sh_linear_backward(context, &narrow, rows, (const_matrix){stack->activated, wide},
                       (const_matrix){dy, model}, (matrix){0});
    sh_linear_backward(context, &widen, rows, (const_matrix){memory->forward_in, model},
                       (const_matrix){stack->grad_hidden, wide}, (matrix){0});
    sh_matmul_data(context, rows, model, wide, (const_matrix){stack->grad_hidden, wide},
                   (const_matrix){widen.weight.data, model}, onto, (matrix){into, model},
                   (epilogue){0});
}

typedef struct {
    const encoder *stack;
    int64_t rows;
} key_call;

/* The keys' gradient joins the queries', whose projection they share. */
static void join_keys(void *shared, int64_t task, int thread UNUSED) {
    const key_call *c = shared;
    const encoder *stack = c->stack;
    int64_t last = min((task + 1) * ROW_BLOCK, c->rows);
    for (int64_t row = task * ROW_BLOCK; row < last; row++)
        stack->context->kernels->add(stack->model, stack->grad_keys + row * stack->width,
                                     stack->grad_projected + row * stack->width);
}

/* From the wanted rows, which lie in front, to all rows; the others are 0. In place, from
   the last row to the first: wanted row i moves to rows[i] >= i, so that no row is
   overwritten before it has moved. */
static void scatter_wanted(const pass *p, float *gradient) {
    const int64_t size = p->stack->model;
    int64_t left = p->wanted.count;
    for (int64_t row = p->rows - 1; row >= 0; row--) {
        float *to = gradient + row * size;
        if (left > 0 && p->wanted.rows[left - 1] == row)
            memmove(to, gradient + --left * size, (size_t)size * sizeof(float));
        else
            memset(to, 0, (size_t)size * sizeof(float));
    }
}

/* From grad_rows, which output_branch gave, to the gradient at the attention's input.
   `in` is what was projected. */
static shoal_status attention_branch(encoder *stack, const encoder_layer *weights,
                                     const layer_memory *memory, int64_t rows,
                                     const float *in, bool onto, float *into) {
    const shoal_context *context = stack->context;
    const int64_t model = stack->model;
    shoal_inputs inputs = attention_inputs(stack, memory);

    float *all = stack->grad_projected;
    const bool shared = encoder_shares_keys(&stack->shape);
    shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                 .out = memory->attended,
                                 .dout = stack->grad_rows,
                                 .dq = all,
                                 .dk = shared ? stack->grad_keys : all + model,
                                 .dv = all + (shared ? model : 2 * model)};
    TRY(shoal_backward(stack->plan, &inputs, &gradients));
    if (stack->grad_keys) {
        key_call c = {stack, rows};
        sh_run_tasks(stack->context, ceil_divide(rows, ROW_BLOCK), join_keys, &c);
    }
    projections parts = projections_of(stack, weights);
    for (int i = 0; i < parts.count; i++) {
        const linear *part = &parts.parts[i];
        const_matrix d = {stack->grad_projected + parts.columns[i], stack->width};
        sh_linear_backward(context, part, rows, (const_matrix){in, model}, d,
                           (matrix){0});
        sh_matmul_data(context, rows, model, part->outputs, d,
                       (const_matrix){part->weight.data, model}, onto || i > 0,
                       (matrix){into, model}, (epilogue){0});
    }
    return SHOAL_OK;
}

/* Post-norm: the gradient passes the norm behind each branch, and what the branch gives
   is added to it. Pre-norm: what the branch gives passes the norm in front of it first,
   and is added then. */
static shoal_status layer_backward(const pass *p, int64_t l, const float *stream,
                                   float *gradient) {
    encoder *stack = p->stack;
    const encoder_layer *weights = &p->weights->layers[l];
    const layer_memory *memory = &stack->layers[l];
    const int64_t rows = rows_after(p, l);
    const bool post = stack->shape.post_norm;
    const layer_norm second = forward_norm(stack, weights);
    const layer_norm first = attention_norm(stack, weights);
    float *given = post ? gradient : stack->grad_rows; /* of a branch */
    if (post)
        sh_norm_backward(stack->context, &second, rows, memory->sum,
                         memory->forward_statistics, gradient, NULL, gradient,
                         stack->norm_parts);
    const float *dy =
        through_dropout(stack, dropout_at(p, l, SITE_FORWARD), rows, gradient);
    forward_branch(stack, weights, memory, rows, dropout_at(p, l, SITE_ACTIVATION), dy,
                   post, given);
    sh_norm_backward(stack->context, post ? &first : &second, rows, memory->middle,
                     post ? memory->attention_statistics : memory->forward_statistics,
                     given, post ? NULL : gradient, gradient, stack->norm_parts);
    dy = through_dropout(stack, dropout_at(p, l, SITE_ATTENTION), rows, gradient);
    /* The output product's way back: grad_rows is then the gradient of what the attention
       gave. dy may be `stream`, the gradient around the branch; both have all rows
       afterwards. */
    const linear output = output_linear(stack, weights);
    sh_linear_backward(stack->context, &output, rows,
                       (const_matrix){attended_rows(p, l, stack->grad_projected),
                                      stack->model},
                       (const_matrix){dy, stack->model},
                       (matrix){stack->grad_rows, stack->model});
    if (narrows(p, l)) {
        scatter_wanted(p, stack->grad_rows);
        scatter_wanted(p, gradient);
    }
    TRY(attention_branch(stack, weights, memory, p->rows,
                         post ? stream : memory->attention_in, post, given));
    if (!post)
        sh_norm_backward(stack->context, &first, p->rows, stream,
                         memory->attention_statistics, given, gradient, gradient,
                         stack->norm_parts);
    return SHOAL_OK;
}

shoal_status sh_encoder_backward(encoder *stack, const encoder_weights *weights,
                                 const packing *sequences, row_subset wanted,
                                 dropout_key random, const float *x, float *gradient) {
    if (!stack->limits.training)
        return sh_fail(stack->context, SHOAL_INVALID,
                       "encoder_backward: the encoder was created for inference");
    const pass p = {stack, weights, packing_rows(sequences), wanted, random};
    const int64_t layers = stack->shape.layers;
    if (!stack->shape.post_norm) {
        layer_norm norm = final_norm(stack, weights);
        sh_norm_backward(stack->context, &norm, rows_after(&p, layers - 1),
                         layers ? stack->layers[layers - 1].out : x,
                         stack->final_statistics, gradient, NULL, gradient,
                         stack->norm_parts);
    }
    for (int64_t l = layers - 1; l >= 0; l--) {
        const float *stream = l > 0 ? stack->layers[l - 1].out : x;
        TRY(layer_backward(&p, l, stream, gradient));
        if (stack->layer_done)
            stack->layer_done(stack->layer_shared, l);
    }
    return SHOAL_OK;
}

void sh_encoder_measure(encoder *stack, int64_t samples, double *errors) {
    stack->errors = errors;
    stack->error_samples = samples;
}

void sh_encoder_watch(encoder *stack, layer_callback *callback, void *shared) {
    stack->layer_done = callback;
    stack->layer_shared = shared;
}
