/* Attention, one query of one head at a time.

   A kind of attention chooses the keys for which a query's own scores are used, with
   multiplicities (`counts`). In kinds with clusters all other keys have the score of
   the cluster's centroid:

       weight_l = count_l exp(score_l) / sum      one softmax over all keys

   full and shared-full use all keys, oracle-top-k the k best, lsh a few chunks;
   clustered uses only the centroid's scores, i-clustered and q-clustered the exact keys
   T of the cluster. i-clustered with the paper's normaliser consists of two softmaxes:
   with the centroid's weights Ac and their sum m over T,

       weight_l = m x softmax over T of the query's scores     for l in T
       weight_l = Ac_l                                         elsewhere

   Masks add a bias to the scores, -inf for hidden keys, and dropout multiplies the
   weights by factors.

   shoal is one softmax, in which a correction for each query and key cluster is added
   to the centroid's scores: tilt.c */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact/exact.h"
#include "exact/tilt.h"
#include "shoal_inspect.h"

enum { CHUNK = 32 }; /* positions per chunk of lsh */

typedef enum {
    KEYS,        /* separate keys */
    QUERIES,     /* queries serve as keys */
    UNIT_QUERIES /* queries scaled to length 1 serve as keys */
} key_source;

typedef struct {
    void (*choose)(exact_head *head, int64_t i); /* sets counts, which are 0 on entry */
    key_source keys;
    bool grouped; /* other keys have the centroid's scores */
} formula;

static const formula *formula_of(const exact_head *head);

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* ---- Scores ------------------------------------------------------------------------ */

static const double *query_of(const exact_head *head, int64_t i) {
    return head->q + i * head->dim;
}

static const double *key_of(const exact_head *head, int64_t l) {
    return (formula_of(head)->keys == KEYS ? head->k : head->q) + l * head->dim;
}

/* Divisor of key l. */
static double key_length(const exact_head *head, int64_t l) {
    if (formula_of(head)->keys != UNIT_QUERIES)
        return 1;
    const double length = sqrt(dot(query_of(head, l), query_of(head, l), head->dim));
    return length > 0 ? length : 1;
}

double exact_score(const exact_head *head, const double *x, int64_t l) {
    return head->scale * dot(x, key_of(head, l), head->dim) / key_length(head, l);
}

double exact_bias(const exact_head *head, int64_t i, int64_t l) {
    return head->bias ? head->bias[i * head->keys + l] : 0;
}

static double factor_of(const exact_head *head, int64_t i, int64_t l) {
    return head->factors ? head->factors[i * head->keys + l] : 1;
}

/* Backward of the score of x and key l. The length of a unit key depends on its query,
   so the component of the gradient along the key vanishes. */
static void score_gradient(const exact_head *head, int64_t l, const double *x,
                           double dscore, double *dx, double *dkeys) {
    const double *key = key_of(head, l);
    const double length = key_length(head, l), slope = head->scale * dscore / length;
    const bool unit = formula_of(head)->keys == UNIT_QUERIES;
    const double along = unit ? dot(x, key, head->dim) / (length * length) : 0;
    const bool zero = unit && dot(key, key, head->dim) == 0;
    for (int64_t d = 0; d < head->dim; d++) {
        dx[d] += slope * key[d];
        dkeys[l * head->dim + d] += zero ? 0 : slope * (x[d] - along * key[d]);
    }
}

/* ---- Softmax ----------------------------------------------------------------------- */

/* p_l = count_l exp(score_l) / sum; all 0 if all counts are 0. */
static void softmax(const double *scores, const double *counts, int64_t count,
                    double *p) {
    double largest = -INFINITY, sum = 0;
    for (int64_t l = 0; l < count; l++)
        if (counts[l] > 0 && scores[l] > largest)
            largest = scores[l];
    for (int64_t l = 0; l < count; l++) {
        p[l] = counts[l] > 0 ? counts[l] * exp(scores[l] - largest) : 0;
        sum += p[l];
    }
    for (int64_t l = 0; l < count; l++)
        p[l] = sum == 0 ? 0 : p[l] / sum;
}

/* Replaces dp, the gradient of p, by that of the scores. */
static void softmax_gradient(const double *p, double *dp, int64_t count) {
    const double mean = dot(p, dp, count);
    for (int64_t l = 0; l < count; l++)
        dp[l] = p[l] * (dp[l] - mean);
}

/* ---- The keys with exact scores --------------------------------------------------- */

static void choose_none(exact_head *head, int64_t i) {
    (void)head;
    (void)i;
}

static void choose_all(exact_head *head, int64_t i) {
    (void)i;
    for (int64_t l = 0; l < head->keys; l++)
        head->counts[l] = 1;
}

static void choose_top_keys(exact_head *head, int64_t i) {
    const int64_t topk = head->attention.topk;
    const int32_t *top = head->top_keys + head->groups[i] * topk;
    for (int64_t x = 0; x < topk; x++)
        if (top[x] >= 0)
            head->counts[top[x]] = 1;
}

/* The query's chunk and the one before, in every round; the query itself only if there
   is no other key. Rounds weighted by their log-sum-exp equal one softmax in which a
   key counts once per round that contains it. */
static void choose_chunks(exact_head *head, int64_t i) {
    double others = 0;
    for (int64_t round = 0; round < head->attention.rounds; round++) {
        const int64_t *chunks = head->chunks + round * head->queries;
        for (int64_t l = 0; l < head->keys; l++) {
            const bool near = chunks[l] == chunks[i] || chunks[l] == chunks[i] - 1;
            head->counts[l] += l != i && near;
            others += l != i && near;
        }
    }
    if (others == 0)
        head->counts[i] = 1;
}

/* The exact keys of the query's block, and the neighbouring positions. */
static void choose_own_keys(exact_head *head, int64_t i) {
    const shoal_attention *a = &head->attention;
    if (head->plan)
        shoal_plan_exact_keys(head->plan, head->state, head->at, i,
                              head->own_keys + i * a->topk);
    for (int64_t x = 0; x < a->topk; x++)
        if (head->own_keys[i * a->topk + x] >= 0)
            head->counts[head->own_keys[i * a->topk + x]] = 1;
    for (int64_t l = 0; l < head->keys && exact_members(head, head->groups[i]) > 1; l++)
        if (a->near > 0 && llabs(l - i) <= a->near)
            head->counts[l] = 1;
}

typedef struct exact_ranked {
    double score;
    int64_t key;
} ranked;

static int better_first(const void *a, const void *b) {
    const ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

/* The k largest scores; on ties the first. */
static void choose_best(exact_head *head, int64_t i) {
    const int64_t topk = head->attention.topk;
    ranked *ranking = head->ranking;
    for (int64_t l = 0; l < head->keys; l++)
        ranking[l] =
            (ranked){exact_score(head, query_of(head, i), l) + exact_bias(head, i, l), l};
    qsort(ranking, (size_t)head->keys, sizeof *ranking, better_first);
    for (int64_t x = 0; x < head->keys && x < topk; x++)
        head->counts[ranking[x].key] = 1;
    if (topk < head->keys)
        head->margin = ranking[topk - 1].score - ranking[topk].score;
}

/* Positions at a distance of at most W/2, rounded down. */
static void choose_near(exact_head *head, int64_t i) {
    for (int64_t l = 0; l < head->keys; l++)
        head->counts[l] = llabs(i + head->ahead - l) <= head->attention.window / 2;
}

/* The same, and positions at multiples of W. */
static void choose_strided(exact_head *head, int64_t i) {
    choose_near(head, i);
    for (int64_t l = 0; l < head->keys; l++)
        if ((i + head->ahead - l) % head->attention.window == 0)
            head->counts[l] = 1;
}

static const formula formulas[] = {
    [SHOAL_KIND_FULL] = {.choose = choose_all},
    [SHOAL_KIND_SHARED_FULL] = {.choose = choose_all, .keys = QUERIES},
    [SHOAL_KIND_CLUSTERED] = {.choose = choose_none, .grouped = true},
    [SHOAL_KIND_I_CLUSTERED] = {.choose = choose_top_keys, .grouped = true},
    [SHOAL_KIND_LSH] = {.choose = choose_chunks, .keys = UNIT_QUERIES},
    [SHOAL_KIND_ORACLE_TOP] = {.choose = choose_best},
    [SHOAL_KIND_SHOAL] = {.choose = choose_own_keys, .grouped = true},
    [SHOAL_KIND_AUTO] = {0}, /* replaced by the kind it picks */
    [SHOAL_KIND_LOCAL] = {.choose = choose_near},
    [SHOAL_KIND_STRIDED] = {.choose = choose_strided},
    [SHOAL_KIND_Q_CLUSTERED] = {.choose = choose_top_keys, .grouped = true},
};

static const formula *formula_of(const exact_head *head) {
    static const formula none = {0};
    const size_t kind = (size_t)head->attention.kind;
    return kind < sizeof formulas / sizeof *formulas ? &formulas[kind] : &none;
}

bool exact_is_known(const exact_head *head) {
    const formula *f = formula_of(head);
    return f->choose && (!f->grouped || head->groups) &&
           (f->choose != choose_top_keys || head->top_keys) &&
           (f->choose != choose_own_keys || head->key_clusters) &&
           (f->choose != choose_chunks || head->has_chunks);
}

/* A chunk is 32 positions sorted by (bucket, position). */
void exact_set_buckets(exact_head *head, int64_t round, const int32_t *buckets) {
    for (int64_t i = 0; i < head->queries; i++) {
        int64_t before = 0;
        for (int64_t l = 0; l < head->queries; l++)
            before += buckets[l] < buckets[i] || (buckets[l] == buckets[i] && l < i);
        head->chunks[round * head->queries + i] = before / CHUNK;
    }
    head->has_chunks = true;
}

/* ---- A row of weights ------------------------------------------------------------- */

int64_t exact_members(const exact_head *head, int32_t group) {
    int64_t members = 0;
    for (int64_t i = 0; i < head->queries; i++)
        members += head->groups[i] == group;
    return members;
}

int64_t exact_centroid(exact_head *head, int32_t group) {
    int64_t members = 0;
    memset(head->centroid, 0, (size_t)head->dim * sizeof(double));
    for (int64_t i = 0; i < head->queries; i++) {
        if (head->groups[i] != group)
            continue;
        members++;
        for (int64_t d = 0; d < head->dim; d++)
            head->centroid[d] += query_of(head, i)[d];
    }
    for (int64_t d = 0; d < head->dim; d++)
        head->centroid[d] /= (double)members;
    return members;
}

/* The paper's normaliser: the exact keys keep the mass that the centroid gives them. */
static bool keeps_mass(const exact_head *head) {
    return head->attention.kind == SHOAL_KIND_I_CLUSTERED &&
           head->attention.normaliser == SHOAL_NORMALISER_CLUSTER;
}

/* The vector whose score counts for key l: the query, or its centroid. */
static const double *scored_by(const exact_head *head, int64_t i, int64_t l) {
    return head->counts[l] > 0 ? query_of(head, i) : head->centroid;
}

static void one_softmax(exact_head *head, int64_t i) {
    const bool grouped = formula_of(head)->grouped;
    double *all = head->own;
    if (exact_is_tilted(head))
        exact_find_tilts(head, i);
    for (int64_t l = 0; l < head->keys; l++) {
        all[l] = grouped && head->counts[l] == 0 ? 1 : head->counts[l];
        head->scores[l] = exact_score(head, scored_by(head, i, l), l) +
                          exact_bias(head, i, l);
        if (head->scores[l] == -INFINITY)
            all[l] = 0;
        if (exact_is_tilted(head) && head->counts[l] == 0)
            head->scores[l] += exact_tilt_of(head, l);
    }
    softmax(head->scores, all, head->keys, head->weights);
    if (exact_is_tilted(head))
        exact_add_dipole(head, i);
}

/* m, the sum of the centroid's weights over the exact keys. */
static double top_mass(const exact_head *head) {
    return dot(head->counts, head->shared, head->keys);
}

static void two_softmaxes(exact_head *head, int64_t i) {
    double *all = head->own;
    for (int64_t l = 0; l < head->keys; l++) {
        head->scores[l] = exact_score(head, head->centroid, l) + exact_bias(head, i, l);
        all[l] = head->scores[l] > -INFINITY;
    }
    softmax(head->scores, all, head->keys, head->shared);
    for (int64_t l = 0; l < head->keys; l++)
        head->scores[l] = exact_score(head, scored_by(head, i, l), l) +
                          exact_bias(head, i, l);
    softmax(head->scores, head->counts, head->keys, head->own);
    const double mass = top_mass(head);
    for (int64_t l = 0; l < head->keys; l++)
        head->weights[l] = head->counts[l] > 0 ? mass * head->own[l] : head->shared[l];
}

const double *exact_row(exact_head *head, int64_t i) {
    memset(head->counts, 0, (size_t)head->keys * sizeof(double));
    head->margin = INFINITY;
    formula_of(head)->choose(head, i);
    if (formula_of(head)->grouped)
        exact_centroid(head, head->groups[i]);
    if (keeps_mass(head))
        two_softmaxes(head, i);
    else
        one_softmax(head, i);
    return head->weights;
}

void exact_output(exact_head *head, int64_t i, double *out) {
    exact_row(head, i);
    memset(out, 0, (size_t)head->value_dim * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++)
        for (int64_t d = 0; d < head->value_dim; d++)
            out[d] += head->weights[l] * factor_of(head, i, l) *
                      head->v[l * head->value_dim + d];
}

/* ---- Gradients --------------------------------------------------------------------- */

/* The softmax of the kind shoal, whose row has the dipole besides: the mean is over the
   row. row: [S], what dweights were. */
static void tilted_softmax_gradient(exact_head *head, double *row) {
    const double mean = dot(head->weights, head->dweights, head->keys);
    memcpy(row, head->dweights, (size_t)head->keys * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++)
        head->dweights[l] = exact_base_weight(head, l) * (head->dweights[l] - mean);
}

static void one_softmax_gradient(exact_head *head, int64_t i, double *dq, double *dkeys) {
    double *row = head->own;
    if (exact_is_tilted(head))
        tilted_softmax_gradient(head, row);
    else
        softmax_gradient(head->weights, head->dweights, head->keys);
    for (int64_t l = 0; l < head->keys && head->dbias; l++)
        head->dbias[i * head->keys + l] += head->dweights[l];
    for (int64_t l = 0; l < head->keys; l++)
        score_gradient(head, l, scored_by(head, i, l), head->dweights[l],
                       head->counts[l] > 0 ? dq + i * head->dim : head->dcentroid, dkeys);
    if (!exact_is_tilted(head))
        return;
    exact_tilt_gradient(head, i, head->dweights, row, dq, head->dcentroid, dkeys,
                        head->dshared);
    for (int64_t l = 0; l < head->keys; l++) {
        score_gradient(head, l, head->centroid, head->dshared[l], head->dcentroid, dkeys);
        if (head->dbias)
            head->dbias[i * head->keys + l] += head->dshared[l];
    }
}

/* The query's softmax gets the gradient of the weights times m; the centroid's softmax
   gets that of the other keys, and on each exact key the gradient of m. */
static void two_softmaxes_gradient(exact_head *head, int64_t i, double *dq,
                                   double *dkeys) {
    const double mass = top_mass(head);
    double dmass = 0;
    for (int64_t l = 0; l < head->keys; l++)
        dmass += head->counts[l] > 0 ? head->dweights[l] * head->own[l] : 0;
    for (int64_t l = 0; l < head->keys; l++) {
        head->dshared[l] = head->counts[l] > 0 ? dmass : head->dweights[l];
        head->dweights[l] *= head->counts[l] > 0 ? mass : 0;
    }
    softmax_gradient(head->shared, head->dshared, head->keys);
    softmax_gradient(head->own, head->dweights, head->keys);
    for (int64_t l = 0; l < head->keys && head->dbias; l++)
        head->dbias[i * head->keys + l] += head->dweights[l] + head->dshared[l];
    for (int64_t l = 0; l < head->keys; l++) {
        score_gradient(head, l, head->centroid, head->dshared[l], head->dcentroid, dkeys);
        score_gradient(head, l, query_of(head, i), head->dweights[l], dq + i * head->dim,
                       dkeys);
    }
}

/* Each member of a cluster gets the centroid's gradient divided by the size of the
   cluster. */
static void centroid_gradient(exact_head *head, int32_t group, double *dq) {
    const int64_t members = exact_centroid(head, group);
    for (int64_t i = 0; i < head->queries; i++)
        for (int64_t d = 0; d < head->dim && head->groups[i] == group; d++)
            dq[i * head->dim + d] += head->dcentroid[d] / (double)members;
}

void exact_output_gradient(exact_head *head, int64_t i, const double *dout, double *dq,
                           double *dk, double *dv) {
    const formula *f = formula_of(head);
    double *dkeys = f->keys == KEYS ? dk : dq;
    exact_row(head, i);
    memset(head->dcentroid, 0, (size_t)head->dim * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++) {
        const double factor = factor_of(head, i, l);
        head->dweights[l] = factor *
                            dot(dout, head->v + l * head->value_dim, head->value_dim);
        for (int64_t d = 0; d < head->value_dim; d++)
            dv[l * head->value_dim + d] += head->weights[l] * factor * dout[d];
    }
    if (keeps_mass(head))
        two_softmaxes_gradient(head, i, dq, dkeys);
    else
        one_softmax_gradient(head, i, dq, dkeys);
    if (f->grouped)
        centroid_gradient(head, head->groups[i], dq);
}

/* ---- Creation --------------------------------------------------------------------- */

/* The next `count` doubles of the block. */
static double *take(double **next, int64_t count) {
    double *taken = *next;
    *next += count;
    return taken;
}

exact_head *exact_create(const shoal_attention *attention, int64_t queries, int64_t keys,
                         int64_t dim, int64_t value_dim) {
    const int64_t rounds = attention->rounds;
    exact_head *head = calloc(1, sizeof *head);
    double *next =
        calloc((size_t)(queries * dim + keys * (dim + value_dim + 7) + 2 * dim),
               sizeof *next);
    ranked *ranking = calloc((size_t)keys + 1, sizeof *ranking);
    int64_t *chunks = calloc((size_t)(rounds * queries) + 1, sizeof *chunks);
    const int64_t own =
        attention->keyclusters > 0 && attention->topk > 0 ? attention->topk : 0;
    int32_t *own_keys = calloc((size_t)(own * queries) + 1, sizeof *own_keys);
    struct exact_tilt *tilt = exact_tilt_create(attention, keys, dim);
    if (!head || !next || !ranking || !chunks || !own_keys || !tilt) {
        free(head), free(next), free(ranking), free(chunks), free(own_keys), free(tilt);
        return NULL;
    }
    *head = (exact_head){.attention = *attention,
                         .queries = queries,
                         .keys = keys,
                         .dim = dim,
                         .value_dim = value_dim,
                         .scale = 1 / sqrt((double)dim),
                         .chunks = chunks,
                         .margin = INFINITY,
                         .ranking = ranking,
                         .own_keys = own_keys,
                         .tilt = tilt,
                         .memory = next};
    double **const rows[] = {&head->weights, &head->counts,   &head->scores, &head->own,
                             &head->shared,  &head->dweights, &head->dshared};
    head->q = take(&next, queries * dim);
    head->k = take(&next, keys * dim);
    head->v = take(&next, keys * value_dim);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        *rows[i] = take(&next, keys);
    head->centroid = take(&next, dim);
    head->dcentroid = take(&next, dim);
    return head;
}

void exact_destroy(exact_head *head) {
    if (!head)
        return;
    free(head->memory);
    free(head->ranking);
    free(head->chunks);
    free(head->bias);
    free(head->factors);
    free(head->own_keys);
    free(head->tilt);
    free(head);
}

/* ---- Loading a head of a problem -------------------------------------------------- */

/* One of q, k and v: [batch][heads][positions][features] with strides. */
typedef struct {
    const void *data;
    shoal_dtype dtype;
    const shoal_strides *strides; /* NULL: contiguous */
    int64_t heads, positions, features;
    const int64_t *offsets, *lengths; /* either may be NULL */
    bool packed;
} array;

static int64_t live_positions(const array *a, int64_t b) {
    if (a->packed)
        return a->offsets[b + 1] - a->offsets[b];
    return a->lengths ? a->lengths[b] : a->positions;
}

static double element_of(const array *a, int64_t at) {
    if (a->dtype == SHOAL_DTYPE_FLOAT32)
        return (double)((const float *)a->data)[at];
    /* Half precision by definition: sign, exponent and fraction. */
    const uint16_t half = ((const uint16_t *)a->data)[at];
    const int fraction_bits = a->dtype == SHOAL_DTYPE_FLOAT16 ? 10 : 7;
    const int most = (1 << (15 - fraction_bits)) - 1, bias = most / 2;
    const int exponent = half >> fraction_bits & most;
    const double fraction = ldexp(half & ((1 << fraction_bits) - 1), -fraction_bits);
    double value = exponent == 0 ? ldexp(fraction, 1 - bias)
                                 : ldexp(1 + fraction, exponent - bias);
    if (exponent == most)
        value = fraction == 0 ? INFINITY : NAN;
    return half >> 15 ? -value : value;
}

/* Copies the valid positions of one head to [live][features]. */
static void copy_head(const array *a, int64_t b, int64_t h, double *to) {
    shoal_strides s = {.position = a->packed ? a->heads * a->features : a->features,
                       .head = a->packed ? a->features : a->positions * a->features,
                       .batch = a->heads * a->positions * a->features};
    if (a->strides)
        s = *a->strides;
    const int64_t from = h * s.head +
                         (a->packed ? a->offsets[b] * s.position : b * s.batch);
    for (int64_t i = 0; i < live_positions(a, b); i++)
        for (int64_t f = 0; f < a->features; f++)
            *to++ = element_of(a, from + i * s.position + f);
}

static int64_t pair_at(const shoal_problem *problem, const shoal_pair_strides *s,
                       int64_t b, int64_t h, int64_t i, int64_t l) {
    if (!s)
        return ((b * problem->heads + h) * problem->queries + i) * problem->keys + l;
    return b * s->batch + h * s->head + i * s->query + l * s->key;
}

static int64_t key_at(const shoal_problem *problem, const shoal_strides *s, int64_t b,
                      int64_t h, int64_t l) {
    if (!s)
        return (b * problem->heads + h) * problem->keys + l;
    return b * s->batch + h * s->head + l * s->position;
}

/* Sum of bias, key bias, mask and causal order. */
static double load_bias(const exact_head *head, const shoal_problem *problem,
                        const shoal_inputs *inputs, int64_t b, int64_t h, int64_t i,
                        int64_t l) {
    const bool future = problem->causal && l > i + head->ahead;
    if (future || (inputs->mask &&
                   !inputs->mask[pair_at(problem, inputs->mask_strides, b, h, i, l)]))
        return -INFINITY;
    double sum = 0;
    if (inputs->bias)
        sum += (double)inputs->bias[pair_at(problem, inputs->bias_strides, b, h, i, l)];
    if (inputs->key_bias)
        sum +=
            (double)inputs->key_bias[key_at(problem, inputs->key_bias_strides, b, h, l)];
    return sum;
}

static bool load_masks(exact_head *head, const shoal_problem *problem,
                       const shoal_inputs *inputs, int64_t b, int64_t h) {
    const int64_t N = head->queries, S = head->keys;
    const bool biased = problem->causal || inputs->bias || inputs->mask ||
                        inputs->key_bias;
    if (problem->causal && S > N)
        head->ahead = S - N;
    if (biased)
        head->bias = calloc((size_t)(N * S) + 1, sizeof *head->bias);
    if (problem->dropout > 0)
        head->factors = calloc((size_t)(N * S) + 1, sizeof *head->factors);
    if ((biased && !head->bias) || (problem->dropout > 0 && !head->factors))
        return false;
    for (int64_t at = 0; at < N * S; at++) {
        const int64_t i = at / S, l = at % S;
        if (head->bias)
            head->bias[at] = load_bias(head, problem, inputs, b, h, i, l);
        if (head->factors)
            head->factors[at] =
                (double)shoal_dropout_factor(problem->dropout, inputs->dropout_seed,
                                             b * problem->heads + h, i, l);
    }
    return true;
}

void exact_choose(exact_head *head, const shoal_plan *plan, const void *state, int64_t at,
                  int64_t longest) {
    const int32_t *groups = shoal_plan_clusters(plan, state);
    const int32_t *top_keys = shoal_plan_top_keys(plan, state);
    shoal_attention used = head->attention;
    shoal_tilt tilt;
    shoal_plan_picked(plan, state, &used);
    if (groups)
        head->groups = groups + at * longest;
    if (top_keys)
        head->top_keys = top_keys + at * used.clusters * used.topk;
    if (!exact_is_tilted(head) || shoal_plan_tilt(plan, state, at, &tilt) != SHOAL_OK)
        return;
    head->attention.near = (int32_t)tilt.near;
    head->key_clusters = tilt.key_clusters;
    head->projection = tilt.projection;
    head->dual = tilt.dual;
    head->shares = tilt.shares;
    head->share_stride = tilt.key_cluster_count;
    head->plan = plan;
    head->state = state;
    head->at = at;
}

exact_head *exact_load(const shoal_problem *problem, const shoal_inputs *inputs,
                       const shoal_plan *plan, const shoal_attention *attention,
                       int64_t b, int64_t h) {
    shoal_attention used = *attention;
    array q, k, v;
    if (plan && (used.kind == SHOAL_KIND_AUTO || used.kind == SHOAL_KIND_SHOAL))
        shoal_plan_picked(plan, NULL, &used);
    const bool own_keys = formula_of(&(exact_head){.attention = used})->keys == KEYS;
    /* q, k and v of the head; own_keys: the kind has separate keys. */
    q = (array){.data = inputs->q,
                .dtype = problem->dtype,
                .strides = problem->q_strides,
                .heads = problem->heads,
                .positions = problem->queries,
                .features = problem->dim,
                .offsets = inputs->query_offsets,
                .lengths = inputs->query_lengths,
                .packed = problem->packed != 0};
    k = q;
    k.data = inputs->k;
    k.strides = problem->k_strides;
    k.heads = problem->kv_heads ? problem->kv_heads : problem->heads;
    k.positions = problem->keys;
    if (own_keys) {
        k.offsets = inputs->key_offsets;
        k.lengths = inputs->key_lengths;
    }
    v = k;
    v.data = inputs->v;
    v.strides = problem->v_strides;
    v.features = problem->value_dim;
    exact_head *head = exact_create(&used, live_positions(&q, b), live_positions(&v, b),
                                    q.features, v.features);
    if (!head)
        return NULL;
    if (problem->scale != 0)
        head->scale = (double)problem->scale;
    const int64_t kv_head = h / (q.heads / k.heads);
    copy_head(&q, b, h, head->q);
    copy_head(&v, b, kv_head, head->v);
    if (k.data)
        copy_head(&k, b, kv_head, head->k);
    if (plan)
        exact_choose(head, plan, NULL, b * problem->heads + h, problem->queries);
    if (load_masks(head, problem, inputs, b, h))
        return head;
    exact_destroy(head);
    return NULL;
}
