#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *reference_memory(int64_t count, size_t size) {
    void *block = calloc(count > 0 ? (size_t)count : 1, size);
    if (!block) {
        fprintf(stderr, "the test itself ran out of memory\n");
        exit(1);
    }
    return block;
}

static double *doubles(int64_t count) {
    return reference_memory(count, sizeof(double));
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

bool reference_shares_keys(shoal_kind kind) {
    return kind == SHOAL_SHARED_FULL || kind == SHOAL_LSH;
}

bool reference_has_groups(shoal_kind kind) {
    return kind == SHOAL_CLUSTERED || reference_has_top_keys(kind);
}

bool reference_has_top_keys(shoal_kind kind) {
    return kind == SHOAL_I_CLUSTERED || kind == SHOAL_SHOAL;
}

/* ---- One softmax over the keys, and its adjoint -------------------------------- */

/* p[l] = times[l] exp(scale x.k_l) / sum: key l counts `times[l]` times, 0 leaves it out.
   At least one key must count. */
static void softmax_row(const reference_head *head, const double *keys, const double *x,
                        const double *times, double *p) {
    double largest = -INFINITY, sum = 0;
    for (int64_t l = 0; l < head->keys; l++) {
        p[l] = head->scale * dot(x, keys + l * head->dim, head->dim);
        if (times[l] > 0 && p[l] > largest)
            largest = p[l];
    }
    for (int64_t l = 0; l < head->keys; l++) {
        p[l] = times[l] > 0 ? times[l] * exp(p[l] - largest) : 0;
        sum += p[l];
    }
    for (int64_t l = 0; l < head->keys; l++)
        p[l] /= sum;
}

/* Adds what the gradient of the score scale x.k_l says about x and the key. */
static void score_backward(const reference_head *head, const double *keys, int64_t l,
                           const double *x, double dscore, double *dx, double *dkeys) {
    for (int64_t d = 0; d < head->dim; d++) {
        dx[d] += head->scale * dscore * keys[l * head->dim + d];
        dkeys[l * head->dim + d] += head->scale * dscore * x[d];
    }
}

/* Adds to dx and dkeys what dp, the gradient of p, says about them. */
static void softmax_row_backward(const reference_head *head, const double *keys,
                                 const double *x, const double *p, const double *dp,
                                 double *dx, double *dkeys) {
    double mean = dot(p, dp, head->keys);
    for (int64_t l = 0; l < head->keys; l++)
        score_backward(head, keys, l, x, p[l] * (dp[l] - mean), dx, dkeys);
}

/* ---- What each kind lets a query see ------------------------------------------- */

static double length_of(const double *x, int64_t dim) {
    return sqrt(dot(x, x, dim));
}

/* keys: [S][D]. */
static void fill_keys(const reference_head *head, double *keys) {
    const double *source = reference_shares_keys(head->kind) ? head->q : head->k;
    for (int64_t i = 0; i < head->keys * head->dim; i++)
        keys[i] = source[i];
    for (int64_t l = 0; l < head->keys && head->kind == SHOAL_LSH; l++) {
        double length = length_of(head->q + l * head->dim, head->dim);
        for (int64_t d = 0; d < head->dim; d++)
            keys[l * head->dim + d] /= length > 0 ? length : 1;
    }
}

/* The chunk that a position falls into when positions are sorted by (bucket, position).
   */
static int64_t chunk_of(const reference_head *head, const int32_t *buckets, int64_t i) {
    int64_t before = 0;
    for (int64_t l = 0; l < head->queries; l++)
        before += buckets[l] < buckets[i] || (buckets[l] == buckets[i] && l < i);
    return before / REFERENCE_CHUNK;
}

/* chunks: [rounds][N]. */
static void fill_chunks(const reference_head *head, int64_t *chunks) {
    for (int64_t round = 0; round < head->rounds && head->kind == SHOAL_LSH; round++) {
        int64_t first = round * head->queries;
        for (int64_t i = 0; i < head->queries; i++)
            chunks[first + i] = chunk_of(head, head->buckets + first, i);
    }
}

/* times[l]: the number of rounds in which i sees l. Rounds weighted by their log-sum-exp
   are one softmax in which a key counts once for each round that shows it. */
static void lsh_times(const reference_head *head, const int64_t *all_chunks, int64_t i,
                      double *times) {
    double others = 0;
    for (int64_t round = 0; round < head->rounds; round++) {
        const int64_t *chunks = all_chunks + round * head->queries;
        for (int64_t l = 0; l < head->keys; l++) {
            bool near = chunks[l] == chunks[i] || chunks[l] == chunks[i] - 1;
            bool seen = l != i && near;
            times[l] += seen;
            others += seen;
        }
    }
    if (others == 0)
        times[i] = 1;
}

typedef struct {
    double score;
    int64_t key;
} candidate;

static int better_first(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->key < y->key ? -1 : 1;
}

/* All keys of query i, best first. ranking: [S]. */
static void rank_keys(const reference_head *head, int64_t i, candidate *ranking) {
    const double *x = head->q + i * head->dim;
    for (int64_t l = 0; l < head->keys; l++)
        ranking[l] =
            (candidate){head->scale * dot(x, head->k + l * head->dim, head->dim), l};
    qsort(ranking, (size_t)head->keys, sizeof *ranking, better_first);
}

void reference_oracle_gaps(const reference_head *head, double *gaps) {
    candidate *ranking = reference_memory(head->keys, sizeof *ranking);
    for (int64_t i = 0; i < head->queries; i++) {
        gaps[i] = INFINITY;
        if (head->topk < head->keys) {
            rank_keys(head, i, ranking);
            gaps[i] = ranking[head->topk - 1].score - ranking[head->topk].score;
        }
    }
    free(ranking);
}

static void oracle_times(const reference_head *head, int64_t i, double *times) {
    candidate *ranking = reference_memory(head->keys, sizeof *ranking);
    rank_keys(head, i, ranking);
    for (int64_t rank = 0; rank < head->keys && rank < head->topk; rank++)
        times[ranking[rank].key] = 1;
    free(ranking);
}

static void top_times(const reference_head *head, int64_t i, double *times) {
    const int32_t *top = head->top_keys + head->groups[i] * head->topk;
    for (int64_t rank = 0; rank < head->topk; rank++)
        if (top[rank] >= 0)
            times[top[rank]] = 1;
}

/* How often query i sees each key by itself, that is with its own scores. times: [S]. */
static void fill_times(const reference_head *head, const int64_t *chunks, int64_t i,
                       double *times) {
    for (int64_t l = 0; l < head->keys; l++)
        times[l] = head->kind == SHOAL_FULL || head->kind == SHOAL_SHARED_FULL;
    if (head->kind == SHOAL_LSH)
        lsh_times(head, chunks, i, times);
    if (head->kind == SHOAL_ORACLE_TOP)
        oracle_times(head, i, times);
    if (reference_has_top_keys(head->kind))
        top_times(head, i, times);
}

int64_t reference_centroid(const reference_head *head, int32_t group, double *centroid) {
    int64_t members = 0;
    for (int64_t d = 0; d < head->dim; d++)
        centroid[d] = 0;
    for (int64_t i = 0; i < head->queries; i++) {
        if (head->groups[i] != group)
            continue;
        members++;
        for (int64_t d = 0; d < head->dim; d++)
            centroid[d] += head->q[i * head->dim + d];
    }
    for (int64_t d = 0; d < head->dim; d++)
        centroid[d] /= (double)members;
    return members;
}

/* ---- One query's row ----------------------------------------------------------- */

/* weights = mass x own where the query looks for itself, shared elsewhere; or, with a
   normaliser per query, one softmax of the query's scores where it looks for itself and
   of the centroid's elsewhere. */
typedef struct {
    bool has_own, has_shared, per_query;
    double *keys;     /* [S][D] */
    int64_t *chunks;  /* [rounds][N] */
    double *times;    /* [S] */
    double *own;      /* [S] softmax of the query's own scores over the keys it sees */
    double *shared;   /* [S] softmax of the centroid's scores over all keys */
    double *weights;  /* [S] */
    double *centroid; /* [D] */
    int64_t members;
    double mass;
} row;

static row row_create(const reference_head *head) {
    row r = {.has_own = head->kind != SHOAL_CLUSTERED,
             .has_shared = reference_has_groups(head->kind),
             .per_query = head->kind == SHOAL_SHOAL ||
                          (head->kind == SHOAL_I_CLUSTERED &&
                           head->normaliser == SHOAL_NORMALISER_QUERY),
             .keys = doubles(head->keys * head->dim),
             .chunks = reference_memory(head->rounds * head->queries, sizeof(int64_t)),
             .times = doubles(head->keys),
             .own = doubles(head->keys),
             .shared = doubles(head->keys),
             .weights = doubles(head->keys),
             .centroid = doubles(head->dim),
             .mass = 1};
    fill_keys(head, r.keys);
    fill_chunks(head, r.chunks);
    return r;
}

static void row_destroy(row *r) {
    free(r->keys);
    free(r->chunks);
    free(r->times);
    free(r->own);
    free(r->shared);
    free(r->weights);
    free(r->centroid);
}

/* Whose scores count for key l of query i. */
static const double *looker(const reference_head *head, int64_t i, const row *r,
                            int64_t l) {
    return r->times[l] > 0 ? head->q + i * head->dim : r->centroid;
}

static void per_query_weights(const reference_head *head, int64_t i, row *r) {
    double largest = -INFINITY, sum = 0;
    for (int64_t l = 0; l < head->keys; l++) {
        const double *x = looker(head, i, r, l);
        r->weights[l] = head->scale * dot(x, r->keys + l * head->dim, head->dim);
        largest = fmax(largest, r->weights[l]);
    }
    for (int64_t l = 0; l < head->keys; l++) {
        r->weights[l] = exp(r->weights[l] - largest);
        sum += r->weights[l];
    }
    for (int64_t l = 0; l < head->keys; l++)
        r->weights[l] /= sum;
}

static void row_fill(const reference_head *head, int64_t i, row *r) {
    double looks = 0;
    fill_times(head, r->chunks, i, r->times);
    for (int64_t l = 0; l < head->keys; l++) {
        looks += r->times[l];
        r->own[l] = 0;
    }
    if (r->has_own && looks > 0) /* a group's only member leaves all to its centroid */
        softmax_row(head, r->keys, head->q + i * head->dim, r->times, r->own);
    if (r->has_shared) {
        double *ones = doubles(head->keys);
        for (int64_t l = 0; l < head->keys; l++)
            ones[l] = 1;
        r->members = reference_centroid(head, head->groups[i], r->centroid);
        softmax_row(head, r->keys, r->centroid, ones, r->shared);
        r->mass = dot(r->times, r->shared, head->keys);
        free(ones);
    }
    for (int64_t l = 0; l < head->keys; l++)
        r->weights[l] = r->times[l] > 0 ? r->mass * r->own[l] : r->shared[l];
    if (r->per_query)
        per_query_weights(head, i, r);
}

void reference_weights(const reference_head *head, double *weights) {
    row r = row_create(head);
    for (int64_t i = 0; i < head->queries && head->keys > 0; i++) {
        row_fill(head, i, &r);
        for (int64_t l = 0; l < head->keys; l++)
            weights[i * head->keys + l] = r.weights[l];
    }
    row_destroy(&r);
}

void reference_forward(const reference_head *head, double *out) {
    row r = row_create(head);
    memset(out, 0, sizeof *out * (size_t)(head->queries * head->value_dim));
    for (int64_t i = 0; i < head->queries && head->keys > 0; i++) {
        row_fill(head, i, &r);
        for (int64_t l = 0; l < head->keys; l++)
            for (int64_t d = 0; d < head->value_dim; d++)
                out[i * head->value_dim + d] += r.weights[l] *
                                                head->v[l * head->value_dim + d];
    }
    row_destroy(&r);
}

/* ---- Backward ------------------------------------------------------------------ */

/* The query's own softmax: dweights reaches it through weights = mass x own. */
static void own_backward(const reference_head *head, int64_t i, const row *r,
                         const double *dweights, double *dq, double *dkeys) {
    double *down = doubles(head->keys);
    for (int64_t l = 0; l < head->keys; l++)
        down[l] = r->times[l] > 0 ? r->mass * dweights[l] : 0;
    softmax_row_backward(head, r->keys, head->q + i * head->dim, r->own, down,
                         dq + i * head->dim, dkeys);
    free(down);
}

/* A centroid's gradient reaches every member divided by the group's size. */
static void centroid_backward(const reference_head *head, int64_t i, const row *r,
                              const double *dcentroid, double *dq) {
    for (int64_t member = 0; member < head->queries; member++)
        if (head->groups[member] == head->groups[i])
            for (int64_t d = 0; d < head->dim; d++)
                dq[member * head->dim + d] += dcentroid[d] / (double)r->members;
}

/* The centroid's softmax, by the weights off the top keys and by the mass on them. */
static void shared_backward(const reference_head *head, int64_t i, const row *r,
                            const double *dweights, double *dq, double *dkeys) {
    double *dshared = doubles(head->keys), *dcentroid = doubles(head->dim);
    double dmass = 0;
    for (int64_t l = 0; l < head->keys; l++)
        dmass += r->times[l] > 0 ? dweights[l] * r->own[l] : 0;
    for (int64_t l = 0; l < head->keys; l++)
        dshared[l] = r->times[l] > 0 ? dmass : dweights[l];
    softmax_row_backward(head, r->keys, r->centroid, r->shared, dshared, dcentroid,
                         dkeys);
    centroid_backward(head, i, r, dcentroid, dq);
    free(dshared);
    free(dcentroid);
}

/* The one softmax of a normaliser per query. */
static void per_query_backward(const reference_head *head, int64_t i, const row *r,
                               const double *dweights, double *dq, double *dkeys) {
    double *dcentroid = doubles(head->dim);
    double mean = dot(r->weights, dweights, head->keys);
    for (int64_t l = 0; l < head->keys; l++)
        score_backward(head, r->keys, l, looker(head, i, r, l),
                       r->weights[l] * (dweights[l] - mean),
                       r->times[l] > 0 ? dq + i * head->dim : dcentroid, dkeys);
    centroid_backward(head, i, r, dcentroid, dq);
    free(dcentroid);
}

/* Adds the gradient of the keys to that of the queries they were made from. */
static void keys_to_queries(const reference_head *head, const double *keys, double *dkeys,
                            double *dq) {
    for (int64_t l = 0; l < head->keys; l++) {
        const double *key = keys + l * head->dim;
        double *dkey = dkeys + l * head->dim, along = 0, length = 1;
        if (head->kind == SHOAL_LSH) {
            length = length_of(head->q + l * head->dim, head->dim);
            along = dot(key, dkey, head->dim);
        }
        for (int64_t d = 0; d < head->dim; d++)
            dq[l * head->dim + d] += length > 0 ? (dkey[d] - along * key[d]) / length : 0;
    }
    memset(dkeys, 0, sizeof *dkeys * (size_t)(head->keys * head->dim));
}

void reference_backward(const reference_head *head, const double *dout, double *dq,
                        double *dk, double *dv) {
    row r = row_create(head);
    double *dweights = doubles(head->keys);
    memset(dq, 0, sizeof *dq * (size_t)(head->queries * head->dim));
    memset(dk, 0, sizeof *dk * (size_t)(head->keys * head->dim));
    memset(dv, 0, sizeof *dv * (size_t)(head->keys * head->value_dim));
    for (int64_t i = 0; i < head->queries && head->keys > 0; i++) {
        const double *dout_row = dout + i * head->value_dim;
        row_fill(head, i, &r);
        for (int64_t l = 0; l < head->keys; l++) {
            dweights[l] = dot(dout_row, head->v + l * head->value_dim, head->value_dim);
            for (int64_t d = 0; d < head->value_dim; d++)
                dv[l * head->value_dim + d] += r.weights[l] * dout_row[d];
        }
        if (r.per_query)
            per_query_backward(head, i, &r, dweights, dq, dk);
        if (r.has_own && !r.per_query)
            own_backward(head, i, &r, dweights, dq, dk);
        if (r.has_shared && !r.per_query)
            shared_backward(head, i, &r, dweights, dq, dk);
    }
    if (reference_shares_keys(head->kind))
        keys_to_queries(head, r.keys, dk, dq);
    free(dweights);
    row_destroy(&r);
}
