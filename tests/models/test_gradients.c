/* Every gradient of complete models compared with central differences of a
   double-precision model, over orders of norms, activations, positions, heads, kinds of
   attention, dropout and awkward sizes. */
#include <math.h>
#include <stdlib.h>

#include "cases.h"
#include "nn_support.h"

#include "support.h"

#define SIZES .layers = 2, .heads = 2, .head_dim = 4, .feed_forward = 11

static const model_case CASES[] = {
    {"pre-norm", "full", SIZES, .lengths = {5, 1, 9, -1}},
    {"post-norm", "full", SIZES, .post_norm = true, .lengths = {5, 0, 9, -1}},
    {"relu", "full", SIZES, .relu = true, .lengths = {6, 3, -1}},
    {"post-norm relu", "full", SIZES, .post_norm = true, .relu = true,
     .lengths = {7, 4, -1}},
    {"learned positions", "full", SIZES, .learned = true, .lengths = {3, 8, -1}},
    {"no positions", "full", SIZES, .no_positions = true, .lengths = {4, 4, -1}},
    {"features", "full", SIZES, .features = true, .lengths = {5, 6, -1}},
    {"convolutions", "full", SIZES, .features = true, .convolutions = 2,
     .lengths = {5, 1, 6, 2}},
    {"convolutions, dropout", "full", SIZES, .features = true, .relu = true,
     .convolutions = 1, .dropout = 0.3f, .lengths = {5, 0, 6, -1}},
    {"mean", "full", SIZES, .pooling = SHOAL_POOLING_MEAN, .lengths = {5, 0, 7, 1}},
    {"first", "full", SIZES, .pooling = SHOAL_POOLING_FIRST, .lengths = {5, 0, 7, 1}},
    {"dropout", "full", SIZES, .dropout = 0.3f, .lengths = {5, 6, -1}},
    {"dropout, wide", "full", .layers = 1, .heads = 1, .head_dim = 4, .feed_forward = 300,
     .dropout = 0.3f, .lengths = {5, 6, -1}},
    {"dropout, post-norm", "full", SIZES, .dropout = 0.2f, .post_norm = true,
     .lengths = {5, 6, -1}},
    {"shared projection", "full", SIZES, .shared_qk = true, .lengths = {5, 6, -1}},
    {"shared projection, post-norm", "i-clustered-3:topk=4", SIZES, .shared_qk = true,
     .post_norm = true, .lengths = {12, 6, -1}},
    {"i-clustered, post-norm", "i-clustered-3:topk=4", SIZES, .post_norm = true,
     .lengths = {13, 7, -1}},
#define TEXT .post_norm = true, .learned = true
    {"BERT, every row", "full", SIZES, TEXT, .form = SHOAL_FORM_BERT,
     .lengths = {5, 6, -1}},
    {"BERT, mean", "full", SIZES, TEXT, .form = SHOAL_FORM_BERT,
     .pooling = SHOAL_POOLING_MEAN, .lengths = {5, 1, 6, -1}},
    {"BERT, dropout", "full", SIZES, TEXT, .form = SHOAL_FORM_BERT, .dropout = 0.2f,
     .pooling = SHOAL_POOLING_FIRST, .lengths = {5, 1, 6, 9}},
    {"RoBERTa", "full", SIZES, TEXT, .form = SHOAL_FORM_ROBERTA,
     .pooling = SHOAL_POOLING_FIRST, .lengths = {5, 1, 6, 4}},
    {"RoBERTa, i-clustered", "i-clustered-3:topk=4", SIZES, TEXT,
     .form = SHOAL_FORM_ROBERTA, .dropout = 0.2f, .pooling = SHOAL_POOLING_FIRST,
     .lengths = {13, 2, 7, 8}},
    {"one layer of primes", "full", .layers = 1, .heads = 1, .head_dim = 13,
     .feed_forward = 17, .lengths = {7, 3, -1}},
    {"vectors and tails", "full", .layers = 1, .heads = 3, .head_dim = 7,
     .feed_forward = 37, .lengths = {19, 4, -1}},
};

static const char *KINDS[TEST_KINDS + 1]; /* all positions of lsh are in one chunk */

/* Case `index` of those above and of all kinds of attention; false past the end. */
static bool find_case(int64_t index, model_case *c) {
    const char *kind = index < COUNT_OF(CASES) ? NULL : KINDS[index - COUNT_OF(CASES)];
    *c = index < COUNT_OF(CASES)
             ? CASES[index]
             : (model_case){kind, kind, SIZES, .lengths = {13, 7, -1}};
    return c->name != NULL;
}

/* Derivative of the exact loss with respect to one value, by a central difference. */
static double exact_slope(const model_setup *setup, double *values, int64_t element) {
    const double step = 1e-5, kept = values[element];
    values[element] = kept + step;
    double above = setup_exact_loss(setup, values, NULL);
    values[element] = kept - step;
    double below = setup_exact_loss(setup, values, NULL);
    values[element] = kept;
    return (above - below) / (2 * step);
}

/* Relative to the largest gradient of the same parameter, but at least to the rounding
   error of the whole model's. */
static void compare_parameter(const model_case *c, const model_setup *setup,
                              const parameter *entry, double *values, double whole) {
    double largest = 0;
    double *slopes = test_memory(entry->count, sizeof *slopes);
    for (int64_t i = 0; i < entry->count; i++) {
        slopes[i] = exact_slope(setup, values, entry->offset + i);
        largest = fmax(largest, fabs(slopes[i]));
    }
    double tolerance = 2e-5 * largest + 2e-6 * whole;
    for (int64_t i = 0; i < entry->count; i++) {
        double got = (double)setup->arena->gradients[entry->offset + i];
        if (!(fabs(got - slopes[i]) <= tolerance))
            fail_msg("%s: gradient of %s[%lld] is %.9g, should be %.9g (largest %.3g)",
                     c->name, entry->name, (long long)i, got, slopes[i], largest);
    }
    free(slopes);
}

static void check_case(shoal_context *context, const model_case *c) {
    model_setup setup = setup_create(context, c, true, 11);
    shoal_loss result = setup_step(context, &setup);
    double *values = setup_values(&setup);
    double loss = setup_exact_loss(&setup, values, NULL);
    if (!(fabs(result.mean - loss) <= 2e-6 * (1 + fabs(loss))))
        fail_msg("%s: loss is %.9g, should be %.9g", c->name, result.mean, loss);
    double whole = 0;
    for (int64_t i = 0; i < setup.arena->size; i++)
        whole = fmax(whole, fabs((double)setup.arena->gradients[i]));
    for (int64_t i = 0; i < setup.arena->count; i++)
        compare_parameter(c, &setup, &setup.arena->list[i], values, whole);
    free(values);
    setup_destroy(&setup);
}

static void gradients_are_those_of_finite_differences(void **state) {
    shoal_context *context = test_context(NULL, 2);
    model_case c;
    for (int64_t i = 0; find_case(i, &c); i++)
        check_case(context, &c);
    shoal_context_destroy(context);
}

static void plain_row_functions_give_them_too(void **state) {
    shoal_context *context = test_context("scalar", 1);
    check_case(context, &CASES[0]);
    check_case(context, &CASES[1]);
    check_case(context, &CASES[COUNT_OF(CASES) - 1]);
    shoal_context_destroy(context);
}

static void compare_logits(shoal_context *context, const model_case *c) {
    model_setup setup = setup_create(context, c, true, 5);
    const float *got = setup_forward(&setup);
    int64_t count = setup_logit_rows(&setup) * TEST_OUTPUTS;
    double *values = setup_values(&setup);
    double *logits = test_memory(count + 1, sizeof *logits);
    setup_exact_loss(&setup, values, logits);
    for (int64_t j = 0; j < count; j++)
        if (!(fabs((double)got[j] - logits[j]) <= 1e-5))
            fail_msg("%s: logit %lld is %.9g, should be %.9g", c->name, (long long)j,
                     (double)got[j], logits[j]);
    free(logits);
    free(values);
    setup_destroy(&setup);
}

/* Logits, not only their loss; also of rows that are too wide for finite
   differences. */
static void logits_are_exact(void **state) {
    const model_case wide = {"dropout, wide rows", "full",
                             .layers = 1,          .heads = 3,
                             .head_dim = 100,      .feed_forward = 20,
                             .dropout = 0.3f,      .lengths = {5, 6, -1}};
    shoal_context *context = test_context(NULL, 1);
    model_case c;
    for (int64_t i = 0; find_case(i, &c); i++)
        compare_logits(context, &c);
    compare_logits(context, &wide);
    shoal_context_destroy(context);
}

int main(void) {
    test_kinds((shoal_attention){.clusters = 3, .topk = 4, .rounds = 2}, KINDS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_finite_differences),
        cmocka_unit_test(plain_row_functions_give_them_too),
        cmocka_unit_test(logits_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
