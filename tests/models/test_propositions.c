/* The paper's two propositions, on random data and on queries and keys of real models;
   and the results for those compared with the reference.
   1. Queries at distance e have softmax rows at a distance of at most e |K|_2 (L2).
   2. No row of i-clustered is farther from full than that of clustered (L1). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "shoal_models.h"
#include "support.h"

/* Heads to look at: q [heads][N][D], k [heads][S][D]. */
typedef struct {
    const float *q, *k;
    int64_t heads, queries, keys, dim;
    float scale;
    int32_t clusters, topk;
    shoal_clustering grouping; /* the propositions hold for any clusters */
} proposition_data;

/* The library's weights of one kind: V is the identity, shared by all heads. weights:
   [heads][N][S]; groups: [heads][N], or NULL. */
static void library_weights(const proposition_data *data, shoal_kind kind, float *weights,
                            int32_t *groups) {
    int64_t keys = data->keys;
    float *identity = test_memory(keys * keys, sizeof *identity);
    for (int64_t l = 0; l < keys; l++)
        identity[l * keys + l] = 1;
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = 1,
                             .heads = data->heads,
                             .queries = data->queries,
                             .keys = keys,
                             .dim = data->dim,
                             .value_dim = keys,
                             .scale = data->scale,
                             .v_strides = &(shoal_strides){.position = keys}};
    shoal_attention attention = {.kind = kind,
                                 .clusters = data->clusters,
                                 .bits = 63,
                                 .rank = 16,
                                 .iterations = 10,
                                 .topk = data->topk,
                                 .clustering = (int32_t)data->grouping,
                                 .seed = 1};
    shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                           .q = data->q,
                           .k = data->k,
                           .v = identity};
    shoal_context *context = test_context(NULL, 0);
    shoal_plan *plan = NULL;
    assert_int_equal(shoal_plan_create(context, &problem, &attention, 0, &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_forward(plan, &inputs, weights), SHOAL_OK);
    if (groups)
        memcpy(groups, shoal_plan_clusters(plan, NULL),
               sizeof *groups * (size_t)(data->heads * data->queries));
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    free(identity);
}

/* |K|_2 by power iteration on K'K, which approaches it from below. */
static double spectral_norm(const float *k, int64_t keys, int64_t dim) {
    double *x = test_memory(dim, sizeof *x), *y = test_memory(dim, sizeof *y);
    double norm = 0;
    for (int64_t d = 0; d < dim; d++)
        x[d] = test_normal(test_hash(1, 2, (uint64_t)d));
    for (int step = 0; step < 100; step++) {
        double length = 0;
        memset(y, 0, sizeof *y * (size_t)dim);
        for (int64_t l = 0; l < keys; l++) {
            double along = 0;
            for (int64_t d = 0; d < dim; d++)
                along += (double)k[l * dim + d] * x[d];
            for (int64_t d = 0; d < dim; d++)
                y[d] += along * (double)k[l * dim + d];
        }
        for (int64_t d = 0; d < dim; d++)
            length += y[d] * y[d];
        length = sqrt(length);
        norm = sqrt(length);
        for (int64_t d = 0; d < dim; d++)
            x[d] = y[d] / length;
    }
    free(x);
    free(y);
    return norm;
}

static double distance(const float *a, const float *b, int64_t count, int power) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += pow(fabs((double)a[i] - (double)b[i]), power);
    return power == 2 ? sqrt(sum) : sum;
}

/* Proposition 1 for each query and several others, in the library's full weights. */
static void check_proposition_1(const proposition_data *data, const float *full) {
    for (int64_t h = 0; h < data->heads; h++) {
        const float *q = data->q + h * data->queries * data->dim;
        const float *rows = full + h * data->queries * data->keys;
        double norm =
            fabs((double)data->scale) *
            spectral_norm(data->k + h * data->keys * data->dim, data->keys, data->dim);
        for (int64_t i = 0; i < data->queries; i++)
            for (int64_t step = 1; step < 200; step += 37) {
                int64_t j = (i + step) % data->queries;
                double apart =
                    distance(q + i * data->dim, q + j * data->dim, data->dim, 2);
                double change =
                    distance(rows + i * data->keys, rows + j * data->keys, data->keys, 2);
                assert_true(change <= apart * norm * (1 + 1e-6) + 1e-6);
            }
    }
}

/* Proposition 2 for every query. */
static void check_proposition_2(const proposition_data *data, const float *full,
                                const float *clustered, const float *improved) {
    for (int64_t i = 0; i < data->heads * data->queries; i++) {
        const float *exact = full + i * data->keys;
        double plain = distance(clustered + i * data->keys, exact, data->keys, 1);
        double better = distance(improved + i * data->keys, exact, data->keys, 1);
        if (!(better <= plain + 1e-5))
            fail_msg("query %lld: i-clustered is %.7g from full, clustered %.7g",
                     (long long)i, better, plain);
    }
}

static void check_propositions(const proposition_data *data) {
    int64_t rows = data->heads * data->queries;
    float *full = test_memory(rows * data->keys, sizeof *full);
    float *clustered = test_memory(rows * data->keys, sizeof *clustered);
    float *improved = test_memory(rows * data->keys, sizeof *improved);
    int32_t *groups = test_memory(rows, sizeof *groups);
    int32_t *improved_groups = test_memory(rows, sizeof *improved_groups);
    library_weights(data, SHOAL_KIND_FULL, full, NULL);
    library_weights(data, SHOAL_KIND_CLUSTERED, clustered, groups);
    library_weights(data, SHOAL_KIND_I_CLUSTERED, improved, improved_groups);
    assert_memory_equal(groups, improved_groups, sizeof *groups * (size_t)rows);
    check_proposition_1(data, full);
    check_proposition_2(data, full, clustered, improved);
    free(full);
    free(clustered);
    free(improved);
    free(groups);
    free(improved_groups);
}

static void propositions_on_random_data(void **state) {
    for (uint64_t seed = 1; seed <= 6; seed++) {
        case_spec spec = {.batch = 1,
                          .heads = 2,
                          .queries = test_pick(seed, 1, 60, 200),
                          .keys = test_pick(seed, 2, 20, 150),
                          .value_dim = 1,
                          .dim = test_pick(seed, 3, 2, 40),
                          .seed = seed};
        attention_case c = case_create(&spec);
        proposition_data data = {.q = c.q.data,
                                 .k = c.k.data,
                                 .heads = 2,
                                 .queries = spec.queries,
                                 .keys = spec.keys,
                                 .dim = spec.dim,
                                 .scale = seed % 2 ? 0.5f : 0.2f,
                                 .clusters = (int32_t)test_pick(seed, 4, 1, 30),
                                 .topk = (int32_t)test_pick(seed, 5, 1, 25),
                                 .grouping = seed % 3 ? SHOAL_CLUSTERING_HASH
                                                      : SHOAL_CLUSTERING_KEYS};
        check_propositions(&data);
        case_destroy(&c);
    }
}

/* ---- Real data ----------------------------------------------------------------- */

typedef struct {
    const char *layer;    /* "qkv/whisper-tiny/layer3" */
    int64_t first, heads; /* the heads to look at */
    int32_t clusters, topk;
} real_layer;

static const real_layer LAYERS[] = {
    {"qkv/whisper-tiny/layer0", 1, 1, 100, 32},
    {"qkv/whisper-tiny/layer3", 4, 1, 100, 32},
    {"qkv/minilm-l6/layer0", 0, 4, 25, 32},
    {"qkv/minilm-l6/layer5", 8, 4, 25, 32},
};

/* The path of one of q, k and v, or NULL if the data is absent. */
static const char *layer_path(const real_layer *layer, char which) {
    char name[256];
    snprintf(name, sizeof name, "%s_%c.npy", layer->layer, which);
    return test_data(name);
}

static void skip_without_data(void) {
    for (int64_t i = 0; i < COUNT_OF(LAYERS); i++)
        for (const char *which = "qkv"; *which; which++)
            if (!layer_path(&LAYERS[i], *which)) {
                print_message(
                    "skipped: no %s_%c.npy in SHOAL_DATA or beside the project\n",
                    LAYERS[i].layer, *which);
                skip();
            }
}

static shoal_array read_layer(shoal_context *context, const real_layer *layer,
                              char which) {
    shoal_array array = {0};
    if (shoal_array_read(context, layer_path(layer, which), &array) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    assert_int_equal(array.dtype, SHOAL_DTYPE_FLOAT32);
    assert_int_equal(array.dimensions, 4);
    return array;
}

static const float *head_of(const shoal_array *array, int64_t head) {
    return (const float *)array->data + head * array->shape[2] * array->shape[3];
}

static void propositions_on_real_data(void **state) {
    skip_without_data();
    for (int64_t i = 0; i < COUNT_OF(LAYERS); i++) {
        const real_layer *layer = &LAYERS[i];
        shoal_context *context = test_context(NULL, 0);
        shoal_array q = read_layer(context, layer, 'q');
        shoal_array k = read_layer(context, layer, 'k');
        proposition_data data = {.q = head_of(&q, layer->first),
                                 .k = head_of(&k, layer->first),
                                 .heads = layer->heads,
                                 .queries = q.shape[2],
                                 .keys = k.shape[2],
                                 .dim = q.shape[3],
                                 .scale = 1 / sqrtf((float)q.shape[3]),
                                 .clusters = layer->clusters,
                                 .topk = layer->topk,
                                 .grouping = i % 2 ? SHOAL_CLUSTERING_KEYS
                                                   : SHOAL_CLUSTERING_HASH};
        check_propositions(&data);
        shoal_array_release(&q);
        shoal_array_release(&k);
        shoal_context_destroy(context);
    }
}

static void copy_head(const tensor *t, const shoal_array *array, int64_t head) {
    memcpy(t->data, head_of(array, head), sizeof(float) * (size_t)t->elements);
}

/* One head of a real layer as a case. */
static attention_case real_case(shoal_context *context, const real_layer *layer,
                                const shoal_attention *attention) {
    shoal_array q = read_layer(context, layer, 'q');
    shoal_array k = read_layer(context, layer, 'k');
    shoal_array v = read_layer(context, layer, 'v');
    case_spec spec = {.attention = *attention,
                      .batch = 1,
                      .heads = 1,
                      .queries = q.shape[2],
                      .keys = k.shape[2],
                      .dim = q.shape[3],
                      .value_dim = v.shape[3],
                      .seed = 1};
    attention_case c = case_create(&spec);
    copy_head(&c.q, &q, layer->first);
    copy_head(&c.k, &k, layer->first);
    copy_head(&c.v, &v, layer->first);
    shoal_array_release(&q);
    shoal_array_release(&k);
    shoal_array_release(&v);
    return c;
}

static void real_data_against_reference(void **state) {
    skip_without_data();
    for (int64_t i = 1; i < COUNT_OF(LAYERS); i += 2) {
        shoal_context *context = test_context(NULL, 0);
        const char *const kinds[] = {"full", "i-clustered-1:topk=32",
                                     "q-clustered-1:topk=32", "shoal-1:topk=32"};
        for (int64_t kind = 0; kind < COUNT_OF(kinds); kind++) {
            shoal_attention attention = spelled(kinds[kind]);
            attention.clusters *= LAYERS[i].clusters; /* full has none */
            attention_case c = real_case(context, &LAYERS[i], &attention);
            shoal_plan *plan = case_run(context, &c);
            check_everything(&c, plan);
            shoal_plan_destroy(plan);
            case_destroy(&c);
        }
        shoal_context_destroy(context);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(propositions_on_random_data),
        cmocka_unit_test(propositions_on_real_data),
        cmocka_unit_test(real_data_against_reference),
    };
    return cmocka_run_group_tests_name("propositions", tests, NULL, NULL);
}
