/* Attention rows of sampled queries, in double and from the formulas: what each kind says
   a query's weights are, given the groups and the top keys that the library used. A row
   is trusted because, applied to the values, it gives the library's own output.

   own: scores of the query; shared: scores of its group's centroid; T: the group's top
   keys. clustered is softmax(shared). i-clustered is softmax(shared) off T and, on T,
   that mass times the softmax of own over T. normaliser=query is one softmax over own on
   T and shared off it. oracle is the softmax of own over the k best keys. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quality.h"

typedef struct {
    double score;
    int64_t key;
} ranked_key;

typedef struct {
    const quality_call *call;
    int64_t head, query;    /* index into [B][H], and into [N] */
    const float *q, *k, *v; /* the head's [N][D], [S][D], [S][Dv] */
    double scale;
    double *point;        /* [D] what is scored: the query or the centroid */
    double *own, *shared; /* [S] scores */
    double *exact, *row;  /* [S] full's row and the kind's */
    double *sums;         /* [2][Dv] row V, and row |V| */
    bool *top;            /* [S] the key is in T */
    ranked_key *ranking;  /* [S] */
    bool certain;         /* the row is the only one that rounding allows */
} row_work;

/* ---- Scores and softmax ------------------------------------------------------------ */

/* scores[l] = scale point . keys[l]. */
static void score_keys(const row_work *work, const float *keys, double *scores) {
    const int64_t S = work->call->problem->keys, D = work->call->problem->dim;
    for (int64_t l = 0; l < S; l++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++)
            sum += work->point[d] * (double)keys[l * D + d];
        scores[l] = work->scale * sum;
    }
}

/* row = softmax(scores) over the keys that `only` names (NULL: all), 0 elsewhere. */
static void softmax(const double *scores, const bool *only, int64_t count, double *row) {
    double largest = -INFINITY, sum = 0;
    for (int64_t l = 0; l < count; l++)
        if ((!only || only[l]) && scores[l] > largest)
            largest = scores[l];
    for (int64_t l = 0; l < count; l++) {
        row[l] = !only || only[l] ? exp(scores[l] - largest) : 0;
        sum += row[l];
    }
    for (int64_t l = 0; l < count; l++)
        row[l] /= sum;
}

static void point_at_query(const row_work *work) {
    const int64_t D = work->call->problem->dim;
    for (int64_t d = 0; d < D; d++)
        work->point[d] = (double)work->q[work->query * D + d];
}

/* The mean of the queries in the query's group. */
static void point_at_centroid(const row_work *work) {
    const int64_t N = work->call->problem->queries, D = work->call->problem->dim;
    const int32_t *groups = work->call->groups + work->head * N;
    int64_t members = 0;
    memset(work->point, 0, (size_t)D * sizeof *work->point);
    for (int64_t i = 0; i < N; i++) {
        if (groups[i] != groups[work->query])
            continue;
        members++;
        for (int64_t d = 0; d < D; d++)
            work->point[d] += (double)work->q[i * D + d];
    }
    for (int64_t d = 0; d < D; d++)
        work->point[d] /= (double)members;
}

/* ---- A row of each kind ------------------------------------------------------------ */

static void mark_top_keys(const row_work *work) {
    const quality_call *call = work->call;
    const int64_t N = call->problem->queries, S = call->problem->keys;
    const int64_t clusters = call->attention->clusters, topk = call->attention->topk;
    const int64_t group = call->groups[work->head * N + work->query];
    const int32_t *keys = call->top_keys + (work->head * clusters + group) * topk;
    memset(work->top, 0, (size_t)S * sizeof *work->top);
    for (int64_t i = 0; i < topk; i++)
        if (keys[i] >= 0)
            work->top[keys[i]] = true;
}

static void improved_row(row_work *work) {
    const int64_t S = work->call->problem->keys;
    double mass = 0;
    softmax(work->shared, NULL, S, work->row);
    softmax(work->own, work->top, S, work->shared); /* its scores are not needed again */
    for (int64_t l = 0; l < S; l++)
        mass += work->top[l] ? work->row[l] : 0;
    for (int64_t l = 0; l < S; l++)
        if (work->top[l])
            work->row[l] = mass * work->shared[l];
}

static void query_normalised_row(row_work *work) {
    const int64_t S = work->call->problem->keys;
    for (int64_t l = 0; l < S; l++)
        if (work->top[l])
            work->shared[l] = work->own[l];
    softmax(work->shared, NULL, S, work->row);
}

static void grouped_row(row_work *work) {
    const shoal_attention *attention = work->call->attention;
    point_at_centroid(work);
    score_keys(work, work->k, work->shared);
    if (attention->kind == SHOAL_CLUSTERED) {
        softmax(work->shared, NULL, work->call->problem->keys, work->row);
        return;
    }
    mark_top_keys(work);
    if (attention->kind == SHOAL_SHOAL || attention->normaliser == SHOAL_NORMALISER_QUERY)
        query_normalised_row(work);
    else
        improved_row(work);
}

static int best_first(const void *a, const void *b) {
    const ranked_key *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

static void oracle_row(row_work *work) {
    const int64_t S = work->call->problem->keys, topk = work->call->attention->topk;
    for (int64_t l = 0; l < S; l++)
        work->ranking[l] = (ranked_key){work->own[l], l};
    qsort(work->ranking, (size_t)S, sizeof *work->ranking, best_first);
    for (int64_t i = 0; i < S; i++)
        work->top[work->ranking[i].key] = i < topk;
    softmax(work->own, work->top, S, work->row);
    if (topk < S) { /* two scores that single precision may see the other way round */
        const double last = work->ranking[topk - 1].score;
        work->certain = last - work->ranking[topk].score > 1e-5 * (1 + fabs(last));
    }
}

/* False where a kind has no rows. */
static bool fill_row(row_work *work) {
    const int64_t S = work->call->problem->keys;
    work->certain = true;
    switch (work->call->attention->kind) {
    case SHOAL_FULL: memcpy(work->row, work->exact, (size_t)S * sizeof *work->row); break;
    case SHOAL_SHARED_FULL:
        score_keys(work, work->q, work->shared);
        softmax(work->shared, NULL, S, work->row);
        break;
    case SHOAL_ORACLE_TOP: oracle_row(work); break;
    case SHOAL_CLUSTERED:
    case SHOAL_I_CLUSTERED:
    case SHOAL_SHOAL: grouped_row(work); break;
    default: return false;
    }
    return true;
}

/* ---- What rows are compared with --------------------------------------------------- */

/* The largest difference of row V from the output, as a share of the largest row |V|. */
static double check_row(const row_work *work) {
    const shoal_problem *problem = work->call->problem;
    const int64_t Dv = problem->value_dim;
    const float *out = work->call->out +
                       (work->head * problem->queries + work->query) * Dv;
    double *sums = work->sums, *sizes = work->sums + Dv, worst = 0, size = 0;
    memset(sums, 0, 2 * (size_t)Dv * sizeof *sums);
    for (int64_t l = 0; l < problem->keys; l++)
        for (int64_t d = 0; d < Dv; d++) {
            sums[d] += work->row[l] * (double)work->v[l * Dv + d];
            sizes[d] += work->row[l] * fabs((double)work->v[l * Dv + d]);
        }
    for (int64_t d = 0; d < Dv; d++) {
        const double difference = fabs(sums[d] - (double)out[d]);
        worst = isnan(difference) ? INFINITY : fmax(worst, difference);
        size = fmax(size, sizes[d]);
    }
    /* Rounding of scores, which are exponents, grows with them. */
    double highest = 0;
    for (int64_t l = 0; l < problem->keys; l++)
        highest = fmax(highest, fabs(work->own[l]));
    const double growth = 1 + 4 * (double)FLT_EPSILON * highest / QUALITY_ROW_TOLERANCE;
    return worst == 0 ? 0 : worst / (size * growth);
}

static int64_t strongest(const double *row, int64_t count) {
    int64_t best = 0;
    for (int64_t l = 1; l < count; l++)
        if (row[l] > row[best])
            best = l;
    return best;
}

static void add_row(const row_work *work, quality_cell *cell) {
    const int64_t S = work->call->problem->keys;
    const double check = work->certain ? check_row(work) : 0;
    cell->value[METRIC_ROW_CHECK] = fmax(cell->value[METRIC_ROW_CHECK], check);
    for (int64_t l = 0; l < S; l++)
        cell->value[METRIC_ROW_L1] += fabs(work->row[l] - work->exact[l]);
    cell->value[METRIC_AGREEMENT] += strongest(work->row, S) == strongest(work->exact, S);
}

/* ---- All sampled queries ----------------------------------------------------------- */

static void place_query(row_work *work, int64_t index) {
    const quality_call *call = work->call;
    const shoal_problem *problem = call->problem;
    const int64_t N = problem->queries, S = problem->keys;
    const int64_t shared_by = problem->heads / problem->kv_heads;
    work->head = index / N;
    work->query = index % N;
    const int64_t b = work->head / problem->heads, h = work->head % problem->heads;
    const int64_t kv_head = b * problem->kv_heads + h / shared_by;
    work->q = call->q + work->head * N * problem->dim;
    work->k = call->k + kv_head * S * problem->dim;
    work->v = call->v + kv_head * S * problem->value_dim;
}

static bool work_create(row_work *work, const quality_call *call) {
    const size_t S = (size_t)call->problem->keys;
    *work = (row_work){.call = call, .scale = 1 / sqrt((double)call->problem->dim)};
    work->point = malloc((size_t)call->problem->dim * sizeof *work->point);
    work->own = malloc(4 * S * sizeof *work->own);
    work->sums = malloc(2 * (size_t)call->problem->value_dim * sizeof *work->sums);
    work->top = malloc(S * sizeof *work->top);
    work->ranking = malloc(S * sizeof *work->ranking);
    if (!work->point || !work->own || !work->sums || !work->top || !work->ranking)
        return false;
    work->shared = work->own + S;
    work->exact = work->own + 2 * S;
    work->row = work->own + 3 * S;
    return true;
}

static void work_destroy(row_work *work) {
    free(work->point);
    free(work->own);
    free(work->sums);
    free(work->top);
    free(work->ranking);
}

bool quality_rows(const quality_call *call, const int64_t *queries, int64_t count,
                  quality_cell *cell) {
    row_work work;
    const bool fine = work_create(&work, call);
    double *const metrics = cell->value;
    metrics[METRIC_ROW_L1] = metrics[METRIC_AGREEMENT] = metrics[METRIC_ROW_CHECK] = 0;
    for (int64_t i = 0; i < count && fine; i++) {
        place_query(&work, queries[i]);
        point_at_query(&work);
        score_keys(&work, work.k, work.own);
        softmax(work.own, NULL, call->problem->keys, work.exact);
        if (!fill_row(&work)) {
            metrics[METRIC_ROW_L1] = metrics[METRIC_AGREEMENT] =
                metrics[METRIC_ROW_CHECK] = NAN;
            break;
        }
        add_row(&work, cell);
    }
    metrics[METRIC_ROW_L1] /= (double)count;
    metrics[METRIC_AGREEMENT] /= (double)count;
    work_destroy(&work);
    return fine;
}

static double random_share(uint64_t seed, uint64_t counter) {
    uint64_t x = (counter + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

/* Selection sampling: each is taken with the probability (still wanted) / (still left). */
void quality_sample(int64_t total, int64_t count, uint64_t seed, int64_t *chosen) {
    int64_t taken = 0;
    for (int64_t i = 0; i < total && taken < count; i++)
        if ((double)(total - i) * random_share(seed, (uint64_t)i) <
            (double)(count - taken))
            chosen[taken++] = i;
}
