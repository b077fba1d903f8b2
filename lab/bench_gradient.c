/* The backward pass, checked by identities that need no second implementation.

   out is linear in v, so with the loss <dout, out> the gradient satisfies
   <dv, v> = <dout, out> exactly; dout is set to out, which makes both sides large.

   Scores are products of queries and keys, so scaling either does the same: in every
   kind with keys of their own <dq, q> = <dk, k>.

   The loss along a line (q, k) + t (a, b) has the slope <dq, a> + <dk, b> at t = 0, which
   a central difference of two forward passes must give. The line is the gradient's own
   direction, where the slope is largest, plus q and k, which a gradient that is 0 by
   mistake cannot hide from. But where a choice flips on the way the loss jumps, so only
   the part of the gradient counts that flips none. Groups can be held. Top keys stay the
   same when no centroid and no key changes its direction: members may move as long as
   their mean does so only along itself, and a head's keys may all be scaled. lsh's
   buckets stay the same when every query is scaled (few positions, all in one chunk, do
   the rest); the oracle's keys, when queries and keys are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

/* The step moves q and k by this part of their length. */
static const double step_share = 5e-5;

static double product(const float *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* ---- Lines along which nothing flips ----------------------------------------------- */

/* Replaces a [count] by its part that lies along b. */
static void keep_along(float *a, const float *b, int64_t count) {
    const double squared = product(b, b, count), along = product(a, b, count);
    for (int64_t d = 0; d < count; d++)
        a[d] = squared > 0 ? (float)(along / squared * (double)b[d]) : 0;
}

static void add_row(float *sum, const float *row, float factor, int64_t dim) {
    for (int64_t d = 0; d < dim; d++)
        sum[d] += factor * row[d];
}

/* For one head: takes from each row of the line its group's mean, except the part of that
   mean along the centroid. means and centroids: [clusters][D]; sizes: [clusters]. */
static void keep_centroids(const bench_data *data, int64_t head, int32_t clusters,
                           float *means, float *centroids, float *sizes) {
    const int64_t n = data->length, dim = data->dim;
    const int32_t *groups = data->groups + head * n;
    float *line = data->line_q + head * n * dim;
    memset(means, 0, (size_t)(clusters * dim) * sizeof *means);
    memset(centroids, 0, (size_t)(clusters * dim) * sizeof *centroids);
    memset(sizes, 0, (size_t)clusters * sizeof *sizes);
    for (int64_t i = 0; i < n; i++)
        sizes[groups[i]]++;
    for (int64_t i = 0; i < n; i++) {
        const float share = 1 / sizes[groups[i]];
        add_row(means + groups[i] * dim, line + i * dim, share, dim);
        add_row(centroids + groups[i] * dim, data->q + (head * n + i) * dim, share, dim);
    }
    for (int64_t i = 0; i < n; i++)
        add_row(line + i * dim, means + groups[i] * dim, -1, dim);
    for (int32_t j = 0; j < clusters; j++)
        keep_along(means + j * dim, centroids + j * dim, dim);
    for (int64_t i = 0; i < n; i++)
        add_row(line + i * dim, means + groups[i] * dim, 1, dim);
}

static bool keep_all_centroids(const bench_data *data, int32_t clusters) {
    const size_t rows = (size_t)clusters * (size_t)data->dim;
    float *memory = malloc((2 * rows + (size_t)clusters) * sizeof *memory);
    if (!memory)
        return false;
    for (int64_t head = 0; head < data->batch * data->heads; head++)
        keep_centroids(data, head, clusters, memory, memory + rows, memory + 2 * rows);
    free(memory);
    return true;
}

/* Reduces the line to directions that flip no choice of the kind. */
static bool keep_choices(shoal_plan *plan, const bench_data *data,
                         const shoal_attention *attention) {
    const bool top_keys = shoal_plan_top_keys(plan, NULL) != NULL;
    const bool oracle = attention->kind == SHOAL_ORACLE_TOP;
    const bool buckets = attention->kind == SHOAL_LSH && data->length > 32;
    const int64_t keys = data->length * data->dim;
    if (oracle || buckets)
        for (int64_t at = 0; at < data->query_count; at += data->dim)
            keep_along(data->line_q + at, data->q + at, data->dim);
    if (oracle || top_keys)
        for (int64_t at = 0; at < data->query_count; at += keys)
            keep_along(data->line_k + at, data->k + at, keys);
    return !top_keys || keep_all_centroids(data, attention->clusters);
}

/* ---- The difference ---------------------------------------------------------------- */

/* Makes the line of one array: its own direction and that of the array, both of the
   array's length. Returns the slope that may be expected of the two, signs aside. */
static double mix_line(float *line, const float *from, const float *gradient,
                       int64_t count) {
    const double length = sqrt(product(from, from, count));
    const double own = sqrt(product(line, line, count));
    for (int64_t i = 0; i < count; i++)
        line[i] =
            (float)((own > 0 ? length / own * (double)line[i] : 0) + (double)from[i]);
    return length * own + fabs(product(gradient, from, count));
}

static void move(float *moved, const float *from, const float *along, double step,
                 int64_t count) {
    for (int64_t i = 0; i < count; i++)
        moved[i] = (float)((double)from[i] + step * (double)along[i]);
}

/* <dout, out> at (q, k) + step (line), and what the gradient says about the way there,
   as far as q and k really moved after rounding. */
static shoal_status loss_at(shoal_plan *plan, bench_data *data, shoal_inputs inputs,
                            double step, double *loss, double *predicted) {
    move(data->moved_q, data->q, data->line_q, step, data->query_count);
    *predicted = product(data->moved_q, data->dq, data->query_count);
    inputs.q = data->moved_q;
    if (inputs.k) {
        move(data->moved_k, data->k, data->line_k, step, data->query_count);
        *predicted += product(data->moved_k, data->dk, data->query_count);
        inputs.k = data->moved_k;
    }
    shoal_status status = shoal_forward(plan, &inputs, data->out);
    *loss = product(data->dout, data->out, data->value_count);
    return status;
}

/* Difference between the slope by differences and by the gradient, relative to the size
   of its parts, and never to less than what rounding makes of the loss: few positions
   have gradients near 0. */
static shoal_status slope_error(shoal_plan *plan, bench_data *data, shoal_inputs inputs,
                                double *error) {
    double loss[2] = {0}, predicted[2] = {0};
    double size = mix_line(data->line_q, data->q, data->dq, data->query_count);
    shoal_status status = SHOAL_OK;
    if (inputs.k)
        size += mix_line(data->line_k, data->k, data->dk, data->query_count);
    for (int side = 0; side < 2 && status == SHOAL_OK; side++)
        status = loss_at(plan, data, inputs, side ? step_share : -step_share, &loss[side],
                         &predicted[side]);
    const double difference = fabs(loss[1] - loss[0] - (predicted[1] - predicted[0]));
    const double least = 5e-5 * fabs(loss[0]);
    *error = difference == 0 ? 0 : difference / (2 * step_share * size + least);
    return status;
}

/* ---- All of it --------------------------------------------------------------------- */

static double relative(double a, double b) {
    return a == b ? 0 : fabs(a - b) / fmax(fabs(a), fabs(b));
}

shoal_status bench_verify_gradients(shoal_plan *plan, bench_data *data,
                                    const shoal_attention *attention, bench_row *row,
                                    const char *const names[2]) {
    const size_t bytes = (size_t)data->query_count * sizeof(float);
    shoal_inputs inputs = bench_inputs(data, attention);
    double error = 0;
    bench_note(row, names[0],
               relative(product(data->dv, data->v, data->value_count),
                        product(data->dout, data->out, data->value_count)),
               1e-5);
    if (inputs.k)
        bench_note(row, "<dq, q> = <dk, k>",
                   relative(product(data->dq, data->q, data->query_count),
                            product(data->dk, data->k, data->query_count)),
                   1e-5);
    if (shoal_plan_groups(plan, NULL)) {
        const int64_t count = data->batch * data->heads * data->length;
        memcpy(data->groups, shoal_plan_groups(plan, NULL), (size_t)count * 4);
        inputs.groups = data->groups;
    }
    memcpy(data->line_q, data->dq, bytes);
    memcpy(data->line_k, data->dk, bytes);
    if (!keep_choices(plan, data, attention))
        return SHOAL_NO_MEMORY;
    shoal_status status = slope_error(plan, data, inputs, &error);
    bench_note(row, names[1], error, 2e-3);
    return status;
}
