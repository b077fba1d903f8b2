/* Lattice-free MMI: the n-gram against strings one by one, both passes against all paths
   one by one, against recorded values of the plain reference and against differences;
   the file of n-grams; utterances that cannot be. */
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases.h"
#include "folders.h"
#include "speech/lfmmi.h"
#include "support.h"

enum { PHONES = 4, SILENCE = 3, TEXTS = 8, MOST_STEPS = 12, MOST_OUTPUTS = 8 };

static shoal_context *context;
static shoal_lexicon *lexicon;
static const char *folder;

/* v, x, y and z are words 0 to 3; y and z have two pronunciations. */
static const char lexicon_text[] = "v A\nx B A\ny C B\ny A C\nz B\nz B B\n";
static const int32_t words[] = {0, 1, 2, 3, 3, 1, 1, 2, 0, 0, 2, 3, 1, 3, 0, 2, 1};
static const int64_t offsets[TEXTS + 1] = {0, 2, 3, 6, 9, 10, 12, 13, 17};

static phone_texts all_texts(void) {
    return (phone_texts){lexicon, TEXTS, offsets, words};
}

static phone_lm make_model(int32_t order, int64_t extra) {
    phone_lm lm;
    const phone_texts texts = all_texts();
    assert_int_equal(sh_phone_lm_make(context, &texts, order, extra, &lm), SHOAL_OK);
    return lm;
}

static void fill_outputs(float *y, int64_t steps, int64_t outputs) {
    for (int64_t t = 0; t < steps; t++)
        for (int64_t n = 0; n < outputs; n++)
            y[t * outputs + n] = (float)(2 * sin(0.37 * (double)t + 1.13 * (double)n));
}

static void free_scratch(lfmmi_scratch *scratch) {
    free(scratch->rows);
    free(scratch->gradient);
    free(scratch->small);
}

static void check_near(double found, double wanted, double tolerance, const char *what) {
    if (!(fabs(found - wanted) <= tolerance * (1 + fabs(wanted))))
        fail_msg("%s is %.9g, not %.9g", what, found, wanted);
}

/* ---- The n-gram: strings one by one ------------------------------------------------ */

enum { MOST_LENGTH = 16, MOST_STRINGS = 4096 };

typedef struct {
    int32_t phones[MOST_LENGTH]; /* -1 behind the last, which stands for the end */
    int length;                  /* with it */
    double share;
} spoken;

static spoken strings[MOST_STRINGS];
static int string_count;

/* All ways of saying words [at, end), each with or without silences. */
static void say(spoken s, int64_t at, int64_t begin, int64_t end) {
    const double silent = at == begin || at == end ? 0.8 : 0.1;
    for (int quiet = 0; quiet < 2; quiet++) {
        spoken more = s;
        more.share *= quiet ? silent : 1 - silent;
        if (quiet)
            more.phones[more.length++] = SILENCE;
        if (at == end) {
            more.phones[more.length++] = -1;
            strings[string_count++] = more;
            continue;
        }
        const int64_t count = shoal_lexicon_pronunciations(lexicon, words[at]);
        for (int64_t i = 0; i < count; i++) {
            spoken said = more;
            const int32_t *phones;
            const int64_t length =
                shoal_lexicon_pronunciation(lexicon, words[at], i, &phones);
            for (int64_t k = 0; k < length; k++)
                said.phones[said.length++] = phones[k];
            said.share /= (double)count;
            say(said, at + 1, begin, end);
        }
    }
}

static void say_all(void) {
    string_count = 0;
    for (int u = 0; u < TEXTS; u++)
        say((spoken){.share = 1}, offsets[u], offsets[u], offsets[u + 1]);
}

/* Whether the symbols before a and b, as far as order - 1 back, are the same. */
static bool same_history(const spoken *s, int a, const spoken *r, int b, int order) {
    for (int k = 1; k < order; k++) {
        const bool out = a - k < 0, other = b - k < 0;
        if (out || other)
            return out == other && (k > 1 || a == b);
        if (s->phones[a - k] != r->phones[b - k])
            return false;
    }
    return true;
}

/* The share of symbol `at` of the string among all that stand behind its history. */
static double plain_share(const spoken *s, int at, int order) {
    double with = 0, all = 0;
    for (int r = 0; r < string_count; r++)
        for (int b = 0; b < strings[r].length; b++)
            if (same_history(s, at, &strings[r], b, order)) {
                all += strings[r].share;
                with += s->phones[at] == strings[r].phones[b] ? strings[r].share : 0;
            }
    return with / all;
}

static void ngrams_are_those_of_all_strings(void **state) {
    say_all();
    for (int32_t order = 2; order <= 5; order++) {
        phone_lm lm = make_model(order, -1);
        for (int i = 0; i < string_count; i += 37) {
            int32_t at = 0;
            for (int k = 0; k < strings[i].length; k++) {
                const double wanted = plain_share(&strings[i], k, order);
                if (strings[i].phones[k] < 0) {
                    check_near(lm.end[at], wanted, 1e-12, "an end");
                    continue;
                }
                const int32_t arc = sh_phone_lm_arc(&lm, at, strings[i].phones[k]);
                assert_true(arc >= 0);
                check_near(lm.weight[arc], wanted, 1e-12, "an arc");
                at = lm.next[arc];
                assert_int_equal(lm.last[at], strings[i].phones[k]);
            }
        }
        sh_phone_lm_free(&lm);
    }
}

static void rows_are_normalised(void **state) {
    static const int64_t extras[] = {-1, 0, 1, 4, 1000};
    for (int64_t i = 0; i < COUNT_OF(extras); i++)
        for (int32_t order = 2; order <= 5; order++) {
            phone_lm lm = make_model(order, extras[i]);
            for (int32_t s = 0; s < lm.states; s++) {
                double sum = lm.end[s];
                for (int32_t a = lm.first[s]; a < lm.first[s + 1]; a++)
                    sum += lm.weight[a];
                check_near(sum, 1, 1e-12, "a row");
            }
            sh_phone_lm_free(&lm);
        }
}

/* ---- Paths one by one -------------------------------------------------------------- */

/* Sums over all paths, in double and from the language model itself. */
typedef struct {
    const phone_lm *lm;
    const double *init, *final, *occupancy; /* [states] */
    double leak;
    int32_t topology;
    const float *y;
    int64_t steps, outputs;
    double sum, best;
    double *gradient; /* [steps][outputs] */
    int taken[MOST_STEPS];
} all_paths;

static int entry_of(const all_paths *p, int32_t phone) {
    return p->topology == SHOAL_TOPOLOGY_CHAIN ? 2 * phone : phone;
}

static int loop_of(const all_paths *p, int32_t phone) {
    return p->topology == SHOAL_TOPOLOGY_CHAIN ? 2 * phone + 1
           : p->topology == SHOAL_TOPOLOGY_ONE ? phone
                                               : PHONES;
}

static void walk(all_paths *p, int64_t t, int32_t at, double weight);

static void take_arc(all_paths *p, int64_t t, int32_t to, double weight, int output) {
    p->taken[t] = output;
    walk(p, t + 1, to, weight * exp((double)p->y[t * p->outputs + output]));
}

static void leave(all_paths *p, int64_t t, int32_t at, double weight) {
    if (t == p->steps) {
        const double whole = weight * p->final[at];
        p->sum += whole;
        p->best = whole > p->best ? whole : p->best;
        for (int64_t k = 0; k < t; k++)
            p->gradient[k * p->outputs + p->taken[k]] += whole;
        return;
    }
    for (int32_t a = p->lm->first[at]; a < p->lm->first[at + 1]; a++)
        take_arc(p, t, p->lm->next[a], weight * p->lm->weight[a],
                 entry_of(p, p->lm->phone[a]));
    if (at > 0)
        take_arc(p, t, at, weight, loop_of(p, p->lm->last[at]));
}

static void walk(all_paths *p, int64_t t, int32_t at, double weight) {
    if (weight <= 0)
        return;
    leave(p, t, at, weight);
    for (int32_t s = 0; s < p->lm->states && p->leak > 0; s++)
        leave(p, t, s, weight * p->leak * p->occupancy[s]);
}

typedef struct {
    double init[64], final[64], occupancy[64];
} plain_vectors;

/* By the definition, with matrices. */
static void find_vectors(const phone_lm *lm, bool whole, plain_vectors *v) {
    static double matrix[64][64];
    double now[64] = {1}, then[64];
    memset(matrix, 0, sizeof matrix);
    memset(v, 0, sizeof *v);
    for (int32_t s = 0; s < lm->states; s++) {
        for (int32_t a = lm->first[s]; a < lm->first[s + 1]; a++)
            matrix[s][lm->next[a]] += lm->weight[a] / (s ? 2 : 1);
        matrix[s][s] += s ? 0.5 : 0;
    }
    for (int step = 0; step < 100; step++) {
        double sum = 0;
        for (int32_t s = 0; s < lm->states; s++) {
            v->occupancy[s] += now[s] / 100;
            then[s] = 0;
            for (int32_t r = 0; r < lm->states; r++)
                then[s] += now[r] * matrix[r][s];
            sum += then[s];
        }
        for (int32_t s = 0; s < lm->states; s++)
            now[s] = then[s] / sum;
    }
    for (int32_t s = 0; s < lm->states; s++) {
        v->init[s] = whole ? s == 0 : v->occupancy[s];
        v->final[s] = whole ? lm->end[s] : 1;
    }
}

static void check_denominator(int32_t order, int64_t extra, int32_t topology, bool whole,
                              double leak, int64_t steps) {
    phone_lm lm = make_model(order, extra);
    plain_vectors v;
    den_graph den;
    lfmmi_scratch scratch = {0};
    const int64_t outputs = sh_lfmmi_outputs(topology, PHONES);
    float y[4 * MOST_OUTPUTS], gradient[4 * MOST_OUTPUTS] = {0};
    double exact[4 * MOST_OUTPUTS] = {0}, found;
    assert_true(lm.states <= 64);
    fill_outputs(y, steps, outputs);
    find_vectors(&lm, whole, &v);
    assert_true(sh_den_make(&lm, topology, whole, &den));
    all_paths p = {.lm = &lm,
                   .init = v.init,
                   .final = v.final,
                   .occupancy = v.occupancy,
                   .leak = leak,
                   .topology = topology,
                   .y = y,
                   .steps = steps,
                   .outputs = outputs,
                   .gradient = exact};
    for (int32_t s = 0; s < lm.states; s++)
        walk(&p, 0, s, v.init[s]);
    assert_true(
        sh_den_pass(&den, (float)leak, y, steps, outputs, &scratch, &found, gradient, 1));
    check_near(found, log(p.sum), 1e-5, "log den");
    for (int64_t i = 0; i < steps * outputs; i++)
        check_near((double)gradient[i], exact[i] / p.sum, 1e-5, "a posterior");
    free_scratch(&scratch);
    sh_den_free(&den);
    sh_phone_lm_free(&lm);
}

static void denominators_are_sums_of_all_paths(void **state) {
    for (int32_t topology = SHOAL_TOPOLOGY_CHAIN; topology <= SHOAL_TOPOLOGY_BLANK;
         topology++)
        for (int whole = 0; whole < 2; whole++)
            for (int leaky = 0; leaky < 2; leaky++)
                for (int64_t steps = whole ? 2 : 1; steps <= 3; steps++) {
                    check_denominator(2, -1, topology, whole, 0.1 * leaky, steps);
                    check_denominator(3, 2, topology, whole, 0.1 * leaky, steps);
                }
    check_denominator(2, -1, SHOAL_TOPOLOGY_CHAIN, false, 0.1, 4);
    check_denominator(3, -1, SHOAL_TOPOLOGY_CHAIN, true, 0, 4);
}

/* A numerator is the sum over all strings of the utterance, each over all durations. */
static void add_string(const phone_lm *lm, const spoken *s, int32_t at, int k,
                       double weight, all_paths *p, int64_t t) {
    if (s->phones[k] < 0) {
        if (t == p->steps)
            p->sum += weight * p->final[at];
        return;
    }
    const int32_t arc = sh_phone_lm_arc(lm, at, s->phones[k]);
    if (arc < 0)
        return;
    double longer = weight * lm->weight[arc];
    for (int64_t to = t; to < p->steps; to++) {
        const int output = to == t ? entry_of(p, s->phones[k]) : loop_of(p, s->phones[k]);
        longer *= exp((double)p->y[to * p->outputs + output]);
        add_string(lm, s, lm->next[arc], k + 1, longer, p, to + 1);
    }
}

static void check_numerator(int32_t order, int64_t extra, int32_t topology, bool whole,
                            int text, int64_t steps) {
    phone_lm lm = make_model(order, extra);
    plain_vectors v;
    den_graph den;
    num_graph num;
    lfmmi_scratch scratch = {0};
    const int64_t outputs = sh_lfmmi_outputs(topology, PHONES);
    float y[MOST_STEPS * MOST_OUTPUTS];
    double found;
    fill_outputs(y, steps, outputs);
    find_vectors(&lm, whole, &v);
    assert_true(sh_den_make(&lm, topology, whole, &den));
    assert_true(sh_num_make(&lm, &den, topology, lexicon, words + offsets[text],
                            offsets[text + 1] - offsets[text], &num));
    all_paths p = {.topology = topology,
                   .final = v.final,
                   .y = y,
                   .steps = steps,
                   .outputs = outputs};
    string_count = 0;
    say((spoken){.share = 1}, offsets[text], offsets[text], offsets[text + 1]);
    for (int i = 0; i < string_count; i++)
        for (int32_t s = 0; s < lm.states; s++)
            if (v.init[s] > 0)
                add_string(&lm, &strings[i], s, 0, v.init[s], &p, 0);
    assert_true(sh_num_pass(context->kernels, &num, y, steps, outputs, &scratch, &found,
                            NULL, 1));
    if (p.sum > 0)
        check_near(found, log(p.sum), 1e-5, "log num");
    else
        assert_true(isinf(found) && found < 0);
    free_scratch(&scratch);
    sh_num_free(&num);
    sh_den_free(&den);
    sh_phone_lm_free(&lm);
}

static void numerators_are_sums_of_all_strings(void **state) {
    for (int32_t topology = SHOAL_TOPOLOGY_CHAIN; topology <= SHOAL_TOPOLOGY_BLANK;
         topology++)
        for (int whole = 0; whole < 2; whole++)
            for (int text = 0; text < TEXTS; text++)
                for (int64_t steps = 1; steps <= 8; steps += 1 + (steps > 3)) {
                    check_numerator(2, -1, topology, whole, text, steps);
                    check_numerator(4, 5, topology, whole, text, steps);
                }
}

/* ---- Recorded values --------------------------------------------------------------- */

/* Of the plain reference in double, y[t][n] = 2 sin(0.37 t + 1.13 n), leak 0.1. */
static const struct {
    int32_t order;
    int64_t extra;
    int32_t topology, whole, text, steps, states, arcs;
    double num, den;
    float first, middle, last; /* of the gradient: [0][0], [T / 2][2] and the last one */
} recorded[] = {
    {2, -1, 1, 1, 3, 12, 5, 21, 6.98459, 14.14654, -0.08031f, -0.00300f, -0.01005f},
    {2, -1, 2, 0, 3, 12, 5, 21, 12.50653, 20.78642, -0.02703f, 0.06052f, 0.02265f},
    {2, -1, 2, 1, 2, 9, 5, 21, 10.37256, 13.76870, -0.02317f, -0.00137f, 0.04169f},
    {2, -1, 3, 0, 2, 9, 5, 21, 10.74953, 12.96703, -0.05461f, -0.01771f, 0.01567f},
    {3, -1, 1, 0, 3, 12, 18, 61, 8.82751, 17.78026, -0.07309f, -0.00169f, 0.03095f},
    {3, -1, 1, 1, 2, 9, 18, 61, 0.56050, 11.59691, -0.04721f, 0.33075f, 0.42945f},
    {3, -1, 2, 0, 2, 9, 18, 61, 12.77069, 16.38526, -0.02067f, -0.00100f, 0.08703f},
    {3, -1, 3, 1, 3, 12, 18, 61, 12.28985, 17.49801, -0.02826f, 0.00188f, -0.04290f},
    {3, 2, 1, 0, 3, 12, 7, 28, 8.80202, 17.72161, -0.07608f, -0.00186f, 0.00131f},
    {3, 2, 1, 1, 2, 9, 7, 28, 0.32997, 11.25340, -0.05169f, 0.34548f, 0.42349f},
    {3, 2, 2, 0, 2, 9, 7, 28, 12.73103, 16.58388, -0.02647f, -0.00134f, 0.01864f},
    {3, 2, 3, 1, 3, 12, 7, 28, 12.46591, 17.73083, -0.03267f, -0.00373f, -0.02935f},
    {4, -1, 1, 0, 2, 9, 45, 139, 0.78705, 14.61751, -0.06716f, 0.16160f, 0.40498f},
    {4, -1, 2, 1, 3, 12, 45, 139, 14.39388, 19.04909, -0.03429f, 0.16748f, -0.00323f},
    {4, -1, 3, 0, 3, 12, 45, 139, 12.92603, 18.18588, -0.03072f, -0.00778f, -0.08031f},
    {4, -1, 3, 1, 2, 9, 45, 139, 9.64824, 10.77262, -0.01613f, -0.02515f, -0.06749f},
    {4, 5, 1, 0, 2, 9, 23, 75, 0.90138, 14.63326, -0.07318f, 0.16888f, 0.38841f},
    {4, 5, 2, 1, 3, 12, 23, 75, 14.00828, 19.06765, -0.03400f, 0.16904f, -0.00341f},
    {4, 5, 3, 0, 3, 12, 23, 75, 13.20137, 18.59415, -0.03030f, -0.01149f, -0.09305f},
    {4, 5, 3, 1, 2, 9, 23, 75, 8.95298, 10.59864, -0.02154f, -0.03127f, -0.07247f},
    {4, 0, 1, 0, 2, 9, 18, 61, 1.06419, 14.63245, -0.07321f, 0.16862f, 0.40409f},
    {4, 0, 2, 1, 3, 12, 18, 61, 12.61202, 19.06789, -0.03041f, 0.17108f, -0.00370f},
    {4, 0, 3, 0, 3, 12, 18, 61, 12.24804, 18.57340, -0.03353f, -0.00871f, -0.06297f},
    {4, 0, 3, 1, 2, 9, 18, 61, 9.11667, 10.58195, -0.02831f, -0.02141f, -0.06765f},
    {5, 7, 1, 1, 3, 12, 52, 160, 9.95923, 14.50611, -0.03514f, -0.00145f, 0.06661f},
    {5, 7, 2, 0, 3, 12, 52, 160, 13.19694, 20.18435, -0.02155f, 0.16449f, -0.00666f},
    {5, 7, 2, 1, 2, 9, 52, 160, 12.11473, 14.11880, -0.03591f, -0.00194f, 0.03587f},
    {5, 7, 3, 0, 2, 9, 52, 160, 10.24829, 11.31396, -0.04238f, -0.02031f, -0.02033f},
};

static void values_are_the_references(void **state) {
    for (int64_t i = 0; i < COUNT_OF(recorded); i++) {
        const int32_t text = recorded[i].text, steps = recorded[i].steps;
        const int64_t outputs = sh_lfmmi_outputs(recorded[i].topology, PHONES);
        float y[MOST_STEPS * MOST_OUTPUTS], gradient[MOST_STEPS * MOST_OUTPUTS] = {0};
        double num_log, den_log;
        lfmmi_scratch scratch = {0};
        den_graph den;
        num_graph num;
        phone_lm lm = make_model(recorded[i].order, recorded[i].extra);
        fill_outputs(y, steps, outputs);
        assert_true(sh_den_make(&lm, recorded[i].topology, recorded[i].whole, &den));
        assert_int_equal(den.states, recorded[i].states);
        assert_int_equal(den.arcs + den.states - 1, recorded[i].arcs);
        assert_true(sh_num_make(&lm, &den, recorded[i].topology, lexicon,
                                words + offsets[text], offsets[text + 1] - offsets[text],
                                &num));
        assert_true(sh_num_pass(context->kernels, &num, y, steps, outputs, &scratch,
                                &num_log, gradient, 1));
        assert_true(
            sh_den_pass(&den, 0.1f, y, steps, outputs, &scratch, &den_log, gradient, -1));
        check_near(num_log, recorded[i].num, 5e-6, "log num");
        check_near(den_log, recorded[i].den, 5e-6, "log den");
        const float *middle = gradient + steps / 2 * outputs + 2;
        check_near((double)gradient[0], (double)recorded[i].first, 1e-5, "a gradient");
        check_near((double)*middle, (double)recorded[i].middle, 1e-5, "a gradient");
        check_near((double)gradient[steps * outputs - 1], (double)recorded[i].last, 1e-5,
                   "a gradient");
        free_scratch(&scratch);
        sh_num_free(&num);
        sh_den_free(&den);
        sh_phone_lm_free(&lm);
    }
}

/* ---- The loss ---------------------------------------------------------------------- */

static shoal_lfmmi *make_loss(shoal_context *own, const shoal_lfmmi_options *options) {
    shoal_lfmmi *lfmmi;
    assert_int_equal(shoal_lfmmi_create(own, options, lexicon, TEXTS, offsets, words,
                                        &lfmmi),
                     SHOAL_OK);
    return lfmmi;
}

/* Utterances of `texts` [count] with so many steps each. */
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
    b->batch = (shoal_lfmmi_batch){count, b->offsets, b->word_offsets, b->words};
}

static void fill_random(float *y, int64_t count, double spread, uint64_t seed) {
    for (int64_t i = 0; i < count; i++)
        y[i] = (float)(spread * test_normal(test_hash(seed, 7, (uint64_t)i)));
}

/* Spreads of 20 have outputs beyond the range. */
static void check_differences(const shoal_lfmmi_options *options, double spread) {
    static const int texts[] = {3, 0}, steps[] = {9, 5};
    float y[14 * MOST_OUTPUTS], gradient[14 * MOST_OUTPUTS];
    shoal_lfmmi *lfmmi = make_loss(context, options);
    const int64_t outputs = shoal_lfmmi_describe(lfmmi).outputs, count = 14 * outputs;
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
                                                         .topology = topology,
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
        const shoal_options options = {.threads = threads};
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

/* "z v" was never said so: A does not follow upon B there at the beginning of a word
   after another z; an n-gram of order 5 without pruning has no such arc. */
static void unseen_words_have_no_path(void **state) {
    static const int32_t said[] = {2, 2, 2};
    static const int64_t steps[] = {0, 10}, count[] = {0, 3};
    float y[10 * MOST_OUTPUTS] = {0};
    shoal_lfmmi_result result;
    shoal_lfmmi *lfmmi =
        make_loss(context, &(shoal_lfmmi_options){.order = 5, .extra = -1});
    const shoal_lfmmi_batch batch = {1, steps, count, said};
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

/* ---- The best path ----------------------------------------------------------------- */

/* Every sequence of states one by one; keeps the phones of the best. */
typedef struct {
    all_paths p;
    int32_t now[4], kept[4];
    int now_count, kept_count;
} best_search;

static void search(best_search *b, int64_t t, int32_t at, double weight) {
    all_paths *p = &b->p;
    if (t == p->steps) {
        if (weight * p->final[at] > p->best) {
            p->best = weight * p->final[at];
            memcpy(b->kept, b->now, sizeof b->now);
            b->kept_count = b->now_count;
        }
        return;
    }
    const float *y = p->y + t * p->outputs;
    for (int32_t a = p->lm->first[at]; a < p->lm->first[at + 1]; a++) {
        const int32_t phone = p->lm->phone[a];
        const int count = b->now_count;
        if (phone != SILENCE)
            b->now[b->now_count++] = phone;
        search(b, t + 1, p->lm->next[a],
               weight * p->lm->weight[a] * exp((double)y[entry_of(p, phone)]));
        b->now_count = count;
    }
    if (at > 0)
        search(b, t + 1, at, weight * exp((double)y[loop_of(p, p->lm->last[at])]));
}

static void check_best(int32_t topology, bool whole, uint64_t seed) {
    enum { STEPS = 4 };
    static const int64_t rows[] = {0, STEPS};
    phone_lm lm = make_model(3, -1);
    plain_vectors v;
    float y[STEPS * MOST_OUTPUTS];
    int32_t phones[STEPS], begins[STEPS];
    int64_t count;
    shoal_lfmmi *lfmmi = make_loss(context, &(shoal_lfmmi_options){.order = 3,
                                                                   .extra = -1,
                                                                   .topology = topology,
                                                                   .whole = whole});
    find_vectors(&lm, whole, &v);
    fill_random(y, STEPS * MOST_OUTPUTS, 2, seed);
    best_search b = {.p = {.lm = &lm,
                           .final = v.final,
                           .topology = topology,
                           .y = y,
                           .steps = STEPS,
                           .outputs = sh_lfmmi_outputs(topology, PHONES)}};
    for (int32_t s = 0; s < lm.states; s++)
        if (v.init[s] > 0)
            search(&b, 0, s, v.init[s]);
    assert_int_equal(shoal_lfmmi_decode(lfmmi, 1, rows, y, phones, begins, &count),
                     SHOAL_OK);
    assert_int_equal(count, b.kept_count);
    for (int64_t i = 0; i < count; i++) {
        assert_int_equal(phones[i], b.kept[i]);
        assert_true(begins[i] < STEPS && (i == 0 || begins[i] > begins[i - 1]));
    }
    shoal_lfmmi_destroy(lfmmi);
    sh_phone_lm_free(&lm);
}

static void the_best_path_is_found(void **state) {
    for (uint64_t seed = 0; seed < 60; seed++)
        check_best(SHOAL_TOPOLOGY_CHAIN + (int32_t)(seed % 3), seed % 2, seed);
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
    assert_int_equal(shoal_lfmmi_describe(lfmmi).cached, cached);
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

/* Every file of the corpus whose name begins with "ok-" is a graph, no other is. */
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

/* The model with two more states: nothing leads to the first, which leads to state 1, and
   nothing to or from the second. */
static phone_lm with_unreached(const phone_lm *lm) {
    phone_lm more = {.phones = lm->phones,
                     .order = lm->order,
                     .states = lm->states + 2,
                     .arcs = lm->arcs + 1};
    assert_true(sh_phone_lm_allocate(&more));
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
    assert_int_equal(shoal_lfmmi_open(context, &(shoal_lfmmi_options){.whole = whole},
                                      lexicon, path, &made),
                     SHOAL_OK);
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

/* A start that leads nowhere: nothing can be said, and that is counted. */
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
    assert_true(sh_phone_lm_allocate(&lm));
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
    const shoal_lfmmi_options bad[] = {{.order = 1},
                                       {.order = 6},
                                       {.topology = SHOAL_TOPOLOGY_BLANK + 1},
                                       {.leak = 2},
                                       {.leak = -1},
                                       {.leak = NAN}};
    for (int64_t i = 0; i < COUNT_OF(bad) - 1; i++)
        assert_int_equal(shoal_lfmmi_create(context, &bad[i], lexicon, TEXTS, offsets,
                                            words, &lfmmi),
                         SHOAL_INVALID);
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

static int set_up(void **state) {
    char path[512];
    const char *list[1] = {path};
    folder = make_folder();
    snprintf(path, sizeof path, "%s/lexicon.txt", folder);
    write_bytes_to(path, lexicon_text, strlen(lexicon_text));
    return shoal_context_create(NULL, &context) != SHOAL_OK ||
           shoal_lexicon_open(context, list, 1, NULL, &lexicon) != SHOAL_OK;
}

static int tear_down(void **state) {
    shoal_lexicon_close(lexicon);
    shoal_context_destroy(context);
    remove_folder(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ngrams_are_those_of_all_strings),
        cmocka_unit_test(rows_are_normalised),
        cmocka_unit_test(denominators_are_sums_of_all_paths),
        cmocka_unit_test(numerators_are_sums_of_all_strings),
        cmocka_unit_test(values_are_the_references),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(bits_are_the_same_on_any_threads),
        cmocka_unit_test(what_cannot_be_is_counted),
        cmocka_unit_test(unseen_words_have_no_path),
        cmocka_unit_test(extreme_outputs_are_borne),
        cmocka_unit_test(the_best_path_is_found),
        cmocka_unit_test(ngrams_are_kept_and_mended),
        cmocka_unit_test(a_saved_model_is_the_same),
        cmocka_unit_test(graphs_are_checked),
        cmocka_unit_test(unreached_states_change_nothing),
        cmocka_unit_test(a_graph_without_paths_is_borne),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
