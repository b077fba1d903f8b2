/* Shoal: attention in linear time.
 *
 * Queries are grouped by fast clustering, each group attends once, and the keys that
 * matter are treated exactly, so a sequence twice as long costs twice, not four times.
 * This header is the whole public interface, and its manual.
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal.h>
 *
 *     int main(void) {
 *         enum { N = 4096, D = 64 };
 *         static float q[N * D], k[N * D], v[N * D], out[N * D];   // ... fill q, k, v
 *         shoal_context *context;
 *         if (shoal_context_create(NULL, &context) != SHOAL_OK) return 1;
 *         shoal_problem problem = {.batch = 1, .heads = 1, .queries = N, .keys = N,
 *                                  .dim = D, .value_dim = D};
 *         shoal_inputs inputs = {.q = q, .k = k, .v = v};
 *         if (shoal_attend(context, "auto", &problem, &inputs, out))
 *             return 1;                       // shoal_context_message(context) says why
 *         shoal_context_destroy(context);
 *     }
 *
 * THE RULES, ONCE
 *
 * Layout.   Arrays are float32, or in half precision where the problem's dtype says so,
 *           indexed [batch][head][position][feature]; features are contiguous, the other
 *           three strides are free (in elements; all three zero means contiguous in that
 *           order). [batch][position][head][feature] and packed sequences are only
 *           strides and need no copy. Nothing outside the elements that shape and strides
 *           name is ever read or written.
 * Aliasing. Inputs may overlap each other. An output overlaps nothing.
 * Padding.  Positions at or beyond a sequence's length are never read; the outputs and
 *           gradients there are set to 0. NaN in the padding goes nowhere.
 * Corners.  No keys: the output is 0. No more queries than clusters: every query is its
 *           own group and both clustered kinds give the full attention. topk >= keys:
 *           i-clustered gives the full attention. Empty batches and sequences are legal.
 * NaN, inf. In a live position they are not an error: they follow IEEE rules into every
 *           output that depends on them, and into no other head or sequence. A score of
 *           -inf weighs nothing beside any other.
 * Seeds.    A head's result depends on its own inputs, the kind and the seed: not on the
 *           rest of the batch, nor on the number of threads. The groups do not depend on
 *           the instruction set either; outputs agree across them to rounding.
 * Errors.   Functions return a status; the context keeps a message that says what was
 *           wrong. The library never prints, aborts or exits. A call that returns an
 *           error has written no output.
 * Threads.  One context per thread; contexts share nothing. A plan belongs to its
 *           context. A call itself runs on the context's own threads, which
 *           sleep when there is nothing to do. A forked process gets its own.
 * Memory.   A plan allocates when it is created and tells how much; running it
 *           allocates nothing, and fails only by refusing its arguments.
 * Limits.   Positions in one sequence: 2^31 - 1. dim, value_dim: 1 to 65536. clusters,
 *           topk, window: 1 to 65535. bits: 1 to 255. rounds: 1 to 255.
 *           rank: 1 to 1024 (more than dim counts as dim). iterations: 1 to 1000.
 *           tolerance: 0.0001 to 10. Gradients have their arrays' strides: keys that
 *           sequences share by a stride of 0 may be read so, but not differentiated.
 */
#ifndef SHOAL_H
#define SHOAL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define SHOAL_API
#else
#define SHOAL_API __attribute__((visibility("default")))
#endif

#define SHOAL_VERSION_MAJOR 0
#define SHOAL_VERSION_MINOR 2
#define SHOAL_VERSION_PATCH 0
#define SHOAL_VERSION "0.2.0"

/* The version of the library that is running, such as "0.2.0". */
SHOAL_API const char *shoal_version(void);

/* ---- Status ----------------------------------------------------------------------- */

typedef enum {
    SHOAL_OK = 0,
    SHOAL_INVALID = 1, /* an argument that cannot be honoured: shapes, spelling, ranges */
    SHOAL_BAD_FILE = 2,  /* a file whose content is not what it should be */
    SHOAL_IO = 3,        /* the system refused to read or write */
    SHOAL_NO_MEMORY = 4, /* an allocation failed; nothing was leaked */
    SHOAL_CANCELLED = 5  /* a callback asked to end; what was begun can go on */
} shoal_status;

/* A short name for a status, such as "out of memory". Never NULL. */
SHOAL_API const char *shoal_status_text(shoal_status status);

/* ---- Context ---------------------------------------------------------------------- */

typedef struct shoal_context shoal_context;

typedef struct {
    int threads;     /* 0: one per processor, or as many as OMP_NUM_THREADS says */
    const char *isa; /* "scalar", "avx2", "avx512", "neon"; NULL: the environment variable
                        SHOAL_ISA if set and not empty, else the best that runs here */
    /* The caller's allocator, or both NULL for malloc and free. Blocks need malloc's
       alignment only; NULL from allocate is an ordinary, reported failure. */
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *block);
    void *user;
    int crossover; /* for auto: positions from which shoal takes less time than full,
                      64 features a head. 0: the environment variable SHOAL_CROSSOVER if
                      set and not empty, else 640; shoal_measure_crossover measures it */
} shoal_options;

/* options may be NULL. Like a database handle, *context is set even when the options are
   refused, so that the message can be read; it must be destroyed, and every other use of
   it is refused. It is NULL only when memory ran out. */
SHOAL_API shoal_status shoal_context_create(const shoal_options *options,
                                            shoal_context **context);
SHOAL_API void shoal_context_destroy(shoal_context *context); /* NULL is legal */

/* What was wrong in the last call that failed; "" before any. Valid until the next
   call. */
SHOAL_API const char *shoal_context_message(const shoal_context *context);
SHOAL_API int shoal_context_threads(const shoal_context *context);
SHOAL_API const char *shoal_context_isa(const shoal_context *context);
SHOAL_API int shoal_context_crossover(const shoal_context *context);

/* Times both sides on this machine, for about a quarter of a second, and sets the
   context's crossover to what it found. What auto picks is a function of that number, the
   problem and, with a tolerance, the inputs: keep the number and you keep the choices. */
SHOAL_API shoal_status shoal_measure_crossover(shoal_context *context);

/* ---- Kinds of attention ----------------------------------------------------------- */

typedef enum {
    SHOAL_FULL,        /* full           softmax(scale Q K') V */
    SHOAL_SHARED_FULL, /* shared-full    full with K = Q */
    SHOAL_CLUSTERED,   /* clustered-C    one attention per group of queries */
    SHOAL_I_CLUSTERED, /* i-clustered-C  and a group's topk keys exactly per query */
    SHOAL_LSH,         /* lsh-R          Reformer's hashing, R rounds, K = Q */
    SHOAL_ORACLE_TOP,  /* oracle-top-k   only the k best keys of each query */
    SHOAL_SHOAL,       /* shoal-C        blocks of alike queries have exact keys, the rest
                                         follows each query; shoal: C by the sizes */
    SHOAL_AUTO,        /* auto           full or shoal, whichever suits the problem */
    SHOAL_LOCAL,       /* local-W        only the keys at most W/2 positions away */
    SHOAL_STRIDED,     /* strided-W      those, and the keys a multiple of W away */
    SHOAL_Q_CLUSTERED, /* q-clustered-C  i-clustered with groups=keys,normaliser=query and
                                         other defaults */
} shoal_kind;

/* How queries are grouped: by hashes of the queries and Hamming k-means, as the paper
   does; or by k-means in the metric of the keys, where two queries are near when they
   attend alike. */
typedef enum { SHOAL_GROUPS_HASH, SHOAL_GROUPS_KEYS } shoal_grouping;

/* What makes the top keys' weights comparable with the rest: the group's mass, as the
   paper does; or each query's own scores, one softmax over its exact top keys and its
   group's other keys. */
typedef enum { SHOAL_NORMALISER_CLUSTER, SHOAL_NORMALISER_QUERY } shoal_normaliser;

/* In place of a number that follows from the sizes (spelled "auto"): shoal's clusters,
   topk, rank, keyclusters, block, pool and near. The sizes are each sequence's own, so
   that it is computed as it would be alone; shoal_plan_picked tells the numbers of the
   plan's sizes. A shorter sequence has no more groups, and no more keys in topk. */
enum { SHOAL_BY_SIZE = -1 };

/* One attention, spelled as text: "i-clustered-100:topk=32,bits=63,iterations=10,seed=1",
   "i-clustered-100:groups=keys,normaliser=query,rank=16", "shoal", "shoal-64:near=0",
   "q-clustered-100", "auto:tolerance=0.1". Fields that a kind does not use are 0
   after parsing and ignored elsewhere. */
typedef struct {
    shoal_kind kind;
    int32_t clusters; /* C */
    int32_t topk;     /* k: keys per group (or, for the oracle, per query) kept exactly */
    int32_t bits;     /* B: bits of a query's hash */
    int32_t iterations; /* L: Lloyd iterations */
    int32_t rounds;     /* R: hashing rounds of lsh */
    int32_t window;     /* W: positions that a query looks around itself */
    int32_t rank;       /* directions that groups=keys looks at */
    int32_t groups;     /* a shoal_grouping */
    int32_t normaliser; /* a shoal_normaliser */
    /* shoal: */
    int32_t keyclusters; /* M: key clusters used to correct the weights of non-exact keys
                            for each query */
    int32_t block;   /* alike queries of a group that share exact keys, topk of them */
    int32_t pool;    /* keys of a group that its blocks choose from */
    int32_t near;    /* positions on either side of a query whose keys are exact too,
                            where there are as many keys as queries */
    int32_t form;    /* 3; or 2, the algorithm of files that spell no form: without
                            second-order weights and the dipole of the values, and with
                            other numbers by size */
    float tolerance; /* auto: the relative error to stay below; 0: none was asked for */
    uint64_t seed;
} shoal_attention;

/* Properties of a kind. Flags are 1 or 0. */
typedef struct {
    const char *name; /* "i-clustered-C" */
    const char *cost; /* operations for N queries, S keys */
    const char *summary;
    const char *number; /* the field that the number in the spelling sets, "clusters";
                           NULL: there is none */
    shoal_attention defaults; /* of every field; the number is an example */
    int exact;                /* every query weighs every key by its own score */
    int keys_are_queries;     /* inputs.k is NULL, lengths and heads are the queries' */
    int unit_keys;            /* and these keys are scaled to length 1 */
    int has_groups;           /* of queries: shoal_plan_groups, inputs.groups */
    int has_top_keys;         /* of each group: shoal_plan_top_keys */
    int has_seed;             /* the result depends on random numbers */
    int has_tolerance;
    int picks;     /* runs as another kind, which shoal_plan_picked tells */
    int has_masks; /* each query sees keys of its own: causal, bias, mask and dropout can
                      be honoured */
} shoal_kind_info;

/* One row per kind, in the order of shoal_kind; NULL past the end. */
SHOAL_API const shoal_kind_info *shoal_kind_describe(int index);

/* Reads a spelling; the message names the part that was wrong. */
SHOAL_API shoal_status shoal_attention_parse(shoal_context *context, const char *text,
                                             shoal_attention *attention);
/* The same for a spelling read from a file, which keeps the meaning that it had when the
   file was written: shoal-C:keyclusters=0 is q-clustered-C. is_complete: nonzero where
   the file spells every option, as shoal_attention_print_all does; then one that spells
   no key clusters is older than those, and shoal-C is q-clustered-C as well; one that
   spells no form is of the second form, shoal-C:form=2. */
SHOAL_API shoal_status shoal_attention_parse_stored(shoal_context *context,
                                                    const char *text, int is_complete,
                                                    shoal_attention *attention);

/* Writes the shortest spelling that parses back to the same attention, always ending in
   0 when size > 0. Returns the length it has in full, as snprintf does. */
SHOAL_API size_t shoal_attention_print(const shoal_attention *attention, char *text,
                                       size_t size);
/* The same with every option shown, defaults too. */
SHOAL_API size_t shoal_attention_print_all(const shoal_attention *attention, char *text,
                                           size_t size);

/* ---- Problems and plans ----------------------------------------------------------- */

typedef struct {
    int64_t batch, head, position; /* in elements; all zero: contiguous */
} shoal_strides;

/* What the elements of an array are. */
typedef enum {
    SHOAL_FLOAT32,
    SHOAL_INT32,
    SHOAL_FLOAT16, /* IEEE: 5 bits of exponent, 10 of fraction */
    SHOAL_BFLOAT16 /* the upper half of a float32 */
} shoal_dtype;

typedef struct {
    int64_t batch, heads;
    int64_t kv_heads; /* 0: as many as heads; otherwise a divisor of heads: query head
                              h uses key/value head h / (heads / kv_heads) */
    int64_t queries, keys; /* N and S: positions, the longest sequence's when packed */
    int64_t dim, value_dim;
    float scale;   /* scores are multiplied by it; 0: 1/sqrt(dim) */
    int packed;    /* nonzero: sequences lie one after another, [position][head]
                              [feature] unless the strides say otherwise; the inputs carry
                              offsets, and the batch strides are not used */
    int causal;    /* nonzero: a query sees the keys up to its own position. Where a
                              sequence has fewer queries than keys they are its last
                              positions, as in decoding with a cache; else query i is at
                              position i. For kinds with masks, as are the next ones */
    float dropout; /* this part of the weights becomes 0, and the others are divided by
                              1 - dropout: 0 to 1, rounded to 1/65536; inputs.dropout_seed
                              says which */
    shoal_dtype dtype;          /* of q, k, v, out and their gradients: float32, or half
                              precision, which is read and written as it is, computed in
                              float32 and rounded to nearest, ties to even.
                              Biases and their gradients are float32 always. full,
                              shared-full and local convert it block by block in
                              forward; other kinds, and every backward, a head at a
                              time, in room that the plan has for one head on each
                              thread */
    shoal_strides q, k, v, out; /* gradients have the strides of what they belong to */
} shoal_problem;

enum { SHOAL_WITH_BACKWARD = 1 }; /* plan for shoal_backward as well */

/* Floating-point operations of one forward, or with SHOAL_WITH_BACKWARD of a forward and
   a backward: those of its matrix products, a multiplication and an addition apart. For
   auto they are full's. */
SHOAL_API double shoal_attention_operations(const shoal_attention *attention,
                                            const shoal_problem *problem, unsigned flags);

typedef struct shoal_plan shoal_plan;

/* Checks that the attention can do the problem, and reserves all memory for it. */
SHOAL_API shoal_status shoal_plan_create(shoal_context *context,
                                         const shoal_problem *problem,
                                         const shoal_attention *attention, unsigned flags,
                                         shoal_plan **plan);
SHOAL_API void shoal_plan_destroy(shoal_plan *plan); /* NULL is legal */

/* Bytes that the plan holds, all told; and how much of them is the state below. */
SHOAL_API size_t shoal_plan_workspace(const shoal_plan *plan);
SHOAL_API size_t shoal_plan_state_size(const shoal_plan *plan);

/* Of an array with an element for each query and key, in elements; 0 along what shares
   its elements. All four zero: contiguous. */
typedef struct {
    int64_t batch, head, query, key;
} shoal_pair_strides;

typedef struct {
    /* Of the problem's dtype. */
    const void *q; /* [batch][heads][queries][dim] */
    const void *k; /* [batch][kv_heads][keys][dim]; NULL for shared-full and lsh, whose
                        keys are the queries */
    const void *v; /* [batch][kv_heads][keys][value_dim] */
    const int64_t *query_lengths, *key_lengths; /* [batch], or NULL: all positions live */
    const int64_t *query_offsets, *key_offsets; /* [batch + 1], packed problems only:
                        sequence b has positions offsets[b] .. offsets[b + 1] - 1 */
    const int32_t *groups; /* [batch][heads][queries], each in 0 .. clusters - 1 where the
                        position is live; NULL: the kind finds the groups itself */
    void *state; /* NULL: the plan's own. Else state_size bytes, aligned to 64, that
                        forward fills and backward reads: one plan, many layers */
    /* Added to the scaled scores of a key, whoever looks at it; -inf hides it, as padding
       anywhere does. [batch][heads][keys], or NULL; strides as elsewhere, 0 along what
       shares its elements. Where no key is left, outputs are 0. */
    const float *key_bias;
    shoal_strides key_bias_strides;
    /* For kinds with masks; [batch][heads][queries][keys], or NULL. Positions count
       within a sequence, packed or not. A query that is left with no key has output 0. */
    const float *bias;   /* added to the scaled scores; -inf: the key weighs nothing */
    const uint8_t *mask; /* 0: the query does not see the key */
    shoal_pair_strides bias_strides, mask_strides;
    uint64_t dropout_seed; /* shoal_dropout_factor tells what becomes of a weight */
} shoal_inputs;

/* What a weight is multiplied by: 0, or what makes up for those that are 0. A function of
   its arguments alone, so that backward has forward's. head: batch index x heads +
   head. */
SHOAL_API float shoal_dropout_factor(float dropout, uint64_t seed, int64_t head,
                                     int64_t query, int64_t key);

/* out: [batch][heads][queries][value_dim], of the problem's dtype. */
SHOAL_API shoal_status shoal_forward(shoal_plan *plan, const shoal_inputs *inputs,
                                     void *out);

typedef struct {
    /* Of the problem's dtype: */
    const void *out;    /* what forward gave for the same inputs and state */
    const void *dout;   /* gradient of the loss with respect to it, with its strides */
    void *dq, *dk, *dv; /* outputs, overwritten; any may be NULL. Where the keys are the
                           queries, dq is the whole gradient and dk is set to 0 */
    float *dbias; /* [batch][heads][queries][keys], contiguous, or NULL: the bias's, to be
                     added up along what shares its elements; where there is no bias, what
                     one would have */
    float *dkey_bias; /* [batch][heads][keys], contiguous, or NULL: the key bias's, in the
                         same way */
} shoal_gradients;

/* After forward with the same inputs (and state). Groups, hashes and the choice of top
   keys are constants; everything else is differentiated exactly. */
SHOAL_API shoal_status shoal_backward(shoal_plan *plan, const shoal_inputs *inputs,
                                      const shoal_gradients *gradients);

/* What the last forward into this state (NULL: the plan's own) used.
   groups:   [batch][heads][queries], -1 in the padding; NULL for kinds without groups.
   top keys: [batch][heads][clusters][topk], best first, -1 where there are fewer: a group
             of one query, which is exact without, has none; NULL for kinds without,
             such as shoal, whose exact keys are a block's. For auto both are NULL. */
SHOAL_API const int32_t *shoal_plan_groups(const shoal_plan *plan, const void *state);
SHOAL_API const int32_t *shoal_plan_top_keys(const shoal_plan *plan, const void *state);

/* What the last forward into this state (NULL: the plan's own) of shoal took as
   constants in one head, batch index * heads + head. Only plans with
   SHOAL_WITH_BACKWARD keep it. docs/method.md has the formula. */
typedef struct {
    int64_t rank, near;          /* numbers of this head's sequence */
    int64_t key_cluster_count;   /* the same */
    const int32_t *key_clusters; /* [keys], -1: hidden by its bias */
    const float *projection;     /* [rank + 1][dim]: P', and the keys' centre */
    const float *dual;           /* [rank][dim]: Z' */
    const float *shares;         /* [clusters][key_cluster_count]: sigma; not in form 2 */
} shoal_tilt;
SHOAL_API shoal_status shoal_plan_tilt(const shoal_plan *plan, const void *state,
                                       int64_t head, shoal_tilt *tilt);
/* The exact keys that a live query shares with its block, in keys [topk], -1 where there
   are fewer; returns how many, 0 where the plan has no such. Looks at all queries of the
   head. */
SHOAL_API int64_t shoal_plan_exact_keys(const shoal_plan *plan, const void *state,
                                        int64_t head, int64_t query, int32_t *keys);

/* The attention that the last forward into this state (NULL: the plan's own) really was:
   what auto picked, or the plan's own kind. Before any forward, auto with a tolerance has
   picked nothing yet and this is full.
   auto compares what full and shoal would cost at the plan's sizes. With a tolerance it
   runs shoal, computes the exact attention of some queries, and keeps the outputs where
   the error on them is well below the tolerance; else it tries more groups, or takes full
   if that costs no more. It is an estimate, as shoal_error_estimate is: not a bound. */
SHOAL_API shoal_status shoal_plan_picked(const shoal_plan *plan, const void *state,
                                         shoal_attention *picked);

/* All of the above in one call: parse, plan, forward, destroy. */
SHOAL_API shoal_status shoal_attend(shoal_context *context, const char *kind,
                                    const shoal_problem *problem,
                                    const shoal_inputs *inputs, void *out);

/* ---- One sequence over several processes ------------------------------------------- */

/* How processes, numbered ranks, talk; shoal_mpi.h has one on MPI, and another engine may
   fill the same structure. All ranks call the same functions in the same order with the
   same sizes; shoal_mpi.h has the rules. Plans use sum, gather, gather_parts and
   exchange: where one of them fails, the call under way ends with SHOAL_IO, and the plan
   is of no more use. */
typedef enum {
    SHOAL_SUM_FLOAT,
    SHOAL_SUM_DOUBLE,
    SHOAL_SUM_INT32,
    SHOAL_SUM_INT64
} shoal_sum_type;

typedef struct shoal_transport shoal_transport;
struct shoal_transport {
    int32_t rank, ranks;             /* this one counts from 0, and how many there are */
    int32_t local_rank, local_ranks; /* of those on this machine */
    int64_t sent;                    /* bytes that this rank sent, all told */
    char message[256];               /* why the last call that failed did */

    /* values [count] become their sum over the ranks. */
    shoal_status (*sum)(shoal_transport *self, shoal_sum_type type, int64_t count,
                        void *values);
    /* The same in two halves: between them other work is done, other sums are begun, and
       nobody looks at the values. end waits for all that were begun. */
    shoal_status (*sum_begin)(shoal_transport *self, shoal_sum_type type, int64_t count,
                              void *values);
    shoal_status (*sum_end)(shoal_transport *self);
    /* own [bytes] of every rank, in their order: all [ranks][bytes]. */
    shoal_status (*gather)(shoal_transport *self, int64_t bytes, const void *own,
                           void *all);
    /* The same where they have sizes[ranks] bytes, one after another. */
    shoal_status (*gather_parts)(shoal_transport *self, const int64_t *sizes,
                                 const void *own, void *all);
    /* bytes of rank `root` to everybody. */
    shoal_status (*broadcast)(shoal_transport *self, int32_t root, int64_t bytes,
                              void *values);
    /* To each rank its own bytes: send has to_sizes[0] bytes for rank 0, then
       to_sizes[1] for rank 1 ...; receive has from_sizes[0] from rank 0 ... Both sides
       know the sizes. */
    shoal_status (*exchange)(shoal_transport *self, const int64_t *to_sizes,
                             const void *send, const int64_t *from_sizes, void *receive);
};

/* A plan for sequences of which each rank holds a run of positions, the first rank the
   first. The problem is this rank's part: queries and keys are its own, and may be 0;
   everything else is equal on all ranks, or the plan is refused on all. So are lengths
   and offsets this rank's, and outputs and gradients. Groups and top keys are those of
   one process, top keys numbered as there. What crosses between ranks has the size of
   the groups; only full, which is exact, sends all keys and values around. All ranks call
   shoal_plan_create_over, shoal_forward and shoal_backward together, and the transport
   outlives the plan.
   The kinds full, clustered-C, i-clustered-C and q-clustered-C can be distributed, in
   float32, without biases, masks, dropout and causal order. shoal-C cannot: its blocks of
   alike queries may be anywhere. */
SHOAL_API shoal_status shoal_plan_create_over(shoal_transport *transport,
                                              shoal_context *context,
                                              const shoal_problem *problem,
                                              const shoal_attention *attention,
                                              unsigned flags, shoal_plan **plan);

/* The real error of an output: exact attention, in double precision, for `samples` live
   queries (seeded; all of them if there are no more), compared with the same rows of
   `out`. The exact attention of lsh has its keys: unit-length queries. For kinds with
   groups, queries are drawn more often where a better approximation, by other groups with
   four times the top keys, differs from `out`, and counted less; so few samples tell even
   an error that a handful of queries carry. Costs samples x keys x (dim + value_dim), and
   that approximation, for which memory is allocated and given back; in half
   precision everything is copied in float32. */
typedef struct {
    int64_t samples; /* queries compared */
    double
        relative_error; /* |out - exact| / |exact|, both as one long vector; 0 for 0/0 */
    double largest_error; /* the largest absolute difference among them */
    double centred_error; /* |e - mean e| / |out - mean out|, e = out - exact, means over
                             the queries of a head: the error of what distinguishes
                             queries; 0 for 0/0 */
} shoal_error;
SHOAL_API shoal_status shoal_error_estimate(shoal_plan *plan, const shoal_inputs *inputs,
                                            const void *out, int64_t samples,
                                            uint64_t seed, shoal_error *error);

#ifdef __cplusplus
}
#endif
#endif
