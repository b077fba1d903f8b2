/* Shoal's models: transformers with any kind of attention, and their training. */
#ifndef SHOAL_MODELS_H
#define SHOAL_MODELS_H

#include "shoal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Arrays in files (.npy) ------------------------------------------------------- */

typedef enum { SHOAL_FLOAT32, SHOAL_INT32 } shoal_dtype;

enum { SHOAL_MAX_RANK = 8 };

typedef struct {
    shoal_dtype dtype;
    int rank;
    int64_t shape[SHOAL_MAX_RANK];
    void *data;           /* C order */
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
    int64_t vocabulary;              /* tokens are 0 .. vocabulary - 1; 0: layers alone */
    int64_t outputs;                 /* logits of a row; 0: layers alone */
    int64_t max_length;              /* of one sequence */
    int64_t layers, heads, head_dim; /* model, the features of a row: heads x head_dim */
    int64_t feed_forward;            /* features inside a feed-forward */
    shoal_attention attention;
    int32_t shared_qk;  /* one projection for queries and keys; lsh and shared-full have
                             one in any case */
    int32_t norm;       /* a shoal_norm: before each block, or after its sum */
    int32_t activation; /* a shoal_activation */
    int32_t positions;  /* a shoal_positions; without tokens there are none */
    float dropout;      /* share that training sets to 0: of the input's features, of
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
    float average; /* decay of the averaged weights, which are then what is
                                 validated; 0: none */
    int64_t batch, steps;
    int64_t validate_every, validate_batches; /* fresh batches every so many steps */
    int64_t stop_after; /* finished after so many validations in a row without a
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
    double loss;              /* mean over the positions of the loss */
    double accuracy;          /* share of the masked positions that are right */
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

#ifdef __cplusplus
}
#endif
#endif
