/* The word search compared with enumeration of all strings of words, silences and
   alignments on small random problems. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "speech/words/wordsearch.h"

enum { PHONES = 4, SILENCE = 3, MOST_STEPS = 6, MOST_OUTPUTS = 2 * PHONES, ROOM = 8192 };

static shoal_context *context;

/* ---- Random numbers --------------------------------------------------------------- */

static uint64_t drawn;

static double uniform(void) {
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (double)(drawn >> 11) / 9007199254740992.0;
}

static int below(int bound) {
    return (int)(uniform() * bound);
}

/* ---- Small problems ---------------------------------------------------------------- */

typedef struct {
    shoal_lexicon *lexicon;
    shoal_ngram *ngram;
    shoal_word_decoder *decoder;
    shoal_topology topology;
    shoal_word_settings settings;
    int steps;
    float outputs[MOST_STEPS * MOST_OUTPUTS];
} toy;

static const char phone_names[PHONES][4] = {"X", "Y", "Z", "SIL"};
static const char *const word_names[] = {"u", "v", "w", "x", "y"};
enum { WORDS = 5 };

/* Words with common prefixes, two homophones, one with two pronunciations. */
static void make_lexicon(toy *t) {
    static const char *const options_names[] = {"X", "Y", "Z"};
    shoal_lexicon_options options = {.size = sizeof(shoal_lexicon_options),
                                     .phones = options_names,
                                     .phone_count = 3};
    char text[ROOM] = "", line[64];
    char first[8], second[24];
    snprintf(first, sizeof first, "%s", phone_names[below(3)]);
    snprintf(second, sizeof second, "%s %s", first, phone_names[below(3)]);
    snprintf(line, sizeof line, "u %s\nv %s\n", first, second);
    strcat(text, line);
    snprintf(line, sizeof line, "w %s %s\n", second, phone_names[below(3)]);
    strcat(text, line);
    snprintf(line, sizeof line, "x %s\ny %s\n", below(2) ? first : "Z", second);
    strcat(text, line);
    snprintf(line, sizeof line, "x %s %s\n", phone_names[below(3)],
             phone_names[below(3)]);
    strcat(text, line);
    lexicon_draft *draft;
    assert_int_equal(sh_lexicon_begin(context, &options, &draft), SHOAL_OK);
    const shoal_status status = sh_lexicon_add(draft, "toy", text, strlen(text));
    assert_int_equal(sh_lexicon_end(draft, status, &t->lexicon), SHOAL_OK);
}

/* Any numbers will do: they need not be probabilities. */
static void make_ngram(toy *t) {
    static const char *const names[] = {"<s>", "</s>", "u", "v", "w", "x", "y"};
    enum { ALL = 7 };
    char text[ROOM], lines[3][ROOM] = {"", "", ""}, line[80];
    int counts[3] = {ALL, 0, 0};
    for (int a = 0; a < ALL; a++) {
        snprintf(line, sizeof line, "%.3f %s %.3f\n", -2 * uniform(), names[a],
                 uniform() < 0.3 ? 0 : -uniform());
        strcat(lines[0], line);
        for (int b = 1; b < ALL && a != 1; b++) {
            if (uniform() < 0.5)
                continue;
            counts[1]++;
            snprintf(line, sizeof line, "%.3f %s %s %.3f\n", -2 * uniform(), names[a],
                     names[b], uniform() < 0.5 ? 0 : uniform() - 0.7);
            strcat(lines[1], line);
            for (int c = 1; c < ALL && b != 1; c++) {
                if (uniform() < 0.7)
                    continue;
                counts[2]++;
                snprintf(line, sizeof line, "%.3f %s %s %s\n", -2 * uniform(), names[a],
                         names[b], names[c]);
                strcat(lines[2], line);
            }
        }
    }
    const int order = 1 + below(3);
    int length = snprintf(text, sizeof text, "\\data\\\n");
    for (int i = 0; i < order; i++)
        length += snprintf(text + length, sizeof text - (size_t)length, "ngram %d=%d\n",
                           i + 1, counts[i]);
    for (int i = 0; i < order; i++) {
        length +=
            snprintf(text + length, sizeof text - (size_t)length, "\\%d-grams:\n", i + 1);
        for (char *at = strtok(lines[i], "\n"); at; at = strtok(NULL, "\n")) {
            if (i == order - 1 && i < 2) /* the highest order has no back-off */
                *strrchr(at, ' ') = 0;
            length += snprintf(text + length, sizeof text - (size_t)length, "%s\n", at);
        }
    }
    snprintf(text + length, sizeof text - (size_t)length, "\\end\\\n");
    if (sh_arpa_parse(context, "toy", text, strlen(text), &t->ngram) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    assert_int_equal(sh_ngram_finish(t->ngram, "toy"), SHOAL_OK);
}

static void make_toy(toy *t, int number) {
    drawn = 77 + (uint64_t)number;
    t->topology = (shoal_topology)(number % 4);
    make_lexicon(t);
    make_ngram(t);
    assert_int_equal(shoal_word_decoder_create(context, t->lexicon, t->ngram, t->topology,
                                               0, &t->decoder),
                     SHOAL_OK);
    t->steps = 1 + below(MOST_STEPS);
    const int64_t outputs = shoal_word_decoder_describe(t->decoder)->outputs;
    for (int64_t i = 0; i < t->steps * outputs; i++)
        t->outputs[i] = (float)(6 * uniform() - 3);
    t->settings = (shoal_word_settings){.size = sizeof(shoal_word_settings),
                                        .beam = INFINITY,
                                        .lm_weight = 2 * uniform(),
                                        .insertion = 4 * uniform() - 2,
                                        .nbest = 1};
}

static void free_toy(toy *t) {
    shoal_word_decoder_destroy(t->decoder);
    shoal_ngram_destroy(t->ngram);
    shoal_lexicon_destroy(t->lexicon);
}

/* ---- Enumeration ------------------------------------------------------------------ */

typedef struct {
    const toy *t;
    float logs[MOST_STEPS][MOST_OUTPUTS];
    int phones[2 * MOST_STEPS], phone_count;
    int words[MOST_STEPS + 1], word_count;
    double best, second; /* of different strings of words */
    int best_words[MOST_STEPS + 1], best_count;
    int wanted[MOST_STEPS + 1], wanted_count; /* a string to score; -1 if none */
    double wanted_score;
} everything;

/* The best alignment of the phones from `phone` on to steps from `step` on, where that
   phone begins now. */
static double align(const everything *e, int phone, int step) {
    const int p = e->phones[phone], steps = e->t->steps;
    double best = -INFINITY, sum = 0;
    for (int end = step + 1; end <= steps; end++) {
        const float *row = e->logs[end - 1];
        const bool first = end == step + 1;
        switch (e->t->topology) {
        case SHOAL_TOPOLOGY_CHAIN: sum += (double)row[2 * p + !first]; break;
        case SHOAL_TOPOLOGY_ONE: sum += (double)row[p]; break;
        case SHOAL_TOPOLOGY_BLANK: sum += (double)row[first ? p : PHONES]; break;
        case SHOAL_TOPOLOGY_CTC: return NAN;
        }
        const double rest = phone + 1 < e->phone_count ? align(e, phone + 1, end)
                            : end == steps             ? 0
                                                       : -INFINITY;
        best = fmax(best, sum + rest);
    }
    return best;
}

/* CTC: every class in every step; `done` phones are spelled, `last` was the class. */
static double align_ctc(const everything *e, int done, int last, int step) {
    if (step == e->t->steps)
        return done == e->phone_count ? 0 : -INFINITY;
    const float *row = e->logs[step];
    double best = (double)row[0] + align_ctc(e, done, 0, step + 1);
    if (last > 0)
        best = fmax(best, (double)row[last] + align_ctc(e, done, last, step + 1));
    if (done < e->phone_count && e->phones[done] + 1 != last) {
        const int next = e->phones[done] + 1;
        best = fmax(best, (double)row[next] + align_ctc(e, done + 1, next, step + 1));
    }
    return best;
}

static double language_score(const everything *e) {
    const shoal_ngram *ngram = e->t->ngram;
    int64_t words[MOST_STEPS + 2] = {shoal_ngram_word(ngram, "<s>")};
    double sum = 0;
    for (int i = 0; i < e->word_count; i++) {
        words[i + 1] = shoal_ngram_word(ngram, word_names[e->words[i]]);
        sum += shoal_ngram_score(ngram, words, i + 2);
    }
    words[e->word_count + 1] = shoal_ngram_word(ngram, "</s>");
    return sum + shoal_ngram_score(ngram, words, e->word_count + 2);
}

static bool same(const int *a, int a_count, const int *b, int b_count) {
    return a_count == b_count && memcmp(a, b, sizeof *a * (size_t)a_count) == 0;
}

static void judge(everything *e) {
    const bool ctc = e->t->topology == SHOAL_TOPOLOGY_CTC;
    if (!ctc && e->phone_count == 0)
        return;
    const double score = (ctc ? align_ctc(e, 0, 0, 0) : align(e, 0, 0)) +
                         e->t->settings.lm_weight * language_score(e) +
                         e->t->settings.insertion * e->word_count;
    if (same(e->words, e->word_count, e->wanted, e->wanted_count))
        e->wanted_score = fmax(e->wanted_score, score);
    if (same(e->words, e->word_count, e->best_words, e->best_count)) {
        e->best = fmax(e->best, score);
    } else if (score > e->best) {
        e->second = e->best;
        e->best = score;
        memcpy(e->best_words, e->words, sizeof e->words);
        e->best_count = e->word_count;
    } else {
        e->second = fmax(e->second, score);
    }
}

/* All words and silences from here on; silent: the last one was a silence. */
static void enumerate(everything *e, bool silent) {
    const int phones = e->phone_count;
    judge(e);
    if (phones >= e->t->steps)
        return;
    if (!silent && e->t->topology != SHOAL_TOPOLOGY_CTC) {
        e->phones[e->phone_count++] = SILENCE;
        enumerate(e, true);
        e->phone_count = phones;
    }
    for (int w = 0; w < WORDS; w++) {
        const int64_t number = shoal_lexicon_find(e->t->lexicon, word_names[w]);
        for (int64_t k = 0; k < shoal_lexicon_pronunciations(e->t->lexicon, number);
             k++) {
            const int32_t *own;
            const int64_t count =
                shoal_lexicon_pronunciation(e->t->lexicon, number, k, &own);
            if (phones + count > e->t->steps)
                continue;
            for (int64_t i = 0; i < count; i++)
                e->phones[e->phone_count++] = own[i];
            e->words[e->word_count++] = w;
            enumerate(e, false);
            e->word_count--;
            e->phone_count = phones;
        }
    }
}

static void search_everything(const toy *t, everything *e) {
    const int outputs = (int)shoal_word_decoder_describe(t->decoder)->outputs;
    *e = (everything){.t = t,
                      .best = -INFINITY,
                      .second = -INFINITY,
                      .best_count = -1,
                      .wanted_count = -1,
                      .wanted_score = -INFINITY};
    for (int i = 0; i < t->steps; i++) {
        double sum = 0;
        for (int k = 0; k < outputs; k++)
            sum += exp((double)t->outputs[i * outputs + k]);
        for (int k = 0; k < outputs; k++)
            e->logs[i][k] = t->outputs[i * outputs + k] -
                            (t->topology == SHOAL_TOPOLOGY_CTC ? (float)log(sum) : 0);
    }
}

/* ---- Comparisons ------------------------------------------------------------------- */

static void run_toy(toy *t, shoal_spoken *spoken) {
    const int64_t offsets[] = {0, t->steps};
    if (shoal_word_decoder_run(t->decoder, &t->settings, 1, offsets, t->outputs,
                               spoken) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
}

static int numbers_of(const shoal_word_string *string, int *words) {
    for (int64_t i = 0; i < string->count; i++)
        words[i] = string->words[i].text[0] - 'u';
    return (int)string->count;
}

static void equal_to_exhaustive_search(void **state) {
    (void)state;
    int words[MOST_STEPS + 1], different = 0;
    for (int i = 0; i < 200; i++) {
        toy t;
        everything e;
        shoal_spoken spoken;
        make_toy(&t, i);
        search_everything(&t, &e);
        enumerate(&e, false);
        run_toy(&t, &spoken);
        const double score = spoken.strings[0].score;
        if (e.best_count < 0) /* too short for any string */
            assert_false(spoken.whole);
        else if (!spoken.whole || !(fabs(score - e.best) < 1e-3))
            fail_msg("%d: %g, not %g", i, score, e.best);
        else if (e.best - e.second > 1e-3)
            if (!same(words, numbers_of(&spoken.strings[0], words), e.best_words,
                      e.best_count))
                fail_msg("%d: other words", i);
        different += e.best_count > 0;
        free_toy(&t);
    }
    assert_true(different > 100);
}

/* The n-best strings are distinct, in order, and none scores above its own maximum. */
static void best_strings(void **state) {
    (void)state;
    int64_t all = 0;
    for (int i = 0; i < 60; i++) {
        toy t;
        everything e;
        shoal_spoken spoken;
        make_toy(&t, i);
        t.settings.nbest = 5;
        t.settings.confidence = 1;
        run_toy(&t, &spoken);
        for (int64_t k = 0; k < spoken.count && spoken.whole; k++, all++) {
            const shoal_word_string *string = &spoken.strings[k];
            search_everything(&t, &e);
            e.wanted_count = numbers_of(string, e.wanted);
            enumerate(&e, false);
            assert_true(string->score <= e.wanted_score + 1e-3);
            if (k == 0)
                assert_true(string->score >= e.best - 1e-3);
            else
                assert_true(string->score <= string[-1].score + 1e-4);
            for (int64_t m = 0; m < string->count; m++) {
                const shoal_spoken_word *word = &string->words[m];
                assert_true(word->confidence > 0 && word->confidence <= 1);
                assert_true(word->begin >= (m ? word[-1].end : 0));
                assert_true(word->end > word->begin && word->end <= t.steps);
            }
        }
        free_toy(&t);
    }
    assert_true(all > 200);
}

/* ---- Long and invalid sequences --------------------------------------------------- */

/* Removing unreachable records does not change the words. */
static void long_sequences(void **state) {
    (void)state;
    enum { STEPS = 30000 };
    toy t;
    shoal_spoken spoken;
    make_toy(&t, SHOAL_TOPOLOGY_ONE); /* one output for each phone */
    const int64_t outputs = shoal_word_decoder_describe(t.decoder)->outputs;
    const int64_t offsets[] = {0, STEPS};
    float *values = malloc(sizeof *values * (size_t)(STEPS * outputs));
    assert_non_null(values);
    for (int64_t i = 0; i < STEPS * outputs; i++)
        values[i] = (float)(6 * uniform() - 3);
    shoal_word_settings settings = t.settings;
    assert_int_equal(shoal_word_decoder_run(t.decoder, &settings, 1, offsets, values,
                                            &spoken),
                     SHOAL_OK);
    const int64_t count = spoken.strings[0].count;
    const double score = spoken.strings[0].score;
    char *letters = malloc((size_t)count + 1);
    assert_non_null(letters);
    for (int64_t i = 0; i < count; i++)
        letters[i] = spoken.strings[0].words[i].text[0];
    settings.nbest = 2;
    assert_int_equal(shoal_word_decoder_run(t.decoder, &settings, 1, offsets, values,
                                            &spoken),
                     SHOAL_OK);
    assert_int_equal(spoken.count, 2);
    assert_int_equal(spoken.strings[0].count, count);
    assert_true(fabs(spoken.strings[0].score - score) < 1e-6 * fabs(score));
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(letters[i], spoken.strings[0].words[i].text[0]);
    assert_true(count > 1000);
    free(letters);
    free(values);
    free_toy(&t);
}

/* Several at once, and limits on paths, which can only lower the score. */
static void batches_and_limits(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        toy t;
        shoal_spoken alone, both[3];
        make_toy(&t, i);
        run_toy(&t, &alone);
        const double score = alone.strings[0].score;
        const int whole = alone.whole;
        const int64_t offsets[] = {0, 0, t.steps, t.steps};
        assert_int_equal(shoal_word_decoder_run(t.decoder, &t.settings, 3, offsets,
                                                t.outputs, both),
                         SHOAL_OK);
        assert_true(both[0].strings[0].count == 0 && both[2].strings[0].count == 0);
        assert_true(both[1].strings[0].score >= score &&
                    both[1].strings[0].score <= score);
        t.settings.tokens = 4;
        t.settings.beam = 3;
        run_toy(&t, &alone);
        if (alone.whole && whole)
            assert_true(alone.strings[0].score <= score + 1e-4);
        free_toy(&t);
    }
}

static void refusals(void **state) {
    (void)state;
    toy t;
    shoal_spoken spoken;
    shoal_word_decoder *decoder;
    make_toy(&t, 3);
    const int64_t offsets[] = {0, 1};
    shoal_word_settings bad = t.settings;
    bad.beam = 0;
    assert_int_equal(shoal_word_decoder_run(t.decoder, &bad, 1, offsets, t.outputs,
                                            &spoken),
                     SHOAL_INVALID);
    bad = t.settings;
    bad.nbest = 0;
    assert_int_equal(shoal_word_decoder_run(t.decoder, &bad, 1, offsets, t.outputs,
                                            &spoken),
                     SHOAL_INVALID);
    t.outputs[1] = NAN;
    assert_int_equal(shoal_word_decoder_run(t.decoder, &t.settings, 1, offsets, t.outputs,
                                            &spoken),
                     SHOAL_INVALID);
    assert_non_null(strstr(shoal_context_message(context), "step 0"));
    assert_int_equal(shoal_word_decoder_create(context, t.lexicon, NULL,
                                               SHOAL_TOPOLOGY_ONE, 0, &decoder),
                     SHOAL_INVALID);
    assert_int_equal(shoal_word_decoder_create(context, t.lexicon, t.ngram,
                                               SHOAL_TOPOLOGY_ONE, 2, &decoder),
                     SHOAL_INVALID);
    shoal_ngram *other;
    static const char text[] =
        "\\data\\\nngram 1=2\n\\1-grams:\n-1 <s>\n-1 </s>\n\\end\\\n";
    assert_int_equal(sh_arpa_parse(context, "other", text, strlen(text), &other),
                     SHOAL_OK);
    assert_int_equal(sh_ngram_finish(other, "other"), SHOAL_OK);
    assert_int_equal(shoal_word_decoder_create(context, t.lexicon, other,
                                               SHOAL_TOPOLOGY_ONE, 0, &decoder),
                     SHOAL_BAD_FILE);
    assert_int_equal(shoal_word_decoder_create(context, t.lexicon, other,
                                               SHOAL_TOPOLOGY_ONE, 1e-6, &decoder),
                     SHOAL_OK);
    assert_int_equal(shoal_word_decoder_describe(decoder)->words, WORDS);
    shoal_word_decoder_destroy(decoder);
    shoal_ngram_destroy(other);
    free_toy(&t);
}

/* ---- English ----------------------------------------------------------------------- */

#define ENGLISH "/usr/share/pocketsphinx/model/en-us/"

/* Outputs of three steps per phone that favour the words' first pronunciations; returns
   the number of steps. */
static int64_t speak(const shoal_lexicon *lexicon, const char *const *said, int count,
                     int64_t outputs, float *values) {
    int64_t step = 0;
    for (int i = 0; i < count; i++) {
        const int32_t *phones;
        const int64_t word = shoal_lexicon_find(lexicon, said[i]);
        const int64_t length = shoal_lexicon_pronunciation(lexicon, word, 0, &phones);
        assert_true(length > 0);
        for (int64_t k = 0; k < 3 * length; k++, step++) {
            for (int64_t o = 0; o < outputs; o++)
                values[step * outputs + o] = (float)(2 * uniform() - 1);
            values[step * outputs + 2 * phones[k / 3] + (k % 3 > 0)] += 3;
        }
    }
    return step;
}

/* Words from 72,547, some of which are homophones. */
static void english_words(void **state) {
    (void)state;
    static const char *const said[] = {"she", "asked",  "what", "time", "it",  "was",
                                       "and", "looked", "out",  "of",   "the", "window"};
    enum { COUNT = sizeof said / sizeof *said, OUTPUTS = 80 };
    static float values[OUTPUTS * 400];
    const char *path = ENGLISH "cmudict-en-us.dict";
    shoal_lexicon *lexicon = NULL;
    shoal_ngram *ngram = NULL;
    shoal_word_decoder *decoder = NULL;
    shoal_spoken spoken;
    if (access(path, R_OK) != 0 || access(ENGLISH "en-us.lm.bin", R_OK) != 0) {
        printf("%s is not there (Debian's pocketsphinx-en-us)\n", ENGLISH);
        skip();
    }
    if (shoal_lexicon_open(context, &path, 1, NULL, &lexicon) != SHOAL_OK ||
        shoal_ngram_open(context, ENGLISH "en-us.lm.bin", &ngram) != SHOAL_OK ||
        shoal_word_decoder_create(context, lexicon, ngram, SHOAL_TOPOLOGY_CHAIN, 0,
                                  &decoder) != SHOAL_OK)
        fail_msg("%s", shoal_context_message(context));
    const shoal_word_decoder_info info = *shoal_word_decoder_describe(decoder);
    assert_int_equal(info.outputs, OUTPUTS);
    assert_true(info.words > 70000 && info.left_out > 50000);
    drawn = 5;
    const int64_t offsets[] = {0, speak(lexicon, said, COUNT, OUTPUTS, values)};
    const shoal_word_settings settings =
        shoal_word_settings_defaults(SHOAL_TOPOLOGY_CHAIN);
    assert_int_equal(shoal_word_decoder_run(decoder, &settings, 1, offsets, values,
                                            &spoken),
                     SHOAL_OK);
    assert_true(spoken.whole);
    assert_int_equal(spoken.strings[0].count, COUNT);
    for (int i = 0; i < COUNT; i++)
        assert_string_equal(spoken.strings[0].words[i].text, said[i]);
    shoal_word_decoder_destroy(decoder);
    shoal_ngram_destroy(ngram);
    shoal_lexicon_destroy(lexicon);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_exhaustive_search),
        cmocka_unit_test(best_strings),
        cmocka_unit_test(long_sequences),
        cmocka_unit_test(batches_and_limits),
        cmocka_unit_test(refusals),
        cmocka_unit_test(english_words),
    };
    assert_int_equal(shoal_context_create(NULL, &context), SHOAL_OK);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    shoal_context_destroy(context);
    return failed;
}
