/* One sequence over several ranks gives the result of one process: the same clusters
   and exact keys, and outputs and gradients up to rounding; the communication does not
   grow with the length. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "hub.h"
#include "support.h"

enum { MOST_RANKS = 7, MOST_BATCH = 2 };

typedef struct {
    shoal_problem problem; /* of one process, contiguous */
    shoal_attention attention;
    shoal_inputs inputs;
    int64_t query_lengths[MOST_BATCH], key_lengths[MOST_BATCH];
    int ranks, threads;
    int64_t query_cuts[MOST_RANKS + 1], key_cuts[MOST_RANKS + 1];
    float *out, *dout, *dq, *dk, *dv; /* of one process */
    float *outs, *dqs, *dks, *dvs;    /* of the ranks, combined */
    int32_t *groups, *top;            /* of one process */
    int32_t *groups_of_ranks, *tops;  /* [ranks] of the above */
    shoal_status status[MOST_RANKS];
    char message[MOST_RANKS][256];
} distributed_case;

static float *random_floats(int64_t count, uint64_t seed) {
    float *x = test_memory(count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)test_normal(test_hash(seed, 7, (uint64_t)i));
    return x;
}

static int64_t cells(const distributed_case *c, int64_t positions, int64_t features) {
    return c->problem.batch * c->problem.heads * positions * features;
}

static int64_t tops_size(const distributed_case *c) {
    return c->problem.batch * c->problem.heads * c->attention.clusters *
           (int64_t)c->attention.topk;
}

/* Copies rows first .. last - 1 of every [..][positions][features] to a contiguous
   part, or back. */
static void move_rows(void *whole, void *part, int64_t units, int64_t positions,
                      int64_t first, int64_t last, size_t row, int back) {
    for (int64_t u = 0; u < units; u++) {
        char *w = (char *)whole + (size_t)(u * positions + first) * row;
        char *p = (char *)part + (size_t)(u * (last - first)) * row;
        if (last > first)
            memcpy(back ? w : p, back ? p : w, (size_t)(last - first) * row);
    }
}

static void *part_of(const void *whole, int64_t units, int64_t positions, int64_t first,
                     int64_t last, size_t row) {
    void *part = test_memory(units * (last - first) + 1, row);
    move_rows((void *)whole, part, units, positions, first, last, row, 0);
    return part;
}

static int64_t within(int64_t length, int64_t first, int64_t last) {
    return length < first ? 0 : length < last ? length - first : last - first;
}

static void run_rank(void *shared, shoal_transport *transport) {
    distributed_case *c = shared;
    const int p = transport->rank;
    const int64_t qf = c->query_cuts[p], ql = c->query_cuts[p + 1], n = ql - qf;
    const int64_t kf = c->key_cuts[p], kl = c->key_cuts[p + 1], s = kl - kf;
    const int64_t U = c->problem.batch * c->problem.heads;
    const int64_t V = c->problem.batch * c->problem.kv_heads;
    const int64_t N = c->problem.queries, S = c->problem.keys;
    const size_t D = (size_t)c->problem.dim * 4, Dv = (size_t)c->problem.value_dim * 4;
    int64_t queries[MOST_BATCH], keys[MOST_BATCH];
    shoal_problem problem = c->problem;
    problem.queries = n;
    problem.keys = s;
    for (int64_t b = 0; b < problem.batch; b++) {
        queries[b] = within(c->query_lengths[b], qf, ql);
        keys[b] = within(c->key_lengths[b], kf, kl);
    }
    float *q = part_of(c->inputs.q, U, N, qf, ql, D);
    float *k = part_of(c->inputs.k, V, S, kf, kl, D);
    float *v = part_of(c->inputs.v, V, S, kf, kl, Dv);
    float *dout = part_of(c->dout, U, N, qf, ql, Dv);
    int32_t *brought = c->inputs.clusters ? part_of(c->inputs.clusters, U, N, qf, ql, 4)
                                          : NULL;
    float *out = test_memory(U * n + 1, Dv), *dq = test_memory(U * n + 1, D);
    float *dk = test_memory(V * s + 1, D), *dv = test_memory(V * s + 1, Dv);
    const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .query_lengths = queries,
                                 .key_lengths = keys,
                                 .clusters = brought};
    const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                       .out = out,
                                       .dout = dout,
                                       .dq = dq,
                                       .dk = dk,
                                       .dv = dv};
    shoal_context *context;
    shoal_plan *plan = NULL;
    shoal_context_create(&(shoal_options){.size = sizeof(shoal_options),
                                          .threads = c->threads},
                         &context);
    shoal_status status = shoal_plan_create_over(transport, context, &problem,
                                                 &c->attention, SHOAL_WITH_BACKWARD,
                                                 &plan);
    if (status == SHOAL_OK)
        status = shoal_forward(plan, &inputs, out);
    if (status == SHOAL_OK)
        status = shoal_backward(plan, &inputs, &gradients);
    c->status[p] = status;
    snprintf(c->message[p], sizeof c->message[p], "%s", shoal_context_message(context));
    if (status == SHOAL_OK) {
        move_rows(c->outs, out, U, N, qf, ql, Dv, 1);
        move_rows(c->dqs, dq, U, N, qf, ql, D, 1);
        move_rows(c->dks, dk, V, S, kf, kl, D, 1);
        move_rows(c->dvs, dv, V, S, kf, kl, Dv, 1);
        if (shoal_plan_clusters(plan, NULL))
            move_rows(c->groups_of_ranks, (void *)shoal_plan_clusters(plan, NULL), U, N,
                      qf, ql, 4, 1);
        if (shoal_plan_top_keys(plan, NULL))
            memcpy(c->tops + p * tops_size(c), shoal_plan_top_keys(plan, NULL),
                   sizeof(int32_t) * (size_t)tops_size(c));
    }
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    void *all[] = {q, k, v, dout, brought, out, dq, dk, dv};
    for (int64_t i = 0; i < COUNT_OF(all); i++)
        free(all[i]);
}

static void run_alone(distributed_case *c) {
    shoal_context *context;
    shoal_plan *plan;
    shoal_context_create(&(shoal_options){.size = sizeof(shoal_options), .threads = 1},
                         &context);
    const shoal_gradients gradients = {.size = sizeof(shoal_gradients),
                                       .out = c->out,
                                       .dout = c->dout,
                                       .dq = c->dq,
                                       .dk = c->dk,
                                       .dv = c->dv};
    assert_int_equal(shoal_plan_create(context, &c->problem, &c->attention,
                                       SHOAL_WITH_BACKWARD, &plan),
                     SHOAL_OK);
    assert_int_equal(shoal_forward(plan, &c->inputs, c->out), SHOAL_OK);
    assert_int_equal(shoal_backward(plan, &c->inputs, &gradients), SHOAL_OK);
    if (shoal_plan_clusters(plan, NULL))
        memcpy(c->groups, shoal_plan_clusters(plan, NULL),
               sizeof(int32_t) * (size_t)cells(c, c->problem.queries, 1));
    if (shoal_plan_top_keys(plan, NULL))
        memcpy(c->top, shoal_plan_top_keys(plan, NULL),
               sizeof(int32_t) * (size_t)tops_size(c));
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
}

static void create(distributed_case *c, uint64_t seed) {
    const shoal_problem *p = &c->problem;
    const int64_t q = cells(c, p->queries, p->dim),
                  o = cells(c, p->queries, p->value_dim);
    const int64_t k = p->batch * p->kv_heads * p->keys * p->dim;
    const int64_t v = p->batch * p->kv_heads * p->keys * p->value_dim;
    const int64_t n = cells(c, p->queries, 1) + 1;
    c->inputs = (shoal_inputs){.size = sizeof(shoal_inputs),
                               .q = random_floats(q + 1, seed),
                               .k = random_floats(k + 1, seed + 1),
                               .v = random_floats(v + 1, seed + 2),
                               .query_lengths = c->query_lengths,
                               .key_lengths = c->key_lengths};
    c->dout = random_floats(o + 1, seed + 3);
    float **rows[] = {&c->out, &c->outs, &c->dq, &c->dqs,
                      &c->dk,  &c->dks,  &c->dv, &c->dvs};
    const int64_t sizes[] = {o, o, q, q, k, k, v, v};
    for (int64_t i = 0; i < COUNT_OF(rows); i++)
        *rows[i] = test_memory(sizes[i] + 1, sizeof(float));
    c->groups = test_memory(n, sizeof(int32_t));
    c->groups_of_ranks = test_memory(n, sizeof(int32_t));
    c->top = test_memory(tops_size(c) + 1, sizeof(int32_t));
    c->tops = test_memory(MOST_RANKS * tops_size(c) + 1, sizeof(int32_t));
}

static void destroy(distributed_case *c) {
    void *all[] = {(void *)c->inputs.q,
                   (void *)c->inputs.k,
                   (void *)c->inputs.v,
                   (void *)c->inputs.clusters,
                   c->dout,
                   c->out,
                   c->outs,
                   c->dq,
                   c->dqs,
                   c->dk,
                   c->dks,
                   c->dv,
                   c->dvs,
                   c->groups,
                   c->groups_of_ranks,
                   c->top,
                   c->tops};
    for (int64_t i = 0; i < COUNT_OF(all); i++)
        free(all[i]);
}

/* |a - b| / |b|, both as one vector, is at most `most`. With one key gradients are 0 up
   to rounding. */
static void check_near(const char *name, const char *what, const float *a, const float *b,
                       int64_t count, double most) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)b[i], 2);
    }
    if (!(sqrt(difference) <= most * sqrt(size) + 1e-6 * sqrt((double)count)))
        fail_msg("%s, %s: relative difference %g", name, what, sqrt(difference / size));
}

static void check_case(const distributed_case *c, const char *name) {
    const shoal_problem *p = &c->problem;
    for (int r = 0; r < c->ranks; r++)
        if (c->status[r] != SHOAL_OK)
            fail_msg("%s, rank %d: %s", name, r, c->message[r]);
    if (c->attention.kind != SHOAL_KIND_FULL)
        assert_memory_equal(c->groups_of_ranks, c->groups,
                            sizeof(int32_t) * (size_t)cells(c, p->queries, 1));
    for (int r = 0; r < c->ranks && c->attention.topk > 0; r++)
        assert_memory_equal(c->tops + r * tops_size(c), c->top,
                            sizeof(int32_t) * (size_t)tops_size(c));
    check_near(name, "out", c->outs, c->out, cells(c, p->queries, p->value_dim), 1e-5);
    check_near(name, "dq", c->dqs, c->dq, cells(c, p->queries, p->dim), 1e-4);
    const int64_t keys = p->batch * p->kv_heads * p->keys;
    check_near(name, "dk", c->dks, c->dk, keys * p->dim, 1e-4);
    check_near(name, "dv", c->dvs, c->dv, keys * p->value_dim, 1e-4);
}

static void cut(int64_t *cuts, int ranks, int64_t n, uint64_t seed) {
    cuts[0] = 0;
    for (int p = 1; p < ranks; p++) /* increasing; some ranks get nothing */
        cuts[p] = test_pick(seed, (uint64_t)p, 0, 3)
                      ? test_pick(seed, (uint64_t)p + 50, cuts[p - 1], n)
                      : cuts[p - 1];
    cuts[ranks] = n;
}

static void run_and_check(distributed_case *c, const char *name) {
    c->inputs.query_lengths = c->query_lengths;
    c->inputs.key_lengths = c->key_lengths;
    run_alone(c);
    hub_run(c->ranks, 0, run_rank, c);
    check_case(c, name);
    destroy(c);
}

static shoal_attention parsed(const char *kind) {
    shoal_context *context;
    shoal_attention attention;
    shoal_context_create(NULL, &context);
    assert_int_equal(shoal_attention_parse(context, kind, &attention), SHOAL_OK);
    shoal_context_destroy(context);
    return attention;
}

static void random_case(const char *kind, int ranks, uint64_t seed) {
    distributed_case c = {.ranks = ranks,
                          .threads = 1 + (int)(seed % 2),
                          .attention = parsed(kind)};
    const int64_t most = seed % 5 ? 300 : 20;
    c.problem = (shoal_problem){.size = sizeof(shoal_problem),
                                .batch = test_pick(seed, 1, 1, 2),
                                .kv_heads = test_pick(seed, 2, 1, 2),
                                .queries = test_pick(seed, 3, 1, most),
                                .keys = test_pick(seed, 4, 1, most),
                                .dim = test_pick(seed, 5, 1, 20),
                                .value_dim = test_pick(seed, 6, 1, 20)};
    c.problem.heads = c.problem.kv_heads * test_pick(seed, 7, 1, 2);
    for (int64_t b = 0; b < c.problem.batch; b++) {
        const uint64_t at = (uint64_t)b;
        c.query_lengths[b] = seed % 3 ? c.problem.queries
                                      : test_pick(seed, 8 + at, 0, c.problem.queries);
        c.key_lengths[b] = seed % 3 ? c.problem.keys
                                    : test_pick(seed, 20 + at, 0, c.problem.keys);
    }
    cut(c.query_cuts, ranks, c.problem.queries, seed);
    cut(c.key_cuts, ranks, c.problem.keys, seed + 1);
    create(&c, seed);
    if (seed % 7 == 0 && c.attention.kind != SHOAL_KIND_FULL) {
        int32_t *groups = test_memory(cells(&c, c.problem.queries, 1), sizeof *groups);
        for (int64_t i = 0; i < cells(&c, c.problem.queries, 1); i++)
            groups[i] =
                (int32_t)test_pick(seed, 1000 + (uint64_t)i, 0, c.attention.clusters - 1);
        c.inputs.clusters = groups;
    }
    char name[160];
    snprintf(name, sizeof name, "%s, %d ranks, seed %d", kind, ranks, (int)seed);
    run_and_check(&c, name);
}

static const int ranks_tried[] = {1, 2, 3, 4, 7};

/* One head of 8 features, as many keys as queries, divided evenly. */
static distributed_case fixed_case(const char *kind, int64_t n, int ranks,
                                   uint64_t seed) {
    distributed_case c = {.ranks = ranks, .threads = 1, .attention = parsed(kind)};
    c.problem = (shoal_problem){.size = sizeof(shoal_problem),
                                .batch = 1,
                                .heads = 1,
                                .kv_heads = 1,
                                .queries = n,
                                .keys = n,
                                .dim = 8,
                                .value_dim = 8};
    c.query_lengths[0] = c.key_lengths[0] = n;
    for (int p = 0; p <= ranks; p++)
        c.query_cuts[p] = c.key_cuts[p] = p * n / ranks;
    create(&c, seed);
    return c;
}

static void every_kind(void **state) {
    const char *kinds[] = {"clustered-5",
                           "i-clustered-5:topk=3",
                           "i-clustered-9:topk=40",
                           "i-clustered-7:topk=4,bits=70",
                           "clustered-100",
                           "q-clustered-6",
                           "i-clustered-8:groups=keys,rank=4",
                           "i-clustered-5:topk=2,normaliser=query",
                           "full"};
    (void)state;
    for (int64_t k = 0; k < COUNT_OF(kinds); k++)
        for (int64_t r = 0; r < COUNT_OF(ranks_tried); r++)
            for (uint64_t seed = 0; seed < 8; seed++)
                random_case(kinds[k], ranks_tried[r],
                            100 * seed + (uint64_t)(10 * k + r));
}

/* Few distinct queries and keys: centres lose their members and move, and scores tie,
   on every rank as in one process. */
static void alike(void **state) {
    (void)state;
    for (int64_t r = 0; r < COUNT_OF(ranks_tried); r++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            distributed_case c =
                fixed_case("i-clustered-20:topk=5", 400, ranks_tried[r], seed);
            for (int64_t i = 0; i < 400 * c.problem.dim; i++) {
                const uint64_t row = (uint64_t)(i / c.problem.dim);
                const uint64_t like = test_hash(seed, 1, row) % 25;
                const float x =
                    (float)test_normal(test_hash(seed, like, (uint64_t)i % 8));
                ((float *)c.inputs.q)[i] = x;
                ((float *)c.inputs.k)[i] = x;
            }
            run_and_check(&c, "alike");
        }
}

/* Scores so sharp that the weight of the other keys is lost by cancellation: they are
   summed directly, on all ranks. */
static void sharp(void **state) {
    (void)state;
    for (int64_t r = 0; r < COUNT_OF(ranks_tried); r++)
        for (uint64_t seed = 0; seed < 4; seed++) {
            distributed_case c =
                fixed_case("q-clustered-8:topk=5", 300, ranks_tried[r], seed);
            for (int64_t i = 0; i < 300 * c.problem.dim; i++)
                ((float *)c.inputs.q)[i] *= 20;
            run_and_check(&c, "sharp");
        }
}

/* More than a chunk of keys per rank, with the paper's numbers. */
static void long_sequence(void **state) {
    (void)state;
    const char *kinds[] = {"i-clustered-100", "q-clustered-100"};
    for (int64_t i = 0; i < COUNT_OF(kinds); i++) {
        distributed_case c = fixed_case(kinds[i], 20000, 2, 1);
        c.query_cuts[1] = c.key_cuts[1] = 18001;
        run_and_check(&c, kinds[i]);
    }
}

/* One rank has all keys: it receives the gradients of their rows in turn. */
static void one_has_the_keys(void **state) {
    (void)state;
    for (int owner = 0; owner < MOST_RANKS; owner += 3) {
        distributed_case c = fixed_case("i-clustered-6:topk=9", 500, MOST_RANKS, 5);
        for (int p = 0; p <= MOST_RANKS; p++)
            c.key_cuts[p] = p <= owner ? 0 : 500;
        run_and_check(&c, "one has the keys");
    }
}

/* A transport of many ranks that are all like this one. */
static shoal_status gather_alike(shoal_transport *self, int64_t bytes, const void *own,
                                 void *all) {
    for (int p = 0; p < self->ranks; p++)
        memcpy((char *)all + p * bytes, own, (size_t)bytes);
    return SHOAL_OK;
}

static shoal_status no_sum(shoal_transport *self, shoal_sum_type type, int64_t count,
                           void *values) {
    (void)self, (void)type, (void)count, (void)values;
    return SHOAL_IO;
}

static shoal_status no_gather(shoal_transport *self, const int64_t *sizes,
                              const void *own, void *all) {
    (void)self, (void)sizes, (void)own, (void)all;
    return SHOAL_IO;
}

static shoal_status no_exchange(shoal_transport *self, const int64_t *to,
                                const void *send, const int64_t *from, void *receive) {
    (void)self, (void)to, (void)send, (void)from, (void)receive;
    return SHOAL_IO;
}

static size_t workspace_over(int ranks) {
    const shoal_attention attention = parsed("i-clustered-100");
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = 6,
                                   .queries = 256,
                                   .keys = 256,
                                   .dim = 64,
                                   .value_dim = 64};
    shoal_transport over = {.ranks = ranks,
                            .sum = no_sum,
                            .gather = gather_alike,
                            .gather_parts = no_gather,
                            .exchange = no_exchange};
    shoal_context *context;
    shoal_plan *plan;
    shoal_context_create(&(shoal_options){.size = sizeof(shoal_options), .threads = 1},
                         &context);
    assert_int_equal(shoal_plan_create_over(&over, context, &problem, &attention,
                                            SHOAL_WITH_BACKWARD, &plan),
                     SHOAL_OK);
    const size_t bytes = shoal_plan_workspace(plan);
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
    return bytes;
}

/* The memory of a rank does not grow with their number. */
static void memory_does_not_grow(void **state) {
    (void)state;
    assert_in_range(workspace_over(600), 1, workspace_over(4) * 11 / 10);
    assert_in_range(workspace_over(4096), 1, workspace_over(4) * 3 / 2);
}

/* The amount that rank 0 sends does not depend on the number of positions. */
static void bytes_do_not_grow(void **state) {
    int64_t sent[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        distributed_case c =
            fixed_case("i-clustered-30:topk=4,iterations=4", i ? 16384 : 4096, 4, 3);
        /* Exact keys that no other cluster has: the maximum amount. */
        sent[i] = hub_run(c.ranks, 0, run_rank, &c);
        destroy(&c);
    }
    assert_in_range(sent[1], sent[0] / 2, sent[0] * 5 / 4);
}

/* A failing call of the transport ends the operation on every rank, with a message. */
static void transport_fails(void **state) {
    const char *kinds[] = {"i-clustered-9:topk=4", "clustered-9", "full"};
    (void)state;
    for (int64_t k = 0; k < COUNT_OF(kinds); k++)
        for (int64_t at = 1, done = 0; !done; at++) {
            distributed_case c = fixed_case(kinds[k], 60, 3, 1);
            hub_run(c.ranks, at, run_rank, &c);
            done = c.status[0] == SHOAL_OK;
            for (int p = 0; p < c.ranks; p++)
                assert_int_equal(c.status[p], done ? SHOAL_OK : SHOAL_IO);
            assert_true(done || strstr(c.message[1], "the test wants it so"));
            destroy(&c);
            assert_in_range(at, 1, 200);
        }
}

/* ---- Errors ----------------------------------------------------------------------- */

typedef struct {
    int what;
    shoal_status status[3], expected[3];
    char message[3][256];
} refusal;

enum {
    OTHER_KIND,
    OTHER_DIM,
    ONE_SPELLS_WRONG,
    NO_SUCH_KIND,
    SHOAL_IS_NOT,
    CAUSAL,
    BAD_LENGTH,
    GROUPS_ON_ONE,
    BIAS,
    REFUSALS
};

static void refused_rank(void *shared, shoal_transport *transport) {
    refusal *r = shared;
    const int p = transport->rank, one = p == 1;
    float rows[40] = {0}, out[40];
    int32_t groups[10] = {0};
    const int64_t lengths[1] = {r->what == BAD_LENGTH && one ? 11 : 10};
    shoal_problem problem = {.size = sizeof(shoal_problem),
                             .batch = 1,
                             .heads = 1,
                             .queries = 10,
                             .keys = 10,
                             .dim = 4,
                             .value_dim = 4};
    const char *kind = "i-clustered-3";
    shoal_context *context;
    shoal_attention attention;
    shoal_plan *plan;
    shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                           .q = rows,
                           .k = rows,
                           .v = rows,
                           .query_lengths = lengths};
    shoal_context_create(&(shoal_options){.size = sizeof(shoal_options), .threads = 1},
                         &context);
    if (r->what == OTHER_KIND && one)
        kind = "i-clustered-4";
    if (r->what == NO_SUCH_KIND)
        kind = "lsh-1";
    if (r->what == SHOAL_IS_NOT)
        kind = "shoal-3";
    if (r->what == CAUSAL) {
        kind = "full";
        problem.causal = 1;
    }
    if (r->what == OTHER_DIM && one)
        problem.dim = 3;
    if (r->what == GROUPS_ON_ONE && one)
        inputs.clusters = groups;
    if (r->what == BIAS)
        inputs.key_bias = rows;
    shoal_attention_parse(context, kind, &attention);
    if (r->what == ONE_SPELLS_WRONG && one)
        attention.clusters = -5;
    r->status[p] =
        shoal_plan_create_over(transport, context, &problem, &attention, 0, &plan);
    if (r->status[p] == SHOAL_OK)
        r->status[p] = shoal_forward(plan, &inputs, out);
    snprintf(r->message[p], sizeof r->message[p], "%s", shoal_context_message(context));
    shoal_plan_destroy(plan);
    shoal_context_destroy(context);
}

/* Invalid arguments of one rank are rejected on all, without a deadlock. */
static void refusals(void **state) {
    const char *said[REFUSALS] = {
        [OTHER_KIND] = "rank 1 has another version",
        [OTHER_DIM] = "rank 1 has another version",
        [ONE_SPELLS_WRONG] = "rank 1 of 3 rejected",
        [NO_SUCH_KIND] = "kinds that do: full, clustered-C, i-clustered-C, q-clustered-C",
        [SHOAL_IS_NOT] = "shoal-C does not support several processes",
        [CAUSAL] = "without causal order",
        [BAD_LENGTH] = "rank 1 of 3 rejected",
        [GROUPS_ON_ONE] = "inputs.clusters are given on rank 1",
        [BIAS] = "cannot have biases"};
    (void)state;
    for (int what = 0; what < REFUSALS; what++) {
        refusal r = {.what = what};
        hub_run(3, 0, refused_rank, &r);
        for (int p = 0; p < 3; p++)
            assert_int_equal(r.status[p], SHOAL_INVALID);
        if (!strstr(r.message[0], said[what]))
            fail_msg("case %d: \"%s\"", what, r.message[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kind),
                                       cmocka_unit_test(alike),
                                       cmocka_unit_test(sharp),
                                       cmocka_unit_test(long_sequence),
                                       cmocka_unit_test(one_has_the_keys),
                                       cmocka_unit_test(bytes_do_not_grow),
                                       cmocka_unit_test(memory_does_not_grow),
                                       cmocka_unit_test(transport_fails),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
