#include "models/training/model.h"

#include <string.h>

#include "base/memory.h"
#include "shoal_models.h"

/* ---- From configuration to shape ------------------------------------------------- */

static shoal_status check_config(shoal_context *context,
                                 const shoal_model_config *config) {
    if ((config->vocabulary == 0) != (config->outputs == 0))
        return sh_fail(context, SHOAL_INVALID,
                       "vocabulary is %lld and outputs %lld; both or neither must be 0",
                       (long long)config->vocabulary, (long long)config->outputs);
    if (config->norm < SHOAL_NORM_PRE || config->norm > SHOAL_NORM_POST ||
        config->activation < SHOAL_GELU || config->activation > SHOAL_RELU ||
        config->positions < SHOAL_SINUSOIDAL || config->positions > SHOAL_NO_POSITIONS)
        return sh_fail(context, SHOAL_INVALID,
                       "norm, activation or positions is none of its enumeration");
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
    return (network_shape){.encoder = encoder_of(config),
                           .input = INPUT_TOKENS,
                           .vocabulary = config->vocabulary,
                           .positions = positions[config->positions],
                           .max_length = config->max_length,
                           .head = HEAD_POSITIONS,
                           .outputs = config->outputs};
}

shoal_status sh_model_other_kind(const shoal_model *model,
                                 const shoal_attention *attention, network_shape *shape) {
    *shape = model->shape;
    const bool shared = sh_encoder_shares_keys(&model->shape.encoder);
    shape->encoder.attention = *attention;
    shape->encoder.shared_qk = shared;
    if (shared == sh_encoder_shares_keys(&shape->encoder))
        return SHOAL_OK;
    char kind[64];
    shoal_attention_print(attention, kind, sizeof kind);
    return sh_fail(
        model->context, SHOAL_INVALID,
        "%s takes the queries as keys, but this model has projections for both; "
        "train one with shared_qk",
        kind);
}

/* ---- Creation -------------------------------------------------------------------- */

static void describe_layers(parameters *into, const void *shape) {
    sh_encoder_describe(into, &((const network_shape *)shape)->encoder);
}

/* The parts, once the structure is there; destroy takes back what was made. */
static shoal_status make_parts(shoal_model *model) {
    shoal_context *context = model->context;
    const bool bare = model->shape.vocabulary == 0;
    shoal_status status = bare ? SHOAL_OK : sh_network_check(context, &model->shape);
    if (status == SHOAL_OK && bare) /* the layers' own checks come before the arena's */
        status = sh_encoder_create(context, &model->shape.encoder, &model->limits,
                                   &model->stack);
    if (status == SHOAL_OK)
        status =
            sh_parameters_create(context, bare ? describe_layers : sh_network_describe,
                                 &model->shape, model->limits.training, &model->arena);
    if (status != SHOAL_OK)
        return status;
    sh_parameters_start(model->arena, model->seed);
    if (bare) {
        sh_encoder_bind(model->arena, &model->shape.encoder, model->weights.layers,
                        &model->weights);
        return SHOAL_OK;
    }
    return sh_network_create(context, &model->shape, &model->limits, model->arena,
                             &model->net);
}

static void place(void *argument, block_layout *block) {
    shoal_model *model = argument;
    sh_reserve(block, 1, sizeof *model);
    model->weights.layers =
        sh_reserve(block, model->shape.encoder.layers, sizeof *model->weights.layers);
}

static shoal_status allocate_model(shoal_context *context,
                                   const shoal_model_config *config, shoal_model **made) {
    shoal_model model = {.context = context, .shape = shape_of(config), .rows = -1};
    *made = sh_allocate_parts(context, place, &model, &model.own_bytes);
    if (!*made)
        return SHOAL_NO_MEMORY;
    memset(*made, 0, model.own_bytes);
    **made = model;
    return SHOAL_OK;
}

shoal_status shoal_model_create(shoal_context *context, const shoal_model_config *config,
                                uint64_t seed, int64_t max_batch, int64_t max_rows,
                                unsigned flags, shoal_model **model) {
    if (model)
        *model = NULL;
    if (!context || !config || !model || !context->kernels)
        return sh_fail(context, SHOAL_INVALID,
                       "context, config or model is NULL, or the context was refused");
    shoal_status status = check_config(context, config);
    if (status == SHOAL_OK && (config->layers < 1 || max_batch < 0 || max_rows < 0 ||
                               (flags & ~(unsigned)SHOAL_WITH_BACKWARD)))
        status =
            sh_fail(context, SHOAL_INVALID,
                    "layers must be 1 or more, max_batch and max_rows 0 or more, and "
                    "flags 0 or SHOAL_WITH_BACKWARD");
    shoal_model *made = NULL;
    if (status == SHOAL_OK)
        status = allocate_model(context, config, &made);
    if (status != SHOAL_OK)
        return status;
    made->limits = (encoder_limits){.batch = max_batch,
                                    .rows = max_rows,
                                    .length = config->max_length,
                                    .training = (flags & SHOAL_WITH_BACKWARD) != 0};
    made->seed = seed;
    status = make_parts(made);
    if (status == SHOAL_OK)
        *model = made;
    else
        shoal_model_destroy(made);
    return status;
}

void shoal_model_destroy(shoal_model *model) {
    if (!model)
        return;
    sh_network_destroy(model->net);
    sh_encoder_destroy(model->stack);
    sh_parameters_destroy(model->arena);
    sh_release(model->context, model);
}

size_t shoal_model_workspace(const shoal_model *model) {
    if (!model)
        return 0;
    const size_t arrays = model->limits.training ? 2 : 1;
    return model->own_bytes + arrays * (size_t)model->arena->size * sizeof(float) +
           (size_t)model->arena->count * sizeof *model->arena->list +
           (model->net ? sh_network_memory(model->net) : sh_encoder_memory(model->stack));
}

int shoal_model_parameter(shoal_model *model, int index, shoal_parameter *parameter_out) {
    if (!model || !parameter_out || index < 0 || index >= model->arena->count)
        return 0;
    const parameter *found = &model->arena->list[index];
    float *gradients = model->arena->gradients;
    *parameter_out =
        (shoal_parameter){.name = found->name,
                          .rank = found->rank,
                          .values = model->arena->values + found->offset,
                          .gradients = gradients ? gradients + found->offset : NULL};
    memcpy(parameter_out->shape, found->shape, (size_t)found->rank * sizeof(int64_t));
    return 1;
}

/* ---- Running --------------------------------------------------------------------- */

static network_batch batch_of(const shoal_model *model,
                              const shoal_model_inputs *inputs) {
    return (network_batch){.sequences = {inputs->batch, inputs->offsets},
                           .tokens = inputs->tokens,
                           .features = inputs->features,
                           .moment = {.seed = model->seed,
                                      .step = (uint64_t)inputs->step,
                                      .dropout = inputs->training != 0}};
}

static shoal_status check_inputs(const shoal_model *model,
                                 const shoal_model_inputs *inputs) {
    if (!inputs || inputs->batch < 0 || !inputs->offsets)
        return sh_fail(model->context, SHOAL_INVALID,
                       "inputs or offsets is NULL, or batch is negative");
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
    const void *data = model->net ? (const void *)inputs->tokens : inputs->features;
    if (!data && offsets[inputs->batch] > 0)
        return sh_fail(model->context, SHOAL_INVALID, "%s is NULL",
                       model->net ? "tokens" : "features");
    return SHOAL_OK;
}

shoal_status shoal_model_forward(shoal_model *model, const shoal_model_inputs *inputs,
                                 const float **out) {
    if (!model || !out)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or out is NULL");
    shoal_status status = check_inputs(model, inputs);
    if (status != SHOAL_OK)
        return status;
    const network_batch batch = batch_of(model, inputs);
    model->rows = -1;
    if (model->net)
        status = sh_network_forward(model->net, &batch);
    else
        status = sh_encoder_forward(model->stack, &model->weights, &batch.sequences,
                                    batch.moment, inputs->features, out);
    if (status != SHOAL_OK)
        return status;
    model->rows = inputs->offsets[inputs->batch];
    if (model->net)
        *out = sh_network_logits(model->net);
    return SHOAL_OK;
}

shoal_status shoal_model_backward(shoal_model *model, const shoal_model_inputs *inputs,
                                  float *dout, float *dfeatures) {
    if (!model || !dout)
        return sh_fail(model ? model->context : NULL, SHOAL_INVALID,
                       "model or dout is NULL");
    if (!model->limits.training || (model->net && dfeatures))
        return sh_fail(model->context, SHOAL_INVALID,
                       model->limits.training
                           ? "dfeatures is not NULL, but tokens have no gradient"
                           : "the model was made without SHOAL_WITH_BACKWARD");
    shoal_status status = check_inputs(model, inputs);
    if (status != SHOAL_OK)
        return status;
    const network_batch batch = batch_of(model, inputs);
    const size_t rows = (size_t)inputs->offsets[inputs->batch];
    if (inputs->offsets[inputs->batch] != model->rows)
        return sh_fail(model->context, SHOAL_INVALID,
                       "backward without a forward of the same inputs before it");
    const crew by = sh_crew_of(model->context);
    sh_parameters_clear_gradients(&by, model->arena);
    if (model->net) {
        memcpy(sh_network_logit_gradient(model->net), dout,
               rows * (size_t)model->shape.outputs * sizeof *dout);
        return sh_network_backward(model->net, &batch);
    }
    const size_t size = (size_t)sh_encoder_model(&model->shape.encoder);
    if (dfeatures)
        memcpy(dfeatures, dout, rows * size * sizeof *dout);
    return sh_encoder_backward(model->stack, &model->weights, &batch.sequences,
                               batch.moment, inputs->features,
                               dfeatures ? dfeatures : dout);
}
