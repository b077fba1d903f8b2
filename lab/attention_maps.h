/* Attention weights of any kind: queries, keys and values of a layer of a BERT or
   RoBERTa, and the weight that each query gives to each key. */
#ifndef SHOAL_LAB_ATTENTION_MAPS_H
#define SHOAL_LAB_ATTENTION_MAPS_H

#include <shoal_models.h>

/* Tokens of one sequence. */
typedef struct {
    int64_t count;
    const int32_t *ids, *types; /* [count] */
} map_tokens;

/* Queries, keys and values of layer `layer` (from 0), where the layers before it use
   that kind: projected [count][3 x heads x head_dim]. */
void map_project(shoal_context *context, shoal_model *model, const shoal_attention *kind,
                 int64_t layer, const map_tokens *tokens, float *projected);

typedef struct {
    int64_t heads, head_dim, count; /* count: positions */
    int64_t first, rows;            /* the queries of interest */
} map_shape;

/* weights [rows][heads][count]: the contribution of each value to the kind's output,
   found by passing values that are 1 at one key and 0 at all others. This uses only the
   outputs of the kind, and is complete. Returns the error of the weights applied to the
   true values: the largest difference from the output, relative to the largest output.
   projected is unchanged on return. Both functions exit on failure. */
double map_weigh(shoal_context *context, const shoal_attention *kind,
                 const map_shape *shape, float *projected, float *weights);

#endif
