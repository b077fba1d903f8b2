/* Every kind, forward and backward, against the double-precision reference over random
   problems of awkward sizes, on each instruction set that runs here. */
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

/* Key clusters and what belongs to them, of the kinds that have them. */
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
        attention.groups = SHOAL_GROUPS_KEYS;
    if (facts->has_top_keys && test_pick(seed, 27, 0, 2) == 0)
        attention.normaliser = SHOAL_NORMALISER_QUERY;
    if (facts->has_groups)
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

/* Scores stay within what float can exponentiate to 1e-5: with large vectors, only the
   default scale or a smaller one. */
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
        .own_groups = facts_of(kind)->has_groups && test_pick(seed, 7, 0, 3) == 0,
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

/* A kind that picks another gives its bits, and those are checked. */
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

/* The state is the kind's facts. */
static void check_kind(void **state) {
    shoal_kind kind = ((const shoal_kind_info *)*state)->defaults.kind;
    for (uint64_t problem = 1; problem <= PROBLEMS_PER_KIND; problem++) {
        case_spec spec = random_spec(kind, 100 * (uint64_t)kind + problem);
        check_case(&spec);
    }
}

/* Longer sequences, where blocks of keys and of queries begin and end inside. */
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
        if (spec.attention.keyclusters != 0) /* each query asks for its block's keys */
            spec.queries = 403;
        check_case(&spec);
    }
}

/* Scores in the hundreds: a softmax that does not subtract its maximum overflows. Inputs
   are small integers, so that the scores themselves are exact in float. */
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

/* Eighths: products of them, and means of two, have no rounding. */
static void round_to_eighths(const tensor *t) {
    for (int64_t i = 0; i < t->elements; i++)
        t->data[i] = (float)(int)(t->data[i] * 8) / 8;
}

/* The keys grow along the sequence, so that each part of it has scores far above all that
   came before: what was added up until then must fade, and not overflow. */
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
    /* A tilt of hundreds is rounded, so that key clusters have no part here. */
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

/* Groups whose centroid has nearly all its weight on the top keys, and members that
   score those keys lower and higher than it does: what counts is the other keys' small
   share. Where there are as many queries as keys, near keys are exact as well; and pools
   of all keys, and of a few. */
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

/* Sharp scores and random numbers of shoal: tilts are large, and what the exact keys
   leave of a key cluster may be a thousandth of its sum. Scores of hundreds are rounded
   too, so that 1e-5 is out of reach. */
static void sharp_tilts(void **state) {
    enum { PROBLEMS = 320 };
    for (uint64_t seed = 1; seed <= PROBLEMS; seed++) {
        case_spec spec = {.attention = random_attention(SHOAL_SHOAL, seed),
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

/* Without the backward flag, forward gives the same bits, and backward is refused. */
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
        shoal_gradients gradients = {.out = only.out.data,
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

/* Any subset of the gradients may be asked for. */
static void some_gradients(void **state) {
    for (int kind = 0; shoal_kind_describe(kind); kind++)
        for (int wanted = 0; wanted < 8; wanted++) {
            case_spec spec = random_spec((shoal_kind)kind, 777);
            spec.queries = spec.keys = 17;
            attention_case whole = case_create(&spec), part = case_create(&spec);
            case_run_on(NULL, 1, &whole);
            case_forward(whole.plan, &part);
            shoal_gradients gradients = {.out = part.out.data,
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
    const int others = 7; /* the kinds come behind them */
    for (int kind = 0; shoal_kind_describe(kind); kind++)
        tests[others + kind] =
            (struct CMUnitTest){.name = shoal_kind_describe(kind)->name,
                                .test_func = check_kind,
                                .initial_state = (void *)shoal_kind_describe(kind)};
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
