/* CTC by its definition, in the log domain: states alternate between blanks and
   labels. */
#include <math.h>
#include <stdlib.h>

#include "exact.h"

static double log_sum(double a, double b) {
    if (a == -INFINITY)
        return b;
    if (b == -INFINITY)
        return a;
    return fmax(a, b) + log1p(exp(-fabs(a - b)));
}

/* Class of state s, of 2 L + 1 states. */
static int32_t class_of(const int32_t *labels, int64_t s) {
    return s % 2 ? labels[s / 2] : 0;
}

/* Whether a transition from state s - 2 to s is allowed. */
static bool skips(const int32_t *labels, int64_t s) {
    return s >= 3 && s % 2 && labels[s / 2] != labels[s / 2 - 1];
}

double exact_ctc(int64_t rows, int64_t classes, const double *logits,
                 const int32_t *labels, int64_t count, double *dlogits) {
    const int64_t states = 2 * count + 1;
    if (rows == 0)
        return count == 0 ? 0 : INFINITY;
    double *logs = malloc(sizeof(double) * (size_t)(rows * classes));
    double *ahead = malloc(sizeof(double) * (size_t)(rows * states));
    double *behind = malloc(sizeof(double) * (size_t)(rows * states));
    for (int64_t t = 0; t < rows; t++) {
        double sum = -INFINITY;
        for (int64_t c = 0; c < classes; c++)
            sum = log_sum(sum, logits[t * classes + c]);
        for (int64_t c = 0; c < classes; c++)
            logs[t * classes + c] = logits[t * classes + c] - sum;
    }
    /* Forward variables: log-probability of all prefixes that end in state s at row t,
       including row t. */
    for (int64_t t = 0; t < rows; t++)
        for (int64_t s = 0; s < states; s++) {
            const double *before = ahead + (t - 1) * states;
            double sum = t == 0 && s < 2 ? 0 : -INFINITY;
            if (t > 0) {
                sum = before[s];
                sum = s >= 1 ? log_sum(sum, before[s - 1]) : sum;
                sum = skips(labels, s) ? log_sum(sum, before[s - 2]) : sum;
            }
            ahead[t * states + s] = sum + logs[t * classes + class_of(labels, s)];
        }
    /* Backward variables: log-probability of all continuations after row t from state
       s. */
    for (int64_t t = rows - 1; t >= 0; t--)
        for (int64_t s = 0; s < states; s++) {
            double sum = t == rows - 1 && s >= states - 2 ? 0 : -INFINITY;
            for (int64_t next = s; t < rows - 1 && next < states && next <= s + 2; next++)
                if (next < s + 2 || skips(labels, next))
                    sum = log_sum(sum,
                                  behind[(t + 1) * states + next] +
                                      logs[(t + 1) * classes + class_of(labels, next)]);
            behind[t * states + s] = sum;
        }
    const double *last = ahead + (rows - 1) * states;
    const double whole = count ? log_sum(last[states - 1], last[states - 2])
                               : last[states - 1];
    for (int64_t i = 0; dlogits && i < rows * classes; i++)
        dlogits[i] = whole == -INFINITY ? 0 : exp(logs[i]);
    for (int64_t i = 0; dlogits && whole > -INFINITY && i < rows * states; i++)
        dlogits[i / states * classes + class_of(labels, i % states)] -=
            exp(ahead[i] + behind[i] - whole);
    free(logs);
    free(ahead);
    free(behind);
    return -whole;
}
