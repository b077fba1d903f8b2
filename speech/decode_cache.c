#include "speech/decode_cache.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"

static int64_t width_of(const decode_cache *cache) {
    return cache->heads * cache->dim;
}

void sh_cache_place(decode_cache *cache, block_layout *block) {
    const int64_t places = sh_mul_checked(cache->positions, cache->beams);
    const int64_t all =
        sh_mul_checked(cache->layers, sh_mul_checked(places, width_of(cache)));
    cache->keys = sh_reserve(block, all, sizeof *cache->keys);
    cache->values = sh_reserve(block, all, sizeof *cache->values);
    cache->origin = sh_reserve(block, places, sizeof *cache->origin);
    cache->next = sh_reserve(block, places, sizeof *cache->next);
    cache->weights = sh_reserve(block, sh_mul_checked(cache->threads, cache->positions),
                                sizeof *cache->weights);
}

void sh_cache_clear(decode_cache *cache) {
    memset(cache->origin, 0,
           (size_t)(cache->beams * cache->positions) * sizeof *cache->origin);
}

void sh_cache_reorder(decode_cache *cache, const int32_t *parents, int beams,
                      int length) {
    for (int beam = 0; beam < beams; beam++)
        memcpy(cache->next + beam * cache->positions,
               cache->origin + parents[beam] * cache->positions,
               (size_t)length * sizeof *cache->next);
    int32_t *before = cache->origin;
    cache->origin = cache->next;
    cache->next = before;
}

void sh_cache_own(decode_cache *cache, int beams, int position) {
    for (int beam = 0; beam < beams; beam++)
        cache->origin[beam * cache->positions + position] = beam;
}

/* Where (layer, position, beam) lies in keys and values. */
static int64_t place_of(const decode_cache *cache, int64_t layer, int64_t position,
                        int64_t beam) {
    return ((layer * cache->positions + position) * cache->beams + beam) *
           width_of(cache);
}

static void keep_rows(decode_cache *cache, int64_t layer, const cache_rows *now) {
    const int64_t width = width_of(cache);
    const size_t bytes = (size_t)width * sizeof(float);
    for (int64_t r = 0; r < now->rows; r++) {
        const int64_t place = now->step ? place_of(cache, layer, now->first, r)
                                        : place_of(cache, layer, now->first + r, 0);
        memcpy(cache->keys + place, now->in + r * 3 * width + width, bytes);
        memcpy(cache->values + place, now->in + r * 3 * width + 2 * width, bytes);
    }
}

typedef struct {
    const decode_cache *cache;
    const cache_rows *now;
    int64_t layer;
} attending;

/* exp(score - largest) in place; returns the sum. */
static float exponentiate(float *scores, int64_t count) {
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        largest = scores[i] > largest ? scores[i] : largest;
    for (int64_t i = 0; i < count; i++) {
        scores[i] = expf(scores[i] - largest);
        sum += scores[i];
    }
    return sum;
}

/* One head of one row. */
static void attend_one(void *shared, int64_t task, int thread) {
    const attending *job = shared;
    const decode_cache *cache = job->cache;
    const int64_t width = width_of(cache), dim = cache->dim;
    const int64_t row = task / cache->heads, skip = task % cache->heads * dim;
    const int64_t beam = job->now->step ? row : 0;
    const int64_t count = job->now->first + (job->now->step ? 1 : row + 1);
    const int32_t *origin = cache->origin + beam * cache->positions;
    const float *query = job->now->in + row * 3 * width + skip;
    const float scale = 1 / sqrtf((float)dim);
    float *weights = cache->weights + thread * cache->positions;
    float *out = job->now->out + row * width + skip;
    for (int64_t p = 0; p < count; p++)
        weights[p] = scale * ordered_dot(query,
                                         cache->keys + skip +
                                             place_of(cache, job->layer, p, origin[p]),
                                         (int)dim);
    const float factor = 1 / exponentiate(weights, count);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int64_t p = 0; p < count; p++) {
        const float *value = cache->values + skip +
                             place_of(cache, job->layer, p, origin[p]);
        const float weight = weights[p] * factor;
        for (int64_t d = 0; d < dim; d++)
            out[d] += weight * value[d];
    }
}

void sh_cache_attend(const crew *by, decode_cache *cache, int64_t layer,
                     const cache_rows *now) {
    attending job = {cache, now, layer};
    keep_rows(cache, layer, now);
    sh_team_run(by->workers, now->rows * cache->heads, attend_one, &job);
}
