/* Lattice-free MMI as a loss: gradients compared with finite differences, impossible
   utterances, the file of n-grams, graphs made by hand. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "small_lfmmi.h"

/* ---- The loss ---------------------------------------------------------------------- */

/* Utterances of `texts` [count] with these numbers of steps. */
typedef struct {
    int64_t offsets[TEXTS + 1], word_offsets[TEXTS + 1];
    int32_t words[64];
    shoal_lfmmi_batch batch;
} small_batch;

static void fill_batch(small_batch *b, int count, const int *texts, const int *steps) {
    memset(b, 0, sizeof *b);
    for (int i = 0; i < count; i++) {
        const int64_t first = offsets[texts[i]], own = offsets[texts[i] + 1] - first;
        memcpy(b->words + b->word_offsets[i], words + first, (size_t)own * sizeof *words);
        b->word_offsets[i + 1] = b->word_offsets[i] + own;
        b->offsets[i + 1] = b->offsets[i] + steps[i];
    }
    b->batch = (shoal_lfmmi_batch){sizeof(shoal_lfmmi_batch), count, b->offsets,
                                   b->word_offsets, b->words};
}

/* A spread of 20 gives outputs beyond the range. */
static void check_differences(const shoal_lfmmi_options *options, double spread) {
    static const int texts[] = {3, 0}, steps[] = {9, 5};
    float y[14 * MOST_OUTPUTS], gradient[14 * MOST_OUTPUTS];
    shoal_lfmmi *lfmmi = make_loss(context, options);
    const int64_t outputs = shoal_lfmmi_describe(lfmmi)->outputs, count = 14 * outputs;
    small_batch b;
    shoal_lfmmi_result result, up, down;
    fill_batch(&b, 2, texts, steps);
    fill_random(y, count, spread, 3);
    assert_int_equal(shoal_lfmmi_loss(lfmmi, &b.batch, y, 0.25, gradient, NULL, &result),
                     SHOAL_OK);
    assert_int_equal(result.utterances, 2);
    assert_int_equal(result.steps, 14);
    for (int64_t i = 0; i < count; i++) {
        const float kept = y[i], width = 0.01f;
        y[i] = kept + width;
        shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, NULL, NULL, &up);
        y[i] = kept - width;
        shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, NULL, NULL, &down);
        y[i] = kept;
        check_near(4 * (double)gradient[i], (up.sum - down.sum) / 0.02, 1e-3,
                   "a difference");
    }
    shoal_lfmmi_destroy(lfmmi);
}

static void gradients_are_differences(void **state) {
    for (int32_t topology = SHOAL_TOPOLOGY_CHAIN; topology <= SHOAL_TOPOLOGY_BLANK;
         topology++)
        for (int32_t whole = 0; whole < 2; whole++)
            for (int wide = 0; wide < 2; wide++)
                check_differences(&(shoal_lfmmi_options){.order = 3,
                                                         .topology =
                                                             (shoal_topology)topology,
                                                         .whole = whole,
                                                         .leak = whole ? 0.1f : 1e-5f,
                                                         .l2 = wide ? 0.01f : 0,
                                                         .range = wide ? 0.02f : 0},
                                  wide ? 20 : 1);
}

static void bits_are_the_same_on_any_threads(void **state) {
    enum { STEPS = 60 };
    static const int texts[] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int steps[] = {5, 4, 9, 12, 1, 10, 7, 12};
    static float kept[STEPS * MOST_OUTPUTS], y[STEPS * MOST_OUTPUTS];
    double kept_losses[TEXTS], losses[TEXTS];
    small_batch b;
    fill_batch(&b, TEXTS, texts, steps);
    assert_int_equal(b.offsets[TEXTS], STEPS);
    for (int threads = 1; threads <= 4; threads++) {
        shoal_context *own;
        shoal_lfmmi_result result;
        const shoal_options options = {.size = sizeof(shoal_options), .threads = threads};
        assert_int_equal(shoal_context_create(&options, &own), SHOAL_OK);
        shoal_lfmmi *lfmmi = make_loss(own, NULL);
        fill_random(y, STEPS * MOST_OUTPUTS, 2, 5);
        /* in place */
        assert_int_equal(shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, y, losses, &result),
                         SHOAL_OK);
        assert_int_equal(result.impossible + result.broken, 0);
        if (threads > 1) {
            assert_memory_equal(y, kept, sizeof y);
            assert_memory_equal(losses, kept_losses, sizeof losses);
        }
        memcpy(kept, y, sizeof y);
        memcpy(kept_losses, losses, sizeof losses);
        shoal_lfmmi_destroy(lfmmi);
        shoal_context_destroy(own);
    }
}

static void what_cannot_be_is_counted(void **state) {
    static const int texts[] = {3, 3, 4, 0}, steps[] = {3, 8, 0, 4};
    float y[15 * MOST_OUTPUTS], gradient[15 * MOST_OUTPUTS];
    double losses[4];
    small_batch b;
    shoal_lfmmi_result result;
    shoal_lfmmi *lfmmi = make_loss(context, NULL);
    fill_batch(&b, 4, texts, steps);
    fill_random(y, 15 * MOST_OUTPUTS, 1, 9);
    y[12 * MOST_OUTPUTS] = NAN;
    assert_int_equal(shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, gradient, losses, &result),
                     SHOAL_OK);
    assert_int_equal(result.impossible, 2); /* 5 phones in 3 steps, 1 in none */
    assert_int_equal(result.broken, 1);
    assert_int_equal(result.steps, 12);
    assert_true(losses[0] == 0 && losses[1] > 0 && losses[2] == 0 && losses[3] == 40);
    check_near(result.sum, losses[1] + 40, 1e-12, "the sum");
    for (int64_t i = 0; i < 15 * MOST_OUTPUTS; i++)
        assert_true(
            isfinite(gradient[i]) &&
            (gradient[i] == 0 || (i >= 3 * MOST_OUTPUTS && i < 11 * MOST_OUTPUTS)));
    shoal_lfmmi_destroy(lfmmi);
}

/* "y y y" does not occur, and an n-gram of order 5 without pruning has no arc for
   unseen sequences. */
static void unseen_words_have_no_path(void **state) {
    static const int32_t said[] = {2, 2, 2};
    static const int64_t steps[] = {0, 10}, count[] = {0, 3};
    float y[10 * MOST_OUTPUTS] = {0};
    shoal_lfmmi_result result;
    shoal_lfmmi *lfmmi =
        make_loss(context, &(shoal_lfmmi_options){.order = 5, .extra = -1});
    const shoal_lfmmi_batch batch = {sizeof batch, 1, steps, count, said};
    assert_int_equal(shoal_lfmmi_loss(lfmmi, &batch, y, 1, y, NULL, &result), SHOAL_OK);
    assert_int_equal(result.impossible, 1);
    assert_int_equal(result.utterances, 0);
    shoal_lfmmi_destroy(lfmmi);
}

/* Neither underflow nor overflow: the numerator's best path is far below others. */
static void extreme_outputs_are_borne(void **state) {
    static const int texts[] = {3}, steps[] = {12};
    static const double spreads[] = {40, 300, 1e4, 1e30};
    float y[12 * MOST_OUTPUTS], gradient[12 * MOST_OUTPUTS];
    small_batch b;
    shoal_lfmmi_result result;
    shoal_lfmmi *lfmmi = make_loss(context, &(shoal_lfmmi_options){.leak = 1e-5f});
    fill_batch(&b, 1, texts, steps);
    for (int64_t i = 0; i < COUNT_OF(spreads); i++) {
        fill_random(y, 12 * MOST_OUTPUTS, spreads[i], 11);
        assert_int_equal(shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, gradient, NULL, &result),
                         SHOAL_OK);
        assert_true(isfinite(result.sum));
        assert_int_equal(result.impossible, 0);
        assert_true(i > 2 || result.broken == 0);
        for (int64_t k = 0; k < 12 * MOST_OUTPUTS; k++)
            assert_true(isfinite(gradient[k]));
    }
    shoal_lfmmi_destroy(lfmmi);
}

/* ---- Files ------------------------------------------------------------------------- */

static void find_file(char path[512]) {
    DIR *list = opendir(folder);
    const struct dirent *entry;
    path[0] = 0;
    while ((entry = readdir(list)))
        if (strstr(entry->d_name, ".ngrams"))
            snprintf(path, 512, "%s/%s", folder, entry->d_name);
    closedir(list);
    assert_true(path[0]);
}

static shoal_lfmmi *make_cached(int32_t order, bool cached) {
    shoal_lfmmi *lfmmi =
        make_loss(context, &(shoal_lfmmi_options){.order = order, .cache = folder});
    assert_int_equal(shoal_lfmmi_describe(lfmmi)->cached, cached);
    return lfmmi;
}

static void damage(const char *path, long at) {
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    fseek(file, at, SEEK_SET);
    const int byte = fgetc(file);
    fseek(file, at, SEEK_SET);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void ngrams_are_kept_and_mended(void **state) {
    char path[512];
    shoal_lfmmi_destroy(make_cached(4, false));
    shoal_lfmmi_destroy(make_cached(4, true));
    find_file(path);
    for (long at = 0; at < 400; at += 7) {
        damage(path, at);
        shoal_lfmmi_destroy(make_cached(4, false));
        shoal_lfmmi_destroy(make_cached(4, true));
    }
    assert_int_equal(truncate(path, 90), 0);
    shoal_lfmmi_destroy(make_cached(4, false));
    shoal_lfmmi_destroy(make_cached(3, false)); /* another name */
    shoal_lfmmi_destroy(make_cached(4, true));
}

static void a_saved_model_is_the_same(void **state) {
    static const int texts[] = {3}, steps[] = {9};
    char path[512];
    float y[9 * MOST_OUTPUTS];
    small_batch b;
    shoal_lfmmi_result first, second;
    shoal_lfmmi *lfmmi = make_loss(context, NULL), *again;
    snprintf(path, sizeof path, "%s/phones.graph", folder);
    assert_int_equal(shoal_lfmmi_save(lfmmi, path), SHOAL_OK);
    assert_int_equal(shoal_lfmmi_open(context, NULL, lexicon, path, &again), SHOAL_OK);
    fill_batch(&b, 1, texts, steps);
    fill_random(y, 9 * MOST_OUTPUTS, 1, 2);
    shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, NULL, NULL, &first);
    shoal_lfmmi_loss(again, &b.batch, y, 1, NULL, NULL, &second);
    assert_true(first.sum == second.sum);
    shoal_lfmmi_destroy(again);
    shoal_lfmmi_destroy(lfmmi);
    damage(path, 100);
    assert_int_equal(shoal_lfmmi_open(context, NULL, NULL, path, &again), SHOAL_BAD_FILE);
    assert_null(again);
    assert_int_not_equal(shoal_lfmmi_open(context, NULL, NULL, "/nowhere", &again),
                         SHOAL_OK);
}

/* A file of the corpus is a valid graph if its name begins with "ok-". */
static void graphs_are_checked(void **state) {
    static const char corpus[] = SHOAL_SOURCE_DIR "/tests/corpus/graph";
    DIR *list = opendir(corpus);
    const struct dirent *entry;
    int good = 0, bad = 0;
    assert_non_null(list);
    while ((entry = readdir(list))) {
        char path[512];
        unsigned char bytes[4096];
        phone_lm lm;
        snprintf(path, sizeof path, "%s/%.200s", corpus, entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!file)
            continue;
        const size_t size = fread(bytes, 1, sizeof bytes, file) - 1;
        fclose(file);
        const uint64_t sum = sh_phone_lm_sum(bytes + 1, size);
        memcpy(bytes + 1 + PHONE_LM_SUM_PLACE, &sum, sizeof sum);
        const bool wanted = strncmp(entry->d_name, "ok-", 3) == 0;
        if ((sh_phone_lm_parse(context, "it", bytes + 1, size, 0, &lm) == SHOAL_OK) !=
            wanted)
            fail_msg("%s is %s", entry->d_name, wanted ? "refused" : "taken");
        sh_phone_lm_free(&lm);
        good += wanted;
        bad += !wanted;
    }
    closedir(list);
    assert_true(good >= 6 && bad >= 12);
}

/* The model with two more states: nothing leads to the first, which leads to state 1,
   and nothing to or from the second. */
static phone_lm with_unreached(const phone_lm *lm) {
    phone_lm more = {.phones = lm->phones,
                     .order = lm->order,
                     .states = lm->states + 2,
                     .arcs = lm->arcs + 1};
    assert_true(sh_phone_lm_allocate(NULL, &more));
    const size_t states = (size_t)lm->states, arcs = (size_t)lm->arcs;
    memcpy(more.last, lm->last, states * sizeof *lm->last);
    memcpy(more.first, lm->first, (states + 1) * sizeof *lm->first);
    memcpy(more.phone, lm->phone, arcs * sizeof *lm->phone);
    memcpy(more.next, lm->next, arcs * sizeof *lm->next);
    memcpy(more.weight, lm->weight, arcs * sizeof *lm->weight);
    memcpy(more.end, lm->end, states * sizeof *lm->end);
    more.last[states] = more.last[states + 1] = 0;
    more.first[states + 1] = more.first[states + 2] = more.arcs;
    more.phone[arcs] = lm->last[1];
    more.next[arcs] = 1;
    more.weight[arcs] = 1;
    more.end[states] = more.end[states + 1] = 0;
    return more;
}

static shoal_lfmmi *open_model(const phone_lm *lm, int32_t whole) {
    char path[512];
    shoal_lfmmi *made;
    snprintf(path, sizeof path, "%s/hand.graph", folder);
    assert_int_equal(sh_phone_lm_write(context, lm, 0, path), SHOAL_OK);
    shoal_lfmmi_options options = shoal_lfmmi_options_defaults();
    options.whole = whole;
    assert_int_equal(shoal_lfmmi_open(context, &options, lexicon, path, &made), SHOAL_OK);
    return made;
}

static void unreached_states_change_nothing(void **state) {
    enum { STEPS = 9, ALL = STEPS * MOST_OUTPUTS };
    static const int texts[] = {3}, steps[] = {STEPS};
    static const int64_t sequence[] = {0, STEPS};
    for (int32_t whole = 0; whole < 2; whole++) {
        float y[ALL], gradients[2][ALL];
        int32_t phones[2][STEPS], begins[2][STEPS];
        int64_t counts[2];
        shoal_lfmmi_result results[2];
        small_batch b;
        phone_lm lm = make_model(4, 3), more = with_unreached(&lm);
        fill_batch(&b, 1, texts, steps);
        fill_random(y, ALL, 1, 5);
        for (int i = 0; i < 2; i++) {
            shoal_lfmmi *lfmmi = open_model(i ? &more : &lm, whole);
            shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, gradients[i], NULL, &results[i]);
            shoal_lfmmi_decode(lfmmi, 1, sequence, y, phones[i], begins[i], &counts[i]);
            shoal_lfmmi_destroy(lfmmi);
        }
        assert_true(results[0].broken == 0 && results[0].impossible == 0);
        assert_true(results[0].sum == results[1].sum && results[0].sum > 0);
        assert_memory_equal(gradients[0], gradients[1], sizeof gradients[0]);
        assert_true(counts[0] > 0 && counts[0] == counts[1]);
        assert_memory_equal(phones[0], phones[1], (size_t)counts[0] * sizeof **phones);
        sh_phone_lm_free(&more);
        sh_phone_lm_free(&lm);
    }
}

/* A start without arcs: every utterance is impossible, and counted as such. */
static void a_graph_without_paths_is_borne(void **state) {
    enum { STEPS = 6, ALL = STEPS * MOST_OUTPUTS };
    static const int texts[] = {3}, steps[] = {STEPS};
    static const int64_t sequence[] = {0, STEPS};
    float y[ALL], gradient[ALL];
    int32_t phones[STEPS], begins[STEPS];
    int64_t count;
    shoal_lfmmi_result result;
    small_batch b;
    phone_lm lm = {.phones = PHONES, .order = 2, .states = 1};
    assert_true(sh_phone_lm_allocate(NULL, &lm));
    lm.last[0] = -1;
    lm.first[0] = lm.first[1] = 0;
    lm.end[0] = 1;
    shoal_lfmmi *lfmmi = open_model(&lm, 1);
    fill_batch(&b, 1, texts, steps);
    fill_random(y, ALL, 1, 5);
    assert_int_equal(shoal_lfmmi_loss(lfmmi, &b.batch, y, 1, gradient, NULL, &result),
                     SHOAL_OK);
    assert_int_equal(result.impossible, 1);
    for (int i = 0; i < ALL; i++)
        assert_true(gradient[i] == 0);
    assert_int_equal(shoal_lfmmi_decode(lfmmi, 1, sequence, y, phones, begins, &count),
                     SHOAL_OK);
    assert_int_equal(count, 0);
    shoal_lfmmi_destroy(lfmmi);
    sh_phone_lm_free(&lm);
}

static void nonsense_is_refused(void **state) {
    static const int64_t falling[] = {0, 2, 1};
    static const int32_t beyond[] = {0, 4};
    shoal_lfmmi *lfmmi;
    const shoal_lfmmi_options bad[] =
        {{.order = 1},  {.order = 6}, {.topology = SHOAL_TOPOLOGY_CTC},
         {.leak = 2},   {.leak = -1}, {.leak = NAN},
         {.extra = -1}, {.l2 = NAN},  {.range = NAN},
         {.l2 = -1},    {.range = -1}};
    for (int64_t i = 0; i < COUNT_OF(bad); i++) {
        shoal_lfmmi_options options = complete_options(&bad[i]);
        options.extra = bad[i].extra ? bad[i].extra : options.extra;
        options.leak = bad[i].leak != 0 ? bad[i].leak : options.leak;
        options.l2 = bad[i].l2 != 0 ? bad[i].l2 : options.l2;
        options.range = bad[i].range != 0 ? bad[i].range : options.range;
        assert_int_equal(shoal_lfmmi_create(context, &options, lexicon, TEXTS, offsets,
                                            words, &lfmmi),
                         SHOAL_INVALID);
    }
    assert_int_equal(shoal_lfmmi_create(context, &(shoal_lfmmi_options){.order = 3},
                                        lexicon, TEXTS, offsets, words, &lfmmi),
                     SHOAL_INVALID); /* without a size */
    assert_int_equal(shoal_lfmmi_create(context, NULL, lexicon, 2, falling, words,
                                        &lfmmi),
                     SHOAL_INVALID);
    assert_int_equal(shoal_lfmmi_create(context, NULL, lexicon, 1, falling, beyond,
                                        &lfmmi),
                     SHOAL_INVALID);
    assert_int_equal(shoal_lfmmi_create(context, NULL, lexicon, 0, falling, words,
                                        &lfmmi),
                     SHOAL_INVALID);
    assert_int_equal(shoal_lfmmi_create(context, NULL, NULL, 0, falling, words, &lfmmi),
                     SHOAL_INVALID);
    shoal_lfmmi_destroy(NULL);
    shoal_lfmmi_result result;
    assert_int_equal(shoal_lfmmi_loss(NULL, NULL, NULL, 1, NULL, NULL, &result),
                     SHOAL_INVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(bits_are_the_same_on_any_threads),
        cmocka_unit_test(what_cannot_be_is_counted),
        cmocka_unit_test(unseen_words_have_no_path),
        cmocka_unit_test(extreme_outputs_are_borne),
        cmocka_unit_test(ngrams_are_kept_and_mended),
        cmocka_unit_test(a_saved_model_is_the_same),
        cmocka_unit_test(graphs_are_checked),
        cmocka_unit_test(unreached_states_change_nothing),
        cmocka_unit_test(a_graph_without_paths_is_borne),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, small_lfmmi_set_up, small_lfmmi_tear_down);
}
