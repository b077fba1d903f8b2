/* Subword units: learned from words, and words spelled with the fewest of them. */
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "speech/recogniser/corpus.h"

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static subwords learn(int64_t most) {
    static const struct {
        const char *word;
        int count;
    } words[] = {{"low", 5}, {"lower", 2}, {"newest", 6}, {"widest", 3}, {"é", 1}};
    subwords s = {0};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int k = 0; k < words[i].count; k++)
            assert_true(sh_subwords_add(&s, words[i].word));
    assert_true(sh_subwords_learn(&s, most));
    return s;
}

/* The spelling, with '|' between units; "" if it is impossible. */
static const char *spell(const subwords *s, const char *word) {
    static char text[256];
    int32_t numbers[SUBWORDS_MOST];
    const int count = sh_subwords_spell(s->units, s->unit_count, word, numbers);
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        strcat(text, i ? "|" : "");
        strcat(text, s->units[numbers[i]]);
    }
    return text;
}

/* Sennrich's example: es, est and lo, low are the most frequent pairs. */
static void test_frequent_parts_become_units(void **state) {
    (void)state;
    subwords s = learn(17); /* the 12 letters, and five more */
    assert_int_equal(s.unit_count, 17);
    qsort(s.units, (size_t)s.unit_count, sizeof *s.units, compare);
    assert_string_equal(spell(&s, "lowest"), "_low|est");
    assert_string_equal(spell(&s, "widest"), "_|w|i|d|est");
    assert_string_equal(spell(&s, "é"), "_|é");
    assert_string_equal(spell(&s, "x"), "");
    sh_subwords_free(&s);
}

/* Without a limit every word that occurs twice becomes one unit; no pair remains. */
static void test_learning_ends(void **state) {
    (void)state;
    subwords s = learn(1000);
    qsort(s.units, (size_t)s.unit_count, sizeof *s.units, compare);
    assert_string_equal(spell(&s, "newest"), "_newest");
    assert_string_equal(spell(&s, "lower"), "_lower");
    assert_string_equal(spell(&s, "é"), "_|é");
    for (int64_t i = 1; i < s.unit_count; i++)
        assert_true(strcmp(s.units[i - 1], s.units[i]) < 0);
    sh_subwords_free(&s);
}

static void test_letters_alone(void **state) {
    (void)state;
    subwords s = learn(1);
    qsort(s.units, (size_t)s.unit_count, sizeof *s.units, compare);
    assert_string_equal(spell(&s, "low"), "_|l|o|w");
    sh_subwords_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frequent_parts_become_units),
        cmocka_unit_test(test_learning_ends),
        cmocka_unit_test(test_letters_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
