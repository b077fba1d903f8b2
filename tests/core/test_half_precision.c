/* Problems in half precision, in every kind: the result has the bits of the float32
   result, rounded once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

#include "kernels/half.h"

enum { PROBLEMS_PER_KIND = 6, HALF_GUARD = 0xffab /* a NaN that is never computed */ };

static const shoal_dtype DTYPES[] = {SHOAL_DTYPE_FLOAT16, SHOAL_DTYPE_BFLOAT16};
static const int64_t LENGTHS[] = {0, 1, 2, 17, 64, 65, 97, 130, 257, 300};
static const int64_t SIZES[] = {1, 3, 8, 16, 17, 33};
static const int64_t HEADS[][2] = {{1, 0}, {2, 0}, {2, 1}, {4, 2}, {3, 0}};

#define CHOOSE(list, seed, stream) (list)[test_pick(seed, stream, 0, COUNT_OF(list) - 1)]

static case_spec random_spec(const char *kind, uint64_t seed) {
    const int64_t heads = test_pick(seed, 1, 0, COUNT_OF(HEADS) - 1);
    case_spec spec = {.attention = spelled(kind),
                      .seed = seed,
                      .batch = test_pick(seed, 2, 1, 3),
                      .heads = HEADS[heads][0],
                      .kv_heads = HEADS[heads][1],
                      .dim = CHOOSE(SIZES, seed, 3),
                      .value_dim = CHOOSE(SIZES, seed, 4),
                      .layout = (memory_layout)test_pick(seed, 5, 0, LAYOUT_COUNT - 1),
                      .ragged = test_pick(seed, 6, 0, 1) == 0,
                      .queries = CHOOSE(LENGTHS, seed, 7),
                      .keys = CHOOSE(LENGTHS, seed, 8)};
    if (seed % 2)
        spec.key_bias = PAIRS_SHARED;
    if (facts_of(spec.attention.kind)->has_masks && seed % 3 == 0) {
        spec.causal = true;
        spec.bias = PAIRS_WHOLE;
        spec.dropout = 0.1f;
    }
    return spec;
}

/* ---- Arrays in half precision ----------------------------------------------------- */

static uint16_t narrow(float x, shoal_dtype dtype) {
    return dtype == SHOAL_DTYPE_FLOAT16 ? round_to_half(x) : round_to_bfloat(x);
}

static float widen(uint16_t x, shoal_dtype dtype) {
    return dtype == SHOAL_DTYPE_FLOAT16 ? half_to_float(x) : bfloat_to_float(x);
}

/* Rounds to half precision; NaN is unchanged. */
static void round_tensor(const tensor *t, shoal_dtype dtype) {
    for (int64_t i = 0; i < t->elements; i++)
        if (!isnan(t->data[i]))
            t->data[i] = widen(narrow(t->data[i], dtype), dtype);
}

/* A tensor's memory in half precision, with its guards. */
static uint16_t *half_copy(const tensor *t, shoal_dtype dtype) {
    uint16_t *halves = test_memory(t->elements + 1, sizeof *halves);
    for (int64_t i = 0; i < t->elements; i++)
        halves[i] = isnan(t->data[i]) ? HALF_GUARD : narrow(t->data[i], dtype);
    return halves;
}

static uint16_t *half_room(const tensor *t) {
    uint16_t *halves = test_memory(t->elements + 1, sizeof *halves);
    for (int64_t i = 0; i < t->elements; i++)
        halves[i] = HALF_GUARD;
    return halves;
}

static void check_halves(const uint16_t *got, const tensor *expected, shoal_dtype dtype,
                         const char *name, const attention_case *c) {
    for (int64_t i = 0; i < expected->elements; i++) {
        const uint16_t right =
            isnan(expected->data[i]) ? HALF_GUARD : narrow(expected->data[i], dtype);
        /* Signs of zeros could differ only if a float underflowed; none does. */
        if (got[i] != right)
            fail_msg("%s[%lld] is %#x, not %#x: %s", name, (long long)i, got[i], right,
                     case_text(c));
    }
}

/* ---- One problem ------------------------------------------------------------------- */

typedef struct {
    uint16_t *q, *k, *v, *out, *dout, *dq, *dk, *dv;
} half_arrays;

static half_arrays arrays_of(const attention_case *c, shoal_dtype dtype) {
    return (half_arrays){half_copy(&c->q, dtype),    half_copy(&c->k, dtype),
                         half_copy(&c->v, dtype),    half_room(&c->out),
                         half_copy(&c->dout, dtype), half_room(&c->dq),
                         half_room(&c->dk),          half_room(&c->dv)};
}

static void release(half_arrays *a) {
    uint16_t *all[] = {a->q, a->k, a->v, a->out, a->dout, a->dq, a->dk, a->dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++)
        free(all[i]);
}

static void clear_room(uint16_t *halves, const tensor *t) {
    for (int64_t i = 0; i < t->elements; i++)
        halves[i] = HALF_GUARD;
}

static void run_halves(shoal_context *context, attention_case *c, shoal_dtype dtype) {
    half_arrays a = arrays_of(c, dtype);
    shoal_problem problem = c->problem;
    shoal_inputs inputs = c->inputs;
    shoal_plan *plan;
    problem.dtype = dtype;
    inputs.q = a.q;
    inputs.k = c->inputs.k ? a.k : NULL;
    inputs.v = a.v;
    const int64_t pairs = c->spec.batch * c->spec.heads * c->problem.keys;
    float *dbias = test_memory(pairs * c->problem.queries, sizeof *dbias);
    float *dkey_bias = test_memory(pairs, sizeof *dkey_bias);
    for (unsigned flags = 0; flags <= SHOAL_WITH_BACKWARD; flags++) {
        assert_int_equal(shoal_plan_create(context, &problem, &c->spec.attention, flags,
                                           &plan),
                         SHOAL_OK);
        clear_room(a.out, &c->out);
        assert_int_equal(shoal_forward(plan, &inputs, a.out), SHOAL_OK);
        check_halves(a.out, &c->out, dtype, "out", c);
        if (flags) {
            const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                               .out = a.out,
                                               .dout = a.dout,
                                               .dq = a.dq,
                                               .dk = a.dk,
                                               .dv = a.dv,
                                               .dbias = c->dbias ? dbias : NULL,
                                               .dkey_bias = c->dkey_bias ? dkey_bias
                                                                         : NULL};
            assert_int_equal(shoal_backward(plan, &inputs, &gradients), SHOAL_OK);
            check_halves(a.dq, &c->dq, dtype, "dq", c);
            check_halves(a.dk, &c->dk, dtype, "dk", c);
            check_halves(a.dv, &c->dv, dtype, "dv", c);
            if (c->dbias)
                assert_memory_equal(dbias, c->dbias,
                                    (size_t)(pairs * c->problem.queries) * sizeof(float));
            if (c->dkey_bias)
                assert_memory_equal(dkey_bias, c->dkey_bias,
                                    (size_t)pairs * sizeof(float));
        }
        shoal_plan_destroy(plan);
    }
    free(dbias);
    free(dkey_bias);
    release(&a);
}

/* In float32, with the rounded outputs passed to backward. */
static void check_spec(const case_spec *spec, shoal_dtype dtype, const char *isa,
                       int threads) {
    attention_case c = case_create(spec);
    shoal_context *context = test_context(isa, threads);
    const tensor *inputs[] = {&c.q, &c.k, &c.v, &c.dout};
    for (int64_t i = 0; i < COUNT_OF(inputs); i++)
        round_tensor(inputs[i], dtype);
    shoal_plan *plan = case_plan(context, &c, SHOAL_WITH_BACKWARD);
    case_forward(plan, &c);
    round_tensor(&c.out, dtype);
    case_backward(plan, &c);
    shoal_plan_destroy(plan);
    run_halves(context, &c, dtype);
    shoal_context_destroy(context);
    case_destroy(&c);
}

static void halves_are_floats_rounded(void **state) {
    const char *kinds[TEST_KINDS + 1];
    test_kinds((shoal_attention){.clusters = 7, .topk = 9, .rounds = 2}, kinds);
    for (int64_t kind = 0; kinds[kind]; kind++)
        for (uint64_t problem = 1; problem <= PROBLEMS_PER_KIND; problem++)
            for (int64_t d = 0; d < COUNT_OF(DTYPES); d++)
                for (int isa = 0; test_isa(isa); isa++) {
                    const uint64_t seed = 1000 * (uint64_t)kind + problem;
                    const case_spec spec = random_spec(kinds[kind], seed);
                    check_spec(&spec, DTYPES[d], test_isa(isa), 1 + (int)(seed % 3));
                }
}

/* auto estimates its error, and uses full attention if it is too large. */
static void auto_with_a_tolerance(void **state) {
    const char *const kinds[] = {"auto:tolerance=0.5", "auto:tolerance=0.02", "auto"};
    for (int64_t i = 0; i < COUNT_OF(kinds); i++)
        for (int64_t d = 0; d < COUNT_OF(DTYPES); d++) {
            const case_spec spec = {.attention = spelled(kinds[i]),
                                    .batch = 1,
                                    .heads = 3,
                                    .kv_heads = 1,
                                    .queries = 1200,
                                    .keys = 1200,
                                    .dim = 8,
                                    .value_dim = 8,
                                    .layout = LAYOUT_POSITION_MAJOR,
                                    .seed = 5};
            check_spec(&spec, DTYPES[d], NULL, 2);
        }
}

/* The error of half-precision outputs equals that of the same values in float32. */
static void errors_are_estimated(void **state) {
    const char *const kinds[] = {"full", "clustered-7", "lsh-2", "local-8"};
    for (int64_t i = 0; i < COUNT_OF(kinds); i++)
        for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
            const shoal_dtype dtype = DTYPES[layout % 2];
            const case_spec spec = {.attention = spelled(kinds[i]),
                                    .batch = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .queries = 100,
                                    .keys = 130,
                                    .dim = 8,
                                    .value_dim = 5,
                                    .layout = (memory_layout)layout,
                                    .ragged = true,
                                    .seed = 3};
            attention_case c = case_create(&spec);
            shoal_context *context = test_context(NULL, 2);
            const tensor *inputs[] = {&c.q, &c.k, &c.v};
            for (int64_t t = 0; t < COUNT_OF(inputs); t++)
                round_tensor(inputs[t], dtype);
            shoal_plan *plan = case_plan(context, &c, 0), *of_halves;
            shoal_error expected, got;
            case_forward(plan, &c);
            round_tensor(&c.out, dtype);
            assert_int_equal(shoal_error_estimate(plan, &c.inputs, c.out.data, 50, 1,
                                                  &expected),
                             SHOAL_OK);
            half_arrays a = arrays_of(&c, dtype);
            uint16_t *out = half_copy(&c.out, dtype);
            c.inputs.q = a.q;
            c.inputs.k = c.inputs.k ? a.k : NULL;
            c.inputs.v = a.v;
            c.problem.dtype = dtype;
            of_halves = case_plan(context, &c, 0);
            assert_int_equal(shoal_error_estimate(of_halves, &c.inputs, out, 50, 1, &got),
                             SHOAL_OK);
            assert_int_equal(got.samples, expected.samples);
            assert_true(fabs(got.relative_error - expected.relative_error) <
                        1e-6 * expected.relative_error);
            shoal_plan_destroy(plan);
            shoal_plan_destroy(of_halves);
            free(out);
            release(&a);
            shoal_context_destroy(context);
            case_destroy(&c);
        }
}

/* The reference converts half precision by definition. */
static void the_reference_reads_halves(void **state) {
    for (int64_t d = 0; d < COUNT_OF(DTYPES); d++) {
        enum { N = 40, D = 4 };
        uint16_t q[N * D], k[N * D], v[N * D];
        for (int i = 0; i < N * D; i++) {
            q[i] = (uint16_t)(i * 409 & 0xbbff);
            k[i] = narrow((float)i / 7 - 11, DTYPES[d]);
            v[i] = (uint16_t)(i % 9);
        }
        const shoal_problem problem = {.size = sizeof(shoal_problem),
                                       .batch = 1,
                                       .heads = 1,
                                       .queries = N,
                                       .keys = N,
                                       .dim = D,
                                       .value_dim = D,
                                       .dtype = DTYPES[d]};
        const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                     .q = q,
                                     .k = k,
                                     .v = v};
        const shoal_attention attention = spelled("full");
        exact_head *head = exact_load(&problem, &inputs, NULL, &attention, 0, 0);
        assert_non_null(head);
        for (int i = 0; i < N * D; i++) {
            assert_true(head->q[i] == (double)widen(q[i], DTYPES[d]));
            assert_true(head->k[i] == (double)widen(k[i], DTYPES[d]));
            assert_true(head->v[i] == (double)widen(v[i], DTYPES[d]));
        }
        exact_destroy(head);
    }
}

/* ---- Memory and errors ------------------------------------------------------------ */

static size_t workspace(const char *kind, shoal_dtype dtype, int64_t batch,
                        unsigned flags) {
    shoal_context *context = test_context(NULL, 2);
    const shoal_attention attention = spelled(kind);
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = batch,
                                   .heads = 8,
                                   .queries = 4096,
                                   .keys = 4096,
                                   .dim = 64,
                                   .value_dim = 64,
                                   .dtype = dtype};
    shoal_plan *plan;
    assert_int_equal(shoal_plan_create(context, &problem, &attention, flags, &plan),
                     SHOAL_OK);
    const size_t bytes = shoal_plan_workspace(plan) - shoal_plan_state_size(plan);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    return bytes;
}

/* full converts blocks; other kinds convert one head per thread, for any number of
   heads. */
static void memory_is_bounded(void **state) {
    const size_t head = (size_t)4096 * 64 * sizeof(float);
    const char *const by_blocks[] = {"full", "local-64"};
    for (int64_t i = 0; i < COUNT_OF(by_blocks); i++)
        assert_true(workspace(by_blocks[i], SHOAL_DTYPE_FLOAT16, 4, 0) <
                    workspace(by_blocks[i], SHOAL_DTYPE_FLOAT32, 4, 0) + 800000);
    const char *const kinds[] = {"clustered-100", "i-clustered-100", "strided-64"};
    for (int64_t i = 0; i < COUNT_OF(kinds); i++) {
        const size_t floats = workspace(kinds[i], SHOAL_DTYPE_FLOAT32, 4, 0);
        const size_t halves = workspace(kinds[i], SHOAL_DTYPE_FLOAT16, 4, 0);
        assert_true(halves < floats + 2 * 4 * head + 400000);
        assert_int_equal(halves, workspace(kinds[i], SHOAL_DTYPE_FLOAT16, 2, 0));
    }
    assert_true(workspace("full", SHOAL_DTYPE_BFLOAT16, 4, SHOAL_WITH_BACKWARD) <
                workspace("full", SHOAL_DTYPE_FLOAT32, 4, SHOAL_WITH_BACKWARD) +
                    2 * 8 * head + 400000);
}

static void other_types_are_refused(void **state) {
    const shoal_dtype wrong[] = {SHOAL_DTYPE_INT32, (shoal_dtype)7, (shoal_dtype)-1};
    shoal_context *context = test_context(NULL, 1);
    const shoal_attention attention = spelled("full");
    for (int64_t i = 0; i < COUNT_OF(wrong); i++) {
        const shoal_problem problem = {.size = sizeof(shoal_problem),
                                       .batch = 1,
                                       .heads = 1,
                                       .queries = 4,
                                       .keys = 4,
                                       .dim = 4,
                                       .value_dim = 4,
                                       .dtype = wrong[i]};
        shoal_plan *plan;
        assert_int_equal(shoal_plan_create(context, &problem, &attention, 0, &plan),
                         SHOAL_INVALID);
        assert_non_null(strstr(shoal_context_message(context), "problem.dtype"));
    }
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(halves_are_floats_rounded),
        cmocka_unit_test(auto_with_a_tolerance),
        cmocka_unit_test(errors_are_estimated),
        cmocka_unit_test(the_reference_reads_halves),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(other_types_are_refused),
    };
    return cmocka_run_group_tests_name("half precision", tests, NULL, NULL);
}
