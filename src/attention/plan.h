/* What a plan holds, how a kind fits into it, and one head of one sequence as rows. */
#ifndef SHOAL_ATTENTION_PLAN_H
#define SHOAL_ATTENTION_PLAN_H

#include "attention/kinds.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "kernels/kernels.h"

/* One call: the plan, what the caller gave, and where the state lies. */
typedef struct {
    shoal_plan *plan;
    const shoal_inputs *inputs;
    float *out;                       /* forward only */
    const shoal_gradients *gradients; /* backward only */
    void *state;
} attention_call;

/* Rows of one head: element (i, d) is data[i * stride + d]. */
typedef struct {
    float *data;
    int64_t stride;
} rows;

/* One head of one sequence. Inputs are not const here only because gradients and outputs
   are found by the same arithmetic; nothing writes to them. */
typedef struct {
    int64_t queries, keys; /* live positions */
    rows q, k, v;
    int64_t head; /* batch index * heads + head: the index into the state */
} head_view;

typedef struct attention_kind {
    shoal_kind kind;
    shoal_kind_info info;
    const char *prefix;       /* of the spelling: "i-clustered-" or "full" */
    enum number number;       /* what follows the prefix */
    unsigned options;         /* bits of enum option */
    shoal_attention defaults; /* of the options */
    int keys_are_queries;
    /* Reserves the plan's work and state by the layouts; runs twice, measuring first.
       plan->work points to the kind's own structure, which lies in `work` too. */
    void (*place)(shoal_plan *plan, block_layout *work, block_layout *state);
    void (*forward)(const attention_call *call);
    void (*backward)(const attention_call *call);
    /* Where groups and top keys lie in a state, or NULL functions. */
    const int32_t *(*groups)(const shoal_plan *plan, const void *state);
    const int32_t *(*top_keys)(const shoal_plan *plan, const void *state);
    /* What the last forward into a state really was; NULL: the plan's own attention. */
    shoal_attention (*picked)(const shoal_plan *plan, const void *state);
} attention_kind;

struct shoal_plan {
    shoal_context *context;
    const kernel_table *kernels;
    shoal_problem problem; /* kv_heads, scale and strides filled in */
    shoal_attention attention;
    const attention_kind *kind;
    int with_backward, threads;
    size_t work_size, state_size;
    void *work;  /* the kind's structure */
    void *state; /* the plan's own */
    void *memory;
};

/* Rows in one array for sequence b and head h. offsets is NULL unless packed. */
rows sh_rows_of(const float *array, const shoal_strides *strides, const int64_t *offsets,
                int64_t b, int64_t h);
head_view sh_view_of(const attention_call *call, int64_t b, int64_t h);
/* Rows of the caller's arrays shaped like queries (q, out) and like keys (k, v). */
rows sh_query_rows(const attention_call *call, const float *array,
                   const shoal_strides *strides, int64_t b, int64_t h);
rows sh_key_rows(const attention_call *call, const float *array,
                 const shoal_strides *strides, int64_t b, int64_t kv_head);

/* Sets rows first .. last - 1 to 0. */
void sh_clear_rows(rows where, int64_t first, int64_t last, int64_t dim);

/* One row per kind, in the order of shoal_kind; NULL past the end. */
const attention_kind *sh_attention_kind_at(int index);

#endif
