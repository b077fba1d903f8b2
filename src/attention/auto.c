/* auto: full or shoal, whichever costs less here; with a tolerance, shoal with as many
   exact keys as the error asks for, which is measured on some queries once the outputs
   are there. Also the measurement of where shoal overtakes full on this machine. */
#include <math.h>
#include <string.h>

#include "attention/dense.h"
#include "attention/heads.h"
#include "base/clock.h"
#include "base/random.h"

/* ---- The error of outputs ---------------------------------------------------------- */

/* How far a call's outputs are from full attention's, by some queries of every head.
 *
 * One query in a hundred can carry half of the squared error, and an even draw misses it.
 * What a kind approximates is the rest of a query's keys, so a query is drawn the more
 * often the larger the rest's share of its weights is; half of the probability is even,
 * for queries whose rest seems small because their best keys were overlooked. What a
 * drawn query shows is divided by its probability, so that the sums are unbiased. */

enum {
    CHECK_SAMPLES = 288, /* queries of a call whose exact outputs are computed, */
    CHECK_LEAST = 8,     /* of a head at least, */
    CHECK_MOST = 64      /* and at most */
};

typedef struct error_check {
    int64_t marks;        /* queries of a head, some perhaps more than once */
    float *approximated;  /* [batch * heads][queries], see attention_call */
    double *errors;       /* [batch * heads][marks] */
    double *lengths;      /* [batch * heads]: squared length of the outputs */
    double *centred;      /* the same without the mean over the queries */
    dense_scratch *dense; /* [threads] */
} error_check;

static const double even_part = 0.5;

/* Queries in order, each as wide as its probability; one mark in each of `marks` equal
   parts, at random. Finds the queries of marks first .. first + count - 1. */
typedef struct {
    int32_t queries[MAX_PANEL];
    double weights[MAX_PANEL]; /* the inverse of their probabilities */
} drawn_marks;

static void draw(const attention_call *call, const head_view *view, int64_t first,
                 int64_t count, drawn_marks *drawn) {
    const error_check *check = call->check;
    const float *rest = check->approximated + view->head * call->plan->problem.queries;
    const uint64_t seed = call->plan->attention.seed;
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    const double even = 1 / (double)view->queries;
    double total = 0, passed = 0;
    for (int64_t i = 0; i < view->queries; i++)
        total += (double)rest[i];
    int64_t mark = first;
    for (int64_t i = 0; i < view->queries && mark < first + count; i++) {
        const double guided = total > 0 ? (double)rest[i] / total : even;
        const double p = even_part * even + (1 - even_part) * guided;
        const int last = i == view->queries - 1;
        passed += p;
        for (; mark < first + count; mark++) {
            const uint64_t bits =
                random_bits(seed, STREAM_SAMPLES,
                            (uint64_t)(view->head * check->marks + mark));
            const double inside = (double)(bits >> 11) * unit;
            if (!last && ((double)mark + inside) / (double)check->marks > passed)
                break;
            drawn->queries[mark - first] = (int32_t)i;
            drawn->weights[mark - first] = 1 / p;
        }
    }
}

static double squared_error(const query_panel *panel, int s, const float *out, int dim) {
    double sum = 0;
    for (int d = 0; d < dim; d++) {
        const double right = (double)panel->outputs[d * panel->width + s] /
                             (double)panel->sum[s];
        sum += ((double)out[d] - right) * ((double)out[d] - right);
    }
    return sum;
}

typedef struct {
    const attention_call *call;
    int64_t unit; /* the head */
} checked_head;

/* One panel of marks of one head. */
static void check_task(void *shared, int64_t task, int thread) {
    const checked_head *at = shared;
    const attention_call *call = at->call;
    const error_check *check = call->check;
    const shoal_problem *problem = &call->plan->problem;
    const int64_t width = call->plan->kernels->panel, unit = at->unit;
    const int64_t first = task * width, count = min(width, check->marks - first);
    const head_view view = sh_view_at(call, unit);
    const row_view out = view.out;
    double *errors = check->errors + unit * check->marks + first;
    const int dim = (int)problem->value_dim;
    if (first == 0) {
        double squares = 0, of_means = 0;
        for (int64_t d = 0; d < dim; d++) {
            double sum = 0;
            for (int64_t i = 0; i < view.queries; i++) {
                const double x = (double)out.data[i * out.stride + d];
                squares += x * x;
                sum += x;
            }
            of_means += view.queries > 0 ? sum * sum / (double)view.queries : 0;
        }
        check->lengths[unit] = squares;
        check->centred[unit] = squares - of_means;
    }
    memset(errors, 0, sizeof *errors * (size_t)count);
    const score_masks masks = sh_masks_of(call, &view);
    if (view.queries == 0 || sh_masks_seen(&masks, view.keys) == 0)
        return;
    dense_keys keys = sh_dense_keys_of(call->plan, &view);
    if (sh_masks_exist(call))
        keys.masks = &masks;
    dense_scratch *scratch = &check->dense[thread];
    query_panel *panel = scratch->panels;
    drawn_marks drawn;
    draw(call, &view, first, count, &drawn);
    panel->first = 0;
    panel->count = (int)count;
    panel->width = panel_width(call->plan->kernels, (int)count);
    sh_dense_start(&keys, panel, view.q);
    keys.kernels->pack(view.q.data, view.q.stride, drawn.queries, panel->count,
                       panel->width, keys.dim, keys.scale, panel->queries);
    for (int64_t key = 0; key < view.keys; key += KEY_BLOCK)
        sh_dense_stream(&keys, key, min(key + KEY_BLOCK, view.keys), panel,
                        scratch->scores, NULL, NULL);
    for (int64_t s = 0; s < count; s++)
        errors[s] =
            drawn.weights[s] *
            squared_error(panel, (int)s, out.data + drawn.queries[s] * out.stride, dim);
}

static void check_head(const attention_call *call, int64_t unit, int slot, team workers) {
    (void)slot;
    sh_team_run(workers, ceil_divide(call->check->marks, call->plan->kernels->panel),
                check_task, &(checked_head){call, unit});
}

/* The relative error of the call's outputs, after a forward that has filled
   check->approximated, and so many standard deviations of this estimate on top of its
   square. Or the centred error, if that is larger: what distinguishes the queries of a
   head may be small beside what they have in common. The mean error of a head is not
   taken off, so this is never less than the centred error. */
static double measure_error(error_check *check, const attention_call *call,
                            double deviations) {
    attention_call outputs = *call;
    outputs.has_outputs = 1;
    outputs.check = check;
    sh_for_heads(&outputs, check_head);
    const int64_t heads = call->plan->problem.batch * call->plan->problem.heads;
    const double marks = (double)check->marks;
    double error = 0, variance = 0, length = 0, centred = 0;
    for (int64_t unit = 0; unit < heads; unit++) {
        const double *errors = check->errors + unit * check->marks;
        double mean = 0, spread = 0;
        for (int64_t s = 0; s < check->marks; s++)
            mean += errors[s] / marks;
        for (int64_t s = 0; s < check->marks; s++)
            spread += (errors[s] - mean) * (errors[s] - mean);
        error += mean;
        variance += spread / (marks * (marks - 1));
        length += check->lengths[unit];
        centred += check->centred[unit];
    }
    error += deviations * sqrt(variance);
    return error > 0 || isnan(error) ? sqrt(error / fmin(length, centred)) : 0;
}

/* ---- The choice -------------------------------------------------------------------- */

/* What may be picked: full attention, and shoal with more and more exact keys: they
   lower the error more than clusters at the same cost. The plans of the choices lie over
   each other, since one of them runs at a time. */
enum { FULL_CHOICE, SHOAL_CHOICE, MORE_KEYS, MOST_KEYS, CHOICES };

/* What a choice has beside shoal, in halves, sevenths and thirds. */
static const int32_t halves_of_groups[CHOICES] = {0, 2, 2, 3};
static const int32_t sevenths_of_topk[CHOICES] = {0, 7, 12, 20};
static const int32_t thirds_of_pool[CHOICES] = {0, 3, 4, 6};

/* The smallest tolerance for which a choice is tried first: on layers of real models most
   of its errors are below. Where less is asked for full attention is the answer. */
static const double first_tried_from[CHOICES] = {0, 0.05, 0.04, 0.025};

/* The next choice leaves 0.65 to 0.75 of the error; one that should come to less than
   this part of the tolerance is worth a try after one that did not. */
static const double gain = 0.72, promising = 0.95;

/* An estimate may be too low; it is asked to be below the tolerance by so many of its
   standard deviations. */
static const double deviations = 2.5;

/* A try and the look at its error cost this much more than shoal alone. */
static const double with_check = 1.2;

/* What a plan of auto works with. */
typedef struct {
    int first; /* choice that is tried, or picked when nothing is looked at */
    shoal_plan plans[CHOICES];
    error_check check; /* where there is a tolerance */
} auto_work;

/* Before a choice's own state. */
typedef struct {
    _Alignas(CACHE_LINE) int32_t choice;
} auto_state;

double sh_attention_cost(const shoal_attention *attention, const shoal_problem *problem,
                         int crossover) {
    const double N = (double)problem->queries, S = (double)problem->keys;
    const double both = (double)(problem->dim + problem->value_dim);
    if (attention->kind == SHOAL_KIND_FULL)
        return N * S * both;
    const double C = fmin(attention->clusters, N), k = fmin(attention->topk, S);
    /* What the parts cost beside full's multiplications, from times on one thread: the
       centroids also choose pools, blocks gather and select, every query is sorted into
       its block and written. q-clustered has neither pools nor blocks. */
    const double M = attention->keyclusters, near = 2.0 * attention->near + 1;
    const double parts = attention->kind == SHOAL_KIND_Q_CLUSTERED
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
    return sh_attention_cost(&known, &plan->problem, plan->context->crossover);
}

static shoal_attention attention_of(const shoal_plan *plan, int choice) {
    if (choice == FULL_CHOICE)
        return sh_full_kind.info.defaults;
    shoal_attention attention = sh_shoal_kind.info.defaults;
    attention.seed = plan->attention.seed;
    const shoal_attention known = sh_attention_resolve(&attention, &plan->problem);
    attention.clusters = known.clusters * halves_of_groups[choice] / 2;
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
    if (own->first != FULL_CHOICE && plan->attention.tolerance > 0) {
        const int64_t heads = plan->problem.batch * plan->problem.heads;
        const int64_t wanted = ceil_divide(CHECK_SAMPLES, max(1, heads));
        own->check.marks = max(CHECK_LEAST, min(wanted, CHECK_MOST));
        own->check.approximated = reserve_floats(work, heads, plan->problem.queries);
        own->check.errors = sh_reserve(work, sh_mul_checked(heads, own->check.marks),
                                       sizeof *own->check.errors);
        own->check.lengths = sh_reserve(work, heads, sizeof *own->check.lengths);
        own->check.centred = sh_reserve(work, heads, sizeof *own->check.centred);
        own->check.dense = sh_dense_place_threads(plan, work);
    }
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

float *sh_auto_approximated(const shoal_plan *plan) {
    return ((const auto_work *)plan->work)->check.approximated;
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
        now.approximated = tolerance > 0 ? own->check.approximated : NULL;
        sh_forward_heads(&now);
        done = next == FULL_CHOICE || tolerance == 0;
        if (!done) {
            const double error = measure_error(&own->check, &now, deviations);
            done = error <= tolerance;
            next = next_choice(call->plan, next, error);
        }
    }
}

static void backward(const attention_call *call) {
    const auto_state *state = call->state;
    attention_call now = sub_call(call, state->choice);
    sh_backward_heads(&now);
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
             .cost = "the smaller of full's and shoal's",
             .summary = "full or shoal by size; with tolerance=E also by the error on "
                        "sampled queries",
             .defaults = {.kind = SHOAL_KIND_AUTO, .seed = 1},
             .has_seed = 1,
             .has_tolerance = 1,
             .picks = 1},
    .operations = operations,
    .place = place,
    .forward = forward,
    .backward = backward,
    .picked = picked,
};

/* ---- The crossover ----------------------------------------------------------------- */

enum { LENGTH = 1024, HEADS = 2, FEATURES = 64, REPEATS = 7 };

/* One of the two, planned and with its best time so far. */
typedef struct {
    shoal_attention attention;
    shoal_plan *plan;
    double best;
} side;

static shoal_status make_side(shoal_context *context, const shoal_problem *problem,
                              const char *kind, side *made) {
    shoal_status status = shoal_attention_parse(context, kind, &made->attention);
    made->best = INFINITY;
    return status == SHOAL_OK
               ? shoal_plan_create(context, problem, &made->attention, 0, &made->plan)
               : status;
}

/* They take turns, so that a disturbance falls on both. */
static shoal_status time_sides(side sides[2], const shoal_inputs *inputs, float *out) {
    for (int turn = 0; turn < 2 * REPEATS; turn++) {
        side *now = &sides[turn % 2];
        const double begun = sh_seconds();
        TRY(shoal_forward(now->plan, inputs, out));
        now->best = fmin(now->best, sh_seconds() - begun);
    }
    return SHOAL_OK;
}

shoal_status shoal_measure_crossover(shoal_context *context) {
    if (!context || !context->kernels)
        return REFUSE(context, "shoal_measure_crossover: the context is NULL or invalid");
    const shoal_problem problem = {.size = sizeof(shoal_problem),
                                   .batch = 1,
                                   .heads = HEADS,
                                   .queries = LENGTH,
                                   .keys = LENGTH,
                                   .dim = FEATURES,
                                   .value_dim = FEATURES};
    const int64_t size = (int64_t)HEADS * LENGTH * FEATURES;
    side sides[2] = {0};
    float *arrays = sh_allocate(context, (size_t)(4 * size) * sizeof *arrays);
    shoal_status status = arrays ? SHOAL_OK : SHOAL_NO_MEMORY;
    for (int64_t i = 0; i < 3 * size && arrays; i++)
        arrays[i] = random_normal(1, STREAM_SAMPLES, (uint64_t)i);
    if (status == SHOAL_OK)
        status = make_side(context, &problem, "full", &sides[0]);
    if (status == SHOAL_OK)
        status = make_side(context, &problem, "shoal", &sides[1]);
    if (status == SHOAL_OK)
        status = time_sides(sides,
                            &(shoal_inputs){.size = sizeof(shoal_inputs),
                                            .q = arrays,
                                            .k = arrays + size,
                                            .v = arrays + 2 * size},
                            arrays + 3 * size);
    if (status == SHOAL_OK) {
        /* shoal-C's cost is in proportion to the crossover: the one at which the costs
           have the ratio of the times is the right one. */
        const shoal_attention used = sh_attention_resolve(&sides[1].attention, &problem);
        const double full = sh_attention_cost(&sides[0].attention, &problem, 1);
        const double shoal = sh_attention_cost(&used, &problem, 1);
        const double found = sides[1].best / sides[0].best * full / shoal;
        context->crossover = (int)fmin(fmax(found, 1), MOST_CROSSOVER);
    }
    shoal_plan_destroy(sides[0].plan);
    shoal_plan_destroy(sides[1].plan);
    sh_release(context, arrays);
    return status;
}
