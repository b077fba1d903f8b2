/* What a kind of attention weighs: queries, keys and values of a layer of a BERT or
   RoBERTa, and from them the weight that each query gives to each key. */
#ifndef SHOAL_LAB_ATTENTION_MAPS_H
#define SHOAL_LAB_ATTENTION_MAPS_H

#include <shoal_models.h>

/* Tokens of one sequence. */
typedef struct {
    int64_t count;
    const int32_t *ids, *types; /* [count] */
} map_tokens;

/* Queries, keys and values of layer `layer`, from 0, where the layers before it have that
   kind: projected [count][3 x heads x head_dim]. */
void map_project(shoal_context *context, shoal_model *model, const shoal_attention *kind,
                 int64_t layer, const map_tokens *tokens, float *projected);

typedef struct {
    int64_t heads, head_dim, count; /* count: positions */
    int64_t first, rows;            /* the queries that are wanted */
} map_shape;

/* weights [rows][heads][count]: what the kind's output has of each value, found by giving
   it values that are 1 at one key and 0 at all others. Nothing is known of the kind but
   its outputs, and nothing is left out. Returns the error of the sum of values with these
   weights: the largest difference from the output for the true values over the largest of
   these. projected is left as it was. Both die where they fail. */
double map_weigh(shoal_context *context, const shoal_attention *kind,
                 const map_shape *shape, float *projected, float *weights);

#endif
