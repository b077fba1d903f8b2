/* Complete models: any number of threads gives the same bits, a batch gives the results
   of its sequences alone, inference equals training, weights may be anywhere in memory,
   a step allocates nothing. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "kernels/half.h"
#include "nn_support.h"

#include "support.h"

static const char *KINDS[TEST_KINDS + 1];

/* Full attention is used with features and convolutions, other kinds with tokens. */
static model_case big_case(const char *kind) {
    const bool features = strcmp(kind, "full") == 0;
    return (model_case){.name = kind,
                        .features = features,
                        .convolutions = features ? 2 : 0,
                        .attention = kind,
                        .layers = 2,
                        .heads = 3,
                        .head_dim = 8,
                        .feed_forward = 50,
                        .dropout = 0.1f,
                        .learned = true,
                        .lengths = {300, 1, 170, 260}};
}

/* ---- Threads ----------------------------------------------------------------------- */

typedef struct {
    double losses[3], norms[3];
    float *values;
    int64_t size;
} training;

static training train(const char *kind, int threads, bool post_norm) {
    shoal_context *context = test_context(NULL, threads);
    model_case c = big_case(kind);
    c.post_norm = post_norm;
    model_setup setup = setup_create(context, &c, true, 4);
    shoal_optimizer *optimizer;
    assert_int_equal(shoal_optimizer_create(setup.model, NULL, &optimizer), SHOAL_OK);
    const size_t bytes = sizeof(float) * (size_t)setup.arena->size;
    training run = {.values = malloc(bytes), .size = setup.arena->size};
    for (int step = 0; step < 3; step++) {
        setup.inputs.step = step;
        run.losses[step] = setup_step(context, &setup).mean;
        assert_int_equal(shoal_gradients_clip(setup.model, 0.5, &run.norms[step]),
                         SHOAL_OK);
        assert_int_equal(shoal_optimizer_step(optimizer, 0.01), SHOAL_OK);
    }
    memcpy(run.values, setup.arena->values, bytes);
    shoal_optimizer_destroy(optimizer);
    setup_destroy(&setup);
    shoal_context_destroy(context);
    return run;
}

static void threads_change_no_bit(void **state) {
    for (int64_t k = 0; KINDS[k]; k++) {
        training one = train(KINDS[k], 1, k % 2);
        for (int threads = 2; threads <= 5; threads += 3) {
            training more = train(KINDS[k], threads, k % 2);
            for (int step = 0; step < 3; step++)
                if (one.losses[step] != more.losses[step] ||
                    one.norms[step] != more.norms[step])
                    fail_msg("%s: step %d differs on %d threads", KINDS[k], step,
                             threads);
            assert_memory_equal(one.values, more.values,
                                sizeof(float) * (size_t)one.size);
            free(more.values);
        }
        assert_true(one.losses[2] < one.losses[0]);
        free(one.values);
    }
}

/* ---- Batches ----------------------------------------------------------------------- */

/* Logits of sequence b alone. */
static void run_alone(const model_setup *setup, int64_t b, float *logits) {
    const int64_t first = setup->offsets[b], length = setup->offsets[b + 1] - first;
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = 1,
                                       .offsets = (int64_t[]){0, length},
                                       .tokens = setup->tokens + first,
                                       .features = setup->features +
                                                   first * TEST_FEATURES};
    shoal_model *view;
    float *out;
    assert_int_equal(shoal_model_create_view(setup->model, NULL, 1, length, &view),
                     SHOAL_OK);
    assert_int_equal(shoal_model_forward(view, &inputs, &out), SHOAL_OK);
    memcpy(logits, out, sizeof(float) * (size_t)(length * TEST_OUTPUTS));
    shoal_model_destroy(view);
}

/* Up to rounding: BLAS may sum the last rows of a product with another kernel. */
static void a_batch_gives_what_its_sequences_give_alone(void **state) {
    shoal_context *context = test_context(NULL, 2);
    for (int64_t k = 0; KINDS[k]; k++) {
        model_case c = big_case(KINDS[k]);
        c.dropout = 0;
        c.layers = 1; /* clusters must not be close to another choice */
        model_setup setup = setup_create(context, &c, false, 9);
        const float *together = setup_forward(&setup);
        float *alone = malloc(sizeof(float) * (size_t)(setup.rows * TEST_OUTPUTS));
        for (int64_t b = 0; b < setup.inputs.batch; b++)
            run_alone(&setup, b, alone + setup.offsets[b] * TEST_OUTPUTS);
        for (int64_t i = 0; i < setup.rows * TEST_OUTPUTS; i++)
            if (!(fabsf(together[i] - alone[i]) <= 2e-5f))
                fail_msg("%s: logit %lld is %.9g in the batch and %.9g alone", KINDS[k],
                         (long long)i, (double)together[i], (double)alone[i]);
        free(alone);
        setup_destroy(&setup);
    }
    shoal_context_destroy(context);
}

static void a_model_takes_smaller_batches_too(void **state) {
    shoal_context *context = test_context(NULL, 2);
    model_case c = big_case("i-clustered-5:topk=8");
    model_setup setup = setup_create(context, &c, true, 9);
    setup_step(context, &setup);
    /* The same model, then one sequence of it; and a model for that one alone. */
    setup.inputs.batch = 1;
    double loss = setup_step(context, &setup).mean;
    model_case small = c;
    small.lengths[1] = -1;
    model_setup other = setup_create(context, &small, true, 9);
    memcpy(other.targets, setup.targets, sizeof(int32_t) * (size_t)other.rows);
    memcpy(other.tokens, setup.tokens, sizeof(int32_t) * (size_t)other.rows);
    double fresh = setup_step(context, &other).mean;
    assert_true(loss == fresh);
    setup.inputs.batch = 0; /* empty */
    shoal_loss nothing = setup_step(context, &setup);
    assert_true(nothing.mean == 0 && nothing.counted == 0);
    double norm;
    assert_int_equal(shoal_gradients_clip(setup.model, 0, &norm), SHOAL_OK);
    assert_true(norm == 0);
    setup_destroy(&other);
    setup_destroy(&setup);
    shoal_context_destroy(context);
}

/* ---- Inference --------------------------------------------------------------------- */

static void inference_gives_what_training_gives(void **state) {
    shoal_context *context = test_context(NULL, 2);
    for (int64_t k = 0; KINDS[k / 2]; k++) {
        model_case c = big_case(KINDS[k / 2]);
        c.post_norm = k % 2;
        model_setup learning = setup_create(context, &c, true, 2);
        model_setup using = setup_create(context, &c, false, 2);
        assert_true(shoal_model_workspace(using.model) <
                    shoal_model_workspace(learning.model));
        learning.inputs.training = using.inputs.training = 0;
        float *logits = setup_forward(&using);
        assert_memory_equal(setup_forward(&learning), logits,
                            sizeof(float) * (size_t)(using.rows * TEST_OUTPUTS));
        assert_int_equal(shoal_model_backward(using.model, &using.inputs, logits, NULL),
                         SHOAL_INVALID);
        setup_destroy(&learning);
        setup_destroy(&using);
    }
    shoal_context_destroy(context);
}

/* A half-precision copy of every weight, each in its own block. */
static nn_tensor halved(nn_tensor weight, int64_t count) {
    uint16_t *halves = malloc(sizeof *halves * (size_t)count);
    float *values = (float *)weight.data;
    for (int64_t i = 0; i < count; i++) {
        halves[i] = half_from_float(values[i]);
        values[i] = half_to_float(halves[i]); /* so that the float32 model has the same
                                                 weights */
    }
    return (nn_tensor){.data = halves, .half = true};
}

static void halve_layer(encoder_layer *from, int64_t model, int64_t wide,
                        encoder_layer *into) {
    *into = *from;
    into->query = halved(from->query, model * model);
    into->key = halved(from->key, model * model);
    into->value = halved(from->value, model * model);
    into->output = halved(from->output, model * model);
    into->widen = halved(from->widen, model * wide);
    into->narrow = halved(from->narrow, model * wide);
    memset((float *)from->key_bias.data, 0, sizeof(float) * (size_t)model);
    into->key_bias = (nn_tensor){0}; /* as in Whisper */
}

static void free_halves(encoder_layer *layer) {
    free((void *)layer->query.data), free((void *)layer->key.data);
    free((void *)layer->value.data), free((void *)layer->output.data);
    free((void *)layer->widen.data), free((void *)layer->narrow.data);
}

static void weights_may_be_halves_and_anywhere(void **state) {
    shoal_context *context = test_context(NULL, 2);
    model_case c = big_case("full");
    model_setup setup = setup_create(context, &c, false, 2);
    const encoder_shape shape = {.layers = 2,
                                 .heads = c.heads,
                                 .head_dim = c.head_dim,
                                 .feed_forward = c.feed_forward,
                                 .attention = setup.config.attention,
                                 .activation = ACTIVATION_GELU};
    const int64_t model = encoder_model(&shape);
    encoder_layer layers[2], apart[2];
    encoder_weights weights, halves;
    sh_encoder_bind(setup.arena, &shape, layers, &weights);
    for (int l = 0; l < 2; l++)
        halve_layer(&layers[l], model, shape.feed_forward, &apart[l]);
    halves = weights;
    halves.layers = apart;
    encoder_limits limits = {.batch = 4,
                             .rows = setup.rows,
                             .length = setup.longest,
                             .half_weights = true};
    encoder *stack, *other;
    assert_int_equal(sh_encoder_create(context, &shape, &limits, &stack), SHOAL_OK);
    assert_int_equal(sh_encoder_create(context, &shape, &limits, &other), SHOAL_OK);
    float *x = malloc(sizeof(float) * (size_t)(setup.rows * model));
    for (int64_t i = 0; i < setup.rows * model; i++)
        x[i] = (float)test_normal(test_hash(1, 2, (uint64_t)i));
    for (int64_t batch = 0; batch <= 4; batch++) {
        const packing sequences = {batch, setup.offsets};
        const dropout_key random = {0};
        const float *expected, *got;
        assert_int_equal(sh_encoder_forward(stack, &weights, &sequences, (row_subset){0},
                                            random, x, &expected),
                         SHOAL_OK);
        assert_int_equal(sh_encoder_forward(other, &halves, &sequences, (row_subset){0},
                                            random, x, &got),
                         SHOAL_OK);
        for (int64_t i = 0; i < packing_rows(&sequences) * model; i++)
            assert_true(fabsf(expected[i] - got[i]) < 1e-5f);
    }
    for (int l = 0; l < 2; l++)
        free_halves(&apart[l]);
    free(x);
    sh_encoder_destroy(stack);
    sh_encoder_destroy(other);
    setup_destroy(&setup);
    shoal_context_destroy(context);
}

/* ---- Memory ------------------------------------------------------------------------ */

static void a_step_allocates_nothing(void **state) {
    for (int64_t k = 0; KINDS[k]; k++) {
        counting_allocator allocator = {0};
        shoal_options options = counting_options(&allocator);
        options.threads = 2;
        shoal_context *context;
        assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
        model_case c = big_case(KINDS[k]);
        c.shared_qk = k % 2;
        model_setup setup = setup_create(context, &c, true, 1);
        const int64_t calls = allocator.calls;
        setup_step(context, &setup);
        setup_step(context, &setup);
        assert_int_equal(allocator.calls, calls);
        setup_destroy(&setup);
        shoal_context_destroy(context);
        assert_int_equal(allocator.live, 0);
    }
}

static void every_failing_allocation_is_reported(void **state) {
    model_case c = big_case("i-clustered-5:topk=8");
    const shoal_model_config config = config_of(&c);
    for (int64_t fail_at = 0, last = 1; fail_at <= last; fail_at++) {
        counting_allocator allocator = {0};
        shoal_options options = counting_options(&allocator);
        shoal_context *context;
        assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
        const int64_t before = allocator.calls;
        allocator.fail_at = fail_at ? before + fail_at : 0;
        shoal_model *model;
        shoal_status status =
            shoal_model_create(context, &config, 1, 2, 20, SHOAL_WITH_BACKWARD, &model);
        assert_true((status == SHOAL_OK) == (model != NULL));
        shoal_model_destroy(model);
        assert_int_equal(status, fail_at ? SHOAL_NO_MEMORY : SHOAL_OK);
        if (fail_at)
            assert_non_null(strstr(shoal_context_message(context), "memory"));
        else
            last = allocator.calls - before;
        shoal_context_destroy(context);
        assert_int_equal(allocator.live, 0);
    }
}

int main(void) {
    /* near is explicit, because its default depends on the longest sequence of the
       batch. */
    test_kinds((shoal_attention){.clusters = 5, .topk = 8, .rounds = 2, .near = 2},
               KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(a_batch_gives_what_its_sequences_give_alone),
        cmocka_unit_test(a_model_takes_smaller_batches_too),
        cmocka_unit_test(inference_gives_what_training_gives),
        cmocka_unit_test(weights_may_be_halves_and_anywhere),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
