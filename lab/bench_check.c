/* A time is printed for a verified result only. What is known about each kind:

     full, shared-full        exact attention in double precision on sampled queries
     oracle-top-k             its own formula, likewise
     clustered, i-clustered,
     shoal                    the formulas of the method in double precision on sampled
                              queries, with the groups and top keys that the plan
                              reports; and that no key outside the top was better
     lsh                      exact where hashing cannot matter: 32 positions, one chunk;
                              and at the length in question that weights sum to 1
     any other kind           exact where there are no more queries than clusters; and
                              that weights sum to 1

   The formulas here are written from the mathematics and share no code with the
   library. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { SAMPLES = 32, SMALL = 32 };

static const double tolerance = 1e-5;

void bench_note(bench_row *row, const char *what, double error, double limit) {
    if (row->check_count < BENCH_CHECKS)
        row->checks[row->check_count++] = (bench_check){what, error, limit};
    if (!(error < limit))
        row->wrong = true;
}

/* ---- One query in double precision ------------------------------------------------- */

typedef struct {
    const bench_data *data;
    const float *q, *k, *v; /* of one head: [N][D], [N][D], [N][Dv] */
    double scale;
    double *query;   /* [D] */
    double *weights; /* [N]: scores, then weights */
    double *result;  /* [Dv] */
} exact_row;

static bool exact_create(exact_row *exact, const bench_data *data) {
    *exact = (exact_row){.data = data, .scale = 1 / sqrt((double)data->dim)};
    const int64_t count = data->dim + data->length + data->value_dim;
    exact->query = malloc((size_t)count * sizeof(double));
    if (!exact->query)
        return false;
    exact->weights = exact->query + data->dim;
    exact->result = exact->weights + data->length;
    return true;
}

static void exact_destroy(exact_row *exact) {
    free(exact->query);
}

static void choose_head(exact_row *exact, int64_t head, bool keys_are_queries) {
    const int64_t queries = exact->data->length * exact->data->dim;
    exact->q = exact->data->q + head * queries;
    exact->k = keys_are_queries ? exact->q : exact->data->k + head * queries;
    exact->v = exact->data->v + head * exact->data->length * exact->data->value_dim;
}

static double score(const exact_row *exact, const double *query, const float *key) {
    double sum = 0;
    for (int64_t d = 0; d < exact->data->dim; d++)
        sum += query[d] * (double)key[d];
    return exact->scale * sum;
}

/* weights[l] = the scaled score of key l. */
static void all_scores(exact_row *exact) {
    for (int64_t l = 0; l < exact->data->length; l++)
        exact->weights[l] = score(exact, exact->query, exact->k + l * exact->data->dim);
}

static void set_query(exact_row *exact, int64_t i) {
    for (int64_t d = 0; d < exact->data->dim; d++)
        exact->query[d] = (double)exact->q[i * exact->data->dim + d];
}

static void softmax(double *weights, int64_t count) {
    double top = -INFINITY, sum = 0;
    for (int64_t l = 0; l < count; l++)
        top = fmax(top, weights[l]);
    for (int64_t l = 0; l < count; l++)
        sum += weights[l] = exp(weights[l] - top);
    for (int64_t l = 0; l < count; l++)
        weights[l] /= sum;
}

/* result = sum of weights[l] v_l. */
static void average(exact_row *exact) {
    const int64_t value_dim = exact->data->value_dim;
    memset(exact->result, 0, (size_t)value_dim * sizeof(double));
    for (int64_t l = 0; l < exact->data->length; l++)
        for (int64_t d = 0; d < value_dim; d++)
            exact->result[d] += exact->weights[l] * (double)exact->v[l * value_dim + d];
}

/* ---- The kinds --------------------------------------------------------------------- */

/* The mean of the queries of group j. */
static void set_centroid(exact_row *exact, const int32_t *groups, int32_t j) {
    const int64_t dim = exact->data->dim;
    int64_t members = 0;
    memset(exact->query, 0, (size_t)dim * sizeof(double));
    for (int64_t i = 0; i < exact->data->length; i++) {
        if (groups[i] != j)
            continue;
        members++;
        for (int64_t d = 0; d < dim; d++)
            exact->query[d] += (double)exact->q[i * dim + d];
    }
    for (int64_t d = 0; d < dim; d++)
        exact->query[d] /= (double)members;
}

/* How much better, in score, the best key outside the top is than the worst in it. */
static double top_regret(exact_row *exact, const int32_t *top, int64_t count) {
    double worst = INFINITY, best = -INFINITY;
    for (int64_t t = 0; t < count; t++)
        worst = fmin(worst, exact->weights[top[t]]);
    for (int64_t l = 0; l < exact->data->length; l++) {
        bool inside = false;
        for (int64_t t = 0; t < count && !inside && exact->weights[l] > worst; t++)
            inside = top[t] == l;
        if (!inside && exact->weights[l] > worst)
            best = fmax(best, exact->weights[l]);
    }
    return fmax(0, best - worst);
}

/* Puts the query's own scores at the top keys. */
static void own_scores(exact_row *exact, int64_t i, const int32_t *top, int64_t count) {
    set_query(exact, i);
    for (int64_t t = 0; t < count; t++)
        exact->weights[top[t]] =
            score(exact, exact->query, exact->k + top[t] * exact->data->dim);
}

/* From the centroid's scores to the weights of query i: on the top keys the mass is the
   centroid's and its distribution the query's own. */
static void correct_top(exact_row *exact, int64_t i, const int32_t *top, int64_t count) {
    double mass = 0, sum = 0, highest = -INFINITY;
    softmax(exact->weights, exact->data->length);
    for (int64_t t = 0; t < count; t++)
        mass += exact->weights[top[t]];
    own_scores(exact, i, top, count);
    for (int64_t t = 0; t < count; t++)
        highest = fmax(highest, exact->weights[top[t]]);
    for (int64_t t = 0; t < count; t++)
        sum += exp(exact->weights[top[t]] - highest);
    for (int64_t t = 0; t < count; t++)
        exact->weights[top[t]] = mass * exp(exact->weights[top[t]] - highest) / sum;
}

/* The top keys that exist: the list ends with -1. */
static int64_t count_top(const int32_t *top, int64_t topk) {
    int64_t count = 0;
    while (count < topk && top[count] >= 0)
        count++;
    return count;
}

static double clustered_row(exact_row *exact, const shoal_attention *attention,
                            shoal_plan *plan, int64_t head, int64_t i) {
    const int32_t *groups = shoal_plan_groups(plan, NULL) + head * exact->data->length;
    const int32_t *all = shoal_plan_top_keys(plan, NULL), *top = NULL;
    const int32_t j = groups[i];
    double regret = 0;
    int64_t count = 0;
    if (j < 0 || j >= attention->clusters)
        return INFINITY;
    set_centroid(exact, groups, j);
    all_scores(exact);
    if (all) {
        top = all + (head * attention->clusters + j) * attention->topk;
        count = count_top(top, attention->topk);
        regret = top_regret(exact, top, count);
    }
    if (count > 0 && attention->normaliser == SHOAL_NORMALISER_CLUSTER) {
        correct_top(exact, i, top, count);
    } else {
        own_scores(exact, i, top, count);
        softmax(exact->weights, exact->data->length);
    }
    average(exact);
    return regret;
}

/* Drops all but the k best scores. Where the k-th and the next are as good as equal,
   either is right: the query tells nothing and false is returned. */
static bool keep_best(exact_row *exact, int64_t k) {
    const int64_t n = exact->data->length;
    double *best = malloc((size_t)(k + 1) * sizeof *best); /* decreasing */
    int64_t count = 0;
    if (!best)
        return false;
    for (int64_t l = 0; l < n; l++) {
        int64_t at = count <= k ? count : k + 1;
        for (; at > 0 && best[at - 1] < exact->weights[l]; at--)
            if (at <= k)
                best[at] = best[at - 1];
        if (at <= k)
            best[at] = exact->weights[l];
        count += count <= k;
    }
    const bool clear = count <= k || best[k - 1] - best[k] > 1e-5;
    for (int64_t l = 0; l < n && count > k; l++)
        if (exact->weights[l] < best[k - 1])
            exact->weights[l] = -INFINITY;
    free(best);
    return clear;
}

/* ---- Samples ----------------------------------------------------------------------- */

/* Relative error of the samples as one long vector, in two sums. */
typedef struct {
    double error, exact;
} squares;

static void compare(squares *sums, const exact_row *exact, const float *out) {
    for (int64_t d = 0; d < exact->data->value_dim; d++) {
        const double difference = (double)out[d] - exact->result[d];
        sums->error += difference * difference;
        sums->exact += exact->result[d] * exact->result[d];
    }
}

/* Sampled queries of the kinds whose formula is here. */
static shoal_status check_samples(shoal_plan *plan, const bench_data *data,
                                  const shoal_attention *attention, uint64_t seed,
                                  bench_row *row) {
    exact_row exact;
    squares sums = {0};
    double regret = 0;
    const bool oracle = attention->kind == SHOAL_ORACLE_TOP;
    if (!exact_create(&exact, data))
        return SHOAL_NO_MEMORY;
    for (uint64_t s = 0; s < SAMPLES; s++) {
        const uint64_t draw = bench_random(seed, (uint64_t)9 << 56 | s);
        const int64_t rows = data->batch * data->heads * data->length;
        const int64_t at = (int64_t)(draw % (uint64_t)rows);
        const int64_t head = at / data->length, i = at % data->length;
        choose_head(&exact, head, false);
        if (oracle) {
            set_query(&exact, i);
            all_scores(&exact);
            if (!keep_best(&exact, attention->topk))
                continue;
            softmax(exact.weights, data->length);
            average(&exact);
        } else {
            regret = fmax(regret, clustered_row(&exact, attention, plan, head, i));
        }
        compare(&sums, &exact, data->out + at * data->value_dim);
    }
    exact_destroy(&exact);
    bench_note(row,
               oracle ? "own formula, 32 sampled queries"
                      : "formula with the plan's groups, 32 sampled queries",
               sums.exact > 0 ? sqrt(sums.error / sums.exact) : sqrt(sums.error),
               tolerance);
    if (shoal_plan_top_keys(plan, NULL))
        bench_note(row, "no better key outside the top", regret, 1e-4);
    return SHOAL_OK;
}

static shoal_status check_exact(shoal_plan *plan, const bench_data *data,
                                const shoal_attention *attention, uint64_t seed,
                                const char *what, bench_row *row) {
    const shoal_inputs inputs = bench_inputs(data, attention);
    shoal_error error = {0};
    shoal_status status =
        shoal_error_estimate(plan, &inputs, data->out, 2 * SAMPLES, seed, &error);
    if (status == SHOAL_OK)
        bench_note(row, what, error.relative_error, tolerance);
    return status;
}

/* ---- Kinds whose choices are not told ---------------------------------------------- */

/* lsh where everything is in one chunk: each position sees all the others, with keys of
   unit length, however often. */
static shoal_status check_one_chunk(const bench_data *data, bench_row *row) {
    exact_row exact;
    squares sums = {0};
    if (!exact_create(&exact, data))
        return SHOAL_NO_MEMORY;
    for (int64_t at = 0; at < data->batch * data->heads * data->length; at++) {
        const int64_t i = at % data->length;
        choose_head(&exact, at / data->length, true);
        set_query(&exact, i);
        all_scores(&exact);
        for (int64_t l = 0; l < data->length; l++) {
            double squared = 0;
            for (int64_t d = 0; d < data->dim; d++)
                squared += pow((double)exact.k[l * data->dim + d], 2);
            exact.weights[l] = l == i && data->length > 1 ? -INFINITY
                               : squared == 0             ? 0
                                              : exact.weights[l] / sqrt(squared);
        }
        softmax(exact.weights, data->length);
        average(&exact);
        compare(&sums, &exact, data->out + at * data->value_dim);
    }
    exact_destroy(&exact);
    bench_note(row, "exact at 32 positions, one chunk", sqrt(sums.error / sums.exact),
               tolerance);
    return SHOAL_OK;
}

static shoal_status check_small(bench_job *job, int kind, bench_row *row) {
    static const char *const gradients[2] = {"<dv, v> = <dout, out> on few positions",
                                             "directional difference on few positions"};
    const shoal_attention *attention = &job->attention[kind];
    const bool lsh = attention->kind == SHOAL_LSH;
    const int64_t most = lsh || attention->clusters < 1 ? SMALL : attention->clusters;
    bench_data data;
    shoal_plan *plan = NULL;
    double seconds;
    if (!bench_data_create(&data, job, most < 2 * SMALL ? most : 2 * SMALL))
        return SHOAL_NO_MEMORY;
    const shoal_problem problem = bench_problem(&data);
    shoal_status status = shoal_plan_create(job->context, &problem, attention,
                                            job->train ? SHOAL_WITH_BACKWARD : 0, &plan);
    if (status == SHOAL_OK)
        status = bench_call(plan, &data, attention, &seconds);
    if (status == SHOAL_OK)
        status = lsh ? check_one_chunk(&data, row)
                     : check_exact(plan, &data, attention, job->seed,
                                   "exact with no more queries than clusters", row);
    if (status == SHOAL_OK && job->train)
        status = bench_verify_gradients(plan, &data, attention, row, gradients);
    shoal_plan_destroy(plan);
    bench_data_destroy(&data);
    return status;
}

/* Values that are all 1 have only one average. */
static shoal_status check_sum(shoal_plan *plan, bench_data *data,
                              const shoal_attention *attention, bench_row *row) {
    shoal_inputs inputs = bench_inputs(data, attention);
    double largest = 0;
    for (int64_t i = 0; i < data->value_count; i++)
        data->spare[i] = 1;
    inputs.v = data->spare;
    shoal_status status = shoal_forward(plan, &inputs, data->out);
    for (int64_t i = 0; i < data->value_count && status == SHOAL_OK; i++) {
        const double error = fabs((double)data->out[i] - 1);
        largest = error <= largest ? largest : error; /* a NaN, once there, stays */
    }
    if (status == SHOAL_OK)
        bench_note(row, "weights sum to 1", largest, tolerance);
    return status;
}

/* ---- All of it --------------------------------------------------------------------- */

shoal_status bench_verify(bench_job *job, shoal_plan *plan, bench_data *data, int kind,
                          bench_row *row) {
    static const char *const gradients[2] = {"<dv, v> = <dout, out>",
                                             "directional difference of dq and dk"};
    const shoal_attention *attention = &job->attention[kind];
    bool told = true; /* the plan tells what it chose, or there is no choice */
    shoal_status status;
    switch (attention->kind) {
    case SHOAL_FULL:
    case SHOAL_SHARED_FULL:
        status = check_exact(plan, data, attention, job->seed,
                             "exact attention, 64 sampled queries", row);
        break;
    case SHOAL_CLUSTERED:
    case SHOAL_I_CLUSTERED:
    case SHOAL_SHOAL:
    case SHOAL_ORACLE_TOP:
        status = check_samples(plan, data, attention, job->seed, row);
        break;
    default: told = false; status = check_small(job, kind, row);
    }
    if (status == SHOAL_OK && job->train)
        status = bench_verify_gradients(plan, data, attention, row, gradients);
    if (status == SHOAL_OK && !told)
        status = check_sum(plan, data, attention, row);
    row->verified = status == SHOAL_OK && !row->wrong;
    return status;
}
