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
 *         if (shoal_attend(context, "i-clustered-100", &problem, &inputs, out) != SHOAL_OK)
 *             return 1;                       // shoal_context_message(context) says why
 *         shoal_context_destroy(context);
 *     }
 *
 * THE RULES, ONCE
 *
 * Layout.   Arrays are float32, indexed [batch][head][position][feature]; features are
 *           contiguous, the other three strides are free (in elements; all three zero
 *           means contiguous in that order). [batch][position][head][feature] and packed
 *           sequences are only strides and need no copy. Nothing outside the elements
 *           that shape and strides name is ever read or written.
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
 *           context. A call itself runs on the context's OpenMP threads.
 * Memory.   A plan allocates when it is created and tells how much; running it
 *           allocates nothing, and fails only by refusing its arguments.
 * Limits.   Positions in one sequence: 2^31 - 1. dim, value_dim: 1 to 65536. clusters,
 *           topk: 1 to 65535 (topk of an oracle too). bits: 1 to 255. rounds: 1 to 255.
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
#define SHOAL_VERSION_MINOR 1
#define SHOAL_VERSION_PATCH 0
#define SHOAL_VERSION "0.1.0"

/* The version of the library that is running, such as "0.1.0". */
SHOAL_API const char *shoal_version(void);

/* ---- Status ----------------------------------------------------------------------- */

typedef enum {
    SHOAL_OK = 0,
    SHOAL_INVALID = 1,   /* an argument that cannot be honoured: shapes, spelling, ranges */
    SHOAL_BAD_FILE = 2,  /* a file whose content is not what it should be */
    SHOAL_IO = 3,        /* the system refused to read or write */
    SHOAL_NO_MEMORY = 4  /* an allocation failed; nothing was leaked */
} shoal_status;

/* A short name for a status, such as "out of memory". Never NULL. */
SHOAL_API const char *shoal_status_text(shoal_status status);

/* ---- Context ---------------------------------------------------------------------- */

typedef struct shoal_context shoal_context;

typedef struct {
    int threads;     /* 0: as many as OpenMP offers (OMP_NUM_THREADS is honoured) */
    const char *isa; /* "scalar", "avx2", "avx512", "neon"; NULL: the environment variable
                        SHOAL_ISA if set and not empty, else the best that runs here */
    /* The caller's allocator, or NULL for malloc and free. Blocks need malloc's
       alignment only; NULL from allocate is an ordinary, reported failure. */
    void *(*allocate)(void *user, size_t bytes);
    void (*release)(void *user, void *block);
    void *user;
    int crossover;   /* for auto: positions from which shoal-100 takes less time than full,
                        64 features a head. 0: the environment variable SHOAL_CROSSOVER if
                        set and not empty, else 450; shoal_measure_crossover measures it */
} shoal_options;

/* options may be NULL. Like a database handle, *context is set even when the options are
   refused, so that the message can be read; it must be destroyed, and every other use of
   it is refused. It is NULL only when memory ran out. */
SHOAL_API shoal_status shoal_context_create(const shoal_options *options,
                                            shoal_context **context);
SHOAL_API void shoal_context_destroy(shoal_context *context); /* NULL is legal */

/* What was wrong in the last call that failed; "" before any. Valid until the next call. */
SHOAL_API const char *shoal_context_message(const shoal_context *context);
SHOAL_API int shoal_context_threads(const shoal_context *context);
SHOAL_API const char *shoal_context_isa(const shoal_context *context);
SHOAL_API int shoal_context_crossover(const shoal_context *context);

/* Times both sides on this machine, for about a quarter of a second, and sets the context's
   crossover to what it found. What auto picks is a function of that number, the problem
   and, with a tolerance, the inputs: keep the number and you keep the choices. */
SHOAL_API shoal_status shoal_measure_crossover(shoal_context *context);

/* ---- Kinds of attention ----------------------------------------------------------- */

typedef enum {
    SHOAL_FULL,        /* full             softmax(scale Q K') V                         */
    SHOAL_SHARED_FULL, /* shared-full      full with K = Q                               */
    SHOAL_CLUSTERED,   /* clustered-C      one attention per group of queries            */
    SHOAL_I_CLUSTERED, /* i-clustered-C    and the topk keys of a group exactly per query */
    SHOAL_LSH,         /* lsh-R            Reformer's hashing, R rounds, K = Q           */
    SHOAL_ORACLE_TOP,  /* oracle-top-k     only the k best keys of each query            */
    SHOAL_SHOAL,       /* shoal-C          i-clustered with groups=keys,normaliser=query */
    SHOAL_AUTO         /* auto             full or shoal-C, whichever suits the problem  */
} shoal_kind;

/* How queries are grouped: by hashes of the queries and Hamming k-means, as the paper
   does; or by k-means in the metric of the keys, where two queries are near when they
   attend alike. */
typedef enum { SHOAL_GROUPS_HASH, SHOAL_GROUPS_KEYS } shoal_grouping;

/* What makes the top keys' weights comparable with the rest: the group's mass, as the
   paper does; or each query's own scores, one softmax over its exact top keys and its
   group's other keys. */
typedef enum { SHOAL_NORMALISER_CLUSTER, SHOAL_NORMALISER_QUERY } shoal_normaliser;

/* One attention, spelled as text: "i-clustered-100:topk=32,bits=63,iterations=10,seed=1",
   "i-clustered-100:groups=keys,normaliser=query,rank=16", "shoal-100:topk=64",
   "auto:tolerance=0.1". Fields that a kind does not use are 0 after parsing and ignored
   elsewhere. */
typedef struct {
    shoal_kind kind;
    int32_t clusters;   /* C */
    int32_t topk;       /* k: keys per group (or, for the oracle, per query) kept exactly */
    int32_t bits;       /* B: bits of a query's hash */
    int32_t iterations; /* L: Lloyd iterations */
    int32_t rounds;     /* R: hashing rounds of lsh */
    int32_t rank;       /* directions that groups=keys looks at */
    int32_t groups;     /* a shoal_grouping */
    int32_t normaliser; /* a shoal_normaliser */
    float tolerance;    /* auto: the relative error to stay below; 0: none was asked for */
    uint64_t seed;
} shoal_attention;

/* One row per kind, for help texts and tables; index counts from 0, NULL past the end. */
typedef struct {
    const char *name;     /* "i-clustered-C" */
    const char *defaults; /* the spelling with every default shown */
    const char *cost;     /* operations for N queries, S keys */
    const char *summary;
} shoal_kind_info;
SHOAL_API const shoal_kind_info *shoal_kind_describe(int index);

/* Reads a spelling; the message names the part that was wrong. */
SHOAL_API shoal_status shoal_attention_parse(shoal_context *context, const char *text,
                                             shoal_attention *attention);

/* Writes the shortest spelling that parses back to the same attention, always ending in
   0 when size > 0. Returns the length it has in full, as snprintf does. */
SHOAL_API size_t shoal_attention_print(const shoal_attention *attention, char *text,
                                       size_t size);

/* ---- Problems and plans ----------------------------------------------------------- */

typedef struct {
    int64_t batch, head, position; /* in elements; all zero: contiguous */
} shoal_strides;

typedef struct {
    int64_t batch, heads;
    int64_t kv_heads;      /* 0: as many as heads; otherwise a divisor of heads: query head
                              h uses key/value head h / (heads / kv_heads) */
    int64_t queries, keys; /* N and S: positions, the longest sequence's when packed */
    int64_t dim, value_dim;
    float scale;           /* scores are multiplied by it; 0: 1/sqrt(dim) */
    int packed;            /* nonzero: sequences lie one after another, [position][head]
                              [feature] unless the strides say otherwise; the inputs carry
                              offsets, and the batch strides are not used */
    shoal_strides q, k, v, out; /* gradients have the strides of what they belong to */
} shoal_problem;

enum { SHOAL_WITH_BACKWARD = 1 }; /* plan for shoal_backward as well */

typedef struct shoal_plan shoal_plan;

/* Checks that the attention can do the problem, and reserves all memory for it. */
SHOAL_API shoal_status shoal_plan_create(shoal_context *context, const shoal_problem *problem,
                                         const shoal_attention *attention, unsigned flags,
                                         shoal_plan **plan);
SHOAL_API void shoal_plan_destroy(shoal_plan *plan); /* NULL is legal */

/* Bytes that the plan holds, all told; and how much of them is the state below. */
SHOAL_API size_t shoal_plan_workspace(const shoal_plan *plan);
SHOAL_API size_t shoal_plan_state_size(const shoal_plan *plan);

typedef struct {
    const float *q;  /* [batch][heads][queries][dim] */
    const float *k;  /* [batch][kv_heads][keys][dim]; NULL for shared-full and lsh, whose
                        keys are the queries */
    const float *v;  /* [batch][kv_heads][keys][value_dim] */
    const int64_t *query_lengths, *key_lengths; /* [batch], or NULL: all positions live */
    const int64_t *query_offsets, *key_offsets; /* [batch + 1], packed problems only:
                        sequence b has positions offsets[b] .. offsets[b + 1] - 1 */
    const int32_t *groups; /* [batch][heads][queries], each in 0 .. clusters - 1 where the
                        position is live; NULL: the kind finds the groups itself */
    void *state;     /* NULL: the plan's own. Else state_size bytes, aligned to 64, that
                        forward fills and backward reads: one plan, many layers */
} shoal_inputs;

/* out: [batch][heads][queries][value_dim]. */
SHOAL_API shoal_status shoal_forward(shoal_plan *plan, const shoal_inputs *inputs, float *out);

typedef struct {
    const float *out;  /* what forward gave for the same inputs and state */
    const float *dout; /* gradient of the loss with respect to it, with its strides */
    float *dq, *dk, *dv; /* outputs, overwritten; any may be NULL. Where the keys are the
                            queries, dq is the whole gradient and dk is set to 0 */
} shoal_gradients;

/* After forward with the same inputs (and state). Groups, hashes and the choice of top
   keys are constants; everything else is differentiated exactly. */
SHOAL_API shoal_status shoal_backward(shoal_plan *plan, const shoal_inputs *inputs,
                                      const shoal_gradients *gradients);

/* What the last forward into this state (NULL: the plan's own) used.
   groups:   [batch][heads][queries], -1 in the padding; NULL for kinds without groups.
   top keys: [batch][heads][clusters][topk], best first, -1 where there are fewer: a group
             of one query, which is exact without, has none; NULL for kinds without. For
             auto both are NULL. */
SHOAL_API const int32_t *shoal_plan_groups(const shoal_plan *plan, const void *state);
SHOAL_API const int32_t *shoal_plan_top_keys(const shoal_plan *plan, const void *state);

/* The attention that the last forward into this state (NULL: the plan's own) really was:
   what auto picked, or the plan's own kind. Before any forward, auto with a tolerance has
   picked nothing yet and this is full.
   auto compares what full and shoal-100 would cost at the plan's sizes. With a tolerance it
   groups the queries, computes the exact attention of some queries of every head, and
   takes the smallest topk of shoal-C whose error on them is well below the tolerance, or
   full if that costs no more. It is an estimate, as shoal_error_estimate is: not a bound. */
SHOAL_API shoal_status shoal_plan_picked(const shoal_plan *plan, const void *state,
                                         shoal_attention *picked);

/* All of the above in one call: parse, plan, forward, destroy. */
SHOAL_API shoal_status shoal_attend(shoal_context *context, const char *kind,
                                    const shoal_problem *problem, const shoal_inputs *inputs,
                                    float *out);

/* The real error of an output: exact attention, in double precision, for `samples` live
   queries (seeded; all of them if there are no more), compared with the same rows of
   `out`. The exact attention of lsh has its keys: unit-length queries. For kinds with
   groups, queries are drawn more often where a better approximation, shoal-C with four
   times the top keys, differs from `out`, and counted less; so few samples tell even an
   error that a handful of queries carry. Costs samples x keys x (dim + value_dim), and
   that approximation, for which memory is allocated and given back. */
typedef struct {
    int64_t samples;       /* queries compared */
    double relative_error; /* |out - exact| / |exact|, both as one long vector; 0 for 0/0 */
    double largest_error;  /* the largest absolute difference among them */
} shoal_error;
SHOAL_API shoal_status shoal_error_estimate(shoal_plan *plan, const shoal_inputs *inputs,
                                            const float *out, int64_t samples, uint64_t seed,
                                            shoal_error *error);

/* ---- Arrays in files (.npy) ------------------------------------------------------- */

typedef enum { SHOAL_FLOAT32, SHOAL_INT32 } shoal_dtype;

enum { SHOAL_MAX_RANK = 8 };

typedef struct {
    shoal_dtype dtype;
    int rank;
    int64_t shape[SHOAL_MAX_RANK];
    void *data; /* C order */
    void *mapping;        /* private to shoal_array_read and shoal_array_release; */
    size_t mapping_bytes; /* leave both 0 in arrays of your own */
} shoal_array;

/* Reads a .npy file of version 1 to 3: little-endian float32 or int32 in C order. Other
   types, orders, truncated files and impossible shapes are SHOAL_BAD_FILE with the reason.
   The data is a private, writable mapping of the file: opening is immediate, and pages
   come from disk as they are touched. shoal_array_release gives it back. */
SHOAL_API shoal_status shoal_array_read(shoal_context *context, const char *path,
                                        shoal_array *array);
SHOAL_API void shoal_array_release(shoal_array *array); /* an all-zero array is legal */

/* Writes through a temporary file beside the path, then renames: a failure leaves
   whatever was there before. */
SHOAL_API shoal_status shoal_array_write(shoal_context *context, const char *path,
                                         const shoal_array *array);

/* ---- Models and training ---------------------------------------------------------- */

/* In builds with OpenBLAS, jansson and the libraries of speech; other builds have nothing
   from here on.

   A model is a stack of encoder layers over packed sequences: the rows of all sequences
   lie one after another, so padding does not exist. In front of the layers stands an
   embedding of tokens with positions, behind them a product that gives logits. With
   vocabulary and outputs 0 there are the layers alone: features [rows][model] go in and
   come out. */
typedef enum { SHOAL_NORM_PRE, SHOAL_NORM_POST } shoal_norm;
typedef enum { SHOAL_GELU, SHOAL_RELU } shoal_activation;
typedef enum { SHOAL_SINUSOIDAL, SHOAL_LEARNED, SHOAL_NO_POSITIONS } shoal_positions;

typedef struct {
    int64_t vocabulary;   /* tokens are 0 .. vocabulary - 1; 0: layers alone */
    int64_t outputs;      /* logits of a row; 0: layers alone */
    int64_t max_length;   /* of one sequence */
    int64_t layers, heads, head_dim; /* model, the features of a row: heads x head_dim */
    int64_t feed_forward; /* features inside a feed-forward */
    shoal_attention attention;
    int32_t shared_qk;    /* one projection for queries and keys; lsh and shared-full have
                             one in any case */
    int32_t norm;         /* a shoal_norm: before each block, or after its sum */
    int32_t activation;   /* a shoal_activation */
    int32_t positions;    /* a shoal_positions; without tokens there are none */
    float dropout;        /* share that training sets to 0: of the input's features, of
                             blocks' outputs and inside the feed-forward */
} shoal_model_config;

typedef struct shoal_model shoal_model;

/* Weights are drawn from the seed. Calls may have up to max_batch sequences of max_rows
   rows in all; flags: SHOAL_WITH_BACKWARD. */
SHOAL_API shoal_status shoal_model_create(shoal_context *context,
                                          const shoal_model_config *config, uint64_t seed,
                                          int64_t max_batch, int64_t max_rows,
                                          unsigned flags, shoal_model **model);
SHOAL_API void shoal_model_destroy(shoal_model *model); /* NULL is legal */
/* Bytes that the model holds, all told. */
SHOAL_API size_t shoal_model_workspace(const shoal_model *model);

typedef struct {
    int64_t batch;          /* sequences */
    const int64_t *offsets; /* [batch + 1]: sequence b is rows offsets[b] ..
                               offsets[b + 1] - 1; offsets[0] is 0 */
    const int32_t *tokens;  /* [rows], where the model has a vocabulary */
    const float *features;  /* [rows][model], where it has none */
    int32_t training;       /* nonzero: with dropout, drawn for `step` */
    int64_t step;
} shoal_model_inputs;

/* *out is the model's own until the next call: [rows][outputs] or [rows][model]. */
SHOAL_API shoal_status shoal_model_forward(shoal_model *model,
                                           const shoal_model_inputs *inputs,
                                           const float **out);
/* After forward with the same inputs. dout has the shape of out and may be changed.
   Parameters' gradients are overwritten; dfeatures [rows][model] may be NULL. */
SHOAL_API shoal_status shoal_model_backward(shoal_model *model,
                                            const shoal_model_inputs *inputs, float *dout,
                                            float *dfeatures);

/* Values and gradients lie in the model and may be read and written between calls;
   gradients is NULL without SHOAL_WITH_BACKWARD. Returns 0 past the last index. */
typedef struct {
    const char *name; /* "encoder.layers.0.attention.output.weight" */
    int rank;
    int64_t shape[SHOAL_MAX_RANK];
    float *values, *gradients;
} shoal_parameter;
SHOAL_API int shoal_model_parameter(shoal_model *model, int index,
                                    shoal_parameter *parameter);

/* A trainer has a task, which makes batches and says what is right, a model and an
   optimizer. Everything it does is a function of the configuration and the machine (its
   instruction set, its BLAS): the same curve to the last bit on any number of threads,
   and after any number of resumptions. */
typedef enum {
    SHOAL_RADAM,
    SHOAL_ADAM, /* both with decoupled weight decay, beside the gradient */
    SHOAL_RADAM_L2,
    SHOAL_ADAM_L2 /* weight decay as a part of the gradient */
} shoal_optimizer;
typedef enum { SHOAL_LOSS_MASKED, SHOAL_LOSS_ALL } shoal_loss;

typedef struct {
    char task[16];            /* "copy" */
    int64_t length;           /* copy: symbols of w in 0w0w */
    int32_t loss;             /* a shoal_loss: over masked positions, or over all */
    shoal_model_config model; /* vocabulary, outputs, max_length are the task's */
    int32_t optimizer;        /* a shoal_optimizer */
    float learning_rate, beta1, beta2, epsilon;
    float weight_decay;       /* per step and learning rate */
    float clip;               /* of the gradient's norm over all parameters; 0: none */
    int64_t warmup;           /* steps until the learning rate is whole */
    int64_t plateau_patience; /* so many validations in a row without a lower loss (by
                                 a ten thousandth) are forgiven; the next multiplies
                                 the rate by plateau_factor, down to a thousandth; 0:
                                 never */
    float plateau_factor;
    float average;            /* decay of the averaged weights, which are then what is
                                 validated; 0: none */
    int64_t batch, steps;
    int64_t validate_every, validate_batches; /* fresh batches every so many steps */
    int64_t stop_after;       /* finished after so many validations in a row without a
                                 mistake; 0: only after all steps */
    uint64_t seed;
} shoal_train_config;

/* The paper's settings for a task. */
SHOAL_API shoal_status shoal_train_defaults(shoal_context *context, const char *task,
                                            shoal_train_config *config);

/* Fields by name, as text: for flags, files and tables. index counts from 0, NULL past
   the end; set names what was wrong; get prints as snprintf does. */
typedef struct {
    const char *name, *summary;
} shoal_train_field;
SHOAL_API const shoal_train_field *shoal_train_describe(int index);
SHOAL_API shoal_status shoal_train_set(shoal_context *context, shoal_train_config *config,
                                       const char *name, const char *text);
SHOAL_API size_t shoal_train_get(const shoal_train_config *config, int index, char *text,
                                 size_t size);

/* The configuration that a checkpoint was made with. */
SHOAL_API shoal_status shoal_train_read(shoal_context *context, const char *path,
                                        shoal_train_config *config);

typedef struct shoal_trainer shoal_trainer;

SHOAL_API shoal_status shoal_trainer_create(shoal_context *context,
                                            const shoal_train_config *config,
                                            shoal_trainer **trainer);
SHOAL_API void shoal_trainer_destroy(shoal_trainer *trainer); /* NULL is legal */

/* Weights, optimizer, averages, schedule and position in the data as one safetensors
   file, on disk when the call returns; a failure leaves what was at the path. */
SHOAL_API shoal_status shoal_trainer_save(shoal_trainer *trainer, const char *path);
/* Goes on where the checkpoint was. One of another configuration is refused with the
   first field that differs; `steps` alone may. */
SHOAL_API shoal_status shoal_trainer_resume(shoal_trainer *trainer, const char *path);

typedef struct {
    double loss;     /* mean over the positions of the loss */
    double accuracy; /* share of the masked positions that are right */
    int64_t correct, counted; /* masked positions */
} shoal_score;

typedef struct {
    shoal_score score;    /* of the batch, before the step */
    double gradient_norm; /* before clipping */
    double learning_rate;
} shoal_train_step;

/* One batch: forward, backward, optimizer. Allocates nothing. */
SHOAL_API shoal_status shoal_trainer_step(shoal_trainer *trainer, shoal_train_step *step);
/* validate_batches fresh batches. After a multiple of validate_every steps the schedule
   and the rule for stopping see the score; a closing one decides nothing. */
SHOAL_API shoal_status shoal_trainer_validate(shoal_trainer *trainer, shoal_score *score);
/* Another kind of attention (NULL: the trained one) with the same weights, on `batches`
   batches that neither training nor validation sees; 0: only whether the weights can do
   with it. Changes nothing. */
SHOAL_API shoal_status shoal_trainer_evaluate(shoal_trainer *trainer,
                                              const shoal_attention *attention,
                                              int64_t batches, shoal_score *score);

typedef struct {
    int64_t step;        /* done */
    int64_t validations; /* done, those that decide something */
    int64_t perfect;     /* latest validations in a row without a mistake */
    int32_t validate;    /* nonzero: validate before the next step */
    int32_t finished;    /* nonzero: all steps done, or stop_after reached */
    double seconds;      /* spent in steps and validations, earlier runs included */
} shoal_train_progress;
SHOAL_API shoal_train_progress shoal_trainer_progress(const shoal_trainer *trainer);
SHOAL_API const shoal_train_config *shoal_trainer_config(const shoal_trainer *trainer);
SHOAL_API shoal_model *shoal_trainer_model(shoal_trainer *trainer);
/* Bytes that the trainer holds, model and optimizer included. */
SHOAL_API size_t shoal_trainer_workspace(const shoal_trainer *trainer);

/* ---- Speech ------------------------------------------------------------------------ */

/* Whisper, whole: recordings become text, and any kind of attention runs the encoder. In
   builds without the models' libraries these functions are absent.

       shoal_speech *speech;
       const char *path = "talk.flac";
       shoal_recording talk = {.paths = &path, .files = 1};
       shoal_speech_open(context, "ggml-tiny.bin", NULL, &speech);
       shoal_speech_transcribe(speech, &talk, NULL, print_segment, NULL, NULL);
       shoal_speech_close(speech); */
typedef struct shoal_speech shoal_speech;

typedef struct {
    const char *attention; /* of the encoder; NULL: full */
    int beams;             /* most texts that a search follows side by side, 1 to 64;
                              0: 5, which the samples of a fallback need */
} shoal_speech_options;

/* Opens a model: a ggml file as whisper.cpp reads it (f32 or f16), or a Hugging Face
   folder. options may be NULL. The context must outlive it. */
SHOAL_API shoal_status shoal_speech_open(shoal_context *context, const char *path,
                                         const shoal_speech_options *options,
                                         shoal_speech **speech);
SHOAL_API void shoal_speech_close(shoal_speech *speech); /* NULL is legal */

/* Another attention for the encoder; when it is refused the one before stays. */
SHOAL_API shoal_status shoal_speech_set_attention(shoal_speech *speech,
                                                  const char *attention);

typedef struct {
    int32_t mels, frames;     /* features of a window of 30 s: [mels][frames] */
    int32_t positions, width; /* the encoder's output: [positions][width] */
    int32_t heads, layers;    /* of the encoder */
    int32_t text_positions, text_layers, vocabulary;
    int32_t multilingual;     /* 0: English only */
    size_t bytes;             /* of memory, without the mapped file */
} shoal_speech_info;
SHOAL_API shoal_speech_info shoal_speech_describe(const shoal_speech *speech);

/* What is listened to: files (WAV, FLAC, OGG, MP3 ..., any rate and channels), one after
   another with `gap` seconds of silence between; or samples in memory. Files are read
   as they are needed: memory does not grow with their length. */
typedef struct {
    const char *const *paths; /* [files] */
    int files;                /* 0: the samples below */
    double gap;
    const float *samples;     /* [sample_count], mono, 16 kHz */
    int64_t sample_count;
} shoal_recording;

/* The steps one by one. Features of the 30 s from `begin` seconds on, padded with silence
   (features: [mels][frames]; *seconds: how much of it is recording, may be NULL); the
   encoder (encoded: [positions][width]); and the decoder's logits after each token of a
   text (logits: [count][vocabulary], 1 <= count <= text_positions). */
SHOAL_API shoal_status shoal_speech_features(shoal_speech *speech,
                                             const shoal_recording *recording,
                                             double begin, float *features,
                                             double *seconds);
SHOAL_API shoal_status shoal_speech_encode(shoal_speech *speech, const float *features,
                                           float *encoded);
SHOAL_API shoal_status shoal_speech_logits(shoal_speech *speech, const float *encoded,
                                           const int32_t *tokens, int64_t count,
                                           float *logits);

/* All zero is the published decoding: language detected, greedy with timestamps, other
   temperatures where the text repeats itself or is unlikely, silence left out, each window
   told what was said before. */
typedef struct {
    const char *language; /* "en", "english" ...; NULL: detected in the first window */
    int translate;        /* nonzero: into English */
    int beams;            /* 0 or 1: greedy; more: beam search */
    int no_timestamps;    /* nonzero: one segment per window of 30 s */
    int no_context;       /* nonzero: every window begins afresh */
    int no_fallback;      /* nonzero: temperature 0 only, and nothing taken for silence */
    uint64_t seed;        /* of the samples at temperatures above 0 */
    /* Called after each window with the seconds done and those that the file names; may be
       NULL. */
    void (*progress)(void *user, double done, double all);
} shoal_transcribe_options;

typedef struct {
    double begin, end;     /* seconds */
    const char *text;      /* UTF-8 as the model wrote it, a leading space included */
    const int32_t *tokens; /* [token_count], timestamps included */
    int64_t token_count;
    double temperature, mean_logprob, no_speech; /* of the window it comes from */
    double compression; /* bytes of the window's text over those of zlib; a high value is a
                           text that repeats itself */
} shoal_segment;

/* Called for every segment in order; what it points to lives until it returns. Not 0: stop
   here, which is no error. */
typedef int shoal_segment_function(void *user, const shoal_segment *segment);

typedef struct {
    char language[16];           /* code; "en" for English-only models */
    double language_probability; /* 1 when it was given */
    double seconds;              /* of the recording that were gone through */
    double encoder_seconds, decoder_seconds; /* time they took */
    int64_t windows, fallbacks, silent;      /* windows; decoded again; left out */
    int64_t tokens;                          /* sampled in the end */
} shoal_transcription;

/* options, segment and summary may be NULL; user goes to both callbacks. */
SHOAL_API shoal_status shoal_speech_transcribe(shoal_speech *speech,
                                               const shoal_recording *recording,
                                               const shoal_transcribe_options *options,
                                               shoal_segment_function *segment, void *user,
                                               shoal_transcription *summary);

typedef struct {
    int64_t words; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_word_errors;

/* Adds the word errors of a text to *errors, after the usual normalisation of English on
   both sides: lower case, no punctuation, numbers as digits, contractions and titles
   spelled out, American spelling. */
SHOAL_API shoal_status shoal_count_word_errors(shoal_context *context,
                                               const char *reference, const char *text,
                                               shoal_word_errors *errors);

#ifdef __cplusplus
}
#endif
#endif
