/* The denominator's passes, in probabilities that are scaled at each step, and the best
   path. a'_t, with what leaks to every state, is kept for all steps; b for two. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "speech/recogniser/lfmmi.h"

/* Of a step's best output: less is nothing, far below what leaks, and is not worth
   numbers that a processor is slow with. */
static const float least_share = 1e-20f;

bool sh_lfmmi_room(void *block, size_t *room, size_t bytes) {
    void **at = block;
    if (bytes <= *room)
        return true;
    free(*at);
    *room = 0;
    *at = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE) / CACHE_LINE * CACHE_LINE);
    if (*at)
        *room = bytes;
    return *at != NULL;
}

float sh_lfmmi_top(const float *y, int64_t outputs) {
    float top = y[0];
    bool finite = true;
    for (int64_t n = 0; n < outputs; n++) {
        top = y[n] > top ? y[n] : top;
        finite = finite && isfinite(y[n]);
    }
    return finite ? top : NAN;
}

bool sh_lfmmi_give(const double *posteriors, int64_t outputs, float *gradient,
                   float sign) {
    double sum = 0;
    for (int64_t n = 0; n < outputs; n++) {
        sum += posteriors[n];
        gradient[n] += sign * (float)posteriors[n];
    }
    return fabs(sum - 1) <= 0.05;
}

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

static float *row_of(const den_pass *p, int64_t t) {
    return p->rows + t * p->den->states;
}

/* exp(y - largest) / divisor of step t; returns the largest, or NaN. */
static double take_outputs(const den_pass *p, int64_t t, double divisor) {
    const float *y = p->y + t * p->outputs;
    const float top = sh_lfmmi_top(y, p->outputs);
    const float scale = (float)(1 / divisor);
    for (int64_t n = 0; n < p->outputs; n++) {
        const float value = expf(y[n] - top);
        p->x[n] = value < least_share ? 0 : value * scale;
    }
    return (double)top;
}

/* Each state gets its share of what leaks. */
static void leak_ahead(const den_pass *p, int64_t t, double total) {
    const float *occupancy = p->den->occupancy;
    const float share = (float)((double)p->leak * total);
    float *to = row_of(p, t);
    p->totals[t] = total;
    for (int32_t s = 0; s < p->den->states; s++)
        to[s] += share * occupancy[s];
}

/* Returns the logarithm; *last: Z. */
static double go_ahead(const den_pass *p, double *last) {
    const den_graph *den = p->den;
    const arc_lists *in = &den->in;
    const float *x = p->x;
    double logarithm = 0, total = 0;
    for (int32_t s = 0; s < den->states; s++) {
        row_of(p, 0)[s] = den->init[s];
        total += (double)den->init[s];
    }
    for (int64_t t = 0; t < p->steps; t++) {
        leak_ahead(p, t, total);
        const double top = take_outputs(p, t, total);
        logarithm += log(total) + top;
        if (!isfinite(logarithm))
            return NAN;
        /* From a'_t to a_(t+1), and their sum. */
        const float *from = row_of(p, t);
        float *to = row_of(p, t + 1);
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
    const float *row = row_of(p, p->steps);
    *last = 0;
    for (int32_t s = 0; s < den->states; s++)
        *last += (double)row[s] * (double)den->final[s];
    return logarithm + log(*last);
}

static bool go_back(const den_pass *p, double last, float *gradient, float sign) {
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
        take_outputs(p, t, p->totals[t]);
        /* The posteriors of step t: what came to a state, less what had been there,
           entered it. b becomes what staying there is worth, `entered` what entering
           is. */
        const float *from = row_of(p, t), *to = row_of(p, t + 1);
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
        if (!sh_lfmmi_give(p->posteriors, p->outputs, gradient + t * p->outputs, sign))
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
    if (!sh_lfmmi_room(&scratch->rows, &scratch->row_room,
                       all * states * sizeof(float)) ||
        !sh_lfmmi_room(&scratch->small, &scratch->small_room,
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
    *logarithm = go_ahead(&p, &last);
    if (gradient && isfinite(*logarithm) && !go_back(&p, last, gradient, sign))
        *logarithm = NAN;
    return true;
}

/* ---- The best path ----------------------------------------------------------------- */

int64_t sh_den_decode(const den_graph *den, const float *y, int64_t steps,
                      int64_t outputs, lfmmi_scratch *scratch, int32_t *phones,
                      int32_t *begins) {
    const size_t states = (size_t)den->states;
    const arc_lists *in = &den->in;
    if (!sh_lfmmi_room(&scratch->rows, &scratch->row_room,
                       (size_t)steps * states * sizeof(int32_t)) ||
        !sh_lfmmi_room(&scratch->small, &scratch->small_room,
                       (2 * states + (size_t)den->arcs) * sizeof(float)))
        return -1;
    /* [steps][states]: the state that one entered from; -1: stayed */
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
    /* Back along the path, which is then turned round. */
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
