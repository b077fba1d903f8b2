/* One row of a post-norm layer behind its attention, in double precision, forward and
   backward: written from the mathematics, sharing no code with the library.

       sum    = x + output attended + bias        end = normed + narrow awake + bias
       normed = norm(sum)                         out = norm(end)
       hidden = widen normed + bias
       awake  = hidden Phi(hidden), the exact GELU */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const double norm_epsilon = 1e-5;

/* ---- Memory ------------------------------------------------------------------------ */

bool bench_exact_create(bench_exact *exact, const bench_layer *layer,
                        const bench_job *job, bool with_gradients) {
    const int64_t model = job->heads * job->dim, wide = job->feed_forward;
    *exact = (bench_exact){.layer = layer, .model = model, .wide = wide};
    double **const as_row[] = {&exact->x,      &exact->attended, &exact->sum,
                               &exact->normed, &exact->end,      &exact->out,
                               &exact->dout,   &exact->dsum,     &exact->dattended};
    bool fine = true;
    for (size_t i = 0; i < sizeof as_row / sizeof *as_row; i++)
        fine &= (*as_row[i] = calloc((size_t)model, sizeof(double))) != NULL;
    fine &= (exact->hidden = calloc((size_t)wide, sizeof(double))) != NULL;
    fine &= (exact->awake = calloc((size_t)wide, sizeof(double))) != NULL;
    fine &= (exact->spare = calloc((size_t)(2 * model + wide), sizeof(double))) != NULL;
    for (int part = 0; part < FREE_PARTS && with_gradients; part++)
        fine &= (exact->gradients[part] = calloc((size_t)bench_part_count(layer, part),
                                                 sizeof(double))) != NULL;
    if (!fine)
        bench_exact_destroy(exact);
    return fine;
}

void bench_exact_destroy(bench_exact *exact) {
    double *const arrays[] = {exact->x,      exact->attended, exact->sum,
                              exact->normed, exact->end,      exact->out,
                              exact->dout,   exact->dsum,     exact->dattended,
                              exact->hidden, exact->awake,    exact->spare};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    for (int part = 0; part < FREE_PARTS; part++)
        free(exact->gradients[part]);
    *exact = (bench_exact){0};
}

void bench_exact_load(bench_exact *exact, const bench_data *data, int64_t row) {
    const int64_t b = row / data->length, n = row % data->length, dim = data->dim;
    for (int64_t a = 0; a < exact->model; a++) {
        const int64_t head = b * data->heads + a / dim;
        exact->x[a] = (double)data->features[row * exact->model + a];
        exact->attended[a] = (double)data->out[(head * data->length + n) * dim + a % dim];
    }
}

/* ---- Forward ----------------------------------------------------------------------- */

/* y [outputs] += W x + bias; the bias is the part behind its weight. */
static void apply(const bench_exact *exact, int part, int64_t outputs, int64_t inputs,
                  const double *x, double *y) {
    const float *weight = exact->layer->parts[part].values;
    const float *bias = exact->layer->parts[part + 1].values;
    for (int64_t o = 0; o < outputs; o++) {
        double sum = (double)bias[o];
        for (int64_t i = 0; i < inputs; i++)
            sum += (double)weight[o * inputs + i] * x[i];
        y[o] += sum;
    }
}

/* hat = (x - mean) / deviation; returns 1 / deviation. */
static double standardise(const double *x, int64_t count, double *hat) {
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < count; i++)
        mean += x[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        variance += (x[i] - mean) * (x[i] - mean) / (double)count;
    const double inverse = 1 / sqrt(variance + norm_epsilon);
    for (int64_t i = 0; i < count; i++)
        hat[i] = (x[i] - mean) * inverse;
    return inverse;
}

static void norm(const bench_exact *exact, int part, const double *x, double *y) {
    const float *scale = exact->layer->parts[part].values;
    const float *shift = exact->layer->parts[part + 1].values;
    standardise(x, exact->model, y);
    for (int64_t i = 0; i < exact->model; i++)
        y[i] = y[i] * (double)scale[i] + (double)shift[i];
}

void bench_exact_forward(bench_exact *exact) {
    const int64_t model = exact->model, wide = exact->wide;
    memcpy(exact->sum, exact->x, (size_t)model * sizeof(double));
    apply(exact, PART_OUTPUT, model, model, exact->attended, exact->sum);
    norm(exact, PART_FIRST_SCALE, exact->sum, exact->normed);
    memset(exact->hidden, 0, (size_t)wide * sizeof(double));
    apply(exact, PART_WIDEN, wide, model, exact->normed, exact->hidden);
    for (int64_t f = 0; f < wide; f++)
        exact->awake[f] = exact->hidden[f] * 0.5 * erfc(-exact->hidden[f] * sqrt(0.5));
    memcpy(exact->end, exact->normed, (size_t)model * sizeof(double));
    apply(exact, PART_NARROW, model, wide, exact->awake, exact->end);
    norm(exact, PART_SECOND_SCALE, exact->end, exact->out);
}

/* ---- Backward ---------------------------------------------------------------------- */

/* dx [inputs] += W' dy; and the gradients of W and its bias. */
static void apply_back(const bench_exact *exact, int part, int64_t outputs,
                       int64_t inputs, const double *x, const double *dy, double *dx) {
    const float *weight = exact->layer->parts[part].values;
    double *dweight = exact->gradients[part], *dbias = exact->gradients[part + 1];
    for (int64_t o = 0; o < outputs; o++) {
        dbias[o] += dy[o];
        for (int64_t i = 0; i < inputs; i++) {
            dx[i] += (double)weight[o * inputs + i] * dy[o];
            dweight[o * inputs + i] += dy[o] * x[i];
        }
    }
}

/* dx [M] = the gradient in front of the norm; hat [M] is overwritten. */
static void norm_back(const bench_exact *exact, int part, const double *x,
                      const double *dy, double *hat, double *dx) {
    const int64_t model = exact->model;
    const float *scale = exact->layer->parts[part].values;
    const double inverse = standardise(x, model, hat);
    double mean = 0, along = 0;
    for (int64_t i = 0; i < model; i++) {
        exact->gradients[part][i] += dy[i] * hat[i];
        exact->gradients[part + 1][i] += dy[i];
        mean += dy[i] * (double)scale[i] / (double)model;
        along += dy[i] * (double)scale[i] * hat[i] / (double)model;
    }
    for (int64_t i = 0; i < model; i++)
        dx[i] = inverse * (dy[i] * (double)scale[i] - mean - hat[i] * along);
}

void bench_exact_backward(bench_exact *exact) {
    const int64_t model = exact->model, wide = exact->wide;
    double *dend = exact->spare, *hat = dend + model, *dwide = hat + model;
    norm_back(exact, PART_SECOND_SCALE, exact->end, exact->dout, hat, dend);
    memset(dwide, 0, (size_t)wide * sizeof(double));
    apply_back(exact, PART_NARROW, model, wide, exact->awake, dend, dwide);
    for (int64_t f = 0; f < wide; f++) {
        const double h = exact->hidden[f];
        dwide[f] *= 0.5 * erfc(-h * sqrt(0.5)) +
                    h * exp(-h * h / 2) / sqrt(2 * acos(-1.0));
    }
    apply_back(exact, PART_WIDEN, wide, model, exact->normed, dwide, dend);
    norm_back(exact, PART_FIRST_SCALE, exact->sum, dend, hat, exact->dsum);
    memset(exact->dattended, 0, (size_t)model * sizeof(double));
    apply_back(exact, PART_OUTPUT, model, model, exact->attended, exact->dsum,
               exact->dattended);
}
