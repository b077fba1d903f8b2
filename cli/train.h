/* Training from the command line: tasks with their data (train_copy.c, train_speech.c,
   train_text.c), the trainer that they share (trainer.c), its configuration as text
   (train_config.c), one run in a folder with its log (train_run.c). `shoal train` is one
   run, `shoal repro` is many. */
#ifndef SHOAL_CLI_TRAIN_H
#define SHOAL_CLI_TRAIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include <shoal_models.h>

#include "ranks.h"

enum { TRAIN_PATH = 4096, TRAIN_VALUE = 160, TRAIN_SETTINGS = 64, TRAIN_TEXT = 64 };

/* Why something was refused. */
typedef struct {
    char text[512];
} train_reason;

/* ---- The configuration (train_config.c) ------------------------------------------- */

typedef enum { LOSS_MASKED, LOSS_ALL } train_loss;

typedef enum { SPEECH_CTC, SPEECH_LFMMI } speech_loss;

enum { MOST_SPEEDS = 8 };

/* What the task speech has beside the rest. */
typedef struct {
    int32_t loss;            /* a speech_loss */
    char labels[TRAIN_TEXT]; /* the file of transcripts */
    int32_t units;           /* 0: its words, 1: its letters */
    char data[TRAIN_TEXT];   /* a fingerprint of the data, found when it is opened */
    int64_t bands, rate;     /* rate: samples per second; 0: as the train part has them */
    int32_t normalise;       /* a shoal_normalise */
    int64_t hop, context;    /* frames between positions, and that a position sees */
    char speeds[TRAIN_TEXT]; /* "0.9,1,1.1": one is drawn for each utterance */
    int64_t band_masks, band_mask, time_masks, time_mask; /* so many, up to so wide */
    int64_t mask_after;                                   /* epochs without masks */
    float join;           /* seconds up to which a speaker's utterances are joined */
    int64_t join_after;   /* epochs of training in which they are not */
    int64_t batch_frames; /* at most in a batch, unless one alone has more */
    int64_t epochs;       /* where steps is 0 */
    int32_t decay;        /* decay_steps becomes the number of steps */
    /* Of LF-MMI: */
    int64_t every;        /* positions between outputs */
    int32_t topology;     /* a shoal_topology, less 1 */
    int64_t order, extra; /* of the n-gram; extra 0: all histories */
    int32_t whole;        /* utterances begin and end as transcripts do */
    float leak, output_l2, output_range;
} speech_config;

/* What the tasks glue and squad have beside the rest; of speech's, data, epochs and decay
   are theirs too. */
typedef struct {
    char dataset[TRAIN_TEXT]; /* glue: RTE and so on */
    int64_t max_length;       /* tokens of a sequence at most */
    int64_t stride;           /* squad: of the context, from one window to the next */
    int64_t max_answer;       /* squad: tokens of an answer at most */
    float warmup_share;       /* of the steps, where warmup is 0 */
} text_settings;

typedef struct {
    char task[16]; /* "copy", "speech", "glue" or "squad" */
    speech_config speech;
    text_settings text;
    int64_t length;           /* symbols of w in 0w0w */
    int32_t loss;             /* a train_loss: over masked positions, or over all */
    shoal_model_config model; /* vocabulary, outputs, max_length are the task's */
    shoal_optimizer_config optimizer;
    float learning_rate;
    float clip;               /* of the gradient's norm; 0: none */
    int64_t warmup;           /* steps until the learning rate is whole */
    int64_t decay_steps;      /* from there it falls in a line, to 0 behind this step; 0:
                                 it does not */
    int64_t plateau_patience; /* so many validations in a row without a lower loss (by
                                 a ten thousandth) are forgiven; the next multiplies
                                 the rate by plateau_factor, down to a thousandth; 0:
                                 never */
    float plateau_factor;
    int64_t batch, steps;
    int64_t average_every; /* several ranks: each goes on alone, and after so many steps
                                 their weights are averaged; 0: gradients are summed */
    int64_t validate_every, validate_batches; /* fresh batches every so many steps */
    int64_t stop_after; /* finished after so many validations in a row without a
                                 mistake; 0: only after all steps */
    uint64_t seed;
    /* Where things are: no fields, and in no checkpoint. */
    const char *folder;       /* of the data; NULL: none */
    const char *cache;        /* of features */
    const char *dev;          /* squad: the other file */
    const char *model_folder; /* glue and squad: what the training begins with */
    const char *lexicon;      /* files with commas between; NULL: none */
    bool skip_bad;
    shoal_transport *ranks; /* NULL: this process is alone */
} train_config;

/* The settings that a task begins with; false: there is none of this name. */
bool train_is_text(const train_config *config); /* glue or squad */
bool train_defaults(const char *task, train_config *config, train_reason *reason);
/* The paper's for speech, in place of those; false: there is no such preset. */
bool train_preset(const char *preset, train_config *config, train_reason *reason);
/* What the loss lf-mmi has other than CTC, for either preset. */
void train_lfmmi_defaults(const char *preset, train_config *config);

/* Fields by name, as text: for flags, files and checkpoints. index counts from 0, NULL
   past the end. set reads '-' as '_', as flags are written, and gives the reason where it
   returns false. get prints as snprintf does; TRAIN_VALUE bytes are enough. */
const char *train_field(int index);
bool train_has_field(const train_config *config, int index); /* whether its task has it */
bool train_set(shoal_context *context, train_config *config, const char *name,
               const char *text, train_reason *reason);
/* "0.9,1,1.1" of speech; *plain: which of them is 1. Returns how many there are, 0: it is
   none of that form, or none is 1. */
int train_read_speeds(const char *text, double speed[MOST_SPEEDS], int *plain);
size_t train_get(const train_config *config, int index, char *text, size_t size);
/* All fields as one JSON object: numbers, booleans and strings. */
json_t *train_config_json(const train_config *config);

/* What the user set, in order; later ones win. Other fields keep the task's default, or
   the checkpoint's value when a run is resumed. */
typedef struct {
    const char *command; /* for complaints */
    const char *task;    /* that, too; NULL: it is not known yet */
    const char *file;    /* what is being read; NULL: the command line */
    int count;
    struct {
        char name[32], text[TRAIN_VALUE];
        const char *file;
    } list[TRAIN_SETTINGS];
} train_settings;

/* Each returns an exit code, after a complaint where it is not EXIT_OK. */
int settings_add(train_settings *settings, const char *name, const char *text);
/* What a field was set to last; NULL: it was not. */
const char *settings_find(const train_settings *settings, const char *name);
int settings_add_pair(train_settings *settings, const char *pair); /* "KEY=VALUE" */
/* A JSON object of fields; keys that are none are refused by name. */
int settings_add_file(train_settings *settings, const char *path);
/* Exactly the fields of the configuration. */
int settings_add_all(train_settings *settings, const train_config *config);
/* Puts them into the configuration. */
int settings_apply(const train_settings *settings, shoal_context *context,
                   train_config *config);

/* ---- The masked copy (train_copy.c) ------------------------------------------------ */

/* Splits share no batch. */
typedef enum { SPLIT_TRAIN, SPLIT_VALIDATE, SPLIT_TEST } copy_split;

typedef struct {
    int64_t first, count;    /* of its sequences there are these: a rank's share */
    int64_t *offsets;        /* [count + 1] */
    int32_t *tokens;         /* [rows] */
    int32_t *targets;        /* [rows]: what the loss wants there, or SHOAL_IGNORED */
    int32_t *answers;        /* [rows]: what was masked there, or SHOAL_IGNORED */
    int32_t *masked;         /* [masked_count]: the masked rows */
    int32_t *masked_answers; /* [masked_count] */
    int64_t masked_count;
} copy_batch;

int64_t copy_positions(int64_t length); /* of 0w0w */
/* A pure function of its arguments: the position in the data is a number. */
void copy_make(const train_config *config, copy_split split, int64_t number,
               copy_batch *batch);
/* Sequences first .. first + count - 1 of it alone. */
void copy_make_share(const train_config *config, copy_split split, int64_t number,
                     int64_t first, int64_t count, copy_batch *batch);

/* Of speech: loss per label, or per step with LF-MMI; counted are the labels, correct
   those without the edits (which may be more, so that it may be negative), accuracy is 1
   - error rate, NaN where nothing was decoded. */
typedef struct {
    double loss;              /* mean over the positions of the loss */
    double accuracy;          /* share of the masked positions that are right */
    int64_t correct, counted; /* masked positions */
    int64_t impossible;       /* speech: utterances that cannot be aligned */
    int64_t broken;           /* and those whose loss came out as no number */
    const char *metric;       /* text: what accuracy is instead; NULL: as above */
    const char *second;       /* text: another one, or NULL */
    double second_value;
} train_score;

/* What a rank's share of a batch adds to the batch's score. */
typedef struct {
    double loss;    /* mean over `weight` */
    double weight;  /* positions, labels */
    double divisor; /* what the loss was divided by for its gradient */
    int64_t correct, counted, impossible, broken, sequences;
} train_part;

typedef struct {
    train_score score;    /* of the batch, before the step */
    double gradient_norm; /* before clipping */
    double learning_rate;
    int64_t sequences;
    double seconds;      /* of it all */
    double loss_seconds; /* speech: of these, for the loss and its gradient; else 0 */
} train_step;

typedef struct {
    int64_t step;         /* done */
    int64_t validations;  /* done, of those that decide something */
    int64_t validated_at; /* step of the last one */
    int64_t perfect;      /* latest validations in a row without a mistake */
    double seconds;       /* spent in steps and validations, earlier runs included */
    double best;          /* speech: the best validation's error rate, and its step; */
    int64_t best_step;    /* 0: none yet */
} train_state;

typedef struct trainer trainer;

/* A task: its data, and what is done with a batch. */
typedef struct {
    const char *name;
    bool keeps_best; /* the weights of the best validation are worth keeping */
    /* Sets the model's sizes that the task has; NULL: they follow from the data. */
    void (*complete)(train_config *config);
    /* Opens the data, and sets the configuration's sizes and what follows from them. */
    shoal_status (*open)(trainer *self, int64_t *max_batch, int64_t *max_rows);
    void (*close)(trainer *self);
    /* Forward, loss and backward of the next step's batch. */
    shoal_status (*step)(trainer *self, train_step *step);
    /* Validation `number`, counted from 0. */
    shoal_status (*validate)(trainer *self, int64_t number, train_score *score);
    /* The weights that a new training begins with; NULL: random ones. */
    shoal_status (*start)(trainer *self);
    /* Files beside the checkpoints, before the first of them and with the best weights;
       NULL: none. */
    int (*prepare)(trainer *self, const char *command, const char *folder);
    shoal_status (*publish)(trainer *self, const char *folder);
    /* Text that checkpoints keep, with its key; NULL: none. */
    const char *key;
    const char *(*note)(const trainer *self);
} train_task;
extern const train_task copy_task, speech_task, glue_train_task, squad_train_task;

struct trainer {
    const train_task *task;
    shoal_context *context;
    train_config config;
    shoal_model *model;
    shoal_optimizer *optimizer;
    shoal_schedule schedule;
    copy_batch batch; /* of the task copy */
    void *data;       /* of others */
    train_state state;
    train_reason reason; /* of the last call that failed */
    bool wants_stop;     /* this rank wants to end; */
    bool stopped;        /* one of them did in the last step or validation */
    shoal_status summed; /* what became of the sums that backward began */
    int64_t averaged_at; /* step whose weights are those of all ranks */
};

/* For tasks: a reason with its status, and the library's message as the reason. */
shoal_status trainer_refuse(trainer *self, shoal_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
shoal_status trainer_keep_message(trainer *self, shoal_status status);

/* ---- Several ranks (trainer_ranks.c) ----------------------------------------------- */

/* For tasks, which give each rank its share of every batch, and tell dropout where it
   begins (first_row, first_sequence). Of `count` equal things those from *first on, *own
   of them, are this rank's. */
void trainer_share(const trainer *self, int64_t count, int64_t *first, int64_t *own);
/* The parts of all ranks become one, the same everywhere. */
shoal_status trainer_sum(trainer *self, train_part *part);
/* shoal_model_backward of the share: dout [count] is the gradient of the mean over the
   share. The gradients are those of the whole batch afterwards, and the part is. */
shoal_status trainer_backward(trainer *self, const shoal_model_inputs *inputs,
                              float *dout, int64_t count, train_part *part);
train_score train_score_of(const train_part *part);

/* For the trainer: the task's open, on one rank of a machine before the others, which
   then find what it kept (features). */
shoal_status trainer_open(trainer *self, int64_t *max_batch, int64_t *max_rows);
/* Backward begins the sums; the average, where the step just taken needs one. */
shoal_status trainer_watch(trainer *self);
shoal_status trainer_average(trainer *self);
/* All that ranks must have in common before the first step. An exit code, after a
   complaint. */
int trainer_compare(trainer *self, const char *command);
/* Whether the weights are those of all ranks: while each goes on alone there is nothing
   to save. */
bool trainer_may_save(const trainer *self);

/* ---- The trainer (trainer.c) ------------------------------------------------------- */

/* Each call gives a status, and the trainer's reason where it is not SHOAL_OK. A trainer
   that was begun, well or not, must be ended. Steps allocate nothing. */
shoal_status trainer_begin(trainer *self, shoal_context *context,
                           const train_config *config);
void trainer_end(trainer *self);
shoal_status trainer_save(trainer *self, const char *path);
/* A file's weights, those that its training averaged where it did: they were validated.
   Then the model must be one with gradients. */
bool train_is_averaged(const shoal_checkpoint *file);
shoal_status train_load_weights(const shoal_checkpoint *file, shoal_model *model);
/* The weights of another run's file, for a training that begins with them. */
shoal_status trainer_take_weights(trainer *self, const char *path);
/* Goes on where the checkpoint was. One of another configuration is refused with the
   first field that differs; `steps` alone may. */
shoal_status trainer_resume(trainer *self, const char *path);
/* The configuration that a checkpoint was made with. */
shoal_status train_read(shoal_context *context, const char *path, train_config *config,
                        train_reason *reason);

shoal_status trainer_step(trainer *self, train_step *step);
/* validate_batches fresh batches. After a multiple of validate_every steps the schedule
   and the rule for stopping see the score. */
shoal_status trainer_validate(trainer *self, train_score *score);
/* Of copy: another kind of attention (NULL: the trained one) with the same weights, on
   `batches` batches that neither training nor validation sees; 0: only whether the
   weights can do with it. Changes nothing. */
shoal_status trainer_evaluate(trainer *self, const shoal_attention *attention,
                              int64_t batches, train_score *score);
bool trainer_must_validate(const trainer *self); /* before the next step */
bool trainer_finished(const trainer *self); /* all steps done, or stop_after reached */

/* ---- Runs (train_run.c) ------------------------------------------------------------ */

typedef struct {
    const char *command; /* for complaints */
    const char *label;   /* at the beginning of the progress line; may be "" */
    const char *folder;  /* of checkpoint.safetensors and log.jsonl; made if missing */
    double save_seconds; /* between checkpoints; 0: after every step */
    double stop_seconds; /* of training, earlier runs included; 0: no end */
    bool resume;         /* go on if there is a checkpoint */
    const char *from;    /* a run or file whose weights a new training begins with */
    const train_settings *settings;
    train_config config; /* defaults before, what was run after */

    train_state state;      /* at the end */
    train_step last_step;   /* the last one of this run, if any */
    train_score validation; /* the last one of this run */
    train_score test;       /* `test_batches` batches at the end, if finished */
    bool finished, validated, stepped, tested;
    bool timed;   /* ended by stop_seconds */
    bool stopped; /* of several ranks one was asked to end */
    bool busy;    /* somebody else is training in this folder: nothing was done */
    int64_t test_batches;
    double sequences_per_second; /* of this run; NAN: too short to say */
    double loss_share; /* of its steps' seconds, for the loss; NAN: not measured */
} train_run;

/* Trains until finished or interrupted; the last thing is a checkpoint. EXIT_OK also when
   a signal ended it: stop_signal tells. */
int train_go(train_run *run, shoal_context *context);

/* complain, with the exit code that the status has. */
int train_complain(shoal_status status, int otherwise, const char *command,
                   const train_reason *reason);
/* FOLDER/NAME; complains and returns false when it is too long. */
bool train_path(const char *command, char path[TRAIN_PATH], const char *folder,
                const char *name);
/* The best model in a run's folder, or else its checkpoint; or a file. Complains and
   returns false when the path is too long. */
bool train_find_weights(const char *command, const char *path, char found[TRAIN_PATH]);
/* mkdir -p. */
int train_make_folder(const char *command, const char *path);
/* A descriptor that keeps others out of the folder until it is closed, or -1 with errno:
   EWOULDBLOCK where somebody is in there and `wait` is not set. */
int train_lock_folder(const char *path, bool wait);
/* The last validation's line of the log at `path`, to be released; NULL: none. */
json_t *train_log_last_validation(const char *path);

#define TRAIN_CHECKPOINT "checkpoint.safetensors"
#define TRAIN_BEST "best.safetensors"
#define TRAIN_LOG "log.jsonl"
#define TRAIN_GRAPH "phones.graph" /* what LF-MMI decodes phones with */

#endif
