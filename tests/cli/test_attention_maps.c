/* Attention maps: full's weights equal a softmax computed here; the weights of every
   kind reproduce its outputs and sum to 1; and the first layer, computed here from the
   model's weights and projections, gives the library's inputs of the second. */
#include "lab/attention_maps.c"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static shoal_context *context;

static int open_fixture(void **state) {
    context = test_context(NULL, 2);
    return 0;
}

static int close_context(void **state) {
    shoal_context_destroy(context);
    return 0;
}

static shoal_attention kind_of(const char *name) {
    shoal_attention kind;
    assert_int_equal(shoal_attention_parse(context, name, &kind), SHOAL_OK);
    return kind;
}

static float *floats(int64_t count) {
    float *made = calloc((size_t)count + 1, sizeof *made);
    assert_non_null(made);
    return made;
}

/* The weight of one key, in double precision. */
static double by_hand(const map_shape *shape, const float *projected, int64_t query,
                      int64_t head, int64_t key) {
    const int64_t width = shape->heads * shape->head_dim;
    const float *q = projected + 3 * query * width + head * shape->head_dim;
    double wanted = 0, sum = 0;
    for (int64_t other = 0; other < shape->count; other++) {
        const float *k = projected + (3 * other + 1) * width + head * shape->head_dim;
        double score = 0;
        for (int64_t i = 0; i < shape->head_dim; i++)
            score += (double)q[i] * (double)k[i];
        score = exp(score / sqrt((double)shape->head_dim));
        sum += score;
        wanted = other == key ? score : wanted;
    }
    return wanted / sum;
}

static void check_sums(const map_shape *shape, const float *weights, const char *name) {
    for (int64_t row = 0; row < shape->rows * shape->heads; row++) {
        double sum = 0;
        for (int64_t key = 0; key < shape->count; key++)
            sum += (double)weights[row * shape->count + key];
        if (!(fabs(sum - 1) < 1e-5))
            fail_msg("%s, %lld positions: a row sums to %.9g", name,
                     (long long)shape->count, sum);
    }
}

static void weights_of_kinds(void **state) {
    static const char *const names[] = {"full", "clustered-3", "i-clustered-3:topk=5",
                                        "shoal-3", "local-4"};
    static const map_shape shapes[] = {{1, 4, 1, 0, 1},  {2, 8, 7, 2, 3},
                                       {3, 8, 8, 0, 8},  {2, 8, 33, 32, 1},
                                       {4, 5, 67, 1, 9}, {1, 64, 200, 5, 4}};
    for (int64_t s = 0; s < COUNT_OF(shapes); s++) {
        const map_shape *shape = &shapes[s];
        const int64_t wide = 3 * shape->heads * shape->head_dim;
        float *projected = floats(shape->count * wide);
        float *weights = floats(shape->rows * shape->heads * shape->count);
        for (int64_t i = 0; i < shape->count * wide; i++)
            projected[i] =
                (float)(3 * sin(0.7 * (double)i + 0.01 * (double)(i % 13) * (double)i));
        float *before = floats(shape->count * wide);
        memcpy(before, projected, (size_t)(shape->count * wide) * sizeof *before);
        for (int64_t k = 0; k < COUNT_OF(names); k++) {
            const shoal_attention kind = kind_of(names[k]);
            const double error = map_weigh(context, &kind, shape, projected, weights);
            assert_memory_equal(before, projected,
                                (size_t)(shape->count * wide) * sizeof *before);
            check_sums(shape, weights, names[k]);
            if (!(error < 1e-5))
                fail_msg("%s: error %g", names[k], error);
            for (int64_t i = 0; k == 0 && i < shape->rows * shape->heads; i++)
                for (int64_t key = 0; key < shape->count; key++)
                    assert_float_equal(weights[i * shape->count + key],
                                       by_hand(shape, projected,
                                               shape->first + i / shape->heads,
                                               i % shape->heads, key),
                                       1e-5);
        }
        free(projected);
        free(weights);
        free(before);
    }
}

/* ---- One layer computed here ------------------------------------------------------ */

static const float *values_of(shoal_model *model, const char *name) {
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++)
        if (strcmp(one.name, name) == 0)
            return one.values;
    fail_msg("there is no parameter %s", name);
    return NULL;
}

static void product(shoal_model *model, const char *weight, const char *bias,
                    int64_t inputs, int64_t outputs, const double *x, double *y) {
    const float *w = values_of(model, weight), *b = values_of(model, bias);
    for (int64_t i = 0; i < outputs; i++) {
        y[i] = (double)b[i];
        for (int64_t j = 0; j < inputs; j++)
            y[i] += (double)w[i * inputs + j] * x[j];
    }
}

static void norm(shoal_model *model, const char *scale, const char *shift, double epsilon,
                 int64_t size, double *x) {
    const float *a = values_of(model, scale), *b = values_of(model, shift);
    double mean = 0, square = 0;
    for (int64_t i = 0; i < size; i++)
        mean += x[i] / (double)size;
    for (int64_t i = 0; i < size; i++)
        square += (x[i] - mean) * (x[i] - mean) / (double)size;
    for (int64_t i = 0; i < size; i++)
        x[i] = (x[i] - mean) / sqrt(square + epsilon) * (double)a[i] + (double)b[i];
}

/* x [model] of the second layer, from that of the first and the output of its
   attention. */
static void finish_layer(shoal_model *model, double *x, const double *attended) {
#define FIRST "encoder.layers.0."
    enum { MOST = 512 };
    const shoal_model_config *c = shoal_model_settings(model);
    const int64_t size = c->heads * c->head_dim;
    double y[MOST], hidden[MOST];
    assert_true(size <= MOST && c->feed_forward <= MOST);
    product(model, FIRST "attention.output.weight", FIRST "attention.output.bias", size,
            size, attended, y);
    for (int64_t i = 0; i < size; i++)
        x[i] += y[i];
    norm(model, FIRST "attention_norm.scale", FIRST "attention_norm.shift",
         (double)c->epsilon, size, x);
    product(model, FIRST "feed_forward.widen.weight", FIRST "feed_forward.widen.bias",
            size, c->feed_forward, x, hidden);
    for (int64_t i = 0; i < c->feed_forward; i++)
        hidden[i] *= 0.5 * (1 + erf(hidden[i] / sqrt(2)));
    product(model, FIRST "feed_forward.narrow.weight", FIRST "feed_forward.narrow.bias",
            c->feed_forward, size, hidden, y);
    for (int64_t i = 0; i < size; i++)
        x[i] += y[i];
    norm(model, FIRST "forward_norm.scale", FIRST "forward_norm.shift",
         (double)c->epsilon, size, x);
}

/* Input of the first layer. */
static void begin_row(shoal_model *model, int64_t row, int32_t id, int32_t type,
                      double *x) {
    const shoal_model_config *c = shoal_model_settings(model);
    const int64_t size = c->heads * c->head_dim;
    for (int64_t i = 0; i < size; i++)
        x[i] = (double)values_of(model, "embedding.weight")[id * size + i] +
               (double)values_of(model, "positions.weight")[row * size + i] +
               (double)values_of(model, "types.weight")[type * size + i];
    norm(model, "input_norm.scale", "input_norm.shift", (double)c->epsilon, size, x);
}

static void from_layer_to_layer(const char *name) {
    enum { COUNT = 11 };
    static const int32_t ids[COUNT] = {2, 9, 14, 20, 3, 7, 31, 8, 8, 25, 3};
    char path[512];
    int32_t types[COUNT];
    shoal_model_config config = {.size = sizeof(shoal_model_config), .outputs = 1};
    shoal_model *model;
    const shoal_attention full = kind_of("full");
    snprintf(path, sizeof path, "%s/tests/models/text/%s", SHOAL_SOURCE_DIR, name);
    assert_int_equal(shoal_text_model_config(context, path, &config), SHOAL_OK);
    assert_int_equal(shoal_model_create(context, &config, 1, 0, 0, 0, &model), SHOAL_OK);
    assert_int_equal(shoal_text_model_load(context, path, model), SHOAL_OK);
    for (int i = 0; i < COUNT; i++)
        types[i] = config.types > 1 && i > 4;
    const map_tokens tokens = {COUNT, ids, types};
    const int64_t size = config.heads * config.head_dim;
    const map_shape shape = {config.heads, config.head_dim, COUNT, 0, COUNT};
    float *first = floats(COUNT * 3 * size), *second = floats(COUNT * 3 * size);
    float *weights = floats(COUNT * config.heads * COUNT);
    double *x = calloc((size_t)size, 2 * sizeof *x), *attended = x + size;
    map_project(context, model, &full, 0, &tokens, first);
    map_project(context, model, &full, 1, &tokens, second);
    map_weigh(context, &full, &shape, first, weights);
    for (int64_t row = 0; row < COUNT; row++) {
        double made[512];
        for (int64_t i = 0; i < size; i++) {
            const float *share = weights +
                                 (row * config.heads + i / config.head_dim) * COUNT;
            attended[i] = 0;
            for (int64_t key = 0; key < COUNT; key++)
                attended[i] += (double)share[key] *
                               (double)first[(3 * key + 2) * size + i];
        }
        begin_row(model, row, ids[row], types[row], x);
        finish_layer(model, x, attended);
        product(model, "encoder.layers.1.attention.key.weight",
                "encoder.layers.1.attention.key.bias", size, size, x, made);
        for (int64_t i = 0; i < size; i++)
            assert_float_equal(second[(3 * row + 1) * size + i], made[i], 1e-4);
    }
    free(first);
    free(second);
    free(weights);
    free(x);
    shoal_model_destroy(model);
}

static void layers_of_bert(void **state) {
    from_layer_to_layer("bert");
}

static void layers_of_roberta(void **state) {
    from_layer_to_layer("roberta");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(weights_of_kinds),
                                       cmocka_unit_test(layers_of_bert),
                                       cmocka_unit_test(layers_of_roberta)};
    return cmocka_run_group_tests(tests, open_fixture, close_context);
}
