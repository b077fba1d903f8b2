/* Parts of lattice-free MMI: the n-gram compared with enumeration of strings, both
   passes and the best path with enumeration of paths, and with recorded values of the
   plain reference. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "small_lfmmi.h"

static void fill_outputs(float *y, int64_t steps, int64_t outputs) {
    for (int64_t t = 0; t < steps; t++)
        for (int64_t n = 0; n < outputs; n++)
            y[t * outputs + n] = (float)(2 * sin(0.37 * (double)t + 1.13 * (double)n));
}

static void free_scratch(lfmmi_scratch *scratch) {
    sh_free(scratch->rows);
    sh_free(scratch->gradient);
    sh_free(scratch->small);
}

/* ---- The n-gram by enumeration of strings ----------------------------------------- */

enum { MOST_LENGTH = 16, MOST_STRINGS = 4096 };

typedef struct {
    int32_t phones[MOST_LENGTH]; /* -1 after the last, for the end */
    int length;                  /* including it */
    double share;
} spoken;

static spoken strings[MOST_STRINGS];
static int string_count;

/* All pronunciations of words [at, end), each with and without silences. */
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

/* Whether the order - 1 symbols before a and b are the same. */
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

/* Share of symbol `at` among all symbols after its history. */
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

/* ---- Enumeration of paths --------------------------------------------------------- */

/* Sums over all paths, in double precision and from the language model itself. */
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

/* By definition, with matrices. */
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
    const int64_t outputs = sh_topology_outputs(topology, PHONES);
    float y[4 * MOST_OUTPUTS], gradient[4 * MOST_OUTPUTS] = {0};
    double exact[4 * MOST_OUTPUTS] = {0}, found;
    assert_true(lm.states <= 64);
    fill_outputs(y, steps, outputs);
    find_vectors(&lm, whole, &v);
    assert_true(sh_den_make(NULL, &lm, topology, whole, &den));
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
    const int64_t outputs = sh_topology_outputs(topology, PHONES);
    float y[MOST_STEPS * MOST_OUTPUTS];
    double found;
    fill_outputs(y, steps, outputs);
    find_vectors(&lm, whole, &v);
    assert_true(sh_den_make(NULL, &lm, topology, whole, &den));
    assert_true(sh_num_make(NULL, &lm, &den, topology, lexicon, words + offsets[text],
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
    assert_true(sh_num_pass(sh_model_kernels(context), &num, y, steps, outputs, &scratch,
                            &found, NULL, 1));
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

/* Of the plain reference in double precision, y[t][n] = 2 sin(0.37 t + 1.13 n), leak
   0.1. */
static const struct {
    int32_t order;
    int64_t extra;
    int32_t topology, whole, text, steps, states, arcs;
    double num, den;
    float first, middle, last; /* of the gradient: [0][0], [T / 2][2] and the last one */
} recorded[] = {
    {2, -1, 0, 1, 3, 12, 5, 21, 6.98459, 14.14654, -0.08031f, -0.00300f, -0.01005f},
    {2, -1, 1, 0, 3, 12, 5, 21, 12.50653, 20.78642, -0.02703f, 0.06052f, 0.02265f},
    {2, -1, 1, 1, 2, 9, 5, 21, 10.37256, 13.76870, -0.02317f, -0.00137f, 0.04169f},
    {2, -1, 2, 0, 2, 9, 5, 21, 10.74953, 12.96703, -0.05461f, -0.01771f, 0.01567f},
    {3, -1, 0, 0, 3, 12, 18, 61, 8.82751, 17.78026, -0.07309f, -0.00169f, 0.03095f},
    {3, -1, 0, 1, 2, 9, 18, 61, 0.56050, 11.59691, -0.04721f, 0.33075f, 0.42945f},
    {3, -1, 1, 0, 2, 9, 18, 61, 12.77069, 16.38526, -0.02067f, -0.00100f, 0.08703f},
    {3, -1, 2, 1, 3, 12, 18, 61, 12.28985, 17.49801, -0.02826f, 0.00188f, -0.04290f},
    {3, 2, 0, 0, 3, 12, 7, 28, 8.80202, 17.72161, -0.07608f, -0.00186f, 0.00131f},
    {3, 2, 0, 1, 2, 9, 7, 28, 0.32997, 11.25340, -0.05169f, 0.34548f, 0.42349f},
    {3, 2, 1, 0, 2, 9, 7, 28, 12.73103, 16.58388, -0.02647f, -0.00134f, 0.01864f},
    {3, 2, 2, 1, 3, 12, 7, 28, 12.46591, 17.73083, -0.03267f, -0.00373f, -0.02935f},
    {4, -1, 0, 0, 2, 9, 45, 139, 0.78705, 14.61751, -0.06716f, 0.16160f, 0.40498f},
    {4, -1, 1, 1, 3, 12, 45, 139, 14.39388, 19.04909, -0.03429f, 0.16748f, -0.00323f},
    {4, -1, 2, 0, 3, 12, 45, 139, 12.92603, 18.18588, -0.03072f, -0.00778f, -0.08031f},
    {4, -1, 2, 1, 2, 9, 45, 139, 9.64824, 10.77262, -0.01613f, -0.02515f, -0.06749f},
    {4, 5, 0, 0, 2, 9, 23, 75, 0.90138, 14.63326, -0.07318f, 0.16888f, 0.38841f},
    {4, 5, 1, 1, 3, 12, 23, 75, 14.00828, 19.06765, -0.03400f, 0.16904f, -0.00341f},
    {4, 5, 2, 0, 3, 12, 23, 75, 13.20137, 18.59415, -0.03030f, -0.01149f, -0.09305f},
    {4, 5, 2, 1, 2, 9, 23, 75, 8.95298, 10.59864, -0.02154f, -0.03127f, -0.07247f},
    {4, 0, 0, 0, 2, 9, 18, 61, 1.06419, 14.63245, -0.07321f, 0.16862f, 0.40409f},
    {4, 0, 1, 1, 3, 12, 18, 61, 12.61202, 19.06789, -0.03041f, 0.17108f, -0.00370f},
    {4, 0, 2, 0, 3, 12, 18, 61, 12.24804, 18.57340, -0.03353f, -0.00871f, -0.06297f},
    {4, 0, 2, 1, 2, 9, 18, 61, 9.11667, 10.58195, -0.02831f, -0.02141f, -0.06765f},
    {5, 7, 0, 1, 3, 12, 52, 160, 9.95923, 14.50611, -0.03514f, -0.00145f, 0.06661f},
    {5, 7, 1, 0, 3, 12, 52, 160, 13.19694, 20.18435, -0.02155f, 0.16449f, -0.00666f},
    {5, 7, 1, 1, 2, 9, 52, 160, 12.11473, 14.11880, -0.03591f, -0.00194f, 0.03587f},
    {5, 7, 2, 0, 2, 9, 52, 160, 10.24829, 11.31396, -0.04238f, -0.02031f, -0.02033f},
};

static void values_are_the_references(void **state) {
    for (int64_t i = 0; i < COUNT_OF(recorded); i++) {
        const int32_t text = recorded[i].text, steps = recorded[i].steps;
        const int64_t outputs = sh_topology_outputs(recorded[i].topology, PHONES);
        float y[MOST_STEPS * MOST_OUTPUTS], gradient[MOST_STEPS * MOST_OUTPUTS] = {0};
        double num_log, den_log;
        lfmmi_scratch scratch = {0};
        den_graph den;
        num_graph num;
        phone_lm lm = make_model(recorded[i].order, recorded[i].extra);
        fill_outputs(y, steps, outputs);
        assert_true(
            sh_den_make(NULL, &lm, recorded[i].topology, recorded[i].whole, &den));
        assert_int_equal(den.states, recorded[i].states);
        assert_int_equal(den.arcs + den.states - 1, recorded[i].arcs);
        assert_true(sh_num_make(NULL, &lm, &den, recorded[i].topology, lexicon,
                                words + offsets[text], offsets[text + 1] - offsets[text],
                                &num));
        assert_true(sh_num_pass(sh_model_kernels(context), &num, y, steps, outputs,
                                &scratch, &num_log, gradient, 1));
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

/* ---- The best path ---------------------------------------------------------------- */

/* Enumerates all sequences of states; keeps the phones of the best. */
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
    shoal_lfmmi *lfmmi =
        make_loss(context, &(shoal_lfmmi_options){.order = 3,
                                                  .extra = -1,
                                                  .topology = (shoal_topology)topology,
                                                  .whole = whole});
    find_vectors(&lm, whole, &v);
    fill_random(y, STEPS * MOST_OUTPUTS, 2, seed);
    best_search b = {.p = {.lm = &lm,
                           .final = v.final,
                           .topology = topology,
                           .y = y,
                           .steps = STEPS,
                           .outputs = sh_topology_outputs(topology, PHONES)}};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ngrams_are_those_of_all_strings),
        cmocka_unit_test(rows_are_normalised),
        cmocka_unit_test(denominators_are_sums_of_all_paths),
        cmocka_unit_test(numerators_are_sums_of_all_strings),
        cmocka_unit_test(values_are_the_references),
        cmocka_unit_test(the_best_path_is_found),
    };
    return cmocka_run_group_tests(tests, small_lfmmi_set_up, small_lfmmi_tear_down);
}
