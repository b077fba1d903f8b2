/* Data of texts: windows cover the context and contain the right answer, the best span
   is the best of all spans, batches are copies, and damaged files are rejected. */
#define _GNU_SOURCE
#include "train/tasks/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "cases.h"
#include "folders.h"
#include "support.h"

static shoal_context *context;
static shoal_tokenizer *tokenizer;

static int open_all(void **state) {
    char path[512];
    context = test_context(NULL, 1);
    snprintf(path, sizeof path, "%s/tests/models/text/bert", SHOAL_SOURCE_DIR);
    assert_int_equal(shoal_tokenizer_open(context, path, &tokenizer), SHOAL_OK);
    return 0;
}

static int close_all(void **state) {
    shoal_tokenizer_destroy(tokenizer);
    shoal_context_destroy(context);
    return 0;
}

static text_reader reader_of(int64_t max_length) {
    return (text_reader){context, tokenizer, max_length, false, NULL};
}

/* ---- Windows ----------------------------------------------------------------------- */

#define WORDS                                                                            \
    "queries huddle into clusters, each cluster attends once in linear time \xc3\xa9 "
static const char text[] = WORDS WORDS WORDS;

/* Every byte of the context covered by a token is in some window, windows are not too
   long, and the answer's rows cover its bytes. */
static void check_windows(int64_t max_length, int64_t stride, int64_t begin,
                          int64_t end) {
    const text_reader reader = reader_of(max_length);
    const squad_question question = {"q", "which time?", text, NULL};
    const int64_t answer[2] = {begin, end};
    text_set windows = {0};
    bool seen[sizeof text] = {false}, found = false;
    assert_int_equal(sh_squad_windows(&reader, &question, 3, stride, answer, &windows),
                     SHOAL_OK);
    for (int64_t w = 0; w < windows.count; w++) {
        const int64_t first = windows.offsets[w], rows = windows.offsets[w + 1] - first;
        const int32_t *wanted = windows.wanted[w];
        assert_true(rows <= max_length && windows.questions[w] == 3);
        for (int64_t r = first; r < first + rows; r++)
            for (int32_t b = windows.bytes[r][0]; b >= 0 && b < windows.bytes[r][1]; b++)
                seen[b] = true;
        if (wanted[0] == 0)
            continue;
        found = true;
        assert_true(windows.bytes[first + wanted[0]][0] <= begin &&
                    windows.bytes[first + wanted[0]][1] > begin);
        assert_true(windows.bytes[first + wanted[1]][0] < end &&
                    windows.bytes[first + wanted[1]][1] >= end);
    }
    for (size_t b = 0; text[b]; b++)
        assert_true(seen[b] || text[b] == ' ');
    assert_true(found || max_length < 40);
    sh_text_set_free(&windows);
}

static void windows_hold_all(void **state) {
    for (int64_t length = 24; length <= 300; length += 31)
        for (int64_t stride = 1; stride <= 400; stride = 7 * stride + 1) {
            check_windows(length, stride, 8, 14);  /* huddle */
            check_windows(length, stride, 20, 38); /* also in the middle of a word */
            check_windows(length, stride, 71, 73); /* a character of two bytes */
        }
}

static void no_room(void **state) {
    const text_reader reader = reader_of(4);
    const squad_question question = {"q", "which time is it?", text, NULL};
    text_set windows = {0};
    assert_int_equal(sh_squad_windows(&reader, &question, 0, 1, NULL, &windows),
                     SHOAL_INVALID);
    sh_text_set_free(&windows);
}

/* ---- Answers ----------------------------------------------------------------------- */

static void best_spans(void **state) {
    const text_reader reader = reader_of(64);
    const squad_question question = {"q", "once", "each cluster attends once", NULL};
    text_set windows = {0};
    assert_int_equal(sh_squad_windows(&reader, &question, 0, 8, NULL, &windows),
                     SHOAL_OK);
    const int64_t rows = windows.offsets[1];
    float *logits = test_memory(2 * rows, sizeof *logits);
    for (int64_t i = 0; i < 2 * rows; i++)
        logits[i] = (float)test_normal(test_hash(1, 2, (uint64_t)i));
    for (int64_t most = 1; most <= 4; most += 3) {
        squad_answer found = {.score = -INFINITY};
        double best = -INFINITY;
        sh_squad_look(&windows, 0, logits, most, &found);
        for (int64_t a = 0; a < rows; a++)
            for (int64_t b = a; b < rows && b - a < most; b++)
                if (windows.bytes[a][0] >= 0 && windows.bytes[b][0] >= 0)
                    best = fmax(best, (double)logits[2 * a] + (double)logits[2 * b + 1]);
        assert_true(found.score == best);
        char *answer = sh_squad_text(NULL, &question, &found);
        assert_true(strlen(answer) > 0 && strstr(question.context, answer));
        sh_free(answer);
    }
    /* Byte-level tokens begin with the space before a word. */
    squad_answer wide = {1, 4, 13}, blank = {1, 4, 5};
    char *trimmed = sh_squad_text(NULL, &question, &wide);
    assert_string_equal(trimmed, "cluster");
    sh_free(trimmed);
    sh_squad_trim(&question, &wide);
    assert_true(wide.begin == 5 && wide.end == 12 && wide.score == 1);
    sh_squad_trim(&question, &blank);
    assert_int_equal(blank.begin, blank.end);
    squad_answer none = {.score = -INFINITY};
    char *answer = sh_squad_text(NULL, &question, &none);
    assert_string_equal(answer, "");
    sh_free(answer);
    free(logits);
    sh_text_set_free(&windows);
}

/* ---- Files ------------------------------------------------------------------------- */

static const char rte[] = "sentence1\tsentence2\tlabel\tidx\n"
                          "queries huddle\tclusters\t1\t0\n"
                          "linear time\tonce \xc3\xa9\t0\t1\r\n"
                          "\n"
                          "each\t\tnot_entailment\t2\n";
static const char squad[] =
    "{\"data\": [{\"paragraphs\": [{\"context\": \"\xc3\xa9 linear time\", \"qas\": "
    "[{\"id\": \"q\", \"question\": \"which?\", \"answers\": [{\"text\": \"linear\", "
    "\"answer_start\": 2}]}]}]}]}";

static void files_are_read(void **state) {
    const char *folder = make_folder();
    const text_reader reader = reader_of(32);
    char path[256];
    text_set train = {0};
    squad_set answers;
    snprintf(path, sizeof path, "%s/dev.tsv", folder);
    write_bytes_to(path, rte, sizeof rte - 1);
    snprintf(path, sizeof path, "%s/train.tsv", folder);
    write_bytes_to(path, rte, sizeof rte - 1);
    assert_int_equal(sh_glue_read(&reader, sh_glue_find("rte"), folder, &train, NULL),
                     SHOAL_OK);
    assert_int_equal(train.count, 3);
    assert_true(train.labels[0] == 1 && train.labels[1] == 0 && train.labels[2] == 1);
    snprintf(path, sizeof path, "%s/s.json", folder);
    write_bytes_to(path, squad, sizeof squad - 1);
    assert_int_equal(sh_squad_read(&reader, path, 8, true, &answers), SHOAL_OK);
    assert_true(answers.count == 1 && answers.windows.wanted[0][0] > 0);
    const squad_answer right = {1, 3, 9}, half = {1, 3, 14};
    double exact, f1;
    assert_true(sh_squad_scores(NULL, &answers, &right, &exact, &f1));
    assert_true(exact == 1 && f1 == 1);
    assert_true(sh_squad_scores(NULL, &answers, &half, &exact, &f1));
    assert_true(exact == 0 && fabs(f1 - 2.0 / 3) < 1e-12);
    sh_squad_free(&answers);
    sh_text_set_free(&train);
    remove_folder(folder);
}

/* Some bytes changed, removed or inserted: a result or an error, never a crash. */
static size_t damage(const char *from, size_t size, uint64_t seed, char *to) {
    memcpy(to, from, size);
    for (uint64_t i = 0; i < 1 + seed % 4; i++) {
        const size_t at = test_hash(seed, 1, i) % size;
        const unsigned char byte = (unsigned char)test_hash(seed, 2, i);
        if (i % 3 == 0)
            to[at] = (char)byte;
        else if (i % 3 == 1 && size > 2)
            memmove(to + at, to + at + 1, --size - at);
        else
            to[at] = "\t\n\"{}[],:\\0"[byte % 11];
    }
    return test_hash(seed, 3, 0) % 8 ? size : size / 2;
}

static void damaged_files(void **state) {
    const char *folder = make_folder();
    const text_reader reader = reader_of(32);
    char path[256], bytes[1024];
    int refused = 0;
    for (uint64_t seed = 0; seed < 400; seed++) {
        text_set train = {0};
        squad_set answers;
        snprintf(path, sizeof path, "%s/train.tsv", folder);
        write_bytes_to(path, bytes, damage(rte, sizeof rte - 1, seed, bytes));
        snprintf(path, sizeof path, "%s/dev.tsv", folder);
        write_bytes_to(path, rte, sizeof rte - 1);
        refused += sh_glue_read(&reader, sh_glue_find("RTE"), folder, &train, NULL) !=
                   SHOAL_OK;
        sh_text_set_free(&train);
        snprintf(path, sizeof path, "%s/s.json", folder);
        write_bytes_to(path, bytes, damage(squad, sizeof squad - 1, seed, bytes));
        refused += sh_squad_read(&reader, path, 8, true, &answers) != SHOAL_OK;
        sh_squad_free(&answers);
    }
    remove_folder(folder);
    assert_true(refused > 100 && refused < 800);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_hold_all), cmocka_unit_test(no_room),
        cmocka_unit_test(best_spans),       cmocka_unit_test(files_are_read),
        cmocka_unit_test(damaged_files),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
