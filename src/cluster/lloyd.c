#include "cluster/lloyd.h"

#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "base/random.h"

/* ---- The metric of the keys ------------------------------------------------------- */

enum { POWER_STEPS = 3 /* of the subspace iteration; thirty gave the same errors */ };

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

/* out = sample' sample: a panel holds some columns of the sample, and `mix` accumulates
   the products of its rows with all columns. */
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
        /* The product is symmetric: rows below the current columns are mirrored. */
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

/* An even sample of the visible rows; returns their number. */
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

/* Scales a covariance so that its trace is near 1, because products of covariances
   could overflow or underflow. The factor is a power of 4: it and its square root are
   exact. Returns the factor from the root of the scaled covariance to that of the
   original. */
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

/* Cholesky factorisation: replaces the covariance S by an upper triangular U with U'U =
   S. If the keys do not span all dimensions, some pivots are only rounding errors;
   their rows become 0. */
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

/* out [n][columns] = a [n][D] b, with b given by its transpose [columns][D] or, if
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

/* Orthonormalises the rows, each against those before it. A row in the span of the
   others becomes 0: fewer directions are enough. */
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
    /* Unit vectors at the `dims` largest diagonal elements, on ties the first. A
       symmetric start, such as rows of ones, could be orthogonal to the solution if the
       target is symmetric too. */
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
    /* If rows were nearly parallel, subtraction left short rows, whose scaling to
       length 1 amplified rounding errors. In the second pass the rows are nearly
       orthogonal, so nothing is amplified. */
    orthonormalise(work->basis, dims, D);
    multiply(work, kernels, work->basis, dims, work->keys, 0, D, work->projection);
    multiply_by(work->projection, (int64_t)dims * D, root);
}

/* Solves a x = b for all columns of b [n][columns], in place; a [n][n] is positive
   definite and is replaced by its factor. */
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

/* ---- Euclidean k-means ------------------------------------------------------------- */

enum {
    START_ROUNDS = 16,   /* of k-means++, approximately */
    LEAST_HALVED = 1024, /* with fewer points, all are used in every iteration */
    LEAST_SAMPLE = 4096, /* number of points to learn on, if there are as many */
    SAMPLE_PER_CENTRE = 32,
    POINT_TASK = 960, /* queries per task: whole panels of every width */
    WEIGHT_BLOCK = 64 /* points per partial sum of weights */
};

int64_t sh_lloyd_sample(int64_t clusters, int64_t n) {
    int64_t wanted = clusters * SAMPLE_PER_CENTRE;
    return min(n, max(wanted, LEAST_SAMPLE));
}

void sh_lloyd_place(lloyd_work *work, const kernel_table *kernels, int clusters, int dim,
                    int dims, int64_t n, block_layout *place) {
    const int64_t C = clusters, sample = sh_lloyd_sample(C, n);
    work->clusters = clusters;
    work->dims = dims;
    work->dim = dim;
    work->panels = sh_reserve(place, (sample + kernels->panel) * dims, sizeof(float));
    work->points = sh_reserve(place, sample * dims, sizeof(float));
    work->squares = sh_reserve(place, sample, sizeof(float));
    work->closeness = sh_reserve(place, sample + kernels->panel, sizeof(float));
    work->weights = sh_reserve(place, sample + WEIGHT_BLOCK, sizeof(float));
    work->weight_sums = sh_reserve(place, sample / WEIGHT_BLOCK + 1, sizeof(float));
    work->nearest = sh_reserve(place, sample + kernels->panel, sizeof(int32_t));
    work->centres = sh_reserve(place, C * dims, sizeof(float));
    work->bias = sh_reserve(place, C, sizeof(float));
    work->sums = sh_reserve(place, LLOYD_PARTS * C * dims, sizeof(float));
    work->sizes = sh_reserve(place, LLOYD_PARTS * C, sizeof(int32_t));
}

void sh_lloyd_place_thread(lloyd_thread *thread, const kernel_table *kernels, int dim,
                           int dims, block_layout *place) {
    thread->panel = sh_reserve(place, (int64_t)dim * kernels->panel, sizeof(float));
    thread->projected = sh_reserve(place, (int64_t)dims * kernels->panel, sizeof(float));
}

/* One run over a head, shared by its tasks. */
typedef struct {
    lloyd_work *work;
    const kernel_table *kernels;
    const float *q, *projection;
    int64_t stride, n;
    int32_t first, last; /* range of centres to compare with */
    int32_t *groups;     /* [n], or NULL */
    const float *shift;  /* [dims], or NULL: added to the projections */
    float *projected;    /* [n][dims], or NULL */
} lloyd_pass;

/* Panels are contiguous, all of full width except the last. */
static float *panel_at(const lloyd_work *work, int64_t point) {
    return work->panels + point * work->dims;
}

/* Projects `count` queries into one panel; index NULL: rows from `first` on. */
static void project_panel(const lloyd_pass *pass, lloyd_thread *own, int64_t first,
                          const int32_t *index, int count, int width, float *projected) {
    const int dim = pass->work->dim;
    pass->kernels->pack(pass->q + first * pass->stride, pass->stride, index, count, width,
                        dim, 1, own->panel);
    pass->kernels->score(own->panel, width, dim, pass->projection, dim, pass->work->dims,
                         projected);
}

/* The sample is `sample` evenly spaced queries. Those with even numbers come first, so
   that each half covers the whole sequence. */
int64_t sh_lloyd_query(int64_t sample, int64_t n, int64_t point) {
    const int64_t evens = (sample + 1) / 2;
    int64_t which = point < evens ? 2 * point : 2 * (point - evens) + 1;
    return which * n / sample;
}

static void sample_task(void *shared, int64_t task, int thread) {
    const lloyd_pass *pass = shared;
    const lloyd_work *work = pass->work;
    const int64_t last = min((task + 1) * POINT_TASK, work->sample);
    for (int64_t first = task * POINT_TASK; first < last; first += pass->kernels->panel) {
        int width = panel_width(pass->kernels, last - first);
        int count = (int)min(width, last - first);
        int32_t index[MAX_PANEL];
        for (int i = 0; i < count; i++)
            index[i] = (int32_t)sh_lloyd_query(work->sample, pass->n, first + i);
        project_panel(pass, &work->threads[thread], 0, index, count, width,
                      panel_at(work, first));
        pass->kernels->unpack(panel_at(work, first), count, width, work->dims, NULL, NULL,
                              0, work->points + first * work->dims, work->dims, NULL);
    }
}

/* Compares sample points with the centres of the pass, and with the nearest one so
   far. */
static void compare_task(void *shared, int64_t task, int thread) {
    const lloyd_pass *pass = shared;
    const lloyd_work *work = pass->work;
    const int64_t last = min(work->begin + (task + 1) * POINT_TASK, work->end);
    (void)thread;
    for (int64_t first = work->begin + task * POINT_TASK; first < last;
         first += pass->kernels->panel) {
        int width = panel_width(pass->kernels, last - first);
        float best[MAX_PANEL];
        int32_t who[MAX_PANEL];
        /* From centre 0 on, results are written directly: there is room for a panel. */
        pass->kernels->closest(panel_at(work, first), width, work->dims,
                               work->centres + (int64_t)pass->first * work->dims,
                               work->dims, work->bias + pass->first,
                               pass->last - pass->first,
                               pass->first ? best : work->closeness + first,
                               pass->first ? who : work->nearest + first);
        for (int i = 0; i < width && pass->first; i++) {
            float *closeness = work->closeness + first + i;
            int32_t *nearest = work->nearest + first + i;
            int better = best[i] > *closeness;
            *closeness = better ? best[i] : *closeness;
            *nearest = better ? pass->first + who[i] : *nearest;
        }
    }
}

static void compare(lloyd_pass *pass, team workers, int32_t first, int32_t last) {
    pass->first = first;
    pass->last = last;
    int64_t points = pass->work->end - pass->work->begin;
    sh_team_run(workers, ceil_divide(points, POINT_TASK), compare_task, pass);
}

/* ---- Initial centres -------------------------------------------------------------- */

static void take_point(lloyd_work *work, int32_t c, int64_t point) {
    float *centre = work->centres + (int64_t)c * work->dims;
    memcpy(centre, work->points + point * work->dims, sizeof(float) * (size_t)work->dims);
    work->bias[c] = -ordered_dot(centre, centre, work->dims) / 2;
}

/* Squared distances from the nearest centre so far, and their sums by blocks, each of
   eight partial sums; returns the total. */
static double weigh(lloyd_work *work) {
    double total = 0;
    for (int64_t first = 0; first < work->end; first += WEIGHT_BLOCK) {
        float *weights = work->weights + first;
        int64_t count = min(WEIGHT_BLOCK, work->end - first);
        memset(weights, 0, sizeof(float) * WEIGHT_BLOCK);
        for (int64_t i = 0; i < count; i++) {
            float square = work->squares[first + i];
            float distance = square - 2 * work->closeness[first + i];
            /* It may be negative by rounding, or NaN: then the weight is 0. */
            weights[i] = distance > 1e-6f * square ? distance : 0;
        }
        float sums[8] = {0}, sum = 0;
        for (int i = 0; i < WEIGHT_BLOCK; i += 8)
            for (int j = 0; j < 8; j++)
                sums[j] += weights[i + j];
        for (int j = 0; j < 8; j++)
            sum += sums[j];
        work->weight_sums[first / WEIGHT_BLOCK] = sum;
        total += (double)sum;
    }
    return total;
}

/* Draws up to `wanted` distinct points, one from each equal share of the total weight. */
static int32_t draw(lloyd_work *work, uint64_t seed, int32_t chosen, int32_t wanted,
                    double total) {
    const double unit = 1.0 / 9007199254740992.0; /* 2^-53 */
    double passed = 0;
    int64_t block = 0, before = -1;
    int32_t drawn = 0;
    for (int32_t share = 0; share < wanted; share++) {
        uint64_t bits =
            random_bits(seed, STREAM_STARTS, (uint64_t)chosen + (uint64_t)share + 1);
        double mark = total * ((double)share + (double)(bits >> 11) * unit) / wanted;
        while ((block + 1) * WEIGHT_BLOCK < work->end &&
               passed + (double)work->weight_sums[block] <= mark)
            passed += (double)work->weight_sums[block++];
        /* The point of the block at which the cumulative weight passes the mark; if
           rounding prevents that, the last point with a weight. */
        double left = mark - passed;
        int64_t point = block * WEIGHT_BLOCK;
        for (int64_t i = point; i < (block + 1) * WEIGHT_BLOCK && !(left < 0); i++)
            if (work->weights[i] > 0) {
                point = i;
                left -= (double)work->weights[i];
            }
        if (point > before)
            take_point(work, chosen + drawn++, point);
        before = point > before ? point : before;
    }
    return drawn;
}

/* ---- Iterations ------------------------------------------------------------------- */

/* Sums of one part of the current points, by centre. */
static void sum_task(void *shared, int64_t part, int thread) {
    const lloyd_pass *pass = shared;
    const lloyd_work *work = pass->work;
    const int64_t C = work->clusters, dims = work->dims;
    float *sums = work->sums + part * C * dims;
    int32_t *sizes = work->sizes + part * C;
    (void)thread;
    memset(sums, 0, sizeof(float) * (size_t)(C * dims));
    memset(sizes, 0, sizeof(int32_t) * (size_t)C);
    const int64_t points = work->end - work->begin;
    for (int64_t i = work->begin + part * points / LLOYD_PARTS;
         i < work->begin + (part + 1) * points / LLOYD_PARTS; i++) {
        float *sum = sums + work->nearest[i] * dims;
        const float *point = work->points + i * dims;
        for (int64_t r = 0; r < dims; r++)
            sum[r] += point[r];
        sizes[work->nearest[i]]++;
    }
}

/* Projects all queries and assigns them to the nearest centre. */
static void query_task(void *shared, int64_t task, int thread) {
    const lloyd_pass *pass = shared;
    const lloyd_work *work = pass->work;
    lloyd_thread *own = &work->threads[thread];
    const int64_t last = min((task + 1) * POINT_TASK, pass->n);
    for (int64_t first = task * POINT_TASK; first < last; first += pass->kernels->panel) {
        int width = panel_width(pass->kernels, last - first);
        int count = (int)min(width, last - first);
        float best[MAX_PANEL];
        int32_t who[MAX_PANEL];
        prefetch_rows(pass->q + (first + count) * pass->stride, pass->stride, NULL,
                      min(width, last - first - count), work->dim);
        project_panel(pass, own, first, NULL, count, width, own->projected);
        if (pass->groups) {
            pass->kernels->closest(own->projected, width, work->dims, work->centres,
                                   work->dims, work->bias, work->clusters, best, who);
            memcpy(pass->groups + first, who, sizeof *who * (size_t)count);
        }
        if (pass->projected)
            pass->kernels->unpack(own->projected, count, width, work->dims, NULL,
                                  pass->shift, 0, pass->projected + first * work->dims,
                                  work->dims, NULL);
    }
}

/* Iterations alternate between the two halves of the sample, and the last one uses all
   of it. Centres that follow a new half converge better than ones that use every point
   each time, at half the cost (docs/notebook/QUALITY.md). */
static void look_at(lloyd_work *work, int iteration, int iterations) {
    const int last = iteration == iterations - 1;
    work->begin = !last && iteration % 2 && work->half < work->sample ? work->half : 0;
    work->end = last || work->begin ? work->sample : work->half;
}

static void begin(lloyd_work *work, int64_t n) {
    work->sample = sh_lloyd_sample(work->clusters, n);
    /* Whole panels of every width. */
    work->half = (work->sample / 2 + 47) / 48 * 48;
    if (work->sample < LEAST_HALVED || work->half < work->clusters)
        work->half = work->sample; /* a half must have at least as many points as
                                      centres */
}

/* Learns the centres from the points; unless `all` is 0, the points of the last
   iteration get their nearest centre. */
static void learn(lloyd_pass *pass, team workers, int iterations, uint64_t seed,
                  int all) {
    lloyd_work *work = pass->work;
    /* The start leaves its points with their nearest centre: the first assignment. */
    look_at(work, 0, iterations);
    int32_t chosen = 1;
    for (int64_t i = 0; i < work->end; i++) {
        const float *point = work->points + i * work->dims;
        work->squares[i] = ordered_dot(point, point, work->dims);
    }
    take_point(work, 0,
               (int64_t)random_below(seed, STREAM_STARTS, 0, (uint64_t)work->end));
    compare(pass, workers, 0, 1);
    /* Centres are compared four at a time. */
    const int64_t batch = ((work->clusters + START_ROUNDS - 1) / START_ROUNDS + 3) / 4 *
                          4;
    for (int round = 0; round < 2 * START_ROUNDS && chosen < work->clusters; round++) {
        int32_t wanted = (int32_t)min(batch, work->clusters - chosen);
        double total = weigh(work);
        if (!(total > 0))
            break;
        int32_t drawn = draw(work, seed, chosen, wanted, total);
        if (drawn > 0)
            compare(pass, workers, chosen, chosen + drawn);
        chosen += drawn;
    }
    /* Too few distinct points: the remaining centres repeat some, and stay empty. */
    for (; chosen < work->clusters; chosen++)
        take_point(work, chosen, (int64_t)chosen * work->end / work->clusters);
    for (int l = 1; l < iterations; l++) {
        const int64_t C = work->clusters, dims = work->dims;
        sh_team_run(workers, LLOYD_PARTS, sum_task, pass);
        for (int64_t c = 0; c < C; c++) {
            int32_t size = 0;
            for (int64_t part = 0; part < LLOYD_PARTS; part++)
                size += work->sizes[part * C + c];
            float *centre = work->centres + c * dims;
            for (int64_t r = 0; r < dims && size > 0; r++) {
                float sum = 0;
                for (int64_t part = 0; part < LLOYD_PARTS; part++)
                    sum += work->sums[(part * C + c) * dims + r];
                centre[r] = sum / (float)size;
            }
            work->bias[c] = -ordered_dot(centre, centre, work->dims) / 2;
        }
        look_at(work, l, iterations);
        if (l < iterations - 1 || all)
            compare(pass, workers, 0, work->clusters);
    }
}

void sh_lloyd_run(lloyd_work *work, const kernel_table *kernels, team workers,
                  const float *q, int64_t stride, int64_t n, const float *projection,
                  int iterations, uint64_t seed, int32_t *groups, float *projected) {
    lloyd_pass pass = {.work = work,
                       .kernels = kernels,
                       .q = q,
                       .projection = projection,
                       .stride = stride,
                       .n = n,
                       .groups = groups,
                       .projected = projected};
    begin(work, n);
    sh_team_run(workers, ceil_divide(work->sample, POINT_TASK), sample_task, &pass);
    learn(&pass, workers, iterations, seed, work->sample == n);
    if (work->sample == n)
        for (int64_t i = 0; i < n; i++) {
            const int64_t query = sh_lloyd_query(n, n, i);
            groups[query] = work->nearest[i];
            if (projected)
                memcpy(projected + query * work->dims, work->points + i * work->dims,
                       sizeof(float) * (size_t)work->dims);
        }
    else
        sh_team_run(workers, ceil_divide(n, POINT_TASK), query_task, &pass);
}

void sh_lloyd_project(lloyd_work *work, const kernel_table *kernels, team workers,
                      const float *q, int64_t stride, int64_t n, const float *projection,
                      const float *shift, float *projected, int32_t *groups) {
    lloyd_pass pass = {.work = work,
                       .kernels = kernels,
                       .q = q,
                       .projection = projection,
                       .stride = stride,
                       .n = n,
                       .groups = groups,
                       .shift = shift,
                       .projected = projected};
    sh_team_run(workers, ceil_divide(n, POINT_TASK), query_task, &pass);
}

/* ---- Queries distributed over processes ------------------------------------------- */

void sh_lloyd_learn(lloyd_work *work, const kernel_table *kernels, team workers,
                    const float *points, int64_t n, int iterations, uint64_t seed) {
    lloyd_pass pass = {.work = work, .kernels = kernels, .n = n};
    begin(work, n);
    memcpy(work->points, points, sizeof *points * (size_t)(work->sample * work->dims));
    for (int64_t first = 0; first < work->sample;) {
        const int64_t last = min((first / POINT_TASK + 1) * POINT_TASK, work->sample);
        const int width = panel_width(kernels, last - first);
        const int count = (int)min(width, last - first);
        kernels->pack(work->points + first * work->dims, work->dims, NULL, count, width,
                      work->dims, 1, panel_at(work, first));
        first += kernels->panel < last - first ? kernels->panel : last - first;
    }
    learn(&pass, workers, iterations, seed, 0);
}
