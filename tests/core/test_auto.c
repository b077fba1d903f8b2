/* auto: which kind it picks, and that the result has the bits of that kind. */
#define _POSIX_C_SOURCE 200809L /* for setenv */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/heads.h"
#include "cases.h"
#include "support.h"

enum { HEADS = 2, DIM = 16 };

/* Queries in loose clusters, as in a model, or noise; keys and values are noise. */
typedef struct {
    shoal_problem problem;
    shoal_inputs inputs;
    float *q, *k, *v, *out, *dout, *grad; /* grad: dq, dk, dv concatenated */
    size_t bytes;                         /* of each of the first five */
} sequence;

static sequence make(int64_t length, double spread) {
    const int64_t size = HEADS * length * DIM;
    sequence made = {.problem = {.size = sizeof(shoal_problem),
                                 .batch = 1,
                                 .heads = HEADS,
                                 .queries = length,
                                 .keys = length,
                                 .dim = DIM,
                                 .value_dim = DIM},
                     .bytes = (size_t)size * sizeof(float)};
    float **arrays[] = {&made.q, &made.k, &made.v, &made.out, &made.dout};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; a++) {
        *arrays[a] = malloc(made.bytes);
        for (int64_t i = 0; i < size; i++)
            (*arrays[a])[i] = (float)test_normal(test_hash(7, a, (uint64_t)i));
    }
    made.grad = malloc(3 * made.bytes);
    for (int64_t i = 0; i < size; i++) {
        const int64_t group = i / DIM % length % 20;
        const double centre =
            test_normal(test_hash(9, 0, (uint64_t)(group * DIM + i % DIM)));
        made.q[i] = (float)(2 * (1 - spread) * centre + spread * (double)made.q[i]);
    }
    made.inputs = (shoal_inputs){.size = sizeof(shoal_inputs),
                                 .q = made.q,
                                 .k = made.k,
                                 .v = made.v};
    return made;
}

static void destroy(sequence *s) {
    free(s->q), free(s->k), free(s->v), free(s->out), free(s->dout), free(s->grad);
}

static shoal_context *context_with(int threads, int crossover) {
    shoal_context *context;
    const shoal_options options = {.size = sizeof(shoal_options),
                                   .threads = threads,
                                   .crossover = crossover};
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    return context;
}

/* Forward and backward; returns the spelling of the picked kind. */
static void run(shoal_context *context, const char *kind, sequence *s, char picked[128]) {
    shoal_attention attention;
    shoal_plan *plan;
    assert_int_equal(shoal_attention_parse(context, kind, &attention), SHOAL_OK);
    assert_int_equal(shoal_plan_create(context, &s->problem, &attention,
                                       SHOAL_WITH_BACKWARD, &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_forward(plan, &s->inputs, s->out), SHOAL_OK);
    float *dq = s->grad, *dk = dq + s->bytes / 4, *dv = dk + s->bytes / 4;
    assert_int_equal(shoal_backward(plan, &s->inputs,
                                    &(shoal_gradients){.size = sizeof(shoal_gradients),
                                                       .out = s->out,
                                                       .dout = s->dout,
                                                       .dq = dq,
                                                       .dk = dk,
                                                       .dv = dv}),
                     SHOAL_OK);
    shoal_attention used;
    assert_int_equal(shoal_plan_picked(plan, NULL, &used), SHOAL_OK);
    shoal_attention_print(&used, picked, 128);
    shoal_plan_destroy(plan);
}

static double relative_error(const sequence *a, const sequence *b) {
    double error = 0, length = 0;
    for (size_t i = 0; i < a->bytes / 4; i++) {
        error += pow((double)a->out[i] - (double)b->out[i], 2);
        length += pow((double)b->out[i], 2);
    }
    return sqrt(error / length);
}

/* Outputs and gradients are those of the picked kind, and do not depend on the number
   of threads. */
static void check_pick(const char *kind, int64_t length, double spread, int crossover,
                       const char *expected) {
    sequence chosen = make(length, spread), named = make(length, spread);
    char picked[128], again[128];
    shoal_context *one = context_with(1, crossover), *three = context_with(3, crossover);
    run(one, kind, &chosen, picked);
    if (strncmp(picked, expected, strlen(expected)) != 0)
        fail_msg("%s at %d picked %s, not %s", kind, (int)length, picked, expected);
    run(three, picked, &named, again);
    assert_string_equal(picked, again);
    assert_memory_equal(chosen.out, named.out, chosen.bytes);
    assert_memory_equal(chosen.grad, named.grad, 3 * chosen.bytes);
    run(three, kind, &named, again);
    assert_string_equal(picked, again);
    assert_memory_equal(chosen.out, named.out, chosen.bytes);
    shoal_context_destroy(one);
    shoal_context_destroy(three);
    destroy(&chosen);
    destroy(&named);
}

static void by_size(void **state) {
    check_pick("auto", 200, 0.1, 640, "full");
    check_pick("auto", 1500, 0.1, 200, "shoal-16");
    check_pick("auto", 1500, 0.1, 100000, "full");
    check_pick("auto:seed=3", 200, 0.1, 20, "shoal-8");
}

static void by_error(void **state) {
    check_pick("auto:tolerance=0.5", 1500, 0.02, 100, "shoal-16:topk=112");
    check_pick("auto:tolerance=0.2", 1500, 0.02, 100, "shoal-16:topk=192");
    check_pick("auto:tolerance=0.15", 1500, 0.02, 100, "shoal-24:topk=320");
    check_pick("auto:tolerance=0.0001", 1500, 0.02, 100, "full");
    check_pick("auto:tolerance=0.02", 1500, 1, 100, "full");
    check_pick("auto:tolerance=0.1", 1500, 0.02, 100000, "full");
}

static void tolerance_is_kept(void **state) {
    const double spreads[] = {0.05, 0.1, 0.2, 0.4};
    shoal_context *context = context_with(2, 100);
    for (int64_t i = 0; i < COUNT_OF(spreads); i++) {
        sequence chosen = make(1200, spreads[i]), full = make(1200, spreads[i]);
        char picked[128];
        run(context, "full", &full, picked);
        run(context, "auto:tolerance=0.05", &chosen, picked);
        const double error = relative_error(&chosen, &full);
        if (!(error <= 0.05))
            fail_msg("spread %g: %s is off by %g", spreads[i], picked, error);
        destroy(&chosen);
        destroy(&full);
    }
    shoal_context_destroy(context);
}

/* Sampling of errors is guided by the share that forward reports as approximated. */
static void rest_leads_the_draw(void **state) {
    sequence s = make(1500, 0.1);
    shoal_context *context = context_with(2, 100);
    shoal_attention attention;
    shoal_plan *plan;
    assert_int_equal(shoal_attention_parse(context, "auto:tolerance=0.3", &attention),
                     SHOAL_OK);
    assert_int_equal(shoal_plan_create(context, &s.problem, &attention, 0, &plan),
                     SHOAL_OK);
    float *rest = sh_auto_approximated(plan);
    for (int64_t i = 0; i < HEADS * s.problem.queries; i++)
        rest[i] = -1;
    assert_int_equal(shoal_forward(plan, &s.inputs, s.out), SHOAL_OK);
    for (int64_t i = 0; i < HEADS * s.problem.queries; i++)
        assert_true(rest[i] >= 0);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    destroy(&s);
}

/* Queries of 48 topics, each of which attends to one or two keys, and a few queries
   that attend to everything, where some values are large: these cause all of the
   error. */
static sequence with_few_errors(int64_t length) {
    sequence s = make(length, 1);
    for (int64_t row = 0; row < HEADS * length; row++) {
        const int64_t i = row % length, theme = row - i + i % 48;
        const bool large = i % 37 == 5 && i >= 48, wide = i % (length / 3) == 40;
        for (int d = 0; d < DIM; d++) {
            s.q[row * DIM + d] = wide ? 0 : 6 * s.k[theme * DIM + d];
            s.v[row * DIM + d] = large ? 10 : s.v[row * DIM + d] / 100;
        }
    }
    return s;
}

/* A uniform sample would usually miss them. */
static void few_errors_are_found(void **state) {
    enum { LENGTH = 1500, SEEDS = 10 };
    sequence chosen = with_few_errors(LENGTH), full = with_few_errors(LENGTH);
    shoal_context *context = context_with(2, 100);
    char picked[128], kind[64];
    run(context, "full", &full, picked);
    for (int seed = 1; seed <= SEEDS; seed++) {
        snprintf(kind, sizeof kind, "shoal:seed=%d", seed);
        run(context, kind, &chosen, picked);
        assert_true(relative_error(&chosen, &full) > 0.2);
        snprintf(kind, sizeof kind, "auto:tolerance=0.1,seed=%d", seed);
        run(context, kind, &chosen, picked);
        const double error = relative_error(&chosen, &full);
        if (!(error <= 0.1))
            fail_msg("seed %d: %s is off by %g", seed, picked, error);
    }
    shoal_context_destroy(context);
    destroy(&chosen);
    destroy(&full);
}

/* Zero queries weight all keys equally, so the remainder has (S - topk) / S of every
   query's weight. The sampling is in proportion to that. */
static void rest_is_its_share(void **state) {
    enum { LENGTH = 200, TOPK = 40 };
    sequence s = make(LENGTH, 0.1);
    shoal_context *context = context_with(2, 100);
    shoal_plan *plan;
    attention_call call;
    float rest[HEADS * LENGTH];
    const shoal_attention kind =
        spelled("shoal-8:topk=40,keyclusters=8,block=8,pool=100,near=0");
    memset(s.q, 0, s.bytes);
    memset(rest, 0, sizeof rest);
    assert_int_equal(shoal_plan_create(context, &s.problem, &kind, 0, &plan), SHOAL_OK);
    assert_int_equal(sh_call_check(plan, &s.inputs, &call), SHOAL_OK);
    call.out = s.out;
    call.approximated = rest;
    sh_forward_heads(&call);
    for (int i = 0; i < HEADS * LENGTH; i++)
        if (!(fabsf(rest[i] - (float)(LENGTH - TOPK) / LENGTH) < 1e-4f))
            fail_msg("query %d: %g", i, (double)rest[i]);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    destroy(&s);
}

/* Lengths, an empty sequence, and a plan that has not picked yet. */
static void corners(void **state) {
    sequence s = make(1200, 0.1);
    shoal_context *context = context_with(2, 100);
    shoal_attention attention, used;
    shoal_plan *plan;
    const int64_t lengths[] = {0, 1, 31, 1200};
    assert_int_equal(shoal_attention_parse(context, "auto:tolerance=0.1", &attention),
                     SHOAL_OK);
    assert_int_equal(shoal_plan_create(context, &s.problem, &attention, 0, &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_plan_picked(plan, NULL, &used), SHOAL_OK);
    assert_int_equal(used.kind, SHOAL_KIND_FULL);
    for (int64_t i = 0; i < COUNT_OF(lengths); i++) {
        s.inputs.query_lengths = s.inputs.key_lengths = &lengths[i];
        assert_int_equal(shoal_forward(plan, &s.inputs, s.out), SHOAL_OK);
        for (int64_t e = lengths[i] * DIM; e < 1200 * DIM; e++)
            assert_true(s.out[e] == 0);
        assert_null(shoal_plan_clusters(plan, NULL));
    }
    int32_t *groups = calloc(2 * 1200, sizeof *groups);
    s.inputs.clusters = groups;
    assert_int_equal(shoal_forward(plan, &s.inputs, s.out), SHOAL_INVALID);
    free(groups);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    destroy(&s);
}

static void crossover(void **state) {
    shoal_context *context;
    shoal_options options = {.size = sizeof(shoal_options), .crossover = -1};
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_INVALID);
    shoal_context_destroy(context);
    setenv("SHOAL_CROSSOVER", "12x", 1);
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "SHOAL_CROSSOVER"));
    shoal_context_destroy(context);
    setenv("SHOAL_CROSSOVER", "321", 1);
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    assert_int_equal(shoal_context_crossover(context), 321);
    assert_int_equal(shoal_measure_crossover(context), SHOAL_OK);
    assert_true(shoal_context_crossover(context) > 1);
    shoal_context_destroy(context);
    unsetenv("SHOAL_CROSSOVER");
    assert_int_equal(shoal_measure_crossover(NULL), SHOAL_INVALID);
}

static void spelling(void **state) {
    const char *const good[] = {"auto", "auto:tolerance=0.1",
                                "auto:tolerance=0.035,seed=2", "auto:tolerance=2"};
    const char *const bad[] =
        {"auto:tolerance=", "auto:tolerance=0",    "auto:tolerance=1e-2",
         "auto:topk=3",     "auto:tolerance=.1.2", "auto:tolerance=-1",
         "auto-100",        "full:tolerance=0.1",  "auto:tolerance=."};
    shoal_context *context = context_with(1, 0);
    shoal_attention read;
    char text[128];
    for (int64_t i = 0; i < COUNT_OF(good); i++) {
        assert_int_equal(shoal_attention_parse(context, good[i], &read), SHOAL_OK);
        shoal_attention_print(&read, text, sizeof text);
        assert_string_equal(text, good[i]);
    }
    for (int64_t i = 0; i < COUNT_OF(bad); i++)
        if (shoal_attention_parse(context, bad[i], &read) != SHOAL_INVALID)
            fail_msg("%s was taken", bad[i]);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_size),
        cmocka_unit_test(by_error),
        cmocka_unit_test(tolerance_is_kept),
        cmocka_unit_test(few_errors_are_found),
        cmocka_unit_test(rest_leads_the_draw),
        cmocka_unit_test(rest_is_its_share),
        cmocka_unit_test(corners),
        cmocka_unit_test(crossover),
        cmocka_unit_test(spelling),
    };
    return cmocka_run_group_tests_name("auto", tests, NULL, NULL);
}
