/* Memory: every allocation fails in turn, running allocates nothing, workspaces have
   the documented size, and states kept by the caller. */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static const char *KINDS[TEST_KINDS + 1];

static case_spec memory_spec(const char *kind) {
    return (case_spec){.attention = spelled(kind),
                       .batch = 2,
                       .heads = 2,
                       .queries = 65,
                       .keys = 50,
                       .dim = 7,
                       .value_dim = 5,
                       .ragged = true,
                       .seed = 6};
}

/* ---- Failing allocations ---------------------------------------------------------- */

/* Context, plan, run; stops at the first error. */
static shoal_status whole_road(const shoal_options *options, attention_case *c) {
    shoal_context *context = NULL;
    shoal_plan *plan = NULL;
    shoal_status status = shoal_context_create(options, &context);
    if (status == SHOAL_OK)
        status = shoal_plan_create(context, &c->problem, &c->spec.attention,
                                   SHOAL_WITH_BACKWARD, &plan);
    else
        assert_null(context);
    if (status == SHOAL_OK) {
        case_forward(plan, c);
        case_backward(plan, c);
    } else {
        assert_null(plan);
        assert_true(!context || shoal_context_message(context)[0] != '\0');
    }
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    return status;
}

/* Fails the first allocation, then the second, until a run needs no more. */
static void check_failures(shoal_status (*road)(const shoal_options *, attention_case *),
                           attention_case *c, int64_t least) {
    int64_t failures = 0;
    for (;; failures++) {
        counting_allocator allocator = {.fail_at = failures + 1};
        shoal_options options = counting_options(&allocator);
        options.threads = 2;
        tensor_guard(&c->out);
        shoal_status status = road(&options, c);
        assert_int_equal(allocator.live, 0);
        if (allocator.calls <= failures) {
            assert_int_equal(status, SHOAL_OK);
            break;
        }
        assert_int_equal(status, SHOAL_NO_MEMORY);
    }
    assert_true(failures >= least);
}

static void allocations_may_fail(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        case_spec spec = memory_spec(KINDS[kind]);
        attention_case c = case_create(&spec);
        check_failures(whole_road, &c, 2);
        case_check_surroundings(&c);
        case_destroy(&c);
    }
}

/* shoal_attend. A failure leaves the context usable. */
static shoal_status attend_road(const shoal_options *options, attention_case *c) {
    counting_allocator *allocator = options->user;
    char kind[128];
    shoal_attention_print(&c->spec.attention, kind, sizeof kind);
    shoal_context *context = NULL;
    shoal_status status = shoal_context_create(options, &context);
    if (status == SHOAL_OK)
        status = shoal_attend(context, kind, &c->problem, &c->inputs, c->out.data);
    if (status != SHOAL_OK && context) {
        assert_true(shoal_context_message(context)[0] != '\0');
        tensor untouched = c->out;
        untouched.data = test_memory(c->out.elements, sizeof(float));
        tensor_guard(&untouched);
        assert_memory_equal(c->out.data, untouched.data,
                            sizeof(float) * (size_t)c->out.elements);
        tensor_destroy(&untouched);
        allocator->fail_at = 0;
        assert_int_equal(shoal_attend(context, kind, &c->problem, &c->inputs,
                                      c->out.data),
                         SHOAL_OK);
    }
    shoal_context_destroy(context);
    return status;
}

static void attend_may_fail(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        case_spec spec = memory_spec(KINDS[kind]);
        attention_case c = case_create(&spec);
        check_failures(attend_road, &c, 2);
        case_destroy(&c);
    }
}

static void *modest_allocate(void *user, size_t bytes) {
    (void)user;
    return bytes < ((size_t)1 << 30) ? malloc(bytes ? bytes : 1) : NULL;
}

static void modest_release(void *user, void *block) {
    (void)user;
    free(block);
}

static void check_too_large(const char *kind, int64_t batch, int64_t heads,
                            int64_t length) {
    const shoal_attention attention = spelled(kind);
    shoal_options options = {.size = sizeof(shoal_options),
                             .allocate = modest_allocate,
                             .release = modest_release};
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = batch,
                             .heads = heads,
                             .queries = length,
                             .keys = length,
                             .dim = 1,
                             .value_dim = 1};
    shoal_context *context = NULL;
    shoal_plan *plan = NULL;
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    shoal_status status =
        shoal_plan_create(context, &problem, &attention, SHOAL_WITH_BACKWARD, &plan);
    assert_int_equal(status, SHOAL_NO_MEMORY);
    assert_null(plan);
    assert_true(shoal_context_message(context)[0] != '\0');
    shoal_context_destroy(context);
}

/* Problems that are too large: more bytes than the memory, and more than a size_t.
   Clusters need memory even without positions, and here their number is 2^64. */
static void too_large_to_hold(void **state) {
    const char *const extremes[] = {
        "clustered-65535:bits=255",
        "clustered-65535:groups=keys,rank=1024",
        "i-clustered-65535:bits=255,topk=65535",
        "q-clustered-65535:topk=65535,rank=1024",
        "shoal-65535:topk=65535,rank=1024,keyclusters=65535,pool=65535",
        "lsh-255",
        "oracle-top-65535",
    };
    for (int64_t kind = 0; KINDS[kind]; kind++)
        check_too_large(KINDS[kind], 1 << 26, 1 << 10, 1 << 20);
    for (int64_t kind = 0; kind < COUNT_OF(extremes); kind++) {
        check_too_large(extremes[kind], 1 << 26, 1 << 10, 1 << 20);
        check_too_large(extremes[kind], 1 << 30, 1 << 10, 1 << 16);
    }
    const char *const wrapping[] = {"clustered-16", "i-clustered-16:topk=1",
                                    "clustered-16:groups=keys", "q-clustered-16:topk=1",
                                    "shoal-16:topk=1"};
    for (int64_t kind = 0; kind < COUNT_OF(wrapping); kind++)
        check_too_large(wrapping[kind], 1 << 30, 1 << 30, 0);
}

/* ---- Running allocates nothing ---------------------------------------------------- */

static void running_allocates_nothing(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        counting_allocator allocator = {0};
        shoal_options options = counting_options(&allocator);
        shoal_context *context = NULL;
        assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
        case_spec spec = memory_spec(KINDS[kind]);
        attention_case c = case_create(&spec);
        shoal_plan *plan = case_plan(context, &c, SHOAL_WITH_BACKWARD);
        int64_t calls = allocator.calls;
        case_forward(plan, &c);
        case_backward(plan, &c);
        assert_int_equal(allocator.calls, calls);
        shoal_plan_destroy(plan);
        shoal_context_destroy(context);
        assert_int_equal(allocator.live, 0);
        case_destroy(&c);
    }
}

static void *measuring_allocate(void *user, size_t bytes) {
    size_t *total = user;
    *total += bytes;
    return malloc(bytes ? bytes : 1);
}

static void measuring_release(void *user, void *block) {
    (void)user;
    free(block);
}

/* A plan reports its memory: all that it allocated, except alignment. */
static size_t workspace_of(const char *kind, int64_t length, int64_t heads,
                           unsigned flags) {
    const shoal_attention attention = spelled(kind);
    size_t total = 0;
    shoal_options options = {.size = sizeof(shoal_options),
                             .allocate = measuring_allocate,
                             .release = measuring_release,
                             .user = &total,
                             .threads = 2};
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = 1,
                             .heads = heads,
                             .queries = length,
                             .keys = length,
                             .dim = 64,
                             .value_dim = 64};
    shoal_context *context = NULL;
    shoal_plan *plan = NULL;
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    total = 0;
    assert_int_equal(shoal_plan_create(context, &problem, &attention, flags, &plan),
                     SHOAL_OK);
    size_t bytes = shoal_plan_workspace(plan);
    assert_true(bytes + 4096 >= total);
    assert_true(shoal_plan_state_size(plan) <= bytes);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    return bytes;
}

/* At most this many bytes per query and head besides a constant, and nothing of size N
   x S. */
static void workspace_is_linear(void **state) {
    const struct {
        const char *kind;
        int64_t bytes;
        unsigned flags;
    } limits[] = {
        {"i-clustered-100", 64, 0}, {"q-clustered-100:topk=32", 64, 0},
        {"shoal", 96, 0},           {"shoal", 96, SHOAL_WITH_BACKWARD},
        {"shoal-64", 96, 0},
    };
    for (int64_t i = 0; i < COUNT_OF(limits); i++)
        for (int64_t heads = 1; heads <= 6; heads += 5) {
            const char *kind = limits[i].kind;
            size_t small = workspace_of(kind, 20000, heads, limits[i].flags);
            size_t large = workspace_of(kind, 120000, heads, limits[i].flags);
            if (large - small > (size_t)(limits[i].bytes * 100000 * heads))
                fail_msg("%s, %lld heads: %.1f bytes for a query and head", kind,
                         (long long)heads,
                         (double)(large - small) / (100000.0 * (double)heads));
        }
}

static void full_needs_no_matrix(void **state) {
    size_t small = workspace_of("full", 20000, 1, 0);
    size_t large = workspace_of("full", 120000, 1, 0);
    assert_true(large - small <= 1024u * 100000u);
}

/* ---- States kept by the caller ---------------------------------------------------- */

static void *state_create(const shoal_plan *plan) {
    size_t bytes = (shoal_plan_state_size(plan) + 63) / 64 * 64;
    void *block = aligned_alloc(64, bytes ? bytes : 64);
    assert_non_null(block);
    memset(block, 0xee, bytes);
    return block;
}

/* Two layers of one network: forward, forward, backward, backward with one plan. */
static void check_two_layers(const char *kind) {
    shoal_context *context = test_context(NULL, 2);
    case_spec specs[2] = {memory_spec(kind), memory_spec(kind)};
    specs[0].ragged = specs[1].ragged = false;
    specs[1].seed++;
    attention_case alone[2], layers[2];
    void *states[2];
    shoal_plan *plan = NULL;
    for (int i = 0; i < 2; i++) {
        alone[i] = case_create(&specs[i]);
        shoal_plan_destroy(case_run(context, &alone[i]));
        layers[i] = case_create(&specs[i]);
        plan = plan ? plan : case_plan(context, &layers[i], SHOAL_WITH_BACKWARD);
        states[i] = state_create(plan);
        layers[i].inputs.state = states[i];
        case_forward(plan, &layers[i]);
    }
    for (int i = 0; i < 2; i++) {
        case_backward(plan, &layers[i]);
        case_check_identical(&alone[i], &layers[i]);
    }
    if (shoal_plan_clusters(plan, states[0]))
        assert_memory_not_equal(shoal_plan_clusters(plan, states[0]),
                                shoal_plan_clusters(plan, states[1]),
                                sizeof(int32_t) *
                                    (size_t)(specs[0].batch * specs[0].heads *
                                             specs[0].queries));
    for (int i = 0; i < 2; i++) {
        free(states[i]);
        case_destroy(&alone[i]);
        case_destroy(&layers[i]);
    }
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
}

static void one_plan_two_layers(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++)
        check_two_layers(KINDS[kind]);
}

int main(void) {
    test_kinds((shoal_attention){.clusters = 4, .topk = 7, .rounds = 2}, KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_may_fail),
        cmocka_unit_test(attend_may_fail),
        cmocka_unit_test(too_large_to_hold),
        cmocka_unit_test(running_allocates_nothing),
        cmocka_unit_test(workspace_is_linear),
        cmocka_unit_test(full_needs_no_matrix),
        cmocka_unit_test(one_plan_two_layers),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
