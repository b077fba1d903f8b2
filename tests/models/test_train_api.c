/* Models through the public interface: gradients against differences of the loss,
   sequences that do not see each other, layers alone, refusals, memory that grows as the
   rows do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shoal_models.h"
#include "support.h"

enum { VOCABULARY = 7, OUTPUTS = 5, HEADS = 2, DIM = 8, MODEL = HEADS * DIM, ROWS = 13 };

static const int64_t offsets[] = {0, 5, 5, 6, ROWS}; /* lengths 5, 0, 1, 7 */
enum { BATCH = 4 };

static shoal_model_config config_of(const char *kind, bool bare) {
    return (shoal_model_config){.vocabulary = bare ? 0 : VOCABULARY,
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

/* The loss of the tests: a fixed random vector times the output. */
static double loss_of(shoal_model *model, const shoal_model_inputs *inputs,
                      const float *direction, int64_t size) {
    const float *out;
    double sum = 0;
    assert_int_equal(shoal_model_forward(model, inputs, &out), SHOAL_OK);
    for (int64_t i = 0; i < ROWS * size; i++)
        sum += (double)direction[i] * (double)out[i];
    return sum;
}

/* Along the gradient itself the loss must change by the gradient's squared length. */
static void check_slope(shoal_model *model, const shoal_model_inputs *inputs,
                        const float *direction, int64_t size, float *values,
                        const float *gradients, int64_t count, const char *name) {
    double length = 0;
    float *kept = malloc((size_t)count * sizeof *kept);
    memcpy(kept, values, (size_t)count * sizeof *kept);
    for (int64_t i = 0; i < count; i++)
        length += (double)gradients[i] * (double)gradients[i];
    const double by = 1e-3 / sqrt(length);
    double loss[2];
    for (int side = 0; side < 2 && length > 0; side++) {
        for (int64_t i = 0; i < count; i++)
            values[i] = kept[i] + (float)((side ? by : -by) * (double)gradients[i]);
        loss[side] = loss_of(model, inputs, direction, size);
    }
    memcpy(values, kept, (size_t)count * sizeof *kept);
    free(kept);
    if (length > 1e-10) {
        const double slope = (loss[1] - loss[0]) / (2 * by);
        if (fabs(slope - length) > 0.02 * length + 4e-3 * sqrt(length))
            fail_msg("%s: slope %g, gradient %g", name, slope, length);
    }
}

static void gradients_are_slopes(void **state) {
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        shoal_context *context = test_context(NULL, 1 + variant % 2);
        shoal_model_config config = config_of(variant == 5 ? "lsh-2" : "full", false);
        config.norm = variant & 1 ? SHOAL_NORM_POST : SHOAL_NORM_PRE;
        config.activation = variant & 2 ? SHOAL_RELU : SHOAL_GELU;
        config.positions = variant & 4 ? SHOAL_LEARNED : SHOAL_SINUSOIDAL;
        config.shared_qk = variant == 7;
        shoal_model *model = make_model(context, &config);
        int32_t tokens[ROWS];
        float direction[ROWS * OUTPUTS], dout[ROWS * OUTPUTS];
        const float *out;
        fill_tokens(tokens);
        fill(direction, ROWS * OUTPUTS, 1);
        const shoal_model_inputs inputs = {.batch = BATCH,
                                           .offsets = offsets,
                                           .tokens = tokens};
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
        memcpy(dout, direction, sizeof dout);
        assert_int_equal(shoal_model_backward(model, &inputs, dout, NULL), SHOAL_OK);
        shoal_parameter one;
        int count = 0;
        for (; shoal_model_parameter(model, count, &one); count++) {
            int64_t elements = 1;
            for (int r = 0; r < one.rank; r++)
                elements *= one.shape[r];
            check_slope(model, &inputs, direction, OUTPUTS, one.values, one.gradients,
                        elements, one.name);
        }
        assert_true(count > 20);
        shoal_model_destroy(model);
        shoal_context_destroy(context);
    }
}

/* Layers alone, and the gradient of what goes in. With more clusters than queries no
   group can change between the two losses. */
static void layers_alone(void **state) {
    shoal_context *context = test_context(NULL, 2);
    const shoal_model_config config = config_of("i-clustered-100", true);
    shoal_model *model = make_model(context, &config);
    float features[ROWS * MODEL], direction[ROWS * MODEL], dout[ROWS * MODEL],
        dfeatures[ROWS * MODEL];
    const float *out;
    (void)state;
    fill(features, ROWS * MODEL, 4);
    fill(direction, ROWS * MODEL, 5);
    const shoal_model_inputs inputs = {.batch = BATCH,
                                       .offsets = offsets,
                                       .features = features};
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    memcpy(dout, direction, sizeof dout);
    assert_int_equal(shoal_model_backward(model, &inputs, dout, dfeatures), SHOAL_OK);
    check_slope(model, &inputs, direction, MODEL, features, dfeatures, ROWS * MODEL,
                "features");
    /* Gradients are overwritten, not added to. */
    shoal_parameter one;
    assert_true(shoal_model_parameter(model, 0, &one));
    const float before = one.gradients[0];
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    memcpy(dout, direction, sizeof dout);
    assert_int_equal(shoal_model_backward(model, &inputs, dout, NULL), SHOAL_OK);
    assert_true(one.gradients[0] == before);
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

/* ---- Sequences ------------------------------------------------------------------- */

static void sequences_do_not_see_each_other(void **state) {
    static const char *const kinds[] = {"full", "clustered-3", "i-clustered-3:topk=2",
                                        "lsh-2"};
    (void)state;
    for (int64_t k = 0; k < COUNT_OF(kinds); k++) {
        shoal_context *context = test_context(NULL, 2);
        const shoal_model_config config = config_of(kinds[k], false);
        shoal_model *model = make_model(context, &config);
        int32_t tokens[ROWS];
        float whole[ROWS * OUTPUTS];
        const float *out;
        fill_tokens(tokens);
        const shoal_model_inputs inputs = {.batch = BATCH,
                                           .offsets = offsets,
                                           .tokens = tokens};
        assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
        memcpy(whole, out, sizeof whole);
        for (int b = 0; b < BATCH; b++) {
            const int64_t length = offsets[b + 1] - offsets[b], own[] = {0, length};
            const shoal_model_inputs alone = {.batch = 1,
                                              .offsets = own,
                                              .tokens = tokens + offsets[b]};
            assert_int_equal(shoal_model_forward(model, &alone, &out), SHOAL_OK);
            for (int64_t i = 0; i < length * OUTPUTS; i++)
                assert_float_equal(out[i], whole[offsets[b] * OUTPUTS + i], 2e-5);
        }
        const shoal_model_inputs none = {.batch = 0, .offsets = (int64_t[]){0}};
        assert_int_equal(shoal_model_forward(model, &none, &out), SHOAL_OK);
        shoal_model_destroy(model);
        shoal_context_destroy(context);
    }
}

/* ---- Refusals -------------------------------------------------------------------- */

static void wrong_inputs_are_refused(void **state) {
    shoal_context *context = test_context(NULL, 1);
    shoal_model_config config = config_of("full", false);
    shoal_model *model = make_model(context, &config);
    int32_t tokens[ROWS + 10] = {0};
    const float *out;
    (void)state;
    shoal_model_inputs inputs = {.batch = BATCH, .offsets = offsets, .tokens = tokens};
    float none[ROWS * OUTPUTS] = {0};
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    inputs.batch = 0; /* nor of nothing */
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    inputs.batch = BATCH;
    assert_non_null(strstr(shoal_context_message(context), "without a forward"));
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
    /* A forward that was refused is none, not even for the tokens without the mistake. */
    tokens[ROWS - 1] = 0;
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    tokens[ROWS - 1] = VOCABULARY;
    assert_int_equal(shoal_model_backward(model, &inputs, none, NULL), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "vocabulary"));
    inputs.tokens = NULL;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(NULL, &inputs, &out), SHOAL_INVALID);
    assert_int_equal(shoal_model_forward(model, NULL, &out), SHOAL_INVALID);
    shoal_model_destroy(model);

    assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 0, &model), SHOAL_OK);
    float dout[8 * OUTPUTS] = {0};
    tokens[ROWS - 1] = 0;
    inputs =
        (shoal_model_inputs){.batch = 1, .offsets = (int64_t[]){0, 8}, .tokens = tokens};
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
    (void)state;
    for (int field = 0; field < 9; field++) {
        shoal_model_config config = config_of("full", false);
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
    shoal_model_destroy(NULL);
    shoal_context_destroy(context);
}

/* ---- Memory ---------------------------------------------------------------------- */

/* Twice the length takes twice the memory, and a little, with the clustered kinds. */
static void memory_grows_as_the_rows(void **state) {
    static const char *const kinds[] = {"full", "clustered-100", "i-clustered-100",
                                        "lsh-1"};
    shoal_context *context = test_context(NULL, 2);
    (void)state;
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
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(layers_alone),
        cmocka_unit_test(sequences_do_not_see_each_other),
        cmocka_unit_test(wrong_inputs_are_refused),
        cmocka_unit_test(wrong_configurations_are_refused),
        cmocka_unit_test(memory_grows_as_the_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
