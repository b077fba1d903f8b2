/* Padding, NaN and infinities, and empty problems. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "support.h"

static const char *KINDS[TEST_KINDS + 1];

static case_spec corner_spec(const char *kind) {
    return (case_spec){.attention = spelled(kind),
                       .batch = 3,
                       .heads = 2,
                       .queries = 70,
                       .keys = 53,
                       .dim = 9,
                       .value_dim = 6,
                       .layout = LAYOUT_GAPS,
                       .ragged = true,
                       .seed = 8};
}

/* Sets padding, and the gaps of the layout. */
static void fill_dead(const tensor *t, const int64_t *lengths, float value) {
    unsigned char *live = test_memory(t->elements, 1);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < lengths[b]; i++)
                memset(live + (tensor_row(t, b, h, i) - t->data), 1, (size_t)t->features);
    for (int64_t i = 0; i < t->elements; i++)
        if (!live[i])
            t->data[i] = value;
    free(live);
}

/* ---- Padding ------------------------------------------------------------------- */

static void padding_goes_nowhere(void **state) {
    const float poisons[] = {INFINITY, -INFINITY, 0, 3e38f};
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; KINDS[kind]; kind++)
            for (int64_t p = 0; p < COUNT_OF(poisons); p++) {
                case_spec spec = corner_spec(KINDS[kind]);
                attention_case nan = case_create(&spec), other = case_create(&spec);
                fill_dead(&other.q, other.query_lengths, poisons[p]);
                fill_dead(&other.k, other.key_lengths, poisons[p]);
                fill_dead(&other.v, other.key_lengths, poisons[p]);
                fill_dead(&other.dout, other.query_lengths, poisons[p]);
                case_run_on(test_isa(isa), 2, &nan);
                case_run_on(test_isa(isa), 2, &other);
                case_check_identical(&nan, &other);
                case_check_surroundings(&nan);
                case_check_surroundings(&other);
                case_destroy(&nan);
                case_destroy(&other);
            }
}

/* ---- NaN and infinities in valid positions ---------------------------------------- */

typedef enum { SPOIL_Q, SPOIL_K, SPOIL_V, SPOIL_DOUT, SPOIL_ALL_Q, SPOIL_COUNT } spoiling;

static void spoil(attention_case *c, spoiling what, int64_t b, int64_t h, float value) {
    const tensor *tensors[] = {&c->q, &c->k, &c->v, &c->dout, &c->q};
    if (what == SPOIL_ALL_Q)
        for (int64_t i = 0; i < c->query_lengths[b]; i++)
            tensor_row(&c->q, b, h, i)[i % c->spec.dim] = value;
    else
        tensor_row(tensors[what], b, h, 4)[1] = value;
}

static void copy_head_rows(const tensor *to, const tensor *from, int64_t b, int64_t h,
                           int64_t positions) {
    for (int64_t i = 0; i < positions; i++)
        memcpy(tensor_row(to, b, h, i), tensor_row(from, b, h, i),
               sizeof(float) * (size_t)to->features);
}

/* Only head (b, h) may differ from the clean run: it is copied, then everything is
   compared. */
static void check_other_heads(attention_case *spoiled, const attention_case *clean,
                              int64_t b, int64_t h) {
    copy_head_rows(&spoiled->out, &clean->out, b, h, clean->query_lengths[b]);
    copy_head_rows(&spoiled->dq, &clean->dq, b, h, clean->query_lengths[b]);
    copy_head_rows(&spoiled->dk, &clean->dk, b, h, clean->key_lengths[b]);
    copy_head_rows(&spoiled->dv, &clean->dv, b, h, clean->key_lengths[b]);
    case_check_identical(clean, spoiled);
}

static void check_spoiling(shoal_context *context, const case_spec *spec, spoiling what,
                           float value) {
    attention_case clean = case_create(spec), spoiled = case_create(spec);
    spoil(&spoiled, what, 1, 1, value);
    shoal_plan *clean_plan = case_run(context, &clean);
    shoal_plan *plan = case_run(context, &spoiled);
    check_groups(&spoiled, plan);
    case_check_surroundings(&spoiled);
    check_other_heads(&spoiled, &clean, 1, 1);
    shoal_plan_destroy(clean_plan);
    shoal_plan_destroy(plan);
    case_destroy(&clean);
    case_destroy(&spoiled);
}

static void nan_stays_in_its_head(void **state) {
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int isa = 0; test_isa(isa); isa++) {
        shoal_context *context = test_context(test_isa(isa), 2);
        for (int64_t kind = 0; KINDS[kind]; kind++)
            for (int what = 0; what < SPOIL_COUNT; what++)
                for (int64_t i = 0; i < COUNT_OF(values); i++) {
                    case_spec spec = corner_spec(KINDS[kind]);
                    spec.ragged = false;
                    check_spoiling(context, &spec, (spoiling)what, values[i]);
                }
        shoal_context_destroy(context);
    }
}

static bool row_is_finite(const tensor *t, int64_t i) {
    for (int64_t f = 0; f < t->features; f++)
        if (!isfinite(tensor_row(t, 0, 0, i)[f]))
            return false;
    return true;
}

/* A NaN query affects its own row, and in full attention no other. A NaN key or value
   affects all rows of kinds that give every key a weight. */
static void check_reach(const char *isa, const char *kind, spoiling what) {
    case_spec spec = corner_spec(kind);
    spec.batch = spec.heads = 1;
    spec.ragged = false;
    attention_case c = case_create(&spec);
    spoil(&c, what, 0, 0, NAN);
    case_run_on(isa, 1, &c);
    for (int64_t i = 0; i < spec.queries; i++) {
        bool spoiled = !row_is_finite(&c.out, i);
        if (i == 4 || what != SPOIL_Q)
            assert_true(spoiled);
        else if (spec.attention.kind == SHOAL_KIND_FULL)
            assert_false(spoiled);
    }
    case_destroy(&c);
}

static void nan_reaches_what_depends_on_it(void **state) {
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; KINDS[kind]; kind++) {
            const shoal_kind_info *facts = facts_of(spelled(KINDS[kind]).kind);
            check_reach(test_isa(isa), KINDS[kind], SPOIL_Q);
            if (facts->keys_are_queries || !(facts->exact || facts->has_clusters))
                continue;
            check_reach(test_isa(isa), KINDS[kind], SPOIL_K);
            check_reach(test_isa(isa), KINDS[kind], SPOIL_V);
        }
}

/* ---- Empty problems --------------------------------------------------------------- */

static void check_all_zero(const tensor *t) {
    for (int64_t i = 0; i < t->elements; i++)
        assert_true(t->data[i] == 0);
}

static void check_nothing(case_spec spec) {
    spec.layout = LAYOUT_CONTIGUOUS;
    spec.ragged = false;
    attention_case c = case_create(&spec);
    case_run_on(NULL, 2, &c);
    check_all_zero(&c.out);
    check_all_zero(&c.dq);
    check_all_zero(&c.dk);
    check_all_zero(&c.dv);
    case_destroy(&c);
}

/* Keys 0 .. count - 1 have the score -inf with every query, though all inputs are
   finite; the others have 0. */
static attention_case case_of_lowest(const char *kind, int64_t count) {
    case_spec spec = {.attention = spelled(kind),
                      .batch = 1,
                      .heads = 1,
                      .queries = 70,
                      .keys = 200,
                      .dim = 3,
                      .value_dim = 5,
                      .seed = 4};
    attention_case c = case_create(&spec);
    for (int64_t i = 0; i < spec.queries; i++)
        for (int d = 0; d < 3; d++)
            tensor_row(&c.q, 0, 0, i)[d] = 1e20f;
    for (int64_t l = 0; l < spec.keys; l++)
        for (int d = 0; d < 3; d++)
            tensor_row(&c.k, 0, 0, l)[d] = l < count ? -1e20f : 0;
    return c;
}

/* Their weight is 0, even if whole blocks of them come first. */
static void lowest_scores_weigh_nothing(void **state) {
    static const char *const kinds[] = {"full",
                                        "clustered-5",
                                        "clustered-5:groups=keys",
                                        "i-clustered-5:topk=9",
                                        "q-clustered-5:topk=9",
                                        "shoal-5:topk=9"};
    const int64_t counts[] = {1, 64, 129, 199};
    for (int isa = 0; test_isa(isa); isa++)
        for (int64_t kind = 0; kind < COUNT_OF(kinds); kind++)
            for (int64_t n = 0; n < COUNT_OF(counts); n++) {
                attention_case c = case_of_lowest(kinds[kind], counts[n]);
                case_run_on(test_isa(isa), 2, &c);
                for (int d = 0; d < 5; d++) {
                    double mean = 0;
                    for (int64_t l = counts[n]; l < c.spec.keys; l++)
                        mean += (double)tensor_row(&c.v, 0, 0, l)[d] /
                                (double)(c.spec.keys - counts[n]);
                    const double got = (double)tensor_row(&c.out, 0, 0, 69)[d];
                    if (!(fabs(got - mean) < 1e-5))
                        fail_msg("%s, %s, %lld lowest: %g, not %g", test_isa(isa),
                                 kinds[kind], (long long)counts[n], got, mean);
                }
                case_destroy(&c);
            }
}

static void no_queries_keys_or_batch(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++) {
        case_spec no_queries = corner_spec(KINDS[kind]), no_keys = no_queries;
        case_spec no_batch = no_queries, neither = no_queries;
        no_queries.queries = 0;
        no_batch.batch = 0;
        neither.queries = neither.keys = 0;
        no_keys.keys = 0;
        check_nothing(no_queries);
        check_nothing(no_batch);
        check_nothing(neither);
        if (!facts_of(neither.attention.kind)->keys_are_queries)
            check_nothing(no_keys);
    }
}

/* Lengths of 0 in a problem that has room for more. */
static void zero_lengths(void **state) {
    for (int64_t kind = 0; KINDS[kind]; kind++)
        for (int which = 0; which < 3; which++) {
            case_spec spec = corner_spec(KINDS[kind]);
            attention_case c = case_create(&spec);
            bool shared = facts_of(spec.attention.kind)->keys_are_queries;
            for (int64_t b = 0; b < spec.batch; b++) {
                if (which != 1 || shared)
                    c.query_lengths[b] = 0;
                if (which != 0 || shared)
                    c.key_lengths[b] = 0;
            }
            case_run_on(NULL, 2, &c);
            check_groups(&c, c.plan);
            for (int64_t b = 0; b < spec.batch; b++)
                c.query_lengths[b] = c.key_lengths[b] = 0; /* all of it must be 0 */
            case_check_surroundings(&c);
            case_destroy(&c);
        }
}

int main(void) {
    test_kinds((shoal_attention){.clusters = 5, .topk = 9, .rounds = 2, .seed = 2},
               KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_goes_nowhere),
        cmocka_unit_test(nan_stays_in_its_head),
        cmocka_unit_test(nan_reaches_what_depends_on_it),
        cmocka_unit_test(lowest_scores_weigh_nothing),
        cmocka_unit_test(no_queries_keys_or_batch),
        cmocka_unit_test(zero_lengths),
    };
    return cmocka_run_group_tests_name("corners", tests, NULL, NULL);
}
