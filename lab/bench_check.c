/* A time is printed only for a verified result.

   Attention: the outputs of sampled queries equal those of the formulas in exact/ with
   the clusters and exact keys that the plan reports, and no other key of a cluster has
   a larger score than its exact keys. lsh does not report its hashes: it is compared
   where hashing does not matter (32 positions, one chunk), and at the measured length
   its weights must sum to 1. auto must have the bits of the kind that it picked, which
   is verified.

   Backward: out is linear in v, so with the loss <dout, out> the gradient satisfies
   <dv, v> = <dout, out>; dout is set to out, which makes both sides large. Scores are
   products of queries and keys, so scaling either has the same effect: <dq, q> = <dk,
   k> in every kind with separate keys and without key clusters. For another dout,
   nonzero only on a few queries of one head, all gradients must equal the exact ones
   (for lsh on 32 positions). At the measured length all queries of lsh are scaled,
   which changes no bucket, and the change of the loss must match <dq, q>. */
#include "bench.h"

enum {
    SAMPLES = 32,       /* queries */
    EXACT_SAMPLES = 64, /* for kinds without clusters */
    FEW = 8,            /* queries with a nonzero gradient */
    SMALL = 32          /* positions of one chunk of lsh */
};

static const double tolerance = 1e-5;

/* Relative step by which the queries are scaled. */
static const double step_share = 5e-5;

void bench_note(bench_row *row, const char *what, double error, double limit) {
    if (row->check_count < BENCH_CHECKS)
        row->checks[row->check_count++] = (bench_check){what, error, limit};
    if (!(error < limit))
        row->wrong = true;
}

/* ---- Sampled queries --------------------------------------------------------------- */

/* Adds one query's output to the sums and returns by how much another key is better
   than the worst exact key. Keys whose order may depend on rounding are not
   compared. */
static double compare_query(exact_head *head, int64_t i, const shoal_attention *attention,
                            const float *out, double *exact, squares *sums) {
    if (head->groups && (head->groups[i] < 0 || head->groups[i] >= attention->clusters))
        return INFINITY;
    exact_output(head, i, exact);
    for (int64_t d = 0; d < head->value_dim && head->margin > 1e-5; d++)
        squares_add(sums, (double)out[d], exact[d]);
    /* Difference of centroid scores between the best other key and the worst exact
       key. */
    double worst = INFINITY, best = -INFINITY;
    for (int64_t l = 0; l < head->keys && head->top_keys; l++)
        if (head->counts[l] > 0)
            worst = fmin(worst, exact_score(head, head->centroid, l));
        else
            best = fmax(best, head->scores[l]);
    return fmax(0, best - worst);
}

/* queries: indices into [B][H][N]. */
static void compare_queries(const shoal_plan *plan, const bench_data *data,
                            const shoal_attention *attention, const int64_t *queries,
                            int64_t count, squares *sums, double *regret) {
    const shoal_problem problem = bench_problem(data);
    const shoal_inputs inputs = bench_inputs(data, attention);
    const int64_t n = data->length;
    double *exact = reserve((size_t)data->value_dim, sizeof *exact);
    exact_head *head = NULL;
    for (int64_t s = 0; s < count; s++) {
        const int64_t at = queries[s] / n, i = queries[s] % n;
        if (s == 0 || at != queries[s - 1] / n) {
            exact_destroy(head);
            head = exact_load(&problem, &inputs, plan, attention, at / data->heads,
                              at % data->heads);
        }
        if (!head)
            die_of_memory();
        const float *out = data->out + queries[s] * data->value_dim;
        *regret = fmax(*regret, compare_query(head, i, attention, out, exact, sums));
    }
    exact_destroy(head);
    free(exact);
}

static void check_samples(const shoal_plan *plan, const bench_data *data,
                          const shoal_attention *attention, uint64_t seed,
                          bench_row *row) {
    const bool groups = shoal_plan_clusters(plan, NULL) != NULL;
    const bool all_keys = kind_facts(attention)->exact;
    int64_t queries[EXACT_SAMPLES];
    squares sums = {0};
    double regret = 0;
    const int64_t count = all_keys ? EXACT_SAMPLES : SAMPLES;
    for (int64_t s = 0; s < count; s++) {
        const uint64_t draw = bench_random(seed, (uint64_t)9 << 56 | (uint64_t)s);
        queries[s] =
            (int64_t)(draw % (uint64_t)(data->batch * data->heads * data->length));
        for (int64_t at = s; at > 0 && queries[at - 1] > queries[at]; at--) {
            const int64_t larger = queries[at - 1]; /* sorted, so that those of a head
                                                       are adjacent */
            queries[at - 1] = queries[at];
            queries[at] = larger;
        }
    }
    compare_queries(plan, data, attention, queries, count, &sums, &regret);
    bench_note(row,
               groups     ? "formula with the plan's clusters, 32 sampled queries"
               : all_keys ? "exact attention, 64 sampled queries"
                          : "formula of the kind, 32 sampled queries",
               squares_relative(sums), tolerance);
    if (shoal_plan_top_keys(plan, NULL))
        bench_note(row, "no better key than the exact keys", regret, 1e-4);
}

/* ---- Gradients --------------------------------------------------------------------- */

/* Exact gradients of one head: dq, dk [N][D], dv [N][Dv]. */
typedef struct {
    double *dq, *dk, *dv, *dout; /* dout: [Dv] */
} exact_gradients;

/* Sets dout to v on up to FEW queries of the head, one from each part, and adds their
   gradients. dout stays 0 where the choice of keys may depend on rounding. */
static void draw_gradients(const bench_data *data, exact_head *head, int64_t at,
                           uint64_t seed, exact_gradients *exact) {
    const int64_t n = data->length, few = n < FEW ? n : FEW, Dv = data->value_dim;
    for (int64_t s = 0; s < few; s++) {
        const uint64_t draw = bench_random(seed, (uint64_t)13 << 56 | (uint64_t)s);
        const int64_t first = s * n / few, next = (s + 1) * n / few;
        const int64_t i = first + (int64_t)(draw % (uint64_t)(next - first));
        const int64_t from = (at * n + i) * Dv;
        exact_row(head, i);
        if (head->margin <= 1e-5)
            continue;
        for (int64_t d = 0; d < Dv; d++) {
            data->dout[from + d] = data->v[from + d];
            exact->dout[d] = (double)data->v[from + d];
        }
        exact_output_gradient(head, i, exact->dout, exact->dq, exact->dk, exact->dv);
    }
}

double bench_worst(squares sums[3], double share) {
    const double largest = fmax(fmax(sums[0].size, sums[1].size), sums[2].size);
    double worst = 0;
    for (int a = 0; a < 3; a++) {
        sums[a].size = fmax(sums[a].size, share * largest);
        worst = worse(worst, squares_relative(sums[a]));
    }
    return worst;
}

/* Error of the three gradients over all heads. */
static double gradients_error(const bench_data *data, int64_t at, bool own_keys,
                              const exact_gradients *exact) {
    const float *const made[] = {data->dv, data->dq, data->dk};
    const double *const expected[] = {exact->dv, exact->dq, exact->dk};
    const int64_t sizes[] = {data->length * data->value_dim, data->length * data->dim,
                             data->length * data->dim};
    squares sums[3] = {0};
    for (int a = 0; a < (own_keys ? 3 : 2); a++)
        for (int64_t i = 0; i < data->batch * data->heads * sizes[a]; i++)
            squares_add(&sums[a], (double)made[a][i],
                        i / sizes[a] == at ? expected[a][i % sizes[a]] : 0);
    return bench_worst(sums, 1e-2);
}

/* Compares the gradient of a few queries of one head with the exact one. */
static void check_few(shoal_plan *plan, const bench_data *data,
                      const shoal_attention *attention, uint64_t seed, bench_row *row,
                      const char *what) {
    const shoal_problem problem = bench_problem(data);
    const shoal_inputs inputs = bench_inputs(data, attention);
    const shoal_gradients gradients = bench_gradients(data);
    const int64_t queries = data->length * data->dim, Dv = data->value_dim;
    const uint64_t draw = bench_random(seed, (uint64_t)13 << 56 | FEW);
    const int64_t at = (int64_t)(draw % (uint64_t)(data->batch * data->heads));
    demand(shoal_forward(plan, &inputs, data->out), EXIT_USAGE);
    exact_head *head = exact_load(&problem, &inputs, plan, attention, at / data->heads,
                                  at % data->heads);
    if (!head)
        die_of_memory();
    double *memory =
        reserve_zeros((size_t)(2 * queries + (data->length + 1) * Dv), sizeof *memory);
    exact_gradients exact = {.dq = memory,
                             .dk = memory + queries,
                             .dv = memory + 2 * queries,
                             .dout = memory + 2 * queries + data->length * Dv};
    memset(data->dout, 0, (size_t)data->value_count * sizeof *data->dout);
    draw_gradients(data, head, at, seed, &exact);
    demand(shoal_backward(plan, &inputs, &gradients), EXIT_USAGE);
    bench_note(row, what, gradients_error(data, at, inputs.k != NULL, &exact), 1e-4);
    exact_destroy(head);
    free(memory);
}

/* Compares the change of the loss <dout, out> when all queries are scaled with the
   prediction of the gradient for the step actually made after rounding. The error is
   relative to the gradient, but at least to the rounding error of the loss: with few
   positions gradients are near 0. */
static void check_scaling(shoal_plan *plan, const bench_data *data,
                          const shoal_attention *attention, bench_row *row) {
    shoal_inputs inputs = bench_inputs(data, attention);
    double loss[2] = {0}, predicted[2] = {0};
    inputs.q = data->moved_q;
    for (int side = 0; side < 2; side++) {
        const double scale = side ? 1 + step_share : 1 - step_share;
        for (int64_t i = 0; i < data->query_count; i++)
            data->moved_q[i] = (float)(scale * (double)data->q[i]);
        predicted[side] = dot_floats(data->moved_q, data->dq, data->query_count);
        demand(shoal_forward(plan, &inputs, data->out), EXIT_USAGE);
        loss[side] = dot_floats(data->dout, data->out, data->value_count);
    }
    const double size = fabs(dot_floats(data->dq, data->q, data->query_count));
    const double difference = fabs(loss[1] - loss[0] - (predicted[1] - predicted[0]));
    const double rounding = 5e-5 * fabs(loss[0]);
    bench_note(row, "difference when the queries are scaled",
               difference == 0 ? 0 : difference / (2 * step_share * size + rounding),
               2e-3);
}

static double relative(double a, double b) {
    return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b));
}

/* ---- lsh, which does not report its buckets --------------------------------------- */

/* With one chunk the result does not depend on the hashes. */
static void check_small(bench_job *job, const shoal_attention *attention,
                        bench_row *row) {
    bench_data data;
    int64_t queries[SMALL];
    squares sums = {0};
    double regret = 0;
    bench_data_create(&data, job, SMALL, 0, SMALL);
    shoal_plan *plan =
        bench_plan(job, &data, attention, job->train ? SHOAL_WITH_BACKWARD : 0);
    bench_call(plan, &data, attention);
    for (int64_t at = 0; at < data.batch * data.heads; at++) {
        for (int64_t i = 0; i < SMALL; i++)
            queries[i] = at * SMALL + i;
        compare_queries(plan, &data, attention, queries, SMALL, &sums, &regret);
    }
    bench_note(row, "exact at 32 positions, one chunk", squares_relative(sums),
               tolerance);
    if (job->train)
        check_few(plan, &data, attention, job->seed, row,
                  "gradients of 8 queries, 32 positions");
    shoal_plan_destroy(plan);
    bench_data_destroy(&data);
}

/* ---- Attention -------------------------------------------------------------------- */

static void verify(bench_job *job, shoal_plan *plan, bench_data *data,
                   const shoal_attention *attention, bench_row *row) {
    const bool reported = attention->rounds == 0; /* lsh does not report its buckets */
    if (reported)
        check_samples(plan, data, attention, job->seed, row);
    else
        check_small(job, attention, row);
    if (job->train) {
        /* For the timed call, where dout is out. */
        bench_note(row, "<dv, v> = <dout, out>",
                   relative(dot_floats(data->dv, data->v, data->value_count),
                            dot_floats(data->dout, data->out, data->value_count)),
                   1e-5);
        /* Key clusters compare keys with the mean of the keys, which is treated as a
           constant. */
        if (!kind_facts(attention)->keys_are_queries && attention->keyclusters == 0)
            bench_note(row, "<dq, q> = <dk, k>",
                       relative(dot_floats(data->dq, data->q, data->query_count),
                                dot_floats(data->dk, data->k, data->query_count)),
                       1e-5);
        if (reported)
            check_few(plan, data, attention, job->seed, row, "gradients of 8 queries");
        else
            check_scaling(plan, data, attention, row);
    }
    if (!reported) {
        /* The average of values that are all 1 is 1. */
        shoal_inputs inputs = bench_inputs(data, attention);
        double largest = 0;
        for (int64_t i = 0; i < data->value_count; i++)
            data->spare[i] = 1;
        inputs.v = data->spare;
        demand(shoal_forward(plan, &inputs, data->out), EXIT_USAGE);
        for (int64_t i = 0; i < data->value_count; i++)
            largest = worse(largest, fabs((double)data->out[i] - 1));
        bench_note(row, "weights sum to 1", largest, tolerance);
    }
}

void bench_verify(bench_job *job, shoal_plan *plan, bench_data *data, int kind,
                  bench_row *row) {
    shoal_attention used;
    demand(shoal_plan_picked(plan, NULL, &used), EXIT_USAGE);
    const bool picked = used.kind != job->kinds.attention[kind].kind;
    /* shoal-C reports its choices only in plans with backward. */
    const bool silent = used.keyclusters > 0 && !job->train;
    if (picked || silent) {
        /* A call of another plan with the same inputs must give the same bits and is
           verified instead. */
        const uint64_t digest = bench_digest(data);
        /* Numbers that were left to shoal may adapt to the data; spelled ones do not. */
        const shoal_attention *same = picked ? &used : &job->kinds.attention[kind];
        shoal_plan *other =
            bench_plan(job, data, same, silent || job->train ? SHOAL_WITH_BACKWARD : 0);
        bench_call(other, data, same);
        bench_note(row,
                   picked ? "the bits of the kind it picked"
                          : "the bits of a plan with backward",
                   bench_digest(data) != digest, 0.5);
        verify(job, other, data, &used, row);
        shoal_plan_destroy(other);
    } else {
        verify(job, plan, data, &used, row);
    }
    row->verified = !row->wrong;
}
