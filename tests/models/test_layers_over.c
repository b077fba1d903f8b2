/* Layers over several ranks, each with a contiguous part of every sequence, equal those
   of one process: outputs, gradients of the rows, and the sum of the weights'
   gradients. */
#include <math.h>
#include <string.h>

#include <shoal_models.h>

#include "cases.h"
#include "hub.h"
#include "support.h"

enum { RANKS = 3, BATCH = 2, HEADS = 2, DIM = 4, MODEL = HEADS * DIM, LAYERS = 2 };

/* Rows of each sequence, and the start of each rank's; the second rank has none of the
   first sequence. */
static const int64_t lengths[BATCH] = {50, 31};
static const int64_t cuts[RANKS + 1][BATCH] = {{0, 0}, {17, 9}, {17, 20}, {50, 31}};

typedef struct {
    const char *kind;
    float *x, *dout;          /* [81][MODEL] */
    float *out, *dx, *grads;  /* of one process */
    float *outs, *dxs, *sums; /* of the ranks, combined */
    int64_t parameters;
    float rank_grads[RANKS][4096];
} layers_case;

static int64_t row_of(int64_t b, int64_t position) {
    return (b ? lengths[0] : 0) + position;
}

/* transport NULL: one process with all rows. */
static void run_part(layers_case *c, shoal_transport *over, float *out, float *dx,
                     float *grads) {
    const int p = over ? over->rank : 0;
    int64_t offsets[BATCH + 1] = {0};
    float x[81 * MODEL], slope[81 * MODEL], *made, *gradients;
    shoal_context *context;
    shoal_model *model = NULL;
    shoal_model_config config = {.size = sizeof(shoal_model_config),
                                 .max_length = 100,
                                 .layers = LAYERS,
                                 .heads = HEADS,
                                 .head_dim = DIM,
                                 .feed_forward = 12,
                                 .positions = SHOAL_POSITIONS_NONE};
    shoal_context_create(&(shoal_options){.size = sizeof(shoal_options), .threads = 1},
                         &context);
    assert_int_equal(shoal_attention_parse(context, c->kind, &config.attention), 0);
    for (int64_t b = 0; b < BATCH; b++) {
        const int64_t first = over ? cuts[p][b] : 0;
        const int64_t count = (over ? cuts[p + 1][b] : lengths[b]) - first;
        const size_t bytes = sizeof(float) * (size_t)(count * MODEL);
        memcpy(x + offsets[b] * MODEL, c->x + row_of(b, first) * MODEL, bytes);
        memcpy(slope + offsets[b] * MODEL, c->dout + row_of(b, first) * MODEL, bytes);
        offsets[b + 1] = offsets[b] + count;
    }
    const int64_t rows = offsets[BATCH];
    const shoal_status status =
        over ? shoal_model_create_over(over, context, &config, 3, BATCH, rows,
                                       SHOAL_WITH_BACKWARD, &model)
             : shoal_model_create(context, &config, 3, BATCH, rows, SHOAL_WITH_BACKWARD,
                                  &model);
    if (status != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = BATCH,
                                       .offsets = offsets,
                                       .features = x};
    assert_int_equal(shoal_model_forward(model, &inputs, &made), SHOAL_OK);
    float rows_out[81 * MODEL], rows_dx[81 * MODEL];
    memcpy(rows_out, made, sizeof(float) * (size_t)(rows * MODEL));
    assert_int_equal(shoal_model_backward(model, &inputs, slope, rows_dx), SHOAL_OK);
    c->parameters = shoal_model_vectors(model, NULL, &gradients);
    assert_in_range(c->parameters, 1, 4096);
    memcpy(grads, gradients, sizeof(float) * (size_t)c->parameters);
    for (int64_t b = 0; b < BATCH; b++) {
        const int64_t first = over ? cuts[p][b] : 0;
        const size_t bytes = sizeof(float) *
                             (size_t)((offsets[b + 1] - offsets[b]) * MODEL);
        memcpy(out + row_of(b, first) * MODEL, rows_out + offsets[b] * MODEL, bytes);
        memcpy(dx + row_of(b, first) * MODEL, rows_dx + offsets[b] * MODEL, bytes);
    }
    shoal_model_destroy(model);
    shoal_context_destroy(context);
}

static void run_rank(void *shared, shoal_transport *over) {
    layers_case *c = shared;
    run_part(c, over, c->outs, c->dxs, c->rank_grads[over->rank]);
}

static void check_near(const char *kind, const char *what, const float *a, const float *b,
                       int64_t count, double most) {
    double apart = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        apart += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    if (!(size > 0 && sqrt(apart / size) <= most))
        fail_msg("%s, %s: relative difference %g", kind, what, sqrt(apart / size));
}

static void as_one_process(void **state) {
    static layers_case c;
    static float arrays[8][81 * MODEL];
    static float grads[2][4096];
    const char *kinds[] = {"full", "clustered-5", "i-clustered-6:topk=4",
                           "q-clustered-5"};
    (void)state;
    for (int64_t i = 0; i < 81 * MODEL; i++) {
        arrays[0][i] = (float)test_normal(test_hash(1, 1, (uint64_t)i));
        arrays[1][i] = (float)test_normal(test_hash(1, 2, (uint64_t)i));
    }
    for (int64_t k = 0; k < COUNT_OF(kinds); k++) {
        c = (layers_case){.kind = kinds[k],
                          .x = arrays[0],
                          .dout = arrays[1],
                          .out = arrays[2],
                          .dx = arrays[3],
                          .outs = arrays[4],
                          .dxs = arrays[5],
                          .grads = grads[0],
                          .sums = grads[1]};
        run_part(&c, NULL, c.out, c.dx, c.grads);
        hub_run(RANKS, 0, run_rank, &c);
        memset(c.sums, 0, sizeof grads[1]);
        for (int p = 0; p < RANKS; p++)
            for (int64_t i = 0; i < c.parameters; i++)
                c.sums[i] += c.rank_grads[p][i];
        check_near(kinds[k], "out", c.outs, c.out, 81 * MODEL, 1e-5);
        check_near(kinds[k], "dx", c.dxs, c.dx, 81 * MODEL, 1e-4);
        check_near(kinds[k], "parameters", c.sums, c.grads, c.parameters, 1e-4);
    }
}

static void refusals(void **state) {
    shoal_context *context;
    shoal_model *model;
    shoal_transport alone = {.ranks = 1};
    const shoal_model_config config = {.size = sizeof(shoal_model_config),
                                       .vocabulary = 5,
                                       .outputs = 5,
                                       .max_length = 4,
                                       .layers = 1,
                                       .heads = 1,
                                       .head_dim = 4,
                                       .feed_forward = 4};
    (void)state;
    shoal_context_create(NULL, &context);
    assert_int_equal(shoal_model_create_over(&alone, context, &config, 1, 1, 4, 0,
                                             &model),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "layers only"));
    assert_int_equal(shoal_model_create_over(NULL, context, &config, 1, 1, 4, 0, &model),
                     SHOAL_INVALID);
    assert_null(model);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_one_process),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
