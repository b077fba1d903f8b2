/* The calls of a model: layers only, wanted rows, views, errors, memory that grows with
   the rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "shoal_models.h"
#include "support.h"

enum { VOCABULARY = 7, OUTPUTS = 5, HEADS = 2, DIM = 8, MODEL = HEADS * DIM, ROWS = 13 };

static const int64_t offsets[] = {0, 5, 5, 6, ROWS}; /* lengths 5, 0, 1, 7 */
enum { BATCH = 4 };

static shoal_model_config config_of(const char *kind, bool bare) {
    return (shoal_model_config){.size = sizeof(shoal_model_config),
                                .vocabulary = bare ? 0 : VOCABULARY,
                                .outputs = bare ? 0 : OUTPUTS,
                                .max_length = 8,
                                .layers = 2,
                                .heads = HEADS,
                                .head_dim = DIM,
                                .feed_forward = 20,
                                .attention = spelled(kind)};
}

static shoal_model *make_model(shoal_context *context, const shoal_model_config *config) {
    shoal_model *model;
    const shoal_status status =
        shoal_model_create(context, config, 11, BATCH, ROWS, SHOAL_WITH_BACKWARD, &model);
    if (status != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return model;
}

static void fill_tokens(int32_t tokens[ROWS]) {
    for (int i = 0; i < ROWS; i++)
        tokens[i] = (int32_t)test_pick(1, 2, 0, 1000 + i) % VOCABULARY;
}

static void fill(float *values, int64_t count, uint64_t stream) {
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)test_normal(test_hash(3, stream, (uint64_t)i));
}

/* ---- Gradients ------------------------------------------------------------------- */

/* The product of a fixed random vector and the output: the loss of a model of layers
   only. */
static double loss_of(shoal_model *model, const shoal_model_inputs *inputs,
                      const float *direction) {
    float *out;
    double sum = 0;
    assert_int_equal(shoal_model_forward(model, inputs, &out), SHOAL_OK);
    for (int64_t i = 0; i < ROWS * MODEL; i++)
        sum += (double)direction[i] * (double)out[i];
    return sum;
}

/* Along the gradient the loss changes by the gradient's squared norm. */
static void check_slope(shoal_model *model, const shoal_model_inputs *inputs,
                        const float *direction, float *values, const float *gradients,
                        int64_t count, const char *name) {
    double length = 0, loss[2];
    float *kept = test_memory(count, sizeof *kept);
    memcpy(kept, values, (size_t)count * sizeof *kept);
    for (int64_t i = 0; i < count; i++)
        length += (double)gradients[i] * (double)gradients[i];
    assert_true(length > 1e-10);
    const double by = 1e-3 / sqrt(length);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < count; i++)
            values[i] = kept[i] + (float)((side ? by : -by) * (double)gradients[i]);
        loss[side] = loss_of(model, inputs, direction);
    }
    memcpy(values, kept, (size_t)count * sizeof *kept);
    free(kept);
    const double slope = (loss[1] - loss[0]) / (2 * by);
    if (fabs(slope - length) > 0.02 * length + 4e-3 * sqrt(length))
        fail_msg("%s: slope %g, gradient %g", name, slope, length);
}

/* Layers only, and the gradient of their input. With more clusters than queries no
   cluster can change between the two losses. */
static void layers_alone(void **state) {
    shoal_context *context = test_context(NULL, 2);
    const shoal_model_config config = config_of("i-clustered-100", true);
    shoal_model *model = make_model(context, &config);
    float features[ROWS * MODEL], direction[ROWS * MODEL], dout[ROWS * MODEL],
        dfeatures[ROWS * MODEL];
    float *out;
    fill(features, ROWS * MODEL, 4);
    fill(direction, ROWS * MODEL, 5);
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = BATCH,
                                       .offsets = offsets,
                                       .features = features};
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    memcpy(dout, direction, sizeof dout);
    assert_int_equal(shoal_model_backward(model, &inputs, dout, dfeatures), SHOAL_OK);
    check_slope(model, &inputs, direction, features, dfeatures, ROWS * MODEL, "features");
    /* Gradients are overwritten, not accumulated, */
    shoal_parameter one;
    assert_true(shoal_model_parameter(model, 0, &one));
    const float before = one.gradients[0];
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    memcpy(dout, direction, sizeof dout);
    assert_int_equal(shoal_model_backward(model, &inputs, dout, NULL), SHOAL_OK);
    assert_true(one.gradients[0] == before);
    assert_memory_equal(dout, direction, sizeof dout); /* and dout is not modified */
    /* unless accumulation is requested. */
    shoal_model_inputs more = inputs;
    more.accumulate = 1;
    assert_int_equal(shoal_model_forward(model, &more, &out), SHOAL_OK);
    assert_int_equal(shoal_model_backward(model, &more, dout, NULL), SHOAL_OK);
    assert_true(fabsf(one.gradients[0] - 2 * before) <= 1e-5f * fabsf(before));
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

/* ---- Wanted rows ----------------------------------------------------------------- */

static const int32_t wanted[] = {0, 4, 5, 11};
enum { WANTED = 4 };

/* Fewer rows are returned, and gradients are those of all rows with 0 elsewhere. */
static void wanted_rows_are_those_of_the_whole(void **state) {
    for (int bare = 0; bare < 2; bare++) {
        shoal_context *context = test_context(NULL, 2);
        shoal_model_config config = config_of("full", bare);
        config.dropout = 0.1f; /* only in training */
        shoal_model *model = make_model(context, &config);
        const int64_t width = bare ? MODEL : OUTPUTS;
        int32_t tokens[ROWS];
        float features[ROWS * MODEL], whole[ROWS * MODEL],
            slopes[ROWS * MODEL] = {0}, dwhole[ROWS * MODEL], dsome[ROWS * MODEL], *out,
                          *gradients;
        fill_tokens(tokens);
        fill(features, ROWS * MODEL, 4);
        shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                     .batch = BATCH,
                                     .offsets = offsets,
                                     .tokens = tokens,
                                     .features = features};
        const int64_t size = shoal_model_vectors(model, NULL, &gradients);
        float *expected = test_memory(size, sizeof *expected), some[WANTED * MODEL];
        fill(some, WANTED * width, 8);
        for (int64_t i = 0; i < WANTED; i++)
            memcpy(slopes + wanted[i] * width, some + i * width,
                   sizeof(float) * (size_t)width);
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
        memcpy(whole, out, sizeof(float) * (size_t)(ROWS * width));
        assert_int_equal(shoal_model_backward(model, &inputs, slopes,
                                              bare ? dwhole : NULL),
                         SHOAL_OK);
        memcpy(expected, gradients, sizeof(float) * (size_t)size);
        inputs.wanted = wanted;
        inputs.wanted_count = WANTED;
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
        for (int64_t i = 0; i < WANTED * width; i++)
            assert_float_equal(out[i], whole[wanted[i / width] * width + i % width],
                               2e-5);
        assert_int_equal(shoal_model_backward(model, &inputs, some, bare ? dsome : NULL),
                         SHOAL_OK);
        for (int64_t i = 0; i < size; i++)
            assert_float_equal(gradients[i], expected[i], 2e-4);
        for (int64_t i = 0; bare && i < ROWS * MODEL; i++)
            assert_float_equal(dsome[i], dwhole[i], 2e-4);
        inputs.training = 1;
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
        free(expected);
        shoal_model_destroy(model);
        shoal_context_destroy(context);
    }
}

static void wrong_wanted_rows_are_refused(void **state) {
    static const int32_t wrong[][2] = {{4, 4}, {5, 4}, {-1, 4}, {4, ROWS}};
    shoal_context *context = test_context(NULL, 1);
    shoal_model_config config = config_of("full", false);
    shoal_model *model = make_model(context, &config);
    int32_t tokens[ROWS] = {0};
    float *out;
    shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                 .batch = BATCH,
                                 .offsets = offsets,
                                 .tokens = tokens,
                                 .wanted_count = 2};
    for (int64_t i = 0; i < COUNT_OF(wrong); i++) {
        inputs.wanted = wrong[i];
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
        assert_non_null(strstr(shoal_context_message(context), "wanted row"));
    }
    inputs.wanted = wanted;
    inputs.wanted_count = -1;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    inputs.wanted_count = 0; /* none is allowed */
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    assert_int_equal(shoal_model_backward(model, &inputs, out, NULL), SHOAL_OK);
    inputs.wanted_count = 2; /* not those of the forward */
    assert_int_equal(shoal_model_backward(model, &inputs, out, NULL), SHOAL_INVALID);
    shoal_model_destroy(model);
    config.pooling = SHOAL_POOLING_MEAN;
    model = make_model(context, &config);
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

/* ---- Views ----------------------------------------------------------------------- */

/* Weights do not depend on the maximum length, unless positions are learned. */
static void views_may_be_longer(void **state) {
    shoal_context *context = test_context(NULL, 1);
    int32_t tokens[ROWS];
    float *out, found[7 * OUTPUTS];
    fill_tokens(tokens);
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = 1,
                                       .offsets = (int64_t[]){0, 7},
                                       .tokens = tokens};
    for (int learned = 0; learned < 2; learned++) {
        shoal_model_config config = config_of("full", false);
        config.positions = learned ? SHOAL_POSITIONS_LEARNED : SHOAL_POSITIONS_SINUSOIDAL;
        shoal_model *longer = make_model(context, &config), *model, *view;
        config.max_length = 6;
        model = make_model(context, &config);
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
        assert_int_equal(shoal_model_create_view(model, NULL, 1, 7, &view), SHOAL_OK);
        const shoal_status status = shoal_model_forward(view, &inputs, &out);
        assert_int_equal(status, learned ? SHOAL_INVALID : SHOAL_OK);
        if (!learned) {
            memcpy(found, out, sizeof found);
            assert_int_equal(shoal_model_forward(longer, &inputs, &out), SHOAL_OK);
            assert_memory_equal(out, found, sizeof found);
        }
        shoal_model_destroy(view);
        shoal_model_destroy(model);
        shoal_model_destroy(longer);
    }
    shoal_context_destroy(context);
}

static void views_share_the_weights(void **state) {
    shoal_context *context = test_context(NULL, 2);
    const shoal_model_config config = config_of("full", false);
    shoal_model *model = make_model(context, &config), *view, *other;
    int32_t tokens[ROWS];
    float whole[ROWS * OUTPUTS], *out, *values, *theirs, *gradients;
    fill_tokens(tokens);
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = BATCH,
                                       .offsets = offsets,
                                       .tokens = tokens};
    assert_int_equal(shoal_model_create_view(model, NULL, BATCH, ROWS, &view), SHOAL_OK);
    const int64_t size = shoal_model_vectors(model, &values, NULL);
    assert_int_equal(shoal_model_vectors(view, &theirs, &gradients), size);
    assert_ptr_equal(values, theirs);
    assert_null(gradients);
    shoal_parameter one;
    assert_true(shoal_model_parameter(view, 0, &one) && !one.gradients);
    assert_true(shoal_model_workspace(view) < shoal_model_workspace(model));
    values[0] += 1; /* visible in both */
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    memcpy(whole, out, sizeof whole);
    assert_int_equal(shoal_model_forward(view, &inputs, &out), SHOAL_OK);
    assert_memory_equal(out, whole, sizeof whole);
    assert_int_equal(shoal_model_backward(view, &inputs, out, NULL), SHOAL_INVALID);
    const shoal_attention clustered = spelled("clustered-2"), lsh = spelled("lsh-1");
    assert_int_equal(shoal_model_create_view(view, &clustered, 1, 8, &other), SHOAL_OK);
    assert_int_equal(shoal_model_settings(other)->attention.kind, SHOAL_KIND_CLUSTERED);
    assert_int_equal(shoal_model_forward(other, &inputs, &out), SHOAL_INVALID);
    const shoal_model_inputs last = {.size = sizeof(shoal_model_inputs),
                                     .batch = 1,
                                     .offsets = (int64_t[]){0, 7},
                                     .tokens = tokens + 6};
    assert_int_equal(shoal_model_forward(other, &last, &out), SHOAL_OK);
    assert_true(fabsf(out[0] - whole[6 * OUTPUTS]) > 1e-6f);
    shoal_model_destroy(other);
    assert_int_equal(shoal_model_create_view(model, &lsh, 1, 8, &other), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "shared_qk"));
    assert_null(other);
    assert_int_equal(shoal_model_create_view(model, NULL, -1, 8, &other), SHOAL_INVALID);
    assert_int_equal(shoal_model_create_view(NULL, NULL, 1, 8, &other), SHOAL_INVALID);
    assert_int_equal(shoal_model_create_view(model, NULL, 1, 8, NULL), SHOAL_INVALID);
    shoal_model_destroy(view);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

/* Kinds with separate keys work with one projection too. */
static void views_of_shared_projections(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const shoal_model_config config = config_of("lsh-1", true);
    const shoal_attention kinds[] = {spelled("shared-full"), spelled("full")};
    shoal_model *model = make_model(context, &config);
    float features[ROWS * MODEL], outs[2][ROWS * MODEL], *out;
    fill(features, ROWS * MODEL, 4);
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = BATCH,
                                       .offsets = offsets,
                                       .features = features};
    for (int i = 0; i < 2; i++) {
        shoal_model *view;
        assert_int_equal(shoal_model_create_view(model, &kinds[i], BATCH, ROWS, &view),
                         SHOAL_OK);
        assert_int_equal(shoal_model_forward(view, &inputs, &out), SHOAL_OK);
        memcpy(outs[i], out, sizeof outs[i]);
        shoal_model_destroy(view);
    }
    for (int i = 0; i < ROWS * MODEL; i++)
        assert_float_equal(outs[0][i], outs[1][i], 1e-5);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

/* ---- Errors ----------------------------------------------------------------------- */

static void wrong_inputs_are_refused(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model_config config = config_of("full", false);
    shoal_model *model = make_model(context, &config);
    int32_t tokens[ROWS + 10] = {0};
    float *out;
    shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                 .batch = BATCH,
                                 .offsets = offsets,
                                 .tokens = tokens};
    float none[ROWS * OUTPUTS] = {0};
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    inputs.batch = 0; /* nor of an empty batch */
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    inputs.batch = BATCH;
    assert_non_null(strstr(shoal_context_message(context), "call forward"));
    const int64_t wrong[][BATCH + 1] = {{1, 2, 3, 4, 5},
                                        {0, 5, 4, 6, 7},
                                        {0, 9, 9, 9, 9},    /* beyond max_length */
                                        {0, 5, 10, 15, 20}, /* beyond max_rows */
                                        {0, -1, 2, 3, 4}};
    for (int64_t i = 0; i < COUNT_OF(wrong); i++) {
        inputs.offsets = wrong[i];
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    }
    inputs.offsets = offsets;
    inputs.batch = BATCH + 1;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    inputs.batch = BATCH;
    for (int32_t token = -1; token <= VOCABULARY; token += VOCABULARY + 1) {
        tokens[ROWS - 1] = token;
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    }
    /* After a failed forward there is no valid one, not even for tokens without the
       error. */
    tokens[ROWS - 1] = 0;
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    tokens[ROWS - 1] = VOCABULARY;
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "row 12: it must be from 0"));
    inputs.tokens = NULL;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(NULL, &inputs, &out), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(model, NULL, &out), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(model, &inputs, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_backward(NULL, &inputs, none, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_backward(model, &inputs, NULL, NULL), SHOAL_INVALID);
    shoal_model_destroy(model);

    assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 0, &model), SHOAL_OK);
    float dout[8 * OUTPUTS] = {0};
    tokens[ROWS - 1] = 0;
    inputs = (shoal_model_inputs){.size = sizeof(shoal_model_inputs),
                                  .batch = 1,
                                  .offsets = (int64_t[]){0, 8},
                                  .tokens = tokens};
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    assert_int_equal(shoal_model_backward(model, &inputs, dout, NULL), SHOAL_INVALID);
    shoal_parameter one;
    assert_true(shoal_model_parameter(model, 0, &one));
    assert_null(one.gradients);
    assert_false(shoal_model_parameter(model, 100000, &one));
    assert_false(shoal_model_parameter(model, -1, &one));
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

static void wrong_configurations_are_refused(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model *model;
    for (int field = 0; field < 15; field++) {
        shoal_model_config config = config_of("full", field == 11);
        switch (field) {
        case 0: config.layers = 0; break;
        case 1: config.heads = -1; break;
        case 2: config.head_dim = 0; break;
        case 3: config.feed_forward = 0; break;
        case 4: config.outputs = 0; break;
        case 5: config.norm = 2; break;
        case 6: config.positions = -1; break;
        case 7: config.dropout = 1.5f; break;
        case 8: config.max_length = -1; break;
        case 9: config.features = 3; break; /* besides tokens */
        case 10: config.pooling = 3; break;
        case 11: config.pooling = SHOAL_POOLING_MEAN; break; /* of layers only */
        case 12: config.activation = -1; break;
        case 13: config.convolutions = 1; break; /* of tokens */
        case 14: config.convolutions = -1; break;
        }
        if (shoal_model_create(context, &config, 1, 1, 8, 0, &model) != SHOAL_INVALID)
            fail_msg("field %d was taken", field);
        assert_null(model);
    }
    const shoal_model_config config = config_of("full", false);
    assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 64, &model),
                     SHOAL_INVALID);
    assert_int_equal(shoal_model_create(context, NULL, 1, 1, 8, 0, &model),
                     SHOAL_INVALID);
    assert_int_equal(shoal_model_create(NULL, &config, 1, 1, 8, 0, &model),
                     SHOAL_INVALID);
    assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 0, NULL),
                     SHOAL_INVALID);
    assert_int_equal(shoal_model_create(context, &config, 1, -1, 8, 0, &model),
                     SHOAL_INVALID);
    shoal_model_destroy(NULL);
    assert_null(shoal_model_settings(NULL));
    assert_int_equal(shoal_model_vectors(NULL, NULL, NULL), 0);
    assert_int_equal(shoal_model_workspace(NULL), 0);
    shoal_parameter one;
    assert_false(shoal_model_parameter(NULL, 0, &one));
    shoal_context_destroy(context);
}

/* ---- Memory ---------------------------------------------------------------------- */

/* With clustered kinds, twice the length needs little more than twice the memory. */
static void memory_grows_as_the_rows(void **state) {
    static const char *const kinds[] = {"full", "clustered-100", "i-clustered-100",
                                        "lsh-1"};
    shoal_context *context = test_context(NULL, 2);
    for (int64_t k = 0; k < COUNT_OF(kinds); k++) {
        size_t bytes[2];
        for (int i = 0; i < 2; i++) {
            shoal_model_config config = config_of(kinds[k], true);
            shoal_model *model;
            config.max_length = 16384 << i;
            assert_int_equal(shoal_model_create(context, &config, 1, 1, config.max_length,
                                                SHOAL_WITH_BACKWARD, &model),
                             SHOAL_OK);
            bytes[i] = shoal_model_workspace(model);
            shoal_model_destroy(model);
        }
        assert_true((double)bytes[1] < 2.02 * (double)bytes[0]);
    }
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_alone),
        cmocka_unit_test(wanted_rows_are_those_of_the_whole),
        cmocka_unit_test(wrong_wanted_rows_are_refused),
        cmocka_unit_test(views_share_the_weights),
        cmocka_unit_test(views_may_be_longer),
        cmocka_unit_test(views_of_shared_projections),
        cmocka_unit_test(wrong_inputs_are_refused),
        cmocka_unit_test(wrong_configurations_are_refused),
        cmocka_unit_test(memory_grows_as_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
