/* A problem in half precision as one in float32: its arrays are copied, for judging
   alone. */
#include "attention/auto.h"
#include "attention/heads.h"

static void place(void *argument, block_layout *block) {
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

/* Contiguous, with lengths. */
static void describe(const attention_call *call, float_copy *copy) {
    shoal_problem *problem = &copy->plan.problem;
    const int64_t N = problem->queries, S = problem->keys;
    const int64_t D = problem->dim, Dv = problem->value_dim;
    problem->dtype = SHOAL_FLOAT32;
    problem->packed = 0;
    problem->q = (shoal_strides){problem->heads * N * D, N * D, D};
    problem->k = (shoal_strides){problem->kv_heads * S * D, S * D, D};
    problem->v = (shoal_strides){problem->kv_heads * S * Dv, S * Dv, Dv};
    problem->out = (shoal_strides){problem->heads * N * Dv, N * Dv, Dv};
    copy->inputs = *call->inputs;
    copy->inputs.q = copy->q;
    copy->inputs.k = call->inputs->k ? copy->k : NULL;
    copy->inputs.v = copy->v;
    copy->inputs.query_offsets = copy->inputs.key_offsets = NULL;
    copy->inputs.query_lengths = copy->query_lengths;
    copy->inputs.key_lengths = copy->key_lengths;
}

static void widen_head(const attention_call *call, const void *out, float_copy *copy,
                       int64_t b, int64_t h) {
    const shoal_problem *problem = &call->plan->problem;
    const kernel_table *kernels = call->plan->kernels;
    const shoal_dtype dtype = problem->dtype;
    const int64_t D = problem->dim, Dv = problem->value_dim;
    const int64_t sharing = problem->heads / problem->kv_heads;
    const int64_t at = (b * problem->heads + h) * problem->queries;
    const int64_t key_at = (b * problem->kv_heads + h / sharing) * problem->keys;
    const head_view view = sh_view_of(call, b, h);
    const row_view rows = sh_query_rows(call, out, &problem->out, b, h);
    copy->query_lengths[b] = view.queries;
    copy->key_lengths[b] = view.keys;
    sh_widen_rows(kernels, half_rows_of(view.q, D, dtype), 0, view.queries,
                  copy->q + at * D);
    sh_widen_rows(kernels, half_rows_of(rows, Dv, dtype), 0, view.queries,
                  copy->out + at * Dv);
    if (h % sharing)
        return;
    sh_widen_rows(kernels, half_rows_of(view.k, D, dtype), 0, view.keys,
                  copy->k + key_at * D);
    sh_widen_rows(kernels, half_rows_of(view.v, Dv, dtype), 0, view.keys,
                  copy->v + key_at * Dv);
}

shoal_status sh_floats_create(const attention_call *call, const void *out,
                              float_copy *copy) {
    const shoal_problem *problem = &call->plan->problem;
    *copy = (float_copy){.plan = *call->plan};
    copy->memory = sh_allocate_parts(call->plan->context, place, copy, NULL);
    if (!copy->memory)
        return SHOAL_NO_MEMORY;
    describe(call, copy);
    for (int64_t head = 0; head < problem->batch * problem->heads; head++)
        widen_head(call, out, copy, head / problem->heads, head % problem->heads);
    return SHOAL_OK;
}

void sh_floats_destroy(float_copy *copy) {
    sh_release(copy->plan.context, copy->memory);
}
