#include "attention/masks.h"

#include <math.h>
#include <string.h>

#include "base/random.h"

/* ---- The masks of a head ---------------------------------------------------------- */

static shoal_pair_strides strides_of(const shoal_problem *problem,
                                     const shoal_pair_strides *given) {
    const int64_t row = problem->keys, head = problem->queries * row;
    const shoal_pair_strides contiguous = {problem->heads * head, head, row, 1};
    return given ? *given : contiguous;
}

static int64_t start_of(const shoal_pair_strides *s, int64_t b, int64_t h) {
    return b * s->batch + h * s->head;
}

static uint64_t head_seed(uint64_t seed, int64_t head) {
    return random_bits(seed, STREAM_DROPOUT, (uint64_t)head);
}

static uint32_t dropped_of(float dropout) {
    return (uint32_t)(dropout * 65536.0f + 0.5f);
}

score_masks sh_masks_of(const attention_call *call, const head_view *view) {
    const shoal_problem *problem = &call->plan->problem;
    const shoal_inputs *inputs = call->inputs;
    const int64_t b = view->head / problem->heads, h = view->head % problem->heads;
    const shoal_pair_strides bias = strides_of(problem, inputs->bias_strides);
    const shoal_pair_strides mask = strides_of(problem, inputs->mask_strides);
    const shoal_pair_strides slopes = strides_of(problem, NULL);
    score_masks masks = {.causal = problem->causal,
                         .ahead = problem->causal ? max(0, view->keys - view->queries)
                                                  : 0,
                         .bias_steps = {bias.query, bias.key},
                         .mask_steps = {mask.query, mask.key},
                         .dbias_steps = {slopes.query, slopes.key},
                         .dropped = dropped_of(problem->dropout),
                         .seed = head_seed(inputs->dropout_seed, view->head),
                         .step = 1};
    if (inputs->bias)
        masks.bias = inputs->bias + start_of(&bias, b, h);
    if (inputs->mask)
        masks.mask = inputs->mask + start_of(&mask, b, h);
    if (call->gradients && call->gradients->dbias)
        masks.dbias = call->gradients->dbias + start_of(&slopes, b, h);
    const shoal_strides contiguous = {problem->heads * problem->keys, problem->keys, 1};
    const shoal_strides strides = inputs->key_bias_strides ? *inputs->key_bias_strides
                                                           : contiguous;
    masks.key_bias_step = strides.position;
    masks.dkey_bias_step = 1;
    if (call->inputs->key_bias)
        masks.key_bias = call->inputs->key_bias + b * strides.batch + h * strides.head;
    if (call->gradients && call->gradients->dkey_bias)
        masks.dkey_bias = call->gradients->dkey_bias +
                          (b * problem->heads + h) * problem->keys;
    return masks;
}

static int64_t at(pair_steps steps, int64_t query, int64_t key) {
    return query * steps.query + key * steps.key;
}

static pair_steps times(pair_steps steps, int64_t step) {
    return (pair_steps){steps.query * step, steps.key * step};
}

score_masks sh_masks_every(const score_masks *masks, int64_t first_query,
                           int64_t first_key, int64_t step) {
    score_masks some = *masks;
    some.ahead = (first_query + masks->ahead - first_key) / step;
    some.bias_steps = times(masks->bias_steps, step);
    some.mask_steps = times(masks->mask_steps, step);
    some.dbias_steps = times(masks->dbias_steps, step);
    if (masks->bias)
        some.bias = masks->bias + at(masks->bias_steps, first_query, first_key);
    if (masks->mask)
        some.mask = masks->mask + at(masks->mask_steps, first_query, first_key);
    if (masks->dbias)
        some.dbias = masks->dbias + at(masks->dbias_steps, first_query, first_key);
    if (masks->key_bias)
        some.key_bias = masks->key_bias + first_key * masks->key_bias_step;
    if (masks->dkey_bias)
        some.dkey_bias = masks->dkey_bias + first_key * masks->dkey_bias_step;
    some.key_bias_step = masks->key_bias_step * step;
    some.dkey_bias_step = masks->dkey_bias_step * step;
    some.first_query = first_query;
    some.first_key = first_key;
    some.step = step;
    return some;
}

int64_t sh_masks_end(const score_masks *masks, int64_t last, int64_t keys) {
    return masks->causal ? min(keys, last + masks->ahead + 1) : keys;
}

int64_t sh_masks_begin(const score_masks *masks, int64_t key) {
    return masks->causal ? max(0, key - masks->ahead) : 0;
}

/* ---- One score -------------------------------------------------------------------- */

double sh_masks_score(const score_masks *masks, int64_t query, int64_t key,
                      double score) {
    if (masks->causal && key > query + masks->ahead)
        return -INFINITY;
    if (masks->mask && !masks->mask[at(masks->mask_steps, query, key)])
        return -INFINITY;
    score += (double)sh_masks_key_bias(masks, key);
    return masks->bias ? score + (double)masks->bias[at(masks->bias_steps, query, key)]
                       : score;
}

float sh_masks_key_bias(const score_masks *masks, int64_t key) {
    return masks->key_bias ? masks->key_bias[key * masks->key_bias_step] : 0;
}

int64_t sh_masks_seen(const score_masks *masks, int64_t keys) {
    int64_t seen = keys;
    for (int64_t l = 0; l < keys && masks->key_bias; l++)
        seen -= hides_key(sh_masks_key_bias(masks, l));
    return seen;
}

float *sh_masks_key_slope(const score_masks *masks, int64_t key) {
    return masks->dkey_bias ? masks->dkey_bias + key * masks->dkey_bias_step : NULL;
}

/* Four keys share the bits of one random number, sixteen each. */
static uint64_t random_word(uint64_t seed, int64_t query, int64_t key) {
    return random_bits(seed, STREAM_DROPOUT, ((uint64_t)query << 32) + (uint64_t)key / 4);
}

static float factor_of(uint32_t dropped, uint64_t word, int64_t key) {
    const uint32_t number = (uint32_t)(word >> (16 * (key % 4))) & 0xffffu;
    return number < dropped ? 0 : 65536.0f / (65536.0f - (float)dropped);
}

float shoal_dropout_factor(float dropout, uint64_t seed, int64_t head, int64_t query,
                           int64_t key) {
    return factor_of(dropped_of(dropout), random_word(head_seed(seed, head), query, key),
                     key);
}

float sh_masks_factor(const score_masks *masks, int64_t query, int64_t key) {
    const int64_t i = masks->first_query + query * masks->step;
    const int64_t l = masks->first_key + key * masks->step;
    return factor_of(masks->dropped, random_word(masks->seed, i, l), l);
}

float *sh_masks_slope(const score_masks *masks, int64_t query, int64_t key) {
    return masks->dbias ? masks->dbias + at(masks->dbias_steps, query, key) : NULL;
}

/* ---- A block of them -------------------------------------------------------------- */

/* [MAX_PANEL][KEY_BLOCK] of one thread's, a row for each query. */
typedef struct {
    _Alignas(CACHE_LINE) float of[MAX_PANEL * KEY_BLOCK];
} block_rows;

/* Each query has a row of its own. */
static int has_rows(pair_steps steps) {
    return steps.key == 1 && steps.query != 0;
}

static void add_bias(const score_masks *masks, const score_block *block, float *scores) {
    const pair_steps steps = masks->bias_steps;
    const float *bias = masks->bias + at(steps, block->query, block->key);
    if (has_rows(steps)) {
        block->kernels->add_across(bias, steps.query, block->lanes, block->width,
                                   block->count, scores);
        return;
    }
    if (steps.query == 0) {
        block->kernels->add_to_rows(bias, steps.key, block->width, block->count, scores);
        return;
    }
    for (int r = 0; r < block->count; r++)
        for (int i = 0; i < block->lanes; i++)
            scores[r * block->width + i] += bias[at(steps, i, r)];
}

int sh_masks_have_rows(const score_masks *masks) {
    return (masks->bias && has_rows(masks->bias_steps)) ||
           (masks->mask && has_rows(masks->mask_steps));
}

/* Into the second cache: in the first, rows that are a power of 2 apart drive each other
   out. */
void sh_masks_prefetch(const score_masks *masks, const score_block *block, int part,
                       int parts) {
    const pair_steps bias = masks->bias_steps, mask = masks->mask_steps;
    const int first = block->lanes * part / parts,
              last = block->lanes * (part + 1) / parts;
    for (int i = first; i < last; i++) {
        const int64_t query = block->query + i;
        for (int r = 0; masks->bias && has_rows(bias) && r < block->count; r += 16)
            __builtin_prefetch(masks->bias + at(bias, query, block->key + r), 0, 2);
        if (masks->mask && has_rows(mask))
            __builtin_prefetch(masks->mask + at(mask, query, block->key), 0, 2);
    }
}

void sh_masks_apply(const score_masks *masks, const score_block *block, float *scores) {
    if (masks->key_bias)
        block->kernels->add_to_rows(masks->key_bias + block->key * masks->key_bias_step,
                                    masks->key_bias_step, block->width, block->count,
                                    scores);
    if (masks->bias)
        add_bias(masks, block, scores);
    if (masks->mask) {
        /* The mask as a bias of 0 and -inf. */
        const pair_steps steps = masks->mask_steps;
        const uint8_t *mask = masks->mask + at(steps, block->query, block->key);
        const int lanes = steps.query ? block->lanes : 1;
        block_rows rows;
        for (int i = 0; i < lanes; i++)
            for (int r = 0; r < block->count; r++)
                rows.of[i * KEY_BLOCK + r] = mask[at(steps, i, r)] ? 0 : -INFINITY;
        if (steps.query)
            block->kernels->add_across(rows.of, KEY_BLOCK, lanes, block->width,
                                       block->count, scores);
        else
            block->kernels->add_to_rows(rows.of, 1, block->width, block->count, scores);
    }
    if (masks->causal) {
        /* Only a block that the diagonal crosses has something to hide. */
        const int64_t self = block->key - block->query - masks->ahead;
        for (int64_t r = max(0, 1 - self); r < block->count; r++)
            for (int64_t i = 0; i < min(self + r, block->lanes); i++)
                scores[r * block->width + i] = -INFINITY;
    }
}

void sh_masks_drop(const score_masks *masks, const score_block *block, float *weights) {
    if (!masks->dropped)
        return;
    block_rows rows, factors;
    for (int i = 0; i < block->lanes; i++) {
        uint64_t word = 0;
        for (int r = 0; r < block->count; r++) {
            const int64_t l = masks->first_key + (block->key + r) * masks->step;
            if (r == 0 || masks->step > 1 || l % 4 == 0)
                word = random_word(masks->seed,
                                   masks->first_query + (block->query + i) * masks->step,
                                   l);
            rows.of[i * KEY_BLOCK + r] = factor_of(masks->dropped, word, l);
        }
    }
    block->kernels->pack(rows.of, KEY_BLOCK, NULL, block->lanes, block->width,
                         block->count, 1, factors.of);
    block->kernels->multiply((int64_t)block->count * block->width, factors.of, weights);
}

void sh_masks_keep_slopes(const score_masks *masks, const score_block *block, float scale,
                          const float *slopes) {
    const float by = 1 / scale;
    if (masks->dkey_bias)
        block->kernels->spread(slopes, block->width, block->lanes, &by, 0, 1,
                               block->count,
                               masks->dkey_bias + block->key * masks->dkey_bias_step,
                               masks->dkey_bias_step);
    if (!masks->dbias)
        return;
    const pair_steps steps = masks->dbias_steps;
    float *dbias = masks->dbias + at(steps, block->query, block->key);
    float factors[MAX_PANEL];
    for (int i = 0; i < block->lanes; i++)
        factors[i] = by;
    if (steps.key == 1) {
        block->kernels->unpack(slopes, block->lanes, block->width, block->count, factors,
                               NULL, 1, dbias, steps.query, NULL);
        return;
    }
    for (int r = 0; r < block->count; r++)
        for (int i = 0; i < block->lanes; i++)
            dbias[at(steps, i, r)] += factors[i] * slopes[r * block->width + i];
}
