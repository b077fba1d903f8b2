/* What stands between a score and its weight, where each query sees keys of its own:
   causal order, a bias, a mask, dropout. The dense part applies it to a block of scores;
   plain loops have it for one score at a time. */
#ifndef SHOAL_ATTENTION_MASKS_H
#define SHOAL_ATTENTION_MASKS_H

#include "attention/attention.h"

/* An array with an element for each query and key, from query 0 and key 0 on. */
typedef struct {
    int64_t query, key; /* strides */
} pair_steps;

/* The masks of one head, or of some of its rows: query i and key l of these rows are
   query first_query + i step and key first_key + l step of the head. */
typedef struct score_masks {
    int causal;
    int64_t ahead; /* query i is at the position of key i + ahead */
    const float *bias;
    const uint8_t *mask;
    float *dbias; /* backward only */
    pair_steps bias_steps, mask_steps, dbias_steps;
    const float *key_bias;
    float *dkey_bias; /* backward only */
    int64_t key_bias_step, dkey_bias_step;
    uint32_t dropped; /* weights of 65536 */
    uint64_t seed;    /* of this head's dropout */
    int64_t first_query, first_key, step;
} score_masks;

/* Whether the call has any. */
static inline int sh_masks_exist(const attention_call *call) {
    const shoal_problem *problem = &call->plan->problem;
    return problem->causal || problem->dropout > 0 || call->inputs->bias ||
           call->inputs->mask || call->inputs->key_bias ||
           (call->gradients && (call->gradients->dbias || call->gradients->dkey_bias));
}

score_masks sh_masks_of(const attention_call *call, const head_view *view);

/* Those of a head in *room, or NULL where the call has none. */
static inline const score_masks *sh_masks_in(const attention_call *call,
                                             const head_view *view, score_masks *room) {
    if (!sh_masks_exist(call))
        return NULL;
    *room = sh_masks_of(call, view);
    return room;
}

/* The masks of queries first_query, first_query + step ... and keys first_key, first_key
   + step ... */
score_masks sh_masks_every(const score_masks *masks, int64_t first_query,
                           int64_t first_key, int64_t step);

/* The first key that queries up to `last` do not see, at most `keys`. */
int64_t sh_masks_end(const score_masks *masks, int64_t last, int64_t keys);
/* The first query that sees the key, or one after it. */
int64_t sh_masks_begin(const score_masks *masks, int64_t key);

/* One score, one weight's factor; and where a score's gradient goes, or NULL. */
double sh_masks_score(const score_masks *masks, int64_t query, int64_t key, double score);
float sh_masks_factor(const score_masks *masks, int64_t query, int64_t key);
float *sh_masks_slope(const score_masks *masks, int64_t query, int64_t key);
/* Keys of the head that their own bias does not hide. */
int64_t sh_masks_seen(const score_masks *masks, int64_t keys);
/* A key's own bias, and where its gradient goes, or NULL. */
float sh_masks_key_bias(const score_masks *masks, int64_t key);
float *sh_masks_key_slope(const score_masks *masks, int64_t key);

/* A block of the dense part: `count` keys from `key` on for `lanes` queries from `query`
   on, [count][width]. */
typedef struct {
    const kernel_table *kernels;
    int64_t query, key;
    int lanes, width, count;
} score_block;

/* Whether bias or mask have rows of their own for each query, which lie far apart; and
   asks for those of one part of the block's queries. All at once would fill the queue of
   what memory is asked for, and wait. */
int sh_masks_have_rows(const score_masks *masks);
void sh_masks_prefetch(const score_masks *masks, const score_block *block, int part,
                       int parts);
/* Biases and hides. */
void sh_masks_apply(const score_masks *masks, const score_block *block, float *scores);
/* Multiplies by the factors of dropout. */
void sh_masks_drop(const score_masks *masks, const score_block *block, float *weights);
/* Adds the slopes, divided by `scale`, to dbias and dkey_bias. */
void sh_masks_keep_slopes(const score_masks *masks, const score_block *block, float scale,
                          const float *slopes);

#endif
