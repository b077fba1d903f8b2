/* Forward and backward passes of both graphs, and the Viterbi path of the
   denominator. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "speech/recogniser/lfmmi.h"

bool sh_lfmmi_room(shoal_context *context, void *block, size_t *room, size_t bytes) {
    void **at = block;
    if (bytes <= *room)
        return true;
    sh_free(*at);
    *room = 0;
    *at = sh_allocate(context, bytes);
    if (*at)
        *room = bytes;
    return *at != NULL;
}

/* NaN if one is not finite. */
static float largest(const float *y, int64_t outputs) {
    float top = y[0];
    bool finite = true;
    for (int64_t n = 0; n < outputs; n++) {
        top = y[n] > top ? y[n] : top;
        finite = finite && isfinite(y[n]);
    }
    return finite ? top : NAN;
}

/* Adds the posteriors of a step, times `sign`, to its gradient [outputs]; returns false
   if they do not sum to 1. */
static bool add_posteriors(const double *posteriors, int64_t outputs, float *gradient,
                           float sign) {
    double sum = 0;
    for (int64_t n = 0; n < outputs; n++) {
        sum += posteriors[n];
        gradient[n] += sign * (float)posteriors[n];
    }
    return fabs(sum - 1) <= 0.05;
}

/* ---- Denominator ------------------------------------------------------------------ */

/* In probabilities that are rescaled at each step. a'_t, including the leak to every
   state, is kept for all steps; b for two. */

/* Relative to the best output of a step: smaller ones are set to 0. They are far below
   the leak, and would become slow denormal numbers. */
static const float least_share = 1e-20f;

typedef struct {
    const den_graph *den;
    float leak;
    const float *y; /* [steps][outputs] */
    int64_t steps, outputs;
    float *rows;        /* [steps + 1][states]: a' */
    double *totals;     /* [steps + 1]: A */
    double *posteriors; /* [outputs], of one step */
    float *x;           /* [outputs] */
    float *b, *entered; /* [states] */
} den_pass;

static float *den_row(const den_pass *p, int64_t t) {
    return p->rows + t * p->den->states;
}

/* exp(y - largest) / divisor of step t; returns the largest, or NaN. */
static double den_outputs(const den_pass *p, int64_t t, double divisor) {
    const float *y = p->y + t * p->outputs;
    const float top = largest(y, p->outputs);
    const float scale = (float)(1 / divisor);
    for (int64_t n = 0; n < p->outputs; n++) {
        const float value = expf(y[n] - top);
        p->x[n] = value < least_share ? 0 : value * scale;
    }
    return (double)top;
}

/* Adds each state's share of the leak. */
static void leak_ahead(const den_pass *p, int64_t t, double total) {
    const float *occupancy = p->den->occupancy;
    const float share = (float)((double)p->leak * total);
    float *to = den_row(p, t);
    p->totals[t] = total;
    for (int32_t s = 0; s < p->den->states; s++)
        to[s] += share * occupancy[s];
}

/* Forward pass; returns the log-probability; *last: Z. */
static double den_ahead(const den_pass *p, double *last) {
    const den_graph *den = p->den;
    const arc_lists *in = &den->in;
    const float *x = p->x;
    double logarithm = 0, total = 0;
    for (int32_t s = 0; s < den->states; s++) {
        den_row(p, 0)[s] = den->init[s];
        total += (double)den->init[s];
    }
    for (int64_t t = 0; t < p->steps; t++) {
        leak_ahead(p, t, total);
        const double top = den_outputs(p, t, total);
        logarithm += log(total) + top;
        if (!isfinite(logarithm))
            return NAN;
        /* From a'_t to a_(t+1), and their sum. */
        const float *from = den_row(p, t);
        float *to = den_row(p, t + 1);
        total = to[0] = 0;
        for (int32_t s = 1; s < den->states; s++) {
            float sum = 0;
            for (int32_t a = in->first[s]; a < in->first[s + 1]; a++)
                sum += from[in->other[a]] * in->weight[a];
            to[s] = sum * x[den->outputs[s].entry] + from[s] * x[den->outputs[s].loop];
            total += (double)to[s];
        }
    }
    leak_ahead(p, p->steps, total);
    const float *row = den_row(p, p->steps);
    *last = 0;
    for (int32_t s = 0; s < den->states; s++)
        *last += (double)row[s] * (double)den->final[s];
    return logarithm + log(*last);
}

static bool den_back(const den_pass *p, double last, float *gradient, float sign) {
    const den_graph *den = p->den;
    const arc_lists *out = &den->out;
    const float *x = p->x;
    float *b = p->b, *entered = p->entered;
    bool good = true;
    for (int32_t s = 0; s < den->states; s++)
        b[s] = (float)((double)den->final[s] / last);
    for (int64_t t = p->steps - 1; t >= 0; t--) {
        /* From b'_t to b_t. */
        double leaked = 0;
        for (int32_t s = 0; s < den->states; s++)
            leaked += (double)den->occupancy[s] * (double)b[s];
        const float back = (float)((double)p->leak * leaked);
        for (int32_t s = 0; s < den->states; s++)
            b[s] += back;
        den_outputs(p, t, p->totals[t]);
        /* Posteriors of step t: the probability that reached a state minus that of
           staying is that of entering. b becomes the backward probability after
           staying, `entered` that after entering. */
        const float *from = den_row(p, t), *to = den_row(p, t + 1);
        const float share = (float)((double)p->leak * p->totals[t + 1]);
        memset(p->posteriors, 0, sizeof *p->posteriors * (size_t)p->outputs);
        for (int32_t s = 1; s < den->states; s++) {
            const state_outputs of = den->outputs[s];
            const float stay = x[of.loop] * b[s];
            const float stayed = from[s] * stay;
            const float came = (to[s] - share * den->occupancy[s]) * b[s] - stayed;
            p->posteriors[of.loop] += (double)stayed;
            p->posteriors[of.entry] += came > 0 ? (double)came : 0;
            entered[s] = x[of.entry] * b[s];
            b[s] = stay;
        }
        entered[0] = b[0] = 0;
        if (!add_posteriors(p->posteriors, p->outputs, gradient + t * p->outputs, sign))
            good = false;
        for (int32_t s = 0; s < den->states; s++) {
            float sum = b[s];
            for (int32_t a = out->first[s]; a < out->first[s + 1]; a++)
                sum += out->weight[a] * entered[out->other[a]];
            b[s] = sum;
        }
    }
    return good;
}

bool sh_den_pass(const den_graph *den, float leak, const float *y, int64_t steps,
                 int64_t outputs, lfmmi_scratch *scratch, double *logarithm,
                 float *gradient, float sign) {
    const size_t states = (size_t)den->states, all = (size_t)steps + 1;
    const size_t doubles = all + (size_t)outputs;
    double last;
    if (!sh_lfmmi_room(scratch->context, &scratch->rows, &scratch->row_room,
                       all * states * sizeof(float)) ||
        !sh_lfmmi_room(scratch->context, &scratch->small, &scratch->small_room,
                       doubles * sizeof(double) +
                           ((size_t)outputs + 2 * states) * sizeof(float)))
        return false;
    float *x = (float *)(void *)(scratch->small + doubles);
    const den_pass p = {den,
                        leak,
                        y,
                        steps,
                        outputs,
                        .rows = scratch->rows,
                        .totals = scratch->small,
                        .posteriors = scratch->small + all,
                        .x = x,
                        .b = x + outputs,
                        .entered = x + outputs + states};
    *logarithm = den_ahead(&p, &last);
    if (gradient && isfinite(*logarithm) && !den_back(&p, last, gradient, sign))
        *logarithm = NAN;
    return true;
}

/* ---- Viterbi ---------------------------------------------------------------------- */

int64_t sh_den_decode(const den_graph *den, const float *y, int64_t steps,
                      int64_t outputs, lfmmi_scratch *scratch, int32_t *phones,
                      int32_t *begins) {
    const size_t states = (size_t)den->states;
    const arc_lists *in = &den->in;
    if (!sh_lfmmi_room(scratch->context, &scratch->rows, &scratch->row_room,
                       (size_t)steps * states * sizeof(int32_t)) ||
        !sh_lfmmi_room(scratch->context, &scratch->small, &scratch->small_room,
                       (2 * states + (size_t)den->arcs) * sizeof(float)))
        return -1;
    /* [steps][states]: previous state; -1 if it stayed */
    int32_t *came = (int32_t *)(void *)scratch->rows;
    float *from = (float *)(void *)scratch->small, *to = from + states; /* [states] */
    float *logs = to + states;                                          /* [arcs] */
    for (int32_t a = 0; a < den->arcs; a++)
        logs[a] = logf(in->weight[a]);
    for (size_t s = 0; s < states; s++)
        from[s] = logf(den->init[s]);
    for (int64_t t = 0; t < steps; t++, came += states, y += outputs) {
        to[0] = -INFINITY;
        came[0] = -1;
        for (int32_t s = 1; s < den->states; s++) {
            float best = -INFINITY;
            int32_t arc = -1;
            for (int32_t a = in->first[s]; a < in->first[s + 1]; a++) {
                const float score = from[in->other[a]] + logs[a];
                arc = score > best ? a : arc;
                best = score > best ? score : best;
            }
            best += y[den->outputs[s].entry];
            const float stay = from[s] + y[den->outputs[s].loop];
            came[s] = stay >= best || arc < 0 ? -1 : in->other[arc];
            to[s] = stay >= best ? stay : best;
        }
        float *last = from;
        from = to;
        to = last;
    }
    int32_t state = 0;
    float top = -INFINITY;
    for (int32_t s = 0; s < den->states; s++) {
        const float score = from[s] + logf(den->final[s]);
        state = score > top ? s : state;
        top = score > top ? score : top;
    }
    /* Traces the path back, then reverses it. */
    int64_t count = 0;
    for (int64_t t = steps - 1; t >= 0; t--) {
        came -= states;
        if (came[state] < 0)
            continue;
        phones[count] = den->last[state];
        begins[count++] = (int32_t)t;
        state = came[state];
    }
    for (int64_t i = 0, k = count - 1; i < k; i++, k--) {
        const int32_t phone = phones[i], begin = begins[i];
        phones[i] = phones[k];
        begins[i] = begins[k];
        phones[k] = phone;
        begins[k] = begin;
    }
    return count;
}

/* ---- Numerator -------------------------------------------------------------------- */

/* Without a leak, a state may become arbitrarily improbable and recover: numbers are a
   mantissa from 1 to 2 with a separate exponent, as in CTC. Only states that can be
   reached and can end in time are visited. */

typedef struct {
    double *mantissas;
    int64_t *exponents;
} number_row;

typedef struct {
    const model_kernels *kernels;
    const num_graph *num;
    const float *y;
    int64_t steps, outputs;
    number_row rows;       /* [steps + 1][states], forward */
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

/* Stores value 2^exponent as mantissa and exponent. */
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

static number_row num_row(const num_pass *p, int64_t t) {
    const int64_t at = t * p->num->states;
    return (number_row){p->rows.mantissas + at, p->rows.exponents + at};
}

static bool is_there(const num_pass *p, int32_t state, int64_t t) {
    return p->num->least[state] <= t && p->num->rest[state] <= p->steps - t;
}

static double num_outputs(const num_pass *p, int64_t t) {
    const float *y = p->y + t * p->outputs, top = largest(y, p->outputs);
    if (isfinite(top))
        p->kernels->powers(p->outputs, y, top, p->x.mantissas, p->x.exponents, p->values);
    return (double)top;
}

/* Sum over a state's arcs of the weight times the number at the other end. */
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

/* Stores first 2^first_exponent + second 2^second_exponent. */
static void put_sum(number_row row, int64_t at, double first, int64_t first_exponent,
                    double second, int64_t second_exponent) {
    const int64_t most = first_exponent > second_exponent ? first_exponent
                                                          : second_exponent;
    put(row, at,
        first * power_of_2(first_exponent - most) +
            second * power_of_2(second_exponent - most),
        most);
}

/* Forward pass; returns the log-probability; *last, *last_exponent: the sum over all
   ends. */
static double num_ahead(const num_pass *p, double *last, int64_t *last_exponent) {
    const num_graph *num = p->num;
    double logarithm = 0, sum = 0;
    int64_t most = CTC_NEVER, exponent;
    for (int32_t s = 0; s < num->states; s++)
        put(num_row(p, 0), s, s == 0, 0);
    for (int64_t t = 0; t < p->steps; t++) {
        logarithm += num_outputs(p, t);
        if (!isfinite(logarithm))
            return NAN;
        const number_row from = num_row(p, t), to = num_row(p, t + 1);
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
    const number_row row = num_row(p, p->steps);
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

static bool num_back(const num_pass *p, double last, int64_t last_exponent,
                     float *gradient, float sign) {
    const num_graph *num = p->num;
    const number_row b = p->b, x = p->x;
    bool good = true;
    for (int32_t s = 0; s < num->states; s++)
        put(b, s, num->final[s], 0);
    for (int64_t t = p->steps - 1; t >= 0; t--) {
        num_outputs(p, t);
        /* Posteriors of step t; b becomes the backward probability after staying,
           `entered` that after entering. */
        const number_row from = num_row(p, t), to = num_row(p, t + 1);
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
        if (!add_posteriors(p->posteriors, p->outputs, gradient + t * p->outputs, sign))
            good = false;
        /* b of step t from that of the next step. */
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

/* Takes `count` numbers of a block. */
static number_row take_numbers(double **at, size_t count) {
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
    if (!sh_lfmmi_room(scratch->context, &scratch->rows, &scratch->row_room,
                       2 * cells * sizeof(double)) ||
        !sh_lfmmi_room(scratch->context, &scratch->small, &scratch->small_room,
                       small * sizeof(double)))
        return false;
    double *at = (double *)(void *)scratch->rows;
    p.rows = take_numbers(&at, cells);
    at = scratch->small;
    p.x = take_numbers(&at, n);
    p.b = take_numbers(&at, states);
    p.entered = take_numbers(&at, states);
    p.values = at;
    p.posteriors = at + n;
    *logarithm = num_ahead(&p, &last, &last_exponent);
    if (gradient && isfinite(*logarithm) &&
        !num_back(&p, last, last_exponent, gradient, sign))
        *logarithm = NAN;
    return true;
}
