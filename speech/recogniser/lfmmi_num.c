/* The numerator's passes. Nothing leaks here, so that a state may be as improbable as it
   likes and come back: numbers are a mantissa from 1 to 2 and an exponent of their own,
   as those of CTC. Only states that can be reached and can end in time are looked at. */
#define _GNU_SOURCE
#include <math.h>
#include <string.h>

#include "speech/recogniser/lfmmi.h"

typedef struct {
    double *mantissas;
    int64_t *exponents;
} number_row;

typedef struct {
    const model_kernels *kernels;
    const num_graph *num;
    const float *y;
    int64_t steps, outputs;
    number_row rows;       /* [steps + 1][states], ahead */
    number_row x;          /* [outputs], of one step */
    double *values;        /* [outputs] */
    double *posteriors;    /* [outputs] */
    number_row b, entered; /* [states] */
} num_pass;

static inline double power_of_2(int64_t exponent) {
    const int64_t biased = exponent + 1023;
    const uint64_t bits = (uint64_t)(biased < 0      ? 0
                                     : biased > 2046 ? 2046
                                                     : biased)
                          << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Writes value 2^exponent as a mantissa and an exponent. */
static inline void put(number_row row, int64_t at, double value, int64_t exponent) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value <= 0 || exponent < CTC_NEVER / 2) {
        row.mantissas[at] = 1;
        row.exponents[at] = CTC_NEVER;
        return;
    }
    const int64_t own = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    memcpy(&row.mantissas[at], &bits, sizeof bits);
    row.exponents[at] = exponent + own;
}

static number_row row_of(const num_pass *p, int64_t t) {
    const int64_t at = t * p->num->states;
    return (number_row){p->rows.mantissas + at, p->rows.exponents + at};
}

static bool is_there(const num_pass *p, int32_t state, int64_t t) {
    return p->num->least[state] <= t && p->num->rest[state] <= p->steps - t;
}

static double take_outputs(const num_pass *p, int64_t t) {
    const float *y = p->y + t * p->outputs, top = sh_lfmmi_top(y, p->outputs);
    if (isfinite(top))
        p->kernels->powers(p->outputs, y, top, p->x.mantissas, p->x.exponents, p->values);
    return (double)top;
}

/* The sum over a state's arcs of weight times the number at their other end. */
static double sum_arcs(const arc_lists *arcs, int32_t state, number_row from,
                       int64_t *exponent) {
    int64_t most = CTC_NEVER;
    double sum = 0;
    for (int32_t a = arcs->first[state]; a < arcs->first[state + 1]; a++) {
        const int64_t own = from.exponents[arcs->other[a]];
        most = own > most ? own : most;
    }
    for (int32_t a = arcs->first[state]; a < arcs->first[state + 1]; a++)
        sum += from.mantissas[arcs->other[a]] * (double)arcs->weight[a] *
               power_of_2(from.exponents[arcs->other[a]] - most);
    *exponent = most;
    return sum;
}

/* Writes first 2^first_exponent + second 2^second_exponent. */
static void put_sum(number_row row, int64_t at, double first, int64_t first_exponent,
                    double second, int64_t second_exponent) {
    const int64_t most = first_exponent > second_exponent ? first_exponent
                                                          : second_exponent;
    put(row, at,
        first * power_of_2(first_exponent - most) +
            second * power_of_2(second_exponent - most),
        most);
}

/* Returns the logarithm; *last, *last_exponent: what all ends have. */
static double go_ahead(const num_pass *p, double *last, int64_t *last_exponent) {
    const num_graph *num = p->num;
    double logarithm = 0, sum = 0;
    int64_t most = CTC_NEVER, exponent;
    for (int32_t s = 0; s < num->states; s++)
        put(row_of(p, 0), s, s == 0, 0);
    for (int64_t t = 0; t < p->steps; t++) {
        logarithm += take_outputs(p, t);
        if (!isfinite(logarithm))
            return NAN;
        const number_row from = row_of(p, t), to = row_of(p, t + 1);
        for (int32_t s = 0; s < num->states; s++) {
            if (s == 0 || !is_there(p, s, t + 1)) {
                put(to, s, 0, 0);
                continue;
            }
            const state_outputs of = num->outputs[s];
            const double entered = sum_arcs(&num->in, s, from, &exponent);
            put_sum(to, s, from.mantissas[s] * p->x.mantissas[of.loop],
                    from.exponents[s] + p->x.exponents[of.loop],
                    entered * p->x.mantissas[of.entry],
                    exponent + p->x.exponents[of.entry]);
        }
    }
    const number_row row = row_of(p, p->steps);
    for (int32_t s = 0; s < num->states; s++)
        most = num->final[s] > 0 && row.exponents[s] > most ? row.exponents[s] : most;
    for (int32_t s = 0; s < num->states; s++)
        sum += num->final[s] * row.mantissas[s] * power_of_2(row.exponents[s] - most);
    *last = sum;
    *last_exponent = most;
    if (most < CTC_NEVER / 2)
        return -INFINITY;
    return logarithm + log(sum) + (double)most * 0.69314718055994531;
}

static bool go_back(const num_pass *p, double last, int64_t last_exponent,
                    float *gradient, float sign) {
    const num_graph *num = p->num;
    const number_row b = p->b, x = p->x;
    bool good = true;
    for (int32_t s = 0; s < num->states; s++)
        put(b, s, num->final[s], 0);
    for (int64_t t = p->steps - 1; t >= 0; t--) {
        take_outputs(p, t);
        /* The posteriors of step t; b becomes what staying is worth, `entered` what
           entering is. */
        const number_row from = row_of(p, t), to = row_of(p, t + 1);
        memset(p->posteriors, 0, sizeof *p->posteriors * (size_t)p->outputs);
        put(p->entered, 0, 0, 0);
        put(b, 0, 0, 0);
        for (int32_t s = 1; s < num->states; s++) {
            const state_outputs of = num->outputs[s];
            const int64_t behind = b.exponents[s] - last_exponent;
            const int64_t stay = x.exponents[of.loop] + b.exponents[s];
            const double loop = x.mantissas[of.loop] * b.mantissas[s];
            const double stayed = from.mantissas[s] * loop / last *
                                  power_of_2(from.exponents[s] + stay - last_exponent);
            const double came = to.mantissas[s] * b.mantissas[s] / last *
                                power_of_2(to.exponents[s] + behind);
            p->posteriors[of.loop] += stayed;
            p->posteriors[of.entry] += came > stayed ? came - stayed : 0;
            put(p->entered, s, x.mantissas[of.entry] * b.mantissas[s],
                x.exponents[of.entry] + b.exponents[s]);
            put(b, s, loop, stay);
        }
        if (!sh_lfmmi_give(p->posteriors, p->outputs, gradient + t * p->outputs, sign))
            good = false;
        /* b of step t from those of the step behind it. */
        for (int32_t s = 0; s < num->states; s++) {
            int64_t exponent;
            if (!is_there(p, s, t)) {
                put(b, s, 0, 0);
                continue;
            }
            const double entered = sum_arcs(&num->out, s, p->entered, &exponent);
            put_sum(b, s, b.mantissas[s], b.exponents[s], entered, exponent);
        }
    }
    return good;
}

/* Hands out `count` numbers of a block. */
static number_row cut(double **at, size_t count) {
    const number_row row = {*at, (int64_t *)(void *)(*at + count)};
    *at += 2 * count;
    return row;
}

bool sh_num_pass(const model_kernels *kernels, const num_graph *num, const float *y,
                 int64_t steps, int64_t outputs, lfmmi_scratch *scratch,
                 double *logarithm, float *gradient, float sign) {
    const size_t states = (size_t)num->states, n = (size_t)outputs;
    const size_t cells = ((size_t)steps + 1) * states, small = 4 * n + 4 * states;
    double last = 0;
    int64_t last_exponent = 0;
    num_pass p = {.kernels = kernels,
                  .num = num,
                  .y = y,
                  .steps = steps,
                  .outputs = outputs};
    *logarithm = -INFINITY;
    if (states == 0 || num->rest[0] > steps)
        return true;
    if (!sh_lfmmi_room(&scratch->rows, &scratch->row_room, 2 * cells * sizeof(double)) ||
        !sh_lfmmi_room(&scratch->small, &scratch->small_room, small * sizeof(double)))
        return false;
    double *at = (double *)(void *)scratch->rows;
    p.rows = cut(&at, cells);
    at = scratch->small;
    p.x = cut(&at, n);
    p.b = cut(&at, states);
    p.entered = cut(&at, states);
    p.values = at;
    p.posteriors = at + n;
    *logarithm = go_ahead(&p, &last, &last_exponent);
    if (gradient && isfinite(*logarithm) &&
        !go_back(&p, last, last_exponent, gradient, sign))
        *logarithm = NAN;
    return true;
}
