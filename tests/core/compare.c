/* Compares the library's results with the exact formulas. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "attention/lsh.h"
#include "cases.h"

#include "support.h"

static const double FORWARD_TOLERANCE = 1e-5, GRADIENT_TOLERANCE = 1e-4;
/* Errors are relative to the largest exact entry. If a softmax has nearly converged to
   one key, its gradient is the difference of terms of order 1, and its rounding error
   is that of the terms. */
static const double SETTLED = 1e-9, ALL_TERMS = 1, FEW_TERMS = 5e-2;
/* Scores closer than this may be ordered either way. */
static const double SCORE_ROUNDING = 2e-5;

/* ---- One head in double precision ---------------------------------------------- */

/* The hashes are the library's own. */
static void load_buckets(const attention_case *c, shoal_plan *plan, int64_t b, int64_t h,
                         exact_head *head) {
    int32_t *buckets = test_memory(head->queries, sizeof *buckets);
    for (int64_t round = 0; head->queries > 0 && round < head->attention.rounds;
         round++) {
        sh_lsh_buckets(plan, &c->inputs, b, h, round, buckets);
        exact_set_buckets(head, round, buckets);
    }
    free(buckets);
}

exact_head *case_head(const attention_case *c, shoal_plan *plan, int64_t b, int64_t h) {
    exact_head *head =
        exact_load(&c->problem, &c->inputs, plan, &c->spec.attention, b, h);
    assert_non_null(head);
    if (plan)
        load_buckets(c, plan, b, h, head);
    return head;
}

/* ---- Differences of tensors ------------------------------------------------------- */

typedef struct {
    double largest, error; /* over all exact entries; of the difference */
} deviation;

static void compare_row(deviation *total, const double *expected, const float *row,
                        int64_t count) {
    for (int64_t f = 0; f < count; f++) {
        double error = fabs(expected[f] - (double)row[f]);
        total->largest = fmax(total->largest, fabs(expected[f]));
        total->error = isnan(error) ? INFINITY : fmax(total->error, error);
    }
}

static void compare_rows(deviation *total, const double *expected, const tensor *t,
                         int64_t b, int64_t h, int64_t positions) {
    for (int64_t i = 0; i < positions; i++)
        compare_row(total, expected + i * t->features, tensor_row(t, b, h, i),
                    t->features);
}

static void check_deviation(deviation d, double tolerance, const char *name,
                            const attention_case *c) {
    double size = d.largest > SETTLED ? fmax(d.largest, FEW_TERMS) : ALL_TERMS;
    double allowed = tolerance * size;
    if (!(d.error <= allowed))
        fail_msg("%s is off by %.3g where %.3g is allowed: %s", name, d.error, allowed,
                 case_text(c));
}

/* ---- Forward and backward ------------------------------------------------------ */

/* Whether rounding could change the query's own choice of keys. */
static bool is_undecided(const exact_head *head) {
    return head->margin < SCORE_ROUNDING;
}

static void calm_head(attention_case *c, int64_t b, int64_t h) {
    exact_head *head = case_head(c, NULL, b, h);
    for (int64_t i = 0; exact_is_known(head) && i < head->queries; i++) {
        exact_row(head, i);
        for (int64_t f = 0; is_undecided(head) && f < c->dout.features; f++)
            tensor_row(&c->dout, b, h, i)[f] = 0;
    }
    exact_destroy(head);
}

void case_calm(attention_case *c) {
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++)
            calm_head(c, b, h);
}

static void compare_forward(const attention_case *c, shoal_plan *plan, int64_t b,
                            int64_t h, deviation *total) {
    exact_head *head = case_head(c, plan, b, h);
    double *out = test_memory(head->value_dim, sizeof *out);
    for (int64_t i = 0; i < head->queries; i++) {
        exact_output(head, i, out);
        if (!is_undecided(head))
            compare_row(total, out, tensor_row(&c->out, b, h, i), head->value_dim);
    }
    free(out);
    exact_destroy(head);
}

void check_forward_within(const attention_case *c, shoal_plan *plan, double tolerance) {
    deviation total = {0};
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++)
            compare_forward(c, plan, b, h, &total);
    check_deviation(total, tolerance, "out", c);
}

void check_forward(const attention_case *c, shoal_plan *plan) {
    check_forward_within(c, plan, FORWARD_TOLERANCE);
}

/* Gradients of one head: sets dq [N][D]; adds to dk [S][D] and dv [S][Dv], because
   several query heads share a key/value head. */
static void add_gradients(const attention_case *c, shoal_plan *plan, int64_t b, int64_t h,
                          double *dq, double *dk, double *dv) {
    exact_head *head = case_head(c, plan, b, h);
    double *dout = test_memory(head->value_dim, sizeof *dout);
    for (int64_t i = 0; i < head->queries; i++) {
        for (int64_t f = 0; f < head->value_dim; f++)
            dout[f] = (double)tensor_row(&c->dout, b, h, i)[f];
        exact_output_gradient(head, i, dout, dq, dk, dv);
    }
    free(dout);
    exact_destroy(head);
}

static void compare_kv_head(const attention_case *c, shoal_plan *plan, int64_t b,
                            int64_t kv_head, deviation totals[3]) {
    int64_t sharing = c->spec.heads / case_kv_heads(c);
    double *dk = test_memory(c->spec.keys * c->spec.dim, sizeof *dk);
    double *dv = test_memory(c->spec.keys * c->spec.value_dim, sizeof *dv);
    for (int64_t h = kv_head * sharing; h < (kv_head + 1) * sharing; h++) {
        double *dq = test_memory(c->spec.queries * c->spec.dim, sizeof *dq);
        add_gradients(c, plan, b, h, dq, dk, dv);
        compare_rows(&totals[0], dq, &c->dq, b, h, c->query_lengths[b]);
        free(dq);
    }
    compare_rows(&totals[1], dk, &c->dk, b, kv_head, c->key_lengths[b]);
    compare_rows(&totals[2], dv, &c->dv, b, kv_head, c->key_lengths[b]);
    free(dk);
    free(dv);
}

void check_gradients(const attention_case *c, shoal_plan *plan) {
    static const char *const names[] = {"dq", "dk", "dv"};
    deviation totals[3] = {{0, 0}};
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t kv_head = 0; kv_head < case_kv_heads(c); kv_head++)
            compare_kv_head(c, plan, b, kv_head, totals);
    for (int i = 0; i < 3; i++)
        check_deviation(totals[i], GRADIENT_TOLERANCE, names[i], c);
}

/* dbias [N][S] and its sum over the queries, dkey_bias [S]; padding is 0. */
static void exact_dbias(const attention_case *c, shoal_plan *plan, int64_t b, int64_t h,
                        double *dbias, double *dkey_bias) {
    exact_head *head = case_head(c, plan, b, h);
    const int64_t S = c->spec.keys;
    double *dout = test_memory(head->value_dim, sizeof *dout);
    double *dq = test_memory(c->spec.queries * c->spec.dim, sizeof *dq);
    double *dk = test_memory(S * c->spec.dim, sizeof *dk);
    double *dv = test_memory(S * c->spec.value_dim, sizeof *dv);
    head->dbias = test_memory(head->queries * head->keys, sizeof(double));
    for (int64_t i = 0; i < head->queries; i++) {
        for (int64_t f = 0; f < head->value_dim; f++)
            dout[f] = (double)tensor_row(&c->dout, b, h, i)[f];
        exact_output_gradient(head, i, dout, dq, dk, dv);
        for (int64_t l = 0; l < head->keys; l++) {
            dbias[i * S + l] = head->dbias[i * head->keys + l];
            dkey_bias[l] += dbias[i * S + l];
        }
    }
    free(dout), free(dq), free(dk), free(dv), free(head->dbias);
    exact_destroy(head);
}

void check_dbias(const attention_case *c, shoal_plan *plan) {
    const int64_t N = c->spec.queries, S = c->spec.keys;
    deviation total = {0}, of_keys = {0};
    for (int64_t at = 0; at < c->spec.batch * c->spec.heads; at++) {
        double *dbias = test_memory(N * S, sizeof *dbias);
        double *dkey_bias = test_memory(S, sizeof *dkey_bias);
        exact_dbias(c, plan, at / c->spec.heads, at % c->spec.heads, dbias, dkey_bias);
        for (int64_t i = 0; i < N && c->dbias; i++)
            compare_row(&total, dbias + i * S, c->dbias + (at * N + i) * S, S);
        if (c->dkey_bias)
            compare_row(&of_keys, dkey_bias, c->dkey_bias + at * S, S);
        free(dbias), free(dkey_bias);
    }
    check_deviation(total, GRADIENT_TOLERANCE, "dbias", c);
    check_deviation(of_keys, GRADIENT_TOLERANCE, "dkey_bias", c);
}

/* ---- Clusters and exact keys ------------------------------------------------------ */

/* The attention with the numbers that the library chooses for the sizes of sequence
   b. */
static shoal_attention numbers_of(const attention_case *c, const shoal_plan *plan,
                                  int64_t b) {
    shoal_attention picked;
    shoal_problem problem = c->problem;
    problem.queries = c->query_lengths[b];
    problem.keys = c->key_lengths[b];
    assert_int_equal(shoal_plan_picked(plan, NULL, &picked), SHOAL_OK);
    return c->spec.attention.kind == SHOAL_KIND_SHOAL
               ? sh_attention_resolve(&c->spec.attention, &problem)
               : picked;
}

static void check_groups_of_head(const attention_case *c, int32_t clusters,
                                 const int32_t *groups, int64_t b,
                                 const int32_t *brought) {
    int64_t live = c->query_lengths[b];
    int64_t *members = test_memory(clusters, sizeof *members);
    for (int64_t i = 0; i < c->spec.queries; i++) {
        if (i >= live) {
            assert_int_equal(groups[i], -1);
            continue;
        }
        assert_in_range(groups[i], 0, clusters - 1);
        members[groups[i]]++;
        if (brought)
            assert_int_equal(groups[i], brought[i]);
    }
    for (int32_t j = 0; j < clusters && live <= clusters && !brought; j++)
        assert_true(members[j] <= 1);
    free(members);
}

void check_groups(const attention_case *c, shoal_plan *plan) {
    const int32_t *groups = shoal_plan_clusters(plan, NULL);
    if (!facts_of(c->spec.attention.kind)->has_clusters) {
        assert_null(groups);
        return;
    }
    assert_non_null(groups);
    for (int64_t head = 0; head < c->spec.batch * c->spec.heads; head++) {
        const int64_t first = head * c->spec.queries, b = head / c->spec.heads;
        check_groups_of_head(c, numbers_of(c, plan, b).clusters, groups + first, b,
                             c->groups ? c->groups + first : NULL);
    }
}

/* top: [topk]; scores: [S], the centroid's. Marks the keys in top in `chosen`, [S]. */
static void check_top_order(const exact_head *head, const int32_t *top,
                            const double *scores, bool *chosen) {
    for (int64_t rank = 0; rank < head->attention.topk; rank++) {
        if (rank >= head->keys) {
            assert_int_equal(top[rank], -1);
            continue;
        }
        assert_in_range(top[rank], 0, head->keys - 1);
        assert_false(chosen[top[rank]]);
        chosen[top[rank]] = true;
        if (rank > 0)
            assert_true(scores[top[rank]] <= scores[top[rank - 1]] + SCORE_ROUNDING);
    }
}

static void check_top_of_group(exact_head *head, int32_t group) {
    double *scores = test_memory(head->keys, sizeof *scores), worst = INFINITY;
    bool *chosen = test_memory(head->keys, sizeof *chosen);
    const int32_t *top = head->top_keys + group * head->attention.topk;
    if (exact_centroid(head, group) > 1) { /* trivial for one member */
        for (int64_t l = 0; l < head->keys; l++)
            scores[l] = exact_score(head, head->centroid, l);
        check_top_order(head, top, scores, chosen);
        for (int64_t l = 0; l < head->keys; l++)
            worst = chosen[l] ? fmin(worst, scores[l]) : worst;
        for (int64_t l = 0; l < head->keys; l++)
            assert_true(chosen[l] || scores[l] <= worst + SCORE_ROUNDING);
    } else {
        for (int64_t rank = 0; rank < head->attention.topk; rank++)
            assert_int_equal(top[rank], -1);
    }
    free(scores);
    free(chosen);
}

/* A block's exact keys: all different, as many as there can be; where the number is by
   the sizes, half of it for all blocks of a head where attention is spread. */
static void check_own_keys(exact_head *head, int64_t wanted, bool by_size) {
    const int64_t topk = head->attention.topk;
    for (int64_t i = 0; i < head->queries && head->keys > 0 && by_size; i++) {
        int64_t count = 0;
        exact_row(head, i);
        while (count < topk && head->own_keys[i * topk + count] >= 0)
            count++;
        if (count > 0) {
            assert_in_range(count, wanted / 2 < head->keys ? wanted / 2 : head->keys,
                            wanted);
            wanted = count;
            break;
        }
    }
    bool *chosen = test_memory(head->keys, sizeof *chosen);
    for (int64_t i = 0; i < head->queries && head->keys > 0; i++) {
        const bool alone = exact_centroid(head, head->groups[i]) == 1;
        exact_row(head, i);
        memset(chosen, 0, sizeof *chosen * (size_t)head->keys);
        for (int64_t rank = 0; rank < topk; rank++) {
            const int32_t key = head->own_keys[i * topk + rank];
            if (alone || rank >= head->keys || rank >= wanted) {
                assert_int_equal(key, -1);
                continue;
            }
            assert_in_range(key, 0, head->keys - 1);
            assert_false(chosen[key]);
            chosen[key] = true;
        }
    }
    free(chosen);
}

/* The exact keys of shoal-C with key clusters. */
static void check_blocks(const attention_case *c, shoal_plan *plan) {
    assert_null(shoal_plan_top_keys(plan, NULL));
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++) {
            exact_head *head = case_head(c, plan, b, h);
            check_own_keys(head, numbers_of(c, plan, b).topk,
                           c->spec.attention.topk == SHOAL_BY_SIZE);
            exact_destroy(head);
        }
}

void check_top_keys(const attention_case *c, shoal_plan *plan) {
    shoal_attention used;
    assert_int_equal(shoal_plan_picked(plan, NULL, &used), SHOAL_OK);
    if (used.keyclusters > 0) {
        check_blocks(c, plan);
        return;
    }
    if (!facts_of(c->spec.attention.kind)->has_top_keys) {
        assert_null(shoal_plan_top_keys(plan, NULL));
        return;
    }
    assert_non_null(shoal_plan_top_keys(plan, NULL));
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++) {
            exact_head *head = case_head(c, plan, b, h);
            for (int32_t group = 0; group < c->spec.attention.clusters; group++)
                check_top_of_group(head, group);
            exact_destroy(head);
        }
}

void check_everything(const attention_case *c, shoal_plan *plan) {
    check_groups(c, plan);
    if (!c->key_bias) /* a key bias hides some of the keys */
        check_top_keys(c, plan);
    check_forward(c, plan);
    check_gradients(c, plan);
    if (c->dbias || c->dkey_bias)
        check_dbias(c, plan);
    case_check_surroundings(c);
}
