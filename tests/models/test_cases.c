/* Cases for a comparison with PyTorch: bench/peers/train_check.py creates the folders,
   runs this program with SHOAL_NN_CASES set to their path, and reads its output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "nn_support.h"

#include "shoal_models.h"
#include "support.h"

static void write_array(shoal_context *context, const char *folder, const char *name,
                        shoal_array array) {
    char path[1000];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    assert_int_equal(shoal_array_write(context, path, &array), SHOAL_OK);
}

static void write_case(shoal_context *context, const char *folder, const model_case *c) {
    char inner[900];
    model_setup setup = setup_create(context, c, true, 21);
    float loss = (float)setup_step(context, &setup).mean;
    int32_t settings[] = {(int32_t)c->layers, (int32_t)c->heads,
                          c->post_norm,       c->relu,
                          c->learned,         c->shared_qk,
                          (int32_t)c->pooling};
    int32_t lengths[4];
    for (int64_t b = 0; b < setup.inputs.batch; b++)
        lengths[b] = (int32_t)(setup.offsets[b + 1] - setup.offsets[b]);
    snprintf(inner, sizeof inner, "%s/%s", folder, c->name);
    const struct {
        const char *name;
        shoal_array array;
    } arrays[] = {
        {"settings", {SHOAL_DTYPE_INT32, 1, {COUNT_OF(settings)}, settings, NULL, 0}},
        {"lengths", {SHOAL_DTYPE_INT32, 1, {setup.inputs.batch}, lengths, NULL, 0}},
        {"tokens", {SHOAL_DTYPE_INT32, 1, {setup.rows}, setup.tokens, NULL, 0}},
        {"targets",
         {SHOAL_DTYPE_INT32, 1, {setup_logit_rows(&setup)}, setup.targets, NULL, 0}},
        {"loss", {SHOAL_DTYPE_FLOAT32, 1, {1}, &loss, NULL, 0}},
    };
    for (int64_t i = 0; i < COUNT_OF(arrays); i++)
        write_array(context, inner, arrays[i].name, arrays[i].array);
    for (int64_t i = 0; i < setup.arena->count; i++) {
        const parameter *entry = &setup.arena->list[i];
        shoal_array array = {.dtype = SHOAL_DTYPE_FLOAT32, .dimensions = entry->rank};
        char name[PARAMETER_NAME + 16];
        memcpy(array.shape, entry->shape, sizeof entry->shape);
        array.data = setup.arena->values + entry->offset;
        write_array(context, inner, entry->name, array);
        array.data = setup.arena->gradients + entry->offset;
        snprintf(name, sizeof name, "gradient.%s", entry->name);
        write_array(context, inner, name, array);
    }
    setup_destroy(&setup);
}

static void cases_for_pytorch_are_written_where_asked(void **state) {
    const char *folder = getenv("SHOAL_NN_CASES");
    if (!folder)
        skip();
    const model_case cases[] = {
        {.name = "pre_gelu", .attention = "full"},
        {.name = "post_gelu", .attention = "full", .post_norm = true},
        {.name = "pre_relu_learned", .attention = "full", .relu = true, .learned = true},
        {.name = "post_relu_mean",
         .attention = "full",
         .post_norm = true,
         .relu = true,
         .pooling = SHOAL_POOLING_MEAN},
        {.name = "pre_gelu_first", .attention = "full", .pooling = SHOAL_POOLING_FIRST},
        {.name = "shared_projection", .attention = "full", .shared_qk = true},
        {.name = "shared_full", .attention = "shared-full", .shared_qk = true},
        {.name = "clustered_few", .attention = "i-clustered-100"},
    };
    shoal_context *context = test_context(NULL, 2);
    for (int64_t i = 0; i < COUNT_OF(cases); i++) {
        model_case c = cases[i];
        c.layers = 4;
        c.heads = 6;
        c.head_dim = 32;
        c.feed_forward = 768;
        memcpy(c.lengths, (int64_t[]){96, 33, 1, 70}, sizeof c.lengths);
        write_case(context, folder, &c);
    }
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cases_for_pytorch_are_written_where_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
