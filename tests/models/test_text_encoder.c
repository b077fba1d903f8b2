/* Text encoders: hidden states and vectors of recorded models (tests/models/text/
   record_models.py) equal those of transformers; poolings, windows, limits, threads,
   kinds; and invalid folders. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "folders.h"
#include "models/text/text_model.h"
#include "shoal_models.h"
#include "support.h"

static shoal_context *context;
static const char *const names[] = {"bert", "roberta", "modern", "xlm-roberta"};

static int open_context(void **state) {
    context = test_context(NULL, 2);
    return 0;
}

static int close_context(void **state) {
    shoal_context_destroy(context);
    return 0;
}

static shoal_text_encoder *open_encoder(const char *name,
                                        shoal_text_encoder_options options) {
    shoal_text_encoder *made;
    if (shoal_text_encoder_open(context, recorded_text(name), &options, &made) !=
        SHOAL_OK)
        fail_msg("%s: %s", name, shoal_context_message(context));
    return made;
}

/* Recorded values. */
typedef struct {
    safetensors *file;
    const int32_t *ids, *types; /* [rows] */
    const int64_t *offsets;     /* [texts + 1] */
    const float *hidden;        /* [rows][size] */
    const float *vectors;       /* [texts][size] */
    int64_t texts, rows, size;
    void *blocks[5];
} record;

/* A copy of a tensor, which is not aligned in the file. */
static void *copy_of(record *r, int which, const char *name) {
    const file_tensor *t = sh_safetensors_find(r->file, name);
    assert_non_null(t);
    r->blocks[which] = test_memory((int64_t)t->bytes, 1);
    memcpy(r->blocks[which], t->data, t->bytes);
    return r->blocks[which];
}

static record open_record(const char *name, const char *file) {
    record r = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/%s", recorded_text(name), file);
    assert_int_equal(sh_safetensors_open(context, path, &r.file), SHOAL_OK);
    r.ids = copy_of(&r, 0, "ids");
    r.types = copy_of(&r, 1, "types");
    r.offsets = copy_of(&r, 2, "offsets");
    r.hidden = copy_of(&r, 3, "hidden");
    r.vectors = copy_of(&r, 4, "vectors");
    const file_tensor *hidden = sh_safetensors_find(r.file, "hidden");
    r.texts = sh_safetensors_find(r.file, "offsets")->shape[0] - 1;
    r.rows = hidden->shape[0];
    r.size = hidden->shape[1];
    return r;
}

static void close_record(record *r) {
    for (int i = 0; i < 5; i++)
        free(r->blocks[i]);
    sh_safetensors_close(r->file);
}

static void expect_close(int64_t count, const float *got, const float *wanted,
                         const char *what) {
    double largest = 0, difference = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs((double)wanted[i]));
        difference = fmax(difference, fabs((double)got[i] - wanted[i]));
        if (isnan(got[i]))
            difference = INFINITY;
    }
    if (!(difference <= 1e-5 * largest))
        fail_msg("%s: %g of %g", what, difference, largest);
}

#define HUDDLE "queries huddle into clusters, each cluster attends once "
#define TIS "\xc3\x9cn\xc3\xaf\x63\xc3\xb6\x64\xc3\xa9, and \xe4\xb8\xad\xe6\x96\x87 'tis"

static const char *const texts[] = {"Attention in linear time.", "a", "", TIS,
                                    (HUDDLE HUDDLE)};

/* ---- Comparison with transformers ------------------------------------------------- */

static void check_hidden(const char *name, const char *file, const char *attention) {
    record r = open_record(name, file);
    shoal_text_encoder *e =
        open_encoder(name, (shoal_text_encoder_options){.size = sizeof(
                                                            shoal_text_encoder_options),
                                                        .attention = attention});
    const float *hidden;
    assert_int_equal(shoal_text_encoder_forward(e, r.texts, r.offsets, r.ids, r.types,
                                                &hidden),
                     SHOAL_OK);
    expect_close(r.rows * r.size, hidden, r.hidden, name);
    shoal_text_encoder_destroy(e);
    close_record(&r);
}

static void hidden_states(void **state) {
    for (int64_t i = 0; i < COUNT_OF(names); i++)
        check_hidden(names[i], "expected.safetensors", NULL);
    check_hidden("bert", "pairs.safetensors", NULL);
}

/* With as many exact keys as there are keys, a clustered kind equals full attention. */
static void other_kinds(void **state) {
    for (int64_t i = 0; i < COUNT_OF(names); i++)
        check_hidden(names[i], "expected.safetensors", "i-clustered-4:topk=512");
}

static void vectors_of_texts(void **state) {
    for (int64_t i = 0; i < COUNT_OF(names); i++) {
        record r = open_record(names[i], "expected.safetensors");
        assert_int_equal(r.texts, COUNT_OF(texts));
        for (int64_t rows = 0; rows <= 64; rows += 64) { /* one batch, and several */
            shoal_text_encoder *e =
                open_encoder(names[i],
                             (shoal_text_encoder_options){.size = sizeof(
                                                              shoal_text_encoder_options),
                                                          .rows = rows});
            float *vectors = test_memory(r.texts * r.size, sizeof *vectors);
            assert_int_equal(shoal_text_encoder_embed(e, r.texts, texts, NULL, vectors),
                             SHOAL_OK);
            expect_close(r.texts * r.size, vectors, r.vectors, names[i]);
            free(vectors);
            shoal_text_encoder_destroy(e);
        }
        close_record(&r);
    }
}

/* ---- Poolings and windows --------------------------------------------------------- */

static void check_pooling(const char *name, int32_t pooling) {
    record r = open_record(name, "expected.safetensors");
    shoal_text_encoder *e =
        open_encoder(name, (shoal_text_encoder_options){.size = sizeof(
                                                            shoal_text_encoder_options),
                                                        .pooling = pooling,
                                                        .normalize = 1});
    float *got = test_memory(r.texts * r.size, sizeof *got),
          *wanted = test_memory(r.size, sizeof *wanted);
    assert_int_equal(shoal_text_encoder_embed(e, r.texts, texts, NULL, got), SHOAL_OK);
    for (int64_t t = 0; t < r.texts; t++) {
        double square = 0;
        memcpy(wanted, r.hidden + r.offsets[t] * r.size, (size_t)r.size * sizeof *wanted);
        for (int64_t row = r.offsets[t];
             pooling == SHOAL_TEXT_POOLING_MAX && row < r.offsets[t + 1]; row++)
            for (int64_t i = 0; i < r.size; i++)
                wanted[i] = fmaxf(wanted[i], r.hidden[row * r.size + i]);
        for (int64_t i = 0; i < r.size; i++)
            square += (double)wanted[i] * wanted[i];
        for (int64_t i = 0; i < r.size; i++)
            wanted[i] = (float)(wanted[i] / sqrt(square));
        expect_close(r.size, got + t * r.size, wanted, name);
    }
    free(got);
    free(wanted);
    shoal_text_encoder_destroy(e);
    close_record(&r);
}

static void poolings(void **state) {
    for (int64_t i = 0; i < COUNT_OF(names); i++) {
        check_pooling(names[i], SHOAL_TEXT_POOLING_FIRST);
        check_pooling(names[i], SHOAL_TEXT_POOLING_MAX);
    }
}

/* Windows of a long text computed here: [CLS] some tokens [SEP], mean over all rows. */
static void windows(void **state) {
    enum { WINDOW = 12, STRIDE = 7, ROOM = WINDOW - 2, MOST = 400 };
    shoal_text_encoder *e =
        open_encoder("bert", (shoal_text_encoder_options){.size = sizeof(
                                                              shoal_text_encoder_options),
                                                          .window = WINDOW,
                                                          .stride = STRIDE,
                                                          .rows = 30});
    shoal_tokenizer *t;
    shoal_tokens tokens;
    const int64_t size = shoal_text_encoder_describe(e)->width;
    float *got = test_memory(size, sizeof *got);
    double *wanted = test_memory(size, sizeof *wanted);
    int32_t all[MOST];
    assert_int_equal(shoal_text_encoder_embed(e, 1, &texts[4], NULL, got), SHOAL_OK);
    assert_int_equal(shoal_tokenizer_open(context, recorded_text("bert"), &t), SHOAL_OK);
    shoal_text given = {.size = sizeof(shoal_text),
                        .text = texts[4],
                        .bytes = SHOAL_TERMINATED};
    assert_int_equal(shoal_tokenizer_encode(t, &given, &tokens), SHOAL_OK);
    const int64_t count = tokens.count - 2;
    assert_true(count > 3 * ROOM && count < MOST - 2);
    memcpy(all, tokens.ids, sizeof *all * (size_t)tokens.count);
    int64_t sums = 0;
    for (int64_t at = 0;; at += STRIDE) {
        const int64_t some = count - at < ROOM ? count - at : ROOM;
        int32_t ids[WINDOW];
        const float *hidden;
        ids[0] = all[0];
        memcpy(ids + 1, all + 1 + at, sizeof *ids * (size_t)some);
        ids[1 + some] = all[count + 1];
        const int64_t offsets[] = {0, some + 2};
        assert_int_equal(shoal_text_encoder_forward(e, 1, offsets, ids, NULL, &hidden),
                         SHOAL_OK);
        for (int64_t i = 0; i < (some + 2) * size; i++)
            wanted[i % size] += hidden[i];
        sums += some + 2;
        if (at + some == count)
            break;
    }
    for (int64_t i = 0; i < size; i++)
        assert_true(fabs(got[i] - wanted[i] / (double)sums) < 1e-5);
    free(got);
    free(wanted);
    shoal_tokenizer_destroy(t);
    shoal_text_encoder_destroy(e);
}

/* cut gives the result of the beginning; stretched positions are the plain ones if
   there are enough, and finite otherwise. */
static void long_texts(void **state) {
    for (int64_t n = 0; n < COUNT_OF(names); n++) {
        const int64_t size = 16;
        float both[2][16];
        const char *start = "queries huddle";
        shoal_text_encoder *cut = open_encoder(
            names[n],
            (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options),
                                         .window = 8,
                                         .long_texts = SHOAL_LONG_TEXTS_CUT});
        assert_int_equal(shoal_text_encoder_embed(cut, 1, &texts[4], NULL, both[0]),
                         SHOAL_OK);
        assert_int_equal(shoal_text_encoder_embed(cut, 1, &start, NULL, both[1]),
                         SHOAL_OK);
        expect_close(size, both[0], both[1], "cut");
        shoal_text_encoder_destroy(cut);

        record r = open_record(names[n], "expected.safetensors");
        shoal_text_encoder *e = open_encoder(
            names[n],
            (shoal_text_encoder_options){.size = sizeof(shoal_text_encoder_options),
                                         .rows = 4096,
                                         .long_texts = SHOAL_LONG_TEXTS_STRETCH});
        assert_int_equal(shoal_text_encoder_embed(e, 1, &texts[3], NULL, both[0]),
                         SHOAL_OK);
        expect_close(size, both[0], r.vectors + 3 * size, "stretched");
        char *large = test_memory(3001, 1);
        memset(large, '.', 3000); /* a token each, or fewer */
        const char *given = large;
        assert_int_equal(shoal_text_encoder_embed(e, 1, &given, NULL, both[0]), SHOAL_OK);
        for (int64_t i = 0; i < size; i++)
            assert_true(isfinite(both[0][i]));
        free(large);
        shoal_text_encoder_destroy(e);
        close_record(&r);
    }
}

static void threads_change_no_bit(void **state) {
    shoal_context *old = context;
    float vectors[2][COUNT_OF(texts) * 16];
    for (int64_t n = 0; n < COUNT_OF(names); n++) {
        for (int i = 0; i < 2; i++) {
            context = test_context(NULL, i ? 3 : 1);
            shoal_text_encoder *e =
                open_encoder(names[n],
                             (shoal_text_encoder_options){.size = sizeof(
                                                              shoal_text_encoder_options),
                                                          .attention = "shoal-3",
                                                          .rows = 128});
            assert_int_equal(shoal_text_encoder_embed(e, COUNT_OF(texts), texts, NULL,
                                                      vectors[i]),
                             SHOAL_OK);
            shoal_text_encoder_destroy(e);
            shoal_context_destroy(context);
        }
        assert_memory_equal(vectors[0], vectors[1], sizeof vectors[0]);
    }
    context = old;
}

/* ---- Errors ----------------------------------------------------------------------- */

static void wrong_calls(void **state) {
    shoal_text_encoder *e =
        open_encoder("bert", (shoal_text_encoder_options){
                                 .size = sizeof(shoal_text_encoder_options)});
    const float *hidden;
    const int64_t fine[] = {0, 2}, late[] = {1, 2}, long_one[] = {0, 65};
    int32_t ids[65] = {1, 2}, types[65] = {0, 0};
    assert_int_equal(shoal_text_encoder_forward(e, 1, fine, ids, types, &hidden), 0);
    assert_int_equal(shoal_text_encoder_forward(e, 0, fine, ids, types, &hidden), 0);
    assert_int_equal(shoal_text_encoder_forward(e, 1, late, ids, types, &hidden),
                     SHOAL_INVALID);
    assert_int_equal(shoal_text_encoder_forward(e, 1, long_one, ids, NULL, &hidden),
                     SHOAL_INVALID);
    types[1] = 2;
    assert_int_equal(shoal_text_encoder_forward(e, 1, fine, ids, types, &hidden),
                     SHOAL_INVALID);
    ids[1] = 1000000;
    assert_int_equal(shoal_text_encoder_forward(e, 1, fine, ids, NULL, &hidden),
                     SHOAL_INVALID);
    ids[1] = -1;
    assert_int_equal(shoal_text_encoder_forward(e, 1, fine, ids, NULL, &hidden),
                     SHOAL_INVALID);
    float vector[16];
    const char *bad = "\xff";
    assert_int_equal(shoal_text_encoder_embed(e, 1, &bad, NULL, vector), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "text 1: "));
    assert_int_equal(shoal_text_encoder_embed(e, 0, NULL, NULL, NULL), SHOAL_OK);
    assert_int_equal(shoal_text_encoder_embed(NULL, 0, NULL, NULL, NULL), SHOAL_INVALID);
    shoal_text_encoder_destroy(e);
    shoal_text_encoder_destroy(NULL);
}

#define SIZE .size = sizeof(shoal_text_encoder_options)

static void wrong_options(void **state) {
    static const struct {
        shoal_text_encoder_options options;
        const char *reason;
    } rows[] = {
        {{SIZE, .attention = "nonsense"}, "nonsense"},
        {{SIZE, .attention = "lsh-1"}, "separate keys"},
        {{SIZE, .window = 65}, "64 positions"},
        {{SIZE, .window = 8, .stride = 9}, "stride"},
        {{SIZE, .window = 8, .long_texts = SHOAL_LONG_TEXTS_STRETCH}, "no window"},
        {{SIZE, .rows = -1}, "option"},
        {{SIZE, .pooling = 9}, "option"},
    };
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        shoal_text_encoder *e;
        assert_int_equal(shoal_text_encoder_open(context, recorded_text("bert"),
                                                 &rows[i].options, &e),
                         SHOAL_INVALID);
        assert_null(e);
        if (!strstr(shoal_context_message(context), rows[i].reason))
            fail_msg("%s", shoal_context_message(context));
    }
}

/* A valid configuration with one change. */
static const struct {
    const char *key, *value, *reason;
} changes[] = {
    {"model_type", "\"gpt2\"", "'gpt2' is not supported"},
    {"model_type", "7", "is not supported"},
    {"hidden_act", "\"gelu_new\"", "gelu_new"},
    {"position_embedding_type", "\"relative_key\"", "absolute"},
    {"is_decoder", "true", "is_decoder"},
    {"num_attention_heads", "3", "multiple"},
    {"num_attention_heads", "0", "num_attention_heads"},
    {"num_hidden_layers", "4", "encoder.layer.3"},
    {"num_hidden_layers", "100000", "num_hidden_layers"},
    {"hidden_size", "32", "does not have the shape"},
    {"hidden_size", "16.5", "hidden_size"},
    {"intermediate_size", "1000000", "does not have the shape"},
    {"vocab_size", "1000000000", "does not have the shape"},
    {"max_position_embeddings", "16777216", "does not have the shape"},
    {"type_vocab_size", "9", "does not have the shape"},
    {"layer_norm_eps", "-1", "layer_norm_eps"},
};

static void copy_file(const char *folder, const char *name) {
    char from[600], to[600];
    snprintf(from, sizeof from, "%s/%s", recorded_text("bert"), name);
    snprintf(to, sizeof to, "%s/%s", folder, name);
    FILE *file = fopen(from, "rb");
    assert_non_null(file);
    char *bytes = test_memory(1 << 20, 1);
    const size_t size = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    write_bytes_to(to, bytes, size);
    free(bytes);
}

static void expect_refused(const char *folder, const char *reason) {
    shoal_text_encoder *e;
    const shoal_status status = shoal_text_encoder_open(context, folder, NULL, &e);
    if (status != SHOAL_BAD_FILE || !strstr(shoal_context_message(context), reason))
        fail_msg("status %d: %s; not '%s'", (int)status, shoal_context_message(context),
                 reason);
    assert_null(e);
}

static void wrong_configurations(void **state) {
    const char *folder = make_folder();
    char path[600];
    expect_refused(folder, "config.json");
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_bytes_to(path, "{}", 2);
    expect_refused(folder, "is not supported");
    copy_file(folder, "config.json");
    expect_refused(folder, "model.safetensors");
    copy_file(folder, "model.safetensors");
    json_t *good = json_load_file(path, 0, NULL);
    assert_non_null(good);
    for (int64_t i = 0; i < COUNT_OF(changes); i++) {
        json_t *changed = json_copy(good);
        json_object_set_new(changed, changes[i].key,
                            json_loads(changes[i].value, JSON_DECODE_ANY, NULL));
        assert_int_equal(json_dump_file(changed, path, 0), 0);
        expect_refused(folder, changes[i].reason);
        json_decref(changed);
    }
    json_decref(good);
    remove_folder(folder);
}

static void pooling_files(void **state) {
    static const struct {
        const char *text;
        int32_t pooling; /* 0 if rejected */
    } rows[] = {
        {"{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": false}",
         SHOAL_TEXT_POOLING_FIRST},
        {"{\"pooling_mode_max_tokens\": true}", SHOAL_TEXT_POOLING_MAX},
        {"{\"word_embedding_dimension\": 16}", SHOAL_TEXT_POOLING_MEAN},
        {"{\"pooling_mode_lasttoken\": true}", 0},
        {"{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": true}", 0},
        /* sentence-transformers 6 */
        {"{\"pooling_mode\": \"cls\", \"include_prompt\": true}",
         SHOAL_TEXT_POOLING_FIRST},
        {"{\"pooling_mode\": [\"max\"]}", SHOAL_TEXT_POOLING_MAX},
        {"{\"pooling_mode\": \"mean\", \"pooling_mode_cls_token\": true}",
         SHOAL_TEXT_POOLING_MEAN},
        {"{\"pooling_mode\": \"weightedmean\"}", 0},
        {"{\"pooling_mode\": [\"cls\", \"mean\"]}", 0},
        {"{\"pooling_mode\": []}", 0},
        {"{\"pooling_mode\": 7}", 0},
    };
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        text_config config = {.pooling = SHOAL_TEXT_POOLING_MEAN};
        json_t *root = json_loads(rows[i].text, 0, NULL);
        const shoal_status status = sh_text_pooling_read(context, "p", root, &config);
        assert_int_equal(status, rows[i].pooling ? SHOAL_OK : SHOAL_BAD_FILE);
        if (rows[i].pooling)
            assert_int_equal(config.pooling, rows[i].pooling);
        json_decref(root);
    }
}

/* Opening and embedding with the n-th allocation failing; true if none failed. */
static bool survive(const char *name, int64_t fail_at) {
    counting_allocator allocator = {.fail_at = 0};
    shoal_options options = counting_options(&allocator);
    options.threads = 1;
    shoal_context *old = context;
    shoal_text_encoder *e = NULL;
    float vector[16];
    assert_int_equal(shoal_context_create(&options, &context), SHOAL_OK);
    allocator.fail_at = allocator.calls + fail_at;
    const shoal_text_encoder_options small = {.size = sizeof(shoal_text_encoder_options),
                                              .rows = 128};
    shoal_status status =
        shoal_text_encoder_open(context, recorded_text(name), &small, &e);
    if (status == SHOAL_OK)
        status = shoal_text_encoder_embed(e, 1, &texts[3], NULL, vector);
    assert_true(status == SHOAL_OK || status == SHOAL_NO_MEMORY);
    shoal_text_encoder_destroy(e);
    shoal_context_destroy(context);
    assert_int_equal(allocator.live, 0);
    context = old;
    return status == SHOAL_OK;
}

static void every_allocation_fails_once(void **state) {
    for (int64_t n = 0; n < COUNT_OF(names); n++) {
        int64_t fail_at = 1;
        while (!survive(names[n], fail_at))
            fail_at++;
        assert_true(fail_at > 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hidden_states),
        cmocka_unit_test(other_kinds),
        cmocka_unit_test(vectors_of_texts),
        cmocka_unit_test(poolings),
        cmocka_unit_test(windows),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(wrong_options),
        cmocka_unit_test(wrong_configurations),
        cmocka_unit_test(pooling_files),
        cmocka_unit_test(every_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
