/* Folders of encoders in other formats: parameter names of the first BERT files, the
   modules of sentence-transformers, and stretched position tables. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cases.h"
#include "folders.h"
#include "models/text/text_model.h"
#include "shoal_models.h"
#include "support.h"

enum { SIZE = 16, TENSORS = 80, NAME = 128 };

static shoal_context *context;
static const char *const texts[] = {"Attention in linear time.", "queries huddle"};

static int open_context(void **state) {
    context = test_context(NULL, 2);
    return 0;
}

static int close_context(void **state) {
    shoal_context_destroy(context);
    return 0;
}

static const char *in(const char *folder, const char *name) {
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *folder, const char *name, const char *text) {
    write_bytes_to(in(folder, name), text, strlen(text));
}

static void copy_file(const char *from, const char *folder, const char *name) {
    FILE *file = fopen(in(from, name), "rb");
    assert_non_null(file);
    char *bytes = test_memory(1 << 20, 1);
    const size_t size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    write_bytes_to(in(folder, name), bytes, size);
    free(bytes);
}

/* A copy of a recorded folder without the weights. */
static const char *copy_folder(const char *name) {
    const char *folder = make_folder();
    copy_file(recorded_text(name), folder, "config.json");
    copy_file(recorded_text(name), folder, "tokenizer.json");
    return folder;
}

/* ---- Weights ---------------------------------------------------------------------- */

/* The tensors of a recorded folder, to be changed and written. */
typedef struct {
    safetensors *file;
    file_tensor tensors[TENSORS];
    char names[TENSORS][NAME];
    int64_t count;
} weights;

static void open_weights(const char *name, weights *w) {
    assert_int_equal(sh_safetensors_open(context,
                                         in(recorded_text(name), "model.safetensors"),
                                         &w->file),
                     SHOAL_OK);
    w->count = sh_safetensors_count(w->file);
    assert_true(w->count < TENSORS);
    for (int64_t i = 0; i < w->count; i++) {
        w->tensors[i] = *sh_safetensors_at(w->file, i);
        snprintf(w->names[i], NAME, "%s", w->tensors[i].name);
        w->tensors[i].name = w->names[i];
    }
}

static file_tensor *find_in(weights *w, const char *end) {
    for (int64_t i = 0; i < w->count; i++)
        if (strstr(w->names[i], end))
            return &w->tensors[i];
    fail_msg("no %s", end);
    return NULL;
}

static void close_weights(weights *w, const char *folder) {
    assert_int_equal(sh_safetensors_write(context, in(folder, "model.safetensors"),
                                          w->tensors, w->count, NULL, 0, false),
                     SHOAL_OK);
    sh_safetensors_close(w->file);
}

static shoal_text_encoder *open_encoder(const char *folder,
                                        shoal_text_encoder_options options) {
    shoal_text_encoder *made;
    if (shoal_text_encoder_open(context, folder, &options, &made) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return made;
}

static void embed(const char *folder, shoal_text_encoder_options options,
                  float *vectors) {
    shoal_text_encoder *e = open_encoder(folder, options);
    assert_int_equal(shoal_text_encoder_embed(e, COUNT_OF(texts), texts, NULL, vectors),
                     SHOAL_OK);
    shoal_text_encoder_destroy(e);
}

/* ---- Names ------------------------------------------------------------------------ */

static void rename_norms(weights *w) {
    int renamed = 0;
    for (int64_t i = 0; i < w->count; i++) {
        char *norm = strstr(w->names[i], "LayerNorm.");
        if (!norm)
            continue;
        strcpy(norm, strstr(norm, "weight") ? "LayerNorm.gamma" : "LayerNorm.beta");
        renamed++;
    }
    assert_int_equal(renamed, 14);
}

/* Compares all parameters of a trainable model. */
static void expect_same_model(const char *folder, const char *other) {
    const char *const folders[] = {folder, other};
    shoal_model *models[2];
    shoal_parameter a, b;
    for (int i = 0; i < 2; i++) {
        shoal_model_config config = {.size = sizeof(shoal_model_config), .outputs = 2};
        assert_int_equal(shoal_attention_parse(context, "full", &config.attention), 0);
        assert_int_equal(shoal_text_model_config(context, folders[i], &config), 0);
        assert_int_equal(shoal_model_create(context, &config, 1, 1, 8, 0, &models[i]), 0);
        if (shoal_text_model_load(context, folders[i], models[i]) != SHOAL_OK)
            fail_msg("%s", shoal_context_message(context));
    }
    for (int i = 0; shoal_model_parameter(models[0], i, &a); i++) {
        shoal_model_parameter(models[1], i, &b);
        assert_memory_equal(a.values, b.values, sizeof(float) * (size_t)a.shape[0]);
    }
    shoal_model_destroy(models[0]);
    shoal_model_destroy(models[1]);
}

/* gamma and beta, as in the published bert-base. */
static void norms_of_the_first_files(void **state) {
    const char *folder = copy_folder("bert");
    float got[COUNT_OF(texts)][SIZE], wanted[COUNT_OF(texts)][SIZE];
    weights w;
    open_weights("bert", &w);
    rename_norms(&w);
    close_weights(&w, folder);
    embed(folder,
          (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options)},
          got[0]);
    embed(recorded_text("bert"),
          (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options)},
          wanted[0]);
    assert_memory_equal(got, wanted, sizeof got);
    char other[512];
    snprintf(other, sizeof other, "%s", recorded_text("bert"));
    expect_same_model(folder, other);
    remove_folder(folder);
}

/* ---- Modules ---------------------------------------------------------------------- */

#define MODULE(number, path, type)                                                       \
    "{\"idx\": " #number ", \"name\": \"" #number "\", \"path\": \"" path                \
    "\", \"type\": \"sentence_transformers." type "\"}"
#define TRANSFORMER MODULE(0, "", "models.Transformer")
#define POOLING MODULE(1, "pool", "sentence_transformer.modules.pooling.Pooling")
#define NORMALIZE MODULE(2, "2_Normalize", "models.Normalize")

static const char *make_modules(const char *modules, const char *pooling) {
    const char *folder = copy_folder("bert");
    copy_file(recorded_text("bert"), folder, "model.safetensors");
    write_text(folder, "modules.json", modules);
    assert_int_equal(mkdir(in(folder, "pool"), 0777), 0);
    assert_int_equal(mkdir(in(folder, "1_Pooling"), 0777), 0);
    write_text(folder, "pool/config.json", pooling);
    /* a file that modules.json does not name */
    write_text(folder, "1_Pooling/config.json", "{\"pooling_mode\": \"max\"}");
    return folder;
}

static void modules(void **state) {
    static const struct {
        const char *modules;
        int32_t pooling, normalize;
    } rows[] = {
        {"[" TRANSFORMER "]", SHOAL_TEXT_POOLING_MEAN, 0},
        {"[" TRANSFORMER ", " POOLING "]", SHOAL_TEXT_POOLING_FIRST, 0},
        {"[" TRANSFORMER ", " POOLING ", " NORMALIZE "]", SHOAL_TEXT_POOLING_FIRST, 1},
    };
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        const char *folder = make_modules(rows[i].modules, "{\"pooling_mode\": \"cls\"}");
        float got[COUNT_OF(texts)][SIZE], wanted[COUNT_OF(texts)][SIZE];
        embed(folder,
              (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options)},
              got[0]);
        embed(recorded_text("bert"),
              (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options),
                                           .pooling = rows[i].pooling,
                                           .normalize = rows[i].normalize},
              wanted[0]);
        assert_memory_equal(got, wanted, sizeof got);
        /* An explicit pooling replaces all of them. */
        embed(folder,
              (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options),
                                           .pooling = SHOAL_TEXT_POOLING_MAX},
              got[0]);
        embed(recorded_text("bert"),
              (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options),
                                           .pooling = SHOAL_TEXT_POOLING_MAX},
              wanted[0]);
        assert_memory_equal(got, wanted, sizeof got);
        remove_folder(folder);
    }
}

static void modules_that_are_refused(void **state) {
    static const struct {
        const char *modules, *reason;
    } rows[] = {
        {"[" TRANSFORMER ", " POOLING ", " MODULE(2, "2_Dense", "models.Dense") "]",
         "the module 'Dense' in 2_Dense"},
        {"[" TRANSFORMER ", " MODULE(1, "elsewhere", "models.Pooling") "]",
         "'elsewhere'"},
        {"[" TRANSFORMER ", " MODULE(1, "../pool", "models.Pooling") "]", "'../pool'"},
        {"[" MODULE(0, "0_BERT", "models.Transformer") "]", "'Transformer' in 0_BERT"},
        {"[7]", "the module ''"},
        {"{}", "is not a JSON array"},
        {"[", "is not JSON"},
    };
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        shoal_text_encoder *e;
        const char *folder = make_modules(rows[i].modules, "{\"pooling_mode\": \"cls\"}");
        assert_int_equal(shoal_text_encoder_open(context, folder, NULL, &e),
                         SHOAL_BAD_FILE);
        if (!strstr(shoal_context_message(context), rows[i].reason))
            fail_msg("%s", shoal_context_message(context));
        remove_folder(folder);
    }
}

/* ---- Positions -------------------------------------------------------------------- */

enum { LONGEST = 240 };

/* The memory after the position table has large values, which must not be used: tokens
   have the first type only. */
static void enlarge_behind(weights *w) {
    static float types[2 * SIZE];
    file_tensor *to = find_in(w, "token_type_embeddings");
    if (to->shape[0] != 2)
        return;
    assert_int_equal(sh_file_tensor_to_f32(context, to, types), SHOAL_OK);
    to->dtype = DTYPE_F32;
    for (int64_t j = 0; j < SIZE; j++)
        types[j] = (float)(j % 3) * 1e6f; /* a norm would hide a constant */
    to->data = types;
}

/* Rows of old [positions] interpolated to `count`. */
static void stretch(const float *old, int64_t positions, int64_t count, float *table) {
    for (int64_t i = 0; i < count; i++) {
        const double place = (double)(i * (positions - 1)) / (double)(count - 1);
        const int64_t whole = (int64_t)place, next = whole + (whole + 1 < positions);
        for (int64_t j = 0; j < SIZE; j++) {
            const double a = old[whole * SIZE + j], b = old[next * SIZE + j];
            table[i * SIZE + j] = (float)(a + (place - (double)whole) * (b - a));
        }
    }
}

/* A recorded folder with a position table for `count` tokens, interpolated from the
   model's; count 0 keeps the model's table. The first rows of the table are not
   positions. */
static const char *make_stretched(const char *name, int64_t first, int64_t count) {
    static float table[(LONGEST + 8) * SIZE], old[(LONGEST + 8) * SIZE];
    const char *folder = copy_folder(name);
    weights w;
    open_weights(name, &w);
    enlarge_behind(&w);
    file_tensor *to = find_in(&w, "position_embeddings");
    assert_int_equal(sh_file_tensor_to_f32(context, to, old), SHOAL_OK);
    memcpy(table, old, sizeof table);
    to->dtype = DTYPE_F32;
    if (count) {
        stretch(old + first * SIZE, to->shape[0] - first, count, table + first * SIZE);
        to->shape[0] = first + count;
    }
    to->data = table;
    json_t *config = json_load_file(in(folder, "config.json"), 0, NULL);
    json_object_set_new(config, "max_position_embeddings", json_integer(to->shape[0]));
    assert_int_equal(json_dump_file(config, in(folder, "config.json"), 0), 0);
    json_decref(config);
    close_weights(&w, folder);
    return folder;
}

static void expect_close(int64_t count, const float *got, const float *wanted,
                         const char *name) {
    for (int64_t i = 0; i < count * SIZE; i++)
        if (!(fabs((double)got[i] - wanted[i]) <= 2e-5))
            fail_msg("%s, %lld tokens: row %lld: %g is not %g", name, (long long)count,
                     (long long)(i / SIZE), (double)got[i], (double)wanted[i]);
}

static void check_stretched(const char *name, int64_t first, int32_t type,
                            shoal_text_encoder *e, int64_t count) {
    int32_t ids[LONGEST], types[LONGEST];
    const int64_t offsets[] = {0, count};
    const float *got, *wanted;
    const char *folder = make_stretched(name, first, count);
    shoal_text_encoder *longer =
        open_encoder(folder, (shoal_text_encoder_options){.size = sizeof(
                                                              shoal_text_encoder_options),
                                                          .rows = 0});
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)(5 + i * i % 90);
        types[i] = type;
    }
    assert_int_equal(shoal_text_encoder_forward(e, 1, offsets, ids, types, &got), 0);
    assert_int_equal(shoal_text_encoder_forward(longer, 1, offsets, ids, types, &wanted),
                     0);
    expect_close(count, got, wanted, name);
    shoal_text_encoder_destroy(longer);
    remove_folder(folder);
}

/* Stretched positions equal those of a model whose table was interpolated. */
static void stretched_positions(void **state) {
    static const struct {
        const char *name;
        int64_t first;
        int32_t type;
        int64_t counts[7]; /* the last ones were once rounded beyond the table in float */
    } rows[] = {{"bert", 0, 1, {64, 65, 101, 75, 106, 112, 239}},
                {"roberta", 2, 0, {78, 79, 155, 100, 106, 211, 240}}};
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        const char *folder = make_stretched(rows[i].name, rows[i].first, 0);
        shoal_text_encoder *e = open_encoder(
            folder,
            (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options),
                                         .long_texts = SHOAL_LONG_TEXTS_STRETCH,
                                         .rows = LONGEST});
        for (int64_t j = 0; j < COUNT_OF(rows[i].counts); j++)
            check_stretched(rows[i].name, rows[i].first, rows[i].type, e,
                            rows[i].counts[j]);
        shoal_text_encoder_destroy(e);
        remove_folder(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_the_first_files),
        cmocka_unit_test(modules),
        cmocka_unit_test(modules_that_are_refused),
        cmocka_unit_test(stretched_positions),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
