/* The list of kinds, what a plan holds, how a kind fits into it, and one head of one
   sequence as rows. */
#ifndef SHOAL_ATTENTION_ATTENTION_H
#define SHOAL_ATTENTION_ATTENTION_H

#include "base/memory.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "kernels/kernels.h"
#include "shoal_transport.h"

/* A status of SHOAL_INVALID with a message, printf style. */
#define REFUSE(context, ...) sh_fail(context, SHOAL_INVALID, __VA_ARGS__)

/* The one list of kinds: SHOAL_KIND_FULL is described by sh_full_kind, at the end of the
   file that has the kind. */
#define SHOAL_KINDS(KIND)                                                                \
    KIND(FULL, full)                                                                     \
    KIND(SHARED_FULL, shared_full)                                                       \
    KIND(CLUSTERED, clustered)                                                           \
    KIND(I_CLUSTERED, i_clustered)                                                       \
    KIND(LSH, lsh)                                                                       \
    KIND(ORACLE_TOP, oracle_top)                                                         \
    KIND(SHOAL, shoal)                                                                   \
    KIND(AUTO, auto)                                                                     \
    KIND(LOCAL, local)                                                                   \
    KIND(STRIDED, strided)                                                               \
    KIND(Q_CLUSTERED, q_clustered)                                                       \
    /* a row per kind */

/* Options after the colon of a spelling, beside the seed and the tolerance. */
enum option {
    OPTION_TOPK = 1,
    OPTION_BITS = 2,
    OPTION_ITERATIONS = 4,
    OPTION_RANK = 8,
    OPTION_GROUPS = 16,
    OPTION_NORMALISER = 32,
    OPTION_KEYCLUSTERS = 64,
    OPTION_BLOCK = 128,
    OPTION_POOL = 256,
    OPTION_NEAR = 512,
    OPTION_FORM = 1024
};

/* One call: the plan, what the caller gave, and where the state lies. */
typedef struct {
    shoal_plan *plan;
    shoal_inputs own_inputs; /* what the caller gave, in this library's layout */
    shoal_gradients own_gradients;
    const shoal_inputs *inputs;       /* as a rule &own_inputs */
    void *out;                        /* forward only */
    const shoal_gradients *gradients; /* backward only */
    void *state;
    /* For auto, which compares outputs of shoal with exact ones on some queries: */
    float *approximated; /* [batch * heads][queries], or NULL. Forward of shoal writes
                            here which share of a query's weights it approximates, so
                            that queries can be drawn by it */
    int has_outputs;     /* out holds outputs already, and is read instead of written */
    struct error_check *check; /* what that comparison works with */
} attention_call;

/* Rows of one head: element (i, d) is data[i * stride + d]. Of a problem in half
   precision only heads.c and the dense forward see them as they are. */
typedef struct {
    float *data;
    int64_t stride;
} row_view;

/* One head of one sequence. Inputs are not const here only because gradients and outputs
   are found by the same arithmetic; nothing writes to them. */
typedef struct {
    int64_t queries, keys;        /* live positions */
    int64_t query_rows, key_rows; /* of the arrays: padding too, unless packed */
    row_view q, k, v, out;
    row_view dout, dq; /* backward */
    int64_t b, h;      /* batch index and head */
    int64_t head;      /* b * heads + h: the index into the state */
} head_view;

/* One key/value head in backward. */
typedef struct {
    int64_t b, first, last; /* query heads first .. last - 1 of sequence b share it */
    row_view dk, dv;
} kv_head_view;

/* Floating-point operations of one head's matrix products. */
typedef struct {
    double once;  /* what only forward does: hashing, finding groups */
    double dense; /* products that backward does two and a half times again */
} operation_count;

/* The time of one head of full, shoal-C or q-clustered-C, in multiplications of full
   attention: the other two are weighed so that full and shoal-C take equally long at
   N = S = crossover (auto.c). */
double sh_attention_cost(const shoal_attention *attention, const shoal_problem *problem,
                         int crossover);

/* Tests: what queries are drawn by in a plan of auto with a tolerance, [batch * heads]
   [queries]. */
float *sh_auto_approximated(const shoal_plan *plan);

/* Pairs of a query and a key that it may see: all, or those up to the diagonal. */
double sh_seen_pairs(const shoal_problem *problem);

/* One unit of a call: in forward query head `unit`, batch index * heads + head; in
   backward key/value head `unit`, batch index * kv_heads + head, with the query heads
   that share it. `slot` names the workspace of one unit (base/parallel.h). */
typedef void head_function(const attention_call *call, int64_t unit, int slot,
                           team workers);

/* Properties of a kind, and its functions. */
typedef struct attention_kind {
    shoal_kind_info info;
    unsigned options;            /* bits of enum option */
    int forwards_half_precision; /* its forward reads and writes it without help */
    /* Sets fields that are SHOAL_BY_SIZE to what the problem's sizes say; NULL: the kind
       has none. */
    void (*resolve)(const shoal_problem *problem, shoal_attention *attention);
    operation_count (*operations)(const shoal_attention *attention,
                                  const shoal_problem *problem);
    /* Reserves the plan's work and state by the layouts; runs twice, measuring first.
       plan->work points to the kind's own structure, which lies in `work` too. */
    void (*place)(shoal_plan *plan, block_layout *work, block_layout *state);
    head_function *forward_head, *backward_head;
    /* In place of them, for kinds that have a loop of their own; else NULL. */
    void (*forward)(const attention_call *call);
    void (*backward)(const attention_call *call);
    /* Of distributed plans, for kinds that know how. `status` is what this process's
       arguments are; what they return is the same on all processes, or a refusal. */
    shoal_status (*forward_over)(const attention_call *call, shoal_status status);
    shoal_status (*backward_over)(const attention_call *call, shoal_status status);
    /* Where groups and top keys lie in a state, for kinds that have them. */
    const int32_t *(*groups)(const shoal_plan *plan, const void *state);
    const int32_t *(*top_keys)(const shoal_plan *plan, const void *state);
    /* What the last forward into a state really was, for kinds that pick another. */
    shoal_attention (*picked)(const shoal_plan *plan, const void *state);
} attention_kind;

#define DECLARE_KIND(NAME, name) extern const attention_kind sh_##name##_kind;
SHOAL_KINDS(DECLARE_KIND)
#undef DECLARE_KIND

struct shoal_plan {
    shoal_context *context;
    const kernel_table *kernels;
    shoal_problem problem;     /* kv_heads, scale and strides filled in */
    shoal_strides strides[4];  /* of q, k, v, out: problem points to them */
    shoal_attention attention; /* every field as the plan's sizes have it, */
    shoal_attention asked;     /* and as it was spelled */
    const attention_kind *kind;
    int with_backward, threads;
    int state_is_filled; /* forward has written the plan's own state */
    size_t work_size, state_size;
    struct float_rows *float_rows; /* [slots], of problems in half precision: heads.h */
    shoal_transport *over;         /* NULL: one process */
    int64_t most_keys;             /* of a process */
    struct distributed_work *distributed;
    void *work;  /* the kind's structure */
    void *state; /* the plan's own */
    void *memory;
};

/* Lets the problem's strides point to the plan's own, also after a copy of the plan. */
void sh_plan_own_strides(shoal_plan *plan);

/* The kind's row; NULL for a number that is none. */
const attention_kind *sh_attention_kind_at(int kind);

/* The attention with every field that is SHOAL_BY_SIZE set to what the problem says. */
shoal_attention sh_attention_resolve(const shoal_attention *attention,
                                     const shoal_problem *problem);

/* Refuses fields that the header's limits exclude; the message names the field. Fields
   that are no options of the kind get the values that the kind stands for. */
shoal_status sh_attention_check(shoal_context *context, shoal_attention *attention);

/* Refuses arguments that cannot be honoured before anything is written; fills *now. */
shoal_status sh_call_check(shoal_plan *plan, const shoal_inputs *inputs,
                           attention_call *now);

/* One head of a call that was checked; sh_view_at: of its number b * heads + h. */
head_view sh_view_of(const attention_call *call, int64_t b, int64_t h);
head_view sh_view_at(const attention_call *call, int64_t head);
/* Rows of the caller's arrays shaped like queries (q, out) and like keys (k, v). */
row_view sh_query_rows(const attention_call *call, const void *array,
                       const shoal_strides *strides, int64_t b, int64_t h);
row_view sh_key_rows(const attention_call *call, const void *array,
                     const shoal_strides *strides, int64_t b, int64_t kv_head);

/* The key/value head unit % kv_heads of sequence unit / kv_heads; sets its dk and dv to
   0. */
kv_head_view sh_start_kv_head(const attention_call *call, int64_t unit);

/* Bytes of an element. */
static inline int64_t sh_element_size(shoal_dtype dtype) {
    return dtype == SHOAL_DTYPE_FLOAT32 ? (int64_t)sizeof(float)
                                        : (int64_t)sizeof(uint16_t);
}

/* Sets rows first .. last - 1 to 0. */
void sh_clear_rows(row_view where, int64_t first, int64_t last, int64_t dim);

#endif
