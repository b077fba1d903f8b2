/* Models: in front of the encoder an embedding of tokens or a product of features (with
   convolutions behind it: stem.c), and positions; behind it a pooling of rows and a
   product that gives logits.

   R: rows of a batch, M: features of a row inside the model. */
#include "models/nn/model.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/parallel.h"
#include "models/kernels/kernels.h"

/* ---- Configuration --------------------------------------------------------------- */

static bool is_bare(const shoal_model_config *config) {
    return config->outputs == 0;
}

static bool pools(const shoal_model_config *config) {
    return config->pooling != SHOAL_POOLING_NONE;
}

static shoal_status check_config(shoal_context *context,
                                 const shoal_model_config *config) {
    const bool tokens = config->vocabulary != 0, features = config->features != 0;
    if ((tokens && features) || (tokens || features) == is_bare(config))
        return sh_fail(context, SHOAL_INVALID,
                       "vocabulary is %lld, features %lld and outputs %lld; give outputs "
                       "and one of the others, or none of the three",
                       (long long)config->vocabulary, (long long)config->features,
                       (long long)config->outputs);
    if (config->norm < SHOAL_NORM_PRE || config->norm > SHOAL_NORM_POST ||
        config->activation < SHOAL_ACTIVATION_GELU ||
        config->activation > SHOAL_ACTIVATION_RELU ||
        config->positions < SHOAL_POSITIONS_SINUSOIDAL ||
        config->positions > SHOAL_POSITIONS_NONE ||
        config->pooling < SHOAL_POOLING_NONE || config->pooling > SHOAL_POOLING_FIRST)
        return sh_fail(context, SHOAL_INVALID,
                       "invalid value for norm, activation, positions or pooling");
    if (is_bare(config) && pools(config))
        return sh_fail(context, SHOAL_INVALID,
                       "a model of layers only cannot have pooling");
    if (!(config->dropout >= 0 && config->dropout < 1))
        return sh_fail(context, SHOAL_INVALID,
                       "model: dropout is %g: it must be at least 0 and below 1",
                       (double)config->dropout);
    const struct {
        const char *name;
        int64_t value, min, max;
    } sizes[] = {
        {"layers", config->layers, 1, 4095},
        {"heads", config->heads, 1, 65536},
        {"head_dim", config->head_dim, 1, 65536},
        {"feed_forward", config->feed_forward, 1, INT32_MAX / 4},
        {"vocabulary", config->vocabulary, 0, INT32_MAX},
        {"features", config->features, 0, INT32_MAX / 4},
        {"max_length", config->max_length, is_bare(config) ? 0 : 1, INT32_MAX / 2},
        {"outputs", config->outputs, 0, INT32_MAX / 4},
        {"convolutions", config->convolutions, 0, config->features ? 1024 : 0},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].min || sizes[i].value > sizes[i].max)
            return sh_fail(context, SHOAL_INVALID,
                           "model: %s is %lld: it must be from %lld to %lld",
                           sizes[i].name, (long long)sizes[i].value,
                           (long long)sizes[i].min, (long long)sizes[i].max);
    return sh_frame_check(context, config);
}

static encoder_shape encoder_of(const shoal_model_config *config) {
    return (encoder_shape){.layers = config->layers,
                           .heads = config->heads,
                           .head_dim = config->head_dim,
                           .feed_forward = config->feed_forward,
                           .attention = config->attention,
                           .shared_qk = config->shared_qk != 0,
                           .post_norm = config->norm == SHOAL_NORM_POST,
                           .activation = activation_of(config),
                           .dropout = config->dropout,
                           .whole_inside = config->form != SHOAL_FORM_PLAIN,
                           .epsilon = config->epsilon};
}

/* ---- Parameters ------------------------------------------------------------------ */

static void add_matrix(parameters *into, int64_t outputs, int64_t inputs,
                       parameter_start start, float spread, const char *name) {
    parameter_shape shape = matrix_shape(start, outputs, inputs);
    shape.spread = spread;
    sh_parameters_add(into, shape, "%s", name);
}

static const float SMALL = 0.02f;

/* A describe_function. Embeddings begin with deviation 1 / sqrt(M) and are multiplied by
   sqrt(M), so that they and the sinusoids that are added to them are about as large. */
static void describe(parameters *into, const void *shared) {
    const shoal_model_config *config = shared;
    const encoder_shape shape = encoder_of(config);
    const int64_t width = width_of(config);
    const bool plain = config->form == SHOAL_FORM_PLAIN;
    if (config->vocabulary) {
        add_matrix(into, config->vocabulary, width, START_NORMAL,
                   plain ? 1 / sqrtf((float)width) : SMALL, "embedding.weight");
    } else if (config->features) {
        add_matrix(into, width, config->features, START_XAVIER, 0, "input.weight");
        sh_parameters_add(into, vector_shape(START_ZERO, width), "input.bias");
        sh_stem_describe(into, config);
    }
    if (!is_bare(config) &&
        config->positions == SHOAL_POSITIONS_LEARNED) /* small beside tokens */
        add_matrix(into, config->max_length, width, START_NORMAL, SMALL,
                   "positions.weight");
    sh_frame_describe(into, config);
    sh_encoder_describe(into, &shape);
    if (!is_bare(config)) {
        add_matrix(into, config->outputs, width, plain ? START_XAVIER : START_NORMAL,
                   SMALL, "output.weight");
        sh_parameters_add(into, vector_shape(START_ZERO, config->outputs), "output.bias");
    }
}

shoal_status sh_model_list(shoal_context *context, const shoal_model_config *config,
                           parameters **list) {
    *list = NULL;
    TRY(check_config(context, config));
    return sh_parameters_list(context, describe, config, list);
}

layer_norm sh_model_norm(const shoal_model *model, const char *name) {
    const float epsilon = model->config.epsilon;
    return (layer_norm){width_of(&model->config),
                        sh_parameters_tensor(model->arena, "%s.scale", name),
                        sh_parameters_tensor(model->arena, "%s.shift", name),
                        epsilon > 0 ? epsilon : 1e-5f};
}

/* ---- Creation -------------------------------------------------------------------- */

static void place(void *argument, block_layout *block) {
    shoal_model *model = argument;
    const shoal_model_config *config = &model->config;
    const encoder_limits *limits = &model->limits;
    const int64_t width = width_of(config);
    const int64_t rows = sh_mul_checked(limits->rows, width);
    const int64_t pooled = sh_mul_checked(limits->batch, width);
    sh_reserve(block, 1, sizeof *model);
    model->weights.layers =
        sh_reserve(block, config->layers, sizeof *model->weights.layers);
    if (is_bare(config))
        return;
    model->x = sh_reserve(block, rows, sizeof(float));
    model->logits =
        sh_reserve(block,
                   sh_mul_checked(pools(config) ? limits->batch : limits->rows,
                                  config->outputs),
                   sizeof(float));
    if (config->positions == SHOAL_POSITIONS_SINUSOIDAL)
        model->sinusoids = reserve_floats(block, limits->length, width);
    if (pools(config)) {
        model->pooled = sh_reserve(block, pooled, sizeof(float));
        model->pooled_gradient = sh_reserve(block, pooled, sizeof(float));
    }
    if (limits->training)
        model->gradient = sh_reserve(block, rows, sizeof(float));
    sh_frame_place(model, block);
    sh_stem_place(model, block);
}

/* The parts, once the structure is there; destroy takes back what was made. */
static shoal_status make_parts(shoal_model *model) {
    const encoder_shape shape = encoder_of(&model->config);
    const shoal_model_config *config = &model->config;
    TRY(sh_encoder_create(model->context, &shape, &model->limits, &model->stack));
    if (!model->owner) {
        TRY(sh_parameters_create(model->context, describe, config, model->limits.training,
                                 &model->arena));
        sh_parameters_start(model->arena, model->seed);
    }
    const parameters *arena = model->arena;
    sh_encoder_bind(arena, &shape, model->weights.layers, &model->weights);
    model->embedding = sh_parameters_tensor(arena, "embedding.weight");
    model->learned = sh_parameters_tensor(arena, "positions.weight");
    model->input = (linear){config->features, width_of(config),
                            sh_parameters_tensor(arena, "input.weight"),
                            sh_parameters_tensor(arena, "input.bias")};
    model->output = (linear){width_of(config), config->outputs,
                             sh_parameters_tensor(arena, "output.weight"),
                             sh_parameters_tensor(arena, "output.bias")};
    sh_frame_bind(model);
    sh_stem_bind(model);
    if (model->sinusoids)
        sh_sinusoidal_positions(model->limits.length, width_of(&model->config),
                                model->sinusoids);
    return SHOAL_OK;
}

/* owner: whose parameters it shares; NULL: it has its own. */
static shoal_status make_model(shoal_context *context, const shoal_model_config *config,
                               uint64_t seed, encoder_limits limits,
                               const shoal_model *owner, shoal_model **model) {
    shoal_model draft = {.context = context,
                         .config = *config,
                         .seed = seed,
                         .limits = limits,
                         .owner = owner,
                         .arena = owner ? owner->arena : NULL,
                         .out_rows = -1};
    /* No sequence is longer than all rows together: a max_length that no tensor stands
       behind costs no memory. */
    draft.limits.length = min(config->max_length, limits.rows);
    TRY(check_config(context, config));
    if (limits.batch < 0 || limits.rows < 0)
        return sh_fail(context, SHOAL_INVALID,
                       "max_batch and max_rows must be 0 or more");
    shoal_model *made = sh_allocate_parts(context, place, &draft, &draft.bytes);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = draft;
    const shoal_status status = make_parts(made);
    if (status == SHOAL_OK)
        *model = made;
    else
        shoal_model_destroy(made);
    return status;
}

static shoal_status create_over(shoal_transport *over, shoal_context *context,
                                const shoal_model_config *config, uint64_t seed,
                                int64_t max_batch, int64_t max_rows, unsigned flags,
                                shoal_model **model) {
    if (model)
        *model = NULL;
    if (!context || !config || !model || !context->kernels ||
        (flags & ~(unsigned)SHOAL_WITH_BACKWARD))
        return sh_fail(context, SHOAL_INVALID,
                       "context, config or model is NULL, the context is invalid, or "
                       "flags are neither 0 nor SHOAL_WITH_BACKWARD");
    shoal_model_config own = shoal_model_config_defaults();
    TRY(READ_STRUCT(context, shoal_model_config, config, &own));
    const encoder_limits limits = {.batch = max_batch,
                                   .rows = max_rows,
                                   .training = (flags & SHOAL_WITH_BACKWARD) != 0,
                                   .over = over};
    return make_model(context, &own, seed, limits, NULL, model);
}

shoal_status shoal_model_create(shoal_context *context, const shoal_model_config *config,
                                uint64_t seed, int64_t max_batch, int64_t max_rows,
                                unsigned flags, shoal_model **model) {
    return create_over(NULL, context, config, seed, max_batch, max_rows, flags, model);
}

shoal_status shoal_model_create_over(shoal_transport *transport, shoal_context *context,
                                     const shoal_model_config *config, uint64_t seed,
                                     int64_t max_batch, int64_t max_rows, unsigned flags,
                                     shoal_model **model) {
    if (model)
        *model = NULL;
    if (!transport || !config || !is_bare(config))
        return sh_fail(context, SHOAL_INVALID,
                       "transport or config is NULL, or it has outputs: models over "
                       "several ranks must have layers only");
    return create_over(transport, context, config, seed, max_batch, max_rows, flags,
                       model);
}

shoal_status shoal_model_create_view(shoal_model *model, const shoal_attention *attention,
                                     int64_t max_batch, int64_t max_rows,
                                     shoal_model **view) {
    if (view)
        *view = NULL;
    if (!model || !view)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or view is NULL");
    /* Another kind of attention, for weights that were made for the model's. */
    shoal_model_config config = model->config;
    encoder_shape shape = encoder_of(&config);
    config.shared_qk = shape.shared_qk = encoder_shares_keys(&shape);
    if (attention)
        config.attention = shape.attention = *attention;
    if (encoder_shares_keys(&shape) != shape.shared_qk) {
        char kind[64];
        shoal_attention_print(attention, kind, sizeof kind);
        return sh_fail(model->context, SHOAL_INVALID,
                       "%s uses the queries as keys, but this model has separate "
                       "projections; train a model with shared_qk",
                       kind);
    }
    if (config.positions != SHOAL_POSITIONS_LEARNED && config.max_length < max_rows)
        config.max_length = max_rows;
    const encoder_limits limits = {.batch = max_batch, .rows = max_rows};
    return make_model(model->context, &config, model->seed, limits,
                      model->owner ? model->owner : model, view);
}

void shoal_model_destroy(shoal_model *model) {
    if (!model)
        return;
    sh_encoder_destroy(model->stack);
    if (!model->owner)
        sh_parameters_destroy(model->arena);
    sh_release(model->context, model);
}

/* ---- Looking --------------------------------------------------------------------- */

const shoal_model_config *shoal_model_settings(const shoal_model *model) {
    return model ? &model->config : NULL;
}

size_t shoal_model_workspace(const shoal_model *model) {
    if (!model)
        return 0;
    const parameters *arena = model->arena;
    const size_t vectors = model->owner ? 0 : arena->gradients ? 2 : 1;
    const size_t list = model->owner ? 0 : (size_t)arena->count * sizeof *arena->list;
    return model->bytes + vectors * (size_t)arena->size * sizeof(float) + list +
           sh_encoder_memory(model->stack);
}

/* A view has none, though its owner may. */
static float *gradients_of(const shoal_model *model) {
    return model->owner ? NULL : model->arena->gradients;
}

int shoal_model_parameter(shoal_model *model, int index, shoal_parameter *parameter_out) {
    if (!model || !parameter_out || index < 0 || index >= model->arena->count)
        return 0;
    const parameter *found = &model->arena->list[index];
    float *gradients = gradients_of(model);
    *parameter_out =
        (shoal_parameter){.name = found->name,
                          .dimensions = found->rank,
                          .values = model->arena->values + found->offset,
                          .gradients = gradients ? gradients + found->offset : NULL};
    memcpy(parameter_out->shape, found->shape, (size_t)found->rank * sizeof(int64_t));
    return 1;
}

int64_t shoal_model_vectors(shoal_model *model, float **values, float **gradients) {
    if (!model)
        return 0;
    if (values)
        *values = model->arena->values;
    if (gradients)
        *gradients = gradients_of(model);
    return model->arena->size;
}

/* ---- Telling of gradients ---------------------------------------------------------- */

/* Those from `first` on are there. */
static void tell_from(shoal_model *model, int64_t first) {
    const int64_t end = model->untold;
    model->untold = first;
    if (model->watcher && first < end)
        model->watcher(model->watcher_shared, first, end - first);
}

/* A layer_callback: a layer's parameters begin with its queries', and what stands behind
   the last layer is done before it. */
static void tell_layer(void *shared, int64_t layer) {
    shoal_model *model = shared;
    tell_from(model, model->weights.layers[layer].query.gradient - gradients_of(model));
}

shoal_status shoal_model_watch(shoal_model *model, shoal_gradient_callback callback,
                               void *shared) {
    if (!model || !gradients_of(model))
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model is NULL or has no gradients");
    model->watcher = callback;
    model->watcher_shared = shared;
    sh_encoder_watch(model->stack, callback ? tell_layer : NULL, model);
    return SHOAL_OK;
}

/* ---- Checks of a call ------------------------------------------------------------ */

static shoal_status check_inputs(const shoal_model *model,
                                 const shoal_model_inputs *inputs) {
    if (!inputs || inputs->batch < 0 || !inputs->offsets || inputs->first_row < 0 ||
        inputs->first_sequence < 0)
        return sh_fail(model->context, SHOAL_INVALID,
                       "inputs or offsets is NULL, or batch, first_row or "
                       "first_sequence is negative");
    const int64_t *offsets = inputs->offsets;
    if (inputs->batch > model->limits.batch || offsets[0] != 0)
        return sh_fail(
            model->context, SHOAL_INVALID,
            "batch is %lld, but the limit is %lld; offsets begin at %lld instead "
            "of 0",
            (long long)inputs->batch, (long long)model->limits.batch,
            (long long)offsets[0]);
    for (int64_t b = 0; b < inputs->batch; b++)
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] > model->limits.rows ||
            offsets[b + 1] - offsets[b] > model->limits.length)
            return sh_fail(model->context, SHOAL_INVALID,
                           "sequence %lld has rows %lld to %lld; the limits are %lld "
                           "rows, and %lld per sequence",
                           (long long)b, (long long)offsets[b], (long long)offsets[b + 1],
                           (long long)model->limits.rows,
                           (long long)model->limits.length);
    const bool tokens = model->config.vocabulary != 0;
    const void *data = tokens ? (const void *)inputs->tokens : inputs->features;
    if (!data && inputs->offsets[inputs->batch] > 0)
        return sh_fail(model->context, SHOAL_INVALID, "%s is NULL",
                       tokens ? "tokens" : "features");
    for (int64_t row = 0; tokens && row < inputs->offsets[inputs->batch]; row++)
        if (inputs->tokens[row] < 0 || inputs->tokens[row] >= model->config.vocabulary)
            return sh_fail(model->context, SHOAL_INVALID,
                           "token %d at row %lld: it must be from 0 to %lld",
                           (int)inputs->tokens[row], (long long)row,
                           (long long)model->config.vocabulary - 1);
    TRY(sh_frame_check_inputs(model, inputs));
    const int64_t rows = inputs->offsets[inputs->batch];
    if (!inputs->wanted)
        return SHOAL_OK;
    if (pools(&model->config) || (inputs->training && model->config.dropout > 0))
        return sh_fail(model->context, SHOAL_INVALID,
                       "wanted rows cannot be combined with pooling or dropout");
    for (int64_t i = 0; i < inputs->wanted_count; i++)
        if (inputs->wanted[i] < 0 || inputs->wanted[i] >= rows ||
            (i > 0 && inputs->wanted[i] <= inputs->wanted[i - 1]))
            return sh_fail(model->context, SHOAL_INVALID,
                           "wanted row %lld is %d; rows must increase, from 0 to %lld",
                           (long long)i, (int)inputs->wanted[i], (long long)rows - 1);
    return inputs->wanted_count < 0
               ? sh_fail(model->context, SHOAL_INVALID, "wanted_count is negative")
               : SHOAL_OK;
}

/* ---- Pooling --------------------------------------------------------------------- */

typedef struct {
    const shoal_model *model;
    const int64_t *offsets;
    const float *from;
    float *to;
} pool_call;

static void pool_task(void *shared, int64_t task, int thread UNUSED) {
    const pool_call *c = shared;
    const model_kernels *kernels = sh_model_kernels(c->model->context);
    const bool mean = c->model->config.pooling == SHOAL_POOLING_MEAN;
    const int64_t width = width_of(&c->model->config), first = c->offsets[task];
    const int64_t length = c->offsets[task + 1] - first;
    float *out = c->to + task * width;
    memset(out, 0, sizeof(float) * (size_t)width);
    if (length == 0)
        return;
    kernels->column_sums(mean ? length : 1, width, c->from + first * width, width, out);
    if (mean)
        kernels->scale_by(width, 1.0f / (float)length, out);
}

static void pool_back_task(void *shared, int64_t task, int thread UNUSED) {
    const pool_call *c = shared;
    const bool mean = c->model->config.pooling == SHOAL_POOLING_MEAN;
    const int64_t width = width_of(&c->model->config), first = c->offsets[task];
    const int64_t length = c->offsets[task + 1] - first;
    const float share = mean ? 1.0f / (float)length : 1;
    const float *dout = c->from + task * width;
    for (int64_t row = 0; row < length; row++) {
        float *dx = c->to + (first + row) * width;
        for (int64_t i = 0; i < width; i++)
            dx[i] = mean || row == 0 ? share * dout[i] : 0;
    }
}

static void run_pool(const shoal_model *model, const shoal_model_inputs *inputs,
                     task_function *task, const float *from, float *to) {
    pool_call c = {model, inputs->offsets, from, to};
    sh_run_tasks(model->context, inputs->batch, task, &c);
}

/* ---- Forward --------------------------------------------------------------------- */

static packing packing_of(const shoal_model_inputs *inputs) {
    return (packing){inputs->batch, inputs->offsets};
}

static row_subset wanted_of(const shoal_model *model, const shoal_model_inputs *inputs) {
    if (sh_frame_narrows(&model->config))
        return (row_subset){model->frame.firsts, inputs->batch};
    return (row_subset){inputs->wanted, inputs->wanted_count};
}

static dropout_key key_of(const shoal_model *model, const shoal_model_inputs *inputs) {
    return (dropout_key){.seed = model->seed,
                         .step = (uint64_t)inputs->step,
                         .dropout = inputs->training != 0,
                         .first_row = inputs->first_row,
                         .first_wanted = inputs->first_sequence};
}

dropout_mask sh_model_dropout(const shoal_model *model, const shoal_model_inputs *inputs,
                              int64_t behind, int64_t first) {
    const int64_t site = behind < 0 ? 0 : 1 + 3 * model->config.layers + behind;
    return (dropout_mask){.rate = inputs->training ? model->config.dropout : 0,
                          .seed = model->seed,
                          .step = (uint64_t)inputs->step,
                          .site = (uint64_t)site,
                          .first = first};
}

static int64_t out_rows(const shoal_model *model, const shoal_model_inputs *inputs) {
    return pools(&model->config) ? inputs->batch
           : inputs->wanted      ? inputs->wanted_count
                                 : inputs->offsets[inputs->batch];
}

static float embedding_scale(const shoal_model *model) {
    return model->config.form == SHOAL_FORM_PLAIN ? sqrtf((float)width_of(&model->config))
                                                  : 1;
}

/* What the encoder is given, [R][M]. */
static const float *take_input(shoal_model *model, const shoal_model_inputs *inputs) {
    const packing sequences = packing_of(inputs);
    const int64_t rows = packing_rows(&sequences), width = width_of(&model->config);
    const dropout_mask mask = sh_model_dropout(model, inputs, -1, inputs->first_row);
    const bool framed = model->config.form != SHOAL_FORM_PLAIN;
    float *x = framed ? model->frame.summed : model->x;
    if (is_bare(&model->config))
        return inputs->features;
    if (model->config.vocabulary)
        sh_embedding_forward(model->context, rows, width, inputs->tokens,
                             model->embedding.data, embedding_scale(model), x);
    else
        sh_linear_forward(model->context, &model->input, rows,
                          (const_matrix){inputs->features, model->config.features},
                          (matrix){x, width}, NULL);
    sh_stem_forward(model, inputs, x);
    if (model->config.positions != SHOAL_POSITIONS_NONE)
        sh_positions_forward(model->context, &sequences, width,
                             model->sinusoids ? model->sinusoids : model->learned.data,
                             x);
    if (framed)
        sh_frame_input(model, inputs);
    if (mask.rate > 0)
        sh_dropout_apply(model->context, &mask, rows, width, model->x, model->x);
    return model->x;
}

/* What comes out, from the encoder's rows. */
static float *give_output(shoal_model *model, const shoal_model_inputs *inputs) {
    const int64_t width = width_of(&model->config);
    const float *rows = model->encoded;
    if (is_bare(&model->config))
        return (float *)(uintptr_t)rows;
    if (pools(&model->config) && !sh_frame_narrows(&model->config)) {
        run_pool(model, inputs, pool_task, rows, model->pooled);
        rows = model->pooled;
    }
    rows = model->output_in = sh_frame_head(model, inputs, rows);
    sh_linear_forward(model->context, &model->output, out_rows(model, inputs),
                      (const_matrix){rows, width},
                      (matrix){model->logits, model->config.outputs}, NULL);
    return model->logits;
}

shoal_status shoal_model_forward(shoal_model *model, const shoal_model_inputs *inputs,
                                 float **out) {
    if (!model || !out)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or out is NULL");
    shoal_model_inputs own = shoal_model_inputs_defaults();
    TRY(READ_STRUCT(model->context, shoal_model_inputs, inputs, &own));
    inputs = inputs ? &own : NULL;
    TRY(check_inputs(model, inputs));
    const packing sequences = packing_of(inputs);
    model->out_rows = -1;
    for (int64_t b = 0; sh_frame_narrows(&model->config) && b < inputs->batch; b++)
        model->frame.firsts[b] = (int32_t)inputs->offsets[b];
    TRY(sh_encoder_forward(model->stack, &model->weights, &sequences,
                           wanted_of(model, inputs), key_of(model, inputs),
                           take_input(model, inputs), &model->encoded));
    *out = model->out = give_output(model, inputs);
    model->out_rows = out_rows(model, inputs);
    return SHOAL_OK;
}

/* ---- Backward -------------------------------------------------------------------- */

static void input_backward(shoal_model *model, const shoal_model_inputs *inputs) {
    const packing sequences = packing_of(inputs);
    const int64_t rows = packing_rows(&sequences), width = width_of(&model->config);
    const dropout_mask mask = sh_model_dropout(model, inputs, -1, inputs->first_row);
    float *gradient = model->gradient;
    if (mask.rate > 0)
        sh_dropout_apply(model->context, &mask, rows, width, gradient, gradient);
    if (model->config.form != SHOAL_FORM_PLAIN)
        sh_frame_input_back(model, inputs, gradient);
    if (model->learned.gradient)
        sh_positions_backward(model->context, &sequences, width, model->limits.length,
                              gradient, model->learned.gradient);
    sh_stem_backward(model, inputs, gradient);
    if (model->config.vocabulary)
        sh_embedding_backward(model->context, rows, width, inputs->tokens, gradient,
                              embedding_scale(model), model->embedding.gradient);
    else
        sh_linear_backward(model->context, &model->input, rows,
                           (const_matrix){inputs->features, model->config.features},
                           (const_matrix){gradient, width}, (matrix){0});
}

shoal_status shoal_model_backward(shoal_model *model, const shoal_model_inputs *inputs,
                                  const float *dout, float *dfeatures) {
    if (!model || !dout)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or dout is NULL");
    if (!model->limits.training || (dfeatures && !is_bare(&model->config)))
        return sh_fail(model->context, SHOAL_INVALID,
                       model->limits.training
                           ? "dfeatures must be NULL, except for models of layers only"
                           : "the model was created without SHOAL_WITH_BACKWARD");
    shoal_model_inputs own = shoal_model_inputs_defaults();
    TRY(READ_STRUCT(model->context, shoal_model_inputs, inputs, &own));
    inputs = inputs ? &own : NULL;
    TRY(check_inputs(model, inputs));
    if (out_rows(model, inputs) != model->out_rows)
        return sh_fail(model->context, SHOAL_INVALID,
                       "call forward with the same inputs before backward");
    const bool bare = is_bare(&model->config);
    const packing sequences = packing_of(inputs);
    float *gradient = !bare ? model->gradient : dfeatures ? dfeatures : model->out;
    model->untold = model->arena->size;
    if (!inputs->accumulate)
        sh_parameters_clear_gradients(model->context, model->arena);
    if (!bare) {
        /* Through the output to the encoder's rows. */
        const bool pool = pools(&model->config) && !sh_frame_narrows(&model->config);
        const int64_t width = width_of(&model->config);
        float *rows = pool ? model->pooled_gradient : model->gradient;
        sh_linear_backward(model->context, &model->output, model->out_rows,
                           (const_matrix){model->output_in, width},
                           (const_matrix){dout, model->config.outputs},
                           (matrix){rows, width});
        sh_frame_head_back(model, inputs, rows);
        if (pool)
            run_pool(model, inputs, pool_back_task, model->pooled_gradient,
                     model->gradient);
    } else if (gradient != dout)
        memcpy(gradient, dout,
               sizeof *dout * (size_t)(model->out_rows * width_of(&model->config)));
    shoal_status status =
        sh_encoder_backward(model->stack, &model->weights, &sequences,
                            wanted_of(model, inputs), key_of(model, inputs),
                            bare ? inputs->features : model->x, gradient);
    if (status == SHOAL_OK && !bare)
        input_backward(model, inputs);
    if (status == SHOAL_OK)
        tell_from(model, 0);
    return status;
}
