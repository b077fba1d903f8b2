/* The library's results against the reference. */
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Before cmocka, which makes a macro of the name `fail`. */
#include "attention/lsh.h"

#include <cmocka.h>

#include "support.h"

static const double FORWARD_TOLERANCE = 1e-5, GRADIENT_TOLERANCE = 1e-4;
/* Errors are relative to the largest entry of the reference. Where a softmax has nearly
   or wholly settled on one key its gradient is what is left when terms of order 1
   cancel, and rounding is that of the terms. */
static const double SETTLED = 1e-9, ALL_TERMS = 1, FEW_TERMS = 5e-2;
/* Scores closer than this may come out in either order. */
static const double SCORE_ROUNDING = 2e-5;

/* ---- One head in double precision ---------------------------------------------- */

static double *to_double(const tensor *t, int64_t b, int64_t h, int64_t positions) {
    double *copy = reference_memory(positions * t->features, sizeof *copy);
    for (int64_t i = 0; i < positions; i++)
        for (int64_t f = 0; f < t->features; f++)
            copy[i * t->features + f] = (double)tensor_row(t, b, h, i)[f];
    return copy;
}

static int64_t kv_head_of(const attention_case *c, int64_t h) {
    return h / (c->spec.heads / case_kv_heads(c));
}

/* The hashes are the library's own: [rounds][N]. */
static int32_t *buckets_of(const attention_case *c, shoal_plan *plan, int64_t b,
                           int64_t h) {
    int64_t rounds = c->spec.attention.rounds, queries = c->query_lengths[b];
    int32_t *buckets = reference_memory(rounds * queries, sizeof *buckets);
    for (int64_t round = 0; plan && queries > 0 && round < rounds; round++)
        sh_lsh_buckets(plan, &c->inputs, b, h, round, buckets + round * queries);
    return buckets;
}

head_copy head_copy_create(const attention_case *c, shoal_plan *plan, int64_t b,
                           int64_t h) {
    const case_spec *s = &c->spec;
    int64_t queries = c->query_lengths[b], keys = c->key_lengths[b];
    int64_t kv_head = kv_head_of(c, h), first = b * s->heads + h;
    const int32_t *groups = plan ? shoal_plan_groups(plan, NULL) : NULL;
    const int32_t *top_keys = plan ? shoal_plan_top_keys(plan, NULL) : NULL;
    int32_t topk = s->attention.topk, clusters = s->attention.clusters;
    head_copy copy = {.q = to_double(&c->q, b, h, queries),
                      .k = to_double(&c->k, b, kv_head, keys),
                      .v = to_double(&c->v, b, kv_head, keys),
                      .dout = to_double(&c->dout, b, h, queries),
                      .buckets = buckets_of(c, plan, b, h)};
    copy.head =
        (reference_head){.kind = s->attention.kind,
                         .queries = queries,
                         .keys = keys,
                         .dim = s->dim,
                         .value_dim = s->value_dim,
                         .q = copy.q,
                         .k = copy.k,
                         .v = copy.v,
                         .topk = topk,
                         .scale = s->scale != 0 ? (double)s->scale
                                                : 1 / sqrt((double)s->dim),
                         .groups = groups ? groups + first * s->queries : NULL,
                         .top_keys = top_keys ? top_keys + first * clusters * topk : NULL,
                         .normaliser = s->attention.normaliser,
                         .rounds = s->attention.rounds,
                         .buckets = copy.buckets};
    return copy;
}

void head_copy_destroy(head_copy *copy) {
    free(copy->q);
    free(copy->k);
    free(copy->v);
    free(copy->dout);
    free(copy->buckets);
}

/* ---- How far two tensors are apart --------------------------------------------- */

typedef struct {
    double largest, error; /* over all entries of the reference; of the difference */
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

/* ---- Near ties of the oracle --------------------------------------------------- */

/* [N]: whether rounding could change what the oracle keeps for the query. */
static bool *undecided_rows(const head_copy *copy) {
    int64_t queries = copy->head.queries;
    bool *undecided = reference_memory(queries, sizeof *undecided);
    if (copy->head.kind != SHOAL_ORACLE_TOP)
        return undecided;
    double *gaps = reference_memory(queries, sizeof *gaps);
    reference_oracle_gaps(&copy->head, gaps);
    for (int64_t i = 0; i < queries; i++)
        undecided[i] = gaps[i] < SCORE_ROUNDING;
    free(gaps);
    return undecided;
}

static void calm_head(attention_case *c, int64_t b, int64_t h) {
    head_copy copy = head_copy_create(c, NULL, b, h);
    bool *undecided = undecided_rows(&copy);
    for (int64_t i = 0; i < copy.head.queries; i++)
        for (int64_t f = 0; undecided[i] && f < c->dout.features; f++)
            tensor_row(&c->dout, b, h, i)[f] = 0;
    free(undecided);
    head_copy_destroy(&copy);
}

void case_calm(attention_case *c) {
    if (c->spec.attention.kind != SHOAL_ORACLE_TOP)
        return;
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++)
            calm_head(c, b, h);
}

/* ---- Forward and backward ------------------------------------------------------ */

static void compare_forward(const attention_case *c, const head_copy *copy, int64_t b,
                            int64_t h, deviation *total) {
    int64_t size = copy->head.queries * copy->head.value_dim;
    double *out = reference_memory(size, sizeof *out);
    bool *undecided = undecided_rows(copy);
    reference_forward(&copy->head, out);
    for (int64_t i = 0; i < copy->head.queries; i++)
        if (!undecided[i])
            compare_row(total, out + i * copy->head.value_dim,
                        tensor_row(&c->out, b, h, i), copy->head.value_dim);
    free(undecided);
    free(out);
}

void check_forward(const attention_case *c, shoal_plan *plan) {
    deviation total = {0};
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++) {
            head_copy copy = head_copy_create(c, plan, b, h);
            compare_forward(c, &copy, b, h, &total);
            head_copy_destroy(&copy);
        }
    check_deviation(total, FORWARD_TOLERANCE, "out", c);
}

/* Gradients of one sequence; several query heads add up in one key/value head. */
typedef struct {
    double *dq, *dk, *dv;         /* of one head */
    double *dk_total, *dv_total;  /* of one key/value head */
    int64_t key_size, value_size; /* elements */
} gradient_room;

static gradient_room gradient_room_create(const case_spec *s) {
    int64_t key_size = s->keys * s->dim, value_size = s->keys * s->value_dim;
    return (gradient_room){.key_size = key_size,
                           .value_size = value_size,
                           .dq = reference_memory(s->queries * s->dim, sizeof(double)),
                           .dk = reference_memory(key_size, sizeof(double)),
                           .dv = reference_memory(value_size, sizeof(double)),
                           .dk_total = reference_memory(key_size, sizeof(double)),
                           .dv_total = reference_memory(value_size, sizeof(double))};
}

static void gradient_room_destroy(gradient_room *room) {
    free(room->dq);
    free(room->dk);
    free(room->dv);
    free(room->dk_total);
    free(room->dv_total);
}

static void compare_kv_head(const attention_case *c, shoal_plan *plan, int64_t b,
                            int64_t kv_head, gradient_room *room, deviation totals[3]) {
    int64_t sharing = c->spec.heads / case_kv_heads(c);
    memset(room->dk_total, 0, sizeof(double) * (size_t)room->key_size);
    memset(room->dv_total, 0, sizeof(double) * (size_t)room->value_size);
    for (int64_t h = kv_head * sharing; h < (kv_head + 1) * sharing; h++) {
        head_copy copy = head_copy_create(c, plan, b, h);
        reference_backward(&copy.head, copy.dout, room->dq, room->dk, room->dv);
        compare_rows(&totals[0], room->dq, &c->dq, b, h, c->query_lengths[b]);
        for (int64_t i = 0; i < c->key_lengths[b] * c->spec.dim; i++)
            room->dk_total[i] += room->dk[i];
        for (int64_t i = 0; i < c->key_lengths[b] * c->spec.value_dim; i++)
            room->dv_total[i] += room->dv[i];
        head_copy_destroy(&copy);
    }
    compare_rows(&totals[1], room->dk_total, &c->dk, b, kv_head, c->key_lengths[b]);
    compare_rows(&totals[2], room->dv_total, &c->dv, b, kv_head, c->key_lengths[b]);
}

void check_gradients(const attention_case *c, shoal_plan *plan) {
    static const char *const names[] = {"dq", "dk", "dv"};
    deviation totals[3] = {{0, 0}};
    gradient_room room = gradient_room_create(&c->spec);
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t kv_head = 0; kv_head < case_kv_heads(c); kv_head++)
            compare_kv_head(c, plan, b, kv_head, &room, totals);
    gradient_room_destroy(&room);
    for (int i = 0; i < 3; i++)
        check_deviation(totals[i], GRADIENT_TOLERANCE, names[i], c);
}

/* ---- Groups and top keys ------------------------------------------------------- */

static void check_groups_of_head(const attention_case *c, const int32_t *groups,
                                 int64_t b, const int32_t *brought) {
    int32_t clusters = c->spec.attention.clusters;
    int64_t live = c->query_lengths[b];
    int64_t *members = reference_memory(clusters, sizeof *members);
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
    const int32_t *groups = shoal_plan_groups(plan, NULL);
    if (!reference_has_groups(c->spec.attention.kind)) {
        assert_null(groups);
        return;
    }
    assert_non_null(groups);
    for (int64_t head = 0; head < c->spec.batch * c->spec.heads; head++) {
        int64_t first = head * c->spec.queries;
        check_groups_of_head(c, groups + first, head / c->spec.heads,
                             c->groups ? c->groups + first : NULL);
    }
}

/* The exact score of each key for a group's centroid. scores: [S]. */
static int64_t score_keys(const reference_head *head, int32_t group, double *scores) {
    double *centroid = reference_memory(head->dim, sizeof *centroid);
    int64_t members = reference_centroid(head, group, centroid);
    for (int64_t l = 0; l < head->keys && members > 0; l++) {
        scores[l] = 0;
        for (int64_t d = 0; d < head->dim; d++)
            scores[l] += head->scale * centroid[d] * head->k[l * head->dim + d];
    }
    free(centroid);
    return members;
}

/* top: [topk]. Marks the keys that it names in `chosen`, [S]. */
static void check_top_order(const reference_head *head, const int32_t *top,
                            const double *scores, bool *chosen) {
    for (int64_t rank = 0; rank < head->topk; rank++) {
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

static void check_top_of_group(const reference_head *head, int32_t group) {
    double *scores = reference_memory(head->keys, sizeof *scores), worst = INFINITY;
    bool *chosen = reference_memory(head->keys, sizeof *chosen);
    const int32_t *top = head->top_keys + group * head->topk;
    if (score_keys(head, group, scores) > 1) { /* one member needs none */
        check_top_order(head, top, scores, chosen);
        for (int64_t l = 0; l < head->keys; l++)
            worst = chosen[l] ? fmin(worst, scores[l]) : worst;
        for (int64_t l = 0; l < head->keys; l++)
            assert_true(chosen[l] || scores[l] <= worst + SCORE_ROUNDING);
    } else {
        for (int64_t rank = 0; rank < head->topk; rank++)
            assert_int_equal(top[rank], -1);
    }
    free(scores);
    free(chosen);
}

void check_top_keys(const attention_case *c, shoal_plan *plan) {
    if (!reference_has_top_keys(c->spec.attention.kind)) {
        assert_null(shoal_plan_top_keys(plan, NULL));
        return;
    }
    assert_non_null(shoal_plan_top_keys(plan, NULL));
    for (int64_t b = 0; b < c->spec.batch; b++)
        for (int64_t h = 0; h < c->spec.heads; h++) {
            head_copy copy = head_copy_create(c, plan, b, h);
            for (int32_t group = 0; group < c->spec.attention.clusters; group++)
                check_top_of_group(&copy.head, group);
            head_copy_destroy(&copy);
        }
}

void check_everything(const attention_case *c, shoal_plan *plan) {
    check_groups(c, plan);
    check_top_keys(c, plan);
    check_forward(c, plan);
    check_gradients(c, plan);
    case_check_surroundings(c);
}
