/* Lexicons in the usual formats, and invalid ones. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "shoal_speech.h"
#include "support.h"

static shoal_context *context;
static const char *folder;

static const char *write_text(const char *name, const char *text) {
    static char path[2][512];
    static int turn;
    turn = 1 - turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    write_bytes_to(path[turn], text, strlen(text));
    return path[turn];
}

static shoal_lexicon *read_text(const char *text, const shoal_lexicon_options *options) {
    shoal_lexicon *lexicon;
    const char *path = write_text("lexicon", text);
    assert_int_equal(shoal_lexicon_open(context, &path, 1, options, &lexicon), SHOAL_OK);
    return lexicon;
}

/* "DH AH | DH IY" */
static void check_word(const shoal_lexicon *lexicon, const char *word,
                       const char *wanted) {
    char text[256] = "";
    const int64_t at = shoal_lexicon_find(lexicon, word);
    for (int64_t i = 0; i < shoal_lexicon_pronunciations(lexicon, at); i++) {
        const int32_t *phones;
        const int64_t count = shoal_lexicon_pronunciation(lexicon, at, i, &phones);
        for (int64_t k = 0; k < count; k++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s",
                     k ? " " : (i ? " | " : ""), shoal_lexicon_phone(lexicon, phones[k]));
    }
    assert_string_equal(text, wanted);
}

static void kaldi_is_read(void **state) {
    shoal_lexicon *lexicon = read_text("THE DH AH\nTHE DH IY\nTHE DH AH\n\n"
                                       "CAT\tK AE T\r\n!SIL SIL\ncat K\n",
                                       NULL);
    const shoal_lexicon_info info = *shoal_lexicon_describe(lexicon);
    assert_int_equal(info.words, 4);
    assert_int_equal(info.pronunciations, 5);
    assert_int_equal(info.phones, 7);
    assert_int_equal(info.silence, 6);
    assert_string_equal(shoal_lexicon_phone(lexicon, 0), "AE");
    assert_string_equal(shoal_lexicon_phone(lexicon, 6), "SIL");
    assert_null(shoal_lexicon_phone(lexicon, 7));
    assert_null(shoal_lexicon_word(lexicon, -1));
    check_word(lexicon, "THE", "DH AH | DH IY");
    check_word(lexicon, "the", "DH AH | DH IY");
    check_word(lexicon, "CAT", "K AE T");
    check_word(lexicon, "cat", "K");
    check_word(lexicon, "Cat", "K AE T");
    check_word(lexicon, "!SIL", "SIL");
    check_word(lexicon, "ca", "");
    check_word(lexicon, "zebra", "");
    shoal_lexicon_destroy(lexicon);
}

static void probabilities_are_passed_over(void **state) {
    shoal_lexicon *lexicon = read_text("a 1.0 A\na 2.5e-1 B\nb 1 B\n", NULL);
    check_word(lexicon, "a", "A | B");
    check_word(lexicon, "b", "B");
    shoal_lexicon_destroy(lexicon);
    lexicon = read_text("one 1 2\ntwo 1\n", NULL); /* phones may be numbers */
    check_word(lexicon, "one", "1 2");
    shoal_lexicon_destroy(lexicon);
}

static void cmudict_is_read(void **state) {
    const char *text = ";;; # CMUdict\n## and more\nTHE  DH AH0\n"
                       "THE(2)  DH IY1 # weak\nTHE(3)  DH AH1\n(1) W AH1\n"
                       "A(B) EY2\nX(2)y EH3\n";
    shoal_lexicon *lexicon = read_text(text, NULL);
    check_word(lexicon, "THE", "DH AH | DH IY");
    check_word(lexicon, "(1)", "W AH");
    check_word(lexicon, "A(B)", "EY");
    check_word(lexicon, "X(2)y", "EH3");
    shoal_lexicon_destroy(lexicon);
    lexicon =
        read_text(text, &(shoal_lexicon_options){.size = sizeof(shoal_lexicon_options),
                                                 .keep_stress = 1});
    check_word(lexicon, "THE", "DH AH0 | DH IY1 | DH AH1");
    shoal_lexicon_destroy(lexicon);
}

static void phones_may_be_given(void **state) {
    static const char *const phones[] = {"Z", "SIL", "A"};
    const shoal_lexicon_options options = {.size = sizeof(shoal_lexicon_options),
                                           .phones = phones,
                                           .phone_count = 3};
    shoal_lexicon *lexicon = read_text("x A Z\n", &options);
    assert_string_equal(shoal_lexicon_phone(lexicon, 0), "Z");
    assert_string_equal(shoal_lexicon_phone(lexicon, 1), "A");
    assert_string_equal(shoal_lexicon_phone(lexicon, 2), "SIL");
    check_word(lexicon, "x", "A Z");
    shoal_lexicon_destroy(lexicon);
    const char *path = write_text("lexicon", "x A\ny B\n");
    assert_int_equal(shoal_lexicon_open(context, &path, 1, &options, &lexicon),
                     SHOAL_BAD_FILE);
    assert_non_null(
        strstr(shoal_context_message(context), "line 2: B is not a phone of"));
    static const char *const twice[] = {"A", "A"};
    assert_int_equal(
        shoal_lexicon_open(context, &path, 1,
                           &(shoal_lexicon_options){.size = sizeof(shoal_lexicon_options),
                                                    .phones = twice,
                                                    .phone_count = 2},
                           &lexicon),
        SHOAL_INVALID);
}

static void files_are_joined(void **state) {
    const char *paths[2] = {write_text("one", "a A\n"), write_text("two", "a B\nb B")};
    shoal_lexicon *lexicon;
    assert_int_equal(shoal_lexicon_open(context, paths, 2, NULL, &lexicon), SHOAL_OK);
    check_word(lexicon, "a", "A | B");
    check_word(lexicon, "b", "B");
    shoal_lexicon_destroy(lexicon);
}

static void bad_ones_are_named(void **state) {
    static const struct {
        const char *text, *message;
    } cases[] = {{"", "empty"},
                 {";;; only\n", "1 to 2147483647 words"},
                 {"a A\nb\n", "line 2: b has no phones"},
                 {"a # A\n", "line 1: a has no phones"},
                 {"a 1.0 A\nb B\n", "line 1: 1.0 is not a phone"},
                 {"a A\n\nd\xe9j\xe0 D\n", "line 3: is not UTF-8"},
                 {"a A\nb\x01 B\n", "line 2: contains control characters"},
                 {"a A\nb \xc2\x92"
                  "B\n",
                  "line 2: contains control characters"},
                 {"a \xc2"
                  "A\n",
                  "line 1: is not UTF-8"}};
    shoal_lexicon *lexicon;
    for (int64_t i = 0; i < COUNT_OF(cases); i++) {
        const char *path = write_text("bad", cases[i].text);
        assert_int_equal(shoal_lexicon_open(context, &path, 1, NULL, &lexicon),
                         SHOAL_BAD_FILE);
        assert_null(lexicon);
        if (!strstr(shoal_context_message(context), cases[i].message))
            fail_msg("%s", shoal_context_message(context));
    }
    const char *path = "/nowhere/lexicon";
    assert_int_not_equal(shoal_lexicon_open(context, &path, 1, NULL, &lexicon), SHOAL_OK);
    assert_int_equal(shoal_lexicon_open(context, NULL, 1, NULL, &lexicon), SHOAL_INVALID);
    shoal_lexicon_destroy(NULL);
}

/* A gigabyte without a line end is rejected without reading it into memory; the file is
   sparse. */
static void a_huge_line_is_refused(void **state) {
    const char *path = write_text("huge", "a A\nb ");
    assert_int_equal(truncate(path, (off_t)1 << 30), 0);
    shoal_lexicon *lexicon;
    assert_int_equal(shoal_lexicon_open(context, &path, 1, NULL, &lexicon),
                     SHOAL_BAD_FILE);
    assert_non_null(
        strstr(shoal_context_message(context), "line 2: is longer than 65536"));
    unlink(path);
}

static int set_up(void **state) {
    folder = make_folder();
    return shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int tear_down(void **state) {
    shoal_context_destroy(context);
    remove_folder(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kaldi_is_read),
        cmocka_unit_test(probabilities_are_passed_over),
        cmocka_unit_test(cmudict_is_read),
        cmocka_unit_test(phones_may_be_given),
        cmocka_unit_test(files_are_joined),
        cmocka_unit_test(bad_ones_are_named),
        cmocka_unit_test(a_huge_line_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
