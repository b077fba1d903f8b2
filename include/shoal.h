/* Shoal: attention in linear time.
 *
 * Shoal computes softmax attention, exactly or approximately, forward and backward. The
 * approximate kinds cluster the queries, compute attention once per cluster and treat the
 * most important keys exactly, so that time and memory grow linearly with the length of
 * the sequence.
 *
 * This header is the interface of libshoal, and its manual. Two headers extend it for
 * special purposes: shoal_transport.h (one sequence over several processes) and
 * shoal_inspect.h (internal constants of a forward pass). The libraries above libshoal
 * have their own headers: shoal_models.h, shoal_speech.h, shoal_train.h, shoal_mpi.h.
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal.h>
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         enum { N = 4096, D = 64 };
 *         static float q[N * D], k[N * D], v[N * D], out[N * D];   // ... fill q, k, v
 *         shoal_context *context;
 *         shoal_problem problem = {.size = sizeof problem, .batch = 1, .heads = 1,
 *                                  .queries = N, .keys = N, .dim = D, .value_dim = D};
 *         shoal_inputs inputs = {.size = sizeof inputs, .q = q, .k = k, .v = v};
 *         shoal_status status = shoal_context_create(NULL, &context);
 *         if (status == SHOAL_OK)
 *             status = shoal_attend(context, "auto", &problem, &inputs, out);
 *         if (status != SHOAL_OK)
 *             fprintf(stderr, "%s: %s\n", shoal_status_text(status),
 *                     shoal_context_message(context));
 *         shoal_context_destroy(context);
 *         return status != SHOAL_OK;
 *     }
 *
 * THE RULES, ONCE
 *
 * Structs.  A configuration struct begins with its size, which T_defaults() sets for a
 *           struct T. Where T_defaults() takes no argument and its comment names no
 *           values, every other field is 0, and zero selects the default: a C program may
 *           then write `T x = {.size = sizeof x, ...}` instead. The size makes later
 *           versions compatible. A struct of an older, smaller size is accepted, and the
 *           fields that it lacks have their defaults. A larger struct is accepted if all
 *           bytes that this library does not know are 0. A size of 0 is refused. Inside
 *           another struct, a configuration struct's size is not looked at. Other structs
 *           keep their layout in all versions 1.x; fields called `reserved` must be 0.
 * Layout.   Arrays are float32, or half precision if the problem's dtype says so, and are
 *           indexed [batch][head][position][feature]. Features are contiguous. The other
 *           three strides are free: pass a shoal_strides, or NULL for a contiguous array.
 *           A stride of 0 shares elements along that index (broadcast). Layouts such as
 *           [batch][position][head][feature] need no copy. Elements that shape and
 *           strides do not name are never read or written.
 * Aliasing. Inputs may overlap each other. An output must not overlap anything.
 * Padding.  Positions at or beyond a sequence's length are never read; outputs and
 *           gradients there are set to 0. NaN in the padding does not spread.
 * Corners.  Without keys the output is 0. If there are no more queries than clusters,
 *           every query is its own cluster and both clustered kinds equal full attention.
 *           If topk >= keys, i-clustered equals full attention. Empty batches and empty
 *           sequences are valid.
 * NaN, inf. NaN and infinity in valid positions are not errors: they follow IEEE rules
 *           into every output that depends on them, and into no other head or sequence.
 *           A key whose score is -inf has weight 0 unless all scores are -inf.
 * Seeds.    The result of a head depends on its own inputs, the kind and the seed, not on
 *           the rest of the batch or the number of threads. Clusters do not depend on the
 *           instruction set; outputs agree across instruction sets up to rounding.
 * Errors.   Functions return a status, and the context keeps a message that describes the
 *           error. The library never prints, aborts or exits. A call that returns an
 *           error has written no output.
 * Callbacks. Every callback takes the caller's `void *user` as its first argument. If a
 *           callback asks to stop, the call returns SHOAL_CANCELLED.
 * Threads.  Use one context per thread; contexts share nothing. A plan belongs to its
 *           context. A call runs on the context's own threads, which sleep between calls.
 *           After fork() the child process starts its own threads.
 * Memory.   A plan allocates when it is created and reports how much. Running a plan
 *           allocates nothing and fails only if it refuses its arguments.
 * Limits.   Positions in one sequence: 2^31 - 1. dim, value_dim: 1 to 65536. clusters,
 *           topk, window: 1 to 65535. bits: 1 to 255. rounds: 1 to 255.
 *           rank: 1 to 1024 (values above dim count as dim). iterations: 1 to 1000.
 *           tolerance: 0.0001 to 10. Gradients have the strides of their arrays, so
 *           arrays that share elements by a stride of 0 cannot be differentiated.
 */
#ifndef SHOAL_H
#define SHOAL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(_WIN32)
#define SHOAL_API
#else
#define SHOAL_API __attribute__((visibility("default")))
#endif

#define SHOAL_VERSION_MAJOR 1
#define SHOAL_VERSION_MINOR 0
#define SHOAL_VERSION_PATCH 0
#define SHOAL_VERSION "1.0.0rc1"
/* For comparisons by the preprocessor: 10203 is version 1.2.3. */
#define SHOAL_VERSION_NUMBER                                                             \
    (SHOAL_VERSION_MAJOR * 10000 + SHOAL_VERSION_MINOR * 100 + SHOAL_VERSION_PATCH)

/* Version of the library at run time: SHOAL_VERSION and SHOAL_VERSION_NUMBER of the
   header that it was compiled with. */
SHOAL_API const char *shoal_version(void);
SHOAL_API int shoal_version_number(void);

/* Defines T_defaults(), which returns a T whose size is set and whose other fields
   are 0. */
#define SHOAL_ZERO_DEFAULTS(T)                                                           \
    static inline T T##_defaults(void) {                                                 \
        T made;                                                                          \
        memset(&made, 0, sizeof made);                                                   \
        made.size = sizeof made;                                                         \
        return made;                                                                     \
    }

/* ---- Status ----------------------------------------------------------------------- */

typedef enum {
    SHOAL_OK = 0,
    SHOAL_INVALID = 1,   /* an argument is invalid: a shape, a spelling, a range */
    SHOAL_BAD_FILE = 2,  /* a file is damaged or has the wrong content */
    SHOAL_IO = 3,        /* the system could not read or write */
    SHOAL_NO_MEMORY = 4, /* an allocation failed; nothing was leaked */
    SHOAL_CANCELLED = 5  /* a callback asked to stop */
} shoal_status;

/* A short description of a status, such as "out of memory". Never NULL. */
SHOAL_API const char *shoal_status_text(shoal_status status);

/* ---- Context ---------------------------------------------------------------------- */

typedef struct shoal_context shoal_context;

typedef struct {
    size_t size;
    int threads;     /* 0: OMP_NUM_THREADS if set, else one per processor */
    const char *isa; /* "scalar", "avx2", "avx512" or "neon"; NULL: the environment
                        variable SHOAL_ISA if set and not empty, else the best one */
    /* The allocator; both NULL for malloc and free. Blocks need only malloc's alignment.
       If allocate returns NULL, the call fails with SHOAL_NO_MEMORY. A context also calls
       them from its own threads, but never two at a time. */
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *block);
    void *user;
    int crossover; /* for auto: sequence length from which shoal is faster than full, with
                      64 features per head. 0: the environment variable SHOAL_CROSSOVER if
                      set and not empty, else 640. See shoal_measure_crossover. */
} shoal_options;
SHOAL_ZERO_DEFAULTS(shoal_options)

/* options may be NULL. *context is set even if the options are refused, so that the
   message can be read; then the context must still be destroyed, and every other use of
   it is refused. *context is NULL only if memory ran out. */
SHOAL_API shoal_status shoal_context_create(const shoal_options *options,
                                            shoal_context **context);
SHOAL_API void shoal_context_destroy(shoal_context *context); /* NULL is valid */

/* Message of the last call that failed, "" before any; valid until the next call. */
SHOAL_API const char *shoal_context_message(const shoal_context *context);
SHOAL_API int shoal_context_threads(const shoal_context *context);

/* Runs the context's work on threads of the program's instead of the context's own, for a
   program whose threads wait actively and would take the cores from Shoal's, as those of
   OpenMP do. parallel(body, data, threads, 0) calls body(data) on at most `threads`
   threads at once and returns when all have returned; thread_number() is the number of
   the thread that calls it from there, from 0. These are GOMP_parallel, which GCC's and
   LLVM's OpenMP libraries have, and omp_get_thread_num. Results have the same bits. Both
   NULL: the context's own threads again. A forked process has its own. */
SHOAL_API shoal_status
shoal_context_borrow_threads(shoal_context *context,
                             void (*parallel)(void (*body)(void *data), void *data,
                                              unsigned threads, unsigned flags),
                             int (*thread_number)(void));
SHOAL_API const char *shoal_context_isa(const shoal_context *context);
SHOAL_API int shoal_context_crossover(const shoal_context *context);

/* Measures the crossover on this machine, in about a quarter of a second, and stores it
   in the context. auto's choice is a function of this number, the problem and, with a
   tolerance, the inputs: store the number to reproduce the choices. */
SHOAL_API shoal_status shoal_measure_crossover(shoal_context *context);

/* ---- Kinds of attention ----------------------------------------------------------- */

typedef enum {
    SHOAL_KIND_FULL,        /* full           softmax(scale Q K') V */
    SHOAL_KIND_SHARED_FULL, /* shared-full    full with K = Q */
    SHOAL_KIND_CLUSTERED,   /* clustered-C    one attention per cluster of queries */
    SHOAL_KIND_I_CLUSTERED, /* i-clustered-C  the same, with each cluster's topk keys
                                              computed exactly for every query */
    SHOAL_KIND_LSH,         /* lsh-R          Reformer's hashing, R rounds, K = Q */
    SHOAL_KIND_ORACLE_TOP,  /* oracle-top-k   only the k best keys of each query */
    SHOAL_KIND_SHOAL,       /* shoal-C        blocks of similar queries share exact keys,
                                              and the weights of all other keys are
                                              corrected for each query; plain "shoal"
                                              chooses C from the sizes */
    SHOAL_KIND_AUTO,    /* auto           full or shoal, whichever suits the problem */
    SHOAL_KIND_LOCAL,   /* local-W        only keys at most W/2 positions away */
    SHOAL_KIND_STRIDED, /* strided-W      those, and keys a multiple of W away */
    SHOAL_KIND_Q_CLUSTERED, /* q-clustered-C  i-clustered with groups=keys and
                                              normaliser=query, and other defaults */
} shoal_kind;

/* How queries are clustered: by k-means on binary hashes of the queries (the paper), or
   by k-means in the metric of the keys, where queries are close if they attend alike. */
typedef enum { SHOAL_CLUSTERING_HASH, SHOAL_CLUSTERING_KEYS } shoal_clustering;

/* How the exact keys' weights are normalised: by the mass that the cluster gives them
   (the paper), or by each query's own scores, with one softmax over its exact keys and
   its cluster's other keys. */
typedef enum { SHOAL_NORMALISER_CLUSTER, SHOAL_NORMALISER_QUERY } shoal_normaliser;

/* In place of a number that is chosen from the sizes (spelled "auto"): shoal's clusters,
   topk, rank, keyclusters, block, pool and near. The choice depends on each sequence's
   own sizes, so that a sequence has the same result alone and in a batch.
   shoal_plan_picked returns the numbers for the plan's sizes. Shorter sequences have no
   more clusters and no more exact keys. */
enum { SHOAL_BY_SIZE = -1 };

/* One attention with its options. As text:
   "i-clustered-100:topk=32,bits=63,iterations=10,seed=1",
   "i-clustered-100:groups=keys,normaliser=query,rank=16", "shoal", "shoal-64:near=0",
   "q-clustered-100", "auto:tolerance=0.1". Parsing sets the fields that a kind does not
   use to 0; other functions ignore them. */
typedef struct {
    shoal_kind kind;
    int32_t clusters;            /* C: number of clusters */
    int32_t topk;                /* k: exact keys per cluster; of oracle-top per query; of
                                    shoal per block */
    int32_t bits;                /* B: bits of a query's hash */
    int32_t iterations;          /* L: iterations of k-means */
    int32_t rounds;              /* R: hashing rounds of lsh */
    int32_t window;              /* W: width of the sliding window in positions */
    int32_t rank;                /* projection dimension of the clustering by keys */
    shoal_clustering clustering; /* spelled "groups" */
    shoal_normaliser normaliser;
    /* shoal: */
    int32_t keyclusters; /* M: key clusters used to correct the weights of non-exact keys
                            for each query */
    int32_t block;   /* number of similar queries of a cluster that share exact keys */
    int32_t pool;    /* keys of a cluster from which its blocks choose */
    int32_t near;    /* also exact: keys at most `near` positions before or after a
                            query, if there are as many keys as queries */
    int32_t form;    /* 3; or 2, the algorithm of files that spell no form: without
                            second-order weights and the dipole of the values, and with
                            other numbers by size */
    float tolerance; /* auto: the largest accepted relative error; 0: no limit */
    uint64_t seed;
    int32_t reserved[8];
} shoal_attention;

/* Properties of a kind. Flags are 1 or 0. */
typedef struct {
    const char *name; /* "i-clustered-C" */
    const char *cost; /* number of operations for N queries and S keys */
    const char *summary;
    const char *number; /* the field that the number in the spelling sets, "clusters";
                           NULL if there is none */
    shoal_attention defaults; /* of every field; that of `number` is an example */
    int exact;                /* every query weights every key by its own score */
    int keys_are_queries;     /* inputs.k is NULL; lengths and heads are the queries' */
    int unit_keys;            /* and these keys are scaled to length 1 */
    int has_clusters;         /* shoal_plan_clusters, inputs.clusters */
    int has_top_keys;         /* shoal_plan_top_keys */
    int has_seed;             /* the result depends on random numbers */
    int has_tolerance;
    int picks;     /* runs as another kind, which shoal_plan_picked returns */
    int has_masks; /* supports causal, bias, mask and dropout, which give each query its
                      own set of keys */
} shoal_kind_info;

/* One row per kind, in the order of shoal_kind; NULL past the end. */
SHOAL_API const shoal_kind_info *shoal_kind_describe(int index);

/* Parses a spelling. The message names the part that is wrong. */
SHOAL_API shoal_status shoal_attention_parse(shoal_context *context, const char *text,
                                             shoal_attention *attention);
/* The same for a spelling read from a file, which keeps the meaning it had when the file
   was written: shoal-C:keyclusters=0 is q-clustered-C. is_complete: nonzero if the file
   spells every option, as shoal_attention_print_all does; then a spelling without
   keyclusters is older than that option, and shoal-C is q-clustered-C as well; one that
   spells no form is of the second form, shoal-C:form=2. */
SHOAL_API shoal_status shoal_attention_parse_stored(shoal_context *context,
                                                    const char *text, int is_complete,
                                                    shoal_attention *attention);

/* Writes the shortest spelling that parses to the same attention, terminated by 0 if
   size > 0. Returns the full length, as snprintf does. */
SHOAL_API size_t shoal_attention_print(const shoal_attention *attention, char *text,
                                       size_t size);
/* The same with every option, defaults included. */
SHOAL_API size_t shoal_attention_print_all(const shoal_attention *attention, char *text,
                                           size_t size);

/* ---- Problems --------------------------------------------------------------------- */

/* Distances between neighbours along an index, in elements; 0 shares the elements along
   that index. */
typedef struct {
    int64_t batch, head, position;
} shoal_strides;

/* The same for arrays with an element for each query and key. */
typedef struct {
    int64_t batch, head, query, key;
} shoal_pair_strides;

/* Element types of arrays. */
typedef enum {
    SHOAL_DTYPE_FLOAT32,
    SHOAL_DTYPE_INT32,
    SHOAL_DTYPE_FLOAT16, /* IEEE: 5 bits of exponent, 10 of fraction */
    SHOAL_DTYPE_BFLOAT16 /* the upper half of a float32 */
} shoal_dtype;

typedef struct {
    size_t size;
    int64_t batch, heads;
    int64_t kv_heads;      /* a divisor of heads: query head h uses key/value head
                         h / (heads / kv_heads). 0: as many as heads */
    int64_t queries, keys; /* N and S: positions; of packed problems those of the longest
                              sequence */
    int64_t dim, value_dim;
    float scale;   /* factor of the scores; 0: 1/sqrt(dim) */
    int packed;    /* nonzero: sequences follow each other without padding, contiguous
                      arrays are [position][head][feature], the inputs have offsets, and
                      batch strides are not used */
    int causal;    /* nonzero: a query sees the keys up to its own position. If a sequence
                      has fewer queries than keys, the queries are its last positions, as
                      in decoding with a cache; else query i is at position i. Needs a
                      kind with masks, as do dropout, bias and mask */
    float dropout; /* probability that a weight becomes 0, from 0 to 1, rounded to
                      1/65536; other weights are divided by 1 - dropout. See
                      inputs.dropout_seed */
    shoal_dtype dtype; /* of q, k, v, out and their gradients: float32 or half precision.
                          Half precision is computed in float32 and rounded to nearest,
                          ties to even. Biases and their gradients are always float32.
                          Forward passes of full, shared-full and local convert block by
                          block; all others convert one head per thread, in memory of the
                          plan */
    /* Strides of the arrays and of their gradients; NULL: contiguous. shoal_plan_create
       copies them. */
    const shoal_strides *q_strides, *k_strides, *v_strides, *out_strides;
} shoal_problem;
SHOAL_ZERO_DEFAULTS(shoal_problem)

typedef struct {
    size_t size;
    /* Of the problem's dtype: */
    const void *q; /* [batch][heads][queries][dim] */
    const void *k; /* [batch][kv_heads][keys][dim]; NULL for shared-full and lsh, whose
                      keys are the queries */
    const void *v; /* [batch][kv_heads][keys][value_dim] */
    const int64_t *query_lengths, *key_lengths; /* [batch], or NULL: no padding */
    const int64_t *query_offsets, *key_offsets; /* [batch + 1], packed problems only:
                      sequence b has positions offsets[b] .. offsets[b + 1] - 1 */
    const int32_t *clusters; /* [batch][heads][queries], each in 0 .. clusters - 1 at
                      positions that are not padding; NULL: found by the kind itself */
    void *state; /* memory of shoal_plan_state_size bytes, aligned to 64, that forward
                      writes and backward reads, so that one plan serves many layers;
                      NULL: the plan's own */
    /* Added to the scaled scores of a key for all queries, [batch][heads][keys] or NULL.
       -inf hides the key. If no key is left, the output is 0. */
    const float *key_bias;
    const shoal_strides *key_bias_strides; /* NULL: contiguous; position is the key */
    /* For kinds with masks, [batch][heads][queries][keys] or NULL. Positions count within
       a sequence, packed or not. The output of a query without any key is 0. */
    const float *bias;   /* added to the scaled scores; -inf hides the key */
    const uint8_t *mask; /* 0 hides the key */
    const shoal_pair_strides *bias_strides, *mask_strides; /* NULL: contiguous */
    uint64_t dropout_seed;                                 /* see shoal_dropout_factor */
} shoal_inputs;
SHOAL_ZERO_DEFAULTS(shoal_inputs)

/* ---- Attention in one call -------------------------------------------------------- */

/* Parses the kind, plans, computes out [batch][heads][queries][value_dim] and destroys
   the plan. */
SHOAL_API shoal_status shoal_attend(shoal_context *context, const char *kind,
                                    const shoal_problem *problem,
                                    const shoal_inputs *inputs, void *out);

/* ---- Plans ------------------------------------------------------------------------ */

enum { SHOAL_WITH_BACKWARD = 1 }; /* flag: plan for shoal_backward as well */

typedef struct shoal_plan shoal_plan;

/* Checks that the attention supports the problem, and allocates all memory for it. */
SHOAL_API shoal_status shoal_plan_create(shoal_context *context,
                                         const shoal_problem *problem,
                                         const shoal_attention *attention, unsigned flags,
                                         shoal_plan **plan);
SHOAL_API void shoal_plan_destroy(shoal_plan *plan); /* NULL is valid */

/* Bytes that the plan holds in all, and the bytes of one state among them. */
SHOAL_API size_t shoal_plan_workspace(const shoal_plan *plan);
SHOAL_API size_t shoal_plan_state_size(const shoal_plan *plan);

/* Floating-point operations of the matrix products in one forward pass, or with
   SHOAL_WITH_BACKWARD in a forward and a backward pass; a multiplication and an addition
   count as two. For auto: those of full. 0 if an argument is invalid. */
SHOAL_API double shoal_attention_operations(const shoal_attention *attention,
                                            const shoal_problem *problem, unsigned flags);

/* out: [batch][heads][queries][value_dim], of the problem's dtype. */
SHOAL_API shoal_status shoal_forward(shoal_plan *plan, const shoal_inputs *inputs,
                                     void *out);

typedef struct {
    size_t size;
    /* Of the problem's dtype: */
    const void *out;    /* forward's output for the same inputs and state */
    const void *dout;   /* gradient of the loss with respect to out, with its strides */
    void *dq, *dk, *dv; /* outputs, overwritten; each may be NULL. If the keys are the
                           queries, dq is the whole gradient and dk is set to 0 */
    float *dbias; /* [batch][heads][queries][keys], contiguous, or NULL: gradient of the
                     bias, before summation over indices with stride 0; if there is no
                     bias, the gradient that a bias would have */
    float *dkey_bias; /* [batch][heads][keys], contiguous, or NULL: the same for the key
                         bias */
} shoal_gradients;
SHOAL_ZERO_DEFAULTS(shoal_gradients)

/* Call it after forward with the same inputs and state. Clusters, hashes and the choice
   of exact keys are constants; everything else is differentiated exactly. */
SHOAL_API shoal_status shoal_backward(shoal_plan *plan, const shoal_inputs *inputs,
                                      const shoal_gradients *gradients);

/* Factor of a weight under dropout: 0, or 1 / (1 - dropout). It is a function of its
   arguments, so forward and backward agree. head: batch index x heads + head. */
SHOAL_API float shoal_dropout_factor(float dropout, uint64_t seed, int64_t head,
                                     int64_t query, int64_t key);

/* Choices of the last forward pass with this state (NULL: the plan's own).
   clusters: [batch][heads][queries], -1 in the padding; NULL for kinds without clusters.
   top keys: [batch][heads][clusters][topk], best first, -1 if there are fewer. A cluster
             of one query is exact without them and has none. NULL for kinds without
             them, such as shoal, whose exact keys belong to blocks.
   Both are NULL for auto. */
SHOAL_API const int32_t *shoal_plan_clusters(const shoal_plan *plan, const void *state);
SHOAL_API const int32_t *shoal_plan_top_keys(const shoal_plan *plan, const void *state);

/* The attention that the last forward pass with this state (NULL: the plan's own) really
   used: auto's choice, or the plan's own kind. Before any forward pass, auto with a
   tolerance has made no choice and this is full.
   auto compares the costs of full and shoal for the plan's sizes. With a tolerance it
   runs shoal, computes the exact attention of some queries, and keeps the output if the
   error on them is well below the tolerance; otherwise it tries more exact keys, or
   uses full if that costs no more. This is an estimate, not a bound. */
SHOAL_API shoal_status shoal_plan_picked(const shoal_plan *plan, const void *state,
                                         shoal_attention *picked);

/* ---- Error estimate --------------------------------------------------------------- */

typedef struct {
    int64_t samples;       /* queries compared */
    double relative_error; /* |out - exact| / |exact|, each as one long vector; 0 for
                              0/0 */
    double largest_error;  /* largest absolute difference */
    double centred_error;  /* |e - mean e| / |out - mean out|, e = out - exact, means over
                              the queries of a head: the error of what distinguishes
                              queries; 0 for 0/0 */
} shoal_error;

/* Estimates the error of an output: computes exact attention in double precision for
   `samples` queries (chosen by the seed; all queries if there are no more) and compares
   it with the same rows of `out`. The exact attention of lsh uses lsh's keys, the queries
   scaled to unit length. For kinds with clusters, queries are sampled by importance: more
   often where a better approximation, with other clusters and four times the exact keys,
   differs from `out`. Few samples therefore find even an error that is concentrated in
   few queries. The cost is samples x keys x (dim + value_dim) plus that approximation,
   for which memory is allocated and released; half precision is copied to float32. */
SHOAL_API shoal_status shoal_error_estimate(shoal_plan *plan, const shoal_inputs *inputs,
                                            const void *out, int64_t samples,
                                            uint64_t seed, shoal_error *error);

#ifdef __cplusplus
}
#endif
#endif
