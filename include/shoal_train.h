/* Shoal's training: recognisers, text models and tasks of your own, as runs that can be
 * interrupted and go on to the same bits.
 *
 * A task says what the data is and what is wanted of a model's outputs; the trainer does
 * the rest: forward, backward, clipping, the schedule of the learning rate, averages,
 * validation, checkpoints. A run is a training in a folder, with a log. Four tasks are
 * here: copy (a masked copy, made in memory), speech (a recogniser, by CTC or LF-MMI),
 * glue and squad (a BERT or RoBERTa trained further).
 *
 * A COMPLETE PROGRAM
 *
 *     #include <shoal_train.h>
 *     #include <stdio.h>
 *
 *     int main(int count, char **arguments) {
 *         shoal_context *context;
 *         shoal_speech_train_config config = shoal_speech_defaults(NULL);
 *         shoal_run_options options = shoal_run_defaults();
 *         shoal_run_result result;
 *         if (count < 3 || shoal_context_create(NULL, &context) != SHOAL_OK) return 1;
 *         config.folder = arguments[1];           // with the folders train and dev
 *         options.folder = arguments[2];          // checkpoint, best model and log
 *         options.resume = 1;                     // or begin, where there is none
 *         if (shoal_config_set(context, shoal_task_find("speech"), &config, "attention",
 *                              "shoal") ||
 *             shoal_train_run(context, shoal_task_find("speech"), &config, &options,
 *                             &result)) {
 *             fprintf(stderr, "%s\n", shoal_context_message(context));
 *             return 1;
 *         }
 *         printf("error rate %.2f %%\n", 100 * result.state.best);
 *         shoal_context_destroy(context);
 *     }
 *
 * THE RULES, ONCE (those of shoal.h and shoal_models.h hold too)
 *
 * Config.   A configuration begins with a shoal_train_config. Its _defaults function
 *           fills it in and writes down its size: use that function always. Every field
 *           has a name, by which it can be set and printed as text (shoal_config_set).
 *           Paths are no fields: no file keeps them, and the strings stay yours, valid
 *           until the trainer is destroyed.
 * Bits.     A training is a function of configuration and data: not of the number of
 *           threads, nor of interruptions. Batches, dropout and validation data follow
 *           from the seed and from counts, which a checkpoint has.
 * Output.   Nothing is printed. Progress and warnings go to callbacks, which are called
 *           in the thread of the call.
 * Cancel.   The callback `cancelled` is asked between steps, and while data is read. A
 *           run that is cancelled writes its checkpoint and returns SHOAL_CANCELLED.
 * Processes. With a transport (shoal_mpi.h has one) several processes train together:
 *           all of them make the same calls, each has its share of every batch, and the
 *           first one writes the files.
 */
#ifndef SHOAL_TRAIN_H
#define SHOAL_TRAIN_H

#include "shoal_models.h"
#include "shoal_speech.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configurations ---------------------------------------------------------------- */

enum { SHOAL_TEXT_SIZE = 64 }; /* bytes of a text field, its 0 included */

/* What all trainings have. */
typedef struct {
    size_t size;              /* bytes of the whole configuration; by _defaults */
    shoal_model_config model; /* vocabulary, features, outputs, max_length and pooling
                                 are the task's; of glue and squad all but attention */
    shoal_optimizer_config optimizer;
    float learning_rate;
    float clip;          /* largest norm of the gradient; 0: no limit */
    int64_t warmup;      /* steps until the learning rate is whole */
    float warmup_share;  /* glue, squad: of the steps, where warmup is 0 */
    int32_t decay;       /* with epochs: decay_steps becomes the number of steps */
    int64_t decay_steps; /* from there on the rate falls linearly, to 0 behind this step;
                             0: it does not */
    int64_t plateau_patience; /* so many validations in a row without a lower loss (by a
                                 ten-thousandth) are forgiven; the next one multiplies
                                 the rate by plateau_factor, down to a thousandth;
                                 0: never */
    float plateau_factor;
    int64_t batch;            /* sequences of a step */
    int64_t steps;            /* 0: as many as `epochs` have */
    int64_t epochs;           /* times through the data; tasks that have epochs */
    int64_t average_every;    /* several processes: each goes on alone, and after so many
                              steps their weights are averaged; 0: gradients are summed */
    int64_t validate_every;   /* steps; of glue and squad an epoch has */
    int64_t validate_batches; /* of tasks whose batches never end (copy) */
    int64_t stop_after; /* finished after so many validations in a row without a mistake;
                           0: only after all steps */
    uint64_t seed;      /* of weights, data and dropout */
    char data[SHOAL_TEXT_SIZE]; /* a fingerprint of the data, found when it is opened */
} shoal_train_config;

typedef enum { SHOAL_COPY_MASKED, SHOAL_COPY_ALL } shoal_copy_loss;

/* copy: a sequence is 0w0w with w of `length` symbols from 1 to 10; a fifth of the
   symbols is masked, never both copies of one, and the masked ones are wanted. */
typedef struct {
    shoal_train_config train;
    int64_t length;
    int32_t loss; /* a shoal_copy_loss: over masked positions, or over all */
} shoal_copy_config;

typedef enum { SHOAL_SPEECH_CTC, SHOAL_SPEECH_LFMMI } shoal_speech_loss;

/* What a recogniser spells. Opening the data makes one of the others of SHOAL_UNITS_AUTO:
   characters of the file `text` by CTC, and words of any other file, such as phones, and
   by LF-MMI. */
typedef enum {
    SHOAL_UNITS_WORDS,
    SHOAL_UNITS_CHARACTERS,
    SHOAL_UNITS_SUBWORDS, /* frequent parts of words, learned from the train part */
    SHOAL_UNITS_AUTO
} shoal_units;

/* speech: a recogniser. The data folder has the folders train and dev, each as Kaldi
   keeps its data (docs/train.md). */
typedef struct {
    shoal_train_config train;
    int32_t loss;                 /* a shoal_speech_loss */
    int32_t units;                /* a shoal_units (default: SHOAL_UNITS_AUTO) */
    char labels[SHOAL_TEXT_SIZE]; /* the file of transcripts */
    int64_t bands, rate;  /* of features; samples per second, 0: as the train part has */
    int32_t normalise;    /* a shoal_normalise (shoal_speech.h) */
    int32_t whole;        /* LF-MMI: utterances begin and end as transcripts do */
    int64_t hop, context; /* frames between positions, and that a position sees */
    char speeds[SHOAL_TEXT_SIZE]; /* "0.9,1,1.1": one is drawn for each utterance */
    int64_t band_masks, band_mask, time_masks, time_mask; /* so many, up to so wide */
    int64_t mask_after;                                   /* epochs without masks */
    int64_t join_after;   /* epochs in which utterances are not joined */
    int64_t batch_frames; /* of a batch at most, unless one sequence alone has more */
    float join;           /* seconds up to which a speaker's utterances are joined */
    int32_t topology;     /* LF-MMI: a shoal_topology (shoal_speech.h), less 1 */
    int64_t every;        /* LF-MMI: positions between outputs */
    int64_t order, extra; /* LF-MMI: of the n-gram; extra 0: all histories */
    float leak, output_l2, output_range; /* LF-MMI */
    /* Paths, and how data is read: */
    const char *folder;  /* of the data */
    const char *cache;   /* for features, made if missing; NULL: shoal in the user's
                            folder of caches */
    const char *lexicon; /* LF-MMI: files with commas between */
    int32_t skip_bad;    /* leave out utterances that cannot be used */
    int64_t pieces;      /* subwords: how many at most */
} shoal_speech_train_config;

/* glue: a task of GLUE. */
typedef struct {
    shoal_train_config train;
    char dataset[SHOAL_TEXT_SIZE]; /* "RTE" and so on */
    int64_t max_length;            /* tokens of a sequence at most */
    /* Paths, and how data is read: */
    const char *folder; /* of the data: with a folder for each task, or the task's */
    const char *model_folder; /* of the BERT or RoBERTa to begin with */
    int32_t skip_bad;         /* leave out rows that cannot be used */
} shoal_glue_config;

/* squad: answers in contexts. */
typedef struct {
    shoal_train_config train;
    int64_t max_length; /* tokens of a sequence at most */
    int64_t stride;     /* tokens of the context from one window to the next */
    int64_t max_answer; /* tokens of an answer at most */
    /* Paths, and how data is read: */
    const char *folder, *dev; /* train.json and dev.json */
    const char *model_folder; /* of the BERT or RoBERTa to begin with */
    int32_t skip_bad;         /* leave out questions that cannot be used */
} shoal_squad_config;

typedef struct shoal_train_task shoal_train_task;

/* A task by its name: "copy", "speech", "glue", "squad"; NULL: there is none (speech:
   or it was not built). The names with index 0, 1, ...; NULL past the end. */
SHOAL_API const shoal_train_task *shoal_task_find(const char *name);
SHOAL_API const char *shoal_task_name(int index);

/* Fills in a task's configuration of `size` bytes. preset NULL: "default". speech also
   has "paper", and both with the loss LF-MMI: "lf-mmi" and "paper-lf-mmi". The functions
   below do the same. */
SHOAL_API shoal_status shoal_config_defaults(shoal_context *context,
                                             const shoal_train_task *task,
                                             const char *preset, void *config,
                                             size_t size);

static inline shoal_copy_config shoal_copy_defaults(void) {
    shoal_copy_config config;
    shoal_config_defaults(NULL, shoal_task_find("copy"), NULL, &config, sizeof config);
    return config;
}
static inline shoal_speech_train_config shoal_speech_defaults(const char *preset) {
    shoal_speech_train_config config;
    shoal_config_defaults(NULL, shoal_task_find("speech"), preset, &config,
                          sizeof config);
    return config;
}
static inline shoal_glue_config shoal_glue_defaults(void) {
    shoal_glue_config config;
    shoal_config_defaults(NULL, shoal_task_find("glue"), NULL, &config, sizeof config);
    return config;
}
static inline shoal_squad_config shoal_squad_defaults(void) {
    shoal_squad_config config;
    shoal_config_defaults(NULL, shoal_task_find("squad"), NULL, &config, sizeof config);
    return config;
}

/* ---- Fields as text ---------------------------------------------------------------- */

typedef enum {
    SHOAL_FIELD_NAME,      /* the task's name: always the first field, in no place */
    SHOAL_FIELD_INTEGER,   /* an int64_t from min to max */
    SHOAL_FIELD_REAL,      /* a float from min to max */
    SHOAL_FIELD_CHOICE,    /* an int32_t: which of `choices` */
    SHOAL_FIELD_SEED,      /* a uint64_t */
    SHOAL_FIELD_TEXT,      /* a char [SHOAL_TEXT_SIZE] */
    SHOAL_FIELD_ATTENTION, /* a shoal_attention, as shoal_attention_parse reads it */
    SHOAL_FIELD_TYPES
} shoal_field_type;

/* A row of a task's table. From it come text, JSON, command lines and checkpoints. */
typedef struct {
    const char *name; /* "learning_rate"; NULL ends a table */
    shoal_field_type type;
    size_t offset;                  /* in the task's configuration */
    double min, max;                /* numbers */
    const char *const *choices;     /* then NULL */
    const char *about;              /* one line */
    int (*valid)(const char *text); /* texts: nonzero where it may be so; NULL: always */
    const char *rule;               /* what `valid` wants, for messages */
} shoal_field;

/* Fields of a task, its own and the common ones, in the order of files; index counts
   from 0, NULL past the end. By its name, where '-' counts as '_'; NULL: none. */
SHOAL_API const shoal_field *shoal_task_field(const shoal_train_task *task, int index);
SHOAL_API const shoal_field *shoal_task_field_find(const shoal_train_task *task,
                                                   const char *name);

enum { SHOAL_VALUE_SIZE = 160 }; /* bytes that any field's text fits into */

/* Sets one field from text; refused with a message that names field, value and what it
   must be. */
SHOAL_API shoal_status shoal_config_set(shoal_context *context,
                                        const shoal_train_task *task, void *config,
                                        const char *name, const char *text);
/* Prints as snprintf does. A name that is none gives 0 and "". */
SHOAL_API size_t shoal_config_get(const shoal_train_task *task, const void *config,
                                  const char *name, char *text, size_t size);
/* All fields as one JSON object of numbers, booleans and strings; its length is
   returned, and nothing is printed where that is not less than size. */
SHOAL_API size_t shoal_config_json(const shoal_train_task *task, const void *config,
                                   char *text, size_t size);

/* ---- Scores, steps, state ---------------------------------------------------------- */

typedef struct {
    double loss;     /* mean over what counts: positions, labels, sequences; NaN: none */
    double accuracy; /* correct / counted, NaN where nothing was; of speech 1 - error
                        rate; of glue and squad the metric */
    int64_t correct, counted; /* of speech labels, and those less the edits */
    int64_t impossible; /* speech: utterances that cannot be aligned with their labels */
    int64_t broken;     /* and those whose loss came out as no number */
    const char *metric; /* what accuracy is instead; NULL: as above */
    const char *second; /* another metric with its value, or NULL */
    double second_value;
} shoal_train_score;

typedef struct {
    shoal_train_score score; /* of the batch, before the step */
    double gradient_norm;    /* before clipping */
    double learning_rate;
    int64_t sequences;
    double seconds;      /* of it all */
    double loss_seconds; /* speech: of these, for the loss and its gradient; else 0 */
} shoal_train_step;

typedef struct {
    int64_t step;         /* done */
    int64_t validations;  /* done, of those that decide something */
    int64_t validated_at; /* step of the last one */
    int64_t perfect;      /* latest validations in a row without a mistake */
    double seconds;       /* spent in steps and validations, earlier runs included */
    double best;          /* 1 - accuracy of the best validation, */
    int64_t best_step;    /* and its step; 0: none yet, or the task keeps none */
} shoal_train_state;

/* ---- Callbacks --------------------------------------------------------------------- */

typedef enum {
    SHOAL_AT_DATA,       /* features of a data folder: `done` of `all` */
    SHOAL_AT_BEGINNING,  /* of the loop: the first step comes next */
    SHOAL_AT_STEP,       /* one was taken */
    SHOAL_AT_VALIDATION, /* one was done */
    SHOAL_AT_TEST,       /* it comes next */
    SHOAL_AT_SAVING,     /* a checkpoint is about to be written */
    SHOAL_AT_SAVED,      /* it was, or could not be */
    SHOAL_AT_END,        /* of reading data, of the loop, of the test */
    SHOAL_AT_EVALUATION  /* sequences `done` of `all`; all 0: `what` says it */
} shoal_progress_event;

typedef struct {
    shoal_progress_event event;
    const char *what;                    /* data: its folder; evaluation: the row's name,
                                            or what is tuned; else NULL */
    int64_t done, all;                   /* data: utterances; steps: taken, and in all */
    double elapsed;                      /* seconds of this call's loop */
    int64_t steps, sequences;            /* taken in it */
    const shoal_train_state *state;      /* steps and validations, as all below */
    const shoal_train_step *step;        /* the last one */
    const shoal_train_score *validation; /* of this event; else NULL */
} shoal_train_progress;

/* Any of them may be NULL. */
typedef struct {
    void *user; /* comes first in every call */
    void (*progress)(void *user, const shoal_train_progress *progress);
    /* A warning, such as an utterance that cannot be used; lines that go on with the one
       before begin with a space. */
    void (*message)(void *user, const char *text);
    int (*cancelled)(void *user); /* nonzero: end soon */
} shoal_train_callbacks;

/* ---- Runs -------------------------------------------------------------------------- */

#define SHOAL_RUN_CHECKPOINT "checkpoint.safetensors"
#define SHOAL_RUN_BEST "best.safetensors" /* of tasks that keep the best weights */
#define SHOAL_RUN_LOG "log.jsonl"         /* docs/train.md has its lines */
#define SHOAL_RUN_GRAPH "phones.graph"    /* LF-MMI: what phones are decoded with */

/* A field and its value as text. */
typedef struct {
    const char *name, *value;
} shoal_setting;

typedef struct {
    size_t size;        /* by shoal_run_defaults */
    const char *folder; /* made if missing; never NULL */
    const char *from;   /* a run or file whose weights a new training begins with */
    int32_t resume;     /* nonzero: go on from the folder's checkpoint if there is one.
                            The configuration is the checkpoint's then */
    const shoal_setting *settings; /* [setting_count]: what is said again when a run goes
                            on. All but `steps` must be what the checkpoint has */
    int64_t setting_count;
    double save_seconds;  /* between checkpoints; 0: after every step (default: 60) */
    double stop_seconds;  /* of training, earlier runs included; 0: no end */
    int64_t test_batches; /* of tasks that have a test, at the end (default: 20) */
    shoal_transport *transport; /* NULL: this process is alone */
    shoal_train_callbacks callbacks;
} shoal_run_options;

SHOAL_API shoal_status shoal_run_options_defaults(shoal_run_options *options,
                                                  size_t size);
static inline shoal_run_options shoal_run_defaults(void) {
    shoal_run_options options;
    shoal_run_options_defaults(&options, sizeof options);
    return options;
}

/* Where to look for what went wrong. */
typedef enum {
    SHOAL_CAUSE_NONE,
    SHOAL_CAUSE_SETTINGS, /* the configuration or the options */
    SHOAL_CAUSE_INPUT,    /* data, checkpoint or log; or the training has diverged */
    SHOAL_CAUSE_OUTPUT    /* the folder or a file cannot be written, or memory ran out */
} shoal_run_cause;

typedef struct {
    shoal_train_state state;      /* at the end */
    shoal_train_step last_step;   /* of this call, if `stepped` */
    shoal_train_score validation; /* the last one of this call, if `validated` */
    shoal_train_score test;       /* if `tested` */
    int32_t stepped, validated, tested;
    int32_t finished;            /* nothing is left to do */
    int32_t timed;               /* ended by stop_seconds */
    int32_t saved;               /* the checkpoint is of `state` */
    int32_t busy;                /* somebody else is training in this folder */
    int32_t agreed;              /* of several processes all failed; the first says why */
    double sequences_per_second; /* of this call; NaN: too short to say */
    double loss_share;     /* of the steps' seconds, for the loss; NaN: not measured */
    shoal_run_cause cause; /* where the status is not SHOAL_OK */
} shoal_run_result;

/* One run in a folder: begins, or goes on, and trains until it is finished, cancelled
   (SHOAL_CANCELLED) or out of time; the last thing that it writes is a checkpoint. A
   training that is there is neither overwritten nor continued without being asked. config
   is the task's, and has what was run afterwards. result may be NULL. */
SHOAL_API shoal_status shoal_train_run(shoal_context *context,
                                       const shoal_train_task *task, void *config,
                                       const shoal_run_options *options,
                                       shoal_run_result *result);

/* The task that a run's folder or one of its files is of, by name: a note of the file,
   which need not be a task of this library. */
SHOAL_API shoal_status shoal_run_task(shoal_context *context, const char *path,
                                      char name[SHOAL_TEXT_SIZE]);
/* The configuration that a run's folder or one of its files was made with, but for
   paths, which stay as they are in *config (so begin with its _defaults). */
SHOAL_API shoal_status shoal_run_config(shoal_context *context,
                                        const shoal_train_task *task, const char *path,
                                        void *config);

/* Writes the log of a run (its folder, or the file) for other tools: a table of all steps
   where path ends with .csv, events for TensorBoard where its name has "tfevents". */
SHOAL_API shoal_status shoal_run_export(shoal_context *context, const char *run,
                                        const char *path);

/* Reads another part of a data folder than train and dev ("test"), to find what is wrong
   with it before hours of training: recordings and transcripts, whose units by CTC must
   be those of train. callbacks may be NULL. */
SHOAL_API shoal_status shoal_speech_check(shoal_context *context,
                                          const shoal_speech_train_config *config,
                                          const char *part,
                                          const shoal_train_callbacks *callbacks);

/* ---- The trainer ------------------------------------------------------------------- */

/* Steps one by one, for loops and files of your own. Steps allocate nothing that they
   did not need before. */
typedef struct shoal_trainer shoal_trainer;

/* Opens the data and creates the model. callbacks and transport may be NULL. */
SHOAL_API shoal_status shoal_trainer_create(shoal_context *context,
                                            const shoal_train_task *task,
                                            const void *config,
                                            const shoal_train_callbacks *callbacks,
                                            shoal_transport *transport,
                                            shoal_trainer **trainer);
SHOAL_API void shoal_trainer_destroy(shoal_trainer *trainer); /* NULL is legal */

/* The weights that a new training begins with, where they are not random: the task's own
   (path NULL), or those of another run's folder or file. */
SHOAL_API shoal_status shoal_trainer_start(shoal_trainer *trainer, const char *path);

/* One step. step may be NULL. */
SHOAL_API shoal_status shoal_trainer_step(shoal_trainer *trainer, shoal_train_step *step);
/* One validation. After a multiple of validate_every steps the schedule and the rule for
   stopping see the score. score may be NULL. */
SHOAL_API shoal_status shoal_trainer_validate(shoal_trainer *trainer,
                                              shoal_train_score *score);
/* Nonzero where a validation is due before the next step; where nothing is left to do. */
SHOAL_API int shoal_trainer_must_validate(const shoal_trainer *trainer);
SHOAL_API int shoal_trainer_finished(const shoal_trainer *trainer);

/* Parts of the data share no batch. */
typedef enum { SHOAL_PART_TRAIN, SHOAL_PART_VALIDATION, SHOAL_PART_TEST } shoal_part;

/* Another kind of attention (NULL: the trained one) with the same weights: on the
   validation's data, or on `batches` batches of the test, which neither training nor
   validation sees, where the task has one (copy). 0 batches: only whether the weights can
   do with it. Changes nothing. */
SHOAL_API shoal_status shoal_trainer_evaluate(shoal_trainer *trainer,
                                              const shoal_attention *attention,
                                              shoal_part part, int64_t batches,
                                              shoal_train_score *score);

/* A checkpoint, written whole or not at all. */
SHOAL_API shoal_status shoal_trainer_save(shoal_trainer *trainer, const char *path);
/* Goes on where a checkpoint was. One of another configuration is refused with the first
   field that differs; `steps` alone may. */
SHOAL_API shoal_status shoal_trainer_resume(shoal_trainer *trainer, const char *path);

/* They live as long as the trainer. config: with what the data said. */
SHOAL_API shoal_model *shoal_trainer_model(shoal_trainer *trainer);
SHOAL_API const void *shoal_trainer_config(const shoal_trainer *trainer);
SHOAL_API const shoal_train_state *shoal_trainer_state(const shoal_trainer *trainer);

/* ---- Datasets of GLUE -------------------------------------------------------------- */

typedef struct {
    const char *name;            /* "RTE" */
    const char *metric, *second; /* of its scores; second NULL: there is one alone */
    int64_t classes;             /* 1: a number from 0 to 5 */
} shoal_glue_info;

/* Those that the task glue knows, index from 0; returns 0 past the end. */
SHOAL_API int shoal_glue_describe(int index, shoal_glue_info *info);
/* Nonzero where a folder, of the dataset or of all, has the files of a dataset. */
SHOAL_API int shoal_glue_is_there(const char *dataset, const char *folder);

/* ---- Text models that were trained ------------------------------------------------- */

/* A BERT or RoBERTa that the task glue or squad has trained further, opened from its run.
   (A recogniser is opened by shoal_recogniser_open of shoal_speech.h.) */
typedef struct shoal_finetuned shoal_finetuned;

/* path: the folder of a run, whose best weights are taken, or else its checkpoint's; or a
   file in it. attention NULL: the one that it was trained with. */
SHOAL_API shoal_status shoal_finetuned_open(shoal_context *context, const char *path,
                                            const shoal_attention *attention,
                                            shoal_finetuned **model);
SHOAL_API void shoal_finetuned_close(shoal_finetuned *model); /* NULL is legal */

typedef struct {
    const char *task;          /* "glue" or "squad" */
    const char *dataset;       /* "RTE" and so on; "SQuAD" */
    const char *path;          /* the file of its weights */
    int32_t not_best;          /* nonzero: the folder has no best weights yet */
    int64_t step;              /* of the training */
    int64_t classes;           /* glue: outputs of a text; 1: a number */
    int64_t max_length;        /* tokens of a sequence at most */
    shoal_attention attention; /* it was trained with */
} shoal_finetuned_info;
SHOAL_API shoal_finetuned_info shoal_finetuned_describe(const shoal_finetuned *model);
/* glue: the name of class 0 .. classes - 1, "entailment" or its number; NULL beyond. */
SHOAL_API const char *shoal_finetuned_class(const shoal_finetuned *model, int64_t index);

/* glue: logits [count][classes] of texts, or of pairs as the dataset has them; those that
   are too long are cut. */
SHOAL_API shoal_status shoal_finetuned_classify(shoal_finetuned *model, int64_t count,
                                                const shoal_text *texts, float *logits);

typedef struct {
    const char *text;   /* until the next call; "": there is none */
    double score;       /* sum of two logits, to be compared with others of the model */
    int64_t begin, end; /* bytes of the context */
    int64_t windows;    /* that the context was read in */
} shoal_answer;

/* squad: the part of the context that answers the question, both UTF-8 that ends with
   0. */
SHOAL_API shoal_status shoal_finetuned_answer(shoal_finetuned *model,
                                              const char *question, const char *text,
                                              shoal_answer *answer);

/* ---- Evaluation -------------------------------------------------------------------- */

/* A trained model with other kinds of attention than it was trained with, all on the same
   data: fresh batches (copy), the dev part (glue, squad) or a data folder (speech). */
typedef struct {
    size_t size;                      /* by shoal_evaluation_defaults */
    const shoal_attention *attention; /* [kinds] */
    int64_t kinds;                    /* 0: the one that was trained with; 32 at most */
    int32_t controls; /* speech, glue, squad: nonzero: also with uniform attention, with
                         none, and clustered-1. Where these are not far worse, the model
                         hardly uses its attention, and every kind looks free */
    const char *data; /* speech: a data folder, never NULL; glue: the folder, squad:
                         dev.json, NULL: where the training had them */
    int32_t skip_bad; /* leave out utterances, rows and questions that cannot be used */
    int64_t batches;  /* copy: of the training's size (default: 20) */
    /* speech: */
    const char *labels; /* the file of transcripts; NULL: that of the training, of LF-MMI
                           `phones`, or else words by the recogniser's lexicon */
    const char *cache;  /* for features; NULL: as in the training */
    double join;        /* seconds; negative: as in the training */
    const shoal_recogniser_options *recogniser; /* beams; with lexicon and lm errors of
                           words are counted, too, against the folder's file `text`; NULL:
                           the defaults */
    const char *tune; /* words: lm_weight and insertion are those with the fewest errors
                         on this data folder; NULL: as given */
    shoal_train_callbacks callbacks;
} shoal_evaluation_options;

SHOAL_API shoal_status
shoal_evaluation_options_defaults(shoal_evaluation_options *options, size_t size);
static inline shoal_evaluation_options shoal_evaluation_defaults(void) {
    shoal_evaluation_options options;
    shoal_evaluation_options_defaults(&options, sizeof options);
    return options;
}

typedef struct shoal_evaluation shoal_evaluation;

/* path: the folder of a run or a file in it. options may be NULL. SHOAL_INVALID: the
   options do not go with the run; SHOAL_BAD_FILE: its weights cannot do what they ask, or
   the data cannot be used. */
SHOAL_API shoal_status shoal_evaluate(shoal_context *context, const char *path,
                                      const shoal_evaluation_options *options,
                                      shoal_evaluation **evaluation);
SHOAL_API void shoal_evaluation_destroy(shoal_evaluation *evaluation); /* NULL: legal */

typedef struct {
    const char *task;    /* "copy", "speech", "glue" or "squad" */
    const char *dataset; /* glue, squad: "RTE" and so on; "SQuAD"; else NULL */
    const char *path;    /* the file of its weights */
    const char *trained; /* the kind that it was trained with */
    int64_t step;        /* of the training */
    int64_t batch;       /* sequences of a batch */
    int64_t sequences;   /* evaluated: texts, questions, sequences; of copy batches */
    int64_t labels;      /* speech: of all sequences */
    double seconds;      /* speech: of sound */
    int64_t impossible;  /* speech: sequences with more labels than positions */
    int64_t words, missing_words;      /* said, and in no lexicon or language model */
    shoal_word_settings word_settings; /* that words were looked for with */
} shoal_evaluation_info;
SHOAL_API const shoal_evaluation_info *
shoal_evaluation_describe(const shoal_evaluation *evaluation);

/* One row for each kind, then the controls. */
typedef struct {
    const char *kind;         /* or the control's name */
    int32_t control;          /* nonzero: it is one */
    int32_t trained;          /* nonzero: the kind that it was trained with */
    double loss;              /* as in shoal_train_score; NaN: none */
    int64_t correct, counted; /* likewise; speech: 0 */
    int64_t scores;
} shoal_evaluation_row;

typedef struct {
    const char *name; /* "accuracy", "f1" and so on; "error_rate", "word_error_rate" */
    double value;     /* of an error rate in percent */
    double seconds;   /* of the model, of words those of the search; copy: 0 */
    /* Error rates; else NaN and 0. 95 % of the draws of shoal_bootstrap_rates: */
    double low, high;
    double difference, difference_low, difference_high; /* from the first row's rate */
    shoal_edits edits;
} shoal_evaluation_score;

/* SHOAL_INVALID: there is no such row or score. */
SHOAL_API shoal_status shoal_evaluation_row_get(const shoal_evaluation *evaluation,
                                                int64_t index, shoal_evaluation_row *row);
SHOAL_API shoal_status shoal_evaluation_score_get(const shoal_evaluation *evaluation,
                                                  int64_t row, int64_t index,
                                                  shoal_evaluation_score *score);
/* All of it as a JSON object, what `shoal eval --json` prints: of speech also the errors
   of each sequence. It is the evaluation's. */
SHOAL_API const char *shoal_evaluation_json(const shoal_evaluation *evaluation);
/* What the first row predicts: of glue a table with tabs, of squad the JSON object that
   its official program reads; NULL for others. */
SHOAL_API const char *shoal_evaluation_predictions(const shoal_evaluation *evaluation);

/* ---- Tasks of your own ------------------------------------------------------------- */

/* examples/train_task.c is one, complete. The trainer calls `open` once; then for every
   step `batch`, the model's forward, `step`, the model's backward; for every batch of a
   validation `batch`, forward, `step`; and after the last one `score`. */

/* This process is number `index` of `count` that train together; 0 of 1 where it is
   alone. */
typedef struct {
    int64_t index, count;
} shoal_share;

/* Of `things` equal things those from *first on, *own of them, are this process's. */
SHOAL_API void shoal_share_split(shoal_share share, int64_t things, int64_t *first,
                                 int64_t *own);

/* What a task knows when its data is opened. */
typedef struct {
    shoal_context *context;
    shoal_share share;                      /* as in later calls of `batch` */
    const shoal_train_callbacks *callbacks; /* never NULL */
    const char *resumed; /* the folder of a run that goes on; NULL: a new training */
} shoal_task_opening;

/* Limits of this process's share of any batch, and the batches of a validation. */
typedef struct {
    int64_t max_batch, max_rows;
    int64_t
        validation_batches; /* 0, with SHOAL_TASK_ENDLESS: validate_batches new ones */
} shoal_task_sizes;

/* What a batch adds to a score. */
typedef struct {
    double loss;    /* mean over `weight` */
    double weight;  /* how much counts: positions, labels, sequences */
    double sum;     /* loss x weight, where it is known better; 0: their product */
    double divisor; /* what the loss was divided by for the gradient; 0: weight */
    int64_t correct, counted, impossible, broken; /* as in shoal_train_score */
} shoal_train_counts;

/* Groups of common fields that a task has, beside those that all have; and what the
   trainer does for it. */
enum {
    SHOAL_TASK_MODEL = 1,           /* shared_qk, layers, ..., dropout */
    SHOAL_TASK_CONVOLUTIONS = 2,    /* convolutions */
    SHOAL_TASK_EPOCHS = 4,          /* epochs, decay, decay_steps */
    SHOAL_TASK_WARMUP_SHARE = 8,    /* warmup_share */
    SHOAL_TASK_VALIDATE_EVERY = 16, /* validate_every; without, `open` sets it */
    SHOAL_TASK_ENDLESS = 32,    /* validate_batches, stop_after; batches have no end, a
                                validation takes new ones, and its loss is the mean of
                                theirs; there is a test */
    SHOAL_TASK_BEST = 64,       /* the weights of the best validation are kept */
    SHOAL_TASK_COLLECTS = 128,  /* `score` needs the whole validation: the first process
                                  makes it, and tells the others */
    SHOAL_TASK_TIMES_LOSS = 256 /* the log has the seconds of `step` */
};

struct shoal_train_task {
    const char *name;
    size_t config_size;        /* of a struct that begins with a shoal_train_config */
    const shoal_field *fields; /* its own, a row with name NULL last; may be NULL */
    unsigned flags;
    void *user; /* the first argument of defaults and open */

    /* The configuration was set to 0 and its common part to the defaults of copy.
       Returns nonzero where there is no such preset (NULL: the default). */
    int (*defaults)(void *user, const char *preset, void *config);

    /* Reads the data and completes the configuration: the model's sizes, steps where they
       are 0 (and there are epochs), the fingerprint `data`. It stays where it is until
       close. *data comes first in all calls below. Messages by shoal_context_fail. */
    shoal_status (*open)(void *user, const shoal_task_opening *opening, void *config,
                         void **data, shoal_task_sizes *sizes);
    /* Closes what was opened, well or not; *data may be NULL. */
    void (*close)(void *data);

    /* This process's share of batch `number`, counted from 0: of the training the step's,
       of a validation its own. Sets batch, offsets and what else the model takes; of a
       share also first_row and first_sequence. Arrays are the task's. */
    shoal_status (*batch)(void *data, shoal_part part, int64_t number, shoal_share share,
                          shoal_model_inputs *inputs);
    /* out: the model's outputs for the last batch. gradient: of the mean loss by out, in
       its shape; it is `out` itself in training, and else NULL: none is wanted. */
    shoal_status (*step)(void *data, const float *out, float *gradient,
                         shoal_train_counts *counts);

    /* The rest may be NULL. */
    /* After a validation's last batch: *score is what the counts give, and may be changed
       to what collected predictions give. */
    shoal_status (*score)(void *data, shoal_train_score *score);
    /* Weights that a new training begins with; NULL: random ones. */
    shoal_status (*start)(void *data, shoal_model *model);
    /* Files of the run's folder, before its first checkpoint; and with the best weights,
       which the model has then. */
    shoal_status (*prepare)(void *data, const char *folder);
    shoal_status (*publish)(void *data, shoal_model *model, const char *folder);
    /* Text that checkpoints keep under the key; weights of a run with another text are
       refused. */
    const char *note_key;
    const char *(*note)(void *data);
};

/* For tasks: records a message, as printf has it, and returns the status. */
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
