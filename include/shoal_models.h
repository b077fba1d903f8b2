/* Shoal's models: transformers with any kind of attention, and the parts to train them.
 *
 * A model computes logits and gradients. Losses, gradient clipping, an optimizer, a
 * learning-rate schedule and files are separate parts. The data and the training loop are
 * yours (shoal_train.h has both). The second half of this header has tokenizers and text
 * encoders that read Hugging Face folders.
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
 *     static shoal_status step(shoal_context *context, shoal_model *model,
 *                              shoal_optimizer *optimizer, shoal_loss *loss) {
 *         shoal_model_inputs inputs = {.size = sizeof inputs, .batch = BATCH,
 *                                      .offsets = offsets, .tokens = tokens};
 *         float *out;                             // logits, then their gradient
 *         shoal_status status = shoal_model_forward(model, &inputs, &out);
 *         if (status == SHOAL_OK)
 *             status = shoal_cross_entropy(context, ROWS, SYMBOLS, out, targets, out,
 *                                          loss);
 *         if (status == SHOAL_OK)
 *             status = shoal_model_backward(model, &inputs, out, NULL);
 *         if (status == SHOAL_OK) status = shoal_gradients_clip(model, 10, NULL);
 *         return status == SHOAL_OK ? shoal_optimizer_step(optimizer, 0.001) : status;
 *     }
 *
 *     int main(void) {
 *         shoal_context *context = NULL;
 *         shoal_model *model = NULL;
 *         shoal_optimizer *optimizer = NULL;
 *         shoal_loss loss = {0};
 *         shoal_model_config config = {.size = sizeof config, .vocabulary = SYMBOLS,
 *                                      .outputs = SYMBOLS, .max_length = LENGTH,
 *                                      .layers = 2, .heads = 4, .head_dim = 16,
 *                                      .feed_forward = 128};
 *         shoal_status status = shoal_context_create(NULL, &context);
 *         if (status == SHOAL_OK)
 *             status = shoal_attention_parse(context, "auto", &config.attention);
 *         if (status == SHOAL_OK)
 *             status = shoal_model_create(context, &config, 1, BATCH, ROWS,
 *                                         SHOAL_WITH_BACKWARD, &model);
 *         if (status == SHOAL_OK)
 *             status = shoal_optimizer_create(model, NULL, &optimizer);
 *         for (int i = 0; i < 1000 && status == SHOAL_OK; i++)
 *             // ... fill tokens, targets and offsets with the next batch
 *             status = step(context, model, optimizer, &loss);
 *         if (status == SHOAL_OK)
 *             status = shoal_model_save(model, "model.safetensors");
 *         if (status == SHOAL_OK)
 *             printf("last loss %f\n", loss.mean);
 *         else
 *             fprintf(stderr, "%s\n", shoal_context_message(context));
 *         shoal_optimizer_destroy(optimizer);
 *         shoal_model_destroy(model);
 *         shoal_context_destroy(context);
 *         return status != SHOAL_OK;
 *     }
 *
 * THE RULES, ONCE (those of shoal.h hold too)
 *
 * Layout.   Sequences are packed: their rows follow each other without padding, and
 *           offsets [batch + 1] mark where each one begins. Arrays are contiguous,
 *           float32 or int32.
 * Owners.   Destroy what you create; destroying NULL is valid. A model belongs to its
 *           context, a view and an optimizer to their model: destroy them first. A call
 *           accesses the arrays that it is given only until it returns.
 * Errors.   A function that returns a status refuses NULL with SHOAL_INVALID, and changes
 *           nothing, unless its description says that an argument may be NULL.
 * Memory.   Objects allocate when they are created and report how much (_workspace).
 *           Forward, backward, losses, clipping and optimizer steps allocate nothing.
 * Bits.     Every result is a function of the arguments, the instruction set and the
 *           BLAS: the bits are the same on any number of threads. Initial weights and
 *           dropout follow from the model's seed. If each batch follows from its number
 *           (shoal_random), a training that is resumed from a checkpoint equals one that
 *           was never interrupted, bit for bit.
 * Threads.  One context per thread, with all objects that belong to it, as in shoal.h.
 */
#ifndef SHOAL_MODELS_H
#define SHOAL_MODELS_H

#include <stdio.h>

#include "shoal.h"
#include "shoal_transport.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_MAX_DIMENSIONS = 8 }; /* of arrays and parameters */

/* ---- Models ----------------------------------------------------------------------- */

typedef enum { SHOAL_NORM_PRE, SHOAL_NORM_POST } shoal_norm;
typedef enum { SHOAL_ACTIVATION_GELU, SHOAL_ACTIVATION_RELU } shoal_activation;
typedef enum {
    SHOAL_POSITIONS_SINUSOIDAL,
    SHOAL_POSITIONS_LEARNED,
    SHOAL_POSITIONS_NONE
} shoal_positions;

/* Outputs for every row, or one output per sequence from the mean of its rows or from its
   first row. */
typedef enum {
    SHOAL_POOLING_NONE,
    SHOAL_POOLING_MEAN,
    SHOAL_POOLING_FIRST
} shoal_pooling;

/* The architecture around the layers. BERT and RoBERTa follow the `transformers` package:
   embeddings of tokens, learned positions and types are added, followed by layer norm and
   dropout; the layers are post-norm, without dropout inside the feed-forward. With
   pooling, a linear layer and tanh precede the output layer, with dropout before the
   output layer (RoBERTa: also before that linear layer). Attention weights have no
   dropout. */
typedef enum { SHOAL_FORM_PLAIN, SHOAL_FORM_BERT, SHOAL_FORM_ROBERTA } shoal_form;

/* A stack of encoder layers, preceded by a token embedding or a linear layer for
   features, and by positions, and followed by a linear output layer. If vocabulary,
   features and outputs are 0, there are only the layers: rows [width] to rows [width],
   where the model's width is heads x head_dim. */
typedef struct {
    size_t size;
    int64_t vocabulary; /* tokens are 0 .. vocabulary - 1; 0: no tokens */
    int64_t features;   /* features of an input row, if there are no tokens */
    int64_t outputs;    /* logits of a row; 0: only the layers */
    int64_t max_length; /* of one sequence */
    int64_t layers, heads, head_dim;
    int64_t feed_forward;      /* inner width of the feed-forward */
    shoal_attention attention; /* all fields 0: full */
    int32_t shared_qk;         /* nonzero: one projection for queries and keys, as lsh and
                          shared-full always have */
    shoal_norm norm;           /* before each block, or after its residual sum */
    shoal_activation activation;
    shoal_positions positions; /* unused if there are only the layers */
    shoal_pooling pooling;
    float dropout; /* probability, while training: on the input, on the output of every
                      block and inside the feed-forward */
    shoal_form form;
    int64_t types;        /* BERT, RoBERTa: token types are 0 .. types - 1; 0: no types */
    int64_t convolutions; /* number of convolution blocks on features, before the
                             positions: x += dropout(f(conv(norm(x)))) over 3 rows of a
                             sequence, f the activation */
    float epsilon;        /* of the layer norms; 0: 1e-5 */
    int32_t reserved[15];
} shoal_model_config;
SHOAL_ZERO_DEFAULTS(shoal_model_config)

typedef struct shoal_model shoal_model;

/* The seed determines the initial weights. A call may have up to max_batch sequences with
   max_rows rows in all. flags: 0 or SHOAL_WITH_BACKWARD. */
SHOAL_API shoal_status shoal_model_create(shoal_context *context,
                                          const shoal_model_config *config, uint64_t seed,
                                          int64_t max_batch, int64_t max_rows,
                                          unsigned flags, shoal_model **model);
/* A model of layers only (no outputs) over sequences of which each process holds a
   contiguous part, as in shoal_plan_create_over (shoal_transport.h). Rows, offsets,
   outputs and their gradients are this process's. The gradients of the parameters are
   this process's part; their sum over the processes is the whole. All processes create,
   forward and backward together, with the same seed and number of sequences. With one
   sequence, and first_row set to the number of rows in lower ranks, dropout equals that
   of one process. */
SHOAL_API shoal_status shoal_model_create_over(shoal_transport *transport,
                                               shoal_context *context,
                                               const shoal_model_config *config,
                                               uint64_t seed, int64_t max_batch,
                                               int64_t max_rows, unsigned flags,
                                               shoal_model **model);
/* A model that shares the weights of another, with its own kind of attention (NULL: the
   same) and limits, without gradients. A sequence may have max_rows rows, even beyond the
   configuration's max_length, unless positions are learned. The call is refused if the
   kind takes the queries as keys and the weights have projections for both. */
SHOAL_API shoal_status shoal_model_create_view(shoal_model *model,
                                               const shoal_attention *attention,
                                               int64_t max_batch, int64_t max_rows,
                                               shoal_model **view);
SHOAL_API void shoal_model_destroy(shoal_model *model);
SHOAL_API const shoal_model_config *shoal_model_settings(const shoal_model *model);
SHOAL_API size_t shoal_model_workspace(const shoal_model *model); /* bytes in all */

typedef struct {
    size_t size;
    int64_t batch;          /* number of sequences */
    const int64_t *offsets; /* [batch + 1]: sequence b is rows offsets[b] ..
                               offsets[b + 1] - 1; offsets[0] is 0 */
    const int32_t *tokens;  /* [rows], if the model has a vocabulary */
    const int32_t *types;   /* [rows], if the model has types; NULL: all 0 */
    const float *features;  /* [rows][features]; of a model of layers only
                               [rows][width] */
    const int32_t *wanted;  /* [wanted_count], increasing: the rows whose output is
                               needed; the last layer skips work for the others. NULL: all
                               rows. Neither with pooling nor with dropout in training */
    int64_t wanted_count;
    int32_t training;   /* nonzero: with dropout, drawn for `step` */
    int32_t accumulate; /* nonzero: backward adds to the existing gradients */
    int64_t step;
    int64_t first_row, first_sequence; /* if a batch is divided among processes: the
                               numbers of rows and sequences before these, from which
                               dropout counts on */
} shoal_model_inputs;
SHOAL_ZERO_DEFAULTS(shoal_model_inputs)

/* *out: [rows][outputs], of a model of layers only [rows][width]. `rows` are those of the
   batch, the wanted ones, or with pooling one for each sequence. The model owns *out,
   which is valid until its next call; you may overwrite it. */
SHOAL_API shoal_status shoal_model_forward(shoal_model *model,
                                           const shoal_model_inputs *inputs, float **out);
/* Call it after forward with the same inputs. dout: gradient of the loss with respect to
   *out, in its shape; it may be *out itself. Sets the gradients of the parameters.
   dfeatures [rows][width], for a model of layers only: gradient of the features, or
   NULL. */
SHOAL_API shoal_status shoal_model_backward(shoal_model *model,
                                            const shoal_model_inputs *inputs,
                                            const float *dout, float *dfeatures);

/* The model owns values and gradients; you may read and write them between calls.
   gradients is NULL without SHOAL_WITH_BACKWARD. */
typedef struct {
    const char *name; /* "encoder.layers.0.attention.output.weight" */
    int dimensions;
    int64_t shape[SHOAL_MAX_DIMENSIONS];
    float *values, *gradients;
} shoal_parameter;
/* index counts from 0; returns 0 past the last parameter. */
SHOAL_API int shoal_model_parameter(shoal_model *model, int index,
                                    shoal_parameter *parameter);
/* All parameters as one vector, for example for sums over machines; returns its length.
   Gaps between parameters are 0. values and gradients may be NULL. */
SHOAL_API int64_t shoal_model_vectors(shoal_model *model, float **values,
                                      float **gradients);

/* Called by backward, in its thread, when elements first .. first + count - 1 of the
   gradient vector are complete, so that a sum over machines can begin early. Each element
   belongs to one call; calls go from the last layer to the first. */
typedef void (*shoal_gradient_callback)(void *user, int64_t first, int64_t count);
/* callback NULL removes it. Refused if the model has no gradients. */
SHOAL_API shoal_status shoal_model_watch(shoal_model *model,
                                         shoal_gradient_callback callback, void *user);

/* ---- Losses ------------------------------------------------------------------------ */

typedef struct {
    double mean;     /* over the counted targets; 0 if there are none */
    int64_t counted; /* number of targets that count */
    int64_t correct; /* of these, predicted correctly */
} shoal_loss;

enum { SHOAL_IGNORED = -1 }; /* a target that does not count */

/* Cross-entropy, -log softmax(logits)[target]. logits [rows][classes]; targets [rows],
   each 0 .. classes - 1 or SHOAL_IGNORED. gradient [rows][classes]: gradient of the mean;
   it may be the logits, or NULL. A row is correct if its largest logit (the first among
   equals) is the target's. */
SHOAL_API shoal_status shoal_cross_entropy(shoal_context *context, int64_t rows,
                                           int64_t classes, const float *logits,
                                           const int32_t *targets, float *gradient,
                                           shoal_loss *loss);

/* ---- CTC: labels without alignment ------------------------------------------------- */

/* Connectionist temporal classification (Graves et al. 2006), for sequences of logits
   with fewer labels whose alignment is unknown. Class 0 is the blank. A path assigns a
   class to each row; merging equal neighbours and then dropping blanks gives its labels.
   The loss is -log of the total probability of all paths that give the right labels. */
typedef struct shoal_ctc shoal_ctc;

/* Workspace of the loss, for batches of up to max_batch sequences with up to max_rows
   rows and max_labels labels each. It takes 32 max_rows max_labels bytes per thread. */
SHOAL_API shoal_status shoal_ctc_create(shoal_context *context, int64_t classes,
                                        int64_t max_batch, int64_t max_rows,
                                        int64_t max_labels, shoal_ctc **ctc);
SHOAL_API void shoal_ctc_destroy(shoal_ctc *ctc);
SHOAL_API size_t shoal_ctc_workspace(const shoal_ctc *ctc); /* bytes */

typedef struct {
    size_t size;
    int64_t batch;                /* number of sequences */
    const int64_t *offsets;       /* [batch + 1] of rows, from 0 */
    const int32_t *labels;        /* of all sequences, each 1 .. classes - 1 */
    const int64_t *label_offsets; /* [batch + 1] of labels, from 0 */
} shoal_ctc_batch;
SHOAL_ZERO_DEFAULTS(shoal_ctc_batch)

typedef struct {
    double sum;                /* of the losses */
    int64_t sequences, labels; /* that are in the sum */
    int64_t impossible; /* sequences too short for their labels: loss 0, gradient 0 */
} shoal_ctc_result;

/* logits [rows][classes], before the softmax; differences above a million count as a
   million. gradient [rows][classes]: gradient of the sum of the losses times `factor`; it
   may be the logits, or NULL. losses [batch]: of each sequence, or NULL. A NaN among the
   logits makes the loss and the gradient of its sequence NaN. */
SHOAL_API shoal_status shoal_ctc_loss(shoal_ctc *ctc, const shoal_ctc_batch *batch,
                                      const float *logits, double factor, float *gradient,
                                      double *losses, shoal_ctc_result *result);

/* Greedy decoding: the labels of the path of most likely classes (the first among
   equals). logits [rows][classes]; labels and frames have room for `rows` elements.
   frames: the row at which each label begins, or NULL. */
SHOAL_API shoal_status shoal_ctc_greedy(shoal_context *context, int64_t rows,
                                        int64_t classes, const float *logits,
                                        int32_t *labels, int32_t *frames, int64_t *count);
/* Prefix beam search with `beams` prefixes: the most likely labels, summed over their
   alignments; exact if there are no more prefixes than beams. *log_probability, which may
   be NULL: of the labels, within the beams. Allocates during the call. */
SHOAL_API shoal_status shoal_ctc_search(shoal_context *context, int64_t rows,
                                        int64_t classes, const float *logits,
                                        int64_t beams, int32_t *labels, int32_t *frames,
                                        int64_t *count, double *log_probability);

/* ---- Error rates of a recogniser --------------------------------------------------- */

/* The smallest number of edits that turn the recognised sequence into the reference;
   among equally small ones, the edits with the most substitutions. */
typedef struct {
    int64_t length; /* of the reference */
    int64_t substitutions, insertions, deletions;
} shoal_edits;

/* Adds to *edits. Allocates during the call. */
SHOAL_API shoal_status shoal_count_edits(shoal_context *context, const int32_t *reference,
                                         int64_t reference_count,
                                         const int32_t *recognised,
                                         int64_t recognised_count, shoal_edits *edits);

/* Confidence intervals of an error rate by the bootstrap: 10,000 times, sequences are
   drawn with replacement, and the rate and its difference from that of another recogniser
   are computed for the same draw. */
typedef struct {
    double length, wrong;  /* of one sequence: labels and errors */
    double wrong_of_other; /* errors of the other recogniser */
} shoal_sequence_errors;

/* The middle 95 % of the draws, in percent; NaN if there are no sequences. */
typedef struct {
    double rate_low, rate_high, difference_low, difference_high;
} shoal_rate_interval;

/* Draws depend only on the seed and on `count`, so they are the same for every rate. */
SHOAL_API shoal_rate_interval shoal_bootstrap_rates(
    const shoal_sequence_errors *sequences, int64_t count, uint64_t seed);

/* ---- Gradient clipping and optimizer ----------------------------------------------- */

/* Scales the gradients so that their norm over all parameters is at most `limit` (0: no
   limit). *norm, which may be NULL: the norm before scaling. A norm that is not finite is
   refused: the training has diverged, and a step would destroy the weights. */
SHOAL_API shoal_status shoal_gradients_clip(shoal_model *model, double limit,
                                            double *norm);

typedef enum {
    SHOAL_OPTIMIZER_KIND_RADAM, /* these two: decoupled weight decay */
    SHOAL_OPTIMIZER_KIND_ADAM,
    SHOAL_OPTIMIZER_KIND_RADAM_L2, /* these two: weight decay as a part of the gradient */
    SHOAL_OPTIMIZER_KIND_ADAM_L2
} shoal_optimizer_kind;

/* Step t from 1, gradient g, learning rate a:
       m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g g, m^ = m / (1 - beta1^t)
       Adam:    p -= a m^ / (sqrt(v / (1 - beta2^t)) + epsilon)
       R-Adam:  rho_inf = 2 / (1 - beta2) - 1, rho = rho_inf - 2 t beta2^t / (1 - beta2^t)
           if rho > rectify_above: Adam's step, times
               sqrt((rho - 4)(rho - 2) rho_inf / ((rho_inf - 4)(rho_inf - 2) rho))
           else:                   p -= a m^
   Weight decay: p -= a weight_decay p, or for L2 weight_decay p is added to g. All
   parameters decay. */
typedef struct {
    size_t size;
    shoal_optimizer_kind kind;
    float beta1, beta2, epsilon, weight_decay;
    float rectify_above; /* R-Adam: 4 as published (Liu et al. 2020); PyTorch uses 5 */
    float average;       /* decay of an exponential average of the weights; 0: none */
    int32_t reserved[7];
} shoal_optimizer_config;

/* Defaults: R-Adam with betas 0.9 and 0.999, epsilon 1e-8, weight decay 0.01 and no
   average. init fills in a struct of `size` bytes. */
SHOAL_API void shoal_optimizer_config_init(shoal_optimizer_config *config, size_t size);
static inline shoal_optimizer_config shoal_optimizer_config_defaults(void) {
    shoal_optimizer_config config;
    shoal_optimizer_config_init(&config, sizeof config);
    return config;
}

typedef struct shoal_optimizer shoal_optimizer;

/* The model must have gradients. config may be NULL. */
SHOAL_API shoal_status shoal_optimizer_create(shoal_model *model,
                                              const shoal_optimizer_config *config,
                                              shoal_optimizer **optimizer);
SHOAL_API void shoal_optimizer_destroy(shoal_optimizer *optimizer);
SHOAL_API size_t shoal_optimizer_workspace(const shoal_optimizer *optimizer);
/* Updates the model's weights by its gradients. */
SHOAL_API shoal_status shoal_optimizer_step(shoal_optimizer *optimizer,
                                            double learning_rate);
SHOAL_API int64_t shoal_optimizer_steps(const shoal_optimizer *optimizer); /* taken */
/* The optimizer's state, as vectors like those of shoal_model_vectors; returns their
   length. first and second: running means of the gradient and of its square; averaged:
   the average of the weights, or NULL. Each argument may be NULL. */
SHOAL_API int64_t shoal_optimizer_vectors(shoal_optimizer *optimizer, float **first,
                                          float **second, float **averaged);
/* While `use` is nonzero, the model and its views have the averaged weights, for
   validation or saving; steps and checkpoints are refused. Without an average, nothing
   changes. */
SHOAL_API shoal_status shoal_optimizer_use_average(shoal_optimizer *optimizer, int use);

/* ---- Learning-rate schedule -------------------------------------------------------- */

/* Linear warm-up, and a drop whenever the validation loss stops falling. Change fields
   after shoal_schedule_start. */
typedef struct {
    double rate;      /* after the warm-up and before any drop */
    int64_t warmup;   /* number of steps; step s of them, from 1, has rate * s / warmup */
    double factor;    /* of a drop; 0 or 1: no drops */
    int64_t patience; /* observations without progress before a drop */
    double threshold; /* progress is a loss < best (1 - threshold) */
    double minimum;   /* drops end at this rate */
    double best;      /* state: the smallest loss; infinity before any */
    int64_t waiting;  /* state: observations since then */
    double scale;     /* state: product of the drops */
} shoal_schedule;

/* A constant rate: no warm-up, no drops, threshold 1e-4. */
SHOAL_API shoal_schedule shoal_schedule_start(double rate);
/* The rate of a step, counted from 1. */
SHOAL_API double shoal_schedule_rate(const shoal_schedule *schedule, int64_t step);
/* Call it after a validation; returns nonzero if the rate dropped. A NaN is no
   progress. */
SHOAL_API int shoal_schedule_observe(shoal_schedule *schedule, double loss);

/* ---- Files ------------------------------------------------------------------------- */

/* Saves the configuration and weights as one safetensors file. The file is on disk when
   the call returns; a failure leaves the previous file at the path. */
SHOAL_API shoal_status shoal_model_save(const shoal_model *model, const char *path);
/* Creates a model from such a file or a checkpoint, with limits and flags as in
   shoal_model_create. */
SHOAL_API shoal_status shoal_model_open(shoal_context *context, const char *path,
                                        int64_t max_batch, int64_t max_rows,
                                        unsigned flags, shoal_model **model);

/* Text that a file carries for you: settings, counters, the position in the data. */
typedef struct {
    const char *key, *value; /* UTF-8; a key has 1 to 63 bytes and does not begin with
                                "shoal." */
} shoal_note;

/* Saves a model with its optimizer, schedule and your notes, as shoal_model_save does.
   optimizer and schedule may be NULL, and notes if note_count is 0. */
SHOAL_API shoal_status shoal_checkpoint_save(const char *path, const shoal_model *model,
                                             const shoal_optimizer *optimizer,
                                             const shoal_schedule *schedule,
                                             const shoal_note *notes, int64_t note_count);

typedef struct shoal_checkpoint shoal_checkpoint;

/* Opens a model file or checkpoint, to inspect it and to load from it. */
SHOAL_API shoal_status shoal_checkpoint_open(shoal_context *context, const char *path,
                                             shoal_checkpoint **checkpoint);
SHOAL_API void shoal_checkpoint_destroy(shoal_checkpoint *checkpoint);
/* The value of a note, which the checkpoint owns; NULL if there is none. */
SHOAL_API const char *shoal_checkpoint_note(const shoal_checkpoint *checkpoint,
                                            const char *key);
/* The model's configuration, and the seed that it was created with. */
SHOAL_API shoal_status shoal_checkpoint_config(const shoal_checkpoint *checkpoint,
                                               shoal_model_config *config,
                                               uint64_t *seed);
/* SHOAL_OK if the weights have the names and shapes of a model with this configuration.
   Call it before you create such a model from an untrusted file: a file that merely
   claims to be large then costs no memory. */
SHOAL_API shoal_status shoal_checkpoint_fits(const shoal_checkpoint *checkpoint,
                                             const shoal_model_config *config);
/* Loads the weights into the model, moments, averages and counts into the optimizer, and
   the schedule's state; optimizer and schedule may be NULL. Their settings stay; only
   names and shapes of the parameters must fit. The file's checksum and that all numbers
   are finite are checked before anything changes. */
SHOAL_API shoal_status shoal_checkpoint_load(const shoal_checkpoint *checkpoint,
                                             shoal_model *model,
                                             shoal_optimizer *optimizer,
                                             shoal_schedule *schedule);

/* Loads the averaged weights if the optimizer has them, else the last weights: those that
   a validation with shoal_optimizer_use_average uses. The model needs no gradients. */
SHOAL_API shoal_status shoal_checkpoint_load_average(const shoal_checkpoint *checkpoint,
                                                     shoal_model *model);

/* ---- Text: tokenizers -------------------------------------------------------------- */

/* The tokenizer of a Hugging Face folder, from tokenizer.json: WordPiece (BERT),
   byte-level BPE (RoBERTa, ModernBERT) or Unigram (XLM-R); the first two also from
   vocab.txt, or vocab.json and merges.txt. Token ids equal those of the `tokenizers`
   package. Settings for truncation and padding in the file are ignored: each call has its
   own limit. */
typedef struct shoal_tokenizer shoal_tokenizer;

SHOAL_API shoal_status shoal_tokenizer_open(shoal_context *context, const char *folder,
                                            shoal_tokenizer **tokenizer);
SHOAL_API void shoal_tokenizer_destroy(shoal_tokenizer *tokenizer);
/* Size of the vocabulary: all ids are smaller. */
SHOAL_API int64_t shoal_tokenizer_size(const shoal_tokenizer *tokenizer);

/* Which of two texts is truncated: the longer one until both are equally long, then both;
   the first; or the second. */
typedef enum { SHOAL_CUT_LONGEST, SHOAL_CUT_FIRST, SHOAL_CUT_SECOND } shoal_cut;

enum { SHOAL_TERMINATED = -1 }; /* in place of a number of bytes: the text ends with 0 */

typedef struct {
    size_t size;
    const char *text;   /* UTF-8, up to 16 MiB */
    int64_t bytes;      /* of the text, or SHOAL_TERMINATED */
    const char *pair;   /* a second text, or NULL */
    int64_t pair_bytes; /* likewise */
    int64_t most;       /* largest number of tokens, special ones included; the end is
                           truncated. 0: no limit */
    shoal_cut cut;
    int32_t bare; /* nonzero: without special tokens */
} shoal_text;

/* Defaults: no text, bytes and pair_bytes SHOAL_TERMINATED, no limit. */
static inline shoal_text shoal_text_defaults(void) {
    shoal_text text;
    memset(&text, 0, sizeof text);
    text.size = sizeof text;
    text.bytes = text.pair_bytes = SHOAL_TERMINATED;
    return text;
}

/* The tokenizer owns the arrays, which are valid until its next call. */
typedef struct {
    int64_t count;
    const int32_t *ids;   /* [count] */
    const int32_t *types; /* [count], 0 or 1 */
    const int32_t *texts; /* [count]: 0 for the text, 1 for the pair, -1 for a special
                             token */
    const int64_t *spans; /* [count][2]: first byte and the byte after the last, in the
                             text or pair; 0, 0 for special tokens */
    int64_t left_out;     /* number of tokens truncated */
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

/* BERT, RoBERTa (XLM-R, CamemBERT) and ModernBERT from Hugging Face folders: config.json
   and model.safetensors (or its shards; F32, F16, BF16), with any kind of attention. In
   ModernBERT the kind applies to the global layers; the others are local-W. */
typedef struct shoal_text_encoder shoal_text_encoder;

/* How the rows of a text become one vector. */
typedef enum {
    SHOAL_TEXT_POOLING_OWN, /* as modules.json and 1_Pooling/config.json say, normalised
                               if they name Normalize; the mean if these files are
                               missing. Other modules (Dense, ...) are refused. The
                               poolings below ignore these files */
    SHOAL_TEXT_POOLING_MEAN,
    SHOAL_TEXT_POOLING_FIRST,
    SHOAL_TEXT_POOLING_MAX
} shoal_text_pooling;

/* How texts longer than the window are encoded: in overlapping windows, whose vectors are
   averaged (weighted by tokens for the mean; maximum for max); only their beginning; or
   as one sequence, with the model's positions stretched over it. */
typedef enum {
    SHOAL_LONG_TEXTS_WINDOWS,
    SHOAL_LONG_TEXTS_CUT,
    SHOAL_LONG_TEXTS_STRETCH
} shoal_long_texts;

typedef struct {
    size_t size;
    const char *attention; /* as shoal_attention_parse reads it; NULL: full */
    int64_t rows; /* tokens processed at once, also the limit of a stretched text; 0: 2048
                     (stretched: 4096), or one window if that is more */
    int64_t window; /* tokens, special ones included; 0: as many as the model has
                       positions. Unused for stretched texts, as is stride */
    int64_t stride; /* tokens from one window to the next; 0: half a window */
    shoal_long_texts long_texts;
    shoal_text_pooling pooling;
    int32_t normalize; /* nonzero: vectors are scaled to length 1 */
    shoal_precision precision;
} shoal_text_encoder_options;
SHOAL_ZERO_DEFAULTS(shoal_text_encoder_options)

typedef struct {
    const char *type; /* "bert" */
    int64_t layers, heads, width, feed_forward, vocabulary;
    int64_t positions;    /* tokens of the longest text that the model was made for */
    int64_t window, rows; /* as in the options */
    shoal_text_pooling pooling;
    shoal_precision precision; /* of the matrices, as chosen by auto */
    size_t workspace;  /* bytes, without the weights */
} shoal_text_encoder_info;

/* options may be NULL. */
SHOAL_API shoal_status shoal_text_encoder_open(shoal_context *context, const char *folder,
                                               const shoal_text_encoder_options *options,
                                               shoal_text_encoder **encoder);
SHOAL_API void shoal_text_encoder_destroy(shoal_text_encoder *encoder);
/* The encoder owns the result; NULL for NULL. */
SHOAL_API const shoal_text_encoder_info *
shoal_text_encoder_describe(const shoal_text_encoder *encoder);

/* One vector for each text, by the folder's tokenizer. texts [count]; bytes [count], or
   NULL if the texts end with 0; vectors [count][width]. */
SHOAL_API shoal_status shoal_text_encoder_embed(shoal_text_encoder *encoder,
                                                int64_t count, const char *const *texts,
                                                const int64_t *bytes, float *vectors);

/* Hidden states of tokens. offsets [batch + 1] as for models; ids and types [rows]; types
   may be NULL: all 0. *hidden: [rows][width], valid until the next call. A sequence has
   at most `window` tokens (stretched: `rows`), and a call `rows`. */
SHOAL_API shoal_status shoal_text_encoder_forward(shoal_text_encoder *encoder,
                                                  int64_t batch, const int64_t *offsets,
                                                  const int32_t *ids,
                                                  const int32_t *types,
                                                  const float **hidden);

/* ---- Text: fine-tuning ------------------------------------------------------------- */

/* Reads the configuration of a BERT or RoBERTa folder for a model to be trained: sizes,
   form, dropout and epsilon come from its config.json. outputs, pooling
   (SHOAL_POOLING_FIRST to classify or score texts, SHOAL_POOLING_NONE for tokens) and
   attention stay as they are in *config. */
SHOAL_API shoal_status shoal_text_model_config(shoal_context *context, const char *folder,
                                               shoal_model_config *config);
/* Loads the folder's weights into a model with such a configuration. Pooling and output
   layers are loaded if the folder has them in these shapes, and otherwise stay. */
SHOAL_API shoal_status shoal_text_model_load(shoal_context *context, const char *folder,
                                             shoal_model *model);
/* Saves the weights under the names of `transformers`, in float32, as model.safetensors
   in a folder that has the config.json. */
SHOAL_API shoal_status shoal_text_model_save(shoal_context *context, const char *folder,
                                             shoal_model *model);

/* ---- Random numbers ---------------------------------------------------------------- */

/* Random bits as a pure function of (seed, stream, counter), the same on every machine.
   Different streams are independent; the library's own streams never meet yours. */
SHOAL_API uint64_t shoal_random(uint64_t seed, uint32_t stream, uint64_t counter);
/* Uniform in 0 .. bound - 1; 0 if the bound is 0. */
SHOAL_API uint64_t shoal_random_below(uint64_t seed, uint32_t stream, uint64_t counter,
                                      uint64_t bound);
/* The finaliser of splitmix64: a bijection of 64 bits that mixes well. */
SHOAL_API uint64_t shoal_random_mix(uint64_t x);

/* ---- Atomic replacement of files --------------------------------------------------- */

/* Output goes to a temporary file .shoal-PROCESS-N.tmp beside the path, which replaces
   the file at the path when it is committed; until then, and after a failure, the old
   file stays. Its permissions are kept. If the path is a symbolic link, its target is
   replaced or created. Pipes, devices and descriptors (/dev/stdout, /dev/fd/5) are
   written directly. Everything that Shoal saves is written this way. */
typedef struct shoal_replacement shoal_replacement;

/* What must be on disk before the file is replaced. */
typedef enum {
    SHOAL_SYNC_NONE, /* nothing: the system writes later */
    SHOAL_SYNC_DATA, /* the content */
    SHOAL_SYNC_NAME  /* the content and the name: after a power failure there is either
                        the old or the new file */
} shoal_sync;

/* context may be NULL. If one of these functions fails, errno has the cause, too. */
SHOAL_API shoal_status shoal_replacement_create(shoal_context *context, const char *path,
                                                shoal_replacement **replacement);
/* The stream to write to until the commit. Do not close it. */
SHOAL_API FILE *shoal_replacement_file(const shoal_replacement *replacement);
/* Replaces the file. Call it once. */
SHOAL_API shoal_status shoal_replacement_commit(shoal_replacement *replacement,
                                                shoal_sync sync);
/* Without a successful commit, the temporary file is removed. */
SHOAL_API void shoal_replacement_destroy(shoal_replacement *replacement);

/* Writes the path of the file that `path` leads to, existing or not, with symbolic links
   resolved, to target [size]. Returns 0 and sets errno if it does not fit or links form a
   cycle. */
SHOAL_API int shoal_file_target(const char *path, char *target, size_t size);

/* ---- Arrays in files (.npy) -------------------------------------------------------- */

typedef struct {
    shoal_dtype dtype;
    int dimensions;
    int64_t shape[SHOAL_MAX_DIMENSIONS];
    void *data;    /* C order */
    void *mapping; /* private; leave both 0 in arrays of your own */
    size_t mapping_bytes;
} shoal_array;

/* Reads a .npy file of version 1 to 3: little-endian float32, float16 or int32 in C
   order. Other types and orders, truncated files and impossible shapes give
   SHOAL_BAD_FILE. The data is a private, writable mapping of the file, whose pages are
   read when they are first accessed. Release it with shoal_array_release. */
SHOAL_API shoal_status shoal_array_read(shoal_context *context, const char *path,
                                        shoal_array *array);
SHOAL_API void shoal_array_release(shoal_array *array); /* a zeroed array is valid */

/* Writes a .npy file, which replaces the file at the path only when it is complete. */
SHOAL_API shoal_status shoal_array_write(shoal_context *context, const char *path,
                                         const shoal_array *array);

#ifdef __cplusplus
}
#endif
#endif
