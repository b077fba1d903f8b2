/* Speech models from ggml files: every count, dimension and length wrong in turn. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "small_whisper.h"
#include "speech/audio/mel.h"
#include "speech/whisper/whisper_file.h"
#include "support.h"

static const small_whisper multilingual = {51865, true, 4, true, 0};

static shoal_context *context;
static const char *folder;
static made_model made;

static const char *inside(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static whisper_file *parse_good(const made_model *m) {
    whisper_file *file;
    if (sh_ggml_parse(context, "bytes", m->bytes, m->size, &file) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return file;
}

/* ---- Valid ggml files ------------------------------------------------------------- */

static void all_vocabularies_are_read(void **state) {
    for (int32_t vocabulary = 51864; vocabulary <= 51866; vocabulary++) {
        const small_whisper model = {vocabulary, true, 1, true, 0};
        made_model m = make_ggml(&model);
        whisper_sizes expected = small_sizes(&model);
        whisper_file *file = parse_good(&m);
        char text[32];
        assert_memory_equal(&file->sizes, &expected, sizeof expected);
        assert_int_equal(file->tokens.languages, vocabulary == 51866 ? 100 : 99);
        assert_int_equal(file->tensor_count, 11 + 15 + 24);
        sh_tokens_decode(&file->tokens,
                         (int32_t[]){'h', 'i', 300, file->tokens.start, '!'}, 5, text,
                         sizeof text);
        assert_string_equal(text, "hi w300!");
        sh_whisper_file_close(file);
        free(m.bytes);
    }
}

static void tensors_are_where_they_should_be(void **state) {
    whisper_file *file = parse_good(&made);
    const file_tensor *t = sh_whisper_file_tensor(file, "encoder.conv1.weight");
    float values[1500 * 4];
    assert_true(t && t->rank == 3 && t->shape[0] == 4 && t->shape[1] == 80 &&
                t->shape[2] == 3 && t->dtype == DTYPE_F16);
    t = sh_whisper_file_tensor(file, "encoder.conv%d.bias", 2);
    assert_true(t && t->rank == 1 && t->shape[0] == 4);
    t = sh_whisper_file_tensor(file, "%s.blocks.%d.mlp.0.weight", "decoder", 0);
    assert_true(t && t->shape[0] == 16 && t->shape[1] == 4);
    t = sh_whisper_file_tensor(file, "encoder.positional_embedding");
    assert_int_equal(sh_file_tensor_to_f32(context, t, values), SHOAL_OK);
    /* Tensor number 4 of the file. */
    assert_true(values[5] == (float)(0.3 * test_normal(test_hash(4, 4, 5))));
    assert_null(sh_whisper_file_tensor(file, "encoder.blocks.1.attn_ln.weight"));
    assert_null(sh_whisper_file_tensor(file, "%0100d", 1));
    sh_whisper_file_close(file);
}

/* ---- Invalid ggml files ----------------------------------------------------------- */

/* Rejected, or complete. */
static bool accepted(const unsigned char *bytes, size_t size) {
    whisper_file *file;
    shoal_status status = sh_ggml_parse(context, "bytes", bytes, size, &file);
    if (status == SHOAL_OK)
        assert_non_null(sh_whisper_file_tensor(file, "encoder.ln_post.weight"));
    else {
        assert_int_equal(status, SHOAL_BAD_FILE);
        assert_non_null(strstr(shoal_context_message(context), "bytes: "));
        assert_null(file);
    }
    sh_whisper_file_close(file);
    return status == SHOAL_OK;
}

/* Only the beginning of the file: in a copy the address sanitizer detects overruns. */
static bool accepted_cut(size_t size) {
    unsigned char *copy = malloc(size ? size : 1);
    memcpy(copy, made.bytes, size);
    bool good = accepted(copy, size);
    free(copy);
    return good;
}

static void every_size_is_checked(void **state) {
    static const int32_t wrong[] = {0, -1, INT32_MAX, INT32_MIN, 7, 1 << 20};
    for (size_t field = 0; field < 14; field++) {
        unsigned char *at = made.bytes + 4 * field, before[4];
        memcpy(before, at, 4);
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            /* Valid types of files. */
            bool known = field == 11 && (wrong[i] == 0 || wrong[i] == 7);
            memcpy(at, &wrong[i], 4);
            if (!known && accepted(made.bytes, made.size))
                fail_msg("size %zu was accepted as %d", field, (int)wrong[i]);
        }
        memcpy(at, before, 4);
    }
}

static void refuse_as(size_t at, int32_t value, const char *expected) {
    unsigned char before[4];
    memcpy(before, made.bytes + at, 4);
    memcpy(made.bytes + at, &value, 4);
    assert_false(accepted(made.bytes, made.size));
    if (!strstr(shoal_context_message(context), expected))
        fail_msg("'%s' does not say '%s'", shoal_context_message(context), expected);
    memcpy(made.bytes + at, before, 4);
}

static void other_types_are_refused_by_name(void **state) {
    refuse_as(44, 10, "Q2_K");
    refuse_as(44, 2014, "Q6_K");
    refuse_as(44, 77, "77");
    refuse_as(made.tensors_begin + 8, 2, "whole blocks");
    refuse_as(made.tensors_begin + 8, 14, "Q6_K");
    refuse_as(made.tensors_begin + 8, 4, "' has the unknown type 4");
}

/* Quantised matrices equal the plain ones up to half a step. */
static void quantised_files_are_read(void **state) {
    static const struct {
        int32_t type;
        double step; /* relative to the largest value */
    } types[] = {{2, 1 / 7.}, {3, 2 / 15.}, {6, 1 / 15.}, {7, 2 / 31.}, {8, 1 / 127.}};
    static const char *const names[] = {"decoder.token_embedding.weight",
                                        "encoder.blocks.1.mlp.2.weight"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const small_whisper one = {51865, true, 9, false, types[i].type};
        const made_model bytes = make_ggml(&one);
        whisper_file *file;
        if (sh_ggml_parse(context, "quantised", bytes.bytes, bytes.size, &file))
            fail_msg("%s", shoal_context_message(context));
        for (int n = 0; n < 2; n++) {
            const file_tensor *found = sh_whisper_file_tensor(file, "%s", names[n]);
            const int64_t count = sh_file_tensor_elements(found);
            const uint64_t stream = n == 0 ? 37 : 33;
            const double spread = n == 0 ? 0.5 : 1 / sqrt(128);
            float *values = floats(count);
            assert_int_equal(sh_file_tensor_to_f32(context, found, values), SHOAL_OK);
            for (int64_t j = 0; j < count; j++) {
                const double written = spread *
                                       test_normal(test_hash(9, stream, (uint64_t)j));
                if (fabs((double)values[j] - written) > 4.5 * spread * types[i].step)
                    fail_msg("type %d, %s[%lld] is %g, not %g", (int)types[i].type,
                             names[n], (long long)j, (double)values[j], written);
            }
            free(values);
        }
        sh_whisper_file_close(file);
        /* A truncated file, and rows with wrong blocks. */
        assert_false(accepted(bytes.bytes, bytes.size - 7));
        free(bytes.bytes);
    }
}

static void tokens_are_checked(void **state) {
    refuse_as(made.tokens_begin, 50256, "tokens");
    refuse_as(made.tokens_begin, 51866, "tokens");
    refuse_as(made.tokens_begin, -1, "tokens");
    refuse_as(made.tokens_begin + 4, -1, "token 0");
    refuse_as(made.tokens_begin + 4, INT32_MAX, "token 0");
    refuse_as(made.tokens_begin + 9, (int32_t)made.size, "token 1");
    refuse_as(56, 0x7fc00000, "mel filter");
}

/* The offsets of every tensor's header. */
static int list_tensors(size_t *begin, size_t *header_end) {
    int count = 0;
    for (size_t at = made.tensors_begin; at < made.size; count++) {
        int32_t head[3], dims[4];
        size_t elements = 1;
        memcpy(head, made.bytes + at, 12);
        memcpy(dims, made.bytes + at + 12, 4 * (size_t)head[0]);
        for (int i = 0; i < head[0]; i++)
            elements *= (size_t)dims[i];
        begin[count] = at;
        at += 12 + 4 * (size_t)head[0] + (size_t)head[1];
        header_end[count] = at;
        at += elements * (head[2] ? 2 : 4);
    }
    return count;
}

/* All bytes of some headers, and the numbers of all. */
static void every_tensor_header_is_checked(void **state) {
    static const int32_t wrong[] = {0, -1, INT32_MAX, INT32_MIN, 5, 65536};
    size_t begin[64], end[64];
    int count = list_tensors(begin, end);
    assert_int_equal(count, 11 + 15 + 24);
    for (int i = 0; i < count; i++) {
        for (size_t at = begin[i]; at < end[i] && i % 3 == 0; at++) {
            made.bytes[at] ^= (unsigned char)(1 << at % 8);
            assert_false(accepted(made.bytes, made.size));
            made.bytes[at] ^= (unsigned char)(1 << at % 8);
        }
        for (size_t field = 0; field < 4; field++) {
            unsigned char before[4], *at = made.bytes + begin[i] + 4 * field;
            memcpy(before, at, 4);
            for (int j = i % 3; j < 6; j += 3) {
                memcpy(at, &wrong[j], 4);
                assert_true(memcmp(at, before, 4) == 0 ||
                            !accepted(made.bytes, made.size));
            }
            memcpy(at, before, 4);
        }
    }
}

/* Dimensions in another order have the same bytes, but are rejected. */
static void shapes_are_checked(void **state) {
    size_t begin[64], end[64];
    int count = list_tensors(begin, end), changed = 0;
    for (int i = 0; i < count; i++) {
        int32_t rank, dims[4], other[2];
        memcpy(&rank, made.bytes + begin[i], 4);
        memcpy(dims, made.bytes + begin[i] + 12, 4 * (size_t)rank);
        if (rank < 2 || dims[0] == dims[1])
            continue;
        other[0] = dims[1];
        other[1] = dims[0];
        memcpy(made.bytes + begin[i] + 12, other, 8);
        assert_false(accepted(made.bytes, made.size));
        memcpy(made.bytes + begin[i] + 12, dims, 8);
        changed++;
    }
    assert_true(changed >= 7);
}

static void every_cut_is_refused(void **state) {
    size_t begin[64], end[64];
    int count = list_tensors(begin, end);
    for (size_t size = 0; size < 80; size++)
        assert_false(accepted_cut(size));
    for (size_t size = made.tokens_begin - 8; size < made.tokens_begin + 60; size++)
        assert_false(accepted_cut(size));
    for (int i = 0; i < count; i += 4) {
        for (size_t size = begin[i]; size < end[i]; size += 7)
            assert_false(accepted_cut(size));
        assert_false(accepted_cut(end[i]));
        assert_false(accepted_cut(end[i] + 1));
    }
    assert_false(accepted_cut(end[count - 1]));
    assert_false(accepted_cut(made.size - 1));
    assert_true(accepted_cut(made.size));
}

static void tensors_are_there_once_and_no_others(void **state) {
    size_t begin[64], end[64];
    int count = list_tensors(begin, end);
    size_t last = made.size - begin[count - 1];
    unsigned char *twice = malloc(made.size + last);
    memcpy(twice, made.bytes, made.size);
    memcpy(twice + made.size, made.bytes + begin[count - 1], last);
    assert_false(accepted(twice, made.size + last));
    /* The last two are a norm's weight and bias: the bias in place of the weight. */
    memcpy(twice + begin[count - 2], made.bytes + begin[count - 1], last);
    assert_false(accepted(twice, begin[count - 2] + last));
    free(twice);
}

static void other_files_are_refused(void **state) {
    whisper_file *file;
    write_bytes_to(inside("text"), "just a text\n", 12);
    write_bytes_to(inside("empty"), "", 0);
    assert_int_equal(sh_whisper_file_open(context, inside("text"), &file),
                     SHOAL_BAD_FILE);
    assert_int_equal(sh_whisper_file_open(context, inside("empty"), &file),
                     SHOAL_BAD_FILE);
    assert_int_equal(sh_whisper_file_open(context, inside("absent"), &file), SHOAL_IO);
    assert_int_equal(sh_whisper_file_open(context, "/dev/zero", &file), SHOAL_BAD_FILE);
    assert_int_equal(sh_whisper_file_open(context, "/", &file), SHOAL_BAD_FILE);
    assert_int_equal(sh_whisper_file_open(context, inside("no/config.json"), &file),
                     SHOAL_BAD_FILE);
}

/* ---- A real file ------------------------------------------------------------------ */

static void the_real_file_is_read(void **state) {
    const char *path = test_data("models/ggml-tiny.bin");
    whisper_file *file;
    float *computed, worst = 0;
    if (!path) {
        print_message("models/ggml-tiny.bin is not there: skipped\n");
        skip();
    }
    if (sh_whisper_file_open(context, path, &file) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    assert_int_equal(file->sizes.audio_width, 384);
    assert_int_equal(file->tensor_count, 167);
    computed = malloc(80 * MEL_BINS * sizeof *computed);
    sh_mel_filters(80, computed);
    for (int i = 0; i < 80 * MEL_BINS; i++) {
        float difference = computed[i] - file->mel_filters[i];
        worst = difference > worst    ? difference
                : -difference > worst ? -difference
                                      : worst;
    }
    assert_true(worst < 1e-7f);
    free(computed);
    sh_whisper_file_close(file);
}

static int begin(void **state) {
    folder = make_folder();
    made = make_ggml(&multilingual);
    return shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int end(void **state) {
    remove_folder(folder);
    free(made.bytes);
    shoal_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_vocabularies_are_read),
        cmocka_unit_test(tensors_are_where_they_should_be),
        cmocka_unit_test(every_size_is_checked),
        cmocka_unit_test(other_types_are_refused_by_name),
        cmocka_unit_test(quantised_files_are_read),
        cmocka_unit_test(tokens_are_checked),
        cmocka_unit_test(every_tensor_header_is_checked),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(tensors_are_there_once_and_no_others),
        cmocka_unit_test(other_files_are_refused),
        cmocka_unit_test(the_real_file_is_read),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
