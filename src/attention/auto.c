/* auto: full where it is quicker, shoal where that is, by what both cost here; with a
   tolerance, with as many groups as the error asks for, which is looked at on some
   queries once the outputs are there. */
#include <math.h>

#include "attention/auto.h"

/* What may be picked: full attention, and shoal with 1, 2 or 4 times the groups that it
   has at this size, and more exact keys. The plans of the choices lie over each other,
   since one of them runs at a time. */
enum { FULL_CHOICE, SHOAL_CHOICE, MORE_GROUPS, MOST_GROUPS, CHOICES = AUTO_CHOICES };

/* What a choice has beside shoal, in sevenths and thirds. */
static const int32_t times_groups[CHOICES] = {0, 1, 2, 4};
static const int32_t sevenths_of_topk[CHOICES] = {0, 7, 10, 16};
static const int32_t thirds_of_pool[CHOICES] = {0, 3, 4, 6};

/* The smallest tolerance for which a choice is tried first: on layers of real models most
   of its errors are below. Where less is asked for full attention is the answer. */
static const double first_tried_from[CHOICES] = {0, 0.08, 0.05, 0.03};

/* The next choice leaves 0.65 to 0.75 of the error; one that should come to less than
   this part of the tolerance is worth a try after one that did not. */
static const double gain = 0.72, promising = 0.95;

/* An estimate may be too low; it is asked to be below the tolerance by so many of its
   standard deviations. */
static const double deviations = 2.5;

/* A try and the look at its error cost this much more than shoal alone. */
static const double with_check = 1.2;

/* Before a choice's own state. */
typedef struct {
    _Alignas(CACHE_LINE) int32_t choice;
} auto_state;

double sh_cost_of(const shoal_attention *attention, const shoal_problem *problem,
                  int crossover) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double both = (double)(problem->dim + problem->value_dim);
    if (attention->kind == SHOAL_FULL)
        return N * S * both;
    const double C = fmin(attention->clusters, N), k = fmin(attention->topk, S);
    /* What the parts cost beside full's multiplications, from times on one thread: the
       centroids also choose pools, blocks gather and select, every query is sorted into
       its block and written. q-clustered has neither pools nor blocks. */
    const double M = attention->keyclusters, near = 2.0 * attention->near + 1;
    const double parts = attention->kind == SHOAL_Q_CLUSTERED
                             ? both * (1.3 * C * S + 2.9 * N * k + 85 * N) +
                                   N * attention->rank * ((double)problem->dim + 3 * C)
                             : both * (6 * C * S + 2.4 * N * (k + M) + 2.5 * N * near) +
                                   N * (22000 + 30 * both);
    /* With these factors shoal costs what full does at N = S = 512 and 64 features.
       Scaling them moves that point to the crossover. */
    return crossover / 512.0 * parts;
}

static double cost_in(const shoal_plan *plan, const shoal_attention *attention) {
    const shoal_attention known = sh_attention_resolve(attention, &plan->problem);
    return sh_cost_of(&known, &plan->problem, plan->context->crossover);
}

static shoal_attention attention_of(const shoal_plan *plan, int choice) {
    if (choice == FULL_CHOICE)
        return sh_full_kind.info.defaults;
    shoal_attention attention = sh_shoal_kind.info.defaults;
    attention.seed = plan->attention.seed;
    const shoal_attention known = sh_attention_resolve(&attention, &plan->problem);
    attention.clusters = known.clusters * times_groups[choice];
    attention.topk = known.topk * sevenths_of_topk[choice] / 7;
    attention.pool = known.pool * thirds_of_pool[choice] / 3;
    return attention;
}

static int is_cheaper(const shoal_plan *plan, int choice) {
    const shoal_attention full = sh_full_kind.info.defaults,
                          shoal = attention_of(plan, choice);
    const double factor = plan->attention.tolerance > 0 ? with_check : 1;
    return factor * cost_in(plan, &shoal) < cost_in(plan, &full);
}

static int first_choice(const shoal_plan *plan) {
    int choice = SHOAL_CHOICE;
    if (plan->attention.tolerance > 0)
        for (choice = SHOAL_CHOICE; choice < CHOICES; choice++)
            if ((double)plan->attention.tolerance >= first_tried_from[choice])
                break;
    return choice < CHOICES && is_cheaper(plan, choice) ? choice : FULL_CHOICE;
}

/* After one that has missed the tolerance with this error. */
static int next_choice(const shoal_plan *plan, int choice, double error) {
    while (++choice < CHOICES) {
        error *= gain;
        if (error <= promising * (double)plan->attention.tolerance)
            break;
    }
    return choice < CHOICES && is_cheaper(plan, choice) ? choice : FULL_CHOICE;
}

static int may_be_picked(const shoal_plan *plan, const auto_work *own, int choice) {
    if (own->first == FULL_CHOICE || plan->attention.tolerance == 0)
        return choice == own->first;
    return choice == FULL_CHOICE || choice >= own->first;
}

/* Every choice's work begins where the others' does, and so does its state. */
static void place(shoal_plan *plan, block_layout *work, block_layout *state) {
    auto_work measured = {0}, *own = sh_reserve(work, 1, sizeof *own);
    plan->work = own;
    own = own ? own : &measured;
    own->first = first_choice(plan);
    if (own->first != FULL_CHOICE && plan->attention.tolerance > 0)
        sh_check_place(&own->check, plan, work);
    auto_state *picked = sh_reserve(state, 1, sizeof *picked);
    if (picked)
        *picked = (auto_state){plan->attention.tolerance > 0 ? FULL_CHOICE : own->first};
    block_layout most_work = *work, most_state = *state;
    for (int choice = 0; choice < CHOICES; choice++) {
        if (!may_be_picked(plan, own, choice))
            continue;
        block_layout its_work = *work, its_state = *state;
        const shoal_attention attention = attention_of(plan, choice);
        shoal_plan *sub = &own->plans[choice];
        *sub = *plan;
        sub->attention = sh_attention_resolve(&attention, &plan->problem);
        sub->asked = sub->attention;
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

static void forward(const attention_call *call) {
    auto_work *own = call->plan->work;
    auto_state *state = call->state;
    const double tolerance = (double)call->plan->attention.tolerance;
    for (int next = own->first, done = 0; !done;) {
        attention_call now = sub_call(call, next);
        state->choice = next;
        now.rest = tolerance > 0 ? own->check.rest : NULL;
        now.plan->kind->forward(&now);
        done = next == FULL_CHOICE || tolerance == 0;
        if (!done) {
            const double error = sh_check_error(&own->check, &now, deviations);
            done = error <= tolerance;
            next = next_choice(call->plan, next, error);
        }
    }
}

static void backward(const attention_call *call) {
    const auto_state *state = call->state;
    attention_call now = sub_call(call, state->choice);
    now.plan->kind->backward(&now);
}

static shoal_attention picked(const shoal_plan *plan, const void *state) {
    const auto_state *kept = state;
    const shoal_attention attention = attention_of(plan, kept->choice);
    return sh_attention_resolve(&attention, &plan->problem);
}

static operation_count operations(const shoal_attention *attention,
                                  const shoal_problem *problem) {
    (void)attention;
    return sh_full_kind.operations(&sh_full_kind.info.defaults, problem);
}

const attention_kind sh_auto_kind = {
    .info = {.name = "auto",
             .cost = "the lesser of full's and shoal's",
             .summary = "full or shoal by size; with tolerance=E also by the error on "
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
