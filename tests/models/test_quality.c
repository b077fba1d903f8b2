/* Quality of shoal-C on queries, keys and values of real models: its error compared
   with required bounds, and the accuracy of the error estimate from a few sampled
   queries. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases.h"
#include "shoal_models.h"
#include "support.h"

static const char *const WHISPER[] = {"qkv/whisper-tiny/layer0",
                                      "qkv/whisper-tiny/layer1",
                                      "qkv/whisper-tiny/layer2",
                                      "qkv/whisper-tiny/layer3"};
static const char *const MINILM[] = {"qkv/minilm-l6/layer0", "qkv/minilm-l6/layer3",
                                     "qkv/minilm-l6/layer5"};

/* q, k, v: [batch][heads][positions][features]. */
typedef struct {
    shoal_array arrays[3];
    shoal_problem problem;
    shoal_inputs inputs;
    int64_t elements; /* number of elements of an output */
} layer;

/* Skips the test if the file is absent. */
static shoal_array read_part(shoal_context *context, const char *name, char which) {
    char file[256];
    shoal_array array = {0};
    snprintf(file, sizeof file, "%s_%c.npy", name, which);
    const char *path = test_data(file);
    if (!path) {
        print_message("skipped: no %s in SHOAL_DATA or beside the project\n", file);
        shoal_context_destroy(context);
        skip();
    }
    if (shoal_array_read(context, path, &array) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    assert_int_equal(array.dtype, SHOAL_DTYPE_FLOAT32);
    assert_int_equal(array.dimensions, 4);
    return array;
}

static layer layer_read(shoal_context *context, const char *name) {
    layer l = {.arrays = {read_part(context, name, 'q'), read_part(context, name, 'k'),
                          read_part(context, name, 'v')}};
    const int64_t *q = l.arrays[0].shape, *k = l.arrays[1].shape, *v = l.arrays[2].shape;
    l.problem = (shoal_problem){.size = sizeof(shoal_problem),
                                .batch = q[0],
                                .heads = q[1],
                                .kv_heads = k[1],
                                .queries = q[2],
                                .keys = k[2],
                                .dim = q[3],
                                .value_dim = v[3]};
    l.inputs = (shoal_inputs){.size = sizeof(shoal_inputs),
                              .q = l.arrays[0].data,
                              .k = l.arrays[1].data,
                              .v = l.arrays[2].data};
    l.elements = q[0] * q[1] * q[2] * v[3];
    return l;
}

static void layer_release(layer *l) {
    for (int i = 0; i < 3; i++)
        shoal_array_release(&l->arrays[i]);
}

/* out: [elements]; the caller frees it. */
static float *attend(shoal_context *context, const layer *l, const char *kind) {
    float *out = test_memory(l->elements, sizeof *out);
    if (shoal_attend(context, kind, &l->problem, &l->inputs, out) != SHOAL_OK)
        fail_msg("%s: %s", kind, shoal_context_message(context));
    return out;
}

/* |out - exact| / |exact|, each as one vector. */
static double relative_error(const float *out, const float *exact, int64_t elements) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < elements; i++) {
        double difference = (double)out[i] - (double)exact[i];
        error += difference * difference;
        size += (double)exact[i] * (double)exact[i];
    }
    return sqrt(error / size);
}

static double layer_error(shoal_context *context, const layer *l, const char *kind) {
    float *out = attend(context, l, kind), *exact = attend(context, l, "full");
    double error = relative_error(out, exact, l->elements);
    free(out);
    free(exact);
    return error;
}

/* Over all layers of a model. */
static double mean_error(const char *const *names, int64_t count, const char *kind) {
    shoal_context *context = test_context(NULL, 0);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        layer l = layer_read(context, names[i]);
        sum += layer_error(context, &l, kind);
        layer_release(&l);
    }
    shoal_context_destroy(context);
    return sum / (double)count;
}

static void check_at_most(const char *what, double error, double bar) {
    print_message("%s: error %.4f, at most %.4f\n", what, error, bar);
    assert_true(error <= bar);
}

static void whisper_tiny(void **state) {
    check_at_most("whisper-tiny, the first shoal-100, topk=32",
                  mean_error(WHISPER, COUNT_OF(WHISPER), "q-clustered-100:topk=32"),
                  0.22);
    check_at_most("whisper-tiny, the first shoal-100",
                  mean_error(WHISPER, COUNT_OF(WHISPER), "q-clustered-100"), 0.12);
    check_at_most("whisper-tiny, shoal", mean_error(WHISPER, COUNT_OF(WHISPER), "shoal"),
                  0.05);
}

static void minilm_l6(void **state) {
    double paper = mean_error(MINILM, COUNT_OF(MINILM), "i-clustered-25:topk=32");
    check_at_most("minilm-l6, the first shoal-25, topk=32",
                  mean_error(MINILM, COUNT_OF(MINILM), "q-clustered-25:topk=32"),
                  0.62 * paper);
    check_at_most("minilm-l6, shoal", mean_error(MINILM, COUNT_OF(MINILM), "shoal"),
                  0.09);
}

/* Enough to show 95 of 100; fewer with sanitizers, which are ten times slower. */
#ifdef __SANITIZE_ADDRESS__
enum { SEEDS = 10 };
#else
enum { SEEDS = 100 };
#endif

/* One query in a hundred has up to half of a layer's error: the number of `seeds`
   within a quarter of it, and the mean square of all relative to the true one. */
typedef struct {
    int near;
    double bias;
} estimates;

static estimates estimate(shoal_context *context, const layer *l, const char *kind,
                          double truth, int64_t samples, int seeds) {
    shoal_attention attention = spelled(kind);
    shoal_plan *plan = NULL;
    float *out = attend(context, l, kind);
    estimates all = {0};
    assert_int_equal(shoal_plan_create(context, &l->problem, &attention, 0, &plan),
                     SHOAL_OK);
    for (int seed = 1; seed <= seeds; seed++) {
        shoal_error error;
        assert_int_equal(shoal_error_estimate(plan, &l->inputs, out, samples,
                                              (uint64_t)seed, &error),
                         SHOAL_OK);
        assert_int_equal(error.samples, samples);
        all.near += fabs(error.relative_error - truth) <= 0.25 * truth;
        all.bias += pow(error.relative_error / truth, 2) / seeds;
    }
    shoal_plan_destroy(plan);
    free(out);
    return all;
}

static void check_estimates(const char *const *names, int64_t count, const char *kind) {
    shoal_context *context = test_context(NULL, 0);
    for (int64_t i = 0; i < count; i++) {
        layer l = layer_read(context, names[i]);
        double truth = layer_error(context, &l, kind);
        estimates few = estimate(context, &l, kind, truth, 64, SEEDS);
        estimates many = estimate(context, &l, kind, truth, 1024, 4);
        print_message("%s, %s: error %.4f; within a quarter of it are %d of %d "
                      "estimates from 64 queries, %d of 4 from 1024\n",
                      names[i], kind, truth, few.near, SEEDS, many.near);
        assert_true(few.bias > 0.75 && few.bias < 1.25);
        assert_true(100 * few.near >= 95 * SEEDS - 50); /* one of ten may miss */
        assert_true(many.near >= 3);
        layer_release(&l);
    }
    shoal_context_destroy(context);
}

static void estimates_on_whisper_tiny(void **state) {
    check_estimates(WHISPER, COUNT_OF(WHISPER), "q-clustered-100:topk=32");
}

static void estimates_on_minilm_l6(void **state) {
    check_estimates(MINILM, COUNT_OF(MINILM), "q-clustered-25:topk=32");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whisper_tiny),
        cmocka_unit_test(minilm_l6),
        cmocka_unit_test(estimates_on_whisper_tiny),
        cmocka_unit_test(estimates_on_minilm_l6),
    };
    return cmocka_run_group_tests_name("quality", tests, NULL, NULL);
}
