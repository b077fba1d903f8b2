/* Every kind, forward and backward, compared with the double-precision reference on
   random problems of awkward sizes, on each instruction set of this machine. */
#include <stdlib.h>

#include "cases.h"
#include "support.h"

enum { PROBLEMS_PER_KIND = 100 };

static const int64_t LENGTHS[] = {0,  1,  2,  3,  5,  7,  8,  9,  15,  16,  17, 23,
                                  24, 25, 31, 33, 47, 64, 65, 97, 127, 130, 257};
static const int64_t SIZES[] = {1, 3, 4, 5, 8, 16, 17, 31, 32, 33, 64, 65, 100};
static const int64_t HEADS[][2] = {{1, 0}, {1, 1}, {2, 0}, {2, 1},
                                   {3, 3}, {4, 2}, {6, 2}};
static const int32_t CLUSTERS[] = {1, 2, 3, 4, 7, 8, 16, 25, 40, 100, 300};
static const int32_t TOPKS[] = {1, 2, 3, 4, 7, 8, 9, 16, 31, 32, 33, 64, 300};
static const int32_t BITS[] = {1, 5, 31, 32, 63, 64, 65, 100, 255};
static const int32_t RANKS[] = {1, 2, 3, 8, 16, 16, 17, 64, 1024};
static const int32_t KEYCLUSTERS[] = {SHOAL_BY_SIZE, 1, 2, 5, 8, 9, 32, 300};
static const int32_t BLOCKS[] = {SHOAL_BY_SIZE, 1, 2, 4, 7, 8, 16, 17, 50, 300};
static const int32_t POOLS[] = {SHOAL_BY_SIZE, 1, 8, 20, 31, 65, 300};
static const int32_t NEARS[] = {SHOAL_BY_SIZE, 0, 1, 2, 7, 8, 300};
static const float SCALES[] = {0, 0, 0.05f, 0.3f, 1};

/* A random entry of a list. */
#define CHOOSE(list, seed, stream) (list)[test_pick(seed, stream, 0, COUNT_OF(list) - 1)]

static void choose_number(int32_t *field, int32_t number) {
    if (*field > 0 || *field == SHOAL_BY_SIZE)
        *field = number;
}

/* Key clusters and related options, for kinds that have them. */
static void choose_tilt(shoal_attention *attention, uint64_t seed) {
    if (attention->keyclusters == 0)
        return;
    attention->keyclusters = CHOOSE(KEYCLUSTERS, seed, 30);
    attention->block = CHOOSE(BLOCKS, seed, 31);
    attention->pool = CHOOSE(POOLS, seed, 32);
    attention->near = CHOOSE(NEARS, seed, 33);
}

/* Random values of the fields that the kind has. */
static shoal_attention random_attention(shoal_kind kind, uint64_t seed) {
    const shoal_kind_info *facts = facts_of(kind);
    shoal_attention attention = facts->defaults;
    if (attention.bits > 0 && test_pick(seed, 26, 0, 2) == 0)
        attention.clustering = SHOAL_CLUSTERING_KEYS;
    if (facts->has_top_keys && test_pick(seed, 27, 0, 2) == 0)
        attention.normaliser = SHOAL_NORMALISER_QUERY;
    if (facts->has_clusters)
        attention.rank = CHOOSE(RANKS, seed, 28);
    choose_number(&attention.clusters, CHOOSE(CLUSTERS, seed, 21));
    choose_number(&attention.topk, CHOOSE(TOPKS, seed, 22));
    choose_number(&attention.bits, seed % 2 ? 63 : CHOOSE(BITS, seed, 23));
    choose_number(&attention.iterations, (int32_t)test_pick(seed, 24, 1, 10));
    choose_number(&attention.rounds, (int32_t)test_pick(seed, 25, 1, 4));
    choose_number(&attention.window, CHOOSE(TOPKS, seed, 29));
    choose_tilt(&attention, seed);
    if (facts->has_tolerance && seed % 3 == 0)
        attention.tolerance = 0.3f;
    if (facts->has_seed)
        attention.seed = test_hash(seed, 20, 0);
    return attention;
}

static int64_t work_of(const case_spec *s) {
    int64_t keys = facts_of(s->attention.kind)->keys_are_queries ? s->queries : s->keys;
    return s->batch * s->heads * s->queries * (s->queries + keys) *
           (s->dim + s->value_dim);
}

/* Keeps scores within the range that float can exponentiate to 1e-5: with large
   vectors, only the default scale or a smaller one. */
static float random_scale(const case_spec *s, uint64_t seed) {
    float scale = CHOOSE(SCALES, seed, 9);
    return (double)scale * (double)scale * (double)s->dim > 4 ? 0 : scale;
}

static case_spec random_spec(shoal_kind kind, uint64_t seed) {
    const int64_t affordable = 6000000;
    int64_t heads = test_pick(seed, 1, 0, COUNT_OF(HEADS) - 1);
    case_spec spec = {
        .attention = random_attention(kind, seed),
        .seed = seed,
        .batch = test_pick(seed, 2, 1, 3),
        .heads = HEADS[heads][0],
        .kv_heads = HEADS[heads][1],
        .dim = CHOOSE(SIZES, seed, 3),
        .value_dim = CHOOSE(SIZES, seed, 4),
        .layout = (memory_layout)test_pick(seed, 5, 0, LAYOUT_COUNT - 1),
        .ragged = test_pick(seed, 6, 0, 2) == 0,
        .own_groups = facts_of(kind)->has_clusters && test_pick(seed, 7, 0, 3) == 0,
    };
    spec.scale = random_scale(&spec, seed);
    uint64_t attempt = 0;
    do {
        uint64_t again = test_hash(seed, 8, attempt++);
        spec.queries = CHOOSE(LENGTHS, again, 1);
        spec.keys = seed % 3 ? CHOOSE(LENGTHS, again, 2) : spec.queries;
    } while (work_of(&spec) > affordable);
    return spec;
}

/* auto has the bits of the kind it picks, which are checked. */
static void check_picked(const attention_case *c) {
    case_spec spec = c->spec;
    assert_int_equal(shoal_plan_picked(c->plan, NULL, &spec.attention), SHOAL_OK);
    attention_case picked = case_create(&spec);
    case_run_on(shoal_context_isa(c->context), 2, &picked);
    check_everything(&picked, picked.plan);
    case_check_identical(c, &picked);
    case_check_surroundings(c);
    case_destroy(&picked);
}

static void check_case(const case_spec *spec) {
    for (int i = 0; test_isa(i); i++) {
        attention_case c = case_create(spec);
        case_calm(&c);
        case_run_on(test_isa(i), 2, &c);
        if (facts_of(spec->attention.kind)->picks)
            check_picked(&c);
        else
            check_everything(&c, c.plan);
        case_destroy(&c);
    }
}

/* state: properties of the kind. */
static void check_kind(void **state) {
    shoal_kind kind = ((const shoal_kind_info *)*state)->defaults.kind;
    for (uint64_t problem = 1; problem <= PROBLEMS_PER_KIND; problem++) {
        case_spec spec = random_spec(kind, 100 * (uint64_t)kind + problem);
        check_case(&spec);
    }
}

/* Longer sequences, with boundaries of key and query blocks inside. */
static void several_blocks(void **state) {
    const case_spec common = {.batch = 1,
                              .heads = 2,
                              .queries = 1111,
                              .keys = 1300,
                              .dim = 9,
                              .value_dim = 6,
                              .seed = 77};
    const char *kinds[TEST_KINDS + 1];
    test_kinds((shoal_attention){.clusters = 30, .rounds = 3}, kinds);
    for (int64_t i = 0; kinds[i]; i++) {
        case_spec spec = common;
        spec.attention = spelled(kinds[i]);
        if (spec.attention.keyclusters != 0) /* each query has its block's exact keys */
            spec.queries = 403;
        check_case(&spec);
    }
}

/* Scores in the hundreds: a softmax that does not subtract its maximum overflows.
   Inputs are small integers, so that the scores are exact in float. */
static void large_scores(void **state) {
    const char *const kinds[] = {"full",
                                 "clustered-64",
                                 "i-clustered-64:topk=5",
                                 "i-clustered-64:topk=5,normaliser=query",
                                 "q-clustered-64:topk=5",
                                 "shoal-64:topk=5",
                                 "shared-full"};
    for (int64_t i = 0; i < COUNT_OF(kinds); i++) {
        case_spec spec = {.attention = spelled(kinds[i]),
                          .batch = 1,
                          .heads = 1,
                          .queries = 40,
                          .keys = 50,
                          .dim = 8,
                          .value_dim = 5,
                          .scale = 4,
                          .seed = 5};
        for (int isa = 0; test_isa(isa); isa++) {
            attention_case c = case_create(&spec);
            for (int64_t e = 0; e < c.q.elements; e++)
                c.q.data[e] = (float)(int)(c.q.data[e] * 3);
            for (int64_t e = 0; e < c.k.elements; e++)
                c.k.data[e] = (float)(int)(c.k.data[e] * 3);
            case_run_on(test_isa(isa), 1, &c);
            check_forward(&c, c.plan);
            check_gradients(&c, c.plan);
            case_destroy(&c);
        }
    }
}

/* Multiples of 1/8: products, and means of two, are exact. */
static void round_to_eighths(const tensor *t) {
    for (int64_t i = 0; i < t->elements; i++)
        t->data[i] = (float)(int)(t->data[i] * 8) / 8;
}

/* Keys grow along the sequence, so that each part has scores far above all before:
   earlier sums must vanish, and nothing may overflow. */
static attention_case climbing_case(const char *kind) {
    const shoal_attention attention = spelled(kind);
    bool clustered = attention.clusters > 0;
    case_spec spec = {.attention = attention,
                      .batch = 1,
                      .heads = 1,
                      .queries = 14,
                      .keys = 20000,
                      .dim = 4,
                      .value_dim = 3,
                      .scale = 1,
                      .own_groups = clustered,
                      .seed = 6};
    attention_case c = case_create(&spec);
    round_to_eighths(&c.q);
    round_to_eighths(&c.k);
    for (int64_t l = 0; l < spec.keys; l++)
        c.k.data[l * spec.dim] = (float)(l / 64) / 2;
    for (int64_t i = 0; i < spec.queries; i++) {
        c.q.data[i * spec.dim] = i % 2 ? 2 : 4;
        if (clustered)
            c.groups[i] = (int32_t)i / 2;
    }
    return c;
}

static void climbing_scores(void **state) {
    /* A correction of hundreds is rounded, so key clusters are excluded. */
    const char *const kinds[] = {"full", "clustered-7", "i-clustered-7:topk=8",
                                 "q-clustered-7:topk=8"};
    for (int64_t i = 0; i < COUNT_OF(kinds); i++)
        for (int isa = 0; test_isa(isa); isa++) {
            attention_case c = climbing_case(kinds[i]);
            case_run_on(test_isa(isa), 2, &c);
            check_forward(&c, c.plan);
            case_destroy(&c);
        }
}

/* Clusters whose centroid has nearly all its weight on the exact keys, with members
   that score those keys lower and higher than the centroid: the small weight of the
   other keys matters. With as many queries as keys, neighbouring keys are exact as
   well; with pools of all keys, and of a few. */
static void sharp_groups(void **state) {
    const char *const kinds[] = {"i-clustered-4:topk=5", "q-clustered-4:topk=5",
                                 "shoal-4:topk=5",
                                 "shoal-4:topk=5,keyclusters=1,pool=10,rank=2",
                                 "shoal-4:topk=5,keyclusters=1,pool=10,rank=2,near=2"};
    const float centre = 16, apart = 16;
    for (int64_t at = 0; at < 2 * COUNT_OF(kinds); at++)
        for (int isa = 0; test_isa(isa); isa++) {
            const int64_t kind = at / 2;
            case_spec spec = {.attention = spelled(kinds[kind]),
                              .key_bias = at % 2 ? PAIRS_SHARED : PAIRS_NONE,
                              .batch = 1,
                              .heads = 1,
                              .queries = kind == 4 ? 60 : 40,
                              .keys = 60,
                              .dim = 4,
                              .value_dim = 3,
                              .scale = 1,
                              .own_groups = true,
                              .seed = 3};
            attention_case c = case_create(&spec);
            for (int64_t e = 0; e < c.k.elements; e++)
                c.k.data[e] = e % spec.dim ? c.k.data[e] / 8 : e / spec.dim < 5;
            for (int64_t i = 0; i < spec.queries; i++) {
                c.q.data[i * spec.dim] = centre + (i % 2 ? apart : -apart);
                c.groups[i] = (int32_t)i / 15;
            }
            case_run_on(test_isa(isa), 2, &c);
            check_everything(&c, c.plan);
            case_destroy(&c);
        }
}

/* Sharp scores and random options of shoal: corrections are large, and the remainder of
   a key cluster may be a thousandth of its sum. Scores of hundreds are rounded too, so
   that 1e-5 cannot be reached. */
static void sharp_tilts(void **state) {
    enum { PROBLEMS = 320 };
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        case_spec spec = {.attention = random_attention(SHOAL_KIND_SHOAL, seed),
                          .batch = 1,
                          .heads = 1,
                          .queries = test_pick(seed, 1, 20, 130),
                          .keys = test_pick(seed, 2, 20, 130),
                          .dim = test_pick(seed, 3, 4, 16),
                          .value_dim = 4,
                          .scale = 0.3f + 0.05f * (float)test_pick(seed, 4, 0, 4),
                          .own_groups = seed % 4 == 0,
                          .seed = seed};
        attention_case c = case_create(&spec);
        for (int64_t e = 0; e < c.q.elements; e++)
            c.q.data[e] *= 3;
        for (int64_t e = 0; e < c.k.elements; e++)
            c.k.data[e] *= 3;
        case_run_on(NULL, 1, &c);
        check_forward_within(&c, c.plan, 5e-4);
        case_destroy(&c);
    }
}

/* Without the backward flag, forward gives the same bits, and backward fails. */
static void forward_only(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++) {
        case_spec spec = random_spec((shoal_kind)kind, 4242);
        spec.queries = spec.keys = 24;
        attention_case both = case_create(&spec), only = case_create(&spec);
        shoal_context *context = test_context(NULL, 2);
        shoal_plan *with = case_run(context, &both);
        shoal_plan *without = case_plan(context, &only, 0);
        case_forward(without, &only);
        check_identical(&both.out, &only.out, both.query_lengths, "out");
        shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                     .out = only.out.data,
                                     .dout = only.dout.data,
                                     .dq = only.dq.data};
        assert_int_equal(shoal_backward(without, &only.inputs, &gradients),
                         SHOAL_INVALID);
        assert_true(shoal_context_message(context)[0] != '\0');
        shoal_plan_destroy(with);
        shoal_plan_destroy(without);
        case_destroy(&both);
        case_destroy(&only);
        shoal_context_destroy(context);
    }
}

/* Any subset of the gradients may be requested. */
static void some_gradients(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++)
        for (int wanted = 0; wanted < 8; wanted++) {
            case_spec spec = random_spec((shoal_kind)kind, 777);
            spec.queries = spec.keys = 17;
            attention_case whole = case_create(&spec), part = case_create(&spec);
            case_run_on(NULL, 1, &whole);
            case_forward(whole.plan, &part);
            shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                         .out = part.out.data,
                                         .dout = part.dout.data,
                                         .dq = wanted & 1 ? part.dq.data : NULL,
                                         .dk = wanted & 2 ? part.dk.data : NULL,
                                         .dv = wanted & 4 ? part.dv.data : NULL};
            assert_int_equal(shoal_backward(whole.plan, &part.inputs, &gradients),
                             SHOAL_OK);
            if (wanted & 1)
                check_identical(&whole.dq, &part.dq, part.query_lengths, "dq");
            if (wanted & 2)
                check_identical(&whole.dk, &part.dk, part.key_lengths, "dk");
            if (wanted & 4)
                check_identical(&whole.dv, &part.dv, part.key_lengths, "dv");
            case_destroy(&whole);
            case_destroy(&part);
        }
}

int main(void) {
    struct CMUnitTest tests[TEST_KINDS] = {
        cmocka_unit_test(several_blocks),  cmocka_unit_test(large_scores),
        cmocka_unit_test(climbing_scores), cmocka_unit_test(sharp_groups),
        cmocka_unit_test(sharp_tilts),     cmocka_unit_test(forward_only),
        cmocka_unit_test(some_gradients),
    };
    const int others = 7; /* followed by one per kind */
    for (int kind = 0; shoal_kind_describe(kind); kind++)
        tests[others + kind] =
            (struct CMUnitTest){.name = shoal_kind_describe(kind)->name,
                                .test_func = check_kind,
                                .initial_state = (void *)shoal_kind_describe(kind)};
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
