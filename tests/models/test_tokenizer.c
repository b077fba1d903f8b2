/* Tokenizers: recorded cases of the package `tokenizers` (tests/models/text/record.py),
   spans, limits, and invalid files. */
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

static shoal_tokenizer *open_recorded(const char *name) {
    char path[512];
    shoal_tokenizer *made;
    snprintf(path, sizeof path, "%s/tests/models/text/%s", SHOAL_SOURCE_DIR, name);
    if (shoal_tokenizer_open(context, path, &made) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return made;
}

/* ---- Recorded cases --------------------------------------------------------------- */

static int32_t cut_named(const char *name) {
    if (strcmp(name, "only_first") == 0)
        return SHOAL_CUT_FIRST;
    return strcmp(name, "only_second") == 0 ? SHOAL_CUT_SECOND : SHOAL_CUT_LONGEST;
}

static void expect_list(const json_t *expected, const int32_t *got, int64_t count,
                        const char *text) {
    if ((int64_t)json_array_size(expected) != count)
        fail_msg("'%s': %lld tokens, not %zu", text, (long long)count,
                 json_array_size(expected));
    for (int64_t i = 0; i < count; i++)
        if (json_integer_value(json_array_get(expected, (size_t)i)) != got[i])
            fail_msg("'%s': token %lld is %d", text, (long long)i, (int)got[i]);
}

static void check_case(shoal_tokenizer *tokenizer, const json_t *one) {
    const char *text = json_string_value(json_object_get(one, "text"));
    shoal_text given = {.size = sizeof(shoal_text),
                        .text = text,
                        .bytes = SHOAL_TERMINATED,
                        .pair = json_string_value(json_object_get(one, "pair")),
                        .pair_bytes = SHOAL_TERMINATED,
                        .most = json_integer_value(json_object_get(one, "most")),
                        .cut = cut_named(json_string_value(json_object_get(one, "cut")))};
    shoal_tokens tokens;
    assert_int_equal(shoal_tokenizer_encode(tokenizer, &given, &tokens), SHOAL_OK);
    expect_list(json_object_get(one, "ids"), tokens.ids, tokens.count, text);
    expect_list(json_object_get(one, "types"), tokens.types, tokens.count, text);
}

/* Cases of `folder`, with the tokenizer of `files`. */
static void check_cases(const char *folder, const char *files) {
    char path[512];
    size_t index;
    json_t *one;
    int64_t checked = 0;
    snprintf(path, sizeof path, "%s/tests/models/text/cases.json", SHOAL_SOURCE_DIR);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    shoal_tokenizer *tokenizer = open_recorded(files);
    json_array_foreach(json_object_get(root, "cases"), index, one) {
        if (strcmp(json_string_value(json_object_get(one, "folder")), folder) == 0) {
            check_case(tokenizer, one);
            checked++;
        }
    }
    assert_true(checked > 60);
    shoal_tokenizer_destroy(tokenizer);
    json_decref(root);
}

static void recorded_wordpiece(void **state) {
    check_cases("wordpiece", "wordpiece");
}

static void recorded_vocab_txt(void **state) {
    check_cases("wordpiece", "wordpiece-files");
}

static void recorded_byte_pairs(void **state) {
    check_cases("byte-pairs", "byte-pairs");
}

static void recorded_merges_txt(void **state) {
    check_cases("byte-pairs", "byte-pairs-files");
}

static void recorded_unigram(void **state) {
    check_cases("unigram", "unigram");
}

static void recorded_unigram_bytes(void **state) {
    check_cases("unigram-bytes", "unigram-bytes");
}

/* ---- Spans and limits ------------------------------------------------------------- */

static shoal_status encode(shoal_tokenizer *tokenizer, const char *text, int64_t most,
                           shoal_tokens *tokens) {
    shoal_text given = {.size = sizeof(shoal_text),
                        .text = text,
                        .bytes = SHOAL_TERMINATED,
                        .most = most};
    return shoal_tokenizer_encode(tokenizer, &given, tokens);
}

/* Every token's span is its own bytes of the text, in order. */
static void spans_of(const char *name) {
    static const char text[] = "  \xc3\x89tude a\xcc\x81 \xe4\xb8\xad, x!";
    shoal_tokenizer *tokenizer = open_recorded(name);
    shoal_tokens tokens;
    assert_int_equal(encode(tokenizer, text, 0, &tokens), SHOAL_OK);
    int64_t last = 0;
    for (int64_t i = 0; i < tokens.count; i++) {
        if (tokens.texts[i] < 0)
            continue;
        assert_true(tokens.spans[2 * i] <= tokens.spans[2 * i + 1]);
        assert_true(tokens.spans[2 * i + 1] >= last);
        assert_true(tokens.spans[2 * i + 1] <= (int64_t)strlen(text));
        last = tokens.spans[2 * i + 1];
    }
    assert_int_equal(last, strlen(text));
    assert_int_equal(tokens.texts[0], -1);
    assert_int_equal(tokens.spans[1], 0);
    shoal_tokenizer_destroy(tokenizer);
}

static void spans_cover_the_text(void **state) {
    spans_of("wordpiece");
    spans_of("byte-pairs");
    spans_of("unigram");
    spans_of("unigram-bytes");
}

static void limits(void **state) {
    shoal_tokenizer *tokenizer = open_recorded("wordpiece");
    shoal_tokens whole, cut;
    assert_int_equal(encode(tokenizer, "a b c d e", 0, &whole), SHOAL_OK);
    assert_int_equal(whole.count, 7);
    assert_int_equal(whole.left_out, 0);
    assert_int_equal(encode(tokenizer, "a b c d e", 4, &cut), SHOAL_OK);
    assert_int_equal(cut.count, 4);
    assert_int_equal(cut.left_out, 3);
    assert_int_equal(encode(tokenizer, "a b c d e", 1, &cut), SHOAL_INVALID);
    shoal_text bare = {.size = sizeof(shoal_text), .text = "a b", .bytes = 1, .bare = 1};
    assert_int_equal(shoal_tokenizer_encode(tokenizer, &bare, &cut), SHOAL_OK);
    assert_int_equal(cut.count, 1);
    assert_true(shoal_tokenizer_size(tokenizer) > 100);
    shoal_tokenizer_destroy(tokenizer);
}

static void bad_texts(void **state) {
    shoal_tokenizer *tokenizer = open_recorded("byte-pairs");
    shoal_tokens tokens;
    assert_int_equal(encode(tokenizer, "a\xff", 0, &tokens), SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "byte 1"));
    assert_int_equal(encode(tokenizer, "a\xed\xa0\x80", 0, &tokens), SHOAL_INVALID);
    assert_int_equal(encode(tokenizer, "\xc3", 0, &tokens), SHOAL_INVALID);
    assert_int_equal(encode(tokenizer, NULL, 0, &tokens), SHOAL_INVALID);
    shoal_text large = {.size = sizeof(shoal_text), .text = "a", .bytes = (1 << 24) + 1};
    assert_int_equal(shoal_tokenizer_encode(tokenizer, &large, &tokens), SHOAL_INVALID);
    assert_int_equal(shoal_tokenizer_encode(NULL, &large, &tokens), SHOAL_INVALID);
    shoal_tokenizer_destroy(tokenizer);
}

/* Merging a word of a million letters takes linear, not quadratic, time. */
static void long_words(void **state) {
    enum { LENGTH = 1 << 20 };
    char *text = test_memory(LENGTH + 1, 1);
    for (int i = 0; i < LENGTH; i++)
        text[i] = "attention"[i % 9];
    shoal_tokenizer *tokenizer = open_recorded("byte-pairs");
    shoal_tokens tokens;
    assert_int_equal(encode(tokenizer, text, 0, &tokens), SHOAL_OK);
    assert_true(tokens.count > 2 && tokens.count < LENGTH);
    assert_int_equal(tokens.spans[2 * (tokens.count - 2) + 1], LENGTH);
    shoal_tokenizer_destroy(tokenizer);
    free(text);
}

/* The pattern keeps contractions together, so that their parts can be merged. */
static void contractions(void **state) {
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d", "z"};
    for (int64_t i = 0; i < COUNT_OF(endings); i++) {
        const char *e = endings[i];
        char file[400], text[8];
        shoal_tokenizer *made;
        shoal_tokens tokens;
        const bool two = e[1] != 0;
        snprintf(
            file, sizeof file,
            "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"'\":0,\"%c\":1,\"'%c\":2%s%s%s"
            "},\"merges\":[\"' %c\"]},\"pre_tokenizer\":{\"type\":\"ByteLevel\","
            "\"add_prefix_space\":false}}",
            e[0], e[0], two && e[1] != e[0] ? ",\"" : "",
            two && e[1] != e[0] ? e + 1 : "", two && e[1] != e[0] ? "\":3" : "", e[0]);
        snprintf(text, sizeof text, "'%s", e);
        if (sh_tokenizer_parse(context, "input", file, strlen(file), &made) != SHOAL_OK)
            fail_msg("%s: %s", file, shoal_context_message(context));
        assert_int_equal(encode(made, text, 0, &tokens), SHOAL_OK);
        assert_int_equal(tokens.ids[0], strcmp(e, "z") == 0 ? 0 : 2);
        shoal_tokenizer_destroy(made);
    }
}

/* ---- Invalid files ---------------------------------------------------------------- */

#define PAIRS(vocab, merges, more)                                                       \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]" more    \
    "},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}"
#define PIECES(vocab, more, rest)                                                        \
    "{\"model\":{\"type\":\"WordPiece\",\"vocab\":{" vocab "}" more                      \
    "},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}" rest "}"
#define AB "\"a\":0,\"b\":1,\"ab\":2"
#define UNK "\"[UNK]\":0,\"a\":1"

static const struct {
    const char *text, *reason; /* reason is NULL if the file is valid */
} files[] = {
    {PAIRS(AB, "\"a b\"", ""), NULL},
    {PAIRS(AB, "[\"a\",\"b\"]", ""), NULL},
    {PAIRS(AB, "\"a b\",\"a b\"", ""), "is a duplicate"},
    {PAIRS(AB, "\"a  b\"", ""), "two words"},
    {PAIRS(AB, "\" a\"", ""), "two words"},
    {PAIRS(AB, "\"ab\"", ""), "two words"},
    {PAIRS(AB ",\"\":3", "[\"\",\"a\"]", ""), "two words"},
    {PAIRS(AB, "\"b a\"", ""), "'ba'"},
    {PAIRS(AB, "7", ""), "two words"},
    {PAIRS("", "", ""), "vocab"},
    {PAIRS("\"a\":-1", "", ""), "integer id"},
    {PAIRS("\"a\":4294967296", "", ""), "integer id"},
    {PAIRS("\"a\":1.5", "", ""), "integer id"},
    {PAIRS("\"a\":1,\"a\":2", "", ""), "JSON"},
    {PAIRS(AB, "", ",\"byte_fallback\":true"), "byte_fallback"},
    {PAIRS(AB, "", ",\"ignore_merges\":true"), "ignore_merges"},
    {PAIRS(AB, "", ",\"dropout\":0.1"), "dropout"},
    {PAIRS(AB, "", ",\"end_of_word_suffix\":\"</w>\""), "end_of_word_suffix"},
    {PAIRS(AB, "", ",\"unk_token\":\"<unk>\""), "<unk>"},
    {PIECES(UNK, "", ""), NULL},
    {PIECES("\"a\":0", "", ""), "[UNK]"},
    {PIECES(UNK, ",\"max_input_chars_per_word\":0", ""), "1 to 1024"},
    {PIECES(UNK, ",\"max_input_chars_per_word\":99999", ""), "1 to 1024"},
    {PIECES(UNK, "", ",\"normalizer\":{\"type\":\"Precompiled\"}"), "Precompiled"},
    {PIECES(UNK, "", ",\"normalizer\":{\"type\":\"BertNormalizer\",\"lowercase\":3}"),
     "lowercase"},
    {PIECES(UNK, "", ",\"added_tokens\":[{\"id\":5,\"content\":\"a\"}]"), "another id"},
    {PIECES(UNK, "", ",\"added_tokens\":[{\"id\":5,\"content\":\"\"}]"), "empty"},
    {PIECES(UNK, "", ",\"added_tokens\":[{\"content\":\"z\"}]"), "added_tokens"},
    {PIECES(UNK, "", ",\"added_tokens\":\"x\""), "a list is required for 'added_tokens'"},
    {PIECES(UNK, "", ",\"added_tokens\":null"), NULL},
    {PIECES(UNK, "",
            ",\"added_tokens\":[{\"id\":5,\"content\":\"z\",\"single_word\":true}]"),
     "single_word"},
    {PIECES(UNK, "", ",\"post_processor\":{\"type\":\"Sequence\"}"), "Sequence"},
    {PIECES(UNK, "", ",\"post_processor\":{\"type\":\"TemplateProcessing\"}"), "single"},
    {PIECES(UNK, "", ",\"post_processor\":{\"type\":\"BertProcessing\"}"), "cls"},
    {"{}", "WordPiece, byte-level BPE and Unigram"},
    {"{}", "'(none)'"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{" UNK "}}}", "'(none)'"},
    {"[]", "JSON object"},
    {"{\"model\"", "JSON"},
    {"{\"model\":\"\xff\"}", "JSON"},
};

static void wrong_files(void **state) {
    for (int64_t i = 0; i < COUNT_OF(files); i++) {
        shoal_tokenizer *made;
        const shoal_status status = sh_tokenizer_parse(context, "input", files[i].text,
                                                       strlen(files[i].text), &made);
        const char *message = shoal_context_message(context);
        if (status != (files[i].reason ? SHOAL_BAD_FILE : SHOAL_OK) ||
            (files[i].reason && !strstr(message, files[i].reason)))
            fail_msg("%s\nstatus %d: %s", files[i].text, (int)status, message);
        shoal_tokenizer_destroy(made);
    }
}

static void expect_words(const char *bytes, size_t size, const char *reason) {
    shoal_tokenizer *made;
    const text_file file = {"vocab.txt", bytes, size};
    shoal_status status = sh_tokenizer_parse_words(context, &file, NULL, &made);
    assert_int_equal(status, reason ? SHOAL_BAD_FILE : SHOAL_OK);
    if (reason && !strstr(shoal_context_message(context), reason))
        fail_msg("%s: not '%s'", shoal_context_message(context), reason);
    shoal_tokenizer_destroy(made);
}

#define USUAL "[CLS]\n[SEP]\n[UNK]\n"

static void wrong_lists_of_words(void **state) {
    enum { HUGE_LINE = 100000 };
    expect_words(USUAL "a\nb", sizeof(USUAL "a\nb") - 1, NULL);
    expect_words("", 0, "one word per line");
    expect_words("a\nb\n", 4, "[CLS]");
    expect_words(USUAL "a\na\n", sizeof(USUAL "a\na\n") - 1, "line 5");
    expect_words(USUAL "\xff\n", sizeof(USUAL "\xff\n") - 1, "line 4 is not UTF-8");
    char *line = test_memory(HUGE_LINE, 1);
    memset(line, 'a', HUGE_LINE);
    expect_words(line, HUGE_LINE, "more than the maximum for a token");
    free(line);
}

static void wrong_merges(void **state) {
    static const struct {
        const char *merges, *reason;
    } rows[] = {
        {"#version: 0.2\na b\n", NULL},
        {"a b\r\n\n", NULL},
        {"a b\na b\n", "is a duplicate"},
        {"a  b\n", "merge 1 gives"},
        {"ab\n", "two words"},
        {"a \n", "two words"},
        {"a \xc3\n", "line 1 is not UTF-8"},
    };
    static const char words[] =
        "{\"<s>\":0,\"</s>\":1,\"<unk>\":2,\"a\":3,\"b\":4,\"ab\":5}";
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        shoal_tokenizer *made;
        const text_file vocab = {"vocab.json", words, sizeof words - 1},
                        merges = {"merges.txt", rows[i].merges, strlen(rows[i].merges)};
        shoal_status status =
            sh_tokenizer_parse_pairs(context, &vocab, &merges, NULL, &made);
        const char *message = shoal_context_message(context);
        if (status != (rows[i].reason ? SHOAL_BAD_FILE : SHOAL_OK) ||
            (rows[i].reason && !strstr(message, rows[i].reason)))
            fail_msg("%s\nstatus %d: %s", rows[i].merges, (int)status, message);
        shoal_tokenizer_destroy(made);
    }
}

static void wrong_folders(void **state) {
    shoal_tokenizer *made;
    const char *folder = make_folder();
    assert_int_equal(shoal_tokenizer_open(context, folder, &made), SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(context), "has no tokenizer"));
    assert_null(made);
    assert_int_equal(shoal_tokenizer_open(context, NULL, &made), SHOAL_INVALID);
    assert_int_equal(shoal_tokenizer_open(NULL, folder, &made), SHOAL_INVALID);
    shoal_tokenizer_destroy(NULL);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_wordpiece),
        cmocka_unit_test(recorded_vocab_txt),
        cmocka_unit_test(recorded_byte_pairs),
        cmocka_unit_test(recorded_merges_txt),
        cmocka_unit_test(recorded_unigram),
        cmocka_unit_test(recorded_unigram_bytes),
        cmocka_unit_test(spans_cover_the_text),
        cmocka_unit_test(limits),
        cmocka_unit_test(bad_texts),
        cmocka_unit_test(long_words),
        cmocka_unit_test(contractions),
        cmocka_unit_test(wrong_files),
        cmocka_unit_test(wrong_lists_of_words),
        cmocka_unit_test(wrong_merges),
        cmocka_unit_test(wrong_folders),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
