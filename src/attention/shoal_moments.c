/* Moments of the key clusters of shoal-C: variances of the keys' coordinates z,
   covariances of z with the values, and the dipoles J that mix these for a cluster of
   queries; and their gradients. With q the mean query,
 *
 *     omega_l = softmax over the keys of m of (scale q . k_l / 2 + bias_l)
 *     var_m = sum of omega_l (z_l - z_m)^2      z_m, v_m: means weighted by omega
 *     Cov_m = sum of omega_l (z_l - z_m)(v_l - v_m)'
 *     J_j = sum over m of sigma_jm Cov_m
 *
 * sigma is a constant in the backward pass; the rest is differentiated. */
#include <math.h>
#include <string.h>

#include "attention/shoal_kind.h"

/* What the mean query's scores are multiplied by: halfway between keys that all count
   the same and keys that count by their weight. */
static const float flatness = 0.5f;

struct moment_thread {
    _Alignas(CACHE_LINE) float *weights; /* [KEY_BLOCK]: omega */
    float *panel;                        /* [r][KEY_BLOCK]: omega (z - mean) */
    float *row;                          /* [max(D, Dv + r)] */
    /* Backward: */
    float *cov;    /* [r][Dv]: gradient of Cov */
    float *column; /* [C]: shares of one key cluster */
    float *along;  /* [r]: that gradient times the mean value */
    float *slopes; /* [KEY_BLOCK]: of log omega */
    float *apart;  /* [KEY_BLOCK][r]: omega (z - mean) */
    float *z;      /* [KEY_BLOCK][r]: gradient of z */
    float *values; /* [KEY_BLOCK][Dv] */
    float *keys;   /* [KEY_BLOCK][D] */
};

void sh_shoal_place_moments(shoal_moments *moments, const shoal_sizes *size,
                            block_layout *work) {
    const int64_t dipole = (int64_t)size->dims * size->value_dim;
    moments->query = reserve_floats(work, size->dim, 1);
    moments->top = reserve_floats(work, size->M, 1);
    moments->mass = reserve_floats(work, size->M, 1);
    moments->means = reserve_floats(work, size->M, size->wide);
    moments->variances = reserve_floats(work, size->M, size->dims);
    moments->cov = reserve_floats(work, size->M, dipole);
    moments->dipoles = reserve_floats(work, size->C, dipole);
}

void sh_shoal_place_moment_threads(shoal_work *own, const shoal_plan *plan,
                                   block_layout *work) {
    const shoal_sizes *size = &own->size;
    const int64_t r = size->dims;
    moment_thread measured;
    own->moments = sh_reserve(work, plan->threads, sizeof *own->moments);
    for (int t = 0; t < plan->threads; t++) {
        moment_thread *thread = own->moments ? &own->moments[t] : &measured;
        *thread = (moment_thread){0};
        thread->weights = reserve_floats(work, KEY_BLOCK, 1);
        thread->panel = reserve_floats(work, r, KEY_BLOCK);
        thread->row = reserve_floats(work, max(size->dim, size->wide), 1);
        if (!plan->with_backward)
            continue;
        thread->cov = reserve_floats(work, r, size->value_dim);
        thread->column = reserve_floats(work, size->C, 1);
        thread->along = reserve_floats(work, r, 1);
        thread->slopes = reserve_floats(work, KEY_BLOCK, 1);
        thread->apart = reserve_floats(work, KEY_BLOCK, r);
        thread->z = reserve_floats(work, KEY_BLOCK, r);
        thread->values = reserve_floats(work, KEY_BLOCK, size->value_dim);
        thread->keys = reserve_floats(work, KEY_BLOCK, size->dim);
    }
}

/* ---- Forward ----------------------------------------------------------------------- */

typedef struct {
    const shoal_head *head;
    const shoal_clusters *clusters;
    const shoal_sums *sums;
    const shoal_moments *moments;
    const head_gradients *gradients;
    row_view dk, dv;
} moment_job;

/* Gathers keys of the order; the weights become logs of omega. */
static const key_block *load_keys(const moment_job *job, int64_t first, int count,
                                  int thread) {
    const shoal_head *head = job->head;
    float *weights = head->work->moments[thread].weights;
    const key_block *keys =
        sh_shoal_gather_keys(head, job->clusters, first, count, thread);
    head->kernels->dots(head->size.dim, count, keys->rows, head->size.dim,
                        job->moments->query, false, weights);
    for (int i = 0; i < count; i++)
        weights[i] = flatness * head->scale * weights[i] +
                     (head->masks.key_bias ? keys->bias[i] : 0);
    return keys;
}

/* The same, with omega itself. */
static const key_block *load_weights(const moment_job *job, int64_t m, int64_t first,
                                     int count, int thread) {
    float *weights = job->head->work->moments[thread].weights;
    const key_block *keys = load_keys(job, first, count, thread);
    const float mass = job->moments->mass[m], inverse = mass > 0 ? 1 / mass : 0;
    for (int i = 0; i < count; i++)
        weights[i] = mass > 0 ? expf(weights[i] - job->moments->top[m]) * inverse : 0;
    return keys;
}

/* Means of cluster m, and the norm of its omega. Scores that are too large for omega
   leave the cluster without moments. */
static void find_means(const moment_job *job, int64_t m, int thread) {
    const shoal_head *head = job->head;
    const shoal_moments *to = job->moments;
    const moment_thread *own = &head->work->moments[thread];
    const int64_t last = job->clusters->keys.offsets[m + 1];
    const int wide = head->size.wide;
    float *mean = to->means + m * wide, top = LOWEST_SCORE, mass = 0;
    memset(mean, 0, sizeof(float) * (size_t)wide);
    for (int64_t at = job->clusters->keys.offsets[m]; at < last; at += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, last - at);
        const key_block *keys = load_keys(job, at, count, thread);
        const float before = top;
        for (int i = 0; i < count; i++)
            top = own->weights[i] > top ? own->weights[i] : top;
        const float keep = expf(before - top);
        mass *= keep;
        for (int i = 0; i < count; i++)
            mass += own->weights[i] = expf(own->weights[i] - top);
        head->kernels->sum_rows(keys->wide, wide, NULL, own->weights, count, wide,
                                own->row);
        for (int d = 0; d < wide; d++)
            mean[d] = mean[d] * keep + own->row[d];
    }
    to->top[m] = top;
    to->mass[m] = isfinite(mass) && isfinite(top) ? mass : 0;
    for (int d = 0; d < wide; d++)
        mean[d] = to->mass[m] > 0 ? mean[d] / mass : 0;
}

static void moment_task(void *shared, int64_t m, int thread) {
    const moment_job *job = shared;
    const shoal_head *head = job->head;
    const moment_thread *own = &head->work->moments[thread];
    const int r = head->size.dims, Dv = head->size.value_dim, wide = head->size.wide;
    const int64_t last = job->clusters->keys.offsets[m + 1];
    float *variances = job->moments->variances + m * r;
    float *cov = job->moments->cov + m * r * Dv;
    const float *mean = job->moments->means + m * wide + Dv;
    find_means(job, m, thread);
    memset(variances, 0, sizeof(float) * (size_t)r);
    memset(cov, 0, sizeof(float) * (size_t)(r * Dv));
    for (int64_t at = job->clusters->keys.offsets[m];
         at < last && job->moments->mass[m] > 0; at += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, last - at);
        const key_block *keys = load_weights(job, m, at, count, thread);
        for (int i = 0; i < count; i++)
            for (int d = 0; d < r; d++) {
                const float apart = keys->wide[i * wide + Dv + d] - mean[d];
                own->panel[d * KEY_BLOCK + i] = own->weights[i] * apart;
                variances[d] += own->weights[i] * apart * apart;
            }
        /* The sum of panel rows is 0, so values need not be centred. */
        head->kernels->spread(own->panel, KEY_BLOCK, count, keys->wide, wide, Dv, r, cov,
                              Dv);
    }
}

void sh_shoal_find_moments(const shoal_head *head, const shoal_clusters *clusters,
                           const shoal_moments *moments, team workers) {
    const grouping *queries = &clusters->queries;
    const int dim = head->size.dim;
    moment_job job = {.head = head, .clusters = clusters, .moments = moments};
    memset(moments->query, 0, sizeof(float) * (size_t)dim);
    for (int64_t j = 0; j < queries->used; j++)
        add_scaled(moments->query,
                   (float)(queries->offsets[j + 1] - queries->offsets[j]) /
                       (float)head->view.queries,
                   clusters->centroids + j * dim, dim);
    sh_team_run(workers, head->size.M, moment_task, &job);
}

void sh_shoal_find_dipole(const shoal_head *head, const shoal_moments *moments,
                          const float *shares, int64_t j) {
    const int size = head->size.dims * head->size.value_dim;
    head->kernels->sum_rows(moments->cov, size, NULL, shares, head->size.M, size,
                            moments->dipoles + j * size);
}

/* ---- Backward ---------------------------------------------------------------------- */

/* Some keys of cluster m: gradients of log omega, z and v. `mean` is what the slopes of
   omega come to on average. */
static void slope_keys(const moment_job *job, int64_t m, const key_block *keys, int count,
                       float mean, moment_thread *own) {
    const shoal_head *head = job->head;
    const int r = head->size.dims, Dv = head->size.value_dim, wide = head->size.wide;
    const float *centre = job->moments->means + m * wide + Dv;
    const float *variances = job->gradients->variances + m * r;
    for (int i = 0; i < count; i++) {
        float *dz = own->z + (int64_t)i * r, slope = 0;
        head->kernels->dots(Dv, r, own->cov, Dv, keys->wide + (int64_t)i * wide, false,
                            dz);
        for (int d = 0; d < r; d++) {
            const float apart = keys->wide[i * wide + Dv + d] - centre[d];
            const float with_value = dz[d] - own->along[d];
            slope += apart * (with_value + variances[d] * apart);
            dz[d] = own->weights[i] * (with_value + 2 * variances[d] * apart);
            own->apart[i * r + d] = own->weights[i] * apart;
        }
        own->slopes[i] = own->weights[i] * (slope - mean);
    }
}

static void moment_backward_task(void *shared, int64_t m, int thread) {
    const moment_job *job = shared;
    const shoal_head *head = job->head;
    const shoal_clusters *clusters = job->clusters;
    const shoal_moments *moments = job->moments;
    moment_thread *own = &head->work->moments[thread];
    const int r = head->size.dims, Dv = head->size.value_dim, wide = head->size.wide;
    const int dim = head->size.dim, size = r * Dv;
    const int64_t used = clusters->queries.used, last = clusters->keys.offsets[m + 1];
    float *dquery = job->gradients->query + m * dim;
    memset(dquery, 0, sizeof(float) * (size_t)dim);
    if (!(moments->mass[m] > 0))
        return;
    for (int64_t j = 0; j < used; j++)
        own->column[j] = job->sums->shares[j * head->size.M + m];
    head->kernels->sum_rows(job->gradients->dipoles, size, NULL, own->column, used, size,
                            own->cov);
    head->kernels->dots(Dv, r, own->cov, Dv, moments->means + m * wide, false,
                        own->along);
    const float mean =
        ordered_dot(own->cov, moments->cov + m * size, size) +
        ordered_dot(job->gradients->variances + m * r, moments->variances + m * r, r);
    for (int64_t at = clusters->keys.offsets[m]; at < last; at += KEY_BLOCK) {
        const int count = (int)min(KEY_BLOCK, last - at);
        const key_block *keys = load_weights(job, m, at, count, thread);
        slope_keys(job, m, keys, count, mean, own);
        memset(own->values, 0, sizeof(float) * (size_t)(count * Dv));
        memset(own->keys, 0, sizeof(float) * (size_t)(count * dim));
        head->kernels->spread(own->apart, r, r, own->cov, Dv, Dv, count, own->values, Dv);
        head->kernels->spread(own->z, r, r, clusters->dual, dim, dim, count, own->keys,
                              dim);
        for (int i = 0; i < count; i++) {
            const int64_t l = clusters->keys.order[at + i];
            const float slope = flatness * head->scale * own->slopes[i];
            add_scaled(own->keys + (int64_t)i * dim, slope, moments->query, dim);
            add_scaled(dquery, slope, keys->rows + (int64_t)i * dim, dim);
            if (job->dk.data)
                add_scaled(job->dk.data + l * job->dk.stride, 1,
                           own->keys + (int64_t)i * dim, dim);
            if (job->dv.data)
                add_scaled(job->dv.data + l * job->dv.stride, 1,
                           own->values + (int64_t)i * Dv, Dv);
            if (head->masks.dkey_bias)
                head->masks.dkey_bias[l * head->masks.dkey_bias_step] += own->slopes[i];
        }
    }
}

void sh_shoal_moments_backward(const shoal_head *head, const shoal_clusters *clusters,
                               const shoal_sums *sums, const shoal_moments *moments,
                               const head_gradients *gradients, row_view dk, row_view dv,
                               team workers) {
    const grouping *queries = &clusters->queries;
    const int dim = head->size.dim;
    moment_job job = {head, clusters, sums, moments, gradients, dk, dv};
    sh_team_run(workers, head->size.M, moment_backward_task, &job);
    /* The mean query is the mean of the centroids, weighted by their members. */
    float *total = gradients->query;
    for (int64_t m = 1; m < head->size.M; m++)
        add_scaled(total, 1, gradients->query + m * dim, dim);
    for (int64_t j = 0; j < queries->used; j++)
        add_scaled(gradients->centroids + j * dim,
                   (float)(queries->offsets[j + 1] - queries->offsets[j]) /
                       (float)head->view.queries,
                   total, dim);
}
