/* Optimizers against the published formulas in double precision, clipping, averages, the
   learning rate's schedule, and the arena. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "models/nn/optimizer.h"
#include "models/nn/schedule.h"

#include <cmocka.h>

#include "support.h"

enum { FIRST = 40007, SECOND = 131 };

static void describe(parameters *into, const void *model) {
    (void)model;
    sh_parameters_add(into,
                      (parameter_shape){.start = START_NORMAL,
                                        .spread = 0.5f,
                                        .rank = 1,
                                        .shape = {FIRST}},
                      "first");
    sh_parameters_add(into,
                      (parameter_shape){.start = START_XAVIER,
                                        .joined = true,
                                        .rank = 2,
                                        .shape = {SECOND, 3}},
                      "second.%d", 2);
    sh_parameters_add(into,
                      (parameter_shape){.start = START_ONE, .rank = 1, .shape = {5}},
                      "third");
}

static parameters *arena_create(shoal_context *context) {
    parameters *arena;
    assert_int_equal(sh_parameters_create(context, describe, NULL, true, &arena),
                     SHOAL_OK);
    sh_parameters_start(arena, 3);
    return arena;
}

static void fill_gradients(parameters *arena, uint64_t step) {
    for (int64_t p = 0; p < arena->count; p++)
        for (int64_t i = 0; i < arena->list[p].count; i++)
            arena->gradients[arena->list[p].offset + i] =
                (float)test_normal(test_hash(step, (uint64_t)p, (uint64_t)i));
}

/* One element of one step, as published. */
static void step_by_hand(const optimizer_settings *s, double rate, double t, double g,
                         double *m, double *v, double *p) {
    const double b1 = s->beta1, b2 = s->beta2;
    if (s->decay_in_gradient)
        g += s->weight_decay * *p;
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    double mean = *m / (1 - pow(b1, t)), size = sqrt(*v / (1 - pow(b2, t))) + s->epsilon;
    double change = mean / size;
    if (s->kind == OPTIMIZER_RADAM) {
        double most = 2 / (1 - b2) - 1;
        double rho = most - 2 * t * pow(b2, t) / (1 - pow(b2, t));
        double r = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
        change = rho > (s->rectified_above > 0 ? s->rectified_above : 4) ? r * change
                                                                         : mean;
    }
    if (!s->decay_in_gradient)
        *p -= rate * s->weight_decay * *p;
    *p -= rate * change;
}

static void check_optimizer(optimizer_settings settings) {
    shoal_context *context = test_context(NULL, 2);
    crew by = sh_crew_of(context);
    parameters *arena = arena_create(context);
    optimizer_state state = {.first = calloc((size_t)arena->size, sizeof(float)),
                             .second = calloc((size_t)arena->size, sizeof(float))};
    double *m = calloc((size_t)arena->size, sizeof *m);
    double *v = calloc((size_t)arena->size, sizeof *v);
    double *p = calloc((size_t)arena->size, sizeof *p);
    for (int64_t i = 0; i < arena->size; i++)
        p[i] = (double)arena->values[i];
    for (int t = 1; t <= 12; t++) {
        fill_gradients(arena, (uint64_t)t);
        for (int64_t i = 0; i < arena->size; i++)
            step_by_hand(&settings, 0.01, t, (double)arena->gradients[i], &m[i], &v[i],
                         &p[i]);
        sh_optimizer_step(&by, &settings, 0.01, arena, &state);
        for (int64_t i = 0; i < arena->size; i++)
            if (!(fabs((double)arena->values[i] - p[i]) < 2e-6))
                fail_msg("step %d: parameter %lld is %.9g, should be %.9g", t,
                         (long long)i, (double)arena->values[i], p[i]);
    }
    assert_int_equal(state.step, 12);
    free(state.first), free(state.second), free(m), free(v), free(p);
    sh_parameters_destroy(arena);
    shoal_context_destroy(context);
}

static void optimizers_do_what_was_published(void **state) {
    (void)state;
    const optimizer_settings usual = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    for (int kind = OPTIMIZER_RADAM; kind <= OPTIMIZER_ADAM; kind++) {
        optimizer_settings settings = usual;
        settings.kind = (optimizer_kind)kind;
        settings.weight_decay = 0.01;
        check_optimizer(settings);
        settings.decay_in_gradient = true;
        settings.weight_decay = 0.1;
        settings.rectified_above = 5;
        check_optimizer(settings);
        settings.beta1 = 0; /* no memory of the mean: not 0.9 */
        settings.beta2 = 0.9;
        settings.epsilon = 0.01;
        check_optimizer(settings);
    }
}

static void clipping_scales_to_the_limit(void **state) {
    (void)state;
    shoal_context *context = test_context(NULL, 2);
    crew by = sh_crew_of(context);
    parameters *arena = arena_create(context);
    fill_gradients(arena, 1);
    double sum = 0;
    for (int64_t i = 0; i < arena->size; i++)
        sum += (double)arena->gradients[i] * (double)arena->gradients[i];
    double norm = sh_gradients_clip(&by, arena, 0); /* no limit */
    assert_true(fabs(norm - sqrt(sum)) < 1e-9 * norm);
    assert_true(sh_gradients_clip(&by, arena, 1e9) == norm);
    assert_true(sh_gradients_clip(&by, arena, 10) == norm);
    assert_true(fabs(sh_gradients_norm(&by, arena) - 10) < 1e-5);
    arena->gradients[7] = INFINITY;
    float kept = arena->gradients[8];
    assert_true(sh_gradients_clip(&by, arena, 1) > 1e300);
    assert_true(arena->gradients[8] == kept);
    sh_parameters_clear_gradients(&by, arena);
    assert_true(sh_gradients_norm(&by, arena) == 0);
    sh_parameters_destroy(arena);
    shoal_context_destroy(context);
}

static void averages_follow_the_weights(void **state) {
    (void)state;
    shoal_context *context = test_context(NULL, 2);
    crew by = sh_crew_of(context);
    parameters *arena = arena_create(context);
    float *decayed = malloc((size_t)arena->size * sizeof *decayed);
    memset(decayed, 0xff, (size_t)arena->size * sizeof *decayed); /* NaN: copied over */
    for (int t = 0; t < 4; t++) {
        arena->values[5] = (float)(1 << t);
        sh_weights_average(&by, arena, 0.9, t, decayed);
    }
    double wanted = ((1 * 0.9 + 2 * 0.1) * 0.9 + 4 * 0.1) * 0.9 + 8 * 0.1;
    assert_true(fabs((double)decayed[5] - wanted) < 1e-6);
    assert_true(decayed[6] == arena->values[6]);
    free(decayed);
    sh_parameters_destroy(arena);
    shoal_context_destroy(context);
}

static void the_rate_warms_up_and_drops(void **state) {
    (void)state;
    schedule_settings settings = {.rate = 0.1,
                                  .warmup_steps = 10,
                                  .factor = 0.5,
                                  .patience = 1,
                                  .threshold = 0.01,
                                  .minimum = 0.03};
    schedule_state now = sh_schedule_begin();
    assert_true(fabs(sh_schedule_rate(&settings, &now, 1) - 0.01) < 1e-12);
    assert_true(sh_schedule_rate(&settings, &now, 10) == 0.1);
    assert_true(sh_schedule_rate(&settings, &now, 1000) == 0.1);
    assert_false(sh_schedule_observe(&settings, &now, 2.0));
    assert_false(
        sh_schedule_observe(&settings, &now, 1.999)); /* not enough: forgiven once */
    assert_true(sh_schedule_observe(&settings, &now, NAN)); /* and not twice */
    assert_true(fabs(sh_schedule_rate(&settings, &now, 1000) - 0.05) < 1e-12);
    assert_false(sh_schedule_observe(&settings, &now, 1.0));
    assert_true(now.best == 1.0);
    assert_false(sh_schedule_observe(&settings, &now, 1.0));
    assert_true(sh_schedule_observe(&settings, &now, 1.0)); /* to the minimum */
    assert_true(fabs(sh_schedule_rate(&settings, &now, 1000) - 0.03) < 1e-12);
    assert_false(sh_schedule_observe(&settings, &now, 1.0));
    assert_false(sh_schedule_observe(&settings, &now, 1.0));
    assert_true(fabs(sh_schedule_rate(&settings, &now, 1000) - 0.03) < 1e-12);
}

static void the_arena_lists_what_it_holds(void **state) {
    (void)state;
    shoal_context *context = test_context(NULL, 1);
    parameters *arena = arena_create(context);
    assert_int_equal(arena->count, 3);
    const parameter *second = sh_parameters_find(arena, "second.2");
    assert_non_null(second);
    assert_int_equal(second->offset, FIRST); /* joined: no gap */
    assert_int_equal(second->count, SECOND * 3);
    const parameter *third = sh_parameters_find(arena, "third");
    assert_int_equal(third->offset % 16, 0);
    assert_int_equal(arena->size % 16, 0);
    assert_null(sh_parameters_find(arena, "fourth"));
    assert_null(sh_parameters_tensor(arena, "fourth").data);
    assert_ptr_equal(sh_parameters_tensor(arena, "%s.%d", "second", 2).data,
                     arena->values + FIRST);
    double mean = 0, square = 0, bound = sqrt(6.0 / (SECOND + 3));
    for (int64_t i = 0; i < FIRST; i++) {
        mean += (double)arena->values[i] / FIRST;
        square += (double)arena->values[i] * (double)arena->values[i] / FIRST;
    }
    assert_true(fabs(mean) < 0.01 && fabs(sqrt(square) - 0.5) < 0.01);
    for (int64_t i = 0; i < second->count; i++)
        assert_true(fabs((double)arena->values[second->offset + i]) <= bound);
    assert_true(arena->values[third->offset + 4] == 1);
    sh_parameters_destroy(arena);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_do_what_was_published),
        cmocka_unit_test(clipping_scales_to_the_limit),
        cmocka_unit_test(averages_follow_the_weights),
        cmocka_unit_test(the_rate_warms_up_and_drops),
        cmocka_unit_test(the_arena_lists_what_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
