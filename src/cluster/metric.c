#include "cluster/metric.h"

#include <math.h>
#include <string.h>

enum {
    POWER_STEPS = 3 /* of the subspace iteration; thirty gave the same errors */
};

void sh_metric_place(metric_work *work, const kernel_table *kernels, int dim, int dims,
                     block_layout *place) {
    const int64_t D = dim;
    work->dim = dim;
    work->dims = dims;
    work->mean = sh_reserve(place, D, sizeof(float));
    work->sample = sh_reserve(place, METRIC_SAMPLE * D, sizeof(float));
    work->columns = sh_reserve(place, METRIC_SAMPLE * kernels->panel, sizeof(float));
    work->keys = sh_reserve(place, D * D, sizeof(float));
    work->queries = sh_reserve(place, D * D, sizeof(float));
    work->product = sh_reserve(place, D * D, sizeof(float));
    work->target = sh_reserve(place, D * D, sizeof(float));
    work->basis = sh_reserve(place, dims * D, sizeof(float));
    work->panel = sh_reserve(place, D * kernels->panel, sizeof(float));
    work->scores = sh_reserve(place, D * kernels->panel, sizeof(float));
    work->projection = sh_reserve(place, dims * D, sizeof(float));
    work->centre = sh_reserve(place, D, sizeof(float));
    work->normal = sh_reserve(place, (int64_t)dims * dims, sizeof(double));
    work->dual = sh_reserve(place, dims * D, sizeof(double));
}

/* out = sample' sample: a panel holds some of the sample's columns, and `mix` adds up the
   products of its rows with all columns. */
static void multiply_by_itself(metric_work *work, const kernel_table *kernels, int count,
                               float *out) {
    const int D = work->dim;
    for (int first = 0; first < D; first += kernels->panel) {
        int width = panel_width(kernels, D - first);
        int live = D - first < width ? D - first : width;
        memset(work->columns, 0, sizeof(float) * (size_t)(count * width));
        for (int i = 0; i < count; i++)
            memcpy(work->columns + i * width, work->sample + (int64_t)i * D + first,
                   sizeof(float) * (size_t)live);
        /* The product is symmetric: rows below the columns at hand are mirrored. */
        memset(work->panel, 0, sizeof(float) * (size_t)((first + live) * width));
        kernels->mix(work->columns, width, work->sample, D, count, first + live, NULL,
                     work->panel);
        for (int d = 0; d < first + live; d++)
            for (int i = 0; i < live; i++) {
                out[(int64_t)d * D + first + i] = work->panel[d * width + i];
                out[(int64_t)(first + i) * D + d] = work->panel[d * width + i];
            }
    }
}

static int is_hidden(const metric_rows *x, int64_t i) {
    return x->bias && hides_key(x->bias[i * x->bias_step]);
}

/* An even sample of those that are there; returns how many. */
static int64_t sample_rows(const metric_rows *x, int32_t rows[METRIC_SAMPLE]) {
    int64_t n = x->count, taken = 0, seen = 0;
    for (int64_t i = 0; i < x->count && x->bias; i++)
        n -= is_hidden(x, i);
    const int64_t wanted = n < METRIC_SAMPLE ? n : METRIC_SAMPLE;
    for (; taken < wanted && !x->bias; taken++)
        rows[taken] = (int32_t)(taken * n / wanted);
    for (int64_t i = 0; taken < wanted; i++)
        if (!is_hidden(x, i) && seen++ == taken * n / wanted)
            rows[taken++] = (int32_t)i;
    return taken;
}

static void covariance(metric_work *work, const kernel_table *kernels,
                       const metric_rows *x, float *out) {
    const int D = work->dim;
    int32_t rows[METRIC_SAMPLE] = {0};
    const int64_t taken = sample_rows(x, rows);
    kernels->sum_rows(x->data, x->stride, rows, NULL, taken, D, work->mean);
    for (int d = 0; d < D && taken > 0; d++)
        work->mean[d] /= (float)taken;
    for (int64_t i = 0; i < taken; i++) {
        const float *row = x->data + rows[i] * x->stride;
        float *centred = work->sample + i * D;
        for (int d = 0; d < D; d++)
            centred[d] = row[d] - work->mean[d];
    }
    multiply_by_itself(work, kernels, (int)taken, out);
}

static void multiply_by(float *x, int64_t count, float by) {
    for (int64_t i = 0; i < count; i++)
        x[i] *= by;
}

/* Scales a covariance so that its trace is near 1, because products of covariances could
   overflow or vanish. The factor is a power of 4: it and its square root are powers of 2,
   which round nothing. Returns what the root of the scaled covariance must be multiplied
   by to be that of the covariance given. */
static float balance(float *s, int D) {
    float trace = 0;
    for (int i = 0; i < D; i++)
        trace += s[(int64_t)i * D + i];
    if (!(trace > 0 && isfinite(trace)))
        return 1;
    const int half = ilogbf(trace) / 2;
    multiply_by(s, (int64_t)D * D, ldexpf(1, -2 * half));
    return ldexpf(1, half);
}

/* The covariance S becomes U, upper triangular, with U'U = S. Where the
   keys do not span all dimensions, what is left of some pivots is only rounding; their
   rows become 0. */
static void factorise(float *s, int D) {
    float trace = 0;
    for (int i = 0; i < D; i++)
        trace += s[(int64_t)i * D + i];
    const float least = 1e-4f * trace / (float)D;
    for (int i = 0; i < D; i++) {
        float *row = s + (int64_t)i * D;
        for (int above = 0; above < i; above++) {
            const float *other = s + (int64_t)above * D;
            const float by = other[i];
            for (int j = i; j < D; j++)
                row[j] -= by * other[j];
        }
        float scale = row[i] > least ? 1 / sqrtf(row[i]) : 0;
        memset(row, 0, sizeof(float) * (size_t)i);
        for (int j = i; j < D; j++)
            row[j] *= scale;
    }
}

/* out [n][columns] = a [n][D] b, with b given by its transpose [columns][D] or, when
   `turned` is 0, as [D][columns]. */
static void multiply(metric_work *work, const kernel_table *kernels, const float *a,
                     int n, const float *b, int turned, int columns, float *out) {
    const int D = work->dim;
    for (int first = 0; first < columns; first += kernels->panel) {
        int width = panel_width(kernels, columns - first);
        int live = columns - first < width ? columns - first : width;
        for (int d = 0; d < D; d++)
            for (int i = 0; i < width; i++) {
                int64_t at = turned ? (int64_t)(first + i) * D + d
                                    : (int64_t)d * columns + first + i;
                work->panel[d * width + i] = i < live ? b[at] : 0;
            }
        kernels->score(work->panel, width, D, a, D, n, work->scores);
        for (int r = 0; r < n; r++)
            memcpy(out + (int64_t)r * columns + first, work->scores + r * width,
                   sizeof(float) * (size_t)live);
    }
}

/* Makes the rows orthonormal, each against those before it. A row that the others span
   becomes 0: fewer directions are enough. */
static void orthonormalise(float *basis, int dims, int D) {
    for (int r = 0; r < dims; r++) {
        float *row = basis + (int64_t)r * D;
        float before = ordered_dot(row, row, D);
        for (int s = 0; s < r; s++) {
            const float *other = basis + (int64_t)s * D;
            const float by = ordered_dot(row, other, D);
            for (int d = 0; d < D; d++)
                row[d] -= by * other[d];
        }
        float length = ordered_dot(row, row, D);
        float scale = length > 1e-10f * before ? 1 / sqrtf(length) : 0;
        for (int d = 0; d < D; d++)
            row[d] *= scale;
    }
}

void sh_metric_find(metric_work *work, const kernel_table *kernels, metric_rows keys,
                    metric_rows queries) {
    const int D = work->dim, dims = work->dims;
    covariance(work, kernels, &keys, work->keys);
    memcpy(work->centre, work->mean, sizeof(float) * (size_t)D);
    covariance(work, kernels, &queries, work->queries);
    const float root = balance(work->keys, D);
    balance(work->queries, D);
    factorise(work->keys, D);
    multiply(work, kernels, work->keys, D, work->queries, 0, D, work->product);
    multiply(work, kernels, work->product, D, work->keys, 1, D, work->target);
    /* Unit vectors at the `dims` largest diagonal elements, the first of equals. A start
       that looks alike in all directions, such as rows of ones, could be orthogonal to
       what is sought where the target has a symmetry. */
    memset(work->basis, 0, sizeof(float) * (size_t)work->dims * (size_t)D);
    for (int d = 0; d < D; d++)
        work->mean[d] = work->target[(int64_t)d * D + d];
    for (int r = 0; r < work->dims; r++) {
        int largest = 0;
        for (int d = 1; d < D; d++)
            if (work->mean[d] > work->mean[largest])
                largest = d;
        work->basis[(int64_t)r * D + largest] = 1;
        work->mean[largest] = -1;
    }
    for (int step = 0; step < POWER_STEPS; step++) {
        /* The target is symmetric: V' (U Cq U') has the new basis as its rows. */
        multiply(work, kernels, work->basis, dims, work->target, 0, D, work->projection);
        memcpy(work->basis, work->projection, sizeof(float) * (size_t)dims * (size_t)D);
        orthonormalise(work->basis, dims, D);
    }
    /* Where rows were nearly parallel, subtracting left short rows, and scaling those to
       length 1 scaled their rounding errors too. A second time the rows are nearly
       orthogonal already, so nothing is scaled up. */
    orthonormalise(work->basis, dims, D);
    multiply(work, kernels, work->basis, dims, work->keys, 0, D, work->projection);
    multiply_by(work->projection, (int64_t)dims * D, root);
}

/* Solves a x = b for all columns of b [n][columns], in place; a [n][n] is positive
   definite and becomes its factor. */
static void solve(double *a, int n, double *b, int columns) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int d = 0; d < j; d++)
                sum -= a[i * n + d] * a[j * n + d];
            a[i * n + j] = i == j ? sqrt(sum) : sum / a[j * n + j];
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            for (int c = 0; c < columns; c++)
                b[i * columns + c] = j < i ? b[i * columns + c] -
                                                 a[i * n + j] * b[j * columns + c]
                                           : b[i * columns + c] / a[i * n + i];
    for (int i = n - 1; i >= 0; i--)
        for (int j = n - 1; j >= i; j--)
            for (int c = 0; c < columns; c++)
                b[i * columns + c] = j > i ? b[i * columns + c] -
                                                 a[j * n + i] * b[j * columns + c]
                                           : b[i * columns + c] / a[i * n + i];
}

void sh_metric_dual(metric_work *work, const kernel_table *kernels, float *dual) {
    const int D = work->dim, dims = work->dims;
    multiply(work, kernels, work->projection, dims, work->queries, 0, D, dual);
    double trace = 0;
    for (int i = 0; i < dims; i++)
        for (int j = 0; j < dims; j++) {
            double sum = 0;
            for (int d = 0; d < D; d++)
                sum += (double)dual[i * D + d] * (double)work->projection[j * D + d];
            work->normal[i * dims + j] = sum;
            trace += i == j ? sum : 0;
        }
    for (int i = 0; i < dims; i++)
        work->normal[i * dims + i] += 1e-6 * trace / dims + 1e-30;
    for (int i = 0; i < dims * D; i++)
        work->dual[i] = (double)dual[i];
    solve(work->normal, dims, work->dual, D);
    for (int i = 0; i < dims * D; i++)
        dual[i] = (float)work->dual[i];
}
