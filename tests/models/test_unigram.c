/* Unigram: small vocabularies with ids from the package `tokenizers`, invalid files,
   SentencePiece's character table built here and then damaged, and a vocabulary as
   large as XLM-R's. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "folders.h"
#include "models/text/tokenizer.h"
#include "shoal_models.h"
#include "support.h"

static shoal_context *context;

static int open_context(void **state) {
    (void)state;
    return shoal_context_create(NULL, &context) == SHOAL_OK ? 0 : 1;
}

static int close_context(void **state) {
    (void)state;
    shoal_context_destroy(context);
    return 0;
}

/* The file is parsed, or rejected with the reason. */
static shoal_tokenizer *parse(const char *file, const char *reason) {
    shoal_tokenizer *made;
    shoal_status status = sh_tokenizer_parse(context, "input", file, strlen(file), &made);
    const char *message = shoal_context_message(context);
    if (status != (reason ? SHOAL_BAD_FILE : SHOAL_OK) ||
        (reason && !strstr(message, reason)))
        fail_msg("%.500s\nstatus %d: %s", file, (int)status, message);
    return made;
}

static void expect_ids(shoal_tokenizer *tokenizer, const char *text, const char *ids) {
    shoal_tokens tokens;
    char got[200] = "";
    assert_int_equal(shoal_tokenizer_encode(tokenizer,
                                            &(shoal_text){.size = sizeof(shoal_text),
                                                          .text = text,
                                                          .bytes = SHOAL_TERMINATED},
                                            &tokens),
                     SHOAL_OK);
    for (int64_t i = 0; i < tokens.count; i++)
        sprintf(got + strlen(got), "%s%d", i ? " " : "", (int)tokens.ids[i]);
    if (strcmp(got, ids) != 0)
        fail_msg("'%s': %s, not %s", text, got, ids);
}

/* ---- Small vocabularies ----------------------------------------------------------- */

#define FILE_OF(vocab, more, rest)                                                       \
    "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[" vocab "]" more "}" rest  \
    "}"
#define PIECES                                                                           \
    "[\"<unk>\",0],[\"\\u2581\",-2],[\"\\u2581a\",-3],[\"a\",-2.5],[\"b\",-2.5],"        \
    "[\"aa\",-5],[\"ab\",-4],[\"\\u2581ab\",-4.5],[\"_\",-3],[\"<0xC3>\",-6],"           \
    "[\"<0xA9>\",-6],[\"-\",-1],[\"  \",-1],[\" \",-3]"
#define MORE_PIECES ",[\"\\u00e9\",-9],[\"zz\",-40]"
#define PLAIN FILE_OF(PIECES MORE_PIECES, "", "")
#define PRE(how) FILE_OF(PIECES, "", ",\"pre_tokenizer\":" how)
#define NORMAL(how) FILE_OF(PIECES MORE_PIECES, "", ",\"normalizer\":" how)
#define BOTH(normal, pre)                                                                \
    FILE_OF(PIECES, "", ",\"normalizer\":" normal ",\"pre_tokenizer\":" pre)
#define META(more) "{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\"" more "}"
#define WHITE "{\"type\":\"WhitespaceSplit\"}"
#define CUTS(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define STEPS(list) "{\"type\":\"Sequence\",\"normalizers\":[" list "]}"
#define FIRST ",\"prepend_scheme\":\"first\""
#define NEVER ",\"prepend_scheme\":\"never\""
#define REPLACE(kind, pattern, content)                                                  \
    "{\"type\":\"Replace\",\"pattern\":{\"" kind "\":\"" pattern "\"},\"content\":"      \
    "\"" content "\"}"
#define STRIP "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}"
#define LOWER STEPS("{\"type\":\"NFKC\"},{\"type\":\"Lowercase\"}")
#define SPACES REPLACE("Regex", " {2,}", "\\u2581")
#define BYTES FILE_OF(PIECES, ",\"byte_fallback\":true", "")

static const struct {
    const char *file, *text, *ids;
} rows[] = {
    {PLAIN, "", ""},
    {PLAIN, "aa", "5"}, /* as good as two 'a', and longer */
    {PLAIN, "aaa", "3 5"},
    {PLAIN, "abab", "6 6"},
    {PLAIN, "a b", "3 13 4"},
    {PLAIN, "xyz", "0"}, /* unknown letters are one token */
    {PLAIN, "axyb", "3 0 4"},
    {PLAIN, "zz", "15"}, /* a piece together */
    {PLAIN, "z", "0"},
    {PLAIN, "a<unk>xb", "3 0 4"},
    {PLAIN,
     "\xc3\xa9"
     "a",
     "14 3"},
    /* Equal except for the last bit of the converted scores. */
    {FILE_OF("[\"<unk>\",0],[\"x\",-5.781911945146279],[\"e\",-7.9824779469873945],"
             "[\"ee\",-5.8914249315382845]",
             "", ""),
     "xeee", "1 3 2"},
    {FILE_OF("[\"<unk>\",0],[\"x\",-3.560759771784129],[\"e\",-4.449127732046578],"
             "[\"ee\",-3.7430549319296804]",
             "", ""),
     "xeee", "1 3 2"},
    {FILE_OF("[\"<unk>\",0],[\"x\",-1e-320],[\"y\",-2.5e-310],[\"z\",1e300]", "", ""),
     "xyz", "1 2 3"},
    /* The unknown score is 10 less than the smallest: 5 - 30 and 16 - 30. */
    {FILE_OF("[\"<unk>\",0],[\"a\",5],[\"ab\",-20]", "", ""), "ab", "2"},
    {FILE_OF("[\"<unk>\",0],[\"a\",16],[\"ab\",-20]", "", ""), "ab", "1 0"},
    {PRE(META("")), "a", "2"},
    {PRE(META("")), "a  ab ", "2 1 7 1"},
    {PRE(META("")), " a", "2"},
    {PRE(META("")),
     "\xe2\x96\x81"
     "a",
     "2"},
    {PRE(META("")), "xa", "1 0 3"},
    {PRE(META("")), "  ", "1 1"},
    {PRE(META(NEVER)), "a ab", "3 7"},
    {PRE(META(",\"add_prefix_space\":false")), "a ab", "3 7"},
    {PRE(META(",\"add_prefix_space\":true,\"str_rep\":\"_\"")), "a", "2"},
    {PRE(META(FIRST)), "a a", "2 2"},
    {PRE(META(",\"split\":false")), "a aa", "2 2 3"},
    {PRE(WHITE),
     "a b\tab\xe3\x80\x80"
     "a",
     "3 4 6 3"},
    {PRE(WHITE), " ", ""},
    {PRE(CUTS(WHITE "," META(""))), "a  b\nab ", "2 1 4 7"},
    {PRE(CUTS(WHITE "," META(FIRST))), "a a", "2 3"},
    {PRE(CUTS(WHITE "," META(FIRST))), " a", "3"},
    {BYTES, "\xc3\xa9", "9 10"},
    {BYTES, "\xc3\xa9\xc3\xa9", "9 10 9 10"},
    {BYTES, "a\xc3\xaa", "3 0"}, /* a byte of it has no piece */
    {NORMAL(REPLACE("String", "bb", "a")), "bbb", "6"},
    {NORMAL(REPLACE("String", "bb", "a")), "bbbb", "5"},
    {NORMAL(REPLACE("String", "b", "")), "abba", "5"},
    {NORMAL(SPACES), "a b", "3 13 4"},
    {NORMAL(SPACES), "a   b", "3 1 4"},
    {NORMAL("{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}"), " a  ",
     "13 3"},
    {BOTH(STRIP, META(FIRST)), " a ", "3"}, /* it is not the text's first character */
    {BOTH(STRIP, META(FIRST)), " ", ""},
    {NORMAL(LOWER),
     "\xef\xbc\xa1"
     "B\xe2\x84\xab",
     "6 0"},
    {NORMAL(LOWER), "E\xcc\x81", "14"},
    {NORMAL("{\"type\":\"NFKD\"}"), "\xc3\xa9\xc2\xaa", "0 3"},
    {NORMAL("{\"type\":\"NFD\"}"), "\xc3\xa9\xc2\xaa", "0"},
};

static void small_vocabularies(void **state) {
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        shoal_tokenizer *made = parse(rows[i].file, NULL);
        expect_ids(made, rows[i].text, rows[i].ids);
        shoal_tokenizer_destroy(made);
    }
}

#define TWICE(a) a "," a
#define MANY TWICE(TWICE(TWICE(TWICE("{\"type\":\"NFC\"}"))))

static const struct {
    const char *file, *reason;
} wrong[] = {
    {"{\"model\":{\"type\":\"Unigram\"}}", "pieces and their scores"},
    {FILE_OF("", "", ""), "pieces and their scores"},
    {FILE_OF("[\"a\",0],[\"a\",1]", "", ""), "duplicate piece"},
    {FILE_OF("[\"a\",\"0\"]", "", ""), "entry 0"},
    {FILE_OF("[\"a\",0],[\"b\",NaN]", "", ""), "JSON"},
    {FILE_OF("[\"a\",0],[\"b\",1e999]", "", ""), "JSON"},
    {FILE_OF("[\"a\",0],[\"b\",null]", "", ""), "entry 1"},
    {FILE_OF("[\"a\",0],[\"b\"]", "", ""), "entry 1"},
    {FILE_OF("[\"a\",0],[\"b\",1,2]", "", ""), "entry 1"},
    {FILE_OF("[\"a\",0],7", "", ""), "entry 1"},
    {FILE_OF("[7,0]", "", ""), "entry 0"},
    {FILE_OF("[\"a\",0]", ",\"byte_fallback\":1", ""), "byte_fallback"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[[\"a\",0]]}}", "unk_id"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":null,\"vocab\":[[\"a\",0]]}}",
     "unk_id"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]}}", "unk_id"},
    {"{\"model\":{\"type\":\"Unigram\",\"unk_id\":-1,\"vocab\":[[\"a\",0]]}}", "unk_id"},
    {PRE("{\"type\":\"ByteLevel\"}"), "ByteLevel"},
    {PRE(CUTS(META("") "," META(""))), "once"},
    {PRE(CUTS(META("") "," WHITE)), "before Metaspace"},
    {PRE(CUTS("{\"type\":\"Punctuation\"}")), "Punctuation"},
    {PRE("{\"type\":\"Sequence\"}"), "Sequence"},
    {PRE("{\"type\":\"Metaspace\"}"), "replacement"},
    {PRE("{\"type\":\"Metaspace\",\"replacement\":\"ab\"}"), "replacement"},
    {PRE("{\"type\":\"Metaspace\",\"replacement\":\"\"}"), "replacement"},
    {PRE(META(",\"prepend_scheme\":\"last\"")), "last"},
    {PRE(META(",\"prepend_scheme\":7")), "prepend_scheme"},
    {PRE(META(FIRST ",\"add_prefix_space\":false")), "first"},
    {PRE(META(",\"split\":7")), "split"},
    {NORMAL("{\"type\":\"StripAccents\"}"), "StripAccents"},
    {NORMAL("{\"type\":\"Sequence\"}"), "normalizers"},
    {NORMAL(STEPS(TWICE(MANY))), "too many"},
    {NORMAL(REPLACE("Regex", "a+", "b")), "a+"},
    {NORMAL(REPLACE("String", "", "b")), "Replace"},
    {NORMAL("{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"}}"), "Replace"},
    {NORMAL("{\"type\":\"Precompiled\",\"precompiled_charsmap\":null}"), "Precompiled"},
};

static void wrong_files(void **state) {
    for (int64_t i = 0; i < COUNT_OF(wrong); i++)
        assert_null(parse(wrong[i].file, wrong[i].reason));
    shoal_tokenizer_destroy(parse(NORMAL(STEPS(MANY)), NULL));
}

/* A file whose steps make a text longer and longer. */
static void endless_text(void **state) {
    shoal_tokens tokens;
    char text[2001] = "";
    shoal_tokenizer *made =
        parse(NORMAL(
                  STEPS(TWICE(TWICE(TWICE(REPLACE("String", "a", "aaaaaaaaaaaaaaaa")))))),
              NULL);
    memset(text, 'a', sizeof text - 1);
    assert_int_equal(shoal_tokenizer_encode(made,
                                            &(shoal_text){.size = sizeof(shoal_text),
                                                          .text = text,
                                                          .bytes = SHOAL_TERMINATED},
                                            &tokens),
                     SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(context), "64 times as long"));
    expect_ids(made, "b", "4");
    shoal_tokenizer_destroy(made);
}

/* One byte more than the maximum of a piece. */
static void long_pieces(void **state) {
    enum { LENGTH = 1025 };
    char *file = test_memory(LENGTH + 200, 1), piece[LENGTH + 1];
    for (int length = LENGTH; length >= LENGTH - 1; length--) {
        memset(piece, 'a', sizeof piece);
        piece[length] = 0;
        sprintf(file, FILE_OF("[\"<unk>\",0],[\"%s\",-1]", "", ""), piece);
        shoal_tokenizer *made = parse(file, length == LENGTH ? "entry 1" : NULL);
        if (made)
            expect_ids(made, piece, "1");
        shoal_tokenizer_destroy(made);
    }
    free(file);
}

/* ---- SentencePiece's table of characters ------------------------------------------ */

/* 'a' becomes "xy", 'b' nothing, e with an acute "z", in two blocks of units. */
enum {
    UNITS = 512,
    BLOCK = 256,
    UNIT_A = BLOCK ^ 'a',
    UNIT_B = BLOCK ^ 'b',
    UNIT_E = BLOCK ^ 'e',
    ACUTE_1 = 0x81 ^ 0xcc, /* children of e, around unit 0x81 */
    ACUTE_2 = 0x41 ^ 0x81,
    TEXTS = 4 + 4 * UNITS
};
static const uint32_t leaf = 1u << 31, with_value = 1 << 8;
static const char texts[] = "xy\0\0z\0\xc3\xa9";

typedef struct {
    uint32_t units[UNITS];
    unsigned char bytes[TEXTS + sizeof texts];
    size_t size;
    char base64[2 * TEXTS], file[3 * TEXTS];
} table;

static uint32_t unit_to(uint32_t from, uint32_t to, uint32_t label) {
    return (from ^ to) << 10 | label;
}

static void make_units(table *t) {
    memset(t, 0, sizeof *t);
    t->units[0] = unit_to(0, BLOCK, 0);
    t->units[UNIT_A] = unit_to(UNIT_A, 0x1fe, 'a' | with_value);
    t->units[UNIT_B] = unit_to(UNIT_B, 0x1fd, 'b' | with_value);
    t->units[UNIT_E] = unit_to(UNIT_E, 0x81, 'e');
    t->units[ACUTE_1] = unit_to(ACUTE_1, 0x41, 0xcc);
    t->units[ACUTE_2] = unit_to(ACUTE_2, 0x1fc, 0x81 | with_value);
    t->units[0x1fe] = leaf | 0;
    t->units[0x1fd] = leaf | 3;
    t->units[0x1fc] = leaf | 4;
}

static void make_bytes(table *t) {
    const uint32_t size = 4 * UNITS;
    for (int i = 0; i < 4; i++)
        t->bytes[i] = (unsigned char)(size >> 8 * i);
    for (int i = 0; i < 4 * UNITS; i++)
        t->bytes[4 + i] = (unsigned char)(t->units[i / 4] >> 8 * (i % 4));
    memcpy(t->bytes + TEXTS, texts, sizeof texts - 1);
    t->size = TEXTS + sizeof texts - 1;
}

static void write_base64(table *t) {
    static const char digits[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *to = t->base64;
    for (size_t at = 0; at < t->size; at += 3) {
        uint32_t group = 0;
        for (size_t i = 0; i < 3; i++)
            group = group << 8 | (at + i < t->size ? t->bytes[at + i] : 0);
        for (size_t i = 0; i < 4; i++)
            *to++ = at + i <= t->size ? digits[group >> (18 - 6 * i) & 63] : '=';
    }
    *to = 0;
}

static shoal_tokenizer *parse_base64(table *t, const char *reason) {
    sprintf(t->file,
            FILE_OF("[\"<unk>\",0],[\"x\",-1],[\"y\",-1],[\"z\",-1],[\"e\",-1]",
                    ",\"byte_fallback\":false",
                    ",\"normalizer\":{\"type\":\"Precompiled\","
                    "\"precompiled_charsmap\":\"%s\"}"),
            t->base64);
    return parse(t->file, reason);
}

static shoal_tokenizer *parse_table(table *t, const char *reason) {
    write_base64(t);
    return parse_base64(t, reason);
}

static void table_of_characters(void **state) {
    table *t = test_memory(1, sizeof *t);
    for (int cut = 0; cut < 3; cut++) { /* all ends of base64 */
        make_units(t);
        make_bytes(t);
        t->size -= cut == 2 ? 2 : 0;
        if (cut == 1)
            t->bytes[t->size++] = 'q';
        shoal_tokenizer *made = parse_table(t, NULL);
        expect_ids(made, "a", "1 2");
        expect_ids(made, "bab", "1 2");
        expect_ids(made, "b", "");
        expect_ids(made, "ee\xcc\x81", "4 3");
        expect_ids(made, "a\xcc\x81x", "1 2 1"); /* the acute is dropped with it */
        expect_ids(made, "a\xcc\x81\xcc\x82\xcc\x83", "1 2 0"); /* the cluster is too
                                                                   long */
        expect_ids(made, "z\ne", "3 0 4");
        shoal_tokenizer_destroy(made);
    }
    free(t);
}

static void damaged_units(void **state) {
    static const struct {
        uint32_t at, unit;
        const char *reason;
    } damages[] = {
        {0, 1u << 30, "unit 0"},    /* far outside */
        {0, UNITS << 10, "unit 0"}, /* just outside */
        {0, 1u << 31, "unit 0"},    /* a value */
        {UNIT_A, 0x1fffff << 10 | 'a', "points outside"},
        {UNIT_A, 1 << 9 | 2 << 10 | 'a', "points outside"}, /* in steps of 256 */
        {0x1fe, 1u << 31 | 8, "points outside"},            /* beyond the texts */
        {0x1fe, 1u << 31 | 7, "points outside"},            /* inside a character */
        {0x1fe, UINT32_MAX, "points outside"},
        {7, 1u << 29, "unit 7"}, /* an unreachable one */
    };
    table *t = test_memory(1, sizeof *t);
    for (int64_t i = 0; i < COUNT_OF(damages); i++) {
        make_units(t);
        t->units[damages[i].at] = damages[i].unit;
        make_bytes(t);
        assert_null(parse_table(t, damages[i].reason));
    }
    /* A cycle ends with the text. */
    make_units(t);
    t->units[UNIT_E] = unit_to(UNIT_E, BLOCK, 'e');
    make_bytes(t);
    shoal_tokenizer *made = parse_table(t, NULL);
    expect_ids(made, "eeee", "4 4 4 4");
    shoal_tokenizer_destroy(made);
    free(t);
}

static void damaged_bytes(void **state) {
    table *t = test_memory(1, sizeof *t);
    static const uint32_t lies[] = {0, 2, 5, 4 * UNITS + 40, UINT32_MAX};
    for (int64_t i = 0; i < COUNT_OF(lies); i++) {
        make_units(t);
        make_bytes(t);
        for (int b = 0; b < 4; b++)
            t->bytes[b] = (unsigned char)(lies[i] >> 8 * b);
        assert_null(parse_table(t, "which does not match its array"));
    }
    for (size_t size = 0; size < 9; size++) {
        make_units(t);
        make_bytes(t);
        t->size = size;
        assert_null(parse_table(t, "which does not match its array"));
    }
    make_units(t);
    make_bytes(t);
    t->bytes[TEXTS + 1] = 0xff;
    assert_null(parse_table(t, "not UTF-8"));
    make_bytes(t);
    write_base64(t);
    t->base64[9] = '*';
    assert_null(parse_base64(t, "base64"));
    write_base64(t);
    t->base64[8] = '=';
    assert_null(parse_base64(t, "base64"));
    write_base64(t);
    t->base64[strlen(t->base64) - 1] = 0;
    assert_null(parse_base64(t, "base64"));
    free(t);
}

/* ---- Size ------------------------------------------------------------------------- */

/* As many pieces as XLM-R has; each is found. */
static void large_vocabulary(void **state) {
    enum { COUNT = 250002, ENTRY = 40 };
    char *file = test_memory(COUNT + 10, ENTRY), *to = file;
    to += sprintf(to, "{\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[");
    for (int i = 0; i < COUNT; i++)
        to += sprintf(to, "%s[\"\\u2581%x\",%.7f]", i ? "," : "", (unsigned)i * 40503u,
                      -8 - i * 1e-5);
    sprintf(to, "]}}");
    shoal_tokenizer *made = parse(file, NULL);
    assert_int_equal(shoal_tokenizer_size(made), COUNT);
    for (int i = 1; i < COUNT; i += 4999) {
        char text[ENTRY], id[ENTRY];
        sprintf(text, "\xe2\x96\x81%x", (unsigned)i * 40503u);
        sprintf(id, "%d", i);
        expect_ids(made, text, id);
    }
    shoal_tokenizer_destroy(made);
    free(file);
}

/* A folder with only SentencePiece's own file. */
static void unconverted_folder(void **state) {
    static const char *const names[] = {"sentencepiece.bpe.model", "spiece.model",
                                        "tokenizer.model"};
    for (int64_t i = 0; i < COUNT_OF(names); i++) {
        shoal_tokenizer *made;
        char path[600];
        const char *folder = make_folder();
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(shoal_tokenizer_open(context, folder, &made), SHOAL_BAD_FILE);
        const char *message = shoal_context_message(context);
        assert_non_null(strstr(message, names[i]));
        assert_non_null(strstr(message, "SentencePiece"));
        assert_non_null(strstr(message, "convert it to tokenizer.json"));
        remove_folder(folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_vocabularies),  cmocka_unit_test(wrong_files),
        cmocka_unit_test(endless_text),        cmocka_unit_test(long_pieces),
        cmocka_unit_test(table_of_characters), cmocka_unit_test(damaged_units),
        cmocka_unit_test(damaged_bytes),       cmocka_unit_test(large_vocabulary),
        cmocka_unit_test(unconverted_folder),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
