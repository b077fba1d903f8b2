/* Shoal's training: recognisers, text models and tasks of your own, as runs that can be
 * interrupted and resumed with the same bits.
 *
 * A task defines the data and the loss; the trainer does the rest: forward, backward,
 * clipping, learning-rate schedule, averaging, validation and checkpoints. A run is a
 * training in a folder, with a log. Four tasks are built in: copy (a masked copy,
 * generated in memory), speech (a recogniser, by CTC or LF-MMI), and glue and squad
 * (fine-tuning of a BERT or RoBERTa).
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal_train.h>
 *     #include <stdio.h>
 *
 *     int main(int count, char **arguments) {
 *         shoal_context *context = NULL;
 *         const shoal_train_task *task = shoal_task_find("speech");
 *         shoal_speech_train_config config = shoal_speech_train_config_defaults(NULL);
 *         shoal_run_options options = shoal_run_options_defaults();
 *         shoal_run_result result;
 *         if (count < 3 || shoal_context_create(NULL, &context) != SHOAL_OK) return 1;
 *         config.folder = arguments[1];           // with the folders train and dev
 *         options.folder = arguments[2];          // checkpoint, best model and log
 *         options.resume = 1;                     // continue if there is a checkpoint
 *         shoal_status status =
 *             shoal_config_set(context, task, &config, "attention", "shoal");
 *         if (status == SHOAL_OK)
 *             status = shoal_train_run(context, task, &config, &options, &result);
 *         if (status == SHOAL_OK)
 *             printf("error rate %.2f %%\n", 100 * result.state.best);
 *         else
 *             fprintf(stderr, "%s\n", shoal_context_message(context));
 *         shoal_context_destroy(context);
 *         return status != SHOAL_OK;
 *     }
 *
 * THE RULES, ONCE (those of shoal.h and shoal_models.h hold too)
 *
 * Config.   The configuration of a task begins with a shoal_train_config. Always
 *           initialise it with its _defaults function. Every field has a name by which it
 *           can be set and printed as text (shoal_config_set), except paths, which are
 *           not stored in files. Strings stay yours and must be valid until the trainer
 *           is destroyed.
 * Bits.     A training is a function of its configuration and data; it depends neither on
 *           the number of threads nor on interruptions. Batches, dropout and validation
 *           data follow from the seed and from counters, which a checkpoint contains.
 * Output.   Nothing is printed. Progress and warnings go to callbacks, which run in the
 *           thread of the call.
 * Cancel.   The callback `cancelled` is called between steps and while data is read. A
 *           cancelled run writes its checkpoint and returns SHOAL_CANCELLED.
 * Processes. With a transport (shoal_transport.h) several processes train together: all
 *           make the same calls, each has its share of every batch, and the first one
 *           writes the files.
 */
#ifndef SHOAL_TRAIN_H
#define SHOAL_TRAIN_H

#include "shoal_models.h"
#include "shoal_speech.h"
#include "shoal_transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configurations ---------------------------------------------------------------- */

enum { SHOAL_TEXT_SIZE = 64 }; /* bytes of a text field, the final 0 included */

/* The configuration that all tasks share. */
typedef struct {
    size_t size;              /* of the task's whole configuration */
    shoal_model_config model; /* the task sets vocabulary, features, outputs, max_length
                                 and pooling; glue and squad set all but attention */
    shoal_optimizer_config optimizer;
    float learning_rate;
    float clip;         /* largest norm of the gradient; 0: no limit */
    int64_t warmup;     /* steps of linear warm-up */
    float warmup_share; /* glue, squad: warm-up as a share of all steps, if warmup is 0 */
    int32_t decay;      /* nonzero, with epochs: sets decay_steps to the number of
                            steps */
    int64_t decay_steps; /* after the warm-up the rate falls linearly, to 0 after this
                            step; 0: no decay */
    int64_t plateau_patience; /* after more than this number of validations in a row
                                 without a lower loss (by a ten-thousandth) the rate is
                                 multiplied by plateau_factor, down to a thousandth; 0:
                                 never */
    float plateau_factor;
    int64_t batch;            /* sequences of a step */
    int64_t steps;            /* 0: as many as `epochs` contain */
    int64_t epochs;           /* passes through the data, for tasks that have epochs */
    int64_t average_every;    /* several processes: each trains alone, and their weights
                                 are averaged after this number of steps; 0: gradients
                                 are summed in every step */
    int64_t validate_every;   /* steps; of glue and squad one epoch */
    int64_t validate_batches; /* for tasks with endless data (copy) */
    int64_t stop_after; /* finish after this number of validations in a row without an
                           error; 0: only after all steps */
    uint64_t seed;      /* of weights, data and dropout */
    char data[SHOAL_TEXT_SIZE]; /* fingerprint of the data, set when it is opened */
    int64_t reserved[8];
} shoal_train_config;

typedef enum { SHOAL_COPY_LOSS_MASKED, SHOAL_COPY_LOSS_ALL } shoal_copy_loss;

/* copy: a sequence is 0w0w, where w has `length` symbols from 1 to 10. A fifth of the
   symbols is masked, never both copies of one, and must be predicted. */
typedef struct {
    shoal_train_config train;
    int64_t length;
    shoal_copy_loss loss; /* over masked positions, or over all */
} shoal_copy_config;

/* speech: a recogniser. The data folder contains the folders train and dev, in Kaldi's
   format (docs/train.md). */
typedef struct {
    shoal_train_config train;
    shoal_recogniser_loss loss;
    shoal_units units;            /* default: SHOAL_UNITS_AUTO */
    char labels[SHOAL_TEXT_SIZE]; /* file of transcripts */
    int64_t bands, rate;          /* of the features; samples per second, 0: that of the
                                     train part */
    shoal_normalise normalise;
    int32_t whole;                /* LF-MMI: as in shoal_lfmmi_options */
    int64_t hop, context;         /* frames between positions, and seen by a position */
    char speeds[SHOAL_TEXT_SIZE]; /* "0.9,1,1.1": one is drawn for each utterance */
    int64_t band_masks, band_mask, time_masks, time_mask; /* numbers of masks, and their
                                                             largest widths */
    int64_t mask_after;                                   /* epochs without masks */
    int64_t join_after;      /* epochs without joined utterances */
    int64_t batch_frames;    /* largest number of frames in a batch, unless one sequence
                                alone has more */
    float join;              /* seconds up to which utterances of a speaker are joined */
    shoal_topology topology; /* LF-MMI; not SHOAL_TOPOLOGY_CTC */
    int64_t every;           /* LF-MMI: positions between outputs */
    int64_t order, extra;    /* LF-MMI: as in shoal_lfmmi_options */
    float leak, output_l2, output_range; /* LF-MMI: likewise */
    /* Paths, and how data is read: */
    const char *folder;  /* of the data */
    const char *cache;   /* for features, created if missing; NULL: `shoal` in the user's
                            cache folder */
    const char *lexicon; /* LF-MMI: files, separated by commas */
    int32_t skip_bad;    /* nonzero: leave out utterances that cannot be used */
    int64_t pieces;      /* largest number of subwords */
} shoal_speech_train_config;

/* glue: a dataset of GLUE. */
typedef struct {
    shoal_train_config train;
    char dataset[SHOAL_TEXT_SIZE]; /* "RTE", ... */
    int64_t max_length;            /* largest number of tokens in a sequence */
    /* Paths, and how data is read: */
    const char *folder;       /* of the dataset, or with a folder for each dataset */
    const char *model_folder; /* of the BERT or RoBERTa to start from */
    int32_t skip_bad;         /* nonzero: leave out rows that cannot be used */
} shoal_glue_config;

/* squad: extractive answers to questions. */
typedef struct {
    shoal_train_config train;
    int64_t max_length; /* largest number of tokens in a sequence */
    int64_t stride;     /* tokens of the context from one window to the next */
    int64_t max_answer; /* largest number of tokens in an answer */
    /* Paths, and how data is read: */
    const char *folder, *dev; /* train.json and dev.json */
    const char *model_folder; /* of the BERT or RoBERTa to start from */
    int32_t skip_bad;         /* nonzero: leave out questions that cannot be used */
} shoal_squad_config;

typedef struct shoal_train_task shoal_train_task;

/* A task by its name: "copy", "speech", "glue" or "squad"; NULL if there is none, or if
   the library was built without speech. Names by index 0, 1, ...; NULL past the end. */
SHOAL_API const shoal_train_task *shoal_task_find(const char *name);
SHOAL_API const char *shoal_task_name(int index);

/* Fills in a task's configuration of `size` bytes. preset NULL: "default". speech also
   has "paper", "lf-mmi" and "paper-lf-mmi". The functions below do the same. */
SHOAL_API shoal_status shoal_config_init(shoal_context *context,
                                         const shoal_train_task *task, const char *preset,
                                         void *config, size_t size);

static inline shoal_copy_config shoal_copy_config_defaults(void) {
    shoal_copy_config config;
    shoal_config_init(NULL, shoal_task_find("copy"), NULL, &config, sizeof config);
    return config;
}
static inline shoal_speech_train_config
shoal_speech_train_config_defaults(const char *preset) {
    shoal_speech_train_config config;
    shoal_config_init(NULL, shoal_task_find("speech"), preset, &config, sizeof config);
    return config;
}
static inline shoal_glue_config shoal_glue_config_defaults(void) {
    shoal_glue_config config;
    shoal_config_init(NULL, shoal_task_find("glue"), NULL, &config, sizeof config);
    return config;
}
static inline shoal_squad_config shoal_squad_config_defaults(void) {
    shoal_squad_config config;
    shoal_config_init(NULL, shoal_task_find("squad"), NULL, &config, sizeof config);
    return config;
}

/* ---- Fields as text ---------------------------------------------------------------- */

typedef enum {
    SHOAL_FIELD_TYPE_NAME,      /* the task's name: always the first field, not stored */
    SHOAL_FIELD_TYPE_INTEGER,   /* an int64_t from min to max */
    SHOAL_FIELD_TYPE_REAL,      /* a float from min to max */
    SHOAL_FIELD_TYPE_CHOICE,    /* an int32_t or enum: an index into `choices` */
    SHOAL_FIELD_TYPE_SEED,      /* a uint64_t */
    SHOAL_FIELD_TYPE_TEXT,      /* a char [SHOAL_TEXT_SIZE] */
    SHOAL_FIELD_TYPE_ATTENTION, /* a shoal_attention, as shoal_attention_parse reads it */
    SHOAL_FIELD_TYPE_COUNT
} shoal_field_type;

/* A row of a task's table of fields, which is used for text, JSON, command lines and
   checkpoints. */
typedef struct {
    const char *name; /* "learning_rate"; NULL ends a table */
    shoal_field_type type;
    size_t offset;                              /* in the task's configuration */
    double min, max;                            /* of numbers */
    const char *const *choices;                 /* ended by NULL */
    const char *about;                          /* one line of help */
    int (*valid)(void *user, const char *text); /* texts: nonzero if it is valid; may be
                                                   NULL */
    const char *rule;                           /* what `valid` requires, for messages */
    void *user;                                 /* first argument of `valid` */
} shoal_field;

/* Fields of a task, its own and the common ones, in the order of files: by index from 0,
   NULL past the end; or by name, where '-' counts as '_', NULL if there is none. */
SHOAL_API const shoal_field *shoal_task_field(const shoal_train_task *task, int index);
SHOAL_API const shoal_field *shoal_task_field_find(const shoal_train_task *task,
                                                   const char *name);

enum { SHOAL_VALUE_SIZE = 160 }; /* bytes that hold the text of any field */

/* Sets a field from text. The message of an error names field, value and rule. */
SHOAL_API shoal_status shoal_config_set(shoal_context *context,
                                        const shoal_train_task *task, void *config,
                                        const char *name, const char *text);
/* Prints a field as snprintf does. An unknown name gives 0 and "". */
SHOAL_API size_t shoal_config_get(const shoal_train_task *task, const void *config,
                                  const char *name, char *text, size_t size);
/* Prints all fields as one JSON object of numbers, booleans and strings. Returns its
   length; if that is not less than size, nothing is printed. */
SHOAL_API size_t shoal_config_json(const shoal_train_task *task, const void *config,
                                   char *text, size_t size);

/* ---- Scores, steps, state ---------------------------------------------------------- */

typedef struct {
    double loss;     /* mean over the counted positions, labels or sequences; NaN if there
                        are none */
    double accuracy; /* correct / counted, NaN if nothing was counted; of speech 1 - error
                        rate; of glue and squad the metric */
    int64_t correct, counted; /* of speech: labels minus edits, and labels */
    int64_t impossible;       /* speech: utterances too short for their labels */
    int64_t broken;           /* speech: utterances whose loss is not finite */
    const char *metric;       /* name of what accuracy is; NULL: accuracy */
    const char *second;       /* name of a second metric, or NULL */
    double second_value;
} shoal_train_score;

typedef struct {
    shoal_train_score score; /* of the batch, before the step */
    double gradient_norm;    /* before clipping */
    double learning_rate;
    int64_t sequences;
    double seconds;      /* of the whole step */
    double loss_seconds; /* speech: of the loss and its gradient; else 0 */
} shoal_train_step;

typedef struct {
    int64_t step;         /* steps done */
    int64_t validations;  /* done, without those that have no effect */
    int64_t validated_at; /* step of the last validation */
    int64_t perfect;      /* last validations in a row without an error */
    double seconds;       /* of steps and validations, earlier calls included */
    double best;          /* 1 - accuracy of the best validation */
    int64_t best_step;    /* its step; 0: none yet, or the task does not keep it */
} shoal_train_state;

/* ---- Callbacks --------------------------------------------------------------------- */

typedef enum {
    SHOAL_TRAIN_EVENT_DATA,       /* features of a data folder: `done` of `all` */
    SHOAL_TRAIN_EVENT_BEGINNING,  /* the first step follows */
    SHOAL_TRAIN_EVENT_STEP,       /* after a step */
    SHOAL_TRAIN_EVENT_VALIDATION, /* after a validation */
    SHOAL_TRAIN_EVENT_TEST,       /* the test follows */
    SHOAL_TRAIN_EVENT_SAVING,     /* a checkpoint is about to be written */
    SHOAL_TRAIN_EVENT_SAVED,      /* after writing it, successfully or not */
    SHOAL_TRAIN_EVENT_END,        /* of reading data, of the loop, of the test */
    SHOAL_TRAIN_EVENT_EVALUATION  /* sequences `done` of `all`; all 0: see `what` */
} shoal_train_event;

typedef struct {
    shoal_train_event event;
    const char *what;                    /* data: its folder; evaluation: the row's name,
                                            or what is tuned; else NULL */
    int64_t done, all;                   /* data: utterances; steps: done, and in all */
    double elapsed;                      /* seconds of this call's loop */
    int64_t steps, sequences;            /* done in this call's loop */
    const shoal_train_state *state;      /* steps and validations, as are the next two */
    const shoal_train_step *step;        /* the last step */
    const shoal_train_score *validation; /* of this event; else NULL */
} shoal_train_progress;

/* Each function may be NULL. */
typedef struct {
    void *user; /* first argument of every function */
    void (*progress)(void *user, const shoal_train_progress *progress);
    /* A warning, such as about an utterance that cannot be used; a line that continues
       the previous one begins with a space. */
    void (*message)(void *user, const char *text);
    int (*cancelled)(void *user); /* return nonzero to cancel */
    void *reserved[4];
} shoal_train_callbacks;

/* ---- Runs -------------------------------------------------------------------------- */

#define SHOAL_RUN_CHECKPOINT "checkpoint.safetensors"
#define SHOAL_RUN_BEST "best.safetensors" /* for tasks that keep the best weights */
#define SHOAL_RUN_LOG "log.jsonl"         /* docs/train.md describes its lines */
#define SHOAL_RUN_GRAPH "phones.graph"    /* LF-MMI: graph that decodes phones */

/* A field and its value as text. */
typedef struct {
    const char *name, *value;
} shoal_setting;

typedef struct {
    size_t size;
    const char *folder; /* created if missing; never NULL */
    const char *from;   /* run or file whose weights a new training starts from; NULL: the
                           task's initial weights */
    int32_t resume;     /* nonzero: resume from the folder's checkpoint if there is one,
                           with the checkpoint's configuration */
    const shoal_setting *settings; /* [setting_count]: fields that a resumed run must
                           agree with; `steps` may differ and is changed */
    int64_t setting_count;
    double save_seconds;  /* between checkpoints; 0: after every step */
    double stop_seconds;  /* limit of training time, earlier calls included; 0: none */
    int64_t test_batches; /* of the final test, for tasks that have one */
    shoal_transport *transport; /* NULL: one process */
    shoal_train_callbacks callbacks;
} shoal_run_options;

/* Defaults: save_seconds 60, test_batches 20. init fills in a struct of `size` bytes. */
SHOAL_API void shoal_run_options_init(shoal_run_options *options, size_t size);
static inline shoal_run_options shoal_run_options_defaults(void) {
    shoal_run_options options;
    shoal_run_options_init(&options, sizeof options);
    return options;
}

/* Where the cause of an error lies. */
typedef enum {
    SHOAL_RUN_CAUSE_NONE,
    SHOAL_RUN_CAUSE_SETTINGS, /* the configuration or the options */
    SHOAL_RUN_CAUSE_INPUT,    /* data, checkpoint or log; or the training diverged */
    SHOAL_RUN_CAUSE_OUTPUT    /* a file cannot be written, or memory ran out */
} shoal_run_cause;

typedef struct {
    shoal_train_state state;      /* at the end */
    shoal_train_step last_step;   /* of this call, if `stepped` */
    shoal_train_score validation; /* the last one of this call, if `validated` */
    shoal_train_score test;       /* if `tested` */
    int32_t stepped, validated, tested;
    int32_t finished;            /* the training is complete */
    int32_t timed;               /* ended by stop_seconds */
    int32_t saved;               /* the checkpoint contains `state` */
    int32_t busy;                /* another process is training in this folder */
    int32_t agreed;              /* several processes: all failed; the first has the
                                    message */
    double sequences_per_second; /* of this call; NaN if it was too short */
    double loss_share;           /* time share of the loss in steps; NaN: not measured */
    shoal_run_cause cause;       /* if the status is not SHOAL_OK */
    int64_t reserved[8];
} shoal_run_result;

/* Starts or resumes a run in a folder, and trains until it is finished, cancelled
   (SHOAL_CANCELLED) or out of time; finally writes a checkpoint. An existing training is
   neither overwritten nor resumed unless the options say so. config is the task's, and is
   updated to what was run. result may be NULL. */
SHOAL_API shoal_status shoal_train_run(shoal_context *context,
                                       const shoal_train_task *task, void *config,
                                       const shoal_run_options *options,
                                       shoal_run_result *result);

/* The name of the task of a run's folder or file, which need not be a task of this
   library. */
SHOAL_API shoal_status shoal_run_task(shoal_context *context, const char *path,
                                      char name[SHOAL_TEXT_SIZE]);
/* The configuration of a run's folder or file. Paths in *config stay as they are, so
   initialise it with its _defaults function. */
SHOAL_API shoal_status shoal_run_config(shoal_context *context,
                                        const shoal_train_task *task, const char *path,
                                        void *config);

/* Converts the log of a run (its folder, or the file): to a table of all steps if path
   ends with .csv, to TensorBoard events if its name contains "tfevents". */
SHOAL_API shoal_status shoal_run_export(shoal_context *context, const char *run,
                                        const char *path);

/* Checks another part of a data folder than train and dev ("test") before a long
   training: recordings and transcripts, whose units must be those of train with CTC.
   callbacks may be NULL. */
SHOAL_API shoal_status shoal_speech_check(shoal_context *context,
                                          const shoal_speech_train_config *config,
                                          const char *part,
                                          const shoal_train_callbacks *callbacks);

/* ---- The trainer ------------------------------------------------------------------- */

/* Single steps, for training loops and files of your own. */
typedef struct shoal_trainer shoal_trainer;

/* Opens the data and creates the model. callbacks and transport may be NULL. */
SHOAL_API shoal_status shoal_trainer_create(shoal_context *context,
                                            const shoal_train_task *task,
                                            const void *config,
                                            const shoal_train_callbacks *callbacks,
                                            shoal_transport *transport,
                                            shoal_trainer **trainer);
SHOAL_API void shoal_trainer_destroy(shoal_trainer *trainer); /* NULL is valid */

/* Loads initial weights: the task's own (path NULL), or those of a run's folder or
   file. Without this call they are random. */
SHOAL_API shoal_status shoal_trainer_start(shoal_trainer *trainer, const char *path);

/* One step. step may be NULL. */
SHOAL_API shoal_status shoal_trainer_step(shoal_trainer *trainer, shoal_train_step *step);
/* One validation. After a multiple of validate_every steps, its score also goes to the
   schedule and the stopping rule. score may be NULL. */
SHOAL_API shoal_status shoal_trainer_validate(shoal_trainer *trainer,
                                              shoal_train_score *score);
/* Nonzero if a validation is due before the next step; if the training is complete. */
SHOAL_API int shoal_trainer_must_validate(const shoal_trainer *trainer);
SHOAL_API int shoal_trainer_finished(const shoal_trainer *trainer);

/* Parts of the data; they have no batch in common. */
typedef enum { SHOAL_PART_TRAIN, SHOAL_PART_VALIDATION, SHOAL_PART_TEST } shoal_part;

/* Scores the weights with another kind of attention (NULL: that of the training) on the
   validation data, or on `batches` batches of the test, which neither training nor
   validation uses, if the task has one (copy). With 0 batches it only checks that the
   weights support the kind. Changes nothing. */
SHOAL_API shoal_status shoal_trainer_evaluate(shoal_trainer *trainer,
                                              const shoal_attention *attention,
                                              shoal_part part, int64_t batches,
                                              shoal_train_score *score);

/* Writes a checkpoint, atomically. */
SHOAL_API shoal_status shoal_trainer_save(shoal_trainer *trainer, const char *path);
/* Resumes from a checkpoint. One with another configuration is refused, and the message
   names the first field that differs; only `steps` may differ. */
SHOAL_API shoal_status shoal_trainer_resume(shoal_trainer *trainer, const char *path);

/* The trainer owns the results. The configuration is complete, with values that come from
   the data. */
SHOAL_API shoal_model *shoal_trainer_model(shoal_trainer *trainer);
SHOAL_API const void *shoal_trainer_config(const shoal_trainer *trainer);
SHOAL_API const shoal_train_state *shoal_trainer_state(const shoal_trainer *trainer);

/* ---- Datasets of GLUE -------------------------------------------------------------- */

typedef struct {
    const char *name;            /* "RTE" */
    const char *metric, *second; /* of its scores; second may be NULL */
    int64_t classes;             /* 1: a number from 0 to 5 */
} shoal_glue_info;

/* The datasets that the task glue knows, by index from 0; NULL past the end. */
SHOAL_API const shoal_glue_info *shoal_glue_describe(int index);
/* Nonzero if a folder, of the dataset or of all, has the files of a dataset. */
SHOAL_API int shoal_glue_is_there(const char *dataset, const char *folder);

/* ---- Fine-tuned text models -------------------------------------------------------- */

/* A BERT or RoBERTa that the task glue or squad has fine-tuned, opened from its run.
   (For a recogniser see shoal_recogniser_open in shoal_speech.h.) */
typedef struct shoal_finetuned shoal_finetuned;

/* path: the folder of a run, of which the best weights are used, or else those of the
   checkpoint; or a file in it. attention NULL: that of the training. */
SHOAL_API shoal_status shoal_finetuned_open(shoal_context *context, const char *path,
                                            const shoal_attention *attention,
                                            shoal_finetuned **model);
SHOAL_API void shoal_finetuned_destroy(shoal_finetuned *model); /* NULL is valid */

typedef struct {
    const char *task;          /* "glue" or "squad" */
    const char *dataset;       /* "RTE", ...; "SQuAD" */
    const char *path;          /* file of its weights */
    int32_t not_best;          /* nonzero: the folder has no best weights yet */
    int64_t step;              /* of the training */
    int64_t classes;           /* glue: outputs for a text; 1: a number */
    int64_t max_length;        /* largest number of tokens in a sequence */
    shoal_attention attention; /* of the training */
} shoal_finetuned_info;
/* The model owns the result; NULL for NULL. */
SHOAL_API const shoal_finetuned_info *
shoal_finetuned_describe(const shoal_finetuned *model);
/* glue: the name of class 0 .. classes - 1, "entailment" or its number; NULL beyond. */
SHOAL_API const char *shoal_finetuned_class(const shoal_finetuned *model, int64_t index);

/* glue: logits [count][classes] of texts [count], or of pairs, as in the dataset. Long
   texts are truncated. */
SHOAL_API shoal_status shoal_finetuned_classify(shoal_finetuned *model, int64_t count,
                                                const shoal_text *texts, float *logits);

typedef struct {
    const char *text;   /* valid until the next call; "" if there is no answer */
    double score;       /* sum of two logits, comparable within the model */
    int64_t begin, end; /* bytes of the context */
    int64_t windows;    /* into which the context was divided */
} shoal_answer;

/* squad: the part of the context that answers the question, both UTF-8 and terminated by
   0. */
SHOAL_API shoal_status shoal_finetuned_answer(shoal_finetuned *model,
                                              const char *question, const char *text,
                                              shoal_answer *answer);

/* ---- Evaluation -------------------------------------------------------------------- */

/* Evaluates a trained model with several kinds of attention on the same data: fresh
   batches (copy), the dev part (glue, squad) or a data folder (speech). */
typedef struct {
    size_t size;
    const shoal_attention *attention; /* [kinds] */
    int64_t kinds;                    /* up to 32; 0: only that of the training */
    int32_t
        controls; /* speech, glue, squad: nonzero: also with uniform attention, without
                         attention, and with clustered-1. If these are not much worse, the
                         model hardly uses its attention, and every kind looks good */
    const char *data; /* speech: a data folder, never NULL; glue: the folder, squad:
                         dev.json, NULL: those of the training */
    int32_t skip_bad; /* nonzero: leave out utterances, rows and questions that cannot be
                         used */
    int64_t batches;  /* copy: number of batches of the training's size */
    /* speech: */
    const char *labels; /* file of transcripts; NULL: that of the training; for LF-MMI
                           `phones`, or words by the recogniser's lexicon */
    const char *cache;  /* for features; NULL: that of the training */
    double join;        /* seconds; negative: that of the training */
    const shoal_recogniser_options *recogniser; /* beams; with lexicon and lm, word errors
                           are counted too, against the folder's file `text`; NULL: the
                           defaults */
    const char *tune; /* words: a data folder on which lm_weight and insertion are chosen
                         for the fewest errors; NULL: as given */
    shoal_train_callbacks callbacks;
} shoal_evaluation_options;

/* Defaults: batches 20, join -1. init fills in a struct of `size` bytes. */
SHOAL_API void shoal_evaluation_options_init(shoal_evaluation_options *options,
                                             size_t size);
static inline shoal_evaluation_options shoal_evaluation_options_defaults(void) {
    shoal_evaluation_options options;
    shoal_evaluation_options_init(&options, sizeof options);
    return options;
}

typedef struct shoal_evaluation shoal_evaluation;

/* path: the folder of a run or a file in it. options may be NULL. SHOAL_INVALID: the
   options do not fit the run; SHOAL_BAD_FILE: the weights do not support them, or the
   data cannot be used; SHOAL_IO: the features cannot be written to the cache. */
SHOAL_API shoal_status shoal_evaluation_create(shoal_context *context, const char *path,
                                               const shoal_evaluation_options *options,
                                               shoal_evaluation **evaluation);
SHOAL_API void shoal_evaluation_destroy(shoal_evaluation *evaluation); /* NULL: valid */

typedef struct {
    const char *task;    /* "copy", "speech", "glue" or "squad" */
    const char *dataset; /* glue, squad: "RTE", ...; "SQuAD"; else NULL */
    const char *path;    /* file of the weights */
    const char *trained; /* kind of attention of the training */
    int64_t step;        /* of the training */
    int64_t batch;       /* sequences of a batch */
    int64_t sequences;   /* evaluated: texts, questions, sequences; of copy batches */
    int64_t labels;      /* speech: of all sequences */
    double seconds;      /* speech: of sound */
    int64_t impossible;  /* speech: sequences with more labels than positions */
    int64_t words, missing_words;      /* in the references, and those in no lexicon or
                                          language model */
    shoal_word_settings word_settings; /* that words were decoded with */
} shoal_evaluation_info;
SHOAL_API const shoal_evaluation_info *
shoal_evaluation_describe(const shoal_evaluation *evaluation);

/* One row for each kind, then the controls. */
typedef struct {
    const char *kind;         /* or the control's name */
    int32_t control;          /* nonzero: a control */
    int32_t trained;          /* nonzero: the kind of the training */
    double loss;              /* as in shoal_train_score; NaN: none */
    int64_t correct, counted; /* likewise; speech: 0 */
    int64_t scores;
} shoal_evaluation_row;

typedef struct {
    const char *name; /* "accuracy", "f1", ...; "error_rate", "word_error_rate" */
    double value;     /* error rates in percent */
    double seconds;   /* of the model, for words of the search; copy: 0 */
    /* Error rates; else NaN and 0. 95 % intervals of shoal_bootstrap_rates: */
    double low, high;
    double difference, difference_low, difference_high; /* from the first row's rate */
    shoal_edits edits;
} shoal_evaluation_score;

/* SHOAL_INVALID if there is no such row or score. */
SHOAL_API shoal_status shoal_evaluation_row_get(const shoal_evaluation *evaluation,
                                                int64_t index, shoal_evaluation_row *row);
SHOAL_API shoal_status shoal_evaluation_score_get(const shoal_evaluation *evaluation,
                                                  int64_t row, int64_t index,
                                                  shoal_evaluation_score *score);
/* The whole as a JSON object, as `shoal eval --json` prints it; for speech with the
   errors of each sequence. The evaluation owns the result. */
SHOAL_API const char *shoal_evaluation_json(const shoal_evaluation *evaluation);
/* The predictions of the first row: of glue a table with tabs, of squad the JSON object
   that its official program reads; NULL for others. */
SHOAL_API const char *shoal_evaluation_predictions(const shoal_evaluation *evaluation);

/* ---- Tasks of your own ------------------------------------------------------------- */

/* examples/train_task.c is a complete task. The trainer calls `open` once; then for every
   step `batch`, the model's forward, `step` and the model's backward; for every batch of
   a validation `batch`, forward and `step`; and after its last batch `score`. */

/* This process is number `index` of `count` that train together; 0 of 1 if it is
   alone. */
typedef struct {
    int64_t index, count;
} shoal_share;

/* Of `things` equal things, this process has *own, from *first on. */
SHOAL_API void shoal_share_split(shoal_share share, int64_t things, int64_t *first,
                                 int64_t *own);

/* What a task needs to open its data. */
typedef struct {
    shoal_context *context;
    shoal_share share;                      /* as in later calls of `batch` */
    const shoal_train_callbacks *callbacks; /* never NULL */
    const char *resumed; /* folder of a run that is resumed; NULL: a new training */
} shoal_task_opening;

/* Limits of this process's share of any batch, and the number of batches of a
   validation. */
typedef struct {
    int64_t max_batch, max_rows;
    int64_t validation_batches; /* 0, with SHOAL_TASK_ENDLESS: validate_batches new
                                   ones */
} shoal_task_sizes;

/* What a batch adds to a score. */
typedef struct {
    double loss;    /* mean over `weight` */
    double weight;  /* number of positions, labels or sequences that count */
    double sum;     /* loss x weight, if it is known more precisely; 0: their product */
    double divisor; /* of the loss whose gradient was computed; 0: weight */
    int64_t correct, counted, impossible, broken; /* as in shoal_train_score */
} shoal_train_counts;

/* Flags of a task: groups of common fields that it has besides those that all have, and
   services of the trainer. */
enum {
    SHOAL_TASK_MODEL = 1,           /* shared_qk, layers, ..., dropout */
    SHOAL_TASK_CONVOLUTIONS = 2,    /* convolutions */
    SHOAL_TASK_EPOCHS = 4,          /* epochs, decay, decay_steps */
    SHOAL_TASK_WARMUP_SHARE = 8,    /* warmup_share */
    SHOAL_TASK_VALIDATE_EVERY = 16, /* validate_every; otherwise `open` sets it */
    SHOAL_TASK_ENDLESS = 32,    /* validate_batches, stop_after; there is no last batch, a
                                   validation uses new batches, its loss is the mean of
                                   theirs, and there is a test */
    SHOAL_TASK_BEST = 64,       /* the weights of the best validation are kept */
    SHOAL_TASK_COLLECTS = 128,  /* `score` needs the whole validation: the first process
                                   does it and sends the others the result */
    SHOAL_TASK_TIMES_LOSS = 256 /* the log has the seconds of `step` */
};

struct shoal_train_task {
    const char *name;
    size_t config_size;        /* of a struct that begins with a shoal_train_config */
    const shoal_field *fields; /* its own, ended by a row with name NULL; may be NULL */
    unsigned flags;
    void *user; /* first argument of `defaults` and `open` */

    /* Changes a configuration that is 0 except for its common part, which has the
       defaults of copy. Returns nonzero if there is no such preset (NULL: the
       default). */
    int (*defaults)(void *user, const char *preset, void *config);

    /* Reads the data and completes the configuration, which stays at its address until
       close: sizes of the model, steps if they are 0 (and there are epochs), and the
       fingerprint `data`. *data is the first argument of all functions below. Report
       errors with shoal_context_fail. */
    shoal_status (*open)(void *user, const shoal_task_opening *opening, void *config,
                         void **data, shoal_task_sizes *sizes);
    /* Called after `open`, even if that failed; data may be NULL. */
    void (*close)(void *data);

    /* This process's share of batch `number`, counted from 0 in each part. Sets batch,
       offsets and whatever else the model needs; for a share also first_row and
       first_sequence. The task owns the arrays. */
    shoal_status (*batch)(void *data, shoal_part part, int64_t number, shoal_share share,
                          shoal_model_inputs *inputs);
    /* out: the model's outputs for the last batch. gradient: that of the mean loss with
       respect to out, in its shape; in training it is `out` itself, else NULL. */
    shoal_status (*step)(void *data, const float *out, float *gradient,
                         shoal_train_counts *counts);

    /* The functions below may be NULL. */
    /* Called after the last batch of a validation. *score follows from the counts, and
       may be replaced by a score of collected predictions. */
    shoal_status (*score)(void *data, shoal_train_score *score);
    /* Loads initial weights; NULL: they are random. */
    shoal_status (*start)(void *data, shoal_model *model);
    /* Write files to the run's folder: before its first checkpoint, and together with the
       best weights, which the model then has. */
    shoal_status (*prepare)(void *data, const char *folder);
    shoal_status (*publish)(void *data, shoal_model *model, const char *folder);
    /* Text that checkpoints store under the key; weights of a run with another text are
       refused. */
    const char *note_key;
    const char *(*note)(void *data);
    void *reserved[8];
};

/* For tasks: records a message, formatted as by printf, and returns the status. */
SHOAL_API shoal_status shoal_context_fail(shoal_context *context, shoal_status status,
                                          const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;

#ifdef __cplusplus
}
#endif
#endif
