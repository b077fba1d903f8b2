/* shoal-C: a correction t_m per query and key cluster m, added to the centroid's scores
   of keys that are not exact for the query.

   With x = q - c, the query minus its centroid, and z_l = Z'(k_l - mean of the keys):

       d = scale P'x    b = scale x.mean    t_m = b + d.z_m

   z_m is the mean of z over the cluster's remainder, the keys that are not exact for
   the query's block, weighted by exp(s_l), where s_l is the centroid's score including
   the key's bias. If the remainder has almost none of the cluster's weight, z_m is the
   unweighted mean over the cluster. Hidden keys belong to no cluster. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exact/tilt.h"

static const double LEAST = 1e-3; /* minimum share of a cluster's weight */

struct exact_tilt {
    int64_t rank, clusters;
    double *coordinates; /* [S][rank]: z */
    double *weights;     /* [S]: exp(s_l), 0 for the block's exact keys */
    double *sums;        /* [M]: their sums */
    double *means;       /* [M][rank]: z_m */
    int64_t *sizes;      /* [M]: number of keys */
    bool *weighted;      /* [M] */
    double *d, *dd;      /* [rank] */
    double b;
    double *tilts, *dtilts; /* [M] */
    double *dz;             /* [rank] */
};

struct exact_tilt *exact_tilt_create(const shoal_attention *attention, int64_t keys,
                                     int64_t dim) {
    const bool used = attention->keyclusters > 0;
    const int64_t rank = attention->rank < dim ? attention->rank : dim;
    const int64_t r = used && rank > 0 ? rank : 0;
    const int64_t M = !used                           ? 0
                      : attention->keyclusters < keys ? attention->keyclusters
                                                      : keys + 1;
    const int64_t doubles = keys * (r + 1) + M * (r + 5) + 3 * r;
    struct exact_tilt *tilt = calloc(1, sizeof *tilt + (size_t)doubles * sizeof(double));
    if (!tilt)
        return NULL;
    double *next = (double *)(tilt + 1);
    double **const parts[] = {&tilt->coordinates, &tilt->weights, &tilt->sums,
                              &tilt->means,       &tilt->d,       &tilt->dd,
                              &tilt->tilts,       &tilt->dtilts,  &tilt->dz};
    const int64_t counts[] = {keys * r, keys, M, M * r, r, r, M, M, r};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++, next += counts[i - 1])
        *parts[i] = next;
    tilt->sizes = (int64_t *)next;
    tilt->weighted = (bool *)(next + M);
    tilt->rank = r;
    tilt->clusters = M;
    return tilt;
}

static double dot_float(const double *a, const float *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * (double)b[i];
    return sum;
}

static const float *centre_of(const exact_head *head) {
    return head->projection + head->tilt->rank * head->dim;
}

static bool is_own(const exact_head *head, int64_t i, int64_t l) {
    const int64_t topk = head->attention.topk;
    for (int64_t rank = 0; rank < topk; rank++)
        if (head->own_keys[i * topk + rank] == l)
            return true;
    return false;
}

/* The centroid's score of key l, for query i. */
static double shared_score(const exact_head *head, int64_t i, int64_t l) {
    return exact_score(head, head->centroid, l) + exact_bias(head, i, l);
}

/* Means of z per cluster; the margin includes the distance to the switch between
   weighted and unweighted mean. */
static void find_means(exact_head *head, int64_t i) {
    struct exact_tilt *t = head->tilt;
    double largest = -INFINITY;
    double *whole = t->dtilts;
    memset(t->sums, 0, (size_t)t->clusters * sizeof(double));
    memset(whole, 0, (size_t)t->clusters * sizeof(double));
    memset(t->sizes, 0, (size_t)t->clusters * sizeof *t->sizes);
    memset(t->means, 0, (size_t)(t->clusters * t->rank) * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++)
        largest = fmax(largest, shared_score(head, i, l));
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        if (m < 0)
            continue;
        const double weight = exp(shared_score(head, i, l) - largest);
        t->weights[l] = is_own(head, i, l) ? 0 : weight;
        t->sums[m] += t->weights[l];
        whole[m] += weight;
        t->sizes[m]++;
    }
    for (int64_t m = 0; m < t->clusters; m++) {
        t->weighted[m] = t->sums[m] > LEAST * whole[m];
        if (t->sums[m] > 0)
            head->margin =
                fmin(head->margin, 0.1 * fabs(log(t->sums[m] / whole[m] / LEAST)));
    }
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        if (m < 0)
            continue;
        const double share = t->weighted[m] ? t->weights[l] / t->sums[m]
                                            : 1 / (double)t->sizes[m];
        for (int64_t r = 0; r < t->rank; r++)
            t->means[m * t->rank + r] += share * t->coordinates[l * t->rank + r];
    }
}

void exact_find_tilts(exact_head *head, int64_t i) {
    struct exact_tilt *t = head->tilt;
    for (int64_t l = 0; l < head->keys; l++)
        for (int64_t r = 0; r < t->rank; r++) {
            double sum = 0;
            for (int64_t d = 0; d < head->dim; d++)
                sum += (double)head->dual[r * head->dim + d] *
                       (head->k[l * head->dim + d] - (double)centre_of(head)[d]);
            t->coordinates[l * t->rank + r] = sum;
        }
    find_means(head, i);
    for (int64_t r = 0; r <= t->rank; r++) {
        const float *row = head->projection + r * head->dim;
        const double along = head->scale *
                             (dot_float(head->q + i * head->dim, row, head->dim) -
                              dot_float(head->centroid, row, head->dim));
        if (r < t->rank)
            t->d[r] = along;
        else
            t->b = along;
    }
    for (int64_t m = 0; m < t->clusters; m++) {
        t->tilts[m] = t->b;
        for (int64_t r = 0; r < t->rank; r++)
            t->tilts[m] += t->d[r] * t->means[m * t->rank + r];
    }
}

double exact_tilt_of(const exact_head *head, int64_t l) {
    return head->key_clusters[l] < 0 ? 0 : head->tilt->tilts[head->key_clusters[l]];
}

void exact_tilt_gradient(exact_head *head, const double *dscores, double *dq,
                         double *dcentroid, double *dk, double *dshared) {
    struct exact_tilt *t = head->tilt;
    memset(t->dtilts, 0, (size_t)t->clusters * sizeof(double));
    memset(t->dd, 0, (size_t)t->rank * sizeof(double));
    double db = 0;
    for (int64_t l = 0; l < head->keys; l++)
        if (head->counts[l] == 0 && head->key_clusters[l] >= 0)
            t->dtilts[head->key_clusters[l]] += dscores[l];
    for (int64_t m = 0; m < t->clusters; m++) {
        db += t->dtilts[m];
        for (int64_t r = 0; r < t->rank; r++)
            t->dd[r] += t->dtilts[m] * t->means[m * t->rank + r];
    }
    for (int64_t d = 0; d < head->dim; d++) {
        double dx = db * (double)centre_of(head)[d];
        for (int64_t r = 0; r < t->rank; r++)
            dx += t->dd[r] * (double)head->projection[r * head->dim + d];
        dq[d] += head->scale * dx;
        dcentroid[d] -= head->scale * dx;
    }
    /* From the gradient of z_m to those of the z_l that it is the mean of, and of their
       weights. */
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        dshared[l] = 0;
        if (m < 0)
            continue;
        const double *z = t->coordinates + l * t->rank, *mean = t->means + m * t->rank;
        const double share = t->weighted[m] ? t->weights[l] / t->sums[m]
                                            : 1 / (double)t->sizes[m];
        for (int64_t r = 0; r < t->rank; r++) {
            const double dmean = t->dtilts[m] * t->d[r];
            if (t->weighted[m])
                dshared[l] += share * dmean * (z[r] - mean[r]);
            for (int64_t d = 0; d < head->dim; d++)
                dk[l * head->dim + d] += share * dmean *
                                         (double)head->dual[r * head->dim + d];
        }
    }
}
