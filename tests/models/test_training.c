/* Parts of training: the loss compared with its exact formula, optimizers with the
   published ones in double precision, clipping, averages, the schedule of the learning
   rate, random numbers, the arena of parameters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "models/nn/parameters.h"
#include "shoal_models.h"
#include "support.h"

/* ---- Cross-entropy --------------------------------------------------------------- */

typedef struct {
    int64_t rows, classes;
    float *logits, *slopes;
    int32_t *targets;
    double *exact, *exact_slopes;
} entropy_case;

/* Normal numbers; one row in five is ignored, and some targets are by far the
   largest. */
static entropy_case entropy_create(int64_t rows, int64_t classes) {
    const int64_t count = rows * classes;
    entropy_case c = {rows,
                      classes,
                      test_memory(count, sizeof *c.logits),
                      test_memory(count, sizeof *c.slopes),
                      test_memory(rows, sizeof *c.targets),
                      test_memory(count, sizeof *c.exact),
                      test_memory(count, sizeof *c.exact_slopes)};
    for (int64_t i = 0; i < count; i++)
        c.logits[i] = (float)test_normal(test_hash(7, 1, (uint64_t)i));
    for (int64_t r = 0; r < rows; r++) {
        c.targets[r] = r % 5 == 0 ? SHOAL_IGNORED : (int32_t)(r * 37 % classes);
        if (r % 4 == 1 && r % 5)
            c.logits[r * classes + c.targets[r]] += 200;
    }
    for (int64_t i = 0; i < count; i++)
        c.exact[i] = (double)c.logits[i];
    return c;
}

static void entropy_destroy(entropy_case *c) {
    free(c->logits), free(c->slopes), free(c->targets);
    free(c->exact), free(c->exact_slopes);
}

static int64_t first_largest(const float *row, int64_t classes) {
    int64_t best = 0;
    for (int64_t j = 1; j < classes; j++)
        if (row[j] > row[best])
            best = j;
    return best;
}

static void check_entropy(shoal_context *context, int64_t rows, int64_t classes) {
    entropy_case c = entropy_create(rows, classes);
    int64_t counted = 0, correct = 0;
    shoal_loss loss;
    for (int64_t r = 0; r < rows; r++) {
        counted += c.targets[r] >= 0;
        correct += first_largest(c.logits + r * classes, classes) == c.targets[r];
    }
    assert_int_equal(shoal_cross_entropy(context, rows, classes, c.logits, c.targets,
                                         c.slopes, &loss),
                     SHOAL_OK);
    const double exact =
        exact_cross_entropy(rows, classes, c.exact, c.targets, c.exact_slopes);
    for (int64_t i = 0; i < rows * classes; i++)
        assert_true(fabs((double)c.slopes[i] - c.exact_slopes[i]) <= 1e-7);
    assert_int_equal(loss.counted, counted);
    assert_int_equal(loss.correct, correct);
    assert_true(fabs(loss.mean - exact) <= 2e-6);
    /* The same in place, and without a gradient. */
    shoal_loss again;
    assert_int_equal(shoal_cross_entropy(context, rows, classes, c.logits, c.targets,
                                         NULL, &again),
                     SHOAL_OK);
    assert_true(again.mean == loss.mean && again.correct == correct);
    assert_int_equal(shoal_cross_entropy(context, rows, classes, c.logits, c.targets,
                                         c.logits, &again),
                     SHOAL_OK);
    assert_memory_equal(c.logits, c.slopes, sizeof(float) * (size_t)(rows * classes));
    assert_true(again.mean == loss.mean);
    entropy_destroy(&c);
}

static void cross_entropy_is_right(void **state) {
    for (int i = 0; test_isa(i); i++) {
        shoal_context *context = test_context(test_isa(i), 1 + i % 3);
        check_entropy(context, 70, 300);
        check_entropy(context, 9001, 3); /* more than one block of the sum */
        check_entropy(context, 1, 1);
        shoal_context_destroy(context);
    }
}

/* The gradient equals central differences of the loss. */
static void cross_entropy_has_its_slope(void **state) {
    shoal_context *context = test_context(NULL, 2);
    entropy_case c = entropy_create(7, 5);
    shoal_loss loss[2];
    assert_int_equal(shoal_cross_entropy(context, 7, 5, c.logits, c.targets, c.slopes,
                                         loss),
                     SHOAL_OK);
    for (int64_t i = 0; i < 7 * 5; i++) {
        const float kept = c.logits[i], step = 0x1p-7f;
        for (int side = 0; side < 2; side++) {
            c.logits[i] = side ? kept + step : kept - step;
            assert_int_equal(shoal_cross_entropy(context, 7, 5, c.logits, c.targets, NULL,
                                                 &loss[side]),
                             SHOAL_OK);
        }
        c.logits[i] = kept;
        const double slope = (loss[1].mean - loss[0].mean) / (2 * (double)step);
        assert_true(fabs(slope - (double)c.slopes[i]) < 2e-5);
    }
    entropy_destroy(&c);
    shoal_context_destroy(context);
}

static void cross_entropy_has_corners(void **state) {
    shoal_context *context = test_context(NULL, 1);
    float logits[6] = {0};
    int32_t targets[2] = {SHOAL_IGNORED, SHOAL_IGNORED};
    shoal_loss loss = {1, 1, 1};
    assert_int_equal(shoal_cross_entropy(context, 0, 3, NULL, NULL, NULL, &loss),
                     SHOAL_OK);
    assert_true(loss.mean == 0 && loss.counted == 0 && loss.correct == 0);
    assert_int_equal(shoal_cross_entropy(context, 2, 3, logits, targets, logits, &loss),
                     SHOAL_OK);
    assert_true(loss.mean == 0 && loss.counted == 0);
    targets[1] = 1;
    logits[5] = NAN; /* must be detected */
    assert_int_equal(shoal_cross_entropy(context, 2, 3, logits, targets, NULL, &loss),
                     SHOAL_OK);
    assert_true(isnan(loss.mean) != 0);
    targets[1] = 3;
    assert_int_equal(shoal_cross_entropy(context, 2, 3, logits, targets, NULL, &loss),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "target 3 at row 1"));
    targets[1] = -2;
    assert_int_equal(shoal_cross_entropy(context, 2, 3, logits, targets, NULL, &loss),
                     SHOAL_INVALID);
    targets[1] = 0;
    assert_int_equal(shoal_cross_entropy(NULL, 2, 3, logits, targets, NULL, &loss),
                     SHOAL_INVALID);
    assert_int_equal(shoal_cross_entropy(context, -1, 3, logits, targets, NULL, &loss),
                     SHOAL_INVALID);
    assert_int_equal(shoal_cross_entropy(context, 2, 0, logits, targets, NULL, &loss),
                     SHOAL_INVALID);
    assert_int_equal(shoal_cross_entropy(context, 2, 3, NULL, targets, NULL, &loss),
                     SHOAL_INVALID);
    assert_int_equal(shoal_cross_entropy(context, 2, 3, logits, NULL, NULL, &loss),
                     SHOAL_INVALID);
    assert_int_equal(shoal_cross_entropy(context, 2, 3, logits, targets, NULL, NULL),
                     SHOAL_INVALID);
    shoal_context_destroy(context);
}

/* ---- Gradient and optimizer ------------------------------------------------------ */

/* A model of about 50,000 parameters: several blocks of every pass over them. */
typedef struct {
    shoal_context *context;
    shoal_model *model;
    float *values, *gradients;
    int64_t size;
} vectors;

static vectors vectors_create(int threads) {
    const shoal_model_config config = {.size = sizeof(shoal_model_config),
                                       .max_length = 8,
                                       .layers = 1,
                                       .heads = 4,
                                       .head_dim = 16,
                                       .feed_forward = 256};
    vectors made = {.context = test_context(NULL, threads)};
    assert_int_equal(shoal_model_create(made.context, &config, 3, 1, 8,
                                        SHOAL_WITH_BACKWARD, &made.model),
                     SHOAL_OK);
    made.size = shoal_model_vectors(made.model, &made.values, &made.gradients);
    assert_true(made.size > 49000);
    return made;
}

static void vectors_destroy(vectors *made) {
    shoal_model_destroy(made->model);
    shoal_context_destroy(made->context);
}

static void fill_gradients(vectors *to, uint64_t step) {
    for (int64_t i = 0; i < to->size; i++)
        to->gradients[i] = (float)test_normal(test_hash(step, 9, (uint64_t)i));
}

/* One element of one step, as published. */
static void step_by_hand(const shoal_optimizer_config *s, double rate, double t, double g,
                         double *m, double *v, double *p) {
    const double b1 = (double)s->beta1, b2 = (double)s->beta2;
    const double decay = (double)s->weight_decay;
    const bool l2 = s->kind == SHOAL_OPTIMIZER_KIND_RADAM_L2 ||
                    s->kind == SHOAL_OPTIMIZER_KIND_ADAM_L2;
    if (l2)
        g += decay * *p;
    *m = b1 * *m + (1 - b1) * g;
    *v = b2 * *v + (1 - b2) * g * g;
    double mean = *m / (1 - pow(b1, t));
    double change = mean / (sqrt(*v / (1 - pow(b2, t))) + (double)s->epsilon);
    if (s->kind == SHOAL_OPTIMIZER_KIND_RADAM ||
        s->kind == SHOAL_OPTIMIZER_KIND_RADAM_L2) {
        double most = 2 / (1 - b2) - 1;
        double rho = most - 2 * t * pow(b2, t) / (1 - pow(b2, t));
        double r = sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho));
        change = rho > (double)s->rectify_above ? r * change : mean;
    }
    if (!l2)
        *p -= rate * decay * *p;
    *p -= rate * change;
}

static void check_optimizer(const shoal_optimizer_config *config) {
    vectors on = vectors_create(2);
    shoal_optimizer *optimizer;
    assert_int_equal(shoal_optimizer_create(on.model, config, &optimizer), SHOAL_OK);
    double *m = test_memory(on.size, sizeof *m), *v = test_memory(on.size, sizeof *v);
    double *p = test_memory(on.size, sizeof *p);
    for (int64_t i = 0; i < on.size; i++) {
        m[i] = v[i] = 0;
        p[i] = (double)on.values[i];
    }
    for (int t = 1; t <= 12; t++) {
        fill_gradients(&on, (uint64_t)t);
        for (int64_t i = 0; i < on.size; i++)
            step_by_hand(config, 0.01, t, (double)on.gradients[i], &m[i], &v[i], &p[i]);
        assert_int_equal(shoal_optimizer_step(optimizer, 0.01), SHOAL_OK);
        for (int64_t i = 0; i < on.size; i++)
            if (!(fabs((double)on.values[i] - p[i]) < 2e-6))
                fail_msg("step %d: parameter %lld is %.9g, should be %.9g", t,
                         (long long)i, (double)on.values[i], p[i]);
    }
    assert_int_equal(shoal_optimizer_steps(optimizer), 12);
    free(m), free(v), free(p);
    shoal_optimizer_destroy(optimizer);
    vectors_destroy(&on);
}

static void optimizers_do_what_was_published(void **state) {
    for (int32_t kind = SHOAL_OPTIMIZER_KIND_RADAM; kind <= SHOAL_OPTIMIZER_KIND_ADAM_L2;
         kind++) {
        shoal_optimizer_config config = shoal_optimizer_config_defaults();
        config.kind = kind;
        check_optimizer(&config);
        config.weight_decay = 0.1f;
        config.rectify_above = 5;
        check_optimizer(&config);
        config.beta1 = 0; /* no mean: not the default 0.9 */
        config.beta2 = 0.9f;
        config.epsilon = 0.01f;
        check_optimizer(&config);
    }
}

static void no_config_is_the_default(void **state) {
    vectors on[2] = {vectors_create(1), vectors_create(3)};
    const shoal_optimizer_config config = shoal_optimizer_config_defaults();
    for (int i = 0; i < 2; i++) {
        shoal_optimizer *optimizer;
        assert_int_equal(shoal_optimizer_create(on[i].model, i ? &config : NULL,
                                                &optimizer),
                         SHOAL_OK);
        assert_true(shoal_optimizer_workspace(optimizer) >=
                    2 * sizeof(float) * (size_t)on[i].size);
        for (int t = 0; t < 8; t++) {
            fill_gradients(&on[i], 4);
            assert_int_equal(shoal_optimizer_step(optimizer, 0.01), SHOAL_OK);
        }
        shoal_optimizer_destroy(optimizer);
    }
    assert_memory_equal(on[0].values, on[1].values, sizeof(float) * (size_t)on[0].size);
    vectors_destroy(&on[0]);
    vectors_destroy(&on[1]);
}

static void wrong_optimizers_are_refused(void **state) {
    vectors on = vectors_create(1);
    shoal_optimizer *optimizer;
    shoal_model *view;
    for (int field = 0; field < 9; field++) {
        shoal_optimizer_config config = shoal_optimizer_config_defaults();
        switch (field) {
        case 0: config.kind = 4; break;
        case 1: config.kind = -1; break;
        case 2: config.beta1 = 1; break;
        case 3: config.beta2 = -0.1f; break;
        case 4: config.epsilon = 0; break;
        case 5: config.weight_decay = NAN; break;
        case 6: config.average = 1; break;
        case 7: config.rectify_above = 3; break;
        case 8: config.epsilon = INFINITY; break;
        }
        if (shoal_optimizer_create(on.model, &config, &optimizer) != SHOAL_INVALID)
            fail_msg("field %d was taken", field);
        assert_null(optimizer);
    }
    assert_int_equal(shoal_optimizer_create(NULL, NULL, &optimizer), SHOAL_INVALID);
    assert_int_equal(shoal_optimizer_create(on.model, NULL, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_model_create_view(on.model, NULL, 1, 8, &view), SHOAL_OK);
    assert_int_equal(shoal_optimizer_create(view, NULL, &optimizer), SHOAL_INVALID);
    assert_int_equal(shoal_gradients_clip(view, 1, NULL), SHOAL_INVALID);
    shoal_model_destroy(view);
    assert_int_equal(shoal_optimizer_create(on.model, NULL, &optimizer), SHOAL_OK);
    assert_int_equal(shoal_optimizer_step(optimizer, NAN), SHOAL_INVALID);
    assert_int_equal(shoal_optimizer_steps(optimizer), 0);
    shoal_optimizer_destroy(optimizer);
    assert_int_equal(shoal_optimizer_step(NULL, 1), SHOAL_INVALID);
    assert_int_equal(shoal_optimizer_use_average(NULL, 1), SHOAL_INVALID);
    assert_int_equal(shoal_optimizer_steps(NULL), 0);
    assert_int_equal(shoal_optimizer_workspace(NULL), 0);
    shoal_optimizer_destroy(NULL);
    vectors_destroy(&on);
}

static double norm_of(const vectors *on) {
    double sum = 0;
    for (int64_t i = 0; i < on->size; i++)
        sum += (double)on->gradients[i] * (double)on->gradients[i];
    return sqrt(sum);
}

static void clipping_scales_to_the_limit(void **state) {
    vectors on = vectors_create(2);
    double norm;
    fill_gradients(&on, 1);
    const double whole = norm_of(&on);
    const double limits[] = {0, 1e9, 10}; /* no limit, a large one, one that is reached */
    for (int64_t i = 0; i < COUNT_OF(limits); i++) {
        assert_int_equal(shoal_gradients_clip(on.model, limits[i], &norm), SHOAL_OK);
        assert_true(fabs(norm - whole) < 1e-9 * whole);
    }
    assert_true(fabs(norm_of(&on) - 10) < 1e-5);
    assert_int_equal(shoal_gradients_clip(on.model, 1, NULL), SHOAL_OK);
    assert_true(fabs(norm_of(&on) - 1) < 1e-6);
    on.gradients[7] = INFINITY;
    const float kept = on.gradients[8];
    assert_int_equal(shoal_gradients_clip(on.model, 0.5, &norm), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(on.context), "not finite"));
    assert_true(isinf(norm) && on.gradients[8] == kept);
    on.gradients[7] = 0;
    assert_int_equal(shoal_gradients_clip(on.model, -1, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_gradients_clip(on.model, NAN, NULL), SHOAL_INVALID);
    assert_int_equal(shoal_gradients_clip(NULL, 1, NULL), SHOAL_INVALID);
    vectors_destroy(&on);
}

/* An average with decay 0.9 of the weights 1, 2, 4 and 8. */
static void averages_follow_the_weights(void **state) {
    vectors on = vectors_create(2);
    shoal_optimizer_config config = shoal_optimizer_config_defaults();
    shoal_optimizer *optimizer;
    config.average = 0.9f;
    assert_int_equal(shoal_optimizer_create(on.model, &config, &optimizer), SHOAL_OK);
    on.values[5] = 3;
    assert_int_equal(shoal_optimizer_use_average(optimizer, 1), SHOAL_OK);
    assert_true(on.values[5] == 3); /* there is none yet */
    for (int t = 0; t < 4; t++) {
        on.values[5] = (float)(1 << t);
        assert_int_equal(shoal_optimizer_step(optimizer, 0), SHOAL_OK);
    }
    const double wanted = ((1 * 0.9 + 2 * 0.1) * 0.9 + 4 * 0.1) * 0.9 + 8 * 0.1;
    const float same = on.values[6];
    for (int again = 0; again < 2; again++) { /* a repeated call changes nothing */
        assert_int_equal(shoal_optimizer_use_average(optimizer, 1), SHOAL_OK);
        assert_true(fabs((double)on.values[5] - wanted) < 1e-6);
        assert_true(on.values[6] == same);
    }
    assert_int_equal(shoal_optimizer_step(optimizer, 0), SHOAL_INVALID);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(shoal_optimizer_use_average(optimizer, 0), SHOAL_OK);
        assert_true(on.values[5] == 8);
    }
    assert_int_equal(shoal_optimizer_step(optimizer, 0), SHOAL_OK);
    shoal_optimizer_destroy(optimizer);
    vectors_destroy(&on);
}

/* ---- The schedule ---------------------------------------------------------------- */

static void the_rate_warms_up_and_drops(void **state) {
    shoal_schedule plan = shoal_schedule_start(0.1);
    assert_true(shoal_schedule_rate(&plan, 1) == 0.1); /* constant */
    assert_false(shoal_schedule_observe(&plan, 1) || shoal_schedule_observe(&plan, 2));
    plan = shoal_schedule_start(0.1);
    plan.warmup = 10;
    plan.factor = 0.5;
    plan.patience = 1;
    plan.threshold = 0.01;
    plan.minimum = 0.03;
    assert_true(fabs(shoal_schedule_rate(&plan, 1) - 0.01) < 1e-12);
    assert_true(shoal_schedule_rate(&plan, 10) == 0.1);
    assert_true(shoal_schedule_rate(&plan, 1000) == 0.1);
    assert_false(shoal_schedule_observe(&plan, 2.0));
    assert_false(shoal_schedule_observe(&plan, 1.999)); /* too little: tolerated once */
    assert_true(shoal_schedule_observe(&plan, NAN));    /* but not twice */
    assert_true(fabs(shoal_schedule_rate(&plan, 1000) - 0.05) < 1e-12);
    assert_false(shoal_schedule_observe(&plan, 1.0));
    assert_true(plan.best == 1.0);
    assert_false(shoal_schedule_observe(&plan, 1.0));
    assert_true(shoal_schedule_observe(&plan, 1.0)); /* down to the minimum */
    assert_true(fabs(shoal_schedule_rate(&plan, 1000) - 0.03) < 1e-12);
    assert_false(shoal_schedule_observe(&plan, 1.0));
    assert_false(shoal_schedule_observe(&plan, 1.0));
    assert_true(fabs(shoal_schedule_rate(&plan, 1000) - 0.03) < 1e-12);
    assert_true(shoal_schedule_rate(NULL, 1) == 0);
    assert_false(shoal_schedule_observe(NULL, 1));
}

/* ---- Random numbers -------------------------------------------------------------- */

static void random_numbers_are_functions(void **state) {
    int counts[10] = {0};
    assert_true(shoal_random(1, 2, 3) == shoal_random(1, 2, 3));
    assert_true(shoal_random(1, 2, 3) != shoal_random(2, 2, 3));
    assert_true(shoal_random(1, 2, 3) != shoal_random(1, 3, 3));
    assert_true(shoal_random(1, 2, 3) != shoal_random(1, 2, 4));
    for (uint64_t i = 0; i < 10000; i++)
        counts[shoal_random_below(5, 0, i, 10)]++;
    for (int i = 0; i < 10; i++)
        assert_true(counts[i] > 850 && counts[i] < 1150);
    assert_int_equal(shoal_random_below(5, 0, 0, 0), 0);
    assert_int_equal(shoal_random_below(5, 0, 0, 1), 0);
}

/* ---- The arena of parameters ----------------------------------------------------- */

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

static void the_arena_lists_what_it_holds(void **state) {
    shoal_context *context = test_context(NULL, 1);
    parameters *arena;
    assert_int_equal(sh_parameters_create(context, describe, NULL, true, &arena),
                     SHOAL_OK);
    sh_parameters_start(arena, 3);
    assert_int_equal(arena->count, 3);
    const parameter *second = sh_parameters_find(arena, "second.2");
    assert_non_null(second);
    assert_int_equal(second->offset, FIRST); /* contiguous */
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
        cmocka_unit_test(cross_entropy_is_right),
        cmocka_unit_test(cross_entropy_has_its_slope),
        cmocka_unit_test(cross_entropy_has_corners),
        cmocka_unit_test(optimizers_do_what_was_published),
        cmocka_unit_test(no_config_is_the_default),
        cmocka_unit_test(wrong_optimizers_are_refused),
        cmocka_unit_test(clipping_scales_to_the_limit),
        cmocka_unit_test(averages_follow_the_weights),
        cmocka_unit_test(the_rate_warms_up_and_drops),
        cmocka_unit_test(random_numbers_are_functions),
        cmocka_unit_test(the_arena_lists_what_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
