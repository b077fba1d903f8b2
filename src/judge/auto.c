/* auto: full where it is quicker, shoal-C where that is, by what both cost here; with a
   tolerance, as many top keys as the error on some queries asks for. */
#include <math.h>

#include "attention/clustered.h"
#include "judge/judge.h"

/* What may be picked: full attention, and shoal-C with one or two numbers of groups. The
   plans of the choices lie over each other, since one of them runs at a time. */
enum { FULL_CHOICE, FIRST_SHOAL, SECOND_SHOAL, CHOICES };

enum { SAMPLES = 16 /* queries of every head whose error a tolerance limits */ };

/* Numbers of top keys to choose from; each costs 10 to 20 % more than the one before. */
static const int32_t topks[] = {32, 48, 64, 96, 128, 192, 256, 320};
enum {
    TOPKS = sizeof topks / sizeof *topks,
    FIRST_TOPKS = 5 /* tried before the others */
};

/* A sample misses some of the queries that are far off, so the estimate is low more often
   than high: what is asked of it is this part of the tolerance. */
static const double margin = 0.75;

typedef struct {
    int only; /* picked when the plan was made, or -1: by the inputs */
    shoal_plan plans[CHOICES];
    /* Where the inputs decide: */
    double *squares;      /* [batch * heads][TOPKS + 1] */
    trial_thread *trials; /* [threads] */
} auto_work;

/* Before a choice's own state. */
typedef struct {
    _Alignas(CACHE_LINE) int32_t choice;
    int32_t topk;
} auto_state;

double sh_cost_of(const shoal_attention *attention, const shoal_problem *problem,
                  int crossover) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double both = (double)(problem->dim + problem->value_dim);
    if (attention->kind == SHOAL_FULL)
        return N * S * both;
    const double C = fmin(attention->clusters, N), k = fmin(attention->topk, S);
    /* What the parts cost beside full's multiplications, from times on real queries: the
       dense part also finds the best keys, the top part gathers, and every query is
       looked at for its group, sorted and written. */
    const double parts = (1.3 * C * S + 2.9 * N * k + 85 * N) * both +
                         N * attention->rank * ((double)problem->dim + 3 * C);
    /* With these factors shoal-100 costs what full does at N = S = 446 and 64 features.
       Scaling them moves that point to the crossover. */
    return crossover / 446.0 * parts;
}

static double cost_in(const shoal_plan *plan, const shoal_attention *attention) {
    return sh_cost_of(attention, &plan->problem, plan->context->crossover);
}

/* Few groups where there are few queries to share one, more where there are many. */
static int32_t first_clusters(const shoal_plan *plan) {
    const int64_t N = plan->problem.queries;
    if (plan->attention.tolerance == 0)
        return 100;
    return N < 1024 ? 25 : N < 8192 ? 100 : 200;
}

static shoal_attention attention_of(const shoal_plan *plan, int choice) {
    shoal_attention attention = sh_full_kind.info.defaults;
    if (choice != FULL_CHOICE) {
        attention = sh_first_shoal;
        attention.clusters = first_clusters(plan) * (choice == SECOND_SHOAL ? 2 : 1);
        if (plan->attention.tolerance > 0)
            attention.topk = topks[TOPKS - 1];
        attention.seed = plan->attention.seed;
    }
    return attention;
}

static int pick_without_tolerance(const shoal_plan *plan) {
    const shoal_attention full = attention_of(plan, FULL_CHOICE),
                          shoal = attention_of(plan, FIRST_SHOAL);
    return cost_in(plan, &full) <= cost_in(plan, &shoal) ? FULL_CHOICE : FIRST_SHOAL;
}

/* What a trial needs. */
static void place_trial(auto_work *own, const shoal_plan *plan, block_layout *work) {
    const int64_t heads = plan->problem.batch * plan->problem.heads;
    own->squares =
        sh_reserve(work, sh_mul_checked(heads, TOPKS + 1), sizeof *own->squares);
    own->trials = sh_reserve(work, plan->threads, sizeof *own->trials);
    for (int t = 0; t < plan->threads; t++)
        sh_trial_place(own->trials ? &own->trials[t] : &(trial_thread){0}, plan,
                       topks[TOPKS - 1], work);
}

/* Every choice's work begins where the others' does, and so does its state. */
static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    auto_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    plan->work = own;
    own = own ? own : &measured;
    own->only = plan->attention.tolerance > 0 ? -1 : pick_without_tolerance(plan);
    if (own->only < 0)
        place_trial(own, plan, work);
    auto_state *picked = sh_reserve(state, 1, sizeof *picked);
    if (picked)
        *picked = (auto_state){.choice = own->only < 0 ? FULL_CHOICE : own->only};
    block_layout most_work = *work, most_state = *state;
    for (int choice = 0; choice < CHOICES; choice++) {
        if (own->only >= 0 && choice != own->only)
            continue;
        block_layout its_work = *work, its_state = *state;
        shoal_plan *sub = &own->plans[choice];
        *sub = *plan;
        sub->attention = attention_of(plan, choice);
        sub->kind = choice == FULL_CHOICE ? &sh_full_kind : &sh_shoal_kind;
        sub->kind->place(sub, &its_work, &its_state);
        if (its_work.bytes > most_work.bytes)
            most_work.bytes = its_work.bytes;
        if (its_state.bytes > most_state.bytes)
            most_state.bytes = its_state.bytes;
        most_work.overflow |= its_work.overflow;
        most_state.overflow |= its_state.overflow;
    }
    *work = most_work;
    *state = most_state;
}

/* The kinds keep pointers in their work, so a choice is placed again before it runs. */
static attention_call sub_call(const attention_call *call, int choice) {
    auto_work *own = call->plan->work;
    attention_call now = *call;
    now.plan = &own->plans[choice];
    now.state = (char *)call->state + sizeof(auto_state);
    block_layout work = {.base = (char *)own->plans[choice].work};
    block_layout nowhere = {.base = now.state};
    now.plan->kind->place(now.plan, &work, &nowhere);
    return now;
}

/* The fewest of the first `count` numbers of top keys whose error on the samples is small
   enough; 0 when none is. Groups that a trial before has left in the state are kept. */
static int32_t enough_of(const attention_call *call, int choice, int count, int grouped) {
    const auto_work *own = call->plan->work;
    const shoal_problem *problem = &call->plan->problem;
    const double wanted = margin * (double)call->plan->attention.tolerance;
    attention_call now = sub_call(call, choice);
    shoal_inputs inputs = *call->inputs;
    if (grouped)
        inputs.groups = now.plan->kind->groups(now.plan, now.state);
    now.inputs = &inputs;
    sh_clustered_use_topk(now.plan, topks[count - 1]);
    sh_trial_run(&(topk_trial){.call = &now,
                               .samples = SAMPLES,
                               .count = count,
                               .topks = topks,
                               .squares = own->squares,
                               .threads = own->trials});
    for (int t = 0; t < count; t++) {
        double error = 0, exact = 0;
        for (int64_t head = 0; head < problem->batch * problem->heads; head++) {
            error += own->squares[head * (count + 1) + t];
            exact += own->squares[head * (count + 1) + count];
        }
        if (error <= wanted * wanted * exact)
            return topks[t];
    }
    return 0;
}

/* shoal-C with one number of groups, if it is good enough and cheaper than full. A trial
   costs time too, and is made only where it can win. */
static int try_choice(const attention_call *call, int choice, int32_t *topk) {
    const shoal_plan *plan = call->plan;
    const shoal_attention full = attention_of(plan, FULL_CHOICE);
    shoal_attention shoal = attention_of(plan, choice);
    const double limit = cost_in(plan, &full);
    shoal.topk = topks[2];
    if (plan->problem.queries <= 4 * shoal.clusters || plan->problem.keys < topks[0] ||
        1.7 * cost_in(plan, &shoal) > limit)
        return 0;
    *topk = enough_of(call, choice, FIRST_TOPKS, 0);
    if (*topk == 0)
        *topk = enough_of(call, choice, TOPKS, 1);
    shoal.topk = *topk;
    return *topk > 0 && cost_in(plan, &shoal) < limit;
}

static void forward(const attention_call *call) {
    auto_work *own = call->plan->work;
    auto_state *state = call->state;
    *state = (auto_state){.choice = own->only};
    for (int choice = FIRST_SHOAL; choice < CHOICES && state->choice < 0; choice++)
        if (try_choice(call, choice, &state->topk))
            state->choice = choice;
    const int tried = own->only < 0 && state->choice > 0;
    state->choice = state->choice < 0 ? FULL_CHOICE : state->choice;
    attention_call now = sub_call(call, state->choice);
    shoal_inputs inputs = *call->inputs;
    if (tried) {
        /* The groups of the trial are still there. */
        inputs.groups = now.plan->kind->groups(now.plan, now.state);
        sh_clustered_use_topk(now.plan, state->topk);
    }
    now.inputs = &inputs;
    now.plan->kind->forward(&now);
}

static void backward(const attention_call *call) {
    const auto_state *state = call->state;
    attention_call now = sub_call(call, state->choice);
    now.plan->kind->backward(&now);
}

static shoal_attention picked(const shoal_plan *plan, const void *state) {
    const auto_state *kept = state;
    shoal_attention chosen = attention_of(plan, kept->choice);
    if (kept->topk > 0)
        chosen.topk = kept->topk;
    return chosen;
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    (void)attention;
    return sh_full_kind.operations(&sh_full_kind.info.defaults, problem);
}

const attention_kind sh_auto_kind = {
    .info = {.name = "auto",
             .cost = "the lesser of full's and shoal-100's",
             .summary = "full or shoal-C by size; with tolerance=E also by the error on "
                        "some queries",
             .defaults = {.kind = SHOAL_AUTO, .seed = 1},
             .has_seed = 1,
             .has_tolerance = 1,
             .picks = 1},
    .operations = operations,
    .place = place,
    .forward = forward,
    .backward = backward,
    .picked = picked,
};
