/* The main road. A plan is made here (checks, sizes, memory); a call is checked here,
   once, and goes from here to its kind. */
#include "attention/attention.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "attention/heads.h"

const attention_kind *sh_attention_kind_at(int kind) {
    static const attention_kind *const kinds[] = {
#define KIND_ROW(NAME, name) [SHOAL_KIND_##NAME] = &sh_##name##_kind,
        SHOAL_KINDS(KIND_ROW)
#undef KIND_ROW
    };
    const int count = (int)(sizeof kinds / sizeof *kinds);
    return kind >= 0 && kind < count ? kinds[kind] : NULL;
}

const shoal_kind_info *shoal_kind_describe(int index) {
    const attention_kind *kind = sh_attention_kind_at(index);
    return kind ? &kind->info : NULL;
}

/* The attention with every field that is SHOAL_BY_SIZE set to what the problem says. */
shoal_attention sh_attention_resolve(const shoal_attention *attention,
                                     const shoal_problem *problem) {
    shoal_attention resolved = *attention;
    const attention_kind *kind = sh_attention_kind_at((int)attention->kind);
    if (kind && kind->resolve)
        kind->resolve(problem, &resolved);
    return resolved;
}

double shoal_attention_operations(const shoal_attention *attention,
                                  const shoal_problem *problem, unsigned flags) {
    const attention_kind *kind = attention ? sh_attention_kind_at((int)attention->kind)
                                           : NULL;
    shoal_problem own = shoal_problem_defaults();
    if (!kind || !problem || READ_STRUCT(NULL, shoal_problem, problem, &own) != SHOAL_OK)
        return 0;
    problem = &own;
    /* Backward does five products where forward does two. */
    const shoal_attention used = sh_attention_resolve(attention, problem);
    const operation_count count = kind->operations(&used, problem);
    const double passes = flags & SHOAL_WITH_BACKWARD ? 3.5 : 1;
    return (double)(problem->batch * problem->heads) *
           (count.once + passes * count.dense);
}

/* Under a causal mask the last query sees all keys, each one before it one less. */
double sh_seen_pairs(const shoal_problem *problem) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double few = fmin(N, S);
    return problem->causal ? N * S - few * (few - 1) / 2 : N * S;
}

/* ---- Plans ------------------------------------------------------------------------ */

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
            return REFUSE(context, "problem.%s is %lld: it must be from %lld to %lld",
                          sizes[i].name, (long long)sizes[i].value,
                          (long long)sizes[i].least, (long long)sizes[i].most);
    if (problem->kv_heads > problem->heads ||
        (problem->kv_heads && problem->heads % problem->kv_heads))
        return REFUSE(
            context,
            "problem.kv_heads is %lld: it must divide problem.heads, %lld, and not "
            "exceed it",
            (long long)problem->kv_heads, (long long)problem->heads);
    int64_t all;
    if (__builtin_mul_overflow(problem->batch * problem->heads,
                               problem->queries + problem->keys, &all))
        return REFUSE(context, "problem: batch x heads x positions overflows 64 bits");
    if (!isfinite(problem->scale))
        return REFUSE(context, "problem.scale is not finite");
    if (problem->dtype != SHOAL_DTYPE_FLOAT32 && problem->dtype != SHOAL_DTYPE_FLOAT16 &&
        problem->dtype != SHOAL_DTYPE_BFLOAT16)
        return REFUSE(
            context,
            "problem.dtype is %d: it must be SHOAL_DTYPE_FLOAT32, SHOAL_DTYPE_FLOAT16 or "
            "SHOAL_DTYPE_BFLOAT16",
            (int)problem->dtype);
    return SHOAL_OK;
}

/* "full, shared-full ...": the kinds that have masks, or that can be distributed. */
static const char *kinds_with(int masks, char *text, size_t size) {
    size_t length = 0;
    const attention_kind *kind;
    for (int i = 0; (kind = sh_attention_kind_at(i)); i++)
        if ((masks ? kind->info.has_masks : kind->forward_over != NULL) && length < size)
            length += (size_t)snprintf(text + length, size - length, "%s%s",
                                       length ? ", " : "", kind->info.name);
    return text;
}

/* For kinds whose queries share what they see. */
static shoal_status refuse_masks(shoal_context *context, const attention_kind *kind,
                                 const char *what) {
    char others[256];
    return REFUSE(context,
                  "%s does not support %s, because its queries share keys; kinds that "
                  "support it: %s",
                  kind->info.name, what, kinds_with(1, others, sizeof others));
}

static shoal_status check_masks(shoal_context *context, const attention_kind *kind,
                                const shoal_problem *problem) {
    if (!(problem->dropout >= 0 && problem->dropout <= 1))
        return REFUSE(context, "problem.dropout is %g: it must be from 0 to 1",
                      (double)problem->dropout);
    if (!kind->info.has_masks && (problem->causal || problem->dropout > 0))
        return refuse_masks(context, kind,
                            problem->causal ? "problem.causal" : "problem.dropout");
    return SHOAL_OK;
}

static shoal_status check_over(const shoal_plan *plan) {
    const shoal_problem *problem = &plan->problem;
    char others[256];
    if (!plan->kind->forward_over)
        return REFUSE(plan->context,
                      "%s does not support several processes; kinds that do: %s",
                      plan->kind->info.name, kinds_with(0, others, sizeof others));
    if (problem->causal || problem->dropout > 0 || problem->dtype != SHOAL_DTYPE_FLOAT32)
        return REFUSE(plan->context,
                      "a problem distributed over processes must be float32, "
                      "without causal order and dropout");
    return SHOAL_OK;
}

/* The strides that are given, or contiguous ones; the farthest element must be within
   reach of an int64_t. */
static shoal_status fill_strides(shoal_context *context, const char *name, int packed,
                                 const int64_t shape[4], const shoal_strides *given,
                                 shoal_strides *strides) {
    int64_t batch = shape[0], heads = shape[1], positions = shape[2], features = shape[3];
    int overflow = 0;
    if (given) {
        *strides = *given;
    } else {
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
        return REFUSE(context, "problem.%s: shape and strides overflow or are negative",
                      name);
    return SHOAL_OK;
}

void sh_plan_own_strides(shoal_plan *plan) {
    plan->problem.q_strides = &plan->strides[0];
    plan->problem.k_strides = &plan->strides[1];
    plan->problem.v_strides = &plan->strides[2];
    plan->problem.out_strides = &plan->strides[3];
}

static shoal_status fill_problem(shoal_plan *plan) {
    shoal_context *context = plan->context;
    const attention_kind *kind = plan->kind;
    shoal_problem *problem = &plan->problem;
    TRY(check_sizes(context, problem));
    TRY(check_masks(context, kind, problem));
    if (!problem->kv_heads)
        problem->kv_heads = problem->heads;
    if (problem->scale == 0)
        problem->scale = 1 / sqrtf((float)problem->dim);
    if (kind->info.keys_are_queries &&
        (problem->queries != problem->keys || problem->kv_heads != problem->heads))
        return REFUSE(context,
                      "%s uses the queries as keys: %lld queries of %lld heads do not "
                      "match %lld keys of %lld heads",
                      kind->info.name, (long long)problem->queries,
                      (long long)problem->heads, (long long)problem->keys,
                      (long long)problem->kv_heads);
    const int64_t B = problem->batch, H = problem->heads, G = problem->kv_heads;
    const int64_t N = problem->queries, S = problem->keys;
    const struct {
        const char *name;
        int64_t shape[4];
        const shoal_strides *given;
    } arrays[] = {{"q", {B, H, N, problem->dim}, problem->q_strides},
                  {"k", {B, G, S, problem->dim}, problem->k_strides},
                  {"v", {B, G, S, problem->value_dim}, problem->v_strides},
                  {"out", {B, H, N, problem->value_dim}, problem->out_strides}};
    for (int i = 0; i < 4; i++)
        TRY(fill_strides(context, arrays[i].name, problem->packed, arrays[i].shape,
                         arrays[i].given, &plan->strides[i]));
    sh_plan_own_strides(plan);
    return SHOAL_OK;
}

/* Work and state lie in one block, one after the other. */
static void place_memory(void *argument, block_layout *block) {
    shoal_plan *plan = argument;
    block_layout work = {.base = block->base}, state = {0};
    if (block->base)
        state.base = plan->state = block->base + plan->work_size;
    sh_float_rows_place(plan, &work);
    plan->kind->place(plan, &work, &state);
    plan->work_size = work.bytes;
    plan->state_size = state.bytes;
    block->overflow = work.overflow || state.overflow;
    sh_reserve(block, (int64_t)work.bytes, 1);
    sh_reserve(block, (int64_t)state.bytes, 1);
}

/* Checks everything; *made is the plan without its memory. */
static shoal_status prepare(shoal_context *context, const shoal_problem *problem,
                            const shoal_attention *attention, unsigned flags,
                            shoal_transport *over, shoal_plan *made) {
    if (context && !context->kernels)
        return SHOAL_INVALID; /* the message says why the context was refused */
    if (!context || !problem || !attention)
        return REFUSE(context, "shoal_plan_create: an argument is NULL");
    if (flags & ~(unsigned)SHOAL_WITH_BACKWARD)
        return REFUSE(context, "shoal_plan_create: unknown flags %#x", flags);
    shoal_attention checked = *attention;
    TRY(sh_attention_check(context, &checked));
    *made = (shoal_plan){.context = context,
                         .kernels = context->kernels,
                         .problem = shoal_problem_defaults(),
                         .attention = checked,
                         .asked = checked,
                         .kind = sh_attention_kind_at((int)attention->kind),
                         .with_backward = (flags & SHOAL_WITH_BACKWARD) != 0,
                         .threads = context->threads};
    TRY(READ_STRUCT(context, shoal_problem, problem, &made->problem));
    TRY(fill_problem(made));
    made->attention = sh_attention_resolve(&checked, &made->problem);
    if (!over)
        return SHOAL_OK;
    made->over = over;
    return check_over(made);
}

static shoal_status finish(const shoal_plan *made, shoal_plan **plan) {
    shoal_plan *kept = sh_allocate(made->context, sizeof *kept);
    if (!kept)
        return SHOAL_NO_MEMORY;
    *kept = *made;
    sh_plan_own_strides(kept);
    kept->memory = sh_allocate_parts(made->context, place_memory, kept, NULL);
    if (!kept->memory) {
        sh_release(made->context, kept);
        return SHOAL_NO_MEMORY;
    }
    *plan = kept;
    return SHOAL_OK;
}

shoal_status shoal_plan_create(shoal_context *context, const shoal_problem *problem,
                               const shoal_attention *attention, unsigned flags,
                               shoal_plan **plan) {
    shoal_plan made;
    if (!plan)
        return REFUSE(context, "shoal_plan_create: an argument is NULL");
    *plan = NULL;
    TRY(prepare(context, problem, attention, flags, NULL, &made));
    return finish(&made, plan);
}

/* ---- Plans over ranks ------------------------------------------------------------- */

/* What must be equal on all ranks, in words that can be compared. */
enum { AGREED = 24 };

static void fill_agreed(const shoal_plan *made, unsigned flags, int64_t *numbers) {
    const shoal_problem *problem = &made->problem;
    const shoal_attention *attention = &made->attention;
    int32_t scale;
    memcpy(&scale, &problem->scale, sizeof scale);
    const int64_t filled[] = {SHOAL_VERSION_MAJOR,   SHOAL_VERSION_MINOR,
                              SHOAL_VERSION_PATCH,   problem->batch,
                              problem->heads,        problem->kv_heads,
                              problem->dim,          problem->value_dim,
                              problem->packed,       scale,
                              (int64_t)flags,        (int64_t)attention->kind,
                              attention->clusters,   attention->topk,
                              attention->rank,       attention->bits,
                              attention->iterations, attention->clustering,
                              attention->normaliser, (int64_t)attention->seed};
    _Static_assert(sizeof filled / sizeof *filled < AGREED, "room for a status");
    memcpy(numbers + 1, filled, sizeof filled);
}

/* Gathers `count` numbers of every rank, and one more; the first is a status, the last
   may differ. *most is the largest of those. The result is the same on all ranks. */
static shoal_status agree(shoal_context *context, shoal_transport *over, int64_t *mine,
                          int64_t count, int64_t *most) {
    shoal_status status = (shoal_status)mine[0];
    const int64_t wide = count + 1;
    int64_t *all = sh_allocate(context, sizeof *all * (size_t)(over->ranks * wide));
    if (!all)
        return SHOAL_NO_MEMORY;
    if (over->gather(over, wide * (int64_t)sizeof *mine, mine, all) != SHOAL_OK)
        status = sh_fail(context, SHOAL_IO,
                         "rank %d of %d cannot communicate with the others: %s",
                         over->rank, over->ranks, over->message);
    for (int p = 0; p < over->ranks && status == SHOAL_OK; p++)
        if (all[p * wide] != SHOAL_OK)
            status = REFUSE(context, "rank %d of %d rejected its part; see its message",
                            p, over->ranks);
    for (int p = 1; p < over->ranks && status == SHOAL_OK; p++)
        if (memcmp(all, all + p * wide, sizeof *all * (size_t)count))
            status = REFUSE(context,
                            "rank %d has another version, problem or kind of attention "
                            "than rank 0",
                            p);
    for (int p = 0; p < over->ranks && status == SHOAL_OK; p++)
        *most = max(*most, all[p * wide + count]);
    sh_release(context, all);
    return status;
}

shoal_status shoal_plan_create_over(shoal_transport *over, shoal_context *context,
                                    const shoal_problem *problem,
                                    const shoal_attention *attention, unsigned flags,
                                    shoal_plan **plan) {
    int64_t agreed[AGREED + 1] = {0}, none = 0;
    shoal_plan made;
    if (plan)
        *plan = NULL;
    if (!context || !plan || !over || !over->sum || !over->gather ||
        !over->gather_parts || !over->exchange || over->rank < 0 ||
        over->rank >= over->ranks)
        return REFUSE(context, "shoal_plan_create_over: an argument or a function of the "
                               "transport is NULL, or its rank is not below its ranks");
    agreed[0] = prepare(context, problem, attention, flags, over, &made);
    if (agreed[0] == SHOAL_OK) {
        fill_agreed(&made, flags, agreed);
        agreed[AGREED] = made.problem.keys;
    }
    int64_t most_keys = 0;
    TRY(agree(context, over, agreed, AGREED, &most_keys));
    made.most_keys = most_keys;
    agreed[0] = finish(&made, plan);
    const shoal_status others = agree(context, over, agreed, 1, &none);
    if (others != SHOAL_OK) {
        shoal_plan_destroy(*plan);
        *plan = NULL;
    }
    return others;
}

void shoal_plan_destroy(shoal_plan *plan) {
    if (!plan)
        return;
    sh_release(plan->context, plan->memory);
    sh_release(plan->context, plan);
}

size_t shoal_plan_workspace(const shoal_plan *plan) {
    return plan ? sizeof *plan + plan->work_size + plan->state_size : 0;
}

size_t shoal_plan_state_size(const shoal_plan *plan) {
    return plan ? plan->state_size : 0;
}

const int32_t *shoal_plan_clusters(const shoal_plan *plan, const void *state) {
    return plan && plan->kind->info.has_clusters
               ? plan->kind->groups(plan, state ? state : plan->state)
               : NULL;
}

const int32_t *shoal_plan_top_keys(const shoal_plan *plan, const void *state) {
    return plan && plan->kind->info.has_top_keys && plan->kind->top_keys
               ? plan->kind->top_keys(plan, state ? state : plan->state)
               : NULL;
}

shoal_status shoal_plan_picked(const shoal_plan *plan, const void *state,
                               shoal_attention *picked) {
    if (!plan || !picked)
        return REFUSE(plan ? plan->context : NULL,
                      "shoal_plan_picked: an argument is NULL");
    *picked = plan->attention;
    if (plan->kind->info.picks)
        *picked = plan->kind->picked(plan, state ? state : plan->state);
    return SHOAL_OK;
}

/* ---- One call: its arguments ------------------------------------------------------- */

static shoal_status check_lengths(const shoal_plan *plan, const char *name,
                                  const int64_t *lengths, int64_t most) {
    for (int64_t b = 0; lengths && b < plan->problem.batch; b++)
        if (lengths[b] < 0 || lengths[b] > most)
            return REFUSE(plan->context, "%s[%lld] is %lld: it must be from 0 to %lld",
                          name, (long long)b, (long long)lengths[b], (long long)most);
    return SHOAL_OK;
}

/* The last position of an array that an int64_t reaches. */
static int64_t last_position(const shoal_strides *strides) {
    return INT64_MAX / 64 / (strides->position ? strides->position : 1);
}

static shoal_status check_offsets(const shoal_plan *plan, const char *name,
                                  const int64_t *offsets, int64_t most, int64_t last) {
    if (!offsets)
        return REFUSE(plan->context, "a packed problem needs inputs.%s", name);
    for (int64_t b = 0; b <= plan->problem.batch; b++) {
        if (offsets[b] < 0 || offsets[b] > last)
            return REFUSE(plan->context, "%s[%lld] is %lld: out of range", name,
                          (long long)b, (long long)offsets[b]);
        if (b > 0 && (offsets[b] < offsets[b - 1] || offsets[b] - offsets[b - 1] > most))
            return REFUSE(plan->context,
                          "%s[%lld] .. [%lld] are %lld .. %lld: a sequence has 0 to %lld "
                          "positions",
                          name, (long long)b - 1, (long long)b, (long long)offsets[b - 1],
                          (long long)offsets[b], (long long)most);
    }
    return SHOAL_OK;
}

static shoal_status check_positions(const shoal_plan *plan, const shoal_inputs *inputs) {
    const shoal_problem *problem = &plan->problem;
    if (!problem->packed) {
        if (inputs->query_offsets || inputs->key_offsets)
            return REFUSE(plan->context,
                          "offsets are given, but the problem is not packed");
        TRY(check_lengths(plan, "query_lengths", inputs->query_lengths,
                          problem->queries));
        return check_lengths(plan, "key_lengths", inputs->key_lengths, problem->keys);
    }
    if (inputs->query_lengths || inputs->key_lengths)
        return REFUSE(plan->context, "a packed problem takes offsets, not lengths");
    const int64_t last_key =
        min(last_position(problem->k_strides), last_position(problem->v_strides));
    int64_t last_query =
        min(last_position(problem->q_strides), last_position(problem->out_strides));
    if (plan->kind->info.keys_are_queries)
        last_query = min(last_query, last_key);
    TRY(check_offsets(plan, "query_offsets", inputs->query_offsets, problem->queries,
                      last_query));
    return plan->kind->info.keys_are_queries
               ? SHOAL_OK
               : check_offsets(plan, "key_offsets", inputs->key_offsets, problem->keys,
                               last_key);
}

static int64_t live_queries(const attention_call *call, int64_t b) {
    const shoal_inputs *inputs = call->inputs;
    if (call->plan->problem.packed)
        return inputs->query_offsets[b + 1] - inputs->query_offsets[b];
    return inputs->query_lengths ? inputs->query_lengths[b] : call->plan->problem.queries;
}

static int64_t live_keys(const attention_call *call, int64_t b) {
    const shoal_inputs *inputs = call->inputs;
    if (call->plan->kind->info.keys_are_queries)
        return live_queries(call, b);
    if (call->plan->problem.packed)
        return inputs->key_offsets[b + 1] - inputs->key_offsets[b];
    return inputs->key_lengths ? inputs->key_lengths[b] : call->plan->problem.keys;
}

static shoal_status check_groups(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    const int32_t *groups = call->inputs->clusters;
    if (!groups)
        return SHOAL_OK;
    if (!call->plan->kind->info.has_clusters)
        return REFUSE(call->plan->context,
                      "inputs.clusters (groups) is given, but %s has no clusters",
                      call->plan->kind->info.name);
    for (int64_t head = 0; head < problem->batch * problem->heads; head++) {
        int64_t live = live_queries(call, head / problem->heads);
        for (int64_t i = 0; i < live; i++) {
            int32_t group = groups[head * problem->queries + i];
            if (group < 0 || group >= call->plan->attention.clusters)
                return REFUSE(call->plan->context,
                              "inputs.clusters (groups) [%lld][%lld][%lld] is %d: it "
                              "must be from 0 to %d",
                              (long long)(head / problem->heads),
                              (long long)(head % problem->heads), (long long)i,
                              (int)group, (int)call->plan->attention.clusters - 1);
        }
    }
    return SHOAL_OK;
}

static shoal_status check_keys_are_queries(const attention_call *call) {
    const shoal_inputs *inputs = call->inputs;
    const shoal_plan *plan = call->plan;
    if (inputs->k && inputs->k != inputs->q)
        return REFUSE(plan->context,
                      "%s uses the queries as keys: pass k = NULL (or q itself)",
                      plan->kind->info.name);
    for (int64_t b = 0; inputs->key_lengths && b < plan->problem.batch; b++)
        if (inputs->key_lengths[b] != live_queries(call, b))
            return REFUSE(plan->context,
                          "%s uses the queries as keys: key_lengths[%lld] is %lld, but "
                          "the length of the queries is %lld",
                          plan->kind->info.name, (long long)b,
                          (long long)inputs->key_lengths[b],
                          (long long)live_queries(call, b));
    for (int64_t b = 0; inputs->key_offsets && b <= plan->problem.batch; b++)
        if (inputs->key_offsets[b] != inputs->query_offsets[b])
            return REFUSE(plan->context,
                          "%s uses the queries as keys: key_offsets[%lld] is %lld, but "
                          "query_offsets[%lld] is %lld; pass key_offsets = NULL",
                          plan->kind->info.name, (long long)b,
                          (long long)inputs->key_offsets[b], (long long)b,
                          (long long)inputs->query_offsets[b]);
    return SHOAL_OK;
}

/* The farthest element must be within reach of an int64_t. */
static shoal_status check_pairs(const shoal_plan *plan, const char *name,
                                const void *array, const shoal_pair_strides *strides) {
    const shoal_problem *problem = &plan->problem;
    const int64_t counts[] = {problem->batch, problem->heads, problem->queries,
                              problem->keys};
    const int contiguous = !strides;
    const shoal_pair_strides none = {0}, *s = strides ? strides : &none;
    const int64_t steps[] = {s->batch, s->head, s->query, s->key};
    int64_t reach = contiguous;
    int overflow = 0;
    if (!array)
        return SHOAL_OK;
    if (!plan->kind->info.has_masks)
        return refuse_masks(plan->context, plan->kind, name);
    for (int i = 0; i < 4; i++) {
        int64_t span;
        overflow |= steps[i] < 0;
        overflow |= contiguous ? __builtin_mul_overflow(reach, counts[i], &reach)
                               : __builtin_mul_overflow(counts[i], steps[i], &span) ||
                                     __builtin_add_overflow(reach, span, &reach);
    }
    if (overflow || reach > INT64_MAX / 64)
        return REFUSE(plan->context, "%s: shape and strides overflow or are negative",
                      name);
    return SHOAL_OK;
}

static shoal_status check_key_bias(const shoal_plan *plan, const char *name,
                                   const float *array, const shoal_strides *given) {
    const shoal_problem *problem = &plan->problem;
    const int64_t shape[] = {problem->batch, problem->heads, problem->keys, 1};
    shoal_strides strides;
    if (!array)
        return SHOAL_OK;
    return fill_strides(plan->context, name, 0, shape, given, &strides);
}

shoal_status sh_call_check(shoal_plan *plan, const shoal_inputs *inputs,
                           attention_call *now) {
    if (!plan)
        return SHOAL_INVALID;
    if (!inputs)
        return REFUSE(plan->context, "inputs is NULL");
    const shoal_problem *problem = &plan->problem;
    int64_t heads = problem->batch * problem->heads;
    *now = (attention_call){.plan = plan, .own_inputs = shoal_inputs_defaults()};
    TRY(READ_STRUCT(plan->context, shoal_inputs, inputs, &now->own_inputs));
    inputs = now->inputs = &now->own_inputs;
    now->state = inputs->state ? inputs->state : plan->state;
    if ((uintptr_t)now->state % CACHE_LINE)
        return REFUSE(plan->context, "inputs.state is not aligned to %d bytes",
                      CACHE_LINE);
    if (heads * problem->queries > 0 && !inputs->q)
        return REFUSE(plan->context, "inputs.q is NULL");
    if (heads * problem->keys > 0 &&
        (!inputs->v || (!inputs->k && !plan->kind->info.keys_are_queries)))
        return REFUSE(plan->context, "inputs.k or inputs.v is NULL");
    TRY(check_positions(plan, inputs));
    if (plan->kind->info.keys_are_queries)
        TRY(check_keys_are_queries(now));
    TRY(check_groups(now));
    TRY(check_pairs(plan, "inputs.bias", inputs->bias, inputs->bias_strides));
    TRY(check_pairs(plan, "inputs.mask", inputs->mask, inputs->mask_strides));
    return check_key_bias(plan, "inputs.key_bias", inputs->key_bias,
                          inputs->key_bias_strides);
}

/* ---- One call: its heads ----------------------------------------------------------- */

static row_view rows_of(const attention_call *call, const void *array,
                        const shoal_strides *strides, const int64_t *offsets, int64_t b,
                        int64_t h) {
    const int64_t size = sh_element_size(call->plan->problem.dtype);
    int64_t start = offsets ? offsets[b] * strides->position : b * strides->batch;
    start += h * strides->head;
    /* A NULL array (an empty problem's) must not be moved. */
    return (row_view){array ? (float *)((char *)array + start * size) : NULL,
                      strides->position};
}

row_view sh_query_rows(const attention_call *call, const void *array,
                       const shoal_strides *strides, int64_t b, int64_t h) {
    return rows_of(call, array, strides, call->inputs->query_offsets, b, h);
}

row_view sh_key_rows(const attention_call *call, const void *array,
                     const shoal_strides *strides, int64_t b, int64_t kv_head) {
    const shoal_inputs *inputs = call->inputs;
    const int64_t *offsets = call->plan->kind->info.keys_are_queries
                                 ? inputs->query_offsets
                                 : inputs->key_offsets;
    return rows_of(call, array, strides, offsets, b, kv_head);
}

head_view sh_view_of(const attention_call *call, int64_t b, int64_t h) {
    const shoal_problem *problem = &call->plan->problem;
    const shoal_inputs *inputs = call->inputs;
    const shoal_gradients *gradients = call->gradients;
    int64_t kv_head = h / (problem->heads / problem->kv_heads);
    const int64_t queries = live_queries(call, b), keys = live_keys(call, b);
    head_view view = {.queries = queries,
                      .keys = keys,
                      .query_rows = problem->packed ? queries : problem->queries,
                      .key_rows = problem->packed ? keys : problem->keys,
                      .q = sh_query_rows(call, inputs->q, problem->q_strides, b, h),
                      .v = sh_key_rows(call, inputs->v, problem->v_strides, b, kv_head),
                      .out = sh_query_rows(call, gradients ? gradients->out : call->out,
                                           problem->out_strides, b, h),
                      .b = b,
                      .h = h,
                      .head = b * problem->heads + h};
    view.k = call->plan->kind->info.keys_are_queries
                 ? view.q
                 : sh_key_rows(call, inputs->k, problem->k_strides, b, kv_head);
    if (gradients) {
        view.dout = sh_query_rows(call, gradients->dout, problem->out_strides, b, h);
        view.dq = sh_query_rows(call, gradients->dq, problem->q_strides, b, h);
    }
    return view;
}

head_view sh_view_at(const attention_call *call, int64_t head) {
    const int64_t heads = call->plan->problem.heads;
    return sh_view_of(call, head / heads, head % heads);
}

kv_head_view sh_start_kv_head(const attention_call *call, int64_t unit) {
    const shoal_problem *problem = &call->plan->problem;
    const int64_t b = unit / problem->kv_heads, kv_head = unit % problem->kv_heads;
    const int64_t sharing = problem->heads / problem->kv_heads;
    const int64_t rows = sh_view_of(call, b, kv_head * sharing).key_rows;
    const kv_head_view view = {.b = b,
                               .first = kv_head * sharing,
                               .last = (kv_head + 1) * sharing,
                               .dk = sh_key_rows(call, call->gradients->dk,
                                                 problem->k_strides, b, kv_head),
                               .dv = sh_key_rows(call, call->gradients->dv,
                                                 problem->v_strides, b, kv_head)};
    sh_clear_rows(view.dk, 0, rows, problem->dim);
    sh_clear_rows(view.dv, 0, rows, problem->value_dim);
    return view;
}

void sh_clear_rows(row_view where, int64_t first, int64_t last, int64_t dim) {
    for (int64_t i = first; where.data && i < last; i++)
        memset(where.data + i * where.stride, 0, (size_t)dim * sizeof(float));
}

/* dbias is added to: one head's is set to 0. */
static void clear_dbias_task(void *shared, int64_t head, int thread) {
    const attention_call *call = shared;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t count = problem->queries * problem->keys;
    (void)thread;
    memset(call->gradients->dbias + head * count, 0, (size_t)count * sizeof(float));
}

/* ---- Calls ------------------------------------------------------------------------ */

/* Over ranks nobody may leave the others alone: what is wrong with a rank's arguments is
   told to all. */
static shoal_status check_over_call(const attention_call *now) {
    const shoal_inputs *inputs = now->inputs;
    const shoal_gradients *gradients = now->gradients;
    if (inputs->key_bias || inputs->bias || inputs->mask ||
        (gradients && (gradients->dbias || gradients->dkey_bias)))
        return REFUSE(now->plan->context,
                      "a call distributed over processes cannot have biases or masks");
    return SHOAL_OK;
}

static shoal_status check_out(const attention_call *now, const void *out,
                              const char *name) {
    const shoal_problem *problem = &now->plan->problem;
    if (!out && problem->batch * problem->heads * problem->queries > 0)
        return REFUSE(now->plan->context, "%s is NULL", name);
    return SHOAL_OK;
}

shoal_status shoal_forward(shoal_plan *plan, const shoal_inputs *inputs, void *out) {
    attention_call now = {.plan = plan};
    shoal_status status = sh_call_check(plan, inputs, &now);
    if (status == SHOAL_OK)
        status = check_out(&now, out, "shoal_forward: out");
    now.out = out;
    if (plan && plan->over) {
        if (status == SHOAL_OK)
            status = check_over_call(&now);
        status = plan->kind->forward_over(&now, status);
    } else if (status == SHOAL_OK) {
        sh_forward_heads(&now);
    }
    if (status == SHOAL_OK)
        plan->state_is_filled |= now.state == plan->state;
    return status;
}

static shoal_status check_gradients(attention_call *now,
                                    const shoal_gradients *gradients) {
    const shoal_plan *plan = now->plan;
    if (!plan->with_backward)
        return REFUSE(plan->context,
                      "shoal_backward: the plan was created without SHOAL_WITH_BACKWARD");
    if (now->state == plan->state && !plan->state_is_filled)
        return REFUSE(plan->context,
                      "shoal_backward: call shoal_forward into the plan's state first");
    if (!gradients)
        return REFUSE(plan->context, "shoal_backward: gradients is NULL");
    now->own_gradients = shoal_gradients_defaults();
    TRY(READ_STRUCT(plan->context, shoal_gradients, gradients, &now->own_gradients));
    gradients = now->gradients = &now->own_gradients;
    TRY(check_out(now, gradients->out, "shoal_backward: gradients.out"));
    TRY(check_out(now, gradients->dout, "shoal_backward: gradients.dout"));
    TRY(check_pairs(plan, "gradients.dbias", gradients->dbias, NULL));
    return check_key_bias(plan, "gradients.dkey_bias", gradients->dkey_bias, NULL);
}

shoal_status shoal_backward(shoal_plan *plan, const shoal_inputs *inputs,
                            const shoal_gradients *gradients) {
    attention_call now = {.plan = plan};
    shoal_status status = sh_call_check(plan, inputs, &now);
    if (status == SHOAL_OK)
        status = check_gradients(&now, gradients);
    if (plan && plan->over) {
        if (status == SHOAL_OK)
            status = check_over_call(&now);
        return plan->kind->backward_over(&now, status);
    }
    if (status != SHOAL_OK)
        return status;
    gradients = now.gradients;
    if (gradients->dkey_bias)
        memset(gradients->dkey_bias, 0,
               sizeof(float) * (size_t)(plan->problem.batch * plan->problem.heads *
                                        plan->problem.keys));
    if (gradients->dbias)
        sh_team_run(sh_team_of(plan->context), plan->problem.batch * plan->problem.heads,
                    clear_dbias_task, &now);
    sh_backward_heads(&now);
    return SHOAL_OK;
}

shoal_status shoal_attend(shoal_context *context, const char *kind,
                          const shoal_problem *problem, const shoal_inputs *inputs,
                          void *out) {
    shoal_attention attention;
    shoal_plan *plan;
    TRY(shoal_attention_parse(context, kind, &attention));
    TRY(shoal_plan_create(context, problem, &attention, 0, &plan));
    const shoal_status status = shoal_forward(plan, inputs, out);
    shoal_plan_destroy(plan);
    return status;
}
