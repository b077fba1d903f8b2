/* Text encoders with packed matrices, in every precision: folders of suitable sizes with
   random weights give the results of the scalar kernels, for which nothing is packed; the
   same bits on any number of threads. Weights that bytes cannot represent are reported, or
   stay wider. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "folders.h"
#include "models/files/safetensors.h"
#include "support.h"

enum { SIZE = 64, WIDE = 96, WORDS = 50, POSITIONS = 160, TENSORS = 80, NAME = 64 };

/* Tensors of a folder being written. */
typedef struct {
    file_tensor list[TENSORS];
    char names[TENSORS][NAME];
    int count;
} tensor_list;

/* columns 0 for a vector; layers NULL if it belongs to no layer. */
static void add(tensor_list *to, int64_t rows, int64_t columns, const char *last,
                const char *layers, int layer) {
    const int64_t count = rows * (columns ? columns : 1);
    float *values = malloc((size_t)count * sizeof *values);
    file_tensor *one = &to->list[to->count];
    char *name = to->names[to->count];
    assert_true(values && to->count < TENSORS);
    if (layers)
        snprintf(name, NAME, "%s.%d.%s", layers, layer, last);
    else
        snprintf(name, NAME, "%s", last);
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(sin((double)(i * 7919 % 10007) + 31 * to->count) /
                            (columns ? 4 : 2)) +
                    (columns ? 0 : 1);
    *one = (file_tensor){.name = name,
                         .dtype = DTYPE_F32,
                         .rank = columns ? 2 : 1,
                         .shape = {rows, columns},
                         .data = values,
                         .bytes = (size_t)count * sizeof *values};
    to->count++;
}

static void add_bert(tensor_list *to) {
    add(to, WORDS, SIZE, "embeddings.word_embeddings.weight", NULL, 0);
    add(to, POSITIONS, SIZE, "embeddings.position_embeddings.weight", NULL, 0);
    add(to, 2, SIZE, "embeddings.token_type_embeddings.weight", NULL, 0);
    add(to, SIZE, 0, "embeddings.LayerNorm.weight", NULL, 0);
    add(to, SIZE, 0, "embeddings.LayerNorm.bias", NULL, 0);
    for (int l = 0; l < 2; l++) {
        add(to, SIZE, SIZE, "attention.self.query.weight", "encoder.layer", l);
        add(to, SIZE, SIZE, "attention.self.key.weight", "encoder.layer", l);
        add(to, SIZE, SIZE, "attention.self.value.weight", "encoder.layer", l);
        add(to, SIZE, 0, "attention.self.query.bias", "encoder.layer", l);
        add(to, SIZE, 0, "attention.self.key.bias", "encoder.layer", l);
        add(to, SIZE, 0, "attention.self.value.bias", "encoder.layer", l);
        add(to, SIZE, SIZE, "attention.output.dense.weight", "encoder.layer", l);
        add(to, SIZE, 0, "attention.output.dense.bias", "encoder.layer", l);
        add(to, SIZE, 0, "attention.output.LayerNorm.weight", "encoder.layer", l);
        add(to, SIZE, 0, "attention.output.LayerNorm.bias", "encoder.layer", l);
        add(to, WIDE, SIZE, "intermediate.dense.weight", "encoder.layer", l);
        add(to, WIDE, 0, "intermediate.dense.bias", "encoder.layer", l);
        add(to, SIZE, WIDE, "output.dense.weight", "encoder.layer", l);
        add(to, SIZE, 0, "output.dense.bias", "encoder.layer", l);
        add(to, SIZE, 0, "output.LayerNorm.weight", "encoder.layer", l);
        add(to, SIZE, 0, "output.LayerNorm.bias", "encoder.layer", l);
    }
}

static void add_modern(tensor_list *to) {
    static const struct {
        const char *name;
        int64_t rows, columns;
    } parts[] = {{"attn.Wqkv.weight", 3 * SIZE, SIZE}, {"attn.Wo.weight", SIZE, SIZE},
                 {"mlp_norm.weight", SIZE, 0},         {"mlp.Wi.weight", 2 * WIDE, SIZE},
                 {"mlp.Wo.weight", SIZE, WIDE},        {"attn_norm.weight", SIZE, 0}};
    add(to, WORDS, SIZE, "embeddings.tok_embeddings.weight", NULL, 0);
    add(to, SIZE, 0, "embeddings.norm.weight", NULL, 0);
    add(to, SIZE, 0, "final_norm.weight", NULL, 0);
    for (int l = 0; l < 3; l++)
        for (int i = 0; i < (l ? 6 : 5); i++)
            add(to, parts[i].rows, parts[i].columns, parts[i].name, "layers", l);
}

#define SIZES                                                                            \
    "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 2, "       \
    "\"vocab_size\": 50, \"max_position_embeddings\": 160, \"pad_token_id\": 0, "

/* What the feed-forward's second matrix of the last layer has instead of a weight. */
typedef enum { SOUND, ZERO_ROW, OUTLIER, HOSTILE_NAN, HOSTILE_INF } spoiled;

static float *values_of(tensor_list *tensors, const char *name) {
    for (int i = 0; i < tensors->count; i++)
        if (strcmp(tensors->names[i], name) == 0)
            return (float *)(uintptr_t)tensors->list[i].data;
    fail_msg("there is no %s", name);
    return NULL;
}

/* The outlier is multiplied with a hidden number that is always 0: what is left of the
   other weights of its row decides. */
static void spoil(tensor_list *tensors, bool modern, spoiled how) {
    const int at = 3, row = 5;
    float *narrow = values_of(tensors, modern ? "layers.2.mlp.Wo.weight"
                                              : "encoder.layer.1.output.dense.weight");
    float *widen = values_of(tensors, modern
                                          ? "layers.2.mlp.Wi.weight"
                                          : "encoder.layer.1.intermediate.dense.weight");
    const float instead[] = {0, 0, 1e6f, NAN, INFINITY};
    if (how == ZERO_ROW)
        memset(narrow + row * WIDE, 0, WIDE * sizeof *narrow);
    else if (how != SOUND)
        narrow[row * WIDE + at] = instead[how];
    if (how != OUTLIER)
        return;
    memset(widen + at * SIZE, 0, SIZE * sizeof *widen);
    if (!modern)
        values_of(tensors, "encoder.layer.1.intermediate.dense.bias")[at] = 0;
}

static const char *make_model(bool modern, spoiled how) {
    static const char bert_config[] =
        "{" SIZES "\"model_type\": \"bert\", \"num_hidden_layers\": 2, "
        "\"hidden_act\": \"gelu\", \"type_vocab_size\": 2, \"layer_norm_eps\": 1e-12}";
    static const char modern_config[] =
        "{" SIZES "\"model_type\": \"modernbert\", \"num_hidden_layers\": 3, "
        "\"hidden_activation\": \"gelu\", \"local_attention\": 16, \"norm_eps\": 1e-5, "
        "\"global_attn_every_n_layers\": 3, \"global_rope_theta\": 160000.0, "
        "\"local_rope_theta\": 10000.0}";
    static tensor_list tensors;
    const char *config = modern ? modern_config : bert_config;
    const char *folder = make_folder();
    shoal_context *context = test_context(NULL, 1);
    char path[512];
    tensors.count = 0;
    if (modern)
        add_modern(&tensors);
    else
        add_bert(&tensors);
    spoil(&tensors, modern, how);
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_bytes_to(path, config, strlen(config));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(sh_safetensors_write(context, path, tensors.list, tensors.count,
                                          NULL, 0, false),
                     SHOAL_OK);
    for (int i = 0; i < tensors.count; i++)
        free((void *)(uintptr_t)tensors.list[i].data);
    shoal_context_destroy(context);
    return folder;
}

static const int64_t offsets[] = {0, 1, 3, 16, 120, 123, 277};
enum { TEXTS = 6, ROWS = 277 };

/* Hidden states [ROWS][SIZE] of the first `texts`; NULL: the folder was refused. */
static float *hidden_of(const char *folder, const char *isa, int threads, int texts,
                        shoal_precision precision) {
    const shoal_text_encoder_options options = {.size = sizeof options,
                                                .precision = precision};
    shoal_context *context = test_context(isa, threads);
    shoal_text_encoder *encoder;
    const float *hidden;
    int32_t ids[ROWS];
    float *kept = calloc(ROWS * SIZE, sizeof *kept);
    for (int i = 0; i < ROWS; i++)
        ids[i] = (int32_t)(i * 37 % WORDS);
    const shoal_status status =
        shoal_text_encoder_open(context, folder, &options, &encoder);
    if (status == SHOAL_OK) {
        assert_int_equal(shoal_text_encoder_describe(encoder)->precision, precision);
        assert_int_equal(shoal_text_encoder_forward(encoder, texts, offsets, ids, NULL,
                                                    &hidden),
                         SHOAL_OK);
        memcpy(kept, hidden, (size_t)(offsets[texts] * SIZE) * sizeof *kept);
    } else {
        assert_int_equal(status, SHOAL_BAD_FILE);
        assert_non_null(strstr(shoal_context_message(context), "NaN or infinite"));
        free(kept);
        kept = NULL;
    }
    shoal_text_encoder_destroy(encoder);
    shoal_context_destroy(context);
    return kept;
}

/* |a - b| / |b| over all of them. */
static double distance(const float *a, const float *b) {
    double square = 0, all = 0;
    for (int i = 0; i < ROWS * SIZE; i++) {
        const double off = (double)a[i] - (double)b[i];
        square += off * off;
        all += (double)b[i] * (double)b[i];
    }
    assert_true(all > 1 && isfinite(all));
    return sqrt(square / all);
}

static void compare(bool modern, spoiled how, int texts) {
    static const struct {
        shoal_precision precision;
        double most, least;
    } cases[] = {{SHOAL_PRECISION_FLOAT32, 1e-5, 0},
                 {SHOAL_PRECISION_BFLOAT16, 2e-2, 1e-4},
                 {SHOAL_PRECISION_INT8, 4e-2, 1e-4}};
    const char *folder = make_model(modern, how);
    float *exact = hidden_of(folder, "scalar", 1, texts, SHOAL_PRECISION_FLOAT32);
    for (int i = 0; i < 3; i++) {
        const shoal_precision precision = cases[i].precision;
        float *scalar = hidden_of(folder, "scalar", 2, texts, precision);
        float *one = hidden_of(folder, NULL, 1, texts, precision);
        float *three = hidden_of(folder, NULL, 3, texts, precision);
        const double off = distance(one, exact);
        if (!(off <= cases[i].most && off >= cases[i].least))
            fail_msg("precision %d: off by %g", (int)precision, off);
        assert_true(distance(scalar, exact) <= cases[i].most);
        assert_memory_equal(one, three, ROWS * SIZE * sizeof *one);
        free(scalar), free(one), free(three);
    }
    free(exact);
    remove_folder(folder);
}

static void bert(void **state) {
    compare(false, SOUND, TEXTS);
    compare(false, SOUND, 3);
}

static void modern_bert(void **state) {
    compare(true, SOUND, TEXTS);
    compare(true, SOUND, 3);
}

static void zero_rows_and_outliers(void **state) {
    for (int modern = 0; modern < 2; modern++) {
        compare(modern, ZERO_ROW, TEXTS);
        compare(modern, OUTLIER, TEXTS);
    }
}

static void not_finite(void **state) {
    for (int modern = 0; modern < 2; modern++)
        for (spoiled how = HOSTILE_NAN; how <= HOSTILE_INF; how++) {
            const char *folder = make_model(modern, how);
            assert_null(hidden_of(folder, NULL, 2, TEXTS, SHOAL_PRECISION_INT8));
            float *wide = hidden_of(folder, NULL, 2, TEXTS, SHOAL_PRECISION_FLOAT32);
            bool lost = false; /* floats do not hide it */
            for (int i = 0; i < ROWS * SIZE; i++)
                lost = lost || isnan(wide[i]);
            assert_true(lost);
            free(wide);
            remove_folder(folder);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bert),
                                       cmocka_unit_test(modern_bert),
                                       cmocka_unit_test(zero_rows_and_outliers),
                                       cmocka_unit_test(not_finite)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
