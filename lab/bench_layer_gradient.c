/* The layer's backward pass, checked in two ways.

   The gradients that were timed. Parameters behind the attention change nothing that it
   chooses, so the loss along their gradient has the slope |gradient|^2, which a central
   difference of two forward passes must give. The norm behind the attention does not care
   how long its rows are, so the gradient there is at right angles to them; with it

       <dx, x> = <dWq, Wq> + <dWk, Wk> + <dWv, Wv> - <dWo, Wo> - <dbo, bo>.

   Everything, for another gradient of the output that is 0 but on a few rows. For those
   the way back to the attention is computed in double precision; the attention's own
   gradients come from its plan, alone; and as the projections are permutations, the
   features' gradient follows for all rows, and those of the projections row by row. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include <shoal_models.h>

enum { FEW = 16, SAMPLED_OUTPUTS = 4 };

static const double tolerance = 5e-5;

/* The step of the difference, relative to the parameters. */
static const double step_share = 1e-3;

typedef struct {
    const bench_job *job;
    bench_layer *layer;
    shoal_plan *plan;
    bench_data *data;
    const shoal_attention *attention;
    bench_row *row;
    int64_t model, rows;
} gradient_check;

/* Relative error of vectors, in two sums. */
typedef struct {
    double error, size;
} squares;

static void add(squares *sums, double made, double expected) {
    sums->error += (made - expected) * (made - expected);
    sums->size += expected * expected;
}

static double relative(squares sums) {
    return sums.error == 0 ? 0 : sqrt(sums.error / sums.size);
}

static double product(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* ---- What was timed ---------------------------------------------------------------- */

static double part_product(const bench_layer *layer, int part) {
    const shoal_parameter *found = &layer->parts[part];
    return product(found->gradients, found->values, bench_part_count(layer, part));
}

static void check_lengths(const gradient_check *check) {
    const bench_data *data = check->data;
    double left = product(data->dfeatures, data->features, data->query_count);
    double size = fabs(left);
    for (int p = 0; p < BENCH_PROJECTIONS + 2; p++) {
        const int part = p < BENCH_PROJECTIONS    ? PART_QUERY + p
                         : p == BENCH_PROJECTIONS ? PART_OUTPUT
                                                  : PART_OUTPUT_BIAS;
        const double one = part_product(check->layer, part);
        left -= p < BENCH_PROJECTIONS ? one : -one;
        size += fabs(one);
    }
    bench_note(check->row, "<dx, x> = what the weights' gradients say",
               left == 0 ? 0 : fabs(left) / size, 1e-4);
}

/* Puts saved + step x gradient into the parameters; returns what the gradient says about
   the way there, after rounding. */
static double move_parts(const bench_layer *layer, const float *saved, double step) {
    double predicted = 0;
    for (int part = 0; part < FREE_PARTS; part++) {
        const shoal_parameter *found = &layer->parts[part];
        const int64_t count = bench_part_count(layer, part);
        for (int64_t i = 0; i < count; i++) {
            const double slope = (double)found->gradients[i];
            found->values[i] = (float)((double)saved[i] + step * slope);
            predicted += slope * ((double)found->values[i] - (double)saved[i]);
        }
        saved += count;
    }
    return predicted;
}

static float *save_parts(const bench_layer *layer, double *length, double *slope) {
    int64_t all = 0, at = 0;
    for (int part = 0; part < FREE_PARTS; part++)
        all += bench_part_count(layer, part);
    float *saved = malloc((size_t)all * sizeof *saved);
    *length = *slope = 0;
    for (int part = 0; part < FREE_PARTS && saved; part++) {
        const shoal_parameter *found = &layer->parts[part];
        const int64_t count = bench_part_count(layer, part);
        memcpy(saved + at, found->values, (size_t)count * sizeof *saved);
        *length += product(found->values, found->values, count);
        *slope += product(found->gradients, found->gradients, count);
        at += count;
    }
    *length = sqrt(*length);
    *slope = sqrt(*slope);
    return saved;
}

static shoal_status check_slope(const gradient_check *check) {
    double length, slope, loss[2] = {0}, predicted[2] = {0};
    float *saved = save_parts(check->layer, &length, &slope);
    shoal_status status = SHOAL_OK;
    if (!saved)
        return SHOAL_NO_MEMORY;
    const double step = slope > 0 ? step_share * length / slope : 0;
    for (int side = 0; side < 2 && status == SHOAL_OK; side++) {
        predicted[side] = move_parts(check->layer, saved, side ? step : -step);
        status = bench_layer_forward(check->layer, check->data);
        if (status == SHOAL_OK)
            loss[side] =
                product(check->data->noise, check->layer->out, check->data->query_count);
    }
    move_parts(check->layer, saved, 0);
    free(saved);
    const double expected = predicted[1] - predicted[0];
    const double difference = fabs(loss[1] - loss[0] - expected);
    const double least = 5e-5 * fabs(loss[0]); /* what rounding makes of it */
    bench_note(check->row, "directional difference of the weights",
               difference == 0 ? 0 : difference / (fabs(expected) + least), 2e-3);
    return status;
}

/* ---- A gradient of few rows -------------------------------------------------------- */

/* Row number `s` of the few: one from each part of the rows, so none comes twice. */
static int64_t sampled_row(const gradient_check *check, int64_t s, int64_t few) {
    const int64_t first = s * check->rows / few, next = (s + 1) * check->rows / few;
    const uint64_t draw =
        bench_random(check->job->seed, (uint64_t)11 << 56 | (uint64_t)s);
    return first + (int64_t)(draw % (uint64_t)(next - first));
}

/* Fills slope, and dout of the attention; dx [few][M] is what reaches the features past
   the attention. */
static void way_back(const gradient_check *check, bench_exact *exact, int64_t few,
                     double *dx) {
    bench_data *data = check->data;
    const int64_t model = check->model, dim = data->dim;
    memset(data->slope, 0, (size_t)data->query_count * sizeof(float));
    memset(data->dout, 0, (size_t)data->value_count * sizeof(float));
    for (int64_t s = 0; s < few; s++) {
        const int64_t row = sampled_row(check, s, few);
        const int64_t b = row / data->length, n = row % data->length;
        bench_exact_load(exact, data, row);
        bench_exact_forward(exact);
        for (int64_t a = 0; a < model; a++) {
            data->slope[row * model + a] = data->noise[row * model + a];
            exact->dout[a] = (double)data->noise[row * model + a];
        }
        bench_exact_backward(exact);
        memcpy(dx + s * model, exact->dsum, (size_t)model * sizeof *dx);
        for (int64_t a = 0; a < model; a++) {
            const int64_t head = b * data->heads + a / dim;
            data->dout[(head * data->length + n) * dim + a % dim] =
                (float)exact->dattended[a];
        }
    }
}

/* Feature `a` of projection p's gradient at a row. */
static double projected(const gradient_check *check, int p, int64_t row, int64_t a) {
    const bench_data *data = check->data;
    const float *const gradients[] = {data->dq, data->dk, data->dv};
    const int64_t head = row / data->length * data->heads + a / data->dim;
    return (double)gradients[p][(head * data->length + row % data->length) * data->dim +
                                a % data->dim];
}

static bool has_projection(const gradient_check *check, int p) {
    return check->layer->parts[PART_QUERY + p].values != NULL;
}

static void check_features(const gradient_check *check, int64_t few, const double *dx,
                           double *expected) {
    const int64_t model = check->model;
    squares sums = {0};
    for (int64_t row = 0, s = 0; row < check->rows; row++) {
        memset(expected, 0, (size_t)model * sizeof *expected);
        if (s < few && row == sampled_row(check, s, few))
            memcpy(expected, dx + s++ * model, (size_t)model * sizeof *expected);
        for (int p = 0; p < BENCH_PROJECTIONS; p++)
            for (int64_t a = 0; a < model && has_projection(check, p); a++) {
                const int32_t source = check->data->sources[p * model + a];
                const double slope = projected(check, p, row, a);
                expected[source >= 0 ? source : ~source] += source >= 0 ? slope : -slope;
            }
        for (int64_t a = 0; a < model; a++)
            add(&sums, (double)check->data->dfeatures[row * model + a], expected[a]);
    }
    bench_note(check->row, "gradient of the features, all rows", relative(sums),
               tolerance);
}

/* Some rows of a projection's weight, each with its bias. */
static squares projection_error(const gradient_check *check, int p, double *expected) {
    const int64_t model = check->model;
    const float *weight = check->layer->parts[PART_QUERY + p].gradients;
    const float *bias = check->layer->parts[PART_QUERY_BIAS + p].gradients;
    squares sums = {0};
    for (uint64_t s = 0; s < SAMPLED_OUTPUTS; s++) {
        const uint64_t draw = bench_random(check->job->seed, (uint64_t)12 << 56 | s);
        const int64_t a = (int64_t)(draw % (uint64_t)model);
        double along = 0;
        memset(expected, 0, (size_t)model * sizeof *expected);
        for (int64_t row = 0; row < check->rows; row++) {
            const double slope = projected(check, p, row, a);
            along += slope;
            for (int64_t i = 0; i < model; i++)
                expected[i] += slope * (double)check->data->features[row * model + i];
        }
        add(&sums, (double)bias[a], along);
        for (int64_t i = 0; i < model; i++)
            add(&sums, (double)weight[a * model + i], expected[i]);
    }
    return sums;
}

/* The worst of the projections. One whose gradient is next to nothing, as those of queries
   and keys are where there is one position, is measured by the others'. */
static double projections_error(const gradient_check *check, double *expected) {
    squares sums[BENCH_PROJECTIONS] = {0};
    double largest = 0, worst = 0;
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        if (has_projection(check, p))
            sums[p] = projection_error(check, p, expected);
        largest = fmax(largest, sums[p].size);
    }
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        sums[p].size = fmax(sums[p].size, 1e-4 * largest);
        const double error = relative(sums[p]);
        worst = error <= worst ? worst : error; /* a NaN, once there, stays */
    }
    return worst;
}

static void check_weights(const gradient_check *check, const bench_exact *exact,
                          double *expected) {
    double worst = 0, error;
    for (int part = 0; part < FREE_PARTS; part++) {
        squares sums = {0};
        for (int64_t i = 0; i < bench_part_count(check->layer, part); i++)
            add(&sums, (double)check->layer->parts[part].gradients[i],
                exact->gradients[part][i]);
        error = relative(sums);
        worst = error <= worst ? worst : error; /* a NaN, once there, stays */
    }
    bench_note(check->row, "gradients of the weights behind the attention", worst,
               tolerance);
    bench_note(check->row, "gradients of the projections, sampled",
               projections_error(check, expected), tolerance);
}

static shoal_status check_few(const gradient_check *check) {
    const int64_t few = check->rows < FEW ? check->rows : FEW;
    bench_data *data = check->data;
    const shoal_inputs inputs = bench_inputs(data, check->attention);
    const shoal_gradients gradients = {.out = data->out,
                                       .dout = data->dout,
                                       .dq = data->dq,
                                       .dk = data->dk,
                                       .dv = data->dv};
    bench_exact exact;
    double *dx = malloc((size_t)((few + 1) * check->model) * sizeof *dx);
    if (!dx || !bench_exact_create(&exact, check->layer, check->job, true)) {
        free(dx);
        return SHOAL_NO_MEMORY;
    }
    double *expected = dx + few * check->model;
    way_back(check, &exact, few, dx);
    shoal_status status = bench_layer_forward(check->layer, data);
    if (status == SHOAL_OK)
        status = bench_layer_backward(check->layer, data);
    if (status == SHOAL_OK)
        status = shoal_backward(check->plan, &inputs, &gradients);
    if (status == SHOAL_OK) {
        check_features(check, few, dx, expected);
        check_weights(check, &exact, expected);
    }
    bench_exact_destroy(&exact);
    free(dx);
    return status;
}

shoal_status bench_verify_layer_gradients(const bench_job *job, bench_layer *layer,
                                          shoal_plan *plan, bench_data *data, int kind,
                                          bench_row *row) {
    const gradient_check check = {.job = job,
                                  .layer = layer,
                                  .plan = plan,
                                  .data = data,
                                  .attention = &job->attention[kind],
                                  .row = row,
                                  .model = job->heads * job->dim,
                                  .rows = data->batch * data->length};
    check_lengths(&check);
    shoal_status status = check_slope(&check);
    return status == SHOAL_OK ? check_few(&check) : status;
}
