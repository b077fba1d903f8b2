/* shoal-C: a correction t_m per query and key cluster m, added to the centroid's scores
   of keys that are not exact for the query.

   With x = q - c, the query minus its centroid, and z_l = Z'(k_l - mean of the keys):

       d = scale P'x    b = scale x.mean    t_m = b + d.z_m

   z_m is the mean of z over the cluster's remainder, the keys that are not exact for
   the query's block, weighted by exp(s_l), where s_l is the centroid's score including
   the key's bias. If the remainder has almost none of the cluster's weight, z_m is the
   unweighted mean over the cluster. Hidden keys belong to no cluster.

   The third form has two more terms. omega_l is the softmax, over the keys of a cluster,
   of half the mean query's scores plus the bias; y_m and var_m are mean and variance of z
   in the cluster, weighted by omega:

       u_m = sum over r of d^2 var_m / 2, 0 where z_m is a plain mean
       weight of a key that is not exact: e^(s_l + t_m) (1 + u_m)
       dipole: each key has besides a sigma_m omega_l d.(z_l - y_m)

   where a is the sum of e^(s_l + t_m), without u, over the keys that are not the block's
   own and whose z_m is not a plain mean, in terms of the softmax's sum. */
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
    double *zmeans;      /* [M][rank]: z_m */
    int64_t *sizes;      /* [M]: number of keys */
    bool *weighted;      /* [M] */
    double *d, *dd;      /* [rank] */
    double b;
    double *tilts, *dtilts; /* [M] */
    double *dz;             /* [rank] */
    /* The third form: */
    double *bends, *dbends;      /* [M]: u */
    double *omega;               /* [S] */
    double *centres, *variances; /* [M][rank]: y_m, var_m */
    double *firsts;              /* [S]: e^(s_l + t_m) over the softmax's sum */
    double *base;                /* [S]: the softmax, before the dipole */
    double mass;                 /* a */
    double *query;               /* [dim]: the mean one */
    double *averages;            /* [M]: of slopes, weighted by omega */
};

struct exact_tilt *exact_tilt_create(const shoal_attention *attention, int64_t keys,
                                     int64_t dim) {
    const bool used = attention->keyclusters > 0;
    const int64_t rank = attention->rank < dim ? attention->rank : dim;
    const int64_t r = used && rank > 0 ? rank : 0;
    const int64_t M = !used                           ? 0
                      : attention->keyclusters < keys ? attention->keyclusters
                                                      : keys + 1;
    const int64_t doubles = keys * (r + 4) + M * (3 * r + 8) + 3 * r + dim;
    struct exact_tilt *tilt = calloc(1, sizeof *tilt + (size_t)doubles * sizeof(double));
    if (!tilt)
        return NULL;
    double *next = (double *)(tilt + 1);
    double **const parts[] = {&tilt->coordinates, &tilt->weights,   &tilt->sums,
                              &tilt->zmeans,      &tilt->d,         &tilt->dd,
                              &tilt->tilts,       &tilt->dtilts,    &tilt->dz,
                              &tilt->bends,       &tilt->dbends,    &tilt->omega,
                              &tilt->centres,     &tilt->variances, &tilt->firsts,
                              &tilt->base,        &tilt->query,     &tilt->averages};
    const int64_t counts[] = {keys * r, keys, M,    M * r, r,     r,    M,    M,   r,
                              M,        M,    keys, M * r, M * r, keys, keys, dim, M};
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
    memset(t->zmeans, 0, (size_t)(t->clusters * t->rank) * sizeof(double));
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
            t->zmeans[m * t->rank + r] += share * t->coordinates[l * t->rank + r];
    }
}

static bool is_third(const exact_head *head) {
    return head->attention.form != 2;
}

/* omega, and the means and variances of z that it makes. */
static void find_moments(exact_head *head, int64_t i) {
    struct exact_tilt *t = head->tilt;
    double *tops = t->dbends, *sums = t->averages;
    memset(t->query, 0, (size_t)head->dim * sizeof(double));
    for (int64_t n = 0; n < head->queries; n++)
        for (int64_t d = 0; d < head->dim; d++)
            t->query[d] += head->q[n * head->dim + d] / (double)head->queries;
    for (int64_t m = 0; m < t->clusters; m++)
        tops[m] = -INFINITY, sums[m] = 0;
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        t->omega[l] = exact_score(head, t->query, l) / 2 + exact_bias(head, i, l);
        if (m >= 0)
            tops[m] = fmax(tops[m], t->omega[l]);
    }
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        t->omega[l] = m < 0 ? 0 : exp(t->omega[l] - tops[m]);
        if (m >= 0)
            sums[m] += t->omega[l];
    }
    memset(t->centres, 0, (size_t)(t->clusters * t->rank) * sizeof(double));
    memset(t->variances, 0, (size_t)(t->clusters * t->rank) * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        t->omega[l] /= m < 0 ? 1 : sums[m];
        for (int64_t r = 0; r < t->rank && m >= 0; r++)
            t->centres[m * t->rank + r] += t->omega[l] * t->coordinates[l * t->rank + r];
    }
    for (int64_t l = 0; l < head->keys; l++)
        for (int64_t r = 0; r < t->rank && head->key_clusters[l] >= 0; r++) {
            const int64_t at = head->key_clusters[l] * t->rank + r;
            const double apart = t->coordinates[l * t->rank + r] - t->centres[at];
            t->variances[at] += t->omega[l] * apart * apart;
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
            t->tilts[m] += t->d[r] * t->zmeans[m * t->rank + r];
    }
    memset(t->bends, 0, (size_t)t->clusters * sizeof(double));
    if (!is_third(head))
        return;
    find_moments(head, i);
    for (int64_t m = 0; m < t->clusters; m++)
        for (int64_t r = 0; r < t->rank && t->weighted[m]; r++)
            t->bends[m] += t->d[r] * t->d[r] * t->variances[m * t->rank + r] / 2;
}

double exact_tilt_of(const exact_head *head, int64_t l) {
    const int32_t m = head->key_clusters[l];
    return m < 0 ? 0 : head->tilt->tilts[m] + log1p(head->tilt->bends[m]);
}

/* Whether key l has a part in the dipole's mass. */
static bool is_shared(const exact_head *head, int64_t i, int64_t l) {
    return head->key_clusters[l] >= 0 && !is_own(head, i, l) &&
           head->tilt->weighted[head->key_clusters[l]];
}

static double sigma_of(const exact_head *head, int64_t i, int32_t m) {
    return head->shares ? (double)head->shares[head->groups[i] * head->share_stride + m]
                        : 0;
}

/* d.(z_l - y_m) */
static double along(const exact_head *head, int64_t l) {
    const struct exact_tilt *t = head->tilt;
    double sum = 0;
    for (int64_t r = 0; r < t->rank; r++)
        sum += t->d[r] * (t->coordinates[l * t->rank + r] -
                          t->centres[head->key_clusters[l] * t->rank + r]);
    return sum;
}

void exact_add_dipole(exact_head *head, int64_t i) {
    struct exact_tilt *t = head->tilt;
    double norm = 0, largest = -INFINITY;
    memcpy(t->base, head->weights, (size_t)head->keys * sizeof(double));
    t->mass = 0;
    if (!is_third(head))
        return;
    /* The softmax's sum, from its largest score. */
    for (int64_t l = 0; l < head->keys; l++)
        largest = fmax(largest, head->scores[l]);
    for (int64_t l = 0; l < head->keys; l++)
        norm += exp(head->scores[l] - largest);
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        t->firsts[l] = is_shared(head, i, l)
                           ? exp(shared_score(head, i, l) + t->tilts[m] - largest) / norm
                           : 0;
        t->mass += t->firsts[l];
    }
    for (int64_t l = 0; l < head->keys; l++)
        if (head->key_clusters[l] >= 0)
            head->weights[l] += t->mass * sigma_of(head, i, head->key_clusters[l]) *
                                t->omega[l] * along(head, l);
}

/* The gradients of firsts, by h, and of d, omega and z, by the dipole and var; dweights
   [S] are the row's. */
static void dipole_gradient(exact_head *head, int64_t i, const double *dweights,
                            const double *dscores, double *dshared, double *dk,
                            double *dq) {
    struct exact_tilt *t = head->tilt;
    const int64_t R = t->rank;
    double h = 0, *average = t->averages;
    for (int64_t l = 0; l < head->keys; l++)
        if (head->key_clusters[l] >= 0)
            h += sigma_of(head, i, head->key_clusters[l]) * t->omega[l] * along(head, l) *
                 dweights[l];
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        if (m < 0)
            continue;
        dshared[l] += t->firsts[l] * h;
        t->dtilts[m] += t->firsts[l] * h;
        if (head->counts[l] == 0)
            t->dbends[m] += dscores[l] / (1 + t->bends[m]);
        for (int64_t r = 0; r < R; r++)
            t->dd[r] += t->mass * sigma_of(head, i, m) * t->omega[l] * dweights[l] *
                        (t->coordinates[l * R + r] - t->centres[m * R + r]);
    }
    for (int64_t m = 0; m < t->clusters; m++)
        for (int64_t r = 0; r < R && t->weighted[m]; r++)
            t->dd[r] += t->dbends[m] * t->d[r] * t->variances[m * R + r];
    /* Means of the row's gradients, and then of omega's. */
    memset(average, 0, (size_t)t->clusters * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++)
        if (head->key_clusters[l] >= 0)
            average[head->key_clusters[l]] += t->omega[l] * dweights[l];
    double *slopes = t->weights; /* done with */
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        if (m < 0)
            continue;
        const double with = t->mass * sigma_of(head, i, m) * (dweights[l] - average[m]);
        slopes[l] = with * along(head, l);
        for (int64_t r = 0; r < R; r++) {
            const double apart = t->coordinates[l * R + r] - t->centres[m * R + r];
            const double dvariance = t->weighted[m] ? t->dbends[m] * t->d[r] * t->d[r] / 2
                                                    : 0;
            slopes[l] += dvariance * apart * apart;
            const double dz = t->omega[l] * (with * t->d[r] + 2 * dvariance * apart);
            for (int64_t d = 0; d < head->dim; d++)
                dk[l * head->dim + d] += dz * (double)head->dual[r * head->dim + d];
        }
    }
    memset(average, 0, (size_t)t->clusters * sizeof(double));
    for (int64_t l = 0; l < head->keys; l++)
        if (head->key_clusters[l] >= 0)
            average[head->key_clusters[l]] += t->omega[l] * slopes[l];
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        slopes[l] = m < 0 ? 0 : t->omega[l] * (slopes[l] - average[m]); /* of log omega */
        if (head->dbias && m >= 0)
            head->dbias[i * head->keys + l] += slopes[l];
    }
    for (int64_t d = 0; d < head->dim; d++) {
        double dmean = 0; /* of the mean query, in which every query has an equal share */
        for (int64_t l = 0; l < head->keys; l++) {
            dk[l * head->dim + d] += head->scale * slopes[l] / 2 * t->query[d];
            dmean += head->scale * slopes[l] / 2 * head->k[l * head->dim + d];
        }
        for (int64_t n = 0; n < head->queries; n++)
            dq[n * head->dim + d] += dmean / (double)head->queries;
    }
}

double exact_base_weight(const exact_head *head, int64_t l) {
    return head->tilt->base[l];
}

void exact_tilt_gradient(exact_head *head, int64_t i, const double *dscores,
                         const double *dweights, double *dq, double *dcentroid,
                         double *dk, double *dshared) {
    struct exact_tilt *t = head->tilt;
    memset(t->dtilts, 0, (size_t)t->clusters * sizeof(double));
    memset(t->dbends, 0, (size_t)t->clusters * sizeof(double));
    memset(t->dd, 0, (size_t)t->rank * sizeof(double));
    memset(dshared, 0, (size_t)head->keys * sizeof(double));
    double db = 0;
    for (int64_t l = 0; l < head->keys; l++)
        if (head->counts[l] == 0 && head->key_clusters[l] >= 0)
            t->dtilts[head->key_clusters[l]] += dscores[l];
    /* From the gradient of z_m to those of the z_l that it is a mean of, and of their
       weights. The dipole's part of dt_m comes first. */
    double *rest = t->base; /* weights of the rest, before they are overwritten */
    memcpy(rest, t->weights, (size_t)head->keys * sizeof(double));
    if (is_third(head))
        dipole_gradient(head, i, dweights, dscores, dshared, dk, dq);
    for (int64_t m = 0; m < t->clusters; m++) {
        db += t->dtilts[m];
        for (int64_t r = 0; r < t->rank; r++)
            t->dd[r] += t->dtilts[m] * t->zmeans[m * t->rank + r];
    }
    for (int64_t d = 0; d < head->dim; d++) {
        double dx = db * (double)centre_of(head)[d];
        for (int64_t r = 0; r < t->rank; r++)
            dx += t->dd[r] * (double)head->projection[r * head->dim + d];
        dq[i * head->dim + d] += head->scale * dx;
        dcentroid[d] -= head->scale * dx;
    }
    for (int64_t l = 0; l < head->keys; l++) {
        const int32_t m = head->key_clusters[l];
        if (m < 0)
            continue;
        const double *z = t->coordinates + l * t->rank, *mean = t->zmeans + m * t->rank;
        const double share = t->weighted[m] ? rest[l] / t->sums[m]
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
