/* Results do not depend on the memory layout nor on other heads of the batch, bit for
   bit. */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static const char *KINDS[TEST_KINDS + 1];

static case_spec layout_spec(const char *kind, memory_layout layout, bool ragged) {
    return (case_spec){.attention = spelled(kind),
                       .batch = 3,
                       .heads = 4,
                       .kv_heads = 2,
                       .queries = 83,
                       .keys = 61,
                       .dim = 19,
                       .value_dim = 7,
                       .layout = layout,
                       .ragged = ragged,
                       .seed = 21};
}

static void check_same_groups(const attention_case *c, const shoal_plan *a,
                              const shoal_plan *b) {
    size_t heads = (size_t)(c->spec.batch * c->spec.heads);
    const int32_t *groups = shoal_plan_clusters(a, NULL),
                  *top = shoal_plan_top_keys(a, NULL);
    if (groups)
        assert_memory_equal(groups, shoal_plan_clusters(b, NULL),
                            heads * (size_t)c->spec.queries * sizeof *groups);
    if (top)
        assert_memory_equal(top, shoal_plan_top_keys(b, NULL),
                            heads * (size_t)c->spec.attention.clusters *
                                (size_t)c->spec.attention.topk * sizeof *top);
}

static void compare_layouts(const char *isa, const char *kind, bool ragged) {
    case_spec plain_spec = layout_spec(kind, LAYOUT_CONTIGUOUS, ragged);
    attention_case plain = case_create(&plain_spec);
    case_run_on(isa, 2, &plain);
    for (int layout = LAYOUT_CONTIGUOUS + 1; layout < LAYOUT_COUNT; layout++) {
        case_spec spec = layout_spec(kind, (memory_layout)layout, ragged);
        attention_case other = case_create(&spec);
        case_run_on(isa, 2, &other);
        case_check_surroundings(&other);
        case_check_identical(&plain, &other);
        check_same_groups(&plain, plain.plan, other.plan);
        case_destroy(&other);
    }
    case_destroy(&plain);
}

static void layouts_do_not_matter(void **state) {
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; KINDS[kind]; kind++) {
            compare_layouts(test_isa(isa), KINDS[kind], false);
            compare_layouts(test_isa(isa), KINDS[kind], true);
        }
}

static void check_rows_equal(const tensor *batch, int64_t b, int64_t h,
                             const tensor *alone, const char *name) {
    for (int64_t i = 0; i < alone->positions; i++)
        if (memcmp(tensor_row(batch, b, h, i), tensor_row(alone, 0, 0, i),
                   sizeof(float) * (size_t)alone->features) != 0)
            fail_msg(
                "%s: sequence %lld, head %lld, position %lld differs when it is alone",
                name, (long long)b, (long long)h, (long long)i);
}

static void check_head_alone(shoal_context *context, const attention_case *c,
                             const shoal_plan *plan, int64_t b, int64_t h) {
    attention_case alone = case_extract(c, b, h);
    shoal_plan *alone_plan = case_run(context, &alone);
    check_rows_equal(&c->out, b, h, &alone.out, "out");
    check_rows_equal(&c->dq, b, h, &alone.dq, "dq");
    if (case_kv_heads(c) == c->spec.heads) {
        check_rows_equal(&c->dk, b, h, &alone.dk, "dk");
        check_rows_equal(&c->dv, b, h, &alone.dv, "dv");
    }
    if (shoal_plan_clusters(plan, NULL))
        assert_memory_equal(shoal_plan_clusters(plan, NULL) +
                                (b * c->spec.heads + h) * c->spec.queries,
                            shoal_plan_clusters(alone_plan, NULL),
                            sizeof(int32_t) * (size_t)alone.spec.queries);
    shoal_plan_destroy(alone_plan);
    case_destroy(&alone);
}

static void heads_are_alone(void **state) {
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; KINDS[kind]; kind++)
            for (int64_t kv_heads = 2; kv_heads <= 4; kv_heads += 2) {
                shoal_context *context = test_context(test_isa(isa), 2);
                case_spec spec = layout_spec(KINDS[kind], LAYOUT_GAPS, true);
                spec.kv_heads = kv_heads;
                attention_case c = case_create(&spec);
                shoal_plan *plan = case_run(context, &c);
                for (int64_t b = 0; b < spec.batch; b++)
                    for (int64_t h = 0; h < spec.heads; h++)
                        check_head_alone(context, &c, plan, b, h);
                shoal_plan_destroy(plan);
                case_destroy(&c);
                shoal_context_destroy(context);
            }
}

/* Lengths on both sides of the thresholds of shoal's defaults, including self-attention
   with neighbouring keys; the numbers are those of each sequence. */
static void sequences_have_their_own_numbers(void **state) {
    static const char *const kinds[] = {"shoal", "shoal-110", "shoal:topk=9,block=16"};
    static const int64_t lengths[] = {8300, 8000, 190};
    for (int64_t i = 0; i < 2 * COUNT_OF(kinds); i++) {
        shoal_context *context = test_context(NULL, 2);
        case_spec spec = layout_spec(kinds[i / 2], LAYOUT_CONTIGUOUS, false);
        spec.layout = i % 2 ? LAYOUT_PACKED : LAYOUT_CONTIGUOUS;
        spec.ragged = i % 2;
        spec.queries = spec.keys = lengths[0];
        spec.heads = spec.kv_heads = 1;
        attention_case c = case_create(&spec);
        for (int64_t b = 0; b < spec.batch && !spec.ragged; b++)
            c.query_lengths[b] = c.key_lengths[b] = lengths[b];
        if (!spec.ragged) {
            c.inputs.query_lengths = c.query_lengths;
            c.inputs.key_lengths = c.key_lengths;
        }
        shoal_plan *plan = case_run(context, &c);
        for (int64_t b = 0; b < spec.batch; b++)
            check_head_alone(context, &c, plan, b, 0);
        shoal_plan_destroy(plan);
        case_destroy(&c);
        shoal_context_destroy(context);
    }
}

/* q, k and v may be the same array. */
static void inputs_may_overlap(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        case_spec spec = layout_spec(KINDS[kind], LAYOUT_CONTIGUOUS, false);
        spec.keys = spec.queries;
        spec.kv_heads = spec.heads;
        spec.value_dim = spec.dim;
        attention_case apart = case_create(&spec), together = case_create(&spec);
        memcpy(apart.k.data, apart.q.data, sizeof(float) * (size_t)apart.q.elements);
        memcpy(apart.v.data, apart.q.data, sizeof(float) * (size_t)apart.q.elements);
        if (together.inputs.k)
            together.inputs.k = together.q.data;
        together.inputs.v = together.q.data;
        case_run_on(NULL, 2, &apart);
        case_run_on(NULL, 2, &together);
        case_check_identical(&apart, &together);
        case_destroy(&apart);
        case_destroy(&together);
    }
}

/* One set of keys and values for the whole batch, by a batch stride of 0. */
static void a_stride_of_zero_shares(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        case_spec spec = layout_spec(KINDS[kind], LAYOUT_CONTIGUOUS, false);
        attention_case copied = case_create(&spec), shared = case_create(&spec);
        for (int64_t b = 1; b < spec.batch; b++) {
            memcpy(tensor_row(&copied.k, b, 0, 0), copied.k.data,
                   sizeof(float) * (size_t)copied.k.strides.batch);
            memcpy(tensor_row(&copied.v, b, 0, 0), copied.v.data,
                   sizeof(float) * (size_t)copied.v.strides.batch);
        }
        shoal_strides k = copied.k.strides, v = copied.v.strides;
        k.batch = v.batch = 0;
        shared.problem.k_strides = &k;
        shared.problem.v_strides = &v;
        shoal_context *context = test_context(NULL, 2);
        shoal_plan *plans[] = {case_plan(context, &copied, 0),
                               case_plan(context, &shared, 0)};
        case_forward(plans[0], &copied);
        case_forward(plans[1], &shared);
        check_identical(&copied.out, &shared.out, copied.query_lengths, "out");
        shoal_plan_destroy(plans[0]);
        shoal_plan_destroy(plans[1]);
        case_destroy(&copied);
        case_destroy(&shared);
        shoal_context_destroy(context);
    }
}

int main(void) {
    test_kinds((shoal_attention){.clusters = 6, .topk = 11, .rounds = 3, .seed = 9},
               KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_do_not_matter),
        cmocka_unit_test(heads_are_alone),
        cmocka_unit_test(sequences_have_their_own_numbers),
        cmocka_unit_test(inputs_may_overlap),
        cmocka_unit_test(a_stride_of_zero_shares),
    };
    return cmocka_run_group_tests_name("layouts", tests, NULL, NULL);
}
