/* Lattice-free MMI on transcripts of real recordings: values and gradients of the plain
   reference for one utterance of 500 steps. With SHOAL_TIMES in the environment it also
   prints the time of both passes. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cases.h"
#include "folders.h"
#include "speech/recogniser/lfmmi.h"
#include "support.h"

enum { STEPS = 500, OUTPUTS = 80, SEEN = 6, MOST_WORDS = 100000, MOST_TEXTS = 2000 };

/* y[t][n] = 2 sin(0.37 t + 1.13 n), leak 0.1. */
static const struct {
    int32_t order;
    int64_t extra;
    bool whole;
    double num, den;
    double size;    /* sum of the gradient's magnitudes */
    float at[SEEN]; /* some of its elements */
} golden[] = {
    {3,
     -1,
     0,
     267.193268,
     826.308141,
     690.9434,
     {0.396507f, -0.007063f, -0.033747f, -0.000566f, -0.016784f, 0.032952f}},
    {3,
     -1,
     1,
     265.453129,
     820.390859,
     677.3820,
     {0.242548f, -0.007064f, -0.033435f, -0.000566f, -0.016784f, 0.370396f}},
    {4,
     2000,
     0,
     348.041140,
     827.509004,
     702.6138,
     {0.464601f, -0.007233f, -0.038593f, -0.000543f, -0.016312f, 0.040623f}},
    {4,
     2000,
     1,
     346.695399,
     821.626008,
     688.7971,
     {0.237632f, -0.007242f, -0.038349f, -0.000543f, -0.016312f, 0.351456f}},
};
static const int places[SEEN][2] = {{0, 78},  {17, 3},   {100, 40},
                                    {250, 7}, {333, 26}, {499, 79}};

static shoal_context *context;
static shoal_lexicon *lexicon;
static int64_t offsets[MOST_TEXTS + 1], texts, utterance = -1;
static char *spellings[MOST_WORDS];
static int32_t words[MOST_WORDS];

/* "WORD:P.P.P" is a word of that pronunciation. */
static void add_word(FILE *out, const char *word) {
    const char *phones = strchr(word, ':');
    assert_true(phones && offsets[texts + 1] < MOST_WORDS);
    spellings[offsets[texts + 1]++] = strdup(word);
    fprintf(out, "%s ", word);
    for (phones++; *phones; phones++)
        fputc(*phones == '.' ? ' ' : *phones, out);
    fputc('\n', out);
}

static void read_transcripts(const char *path, const char *out_path) {
    FILE *in = fopen(path, "r"), *out = fopen(out_path, "w");
    char *line = NULL, *rest;
    size_t room = 0;
    assert_true(in && out);
    while (getline(&line, &room, in) > 0) {
        const char *word = strtok_r(line, " \n", &rest);
        assert_true(texts < MOST_TEXTS);
        if (strcmp(word, "1088-134315-0041") == 0)
            utterance = texts;
        offsets[texts + 1] = offsets[texts];
        while ((word = strtok_r(NULL, " \n", &rest)))
            add_word(out, word);
        texts++;
    }
    free(line);
    fclose(in);
    fclose(out);
    assert_true(utterance >= 0);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1e3 * (double)time.tv_sec + 1e-6 * (double)time.tv_nsec;
}

/* The best of ten, for verified results. */
static void tell_times(const den_graph *den, const num_graph *num, const float *y,
                       lfmmi_scratch *scratch, float *gradient) {
    double of_num = INFINITY, of_den = INFINITY, ignored;
    for (int i = 0; i < 10 && getenv("SHOAL_TIMES"); i++) {
        const double begun = now();
        sh_num_pass(sh_model_kernels(context), num, y, STEPS, OUTPUTS, scratch, &ignored,
                    gradient, 1);
        const double middle = now();
        sh_den_pass(den, 0.1f, y, STEPS, OUTPUTS, scratch, &ignored, gradient, -1);
        of_num = fmin(of_num, middle - begun);
        of_den = fmin(of_den, now() - middle);
    }
    if (isfinite(of_num))
        print_message("# %d states: numerator %.2f ms, denominator %.2f ms, %.2f MB\n",
                      (int)den->states, of_num, of_den,
                      1e-6 * (double)(scratch->row_room + scratch->small_room));
}

static void check_case(int64_t which) {
    static float y[STEPS * OUTPUTS], gradient[STEPS * OUTPUTS];
    const int64_t first = offsets[utterance], count = offsets[utterance + 1] - first;
    const phone_texts all = {lexicon, texts, offsets, words};
    lfmmi_scratch scratch = {0};
    double num_log, den_log, size = 0;
    den_graph den;
    num_graph num;
    phone_lm lm;
    memset(gradient, 0, sizeof gradient);
    for (int t = 0; t < STEPS; t++)
        for (int n = 0; n < OUTPUTS; n++)
            y[t * OUTPUTS + n] = (float)(2 * sin(0.37 * t + 1.13 * n));
    assert_int_equal(sh_phone_lm_make(context, &all, golden[which].order,
                                      golden[which].extra, &lm),
                     SHOAL_OK);
    assert_true(sh_den_make(NULL, &lm, SHOAL_TOPOLOGY_CHAIN, golden[which].whole, &den));
    assert_true(sh_num_make(NULL, &lm, &den, SHOAL_TOPOLOGY_CHAIN, lexicon, words + first,
                            count, &num));
    assert_true(sh_num_pass(sh_model_kernels(context), &num, y, STEPS, OUTPUTS, &scratch,
                            &num_log, gradient, 1));
    assert_true(
        sh_den_pass(&den, 0.1f, y, STEPS, OUTPUTS, &scratch, &den_log, gradient, -1));
    for (int64_t i = 0; i < STEPS * OUTPUTS; i++)
        size += fabs((double)gradient[i]);
    print_message("# order %d: log num %.6f (%.6f), log den %.6f (%.6f)\n",
                  (int)golden[which].order, num_log, golden[which].num, den_log,
                  golden[which].den);
    assert_true(fabs(num_log - golden[which].num) < 1e-4);
    assert_true(fabs(den_log - golden[which].den) < 1e-4);
    assert_true(fabs(size - golden[which].size) < 0.01);
    for (int i = 0; i < SEEN; i++)
        assert_true(fabsf(gradient[places[i][0] * OUTPUTS + places[i][1]] -
                          golden[which].at[i]) < 1e-5f);
    tell_times(&den, &num, y, &scratch, gradient);
    sh_free(scratch.rows), sh_free(scratch.gradient), sh_free(scratch.small);
    sh_num_free(&num);
    sh_den_free(&den);
    sh_phone_lm_free(&lm);
}

static void values_are_golden(void **state) {
    const char *path = test_data("librispeech/train/words");
    if (!path) {
        print_message("# skipped: ../shared/data/librispeech is not there\n");
        skip();
    }
    const char *folder = make_folder();
    char lexicon_path[512];
    const char *list[1] = {lexicon_path};
    snprintf(lexicon_path, sizeof lexicon_path, "%s/lexicon.txt", folder);
    read_transcripts(path, lexicon_path);
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    assert_int_equal(shoal_lexicon_open(context, list, 1, NULL, &lexicon), SHOAL_OK);
    for (int64_t i = 0; i < offsets[texts]; i++) {
        words[i] = (int32_t)shoal_lexicon_find(lexicon, spellings[i]);
        assert_true(words[i] >= 0);
        free(spellings[i]);
    }
    for (int64_t i = 0; i < COUNT_OF(golden); i++)
        check_case(i);
    shoal_lexicon_destroy(lexicon);
    shoal_context_destroy(context);
    remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(values_are_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
