/* A time is printed for a verified result only.

   Attention: sampled queries have their exact outputs, by the formulas of exact/ and with
   the groups and top keys that the plan reports; and no key outside a group's top is
   better. What lsh hashed to is not reported: it is exact where hashing cannot matter (32
   positions, one chunk), and at the length in question its weights sum to 1. auto has the
   bits of what it picked, which is verified.

   The backward pass: identities that need no second implementation. out is linear in v, so
   with the loss <dout, out> the gradient satisfies <dv, v> = <dout, out> exactly; dout is
   set to out, which makes both sides large. Scores are products of queries and keys, so
   scaling either does the same: in every kind with keys of their own <dq, q> = <dk, k>.

   The loss along a line (q, k) + t (a, b) has the slope <dq, a> + <dk, b> at t = 0, which
   a central difference of two forward passes must give. The line is the gradient's own
   direction, where the slope is largest, plus q and k, which a gradient that is 0 by
   mistake cannot hide from. But where a choice flips on the way the loss jumps, so only
   the part of the gradient counts that flips none. Groups can be held. Top keys stay the
   same when no centroid and no key changes its direction: members may move as long as
   their mean does so only along itself, and a head's keys may all be scaled. lsh's
   buckets stay the same when every query is scaled (few positions, all in one chunk, do
   the rest); the oracle's keys, when queries and keys are. */
#include <stdlib.h>

#include "bench.h"
#include "exact/exact.h"
#include "lab.h"

enum {
    SAMPLES = 32,       /* queries */
    EXACT_SAMPLES = 64, /* of kinds without a choice */
    SMALL = 32          /* positions in a chunk of lsh */
};

static const double tolerance = 1e-5;

/* A step moves q and k by this part of their length. */
static const double step_share = 5e-5;

void bench_note(bench_row *row, const char *what, double error, double limit) {
    if (row->check_count < BENCH_CHECKS)
        row->checks[row->check_count++] = (bench_check){what, error, limit};
    if (!(error < limit))
        row->wrong = true;
}

/* ---- Sampled queries --------------------------------------------------------------- */

/* How much better, by the centroid's score, the best key outside the top is than the worst
   in it. For the query of the last exact_row. */
static double top_regret(const exact_head *head) {
    double worst = INFINITY, best = -INFINITY;
    for (int64_t l = 0; l < head->keys; l++)
        if (head->counts[l] > 0)
            worst = fmin(worst, exact_score(head, head->centroid, l));
        else
            best = fmax(best, head->scores[l]);
    return fmax(0, best - worst);
}

static int by_size(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* `count` indices into [B][H][N], growing, so that a head's come together. */
static void draw_queries(const bench_data *data, uint64_t seed, int64_t count,
                         int64_t *queries) {
    const int64_t rows = data->batch * data->heads * data->length;
    for (int64_t s = 0; s < count; s++) {
        const uint64_t draw = bench_random(seed, (uint64_t)9 << 56 | (uint64_t)s);
        queries[s] = (int64_t)(draw % (uint64_t)rows);
    }
    qsort(queries, (size_t)count, sizeof *queries, by_size);
}

/* Adds one query's output to the sums and returns what its top keys are worse than others.
   Where rounding may have decided between two keys, either is right: it tells nothing. */
static double compare_query(exact_head *head, int64_t i, const shoal_attention *attention,
                            const float *out, double *exact, squares *sums) {
    if (head->groups && (head->groups[i] < 0 || head->groups[i] >= attention->clusters))
        return INFINITY;
    exact_output(head, i, exact);
    for (int64_t d = 0; d < head->value_dim && head->margin > 1e-5; d++)
        squares_add(sums, (double)out[d], exact[d]);
    return head->top_keys ? top_regret(head) : 0;
}

/* The given queries, indices into [B][H][N]. */
static shoal_status compare_queries(const shoal_plan *plan, const bench_data *data,
                                    const shoal_attention *attention,
                                    const int64_t *queries, int64_t count, squares *sums,
                                    double *regret) {
    const shoal_problem problem = bench_problem(data);
    const shoal_inputs inputs = bench_inputs(data, attention);
    const int64_t n = data->length;
    double *exact = malloc((size_t)data->value_dim * sizeof *exact);
    exact_head *head = NULL;
    shoal_status status = exact ? SHOAL_OK : SHOAL_NO_MEMORY;
    for (int64_t s = 0; s < count && status == SHOAL_OK; s++) {
        const int64_t at = queries[s] / n, i = queries[s] % n;
        if (s == 0 || at != queries[s - 1] / n) {
            exact_destroy(head);
            head = exact_load(&problem, &inputs, plan, attention, at / data->heads,
                              at % data->heads);
        }
        if (head)
            *regret =
                fmax(*regret, compare_query(head, i, attention,
                                            data->out + queries[s] * data->value_dim,
                                            exact, sums));
        else
            status = SHOAL_NO_MEMORY;
    }
    exact_destroy(head);
    free(exact);
    return status;
}

static shoal_status check_samples(const shoal_plan *plan, const bench_data *data,
                                  const shoal_attention *attention, uint64_t seed,
                                  bench_row *row) {
    const bool groups = shoal_plan_groups(plan, NULL) != NULL;
    const bool all_keys = kind_facts(attention)->exact;
    int64_t queries[EXACT_SAMPLES];
    squares sums = {0};
    double regret = 0;
    const int64_t count = all_keys ? EXACT_SAMPLES : SAMPLES;
    draw_queries(data, seed, count, queries);
    const shoal_status status =
        compare_queries(plan, data, attention, queries, count, &sums, &regret);
    if (status != SHOAL_OK)
        return status;
    bench_note(row,
               groups     ? "formula with the plan's groups, 32 sampled queries"
               : all_keys ? "exact attention, 64 sampled queries"
                          : "own formula, 32 sampled queries",
               squares_relative(sums), tolerance);
    if (shoal_plan_top_keys(plan, NULL))
        bench_note(row, "no better key outside the top", regret, 1e-4);
    return SHOAL_OK;
}

/* ---- Gradients: lines along which nothing flips ------------------------------------ */

/* Replaces a [count] by its part that lies along b. */
static void keep_along(float *a, const float *b, int64_t count) {
    const double squared = dot_floats(b, b, count), along = dot_floats(a, b, count);
    for (int64_t d = 0; d < count; d++)
        a[d] = squared > 0 ? (float)(along / squared * (double)b[d]) : 0;
}

static void add_row(float *sum, const float *row, float factor, int64_t dim) {
    for (int64_t d = 0; d < dim; d++)
        sum[d] += factor * row[d];
}

/* For one head: takes from each row of the line its group's mean, except the part of that
   mean along the centroid. means and centroids: [clusters][D]; sizes: [clusters]. */
static void keep_centroids(const bench_data *data, int64_t head, int32_t clusters,
                           float *means, float *centroids, float *sizes) {
    const int64_t n = data->length, dim = data->dim;
    const int32_t *groups = data->groups + head * n;
    float *line = data->line_q + head * n * dim;
    memset(means, 0, (size_t)(clusters * dim) * sizeof *means);
    memset(centroids, 0, (size_t)(clusters * dim) * sizeof *centroids);
    memset(sizes, 0, (size_t)clusters * sizeof *sizes);
    for (int64_t i = 0; i < n; i++)
        sizes[groups[i]]++;
    for (int64_t i = 0; i < n; i++) {
        const float share = 1 / sizes[groups[i]];
        add_row(means + groups[i] * dim, line + i * dim, share, dim);
        add_row(centroids + groups[i] * dim, data->q + (head * n + i) * dim, share, dim);
    }
    for (int64_t i = 0; i < n; i++)
        add_row(line + i * dim, means + groups[i] * dim, -1, dim);
    for (int32_t j = 0; j < clusters; j++)
        keep_along(means + j * dim, centroids + j * dim, dim);
    for (int64_t i = 0; i < n; i++)
        add_row(line + i * dim, means + groups[i] * dim, 1, dim);
}

static bool keep_all_centroids(const bench_data *data, int32_t clusters) {
    const size_t rows = (size_t)clusters * (size_t)data->dim;
    float *memory = malloc((2 * rows + (size_t)clusters) * sizeof *memory);
    if (!memory)
        return false;
    for (int64_t head = 0; head < data->batch * data->heads; head++)
        keep_centroids(data, head, clusters, memory, memory + rows, memory + 2 * rows);
    free(memory);
    return true;
}

/* Reduces the line to directions that flip no choice of the kind: of a group's top keys,
   of a query's own top keys, of buckets. */
static bool keep_choices(shoal_plan *plan, const bench_data *data,
                         const shoal_attention *attention) {
    const bool top_keys = shoal_plan_top_keys(plan, NULL) != NULL;
    const bool own_top = attention->topk > 0 && !top_keys;
    const bool buckets = attention->rounds > 0 && data->length > SMALL;
    const int64_t keys = data->length * data->dim;
    if (own_top || buckets)
        for (int64_t at = 0; at < data->query_count; at += data->dim)
            keep_along(data->line_q + at, data->q + at, data->dim);
    if (own_top || top_keys)
        for (int64_t at = 0; at < data->query_count; at += keys)
            keep_along(data->line_k + at, data->k + at, keys);
    return !top_keys || keep_all_centroids(data, attention->clusters);
}

/* ---- Gradients: the difference ----------------------------------------------------- */

/* Makes the line of one array: its own direction and that of the array, both of the
   array's length. Returns the slope that may be expected of the two, signs aside. */
static double mix_line(float *line, const float *from, const float *gradient,
                       int64_t count) {
    const double length = sqrt(dot_floats(from, from, count));
    const double own = sqrt(dot_floats(line, line, count));
    for (int64_t i = 0; i < count; i++)
        line[i] =
            (float)((own > 0 ? length / own * (double)line[i] : 0) + (double)from[i]);
    return length * own + fabs(dot_floats(gradient, from, count));
}

static void move(float *moved, const float *from, const float *along, double step,
                 int64_t count) {
    for (int64_t i = 0; i < count; i++)
        moved[i] = (float)((double)from[i] + step * (double)along[i]);
}

/* <dout, out> at (q, k) + step (line), and what the gradient says about the way there,
   as far as q and k really moved after rounding. */
static shoal_status loss_at(shoal_plan *plan, bench_data *data, shoal_inputs inputs,
                            double step, double *loss, double *predicted) {
    move(data->moved_q, data->q, data->line_q, step, data->query_count);
    *predicted = dot_floats(data->moved_q, data->dq, data->query_count);
    inputs.q = data->moved_q;
    if (inputs.k) {
        move(data->moved_k, data->k, data->line_k, step, data->query_count);
        *predicted += dot_floats(data->moved_k, data->dk, data->query_count);
        inputs.k = data->moved_k;
    }
    shoal_status status = shoal_forward(plan, &inputs, data->out);
    *loss = dot_floats(data->dout, data->out, data->value_count);
    return status;
}

/* Difference between the slope by differences and by the gradient, relative to the size
   of its parts, and never to less than what rounding makes of the loss: few positions
   have gradients near 0. */
static shoal_status slope_error(shoal_plan *plan, bench_data *data, shoal_inputs inputs,
                                double *error) {
    double loss[2] = {0}, predicted[2] = {0};
    double size = mix_line(data->line_q, data->q, data->dq, data->query_count);
    shoal_status status = SHOAL_OK;
    if (inputs.k)
        size += mix_line(data->line_k, data->k, data->dk, data->query_count);
    for (int side = 0; side < 2 && status == SHOAL_OK; side++)
        status = loss_at(plan, data, inputs, side ? step_share : -step_share, &loss[side],
                         &predicted[side]);
    const double difference = fabs(loss[1] - loss[0] - (predicted[1] - predicted[0]));
    const double rounding = 5e-5 * fabs(loss[0]);
    *error = difference == 0 ? 0 : difference / (2 * step_share * size + rounding);
    return status;
}

static double relative(double a, double b) {
    return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b));
}

static shoal_status check_gradients(shoal_plan *plan, bench_data *data,
                                    const shoal_attention *attention, bench_row *row,
                                    bool few) {
    const size_t bytes = (size_t)data->query_count * sizeof(float);
    shoal_inputs inputs = bench_inputs(data, attention);
    double error = 0;
    bench_note(row,
               few ? "<dv, v> = <dout, out> on few positions" : "<dv, v> = <dout, out>",
               relative(dot_floats(data->dv, data->v, data->value_count),
                        dot_floats(data->dout, data->out, data->value_count)),
               1e-5);
    if (inputs.k)
        bench_note(row, "<dq, q> = <dk, k>",
                   relative(dot_floats(data->dq, data->q, data->query_count),
                            dot_floats(data->dk, data->k, data->query_count)),
                   1e-5);
    if (shoal_plan_groups(plan, NULL)) {
        const int64_t count = data->batch * data->heads * data->length;
        memcpy(data->groups, shoal_plan_groups(plan, NULL), (size_t)count * 4);
        inputs.groups = data->groups;
    }
    memcpy(data->line_q, data->dq, bytes);
    memcpy(data->line_k, data->dk, bytes);
    if (!keep_choices(plan, data, attention))
        return SHOAL_NO_MEMORY;
    shoal_status status = slope_error(plan, data, inputs, &error);
    bench_note(row,
               few ? "directional difference on few positions"
                   : "directional difference of dq and dk",
               error, 2e-3);
    return status;
}

/* ---- lsh, whose choices are not reported ------------------------------------------- */

/* All positions are in one chunk, whatever they hashed to. */
static shoal_status check_one_chunk(shoal_plan *plan, const bench_data *data,
                                    const shoal_attention *attention, bench_row *row) {
    int64_t queries[SMALL];
    squares sums = {0};
    double regret = 0;
    shoal_status status = SHOAL_OK;
    for (int64_t at = 0; at < data->batch * data->heads && status == SHOAL_OK; at++) {
        for (int64_t i = 0; i < SMALL; i++)
            queries[i] = at * SMALL + i;
        status = compare_queries(plan, data, attention, queries, SMALL, &sums, &regret);
    }
    bench_note(row, "exact at 32 positions, one chunk", squares_relative(sums),
               tolerance);
    return status;
}

static shoal_status check_small(bench_job *job, const shoal_attention *attention,
                                bench_row *row) {
    bench_data data;
    shoal_plan *plan = NULL;
    double seconds;
    if (!bench_data_create(&data, job, SMALL))
        return SHOAL_NO_MEMORY;
    const shoal_problem problem = bench_problem(&data);
    shoal_status status = shoal_plan_create(job->context, &problem, attention,
                                            job->train ? SHOAL_WITH_BACKWARD : 0, &plan);
    if (status == SHOAL_OK)
        status = bench_call(plan, &data, attention, &seconds);
    if (status == SHOAL_OK)
        status = check_one_chunk(plan, &data, attention, row);
    if (status == SHOAL_OK && job->train)
        status = check_gradients(plan, &data, attention, row, true);
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

/* ---- All of the attention ---------------------------------------------------------- */

static shoal_status verify(bench_job *job, shoal_plan *plan, bench_data *data,
                           const shoal_attention *attention, bench_row *row) {
    const bool reported = attention->rounds == 0; /* buckets are not */
    shoal_status status = reported ? check_samples(plan, data, attention, job->seed, row)
                                   : check_small(job, attention, row);
    if (status == SHOAL_OK && job->train)
        status = check_gradients(plan, data, attention, row, false);
    if (status == SHOAL_OK && !reported)
        status = check_sum(plan, data, attention, row);
    return status;
}

/* auto: the same call by what it picked, which tells its choices. */
static shoal_status verify_picked(bench_job *job, bench_data *data,
                                  const shoal_attention *picked, bench_row *row) {
    const uint64_t digest = bench_digest(data);
    const shoal_problem problem = bench_problem(data);
    shoal_plan *plan = NULL;
    double seconds;
    shoal_status status = shoal_plan_create(job->context, &problem, picked,
                                            job->train ? SHOAL_WITH_BACKWARD : 0, &plan);
    if (status == SHOAL_OK)
        status = bench_call(plan, data, picked, &seconds);
    if (status == SHOAL_OK) {
        bench_note(row, "the bits of what it picked", bench_digest(data) != digest, 0.5);
        status = verify(job, plan, data, picked, row);
    }
    shoal_plan_destroy(plan);
    return status;
}

shoal_status bench_verify(bench_job *job, shoal_plan *plan, bench_data *data, int kind,
                          bench_row *row) {
    shoal_attention used;
    shoal_status status = shoal_plan_picked(plan, NULL, &used);
    if (status == SHOAL_OK)
        status = used.kind == job->attention[kind].kind
                     ? verify(job, plan, data, &used, row)
                     : verify_picked(job, data, &used, row);
    row->verified = status == SHOAL_OK && !row->wrong;
    return status;
}
