/* Metrics compared with values of scikit-learn, scipy and SQuAD's official program
   (bench/peers/text_scores.py compares them on real predictions). */
#include "train/tasks/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cases.h"
#include "support.h"

static void expect(double got, double wanted) {
    if (!(fabs(got - wanted) <= 1e-12))
        fail_msg("%.17g, and not %.17g", got, wanted);
}

static void classes(void **state) {
    const float predicted[] = {1, 0, 1, 1, 0, 0, 1, 0, 1, 1};
    const float wanted[] = {1, 0, 0, 1, 1, 0, 1, 1, 1, 0};
    expect(sh_text_metric(NULL, METRIC_ACCURACY, 10, predicted, wanted), 0.6);
    expect(sh_text_metric(NULL, METRIC_F1, 10, predicted, wanted), 2.0 / 3);
    expect(sh_text_metric(NULL, METRIC_MATTHEWS, 10, predicted, wanted),
           0.16666666666666666);
    const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    expect(sh_text_metric(NULL, METRIC_MATTHEWS, 10, ones, wanted), 0);
    expect(sh_text_metric(NULL, METRIC_F1, 10, ones, wanted), 0.75);
    expect(sh_text_metric(NULL, METRIC_ACCURACY, 0, NULL, NULL), 0);
    expect(sh_text_metric(NULL, METRIC_F1, 0, NULL, NULL), 0);
}

static void numbers(void **state) {
    const float predicted[] = {0.5f, 2.25f, 2.25f, 4, 3.5f, 1};
    const float wanted[] = {0, 3, 2, 5, 3, 1.5f};
    expect(sh_text_metric(NULL, METRIC_PEARSON, 6, predicted, wanted),
           0.9268010213382814);
    expect(sh_text_metric(NULL, METRIC_SPEARMAN, 6, predicted, wanted),
           0.9558823529411764);
    const float equal[] = {2, 2, 2, 2, 2, 2};
    expect(sh_text_metric(NULL, METRIC_PEARSON, 6, equal, wanted), 0);
    expect(sh_text_metric(NULL, METRIC_SPEARMAN, 6, equal, wanted), 0);
    expect(sh_text_metric(NULL, METRIC_PEARSON, 0, NULL, NULL), 0);
}

static void answers(void **state) {
    static const struct {
        const char *text, *normal;
    } rows[] = {
        {"The  Denver Broncos!", "denver broncos"},
        {"a an the", ""},
        {"An apple, a day; theatre", "apple day theatre"},
        {"a\xe2\x80\x93z", "\xe2\x80\x93z"}, /* an en dash is not a word */
        {"\xc3\x89t\xc3\xa9 the\xc3\xa9", "\xc3\xa9t\xc3\xa9 the\xc3\xa9"},
        {"24\xe2\x80\x93"
         "10",
         "24\xe2\x80\x93"
         "10"},
        {"U.S.A.", "usa"},
        {"the.", ""},
        {"x\xc2\xa0the\xc2\xa0y", "x y"},
        {"a_b _a", "ab"},
        {"\xff the", "\xff"},
    };
    for (int64_t i = 0; i < COUNT_OF(rows); i++) {
        char *normal = sh_squad_normalise(NULL, rows[i].text);
        assert_string_equal(normal, rows[i].normal);
        sh_free(normal);
    }
}

static void words_in_common(void **state) {
    expect(sh_squad_f1("denver broncos", "denver broncos"), 1);
    expect(sh_squad_f1("denver", "denver broncos"), 2.0 / 3);
    expect(sh_squad_f1("x x y", "x y y"), 2.0 / 3);
    expect(sh_squad_f1("den", "denver"), 0);
    expect(sh_squad_f1("", "x"), 0);
    expect(sh_squad_f1("x", ""), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes),
        cmocka_unit_test(numbers),
        cmocka_unit_test(answers),
        cmocka_unit_test(words_in_common),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
