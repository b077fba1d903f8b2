/* Word errors: normalisation of text, and counting of edits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "speech/words/normalise.h"

static shoal_context *context;

static void texts_become_normal(void **state) {
    static const char *const cases[][2] = {
        {"", ""},
        {"  Hello,   WORLD!  ", "hello world"},
        {"Mr. Brown's dog -- it won't bite.", "mister brown is dog it will not bite"},
        {"I\xe2\x80\x99m sure they\xe2\x80\x99ve gone; can't we?",
         "i am sure they have gone can not we"},
        {"he'd said we're o'clock 'tis boys'", "he would said we are o clock tis boys"},
        {"[music] so (laughs) it <b>is", "so it is"},
        {"an [open bracket", "an open bracket"},
        {"Uh, um, well, hmm.", "well"},
        {"caf\xc3\xa9 na\xc3\xafve \xc5\x92uvre \xc3\x9f", "cafe naive oeuvre ss"},
        {"e\xcc\x81t\xc3\xa9", "ete"},
        {"The colour of the centre was realised, organising neighbours",
         "the color of the center was realized organizing neighbors"},
        {"twenty one", "21"},
        {"twenty-one", "21"},
        {"one hundred and two and three", "102 and 3"},
        {"a hundred and", "a 100 and"},
        {"two thousand three hundred and forty five", "2345"},
        {"three million", "3000000"},
        {"five hundred thousand", "500000"},
        {"2.5 million", "2500000"},
        {"nineteen eighty four", "1984"},
        {"eighteen twelve", "1812"},
        {"twenty twenty", "2020"},
        {"one two three", "1 2 3"},
        {"the twenty first of may", "the 21st of may"},
        {"first second third eleventh", "1st 2nd 3rd 11th"},
        {"one hundredth", "100th"},
        {"ten thousand and", "10000 and"},
        {"zero zero seven", "0 0 7"},
        {"1,234.5 and 3. Then", "1234.5 and 3 then"},
        {"$20, 5% & \xc2\xa3"
         "3 million",
         "20 dollars 5 percent and 3000000 pounds"},
        {"\xe4\xbd\xa0\xe5\xa5\xbd\xe3\x80\x82 \xd0\x9f",
         "\xe4\xbd\xa0\xe5\xa5\xbd \xd0\x9f"},
        {"\xff\xfe ok \xc3", "ok"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256], again[256];
        size_t length = sh_normalise_words(cases[i][0], text, sizeof text);
        if (strcmp(text, cases[i][1]) != 0)
            fail_msg("'%s' became '%s', not '%s'", cases[i][0], text, cases[i][1]);
        assert_int_equal(length, strlen(text));
        assert_int_equal(sh_normalise_words(cases[i][0], NULL, 0), length);
        sh_normalise_words(cases[i][0], again, 3);
        assert_true(strlen(again) <= 2 && strncmp(again, text, strlen(again)) == 0);
    }
}

static void long_words_are_cut(void **state) {
    enum { LONG = 1000 };
    char *word = malloc(LONG + 1), *text = malloc(2 * LONG);
    memset(word, 'x', LONG);
    word[LONG] = 0;
    assert_int_equal(sh_normalise_words(word, text, 2 * LONG), LONG + 3);
    memset(word, '9', LONG);
    assert_int_equal(sh_normalise_words(word, text, 2 * LONG), LONG + 3);
    free(word);
    free(text);
}

/* Arbitrary bytes give a result within bounds. */
static void any_bytes_are_taken(void **state) {
    char text[64], normal[1024];
    uint64_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        size_t size = 0;
        for (; size < 40; size++) {
            static const char likely[] = "a1 .,'$%&[]()<>-\xc3\xa9\xe2\x80\x99two and ";
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            unsigned pick = (unsigned)(seed >> 33);
            text[size] = pick % 5 ? likely[pick / 8 % (sizeof likely - 1)]
                                  : (char)(pick / 8 % 255 + 1);
        }
        text[size] = 0;
        size_t length = sh_normalise_words(text, normal, sizeof normal);
        assert_true(length == strlen(normal) && !strstr(normal, "  "));
        assert_true(length == 0 || (normal[0] != ' ' && normal[length - 1] != ' '));
    }
}

static void edits_are_counted(void **state) {
    static const struct {
        const char *reference, *hypothesis;
        shoal_word_errors errors;
    } cases[] = {
        {"", "", {0, 0, 0, 0}},
        {"a b c", "a b c", {3, 0, 0, 0}},
        {"a b c", "", {3, 0, 0, 3}},
        {"", "a b", {0, 0, 2, 0}},
        {"a b c d", "a x c d", {4, 1, 0, 0}},
        {"a b c d", "a c d e", {4, 0, 1, 1}},
        {"a b", "c d", {2, 2, 0, 0}},
        {"the cat sat on the mat", "cat sat at on mat today", {6, 2, 1, 1}},
        {" a  b ", "ab", {2, 1, 0, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_word_errors errors = {0};
        const int64_t ends = 0; /* the last part ends with the reference */
        assert_int_equal(sh_count_edits(context, cases[i].reference, &ends, 1,
                                        cases[i].hypothesis, &errors),
                         SHOAL_OK);
        assert_memory_equal(&errors, &cases[i].errors, sizeof errors);
    }
}

static void errors_add_up(void **state) {
    shoal_word_errors errors = {0};
    assert_int_equal(shoal_count_word_errors(context, "It's TWENTY ONE, sir.",
                                             "it is 21 sir", &errors),
                     SHOAL_OK);
    assert_true(errors.words == 4 && errors.substitutions == 0 &&
                errors.insertions == 0 && errors.deletions == 0);
    assert_int_equal(shoal_count_word_errors(context, "one more", "no more now", &errors),
                     SHOAL_OK);
    assert_true(errors.words == 6 && errors.substitutions == 1 &&
                errors.insertions == 1 && errors.deletions == 0);
    assert_int_equal(shoal_count_word_errors(context, "a", NULL, &errors), SHOAL_INVALID);
}

/* Each error belongs to one part, and their sum is that of the whole. */
static void errors_fall_on_parts(void **state) {
    static const struct {
        const char *parts[3], *text;
        shoal_word_errors errors[3];
    } cases[] = {
        {{"a b", "c", "d e"}, "a b c d e", {{2, 0, 0, 0}, {1, 0, 0, 0}, {2, 0, 0, 0}}},
        {{"a b", "c", "d e"}, "a b", {{2, 0, 0, 0}, {1, 0, 0, 1}, {2, 0, 0, 2}}},
        {{"a b", "c", "d e"}, "x b c y d f", {{2, 1, 0, 0}, {1, 0, 1, 0}, {2, 1, 0, 0}}},
        {{"a b", "", "d e"}, "x a b d e x", {{2, 0, 1, 0}, {0, 0, 0, 0}, {2, 0, 1, 0}}},
        {{"", "c", "d"}, "x c d", {{0, 0, 1, 0}, {1, 0, 0, 0}, {1, 0, 0, 0}}},
        {{"", "", ""}, "x", {{0, 0, 1, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}},
        {{"it is twenty", "one of", "us"}, /* a number across the end belongs to the
                                              first */
         "it is 21 of them",
         {{3, 0, 0, 0}, {1, 0, 0, 0}, {1, 1, 0, 0}}},
        {{"one hundred and", "two", ""}, "102", {{1, 0, 0, 0}, {0, 0, 0, 0}, {0}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        shoal_word_errors found[3] = {{0}}, whole = {0};
        char joined[100];
        assert_int_equal(shoal_count_part_errors(context, cases[i].parts, 3,
                                                 cases[i].text, found),
                         SHOAL_OK);
        for (int part = 0; part < 3; part++) {
            const shoal_word_errors *e = &found[part];
            if (memcmp(e, &cases[i].errors[part], sizeof *e) != 0)
                fail_msg("case %zu, part %d: %d words, %d %d %d", i, part, (int)e->words,
                         (int)e->substitutions, (int)e->insertions, (int)e->deletions);
            whole.substitutions -= e->substitutions;
            whole.insertions -= e->insertions;
            whole.deletions -= e->deletions;
            whole.words -= e->words;
        }
        snprintf(joined, sizeof joined, "%s %s %s", cases[i].parts[0], cases[i].parts[1],
                 cases[i].parts[2]);
        assert_int_equal(shoal_count_word_errors(context, joined, cases[i].text, &whole),
                         SHOAL_OK);
        assert_true(whole.words == 0 && whole.substitutions == 0 &&
                    whole.insertions == 0 && whole.deletions == 0);
    }
    const char *const missing[] = {"a", NULL};
    shoal_word_errors errors[2] = {{0}};
    assert_int_equal(shoal_count_part_errors(context, missing, 2, "a", errors),
                     SHOAL_INVALID);
    assert_int_equal(shoal_count_part_errors(context, missing, 0, "a", errors),
                     SHOAL_INVALID);
}

static int begin(void **state) {
    return shoal_context_create(NULL, &context) != SHOAL_OK;
}

static int end(void **state) {
    shoal_context_destroy(context);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_become_normal), cmocka_unit_test(long_words_are_cut),
        cmocka_unit_test(any_bytes_are_taken), cmocka_unit_test(edits_are_counted),
        cmocka_unit_test(errors_add_up),       cmocka_unit_test(errors_fall_on_parts),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
