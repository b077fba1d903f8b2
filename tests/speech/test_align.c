/* Words and their times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "small_whisper.h"
#include "speech/whisper/align.h"
#include "support.h"

/* ---- Dynamic time warping --------------------------------------------------------- */

/* The largest sum of a path from (row, column) to the last corner. */
static double best_from(const float *scores, int rows, int columns, int row, int column) {
    const double here = (double)scores[row * columns + column];
    double best = row == rows - 1 && column == columns - 1 ? 0 : -INFINITY;
    if (row + 1 < rows)
        best = fmax(best, best_from(scores, rows, columns, row + 1, column));
    if (column + 1 < columns)
        best = fmax(best, best_from(scores, rows, columns, row, column + 1));
    if (row + 1 < rows && column + 1 < columns)
        best = fmax(best, best_from(scores, rows, columns, row + 1, column + 1));
    return here + best;
}

/* Sum of the path that enters each row at `first`, and leaves it in the column where
   the next begins or in the one before. */
static double sum_of(const float *scores, int rows, int columns, const int32_t *first) {
    double sum = 0;
    for (int row = 0; row < rows; row++) {
        const int next = row + 1 < rows ? first[row + 1] : columns;
        double at_next = 0;
        for (int column = first[row]; column < next; column++)
            sum += (double)scores[row * columns + column];
        if (row + 1 < rows)
            at_next = (double)scores[row * columns + next];
        sum += next == first[row] ? at_next : fmax(at_next, 0);
    }
    return sum;
}

static void the_path_is_the_best(void **state) {
    for (int rows = 1; rows <= 5; rows++)
        for (int columns = 1; columns <= 6; columns++)
            for (uint64_t seed = 0; seed < 20; seed++) {
                float scores[30];
                unsigned char steps[30];
                double sums[14];
                int32_t first[5];
                for (int i = 0; i < rows * columns; i++)
                    scores[i] =
                        (float)((double)((seed * 7919 + (uint64_t)i * 104729) % 1009) /
                                    1009 -
                                0.5);
                sh_warp(scores, rows, columns, steps, sums, first);
                assert_int_equal(first[0], 0);
                for (int row = 1; row < rows; row++)
                    assert_true(first[row] >= first[row - 1] && first[row] < columns);
                assert_true(fabs(sum_of(scores, rows, columns, first) -
                                 best_from(scores, rows, columns, 0, 0)) < 1e-5);
            }
}

static void heads_are_the_published_ones(void **state) {
    decoder_head heads[32 * 20];
    whisper_sizes sizes = {.vocabulary = 51865, .text_layers = 4, .text_heads = 6};
    assert_int_equal(sh_alignment_heads(&sizes, heads), 6);
    assert_true(heads[0].layer == 2 && heads[0].head == 2 && heads[5].head == 5);
    sizes.vocabulary = 51864;
    assert_int_equal(sh_alignment_heads(&sizes, heads), 8);
    sizes = (whisper_sizes){.vocabulary = 51866, .text_layers = 32, .text_heads = 20};
    assert_int_equal(sh_alignment_heads(&sizes, heads), 10);
    sizes.text_layers = 5; /* of no published model: layers 2, 3 and 4 */
    assert_int_equal(sh_alignment_heads(&sizes, heads), 60);
    assert_true(heads[0].layer == 2 && heads[59].layer == 4 && heads[59].head == 19);
}

/* ---- Words ------------------------------------------------------------------------ */

static void words_have_their_marks(void **state) {
    const small_whisper model = {51865, true, 2, false, 0};
    opened o = open_small(&model, NULL, 1);
    const tokens *t = &o.speech->model->file->tokens;
    /* " wN" e-acute , " wN" .   and   " '" " wN" ) ! */
    const int32_t ids[] = {300, 0xc3, 0xa9, ',', 301, '.'};
    aligned_word words[6];
    assert_int_equal(sh_words_split(t, ids, 6, true, words), 4);
    assert_true(words[0].first == 0 && words[0].end == 3 && words[1].end == 4);
    assert_int_equal(sh_words_merge(t, ids, words, 4), 2);
    assert_true(words[0].first == 0 && words[0].end == 4);
    assert_true(words[1].first == 4 && words[1].end == 6);
    assert_int_equal(sh_words_split(t, ids, 6, false, words), 5); /* characters */
    assert_true(words[1].first == 1 && words[1].end == 3);
    assert_int_equal(sh_words_split(t, ids, 2, true, words), 1); /* half a character */
    assert_int_equal(sh_words_split(t, ids, 0, true, words), 0);
    assert_true(sh_language_has_spaces("en") && !sh_language_has_spaces("ja"));
    close_small(&o);
}

static void words_of_a_window_are_in_order(void **state) {
    const small_whisper model = {51865, true, 2, false, 0};
    aligned_word found[2][8];
    for (int threads = 1; threads <= 2; threads++) {
        opened o = open_small(&model, NULL, threads);
        const tokens *t = &o.speech->model->file->tokens;
        float *encoded = floats(1500 * SMALL_WIDTH);
        const int32_t ids[] = {t->first_timestamp,      300, 301, ',', 302, 303, '.',
                               t->first_timestamp + 100};
        const float logprobs[8] = {0, -0.5f, -1, -2, -0.1f, -3, -1, 0};
        const align_task task = {.tokens = t,
                                 .language = t->first_language,
                                 .spaces = true,
                                 .ids = ids,
                                 .logprobs = logprobs,
                                 .count = 8,
                                 .frames = 777};
        const aligned_word *words;
        aligner *a;
        make_samples(3, 1500 * SMALL_WIDTH, encoded);
        sh_decoder_hear(o.speech->decoder, 0, encoded);
        assert_int_equal(sh_aligner_create(o.context, o.speech->decoder,
                                           o.speech->model->file, &a),
                         SHOAL_OK);
        const int count = sh_align(a, &task, &words);
        assert_int_equal(count, 4);
        for (int i = 0; i < count; i++) {
            assert_true(words[i].begins >= 0 && words[i].ends >= words[i].begins);
            assert_true(words[i].ends <= 7.78);
            assert_true(i == 0 || words[i].begins >= words[i - 1].begins);
        }
        assert_true(words[1].first == 2 && words[1].end == 4); /* with its comma */
        assert_true(fabs(words[1].probability - exp(-1)) < 1e-6);
        const packed_window sound = {{{16000, 160000}}, 1, 144000};
        const shoal_word *said;
        assert_int_equal(sh_aligned_words(a, &task, &sound, 2, 5, &said), 2);
        assert_string_equal(said[0].text, " w301,");
        assert_string_equal(said[1].text, " w302");
        assert_true(fabs(said[0].begin - words[1].begins - 1) < 1e-9);
        assert_true(fabs(said[1].end - words[2].ends - 1) < 1e-9);
        memcpy(found[threads - 1], words, 4 * sizeof *words);
        const align_task nothing = {.tokens = t, .language = -1, .frames = 100};
        assert_int_equal(sh_align(a, &nothing, &words), 0);
        sh_aligner_destroy(a);
        free(encoded);
        close_small(&o);
    }
    assert_memory_equal(found[0], found[1], 4 * sizeof **found);
}

static void prompts_become_tokens(void **state) {
    const small_whisper model = {51865, true, 2, false, 0};
    opened o = open_small(&model, NULL, 1);
    const tokens *t = &o.speech->model->file->tokens;
    int32_t ids[8];
    assert_int_equal(sh_tokens_encode(t, "ab, it's", ids, 8), 8);
    char text[32];
    sh_tokens_decode(t, ids, 8, text, sizeof text);
    assert_string_equal(text, "ab, it's");
    assert_int_equal(sh_tokens_encode(t, "ab, it's", ids, 3), 3);
    assert_int_equal(sh_tokens_encode(t, "", ids, 8), 0);
    assert_int_equal(sh_tokens_encode(t, "  ", ids, 8), 2);
    close_small(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_path_is_the_best),
        cmocka_unit_test(heads_are_the_published_ones),
        cmocka_unit_test(words_have_their_marks),
        cmocka_unit_test(words_of_a_window_are_in_order),
        cmocka_unit_test(prompts_become_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
