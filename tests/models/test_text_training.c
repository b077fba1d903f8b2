/* BERT and RoBERTa folders as trainable models: logits, loss and every gradient equal
   those of transformers with PyTorch's autograd (tests/models/text/
   record_training.py); folders are restored unchanged; and errors. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "folders.h"
#include "models/files/safetensors.h"
#include "shoal_models.h"
#include "support.h"

static shoal_context *context;

static int open_context(void **state) {
    context = test_context(NULL, 2);
    return 0;
}

static int close_context(void **state) {
    shoal_context_destroy(context);
    return 0;
}

/* A model of the folder with the limits of one batch. */
static shoal_model *open_model(const char *name, int64_t outputs, int32_t pooling,
                               const char *attention) {
    shoal_model *model;
    shoal_model_config config = {.size = sizeof(shoal_model_config),
                                 .outputs = outputs,
                                 .pooling = pooling};
    assert_int_equal(shoal_attention_parse(context, attention, &config.attention),
                     SHOAL_OK);
    assert_int_equal(shoal_text_model_config(context, recorded_text(name), &config),
                     SHOAL_OK);
    assert_int_equal(shoal_model_create(context, &config, 1, 4, 200, SHOAL_WITH_BACKWARD,
                                        &model),
                     SHOAL_OK);
    if (shoal_text_model_load(context, recorded_text(name), model) != SHOAL_OK)
        fail_msg("%s: %s", name, shoal_context_message(context));
    return model;
}

static int64_t count_of(const shoal_parameter *one) {
    int64_t count = 1;
    for (int r = 0; r < one->dimensions; r++)
        count *= one->shape[r];
    return count;
}

/* A copy of the tensor with this name. */
static void *copy_of(const safetensors *file, const char *name) {
    const file_tensor *t = sh_safetensors_find(file, name);
    if (!t)
        fail_msg("no %s", name);
    void *copy = test_memory((int64_t)t->bytes, 1);
    memcpy(copy, t->data, t->bytes);
    return copy;
}

/* Copies the head's weights from the record. */
static void take_head(const safetensors *file, shoal_model *model) {
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++) {
        char name[128];
        snprintf(name, sizeof name, "own.%s", one.name);
        const file_tensor *t = sh_safetensors_find(file, name);
        if (t)
            memcpy(one.values, t->data, t->bytes);
    }
}

static void expect_close(int64_t count, const float *got, const float *wanted,
                         double tolerance, const char *what) {
    double largest = 0, difference = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)wanted[i]));
        difference = fmax(difference, fabs((double)got[i] - wanted[i]));
        if (isnan(got[i]))
            difference = INFINITY;
    }
    if (!(difference <= tolerance * largest + 1e-7))
        fail_msg("%s: %g of %g", what, difference, largest);
}

/* Mean over sequences of the two cross-entropies over their rows, and its gradient. */
static double span_loss(int64_t batch, const int64_t *offsets, const int32_t *targets,
                        float *logits) {
    double sum = 0;
    for (int64_t at = 0; at < 2 * batch; at++) {
        const int64_t first = offsets[at / 2], rows = offsets[at / 2 + 1] - first;
        float *column = test_memory(rows, sizeof *column);
        shoal_loss loss;
        for (int64_t r = 0; r < rows; r++)
            column[r] = logits[2 * (first + r) + at % 2];
        assert_int_equal(shoal_cross_entropy(context, 1, rows, column, &targets[at],
                                             column, &loss),
                         SHOAL_OK);
        for (int64_t r = 0; r < rows; r++)
            logits[2 * (first + r) + at % 2] = column[r] / (float)(2 * batch);
        sum += loss.mean / (double)(2 * batch);
        free(column);
    }
    return sum;
}

static void copy_config(const char *name, const char *folder) {
    char from[600], to[600], text[4096];
    snprintf(from, sizeof from, "%s/config.json", recorded_text(name));
    snprintf(to, sizeof to, "%s/config.json", folder);
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    const size_t size = fread(text, 1, sizeof text, file);
    fclose(file);
    write_bytes_to(to, text, size);
}

static safetensors *save_and_open(const char *name, const char *folder,
                                  shoal_model *model) {
    char path[600];
    safetensors *file;
    copy_config(name, folder);
    if (shoal_text_model_save(context, folder, model) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(sh_safetensors_open(context, path, &file), SHOAL_OK);
    return file;
}

/* The gradients are written to a file, with the names of transformers. */
static void compare_gradients(const char *name, const safetensors *record,
                              shoal_model *model) {
    const char *folder = make_folder();
    shoal_parameter one;
    for (int i = 0; shoal_model_parameter(model, i, &one); i++)
        memcpy(one.values, one.gradients, sizeof(float) * (size_t)count_of(&one));
    safetensors *saved = save_and_open(name, folder, model);
    int64_t compared = 0;
    for (int64_t i = 0; i < sh_safetensors_count(record); i++) {
        const file_tensor *wanted = sh_safetensors_at(record, i);
        if (strncmp(wanted->name, "gradient.", 9) != 0)
            continue;
        const file_tensor *got = sh_safetensors_find(saved, wanted->name + 9);
        if (!got || got->bytes != wanted->bytes)
            fail_msg("%s: not saved, or in another shape", wanted->name);
        float *a = copy_of(saved, wanted->name + 9), *b = copy_of(record, wanted->name);
        expect_close((int64_t)(got->bytes / sizeof(float)), a, b, 2e-5, wanted->name);
        compared++;
        free(a);
        free(b);
    }
    assert_int_equal(compared, sh_safetensors_count(saved));
    sh_safetensors_close(saved);
    remove_folder(folder);
}

static void check_record(const char *name, const char *which, const char *attention) {
    const bool spans = strcmp(which, "spans") == 0;
    char path[600];
    safetensors *record;
    float *logits;
    shoal_loss loss;
    snprintf(path, sizeof path, "%s/%s.safetensors", recorded_text(name), which);
    assert_int_equal(sh_safetensors_open(context, path, &record), SHOAL_OK);
    shoal_model *model = open_model(name, spans ? 2 : 3,
                                    spans ? SHOAL_POOLING_NONE : SHOAL_POOLING_FIRST,
                                    attention);
    take_head(record, model);
    int32_t *ids = copy_of(record, "ids"), *types = copy_of(record, "types");
    int32_t *targets = copy_of(record, "targets");
    int64_t *offsets = copy_of(record, "offsets");
    float *wanted = copy_of(record, "logits");
    double *wanted_loss = copy_of(record, "loss");
    const shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                       .batch = 3,
                                       .offsets = offsets,
                                       .tokens = ids,
                                       .types = types};
    assert_int_equal(shoal_model_forward(model, &inputs, &logits), SHOAL_OK);
    expect_close(spans ? 2 * offsets[3] : 9, logits, wanted, 1e-5, "logits");
    if (spans)
        loss.mean = span_loss(3, offsets, targets, logits);
    else
        assert_int_equal(shoal_cross_entropy(context, 3, 3, logits, targets, logits,
                                             &loss),
                         SHOAL_OK);
    assert_true(fabs(loss.mean - *wanted_loss) < 1e-5);
    assert_int_equal(shoal_model_backward(model, &inputs, logits, NULL), SHOAL_OK);
    compare_gradients(name, record, model);
    shoal_model_destroy(model);
    sh_safetensors_close(record);
    void *const memory[] = {ids, types, targets, offsets, wanted, wanted_loss};
    for (int64_t i = 0; i < COUNT_OF(memory); i++)
        free(memory[i]);
}

static void gradients_are_those_of_autograd(void **state) {
    check_record("bert", "classes", "full");
    check_record("roberta", "classes", "full");
    check_record("bert", "spans", "full");
}

/* With as many exact keys as there are keys, a clustered kind equals full attention. */
static void other_kinds(void **state) {
    check_record("roberta", "classes", "i-clustered-4:topk=512");
    check_record("bert", "spans", "i-clustered-4:topk=512");
}

/* ---- Folders ---------------------------------------------------------------------- */

/* A folder that is saved and loaded again is the same, including head and output. */
static void folders_come_back(void **state) {
    static const char *const names[] = {"bert", "roberta"};
    for (int64_t n = 0; n < COUNT_OF(names); n++) {
        const char *folder = make_folder();
        shoal_model *first = open_model(names[n], 2, SHOAL_POOLING_FIRST, "full");
        shoal_model *second = open_model(names[n], 2, SHOAL_POOLING_FIRST, "full");
        float *a, *b;
        const int64_t size = shoal_model_vectors(first, &a, NULL);
        shoal_model_vectors(second, &b, NULL);
        shoal_parameter one;
        for (int i = 0; shoal_model_parameter(first, i, &one); i++)
            one.values[0] += 0.5f;
        sh_safetensors_close(save_and_open(names[n], folder, first));
        assert_memory_not_equal(a, b, sizeof *a * (size_t)size);
        assert_int_equal(shoal_text_model_load(context, folder, second), SHOAL_OK);
        assert_memory_equal(a, b, sizeof *a * (size_t)size);
        shoal_model_destroy(first);
        shoal_model_destroy(second);
        remove_folder(folder);
    }
}

/* Another number of classes: the output keeps its initial weights. */
static void other_outputs(void **state) {
    const char *folder = make_folder();
    shoal_model *two = open_model("roberta", 2, SHOAL_POOLING_FIRST, "full");
    shoal_model *three = open_model("roberta", 3, SHOAL_POOLING_FIRST, "full");
    sh_safetensors_close(save_and_open("roberta", folder, two));
    assert_int_equal(shoal_text_model_load(context, folder, three), SHOAL_OK);
    shoal_model_destroy(two);
    shoal_model_destroy(three);
    remove_folder(folder);
}

static void wrong_calls(void **state) {
    const int64_t offsets[] = {0, 3, 3};
    const int32_t tokens[] = {1, 2, 3}, types[] = {0, 1, 2};
    shoal_model_config config = {.size = sizeof(shoal_model_config),
                                 .outputs = 2,
                                 .pooling = SHOAL_POOLING_FIRST};
    shoal_model *model = open_model("bert", 2, SHOAL_POOLING_FIRST, "full"), *other;
    shoal_model_inputs inputs = {.size = sizeof(shoal_model_inputs),
                                 .batch = 2,
                                 .offsets = offsets,
                                 .tokens = tokens};
    float *out;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "sequence 1 is empty"));
    inputs.batch = 1;
    inputs.types = types;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "type 2 at row 2"));
    inputs.types = NULL;
    assert_int_equal(shoal_model_forward(model, &inputs, &out), SHOAL_OK);
    assert_int_equal(shoal_text_model_config(context, recorded_text("modern"), &config),
                     SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(context), "modernbert"));
    assert_int_equal(shoal_text_model_config(context, "/nowhere", &config),
                     SHOAL_BAD_FILE);
    assert_int_equal(shoal_text_model_load(context, recorded_text("roberta"), model),
                     SHOAL_BAD_FILE);
    config = *shoal_model_settings(model);
    config.norm = SHOAL_NORM_PRE;
    assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 0, &other),
                     SHOAL_INVALID);
    config.norm = SHOAL_NORM_POST;
    config.form = 3;
    assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 0, &other),
                     SHOAL_INVALID);
    shoal_model_destroy(model);
}

/* A model's file keeps form, types and epsilon. */
static void model_files(void **state) {
    const char *folder = make_folder();
    char path[600];
    snprintf(path, sizeof path, "%s/m.safetensors", folder);
    shoal_model *model = open_model("bert", 2, SHOAL_POOLING_FIRST, "full"), *read;
    assert_int_equal(shoal_model_save(model, path), SHOAL_OK);
    assert_int_equal(shoal_model_open(context, path, 1, 64, 0, &read), SHOAL_OK);
    const shoal_model_config *a = shoal_model_settings(model);
    const shoal_model_config *b = shoal_model_settings(read);
    assert_true(a->form == b->form && a->types == b->types && a->epsilon == b->epsilon);
    shoal_model_destroy(read);
    shoal_model_destroy(model);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_those_of_autograd),
        cmocka_unit_test(other_kinds),
        cmocka_unit_test(folders_come_back),
        cmocka_unit_test(other_outputs),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(model_files),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
