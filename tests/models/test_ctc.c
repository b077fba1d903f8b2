/* CTC: loss and gradient compared with the plain formulas, with enumeration of all
   alignments, and with finite differences; decoding compared with exhaustive search;
   edits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "shoal_models.h"
#include "support.h"

enum { MOST_SEQUENCES = 8 };

/* A batch of random logits and labels. */
typedef struct {
    int64_t batch, classes, longest, most_labels;
    int64_t offsets[MOST_SEQUENCES + 1], label_offsets[MOST_SEQUENCES + 1];
    float *logits, *gradient;
    double *exact, *exact_gradient;
    int32_t *labels;
} ctc_case;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static ctc_case labels_create(int64_t batch, int64_t classes, const int64_t *rows,
                              const int64_t *counts, double spread, uint64_t seed) {
    ctc_case c = {.batch = batch, .classes = classes};
    for (int64_t b = 0; b < batch; b++) {
        c.offsets[b + 1] = c.offsets[b] + rows[b];
        c.label_offsets[b + 1] = c.label_offsets[b] + counts[b];
        c.longest = larger(c.longest, rows[b]);
        c.most_labels = larger(c.most_labels, counts[b]);
    }
    const int64_t size = c.offsets[batch] * classes;
    c.logits = test_memory(size + 1, sizeof *c.logits);
    c.gradient = test_memory(size + 1, sizeof *c.gradient);
    c.exact = test_memory(size + 1, sizeof *c.exact);
    c.exact_gradient = test_memory(size + 1, sizeof *c.exact_gradient);
    c.labels = test_memory(c.label_offsets[batch] + 1, sizeof *c.labels);
    for (int64_t i = 0; i < size; i++) {
        c.logits[i] = (float)(spread * test_normal(test_hash(seed, 1, (uint64_t)i)));
        c.exact[i] = (double)c.logits[i];
    }
    for (int64_t i = 0; i < c.label_offsets[batch]; i++)
        c.labels[i] =
            (int32_t)(1 + test_hash(seed, 2, (uint64_t)i) % (uint64_t)(classes - 1));
    return c;
}

static void labels_destroy(ctc_case *c) {
    free(c->logits), free(c->gradient), free(c->exact), free(c->exact_gradient);
    free(c->labels);
}

static shoal_ctc_batch batch_of(const ctc_case *c) {
    return (shoal_ctc_batch){sizeof(shoal_ctc_batch), c->batch, c->offsets, c->labels,
                             c->label_offsets};
}

static shoal_ctc *make_ctc(shoal_context *context, const ctc_case *c) {
    shoal_ctc *ctc;
    assert_int_equal(shoal_ctc_create(context, c->classes, c->batch, c->longest,
                                      c->most_labels, &ctc),
                     SHOAL_OK);
    return ctc;
}

/* Loss and gradient of every sequence, the gradient also in place of the logits. */
static void check_case(shoal_context *context, ctc_case *c) {
    const shoal_ctc_batch batch = batch_of(c);
    shoal_ctc *ctc = make_ctc(context, c);
    shoal_ctc_result result, again;
    double losses[MOST_SEQUENCES], sum = 0;
    int64_t impossible = 0;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c->logits, 0.5, c->gradient, losses,
                                    &result),
                     SHOAL_OK);
    for (int64_t b = 0; b < c->batch; b++) {
        const int64_t first = c->offsets[b] * c->classes;
        const int64_t rows = c->offsets[b + 1] - c->offsets[b];
        const double exact = exact_ctc(rows, c->classes, c->exact + first,
                                       c->labels + c->label_offsets[b],
                                       c->label_offsets[b + 1] - c->label_offsets[b],
                                       c->exact_gradient + first);
        impossible += isinf(exact) != 0;
        sum += isinf(exact) ? 0 : exact;
        assert_true(fabs(losses[b] - (isinf(exact) ? 0 : exact)) <=
                    1e-8 * fmax(1, fabs(losses[b])));
        for (int64_t i = first; i < first + rows * c->classes; i++)
            assert_true(fabs((double)c->gradient[i] - 0.5 * c->exact_gradient[i]) <=
                        1e-6);
    }
    assert_true(fabs(result.sum - sum) <= 1e-8 * fmax(1, sum));
    assert_int_equal(result.impossible, impossible);
    assert_int_equal(result.sequences, c->batch - impossible);
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c->logits, 1, NULL, NULL, &again),
                     SHOAL_OK);
    assert_true(again.sum == result.sum && again.labels == result.labels);
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c->logits, 0.5, c->logits, NULL, &again),
                     SHOAL_OK);
    assert_memory_equal(c->logits, c->gradient,
                        sizeof(float) * (size_t)(c->offsets[c->batch] * c->classes));
    shoal_ctc_destroy(ctc);
}

static void check(shoal_context *context, int64_t batch, int64_t classes,
                  const int64_t *rows, const int64_t *counts, double spread) {
    static uint64_t seed;
    ctc_case c = labels_create(batch, classes, rows, counts, spread, ++seed);
    check_case(context, &c);
    labels_destroy(&c);
}

/* Lengths 0 and 1, empty targets, targets that just fit and that do not; two classes,
   so that every label repeats the previous one. */
static void loss_is_exact(void **state) {
    const int64_t rows[] = {0, 0, 1, 1, 1, 17, 64, 97};
    const int64_t counts[] = {0, 1, 0, 1, 2, 8, 31, 97};
    for (int i = 0; test_isa(i); i++) {
        shoal_context *context = test_context(test_isa(i), 1 + i % 3);
        check(context, 8, 40, rows, counts, 1);
        check(context, 8, 2, rows, counts, 1);
        check(context, 8, 3, rows, counts, 5);
        check(context, 8, 40, rows, counts, 200); /* beyond e^-87, beyond e^-708 */
        check(context, 0, 5, NULL, NULL, 1);
        shoal_context_destroy(context);
    }
}

static void loss_is_exact_on_5000_rows(void **state) {
    shoal_context *context = test_context(NULL, 2);
    check(context, 2, 7, (int64_t[]){5000, 1500}, (int64_t[]){30, 150}, 3);
    shoal_context_destroy(context);
}

/* With one class, -log p = 0 for no labels, and nothing else can be spelled. */
static void one_class_is_the_blank(void **state) {
    shoal_context *context = test_context(NULL, 1);
    ctc_case c = labels_create(1, 2, (int64_t[]){3}, (int64_t[]){0}, 1, 5);
    c.classes = 1;
    const shoal_ctc_batch batch = batch_of(&c);
    shoal_ctc *ctc = make_ctc(context, &c);
    shoal_ctc_result result;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, c.gradient, NULL, &result),
                     SHOAL_OK);
    assert_true(fabs(result.sum) < 1e-12 && result.labels == 0);
    shoal_ctc_destroy(ctc);
    labels_destroy(&c);
    shoal_context_destroy(context);
}

/* ---- All alignments ---------------------------------------------------------------- */

/* The labels spelled by an alignment. */
static int64_t spell(const int32_t *path, int64_t rows, int32_t *labels) {
    int64_t count = 0;
    for (int64_t t = 0; t < rows; t++)
        if (path[t] && (t == 0 || path[t] != path[t - 1]))
            labels[count++] = path[t];
    return count;
}

static void next_path(int32_t *path, int64_t rows, int64_t classes) {
    for (int64_t t = 0; t < rows; t++) {
        if (++path[t] < classes)
            return;
        path[t] = 0;
    }
}

/* probability[labels as a number in base `classes`, with a leading 1]. */
enum { ROWS = 5, CLASSES = 3, SPELLINGS = 729 };

static int64_t number_of(const int32_t *labels, int64_t count) {
    int64_t number = 1;
    for (int64_t i = 0; i < count; i++)
        number = number * CLASSES + labels[i];
    return number;
}

static void enumerate(const float *logits, double probability[SPELLINGS]) {
    int32_t path[ROWS] = {0}, labels[ROWS];
    memset(probability, 0, sizeof(double) * SPELLINGS);
    for (int64_t i = 0; i < 243; i++, next_path(path, ROWS, CLASSES)) {
        double p = 1;
        for (int64_t t = 0; t < ROWS; t++) {
            double sum = 0;
            for (int64_t c = 0; c < CLASSES; c++)
                sum += exp((double)logits[t * CLASSES + c]);
            p *= exp((double)logits[t * CLASSES + path[t]]) / sum;
        }
        const int64_t number = number_of(labels, spell(path, ROWS, labels));
        assert_true(number < SPELLINGS);
        probability[number] += p;
    }
}

static void loss_is_that_of_all_alignments(void **state) {
    shoal_context *context = test_context(NULL, 1);
    double probability[SPELLINGS];
    for (int64_t seed = 0; seed < 40; seed++) {
        ctc_case c = labels_create(1, CLASSES, (int64_t[]){ROWS}, (int64_t[]){seed % 5},
                                   1, (uint64_t)seed + 100);
        const shoal_ctc_batch batch = batch_of(&c);
        shoal_ctc *ctc = make_ctc(context, &c);
        shoal_ctc_result result;
        enumerate(c.logits, probability);
        assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result),
                         SHOAL_OK);
        const double p = probability[number_of(c.labels, seed % 5)];
        if (p > 0)
            assert_true(fabs(result.sum + log(p)) < 1e-9);
        assert_int_equal(result.impossible, p == 0);
        shoal_ctc_destroy(ctc);
        labels_destroy(&c);
    }
    shoal_context_destroy(context);
}

static void gradient_is_the_slope(void **state) {
    shoal_context *context = test_context(NULL, 2);
    ctc_case c = labels_create(2, 4, (int64_t[]){9, 6}, (int64_t[]){4, 2}, 1, 77);
    const shoal_ctc_batch batch = batch_of(&c);
    shoal_ctc *ctc = make_ctc(context, &c);
    shoal_ctc_result result[2];
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, c.gradient, NULL, result),
                     SHOAL_OK);
    for (int64_t i = 0; i < c.offsets[2] * 4; i++) {
        const float kept = c.logits[i], step = 0x1p-8f;
        for (int side = 0; side < 2; side++) {
            c.logits[i] = side ? kept + step : kept - step;
            shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result[side]);
        }
        const double width = (double)(kept + step) - (double)(kept - step);
        c.logits[i] = kept;
        assert_true(
            fabs((result[1].sum - result[0].sum) / width - (double)c.gradient[i]) < 2e-5);
    }
    shoal_ctc_destroy(ctc);
    labels_destroy(&c);
    shoal_context_destroy(context);
}

/* ---- Corners ---------------------------------------------------------------------- */

static void bits_are_the_same_on_any_number_of_threads(void **state) {
    const int64_t rows[] = {70, 5, 33, 200}, counts[] = {20, 1, 30, 64};
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        shoal_context *context = test_context(NULL, threads);
        ctc_case c = labels_create(4, 11, rows, counts, 2, 9);
        const shoal_ctc_batch batch = batch_of(&c);
        shoal_ctc *ctc = make_ctc(context, &c);
        shoal_ctc_result result;
        shoal_ctc_loss(ctc, &batch, c.logits, 1, c.gradient, NULL, &result);
        if (first)
            assert_memory_equal(first, c.gradient, sizeof(float) * 308 * 11);
        else {
            first = test_memory(308 * 11, sizeof *first);
            memcpy(first, c.gradient, sizeof(float) * 308 * 11);
        }
        shoal_ctc_destroy(ctc);
        labels_destroy(&c);
        shoal_context_destroy(context);
    }
    free(first);
}

static double workspace_of(int threads, int64_t batch, int64_t rows, int64_t labels) {
    shoal_context *context = test_context(NULL, threads);
    shoal_ctc *ctc;
    assert_int_equal(shoal_ctc_create(context, 40, batch, rows, labels, &ctc), SHOAL_OK);
    const double bytes = (double)shoal_ctc_workspace(ctc);
    shoal_ctc_destroy(ctc);
    shoal_context_destroy(context);
    return bytes;
}

/* Rows times labels of one sequence per thread, for any number of sequences. */
static void memory_is_of_a_sequence_per_thread(void **state) {
    const double one = workspace_of(1, 8, 1000, 100);
    assert_true(one < 24.0 * 1000 * (2 * 100 + 1) + 1e5);
    assert_true(workspace_of(1, 64, 1000, 100) < 1.05 * one);
    assert_true(workspace_of(1, 8, 2000, 100) < 2.05 * one);
    assert_true(workspace_of(1, 8, 1000, 200) < 2.05 * one);
    assert_true(workspace_of(3, 8, 1000, 100) < 3.05 * one);
}

static void nan_does_not_go_unnoticed(void **state) {
    const float bad[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        shoal_context *context = test_context(NULL, 1);
        ctc_case c = labels_create(2, 4, (int64_t[]){5, 5}, (int64_t[]){2, 2}, 1, 3);
        const shoal_ctc_batch batch = batch_of(&c);
        shoal_ctc *ctc = make_ctc(context, &c);
        shoal_ctc_result result;
        c.logits[4 * 3 + 1] = bad[i];
        assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, c.gradient, NULL,
                                        &result),
                         SHOAL_OK);
        assert_true(isnan(result.sum) && isnan(c.gradient[0]));
        assert_true(isfinite(c.gradient[20]) != 0);
        shoal_ctc_destroy(ctc);
        labels_destroy(&c);
        shoal_context_destroy(context);
    }
}

static void bad_batches_are_refused(void **state) {
    shoal_context *context = test_context(NULL, 1);
    ctc_case c = labels_create(1, 4, (int64_t[]){5}, (int64_t[]){2}, 1, 3);
    shoal_ctc_batch batch = batch_of(&c);
    shoal_ctc *ctc = make_ctc(context, &c), *none;
    shoal_ctc_result result;
    c.labels[1] = 4;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "label 1 of sequence 0 is 4"));
    c.labels[1] = 0;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    c.labels[1] = 1;
    c.offsets[1] = 6;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    c.offsets[1] = 5;
    c.label_offsets[1] = -1;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    c.label_offsets[1] = 2;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, NULL, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    batch.batch = 2;
    assert_int_equal(shoal_ctc_loss(ctc, &batch, c.logits, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    assert_int_equal(shoal_ctc_loss(NULL, &batch, c.logits, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
    assert_int_equal(shoal_ctc_create(context, 0, 1, 1, 1, &none), SHOAL_INVALID);
    assert_int_equal(shoal_ctc_create(context, 3, -1, 1, 1, &none), SHOAL_INVALID);
    assert_true(shoal_ctc_workspace(ctc) > 5 * 6 * 16);
    shoal_ctc_destroy(ctc);
    shoal_ctc_destroy(NULL);
    labels_destroy(&c);
    shoal_context_destroy(context);
}

/* ---- Decoding -------------------------------------------------------------------- */

static void greedy_merges_and_drops(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const int32_t path[] = {0, 2, 2, 0, 2, 1, 1, 0, 0, 3};
    float logits[10 * 4] = {0};
    int32_t labels[10], frames[10];
    int64_t count;
    for (int t = 0; t < 10; t++)
        logits[t * 4 + path[t]] = 1;
    assert_int_equal(shoal_ctc_greedy(context, 10, 4, logits, labels, frames, &count),
                     SHOAL_OK);
    assert_int_equal(count, 4);
    assert_memory_equal(labels, ((int32_t[]){2, 2, 1, 3}), sizeof(int32_t) * 4);
    assert_memory_equal(frames, ((int32_t[]){1, 4, 5, 9}), sizeof(int32_t) * 4);
    assert_int_equal(shoal_ctc_greedy(context, 0, 4, NULL, NULL, NULL, &count), SHOAL_OK);
    assert_int_equal(count, 0);
    assert_int_equal(shoal_ctc_greedy(context, 2, 4, NULL, labels, NULL, &count),
                     SHOAL_INVALID);
    shoal_context_destroy(context);
}

/* With room for all prefixes the search finds the most probable labels and their
   probability; with few beams, never more probable ones. */
static void search_finds_the_likeliest(void **state) {
    shoal_context *context = test_context(NULL, 1);
    double probability[SPELLINGS];
    for (int64_t seed = 0; seed < 200; seed++) {
        ctc_case c = labels_create(1, CLASSES, (int64_t[]){ROWS}, (int64_t[]){0},
                                   seed % 2 ? 1 : 0.3, (uint64_t)seed + 500);
        int32_t labels[ROWS], frames[ROWS];
        int64_t count, best = 0;
        double found;
        enumerate(c.logits, probability);
        for (int64_t i = 1; i < SPELLINGS; i++)
            best = probability[i] > probability[best] ? i : best;
        assert_int_equal(shoal_ctc_search(context, ROWS, CLASSES, c.logits, 100, labels,
                                          frames, &count, &found),
                         SHOAL_OK);
        assert_int_equal(number_of(labels, count), best);
        assert_true(fabs(found - log(probability[best])) < 1e-9);
        for (int64_t i = 0; i < count; i++)
            assert_true(frames[i] >= (i ? frames[i - 1] + 1 : 0) && frames[i] < ROWS);
        for (int64_t beams = 1; beams < 8; beams++) {
            assert_int_equal(shoal_ctc_search(context, ROWS, CLASSES, c.logits, beams,
                                              labels, NULL, &count, &found),
                             SHOAL_OK);
            assert_true(found <= log(probability[number_of(labels, count)]) + 1e-9);
        }
        labels_destroy(&c);
    }
    shoal_context_destroy(context);
}

static void search_has_corners(void **state) {
    shoal_context *context = test_context(NULL, 1);
    float logits[8] = {0};
    int32_t labels[2];
    int64_t count;
    double found;
    assert_int_equal(shoal_ctc_search(context, 0, 4, NULL, 3, NULL, NULL, &count, &found),
                     SHOAL_OK);
    assert_true(count == 0 && found == 0);
    assert_int_equal(shoal_ctc_search(context, 2, 4, logits, 0, labels, NULL, &count,
                                      NULL),
                     SHOAL_INVALID);
    logits[5] = NAN;
    assert_int_equal(shoal_ctc_search(context, 2, 4, logits, 2, labels, NULL, &count,
                                      NULL),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "row 1"));
    shoal_context_destroy(context);
}

/* ---- Edits ----------------------------------------------------------------------- */

static void edits_are_counted(void **state) {
    shoal_context *context = test_context(NULL, 1);
    const int32_t reference[] = {1, 2, 3, 4, 5}, other[] = {1, 9, 3, 5, 6, 7};
    shoal_edits edits = {0};
    assert_int_equal(shoal_count_edits(context, reference, 5, other, 6, &edits),
                     SHOAL_OK);
    assert_true(edits.length == 5 && edits.substitutions == 3 && edits.insertions == 1 &&
                edits.deletions == 0);
    assert_int_equal(shoal_count_edits(context, reference, 5, NULL, 0, &edits), SHOAL_OK);
    assert_int_equal(shoal_count_edits(context, NULL, 0, other, 2, &edits), SHOAL_OK);
    assert_true(edits.length == 10 && edits.deletions == 5 && edits.insertions == 3);
    assert_int_equal(shoal_count_edits(context, reference, -1, other, 2, &edits),
                     SHOAL_INVALID);
    shoal_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_is_exact),
        cmocka_unit_test(loss_is_exact_on_5000_rows),
        cmocka_unit_test(one_class_is_the_blank),
        cmocka_unit_test(loss_is_that_of_all_alignments),
        cmocka_unit_test(gradient_is_the_slope),
        cmocka_unit_test(bits_are_the_same_on_any_number_of_threads),
        cmocka_unit_test(memory_is_of_a_sequence_per_thread),
        cmocka_unit_test(nan_does_not_go_unnoticed),
        cmocka_unit_test(bad_batches_are_refused),
        cmocka_unit_test(greedy_merges_and_drops),
        cmocka_unit_test(search_finds_the_likeliest),
        cmocka_unit_test(search_has_corners),
        cmocka_unit_test(edits_are_counted),
    };
    return cmocka_run_group_tests_name("ctc", tests, NULL, NULL);
}
