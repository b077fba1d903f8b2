/* Shoal's models: transformers with any kind of attention, and parts for their training.
 *
 * A model gives logits and takes gradients; losses, clipping, an optimizer, a schedule of
 * the learning rate and files are parts beside it. The data and the loop are yours.
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal_models.h>
 *     #include <stdio.h>
 *
 *     enum { BATCH = 8, LENGTH = 32, ROWS = BATCH * LENGTH, SYMBOLS = 10 };
 *     static int32_t tokens[ROWS], targets[ROWS];
 *     static int64_t offsets[BATCH + 1];                  // 0, LENGTH, 2 LENGTH, ...
 *
 *     int main(void) {
 *         shoal_context *context;
 *         shoal_model *model;
 *         shoal_optimizer *optimizer;
 *         shoal_model_config config = {.vocabulary = SYMBOLS, .outputs = SYMBOLS,
 *                                      .max_length = LENGTH, .layers = 2, .heads = 4,
 *                                      .head_dim = 16, .feed_forward = 128};
 *         if (shoal_context_create(NULL, &context) != SHOAL_OK ||
 *             shoal_attention_parse(context, "auto", &config.attention) ||
 *             shoal_model_create(context, &config, 1, BATCH, ROWS, SHOAL_WITH_BACKWARD,
 *                                &model) ||
 *             shoal_optimizer_create(model, NULL, &optimizer))
 *             return 1;                       // shoal_context_message(context) says why
 *         for (int step = 0; step < 1000; step++) {
 *             // ... fill tokens, targets and offsets with the next batch
 *             shoal_model_inputs inputs = {.batch = BATCH, .offsets = offsets,
 *                                          .tokens = tokens};
 *             float *out;                     // logits, then their gradient
 *             shoal_loss loss;
 *             if (shoal_model_forward(model, &inputs, &out) ||
 *                 shoal_cross_entropy(context, ROWS, SYMBOLS, out, targets, out,
 *                                     &loss) ||
 *                 shoal_model_backward(model, &inputs, out, NULL) ||
 *                 shoal_gradients_clip(model, 10, NULL) ||
 *                 shoal_optimizer_step(optimizer, 0.001))
 *                 return 1;
 *             printf("%d %f\n", step, loss.mean);
 *         }
 *         shoal_model_save(model, "model.safetensors");
 *         shoal_optimizer_destroy(optimizer);
 *         shoal_model_destroy(model);
 *         shoal_context_destroy(context);
 *     }
 *
 * THE RULES, ONCE (those of shoal.h hold too)
 *
 * Layout.   Sequences are packed: the rows of all lie one after another, and offsets
 *           [batch + 1] say where each begins, so padding does not exist. Arrays are
 *           contiguous, float32 or int32.
 * Owners.   What a function creates is yours to destroy; destroying NULL is legal. A
 *           model belongs to its context, a view and an optimizer to their model: destroy
 *           them first. Arrays that a call is given are only read or written during it.
 * Errors.   A function that returns a status refuses NULL where nothing says that it may
 *           be, with SHOAL_INVALID, and changes nothing then.
 * Memory.   What is created allocates then, and says how much (_workspace). Forward,
 *           backward, losses, clipping and steps allocate nothing.
 * Bits.     Every result is a function of the arguments and of the machine's instruction
 *           set and BLAS: the same bits on any number of threads. First weights and
 *           dropout follow from the model's seed; a batch made from its number alone
 *           (shoal_random) needs no state. So a training that goes on from a checkpoint
 *           is the one that was never interrupted, to the last bit.
 * Threads.  As in shoal.h: one context per thread, with all that belongs to it.
 */
#ifndef SHOAL_MODELS_H
#define SHOAL_MODELS_H

#include <stdio.h>

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_MAX_RANK = 8 }; /* of arrays and parameters */

/* ---- Models ----------------------------------------------------------------------- */

typedef enum { SHOAL_NORM_PRE, SHOAL_NORM_POST } shoal_norm;
typedef enum { SHOAL_GELU, SHOAL_RELU } shoal_activation;
typedef enum { SHOAL_SINUSOIDAL, SHOAL_LEARNED, SHOAL_NO_POSITIONS } shoal_positions;
typedef enum { SHOAL_EVERY_ROW, SHOAL_MEAN_ROW, SHOAL_FIRST_ROW } shoal_pooling;

/* What is around the layers. SHOAL_BERT and SHOAL_ROBERTA, as transformers has them:
   tokens, positions (learned) and types are added up, normed and dropped out; the layers
   are post-norm, without dropout inside the feed-forward; and where rows are pooled, a
   product and tanh stand before the output, which has dropout in front of it (RoBERTa:
   that product too). Dropout of the attention's weights is left out. */
typedef enum { SHOAL_PLAIN, SHOAL_BERT, SHOAL_ROBERTA } shoal_form;

/* A stack of encoder layers. In front of it an embedding of tokens, or a product that
   takes features, and positions; behind it a product that gives logits. With vocabulary,
   features and outputs 0 there are the layers alone: rows [model] go in and come out. */
typedef struct {
    int64_t vocabulary;              /* tokens are 0 .. vocabulary - 1; 0: no tokens */
    int64_t features;                /* of an input row, where there are no tokens */
    int64_t outputs;                 /* logits of a row; 0: layers alone */
    int64_t max_length;              /* of one sequence */
    int64_t layers, heads, head_dim; /* model, the features of a row: heads x head_dim */
    int64_t feed_forward;            /* features inside a feed-forward */
    shoal_attention attention;       /* all 0: full */
    int32_t shared_qk;  /* one projection for queries and keys; lsh and shared-full have
                             one in any case */
    int32_t norm;       /* a shoal_norm: before each block, or after its sum */
    int32_t activation; /* a shoal_activation */
    int32_t positions;  /* a shoal_positions; layers alone have none */
    int32_t pooling; /* a shoal_pooling: logits for every row, or for every sequence from
                             the mean of its rows or from its first */
    float dropout;   /* share that training sets to 0: of the input's features, of
                             blocks' outputs and inside the feed-forward */
    int32_t form;    /* a shoal_form */
    int64_t types;   /* BERT's and RoBERTa's: types are 0 .. types - 1; 0: none */
    int64_t convolutions; /* of features, in front of the positions, so many times: x +=
                             dropout(f(conv(norm(x)))) over 3 rows of a sequence, f the
                             activation; 0: none */
    float epsilon;        /* of the layer norms; 0: 1e-5 */
} shoal_model_config;

typedef struct shoal_model shoal_model;

/* First weights are drawn from the seed. Calls may have up to max_batch sequences of
   max_rows rows in all; flags: 0 or SHOAL_WITH_BACKWARD. */
SHOAL_API shoal_status shoal_model_create(shoal_context *context,
                                          const shoal_model_config *config, uint64_t seed,
                                          int64_t max_batch, int64_t max_rows,
                                          unsigned flags, shoal_model **model);
/* Layers alone (no outputs) over sequences of which each rank holds a run of positions,
   as shoal_plan_create_over has them (shoal.h). Rows, offsets, outputs and their
   gradients are this rank's; a layer does everything but its attention row by row. The
   parameters' gradients are this rank's part: the whole is their sum over the ranks. All
   ranks create, forward and backward together, with the same seed and as many sequences.
   Dropout is one process's where there is one sequence and first_row counts the rows of
   the ranks before. */
SHOAL_API shoal_status shoal_model_create_over(shoal_transport *transport,
                                               shoal_context *context,
                                               const shoal_model_config *config,
                                               uint64_t seed, int64_t max_batch,
                                               int64_t max_rows, unsigned flags,
                                               shoal_model **model);
/* The same weights, not a copy of them, under another kind of attention (NULL: the same)
   and other limits; without gradients. A sequence may have max_rows rows, even where that
   is more than the configuration's max_length, unless positions are learned. Refused
   where the kind takes the queries as keys and the weights have projections for both. */
SHOAL_API shoal_status shoal_model_view(shoal_model *model,
                                        const shoal_attention *attention,
                                        int64_t max_batch, int64_t max_rows,
                                        shoal_model **view);
SHOAL_API void shoal_model_destroy(shoal_model *model);
SHOAL_API const shoal_model_config *shoal_model_settings(const shoal_model *model);
SHOAL_API size_t shoal_model_workspace(const shoal_model *model); /* bytes, all told */

typedef struct {
    int64_t batch;          /* sequences */
    const int64_t *offsets; /* [batch + 1]: sequence b is rows offsets[b] ..
                               offsets[b + 1] - 1; offsets[0] is 0 */
    const int32_t *tokens;  /* [rows], where the model has a vocabulary */
    const int32_t *types;   /* [rows], where the model has types; NULL: all 0 */
    const float *features;  /* [rows][features], or of layers alone [rows][model] */
    const int32_t *wanted; /* [wanted_count], increasing: rows whose output is wanted; the
                               last layer leaves out work for the others. NULL: all. Not
                               with pooling, nor while training with dropout */
    int64_t wanted_count;
    int32_t training;   /* nonzero: with dropout, drawn for `step` */
    int32_t accumulate; /* nonzero: backward adds to the gradients that are there */
    int64_t step;
    int64_t first_row, first_sequence; /* of a batch that is divided among processes: how
                                          many are before these. Dropout counts on */
} shoal_model_inputs;

/* *out: [rows][outputs] or, of layers alone, [rows][model], where `rows` are the batch's,
   the wanted ones, or with pooling the sequences. It lies in the model until its next
   call, and you may write over it. */
SHOAL_API shoal_status shoal_model_forward(shoal_model *model,
                                           const shoal_model_inputs *inputs, float **out);
/* After forward with the same inputs. dout: gradient of the loss by *out, in its shape;
   it may be *out itself. Sets the parameters' gradients. dfeatures [rows][model]: of
   layers alone; may be NULL. */
SHOAL_API shoal_status shoal_model_backward(shoal_model *model,
                                            const shoal_model_inputs *inputs,
                                            const float *dout, float *dfeatures);

/* Values and gradients lie in the model and may be read and written between calls;
   gradients is NULL without SHOAL_WITH_BACKWARD. */
typedef struct {
    const char *name; /* "encoder.layers.0.attention.output.weight" */
    int rank;
    int64_t shape[SHOAL_MAX_RANK];
    float *values, *gradients;
} shoal_parameter;
/* Index counts from 0; returns 0 past the last. */
SHOAL_API int shoal_model_parameter(shoal_model *model, int index,
                                    shoal_parameter *parameter);
/* All parameters as one vector, for sums over machines or an optimizer of your own:
   returns its length. Gaps between parameters are 0. values and gradients may be NULL. */
SHOAL_API int64_t shoal_model_vectors(shoal_model *model, float **values,
                                      float **gradients);

/* Called by backward, in its thread, when elements first .. first + count - 1 of the
   gradients' vector are there, so that a sum over machines can begin while the rest is
   computed. Each element is in one such part; they come from the last to the first, a
   layer each. */
typedef void (*shoal_gradient_callback)(void *shared, int64_t first, int64_t count);
/* callback NULL: no longer. Refused where the model has no gradients. */
SHOAL_API shoal_status shoal_model_watch(shoal_model *model,
                                         shoal_gradient_callback callback, void *shared);

/* ---- Losses ------------------------------------------------------------------------ */

/* What every loss gives. */
typedef struct {
    double mean;     /* over what counts; 0 where nothing does */
    int64_t counted; /* how much does */
    int64_t correct; /* of that, right */
} shoal_loss;

enum { SHOAL_IGNORED = -1 }; /* a target that does not count */

/* Cross-entropy, -log softmax(logits)[target]. logits [rows][classes]; targets [rows],
   each 0 .. classes - 1 or SHOAL_IGNORED. gradient [rows][classes]: of the mean; it may
   be the logits, or NULL. Correct is a row whose largest logit (the first of equals) is
   the target's. */
SHOAL_API shoal_status shoal_cross_entropy(shoal_context *context, int64_t rows,
                                           int64_t classes, const float *logits,
                                           const int32_t *targets, float *gradient,
                                           shoal_loss *loss);

/* ---- CTC: labels without alignment ------------------------------------------------- */

/* Connectionist temporal classification (Graves et al. 2006): rows of logits, fewer
   labels, and nobody knows which row is which label. Class 0 is the blank. A sequence of
   classes, one per row, spells the labels that are left when equal neighbours are merged
   and blanks dropped; the loss is -log of the probability of all that spell the right
   ones. */
typedef struct shoal_ctc shoal_ctc;

/* What the loss works in: for batches of up to max_batch sequences, each of up to
   max_rows rows and max_labels labels. Memory: 32 max_rows max_labels bytes per
   thread. */
SHOAL_API shoal_status shoal_ctc_create(shoal_context *context, int64_t classes,
                                        int64_t max_batch, int64_t max_rows,
                                        int64_t max_labels, shoal_ctc **ctc);
SHOAL_API void shoal_ctc_destroy(shoal_ctc *ctc);
SHOAL_API size_t shoal_ctc_workspace(const shoal_ctc *ctc); /* bytes */

typedef struct {
    int64_t batch;                /* sequences */
    const int64_t *offsets;       /* [batch + 1] of rows, from 0 */
    const int32_t *labels;        /* of all sequences, each 1 .. classes - 1 */
    const int64_t *label_offsets; /* [batch + 1] of labels, from 0 */
} shoal_ctc_batch;

typedef struct {
    double sum;                /* of the losses */
    int64_t sequences, labels; /* that are in the sum */
    int64_t impossible; /* sequences too short for their labels: loss 0, gradient 0 */
} shoal_ctc_result;

/* logits [rows][classes], of which the softmax is taken here; a difference of more than a
   million counts as a million. gradient [rows][classes]: of the losses' sum times
   `factor`; it may be the logits, or NULL. losses [batch]: of each sequence; may be NULL.
   Logits that are no numbers make the loss and the sequence's gradient NaN. */
SHOAL_API shoal_status shoal_ctc_loss(shoal_ctc *ctc, const shoal_ctc_batch *batch,
                                      const float *logits, double factor, float *gradient,
                                      double *losses, shoal_ctc_result *result);

/* The labels of the likeliest class of each row (the first of equals). logits
   [rows][classes]; labels and frames have room for `rows` of them. frames, which may be
   NULL: the row at which each label begins. */
SHOAL_API shoal_status shoal_ctc_greedy(shoal_context *context, int64_t rows,
                                        int64_t classes, const float *logits,
                                        int32_t *labels, int32_t *frames, int64_t *count);
/* Prefix beam search: the likeliest labels over all their alignments, of `beams`
   beginnings that are followed side by side; exact when there are no more than that.
   *log_probability, which may be NULL: of the labels, as far as the beams saw it.
   Allocates during the call. */
SHOAL_API shoal_status shoal_ctc_search(shoal_context *context, int64_t rows,
                                        int64_t classes, const float *logits,
                                        int64_t beams, int32_t *labels, int32_t *frames,
                                        int64_t *count, double *log_probability);

/* ---- Errors of a recogniser -------------------------------------------------------- */

/* The fewest edits that make the reference of what was recognised, of equally few those
   with the most substitutions. */
typedef struct {
    int64_t length; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_edits;

/* Adds to *edits. Allocates during the call. */
SHOAL_API shoal_status shoal_count_edits(shoal_context *context, const int32_t *reference,
                                         int64_t reference_count,
                                         const int32_t *recognised,
                                         int64_t recognised_count, shoal_edits *edits);

/* How far an error rate can be trusted, by the bootstrap: the rate of sequences drawn
   with replacement, 10,000 times, and its difference from that of another recogniser on
   the same draws. */
typedef struct {
    double length, wrong;  /* of one sequence */
    double wrong_of_other; /* by what the rate is compared with */
} shoal_sequence_errors;

/* The middle 95 % of the draws, in percent; NaN where there is nothing to draw. */
typedef struct {
    double rate_low, rate_high, difference_low, difference_high;
} shoal_rate_interval;

/* A draw depends on the seed and on `count` alone: it is the same for every rate. */
SHOAL_API shoal_rate_interval shoal_bootstrap_rates(
    const shoal_sequence_errors *sequences, int64_t count, uint64_t seed);

/* ---- Gradient and optimizer -------------------------------------------------------- */

/* Scales the gradients so that their norm over all parameters is at most `limit` (0: no
   limit). *norm, which may be NULL, is that from before. One that is not finite is
   refused: the training has diverged, and a step would spoil the weights. */
SHOAL_API shoal_status shoal_gradients_clip(shoal_model *model, double limit,
                                            double *norm);

typedef enum {
    SHOAL_RADAM,
    SHOAL_ADAM, /* both with decoupled weight decay, beside the gradient */
    SHOAL_RADAM_L2,
    SHOAL_ADAM_L2 /* weight decay as a part of the gradient */
} shoal_optimizer_kind;

/* Step t from 1, gradient g, rate a:
       m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g g, m^ = m / (1 - beta1^t)
       Adam:    p -= a m^ / (sqrt(v / (1 - beta2^t)) + epsilon)
       R-Adam:  rho_inf = 2 / (1 - beta2) - 1, rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
           rho > rectify_above: Adam's, times
               sqrt((rho - 4)(rho - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho))
           else:                p -= a m^
   Weight decay: p -= a weight_decay p, or for L2 weight_decay p as a part of g. Every
   parameter decays. */
typedef struct {
    int32_t kind; /* a shoal_optimizer_kind */
    float beta1, beta2, epsilon, weight_decay;
    float rectify_above; /* R-Adam: 4 as published (Liu et al. 2020); PyTorch has 5 */
    float average;       /* decay of an exponential average of the weights; 0: none */
} shoal_optimizer_config;

/* R-Adam with 0.9, 0.999, 1e-8, a decay of 0.01 and no average. */
SHOAL_API shoal_optimizer_config shoal_optimizer_defaults(void);

typedef struct shoal_optimizer shoal_optimizer;

/* For a model with gradients. config NULL: the defaults. */
SHOAL_API shoal_status shoal_optimizer_create(shoal_model *model,
                                              const shoal_optimizer_config *config,
                                              shoal_optimizer **optimizer);
SHOAL_API void shoal_optimizer_destroy(shoal_optimizer *optimizer);
SHOAL_API size_t shoal_optimizer_workspace(const shoal_optimizer *optimizer);
/* From the model's gradients to its next weights. */
SHOAL_API shoal_status shoal_optimizer_step(shoal_optimizer *optimizer,
                                            double learning_rate);
SHOAL_API int64_t shoal_optimizer_steps(const shoal_optimizer *optimizer); /* taken */
/* What it remembers beside the weights, vectors as shoal_model_vectors has them: returns
   their length. first and second: means of the gradient and of its square; averaged: the
   average of the weights, or NULL. Each argument may be NULL. */
SHOAL_API int64_t shoal_optimizer_vectors(shoal_optimizer *optimizer, float **first,
                                          float **second, float **averaged);
/* While `use` is nonzero the model and its views have the averaged weights, to be
   validated or saved; steps and checkpoints are refused. Without an average nothing
   changes. */
SHOAL_API shoal_status shoal_optimizer_use_average(shoal_optimizer *optimizer, int use);

/* ---- Schedule of the learning rate ------------------------------------------------- */

/* A linear warm-up, and a drop whenever the validation loss stops falling. Fill in what
   you want after shoal_schedule_start. */
typedef struct {
    double rate;      /* after the warm-up and before any drop */
    int64_t warmup;   /* step s of so many, from 1, has rate * s / warmup */
    double factor;    /* a drop multiplies by it; 0 or 1: never drops */
    int64_t patience; /* observations without progress that are forgiven */
    double threshold; /* progress: a loss < best (1 - threshold) */
    double minimum;   /* drops end at this rate */
    double best;      /* state: the smallest loss; infinity before any */
    int64_t waiting;  /* state: observations since then */
    double scale;     /* state: product of the drops */
} shoal_schedule;

/* A constant rate: no warm-up, no drops, threshold 1e-4. */
SHOAL_API shoal_schedule shoal_schedule_start(double rate);
/* The rate of a step, counted from 1. */
SHOAL_API double shoal_schedule_rate(const shoal_schedule *schedule, int64_t step);
/* After a validation; nonzero when the rate was dropped. NaN is no progress. */
SHOAL_API int shoal_schedule_observe(shoal_schedule *schedule, double loss);

/* ---- Files ------------------------------------------------------------------------- */

/* A model, its configuration and weights, as one safetensors file, on disk when the call
   returns; a failure leaves what was at the path. */
SHOAL_API shoal_status shoal_model_save(const shoal_model *model, const char *path);
/* The same with the limits and flags of shoal_model_create. Checkpoints are models
   too. */
SHOAL_API shoal_status shoal_model_load(shoal_context *context, const char *path,
                                        int64_t max_batch, int64_t max_rows,
                                        unsigned flags, shoal_model **model);

/* Text that a file carries for you: settings, counters, the position in the data. */
typedef struct {
    const char *key, *value; /* UTF-8; a key has 1 to 63 bytes and does not begin with
                                "shoal." */
} shoal_note;

/* A model with its optimizer, schedule and your notes, likewise. optimizer and schedule
   may be NULL, and notes if note_count is 0. */
SHOAL_API shoal_status shoal_checkpoint_save(const char *path, const shoal_model *model,
                                             const shoal_optimizer *optimizer,
                                             const shoal_schedule *schedule,
                                             const shoal_note *notes, int64_t note_count);

typedef struct shoal_checkpoint shoal_checkpoint;

/* Opens a model or checkpoint, to look at it and to load from it. */
SHOAL_API shoal_status shoal_checkpoint_open(shoal_context *context, const char *path,
                                             shoal_checkpoint **checkpoint);
SHOAL_API void shoal_checkpoint_close(shoal_checkpoint *checkpoint);
/* The value of a note, valid until the close; NULL where there is none. */
SHOAL_API const char *shoal_checkpoint_note(const shoal_checkpoint *checkpoint,
                                            const char *key);
/* The model's configuration, and the seed that it was created with. */
SHOAL_API shoal_status shoal_checkpoint_config(const shoal_checkpoint *checkpoint,
                                               shoal_model_config *config,
                                               uint64_t *seed);
/* SHOAL_OK where the weights have the names and shapes of a model with this
   configuration. Asked before such a model is created, it keeps a file that claims to be
   large from costing memory. */
SHOAL_API shoal_status shoal_checkpoint_fits(const shoal_checkpoint *checkpoint,
                                             const shoal_model_config *config);
/* Weights into the model, and moments, averages and counts into the optimizer, and the
   schedule's state; optimizer and schedule may be NULL. Settings stay as they are: only
   the names and shapes of the parameters must fit. Everything is checked before anything
   changes, also the file's checksum and that all are finite numbers. */
SHOAL_API shoal_status shoal_checkpoint_load(const shoal_checkpoint *checkpoint,
                                             shoal_model *model,
                                             shoal_optimizer *optimizer,
                                             shoal_schedule *schedule);

/* The weights that the optimizer averaged, where it did, else the last ones: those that
   a validation with shoal_optimizer_use_average has seen. The model needs no
   gradients. */
SHOAL_API shoal_status shoal_checkpoint_load_average(const shoal_checkpoint *checkpoint,
                                                     shoal_model *model);

/* ---- Text: tokens ------------------------------------------------------------------ */

/* The tokenizer of a Hugging Face folder: WordPiece as BERT has it, byte-level BPE as
   RoBERTa and ModernBERT have it, Unigram as XLM-R has it, out of tokenizer.json; the
   first two also out of vocab.txt, or vocab.json and merges.txt. Ids are those of the
   `tokenizers` package. What the file says about truncation and padding is not looked at:
   limits are each call's. */
typedef struct shoal_tokenizer shoal_tokenizer;

SHOAL_API shoal_status shoal_tokenizer_open(shoal_context *context, const char *folder,
                                            shoal_tokenizer **tokenizer);
SHOAL_API void shoal_tokenizer_close(shoal_tokenizer *tokenizer);
SHOAL_API int64_t shoal_tokenizer_size(const shoal_tokenizer *tokenizer); /* ids are below
                                                                              it */

/* Which of two texts gives way where both are too long: the longer one until both are
   equal, then both; the first; the second. */
typedef enum { SHOAL_CUT_LONGEST, SHOAL_CUT_FIRST, SHOAL_CUT_SECOND } shoal_cut;

typedef struct {
    const char *text; /* UTF-8, up to 16 MiB */
    int64_t size;     /* bytes; negative: it ends in 0 */
    const char *pair; /* a second text, or NULL */
    int64_t pair_size;
    int64_t
        most; /* tokens in all, special ones counted; the end is cut off. 0: no limit */
    int32_t cut;  /* a shoal_cut */
    int32_t bare; /* nonzero: without special tokens */
} shoal_text;

/* They lie in the tokenizer until its next call. */
typedef struct {
    int64_t count;
    const int32_t *ids;   /* [count] */
    const int32_t *types; /* [count], 0 or 1 */
    const int32_t *texts; /* [count]: 0 of the text, 1 of the pair, -1 a special token */
    const int64_t *spans; /* [count][2]: first byte, and the one after the last, in the
                             text or pair; 0, 0 for special tokens */
    int64_t left_out;     /* tokens that the limit cut off */
} shoal_tokens;

SHOAL_API shoal_status shoal_tokenizer_encode(shoal_tokenizer *tokenizer,
                                              const shoal_text *text,
                                              shoal_tokens *tokens);

/* ---- Precision of pretrained models ------------------------------------------------ */

/* Precision of a pretrained model's matrices, and of the rows that they multiply. Norms,
   activations and attention are float32. Matrices are converted once, when the model is
   opened. Sizes that are not multiples of 32 stay float32. */
typedef enum {
    SHOAL_PRECISION_AUTO, /* bfloat16 where the processor multiplies it, else float32 */
    SHOAL_PRECISION_FLOAT32,
    SHOAL_PRECISION_BFLOAT16, /* elsewhere half of the memory, and slower */
    SHOAL_PRECISION_INT8 /* weights with a scale per output, rows with a scale and a zero
                            point; exact sums, the same on every processor. Matrices
                            with an extreme weight have the precision of auto; NaN and
                            infinity are errors */
} shoal_precision;

/* ---- Text: encoders ---------------------------------------------------------------- */

/* BERT, RoBERTa (XLM-R, CamemBERT) and ModernBERT as Hugging Face folders: config.json
   and model.safetensors (or its shards; F32, F16, BF16), with any kind of attention. In
   ModernBERT the kind is that of the global layers; the others are local-W. Texts are
   packed: there is no padding. */
typedef struct shoal_text_encoder shoal_text_encoder;

/* How the rows of a text become one vector. */
typedef enum {
    SHOAL_POOL_OWN, /* as modules.json and 1_Pooling/config.json say, with the length 1
                       where they name Normalize; where there are none, the mean. What
                       else they name (Dense, ...) is refused, but for the other poolings,
                       which take the place of all that they say */
    SHOAL_POOL_MEAN,
    SHOAL_POOL_FIRST,
    SHOAL_POOL_MAX
} shoal_text_pooling;

/* What is done with texts that are longer than the window: windows that overlap, whose
   vectors are averaged (by their tokens for the mean; the largest for the max); the
   beginning alone; or one sequence, with the model's positions stretched over it. */
typedef enum { SHOAL_LONG_WINDOWS, SHOAL_LONG_CUT, SHOAL_LONG_STRETCH } shoal_long_texts;

/* All 0 are the defaults. */
typedef struct {
    const char *attention; /* a kind; NULL: full */
    int64_t rows; /* tokens that are worked on at once; 0: 2048 (stretched: 4096), or one
                     window if that is more. A stretched text has no more than these */
    int64_t window;     /* tokens, special ones included; 0: the model's positions;
                           stretched texts have none, and no stride */
    int64_t stride;     /* tokens from one window to the next; 0: half a window */
    int32_t long_texts; /* a shoal_long_texts */
    int32_t pooling;    /* a shoal_text_pooling */
    int32_t normalize;  /* nonzero: vectors have length 1 */
    int32_t precision;  /* a shoal_precision */
} shoal_text_options;

typedef struct {
    const char *type; /* "bert" */
    int64_t layers, heads, size, feed_forward, vocabulary;
    int64_t positions;    /* tokens of the longest text that the model was made for */
    int64_t window, rows; /* as the options say */
    int32_t pooling;
    int32_t precision; /* of the matrices: what auto has chosen */
    size_t workspace;  /* bytes, without the weights */
} shoal_text_info;

/* options NULL: the defaults. */
SHOAL_API shoal_status shoal_text_encoder_open(shoal_context *context, const char *folder,
                                               const shoal_text_options *options,
                                               shoal_text_encoder **encoder);
SHOAL_API void shoal_text_encoder_close(shoal_text_encoder *encoder);
SHOAL_API const shoal_text_info *
shoal_text_encoder_info(const shoal_text_encoder *encoder);

/* Hidden states of tokens. offsets [batch + 1] as for models; ids and types [rows], types
   may be NULL: 0. *hidden: [rows][size], until the next call. A sequence has at most
   info's `window` tokens, or `rows` if stretched, and a call `rows`. */
SHOAL_API shoal_status shoal_text_encoder_forward(shoal_text_encoder *encoder,
                                                  int64_t batch, const int64_t *offsets,
                                                  const int32_t *ids,
                                                  const int32_t *types,
                                                  const float **hidden);

/* One vector for each text, by the folder's tokenizer. texts [count], sizes [count] in
   bytes, or NULL: they end in 0. vectors [count][size]. */
SHOAL_API shoal_status shoal_text_encoder_embed(shoal_text_encoder *encoder,
                                                int64_t count, const char *const *texts,
                                                const int64_t *sizes, float *vectors);

/* ---- Text: models that are trained further ---------------------------------------- */

/* A BERT or RoBERTa folder as a model to be trained. Sizes, form, dropout and epsilon as
   its config.json says; outputs, pooling (SHOAL_FIRST_ROW for a text's class or number,
   SHOAL_EVERY_ROW for tokens') and attention stay as they are in *config. */
SHOAL_API shoal_status shoal_text_model_config(shoal_context *context, const char *folder,
                                               shoal_model_config *config);
/* The folder's weights into a model with such a configuration. Head and output are the
   folder's where it has them in these shapes, and stay as they are where not. */
SHOAL_API shoal_status shoal_text_model_load(shoal_context *context, const char *folder,
                                             shoal_model *model);
/* The weights as transformers names them, float32, to model.safetensors in a folder that
   has the config.json. */
SHOAL_API shoal_status shoal_text_model_save(shoal_context *context, const char *folder,
                                             shoal_model *model);

/* ---- Random numbers ---------------------------------------------------------------- */

/* Bits that are a pure function of (seed, stream, counter): no state to carry, the same
   on every machine. Streams keep the uses of one seed apart; yours never meet the
   library's. */
SHOAL_API uint64_t shoal_random(uint64_t seed, uint32_t stream, uint64_t counter);
/* Uniform in 0 .. bound - 1; 0 if the bound is 0. */
SHOAL_API uint64_t shoal_random_below(uint64_t seed, uint32_t stream, uint64_t counter,
                                      uint64_t bound);

/* The finaliser of splitmix64, a bijection of 64 bits that mixes well. */
SHOAL_API uint64_t shoal_random_mix(uint64_t x);

/* ---- Files that appear whole or not at all ----------------------------------------- */

/* What is written goes to a temporary file beside the path, .shoal-PROCESS-N.tmp, which
   takes the path's place at the end; until then, and after a failure, what was there
   stays. An old file's permissions are kept. Where a symbolic link leads to a file, there
   already or not, that is replaced rather than the link. Pipes, devices and descriptors
   (/dev/stdout, /dev/fd/5) are written directly. All that Shoal saves is written so. */
typedef struct shoal_replacement shoal_replacement;

/* Before a file takes its place: how much of it the disk must have. */
typedef enum {
    SHOAL_SYNC_NONE, /* the system writes it when it likes */
    SHOAL_SYNC_DATA, /* all bytes */
    SHOAL_SYNC_NAME  /* and the name: after a loss of power there is one of both files */
} shoal_sync;

/* context may be NULL. After a failure of these functions errno says why, too. */
SHOAL_API shoal_status shoal_replacement_create(shoal_context *context, const char *path,
                                                shoal_replacement **replacement);
/* What to write to, until the commit; nobody else closes it. */
SHOAL_API FILE *shoal_replacement_file(const shoal_replacement *replacement);
/* Puts the file in its place; once. */
SHOAL_API shoal_status shoal_replacement_commit(shoal_replacement *replacement,
                                                shoal_sync sync);
/* Without a commit, or after one that failed, nothing of it remains. */
SHOAL_API void shoal_replacement_destroy(shoal_replacement *replacement);

/* The file that a path leads to, there or not yet: links are followed, also one that
   leads nowhere. 0 with errno where it does not fit into target [size], or links go
   round. */
SHOAL_API int shoal_file_target(const char *path, char *target, size_t size);

/* ---- Arrays in files (.npy) -------------------------------------------------------- */

typedef struct {
    shoal_dtype dtype;
    int rank;
    int64_t shape[SHOAL_MAX_RANK];
    void *data;           /* C order */
    void *mapping;        /* private to shoal_array_read and shoal_array_release; */
    size_t mapping_bytes; /* leave both 0 in arrays of your own */
} shoal_array;

/* Reads a .npy file of version 1 to 3: little-endian float32, float16 or int32 in C
   order. Other types, orders, truncated files and impossible shapes are SHOAL_BAD_FILE
   with the reason. The data is a private, writable mapping of the file: opening is
   immediate, and pages come from disk as they are touched. shoal_array_release gives it
   back. */
SHOAL_API shoal_status shoal_array_read(shoal_context *context, const char *path,
                                        shoal_array *array);
SHOAL_API void shoal_array_release(shoal_array *array); /* an all-zero array is legal */

/* Writes through a temporary file beside the path, then renames: a failure leaves
   whatever was there before. */
SHOAL_API shoal_status shoal_array_write(shoal_context *context, const char *path,
                                         const shoal_array *array);

#ifdef __cplusplus
}
#endif
#endif
