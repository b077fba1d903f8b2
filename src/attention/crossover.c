/* Measures what a multiplication of shoal-C costs beside one of full attention. */
#include <math.h>

#include "attention/auto.h"
#include "base/clock.h"
#include "base/random.h"

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
        const shoal_status status = shoal_forward(now->plan, inputs, out);
        if (status != SHOAL_OK)
            return status;
        now->best = fmin(now->best, sh_seconds() - begun);
    }
    return SHOAL_OK;
}

shoal_status shoal_measure_crossover(shoal_context *context) {
    if (!context || !context->kernels)
        return sh_fail(context, SHOAL_INVALID,
                       "shoal_measure_crossover: the context is NULL or was refused");
    const shoal_problem problem = {.batch = 1,
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
        arrays[i] = sh_random_normal(1, STREAM_SAMPLES, (uint64_t)i);
    if (status == SHOAL_OK)
        status = make_side(context, &problem, "full", &sides[0]);
    if (status == SHOAL_OK)
        status = make_side(context, &problem, "shoal", &sides[1]);
    if (status == SHOAL_OK)
        status = time_sides(sides,
                            &(shoal_inputs){.q = arrays,
                                            .k = arrays + size,
                                            .v = arrays + 2 * size},
                            arrays + 3 * size);
    if (status == SHOAL_OK) {
        /* shoal-C's cost is in proportion to the crossover: the one at which the costs
           have the ratio of the times is the right one. */
        const shoal_attention used = sh_attention_resolve(&sides[1].attention, &problem);
        const double full = sh_cost_of(&sides[0].attention, &problem, 1);
        const double shoal = sh_cost_of(&used, &problem, 1);
        const double found = sides[1].best / sides[0].best * full / shoal;
        context->crossover = (int)fmin(fmax(found, 1), MOST_CROSSOVER);
    }
    shoal_plan_destroy(sides[0].plan);
    shoal_plan_destroy(sides[1].plan);
    sh_release(context, arrays);
    return status;
}
