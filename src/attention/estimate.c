/* The error estimate: exact attention for some live queries, by the plainest loops in
 * double precision, a slice of features at a time with a softmax that streams over keys.
 *
 * One query in a hundred can carry half of the squared error, and an even draw misses it.
 * So a guide, a better approximation that is still linear, says where `out` is likely to
 * be off: query i is drawn with probability p_i, most of which is in proportion to its
 * squared distance from the guide's output, the rest even. What a drawn query shows is
 * divided by p_i, so the sums are unbiased whatever the guide is worth. The outputs'
 * squared length is known for all queries, and only its difference from the exact one is
 * estimated. */
#include <float.h>
#include <math.h>

#include "attention/heads.h"
#include "attention/masks.h"
#include "base/random.h"

/* ---- The guide -------------------------------------------------------------------- */

/* Every live query's squared distance from a second output, which is nearer to the exact
   one and has other groups. */
typedef struct {
    double out_squared; /* squared length of the output, all live queries */
    double out_centred; /* the same without the mean over each head's queries */
    float *distances;   /* [live queries], head by head; NULL where there is no guide */
    double total;       /* their sum; 0 where there is no guide */
} guide;

/* q-clustered with four times the top keys and another seed: the same groups would be
   wrong in the same places. Full attention, where that costs less. */
static shoal_attention guide_attention(const attention_call *call) {
    const shoal_plan *plan = call->plan;
    shoal_attention used = sh_q_clustered_kind.info.defaults, seen;
    const shoal_attention full = sh_full_kind.info.defaults;
    shoal_plan_picked(plan, call->state, &seen);
    if (seen.clusters > 0)
        used.clusters = seen.clusters;
    used.topk = (int32_t)min(4 * (int64_t)(seen.topk > 0 ? seen.topk : 32), 65535);
    used.seed = plan->attention.seed + 1;
    const int crossover = plan->context->crossover;
    return sh_attention_cost(&full, &plan->problem, crossover) <
                   sh_attention_cost(&used, &plan->problem, crossover)
               ? full
               : used;
}

/* Squared distance of each query's row from the guide's, or from 0 where there is
   none. */
static double compare_head(const row_view out, int64_t queries, int64_t dim,
                           const float *guided, float *distances) {
    double total = 0;
    for (int64_t i = 0; i < queries; i++) {
        double sum = 0;
        for (int64_t d = 0; d < dim; d++) {
            const double other = guided ? (double)guided[i * dim + d] : 0;
            const double apart = (double)out.data[i * out.stride + d] - other;
            sum += apart * apart;
        }
        if (distances)
            distances[i] = (float)sum;
        total += distances ? (double)(float)sum : sum;
    }
    return total;
}

/* Squared length of a head's rows without their mean. */
static double centred_square(row_view out, int64_t queries, int64_t dim) {
    double total = 0;
    for (int64_t d = 0; d < dim; d++) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < queries; i++)
            sum += (double)out.data[i * out.stride + d];
        for (int64_t i = 0; i < queries; i++) {
            const double x = (double)out.data[i * out.stride + d] - sum / (double)queries;
            squares += x * x;
        }
        total += squares;
    }
    return total;
}

static shoal_status compare_heads(const attention_call *call, const float *out,
                                  shoal_plan *plan, float *guided, guide *made) {
    const shoal_problem *problem = &call->plan->problem;
    int64_t query = 0;
    for (int64_t head = 0; head < problem->batch * problem->heads; head++) {
        const int64_t b = head / problem->heads, h = head % problem->heads;
        const head_view view = sh_view_of(call, b, h);
        const row_view mine = sh_query_rows(call, out, problem->out_strides, b, h);
        made->out_squared +=
            compare_head(mine, view.queries, problem->value_dim, NULL, NULL);
        made->out_centred += centred_square(mine, view.queries, problem->value_dim);
        if (!plan)
            continue;
        const score_masks masks = sh_masks_of(call, &view);
        const shoal_inputs inputs = {.size = sizeof(shoal_inputs),
                                     .q = view.q.data,
                                     .k = view.k.data,
                                     .v = view.v.data,
                                     .query_lengths = &view.queries,
                                     .key_lengths = &view.keys,
                                     .key_bias = masks.key_bias,
                                     .key_bias_strides = &(shoal_strides){
                                         .position = masks.key_bias_step}};
        TRY(shoal_forward(plan, &inputs, guided));
        made->total += compare_head(mine, view.queries, problem->value_dim, guided,
                                    made->distances + query);
        query += view.queries;
    }
    return SHOAL_OK;
}

typedef struct {
    int64_t live;     /* queries */
    int64_t head_out; /* elements of one head's output */
    float *distances; /* [live] */
    float *guided;    /* [head_out] */
} guide_arrays;

static void place(void *argument, block_layout *block) {
    guide_arrays *arrays = argument;
    arrays->distances = sh_reserve(block, arrays->live, sizeof(float));
    arrays->guided = sh_reserve(block, arrays->head_out, sizeof(float));
}

static void destroy_guide(const attention_call *call, guide *made) {
    sh_release(call->plan->context, made->distances);
    *made = (guide){0};
}

/* Without `wanted`, or for kinds that have no groups, only out_squared. */
static shoal_status create_guide(const attention_call *call, const float *out,
                                 int64_t live, int wanted, guide *made) {
    const shoal_problem *problem = &call->plan->problem;
    shoal_plan *plan = NULL;
    guide_arrays arrays = {live, sh_mul_checked(problem->queries, problem->value_dim),
                           NULL, NULL};
    shoal_status status = SHOAL_OK;
    *made = (guide){0};
    const shoal_kind_info *info = &call->plan->kind->info;
    if (wanted && (info->has_clusters || info->picks) && problem->keys > 0) {
        /* One head at a time, into memory for one. */
        const shoal_attention attention = guide_attention(call);
        const shoal_problem one = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = 1,
                                   .queries = problem->queries,
                                   .keys = problem->keys,
                                   .dim = problem->dim,
                                   .value_dim = problem->value_dim,
                                   .scale = problem->scale,
                                   .q_strides = problem->q_strides,
                                   .k_strides = problem->k_strides,
                                   .v_strides = problem->v_strides};
        status = shoal_plan_create(call->plan->context, &one, &attention, 0, &plan);
        if (status == SHOAL_OK &&
            !sh_allocate_parts(call->plan->context, place, &arrays, NULL))
            status = SHOAL_NO_MEMORY;
        made->distances = status == SHOAL_OK ? arrays.distances : NULL;
    }
    if (status == SHOAL_OK)
        status = compare_heads(call, out, plan, arrays.guided, made);
    shoal_plan_destroy(plan);
    if (status != SHOAL_OK)
        destroy_guide(call, made);
    /* A NaN among the outputs says nothing about where the others are off. */
    if (!isfinite(made->total))
        made->total = 0;
    return status;
}

/* ---- Exact attention of the samples ----------------------------------------------- */

enum { BATCH = 128, SLICE = 256 };

/* One query and what was found about it. */
typedef struct {
    int64_t b, h, i;
    double weight; /* what it counts for: the inverse of its probability */
    double error_squared, exact_squared, out_squared, largest;
    /* In totals: */
    double mean_squared;   /* squared length of the mean errors, times the queries */
    double weight_squared; /* sum of weight^2 error_squared, of the head at hand */
} sample;

typedef struct {
    const attention_call *call;
    const float *out;
    sample samples[BATCH];
    int64_t count;
    int all;       /* every live query is a sample */
    float *errors; /* [BATCH][Dv] */
    double *sums;  /* [Dv]: of weight x error, of the head at hand */
    int64_t head;  /* it; -1 before the first */
    int64_t queries;
} sample_batch;

static double dot(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t d = 0; d < count; d++)
        sum += (double)a[d] * (double)b[d];
    return sum;
}

static double exact_score(const shoal_plan *plan, const float *q, const float *k) {
    const int64_t dim = plan->problem.dim;
    double score = (double)plan->problem.scale * dot(q, k, dim), length = 1;
    if (plan->kind->info.unit_keys)
        length = sqrt(dot(k, k, dim));
    return length == 0 ? 0 : score / length;
}

/* A NaN, once there, stays. */
static void compare_slice(sample *at, const double *exact, const float *out,
                          int64_t count, float *errors) {
    for (int64_t f = 0; f < count; f++) {
        errors[f] = (float)((double)out[f] - exact[f]);
        const double error = fabs((double)out[f] - exact[f]);
        at->error_squared += error * error;
        at->exact_squared += exact[f] * exact[f];
        at->out_squared += (double)out[f] * (double)out[f];
        at->largest = error > at->largest || isnan(error) ? error : at->largest;
    }
}

static void sample_task(void *shared, int64_t task, int thread) {
    sample_batch *batch = shared;
    const attention_call *call = batch->call;
    const shoal_problem *problem = &call->plan->problem;
    sample *at = &batch->samples[task];
    const head_view view = sh_view_of(call, at->b, at->h);
    const row_view out =
        sh_query_rows(call, batch->out, problem->out_strides, at->b, at->h);
    const score_masks masks = sh_masks_of(call, &view);
    double exact[SLICE];
    (void)thread;
    for (int64_t first = 0; first < problem->value_dim; first += SLICE) {
        const int64_t count = min(SLICE, problem->value_dim - first);
        /* exact[f] = the attention's feature first + f of query i, for f < count. */
        const float *q = view.q.data + at->i * view.q.stride;
        double top = -DBL_MAX, sum = 0; /* not -inf: the first scores may be */
        for (int64_t f = 0; f < count; f++)
            exact[f] = 0;
        for (int64_t l = 0; l < view.keys; l++) {
            const double score =
                sh_masks_score(&masks, at->i, l,
                               exact_score(call->plan, q,
                                           view.k.data + l * view.k.stride));
            const float *v = view.v.data + l * view.v.stride + first;
            double weight = 1;
            if (score > top) {
                const double keep = exp(top - score);
                for (int64_t f = 0; f < count; f++)
                    exact[f] *= keep;
                sum *= keep;
                top = score;
            } else {
                weight = exp(score - top);
            }
            sum += weight;
            for (int64_t f = 0; f < count; f++)
                exact[f] += weight * (double)v[f];
        }
        for (int64_t f = 0; f < count && sum != 0; f++)
            exact[f] /= sum;
        compare_slice(at, exact, out.data + at->i * out.stride + first, count,
                      batch->errors + task * problem->value_dim + first);
    }
}

/* Adds the mean error of the head at hand to the total. Pairs of different samples tell
   its square without a bias. */
static void finish_head(sample_batch *batch, sample *total) {
    const int64_t dim = batch->call->plan->problem.value_dim;
    double square = batch->all ? 0 : -total->weight_squared;
    for (int64_t d = 0; d < dim && batch->head >= 0; d++)
        square += batch->sums[d] * batch->sums[d];
    if (batch->head >= 0 && batch->queries > 0 && !(square <= 0))
        total->mean_squared += square / (double)batch->queries;
    total->weight_squared = 0;
    for (int64_t d = 0; d < dim; d++)
        batch->sums[d] = 0;
}

/* Adds the batch's samples to the total, in their order. */
static void finish_batch(sample_batch *batch, sample *total) {
    const shoal_problem *problem = &batch->call->plan->problem;
    sh_team_run(sh_team_of(batch->call->plan->context), batch->count, sample_task, batch);
    for (int64_t s = 0; s < batch->count; s++) {
        const sample *at = &batch->samples[s];
        const float *errors = batch->errors + s * problem->value_dim;
        if (at->b * problem->heads + at->h != batch->head) {
            finish_head(batch, total);
            batch->head = at->b * problem->heads + at->h;
            batch->queries = sh_view_of(batch->call, at->b, at->h).queries;
        }
        for (int64_t d = 0; d < problem->value_dim; d++)
            batch->sums[d] += at->weight * (double)errors[d];
        total->weight_squared += at->weight * at->weight * at->error_squared;
        total->error_squared += at->weight * at->error_squared;
        total->exact_squared += at->weight * at->exact_squared;
        total->out_squared += at->weight * at->out_squared;
        if (at->largest > total->largest || isnan(at->largest))
            total->largest = at->largest;
    }
    batch->count = 0;
}

static int64_t count_live(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    int64_t live = 0;
    for (int64_t b = 0; b < problem->batch && problem->heads > 0; b++)
        live += problem->heads * sh_view_of(call, b, 0).queries;
    return live;
}

enum { EVEN_SHARE = 5 /* one fifth of the probability is even */ };

/* Queries in order, each as wide as its probability; one mark in each of `wanted` equal
   shares, at random. A query that holds several marks counts for each of them. */
static sample compare_samples(const attention_call *call, const float *out,
                              const guide *guided, int64_t live, int64_t wanted,
                              uint64_t seed, float *errors, double *sums) {
    const shoal_problem *problem = &call->plan->problem;
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    const int even = !(guided->total > 0) || wanted == live;
    sample_batch batch = {.call = call,
                          .out = out,
                          .all = wanted == live,
                          .errors = errors,
                          .sums = sums,
                          .head = -1};
    sample total = {0};
    double passed = 0;
    int64_t marks = 0, query = 0;
    for (int64_t head = 0; head < problem->batch * problem->heads; head++) {
        const int64_t b = head / problem->heads, h = head % problem->heads;
        const int64_t queries = sh_view_of(call, b, h).queries;
        for (int64_t i = 0; i < queries && marks < wanted; i++, query++) {
            double p = 1 / (double)live;
            if (!even)
                p = p / EVEN_SHARE + (1 - 1.0 / EVEN_SHARE) *
                                         (double)guided->distances[query] / guided->total;
            int64_t held = 0;
            passed += p;
            for (; marks < wanted; marks++, held++) {
                const uint64_t bits =
                    random_bits(seed, STREAM_SAMPLES, (uint64_t)marks) >> 11;
                const double inside = wanted == live ? 0.5 : (double)bits * unit;
                if (((double)marks + inside) / (double)wanted > passed)
                    break;
            }
            if (held == 0)
                continue;
            batch.samples[batch.count++] =
                (sample){.b = b,
                         .h = h,
                         .i = i,
                         .weight = (double)held / (p * (double)wanted)};
            if (batch.count == BATCH)
                finish_batch(&batch, &total);
        }
    }
    finish_batch(&batch, &total);
    finish_head(&batch, &total);
    return total;
}

/* |out - exact| / |exact|, where the squared length of the exact outputs is the outputs'
   own and what the samples say it differs by; or, should that come to nothing, what the
   samples say alone. */
static double relative_error(const sample *total, const guide *guided) {
    if (total->error_squared == 0 && !isnan(total->exact_squared))
        return 0;
    const double exact = guided->out_squared +
                         (total->exact_squared - total->out_squared);
    return sqrt(total->error_squared /
                (exact > 0 || isnan(exact) ? exact : total->exact_squared));
}

/* The same of what distinguishes the queries of a head. */
static double centred_error(const sample *total, const guide *guided) {
    const double error = total->error_squared - total->mean_squared;
    return error > 0 || isnan(error) ? sqrt(error / guided->out_centred) : 0;
}

/* Room for the errors of a batch. */
typedef struct {
    int64_t dim;
    float *errors;
    double *sums;
} error_rows;

static void place_errors(void *argument, block_layout *block) {
    error_rows *rows = argument;
    rows->errors = reserve_floats(block, BATCH, rows->dim);
    rows->sums = sh_reserve(block, rows->dim, sizeof(double));
}

static shoal_status estimate(const attention_call *call, const float *out,
                             int64_t samples, uint64_t seed, shoal_error *error) {
    const int64_t live = count_live(call), wanted = min(samples, live);
    guide guided = {0};
    *error = (shoal_error){.samples = wanted};
    if (wanted == 0)
        return SHOAL_OK;
    TRY(create_guide(call, out, live, wanted < live, &guided));
    error_rows rows = {.dim = call->plan->problem.value_dim};
    void *memory = sh_allocate_parts(call->plan->context, place_errors, &rows, NULL);
    if (memory) {
        const sample total = compare_samples(call, out, &guided, live, wanted, seed,
                                             rows.errors, rows.sums);
        error->largest_error = total.largest;
        error->relative_error = relative_error(&total, &guided);
        error->centred_error = centred_error(&total, &guided);
    }
    sh_release(call->plan->context, memory);
    destroy_guide(call, &guided);
    return memory ? SHOAL_OK : SHOAL_NO_MEMORY;
}

/* ---- Half precision ---------------------------------------------------------------- */

/* A call's problem and inputs in float32, contiguous, and the outputs that are judged. */
typedef struct {
    shoal_plan plan;
    shoal_inputs inputs;
    float *q, *k, *v, *out;
    int64_t *query_lengths, *key_lengths; /* [batch] */
    void *memory;
} float_copy;

static void place_copy(void *argument, block_layout *block) {
    float_copy *copy = argument;
    const shoal_problem *problem = &copy->plan.problem;
    const int64_t heads = problem->batch * problem->heads;
    const int64_t kv_heads = problem->batch * problem->kv_heads;
    const int64_t queries = sh_mul_checked(heads, problem->queries);
    const int64_t keys = sh_mul_checked(kv_heads, problem->keys);
    copy->q = reserve_floats(block, queries, problem->dim);
    copy->k = reserve_floats(block, keys, problem->dim);
    copy->v = reserve_floats(block, keys, problem->value_dim);
    copy->out = reserve_floats(block, queries, problem->value_dim);
    copy->query_lengths = sh_reserve(block, problem->batch, sizeof(int64_t));
    copy->key_lengths = sh_reserve(block, problem->batch, sizeof(int64_t));
}

/* The copy is contiguous, with lengths. */
static shoal_status create_copy(const attention_call *call, const void *out,
                                float_copy *copy) {
    const kernel_table *kernels = call->plan->kernels;
    const shoal_problem *from = &call->plan->problem;
    shoal_problem *problem = &copy->plan.problem;
    *copy = (float_copy){.plan = *call->plan, .inputs = *call->inputs};
    copy->memory = sh_allocate_parts(call->plan->context, place_copy, copy, NULL);
    if (!copy->memory)
        return SHOAL_NO_MEMORY;
    const int64_t N = problem->queries, S = problem->keys, H = problem->heads;
    const int64_t D = problem->dim, Dv = problem->value_dim, G = problem->kv_heads;
    problem->dtype = SHOAL_DTYPE_FLOAT32;
    problem->packed = 0;
    copy->plan.strides[0] = (shoal_strides){H * N * D, N * D, D};
    copy->plan.strides[1] = (shoal_strides){G * S * D, S * D, D};
    copy->plan.strides[2] = (shoal_strides){G * S * Dv, S * Dv, Dv};
    copy->plan.strides[3] = (shoal_strides){H * N * Dv, N * Dv, Dv};
    sh_plan_own_strides(&copy->plan);
    copy->inputs.q = copy->q;
    copy->inputs.k = call->inputs->k ? copy->k : NULL;
    copy->inputs.v = copy->v;
    copy->inputs.query_offsets = copy->inputs.key_offsets = NULL;
    copy->inputs.query_lengths = copy->query_lengths;
    copy->inputs.key_lengths = copy->key_lengths;
    for (int64_t head = 0; head < problem->batch * H; head++) {
        const int64_t b = head / H, h = head % H, kv_head = b * G + h / (H / G);
        const head_view view = sh_view_of(call, b, h);
        const row_view rows = sh_query_rows(call, out, from->out_strides, b, h);
        copy->query_lengths[b] = view.queries;
        copy->key_lengths[b] = view.keys;
        sh_widen_rows(kernels, half_rows_of(view.q, D, from->dtype), 0, view.queries,
                      copy->q + head * N * D);
        sh_widen_rows(kernels, half_rows_of(rows, Dv, from->dtype), 0, view.queries,
                      copy->out + head * N * Dv);
        if (h % (H / G))
            continue;
        sh_widen_rows(kernels, half_rows_of(view.k, D, from->dtype), 0, view.keys,
                      copy->k + kv_head * S * D);
        sh_widen_rows(kernels, half_rows_of(view.v, Dv, from->dtype), 0, view.keys,
                      copy->v + kv_head * S * Dv);
    }
    return SHOAL_OK;
}

shoal_status shoal_error_estimate(shoal_plan *plan, const shoal_inputs *inputs,
                                  const void *out, int64_t samples, uint64_t seed,
                                  shoal_error *error) {
    attention_call call;
    TRY(sh_call_check(plan, inputs, &call));
    if (!error || samples < 0)
        return REFUSE(plan->context,
                      "shoal_error_estimate: error is NULL or samples, %lld, is negative",
                      (long long)samples);
    if (plan->problem.dropout > 0)
        return REFUSE(plan->context, "shoal_error_estimate: the plan has dropout, which "
                                     "changes the outputs; create a plan without it");
    if (!out && min(samples, count_live(&call)) > 0)
        return REFUSE(plan->context, "shoal_error_estimate: out is NULL");
    shoal_error found;
    float_copy copy = {.memory = NULL};
    if (plan->problem.dtype != SHOAL_DTYPE_FLOAT32) {
        TRY(create_copy(&call, out, &copy));
        call.plan = &copy.plan;
        call.inputs = &copy.inputs;
        out = copy.out;
    }
    const shoal_status status = estimate(&call, out, samples, seed, &found);
    sh_release(plan->context, copy.memory);
    if (status == SHOAL_OK)
        *error = found;
    return status;
}
