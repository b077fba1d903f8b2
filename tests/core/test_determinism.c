/* The same input and seed give the same bits on any number of threads, and the same
   clusters on any instruction set. Sequences are long enough to be divided into
   blocks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static const int THREADS[] = {2, 3, 7};

static const char *KINDS[TEST_KINDS + 1];

/* Kinds with quadratic cost get shorter sequences: still several blocks, in acceptable
   time. */
static int64_t long_length(const shoal_attention *attention) {
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = 1,
                                   .queries = 5003,
                                   .keys = 5003,
                                   .dim = 16,
                                   .value_dim = 12};
    const shoal_attention full = {.kind = SHOAL_KIND_FULL};
    return shoal_attention_operations(attention, &problem, 0) <
                   shoal_attention_operations(&full, &problem, 0) / 4
               ? problem.queries
               : 901;
}

static case_spec long_spec(const char *kind) {
    const shoal_attention attention = spelled(kind);
    int64_t length = long_length(&attention);
    return (case_spec){.attention = attention,
                       .batch = 1,
                       .heads = 1,
                       .queries = length,
                       .keys = length - 2,
                       .dim = 16,
                       .value_dim = 12,
                       .seed = 31};
}

static case_spec short_spec(const char *kind) {
    return (case_spec){.attention = spelled(kind),
                       .batch = 3,
                       .heads = 4,
                       .kv_heads = 2,
                       .queries = 150,
                       .keys = 131,
                       .dim = 33,
                       .value_dim = 20,
                       .layout = LAYOUT_PACKED_GAPS,
                       .ragged = true,
                       .seed = 32};
}

static size_t groups_size(const attention_case *c) {
    return sizeof(int32_t) * (size_t)(c->spec.batch * c->spec.heads * c->spec.queries);
}

static void check_same_groups(const attention_case *c, const shoal_plan *a,
                              const shoal_plan *b) {
    if (shoal_plan_clusters(a, NULL))
        assert_memory_equal(shoal_plan_clusters(a, NULL), shoal_plan_clusters(b, NULL),
                            groups_size(c));
}

static void check_same_top_keys(const attention_case *c, const shoal_plan *a,
                                const shoal_plan *b) {
    const shoal_attention *attention = &c->spec.attention;
    int64_t count = c->spec.batch * c->spec.heads * attention->clusters * attention->topk;
    if (shoal_plan_top_keys(a, NULL))
        assert_memory_equal(shoal_plan_top_keys(a, NULL), shoal_plan_top_keys(b, NULL),
                            sizeof(int32_t) * (size_t)count);
}

static void compare_threads(const char *isa, const case_spec *spec) {
    attention_case one = case_create(spec);
    shoal_context *context_one = test_context(isa, 1);
    shoal_plan *plan_one = case_run(context_one, &one);
    for (int64_t i = 0; i < COUNT_OF(THREADS); i++) {
        attention_case many = case_create(spec);
        shoal_context *context = test_context(isa, THREADS[i]);
        assert_int_equal(shoal_context_threads(context), THREADS[i]);
        shoal_plan *plan = case_run(context, &many);
        check_same_groups(&one, plan_one, plan);
        check_same_top_keys(&one, plan_one, plan);
        case_check_identical(&one, &many);
        shoal_plan_destroy(plan);
        shoal_context_destroy(context);
        case_destroy(&many);
    }
    shoal_plan_destroy(plan_one);
    shoal_context_destroy(context_one);
    case_destroy(&one);
}

static void threads_do_not_matter(void **state) {
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; KINDS[kind]; kind++) {
            case_spec spec = short_spec(KINDS[kind]);
            compare_threads(test_isa(isa), &spec);
        }
}

static void threads_do_not_matter_in_one_long_head(void **state) {
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; KINDS[kind]; kind++) {
            case_spec spec = long_spec(KINDS[kind]);
            compare_threads(test_isa(isa), &spec);
        }
}

static void compare_instruction_sets(const case_spec *spec) {
    attention_case scalar = case_create(spec);
    shoal_context *scalar_context = test_context("scalar", 2);
    shoal_plan *scalar_plan = case_plan(scalar_context, &scalar, 0);
    case_forward(scalar_plan, &scalar);
    for (int isa = 1; test_isa(isa); isa++) {
        attention_case vector = case_create(spec);
        shoal_context *context = test_context(test_isa(isa), 2);
        assert_string_equal(shoal_context_isa(context), test_isa(isa));
        shoal_plan *plan = case_plan(context, &vector, 0);
        case_forward(plan, &vector);
        check_same_groups(&scalar, scalar_plan, plan);
        shoal_plan_destroy(plan);
        shoal_context_destroy(context);
        case_destroy(&vector);
    }
    shoal_plan_destroy(scalar_plan);
    shoal_context_destroy(scalar_context);
    case_destroy(&scalar);
}

static void groups_are_the_same_on_every_instruction_set(void **state) {
    const int32_t bits[] = {1, 8, 31, 63, 64, 65, 128, 255};
    const int64_t dims[] = {1, 3, 16, 65};
    for (int64_t b = 0; b < COUNT_OF(bits); b++)
        for (int64_t d = 0; d < COUNT_OF(dims); d++) {
            case_spec spec = short_spec("clustered-50:seed=4");
            spec.attention.bits = bits[b];
            spec.dim = dims[d];
            spec.queries = 700;
            compare_instruction_sets(&spec);
        }
    case_spec spec = long_spec("clustered-50:seed=4");
    compare_instruction_sets(&spec);
}

/* In the metric of the keys clusters depend on floating-point arithmetic only. */
static void groups_by_keys_are_the_same_on_every_instruction_set(void **state) {
    const int32_t ranks[] = {1, 3, 16, 33, 1024};
    const int64_t dims[] = {1, 3, 16, 65, 100};
    for (int64_t r = 0; r < COUNT_OF(ranks); r++)
        for (int64_t d = 0; d < COUNT_OF(dims); d++) {
            case_spec spec = short_spec("q-clustered-50:topk=8,seed=4");
            spec.attention.rank = ranks[r];
            spec.attention.iterations = 1 + (int32_t)(r + d) % 6;
            spec.dim = dims[d];
            spec.queries = 700;
            compare_instruction_sets(&spec);
        }
    case_spec spec = long_spec("q-clustered-100:topk=8");
    compare_instruction_sets(&spec);
}

/* A plan keeps nothing from one call to the next, not even infinities. */
static void plans_can_be_used_again(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        case_spec spec = short_spec(KINDS[kind]);
        attention_case first = case_create(&spec), again = case_create(&spec);
        attention_case between = case_create(&spec);
        for (int64_t i = 0; i < between.q.elements; i++)
            between.q.data[i] = i % 5 ? -between.q.data[i] : INFINITY;
        case_run_on(NULL, 2, &first);
        case_forward(first.plan, &between);
        case_backward(first.plan, &between);
        case_forward(first.plan, &again);
        case_backward(first.plan, &again);
        case_check_identical(&first, &again);
        case_destroy(&first);
        case_destroy(&again);
        case_destroy(&between);
    }
}

/* Other seeds give other clusters. */
static void check_seeds_matter(const char *kind) {
    case_spec spec = short_spec(kind), other_spec = spec;
    other_spec.attention.seed++;
    attention_case c = case_create(&spec), other = case_create(&other_spec);
    case_run_on(NULL, 2, &c);
    case_run_on(NULL, 2, &other);
    assert_memory_not_equal(shoal_plan_clusters(c.plan, NULL),
                            shoal_plan_clusters(other.plan, NULL), groups_size(&c));
    case_destroy(&c);
    case_destroy(&other);
}

static void seeds_matter(void **state) {
    check_seeds_matter("clustered-50:seed=4");
    check_seeds_matter("q-clustered-50:seed=4");
    check_seeds_matter("shoal-50:seed=4");
}

int main(void) {
    /* A sliding window much wider than a block of queries. */
    test_kinds((shoal_attention){.clusters = 50,
                                 .topk = 32,
                                 .rounds = 2,
                                 .window = 1200,
                                 .seed = 4},
               KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(threads_do_not_matter_in_one_long_head),
        cmocka_unit_test(groups_are_the_same_on_every_instruction_set),
        cmocka_unit_test(groups_by_keys_are_the_same_on_every_instruction_set),
        cmocka_unit_test(plans_can_be_used_again),
        cmocka_unit_test(seeds_matter),
    };
    return cmocka_run_group_tests_name("determinism", tests, NULL, NULL);
}
