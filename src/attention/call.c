#include "attention/call.h"

#include <string.h>

static shoal_status check_lengths(const shoal_plan *plan, const char *name,
                                  const int64_t *lengths, int64_t most) {
    for (int64_t b = 0; lengths && b < plan->problem.batch; b++)
        if (lengths[b] < 0 || lengths[b] > most)
            return sh_fail(plan->context, SHOAL_INVALID,
                           "%s[%lld] is %lld: it must be from 0 to %lld", name,
                           (long long)b, (long long)lengths[b], (long long)most);
    return SHOAL_OK;
}

/* The last position of an array that an int64_t reaches. */
static int64_t last_position(const shoal_strides *strides) {
    return INT64_MAX / 64 / (strides->position ? strides->position : 1);
}

static shoal_status check_offsets(const shoal_plan *plan, const char *name,
                                  const int64_t *offsets, int64_t most, int64_t last) {
    if (!offsets)
        return sh_fail(plan->context, SHOAL_INVALID, "a packed problem needs inputs.%s",
                       name);
    for (int64_t b = 0; b <= plan->problem.batch; b++) {
        if (offsets[b] < 0 || offsets[b] > last)
            return sh_fail(plan->context, SHOAL_INVALID, "%s[%lld] is %lld: out of range",
                           name, (long long)b, (long long)offsets[b]);
        if (b > 0 && (offsets[b] < offsets[b - 1] || offsets[b] - offsets[b - 1] > most))
            return sh_fail(
                plan->context, SHOAL_INVALID,
                "%s[%lld] .. [%lld] are %lld .. %lld: a sequence has 0 to %lld "
                "positions",
                name, (long long)b - 1, (long long)b, (long long)offsets[b - 1],
                (long long)offsets[b], (long long)most);
    }
    return SHOAL_OK;
}

static shoal_status check_positions(const shoal_plan *plan, const shoal_inputs *inputs) {
    const shoal_problem *problem = &plan->problem;
    shoal_status status;
    if (!problem->packed) {
        if (inputs->query_offsets || inputs->key_offsets)
            return sh_fail(plan->context, SHOAL_INVALID,
                           "offsets are given, but the problem is not packed");
        status =
            check_lengths(plan, "query_lengths", inputs->query_lengths, problem->queries);
        if (status != SHOAL_OK)
            return status;
        return check_lengths(plan, "key_lengths", inputs->key_lengths, problem->keys);
    }
    if (inputs->query_lengths || inputs->key_lengths)
        return sh_fail(plan->context, SHOAL_INVALID,
                       "a packed problem takes offsets, not lengths");
    const int64_t last_key = min(last_position(&problem->k), last_position(&problem->v));
    int64_t last_query = min(last_position(&problem->q), last_position(&problem->out));
    if (plan->kind->keys_are_queries)
        last_query = min(last_query, last_key);
    status = check_offsets(plan, "query_offsets", inputs->query_offsets, problem->queries,
                           last_query);
    if (status == SHOAL_OK && !plan->kind->keys_are_queries)
        status = check_offsets(plan, "key_offsets", inputs->key_offsets, problem->keys,
                               last_key);
    return status;
}

static int64_t live_queries(const attention_call *call, int64_t b) {
    const shoal_inputs *inputs = call->inputs;
    if (call->plan->problem.packed)
        return inputs->query_offsets[b + 1] - inputs->query_offsets[b];
    return inputs->query_lengths ? inputs->query_lengths[b] : call->plan->problem.queries;
}

static int64_t live_keys(const attention_call *call, int64_t b) {
    const shoal_inputs *inputs = call->inputs;
    if (call->plan->kind->keys_are_queries)
        return live_queries(call, b);
    if (call->plan->problem.packed)
        return inputs->key_offsets[b + 1] - inputs->key_offsets[b];
    return inputs->key_lengths ? inputs->key_lengths[b] : call->plan->problem.keys;
}

static shoal_status check_groups(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    const int32_t *groups = call->inputs->groups;
    if (!groups)
        return SHOAL_OK;
    if (!call->plan->kind->groups)
        return sh_fail(call->plan->context, SHOAL_INVALID,
                       "groups are given, but %s has none", call->plan->kind->info.name);
    for (int64_t head = 0; head < problem->batch * problem->heads; head++) {
        int64_t live = live_queries(call, head / problem->heads);
        for (int64_t i = 0; i < live; i++) {
            int32_t group = groups[head * problem->queries + i];
            if (group < 0 || group >= call->plan->attention.clusters)
                return sh_fail(
                    call->plan->context, SHOAL_INVALID,
                    "groups[%lld][%lld][%lld] is %d: a live query's group must be "
                    "from 0 to %d",
                    (long long)(head / problem->heads),
                    (long long)(head % problem->heads), (long long)i, (int)group,
                    (int)call->plan->attention.clusters - 1);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_keys_are_queries(const attention_call *call) {
    const shoal_inputs *inputs = call->inputs;
    const shoal_plan *plan = call->plan;
    if (inputs->k && inputs->k != inputs->q)
        return sh_fail(plan->context, SHOAL_INVALID,
                       "%s needs keys that are the queries: pass k = NULL (or q itself)",
                       plan->kind->info.name);
    for (int64_t b = 0; inputs->key_lengths && b < plan->problem.batch; b++)
        if (inputs->key_lengths[b] != live_queries(call, b))
            return sh_fail(
                plan->context, SHOAL_INVALID,
                "%s needs keys that are the queries: key_lengths[%lld] is %lld, the "
                "queries' length is %lld",
                plan->kind->info.name, (long long)b, (long long)inputs->key_lengths[b],
                (long long)live_queries(call, b));
    for (int64_t b = 0; inputs->key_offsets && b <= plan->problem.batch; b++)
        if (inputs->key_offsets[b] != inputs->query_offsets[b])
            return sh_fail(
                plan->context, SHOAL_INVALID,
                "%s needs keys that are the queries: key_offsets[%lld] is %lld, "
                "query_offsets[%lld] is %lld; pass key_offsets = NULL",
                plan->kind->info.name, (long long)b, (long long)inputs->key_offsets[b],
                (long long)b, (long long)inputs->query_offsets[b]);
    return SHOAL_OK;
}

shoal_status sh_call_check(shoal_plan *plan, const shoal_inputs *inputs,
                           attention_call *now) {
    if (!plan)
        return SHOAL_INVALID;
    if (!inputs)
        return sh_fail(plan->context, SHOAL_INVALID, "inputs is NULL");
    const shoal_problem *problem = &plan->problem;
    int64_t heads = problem->batch * problem->heads;
    *now = (attention_call){.plan = plan, .inputs = inputs};
    now->state = inputs->state ? inputs->state : plan->state;
    if ((uintptr_t)now->state % CACHE_LINE)
        return sh_fail(plan->context, SHOAL_INVALID,
                       "inputs.state is not aligned to %d bytes", CACHE_LINE);
    if (heads * problem->queries > 0 && !inputs->q)
        return sh_fail(plan->context, SHOAL_INVALID, "inputs.q is NULL");
    if (heads * problem->keys > 0 &&
        (!inputs->v || (!inputs->k && !plan->kind->keys_are_queries)))
        return sh_fail(plan->context, SHOAL_INVALID, "inputs.k or inputs.v is NULL");
    shoal_status status = check_positions(plan, inputs);
    if (status == SHOAL_OK && plan->kind->keys_are_queries)
        status = check_keys_are_queries(now);
    if (status == SHOAL_OK)
        status = check_groups(now);
    return status;
}

rows sh_rows_of(const float *array, const shoal_strides *strides, const int64_t *offsets,
                int64_t b, int64_t h) {
    int64_t start = offsets ? offsets[b] * strides->position : b * strides->batch;
    /* A NULL array (an empty problem's) must not be moved. */
    return (rows){array ? (float *)array + start + h * strides->head : NULL,
                  strides->position};
}

rows sh_query_rows(const attention_call *call, const float *array,
                   const shoal_strides *strides, int64_t b, int64_t h) {
    return sh_rows_of(array, strides, call->inputs->query_offsets, b, h);
}

rows sh_key_rows(const attention_call *call, const float *array,
                 const shoal_strides *strides, int64_t b, int64_t kv_head) {
    const shoal_inputs *inputs = call->inputs;
    const int64_t *offsets = call->plan->kind->keys_are_queries ? inputs->query_offsets
                                                                : inputs->key_offsets;
    return sh_rows_of(array, strides, offsets, b, kv_head);
}

head_view sh_view_of(const attention_call *call, int64_t b, int64_t h) {
    const shoal_problem *problem = &call->plan->problem;
    const shoal_inputs *inputs = call->inputs;
    int64_t kv_head = h / (problem->heads / problem->kv_heads);
    head_view view = {.queries = live_queries(call, b),
                      .keys = live_keys(call, b),
                      .q = sh_query_rows(call, inputs->q, &problem->q, b, h),
                      .v = sh_key_rows(call, inputs->v, &problem->v, b, kv_head),
                      .head = b * problem->heads + h};
    view.k = call->plan->kind->keys_are_queries
                 ? view.q
                 : sh_key_rows(call, inputs->k, &problem->k, b, kv_head);
    return view;
}

void sh_clear_rows(rows where, int64_t first, int64_t last, int64_t dim) {
    for (int64_t i = first; where.data && i < last; i++)
        memset(where.data + i * where.stride, 0, (size_t)dim * sizeof(float));
}
