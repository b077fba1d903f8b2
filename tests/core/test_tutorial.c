/* The tutorial examples/clustered.c compared with the library: the same clusters give
   the same outputs and gradients. */
#define main tutorial_main
#include "examples/clustered.c"
#undef main

#include "cases.h"
#include "support.h"

static void *floats_of(const double *values, int count) {
    float *made = test_memory(count, sizeof *made);
    for (int i = 0; i < count; i++)
        made[i] = (float)values[i];
    return made;
}

static void assert_close(const char *what, const double *wanted, const float *got,
                         int count) {
    double off = 0, all = 0;
    for (int i = 0; i < count; i++) {
        off += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        all += wanted[i] * wanted[i];
    }
    if (!(sqrt(off) <= 1e-5 * sqrt(all)))
        fail_msg("%s: relative error %g", what, sqrt(off / all));
}

/* One problem in both, with the tutorial's clusters. */
static void compare(problem p) {
    const int nd = p.N * p.D, sd = p.S * p.D, sv = p.S * p.Dv, nv = p.N * p.Dv;
    double *q = zeros((size_t)nd, 8), *k = zeros((size_t)sd, 8);
    double *v = zeros((size_t)sv, 8), *out = zeros((size_t)nv, 8);
    double *dout = zeros((size_t)nv, 8), *dq = zeros((size_t)nd, 8);
    double *dk = zeros((size_t)sd, 8), *dv = zeros((size_t)sv, 8);
    memory m = remember(&p);
    fill(q, p.N, p.D, 11, 0.5);
    fill(k, p.S, p.D, 7, 0.5);
    fill(v, p.S, p.Dv, 13, 0.5);
    fill(dout, p.N, p.Dv, 17, 0.5);
    find_clusters(&p, q, m.cluster);
    clustered_attention(&p, q, k, v, &m, out);
    clustered_backward(&p, q, k, v, &m, dout, dq, dk, dv);

    float *fq = floats_of(q, nd), *fk = floats_of(k, sd), *fv = floats_of(v, sv);
    float *fdout = floats_of(dout, nv), *fout = test_memory(nv, sizeof *fout);
    float *fdq = test_memory(nd, sizeof *fdq), *fdk = test_memory(sd, sizeof *fdk);
    float *fdv = test_memory(sv, sizeof *fdv);
    shoal_context *context;
    shoal_plan *plan;
    char kind[64];
    snprintf(kind, sizeof kind, p.k ? "i-clustered-%d:topk=%d" : "clustered-%d", p.C,
             p.k);
    const shoal_attention attention = spelled(kind);
    const shoal_problem sizes = {.size = sizeof(shoal_problem),
                                 .batch = 1,
                                 .heads = 1,
                                 .queries = p.N,
                                 .keys = p.S,
                                 .dim = p.D,
                                 .value_dim = p.Dv,
                                 .scale = (float)p.scale};
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = fq,
                                 .k = fk,
                                 .v = fv,
                                 .clusters = m.cluster};
    const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                       .out = fout,
                                       .dout = fdout,
                                       .dq = fdq,
                                       .dk = fdk,
                                       .dv = fdv};
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    assert_int_equal(shoal_plan_create(context, &sizes, &attention, SHOAL_WITH_BACKWARD,
                                       &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_forward(plan, &inputs, fout), SHOAL_OK);
    assert_int_equal(shoal_backward(plan, &inputs, &gradients), SHOAL_OK);
    assert_close("out", out, fout, nv);
    assert_close("dq", dq, fdq, nd);
    assert_close("dk", dk, fdk, sd);
    assert_close("dv", dv, fdv, sv);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    void *const all[] = {q,  k,  v,  out,   dout, dq,  dk,  dv,
                         fq, fk, fv, fdout, fout, fdq, fdk, fdv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    forget(&m);
}

static void clustered_is_the_library(void **state) {
    compare((problem){.N = 131, .S = 97, .D = 13, .Dv = 9, .C = 7, .scale = 0.3});
    compare((problem){.N = 64, .S = 64, .D = 16, .Dv = 16, .C = 1, .scale = 0.25});
}

static void improved_is_the_library(void **state) {
    compare(
        (problem){.N = 131, .S = 97, .D = 13, .Dv = 9, .C = 7, .k = 11, .scale = 0.3});
    compare((problem){.N = 40, .S = 23, .D = 8, .Dv = 5, .C = 3, .k = 23, .scale = 0.3});
}

static void it_runs(void **state) {
    assert_int_equal(tutorial_main(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clustered_is_the_library),
        cmocka_unit_test(improved_is_the_library),
        cmocka_unit_test(it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
