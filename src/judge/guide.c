#include "judge/guide.h"

#include <math.h>

#include "judge/auto.h"

/* shoal-C with four times the top keys and another seed: the same groups would be wrong in
   the same places. Full attention, where that costs less. */
static shoal_attention guide_attention(const attention_call *call) {
    const shoal_plan *plan = call->plan;
    shoal_attention used = sh_shoal_kind.info.defaults, seen;
    const shoal_attention full = sh_full_kind.info.defaults;
    shoal_plan_picked(plan, call->state, &seen);
    if (seen.clusters > 0)
        used.clusters = seen.clusters;
    used.topk = (int32_t)min(4 * (int64_t)(seen.topk > 0 ? seen.topk : 32), 65535);
    used.seed = plan->attention.seed + 1;
    const int crossover = plan->context->crossover;
    return sh_auto_cost(&full, &plan->problem, crossover) <
                   sh_auto_cost(&used, &plan->problem, crossover)
               ? full
               : used;
}

/* One head at a time, into memory for one. Batch strides are not used; 1 keeps strides of
   0, which repeat a row, from meaning contiguous ones. */
static shoal_status plan_head(const attention_call *call, shoal_plan **plan) {
    const shoal_problem *problem = &call->plan->problem;
    const shoal_attention attention = guide_attention(call);
    const shoal_problem one = {.batch = 1,
                               .heads = 1,
                               .queries = problem->queries,
                               .keys = problem->keys,
                               .dim = problem->dim,
                               .value_dim = problem->value_dim,
                               .scale = problem->scale,
                               .q = {1, 0, problem->q.position},
                               .k = {1, 0, problem->k.position},
                               .v = {1, 0, problem->v.position}};
    return shoal_plan_create(call->plan->context, &one, &attention, 0, plan);
}

/* Squared distance of each query's row from the guide's, or from 0 where there is none. */
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

static shoal_status compare_heads(const attention_call *call, const float *out,
                                  shoal_plan *plan, float *guided, guide *made) {
    const shoal_problem *problem = &call->plan->problem;
    int64_t query = 0;
    for (int64_t head = 0; head < problem->batch * problem->heads; head++) {
        const int64_t b = head / problem->heads, h = head % problem->heads;
        const head_view view = sh_view_of(call, b, h);
        const row_view mine = sh_query_rows(call, out, &problem->out, b, h);
        made->out_squared +=
            compare_head(mine, view.queries, problem->value_dim, NULL, NULL);
        if (!plan)
            continue;
        const shoal_inputs inputs = {.q = view.q.data,
                                     .k = view.k.data,
                                     .v = view.v.data,
                                     .query_lengths = &view.queries,
                                     .key_lengths = &view.keys};
        const shoal_status status = shoal_forward(plan, &inputs, guided);
        if (status != SHOAL_OK)
            return status;
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

shoal_status sh_guide_create(const attention_call *call, const float *out, int64_t live,
                             int wanted, guide *made) {
    const shoal_problem *problem = &call->plan->problem;
    shoal_plan *plan = NULL;
    guide_arrays arrays = {live, sh_mul_checked(problem->queries, problem->value_dim),
                           NULL, NULL};
    shoal_status status = SHOAL_OK;
    *made = (guide){0};
    const shoal_kind_info *info = &call->plan->kind->info;
    if (wanted && (info->has_groups || info->picks) && problem->keys > 0) {
        status = plan_head(call, &plan);
        if (status == SHOAL_OK &&
            !sh_allocate_parts(call->plan->context, place, &arrays, NULL))
            status = SHOAL_NO_MEMORY;
        made->distances = status == SHOAL_OK ? arrays.distances : NULL;
    }
    if (status == SHOAL_OK)
        status = compare_heads(call, out, plan, arrays.guided, made);
    shoal_plan_destroy(plan);
    if (status != SHOAL_OK)
        sh_guide_destroy(call, made);
    /* A NaN among the outputs says nothing about where the others are off. */
    if (!isfinite(made->total))
        made->total = 0;
    return status;
}

void sh_guide_destroy(const attention_call *call, guide *made) {
    sh_release(call->plan->context, made->distances);
    *made = (guide){0};
}
