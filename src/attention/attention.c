/* The main road. A plan is made here (checks, sizes, memory) and a call goes from here to
   its kind. The table at the end has one row per kind. */
#include <math.h>
#include <string.h>

#include "attention/call.h"
#include "attention/clustered.h"
#include "attention/full.h"
#include "attention/lsh.h"
#include "attention/oracle.h"

static shoal_status check_sizes(shoal_context *context, const shoal_problem *problem) {
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = {
        {"batch", problem->batch, 0, INT32_MAX},
        {"heads", problem->heads, 0, INT32_MAX},
        {"kv_heads", problem->kv_heads, 0, INT32_MAX},
        {"queries", problem->queries, 0, INT32_MAX},
        {"keys", problem->keys, 0, INT32_MAX},
        {"dim", problem->dim, 1, 65536},
        {"value_dim", problem->value_dim, 1, 65536},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return sh_fail(context, SHOAL_INVALID,
                           "problem.%s is %lld: it must be from %lld to %lld",
                           sizes[i].name, (long long)sizes[i].value,
                           (long long)sizes[i].least, (long long)sizes[i].most);
    if (problem->kv_heads > problem->heads ||
        (problem->kv_heads && problem->heads % problem->kv_heads))
        return sh_fail(
            context, SHOAL_INVALID,
            "problem.kv_heads is %lld: it must divide problem.heads, %lld, and not "
            "exceed it",
            (long long)problem->kv_heads, (long long)problem->heads);
    int64_t all;
    if (__builtin_mul_overflow(problem->batch * problem->heads,
                               problem->queries + problem->keys, &all))
        return sh_fail(context, SHOAL_INVALID,
                       "problem: batch x heads x positions overflows 64 bits");
    if (!isfinite(problem->scale))
        return sh_fail(context, SHOAL_INVALID, "problem.scale is not finite");
    return SHOAL_OK;
}

/* Strides that were left 0 become contiguous; then the farthest element must be within
   reach of an int64_t. */
static shoal_status fill_strides(shoal_context *context, const char *name, int packed,
                                 const int64_t shape[4], shoal_strides *strides) {
    int64_t batch = shape[0], heads = shape[1], positions = shape[2], features = shape[3];
    int overflow = 0;
    if (!strides->batch && !strides->head && !strides->position) {
        strides->head = packed ? features : positions * features;
        strides->position = packed ? heads * features : features;
        overflow |= __builtin_mul_overflow(heads, positions * features, &strides->batch);
    }
    const int64_t counts[3] = {packed ? 1 : batch, heads, positions};
    const int64_t steps[3] = {strides->batch, strides->head, strides->position};
    int64_t reach = features;
    for (int i = 0; i < 3; i++) {
        int64_t span;
        overflow |= steps[i] < 0;
        overflow |= __builtin_mul_overflow(counts[i], steps[i], &span);
        overflow |= __builtin_add_overflow(reach, span, &reach);
    }
    if (overflow || reach > INT64_MAX / 64)
        return sh_fail(context, SHOAL_INVALID,
                       "problem.%s: shape and strides overflow or are negative", name);
    return SHOAL_OK;
}

static shoal_status fill_problem(shoal_context *context, const attention_kind *kind,
                                 shoal_problem *problem) {
    shoal_status status = check_sizes(context, problem);
    if (status != SHOAL_OK)
        return status;
    if (!problem->kv_heads)
        problem->kv_heads = problem->heads;
    if (problem->scale == 0)
        problem->scale = 1 / sqrtf((float)problem->dim);
    if (kind->keys_are_queries &&
        (problem->queries != problem->keys || problem->kv_heads != problem->heads))
        return sh_fail(
            context, SHOAL_INVALID,
            "%s needs keys that are the queries: %lld queries of %lld heads do not "
            "fit %lld keys of %lld heads",
            kind->info.name, (long long)problem->queries, (long long)problem->heads,
            (long long)problem->keys, (long long)problem->kv_heads);
    const int64_t B = problem->batch, N = problem->queries, S = problem->keys;
    const int64_t q[] = {B, problem->heads, N, problem->dim};
    const int64_t k[] = {B, problem->kv_heads, S, problem->dim};
    const int64_t v[] = {B, problem->kv_heads, S, problem->value_dim};
    const int64_t out[] = {B, problem->heads, N, problem->value_dim};
    status = fill_strides(context, "q", problem->packed, q, &problem->q);
    if (status == SHOAL_OK)
        status = fill_strides(context, "k", problem->packed, k, &problem->k);
    if (status == SHOAL_OK)
        status = fill_strides(context, "v", problem->packed, v, &problem->v);
    if (status == SHOAL_OK)
        status = fill_strides(context, "out", problem->packed, out, &problem->out);
    return status;
}

/* Work and state lie in one block, one after the other. */
static void place_memory(void *argument, block_layout *block) {
    shoal_plan *plan = argument;
    block_layout work = {.base = block->base}, state = {0};
    if (block->base)
        state.base = plan->state = block->base + plan->work_size;
    plan->kind->place(plan, &work, &state);
    plan->work_size = work.bytes;
    plan->state_size = state.bytes;
    block->overflow = work.overflow || state.overflow;
    sh_reserve(block, (int64_t)work.bytes, 1);
    sh_reserve(block, (int64_t)state.bytes, 1);
}

shoal_status shoal_plan_create(shoal_context *context, const shoal_problem *problem,
                               const shoal_attention *attention, unsigned flags,
                               shoal_plan **plan) {
    if (plan)
        *plan = NULL;
    if (context && !context->kernels)
        return SHOAL_INVALID; /* the message says why the context was refused */
    if (!context || !problem || !attention || !plan)
        return sh_fail(context, SHOAL_INVALID, "shoal_plan_create: an argument is NULL");
    if (flags & ~(unsigned)SHOAL_WITH_BACKWARD)
        return sh_fail(context, SHOAL_INVALID, "shoal_plan_create: unknown flags %#x",
                       flags);
    shoal_attention checked = *attention;
    shoal_status status = sh_attention_check(context, &checked);
    if (status != SHOAL_OK)
        return status;
    shoal_plan made = {.context = context,
                       .kernels = context->kernels,
                       .problem = *problem,
                       .attention = checked,
                       .kind = sh_attention_kind_at((int)attention->kind),
                       .with_backward = (flags & SHOAL_WITH_BACKWARD) != 0,
                       .threads = context->threads};
    status = fill_problem(context, made.kind, &made.problem);
    if (status != SHOAL_OK)
        return status;
    shoal_plan *kept = sh_allocate(context, sizeof *kept);
    if (!kept)
        return SHOAL_NO_MEMORY;
    *kept = made;
    kept->memory = sh_allocate_parts(context, place_memory, kept, NULL);
    if (!kept->memory) {
        sh_release(context, kept);
        return SHOAL_NO_MEMORY;
    }
    *plan = kept;
    return SHOAL_OK;
}

void shoal_plan_destroy(shoal_plan *plan) {
    if (!plan)
        return;
    sh_release(plan->context, plan->memory);
    sh_release(plan->context, plan);
}

size_t shoal_plan_workspace(const shoal_plan *plan) {
    return sizeof *plan + plan->work_size + plan->state_size;
}

size_t shoal_plan_state_size(const shoal_plan *plan) {
    return plan->state_size;
}

const int32_t *shoal_plan_groups(const shoal_plan *plan, const void *state) {
    return plan->kind->groups ? plan->kind->groups(plan, state ? state : plan->state)
                              : NULL;
}

const int32_t *shoal_plan_top_keys(const shoal_plan *plan, const void *state) {
    return plan->kind->top_keys ? plan->kind->top_keys(plan, state ? state : plan->state)
                                : NULL;
}

shoal_status shoal_plan_picked(const shoal_plan *plan, const void *state,
                               shoal_attention *picked) {
    if (!plan || !picked)
        return sh_fail(plan ? plan->context : NULL, SHOAL_INVALID,
                       "shoal_plan_picked: an argument is NULL");
    *picked = plan->attention;
    if (plan->kind->picked)
        *picked = plan->kind->picked(plan, state ? state : plan->state);
    return SHOAL_OK;
}

shoal_status shoal_forward(shoal_plan *plan, const shoal_inputs *inputs, float *out) {
    attention_call now;
    shoal_status status = sh_call_check(plan, inputs, &now);
    if (status != SHOAL_OK)
        return status;
    now.out = out;
    if (!out && plan->problem.batch * plan->problem.heads * plan->problem.queries > 0)
        return sh_fail(plan->context, SHOAL_INVALID, "shoal_forward: out is NULL");
    plan->kind->forward(&now);
    return SHOAL_OK;
}

shoal_status shoal_backward(shoal_plan *plan, const shoal_inputs *inputs,
                            const shoal_gradients *gradients) {
    attention_call now;
    shoal_status status = sh_call_check(plan, inputs, &now);
    if (status != SHOAL_OK)
        return status;
    if (!plan->with_backward)
        return sh_fail(plan->context, SHOAL_INVALID,
                       "shoal_backward: the plan was made without SHOAL_WITH_BACKWARD");
    int empty = plan->problem.batch * plan->problem.heads * plan->problem.queries == 0;
    if (!gradients || (!empty && (!gradients->out || !gradients->dout)))
        return sh_fail(plan->context, SHOAL_INVALID,
                       "shoal_backward: the gradients' out or dout is NULL");
    now.gradients = gradients;
    plan->kind->backward(&now);
    return SHOAL_OK;
}

shoal_status shoal_attend(shoal_context *context, const char *kind,
                          const shoal_problem *problem, const shoal_inputs *inputs,
                          float *out) {
    shoal_attention attention;
    shoal_plan *plan;
    shoal_status status = shoal_attention_parse(context, kind, &attention);
    if (status != SHOAL_OK)
        return status;
    status = shoal_plan_create(context, problem, &attention, 0, &plan);
    if (status != SHOAL_OK)
        return status;
    status = shoal_forward(plan, inputs, out);
    shoal_plan_destroy(plan);
    return status;
}

extern const attention_kind sh_auto_kind; /* of the room above, judge */

const attention_kind *sh_attention_kind_at(int index) {
    static const attention_kind *const kinds[] = {
        [SHOAL_FULL] = &sh_full_kind,
        [SHOAL_SHARED_FULL] = &sh_shared_full_kind,
        [SHOAL_CLUSTERED] = &sh_clustered_kind,
        [SHOAL_I_CLUSTERED] = &sh_i_clustered_kind,
        [SHOAL_LSH] = &sh_lsh_kind,
        [SHOAL_ORACLE_TOP] = &sh_oracle_top_kind,
        [SHOAL_SHOAL] = &sh_shoal_kind,
        [SHOAL_AUTO] = &sh_auto_kind,
    };
    int count = (int)(sizeof kinds / sizeof *kinds);
    return index >= 0 && index < count ? kinds[index] : NULL;
}
