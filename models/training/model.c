#include "models/training/model.h"

#include <string.h>

#include "base/memory.h"

/* ---- From configuration to shape ------------------------------------------------- */

static bool is_bare(const shoal_model_config *config) {
    return config->outputs == 0;
}

static shoal_status check_config(shoal_context *context,
                                 const shoal_model_config *config) {
    const bool tokens = config->vocabulary != 0, features = config->features != 0;
    if ((tokens && features) || (tokens || features) == is_bare(config))
        return sh_fail(
            context, SHOAL_INVALID,
            "vocabulary is %lld, features %lld and outputs %lld; there must be "
            "outputs and one of the others, or none of the three",
            (long long)config->vocabulary, (long long)config->features,
            (long long)config->outputs);
    if (config->norm < SHOAL_NORM_PRE || config->norm > SHOAL_NORM_POST ||
        config->activation < SHOAL_GELU || config->activation > SHOAL_RELU ||
        config->positions < SHOAL_SINUSOIDAL || config->positions > SHOAL_NO_POSITIONS ||
        config->pooling < SHOAL_EVERY_ROW || config->pooling > SHOAL_FIRST_ROW)
        return sh_fail(
            context, SHOAL_INVALID,
            "norm, activation, positions or pooling is none of its enumeration");
    if (config->layers < 1 || (is_bare(config) && config->pooling != SHOAL_EVERY_ROW))
        return sh_fail(context, SHOAL_INVALID,
                       "layers must be 1 or more, and layers alone pool nothing");
    return SHOAL_OK;
}

static encoder_shape encoder_of(const shoal_model_config *config) {
    return (encoder_shape){.layers = config->layers,
                           .heads = config->heads,
                           .head_dim = config->head_dim,
                           .feed_forward = config->feed_forward,
                           .attention = config->attention,
                           .shared_qk = config->shared_qk != 0,
                           .post_norm = config->norm == SHOAL_NORM_POST,
                           .activation = config->activation == SHOAL_GELU
                                             ? ACTIVATION_GELU
                                             : ACTIVATION_RELU,
                           .dropout = config->dropout};
}

static network_shape shape_of(const shoal_model_config *config) {
    static const network_positions positions[] = {[SHOAL_SINUSOIDAL] =
                                                      POSITIONS_SINUSOIDAL,
                                                  [SHOAL_LEARNED] = POSITIONS_LEARNED,
                                                  [SHOAL_NO_POSITIONS] = POSITIONS_NONE};
    static const network_head heads[] = {[SHOAL_EVERY_ROW] = HEAD_POSITIONS,
                                         [SHOAL_MEAN_ROW] = HEAD_MEAN,
                                         [SHOAL_FIRST_ROW] = HEAD_FIRST};
    return (network_shape){.encoder = encoder_of(config),
                           .input = config->features ? INPUT_FEATURES : INPUT_TOKENS,
                           .vocabulary = config->vocabulary,
                           .features = config->features,
                           .positions = positions[config->positions],
                           .max_length = config->max_length,
                           .head = heads[config->pooling],
                           .outputs = config->outputs};
}

/* ---- Creation -------------------------------------------------------------------- */

static void describe(parameters *into, const void *shared) {
    const shoal_model_config *config = shared;
    const network_shape shape = shape_of(config);
    if (is_bare(config))
        sh_encoder_describe(into, &shape.encoder);
    else
        sh_network_describe(into, &shape);
}

static shoal_status make_parameters(shoal_model *model) {
    const shoal_status status =
        sh_parameters_create(model->context, describe, &model->config,
                             model->limits.training, &model->arena);
    if (status == SHOAL_OK)
        sh_parameters_start(model->arena, model->seed);
    return status;
}

/* The parts, once the structure is there; destroy takes back what was made. */
static shoal_status make_parts(shoal_model *model) {
    const network_shape shape = shape_of(&model->config);
    const bool bare = is_bare(&model->config);
    /* A wrong shape is refused before memory is asked for. */
    shoal_status status = bare ? sh_encoder_create(model->context, &shape.encoder,
                                                   &model->limits, &model->stack)
                               : sh_network_check(model->context, &shape);
    if (status == SHOAL_OK && !model->owner)
        status = make_parameters(model);
    if (status == SHOAL_OK && !bare)
        status = sh_network_create(model->context, &shape, &model->limits, model->arena,
                                   &model->net);
    if (status == SHOAL_OK && bare)
        sh_encoder_bind(model->arena, &shape.encoder, model->weights.layers,
                        &model->weights);
    return status;
}

static void place(void *argument, block_layout *block) {
    shoal_model *model = argument;
    sh_reserve(block, 1, sizeof *model);
    model->weights.layers =
        sh_reserve(block, model->config.layers, sizeof *model->weights.layers);
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
    shoal_status status = check_config(context, config);
    if (status == SHOAL_OK && (limits.batch < 0 || limits.rows < 0))
        status =
            sh_fail(context, SHOAL_INVALID, "max_batch and max_rows must be 0 or more");
    if (status != SHOAL_OK)
        return status;
    shoal_model *made = sh_allocate_parts(context, place, &draft, &draft.bytes);
    if (!made)
        return SHOAL_NO_MEMORY;
    *made = draft;
    status = make_parts(made);
    if (status == SHOAL_OK)
        *model = made;
    else
        shoal_model_destroy(made);
    return status;
}

shoal_status shoal_model_create(shoal_context *context, const shoal_model_config *config,
                                uint64_t seed, int64_t max_batch, int64_t max_rows,
                                unsigned flags, shoal_model **model) {
    if (model)
        *model = NULL;
    if (!context || !config || !model || !context->kernels ||
        (flags & ~(unsigned)SHOAL_WITH_BACKWARD))
        return sh_fail(context, SHOAL_INVALID,
                       "context, config or model is NULL, the context was refused, or "
                       "flags are neither 0 nor SHOAL_WITH_BACKWARD");
    const encoder_limits limits = {.batch = max_batch,
                                   .rows = max_rows,
                                   .length = config->max_length,
                                   .training = (flags & SHOAL_WITH_BACKWARD) != 0};
    return make_model(context, config, seed, limits, NULL, model);
}

/* The configuration with another kind of attention, for weights that were made for this
   one. */
static shoal_status change_kind(const shoal_model *model,
                                const shoal_attention *attention,
                                shoal_model_config *config) {
    char kind[64];
    encoder_shape shape = encoder_of(&model->config);
    const bool shared = sh_encoder_shares_keys(&shape);
    shape.attention = *attention;
    shape.shared_qk = shared;
    *config = model->config;
    config->attention = *attention;
    config->shared_qk = shared;
    if (shared == sh_encoder_shares_keys(&shape))
        return SHOAL_OK;
    shoal_attention_print(attention, kind, sizeof kind);
    return sh_fail(
        model->context, SHOAL_INVALID,
        "%s takes the queries as keys, but this model has projections for both; "
        "train one with shared_qk",
        kind);
}

shoal_status shoal_model_view(shoal_model *model, const shoal_attention *attention,
                              int64_t max_batch, int64_t max_rows, shoal_model **view) {
    shoal_model_config config;
    if (view)
        *view = NULL;
    if (!model || !view)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or view is NULL");
    shoal_status status =
        change_kind(model, attention ? attention : &model->config.attention, &config);
    if (status != SHOAL_OK)
        return status;
    const encoder_limits limits = {.batch = max_batch,
                                   .rows = max_rows,
                                   .length = config.max_length};
    return make_model(model->context, &config, model->seed, limits,
                      model->owner ? model->owner : model, view);
}

void shoal_model_destroy(shoal_model *model) {
    if (!model)
        return;
    sh_network_destroy(model->net);
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
           (model->net ? sh_network_memory(model->net) : sh_encoder_memory(model->stack));
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
                          .rank = found->rank,
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

/* ---- Running --------------------------------------------------------------------- */

static network_batch batch_of(const shoal_model *model,
                              const shoal_model_inputs *inputs) {
    return (network_batch){.sequences = {inputs->batch, inputs->offsets},
                           .tokens = inputs->tokens,
                           .features = inputs->features,
                           .wanted = {inputs->wanted, inputs->wanted_count},
                           .random = {.seed = model->seed,
                                      .step = (uint64_t)inputs->step,
                                      .dropout = inputs->training != 0}};
}

static shoal_status check_sequences(const shoal_model *model,
                                    const shoal_model_inputs *inputs) {
    const int64_t *offsets = inputs->offsets;
    if (inputs->batch > model->limits.batch || offsets[0] != 0)
        return sh_fail(model->context, SHOAL_INVALID,
                       "batch is %lld, at most %lld were planned; offsets begin at %lld, "
                       "not 0",
                       (long long)inputs->batch, (long long)model->limits.batch,
                       (long long)offsets[0]);
    for (int64_t b = 0; b < inputs->batch; b++)
        if (offsets[b + 1] < offsets[b] || offsets[b + 1] > model->limits.rows ||
            offsets[b + 1] - offsets[b] > model->limits.length)
            return sh_fail(
                model->context, SHOAL_INVALID,
                "sequence %lld is rows %lld to %lld; planned are %lld rows, at "
                "most %lld in one sequence",
                (long long)b, (long long)offsets[b], (long long)offsets[b + 1],
                (long long)model->limits.rows, (long long)model->limits.length);
    return SHOAL_OK;
}

static shoal_status check_wanted(const shoal_model *model,
                                 const shoal_model_inputs *inputs) {
    const int64_t rows = inputs->offsets[inputs->batch];
    if (!inputs->wanted)
        return SHOAL_OK;
    if (model->config.pooling != SHOAL_EVERY_ROW ||
        (inputs->training && model->config.dropout > 0))
        return sh_fail(model->context, SHOAL_INVALID,
                       "wanted rows go neither with pooling nor with dropout");
    for (int64_t i = 0; i < inputs->wanted_count; i++)
        if (inputs->wanted[i] < 0 || inputs->wanted[i] >= rows ||
            (i > 0 && inputs->wanted[i] <= inputs->wanted[i - 1]))
            return sh_fail(model->context, SHOAL_INVALID,
                           "wanted row %lld is %d; they must increase, from 0 to %lld",
                           (long long)i, (int)inputs->wanted[i], (long long)rows - 1);
    return inputs->wanted_count < 0
               ? sh_fail(model->context, SHOAL_INVALID, "wanted_count is negative")
               : SHOAL_OK;
}

static shoal_status check_inputs(const shoal_model *model,
                                 const shoal_model_inputs *inputs) {
    if (!inputs || inputs->batch < 0 || !inputs->offsets)
        return sh_fail(model->context, SHOAL_INVALID,
                       "inputs or offsets is NULL, or batch is negative");
    const shoal_status status = check_sequences(model, inputs);
    if (status != SHOAL_OK)
        return status;
    const bool tokens = model->config.vocabulary != 0;
    const void *data = tokens ? (const void *)inputs->tokens : inputs->features;
    if (!data && inputs->offsets[inputs->batch] > 0)
        return sh_fail(model->context, SHOAL_INVALID, "%s is NULL",
                       tokens ? "tokens" : "features");
    return check_wanted(model, inputs);
}

static int64_t out_rows(const shoal_model *model, const shoal_model_inputs *inputs) {
    return model->config.pooling != SHOAL_EVERY_ROW ? inputs->batch
           : inputs->wanted                         ? inputs->wanted_count
                                                    : inputs->offsets[inputs->batch];
}

static int64_t out_width(const shoal_model *model) {
    return model->net ? model->config.outputs
                      : model->config.heads * model->config.head_dim;
}

static shoal_status run_bare(shoal_model *model, const network_batch *batch) {
    const float *out;
    const shoal_status status = sh_encoder_forward(model->stack, &model->weights,
                                                   &batch->sequences, batch->wanted,
                                                   batch->random, batch->features, &out);
    model->out = (float *)(uintptr_t)out;
    return status;
}

shoal_status shoal_model_forward(shoal_model *model, const shoal_model_inputs *inputs,
                                 float **out) {
    if (!model || !out)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or out is NULL");
    shoal_status status = check_inputs(model, inputs);
    if (status != SHOAL_OK)
        return status;
    const network_batch batch = batch_of(model, inputs);
    model->out_rows = -1;
    status = model->net ? sh_network_forward(model->net, &batch)
                        : run_bare(model, &batch);
    if (status != SHOAL_OK)
        return status;
    if (model->net)
        model->out = sh_network_logits(model->net);
    model->out_rows = out_rows(model, inputs);
    *out = model->out;
    return SHOAL_OK;
}

static shoal_status check_backward(const shoal_model *model,
                                   const shoal_model_inputs *inputs,
                                   const float *dfeatures) {
    if (!model->limits.training || (model->net && dfeatures))
        return sh_fail(model->context, SHOAL_INVALID,
                       model->limits.training
                           ? "dfeatures is not NULL, but only layers alone have them"
                           : "the model was made without SHOAL_WITH_BACKWARD");
    const shoal_status status = check_inputs(model, inputs);
    if (status == SHOAL_OK && out_rows(model, inputs) != model->out_rows)
        return sh_fail(model->context, SHOAL_INVALID,
                       "backward without a forward of the same inputs before it");
    return status;
}

shoal_status shoal_model_backward(shoal_model *model, const shoal_model_inputs *inputs,
                                  const float *dout, float *dfeatures) {
    if (!model || !dout)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or dout is NULL");
    shoal_status status = check_backward(model, inputs, dfeatures);
    if (status != SHOAL_OK)
        return status;
    const network_batch batch = batch_of(model, inputs);
    const size_t floats = (size_t)(model->out_rows * out_width(model));
    float *gradient = dfeatures ? dfeatures : model->out; /* room for all rows */
    if (gradient != dout)
        memcpy(gradient, dout, floats * sizeof *dout);
    if (!inputs->accumulate)
        sh_parameters_clear_gradients(model->context, model->arena);
    return model->net ? sh_network_backward(model->net, &batch)
                      : sh_encoder_backward(model->stack, &model->weights,
                                            &batch.sequences, batch.wanted, batch.random,
                                            batch.features, gradient);
}
