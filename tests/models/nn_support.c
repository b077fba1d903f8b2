#include "nn_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support.h"

network_shape shape_of(const model_case *c) {
    network_shape shape = {.encoder = {.layers = c->layers,
                                       .heads = c->heads,
                                       .head_dim = c->head_dim,
                                       .feed_forward = c->feed_forward,
                                       .attention = spelled(c->attention),
                                       .shared_qk = c->shared_qk,
                                       .post_norm = c->post_norm,
                                       .no_final_norm = c->no_final_norm,
                                       .dropout = c->dropout},
                           .vocabulary = TEST_VOCABULARY,
                           .features = TEST_FEATURES,
                           .max_length = 1,
                           .head = c->head,
                           .outputs = TEST_OUTPUTS};
    shape.encoder.activation = c->relu ? ACTIVATION_RELU : ACTIVATION_GELU;
    shape.input = c->features ? INPUT_FEATURES : INPUT_TOKENS;
    shape.positions = c->learned        ? POSITIONS_LEARNED
                      : c->no_positions ? POSITIONS_NONE
                                        : POSITIONS_SINUSOIDAL;
    for (int i = 0; i < COUNT_OF(c->lengths) && c->lengths[i] >= 0; i++)
        if (c->lengths[i] > shape.max_length)
            shape.max_length = c->lengths[i];
    return shape;
}

static void fill_batch(model_setup *setup, const model_case *c, uint64_t seed) {
    int64_t batch = 0;
    setup->offsets = calloc(COUNT_OF(c->lengths) + 1, sizeof *setup->offsets);
    while (batch < COUNT_OF(c->lengths) && c->lengths[batch] >= 0) {
        setup->offsets[batch + 1] = setup->offsets[batch] + c->lengths[batch];
        batch++;
    }
    const int64_t rows = setup->rows = setup->offsets[batch];
    setup->longest = setup->shape.max_length;
    const int64_t most = rows > batch ? rows : batch;
    setup->tokens = calloc((size_t)rows + 1, sizeof *setup->tokens);
    setup->targets = calloc((size_t)most + 1, sizeof *setup->targets);
    setup->features = calloc((size_t)(rows * TEST_FEATURES) + 1, sizeof(float));
    for (int64_t r = 0; r < rows; r++)
        setup->tokens[r] = (int32_t)(test_hash(seed, 2, (uint64_t)r) % TEST_VOCABULARY);
    for (int64_t r = 0; r < most; r++) /* one in seven does not count */
        setup->targets[r] =
            (int32_t)(test_hash(seed, 3, (uint64_t)r) % (TEST_OUTPUTS + 1)) - 1;
    for (int64_t i = 0; i < rows * TEST_FEATURES; i++)
        setup->features[i] = (float)test_normal(test_hash(seed, 4, (uint64_t)i));
    setup->batch = (network_batch){.sequences = {batch, setup->offsets},
                                   .tokens = setup->tokens,
                                   .features = setup->features,
                                   .moment = {seed, 3, c->dropout > 0}};
}

model_setup setup_create(shoal_context *context, const model_case *c, bool training,
                         uint64_t seed) {
    model_setup setup = {.shape = shape_of(c)};
    fill_batch(&setup, c, seed);
    assert_int_equal(sh_parameters_create(context, sh_network_describe, &setup.shape,
                                          training, &setup.arena),
                     SHOAL_OK);
    sh_parameters_start(setup.arena, seed);
    for (int64_t i = 0; i < setup.arena->count; i++) {
        const parameter *entry = &setup.arena->list[i];
        float *values = setup.arena->values + entry->offset;
        for (int64_t j = 0; entry->rank == 1 && j < entry->count; j++)
            values[j] +=
                0.3f * (float)test_normal(test_hash(seed, 5 + (uint64_t)i, (uint64_t)j));
    }
    encoder_limits limits = {.batch = setup.batch.sequences.batch,
                             .rows = setup.rows,
                             .length = setup.longest,
                             .training = training};
    shoal_status status =
        sh_network_create(context, &setup.shape, &limits, setup.arena, &setup.net);
    if (status != SHOAL_OK)
        fail_msg("%s: %s", c->name, shoal_context_message(context));
    return setup;
}

void setup_destroy(model_setup *setup) {
    sh_network_destroy(setup->net);
    sh_parameters_destroy(setup->arena);
    free(setup->offsets);
    free(setup->tokens);
    free(setup->targets);
    free(setup->features);
}

loss_result setup_step(shoal_context *context, model_setup *setup) {
    loss_result result;
    crew by = sh_crew_of(context);
    sh_parameters_clear_gradients(&by, setup->arena);
    assert_int_equal(sh_network_forward(setup->net, &setup->batch), SHOAL_OK);
    assert_int_equal(sh_network_loss(setup->net, &setup->batch, setup->targets, false,
                                     &result),
                     SHOAL_OK);
    assert_int_equal(sh_network_backward(setup->net, &setup->batch), SHOAL_OK);
    return result;
}

double *setup_values(const model_setup *setup) {
    double *values = test_memory(setup->arena->size, sizeof *values);
    for (int64_t i = 0; i < setup->arena->size; i++)
        values[i] = (double)setup->arena->values[i];
    return values;
}

model_reference setup_reference(const model_setup *setup) {
    return (model_reference){.shape = &setup->shape,
                             .arena = setup->arena,
                             .batch = &setup->batch,
                             .targets = setup->targets,
                             .longest = setup->longest,
                             .source = setup->net};
}
