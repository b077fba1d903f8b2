#include "models/nn/network.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

struct network {
    shoal_context *context;
    network_shape shape;
    encoder_limits limits;
    int64_t model;
    float embedding_scale;
    encoder *stack;
    encoder_weights weights;
    nn_tensor embedding; /* of tokens */
    nn_tensor learned;   /* positions */
    linear input, output;
    size_t bytes;
    encoder_layer *layers; /* [layers] */
    float *positions;      /* [length][M], sinusoidal */
    float *x;              /* [R][M], what the encoder is given */
    float *pooled;         /* [batch][M], heads of sequences */
    float *pooled_gradient;
    float *logits;        /* [logit rows][outputs] */
    float *gradient;      /* [R][M], training only */
    const float *encoded; /* [R][M], what the encoder gave */
};

static bool has_pool(const network_shape *shape) {
    return shape->head != HEAD_POSITIONS;
}

shoal_status sh_network_check(shoal_context *context, const network_shape *shape) {
    const struct {
        const char *name;
        int64_t value, most;
    } sizes[] = {
        {"layers + 1", shape->encoder.layers + 1, 4096},
        {"heads", shape->encoder.heads, 65536},
        {"head_dim", shape->encoder.head_dim, 65536},
        {"feed_forward", shape->encoder.feed_forward, INT32_MAX / 4},
        {"vocabulary", shape->input == INPUT_TOKENS ? shape->vocabulary : 1, INT32_MAX},
        {"features", shape->input == INPUT_FEATURES ? shape->features : 1, INT32_MAX / 4},
        {"max_length", shape->max_length, INT32_MAX / 2},
        {"outputs", shape->outputs, INT32_MAX / 4},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return sh_fail(context, SHOAL_INVALID,
                           "model: %s is %lld: it must be from 1 to %lld", sizes[i].name,
                           (long long)sizes[i].value, (long long)sizes[i].most);
    if (!isfinite(shape->embedding_scale))
        return sh_fail(context, SHOAL_INVALID, "model: embedding_scale is not finite");
    if (!(shape->encoder.dropout >= 0 && shape->encoder.dropout < 1))
        return sh_fail(context, SHOAL_INVALID,
                       "model: dropout is %g: it must be at least 0 and below 1",
                       (double)shape->encoder.dropout);
    return SHOAL_OK;
}

void sh_network_describe(parameters *into, const void *model) {
    const network_shape *shape = model;
    const int64_t size = sh_encoder_model(&shape->encoder);
    const float spread = 1 / sqrtf((float)size);
    if (shape->input == INPUT_TOKENS) {
        sh_parameters_add(into,
                          (parameter_shape){.start = START_NORMAL,
                                            .spread = spread,
                                            .rank = 2,
                                            .shape = {shape->vocabulary, size}},
                          "embedding.weight");
    } else {
        sh_parameters_add(into,
                          (parameter_shape){.start = START_XAVIER,
                                            .rank = 2,
                                            .shape = {size, shape->features}},
                          "input.weight");
        sh_parameters_add(into, (parameter_shape){.rank = 1, .shape = {size}},
                          "input.bias");
    }
    if (shape->positions == POSITIONS_LEARNED)
        sh_parameters_add(into,
                          (parameter_shape){.start = START_NORMAL,
                                            .spread = 0.02f, /* small beside the tokens */
                                            .rank = 2,
                                            .shape = {shape->max_length, size}},
                          "positions.weight");
    sh_encoder_describe(into, &shape->encoder);
    sh_parameters_add(into,
                      (parameter_shape){.start = START_XAVIER,
                                        .rank = 2,
                                        .shape = {shape->outputs, size}},
                      "output.weight");
    sh_parameters_add(into, (parameter_shape){.rank = 1, .shape = {shape->outputs}},
                      "output.bias");
}

static void place(void *argument, block_layout *block) {
    network *net = argument;
    const int64_t rows = net->limits.rows, batch = net->limits.batch, model = net->model;
    const bool pool = has_pool(&net->shape);
    const int64_t logit_rows = pool ? batch : rows;
    sh_reserve(block, 1, sizeof *net);
    net->layers = sh_reserve(block, net->shape.encoder.layers, sizeof(encoder_layer));
    net->x = sh_reserve(block, sh_mul_checked(rows, model), sizeof(float));
    net->logits =
        sh_reserve(block, sh_mul_checked(logit_rows, net->shape.outputs), sizeof(float));
    if (net->shape.positions == POSITIONS_SINUSOIDAL)
        net->positions =
            sh_reserve(block, sh_mul_checked(net->limits.length, model), sizeof(float));
    if (pool) {
        net->pooled = sh_reserve(block, sh_mul_checked(batch, model), sizeof(float));
        net->pooled_gradient =
            sh_reserve(block, sh_mul_checked(batch, model), sizeof(float));
    }
    if (net->limits.training)
        net->gradient = sh_reserve(block, sh_mul_checked(rows, model), sizeof(float));
}

static void bind(network *net, const parameters *arena) {
    const int64_t model = net->model;
    sh_encoder_bind(arena, &net->shape.encoder, net->layers, &net->weights);
    net->embedding = sh_parameters_tensor(arena, "embedding.weight");
    net->learned = sh_parameters_tensor(arena, "positions.weight");
    net->input = (linear){net->shape.features, model,
                          sh_parameters_tensor(arena, "input.weight"),
                          sh_parameters_tensor(arena, "input.bias")};
    net->output = (linear){model, net->shape.outputs,
                           sh_parameters_tensor(arena, "output.weight"),
                           sh_parameters_tensor(arena, "output.bias")};
}

static shoal_status check_arena(shoal_context *context, const network_shape *shape,
                                const encoder_limits *limits, const parameters *arena) {
    parameters wanted = {.context = context};
    sh_network_describe(&wanted, shape);
    if (wanted.count != arena->count || wanted.size > arena->size)
        return sh_fail(
            context, SHOAL_INVALID,
            "the parameters are of another model: %lld arrays of %lld numbers, "
            "where this one has %lld of %lld",
            (long long)arena->count, (long long)arena->size, (long long)wanted.count,
            (long long)wanted.size);
    if (limits->training && !arena->gradients)
        return sh_fail(context, SHOAL_INVALID,
                       "the parameters have no gradients: training needs them");
    if (limits->length > shape->max_length)
        return sh_fail(context, SHOAL_INVALID,
                       "sequences of %lld positions: the model was made for up to %lld",
                       (long long)limits->length, (long long)shape->max_length);
    return SHOAL_OK;
}

static shoal_status keep(network *net, const parameters *arena, network **made) {
    network *kept = sh_allocate_parts(net->context, place, net, &net->bytes);
    if (!kept)
        return SHOAL_NO_MEMORY;
    bind(net, arena);
    if (net->positions)
        sh_sinusoidal_positions(net->limits.length, net->model, net->positions);
    *kept = *net;
    *made = kept;
    return SHOAL_OK;
}

shoal_status sh_network_create(shoal_context *context, const network_shape *shape,
                               const encoder_limits *limits, const parameters *arena,
                               network **made) {
    *made = NULL;
    shoal_status status = sh_network_check(context, shape);
    if (status == SHOAL_OK)
        status = check_arena(context, shape, limits, arena);
    if (status != SHOAL_OK)
        return status;
    network net = {.context = context,
                   .shape = *shape,
                   .limits = *limits,
                   .model = sh_encoder_model(&shape->encoder)};
    net.limits.half_weights = false;
    net.embedding_scale = shape->embedding_scale != 0 ? shape->embedding_scale
                                                      : sqrtf((float)net.model);
    status = sh_encoder_create(context, &shape->encoder, &net.limits, &net.stack);
    if (status != SHOAL_OK)
        return status;
    status = keep(&net, arena, made);
    if (status != SHOAL_OK)
        sh_encoder_destroy(net.stack);
    return status;
}

void sh_network_destroy(network *net) {
    if (!net)
        return;
    sh_encoder_destroy(net->stack);
    sh_release(net->context, net);
}

size_t sh_network_memory(const network *net) {
    return net->bytes + sh_encoder_memory(net->stack);
}

const encoder *sh_network_encoder(const network *net) {
    return net->stack;
}

/* ---- Heads of sequences ------------------------------------------------------------- */

typedef struct {
    const shoal_context *context;
    network_head how;
    const packing *sequences;
    int64_t size;
    const float *from;
    float *to;
} pool_call;

static void pool_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const pool_call *c = shared;
    int64_t first = c->sequences->offsets[task];
    int64_t length = c->sequences->offsets[task + 1] - first;
    const float *x = c->from + first * c->size;
    float *out = c->to + task * c->size;
    memset(out, 0, sizeof(float) * (size_t)c->size);
    if (length == 0)
        return;
    c->context->kernels->column_sums(c->how == HEAD_FIRST ? 1 : length, c->size, x,
                                     c->size, out);
    if (c->how == HEAD_MEAN)
        c->context->kernels->scale_by(c->size, 1.0f / (float)length, out);
}

static void pool_forward(const shoal_context *context, network_head how,
                         const packing *sequences, int64_t size, const float *x,
                         float *out) {
    pool_call c = {context, how, sequences, size, x, out};
    sh_team_run(sh_team_of(context), sequences->batch, pool_task, &c);
}

static void pool_back_task(void *shared, int64_t task, int thread) {
    (void)thread;
    const pool_call *c = shared;
    int64_t first = c->sequences->offsets[task];
    int64_t length = c->sequences->offsets[task + 1] - first;
    const float share = c->how == HEAD_MEAN ? 1.0f / (float)length : 1;
    const float *dout = c->from + task * c->size;
    for (int64_t row = 0; row < length; row++) {
        float *dx = c->to + (first + row) * c->size;
        bool touched = c->how == HEAD_MEAN || row == 0;
        for (int64_t i = 0; i < c->size; i++)
            dx[i] = touched ? share * dout[i] : 0;
    }
}

static void pool_backward(const shoal_context *context, network_head how,
                          const packing *sequences, int64_t size, const float *dout,
                          float *dx) {
    pool_call c = {context, how, sequences, size, dout, dx};
    sh_team_run(sh_team_of(context), sequences->batch, pool_back_task, &c);
}

/* ---- Forward ----------------------------------------------------------------------- */

static shoal_status check_batch(const network *net, const network_batch *batch) {
    const packing *sequences = &batch->sequences;
    if (sequences->batch < 0 || (sequences->batch > 0 && !sequences->offsets))
        return sh_fail(net->context, SHOAL_INVALID, "the batch has no offsets");
    const int64_t rows = packing_rows(sequences);
    if (rows < 0 || rows > net->limits.rows)
        return sh_fail(net->context, SHOAL_INVALID,
                       "the batch has %lld rows: this model was made for up to %lld",
                       (long long)rows, (long long)net->limits.rows);
    if (net->shape.input == INPUT_FEATURES)
        return rows == 0 || batch->features
                   ? SHOAL_OK
                   : sh_fail(net->context, SHOAL_INVALID, "the batch has no features");
    if (rows > 0 && !batch->tokens)
        return sh_fail(net->context, SHOAL_INVALID, "the batch has no tokens");
    for (int64_t row = 0; row < rows; row++)
        if (batch->tokens[row] < 0 || batch->tokens[row] >= net->shape.vocabulary)
            return sh_fail(net->context, SHOAL_INVALID,
                           "token %d at row %lld: the vocabulary has 0 to %lld",
                           (int)batch->tokens[row], (long long)row,
                           (long long)net->shape.vocabulary - 1);
    return SHOAL_OK;
}

/* The encoder checks these too, but positions are added before it is reached. */
static shoal_status check_lengths(const network *net, const packing *sequences) {
    for (int64_t b = 0; b < sequences->batch; b++) {
        int64_t length = sequences->offsets[b + 1] - sequences->offsets[b];
        if (sequences->offsets[0] != 0 || length < 0 || length > net->limits.length)
            return sh_fail(
                net->context, SHOAL_INVALID,
                "sequence %lld of the batch has %lld positions: it must have 0 to "
                "%lld, and the first begins at row 0",
                (long long)b, (long long)length, (long long)net->limits.length);
    }
    if (sequences->batch > net->limits.batch)
        return sh_fail(net->context, SHOAL_INVALID,
                       "a batch of %lld sequences: this model was made for up to %lld",
                       (long long)sequences->batch, (long long)net->limits.batch);
    return SHOAL_OK;
}

static dropout_mask input_dropout(const network *net, const dropout_key *random) {
    return (dropout_mask){.rate = random->dropout ? net->shape.encoder.dropout : 0,
                          .seed = random->seed,
                          .step = random->step,
                          .site = 0};
}

static void take_input(network *net, const network_batch *batch) {
    const int64_t rows = packing_rows(&batch->sequences), model = net->model;
    if (net->shape.input == INPUT_TOKENS)
        sh_embedding_forward(net->context, rows, model, batch->tokens,
                             net->embedding.data, net->embedding_scale, net->x);
    else
        sh_linear_forward(net->context, &net->input, rows,
                          (const_matrix){batch->features, net->shape.features},
                          (matrix){net->x, model}, NULL);
    if (net->shape.positions != POSITIONS_NONE)
        sh_positions_forward(net->context, &batch->sequences, model,
                             net->positions ? net->positions : net->learned.data, net->x);
    dropout_mask mask = input_dropout(net, &batch->random);
    if (mask.rate > 0)
        sh_dropout_apply(net->context, &mask, rows, model, net->x, net->x);
}

int64_t sh_network_logit_rows(const network *net, const network_batch *batch) {
    return has_pool(&net->shape) ? batch->sequences.batch
           : batch->wanted.rows  ? batch->wanted.count
                                 : packing_rows(&batch->sequences);
}

float *sh_network_logits(const network *net) {
    return net->logits;
}

shoal_status sh_network_forward(network *net, const network_batch *batch) {
    shoal_status status = check_batch(net, batch);
    if (status == SHOAL_OK)
        status = check_lengths(net, &batch->sequences);
    if (status != SHOAL_OK)
        return status;
    take_input(net, batch);
    status = sh_encoder_forward(net->stack, &net->weights, &batch->sequences,
                                batch->wanted, batch->random, net->x, &net->encoded);
    if (status != SHOAL_OK)
        return status;
    const float *rows = net->encoded;
    if (has_pool(&net->shape)) {
        pool_forward(net->context, net->shape.head, &batch->sequences, net->model, rows,
                     net->pooled);
        rows = net->pooled;
    }
    sh_linear_forward(net->context, &net->output, sh_network_logit_rows(net, batch),
                      (const_matrix){rows, net->model},
                      (matrix){net->logits, net->shape.outputs}, NULL);
    return SHOAL_OK;
}

/* ---- Backward ---------------------------------------------------------------------- */

static void input_backward(network *net, const network_batch *batch) {
    const packing *sequences = &batch->sequences;
    const int64_t rows = packing_rows(sequences), model = net->model;
    dropout_mask mask = input_dropout(net, &batch->random);
    if (mask.rate > 0)
        sh_dropout_apply(net->context, &mask, rows, model, net->gradient, net->gradient);
    if (net->learned.gradient)
        sh_positions_backward(net->context, sequences, model, net->limits.length,
                              net->gradient, net->learned.gradient);
    if (net->shape.input == INPUT_TOKENS)
        sh_embedding_backward(net->context, rows, model, batch->tokens, net->gradient,
                              net->embedding_scale, net->embedding.gradient);
    else
        sh_linear_backward(net->context, &net->input, rows,
                           (const_matrix){batch->features, net->shape.features},
                           (const_matrix){net->gradient, model}, (matrix){0});
}

shoal_status sh_network_backward(network *net, const network_batch *batch) {
    if (!net->limits.training)
        return sh_fail(net->context, SHOAL_INVALID,
                       "network_backward: the network was made for inference");
    shoal_status status = check_batch(net, batch);
    if (status != SHOAL_OK)
        return status;
    const bool pool = has_pool(&net->shape);
    const int64_t model = net->model;
    sh_linear_backward(net->context, &net->output, sh_network_logit_rows(net, batch),
                       (const_matrix){pool ? net->pooled : net->encoded, model},
                       (const_matrix){net->logits, net->shape.outputs},
                       (matrix){pool ? net->pooled_gradient : net->gradient, model});
    if (pool)
        pool_backward(net->context, net->shape.head, &batch->sequences, model,
                      net->pooled_gradient, net->gradient);
    status = sh_encoder_backward(net->stack, &net->weights, &batch->sequences,
                                 batch->wanted, batch->random, net->x, net->gradient);
    if (status == SHOAL_OK)
        input_backward(net, batch);
    return status;
}
