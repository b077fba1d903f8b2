/* Invalid arguments are rejected with a message, and nothing is written. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static case_spec usual_spec(void) {
    return (case_spec){.attention = spelled("i-clustered-4:topk=5"),
                       .batch = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .queries = 30,
                       .keys = 20,
                       .dim = 6,
                       .value_dim = 5,
                       .ragged = true,
                       .seed = 3};
}

/* ---- Plans --------------------------------------------------------------------- */

typedef void change_plan(shoal_problem *problem, shoal_attention *attention);

static void check_plan_refused(change_plan *change, const char *what) {
    case_spec spec = usual_spec();
    attention_case c = case_create(&spec);
    shoal_context *context = test_context(NULL, 1);
    shoal_plan *plan = NULL;
    change(&c.problem, &c.spec.attention);
    shoal_status status = shoal_plan_create(context, &c.problem, &c.spec.attention,
                                            SHOAL_WITH_BACKWARD, &plan);
    if (status != SHOAL_INVALID)
        fail_msg("%s: status %d (%s)", what, (int)status, shoal_status_text(status));
    if (shoal_context_message(context)[0] == '\0')
        fail_msg("%s: refused without a message", what);
    assert_null(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

#define PLAN_CHANGE(name, change)                                                        \
    static void name(shoal_problem *problem, shoal_attention *attention) {               \
        (void)problem;                                                                   \
        (void)attention;                                                                 \
        change;                                                                          \
    }

static const shoal_strides negative_strides = {-1000, 180, 6};
static const shoal_strides huge_strides = {INT64_MAX / 2, 180, 6};

PLAN_CHANGE(negative_batch, problem->batch = -1)
PLAN_CHANGE(negative_heads, problem->heads = -1)
PLAN_CHANGE(negative_queries, problem->queries = -1)
PLAN_CHANGE(negative_keys, problem->keys = -5)
PLAN_CHANGE(negative_kv_heads, problem->kv_heads = -2)
PLAN_CHANGE(undivided_heads, problem->kv_heads = 3)
PLAN_CHANGE(more_kv_heads, problem->kv_heads = 8)
PLAN_CHANGE(kv_heads_of_no_heads, problem->heads = 0)
PLAN_CHANGE(no_dim, problem->dim = 0)
PLAN_CHANGE(no_value_dim, problem->value_dim = 0)
PLAN_CHANGE(negative_dim, problem->dim = -4)
PLAN_CHANGE(huge_dim, problem->dim = 65537)
PLAN_CHANGE(huge_value_dim, problem->value_dim = 65537)
PLAN_CHANGE(too_many_queries, problem->queries = INT64_C(1) << 31)
PLAN_CHANGE(too_many_keys, problem->keys = INT64_C(1) << 31)
PLAN_CHANGE(absurd_batch, problem->batch = INT64_MAX / 2)
PLAN_CHANGE(absurd_heads, problem->heads = problem->kv_heads = INT64_MAX / 2)
PLAN_CHANGE(absurd_product, (problem->batch = INT64_C(1) << 40,
                             problem->heads = problem->kv_heads = INT64_C(1) << 30))
PLAN_CHANGE(negative_stride, problem->q_strides = &negative_strides)
PLAN_CHANGE(huge_stride, problem->v_strides = &huge_strides)
PLAN_CHANGE(nan_scale, problem->scale = __builtin_nanf(""))
PLAN_CHANGE(infinite_scale, problem->scale = __builtin_inff())
PLAN_CHANGE(no_clusters, attention->clusters = 0)
PLAN_CHANGE(negative_clusters, attention->clusters = -3)
PLAN_CHANGE(huge_clusters, attention->clusters = 65536)
PLAN_CHANGE(no_topk, attention->topk = 0)
PLAN_CHANGE(huge_topk, attention->topk = 65536)
PLAN_CHANGE(no_bits, attention->bits = 0)
PLAN_CHANGE(huge_bits, attention->bits = 256)
PLAN_CHANGE(negative_iterations, attention->iterations = -1)
PLAN_CHANGE(no_rank, (attention->clustering = SHOAL_CLUSTERING_KEYS, attention->rank = 0))
PLAN_CHANGE(negative_rank,
            (attention->clustering = SHOAL_CLUSTERING_KEYS, attention->rank = -16))
PLAN_CHANGE(huge_rank,
            (attention->clustering = SHOAL_CLUSTERING_KEYS, attention->rank = 1025))
PLAN_CHANGE(unknown_groups, attention->clustering = 2)
PLAN_CHANGE(negative_groups, attention->clustering = -1)
PLAN_CHANGE(unknown_normaliser, attention->normaliser = 2)
PLAN_CHANGE(negative_normaliser, attention->normaliser = -1)
PLAN_CHANGE(shoal_without_clusters,
            (*attention = spelled("shoal-4"), attention->clusters = 0))
PLAN_CHANGE(shoal_without_topk, (*attention = spelled("shoal-4"), attention->topk = 0))
PLAN_CHANGE(shoal_without_rank, (*attention = spelled("shoal-4"), attention->rank = 0))
PLAN_CHANGE(shoal_without_iterations,
            (*attention = spelled("shoal-4"), attention->iterations = 0))
PLAN_CHANGE(unknown_kind, attention->kind = (shoal_kind)99)
PLAN_CHANGE(negative_kind, attention->kind = (shoal_kind)-1)
PLAN_CHANGE(lsh_of_two_lengths,
            (*attention = (shoal_attention){.kind = SHOAL_KIND_LSH, .rounds = 2}))
PLAN_CHANGE(shared_of_two_lengths,
            (*attention = (shoal_attention){.kind = SHOAL_KIND_SHARED_FULL}))
PLAN_CHANGE(lsh_of_fewer_key_heads,
            (*attention = (shoal_attention){.kind = SHOAL_KIND_LSH, .rounds = 2},
             problem->keys = problem->queries))
PLAN_CHANGE(lsh_without_rounds, (*attention = (shoal_attention){.kind = SHOAL_KIND_LSH},
                                 problem->keys = problem->queries, problem->kv_heads = 0))
PLAN_CHANGE(lsh_of_many_rounds,
            (*attention = (shoal_attention){.kind = SHOAL_KIND_LSH, .rounds = 256},
             problem->keys = problem->queries, problem->kv_heads = 0))
PLAN_CHANGE(oracle_of_nothing,
            (*attention = (shoal_attention){.kind = SHOAL_KIND_ORACLE_TOP, .topk = 0}))

static const struct {
    change_plan *change;
    const char *name;
} PLAN_CHANGES[] = {
    {negative_batch, "negative_batch"},
    {negative_heads, "negative_heads"},
    {negative_queries, "negative_queries"},
    {negative_keys, "negative_keys"},
    {negative_kv_heads, "negative_kv_heads"},
    {undivided_heads, "undivided_heads"},
    {more_kv_heads, "more_kv_heads"},
    {kv_heads_of_no_heads, "kv_heads_of_no_heads"},
    {no_dim, "no_dim"},
    {no_value_dim, "no_value_dim"},
    {negative_dim, "negative_dim"},
    {huge_dim, "huge_dim"},
    {huge_value_dim, "huge_value_dim"},
    {too_many_queries, "too_many_queries"},
    {too_many_keys, "too_many_keys"},
    {absurd_batch, "absurd_batch"},
    {absurd_heads, "absurd_heads"},
    {absurd_product, "absurd_product"},
    {negative_stride, "negative_stride"},
    {huge_stride, "huge_stride"},
    {nan_scale, "nan_scale"},
    {infinite_scale, "infinite_scale"},
    {no_clusters, "no_clusters"},
    {negative_clusters, "negative_clusters"},
    {huge_clusters, "huge_clusters"},
    {no_topk, "no_topk"},
    {huge_topk, "huge_topk"},
    {no_bits, "no_bits"},
    {huge_bits, "huge_bits"},
    {negative_iterations, "negative_iterations"},
    {no_rank, "no_rank"},
    {negative_rank, "negative_rank"},
    {huge_rank, "huge_rank"},
    {unknown_groups, "unknown_groups"},
    {negative_groups, "negative_groups"},
    {unknown_normaliser, "unknown_normaliser"},
    {negative_normaliser, "negative_normaliser"},
    {shoal_without_clusters, "shoal_without_clusters"},
    {shoal_without_topk, "shoal_without_topk"},
    {shoal_without_rank, "shoal_without_rank"},
    {shoal_without_iterations, "shoal_without_iterations"},
    {unknown_kind, "unknown_kind"},
    {negative_kind, "negative_kind"},
    {lsh_of_two_lengths, "lsh_of_two_lengths"},
    {shared_of_two_lengths, "shared_of_two_lengths"},
    {lsh_of_fewer_key_heads, "lsh_of_fewer_key_heads"},
    {lsh_without_rounds, "lsh_without_rounds"},
    {lsh_of_many_rounds, "lsh_of_many_rounds"},
    {oracle_of_nothing, "oracle_of_nothing"},
};

static void plans(void **state) {
    for (int64_t i = 0; i < COUNT_OF(PLAN_CHANGES); i++)
        check_plan_refused(PLAN_CHANGES[i].change, PLAN_CHANGES[i].name);
}

/* ---- Calls --------------------------------------------------------------------- */

/* Every element is still the guard. */
static void check_untouched(const tensor *t, const char *what) {
    tensor same = *t;
    same.data = test_memory(t->elements, sizeof(float));
    tensor_guard(&same);
    if (memcmp(same.data, t->data, sizeof(float) * (size_t)t->elements) != 0)
        fail_msg("%s: refused, but something was written", what);
    tensor_destroy(&same);
}

static void check_refused(shoal_context *context, shoal_status status, const char *what) {
    if (status != SHOAL_INVALID)
        fail_msg("%s: status %d (%s)", what, (int)status, shoal_status_text(status));
    if (shoal_context_message(context)[0] == '\0')
        fail_msg("%s: refused without a message", what);
}

typedef void change_inputs(attention_case *c);

/* Forward and backward with changed inputs, then a valid forward. */
static void check_inputs_refused(const case_spec *spec, change_inputs *change,
                                 const char *what) {
    attention_case good = case_create(spec), bad = case_create(spec);
    shoal_context *context = test_context(NULL, 2);
    shoal_plan *plan = case_run(context, &good);
    change(&bad);
    check_refused(context, shoal_forward(plan, &bad.inputs, bad.out.data), what);
    check_untouched(&bad.out, what);
    shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                 .out = good.out.data,
                                 .dout = bad.dout.data,
                                 .dq = bad.dq.data,
                                 .dk = bad.dk.data,
                                 .dv = bad.dv.data};
    check_refused(context, shoal_backward(plan, &bad.inputs, &gradients), what);
    check_untouched(&bad.dq, what);
    check_untouched(&bad.dk, what);
    check_untouched(&bad.dv, what);
    shoal_error error;
    check_refused(context,
                  shoal_error_estimate(plan, &bad.inputs, good.out.data, 3, 1, &error),
                  what);
    case_forward(plan, &good);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&good);
    case_destroy(&bad);
}

#define INPUT_CHANGE(name, change)                                                       \
    static void name(attention_case *c) {                                                \
        change;                                                                          \
    }

static const int64_t other_offsets[] = {1, 1, 1};

INPUT_CHANGE(no_q, c->inputs.q = NULL)
INPUT_CHANGE(no_k, c->inputs.k = NULL)
INPUT_CHANGE(no_v, c->inputs.v = NULL)
INPUT_CHANGE(long_queries, c->query_lengths[1] = 31)
INPUT_CHANGE(long_keys, c->key_lengths[0] = 21)
INPUT_CHANGE(negative_query_length, c->query_lengths[0] = -1)
INPUT_CHANGE(negative_key_length, c->key_lengths[1] = INT64_MIN)
INPUT_CHANGE(group_out_of_range, (c->query_lengths[0] = 30, c->groups[7] = 4))
INPUT_CHANGE(negative_group, (c->query_lengths[0] = 30, c->groups[29] = -2))
INPUT_CHANGE(live_query_in_no_group, (c->query_lengths[0] = 30, c->groups[29] = -1))
INPUT_CHANGE(falling_query_offsets, c->query_offsets[1] = c->query_offsets[2] + 1)
INPUT_CHANGE(falling_key_offsets, c->key_offsets[1] = c->key_offsets[2] + 1)
INPUT_CHANGE(negative_offset, c->query_offsets[0] = -1)
INPUT_CHANGE(long_sequence, c->query_offsets[2] = c->query_offsets[1] + 31)
INPUT_CHANGE(distant_offsets,
             (c->query_offsets[0] = INT64_MAX / 64,
              c->query_offsets[1] = c->query_offsets[2] = INT64_MAX / 64))
INPUT_CHANGE(other_key_offsets, c->inputs.key_offsets = other_offsets)
INPUT_CHANGE(no_query_offsets, c->inputs.query_offsets = NULL)
INPUT_CHANGE(no_key_offsets, c->inputs.key_offsets = NULL)
INPUT_CHANGE(lengths_of_packed, c->inputs.query_lengths = c->query_lengths)
INPUT_CHANGE(offsets_of_padded, c->inputs.query_offsets = c->query_lengths)
INPUT_CHANGE(other_keys, c->inputs.k = c->k.data)
INPUT_CHANGE(other_key_lengths, c->key_lengths[1] = c->query_lengths[1] ? 0 : 1)
INPUT_CHANGE(unwanted_groups, c->inputs.clusters = (const int32_t *)c->q.data)
INPUT_CHANGE(crooked_state, c->inputs.state = (char *)c->q.data + 4)

static void inputs(void **state) {
    case_spec spec = usual_spec();
    check_inputs_refused(&spec, no_q, "no_q");
    check_inputs_refused(&spec, no_k, "no_k");
    check_inputs_refused(&spec, no_v, "no_v");
    check_inputs_refused(&spec, long_queries, "long_queries");
    check_inputs_refused(&spec, long_keys, "long_keys");
    check_inputs_refused(&spec, negative_query_length, "negative_query_length");
    check_inputs_refused(&spec, negative_key_length, "negative_key_length");
    check_inputs_refused(&spec, offsets_of_padded, "offsets_of_padded");
    check_inputs_refused(&spec, crooked_state, "crooked_state");
    spec.attention = (shoal_attention){.kind = SHOAL_KIND_FULL};
    check_inputs_refused(&spec, unwanted_groups, "unwanted_groups");
    spec.attention = (shoal_attention){.kind = SHOAL_KIND_SHARED_FULL};
    check_inputs_refused(&spec, other_keys, "other_keys");
    check_inputs_refused(&spec, other_key_lengths, "other_key_lengths");
}

static void groups(void **state) {
    case_spec spec = usual_spec();
    spec.own_groups = true;
    check_inputs_refused(&spec, group_out_of_range, "group_out_of_range");
    check_inputs_refused(&spec, negative_group, "negative_group");
    check_inputs_refused(&spec, live_query_in_no_group, "live_query_in_no_group");
    spec.attention = spelled("shoal-4:topk=5");
    check_inputs_refused(&spec, group_out_of_range, "group_out_of_range of shoal");
    check_inputs_refused(&spec, negative_group, "negative_group of shoal");
}

static void offsets(void **state) {
    case_spec spec = usual_spec();
    spec.layout = LAYOUT_PACKED;
    check_inputs_refused(&spec, falling_query_offsets, "falling_query_offsets");
    check_inputs_refused(&spec, falling_key_offsets, "falling_key_offsets");
    check_inputs_refused(&spec, negative_offset, "negative_offset");
    check_inputs_refused(&spec, long_sequence, "long_sequence");
    check_inputs_refused(&spec, no_query_offsets, "no_query_offsets");
    check_inputs_refused(&spec, no_key_offsets, "no_key_offsets");
    check_inputs_refused(&spec, lengths_of_packed, "lengths_of_packed");
    check_inputs_refused(&spec, distant_offsets, "distant_offsets");
    spec.attention = (shoal_attention){.kind = SHOAL_KIND_SHARED_FULL};
    check_inputs_refused(&spec, other_key_offsets, "other_key_offsets");
}

/* Missing outputs, and an invalid kind. */
static void outputs(void **state) {
    case_spec spec = usual_spec();
    attention_case c = case_create(&spec);
    shoal_context *context = test_context(NULL, 1);
    shoal_plan *plan = case_run(context, &c);
    check_refused(context, shoal_forward(plan, &c.inputs, NULL), "no out");
    shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                 .out = c.out.data,
                                 .dq = c.dq.data};
    check_refused(context, shoal_backward(plan, &c.inputs, &gradients), "no dout");
    tensor_guard(&c.out);
    check_refused(context,
                  shoal_attend(context, "i-clusterd-4", &c.problem, &c.inputs,
                               c.out.data),
                  "a misspelt kind");
    check_untouched(&c.out, "a misspelt kind");
    check_refused(context,
                  shoal_attend(context, "lsh-4", &c.problem, &c.inputs, c.out.data),
                  "lsh of two lengths");
    check_untouched(&c.out, "lsh of two lengths");
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

/* A context with invalid options can only be used to read the message. */
static void contexts(void **state) {
    const shoal_options refused[] = {{.size = sizeof(shoal_options), .isa = "pentium"},
                                     {.size = sizeof(shoal_options), .threads = -1}};
    case_spec spec = usual_spec();
    attention_case c = case_create(&spec);
    for (int64_t i = 0; i < COUNT_OF(refused); i++) {
        shoal_context *context = NULL;
        shoal_status status = shoal_context_create(&refused[i], &context);
        assert_non_null(context);
        check_refused(context, status, "options");
        check_refused(context,
                      shoal_attend(context, "full", &c.problem, &c.inputs, c.out.data),
                      "use of a refused context");
        check_untouched(&c.out, "use of a refused context");
        shoal_context_destroy(context);
    }
    shoal_context_destroy(NULL);
    shoal_plan_destroy(NULL);
    case_destroy(&c);
}

/* ---- NULL, and calls in the wrong order -------------------------------------------- */

static void *one_block(void *user, size_t bytes) {
    (void)user;
    return malloc(bytes);
}

static void null_arguments(void **state) {
    shoal_context *context;
    assert_int_equal(shoal_context_create(NULL, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_context_create(&(shoal_options){.size = sizeof(shoal_options),
                                                           .allocate = one_block},
                                          &context),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "release"));
    shoal_context_destroy(context);
    char text[8] = "before";
    assert_int_equal(shoal_attention_print(NULL, text, sizeof text), 0);
    assert_string_equal(text, "");
    const shoal_attention full = {.kind = SHOAL_KIND_FULL};
    assert_int_equal(shoal_attention_print(&full, NULL, 0), 4);
    assert_int_equal(shoal_plan_workspace(NULL), 0);
    assert_int_equal(shoal_plan_state_size(NULL), 0);
    assert_null(shoal_plan_clusters(NULL, NULL));
    assert_null(shoal_plan_top_keys(NULL, NULL));
}

static void backward_before_forward(void **state) {
    const case_spec spec = usual_spec();
    attention_case c = case_create(&spec);
    shoal_context *context = test_context(NULL, 1);
    shoal_plan *plan = case_plan(context, &c, SHOAL_WITH_BACKWARD);
    const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                       .out = c.out.data,
                                       .dout = c.dout.data};
    assert_int_equal(shoal_backward(plan, &c.inputs, &gradients), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "shoal_forward"));
    assert_int_equal(shoal_forward(plan, &c.inputs, c.out.data), SHOAL_OK);
    assert_int_equal(shoal_backward(plan, &c.inputs, &gradients), SHOAL_OK);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    case_destroy(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans),          cmocka_unit_test(inputs),
        cmocka_unit_test(groups),         cmocka_unit_test(offsets),
        cmocka_unit_test(outputs),        cmocka_unit_test(contexts),
        cmocka_unit_test(null_arguments), cmocka_unit_test(backward_before_forward),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
