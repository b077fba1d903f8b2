/* Language models: ARPA text and Sphinx's binary format, their probabilities and
   errors. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "cases.h"
#include "speech/words/ngram.h"
#include "sphinx_file.h"

static shoal_context *context;

#define SMALL                                                                            \
    "made by hand\n\n\\data\\\nngram 1=5\nngram 2=4\nngram 3=2\n\n"                      \
    "\\1-grams:\n-1.0 </s>\n-99 <s> -0.3\n-0.6 a -0.2\n-0.7 b -0.1\n-1.5 c\n\n"          \
    "\\2-grams:\n-0.3 <s> a -0.05\n-0.4 a b -0.25\n-0.8 a </s>\n-0.2 b </s>\n\n"         \
    "\\3-grams:\n-0.11 <s> a b\n-0.12 a b </s>\n\n\\end\\\n"

static shoal_ngram *parse(const char *text) {
    shoal_ngram *model;
    if (sh_arpa_parse(context, "test", text, strlen(text), &model) != SHOAL_OK ||
        sh_ngram_finish(model, "test") != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return model;
}

/* Log10 of the probability of the last of some words. */
static double score(const shoal_ngram *model, const char *text) {
    int64_t words[8], count = 0;
    char copy[80];
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " ")) {
        words[count] = shoal_ngram_word(model, word);
        assert_true(words[count++] >= 0);
    }
    return shoal_ngram_score(model, words, count) / log(10);
}

static void a_small_model_backs_off(void **state) {
    (void)state;
    static const struct {
        const char *words;
        double log10;
    } cases[] = {{"a", -0.6},
                 {"<s> a", -0.3},
                 {"<s> b", -0.3 - 0.7},
                 {"<s> a b", -0.11},
                 {"<s> a </s>", -0.05 - 0.8},
                 {"<s> a c", -0.05 - 0.2 - 1.5},
                 {"a b </s>", -0.12},
                 {"c b </s>", -0.2},
                 {"a b a", -0.25 - 0.1 - 0.6},
                 {"c c a", -0.6},
                 {"b <s> a b </s>", -0.12}};
    shoal_ngram *model = parse(SMALL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (fabs(score(model, cases[i].words) - cases[i].log10) > 1e-6)
            fail_msg("%s: %g, not %g", cases[i].words, score(model, cases[i].words),
                     cases[i].log10);
    const shoal_ngram_info info = *shoal_ngram_describe(model);
    assert_int_equal(info.order, 3);
    assert_int_equal(info.words, 5);
    assert_int_equal(info.ngrams, 11);
    assert_int_equal(shoal_ngram_word(model, "d"), -1);
    assert_int_equal(shoal_ngram_word(model, ""), -1);
    shoal_ngram_destroy(model);
}

/* Files may have n-grams in any order. */
static void order_does_not_matter(void **state) {
    (void)state;
    shoal_ngram *model = parse(
        "\\data\\\r\nngram 1=3\r\nngram 2=4\r\n\\1-grams:\n-1\t<s>\t-0.5\n-1 </s>\n"
        "-1 a -0.25\n\\2-grams:\n-0.1 a a\n-0.2\t<s> a\n-0.3  <s>   </s> \n-0.4 a </s>\n"
        "\\end\\");
    assert_true(fabs(score(model, "a a") + 0.1) < 1e-6);
    assert_true(fabs(score(model, "<s> a") + 0.2) < 1e-6);
    assert_true(fabs(score(model, "<s> </s>") + 0.3) < 1e-6);
    assert_true(fabs(score(model, "a </s>") + 0.4) < 1e-6);
    shoal_ngram_destroy(model);
}

/* Both functions give the same sum over a sentence. */
static void steps_are_probabilities(void **state) {
    (void)state;
    shoal_ngram *model = parse(SMALL);
    for (int n = 0; n < 400; n++) {
        int32_t plain = 1 + model->begin, quick = plain;
        double sum = 0, sum_quick = 0;
        for (int i = n; i > 0; i /= 4) {
            const int32_t word = model->begin + 1 + i % 4 % 3;
            sum += (double)sh_ngram_next(model, plain, word, &plain);
            sum_quick += (double)sh_ngram_step(model, quick, word, &quick);
        }
        sum += (double)sh_ngram_next(model, plain, model->end, &plain);
        sum_quick += (double)sh_ngram_next(model, quick, model->end, &quick);
        assert_true(fabs(sum - sum_quick) < 1e-4);
    }
    shoal_ngram_destroy(model);
}

/* Replaces the first `from` in SMALL. */
static char *changed(const char *from, const char *to) {
    static char text[2048];
    const char *at = strstr(SMALL, from);
    assert_non_null(at);
    snprintf(text, sizeof text, "%.*s%s%s", (int)(at - SMALL), SMALL, to,
             at + strlen(from));
    return text;
}

static void bad_files_name_their_line(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"\\data\\", "data", "ends before a line \\data\\"},
        {"ngram 1=5", "ngram 1=4", "line 13: there are more 1-grams"},
        {"ngram 1=5", "ngram 1=6", "line 15: the 1-grams end after 5"},
        {"ngram 1=5", "ngram 1=", "line 4: 'ngram 1=' does not"},
        {"ngram 1=5", "ngram 1=-1", "line 4: -1 is not a valid number"},
        {"ngram 1=5", "ngram 1=99999999999", "line 4: 99999999999 is not a valid number"},
        {"ngram 1=5", "ngram 2=5", "line 4: the count of 1-grams"},
        {"ngram 3=2", "ngram 3=2\nngram 4=0", "instead of \\4-grams:"},
        {"\\1-grams:", "\\2-grams:", "line 8: '\\2-grams:' instead of \\1-grams:"},
        {"-0.6 a -0.2", "-0.6 a -0.2 x", "line 11: a 1-gram has"},
        {"-0.6 a -0.2", "-0.6", "line 11: a 1-gram has"},
        {"-0.6 a -0.2", "nan a -0.2", "line 11: 'nan' is not the logarithm"},
        {"-0.6 a -0.2", "0.6 a -0.2", "line 11: '0.6' is not the logarithm"},
        {"-0.6 a -0.2", "-0.6 a nan", "line 11: 'nan' is not a back-off"},
        {"-0.6 a -0.2", "-0.6x a -0.2", "line 11: '-0.6x' is not the logarithm"},
        {"-0.6 a -0.2", "-0.6 b -0.2", "line 12: duplicate word 'b'"},
        {"-0.4 a b -0.25", "-0.4 a d", "line 17: the word 'd' is not among"},
        {"-0.8 a </s>", "-0.4 a b", "line 18: duplicate 2-gram"},
        {"-0.11 <s> a b", "-0.11 c a b", "line 22: the 3-gram begins with words"},
        {"-0.11 <s> a b", "-0.11 <s> a b -0.3", "line 22: a 3-gram has a number and"},
        {"-0.12 a b </s>", "-0.12 <s> a b", "line 23: duplicate 3-gram"},
        {"\\end\\", "", "ends before \\end\\"},
        {"\\end\\", "\\4-grams:", "line 25: '\\4-grams:' instead of \\end\\"},
        {"</s>\n-99", "x\n-99", "the word '</s>' is not among"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = changed(cases[i][0], cases[i][1]);
        shoal_ngram *model;
        assert_int_equal(sh_arpa_parse(context, "test", text, strlen(text), &model),
                         SHOAL_BAD_FILE);
        if (!strstr(shoal_context_message(context), cases[i][2]))
            fail_msg("'%s' is not in '%s'", cases[i][2], shoal_context_message(context));
        shoal_ngram_destroy(model);
    }
}

static void no_sentences_are_refused(void **state) {
    (void)state;
    static const char text[] = "\\data\\\nngram 1=1\n\\1-grams:\n0 a\n\\end\\\n";
    shoal_ngram *model;
    assert_int_equal(sh_arpa_parse(context, "test", text, strlen(text), &model),
                     SHOAL_OK);
    assert_int_equal(sh_ngram_finish(model, "test"), SHOAL_BAD_FILE);
    assert_non_null(strstr(shoal_context_message(context), "has no <s>"));
    shoal_ngram_destroy(model);
}

/* ---- Files ------------------------------------------------------------------------- */

static const char *path_of(const char *name) {
    static char path[300];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/shoal-ngram-%d-%s", folder ? folder : "/tmp",
             (int)getpid(), name);
    return path;
}

/* Compressed by gzip, or plain. */
static void write_lm(const char *path, const char *mode, const char *text, size_t times) {
    gzFile file = gzopen(path, mode);
    assert_non_null(file);
    for (size_t i = 0; i < times; i++)
        assert_int_equal(gzwrite(file, text, (unsigned)strlen(text)), strlen(text));
    assert_int_equal(gzclose(file), Z_OK);
}

static void refused(const char *path, const char *why) {
    shoal_ngram *model;
    assert_int_not_equal(shoal_ngram_open(context, path, &model), SHOAL_OK);
    assert_null(model);
    if (!strstr(shoal_context_message(context), why))
        fail_msg("'%s' is not in '%s'", why, shoal_context_message(context));
}

static void files_plain_and_compressed(void **state) {
    (void)state;
    const char *path = path_of("small");
    shoal_ngram *model;
    for (int i = 0; i < 2; i++) {
        write_lm(path, i ? "wb9" : "wbT", SMALL, 1);
        assert_int_equal(shoal_ngram_open(context, path, &model), SHOAL_OK);
        assert_true(fabs(score(model, "<s> a b") + 0.11) < 1e-6);
        shoal_ngram_destroy(model);
    }
    assert_int_equal(truncate(path, 60), 0); /* in the middle of the compressed text */
    refused(path, "line ");
    write_lm(path, "wb1", "0123456789abcdef0123456789abcdef", 1 << 15); /* 1 MB */
    refused(path, "line 1: is longer than");
    unlink(path);
    refused(path, path);
    refused("/", "/");
}

/* ---- The binary format ------------------------------------------------------------ */

static void sphinx_file_is_read(void **state) {
    (void)state;
    size_t size;
    unsigned char *bytes = make_sphinx_file(&size);
    shoal_ngram *model;
    assert_int_equal(sh_sphinx_parse(context, "test", bytes, size, &model), SHOAL_OK);
    assert_int_equal(sh_ngram_finish(model, "test"), SHOAL_OK);
    assert_true(fabs(score(model, "a") + 0.6) < 1e-4);
    assert_true(fabs(score(model, "<s> a") + 0.3) < 1e-4);
    assert_true(fabs(score(model, "<s> b") + 0.3 + 0.7) < 1e-4);
    assert_true(fabs(score(model, "<s> a b") + 0.11) < 1e-4);
    assert_true(fabs(score(model, "a b </s>") + 0.12) < 1e-4);
    assert_true(fabs(score(model, "a b a") + 0.25 + 0.1 + 0.6) < 1e-4);
    assert_int_equal(shoal_ngram_describe(model)->ngrams, 11);
    shoal_ngram_destroy(model);
    free(bytes);
}

/* Truncated anywhere it is rejected; any changed byte does not cause a crash. */
static void damaged_sphinx_files(void **state) {
    (void)state;
    size_t size;
    unsigned char *bytes = make_sphinx_file(&size);
    shoal_ngram *model;
    const size_t tables = 36 + 3 * 65536 * 4;
    for (size_t cut = 0; cut < size; cut = cut < 36 || cut >= tables ? cut + 1 : tables) {
        unsigned char *part = malloc(cut + 1);
        assert_non_null(part);
        memcpy(part, bytes, cut);
        assert_int_equal(sh_sphinx_parse(context, "test", part, cut, &model),
                         SHOAL_BAD_FILE);
        shoal_ngram_destroy(model);
        free(part);
    }
    for (size_t at = tables; at < size; at++) {
        bytes[at] ^= 0x55;
        const shoal_status status = sh_sphinx_parse(context, "test", bytes, size, &model);
        assert_true(status == SHOAL_OK || status == SHOAL_BAD_FILE);
        shoal_ngram_destroy(model);
        bytes[at] ^= 0x55;
    }
    free(bytes);
}

/* ---- A real model ----------------------------------------------------------------- */

static const char english[] = "/usr/share/pocketsphinx/model/en-us/en-us.lm.bin";

static shoal_ngram *open_english(void) {
    shoal_ngram *model = NULL;
    if (access(english, R_OK) != 0) {
        printf("%s is not there (Debian's pocketsphinx-en-us)\n", english);
        skip();
    }
    if (shoal_ngram_open(context, english, &model) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    return model;
}

/* After a history the probabilities of all words sum to 1. */
static double sum_after(const shoal_ngram *model, int32_t state) {
    double sum = 0;
    int32_t next;
    for (int32_t word = 0; word < model->word_count; word++)
        sum += exp((double)sh_ngram_next(model, state, word, &next));
    return sum;
}

static void english_is_whole(void **state) {
    (void)state;
    shoal_ngram *model = open_english();
    const shoal_ngram_info info = *shoal_ngram_describe(model);
    assert_int_equal(info.words, 72547);
    assert_int_equal(info.ngrams, 72547 + 2051541 + 1669625);
    assert_true(info.bytes < 120000000);
    assert_true(fabs(sum_after(model, 0) - 1) < 1e-3);
    static const char *const words[] = {"of", "the", "window", "<s>"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const double sum =
            sum_after(model, 1 + (int32_t)shoal_ngram_word(model, words[i]));
        if (fabs(sum - 1) > 2e-3)
            fail_msg("after %s: %g", words[i], sum);
    }
    shoal_ngram_destroy(model);
}

/* Compares both formats of one model on random words, up to the five digits of the
   text. */
static void compare_models(const shoal_ngram *one, const shoal_ngram *other) {
    uint64_t draw = 1;
    const int64_t count = one->word_count;
    for (int i = 0; i < 100000; i++) {
        int64_t words[3], others[3];
        int32_t state = 0;
        for (int k = 0; k < 3; k++) {
            /* half of the time a word that follows the history in the model */
            const int level = state == 0 ? 0 : state < one->first_states[2] ? 1 : 2;
            const int64_t entry = state - one->first_states[level];
            const int32_t *begin = level ? one->levels[level].children + entry : NULL;
            draw = draw * 6364136223846793005u + 1442695040888963407u;
            words[k] = (int64_t)((draw >> 33) % (uint64_t)count);
            if ((draw >> 32 & 1) && begin && begin[1] > begin[0])
                words[k] =
                    one->levels[level + 1]
                        .words[begin[0] + (int32_t)(draw >> 33) % (begin[1] - begin[0])];
            others[k] = shoal_ngram_word(other, sh_ngram_text(one, (int32_t)words[k]));
            assert_true(others[k] >= 0);
            sh_ngram_next(one, state, (int32_t)words[k], &state);
        }
        const double a = shoal_ngram_score(one, words, 3);
        const double b = shoal_ngram_score(other, others, 3);
        if (fabs(a - b) > 5e-5)
            fail_msg("%s %s %s: %g and %g", sh_ngram_text(one, (int32_t)words[0]),
                     sh_ngram_text(one, (int32_t)words[1]),
                     sh_ngram_text(one, (int32_t)words[2]), a, b);
    }
}

/* Compares with the ARPA output of an independent reader of the binary format: a model
   of phones, or the model and text of SHOAL_LM and SHOAL_ARPA. */
static void as_another_reader_has_it(void **state) {
    (void)state;
    const char *binary = getenv("SHOAL_LM"), *text = getenv("SHOAL_ARPA");
    const char *path = path_of("phones.arpa");
    char command[1000];
    shoal_ngram *one = NULL, *other = NULL;
    if (!binary)
        binary = "/usr/share/pocketsphinx/model/en-us/en-us-phone.lm.bin";
    if (!text) {
        snprintf(command, sizeof command, "python3 %s/../shared/tools/pslm %s %s 2>&1",
                 SHOAL_SOURCE_DIR, binary, path);
        if (access(binary, R_OK) != 0 || system(command) != 0) {
            printf("needs pocketsphinx-en-us, numpy and ../shared/tools/pslm\n");
            unlink(path);
            skip();
        }
        text = path;
    }
    if (shoal_ngram_open(context, binary, &one) != SHOAL_OK ||
        shoal_ngram_open(context, text, &other) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    unlink(path);
    assert_int_equal(shoal_ngram_describe(one)->ngrams,
                     shoal_ngram_describe(other)->ngrams);
    compare_models(one, other);
    shoal_ngram_destroy(one);
    shoal_ngram_destroy(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_model_backs_off),
        cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(steps_are_probabilities),
        cmocka_unit_test(bad_files_name_their_line),
        cmocka_unit_test(no_sentences_are_refused),
        cmocka_unit_test(files_plain_and_compressed),
        cmocka_unit_test(sphinx_file_is_read),
        cmocka_unit_test(damaged_sphinx_files),
        cmocka_unit_test(english_is_whole),
        cmocka_unit_test(as_another_reader_has_it),
    };
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    shoal_context_destroy(context);
    return failed;
}
