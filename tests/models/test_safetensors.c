/* safetensors: files that are written are read back, and every invalid file is
   rejected. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "models/files/safetensors.h"
#include "support.h"

static shoal_context *context;
static const char *folder;

static const char *inside(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A file with this header and that many bytes of data, in a block of exactly its
   size. */
static unsigned char *assemble(const char *header, size_t data, size_t *size) {
    size_t length = strlen(header);
    *size = 8 + length + data;
    unsigned char *bytes = malloc(*size);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    memset(bytes + 8 + length, 7, data);
    return bytes;
}

static shoal_status parse(const char *header, size_t data, safetensors **file) {
    size_t size;
    unsigned char *bytes = assemble(header, data, &size);
    shoal_status status = sh_safetensors_parse(context, "bytes", bytes, size, file);
    free(bytes);
    return status;
}

/* ---- Valid files ------------------------------------------------------------------ */

static const float floats[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
static const uint16_t halves[4] = {0x3c00, 0xc000, 0x0001, 0x7c00};
static const uint8_t flags_[3] = {1, 0, 1};
static const int64_t counter[1] = {1234567890123};

static const file_tensor written[] = {
    {"z.flags", DTYPE_BOOL, 1, {3}, flags_, 0},
    {"weights", DTYPE_F32, 2, {2, 3}, floats, 0},
    {"a\xc3\xa9\"\\half", DTYPE_F16, 1, {4}, halves, 0},
    {"step", DTYPE_I64, 0, {0}, counter, 0},
    {"empty", DTYPE_F64, 2, {0, 5}, NULL, 0},
};

static const shoal_note notes[] = {{"format", "pt"},
                                   {"config", "{\"a\": \"\xe2\x99\xaa\"}\n"},
                                   {"", ""}};

static void check_contents(const safetensors *file) {
    float values[6];
    const file_tensor *t = sh_safetensors_find(file, "weights");
    assert_int_equal(sh_safetensors_count(file), 5);
    assert_true(t && t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 3);
    assert_int_equal(sh_file_tensor_to_f32(context, t, values), SHOAL_OK);
    assert_memory_equal(values, floats, sizeof floats);
    t = sh_safetensors_find(file, "a\xc3\xa9\"\\half");
    assert_true(t && t->dtype == DTYPE_F16 && (uintptr_t)t->data % 2 == 0);
    assert_int_equal(sh_file_tensor_to_f32(context, t, values), SHOAL_OK);
    assert_true(values[0] == 1 && values[1] == -2 && values[2] == 0x1p-24f &&
                values[3] > 1e38f);
    t = sh_safetensors_find(file, "step");
    assert_true(t && t->rank == 0 && memcmp(t->data, counter, 8) == 0);
    assert_true((uintptr_t)t->data % 8 == 0);
    t = sh_safetensors_find(file, "empty");
    assert_true(t && t->bytes == 0 && t->shape[1] == 5);
    assert_null(sh_safetensors_find(file, "weight"));
    for (int64_t i = 1; i < 5; i++)
        assert_true(strcmp(sh_safetensors_at(file, i - 1)->name,
                           sh_safetensors_at(file, i)->name) < 0);
}

static void what_is_written_is_read(void **state) {
    for (int durable = 0; durable < 2; durable++) {
        safetensors *file;
        const file_tensor *t;
        assert_int_equal(sh_safetensors_write(context, inside("a"), written, 5, notes, 2,
                                              durable),
                         SHOAL_OK);
        assert_int_equal(sh_safetensors_open(context, inside("a"), &file), SHOAL_OK);
        check_contents(file);
        assert_int_equal(json_object_size(sh_safetensors_notes(file)), 2);
        assert_string_equal(sh_safetensors_note_of(file, "config"), notes[1].value);
        assert_string_equal(sh_safetensors_note_of(file, "format"), notes[0].value);
        assert_null(sh_safetensors_note_of(file, "other"));
        assert_int_equal(sh_safetensors_require(context, file, "weights", DTYPE_F32, 2,
                                                (int64_t[]){2, 3}, &t),
                         SHOAL_OK);
        assert_int_equal(sh_safetensors_require(context, file, "weights", DTYPE_F32, 2,
                                                (int64_t[]){3, 2}, &t),
                         SHOAL_BAD_FILE);
        assert_non_null(strstr(shoal_context_message(context), "weights"));
        assert_int_equal(sh_safetensors_require(context, file, "weights", DTYPE_F16, 0,
                                                NULL, &t),
                         SHOAL_BAD_FILE);
        assert_int_equal(sh_safetensors_require(context, file, "absent", DTYPE_F16, 0,
                                                NULL, &t),
                         SHOAL_BAD_FILE);
        assert_int_equal(sh_file_tensor_to_f32(context, sh_safetensors_find(file, "step"),
                                               NULL),
                         SHOAL_BAD_FILE);
        sh_safetensors_close(file);
    }
}

#define TWO_EMPTY                                                                        \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"                    \
    "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"

static void corners_are_legal(void **state) {
    static const char *const headers[] = {
        "{}",
        "{}      ",
        "{\"__metadata__\":{}}",
        TWO_EMPTY,
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        safetensors *file;
        assert_int_equal(parse(headers[i], 0, &file), SHOAL_OK);
        sh_safetensors_close(file);
    }
}

/* ---- Invalid files ---------------------------------------------------------------- */

#define ONE(dtype, shape, offsets)                                                       \
    "{\"a\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void wrong_headers_are_refused(void **state) {
    static const struct {
        const char *header;
        size_t data;
    } cases[] = {
        {"", 0},
        {"[]", 0},
        {" {}", 0},
        {"{} x", 0},
        {"{\"a\":", 0},
        {"{\"__metadata__\":[]}", 0},
        {"{\"__metadata__\":null}", 0},
        {"{\"__metadata__\":{\"a\":1}}", 0},
        {"{\"a\":1}", 0},
        {"{\"a\":{}}", 0},
        {"{\"\xff\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1},
        {ONE("1", "[1]", "[0,1]"), 1},
        {ONE("\"u8\"", "[1]", "[0,1]"), 1},
        {ONE("\"Q4_0\"", "[1]", "[0,1]"), 1},
        {ONE("\"U8\"", "1", "[0,1]"), 1},
        {ONE("\"U8\"", "[1.0]", "[0,1]"), 1},
        {ONE("\"U8\"", "[\"1\"]", "[0,1]"), 1},
        {ONE("\"U8\"", "[-1]", "[0,1]"), 1},
        {ONE("\"U8\"", "[-1,-1]", "[0,1]"), 1},
        {ONE("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1},
        {ONE("\"U8\"", "[18446744073709551617]", "[0,1]"), 1},
        {ONE("\"U8\"", "[9223372036854775807,2]", "[0,1]"), 1},
        {ONE("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0},
        {ONE("\"U8\"", "[0,9223372036854775807,9]", "[0,0]"), 0},
        {ONE("\"F64\"", "[2305843009213693952]", "[0,0]"), 0},
        {ONE("\"U8\"", "[1]", "[0]"), 1},
        {ONE("\"U8\"", "[1]", "[0,1,1]"), 1},
        {ONE("\"U8\"", "[1]", "[0,1.0]"), 1},
        {ONE("\"U8\"", "[1]", "[-1,0]"), 1},
        {ONE("\"U8\"", "[1]", "[1,0]"), 1},
        {ONE("\"U8\"", "[1]", "[1,2]"), 1},
        {ONE("\"U8\"", "[1]", "[1,2]"), 2},
        {ONE("\"U8\"", "[1]", "[0,1]"), 2},
        {ONE("\"U8\"", "[1]", "[0,1]"), 0},
        {ONE("\"U8\"", "[2]", "[0,1]"), 1},
        {ONE("\"U8\"", "[1]", "[0,9223372036854775807]"), 1},
        {ONE("\"U8\"", "[1]", "[0,9223372036854775808]"), 1},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        safetensors *file = (safetensors *)&file;
        if (parse(cases[i].header, cases[i].data, &file) != SHOAL_BAD_FILE)
            fail_msg("accepted: %s", cases[i].header);
        assert_null(file);
        assert_non_null(strstr(shoal_context_message(context), "bytes: "));
    }
}

static void deep_nesting_is_refused(void **state) {
    enum { DEPTH = 100000 };
    safetensors *file;
    char *header = malloc(DEPTH + 16);
    strcpy(header, "{\"a\":");
    memset(header + 5, '[', DEPTH);
    header[5 + DEPTH] = 0;
    assert_int_equal(parse(header, 0, &file), SHOAL_BAD_FILE);
    free(header);
}

static void header_lengths_are_checked(void **state) {
    const uint64_t lengths[] = {0, 1, 3, 100000001, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        safetensors *file;
        size_t size;
        unsigned char *bytes = assemble("{}", 0, &size);
        memcpy(bytes, &lengths[i], 8);
        assert_int_equal(sh_safetensors_parse(context, "bytes", bytes, size, &file),
                         SHOAL_BAD_FILE);
        free(bytes);
    }
}

/* Accepted tensors are usable: all bytes within the file, and found by name. */
static void check_usable(const safetensors *file, const unsigned char *bytes,
                         size_t size) {
    for (int64_t i = 0; i < sh_safetensors_count(file); i++) {
        const file_tensor *t = sh_safetensors_at(file, i);
        const unsigned char *data = t->data;
        assert_true(data >= bytes && data + t->bytes <= bytes + size);
        assert_ptr_equal(sh_safetensors_find(file, t->name), t);
    }
}

static void every_byte_and_length_is_tried(void **state) {
    static const char header[] =
        "{\"__metadata__\":{\"k\":\"v\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
        "\"bc\":{\"dtype\":\"I16\",\"shape\":[5],\"data_offsets\":[24,34]}}";
    size_t size, refused = 0, tried = 0;
    safetensors *file;
    unsigned char *bytes = assemble(header, 34, &size);
    assert_int_equal(sh_safetensors_parse(context, "bytes", bytes, size, &file),
                     SHOAL_OK);
    sh_safetensors_close(file);
    for (size_t at = 0; at < size - 34; at++) {
        unsigned char before = bytes[at];
        for (int value = 0; value < 256; value++, tried++) {
            bytes[at] = (unsigned char)value;
            if (sh_safetensors_parse(context, "bytes", bytes, size, &file) == SHOAL_OK)
                check_usable(file, bytes, size);
            else
                refused++;
            sh_safetensors_close(file);
        }
        bytes[at] = before;
    }
    /* Only changes of names and notes may be accepted. */
    assert_true(refused > tried * 9 / 10 && refused < tried);
    for (size_t length = 0; length < size; length++) {
        unsigned char *cut = malloc(length ? length : 1);
        memcpy(cut, bytes, length);
        assert_int_equal(sh_safetensors_parse(context, "bytes", cut, length, &file),
                         SHOAL_BAD_FILE);
        free(cut);
    }
    free(bytes);
}

static void odd_files_are_refused(void **state) {
    safetensors *file;
    assert_int_equal(sh_safetensors_open(context, inside("absent"), &file), SHOAL_IO);
    assert_int_equal(sh_safetensors_open(context, folder, &file), SHOAL_BAD_FILE);
    assert_int_equal(sh_safetensors_open(context, "/dev/zero", &file), SHOAL_BAD_FILE);
    write_bytes_to(inside("empty"), "", 0);
    assert_int_equal(sh_safetensors_open(context, inside("empty"), &file),
                     SHOAL_BAD_FILE);
}

static void the_writer_refuses(void **state) {
    const file_tensor twice[] = {written[1], written[1]};
    file_tensor bad[] = {written[1], written[1], written[1], written[1], written[1]};
    bad[0].name = "__metadata__";
    bad[1].name = "\xc3";
    bad[2].name = "";
    bad[3].shape[0] = -1;
    bad[4].shape[0] = INT64_MAX;
    assert_int_equal(sh_safetensors_write(context, inside("b"), twice, 2, NULL, 0, 0),
                     SHOAL_INVALID);
    for (int i = 0; i < 5; i++)
        assert_int_equal(sh_safetensors_write(context, inside("b"), &bad[i], 1, NULL, 0,
                                              0),
                         SHOAL_INVALID);
    assert_int_equal(sh_safetensors_write(context, inside("b"), NULL, 0, &notes[2], 1, 0),
                     SHOAL_INVALID);
    assert_int_equal(access(inside("b"), F_OK), -1);
    assert_int_equal(sh_safetensors_write(context, "/dev/full", written, 5, NULL, 0, 0),
                     SHOAL_IO);
    assert_int_equal(sh_safetensors_write(context, inside("no/b"), written, 5, NULL, 0,
                                          1),
                     SHOAL_IO);
}

/* ---- Shards and memory ------------------------------------------------------------ */

static void write_text(const char *name, const char *text) {
    write_bytes_to(inside(name), text, strlen(text));
}

static void shards_are_one_model(void **state) {
    static const char *const wrong[] = {
        "{}",
        "{\"weight_map\": {}}",
        "{\"weight_map\": []}",
        "{\"weight_map\": {\"weights\": 1}}",
        "{\"weight_map\": {\"weights\": \"../one\"}}",
        "{\"weight_map\": {\"weights\": \"..\"}}",
        "{\"weight_map\": {\"weights\": \"one\", \"step\": \"one\"}}",
        "{\"weight_map\": {\"weights\": \"one\", \"step\": \"three\"}}",
        "{\"weight_map\": {\"weights\": \"one\", \"step\": \"two\", \"more\": \"two\"}}",
        "{\"weight_map\": {\"weights\": \"one\"}, \"weight_map\": {}}",
        "{\"weight_map\": {\"step\": \"one\", \"weights\": \"two\"}}",
    };
    safetensors *file;
    sh_safetensors_write(context, inside("one"), &written[1], 1, NULL, 0, 0);
    sh_safetensors_write(context, inside("two"), &written[3], 1, NULL, 0, 0);
    write_text("i.json", "{\"weight_map\": {\"weights\": \"one\", \"step\": \"two\"}}");
    assert_int_equal(sh_safetensors_open(context, inside("i.json"), &file), SHOAL_OK);
    assert_int_equal(sh_safetensors_count(file), 2);
    assert_memory_equal(sh_safetensors_find(file, "weights")->data, floats,
                        sizeof floats);
    assert_memory_equal(sh_safetensors_find(file, "step")->data, counter, sizeof counter);
    sh_safetensors_close(file);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("i.json", wrong[i]);
        if (sh_safetensors_open(context, inside("i.json"), &file) == SHOAL_OK)
            fail_msg("accepted: %s", wrong[i]);
        assert_null(file);
    }
    write_text("i.json",
               "{\"weight_map\": {\"weights\": \"\\u001b[31m\\u009b\\u00e9\"}}");
    assert_int_equal(sh_safetensors_open(context, inside("i.json"), &file), SHOAL_IO);
    assert_non_null(strstr(shoal_context_message(context), "/?[31m??\xc3\xa9: cannot"));
}

static void failed_allocations_are_reported(void **state) {
    write_text("i.json", "{\"weight_map\": {\"weights\": \"one\", \"step\": \"two\"}}");
    for (int64_t n = 0;; n++) {
        counting_allocator memory = {0};
        const shoal_options options = counting_options(&memory);
        shoal_context *counted;
        assert_int_equal(shoal_context_create(&options, &counted), SHOAL_OK);
        int64_t live = memory.live;
        safetensors *file = NULL;
        memory.fail_at = memory.calls + n + 1;
        shoal_status status =
            sh_safetensors_write(counted, inside("one"), &written[1], 1, NULL, 0, 0);
        if (status == SHOAL_OK)
            status = sh_safetensors_open(counted, inside("i.json"), &file);
        bool done = status == SHOAL_OK;
        assert_true(done || status == SHOAL_NO_MEMORY);
        sh_safetensors_close(file);
        assert_int_equal(memory.live, live);
        shoal_context_destroy(counted);
        if (done) {
            assert_true(n >= 4);
            return;
        }
    }
}

static int begin(void **state) {
    folder = make_folder();
    return shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int end(void **state) {
    remove_folder(folder);
    shoal_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(corners_are_legal),
        cmocka_unit_test(wrong_headers_are_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(header_lengths_are_checked),
        cmocka_unit_test(every_byte_and_length_is_tried),
        cmocka_unit_test(odd_files_are_refused),
        cmocka_unit_test(the_writer_refuses),
        cmocka_unit_test(shards_are_one_model),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
