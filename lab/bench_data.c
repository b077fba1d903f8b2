/* Arrays as an ordinary program has them: page-aligned, no huge pages asked for. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { PAGE = 4096 };

uint64_t bench_random(uint64_t seed, uint64_t counter) {
    uint64_t x = counter + seed * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Four uniform numbers make one that is normal enough. */
float bench_noise(uint64_t seed, uint64_t stream, int64_t at) {
    const uint64_t bits = bench_random(seed, stream << 56 | (uint64_t)at);
    const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                         (bits >> 48);
    return ((float)sum / 65536 - 2) * 1.7320508f;
}

static void fill_noise(float *array, int64_t count, uint64_t seed, uint64_t stream) {
    for (int64_t i = 0; i < count; i++)
        array[i] = bench_noise(seed, stream, i);
}

/* Written to once, so that no timed call is the first to touch a page. */
static void *touched(int64_t count, size_t size, bool *fine) {
    const size_t bytes = ((size_t)count * size + PAGE - 1) / PAGE * PAGE;
    void *block = NULL;
    if (posix_memalign(&block, PAGE, bytes ? bytes : PAGE) != 0) {
        *fine = false;
        return NULL;
    }
    memset(block, 0, bytes);
    return block;
}

/* ---- What the layer is given ------------------------------------------------------- */

static int64_t model_size(const bench_data *data) {
    return data->heads * data->dim;
}

/* Every projection has an order of its own, and its own half of the signs turned. */
static void shuffle_features(bench_data *data, uint64_t seed) {
    const int64_t model = model_size(data);
    for (int p = 0; p < BENCH_PROJECTIONS; p++) {
        int32_t *sources = data->sources + p * model;
        for (int64_t a = 0; a < model; a++) {
            const uint64_t draw =
                bench_random(seed, (uint64_t)(16 + p) << 56 | (uint64_t)a);
            const int64_t other = (int64_t)(draw % (uint64_t)(a + 1));
            sources[a] = sources[other];
            sources[other] = (int32_t)(draw >> 63 ? ~a : a);
        }
    }
}

/* array [B][H][N][D] = projection p of the features. */
static void project(const bench_data *data, int p, float *array) {
    const int64_t model = model_size(data), rows = data->batch * data->length;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t b = row / data->length, n = row % data->length;
        for (int64_t a = 0; a < model; a++) {
            const int64_t head = b * data->heads + a / data->dim;
            const int32_t source = data->sources[p * model + a];
            array[(head * data->length + n) * data->dim + a % data->dim] =
                source >= 0 ? data->features[row * model + source]
                            : -data->features[row * model + ~source];
        }
    }
}

static bool create_features(bench_data *data, const bench_job *job) {
    bool fine = true;
    const int64_t count = data->query_count, model = model_size(data);
    data->offsets = touched(data->batch + 1, sizeof(int64_t), &fine);
    data->sources = touched(BENCH_PROJECTIONS * model, sizeof(int32_t), &fine);
    data->features = touched(count, sizeof(float), &fine);
    float **const for_training[] = {&data->noise, &data->slope, &data->dfeatures};
    for (int i = 0; i < (job->train ? 3 : 0); i++)
        *for_training[i] = touched(count, sizeof(float), &fine);
    if (!fine)
        return false;
    for (int64_t b = 0; b <= data->batch; b++)
        data->offsets[b] = b * data->length;
    fill_noise(data->features, count, job->seed, 1);
    if (job->train)
        fill_noise(data->noise, count, job->seed, 4);
    shuffle_features(data, job->seed);
    return true;
}

/* ---- All of it --------------------------------------------------------------------- */

bool bench_data_create(bench_data *data, const bench_job *job, int64_t length) {
    bool fine = true;
    *data =
        (bench_data){.batch = job->batch,
                     .heads = job->heads,
                     .length = length,
                     .dim = job->dim,
                     .value_dim = job->value_dim,
                     .train = job->train,
                     .query_count = job->batch * job->heads * length * job->dim,
                     .value_count = job->batch * job->heads * length * job->value_dim};
    float **const as_query[] = {&data->q,       &data->k,      &data->dq,
                                &data->dk,      &data->line_q, &data->line_k,
                                &data->moved_q, &data->moved_k};
    float **const as_value[] = {&data->v, &data->out, &data->spare, &data->dout,
                                &data->dv};
    for (int i = 0; i < (job->train ? 8 : 2); i++)
        *as_query[i] = touched(data->query_count, sizeof(float), &fine);
    for (int i = 0; i < (job->train ? 5 : 3); i++)
        *as_value[i] = touched(data->value_count, sizeof(float), &fine);
    data->groups = touched(job->batch * job->heads * length, sizeof(int32_t), &fine);
    if (!fine || (job->layer && !create_features(data, job))) {
        bench_data_destroy(data);
        return false;
    }
    if (job->layer) {
        project(data, 0, data->q);
        project(data, 1, data->k);
        project(data, 2, data->v);
        return true;
    }
    fill_noise(data->q, data->query_count, job->seed, 1);
    fill_noise(data->k, data->query_count, job->seed, 2);
    fill_noise(data->v, data->value_count, job->seed, 3);
    return true;
}

void bench_data_destroy(bench_data *data) {
    float *const arrays[] = {data->q,        data->k,        data->v,      data->out,
                             data->spare,    data->dout,     data->dv,     data->dq,
                             data->dk,       data->line_q,   data->line_k, data->moved_q,
                             data->moved_k,  data->features, data->noise,  data->slope,
                             data->dfeatures};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    free(data->groups);
    free(data->offsets);
    free(data->sources);
    *data = (bench_data){0};
}

shoal_problem bench_problem(const bench_data *data) {
    return (shoal_problem){.batch = data->batch,
                           .heads = data->heads,
                           .queries = data->length,
                           .keys = data->length,
                           .dim = data->dim,
                           .value_dim = data->value_dim};
}

bool bench_keys_are_queries(const shoal_attention *attention) {
    return attention->kind == SHOAL_SHARED_FULL || attention->kind == SHOAL_LSH;
}

shoal_inputs bench_inputs(const bench_data *data, const shoal_attention *attention) {
    return (shoal_inputs){.q = data->q,
                          .k = bench_keys_are_queries(attention) ? NULL : data->k,
                          .v = data->v};
}
