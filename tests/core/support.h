/* Shared by the tests of the attention core: seeded data, problems in every memory
   layout with guards around and between the elements, comparison with the exact
   formulas, contexts for every instruction set, and an allocator that counts and can
   fail. */
#ifndef SHOAL_TESTS_SUPPORT_H
#define SHOAL_TESTS_SUPPORT_H

#include <stdbool.h>

#include "exact/exact.h"
#include "shoal.h"

#define COUNT_OF(array) ((int64_t)(sizeof(array) / sizeof *(array)))

/* Zeroed memory, never NULL: the test stops if there is none. */
void *test_memory(int64_t count, size_t size);

/* ---- Random numbers: pure functions of their arguments ---------------------------- */

uint64_t test_hash(uint64_t seed, uint64_t stream, uint64_t counter);
double test_normal(uint64_t bits); /* about standard normal, from 64 random bits */
int64_t test_pick(uint64_t seed, uint64_t stream, int64_t low,
                  int64_t high); /* inclusive */

/* ---- Tensors ------------------------------------------------------------------- */

/* [batch][heads][positions][features] with strides, in a block that ends with its
   last element. Every element that is not filled holds the guard, a NaN with
   specific bits. */
typedef struct {
    float *data;
    int64_t elements, batch, heads, positions, features;
    shoal_strides strides;  /* never all zero, unless there is only one element */
    const int64_t *offsets; /* packed: [batch + 1]; otherwise NULL */
} tensor;

void tensor_destroy(tensor *t);
int64_t tensor_positions(const tensor *t,
                         int64_t b); /* of one sequence, including padding */
float *tensor_row(const tensor *t, int64_t b, int64_t h, int64_t position);
void tensor_guard(const tensor *t); /* fills every element with the guard */

/* Fails the test unless everything outside the tensor's elements is still the guard,
   and the elements at or beyond lengths[b] are 0. */
void check_surroundings(const tensor *t, const int64_t *lengths, const char *name);
/* Fails the test unless the valid elements have the same bits; layouts may differ. */
void check_identical(const tensor *a, const tensor *b, const int64_t *lengths,
                     const char *name);

/* ---- Cases --------------------------------------------------------------------- */

typedef enum {
    LAYOUT_CONTIGUOUS,     /* strides left 0 */
    LAYOUT_POSITION_MAJOR, /* [batch][position][head][feature] */
    LAYOUT_GAPS,           /* [batch][head][position][feature] with gaps at every level */
    LAYOUT_PACKED,         /* strides left 0 */
    LAYOUT_PACKED_GAPS,    /* gaps between heads and positions, and before the first */
    LAYOUT_COUNT
} memory_layout;

/* Memory layout of an array with an element per query and key. */
typedef enum {
    PAIRS_NONE,
    PAIRS_WHOLE, /* strides left 0 */
    PAIRS_GAPS,
    PAIRS_TURNED,     /* keys outermost, queries innermost */
    PAIRS_OF_HEADS,   /* shared by sequences */
    PAIRS_SHARED,     /* shared by sequences and heads */
    PAIRS_OF_KEYS,    /* shared by heads and queries */
    PAIRS_OF_QUERIES, /* shared by keys */
    PAIRS_COUNT
} pair_layout;

typedef struct {
    shoal_attention attention;
    int64_t batch, heads, kv_heads, queries, keys, dim, value_dim;
    float scale;
    memory_layout layout;
    bool ragged;     /* sequences of different lengths */
    bool own_groups; /* random clusters given by the caller */
    bool causal;
    pair_layout bias, mask; /* some of the bias is -inf; some queries see no key */
    pair_layout key_bias;   /* the same without queries: layouts up to PAIRS_SHARED */
    float dropout;
    uint64_t seed; /* of the data: valid values do not depend on the layout */
} case_spec;

typedef struct {
    case_spec spec;
    shoal_problem problem;
    shoal_inputs inputs;
    tensor q, k, v, out, dout, dq, dk, dv;
    int64_t *query_lengths, *key_lengths; /* [batch], numbers of valid positions */
    int64_t *query_offsets, *key_offsets; /* [batch + 1], packed only */
    int32_t *groups;                      /* [batch][heads][queries], own_groups only */
    shoal_strides *strides;               /* [5]: of q, k, v, out, key bias */
    shoal_pair_strides *pair_strides;     /* [2]: of bias and mask */
    float *bias;                          /* NULL if there is none */
    uint8_t *mask;
    float *dbias; /* [batch][heads][queries][keys], if something is masked */
    float *key_bias, *dkey_bias; /* dkey_bias is [batch][heads][keys] */
    shoal_context *context;      /* of case_run_on, as is the plan */
    shoal_plan *plan;
} attention_case;

/* keys and kv_heads are ignored if the kind uses the queries as keys; kv_heads 0 means
   heads. */
attention_case case_create(const case_spec *spec);
void case_destroy(attention_case *c);
int64_t case_kv_heads(const attention_case *c);
/* The same head alone: batch 1, one head, contiguous, without padding. */
attention_case case_extract(const attention_case *c, int64_t b, int64_t h);
/* Description of a case for messages, valid until the next call. */
const char *case_text(const attention_case *c);

shoal_plan *case_plan(shoal_context *context, const attention_case *c, unsigned flags);
void case_forward(shoal_plan *plan, attention_case *c);
void case_backward(shoal_plan *plan, attention_case *c);
/* Plan with backward, forward, backward; the caller destroys the plan. */
shoal_plan *case_run(shoal_context *context, attention_case *c);

/* The same with a separate context; the case owns context and plan. */
void case_run_on(const char *isa, int threads, attention_case *c);

/* Surroundings of out, dq, dk and dv. */
void case_check_surroundings(const attention_case *c);
/* Bitwise equality of out, dq, dk and dv, and of dbias. */
void case_check_identical(const attention_case *a, const attention_case *b);

/* ---- Comparison with the exact formulas (compare.c) ----------------------------- */

/* One head in double precision, with the choices of the plan (unless NULL). Never
   NULL. */
exact_head *case_head(const attention_case *c, shoal_plan *plan, int64_t b, int64_t h);

/* Sets dout to 0 in rows where rounding could change the query's own choice of keys;
   the comparison skips them. */
void case_calm(attention_case *c);

/* Forward within 1e-5 and gradients within 1e-4 of the exact result's largest entry. */
void check_forward(const attention_case *c, shoal_plan *plan);
void check_forward_within(const attention_case *c, shoal_plan *plan, double tolerance);
void check_gradients(const attention_case *c, shoal_plan *plan);
void check_dbias(const attention_case *c, shoal_plan *plan); /* and dkey_bias */
/* Clusters: in range for valid queries, -1 for padding, the caller's if given, all
   different if there are no more queries than clusters. Exact keys: the best of the
   centroid's scores, best first, up to rounding. */
void check_groups(const attention_case *c, shoal_plan *plan);
void check_top_keys(const attention_case *c, shoal_plan *plan);
/* All of the above, and the surroundings. */
void check_everything(const attention_case *c, shoal_plan *plan);

/* ---- Kinds --------------------------------------------------------------------- */

shoal_attention spelled(const char *text);

/* Properties of a kind. */
static inline const shoal_kind_info *facts_of(shoal_kind kind) {
    return shoal_kind_describe((int)kind);
}

enum { TEST_KINDS = 32 };

/* Spells every kind of the library, and its options, with the given numbers where the
   kind has them; topk is also used as a window. The list ends with NULL. */
void test_kinds(shoal_attention numbers, const char *list[TEST_KINDS + 1]);

/* ---- Contexts ------------------------------------------------------------------ */

/* The instruction sets that this machine supports, "scalar" first; NULL past the
   end. */
const char *test_isa(int index);
shoal_context *test_context(const char *isa, int threads);

/* The path of a file or folder of the shared data (in the folder named by SHOAL_DATA,
   or else beside the project), or NULL if it is absent. Valid until the next call. */
const char *test_data(const char *name);

/* ---- An allocator that counts and can fail ---------------------------------------- */

typedef struct {
    int64_t calls;   /* number of allocations so far */
    int64_t live;    /* blocks not yet released */
    int64_t fail_at; /* the call (from 1) that fails; 0 for none */
} counting_allocator;

shoal_options counting_options(counting_allocator *allocator);

#endif
